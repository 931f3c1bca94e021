"""Nodes that are written as expressions."""

import numpy as np
import onnx
import pytest
from onnx import helper

from ort_gridsample.graph.expressions import Expressions
from ort_gridsample.graph.new_names import Names
from support.paths import open_native


def _run(e: Expressions, nodes: list[onnx.NodeProto], output: str, x: np.ndarray) -> np.ndarray:
    """Run ``nodes``, which read the value ``x``."""
    element_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    inputs = [helper.make_tensor_value_info("x", element_type, None)]
    outputs = [helper.make_tensor_value_info(output, element_type, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", e.opset)]
    session = open_native(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    return session.run(None, {"x": x})[0]


def _model_with(name: str) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["a"], [name], name=name)
    return helper.make_model(helper.make_graph([node], "g", [], []))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_op_number_with_untyped_value_has_its_type(dtype: type) -> None:
    e = Expressions("n", 17)
    nodes = e.finish(e.input("x") * 2 - 1, "y")
    y = _run(e, nodes, "y", np.array([0.5, 3], dtype))
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, [0, 5])


def test_new_nodes_taken_names_are_not_used() -> None:
    e = Expressions("n", 17, names=Names(_model_with("n_abs")))
    (node,) = e.finish(e.abs(e.input("x")), "y")
    assert (node.name, [*node.output]) == ("n_abs_2", ["y"])


def test_equal_nodes_are_written_once() -> None:
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    x = e.input("x")
    nodes = e.finish(e.lengths(x, 0) * e.lengths(x, 0), "y")
    assert [node.op_type for node in nodes].count("Shape") == 1


def test_finish_all_value_with_two_names_has_both() -> None:
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    result = e.abs(e.input("x"))
    nodes = e.finish_all({"y": result, "z": result, "w": e.input("x")})
    assert {name for node in nodes for name in node.output} == {"y", "z", "w"}


def test_node_is_kept_with_the_nodes_that_it_needs() -> None:
    e = Expressions("n", 17, names=Names(onnx.ModelProto()))
    unread = e.abs(e.input("x"))
    read = e.abs(unread)
    e.abs(read)
    e.node(helper.make_node("Print", [e.name_of(read)], ["printed"]))
    assert [node.op_type for node in e.finish_all()] == ["Abs", "Abs", "Print"]
