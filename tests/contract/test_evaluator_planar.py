"""Test BEVFormer_tensorrt's samplers of planar grids in onnx's evaluator."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from support.compare import assert_identical

pytestmark = pytest.mark.usefixtures("numpy_core")

LENGTHS = (4, 5, 6)
GRID_LENGTHS = (3, 2, 4)


def planar_model(
    op_type: str,
    r: int,
    grid_type: int = onnx.TensorProto.FLOAT,
    **attributes: int,
) -> onnx.ModelProto:
    """Return a model of one sampler of planar grids."""
    codes = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": 0} | attributes
    node = helper.make_node(op_type, ["X", "grid"], ["Y"], "warp", **codes)
    float32 = onnx.TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("X", float32, [None] * (r + 2)),
        helper.make_tensor_value_info("grid", grid_type, [None] * (r + 2)),
    ]
    output = helper.make_tensor_value_info("Y", float32, None)
    graph = helper.make_graph([node], "planar", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def evaluate(model: onnx.ModelProto, X: np.ndarray, grid: np.ndarray) -> np.ndarray:
    evaluator = ReferenceEvaluator(model, new_ops=ogs.reference_ops())
    return evaluator.run(None, {"X": X, "grid": grid})[0]


def image_of(r: int) -> np.ndarray:
    generator = np.random.default_rng(r)
    return generator.uniform(-1, 1, (2, 3, *LENGTHS[:r])).astype(np.float32)


def planar_grid_of(r: int) -> np.ndarray:
    generator = np.random.default_rng(10 + r)
    return generator.uniform(-12, 12, (2, r, *GRID_LENGTHS[:r])).astype(np.float32)


@pytest.mark.parametrize("op_type", ["GridSampler2DTRT", "GridSampler2DTRT2"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_planar_sampler_has_the_outputs_of_the_function(op_type: str, align_corners: int) -> None:
    X = image_of(2)
    grid = planar_grid_of(2)
    model = planar_model(op_type, 2, align_corners=align_corners)
    standard_grid = grid.transpose(0, 2, 3, 1) / np.float32(10)
    expected = ogs.grid_sample(X, standard_grid, "linear", "zeros", bool(align_corners))
    assert_identical(evaluate(model, X, grid), expected)


def test_planar_sampler_of_volumes_has_the_outputs_of_the_function() -> None:
    X = image_of(3)
    grid = planar_grid_of(3)
    model = planar_model("GridSampler3DTRT", 3, interpolation_mode=1, padding_mode=1)
    standard_grid = grid.transpose(0, 2, 3, 4, 1) / np.float32(10)
    expected = ogs.grid_sample(X, standard_grid, "nearest", "border")
    assert_identical(evaluate(model, X, grid), expected)


def test_planar_grid_of_float16_is_divided_in_float32() -> None:
    X = image_of(2)
    grid = planar_grid_of(2).astype(np.float16)
    model = planar_model("GridSampler2DTRT", 2, onnx.TensorProto.FLOAT16)
    standard_grid = grid.astype(np.float32).transpose(0, 2, 3, 1) / np.float32(10)
    assert_identical(evaluate(model, X, grid), ogs.grid_sample(X, standard_grid))


def test_planar_sampler_agrees_with_its_patched_model() -> None:
    X = image_of(2)
    grid = planar_grid_of(2)
    model = planar_model("GridSampler2DTRT", 2)
    patched = ogs.patch_model(model, target="ort_gridsample")
    assert_identical(evaluate(model, X, grid), evaluate(patched, X, grid))


@pytest.mark.parametrize(
    ("X_shape", "grid_shape", "argument"),
    [
        ((2, 3, 4), (2, 2, 3, 2), "X"),
        ((2, 3, 4, 5), (2, 3, 2, 2), "grid"),
        ((2, 3, 4, 5), (1, 2, 3, 2), "grid"),
        ((2, 3, 4, 5), (2, 2, 3), "grid"),
    ],
)
def test_planar_sampler_refuses_wrong_shapes(
    X_shape: tuple[int, ...],
    grid_shape: tuple[int, ...],
    argument: str,
) -> None:
    model = planar_model("GridSampler2DTRT", 2)
    with pytest.raises(ogs.GridSampleError) as caught:
        evaluate(model, np.zeros(X_shape, np.float32), np.zeros(grid_shape, np.float32))
    assert caught.value.argument == argument
