"""The cases that every core, path and oracle is tried on, as data: X type × grid type × rank × attributes."""

import itertools
import math
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ort_gridsample import spec
from support import oracle
from support.oracle import Expected

RANKS = (1, 2, 3, 4)
#: Types that a session can hold: ONNX Runtime has no complex tensors.
SESSION_TYPES = tuple(name for name, t in spec.TYPES.items() if t.transport is not None)


class Shapes(NamedTuple):
    """Those of a case's arrays."""

    X: tuple[int, ...]
    grid: tuple[int, ...]
    Y: tuple[int, ...]


#: By rank. On an axis of 4 pixels the ties below are exact unaligned, on one of 3 or 5 aligned. One batch is enough
#: where a position has 256 taps.
SHAPES = {
    1: Shapes((2, 2, 5), (2, 24, 1), (2, 2, 24)),
    2: Shapes((2, 2, 4, 5), (2, 5, 6, 2), (2, 2, 5, 6)),
    3: Shapes((2, 2, 3, 4, 2), (2, 2, 3, 3, 3), (2, 2, 2, 3, 3)),
    4: Shapes((1, 2, 2, 3, 4, 3), (1, 3, 2, 2, 2, 4), (1, 2, 3, 2, 2, 2)),
}

#: Normalized coordinates: exact ties and pixel centres of the axes above, the borders, outside, and far outside.
TIES = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0)
OUTSIDE = (-1.3, 1.4, -2.0, 2.0, 2.25, -3.7, 7.9)
FAR = (-3e4, 12345.678, 1e10, -1e30, math.inf, -math.inf, math.nan)


@dataclass(frozen=True)
class Attributes:
    """What a node says, or leaves to the specification's defaults."""

    mode: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def __str__(self) -> str:
        return f"{self.mode}-{self.padding_mode}-{'aligned' if self.align_corners else 'unaligned'}"


@dataclass(frozen=True)
class Case:
    """Types, rank and attributes of one call."""

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
        """The oracle's answer."""
        return _expected(self)


ATTRIBUTES = tuple(
    Attributes(*values)
    for values in itertools.product(spec.MODES, spec.PADDING_MODES, (False, True))
)


def is_defined(X_type: str, mode: str) -> bool:
    """Strings can only be copied."""
    return mode == "nearest" or spec.TYPES[X_type].compute is not None


def matrix(
    X_types: Iterable[str] = spec.TYPES,
    grid_types: Iterable[str] = spec.FLOATS,
    ranks: Iterable[int] = RANKS,
    attributes: Iterable[Attributes] = ATTRIBUTES,
) -> list[Case]:
    """Every case of these that the specification defines."""
    cases = [Case(*values) for values in itertools.product(X_types, grid_types, ranks, attributes)]
    return [case for case in cases if is_defined(case.X_type, case.attributes.mode)]


def dtype_of(name: str) -> np.dtype:
    """The numpy type of a name in ``spec.TYPES``; strings are objects, as sessions take them."""
    return np.dtype({"bfloat16": ml_dtypes.bfloat16, "str": object}.get(name, name))


def generator(*seed: object) -> np.random.Generator:
    """A generator that depends on the words of ``seed`` only."""
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


@cache
def image(X_type: str, shape: tuple[int, ...]) -> np.ndarray:
    """An X of this type: even channels hold small values, of either sign, odd ones the type's whole range."""
    rng, dtype = generator("X", X_type, shape), dtype_of(X_type)
    kind = "f" if X_type == "bfloat16" else dtype.kind
    if kind == "O":
        X = rng.choice(
            np.array(["", "a", "grid", "sample", "Ångström", "日本", "a\tb"], object), shape
        )
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
    """A grid of this type: half of the positions inside on every axis, the others anywhere, finite or not."""
    rng = generator("grid", rank)
    shape = SHAPES[rank].grid
    finite = rng.uniform(-1, 1, shape)
    anywhere = rng.choice([*TIES, *OUTSIDE, *OUTSIDE, *FAR], shape)
    tie = rng.choice(TIES, shape)
    what = rng.integers(0, 6, shape)
    inside = rng.random(shape[:-1])[..., None] < 0.5
    grid = np.where(inside | (what < 2), np.where(what % 2, finite, tie), anywhere)
    with np.errstate(over="ignore"):
        grid = grid.astype(dtype_of(grid_type))
    grid.flags.writeable = False
    return grid


@cache
def _taps(grid_type: str, rank: int, mode: str, padding_mode: str, align_corners: bool) -> list:
    return oracle.grid_taps(
        positions(grid_type, rank), SHAPES[rank].X[2:], mode, padding_mode, align_corners
    )


@cache
def _expected(case: Case) -> Expected:
    taps = _taps(case.grid_type, case.rank, *astuple(case.attributes))
    return oracle.sample_taps(case.X, taps, SHAPES[case.rank].Y, case.attributes.mode)


#: Types, of X and the grid, that the default run compiles kernels for.
USUAL = [("float32", "float32"), ("float16", "float16"), ("uint8", "float32")]
