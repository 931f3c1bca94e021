"""Expand composite nodes: deformable attention of any package, and samplers of planar grids.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from typing import cast

from ..detection.attention.layouts import OutputLayout
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..errors import GridSampleError
from ..functions import validation
from ..graph.expressions import Expressions
from ..graph.new_names import Names
from ..graph.runtimes import ANY, Runtime
from ..graph.scope import attribute_named
from ..graph.substitutes import MissingOperatorError
from ..reference.arrays import Array
from ..spec import known_lengths
from .attention_call import AttentionCall, AttentionSource, Levels
from .attention_expansion import AttentionExpansion
from .attention_products import AttentionProducts
from .foreign_attention import ForeignAttention
from .foreign_attention_facts import n_levels_of
from .foreign_run_checks import check_for_grid_samples
from .match_facts import input_of
from .planar_samplers import expanded_sampler
from .run_checks import checked_call
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
    match: Match,
    names: Names,
    *,
    has_allowzero: bool = True,
    is_checked: bool = True,
    runtime: Runtime = ANY,
) -> Replacement:
    """Return the nodes that a composite node is equivalent to.

    Args:
        names: returns names of new values and nodes.
        has_allowzero: whether Reshapes may have the attribute ``allowzero``. Without it, lengths
            that are not known before a run must not be 0.
        is_checked: whether a node of this package checks its inputs in a run.
        runtime: the runtime that the nodes are for.

    Raises:
        GridSampleError: the number of levels, or of the points on each, is not known; or the
            runtime lacks an operator.
    """
    if match.record.dialect.has_planar_grids:
        return expanded_sampler(match, names, runtime)
    source: AttentionSource
    is_checked = is_checked and not runtime.lacks("Gather")
    if match.is_foreign_attention:
        n_levels_of(match)  # it must be known
        check = None if runtime.lacks("Gather") else check_for_grid_samples
        source = ForeignAttention(match, names, check, runtime)
    else:
        source = _PackageAttention(match, names, runtime, is_checked=is_checked)
    if runtime.lacks("Gather"):
        try:
            return AttentionProducts(match, source).replacement()
        except MissingOperatorError as error:
            found = f"a runtime without {error}, with which the operands of this node are computed"
            expected = "another runtime, or a node that has locations and weights as inputs"
            raise GridSampleError(match.record.where, "for_runtime", found, expected) from None
    return AttentionExpansion(match, source, has_allowzero=has_allowzero).replacement()


class _PackageAttention(AttentionSource):
    """A node of this package.

    The node states the points of each level. All points may be on one axis.

    Args:
        names: returns names of new values and nodes.
        runtime: the runtime that the nodes are for.
        is_checked: whether the inputs are checked in a run.

    Raises:
        GridSampleError: the number of points on each level is not known.
    """

    def __init__(self, match: Match, names: Names, runtime: Runtime, *, is_checked: bool) -> None:
        self._match = match
        self._is_checked = is_checked
        points = points_of(match)
        if points is None:
            raise _unknown_points(match)
        self._points = points
        self.e = Expressions(match.record.output, match.opset, runtime, names)

    @property
    def output_layout(self) -> OutputLayout:
        return cast(OutputLayout, self._match.record.attributes.get("output_layout", "by_query"))

    def call(self) -> AttentionCall:
        match = self._match
        e = self.e
        table_name = match.record.values["levels"]
        table = match.scope.constant_value(table_name)
        if table is not None:
            lengths = e.constant(table[:, 1:])
        else:
            r = (match.record.spatial_axes or (2,))[0]
            lengths = e.slice(e.input(table_name), e.row(1), e.row(1 + r), axis=1)
        levels = Levels(
            lengths=lengths,
            known_lengths=lengths.constant,
            number=len(self._points),
            points=self._points,
        )
        call = AttentionCall(
            record=match.record,
            value=input_of(match, e, "value"),
            levels=levels,
            locations=input_of(match, e, "sampling_locations"),
            weights=input_of(match, e, "attention_weights"),
            has_level_axis=False,
        )
        _check_known_shapes(match)
        return checked_call(match, call) if self._is_checked else call


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
