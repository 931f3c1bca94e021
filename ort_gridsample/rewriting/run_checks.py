"""Nodes that check shapes in a run, where the model does not state them.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from ..detection.helper_nodes import FOUND_BY_SHAPE_CHECK
from ..detection.match import Match
from ..errors import GridSampleError
from ..graph.new_nodes import Nodes
from ..spec import Shape, known_lengths
from .attention_operands import AttentionOperands

#: The end of a Slice that goes to the end of an axis.
_END = np.iinfo(np.int64).max


def fail_unless_equal(
    nodes: Nodes,
    passthrough: str,
    actual: str,
    expected: str,
    error: GridSampleError,
) -> str:
    """Write nodes that fail in a run unless ``actual`` and ``expected`` are equal.

    No standard operator raises an error with a text. A Gather with an index out of bounds fails,
    and onnxruntime's error begins with the name of the node. Therefore the node has the text as its
    name. It gathers from a single row, at index 0 if all integers are equal and at index 1
    otherwise. Its output must be read by other nodes, because unread nodes are dropped.

    Args:
        nodes: the list to write to.
        passthrough: a row of integers, which passes through the check.
        actual: the integers to check.
        expected: the integers that they must be.
        error: the text of this error is the name of each node that can fail.

    Returns:
        The name of a value that equals ``passthrough``, and is computed after the check.
    """
    is_equal = nodes.add("Equal", actual, expected)
    nodes.rename_last(str(error))  # Equal fails if the two rows have different lengths
    equal_numbers = nodes.add("Cast", is_equal, to=TensorProto.INT64)
    one = nodes.constant(1)
    all_equal = nodes.add("ReduceMin", equal_numbers, keepdims=0)
    index = nodes.add("Sub", one, all_equal)  # 0 if all are equal, else 1
    single_row = nodes.add("Reshape", passthrough, nodes.row(1, -1))
    checked = nodes.add("Gather", single_row, index, axis=0)
    nodes.rename_last(str(error))
    return checked


def write_checked_operands(
    match: Match, operands: AttentionOperands, nodes: Nodes, *, points: Sequence[int]
) -> AttentionOperands:
    """Write checks of the operands of this package's deformable attention.

    Args:
        match: the deformable attention.
        operands: the operands of the node.
        nodes: the list to write to.
        points: the number of points of each level.

    Returns:
        The operands after the checks.
    """
    return _OperandChecks(match, operands, nodes, points).write()


class _OperandChecks:
    """Writes the checks of :func:`ort_gridsample.functions.validation.check_attention_shapes`.

    Args:
        match: the deformable attention.
        operands: the operands of the node.
        nodes: the list to write to.
        points: the number of points of each level.
    """

    def __init__(
        self, match: Match, operands: AttentionOperands, nodes: Nodes, points: Sequence[int]
    ) -> None:
        self._record = match.record
        self._operands = operands
        self._table = match.scope.constant_value(operands.level_table)
        self._nodes = nodes
        self._points = points
        self._r = (match.record.spatial_axes or (2,))[0]

    def write(self) -> AttentionOperands:
        """Write the checks that were not made when the model was read."""
        shapes: list[Shape | None] = []
        for argument in ("value", "sampling_locations", "attention_weights"):
            shapes += self._record.shapes_by_call(argument)
        are_shapes_known = all(known_lengths(shape) is not None for shape in shapes)
        if are_shapes_known and self._table is not None:
            return self._operands
        operands = self._operands
        locations = self._write_checked_locations(operands.value, operands.locations)
        return replace(
            operands,
            value=self._write_checked_value(operands.value),
            locations=locations,
            weights=self._write_checked_weights(locations, operands.weights),
        )

    def _error(self, argument: str, expectation: str) -> GridSampleError:
        """Return the error about the shape of an operand."""
        return GridSampleError(self._record.where, argument, FOUND_BY_SHAPE_CHECK, expectation)

    def _known_rank(self, argument: str) -> int | None:
        """Return the rank of an operand if it is the same in all calls."""
        ranks = self._record.ranks[argument]
        return ranks[0] if len(ranks) == 1 and not self._record.varies_in_rank(argument) else None

    def _write_checked_value(self, value: str) -> str:
        """Write a check that the levels have the pixels of value."""
        n_pixels = self._record.length_in_all_calls("value", 1)
        if self._table is not None and isinstance(n_pixels, int):
            return value
        nodes = self._nodes
        error = self._error("value", "shape (B, S, H, D), with the S pixels of levels")
        shape = nodes.add("Shape", value)
        if self._known_rank("value") is None:
            rank = nodes.add("Shape", shape)
            shape = fail_unless_equal(nodes, shape, rank, nodes.row(4), error)
        actual = nodes.add("Gather", shape, nodes.row(1))
        checked = fail_unless_equal(nodes, shape, actual, self._write_pixel_count(), error)
        return nodes.add("Reshape", value, checked)

    def _write_pixel_count(self) -> str:
        """Write the number of pixels of all levels, (1,)."""
        nodes = self._nodes
        if self._table is not None:
            return nodes.row(sum(math.prod(row) for row in self._table[:, 1:].tolist()))
        table = nodes.add("Cast", self._operands.level_table, to=TensorProto.INT64)
        columns = [
            nodes.add("Gather", table, nodes.constant(1 + i), axis=1) for i in range(self._r)
        ]
        areas = columns[0]
        for column in columns[1:]:
            areas = nodes.add("Mul", areas, column)
        return nodes.add("ReduceSum", areas, keepdims=1)

    def _write_shape(self, argument: str, name: str, ranks: Sequence[int], axes: str) -> str:
        """Write the shape of an operand, and a check of its rank if that is not known.

        Args:
            argument: the operand.
            name: the name of its value.
            ranks: the two ranks that it may have.
            axes: its shape in the error.
        """
        nodes = self._nodes
        shape = nodes.add("Shape", name)
        if self._known_rank(argument) is not None:
            return shape  # checked before the model was written
        are_ranks = nodes.add("Equal", nodes.add("Shape", shape), nodes.row(*ranks))
        numbers = nodes.add("Cast", are_ranks, to=TensorProto.INT64)
        is_any = nodes.add("ReduceMax", numbers, keepdims=1)
        error = self._error(argument, axes)
        return fail_unless_equal(nodes, shape, is_any, nodes.row(1), error)

    def _write_checked_locations(self, value: str, locations: str) -> str:
        """Write a check that locations have the batch and heads of value, and those of levels."""
        nodes = self._nodes
        expectation = (
            "shape (B, Q, H, L, P, r) or (B, Q, H, P, r), with the B and H of value and the L, "
            "points and r of levels"
        )
        shape = self._write_shape("sampling_locations", locations, (5, 6), expectation)
        axes = nodes.row(0, 2)
        actual = nodes.add("Gather", shape, axes)
        expected = nodes.add("Gather", nodes.add("Shape", value), axes)
        rank = self._known_rank("sampling_locations")
        if rank != 5:
            level_axis = nodes.add("Slice", shape, nodes.row(3), nodes.row(-2))  # without L: empty
            n_levels = nodes.row(len(self._points))
            if rank is None:
                end = nodes.add("Sub", nodes.add("Shape", shape), nodes.row(5))
                n_levels = nodes.add("Slice", n_levels, nodes.row(0), end)
            actual = nodes.add("Concat", actual, level_axis, axis=0)
            expected = nodes.add("Concat", expected, n_levels, axis=0)
        point_axes = nodes.add("Slice", shape, nodes.row(3), nodes.row(-1))
        n_points = nodes.add("ReduceProd", point_axes, keepdims=1)
        last_axis = nodes.add("Gather", shape, nodes.row(-1))
        actual = nodes.add("Concat", actual, n_points, last_axis, axis=0)
        expected_lengths = nodes.row(sum(self._points), self._r)
        expected = nodes.add("Concat", expected, expected_lengths, axis=0)
        error = self._error("sampling_locations", expectation)
        checked = fail_unless_equal(nodes, shape, actual, expected, error)
        return nodes.add("Reshape", locations, checked)

    def _write_checked_weights(self, locations: str, weights: str) -> str:
        """Write a check that weights have the axes of locations.

        Weights (B, 1, H, P) are those of one query for all queries.
        """
        nodes = self._nodes
        expectation = "all axes but the last of sampling_locations"
        shape = self._write_shape("attention_weights", weights, (4, 5), expectation)
        locations_shape = nodes.add("Shape", locations)
        rank = self._known_rank("attention_weights")
        rank_of_locations = self._known_rank("sampling_locations")
        error = self._error("attention_weights", expectation)
        if (rank, rank_of_locations) == (5, 6):
            expected = nodes.add("Slice", locations_shape, nodes.row(0), nodes.row(5))
            checked = fail_unless_equal(nodes, shape, shape, expected, error)
            return nodes.add("Reshape", weights, checked)
        actual = _write_merged_axes_of_points(nodes, shape, end=_END)
        expected = _write_merged_axes_of_points(nodes, locations_shape, end=-1)
        expected = self._write_with_one_query(shape, actual, expected)
        if rank != 4 and rank_of_locations != 5:
            shape = self._write_check_of_two_axes(shape, locations_shape, error)
        checked = fail_unless_equal(nodes, shape, actual, expected, error)
        return nodes.add("Reshape", weights, checked)

    def _write_with_one_query(self, shape: str, actual: str, expected: str) -> str:
        """Write (B, Q, H, P) that weights must have: ``expected``, or 1 as Q if they have that."""
        nodes = self._nodes
        rank = self._known_rank("attention_weights")
        if rank == 5:
            return expected
        is_query_axis = nodes.constant(np.array([False, True, False, False]))
        if rank is None:
            has_one_axis_of_points = nodes.add("Equal", nodes.add("Shape", shape), nodes.row(4))
            is_query_axis = nodes.add("And", is_query_axis, has_one_axis_of_points)
        ones = nodes.row(1, 1, 1, 1)
        is_one_query = nodes.add("And", nodes.add("Equal", actual, ones), is_query_axis)
        return nodes.add("Where", is_one_query, actual, expected)

    def _write_check_of_two_axes(
        self, shape: str, locations_shape: str, error: GridSampleError
    ) -> str:
        """Write a check that L and P of weights are those of locations, if both have two axes."""
        nodes = self._nodes
        actual = nodes.add("Slice", shape, nodes.row(3), nodes.row(_END))
        axes_of_locations = nodes.add("Slice", locations_shape, nodes.row(3), nodes.row(-1))
        two = nodes.row(2)
        has_two = nodes.add("Equal", nodes.add("Shape", actual), two)
        have_locations_two = nodes.add("Equal", nodes.add("Shape", axes_of_locations), two)
        both_have_two = nodes.add("And", has_two, have_locations_two)
        expected = nodes.add("Where", both_have_two, axes_of_locations, actual)
        return fail_unless_equal(nodes, shape, actual, expected, error)


def _write_merged_axes_of_points(nodes: Nodes, shape: str, *, end: int) -> str:
    """Write (B, Q, H, P) from a ``shape`` (B, Q, H, P, …) or (B, Q, H, L, P, …).

    Args:
        nodes: the list to write to.
        shape: the name of the shape.
        end: the axis after that of the points.
    """
    first_axes = nodes.add("Gather", shape, nodes.row(0, 1, 2))
    point_axes = nodes.add("Slice", shape, nodes.row(3), nodes.row(end))
    n_points = nodes.add("ReduceProd", point_axes, keepdims=1)
    return nodes.add("Concat", first_axes, n_points, axis=0)
