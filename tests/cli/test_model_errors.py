"""Test the commands on models and files that they cannot fully compare or read."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from ort_gridsample.cli import bench, main
from support.cases import Attributes
from support.models import grid_sample_model


def save_sequence_model(path: Path) -> None:
    """Save a model whose output ``list`` is a sequence."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 16]> sequence
        (float[1, 1, 4, 4] X, float[1, 2, 2, 2] grid)
        => (float[1, 1, 2, 2] Y, seq(float[1, 1, 2, 2]) list) {
            Y = GridSample (X, grid)
            list = SequenceConstruct (Y, Y)
        }""")
    onnx.save(model, path)


def test_bench_refuses_an_output_that_is_no_tensor_before_timing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "sequence.onnx"
    save_sequence_model(path)

    def measure(*arguments: object) -> None:
        raise AssertionError("the model is timed")

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["bench", str(path), "--seconds", "0"]) == 2
    assert "bench: output 'list' is a list, expected a tensor" in capsys.readouterr().err


def test_verify_accepts_models_in_ort_format(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "model.onnx"
    path = tmp_path / "model.ort"
    onnx.save(grid_sample_model("float32", "float32", 2, [Attributes("linear")], 16), source)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    assert main(["verify", str(path), str(path)]) == 0
    assert "agrees" in capsys.readouterr().out


def test_demo_refuses_a_huge_image(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "huge.png"
    image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(path)
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 100)
    assert main(["demo", str(path), "--output", str(tmp_path / "out.png")]) == 2
    assert "decompression bomb" in capsys.readouterr().err
