"""Models that are converted to float16 or quantized after a patch must keep their coordinates."""

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import astuple
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, inliner, numpy_helper, parser

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import registry
from support import faults
from support.attention_models import form
from support.cases import ATTRIBUTES, Attributes
from support.compare import refusal
from support.exported_models import EXPORTED_FOLDER, run_stored_inputs, stored_arrays
from support.foreign_nodes import node_text
from support.graphs import SIGNATURE
from support.models import node_attributes
from support.parameters import with_slow
from support.paths import open_native, quiet_options

pytestmark = faults.needs_named_nodes  # nodes are listed by name

Feeds = Mapping[str, np.ndarray]


def network(
    size: int, attributes: Attributes, flow: bool = False, channels: int = 4
) -> onnx.ModelProto:
    """Return a model of Conv, Relu, GridSample and Conv on an image.

    The grid is the input G, or is computed from the input F, a flow in pixels.
    """
    rng = np.random.default_rng(3)
    weights = {
        "first": rng.standard_normal((channels, 1, 3, 3)) / 3,
        "bias": rng.standard_normal(channels) / 10,
        "second": rng.standard_normal((1, channels, 3, 3)) / 6,
    }
    grid_nodes = ""
    if flow:
        pixels = np.stack(np.meshgrid(np.arange(size), np.arange(size)), -1)[None]
        weights |= {"pixels": pixels, "half": np.array((size - 1) / 2), "one": np.array(1)}
        grid_nodes = """[move] moved = Add (pixels, F)
            [scale] scaled = Div (moved, half)
            [shift] G = Sub (scaled, one)"""
    sample = node_text("GridSample", "", node_attributes(attributes, 17))
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[1,1,{size},{size}] X, float[1,{size},{size},2] {"F" if flow else "G"})
        => (float[1,1,{size},{size}] Y) {{
            [first] A = Conv <pads = [1, 1, 1, 1]> (X, first, bias)
            [relu] B = Relu (A)
            {grid_nodes}
            [warp] C = {sample} (B, G)
            [second] Y = Conv <pads = [1, 1, 1, 1]> (C, second) }}""")
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def feeds_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    size = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
    X = rng.standard_normal((1, 1, size, size))
    flow = rng.uniform(-2, 2, (1, size, size, 2))
    axis = np.linspace(-1, 1, size)
    grid = np.stack(np.meshgrid(axis, axis), -1)[None] + flow / size
    feeds = {"X": X, "F": flow, "G": grid}
    return {value.name: feeds[value.name].astype(np.float32) for value in model.graph.input}


def run(model: onnx.ModelProto, feeds: Feeds) -> np.ndarray:
    return open_native(model).run(None, dict(feeds))[0]


def relative_error(model: onnx.ModelProto, feeds: Feeds, expected: np.ndarray) -> float:
    """Return the norm of the output's error divided by that of the expected output."""
    return float(np.linalg.norm(run(model, feeds) - expected) / np.linalg.norm(expected))


LINEAR = Attributes("linear", "zeros", False)
SAMPLES = [LINEAR, Attributes("cubic", "reflection", True), Attributes("nearest", "zeros", False)]


def convert_by_module(
    module: str, model: onnx.ModelProto, blocked: Sequence[str]
) -> onnx.ModelProto:
    float16 = pytest.importorskip(module)
    return float16.convert_float_to_float16(
        deepcopy(model), keep_io_types=True, node_block_list=list(blocked)
    )


def convert_by_onnxruntime(model: onnx.ModelProto, blocked: Sequence[str]) -> onnx.ModelProto:
    """Convert a model as the documentation describes it."""
    from onnxruntime.transformers.onnx_model import OnnxModel

    half = OnnxModel(deepcopy(model))
    half.convert_float_to_float16(
        use_symbolic_shape_infer=False, keep_io_types=True, node_block_list=list(blocked)
    )
    return half.model


Converter = Callable[[onnx.ModelProto, Sequence[str]], onnx.ModelProto]
CONVERTERS: dict[str, Converter] = {
    "onnxconverter-common": partial(convert_by_module, "onnxconverter_common.float16"),
    "float16 of onnxruntime": partial(convert_by_module, "onnxruntime.transformers.float16"),
    "OnnxModel of onnxruntime": convert_by_onnxruntime,
}
to_half = CONVERTERS["onnxconverter-common"]


@with_slow(
    "size,channels,flow",
    [(64, 4, False), (64, 32, True), (1024, 4, True)],
    [(64, 4, False), (64, 32, True)],
)
@pytest.mark.parametrize("attributes", SAMPLES, ids=lambda a: a.mode)
def test_float16_conversion_loses_no_more_than_in_the_rest_of_the_network(
    size: int, channels: int, attributes: Attributes, flow: bool
) -> None:
    model = network(size, attributes, flow, channels)
    feeds = feeds_for(model)
    expected = run(model, feeds)
    # All of the network is converted but the nodes that compute coordinates.
    rest = relative_error(to_half(model, ogs.coordinate_nodes(model)), feeds, expected)
    lowered = ogs.patch_model(model, target="primitives", functions=True)
    converted = to_half(lowered, ogs.coordinate_nodes(lowered))
    assert 1e-5 < rest < 1e-3
    assert relative_error(converted, feeds, expected) < 1.1 * rest
    assert relative_error(inliner.inline_local_functions(converted), feeds, expected) < 1.1 * rest
    inlined = ogs.patch_model(model, target="primitives", for_runtime="onnxconverter-common")
    # Its pixels are rounded once more. Independent errors add up in squares.
    assert (
        relative_error(to_half(inlined, ogs.coordinate_nodes(inlined)), feeds, expected)
        < 2**0.5 * rest
    )
    last = ogs.patch_model(to_half(model, ogs.coordinate_nodes(model)), target="primitives")
    assert relative_error(last, feeds, expected) < 1.1 * rest


@pytest.fixture(scope="module")
def lowered_flow() -> onnx.ModelProto:
    """A lowered network whose grid is computed from a flow."""
    return ogs.patch_model(network(64, LINEAR, flow=True), target="primitives", functions=True)


def types_of_the_grid(converted: onnx.ModelProto) -> set[int]:
    """Return the types of the values that the nodes after the first of the flow read."""
    graph = onnx.shape_inference.infer_shapes(converted).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    nodes = [node for node in graph.node if node.name in ("scale", "shift")]
    return {types[name] for node in nodes for name in node.input if name in types}


# onnxruntime's CPU provider computes float16 in float32, so its outputs do not show the types.
def test_listed_nodes_compute_in_float32(lowered_flow: onnx.ModelProto) -> None:
    converted = to_half(lowered_flow, ogs.coordinate_nodes(lowered_flow))
    assert types_of_the_grid(converted) == {TensorProto.FLOAT}


def test_nodes_that_are_not_listed_compute_in_float16(lowered_flow: onnx.ModelProto) -> None:
    assert types_of_the_grid(to_half(lowered_flow, ["warp"])) == {TensorProto.FLOAT16}


def test_model_with_converted_coordinates_is_refused(lowered_flow: onnx.ModelProto) -> None:
    with pytest.raises(Exception, match="GridSample_1"):
        open_native(to_half(lowered_flow, []))


#: Beyond 2048, float16 has not every integer; beyond 65504, none.
WIDTHS = (2049, 2560, 66001)


def convert_by(converter: str, model: onnx.ModelProto) -> onnx.ModelProto:
    return CONVERTERS[converter](model, ogs.coordinate_nodes(model))


def wide_image(width: int, channels: int = 2) -> np.ndarray:
    """Pixels that float16 has, and that differ from their neighbours'."""
    row = np.arange(width) * 37 % 64 / np.float32(64)
    return np.ascontiguousarray(np.broadcast_to(row, (1, channels, 2, width)), np.float32)


def assert_near(model: onnx.ModelProto, feeds: Feeds, expected: np.ndarray) -> None:
    """A few roundings to float16 away, where another pixel would be 1 / 64 or more away."""
    np.testing.assert_allclose(run(model, feeds), expected, rtol=0, atol=6e-3)


#: All modes and paddings on one width, and one of them on all widths: the converters are slow.
WIDE = [*((attributes, 2560) for attributes in ATTRIBUTES), *((LINEAR, width) for width in WIDTHS)]


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize(("attributes", "width"), WIDE, ids=str)
def test_float16_wide_axis_keeps_pixels(attributes: Attributes, width: int, converter: str) -> None:
    sample = node_text("GridSample", "", node_attributes(attributes, 16))
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 16]>
        wide (float[1,2,2,{width}] X, float[1,1,99,2] G) => (float[1,2,1,99] Y) {{
            [warp] A = {sample} (X, G)
            [rest] Y = Add (A, A) }}""")
    # One converter rounds the inputs, so the grid is of numbers that float16 has.
    grid = np.random.default_rng(0).uniform(-1.3, 1.3, (1, 1, 99, 2)).astype(np.float16)
    grid[0, 0, :3] = [[1, 1], [-1, -1], [1.25, 1.25]]
    feeds = {"X": wide_image(width), "G": grid.astype(np.float32)}
    expected = 2 * ogs.grid_sample(feeds["X"], feeds["G"], *astuple(attributes))
    lowered = ogs.patch_model(
        model, target="primitives", for_runtime="onnxconverter-common", functions=width == 2049
    )
    assert_near(convert_by(converter, lowered), feeds, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_float16_grid_read_by_two_nodes_keeps_pixels(width: int) -> None:
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 20]>
        wide (float[1,2,2,{width}] X, float[1,2,3] theta) => (float[1,2,2,{width}] Y)
        <int64[4] size = {{1, 2, 2, {width}}}> {{
            [affine] G = AffineGrid <align_corners = 1> (theta, size)
            [one] A = GridSample <align_corners = 1> (X, G)
            [two] B = GridSample <mode = "nearest", align_corners = 1> (X, G)
            [rest] Y = Add (A, B) }}""")
    feeds = {"X": wide_image(width), "theta": np.eye(2, 3, dtype=np.float32)[None]}
    lowered = ogs.patch_model(model, target="primitives", for_runtime="onnxconverter-common")
    assert_near(to_half(lowered, ogs.coordinate_nodes(lowered)), feeds, 2 * feeds["X"])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("attribute", ["value", "value_floats"])
@pytest.mark.parametrize("functions", [False, True])
def test_float16_constant_of_the_models_own_keeps_pixels(
    width: int, attribute: str, functions: bool
) -> None:
    numbers = f"{(width - 1) / 2}, 0.5"
    constant = f"value_floats = [{numbers}]"
    if attribute == "value":
        constant = f"value = float[2] {{{numbers}}}"
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 16]>
        wide (float[1,2,2,{width}] X, float[1,2,{width},2] P) => (float[1,2,2,{width}] Y)
        <float one = {{1}}> {{
            [halves] H = Constant <{constant}> ()
            [scale] S = Div (P, H)
            [shift] G = Sub (S, one)
            [warp] A = GridSample <align_corners = 1> (X, G)
            [rest] Y = Add (A, A) }}""")
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(2)), -1)[None].astype(np.float32)
    feeds = {"X": wide_image(width), "P": pixels}
    lowered = ogs.patch_model(
        model, target="primitives", for_runtime="onnxconverter-common", functions=functions
    )
    assert_near(to_half(lowered, ogs.coordinate_nodes(lowered)), feeds, 2 * feeds["X"])


#: Exported models -> the exporter, and the largest relative error of an output. That of a network
#: with random weights is larger than the rounding error of float16, which is 5e-4.
EXPORTED = {
    "deformable_detr": ("dynamo", 1e-2),
    "kornia_homography_warp3d": ("dynamo", 5e-3),
    "liif": ("dynamo", 5e-3),
    "raft": ("dynamo", 5e-3),
    "stn_3d": ("dynamo", 5e-3),
    "stn_bicubic": ("dynamo", 5e-3),
    "first_order_motion": ("TorchScript", 5e-3),
    "pwcnet": ("TorchScript", 5e-3),
    "sfmlearner_function": ("TorchScript", 5e-3),
    "stn": ("TorchScript", 5e-3),
}


def lower(model: onnx.ModelProto, **options: object) -> onnx.ModelProto:
    return ogs.patch_model(model, target="primitives", **options)  # type: ignore[arg-type]


def convert(model: onnx.ModelProto) -> onnx.ModelProto:
    return convert_by("OnnxModel of onnxruntime", model)


#: The orders of a patch and a conversion.
WAYS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "in a session": convert,
    "before a patch": lambda model: lower(convert(model)),
    "before a patch to GridSample": lambda model: ogs.patch_model(convert(model), target="ai.onnx"),
    "after a patch": lambda model: convert(lower(model)),
    "after a patch to functions": lambda model: convert(lower(model, functions=True)),
    "after a patch for a converter": lambda model: convert(
        lower(model, for_runtime="onnxconverter-common")
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        pytest.param(name, tolerance, id=f"{name}-{exporter}")
        for name, (exporter, tolerance) in EXPORTED.items()
    ],
)
def test_float16_exported_model_has_the_output_of_float32(
    name: str, tolerance: float, way: str
) -> None:
    path = EXPORTED_FOLDER / f"{name}.onnx"
    converted = WAYS[way](onnx.load(path))
    is_lowered = way not in ("in a session", "before a patch to GridSample")
    make_session = open_native if is_lowered else ogs.InferenceSession
    outputs = run_stored_inputs(make_session(converted), path)
    assert any(tensor.data_type == TensorProto.FLOAT16 for tensor in converted.graph.initializer)
    for output_name, expected in stored_arrays(path, "out.").items():
        error = np.linalg.norm(outputs[output_name] - expected)
        assert error <= tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize(("name", "attentions"), [("deformable_detr", 3), ("rt_detr_v2", 2)])
def test_float16_attention_of_a_detector_is_one_op(name: str, attentions: int) -> None:
    path = EXPORTED_FOLDER / f"{name}.onnx"
    session = ogs.InferenceSession(convert(onnx.load(path)))
    operators = [placement.record.operator for placement in session.placements]
    assert operators.count("DeformableAttention") == attentions
    logits = run_stored_inputs(session, path)["logits"]
    expected = stored_arrays(path, "out.")["logits"]
    # The rounding changes the order of a few queries.
    errors = np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert np.median(errors) < 1e-2


@pytest.mark.parametrize("is_lowered", [False, True])
def test_float16_flow_in_pixels_of_a_wide_image_is_not_rounded(is_lowered: bool) -> None:
    """Beyond 1024 pixels, float16 would round the coordinates to halves of a pixel and more."""
    width = 2560
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        wide (float[1,2,2,{width}] X, float[1,2,{width},2] F) => (float[1,2,2,{width}] Y)
        <float[2] halves = {{ {(width - 1) / 2}, 0.5 }}, float one = {{1}}> {{
            [a] moved = Add (P, F)
            [b] scaled = Div (moved, halves)
            [c] grid = Sub (scaled, one)
            [warp] A = GridSample <align_corners = 1> (X, grid)
            [rest] Y = Add (A, A) }}""")
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(2)), -1)[None].astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(pixels, "P"))
    feeds = {"X": wide_image(width), "F": np.zeros_like(pixels)}
    converted = convert(lower(model, functions=True) if is_lowered else model)
    assert_near(converted, feeds, 2 * feeds["X"])


def test_float16_large_constant_grid_keeps_pixels() -> None:
    """A grid of more than a megabyte stays in the model as it is."""
    width = 70_000
    line = np.stack(np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, 2)), -1)[None].astype(
        np.float32
    )
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 16]>
        wide (float[1,2,2,{width}] X) => (float[1,2,2,{width}] Y) {{
            [grid] G = Constant <value_float = 0.0> ()
            [warp] A = GridSample <mode = "nearest", align_corners = 1> (X, G)
            [rest] Y = Add (A, A) }}""")
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.append(
        onnx.helper.make_attribute("value", numpy_helper.from_array(line))
    )
    feeds = {"X": wide_image(width)}
    lowered = ogs.patch_model(model, target="primitives", for_runtime="onnxconverter-common")
    assert_near(to_half(lowered, ogs.coordinate_nodes(lowered)), feeds, 2 * feeds["X"])


@pytest.mark.parametrize("type", ["uint8", "int16", "int32"])
@pytest.mark.parametrize("converter", CONVERTERS)
def test_float16_integer_image_keeps_pixels(type: str, converter: str) -> None:
    """Integers are weighed as float64, which no converter touches."""
    width = 2560
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 16]>
        wide ({type}[1,2,2,{width}] X, float[1,1,99,2] G) => ({type}[1,2,1,99] Y) {{
            [warp] Y = GridSample <padding_mode = "border"> (X, G) }}""")
    generator = np.random.default_rng(0)
    X = generator.integers(0, np.iinfo(type).max, (1, 2, 2, width)).astype(type)
    grid = generator.uniform(-1.3, 1.3, (1, 1, 99, 2)).astype(np.float16).astype(np.float32)
    lowered = ogs.patch_model(model, target="primitives", for_runtime="onnxconverter-common")
    Y = run(convert_by(converter, lowered), {"X": X, "G": grid})
    expected = ogs.grid_sample(X, grid, "linear", "border", False)
    tolerance = 1e-6 * np.iinfo(type).max + 1  # the function truncates sums in float32
    np.testing.assert_allclose(Y.astype(float), expected.astype(float), rtol=0, atol=tolerance)


@pytest.mark.parametrize("runtime", [None, "onnxconverter-common"])
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_lowered_float16_model_on_a_wide_axis_computes_coordinates_as_the_function(
    attributes: Attributes, runtime: str | None
) -> None:
    width = 2560
    sample = node_text("GridSample", "", node_attributes(attributes, 16))
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 16]>
        wide (float16[1,2,2,{width}] X, float16[1,1,99,2] G) => (float16[1,2,1,99] Y) {{
            [warp] Y = {sample} (X, G) }}""")
    grid = np.random.default_rng(0).uniform(-1.3, 1.3, (1, 1, 99, 2)).astype(np.float16)
    feeds = {"X": wide_image(width).astype(np.float16), "G": grid}
    lowered = ogs.patch_model(model, target="primitives", for_runtime=runtime)  # type: ignore[arg-type]
    expected = ogs.grid_sample(*feeds.values(), *astuple(attributes))
    np.testing.assert_allclose(run(lowered, feeds), expected, rtol=0, atol=1e-3)


def run_on_files(
    model: onnx.ModelProto, rewrite: Callable, *arguments: object, **options: object
) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        rewrite(f"{folder}/model.onnx", f"{folder}/rewritten.onnx", *arguments, **options)
        return onnx.load(f"{folder}/rewritten.onnx")


def quantize(
    model: onnx.ModelProto, feeds: Feeds, excluded: Sequence[str], format: str = "QDQ"
) -> onnx.ModelProto:
    from onnxruntime.quantization import QuantFormat, quantize_static

    reader = SimpleNamespace(get_next=chain([dict(feeds)], repeat(None)).__next__)
    settings = {"quant_format": QuantFormat[format], "nodes_to_exclude": list(excluded)}
    return run_on_files(model, quantize_static, reader, **settings)


def preprocess(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.quantization.shape_inference import quant_pre_process

    return run_on_files(model, quant_pre_process, skip_symbolic_shape=True)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantization logs a lot at the root."""
    monkeypatch.setattr(logging.root.manager, "disable", logging.WARNING)


@pytest.mark.parametrize("size", [64, pytest.param(1024, marks=pytest.mark.slow)])
@pytest.mark.parametrize("functions", [False, True])
def test_quantization_loses_no_more_than_in_the_rest_of_the_network(
    size: int, functions: bool
) -> None:
    model = network(size, LINEAR, flow=functions == (size == 64))
    feeds = feeds_for(model)
    expected = run(model, feeds)
    # onnxruntime quantizes no GridSample.
    rest = relative_error(quantize(model, feeds, ogs.coordinate_nodes(model)), feeds, expected)
    lowered = ogs.patch_model(model, target="primitives", functions=functions)
    assert 1e-3 < rest < 0.05
    assert (
        relative_error(quantize(lowered, feeds, ogs.coordinate_nodes(lowered)), feeds, expected)
        < 1.1 * rest
    )


@pytest.mark.parametrize("attributes", SAMPLES, ids=lambda a: a.mode)
@pytest.mark.parametrize("functions", [False, True])
def test_nodes_of_a_preprocessed_model_are_listed(attributes: Attributes, functions: bool) -> None:
    """Preprocessing inlines, renames, fuses and moves nodes, and removes their metadata."""
    model = network(64, attributes)
    format = "QDQ" if functions == (attributes.mode == "cubic") else "QOperator"
    feeds = feeds_for(model)
    expected = run(model, feeds)
    rest = relative_error(quantize(preprocess(model), feeds, [], format), feeds, expected)
    lowered = preprocess(ogs.patch_model(model, target="primitives", functions=functions))
    listed = ogs.coordinate_nodes(lowered)
    others = {node.name for node in lowered.graph.node} - set(listed)
    assert {name for name in others if not name.startswith("Transpose_token")} == {
        "first",
        "relu",
        "second",
    }
    assert relative_error(quantize(lowered, feeds, listed, format), feeds, expected) < 1.1 * rest
    # Some releases do not inline functions.
    if attributes.mode == "linear" and not lowered.functions:
        assert relative_error(quantize(lowered, feeds, [], format), feeds, expected) > 0.3


@pytest.mark.parametrize(
    "target", ["ort_gridsample", *(["compiled"] if not registry.unavailable_reason() else [])]
)
def test_converted_model_can_be_patched_to_ops_of_the_package(target: str) -> None:
    """No converter can read these ops, so the patch comes last."""
    model = network(64, LINEAR)
    feeds = feeds_for(model)
    for converted in (
        quantize(preprocess(model), feeds, []),
        to_half(model, ogs.coordinate_nodes(model)),
    ):
        patched = ogs.patch_model(converted, target=target)  # type: ignore[arg-type]
        onnx.shape_inference.infer_shapes(patched, check_type=True)
        session = onnxruntime.InferenceSession(
            patched.SerializeToString(), ogs.register(quiet_options())
        )
        np.testing.assert_allclose(session.run(None, feeds)[0], run(converted, feeds), atol=1e-3)


def coordinate_nodes_of(text: str) -> list[str]:
    header = '<ir_version: 10, opset_import: ["": 20, "mmcv": 1, "local": 1]>'
    return ogs.coordinate_nodes(parser.parse_model(f"{header} {text}"))


WARP = "[warp] Y = GridSample (X, H)"
LISTS = {
    "no sample": ("[relu] Y = Relu (X)", []),
    "only the sample": ("[warp] Y = GridSample (X, G)", ["warp"]),
    "arithmetic of the grid": (
        "[a] A = Mul (G, G) [b] B = Cast <to = 1> (A) [c] H = Add (B, G)" + WARP,
        [*"abc", "warp"],
    ),
    "constants": (
        "[two] T = Constant <value_float = 2.0> () [a] H = Mul (G, T)" + WARP,
        ["two", "a", "warp"],
    ),
    "value with another reader": (
        "[a] A = Add (G, G) [b] H = Mul (A, G) [c] Z = Relu (A)" + WARP,
        ["b", "warp"],
    ),
    "value that is an output": (
        "[a] A = Add (G, G) [b] H = Neg (A) [warp] Y = GridSample (X, A) [d] V = Abs (H)",
        ["warp"],
    ),
    "the image": ("[a] A = Add (X, X) [warp] Y = GridSample (A, G)", ["warp"]),
    "up to other operators": ("[net] A = Softmax (G) [a] H = Neg (A)" + WARP, ["a", "warp"]),
    "another dialect": ("[a] A = Neg (G) [warp] Y = mmcv.grid_sampler (X, A)", ["a", "warp"]),
    "AffineGrid": (
        "[t] T = Neg (theta) [s] S = Identity (size) [g] H = AffineGrid (T, S)" + WARP,
        [*"tsg", "warp"],
    ),
    "in a branch": (
        """[a] A = Neg (G)
        [b] B = Neg (G)
        [c] C = Not (c)
        [if] Y = If (C) <
            then_branch = t () => (float[N,C,h,w] T) { [warp] T = GridSample (X, B) },
            else_branch = e () => (float[N,C,h,w] E) { [relu] E = Relu (X) }>""",
        ["warp"],
    ),
}


@pytest.mark.parametrize(("nodes", "names"), LISTS.values(), ids=LISTS)
def test_listed_nodes_compute_coordinates(nodes: str, names: list[str]) -> None:
    signature = SIGNATURE.replace("g (", "g (float[N,2,3] theta, int64[4] size, ")
    assert coordinate_nodes_of(f"{signature} {{ {nodes} }}") == names


def test_listing_a_node_without_a_name_is_refused() -> None:
    error = refusal(coordinate_nodes_of, f"{SIGNATURE} {{ Y = GridSample (X, G) }}")
    assert error.where == "GridSample node with output 'Y'"
    assert (error.argument, error.found) == ("name", "''")
    assert error.expected == "a name, because converters exclude nodes by name"


@pytest.mark.parametrize("target", ["ort_gridsample", "compiled", "primitives", "mmcv"])
@pytest.mark.parametrize("functions", [False, True])
def test_nodes_of_a_patched_model_are_listed(target: str, functions: bool) -> None:
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]> {SIGNATURE} {{
        [a] H = Neg (G)
        [relu] A = Relu (X)
        [warp] B = GridSample (A, H)
        [abs] Y = Abs (B) }}""")
    patched = ogs.patch_model(model, target=target, functions=functions)  # type: ignore[arg-type]
    names = ogs.coordinate_nodes(patched)
    assert [n.name for n in patched.graph.node if n.name not in names] == ["relu", "abs"]
    assert set(names) < {n.name for n in patched.graph.node}
    assert ogs.coordinate_nodes(patched.SerializeToString()) == names


def test_calls_of_a_function_that_samples_are_listed() -> None:
    text = f"""{SIGNATURE} {{
            [call] A = local.outer (X, G)
            [other] Y = local.plain (A) }}
        <domain: "local", opset_import: ["": 20, "local": 1]> outer (A, B) => (C) {{
            [inner] C = local.inner (A, B) }}
        <domain: "local", opset_import: ["": 20]> inner (A, B) => (C) {{
            [warp] C = GridSample (A, B) }}
        <domain: "local", opset_import: ["": 20]> plain (A) => (C) {{ [relu] C = Relu (A) }}"""
    assert coordinate_nodes_of(text) == ["call"]


@pytest.mark.parametrize(
    ("attention", "coordinates"),
    [
        ("ort_gridsample.DeformableAttention (V, levels, A, B)", ["a"]),
        ("mmdeploy.MMCVMultiScaleDeformableAttention (V, lengths, starts, A, B)", ["a"]),
        ("MultiScaleDeformableAttnTRT (V, lengths, A, C, B)", ["a", "c"]),
    ],
    ids=["own", "with locations", "with offsets"],
)
def test_weights_of_attention_are_no_coordinates(attention: str, coordinates: list[str]) -> None:
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1, "mmdeploy": 1]>
        g (float[N,S,H,D] V, int64[L,3] levels, int32[L,2] lengths, int32[L] starts,
           float[N,Q,H,L,P,2] first, float[N,Q,H,L,P] second, float[N,Q,H,K] third)
        => (float[] Y) {{
            [a] A = Neg (first)
            [b] B = Neg (second)
            [c] C = Neg (third)
            [attention] Y = {attention} }}""")
    assert ogs.coordinate_nodes(model) == [*coordinates, "attention"]


def decomposed_attention() -> onnx.ModelProto:
    """Return a model of two MatMuls around an exported deformable attention, all nodes named."""
    model = form("stacked/batch-dynamo")
    graph = model.graph
    (output,) = graph.output
    width = graph.node[-1].output[0]
    weight = numpy_helper.from_array(np.eye(12, dtype=np.float32), "weight")
    graph.initializer.append(weight)
    graph.node.append(onnx.helper.make_node("MatMul", [width, "weight"], ["projected"], "last"))
    output.name = "projected"
    return model


def test_nodes_of_decomposed_attention_are_listed() -> None:
    model = decomposed_attention()
    names = ogs.coordinate_nodes(model)
    types = {node.name: node.op_type for node in model.graph.node}
    assert "last" not in names
    listed = {types[name] for name in names}
    assert {"GridSample", "Concat", "Mul", "ReduceSum", "Reshape", "Split"} <= listed
    assert "Shape" not in listed
    assert names == [node.name for node in model.graph.node if node.name in names]


def test_nodes_of_decomposed_attention_are_not_listed_without_attention() -> None:
    model = decomposed_attention()
    names = ogs.coordinate_nodes(model, attention=False)
    types = {node.name: node.op_type for node in model.graph.node}
    assert set(names) < set(ogs.coordinate_nodes(model))
    assert {"ReduceSum", "Split"}.isdisjoint(types[name] for name in names)
    assert list(types.values()).count("GridSample") == sum(
        types[name] == "GridSample" for name in names
    )


def test_listing_attention_with_a_node_without_a_name_is_refused() -> None:
    model = decomposed_attention()
    (total,) = (node for node in model.graph.node if node.op_type == "ReduceSum")
    total.name = ""
    assert refusal(ogs.coordinate_nodes, model).argument == "name"
    assert ogs.coordinate_nodes(model, attention=False)


def test_weighted_sum_that_is_no_attention_is_not_listed() -> None:
    """Another node reads the product, so the sum cannot become one op."""
    model = decomposed_attention()
    (product,) = (
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Mul"
        and any(
            other.op_type == "ReduceSum" and node.output[0] in other.input
            for other in model.graph.node
        )
    )
    model.graph.node.append(onnx.helper.make_node("Relu", [product], ["other"], "reader"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("other", 1, None))
    assert ogs.coordinate_nodes(model) == ogs.coordinate_nodes(model, attention=False)


def test_call_of_function_named_like_a_dialect_is_not_listed() -> None:
    text = f"""{SIGNATURE} {{
            [a] A = Neg (G)
            [call] Y = mmcv.grid_sampler (X, A) }}
        <domain: "mmcv", opset_import: ["": 20]> grid_sampler (A, B) => (C) {{
            [relu] C = Relu (A) }}"""
    assert coordinate_nodes_of(text) == []
