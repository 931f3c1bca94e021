"""Constants that nothing reads after a patch: onnxruntime warns of each."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.graph.scope import Scope, scopes_of
from ort_gridsample.patching import TargetName
from support import faults
from support.exported_models import EXPORTED_MODELS, slow_if_large
from support.foreign_nodes import DIALECTS
from support.models import parsed

TARGETS: list[TargetName] = ["primitives", "ai.onnx", "ai.onnx-2d", "compiled", "ort_gridsample"]
lengths = numpy_helper.from_array(np.array([1, 1, 3, 3], np.int64), "size")
SIGNATURE = "g (float[1,2,3] theta) => (float[1,3,3,2] Y)"


def constants_of(scope: Scope) -> set[str]:
    """Return the constants that ``scope`` defines, except initializers that can be fed."""
    nodes = [node for node in scope if node.op_type == "Constant"]
    constants = {name for node in nodes for name in node.output}
    if isinstance(scope.container, onnx.GraphProto):
        constants |= {tensor.name for tensor in scope.container.initializer}
        constants |= {sparse.values.name for sparse in scope.container.sparse_initializer}
        constants -= {value.name for value in scope.container.input}
    return constants


def unread_constants(model: onnx.ModelProto) -> set[str]:
    """Return the names of constants at any depth that no node reads."""
    return {
        name for scope in scopes_of(model) for name in constants_of(scope) - scope.readers.keys()
    }


def warnings_of(model: onnx.ModelProto, capfd: pytest.CaptureFixture[str]) -> set[str]:
    """Return what onnxruntime warns of constants while it opens ``model``."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    capfd.readouterr()
    onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    lines = capfd.readouterr().err.splitlines()
    return {line.split("]", 1)[1] for line in lines if "Removing initializer" in line}


@faults.needs_adapters
@pytest.mark.parametrize("opset", [None, 12])
@pytest.mark.parametrize("path", slow_if_large(EXPORTED_MODELS), ids=lambda path: path.stem)
def test_onnxruntime_does_not_warn_of_a_lowered_exported_model(
    path: Path, opset: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(path)
    lowered = ogs.patch_model(model, target="primitives", opset=opset)
    assert unread_constants(lowered) <= unread_constants(model)
    assert not warnings_of(lowered, capfd)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", DIALECTS)
def test_patched_dialect_has_no_constant_without_a_reader(name: str, target: TargetName) -> None:
    assert not unread_constants(ogs.patch_model(DIALECTS[name], target=target))


#: Models with a constant size, which lowered nodes do not read; and the scope that defines it.
SIZE = "size = Constant <value = int64[4] {1, 1, 3, 3}> ()"
MODELS = {
    "initializer": f"{SIGNATURE} {{ Y = AffineGrid (theta, size) }}",
    "Constant": f"{SIGNATURE} {{ {SIZE} Y = AffineGrid (theta, size) }}",
    "two readers": f"""{SIGNATURE} {{
        {SIZE}
        A = AffineGrid (theta, size)
        B = AffineGrid <align_corners = 1> (theta, size)
        Y = Add (A, B) }}""",
    "Constant around a branch": f"""g (float[1,2,3] theta, bool c) => (float[1,3,3,2] Y) {{
        {SIZE}
        Y = If (c) <
            then_branch = t () => (float[1,3,3,2] T) {{ T = AffineGrid (theta, size) }},
            else_branch = e () => (float[1,3,3,2] E) {{
                E = AffineGrid <align_corners = 1> (theta, size) }}> }}""",
    "Constant in a branch": f"""g (float[1,2,3] theta, bool c) => (float[1,3,3,2] Y) {{
        Y = If (c) <
            then_branch = t () => (float[1,3,3,2] T) {{ {SIZE} T = AffineGrid (theta, size) }},
            else_branch = e () => (float[1,3,3,2] E) {{ {SIZE} E = AffineGrid (theta, size) }}> }}
        """,
    "Constant in a function": f"""{SIGNATURE} {{ Y = local.grid (theta) }}
        <domain: "local", opset_import: ["": 20]> grid (theta) => (Y) {{
            {SIZE} Y = AffineGrid (theta, size) }}""",
}


def model_named(name: str) -> onnx.ModelProto:
    model = parsed(MODELS[name])
    if name == "initializer":
        model.graph.initializer.append(lengths)
    return model


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_constant_that_only_lowered_nodes_read_is_dropped(name: str, functions: bool) -> None:
    lowered = ogs.patch_model(model_named(name), target="primitives", functions=functions)
    onnx.checker.check_model(lowered, full_check=True)
    assert not unread_constants(lowered)
    assert not any("size" in constants_of(scope) for scope in scopes_of(lowered))


def test_initializer_that_is_an_input_is_kept() -> None:
    model = model_named("initializer")
    model.graph.input.append(helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [4]))
    lowered = ogs.patch_model(model, target="primitives")
    assert lowered.graph.initializer == model.graph.initializer
    assert lowered.graph.input == model.graph.input


def test_initializer_that_is_an_output_is_kept() -> None:
    model = model_named("initializer")
    model.graph.output.append(helper.make_tensor_value_info("size", onnx.TensorProto.INT64, [4]))
    lowered = ogs.patch_model(model, target="primitives")
    assert lowered.graph.initializer == model.graph.initializer


@pytest.mark.parametrize("name", ["initializer", "Constant"])
def test_constant_that_another_node_reads_is_kept(name: str) -> None:
    model = model_named(name)
    model.graph.node.append(helper.make_node("Neg", ["size"], ["negative"]))
    model.graph.output.append(
        helper.make_tensor_value_info("negative", onnx.TensorProto.INT64, [4])
    )
    lowered = ogs.patch_model(model, target="primitives")
    assert "size" in constants_of(scopes_of(lowered)[0])
    onnx.checker.check_model(lowered, full_check=True)


def test_constant_without_a_reader_in_the_model_is_kept() -> None:
    model = model_named("Constant")
    unused = numpy_helper.from_array(np.zeros(3, np.float32), "unused")
    model.graph.initializer.append(unused)
    lowered = ogs.patch_model(model, target="primitives")
    assert list(lowered.graph.initializer) == [unused]
