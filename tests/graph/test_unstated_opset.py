"""Models that import no version of the ONNX domain. onnxruntime uses its newest one for them."""

import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.graph.scope import UNSTATED_OPSET, opset_of
from support.cases import Attributes
from support.models import grid_sample_model


@pytest.mark.parametrize(("opset", "mode"), [(16, "bilinear"), (UNSTATED_OPSET, "linear")])
def test_patch_of_unstated_opset_converts_it(opset: int, mode: str) -> None:
    attributes = [Attributes("linear", "border", True)]
    model = grid_sample_model("float32", "float32", 2, attributes, opset=UNSTATED_OPSET)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    patched = ogs.patch_model(model, target="ai.onnx", opset=opset)
    (node,) = patched.graph.node
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert values["mode"] == mode.encode()
    assert opset_of(patched) == opset
