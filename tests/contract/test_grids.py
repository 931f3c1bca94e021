"""Grids that a graph computes: every form that is fused, in every way, and what is not fused."""

from __future__ import annotations

import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from support import faults
from support.cases import ATTRIBUTES, Attributes
from support.compare import assert_identical, refusal
from support.exported_models import (
    EXPORTED_MODELS,
    run_stored_inputs,
    slow_if_large,
)
from support.fused_models import (
    models_with_another_reader,
    needs_compiled_ops,
    saved_by_session,
    transformer,
    transformer_feeds,
)
from support.grid_forms import (
    AFFINE_CHAINS,
    CHAINS,
    FORMS,
    GRAPHS,
    LINEAR,
    MAX_SOURCES,
    SLOW_AFFINE_CHAINS,
    UNFUSED_STEPS,
    Chain,
    chain_form,
    flow,
    form_of,
    one_for_both,
    remap,
)
from support.models import parsed
from support.paths import open_compiled, open_native, provider_options, quiet_options
from support.pixel_graphs import GraphBuilder, build_graph
from support.provider_nodes import count_fused
from support.ways import WAYS, Limit, Matrix, way_param

# The matrix

LIMITS = [
    Limit(
        ("primitives", "functions"),
        r"affine, (.*edges|(nearest|linear|cubic).*|then.*)$",
        "the model declares no shape of theta",
        "theta is of unknown shape",
    ),
    Limit(
        ("ai.onnx", "declined", "saved"),
        r".*, float64, |affine, float64",
        "onnxruntime has no GridSample of float64, or of grids of another type",
    ),
    Limit(
        ("ai.onnx", "declined", "saved"),
        r"special values|affine, a (narrower|wider) grid",
        "onnxruntime's GridSample differs where coordinates are not finite, and rounds float16",
    ),
    Limit(
        ("declined", "saved"),
        "opset 9",
        "onnxruntime has no such operator",
        "not a registered function",
    ),
    Limit(
        ("ai.onnx", "declined", "saved", "primitives", "functions", "patched file", "evaluator"),
        r"affine, bfloat16|affine, float64 and a bfloat16",
        "onnxruntime has no arithmetic of bfloat16",
    ),
]
#: The ways that fuse, and those that run every form by default.
QUICK_WAYS = ("compiled", "provider")
#: The forms that all ways run by default.
SAMPLE = {
    *(f"{chain.__name__}, float32, nearest-zeros-unaligned, known lengths" for chain in CHAINS),
    *(name for name in FORMS if name.startswith(("choice", "function", "constant", "special"))),
    *(name for name in FORMS if re.match(r"branches.*True|affine, [^,]+, aligned", name)),
    *(name for name in FORMS if re.match(r"opset 9|sampled|.* is read by|affine, then", name)),
}
#: The forms that the provider does not fuse: onnxruntime has folded a node, or its opset is old.
PROVIDER_LEAVES = ("choice: one position", "opset 9")
FUSES_IN_BODIES = not faults.before("1.25")


MATRIX = Matrix(
    form_of,
    LIMITS,
    sample=SAMPLE.__contains__,
    quick_ways=QUICK_WAYS,
    library="affine, (nearest|linear)-|choice|function|constant",
)
SLOW_FORMS = tuple(f"affine, {chain}," for chain in SLOW_AFFINE_CHAINS)
OTHER_WAYS = ["tensorrt-plugins"]
CELLS = MATRIX.cells([name for name in FORMS if not name.startswith(SLOW_FORMS)], OTHER_WAYS)
CELLS += MATRIX.cells(
    [name for name in FORMS if name.startswith(SLOW_FORMS)], OTHER_WAYS, are_slow=True
)


def assert_fused(name: str, way: str, session: Any) -> None:
    """Check the numbers of fused nodes."""
    fused = form_of(name).fused
    if way == "compiled":
        assert tuple(len(placement.fused) for placement in session.placements) == fused
    elif way == "provider" and name not in PROVIDER_LEAVES:
        is_left = name.startswith("branches") and not FUSES_IN_BODIES
        assert count_fused(session) == (0 if is_left else sum(map(bool, fused)))


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_grid_in_any_form_and_way_has_the_outputs_of_the_oracle(name: str, way: str) -> None:
    result = MATRIX.run(name, way)
    if not result:
        return
    session, outputs = result
    assert_fused(name, way, session)
    if way in QUICK_WAYS:
        form = form_of(name)
        separate = WAYS["compiled file"](form.model)
        for Y, expected in zip(outputs, separate.run(None, form.feeds), strict=True):
            assert_identical(Y, expected)


def test_limits_are_those_of_forms_that_all_ways_run() -> None:
    MATRIX.assert_limits_are_tested(FORMS)


# More lengths than the oracle can compute

FUSING = [way_param(way=way) for way in QUICK_WAYS]
#: Types, attributes, positions, and whether lengths are unknown.
LARGE_CASES = [
    ("float32", Attributes("linear", "reflection", False), (3, 1, 2100), False),
    ("float32", Attributes("cubic", "zeros", False), (3, 1, 2100), True),
    ("float32", Attributes("nearest", "reflection", True), (1, 70, 90), False),
    ("float64", Attributes("linear", "border", True), (1, 70, 90), True),
    ("float32", Attributes("cubic", "reflection", True), (2, 0, 4), True),
]


@pytest.mark.parametrize("way", FUSING)
@pytest.mark.parametrize(("grid_type", "attributes", "positions", "unknown"), LARGE_CASES)
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.__name__)
def test_large_fused_grid_has_the_outputs_of_separate_ops(
    chain: Chain,
    grid_type: str,
    attributes: Attributes,
    positions: tuple[int, int, int],
    unknown: bool,
    way: str,
) -> None:
    form = chain_form(chain, grid_type, attributes, positions, unknown)
    (Y,) = WAYS[way](form.model).run(None, form.feeds)
    (expected,) = WAYS["compiled file"](form.model).run(None, form.feeds)
    assert_identical(Y, expected)


@pytest.mark.parametrize("way", FUSING)
@pytest.mark.parametrize("attributes", [ATTRIBUTES[0], LINEAR, ATTRIBUTES[-1]], ids=str)
@pytest.mark.parametrize("axes", [2, 3])
def test_fused_affine_grid_of_any_lengths_has_the_outputs_of_separate_ops(
    axes: int, attributes: Attributes, way: str
) -> None:
    if axes == 3:
        attributes = LINEAR
    model = transformer((), "FLOAT", attributes)
    session, separate = WAYS[way](model), WAYS["compiled file"](model)
    for lengths in ((7, 5, 6), (1, 40, 90), (2, 3, 5000), (3, 1, 1)):
        feeds = transformer_feeds("FLOAT", axes, lengths)
        assert_identical(session.run(None, feeds)[0], separate.run(None, feeds)[0])


@pytest.mark.parametrize("way", FUSING)
def test_fused_affine_grid_of_any_number_of_channels_has_the_outputs_of_separate_ops(
    way: str,
) -> None:
    """X with many channels is packed, and needs coordinates before any thread samples."""
    rng = np.random.default_rng(0)
    model = transformer()
    session, separate = WAYS[way](model), WAYS["compiled file"](model)
    for X_shape, lengths in (
        ((2, 37, 20, 20), (60, 70)),
        ((1, 16, 4, 4), (1, 300)),
        ((0, 3, 4, 4), (2, 2)),
        ((2, 3, 4, 4), (0, 5)),
    ):
        feeds = {
            "X": rng.normal(size=X_shape).astype(np.float32),
            "theta": rng.normal(size=(X_shape[0], 2, 3)).astype(np.float32),
            "size": np.array([X_shape[0], 1, *lengths]),
        }
        assert_identical(session.run(None, feeds)[0], separate.run(None, feeds)[0])


# What is fused


def recorded_counts(model: onnx.ModelProto) -> list[int]:
    """Return the number of nodes that each record lists as fused."""
    return [len(record.fused) for record in ogs.inspect_model(model)]


def placed_counts(session: ogs.InferenceSession) -> list[int]:
    return [len(placement.fused) for placement in session.placements]


@pytest.mark.parametrize("name", GRAPHS)
def test_number_of_fused_nodes(name: str) -> None:
    _, model = build_graph(GRAPHS[name].inputs, GRAPHS[name].make_grid)
    assert recorded_counts(model) == [GRAPHS[name].fused_count]


@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith("affine, then")])
def test_grid_that_nodes_change_is_not_fused(name: str) -> None:
    assert not any("affine" in record.fused for record in ogs.inspect_model(form_of(name).model))


@pytest.mark.parametrize(
    "steps",
    [
        [("Transpose", {})],
        [("Cast", {"to": TensorProto.INT32})],
        [("Identity", {"domain": "com.example"})],
        *UNFUSED_STEPS.values(),
    ],
)
def test_affine_grid_behind_other_nodes_is_not_fused(steps: Any) -> None:
    records = ogs.inspect_model(transformer(steps))
    assert not any("affine" in record.fused for record in records)


def test_affine_grid_of_a_single_reader_is_fused() -> None:
    records = ogs.inspect_model(transformer([("Identity", {})]))
    assert [record.fused for record in records] == [(), ("affine", "(g1)")]


@pytest.mark.parametrize("value", ["g0", "g1"])
@pytest.mark.parametrize("reader", ["output", "node", "body", "GridSample"])
def test_affine_grid_with_another_reader_is_not_fused(reader: str, value: str) -> None:
    models = models_with_another_reader(transformer([("Identity", {})]), value)
    records = ogs.inspect_model(models[reader])
    assert not any("affine" in record.fused for record in records)


def test_affine_grid_that_is_sampled_is_not_fused() -> None:
    model = transformer([("Identity", {})])
    model.graph.node[-1].input[:] = ["g1", "X"]
    assert not any("affine" in record.fused for record in ogs.inspect_model(model))


@pytest.mark.parametrize(
    ("axes", "fused_count"), [(MAX_SOURCES, MAX_SOURCES + 1), (MAX_SOURCES + 1, 0)]
)
def test_grid_of_too_many_values_is_not_fused(axes: int, fused_count: int) -> None:
    graph = GraphBuilder()
    maps = [graph.add_input(f"map{i}", 1, *[2] * axes) for i in range(axes)]
    rows = [graph.add("Unsqueeze", name, [-1]) for name in maps]
    model = graph.model(graph.add("Concat", *rows, axis=-1), (1, 1, *[3] * axes))
    assert recorded_counts(model) == [fused_count]


def test_cyclic_grid_is_not_fused() -> None:
    graph = GraphBuilder()
    graph.nodes.append(helper.make_node("Identity", ["a"], ["b"]))
    graph.nodes.append(helper.make_node("Identity", ["b"], ["a"]))
    model = graph.model("a", (1, 1, 5, 6))
    for name in ("a", "b"):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 2])
        model.graph.value_info.append(info)
    assert recorded_counts(model) == [0]


def test_slice_whose_axes_a_caller_sets_is_not_fused_in_the_function() -> None:
    """Without the attribute, the axis of a Slice-1 is the first."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 9, "local": 1, "com.microsoft": 1]>
        g (float[2,1,4,4] X, float[2,3,2,2] P) => (float[2,1,2,2] Y) {
            Y = local.warp <axes = [1]> (X, P) }
        <opset_import: ["": 9, "com.microsoft": 1], domain: "local"> warp <axes> (X, P) => (Y) {
            S = Slice <axes: ints = @axes, starts = [0], ends = [2]> (P)
            T = Transpose <perm = [1, 2, 3, 0]> (S)
            Y = com.microsoft.GridSample (X, T) }""")
    (record,) = ogs.inspect_model(model)
    assert "(S)" not in record.fused


@pytest.mark.parametrize(
    ("value", "fused_count"),
    [("grid", 0), ("Div2_0", 5), ("Split0_1", 7)],
    ids=["grid", "a step of x", "y before its steps"],
)
@pytest.mark.parametrize("reader", ["output", "node", "body", "GridSample"])
def test_value_with_another_reader_is_not_fused(reader: str, value: str, fused_count: int) -> None:
    graph = GraphBuilder()
    grid = flow(graph, 1, 3, 4)
    model = graph.model(grid, (1, 1, 5, 6))
    name = grid if value == "grid" else value
    assert recorded_counts(models_with_another_reader(model, name)[reader])[0] == fused_count


@pytest.mark.parametrize("way", FUSING)
@pytest.mark.parametrize("value", ["grid", "Div2_0", "Split0_1"])
def test_value_that_is_an_output_has_the_output_of_the_graph(value: str, way: str) -> None:
    graph = GraphBuilder()
    grid = flow(graph, 1, 3, 4)
    model = graph.model(grid, (1, 1, 5, 6))
    name = grid if value == "grid" else value
    model = models_with_another_reader(model, name)["output"]
    outputs = WAYS[way](model).run(None, graph.feeds)
    expected_outputs = WAYS["compiled file"](model).run(None, graph.feeds)
    for Y, expected in zip(outputs, expected_outputs, strict=True):
        assert_identical(Y, expected)


@pytest.mark.parametrize("way", FUSING)
def test_half_precision_arithmetic_is_not_fused(way: str) -> None:
    model = parsed(
        "g (float[1, 1, 4, 4] X, float16[1, 3, 4, 2] coords) => (float[1, 1, 3, 4] Y)"
        " <float16 two = {2}> { grid = Mul (coords, two) Y = GridSample (X, grid) }"
    )
    session = WAYS[way](model)
    if isinstance(session, ogs.InferenceSession):
        assert placed_counts(session) == [0]
    else:
        assert count_fused(session) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("way", FUSING)
def test_affine_grid_of_two_samples_is_not_fused(way: str) -> None:
    model = transformer()
    model.graph.node.append(helper.make_node("GridSample", ["Y", "g0"], ["Z"], "second"))
    model.graph.output[0].name = "Z"
    session = WAYS[way](model)
    if isinstance(session, ogs.InferenceSession):
        assert placed_counts(session) == [0, 0, 0]
    else:
        assert count_fused(session) == 0  # type: ignore[arg-type]
    (Y,) = session.run(None, transformer_feeds())
    (expected,) = WAYS["compiled file"](model).run(None, transformer_feeds())
    assert_identical(Y, expected)


@pytest.mark.parametrize("chain", [remap, flow], ids=lambda chain: chain.__name__)
def test_record_lists_the_fused_nodes(chain: Chain) -> None:
    graph = GraphBuilder()
    model = graph.model(chain(graph, 1, 3, 4), (1, 1, 5, 6))
    (record,) = ogs.inspect_model(model)
    assert record.fused == tuple(node.name for node in graph.nodes)


# Placements and sessions


@needs_compiled_ops
def test_placement_of_a_fused_affine_grid_names_its_grid_sample() -> None:
    session = open_compiled(transformer())
    affine_grid, _ = session.placements
    assert affine_grid.runs_on == "compiled op"
    assert affine_grid.reason == "fused into GridSample node 'sample'"


@needs_compiled_ops
@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (remap, " (fused with the 9 nodes that compute its grid)"),
        (one_for_both, " (fused with the node that computes its grid)"),
    ],
    ids=["several", "one"],
)
def test_placement_is_displayed_with_the_number_of_fused_nodes(chain: Chain, text: str) -> None:
    displayed = str(open_compiled(chain_form(chain).model).placements[0])
    assert ": compiled op" in displayed
    assert displayed.endswith(text)


@needs_compiled_ops
def test_declined_fused_nodes_run_on_onnxruntime() -> None:
    session = WAYS["declined"](chain_form(remap).model)
    assert isinstance(session, ogs.InferenceSession)
    placements = [(placement.runs_on, placement.fused) for placement in session.placements]
    assert placements == [("onnxruntime", ())]


@needs_compiled_ops
def test_affine_grid_that_is_not_chosen_is_not_fused() -> None:
    model = transformer()
    feeds = transformer_feeds()
    session = ogs.InferenceSession(
        model, quiet_options(), nodes=lambda record: record.operator != "AffineGrid"
    )
    assert [
        (placement.record.operator, placement.runs_on, placement.fused)
        for placement in session.placements
    ] == [("GridSample", "compiled op", ()), ("AffineGrid", "onnxruntime", ())]
    (expected,) = WAYS["compiled file"](model).run(None, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)


@needs_compiled_ops
def test_compiled_ops_of_a_patched_model_are_fused() -> None:
    patched = ogs.patch_model(transformer(), target="compiled")
    assert placed_counts(ogs.InferenceSession(patched, quiet_options())) == [0, 1]


@needs_compiled_ops
@pytest.mark.parametrize("target", [None, "compiled"])
@pytest.mark.parametrize("source", ["ModelProto", "bytes", "path"])
def test_fused_session_can_be_pickled(target: Any, source: str, tmp_path: Path) -> None:
    model = transformer()
    feeds = transformer_feeds()
    (expected,) = WAYS["compiled file"](model).run(None, feeds)
    if target is not None:
        model = ogs.patch_model(model, target=target)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    sources = {"ModelProto": model, "bytes": model.SerializeToString(), "path": path}
    session = ogs.InferenceSession(sources[source], quiet_options())
    for opened in (session, pickle.loads(pickle.dumps(session))):
        assert set(placed_counts(opened)) == {0, 1}
        assert_identical(opened.run(None, feeds)[0], expected)


@needs_compiled_ops
@pytest.mark.parametrize("chosen", [True, False])
def test_session_of_a_function_is_opened_again_with_its_choice(chosen: bool) -> None:
    records = []

    def choose(record: ogs.NodeRecord) -> bool:
        records.append(record)
        return chosen or not record.fused

    session = ogs.InferenceSession(transformer(), quiet_options(), nodes=choose)
    counts = placed_counts(session)
    n_calls = len(records)
    (expected,) = session.run(None, transformer_feeds())
    restored = pickle.loads(pickle.dumps(session))
    session.set_providers(["CPUExecutionProvider"])
    for opened in (session, restored, pickle.loads(pickle.dumps(restored))):
        assert placed_counts(opened) == counts
        assert_identical(opened.run(None, transformer_feeds())[0], expected)
    assert len(records) == n_calls


@pytest.mark.parametrize("way", [way_param(way="provider")])
def test_provider_fuses_a_compiled_op_that_computes_the_grid(way: str) -> None:
    model = transformer()
    patched = ogs.patch_model(
        model, target="compiled", nodes=lambda record: record.operator == "AffineGrid"
    )
    session = WAYS[way](patched)
    assert count_fused(session) == 1
    (expected,) = WAYS["compiled file"](model).run(None, transformer_feeds())
    assert_identical(session.run(None, transformer_feeds())[0], expected)


SAVED_CHAINS = [
    f"{chain.__name__}, float32, linear-reflection-aligned, known lengths" for chain in CHAINS
]
#: What reads a model, apart from a session.
READERS = {
    "inspect": ogs.inspect_model,
    "patch": ogs.patch_model,
    "lower": partial(ogs.patch_model, target="primitives"),
    "coordinate nodes": ogs.coordinate_nodes,
}


@needs_compiled_ops
@pytest.mark.parametrize(
    "name", [*SAVED_CHAINS, *(f"affine, {chain}, aligned" for chain in AFFINE_CHAINS)]
)
def test_fused_model_saved_by_onnxruntime_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.onnx"
    saved_by_session(form_of(name).model, path)
    node = onnx.load(path).graph.node[-1]
    label = next(attribute.s.decode() for attribute in node.attribute if attribute.name == "node")
    for read in (*READERS.values(), partial(ogs.InferenceSession, sess_options=quiet_options())):
        error = refusal(read, path)
        assert error.where == f"FusedGridSample node {label!r}"
        assert error.argument == "the model"


@needs_compiled_ops
def test_refusal_of_a_fused_model_says_how_to_save_it(tmp_path: Path) -> None:
    path = tmp_path / "saved.onnx"
    saved_by_session(transformer(), path)
    with pytest.raises(ogs.GridSampleError) as refused:
        ogs.inspect_model(path)
    assert str(refused.value) == (
        "FusedGridSample node 'sample': the model is saved by a session that fused this node, "
        "expected the source model, which should be kept, or a model saved by a session with "
        "nodes=lambda record: not record.fused"
    )


@needs_compiled_ops
@pytest.mark.parametrize("name", ["affine, nothing, aligned", *SAVED_CHAINS])
def test_model_saved_without_fusion_has_the_outputs_of_its_source(
    name: str, tmp_path: Path
) -> None:
    form = form_of(name)
    path = tmp_path / "saved.onnx"
    saved_by_session(form.model, path, nodes=lambda record: not record.fused)
    form.assert_outputs(ogs.InferenceSession(path, quiet_options()).run(None, form.feeds))


@needs_compiled_ops
def test_fused_model_in_a_body_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved.onnx"
    saved_by_session(form_of("branches, flow, True").model, path)
    assert refusal(ogs.inspect_model, path).where.startswith("FusedGridSample node")


@needs_compiled_ops
@pytest.mark.parametrize("kind", ["initializer", "Constant"])
def test_fused_constant_replaced_by_session_options_is_read(kind: str) -> None:
    """The output of a Constant is an initializer to onnxruntime."""
    form = form_of(f"constant: {kind}")
    options = quiet_options()
    replacement = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(0.4, np.float32))
    options.add_initializer("two", replacement)
    native = onnxruntime.InferenceSession(form.model.SerializeToString(), options)
    (expected,) = native.run(None, form.feeds)
    session = ogs.InferenceSession(form.model, options, nodes="all")
    np.testing.assert_allclose(session.run(None, form.feeds)[0], expected, atol=1e-5)
    assert placed_counts(session) == [1]


@needs_compiled_ops
def test_inputs_of_a_session_are_those_of_the_model_with_initializers() -> None:
    model = form_of("initializers that are inputs").model
    names = [value.name for value in open_native(model).get_inputs()]
    assert [value.name for value in open_compiled(model).get_inputs()] == names


# Exported models

#: The number of nodes that the provider fuses, in bodies too.
EXPORTED_COUNTS = {
    "deformable_detr": 3,
    "grounding_dino": 3,
    "ic_stn_loop": 1,
    "kornia_elastic_transform2d": 1,
    "kornia_warp_affine": 1,
    "mask2former": 1,
    "pwcnet": 2,
    "raft": 2,
    "raft_scan": 2,
    "rt_detr_v2": 2,
    "stn": 1,
    "stn_3d": 1,
    "voxelmorph": 3,
    "voxelmorph_opset18": 3,
}
#: The models whose fused nodes are in bodies.
EXPORTED_BODIES = ("ic_stn_loop", "raft_scan")


@pytest.mark.parametrize("way", [way_param(way="provider")])
@pytest.mark.parametrize("path", slow_if_large(EXPORTED_MODELS))
def test_exported_model_on_the_provider_has_its_fused_nodes_and_the_outputs_of_a_session(
    path: Path, way: str
) -> None:
    session = onnxruntime.InferenceSession(path, provider_options())
    count = EXPORTED_COUNTS.get(path.stem, 0)
    if path.stem in EXPORTED_BODIES and not FUSES_IN_BODIES:
        count = 0
    assert count_fused(session) == count
    actual = run_stored_inputs(session, path)
    expected = run_stored_inputs(open_compiled(onnx.load(path)), path)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-5, err_msg=name)
