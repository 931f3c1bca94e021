"""Nodes that check shapes in a run, where the model does not state them.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..detection.helper_nodes import FOUND_BY_SHAPE_CHECK
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..errors import GridSampleError
from ..graph.new_nodes import Nodes
from ..spec import Shape
from .match_facts import known_lengths

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


def write_checked_operands(match: Match, nodes: Nodes) -> tuple[str, str]:
    """Write checks of the operands of this package's deformable attention.

    Args:
        match: the deformable attention.
        nodes: the list to write to.

    Returns:
        The names of the locations and of the weights, after the checks.
    """
    record = match.record
    shapes: list[Shape | None] = []
    for argument in ("value", "sampling_locations", "attention_weights"):
        shapes += record.shapes_by_call(argument)
    locations = record.values["sampling_locations"]
    weights = record.values["attention_weights"]
    if all(known_lengths(shape) is not None for shape in shapes):
        return locations, weights
    checked_locations = _write_checked_locations(record, nodes, record.values["value"], locations)
    checked_weights = _write_checked_weights(record, nodes, checked_locations, weights)
    return checked_locations, checked_weights


def _write_checked_locations(record: NodeRecord, nodes: Nodes, value: str, locations: str) -> str:
    """Write a check that locations have the batch and the heads of value."""
    shape = nodes.add("Shape", locations)
    axes = nodes.row(0, 2)
    actual = nodes.add("Gather", shape, axes)
    expected = nodes.add("Gather", nodes.add("Shape", value), axes)
    expectation = "shape (B, Q, H, L, P, r), with the B and H of value"
    error = GridSampleError(record.where, "sampling_locations", FOUND_BY_SHAPE_CHECK, expectation)
    checked = fail_unless_equal(nodes, shape, actual, expected, error)
    return nodes.add("Reshape", locations, checked)


def _write_checked_weights(record: NodeRecord, nodes: Nodes, locations: str, weights: str) -> str:
    """Write a check that weights have the axes of locations.

    Weights (B, 1, H, P) are those of one query for all queries.
    """
    shape = nodes.add("Shape", weights)
    actual = _write_merged_axes_of_points(nodes, shape, end=_END)
    expected = _write_merged_axes_of_points(nodes, nodes.add("Shape", locations), end=-1)
    varies_in_rank = record.varies_in_rank("attention_weights")
    may_be_of_one_query = varies_in_rank or record.ranks["attention_weights"] != (5,)
    if may_be_of_one_query:
        ones = nodes.row(1, 1, 1, 1)
        is_query_axis = nodes.constant(np.array([False, True, False, False]))
        is_one_query = nodes.add("And", nodes.add("Equal", actual, ones), is_query_axis)
        expected = nodes.add("Where", is_one_query, actual, expected)
    expectation = "all axes but the last of sampling_locations"
    error = GridSampleError(record.where, "attention_weights", FOUND_BY_SHAPE_CHECK, expectation)
    checked = fail_unless_equal(nodes, shape, actual, expected, error)
    return nodes.add("Reshape", weights, checked)


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
