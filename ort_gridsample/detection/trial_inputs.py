"""Inputs for the trials of :mod:`.trials`: possible samples, shapes, images and grids.

The grids have positions at edges and centres of pixels, between them, and far outside.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, count, product
from typing import NamedTuple

import numpy as np

from ..inference.types import TypeAndShape
from ..reference.arrays import Array
from ..reference.coordinates import Axis, normalize, unnormalize

#: Lengths for unknown dimensions, in order of the inputs and axes. A model runs with each row.
SIZES = ((2, 3, 4, 8, 5, 6, 7, 9, 11), (3, 2, 7, 5, 4, 3, 2, 6, 8), (1, 1, 9, 6, 1, 8, 5, 3, 2))
#: The minimum number of positions to test.
MIN_POSITIONS = 1024
#: The maximum number of runs that test these positions.
MAX_RUNS = 64
#: The maximum number of elements of an input.
MAX_ELEMENTS = 1 << 26
#: The fraction of a pixel coordinate at the edge of a pixel.
_EDGE = 0.5


#: The shape of each input.
InputShapes = list[tuple[int, ...]]
#: A dimension: the index of an input, and the axis.
Dimension = tuple[int, int]
#: A known length, the name of an unknown one, or the dimension itself if the length has no name.
PossibleLength = int | str | Dimension


class SampleAttributes(NamedTuple):
    """The attributes of a GridSample."""

    mode: str
    padding_mode: str
    align_corners: bool


class PossibleSample(NamedTuple):
    """A GridSample that a model may compute.

    Attributes:
        attributes: its attributes.
        image_lengths: the height and the width of an X that has all pixels on one axis. Otherwise
            empty.
    """

    attributes: SampleAttributes
    image_lengths: tuple[int, ...]


def possible_shapes(
    values: Sequence[TypeAndShape],
    equal: Sequence[tuple[Dimension, Dimension | int]],
) -> Iterator[InputShapes]:
    """Yield shapes that ``values`` may have: one of each if all are known, else several.

    Dimensions of one name have the same length.

    Args:
        equal: dimensions that have the same length, or that have this length.
    """
    lengths: dict[Dimension, PossibleLength] = {}
    for number, value in enumerate(values):
        for axis, known in enumerate(value.shape or ()):
            lengths[number, axis] = (number, axis) if known is None else known
    for first, second in equal:
        if not _set_equal(lengths, first, second):
            return
    unknown = [length for length in dict.fromkeys(lengths.values()) if not isinstance(length, int)]
    for sizes in SIZES if unknown else SIZES[:1]:
        more_sizes = count(max(sizes) + 1)
        size_of = dict(zip(unknown, chain(sizes, more_sizes), strict=False))
        shapes = []
        for number, value in enumerate(values):
            shape = [lengths[number, axis] for axis in range(len(value.shape or ()))]
            shapes.append(tuple(n if isinstance(n, int) else size_of[n] for n in shape))
        if all(0 < math.prod(shape) <= MAX_ELEMENTS for shape in shapes):
            yield shapes


def _set_equal(
    lengths: dict[Dimension, PossibleLength],
    first: Dimension,
    second: Dimension | int,
) -> bool:
    """Give two dimensions the same length, or give a dimension a length.

    All other dimensions that have one of the two lengths get the common length, too.

    Args:
        lengths: the length of each dimension, which is changed.
        second: another dimension, or a length.

    Returns:
        Whether that is possible: two different known lengths cannot be the same.
    """
    pair: list[PossibleLength] = [lengths.get(first, first)]
    pair.append(second if isinstance(second, int) else lengths.get(second, second))
    numbers = [length for length in pair if isinstance(length, int)]
    if len(set(numbers)) > 1:
        return False
    common = numbers[0] if numbers else pair[0]
    for dimension, length in lengths.items():
        if length in pair:
            lengths[dimension] = common
    return True


def typed_inputs(
    first: Sequence[Array], shapes: InputShapes, values: Sequence[TypeAndShape]
) -> list[Array]:
    """Return the ``first`` inputs in their types, and zeros as the other ones."""
    arrays = [*first, *map(np.zeros, shapes[len(first) :])]
    typed = zip(arrays, values, strict=True)
    return [array.astype(str(value.type), copy=False) for array, value in typed]


def n_runs_needed(grid_shape: Sequence[int]) -> int:
    """Return the number of grids of this shape that have :data:`MIN_POSITIONS` positions."""
    return -(-MIN_POSITIONS // math.prod(grid_shape[:-1]))


def first_round_feeds(
    shapes: InputShapes, values: Sequence[TypeAndShape], *, jumps: Sequence[float]
) -> list[list[Array]]:
    """Return the feeds of the first round: positions anywhere, for one shape of the inputs.

    Args:
        values: the types of the inputs.
        jumps: as in :func:`later_feeds`.
    """
    feeds = _Feeds(shapes, values, jumps=jumps, image_lengths=())
    return [feeds.of_round(0)]


def later_feeds(
    shapes_of_runs: Sequence[InputShapes],
    values: Sequence[TypeAndShape],
    *,
    jumps: Sequence[float],
    image_lengths: Sequence[int],
) -> Iterator[list[Array]]:
    """Yield the feeds of all rounds after the first one, for each of ``shapes_of_runs``.

    One run per shape has an X of ones and positions inside. Its result is exactly 1, so rounding of
    coordinates cannot hide extra arithmetic on X.

    Args:
        shapes_of_runs: shapes that the inputs may have.
        values: the types of the inputs.
        jumps: the fractions of a pixel at which results jump: positions there must be exact in any
            arithmetic. If there are none, results are continuous.
        image_lengths: the lengths of an X that has all pixels on one axis, if they are known.
            Otherwise empty.
    """
    for shapes in shapes_of_runs:
        feeds = _Feeds(shapes, values, jumps=jumps, image_lengths=image_lengths)
        yield feeds.of_ones()
        n_rounds = min(2 * n_runs_needed(shapes[1]), MAX_RUNS)
        for round_index in range(1, n_rounds):
            yield feeds.of_round(round_index)


class _Feeds:
    """Random feeds of one shape: X, a grid, and zeros for inputs whose shape alone is read.

    Args:
        values: the types of the inputs.
        jumps: as in :func:`later_feeds`.
        image_lengths: as in :func:`later_feeds`.
    """

    def __init__(
        self,
        shapes: InputShapes,
        values: Sequence[TypeAndShape],
        *,
        jumps: Sequence[float],
        image_lengths: Sequence[int],
    ) -> None:
        X_shape, grid_shape = shapes[:2]
        missing_axes = len(grid_shape) - len(X_shape)
        outermost_first = image_lengths or [*X_shape[2:], *[1] * missing_axes]
        self._lengths = np.array(outermost_first[::-1])
        self._shapes = shapes
        self._values = values
        self._jumps = jumps
        self._grid_shape = grid_shape
        self._generator = np.random.default_rng(sum(map(sum, shapes)))
        self._X = self._generator.uniform(-1, 1, X_shape)
        scale = np.clip(1 - 4 / self._lengths, 0, 1)
        self._inside = self._generator.uniform(-1, 1, grid_shape) * scale

    def of_ones(self) -> list[Array]:
        """Return an X that is 1 everywhere, and a grid of positions inside."""
        return typed_inputs((np.ones_like(self._X), self._inside), self._shapes, self._values)

    def of_round(self, round_index: int) -> list[Array]:
        """Return X and a grid.

        In even rounds the positions are anywhere, in odd rounds at edges and centres of pixels.
        """
        if round_index % 2:
            grid = _at_edges(self._generator, self._grid_shape, self._lengths, self._jumps)
        else:
            grid = _anywhere(self._generator, self._grid_shape, self._lengths, self._jumps)
        return typed_inputs((self._X, grid), self._shapes, self._values)


def _anywhere(
    generator: np.random.Generator,
    shape: Sequence[int],
    lengths: Array,
    jumps: Sequence[float],
) -> Array:
    """Return a grid of positions inside, around and far outside of an image.

    None is near the edge of a pixel, or near another one of the ``jumps``.
    """
    avoided = {_EDGE, *jumps}
    reach = generator.choice([1.0, 1.0, 1.6, np.clip(400 / lengths.max(), 3, 300)], shape)
    grid: Array = generator.uniform(-1, 1, shape) * reach
    while True:
        is_near = (_distances(grid, lengths, avoided) < 2e-3).any(0)
        if not is_near.any():
            return grid
        grid = np.where(is_near, generator.uniform(-1, 1, grid.shape), grid)


def _at_edges(
    generator: np.random.Generator,
    shape: Sequence[int],
    lengths: Array,
    jumps: Sequence[float],
) -> Array:
    """Return a grid of centres and edges of pixels in either alignment.

    Positions at ``jumps`` are exact in any arithmetic.
    """
    halves = generator.integers(-4, 2 * lengths + 4, shape) / 2
    is_aligned = generator.random((*shape[:-1], 1)) < 0.5
    aligned, unaligned = (normalize(halves, axis.last, axis.span) for axis in _axes(lengths))
    grid: Array = np.where(is_aligned, aligned, unaligned)
    if jumps:
        grid = np.round(grid * 64) / 64
        distances = _distances(grid, lengths, jumps)
        is_near = ((distances > 0) & (distances < 1e-3)).any(0)
        grid = np.where(is_near, _anywhere(generator, shape, lengths, jumps), grid)
    return grid


def _axes(lengths: Array) -> list[Axis]:
    """Return the axes of these ``lengths`` as one, aligned and not aligned."""
    return [
        Axis.of(lengths, aligned, may_be_single=True, maximum=np.maximum)
        for aligned in (True, False)
    ]


def _distances(grid: Array, lengths: Array, fractions: Collection[float]) -> Array:
    """Return the distances from the next coordinate with each of these fractions, in pixels.

    There is one (…) for each fraction and either alignment. All coordinates on an aligned axis of
    one pixel are exactly 0, which is near nothing.
    """
    distances = []
    for axis, fraction in product(_axes(lengths), fractions):
        pixels = unnormalize(grid, axis)
        from_fraction = pixels - np.floor(pixels) - fraction
        distance = abs(from_fraction - np.rint(from_fraction))
        distances.append(np.where(axis.scale == 0, np.inf, distance))
    return np.stack(distances)
