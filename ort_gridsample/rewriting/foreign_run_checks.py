"""Nodes that check the inputs of another package's deformable attention in a run.

The nodes that read an input afterwards must read it through its check (:mod:`.run_checks`).
Shapes that the model states are checked by
:mod:`ort_gridsample.detection.foreign_attention_checks` when the model is read.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from onnx import TensorProto

from ..detection.foreign_attention_checks import are_contiguous
from ..detection.helper_nodes import FOUND_BY_SHAPE_CHECK
from ..detection.match import Match
from ..dialects.table import AttentionSignature
from ..errors import GridSampleError
from ..graph.new_nodes import Nodes
from .foreign_inputs import ForeignInputs
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


class ForeignChecks(ABC):
    """The checks of an attention node's inputs that all readers of these inputs need.

    Args:
        match: the attention node.
        signature: the signature of the node.
        nodes: the list to write to.
    """

    def __init__(self, match: Match, signature: AttentionSignature, nodes: Nodes) -> None:
        self._match = match
        self._signature = signature
        self._nodes = nodes
        self._inputs = ForeignInputs(match, signature, nodes)

    def write(self) -> ForeignInputs:
        """Write the checks; return the inputs, whose names are those of the checked values."""
        self._check_ranks()
        self._check_lengths()
        if self._signature.has_offsets:
            # The locations are computed from the offsets, and so no reader can check these.
            self._check_offsets()
        self._check_for_reader()
        return self._inputs

    @abstractmethod
    def _check_for_reader(self) -> None:
        """Write the checks that the reader of the inputs does not make itself."""

    def _fail_unless_equal(
        self,
        passthrough: str,
        actual: str,
        expected: str,
        argument: str,
        expectation: str,
    ) -> str:
        """Like :func:`fail_unless_equal`, but with an error about the shape of an input."""
        where = self._match.record.where
        error = GridSampleError(where, argument, FOUND_BY_SHAPE_CHECK, expectation)
        return fail_unless_equal(self._nodes, passthrough, actual, expected, error)

    def _check_shape(self, argument: str, expected: str, expectation: str) -> None:
        """Write a check that the shape of an input is ``expected``."""
        shape = self._inputs.write_shape(argument)
        checked = self._fail_unless_equal(shape, shape, expected, argument, expectation)
        self._inputs.read_through_shape_check(argument, checked)

    def _check_ranks(self) -> None:
        """Write checks of unknown ranks, because the other checks read axes by their index."""
        weights_axes = "B, Q, H, L·P" if self._signature.has_offsets else "B, Q, H, L, P"
        for argument in self._signature.inputs:
            if argument in _INTEGER_INPUTS or self._inputs.shape(argument) is not None:
                continue
            axes = _AXES.get(argument, weights_axes)
            shape = self._inputs.write_shape(argument)
            rank = self._nodes.add("Shape", shape)
            expected_rank = self._nodes.row(axes.count(",") + 1)
            checked = self._fail_unless_equal(
                shape, rank, expected_rank, argument, f"shape ({axes})"
            )
            self._inputs.read_through_rank_check(argument, checked)

    def _check_lengths(self) -> None:
        """Write a check that no length of a level is negative."""
        nodes = self._nodes
        if self._inputs.known_level_table is not None:
            return
        argument = self._signature.lengths_input
        error = GridSampleError(
            self._match.record.where,
            argument,
            "a negative length",
            "lengths of at least 0",
            verb="contains",
        )
        flat = nodes.add("Reshape", self._inputs.level_table, nodes.row(-1))
        checked = fail_unless_equal(nodes, flat, flat, nodes.add("Abs", flat), error)
        self._inputs.names[argument] = nodes.add("Reshape", checked, nodes.row(-1, 2))

    def _check_offsets(self) -> None:
        """Write checks of the shapes of offsets, weights and reference points."""
        nodes = self._nodes
        inputs = self._inputs
        offsets = "sampling_offsets"
        weights = "attention_weights"
        if inputs.has_known_lengths("value", "reference_points", offsets, weights):
            return
        batch = inputs.write_axis_lengths("value", 0)
        heads = inputs.write_axis_lengths("value", 2)
        queries = inputs.write_axis_lengths(offsets, 1)
        points = inputs.write_axis_lengths(weights, 3)
        coordinates = nodes.add("Mul", points, nodes.row(2))
        expected = nodes.add("Concat", batch, queries, heads, coordinates, axis=0)
        expectation = "shape (B, Q, H, L·P·2), as value is of shape (B, S, H, D)"
        self._check_shape(offsets, expected, expectation)
        expected = nodes.add("Concat", batch, queries, heads, points, axis=0)
        expectation = "shape (B, Q, H, L·P), as value is of shape (B, S, H, D)"
        self._check_shape(weights, expected, expectation)
        last = inputs.write_axis_lengths("reference_points", 3)
        expected = nodes.add("Concat", batch, queries, nodes.row(1), last, axis=0)
        expectation = "shape (B, Q, 1, 2·G), of the batch and queries"
        self._check_shape("reference_points", expected, expectation)

    def _write_areas(self) -> str:
        """Write the number of pixels of each level, (L,), and return its name."""
        nodes = self._nodes
        wide = nodes.add("Cast", self._inputs.level_table, to=TensorProto.INT64)
        heights = nodes.add("Gather", wide, nodes.constant(0), axis=1)
        widths = nodes.add("Gather", wide, nodes.constant(1), axis=1)
        return nodes.add("Mul", heights, widths)


class ChecksForPackageOp(ForeignChecks):
    """The checks for an op of this package, which checks pixels, locations and weights itself."""

    def _check_for_reader(self) -> None:
        if self._inputs.has_starts:
            self._check_starts()

    def _check_starts(self) -> None:
        """Write a check that each level begins where the previous one ends.

        The op gets no starts.
        """
        nodes = self._nodes
        inputs = self._inputs
        if inputs.known_level_table is not None and inputs.known_starts is not None:
            return  # checked when the model was read
        areas = self._write_areas()
        expected = nodes.add("CumSum", areas, nodes.constant(0), exclusive=1)
        actual = nodes.add("Cast", inputs.names["level_start_index"], to=TensorProto.INT64)
        # Their number is compared too: Equal would broadcast the start of a single level.
        actual = nodes.add("Concat", nodes.add("Shape", actual), actual, axis=0)
        expected = nodes.add("Concat", nodes.add("Shape", expected), expected, axis=0)
        checked = self._fail_unless_equal(
            inputs.level_table,
            actual,
            expected,
            argument="level_start_index",
            expectation="the number of pixels before each level",
        )
        table_shape = nodes.row(-1, 2)
        inputs.names[self._signature.lengths_input] = nodes.add("Reshape", checked, table_shape)


class ChecksForGridSamples(ForeignChecks):
    """The checks for GridSamples, which would read wrong points and pixels without an error."""

    def _check_for_reader(self) -> None:
        if not self._signature.has_offsets:
            self._check_locations()
        self._check_pixels()

    def _check_locations(self) -> None:
        """Write checks of the shapes of locations and weights."""
        nodes = self._nodes
        inputs = self._inputs
        locations = "sampling_locations"
        weights = "attention_weights"
        if inputs.has_known_lengths("value", locations, weights):
            return
        expected_lengths = [
            inputs.write_axis_lengths("value", 0),
            inputs.write_axis_lengths(locations, 1),
            inputs.write_axis_lengths("value", 2),
            nodes.row(inputs.n_levels),
            inputs.write_axis_lengths(locations, 4),
            nodes.row(2),
        ]
        expected = nodes.add("Concat", *expected_lengths, axis=0)
        expectation = "shape (B, Q, H, L, P, 2), as value is of shape (B, S, H, D)"
        self._check_shape(locations, expected, expectation)
        expected = inputs.write_axis_lengths(locations, 0, 1, 2, 3, 4)
        self._check_shape(weights, expected, "all axes but the last of sampling_locations")

    def _check_pixels(self) -> None:
        """Write a check that the levels are the pixels of ``value``.

        If other starts are constant, the levels must only lie inside these pixels.
        """
        nodes = self._nodes
        known_end = self._known_last_end()
        value_shape = self._inputs.shape("value")
        n_pixels = value_shape[1] if value_shape is not None else None
        if known_end is not None and isinstance(n_pixels, int):
            return  # checked when the model was read
        end = self._write_last_end() if known_end is None else nodes.row(known_end)
        pixels = self._inputs.write_axis_lengths("value", 1)
        if self._has_known_gaps():
            is_short = nodes.add("Less", pixels, end)
            pixels = nodes.add("Where", is_short, pixels, end)
        shape = self._inputs.write_shape("value")
        expectation = f"shape (B, S, H, D), with the S pixels of {self._signature.lengths_input}"
        checked = self._fail_unless_equal(shape, pixels, end, "value", expectation)
        self._inputs.read_through_shape_check("value", checked)

    def _has_known_gaps(self) -> bool:
        """Whether lengths and starts are constant, and a level does not follow the previous one."""
        table = self._inputs.known_level_table
        starts = self._inputs.known_starts
        return table is not None and starts is not None and not are_contiguous(table, starts)

    def _known_last_end(self) -> int | None:
        """Return the first pixel after all levels if lengths and starts are constant."""
        table = self._inputs.known_level_table
        starts = self._inputs.known_starts
        if table is None or (self._inputs.has_starts and starts is None):
            return None
        areas = table.prod(1, dtype=np.int64)
        if starts is None:
            return int(areas.sum())
        ends = np.asarray(starts + areas, np.int64)
        return max(ends.tolist(), default=0)

    def _write_last_end(self) -> str:
        """Write the first pixel after all levels, (1,), and return its name."""
        nodes = self._nodes
        areas = self._write_areas()
        if self._inputs.has_starts:
            starts = self._inputs.names["level_start_index"]
            ends = nodes.add("Add", nodes.add("Cast", starts, to=TensorProto.INT64), areas)
        else:
            ends = nodes.add("CumSum", areas, nodes.constant(0))
        return nodes.add("Reshape", nodes.add("ReduceMax", ends, keepdims=0), nodes.row(1))
