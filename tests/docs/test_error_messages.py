"""The table of error messages in the README: each message is provoked, and its remedy works."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import main
from support import faults
from support.models import parsed
from support.pages import PAGES

_ROW = re.compile(r"^\| (`.+`) \| (?:onnxruntime|TensorRT|PyTorch) \| (.+) \|$", re.MULTILINE)
#: A message in the README's table -> what to do about it, in Python and with a file.
REMEDIES = {
    message: remedy
    for messages, remedy in _ROW.findall(PAGES["README.md"])
    for message in re.findall("`([^`]+)`", messages)
}

IMAGES = "g (TYPE[1, 2, 5, 6] X, GRID[1, 3, 4, 2] G) => (TYPE[1, 2, 3, 4] Y)"
VOLUMES = "g (float[1, 1, 4, 5, 6] X, float[1, 2, 3, 4, 3] G) => (float[1, 1, 2, 3, 4] Y)"
OF_MMDEPLOY = "mmdeploy:grid_sampler(-1) is not a registered function/op"
ATTRIBUTES = "interpolation_mode = 0, padding_mode = 0, align_corners = 0"
MMDEPLOY = f"Y = mmdeploy.grid_sampler <{ATTRIBUTES}> (X, G)"


def images(node: str, X: str = "float", grid: str = "float") -> str:
    return f"{IMAGES.replace('TYPE', X).replace('GRID', grid)} {{ {node} }}"


#: Message of onnxruntime -> a model that it refuses or does not run, and its opset. The installed
#: release need not print the last two: volumes and grids of float64 were refused in other ways.
MODELS: dict[str, tuple[str, int]] = {
    "Could not find an implementation for GridSample": (
        images('Y = GridSample <mode = "nearest"> (X, G)', X="uint8"),
        20,
    ),
    "Only support GridSample Cubic mode in 4-D cases": (
        f'{VOLUMES} {{ Y = GridSample <mode = "cubic"> (X, G) }}',
        20,
    ),
    "No Op registered for GridSample3D": (
        f"{VOLUMES} {{ Y = GridSample3D <{ATTRIBUTES}> (X, G) }}",
        17,
    ),
    OF_MMDEPLOY: (images(MMDEPLOY), 11),
    "Only 4-D tensor is supported": (f"{VOLUMES} {{ Y = GridSample (X, G) }}", 16),
    "Type 'tensor(double)' of input parameter (grid)": (
        images("Y = GridSample (X, G)", grid="double"),
        16,
    ),
}
PROVOKED = list(MODELS)[:4]
OF_TENSORRT = ("Cannot find plugin: grid_sampler", "could not find plugin: grid_sampler")


def feeds_of(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    dtypes = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(uint8)": "u1"}
    return {
        value.name: generator.uniform(-1, 1, value.shape).astype(dtypes[value.type])
        if value.name == "G"
        else generator.integers(0, 100, value.shape).astype(dtypes[value.type])
        for value in session.get_inputs()
    }


def expected_of(message: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    text, _ = MODELS[message]
    mode = re.search(r'mode = "(\w+)"', text)
    return ogs.grid_sample(feeds["X"], feeds["G"], mode[1] if mode else "linear")


def test_table_has_a_test_for_each_message() -> None:
    tested = {*MODELS, *EXPORTS, *OF_TENSORRT}
    assert {*REMEDIES} == tested


@pytest.mark.parametrize("message", PROVOKED)
def test_onnxruntime_prints_the_message(message: str) -> None:
    text, opset = MODELS[message]
    model = parsed(text, opset).SerializeToString()
    with pytest.raises(Exception, match=re.escape(message)):  # noqa: PT012 -- some fail in the run
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        session.run(None, feeds_of(session))


@pytest.mark.parametrize("message", MODELS)
def test_session_runs_the_model_of_the_message(message: str) -> None:
    assert "ogs.InferenceSession" in REMEDIES[message]
    text, opset = MODELS[message]
    model = parsed(text, opset)
    faults.skip_unread(model)
    session = ogs.InferenceSession(model)
    feeds = feeds_of(session)
    [Y] = session.run(None, feeds)
    np.testing.assert_allclose(Y, expected_of(message, feeds), rtol=0, atol=1e-4)


def run_command_of(message: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """Run the command of a message's row on a model, and return the file that it writes."""
    (command,) = re.findall(r"`ort-gridsample (patch IN OUT [^`]+)`", REMEDIES[message])
    onnx.save(model, "IN")
    assert not main(command.split())
    return onnx.load("OUT")


@pytest.mark.parametrize("message", [*MODELS, *OF_TENSORRT])
def test_command_writes_a_file_that_onnxruntime_runs(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT's messages are about a node of mmdeploy."""
    monkeypatch.chdir(tmp_path)
    known = message if message in MODELS else OF_MMDEPLOY
    text, opset = MODELS[known]
    patched = run_command_of(message, parsed(text, opset))
    faults.skip_unread(patched)
    if "--target ai.onnx" in REMEDIES[message]:
        assert [(node.domain, node.op_type) for node in patched.graph.node] == [("", "GridSample")]
    session = onnxruntime.InferenceSession(
        patched.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = feeds_of(session)
    np.testing.assert_allclose(
        session.run(None, feeds)[0], expected_of(known, feeds), rtol=0, atol=1e-4
    )


#: Message of PyTorch's older exporter -> the operator, the lengths of its inputs, and the opset.
EXPORTS: dict[str, tuple[str, list[tuple[int, ...]], int]] = {
    "Exporting the operator 'aten::grid_sampler' to ONNX opset version 11 is not supported": (
        "grid_sample",
        [(1, 2, 5, 6), (1, 3, 4, 2)],
        11,
    ),
    "ONNX export of operator GridSample with 5D volumetric input": (
        "grid_sample",
        [(1, 1, 4, 5, 6), (1, 2, 3, 4, 3)],
        16,
    ),
    "Exporting the operator 'aten::affine_grid_generator'": ("affine_grid", [(1, 2, 3)], 16),
}
Export = Callable[[int], onnx.ModelProto]


@pytest.fixture(params=EXPORTS)
def message(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("torch.onnx.symbolic_helper", reason="this PyTorch has no older exporter")
    return request.param


def exporter_of(message: str) -> tuple[Export, list[np.ndarray], np.ndarray]:
    """Return a function that exports the operator in an opset, its inputs, and PyTorch's output."""
    import torch

    operator, shapes, _ = EXPORTS[message]

    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            if operator == "affine_grid":
                return torch.nn.functional.affine_grid(tensors[0], [1, 1, 4, 5], False)
            return torch.nn.functional.grid_sample(*tensors, align_corners=False)

    tensors = tuple(torch.rand(shape) * 2 - 1 for shape in shapes)

    def export(opset: int) -> onnx.ModelProto:
        file = io.BytesIO()
        torch.onnx.export(Module(), tensors, file, dynamo=False, opset_version=opset)
        return onnx.load_from_string(file.getvalue())

    return export, [tensor.numpy() for tensor in tensors], Module()(*tensors).numpy()


def run_model(model: onnx.ModelProto, inputs: list[np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def test_pytorch_prints_the_message(message: str) -> None:
    export, _, _ = exporter_of(message)
    with pytest.raises(Exception, match=re.escape(message)):
        export(EXPORTS[message][2])


def test_export_in_the_stated_opset_has_the_outputs_of_pytorch(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    export, inputs, expected = exporter_of(message)
    (opset,) = re.findall(r"`opset_version=(\d+)`", REMEDIES[message])
    models = [export(int(opset))]
    if "--target" in REMEDIES[message]:
        models.append(run_command_of(message, models[0]))
    if "torch_symbolics" in REMEDIES[message]:
        with ogs.torch_symbolics():
            models.append(export(EXPORTS[message][2]))
    for model in models:
        np.testing.assert_allclose(run_model(model, inputs), expected, rtol=0, atol=1e-5)
