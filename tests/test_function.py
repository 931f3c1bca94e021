"""The function against the oracle: every type, rank, mode, padding and alignment, and everything odd about arrays."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import oracle
import pytest
from cases import ATTRIBUTES, Attributes, Case, dtype_of, generator, image, matrix
from compare import assert_identical, assert_matches
from ort_gridsample import GridSampleError, affine_grid, grid_sample, spec

pytestmark = pytest.mark.usefixtures("core")

FLOAT_CASES = tuple(matrix(["float32"], ["float32"]))
INTEGERS = tuple(name for name, t in spec.TYPES.items() if "int" in name)


def sample(case: Case, X: np.ndarray | None = None, grid: np.ndarray | None = None) -> np.ndarray:
    X, grid = case.X if X is None else X, case.grid if grid is None else grid
    return grid_sample(X, grid, case.attributes.mode, case.attributes.padding_mode, case.attributes.align_corners)


@pytest.mark.parametrize("case", matrix(), ids=str)
def test_matches_the_oracle(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Y = sample(case)
    assert Y.dtype == case.X.dtype
    assert_matches(Y, case.expected, case.grid.dtype, case.attributes.mode, case.attributes.padding_mode)
