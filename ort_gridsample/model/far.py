"""Coordinates outside any sensible range: a model none of whose GridSample nodes sees one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from .element_types import elem_type
from .graphs import Definition, Names, Nodes, Scope, scopes

#: Normalized coordinates lie in [-1, 1]. onnxruntime's own kernels are wrong where the pixel that is meant has no
#: 32-bit number; an axis would need 400,000 pixels for that to happen this near.
LIMIT = 10_000.0


@dataclass(frozen=True)
class Place:
    """Where a grid is, by the words for its graph, "" for the main one, and its name.

    ``before`` is the name of the value as it was, ``wide`` that of the same in float64.
    """

    graph: str
    name: str
    before: str
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
                place = Place(scope.path, name, names.new(f"{name}_before"), names.new(f"{name}_wide"))
                _rename(scope, definition, place)
                at = next((index for index, node in enumerate(scope) if place.before in node.output), -1)
                for node in reversed(_without_far(place, grids[name], names)):
                    scope.container.node.insert(at + 1, node)
                here.append(place)
        places = here + places
    return places


def _rename(scope: Scope, definition: Definition, place: Place) -> None:
    """Give the value that ``scope`` has by this ``definition``, or as an input, the name that it has before."""
    if isinstance(definition, onnx.TensorProto):
        definition.name = place.before
    elif isinstance(definition, onnx.NodeProto):
        definition.output[:] = [place.before if name == place.name else name for name in definition.output]
    elif isinstance(scope.container, onnx.FunctionProto):
        names = scope.container.input
        names[:] = [place.before if name == place.name else name for name in names]
    else:
        for value in scope.container.input:
            value.name = place.before if value.name == place.name else value.name


def _without_far(place: Place, type_name: str, names: Names) -> Nodes:
    """Nodes that make the value of what it was."""
    nodes = Nodes(names, place.name)
    nodes.add("Cast", place.before, output=place.wide, to=onnx.TensorProto.DOUBLE)
    size = nodes.add("Abs", place.wide)
    near = nodes.add("Less", size, nodes.constant(np.array(LIMIT)))  # false for what is no number
    put = nodes.add("Where", near, place.wide, nodes.constant(np.array(0.0)))
    nodes.add("Cast", put, output=place.name, to=elem_type(type_name))
    return nodes
