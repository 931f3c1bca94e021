"""The nodes that the execution provider fuses, and models whose bodies have such nodes."""

import onnx
import onnxruntime
from onnx import helper

import ort_gridsample as ogs


def count_fused(session: onnxruntime.InferenceSession) -> int:
    """Return the number of a session's fused nodes."""
    provider = ogs.register_provider()
    parts = session.get_provider_graph_assignment_info()
    return sum(part.ep_name == provider and len(part.get_nodes()) > 1 for part in parts)


def in_both_branches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of an If, both of whose branches are ``model`` with its inputs from outside.

    The output of the second branch is negated.
    """
    graph = model.graph
    (output,) = graph.output
    branches = {}
    for name in ("then_branch", "else_branch"):
        branch = onnx.GraphProto(name=name, node=graph.node, initializer=graph.initializer)
        negated = helper.make_node("Neg", [output.name], ["result"])
        copied = helper.make_node("Identity", [output.name], ["result"])
        branch.node.append(copied if name == "then_branch" else negated)
        branch.output.append(helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, None))
        branches[name] = branch
    node = helper.make_node("If", ["condition"], ["Y"], **branches)
    condition = helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, [])
    Y = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)
    outer = helper.make_graph([node], "outer", [condition, *graph.input], [Y])
    return helper.make_model(outer, opset_imports=model.opset_import, ir_version=model.ir_version)
