"""The operands of another package's deformable attention, as expressions of its inputs.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import numpy as np

from ..errors import GridSampleError
from ..graph.expressions import DimLike, Tensor
from .attention_operands import AttentionOperands
from .foreign_attention_facts import has_softmax
from .foreign_inputs import ForeignInputs
from .match_facts import known_type


class ForeignOperands:
    """Computes the operands of an attention node from its inputs.

    Args:
        inputs: the inputs of the node.
    """

    def __init__(self, inputs: ForeignInputs) -> None:
        self._inputs = inputs
        self._e = inputs.e
        self._match = inputs.match

    def operands(self) -> AttentionOperands:
        """Return the operands."""
        inputs = self._inputs
        if inputs.signature.has_offsets:
            locations = self._locations()
            weights = self._softmax_weights()
        else:
            locations = inputs.values["sampling_locations"]
            weights = self._as_value_type(inputs.values["attention_weights"])
        return AttentionOperands(
            value=inputs.values["value"],
            level_table=inputs.level_table,
            starts=inputs.starts,
            locations=locations,
            weights=weights,
        )

    def levels(self, operands: AttentionOperands) -> tuple[Tensor, list[int]]:
        """Return (L, 3): the number of points, the height and the width of each level.

        Returns:
            The levels, and the numbers of points; empty if they are not known.
        """
        e = self._e
        n_levels = self._inputs.n_levels
        n_points = self._inputs.n_points if n_levels else 0
        points = [n_points] * n_levels if n_points is not None else []
        table = self._inputs.known_level_table
        if n_points is not None and table is not None:
            return e.constant(np.insert(table.astype(np.int64), 0, n_points, axis=1)), points
        cell = e.op("Reshape", e.lengths(operands.locations, 4), e.row(1, 1))
        column = e.expand(cell, [n_levels, 1])
        return e.concatenate([column, operands.level_table.astype("int64")], axis=1), points

    def _as_value_type(self, x: Tensor) -> Tensor:
        """Return ``x`` in the type of ``value``, if both types are known."""
        types = self._match.record.types
        weights_types = types["attention_weights"]
        if not weights_types or not types["value"] or weights_types == types["value"]:
            return x
        return x.astype(known_type(self._match, "value"))

    def _at_least_single(self, argument: str) -> Tensor:
        """Return an input in at least single precision."""
        type_name = known_type(self._match, argument)
        x = self._inputs.values[argument]
        return x if type_name in ("float32", "float64") else x.astype("float32")

    def _locations(self) -> Tensor:
        """Return the locations (B, Q, H, L, P, 2) from reference points and offsets in pixels.

        Point p is relative to reference point p modulo G.

        Raises:
            GridSampleError: the offsets and the reference points have different types.
        """
        e = self._e
        references = self._at_least_single("reference_points")
        offsets = self._at_least_single("sampling_offsets")
        if references.type != offsets.type:
            found = f"of type {offsets.type}"
            expected = f"type {references.type}, as reference_points"
            raise GridSampleError(self._match.record.where, "sampling_offsets", found, expected)
        groups = self._groups()
        group_size = self._points_per_level() / groups
        offsets = self._with_axis_before_points(offsets)
        offsets = self._with_axes_of_offsets(offsets, group_size, groups)
        first_axes = self._inputs.lengths("reference_points", 0, 1)
        shape = e.shape([first_axes, 1, 1, 1, groups, 2])
        locations = e.op("Reshape", references, shape) + offsets / self._sizes(references.type)
        return self._with_axes_of_offsets(locations, self._points_per_level())

    def _with_axes_of_offsets(self, x: Tensor, *point_axes: DimLike) -> Tensor:
        """Reshape ``x`` to (B, Q, H, L, …, 2), with ``point_axes`` before the last axis."""
        first_axes = self._first_axes("sampling_offsets")
        return self._e.op("Reshape", x, self._e.shape([*first_axes, *point_axes, 2]))

    def _with_axis_before_points(self, x: Tensor) -> Tensor:
        """Return (B, Q, H, 1, …) from (B, Q, H, …) if there may be no points.

        A 0 in the shape of a Reshape copies the length of the same axis. If P is 0, the last axis
        of ``x`` has no elements, and this axis becomes the one of the points. A length 0 needs
        ``allowzero`` otherwise, which old opsets and some runtimes lack.
        """
        return x if self._inputs.n_points else self._e.unsqueeze(x, 3)

    def _points_per_level(self) -> Tensor:
        """Return the number P of points on each level, (1,), of a node with offsets."""
        n_points = self._inputs.n_points
        if n_points is not None:
            return self._e.row(n_points)
        return self._inputs.lengths("attention_weights", 3) / self._inputs.n_levels

    def _first_axes(self, argument: str) -> list[DimLike]:
        """Return the lengths B, Q, H and L of a Reshape's shape.

        If P is known, zeros copy B, Q and H. Otherwise P is computed, and so B, Q and H are, too:
        onnxruntime replaces a single computed length of a Concat by -1, which fails without
        elements.
        """
        n_levels = self._inputs.n_levels
        if self._inputs.n_points is not None:
            return [0, 0, 0, n_levels]
        return [self._inputs.lengths(argument, 0, 1, 2), n_levels]

    def _groups(self) -> Tensor:
        """Return the number G of groups, (1,)."""
        shape = self._inputs.shape("reference_points")
        if shape is not None and isinstance(shape[3], int):
            return self._e.row(shape[3] // 2)
        return self._inputs.lengths("reference_points", 3) / 2

    def _sizes(self, type_name: str) -> Tensor:
        """Return the width and the height of each level, (1, 1, 1, L, 1, 1, 2)."""
        e = self._e
        shape = (1, 1, 1, self._inputs.n_levels, 1, 1, 2)
        table = self._inputs.known_level_table
        if table is not None:
            return e.constant(table[:, ::-1].reshape(shape), type_name)
        widths_first = e.gather(self._inputs.level_table, [1, 0], axis=1)
        return e.op("Reshape", widths_first.astype(type_name), e.row(*shape))

    def _softmax_weights(self) -> Tensor:
        """Return the weights (B, Q, H, L, P).

        The plugins apply a softmax. Their first releases did not, and a Softmax precedes the node.
        """
        e = self._e
        if has_softmax(self._match.scope, self._match.record.values["attention_weights"]):
            weights = self._as_value_type(self._inputs.values["attention_weights"])
        else:
            weights = e.op("Softmax", self._at_least_single("attention_weights"), axis=3)
            weights = weights.astype(known_type(self._match, "value"))
        weights = self._with_axis_before_points(weights)
        first_axes = self._first_axes("attention_weights")
        return e.op("Reshape", weights, e.shape([*first_axes, self._points_per_level()]))
