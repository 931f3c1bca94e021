"""Tests whether a model of basic operators computes GridSample or AffineGrid, by running it.

onnxruntime runs the model on values that distinguish all modes, paddings and alignments. Its
results must be those of one of them. The operators are linear in X and in theta, and so few values
of these are enough. Coordinates are far outside, and at and around all borders. A model that
depends on unknown lengths runs with several ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, product
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx

from .. import spec
from ..dialects.spelling import AttributeValue
from ..graph.use_def import ROUNDINGS
from ..inference.types import Probe, Value
from ..reference import affine, sampler
from ..reference.arrays import Array
from ..reference.coordinates import PADDING, Axis, normalize, unnormalize
from ..reference.plan import plan_for

#: Lengths for unknown dimensions, in the order in which they are met. A model runs with each row.
SIZES = ((2, 3, 4, 8, 5, 6, 7, 9, 11), (3, 2, 7, 5, 4, 3, 2, 6, 8), (1, 1, 9, 6, 1, 8, 5, 3, 2))
#: The minimum number of positions.
MIN_POSITIONS = 1024
#: The maximum number of runs for these positions.
MAX_RUNS = 64
#: The maximum number of elements of an input.
MAX_ELEMENTS = 1 << 26
#: The maximum number of positions of a run that are compared, while several kinds are possible.
MAX_COMPARED = 1 << 12
#: The same when one kind is left.
MAX_COMPARED_OF_ONE_KIND = 1 << 16
#: Tolerance: above rounding error, below the difference between any two combinations of attributes.
TOLERANCE = 2e-4
#: The maximum error of a result in roundings of the values and coordinates.
MAX_ROUNDINGS = 8

#: The lengths of X if its pixels are in one axis, or an AffineGrid's ``size``, with None for a
#: batch that is theta's.
Size = tuple[int | None, ...]
#: The attributes of the operator, and its size. The size is empty if a GridSample's X has an axis
#: for each length.
Result = tuple[Mapping[str, AttributeValue], Size]
#: The shape of each input.
Shapes = list[tuple[int, ...]]
#: A dimension: the number of an input, and the axis.
Dimension = tuple[int, int]
#: A length, the name of one, or the dimension itself if it has none.
Length = int | str | Dimension


class Kind(NamedTuple):
    """The attributes of a GridSample."""

    mode: str
    padding_mode: str
    align_corners: bool


def is_flat(X: Value, grid: Value | None = None) -> bool:
    """Whether an image has all its pixels in one axis."""
    return grid is not None and X.rank == 3 and grid.rank == 4


def try_sample(model: onnx.ModelProto, values: Sequence[Value], probe: Probe) -> Result | None:
    """Return the attributes of the GridSample that a model computes, and the lengths of a flat X.

    Args:
        model: the model.
        values: the types and shapes of its inputs: X, grid, and values whose shapes it reads.
        probe: runs the model.

    Returns:
        The result. None: the model computes no GridSample.
    """
    axes = len(values[1].shape or ()) - 2
    equal_batches = ((0, 0), (1, 0))
    shapes = list(possible_shapes(values, [equal_batches, ((1, axes + 1), axes)]))
    if not shapes:
        return None
    sizes: list[tuple[int, ...]] = [()]
    if is_flat(*values[:2]):
        pixels = shapes[0][0][2]
        sizes = [(h, pixels // h) for h in range(1, pixels + 1) if pixels % h == 0]
    kinds = [Kind(*kind) for kind in product(spec.MODES, spec.PADDING_MODES, (False, True))]
    possible = list(product(kinds, sizes))
    # The first round is separate, because it excludes most models that compute something else.
    for rounds in (range(1), range(1, MAX_RUNS)):
        jumps = any(kind.mode == "nearest" for kind, _ in possible)
        known_size = possible[0][1] if rounds[0] > 0 else ()
        feeds = list(_sample_feeds(shapes, values, rounds, jumps=jumps, size=known_size))
        results = probe.answers(model, feeds)
        if results is None:
            return None
        for (X, grid, *_), result in zip(feeds, results, strict=True):
            max_compared = MAX_COMPARED_OF_ONE_KIND if len(possible) == 1 else MAX_COMPARED
            still_possible = []
            for kind, size in possible:
                if _is_sample(kind, size, X, grid, result, max_compared):
                    still_possible.append((kind, size))
            possible = still_possible
        if not possible:
            return None
    if len(possible) > 1:
        return None
    ((kind, size),) = possible
    if kind.mode == "nearest":
        for run_shapes in shapes:
            if not _agrees_at_ties(model, run_shapes, values, probe, kind, size):
                return None
    attributes: dict[str, AttributeValue] = {
        "mode": kind.mode,
        "padding_mode": kind.padding_mode,
        "align_corners": int(kind.align_corners),
    }
    return attributes, size


def _sample_feeds(
    shapes: Sequence[Shapes],
    values: Sequence[Value],
    rounds: Sequence[int],
    *,
    jumps: bool,
    size: Sequence[int],
) -> Iterator[list[Array]]:
    """Yield inputs for a candidate: X, grids, and zeros for values of which only the shapes count.

    Positions are inside and outside, some far. In every other round they are at edges and centres
    of pixels. After the first round, one X is 1 everywhere, with positions inside: no rounding of
    coordinates hides arithmetic on X.

    Args:
        shapes: the shapes of the inputs; the first round has only the first ones.
        values: the types of the inputs.
        rounds: the numbers of the rounds.
        jumps: whether results jump at edges. Then positions at edges are exact in any arithmetic.
        size: the lengths of X if they are known.
    """
    is_first = rounds[0] == 0
    for run_shapes in shapes[:1] if is_first else shapes:
        X_shape, grid_shape = run_shapes[:2]
        missing_axes = len(grid_shape) - len(X_shape)
        image_lengths = size or [*X_shape[2:], *[1] * missing_axes]
        lengths = np.array(image_lengths[::-1])
        generator = np.random.default_rng(sum(map(sum, run_shapes)))
        X = generator.uniform(-1, 1, X_shape)
        inside = generator.uniform(-1, 1, grid_shape) * np.clip(1 - 4 / lengths, 0, 1)
        run_count = 2 * _needed_runs(grid_shape)
        if not is_first:
            yield _typed((np.ones_like(X), inside), run_shapes, values)
            run_count -= 1
        for number in rounds[:run_count]:
            if number % 2:
                grid = _at_edges(generator, grid_shape, lengths, jumps)
            else:
                grid = _anywhere(generator, grid_shape, lengths)
            yield _typed((X, grid), run_shapes, values)


def _needed_runs(grid_shape: Sequence[int]) -> int:
    """Return the number of grids of this shape that have :data:`MIN_POSITIONS` positions."""
    return -(-MIN_POSITIONS // math.prod(grid_shape[:-1]))


def _typed(first: Sequence[Array], shapes: Shapes, values: Sequence[Value]) -> list[Array]:
    """Return the ``first`` inputs in their types, and zeros as the other ones."""
    arrays = [*first, *map(np.zeros, shapes[len(first) :])]
    typed = zip(arrays, values, strict=True)
    return [array.astype(str(value.type), copy=False) for array, value in typed]


def _is_sample(
    kind: Kind,
    size: Sequence[int],
    X: Array,
    grid: Array,
    result: Array,
    max_positions: int,
) -> bool:
    """Whether ``result`` is that of a GridSample, at ``max_positions`` of the positions."""
    X = X.reshape(*X.shape[:2], *(size or X.shape[2:]))
    *outer, axes = grid.shape
    if result.dtype != X.dtype or result.shape != (*X.shape[:2], *outer[1:]):
        return False
    positions = math.prod(outer[1:])
    chosen = np.arange(positions)
    if positions > max_positions:
        chosen = np.random.default_rng(0).choice(chosen, max_positions, replace=False)
        chosen[[0, -1]] = 0, positions - 1
    expected = np.empty((*X.shape[:2], len(chosen)), X.dtype)
    coordinates = np.ascontiguousarray(grid.reshape(len(grid), positions, axes)[:, chosen])
    sampler.grid_sample(X, coordinates, expected, plan_for(X.dtype, *kind), 1)
    pixels = ((abs(coordinates) + 1) * X.shape[:1:-1] / 2).sum(-1)[:, None]
    largest_term = 8 if kind.mode == "cubic" else 1  # of a weight
    # The effect of a coordinate's rounding grows with the differences in X.
    magnitudes = largest_term * np.max(np.abs(X)) + np.ptp(X) * pixels
    compared = result.reshape(*X.shape[:2], positions)[..., chosen]
    return _are_equal(compared, expected, magnitudes, grid.dtype)


def _are_equal(result: Array, expected: Array, magnitudes: Array, coarser: np.dtype[Any]) -> bool:
    """Whether two arrays are equal up to rounding of values of these ``magnitudes``.

    They are rounded to the arrays' type, or to a ``coarser`` one.
    """
    epsilon = max(np.finfo(result.dtype).eps, np.finfo(coarser).eps)
    tolerance = np.minimum(TOLERANCE, MAX_ROUNDINGS * epsilon * magnitudes)
    return bool((abs(result - expected) <= tolerance).all())


# Positions.


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
    jumps: bool,
) -> Array:
    """Return a grid of centres and edges of pixels in either alignment.

    With ``jumps``, edges are exact.
    """
    halves = generator.integers(-4, 2 * lengths + 4, shape) / 2
    is_aligned = generator.random((*shape[:-1], 1)) < 0.5
    aligned, unaligned = (normalize(halves, axis.last, axis.span) for axis in _axes(lengths))
    grid: Array = np.where(is_aligned, aligned, unaligned)
    if jumps:
        grid = np.round(grid * 64) / 64
        distances = abs(_from_edges(grid, lengths))
        is_near = ((distances > 0) & (distances < 1e-3)).any(0)
        grid = np.where(is_near, _anywhere(generator, shape, lengths), grid)
    return grid


def _axes(lengths: Array) -> list[Axis]:
    """Return the axes of these ``lengths`` as one, aligned and not aligned."""
    return [Axis.of(lengths, aligned, True, np.maximum) for aligned in (True, False)]


def _pixels(grid: Array, lengths: Array) -> list[Array]:
    """Return the pixel coordinates of ``grid``, aligned and not aligned."""
    return [unnormalize(grid, axis) for axis in _axes(lengths)]


def _from_edges(grid: Array, lengths: Array) -> Array:
    """Return the distances (2, …) from the pixel's edge, in pixels, for either alignment."""
    return np.stack([pixels - np.floor(pixels) - 0.5 for pixels in _pixels(grid, lengths)])


# Ties of the mode "nearest".


def _agrees_at_ties(
    model: onnx.ModelProto,
    shapes: Shapes,
    values: Sequence[Value],
    probe: Probe,
    kind: Kind,
    size: Sequence[int],
) -> bool:
    """Whether a model that computes a GridSample elsewhere also computes it at ties.

    On some axes, such as one of 3 pixels, no coordinate is a tie in every arithmetic. The order of
    the model's operations decides which coordinates are ties. Therefore the values that it rounds
    are read in the run. Positions are near ties on one axis, and near centres of pixels on the
    others.
    """
    traced, roundings = _with_rounded_outputs(model)
    X_shape, grid_shape = shapes[:2]
    lengths = np.array((size or X_shape[2:])[::-1])
    axis = Axis.of(lengths.astype(np.float64), kind.align_corners, True, np.maximum)
    generator = np.random.default_rng(0)
    X = generator.permutation(math.prod(X_shape)).reshape(X_shape) + 1.0
    inside = generator.uniform(-1, 1, grid_shape) * (1 - 1 / lengths)
    dtype = np.dtype(str(values[1].type))
    runs = range(min(MAX_RUNS, _needed_runs(grid_shape)))
    near_ties = [_near_ties(generator, grid_shape, lengths, axis, dtype) for _ in runs]
    grids = [inside, *(ties.grid for ties in near_ties)]
    feeds = [_typed((X, grid), shapes, values) for grid in grids]
    outputs = probe.outputs(traced, feeds)
    if outputs is None:
        return False
    pixels = unnormalize(feeds[0][1].astype(np.float64), axis)
    views = [_views_of(outputs[0][rounding.output], pixels) for rounding in roundings]
    viewed_axes = set(chain.from_iterable(views))
    if not all(number in viewed_axes for number, length in enumerate(lengths) if length > 1):
        return False  # the model does not round pixel coordinates, and so its ties are unknown
    for ties, (X, *_), run_outputs in zip(near_ties, feeds[1:], outputs[1:], strict=True):
        on_tie = np.zeros(grid_shape[:-1], bool)
        for rounding, views_by_axis in zip(roundings, views, strict=True):
            for number, view in views_by_axis.items():
                coordinate = view.of(run_outputs[rounding.output])
                is_jump = coordinate - np.floor(coordinate) == rounding.jump
                on_tie |= is_jump & (ties.axis == number)
        image = X.reshape(*X.shape[:2], *lengths[::-1])
        expected = _nearest_at(image, ties.pixels, axis, kind.padding_mode)
        if ((run_outputs[0] != expected).any(1) & on_tie).any():
            return False
    return True


class _Rounding(NamedTuple):
    """A rounding in a model.

    Attributes:
        output: the index of the model's output that is rounded.
        jump: the fractional part at which the rounded value jumps.
    """

    output: int
    jump: float


def _with_rounded_outputs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[_Rounding]]:
    """Return a copy of ``model`` that also outputs the values that it rounds; and the roundings."""
    nodes = [node for node in model.graph.node if node.op_type in ROUNDINGS]
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    for name in dict.fromkeys(node.input[0] for node in nodes):
        traced.graph.output.append(onnx.ValueInfoProto(name=name))
    indices = {value.name: index for index, value in enumerate(traced.graph.output)}
    roundings = []
    for node in nodes:
        jump = 0.5 if node.op_type == "Round" else 0.0
        roundings.append(_Rounding(indices[node.input[0]], jump))
    return traced, roundings


class _NearTies(NamedTuple):
    """A grid near ties.

    Attributes:
        grid: the grid.
        pixels: the exact pixel coordinates.
        axis: for each position, the axis that has the tie.
    """

    grid: Array
    pixels: Array
    axis: Array


def _near_ties(
    generator: np.random.Generator,
    shape: Sequence[int],
    lengths: Array,
    axis: Axis,
    dtype: np.dtype[Any],
) -> _NearTies:
    """Return a grid with ties up to two roundings away."""
    centres = generator.integers(0, lengths, shape).astype(np.float64)
    tested_axis = generator.integers(0, len(lengths), shape[:-1])
    is_tested = np.arange(len(lengths)) == tested_axis[..., None]
    ties = generator.integers(-4, lengths + 4, shape) + 0.5
    pixels = np.where(is_tested, ties, centres)
    # The only coordinate on an aligned axis of one pixel is 0.
    pixels = np.where((lengths == 1) & axis.align_corners, 0.0, pixels)
    grid = normalize(pixels, axis.last, axis.span).astype(dtype)
    steps = generator.integers(-2, 3, shape[:-1])[..., None] * is_tested
    above, below = (np.array(limit, dtype) for limit in (np.inf, -np.inf))
    for step in (1, 2):
        grid = np.where(steps >= step, np.nextafter(grid, above), grid)
        grid = np.where(steps <= -step, np.nextafter(grid, below), grid)
    return _NearTies(grid, pixels, tested_axis)


@dataclass(frozen=True)
class _View:
    """Where the coordinates of one axis are in a value that consists of equal parts.

    Attributes:
        outer: the shape (N, …) of the coordinates.
        parts: the number of parts.
        part: the index of the part with the coordinates.
        order: whether the parts are outside of all positions, inside, or outside of those of each
            batch.
    """

    outer: tuple[int, ...]
    parts: int
    part: int
    order: Literal["outside", "inside", "in batches"]

    def of(self, x: Array) -> Array:
        """Return the coordinates in ``x``."""
        match self.order:
            case "outside":
                rows = x.reshape(self.parts, -1)[self.part]
            case "inside":
                rows = x.reshape(-1, self.parts)[:, self.part]
            case "in batches":
                rows = x.reshape(self.outer[0], self.parts, -1)[:, self.part]
        return rows.reshape(self.outer)


def _views_of(rounded: Array, pixels: Array) -> dict[int, _View]:
    """Return for each axis where pixel coordinates (N, …, r) are in the values that a node rounds.

    The values may differ from the coordinates by a constant, such as with an image that has zeros
    around it. Empty: they are not there.
    """
    *outer, axes = pixels.shape
    positions = math.prod(outer)
    views: dict[int, _View] = {}
    if positions == 0 or rounded.size % positions:
        return views
    parts = rounded.size // positions
    orders: Sequence[Literal["outside", "inside", "in batches"]] = (
        "outside",
        "inside",
        "in batches",
    )
    for part, order, number in product(range(min(parts, axes)), orders, range(axes)):
        view = _View(tuple(outer), parts, part, order)
        differences = view.of(rounded) - pixels[..., number]
        constant = np.rint(2 * differences.flat[0]) / 2
        if number not in views and (abs(differences - constant) < 1e-3).all():
            views[number] = view
    return views


def _nearest_at(X: Array, pixels: Array, axis: Axis, padding_mode: str) -> Array:
    """Return the pixels of X (N, C, D1, …, Dr) nearest to exact pixel coordinates (N, …, r).

    The innermost axis is the first coordinate.
    """
    padding = PADDING[padding_mode]
    nearest = np.rint(padding.pad(np, pixels, axis))
    is_inside = ((nearest >= 0) & (nearest <= axis.last)).all(-1)
    index = np.clip(nearest, 0, axis.last).astype(np.int64)
    batch = np.arange(len(X)).reshape(-1, *[1] * (pixels.ndim - 2))
    outermost_first = (index[..., i] for i in reversed(range(pixels.shape[-1])))
    samples = X[(batch, slice(None), *outermost_first)]
    return np.moveaxis(np.where(is_inside[..., None], samples, 0), -1, 1)


# AffineGrid.


def try_affine_grid(model: onnx.ModelProto, values: Sequence[Value], probe: Probe) -> Result | None:
    """Return the attributes and the size of the AffineGrid that a model computes.

    Args:
        model: the model.
        values: the types and shapes of its inputs: theta, and values whose shapes it reads.
        probe: runs the model.

    Returns:
        The result. None: the model computes no AffineGrid.
    """
    for axes in (2, 3):
        possible = [False, True]
        sizes = set[Size]()
        for shapes in possible_shapes(values, [((0, 1), axes), ((0, 2), axes + 1)]):
            generators = [np.random.default_rng(seed) for seed in range(2)]
            thetas = [generator.uniform(-2, 2, shapes[0]) for generator in generators]
            feeds = [_typed([theta], shapes, values) for theta in thetas]
            results = probe.answers(model, feeds)
            if results is None:  # the model may need a theta of the other number of axes
                possible = []
                break
            for (theta, *_), result in zip(feeds, results, strict=True):
                still_possible = []
                for align_corners in possible:
                    if _is_affine_grid(theta, result, axes, align_corners):
                        still_possible.append(align_corners)
                possible = still_possible
                sizes.add((1, *result.shape[1:-1]))
        if possible and len(sizes) == 1:
            batch = (values[0].shape or (None,))[0]
            size = (batch if isinstance(batch, int) else None, *sizes.pop())
            return {"align_corners": int(possible[0])}, size
    return None


def _is_affine_grid(theta: Array, result: Array, axes: int, align_corners: bool) -> bool:
    lengths = result.shape[1 : 1 + axes]
    if result.dtype != theta.dtype or result.shape != (len(theta), *lengths, axes):
        return False
    expected = np.empty_like(result)
    affine.affine_grid(theta, lengths, align_corners, expected, 1)
    return _are_equal(result, expected, np.max(np.abs(theta).sum(-1)), theta.dtype)


# Shapes.


def possible_shapes(
    values: Sequence[Value],
    equal: Sequence[tuple[Dimension, Dimension | int]],
) -> Iterator[Shapes]:
    """Yield shapes that ``values`` may have: one of each if all are known, else several.

    Dimensions of one name have the same length.

    Args:
        values: the values.
        equal: dimensions that have the same length, or that have this length.
    """
    lengths: dict[Dimension, Length] = {}
    for number, value in enumerate(values):
        for axis, known in enumerate(value.shape or ()):
            lengths[number, axis] = (number, axis) if known is None else known
    for first, second in equal:
        pair: list[Length] = [lengths.get(first, first)]
        pair.append(second if isinstance(second, int) else lengths.get(second, second))
        numbers = [length for length in pair if isinstance(length, int)]
        if len(set(numbers)) > 1:
            return
        common = numbers[0] if numbers else pair[0]
        for dimension, length in lengths.items():
            if length in pair:
                lengths[dimension] = common
    unknown = list(dict.fromkeys(x for x in lengths.values() if not isinstance(x, int)))
    for row in SIZES if unknown else SIZES[:1]:
        chosen = dict(zip(unknown, chain(row, count(max(row) + 1)), strict=False))
        shapes = []
        for number, value in enumerate(values):
            shape = [lengths[number, axis] for axis in range(len(value.shape or ()))]
            shapes.append(tuple(x if isinstance(x, int) else chosen[x] for x in shape))
        if all(0 < math.prod(shape) <= MAX_ELEMENTS for shape in shapes):
            yield shapes
