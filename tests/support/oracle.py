"""What the operators must answer, one output position at a time, in float64 and plain loops.

Written from the specification texts alone and as slow as it is simple: it shares no code with the package. A position
becomes a list of taps, ``(index, weight)`` with index None where the tap counts as 0; everything else is a sum.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Tap = tuple[tuple[int, ...] | None, float]
AxisTap = tuple[int | None, float]


def unnormalize(g: np.generic, length: int, align_corners: bool) -> float:
    """The pixel coordinate of ``g``, computed in g's own type (float32 for the halves); NaN counts as -1."""
    own = np.float64 if g.dtype == np.float64 else np.float32
    g = own(g)
    if np.isnan(g):
        g = own(-1)
    if np.isinf(g):
        return float(g)
    if align_corners:
        return float((g + own(1)) / own(2) * own(length - 1))
    return float(((g + own(1)) * own(length) - own(1)) / own(2))


def reflect(x: float, length: int, align_corners: bool) -> float:
    """Reflect finite ``x`` at the borders until it lies between them."""
    low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
    if low == high:
        return 0.0
    x = math.fmod(x, 2 * (high - low))
    while x < low or x > high:
        x = 2 * low - x if x < low else 2 * high - x
    return x


def clip(x: float, length: int) -> float:
    return min(max(x, 0.0), length - 1.0)


def keys(distance: float) -> float:
    """Keys' cubic convolution kernel, a = -0.75."""
    a, d = -0.75, abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    if d < 2:
        return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return 0.0


def axis_taps(
    g: np.generic, length: int, mode: str, padding_mode: str, align_corners: bool
) -> list[AxisTap]:
    """The (index, weight) pairs of one axis; index None is a tap that counts as 0."""
    x = unnormalize(g, length, align_corners)
    if math.isinf(x):
        if padding_mode == "zeros":
            return [(None, 1.0)]
        x = clip(x, length)

    def pad(x: float) -> float:
        if padding_mode == "border":
            return clip(x, length)
        if padding_mode == "reflection":
            return clip(reflect(x, length, align_corners), length)
        return x

    if mode == "nearest":
        taps = [(round(pad(x)), 1.0)]
    elif mode == "linear":
        x = pad(x)
        base = math.floor(x)
        taps = [(base, 1 - (x - base)), (base + 1, x - base)]
        if padding_mode != "zeros":
            taps = [
                (min(i, length - 1), w) for i, w in taps
            ]  # x = length - 1: the second weighs nothing
    else:
        base = math.floor(x)
        t = x - base  # far out, base + 1 may be base
        taps = [(round(pad(base + k)), keys(t - k)) for k in (-1, 0, 1, 2)]
    return [(i if 0 <= i < length else None, w) for i, w in taps]


def position_taps(
    g: Sequence[np.generic],
    lengths: Sequence[int],
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> list[Tap]:
    """The taps of one output position; ``g`` lists the innermost axis first, ``lengths`` the outermost."""
    axes = [
        axis_taps(x, length, mode, padding_mode, align_corners)
        for x, length in zip(g[::-1], lengths, strict=True)
    ]
    taps: list[Tap] = []
    for combination in itertools.product(*axes):
        index = tuple(i for i, _ in combination)
        weight = math.prod(w for _, w in combination)
        taps.append((None if None in index else index, weight))  # type: ignore[arg-type]
    return taps


def grid_taps(
    grid: np.ndarray, lengths: Sequence[int], *attributes: str | bool
) -> list[list[list[Tap]]]:
    """The taps of every output position of every batch."""
    with np.errstate(over="ignore"):
        return [
            [position_taps(g, lengths, *attributes) for g in batch.reshape(-1, len(lengths))]
            for batch in grid
        ]


@dataclass(frozen=True)
class Expected:
    """What a call must answer.

    Attributes:
        values: the answer before it is rounded to X's type: float64 or complex128 (nearest: X's own values).
        scale: for each value the largest magnitude that went into it, to which rounding is relative. A float without a
            weight did not; an integer did: they are added up as differences from the first tap, whatever that weighs.
    """

    values: np.ndarray
    scale: np.ndarray


def sample_taps(
    X: np.ndarray, taps: list[list[list[Tap]]], shape: Sequence[int], mode: str
) -> Expected:
    """The sums of ``taps`` over ``X``, as an output of ``shape``."""
    n, c, *_ = X.shape
    positions = math.prod(shape[2:])
    if mode == "nearest":
        copied = np.full((n, c, positions), "" if X.dtype.kind in "OUT" else 0, X.dtype)
        for b, k, p in np.ndindex(copied.shape):
            [(index, _)] = taps[b][p]
            if index is not None:
                copied[b, k, p] = X[b, k][index]
        return Expected(copied.reshape(shape), np.zeros(shape))
    values = np.zeros((n, c, positions), np.complex128 if X.dtype.kind == "c" else np.float64)
    scale = np.zeros((n, c, positions))
    wide = X.astype(values.dtype)
    differences = X.dtype.kind in "iu"
    for b, k in np.ndindex(n, c):
        image = wide[b, k]
        for p in range(positions):
            read = [
                (image.item(index), weight) for index, weight in taps[b][p] if index is not None
            ]
            values[b, k, p] = sum(value * weight for value, weight in read)
            scale[b, k, p] = max(
                (abs(value) for value, weight in read if weight != 0 or differences), default=0.0
            )
    return Expected(values.reshape(shape), scale.reshape(shape))


def grid_sample(
    X: np.ndarray,
    grid: np.ndarray,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Expected:
    """GridSample of ``X`` (N, C, D1, …, Dr) at ``grid`` (N, D1_out, …, Dr_out, r)."""
    taps = grid_taps(grid, X.shape[2:], mode, padding_mode, align_corners)
    return sample_taps(X, taps, (*X.shape[:2], *grid.shape[1:-1]), mode)


def affine_grid(theta: np.ndarray, size: Sequence[int], align_corners: bool = False) -> np.ndarray:
    """AffineGrid of ``theta`` (N, r, r + 1) for an output of ``size`` (N, C, D1, …, Dr), in float64."""
    n, _, *lengths = size

    def coordinate(i: int, length: int) -> float:
        if not align_corners:
            return (2 * i + 1) / length - 1
        return 2 * i / (length - 1) - 1 if length > 1 else 0.0

    grid = np.zeros((n, *lengths, len(lengths)))
    for b, *index in np.ndindex(n, *lengths):
        position = [coordinate(i, length) for i, length in zip(index, lengths, strict=True)][::-1]
        for row, (*factors, shift) in enumerate(theta[b].astype(np.float64).tolist()):
            grid[(b, *index, row)] = (
                sum(f * x for f, x in zip(factors, position, strict=True)) + shift
            )
    return grid
