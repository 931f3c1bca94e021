"""Coordinates outside any sensible range: a model none of whose GridSample nodes sees one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from ..graph.element_types import elem_type
from ..graph.scope import Definition, Names, Nodes, Scope, scopes

#: Normalized coordinates lie in [-1, 1]. onnxruntime's own kernels are wrong where the pixel that is meant has no
#: 32-bit number; an axis would need 400,000 pixels for that to happen this near.
LIMIT = 10_000.0


@dataclass(frozen=True)
class Place:
    """Where a grid is, by the words for its graph, "" for the main one, and its name; ``wide`` is it in float64."""

    graph: str
    name: str
    wide: str


def put_far_coordinates_to_0(model: onnx.ModelProto, grids: Mapping[str, str]) -> list[Place]:
    """Let coordinates further out than LIMIT, and those that are no numbers, be 0 in the values ``grids`` of ``model``.

    What computes such a value computes one of another name now, of which the value is made. The main graph's inputs
    stay as they are: whoever feeds them can change them. ``grids`` has the values' element types, by numpy's names.
    """
    names, places = Names(model), list[Place]()
    for scope in reversed(scopes(model)):  # inner graphs first: a list of nodes that was rewritten holds copies
        here = list[Place]()
        for name, definition in scope.definitions.items():
            if name in grids and (definition is not None or scope.path):
                before, wide = names.new(f"{name}_before"), names.new(f"{name}_wide")
                _rename(scope, definition, name, before)
                nodes = Nodes(names, name)
                nodes.add("Cast", before, output=wide, to=onnx.TensorProto.DOUBLE)
                near = nodes.add("Less", nodes.add("Abs", wide), nodes.constant(np.array(LIMIT)))  # false for NaN
                put = nodes.add("Where", near, wide, nodes.constant(np.array(0.0)))
                nodes.add("Cast", put, output=name, to=elem_type(grids[name]))
                at = next((index for index, node in enumerate(scope) if before in node.output), -1)
                for node in reversed(nodes):
                    scope.container.node.insert(at + 1, node)
                here.append(Place(scope.path, name, wide))
        places = here + places
    return places


def _rename(scope: Scope, definition: Definition, name: str, new: str) -> None:
    """Give the value that ``scope`` has by this ``definition``, or as an input, a ``new`` name."""
    if isinstance(definition, onnx.NodeProto) or isinstance(scope.container, onnx.FunctionProto):
        names = scope.container.input if definition is None else definition.output
        names[:] = [new if each == name else each for each in names]
    else:
        for value in scope.container.input if definition is None else [definition]:
            value.name = new if value.name == name else value.name
