"""The target ``ai.onnx-2d``: only GridSamples of two spatial axes, and the outputs of the core."""

from dataclasses import astuple
from itertools import permutations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.expressions import Expressions
from ort_gridsample.rewriting.targets.lowered_arguments import Argument
from ort_gridsample.rewriting.targets.two_axes import (
    COORDINATE_ERROR,
    FIRST_OPSET,
    LAST_OPSET,
    lower_grid_sample,
)
from support.cases import ATTRIBUTES, SHAPES, Attributes, dtype_of, positions
from support.compare import refusal
from support.models import affine_grid_model, grid_sample_model
from support.paths import open_native, run

TARGET = "ai.onnx-2d"
#: The spatial lengths of X. The two shortest axes become one: the outer, the inner, or both ends.
LENGTHS = ((3, 4, 20), (20, 3, 4), (3, 20, 4), (1, 2, 1))
every_attributes = pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
static_or_dynamic = pytest.mark.parametrize("known", [True, False], ids=["static", "dynamic"])


def sample_model(X, grid, attributes, opset=20, known=True):
    """Return a model of one GridSample, whose shapes are known or not."""
    model = grid_sample_model(X.dtype.name, grid.dtype.name, X.ndim - 2, [attributes], opset)
    for value, array in zip(model.graph.input, (X, grid), strict=True):
        elem_type = value.type.tensor_type.elem_type
        shape = array.shape if known else [None] * array.ndim
        value.CopyFrom(helper.make_tensor_value_info(value.name, elem_type, shape))
    return model


def assert_has_only_two_axes(model):
    """Check that GridSamples are 4-D with modes of opset 16, and that AffineGrids are gone."""
    assert FIRST_OPSET <= model.opset_import[0].version <= LAST_OPSET
    onnx.checker.check_model(model)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.input)
    }
    for node in model.graph.node:
        assert (node.op_type, node.domain) != ("AffineGrid", "")
        if node.op_type == "GridSample":
            mode = helper.get_node_attr_value(node, "mode")
            assert mode in (b"bilinear", b"nearest", b"bicubic")
            assert {ranks[name] for name in node.input if name in ranks} <= {4}


def run_two_axes(model, X, grid):
    assert_has_only_two_axes(model)
    return run(open_native(model), X.dtype, X, grid)[0]


def patch(X, grid, attributes, **options):
    return ogs.patch_model(sample_model(X, grid, attributes, **options), target=TARGET)


def error_of(model, X, grid, attributes):
    """Return the largest absolute error of a patched model's output."""
    Y = run_two_axes(model, X, grid)
    expected = ogs.grid_sample(X, grid, *astuple(attributes))
    assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
    return abs(Y.astype("float64") - expected.astype("float64")).max()


@static_or_dynamic
@pytest.mark.parametrize(
    "attributes", [attributes for attributes in ATTRIBUTES if attributes.mode != "cubic"], ids=str
)
def test_sample_of_three_axes_has_the_output_of_the_core(attributes, known):
    grid = positions("float32", 3)
    for seed, lengths in enumerate(LENGTHS):
        X = np.random.default_rng(seed).standard_normal((2, 3, *lengths)).astype("float32")
        model = patch(X, grid, attributes, known=known)
        op_types = [node.op_type for node in model.graph.node]
        assert op_types.count("GridSample") == (2 if attributes.mode == "linear" else 1)
        assert ogs.patch_model(model, target=TARGET) == model
        assert error_of(model, X, grid, attributes) < 2e-5, lengths


# onnxruntime's kernel rounds a nearest coordinate before it reflects it, so ties differ.
@static_or_dynamic
@every_attributes
def test_sample_of_one_axis_has_the_output_of_the_core(attributes, known):
    X = np.random.default_rng(1).standard_normal(SHAPES[1].X).astype("float32")
    grid = positions("float32", 1)
    grid = np.where(abs(grid) < 1e4, grid, 0)  # onnxruntime's kernel is wrong further outside
    error = error_of(patch(X, grid, attributes, known=known), X, grid, attributes)
    has_ties = attributes.mode == "nearest" and attributes.padding_mode == "reflection"
    assert error < 1e-5 or has_ties


X_2D = np.ones((1, 1, 4, 4), "float32")
GRID_2D = np.zeros((1, 2, 2, 2), "float32")


@pytest.mark.parametrize(("opset", "is_kept"), [(16, True), (19, True), (20, False)])
def test_sample_of_two_axes_is_kept_if_the_opset_is_old_enough(opset, is_kept):
    model = sample_model(X_2D, GRID_2D, Attributes("cubic", "border", True), opset)
    patched = ogs.patch_model(model, target=TARGET)
    assert_has_only_two_axes(patched)
    nodes = [(node.op_type, node.name) for node in patched.graph.node]
    assert nodes == [("GridSample", "sample0")]
    assert (patched == model) == is_kept


@pytest.mark.parametrize("opset", [16, 19, 20])
def test_patch_to_an_opset_has_that_opset(opset):
    model = sample_model(X_2D, GRID_2D, Attributes("cubic", "border", True), opset)
    assert ogs.patch_model(model, target=TARGET, opset=19).opset_import[0].version == 19


def test_sample_of_another_dialect_becomes_a_standard_one():
    model = sample_model(X_2D, GRID_2D, Attributes(), 16)
    other = ogs.patch_model(model, target="com.microsoft")
    patched = ogs.patch_model(other, target=TARGET)
    assert run_two_axes(patched, X_2D, GRID_2D).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    "attributes", [Attributes(), Attributes("nearest", "reflection", True)], ids=str
)
@pytest.mark.parametrize(
    ("X_type", "tolerance"), [("float32", 2e-5), ("float16", 2e-3), ("bfloat16", 2e-2)]
)
@pytest.mark.parametrize("grid_type", ["float16", "float32", "float64"])
def test_sample_of_any_float_types_has_the_output_of_the_core(
    X_type, grid_type, tolerance, attributes
):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((1, 2, 6, 5, 7)).astype(dtype_of(X_type))
    grid = rng.uniform(-1.2, 1.2, (1, 3, 4, 5, 3)).astype(grid_type)
    cases = [(X, grid)]
    # onnxruntime has no kernel of two axes for other types.
    if grid_type == "float32" and X_type != "float16":
        cases.append((X[:, :, 0], grid[..., 0, :2]))
        cases.append((X[:, :, 0, 0], grid[..., 0, 0, :1]))
    opset = 22 if X_type == "bfloat16" else 20
    for image, coordinates in cases:
        model = patch(image, coordinates, attributes, opset=opset)
        assert error_of(model, image, coordinates, attributes) < tolerance


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("lengths", "limit"), [((16, 64, 64), 1e-3), ((64, 64, 64), np.inf), ((5, 300, 7), np.inf)]
)
def test_error_of_a_merged_axis_is_within_the_documented_bound(lengths, limit, padding_mode):
    rng = np.random.default_rng(sum(lengths))
    X = rng.standard_normal((1, 2, *lengths)).astype("float32")
    grid = rng.uniform(-1.1, 1.1, (1, 20, 30, 40, 3)).astype("float32")
    padded = np.pad(X, [(0, 0), (0, 0), (1, 1), (1, 1), (1, 1)])
    largest_step = max(np.abs(np.diff(padded, axis=axis)).max() for axis in (2, 3, 4))
    merged_length = min((a + 2) * (b + 2) for a, b in permutations(lengths, 2))
    attributes = Attributes("linear", padding_mode)
    error = error_of(patch(X, grid, attributes), X, grid, attributes)
    assert error < min(limit, COORDINATE_ERROR * merged_length * largest_step)


def test_affine_grid_becomes_basic_operators():
    model = ogs.patch_model(affine_grid_model("float32", 3, True), target=TARGET)
    assert_has_only_two_axes(model)
    size = np.array([1, 1, 2, 3, 4])
    theta = np.random.default_rng(0).standard_normal((1, 3, 4)).astype("float32")
    (grid,) = open_native(model).run(None, {"theta": theta, "size": size})
    expected = ogs.affine_grid(theta, size, align_corners=True)
    np.testing.assert_allclose(grid, expected, rtol=0, atol=1e-6)


def test_sample_of_three_axes_in_a_function_is_replaced():
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 22, "local": 1]>
        g (float[1,2,3,4,5] X, float[1,2,2,2,3] grid) => (float[1,2,2,2,2] Y) {
            Y = local.f (X, grid) }
        <opset_import: ["": 22], domain: "local"> f (X, grid) => (Y) {
            Y = GridSample (X, grid) }""")
    X = np.ones((1, 2, 3, 4, 5), "float32")
    grid = np.zeros((1, 2, 2, 2, 3), "float32")
    Y = run_two_axes(ogs.patch_model(model, target=TARGET), X, grid)
    np.testing.assert_allclose(Y, 1, rtol=1e-6)


def wrong_model(lengths, X_type="float32", mode="linear"):
    X = np.zeros((1, 1, *lengths), X_type)
    grid = np.zeros((1, *lengths, len(lengths)), "float32")
    return sample_model(X, grid, Attributes(mode))


#: A model, the opset, the argument, what it is, and a part of what is expected.
REFUSED = {
    "cubic": (
        wrong_model((4, 4, 4), mode="cubic"),
        None,
        ("mode", "'cubic' of 5-D", "linear or nearest; "),
    ),
    "integers": (
        wrong_model((4, 4, 4), "int8"),
        None,
        ("X", "of type int8, 5-D", "'float32'; target 'primitives' has"),
    ),
    "four axes": (
        wrong_model((2, 2, 2, 2)),
        None,
        ("X", "6-D", "at most 5-D; target 'primitives'"),
    ),
    "newer opset": (
        wrong_model((4, 4, 4)),
        20,
        ("opset", "20", "a number from 16 to 19 with target"),
    ),
    "older opset": (
        wrong_model((4, 4, 4)),
        15,
        ("opset", "15", "a number from 16 to 19 with target"),
    ),
}


@pytest.mark.parametrize(("model", "opset", "parts"), REFUSED.values(), ids=REFUSED)
def test_sample_that_the_target_lacks_is_refused(model, opset, parts):
    argument, found, expected = parts
    error = refusal(ogs.patch_model, model, target=TARGET, opset=opset)
    assert (error.argument, error.found) == (argument, found)
    assert expected in error.expected


def test_lowering_in_an_opset_without_grid_sample_is_refused() -> None:
    X = Argument("X", "float32", (1, 1, 2, 2))
    grid = Argument("grid", "float32", (1, 2, 2, 2))
    attributes = {"mode": "linear", "padding_mode": "zeros", "align_corners": False}
    error = refusal(lower_grid_sample, Expressions("sampler", 15), X, grid, "Y", **attributes)
    assert (error.argument, error.found) == ("opset", "15")
    assert error.expected == "at least 16, the first opset that nodes are lowered in"
