"""The target ``ai.onnx-2d``: GridSamples of two spatial axes only, and the core's answers."""

from dataclasses import astuple

import numpy as np
import onnx
import pytest
from onnx import helper, parser

import ort_gridsample as ogs
from ort_gridsample.cli import main
from ort_gridsample.rewriting.targets.two_axes import COORDINATE_ERROR, FIRST_OPSET, LAST_OPSET
from support.cases import ATTRIBUTES, SHAPES, Attributes, dtype_of, positions
from support.models import affine_grid_model, grid_sample_model
from support.paths import open_native, run

TARGET = "ai.onnx-2d"
#: Lengths of which the outer two axes, the inner two, or the first and the last, are the shortest.
LENGTHS = ((3, 4, 20), (20, 3, 4), (3, 20, 4), (1, 2, 1))


def sampling(X, grid, attributes, opset=20, known=True):
    model = grid_sample_model(X.dtype.name, grid.dtype.name, X.ndim - 2, [attributes], opset)
    for value, x in zip(model.graph.input, (X, grid), strict=True):
        shape = x.shape if known else [None] * x.ndim
        value.CopyFrom(
            helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape)
        )
    return model


def assert_two_axes(model):
    """Every GridSample of it has four axes and the words of opset 16, and there is no AffineGrid."""
    assert FIRST_OPSET <= model.opset_import[0].version <= LAST_OPSET
    onnx.checker.check_model(model)
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {value.name: value for value in (*inferred.graph.value_info, *inferred.graph.input)}
    for node in model.graph.node:
        assert (node.op_type, node.domain) != ("AffineGrid", "")
        if node.op_type == "GridSample":
            assert next(a.s for a in node.attribute if a.name == "mode") in (
                b"bilinear",
                b"nearest",
                b"bicubic",
            )
            assert all(
                len(known[name].type.tensor_type.shape.dim) == 4
                for name in node.input
                if name in known
            )


def answer(model, X, grid):
    assert_two_axes(model)
    return run(open_native(model), X.dtype, X, grid)[0]


def patched_and_off(X, grid, attributes, **how):
    """The model of four axes, and by how much its answer is off."""
    model = ogs.patch_model(sampling(X, grid, attributes, **how), target=TARGET)
    Y, expected = answer(model, X, grid), ogs.grid_sample(X, grid, *astuple(attributes))
    assert (Y.dtype, Y.shape) == (expected.dtype, expected.shape)
    return model, abs(Y.astype("float64") - expected.astype("float64")).max()


@pytest.mark.parametrize("known", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_three_axes_and_one_agree_with_the_core(attributes, known):
    grid = positions("float32", 3)
    for i, lengths in enumerate(LENGTHS if attributes.mode != "cubic" else ()):
        X = np.random.default_rng(i).standard_normal((2, 3, *lengths)).astype("float32")
        model, off = patched_and_off(X, grid, attributes, known=known)
        assert sum(node.op_type == "GridSample" for node in model.graph.node) == 1 + (
            attributes.mode == "linear"
        )
        assert ogs.patch_model(model, target=TARGET) == model
        assert off < 2e-5, lengths
    X = np.random.default_rng(1).standard_normal(SHAPES[1].X).astype("float32")
    grid = positions("float32", 1)
    grid = np.where(
        abs(grid) < 1e4, grid, 0
    )  # further out, onnxruntime's own kernel answers otherwise
    tie_breaks = attributes.mode == "nearest" and attributes.padding_mode == "reflection"
    assert (
        patched_and_off(X, grid, attributes, known=known)[1] < 1e-5 or tie_breaks
    )  # it rounds before it reflects


def test_two_axes_stay_and_others_words_are_the_standard_s():
    X, grid = np.ones((1, 1, 4, 4), "float32"), np.zeros((1, 2, 2, 2), "float32")
    for opset in (16, 19, 20):
        model = sampling(X, grid, Attributes("cubic", "border", True), opset)
        there = ogs.patch_model(model, target=TARGET)
        assert [(node.op_type, node.name) for node in there.graph.node] == [
            ("GridSample", "sample0")
        ]
        assert (there == model) == (opset < 20)
        assert ogs.patch_model(model, target=TARGET, opset=19).opset_import[0].version == 19
        assert_two_axes(there)
    foreign = ogs.patch_model(sampling(X, grid, Attributes(), 16), target="com.microsoft")
    assert answer(ogs.patch_model(foreign, target=TARGET), X, grid).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    ("X_type", "tolerance"), [("float32", 2e-5), ("float16", 2e-3), ("bfloat16", 2e-2)]
)
@pytest.mark.parametrize("grid_type", ["float16", "float32", "float64"])
def test_other_types_are_computed_in_wide_ones(X_type, grid_type, tolerance):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((1, 2, 6, 5, 7)).astype(dtype_of(X_type))
    grid = rng.uniform(-1.2, 1.2, (1, 3, 4, 5, 3)).astype(grid_type)
    cases = [(X, grid)]
    if (
        grid_type == "float32" and X_type != "float16"
    ):  # which onnxruntime's own kernel does not take
        cases += [(X[:, :, 0], grid[..., 0, :2]), (X[:, :, 0, 0], grid[..., 0, 0, :1])]
    for attributes in (Attributes(), Attributes("nearest", "reflection", True)):
        for image, at in cases:
            assert (
                patched_and_off(image, at, attributes, opset=22 if X_type == "bfloat16" else 20)[1]
                < tolerance
            )


@pytest.mark.parametrize(
    ("lengths", "limit"), [((16, 64, 64), 1e-3), ((64, 64, 64), np.inf), ((5, 300, 7), np.inf)]
)
def test_the_longer_axis_costs_no_more_than_is_said(lengths, limit):
    rng = np.random.default_rng(sum(lengths))
    X = rng.standard_normal((1, 2, *lengths)).astype("float32")
    grid = rng.uniform(-1.1, 1.1, (1, 20, 30, 40, 3)).astype("float32")
    padded = np.pad(X, [(0, 0)] * 2 + [(1, 1)] * 3)
    steps = max(np.abs(np.diff(padded, axis=axis)).max() for axis in (2, 3, 4))
    pixels = np.prod(sorted(length + 2 for length in lengths)[:2])
    for padding_mode in ("zeros", "border", "reflection"):
        off = patched_and_off(X, grid, Attributes("linear", padding_mode))[1]
        assert off < min(limit, COORDINATE_ERROR * pixels * steps), padding_mode


def test_what_is_around_a_node_may_not_exist_in_the_newest_opsets():
    """A model of AffineGrid and a 5-D GridSample in a function is written in opset 19."""
    model = affine_grid_model("float32", 3, True)
    size, theta = (
        np.array([1, 1, 2, 3, 4]),
        np.random.default_rng(0).standard_normal((1, 3, 4)).astype("float32"),
    )
    patched = ogs.patch_model(model, target=TARGET)
    assert_two_axes(patched)
    grid = open_native(patched).run(None, {"theta": theta, "size": size})[0]
    np.testing.assert_allclose(
        grid, ogs.affine_grid(theta, size, align_corners=True), rtol=0, atol=1e-6
    )
    called = parser.parse_model("""<ir_version: 9, opset_import: ["": 22, "local": 1]>
        g (float[1,2,3,4,5] X, float[1,2,2,2,3] grid) => (float[1,2,2,2,2] Y) { Y = local.f (X, grid) }
        <opset_import: ["": 22], domain: "local"> f (X, grid) => (Y) { Y = GridSample (X, grid) }""")
    X, grid = np.ones((1, 2, 3, 4, 5), "float32"), np.zeros((1, 2, 2, 2, 3), "float32")
    np.testing.assert_allclose(
        answer(ogs.patch_model(called, target=TARGET), X, grid), 1, rtol=1e-6
    )


REFUSED = [
    ((4, 4, 4), "float32", Attributes("cubic"), {}, "mode is 'cubic' of 5-D, expected linear or nearest; "),
    ((4, 4, 4), "int8", Attributes(), {}, "X is of type int8, 5-D, expected .*'float32'; target 'primitives' has"),
    ((2, 2, 2, 2), "float32", Attributes(), {}, "X is 6-D, expected at most 5-D; target 'primitives'"),
    ((4, 4, 4), "float32", Attributes(), {"opset": 20}, "opset is 20, expected a number from 16 to 19 with target"),
    ((4, 4, 4), "float32", Attributes(), {"opset": 15}, "opset is 15, expected a number from 16 to 19 with target"),
]  # fmt: skip


@pytest.mark.parametrize(("lengths", "X_type", "attributes", "asked", "sentence"), REFUSED)
def test_what_has_no_such_form_is_refused(lengths, X_type, attributes, asked, sentence):
    X, grid = np.zeros((1, 1, *lengths), X_type), np.zeros((1, *lengths, len(lengths)), "float32")
    with pytest.raises(ogs.GridSampleError, match=f": {sentence}"):
        ogs.patch_model(sampling(X, grid, attributes), target=TARGET, **asked)


@pytest.mark.parametrize(
    ("known", "off"), [(True, "2e-05 pixels"), (False, "2**-22 of what they span")]
)
def test_verify_says_how_far_coordinates_are_off(known, off, tmp_path, capsys):
    X, grid = np.zeros((1, 1, 6, 7, 8), "float32"), np.zeros((1, 2, 2, 2, 3), "float32")
    model = sampling(X, grid, Attributes("linear", "zeros"), known=known)
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(ogs.patch_model(model, target=TARGET), tmp_path / "b.onnx")
    paths = [str(tmp_path / name) for name in ("a.onnx", "b.onnx")]
    assert main(["verify", "--tolerance", "1e-4", "--shape", "grid=1,2,2,2,3", *paths]) == 0
    out = capsys.readouterr().out
    assert out.count("5-D nodes") == 1
    said = f"5-D nodes are written as 4-D ones, whose coordinates are off by up to {off}: see --tolerance"
    assert out.endswith(f"b.onnx: {said}\n")
