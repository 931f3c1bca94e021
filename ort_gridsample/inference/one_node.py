"""Models of one node, by which a runtime is tested for this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import helper

from ..graph.element_types import elem_type
from ..reference.arrays import Array
from ..spec import Dim


def one_node_model(
    node: onnx.NodeProto,
    opsets: Mapping[str, int],
    types: Mapping[str, str],
    shapes: Iterable[Sequence[Dim] | None],
) -> onnx.ModelProto:
    """Return a model of a copy of one node.

    NumPy has no bfloat16. Inputs and outputs of that type are float32 with a Cast in the model.

    Args:
        node: the node. It has no inputs, and no first output, which becomes Y.
        opsets: the versions of domains; 1 for a domain of the node that is not among them.
        types: the element type of each input by its name.
        shapes: the shape of each input, or None if it is unknown.
    """
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    inputs = [
        helper.make_tensor_value_info(name, elem_type(fed_type(type_name)), shape)
        for (name, type_name), shape in zip(types.items(), shapes, strict=True)
    ]
    casts = [_append_input(copy, name, type_name) for name, type_name in types.items()]
    first_type = next(iter(types.values()))
    output_cast = _insert_output(copy, first_type)
    output = helper.make_tensor_value_info("Y", elem_type(fed_type(first_type)), None)
    nodes = [cast for cast in (*casts, copy, output_cast) if cast is not None]
    graph = helper.make_graph(nodes, "one node", inputs, [output])
    domains = dict.fromkeys(("", node.domain))
    imports = [helper.make_opsetid(domain, opsets.get(domain, 1)) for domain in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def one_node_feeds(types: Mapping[str, str], arrays: Sequence[Array]) -> dict[str, Array]:
    """Return the feeds of a model of one node.

    Args:
        types: the element type of each input by its name.
        arrays: the values of the inputs, of any type.
    """
    named_arrays = zip(types, arrays, strict=True)
    return {name: array.astype(fed_type(types[name])) for name, array in named_arrays}


def _append_input(node: onnx.NodeProto, name: str, type_name: str) -> onnx.NodeProto | None:
    """Append an input to ``node``; return the Cast that it reads, or None if it needs none."""
    if fed_type(type_name) == type_name:
        node.input.append(name)
        return None
    cast_name = f"{name} as {type_name}"
    node.input.append(cast_name)
    return helper.make_node("Cast", [name], [cast_name], to=elem_type(type_name))


def _insert_output(node: onnx.NodeProto, type_name: str) -> onnx.NodeProto | None:
    """Insert the first output of ``node``; return the Cast to Y, or None if it needs none."""
    output_type = fed_type(type_name)
    if output_type == type_name:
        node.output.insert(0, "Y")
        return None
    node.output.insert(0, f"Y as {type_name}")
    return helper.make_node("Cast", node.output[:1], ["Y"], to=elem_type(output_type))


def fed_type(type_name: str) -> str:
    """Return the element type of the array that is fed for an input of type ``type_name``."""
    return "float32" if type_name == "bfloat16" else type_name
