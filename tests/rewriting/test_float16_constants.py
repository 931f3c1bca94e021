"""Test grids that are Constants of unusual kinds, in models for onnxconverter-common."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from support.compare import refusal

X = np.random.default_rng(0).uniform(-1, 1, (1, 1, 5, 6)).astype(np.float32)
GRID = np.zeros((1, 2, 3, 2), np.float32)
GRID[0, 0, 1] = (0.25, -0.5)
GRID[0, 1, 2] = (-0.75, 0.1)


def constant_grid_model(**value: object) -> onnx.ModelProto:
    """Return a model that samples X at the grid of a Constant with one attribute."""
    nodes = [
        helper.make_node("Constant", [], ["grid"], "grid", **value),
        helper.make_node("GridSample", ["X", "grid"], ["Y"], "sample"),
    ]
    X_info = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, X.shape)
    Y_info = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "constant_grid", [X_info], [Y_info])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def sparse_grid(has_flat_indices: bool) -> onnx.SparseTensorProto:
    indices = np.argwhere(GRID)
    if has_flat_indices:
        indices = np.flatnonzero(GRID)
    values = numpy_helper.from_array(GRID[GRID != 0], "values")
    index_tensor = numpy_helper.from_array(indices.astype(np.int64), "indices")
    return helper.make_sparse_tensor(values, index_tensor, GRID.shape)


@pytest.mark.parametrize("has_flat_indices", [True, False])
def test_sparse_grid_keeps_its_coordinates(has_flat_indices: bool) -> None:
    model = constant_grid_model(sparse_value=sparse_grid(has_flat_indices))
    lowered = ogs.patch_model(model, target="primitives", for_runtime="onnxconverter-common")
    session = onnxruntime.InferenceSession(
        lowered.SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    (Y,) = session.run(None, {"X": X})
    np.testing.assert_allclose(Y, ogs.grid_sample(X, GRID), rtol=0, atol=1e-6)


def test_external_grid_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(GRID, "grid")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="grid.bin")
    model = constant_grid_model(value=tensor)
    error = refusal(
        ogs.patch_model,
        model,
        target="primitives",
        for_runtime="onnxconverter-common",
    )
    assert (error.argument, error.found) == ("value", "external data")


@pytest.mark.parametrize("opset", [True, False])
def test_bool_is_not_an_opset(opset: bool) -> None:
    model = constant_grid_model(value=numpy_helper.from_array(GRID))
    error = refusal(ogs.patch_model, model, opset=opset)
    assert (error.argument, error.found) == ("opset", repr(opset))
