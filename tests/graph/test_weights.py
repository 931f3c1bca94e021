"""Weights of large models, which a session reads separately from the model."""

import gc
import io
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.graph import files, model_splitting, weights
from ort_gridsample.graph.model_source import ModelSource
from ort_gridsample.graph.model_splitting import split_source
from ort_gridsample.graph.tensors import MAX_SERIALIZED_BYTES, exceeds_protobuf
from ort_gridsample.session import model_preparation
from ort_gridsample.session import session as sessions
from ort_gridsample.session.options import added_initializers
from ort_gridsample.system.threads import submit
from support.models import parsed
from support.paths import quiet_options

SIDE = 300
COUNT = 60
SHAPES = {"m0": (1, 2, 8, SIDE), "grid": (1, 4, 5, 2)}
FEEDS = {
    name: np.random.default_rng(1).uniform(-1, 1, shape).astype("f")
    for name, shape in SHAPES.items()
}


@pytest.fixture(scope="module")
def large() -> onnx.ModelProto:
    """Return a model of 21 MB: a GridSample of 60 products with weights.

    One weight is also an input of the model, and one an output.
    """
    rng = np.random.default_rng(0)
    square = f"float[{SIDE},{SIDE}]"
    nodes = " ".join(f"m{i + 1} = MatMul (m{i}, w{i})" for i in range(COUNT))
    values = (
        f"(float[1,2,8,{SIDE}] m0, float[1,4,5,2] grid, {square} w0) => (float[] Y, {square} w1)"
    )
    model = parsed(f"g {values} {{ {nodes} Y = GridSample (m{COUNT}, grid) }}", 17)
    arrays = (rng.standard_normal((SIDE, SIDE), np.float32) / SIDE**0.5 for _ in range(COUNT))
    model.graph.initializer.extend(
        numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(arrays)
    )
    return model


def save(model: onnx.ModelProto, folder: Path) -> str:
    """Write ``model`` to a file in ``folder``; return its path."""
    path = str(folder / "large.onnx")
    onnx.save(model, path)
    return path


def test_session_reads_weights_at_most_once(
    large: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first call wraps the method. Inside the patch, the wrapper would be removed with it.
    ogs.register()
    parent = sessions._Parent.__init__
    opened = create_autospec(parent, side_effect=parent)
    monkeypatch.setattr(sessions._Parent, "__init__", opened)
    path = save(large, tmp_path)
    # Two weights, an input and an output, stay in the model. All else is smaller than a weight.
    max_bytes = 3 * 4 * SIDE**2
    expected = onnxruntime.InferenceSession(path).run(None, FEEDS)
    for given in (path, Path(path), Path(path).read_bytes(), large):
        for options in (None, quiet_options()):
            session = ogs.InferenceSession(given, options)
            assert len(opened.call_args.args[1]) < max_bytes, type(given)
            outputs = session.run(None, FEEDS)
            for output, expected_output in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(output, expected_output, rtol=1e-5, atol=1e-5)
            assert not session.run(["Y"], {**FEEDS, "w0": np.zeros((SIDE, SIDE), "f")})[0].any()
    copy = pickle.loads(pickle.dumps(session))
    np.testing.assert_array_equal(copy.run(["Y"], FEEDS)[0], session.run(["Y"], FEEDS)[0])


def test_session_stores_weights_at_most_once_and_providers_can_be_set(
    large: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Onnxruntime copies the weights, or reads the memory of the session."""
    is_over = threading.Event()
    request.addfinalizer(is_over.set)
    submit(is_over.wait, 8)  # occupies the other threads, so that none of them helps to read
    original_load = ModelSource.load
    references = list[weakref.ref[np.ndarray]]()

    def load(self: ModelSource) -> weights.LoadedWeights:
        loaded = original_load(self)
        arrays = (*loaded.files.values(), *loaded.arrays.values())
        references.extend(map(weakref.ref, arrays))
        return loaded

    monkeypatch.setattr(ModelSource, "load", load)
    for given in (save(large, tmp_path), large):
        session = ogs.InferenceSession(given, nodes="all")
        before = session.run(["Y"], FEEDS)[0]
        placements = session.placements
        gc.collect()
        n_kept = sum(reference() is not None for reference in references)
        assert n_kept == (1 if model_preparation.READS_MEMORY else 0)
        session.set_providers(["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(["Y"], FEEDS)[0], before)
        assert list(map(str, session.placements)) == list(map(str, placements))
        del session
        gc.collect()
        assert references
        assert all(reference() is None for reference in references)


@pytest.mark.skipif(
    not model_preparation.READS_MEMORY, reason="this onnxruntime copies weights in memory"
)
def test_session_runs_after_external_data_was_deleted(
    large: onnx.ModelProto, tmp_path: Path
) -> None:
    model = onnx.ModelProto.FromString(large.SerializeToString())
    data = bytearray(np.ones(SIDE, "f"))
    tensor = model.graph.initializer.add(name="b", data_type=TensorProto.FLOAT, dims=[SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="external")
    model.graph.node.append(helper.make_node("Add", ["m0", "b"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    options = quiet_options()
    path = save(model, tmp_path)
    (tmp_path / "external").write_bytes(data)
    options.add_external_initializers_from_files_in_memory(["external"], [data], [len(data)])
    for session in (ogs.InferenceSession(model, options), ogs.InferenceSession(path)):
        data[:] = bytes(len(data))
        np.testing.assert_array_equal(session.run(["Z"], FEEDS)[0], FEEDS["m0"] + 1)


def test_optimized_model_contains_all_weights_and_added_initializers(
    large: onnx.ModelProto, tmp_path: Path
) -> None:
    options = quiet_options()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    expected = ogs.InferenceSession(save(large, tmp_path), options).run(["Y"], FEEDS)[0]
    output = ogs.InferenceSession(options.optimized_model_filepath).run(["Y"], FEEDS)[0]
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)
    added = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((SIDE, SIDE), "f"))
    options = quiet_options()
    options.add_initializer("w7", added)
    assert not ogs.InferenceSession(save(large, tmp_path), options).run(["Y"], FEEDS)[0].any()


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


def test_unread_weight_is_not_passed_to_the_session(large: onnx.ModelProto, tmp_path: Path) -> None:
    """Onnxruntime drops the weight, and would then refuse its name."""
    model = onnx.ModelProto.FromString(large.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(np.ones((SIDE, SIDE), "f"), "unread"))
    output, _ = ogs.InferenceSession(save(model, tmp_path)).run(None, FEEDS)
    np.testing.assert_allclose(
        output, ogs.InferenceSession(large).run(["Y"], FEEDS)[0], rtol=1e-5, atol=1e-5
    )


def test_file_of_a_descriptor_is_not_closed(tmp_path: Path) -> None:
    with (tmp_path / "external").open("w") as file:
        with pytest.raises(TypeError, match="Unable to load from type"):
            ogs.InferenceSession(file.fileno())  # type: ignore[arg-type]
        file.write("open")


def test_small_model_is_parsed_by_protobuf(tmp_path: Path) -> None:
    small = b"1" * (model_splitting.MIN_MODEL_BYTES - 1)
    assert split_source(small) is None
    (tmp_path / "small").write_bytes(small)
    assert split_source(tmp_path / "small") is None
    assert split_source(tmp_path / "missing") is None


@pytest.mark.parametrize("other", ["w is added", "maximum", "shape 0"])
def test_added_initializers_of_any_names_are_found(other: str) -> None:
    options = onnxruntime.SessionOptions()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.int64))
    options.add_initializer("w", value)
    assert added_initializers(options, sorted(["w", other])) == {"w"}


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
