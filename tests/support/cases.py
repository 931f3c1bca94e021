"""The cases that every core, op and path is tested with: types × rank × attributes."""

import itertools
import math
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cache
from typing import NamedTuple, get_args

import ml_dtypes
import numpy as np

from ort_gridsample import spec
from support import oracle
from support.oracle import Expected

RANKS = (1, 2, 3, 4)
#: The types that a session can hold. onnxruntime has no complex tensors.
SESSION_TYPES = tuple(name for name, t in spec.TYPES.items() if t.transport is not None)
#: (X type, grid type) of the kernels that the default run compiles.
USUAL = [("float32", "float32"), ("float16", "float16"), ("uint8", "float32")]


class Shapes(NamedTuple):
    """The shapes of a case's arrays."""

    X: tuple[int, ...]
    grid: tuple[int, ...]
    Y: tuple[int, ...]


#: The shapes for each rank. The coordinates in ``TIES`` are exact ties on an axis of 4 pixels if
#: corners are not aligned, and on axes of 3 and 5 pixels if they are. With 256 taps for each
#: position (cubic in four axes), one batch is enough.
SHAPES = {
    1: Shapes((2, 2, 5), (2, 24, 1), (2, 2, 24)),
    2: Shapes((2, 2, 4, 5), (2, 5, 6, 2), (2, 2, 5, 6)),
    3: Shapes((2, 2, 3, 4, 2), (2, 2, 3, 3, 3), (2, 2, 2, 3, 3)),
    4: Shapes((1, 2, 2, 3, 4, 3), (1, 3, 2, 2, 2, 4), (1, 2, 3, 2, 2, 2)),
}

#: Normalized coordinates of exact ties, pixel centres and borders on the axes of ``SHAPES``.
TIES = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
#: Normalized coordinates outside X.
OUTSIDE = (-1.3, 1.4, -2.0, 2.0, 2.25, -3.7, 7.9)
#: Normalized coordinates far outside X, and those that are not finite.
FAR = (-3e4, 12345.678, 1e10, -1e30, math.inf, -math.inf, math.nan)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a GridSample node."""

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def __str__(self) -> str:
        return f"{self.mode}-{self.padding_mode}-{'aligned' if self.align_corners else 'unaligned'}"


@dataclass(frozen=True)
class Case:
    """The types, the rank and the attributes of one call."""

    X_type: str
    grid_type: str
    rank: int
    attributes: Attributes

    def __str__(self) -> str:
        return f"{self.X_type}-{self.grid_type}-{self.rank}d-{self.attributes}"

    @property
    def X(self) -> np.ndarray:  # noqa: N802
        return image(self.X_type, SHAPES[self.rank].X)

    @property
    def grid(self) -> np.ndarray:
        return positions(self.grid_type, self.rank)

    @property
    def expected(self) -> Expected:
        """The oracle's result."""
        return _expected(self)


ATTRIBUTES = tuple(
    Attributes(*values)
    for values in itertools.product(spec.MODES, spec.PADDING_MODES, (False, True))
)


#: Those with a mode or a padding that no specification has.
EXTENDED_ATTRIBUTES = tuple(
    Attributes(*values)
    for values in itertools.product(
        dict.fromkeys(map(spec.mode_of, get_args(spec.ModeName))),
        get_args(spec.PaddingModeName),
        (False, True),
    )
    if Attributes(*values) not in ATTRIBUTES
)


def is_defined(X_type: str, mode: str) -> bool:
    """Whether the mode is defined for the type. Strings cannot be interpolated."""
    return mode == "nearest" or spec.TYPES[X_type].compute is not None


def matrix(
    X_types: Iterable[str] = spec.TYPES,
    grid_types: Iterable[str] = spec.FLOATS,
    ranks: Iterable[int] = RANKS,
    attributes: Iterable[Attributes] = ATTRIBUTES,
) -> list[Case]:
    """Return the product of the arguments, without the cases that are not defined."""
    cases = [Case(*values) for values in itertools.product(X_types, grid_types, ranks, attributes)]
    return [case for case in cases if is_defined(case.X_type, case.attributes.mode)]


def dtype_of(name: str) -> np.dtype:
    """Return the NumPy type of a name in ``spec.TYPES``. Strings are objects, as in sessions."""
    return np.dtype({"bfloat16": ml_dtypes.bfloat16, "str": object}.get(name, name))


def generator(*seed: object) -> np.random.Generator:
    """Return a random generator that depends on the ``repr`` of ``seed`` only."""
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


@cache
def image(X_type: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a read-only X of this type.

    Even channels have small values of both signs, odd channels the whole range of the type.
    """
    rng = generator("X", X_type, shape)
    dtype = dtype_of(X_type)
    kind = "f" if X_type == "bfloat16" else dtype.kind
    if kind == "O":
        words = np.array(["", "a", "grid", "sample", "Ångström", "日本", "a\tb"], object)
        X = rng.choice(words, shape)
    elif kind == "b":
        X = rng.random(shape) < 0.5
    elif kind in "iu":
        limits = np.iinfo(dtype)
        X = rng.integers(max(limits.min, -9), 9, shape).astype(dtype)
        X[:, 1::2] = rng.integers(limits.min, limits.max, X[:, 1::2].shape, dtype, endpoint=True)
    else:
        wide = rng.normal(size=shape) + (1j * rng.normal(size=shape) if kind == "c" else 0)
        wide[:, 1::2] *= 1000
        X = wide.astype(dtype)
    X.flags.writeable = False
    return X


@cache
def positions(grid_type: str, rank: int) -> np.ndarray:
    """Return a read-only grid of this type.

    Half of the positions lie inside on every axis. The coordinates of the others may also lie
    outside or be not finite.
    """
    rng = generator("grid", rank)
    shape = SHAPES[rank].grid
    between = rng.uniform(-1, 1, shape)
    anywhere = rng.choice([*TIES, *OUTSIDE, *OUTSIDE, *FAR], shape)
    ties = rng.choice(TIES, shape)
    choice = rng.integers(0, 6, shape)
    is_inside = rng.random(shape[:-1])[..., None] < 0.5
    inside = np.where(choice % 2 == 1, between, ties)
    grid = np.where(is_inside | (choice < 2), inside, anywhere)
    with np.errstate(over="ignore"):
        grid = grid.astype(dtype_of(grid_type))
    grid.flags.writeable = False
    return grid


@cache
def _taps(grid_type: str, rank: int, mode: str, padding_mode: str, align_corners: bool) -> list:
    grid = positions(grid_type, rank)
    return oracle.grid_taps(grid, SHAPES[rank].X[2:], mode, padding_mode, align_corners)


@cache
def _expected(case: Case) -> Expected:
    taps = _taps(case.grid_type, case.rank, *astuple(case.attributes))
    return oracle.sample_taps(case.X, taps, SHAPES[case.rank].Y, case.attributes.mode)
