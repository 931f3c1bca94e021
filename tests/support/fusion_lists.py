"""What a session and the execution provider fuse in a model, without compiling it."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from onnx import inliner

from ort_gridsample.custom_ops.provider import fused_nodes, fusion
from ort_gridsample.custom_ops.provider.attention_fusion import FusedAttention
from ort_gridsample.custom_ops.provider.fused_subgraph import FusedSubgraph
from ort_gridsample.custom_ops.provider.ort_graph import Graph
from ort_gridsample.dialects.table import ATTENTION
from ort_gridsample.session.accelerators import AcceleratorProbe
from ort_gridsample.session.prediction import predict_placements
from support.paths import provider_options

#: Whether a node is an attention or a GridSample, and the value that it computes.
Fused = tuple[str, str]


def fused_by_session(model: bytes) -> set[Fused]:
    """Return what a session fuses. Its ops are not compiled.

    Functions are inlined, because the provider gets the nodes of each call.
    """
    proto = onnx.load_from_string(model)
    if proto.functions:
        model = inliner.inline_local_functions(proto).SerializeToString()
    probe = AcceleratorProbe((), "lower", only_sampling_nodes=False)
    return {
        (placement.record.operator, placement.record.output)
        for placement in predict_placements(model, probe)
        if placement.fused and placement.is_ours
    }


def fused_by_provider(model: bytes, monkeypatch: pytest.MonkeyPatch) -> set[Fused]:
    """Return what the provider fuses. Its nodes are not compiled."""
    fused = set[Fused]()

    def search(graph: Graph) -> list[FusedSubgraph]:
        for subgraph in fusion.find_fused_subgraphs(graph):
            is_attention = isinstance(subgraph, FusedAttention)
            fused.add((ATTENTION if is_attention else "GridSample", subgraph.output))
        return []

    monkeypatch.setattr(fused_nodes, "find_fused_subgraphs", search)
    options = provider_options()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model, options)
    return fused
