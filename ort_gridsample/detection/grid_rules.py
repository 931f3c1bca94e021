"""Trace a grid back to a grid operator, through the nodes between the two.

A grid operator is a row of :data:`ort_gridsample.functions.grid_operators.GRID_OPERATORS`.

All coordinates are traced together, because the rank of the grid may be unknown.
:data:`GRID_RULES` has one rule for each operator that may be between the two nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import onnx

from ..graph.element_types import type_of
from ..graph.scope import attribute_named, has_attribute_references
from ..graph.use_def import UseDef
from ..spec import newest

#: The axis of a grid that lists the coordinates.
_LAST_AXIS = -1


@dataclass(frozen=True)
class GridValue:
    """A value from which a grid is computed.

    Attributes:
        name: the name of the value.
        axis: the axis that lists the coordinates, counted from the end (-1 is the last axis).
        cast_type: the type that the value is cast to before it reaches the GridSample, or "".
    """

    name: str
    axis: int = _LAST_AXIS
    cast_type: str = ""


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


#: A rule gets a node and its output. It returns the input that the output is computed from, or None
#: if the node does not keep the grid as a whole. No attribute of the node is set by the caller of a
#: function.
GridRule = Callable[[onnx.NodeProto, GridValue], GridValue | None]


def trace_grid(use_def: UseDef, grid: str, starts: Collection[str]) -> GridPath | None:
    """Trace a grid back to a grid operator.

    Args:
        use_def: the use-def chains of the scope.
        grid: the name of the grid.
        starts: the outputs of the grid operators in the scope.

    Returns:
        The way between the two, or None if the grid does not come from a grid operator, or if its
        coordinates are rearranged.
    """
    value = GridValue(grid)
    nodes: set[int] = set()
    values = {grid}
    while value.name not in starts:
        index = use_def.makers.get(value.name)
        # In an invalid model, a value may come from itself.
        if index is None or index in nodes or not use_def.is_op(index, GRID_RULES):
            return None
        node = use_def.nodes[index]
        if has_attribute_references(node):
            return None
        source = GRID_RULES[node.op_type](node, value)
        if source is None:
            return None
        value = source
        nodes.add(index)
        values.add(value.name)
    if value.axis != _LAST_AXIS:
        return None
    return GridPath(value.name, frozenset(nodes), frozenset(values), value.cast_type)


def _before_identity(node: onnx.NodeProto, grid: GridValue) -> GridValue:
    """The rule for an Identity."""
    return replace(grid, name=node.input[0])


def _before_transpose(node: onnx.NodeProto, grid: GridValue) -> GridValue | None:
    """The rule for a Transpose that moves only the axis of the coordinates."""
    perm = attribute_named(node, "perm")
    if perm is None:  # the default reverses all axes
        return None
    other_axes = list(perm.ints)
    rank = len(other_axes)
    if rank < -grid.axis:  # the model is invalid
        return None
    axis = other_axes.pop(grid.axis)
    if other_axes != sorted(other_axes):
        return None
    return replace(grid, name=node.input[0], axis=axis - rank)


def _before_cast(node: onnx.NodeProto, grid: GridValue) -> GridValue | None:
    """The rule for a Cast. A grid may be cast once."""
    to = attribute_named(node, "to")
    cast_type = None if to is None else type_of(to.i)
    if cast_type is None or grid.cast_type:
        return None
    if cast_type not in newest("GridSample").types["grid"]:
        return None
    return replace(grid, name=node.input[0], cast_type=cast_type)


#: Operator -> the rule for a node between a grid operator and its GridSample.
GRID_RULES: Mapping[str, GridRule] = {
    "Cast": _before_cast,
    "Identity": _before_identity,
    "Transpose": _before_transpose,
}
