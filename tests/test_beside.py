"""Beside another build of onnxruntime, installed as INSTALL.md says: that stays as it was, and the ops work there.

The other build is onnxruntime's own wheel under another name.
"""

import hashlib
import os
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: The page's commands after that which installs the other build; there, a clone is installed.
COMMANDS = re.compile(r"^pip (install --no-deps \.)\npip (install [^#\n]*)\npip (install [^#\n]*)", re.MULTILINE)
ASKED = """
import importlib.metadata, numpy as np, onnx, onnxruntime, ort_gridsample as ogs
names = [distribution.metadata["Name"] for distribution in importlib.metadata.distributions()]
assert "onnxruntime" not in names, names
text = '<ir_version: 9, opset_import: ["": 20]> g (int8[1,1,2,2] X, float[1,1,1,2] G) => (int8[1,1,1,1] Y)'
model = onnx.parser.parse_model(text + "{ Y = GridSample <mode = \\"nearest\\"> (X, G) }")
session = ogs.InferenceSession(model, providers=["CPUExecutionProvider"])
feeds = {"X": np.arange(4, dtype=np.int8).reshape(1, 1, 2, 2), "G": np.full((1, 1, 1, 2), 0.5, np.float32)}
print(session.run(None, feeds)[0].item(), session.replaced[0].runs_on)
"""


def call(*command: object) -> str:
    """What a command prints; it must end well."""
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    done = subprocess.run([*map(str, command)], cwd=ROOT.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def renamed(wheel: Path, name: str = "onnxruntime_gpu") -> Path:
    _, version, tags = wheel.name.split("-", 2)
    path = wheel.with_name(f"{name}-{version}-{tags}")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                data = data.replace(b"\nName: onnxruntime\n", f"\nName: {name}\n".encode(), 1)
            if entry.filename.endswith(".dist-info/RECORD"):
                data = re.sub(rb",sha256=[^,\n]*,\d*\n", b",,\n", data.replace(b"onnxruntime-", f"{name}-".encode()))
            new.writestr(entry.filename.replace("onnxruntime-", f"{name}-", 1), data)
    return path


def contents(python: Path) -> dict[str, str]:
    where = "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])"
    folder = Path(call(python, "-c", where).strip())
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.network
@pytest.mark.timeout(900)
def test_another_build_stays_as_it_was(tmp_path: Path) -> None:
    call(sys.executable, "-m", "venv", tmp_path / "beside")
    python = tmp_path / "beside" / ("Scripts" if os.name == "nt" else "bin") / "python"
    call(python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "onnxruntime")
    (wheel,) = tmp_path.glob("onnxruntime-*.whl")
    call(python, "-m", "pip", "install", "--quiet", renamed(wheel))
    before = contents(python)
    (commands,) = COMMANDS.findall((ROOT / "ort_gridsample" / "INSTALL.md").read_text(encoding="utf-8"))
    for command in commands:
        call(python, "-m", "pip", *(ROOT if word == "." else word for word in shlex.split(command)))
    assert call(python, "-c", ASKED).split(maxsplit=1) == ["3", "compiled op\n"]
    assert contents(python) == before
