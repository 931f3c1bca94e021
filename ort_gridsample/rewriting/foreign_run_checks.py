"""Nodes that check the inputs of another package's deformable attention in a run.

The nodes that read an input afterwards must read it through its check (:mod:`.run_checks`).
Shapes that the model states are checked by
:mod:`ort_gridsample.detection.foreign_attention_checks` when the model is read.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..detection.foreign_attention_checks import are_contiguous
from ..detection.helper_nodes import FOUND_BY_SHAPE_CHECK
from ..detection.match import Match
from ..dialects.table import AttentionSignature
from ..errors import GridSampleError
from ..graph.expressions import DimLike, Expressions, Tensor
from .foreign_inputs import ForeignInputs

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
        e: writes the nodes.
    """

    def __init__(self, match: Match, signature: AttentionSignature, e: Expressions) -> None:
        self._match = match
        self._signature = signature
        self._e = e
        self._inputs = ForeignInputs(match, signature, e)

    def checked_inputs(self) -> ForeignInputs:
        """Write the checks; return the inputs, whose values are checked."""
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

    def _require_same(
        self, x: Tensor, actual: Tensor, expected: Tensor, argument: str, expectation: str
    ) -> Tensor:
        """Return ``x`` after a check of two rows, with an error about the shape of an input."""
        where = self._match.record.where
        error = GridSampleError(where, argument, FOUND_BY_SHAPE_CHECK, expectation)
        return self._e.require_same(x, actual, expected, str(error))

    def _check_shape(self, argument: str, expected: Tensor, expectation: str) -> None:
        """Write a check that the shape of an input is ``expected``."""
        shape = self._e.shape_of(self._inputs.values[argument])
        checked = self._require_same(shape, shape, expected, argument, expectation)
        self._inputs.read_through_shape(argument, checked)

    def _check_ranks(self) -> None:
        """Write checks of unknown ranks, because the other checks read axes by their index."""
        e = self._e
        weights_axes = "B, Q, H, L·P" if self._signature.has_offsets else "B, Q, H, L, P"
        for argument in self._signature.inputs:
            if argument in _INTEGER_INPUTS or self._inputs.shape(argument) is not None:
                continue
            axes = _AXES.get(argument, weights_axes)
            shape = e.shape_of(self._inputs.values[argument])
            ranks = e.shape_of(shape), e.row(axes.count(",") + 1)
            checked = self._require_same(shape, *ranks, argument, f"shape ({axes})")
            self._inputs.read_through_shape(argument, checked)

    def _check_lengths(self) -> None:
        """Write a check that no length of a level is negative."""
        e = self._e
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
        flat = e.op("Reshape", self._inputs.level_table, e.row(-1))
        checked = e.require_same(flat, flat, e.abs(flat), str(error))
        self._inputs.values[argument] = e.op("Reshape", checked, e.row(-1, 2))

    def _check_offsets(self) -> None:
        """Write checks of the shapes of offsets, weights and reference points."""
        e = self._e
        inputs = self._inputs
        offsets = "sampling_offsets"
        weights = "attention_weights"
        if inputs.has_known_lengths("value", "reference_points", offsets, weights):
            return
        batch = inputs.lengths("value", 0)
        heads = inputs.lengths("value", 2)
        queries = inputs.lengths(offsets, 1)
        points = inputs.lengths(weights, 3)
        expected = e.shape([batch, queries, heads, points * 2])
        expectation = "shape (B, Q, H, L·P·2), as value is of shape (B, S, H, D)"
        self._check_shape(offsets, expected, expectation)
        expected = e.shape([batch, queries, heads, points])
        expectation = "shape (B, Q, H, L·P), as value is of shape (B, S, H, D)"
        self._check_shape(weights, expected, expectation)
        last = inputs.lengths("reference_points", 3)
        expected = e.shape([batch, queries, 1, last])
        expectation = "shape (B, Q, 1, 2·G), of the batch and queries"
        self._check_shape("reference_points", expected, expectation)


class ChecksForPackageOp(ForeignChecks):
    """The checks for an op of this package, which checks pixels, locations and weights itself."""

    def _check_for_reader(self) -> None:
        if self._inputs.starts is not None:
            self._check_starts(self._inputs.starts)

    def _check_starts(self, starts: Tensor) -> None:
        """Write a check that each level begins where the previous one ends.

        The op gets no starts.
        """
        e = self._e
        inputs = self._inputs
        if inputs.known_level_table is not None and inputs.known_starts is not None:
            return  # checked when the model was read
        expected = e.op("CumSum", inputs.areas(), e.constant(0), exclusive=1)
        actual = starts.astype("int64")
        checked = self._require_same(
            inputs.level_table,
            # Their number is compared too: Equal would broadcast the start of a single level.
            e.concatenate([e.shape_of(actual), actual]),
            e.concatenate([e.shape_of(expected), expected]),
            argument="level_start_index",
            expectation="the number of pixels before each level",
        )
        inputs.values[self._signature.lengths_input] = e.op("Reshape", checked, e.row(-1, 2))


class ChecksForGridSamples(ForeignChecks):
    """The checks for GridSamples, which would read wrong points and pixels without an error."""

    def _check_for_reader(self) -> None:
        if not self._signature.has_offsets:
            self._check_locations()
        self._check_pixels()

    def _check_locations(self) -> None:
        """Write checks of the shapes of locations and weights."""
        e = self._e
        inputs = self._inputs
        locations = "sampling_locations"
        weights = "attention_weights"
        if inputs.has_known_lengths("value", locations, weights):
            return
        expected_lengths: list[DimLike] = [
            inputs.lengths("value", 0),
            inputs.lengths(locations, 1),
            inputs.lengths("value", 2),
            inputs.n_levels,
            inputs.lengths(locations, 4),
            2,
        ]
        expectation = "shape (B, Q, H, L, P, 2), as value is of shape (B, S, H, D)"
        self._check_shape(locations, e.shape(expected_lengths), expectation)
        expected = inputs.lengths(locations, 0, 1, 2, 3, 4)
        self._check_shape(weights, expected, "all axes but the last of sampling_locations")

    def _check_pixels(self) -> None:
        """Write a check that the levels are the pixels of ``value``.

        If other starts are constant, the levels must only lie inside these pixels.
        """
        e = self._e
        known_end = self._known_last_end()
        value_shape = self._inputs.shape("value")
        n_pixels = value_shape[1] if value_shape is not None else None
        if known_end is not None and isinstance(n_pixels, int):
            return  # checked when the model was read
        end = self._last_end() if known_end is None else e.row(known_end)
        pixels = self._inputs.lengths("value", 1)
        if self._has_known_gaps():
            pixels = e.where(e.less(pixels, end), pixels, end)
        shape = e.shape_of(self._inputs.values["value"])
        expectation = f"shape (B, S, H, D), with the S pixels of {self._signature.lengths_input}"
        checked = self._require_same(shape, pixels, end, "value", expectation)
        self._inputs.read_through_shape("value", checked)

    def _has_known_gaps(self) -> bool:
        """Whether lengths and starts are constant, and a level does not follow the previous one."""
        table = self._inputs.known_level_table
        starts = self._inputs.known_starts
        return table is not None and starts is not None and not are_contiguous(table, starts)

    def _known_last_end(self) -> int | None:
        """Return the first pixel after all levels if lengths and starts are constant."""
        table = self._inputs.known_level_table
        starts = self._inputs.known_starts
        if table is None or (self._inputs.starts is not None and starts is None):
            return None
        areas = table.prod(1, dtype=np.int64)
        if starts is None:
            return int(areas.sum())
        ends = np.asarray(starts + areas, np.int64)
        return max(ends.tolist(), default=0)

    def _last_end(self) -> Tensor:
        """Return the first pixel after all levels, (1,)."""
        e = self._e
        areas = self._inputs.areas()
        starts = self._inputs.starts
        if starts is not None:
            ends = starts.astype("int64") + areas
        else:
            ends = e.op("CumSum", areas, e.constant(0))
        return e.op("Reshape", e.op("ReduceMax", ends, keepdims=0), e.row(1))
