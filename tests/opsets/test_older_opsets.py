"""Converting to an older opset keeps what each node computes, or refuses the node."""

import itertools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.scope import opset_of
from ort_gridsample.opsets.convert import convert_opset
from support import faults
from support.compare import refusal
from support.parameters import with_slow
from support.paths import open_native

EXPORTED = Path(__file__).parents[1] / "exported"
X = np.random.default_rng(0).normal(size=(2, 4, 6, 8)).astype(np.float32)
SHAPE = np.array(X.shape)
FIXED = "float[2,4,6,8]"
SYMBOLIC = "float[n,c,h,w]"


def model_of(
    nodes: str, opset: int, x: str = FIXED, y: str = "float[a,b,c,d]", inputs: str = ""
) -> onnx.ModelProto:
    """A model that computes ``y`` from ``x``."""
    signature = f"({x} x{', ' if inputs else ''}{inputs}) => ({y} y)"
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> g {signature} {{ {nodes} }}'
    )


def of_unknown_rank(node: str, opset: int) -> onnx.ModelProto:
    """A model in which ``node`` reads ``r``, which has the shape that is fed as ``s``."""
    return model_of(f"r = Reshape (x, s) {node}", opset, inputs="int64[k] s")


def convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """``model`` in this opset, which the checker accepts."""
    other = ogs.patch_model(model, target="ai.onnx", opset=opset)
    onnx.checker.check_model(other, full_check=True)
    assert opset_of(other) == opset
    return other


def assert_same_outputs(
    model: onnx.ModelProto, other: onnx.ModelProto, **feeds: np.ndarray
) -> None:
    expected = open_native(model).run(None, feeds)
    for answer, value in zip(open_native(other).run(None, feeds), expected, strict=True):
        assert answer.dtype == value.dtype
        np.testing.assert_allclose(answer, value, rtol=1e-5, atol=1e-5)


def refusal_of(model: onnx.ModelProto, opset: int) -> ogs.GridSampleError:
    return refusal(ogs.patch_model, model, target="ai.onnx", opset=opset)


IN_BRANCH = """y = If (c) <then_branch = t () => (float[a,b,c,d] s) {{ {node} }},
                            else_branch = e () => (float[a,b,c,d] n) {{ n = Neg (x) }}>"""
SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")


@pytest.mark.parametrize(
    ("op_type", "axis"), [*itertools.product(SOFTMAXES, (None, 0, 1, -2, 3, -1))]
)
@pytest.mark.parametrize("opset", [11, 12])
def test_softmax_of_any_axis_below_opset_13_has_the_same_output(
    op_type: str, axis: int | None, opset: int
) -> None:
    attribute = "" if axis is None else f"<axis = {axis}>"
    model = model_of(f"y = {op_type} {attribute} (x)", 20)
    assert_same_outputs(model, convert(model, opset), x=X)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, -2])
def test_softmax_of_unknown_rank_below_opset_13_has_the_same_output(
    op_type: str, axis: int
) -> None:
    model = of_unknown_rank(f"y = {op_type} <axis = {axis}> (r)", 20)
    assert_same_outputs(model, convert(model, 11), x=X, s=SHAPE)


@pytest.mark.parametrize("op_type", ["Squeeze", "Unsqueeze", "ReduceSum"])
def test_operator_with_empty_axes_below_opset_13_has_the_same_output(op_type: str) -> None:
    nodes = f"e = Constant <value = int64[0] {{}}> () r = {op_type} (x, e) y = Relu (r)"
    model = model_of(nodes, 13, "float[1,4,1,8]")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    older = ogs.patch_model(model, target="ai.onnx", opset=11)
    assert_same_outputs(model, older, x=X[:1, :, :1])


def test_split_with_empty_lengths_below_opset_13_has_an_empty_attribute() -> None:
    nodes = "e = Constant <value = int64[0] {}> () y = Split (x, e)"
    older = ogs.patch_model(model_of(nodes, 13), target="ai.onnx", opset=11)
    (attribute,) = older.graph.node[-1].attribute
    assert (attribute.name, attribute.type) == ("split", onnx.AttributeProto.INTS)
    assert list(attribute.ints) == []


@faults.needs_named_nodes
def test_hardmax_of_unknown_rank_below_opset_13_is_refused() -> None:
    error = refusal_of(of_unknown_rank("[hard] y = Hardmax <axis = 1> (r)", 20), 12)
    assert (error.where, error.argument, error.found) == ("Hardmax node 'hard'", "axis", "1")


@faults.needs_adapters
@pytest.mark.parametrize("op_type", SOFTMAXES)
@pytest.mark.parametrize(("old", "new"), [(20, 12), (12, 20), (11, 13)])
def test_softmax_in_a_branch_has_the_same_output(op_type: str, old: int, new: int) -> None:
    nodes = IN_BRANCH.format(node=f"s = {op_type} <axis = 1> (x)")
    model = model_of(nodes, old, inputs="bool c")
    assert_same_outputs(model, convert(model, new), x=X, c=np.array(True))


@pytest.mark.parametrize(
    ("op_type", "axis"), [*itertools.product(SOFTMAXES, (None, 0, 1, -2, 3, -1))]
)
@pytest.mark.parametrize("old", [11, 12])
def test_softmax_raised_beyond_opset_12_has_the_same_output(
    op_type: str, axis: int | None, old: int
) -> None:
    attribute = "" if axis is None else f"<axis = {axis}>"
    model = model_of(f"y = {op_type} {attribute} (x)", old)
    assert_same_outputs(model, convert(model, 20), x=X)
    model = of_unknown_rank(f"y = {op_type} {attribute} (r)", old)
    assert_same_outputs(model, convert(model, 20), x=X, s=SHAPE)


EMPTY_SHAPES = [(2, 3, 0, 5), (2, 0, 3, 5), (0, 3, 4, 5), (0, 3, 0, 5)]


@pytest.mark.parametrize("op_type", SOFTMAXES)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
@pytest.mark.parametrize("new", [13, 16])
def test_softmax_of_an_empty_tensor_raised_beyond_opset_12_has_the_same_output(
    op_type: str, axis: int, shape: tuple[int, ...], new: int
) -> None:
    model = model_of(f"y = {op_type} <axis = {axis}> (x)", 11, SYMBOLIC)
    assert_same_outputs(model, convert(model, new), x=np.zeros(shape, np.float32))


@pytest.mark.parametrize("op_type", SOFTMAXES)
@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("old", [7, 8])
def test_softmax_of_a_possibly_empty_tensor_raised_to_opset_13_has_the_same_output(
    op_type: str, shape: tuple[int, ...], old: int
) -> None:
    model = model_of(f"y = {op_type} <axis = 1> (x)", old, SYMBOLIC)
    x = np.resize(X, shape)
    assert_same_outputs(model, convert(model, 13), x=x)


@pytest.mark.parametrize("op_type", SOFTMAXES)
@pytest.mark.parametrize("x", [FIXED, SYMBOLIC])
def test_softmax_raised_to_opset_13_has_the_same_output(op_type: str, x: str) -> None:
    model = model_of(f"y = {op_type} <axis = 1> (x)", 11, x)
    assert_same_outputs(model, convert(model, 13), x=X)


class NewerValue(NamedTuple):
    """Nodes with a value that the opset ``first`` introduced, and the argument that has it."""

    nodes: str
    first: int
    argument: str


NEWER = {
    "Pad": NewerValue('y = Pad <mode = "wrap"> (x, pads)', 19, "mode"),
    "Resize": NewerValue(
        """y = Resize <
            coordinate_transformation_mode = "half_pixel_symmetric",
            mode = "linear"> (x, , scales)""",
        19,
        "coordinate_transformation_mode",
    ),
    "antialias": NewerValue(
        'y = Resize <antialias = 1, mode = "linear"> (x, , scales)', 18, "antialias"
    ),
    "ScatterElements max": NewerValue(
        'y = ScatterElements <axis = 1, reduction = "max"> (x, places, x)', 18, "reduction"
    ),
    "ScatterElements add": NewerValue(
        'y = ScatterElements <axis = 1, reduction = "add"> (x, places, x)', 16, "reduction"
    ),
    "ScatterND min": NewerValue('y = ScatterND <reduction = "min"> (x, rows, x)', 18, "reduction"),
    "ScatterND mul": NewerValue('y = ScatterND <reduction = "mul"> (x, rows, x)', 16, "reduction"),
    "QuantizeLinear": NewerValue(
        "q = QuantizeLinear (x, factors, zeros) y = Cast <to = 1> (q)",
        13,
        "the shape of the scale",
    ),
    "DequantizeLinear": NewerValue(
        "q = Cast <to = 3> (x) y = DequantizeLinear (q, factors, zeros)",
        13,
        "the shape of the scale",
    ),
    "AveragePool": NewerValue(
        "y = AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (x)", 19, "dilations"
    ),
    "LpPool": NewerValue("y = LpPool <kernel_shape = [2, 2], ceil_mode = 1> (x)", 18, "ceil_mode"),
    "ArgMax": NewerValue(
        "i = ArgMax <axis = 1, select_last_index = 1> (x) y = Cast <to = 1> (i)",
        12,
        "select_last_index",
    ),
    "GatherND": NewerValue("y = GatherND <batch_dims = 1> (x, rows)", 12, "batch_dims"),
    "RoiAlign": NewerValue(
        "y = RoiAlign <output_height = 2, output_width = 2> (x, rois, items)",
        16,
        "coordinate_transformation_mode",
    ),
    "computed axes": NewerValue("i = Identity (axes) y = ReduceMax (x, i)", 18, "axes"),
    "computed axes of a sum": NewerValue("i = Identity (axes) y = ReduceSum (x, i)", 13, "axes"),
    "dropout": NewerValue(
        "t = Identity (training) y, m = Dropout (x, ratio, t)", 12, "training_mode"
    ),
}
TENSORS = {
    "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    "scales": np.array([1, 1, 2, 2], np.float32),
    "factors": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    "zeros": np.zeros(4, np.int8),
    "rows": np.array([[0], [1]]),
    "places": np.zeros((2, 4, 6, 8), np.int64),
    "axes": np.array([1]),
    "rois": np.array([[0, 0, 4, 4]], np.float32),
    "items": np.array([0]),
    "ratio": np.array(0.5, np.float32),
    "training": np.array(True),
}


def with_tensors(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with those of :data:`TENSORS` that its nodes read as initializers."""
    nodes = [*model.graph.node]
    for node in model.graph.node:
        nodes += [inner for attribute in node.attribute for inner in attribute.g.node]
    read = {name for node in nodes for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(TENSORS[name], name) for name in TENSORS if name in read
    )
    return model


@pytest.mark.parametrize("name", NEWER)
def test_value_newer_than_the_opset_is_refused(name: str) -> None:
    nodes, first, argument = NEWER[name]
    model = with_tensors(model_of(nodes, 20))
    assert refusal_of(model, first - 1).argument == argument
    assert opset_of(ogs.patch_model(model, target="ai.onnx", opset=first)) == first


@faults.needs_adapters
@pytest.mark.parametrize("name", NEWER)
def test_value_newer_than_the_opset_in_a_branch_is_refused(name: str) -> None:
    nodes, first, argument = NEWER[name]
    model = with_tensors(
        model_of(IN_BRANCH.format(node=re.sub(r"\by\b", "s", nodes)), 20, inputs="bool c")
    )
    assert refusal_of(model, first - 1).argument == argument


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("i = Cast <to = 6> (x) r = Relu (i) s = Cast <to = 1> (r)", 14),
        ("h = Cast <to = 16> (x) r = LeakyRelu (h) s = Cast <to = 1> (r)", 16),
        ("b = Cast <to = 9> (x) m = ReduceMax (b, axes) s = Cast <to = 1> (m)", 20),
        ("b = Cast <to = 16> (x) a = Softmax <axis = 1> (b) s = Cast <to = 1> (a)", 13),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_in_branch", [False, True])
def test_type_newer_than_the_opset_is_refused(nodes: str, first: int, is_in_branch: bool) -> None:
    nodes = IN_BRANCH.format(node=nodes) if is_in_branch else f"{nodes} y = Identity (s)"
    model = with_tensors(model_of(nodes, 20, inputs="bool c"))
    assert refusal_of(model, first - 1).argument.startswith("the type of ")
    assert opset_of(ogs.patch_model(model, target="ai.onnx", opset=first)) == first


@faults.needs_named_nodes
def test_error_lists_all_nodes_that_cannot_be_converted() -> None:
    nodes = """[low] l = Trilu (x)
        [wrapped] p = Pad <mode = "wrap"> (l, pads)
        [top] y = Trilu <upper = 0> (p)"""
    error = refusal_of(with_tensors(model_of(nodes, 20)), 13)
    assert error.where == "Trilu node 'low'"
    for name in ("Pad node 'wrapped' (mode is 'wrap'", "Trilu node 'top'"):
        assert name in error.expected


@faults.needs_named_nodes
def test_error_lists_nodes_of_the_same_name_in_both_branches() -> None:
    nodes = """y = If (c) <
        then_branch = g () => (float[a,b,c,d] s) { [n] s = Trilu (x) },
        else_branch = h () => (float[a,b,c,d] s) { [n] s = Trilu <upper = 0> (x) }
    >"""
    error = refusal_of(with_tensors(model_of(nodes, 20, inputs="bool c")), 13)
    assert f"{error.where} {error.expected}".count("Trilu node 'n in If ") == 2


def test_split_to_more_chunks_than_the_axis_fills_is_refused() -> None:
    nodes = "a, b, e, y = Split <axis = 3, num_outputs = 4> (x)"
    error = refusal_of(model_of(nodes, 20, x="float[1,1,1,5]"), 17)
    assert error.expected == "a number of chunks of 2 that 5 elements fill"


def assert_converts(
    nodes: str, old: int, new: int, x: str = FIXED, y: str = "float[a,b,c,d]"
) -> onnx.ModelProto:
    model = with_tensors(model_of(nodes, old, x, y))
    older = convert(model, new)
    assert_same_outputs(model, older, x=X)
    return older


BODIES = {
    "LayerNormalization": """f, o = Split <axis = 0, num_outputs = 2> (factors8)
        y = LayerNormalization (x, f, o)""",
    "LayerNormalization of several axes": "y = LayerNormalization <axis = 2> (x, square)",
    "GroupNormalization": "y = GroupNormalization <num_groups = 2> (x, factors, factors)",
    "Gelu": "y = Gelu (x)",
    "Gelu tanh": 'y = Gelu <approximate = "tanh"> (x)',
    "Mish": "y = Mish (x)",
    "HardSwish": "y = HardSwish (x)",
    "Celu": "y = Celu <alpha = 0.5> (x)",
    "CastLike": "i = CastLike (x, rows) y = CastLike (i, x)",
    "GreaterOrEqual": "b = GreaterOrEqual (x, zero) y = Cast <to = 1> (b)",
    "LessOrEqual": "b = LessOrEqual (x, zero) y = Cast <to = 1> (b)",
}
TENSORS |= {
    "factors8": np.linspace(0.5, 1.5, 16, dtype=np.float32),
    "square": np.linspace(0.5, 1.5, 48, dtype=np.float32).reshape(6, 8),
    "zero": np.array(0, np.float32),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("new", [11, 13, 17, 20])
def test_operator_that_the_opset_lacks_is_written_as_others(name: str, new: int) -> None:
    assert_converts(BODIES[name], 22, new)


@pytest.mark.parametrize("axis", [-1, -2, 1])
@pytest.mark.parametrize("new", [13, 20])
def test_rms_normalization_is_written_as_others(axis: int, new: int) -> None:
    if onnx.defs.onnx_opset_version() < 23:
        pytest.skip("onnx has no RMSNormalization yet")
    model = model_of(f"y = RMSNormalization <axis = {axis}> (x, one)", 23)
    model.graph.initializer.append(numpy_helper.from_array(np.full(1, 2, np.float32), "one"))
    axes = tuple(range(axis % X.ndim, X.ndim))
    expected = 2 * X / np.sqrt((X.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        open_native(convert(model, new)).run(None, {"x": X})[0], expected, atol=1e-5
    )


def test_body_of_other_types_than_the_opset_has_is_refused() -> None:
    """The body of CenterCropPad has a Max of integers, which came with opset 12."""
    nodes = (
        "lengths = Constant <value_ints = [3, 9]> () y = CenterCropPad <axes = [1, 2]> (x, lengths)"
    )
    assert_converts(nodes, 22, 12)
    error = refusal_of(model_of(nodes, 22), 11)
    assert (error.where, error.found) == ("CenterCropPad node with output 'y'", "int64")


def test_layer_normalization_of_a_large_mean_keeps_its_digits() -> None:
    model = with_tensors(
        model_of("m = Add (x, mean) y = LayerNormalization <axis = 2> (m, square)", 20)
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(1000, np.float32), "mean"))
    older = convert(model, 13)
    shifted = X.astype(np.float64) + 1000
    mean = shifted.mean((2, 3), keepdims=True)
    expected = (
        (shifted - mean) / np.sqrt(shifted.var((2, 3), keepdims=True) + 1e-5) * TENSORS["square"]
    )
    np.testing.assert_allclose(open_native(older).run(None, {"x": X})[0], expected, atol=1e-3)


@pytest.mark.parametrize("x", [FIXED, SYMBOLIC])
@pytest.mark.parametrize("new", [11, 13, 17])
@pytest.mark.parametrize(("axis", "count"), [(1, 2), (-2, 3), (3, 3), (0, 2)])
def test_split_to_a_number_of_parts_has_the_same_output(
    x: str, new: int, axis: int, count: int
) -> None:
    """Also where the last part is shorter."""
    parts = [f"p{i}" for i in range(count)]
    nodes = f"""{", ".join(parts)} = Split <axis = {axis}, num_outputs = {count}> (x)
        y = Concat <axis = {axis}> ({", ".join(reversed(parts))})"""
    assert_converts(nodes, 20, new, x)


@pytest.mark.parametrize("new", [11, 13, 17])
@pytest.mark.parametrize(
    "nodes",
    [
        'y = Resize <mode = "linear"> (x, , scales)',
        'y = Resize <mode = "linear"> (x, , , size)',
        'y = Resize <mode = "cubic", axes = [3, 2]> (x, , halves)',
        'y = Resize <mode = "nearest", axes = [3, 2]> (x, , , pair)',
        'i = Identity (halves) y = Resize <mode = "linear", axes = [3, 2]> (x, , i)',
    ],
)
def test_resize_has_the_same_output(nodes: str, new: int) -> None:
    assert_converts(nodes, 20, new)


@pytest.mark.parametrize("new", [11, 13, 17])
@pytest.mark.parametrize("pads", ["pads4", "i"])
def test_pad_of_some_axes_has_the_same_output(pads: str, new: int) -> None:
    assert_converts(f"i = Identity (pads4) y = Pad (x, {pads}, zero, pair_of_axes)", 20, new)


TENSORS |= {
    "size": np.array([2, 4, 5, 11]),
    "no_scales": np.zeros(0, np.float32),
    "halves": np.array([1.5, 0.5], np.float32),
    "pair": np.array([5, 11]),
    "pads4": np.array([1, 0, 2, 3]),
    "pair_of_axes": np.array([-1, 1]),
}


@pytest.mark.parametrize("new", [11, 13])
@pytest.mark.parametrize("x", [FIXED, SYMBOLIC])
def test_reshape_with_allowzero_has_the_same_output(x: str, new: int) -> None:
    nodes = """n = Shape <end = 2> (x)
        rest = Constant <value_ints = [-1, 1]> ()
        s = Concat <axis = 0> (n, rest)
        y = Reshape <allowzero = 1> (x, s)"""
    assert_converts(nodes, 20, new, x)


@pytest.mark.parametrize(("shape", "length"), [((0, 3), 0), ((3, 0), 0), ((2, 5), 10)])
def test_reshape_with_allowzero_and_no_elements_has_the_same_output_or_fails(
    shape: tuple[int, int], length: int
) -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 20]>
        g (float[n, k] x, int64[r] s) => (float[] y) {
            i = Identity (s)
            y = Reshape <allowzero = 1> (x, i) }""")
    older = ogs.patch_model(model, target="ai.onnx", opset=13)
    x = np.zeros(shape, np.float32)
    for target in ([length], [0, 0], [shape[1], shape[0]], [0, 7], [7, 0]):
        feeds = {"x": x, "s": np.array(target)}
        try:
            [expected] = open_native(model).run(None, feeds)
        except Exception:
            continue
        try:
            [answer] = open_native(older).run(None, feeds)
        except Exception:
            assert 0 in target
            continue
        assert answer.shape == expected.shape


def test_reshape_with_allowzero_of_an_empty_tensor_to_zeros_has_the_same_shape_or_fails() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 20]>
        g (float[n, 0] x, float[c, 1] w) => (float[] y) {
            length = Shape <end = 1> (w)
            zero = Shape <start = 1> (x)
            s = Concat <axis = 0> (length, zero)
            y = Reshape <allowzero = 1> (x, s) }""")
    older = ogs.patch_model(model, target="ai.onnx", opset=13)
    feeds = {"x": np.zeros((2, 0), np.float32), "w": np.zeros((0, 1), np.float32)}
    [expected] = open_native(model).run(None, feeds)
    try:
        [output] = open_native(older).run(None, feeds)
    except Exception:
        return
    assert output.shape == expected.shape


def test_reshape_with_allowzero_to_a_shape_that_is_fed_is_refused() -> None:
    error = refusal_of(model_of("y = Reshape <allowzero = 1> (x, s)", 20, inputs="int64[k] s"), 13)
    assert (error.argument, error.found) == ("allowzero", "1")


@pytest.mark.parametrize("new", [11, 13, 16])
def test_loop_and_if_are_converted_with_their_bodies(new: int) -> None:
    nodes = """trips = Constant <value_int = 3> ()
        go = Constant <value = bool {1}> ()
        y = Loop (trips, go, x) <
            body = b (int64 i, bool more, float[p,q,r,s] v) => (bool again, float[p,q,r,s] w) {
                again = Identity (more)
                first = Constant <value_int = 0> ()
                is_first = Equal (i, first)
                w = If (is_first) <
                    then_branch = t () => (float[p,q,r,s] a) { a = LayerNormalization (v, row) },
                    else_branch = e () => (float[p,q,r,s] n) {
                        h = HardSwish (v)
                        n = Softmax <axis = 1> (h) }> }>"""
    model = model_of(nodes, 20)
    model.graph.initializer.append(
        numpy_helper.from_array(np.linspace(1, 2, 8, dtype=np.float32), "row")
    )
    assert_same_outputs(model, convert(model, new), x=X)


def test_constants_that_are_attributes_now_are_dropped() -> None:
    older = assert_converts("a = Constant <value_ints = [1]> () y = ReduceMax (x, a)", 20, 13)
    assert [node.op_type for node in older.graph.node] == ["ReduceMax"]


@faults.needs_named_nodes
def test_names_and_metadata_stay_at_the_node_that_makes_the_output() -> None:
    model = model_of("[soft] y = Softmax <axis = 1> (x)", 20)
    model.graph.node[0].metadata_props.add(key="made by", value="hand")
    last = convert(model, 12).graph.node[-1]
    assert (last.name, last.output[0], last.metadata_props[0].value) == ("soft", "y", "hand")


@faults.needs_adapters
def test_hardmax_is_kept_where_a_target_raises_the_opset() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 12, "mmcv": 1]>
        g (float[2,4,6,8] x, float[2,3,5,2] grid) => (float[2,4,3,5] y) {
            h = Hardmax <axis = 1> (x)
            y = mmcv.grid_sampler <
                interpolation_mode = 0,
                padding_mode = 0,
                align_corners = 0> (h, grid) }""")
    grid = np.random.default_rng(1).uniform(-1, 1, (2, 3, 5, 2)).astype(np.float32)
    raised = ogs.patch_model(model, target="ai.onnx")
    assert opset_of(raised) == 16
    flat = X.reshape(2, -1)
    hard = (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(np.float32).reshape(X.shape)
    answer = open_native(raised).run(None, {"x": X, "grid": grid})[0]
    np.testing.assert_allclose(answer, ogs.grid_sample(hard, grid), atol=1e-6)


#: Exported models -> the opset that they reach, and the operators that stop them before.
REACHED = {
    "deformable_detr": (11, ""),
    "grounding_dino": (11, ""),
    "mask2former": (13, "Einsum"),
    "raft": (13, "Einsum"),
    "rt_detr_v2": (11, ""),
    "voxelmorph": (11, ""),
}


@with_slow("name", REACHED, ("deformable_detr", "raft", "voxelmorph"))
def test_exported_model_has_the_same_output_in_the_oldest_opset(name: str) -> None:
    reached, operator = REACHED[name]
    with np.load(EXPORTED / f"{name}.npz") as data:
        feeds = {key.removeprefix("in."): data[key] for key in data.files if key.startswith("in.")}
        expected = {
            key.removeprefix("out."): data[key] for key in data.files if key.startswith("out.")
        }
    older = ogs.patch_model(EXPORTED / f"{name}.onnx", target="primitives", opset=reached)
    onnx.checker.check_model(older, full_check=True)
    answers = dict(zip(expected, open_native(older).run([*expected], feeds), strict=True))
    for output, value in expected.items():
        scale = float(np.abs(value[np.isfinite(value)]).max())
        np.testing.assert_allclose(
            answers[output], value, rtol=0, atol=1e-4 * scale, err_msg=output
        )
    if operator:
        error = refusal(ogs.patch_model, EXPORTED / f"{name}.onnx", target="primitives", opset=11)
        stuck = [
            node.name
            for node in onnx.load(EXPORTED / f"{name}.onnx").graph.node
            if node.op_type == operator
        ]
        assert all(f"{operator} node '{node}'" in str(error) for node in stuck)


def outputs_of(model: onnx.ModelProto, inputs: list[object]) -> list[object]:
    """Run ``model`` in onnxruntime with these inputs, in order."""
    session = open_native(model)
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=False)))


def difference(answers: list[object], expected: list[object]) -> str:
    """Return how ``answers`` differ from those expected, or an empty string."""
    for answer, value in zip(answers, expected, strict=True):
        if isinstance(value, list):
            inner_difference = difference(answer, value)
            if inner_difference:
                return inner_difference
            continue
        if value is None or isinstance(value, dict):
            continue
        given = np.asarray(answer)
        wanted = np.asarray(value)
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
            return f"{given.dtype}{given.shape} instead of {wanted.dtype}{wanted.shape}"
        tolerance = 2e-3 if wanted.dtype.itemsize == 2 else 1e-5
        is_equal = (
            np.allclose(given, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
            if wanted.dtype.kind in "fc"
            else np.array_equal(given, wanted)
        )
        if not is_equal:
            return "other values"
    return ""


def is_left_out(name: str, model: onnx.ModelProto) -> bool:
    """Whether a node test of onnx is random, or has other domains or operators of targets."""
    return (
        any(word in name for word in ("training", "bernoulli", "gridsample", "affine_grid"))
        or any(entry.domain for entry in model.opset_import)
    )  # fmt: skip


#: The slow test takes every fourth node test. The sweep takes the others.
FOURTHS = [
    pytest.param(0, marks=pytest.mark.slow),
    *(pytest.param(i, marks=pytest.mark.sweep) for i in (1, 2, 3)),
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fourth", FOURTHS)
@faults.needs_adapters
def test_onnx_node_tests_have_the_same_outputs_in_older_opsets_or_are_refused(fourth: int) -> None:
    """They are those that onnxruntime runs. It may lack kernels for an older opset."""
    from onnx.backend.test.case.node import collect_testcases  # which takes a minute

    wrong = list[str]()
    compared = 0
    for case in collect_testcases(None)[fourth::4]:
        opset = opset_of(case.model)
        if is_left_out(case.name, case.model):
            continue
        inputs = [
            numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x
            for x in case.data_sets[0][0]
        ]
        try:
            expected = outputs_of(case.model, inputs)
        except Exception:  # which differ from test to test
            continue
        for path in (steps for steps in ((13,), (11,), (11, opset)) if steps[0] < opset):
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            try:
                for step in path:
                    convert_opset(model, step)
            except ogs.GridSampleError:
                continue
            except Exception as error:
                if len(path) == 1:
                    wrong.append(f"{case.name} {path}: {error}")
                continue  # onnx's converter has no way up
            try:
                problem = difference(outputs_of(model, inputs), expected)
            except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
                continue
            except Exception as error:
                problem = str(error)
            compared += 1
            if problem:
                wrong.append(f"{case.name} {path}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert compared > 250


@pytest.mark.parametrize("new", [11, 13, 17])
def test_resize_with_empty_scales_and_axes_answers_the_same(new: int) -> None:
    nodes = 'y = Resize <mode = "nearest", axes = [3, 2]> (x, , no_scales, pair)'
    model = with_tensors(model_of(nodes, 20))
    without_scales = with_tensors(model_of(nodes.replace("no_scales", ""), 20))
    assert_same_outputs(without_scales, convert(model, new), x=X)


def test_resize_with_empty_scales_and_aspect_ratio_policy_is_refused() -> None:
    nodes = 'y = Resize <keep_aspect_ratio_policy = "not_larger"> (x, , no_scales, size)'
    error = refusal_of(with_tensors(model_of(nodes, 20)), 17)
    assert error.argument == "keep_aspect_ratio_policy"


def test_group_normalization_18_of_float64_keeps_its_digits() -> None:
    if onnx.defs.onnx_opset_version() < 18:
        pytest.skip("onnx has no GroupNormalization yet")
    doubles = "double[2,4,6,8]"
    nodes = "y = GroupNormalization <num_groups = 2> (x, per_group, per_group)"
    model = model_of(nodes, 18, doubles, doubles)
    per_group = np.array([0.5, 2.0])
    model.graph.initializer.append(numpy_helper.from_array(per_group, "per_group"))
    convert_opset(model, 13)
    values = X.astype(np.float64) + 1e6
    groups = values.reshape(2, 2, -1)
    deviations = groups - groups.mean(-1, keepdims=True)
    normalized = deviations / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    factors = per_group[None, :, None]
    expected = (normalized * factors + factors).reshape(X.shape)
    (Y,) = open_native(model).run(None, {"x": values})
    np.testing.assert_allclose(Y, expected, rtol=1e-6, atol=1e-6)


def test_normalization_of_an_unknown_stash_type_is_refused() -> None:
    model = with_tensors(model_of("y = LayerNormalization <stash_type = 7> (x, factors8)", 20))
    error = refusal_of(model, 16)
    assert (error.argument, error.found) == ("stash_type", "7")
