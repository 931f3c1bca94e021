"""What type checkers accept of a user's calls, and what they refuse."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from ort_gridsample.model.patch import targets
from ort_gridsample.patching import TargetName
from test_readme import REPOSITORY, blocks

#: Lines of a user's program; those that end in "refused" are mistakes.
PROGRAM = """
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs

mine: ogs.Dialect = ogs.Dialect(
    "mine",
    "GridSample",
    "Warp",
    ("my.domain",),
    attributes={
        "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
        "padding_mode": ogs.Spelling("outside", {"zeros": "constant", "border": "edge"}, default="zeros"),
        "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
    },
)
name: str = input()
X: npt.NDArray[np.float32] = np.zeros((1, 3, 4, 5), np.float32)

def cubic(record: ogs.NodeRecord) -> bool:
    return record.mode == "cubic" and not record.native

ogs.add_dialect(mine)
patched: onnx.ModelProto = ogs.patch_model("model.onnx", nodes="unsupported", target="primitives", functions=True)
ogs.patch_model("model.onnx", target="primitives", for_runtime="mnn")
ogs.patch_model(b"", nodes=cubic, target="com.microsoft")
ogs.patch_model(model=onnx.ModelProto(), target=mine)
ogs.inspect_model(model="model.onnx")[0].native
for record in ogs.inspect_model(Path("model.onnx")):
    print(record.operator.upper(), record.types["X"], record.where)
ogs.patch_model("model.onnx", nodes="bogus")  # refused
ogs.patch_model("model.onnx", nodes=len)  # refused
ogs.patch_model("model.onnx", target="bogus")  # refused
ogs.patch_model("model.onnx", target=name)  # refused
ogs.patch_model("model.onnx", target="primitives", for_runtime="bogus")  # refused
ogs.inspect_model(7)  # refused

grid = ogs.affine_grid(np.zeros((1, 2, 3), np.float32), size=(1, 3, 480, 640))
Y: npt.NDArray[np.float32] = ogs.grid_sample(X, grid, mode="cubic", padding_mode="reflection", align_corners=True)
print(ogs.grid_sample([[[1, 2, 4]]], [[[0.0], [1.0]]], "nearest").sum())
ogs.grid_sample(X, grid, "spline")  # refused
ogs.grid_sample(X)  # refused

session = ogs.InferenceSession("model.onnx", providers=["CPUExecutionProvider"], nodes=cubic)
print(session.run(None, {"X": X})[0].shape, [placement.runs_on.upper() for placement in session.replaced])
session.run(None, [X])  # refused
plain = onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
ogs.set_ops("compiled")
ogs.set_ops("bogus")  # refused
ogs.set_core(None)
ogs.set_num_threads(2)

evaluator = ReferenceEvaluator(patched, new_ops=ogs.reference_ops())
print(len(ogs.openvino_extensions()), len(ogs.torch_translation_table()))
with ogs.torch_symbolics():
    pass
try:
    ogs.grid_sample(X, grid)
except ogs.GridSampleError as error:
    print(error.argument.upper(), error.found, error.expected)
"""
#: What the README's snippets speak of.
GIVEN = """
import numpy as np
import onnx
import onnxruntime

X = np.zeros((1, 2, 4, 4), np.float32)
theta = np.zeros((1, 2, 3), np.float32)
"""


def mypy(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], str]:
    """The lines with errors, from 1, and what it says."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed: pip install '.[dev]'")
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))
    settings = ["--config-file=", "--strict", "--follow-imports=silent", "--ignore-missing-imports", "--no-incremental"]
    found, problems, _ = api.run([*settings, str(path)])
    assert not problems
    return {int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line}, found


def pyright(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[set[int], str]:
    """As :func:`mypy`."""
    if importlib.util.find_spec("pyright") is None or shutil.which("node") is None:
        pytest.skip("pyright, or the node that it runs on, is not installed: pip install pyright")
    settings = {"include": [path.name], "extraPaths": [str(REPOSITORY)], "typeCheckingMode": "standard"}
    (path.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", path.parent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "generalDiagnostics" not in done.stdout:
        pytest.skip(f"pyright cannot be started, or fetched: {done.stderr[-300:]}")
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1 for each in found}, json.dumps(found, indent=1)


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_type_checker_refuses_mistakes_and_nothing_else(
    checker: Callable[..., tuple[set[int], str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    refused, said = checker(path, monkeypatch)
    lines = PROGRAM.splitlines()
    assert {lines[number - 1] for number in refused} == {line for line in lines if line.endswith("# refused")}, said


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_type_checker_accepts_the_readme(
    checker: Callable[..., tuple[set[int], str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "snippets.py"
    path.write_text("\n".join([GIVEN, *blocks("python")]))
    refused, said = checker(path, monkeypatch)
    assert not refused, said


def test_the_targets_that_a_type_checker_knows_are_all_that_there_are() -> None:
    assert set(get_args(TargetName)) == set(targets())
