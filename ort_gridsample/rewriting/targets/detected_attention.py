"""Write the operands of a deformable attention that was detected around GridSamples.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...detection.attention.layouts import Attention
from ...detection.match import Match
from ...graph.element_types import elem_type
from ...graph.scope import Names, Nodes


class DetectedAttention:
    """Writes the nodes between a model's values and one node that computes deformable attention.

    An operand that the model has in the right layout is read as it is; otherwise nodes rearrange
    the model's values.

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
        if attention.has_output_by_query:
            self.output = match.record.output
        else:
            self.output = names.new(f"{match.record.output}_by_query")
            self._write_channels_first()

    def _write_channels_first(self) -> None:
        """Write (B·H, D, Q), which the model has, from the output (B, Q, H·D)."""
        attention = self.attention
        others = attention.other_levels
        nodes = self.after
        head_shape = self.nodes.row(0, 0, attention.heads, attention.channels)
        by_head = nodes.add("Reshape", self.output, head_shape)
        channels_first = nodes.add("Transpose", by_head, perm=[0, 2, 3, 1])
        flat = nodes.add("Flatten", channels_first, axis=2)  # (B·H, D·Q)
        shape = self.nodes.row(0, attention.channels, -1)
        result_name = "" if others else self._record.output
        result = nodes.add("Reshape", flat, shape, output=result_name)
        if others:
            self._add_other_levels(result)

    def _add_other_levels(self, total: str) -> None:
        """Add the levels that are not fused, which the model samples by itself, to ``total``."""
        nodes = self.after
        others = self.attention.other_levels
        samples = []
        for sample, points in others:
            shape = self.nodes.row(0, 0, 0, len(points))
            samples.append(nodes.add("Reshape", sample, shape))
        weights = self._weights_of(nodes, [point for _, points in others for point in points])
        product = nodes.add("Mul", nodes.add("Concat", *samples, axis=3), weights)
        rest = nodes.add("ReduceSum", product, self.nodes.row(-1), keepdims=0)
        nodes.add("Add", total, rest, output=self._record.output)

    def _weights_of(self, nodes: Nodes, points: Sequence[int]) -> str:
        """Write the weights (B·H, 1, Q, P) of some points."""
        return nodes.add("Gather", self.attention.weights.name, self.nodes.row(*points), axis=3)

    def operands(self) -> list[str]:
        """Write all operands; return the names of value, levels, locations and weights."""
        return [self.value(), self.levels(), self.locations(), self.weights()]

    def value(self) -> str:
        """Write the value (B, S, H, D)."""
        attention = self.attention
        nodes = self.nodes
        if attention.value is not None:
            if attention.value.layout == "B, S, H, D":
                return attention.value.name
            shape = nodes.row(0, 0, attention.heads, attention.channels)
            return nodes.add("Reshape", attention.value.name, shape)
        images = []
        for level in attention.levels:
            X = level.sample.values["X"]
            images.append(nodes.add("Reshape", X, nodes.row(0, 0, -1)))
        pixels_first = nodes.add("Transpose", self._concatenated(images, axis=2), perm=[0, 2, 1])
        return nodes.add("Unsqueeze", pixels_first, nodes.row(2))

    def levels(self) -> str:
        """Write (L, 1 + r): the number of points, and the spatial lengths, of each level."""
        attention = self.attention
        nodes = self.nodes
        known = self._record.constants.get("levels")
        if known is not None:
            return nodes.constant(known)
        rows = []
        for level in attention.levels:
            spatial_axes = nodes.row(*range(2, 2 + attention.axes))
            shape_value = level.shape or nodes.add("Shape", level.sample.values["X"])
            lengths = nodes.add("Gather", shape_value, spatial_axes)
            rows.append(self._concatenated([nodes.row(level.points), lengths], axis=0))
        return nodes.add("Reshape", self._concatenated(rows, axis=0), nodes.row(len(rows), -1))

    def locations(self) -> str:
        """Write the locations (B, Q, H, L, P, r) or (B, Q, H, P, r), from 0 to 1."""
        attention = self.attention
        nodes = self.nodes
        if attention.locations is not None:
            return attention.locations.name
        r = attention.axes
        n_points = sum(attention.points)
        grids = [
            nodes.add("Reshape", level.sample.values["grid"], nodes.row(0, -1, level.points, r))
            for level in attention.levels
        ]
        # Half precision would lose too much of a location.
        is_double = "float64" in self._record.types["sampling_locations"]
        type_name = "float64" if is_double else "float32"
        grid = nodes.add("Cast", self._concatenated(grids, axis=2), to=elem_type(type_name))
        half = nodes.constant(np.array(0.5, type_name))
        unit = nodes.add("Add", nodes.add("Mul", grid, half), half)
        by_head = self._by_head(unit, perm=[1, 0, 2, 3], size=n_points * r)
        return nodes.add("Reshape", by_head, nodes.row(0, 0, 0, n_points, r))

    def weights(self) -> str:
        """Write the weights (B, Q, H, L, P) or (B, Q, H, P).

        Weights (B, 1, H, P) are those of one query for all queries.
        """
        attention = self.attention
        if attention.has_weights_by_head and attention.is_per_query:
            return attention.weights.name
        if attention.has_weights_by_head:
            # With an axis of levels, an op would read them as the weights of each query.
            return self.nodes.add("Reshape", attention.weights.name, self.nodes.row(0, 0, 0, -1))
        n_points = sum(attention.points)
        weights = attention.weights.name
        if attention.other_levels:
            other_points = {point for _, points in attention.other_levels for point in points}
            all_points = range(n_points + len(other_points))
            sampled = [point for point in all_points if point not in other_points]
            weights = self._weights_of(self.nodes, sampled)
        return self._by_head(weights, perm=[2, 0, 1, 3], size=n_points)

    def _by_head(self, name: str, *, perm: Sequence[int], size: int) -> str:
        """Write (B, Q, H, size) from a value that ``perm`` transposes to (Q, B·H, …)."""
        nodes = self.nodes
        queries_first = nodes.add("Transpose", name, perm=perm)
        shape = nodes.row(0, -1, self.attention.heads, size)
        split = nodes.add("Reshape", queries_first, shape)
        return nodes.add("Transpose", split, perm=[1, 0, 2, 3])

    def _concatenated(self, names: Sequence[str], *, axis: int) -> str:
        return names[0] if len(names) == 1 else self.nodes.add("Concat", *names, axis=axis)
