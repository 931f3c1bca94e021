"""Write deformable attention as matrix products, for runtimes without Gather.

The attention of a query to a pixel is a sum over the points of the pixel's level. Each point adds
the product of its own weight and the weight of the pixel in the linear sample at the point. As a
matrix (Q, S) of all levels, the attention is multiplied by the values (S, D) of a head. It is
itself a product for each query: of the weights of the outer axes, (D1, P), and of the innermost
axis, (P, D2). This takes fewer multiply-adds than products for each point.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`. All tensors
between the operands and the output have at most four axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from .. import spec
from ..detection.match import Match
from ..errors import GridSampleError
from ..functions import validation
from ..functions.attention_shapes import output_shape
from ..graph.expressions import Tensor
from ..graph.substitutes import MissingOperatorError
from ..reference.coordinates import PADDING_RULES, Axis
from ..reference.taps import MODE_RULES, pixel_coordinates
from .attention_call import AttentionCall, AttentionSource
from .foreign_attention_facts import has_unusual_starts
from .match_facts import constants_of, known_type
from .targets import Replacement
from .targets.matrix_products import REST, SAME, check_cost, reshaped, summed, tent
from .targets.primitives import may_be_single


@dataclass(frozen=True)
class _Shapes:
    """The lengths of an attention, None where they are not known."""

    batches: int | None
    queries: int | None
    heads: int
    channels: int
    #: The spatial lengths of each level.
    levels: Sequence[Sequence[int]]
    points: Sequence[int]

    @property
    def pixels(self) -> int:
        """S, the number of pixels of all levels."""
        return sum(map(prod, self.levels))


class AttentionProducts:
    """Writes a deformable attention as matrix products."""

    def __init__(self, match: Match, source: AttentionSource) -> None:
        self._match = match
        self._source = source
        self._e = source.e
        signature = match.foreign_signature
        self._levels_argument = "levels" if signature is None else signature.lengths_input
        self._align_corners = match.record.align_corners == 1

    def replacement(self) -> Replacement:
        """Return the nodes.

        Raises:
            GridSampleError: a length that must be known is not, or the products take too many
                multiply-adds.
        """
        call = self._source.call()
        shapes = self._shapes(call)
        self._check_cost()
        output = self._output(call, shapes)
        superseded = [self._match.index, *constants_of(self._match)]
        nodes = self._e.finish(output, self._match.record.output)
        return Replacement(nodes, superseded=superseded)

    def _shapes(self, call: AttentionCall) -> _Shapes:
        """Return the lengths.

        Raises:
            GridSampleError: too few of them are known.
        """
        record = self._match.record
        attention = self._match.detected_attention
        if attention is not None:
            (batches,) = self._known_lengths("value", range(1))
            heads: int | None = attention.heads
            channels: int | None = attention.channels
            queries = attention.queries
        else:
            batches, _, heads, channels = self._known_lengths("value", range(4))
            other_batches, queries = self._known_lengths("sampling_locations", range(2))
            batches = other_batches if batches is None else batches
        table = call.levels.known_lengths
        points = call.levels.points
        if table is None or points is None or has_unusual_starts(self._match):
            found = "computed"
            if table is not None:
                found = "of an unknown number of points" if points is None else "not contiguous"
            expected = "constant levels, one after the other, of known numbers of points"
            raise GridSampleError(record.where, self._levels_argument, found, expected)
        if heads is None or channels is None or (batches is None and queries is None):
            found = f"of shape {self._shape_text('value')}"
            expected = "known numbers of heads and channels, and of batches or queries"
            raise GridSampleError(record.where, "value", found, expected)
        return _Shapes(batches, queries, heads, channels, table.tolist(), points)

    def _known_lengths(self, argument: str, axes: Sequence[int]) -> list[int | None]:
        """Return the lengths of some axes of an input, None where they are not known."""
        lengths = [self._match.record.length_in_all_calls(argument, axis) for axis in axes]
        return [length if isinstance(length, int) else None for length in lengths]

    def _shape_text(self, argument: str) -> str:
        """Return the shape of an input for an error."""
        shape = self._match.record.shape_in_all_calls(argument)
        return "unknown" if shape is None else validation.format_shape(shape)

    def _check_cost(self) -> None:
        """Check that the products do not take too long.

        Raises:
            GridSampleError: they have more multiply-adds than the runtime's maximum.
        """
        record = self._match.record
        number = record.multiply_adds
        arguments = ("value", "sampling_locations")
        known = {name: record.shape_in_all_calls(name) or () for name in arguments}
        check_cost(record.where, number, self._e.runtime.max_multiply_adds, **known)

    def _output(self, call: AttentionCall, shapes: _Shapes) -> Tensor:
        """Return the output in the layout of the source."""
        e = self._e
        known = [shapes.batches, shapes.queries, shapes.heads, shapes.channels]
        if shapes.pixels * sum(shapes.points) == 0 or 0 in known:
            return self._zeros(shapes)
        value_type = known_type(self._match, "value")
        compute = str(spec.TYPES[value_type].compute)
        attention = self._attention(call, shapes, compute)
        batches = REST if shapes.batches is None else shapes.batches
        queries = REST if shapes.queries is None else shapes.queries
        attention = reshaped(e, attention, [batches, shapes.heads, queries, shapes.pixels])
        value = e.transpose(self._typed(call.value, "value").astype(compute), (0, 2, 1, 3))
        sums = e.op("MatMul", attention, value)  # (B, H, Q, D)
        layout = self._source.output_layout
        if layout == "channels_first":
            output = e.transpose(sums, (0, 1, 3, 2)).astype(value_type)
            images = REST if shapes.batches is None else shapes.batches * shapes.heads
            output = reshaped(e, output, [images, shapes.channels, queries])
        else:
            output = e.transpose(sums, (0, 2, 1, 3)).astype(value_type)
            if layout == "by_query":
                output = reshaped(e, output, [SAME, SAME, shapes.heads * shapes.channels])
        return self._source.output(output)

    def _typed(self, operand: Tensor, argument: str) -> Tensor:
        """Return an operand with the type of the input that it is, if it has none."""
        return operand if operand.type else replace(operand, type=known_type(self._match, argument))

    def _zeros(self, shapes: _Shapes) -> Tensor:
        """Return an output of zeros, or one without elements.

        Raises:
            GridSampleError: its shape is not known.
        """
        if shapes.batches is None or shapes.queries is None:
            found = f"of shape {self._shape_text('value')}"
            expected = "known numbers of batches and queries, if there are no pixels or points"
            raise GridSampleError(self._match.record.where, "value", found, expected)
        if self._match.detected_attention is not None:
            raise MissingOperatorError("Expand")
        shape = output_shape(
            self._source.output_layout,
            shapes.batches,
            shapes.queries,
            shapes.heads,
            shapes.channels,
        )
        return self._e.constant(np.zeros(shape), known_type(self._match, "value"))

    def _attention(self, call: AttentionCall, shapes: _Shapes, compute: str) -> Tensor:
        """Return the attention (B·H·Q, S) of all queries to all pixels."""
        e = self._e
        r = len(shapes.levels[0])
        n_points = sum(shapes.points)
        locations_type = known_type(self._match, "sampling_locations")
        locations = self._typed(call.locations, "sampling_locations").astype(
            str(spec.TYPES[locations_type].compute)
        )
        grid = self._by_head(locations * 2 - 1, shapes.heads, n_points * r)
        weights = self._typed(call.weights, "attention_weights").astype(compute)
        weights = self._by_head(weights, shapes.heads, n_points)
        if self._has_one_query_of_weights(call, shapes):
            if shapes.queries is None:
                raise MissingOperatorError("Expand")
            weights = weights * e.constant(np.ones((shapes.queries, 1)), compute)
        parts = []
        for index, lengths in enumerate(shapes.levels):
            if prod(lengths) == 0:
                continue
            if shapes.points[index] == 0:
                total = reshaped(e, weights, [REST, n_points, 1])
                total = reshaped(e, summed(e, total, 1, n_points), [REST, 1])
                parts.append(total * e.constant(np.zeros((1, prod(lengths))), compute))
                continue
            points = self._points_of_level(grid, shapes.points, index, r)
            factors = self._points_of_level(weights, shapes.points, index, 1)
            parts.append(self._level_attention(points, factors, shapes.points[index], lengths))
        return e.concatenate(parts, axis=1)

    def _has_one_query_of_weights(self, call: AttentionCall, shapes: _Shapes) -> bool:
        """Whether the weights are those of one query for all queries."""
        if not call.is_per_query:
            return True
        (queries,) = self._known_lengths("attention_weights", [1])
        return queries == 1 and shapes.queries != 1

    def _by_head(self, x: Tensor, heads: int, n_values: int) -> Tensor:
        """Return the points (B, H, Q, values) of an operand (B, Q, H, …)."""
        e = self._e
        return e.transpose(reshaped(e, x, [SAME, SAME, heads, n_values]), (0, 2, 1, 3))

    def _points_of_level(self, x: Tensor, points: Sequence[int], level: int, width: int) -> Tensor:
        """Return the points (B·H·Q, P, width) of a level, of (B, H, Q, P·width) of all levels.

        There is no operator to slice. The sum over the levels, or over all points, of the values
        multiplied by 1 or 0 leaves those of one.
        """
        e = self._e
        n_points = points[level]
        if len(points) == 1:
            return reshaped(e, x, [REST, n_points, width])
        if len(set(points)) == 1:
            by_level = reshaped(e, x, [REST, len(points), n_points * width])
            row = e.constant(np.eye(len(points))[level][:, None], x.type)
            return reshaped(e, summed(e, by_level * row, 1, len(points)), [REST, n_points, width])
        n_all = sum(points)
        first = sum(points[:level])
        by_point = reshaped(e, x, [REST, n_all, width])
        rows = [e.constant(row[:, None], x.type) for row in np.eye(n_all)[first : first + n_points]]
        return e.concatenate([summed(e, by_point * row, 1, n_all) for row in rows], axis=1)

    def _level_attention(
        self, grid: Tensor, weights: Tensor, n_points: int, lengths: Sequence[int]
    ) -> Tensor:
        """Return the attention (B·H·Q, D1·…·Dr) to the pixels of a level.

        Args:
            grid: (B·H·Q, P, r), normalized coordinates.
            weights: (B·H·Q, P, 1).
            n_points: P.
            lengths: D1, …, Dr.
        """
        e = self._e
        mode, padding = (MODE_RULES["linear"], PADDING_RULES["zeros"])
        axis = Axis.of(
            e.constant(lengths[::-1], grid.type),
            self._align_corners,
            may_be_single=may_be_single(lengths),
            maximum=e.maximum,
        )
        pixels = pixel_coordinates(e, grid, axis, mode, padding)
        r = len(lengths)
        innermost = tent(self._column(pixels, 0, r), np.arange(lengths[-1])).astype(weights.type)
        product = reshaped(e, weights, [REST, 1, n_points])
        n_rows = 1
        for index, length in enumerate(lengths[:-1]):
            positions = reshaped(e, self._column(pixels, r - 1 - index, r), [REST, 1, n_points])
            outer = tent(positions, np.arange(length)[:, None]).astype(weights.type)
            if n_rows > 1:
                product = reshaped(e, product, [REST, n_rows, 1, n_points])
                outer = reshaped(e, outer, [REST, 1, length, n_points])
            product = product * outer
            n_rows *= length
            if index:
                product = reshaped(e, product, [REST, n_rows, n_points])
        attention = e.op("MatMul", product, innermost)
        return reshaped(e, attention, [REST, prod(lengths)])

    def _column(self, x: Tensor, index: int, length: int) -> Tensor:
        """Return the column (…, 1) with this index of finite values (…, length)."""
        e = self._e
        if length == 1:
            return x
        column = np.eye(length)[index]
        if e.runtime.lacks("ReduceSum"):
            return e.op("MatMul", x, e.constant(column[:, None], x.type))
        return e.sum(x * e.constant(column, x.type), axis=2)
