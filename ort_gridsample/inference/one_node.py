"""Models of one node, by which a runtime is tested for this node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import helper

from ..graph.element_types import elem_type
from ..spec import Dim


def one_node_model(
    node: onnx.NodeProto,
    imports: Iterable[tuple[str, int]],
    types: Iterable[tuple[str, str]],
    shapes: Iterable[Sequence[Dim] | None],
) -> onnx.ModelProto:
    """Return a model of one node.

    NumPy has no bfloat16. Inputs and outputs of that type are float32 with a Cast in the model.

    Args:
        node: the node, which is changed. It has no inputs, and no first output, which becomes Y.
        imports: the versions of domains.
        types: the name and element type of each input.
        shapes: the shape of each input, or None if it is unknown.
    """
    inputs = list[onnx.ValueInfoProto]()
    nodes = list[onnx.NodeProto]()
    names_and_types = list(types)
    for (name, type_name), shape in zip(names_and_types, shapes, strict=True):
        feed_type = fed_type(type_name)
        inputs.append(helper.make_tensor_value_info(name, elem_type(feed_type), shape))
        if feed_type == type_name:
            node.input.append(name)
        else:
            cast_name = f"{name} as {type_name}"
            node.input.append(cast_name)
            cast = helper.make_node("Cast", [name], [cast_name], to=elem_type(type_name))
            nodes.append(cast)
    nodes.append(node)
    first_type = names_and_types[0][1]
    output_type = fed_type(first_type)
    if output_type == first_type:
        node.output.insert(0, "Y")
    else:
        node.output.insert(0, f"Y as {first_type}")
        cast = helper.make_node("Cast", node.output[:], ["Y"], to=elem_type(output_type))
        nodes.append(cast)
    output = helper.make_tensor_value_info("Y", elem_type(output_type), None)
    graph = helper.make_graph(nodes, "one node", inputs, [output])
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def fed_type(type_name: str) -> str:
    """Return the element type of the array that is fed for an input of type ``type_name``."""
    return "float32" if type_name == "bfloat16" else type_name
