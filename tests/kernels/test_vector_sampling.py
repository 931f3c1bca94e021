"""Sampling in vectors: the same results as through a table of taps, bit for bit."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ort_gridsample as ogs
from support.cases import dtype_of
from support.parameters import with_slow

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core, simd
from ort_gridsample.reference.coordinates import PADDING_RULES
from ort_gridsample.reference.taps import MODE_RULES

pytestmark = [
    pytest.mark.usefixtures("default_core"),
    pytest.mark.skipif(
        not simd.CPU_HAS_FAST_VECTORS, reason="only fast vectors are used instead of a table"
    ),
]

#: The spatial lengths of X. Some axes have fewer pixels than a position has taps.
LENGTHS = ((9, 7), (1, 5), (2, 3), (4, 4), (64, 1), (5, 4, 6), (2, 1, 3))
#: Less than a vector, a vector, two that overlap, and more than a tile.
POSITIONS = (5, 16, 21, 2100)
PADDINGS = tuple(PADDING_RULES)
#: Types of X and of the grid.
TYPES = ["float32 float32", "float16 float32", "float32 float16"]
SLOW_TYPES = ["float64 float64", "bfloat16 float32", "float32 float64", "float64 float32"]
#: Normalized coordinates far outside, or not finite.
FAR = np.array([1e10, -1e10, 3.4e38, -3.4e38, np.nan, np.inf, -np.inf])


def coordinates(lengths: tuple[int, ...], positions: int, rng: np.random.Generator) -> np.ndarray:
    """Return a grid (positions, r): random coordinates, and centers and edges of pixels."""
    r = len(lengths)
    grid = rng.uniform(-1.5, 1.5, (positions, r))
    pixels = np.asarray(lengths[::-1])
    centers = (rng.integers(-2, pixels + 2, (positions, r)) * 2 + 1) / pixels - 1
    edges = rng.integers(-2, pixels + 2, (positions, r)) * 2 / pixels - 1
    choice = rng.random((positions, r))
    return np.select([choice < 0.3, choice < 0.5], [centers, edges], grid)


def kernel_of(X_type: str, grid_type: str, mode: str, padding_mode: str, align: bool) -> Any:
    """Return the kernel descriptor for these types and attributes."""
    return jit_core._sampling_functions(X_type, grid_type, mode, padding_mode, align).kernel


@contextmanager
def replaced(kernel: Any, **fields: int) -> Iterator[None]:
    """Set fields of a kernel descriptor for a while. Kernels are cached, so they are restored."""
    before = {name: getattr(kernel, name) for name in fields}
    for name, value in fields.items():
        setattr(kernel, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(kernel, name, value)


def bits_of(array: np.ndarray) -> np.ndarray:
    """Return the bits of an array, the same for every NaN."""
    unified = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return unified.view(f"u{array.itemsize}")


def assert_both_agree(
    X: np.ndarray, grid: np.ndarray, mode: str, padding_mode: str, align: bool
) -> None:
    """Compare the outputs in vectors and through a table."""
    attributes: Any = {"mode": mode, "padding_mode": padding_mode, "align_corners": align}
    kernel = kernel_of(X.dtype.name, grid.dtype.name, mode, padding_mode, align)
    assert kernel.sample_in_vectors != 0
    # A packed X is sampled through a table.
    with replaced(kernel, pack=0):
        in_vectors = ogs.grid_sample(X, grid, **attributes)
        with replaced(kernel, sample_in_vectors=0):
            expected = ogs.grid_sample(X, grid, **attributes)
    np.testing.assert_array_equal(bits_of(in_vectors), bits_of(expected))


@pytest.mark.parametrize("mode", MODE_RULES)
@with_slow("types", TYPES + SLOW_TYPES, TYPES)
def test_vectors_agree_with_table(types: str, mode: str) -> None:
    ogs.set_core("jit")
    X_type, grid_type = types.split()
    rng = np.random.default_rng(0)
    for lengths, positions in itertools.product(LENGTHS, POSITIONS):
        X = rng.normal(size=(2, 18, *lengths)).astype(dtype_of(X_type))
        X[:, ::3, ..., ::2] = np.nan
        X[:, 1::5, ..., ::3] = np.inf
        shape = (2, positions, *(1,) * (len(lengths) - 1), len(lengths))
        grid = coordinates(lengths, 2 * positions, rng).reshape(shape)
        for padding_mode, align in itertools.product(PADDINGS, (False, True)):
            near = grid.astype(dtype_of(grid_type))
            assert_both_agree(X, near, mode, padding_mode, align)
            is_far = rng.random(shape) < 0.05
            far = np.where(is_far, rng.choice(FAR, shape), grid)
            with np.errstate(over="ignore"):
                far = far.astype(dtype_of(grid_type))
            assert_both_agree(X, far, mode, padding_mode, align)
