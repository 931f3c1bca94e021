"""Attention nodes of other packages, and samplers whose grids are planes of coordinates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import ort_gridsample as ogs
from conftest import OPS
from ort_gridsample.detection.helper_nodes import guard_name, mark_as_helper
from ort_gridsample.dialects import registry
from ort_gridsample.patching import TargetName
from support.compare import refusal
from support.paths import Array, open_native, quiet_options, running_on

TENSORRT = "MultiscaleDeformableAttnPlugin_TRT"
MMCV = "mmdeploy.MMCVMultiScaleDeformableAttention"
MICROSOFT = "com.microsoft.MultiScaleDeformableAttention"
OWN = "ort_gridsample.DeformableAttention"
BEVFORMER = ("MultiScaleDeformableAttnTRT", "bev.MultiScaleDeformableAttnTRT2")

B = 2
Q = 5
H = 4
L = 2
P = 4
D = 3
LENGTHS = np.array([[4, 6], [2, 3]])
STARTS = np.array([0, 24])
PIXELS = 30
SHAPES = {
    "value": (B, PIXELS, H, D),
    "sampling_locations": (B, Q, H, L, P, 2),
    "attention_weights": (B, Q, H, L, P),
    "reference_points": (B, Q, 1, 4),
    "sampling_offsets": (B, Q, H, L * P * 2),
    "logits": (B, Q, H, L * P),
}
LOCATED = ("value", "sampling_locations", "attention_weights")
OFFSET = ("value", "reference_points", "sampling_offsets", "logits")


def feeds_for(names: tuple[str, ...], dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(0)
    feeds = {name: rng.uniform(-0.2, 1.2, SHAPES[name]) for name in names}
    if "sampling_offsets" in feeds:
        feeds["sampling_offsets"] = feeds["sampling_offsets"] * 6 - 3
    return {name: array.astype(dtype) for name, array in feeds.items()}


def pixel(image: Array, row: int, column: int) -> Array:
    """Return the channels of a pixel, or zeros outside of the image (height, width, D)."""
    inside = 0 <= row < image.shape[0] and 0 <= column < image.shape[1]
    return image[row, column] if inside else np.zeros(image.shape[2])


def bilinear(image: Array, x: float, y: float) -> Array:
    """Return the linear sample of an image (height, width, D) at a location in [0, 1]."""
    column = x * image.shape[1] - 0.5
    row = y * image.shape[0] - 0.5
    left = math.floor(column)
    top = math.floor(row)
    total = np.zeros(image.shape[2])
    for i, j in itertools.product((0, 1), (0, 1)):
        weight = (1 - abs(row - top - i)) * (1 - abs(column - left - j))
        total = total + weight * pixel(image, top + i, left + j)
    return total


def attention(value: Array, locations: Array, weights: Array, starts: Array = STARTS) -> Array:
    """Return the attention, (B, Q, H, D), pixel by pixel in double precision."""
    total = np.zeros((B, Q, H, D))
    for b, q, h, level, p in itertools.product(*map(range, weights.shape)):
        height, width = LENGTHS[level]
        first = starts[level]
        image = (
            value[b, first : first + height * width, h].reshape(height, width, D).astype(np.float64)
        )
        x, y = locations[b, q, h, level, p].astype(np.float64)
        total[b, q, h] += weights[b, q, h, level, p] * bilinear(image, x, y)
    return total


def offset_attention(feeds: dict[str, Array], has_softmax: bool = True) -> Array:
    """Return the output of BEVFormer_tensorrt's plugin.

    Point p is relative to reference point p modulo their number.
    """
    locations = np.zeros((B, Q, H, L, P, 2))
    references = feeds["reference_points"].reshape(B, Q, -1, 2)
    offsets = feeds["sampling_offsets"].reshape(B, Q, H, L, P, 2)
    for b, q, h, level, p in itertools.product(*map(range, (B, Q, H, L, P))):
        height, width = LENGTHS[level]
        locations[b, q, h, level, p] = references[b, q, p % references.shape[2]]
        locations[b, q, h, level, p] += offsets[b, q, h, level, p] / (width, height)
    weights = feeds["logits"].astype(np.float64)
    if has_softmax:
        weights = np.exp(weights) / np.exp(weights).sum(-1, keepdims=True)
    return attention(feeds["value"], locations, weights.reshape(B, Q, H, L, P))


def model_of(
    op_type: str, *, is_static: bool, opset: int = 17, is_fed: bool = False, starts: Array = STARTS,
    types: dict[str, str] | None = None, third: str = "",
) -> onnx.ModelProto:  # fmt: skip
    """Return a model of one node.

    Its shapes are known if it is static, and its lengths are inputs or initializers.
    """
    names = OFFSET if "AttnTRT" in op_type else LOCATED
    integers = "int32" if "TRT" in op_type else "int64"
    inputs = []
    for name in names:
        kind = (types or {}).get(name, "float")
        dims = ", ".join(
            str(dim) if is_static else f"{name}{axis}" for axis, dim in enumerate(SHAPES[name])
        )
        inputs.append(f"{kind}[{dims}] {name}")
    if is_fed:
        inputs.append(f"{integers}[2, 2] lengths")
        inputs += [f"{integers}[2] starts"] if names == LOCATED else []
    domain, _, _ = op_type.rpartition(".")
    imports = f', "{domain}": 1' if domain else ""
    operands = ["value", "lengths", "starts", "sampling_locations", "attention_weights"]
    if names == OFFSET:
        operands = ["value", "lengths", "reference_points", "sampling_offsets", "logits"]
    out = (types or {}).get("value", "float")
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}{imports}]>'
        f"g ({', '.join(inputs)}) => ({out}[] Y) {{ Y = {op_type} ({', '.join(operands)}) }}"
    )
    model.graph.node[0].name = "attention"
    if not is_fed:
        dtype = np.dtype(integers)
        model.graph.initializer.append(numpy_helper.from_array(LENGTHS.astype(dtype), "lengths"))
        if names == LOCATED:
            kind = np.dtype(third or dtype)
            model.graph.initializer.append(numpy_helper.from_array(starts.astype(kind), "starts"))
    return model


def lengths_feeds(op_type: str) -> dict[str, Array]:
    dtype = np.int32 if "TRT" in op_type else np.int64
    feeds = {"lengths": LENGTHS.astype(dtype)}
    return feeds if "AttnTRT" in op_type else feeds | {"starts": STARTS.astype(dtype)}


def expected_of(op_type: str, feeds: dict[str, Array]) -> Array:
    if "AttnTRT" in op_type:
        return offset_attention(feeds)
    output = attention(*(feeds[name] for name in LOCATED))
    return output if op_type == TENSORRT else output.reshape(B, Q, H * D)


def run_in_session(model: onnx.ModelProto, feeds: dict[str, Array], ops: str) -> Array:
    with running_on(ops):
        session = ogs.InferenceSession(model, quiet_options(), nodes="all")
    return session.run(None, feeds)[0]


NODES = (TENSORRT, MMCV, MICROSOFT, *BEVFORMER)


@pytest.mark.parametrize("form", ["static", "dynamic", "fed"])
@pytest.mark.parametrize("op_type", NODES)
def test_attention_node_in_session_is_the_definition(op_type: str, form: str, ops: str) -> None:
    model = model_of(op_type, is_static=form == "static", is_fed=form == "fed")
    feeds = feeds_for(OFFSET if "AttnTRT" in op_type else LOCATED)
    expected = expected_of(op_type, feeds)
    feeds |= lengths_feeds(op_type) if form == "fed" else {}
    np.testing.assert_allclose(run_in_session(model, feeds, ops), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "opset"), [("static", 17), ("dynamic", 12), ("dynamic", 20), ("fed", 17)]
)
@pytest.mark.parametrize("op_type", NODES)
def test_attention_node_lowered_is_the_definition(op_type: str, form: str, opset: int) -> None:
    model = model_of(op_type, is_static=form == "static", is_fed=form == "fed", opset=opset)
    feeds = feeds_for(OFFSET if "AttnTRT" in op_type else LOCATED)
    expected = expected_of(op_type, feeds)
    feeds |= lengths_feeds(op_type) if form == "fed" else {}
    for target in ("ai.onnx", "primitives"):
        patched = ogs.patch_model(model, target=target)
        np.testing.assert_allclose(
            open_native(patched).run(None, feeds)[0], expected, rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("form", ["dynamic", "fed"])
@pytest.mark.parametrize("op_type", [TENSORRT, BEVFORMER[0]])
def test_attention_node_lowered_to_opset_13_is_the_definition(op_type: str, form: str) -> None:
    """Reshape has no attribute ``allowzero`` there."""
    model = model_of(op_type, is_static=False, is_fed=form == "fed", opset=17)
    feeds = feeds_for(OFFSET if op_type == BEVFORMER[0] else LOCATED)
    expected = expected_of(op_type, feeds)
    feeds |= lengths_feeds(op_type) if form == "fed" else {}
    patched = ogs.patch_model(model, target="primitives", opset=13)
    np.testing.assert_allclose(
        open_native(patched).run(None, feeds)[0], expected, rtol=0, atol=1e-5
    )


def test_bevformer_attention_behind_softmax_has_no_second_one() -> None:
    """Releases before the plugin's own softmax wrote one into the graph."""
    model = model_of(BEVFORMER[0], is_static=True)
    model.graph.node[0].input[4] = "weights"
    before = parser.parse_graph(
        """g (float[2, 5, 4, 8] logits) => (float[2, 5, 4, 8] weights) {
            s = Softmax <axis = -1> (logits)
            f = Flatten (s)
            shape = Constant <value_ints = [2, 5, 4, 8]> ()
            weights = Reshape (f, shape) }"""
    )
    node = model.graph.node.pop()
    model.graph.node.extend([*before.node, node])
    feeds = feeds_for(OFFSET)
    expected = offset_attention(feeds)
    np.testing.assert_allclose(
        ogs.InferenceSession(model).run(None, feeds)[0], expected, rtol=0, atol=1e-5
    )
    lowered = open_native(ogs.patch_model(model, target="primitives"))
    np.testing.assert_allclose(lowered.run(None, feeds)[0], expected, rtol=0, atol=1e-5)


def test_bevformer_attention_in_if_behind_softmax_of_main_graph_has_no_second_one() -> None:
    model = model_of(BEVFORMER[0], is_static=True)
    node = model.graph.node.pop()
    node.input[4] = "flat"
    before = parser.parse_graph(
        """g (float[2, 5, 4, 8] logits) => (float[2, 5, 4, 8] weights) {
            weights = Softmax <axis = -1> (logits)
            yes = Constant <value = bool {1}> () }"""
    )
    body = parser.parse_graph("""body () => (float[] out) { flat = Identity (weights) }""")
    node.output[0] = "out"
    body.node.append(node)
    branches = {"then_branch": body, "else_branch": body}
    model.graph.node.extend([*before.node, helper.make_node("If", ["yes"], ["Y"], **branches)])
    feeds = feeds_for(OFFSET)
    lowered = open_native(ogs.patch_model(model, target="primitives"))
    np.testing.assert_allclose(
        lowered.run(None, feeds)[0], offset_attention(feeds), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
def test_bevformer_attention_in_function_behind_softmax_of_its_caller_has_no_second_one(
    target: TargetName, functions: bool
) -> None:
    model = model_of(BEVFORMER[0], is_static=True)
    graph = model.graph
    inputs = [value.name for value in graph.input]
    lengths = helper.make_node("Constant", [], ["lengths"], value=graph.initializer.pop())
    function = helper.make_function(
        "local", "attend", inputs, ["Y"], [lengths, graph.node.pop()], model.opset_import
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    softmax = helper.make_node("Softmax", ["logits"], ["weights"], axis=-1)
    call = helper.make_node("attend", [*inputs[:-1], "weights"], ["Y"], domain="local")
    graph.node.extend([softmax, call])
    feeds = feeds_for(OFFSET)
    lowered = open_native(ogs.patch_model(model, target=target, functions=functions))
    np.testing.assert_allclose(
        lowered.run(None, feeds)[0], offset_attention(feeds), rtol=0, atol=1e-5
    )


def test_attention_node_with_other_starts_reads_them(ops: str) -> None:
    """A session computes it from GridSamples, as no op of this package reads starts."""
    starts = np.array([6, 0])
    model = model_of(MMCV, is_static=True, starts=starts)
    feeds = feeds_for(LOCATED)
    expected = attention(*feeds.values(), starts=starts).reshape(B, Q, H * D)
    np.testing.assert_allclose(run_in_session(model, feeds, ops), expected, rtol=0, atol=1e-5)


def test_attention_node_fed_other_starts_is_refused(ops: str) -> None:
    model = model_of(MMCV, is_static=False, is_fed=True)
    feeds = feeds_for(LOCATED) | lengths_feeds(MMCV) | {"starts": np.array([6, 0])}
    error = refusal(run_in_session, model, feeds, ops)
    assert error.where == "MMCVMultiScaleDeformableAttention node 'attention'"
    assert error.argument == "level_start_index"


#: The input that is wrong -> its wrong shape. All have as many elements as some other right shape.
WRONG_LOCATED = [
    ("sampling_locations", (B, 1, H, L, P, 2)),
    ("sampling_locations", (B, Q, H, P, L, 2)),
    ("sampling_locations", (B, Q, H, L, P, 3)),
    ("sampling_locations", (1, Q, H, L, P, 2)),
    ("attention_weights", (B, 1, H, L, P)),
    ("attention_weights", (B, Q, H, P, L)),
    ("attention_weights", (B, Q, H, L, 1)),
    ("attention_weights", (B, H, Q, L, P)),
    ("attention_weights", (1, Q, H, L, P)),
    ("value", (B, PIXELS - 1, H, D)),
    ("value", (B, PIXELS, 1, D)),
]
WRONG_OFFSET = [
    ("reference_points", (B, 1, 1, 4)),
    ("reference_points", (1, Q, 1, 4)),
    ("sampling_offsets", (B, 1, H, L * P * 2)),
    ("sampling_offsets", (B, Q, H, L * P)),
    ("logits", (B, 1, H, L * P)),
    ("logits", (B, Q, 1, L * P)),
    ("value", (B, PIXELS - 1, H, D)),
]
WRONG = [(op_type, name, shape) for op_type in (TENSORRT, MMCV) for name, shape in WRONG_LOCATED]
WRONG += [(BEVFORMER[0], name, shape) for name, shape in WRONG_OFFSET]


def wrong_feeds(op_type: str, name: str, shape: tuple[int, ...]) -> dict[str, Array]:
    feeds = feeds_for(OFFSET if "AttnTRT" in op_type else LOCATED)
    return feeds | {name: np.resize(feeds[name], shape)}


@pytest.mark.parametrize(("op_type", "name", "shape"), WRONG)
def test_attention_node_with_wrong_static_shape_is_refused_when_read(
    op_type: str, name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, name, shape)
    model = model_of(op_type, is_static=True)
    for target in ("ai.onnx", "primitives", "ort_gridsample"):
        error = refusal(ogs.patch_model, model, target=target)
        assert error.where == f"{op_type.split('.')[-1]} node 'attention'"
    assert refusal(ogs.InferenceSession, model).where == error.where
    assert ogs.inspect_model(model)[0].error is not None


@pytest.mark.parametrize(("op_type", "name", "shape"), WRONG)
def test_attention_node_fed_wrong_shape_is_refused_by_session(
    op_type: str, name: str, shape: tuple[int, ...], ops: str
) -> None:
    model = model_of(op_type, is_static=False)
    feeds = wrong_feeds(op_type, name, shape)
    error = refusal(run_in_session, model, feeds, ops)
    assert isinstance(error, ogs.GridSampleError)
    assert "node 'attention'" in error.where


@pytest.mark.parametrize(("op_type", "name", "shape"), WRONG)
def test_attention_node_fed_wrong_shape_is_refused_by_lowered_model(
    op_type: str, name: str, shape: tuple[int, ...]
) -> None:
    model = model_of(op_type, is_static=False)
    feeds = wrong_feeds(op_type, name, shape)
    patched = ogs.patch_model(model, target="ai.onnx")
    with pytest.raises(Exception, match=r"node 'attention': [a-z_]+ is of another shape, expected"):
        open_native(patched).run(None, feeds)
    assert isinstance(
        refusal(ogs.InferenceSession(patched, quiet_options()).run, None, feeds),
        ogs.GridSampleError,
    )


def test_attention_node_of_the_draft_is_refused() -> None:
    """The draft of onnxruntime's pull request 20184 has reference points as third input."""
    error = refusal(ogs.InferenceSession, model_of(MICROSOFT, is_static=True, third="float32"))
    assert (error.argument, error.found) == ("level_start_index", "of type float32")
    assert "pull request 20184" in error.expected


@pytest.mark.parametrize("op_type", [MMCV, MICROSOFT, *BEVFORMER])
@pytest.mark.parametrize("form", ["static", "dynamic", "fed"])
def test_tensorrt_plugins_write_every_attention_node(op_type: str, form: str) -> None:
    model = model_of(op_type, is_static=form == "static", is_fed=form == "fed")
    feeds = feeds_for(OFFSET if "AttnTRT" in op_type else LOCATED)
    expected = expected_of(op_type, feeds)
    feeds |= lengths_feeds(op_type) if form == "fed" else {}
    written = ogs.patch_model(model, target="tensorrt-plugins")
    assert [node.op_type for node in written.graph.node].count(TENSORRT) == 1
    assert op_type.split(".")[-1] not in {node.op_type for node in written.graph.node}
    (output,) = ogs.InferenceSession(written, quiet_options()).run(None, feeds)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mixed", [("value", "attention_weights"), ("sampling_locations",)])
def test_tensorrt_plugins_have_one_type(mixed: tuple[str, ...]) -> None:
    types = dict.fromkeys(mixed, "float16")
    model = model_of(MMCV, is_static=True, types=types)
    written = ogs.patch_model(model, target="tensorrt-plugins")
    inferred = onnx.shape_inference.infer_shapes(written)
    known = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.graph.input, *inferred.graph.value_info)
    }
    (plugin,) = (node for node in written.graph.node if node.op_type == TENSORRT)
    assert {known[plugin.input[index]] for index in (0, 3, 4)} == {onnx.TensorProto.FLOAT}
    feeds = feeds_for(LOCATED)
    feeds |= {name: feeds[name].astype(np.float16) for name in mixed}
    (output,) = ogs.InferenceSession(written, quiet_options()).run(None, feeds)
    assert output.dtype == feeds["value"].dtype
    expected = attention(*feeds.values()).reshape(B, Q, H * D)
    tolerance = 1e-5 if output.dtype == np.float32 else 1e-2
    np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance)


def test_tensorrt_plugins_leave_double_precision() -> None:
    model = model_of(MMCV, is_static=True, types=dict.fromkeys(LOCATED, "double"))
    assert ogs.patch_model(model, target="tensorrt-plugins") == model


SAMPLERS = [(f"GridSampler{axes}DTRT{suffix}", axes) for axes in (2, 3) for suffix in ("", "2")]
MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")


def sampler_model(
    op_type: str,
    axes: int,
    codes: tuple[int, int, int],
    *,
    is_static: bool,
    opset: int = 17,
    kind: str = "float",
) -> onnx.ModelProto:
    """Return a model of one sampler, ``warp``, of a grid of planes."""
    X_shape = (2, 3, 4, 5, 6)[: axes + 2]
    grid_shape = (2, axes, 3, 4, 5)[: axes + 2]
    X_dims, grid_dims = (
        ", ".join(str(length) if is_static else f"{name}{i}" for i, length in enumerate(shape))
        for name, shape in (("X", X_shape), ("g", grid_shape))
    )
    mode, padding, aligned = codes
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        g ({kind}[{X_dims}] X, {kind}[{grid_dims}] grid) => ({kind}[] Y) {{
            Y = {op_type} <
                interpolation_mode = {mode},
                padding_mode = {padding},
                align_corners = {aligned}> (X, grid) }}""")
    model.graph.node[0].name = "warp"
    return model


def sampler_feeds(axes: int, dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2, 3, 4, 5, 6)[: axes + 2])
    grid = rng.uniform(-13, 13, (2, axes, 3, 4, 5)[: axes + 2])
    return {"X": X.astype(dtype), "grid": grid.astype(dtype)}


def sampled(feeds: dict[str, Array], codes: tuple[int, int, int]) -> Array:
    grid = np.moveaxis(feeds["grid"].astype(np.float64), 1, -1) / 10
    return ogs.grid_sample(feeds["X"], grid, MODES[codes[0]], PADDINGS[codes[1]], bool(codes[2]))


CODES = [(2, 0, 0), (0, 1, 1), (1, 2, 0), (0, 0, 1)]


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize(("op_type", "axes"), SAMPLERS)
def test_planar_sampler_is_the_standards(
    op_type: str, axes: int, codes: tuple[int, int, int]
) -> None:
    codes = (0, *codes[1:]) if axes == 3 and codes[0] == 2 else codes
    feeds = sampler_feeds(axes)
    expected = sampled(feeds, codes)
    for is_static, opset in ((True, 20), (False, 13)):
        model = sampler_model(op_type, axes, codes, is_static=is_static, opset=opset)
        for ops in OPS:
            np.testing.assert_allclose(
                run_in_session(model, feeds, ops), expected, rtol=0, atol=1e-4
            )
        lowered = ogs.patch_model(model, target="primitives")
        np.testing.assert_allclose(
            open_native(lowered).run(None, feeds)[0], expected, rtol=0, atol=1e-4
        )


def test_planar_sampler_by_brute_force() -> None:
    feeds = sampler_feeds(2)
    image = np.moveaxis(feeds["X"].astype(np.float64), 1, -1)
    expected = np.zeros((2, 3, 3, 4))
    for n, i, j in itertools.product(range(2), range(3), range(4)):
        x, y = (feeds["grid"][n, :, i, j].astype(np.float64) + 10) / 20
        expected[n, :, i, j] = bilinear(image[n], x, y)
    model = sampler_model("GridSampler2DTRT", 2, (0, 0, 0), is_static=False)
    np.testing.assert_allclose(
        ogs.InferenceSession(model).run(None, feeds)[0], expected, rtol=0, atol=1e-5
    )


def test_planar_sampler_of_half_precision_scales_in_single(ops: str) -> None:
    model = sampler_model("GridSampler2DTRT2", 2, (0, 1, 0), is_static=True, kind="float16")
    feeds = sampler_feeds(2, "float16")
    output = run_in_session(model, feeds, ops)
    assert output.dtype == np.float16
    expected = sampled(feeds, (0, 1, 0)).astype(float)
    np.testing.assert_allclose(output.astype(float), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("X", "grid", "argument"), [
    ((2, 3, 4, 5), (2, 3, 4, 2), "grid"),
    ((2, 3, 4, 5), (1, 2, 3, 4), "grid"),
    ((2, 3, 4, 5, 6), (2, 2, 3, 4), "X"),
])  # fmt: skip
def test_planar_sampler_with_wrong_shape_is_refused(
    X: tuple[int, ...], grid: tuple[int, ...], argument: str
) -> None:
    model = sampler_model("GridSampler2DTRT", 2, (0, 0, 0), is_static=True)
    for value, shape in zip(model.graph.input, (X, grid), strict=True):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 1, shape))
    error = refusal(ogs.InferenceSession, model)
    assert (error.where, error.argument) == ("GridSampler2DTRT node 'warp'", argument)


ATTRIBUTES = {
    "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1}, default="linear"),
    "padding_mode": ogs.Spelling("outside", {"zeros": 0, "border": 1}, default="zeros"),
    "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
}


@pytest.mark.parametrize(
    ("grid", "expected_shape"), [("2, 2, h, 2", "(2, 3, 2, h)"), ("2, 4, 5, 2", "(2, 3, 4, 5)")]
)
def test_added_dialect_whose_output_contradicts_its_graph_is_refused(
    grid: str, expected_shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dialect cannot describe a grid whose coordinates are planes."""
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    ogs.add_dialect(ogs.Dialect("planes", "GridSample", "Warp", ("my.domain",), ATTRIBUTES))
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
        g (float[2, 3, 4, 5] X, float[{grid}] grid) => (float[2, 3, 9, 2] Y) {{
            Y = my.domain.Warp (X, grid) }}""")
    model.graph.node[0].name = "warp"
    error = refusal(ogs.InferenceSession, model)
    assert error.where == "Warp node 'warp'"
    assert error.found == f"of shape {expected_shape}"
    assert error.expected == "(2, 3, 9, 2), as the graph states"


@pytest.mark.parametrize("op_type", [MMCV, BEVFORMER[0]])
def test_attention_node_in_function_of_two_types_is_the_definition(op_type: str, ops: str) -> None:
    """Calls with single and double precision."""
    model = model_of(op_type, is_static=True)
    graph = model.graph
    domain = op_type.rpartition(".")[0]
    imports = [
        onnx.helper.make_opsetid("", 17),
        *([onnx.helper.make_opsetid(domain, 1)] if domain else []),
    ]
    tensors = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    inputs = [value.name for value in graph.input]
    function = onnx.helper.make_function(
        "local", "attend", inputs, ["Y"], [*tensors, graph.node[0]], imports
    )
    wide = [
        onnx.helper.make_node("Cast", [name], [f"{name}_wide"], to=onnx.TensorProto.DOUBLE)
        for name in inputs
    ]
    calls = [
        onnx.helper.make_node("attend", inputs, ["Y"], domain="local"),
        onnx.helper.make_node("attend", [f"{name}_wide" for name in inputs], ["Z"], domain="local"),
    ]
    del graph.node[:], graph.initializer[:]
    graph.node.extend([*wide, *calls])
    graph.output.append(onnx.helper.make_tensor_value_info("Z", onnx.TensorProto.DOUBLE, None))
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid("local", 1))
    feeds = feeds_for(OFFSET if op_type == BEVFORMER[0] else LOCATED)
    expected = expected_of(op_type, feeds)
    with running_on(ops):
        answers = ogs.InferenceSession(model, quiet_options(), nodes="all").run(None, feeds)
    answers += open_native(ogs.patch_model(model, target="primitives")).run(None, feeds)
    for answer, tolerance in zip(answers, (1e-5, 1e-6) * 2, strict=True):
        np.testing.assert_allclose(answer, expected, rtol=0, atol=tolerance)


def test_expanded_attention_of_value_of_unknown_type_states_no_type() -> None:
    model = model_of(MMCV, is_static=True)
    model.graph.node.insert(0, helper.make_node("Unknown", ["value"], ["raw"], domain="foreign"))
    model.graph.node[1].input[0] = "raw"
    model.opset_import.append(helper.make_opsetid("foreign", 1))
    expanded = ogs.patch_model(model, target="ai.onnx")
    images = {node.input[0] for node in expanded.graph.node if node.op_type == "GridSample"}
    assert len(images) == L
    assert images.isdisjoint(value.name for value in expanded.graph.value_info)


#: Signatures of two values, and the calls of a function that has an attention node.
DIFFERENT_CALLS = {
    "types": """
        (float[1,16,2,4] v, int64[2,3] l, float[1,5,2,3,2] s, float[1,5,2,3] w,
         double[1,16,2,4] v2, int64[2,3] l2, double[1,5,2,3,2] s2, double[1,5,2,3] w2)
        => (float[1,5,8] y, double[1,5,8] z)""",
    "spatial axes": """
        (float[1,16,2,4] v, int64[2,3] l, float[1,5,2,3,2] s, float[1,5,2,3] w,
         float[1,16,2,4] v2, int64[2,4] l2, float[1,5,2,3,3] s2, float[1,5,2,3] w2)
        => (float[1,5,8] y, float[1,5,8] z)""",
}


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("difference", DIFFERENT_CALLS)
def test_own_attention_node_in_function_of_different_calls_is_lowered(
    difference: str, functions: bool
) -> None:
    attention_node = 'ort_gridsample.DeformableAttention <points = "2 1", align_corners = 0>'
    header = '<ir_version: 9, opset_import: ["": 20, "ort_gridsample": 1, "my": 1]>'
    signature = DIFFERENT_CALLS[difference]
    in_function = parser.parse_model(f"""{header} g {signature} {{
        y = my.attend (v, l, s, w)
        z = my.attend (v2, l2, s2, w2) }}
        <domain: "my", opset_import: ["": 20, "ort_gridsample": 1]>
        attend (v, l, s, w) => (y) {{ y = {attention_node} (v, l, s, w) }}""")
    outside = parser.parse_model(f"""{header} g {signature} {{
        y = {attention_node} (v, l, s, w)
        z = {attention_node} (v2, l2, s2, w2) }}""")
    rng = np.random.default_rng(0)
    feeds = {}
    for value in in_function.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = rng.uniform(0, 1, shape).astype(dtype)
    for name in ("l", "l2"):
        lengths = [[2, 3, 4, 1], [1, 2, 2, 1]]
        feeds[name] = np.array(lengths)[:, : feeds[name].shape[1]]
    lowered = ogs.patch_model(in_function, target="primitives", functions=functions)
    expected = open_native(ogs.patch_model(outside, target="primitives")).run(None, feeds)
    for output, expected_output in zip(
        open_native(lowered).run(None, feeds), expected, strict=True
    ):
        np.testing.assert_allclose(output, expected_output, rtol=1e-5)


@pytest.mark.parametrize(("name", "shape", "argument"), [
    ("sampling_locations", (B, 1, H, L, P, 2), "attention_weights"),
    ("sampling_locations", (1, Q, H, L, P, 2), "sampling_locations"),
    ("attention_weights", (B, 1, H, L, P), "attention_weights"),
])  # fmt: skip
def test_own_attention_node_fed_wrong_shape_is_refused_by_lowered_model(
    name: str, shape: tuple[int, ...], argument: str
) -> None:
    model = model_of("ort_gridsample.DeformableAttention", is_static=False)
    del model.graph.node[0].input[2]
    levels = numpy_helper.from_array(np.insert(LENGTHS, 0, P, axis=1), "lengths")
    model.graph.initializer[0].CopyFrom(levels)
    feeds = feeds_for(LOCATED)
    expected = attention(*feeds.values()).reshape(B, Q, H * D)
    lowered = open_native(ogs.patch_model(model, target="ai.onnx"))
    np.testing.assert_allclose(lowered.run(None, feeds)[0], expected, rtol=0, atol=1e-5)
    with pytest.raises(
        Exception, match=f"node 'attention': {argument} is of another shape, expected"
    ):
        lowered.run(None, feeds | {name: np.resize(feeds[name], shape)})


def own_model(
    ranks: dict[str, int] | None = None, *, has_constant_levels: bool = True
) -> onnx.ModelProto:
    """Return a model of this package's node, whose inputs have these ranks or unknown ones."""
    levels = ", ".join(map(str, np.insert(LENGTHS, 0, P, axis=1).flat))
    constant = f"<int64[2,3] levels = {{{levels}}}>" if has_constant_levels else ""
    levels_input = "" if has_constant_levels else "int64[2,3] levels, "
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
        g ({levels_input}float[] value, float[] sampling_locations, float[] attention_weights)
        => (float[] Y) {constant}
        {{ Y = {OWN} <points = "{P} {P}">
            (value, levels, sampling_locations, attention_weights) }}""")
    model.graph.node[0].name = "attention"
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if value.name == "levels":
            continue
        tensor.ClearField("shape")
        for axis in range((ranks or {}).get(value.name, 0)):
            tensor.shape.dim.add(dim_param=f"{value.name}{axis}")
    return model


#: The shapes of weights and locations that fit, apart from those of the other tests.
OTHER_SHAPES = [
    {"attention_weights": (B, Q, H, L * P)},
    {"sampling_locations": (B, Q, H, L * P, 2)},
    {"sampling_locations": (B, Q, H, L * P, 2), "attention_weights": (B, Q, H, L * P)},
    {"sampling_locations": (B, Q, H, L * P, 2), "attention_weights": (B, Q, H, P, L)},
]


@pytest.mark.parametrize("are_ranks_known", [True, False])
@pytest.mark.parametrize("shapes", OTHER_SHAPES)
def test_own_attention_node_fed_merged_axes_lowered_is_the_definition(
    shapes: dict[str, tuple[int, ...]], are_ranks_known: bool
) -> None:
    feeds = feeds_for(LOCATED)
    expected = attention(*feeds.values()).reshape(B, Q, H * D).astype(np.float32)
    feeds |= {name: feeds[name].reshape(shape) for name, shape in shapes.items()}
    ranks = {name: array.ndim for name, array in feeds.items()}
    assert_lowered_is(own_model(ranks if are_ranks_known else None), feeds, expected, "ai.onnx")


@pytest.mark.parametrize("are_ranks_known", [True, False])
def test_own_attention_node_fed_weights_of_one_query_lowered_is_the_definition(
    are_ranks_known: bool,
) -> None:
    feeds = feeds_for(LOCATED)
    weights = feeds["attention_weights"][:, :1]
    all_weights = np.broadcast_to(weights, (B, Q, H, L, P))
    expected = attention(feeds["value"], feeds["sampling_locations"], all_weights)
    feeds["attention_weights"] = weights.reshape(B, 1, H, L * P)
    ranks = {name: array.ndim for name, array in feeds.items()}
    model = own_model(ranks if are_ranks_known else None)
    assert_lowered_is(model, feeds, expected.reshape(B, Q, H * D).astype(np.float32), "ai.onnx")


#: Shapes of a wrong rank with the right number of elements, and the argument in the error.
WRONG_OWN_RANKS = [
    ({"value": (B, PIXELS, H, D, 1)}, "value"),
    ({"attention_weights": (B, Q, H, L, P, 1)}, "attention_weights"),
    ({"attention_weights": (B, Q, H, 1, L, P)}, "attention_weights"),
    ({"sampling_locations": (B, Q, H, L, P, 1, 2)}, "sampling_locations"),
]
#: Shapes of a right rank that do not fit, and the argument in the error.
WRONG_OWN = [
    ({"attention_weights": (B, Q, H, P, L)}, "attention_weights"),
    ({"attention_weights": (B, 1, H, L, P)}, "attention_weights"),
    ({"attention_weights": (B, 2, H, L * P)}, "attention_weights"),
    ({"sampling_locations": (B, Q, H, P, L, 2)}, "sampling_locations"),
    (
        {"sampling_locations": (B, Q, H, P, L, 2), "attention_weights": (B, Q, H, P, L)},
        "sampling_locations",
    ),
    ({"value": (B, PIXELS + 10, H, D)}, "value"),
    ({"value": (B, PIXELS - 3, H, D)}, "value"),
]


@pytest.mark.parametrize(("shapes", "argument"), WRONG_OWN_RANKS)
def test_own_attention_node_of_wrong_rank_is_refused_when_patched(
    shapes: dict[str, tuple[int, ...]], argument: str
) -> None:
    ranks = {name: len(shape) for name, shape in (SHAPES | shapes).items()}
    error = refusal(ogs.patch_model, own_model(ranks), target="primitives")
    assert (error.where, error.argument) == ("DeformableAttention node 'attention'", argument)


#: Wrong ranks that are known are refused when the model is patched.
WRONG_OWN_FEEDS = [
    *((*mistake, False) for mistake in WRONG_OWN_RANKS),
    *((*mistake, is_known) for mistake, is_known in itertools.product(WRONG_OWN, (True, False))),
]


@pytest.mark.parametrize("has_constant_levels", [True, False])
@pytest.mark.parametrize(("shapes", "argument", "are_ranks_known"), WRONG_OWN_FEEDS)
def test_own_attention_node_fed_shapes_that_do_not_fit_is_refused_by_lowered_model(
    shapes: dict[str, tuple[int, ...]],
    argument: str,
    are_ranks_known: bool,
    has_constant_levels: bool,
) -> None:
    feeds = feeds_for(LOCATED)
    feeds |= {name: np.resize(feeds[name], shape) for name, shape in shapes.items()}
    ranks = {name: array.ndim for name, array in feeds.items()}
    model = own_model(ranks if are_ranks_known else None, has_constant_levels=has_constant_levels)
    if not has_constant_levels:
        feeds["levels"] = np.insert(LENGTHS, 0, P, axis=1)
    lowered = open_native(ogs.patch_model(model, target="ai.onnx"))
    sentence = f"node 'attention': {argument} is of another shape, expected"
    with pytest.raises(Exception, match=sentence):
        lowered.run(None, feeds)


def as_compiled_op(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of :func:`own_model` with the node that a session with compiled ops writes."""
    compiled = deepcopy(model)
    compiled.graph.node[0].domain = "ort_gridsample.compiled"
    compiled.opset_import[1].domain = "ort_gridsample.compiled"
    return compiled


def with_status(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of :func:`own_model` with the nodes that a session with Python ops writes."""
    guarded = deepcopy(model)
    (node,) = guarded.graph.node
    node.output.append("status")
    where = "DeformableAttention node 'attention'"
    inputs = ["status", "status"]
    guard = helper.make_node("GatherND", inputs, ["guarded"], guard_name(where))
    guarded.graph.node.append(mark_as_helper(guard, where))
    return guarded


@pytest.mark.parametrize("as_written", [as_compiled_op, with_status])
@pytest.mark.parametrize(("shapes", "argument"), [*WRONG_OWN_RANKS, *WRONG_OWN])
def test_attention_node_of_a_session_fed_shapes_that_do_not_fit_is_refused_by_lowered_model(
    shapes: dict[str, tuple[int, ...]],
    argument: str,
    as_written: Callable[[onnx.ModelProto], onnx.ModelProto],
) -> None:
    lowered = open_native(ogs.patch_model(as_written(own_model()), target="ai.onnx"))
    feeds = feeds_for(LOCATED)
    feeds |= {name: np.resize(feeds[name], shape) for name, shape in shapes.items()}
    sentence = f"node 'attention': {argument} is of another shape, expected"
    with pytest.raises(Exception, match=sentence):
        lowered.run(None, feeds)


@pytest.mark.parametrize(
    ("n_batches", "points"), [(B, (0, 0)), (0, (1, 2))], ids=["no points", "no batches"]
)
@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
def test_own_attention_node_fed_points_that_no_level_has_is_refused_by_lowered_model(
    target: TargetName, n_batches: int, points: tuple[int, ...]
) -> None:
    """The output has no elements, or no level is sampled, so that no Reshape fails."""
    model = own_model()
    (levels,) = model.graph.initializer
    table = np.column_stack([points, LENGTHS])
    levels.CopyFrom(numpy_helper.from_array(table, "levels"))
    lowered = open_native(ogs.patch_model(model, target=target))
    right_feeds = {
        "value": np.ones((n_batches, PIXELS, H, D), np.float32),
        "sampling_locations": np.ones((n_batches, Q, H, sum(points), 2), np.float32),
        "attention_weights": np.ones((n_batches, Q, H, sum(points)), np.float32),
    }
    (output,) = lowered.run(None, right_feeds)
    assert output.shape == (n_batches, Q, H * D)
    n_wrong = sum(points) + 2
    wrong_feeds = right_feeds | {
        "sampling_locations": np.ones((n_batches, Q, H, n_wrong, 2), np.float32),
        "attention_weights": np.ones((n_batches, Q, H, n_wrong), np.float32),
    }
    sentence = "node 'attention': sampling_locations is of another shape, expected"
    with pytest.raises(Exception, match=sentence):
        lowered.run(None, wrong_feeds)


#: The weight of the first level, which has no pixels, and of the second one.
NOT_FINITE = [(np.inf, 1.0), (-np.inf, 1.0), (np.nan, 1.0), (1.0, np.nan)]


@pytest.mark.parametrize("weights", NOT_FINITE)
def test_attention_with_a_weight_that_is_not_finite_is_nan_in_every_form(
    weights: tuple[float, float], ops: str
) -> None:
    """A level without pixels counts as 0, and the product of 0 with an infinite weight is NaN."""
    feeds = feeds_for(LOCATED)
    lengths = np.array([[0, 6], [2, 3]])
    feeds["value"] = feeds["value"][:, :6]
    feeds["attention_weights"][0, 0, 0, :, 0] = weights
    model = own_model()
    table = np.insert(lengths, 0, P, axis=1)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "levels"))
    outputs = [
        ogs.deformable_attention(feeds["value"], lengths, *(feeds[name] for name in LOCATED[1:])),
        run_in_session(model, feeds, ops),
        *(
            open_native(ogs.patch_model(model, target=target)).run(None, feeds)[0]
            for target in ("ai.onnx", "primitives")
        ),
    ]
    for output in outputs:
        is_nan = np.isnan(output.reshape(B, Q, H, D))
        assert is_nan[0, 0, 0].all()
        assert is_nan.sum() == D


def test_own_attention_node_fed_weights_of_one_axis_is_refused_by_lowered_model() -> None:
    """The level has a single point, and so the number of elements fits."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
        g (float[b,6,h,d] v, float[] l, float[] w) => (float[] Y) <int64[1,3] t = {{1, 2, 3}}>
        {{ Y = {OWN} (v, t, l, w) }}""")
    for value in model.graph.input[1:]:
        value.type.tensor_type.ClearField("shape")
    lowered = open_native(ogs.patch_model(model, target="ai.onnx"))
    shapes = {"v": (1, 6, 2, 3), "l": (1, 5, 2, 1, 2), "w": (1, 5, 2)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(Exception, match="attention_weights is of another shape, expected"):
        lowered.run(None, feeds)


@pytest.mark.parametrize("target", ["ai.onnx", "tensorrt-plugins", "compiled"])
def test_patch_scalar_spatial_shapes_is_refused(target: TargetName) -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "mmdeploy": 1]>
        g (float[1,16,2,4] v, float[1,3,2,1,2,2] l, float[1,3,2,1,2] w) => (float[1,3,8] y)
        { y = mmdeploy.MMCVMultiScaleDeformableAttention (v, s, k, l, w) }""")
    constants = {"s": np.array(16), "k": np.array([0])}
    model.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    error = refusal(ogs.patch_model, model, target=target)
    assert (error.argument, error.found) == ("spatial_shapes", "of shape ()")


def lengthened(shape: tuple[int, ...], lengths: dict[int, int]) -> tuple[int, ...]:
    """Return ``shape`` with other lengths on some axes."""
    return tuple(lengths.get(axis, length) for axis, length in enumerate(shape))


def assert_lowered_is(
    model: onnx.ModelProto, feeds: dict[str, Array], expected: Array, target: TargetName
) -> None:
    lowered = open_native(ogs.patch_model(model, target=target))
    (output,) = lowered.run(None, feeds)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5, strict=True)


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("form", ["static", "dynamic", "fed"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op_type", [TENSORRT, MMCV, BEVFORMER[0]])
def test_attention_node_without_elements_lowered_is_empty(
    op_type: str, axis: int, form: str, target: TargetName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no batch, no query or no head."""
    for name, shape in SHAPES.items():
        lengths = {axis: 0}
        if axis == 1 and name == "value":
            lengths = {}  # the axis of the pixels
        if axis == 2 and name == "reference_points":
            lengths = {}  # the axis of 1
        monkeypatch.setitem(SHAPES, name, lengthened(shape, lengths))
    model = model_of(op_type, is_static=form == "static", is_fed=form == "fed")
    feeds = feeds_for(OFFSET if op_type == BEVFORMER[0] else LOCATED)
    if form == "fed":
        feeds |= lengths_feeds(op_type)
    output_shape = lengthened((B, Q, H, D), {axis: 0})
    if op_type == MMCV:
        output_shape = (*output_shape[:2], output_shape[2] * D)
    assert_lowered_is(model, feeds, np.zeros(output_shape, np.float32), target)


def model_without_points(
    op_type: str, n_levels: int, *, is_static: bool, opset: int = 17, are_points_known: bool = True
) -> onnx.ModelProto:
    """Return a model of one node whose levels have no points; B and Q are known if it is static."""
    n_pixels = 6 * n_levels
    b, q = ("1", "2") if is_static else ("b", "q")
    p, coordinates = ("0", "0") if are_points_known else ("p", "coordinates")
    lengths = ", ".join(["2, 3"] * n_levels)
    if op_type == MMCV:
        starts = ", ".join(str(6 * level) for level in range(n_levels))
        inputs = f"float[{b},{q},2,{n_levels},{p},2] l, float[{b},{q},2,{n_levels},{p}] w"
        constants = f"int64[{n_levels},2] s = {{{lengths}}}, int64[{n_levels}] k = {{{starts}}}"
        operands = "v, s, k, l, w"
    else:
        inputs = f"float[{b},{q},1,4] r, float[{b},{q},2,{coordinates}] o, float[{b},{q},2,{p}] w"
        constants = f"int32[{n_levels},2] s = {{{lengths}}}"
        operands = "v, s, r, o, w"
    return parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}, "mmdeploy": 1, "bev": 1]>
        g (float[{b},{n_pixels},2,3] v, {inputs}) => (float[] Y) <{constants}>
        {{ Y = {op_type} ({operands}) }}""")


def feeds_without_points(model: onnx.ModelProto) -> dict[str, Array]:
    """Return feeds of a batch and two queries."""
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        known = {"b": 1, "q": 2, "p": 0, "coordinates": 0}
        lengths = [known.get(dim.dim_param, dim.dim_value) for dim in dims]
        feeds[value.name] = np.ones(lengths, np.float32)
    return feeds


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("n_levels", [1, 2])
@pytest.mark.parametrize("op_type", [BEVFORMER[0], MMCV])
def test_attention_node_without_points_lowered_is_zero(
    op_type: str, n_levels: int, is_static: bool, opset: int, target: TargetName
) -> None:
    model = model_without_points(op_type, n_levels, is_static=is_static, opset=opset)
    shape = (1, 2, 6) if op_type == MMCV else (1, 2, 2, 3)
    lowered = open_native(ogs.patch_model(model, target=target))
    (output,) = lowered.run(None, feeds_without_points(model))
    np.testing.assert_array_equal(output, np.zeros(shape, np.float32), strict=True)


@pytest.mark.parametrize("is_static", [True, False])
def test_bevformer_attention_without_points_in_session_is_zero(is_static: bool, ops: str) -> None:
    model = model_without_points(BEVFORMER[0], 2, is_static=is_static)
    output = run_in_session(model, feeds_without_points(model), ops)
    np.testing.assert_array_equal(output, np.zeros((1, 2, 2, 3), np.float32), strict=True)


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("n_levels", [1, 2])
@pytest.mark.parametrize("op_type", [BEVFORMER[0], MMCV])
def test_attention_node_fed_no_points_lowered_is_zero(
    op_type: str, n_levels: int, is_static: bool, target: TargetName
) -> None:
    model = model_without_points(op_type, n_levels, is_static=is_static, are_points_known=False)
    shape = (1, 2, 6) if op_type == MMCV else (1, 2, 2, 3)
    expected = np.zeros(shape, np.float32)
    assert_lowered_is(model, feeds_without_points(model), expected, target)


@pytest.mark.parametrize("opset", [12, 13, 17])
@pytest.mark.parametrize("n_levels", [1, 2])
@pytest.mark.parametrize("op_type", [BEVFORMER[0], MMCV])
def test_attention_node_fed_no_points_in_session_is_zero(
    op_type: str, n_levels: int, opset: int, ops: str
) -> None:
    model = model_without_points(
        op_type, n_levels, is_static=False, opset=opset, are_points_known=False
    )
    output = run_in_session(model, feeds_without_points(model), ops)
    shape = (1, 2, 6) if op_type == MMCV else (1, 2, 2, 3)
    np.testing.assert_array_equal(output, np.zeros(shape, np.float32), strict=True)


def test_bevformer_attention_fed_no_points_written_as_plugin_is_zero() -> None:
    model = model_without_points(BEVFORMER[0], 2, is_static=False, are_points_known=False)
    written = ogs.patch_model(model, target="tensorrt-plugins")
    (output,) = ogs.InferenceSession(written, quiet_options()).run(
        None, feeds_without_points(model)
    )
    np.testing.assert_array_equal(output, np.zeros((1, 2, 2, 3), np.float32), strict=True)


def test_bevformer_attention_fed_fewer_points_than_levels_is_refused(ops: str) -> None:
    model = model_without_points(BEVFORMER[0], 2, is_static=False, are_points_known=False)
    feeds = feeds_without_points(model)
    feeds["o"] = np.ones((1, 2, 2, 2), np.float32)
    feeds["w"] = np.ones((1, 2, 2, 1), np.float32)
    with pytest.raises(Exception, match="cannot be reshaped"):
        run_in_session(model, feeds, ops)


def test_tensorrt_plugins_leave_detected_attention_without_points() -> None:
    """A Reshape to no points would copy the length of another axis."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,6,2,3] v, float[1,2,2,1,0,2] l, float[1,2,2,1,0] w) => (float[] Y)
        {
            two = Constant <value_float = 2.0> ()
            one = Constant <value_float = 1.0> ()
            scaled = Mul (l, two)
            grids = Sub (scaled, one)
            rows = Transpose <perm = [0, 2, 3, 1]> (v)
            image_shape = Constant <value_ints = [2, 3, 2, 3]> ()
            image = Reshape (rows, image_shape)
            zero = Constant <value_int = 0> ()
            level = Gather <axis = 3> (grids, zero)
            by_head = Transpose <perm = [0, 2, 1, 3, 4]> (level)
            grid_shape = Constant <value_ints = [2, 2, 0, 2]> ()
            grid = Reshape <allowzero = 1> (by_head, grid_shape)
            samples = GridSample (image, grid)
            weights_by_head = Transpose <perm = [0, 2, 1, 3, 4]> (w)
            weights_shape = Constant <value_ints = [2, 1, 2, 0]> ()
            weights = Reshape <allowzero = 1> (weights_by_head, weights_shape)
            products = Mul (samples, weights)
            axis = Constant <value_ints = [-1]> ()
            sums = ReduceSum <keepdims = 0> (products, axis)
            rows_shape = Constant <value_ints = [1, 6, 2]> ()
            by_row = Reshape (sums, rows_shape)
            Y = Transpose <perm = [0, 2, 1]> (by_row)
        }""")
    patched = ogs.patch_model(model, target="tensorrt-plugins")
    (output,) = open_native(patched).run(None, feeds_without_points(model))
    np.testing.assert_array_equal(output, np.zeros((1, 2, 6), np.float32), strict=True)


def model_with_lengths(
    op_type: str, lengths: Array, *, is_static: bool, opset: int = 17
) -> onnx.ModelProto:
    """Return a model of one node of another package, or of this one, with constant levels."""
    model = model_of(op_type, is_static=is_static, opset=opset)
    starts = np.cumsum(lengths.prod(1)) - lengths.prod(1)
    constants = {"lengths": lengths, "starts": starts}
    if op_type == OWN:
        del model.graph.node[0].input[2]
        constants = {"lengths": np.insert(lengths, 0, P, axis=1)}
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("lengths", [[[4, 6], [0, 0]], [[0, 6], [2, 3]], [[0, 0], [3, 0]]])
@pytest.mark.parametrize("op_type", [OWN, MMCV])
def test_attention_node_with_level_without_pixels_lowered_is_the_function(
    op_type: str,
    lengths: list[list[int]],
    is_static: bool,
    target: TargetName,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_pixels = sum(math.prod(row) for row in lengths)
    monkeypatch.setitem(SHAPES, "value", (B, n_pixels, H, D))
    model = model_with_lengths(op_type, np.array(lengths), is_static=is_static)
    feeds = feeds_for(LOCATED)
    value, locations, weights = feeds.values()
    expected = ogs.deformable_attention(value, lengths, locations, weights)
    assert_lowered_is(model, feeds, expected, target)


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("lengths", [[[0, 6], [2, 3]], [[0, 0], [3, 0]]])
@pytest.mark.parametrize("op_type", [OWN, MMCV])
def test_attention_node_with_nan_weight_of_level_without_pixels_lowered_is_the_function(
    op_type: str,
    lengths: list[list[int]],
    is_static: bool,
    opset: int,
    target: TargetName,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_pixels = sum(math.prod(row) for row in lengths)
    monkeypatch.setitem(SHAPES, "value", (B, n_pixels, H, D))
    model = model_with_lengths(op_type, np.array(lengths), is_static=is_static, opset=opset)
    feeds = feeds_for(LOCATED)
    feeds["attention_weights"][0, 1, 2, 0, 3] = np.nan
    value, locations, weights = feeds.values()
    expected = ogs.deformable_attention(value, lengths, locations, weights)
    assert np.isnan(expected).sum() == D
    assert_lowered_is(model, feeds, expected, target)


def test_attention_node_with_nan_weight_of_levels_without_pixels_in_session_is_nan(
    ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = np.array([[0, 0], [3, 0]])
    monkeypatch.setitem(SHAPES, "value", (B, 0, H, D))
    model = model_with_lengths(OWN, lengths, is_static=True)
    feeds = feeds_for(LOCATED)
    feeds["attention_weights"][0, 1, 2, 0, 3] = np.nan
    expected = np.zeros((B, Q, H, D), np.float32)
    expected[0, 1, 2] = np.nan
    output = run_in_session(model, feeds, ops)
    np.testing.assert_array_equal(output, expected.reshape(B, Q, H * D))


@pytest.mark.parametrize("is_static", [True, False])
def test_attention_node_of_levels_without_pixels_in_session_is_zero(
    is_static: bool, ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "value", (B, 0, H, D))
    model = model_with_lengths(OWN, np.array([[0, 0], [3, 0]]), is_static=is_static)
    output = run_in_session(model, feeds_for(LOCATED), ops)
    np.testing.assert_array_equal(output, np.zeros((B, Q, H * D), np.float32), strict=True)


def model_without_levels(op_type: str, monkeypatch: pytest.MonkeyPatch) -> onnx.ModelProto:
    """Return a model of one node whose lengths are an input of the stated shape (0, 2)."""
    monkeypatch.setitem(SHAPES, "value", (B, 0, H, D))
    monkeypatch.setitem(SHAPES, "sampling_locations", (B, Q, H, 0, P, 2))
    monkeypatch.setitem(SHAPES, "attention_weights", (B, Q, H, 0, P))
    model = model_of(op_type, is_static=False, is_fed=True)
    for value in model.graph.input:
        if value.name in ("lengths", "starts"):
            value.type.tensor_type.shape.dim[0].dim_value = 0
    return model


def feeds_without_levels(op_type: str) -> dict[str, Array]:
    lengths = {name: array[:0] for name, array in lengths_feeds(op_type).items()}
    return feeds_for(LOCATED) | lengths


@pytest.mark.parametrize("op_type", [TENSORRT, MMCV])
def test_attention_node_without_levels_in_session_is_zero(
    op_type: str, ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_without_levels(op_type, monkeypatch)
    output = run_in_session(model, feeds_without_levels(op_type), ops)
    assert output.size == B * Q * H * D
    assert not output.any()


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("op_type", [TENSORRT, MMCV])
def test_attention_node_without_levels_lowered_is_zero(
    op_type: str, target: TargetName, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_without_levels(op_type, monkeypatch)
    shape = (B, Q, H, D) if op_type == TENSORRT else (B, Q, H * D)
    expected = np.zeros(shape, np.float32)
    assert_lowered_is(model, feeds_without_levels(op_type), expected, target)


def own_model_without_levels(
    monkeypatch: pytest.MonkeyPatch, *, is_static: bool
) -> onnx.ModelProto:
    """Return a model of this package's node with constant levels of shape (0, 3)."""
    monkeypatch.setitem(SHAPES, "value", (B, 0, H, D))
    monkeypatch.setitem(SHAPES, "sampling_locations", (B, Q, H, 0, P, 2))
    monkeypatch.setitem(SHAPES, "attention_weights", (B, Q, H, 0, P))
    return model_with_lengths(OWN, np.zeros((0, 2), np.int64), is_static=is_static)


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize("is_static", [True, False])
def test_own_attention_node_without_levels_lowered_is_zero(
    is_static: bool, target: TargetName, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = own_model_without_levels(monkeypatch, is_static=is_static)
    expected = np.zeros((B, Q, H * D), np.float32)
    assert_lowered_is(model, feeds_for(LOCATED), expected, target)


@pytest.mark.parametrize("is_static", [True, False])
def test_own_attention_node_without_levels_in_session_is_zero(
    is_static: bool, ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = own_model_without_levels(monkeypatch, is_static=is_static)
    output = run_in_session(model, feeds_for(LOCATED), ops)
    np.testing.assert_array_equal(output, np.zeros((B, Q, H * D), np.float32), strict=True)


def test_bevformer_attention_without_levels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_without_levels(BEVFORMER[0], monkeypatch)
    error = refusal(ogs.patch_model, model, target="primitives")
    assert error.argument == "attention_weights"
    assert error.expected == "a last axis of L·P points, as L is 0"


def test_attention_node_fed_level_without_pixels_lowered_to_primitives_is_the_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ``ai.onnx``, onnxruntime refuses an image without pixels."""
    lengths = np.array([[4, 6], [0, 0]])
    monkeypatch.setitem(SHAPES, "value", (B, 24, H, D))
    model = model_of(MMCV, is_static=True, is_fed=True)
    feeds = feeds_for(LOCATED)
    expected = ogs.deformable_attention(
        feeds["value"], lengths, feeds["sampling_locations"], feeds["attention_weights"]
    )
    feeds |= {"lengths": lengths, "starts": np.array([0, 24])}
    assert_lowered_is(model, feeds, expected, "primitives")


def test_attention_node_fed_two_starts_for_one_level_is_refused(
    ops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "value", (B, 24, H, D))
    monkeypatch.setitem(SHAPES, "sampling_locations", (B, Q, H, 1, P, 2))
    monkeypatch.setitem(SHAPES, "attention_weights", (B, Q, H, 1, P))
    model = model_of(MMCV, is_static=True, is_fed=True)
    lengths, starts = (value for value in model.graph.input if value.name in ("lengths", "starts"))
    lengths.type.tensor_type.shape.dim[0].dim_value = 1
    starts.type.tensor_type.shape.dim[0].dim_param = "levels"
    feeds = feeds_for(LOCATED) | {"lengths": LENGTHS[:1]}
    run_in_session(model, feeds | {"starts": np.array([0])}, ops)
    error = refusal(run_in_session, model, feeds | {"starts": np.array([0, 0])}, ops)
    assert (error.where, error.argument) == (
        "MMCVMultiScaleDeformableAttention node 'attention'",
        "level_start_index",
    )


def test_own_attention_node_of_a_value_of_one_axis_is_refused() -> None:
    model = model_of(OWN, is_static=False)
    del model.graph.node[0].input[2]
    levels = numpy_helper.from_array(np.insert(LENGTHS, 0, P, axis=1), "lengths")
    model.graph.initializer[0].CopyFrom(levels)
    value, locations, _ = model.graph.input
    value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    value.type.tensor_type.shape.dim.add(dim_value=5)
    locations.type.tensor_type.ClearField("shape")
    error = refusal(ogs.patch_model, model, target="primitives")
    assert (error.argument, error.found) == ("value", "of shape (5)")
