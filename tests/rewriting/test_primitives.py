"""Lowering to primitives: only basic operators, and the outputs of the NumPy core."""

import random
from collections import Counter
from dataclasses import asdict
from itertools import product
from types import ModuleType

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper, shape_inference

from ort_gridsample import spec
from ort_gridsample.functions.grid_operators import GRID_OPERATORS
from ort_gridsample.graph.element_types import elem_type
from ort_gridsample.graph.expressions import Expressions
from ort_gridsample.graph.runtimes import ANY, RUNTIMES
from ort_gridsample.graph.substitutes import round_to_float32
from ort_gridsample.reference.taps import MODE_RULES, Mode
from ort_gridsample.rewriting.targets import matrix_products, primitives, zero_rows
from ort_gridsample.rewriting.targets.lowered_arguments import Argument
from ort_gridsample.rewriting.targets.primitives import lower_affine_grid, lower_grid_sample
from ort_gridsample.rewriting.targets.row_sampler import MAX_FEW_CHANNELS
from support.cases import ATTRIBUTES, Attributes
from support.choices import ANY_MODE, ANY_PADDING, COPYING_MODES, NO_MODE, NO_PADDING
from support.compare import refusal, type_name
from support.lowered_models import assert_close, run
from support.models import PRIMITIVES, make_model
from support.runtime_forms import RUNTIME_FORMS

#: The lowering adds up in the NumPy core's order, so results of some types are equal bit for bit.
pytestmark = pytest.mark.usefixtures("numpy_core")

X_LENGTHS = (9, 4, 3, 6, 2)
Y_LENGTHS = (3, 4, 2, 3, 2)
MANY_CHANNELS = MAX_FEW_CHANNELS + 1
#: Coordinates at which padding, infinities and NaN matter.
SPECIAL_COORDINATES = (np.nan, np.inf, -np.inf, 1e10, -1e10, 1, -1)
LINEAR = Attributes("linear", "zeros", False)
#: The operators of lowered samples of floats with known shapes. Every runtime has them.
PRIMITIVES_OF_KNOWN_SHAPES = PRIMITIVES - {"Concat", "Div", "Expand", "Less", "Range", "Shape"}
#: Operators, attributes and types of Casts that lowered nodes for a runtime do not contain.
MISSING = {
    "iree": {"allowzero", "Range"},
    "mnn": {"Mod", "Round"},
    "litert": {"Mod"},
    "onnx2torch": {"allowzero"},
    "onnxconverter-common": set(),
    "onnxruntime-webgpu": {"Max", "Min", "Mod", "Round", elem_type("int64")},
    "rknn": set(),
    "tvm": {"allowzero", "Range"},
}
every_attributes = pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
every_runtime = pytest.mark.parametrize("runtime", RUNTIME_FORMS)


def grid_array(axes, batch=1, grid_type="float32"):
    """Return a random grid that begins with special coordinates."""
    grid = np.random.default_rng(axes).uniform(-2, 2, (batch, *Y_LENGTHS[:axes], axes))
    grid.reshape(-1)[: len(SPECIAL_COORDINATES)] = SPECIAL_COORDINATES[: grid.size]
    with np.errstate(over="ignore"):
        return grid.astype(grid_type)


def X_array(axes, batch=1, channels=3):  # noqa: N802
    """Return a random X of float32."""
    shape = (batch, channels, *X_LENGTHS[:axes])
    return np.random.default_rng(axes).standard_normal(shape, "float32")


def lower(
    X,
    grid,
    attributes,
    opset=17,
    known=True,
    constant_grid=False,
    runtime=ANY,
    shapes=None,
    other_op_types=(),
):
    """Return a model of the nodes that a GridSample is lowered to, which must be primitives.

    Args:
        X: the array that is sampled.
        grid: the grid.
        attributes: those of the node.
        opset: the opset of the model.
        known: whether the shapes are known; otherwise only the ranks are.
        constant_grid: whether the grid is a constant, and not an input.
        runtime: the runtime that the nodes are for.
        shapes: the known shapes of X and grid, in place of ``known``.
        other_op_types: operators that are allowed besides primitives.
    """
    if shapes is None:
        shapes = (X.shape, grid.shape)
        if not known:
            shapes = tuple(
                tuple(f"{name}{axis}" for axis in range(array.ndim))
                for name, array in (("X", X), ("grid", grid))
            )
    X_shape, grid_shape = shapes
    X_value = Argument("X", type_name(X.dtype), X_shape)
    grid_constant = grid if constant_grid else None
    grid_value = Argument("grid", type_name(grid.dtype), grid_shape, grid_constant)
    expressions = Expressions("a/b", opset, runtime)
    nodes = lower_grid_sample(expressions, X_value, grid_value, "Y", **asdict(attributes))
    allowed = PRIMITIVES.union(other_op_types)
    if not runtime.computes_shapes:
        allowed |= {"CumSum", "Slice"}
    assert {(node.domain, node.op_type) for node in nodes} <= {("", name) for name in allowed}
    names = {name for node in nodes for name in (node.name, *node.output)} - {"Y"}
    assert all(name.startswith("a/b/") for name in names)
    inputs = {"X": (X_value.type, X_shape or [None] * X.ndim)}
    if not constant_grid:
        inputs["grid"] = (grid_value.type, grid_shape or [None] * grid.ndim)
    return make_model(nodes, inputs, {"Y": (X_value.type, [None] * X.ndim)}, opset)


def op_types(model):
    return {node.op_type for node in model.graph.node}


def assert_no_shape_arithmetic(model):
    """Check that nodes neither compute shapes or conditions nor have unread outputs."""
    nodes = model.graph.node
    assert op_types(model) <= PRIMITIVES_OF_KNOWN_SHAPES
    assert not any(a.name == "allowzero" for node in nodes for a in node.attribute)
    assert sum(node.op_type in ("Equal", "Where") for node in nodes) <= 4
    read = {name for node in nodes for name in node.input}
    for node in nodes:
        assert set(node.output) <= {*read, "Y"}
        if node.op_type == "Constant":
            constant = numpy_helper.to_array(node.attribute[0].t)
            assert constant.dtype != "int64" or -1 not in constant  # a length computed in the run


#: The spatial lengths of an X with very many channels, by their number.
LARGE_X_LENGTHS = {1: (29,), 2: (8, 9), 3: (4, 3, 5)}


def min_large_channels(mode, axes):
    """Return the number of channels from which on an X of enough values is large."""
    return zero_rows.MIN_LARGE_CHANNELS_PER_TAP * len(MODE_RULES[mode].offsets) ** axes


def large_X(mode, axes):  # noqa: N802
    """Return two batches, whose channel 3 is infinite."""
    lengths = LARGE_X_LENGTHS[axes]
    enough = zero_rows.MIN_LARGE_VALUES // (2 * np.prod(lengths)) + 1
    shape = (2, max(min_large_channels(mode, axes), enough), *lengths)
    X = np.random.default_rng(axes).standard_normal(shape, "float32") * 9
    X[:, 3] = np.inf
    return X


LARGE_CASES = [
    (mode, axes) for mode, axes in product(spec.MODES, LARGE_X_LENGTHS)
    if (mode, axes) != ("cubic", 3)  # 2,048 channels
]  # fmt: skip


@pytest.mark.parametrize("module", [primitives, matrix_products])
def test_grid_lowerings_have_every_operator_that_computes_a_grid(module: ModuleType) -> None:
    assert set(module.GRID_LOWERINGS) == set(GRID_OPERATORS)


@pytest.mark.parametrize(
    ("mode", "axes", "X_type", "align_corners", "atol"),
    [
        (mode, axes, *other)
        for mode, axes in LARGE_CASES
        for other in (
            ("float32", False, 1e-5),
            ("float32", True, 1e-5),
            ("float16", True, 2e-2) if axes == 2 else ("uint8", False, 1),
        )
    ],
)
def test_large_X_is_not_padded(mode, axes, X_type, align_corners, atol):  # noqa: N802
    """One row of zeros is read instead, so infinite pixels do not reach positions outside."""
    X = large_X(mode, axes)
    grid = grid_array(axes, 2)
    attributes = Attributes(mode, "zeros", align_corners)
    typed = X.clip(0, 99).astype(X_type) if X_type == "uint8" else X.astype(X_type)
    model = lower(typed, grid, attributes)
    assert "Pad" not in op_types(model)
    assert_close(run(model, typed, grid), typed, grid, attributes, atol)


@pytest.mark.parametrize(("mode", "axes"), LARGE_CASES)
def test_smaller_X_is_padded(mode, axes):  # noqa: N802
    X = large_X(mode, axes)
    grid = grid_array(axes, 2)
    fewer_channels = X[:, : min_large_channels(mode, axes) - 1]
    fewer_values = X[:1, :, :1]
    for smaller in (fewer_channels, fewer_values):
        model = lower(smaller, grid[: len(smaller)], Attributes(mode, "zeros", False))
        assert [node.op_type for node in model.graph.node].count("Pad") == 1


@every_attributes
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_known_shapes_leave_no_shape_arithmetic(attributes, axes):
    model = lower(X_array(axes, 2), grid_array(axes, 2), attributes)
    assert_no_shape_arithmetic(model)


@pytest.mark.parametrize("X_shape", [(0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4)])
def test_known_empty_axis_is_not_sampled(X_shape):
    X = np.ones(X_shape, "float32")
    grid = np.zeros((X_shape[0], 3, 4, 2), "float32")
    assert op_types(lower(X, grid, LINEAR, 13)).isdisjoint({"Gather", "Reshape"})


@every_attributes
def test_constant_grid_leaves_no_coordinate_arithmetic(attributes):
    X = X_array(2, 2)
    grid = grid_array(2, 2)
    model = lower(X, grid, attributes, constant_grid=True)
    sums = {"Add", "Constant", "Gather", "Mul", "Pad", "ReduceSum", "Reshape", "Transpose"}
    assert op_types(model) <= sums
    assert_close(run(model, X), X, grid, attributes)


def readers_of_lengths(nodes):
    """Return the operators that read the shapes of X and grid, or parts of them."""
    lengths = set()
    readers = set()
    for node in nodes:
        read = node.input[:1] if node.op_type == "Gather" else node.input
        selects = node.op_type in ("Slice", "Gather", "Concat") and lengths.intersection(read)
        if node.op_type == "Shape" or selects:
            lengths.update(node.output)
        elif lengths.intersection(node.input):
            readers.add(node.op_type)
    return readers


def cases_for_runtimes():
    """Return attributes, numbers of axes, and whether shapes are known.

    Alignments and known shapes are drawn, equally in each run.
    """
    drawn = random.Random(0)
    cases = [
        *product((1, 2), spec.MODES, spec.PADDING_MODES),
        (3, "nearest", "zeros"),
        (3, "linear", "border"),
        (3, "cubic", "reflection"),
    ]
    return [
        (
            Attributes(mode, padding_mode, drawn.choice([False, True])),
            axes,
            drawn.choice([True, False]),
        )
        for axes, mode, padding_mode in cases
    ]


@every_runtime
@pytest.mark.parametrize(
    ("attributes", "axes", "known"),
    cases_for_runtimes(),
    ids=str,
)
def test_nodes_for_a_runtime_have_only_what_it_supports(runtime, attributes, axes, known):
    X = X_array(axes, 2, MANY_CHANNELS if axes == 2 else 3)
    grid = grid_array(axes, 2)
    missing = MISSING[runtime]
    if attributes.padding_mode == "reflection" and "Mod" in missing:
        grid[np.abs(grid) == np.float32(1e10)] = 20  # without Mod, far reflections are not exact
    model = lower(X, grid, attributes, 20, known, runtime=RUNTIMES[runtime])
    nodes = model.graph.node
    attribute_names = {a.name for node in nodes for a in node.attribute}
    cast_types = {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute}
    assert not missing & (op_types(model) | attribute_names | cast_types)
    max_outputs = 8 if runtime == "onnxruntime-webgpu" else 16
    assert max(len(node.output) for node in nodes) <= max_outputs
    if known:
        max_gathers = 1 if runtime == "rknn" else 16
        assert sum(node.op_type == "Gather" for node in nodes) <= max_gathers
    else:
        computes_lengths = bool(readers_of_lengths(nodes) - {"Reshape", "Expand", "Cast"})
        assert computes_lengths == (runtime not in ("iree", "tvm"))
    assert_close(run(model, X, grid), X, grid, attributes)


def rounding_model():
    """Return a model that rounds float64 to float32 without a Cast."""
    expressions = Expressions("n", 17, RUNTIMES["onnxconverter-common"])
    rounded = round_to_float32(expressions, expressions.input("x", "float64"))
    nodes = expressions.finish(rounded, "Y")
    return make_model(nodes, {"x": ("float64", [None])}, {"Y": ("float64", [None])}, 17)


def test_rounding_to_float32_in_float64_equals_a_cast():
    """Among the numbers are ties, and numbers just below a power of two."""
    generator = np.random.default_rng(0)
    scale = 2.0 ** generator.integers(-60, 90, 2000)
    ties = (2**24 + 2 * generator.integers(0, 2**23, 2000) + 1) * scale
    below = scale * (1 - generator.integers(0, 2**30, 2000) * 2.0**-53)
    near_ties = [np.nextafter(ties, 0), np.nextafter(ties, np.inf)]
    numbers = np.concatenate([ties, -ties, *near_ties, below, [0, 3.4e38]])
    expected = numbers.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(run(rounding_model(), numbers), expected)


def test_rounding_to_float32_in_float64_of_larger_numbers_is_nan():
    """Padding treats NaN like infinity."""
    assert np.isnan(run(rounding_model(), np.array([np.inf, -np.inf, np.nan, 3.5e38]))).all()


@every_attributes
def test_nodes_for_float16_converters_have_float32_only_in_products(attributes):
    runtime = RUNTIMES["onnxconverter-common"]
    nodes = lower(X_array(2, 2), grid_array(2, 2), attributes, runtime=runtime).graph.node
    constants = [node.attribute[0].t for node in nodes if node.op_type == "Constant"]
    assert TensorProto.FLOAT not in {tensor.data_type for tensor in constants}
    casts = {
        node.output[0]
        for node in nodes
        if node.op_type == "Cast" and node.attribute[0].i == TensorProto.FLOAT
    }
    assert {node.op_type for node in nodes if casts & set(node.input)} <= {"Mul"}


@every_attributes
def test_nodes_for_float16_converters_cast_a_value_for_each_reader_but_gathers(attributes):
    runtime = RUNTIMES["onnxconverter-common"]
    model = lower(X_array(2, 2), grid_array(2, 2), attributes, runtime=runtime)
    graph = shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    readers = Counter(
        name for node in graph.node for name in node.input if node.op_type != "Gather"
    )
    float32_producers = {
        name: node.op_type
        for node in graph.node
        for name in node.output
        if types.get(name) == TensorProto.FLOAT
    }
    assert max(readers[name] for name in float32_producers) == 1
    gathered = [node.input[0] for node in graph.node if node.op_type == "Gather"]
    assert "Cast" not in {float32_producers.get(name) for name in gathered}


def sine_weights(xp, t):
    """Return the weights of two taps that are joined by half a period of a cosine."""
    sine = xp.sin(t * (np.pi / 2))
    return xp.concatenate((1 - sine * sine, sine * sine), axis=-2)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("constant_grid", [False, True])
def test_lowering_of_a_mode_of_trigonometry_has_the_output_of_the_core(
    constant_grid, opset, monkeypatch
):
    """No mode of the tables uses ``sin``, which a row may use."""
    rule = Mode(lambda xp, x: xp.floor(x), (0, 1), sine_weights, pads_taps=False)
    monkeypatch.setitem(MODE_RULES, "sine", rule)
    X = X_array(2, 2)
    grid = grid_array(2, 2)
    attributes = Attributes("sine", "zeros")
    model = lower(X, grid, attributes, opset, constant_grid=constant_grid, other_op_types=["Sin"])
    Y = run(model, X) if constant_grid else run(model, X, grid)
    assert_close(Y, X, grid, attributes)


FLOATS = "one of float32, float64, float16, bfloat16"
INTEGERS = "int8, int16, int32, int64, uint8, uint16, uint32, uint64"
X_SHAPE = (1, 1, 2, 2)
NO_PIXEL = "no spatial axis of length 0, as padding_mode 'border' needs a pixel"
GRID_OF_2D = f"shape (N, D1_out, D2_out, 2), as X of shape {X_SHAPE} has 2 spatial axes"
#: A changed argument, and the argument, what it is and what is expected in the error.
MISTAKES = [
    ({"opset": 10}, ("opset", "10", "at least 11, the first opset that nodes are lowered in")),
    (
        {"mode": NO_MODE},
        ("mode", repr(NO_MODE), ANY_MODE),
    ),
    (
        {"padding_mode": NO_PADDING},
        ("padding_mode", repr(NO_PADDING), ANY_PADDING),
    ),
    (
        {"X": ("str", X_SHAPE)},
        ("mode", "'linear'", f"{COPYING_MODES}, the only mode that is defined for str X"),
    ),
    (
        {"X": ("complex64", X_SHAPE)},
        ("X", "of type complex64", f"{FLOATS}, {INTEGERS}, bool, str"),
    ),
    (
        {"X": ("float32", (1, 1))},
        ("X", "of shape (1, 1)", "shape (N, C, D1, …, Dr) with at least one spatial axis"),
    ),
    (
        {"X": ("float32", None)},
        ("X", "of unknown rank", "a rank that the model states, or that onnx can infer"),
    ),
    (
        {"X": ("float32", (1, 1, 0))},
        ("X", "of shape (1, 1, 0)", NO_PIXEL),
    ),
    (
        {"X": ("float32", ("N", 1, None, 0))},
        ("X", "of shape (N, 1, ?, 0)", NO_PIXEL),
    ),
    ({"grid": ("int64", None)}, ("grid", "of type int64", FLOATS)),
    ({"grid": ("float32", (2, None, 2))}, ("grid", "of shape (2, ?, 2)", GRID_OF_2D)),
    (
        {"grid": ("float32", (2, None, 9, 2))},
        ("grid", "of shape (2, ?, 9, 2)", f"N = 1 in axis 0, as X is of shape {X_SHAPE}"),
    ),
    ({"grid": ("float32", (1, 2, 2, 3))}, ("grid", "of shape (1, 2, 2, 3)", GRID_OF_2D)),
    (
        {"grid": ("float32", (None,) * 7)},
        ("grid", "of shape (?, ?, ?, ?, ?, ?, ?)", GRID_OF_2D),
    ),
]


@pytest.mark.parametrize(("change", "parts"), MISTAKES)
def test_lowering_of_a_wrong_grid_sample_is_refused(change, parts):
    arguments = {
        "X": ("float32", X_SHAPE),
        "grid": ("float32", None),
        "opset": 17,
        "mode": "linear",
        "padding_mode": "border",
        "align_corners": False,
    } | change
    X = Argument("X", *arguments.pop("X"))
    grid = Argument("grid", *arguments.pop("grid"))
    expressions = Expressions("sampler", arguments.pop("opset"))
    error = refusal(lower_grid_sample, expressions, X, grid, "Y", **arguments)
    assert error.where == "sampler"
    assert (error.argument, error.found, error.expected) == parts


FITTING_SHAPES = "shape (N, 2, 3) for a size of 4 numbers, or (N, 3, 4) for one of 5"
#: Type and shape of theta and size, and the argument, what it is and what is expected in the error.
AFFINE_GRID_MISTAKES = [
    (
        ("float32", None),
        ("int64", None),
        ("theta", "of unknown shape, for a size of unknown shape", FITTING_SHAPES),
    ),
    (
        ("float32", (1, 2, 3)),
        ("int64", (5,)),
        ("theta", "of shape (1, 2, 3), for a size of shape (5)", FITTING_SHAPES),
    ),
    (
        ("float32", (1, 1, 2)),
        ("int64", (3,)),
        ("theta", "of shape (1, 1, 2), for a size of shape (3)", FITTING_SHAPES),
    ),
    (
        ("float32", ("N", None, 3)),
        ("int64", (5,)),
        ("theta", "of shape (N, ?, 3), for a size of shape (5)", FITTING_SHAPES),
    ),
    (("int32", (1, 2, 3)), ("int64", (4,)), ("theta", "of type int32", FLOATS)),
    (("float32", (1, 2, 3)), ("int32", (4,)), ("size", "of type int32", "one of int64")),
]


@pytest.mark.parametrize(("theta", "size", "parts"), AFFINE_GRID_MISTAKES)
def test_lowering_of_a_wrong_affine_grid_is_refused(theta, size, parts):
    theta_value = Argument("theta", *theta)
    size_value = Argument("size", *size)
    error = refusal(
        lower_affine_grid,
        Expressions("n", 20),
        theta_value,
        size_value,
        "grid",
        align_corners=False,
    )
    assert error.where == "n"
    assert (error.argument, error.found, error.expected) == parts
