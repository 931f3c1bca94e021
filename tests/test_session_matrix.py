"""Every case that ONNX Runtime can hold, through a session, against the function: bit for bit, as both are one core.

Halves reach the op as float32: they are the same but for a rounding.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from cases import ATTRIBUTES, RANKS, SESSION_TYPES, Attributes, Case, by_types_and_rank, is_defined, matrix, positions
from compare import about, assert_identical, finfo
from models import grid_sample_model
from ort_gridsample import spec
from paths import function_answer, open_patched_file, open_session, run

HALVES = ("float16", "bfloat16")
MATRIX = by_types_and_rank(matrix(SESSION_TYPES))


def attributes_of(X_type: str) -> list[Attributes]:
    return [attributes for attributes in ATTRIBUTES if is_defined(X_type, attributes.mode)]


def answers(open_model, X_type: str, grid_type: str, rank: int, opset: int = 22) -> dict[Attributes, np.ndarray]:
    """What one model answers that holds a node for each mode, padding and alignment."""
    X, grid = Case(X_type, grid_type, rank, ATTRIBUTES[0]).X, positions(grid_type, rank)
    attributes = attributes_of(X_type)
    session = open_model(grid_sample_model(X_type, grid_type, rank, attributes, opset))
    return dict(zip(attributes, run(session, X.dtype, X, grid), strict=True))


@cache
def session_answers(core: str, X_type: str, grid_type: str, rank: int) -> dict[Attributes, np.ndarray]:
    return answers(open_session, X_type, grid_type, rank)


@pytest.mark.parametrize("group", MATRIX)
def test_session_answers_as_the_function(group: str, core: str) -> None:
    for case in MATRIX[group]:
        Y = session_answers(core, case.X_type, case.grid_type, case.rank)[case.attributes]
        with about(case):
            expected = function_answer(case, core)
            if (
                case.X_type in HALVES and case.attributes.mode != "nearest"
            ):  # the op gets float32, and adds up otherwise
                assert Y.dtype == expected.dtype
                rounding = float(finfo(Y.dtype).eps)
                found, wanted = Y.astype(np.float32), expected.astype(np.float32)
                np.testing.assert_allclose(found, wanted, rtol=rounding, atol=rounding)
            else:
                assert_identical(Y, expected)


# Every pair of types, the ranks in turn.
@pytest.mark.parametrize(
    ("X_type", "grid_type", "rank"),
    [
        (X_type, grid_type, RANKS[(i + j) % len(RANKS)])
        for i, X_type in enumerate(SESSION_TYPES)
        for j, grid_type in enumerate(spec.FLOATS)
    ],
)
def test_patched_file_answers_as_the_session(X_type: str, grid_type: str, rank: int, core: str) -> None:
    expected = session_answers(core, X_type, grid_type, rank)
    for attributes, Y in answers(open_patched_file, X_type, grid_type, rank).items():
        assert_identical(Y, expected[attributes])


# Every type, the ranks in turn.
@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize(
    ("X_type", "rank"), [(name, RANKS[i % len(RANKS)]) for i, name in enumerate(SESSION_TYPES) if name != "bfloat16"]
)
def test_older_opsets_answer_as_the_newest(X_type: str, rank: int, opset: int, core: str) -> None:
    expected = session_answers(core, X_type, "float32", rank)
    for attributes, Y in answers(open_session, X_type, "float32", rank, opset).items():
        assert_identical(Y, expected[attributes])
