"""Every type that ONNX Runtime can hold, through a session, against the function: bit for bit, as both are one core.

Halves reach the op as float32: they are the same but for a rounding.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cases import ATTRIBUTES, RANKS, SESSION_TYPES, Case, is_defined
from compare import about, assert_identical, finfo
from conftest import CORES
from models import grid_sample_model
from ort_gridsample import spec
from paths import function_answer, open_patched_file, open_session, run

HALVES = ("float16", "bfloat16")
#: The types that the default run compiles kernels for.
COMPILED = ("float32", "float16", "uint8")


@pytest.mark.parametrize(
    ("core", "X_type"),
    [
        pytest.param(core, name, marks=[pytest.mark.slow] * (core == "jit" and name not in COMPILED))
        for core, name in itertools.product(CORES, SESSION_TYPES)
    ],
    indirect=["core"],
)
def test_session_answers_as_the_function(core: str, X_type: str) -> None:
    """With each type of grid; ranks, opsets, and sessions of the model or of a patched file, in turns."""
    attributes = [each for each in ATTRIBUTES if is_defined(X_type, each.mode)]
    compiled = core == "jit" and X_type in COMPILED
    turn = SESSION_TYPES.index(X_type)
    for i, grid_type in enumerate([X_type if X_type in HALVES else "float32"] if compiled else spec.FLOATS):
        rank, open_model = RANKS[(turn + i) % 4], (open_session, open_patched_file)[(turn // 2 + i) % 2]
        opset = 22 if "bfloat16" in (X_type, grid_type) else (16, 20, None)[(turn + i) % 3]
        cases = [Case(X_type, grid_type, rank, each) for each in attributes]
        session = open_model(grid_sample_model(X_type, grid_type, rank, attributes, opset))
        for case, Y in zip(cases, run(session, cases[0].X.dtype, cases[0].X, cases[0].grid), strict=True):
            with about(f"{case}, opset {opset}, {open_model.__name__}"):
                expected = function_answer(case, core)
                assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
                # Halves that are added up reach the op as float32, and are added up otherwise.
                if X_type not in HALVES or case.attributes.mode == "nearest":
                    assert_identical(Y, expected)
                else:
                    rounding = float(finfo(Y.dtype).eps)
                    np.testing.assert_allclose(Y.astype("f"), expected.astype("f"), rtol=rounding, atol=rounding)
