"""``python -m tests.install``: what is built, as users install it: on its own, and beside other builds of onnxruntime.

For developers, on a machine that reaches a package registry:

- the sdist and the wheel pass ``twine check --strict``;
- the wheel in an empty environment runs the demo;
- the wheel beside another distribution that has onnxruntime in it leaves that as it was, and its ops work there. The
  other distribution is onnxruntime's own wheel under another name, or what ``--build`` names.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .environments import REPOSITORY, build, call, environment

#: The README's commands for it, after that which installs the other build; there, a clone is installed.
BESIDE = re.compile(r"^pip install (--no-deps \.)\npip install (.*)$", re.MULTILINE)

ASKED = """
import importlib.metadata, numpy as np, onnx, onnxruntime, ort_gridsample as ogs
names = [d.metadata["Name"] for d in importlib.metadata.distributions()]
assert "onnxruntime" not in names, names
text = '<ir_version: 9, opset_import: ["": 20]> g (int8[1,1,2,2] X, float[1,1,1,2] G) => (int8[1,1,1,1] Y)'
model = onnx.parser.parse_model(text + "{ Y = GridSample <mode = \\"nearest\\"> (X, G) }")
session = ogs.InferenceSession(model, providers=["CPUExecutionProvider"])
feeds = {"X": np.arange(4, dtype=np.int8).reshape(1, 1, 2, 2), "G": np.full((1, 1, 1, 2), 0.5, np.float32)}
assert session.run(None, feeds)[0].item() == 3
print(f"onnxruntime {onnxruntime.__version__}", session.replaced[0].runs_on)
"""


def renamed(wheel: Path, folder: Path, name: str = "onnxruntime_gpu") -> Path:
    """``wheel`` of onnxruntime as the distribution ``name``."""
    _, version, tags = wheel.name.split("-", 2)
    path = folder / f"{name}-{version}-{tags}"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                data = data.replace(b"\nName: onnxruntime\n", f"\nName: {name}\n".encode(), 1)
            if entry.filename.endswith(".dist-info/RECORD"):
                data = data.replace(b"onnxruntime-", f"{name}-".encode())
                data = re.sub(rb",sha256=[^,\n]*,\d*\n", b",,\n", data)
            new.writestr(entry.filename.replace("onnxruntime-", f"{name}-", 1), data)
    return path


def contents(python: Path) -> dict[str, str]:
    """What is in the files of the installed onnxruntime."""
    where = "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])"
    folder = Path(call(python, "-c", where).strip())
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def on_its_own(wheel: Path, folder: Path) -> str:
    """Install the wheel in an empty environment, and run its demo in an empty folder."""
    python = environment(folder / "own")
    call(python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]")
    empty = folder / "empty"
    empty.mkdir()
    call(python.with_name("ort-gridsample"), "demo", folder=empty)
    (picture,) = empty.iterdir()
    return f"{picture.name}, {picture.stat().st_size} bytes"


def beside(wheel: Path, folder: Path, other: str) -> str:
    """Install the wheel as the README says beside ``other``, a distribution with onnxruntime in it."""
    python = environment(folder / "beside")
    if not other:
        call(python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "onnxruntime")
        (theirs,) = folder.glob("onnxruntime-*.whl")
        other = str(renamed(theirs, folder))
    call(python, "-m", "pip", "install", "--quiet", other)
    before = contents(python)
    (commands,) = BESIDE.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    for command in commands:
        words = (str(wheel) if word == "." else word for word in shlex.split(command))
        call(python, "-m", "pip", "install", "--quiet", *words)
    answer = call(python, "-c", ASKED)
    assert contents(python) == before, "the other onnxruntime was changed"
    return answer.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all of it; an exception where something does not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.install",
        description=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--build", default="", help="a distribution with onnxruntime in it, such as onnxruntime-gpu")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = build(folder / "dist")
        call(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        print(f"twine check --strict: {sdist.name}, {wheel.name}", flush=True)
        print(f"in an empty environment: {on_its_own(wheel, folder)}", flush=True)
        print(f"beside {asked.build or 'another distribution'}: {beside(wheel, folder, asked.build)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
