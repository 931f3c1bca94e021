"""Write deformable attention as a GridSample for each level.

:class:`AttentionExpansion` is the part that nodes of this package and of other packages have in
common. The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import onnx
from onnx import helper

from ..detection.match import Match
from ..graph.element_types import elem_type
from ..graph.first_opsets import (
    FIRST_OPSET_WITH_ALLOWZERO,
    FIRST_OPSET_WITH_AXES_AS_INPUT,
    FIRST_OPSET_WITH_GRID_SAMPLE,
    FIRST_OPSET_WITH_MODE_LINEAR,
)
from ..graph.new_nodes import Names, Nodes
from ..reference.arrays import Array
from ..spec import Dim, may_be_empty
from .attention_operands import AttentionOperands
from .match_facts import constants_of, single_type
from .planar_samplers import BEFORE_GRID_SAMPLE
from .targets import Replacement
from .typed_constants import write_constants_like


class _Offset(NamedTuple):
    """An offset in the axis of pixels.

    Attributes:
        name: the name of its value, (1,).
        known: the offset if it is known.
    """

    name: str
    known: int | None


@dataclass(frozen=True)
class LevelPixels:
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
class AxisLengthNames:
    """The names of values that are lengths of axes, each of shape (1,).

    Attributes:
        batch: the value of B, or a Constant -1 where a Reshape may compute it.
        images: the value of B·H, or a Constant -1 where a Reshape may compute it.
        heads: H.
        channels: D.
        queries: Q.
    """

    batch: str
    images: str
    heads: str
    channels: str
    queries: str


class AttentionExpansion(ABC):
    """Writes a deformable attention as a GridSample for each level that has pixels and points.

    Reshapes compute B·H from the number of elements (-1) if no other length can be 0. Otherwise
    they have the attribute ``allowzero``, as far as the opset and the runtime have it.

    A subclass writes the operands, grids and weights of one kind of node: the methods that are
    abstract. A method ``write_x`` appends nodes and returns the name of the value x.

    Args:
        match: the attention node.
        names: returns names of new values and nodes.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``.
        table_argument: the input that has the lengths of each level.
        points_argument: the input that has the locations or offsets of the points.
        n_levels: the number of levels.
        r: the number of spatial axes.
    """

    #: How many columns of the table of levels precede the spatial lengths.
    n_columns_before_lengths = 0
    #: Whether the output is (B, Q, H, D); otherwise it is (B, Q, H·D).
    is_by_head = False

    def __init__(
        self,
        match: Match,
        names: Names,
        *,
        has_allowzero: bool,
        table_argument: str,
        points_argument: str,
        n_levels: int,
        r: int,
    ) -> None:
        self._match = match
        self._table_argument = table_argument
        self._points_argument = points_argument
        self._known_level_table = match.scope.constant_value(match.record.values[table_argument])
        self._n_levels = n_levels
        self._r = r
        self._nodes = Nodes(names, match.record.output)
        self._value_info: list[onnx.ValueInfoProto] = []
        self._allows_zeros = (
            has_allowzero
            and match.opset >= FIRST_OPSET_WITH_ALLOWZERO
            and not self._has_positive_lengths()
        )
        # Equal Constants are written once.
        self._write_row = cache(self._nodes.row)

    @abstractmethod
    def write_operands(self) -> AttentionOperands:
        """Write the checks of the node's inputs, and the operands that the node computes."""

    @abstractmethod
    def has_points(self, index: int) -> bool:
        """Whether a level may have points."""

    @abstractmethod
    def write_grids(self, locations: str) -> str:
        """Write the coordinates from -1 to 1 of ``locations``, which are from 0 to 1."""

    @abstractmethod
    def write_grid_of_level(self, grids: str, index: int) -> str:
        """Write the coordinates (B, Q, H, P, r) of the points of one level."""

    @abstractmethod
    def write_weights(self, weights: str, levels: Sequence[LevelPixels]) -> str:
        """Write the weights (B, Q, H, P) of all points of ``levels``."""

    def _has_positive_lengths(self) -> bool:
        """Whether all lengths of the inputs are known, and none is 0."""
        constant_inputs = {self._table_argument, "level_start_index"}
        record = self._match.record
        for argument in record.values:
            if argument in constant_inputs:
                continue
            if any(map(may_be_empty, record.shapes_by_call(argument))):
                return False
        return self._known_level_table is not None

    def replacement(self) -> Replacement:
        """Write the nodes."""
        operands = self.write_operands()
        axis_lengths = self._write_axis_lengths(operands)
        levels = [level for level in self._write_levels(operands) if self.has_points(level.index)]
        if levels and not self._is_output_empty():
            samples = self._write_samples(operands, axis_lengths, levels)
            weights = self.write_weights(operands.weights, levels)
            total = self._write_weighted_sum(samples, weights, axis_lengths)
            self._write_output(total, axis_lengths)
        else:
            self._write_zeros(operands, axis_lengths)
        # With the node itself, so that the initializers that only it reads are dropped.
        superseded = [self._match.index, *constants_of(self._match)]
        nodes = _without_unread(self._nodes, self._match.record.output)
        return Replacement(nodes, superseded=superseded, value_info=self._value_info)

    def _write_axis_lengths(self, operands: AttentionOperands) -> AxisLengthNames:
        """Write the lengths of the axes."""
        add = self._nodes.add
        row = self._write_row
        value_shape = add("Shape", operands.value)
        heads = add("Gather", value_shape, row(2))
        batch = images = row(-1)
        if self._allows_zeros:
            batch = add("Gather", value_shape, row(0))
            images = add("Mul", batch, heads)
        return AxisLengthNames(
            batch=batch,
            images=images,
            heads=heads,
            channels=add("Gather", value_shape, row(3)),
            queries=add("Gather", add("Shape", operands.locations), row(1)),
        )

    def _write_levels(self, operands: AttentionOperands) -> list[LevelPixels]:
        """Write the lengths of all levels, and the range of their pixels."""
        starts = operands.starts
        known_starts = self._match.scope.constant_value(starts) if starts else None
        levels: list[LevelPixels] = []
        end = self._known_offset(0)
        for index in range(self._n_levels):
            constant_lengths = self._constant_lengths(index)
            lengths = self._write_level_lengths(operands.level_table, index, constant_lengths)
            begin = self._write_begin(index, starts, known_starts) if starts else end
            end = self._write_end(begin, lengths, constant_lengths)
            level = LevelPixels(
                index=index,
                spatial_lengths=lengths,
                constant_lengths=constant_lengths,
                begin=begin.name,
                end=end.name,
            )
            levels.append(level)
        return levels

    def _known_offset(self, offset: int) -> _Offset:
        return _Offset(self._write_row(offset), offset)

    def _write_begin(self, index: int, starts: str, known_starts: Array | None) -> _Offset:
        """Write the first pixel of a level, which ``starts`` has for all levels."""
        if known_starts is not None:
            return self._known_offset(int(known_starts[index]))
        start = self._nodes.add("Gather", starts, self._write_row(index))
        return _Offset(self._nodes.add("Cast", start, to=onnx.TensorProto.INT64), None)

    def _write_end(
        self, begin: _Offset, lengths: str, constant_lengths: Sequence[int] | None
    ) -> _Offset:
        """Write the first pixel after a level that begins at ``begin``."""
        if constant_lengths is None:
            area = self._nodes.add("ReduceProd", lengths, keepdims=1)
            return _Offset(self._nodes.add("Add", begin.name, area), None)
        known_area = math.prod(constant_lengths)
        if begin.known is not None:
            return self._known_offset(begin.known + known_area)
        return _Offset(self._nodes.add("Add", begin.name, self._write_row(known_area)), None)

    def _constant_lengths(self, index: int) -> list[int] | None:
        """Return the spatial lengths of a level if they are constant."""
        if self._known_level_table is None:
            return None
        row: list[int] = self._known_level_table[index].tolist()
        return row[self.n_columns_before_lengths :]

    def _write_level_lengths(
        self, level_table: str, index: int, constant_lengths: Sequence[int] | None
    ) -> str:
        """Write the spatial lengths of a level, (r,)."""
        add = self._nodes.add
        if constant_lengths is not None:
            return self._write_row(*constant_lengths)
        row = add("Gather", level_table, self._nodes.constant(index))
        wide = add("Cast", row, to=onnx.TensorProto.INT64)
        first = self.n_columns_before_lengths
        return add("Slice", wide, self._write_row(first), self._write_row(first + self._r))

    def _is_output_empty(self) -> bool:
        """Whether the output is known to have no elements."""
        record = self._match.record
        value_shapes = record.shapes_by_call("value")
        points_shapes = record.shapes_by_call(self._points_argument)
        for value_shape, points_shape in zip(value_shapes, points_shapes, strict=True):
            value_lengths = value_shape or ()
            lengths = [*value_lengths[:1], *value_lengths[2:], *(points_shape or ())[:3]]
            if 0 not in lengths:
                return False
        return True

    def _write_samples(
        self,
        operands: AttentionOperands,
        axis_lengths: AxisLengthNames,
        levels: Sequence[LevelPixels],
    ) -> list[str]:
        """Write the samples (B·H, D, Q, P) of each level."""
        grids = self.write_grids(operands.locations)
        samples = []
        for level in levels:
            if level.has_no_pixels:
                level_grid = self.write_grid_of_level(grids, level.index)
                samples.append(self._write_zero_samples(operands.value, level_grid, axis_lengths))
                continue
            X = self._write_image(operands.value, level, axis_lengths)
            samples.append(self._write_sample(X, grids, level.index, axis_lengths))
            self._state_rank(X)
        return samples

    def _state_rank(self, image: str) -> None:
        """State the type and the rank of an image if its type is known.

        onnx does not infer the rank of a value whose computed shape it does not know.
        """
        value_type = single_type(self._match, "value")
        if value_type is None:
            return
        unknown_shape = [None] * (2 + self._r)
        info = helper.make_tensor_value_info(image, elem_type(value_type), unknown_shape)
        self._value_info.append(info)

    def _write_image(self, value: str, level: LevelPixels, axis_lengths: AxisLengthNames) -> str:
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

    def _write_sample(self, X: str, grids: str, index: int, axis_lengths: AxisLengthNames) -> str:
        """Write the samples (B·H, D, Q, P) of a level."""
        add = self._nodes.add
        row = self._write_row
        r = self._r
        level_grid = self.write_grid_of_level(grids, index)
        by_head = add("Transpose", level_grid, perm=[0, 2, 1, 3, 4])
        count = add("Gather", add("Shape", by_head), row(3))
        output_lengths = [axis_lengths.queries, count, *[row(1)] * (r - 2)]
        if r == 1:
            output_lengths = [add("Mul", axis_lengths.queries, count)]
        grid_shape = add("Concat", axis_lengths.images, *output_lengths, row(r), axis=0)
        grid = self._write_reshape(by_head, grid_shape)
        mode = "linear" if self._match.opset >= FIRST_OPSET_WITH_MODE_LINEAR else "bilinear"
        align_corners = int(self._match.record.align_corners == 1)
        sample = add("GridSample", X, grid, mode=mode, align_corners=align_corners)
        if self._match.opset < FIRST_OPSET_WITH_GRID_SAMPLE:
            self._nodes[-1].domain = BEFORE_GRID_SAMPLE
        if r == 2:
            return sample
        first_lengths = [row(0, 0)]  # those of the sample
        if self._allows_zeros:
            first_lengths = [axis_lengths.images, axis_lengths.channels]
        shape = add("Concat", *first_lengths, axis_lengths.queries, count, axis=0)
        return self._write_reshape(sample, shape)

    def _write_zero_samples(
        self, value: str, level_grid: str, axis_lengths: AxisLengthNames
    ) -> str:
        """Write the samples (B·H, D, Q, P) of a level without pixels.

        They are not left out: the product of 0 with an infinite or NaN weight is NaN.
        """
        add = self._nodes.add
        row = self._write_row
        batch = add("Gather", add("Shape", value), row(0))
        images = add("Mul", batch, axis_lengths.heads)
        count = add("Gather", add("Shape", level_grid), row(3))
        lengths = [images, axis_lengths.channels, axis_lengths.queries, count]
        (zero,) = write_constants_like(self._match, self._nodes, "value", 0)
        return add("Expand", zero, add("Concat", *lengths, axis=0))

    def _write_weighted_sum(
        self, samples: Sequence[str], weights: str, axis_lengths: AxisLengthNames
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
        if self._match.opset < FIRST_OPSET_WITH_AXES_AS_INPUT:
            return add("ReduceSum", product, axes=[-1], keepdims=0)
        return add("ReduceSum", product, row(-1), keepdims=0)

    def _write_output(self, total: str, axis_lengths: AxisLengthNames) -> None:
        """Write the output (B, Q, H·D), or (B, Q, H, D) of some packages."""
        add = self._nodes.add
        output = self._match.record.output
        output_channels = add("Mul", axis_lengths.heads, axis_lengths.channels)
        shape = add("Concat", axis_lengths.batch, output_channels, axis_lengths.queries, axis=0)
        if not self.is_by_head:
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

    def _write_zeros(self, operands: AttentionOperands, axis_lengths: AxisLengthNames) -> None:
        """Write an output of zeros, or one without elements."""
        add = self._nodes.add
        # The batch size is read from the weights: checks whose result nothing reads are dropped.
        batch = add("Gather", add("Shape", operands.weights), self._write_row(0))
        last_axes = [axis_lengths.heads, axis_lengths.channels]
        if not self.is_by_head:
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
