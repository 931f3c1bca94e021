"""Expand composite nodes: deformable attention of any package, and samplers of planar grids.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
from onnx import helper

from ..detection.helper_nodes import has_status
from ..detection.match import Match
from ..dialects.table import DOMAIN
from ..errors import GridSampleError
from ..functions import validation
from ..graph.element_types import elem_type
from ..graph.first_opsets import (
    FIRST_OPSET_WITH_ALLOWZERO,
    FIRST_OPSET_WITH_AXES_AS_INPUT,
    FIRST_OPSET_WITH_GRID_SAMPLE,
    FIRST_OPSET_WITH_MODE_LINEAR,
)
from ..graph.scope import Names, Nodes
from ..spec import Dim
from .foreign_attention import AttentionOperands, ForeignOperands
from .foreign_attention_facts import n_levels_of
from .match_facts import constants_of, known_lengths, known_type
from .planar_samplers import BEFORE_GRID_SAMPLE, expanded_sampler
from .run_checks import write_checked_operands
from .targets import Replacement
from .typed_constants import write_constants_like, write_typed_constant


def points_of(match: Match) -> list[int]:
    """Return the number of points on each level of this package's node, or [] if unknown."""
    table = match.scope.constant_value(match.record.values["levels"])
    if table is not None:
        has_points = table.ndim == 2 and table.shape[1] > 1
        return [int(number) for number in table[:, 0]] if has_points else []
    for attribute in match.node.attribute:
        if attribute.name == "points":
            return [int(number) for number in attribute.s.split()]
    return []


def expanded(match: Match, names: Names, *, has_allowzero: bool = True) -> Replacement:
    """Return the nodes that a composite node is equivalent to.

    Args:
        match: the composite node.
        names: returns names of new values and nodes.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``. Without it, lengths
            that are not known before a run must not be 0.

    Raises:
        GridSampleError: the number of levels, or of the points on each, is not known.
    """
    if match.record.dialect.has_planar_grids:
        return expanded_sampler(match, names)
    return _AttentionExpansion(match, names, has_allowzero=has_allowzero).replacement()


@dataclass(frozen=True)
class _Level:
    """The pixels of one level. The attributes that are texts are names of values.

    Attributes:
        index: the index of the level.
        spatial_lengths: (r,), the spatial lengths.
        constant_lengths: the spatial lengths if they are constant.
        begin: (1,), the first pixel of the level.
        end: (1,), the first pixel after the level.
    """

    index: int
    spatial_lengths: str
    constant_lengths: Sequence[int] | None
    begin: str
    end: str

    @property
    def has_no_pixels(self) -> bool:
        """Whether the level is known to have no pixels."""
        return self.constant_lengths is not None and 0 in self.constant_lengths


@dataclass(frozen=True)
class _AxisLengths:
    """The names of values that are lengths of axes, each of shape (1,).

    Attributes:
        batch: B, or -1 if Reshapes compute it.
        images: B·H, or -1 if Reshapes compute it.
        heads: H.
        channels: D.
        queries: Q.
    """

    batch: str
    images: str
    heads: str
    channels: str
    queries: str


class _AttentionExpansion:
    """Writes a deformable attention as a GridSample for each level that has pixels and points.

    Reshapes compute B·H from the number of elements (-1) if no other length can be 0. Otherwise
    they have the attribute ``allowzero``, as far as the opset and the runtime have it.

    A method ``write_x`` appends nodes and returns the name of the value x.
    """

    def __init__(self, match: Match, names: Names, *, has_allowzero: bool) -> None:
        self._match = match
        self._signature = match.foreign_signature
        self._opset = match.opset
        # This package's node states the points of each level, and has all points on one axis.
        self._is_package_op = self._signature is None
        self._points: list[int] = []
        self._lengths_input = "levels"
        if self._signature is not None:
            self._lengths_input = self._signature.lengths_input
        self._table = match.scope.constant_value(match.record.values[self._lengths_input])
        self._r = 2
        if self._is_package_op:
            self._points = points_of(match)
            if not self._points:
                raise self._unknown_points()
            self._n_levels = len(self._points)
            self._r = (match.record.spatial_axes or (2,))[0]
        else:
            self._n_levels = n_levels_of(match)
        self._nodes = Nodes(names, match.record.output)
        self._value_info: list[onnx.ValueInfoProto] = []
        may_be_empty = not self._has_positive_lengths()
        self._allows_zeros = (
            may_be_empty and has_allowzero and self._opset >= FIRST_OPSET_WITH_ALLOWZERO
        )
        # Equal Constants are written once.
        self._write_row = cache(self._nodes.row)

    def _unknown_points(self) -> GridSampleError:
        table = self._table
        found = "computed" if table is None else f"of shape {validation.format_shape(table.shape)}"
        expected = (
            "a constant of shape (L, 1 + r): the number of points and the lengths of each level"
        )
        return GridSampleError(self._match.record.where, "levels", found, expected)

    def _has_positive_lengths(self) -> bool:
        """Whether all lengths of the inputs are known, and none is 0."""
        constant_inputs = {self._lengths_input, "level_start_index"}
        record = self._match.record
        for argument in record.values:
            if argument in constant_inputs:
                continue
            rows = [known_lengths(shape) for shape in record.shapes_by_call(argument)]
            if any(row is None or 0 in row for row in rows):
                return False
        return self._table is not None

    def replacement(self) -> Replacement:
        """Write the nodes."""
        operands = self._write_operands()
        axis_lengths = self._write_axis_lengths(operands)
        levels = [level for level in self._write_levels(operands) if self._may_have_points(level)]
        if levels and not self._is_output_empty():
            samples = self._write_samples(operands, axis_lengths, levels)
            weights = self._write_weights(operands.weights, levels)
            total = self._write_weighted_sum(samples, weights, axis_lengths)
            self._write_output(total, axis_lengths)
        else:
            self._write_zeros(operands, axis_lengths)
        # With the node itself, so that the initializers that only it reads are dropped.
        superseded = [self._match.index, *constants_of(self._match)]
        nodes = _without_unread(self._nodes, self._match.record.output)
        return Replacement(nodes, superseded=superseded, value_info=self._value_info)

    def _write_operands(self) -> AttentionOperands:
        """Write the checks of the node's inputs, and the operands that the node computes."""
        match = self._match
        if self._signature is not None:
            return ForeignOperands(match, self._signature, self._nodes).write()
        values = match.record.values
        locations = values["sampling_locations"]
        weights = values["attention_weights"]
        # Nodes with a status were written by a session, which checked them.
        if match.record.dialect.name == DOMAIN and not has_status(match.node):
            _check_known_shapes(match)
            locations, weights = write_checked_operands(match, self._nodes)
        return AttentionOperands(
            value=values["value"],
            level_table=values["levels"],
            starts="",
            locations=locations,
            weights=weights,
        )

    def _write_axis_lengths(self, operands: AttentionOperands) -> _AxisLengths:
        """Write the lengths of the axes."""
        add = self._nodes.add
        row = self._write_row
        value_shape = add("Shape", operands.value)
        heads = add("Gather", value_shape, row(2))
        batch = images = row(-1)
        if self._allows_zeros:
            batch = add("Gather", value_shape, row(0))
            images = add("Mul", batch, heads)
        return _AxisLengths(
            batch=batch,
            images=images,
            heads=heads,
            channels=add("Gather", value_shape, row(3)),
            queries=add("Gather", add("Shape", operands.locations), row(1)),
        )

    def _write_levels(self, operands: AttentionOperands) -> list[_Level]:
        """Write the lengths of all levels, and the range of their pixels."""
        levels: list[_Level] = []
        starts = operands.starts
        known_starts = self._match.scope.constant_value(starts) if starts else None
        # The first pixel after the previous level: as a value, and as a number if it is known.
        end = "" if starts else self._write_row(0)
        known_end: int | None = 0
        for index in range(self._n_levels):
            constant_lengths = self._constant_lengths(index)
            lengths = self._write_level_lengths(operands.level_table, index, constant_lengths)
            begin = end
            known_begin = known_end
            if known_starts is not None:
                known_begin = int(known_starts[index])
                begin = self._write_row(known_begin)
            elif starts:
                known_begin = None
                begin = self._write_start(starts, index)
            known_end = None
            if known_begin is not None and constant_lengths is not None:
                known_end = known_begin + math.prod(constant_lengths)
            end = self._write_end(begin, lengths, constant_lengths, known_end)
            level = _Level(
                index=index,
                spatial_lengths=lengths,
                constant_lengths=constant_lengths,
                begin=begin,
                end=end,
            )
            levels.append(level)
        return levels

    def _constant_lengths(self, index: int) -> list[int] | None:
        """Return the spatial lengths of a level if they are constant."""
        if self._table is None:
            return None
        lengths: list[int] = self._table[index].tolist()
        return lengths[1:] if self._is_package_op else lengths

    def _write_level_lengths(
        self, levels: str, index: int, constant_lengths: Sequence[int] | None
    ) -> str:
        """Write the spatial lengths of a level, (r,)."""
        add = self._nodes.add
        row = self._write_row
        if constant_lengths is not None:
            return row(*constant_lengths)
        level_row = add("Gather", levels, self._nodes.constant(index))
        wide = add("Cast", level_row, to=onnx.TensorProto.INT64)
        first = 1 if self._is_package_op else 0
        return add("Slice", wide, row(first), row(first + self._r))

    def _write_start(self, starts: str, index: int) -> str:
        """Write the first pixel of a level, (1,), which ``starts`` has for all levels."""
        start = self._nodes.add("Gather", starts, self._write_row(index))
        return self._nodes.add("Cast", start, to=onnx.TensorProto.INT64)

    def _write_end(
        self,
        begin: str,
        lengths: str,
        constant_lengths: Sequence[int] | None,
        known_end: int | None,
    ) -> str:
        """Write the first pixel after a level, (1,)."""
        add = self._nodes.add
        if known_end is not None:
            return self._write_row(known_end)
        if constant_lengths is not None:
            return add("Add", begin, self._write_row(math.prod(constant_lengths)))
        return add("Add", begin, add("ReduceProd", lengths, keepdims=1))

    def _may_have_points(self, level: _Level) -> bool:
        """Whether a level may have points. Without points, it adds nothing."""
        return not self._is_package_op or self._points[level.index] > 0

    def _is_output_empty(self) -> bool:
        """Whether the output is known to have no elements."""
        record = self._match.record
        locations = list(record.values)[-2]  # or offsets, with the same first axes
        shapes = zip(record.shapes_by_call("value"), record.shapes_by_call(locations), strict=True)
        for value_shape, locations_shape in shapes:
            value_lengths = value_shape or ()
            lengths = [*value_lengths[:1], *value_lengths[2:], *(locations_shape or ())[:3]]
            if 0 not in lengths:
                return False
        return True

    def _write_samples(
        self, operands: AttentionOperands, axis_lengths: _AxisLengths, levels: Sequence[_Level]
    ) -> list[str]:
        """Write the samples (B·H, D, Q, P) of each level."""
        X_type = elem_type(next(iter(self._match.record.types["value"]), "float32"))
        # onnx does not infer the rank of a value whose computed shape it does not know.
        unknown_shape = [None] * (2 + self._r)
        grids = self._write_grids(operands.locations)
        samples = []
        for level in levels:
            if level.has_no_pixels:
                samples.append(self._write_zero_samples(operands, level.index, axis_lengths))
                continue
            X = self._write_image(operands.value, level, axis_lengths)
            samples.append(self._write_sample(X, grids, level.index, axis_lengths))
            self._value_info.append(helper.make_tensor_value_info(X, X_type, unknown_shape))
        return samples

    def _write_grids(self, locations: str) -> str:
        """Write the coordinates from -1 to 1 of ``locations``, which are from 0 to 1."""
        add = self._nodes.add
        if self._signature is not None and self._signature.has_offsets:
            is_double = known_type(self._match, "reference_points") == "float64"
            type_name = "float64" if is_double else "float32"
            two = write_typed_constant(self._nodes, 2, type_name)
            one = write_typed_constant(self._nodes, 1, type_name)
        else:
            two, one = write_constants_like(self._match, self._nodes, "sampling_locations", 2, 1)
        if self._is_package_op:
            locations_shape = self._write_row(0, 0, 0, sum(self._points), self._r)
            locations = add("Reshape", locations, locations_shape)
        return add("Sub", add("Mul", locations, two), one)

    def _write_image(self, value: str, level: _Level, axis_lengths: _AxisLengths) -> str:
        """Write the image (B·H, D, D1, …, Dr) of a level."""
        add = self._nodes.add
        row = self._write_row
        pixels = add("Slice", value, level.begin, level.end, row(1))
        image = add("Transpose", pixels, perm=[0, 2, 3, 1])
        channels = self._known_channels()
        if isinstance(channels, int) and channels > 0 and level.constant_lengths is not None:
            # A constant shape, of which the inference of all opsets knows the rank.
            return add("Reshape", image, row(-1, channels, *level.constant_lengths))
        shape = add(
            "Concat", axis_lengths.images, axis_lengths.channels, level.spatial_lengths, axis=0
        )
        return self._write_reshape(image, shape)

    def _known_channels(self) -> Dim:
        """Return D if it is the same in all calls."""
        return self._match.record.length_in_all_calls("value", -1)

    def _write_sample(self, X: str, grids: str, index: int, axis_lengths: _AxisLengths) -> str:
        """Write the samples (B·H, D, Q, P) of a level."""
        add = self._nodes.add
        row = self._write_row
        r = self._r
        if self._is_package_op:
            first = sum(self._points[:index])
            level_grid = add("Slice", grids, row(first), row(first + self._points[index]), row(3))
        else:
            level_grid = add("Gather", grids, self._nodes.constant(index), axis=3)
        by_head = add("Transpose", level_grid, perm=[0, 2, 1, 3, 4])
        count = add("Gather", add("Shape", by_head), row(3))
        output_lengths = [axis_lengths.queries, count, *[row(1)] * (r - 2)]
        if r == 1:
            output_lengths = [add("Mul", axis_lengths.queries, count)]
        grid_shape = add("Concat", axis_lengths.images, *output_lengths, row(r), axis=0)
        grid = self._write_reshape(by_head, grid_shape)
        mode = "linear" if self._opset >= FIRST_OPSET_WITH_MODE_LINEAR else "bilinear"
        align_corners = int(self._match.record.align_corners == 1)
        sample = add("GridSample", X, grid, mode=mode, align_corners=align_corners)
        if self._opset < FIRST_OPSET_WITH_GRID_SAMPLE:
            self._nodes[-1].domain = BEFORE_GRID_SAMPLE
        if r == 2:
            return sample
        images, channels = row(0), row(0)
        if self._allows_zeros:
            images, channels = axis_lengths.images, axis_lengths.channels
        shape = add("Concat", images, channels, axis_lengths.queries, count, axis=0)
        return self._write_reshape(sample, shape)

    def _write_zero_samples(
        self, operands: AttentionOperands, index: int, axis_lengths: _AxisLengths
    ) -> str:
        """Write the samples (B·H, D, Q, P) of a level without pixels.

        They are not left out: the product of 0 with an infinite or NaN weight is NaN.
        """
        add = self._nodes.add
        row = self._write_row
        batch = add("Gather", add("Shape", operands.value), row(0))
        images = add("Mul", batch, axis_lengths.heads)
        if self._is_package_op:
            count = row(self._points[index])
        else:
            count = add("Gather", add("Shape", operands.locations), row(4))
        lengths = [images, axis_lengths.channels, axis_lengths.queries, count]
        (zero,) = write_constants_like(self._match, self._nodes, "value", 0)
        return add("Expand", zero, add("Concat", *lengths, axis=0))

    def _write_weights(self, weights: str, levels: Sequence[_Level]) -> str:
        """Write the weights (B, Q, H, P) of all points of ``levels``."""
        add = self._nodes.add
        row = self._write_row
        indices = [level.index for level in levels]
        if self._is_package_op:
            flat = add("Reshape", weights, row(0, 0, 0, sum(self._points)))
            if len(levels) == self._n_levels:
                return flat
            ends = np.cumsum(self._points)
            points = [range(ends[i] - self._points[i], ends[i]) for i in indices]
            return add("Gather", flat, row(*(p for level in points for p in level)), axis=3)
        if len(levels) < self._n_levels:
            weights = add("Gather", weights, row(*indices), axis=3)
        if not self._allows_zeros:
            return add("Reshape", weights, row(0, 0, 0, -1))
        weights_shape = add("Shape", weights)
        n_points = add("Mul", add("Gather", weights_shape, row(4)), row(len(levels)))
        shape = add("Concat", add("Gather", weights_shape, row(0, 1, 2)), n_points, axis=0)
        return self._write_reshape(weights, shape)

    def _write_weighted_sum(
        self, samples: Sequence[str], weights: str, axis_lengths: _AxisLengths
    ) -> str:
        """Write the weighted sum (B·H, D, Q) of all samples.

        Args:
            samples: the samples of each level.
            weights: (B, Q, H, P), of all levels.
            axis_lengths: the lengths of the axes.
        """
        add = self._nodes.add
        row = self._write_row
        by_head = add("Transpose", weights, perm=[0, 2, 1, 3])
        queries_and_points = add("Gather", add("Shape", by_head), row(2, 3))
        shape = add("Concat", axis_lengths.images, row(1), queries_and_points, axis=0)
        factor = self._write_reshape(by_head, shape)
        product = add("Mul", add("Concat", *samples, axis=3), factor)
        if self._opset < FIRST_OPSET_WITH_AXES_AS_INPUT:
            return add("ReduceSum", product, axes=[-1], keepdims=0)
        return add("ReduceSum", product, row(-1), keepdims=0)

    def _write_output(self, total: str, axis_lengths: _AxisLengths) -> None:
        """Write the output (B, Q, H·D), or (B, Q, H, D) of some packages."""
        add = self._nodes.add
        output = self._match.record.output
        output_channels = add("Mul", axis_lengths.heads, axis_lengths.channels)
        shape = add("Concat", axis_lengths.batch, output_channels, axis_lengths.queries, axis=0)
        if self._signature is None or not self._signature.is_by_head:
            add("Transpose", self._write_reshape(total, shape), perm=[0, 2, 1], output=output)
            return
        by_query = add("Transpose", self._write_reshape(total, shape), perm=[0, 2, 1])
        shape = add(
            "Concat",
            axis_lengths.batch,
            axis_lengths.queries,
            axis_lengths.heads,
            axis_lengths.channels,
            axis=0,
        )
        self._write_reshape(by_query, shape, output=output)

    def _write_zeros(self, operands: AttentionOperands, axis_lengths: _AxisLengths) -> None:
        """Write an output of zeros, or one without elements."""
        add = self._nodes.add
        batch = add("Gather", add("Shape", operands.value), self._write_row(0))
        last_axes = [axis_lengths.heads, axis_lengths.channels]
        if self._signature is None or not self._signature.is_by_head:
            last_axes = [add("Mul", axis_lengths.heads, axis_lengths.channels)]
        shape = add("Concat", batch, axis_lengths.queries, *last_axes, axis=0)
        (zero,) = write_constants_like(self._match, self._nodes, "value", 0)
        add("Expand", zero, shape, output=self._match.record.output)

    def _write_reshape(self, value: str, shape: str, output: str = "") -> str:
        """Write a Reshape to a shape whose lengths may be 0."""
        if self._allows_zeros:
            return self._nodes.add("Reshape", value, shape, output=output, allowzero=1)
        return self._nodes.add("Reshape", value, shape, output=output)


def _without_unread(nodes: Sequence[onnx.NodeProto], output: str) -> list[onnx.NodeProto]:
    """Return the nodes that the value ``output`` is computed from, in their order."""
    needed_values = {output}
    needed_nodes: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if not needed_values.isdisjoint(node.output):
            needed_values.update(node.input)
            needed_nodes.append(node)
    return needed_nodes[::-1]


def _check_known_shapes(match: Match) -> None:
    """Check the rank of the value, and all shapes of this package's node if they are known.

    Raises:
        GridSampleError: a shape is wrong.
    """
    table = match.scope.constant_value(match.record.values["levels"])
    if table is None:
        return
    for value, _, locations, weights in match.record.cases:
        if value.shape is not None and len(value.shape) != 4:
            value_text = validation.format_shape(value.shape)
            raise validation.VALUE_SHAPE_INVALID.error(match.record.where, value_shape=value_text)
        value_shape = known_lengths(value.shape)
        locations_shape = known_lengths(locations.shape)
        weights_shape = known_lengths(weights.shape)
        if value_shape is None or locations_shape is None or weights_shape is None:
            continue
        validation.check_attention_shapes(
            match.record.where,
            value=value_shape,
            levels=table,
            levels_argument="levels",
            locations=locations_shape,
            weights=weights_shape,
        )
