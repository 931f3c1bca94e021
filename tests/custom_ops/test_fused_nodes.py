"""How the execution provider fuses nodes: states, failures and signals while it searches."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from ort_gridsample.custom_ops import signals
from ort_gridsample.custom_ops.compiled_ops import c_api
from ort_gridsample.custom_ops.compiled_ops.catalog import find_op
from ort_gridsample.custom_ops.compiled_ops.registry import CompiledOps, compiled_ops
from ort_gridsample.custom_ops.provider import compute_infos, fused_nodes, grid_fusion
from ort_gridsample.custom_ops.provider.attention_fusion import FusedAttention
from ort_gridsample.custom_ops.provider.structs import COMPUTE_INFO
from ort_gridsample.dialects.table import ATTENTION
from ort_gridsample.kernels.compilation import compiled_function
from support.attention_forms import SMALL
from support.attention_models import form, form_feeds
from support.grid_forms import chain_form, flow
from support.models import parsed
from support.paths import needs_provider, open_native, open_provider, provider_options
from support.provider_nodes import count_fused

pytestmark = needs_provider


def test_failure_of_the_search_leaves_single_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fused_nodes, "find_fused_subgraphs", fail)
    session = open_provider(form(SMALL))
    assert count_fused(session) == 0
    feeds = form_feeds(SMALL)
    (Y,) = session.run(None, feeds)
    (expected,) = open_native(form(SMALL)).run(None, feeds)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


def test_failure_to_create_the_node_leaves_single_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(grid_fusion.FusedGridSample, "prepare", fail)
    flow_form = chain_form(flow)
    model, feeds = flow_form.model, flow_form.feeds
    session = open_provider(model)
    assert count_fused(session) == 0
    np.testing.assert_allclose(
        session.run(None, feeds)[0], open_native(model).run(None, feeds)[0], atol=1e-5
    )


def test_failure_to_compile_an_attention_leaves_single_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(FusedAttention, "prepare", fail)
    assert count_fused(open_provider(form(SMALL))) == 0


def test_create_state_of_another_interface_raises_the_error_of_the_op() -> None:
    open_provider(form(SMALL))  # creates the ops
    types = ("float32", "int64", "float32", "float32")
    op = find_op(ATTENTION, types)
    assert op is not None
    node = helper.make_node(ATTENTION, [], [], node="(Y)", interface=99)
    with pytest.raises(RuntimeError) as failure:
        compiled_ops().create_state(op, types, node)
    place, _, problem = str(failure.value).partition(": ")
    assert place == "DeformableAttention node with output 'Y'"
    assert problem.startswith("interface is 99, expected 1")


def test_fused_node_without_memory_destroys_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[int] = []
    destroyed: list[int] = []
    create_state = CompiledOps.create_state
    destroy_state = CompiledOps.destroy_state

    def create(ops: CompiledOps, *arguments: Any) -> int:
        created.append(create_state(ops, *arguments))
        return created[-1]

    def destroy(ops: CompiledOps, op: Any, types: Any, state: int) -> None:
        destroyed.append(state)
        destroy_state(ops, op, types, state)

    def fail(*arguments: object) -> None:
        raise MemoryError("no memory for the node")

    open_provider(form(SMALL))
    monkeypatch.setattr(CompiledOps, "create_state", create)
    monkeypatch.setattr(CompiledOps, "destroy_state", destroy)
    monkeypatch.setattr(FusedAttention, "info_fields", fail)
    with pytest.raises(Exception, match="no memory for the node"):
        open_provider(form(SMALL))
    assert len(created) > 0
    assert destroyed == created


def test_release_of_fused_nodes_destroys_their_states() -> None:
    destroyed: list[int] = []

    def destroy(state: int) -> int:
        destroyed.append(state)
        return 0

    callback = c_api.callback(1, destroy, lambda *_: 0)
    allocate = compiled_function((compute_infos.allocate_block,)).address()
    release = compiled_function((compute_infos.release_compute_infos,)).address()
    states = [1 << 40, 1 << 41]
    infos = (c_api.word * len(states))()
    for index, state in enumerate(states):
        fields = np.zeros((), COMPUTE_INFO)
        fields["state"] = state
        fields["destroy"] = c_api.address_of_callback(callback)
        infos[index] = c_api.function(allocate, 1)(COMPUTE_INFO.itemsize)
        ctypes.memmove(infos[index], fields.tobytes(), COMPUTE_INFO.itemsize)
    c_api.function(release, 3)(0, ctypes.addressof(infos), len(states))
    assert destroyed == states


@pytest.mark.parametrize(("computed", "count"), [("Neg", 0), ("Identity", 0), ("Neg-Transpose", 1)])
def test_graph_is_searched_only_if_a_known_operator_computes_a_grid(
    computed: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    monkeypatch.setattr(
        fused_nodes, "find_fused_subgraphs", lambda graph: searched.append(graph) or []
    )
    chain = {
        "Neg": "grid = Neg (coords)",
        "Identity": "grid = Identity (coords)",  # onnxruntime removes it
        "Neg-Transpose": "n = Neg (coords) grid = Transpose <perm = [0, 2, 1, 3]> (n)",
    }
    open_provider(
        parsed(
            "g (float[1, 1, 4, 4] X, float[1, 4, 4, 2] coords) => (float[1, 1, 4, 4] Y)"
            f" {{ {chain[computed]} Y = GridSample (X, grid) }}"
        )
    )
    assert len(searched) == count


def create_by_class(model: bytes) -> object:
    return onnxruntime.InferenceSession(model, provider_options())


def create_by_own_method(model: bytes) -> object:
    """Create a session by onnxruntime's own method, which this package does not wrap."""
    session = onnxruntime.InferenceSession.__new__(onnxruntime.InferenceSession)
    create = signals.unwrapped(onnxruntime.InferenceSession.__init__)
    create(session, model, provider_options())
    return session


def create_by_extension_module(model: bytes) -> object:
    extension_class = onnxruntime.capi.onnxruntime_pybind11_state.InferenceSession
    session = extension_class(provider_options(), model, False, False)
    session.initialize_session([], [], set())
    return session


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send a process signals")
@pytest.mark.parametrize(
    "create", [create_by_class, create_by_own_method, create_by_extension_module]
)
@pytest.mark.parametrize("callback", ["_fuse_in", "_compute_info"])
def test_signal_in_a_callback_is_handled_after_the_session_is_created(
    create: Callable[[bytes], object], callback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    unraisable: list[object] = []
    call = getattr(fused_nodes.FusedNodes, callback)

    def interrupt_and_call(*arguments: object) -> object:
        signal.raise_signal(signal.SIGINT)
        result = call(*arguments)
        steps.append("called")
        return result

    monkeypatch.setattr(fused_nodes.FusedNodes, callback, interrupt_and_call)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        create(form(SMALL).SerializeToString())
    assert steps == ["called"]
    assert unraisable == []
    assert signal.getsignal(signal.SIGINT) is handler
