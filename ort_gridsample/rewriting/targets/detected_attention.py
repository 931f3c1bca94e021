"""The operands of a deformable attention that was detected around GridSamples.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from ...detection.attention.layouts import Attention, Level, OutputLayout
from ...detection.match import Match
from ...graph.expressions import DimLike, Expressions, Tensor
from ...graph.new_names import Names
from ...graph.runtimes import ANY, Runtime
from ..attention_call import AttentionCall, AttentionSource, Levels


class DetectedAttention(AttentionSource):
    """Computes the operands of one node from a model's values, and the model's output from its own.

    An operand that the model has in the right layout is read as it is; otherwise nodes rearrange
    the model's values. A Reshape to a computed length (-1) fails without elements. Therefore the
    shapes of Reshapes are known or computed from other shapes, and a 0 copies a length.

    Args:
        match: the match of the deformable attention.
        attention: the deformable attention.
        names: returns names of new values and nodes. None if the nodes are not used.
        runtime: the runtime that the nodes are for.
    """

    def __init__(
        self,
        match: Match,
        attention: Attention,
        names: Names | None,
        runtime: Runtime = ANY,
    ) -> None:
        self.attention = attention
        self.e = Expressions(match.record.output, match.opset, runtime, names)
        self._record = match.record

    @property
    def output_layout(self) -> OutputLayout:
        return self.attention.output_layout

    @property
    def is_partial(self) -> bool:
        return bool(self.attention.other_levels)

    def output(self, result: Tensor) -> Tensor:
        return result + self._sum_of_other_levels() if self.is_partial else result

    def rearranged(self, by_query: Tensor, call: AttentionCall) -> Tensor:
        attention = self.attention
        if attention.output_layout != "channels_first":
            return super().rearranged(by_query, call)
        channels_first = self.e.transpose(by_query, [0, 2, 1])  # (B, H·D, Q)
        if attention.heads == 1:
            return channels_first
        return self._reshaped(channels_first, self._image_count, attention.channels, 0)

    def _sum_of_other_levels(self) -> Tensor:
        """Return the sum of the levels that are not fused, which the model samples by itself."""
        e = self.e
        others = self.attention.other_levels
        samples = [
            e.op("Reshape", e.input(level.name), e.row(0, 0, 0, len(level.points)))
            for level in others
        ]
        points = [point for level in others for point in level.points]
        product = e.concatenate(samples, axis=3) * self._weights_of(points)
        return e.sum(product, -1, keepdims=False)

    def _weights_of(self, points: Sequence[int]) -> Tensor:
        """Return the weights (B·H, 1, Q, P) of some points."""
        return self.e.gather(self.e.input(self.attention.weights.name), points, axis=3)

    def _reshaped(self, x: Tensor, *lengths: DimLike) -> Tensor:
        """Return ``x`` in another shape. A 0 copies a length, and one length may be computed."""
        e = self.e
        shape = e.row(*(length if isinstance(length, int) else 0 for length in lengths))
        for length in lengths:
            if isinstance(length, Tensor):
                # Not a Concat: onnxruntime replaces the single computed length of a Concat by -1.
                is_computed = [isinstance(part, Tensor) for part in lengths]
                shape = e.where(e.constant(is_computed, "bool"), length, shape)
        return e.op("Reshape", x, shape)

    @cached_property
    def _batch(self) -> DimLike:
        """B, which only attention with several heads needs. It has a value of all levels."""
        batch = self._record.length_in_all_calls("value", 0)
        if isinstance(batch, int):
            return batch
        assert self.attention.value is not None
        return self.e.lengths(self.e.input(self.attention.value.name), 0)

    @property
    def _image_count(self) -> DimLike:
        """B·H. There must be several heads."""
        return self.e.product([self.attention.heads, self._batch])

    def _query_count(self) -> DimLike:
        """Return Q, which the grid of a level has if it is not known."""
        e = self.e
        attention = self.attention
        level = next((level for level in attention.levels if level.points), None)
        if attention.queries is not None:
            return attention.queries
        if level is None:
            return -1
        output_lengths = e.lengths(e.input(level.sample.values["grid"]), *range(1, 1 + attention.r))
        return e.prod(output_lengths) / level.points

    def _lengths_of(self, level: Level) -> Tensor:
        """Return the spatial lengths of a level, (r,)."""
        e = self.e
        if level.shape:
            shape = e.input(level.shape, "int64")
        else:
            shape = e.shape_of(e.input(level.sample.values["X"]))
        return e.gather(shape, [*range(2, 2 + self.attention.r)])

    def _pixel_count(self, level: Level) -> DimLike:
        """Return the number of pixels of a level."""
        if level.known_lengths:
            return math.prod(level.known_lengths)
        return self.e.prod(self._lengths_of(level))

    def call(self) -> AttentionCall:
        return AttentionCall(
            record=self._record,
            value=self._value(),
            levels=self._levels(),
            locations=self._locations(),
            weights=self._weights(),
            has_level_axis=False,
            is_per_query=self.attention.is_per_query,
        )

    def _value(self) -> Tensor:
        """Return the value (B, S, H, D)."""
        e = self.e
        attention = self.attention
        if attention.value is not None:
            value = e.input(attention.value.name)
            if attention.value.layout == "B, S, H, D":
                return value
            return self._reshaped(value, 0, 0, attention.heads, attention.channels)
        images = [
            self._reshaped(e.input(level.sample.values["X"]), 0, 0, self._pixel_count(level))
            for level in attention.levels
        ]
        pixels_first = e.transpose(e.concatenate(images, axis=2), [0, 2, 1])
        return e.unsqueeze(pixels_first, 2)

    def _levels(self) -> Levels:
        """Return the levels."""
        e = self.e
        attention = self.attention
        number = len(attention.levels)
        known = self._record.constants.get("levels")
        if known is not None:
            lengths = e.constant(known[:, 1:])
        else:
            rows = e.concatenate([self._lengths_of(level) for level in attention.levels])
            lengths = e.op("Reshape", rows, e.row(number, -1))
        return Levels(
            lengths=lengths,
            known_lengths=lengths.constant,
            number=number,
            points=attention.points,
        )

    def _locations(self) -> Tensor:
        """Return the locations (B, Q, H, L, P, r) or (B, Q, H, P, r), from 0 to 1."""
        e = self.e
        attention = self.attention
        if attention.locations is not None:
            return e.input(attention.locations.name)
        r = attention.r
        n_points = sum(attention.points)
        queries = self._query_count()
        grids = [
            self._reshaped(e.input(level.sample.values["grid"]), 0, queries, level.points, r)
            for level in attention.levels
        ]
        (grid_type, *_) = self._record.types["sampling_locations"] or ("",)
        grid = e.concatenate(grids, axis=2).astype(attention.locations_type(grid_type))
        unit = grid * 0.5 + 0.5
        if attention.heads == 1:
            return e.unsqueeze(unit, 2)
        by_head = self._by_head(unit, perm=[1, 0, 2, 3], size=n_points * r)
        return e.op("Reshape", by_head, e.row(0, 0, 0, n_points, r))

    def _weights(self) -> Tensor:
        """Return the weights (B, Q, H, L, P) or (B, Q, H, P).

        Weights (B, 1, H, P) are those of one query for all queries.
        """
        e = self.e
        attention = self.attention
        weights = e.input(attention.weights.name)
        n_points = sum(attention.points)
        if attention.has_weights_by_query and attention.is_per_query:
            return weights
        if attention.has_weights_by_query:
            # With an axis of levels, an op would read them as the weights of each query.
            return e.op("Reshape", weights, e.row(0, 0, 0, n_points))
        if attention.other_levels:
            other_points = {point for level in attention.other_levels for point in level.points}
            all_points = range(n_points + len(other_points))
            weights = self._weights_of([point for point in all_points if point not in other_points])
        if attention.heads == 1:
            return e.transpose(weights, [0, 2, 1, 3])
        return self._by_head(weights, perm=[2, 0, 1, 3], size=n_points)

    def _by_head(self, x: Tensor, *, perm: Sequence[int], size: int) -> Tensor:
        """Return (B, Q, H, size) from a value that ``perm`` transposes to (Q, B·H, …)."""
        queries_first = self.e.transpose(x, perm)
        split = self._reshaped(queries_first, 0, self._batch, self.attention.heads, size)
        return self.e.transpose(split, [1, 0, 2, 3])
