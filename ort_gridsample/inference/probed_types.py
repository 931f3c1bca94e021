"""Types behind operators that onnx does not know, as a probe infers them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import helper

from .. import spec
from ..graph.scope import graphs_of
from .probe import Probe
from .slice_declarations import Types
from .stand_ins import STAND_IN

#: Operators of whose output onnxruntime infers a wrong rank. It has the type of the first input.
#: onnxruntime reads an unknown last length of the indices of GatherND as 0.
_WRONGLY_INFERRED = frozenset({("com.microsoft", "GatherND")})
#: The name of an input that is a shape of unknown length.
_ANY_SHAPE = "any shape"


def has_type(name: str, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether the element type of a value is known."""
    return name in types and bool(types[name].tensor_type.elem_type)


def nodes_of_unknown_outputs(
    graphs: Iterable[onnx.GraphProto], types: Types
) -> list[onnx.NodeProto]:
    """Return the nodes without graphs that have an output of unknown type."""
    nodes = []
    known = {name for name in types if has_type(name, types)}
    known.add("")  # the name of an output that a node leaves out
    for graph in graphs:
        for node in graph.node:
            if not known.issuperset(node.output[:]) and not any(graphs_of(node)):
                nodes.append(node)
    return nodes


def add_probed_types(
    probe: Probe,
    slice_model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    types: Types,
) -> None:
    """Add the types that the probe infers for the outputs of ``nodes`` to ``types``."""
    model = _probe_model(slice_model, nodes, types)
    if not model.graph.node:
        return
    probed = probe.types_of(model)
    if probed:
        for name, type_proto in probed.items():
            if not has_type(name, types):
                types[name] = type_proto
    elif len(nodes) > 1:  # onnxruntime refuses a model because of one node
        middle = len(nodes) // 2
        add_probed_types(probe, slice_model, nodes[:middle], types)
        add_probed_types(probe, slice_model, nodes[middle:], types)


def _probe_model(
    slice_model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    types: Types,
) -> onnx.ModelProto:
    """Return a model of those of ``nodes`` whose inputs are known, or outputs of previous ones."""
    graph = onnx.GraphProto(name="probe")
    constants = {tensor.name: tensor for tensor in slice_model.graph.initializer}
    outputs: dict[str, None] = {}
    inputs: dict[str, onnx.TypeProto] = {}
    for node in nodes:
        read = [name for name in node.input if name]
        if node.domain == STAND_IN and node.op_type not in spec.OPERATORS:
            continue
        # onnxruntime may not know the operator. Its output has the type of its first input.
        if node.domain == STAND_IN or (node.domain, node.op_type) in _WRONGLY_INFERRED:
            read = list(node.input[:1])
            node = helper.make_node("Reshape", [*read, _ANY_SHAPE], node.output)
            inputs[_ANY_SHAPE] = helper.make_tensor_type_proto(onnx.TensorProto.INT64, [None])
        if all(name in outputs or has_type(name, types) for name in read):
            inputs.update((name, types[name]) for name in read if name not in outputs)
            outputs.update(dict.fromkeys(name for name in node.output if name))
            graph.node.append(node)
    for name, type_proto in inputs.items():
        if name in constants:
            graph.initializer.append(constants[name])
        else:
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_proto))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return onnx.ModelProto(
        ir_version=slice_model.ir_version,
        graph=graph,
        opset_import=slice_model.opset_import,
    )
