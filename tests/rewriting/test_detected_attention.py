"""The nodes that rearrange the operands of a detected attention."""

from __future__ import annotations

import zipfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample.detection.find import find_matches
from ort_gridsample.detection.match import Match
from ort_gridsample.dialects.table import ATTENTION
from ort_gridsample.graph.new_names import Names
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.rewriting.targets.attention import CompiledAttentionTarget
from ort_gridsample.rewriting.targets.detected_attention import DetectedAttention
from support.attention_forms import form_of
from support.exported_models import EXPORTED_FOLDER
from support.paths import open_native


def attentions_of(model: onnx.ModelProto) -> list[Match]:
    """Return the deformable attentions that are detected around GridSamples."""
    matches = find_matches(model, scopes_of(model), None, with_reasons=False)
    return [match for match in matches if match.detected_attention is not None]


def test_weights_of_one_query_are_rearranged_without_batches() -> None:
    """A Reshape to a computed length (-1) would fail."""
    model = form_of("weights of one query").model
    (match,) = attentions_of(model)
    assert match.detected_attention is not None
    operands = DetectedAttention(match, match.detected_attention, Names(model))
    nodes = operands.e.finish(operands.call().weights, "Y")
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    weights = helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["B", 1, 2, 2, 2])
    graph = helper.make_graph(nodes, "g", [weights], [output])
    opset = helper.make_opsetid("", 20)
    session = open_native(helper.make_model(graph, opset_imports=[opset], ir_version=8))
    (rearranged,) = session.run(None, {"weights": np.zeros((0, 1, 2, 2, 2), np.float32)})
    assert rearranged.shape == (0, 1, 2, 4)


@pytest.mark.parametrize(
    "name", ["single/static-dynamo.onnx", "concatenated/static-torchscript.onnx"]
)
def test_attention_of_a_patched_file_is_fused_with_the_nodes_behind_its_guard(name: str) -> None:
    """The guard hides the shape of the sum, which a Reshape and a Transpose rearrange."""
    with zipfile.ZipFile(EXPORTED_FOLDER / "attention.zip") as archive:
        source = archive.read(name)
    names = []
    for model in (source, ogs.patch_model(source)):
        records = ogs.inspect_model(model)
        names.append([record.name for record in records if record.operator == ATTENTION])
    assert len(names[0]) == 1
    assert names[1] == names[0]


@pytest.mark.parametrize(
    "name", ["as exporters write it", "output by head", "output of separate heads", "one level"]
)
def test_compiled_op_of_a_detected_attention_writes_the_output_itself(name: str) -> None:
    model = form_of(name).model
    (match,) = attentions_of(model)
    nodes = CompiledAttentionTarget().replacement_for(match, Names(model)).nodes
    assert nodes[-1].op_type == ATTENTION
    assert list(nodes[-1].output) == [match.record.output]


def test_compiled_op_of_a_partial_sum_is_followed_by_one_add() -> None:
    """The other level is sampled in mode nearest, and so it is added."""
    model = form_of("concatenated/static-torchscript, nearest level").model
    (match,) = attentions_of(model)
    nodes = CompiledAttentionTarget().replacement_for(match, Names(model)).nodes
    (op,) = (node for node in nodes if node.op_type == ATTENTION)
    readers = [node for node in nodes if op.output[0] in node.input]
    assert [node.op_type for node in readers] == ["Add"]
    assert list(readers[0].output) == [match.record.output]
