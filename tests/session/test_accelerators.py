"""Sessions with other execution providers: a faked one, OpenVINO's, WebGPU's and CUDA's."""

import json
import math
import os
import pickle
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.custom_ops.provider import definitions
from ort_gridsample.detection.find import records_of
from ort_gridsample.detection.records import NodeRecord
from ort_gridsample.inference.trial import Runner, Trial
from ort_gridsample.kernels.cache_folder import sealed, unsealed
from ort_gridsample.session import (
    accelerator_answers,
    accelerators,
    installed_runtime,
    provider_process,
)
from ort_gridsample.session.accelerator_answers import RUNS, AnswerCache
from ort_gridsample.session.accelerators import AcceleratorProbe, ProviderForm
from ort_gridsample.session.plugins import devices_of
from ort_gridsample.session.probe_cases import build_case
from ort_gridsample.session.provider_process import ProviderProcess
from ort_gridsample.session.provider_script import READY
from support.attention_models import form
from support.compare import refusal
from support.decomposed_models import BILINEAR_ZEROS, load_decomposed
from support.exported_models import (
    EXPORTED_MODELS,
    Arrays,
    run_stored_inputs,
    stored_arrays,
)
from support.installed_plugins import register_installed_plugins
from support.models import loose, parsed
from support.processes import run_program

#: A provider of every build of onnxruntime, which runs no node.
AZURE = "AzureExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
WEBGPU = "WebGpuExecutionProvider"
#: Those that are plugins.
PLUGINS = register_installed_plugins()
AVAILABLE = [*onnxruntime.get_available_providers(), *PLUGINS]
CUDA = "CUDAExecutionProvider"


def has_cuda() -> bool:
    """Whether onnxruntime has a provider of CUDA that finds a GPU and its libraries."""
    if CUDA not in AVAILABLE:
        return False
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = parsed("g (float[1] X) => (float[1] Y) { Y = Relu (X) }", 20)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, [CUDA])
    return session.get_providers()[0] == CUDA


#: A provider that runs nodes, if this build of onnxruntime has one.
REAL_PROVIDER = next((name for name in (OPENVINO, WEBGPU) if name in AVAILABLE), "")
if not REAL_PROVIDER and has_cuda():
    REAL_PROVIDER = CUDA
#: This package's own provider.
PROVIDER = definitions.NAME
needs_azure = pytest.mark.skipif(
    AZURE not in AVAILABLE, reason="this onnxruntime has no provider to fake"
)

RNG = np.random.default_rng(0)


def sampling_model(
    rank: int, mode: str, opset: int, has_relu: bool = True, is_static: bool = True
) -> onnx.ModelProto:
    """Return a model of a GridSample of X and G.

    Args:
        rank: the number of spatial axes, 2 or 3.
        mode: the mode of the node.
        opset: the opset of the model.
        has_relu: whether X is the output of a Relu.
        is_static: whether the shapes of the inputs are known.
    """
    X_shape = ["2", "3", *"567"[:rank]]
    grid_shape = ["2", *"234"[:rank], str(rank)]
    if not is_static:
        X_shape = [f"x{axis}" for axis in range(len(X_shape))]
        grid_shape = [f"g{axis}" for axis in range(len(grid_shape))]
    nodes = f'Y = GridSample <mode = "{mode}"> ({"A" if has_relu else "X"}, G)'
    if has_relu:
        nodes = f"A = Relu (X) {nodes}"
    inputs = f"float[{','.join(X_shape)}] X, float[{','.join(grid_shape)}] G"
    return parsed(f"g ({inputs}) => (float[] Y) {{ {nodes} }}", opset)


def feeds_of(rank: int) -> dict[str, np.ndarray]:
    X = RNG.random((2, 3, *(5, 6, 7)[:rank])).astype(np.float32)
    grid = RNG.uniform(-1.2, 1.2, (2, *(2, 3, 4)[:rank], rank)).astype(np.float32)
    return {"X": X, "G": grid}


@pytest.fixture(autouse=True)
def empty_answer_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    # Not by XDG_CACHE_HOME, where the kernels would have to be compiled again.
    monkeypatch.setattr(accelerator_answers, "cache_folder", lambda: tmp_path / "ort_gridsample")


#: Whether a faked provider runs the nodes of a model.
Rule = Callable[[list[onnx.NodeProto]], bool]
FakeProvider = Callable[[Rule], Mock]
REFUSAL = "it takes something else"


def answer_trials_on_providers(
    answer: Callable[[Trial], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let ``answer`` return the refusals of trials on providers. Others run in onnxruntime."""
    run_trial = Trial.refusal

    def refusal_of(trial: Trial, runner: Runner, output_name: str) -> str:
        if isinstance(runner, ProviderProcess):
            return answer(trial)
        return run_trial(trial, runner, output_name)

    monkeypatch.setattr(Trial, "refusal", refusal_of)


@pytest.fixture
def fake_provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """Return a function that fakes a provider with a rule, and returns the mock of its probe."""

    def fake(rule: Rule) -> Mock:
        def answer(trial: Trial) -> str:
            nodes = list(onnx.load_model_from_string(trial.model).graph.node)
            return "" if rule(nodes) else REFUSAL

        probe = Mock(side_effect=answer)
        answer_trials_on_providers(probe, monkeypatch)
        return probe

    return fake


def form_of(
    record: NodeRecord, accelerated: Literal["lower", "keep"] = "keep", opset: int = 20
) -> ProviderForm | None:
    with closing(
        AcceleratorProbe([(AZURE, {})], accelerated, only_sampling_nodes=False)
    ) as providers:
        return providers.form_of(record, {"": opset})


def has_mode(nodes: list[onnx.NodeProto], mode: bytes, domain: str = "") -> bool:
    """Return whether a GridSample of this domain has the mode."""
    return any(
        attribute.name == "mode" and attribute.s == mode
        for node in nodes
        if node.op_type == "GridSample" and node.domain == domain
        for attribute in node.attribute
    )


def has_two_grid_samples(nodes: list[onnx.NodeProto]) -> bool:
    return sum(node.op_type == "GridSample" for node in nodes) == 2


def has_basic_operators_only(nodes: list[onnx.NodeProto]) -> bool:
    return not any(node.op_type in ("GridSample", "AffineGrid") for node in nodes)


@dataclass(frozen=True)
class FormCase:
    """A node, a provider that runs it in one form only, and that form.

    Attributes:
        rank: the number of spatial axes.
        mode: the mode of the node.
        rule: what the provider runs.
        form: the name of the form; empty for the node itself.
        op_types: types of nodes in the model that onnxruntime saves. None if the node is written
            with the mode of an older opset, which onnxruntime's kernel refuses here.
    """

    rank: int
    mode: str
    rule: Rule
    form: str
    op_types: set[str] | None


FORM_CASES = [
    FormCase(2, "linear", lambda nodes: has_mode(nodes, b"linear"), "", {"GridSample"}),
    FormCase(2, "cubic", lambda nodes: has_mode(nodes, b"bicubic"), "opset 16's words", None),
    FormCase(
        2,
        "linear",
        lambda nodes: has_mode(nodes, b"bilinear", "com.microsoft"),
        "com.microsoft's node",
        {"GridSample"},
    ),
    FormCase(3, "linear", has_two_grid_samples, "4-D GridSamples", None),
    FormCase(3, "cubic", has_basic_operators_only, "basic operators", {"Gather"}),
]
each_form = pytest.mark.parametrize(
    "case", FORM_CASES, ids=[case.form or "the node itself" for case in FORM_CASES]
)


@needs_azure
@each_form
def test_form_is_the_first_that_the_provider_runs(
    case: FormCase, fake_provider: FakeProvider
) -> None:
    probe = fake_provider(case.rule)
    (record,) = records_of(sampling_model(case.rank, case.mode, 20), installed_runtime.PROBE)
    for _ in range(2):
        form = form_of(record, "lower")
        assert form.name == case.form
        assert form.refusal == (REFUSAL if case.form else "")
    models = {call.args[0].model for call in probe.mock_calls}
    assert len(models) == probe.call_count  # no model is probed twice
    assert (form_of(record) is None) == bool(case.form)


@needs_azure
@each_form
def test_session_writes_node_in_the_form_that_the_provider_runs(
    case: FormCase, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    fake_provider(case.rule)
    model = sampling_model(case.rank, case.mode, 20)
    feeds = feeds_of(case.rank)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = ogs.InferenceSession(model).run(None, feeds)
    session = ogs.InferenceSession(model, options, [AZURE, "CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=0, atol=1e-4)

    (placement,) = session.placements
    if case.op_types is None:
        assert placement.runs_on in ("compiled op", "onnxruntime", "Python op")
    else:
        assert placement.runs_on == AZURE
        assert case.form in placement.note
        nodes = onnx.load(tmp_path / "saved.onnx").graph.node
        assert case.op_types <= {node.op_type for node in nodes}
        domains = " ".join(node.domain for node in nodes)
        assert not re.search(r"\bort_gridsample|contrib", domains)
    (restored,) = pickle.loads(pickle.dumps(session)).placements
    assert restored.runs_on == placement.runs_on


@needs_azure
@each_form
@pytest.mark.parametrize(
    "arguments",
    [{"accelerated": "never"}, {"nodes": "all"}, {"nodes": lambda record: True}],
    ids=["never accelerated", "all nodes", "selected nodes"],
)
def test_session_runs_our_op_if_the_user_requests_it(
    arguments: dict[str, object], case: FormCase, fake_provider: FakeProvider
) -> None:
    fake_provider(case.rule)
    model = sampling_model(case.rank, case.mode, 20)
    (placement,) = ogs.InferenceSession(model, None, [AZURE], **arguments).placements
    assert placement.is_ours


@needs_azure
def test_node_of_another_dialect_is_written_as_the_standards(fake_provider: FakeProvider) -> None:
    probe = fake_provider(lambda nodes: has_mode(nodes, b"linear"))
    mmcv_model = ogs.patch_model(sampling_model(2, "linear", 20), target="mmcv")
    (record,) = records_of(mmcv_model, installed_runtime.PROBE)
    assert form_of(record, "lower").name == "the standard's node"
    assert probe.call_count == 2


@needs_azure
def test_node_that_the_provider_runs_in_no_form_stays_on_the_cpu(
    fake_provider: FakeProvider,
) -> None:
    probe = fake_provider(lambda nodes: False)
    model = sampling_model(3, "linear", 20)
    feeds = feeds_of(3)
    session = ogs.InferenceSession(model, None, [AZURE])
    cpu_session = ogs.InferenceSession(model)
    assert session.placements == cpu_session.placements
    # The node itself, opset 16's words, 4-D GridSamples and basic operators.
    assert probe.call_count == 4
    np.testing.assert_array_equal(session.run(None, feeds)[0], cpu_session.run(None, feeds)[0])


# --- Providers with kernels of float32 only ---


@pytest.fixture
def float32_provider(monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """Return a function like that of ``fake_provider``, for a provider of sampling nodes only.

    It refuses sampling nodes with inputs of other floats than float32, and models without sampling
    nodes. The rule gets the sampling nodes.
    """

    def fake(rule: Rule) -> Mock:
        def answer(trial: Trial) -> str:
            model = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(trial.model))
            values = (*model.graph.input, *model.graph.value_info)
            types = {value.name: value.type.tensor_type.elem_type for value in values}
            nodes = [n for n in model.graph.node if n.op_type in ("GridSample", "AffineGrid")]
            accepted = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
            input_types = {types[name] for node in nodes for name in node.input}
            return "" if nodes and input_types <= accepted and rule(nodes) else REFUSAL

        probe = Mock(side_effect=answer)
        answer_trials_on_providers(probe, monkeypatch)
        return probe

    return fake


def typed_model(
    X_type: str, grid_type: str, opset: int = 20, mode: str = "linear"
) -> onnx.ModelProto:
    """Return a model of a GridSample of inputs of these types, by the names of onnx.parser."""
    inputs = f"{X_type}[2,3,5,6] X, {grid_type}[2,2,3,2] G"
    node = f'Y = GridSample <mode = "{mode}"> (X, G)'
    return parsed(f"g ({inputs}) => ({X_type}[2,3,2,3] Y) {{ {node} }}", opset)


IN_FLOAT32 = "in float32 between Casts"
#: The types of X and of the grid -> the number of Casts.
NUMBERS_OF_CASTS = {
    ("float16", "float16"): 3,
    ("float16", "float"): 2,
    ("float", "float16"): 1,
    ("double", "double"): 3,
    ("double", "float"): 2,
    ("float", "double"): 1,
}
#: The types by their names in onnx.parser -> numpy's.
DTYPES = {"float16": "float16", "float": "float32", "double": "float64"}


@needs_azure
@pytest.mark.parametrize(("types", "n_casts"), NUMBERS_OF_CASTS.items())
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_node_of_other_floats_is_written_in_float32_for_a_provider_without_them(
    types: tuple[str, str], n_casts: int, mode: str, float32_provider: FakeProvider, tmp_path: Path
) -> None:
    float32_provider(lambda nodes: True)
    model = typed_model(*types, mode=mode)
    feeds = {
        "X": RNG.random((2, 3, 5, 6)).astype(DTYPES[types[0]]),
        "G": RNG.uniform(-1.2, 1.2, (2, 2, 3, 2)).astype(DTYPES[types[1]]),
    }
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = ogs.InferenceSession(model).run(None, feeds)
    session = ogs.InferenceSession(model, options, [AZURE, "CPUExecutionProvider"])
    (placement,) = session.placements
    assert placement.runs_on == AZURE
    assert placement.note == (
        f"written as the standard's node {IN_FLOAT32}, because {AZURE} refuses the node itself: "
        f"{REFUSAL}"
    )
    saved = [node.op_type for node in onnx.load(tmp_path / "saved.onnx").graph.node]
    assert sorted(saved) == [*["Cast"] * n_casts, "GridSample"]
    (output,) = session.run(None, feeds)
    assert output.dtype == expected.dtype
    tolerance = 2e-3 if "float16" in types else 1e-6
    np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)


@needs_azure
@pytest.mark.parametrize(
    ("opset", "rule", "form"),
    [
        (16, lambda nodes: True, "the standard's node"),
        (22, lambda nodes: True, "the standard's node"),
        (22, lambda nodes: has_mode(nodes, b"bilinear"), "opset 16's words"),
        (20, lambda nodes: has_mode(nodes, b"bilinear", "com.microsoft"), "com.microsoft's node"),
    ],
    ids=["opset 16", "opset 22", "words", "com.microsoft"],
)
@pytest.mark.parametrize("element_type", ["float16", "double", "bfloat16"])
def test_form_in_float32_has_the_spelling_that_the_provider_runs(
    opset: int, rule: Rule, form: str, element_type: str, float32_provider: FakeProvider
) -> None:
    if opset < 22 and element_type == "bfloat16":
        pytest.skip("GridSample has no bfloat16 before opset 22")
    float32_provider(rule)
    mode = "bilinear" if opset == 16 else "linear"
    model = typed_model(element_type, element_type, opset, mode)
    (record,) = records_of(model, installed_runtime.PROBE)
    found = form_of(record, "lower", opset)
    assert found is not None
    assert (found.name, found.refusal) == (f"{form} {IN_FLOAT32}", REFUSAL)
    assert form_of(record, "keep", opset) is None


@needs_azure
@pytest.mark.parametrize("element_type", ["float16", "double", "bfloat16"])
def test_affine_grid_of_other_floats_is_written_in_float32(
    element_type: str, float32_provider: FakeProvider
) -> None:
    float32_provider(lambda nodes: True)
    model = parsed(f"""g ({element_type}[2,2,3] theta) => ({element_type}[2,4,5,2] G) {{
        size = Constant <value_ints = [2, 3, 4, 5]> ()
        G = AffineGrid (theta, size) }}""")
    (record,) = records_of(model, installed_runtime.PROBE)
    found = form_of(record, "lower")
    assert found is not None
    assert found.name == f"the standard's node {IN_FLOAT32}"


@needs_azure
def test_volume_of_halves_is_written_in_float32_rather_than_as_4d_nodes(
    float32_provider: FakeProvider,
) -> None:
    """The 4-D nodes would be several, and their coordinates less exact."""
    float32_provider(lambda nodes: True)
    graph = "g (float16[1,2,3,4,5] X, float16[1,2,2,2,3] G) => (float16[1,2,2,2,2] Y)"
    model = parsed(f"{graph} {{ Y = GridSample (X, G) }}", 20)
    (record,) = records_of(model, installed_runtime.PROBE)
    found = form_of(record, "lower")
    assert found is not None
    assert found.name == f"the standard's node {IN_FLOAT32}"


@needs_azure
def test_node_of_float32_is_not_tried_between_casts(float32_provider: FakeProvider) -> None:
    probe = float32_provider(lambda nodes: False)
    (record,) = records_of(typed_model("float", "float"), installed_runtime.PROBE)
    assert form_of(record, "lower") is None
    models = [onnx.load_model_from_string(call.args[0].model) for call in probe.call_args_list]
    first_operators = [model.graph.node[1].op_type for model in models]
    assert "Cast" not in first_operators[:-1]  # the last one has basic operators


@needs_azure
def test_function_of_one_type_has_the_node_in_float32_in_its_body(
    float32_provider: FakeProvider,
) -> None:
    float32_provider(lambda nodes: True)
    model = parsed(
        """g (float16[1,1,4,4] A, float16[1,1,4,4] B, float[1,2,2,2] G)
            => (float16[] Y, float16[] Z) { Y = local.f (A, G) Z = local.f (B, G) }
        <domain: "local", opset_import: ["": 20]>
        f (X, grid) => (S) { S = GridSample (X, grid) }""",
        20,
    )
    feeds = {name: RNG.random((1, 1, 4, 4)).astype(np.float16) for name in "AB"}
    feeds["G"] = RNG.uniform(-1, 1, (1, 2, 2, 2)).astype(np.float32)
    session = ogs.InferenceSession(model, None, [AZURE])
    (placement,) = session.placements
    assert placement.note.startswith(f"written as the standard's node {IN_FLOAT32}, because")
    expected = ogs.InferenceSession(model).run(None, feeds)
    for output, expected_output in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(output, expected_output, rtol=0, atol=2e-3)


@needs_azure
def test_affine_grid_is_written_in_the_form_that_the_provider_runs(
    fake_provider: FakeProvider,
) -> None:
    model = parsed("""g (float[2,2,3] theta, float[2,3,5,6] X) => (float[] Y) {
        size = Constant <value_ints = [2, 3, 4, 5]> ()
        G = AffineGrid (theta, size)
        Y = GridSample (X, G) }""")
    fake_provider(lambda nodes: not any(node.op_type == "AffineGrid" for node in nodes))
    session = ogs.InferenceSession(model, None, [AZURE])
    affine, sample = sorted(session.placements, key=lambda placement: placement.record.operator)
    assert "basic operators" in affine.note
    assert (sample.runs_on, sample.note) == (AZURE, "")
    feeds = {
        "theta": RNG.random((2, 2, 3)).astype("float32"),
        "X": RNG.random((2, 3, 5, 6)).astype("float32"),
    }
    np.testing.assert_allclose(
        session.run(None, feeds)[0], ogs.InferenceSession(model).run(None, feeds)[0], atol=1e-5
    )


def integer_model() -> onnx.ModelProto:
    model = sampling_model(2, "nearest", 20, has_relu=False)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model


def model_without_pixels() -> onnx.ModelProto:
    model = sampling_model(2, "nearest", 20, has_relu=False)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 0
    return model


@needs_azure
@pytest.mark.parametrize(
    ("model", "providers"),
    [
        (loose(sampling_model(2, "linear", 20)), [AZURE]),
        (integer_model(), [AZURE]),
        (model_without_pixels(), [AZURE]),
        (sampling_model(2, "linear", 20), ["CPUExecutionProvider", AZURE]),
        (sampling_model(2, "linear", 20), None),
    ],
    ids=["unknown ranks", "integers", "no pixels", "after the CPU", "no provider"],
)
def test_session_without_a_model_to_probe_runs_no_probe(
    model: onnx.ModelProto, providers: list[str] | None, fake_provider: FakeProvider
) -> None:
    probe = fake_provider(lambda nodes: True)
    ogs.InferenceSession(model, None, providers)
    probe.assert_not_called()


@needs_azure
def test_session_with_unknown_value_of_accelerated_is_refused() -> None:
    model = sampling_model(2, "linear", 20)
    error = refusal(ogs.InferenceSession, model, None, [AZURE], accelerated="fast")
    assert error.argument == "accelerated"
    assert error.found == "'fast'"
    assert error.expected == "'lower', 'keep' or 'never'"


@needs_azure
def test_model_that_the_provider_fails_to_open_is_opened_for_the_cpu(
    fake_provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_provider(lambda nodes: True)
    # The first call wraps the method. Inside the patch, the wrapper would be removed with it.
    ogs.register()
    original = onnxruntime.InferenceSession.__init__
    failures = [RuntimeError("no memory")]

    def fail_once(self: onnxruntime.InferenceSession, *args: object, **kwargs: object) -> None:
        if failures and isinstance(self, ogs.InferenceSession):
            raise failures.pop()
        original(self, *args, **kwargs)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", fail_once)
    session = ogs.InferenceSession(sampling_model(2, "linear", 20), None, [AZURE])
    providers = f"the providers {{'{AZURE}': {{}}}}"
    assert caplog.messages == [
        f"{providers} failed (no memory); retrying with these nodes on the CPU"
    ]
    assert [placement.is_ours for placement in session.placements] == [True]


@needs_azure
def test_pickle_after_set_providers_of_a_model_without_sampling_nodes_has_these() -> None:
    model = parsed("g (float[1] X) => (float[1] Y) { Y = Relu (X) }", 20).SerializeToString()
    session = ogs.InferenceSession(model, providers=["CPUExecutionProvider"])
    session.set_providers([AZURE, "CPUExecutionProvider"])
    restored = pickle.loads(pickle.dumps(session))
    assert restored.get_providers() == [AZURE, "CPUExecutionProvider"]


@needs_azure
@pytest.mark.parametrize("source", ["bytes", "path"])
def test_set_providers_places_the_nodes_again(
    source: str, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    fake_provider(lambda nodes: True)
    model: bytes | Path = sampling_model(2, "linear", 20).SerializeToString()
    if source == "path":
        path = tmp_path / "model.onnx"
        path.write_bytes(model)
        model = path
    session = ogs.InferenceSession(model)
    (before,) = session.placements
    feeds = feeds_of(2)
    (expected,) = session.run(None, feeds)

    session.set_providers([AZURE, "CPUExecutionProvider"])
    (on_accelerator,) = session.placements
    assert on_accelerator.runs_on == AZURE
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-6)

    session.set_providers(["CPUExecutionProvider"])
    (on_cpu,) = session.placements
    assert on_cpu.runs_on == before.runs_on
    assert on_cpu.runs_on != AZURE
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


@pytest.fixture
def session_after_failure() -> ogs.InferenceSession:
    """Return a session on the CPU whose ``set_providers`` raised an error."""
    model = sampling_model(2, "linear", 20).SerializeToString()
    session = ogs.InferenceSession(model, providers=["CPUExecutionProvider"], enable_fallback=0)
    with pytest.raises(RuntimeError, match="NoSuchProvider"):
        session.set_providers(["NoSuchProvider"])
    return session


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_pickle_after_failed_set_providers_has_the_former_ones(
    session_after_failure: ogs.InferenceSession,
) -> None:
    restored = pickle.loads(pickle.dumps(session_after_failure))
    assert restored.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_session_after_failed_set_providers_runs_on_the_former_ones(
    session_after_failure: ogs.InferenceSession,
) -> None:
    feeds = feeds_of(2)
    (expected,) = ogs.InferenceSession(sampling_model(2, "linear", 20)).run(None, feeds)
    np.testing.assert_array_equal(session_after_failure.run(None, feeds)[0], expected)


def refused_model() -> onnx.ModelProto:
    model = sampling_model(2, "linear", 20)
    model.graph.node[1].attribute[0].s = b"none"
    return model


@needs_azure
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (load_decomposed(BILINEAR_ZEROS), ProviderForm()),
        (ogs.patch_model(sampling_model(2, "linear", 20)), None),
        (refused_model(), None),
    ],
    ids=["decomposed", "patched", "refused"],
)
def test_node_without_a_standard_form_is_not_probed(
    model: onnx.ModelProto, expected: ProviderForm | None, fake_provider: FakeProvider
) -> None:
    probe = fake_provider(lambda nodes: True)
    (record,) = records_of(model, installed_runtime.PROBE)
    assert form_of(record, "lower") == expected
    probe.assert_not_called()


@needs_azure
def test_attention_around_nodes_of_a_provider_is_not_replaced(
    fake_provider: FakeProvider,
) -> None:
    fake_provider(lambda nodes: True)
    session = ogs.InferenceSession(form("stacked/static-dynamo"), None, [AZURE])
    placements = {
        (placement.record.operator, placement.runs_on) for placement in session.placements
    }
    assert placements == {("GridSample", AZURE)}


@needs_azure
def test_inspect_shows_the_form_that_a_provider_runs(
    fake_provider: FakeProvider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_provider(has_basic_operators_only)
    onnx.save(sampling_model(3, "cubic", 20), tmp_path / "model.onnx")
    assert main(["inspect", str(tmp_path / "model.onnx"), "--provider", AZURE, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["session"]["runs_on"] == AZURE
    start = f"written as basic operators, because {AZURE} refuses the node itself: it takes"
    assert record["session"]["reason"].startswith(start)


# --- Answers of probes ---


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return the mock of a probe whose answer is that the provider does not run the node."""
    mock = Mock(return_value="no")
    answer_trials_on_providers(mock, monkeypatch)
    return mock


@pytest.fixture
def form_in_another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], ProviderForm | None]:
    """Return a function that finds a node's form with a cache that was read from disk."""
    (record,) = records_of(sampling_model(2, "nearest", 16), installed_runtime.PROBE)

    def find_form() -> ProviderForm | None:
        monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
        return form_of(record, opset=16)

    return find_form


def answer_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "ort_gridsample" / "providers").iterdir()
    return file


FindForm = Callable[[], ProviderForm | None]


def test_answer_is_kept_for_other_processes(
    probe: Mock, form_in_another_process: FindForm, tmp_path: Path
) -> None:
    assert form_in_another_process() is None
    assert form_in_another_process() is None
    probe.assert_called_once()
    # Reading an answer does not make it newer.
    an_hour_ago = time.time() - 3600
    os.utime(answer_file(tmp_path), (an_hour_ago, an_hour_ago))
    assert form_in_another_process() is None
    assert answer_file(tmp_path).stat().st_mtime == pytest.approx(an_hour_ago, abs=2)


@pytest.mark.parametrize(("answer", "is_probed"), [("no", True), (RUNS, False)])
def test_only_a_negative_answer_expires(
    answer: str, is_probed: bool, probe: Mock, form_in_another_process: FindForm, tmp_path: Path
) -> None:
    form_in_another_process()
    file = answer_file(tmp_path)
    file.write_bytes(sealed(answer.encode(), file.name))
    os.utime(file, (0, 0))
    probe.reset_mock()
    assert (form_in_another_process() is None) == is_probed
    assert probe.called == is_probed
    assert unsealed(answer_file(tmp_path).read_bytes(), file.name) == answer.encode()


def test_answer_of_a_host_program_is_not_kept_for_other_processes(
    form_in_another_process: FindForm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process may be a Python, which can start a probe process."""
    with monkeypatch.context() as host:
        host.setattr(provider_process, "interpreter", lambda: None)
        assert form_in_another_process() is None
    probe = Mock(return_value="")
    answer_trials_on_providers(probe, monkeypatch)
    assert form_in_another_process() == ProviderForm()
    probe.assert_called_once()


def test_node_is_probed_again_after_a_device_was_added(
    probe: Mock, form_in_another_process: FindForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may register the library of a provider at any time."""
    form_in_another_process()
    added = SimpleNamespace(ep_name="Added", device=SimpleNamespace(vendor="someone", device_id=1))
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [added], raising=False)
    form_in_another_process()
    assert probe.call_count == 2


def test_affine_grids_of_other_constant_sizes_are_probed_separately(probe: Mock) -> None:
    for length in (4, 64):
        text = f"""g (float[1, 2, 3] theta) => (float[] Y) {{
            size = Constant <value_ints: ints = [1, 1, {length}, {length}]> ()
            Y = AffineGrid (theta, size)
        }}"""
        (record,) = records_of(parsed(text, 20), installed_runtime.PROBE)
        form_of(record)
    n_values = [math.prod(call.args[0].expected.shape) for call in probe.call_args_list]
    assert sorted(n_values) == [2 * 4 * 4, 2 * 64 * 64]


@needs_azure
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_child_probes_nothing_twice(tmp_path: Path) -> None:
    (line,) = run_program("fork_after_probe.py", env={"XDG_CACHE_HOME": str(tmp_path)}, timeout=200)
    probes, status = line.split()
    assert int(probes) > 1
    assert status == "0"


#: The provider's answer, and the code that the process of the probe runs instead of a probe.
PROBE_SCRIPTS = {
    "the provider crashed (exit status 3)": "import os; os._exit(3)",
    "it takes longer than 1 seconds": "import time; time.sleep(60)",
}
#: The provider's answer, and the output that the process of the probe sends.
PROBE_OUTPUTS = {
    "its answer is of shape (1, 1), expected (2, 3, 2, 3)": [[0.0]],
    "its answer is off by": np.zeros((2, 3, 2, 3), np.float32).tolist(),
    "its answer is off by inf": np.full((2, 3, 2, 3), 3e39).tolist(),
}


def send_output(values: object) -> str:
    """Return the code of a process that sends an array as the output of a probe."""
    array = f"np.array({values!r}, np.float32)"
    output = f"{READY!r} + pickle.dumps([[{array}]])"
    return f"import numpy as np, pickle, sys; sys.stdout.buffer.write({output})"


def check_probe_answer(answer: str) -> None:
    """Check that a node has no form, as the answer to its probe starts with ``answer``."""
    (record,) = records_of(sampling_model(2, "linear", 20), installed_runtime.PROBE)
    assert form_of(record) is None
    case = build_case(record, record.cases[0], {"": 20}, only_sampling_nodes=False)
    trial = case.trial(case.model.SerializeToString())
    with closing(ProviderProcess([(AZURE, {})])) as process:
        assert trial.refusal(process, "its answer").startswith(answer)


@needs_azure
@pytest.mark.parametrize(
    ("answer", "script"),
    [
        *PROBE_SCRIPTS.items(),
        *((answer, send_output(values)) for answer, values in PROBE_OUTPUTS.items()),
    ],
    ids=["crash", "timeout", "shape", "values", "overflow"],
)
def test_probe_with_crash_or_wrong_output_is_negative(
    answer: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "probe.py"
    path.write_text(script)
    monkeypatch.setattr(provider_process, "_SCRIPT", path)
    monkeypatch.setattr(provider_process, "SECONDS", 1 if "longer" in answer else 60)
    check_probe_answer(answer)


@needs_azure
def test_probe_of_node_that_the_provider_leaves_to_the_cpu_is_negative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider_process, "SECONDS", 60)
    check_probe_answer("it leaves the node to the CPU")


@needs_azure
def test_probe_inside_a_host_program_is_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_process, "interpreter", lambda: None)
    check_probe_answer("a host program that embeds Python cannot start a probe process")


@needs_azure
def test_probe_process_that_prints_at_its_start_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello', end='', flush=True)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_probe_answer("it leaves the node to the CPU")


# --- Feeds of probes ---


# --- Real providers ---


def profiling_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.enable_profiling = True
    options.profile_file_prefix = tempfile.mktemp()
    return options


def count_nodes(session: onnxruntime.InferenceSession) -> Counter[str]:
    """End the profile of a session; return how many nodes each provider ran."""
    path = Path(session.end_profiling())
    events = [event.get("args", {}) for event in json.loads(path.read_text())]
    path.unlink()
    return Counter(event["provider"] for event in events if event.get("provider"))


NODES_WITH_RELU = [
    (2, "bilinear", 16),
    (2, "linear", 20),
    (2, "cubic", 20),
    (3, "linear", 20),
    (3, "nearest", 22),
]
#: Arguments of :func:`sampling_model`.
NODES = [
    *((*node, True, is_static) for node in NODES_WITH_RELU for is_static in (True, False)),
    *((rank, mode, 20, False, True) for rank in (2, 3) for mode in ("linear", "cubic")),
]


@pytest.mark.skipif(
    not REAL_PROVIDER, reason="no provider of OpenVINO, WebGPU or CUDA is installed"
)
@pytest.mark.parametrize("way", ["name", "devices"])
@pytest.mark.parametrize("node", NODES, ids=str)
def test_another_provider_runs_the_whole_model(
    node: tuple[int, str, int, bool, bool], way: str
) -> None:
    rank, mode, opset, _, is_static = node
    if not is_static and REAL_PROVIDER == WEBGPU and opset > 16:
        pytest.skip("WebGPU's provider leaves arithmetic of lengths to the CPU")
    if way == "devices" and REAL_PROVIDER not in PLUGINS:
        pytest.skip("the provider is no plugin")
    options = profiling_options()
    if way == "devices":
        options.add_provider_for_devices(devices_of(REAL_PROVIDER), {})
    providers = None if way == "devices" else [REAL_PROVIDER]
    session = ogs.InferenceSession(sampling_model(*node), options, providers)
    feeds = feeds_of(rank)
    expected = ogs.grid_sample(feeds["X"], feeds["G"], mode)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=0, atol=1e-4)
    counts = count_nodes(session)
    assert set(counts) == {REAL_PROVIDER}
    if REAL_PROVIDER == OPENVINO:
        assert counts == {OPENVINO: 1}  # the whole model is one subgraph
    assert {placement.runs_on for placement in session.placements} == {REAL_PROVIDER}


#: Arguments of :func:`sampling_model`, the dialect of the node, and the form that OpenVINO runs.
OPENVINO_FORMS = [
    ((2, "bilinear", 16), "", ""),
    ((2, "nearest", 20), "", ""),
    ((2, "linear", 20), "", "opset 16's words"),
    ((2, "cubic", 22), "", "opset 16's words"),
    ((2, "bilinear", 16), "mmcv", "the standard's node"),
    ((2, "bilinear", 16), "com.microsoft", "the standard's node"),
    ((3, "linear", 20), "", "4-D GridSamples"),
    ((3, "nearest", 22), "", "4-D GridSamples"),
    ((3, "cubic", 20), "", "basic operators"),
]


@pytest.mark.skipif(OPENVINO not in AVAILABLE, reason="onnxruntime-openvino is not installed")
@pytest.mark.parametrize(("node", "dialect", "expected"), OPENVINO_FORMS, ids=str)
def test_form_on_openvino_is_the_simplest_that_it_runs(
    node: tuple[int, str, int], dialect: str, expected: str
) -> None:
    model = sampling_model(*node)
    if dialect:
        model = ogs.patch_model(model, target=dialect)
    (record,) = records_of(model, installed_runtime.PROBE)
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    with closing(
        AcceleratorProbe([(OPENVINO, {})], "lower", only_sampling_nodes=False)
    ) as providers:
        form = providers.form_of(record, opsets)
    assert form is not None
    assert form.name == expected


def assert_near_stored(outputs: Arrays, path: Path) -> None:
    """Compare outputs with those stored beside a model, to 1e-4 of the largest value."""
    expected = stored_arrays(path, "out.")
    for name, output in outputs.items():
        right = expected[name]
        tolerance = 1e-4 * np.nanmax(np.abs(right[np.isfinite(right)]))
        np.testing.assert_allclose(output, right, rtol=0, atol=tolerance)


#: Models that OpenVINO's provider does not open, even without a GridSample: a Loop with a graph in
#: it, a Parameter of unknown rank, and a fusion of onnxruntime with a MatMul of doubles, for which
#: there is no kernel.
NOT_OPENED = ("ic_stn_loop", "mask2former", "kornia_warp_perspective_float64")
#: A model whose part on OpenVINO's provider is wrong, even without a GridSample.
WRONG_MODEL = "grounding_dino"


@pytest.mark.skipif(OPENVINO not in AVAILABLE, reason="onnxruntime-openvino is not installed")
@pytest.mark.parametrize("path", EXPORTED_MODELS, ids=lambda path: path.stem)
def test_exported_models_on_openvino(path: Path) -> None:
    if path.stem in NOT_OPENED:
        pytest.skip("OpenVINO's provider has no session of it without GridSample either")
    session = ogs.InferenceSession(onnx.load(path), profiling_options(), [OPENVINO])
    outputs = run_stored_inputs(session, path)
    if path.stem != WRONG_MODEL:
        assert_near_stored(outputs, path)
    try:
        plain = onnxruntime.InferenceSession(path, profiling_options(), [OPENVINO])
    except Exception:
        return  # onnxruntime opens no session of the unpatched model
    run_stored_inputs(plain, path)
    assert count_nodes(session) == count_nodes(plain)


needs_cuda = pytest.mark.skipif(REAL_PROVIDER != CUDA, reason="onnxruntime finds no CUDA")
#: CUDA's provider with float32 arithmetic in convolutions and matrix products, too.
PRECISE_CUDA = (CUDA, {"use_tf32": "0"})


@needs_cuda
@pytest.mark.parametrize("path", EXPORTED_MODELS, ids=lambda path: path.stem)
def test_exported_models_on_cuda(path: Path) -> None:
    session = ogs.InferenceSession(onnx.load(path), profiling_options(), [PRECISE_CUDA])
    assert_near_stored(run_stored_inputs(session, path), path)
    grid_samples = [
        placement.runs_on
        for placement in session.placements
        if placement.record.operator == "GridSample"
    ]
    assert set(grid_samples) == {CUDA}


@needs_cuda
@pytest.mark.parametrize(
    ("node", "is_first", "expected"),
    [
        ((2, "linear", 20), True, {CUDA: 2, PROVIDER: 1}),  # one of them copies
        ((2, "linear", 20), False, {CUDA: 2}),
        ((3, "cubic", 20), True, {CUDA: 2, PROVIDER: 1}),
    ],
    ids=str,
)
def test_own_provider_next_to_cuda(
    node: tuple[int, str, int], is_first: bool, expected: dict[str, int]
) -> None:
    own = ogs.register_provider()
    providers = [own, PRECISE_CUDA] if is_first else [PRECISE_CUDA, own]
    model = sampling_model(*node).SerializeToString()
    session = onnxruntime.InferenceSession(model, profiling_options(), providers)
    feeds = feeds_of(node[0])
    Y = ogs.grid_sample(feeds["X"], feeds["G"], node[1])  # type: ignore[arg-type]
    np.testing.assert_allclose(session.run(None, feeds)[0], Y, rtol=0, atol=1e-5)
    assert count_nodes(session) == expected


@pytest.mark.parametrize(
    "content",
    [b"", RUNS.encode(), b"\xff\xfe\xfa", sealed(RUNS.encode(), "the key of another answer")],
)
def test_damaged_answer_is_probed_again(
    content: bytes, probe: Mock, form_in_another_process: FindForm, tmp_path: Path
) -> None:
    assert form_in_another_process() is None
    file = answer_file(tmp_path)
    right_content = file.read_bytes()
    file.write_bytes(content)
    assert form_in_another_process() is None
    assert probe.call_count == 2
    assert answer_file(tmp_path).read_bytes() == right_content
