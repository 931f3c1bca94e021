"""Test a model that computes GridSample with a mode that copies pixels, such as nearest, at ties.

A tie is a coordinate at which the pixel changes: halfway between two pixels with nearest. Which of
the two pixels a model reads depends on the order of its operations. A model may therefore compute
GridSample everywhere except at ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import onnx

from ..inference.probe import Probe
from ..inference.types import TypeAndShape
from ..reference.arrays import Array
from ..reference.coordinates import PADDING_RULES, Axis, normalize, unnormalize
from ..reference.taps import MODE_RULES
from .subgraphs import ROUNDINGS
from .trial_inputs import (
    MAX_RUNS,
    InputShapes,
    PossibleSample,
    SampleAttributes,
    n_runs_needed,
    typed_inputs,
)

#: The axis that lists the parts of an array: see :class:`_CoordinateLocation`.
_PartAxis = Literal["first", "last", "after batch"]
_PART_AXES: tuple[_PartAxis, ...] = get_args(_PartAxis)


def agrees_at_ties(
    model: onnx.ModelProto,
    shapes: InputShapes,
    values: Sequence[TypeAndShape],
    probe: Probe,
    sample: PossibleSample,
) -> bool:
    """Whether a model that computes a GridSample elsewhere also computes it at ties.

    Which coordinates are ties depends on the order of the model's operations; on an axis of 3
    pixels, for example, no coordinate is a tie in every order. So the model also outputs the values
    that it rounds, and these tell where it has ties. Positions are near ties on one axis, and near
    centres of pixels on the others.

    Args:
        values: the types of its inputs.
        sample: the GridSample that the model computes elsewhere.
    """
    traced, roundings = _with_rounded_outputs(model)
    lengths = np.array((sample.image_lengths or shapes[0][2:])[::-1])
    axis = Axis.of(
        lengths.astype(np.float64),
        sample.attributes.align_corners,
        may_be_single=True,
        maximum=np.maximum,
    )
    jump = MODE_RULES[sample.attributes.mode].jump
    runs = _tie_runs(shapes, values, lengths, axis, jump)
    outputs = probe.outputs(traced, [runs.feeds_inside, *runs.feeds])
    if outputs is None:
        return False
    _, grid_inside, *_ = runs.feeds_inside
    pixels = unnormalize(grid_inside.astype(np.float64), axis)
    coordinates = _rounded_coordinates(roundings, outputs[0], pixels)
    rounded_axes = {coordinate.axis_index for coordinate in coordinates}
    if not rounded_axes.issuperset(np.flatnonzero(lengths > 1)):
        return False  # the model does not round pixel coordinates, and so its ties are unknown
    for near_ties, (X, *_), run_outputs in zip(runs.grids, runs.feeds, outputs[1:], strict=True):
        image = X.reshape(*X.shape[:2], *lengths[::-1])
        expected = _pixels_at(image, near_ties.pixels, axis, sample.attributes)
        differs = (run_outputs[0] != expected).any(1)
        if (differs & _is_at_tie(near_ties, coordinates, run_outputs)).any():
            return False
    return True


class _TieRuns(NamedTuple):
    """The runs of a model that test it at ties.

    Attributes:
        feeds_inside: the feeds of a run with positions inside of X, which shows what the model
            rounds.
        feeds: the feeds of the runs near ties.
        grids: the grid of each run near ties.
    """

    feeds_inside: list[Array]
    feeds: list[list[Array]]
    grids: list[_NearTies]


def _tie_runs(
    shapes: InputShapes, values: Sequence[TypeAndShape], lengths: Array, axis: Axis, jump: float
) -> _TieRuns:
    """Return the runs of a model whose inputs have these shapes and types.

    Args:
        values: the types of the inputs.
        lengths: the spatial lengths of X, the innermost first.
        jump: the fraction of a pixel at which ties are.
    """
    X_shape, grid_shape = shapes[:2]
    generator = np.random.default_rng(0)
    X = generator.permutation(math.prod(X_shape)).reshape(X_shape) + 1.0
    inside = generator.uniform(-1, 1, grid_shape) * (1 - 1 / lengths)
    dtype = np.dtype(str(values[1].type))
    n_runs = min(MAX_RUNS, n_runs_needed(grid_shape))
    grids = [_near_ties(generator, grid_shape, lengths, axis, jump, dtype) for _ in range(n_runs)]
    return _TieRuns(
        feeds_inside=typed_inputs((X, inside), shapes, values),
        feeds=[typed_inputs((X, near_ties.grid), shapes, values) for near_ties in grids],
        grids=grids,
    )


def _rounded_coordinates(
    roundings: Sequence[_Rounding], outputs: Sequence[Array], pixels: Array
) -> list[_RoundedCoordinate]:
    """Return the coordinates among the values that a model rounds.

    Args:
        pixels: the pixel coordinates (N, …, r) of the run.
    """
    coordinates = []
    for rounding in roundings:
        locations = _locate(outputs[rounding.output_index], pixels)
        for axis_index, location in locations.items():
            coordinates.append(_RoundedCoordinate(rounding, axis_index, location))
    return coordinates


class _Rounding(NamedTuple):
    """A rounding in a model.

    Attributes:
        output_index: the index of the model's output that is rounded.
        jump_fraction: the fractional part at which the rounded value jumps.
    """

    output_index: int
    jump_fraction: float


class _RoundedCoordinate(NamedTuple):
    """The coordinates of one axis among the values that a model rounds.

    Attributes:
        rounding: the rounding.
        axis_index: the index of the axis.
        location: where the rounded value has the coordinates.
    """

    rounding: _Rounding
    axis_index: int
    location: _CoordinateLocation


def _is_at_tie(
    near_ties: _NearTies,
    coordinates: Sequence[_RoundedCoordinate],
    run_outputs: Sequence[Array],
) -> Array:
    """Return which positions of a run are at a tie in the arithmetic of the model."""
    is_tie = np.zeros(near_ties.tie_axis.shape, bool)
    for rounding, axis_index, location in coordinates:
        rounded = location.extract(run_outputs[rounding.output_index])
        is_jump = rounded - np.floor(rounded) == rounding.jump_fraction
        is_tie |= is_jump & (near_ties.tie_axis == axis_index)
    return is_tie


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
        jump_fraction = 0.5 if node.op_type == "Round" else 0.0
        roundings.append(_Rounding(indices[node.input[0]], jump_fraction))
    return traced, roundings


class _NearTies(NamedTuple):
    """A grid near ties.

    Attributes:
        grid: the grid.
        pixels: the exact pixel coordinates.
        tie_axis: for each position, the index of the axis that has the tie.
    """

    grid: Array
    pixels: Array
    tie_axis: Array


def _near_ties(
    generator: np.random.Generator,
    shape: Sequence[int],
    lengths: Array,
    axis: Axis,
    jump: float,
    dtype: np.dtype[Any],
) -> _NearTies:
    """Return a grid with ties up to two roundings away."""
    # Halfway between ties are the centres of pixels in the mode nearest.
    centres = generator.integers(0, lengths, shape) + (jump - 0.5)
    tie_axis = generator.integers(0, len(lengths), shape[:-1])
    has_tie = np.arange(len(lengths)) == tie_axis[..., None]
    ties = generator.integers(-4, lengths + 4, shape) + jump
    pixels = np.where(has_tie, ties, centres)
    # The only coordinate on an aligned axis of one pixel is 0.
    pixels = np.where(axis.scale == 0, 0.0, pixels)
    grid = normalize(pixels, axis.last, axis.span).astype(dtype)
    steps = generator.integers(-2, 3, shape[:-1])[..., None] * has_tie
    above, below = (np.array(limit, dtype) for limit in (np.inf, -np.inf))
    for step in (1, 2):
        grid = np.where(steps >= step, np.nextafter(grid, above), grid)
        grid = np.where(steps <= -step, np.nextafter(grid, below), grid)
    return _NearTies(grid, pixels, tie_axis)


@dataclass(frozen=True)
class _CoordinateLocation:
    """Where the coordinates of one axis are in an array that consists of equal parts.

    Attributes:
        shape: the shape (N, …) of the coordinates.
        n_parts: the number of parts.
        part_index: the index of the part with the coordinates.
        part_axis: the axis that lists the parts: before all axes of the coordinates, after the
            batch, or after all axes.
    """

    shape: tuple[int, ...]
    n_parts: int
    part_index: int
    part_axis: _PartAxis

    def extract(self, array: Array) -> Array:
        """Return the coordinates in ``array``."""
        match self.part_axis:
            case "first":
                coordinates = array.reshape(self.n_parts, -1)[self.part_index]
            case "after batch":
                by_batch = array.reshape(self.shape[0], self.n_parts, -1)
                coordinates = by_batch[:, self.part_index]
            case "last":
                coordinates = array.reshape(-1, self.n_parts)[:, self.part_index]
        return coordinates.reshape(self.shape)


def _locate(rounded: Array, pixels: Array) -> dict[int, _CoordinateLocation]:
    """Find pixel coordinates in the values that a node rounds.

    The values may differ from the coordinates by a constant, such as with an image that has zeros
    around it.

    Args:
        rounded: the values that the node rounds.
        pixels: the pixel coordinates (N, …, r).

    Returns:
        Axis -> the location of its coordinates, for the axes whose coordinates are rounded.
    """
    *shape, n_axes = pixels.shape
    n_positions = math.prod(shape)
    locations: dict[int, _CoordinateLocation] = {}
    if n_positions == 0 or rounded.size % n_positions:
        return locations
    n_parts = rounded.size // n_positions
    part_indices = range(min(n_parts, n_axes))
    for part_index, part_axis, axis_index in product(part_indices, _PART_AXES, range(n_axes)):
        location = _CoordinateLocation(tuple(shape), n_parts, part_index, part_axis)
        differences = location.extract(rounded) - pixels[..., axis_index]
        constant = np.rint(2 * differences.flat[0]) / 2
        if axis_index not in locations and (abs(differences - constant) < 1e-3).all():
            locations[axis_index] = location
    return locations


def _pixels_at(X: Array, pixels: Array, axis: Axis, attributes: SampleAttributes) -> Array:
    """Return the pixels of X (N, C, D1, …, Dr) that a mode copies at exact pixel coordinates.

    The coordinates are (N, …, r), the innermost axis first.
    """
    mode = MODE_RULES[attributes.mode]
    padding = PADDING_RULES[attributes.padding_mode]
    nearest = mode.base(np, padding.pad(np, pixels, axis))
    if padding.pads_taps:
        nearest = padding.pad(np, nearest, axis)
    is_inside = ((nearest >= 0) & (nearest <= axis.last)).all(-1)
    index = np.clip(nearest, 0, axis.last).astype(np.int64)
    batch = np.arange(len(X)).reshape(-1, *[1] * (pixels.ndim - 2))
    outermost_first = (index[..., i] for i in reversed(range(pixels.shape[-1])))
    samples = X[(batch, slice(None), *outermost_first)]
    return np.moveaxis(np.where(is_inside[..., None], samples, 0), -1, 1)
