"""Write deformable attention as a GridSample for each level.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import helper

from ..detection.match import Match
from ..functions.attention_shapes import output_shape
from ..graph.element_types import elem_type
from ..graph.expressions import DimLike, Tensor
from ..graph.first_opsets import (
    FIRST_OPSET_WITH_ALLOWZERO,
    FIRST_OPSET_WITH_GRID_SAMPLE,
    FIRST_OPSET_WITH_MODE_LINEAR,
)
from ..spec import Dim, may_be_empty
from .attention_call import AttentionCall, AttentionSource, Levels
from .match_facts import constants_of, require_type, single_type
from .planar_samplers import CONTRIB_DOMAIN
from .targets import Replacement


class _Offset(NamedTuple):
    """An offset in the axis of pixels.

    Attributes:
        value: its value, (1,).
        known: the offset if it is known.
    """

    value: Tensor
    known: int | None


@dataclass(frozen=True)
class LevelPixels:
    """The pixels of one level.

    Attributes:
        index: the index of the level.
        spatial_lengths: (r,), the spatial lengths.
        constant_lengths: the spatial lengths if they are constant.
        begin: (1,), the first pixel of the level.
        end: (1,), the first pixel after the level.
    """

    index: int
    spatial_lengths: Tensor
    constant_lengths: Sequence[int] | None
    begin: Tensor
    end: Tensor

    @property
    def has_no_pixels(self) -> bool:
        """Whether the level is known to have no pixels."""
        return self.constant_lengths is not None and 0 in self.constant_lengths


@dataclass(frozen=True)
class AxisLengths:
    """The lengths of axes.

    Attributes:
        batch: B, or -1 where a Reshape may compute it.
        images: B·H, or -1 where a Reshape may compute it.
        heads: H.
        channels: D.
        queries: Q.
    """

    batch: DimLike
    images: DimLike
    heads: Tensor
    channels: Tensor
    queries: Tensor


class AttentionExpansion:
    """Writes a deformable attention as a GridSample for each level that has pixels and points.

    Reshapes compute B·H from the number of elements (-1) if no other length can be 0. Otherwise
    they have the attribute ``allowzero``, as far as the opset and the runtime have it.

    Args:
        has_allowzero: whether Reshapes may have the attribute ``allowzero``.
    """

    def __init__(self, match: Match, source: AttentionSource, *, has_allowzero: bool) -> None:
        self._match = match
        self._source = source
        signature = match.foreign_signature
        self._points_argument = "sampling_locations"
        if signature is not None and signature.has_offsets:
            self._points_argument = "sampling_offsets"
        self._level_arguments = ("levels",) if signature is None else signature.integer_inputs
        self._r = 2
        if signature is None:
            self._r = (match.record.spatial_axes or (2,))[0]
        self._e = source.e
        self._value_info: list[onnx.ValueInfoProto] = []
        self._allows_zeros = (
            has_allowzero
            and match.opset >= FIRST_OPSET_WITH_ALLOWZERO
            and not self._has_positive_lengths()
        )

    def _has_positive_lengths(self) -> bool:
        """Whether all lengths of the inputs are known, and none is 0."""
        record = self._match.record
        for argument in record.values:
            if argument in self._level_arguments:
                continue
            if any(map(may_be_empty, record.shapes_by_call(argument))):
                return False
        return self._match.scope.constant_value(record.values[self._level_arguments[0]]) is not None

    def replacement(self) -> Replacement:
        """Return the nodes."""
        call = self._source.call()
        axis_lengths = self._axis_lengths(call)
        points = call.levels.points
        levels = [
            level for level in self._levels(call.levels) if points is None or points[level.index]
        ]
        if levels and not self._is_output_empty():
            samples = self._samples(call, axis_lengths, levels)
            weights = self._weights_of_levels(call, levels)
            total = self._weighted_sum(samples, weights, axis_lengths)
            output = self._output(total, axis_lengths)
        else:
            output = self._zeros(call, axis_lengths)
        # With the node itself, so that the initializers that only it reads are dropped.
        superseded = [self._match.index, *constants_of(self._match)]
        nodes = self._e.finish(output, self._match.record.output)
        return Replacement(nodes, superseded=superseded, value_info=self._value_info)

    def _axis_lengths(self, call: AttentionCall) -> AxisLengths:
        """Return the lengths of the axes."""
        e = self._e
        heads = e.lengths(call.value, 2)
        batch: DimLike = -1
        images: DimLike = -1
        if self._allows_zeros:
            batch = e.lengths(call.value, 0)
            images = batch * heads
        return AxisLengths(
            batch=batch,
            images=images,
            heads=heads,
            channels=e.lengths(call.value, 3),
            queries=e.lengths(call.locations, 1),
        )

    def _levels(self, levels: Levels) -> list[LevelPixels]:
        """Return the lengths of all levels, and the range of their pixels."""
        e = self._e
        assert levels.number is not None
        level_pixels: list[LevelPixels] = []
        end = self._known_offset(0)
        for index in range(levels.number):
            constant_lengths: list[int] | None = None
            if levels.known_lengths is not None:
                constant_lengths = levels.known_lengths[index].tolist()
                lengths = e.row(*constant_lengths)
            else:
                lengths = e.gather(levels.lengths, index).astype("int64")
            begin = end if levels.starts is None else self._begin(index, levels)
            end = self._end(begin, lengths, constant_lengths)
            level = LevelPixels(
                index=index,
                spatial_lengths=lengths,
                constant_lengths=constant_lengths,
                begin=begin.value,
                end=end.value,
            )
            level_pixels.append(level)
        return level_pixels

    def _known_offset(self, offset: int) -> _Offset:
        return _Offset(self._e.row(offset), offset)

    def _begin(self, index: int, levels: Levels) -> _Offset:
        """Return the first pixel of a level, which the starts have for all levels."""
        if levels.known_starts is not None:
            return self._known_offset(int(levels.known_starts[index]))
        assert levels.starts is not None
        return _Offset(self._e.gather(levels.starts, [index]).astype("int64"), None)

    def _end(
        self, begin: _Offset, lengths: Tensor, constant_lengths: Sequence[int] | None
    ) -> _Offset:
        """Return the first pixel after a level that begins at ``begin``."""
        if constant_lengths is None:
            area = self._e.prod(lengths)
            return _Offset(begin.value + area, None)
        known_area = math.prod(constant_lengths)
        if begin.known is not None:
            return self._known_offset(begin.known + known_area)
        return _Offset(begin.value + known_area, None)

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

    def _samples(
        self,
        call: AttentionCall,
        axis_lengths: AxisLengths,
        levels: Sequence[LevelPixels],
    ) -> list[Tensor]:
        """Return the samples (B·H, D, Q, P) of each level."""
        require_type(self._match, self._points_argument)
        grids = call.locations * 2 - 1
        samples = []
        for level in levels:
            level_grid = self._grid_of_level(grids, call, level.index)
            if level.has_no_pixels:
                samples.append(self._zero_samples(call.value, level_grid, axis_lengths))
                continue
            X = self._image(call.value, level, axis_lengths)
            samples.append(self._sample(X, level_grid, axis_lengths))
            self._state_rank(X)
        return samples

    def _grid_of_level(self, grids: Tensor, call: AttentionCall, index: int) -> Tensor:
        """Return the coordinates (B, Q, H, P, r) of the points of one level."""
        e = self._e
        if call.has_level_axis:
            return e.gather(grids, index, axis=3)
        all_points = call.levels.points or ()
        points = _points_of_level(all_points, index)
        merged = e.op("Reshape", grids, e.row(0, 0, 0, sum(all_points), self._r))
        return e.slice(merged, e.row(points.start), e.row(points.stop), axis=3)

    def _weights_of_levels(self, call: AttentionCall, levels: Sequence[LevelPixels]) -> Tensor:
        """Return the weights (B, Q, H, P) of all points of ``levels``."""
        e = self._e
        weights = call.weights
        is_complete = len(levels) == call.levels.number
        indices = [level.index for level in levels]
        if not call.has_level_axis:
            all_points = call.levels.points or ()
            merged = e.op("Reshape", weights, e.row(0, 0, 0, sum(all_points)))
            if is_complete:
                return merged
            points = [point for index in indices for point in _points_of_level(all_points, index)]
            return e.gather(merged, points, axis=3)
        if not is_complete:
            weights = e.gather(weights, indices, axis=3)
        if not self._allows_zeros:
            return e.op("Reshape", weights, e.row(0, 0, 0, -1))
        n_points = e.lengths(weights, 4) * len(levels)
        return self._reshaped(weights, [e.lengths(weights, 0, 1, 2), n_points])

    def _state_rank(self, image: Tensor) -> None:
        """State the type and the rank of an image if its type is known.

        onnx does not infer the rank of a value whose computed shape it does not know.
        """
        value_type = single_type(self._match, "value")
        if value_type is None:
            return
        unknown_shape = [None] * (2 + self._r)
        info = helper.make_tensor_value_info(image.name, elem_type(value_type), unknown_shape)
        self._value_info.append(info)

    def _image(self, value: Tensor, level: LevelPixels, axis_lengths: AxisLengths) -> Tensor:
        """Return the image (B·H, D, D1, …, Dr) of a level."""
        e = self._e
        pixels = e.slice(value, level.begin, level.end, axis=1)
        image = e.transpose(pixels, [0, 2, 3, 1])
        channels = self._known_channels()
        if isinstance(channels, int) and channels > 0 and level.constant_lengths is not None:
            # A constant shape, of which the inference of all opsets knows the rank.
            return e.op("Reshape", image, e.row(-1, channels, *level.constant_lengths))
        lengths = [axis_lengths.images, axis_lengths.channels, level.spatial_lengths]
        return self._reshaped(image, lengths)

    def _known_channels(self) -> Dim:
        """Return D if it is the same in all calls."""
        return self._match.record.length_in_all_calls("value", -1)

    def _sample(self, X: Tensor, level_grid: Tensor, axis_lengths: AxisLengths) -> Tensor:
        """Return the samples (B·H, D, Q, P) of a level."""
        e = self._e
        r = self._r
        queries = axis_lengths.queries
        by_head = e.transpose(level_grid, [0, 2, 1, 3, 4])
        count = e.lengths(by_head, 3)
        output_lengths = [queries * count] if r == 1 else [queries, count, *[1] * (r - 2)]
        grid = self._reshaped(by_head, [axis_lengths.images, *output_lengths, r])
        mode = "linear" if self._match.opset >= FIRST_OPSET_WITH_MODE_LINEAR else "bilinear"
        align_corners = int(self._match.record.align_corners == 1)
        is_standard = self._match.opset >= FIRST_OPSET_WITH_GRID_SAMPLE
        domain = "" if is_standard else CONTRIB_DOMAIN
        sample = e.op("GridSample", X, grid, mode=mode, align_corners=align_corners, domain=domain)
        if r == 2:
            return sample
        first_lengths: list[DimLike] = [0, 0]  # those of the sample
        if self._allows_zeros:
            first_lengths = [axis_lengths.images, axis_lengths.channels]
        return self._reshaped(sample, [*first_lengths, queries, count])

    def _zero_samples(self, value: Tensor, level_grid: Tensor, axis_lengths: AxisLengths) -> Tensor:
        """Return the samples (B·H, D, Q, P) of a level without pixels.

        They are not left out: the product of 0 with an infinite or NaN weight is NaN.
        """
        e = self._e
        require_type(self._match, "value")
        images = e.lengths(value, 0) * axis_lengths.heads
        count = e.lengths(level_grid, 3)
        lengths = [images, axis_lengths.channels, axis_lengths.queries, count]
        return e.expand(e.like(0, value), lengths)

    def _weighted_sum(
        self, samples: Sequence[Tensor], weights: Tensor, axis_lengths: AxisLengths
    ) -> Tensor:
        """Return the weighted sum (B·H, D, Q) of all samples.

        Args:
            samples: the samples of each level.
            weights: (B, Q, H, P), of all levels.
            axis_lengths: the lengths of the axes.
        """
        e = self._e
        by_head = e.transpose(weights, [0, 2, 1, 3])
        shape = [axis_lengths.images, 1, e.lengths(by_head, 2, 3)]
        product = e.concatenate(samples, axis=3) * self._reshaped(by_head, shape)
        return e.sum(product, -1, keepdims=False)

    def _output(self, total: Tensor, axis_lengths: AxisLengths) -> Tensor:
        """Return the output, in the layout of the model, from the sum (B·H, D, Q)."""
        layout = self._source.output_layout
        if layout == "channels_first":
            return total
        e = self._e
        batch = axis_lengths.batch
        heads = axis_lengths.heads
        channels = axis_lengths.channels
        queries = axis_lengths.queries
        by_query = e.transpose(self._reshaped(total, [batch, heads * channels, queries]), [0, 2, 1])
        if layout == "by_query":
            return by_query
        return self._reshaped(by_query, [batch, queries, heads, channels])

    def _zeros(self, call: AttentionCall, axis_lengths: AxisLengths) -> Tensor:
        """Return an output of zeros, or one without elements."""
        e = self._e
        require_type(self._match, "value")
        # The batch size is read from the weights: checks whose result nothing reads are dropped.
        batch = e.lengths(call.weights, 0)
        shape = output_shape(
            self._source.output_layout,
            batch,
            axis_lengths.queries,
            axis_lengths.heads,
            axis_lengths.channels,
        )
        return e.expand(e.like(0, call.value), shape)

    def _reshaped(self, x: Tensor, lengths: Sequence[DimLike]) -> Tensor:
        """Return ``x`` in a shape whose lengths may be 0."""
        shape = self._e.shape(lengths)
        if self._allows_zeros:
            return self._e.op("Reshape", x, shape, allowzero=1)
        return self._e.op("Reshape", x, shape)


def _points_of_level(points: Sequence[int], index: int) -> range:
    """Return the indices of a level's points among all points."""
    first = sum(points[:index])
    return range(first, first + points[index])
