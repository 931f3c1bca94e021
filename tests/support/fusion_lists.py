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

#: Whether a node is an attention or a GridSample, and the output of the GridSample: for an
#: attention, the first of its GridSamples by name. The output of an attention may be another value
#: in the graph that onnxruntime has optimized.
Fused = tuple[str, str]


def fused_by_session(model: bytes) -> set[Fused]:
    """Return what a session fuses. Its ops are not compiled.

    Functions are inlined, because the provider gets the nodes of each call.
    """
    proto = onnx.load_from_string(model)
    if proto.functions:
        model = inliner.inline_local_functions(proto).SerializeToString()
    probe = AcceleratorProbe((), "lower", only_sampling_nodes=False)
    placements = predict_placements(model, probe)
    samples = {
        placement.record.name: placement.record.output
        for placement in placements
        if placement.record.operator == "GridSample"
    }
    fused = set[Fused]()
    for placement in placements:
        if not placement.fused or not placement.is_ours:
            continue
        outputs = [placement.record.output]
        if placement.record.operator == ATTENTION:
            outputs = [samples[name] for name in placement.fused if name in samples]
        fused.add((placement.record.operator, min(outputs)))
    return fused


def fused_by_provider(model: bytes, monkeypatch: pytest.MonkeyPatch) -> set[Fused]:
    """Return what the provider fuses. Its nodes are not compiled."""
    fused = set[Fused]()

    def search(graph: Graph) -> list[FusedSubgraph]:
        for subgraph in fusion.find_fused_subgraphs(graph):
            if isinstance(subgraph, FusedAttention):
                samples = subgraph.attention.samples
                fused.add((ATTENTION, min(sample.output for sample in samples)))
            else:
                fused.add(("GridSample", subgraph.output))
        return []

    monkeypatch.setattr(fused_nodes, "find_fused_subgraphs", search)
    options = provider_options()
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model, options)
    return fused
