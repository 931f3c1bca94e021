"""Prepare the Python ops of a session: check that they are available, and compile their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from .. import spec
from ..custom_ops.python_ops import extensions
from ..detection.records import NodeRecord
from ..functions.cores import load_core
from ..reference.taps import MODE_RULES


def prepare_python_ops(records: Sequence[NodeRecord]) -> None:
    """Compile what the Python ops of these nodes call, so that the first run does not wait for it.

    Raises:
        ImportError: onnxruntime-extensions is not installed. The error names a node of strings, for
            which there are only Python ops.
    """
    if not records:
        return
    _check_python_ops(records)
    kernels = {
        (spec.TYPES[X].transport, spec.TYPES[grid].transport, str(record.mode))
        for record in records
        if record.operator == "GridSample" and record.mode in MODE_RULES
        for X, grid in product(record.types["X"], record.types["grid"])
    }
    for X, grid, mode in sorted(kernels, key=str):
        if X != "str":
            load_core().prepare(np.dtype(X), np.dtype(grid), mode)


def _check_python_ops(records: Sequence[NodeRecord]) -> None:
    """Raise ImportError if Python ops are not available."""
    try:
        extensions.load()
    except ImportError as error:
        of_strings = [record for record in records if "str" in record.types.get("X", ())]
        if not of_strings:
            raise
        node = of_strings[0].where
        message = f"{node}: X is of type str, and string tensors run on Python ops only. {error}"
        raise ImportError(message, name=error.name) from None
