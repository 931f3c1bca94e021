"""Tensors whose values are stored in unusual ways."""

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gridsample.graph.external_data import locations, resolve_locations
from ort_gridsample.graph.files import read_model
from ort_gridsample.graph.model_source import ModelSource
from ort_gridsample.graph.model_splitting import MAX_PARSED_TENSOR_BYTES, split_proto
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.graph.weights import SerializedWeights, Span
from support.compare import refusal
from support.external_data import GRID, cached_model
from support.models import parsed

#: Places of a sparse tensor in a model.
PLACES = ("initializer", "initializer of a branch", "attribute", "attribute of a function")


def external(tensor: TensorProto, location: str) -> TensorProto:
    """Make the values of ``tensor`` external data at ``location``, and return the tensor."""
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def sparse_model(place: str, part: str) -> onnx.ModelProto:
    """Return a model with a sparse tensor, of which one ``part`` is external data.

    Args:
        place: one of PLACES.
        part: "values" or "indices".
    """
    model = parsed("""g (bool c, float[4] X) => (float[4] Y) {
            Y = If (c) <then_branch = t () => (float[4] T) { T = local.same (X) },
                        else_branch = e () => (float[4] E) { E = Identity (X) }> }
        <domain: "local", opset_import: ["": 20]> same (A) => (B) { B = Identity (A) }""")
    values = numpy_helper.from_array(np.ones(1, np.float32), "sparse")
    indices = numpy_helper.from_array(np.zeros(1, np.int64), "indices")
    sparse = helper.make_sparse_tensor(values, indices, [4])
    external(getattr(sparse, part), "../../x")
    if place == "initializer":
        model.graph.sparse_initializer.append(sparse)
    elif place == "initializer of a branch":
        model.graph.node[0].attribute[0].g.sparse_initializer.append(sparse)
    else:
        nodes = model.graph.node if place == "attribute" else model.functions[0].node
        nodes.append(helper.make_node("Constant", [], ["constant"], sparse_value=sparse))
    return model


@pytest.mark.parametrize("part", ["values", "indices"])
@pytest.mark.parametrize("place", PLACES)
def test_external_data_of_sparse_tensor_outside_the_folder_is_refused(
    place: str, part: str, tmp_path: Path
) -> None:
    model = sparse_model(place, part)
    assert [entry.value for entry in locations(model)] == ["../../x"]
    error = refusal(resolve_locations, model, tmp_path / "model.onnx")
    assert (error.argument, error.found) == ("external data", "at '../../x'")


def test_external_data_in_both_folders_of_a_linked_model_is_loaded(tmp_path: Path) -> None:
    path = cached_model(tmp_path)
    model = onnx.load(path, load_external_data=False)
    beside = external(numpy_helper.from_array(GRID, "beside"), "beside.bin")
    model.graph.initializer.append(beside)
    path.write_bytes(model.SerializeToString())  # writes to the file that the path links to
    (path.parent / "beside.bin").write_bytes(GRID.tobytes())
    loaded = read_model(path, external_data=True)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in loaded.graph.initializer}
    np.testing.assert_array_equal(arrays["beside"], GRID)
    np.testing.assert_array_equal(arrays["grid"], GRID)


def large_model(dims: list[int], n_bytes: int) -> onnx.ModelProto:
    """Return a model with a large initializer of this shape, with this number of bytes."""
    model = parsed("g (float[1, 1, 4, 4] X, float[1, 3, 3, 2] G) => (Y) { Y = GridSample (X, G) }")
    weight = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=dims, raw_data=bytes(n_bytes))
    model.graph.initializer.append(weight)
    return model


def test_external_constant_with_the_name_of_a_weight_is_unknown() -> None:
    model = parsed("g (float[4] X) => (float[4] Y) { Y = Add (X, C) }")
    tensor = external(numpy_helper.from_array(np.ones(4, np.float32), "value"), "data.bin")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["C"], value=tensor))
    source = ModelSource(model, SerializedWeights(bytes(16), {"value": Span(0, 16)}))
    (scope,) = scopes_of(model, source)
    assert scope.find_constant("C") is None


@pytest.mark.parametrize("excess", [-4, -1, 1, 4])
def test_weight_with_another_number_of_bytes_is_refused(excess: int) -> None:
    length = MAX_PARSED_TENSOR_BYTES
    source = split_proto(large_model([length], 4 * length + excess))
    error = refusal(source.load)
    assert (error.where, error.argument) == ("initializer 'W'", "raw_data")
    assert error.found == f"of {4 * length + excess} bytes"
    assert error.expected == f"of {4 * length} bytes, as its shape [{length}] requires"


def test_split_proto_does_not_copy_the_values_of_weights() -> None:
    n_bytes = 64 * MAX_PARSED_TENSOR_BYTES
    model = large_model([n_bytes // 4], n_bytes)
    tracemalloc.start()
    try:
        source = split_proto(model)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "W" in source
    assert peak < n_bytes


def test_split_proto_keeps_initializers_of_the_same_name() -> None:
    """A session of onnxruntime takes the values of one of them, with a warning."""
    n_bytes = 2 * MAX_PARSED_TENSOR_BYTES
    model = large_model([n_bytes // 4], n_bytes)
    other = TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[n_bytes // 2])
    other.raw_data = bytes(2 * n_bytes)
    model.graph.initializer.append(other)
    source = split_proto(model)
    source.load()
    assert source.model == model


def test_initializer_of_negative_lengths_is_not_a_weight() -> None:
    dims = [-MAX_PARSED_TENSOR_BYTES, -2]
    source = split_proto(large_model(dims, 8 * MAX_PARSED_TENSOR_BYTES))
    assert "W" not in source
