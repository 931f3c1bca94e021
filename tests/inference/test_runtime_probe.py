"""The probe of a runtime that is not the installed onnxruntime."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from onnx import TensorProto, helper

from ort_gridsample.inference.runtime_probe import MissingRuntime, OutputType, RuntimeProbe
from support.cases import Attributes
from support.models import grid_sample_model

MODEL = grid_sample_model("float32", "float32", 2, [Attributes()], opset=20)
NODE = helper.make_node("GridSample", [], [], mode="linear")
TYPES = {"X": "float32", "grid": "float32"}


class FakeRuntime:
    """A runtime that returns zeros or raises an error, and counts its runs."""

    def __init__(self, error: str = "", types: Sequence[OutputType] = ()) -> None:
        self.error = error
        self.types = types
        self.n_runs = 0

    def run(
        self, model: bytes, feeds: Sequence[Mapping[str, np.ndarray]], *, optimized: bool
    ) -> list[list[np.ndarray]]:
        self.n_runs += 1
        if self.error:
            raise RuntimeError(self.error)
        return [[np.zeros((1, 1, 3, 3), np.float32)] for _ in feeds]

    def output_types(self, model: bytes) -> list[OutputType]:
        return list(self.types)


def refusal(runtime: FakeRuntime | MissingRuntime) -> str:
    return RuntimeProbe(runtime).refusal(NODE, {"": 20}, "GridSample", TYPES, 2)


@pytest.mark.parametrize(
    "start",
    [
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ",
        "Can't create a session. ERROR_CODE: 9, ERROR_MESSAGE: ",
        "Error: Can't create a session. ERROR_CODE: 9, ERROR_MESSAGE: ",
        "",
    ],
    ids=["onnxruntime", "onnxruntime-web", "with the type of the error", "no code"],
)
def test_refusal_is_the_sentence_of_the_runtime_without_its_error_code(start: str) -> None:
    assert refusal(FakeRuntime(f"{start}Could not find\nan implementation")) == (
        "Could not find an implementation"
    )


def test_refusal_of_a_runtime_with_wrong_outputs_states_the_difference() -> None:
    expected = r"its own kernel is off by 0\.\d+ where values are in \[-1, 1\]"
    assert re.fullmatch(expected, refusal(FakeRuntime()))


def test_refusal_of_equal_nodes_runs_the_node_once() -> None:
    runtime = FakeRuntime("no kernel")
    probe = RuntimeProbe(runtime)
    for _ in range(2):
        probe.refusal(NODE, {"": 20}, "GridSample", TYPES, 2)
    assert runtime.n_runs == 1


@pytest.mark.parametrize(
    ("element_type", "expected"),
    [
        ("float", TensorProto.FLOAT),
        ("float32", TensorProto.FLOAT),
        ("double", TensorProto.DOUBLE),
        ("float64", TensorProto.DOUBLE),
        ("int64", TensorProto.INT64),
    ],
)
def test_types_of_reads_the_names_of_both_runtimes(element_type: str, expected: int) -> None:
    runtime = FakeRuntime(types=[OutputType("Y", element_type, [1, "n"])])
    type_proto = helper.make_tensor_type_proto(expected, [1, None])
    assert RuntimeProbe(runtime).types_of(MODEL) == {"Y": type_proto}


def test_types_of_leaves_out_what_is_not_a_tensor() -> None:
    runtime = FakeRuntime(types=[OutputType("Y", "seq(tensor(float))", [])])
    assert RuntimeProbe(runtime).types_of(MODEL) == {}


def test_missing_runtime_refuses_a_node() -> None:
    assert refusal(MissingRuntime()) == "unknown, because onnxruntime is not installed"


def test_probe_of_a_node_was_not_asked_about_the_model() -> None:
    probe = RuntimeProbe(MissingRuntime())
    probe.refusal(NODE, {"": 20}, "GridSample", TYPES, 2)
    assert not probe.was_asked_about_model


@pytest.mark.parametrize(
    "call",
    [lambda probe: probe.types_of(MODEL), lambda probe: probe.outputs(MODEL, [])],
    ids=["types", "trial"],
)
def test_probe_of_a_part_of_a_model_was_asked_about_the_model(
    call: Callable[[RuntimeProbe], object],
) -> None:
    probe = RuntimeProbe(MissingRuntime())
    assert not call(probe)
    assert probe.was_asked_about_model
