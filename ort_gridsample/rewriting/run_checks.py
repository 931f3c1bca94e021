"""Nodes that check shapes in a run, where the model does not state them.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..detection.match import Match
from ..graph.expressions import Tensor
from ..graph.run_errors import require_same, shape_error
from ..spec import Shape, known_lengths
from .attention_call import AttentionCall

#: The end of a Slice that goes to the end of an axis.
_END = np.iinfo(np.int64).max


def checked_call(match: Match, call: AttentionCall) -> AttentionCall:
    """Return the call of this package's node after checks of the shapes of its operands."""
    return _OperandChecks(match, call).checked()


class _OperandChecks:
    """The checks of :func:`ort_gridsample.functions.validation.check_attention_shapes` in a run.

    Args:
        match: the deformable attention.
    """

    def __init__(self, match: Match, call: AttentionCall) -> None:
        self._record = match.record
        self._call = call
        self._e = call.value.owner
        self._known_lengths = call.levels.known_lengths
        self._points = call.levels.points or ()
        self._r = (match.record.spatial_axes or (2,))[0]

    def checked(self) -> AttentionCall:
        """Return the call after the checks that were not made when the model was read."""
        shapes: list[Shape | None] = []
        for argument in ("value", "sampling_locations", "attention_weights"):
            shapes += self._record.shapes_by_call(argument)
        are_shapes_known = all(known_lengths(shape) is not None for shape in shapes)
        call = self._call
        if are_shapes_known and self._known_lengths is not None:
            return call
        locations = self._checked_locations(call.value, call.locations)
        return replace(
            call,
            value=self._checked_value(call.value),
            locations=locations,
            weights=self._checked_weights(locations, call.weights),
        )

    def _require_same(
        self, shape: Tensor, actual: Tensor, expected: Tensor, argument: str, expectation: str
    ) -> Tensor:
        """Return ``shape`` after a check of two rows, with an error about an operand's shape."""
        error = shape_error(self._record.where, argument, expectation)
        return require_same(shape, actual, expected, error)

    def _known_rank(self, argument: str) -> int | None:
        """Return the rank of an operand if it is the same in all calls."""
        ranks = self._record.ranks[argument]
        return ranks[0] if len(ranks) == 1 and not self._record.varies_in_rank(argument) else None

    def _checked_value(self, value: Tensor) -> Tensor:
        """Return value after a check that the levels have its pixels."""
        n_pixels = self._record.length_in_all_calls("value", 1)
        if self._known_lengths is not None and isinstance(n_pixels, int):
            return value
        e = self._e
        argument = "value"
        expectation = "shape (B, S, H, D), with the S pixels of levels"
        shape = e.shape_of(value)
        if self._known_rank(argument) is None:
            rank = e.shape_of(shape)
            shape = self._require_same(shape, rank, e.row(4), argument, expectation)
        pixels = e.gather(shape, [1])
        shape = self._require_same(shape, pixels, self._pixel_count(), argument, expectation)
        return e.op("Reshape", value, shape)

    def _pixel_count(self) -> Tensor:
        """Return the number of pixels of all levels, (1,)."""
        e = self._e
        if self._known_lengths is not None:
            return e.row(sum(math.prod(row) for row in self._known_lengths.tolist()))
        lengths = self._call.levels.lengths.astype("int64")
        columns = [e.gather(lengths, axis, axis=1) for axis in range(self._r)]
        return e.op("ReduceSum", math.prod(columns[1:], start=columns[0]), keepdims=1)

    def _checked_shape(
        self, argument: str, value: Tensor, ranks: Sequence[int], axes: str
    ) -> Tensor:
        """Return the shape of an operand, after a check of its rank if that is not known.

        Args:
            ranks: the two ranks that it may have.
            axes: its shape in the error.
        """
        e = self._e
        shape = e.shape_of(value)
        if self._known_rank(argument) is not None:
            return shape  # checked before the model was written
        are_ranks = e.equal(e.shape_of(shape), ranks).astype("int64")
        is_any = e.op("ReduceMax", are_ranks, keepdims=1)
        return self._require_same(shape, is_any, e.row(1), argument, axes)

    def _checked_locations(self, value: Tensor, locations: Tensor) -> Tensor:
        """Return locations after a check of the B and H of value, and the L, points and r."""
        e = self._e
        argument = "sampling_locations"
        expectation = (
            "shape (B, Q, H, L, P, r) or (B, Q, H, P, r), with the B and H of value and the L, "
            "points and r of levels"
        )
        shape = self._checked_shape(argument, locations, (5, 6), expectation)
        actual = [e.gather(shape, [0, 2])]
        expected = [e.lengths(value, 0, 2)]
        rank = self._known_rank(argument)
        if rank != 5:
            n_levels = e.row(len(self._points))
            if rank is None:
                n_levels = e.slice(n_levels, e.row(0), e.shape_of(shape) - 5)
            actual.append(e.slice(shape, e.row(3), e.row(-2)))  # without L: empty
            expected.append(n_levels)
        point_axes = e.slice(shape, e.row(3), e.row(-1))
        actual += [e.prod(point_axes), e.gather(shape, [-1])]
        expected.append(e.row(sum(self._points), self._r))
        rows = e.concatenate(actual), e.concatenate(expected)
        return e.op("Reshape", locations, self._require_same(shape, *rows, argument, expectation))

    def _checked_weights(self, locations: Tensor, weights: Tensor) -> Tensor:
        """Return weights after a check that they have the axes of locations.

        Weights (B, 1, H, P) are those of one query for all queries.
        """
        e = self._e
        argument = "attention_weights"
        expectation = "all axes but the last of sampling_locations"
        shape = self._checked_shape(argument, weights, (4, 5), expectation)
        locations_shape = e.shape_of(locations)
        rank = self._known_rank(argument)
        rank_of_locations = self._known_rank("sampling_locations")
        if (rank, rank_of_locations) == (5, 6):
            expected = e.slice(locations_shape, e.row(0), e.row(5))
            checked = self._require_same(shape, shape, expected, argument, expectation)
            return e.op("Reshape", weights, checked)
        actual = _with_merged_points(shape, end=_END)
        expected = _with_merged_points(locations_shape, end=-1)
        expected = self._with_one_query(shape, actual, expected)
        if rank != 4 and rank_of_locations != 5:
            axes = self._two_axes(shape, locations_shape)
            shape = self._require_same(shape, *axes, argument, expectation)
        checked = self._require_same(shape, actual, expected, argument, expectation)
        return e.op("Reshape", weights, checked)

    def _with_one_query(self, shape: Tensor, actual: Tensor, expected: Tensor) -> Tensor:
        """Return (B, Q, H, P) that weights must have: ``expected``, or 1 as Q if they have that."""
        e = self._e
        rank = self._known_rank("attention_weights")
        if rank == 5:
            return expected
        is_query_axis = e.constant([False, True, False, False], "bool")
        if rank is None:
            has_one_axis_of_points = e.equal(e.shape_of(shape), 4)
            is_query_axis = e.op("And", is_query_axis, has_one_axis_of_points)
        is_one_query = e.op("And", e.equal(actual, [1, 1, 1, 1]), is_query_axis)
        return e.where(is_one_query, actual, expected)

    def _two_axes(self, shape: Tensor, locations_shape: Tensor) -> tuple[Tensor, Tensor]:
        """Return L and P of weights, and what they must be: those of locations, if both have two.

        Args:
            shape: the shape of weights.
            locations_shape: the shape of locations.
        """
        e = self._e
        actual = e.slice(shape, e.row(3), e.row(_END))
        axes_of_locations = e.slice(locations_shape, e.row(3), e.row(-1))
        has_two = e.equal(e.shape_of(actual), [2])
        have_locations_two = e.equal(e.shape_of(axes_of_locations), [2])
        both_have_two = e.op("And", has_two, have_locations_two)
        return actual, e.where(both_have_two, axes_of_locations, actual)


def _with_merged_points(shape: Tensor, *, end: int) -> Tensor:
    """Return (B, Q, H, P) from a ``shape`` (B, Q, H, P, …) or (B, Q, H, L, P, …).

    Args:
        shape: the shape.
        end: the axis after that of the points.
    """
    e = shape.owner
    point_axes = e.slice(shape, e.row(3), e.row(end))
    n_points = e.prod(point_axes)
    return e.concatenate([e.gather(shape, [0, 1, 2]), n_points])
