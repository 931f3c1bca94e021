"""Inputs for the trials of :mod:`.trials`: shapes, images and grids.

The grids have positions at edges and centres of pixels, between them, and far outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, count

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


#: The shape of each input.
Shapes = list[tuple[int, ...]]
#: A dimension: the index of an input, and the axis.
Dimension = tuple[int, int]
#: A known length, the name of an unknown one, or the dimension itself if the length has no name.
PossibleLength = int | str | Dimension


def possible_shapes(
    values: Sequence[TypeAndShape],
    equal: Sequence[tuple[Dimension, Dimension | int]],
) -> Iterator[Shapes]:
    """Yield shapes that ``values`` may have: one of each if all are known, else several.

    Dimensions of one name have the same length.

    Args:
        values: the values.
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
        first: a dimension.
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
    first: Sequence[Array], shapes: Shapes, values: Sequence[TypeAndShape]
) -> list[Array]:
    """Return the ``first`` inputs in their types, and zeros as the other ones."""
    arrays = [*first, *map(np.zeros, shapes[len(first) :])]
    typed = zip(arrays, values, strict=True)
    return [array.astype(str(value.type), copy=False) for array, value in typed]


def n_runs_needed(grid_shape: Sequence[int]) -> int:
    """Return the number of grids of this shape that have :data:`MIN_POSITIONS` positions."""
    return -(-MIN_POSITIONS // math.prod(grid_shape[:-1]))


def sample_feeds(
    shapes: Sequence[Shapes],
    values: Sequence[TypeAndShape],
    rounds: Sequence[int],
    *,
    exact_edges: bool,
    image_lengths: Sequence[int],
) -> Iterator[list[Array]]:
    """Yield feeds: X, a grid, and zeros for inputs whose shape alone is read.

    Positions are inside and outside, some far. In every other round they are at edges and centres
    of pixels. After the first round, one X is 1 everywhere, with positions inside: no rounding of
    coordinates hides arithmetic on X.

    Args:
        shapes: the shapes of the inputs; the first round has only the first ones.
        values: the types of the inputs.
        rounds: the numbers of the rounds.
        exact_edges: whether positions at edges must be exact in any arithmetic, because results
            jump there.
        image_lengths: the lengths of an X that has all pixels on one axis, if they are known.
            Otherwise empty.
    """
    is_first = rounds[0] == 0
    for run_shapes in shapes[:1] if is_first else shapes:
        X_shape, grid_shape = run_shapes[:2]
        missing_axes = len(grid_shape) - len(X_shape)
        outermost_first = image_lengths or [*X_shape[2:], *[1] * missing_axes]
        lengths = np.array(outermost_first[::-1])
        generator = np.random.default_rng(sum(map(sum, run_shapes)))
        X = generator.uniform(-1, 1, X_shape)
        inside = generator.uniform(-1, 1, grid_shape) * np.clip(1 - 4 / lengths, 0, 1)
        n_runs = 2 * n_runs_needed(grid_shape)
        if not is_first:
            yield typed_inputs((np.ones_like(X), inside), run_shapes, values)
            n_runs -= 1
        for number in rounds[:n_runs]:
            if number % 2:
                grid = _at_edges(generator, grid_shape, lengths, exact_edges)
            else:
                grid = _anywhere(generator, grid_shape, lengths)
            yield typed_inputs((X, grid), run_shapes, values)


def _anywhere(generator: np.random.Generator, shape: Sequence[int], lengths: Array) -> Array:
    """Return a grid of positions inside, around and far outside of an image.

    None is near the edge of a pixel.
    """
    reach = generator.choice([1.0, 1.0, 1.6, np.clip(400 / lengths.max(), 3, 300)], shape)
    grid: Array = generator.uniform(-1, 1, shape) * reach
    while True:
        is_near = (abs(_from_edges(grid, lengths)) < 2e-3).any(0)
        if not is_near.any():
            return grid
        grid = np.where(is_near, generator.uniform(-1, 1, grid.shape), grid)


def _at_edges(
    generator: np.random.Generator,
    shape: Sequence[int],
    lengths: Array,
    exact_edges: bool,
) -> Array:
    """Return a grid of centres and edges of pixels in either alignment.

    With ``exact_edges``, positions at edges are exact in any arithmetic.
    """
    halves = generator.integers(-4, 2 * lengths + 4, shape) / 2
    is_aligned = generator.random((*shape[:-1], 1)) < 0.5
    aligned, unaligned = (normalize(halves, axis.last, axis.span) for axis in _axes(lengths))
    grid: Array = np.where(is_aligned, aligned, unaligned)
    if exact_edges:
        grid = np.round(grid * 64) / 64
        distances = abs(_from_edges(grid, lengths))
        is_near = ((distances > 0) & (distances < 1e-3)).any(0)
        grid = np.where(is_near, _anywhere(generator, shape, lengths), grid)
    return grid


def _axes(lengths: Array) -> list[Axis]:
    """Return the axes of these ``lengths`` as one, aligned and not aligned."""
    return [
        Axis.of(lengths, aligned, may_be_single=True, maximum=np.maximum)
        for aligned in (True, False)
    ]


def _pixels(grid: Array, lengths: Array) -> list[Array]:
    """Return the pixel coordinates of ``grid``, aligned and not aligned."""
    return [unnormalize(grid, axis) for axis in _axes(lengths)]


def _from_edges(grid: Array, lengths: Array) -> Array:
    """Return the distances (2, …) from the pixel's edge, in pixels, for either alignment."""
    return np.stack([pixels - np.floor(pixels) - 0.5 for pixels in _pixels(grid, lengths)])
