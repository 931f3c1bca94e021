"""Models lowered to basic operators: the outputs of the core, in every type, rank and opset."""

import random
from dataclasses import astuple
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorShapeProto, numpy_helper

import ort_gridsample as ogs
from ort_gridsample import spec
from support import faults, oracle
from support.cases import ATTRIBUTES, Attributes, image
from support.compare import assert_identical, type_name
from support.lowered_models import assert_close, run, run_reference
from support.models import PRIMITIVES, affine_grid_model, grid_sample_model
from support.openvino_core import openvino_core
from support.parameters import CORES
from support.runtime_forms import RUNTIME_FORMS

#: The lowering adds up in the NumPy core's order, so results of some types are equal bit for bit.
pytestmark = pytest.mark.usefixtures("numpy_core")

OPSETS = (11, 12, 13, 16, 20, 22)
X_LENGTHS = (9, 4, 3, 6, 2)
Y_LENGTHS = (3, 4, 2, 3, 2)
#: More channels than are read one by one.
MANY_CHANNELS = 9
#: Coordinates at which padding, infinities and NaN matter.
SPECIAL_COORDINATES = (np.nan, np.inf, -np.inf, 1e10, -1e10, 1, -1)
LINEAR = Attributes("linear", "zeros", False)
every_mode = pytest.mark.parametrize("mode", spec.MODES)
every_padding = pytest.mark.parametrize("padding_mode", spec.PADDING_MODES)
every_attributes = pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
every_runtime = pytest.mark.parametrize("runtime", RUNTIME_FORMS)


def declare(value, shape):
    """Declare the shape of an input: lengths, names or None, or no shape at all."""
    tensor = value.type.tensor_type
    tensor.ClearField("shape")
    if shape is not None:
        tensor.shape.CopyFrom(TensorShapeProto())
        for length in shape:
            dim = tensor.shape.dim.add()
            if isinstance(length, str):
                dim.dim_param = length
            elif length is not None:
                dim.dim_value = length


def lower(
    X,
    grid,
    attributes,
    opset=17,
    known=True,
    constant_grid=False,
    runtime=None,
    shapes=None,
):
    """Return a lowered model of one GridSample.

    Args:
        X: the array that is sampled.
        grid: the grid.
        attributes: those of the node.
        opset: the opset of the lowered model.
        known: whether the shapes are known; otherwise only the ranks are.
        constant_grid: whether the grid is a constant, and not an input.
        runtime: the name of the runtime that the nodes are for.
        shapes: the known shapes of X and grid, in place of ``known``.
    """
    types = type_name(X.dtype), type_name(grid.dtype)
    model = grid_sample_model(*types, X.ndim - 2, [attributes])
    names = [tuple(f"{n}{axis}" for axis in range(a.ndim)) for n, a in (("X", X), ("grid", grid))]
    declared = shapes or ((X.shape, grid.shape) if known else names)
    for value, shape in zip(model.graph.input, declared, strict=True):
        declare(value, shape)
    (Y,) = model.graph.output
    declare(Y, [None] * X.ndim)
    if constant_grid:
        model.graph.input.pop()
        stored = grid.astype("float32") if types[1] == "bfloat16" else grid
        model.graph.initializer.append(numpy_helper.from_array(stored, "grid"))
    lowered = ogs.patch_model(model, target="primitives", opset=opset, for_runtime=runtime)
    nodes = {node.op_type for node in lowered.graph.node}
    assert nodes <= PRIMITIVES | ({"CumSum", "MatMul", "Slice"} if runtime else set())
    return lowered


def lower_affine_grid(theta, size, align_corners, opset, known, constant_size):
    """Return a lowered model of one AffineGrid, whose size is an input or a constant."""
    model = affine_grid_model(type_name(theta.dtype), theta.shape[1], align_corners)
    declare(model.graph.input[0], theta.shape if known else ("N", theta.shape[1], "columns"))
    if constant_size:
        model.graph.input.pop()
        model.graph.initializer.append(numpy_helper.from_array(size, "size"))
    return ogs.patch_model(model, target="primitives", opset=opset)


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


#: With five axes, linear has 32 taps, and cubic has too many.
ATTRIBUTES_AND_AXES = [
    (attributes, axes)
    for attributes, axes in product(ATTRIBUTES, range(1, 6))
    if (attributes.mode, axes) != ("cubic", 5)
]


@pytest.mark.parametrize(("attributes", "axes"), ATTRIBUTES_AND_AXES, ids=str)
def test_lowered_sample_has_the_output_of_the_core(attributes, axes):
    """Batches, channels, opsets and known shapes are drawn, equally in each run."""
    drawn = random.Random(f"{attributes} {axes}")
    batch = drawn.choice([1, 2])
    X = X_array(axes, batch, drawn.choice([3, MANY_CHANNELS]))
    grid = grid_array(axes, batch)
    model = lower(X, grid, attributes, drawn.choice(OPSETS), drawn.choice([True, False]))
    assert_close(run(model, X, grid), X, grid, attributes)
    assert_close(run_reference(model, X, grid), X, grid, attributes)


@every_attributes
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_lowered_sample_without_gather_has_the_output_of_the_core(attributes, axes):
    """Without NaN, and without Mod far reflections are not exact."""
    X = X_array(axes, 2)
    grid = grid_array(axes, 2)
    grid[np.isnan(grid)] = -1
    grid[np.abs(grid) == np.float32(1e10)] = 20
    model = lower(X, grid, attributes, runtime="gather-free")
    assert "Gather" not in {node.op_type for node in model.graph.node}
    assert_close(run(model, X, grid), X, grid, attributes)


@every_padding
@every_mode
def test_lowered_sample_in_openvino_has_the_output_of_the_core(mode, padding_mode):
    core = openvino_core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    for axes, known, align_corners in ((1, False, False), (2, True, True), (3, False, False),
                                       (4, True, True)):  # fmt: skip
        X = X_array(axes, 2)
        grid = grid_array(axes, 2)
        if padding_mode == "reflection":  # OpenVINO's remainder is not exact
            grid[np.abs(grid) == np.float32(1e10)] = 20
        attributes = Attributes(mode, padding_mode, align_corners)
        model = core.read_model(lower(X, grid, attributes, 17, known).SerializeToString())
        Y = core.compile_model(model, "CPU", settings)([X, grid])[0]
        assert_close(Y, X, grid, attributes)


@pytest.mark.parametrize("constant_grid", [False, True])
@every_padding
@every_mode
def test_coordinates_have_the_type_of_the_grid_and_weights_that_of_X(  # noqa: N802
    mode, padding_mode, constant_grid
):
    """With float64 X and a float32 grid, coordinates in float64 would change the last bits."""
    X = np.random.default_rng(2).standard_normal((2, 3, *X_LENGTHS[:2])) * 1e6
    grid = grid_array(2, 2)
    align_corners = constant_grid if padding_mode == "border" else not constant_grid
    attributes = Attributes(mode, padding_mode, align_corners)
    model = lower(X, grid, attributes, constant_grid=constant_grid)
    Y = run(model, X) if constant_grid else run(model, X, grid)
    assert_identical(Y, ogs.grid_sample(X, grid, *astuple(attributes)))
    finer = ogs.grid_sample(X, grid.astype("float64"), *astuple(attributes))
    assert mode == "nearest" or not np.array_equal(Y, finer)


@every_padding
@pytest.mark.parametrize(
    "X_type", [t.name for t in spec.TYPES.values() if not t.name.startswith("complex")]
)
def test_lowered_sample_of_each_type_equals_the_core(X_type, padding_mode):
    """Modes, grid types, opsets and known shapes are drawn, equally in each run."""
    modes = ["nearest"] * 3 if X_type == "str" else [*spec.MODES]
    random.Random(X_type).shuffle(modes)
    mode = modes[spec.PADDING_MODES.index(padding_mode)]
    drawn = random.Random(f"{X_type} {padding_mode}")
    X = image(X_type, (2, 3, *X_LENGTHS[:2]))
    attributes = Attributes(mode, padding_mode, False)
    grid = grid_array(2, 2, drawn.choice(spec.FLOATS))
    has_bfloat16 = "bfloat16" in (X_type, grid.dtype.name)
    oldest = 13 if has_bfloat16 else 11
    opset, known = drawn.choice([(oldest, False), (13, False), (22, True)])
    Y = run(lower(X, grid, attributes, opset, known), X, grid)
    assert_identical(Y, ogs.grid_sample(X, grid, *astuple(attributes)))


def test_lowered_sample_of_a_constant_bfloat16_grid_equals_the_core():
    X = X_array(2)
    grid = grid_array(2).astype(ml_dtypes.bfloat16)
    Y = run(lower(X, grid, LINEAR, 22, constant_grid=True), X)
    assert_identical(Y, ogs.grid_sample(X, grid))


def test_lowered_sample_of_a_bfloat16_X_without_pixels_is_zero():  # noqa: N802
    X = np.ones((1, 2, 0, 4), ml_dtypes.bfloat16)
    grid = np.zeros((1, 3, 3, 2), "float32")
    expected = np.zeros((1, 2, 3, 3), ml_dtypes.bfloat16)
    assert_identical(run(lower(X, grid, LINEAR, 22), X, grid), expected)


@pytest.mark.parametrize("axes", [1, 2, 3, 5])  # the taps of five axes are gathered together
@pytest.mark.parametrize("X_type", ["int64", "uint64"])
def test_integers_of_64_bits_are_exact_where_all_taps_are_equal(X_type, axes):
    largest = np.iinfo(X_type).max
    row = np.array([largest - 5] * 3 + [largest - 7] * 3, X_type)
    X = np.broadcast_to(row, (1, 2, *[4] * (axes - 1), 6)).copy()
    grid = np.zeros((1, *[1] * (axes - 1), 4, axes), np.float32)
    grid[..., 0] = 2 * np.array([0.5, 3.5, 1.5, 4.5]) / 5 - 1
    Y = run(lower(X, grid, Attributes("linear", "border", True)), X, grid)
    assert Y[0, 1].ravel().tolist() == [largest - 5, largest - 7, largest - 5, largest - 7]


@every_mode
def test_large_constant_grid_is_not_expanded(mode):
    X = X_array(2, 2)
    grid = np.random.default_rng(0).uniform(-1, 1, (2, 300, 300, 2)).astype(np.float32)
    model = grid_sample_model("float32", "float32", 2, [Attributes(mode)])
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(grid, "grid"))
    lowered = ogs.patch_model(model, target="primitives")
    assert lowered.ByteSize() < 1.05 * model.ByteSize()
    assert_close(run(lowered, X), X, grid, Attributes(mode))


def test_large_affine_grid_of_constants_is_not_folded():
    model = affine_grid_model("float32", 2, False)
    del model.graph.input[:]
    theta = np.ones((1, 2, 3), np.float32)
    size = np.array([1, 1, 512, 512])
    model.graph.initializer.append(numpy_helper.from_array(theta, "theta"))
    model.graph.initializer.append(numpy_helper.from_array(size, "size"))
    assert ogs.patch_model(model, target="primitives").ByteSize() < 1 << 14


@every_attributes
def test_constant_grid_for_an_unknown_X_has_the_output_of_the_core(attributes):  # noqa: N802
    X = X_array(2, 2)
    grid = grid_array(2, 2)
    model = lower(X, grid, attributes, constant_grid=True, shapes=([None] * 4, None))
    assert_close(run(model, X), X, grid, attributes)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@every_mode
def test_positions_outside_do_not_read_pixels(mode, value):
    X = X_array(2)
    X[..., 0, :] = X[..., -1, :] = X[..., :, 0] = X[..., :, -1] = value
    outside = [[-5, 0], [5, 5], [np.inf, -np.inf], [0, 1e10], [-3, 1]]
    grid = np.array(outside, "float32").reshape(1, 1, 5, 2)
    assert (run(lower(X, grid, Attributes(mode, "zeros", False)), X, grid) == 0).all()


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("known", [True, False])
@every_padding
@every_mode
def test_axis_of_one_pixel_has_the_output_of_the_core(mode, padding_mode, known, align_corners):
    X = np.arange(6, dtype="float32").reshape(1, 2, 1, 3)
    grid = grid_array(2)
    attributes = Attributes(mode, padding_mode, align_corners)
    model = lower(X, grid, attributes, known=known)
    assert_close(run(model, X, grid), X, grid, attributes)


#: Shapes of X and Y's spatial lengths, one of which is 0.
EMPTY_SHAPES = [
    ((0, 3, 5, 4), (3, 4)),
    ((2, 0, 5, 4), (3, 4)),
    ((2, 3, 0, 4), (3, 4)),
    ((2, 3, 5, 4), (0, 4)),
    ((2, 3, 5, 4), (3, 0)),
]


# Opset 13 cannot reshape to a length that is computed and 0.
@pytest.mark.parametrize(("opset", "known"), [(13, True), (20, False)], ids=["known", "unknown"])
@pytest.mark.parametrize(("X_shape", "Y_lengths"), EMPTY_SHAPES)
@every_mode
def test_empty_axis_has_the_output_of_the_core(mode, X_shape, Y_lengths, opset, known):
    X = np.ones(X_shape, "float32")
    grid = np.zeros((X_shape[0], *Y_lengths, 2), "float32")
    attributes = Attributes(mode, "zeros", False)
    model = lower(X, grid, attributes, opset, known)
    assert_close(run(model, X, grid), X, grid, attributes)


@pytest.mark.parametrize(
    "shapes",
    [
        ((None, 3, X_LENGTHS[0], 4, 3), (None, 3, 4, 2, 3)),
        ((2, None, X_LENGTHS[0], None, 3), (None, 3, None, 2, 3)),
        (("N", "C", "D", 4, "W"), None),
        (None, (2, None, 4, 2, None)),
    ],
)
def test_partly_known_shapes_have_the_output_of_the_core(shapes):
    X = X_array(3, 2)
    grid = grid_array(3, 2)
    attributes = Attributes("cubic", "zeros", True)
    assert_close(run(lower(X, grid, attributes, shapes=shapes), X, grid), X, grid, attributes)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    ("theta_type", "atol"), [("float32", 1e-6), ("float64", 1e-14), ("float16", 1e-3)]
)
@pytest.mark.parametrize("lengths", [(4, 7, 5), (1, 1, 6), (3, 0, 2)], ids=str)
def test_lowered_affine_grid_has_the_output_of_the_function(
    axes, align_corners, theta_type, atol, lengths
):
    """Opsets, known shapes and constant sizes are drawn, equally in each run."""
    drawn = random.Random(f"{axes} {align_corners} {theta_type} {lengths}")
    theta = np.random.default_rng(axes).standard_normal((2, axes, axes + 1)).astype(theta_type)
    size = np.array([2, 3, *lengths[:axes]])
    opset = drawn.choice(OPSETS)
    known = drawn.choice([True, False])
    constant_size = drawn.choice([True, False])
    if constant_size and 0 in size and faults.EMPTY_CONSTANTS:
        constant_size = False
    model = lower_affine_grid(theta, size, align_corners, opset, known, constant_size)
    arrays = [theta] if constant_size else [theta, size]
    expected = ogs.affine_grid(theta, size, align_corners)
    for grid in (run(model, *arrays), run_reference(model, *arrays)):
        assert (grid.dtype, grid.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(grid, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("align_corners", [False, True])
@every_padding
@every_runtime
@pytest.mark.parametrize(
    ("length", "max_images"), [(7, 3), (9_000_001, 1)], ids=["short", "without fractions"]
)
def test_ties_for_a_runtime_are_rounded_like_the_core(
    runtime, length, max_images, padding_mode, align_corners
):
    """Grids have ties, and coordinates that differ from them by one rounding.

    In a float32 of 9,000,001 pixels there are no fractions.
    """
    X = np.arange(length, dtype="float32").reshape(1, 1, -1)
    generator = np.random.default_rng(0)
    ties = generator.integers(-max_images * length, max_images * length, 300) + 0.5
    exact = ties * 2 / (length - 1) - 1 if align_corners else (2 * ties + 1) / length - 1
    exact = exact.astype("float32")
    below, above = (np.nextafter(exact, np.float32(limit)) for limit in (-9, 9))
    near = np.concatenate([exact, below, above])
    grid = np.concatenate([near, np.nextafter(near, np.float32(0))]).reshape(1, -1, 1)
    attributes = Attributes("nearest", padding_mode, align_corners)
    Y = run(lower(X, grid, attributes, runtime=runtime), X, grid)
    np.testing.assert_array_equal(Y, ogs.grid_sample(X, grid, *astuple(attributes)))


@every_runtime
@pytest.mark.parametrize("channels", [3, MANY_CHANNELS])
def test_strings_for_a_runtime_equal_the_core(runtime, channels):
    attributes = Attributes("nearest", "border", False)
    grid = grid_array(2, 2)
    X = image("str", (2, channels, *X_LENGTHS[:2]))
    Y = run(lower(X, grid, attributes, 20, known=False, runtime=runtime), X, grid)
    assert Y.tolist() == ogs.grid_sample(X, grid, *astuple(attributes)).tolist()


def test_reflected_coordinate_whose_double_is_infinite_is_that_of_the_oracle():
    """5 · 1e38 is no float32, but half of it is."""
    X = np.arange(5, dtype="float32").reshape(1, 1, 5)
    coordinates = np.array([1e38, -1.2e38, 1.1e38], "float32")
    grid = coordinates.reshape(1, 3, 1)
    pixels = (coordinates + np.float32(1)) * np.float32(2.5) - np.float32(0.5)
    reflected = [oracle.reflect(float(pixel), 5, False) for pixel in pixels]
    expected = [[[round(oracle.clip(pixel, 5)) for pixel in reflected]]]
    lowered = lower(X, grid, Attributes("nearest", "reflection", False))
    assert run(lowered, X, grid).tolist() == expected
    for core in CORES:
        ogs.set_core(core)
        assert ogs.grid_sample(X, grid, "nearest", "reflection").tolist() == expected
