"""Write the operands of a deformable attention that was detected around GridSamples.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...detection.attention.layouts import Attention, Level
from ...detection.match import Match
from ...graph.element_types import elem_type
from ...graph.new_nodes import Names, Nodes


class DetectedAttention:
    """Writes the nodes between a model's values and one node that computes deformable attention.

    An operand that the model has in the right layout is read as it is; otherwise nodes rearrange
    the model's values. A Reshape to a computed length (-1) fails without elements. Therefore the
    shapes of Reshapes are known or computed from other shapes, and a 0 copies a length.

    A method ``write_x`` appends nodes and returns the name of the value x.

    Attributes:
        attention: the deformable attention.
        nodes: the nodes that compute the operands.
        after: the nodes that compute the model's value from ``output``.
        output: the name of the new node's output (B, Q, H·D).
    """

    def __init__(self, match: Match, attention: Attention, names: Names) -> None:
        self.attention = attention
        self.nodes = Nodes(names, match.record.output)
        self.after = Nodes(names, match.record.output)
        self._record = match.record
        self._batch: int | str | None = None
        self._lengths_of_levels: dict[int, str] = {}
        if attention.has_output_by_query:
            self.output = match.record.output
        else:
            self.output = names.new(f"{match.record.output}_by_query")
            self._write_channels_first()

    def _write_channels_first(self) -> None:
        """Write (B·H, D, Q), which the model has, from the output (B, Q, H·D)."""
        attention = self.attention
        nodes = self.after
        result_name = "" if attention.other_levels else self._record.output
        if attention.heads == 1:
            result = nodes.add("Transpose", self.output, perm=[0, 2, 1], output=result_name)
        else:
            channels_first = nodes.add("Transpose", self.output, perm=[0, 2, 1])  # (B, H·D, Q)
            shape = self._write_shape(self._image_count(), attention.channels, 0)
            result = nodes.add("Reshape", channels_first, shape, output=result_name)
        if attention.other_levels:
            self._add_other_levels(result)

    def _add_other_levels(self, total: str) -> None:
        """Add the levels that are not fused, which the model samples by itself, to ``total``."""
        nodes = self.after
        others = self.attention.other_levels
        samples = []
        for level in others:
            shape = self.nodes.row(0, 0, 0, len(level.points))
            samples.append(nodes.add("Reshape", level.name, shape))
        points = [point for level in others for point in level.points]
        weights = self._write_weights_of(nodes, points)
        product = nodes.add("Mul", nodes.add("Concat", *samples, axis=3), weights)
        rest = nodes.add("ReduceSum", product, self.nodes.row(-1), keepdims=0)
        nodes.add("Add", total, rest, output=self._record.output)

    def _write_weights_of(self, nodes: Nodes, points: Sequence[int]) -> str:
        """Write the weights (B·H, 1, Q, P) of some points."""
        return nodes.add("Gather", self.attention.weights.name, self.nodes.row(*points), axis=3)

    def _write_shape(self, *lengths: int | str) -> str:
        """Write a shape.

        At most one length may be computed by nodes: it is given by the name of its value, (1,).
        """
        computed = [length for length in lengths if isinstance(length, str)]
        shape = self.nodes.row(*(length if isinstance(length, int) else 0 for length in lengths))
        if not computed:
            return shape
        (name,) = computed
        # Not a Concat: onnxruntime replaces the single computed length of a Concat by -1.
        is_computed = self.nodes.constant(np.array([isinstance(part, str) for part in lengths]))
        return self.nodes.add("Where", is_computed, name, shape)

    def _batch_length(self) -> int | str:
        """Return B; nodes compute it, (1,), if it is not known.

        Only attention with several heads needs B, and has a value of all levels.
        """
        if self._batch is None:
            assert self.attention.value is not None
            batch = self._record.length_in_all_calls("value", 0)
            if isinstance(batch, int):
                self._batch = batch
            else:
                shape = self.nodes.add("Shape", self.attention.value.name)
                self._batch = self.nodes.add("Gather", shape, self.nodes.row(0))
        return self._batch

    def _image_count(self) -> int | str:
        """Return B·H; nodes compute it, (1,), if it is not known. There must be several heads."""
        batch = self._batch_length()
        heads = self.attention.heads
        if isinstance(batch, int):
            return batch * heads
        return self.nodes.add("Mul", batch, self.nodes.row(heads))

    def _query_count(self) -> int | str:
        """Return Q; nodes compute it, (1,), from the grid of a level if it is not known."""
        attention = self.attention
        nodes = self.nodes
        level = next((level for level in attention.levels if level.points), None)
        if attention.queries is not None:
            return attention.queries
        if level is None:
            return -1
        shape = nodes.add("Shape", level.sample.values["grid"])
        output_lengths = nodes.add("Gather", shape, nodes.row(*range(1, 1 + attention.r)))
        n_positions = nodes.add("ReduceProd", output_lengths, keepdims=1)
        return nodes.add("Div", n_positions, nodes.row(level.points))

    def _write_lengths(self, index: int, level: Level) -> str:
        """Write the spatial lengths of a level, (r,)."""
        if index not in self._lengths_of_levels:
            spatial_axes = self.nodes.row(*range(2, 2 + self.attention.r))
            shape = level.shape or self.nodes.add("Shape", level.sample.values["X"])
            self._lengths_of_levels[index] = self.nodes.add("Gather", shape, spatial_axes)
        return self._lengths_of_levels[index]

    def _pixel_count(self, index: int, level: Level) -> int | str:
        """Return the number of pixels of a level; nodes compute it, (1,), if it is not known."""
        lengths = [length.known for length in level.lengths if length.known is not None]
        if len(lengths) == len(level.lengths):
            return math.prod(lengths)
        return self.nodes.add("ReduceProd", self._write_lengths(index, level), keepdims=1)

    def write_operands(self) -> list[str]:
        """Write all operands; return the names of value, levels, locations and weights."""
        return [
            self.write_value(),
            self.write_levels(),
            self.write_locations(),
            self.write_weights(),
        ]

    def write_value(self) -> str:
        """Write the value (B, S, H, D)."""
        attention = self.attention
        nodes = self.nodes
        if attention.value is not None:
            if attention.value.layout == "B, S, H, D":
                return attention.value.name
            shape = nodes.row(0, 0, attention.heads, attention.channels)
            return nodes.add("Reshape", attention.value.name, shape)
        images = []
        for index, level in enumerate(attention.levels):
            shape = self._write_shape(0, 0, self._pixel_count(index, level))
            images.append(nodes.add("Reshape", level.sample.values["X"], shape))
        pixels_first = nodes.add("Transpose", self._write_concat(images, axis=2), perm=[0, 2, 1])
        return nodes.add("Unsqueeze", pixels_first, nodes.row(2))

    def write_levels(self) -> str:
        """Write (L, 1 + r): the number of points, and the spatial lengths, of each level."""
        attention = self.attention
        nodes = self.nodes
        known = self._record.constants.get("levels")
        if known is not None:
            return nodes.constant(known)
        rows = []
        for index, level in enumerate(attention.levels):
            lengths = self._write_lengths(index, level)
            rows.append(self._write_concat([nodes.row(level.points), lengths], axis=0))
        return nodes.add("Reshape", self._write_concat(rows, axis=0), nodes.row(len(rows), -1))

    def write_locations(self) -> str:
        """Write the locations (B, Q, H, L, P, r) or (B, Q, H, P, r), from 0 to 1."""
        attention = self.attention
        nodes = self.nodes
        if attention.locations is not None:
            return attention.locations.name
        r = attention.r
        n_points = sum(attention.points)
        grids = []
        queries = self._query_count()
        for level in attention.levels:
            shape = self._write_shape(0, queries, level.points, r)
            grids.append(nodes.add("Reshape", level.sample.values["grid"], shape))
        # Half precision would lose too much of a location.
        is_double = "float64" in self._record.types["sampling_locations"]
        type_name = "float64" if is_double else "float32"
        grid = nodes.add("Cast", self._write_concat(grids, axis=2), to=elem_type(type_name))
        half = nodes.constant(np.array(0.5, type_name))
        unit = nodes.add("Add", nodes.add("Mul", grid, half), half)
        if attention.heads == 1:
            return nodes.add("Unsqueeze", unit, nodes.row(2))
        by_head = self._write_by_head(unit, perm=[1, 0, 2, 3], size=n_points * r)
        return nodes.add("Reshape", by_head, nodes.row(0, 0, 0, n_points, r))

    def write_weights(self) -> str:
        """Write the weights (B, Q, H, L, P) or (B, Q, H, P).

        Weights (B, 1, H, P) are those of one query for all queries.
        """
        attention = self.attention
        n_points = sum(attention.points)
        if attention.has_weights_by_head and attention.is_per_query:
            return attention.weights.name
        if attention.has_weights_by_head:
            # With an axis of levels, an op would read them as the weights of each query.
            shape = self.nodes.row(0, 0, 0, n_points)
            return self.nodes.add("Reshape", attention.weights.name, shape)
        weights = attention.weights.name
        if attention.other_levels:
            other_points = {point for level in attention.other_levels for point in level.points}
            all_points = range(n_points + len(other_points))
            sampled = [point for point in all_points if point not in other_points]
            weights = self._write_weights_of(self.nodes, sampled)
        if attention.heads == 1:
            return self.nodes.add("Transpose", weights, perm=[0, 2, 1, 3])
        return self._write_by_head(weights, perm=[2, 0, 1, 3], size=n_points)

    def _write_by_head(self, name: str, *, perm: Sequence[int], size: int) -> str:
        """Write (B, Q, H, size) from a value that ``perm`` transposes to (Q, B·H, …)."""
        nodes = self.nodes
        queries_first = nodes.add("Transpose", name, perm=perm)
        shape = self._write_shape(0, self._batch_length(), self.attention.heads, size)
        split = nodes.add("Reshape", queries_first, shape)
        return nodes.add("Transpose", split, perm=[1, 0, 2, 3])

    def _write_concat(self, names: Sequence[str], *, axis: int) -> str:
        return names[0] if len(names) == 1 else self.nodes.add("Concat", *names, axis=axis)
