"""``patch --for RUNTIME``: nodes that the runtime is not known to refuse, and the right outputs."""

from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.detection.records import NodeRecord
from ort_gridsample.detection.runtime_verdicts import verdict_on
from ort_gridsample.graph.runtimes import RUNTIMES, RuntimeName
from ort_gridsample.rewriting.targets.two_axes import FIRST_OPSET, LAST_OPSET
from support.attention_models import FORMS, form, form_feeds
from support.compare import refusal
from support.exported_models import EXPORTED_MODELS, slow_if_large, stored_arrays
from support.models import parsed
from support.paths import open_native, open_session

PLUGIN = "MultiscaleDeformableAttnPlugin_TRT"
#: The runtimes for which nodes get several targets.
SEVERAL = [name for name, runtime in RUNTIMES.items() if len(runtime.targets) > 1]
every_runtime = pytest.mark.parametrize("runtime", SEVERAL)
MODES = ("nearest", "linear", "cubic")
PADDINGS = (("zeros", 0), ("border", 1), ("reflection", 0), ("reflection", 1))
#: The attributes of linear, zeros and align_corners 0 in other packages.
PACKED = "<interpolation_mode = 0, padding_mode = 0, align_corners = 0>"
RNG = np.random.default_rng(0)


def sample(
    rank: int = 2,
    attributes: str = "",
    *,
    opset: int = 22,
    op_type: str = "GridSample",
    X_type: str = "float",
    grid_type: str = "float",
) -> onnx.ModelProto:
    """Return a model of a node that samples images with ``rank`` spatial axes."""
    dims = ",".join("4567"[:rank])
    lengths = ",".join("3" * rank)
    domain = op_type.partition(".")[0] if "." in op_type else ""
    model = parsed(
        f"""g ({X_type}[1,2,{dims}] X, {grid_type}[1,{lengths},{rank}] G)
            => ({X_type}[1,2,{lengths}] Y) {{ [sample] Y = {op_type} {attributes} (X, G) }}""",
        opset,
    )
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    feeds = {}
    for value in model.graph.input:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = RNG.uniform(-1.3, 1.3, dims).astype(dtype)
    return feeds


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def refused(runtime: str, model: onnx.ModelProto) -> list[NodeRecord]:
    """Return the sampling nodes that a runtime is known to refuse or to compute wrongly."""
    records = [record for record in ogs.inspect_model(model) if not record.decomposed]
    verdicts = [verdict_on(RUNTIMES[runtime], record) for record in records]
    return [
        record
        for record, verdict in zip(records, verdicts, strict=True)
        if verdict.summary.startswith(("refuses", "wrong"))
    ]


@every_runtime
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("padding_mode", "align_corners"), PADDINGS)
def test_patch_for_a_runtime_has_no_refused_node_and_the_right_output(
    runtime: RuntimeName, rank: int, mode: str, padding_mode: str, align_corners: int
) -> None:
    attributes = (
        f'<mode = "{mode}", padding_mode = "{padding_mode}", align_corners = {align_corners}>'
    )
    model = sample(rank, attributes)
    patched = ogs.patch_model(model, for_runtime=runtime)
    onnx.checker.check_model(patched)
    assert refused(runtime, patched) == []
    feeds = feeds_of(model)
    expected = ogs.grid_sample(
        feeds["X"],
        feeds["G"],
        mode,
        padding_mode,
        bool(align_corners),  # type: ignore[arg-type]
    )
    (output,) = open_native(patched).run(None, feeds)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@every_runtime
def test_patch_for_a_runtime_leaves_a_node_that_it_runs(runtime: RuntimeName) -> None:
    model = sample(opset=16)
    assert ogs.patch_model(model, for_runtime=runtime) == model


@pytest.mark.parametrize("runtime", [name for name in SEVERAL if name != "ncnn"])
@pytest.mark.parametrize("opset", [11, 16, 19, 20, 22])
def test_patch_for_a_runtime_of_planar_nodes_has_an_opset_from_16_to_19(
    runtime: RuntimeName, opset: int
) -> None:
    op_type = "GridSample" if opset >= 16 else "mmcv.grid_sampler"
    attributes = "" if opset >= 16 else PACKED
    patched = ogs.patch_model(
        sample(attributes=attributes, opset=opset, op_type=op_type), for_runtime=runtime
    )
    (node,) = patched.graph.node
    assert (node.domain, node.op_type) == ("", "GridSample")
    assert FIRST_OPSET <= patched.opset_import[0].version <= LAST_OPSET


#: Nodes of other packages, as people have them for TensorRT.
FOREIGN = {
    "mmdeploy": sample(
        attributes="<interpolation_mode = 2, padding_mode = 1, align_corners = 1>",
        opset=11,
        op_type="mmdeploy.grid_sampler",
    ),
    "GridSample3D": sample(
        3, "<mode = 1, padding_mode = 1, align_corners = 1>", opset=16, op_type="GridSample3D"
    ),
    "GridSampler": sample(attributes=PACKED, opset=17, op_type="GridSampler"),
    "com.microsoft": sample(
        attributes='<mode = "bicubic">', opset=20, op_type="com.microsoft.GridSample"
    ),
}


@every_runtime
@pytest.mark.parametrize("name", FOREIGN)
def test_node_of_another_package_becomes_standard_nodes(runtime: RuntimeName, name: str) -> None:
    model = FOREIGN[name]
    patched = ogs.patch_model(model, for_runtime=runtime)
    assert {node.domain for node in patched.graph.node} == {""}
    assert set(operators(patched)).isdisjoint({"GridSample3D", "GridSampler", "grid_sampler"})
    assert refused(runtime, patched) == []
    feeds = feeds_of(model)
    (expected,) = open_session(model).run(None, feeds)
    (output,) = open_native(patched).run(None, feeds)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@every_runtime
@pytest.mark.parametrize(("X_type", "grid_type"), [("bfloat16", "bfloat16"), ("float", "double")])
def test_types_that_opset_16_or_the_runtime_lacks_are_written_in_others(
    runtime: RuntimeName, X_type: str, grid_type: str
) -> None:
    patched = ogs.patch_model(sample(X_type=X_type, grid_type=grid_type), for_runtime=runtime)
    onnx.checker.check_model(patched)
    assert refused(runtime, patched) == []


@pytest.mark.parametrize(
    ("runtime", "X_type", "grid_type", "n_casts"),
    [
        ("tensorrt", "float16", "float", 2),
        ("tensorrt", "float", "float16", 1),
        ("tensorrt", "float16", "float16", 0),
        ("tensorrt", "double", "double", 0),
        ("directml", "float", "double", 1),
        ("directml", "double", "double", 3),
        ("directml", "float16", "float", 0),
        ("webgpu", "double", "float", 2),
        ("openvino", "double", "float", 0),
    ],
)
def test_types_that_a_runtime_refuses_are_sampled_in_float32_between_casts(
    runtime: RuntimeName, X_type: str, grid_type: str, n_casts: int
) -> None:
    model = sample(attributes='<mode = "cubic">', X_type=X_type, grid_type=grid_type)
    patched = ogs.patch_model(model, for_runtime=runtime)
    counts = operators(patched)
    assert counts == Counter(GridSample=1, Cast=n_casts) - Counter()
    assert refused(runtime, patched) == []
    if n_casts == 0:
        return
    feeds = feeds_of(model)
    (expected,) = open_session(model).run(None, feeds)
    (output,) = open_native(patched).run(None, feeds)
    assert output.dtype == expected.dtype
    np.testing.assert_allclose(output, expected, rtol=0, atol=2e-3)


@every_runtime
def test_affine_grid_becomes_basic_operators(runtime: RuntimeName) -> None:
    model = parsed(
        """g (float[1,2,3] theta) => (float[1,4,5,2] Y) <int64[4] size = {1, 2, 4, 5}> {
            Y = AffineGrid (theta, size) }""",
        20,
    )
    patched = ogs.patch_model(model, for_runtime=runtime)
    assert "AffineGrid" not in operators(patched)


@every_runtime
@pytest.mark.parametrize("name", [*FORMS][::3])
def test_patch_for_a_runtime_is_idempotent(runtime: RuntimeName, name: str) -> None:
    patched = ogs.patch_model(form(name), for_runtime=runtime)
    assert ogs.patch_model(patched, for_runtime=runtime) == patched


def test_nodes_in_branches_and_functions_are_written_for_the_runtime() -> None:
    model = parsed(
        """g (bool c, float[1,2,4,5] X, float[1,3,3,2] G) => (float[1,2,3,3] Y) {
            Y = If (c) <
                then_branch = t () => (float[1,2,3,3] A) { A = GridSample (X, G) },
                else_branch = e () => (float[1,2,3,3] B) { B = local.f <m = "cubic"> (X, G) }> }
        <domain: "local", opset_import: ["": 22]> f <m> (A, B) => (C) {
            C = GridSample <mode: string = @m> (A, B) }""",
        22,
    )
    model.opset_import.append(helper.make_opsetid("local", 1))
    patched = ogs.patch_model(model, for_runtime="qnn")
    assert refused("qnn", patched) == []
    feeds = {"c": np.array(False), **feeds_of(sample())}
    expected = ogs.grid_sample(feeds["X"], feeds["G"], "cubic")
    (output,) = open_native(patched).run(None, feeds)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@every_runtime
def test_selected_nodes_alone_are_written_for_a_runtime(runtime: RuntimeName) -> None:
    model = parsed(
        f"""g (float[1,2,4,5] X, float[1,3,3,2] G) => (float[] A, float[] B) {{
            [first] A = GridSampler {PACKED} (X, G)
            [second] B = GridSampler {PACKED} (X, G) }}""",
        16,
    )
    patched = ogs.patch_model(
        model, nodes=lambda record: record.name == "first", for_runtime=runtime
    )
    assert [node.op_type for node in patched.graph.node] == ["GridSample", "GridSampler"]


# --- TensorRT ---


@pytest.mark.parametrize("name", [name for name in FORMS if not name.startswith("volumes")])
def test_attention_for_tensorrt_is_its_plugin_if_levels_have_as_many_points(name: str) -> None:
    patched = ogs.patch_model(form(name), for_runtime="tensorrt")
    counts = operators(patched)
    n_samples = 3 if name.startswith("concatenated") else 0  # its levels differ
    assert (counts[PLUGIN], counts["GridSample"]) == (int(not n_samples), n_samples)
    feeds = form_feeds(name)
    (expected,) = open_native(form(name)).run(None, feeds)
    (output,) = open_session(patched).run(None, feeds)  # reads the plugin's node
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FORMS)
def test_attention_for_tensorrt_without_its_plugin_has_planar_gridsamples(name: str) -> None:
    patched = ogs.patch_model(form(name), target="ai.onnx-2d", for_runtime="tensorrt")
    assert operators(patched)[PLUGIN] == 0
    assert [record for record in refused("tensorrt", patched) if record.mode] == []
    feeds = form_feeds(name)
    (expected,) = open_native(form(name)).run(None, feeds)
    (output,) = open_native(patched).run(None, feeds)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


def test_plugin_becomes_gridsamples_for_tensorrt_without_its_plugin() -> None:
    name = "stacked/static-dynamo"
    plugin = ogs.patch_model(form(name), target="tensorrt-plugins")
    patched = ogs.patch_model(plugin, target="ai.onnx-2d", for_runtime="tensorrt")
    counts = operators(patched)
    assert (counts[PLUGIN], counts["GridSample"]) == (0, 3)


def test_attention_and_other_nodes_of_one_model_are_both_written_for_tensorrt() -> None:
    """A cubic volume becomes basic operators, although the model has opset 22 for its plugin."""
    model = form("stacked/static-dynamo")
    volume = sample(3, '<mode = "cubic">').graph
    model.graph.input.extend(volume.input)
    model.graph.output.extend(volume.output)
    model.graph.node.extend(volume.node)
    model.graph.node[-1].name = "volume"
    patched = ogs.patch_model(model, for_runtime="tensorrt")
    counts = operators(patched)
    assert (counts[PLUGIN], counts["GridSample"]) == (1, 0)
    assert patched.opset_import[0].version <= LAST_OPSET
    assert refused("tensorrt", patched) == []


@pytest.mark.parametrize("path", slow_if_large(EXPORTED_MODELS))
@pytest.mark.parametrize("target", [None, "ai.onnx-2d"])
def test_exported_model_for_tensorrt_has_the_right_outputs(
    path: Path, target: Literal["ai.onnx-2d"] | None
) -> None:
    patched = ogs.patch_model(path, target=target, for_runtime="tensorrt")
    assert patched.opset_import[0].version <= LAST_OPSET
    assert [record for record in refused("tensorrt", patched) if record.mode] == []
    expected = stored_arrays(path, "out.")
    outputs = open_session(patched).run([*expected], stored_arrays(path, "in."))
    for output, stored in zip(outputs, expected.values(), strict=True):
        np.testing.assert_allclose(output, stored, rtol=1e-3, atol=1e-3)


# --- Arguments ---


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_target_of_a_runtime_is_accepted(runtime: RuntimeName) -> None:
    for target in RUNTIMES[runtime].targets:
        patched = ogs.patch_model(sample(3), target=target, for_runtime=runtime)  # type: ignore[arg-type]
        onnx.checker.check_model(patched)


def test_target_of_another_runtime_is_refused() -> None:
    error = refusal(ogs.patch_model, sample(), target="tensorrt-plugins", for_runtime="openvino")
    assert (error.argument, error.found) == ("target", "'tensorrt-plugins' with for_runtime")
    assert error.expected == "'ai.onnx-2d' or 'primitives'"


@pytest.mark.parametrize("opset", [15, 20])
def test_opset_that_has_no_planar_nodes_is_refused(opset: int) -> None:
    error = refusal(ogs.patch_model, sample(), for_runtime="tensorrt", opset=opset)
    assert (error.argument, error.found) == ("opset", str(opset))


def test_patch_without_a_target_is_one_to_the_ops_of_the_package() -> None:
    assert ogs.patch_model(sample()) == ogs.patch_model(sample(), target="ort_gridsample")


@pytest.mark.parametrize("runtime", ["mnn", "tvm", "litert"])
def test_runtime_with_one_target_needs_no_target(runtime: RuntimeName) -> None:
    model = sample(3)
    patched = ogs.patch_model(model, for_runtime=runtime)
    assert patched == ogs.patch_model(model, target="primitives", for_runtime=runtime)
