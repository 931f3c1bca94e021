"""Compute GridSample and AffineGrid from the specification texts, in float64 and plain loops.

The oracle shares no code with the package, and is as slow as it is simple. An output position
becomes a list of taps, ``(index, weight)``. A tap with the index None has the value 0. The rest is
a sum.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Tap = tuple[tuple[int, ...] | None, float]
AxisTap = tuple[int | None, float]


def unnormalize(g: np.generic, length: int, align_corners: bool) -> float:
    """Return the pixel coordinate of ``g``, computed in g's type, or in float32 for half precision.

    NaN is replaced by -1.
    """
    compute_type = np.float64 if g.dtype == np.float64 else np.float32
    g = compute_type(g)
    if np.isnan(g):
        g = compute_type(-1)
    if np.isinf(g):
        return float(g)
    one = compute_type(1)
    two = compute_type(2)
    if align_corners:
        return float((g + one) / two * compute_type(length - 1))
    return float(((g + one) * compute_type(length) - one) / two)


def reflect(x: float, length: int, align_corners: bool) -> float:
    """Reflect a finite ``x`` at the borders until it lies between them."""
    low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
    if low == high:
        return 0.0
    x = math.fmod(x, 2 * (high - low))
    while x < low or x > high:
        x = 2 * low - x if x < low else 2 * high - x
    return x


def clip(x: float, length: int) -> float:
    return min(max(x, 0.0), length - 1.0)


def pad(x: float, length: int, padding_mode: str, align_corners: bool) -> float:
    """Move a pixel coordinate into the axis, unless the padding is zeros.

    With the padding wrap, a coordinate may lie between the last pixel and the first one.
    """
    if padding_mode == "border":
        return clip(x, length)
    if padding_mode == "reflection":
        return clip(reflect(x, length, align_corners), length)
    if padding_mode == "wrap":
        return x % length
    return x


def cubic_weight(distance: float) -> float:
    """Return the weight of Keys' cubic convolution kernel for a = -0.75."""
    a = -0.75
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    if d < 2:
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return 0.0


def lanczos_weights(t: float) -> list[float]:
    """Return Lanczos' weights of the pixels -2 to 3 for a coordinate ``t``; their sum is 1."""

    def sinc(x: float) -> float:
        return math.sin(math.pi * x) / (math.pi * x) if x != 0 else 1.0

    weights = [sinc(t - k) * sinc((t - k) / 3) for k in range(-2, 4)]
    return [weight / sum(weights) for weight in weights]


def axis_taps(
    g: np.generic, length: int, mode: str, padding_mode: str, align_corners: bool
) -> list[AxisTap]:
    """Return the taps of one axis. The index None is a pixel of value 0."""
    x = unnormalize(g, length, align_corners)
    if math.isinf(x):
        if padding_mode == "zeros":
            return [(None, 1.0)]
        x = clip(x, length)

    if padding_mode == "wrap":
        x = pad(x, length, padding_mode, align_corners)
    if mode == "nearest":
        taps = [(round(pad(x, length, padding_mode, align_corners)), 1.0)]
        if padding_mode == "wrap":
            taps = [(i % length, weight) for i, weight in taps]
    elif mode == "linear":
        x = pad(x, length, padding_mode, align_corners)
        base = math.floor(x)
        taps = [(base, 1 - (x - base)), (base + 1, x - base)]
        if padding_mode == "wrap":
            taps = [(i % length, weight) for i, weight in taps]
        elif padding_mode != "zeros":
            # At x = length - 1 the second tap has the weight 0.
            taps = [(min(i, length - 1), weight) for i, weight in taps]
    else:
        base = math.floor(x)
        # For a large x, base + 1 may equal base in floating point.
        t = x - base
        if mode == "lanczos3":
            weights = dict(zip(range(-2, 4), lanczos_weights(t), strict=True))
        else:
            weights = {k: cubic_weight(t - k) for k in (-1, 0, 1, 2)}
        taps = [
            (round(pad(base + k, length, padding_mode, align_corners)), weight)
            for k, weight in weights.items()
        ]
    return [(i if 0 <= i < length else None, weight) for i, weight in taps]


def position_taps(
    g: Sequence[np.generic],
    lengths: Sequence[int],
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> list[Tap]:
    """Return the taps of one output position.

    ``g`` lists the innermost axis first, ``lengths`` the outermost.
    """
    axes = [
        axis_taps(coordinate, length, mode, padding_mode, align_corners)
        for coordinate, length in zip(g[::-1], lengths, strict=True)
    ]
    taps: list[Tap] = []
    for combination in itertools.product(*axes):
        index = tuple(i for i, _ in combination)
        weight = math.prod(axis_weight for _, axis_weight in combination)
        taps.append((None if None in index else index, weight))  # type: ignore[arg-type]
    return taps


def grid_taps(
    grid: np.ndarray, lengths: Sequence[int], *attributes: str | bool
) -> list[list[list[Tap]]]:
    """Return the taps of every output position of every batch."""
    with np.errstate(over="ignore"):
        return [
            [position_taps(g, lengths, *attributes) for g in batch.reshape(-1, len(lengths))]
            for batch in grid
        ]


@dataclass(frozen=True)
class Expected:
    """The expected result of a call.

    Attributes:
        values: the result before it is rounded to X's type, in float64 or complex128. For nearest,
            the values of X themselves.
        scale: the largest magnitude that contributes to each value. The rounding error is relative
            to it. A float with the weight 0 does not contribute. An integer does, because integers
            are summed as differences from the first tap.
    """

    values: np.ndarray
    scale: np.ndarray


def sample_taps(
    X: np.ndarray, taps: list[list[list[Tap]]], shape: Sequence[int], mode: str
) -> Expected:
    """Return the weighted sums of ``X`` over ``taps``, in an output of ``shape``."""
    if mode == "nearest":
        return _copy_taps(X, taps, shape)
    n, c, *_ = X.shape
    positions = math.prod(shape[2:])
    values = np.zeros((n, c, positions), np.complex128 if X.dtype.kind == "c" else np.float64)
    scale = np.zeros((n, c, positions))
    wide = X.astype(values.dtype)
    is_integer = X.dtype.kind in "iu"
    for batch, channel in np.ndindex(n, c):
        image = wide[batch, channel]
        for position in range(positions):
            pixels = [
                (image.item(index), weight)
                for index, weight in taps[batch][position]
                if index is not None
            ]
            contributing = [abs(value) for value, weight in pixels if weight != 0 or is_integer]
            values[batch, channel, position] = sum(value * weight for value, weight in pixels)
            scale[batch, channel, position] = max(contributing, default=0.0)
    return Expected(values.reshape(shape), scale.reshape(shape))


def _copy_taps(X: np.ndarray, taps: list[list[list[Tap]]], shape: Sequence[int]) -> Expected:
    """Return the values of X at the single tap of each position."""
    n, c, *_ = X.shape
    zero = "" if X.dtype.kind in "OUT" else 0
    values = np.full((n, c, math.prod(shape[2:])), zero, X.dtype)
    for batch, channel, position in np.ndindex(values.shape):
        [(index, _)] = taps[batch][position]
        if index is not None:
            values[batch, channel, position] = X[batch, channel][index]
    return Expected(values.reshape(shape), np.zeros(shape))


def grid_sample(
    X: np.ndarray,
    grid: np.ndarray,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Expected:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, D1_out, …, Dr_out, r)."""
    taps = grid_taps(grid, X.shape[2:], mode, padding_mode, align_corners)
    return sample_taps(X, taps, (*X.shape[:2], *grid.shape[1:-1]), mode)


def affine_grid(theta: np.ndarray, size: Sequence[int], align_corners: bool = False) -> np.ndarray:
    """Return the grid of ``theta`` (N, r, r + 1) and ``size`` (N, C, D1, …, Dr), in float64."""
    n, _, *lengths = size

    def coordinate(i: int, length: int) -> float:
        if not align_corners:
            return (2 * i + 1) / length - 1
        return 2 * i / (length - 1) - 1 if length > 1 else 0.0

    grid = np.zeros((n, *lengths, len(lengths)))
    for batch, *index in np.ndindex(n, *lengths):
        position = [coordinate(i, length) for i, length in zip(index, lengths, strict=True)][::-1]
        for row, (*factors, shift) in enumerate(theta[batch].astype(np.float64).tolist()):
            terms = [factor * x for factor, x in zip(factors, position, strict=True)]
            grid[(batch, *index, row)] = sum(terms) + shift
    return grid


def deformable_attention(
    value: np.ndarray,
    levels: np.ndarray,
    locations: np.ndarray,
    weights: np.ndarray,
    align_corners: bool = False,
    starts: Sequence[int] | None = None,
) -> np.ndarray:
    """Return the weighted sums of linear samples of several images, (B, Q, H, D), in float64.

    Args:
        value: (B, S, H, D).
        levels: (L, 1 + r), the number of points of each level, and its lengths.
        locations: (B, Q, H, P, r), with the points of all levels in one axis.
        weights: (B, Q, H, P).
        align_corners: whether 0 and 1 are the centers of the outer pixels.
        starts: the first pixel of each level. By default each level follows the one before.
    """
    n, queries, heads, _, axes = locations.shape
    value = value.astype(np.float64)
    weights = weights.astype(np.float64)
    grid = locations.astype(np.float64) * 2 - 1
    areas = [math.prod(row[1:]) for row in levels.tolist()]
    first_pixels = [sum(areas[:i]) for i in range(len(areas))] if starts is None else starts
    rows = [
        (first_pixel, row[1:])
        for first_pixel, row in zip(first_pixels, levels.tolist(), strict=True)
        for _ in range(row[0])
    ]
    Y = np.zeros((n, queries, heads, value.shape[3]))
    for b, q, h in np.ndindex(n, queries, heads):
        for p, (first_pixel, lengths) in enumerate(rows):
            sample = np.zeros(value.shape[3])
            coordinates = grid[b, q, h, p].reshape(axes)
            for index, weight in position_taps(
                coordinates, lengths, "linear", "zeros", align_corners
            ):
                if index is not None:
                    pixel = first_pixel + int(np.ravel_multi_index(index, lengths))
                    sample += weight * value[b, pixel, h]
            Y[b, q, h] += weights[b, q, h, p] * sample
    return Y
