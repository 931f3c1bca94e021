"""Nodes lowered to primitives: only basic operators, and the core's answers in every runtime."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import faults
import oracle
import ort_gridsample as ogs
from conftest import CORES
from models import PRIMITIVES
from ort_gridsample import GridSampleError, spec
from ort_gridsample.core.coordinates import PADDING, Padding
from ort_gridsample.core.taps import MODES, Mode
from ort_gridsample.model.element_types import elem_type
from ort_gridsample.model.targets.primitives import (
    CHANNELS_PER_TAP,
    FEW_CHANNELS,
    LARGE,
    Value,
    as_function,
    lower_affine_grid,
    lower_grid_sample,
)
from ort_gridsample.model.targets.runtimes import ANY, RUNTIMES


@pytest.fixture(autouse=True, scope="module")
def numpy_core():
    """The lowering adds up in the NumPy core's order: types are compared with it bit for bit."""
    before = ogs.get_core()
    ogs.set_core("numpy")
    yield
    ogs.set_core(before)


OPSETS = (11, 12, 13, 16, 20, 22)
LENGTHS, OUT = (5, 4, 3, 6), (3, 4, 2, 3)
#: Of coordinates: where padding, infinities and what is not a number matter.
SPECIAL = (np.nan, np.inf, -np.inf, 1e10, -1e10, 1, -1)
CASES = list(itertools.product(spec.MODES, spec.PADDING_MODES, (False, True)))


def arrays(r: int, n: int = 1, X_type: str = "float32", grid_type: str = "float32", c: int = 3, special: bool = True):
    """A random X and grid with r spatial axes."""
    rng = np.random.default_rng(r)
    shape = (n, c, *LENGTHS[:r])
    if X_type == "str":
        X = np.array([f"pixel {i}" for i in range(int(np.prod(shape)))], object).reshape(shape)
    elif X_type == "bool":
        X = rng.random(shape) > 0.5
    elif X_type.lstrip("u").startswith("int"):
        limits = np.iinfo(X_type)
        X = rng.integers(limits.min, limits.max, shape, X_type, endpoint=True)
    else:
        X = rng.standard_normal(shape).astype(X_type)
    grid = (rng.random((n, *OUT[:r], r)) * 4 - 2).astype(grid_type)
    if special:
        with np.errstate(over="ignore"):
            grid.reshape(-1)[: len(SPECIAL)] = SPECIAL[: grid.size]
    return X, grid


def unknown(name, shape):
    """The shape with no length known."""
    return tuple(f"{name}{i}" for i in range(len(shape)))


def model_of(nodes, opset, inputs, output, functions=()):
    """A checked model of lowered nodes; inputs and output as (name, type, shape)."""
    infos = [helper.make_tensor_value_info(name, elem_type(type), shape) for name, type, shape in (*inputs, output)]
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(f.domain, 1) for f in functions]]
    graph = helper.make_graph(nodes, "lowered", infos[:-1], infos[-1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))
    onnx.checker.check_model(model, full_check=True)
    return model


def lowered(
    X,
    grid,
    mode,
    padding_mode,
    align_corners,
    opset=17,
    known=True,
    constant=False,
    X_type=None,
    grid_type=None,
    runtime=ANY,
):
    """The model of one GridSample node, lowered."""
    X_type, grid_type = X_type or X.dtype.name, grid_type or grid.dtype.name
    X_shape, grid_shape = (X.shape, grid.shape) if known else (unknown("X", X.shape), unknown("grid", grid.shape))
    nodes = lower_grid_sample(
        "a/b",
        Value("X", X_type, X_shape),
        Value("grid", grid_type, grid_shape, grid if constant else None),
        "Y",
        mode=mode,
        padding_mode=padding_mode,
        align_corners=align_corners,
        opset=opset,
        runtime=runtime,
    )
    followed = {"CumSum", "Slice"} if "lengths" in runtime.without else set()
    assert {node.op_type for node in nodes} <= PRIMITIVES | followed
    assert not any(node.domain for node in nodes)
    between = [name for node in nodes for name in (node.name, *node.output)]
    assert all(name.startswith("a/b/") for name in between if name != "Y")
    inputs = [("X", X_type, X_shape), ("grid", grid_type, grid_shape)][: 1 if constant else 2]
    return model_of(nodes, opset, inputs, ("Y", X_type, (None,) * X.ndim))


def run(model, *inputs):
    """What plain onnxruntime answers."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {info.name: x for info, x in zip(session.get_inputs(), inputs, strict=True)})[0]


def run_reference(model, *inputs):
    """What the onnx package's own evaluator answers."""
    names = [info.name for info in model.graph.input]
    return ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0]


@functools.cache
def openvino_core():
    return pytest.importorskip("openvino").Core()


def run_openvino(model, *inputs):
    """What OpenVINO answers on the CPU."""
    core = openvino_core()
    read = core.read_model(model.SerializeToString())
    compiled = core.compile_model(read, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    return compiled(list(inputs))[0]


def check(Y, expected, mode):
    assert Y.shape == expected.shape
    assert Y.dtype == expected.dtype
    np.testing.assert_allclose(Y, expected, rtol=0, atol=0 if mode == "nearest" else 1e-5)


@pytest.mark.parametrize("r", [1, 2, 3, 4])
@pytest.mark.parametrize(("mode", "padding_mode", "align_corners"), CASES)
def test_agrees_with_the_core(r, mode, padding_mode, align_corners):
    opsets = itertools.cycle(OPSETS)
    for n, known in itertools.product((1, 2), (True, False)):
        X, grid = arrays(r, n, c=3 if r % 2 else FEW_CHANNELS + 1)
        expected = ogs.grid_sample(X, grid, mode, padding_mode, align_corners)
        model = lowered(X, grid, mode, padding_mode, align_corners, next(opsets), known)
        check(run(model, X, grid), expected, mode)


#: The lengths of a large X's spatial axes, by their number: few pixels, as it takes many channels.
FLAT = {1: (29,), 2: (8, 9), 3: (4, 3, 5)}


@pytest.mark.parametrize("X_type", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("mode", "r"),
    [(mode, r) for mode, r in itertools.product(spec.MODES, FLAT) if (mode, r) != ("cubic", 3)],  # 2,048 channels
)
def test_one_row_of_zeros_stands_for_those_around_a_large_image(mode, r, align_corners, X_type):
    """It is not copied with zeros around it, and what is infinite in it does not reach what lies outside."""
    c = max(CHANNELS_PER_TAP * len(MODES[mode].offsets) ** r, LARGE // (2 * np.prod(FLAT[r])) + 1)
    rng = np.random.default_rng(r)
    X = (rng.standard_normal((2, c, *FLAT[r])) * 9).clip(0 if X_type == "uint8" else -99).astype(X_type)
    if X_type == "float32":
        X[:, 3] = np.inf
    grid = (rng.random((2, *OUT[:r], r)) * 4 - 2).astype(np.float32)
    grid.reshape(-1)[: len(SPECIAL)] = SPECIAL[: grid.size]
    model = lowered(X, grid, mode, "zeros", align_corners)
    assert not any(node.op_type == "Pad" for node in model.graph.node)
    with np.errstate(invalid="ignore"):
        expected = ogs.grid_sample(X, grid, mode, "zeros", align_corners)
    tolerance = {"float32": 1e-5, "float16": 2e-2, "uint8": 1}[X_type]
    np.testing.assert_allclose(run(model, X, grid), expected, rtol=0, atol=0 if mode == "nearest" else tolerance)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_five_axes(mode, padding_mode, align_corners, known):
    """Linear has 32 taps there, more than are gathered one by one."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((2, 3, 3, 2, 4, 2, 3)).astype("float32")
    grid = rng.uniform(-1.6, 1.6, (2, 2, 1, 3, 2, 2, 5)).astype("float32")
    expected = ogs.grid_sample(X, grid, mode, padding_mode, align_corners)
    check(run(lowered(X, grid, mode, padding_mode, align_corners, known=known), X, grid), expected, mode)


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
def test_coordinates_are_computed_in_the_grid_s_type_and_weighed_in_x_s(padding_mode, mode):
    """To the last bit, with float64 X and a float32 grid: of coordinates in float64 the weights would be others."""
    X, grid = arrays(2, 2, "float64", "float32")
    X *= 1e6
    for align_corners, constant in itertools.product((False, True), (False, True)):
        model = lowered(X, grid, mode, padding_mode, align_corners, constant=constant)
        Y = run(model, X) if constant else run(model, X, grid)
        np.testing.assert_array_equal(Y, ogs.grid_sample(X, grid, mode, padding_mode, align_corners))
        if mode != "nearest":
            finer = ogs.grid_sample(X, grid.astype("float64"), mode, padding_mode, align_corners)
            assert not np.array_equal(Y, finer)


@pytest.mark.parametrize("r", [1, 2, 3, 4])
@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_agrees_in_the_onnx_evaluator(r, mode, padding_mode):
    for known, align_corners in ((True, False), (False, True)):
        X, grid = arrays(r, 2)
        model = lowered(X, grid, mode, padding_mode, align_corners, 13 + 9 * known, known)
        with np.errstate(all="ignore"):
            Y = run_reference(model, X, grid)
        check(Y, ogs.grid_sample(X, grid, mode, padding_mode, align_corners), mode)


@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_agrees_in_openvino(mode, padding_mode):
    for r, known in ((1, False), (2, True), (3, False), (4, True)):
        X, grid = arrays(r, 2)
        if padding_mode == "reflection":  # OpenVINO's remainder is not exact: 1e10 is reflected to another pixel
            grid[np.abs(grid) == np.float32(1e10)] = 20
        model = lowered(X, grid, mode, padding_mode, r % 2 == 0, 17, known)
        check(run_openvino(model, X, grid), ogs.grid_sample(X, grid, mode, padding_mode, r % 2 == 0), mode)


@pytest.mark.parametrize("X_type", [t.name for t in spec.TYPES.values() if not t.name.startswith("complex")])
def test_every_type(X_type):
    if X_type == "bfloat16":
        pytest.importorskip("ml_dtypes")
    grid_types = itertools.cycle(("float64", "float16", "float32"))
    for mode, padding_mode in itertools.product(spec.MODES[: 1 if X_type == "str" else 3], spec.PADDING_MODES):
        X, grid = arrays(2, 2, X_type if X_type != "bfloat16" else "float32", next(grid_types))
        for opset, known in (
            ((11, False), (13, False), (22, True)) if X_type != "bfloat16" else ((13, False), (22, True))
        ):
            model = lowered(X, grid, mode, padding_mode, False, opset, known, X_type=X_type)
            if X_type == "bfloat16":  # onnxruntime takes no such array: casts around the nodes
                import ml_dtypes

                Y = run(in_float32(model, "X", "Y"), X, grid)
                rounded = X.astype(ml_dtypes.bfloat16)
                expected = ogs.grid_sample(rounded, grid, mode, padding_mode).astype("float32")
            else:
                Y, expected = run(model, X, grid), ogs.grid_sample(X, grid, mode, padding_mode)
            assert Y.dtype == expected.dtype
            np.testing.assert_array_equal(Y, expected)  # the same operations in the same order


def in_float32(model, *names):
    """The model with these bfloat16 inputs and outputs as float32."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for info in (*model.graph.input, *model.graph.output):
        if info.name in names:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            for node in nodes:
                for ends in (node.input, node.output):
                    ends[:] = [f"{end}_bfloat16" if end == info.name else end for end in ends]
    for info in model.graph.input:
        if info.name in names:
            nodes.insert(0, helper.make_node("Cast", [info.name], [f"{info.name}_bfloat16"], to=elem_type("bfloat16")))
    for info in model.graph.output:
        if info.name in names:
            nodes.append(helper.make_node("Cast", [f"{info.name}_bfloat16"], [info.name], to=elem_type("float32")))
    model.graph.node.extend(nodes)
    return model


def test_bfloat16_grid():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    X, grid = arrays(2)
    rounded = grid.astype(ml_dtypes.bfloat16)
    model = lowered(X, rounded, "linear", "zeros", False, 22, grid_type="bfloat16")
    np.testing.assert_array_equal(run(in_float32(model, "grid"), X, grid), ogs.grid_sample(X, rounded))
    constant = lowered(X, rounded, "linear", "zeros", False, 22, constant=True, grid_type="bfloat16")
    np.testing.assert_array_equal(run(constant, X), ogs.grid_sample(X, rounded))


def test_bfloat16_without_a_pixel():
    X, grid = np.ones((1, 2, 0, 4), "float32"), np.zeros((1, 3, 3, 2), "float32")
    model = lowered(X, grid, "linear", "zeros", False, 22, X_type="bfloat16")
    check(run(in_float32(model, "X", "Y"), X, grid), np.zeros((1, 2, 3, 3), "float32"), "linear")


@pytest.mark.parametrize("X_type", ["uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_constant_integers_stay_constant(X_type, mode, r):
    _, grid = arrays(r, special=False)
    for value in (np.iinfo(X_type).max, np.iinfo(X_type).max - 1, np.iinfo(X_type).min, 99):
        X = np.full((1, 3, 5, 4, 3)[: r + 2], value, X_type)
        assert (run(lowered(X, grid, mode, "border", True), X, grid) == value).all()


@pytest.mark.parametrize("X_type", ["int64", "uint64"])
@pytest.mark.parametrize("r", [1, 2, 3, 5])  # of so many axes there are taps together
def test_integers_of_64_bits_are_exact_where_all_taps_agree(X_type, r):
    high = np.iinfo(X_type).max
    X = np.broadcast_to(np.array([high - 5] * 3 + [high - 7] * 3, X_type), (1, 2, *[4] * (r - 1), 6)).copy()
    grid = np.zeros((1, *[1] * (r - 1), 4, r), np.float32)
    grid[..., 0] = 2 * np.array([0.5, 3.5, 1.5, 4.5]) / 5 - 1
    answer = run(lowered(X, grid, "linear", "border", True), X, grid)
    assert answer[0, 1].ravel().tolist() == [high - 5, high - 7, high - 5, high - 7]


@pytest.mark.parametrize(("mode", "padding_mode", "align_corners"), CASES)
def test_constant_grid_leaves_no_coordinate_arithmetic(mode, padding_mode, align_corners):
    X, grid = arrays(2, 2)
    model = lowered(X, grid, mode, padding_mode, align_corners, constant=True)
    assert {node.op_type for node in model.graph.node} <= {
        *("Add", "Constant", "Gather", "Mul", "Pad", "ReduceSum", "Reshape", "Transpose")
    }
    check(run(model, X), ogs.grid_sample(X, grid, mode, padding_mode, align_corners), mode)
    # Where the lengths of X are not known, the arithmetic stays, and the answer too.
    nodes = lower_grid_sample(
        "n",
        Value("X", "float32", (None, None, None, None)),
        Value("grid", "float32", None, grid),
        "Y",
        mode=mode,
        padding_mode=padding_mode,
        align_corners=align_corners,
        opset=17,
    )
    model = model_of(nodes, 17, [("X", "float32", (None,) * 4)], ("Y", "float32", (None,) * 4))
    check(run(model, X), ogs.grid_sample(X, grid, mode, padding_mode, align_corners), mode)


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_is_read_outside(mode, value):
    X, _ = arrays(2)
    X[..., 0, :] = X[..., -1, :] = X[..., :, 0] = X[..., :, -1] = value
    grid = np.array([[-5, 0], [5, 5], [np.inf, -np.inf], [0, 1e10], [-3, 1]], "float32").reshape(1, 1, 5, 2)
    Y = run(lowered(X, grid, mode, "zeros", False), X, grid)
    assert (Y == 0).all()


@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_axes_of_one_pixel(mode, padding_mode):
    _, grid = arrays(2)
    X = np.arange(6, dtype="float32").reshape(1, 2, 1, 3)
    for known, align_corners in itertools.product((True, False), (True, False)):
        expected = ogs.grid_sample(X, grid, mode, padding_mode, align_corners)
        check(run(lowered(X, grid, mode, padding_mode, align_corners, known=known), X, grid), expected, mode)


@pytest.mark.parametrize(
    ("X_shape", "grid_shape"),
    [
        ((0, 3, 5, 4), (0, 3, 4, 2)),
        ((2, 0, 5, 4), (2, 3, 4, 2)),
        ((2, 3, 5, 4), (2, 0, 4, 2)),
        ((2, 3, 5, 4), (2, 3, 0, 2)),
        ((2, 3, 0, 4), (2, 3, 4, 2)),
    ],
)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("mode", spec.MODES)
def test_empty_axes(X_shape, grid_shape, known, mode):
    X, grid = np.ones(X_shape, "float32"), np.zeros(grid_shape, "float32")
    for opset in (13, 20) if known else (20,):  # opset 13 has no way to reshape to a length that turns out to be 0
        check(run(lowered(X, grid, mode, "zeros", False, opset, known), X, grid), ogs.grid_sample(X, grid, mode), mode)


def test_partly_known_shapes():
    X, grid = arrays(3, 2)
    for X_shape, grid_shape in (
        ((None, 3, 5, 4, 3), (None, 3, 4, 2, 3)),
        ((2, None, 5, None, 3), (None, 3, None, 2, 3)),
        (("N", "C", "D", 4, "W"), None),
        (None, (2, None, 4, 2, None)),
    ):
        values = Value("X", "float32", X_shape), Value("grid", "float32", grid_shape)
        nodes = lower_grid_sample("n", *values, "Y", mode="cubic", padding_mode="zeros", align_corners=True, opset=17)
        inputs = [("X", "float32", (None,) * 5), ("grid", "float32", (None,) * 5)]
        model = model_of(nodes, 17, inputs, ("Y", "float32", (None,) * 5))
        check(run(model, X, grid), ogs.grid_sample(X, grid, "cubic", align_corners=True), "cubic")


def affine_model(theta, size, align_corners, opset, known, constant, type=None):
    type = type or theta.dtype.name
    theta_shape = theta.shape if known else ("N", theta.shape[1], "columns")
    nodes = lower_affine_grid(
        "n",
        Value("theta", type, theta_shape),
        Value("size", "int64", size.shape if known else None, size if constant else None),
        "grid",
        align_corners=align_corners,
        opset=opset,
    )
    assert {node.op_type for node in nodes} <= PRIMITIVES
    inputs = [("theta", type, theta_shape), ("size", "int64", size.shape)][: 1 if constant else 2]
    return model_of(nodes, opset, inputs, ("grid", type, (None,) * len(size)))


@pytest.mark.parametrize("r", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("type", ["float32", "float64", "float16"])
def test_affine_grid(r, align_corners, type):
    opsets = itertools.cycle(OPSETS)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3}[type]
    theta = np.random.default_rng(r).standard_normal((2, r, r + 1)).astype(type)
    for out, known, constant in itertools.product(((4, 7, 5), (1, 1, 6), (3, 0, 2)), (True, False), (True, False)):
        if constant and 0 in out and faults.EMPTY_CONSTANTS:
            continue
        size = np.array([2, 3, *out[:r]])
        model = affine_model(theta, size, align_corners, next(opsets), known, constant)
        inputs = (theta,) if constant else (theta, size)
        expected = ogs.affine_grid(theta, size, align_corners)
        for grid in (run(model, *inputs), run_reference(model, *inputs)):
            assert grid.dtype == expected.dtype
            assert grid.shape == expected.shape
            np.testing.assert_allclose(grid, expected, rtol=0, atol=tolerance)


def test_affine_grid_in_openvino():
    theta, size = np.random.default_rng(0).standard_normal((2, 2, 3)).astype("float32"), np.array([2, 3, 4, 5])
    for constant in (True, False):
        grid = run_openvino(affine_model(theta, size, False, 17, True, constant), theta, *[size] * (not constant))
        np.testing.assert_allclose(grid, ogs.affine_grid(theta, size), rtol=0, atol=1e-6)


def test_constant_affine_grid_is_a_constant():
    theta, size = np.eye(2, 3, dtype="float32")[None], np.array([1, 1, 2, 2])
    nodes = lower_affine_grid(
        "n",
        Value("theta", "float32", None, theta),
        Value("size", "int64", None, size),
        "grid",
        align_corners=True,
        opset=20,
    )
    (node,) = nodes
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(node.attribute[0].t), ogs.affine_grid(theta, size, True))


#: All that nodes of floats are made of where shapes are known: what every runtime has.
FEWEST = {
    *("Abs", "Add", "Cast", "Clip", "Constant", "Equal", "Floor", "Gather", "Max", "Min", "Mod", "Mul", "Pad"),
    *("ReduceSum", "Reshape", "Round", "Split", "Sub", "Transpose", "Where"),
}


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("r", [1, 2, 3])
def test_known_shapes_leave_neither_logic_nor_arithmetic_of_shapes(r, opset):
    for (mode, padding_mode, align_corners), c in itertools.product(CASES, (3, FEW_CHANNELS + 1)):
        X, grid = arrays(r, 2, c=c)
        nodes = lowered(X, grid, mode, padding_mode, align_corners, opset).graph.node
        assert {node.op_type for node in nodes} <= FEWEST
        assert not any(a.name == "allowzero" for node in nodes for a in node.attribute)
        assert sum(node.op_type in ("Equal", "Where") for node in nodes) <= 4
        read = {name for node in nodes for name in node.input}
        for node in nodes:
            if node.op_type == "Constant" and -1 in (numbers := onnx.numpy_helper.to_array(node.attribute[0].t)):
                assert numbers.dtype != "int64"  # no shape that is worked out when it runs
            assert node.output[0] in read or node.output[0] == "Y"


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
def test_a_runtime_s_own_form(padding_mode, name, r):
    """It has nothing that the runtime lacks, and the same answers."""
    runtime = RUNTIMES[name]
    assert runtime.why
    for mode, align_corners, known in itertools.product(spec.MODES, (False, True), (False, True)):
        X, grid = arrays(r, 2, c=FEW_CHANNELS + 1 if r == 2 else 3)
        if padding_mode == "reflection" and "Mod" in runtime.without:  # so far out it is not exact
            grid[np.abs(grid) == np.float32(1e10)] = 20
        model = lowered(X, grid, mode, padding_mode, align_corners, 20, known, runtime=runtime)
        said = {node.op_type for node in model.graph.node} | {
            a.name for node in model.graph.node for a in node.attribute
        }
        assert not said & runtime.without
        assert max(len(node.output) for node in model.graph.node) <= runtime.parts
        assert not known or sum(node.op_type == "Gather" for node in model.graph.node) <= runtime.gathers
        types = {a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute}
        assert not types & {elem_type(type) for type in runtime.without & {"int64"}}
        check(run(model, X, grid), ogs.grid_sample(X, grid, mode, padding_mode, align_corners), mode)


@pytest.mark.parametrize("c", [3, FEW_CHANNELS + 1])
@pytest.mark.parametrize("name", RUNTIMES)
def test_strings_in_a_runtime_s_own_form(name, c):
    X, grid = arrays(2, 2, "str", c=c)
    model = lowered(X, grid, "nearest", "border", False, 20, known=False, X_type="str", runtime=RUNTIMES[name])
    assert run(model, X, grid).tolist() == ogs.grid_sample(X, grid, "nearest", "border").tolist()


def test_a_coordinate_is_answered_though_twice_it_would_be_infinite():
    """5 · 1e38 is no float32, half of it is: reflected it lies somewhere, for everyone at the same place."""
    X, g = np.arange(5, dtype="float32").reshape(1, 1, 5), np.array([1e38, -1.2e38, 1.1e38], "float32")
    reflected = [
        oracle.reflect(float((each + np.float32(1)) * np.float32(2.5) - np.float32(0.5)), 5, False) for each in g
    ]
    expected = [[[round(oracle.clip(x, 5)) for x in reflected]]]
    grid = g.reshape(1, 3, 1)
    assert run(lowered(X, grid, "nearest", "reflection", False), X, grid).tolist() == expected
    for core in CORES:
        ogs.set_core(core)
        assert ogs.grid_sample(X, grid, "nearest", "reflection").tolist() == expected
    ogs.set_core("numpy")


@pytest.mark.parametrize("r", [1, 2])
def test_a_mode_and_a_padding_are_stated_once(r, monkeypatch):
    """A new row of the tables is all that the NumPy core and the lowering need."""

    def wrap(xp, x, axis):
        return xp.fmod(xp.fmod(x, axis.length) + axis.length, axis.length)

    def upward(xp, t):
        return xp.concatenate((1 - t, t * 0.5, t * 0.5), axis=-2)

    monkeypatch.setitem(MODES, "upward", Mode(lambda xp, x: xp.floor(x), (0, 1, 2), upward, pads_taps=False))
    monkeypatch.setitem(PADDING, "wrap", Padding(wrap))
    monkeypatch.setattr(spec, "MODES", (*spec.MODES, "upward"))
    monkeypatch.setattr(spec, "PADDING_MODES", (*spec.PADDING_MODES, "wrap"))
    X, grid = arrays(r, 2, special=False)
    for mode, padding_mode in (("upward", "border"), ("cubic", "wrap"), ("upward", "reflection")):
        Y = ogs.grid_sample(X, grid, mode, padding_mode)
        np.testing.assert_array_equal(run(lowered(X, grid, mode, padding_mode, False), X, grid), Y)
        assert not np.array_equal(Y, ogs.grid_sample(X, grid, "linear", "border"))


def test_lowerings_with_the_same_arguments_share_a_function():
    X, grid = arrays(2)
    functions = []
    for _ in range(2):
        nodes = lower_grid_sample(
            "GridSample",
            Value("X", "float32", X.shape),
            Value("grid", "float32", grid.shape),
            "Y",
            mode="linear",
            padding_mode="border",
            align_corners=True,
            opset=17,
        )
        functions.append(as_function(nodes, ["X", "grid"], "Y", domain="local", name="GridSample_linear", opset=17))
    assert functions[0] == functions[1]
    calls = [
        helper.make_node("GridSample_linear", ["X", "grid"], ["middle"], "first", domain="local"),
        helper.make_node("GridSample_linear", ["X", "grid"], ["again"], "second", domain="local"),
        helper.make_node("Add", ["middle", "again"], ["Y"]),
    ]
    inputs = [("X", "float32", X.shape), ("grid", "float32", grid.shape)]
    model = model_of(calls, 17, inputs, ("Y", "float32", (None,) * 4), functions[:1])
    expected = 2 * ogs.grid_sample(X, grid, "linear", "border", True)
    for runtime in (run, run_reference):
        check(runtime(model, X, grid), expected, "linear")


def test_lowering_is_small():
    """As few nodes as the taps need, whatever the rank: 256 taps of 4-D cubic take 16 gathers."""
    X, grid = arrays(4, c=FEW_CHANNELS + 1)
    nodes = lowered(X, grid, "cubic", "zeros", False).graph.node
    assert sum(node.op_type == "Gather" for node in nodes) == 16
    assert sum(node.op_type != "Constant" for node in nodes) < 115
    constants = [node.attribute[0].t.SerializeToString() for node in nodes if node.op_type == "Constant"]
    assert len(constants) == len(set(constants))


#: Nodes, constants apart, of 2-D lowerings whose lengths are known, and of those whose lengths are not.
NODES = {
    "zeros": {"nearest": (26, 66), "linear": (48, 85), "cubic": (103, 128)},
    "border": {"nearest": (22, 61), "linear": (46, 82), "cubic": (101, 125)},
    "reflection": {"nearest": (32, 74), "linear": (56, 95), "cubic": (110, 137)},
}


@pytest.mark.parametrize("padding_mode", NODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_lowering_stays_small(mode, padding_mode):
    X, grid = arrays(2)
    counts = tuple(
        sum(node.op_type != "Constant" for node in lowered(X, grid, mode, padding_mode, False, known=known).graph.node)
        for known in (True, False)
    )
    assert all(count <= most for count, most in zip(counts, NODES[padding_mode][mode], strict=True)), counts


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"opset": 10}, "opset"),
        ({"mode": "area"}, "mode"),
        ({"padding_mode": "wrap"}, "padding_mode"),
        ({"X": Value("X", "str", (1, 1, 2, 2))}, "mode"),
        ({"X": Value("X", "complex64", (1, 1, 2, 2))}, "X"),
        ({"X": Value("X", "float32", (1, 1))}, "X"),
        ({"X": Value("X", "float32", None), "grid": Value("grid", "float32", None)}, "X"),
        ({"X": Value("X", "float32", (1, 1, 0, None)), "padding_mode": "border"}, "X"),
        ({"X": Value("X", "float32", None)}, "X"),
        ({"grid": Value("grid", "int64", None)}, "grid"),
        ({"grid": Value("grid", "float32", (1, 2, 2, 3))}, "grid"),
        ({"grid": Value("grid", "float32", (2, None, None, 2))}, "grid"),
        ({"grid": Value("grid", "float32", (1, 2, 2))}, "grid"),
        ({"grid": Value("grid", "float32", (None,) * 7)}, "grid"),
    ],
)
def test_what_cannot_be_lowered_is_an_error(change, argument):
    arguments = {
        "X": Value("X", "float32", (1, 1, 2, 2)),
        "grid": Value("grid", "float32", None),
        "mode": "linear",
        "padding_mode": "zeros",
        "align_corners": False,
        "opset": 17,
        **change,
    }
    with pytest.raises(GridSampleError) as caught:
        lower_grid_sample("sampler", arguments.pop("X"), arguments.pop("grid"), "Y", **arguments)
    assert (caught.value.where, caught.value.argument) == ("sampler", argument)


def test_two_unknown_ranks_are_said():
    values = Value("X", "float32", None), Value("grid", "float32", None)
    with pytest.raises(GridSampleError, match="n: X is of unknown rank, expected a known rank to be lowered"):
        lower_grid_sample("n", *values, "Y", mode="linear", padding_mode="zeros", align_corners=True, opset=17)


@pytest.mark.parametrize(
    ("theta", "size", "argument"),
    [
        (("float32", None), ("int64", None), "theta"),
        (("float32", (1, 2, 3)), ("int64", (5,)), "theta"),
        (("float32", (1, 1, 2)), ("int64", (3,)), "theta"),
        (("int32", (1, 2, 3)), ("int64", (4,)), "theta"),
        (("float32", (1, 2, 3)), ("int32", (4,)), "size"),
    ],
)
def test_what_affine_grid_cannot_lower_is_an_error(theta, size, argument):
    with pytest.raises(GridSampleError) as caught:
        lower_affine_grid("n", Value("theta", *theta), Value("size", *size), "grid", align_corners=False, opset=20)
    assert caught.value.argument == argument
