"""A model's large initializers are read once: neither parsed, nor copied with the model, nor serialised."""

import gc
import pickle
import threading
import weakref
from collections.abc import Collection
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.graph import files, weights
from ort_gridsample.graph.weights import Weights, split
from ort_gridsample.reference.threads import submit
from ort_gridsample.session import builder
from ort_gridsample.session import session as sessions
from support.models import parsed
from support.paths import quiet_options

SIDE, COUNT = 300, 60
SHAPES = {"m0": (1, 2, 8, SIDE), "grid": (1, 4, 5, 2)}
FEEDS = {
    name: np.random.default_rng(1).uniform(-1, 1, shape).astype("f")
    for name, shape in SHAPES.items()
}


@pytest.fixture(scope="module")
def large() -> onnx.ModelProto:
    """A model of 21 MB: a GridSample behind 60 products with weights, one of which is also an input, one an output."""
    rng, square = np.random.default_rng(0), f"float[{SIDE},{SIDE}]"
    nodes = " ".join(f"m{i + 1} = MatMul (m{i}, w{i})" for i in range(COUNT))
    values = (
        f"(float[1,2,8,{SIDE}] m0, float[1,4,5,2] grid, {square} w0) => (float[] Y, {square} w1)"
    )
    model = parsed(f"g {values} {{ {nodes} Y = GridSample (m{COUNT}, grid) }}", 17)
    arrays = (rng.standard_normal((SIDE, SIDE), np.float32) / SIDE**0.5 for _ in range(COUNT))
    model.graph.initializer.extend(
        numpy_helper.from_array(each, f"w{i}") for i, each in enumerate(arrays)
    )
    return model


def saved(model: onnx.ModelProto, folder: Path) -> str:
    onnx.save(model, path := str(folder / "large.onnx"))
    return path


def test_weights_are_read_at_most_once(
    large: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = sessions._Parent.__init__
    opened = create_autospec(parent, side_effect=parent)
    monkeypatch.setattr(sessions._Parent, "__init__", opened)
    path, bare = (
        saved(large, tmp_path),
        3 * 4 * SIDE**2,
    )  # of the one that is an input, of the output, and all the rest
    expected = onnxruntime.InferenceSession(path).run(None, FEEDS)
    for given in (path, Path(path), Path(path).read_bytes(), large):
        for options in (None, quiet_options()):
            session = ogs.InferenceSession(given, options)
            assert len(opened.call_args.args[1]) < bare, type(given)
            for answer, right in zip(session.run(None, FEEDS), expected, strict=True):
                np.testing.assert_allclose(answer, right, rtol=1e-5, atol=1e-5)
            assert not session.run(["Y"], {**FEEDS, "w0": np.zeros((SIDE, SIDE), "f")})[0].any()
    again = pickle.loads(pickle.dumps(session))
    np.testing.assert_array_equal(again.run(["Y"], FEEDS)[0], session.run(["Y"], FEEDS)[0])


def test_weights_are_kept_at_most_once_and_providers_can_be_set(
    large: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Onnxruntime has a copy of its own, or reads what the session keeps; and makes it anew from what it was given."""
    late = threading.Event()
    request.addfinalizer(late.set)
    submit(late.wait, 8)  # until then no other thread helps to read
    loaded, kept = Weights.loaded, list[weakref.ref[np.ndarray]]()

    def watched(self: Weights, tensors: Collection[onnx.TensorProto]) -> weights.Loaded:
        found = loaded(self, tensors)
        kept.extend(map(weakref.ref, (found.memory, *found.arrays.values())))
        return found

    monkeypatch.setattr(Weights, "loaded", watched)
    for given in (saved(large, tmp_path), large):
        session = ogs.InferenceSession(given, nodes="all")
        before, placements = session.run(["Y"], FEEDS)[0], session.replaced
        gc.collect()
        assert sum(ref() is not None for ref in kept) == builder.READS_MEMORY
        session.set_providers(["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(["Y"], FEEDS)[0], before)
        assert [str(each) for each in session.replaced] == [str(each) for each in placements]
        del session
        gc.collect()
        assert kept
        assert not any(ref() is not None for ref in kept)


@pytest.mark.skipif(not builder.READS_MEMORY, reason="this onnxruntime copies what is in memory")
def test_a_model_s_own_external_data_may_end_before_the_session(
    large: onnx.ModelProto, tmp_path: Path
) -> None:
    model, data = (
        onnx.ModelProto.FromString(large.SerializeToString()),
        bytearray(np.ones(SIDE, "f")),
    )
    tensor = model.graph.initializer.add(name="b", data_type=TensorProto.FLOAT, dims=[SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="theirs")
    model.graph.node.append(helper.make_node("Add", ["m0", "b"], ["Z"]))
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, None))
    options, path = quiet_options(), saved(model, tmp_path)
    (tmp_path / "theirs").write_bytes(data)
    options.add_external_initializers_from_files_in_memory(["theirs"], [data], [len(data)])
    for session in (ogs.InferenceSession(model, options), ogs.InferenceSession(path)):
        data[:] = bytes(len(data))
        np.testing.assert_array_equal(session.run(["Z"], FEEDS)[0], FEEDS["m0"] + 1)


def test_a_saved_model_has_all_weights_and_one_that_was_added_is_met(
    large: onnx.ModelProto, tmp_path: Path
) -> None:
    options = quiet_options()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    expected = ogs.InferenceSession(saved(large, tmp_path), options).run(["Y"], FEEDS)[0]
    answer = ogs.InferenceSession(options.optimized_model_filepath).run(["Y"], FEEDS)[0]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)
    added, options = (
        onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((SIDE, SIDE), "f")),
        quiet_options(),
    )
    options.add_initializer("w7", added)
    assert not ogs.InferenceSession(saved(large, tmp_path), options).run(["Y"], FEEDS)[0].any()


def test_what_is_split_makes_the_same_model_again(large: onnx.ModelProto, tmp_path: Path) -> None:
    path = saved(large, tmp_path)
    for source in (path, Path(path).read_bytes()):
        model, apart = split(source)
        assert len(apart.places) == COUNT - 2
        assert apart.put_back(model, apart.places).places == {}
        assert model == large


def test_weights_that_lie_elsewhere_or_in_parts_stay(large: onnx.ModelProto) -> None:
    model = onnx.ModelProto.FromString(large.SerializeToString())
    _, _, elsewhere, external, segment, *others = (
        model.graph.initializer
    )  # the first are an input and an output
    elsewhere.external_data.add(key="location", value="theirs")
    external.data_location = TensorProto.EXTERNAL
    segment.segment.begin = 0
    _, apart = split(model.SerializeToString()) or pytest.fail("it is parsed whole")
    assert apart.places.keys() == {tensor.name for tensor in others}


def test_a_file_that_became_shorter_is_an_error(large: onnx.ModelProto, tmp_path: Path) -> None:
    model, apart = split(path := saved(large, tmp_path)) or pytest.fail("it is parsed whole")
    with open(path, "rb+") as file:
        file.truncate(weights.SMALL_MODEL // 2)
    with pytest.raises(OSError, match=r"large\.onnx' ends before the values of w\d+$"):
        apart.loaded(model.graph.initializer)


#: Fields that no ONNX has: of 4, 8 and some bytes, and a number; a kind of old, and a number without an end.
FIELDS = {"fields of others": b"\xc5\x0c1234\xc1\x0c12345678\xc2\x0c\x0212\xc0\x0c\xff\x01"}
FIELDS |= {"a group": b"\xc3\x0c\xc4\x0c", "an endless number": b"\xc0\x0c" + b"\xff" * 11}


@pytest.mark.parametrize("before", FIELDS.values(), ids=FIELDS)
def test_fields_of_others_stay(before: bytes, large: onnx.ModelProto) -> None:
    parts = split(data := before + large.SerializeToString())
    assert (parts is None) == (before != FIELDS["fields of others"])
    if parts is not None:
        parts[1].put_back(parts[0], parts[1].places)
        assert parts[0] == onnx.ModelProto.FromString(data) != large


def test_lengths_whose_lowest_bits_are_0(large: onnx.ModelProto) -> None:
    """Each byte of them but the last is 128 then."""
    model = onnx.ModelProto.FromString(large.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 19, np.float32), "zeros"))
    _, apart = split(model.SerializeToString()) or pytest.fail("it is parsed whole")
    assert apart.places["zeros"][1] == 1 << 21


@pytest.mark.parametrize(
    "change", ["cut", "twice", "two graphs", "no bytes", "too short", "another type"]
)
def test_what_is_not_as_expected_is_parsed_whole(change: str, large: onnx.ModelProto) -> None:
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
    another = onnx.ModelProto(graph=onnx.GraphProto()).SerializeToString()
    data = data[:-100] if change == "cut" else data + another * (change == "two graphs")
    parts = split(data)
    if change in ("cut", "twice", "two graphs"):
        assert parts is None
    else:
        assert parts is not None
        assert "w5" not in parts[1]
        parts[1].put_back(parts[0], parts[1].places)
        assert parts[0] == files.read_model(data)


def test_a_weight_that_nobody_reads(large: onnx.ModelProto, tmp_path: Path) -> None:
    """Onnxruntime drops it, and knows no such name then."""
    model = onnx.ModelProto.FromString(large.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(np.ones((SIDE, SIDE), "f"), "unread"))
    answer, _ = ogs.InferenceSession(saved(model, tmp_path)).run(None, FEEDS)
    np.testing.assert_allclose(
        answer, ogs.InferenceSession(large).run(["Y"], FEEDS)[0], rtol=1e-5, atol=1e-5
    )


def test_the_file_of_a_number_is_another_s(tmp_path: Path) -> None:
    with (tmp_path / "theirs").open("w") as file:
        with pytest.raises(TypeError, match="Unable to load from type"):
            ogs.InferenceSession(file.fileno())  # type: ignore[arg-type]
        file.write("open")


def test_small_models_are_parsed_whole(tmp_path: Path) -> None:
    small = b"1" * (weights.SMALL_MODEL - 1)
    assert split(small) is None
    (tmp_path / "small").write_bytes(small)
    assert split(tmp_path / "small") is None
    assert split(tmp_path / "there is none") is None
