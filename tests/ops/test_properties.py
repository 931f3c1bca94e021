"""What must hold whatever the arrays are."""

from dataclasses import astuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from conftest import CORES, with_slow
from ort_gridsample import grid_sample, spec
from support.cases import ATTRIBUTES, Attributes, dtype_of, image
from support.compare import assert_same_to_rounding

pytestmark = pytest.mark.usefixtures("core")

quick = settings(max_examples=40, deadline=None, derandomize=True)
#: The default run compiles no kernels for float64.
in_float64 = with_slow("core", CORES, ["numpy"], indirect=True)

Lengths = tuple[int, ...]
Drawn = tuple[Lengths, Attributes, np.random.Generator]
lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
drawn = st.tuples(lengths, st.sampled_from(ATTRIBUTES), seeds)
NUMBERS = [name for name in spec.TYPES if name not in ("str", "bool")]
#: Types that the default run compiles kernels for.
COMPILED = ["float32", "float16", "uint8"]


def sample(X: np.ndarray, grid: np.ndarray, attributes: Attributes) -> np.ndarray:
    return grid_sample(X, grid, *astuple(attributes))


def normalize(x: np.ndarray, lengths: Lengths, align_corners: bool) -> np.ndarray:
    """The grid of pixel coordinates ``x`` (…, r), which list the outermost axis first."""
    n = np.array(lengths)
    return (2 * x / np.maximum(n - 1, 1) - 1 if align_corners else (2 * x + 1) / n - 1)[..., ::-1]


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
def test_a_constant_image_stays_constant(core: str, drawn: Drawn, data: st.DataObject) -> None:
    lengths, attributes, rng = drawn
    X_type = data.draw(st.sampled_from(COMPILED if core == "jit" else NUMBERS))
    value = image(X_type, (1, 2, 50)).reshape(-1)[rng.integers(100)]
    grid = uniform_grid(rng, len(lengths))
    if attributes.padding_mode == "zeros":  # inside only, where no tap is a zero
        x = 2 + rng.uniform(0, 1, grid.shape) * (np.array(lengths) - 1)
        lengths = tuple(length + 4 for length in lengths)
        grid = normalize(x, lengths, attributes.align_corners)
    Y = sample(
        np.full((1, 1, *lengths), value),
        grid.astype("d" if X_type == "float64" else "f"),
        attributes,
    )
    if attributes.mode == "nearest" or Y.dtype.kind in "iu":
        assert (value == Y).all()
    else:
        tolerance = (
            1e-12
            if X_type in ("float64", "complex128")
            else 1e-4
            if "32" in X_type or "64" in X_type
            else 1e-2
        )
        np.testing.assert_allclose(Y.astype(np.complex128), np.complex128(value), rtol=tolerance)


@in_float64
@quick
@given(drawn, st.permutations(range(4)), st.integers(0, 3))
def test_flips_and_transpositions_commute(drawn: Drawn, order: list[int], axis: int) -> None:
    lengths, attributes, rng = drawn
    r = len(lengths)
    X, grid = rng.normal(size=(1, 2, *lengths)), uniform_grid(rng, r)
    Y = sample(X, grid, attributes)
    flipped = grid.copy()
    flipped[..., r - 1 - axis % r] *= -1
    np.testing.assert_allclose(
        sample(np.flip(X, 2 + axis % r), flipped, attributes), Y, rtol=0, atol=1e-11
    )
    order = [axis for axis in order if axis < r]
    by_axis = grid[..., ::-1][..., order][..., ::-1]
    turned = X.transpose(0, 1, *(2 + axis for axis in order))
    np.testing.assert_allclose(sample(turned, by_axis, attributes), Y, rtol=0, atol=1e-11)


@in_float64
@quick
@given(drawn, st.integers(1, 7))
def test_padding_equals_a_padded_image(drawn: Drawn, width: int) -> None:
    lengths, attributes, rng = drawn
    aligned = attributes.align_corners
    if aligned:  # on an axis of one pixel every finite coordinate is that pixel's
        lengths = tuple(length + 1 for length in lengths)
    X = rng.normal(size=(1, 2, *lengths))
    how = {
        "zeros": "constant",
        "border": "edge",
        "reflection": "reflect" if aligned else "symmetric",
    }
    padded = np.pad(
        X, [(0, 0), (0, 0)] + [(width + 2,) * 2] * len(lengths), how[attributes.padding_mode]
    )
    # Pixel coordinates up to ``width`` outside; the two pixels more are for cubic's taps.
    x = rng.uniform(
        -width, np.array(lengths) - 1 + width, (1, *(1,) * (len(lengths) - 1), 10, len(lengths))
    )
    Y = sample(X, normalize(x, lengths, aligned), attributes)
    expected = sample(padded, normalize(x + width + 2, padded.shape[2:], aligned), attributes)
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
    for b in range(3):
        alone = [sample(X[b : b + 1, c : c + 1], grid[b : b + 1], attributes) for c in range(4)]
        assert_same_to_rounding(Y[b : b + 1], np.concatenate(alone, 1), attributes.mode)
    halves = [sample(X, grid[..., at, :], attributes) for at in (slice(cut), slice(cut, None))]
    assert_same_to_rounding(Y, np.concatenate(halves, -1), attributes.mode)
