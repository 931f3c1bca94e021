"""The decision where a node of a session runs."""

from contextlib import closing
from unittest.mock import Mock

import onnx
import pytest

from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.detection.find import find_matches
from ort_gridsample.detection.match import Match
from ort_gridsample.dialects.table import FUSED
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.rewriting.passes import Selection
from ort_gridsample.session import decisions, installed_runtime
from ort_gridsample.session.accelerators import AcceleratorProbe, ProviderForm
from ort_gridsample.session.decisions import DecisionContext, context_of, decide
from ort_gridsample.session.fusion_decisions import resolve_fusion
from ort_gridsample.session.session_target import SessionTarget
from support.models import parsed

WARP = "g (float[N,C,H,W] X, float[N,h,w,2] G) => (float[N,C,h,w] Y) { Y = GridSample (X, G) }"
STN = """g (float[N,C,H,W] X, float[N,2,3] theta, int64[4] size) => (float[N,C,h,w] Y) {
    G = AffineGrid (theta, size) Y = GridSample (X, G) }"""


def matches_of(graph: str) -> list[Match]:
    model: onnx.ModelProto = parsed(graph)
    return find_matches(model, scopes_of(model), installed_runtime.PROBE, with_reasons=False)


def environment(nodes: Selection | None = None) -> DecisionContext:
    return context_of(
        nodes, AcceleratorProbe([], "lower", only_sampling_nodes=False), is_saved=False
    )


def no_fusion_error(grid_sample: Match) -> str:
    return ""


@pytest.fixture
def no_compiled_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "compiled_ops_unavailable_reason", lambda: "no Numba")


@pytest.fixture
def compiled_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "compiled_ops_unavailable_reason", lambda: "")


NOT_SELECTED = [
    (lambda record: False, "not selected by the function passed as nodes"),
    ("unsupported", "onnxruntime runs it, and nodes is 'unsupported'"),
]


@pytest.mark.usefixtures("compiled_ops")
@pytest.mark.parametrize(("nodes", "reason"), NOT_SELECTED)
def test_decide_node_that_is_not_selected_stays(nodes: Selection, reason: str) -> None:
    (match,) = matches_of(WARP)
    decision = decide(match, environment(nodes))
    assert (decision.placement.runs_on, decision.placement.reason) == ("onnxruntime", reason)
    assert decision.target is None


@pytest.mark.usefixtures("compiled_ops")
@pytest.mark.parametrize("nodes", [None, "all", lambda record: True])
def test_decide_selected_node_is_a_compiled_op(nodes: Selection | None) -> None:
    (match,) = matches_of(WARP)
    decision = decide(match, environment(nodes))
    assert (decision.placement.runs_on, decision.placement.reason) == ("compiled op", "")
    assert decision.target is not None


@pytest.mark.usefixtures("no_compiled_ops")
@pytest.mark.parametrize(("nodes", "runs_on"), [(None, "onnxruntime"), ("all", "Python op")])
def test_decide_without_compiled_ops_prefers_native(nodes: Selection | None, runs_on: str) -> None:
    (match,) = matches_of(WARP)
    decision = decide(match, environment(nodes))
    assert (decision.placement.runs_on, decision.placement.reason) == (runs_on, "no Numba")


@pytest.mark.usefixtures("compiled_ops")
def test_decide_form_of_a_provider_comes_before_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    (match,) = matches_of(WARP)
    form = ProviderForm("basic operators", Mock(), "no memory")
    monkeypatch.setattr(AcceleratorProbe, "form_of", lambda *arguments: form)
    with closing(
        AcceleratorProbe([("Other", {})], "lower", only_sampling_nodes=False)
    ) as accelerators:
        decision = decide(match, context_of(None, accelerators, is_saved=False))
    assert decision.placement.runs_on == "Other"
    assert decision.placement.reason.startswith("written as basic operators")
    assert decision.target is form.target


@pytest.mark.usefixtures("compiled_ops")
def test_resolve_fusion_of_compiled_ops_fuses_the_affine_grid() -> None:
    context = environment()
    fused_target = Mock()
    reasons = {}
    for match in matches_of(STN):
        decision = resolve_fusion(
            match, lambda node: decide(node, context), fused_target, no_fusion_error
        )
        assert decision.target is fused_target
        reasons[match.record.operator] = decision.placement.note
    assert reasons["AffineGrid"].startswith("fused into GridSample node")
    assert reasons["GridSample"] == "fused with the node that computes its grid"


@pytest.mark.usefixtures("no_compiled_ops")
def test_resolve_fusion_without_compiled_ops_fuses_nothing() -> None:
    context = environment("all")
    for match in matches_of(STN):
        decision = resolve_fusion(
            match, lambda node: decide(node, context), Mock(), no_fusion_error
        )
        assert (decision.placement.runs_on, decision.placement.note) == ("Python op", "no Numba")


@pytest.mark.usefixtures("compiled_ops")
def test_session_target_failed_compilation_is_decided_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "prepare", Mock(side_effect=MemoryError("no memory")))
    (match,) = matches_of(WARP)
    placement = SessionTarget(environment("all")).decision_for(match).placement
    assert (placement.runs_on, placement.reason) == ("Python op", "compiling it failed: no memory")


@pytest.mark.usefixtures("compiled_ops")
def test_session_target_failed_compilation_of_a_fused_op_is_decided_without_fusion(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def compile_single_nodes(operator: str, *_: object) -> None:
        if operator == FUSED:
            raise MemoryError("no memory")

    monkeypatch.setattr(registry, "prepare", compile_single_nodes)
    target = SessionTarget(environment("all"))
    reason = "its grid is not fused, as compiling that failed: no memory"
    for match in matches_of(STN):
        decision = target.decision_for(match)
        assert (decision.placement.runs_on, decision.placement.reason) == ("compiled op", reason)
        assert decision.placement.fused == ()
        assert decision.target is not target._context.op_targets.fused_op
    (message,) = caplog.messages
    assert message.startswith("GridSample node")


@pytest.mark.usefixtures("compiled_ops")
def test_session_target_fused_nodes_compile_the_fused_op_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare = Mock()
    monkeypatch.setattr(registry, "prepare", prepare)
    target = SessionTarget(environment())
    for match in matches_of(STN):
        target.decision_for(match)
    assert {call.args[0] for call in prepare.call_args_list} == {FUSED}


@pytest.mark.usefixtures("compiled_ops")
def test_session_target_without_any_compiled_op_is_decided_without_fusion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "prepare", Mock(side_effect=MemoryError("no memory")))
    target = SessionTarget(environment("all"))
    for match in matches_of(STN):
        placement = target.decision_for(match).placement
        assert placement.runs_on == "Python op"
        assert placement.reason == "compiling it failed: no memory"


@pytest.mark.usefixtures("compiled_ops")
def test_session_target_calls_the_function_once_per_node() -> None:
    nodes = Mock(return_value=True)
    target = SessionTarget(environment(nodes), compiles=False)
    matches = matches_of(STN)
    for match in [*matches, *matches]:
        target.target_for(match)
    assert nodes.call_count == len(matches)
