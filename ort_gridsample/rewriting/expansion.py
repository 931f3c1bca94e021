"""Expand composite nodes: deformable attention of any package, and samplers of planar grids.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects.table import AttentionSignature
from ..errors import GridSampleError
from ..functions import validation
from ..graph.expressions import Tensor
from ..graph.new_names import Names
from ..graph.scope import attribute_named
from ..reference.arrays import Array
from ..spec import known_lengths
from .attention_expansion import AttentionExpansion, LevelPixels
from .attention_operands import AttentionOperands
from .foreign_attention import ForeignOperands
from .foreign_attention_facts import n_levels_of
from .foreign_run_checks import ChecksForGridSamples
from .match_facts import input_of
from .planar_samplers import expanded_sampler
from .run_checks import checked_operands
from .targets import Replacement

#: The axes that the operands of this package's deformable attention can have.
_AXES = {
    "value": ("(B, S, H, D)",),
    "sampling_locations": ("(B, Q, H, L, P, r)", "(B, Q, H, P, r)"),
    "attention_weights": ("(B, Q, H, L, P)", "(B, Q, H, P)"),
}


def points_of(match: Match) -> list[int] | None:
    """Return the number of points on each level of this package's node, or None if unknown."""
    table = match.scope.constant_value(match.record.values["levels"])
    if table is not None:
        has_points = table.ndim == 2 and table.shape[1] > 1
        return [int(number) for number in table[:, 0]] if has_points else None
    points = attribute_named(match.node, "points")
    # A session writes no numbers if they are known only in a run.
    if points is None or not points.s:
        return None
    return [int(number) for number in points.s.split()]


def expanded(
    match: Match, names: Names, *, has_allowzero: bool = True, is_checked: bool = True
) -> Replacement:
    """Return the nodes that a composite node is equivalent to.

    Args:
        match: the composite node.
        names: returns names of new values and nodes.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``. Without it, lengths
            that are not known before a run must not be 0.
        is_checked: whether a node of this package checks its inputs in a run.

    Raises:
        GridSampleError: the number of levels, or of the points on each, is not known.
    """
    if match.record.dialect.has_planar_grids:
        return expanded_sampler(match, names)
    signature = match.foreign_signature
    if signature is None:
        expansion = _PackageExpansion(
            match, names, has_allowzero=has_allowzero, is_checked=is_checked
        )
        return expansion.replacement()
    return _ForeignExpansion(match, signature, names, has_allowzero=has_allowzero).replacement()


class _PackageExpansion(AttentionExpansion):
    """The expansion of this package's node.

    The node states the points of each level. All points may be on one axis.
    """

    n_columns_before_lengths = 1

    def __init__(
        self, match: Match, names: Names, *, has_allowzero: bool, is_checked: bool
    ) -> None:
        self._is_checked = is_checked
        points = points_of(match)
        if points is None:
            raise _unknown_points(match)
        self._points = points
        super().__init__(
            match,
            names,
            has_allowzero=has_allowzero,
            table_argument="levels",
            points_argument="sampling_locations",
            n_levels=len(points),
            r=(match.record.spatial_axes or (2,))[0],
        )

    def operands(self) -> AttentionOperands:
        match = self._match
        e = self._e
        values = match.record.values
        operands = AttentionOperands(
            value=input_of(match, e, "value"),
            level_table=e.input(values["levels"]),
            starts=None,
            locations=input_of(match, e, "sampling_locations"),
            weights=input_of(match, e, "attention_weights"),
        )
        _check_known_shapes(match)
        if not self._is_checked:
            return operands
        return checked_operands(match, operands, e, points=self._points)

    def has_points(self, index: int) -> bool:
        return self._points[index] > 0

    def locations_of_level(self, locations: Tensor, index: int) -> Tensor:
        e = self._e
        points = self._points_of_level(index)
        merged = e.op("Reshape", locations, e.row(0, 0, 0, sum(self._points), self._r))
        return e.slice(merged, e.row(points.start), e.row(points.stop), axis=3)

    def weights_of_levels(self, weights: Tensor, levels: Sequence[LevelPixels]) -> Tensor:
        e = self._e
        merged = e.op("Reshape", weights, e.row(0, 0, 0, sum(self._points)))
        if len(levels) == self._n_levels:
            return merged
        points = [point for level in levels for point in self._points_of_level(level.index)]
        return e.gather(merged, points, axis=3)

    def _points_of_level(self, index: int) -> range:
        """Return the indices of a level's points among all points."""
        first = sum(self._points[:index])
        return range(first, first + self._points[index])


class _ForeignExpansion(AttentionExpansion):
    """The expansion of another package's node, which has the same number of points on each level.

    Args:
        match: the attention node.
        signature: the signature of the node.
        names: returns names of new values and nodes.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``.
    """

    def __init__(
        self, match: Match, signature: AttentionSignature, names: Names, *, has_allowzero: bool
    ) -> None:
        points = "sampling_offsets" if signature.has_offsets else "sampling_locations"
        super().__init__(
            match,
            names,
            has_allowzero=has_allowzero,
            table_argument=signature.lengths_input,
            points_argument=points,
            n_levels=n_levels_of(match),
            r=2,
        )
        self._signature = signature
        self.is_by_head = signature.is_by_head

    def operands(self) -> AttentionOperands:
        checks = ChecksForGridSamples(self._match, self._signature, self._e)
        return ForeignOperands(checks.checked_inputs()).operands()

    def has_points(self, index: int) -> bool:
        shape = self._match.record.shape_in_all_calls("attention_weights")
        return shape is None or shape[-1] != 0

    def locations_of_level(self, locations: Tensor, index: int) -> Tensor:
        return self._e.gather(locations, index, axis=3)

    def weights_of_levels(self, weights: Tensor, levels: Sequence[LevelPixels]) -> Tensor:
        e = self._e
        if len(levels) < self._n_levels:
            weights = e.gather(weights, [level.index for level in levels], axis=3)
        if not self._allows_zeros:
            return e.op("Reshape", weights, e.row(0, 0, 0, -1))
        n_points = e.lengths(weights, 4) * len(levels)
        return self._reshaped(weights, [e.lengths(weights, 0, 1, 2), n_points])


def _unknown_points(match: Match) -> GridSampleError:
    """Return the error of a node of this package that does not state the points of each level."""
    table = match.scope.constant_value(match.record.values["levels"])
    found = "computed" if table is None else f"of shape {validation.format_shape(table.shape)}"
    expected = "a constant of shape (L, 1 + r): the number of points and the lengths of each level"
    return GridSampleError(match.record.where, "levels", found, expected)


def _check_known_shapes(match: Match) -> None:
    """Check the shapes of this package's node, as far as they are known.

    Raises:
        GridSampleError: a shape is wrong.
    """
    record = match.record
    table = match.scope.constant_value(record.values["levels"])
    if table is not None:
        _check_shapes_for_levels(record, table)
    for argument, possible_axes in _AXES.items():
        ranks = [axes.count(",") + 1 for axes in possible_axes]
        for shape in record.shapes_by_call(argument):
            if shape is not None and len(shape) not in ranks:
                found = f"of shape {validation.format_shape(shape)}"
                expected = f"shape {validation.join_choices(possible_axes)}"
                raise GridSampleError(record.where, argument, found, expected)


def _check_shapes_for_levels(record: NodeRecord, table: Array) -> None:
    """Check value, and all shapes if they are known, of a node with constant levels."""
    for value, _, locations, weights in record.cases:
        if value.shape is not None:
            validation.check_attention_value(
                record.where, value=value.shape, levels=table, levels_argument="levels"
            )
        value_shape = known_lengths(value.shape)
        locations_shape = known_lengths(locations.shape)
        weights_shape = known_lengths(weights.shape)
        if value_shape is None or locations_shape is None or weights_shape is None:
            continue
        validation.check_attention_shapes(
            record.where,
            value=value_shape,
            levels=table,
            levels_argument="levels",
            locations=locations_shape,
            weights=weights_shape,
        )
