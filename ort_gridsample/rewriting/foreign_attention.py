"""Nodes for the operands of another package's deformable attention.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..errors import GridSampleError
from ..graph.element_types import elem_type
from ..graph.first_opsets import FIRST_OPSET_WITH_AXES_AS_INPUT
from .attention_operands import AttentionOperands
from .foreign_attention_facts import has_softmax
from .foreign_inputs import ForeignInputs
from .match_facts import known_type


class ForeignOperands:
    """Writes the nodes that compute the operands of an attention node from its inputs.

    A method ``write_x`` appends nodes and returns the name of the value x.

    Args:
        inputs: the inputs of the node.
    """

    def __init__(self, inputs: ForeignInputs) -> None:
        self._inputs = inputs
        self._nodes = inputs.nodes
        self._match = inputs.match

    def write(self) -> AttentionOperands:
        """Write the operands."""
        inputs = self._inputs
        if inputs.signature.has_offsets:
            starts = ""
            locations = self._write_locations()
            weights = self._write_softmax_weights()
        else:
            starts = inputs.names["level_start_index"]
            locations = inputs.names["sampling_locations"]
            weights = self._write_as_value_type("attention_weights")
        return AttentionOperands(
            value=inputs.names["value"],
            level_table=inputs.level_table,
            starts=starts,
            locations=locations,
            weights=weights,
        )

    def write_levels(self, operands: AttentionOperands) -> tuple[str, list[int]]:
        """Write (L, 3): the number of points, the height and the width of each level.

        Returns:
            The name of the value, and the numbers of points; empty if they are not known.
        """
        nodes = self._nodes
        n_levels = self._inputs.n_levels
        n_points = self._inputs.n_points if n_levels else 0
        points = [n_points] * n_levels if n_points is not None else []
        table = self._inputs.known_level_table
        if n_points is not None and table is not None:
            levels = np.insert(table.astype(np.int64), 0, n_points, axis=1)
            return nodes.constant(levels), points
        length = nodes.add("Gather", nodes.add("Shape", operands.locations), nodes.row(4))
        cell = nodes.add("Reshape", length, nodes.row(1, 1))
        column = nodes.add("Expand", cell, nodes.row(n_levels, 1))
        lengths = nodes.add("Cast", operands.level_table, to=TensorProto.INT64)
        return nodes.add("Concat", column, lengths, axis=1), points

    def _write_as_value_type(self, argument: str) -> str:
        """Write an input as the type of ``value``, if both types are known."""
        types = self._match.record.types
        if types[argument] and types["value"] and types[argument] != types["value"]:
            to = elem_type(known_type(self._match, "value"))
            return self._nodes.add("Cast", self._inputs.names[argument], to=to)
        return self._inputs.names[argument]

    def _write_at_least_single(self, argument: str) -> tuple[str, str]:
        """Write an input in at least single precision; return its name and its type."""
        type_name = known_type(self._match, argument)
        if type_name in ("float32", "float64"):
            return self._inputs.names[argument], type_name
        single = self._nodes.add("Cast", self._inputs.names[argument], to=TensorProto.FLOAT)
        return single, "float32"

    def _write_locations(self) -> str:
        """Write the locations (B, Q, H, L, P, 2) from reference points and offsets in pixels.

        Point p is relative to reference point p modulo G.

        Raises:
            GridSampleError: the offsets and the reference points have different types.
        """
        nodes = self._nodes
        references, type_name = self._write_at_least_single("reference_points")
        offsets, offsets_type = self._write_at_least_single("sampling_offsets")
        if type_name != offsets_type:
            found = f"of type {offsets_type}"
            expected = f"type {type_name}, as reference_points"
            raise GridSampleError(self._match.record.where, "sampling_offsets", found, expected)
        groups = self._write_groups()
        group_size = nodes.add("Div", self._write_points_per_level(), groups)
        offsets = self._write_axis_before_points(offsets)
        offsets = self._write_with_axes_of_offsets(offsets, group_size, groups)
        first_axes = self._inputs.write_axis_lengths("reference_points", 0, 1)
        ones = nodes.row(1, 1, 1)
        shape = nodes.add("Concat", first_axes, ones, groups, nodes.row(2), axis=0)
        references = nodes.add("Reshape", references, shape)
        sizes = self._write_widths_and_heights(type_name)
        locations = nodes.add("Add", references, nodes.add("Div", offsets, sizes))
        return self._write_with_axes_of_offsets(locations, self._write_points_per_level())

    def _write_with_axes_of_offsets(self, value: str, *point_axes: str) -> str:
        """Reshape a value to (B, Q, H, L, …, 2), with ``point_axes`` before the last axis."""
        nodes = self._nodes
        first_axes = self._write_first_axes("sampling_offsets")
        shape = nodes.add("Concat", *first_axes, *point_axes, nodes.row(2), axis=0)
        return nodes.add("Reshape", value, shape)

    def _write_axis_before_points(self, value: str) -> str:
        """Write (B, Q, H, 1, …) from (B, Q, H, …) if there may be no points.

        A 0 in the shape of a Reshape copies the length of the same axis. If P is 0, the last axis
        of ``value`` has no elements, and this axis becomes the one of the points. A length 0 needs
        ``allowzero`` otherwise, which old opsets and some runtimes lack.
        """
        if self._inputs.n_points:
            return value
        if self._match.opset < FIRST_OPSET_WITH_AXES_AS_INPUT:
            return self._nodes.add("Unsqueeze", value, axes=[3])
        return self._nodes.add("Unsqueeze", value, self._nodes.row(3))

    def _write_points_per_level(self) -> str:
        """Write the number P of points on each level, (1,), of a node with offsets."""
        n_points = self._inputs.n_points
        if n_points is not None:
            return self._nodes.row(n_points)
        points = self._inputs.write_axis_lengths("attention_weights", 3)
        return self._nodes.add("Div", points, self._nodes.row(self._inputs.n_levels))

    def _write_first_axes(self, argument: str) -> list[str]:
        """Write the lengths B, Q, H and L of a Reshape's shape; return them in parts.

        If P is known, zeros copy B, Q and H. Otherwise P is computed, and so B, Q and H are, too:
        onnxruntime replaces a single computed length of a Concat by -1, which fails without
        elements.
        """
        n_levels = self._inputs.n_levels
        if self._inputs.n_points is not None:
            return [self._nodes.row(0, 0, 0, n_levels)]
        return [self._inputs.write_axis_lengths(argument, 0, 1, 2), self._nodes.row(n_levels)]

    def _write_groups(self) -> str:
        """Write the number G of groups, (1,)."""
        shape = self._inputs.shape("reference_points")
        if shape is not None and isinstance(shape[3], int):
            return self._nodes.row(shape[3] // 2)
        coordinates = self._inputs.write_axis_lengths("reference_points", 3)
        return self._nodes.add("Div", coordinates, self._nodes.row(2))

    def _write_widths_and_heights(self, type_name: str) -> str:
        """Write the width and the height of each level, (1, 1, 1, L, 1, 1, 2)."""
        nodes = self._nodes
        shape = (1, 1, 1, self._inputs.n_levels, 1, 1, 2)
        table = self._inputs.known_level_table
        if table is not None:
            return nodes.constant(table[:, ::-1].astype(type_name).reshape(shape))
        lengths = self._inputs.level_table
        widths_first = nodes.add("Gather", lengths, nodes.row(1, 0), axis=1)
        sizes = nodes.add("Cast", widths_first, to=elem_type(type_name))
        return nodes.add("Reshape", sizes, nodes.row(*shape))

    def _write_softmax_weights(self) -> str:
        """Write the weights (B, Q, H, L, P).

        The plugins apply a softmax. Their first releases did not, and a Softmax precedes the node.
        """
        nodes = self._nodes
        if has_softmax(self._match.scope, self._match.record.values["attention_weights"]):
            weights = self._write_as_value_type("attention_weights")
        else:
            logits, type_name = self._write_at_least_single("attention_weights")
            weights = nodes.add("Softmax", logits, axis=3)
            value_type = known_type(self._match, "value")
            if value_type != type_name:
                weights = nodes.add("Cast", weights, to=elem_type(value_type))
        weights = self._write_axis_before_points(weights)
        points = self._write_points_per_level()
        first_axes = self._write_first_axes("attention_weights")
        shape = nodes.add("Concat", *first_axes, points, axis=0)
        return nodes.add("Reshape", weights, shape)
