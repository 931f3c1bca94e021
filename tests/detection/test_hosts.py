"""Which nodes become hosts, and what they absorb."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gridsample.detection.find import find_matches
from ort_gridsample.detection.hosts import choose_hosts
from ort_gridsample.detection.match import Match
from ort_gridsample.graph.scope import scopes_of
from support.attention_forms import form_of
from support.fused_models import transformer
from support.models import parsed

ATTENTION = "DeformableAttention"


def matches_of(model: onnx.ModelProto) -> list[Match]:
    return find_matches(model, scopes_of(model), None, with_reasons=False)


def hosts_of(
    model: onnx.ModelProto, can_fuse: Callable[[Match], bool] = lambda host: True
) -> list[tuple[str, list[str]]]:
    """Return the output of each host, and those of the nodes that it absorbs."""
    return [
        (host.record.output, [match.record.output for match in host.absorbed])
        for host in choose_hosts(matches_of(model), can_fuse)
    ]


def attention_with_affine_grid(*, is_sample_read: bool) -> onnx.ModelProto:
    """Return an attention of whose levels one is sampled on the grid of an AffineGrid.

    Args:
        is_sample_read: whether the sample of that level is an output of the model, too.
    """
    model = onnx.ModelProto()
    model.CopyFrom(form_of("single/static-torchscript").model)
    graph = model.graph
    weights = graph.input[2].type.tensor_type.shape.dim
    batches, queries, heads, points = (dim.dim_value for dim in weights)
    images = batches * heads
    index = next(i for i, node in enumerate(graph.node) if node.op_type == "GridSample")
    nodes = list(graph.node)
    sample = onnx.NodeProto()
    sample.CopyFrom(nodes[index])
    sample.input[1] = "G"
    affine_grid = helper.make_node("AffineGrid", ["theta", "size"], ["G"], "affine")
    nodes[index : index + 1] = [affine_grid, sample]
    del graph.node[:]
    graph.node.extend(nodes)
    size = np.array([images, 1, queries, points])
    graph.initializer.append(numpy_helper.from_array(size, "size"))
    graph.input.append(helper.make_tensor_value_info("theta", 1, [images, 2, 3]))
    if is_sample_read:
        graph.output.append(helper.make_tensor_value_info(sample.output[0], 1, None))
    for entry in model.opset_import:
        entry.version = max(entry.version, 20)
    return model


def test_grid_sample_absorbs_the_node_that_computes_its_grid() -> None:
    assert hosts_of(transformer()) == [("Y", ["g0"])]


def test_grid_sample_with_a_program_absorbs_no_match() -> None:
    model = parsed(
        """g (float[1,2,5,4] X, float[1,5,4,2] flow) => (float[1,2,5,4] Y) {
            two = Constant <value = float {2}> ()
            G = Mul (flow, two)
            Y = GridSample (X, G)
        }"""
    )
    assert hosts_of(model) == [("Y", [])]


def test_grid_sample_on_an_input_is_no_host() -> None:
    model = parsed("g (float[1,2,5,4] X, float[1,5,4,2] G) => (Y) { Y = GridSample (X, G) }")
    assert hosts_of(model) == []


def test_attention_absorbs_its_samples() -> None:
    model = form_of("single/static-torchscript").model
    samples = [node.output[0] for node in model.graph.node if node.op_type == "GridSample"]
    ((_, absorbed),) = hosts_of(model)
    assert absorbed == samples


def test_sample_that_another_node_reads_is_not_absorbed() -> None:
    (match,) = [m for m in matches_of(form_of("a sample is read").model) if m.samples]
    outputs = [sample.record.output for sample in match.samples]
    assert "S0" in outputs
    assert [sample.record.output for sample in match.absorbed] == outputs[1:]


@pytest.mark.parametrize("is_sample_read", [False, True])
def test_grid_of_a_fused_attention_is_not_absorbed(is_sample_read: bool) -> None:
    hosts = hosts_of(attention_with_affine_grid(is_sample_read=is_sample_read))
    assert "G" not in {name for _, absorbed in hosts for name in absorbed}
    assert len(hosts) == 1


@pytest.mark.parametrize("is_sample_read", [False, True])
def test_samples_of_an_attention_that_is_not_fused_become_hosts(is_sample_read: bool) -> None:
    model = attention_with_affine_grid(is_sample_read=is_sample_read)
    hosts = hosts_of(model, lambda host: host.record.operator != ATTENTION)
    assert ["G"] in [absorbed for _, absorbed in hosts]


def test_can_fuse_is_called_once_for_each_host_that_is_not_excluded() -> None:
    calls = []

    def can_fuse(host: Match) -> bool:
        calls.append(host.record.operator)
        return True

    hosts_of(attention_with_affine_grid(is_sample_read=False), can_fuse)
    assert calls == [ATTENTION]
