"""The target that writes a GridSample and the nodes of its grid as one op."""

from onnx import helper

from ort_gridsample.rewriting.patch import rewrite_selected_nodes
from ort_gridsample.rewriting.targets.compiled_op import FusedOpTarget
from support.pixel_graphs import GraphBuilder


def test_constants_of_fused_nodes_are_removed() -> None:
    """An unread initializer would cause a warning of onnxruntime."""
    graph = GraphBuilder()
    graph.nodes.append(helper.make_node("Constant", [], ["two"], value_float=2.0))
    grid = graph.apply(graph.add_input("coords", 1, 3, 4, 2), ("Mul", "two"), ("Sub", [1, 2]))
    model = graph.model(grid, (1, 1, 5, 6))
    (record,), _ = rewrite_selected_nodes(model, target=FusedOpTarget())
    assert record.fused == ("Mul1", "Sub2")
    assert [node.op_type for node in model.graph.node] == ["Constant", "FusedGridSample"]
    assert not model.graph.initializer
