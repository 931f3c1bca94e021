"""Trace a grid back to a grid operator, through the nodes between the two.

A grid operator is a row of :data:`ort_gridsample.functions.grid_operators.GRID_OPERATORS`.

All coordinates are traced together, because the rank of the grid may be unknown. The nodes may
rearrange the grid, as long as it has its own axes again in the end, and cast it once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import onnx

from ..graph.element_types import type_of
from ..graph.scope import attribute_named, has_attribute_references
from ..inference.axes import Axes, are_same, whole_axes
from ..inference.lengths import ScopeLengths
from ..inference.symbolic import Length, PartialLengths
from ..inference.views import LAYOUT_OPERATORS, view_of
from ..spec import newest

#: The ranks that a grid can have.
_RANKS = (4, 5)
_OPERATORS = LAYOUT_OPERATORS.keys() | {"Cast"}


class GridPath(NamedTuple):
    """The way from a grid operator to its GridSample.

    Attributes:
        start: the output of the grid operator.
        nodes: the indices of the nodes between the two.
        values: the names of all values from the grid operator to the GridSample.
        cast_type: the type that the grid is cast to, or "" if it is not cast.
    """

    start: str
    nodes: frozenset[int]
    values: frozenset[str]
    cast_type: str


class _GridLengths:
    """The lengths of a scope, in which values of unknown rank have the rank of the grid."""

    def __init__(self, lengths: ScopeLengths, rank: int) -> None:
        self._lengths = lengths
        self._rank = rank

    def shape(self, name: str) -> Sequence[Length]:
        """Return the lengths of the axes of a value."""
        shape = self._lengths.shape(name)
        if shape is None:
            return [Length(unknown=((name, axis),)) for axis in range(self._rank)]
        return shape

    def elements(self, name: str) -> PartialLengths | None:
        """Return the elements of a shape."""
        return self._lengths.elements(name)

    def inferred_shape(self, name: str) -> Sequence[Length] | None:
        """Return the lengths of the axes of a value as inference states them."""
        return self._lengths.inferred_shape(name)


def trace_grid(lengths: ScopeLengths, grid: str, starts: Collection[str]) -> GridPath | None:
    """Trace a grid back to a grid operator.

    Args:
        lengths: the lengths of the scope's values.
        grid: the name of the grid.
        starts: the outputs of the grid operators in the scope.

    Returns:
        The way between the two, or None if the grid does not come from a grid operator, or if its
        coordinates are rearranged.
    """
    if not starts:
        return None
    shape = lengths.shape(grid)
    for rank in _RANKS if shape is None else (len(shape),):
        path = _trace(lengths, _GridLengths(lengths, rank), grid, starts)
        if path is not None:
            return path
    return None


def _trace(
    lengths: ScopeLengths,
    grid_lengths: _GridLengths,
    grid: str,
    starts: Collection[str],
) -> GridPath | None:
    """Trace a grid back as :func:`trace_grid`.

    Args:
        lengths: the lengths of the scope's values.
        grid: the name of the grid.
        starts: the outputs of the grid operators in the scope.
    """
    use_def = lengths.use_def
    grid_axes = axes = whole_axes(grid_lengths.shape(grid))
    name = grid
    nodes: set[int] = set()
    values = {grid}
    cast_type = ""
    while name not in starts:
        index = use_def.makers.get(name)
        # In an invalid model, a value may come from itself.
        if index is None or index in nodes or not use_def.is_op(index, _OPERATORS):
            return None
        node = use_def.nodes[index]
        if node.op_type == "Cast":
            if cast_type:  # a grid may be cast once
                return None
            cast_type = _cast_type(node)
            if not cast_type:
                return None
        elif not _keeps_lengths(node, name, lengths):
            source_axes = _axes_before(node, name, axes, grid_lengths)
            if source_axes is None:
                return None
            axes = source_axes
        name = node.input[0]
        nodes.add(index)
        values.add(name)
    if len(axes) != len(grid_axes) or not all(map(are_same, axes, grid_axes)):
        return None
    return GridPath(name, frozenset(nodes), frozenset(values), cast_type)


def _keeps_lengths(node: onnx.NodeProto, output: str, lengths: ScopeLengths) -> bool:
    """Whether a node is an Expand to the lengths that its input has, however they are computed."""
    if node.op_type != "Expand":
        return False
    before = lengths.shape(node.input[0])
    is_known = before is not None and all(length.known is not None for length in before)
    return is_known and before == lengths.shape(output)


def _axes_before(
    node: onnx.NodeProto, output: str, axes: Axes, lengths: _GridLengths
) -> Axes | None:
    """Return the axes of the first input of a layout operator, or None if it does more than that.

    A node that may fail must stay.
    """
    view = view_of(node, output, lengths)
    return None if view is None or view.may_fail else view.axes_before(axes)


def _cast_type(node: onnx.NodeProto) -> str:
    """Return the type that a Cast returns, or "" if a grid cannot have it."""
    to = attribute_named(node, "to")
    cast_type = None if to is None or has_attribute_references(node) else type_of(to.i)
    return cast_type if cast_type in newest("GridSample").types["grid"] else ""
