"""What must hold whatever the arrays are."""

from __future__ import annotations

from dataclasses import astuple

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from cases import ATTRIBUTES, Attributes, dtype_of, image
from compare import assert_identical, assert_same_to_rounding
from ort_gridsample import affine_grid, grid_sample, spec

pytestmark = pytest.mark.usefixtures("core")

quick = settings(max_examples=40, deadline=None, derandomize=True)

attributes = st.sampled_from(ATTRIBUTES)
lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
#: The sum of cubic's absolute weights on one axis is at most 1.375.
OVERSHOOT = {"nearest": 1.0, "linear": 1.0, "cubic": 1.375}


def sample(X: np.ndarray, grid: np.ndarray, attributes: Attributes) -> np.ndarray:
    return grid_sample(X, grid, *astuple(attributes))


def normalize(x: np.ndarray, length: int, align_corners: bool) -> np.ndarray:
    """The normalized coordinates of the pixel coordinates ``x``."""
    if align_corners:
        return 2 * x / max(length - 1, 1) - 1
    return (2 * x + 1) / length - 1


def normalize_all(x: np.ndarray, lengths: tuple[int, ...], align_corners: bool) -> np.ndarray:
    """The grid of pixel coordinates ``x`` (…, r), which list the outermost axis first."""
    columns = [normalize(x[..., axis], length, align_corners) for axis, length in enumerate(lengths)]
    return np.stack(columns[::-1], -1)


def uniform_grid(rng: np.random.Generator, r: int, n: int = 1, positions: int = 12, reach: float = 2.5) -> np.ndarray:
    return rng.uniform(-reach, reach, (n, *(1,) * (r - 1), positions, r))


@quick
@given(lengths, attributes, seeds)
def test_identity_grid_reproduces_the_image(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator
) -> None:
    X = rng.normal(size=(2, 2, *lengths))
    pixels = np.stack(np.meshgrid(*map(np.arange, lengths), indexing="ij"), -1).astype(np.float64)
    grid = np.repeat(normalize_all(pixels, lengths, attributes.align_corners)[None], 2, 0)
    np.testing.assert_allclose(sample(X, grid, attributes), X, rtol=0, atol=1e-12)


@quick
@given(st.lists(st.integers(1, 5), min_size=2, max_size=3).map(tuple), attributes, seeds)
def test_identity_affine_reproduces_the_image(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator
) -> None:
    X, r = rng.normal(size=(2, 3, *lengths)), len(lengths)
    theta = np.repeat(np.eye(r, r + 1)[None], 2, 0)
    grid = affine_grid(theta, X.shape, attributes.align_corners)
    np.testing.assert_allclose(sample(X, grid, attributes), X, rtol=0, atol=1e-12)


@quick
@given(lengths, attributes, seeds, st.sampled_from([name for name in spec.TYPES if name not in ("str", "bool")]))
def test_a_constant_image_stays_constant(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator, X_type: str
) -> None:
    value = image(X_type, (1, 2, 50)).reshape(-1)[rng.integers(100)]
    X = np.full((1, 1, *lengths), value)
    if attributes.padding_mode == "zeros":  # inside only, where no tap is a zero
        reach = 2
        X = np.full((1, 1, *(length + 2 * reach for length in lengths)), value)
        x = reach + rng.uniform(0, 1, (1, *(1,) * (len(lengths) - 1), 9, len(lengths))) * (np.array(lengths) - 1)
        grid = normalize_all(x, X.shape[2:], attributes.align_corners)
    else:
        grid = uniform_grid(rng, len(lengths))
    Y = sample(X, grid, attributes)
    if attributes.mode == "nearest" or X.dtype.kind in "iu":
        assert (value == Y).all()
    else:
        tolerance = 1e-12 if X_type in ("float64", "complex128") else 1e-4 if "32" in X_type or "64" in X_type else 1e-2
        np.testing.assert_allclose(Y.astype(np.complex128), np.complex128(value), rtol=tolerance)


@quick
@given(lengths, attributes, seeds)
def test_linear_in_the_image(lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator) -> None:
    A, B = rng.normal(size=(2, 1, 2, *lengths))
    grid = uniform_grid(rng, len(lengths))
    combined = 2.5 * sample(A, grid, attributes) - 0.75 * sample(B, grid, attributes)
    np.testing.assert_allclose(sample(2.5 * A - 0.75 * B, grid, attributes), combined, rtol=0, atol=1e-11)


@quick
@given(lengths, attributes, seeds, st.data())
def test_flips_commute(lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator, data) -> None:
    r = len(lengths)
    axis = data.draw(st.integers(0, r - 1))
    X, grid = rng.normal(size=(1, 2, *lengths)), uniform_grid(rng, r)
    flipped = grid.copy()
    flipped[..., r - 1 - axis] *= -1
    Y = sample(np.flip(X, 2 + axis), flipped, attributes)
    np.testing.assert_allclose(Y, sample(X, grid, attributes), rtol=0, atol=1e-11)


@quick
@given(lengths, attributes, seeds, st.permutations(range(4)))
def test_transposed_axes_commute(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator, order: list[int]
) -> None:
    r = len(lengths)
    order = [axis for axis in order if axis < r]
    X, grid = rng.normal(size=(1, 2, *lengths)), uniform_grid(rng, r)
    by_axis = grid[..., ::-1][..., order][..., ::-1]
    Y = sample(X.transpose(0, 1, *(2 + axis for axis in order)), by_axis, attributes)
    np.testing.assert_allclose(Y, sample(X, grid, attributes), rtol=0, atol=1e-11)


@quick
@given(lengths, attributes, seeds, st.integers(1, 7))
def test_padding_equals_a_padded_image(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator, width: int
) -> None:
    aligned = attributes.align_corners
    if aligned:  # on an axis of one pixel every finite coordinate is that pixel's
        lengths = tuple(length + 1 for length in lengths)
    X = rng.normal(size=(1, 2, *lengths))
    how = {"zeros": "constant", "border": "edge", "reflection": "reflect" if aligned else "symmetric"}
    padded = np.pad(X, [(0, 0), (0, 0)] + [(width + 2,) * 2] * len(lengths), how[attributes.padding_mode])
    # Pixel coordinates up to ``width`` outside; the two pixels more are for cubic's taps.
    x = rng.uniform(-width, np.array(lengths) - 1 + width, (1, *(1,) * (len(lengths) - 1), 10, len(lengths)))
    Y = sample(X, normalize_all(x, lengths, aligned), attributes)
    expected = sample(padded, normalize_all(x + width + 2, padded.shape[2:], aligned), attributes)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-11)


@quick
@given(lengths, attributes, seeds)
def test_batches_and_channels_are_independent(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator
) -> None:
    X, grid = rng.normal(size=(3, 4, *lengths)).astype(np.float32), uniform_grid(rng, len(lengths), 3)
    alone = [
        np.concatenate([sample(X[b : b + 1, c : c + 1], grid[b : b + 1], attributes) for c in range(4)], 1)
        for b in range(3)
    ]
    assert_same_to_rounding(sample(X, grid, attributes), np.concatenate(alone), attributes.mode)


@quick
@given(lengths, attributes, seeds, st.sampled_from(spec.FLOATS), st.integers(1, 11))
def test_positions_are_independent(
    lengths: tuple[int, ...], attributes: Attributes, rng: np.random.Generator, grid_type: str, cut: int
) -> None:
    X = rng.normal(size=(1, 2, *lengths)).astype(np.float32)
    grid = uniform_grid(rng, len(lengths)).astype(dtype_of(grid_type))
    halves = [sample(X, grid[..., at, :], attributes) for at in (slice(cut), slice(cut, None))]
    assert_same_to_rounding(sample(X, grid, attributes), np.concatenate(halves, -1), attributes.mode)


@settings(quick, max_examples=18)
@given(attributes, seeds)
def test_positions_are_independent_beyond_one_block(attributes: Attributes, rng: np.random.Generator) -> None:
    X, grid = rng.normal(size=(1, 3, 9, 11)).astype(np.float32), rng.uniform(-1.3, 1.3, (1, 160, 170, 2))
    rows = [sample(X, grid[:, at], attributes) for at in (slice(1), slice(1, 71), slice(71, None))]
    assert_same_to_rounding(sample(X, grid, attributes), np.concatenate(rows, 2), attributes.mode)


finite = st.floats(-1e6, 1e6, width=32)
far = np.array([np.nan, np.inf, -np.inf, 1e10, -1e30, 3.4e38], np.float32)
anything = st.one_of(st.floats(width=32), st.sampled_from(far.tolist()), st.floats(-1.5, 1.5, width=32))


@settings(quick, max_examples=150)
@given(st.data(), lengths, attributes)
def test_any_grid_gives_finite_answers_within_reach(data, lengths: tuple[int, ...], attributes: Attributes) -> None:
    r = len(lengths)
    X = data.draw(arrays.arrays(np.float32, (1, 1, *lengths), elements=finite, fill=finite))
    # A picture inside a larger one that is all NaN: a tap that leaves X would show.
    fenced = np.full([length + 2 for length in X.shape], np.nan, np.float32)
    inside = tuple(slice(1, -1) for _ in X.shape)
    fenced[inside] = X
    grid = data.draw(arrays.arrays(np.float32, (1, *(1,) * (r - 1), 6, r), elements=anything, fill=anything))
    Y = sample(fenced[inside], grid, attributes)
    assert np.isfinite(Y).all()
    reach = OVERSHOOT[attributes.mode] ** r
    assert abs(Y).max() <= reach * abs(X).max() * (1 + 1e-4) + 1e-30
    if attributes.mode != "cubic":
        low, high = X.min(), X.max()
        if attributes.padding_mode == "zeros":
            low, high = min(low, 0), max(high, 0)
        slack = 1e-5 * abs(X).max() + 1e-30
        assert low - slack <= Y.min()
        assert Y.max() <= high + slack


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_repeated_calls_answer_the_same(attributes: Attributes) -> None:
    X, grid = image("float32", (2, 5, 30, 31)), np.random.default_rng(0).uniform(-1.5, 1.5, (2, 90, 95, 2))
    answers = [grid_sample(X, grid, *astuple(attributes), num_threads=threads) for threads in (1, 2, 5, None)]
    for answer in answers[1:]:
        assert_identical(answer, answers[0])


@quick
@given(seeds, st.sampled_from([2, 3]), st.booleans())
def test_affine_grid_is_affine_in_theta(rng: np.random.Generator, r: int, align_corners: bool) -> None:
    A, B = rng.normal(size=(2, 1, r, r + 1))
    size = (1, 1, *rng.integers(1, 6, r))
    combined = 2 * affine_grid(A, size, align_corners) - affine_grid(B, size, align_corners)
    np.testing.assert_allclose(affine_grid(2 * A - B, size, align_corners), combined, rtol=0, atol=1e-12)
