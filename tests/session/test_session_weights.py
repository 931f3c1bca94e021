"""The weights of a large model in a session."""

import gc
import pickle
import threading
import weakref
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.graph import weights
from ort_gridsample.graph.model_source import ModelSource
from ort_gridsample.session import model_preparation
from ort_gridsample.session import session as sessions
from ort_gridsample.session.options import added_initializers
from ort_gridsample.system.threads import submit
from support.large_weights import FEEDS, SIDE, large_weights_model, save
from support.paths import quiet_options


@pytest.fixture(scope="module")
def large() -> onnx.ModelProto:
    return large_weights_model()


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


@pytest.mark.parametrize("other", ["w is added", "maximum", "shape 0"])
def test_added_initializers_of_any_names_are_found(other: str) -> None:
    options = onnxruntime.SessionOptions()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 2), np.int64))
    options.add_initializer("w", value)
    assert added_initializers(options, sorted(["w", other])) == {"w"}
