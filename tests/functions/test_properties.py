"""Test properties of grid_sample that hold for any arrays."""

from dataclasses import astuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from ort_gridsample import grid_sample, spec
from support.cases import ATTRIBUTES, Attributes, dtype_of, image
from support.compare import assert_same_to_rounding
from support.parameters import CORES, with_slow

pytestmark = pytest.mark.usefixtures("core")

quick = settings(max_examples=40, deadline=None, derandomize=True)
#: The default run does not compile kernels for float64.
in_float64 = with_slow("core", CORES, ["numpy"], indirect=True)

Lengths = tuple[int, ...]
Drawn = tuple[Lengths, Attributes, np.random.Generator]
lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
drawn = st.tuples(lengths, st.sampled_from(ATTRIBUTES), seeds)
NUMBERS = [name for name in spec.TYPES if name not in ("str", "bool")]
#: The types for which the default run compiles kernels.
COMPILED = ["float32", "float16", "uint8"]
#: How far a constant may be off, by the type of X.
RELATIVE_ERRORS = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 1e-4,
    "complex64": 1e-4,
    "float16": 1e-2,
    "bfloat16": 1e-2,
}


def sample(X: np.ndarray, grid: np.ndarray, attributes: Attributes) -> np.ndarray:
    return grid_sample(X, grid, *astuple(attributes))


def normalize(x: np.ndarray, lengths: Lengths, align_corners: bool) -> np.ndarray:
    """Return the grid of pixel coordinates ``x`` (…, r), which list the outermost axis first."""
    n = np.array(lengths)
    normalized = 2 * x / np.maximum(n - 1, 1) - 1 if align_corners else (2 * x + 1) / n - 1
    return normalized[..., ::-1]


def uniform_grid(rng: np.random.Generator, r: int, n: int = 1) -> np.ndarray:
    return rng.uniform(-2.5, 2.5, (n, *(1,) * (r - 1), 12, r))


@in_float64
@quick
@given(drawn)
def test_identity_grid_reproduces_the_image(drawn: Drawn) -> None:
    lengths, attributes, rng = drawn
    X = rng.normal(size=(2, 2, *lengths))
    pixels = np.stack(np.meshgrid(*map(np.arange, lengths), indexing="ij"), -1).astype(np.float64)
    grid = np.repeat(normalize(pixels, lengths, attributes.align_corners)[None], 2, 0)
    np.testing.assert_allclose(sample(X, grid, attributes), X, rtol=0, atol=1e-12)


@quick
@given(drawn, st.data())
def test_constant_image_stays_constant(core: str, drawn: Drawn, data: st.DataObject) -> None:
    lengths, attributes, rng = drawn
    X_type = data.draw(st.sampled_from(COMPILED if core == "jit" else NUMBERS))
    grid_type = "float64" if X_type == "float64" else "float32"
    value = image(X_type, (1, 2, 50)).reshape(-1)[rng.integers(100)]
    grid = uniform_grid(rng, len(lengths))
    if attributes.padding_mode == "zeros":  # so far inside that no tap is a zero
        x = 2 + rng.uniform(0, 1, grid.shape) * (np.array(lengths) - 1)
        lengths = tuple(length + 4 for length in lengths)
        grid = normalize(x, lengths, attributes.align_corners)
    Y = sample(np.full((1, 1, *lengths), value), grid.astype(grid_type), attributes)
    if attributes.mode == "nearest" or Y.dtype.kind in "iu":
        assert (value == Y).all()
    else:
        rtol = RELATIVE_ERRORS[X_type]
        np.testing.assert_allclose(Y.astype(np.complex128), np.complex128(value), rtol=rtol)


@in_float64
@quick
@given(drawn, st.integers(0, 3))
def test_flipping_image_and_grid_keeps_the_output(drawn: Drawn, axis: int) -> None:
    lengths, attributes, rng = drawn
    r = len(lengths)
    axis = axis % r
    X = rng.normal(size=(1, 2, *lengths))
    grid = uniform_grid(rng, r)
    Y = sample(X, grid, attributes)
    flipped_grid = grid.copy()
    flipped_grid[..., r - 1 - axis] *= -1
    flipped = np.flip(X, 2 + axis)
    np.testing.assert_allclose(sample(flipped, flipped_grid, attributes), Y, rtol=0, atol=1e-11)


@in_float64
@quick
@given(drawn, st.permutations(range(4)))
def test_transposing_image_and_grid_keeps_the_output(drawn: Drawn, order: list[int]) -> None:
    lengths, attributes, rng = drawn
    r = len(lengths)
    order = [axis for axis in order if axis < r]
    X = rng.normal(size=(1, 2, *lengths))
    grid = uniform_grid(rng, r)
    Y = sample(X, grid, attributes)
    # A grid lists the innermost axis first.
    transposed_grid = grid[..., ::-1][..., order][..., ::-1]
    transposed = X.transpose(0, 1, *(2 + axis for axis in order))
    np.testing.assert_allclose(
        sample(transposed, transposed_grid, attributes), Y, rtol=0, atol=1e-11
    )


@in_float64
@quick
@given(drawn, st.integers(1, 7))
def test_padding_mode_equals_a_padded_image(drawn: Drawn, width: int) -> None:
    lengths, attributes, rng = drawn
    align_corners = attributes.align_corners
    if align_corners:  # on an axis of one pixel, every finite coordinate is that pixel
        lengths = tuple(length + 1 for length in lengths)
    r = len(lengths)
    X = rng.normal(size=(1, 2, *lengths))
    numpy_modes = {
        "zeros": "constant",
        "border": "edge",
        "reflection": "reflect" if align_corners else "symmetric",
    }
    # Cubic reads two pixels beyond the coordinates.
    pad = width + 2
    numpy_mode = numpy_modes[attributes.padding_mode]
    padded = np.pad(X, [(0, 0), (0, 0), *[(pad, pad)] * r], numpy_mode)
    x = rng.uniform(-width, np.array(lengths) - 1 + width, (1, *(1,) * (r - 1), 10, r))
    Y = sample(X, normalize(x, lengths, align_corners), attributes)
    padded_grid = normalize(x + pad, padded.shape[2:], align_corners)
    expected = sample(padded, padded_grid, attributes)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-11)


@quick
@given(drawn, st.sampled_from(["float32", "float16"]), st.integers(1, 11))
def test_batches_channels_and_positions_are_independent(
    drawn: Drawn, grid_type: str, cut: int
) -> None:
    lengths, attributes, rng = drawn
    X = rng.normal(size=(3, 4, *lengths)).astype(np.float32)
    grid = uniform_grid(rng, len(lengths), 3).astype(dtype_of(grid_type))
    Y = sample(X, grid, attributes)
    for batch in range(3):
        one = slice(batch, batch + 1)
        channels = [sample(X[one, c : c + 1], grid[one], attributes) for c in range(4)]
        assert_same_to_rounding(Y[one], np.concatenate(channels, 1), attributes.mode)
    first = sample(X, grid[..., :cut, :], attributes)
    rest = sample(X, grid[..., cut:, :], attributes)
    assert_same_to_rounding(Y, np.concatenate([first, rest], -1), attributes.mode)
