"""What a type checker accepts of a user's calls, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import ort_gridsample
from ort_gridsample.model.patch import targets
from ort_gridsample.patching import TargetName

api = pytest.importorskip("mypy.api", reason="mypy is not installed: pip install '.[lint]'")

#: Lines of a user's program; those that end in "refused" are mistakes.
PROGRAM = """
import onnx
import ort_gridsample as ogs

mine: ogs.Dialect
name: str

def cubic(record: ogs.NodeRecord) -> bool:
    return record.mode == "cubic"

ogs.patch_model("model.onnx", nodes="unsupported", target="primitives", functions=True)
ogs.patch_model("model.onnx", target="primitives", for_runtime="mnn")
ogs.patch_model(b"", nodes=cubic, target="com.microsoft")
ogs.patch_model(model=onnx.ModelProto(), target=mine)
ogs.inspect_model(model="model.onnx")[0].native
ogs.patch_model("model.onnx", nodes="bogus")  # refused
ogs.patch_model("model.onnx", nodes=len)  # refused
ogs.patch_model("model.onnx", target="bogus")  # refused
ogs.patch_model("model.onnx", target=name)  # refused
ogs.patch_model("model.onnx", target="primitives", for_runtime="bogus")  # refused
ogs.inspect_model(7)  # refused
"""


def test_a_type_checker_refuses_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    monkeypatch.setenv("MYPYPATH", str(Path(ort_gridsample.__file__).parents[1]))
    settings = ["--config-file=", "--strict", "--follow-imports=silent", "--ignore-missing-imports", "--no-incremental"]
    found, problems, _ = api.run([*settings, str(path)])
    assert not problems
    refused = {int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line}
    lines = PROGRAM.splitlines()
    assert {lines[number - 1] for number in refused} == {line for line in lines if line.endswith("# refused")}, found


def test_the_targets_that_a_type_checker_knows_are_all_that_there_are() -> None:
    assert set(get_args(TargetName)) == set(targets())
