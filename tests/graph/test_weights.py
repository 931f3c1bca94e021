"""Weights of large models, which are read separately from the model."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_gridsample.graph import files, model_splitting, weights
from ort_gridsample.graph.model_splitting import split_source
from ort_gridsample.graph.tensors import MAX_SERIALIZED_BYTES, exceeds_protobuf
from support.large_weights import COUNT, large_weights_model, save


@pytest.fixture(scope="module")
def large() -> onnx.ModelProto:
    return large_weights_model()


def test_split_model_is_joined_to_the_same_model(large: onnx.ModelProto, tmp_path: Path) -> None:
    path = save(large, tmp_path)
    for source in (path, Path(path).read_bytes()):
        split = split_source(source) or pytest.fail("nothing was split")
        assert len(split.names) == COUNT - 2
        split.restore()
        assert not split.names
        assert split.model == large


def test_external_or_segmented_weights_are_not_split_off(large: onnx.ModelProto) -> None:
    model = onnx.ModelProto.FromString(large.SerializeToString())
    # The first two are an input and an output.
    _, _, with_location, external, segment, *others = model.graph.initializer
    with_location.external_data.add(key="location", value="external")
    external.data_location = TensorProto.EXTERNAL
    segment.segment.begin = 0
    split = split_source(model.SerializeToString()) or pytest.fail("nothing was split")
    assert split.names == {tensor.name for tensor in others}


class PartialFile(io.FileIO):
    """A file that is read 1000 bytes at a time, as systems read at most 2 GiB at a time."""

    def readinto(self, buffer: Any) -> int:
        return super().readinto(memoryview(buffer)[:1000])


def test_weight_that_the_system_reads_in_parts_is_read_whole(
    large: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(large, tmp_path)
    split = split_source(path) or pytest.fail("nothing was split")
    monkeypatch.setattr(weights, "open", lambda path, *_, **__: PartialFile(path), raising=False)
    arrays = split.load().arrays
    assert arrays
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in large.graph.initializer}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, values[name])


def test_truncated_file_raises(large: onnx.ModelProto, tmp_path: Path) -> None:
    path = save(large, tmp_path)
    split = split_source(path) or pytest.fail("nothing was split")
    with open(path, "rb+") as file:
        file.truncate(model_splitting.MIN_MODEL_BYTES // 2)
    with pytest.raises(OSError, match=r"large\.onnx' ends before the values of w\d+$"):
        split.load()


#: Fields that ONNX lacks: of 4 bytes, of 8 bytes, of a stated length, and a number.
OTHER_FIELDS = b"\xc5\x0c1234\xc1\x0c12345678\xc2\x0c\x0212\xc0\x0c\xff\x01"


def test_unknown_fields_are_kept(large: onnx.ModelProto) -> None:
    data = OTHER_FIELDS + large.SerializeToString()
    split = split_source(data) or pytest.fail("nothing was split")
    split.restore()
    assert split.model == onnx.ModelProto.FromString(data)
    assert split.model != large


@pytest.mark.parametrize(
    "field",
    [b"\xc3\x0c\xc4\x0c", b"\xc0\x0c" + b"\xff" * 11],
    ids=["deprecated group", "endless number"],
)
def test_model_with_unreadable_field_is_not_split(field: bytes, large: onnx.ModelProto) -> None:
    assert split_source(field + large.SerializeToString()) is None


def test_length_with_zero_lowest_bits_is_read(large: onnx.ModelProto) -> None:
    """Each byte of the encoded length but the last is 128."""
    model = onnx.ModelProto.FromString(large.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 19, np.float32), "zeros"))
    split = split_source(model.SerializeToString()) or pytest.fail("nothing was split")
    assert split.load().arrays["zeros"].nbytes == 1 << 21


@pytest.mark.parametrize(
    "change", ["cut", "twice", "two graphs", "no bytes", "too short", "another type"]
)
def test_unexpected_encoding_is_parsed_by_protobuf(change: str, large: onnx.ModelProto) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(large)
    tensor = model.graph.initializer[5]
    if change == "twice":
        model.graph.initializer.add().CopyFrom(tensor)
    elif change == "no bytes":
        tensor.CopyFrom(
            helper.make_tensor(
                "w5", TensorProto.FLOAT, tensor.dims, numpy_helper.to_array(tensor).ravel()
            )
        )
    elif change == "too short":
        tensor.raw_data = tensor.raw_data[:-4]
    elif change == "another type":
        tensor.data_type = TensorProto.STRING
    data = model.SerializeToString()
    if change == "cut":
        data = data[:-100]
    elif change == "two graphs":
        data += onnx.ModelProto(graph=onnx.GraphProto()).SerializeToString()
    split = split_source(data)
    if change in ("cut", "twice", "two graphs"):
        assert split is None
        return
    assert split is not None
    assert "w5" not in split
    split.restore()
    assert split.model == files.read_model(data)


def test_small_model_is_parsed_by_protobuf(tmp_path: Path) -> None:
    small = b"1" * (model_splitting.MIN_MODEL_BYTES - 1)
    assert split_source(small) is None
    (tmp_path / "small").write_bytes(small)
    assert split_source(tmp_path / "small") is None
    assert split_source(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("element_type", "element_bytes"),
    [
        (TensorProto.BFLOAT16, 2),
        (TensorProto.FLOAT, 4),
        (TensorProto.COMPLEX64, 8),
        (TensorProto.COMPLEX128, 16),
    ],
)
def test_exceeds_protobuf_counts_the_bytes_of_an_element(
    element_type: int, element_bytes: int
) -> None:
    n_elements = MAX_SERIALIZED_BYTES // element_bytes
    tensor = TensorProto(name="w", data_type=element_type, dims=[n_elements])
    model = onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor]))
    assert not exceeds_protobuf(model)
    model.graph.initializer[0].dims[0] = n_elements + 1
    assert exceeds_protobuf(model)


def model_with_tensor(place: str) -> onnx.ModelProto:
    """Return a model of a tensor that is too large, as an initializer or a Constant's value."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1 << 20, 1 << 10])
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    branch = onnx.GraphProto(name="branch", initializer=[tensor])
    sparse = onnx.SparseTensorProto(values=tensor)
    list_attributes: dict[str, dict[str, list[object]]] = {
        "list of tensors": {"tensors": [tensor]},
        "list of graphs": {"graphs": [branch]},
        "list of sparse tensors": {"sparse_tensors": [sparse]},
    }
    model = onnx.ModelProto(graph=onnx.GraphProto())
    if place == "constant":
        model.graph.node.append(constant)
    elif place in ("sparse tensor", "indices"):
        if place == "indices":
            sparse = onnx.SparseTensorProto(indices=tensor)
        node = helper.make_node("Constant", [], ["w"], sparse_value=sparse)
        model.graph.node.append(node)
    elif place in list_attributes:
        attributes = list_attributes[place]
        node = helper.make_node("Foreign", [], ["w"], domain="foreign", **attributes)
        model.graph.node.append(node)
    elif place == "branch":
        model.graph.node.append(helper.make_node("If", ["c"], ["Y"], then_branch=branch))
    elif place == "branch of a branch":
        inner = helper.make_node("If", ["c"], ["Y"], then_branch=branch)
        outer = onnx.GraphProto(name="outer", node=[inner])
        model.graph.node.append(helper.make_node("If", ["c"], ["Y"], then_branch=outer))
    else:
        model.functions.append(onnx.FunctionProto(name="f", node=[constant]))
    return model


@pytest.mark.parametrize(
    "place",
    [
        "constant",
        "branch",
        "branch of a branch",
        "function",
        "sparse tensor",
        "indices",
        "list of tensors",
        "list of graphs",
        "list of sparse tensors",
    ],
)
def test_exceeds_protobuf_counts_tensors_at_any_depth(place: str) -> None:
    assert exceeds_protobuf(model_with_tensor(place))
