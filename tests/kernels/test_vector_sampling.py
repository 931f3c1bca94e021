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

from ort_gridsample.kernels import jit_core, simd, vector_sampling
from ort_gridsample.kernels.tap_plans import MODE_CODES, PADDING_CODES, PLANS
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
#: The share of positions whose taps are not adjacent pixels, and whether they are all positions of
#: some rows of the grid, as at the edge of an image. In most vectors of 16 they are then none, some
#: or most.
APART = ((0, False), (0.1, False), (0.3, True), (0.7, False), (1, False))
#: The plans that pad taps one by one, by mode and padding.
ONE_BY_ONE = [
    (mode, padding_mode)
    for mode, padding_mode in itertools.product(MODE_RULES, PADDINGS)
    if not PLANS[MODE_CODES[mode], PADDING_CODES[padding_mode]].moves_inside
]
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


def grid_with_taps_apart(
    lengths: tuple[int, ...], share: float, in_rows: bool, rng: np.random.Generator
) -> np.ndarray:
    """Return a grid (1, 9, 35, …, r), of which a share of the positions has taps outside.

    Their coordinates lie after the last pixel, on one axis at random.
    """
    r = len(lengths)
    shape = (9, 35, *(1,) * (r - 2))
    length = np.array(lengths[::-1])
    inside = rng.uniform(3, length - 4, (*shape, r))
    is_apart = np.broadcast_to(rng.random((9, 1) if in_rows else (9, 35)) < share, (9, 35))
    axis = rng.integers(r, size=(9, 1) if in_rows else (9, 35))
    is_axis = axis[..., None] == np.arange(r)
    is_apart = (is_apart[..., None] & is_axis).reshape(*shape, r)
    pixel = np.where(is_apart, length - rng.uniform(0, 1, (*shape, r)), inside)
    return ((2 * pixel + 1) / length - 1)[None]


@pytest.mark.parametrize(("mode", "padding_mode"), ONE_BY_ONE)
@with_slow("types", TYPES + SLOW_TYPES, TYPES)
def test_vectors_with_taps_apart_agree_with_table(types: str, mode: str, padding_mode: str) -> None:
    ogs.set_core("jit")
    X_type, grid_type = types.split()
    rng = np.random.default_rng(1)
    for r in vector_sampling.supported_axes(MODE_RULES[mode].taps):
        lengths = (9, 10, 11)[:r]
        X = rng.normal(size=(1, 3, *lengths)).astype(dtype_of(X_type))
        X[0, 1, ..., 0] = np.nan
        X[0, 2, 0] = np.inf
        for share, in_rows in APART:
            grid = grid_with_taps_apart(lengths, share, in_rows, rng)
            assert_both_agree(X, grid.astype(dtype_of(grid_type)), mode, padding_mode, align=False)


@pytest.mark.parametrize(("mode", "padding_mode"), ONE_BY_ONE)
@pytest.mark.parametrize("X_type", ["float32", "float64", "uint8", "int32"])
def test_taps_apart_are_summed_as_by_numpy(X_type: str, mode: str, padding_mode: str) -> None:
    rng = np.random.default_rng(2)
    X = rng.integers(0, 100, size=(1, 2, 9, 10, 11)).astype(X_type)
    for share, in_rows in APART:
        grid = grid_with_taps_apart(X.shape[2:], share, in_rows, rng)
        grid = grid.astype("float64" if X_type == "float64" else "float32")
        by_core = []
        for core in ("jit", "numpy"):
            ogs.set_core(core)
            Y = ogs.grid_sample(X, grid, mode, padding_mode)
            by_core.append(Y.astype(float))
        tolerance = 1 if X_type in ("uint8", "int32") else 1e-3
        np.testing.assert_allclose(*by_core, rtol=0, atol=tolerance)
