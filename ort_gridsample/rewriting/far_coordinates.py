"""Set coordinates far outside of any image to 0 in a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from ..graph.element_types import elem_type
from ..graph.expressions import Expressions
from ..graph.new_names import Names
from ..graph.scope import Definition, Scope, scopes_of

#: The largest absolute normalized coordinate that is not far. Coordinates inside of an image are in
#: [-1, 1]. onnxruntime's kernels are wrong if a pixel coordinate is no 32-bit integer. For smaller
#: coordinates than this limit, that would need an axis of 400,000 pixels.
LIMIT = 10_000.0


@dataclass(frozen=True)
class RewrittenGrid:
    """A grid whose far coordinates are set to 0.

    Attributes:
        graph: the graph that the grid is in; empty for the main graph.
        name: the name of the grid.
        original: the name of the value with the original coordinates, as float64.
    """

    graph: str
    name: str
    original: str


def zero_far_coordinates(model: onnx.ModelProto, grids: Mapping[str, str]) -> list[RewrittenGrid]:
    """Set coordinates that are at ±LIMIT or further out, or NaN, to 0 in a model.

    The values that a grid is computed from stay as they are. Inputs of the main graph stay as well,
    because the caller can change what is fed.

    Args:
        model: the model, which is changed.
        grids: the names of the grids, and their element types by NumPy's names.

    Returns:
        The grids that were changed, in the order of the graphs.
    """
    names = Names(model)
    rewritten_by_scope = list[list[RewrittenGrid]]()
    for scope in reversed(scopes_of(model)):  # inner first: a rewritten node list holds copies
        rewritten = list[RewrittenGrid]()
        fed_names = set() if scope.path else _fed_names(scope)
        for name, definition in scope.definitions.items():
            if name in grids and name not in fed_names:
                original = _zero_far(scope, definition, name, grids[name], names)
                rewritten.append(RewrittenGrid(scope.path, name, original))
        rewritten_by_scope.insert(0, rewritten)
    return [grid for rewritten in rewritten_by_scope for grid in rewritten]


def _fed_names(main: Scope) -> set[str]:
    """Return the names of the inputs of the main graph that callers can feed.

    Until IR version 3, an initializer is an input as well, and cannot be fed.
    """
    names = (value.name for value in main.container.input)
    return {name for name in names if main.definitions[name] is None}


def _zero_far(
    scope: Scope,
    definition: Definition,
    name: str,
    type_name: str,
    names: Names,
) -> str:
    """Set the far coordinates of one grid to 0; return the name of the original as float64."""
    before = names.new(f"{name}_before")
    original = names.new(f"{name}_wide")
    _rename(scope, definition, name, before)
    e = Expressions(name, scope.opsets.get("", 0), names=names)
    wide = e.op("Cast", e.input(before), type="float64", to=onnx.TensorProto.DOUBLE)
    is_near = e.less(e.abs(wide), LIMIT)  # false for NaN
    near = e.where(is_near, wide, 0.0)
    narrow = e.op("Cast", near, type=type_name, to=elem_type(type_name))
    nodes = e.finish_all({original: wide, name: narrow})
    makers = [index for index, node in enumerate(scope) if before in node.output]
    position = makers[0] + 1 if makers else 0
    for node in reversed(nodes):
        scope.container.node.insert(position, node)
    return original


def _rename(scope: Scope, definition: Definition, name: str, new_name: str) -> None:
    """Rename a value where it is defined: in a node, or in initializers and inputs of ``scope``."""
    is_function = isinstance(scope.container, onnx.FunctionProto)
    if isinstance(definition, onnx.NodeProto) or is_function:
        names = scope.container.input if definition is None else definition.output
        names[:] = [new_name if old_name == name else old_name for old_name in names]
        return
    sparse_values = [sparse.values for sparse in scope.container.sparse_initializer]
    values = [*scope.container.input, *sparse_values]
    if definition is not None:
        values.append(definition)
    for value in values:
        if value.name == name:
            value.name = new_name
