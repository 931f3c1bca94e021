"""Nodes lowered to primitives: only basic operators, and the core's answers in every runtime."""

import itertools
from collections import Counter
from dataclasses import asdict, astuple

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from conftest import CORES
from ort_gridsample import spec
from ort_gridsample.graph.element_types import elem_type
from ort_gridsample.reference.coordinates import PADDING, Padding
from ort_gridsample.reference.taps import MODES, Mode
from ort_gridsample.rewriting.targets import primitives
from ort_gridsample.rewriting.targets.expressions import Expressions, _round_to_float32
from ort_gridsample.rewriting.targets.primitives import (
    MAX_FEW_CHANNELS,
    Value,
    lower_affine_grid,
    lower_grid_sample,
)
from ort_gridsample.rewriting.targets.runtimes import ANY, RUNTIMES
from support import faults, oracle, paths
from support.cases import ATTRIBUTES, Attributes, image
from support.compare import about, assert_identical, refusal, type_name
from support.models import PRIMITIVES, affine_grid_model, grid_sample_model, make_model

#: The lowering adds up in the NumPy core's order: types are compared with it bit for bit.
pytestmark = pytest.mark.usefixtures("numpy_core")

OPSETS = (11, 12, 13, 16, 20, 22)
LENGTHS, OUT = (9, 4, 3, 6, 2), (3, 4, 2, 3, 2)
#: Of coordinates: where padding, infinities and what is not a number matter.
SPECIAL = (np.nan, np.inf, -np.inf, 1e10, -1e10, 1, -1)
LINEAR = Attributes("linear", "zeros", False)
#: All that nodes of floats are made of where shapes are known: what every runtime has.
FEWEST = PRIMITIVES - {"Concat", "Div", "Expand", "Less", "Range", "Shape"}
#: The lengths of a large X's spatial axes, by their number: few pixels, as it takes many channels.
FLAT = {1: (29,), 2: (8, 9), 3: (4, 3, 5)}
#: What the nodes for a runtime are without.
WITHOUT = {
    **{"iree": {"allowzero", "Range"}, "tvm": {"allowzero", "Range"}, "onnx2torch": {"allowzero"}},
    **{"mnn": {"Mod", "Round"}, "onnx2tf": {"Mod"}, "onnxconverter-common": set(), "rknn": set()},
    "onnxruntime-webgpu": {"Max", "Min", "Mod", "Round", elem_type("int64")},
}


def positions(r, n=1, grid_type="float32"):
    """A random grid with r spatial axes, and special coordinates at its beginning."""
    grid = np.random.default_rng(r).uniform(-2, 2, (n, *OUT[:r], r))
    grid.reshape(-1)[: len(SPECIAL)] = SPECIAL[: grid.size]
    with np.errstate(over="ignore"):
        return grid.astype(grid_type)


def arrays(r, n=1, c=3):
    """A random X and grid, both of float32, with r spatial axes."""
    return np.random.default_rng(r).standard_normal((n, c, *LENGTHS[:r]), "float32"), positions(
        r, n
    )


def lowered(
    X, grid, attributes, opset=17, known=True, constant=False, runtime=ANY, shapes=None, more=()
):
    """The model of one GridSample node, lowered, also to ``more``; ``shapes``: what is known of those of X and grid."""
    both = {"X": X, "grid": grid}
    shapes = shapes or [
        x.shape if known else tuple(f"{n}{i}" for i in range(x.ndim)) for n, x in both.items()
    ]
    kinds = zip(both.items(), shapes, strict=True)
    values = [
        Value(n, type_name(x.dtype), shape, x if constant and x is grid else None)
        for (n, x), shape in kinds
    ]
    nodes = lower_grid_sample(
        Expressions("a/b", opset, runtime), *values, "Y", **asdict(attributes)
    )
    followed = {"CumSum", "Slice"} if "lengths" in runtime.without else set()
    assert {node.op_type for node in nodes} <= PRIMITIVES.union(followed, more)
    assert not any(node.domain for node in nodes)
    assert all(
        name.startswith("a/b/")
        for node in nodes
        for name in (node.name, *node.output)
        if name != "Y"
    )
    inputs = {
        v.name: (v.type, v.shape or [None] * both[v.name].ndim)
        for v in values
        if v.constant is None
    }
    return make_model(nodes, inputs, {"Y": (values[0].type, [None] * X.ndim)}, opset)


def run(model, *inputs):
    """What plain onnxruntime answers, in the first input's type."""
    return paths.run(paths.open_native(model), inputs[0].dtype, *inputs)[0]


def run_reference(model, *inputs):
    feeds = {value.name: x for value, x in zip(model.graph.input, inputs, strict=True)}
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)[0]


def check(Y, X, grid, attributes, tolerance=1e-5):
    with np.errstate(invalid="ignore"):
        expected = ogs.grid_sample(X, grid, *astuple(attributes))
    assert (Y.shape, Y.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(
        Y, expected, rtol=0, atol=0 if attributes.mode == "nearest" else tolerance
    )


def assert_no_arithmetic_of_shapes(nodes):
    """Nor logic, nor anything that nobody reads."""
    assert {node.op_type for node in nodes} <= FEWEST
    assert not any(a.name == "allowzero" for node in nodes for a in node.attribute)
    assert sum(node.op_type in ("Equal", "Where") for node in nodes) <= 4
    read = {name for node in nodes for name in node.input}
    for node in nodes:
        if node.op_type == "Constant" and -1 in (
            numbers := numpy_helper.to_array(node.attribute[0].t)
        ):
            assert numbers.dtype != "int64"  # no shape that is worked out when it runs
        assert set(node.output) <= {*read, "Y"}


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_agrees_with_the_core(attributes):
    """In onnxruntime and in onnx's evaluator; batches, channels, opsets and what is known of shapes take turns."""
    # Linear has 32 taps in five axes, more than are gathered one by one.
    at = ATTRIBUTES.index(attributes)
    for r in (1, 2, 3, 4, 5) if attributes.mode != "cubic" else (1, 2, 3, 4):
        n, few, known = 1 + (at // 2 + r // 2) % 2, (at // 2 % 3 + r) % 2, (at + r) % 2 == 0
        X, grid = arrays(r, n, 3 if few else MAX_FEW_CHANNELS + 1)
        opset = OPSETS[(at // 2 + r) % len(OPSETS)]
        with about(f"{r} axes, {n} batches, opset {opset}, {few=}, {known=}"):
            model = lowered(X, grid, attributes, opset, known)
            if known:
                assert_no_arithmetic_of_shapes(model.graph.node)
            check(run(model, X, grid), X, grid, attributes)
            check(run_reference(model, X, grid), X, grid, attributes)


@pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_agrees_in_openvino(mode, padding_mode):
    core = pytest.importorskip("openvino", reason="OpenVINO is not installed").Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    for r, known in ((1, False), (2, True), (3, False), (4, True)):
        X, grid = arrays(r, 2)
        if (
            padding_mode == "reflection"
        ):  # OpenVINO's remainder is not exact: 1e10 is reflected to another pixel
            grid[np.abs(grid) == np.float32(1e10)] = 20
        attributes = Attributes(mode, padding_mode, r % 2 == 0)
        model = core.read_model(lowered(X, grid, attributes, 17, known).SerializeToString())
        check(core.compile_model(model, "CPU", settings)([X, grid])[0], X, grid, attributes)


@pytest.mark.parametrize("mode", spec.MODES)
def test_one_row_of_zeros_stands_for_those_around_a_large_image(mode):
    """It is not copied with zeros around it, and what is infinite in it does not reach what lies outside."""
    for r in FLAT if mode != "cubic" else (1, 2):  # 2,048 channels
        least = primitives.MIN_LARGE_CHANNELS_PER_TAP * len(MODES[mode].offsets) ** r
        c = max(least, primitives.MIN_LARGE_VALUES // (2 * np.prod(FLAT[r])) + 1)
        X, grid = (
            np.random.default_rng(r).standard_normal((2, c, *FLAT[r]), "float32") * 9,
            positions(r, 2),
        )
        X[:, 3] = np.inf
        for X_type, align_corners, tolerance in (
            *(("float32", r % 2 == 0, 1e-5), ("float32", r % 2 == 1, 1e-5)),
            ("float16", True, 2e-2) if r == 2 else ("uint8", False, 1),
        ):
            attributes = Attributes(mode, "zeros", align_corners)
            typed = X.astype(X_type) if X_type != "uint8" else X.clip(0, 99).astype(X_type)
            model = lowered(typed, grid, attributes)
            assert not any(node.op_type == "Pad" for node in model.graph.node)
            with about(f"{r} axes, {X_type}, {align_corners=}"):
                check(run(model, typed, grid), typed, grid, attributes, tolerance)
        for fewer in (X[:, : least - 1], X[:1, :, :1]):  # so that it is no longer large
            model = lowered(fewer, grid[: len(fewer)], attributes)
            assert sum(node.op_type == "Pad" for node in model.graph.node) == 1


@pytest.mark.parametrize("mode", spec.MODES)
def test_coordinates_are_computed_in_the_grid_s_type_and_weighed_in_x_s(mode):
    """To the last bit, with float64 X and a float32 grid: of coordinates in float64 the weights would be others."""
    X, grid = np.random.default_rng(2).standard_normal((2, 3, *LENGTHS[:2])) * 1e6, positions(2, 2)
    for padding_mode, constant in itertools.product(spec.PADDING_MODES, (False, True)):
        attributes = Attributes(mode, padding_mode, constant == (padding_mode == "border"))
        model = lowered(X, grid, attributes, constant=constant)
        Y = run(model, *(X, grid)[: len(model.graph.input)])
        with about(attributes):
            assert_identical(Y, ogs.grid_sample(X, grid, *astuple(attributes)))
            finer = ogs.grid_sample(X, grid.astype("float64"), *astuple(attributes))
            assert mode == "nearest" or not np.array_equal(Y, finer)


@pytest.mark.parametrize(
    "X_type", [t.name for t in spec.TYPES.values() if not t.name.startswith("complex")]
)
def test_every_type(X_type):
    """The same operations in the same order: to the last bit."""
    turn = list(spec.TYPES).index(X_type)
    X = image(X_type, (2, 3, *LENGTHS[:2]))
    for i, mode in enumerate(spec.MODES if X_type != "str" else ["nearest"] * 3):
        attributes = Attributes(mode, spec.PADDING_MODES[(i + turn) % 3], False)
        grid = positions(2, 2, spec.FLOATS[(i + turn) % len(spec.FLOATS)])
        in_float = "bfloat16" in (X_type, grid.dtype.name)
        opset, known = ((13 if in_float else 11, False), (13, False), (22, True))[
            (i + turn // 3) % 3
        ]
        with about(f"{attributes}, {grid.dtype}, opset {opset}"):
            Y = run(lowered(X, grid, attributes, opset, known), X, grid)
            assert_identical(Y, ogs.grid_sample(X, grid, *astuple(attributes)))


def test_bfloat16():
    """Of a constant grid, and of an X without a pixel."""
    X, grid = arrays(2)
    grid = grid.astype(ml_dtypes.bfloat16)
    assert_identical(run(lowered(X, grid, LINEAR, 22, constant=True), X), ogs.grid_sample(X, grid))
    X, grid = np.ones((1, 2, 0, 4), ml_dtypes.bfloat16), np.zeros((1, 3, 3, 2), "float32")
    assert_identical(
        run(lowered(X, grid, LINEAR, 22), X, grid), np.zeros((1, 2, 3, 3), ml_dtypes.bfloat16)
    )


@pytest.mark.parametrize("X_type", ["int64", "uint64"])
def test_integers_of_64_bits_are_exact_where_all_taps_agree(X_type):
    for r in (1, 2, 3, 5):  # of so many axes there are taps together
        high = np.iinfo(X_type).max
        X = np.broadcast_to(
            np.array([high - 5] * 3 + [high - 7] * 3, X_type), (1, 2, *[4] * (r - 1), 6)
        ).copy()
        grid = np.zeros((1, *[1] * (r - 1), 4, r), np.float32)
        grid[..., 0] = 2 * np.array([0.5, 3.5, 1.5, 4.5]) / 5 - 1
        answer = run(lowered(X, grid, Attributes("linear", "border", True)), X, grid)
        assert answer[0, 1].ravel().tolist() == [high - 5, high - 7, high - 5, high - 7], r


@pytest.mark.parametrize("mode", spec.MODES)
def test_a_large_constant_grid_makes_no_larger_model(mode):
    X, grid = (
        arrays(2, 2)[0],
        np.random.default_rng(0).uniform(-1, 1, (2, 300, 300, 2)).astype(np.float32),
    )
    model = grid_sample_model("float32", "float32", 2, [Attributes(mode)])
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(grid, "grid"))
    there = ogs.patch_model(model, target="primitives")
    assert there.ByteSize() < 1.05 * model.ByteSize()
    check(run(there, X), X, grid, Attributes(mode))


def test_a_large_grid_of_constants_is_computed_where_it_runs():
    model = affine_grid_model("float32", 2, False)
    for name, value in (
        ("theta", np.ones((1, 2, 3), np.float32)),
        ("size", np.array([1, 1, 512, 512])),
    ):
        model.graph.input.pop()
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    assert ogs.patch_model(model, target="primitives").ByteSize() < 1 << 14


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_constant_grid_leaves_no_coordinate_arithmetic(attributes):
    X, grid = arrays(2, 2)
    model = lowered(X, grid, attributes, constant=True)
    sums = {"Add", "Constant", "Gather", "Mul", "Pad", "ReduceSum", "Reshape", "Transpose"}
    assert {node.op_type for node in model.graph.node} <= sums
    check(run(model, X), X, grid, attributes)
    # Where the lengths of X are not known, the arithmetic stays, and the answer too.
    check(
        run(lowered(X, grid, attributes, constant=True, shapes=([None] * 4, None)), X),
        X,
        grid,
        attributes,
    )


@pytest.mark.parametrize("mode", spec.MODES)
def test_nothing_is_read_outside(mode):
    X, _ = arrays(2)
    grid = np.array([[-5, 0], [5, 5], [np.inf, -np.inf], [0, 1e10], [-3, 1]], "float32").reshape(
        1, 1, 5, 2
    )
    for value in (np.nan, np.inf):
        X[..., 0, :] = X[..., -1, :] = X[..., :, 0] = X[..., :, -1] = value
        assert (run(lowered(X, grid, Attributes(mode, "zeros", False)), X, grid) == 0).all()


@pytest.mark.parametrize("mode", spec.MODES)
def test_axes_of_one_pixel_or_none(mode):
    X, grid = np.arange(6, dtype="float32").reshape(1, 2, 1, 3), positions(2)
    for padding_mode, known in itertools.product(spec.PADDING_MODES, (True, False)):
        for align_corners in (True, False) if padding_mode == "reflection" else (known,):
            attributes = Attributes(mode, padding_mode, align_corners)
            with about(f"{attributes}, {known=}"):
                check(run(lowered(X, grid, attributes, known=known), X, grid), X, grid, attributes)
    attributes = Attributes(mode, "zeros", False)
    shapes = [((0, 3, 5, 4), (3, 4)), ((2, 0, 5, 4), (3, 4)), ((2, 3, 0, 4), (3, 4))]
    shapes += [((2, 3, 5, 4), (0, 4)), ((2, 3, 5, 4), (3, 0))]
    # Opset 13 has no way to reshape to a length that turns out to be 0.
    for (X_shape, out), (opset, known) in itertools.product(shapes, ((13, True), (20, False))):
        X, grid = np.ones(X_shape, "float32"), np.zeros((X_shape[0], *out, 2), "float32")
        with about(f"{X_shape}, {out}, {known=}"):
            model = lowered(X, grid, attributes, opset, known)
            assert not known or {"Gather", "Reshape"}.isdisjoint(
                node.op_type for node in model.graph.node
            )
            check(run(model, X, grid), X, grid, attributes)


def test_partly_known_shapes():
    X, grid = arrays(3, 2)
    attributes = Attributes("cubic", "zeros", True)
    for shapes in (
        ((None, 3, LENGTHS[0], 4, 3), (None, 3, 4, 2, 3)),
        ((2, None, LENGTHS[0], None, 3), (None, 3, None, 2, 3)),
        (("N", "C", "D", 4, "W"), None),
        (None, (2, None, 4, 2, None)),
    ):
        with about(shapes):
            check(run(lowered(X, grid, attributes, shapes=shapes), X, grid), X, grid, attributes)


@pytest.mark.parametrize("r", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid(r, align_corners):
    """Opsets, and what is known, take turns."""
    cases = itertools.product(((4, 7, 5), (1, 1, 6), (3, 0, 2)), ("float32", "float64", "float16"))
    for i, (out, type) in enumerate(cases):
        theta = np.random.default_rng(r).standard_normal((2, r, r + 1)).astype(type)
        size, opset, known, constant = (
            np.array([2, 3, *out[:r]]),
            OPSETS[(i + r) % 6],
            i % 2 == 0,
            i // 2 % 2 == 0,
        )
        if constant and 0 in out and faults.EMPTY_CONSTANTS:
            continue
        known_size = Value(
            "size", "int64", size.shape if known else None, size if constant else None
        )
        values = Value("theta", type, theta.shape if known else ("N", r, "columns")), known_size
        nodes = lower_affine_grid(
            Expressions("n", opset), *values, "grid", align_corners=align_corners
        )
        assert {node.op_type for node in nodes} <= PRIMITIVES
        fed = {"theta": (type, values[0].shape)} | (
            {} if constant else {"size": ("int64", size.shape)}
        )
        model = make_model(nodes, fed, {"grid": (type, [None] * (r + 2))}, opset)
        inputs = (theta,) if constant else (theta, size)
        expected = ogs.affine_grid(theta, size, align_corners)
        for grid in (run(model, *inputs), run_reference(model, *inputs)):
            assert (grid.dtype, grid.shape) == (expected.dtype, expected.shape)
            tolerance = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3}[type]
            np.testing.assert_allclose(
                grid, expected, 0, tolerance, err_msg=f"{out} {type} {known=} {constant=}"
            )


def readers_of_lengths(nodes):
    """The operators that read the shapes of X and grid, or parts of them."""
    lengths, readers = set(), set()
    for node in nodes:
        read = node.input[:1] if node.op_type == "Gather" else node.input
        if node.op_type == "Shape" or (
            node.op_type in ("Slice", "Gather", "Concat") and lengths.intersection(read)
        ):
            lengths.update(node.output)
        elif lengths.intersection(node.input):
            readers.add(node.op_type)
    return readers


@pytest.mark.parametrize("r", [1, 2, 3])
@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_s_own_form(name, r):
    """It has nothing that the runtime lacks, and the same answers; alignments, and known shapes, take turns."""
    runtime, without = RUNTIMES[name], WITHOUT[name]
    cases = [
        *enumerate(itertools.product(spec.MODES, spec.PADDING_MODES))
    ]  # each mode with one padding of three axes
    for i, (mode, padding_mode) in cases[:: 4 if r == 3 else 1]:
        X, grid = arrays(r, 2, MAX_FEW_CHANNELS + 1 if r == 2 else 3)
        if padding_mode == "reflection" and "Mod" in without:  # so far out it is not exact
            grid[np.abs(grid) == np.float32(1e10)] = 20
        attributes, known = Attributes(mode, padding_mode, (i // 3 + r) % 2 == 0), (i + r) % 2 == 0
        nodes = (model := lowered(X, grid, attributes, 20, known, runtime=runtime)).graph.node
        with about(f"{attributes}, {known=}"):
            said = {node.op_type for node in nodes} | {
                a.name for node in nodes for a in node.attribute
            }
            said |= {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute}
            assert not said & without
            assert max(len(node.output) for node in nodes) <= (
                8 if name == "onnxruntime-webgpu" else 16
            )
            calculated = readers_of_lengths(nodes) - {"Reshape", "Expand", "Cast"}
            assert known or bool(calculated) == (name not in ("iree", "tvm"))
            assert not known or sum(node.op_type == "Gather" for node in nodes) <= (
                1 if name == "rknn" else 16
            )
            check(run(model, X, grid), X, grid, attributes)


def test_rounding_to_float32_in_float64_is_that_of_a_cast():
    """At ties to even, and just below a power of two; beyond float32 it is NaN, which padding treats as infinity."""
    generator = np.random.default_rng(0)
    scale = 2.0 ** generator.integers(-60, 90, 2000)
    ties = (2**24 + 2 * generator.integers(0, 2**23, 2000) + 1) * scale
    below = scale * (1 - generator.integers(0, 2**30, 2000) * 2.0**-53)
    finite = np.concatenate(
        [ties, -ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), below, [0, 3.4e38]]
    )
    e = Expressions("n", 17, RUNTIMES["onnxconverter-common"])
    model = make_model(
        e.finish(_round_to_float32(e, e.input("x", "float64")), "Y"), {"x": ("float64", [None])},
        {"Y": ("float64", [None])}, 17,
    )  # fmt: skip
    np.testing.assert_array_equal(run(model, finite), finite.astype(np.float32).astype(np.float64))
    assert np.isnan(run(model, np.array([np.inf, -np.inf, np.nan, 3.5e38]))).all()


def test_form_for_float16_conversion_has_float32_for_pixels_and_weights_alone():
    X, grid = arrays(2, 2)
    for attributes in ATTRIBUTES:
        nodes = lowered(X, grid, attributes, runtime=RUNTIMES["onnxconverter-common"]).graph.node
        constants = [node.attribute[0].t for node in nodes if node.op_type == "Constant"]
        assert TensorProto.FLOAT not in {tensor.data_type for tensor in constants}, attributes
        made = {
            node.output[0]: node
            for node in nodes
            if node.op_type == "Cast" and node.attribute[0].i == 1
        }
        assert {node.op_type for node in nodes if made.keys() & set(node.input)} <= {"Mul"}, (
            attributes
        )


def test_what_several_read_is_cast_for_each_but_for_pixels():
    X, grid = arrays(2, 2)
    for attributes in ATTRIBUTES:
        model = lowered(X, grid, attributes, runtime=RUNTIMES["onnxconverter-common"])
        graph = shape_inference.infer_shapes(model).graph
        types = {each.name: each.type.tensor_type.elem_type for each in graph.value_info}
        read = Counter(n for node in graph.node for n in node.input if node.op_type != "Gather")
        made = {
            name: node.op_type
            for node in graph.node
            for name in node.output
            if types.get(name) == TensorProto.FLOAT
        }
        assert max(read[name] for name in made) == 1, attributes
        assert "Cast" not in {
            made.get(node.input[0]) for node in graph.node if node.op_type == "Gather"
        }, attributes


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("length", [7, 9_000_001])
def test_ties_in_a_runtime_s_own_form(name, length):
    """What lies on one, or a rounding beside it, falls as in the function, also where a float has no fractions."""
    X, far = np.arange(length, dtype="float32").reshape(1, 1, -1), 3 if length < 10 else 1
    ties = np.random.default_rng(0).integers(-far * length, far * length, 300) + 0.5
    for padding_mode, align_corners in itertools.product(spec.PADDING_MODES, (False, True)):
        grid = (
            ties * 2 / (length - 1) - 1 if align_corners else (2 * ties + 1) / length - 1
        ).astype("float32")
        grid = np.concatenate([grid, *(np.nextafter(grid, np.float32(each)) for each in (-9, 9))])
        grid = np.concatenate([grid, np.nextafter(grid, np.float32(0))]).reshape(1, -1, 1)
        model = lowered(
            X, grid, Attributes("nearest", padding_mode, align_corners), runtime=RUNTIMES[name]
        )
        expected = ogs.grid_sample(X, grid, "nearest", padding_mode, align_corners)
        np.testing.assert_array_equal(
            run(model, X, grid), expected, f"{padding_mode} {align_corners}"
        )


def test_strings_in_a_runtime_s_own_form():
    attributes, grid = Attributes("nearest", "border", False), positions(2, 2)
    for name, c in itertools.product(RUNTIMES, (3, MAX_FEW_CHANNELS + 1)):
        X = image("str", (2, c, *LENGTHS[:2]))
        answer = run(lowered(X, grid, attributes, 20, known=False, runtime=RUNTIMES[name]), X, grid)
        assert answer.tolist() == ogs.grid_sample(X, grid, *astuple(attributes)).tolist(), (name, c)


def test_a_coordinate_is_answered_though_twice_it_would_be_infinite():
    """5 · 1e38 is no float32, half of it is: reflected it lies somewhere, for everyone at the same place."""
    X, g = (
        np.arange(5, dtype="float32").reshape(1, 1, 5),
        np.array([1e38, -1.2e38, 1.1e38], "float32"),
    )
    pixels = [float((each + np.float32(1)) * np.float32(2.5) - np.float32(0.5)) for each in g]
    expected = [[[round(oracle.clip(oracle.reflect(x, 5, False), 5)) for x in pixels]]]
    grid = g.reshape(1, 3, 1)
    assert (
        run(lowered(X, grid, Attributes("nearest", "reflection", False)), X, grid).tolist()
        == expected
    )
    for core in CORES:
        ogs.set_core(core)
        assert ogs.grid_sample(X, grid, "nearest", "reflection").tolist() == expected


@pytest.mark.parametrize(("r", "opset"), [(1, 17), (2, 11), (2, 17)])
def test_a_mode_and_a_padding_are_stated_once(r, opset, monkeypatch):
    """A new row of the tables is all that the NumPy core and the lowering need, also with trigonometry in it."""
    taps = tuple(range(-2, 4))

    def wrap(xp, x, axis):
        return xp.fmod(xp.fmod(x, axis.length) + axis.length, axis.length)

    def upward(xp, t):
        return xp.concatenate((1 - t, t * 0.5, t * 0.5), axis=-2)

    def lanczos(xp, t):  # a window of six taps, whose weights are divided by their sum
        d = t - np.array(taps, t.dtype)[:, None]
        x = np.pi * xp.where(xp.equal(d, 0), 1e-3, d)
        weight = 3 * xp.sin(x) * xp.sin(x / 3) / (x * x)
        return weight / xp.sum(weight, axis=-2, keepdims=True)

    monkeypatch.setitem(
        MODES, "upward", Mode(lambda xp, x: xp.floor(x), (0, 1, 2), upward, pads_taps=False)
    )
    monkeypatch.setitem(
        MODES, "lanczos3", Mode(lambda xp, x: xp.floor(x), taps, lanczos, pads_taps=True)
    )
    monkeypatch.setitem(PADDING, "wrap", Padding(wrap))
    monkeypatch.setattr(spec, "MODES", (*spec.MODES, "lanczos3"))
    X, grid = arrays(r, 2)
    near = np.where(np.abs(grid) <= 2, grid, np.float32(0.3))
    linear = ogs.grid_sample(X, near, "linear", "border")
    for mode, padding_mode in (("upward", "border"), ("cubic", "wrap"), ("upward", "reflection")):
        attributes = Attributes(mode, padding_mode)
        check(run(lowered(X, near, attributes, opset), X, near), X, near, attributes, 0)
        assert not np.array_equal(ogs.grid_sample(X, near, mode, padding_mode), linear)
    for padding_mode, constant in (("zeros", False), ("border", True)):
        attributes = Attributes("lanczos3", padding_mode)
        model = lowered(X, grid, attributes, opset, constant=constant, more=["Sin"])
        check(run(model, *(X, grid)[: 2 - constant]), X, grid, attributes)
    far = np.array([-np.inf, -1000, 1000, np.inf], np.float32).reshape(
        1, 4, 1
    )  # beyond taps further out than cubic's
    assert not ogs.grid_sample(
        np.ones((1, 1, 2), np.float32), far, "lanczos3", "zeros", align_corners=True
    ).any()


#: Nodes, constants apart, of 2-D lowerings whose lengths are known, and of those whose lengths are not.
NODES = {
    "zeros": {"nearest": (26, 75), "linear": (48, 94), "cubic": (103, 137)},
    "border": {"nearest": (22, 70), "linear": (46, 91), "cubic": (101, 134)},
    "reflection": {"nearest": (32, 83), "linear": (56, 104), "cubic": (110, 146)},
}


@pytest.mark.parametrize("padding_mode", NODES)
@pytest.mark.parametrize("mode", spec.MODES)
def test_lowering_stays_small(mode, padding_mode):
    """And no constant is written twice."""
    models = [
        lowered(*arrays(2), Attributes(mode, padding_mode), known=known) for known in (True, False)
    ]
    counts = tuple(sum(node.op_type != "Constant" for node in model.graph.node) for model in models)
    assert counts == NODES[padding_mode][mode]
    for model in models:
        constants = [
            n.attribute[0].t.SerializeToString()
            for n in model.graph.node
            if n.op_type == "Constant"
        ]
        assert len(constants) == len(set(constants))


FLOATS = "float32, float64, float16, bfloat16"
INTEGERS = "int8, int16, int32, int64, uint8, uint16, uint32, uint64"
SHAPE = (1, 1, 2, 2)
OF_FOUR = f"expected shape (N, D1_out, D2_out, 2), as X of shape {SHAPE} has 2 spatial axes"
OF_ONE = f"expected N = 1 first, as X is of shape {SHAPE}"
#: What each argument is, and what is said of it; X and grid are of a type and shape.
MISTAKES = [
    ("opset", 10, "opset is 10, expected 11 or newer to be lowered to primitives"),
    (
        "mode",
        "area",
        "mode is 'area', expected 'nearest', 'linear', 'cubic', 'bilinear' or 'bicubic'",
    ),
    ("padding_mode", "wrap", "padding_mode is 'wrap', expected 'zeros', 'border' or 'reflection'"),
    (
        "X",
        ("str", SHAPE),
        "mode is 'linear', expected 'nearest', the only mode that is defined for str X",
    ),
    (
        "X",
        ("complex64", SHAPE),
        f"X is of type complex64, expected one of {FLOATS}, {INTEGERS}, bool, str",
    ),
    (
        "X",
        ("float32", (1, 1)),
        "X is of shape (1, 1), expected shape (N, C, D1, …, Dr) with at least one spatial axis",
    ),
    (
        "X",
        ("float32", None),
        "X is of unknown rank, expected a known rank to be lowered to primitives",
    ),
    (
        "X",
        ("float32", (1, 1, 0)),
        "X is of shape (1, 1, 0), expected a pixel, which 'border' padding needs",
    ),
    ("grid", ("int64", None), f"grid is of type int64, expected one of {FLOATS}"),
    ("grid", ("float32", (2, None, 2)), f"grid is of shape (2, ?, 2), {OF_FOUR}"),
    ("grid", ("float32", (2, None, 9, 2)), f"grid is of shape (2, ?, 9, 2), {OF_ONE}"),
    ("grid", ("float32", (1, 2, 2, 3)), f"grid is of shape (1, 2, 2, 3), {OF_FOUR}"),
    ("grid", ("float32", (None,) * 7), f"grid is of shape (?, ?, ?, ?, ?, ?, ?), {OF_FOUR}"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), MISTAKES)
def test_what_cannot_be_lowered_is_an_error(name, value, sentence):
    arguments = {
        "X": ("float32", SHAPE),
        "grid": ("float32", None),
        **asdict(Attributes("linear", "border")),
    }
    arguments |= {"opset": 17, name: value}
    values = [Value(each, *arguments.pop(each)) for each in ("X", "grid")]
    error = refusal(
        lower_grid_sample, Expressions("sampler", arguments.pop("opset")), *values, "Y", **arguments
    )
    assert str(error) == f"sampler: {sentence}"


FITTING = ", expected (N, 2, 3) for a size (4,), or (N, 3, 4) for a size (5,)"
AFFINE_MISTAKES = [
    (
        ("float32", None),
        ("int64", None),
        f"theta is of shape None for a size of shape None{FITTING}",
    ),
    (
        ("float32", (1, 2, 3)),
        ("int64", (5,)),
        f"theta is of shape (1, 2, 3) for a size of shape (5,){FITTING}",
    ),
    (
        ("float32", (1, 1, 2)),
        ("int64", (3,)),
        f"theta is of shape (1, 1, 2) for a size of shape (3,){FITTING}",
    ),
    (("int32", (1, 2, 3)), ("int64", (4,)), f"theta is of type int32, expected one of {FLOATS}"),
    (("float32", (1, 2, 3)), ("int32", (4,)), "size is of type int32, expected one of int64"),
]


@pytest.mark.parametrize(("theta", "size", "said"), AFFINE_MISTAKES)
def test_what_affine_grid_cannot_lower_is_an_error(theta, size, said):
    values = Value("theta", *theta), Value("size", *size)
    assert (
        str(refusal(lower_affine_grid, Expressions("n", 20), *values, "grid", align_corners=False))
        == f"n: {said}"
    )
