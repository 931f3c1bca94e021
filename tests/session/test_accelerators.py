"""Sessions with execution providers before the CPU's: one that is faked where it is asked, and OpenVINO's."""

import json
import os
import pickle
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.detection.find import records_of
from ort_gridsample.detection.records import NodeRecord
from ort_gridsample.session import accelerators, native, probe_answers
from ort_gridsample.session.accelerators import Accelerators, ProviderForm
from ort_gridsample.session.probe_answers import RUNS, AnswerCache, ProbeProcess, run_probe
from ort_gridsample.session.probes import build_probe
from support import processes
from support.attention_models import form
from support.compare import refusal
from support.decomposed_models import SAMPLED, load
from support.exported_models import MODELS, run, stored
from support.models import loose, parsed

#: Every onnxruntime has it, and it takes no node.
AZURE, OPENVINO, WEBGPU = (
    "AzureExecutionProvider",
    "OpenVINOExecutionProvider",
    "WebGpuExecutionProvider",
)
THERE = onnxruntime.get_available_providers()
#: One that takes nodes, if this onnxruntime has one.
OTHER = next((name for name in (OPENVINO, WEBGPU) if name in THERE), "")
FAKED = pytest.mark.skipif(AZURE not in THERE, reason="this onnxruntime has no provider to fake")

RNG = np.random.default_rng(0)


def model_of(
    axes: int, mode: str, opset: int, beside: bool = True, static: bool = True
) -> onnx.ModelProto:
    """GridSample, with a Relu before it where there is something ``beside``."""
    shapes = ["2", "3", *"567"[:axes]], ["2", *"234"[:axes], str(axes)]
    X, grid = (
        ",".join(d if static else f"{n}{i}" for i, d in enumerate(s))
        for n, s in zip("xg", shapes, strict=True)
    )
    nodes, read = ("A = Relu (X)", "A") if beside else ("", "X")
    nodes += f' Y = GridSample <mode = "{mode}"> ({read}, G)'
    return parsed(f"g (float[{X}] X, float[{grid}] G) => (float[] Y) {{ {nodes} }}", opset)


def feeds_of(axes: int) -> dict[str, np.ndarray]:
    X = RNG.random((2, 3, *(5, 6, 7)[:axes])).astype("float32")
    return {"X": X, "G": RNG.uniform(-1.2, 1.2, (2, *(2, 3, 4)[:axes], axes)).astype("float32")}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


Takes = Callable[[list[onnx.NodeProto]], bool]
Fake = Callable[[Takes], Mock]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """What makes a provider that takes what a function says."""

    def takes(rule: Takes) -> Mock:
        def run_probe(process: object, model: bytes, *arguments: object) -> str:
            nodes = list(onnx.load_model_from_string(model).graph.node)
            return RUNS if rule(nodes) else "it takes something else"

        monkeypatch.setattr(accelerators, "run_probe", asked := Mock(side_effect=run_probe))
        return asked

    return takes


def form_of(
    record: NodeRecord, accelerated: Literal["lower", "keep"] = "keep", opset: int = 20
) -> ProviderForm | None:
    with closing(Accelerators([(AZURE, {})], accelerated, alone=False)) as asked:
        return asked.form_of(record, {"": opset})


def samples(nodes: list[onnx.NodeProto], word: bytes, domain: str = "") -> bool:
    found = [n for n in nodes if n.op_type == "GridSample" and n.domain == domain]
    return any(a.s == word for n in found for a in n.attribute if a.name == "mode")


def is_plain(nodes: list[onnx.NodeProto]) -> bool:
    return not any(node.op_type in ("GridSample", "AffineGrid") for node in nodes)


WAYS = [
    (2, "linear", lambda nodes: samples(nodes, b"linear"), "", {"GridSample"}),
    (2, "cubic", lambda nodes: samples(nodes, b"bicubic"), "opset 16's words", None),
    (
        2,
        "linear",
        lambda nodes: samples(nodes, b"bilinear", "com.microsoft"),
        "com.microsoft's node",
        {"GridSample"},
    ),
    (
        3,
        "linear",
        lambda nodes: sum(n.op_type == "GridSample" for n in nodes) == 2,
        "4-D GridSamples",
        None,
    ),
    (3, "cubic", is_plain, "basic operators", {"Gather"}),
]


@FAKED
@pytest.mark.parametrize(
    ("axes", "mode", "takes", "form", "op_types"), WAYS, ids=[way[3] or "itself" for way in WAYS]
)
def test_each_way_is_taken_and_declined(
    axes: int,
    mode: str,
    takes: Takes,
    form: str,
    op_types: set[str] | None,
    fake: Fake,
    tmp_path: Path,
) -> None:
    asked, model = fake(takes), model_of(axes, mode, 20)
    (record,) = records_of(model, native)
    for _ in range(2):
        found = form_of(record, "lower")
        assert (found.name, found.refusal) == (form, "it takes something else" if form else "")
    assert (
        len({str(call.args[1]) for call in asked.mock_calls}) == asked.call_count
    )  # nothing is asked twice
    assert (form_of(record) is None) == bool(form)

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ogs.InferenceSession(model).run(None, feeds := feeds_of(axes))[0]
    session = ogs.InferenceSession(model, options, [AZURE, "CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=0, atol=1e-4)
    (found,) = session.replaced
    if (
        op_types is None
    ):  # in words that onnxruntime's own kernel, on which they come to lie here, does not know
        assert found.runs_on in ("compiled op", "onnxruntime", "Python op")
    else:
        assert found.runs_on == AZURE
        assert form in found.note
        saved = onnx.load(tmp_path / "saved.onnx").graph.node
        assert op_types <= {node.op_type for node in saved}
        assert not re.search(r"\bort_gridsample|contrib", " ".join(node.domain for node in saved))
    for declined in ({"accelerated": "never"}, {"nodes": "all"}, {"nodes": lambda record: True}):
        (found,) = ogs.InferenceSession(model, None, [AZURE], **declined).replaced
        assert found.ours
    assert {each.runs_on for each in pickle.loads(pickle.dumps(session)).replaced} == {
        session.replaced[0].runs_on
    }


@FAKED
def test_what_others_spell_is_written_as_the_standard_s(fake: Fake) -> None:
    asked = fake(lambda nodes: samples(nodes, b"linear"))
    (record,) = records_of(ogs.patch_model(model_of(2, "linear", 20), target="mmcv"), native)
    form = form_of(record, "lower")
    assert (form.name, asked.call_count) == ("the standard's node", 2)


@FAKED
def test_the_fifth_way_is_the_cpu_s(fake: Fake) -> None:
    asked, model, feeds = fake(lambda nodes: False), model_of(3, "linear", 20), feeds_of(3)
    session, beside = ogs.InferenceSession(model, None, [AZURE]), ogs.InferenceSession(model)
    assert session.replaced == beside.replaced
    assert asked.call_count == 4  # itself, in other words, as 4-D ones and as basic operators
    np.testing.assert_array_equal(session.run(None, feeds)[0], beside.run(None, feeds)[0])


@FAKED
def test_affine_grid_is_asked_about_alike(fake: Fake) -> None:
    model = parsed("""g (float[2,2,3] theta, float[2,3,5,6] X) => (float[] Y) {
        size = Constant <value_ints = [2, 3, 4, 5]> () G = AffineGrid (theta, size) Y = GridSample (X, G) }""")
    fake(lambda nodes: not any(node.op_type == "AffineGrid" for node in nodes))
    session = ogs.InferenceSession(model, None, [AZURE])
    affine, sample = sorted(session.replaced, key=lambda each: each.record.operator)
    assert "basic operators" in affine.note
    assert (sample.runs_on, sample.note) == (AZURE, "")
    feeds = {
        "theta": RNG.random((2, 2, 3)).astype("float32"),
        "X": RNG.random((2, 3, 5, 6)).astype("float32"),
    }
    np.testing.assert_allclose(
        session.run(None, feeds)[0], ogs.InferenceSession(model).run(None, feeds)[0], atol=1e-5
    )


@FAKED
def test_what_is_not_known_is_not_asked(fake: Fake) -> None:
    asked = fake(lambda nodes: True)
    ogs.InferenceSession(loose(model_of(2, "linear", 20)), None, [AZURE])
    for elem_type, length in ((7, 5), (1, 0)):  # of int64, and without pixels
        model = model_of(2, "nearest", 20, beside=False)
        X = model.graph.input[0].type.tensor_type
        X.elem_type, X.shape.dim[2].dim_value = elem_type, length
        model.graph.output[0].type.tensor_type.elem_type = elem_type
        ogs.InferenceSession(model, None, [AZURE])
    ogs.InferenceSession(model_of(2, "linear", 20), None, ["CPUExecutionProvider", AZURE])
    ogs.InferenceSession(model_of(2, "linear", 20))
    asked.assert_not_called()
    said = str(refusal(ogs.InferenceSession, model, None, [AZURE], accelerated="fast"))
    assert "accelerated is 'fast', expected 'lower', 'keep' or 'never'" in said


def test_the_name_is_that_of_all_providers() -> None:
    with closing(Accelerators([(AZURE, {}), (OPENVINO, {})], "keep", alone=False)) as asked:
        assert asked.name == f"{AZURE} or {OPENVINO}"


@FAKED
def test_what_a_provider_does_not_open_after_all_is_opened_for_the_cpu(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake(lambda nodes: True)
    model, parent, failures = (
        model_of(2, "linear", 20),
        onnxruntime.InferenceSession.__init__,
        [RuntimeError("no room")],
    )

    def opened(self: onnxruntime.InferenceSession, *args: object, **kwargs: object) -> None:
        if failures and isinstance(self, ogs.InferenceSession):
            raise failures.pop()
        parent(self, *args, **kwargs)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", opened)
    session = ogs.InferenceSession(model, None, [AZURE])
    expected = (
        f"the providers {{'{AZURE}': {{}}}} failed (no room); retrying with these nodes on the CPU"
    )
    assert caplog.messages == [expected]
    assert [each.ours for each in session.replaced] == [True]


@FAKED
def test_what_is_decomposed_patched_or_wrong_is_not_asked_about(fake: Fake) -> None:
    asked, model = fake(lambda nodes: True), model_of(2, "linear", 20)
    (part,) = records_of(load(SAMPLED), native)
    (patched,) = records_of(ogs.patch_model(model), native)
    model.graph.node[1].attribute[0].s = b"none"
    (wrong,) = records_of(model, native)
    assert [form_of(record, "lower") for record in (part, patched, wrong)] == [
        ProviderForm(),
        None,
        None,
    ]
    asked.assert_not_called()
    session = ogs.InferenceSession(form("stacked/static-dynamo"), None, [AZURE])
    assert {(each.record.operator, each.runs_on) for each in session.replaced} == {
        ("GridSample", AZURE)
    }


@FAKED
def test_inspect_says_what_a_provider_runs(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(is_plain)
    onnx.save(model_of(3, "cubic", 20), tmp_path / "model.onnx")
    assert main(["inspect", str(tmp_path / "model.onnx"), "--provider", AZURE, "--json"]) == 0
    ((said),) = json.loads(capsys.readouterr().out)
    assert said["session"]["runs_on"] == AZURE
    begins = "written as basic operators, as it does not run the node itself: it takes"
    assert said["session"]["reason"].startswith(begins)


def test_an_answer_is_kept_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerators, "run_probe", asked := Mock(return_value="no"))
    (record,) = records_of(model_of(2, "nearest", 16), native)

    def in_another_process() -> ProviderForm | None:
        monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
        return form_of(record, opset=16)

    assert in_another_process() is in_another_process() is None
    asked.assert_called_once()
    (file,) = (tmp_path / "ort_gridsample" / "providers").iterdir()
    os.utime(file, (before := time.time() - 3600,) * 2)
    assert in_another_process() is None
    assert file.stat().st_mtime == pytest.approx(
        before, abs=2
    )  # who only reads it makes it no newer
    for said, again in (("no", True), (RUNS, False)):  # two days later
        file.write_text(said)
        os.utime(file, (0, 0))
        asked.reset_mock()
        assert (in_another_process() is None, asked.call_count) == (again, again)
    assert [path.read_text() for path in file.parent.iterdir()] == [RUNS]


@FAKED
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_asks_nothing_twice(tmp_path: Path) -> None:
    (line,) = processes.program(
        "fork_asks_providers_once.py", env={"XDG_CACHE_HOME": str(tmp_path)}, seconds=200
    )
    asked, status = line.split()
    assert int(asked) > 1
    assert status == "0"


ENDS = {
    "the provider crashed (exit status 3)": "import os; os._exit(3)",
    "it takes longer than 1 seconds": "import time; time.sleep(60)",
    "it leaves the node to the CPU": None,
    "inside a host program there is no Python for another process that could be asked": None,
    "its answer is of shape (1, 1), expected (2, 3, 2, 3)": "[[0.0]]",
    "its answer is off by": "np.zeros((2, 3, 2, 3), 'float32')",
}


@FAKED
@pytest.mark.parametrize("says", ENDS)
def test_a_provider_may_end_its_process_or_answer_wrongly(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ENDS[says]
    if code is not None:
        answers = f"import numpy as np, pickle, sys; sys.stdout.buffer.write(pickle.dumps(np.array({code})))"
        (tmp_path / "trial.py").write_text(code if code.startswith("import") else answers)
        monkeypatch.setattr(probe_answers, "_SCRIPT", tmp_path / "trial.py")
    monkeypatch.setattr(probe_answers, "SECONDS", 1 if "longer" in says else 60)
    if "host program" in says:
        monkeypatch.setattr(probe_answers, "interpreter", lambda: None)
    (record,) = records_of(model_of(2, "linear", 20), native)
    assert form_of(record) is None
    probe = build_probe(record, record.cases[0], {"": 20}, alone=False)
    with closing(ProbeProcess()) as process:
        assert run_probe(process, probe.model.SerializeToString(), [(AZURE, {})], probe).startswith(
            says
        )


def pixels_of(grid: np.ndarray, sides: np.ndarray | int, align_corners: int) -> np.ndarray:
    return (grid + 1) / 2 * (sides - 1) if align_corners else ((grid + 1) * sides - 1) / 2


@pytest.mark.parametrize(
    ("static", "alone", "align_corners"), [*product((True, False), (True, False), (0, 1))]
)
def test_a_probe_knows_the_answer(static: bool, alone: bool, align_corners: int) -> None:
    size = "size = Constant <value_ints = [2, 3, 4, 5]> ()" if static else ""
    inputs = "float[2,2,3] theta" if static else "float[N,2,3] theta, int64[4] size"
    affine = parsed(f"g ({inputs}) => (float[] Y) {{ {size} Y = AffineGrid (theta, size) }}")
    sample = model_of(2, "linear", 20, static=static)
    of_sample = ((2, 3, 5, 6), (2, 2, 3, 2)) if static else ((8, 4, 9, 7), (8, 5, 3, 2))
    for model, shapes in ((sample, of_sample), (affine, ((2 if static else 8, 2, 3), (4,)))):
        model.graph.node[-1].attribute.append(helper.make_attribute("align_corners", align_corners))
        (record,) = records_of(model, native)
        probe = build_probe(record, record.cases[0], {"": 20}, alone)
        assert [node.op_type for node in probe.model.graph.node] == ["Relu"] * (not alone) + [
            record.operator
        ]
        feeds, expected = probe.make()
        first, second = feeds.values()
        assert (first.shape, second.shape) == shapes
        assert 0 <= first.min() < 0.1
        assert 0.9 < first.max() < 1
        if record.operator == "AffineGrid":
            assert second.tolist() == ([2, 3, 4, 5] if static else [8, 4, 5, 3])
        else:
            sides = np.array(first.shape[:1:-1])
            pixels = pixels_of(second, sides, align_corners)
            assert (abs(pixels % 1 - 0.25) < 0.151).all()
            assert np.ptp(pixels % 1) > 0.1
            assert np.floor(pixels).min() == -1
            assert (np.floor(pixels).max((0, 1, 2)) <= sides).all()
        session = onnxruntime.InferenceSession(probe.model.SerializeToString())
        np.testing.assert_allclose(session.run(None, dict(feeds))[0], expected, rtol=0, atol=1e-5)
    X, grid, Y = native._probe(2, align_corners=align_corners)
    np.testing.assert_allclose(
        np.unique(pixels_of(grid, 5, align_corners).round(6)), (-0.7, 1.3, 4.4)
    )
    np.testing.assert_allclose(Y, ogs.grid_sample(X, grid, align_corners=bool(align_corners)))


def profiled() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.enable_profiling, options.profile_file_prefix = (
        4,
        True,
        tempfile.mktemp(),
    )
    return options


def ran(session: onnxruntime.InferenceSession) -> Counter[str]:
    """How many nodes each provider ran; the profile ends."""
    path = Path(session.end_profiling())
    events = [each.get("args", {}) for each in json.loads(path.read_text())]
    path.unlink()
    return Counter(event["provider"] for event in events if event.get("provider"))


WHOLE = [
    (2, "bilinear", 16),
    (2, "linear", 20),
    (2, "cubic", 20),
    (3, "linear", 20),
    (3, "nearest", 22),
]
#: With something beside the node, of static shapes or not; and nodes that are alone.
NODES = [(*each, True, static) for each in WHOLE for static in (True, False)]
NODES += [(axes, mode, 20, False, True) for axes in (2, 3) for mode in ("linear", "cubic")]


@pytest.mark.skipif(
    not OTHER, reason="neither onnxruntime-openvino nor onnxruntime-webgpu is installed"
)
@pytest.mark.parametrize("node", NODES, ids=str)
def test_another_provider_runs_the_whole_model(node: tuple[int, str, int, bool, bool]) -> None:
    """OpenVINO's as one subgraph."""
    axes, mode, opset, _, static = node
    if not static and OTHER == WEBGPU and opset > 16:
        pytest.skip("WebGPU's provider leaves arithmetic of lengths to the CPU")
    session, feeds = ogs.InferenceSession(model_of(*node), profiled(), [OTHER]), feeds_of(axes)
    expected = ogs.grid_sample(feeds["X"], feeds["G"], mode)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=0, atol=1e-4)
    counts = ran(session)
    assert set(counts) == {OTHER}
    assert OTHER != OPENVINO or counts == {OTHER: 1}
    assert {each.runs_on for each in session.replaced} == {OTHER}


#: What OpenVINO's provider refuses, whoever wrote it: a Loop with a graph in it, a Parameter of unknown rank, and
#: onnxruntime's own fusion of a MatMul of doubles, beside it, that it then has no kernel for.
REFUSED = ("ic_stn_loop", "mask2former", "kornia_warp_perspective_float64")


@pytest.mark.skipif(OPENVINO not in THERE, reason="onnxruntime-openvino is not installed")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_exported_models_on_openvino(path: Path) -> None:
    if path.stem in REFUSED:
        pytest.skip("OpenVINO's provider has no session of it without GridSample either")
    session = ogs.InferenceSession(onnx.load(path), profiled(), [OPENVINO])
    for name, answer in run(session, path).items():
        expected = stored(path, "out.")[name]
        if (
            path.stem == "grounding_dino"
        ):  # of which OpenVINO's part is wrong without any GridSample as well
            continue
        allowed = 1e-4 * np.nanmax(np.abs(expected[np.isfinite(expected)]))
        np.testing.assert_allclose(answer, expected, rtol=0, atol=allowed)
    try:
        plain = onnxruntime.InferenceSession(path, profiled(), [OPENVINO])
    except Exception:
        return  # without us there is no session
    run(plain, path)
    assert ran(session) == ran(plain)
