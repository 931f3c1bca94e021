"""The opset in which the target ``ai.onnx`` writes a node."""

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.graph.scope import opset_of
from ort_gridsample.patching import TargetName
from support.compare import refusal
from support.models import parsed
from support.paths import open_native

CODES = "interpolation_mode = 0, padding_mode = 0, align_corners = 0"
OPENMMLAB = f"mmdeploy.grid_sampler <{CODES}>"
RNG = np.random.default_rng(0)


def model_of(node: str, opset: int, *, axes: int = 2, dtype: str = "float") -> onnx.ModelProto:
    """Return a model of one node that samples 4 pixels on each axis at 3 positions."""
    pixels = ",".join(["4"] * axes)
    positions = ",".join(["3"] * axes)
    return parsed(
        f"""g ({dtype}[1,2,{pixels}] X, {dtype}[1,{positions},{axes}] G)
            => ({dtype}[1,2,{positions}] Y) {{ [warp] Y = {node} (X, G) }}""",
        opset,
    )


def assert_samples(model: onnx.ModelProto) -> None:
    """Check that onnxruntime runs ``model``, and that it computes a linear GridSample."""
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = RNG.uniform(-1, 1, shape).astype(dtype)
    (output,) = open_native(model).run(None, feeds)
    expected = ogs.grid_sample(feeds["X"], feeds["G"])
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 16, 17, 19, 20])
@pytest.mark.parametrize("node", [OPENMMLAB, "GridSample3D", f"aten.grid_sampler_3d <{CODES}>"])
def test_node_of_three_axes_raises_the_opset_to_20(node: str, opset: int) -> None:
    raised = ogs.patch_model(model_of(node, opset, axes=3), target="ai.onnx")
    onnx.checker.check_model(raised, full_check=True)
    assert opset_of(raised) == 20
    assert_samples(raised)


def test_node_of_three_axes_and_unknown_rank_raises_the_opset_to_20() -> None:
    model = model_of("GridSample3D", 17, axes=3)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    assert opset_of(ogs.patch_model(model, target="ai.onnx")) == 20


@pytest.mark.parametrize("opset", [16, 19])
def test_node_of_three_axes_in_an_older_opset_is_refused(opset: int) -> None:
    model = model_of(OPENMMLAB, 17, axes=3)
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=opset)
    assert (error.where, error.argument) == ("grid_sampler node 'warp'", "opset")
    assert error.expected.startswith("at least 20, ")


@pytest.mark.parametrize("opset", [11, 16, 19, 20])
def test_node_of_float64_raises_the_opset_to_20(opset: int) -> None:
    raised = ogs.patch_model(model_of(OPENMMLAB, opset, dtype="double"), target="ai.onnx")
    onnx.checker.check_model(raised, full_check=True)
    assert opset_of(raised) == 20
    assert_samples(raised)


@pytest.mark.parametrize("opset", [16, 17, 19])
def test_node_of_two_axes_keeps_the_opset(opset: int) -> None:
    standard = ogs.patch_model(model_of(OPENMMLAB, opset), target="ai.onnx")
    assert opset_of(standard) == opset
    assert_samples(standard)


@pytest.mark.parametrize(("axes", "dtype"), [(3, "float"), (2, "double")])
@pytest.mark.parametrize("target", ["ort_gridsample", "compiled"])
def test_op_of_the_package_is_restored_in_its_opset(
    target: TargetName, axes: int, dtype: str
) -> None:
    model = model_of("GridSample", 17, axes=axes, dtype=dtype)
    patched = ogs.patch_model(model, target=target)
    restored = ogs.patch_model(patched, target="ai.onnx")
    assert opset_of(restored) == 17
    assert [node.op_type for node in restored.graph.node] == ["GridSample"]


@pytest.mark.parametrize(
    ("target", "opset"), [("ai.onnx", 16), ("ai.onnx", 19), ("ai.onnx-2d", None)]
)
def test_patch_warns_of_a_node_that_onnxruntime_refuses(
    target: TargetName, opset: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(OPENMMLAB, 17, dtype="double")
    ogs.patch_model(model, target=target, opset=opset)
    ((name, level, text),) = caplog.record_tuples
    assert (name, level) == ("ort_gridsample", logging.WARNING)
    assert text.startswith("the installed onnxruntime does not run GridSample node 'warp")


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_patch_to_nodes_that_onnxruntime_runs_logs_no_warning(
    dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    ogs.patch_model(model_of(OPENMMLAB, 17, dtype=dtype), target="ai.onnx")
    assert not caplog.records


@pytest.mark.parametrize(
    ("axes", "dtype", "needed"), [(2, "float", 16), (3, "float", 20), (2, "double", 20)]
)
def test_patch_names_the_opset_for_decomposed_operators(
    axes: int, dtype: str, needed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of("GridSample", 20, axes=axes, dtype=dtype)
    lowered = tmp_path / "lowered.onnx"
    onnx.save(ogs.patch_model(model, target="primitives", opset=13), lowered)
    patched = tmp_path / "patched.onnx"
    assert main(["patch", str(lowered), str(patched), "--target", "ai.onnx"]) == 0
    nothing, hint = capsys.readouterr().out.splitlines()
    assert nothing == f"{patched}: nothing to replace, the model is as it was"
    assert hint.endswith(f"opset 13 lacks their nodes; --opset {needed} replaces them")
    options = ["--target", "ai.onnx", "--opset", str(needed)]
    assert main(["patch", str(lowered), str(patched), *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{patched}: opset 13 → {needed}"
    assert_samples(onnx.load(patched))
