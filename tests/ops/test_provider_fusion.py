"""Deformable attention in unmodified models, as one node of the execution provider."""

import itertools
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.custom_ops import signals
from ort_gridsample.custom_ops.provider import ep_api, fused_nodes
from support.attention_models import FORMS, Arrays, definition, form, form_feeds
from support.cases import dtype_of
from support.exported_models import EXPORTED_FOLDER, run_stored_inputs
from support.models import function_of, parsed
from support.paths import (
    needs_provider,
    open_compiled,
    open_native,
    open_provider,
    provider_options,
)
from support.processes import run_program
from support.provider_nodes import count_fused, in_both_branches

pytestmark = needs_provider
#: Exported models -> the number of their deformable attentions.
EXPORTED = {"deformable_detr": 3, "grounding_dino": 3, "mask2former": 1, "rt_detr_v2": 2}
#: The smallest form.
SMALL = "single/static-dynamo"


def assert_close(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    for Y, expected_Y in zip(actual, expected, strict=True):
        np.testing.assert_allclose(Y, expected_Y, rtol=0, atol=1e-5)


# --- Which nodes are fused ---


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPORTED)
def test_exported_model_has_its_attentions_and_the_outputs_of_a_patched_session(name: str) -> None:
    path = EXPORTED_FOLDER / f"{name}.onnx"
    session = onnxruntime.InferenceSession(path, provider_options())
    assert count_fused(session) == EXPORTED[name]
    expected = run_stored_inputs(open_compiled(onnx.load(path)), path)
    assert_close([*run_stored_inputs(session, path).values()], [*expected.values()])


@pytest.mark.parametrize("name", FORMS)
def test_attention_of_every_exported_form_is_one_node(name: str) -> None:
    model = form(name)
    feeds = form_feeds(name)
    session = open_provider(model)
    assert count_fused(session) == 1
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


@pytest.mark.parametrize("name", ["stacked/queries-torchscript", "stacked/queries-dynamo"])
def test_one_session_runs_any_batch_and_queries(name: str) -> None:
    model = form(name)
    session = open_provider(model)
    native = open_native(model)
    for n, queries in itertools.product((1, 3), (1, 7)):
        feeds = form_feeds(name, n, queries)
        assert_close(session.run(None, feeds), native.run(None, feeds))


@pytest.mark.parametrize("name", [SMALL, "concatenated/queries-torchscript"])
def test_attention_in_both_branches_of_an_if_is_fused_since_1_25(name: str) -> None:
    model = form(name)
    feeds = form_feeds(name)
    session = open_provider(in_both_branches(model))
    is_fused = versions.is_at_least(onnxruntime.__version__, ep_api.OLDEST_WITH_FUSED_BODIES)
    assert count_fused(session) == (2 if is_fused else 0)
    (expected,) = open_native(model).run(None, feeds)
    for condition, sign in ((True, 1), (False, -1)):
        outputs = session.run(None, {**feeds, "condition": np.array(condition)})
        assert_close(outputs, [sign * expected])


def test_attention_in_a_function_is_fused() -> None:
    model = form(SMALL)
    called = function_of(model, "local", "attend")
    names = [value.name for value in model.graph.input]
    node = helper.make_node("attend", names, [model.graph.output[0].name], domain="local")
    graph = helper.make_graph([node], "g", model.graph.input, model.graph.output)
    imports = [*model.opset_import, helper.make_opsetid("local", 1)]
    calling = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[called])
    session = open_provider(calling)
    assert count_fused(session) == 1
    feeds = form_feeds(SMALL)
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


def with_output(model: onnx.ModelProto, op_type: str) -> onnx.ModelProto:
    """Return a model with the output of its last ``op_type`` as a further output."""
    name = [node.output[0] for node in model.graph.node if node.op_type == op_type][-1]
    value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.append(value)
    return changed


@pytest.mark.parametrize("op_type", ["GridSample", "Concat", "ReduceSum"])
def test_attention_whose_inner_value_is_read_is_not_fused(op_type: str) -> None:
    name = "concatenated/static-dynamo"
    model = with_output(form(name), op_type)
    session = open_provider(model)
    assert count_fused(session) == 0
    feeds = form_feeds(name)
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


def test_operand_that_is_an_output_is_kept() -> None:
    name = "concatenated/static-dynamo"
    model = with_output(form(name), "Sub")
    session = open_provider(model)
    feeds = form_feeds(name)
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


# --- Operands that are computed in each run ---

#: B = 2, S = 20 + 6, H = 3, D = 4, Q = 7, and 3 points on each level.
LEVELS = np.array([[3, 4, 5], [3, 2, 3]])
_GRIDS_MODEL = """
    agraph (TYPE[2, 26, 12] value, GRID[6, 7, 3, 2] g0, GRID[6, 7, 3, 2] g1, TYPE[6, 1, QW, 6] w)
    => (TYPE[2, 7, 12] Y)
    <int64[2] ends = {20, 6}, int64[4] s0 = {6, 4, 4, 5}, int64[4] s1 = {6, 4, 2, 3},
     int64[3] flat = {2, 12, 7}, int64[1] last = {-1}> {
        V = Transpose <perm = [0, 2, 1]> (value)
        v0, v1 = Split <axis = 2> (V, ends)
        X0 = Reshape (v0, s0)
        X1 = Reshape (v1, s1)
        Z0 = GridSample (X0, g0)
        Z1 = GridSample (X1, g1)
        Z = Concat <axis = -1> (Z0, Z1)
        P = Mul (Z, w)
        S = ReduceSum <keepdims = 0> (P, last)
        F = Reshape (S, flat)
        Y = Transpose <perm = [0, 2, 1]> (F)
    }"""


def grids_model(value_type: str, grid_type: str, weighted_queries: int) -> onnx.ModelProto:
    """Return a model of deformable attention that has grids, and weights (B·H, 1, Q, P)."""
    names = {"float32": "float", "float64": "double"}
    text = _GRIDS_MODEL.replace("TYPE", names.get(value_type, value_type))
    text = text.replace("GRID", names.get(grid_type, grid_type))
    return parsed(text.replace("QW", str(weighted_queries)), opset=22)


def grids_feeds(value_type: str, grid_type: str, weighted_queries: int) -> Arrays:
    rng = np.random.default_rng(0)
    value = dtype_of(value_type)
    return {
        "value": rng.normal(size=(2, 26, 12)).astype(value),
        "g0": rng.uniform(-1.2, 1.2, (6, 7, 3, 2)).astype(dtype_of(grid_type)),
        "g1": rng.uniform(-1.2, 1.2, (6, 7, 3, 2)).astype(dtype_of(grid_type)),
        "w": rng.random((6, 1, weighted_queries, 6)).astype(value),
    }


def grids_definition(feeds: Arrays) -> np.ndarray:
    """Return the output of :func:`grids_model` in float64."""
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    grid = np.concatenate([wide["g0"], wide["g1"]], axis=2) / 2 + 0.5
    locations = grid.reshape(2, 3, 7, 6, 2).transpose(0, 2, 1, 3, 4)
    weights = np.broadcast_to(wide["w"], (6, 1, 7, 6)).reshape(2, 3, 7, 6).transpose(0, 2, 1, 3)
    value = wide["value"].reshape(2, 26, 3, 4)
    return definition(value, LEVELS, locations, weights, False)


@pytest.mark.parametrize("weighted_queries", [7, 1])
@pytest.mark.parametrize(
    ("value_type", "grid_type", "atol"),
    [
        ("float32", "float32", 2e-5),
        ("float64", "float64", 1e-12),
        ("float64", "float32", 1e-4),
        ("float32", "float64", 1e-6),
        ("float16", "float16", 2e-2),
    ],
)
def test_grids_and_weights_by_head_are_rearranged(
    value_type: str, grid_type: str, atol: float, weighted_queries: int
) -> None:
    feeds = grids_feeds(value_type, grid_type, weighted_queries)
    session = open_provider(grids_model(value_type, grid_type, weighted_queries))
    assert count_fused(session) == 1
    (Y,) = session.run(None, feeds)
    assert Y.dtype == dtype_of(value_type)
    np.testing.assert_allclose(Y, grids_definition(feeds), rtol=0, atol=atol)


# --- Errors ---


@pytest.mark.parametrize(
    ("wrong", "argument"), [("a", "sampling_locations"), ("c", "attention_weights")]
)
def test_wrong_batch_raises_the_ops_sentence_with_the_nodes_name(wrong: str, argument: str) -> None:
    name = "single/queries-dynamo"
    model = form(name)
    feeds = form_feeds(name)
    session = open_provider(model)
    with pytest.raises(
        Exception, match=f"DeformableAttention node 'node_transpose_3': {argument} is "
    ):
        session.run(None, {**feeds, wrong: feeds[wrong][:1]})
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


#: A level whose lengths are those of another value, which may have another number of axes in a run.
_LEVEL_OF_PICTURE = """
    agraph (float[2, S, 12] value, float[pixels] data, int64[rank] shape, float[6, 7, 3, 2] grid,
            float[6, 1, 7, 3] w) => (float[2, 7, 12] Y)
    <int64[2] heads = {6, 4}, int64[3] flat = {2, 12, 7}, int64[1] last = {-1},
     float[1, 1, height, width] picture> {
        picture = Reshape (data, shape)
        lengths = Shape <start = 2> (picture)
        image_shape = Concat <axis = 0> (heads, lengths)
        V = Transpose <perm = [0, 2, 1]> (value)
        X = Reshape (V, image_shape)
        Z = GridSample (X, grid)
        P = Mul (Z, w)
        S = ReduceSum <keepdims = 0> (P, last)
        F = Reshape (S, flat)
        Y = Transpose <perm = [0, 2, 1]> (F)
    }"""


def level_of_picture_feeds(*shape: int) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {"value": (2, 20, 12), "data": (20,), "grid": (6, 7, 3, 2), "w": (6, 1, 7, 3)}
    feeds = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    return feeds | {"shape": np.array(shape)}


def test_level_with_lengths_of_another_value_is_fused() -> None:
    model = parsed(_LEVEL_OF_PICTURE, opset=22)
    feeds = level_of_picture_feeds(1, 1, 4, 5)
    session = open_provider(model)
    assert count_fused(session) == 1
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


@pytest.mark.parametrize(
    ("shape", "image_shape"),
    [((1, 1, 2, 2, 5), r"\(6, 4, 2, 2, 5\)"), ((1, 1, 20), r"\(6, 4, 20\)")],
    ids=str,
)
def test_level_with_another_number_of_axes_raises_an_error_with_its_lengths(
    shape: tuple[int, ...], image_shape: str
) -> None:
    session = open_provider(parsed(_LEVEL_OF_PICTURE, opset=22))
    with pytest.raises(Exception, match=f"output 'Y': levels is .*{image_shape}, expected 4 axes"):
        session.run(None, level_of_picture_feeds(*shape))


#: An image whose first two lengths, B·H and D, may be others in a run. The samples are rearranged.
_FED_IMAGE_SHAPE = """
    agraph (float[2, S, 12] value, int64[1] images, int64[1] channels, float[6, 7, 3, 2] grid,
            float[1, 1, height, width] picture, float[6, 1, 7, 3] w) => (float[2, 7, 12] Y)
    <int64[1] six = {6}, int64[1] four = {4}, int64[4] joined = {6, 4, 7, 3},
     int64[3] flat = {2, 12, 7}, int64[1] last = {-1}> {
        lengths = Shape <start = 2> (picture)
        image_shape = Concat <axis = 0> (IMAGES, CHANNELS, lengths)
        V = Transpose <perm = [0, 2, 1]> (value)
        X = Reshape (V, image_shape)
        Z = GridSample (X, grid)
        R = Reshape (Z, joined)
        P = Mul (R, w)
        S = ReduceSum <keepdims = 0> (P, last)
        F = Reshape (S, flat)
        Y = Transpose <perm = [0, 2, 1]> (F)
    }"""


def fed_image_shape_model(images: str, channels: str) -> onnx.ModelProto:
    """Return a model that reads the first two lengths of its image from these values."""
    text = _FED_IMAGE_SHAPE.replace("IMAGES", images).replace("CHANNELS", channels)
    return parsed(text, opset=22)


def fed_image_shape_feeds(**lengths: int) -> Arrays:
    rng = np.random.default_rng(0)
    shapes = {
        "value": (2, 20, 12),
        "grid": (6, 7, 3, 2),
        "picture": (1, 1, 4, 5),
        "w": (6, 1, 7, 3),
    }
    feeds = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    numbers = {"images": 6, "channels": 4} | lengths
    return feeds | {name: np.array([number]) for name, number in numbers.items()}


def test_image_of_known_batches_and_channels_is_fused() -> None:
    model = fed_image_shape_model("six", "four")
    session = open_provider(model)
    assert count_fused(session) == 1
    feeds = fed_image_shape_feeds()
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))


#: Arguments of fed_image_shape_model, and wrong lengths that are fed.
FED_IMAGE_LENGTHS = [
    ("images", "four", {"images": 3}),
    ("six", "channels", {"channels": 5}),
]


@pytest.mark.parametrize(("images", "channels", "wrong"), FED_IMAGE_LENGTHS)
def test_image_whose_batches_or_channels_are_fed_is_not_fused(
    images: str, channels: str, wrong: dict[str, int]
) -> None:
    """The Reshape to the image fails if they are wrong."""
    model = fed_image_shape_model(images, channels)
    session = open_provider(model)
    assert count_fused(session) == 0
    feeds = fed_image_shape_feeds()
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))
    with pytest.raises(Exception, match="cannot be reshaped"):
        session.run(None, fed_image_shape_feeds(**wrong))


@pytest.mark.parametrize(("images", "channels", "wrong"), FED_IMAGE_LENGTHS)
def test_session_of_image_whose_batches_or_channels_are_fed_wrong_raises(
    images: str, channels: str, wrong: dict[str, int]
) -> None:
    model = fed_image_shape_model(images, channels)
    session = open_compiled(model)
    feeds = fed_image_shape_feeds()
    assert_close(session.run(None, feeds), open_native(model).run(None, feeds))
    with pytest.raises(Exception, match="cannot be reshaped"):
        session.run(None, fed_image_shape_feeds(**wrong))


def test_failure_of_the_search_leaves_single_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fused_nodes, "find_fused_subgraphs", fail)
    session = open_provider(form(SMALL))
    assert count_fused(session) == 0
    feeds = form_feeds(SMALL)
    assert_close(session.run(None, feeds), open_native(form(SMALL)).run(None, feeds))


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


# --- Patched models ---


def test_model_patched_to_tensorrts_plugin_has_the_same_outputs() -> None:
    """A library of the provider runs this model, but does not fuse."""
    name = "stacked/static-dynamo"
    patched = ogs.patch_model(form(name), target="tensorrt-plugins")
    assert "MultiscaleDeformableAttnPlugin_TRT" in {node.op_type for node in patched.graph.node}
    feeds = form_feeds(name)
    expected = open_native(form(name)).run(None, feeds)
    assert_close(open_provider(patched).run(None, feeds), expected)


# --- Sessions ---


def test_nodes_of_another_provider_are_not_fused() -> None:
    order = ["CPUExecutionProvider", ogs.register_provider()]
    if ogs.register_provider() not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime does not find providers by their names")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = form(SMALL).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=order)
    assert count_fused(session) == 0


def test_saved_model_has_single_nodes(tmp_path: Path) -> None:
    """Onnxruntime refuses to save fused nodes."""
    path = tmp_path / "optimized.onnx"
    options = provider_options()
    options.optimized_model_filepath = str(path)
    model = form(SMALL).SerializeToString()
    assert count_fused(onnxruntime.InferenceSession(model, options)) == 0
    saved = onnxruntime.InferenceSession(path, provider_options())
    assert count_fused(saved) == 1
    feeds = form_feeds(SMALL)
    assert_close(saved.run(None, feeds), open_native(form(SMALL)).run(None, feeds))


def test_model_for_contexts_has_single_nodes(tmp_path: Path) -> None:
    """Onnxruntime refuses fused nodes in a model that it compiles for providers."""
    source = tmp_path / "model.onnx"
    compiled = tmp_path / "compiled.onnx"
    onnx.save(form(SMALL), source)
    onnxruntime.ModelCompiler(provider_options(), str(source)).compile_to_file(str(compiled))
    assert count_fused(onnxruntime.InferenceSession(compiled, provider_options())) == 1


def test_sessions_of_many_threads_get_their_own_nodes() -> None:
    names = [name for name in FORMS if name.endswith("static-dynamo")] * 4

    def outputs(name: str) -> list[np.ndarray]:
        session = open_provider(form(name))
        assert count_fused(session) == 1
        return session.run(None, form_feeds(name))

    with ThreadPoolExecutor(8) as pool:
        for name, Y in zip(names, pool.map(outputs, names), strict=True):
            assert_close(Y, open_native(form(name)).run(None, form_feeds(name)))


@pytest.mark.slow
def test_a_thousand_sessions_with_fused_nodes_leak_nothing() -> None:
    """Resident memory after 1,000 sessions, in MiB more than after the first 100."""
    (grown,) = run_program("provider_sessions.py", "1000", SMALL)
    assert float(grown) < 8
