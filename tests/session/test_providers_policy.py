"""The argument ``providers_policy``: the fastest of the forms that providers run."""

import math
import os
import pickle
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.detection.find import records_of
from ort_gridsample.inference.trial import Trial
from ort_gridsample.session import (
    accelerator_answers,
    accelerators,
    decisions,
    form_times,
    installed_runtime,
    provider_process,
)
from ort_gridsample.session.accelerator_answers import AnswerCache
from ort_gridsample.session.accelerators import AcceleratorProbe, ProviderForm
from ort_gridsample.session.provider_process import ProviderProcess
from support.compare import refusal
from support.models import parsed
from support.processes import PROGRAMS

#: A provider of every build of onnxruntime, which runs no node.
AZURE = "AzureExecutionProvider"
CPU = "CPUExecutionProvider"
pytestmark = pytest.mark.skipif(
    AZURE not in onnxruntime.get_available_providers(),
    reason="this onnxruntime has no provider to fake",
)
RNG = np.random.default_rng(0)
FEEDS = {
    "X": RNG.random((1, 2, 4, 5)).astype(np.float32),
    "G": RNG.uniform(-1.2, 1.2, (1, 2, 3, 2)).astype(np.float32),
}


def grid_sample(X_shape: str = "1,2,4,5") -> onnx.ModelProto:
    """Return a model of one GridSample of X and G."""
    text = f"g (float[{X_shape}] X, float[1,2,3,2] G) => (float[] Y) {{ Y = GridSample (X, G) }}"
    return parsed(text, 20)


@pytest.fixture(autouse=True)
def empty_answer_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    monkeypatch.setattr(accelerator_answers, "cache_folder", lambda: tmp_path / "ort_gridsample")


FakeTimes = Callable[..., Mock]


@pytest.fixture
def fake_times(monkeypatch: pytest.MonkeyPatch) -> FakeTimes:
    """Return a function that fakes a provider, and returns the mock of its timed runs.

    The provider runs a node in all forms. The arguments are seconds: of the node itself, of the
    node in other words, of basic operators, of copies, and of the CPU.
    """

    def fake(node: float, words: float, basic: float, copies: float, cpu: float) -> Mock:
        def seconds(model: bytes, feeds: object) -> float:
            nodes = onnx.load_model_from_string(model).graph.node
            samples = [node for node in nodes if node.op_type == "GridSample"]
            is_copy = all(node.op_type == "Relu" for node in nodes)
            modes = {a.s for sample in samples for a in sample.attribute if a.name == "mode"}
            value = words if b"bilinear" in modes else node if samples else basic
            if math.isinf(value):
                raise RuntimeError("it takes longer than 60 seconds")
            return copies if is_copy else value

        process_seconds = Mock(side_effect=seconds)
        monkeypatch.setattr(Trial, "refusal", lambda *_: "")
        monkeypatch.setattr(ProviderProcess, "seconds", process_seconds)
        monkeypatch.setattr(form_times, "seconds_on_cpu", Mock(return_value=cpu))
        return process_seconds

    return fake


def form_of(model: onnx.ModelProto, policy: str = "fastest", accelerated: str = "lower") -> object:
    (record,) = records_of(model, installed_runtime.PROBE)
    probe = AcceleratorProbe(
        [(AZURE, {})],
        accelerated,  # type: ignore[arg-type]
        only_sampling_nodes=True,
        policy=policy,  # type: ignore[arg-type]
    )
    with closing(probe):
        return probe.form_of(record, {"": 20})


def name_of(form: object) -> str | None:
    """Return the name of the form on a provider, or None on the CPU."""
    assert isinstance(form, ProviderForm)
    return None if form.faster_on_cpu else form.name


#: The seconds of the node, other words, basic operators, copies and the CPU; and the form that is
#: used, or None for the CPU.
FASTEST = [
    ((1, 2, 3, 0, 4), ""),
    ((3, 2, 1, 0, 4), "basic operators"),
    ((3, 1, 2, 0, 4), "opset 16's words"),
    ((3, 2, 1, 0, 0.5), None),
    ((3, 2, 1, 0.6, 0.5), "basic operators"),  # a device's memory is far from the CPU's
    ((1, 2, 0.95, 0, 4), ""),  # too small a gain for other nodes
    ((math.inf, math.inf, math.inf, 0, 4), None),
    ((math.inf, math.inf, 1, 0, 4), "basic operators"),
]


@pytest.mark.parametrize(("seconds", "expected"), FASTEST)
def test_form_is_the_fastest(
    seconds: tuple[float, ...], expected: str | None, fake_times: FakeTimes
) -> None:
    fake_times(*seconds)
    assert name_of(form_of(grid_sample())) == expected


@pytest.mark.parametrize(("cpu", "expected"), [(0.5, None), (2, "")])
def test_kept_node_runs_where_it_is_fastest(
    cpu: float, expected: str | None, fake_times: FakeTimes
) -> None:
    fake_times(1, 0.1, 0.1, 0, cpu)
    assert name_of(form_of(grid_sample(), accelerated="keep")) == expected


def test_form_after_a_refused_one_has_no_refusal_of_the_node(
    fake_times: FakeTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(3, 2, 1, 0, 4)

    def refuse_words(trial: Trial, *_: object) -> str:
        return "no such mode" if b"bilinear" in trial.model else ""

    monkeypatch.setattr(Trial, "refusal", refuse_words)
    form = form_of(grid_sample())
    assert isinstance(form, ProviderForm)
    assert (form.name, form.refusal) == ("basic operators", "")


@pytest.mark.parametrize(
    ("seconds", "time"),
    [(3e-3, "in 3 ms"), (0.3, "in 300 ms"), (math.inf, "failed when timed")],
)
def test_reason_has_the_times(seconds: float, time: str, fake_times: FakeTimes) -> None:
    fake_times(seconds, seconds, 1e-3, 0, 4e-3)
    session = ogs.InferenceSession(grid_sample(), None, [AZURE], providers_policy="fastest")
    (placement,) = session.placements
    assert placement.reason == (
        f"written as basic operators, because {AZURE} runs it in 1 ms, and the node itself {time}"
    )


@pytest.mark.parametrize(
    ("seconds", "times"),
    [
        (3e-3, f"the CPU takes 0.5 ms and copies take 0.1 ms; {AZURE} takes 3 ms"),
        (0.512, f"the CPU takes 0.5 ms and copies take 0.1 ms; {AZURE} takes 510 ms"),
        (math.inf, f"the CPU takes 0.5 ms and copies take 0 ms; {AZURE} failed when timed"),
    ],
)
def test_node_that_is_faster_on_the_cpu_has_the_times_as_its_reason(
    seconds: float, times: str, fake_times: FakeTimes
) -> None:
    fake_times(seconds, seconds, seconds, 1e-4, 5e-4)
    session = ogs.InferenceSession(grid_sample(), None, [AZURE], providers_policy="fastest")
    (placement,) = session.placements
    assert placement.runs_on == "compiled op"
    assert placement.reason == times
    assert str(placement).endswith(f": compiled op ({times})")


def test_node_that_is_faster_on_the_cpu_without_a_compiled_op_has_both_reasons(
    fake_times: FakeTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(3e-3, 3e-3, 3e-3, 1e-4, 5e-4)
    monkeypatch.setattr(decisions, "compiled_ops_unavailable_reason", lambda: "there is no Numba")
    session = ogs.InferenceSession(grid_sample(), None, [AZURE], providers_policy="fastest")
    (placement,) = session.placements
    assert placement.runs_on in ("Python op", "onnxruntime")
    assert placement.reason == (
        f"there is no Numba; the CPU takes 0.5 ms and copies take 0.1 ms; {AZURE} takes 3 ms"
    )


def test_fused_node_that_is_faster_on_the_cpu_has_the_fusion_and_the_times_as_its_reason(
    fake_times: FakeTimes,
) -> None:
    fake_times(3e-3, 3e-3, 3e-3, 1e-4, 5e-4)
    model = parsed("""g (float[1,2,4,5] X, float[1,2,3] theta) => (float[1,2,6,7] Y)
        <int64[4] size = {1, 2, 6, 7}> {
        G = AffineGrid (theta, size)
        Y = GridSample (X, G)
    }""")
    session = ogs.InferenceSession(model, None, [AZURE], providers_policy="fastest")
    notes = {placement.record.operator: placement.note for placement in session.placements}
    times = f"the CPU takes 0.5 ms and copies take 0.1 ms; {AZURE} takes 3 ms"
    assert notes["GridSample"] == f"fused with the node that computes its grid; {times}"
    assert notes["AffineGrid"].startswith("fused into GridSample node ")


@pytest.mark.parametrize(
    ("model", "policy"),
    [(grid_sample(), "first"), (grid_sample("N,2,4,5"), "fastest")],
    ids=["first", "unknown length"],
)
def test_form_is_the_first_without_times(
    model: onnx.ModelProto, policy: str, fake_times: FakeTimes
) -> None:
    timed = fake_times(3, 2, 1, 0, 0.5)
    assert form_of(model, policy) == ProviderForm()
    timed.assert_not_called()


def test_affine_grid_of_unknown_size_is_not_timed(fake_times: FakeTimes) -> None:
    timed = fake_times(3, 2, 1, 0, 0.5)
    model = parsed("""g (float[1,2,3] theta, int64[4] size) => (float[] G) {
        G = AffineGrid (theta, size) }""")
    assert form_of(model) == ProviderForm()
    timed.assert_not_called()


def test_session_without_an_argument_times_nothing(fake_times: FakeTimes) -> None:
    timed = fake_times(3, 2, 1, 0, 0.5)
    (placement,) = ogs.InferenceSession(grid_sample(), None, [AZURE]).placements
    assert (placement.runs_on, placement.reason) == (AZURE, "")
    timed.assert_not_called()


def test_times_are_kept_for_other_processes(
    fake_times: FakeTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(3, 2, 1, 0, 4)
    form_of(grid_sample())
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    timed = fake_times(1, 2, 3, 0, 4)
    assert name_of(form_of(grid_sample())) == "basic operators"
    timed.assert_not_called()


def test_times_do_not_expire(
    fake_times: FakeTimes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(3, 2, 1, 0, 4)
    form_of(grid_sample())
    for file in (tmp_path / "ort_gridsample" / "providers").iterdir():
        os.utime(file, (0, 0))
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    timed = fake_times(1, 2, 3, 0, 4)
    assert name_of(form_of(grid_sample())) == "basic operators"
    timed.assert_not_called()


def test_times_of_failed_runs_are_not_kept_for_other_processes(
    fake_times: FakeTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(1, 2, math.inf, 0, 4)
    form_of(grid_sample())
    monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
    timed = fake_times(1, 2, 0.5, 0, 4)
    assert name_of(form_of(grid_sample())) == "basic operators"
    timed.assert_called_once()


def test_times_of_another_version_of_the_provider_are_measured_again(
    fake_times: FakeTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(3, 2, 1, 0, 4)
    form_of(grid_sample())
    monkeypatch.setattr(accelerators, "device_keys", lambda: ["another version"])
    fake_times(1, 2, 3, 0, 4)
    assert name_of(form_of(grid_sample())) == ""


def test_set_providers_and_pickle_keep_the_policy(fake_times: FakeTimes) -> None:
    fake_times(3, 2, 1, 0, 0.5)
    model = grid_sample().SerializeToString()
    session = ogs.InferenceSession(model, None, [CPU], providers_policy="fastest")
    session.set_providers([AZURE, CPU])
    assert session.placements[0].runs_on != AZURE
    assert pickle.loads(pickle.dumps(session)).placements == session.placements


def test_unknown_policy_is_refused() -> None:
    error = refusal(ogs.InferenceSession, grid_sample(), providers_policy="fast")
    assert error.argument == "providers_policy"
    assert error.found == "'fast'"
    assert error.expected == "'first' or 'fastest'"


@pytest.mark.parametrize(("policy", "is_slow"), [("first", True), ("fastest", False)])
def test_slow_provider_keeps_the_node_only_by_default(
    policy: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider runs the node right, in 20 ms, and its basic operators at once."""
    monkeypatch.setattr(provider_process, "_SCRIPT", PROGRAMS / "slow_provider.py")
    session = ogs.InferenceSession(
        grid_sample(),
        None,
        [AZURE, CPU],
        providers_policy=policy,  # type: ignore[arg-type]
    )
    (placement,) = session.placements
    runs_node = placement.runs_on == AZURE and not placement.reason
    assert runs_node == is_slow
    expected = ogs.grid_sample(FEEDS["X"], FEEDS["G"])
    np.testing.assert_allclose(session.run(None, FEEDS)[0], expected, rtol=0, atol=1e-6)


def test_slow_provider_is_timed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provider_process, "_SCRIPT", PROGRAMS / "slow_provider.py")
    log = tmp_path / "starts"
    monkeypatch.setenv("SLOW_PROVIDER_STARTS", str(log))
    for _ in range(2):
        monkeypatch.setattr(accelerators, "ANSWERS", AnswerCache())
        ogs.InferenceSession(grid_sample(), None, [AZURE, CPU], providers_policy="fastest")
    assert log.read_text() == "start\n"
