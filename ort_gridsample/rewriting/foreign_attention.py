"""Nodes for another package's deformable attention: checks of its inputs, and its operands.

The checks run with the model (:mod:`.run_checks`). Shapes that the model states are checked by
:mod:`ort_gridsample.detection.foreign_attention_checks`.
The signatures of the nodes are :data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..detection.foreign_attention_checks import are_contiguous
from ..detection.helper_nodes import FOUND_BY_SHAPE_CHECK
from ..detection.match import Match
from ..dialects.table import AttentionSignature
from ..errors import GridSampleError
from ..graph.element_types import elem_type
from ..graph.scope import Nodes
from ..spec import Shape
from .foreign_attention_facts import has_softmax, n_levels_of
from .match_facts import known_lengths, known_type
from .run_checks import fail_unless_equal

_INTEGER_INPUTS = ("spatial_shapes", "value_spatial_shapes", "level_start_index")
#: The axes of each floating-point input except attention_weights, whose axes depend on the
#: signature.
_AXES = {
    "value": "B, S, H, D",
    "sampling_locations": "B, Q, H, L, P, 2",
    "reference_points": "B, Q, 1, 2·G",
    "sampling_offsets": "B, Q, H, L·P·2",
}


@dataclass(frozen=True)
class AttentionOperands:
    """The names of the values that a deformable attention reads.

    Attributes:
        value: (B, S, H, D).
        level_table: (L, 2), the height and the width of each level. For this package's node, whose
            levels have r axes: (L, 1 + r), the number of points and the lengths of each level.
        starts: (L,), the first pixel of each level; empty if each level begins where the previous
            one ends.
        locations: (B, Q, H, L, P, 2), from 0 to 1. For this package's node, L and P may be one
            axis, and the last axis is r.
        weights: (B, Q, H, L, P), of the type of ``value``. For this package's node, L and P may be
            one axis.
    """

    value: str
    level_table: str
    starts: str
    locations: str
    weights: str


class ForeignOperands:
    """Writes the checks of the inputs of an attention node, and the nodes of its operands.

    A method ``write_x`` appends nodes and returns the name of the value x.

    Args:
        match: the attention node.
        signature: the signature of the node.
        nodes: the list to write to.
        for_package_op: whether an op of this package reads the operands. It checks most shapes
            itself.
        writes_checks: whether checks are written.
    """

    def __init__(
        self,
        match: Match,
        signature: AttentionSignature,
        nodes: Nodes,
        *,
        for_package_op: bool = False,
        writes_checks: bool = True,
    ) -> None:
        self._match = match
        self._signature = signature
        self._nodes = nodes
        self._for_package_op = for_package_op
        self._writes_checks = writes_checks
        self._lengths_input = signature.lengths_input
        # Input -> the name of its value; after a check, the name of the checked value.
        self._names = dict(zip(signature.inputs, match.node.input, strict=True))
        self._shapes: dict[str, str] = {}

    def write(self) -> AttentionOperands:
        """Write the checks and the operands."""
        if self._writes_checks:
            self._write_all_checks()
        if self._signature.has_offsets:
            starts = ""
            locations = self._write_locations()
            weights = self._write_softmax_weights()
        else:
            starts = self._names["level_start_index"]
            locations = self._names["sampling_locations"]
            weights = self._write_as_value_type("attention_weights")
        return AttentionOperands(
            value=self._names["value"],
            level_table=self._names[self._lengths_input],
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
        n_levels = n_levels_of(self._match)
        n_points = self._known_points(n_levels)
        points = [n_points] * n_levels if n_points is not None else []
        table = self._match.record.constants.get(self._lengths_input)
        if n_points is not None and table is not None:
            levels = np.insert(table.astype(np.int64), 0, n_points, axis=1)
            return nodes.constant(levels), points
        length = nodes.add("Gather", nodes.add("Shape", operands.locations), nodes.row(4))
        cell = nodes.add("Reshape", length, nodes.row(1, 1))
        column = nodes.add("Expand", cell, nodes.row(n_levels, 1))
        lengths = nodes.add("Cast", operands.level_table, to=TensorProto.INT64)
        return nodes.add("Concat", column, lengths, axis=1), points

    def _known_points(self, n_levels: int) -> int | None:
        """Return the number of points on each level if it is known."""
        shape = self._shape_in_all_calls("attention_weights")
        last = shape[-1] if shape is not None else None
        if not isinstance(last, int):
            return None
        return last // max(n_levels, 1) if self._signature.has_offsets else last

    def _shape_in_all_calls(self, argument: str) -> Shape | None:
        """Return the shape of an input if it is the same in all calls."""
        return self._match.record.shape_in_all_calls(argument)

    def _are_known(self, *arguments: str) -> bool:
        """Whether all lengths of inputs are known. They were checked when the model was read."""
        for argument in arguments:
            if known_lengths(self._shape_in_all_calls(argument)) is None:
                return False
        return True

    def _write_shape(self, argument: str) -> str:
        """Write the shape of an input."""
        if argument not in self._shapes:
            self._shapes[argument] = self._nodes.add("Shape", self._names[argument])
        return self._shapes[argument]

    def _write_axis_lengths(self, argument: str, *axes: int) -> str:
        """Write the lengths of some axes of an input."""
        return self._nodes.add("Gather", self._write_shape(argument), self._nodes.row(*axes))

    def _write_fail_unless_equal(
        self,
        passthrough: str,
        actual: str,
        expected: str,
        argument: str,
        expectation: str,
    ) -> str:
        """Like :func:`fail_unless_equal`, but with an error about the shape of an input."""
        error = GridSampleError(
            self._match.record.where, argument, FOUND_BY_SHAPE_CHECK, expectation
        )
        return fail_unless_equal(self._nodes, passthrough, actual, expected, error)

    def _write_check_of_shape(self, argument: str, expected: str, expectation: str) -> None:
        """Write a check that the shape of an input is ``expected``."""
        shape = self._write_shape(argument)
        checked = self._write_fail_unless_equal(shape, shape, expected, argument, expectation)
        self._names[argument] = self._nodes.add("Reshape", self._names[argument], checked)

    def _write_all_checks(self) -> None:
        """Write the checks of all inputs that the reader of the operands does not check itself."""
        self._write_check_of_ranks()
        self._write_check_of_lengths()
        if self._signature.has_offsets:
            # The locations are computed from the offsets, and so no reader can check these.
            self._write_check_of_offsets()
        elif self._for_package_op:
            # The op checks locations and weights, but gets no starts.
            self._write_check_of_starts()
        else:
            # GridSamples would read wrong points without an error.
            self._write_check_of_locations()
        if not self._for_package_op:
            # An op of this package checks the pixels itself.
            self._write_check_of_pixels()

    def _write_check_of_ranks(self) -> None:
        """Write checks of unknown ranks, because the other checks read axes by their index."""
        nodes = self._nodes
        weights_axes = "B, Q, H, L·P" if self._signature.has_offsets else "B, Q, H, L, P"
        for argument in self._signature.inputs:
            if argument in _INTEGER_INPUTS or self._shape_in_all_calls(argument) is not None:
                continue
            axes = _AXES.get(argument, weights_axes)
            shape = self._write_shape(argument)
            rank = nodes.add("Shape", shape)
            expected = nodes.row(axes.count(",") + 1)
            expectation = f"shape ({axes})"
            checked = self._write_fail_unless_equal(shape, rank, expected, argument, expectation)
            self._shapes[argument] = checked
            self._names[argument] = nodes.add("Reshape", self._names[argument], checked)

    def _write_check_of_lengths(self) -> None:
        """Write a check that no length of a level is negative."""
        nodes = self._nodes
        argument = self._lengths_input
        if argument in self._match.record.constants:
            return
        flat = nodes.add("Reshape", self._names[argument], nodes.row(-1))
        expected = nodes.add("Abs", flat)
        found = "a negative length"
        expected_lengths = "lengths of at least 0"
        where = self._match.record.where
        error = GridSampleError(where, argument, found, expected_lengths, verb="contains")
        checked = fail_unless_equal(nodes, flat, flat, expected, error)
        self._names[argument] = nodes.add("Reshape", checked, nodes.row(-1, 2))

    def _write_check_of_locations(self) -> None:
        """Write checks of the shapes of locations and weights."""
        nodes = self._nodes
        if self._are_known("value", "sampling_locations", "attention_weights"):
            return
        parts = [
            self._write_axis_lengths("value", 0),
            self._write_axis_lengths("sampling_locations", 1),
            self._write_axis_lengths("value", 2),
            nodes.row(n_levels_of(self._match)),
            self._write_axis_lengths("sampling_locations", 4),
            nodes.row(2),
        ]
        expected = nodes.add("Concat", *parts, axis=0)
        expectation = "shape (B, Q, H, L, P, 2), as value is of shape (B, S, H, D)"
        self._write_check_of_shape("sampling_locations", expected, expectation)
        expected = self._write_axis_lengths("sampling_locations", 0, 1, 2, 3, 4)
        expectation = "all axes but the last of sampling_locations"
        self._write_check_of_shape("attention_weights", expected, expectation)

    def _write_check_of_offsets(self) -> None:
        """Write checks of the shapes of offsets, weights and reference points."""
        nodes = self._nodes
        offsets = "sampling_offsets"
        weights = "attention_weights"
        if self._are_known("value", "reference_points", offsets, weights):
            return
        batch = self._write_axis_lengths("value", 0)
        heads = self._write_axis_lengths("value", 2)
        queries = self._write_axis_lengths(offsets, 1)
        points = self._write_axis_lengths(weights, 3)
        coordinates = nodes.add("Mul", points, nodes.row(2))
        expected = nodes.add("Concat", batch, queries, heads, coordinates, axis=0)
        expectation = "shape (B, Q, H, L·P·2), as value is of shape (B, S, H, D)"
        self._write_check_of_shape(offsets, expected, expectation)
        expected = nodes.add("Concat", batch, queries, heads, points, axis=0)
        expectation = "shape (B, Q, H, L·P), as value is of shape (B, S, H, D)"
        self._write_check_of_shape(weights, expected, expectation)
        last = self._write_axis_lengths("reference_points", 3)
        expected = nodes.add("Concat", batch, queries, nodes.row(1), last, axis=0)
        expectation = "shape (B, Q, 1, 2·G), of the batch and queries"
        self._write_check_of_shape("reference_points", expected, expectation)

    def _write_check_of_pixels(self) -> None:
        """Write a check that the levels are the pixels of ``value``.

        If other starts are constant, the levels must only lie inside these pixels.
        """
        nodes = self._nodes
        known_end = self._known_last_end()
        value_shape = self._shape_in_all_calls("value")
        n_pixels = value_shape[1] if value_shape is not None else None
        if known_end is not None and isinstance(n_pixels, int):
            return  # checked when the model was read
        end = self._write_last_end() if known_end is None else nodes.row(known_end)
        pixels = self._write_axis_lengths("value", 1)
        if self._has_known_gaps():
            is_short = nodes.add("Less", pixels, end)
            pixels = nodes.add("Where", is_short, pixels, end)
        row = self._write_shape("value")
        expectation = f"shape (B, S, H, D), with the S pixels of {self._lengths_input}"
        checked = self._write_fail_unless_equal(row, pixels, end, "value", expectation)
        self._names["value"] = nodes.add("Reshape", self._names["value"], checked)

    def _has_starts(self) -> bool:
        """Whether an input has the first pixel of each level."""
        return "level_start_index" in self._signature.inputs

    def _has_known_gaps(self) -> bool:
        """Whether lengths and starts are constant, and a level does not follow the previous one."""
        constants = self._match.record.constants
        table = constants.get(self._lengths_input)
        starts = constants.get("level_start_index")
        return table is not None and starts is not None and not are_contiguous(table, starts)

    def _known_last_end(self) -> int | None:
        """Return the first pixel after all levels if lengths and starts are constant."""
        constants = self._match.record.constants
        table = constants.get(self._lengths_input)
        starts = constants.get("level_start_index")
        if table is None or (self._has_starts() and starts is None):
            return None
        areas = table.prod(1, dtype=np.int64)
        if starts is None:
            return int(areas.sum())
        ends = np.asarray(starts + areas, np.int64)
        return max(ends.tolist(), default=0)

    def _write_last_end(self) -> str:
        """Write the first pixel after all levels, (1,)."""
        nodes = self._nodes
        areas = self._write_areas(self._names[self._lengths_input])
        if self._has_starts():
            starts = nodes.add("Cast", self._names["level_start_index"], to=TensorProto.INT64)
            ends = nodes.add("Add", starts, areas)
        else:
            ends = nodes.add("CumSum", areas, nodes.constant(0))
        return nodes.add("Reshape", nodes.add("ReduceMax", ends, keepdims=0), nodes.row(1))

    def _write_areas(self, lengths: str) -> str:
        """Write the number of pixels of each level, (L,)."""
        nodes = self._nodes
        wide = nodes.add("Cast", lengths, to=TensorProto.INT64)
        heights = nodes.add("Gather", wide, nodes.constant(0), axis=1)
        widths = nodes.add("Gather", wide, nodes.constant(1), axis=1)
        return nodes.add("Mul", heights, widths)

    def _write_check_of_starts(self) -> None:
        """Write a check that each level begins where the previous one ends."""
        nodes = self._nodes
        if {self._lengths_input, "level_start_index"} <= self._match.record.constants.keys():
            return  # checked when the model was read
        lengths = self._names[self._lengths_input]
        starts = self._names["level_start_index"]
        areas = self._write_areas(lengths)
        expected = nodes.add("CumSum", areas, nodes.constant(0), exclusive=1)
        actual = nodes.add("Cast", starts, to=TensorProto.INT64)
        # Their number is compared too: Equal would broadcast the start of a single level.
        actual = nodes.add("Concat", nodes.add("Shape", actual), actual, axis=0)
        expected = nodes.add("Concat", nodes.add("Shape", expected), expected, axis=0)
        expectation = "the number of pixels before each level"
        checked = self._write_fail_unless_equal(
            lengths, actual, expected, argument="level_start_index", expectation=expectation
        )
        self._names[self._lengths_input] = nodes.add("Reshape", checked, nodes.row(-1, 2))

    def _write_as_value_type(self, argument: str) -> str:
        """Write an input as the type of ``value``, if both types are known."""
        types = self._match.record.types
        if types[argument] and types["value"] and types[argument] != types["value"]:
            to = elem_type(known_type(self._match, "value"))
            return self._nodes.add("Cast", self._names[argument], to=to)
        return self._names[argument]

    def _write_at_least_single(self, argument: str) -> tuple[str, str]:
        """Write an input in at least single precision; return its name and its type."""
        type_name = known_type(self._match, argument)
        if type_name in ("float32", "float64"):
            return self._names[argument], type_name
        single = self._nodes.add("Cast", self._names[argument], to=TensorProto.FLOAT)
        return single, "float32"

    def _write_locations(self) -> str:
        """Write the locations (B, Q, H, L, P, 2) from reference points and offsets in pixels.

        Point p is relative to reference point p modulo G.
        """
        nodes = self._nodes
        n_levels = n_levels_of(self._match)
        references, type_name = self._write_at_least_single("reference_points")
        offsets, offsets_type = self._write_at_least_single("sampling_offsets")
        if type_name != offsets_type:
            found = f"of type {offsets_type}"
            expected = f"type {type_name}, as reference_points"
            raise GridSampleError(self._match.record.where, "sampling_offsets", found, expected)
        groups = self._write_groups()
        group_size = nodes.add("Div", self._write_points_per_level(n_levels), groups)
        first_axes = self._first_axes_of_shape("sampling_offsets", n_levels)
        shape = nodes.add("Concat", *first_axes, group_size, groups, nodes.row(2), axis=0)
        offsets = nodes.add("Reshape", offsets, shape)
        first_axes = [self._write_axis_lengths("reference_points", 0, 1), nodes.row(1, 1, 1)]
        shape = nodes.add("Concat", *first_axes, groups, nodes.row(2), axis=0)
        references = nodes.add("Reshape", references, shape)
        sizes = self._write_widths_and_heights(n_levels, type_name)
        locations = nodes.add("Add", references, nodes.add("Div", offsets, sizes))
        points = self._write_points_per_level(n_levels)
        first_axes = self._first_axes_of_shape("sampling_offsets", n_levels)
        shape = nodes.add("Concat", *first_axes, points, nodes.row(2), axis=0)
        return nodes.add("Reshape", locations, shape)

    def _write_points_per_level(self, n_levels: int) -> str:
        """Write the number P of points on each level, (1,), of a node with offsets."""
        n_points = self._known_points(n_levels)
        if n_points is not None:
            return self._nodes.row(n_points)
        points = self._write_axis_lengths("attention_weights", 3)
        return self._nodes.add("Div", points, self._nodes.row(n_levels))

    def _first_axes_of_shape(self, argument: str, n_levels: int) -> list[str]:
        """Return the parts B, Q, H and L of a Reshape's shape.

        If P is known, zeros copy B, Q and H. Otherwise P is computed, and so B, Q and H are, too:
        onnxruntime replaces a single computed length of a Concat by -1, which fails without
        elements.
        """
        if self._known_points(n_levels) is not None:
            return [self._nodes.row(0, 0, 0, n_levels)]
        return [self._write_axis_lengths(argument, 0, 1, 2), self._nodes.row(n_levels)]

    def _write_groups(self) -> str:
        """Write the number G of groups, (1,)."""
        shape = self._shape_in_all_calls("reference_points")
        if shape is not None and isinstance(shape[3], int):
            return self._nodes.row(shape[3] // 2)
        coordinates = self._write_axis_lengths("reference_points", 3)
        return self._nodes.add("Div", coordinates, self._nodes.row(2))

    def _write_widths_and_heights(self, n_levels: int, type_name: str) -> str:
        """Write the width and the height of each level, (1, 1, 1, L, 1, 1, 2)."""
        nodes = self._nodes
        shape = (1, 1, 1, n_levels, 1, 1, 2)
        table = self._match.record.constants.get(self._lengths_input)
        if table is not None:
            return nodes.constant(table[:, ::-1].astype(type_name).reshape(shape))
        lengths = self._names[self._lengths_input]
        widths_first = nodes.add("Gather", lengths, nodes.row(1, 0), axis=1)
        sizes = nodes.add("Cast", widths_first, to=elem_type(type_name))
        return nodes.add("Reshape", sizes, nodes.row(*shape))

    def _write_softmax_weights(self) -> str:
        """Write the weights (B, Q, H, L, P).

        The plugins apply a softmax. Their first releases did not, and a Softmax precedes the node.
        """
        nodes = self._nodes
        n_levels = n_levels_of(self._match)
        if has_softmax(self._match.scope, self._match.record.values["attention_weights"]):
            weights = self._write_as_value_type("attention_weights")
        else:
            logits, type_name = self._write_at_least_single("attention_weights")
            weights = nodes.add("Softmax", logits, axis=3)
            value_type = known_type(self._match, "value")
            if value_type != type_name:
                weights = nodes.add("Cast", weights, to=elem_type(value_type))
        points = self._write_points_per_level(n_levels)
        first_axes = self._first_axes_of_shape("attention_weights", n_levels)
        shape = nodes.add("Concat", *first_axes, points, axis=0)
        return nodes.add("Reshape", weights, shape)
