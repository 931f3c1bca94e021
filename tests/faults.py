"""Faults of older onnxruntimes that the tests allow for; each was seen in the release before the one that is named."""

from __future__ import annotations

import onnxruntime
from packaging.version import Version


def before(release: str) -> bool:
    """Whether the installed onnxruntime is older than ``release``."""
    return Version(onnxruntime.__version__) < Version(release)


#: An error in a model may come without a word.
NO_WORDS = before("1.24")
#: The native AffineGrid computes float64 in float32.
SINGLE_AFFINE_GRID = before("1.25")
#: A transposed MatMul in float64 is fused into an op that has no kernel for it.
FUSED_WITHOUT_KERNEL = before("1.26")
#: A product with a constant of no elements is taken for its other factor.
EMPTY_CONSTANTS = before("1.27")
#: The time to make a session doubles with every If around an If.
SLOW_NESTED_IFS = before("1.29")
