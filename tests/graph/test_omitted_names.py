"""Nodes with omitted inputs and outputs, whose names are empty."""

import onnx
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes_of
from support.models import parsed


def resized_model(node: onnx.NodeProto) -> onnx.ModelProto:
    """Return a model of ``node`` with the output Y, and of a Resize without a region of interest.

    The Resize has three inputs, of which the second is omitted.
    """
    model = parsed("""g (float[1, 1, 4, 4] X, float[1, 2, 2, 2] G, float[1, 1, 4, 4] Z) => (
        float[1, 1, 2, 2] Y, float[1, 1, 8, 8] R) <float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        R = Resize (Z, "", scales) }""")
    model.graph.node.insert(0, node)
    model.opset_import.append(helper.make_opsetid("ort_gridsample", 1))
    return model


@pytest.mark.parametrize("outputs", [["Y"], ["Y", ""]])
def test_patch_of_op_without_status_keeps_nodes_with_omitted_inputs(outputs: list[str]) -> None:
    node = helper.make_node("GridSample", ["X", "G"], outputs, domain="ort_gridsample")
    patched = ogs.patch_model(resized_model(node), target="primitives")
    (resize,) = (node for node in patched.graph.node if node.op_type == "Resize")
    assert list(resize.input) == ["Z", "", "scales"]
    onnx.checker.check_model(patched)


def test_omitted_input_has_no_readers() -> None:
    node = helper.make_node("GridSample", ["X", "G"], ["Y"])
    (scope,) = scopes_of(resized_model(node))
    assert scope.readers.keys() == {"X", "G", "Z", "Y", "R", "scales"}
