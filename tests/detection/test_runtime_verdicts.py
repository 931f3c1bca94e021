"""What is known of runtimes: the facts themselves, and the verdicts on nodes that follow."""

import datetime
import re

import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.detection.runtime_verdicts import NOT_KNOWN, RuntimeVerdict, verdict_on
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.dialects.table import ATTENTION
from ort_gridsample.graph.runtime_facts import Fact
from ort_gridsample.graph.runtimes import RUNTIMES
from support.attention_models import form
from support.models import parsed

FACTS = [
    pytest.param(fact, id=f"{name}: {fact.verdict} {fact.what}")
    for name, runtime in RUNTIMES.items()
    for fact in runtime.facts
]
every_fact = pytest.mark.parametrize("fact", FACTS)


@every_fact
def test_fact_has_a_source_and_a_date(fact: Fact) -> None:
    assert fact.what
    assert fact.source
    datetime.date.fromisoformat(fact.date)


@every_fact
def test_fact_has_conditions_that_a_node_can_meet(fact: Fact) -> None:
    assert set(fact.operators) <= {*spec.OPERATORS, ATTENTION}
    assert set(fact.modes) <= {"nearest", "linear", "cubic"}
    assert set(fact.padding_modes) <= {"zeros", "border", "reflection"}
    assert set(fact.align_corners) <= {0, 1}
    assert {*fact.types, *fact.grid_types} <= set(spec.TYPES)
    assert fact.first_opset <= (fact.last_opset or fact.first_opset)
    assert not (fact.until and fact.verdict == "runs")


@every_fact
def test_fact_is_partial_if_it_counts_some_of_its_cells(fact: Fact) -> None:
    assert fact.is_partial == bool(re.search(r"\b\d+ of \d+\b", fact.what))


@pytest.mark.parametrize("name", RUNTIMES)
def test_runtime_has_a_title_a_reason_and_targets_that_end_with_basic_operators(name: str) -> None:
    runtime = RUNTIMES[name]
    assert runtime.title
    assert runtime.why
    assert set(runtime.targets) <= set(target_names())
    assert runtime.targets[-1] == "primitives"


def verdict(runtime: str, model: onnx.ModelProto) -> RuntimeVerdict:
    """Return the verdict on the last node of a model."""
    return verdict_on(RUNTIMES[runtime], ogs.inspect_model(model)[-1])


def sample(
    rank: int = 2,
    attributes: str = "",
    opset: int = 22,
    X_type: str = "float",
    grid_type: str = "float",
) -> onnx.ModelProto:
    """Return a model of a GridSample of images with ``rank`` spatial axes."""
    dims = ",".join("4567"[:rank])
    lengths = ",".join("3" * rank)
    return parsed(
        f"""g ({X_type}[1,2,{dims}] X, {grid_type}[1,{lengths},{rank}] G)
            => ({X_type}[1,2,{lengths}] Y) {{ Y = GridSample {attributes} (X, G) }}""",
        opset,
    )


VERDICTS = [
    ("tensorrt", sample(opset=16), "runs"),
    ("tensorrt", sample(opset=20), "wrong"),
    ("tensorrt", sample(attributes='<mode = "cubic">'), "wrong"),
    ("tensorrt", sample(attributes='<mode = "nearest">'), "runs"),
    ("tensorrt", sample(3, '<mode = "nearest">'), "refuses before 11.2"),
    ("tensorrt", sample(3), "wrong"),
    ("tensorrt", sample(1, '<mode = "nearest">'), "refuses"),
    ("tensorrt", sample(4, '<mode = "nearest">'), "refuses"),
    ("tensorrt", sample(opset=16, X_type="uint8"), "refuses"),
    ("tensorrt", sample(opset=16, X_type="double", grid_type="double"), "runs"),
    ("tensorrt", sample(opset=16, X_type="float16", grid_type="float16"), "runs"),
    ("tensorrt", sample(opset=16, X_type="float16"), "refuses"),
    ("tensorrt", sample(opset=16, grid_type="float16"), "refuses"),
    ("openvino", sample(opset=19, attributes='<mode = "bicubic">'), "runs"),
    ("openvino", sample(opset=22), "refuses before 2026.3"),
    ("openvino", sample(3), "refuses"),
    ("openvino", sample(opset=16, X_type="uint8"), NOT_KNOWN),
    ("ncnn", sample(opset=22, attributes='<mode = "cubic">'), "wrong"),
    ("ncnn", sample(opset=16, attributes='<mode = "bicubic">'), "runs"),
    ("ncnn", sample(3, '<mode = "cubic">'), "refuses"),
    ("litert", sample(attributes='<padding_mode = "reflection">'), "refuses"),
    ("litert", sample(attributes='<padding_mode = "border">'), "runs"),
    ("litert", sample(3, '<padding_mode = "border">'), "refuses"),
    ("coreml", sample(attributes='<padding_mode = "reflection">'), "refuses"),
    ("coreml", sample(attributes='<padding_mode = "reflection", align_corners = 1>'), "runs"),
    ("qnn", sample(opset=19), "runs"),
    ("qnn", sample(opset=19, X_type="double", grid_type="double"), NOT_KNOWN),
    ("qnn", sample(opset=19, attributes='<mode = "bicubic">'), "refuses"),
    ("qnn", sample(3, '<mode = "nearest">'), "refuses"),
    ("directml", sample(opset=19, X_type="int8"), "runs"),
    ("directml", sample(opset=20), "refuses"),
    ("directml", sample(opset=19, grid_type="double"), "refuses"),
    ("webgpu", sample(opset=16, attributes='<mode = "bicubic">'), "runs"),
    ("webgpu", sample(opset=22), "refuses"),
    ("rknn", sample(opset=20), "refuses"),
    ("rknn", sample(opset=19), "runs"),
    ("rknn", sample(opset=19, attributes='<padding_mode = "reflection">'), "runs"),
    ("rknn", sample(opset=19, attributes='<padding_mode = "border">'), NOT_KNOWN),
    ("rknn", sample(opset=19, attributes="<align_corners = 1>"), NOT_KNOWN),
    ("mnn", sample(attributes='<mode = "nearest">'), "wrong"),
    ("mnn", sample(), NOT_KNOWN),
    ("mnn", sample(3, '<padding_mode = "border", align_corners = 1>'), NOT_KNOWN),
    ("tvm", sample(), "runs"),
    ("tvm", sample(attributes='<padding_mode = "border">'), NOT_KNOWN),
    ("tvm", sample(attributes="<align_corners = 1>"), NOT_KNOWN),
    ("tvm", sample(3, '<mode = "nearest", padding_mode = "reflection">'), "runs"),
    ("tvm", sample(3, '<mode = "nearest", align_corners = 1>'), NOT_KNOWN),
    ("tvm", sample(3), NOT_KNOWN),
    ("tvm", sample(attributes='<mode = "cubic">'), NOT_KNOWN),
    ("tvm", sample(3, '<mode = "cubic">'), "refuses"),
    ("iree", sample(), NOT_KNOWN),
    ("iree", sample(attributes='<mode = "cubic">'), "refuses"),
    ("onnxconverter-common", sample(), NOT_KNOWN),
]


@pytest.mark.parametrize(("runtime", "model", "expected"), VERDICTS)
def test_verdict_on_a_node(runtime: str, model: onnx.ModelProto, expected: str) -> None:
    assert verdict(runtime, model).summary == expected


def test_reasons_have_the_source_and_whether_it_was_tried() -> None:
    (reason,) = verdict("openvino", sample(3, '<mode = "nearest">')).reasons
    assert reason == (
        "OpenVINO refuses images that are not 4-D (tried 2026-11-28: OpenVINO 2026.4.1; "
        "openvinotoolkit/openvino issue 37770)"
    )
    (reason,) = verdict("tensorrt", sample(3, '<mode = "nearest">')).reasons
    assert reason == (
        "TensorRT refuses 5-D images before 11.2 (read 2026-08-04: release notes of TensorRT "
        "11.2.1; tried in TensorRT-RTX 1.5.0 and 1.7.1)"
    )


def test_verdict_by_a_partial_fact_is_not_known_and_has_the_fact_as_its_reason() -> None:
    (reason,) = verdict("mnn", sample()).reasons
    assert reason == (
        "MNN gets a wrong result for linear in 2 of 6 paddings and alignments "
        "(tried 2026-11-21: MNN 3.6.1)"
    )


def test_verdict_on_a_node_of_unknown_rank_is_not_known_and_names_what_it_depends_on() -> None:
    model = parsed("g (float[] X, float[] G) => (float[] Y) { Y = GridSample (X, G) }", 19)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    found = verdict("openvino", model)
    assert found.summary == NOT_KNOWN
    assert [fact.what for fact in found.facts] == ["images that are not 4-D"]


def test_verdict_on_an_attribute_of_the_caller_is_not_known() -> None:
    model = parsed(
        """g (float[1,2,4,5] X, float[1,3,3,2] G) => (float[1,2,3,3] Y) {
            Y = local.f <m = "linear"> (X, G) }
        <domain: "local", opset_import: ["": 22]> f <m> (A, B) => (C) {
            C = GridSample <mode: string = @m> (A, B) }""",
        22,
    )
    model.opset_import.append(onnx.helper.make_opsetid("local", 1))
    assert verdict("qnn", model).summary == NOT_KNOWN
    assert verdict("webgpu", model).summary == "refuses"  # whatever the mode


def test_verdict_on_a_node_of_another_package_is_a_refusal() -> None:
    model = parsed(
        """g (float[1,2,4,5] X, float[1,3,3,2] G) => (float[1,2,3,3] Y) {
            Y = mmdeploy.grid_sampler <interpolation_mode = 0> (X, G) }""",
        11,
    )
    model.opset_import.append(onnx.helper.make_opsetid("mmdeploy", 1))
    found = verdict("tensorrt", model)
    assert (found.summary, *found.reasons) == (
        "refuses",
        "grid_sampler of mmdeploy is not an operator of ONNX",
    )


def test_verdict_on_the_plugin_of_tensorrt_is_that_of_its_runtime() -> None:
    model = ogs.patch_model(form("stacked/static-dynamo"), target="tensorrt-plugins")
    assert verdict("tensorrt", model).summary == "runs"
    assert verdict("openvino", model).summary == "refuses"


def test_verdict_on_deformable_attention_in_tensorrt_is_that_of_its_gridsamples() -> None:
    (attention, *_) = ogs.inspect_model(form("stacked/static-dynamo"))
    assert attention.operator == ATTENTION
    assert verdict_on(RUNTIMES["tensorrt"], attention).summary == "wrong"
    assert verdict_on(RUNTIMES["openvino"], attention).summary == NOT_KNOWN


def test_verdict_on_affine_grid() -> None:
    model = parsed(
        """g (float[1,2,3] theta, int64[4] size) => (float[] grid) {
            grid = AffineGrid (theta, size) }""",
        20,
    )
    verdicts = {name: verdict(name, model).summary for name in ("tensorrt", "openvino", "iree")}
    assert verdicts == {"tensorrt": "refuses", "openvino": "runs", "iree": NOT_KNOWN}
