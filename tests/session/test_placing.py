"""Where the nodes of a session run if ops cannot be compiled. No op is compiled in these tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.dialects.table import ATTENTION, FUSED
from ort_gridsample.session.model_preparation import patch_for_session
from ort_gridsample.session.patched_model import SessionArguments
from support.attention_forms import form_of
from support.fused_models import needs_compiled_ops, transformer
from support.models import parsed

pytestmark = needs_compiled_ops
NOT_FUSED = f"its grid is not fused, as compiling that failed: no compiler for {FUSED}"


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that lets the compilation of some ops fail; it returns those compiled."""

    def set_failing(*names: str) -> list[str]:
        compiled = list[str]()

        def prepare(name: str, types: Sequence[str], state: int = 0) -> None:
            if name in names:
                raise RuntimeError(f"no compiler for {name}")
            compiled.append(name)

        monkeypatch.setattr(registry, "prepare", prepare)
        return compiled

    return set_failing


def placements_of(model: onnx.ModelProto, nodes: object = None) -> dict[str, tuple[str, str]]:
    """Return where the operators of a model run, and why."""
    arguments = SessionArguments(nodes=nodes)  # type: ignore[arg-type]
    patched = patch_for_session(model, arguments)
    return {p.record.operator: (p.runs_on, p.note) for p in patched.placements}


def test_absorbed_node_is_not_compiled(prepared: Callable[..., list[str]]) -> None:
    compiled = prepared()
    placements = placements_of(transformer())
    assert placements["AffineGrid"] == ("compiled op", "fused into GridSample node 'sample'")
    assert set(compiled) == {FUSED}


def test_nodes_whose_fused_op_cannot_be_compiled_have_ops_of_their_own(
    prepared: Callable[..., list[str]],
) -> None:
    compiled = prepared(FUSED)
    placements = placements_of(transformer())
    assert placements == dict.fromkeys(("AffineGrid", "GridSample"), ("compiled op", NOT_FUSED))
    assert set(compiled) == {"AffineGrid", "GridSample"}


@pytest.mark.parametrize("failing", ["AffineGrid", "GridSample"])
def test_node_without_a_fused_op_and_an_op_of_its_own_runs_elsewhere(
    failing: str, prepared: Callable[..., list[str]]
) -> None:
    prepared(FUSED, failing)
    placements = placements_of(transformer(), "all")
    reason = f"compiling it failed: no compiler for {failing}"
    assert placements.pop(failing) == ("Python op", reason)
    assert [*placements.values()] == [("compiled op", NOT_FUSED)]


def test_program_grid_whose_op_cannot_be_compiled_is_not_fused(
    prepared: Callable[..., list[str]],
) -> None:
    prepared(FUSED)
    model = parsed(
        """g (float[1,2,5,4] X, float[1,5,4,2] flow) => (float[1,2,5,4] Y) {
            two = Constant <value = float {2}> ()
            G = Mul (flow, two)
            Y = GridSample (X, G)
        }"""
    )
    assert placements_of(model) == {"GridSample": ("compiled op", NOT_FUSED)}


def test_samples_of_an_attention_that_cannot_be_compiled_have_ops(
    prepared: Callable[..., list[str]],
) -> None:
    compiled = prepared(ATTENTION)
    placements = placements_of(form_of("single/static-torchscript").model)
    assert {runs_on for runs_on, _ in placements.values()} == {"compiled op"}
    assert ATTENTION not in placements
    assert set(compiled) == {"GridSample"}


def test_function_that_selects_nodes_is_called_once_if_ops_cannot_be_compiled(
    prepared: Callable[..., list[str]],
) -> None:
    prepared(FUSED, "GridSample")
    asked = []

    def select(record: ogs.NodeRecord) -> bool:
        asked.append(record.operator)
        return True

    placements_of(transformer(), select)
    assert sorted(asked) == ["AffineGrid", "GridSample"]
