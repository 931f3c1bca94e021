"""Deformable attention with an output in other layouts, which nodes of other layers ask for."""

import itertools

import numpy as np
import pytest

from ort_gridsample import spec
from ort_gridsample.functions.attention import attend
from support.attention_forms import TOLERANCES
from support.attention_models import assert_attention_close, operands
from support.compare import refusal
from support.oracle_evaluator import in_layout
from support.paths import INSTALLED_CORES, core_set_to

#: The number of points, and the lengths, of each level.
LEVELS = np.array([[2, 5, 7], [2, 1, 4], [2, 3, 1]])
#: B, Q, H and D.
SIZES = [(1, 1, 1, 1), (1, 17, 2, 7), (3, 5, 3, 4), (2, 33, 8, 16), (1, 260, 1, 5), (2, 0, 3, 4)]
every_core = pytest.mark.parametrize("core", INSTALLED_CORES)


@every_core
@pytest.mark.parametrize("layout", spec.OUTPUT_LAYOUTS)
@pytest.mark.parametrize("kind", TOLERANCES)
def test_output_in_any_layout_is_the_default_rearranged(kind: str, layout: str, core: str) -> None:
    """Also of more queries than are transposed at once, and of tiles of all sizes."""
    for (n, q, h, d), levels in itertools.product(SIZES, (LEVELS, LEVELS[:1] - [1, 0, 0])):
        value, locations, weights = operands(levels, kind, kind, n=n, q=q, h=h, d=d)
        arguments = (value, levels, locations, weights, False)
        default = attend(*arguments, where="attend", num_threads=2).reshape(n, q, h, d)
        with core_set_to(core):
            Y = attend(*arguments, where="attend", num_threads=2, output_layout=layout)
        expected = in_layout(default, layout)
        assert Y.shape == expected.shape
        assert_attention_close(Y, expected.astype(np.float64), kind, kind)


@every_core
def test_unknown_output_layout_is_refused(core: str) -> None:
    value, locations, weights = operands(LEVELS)
    with core_set_to(core):
        error = refusal(
            attend,
            *(value, LEVELS, locations, weights, False),
            where="attend",
            num_threads=1,
            output_layout="by_channel",
        )
    assert error.argument == "output_layout"
    assert error.found == "'by_channel'"
    assert error.expected == "'by_query', 'by_head' or 'channels_first'"
