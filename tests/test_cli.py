"""The command line, as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from ort_gridsample.cli import COMMANDS, main
from test_session import FEEDS, GRID, WRONG_GRID, X, cached_model, external_model


@pytest.fixture
def path(tmp_path: Path) -> str:
    model = grid_sample_model("float32", "float32", 2, [Attributes("cubic", "border", True)], opset=20)
    onnx.save(model, tmp_path / "model.onnx")
    for name, array in {"X": X, "grid": GRID, "wrong": WRONG_GRID}.items():
        np.save(tmp_path / f"{name}.npy", array)
    return str(tmp_path / "model.onnx")


def test_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "ort_gridsample", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"ort-gridsample {command}" in capsys.readouterr().out


def test_inspect(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path]) == 0
    assert re.search(
        r"main graph\n.*\n +sample0 +GridSample-20 +cubic +border +1 +float32 4-D, float32 4-D +yes +replaces it",
        capsys.readouterr().out,
    )
    assert main(["inspect", "--json", path]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["mode"], record["align_corners"], record["native"]) == ("sample0", "cubic", 1, True)
    assert record["inputs"]["X"] == [{"type": "float32", "rank": 4, "shape": ["N", "C", "D0", "D1"]}]


def test_patch_and_run(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patched = str(tmp_path / "patched.onnx")
    assert main(["patch", path, patched]) == 0
    assert "GridSample sample0: replaces it" in capsys.readouterr().out
    assert onnx.load(patched) == ogs.patch_model(path)
    inputs = [word for name in FEEDS for word in ("--input", f"{name}={tmp_path / name}.npy")]
    for model in (path, patched):
        assert main(["run", model, *inputs, "--output", str(tmp_path / "out")]) == 0
        assert "output  Y0    float32  (1, 3, 4, 5)" in capsys.readouterr().out
        expected = ogs.grid_sample(X, GRID, "cubic", "border", True)
        np.testing.assert_array_equal(np.load(tmp_path / "out" / "Y0.npy"), expected)


def test_run_random(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", path, "--random", "--shape", "X=1,2,9,9"]) == 0
    assert "output  Y0    float32  (1, 2, 8, 8)" in capsys.readouterr().out


def test_external_data_stays_external(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir(), target.mkdir()
    path = external_model(source)
    for out in (source / "patched.onnx", target / "patched.onnx"):
        assert main(["patch", str(path), str(out)]) == 0
        assert out.stat().st_size < 10_000
        np.testing.assert_array_equal(ogs.InferenceSession(out).run(None, {"X": X})[0], ogs.grid_sample(X, GRID))
    assert sorted(p.name for p in target.iterdir()) == ["patched.onnx", "weights.bin"]
    (target / "weights.bin").write_bytes(b"another")
    assert main(["patch", str(path), str(target / "patched.onnx")]) == 2
    assert "external data is in the way of" in capsys.readouterr().err
    assert (target / "weights.bin").read_bytes() == b"another"


def test_external_data_behind_links_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = cached_model(tmp_path), tmp_path / "out"
    target.mkdir()
    out = target / "patched.onnx"
    assert main(["patch", str(path), str(out)]) == 0
    session = onnxruntime.InferenceSession(out, ogs.register())
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], ogs.grid_sample(X, GRID))
    assert main(["patch", str(path), str(path.parent / "patched.onnx")]) == 2  # onnxruntime would not follow its links
    assert "external data is in the way of" in capsys.readouterr().err
    assert not (path.parent / "patched.onnx").exists()


MISTAKES = {
    "no such model": (["inspect", "missing.onnx"], "No such file or directory"),
    "no model": (["inspect", "X.npy"], "expected an ONNX model"),
    "no such folder": (["patch", "model.onnx", "missing/out.onnx"], "No such file or directory"),
    "no such input": (["run", "model.onnx", "--input", "Z=X.npy"], "'Z', expected one of X, grid"),
    "no inputs": (["run", "model.onnx"], "--input X=FILE.npy or --random"),
    "no file": (["run", "model.onnx", "--random", "--input", "X"], "expected NAME=VALUE"),
    "no array": (["run", "model.onnx", "--random", "--input", "X=model.onnx"], "expected an array saved by numpy.save"),
    "no shape": (["run", "model.onnx", "--random", "--shape", "X=a"], "expected numbers with commas"),
    "wrong grid": (["run", "model.onnx", "--input", "X=X.npy", "--input", "grid=wrong.npy"], "'sample0': grid is of"),
}


@pytest.mark.parametrize(("words", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    path: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(path).parent)
    before = sorted(Path.cwd().iterdir())
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("ort-gridsample: ")
    assert sentence in error[0]
    assert sorted(Path.cwd().iterdir()) == before


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image", reason="the demo needs the extra demo")
    pytest.importorskip("matplotlib", reason="the demo needs the extra demo")
    picture = tmp_path / "demo.png"
    assert main(["demo", "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "NOT_IMPLEMENTED" in out
    differences = [float(word) for line in out.splitlines() for word in re.findall(r"\d\.\de-?\+?\d\d", line)]
    assert len(differences) == 9
    assert max(differences) < 2e-4
    with image.open(picture) as drawn:
        assert drawn.size == (1275, 720)
        assert len(np.unique(np.asarray(drawn.convert("L")))) > 100


def test_the_only_file_left_is_whole(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder" / "patched.onnx"
    target.parent.mkdir()
    target.write_bytes(b"before")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["patch", path, str(target)]) == 2
    assert [p.name for p in target.parent.iterdir()] == ["patched.onnx"]
    assert target.read_bytes() == b"before"
