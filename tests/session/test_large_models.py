"""ModelProtos over protobuf's limit: sessions get their large initializers apart."""

import pickle
import re
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import EncodeError
from onnx import helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample import GridSampleError
from ort_gridsample.graph import tensors
from ort_gridsample.rewriting.passes import Selection
from ort_gridsample.session import model_preparation
from ort_gridsample.session import session as sessions
from ort_gridsample.system import memory
from support.fused_models import needs_compiled_ops
from support.models import parsed
from support.processes import run_program

#: The tests' limit: the models' weights are over it, and everything else is below.
LIMIT = 1 << 20
COUNT = 5
SHAPE = (64, 1024)
TEXT = "float[1,1,2,2] X, float[1,1,3,2] G, int64[1] index"
BODY = "Y = GridSample (X, G)"
RNG = np.random.default_rng(0)
FEEDS = {
    "X": RNG.standard_normal((1, 1, 2, 2), np.float32),
    "G": RNG.uniform(-1, 1, (1, 1, 3, 2)).astype(np.float32),
    "index": np.array([3]),
}


def large_model(body: str = BODY, extra_outputs: str = "", unread: bool = False) -> onnx.ModelProto:
    """A model with :data:`COUNT` weights, each read by a Gather, and the nodes of ``body``."""
    gathers = " ".join(f"r{i} = Gather (w{i}, index)" for i in range(COUNT))
    rows = ", ".join(f"r{i}" for i in range(COUNT))
    model = parsed(
        f"g ({TEXT}) => (float[] Y, float[] R{extra_outputs}) {{"
        f" {gathers} R = Sum ({rows}) {body} }}",
        20,
    )
    names = [f"w{i}" for i in range(COUNT)] + (["unread"] if unread else [])
    arrays = [RNG.standard_normal(SHAPE, np.float32) for _ in names]
    model.graph.initializer.extend(map(numpy_helper.from_array, arrays, names))
    return model


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_SERIALIZED_BYTES", LIMIT)


def run(session: onnxruntime.InferenceSession) -> list[np.ndarray]:
    return session.run(["Y", "R"], FEEDS)


def check(session: onnxruntime.InferenceSession, expected: list[np.ndarray]) -> None:
    for output, right in zip(run(session), expected, strict=True):
        np.testing.assert_allclose(output, right, rtol=1e-5, atol=1e-5)


BODIES = {"GridSample": BODY, "no sampling node": "Y = Add (X, X)"}


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("nodes", [None, "all", "unsupported"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_session_of_a_large_model_has_the_outputs_of_onnxruntime(
    body: str, nodes: Selection | None
) -> None:
    model = large_model(body)
    before = model.SerializeToString()
    expected = run(onnxruntime.InferenceSession(before))
    session = ogs.InferenceSession(model, nodes=nodes)
    assert model.SerializeToString() == before
    check(session, expected)


@pytest.mark.usefixtures("limit")
def test_session_of_a_large_model_with_unread_weights_runs() -> None:
    model = large_model(unread=True)
    check(ogs.InferenceSession(model), run(onnxruntime.InferenceSession(model.SerializeToString())))


@pytest.mark.usefixtures("limit")
def test_session_of_a_large_model_keeps_its_weights_when_the_model_changes() -> None:
    model = large_model()
    expected = run(onnxruntime.InferenceSession(model.SerializeToString()))
    session = ogs.InferenceSession(model)
    for tensor in model.graph.initializer:
        tensor.raw_data = bytes(len(tensor.raw_data))
    model.Clear()
    check(session, expected)
    session.set_providers(["CPUExecutionProvider"])
    check(session, expected)


@needs_compiled_ops
@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("unread", [False, True])
def test_session_of_a_large_model_with_a_fused_grid_is_opened_again(unread: bool) -> None:
    model = large_model("M = Add (G, S) Y = GridSample (X, M)", unread=unread)
    shift = numpy_helper.from_array(np.full((1, 1, 3, 2), 0.25, np.float32), "S")
    model.graph.initializer.append(shift)
    expected = run(onnxruntime.InferenceSession(model.SerializeToString()))
    session = ogs.InferenceSession(model)
    model.Clear()
    counts = [len(placement.fused) for placement in session.placements]
    session.set_providers(["CPUExecutionProvider"])
    assert [len(placement.fused) for placement in session.placements] == counts == [1]
    check(session, expected)


@pytest.mark.usefixtures("limit")
def test_session_of_a_large_model_takes_initializers_of_its_options() -> None:
    model = large_model()
    array = np.zeros(SHAPE, np.float32)
    for name in ("w0", "w1"):
        options = onnxruntime.SessionOptions()
        options.add_initializer(name, value := onnxruntime.OrtValue.ortvalue_from_numpy(array))
        expected = run(onnxruntime.InferenceSession(model.SerializeToString(), options))
        check(ogs.InferenceSession(model, options), expected)
        del value


def saving_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = "optimized.onnx"
    return options


def model_with_constant() -> onnx.ModelProto:
    model = large_model("Y = GridSample (X, G) C = Add (K, K)", ", float[] C")
    values = numpy_helper.from_array(RNG.standard_normal((512, 1024), np.float32))
    model.graph.node.insert(0, helper.make_node("Constant", [], ["K"], value=values))
    return model


def model_with_weights_as_inputs() -> onnx.ModelProto:
    model = large_model()
    for i in range(COUNT):
        model.graph.input.append(helper.make_tensor_value_info(f"w{i}", 1, SHAPE))
    return model


REFUSED = {
    "values in a Constant": (
        model_with_constant,
        {},
        "its values are not in the main graph's initializers",
    ),
    "weights that are inputs": (model_with_weights_as_inputs, {}, "or are inputs or outputs too"),
    "another provider": (
        large_model,
        {"providers": ["OtherProvider"]},
        "OtherProvider gets whole models only",
    ),
    "a model to save": (
        large_model,
        {"sess_options": saving_options},
        "the optimized model cannot be saved",
    ),
}


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(("make", "arguments", "reason"), REFUSED.values(), ids=REFUSED)
def test_session_of_a_large_model_that_cannot_work_raises_the_reason(
    make: Callable[[], onnx.ModelProto],
    arguments: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        sessions, "accelerators_of", lambda names, _: [(n, {}) for n in names or []]
    )
    given = {name: value() if callable(value) else value for name, value in arguments.items()}
    with pytest.raises(GridSampleError, match=re.escape(reason)) as caught:
        ogs.InferenceSession(make(), **given)
    assert caught.value.argument == "the model"
    assert "save_as_external_data" in caught.value.expected


@pytest.mark.usefixtures("limit")
def test_session_of_a_large_model_cannot_be_pickled() -> None:
    session = ogs.InferenceSession(large_model())
    with pytest.raises(GridSampleError, match="the session cannot be pickled"):
        pickle.dumps(session)


def test_model_that_protobuf_cannot_serialize_raises_its_error() -> None:
    """Whatever its size was estimated to be."""
    model = Mock(spec=onnx.ModelProto)
    model.SerializeToString.side_effect = EncodeError("Failed to serialize proto")
    with pytest.raises(GridSampleError, match="Failed to serialize proto"):
        model_preparation.serialized(model)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    (memory.available() or 0) < 16 << 30, reason="there are less than 16 GiB of free memory"
)
def test_session_of_a_model_of_2_5_gib_takes_the_model_once_more() -> None:
    (line,) = run_program("large_model.py", timeout=880)
    runs_on, difference, gib = line.rsplit(" ", 2)
    assert runs_on in ("compiled op", "Python op")
    assert float(difference) < 1e-5
    assert float(gib) < 2.5 + 0.5
