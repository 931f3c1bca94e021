"""Computed grids in unmodified models, fused with their GridSamples by the execution provider."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.custom_ops.provider import ep_api, fused_nodes, grid_fusion
from support.cases import ATTRIBUTES, Attributes
from support.compare import assert_identical, refusal
from support.exported_models import EXPORTED_MODELS, run_stored_inputs, slow_if_large
from support.fused_models import GridSteps, transformer, transformer_feeds
from support.models import function_of, parsed
from support.paths import (
    needs_provider,
    open_compiled,
    open_native,
    open_provider,
    provider_options,
    quiet_options,
)
from support.pixel_graphs import GraphBuilder
from support.processes import run_program
from support.provider_nodes import count_fused, in_both_branches

pytestmark = needs_provider
FUSES_IN_BODIES = versions.is_at_least(onnxruntime.__version__, ep_api.OLDEST_WITH_FUSED_BODIES)
#: Exported models -> the number of their nodes that are fused, in bodies too.
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
#: The models of EXPORTED_COUNTS whose fused nodes are in bodies.
EXPORTED_BODIES = ("ic_stn_loop", "raft_scan")
LINEAR = Attributes("linear", "zeros")


def open_patched(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return this package's session, which fuses grids in the patched model."""
    return ogs.InferenceSession(model, quiet_options(), providers=["CPUExecutionProvider"])


def assert_fused(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Check that all nodes are one, and that the outputs are those of a patched session."""
    session = open_provider(model)
    assert count_fused(session) == 1
    (Y,) = session.run(None, feeds)
    (expected,) = open_patched(model).run(None, feeds)
    assert_identical(Y, expected)


# --- Exported models ---


@pytest.mark.parametrize("path", slow_if_large(EXPORTED_MODELS))
def test_exported_model_has_the_outputs_of_a_patched_session(path: Path) -> None:
    session = onnxruntime.InferenceSession(path, provider_options())
    actual = run_stored_inputs(session, path)
    expected = run_stored_inputs(open_compiled(onnx.load(path)), path)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("path", slow_if_large(EXPORTED_MODELS))
def test_exported_model_has_its_fused_nodes(path: Path) -> None:
    count = EXPORTED_COUNTS.get(path.stem, 0)
    if path.stem in EXPORTED_BODIES and not FUSES_IN_BODIES:
        count = 0
    assert count_fused(onnxruntime.InferenceSession(path, provider_options())) == count


# --- AffineGrids ---


def cast_to(elem_type: int) -> tuple[str, dict[str, object]]:
    return "Cast", {"to": elem_type}


@pytest.mark.parametrize(
    ("theta_type", "steps"),
    [
        ("FLOAT", []),
        ("FLOAT", [cast_to(TensorProto.FLOAT16)]),
        ("DOUBLE", []),
    ],
)
@pytest.mark.parametrize("align_corners", [0, 1])
def test_affine_grid_is_fused(theta_type: str, steps: GridSteps, align_corners: int) -> None:
    model = transformer(steps, theta_type, LINEAR, align_corners)
    assert_fused(model, transformer_feeds(theta_type))


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_affine_grid_is_fused_in_every_mode_and_padding(attributes: Attributes) -> None:
    assert_fused(transformer(attributes=attributes), transformer_feeds())


def test_three_dimensional_affine_grid_is_fused() -> None:
    assert_fused(transformer(attributes=LINEAR), transformer_feeds(axes=3))


def test_changed_grid_is_not_fused() -> None:
    model = transformer([("Neg", {})], attributes=LINEAR)
    session = open_provider(model)
    assert count_fused(session) == 0
    feeds = transformer_feeds()
    assert_identical(session.run(None, feeds)[0], open_patched(model).run(None, feeds)[0])


# --- Programs ---


def flow(graph: GraphBuilder) -> str:
    """Normalize pixel coordinates separately."""
    coords = graph.add_input("coords", 2, 3, 4, 2)
    x, y = graph.add_multi("Split", coords, outputs=2, axis=-1, num_outputs=2)
    normalized = [
        graph.apply(coordinate, ("Mul", 2), ("Div", last), ("Sub", 1))
        for coordinate, last in ((x, 7), (y, 8))
    ]
    return graph.add("Concat", *normalized, axis=-1)


def planes(graph: GraphBuilder) -> str:
    """Rearrange planes of coordinates, y first."""
    coords = graph.add_input("coords", 2, 2, 3, 4)
    channels_last = graph.add("Transpose", coords, perm=[0, 2, 3, 1])
    return graph.add("Gather", channels_last, [1, 0], axis=-1)


def moved(graph: GraphBuilder) -> str:
    """Add a flow to pixel coordinates that are computed too, and normalize the sum."""
    pixels = graph.add("Mul", graph.add_input("pixels", 1, 3, 4, 2), 3)
    coords = graph.add("Mul", graph.add_input("coords", 2, 3, 4, 2), 2)
    return graph.apply(graph.add("Add", pixels, coords), ("Div", [8, 9]), ("Sub", 1))


def scaled_by_inputs(graph: GraphBuilder) -> str:
    """Normalize by scalars that are inputs, and by constants."""
    coords = graph.add_input("coords", 2, 3, 4, 2)
    scaled = graph.add("Mul", graph.add_input("factor"), coords)
    return graph.apply(scaled, ("Add", 0.25), ("Sub", graph.add_input("offset", 1)))


GRIDS = (flow, planes, moved, scaled_by_inputs)


@pytest.mark.parametrize("make_grid", GRIDS)
@pytest.mark.parametrize("grid_type", ["float32", "float64"])
def test_program_is_fused(make_grid: Callable[[GraphBuilder], str], grid_type: str) -> None:
    graph = GraphBuilder(grid_type)
    assert_fused(graph.model(make_grid(graph), (2, 3, 9, 8), LINEAR), graph.feeds)


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_program_is_fused_in_every_mode_and_padding(attributes: Attributes) -> None:
    graph = GraphBuilder()
    assert_fused(graph.model(flow(graph), (2, 3, 9, 8), attributes), graph.feeds)


def test_program_without_scalars_is_fused() -> None:
    graph = GraphBuilder()
    assert_fused(graph.model(planes(graph), (2, 3, 9, 8)), graph.feeds)


def test_half_precision_arithmetic_is_not_fused() -> None:
    model = parsed(
        "g (float[1, 1, 4, 4] X, float16[1, 3, 4, 2] coords) => (float[1, 1, 3, 4] Y)"
        " <float16 two = {2}> { grid = Mul (coords, two) Y = GridSample (X, grid) }"
    )
    assert count_fused(open_provider(model)) == 0


#: The length of the attribute of :func:`split_model`, in elements of 8 bytes.
N_PIECES = 600


def split_model() -> onnx.ModelProto:
    """Return a model whose grid is computed from a piece of N_PIECES lengths."""
    pieces = [f"piece{index}" for index in range(N_PIECES)]
    nodes = [
        helper.make_node("Split", ["coords"], pieces, axis=1, split=[3] + [1] * (N_PIECES - 1)),
        helper.make_node("Mul", ["piece0", "factor"], ["grid"]),
        helper.make_node("GridSample", ["X", "grid"], ["Y"], domain="com.microsoft"),
    ]
    value = helper.make_tensor_value_info
    inputs = [
        value("X", TensorProto.FLOAT, [2, 3, 9, 8]),
        value("coords", TensorProto.FLOAT, [2, N_PIECES + 2, 4, 2]),
    ]
    factor = onnx.numpy_helper.from_array(np.array(2, np.float32), "factor")
    outputs = [value("Y", TensorProto.FLOAT, [2, 3, 3, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [factor])
    imports = [helper.make_opsetid("", 12), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_grid_after_a_node_with_a_long_attribute_is_fused() -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "X": rng.normal(size=(2, 3, 9, 8)).astype(np.float32),
        "coords": rng.uniform(-0.6, 0.6, (2, N_PIECES + 2, 4, 2)).astype(np.float32),
    }
    session = open_provider(split_model())
    assert count_fused(session) == 1
    expected = ogs.grid_sample(feeds["X"], 2 * feeds["coords"][:, :3])
    assert_identical(session.run(None, feeds)[0], expected)


# --- Values that other nodes read ---


SHARED_MODEL = """
    agraph (float[2, 3, 9, 8] X, float[2, 3, 9, 8] X2, float[2, 3, 4, 2] coords, bool yes)
    => (float[2, 3, 3, 4] Y, float[a, b, c, d] Z)
    <float half = {0.5}, float one = {1}> {
        a = Mul (coords, half)
        grid = Sub (a, one)
        Y = GridSample (X, grid)
        Z = READER
    }"""
READERS = {
    "GridSample": "GridSample (X2, grid)",
    "node": "Neg (grid)",
    "output": "Identity (grid)",
    "body": """If (yes) <
        then_branch = then () => (float[a, b, c, d] n) { n = Neg (grid) },
        else_branch = other () => (float[a, b, c, d] p) { p = Abs (grid) }
    >""",
}


def shared_feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "X": rng.normal(size=(2, 3, 9, 8)).astype(np.float32),
        "X2": rng.normal(size=(2, 3, 9, 8)).astype(np.float32),
        "coords": rng.uniform(-1, 5, (2, 3, 4, 2)).astype(np.float32),
        "yes": np.array(True),
    }


@pytest.mark.parametrize("reader", READERS)
def test_grid_with_another_reader_is_not_fused(reader: str) -> None:
    model = parsed(SHARED_MODEL.replace("READER", READERS[reader]))
    session = open_provider(model)
    assert count_fused(session) == 0
    feeds = shared_feeds()
    outputs = session.run(None, feeds)
    for output, expected in zip(outputs, open_patched(model).run(None, feeds), strict=True):
        assert_identical(output, expected)


def test_step_with_another_reader_is_the_source_of_the_program() -> None:
    model = parsed(SHARED_MODEL.replace("READER", "Neg (a)"))
    session = open_provider(model)
    assert count_fused(session) == 1
    feeds = shared_feeds()
    outputs = session.run(None, feeds)
    for output, expected in zip(outputs, open_patched(model).run(None, feeds), strict=True):
        assert_identical(output, expected)


def test_affine_grid_of_two_samples_is_not_fused() -> None:
    model = transformer(attributes=LINEAR)
    sample = helper.make_node("GridSample", ["Y", "g0"], ["Z"], "second")
    model.graph.node.append(sample)
    model.graph.output[0].name = "Z"
    session = open_provider(model)
    assert count_fused(session) == 0
    feeds = transformer_feeds()
    assert_identical(session.run(None, feeds)[0], open_patched(model).run(None, feeds)[0])


# --- Bodies and functions ---


def flow_model() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the model of :func:`flow` and its feeds."""
    graph = GraphBuilder()
    return graph.model(flow(graph), (2, 3, 9, 8)), graph.feeds


def test_grids_in_both_branches_of_an_if_are_fused_since_1_25() -> None:
    model, feeds = flow_model()
    session = open_provider(in_both_branches(model))
    assert count_fused(session) == (2 if FUSES_IN_BODIES else 0)
    (expected,) = open_patched(model).run(None, feeds)
    for condition, sign in ((True, 1), (False, -1)):
        (Y,) = session.run(None, {**feeds, "condition": np.array(condition)})
        assert_identical(Y, sign * expected)


def test_grid_in_a_function_is_fused() -> None:
    model, feeds = flow_model()
    names = [value.name for value in model.graph.input]
    node = helper.make_node("warp", names, ["Y"], domain="local")
    graph = helper.make_graph([node], "g", model.graph.input, model.graph.output)
    calling = helper.make_model(
        graph,
        opset_imports=[*model.opset_import, helper.make_opsetid("local", 1)],
        ir_version=8,
        functions=[function_of(model, "local", "warp")],
    )
    assert_fused(calling, feeds)


# --- Errors ---


def assert_same_error(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Check that a run fails as in a patched session."""
    session = open_provider(model)
    assert count_fused(session) == 1
    error = refusal(open_patched(model).run, None, feeds)
    with pytest.raises(Exception, match=re.escape(str(error))):
        session.run(None, feeds)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("size", np.array([2, 3, 5])),
        ("size", np.array([3, 3, 5, 6])),
        ("size", -np.array([2, 3, 5, 6])),
        ("theta", np.ones((2, 1, 3), np.float32)),
        ("X", np.ones((1, 3, 9, 8), np.float32)),
        ("X", np.ones((2, 3, 9), np.float32)),
    ],
)
def test_wrong_input_of_an_affine_grid_raises_the_patched_sessions_error(
    name: str, wrong: np.ndarray
) -> None:
    assert_same_error(transformer(attributes=LINEAR), {**transformer_feeds(), name: wrong})


@pytest.mark.parametrize(
    ("name", "shape"),
    [("X", (1, 3, 9, 8)), ("coords", (2, 5, 4, 2)), ("pixels", (1, 3, 5, 2))],
)
def test_wrong_input_of_a_program_raises_the_patched_sessions_error(
    name: str, shape: tuple[int, ...]
) -> None:
    graph = GraphBuilder()
    model = graph.model(moved(graph), (2, 3, 9, 8), unknown_lengths=True)
    assert_same_error(model, {**graph.feeds, name: np.ones(shape, np.float32)})


#: The model declares one element for a value that may have more in a run.
WRONG_DECLARATION = """
    agraph (float[B, 1, 4, 4] X, float[B, 3, 4, 2] coords, float[N] factors, int64[M] shape)
    => (float[B, 1, 3, 4] Y)
    <float SHAPE first> {
        first = Reshape (factors, shape)
        factor = Neg (first)
        grid = Mul (coords, factor)
        Y = GridSample (X, grid)
    }"""


def test_value_that_is_wrongly_declared_as_a_scalar_raises_an_error() -> None:
    session = open_provider(parsed(WRONG_DECLARATION.replace(" SHAPE", "[1]")))
    assert count_fused(session) == 1
    feeds = {
        "X": np.ones((1, 1, 4, 4), np.float32),
        "coords": np.ones((1, 3, 4, 2), np.float32),
        "factors": np.ones(2, np.float32),
        "shape": np.array([2]),
    }
    sentence = r"GridSample node with output 'Y': grid is made of a value of shape \(2\)"
    with pytest.raises(Exception, match=sentence):
        session.run(None, feeds)


def test_value_with_an_axis_of_batches_is_no_scalar() -> None:
    model = parsed(WRONG_DECLARATION.replace(" SHAPE", "[1, 1, 1, 1]"))
    rng = np.random.default_rng(0)
    feeds = {
        "X": rng.normal(size=(2, 1, 4, 4)).astype(np.float32),
        "coords": rng.uniform(-1, 1, (2, 3, 4, 2)).astype(np.float32),
        "factors": np.array([0.5, 0.25], np.float32),
        "shape": np.array([2, 1, 1, 1]),
    }
    (Y,) = open_provider(model).run(None, feeds)
    (expected,) = open_patched(model).run(None, feeds)
    assert_identical(Y, expected)


# --- Nodes that stay ---


def test_failure_to_create_the_node_leaves_single_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(grid_fusion.FusedGridSample, "add_state", fail)
    model, feeds = flow_model()
    session = open_provider(model)
    assert count_fused(session) == 0
    np.testing.assert_allclose(
        session.run(None, feeds)[0], open_native(model).run(None, feeds)[0], atol=1e-5
    )


def test_nodes_of_another_provider_are_not_fused() -> None:
    order = ["CPUExecutionProvider", ogs.register_provider()]
    if ogs.register_provider() not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime does not find providers by their names")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model, _ = flow_model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=order)
    assert count_fused(session) == 0


def test_saved_model_has_single_nodes(tmp_path: Path) -> None:
    options = provider_options()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    model, _ = flow_model()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert count_fused(session) == 0


def test_model_for_contexts_has_single_nodes(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    compiled = tmp_path / "compiled.onnx"
    onnx.save(flow_model()[0], source)
    onnxruntime.ModelCompiler(provider_options(), str(source)).compile_to_file(str(compiled))
    assert count_fused(onnxruntime.InferenceSession(compiled, provider_options())) == 1


# --- The cost of a session ---


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


@pytest.mark.slow
def test_a_thousand_sessions_with_fused_grids_leak_nothing() -> None:
    """Resident memory after 1,000 sessions, in MiB more than after the first 100."""
    (grown,) = run_program("provider_sessions.py", "1000", "transformer")
    assert float(grown) < 8
