"""Environments with other installations of this package and of onnxruntime."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def call(*command: object) -> str:
    """Return what a command prints; its exit status must be 0."""
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | settings
    result = subprocess.run(
        [*map(str, command)],
        cwd=REPOSITORY.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def rename_wheel(wheel: Path, name: str = "onnxruntime_gpu") -> Path:
    """Write a copy of a wheel of onnxruntime under another name; return its path."""
    _, version, tags = wheel.name.split("-", 2)
    path = wheel.with_name(f"{name}-{version}-{tags}")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                data = data.replace(b"\nName: onnxruntime\n", f"\nName: {name}\n".encode(), 1)
            if entry.filename.endswith(".dist-info/RECORD"):
                data = re.sub(
                    rb",sha256=[^,\n]*,\d*\n",
                    b",,\n",
                    data.replace(b"onnxruntime-", f"{name}-".encode()),
                )
            new.writestr(entry.filename.replace("onnxruntime-", f"{name}-", 1), data)
    return path


def onnxruntime_files(python: Path) -> dict[str, str]:
    """Return the hash of each file of onnxruntime, as this Python finds it."""
    script = "from importlib.util import find_spec; print(find_spec('onnxruntime').origin)"
    folder = Path(call(python, "-c", script).strip()).parent
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def other_build_of_onnxruntime(folder: Path) -> Path:
    """Create an environment with a build of onnxruntime of another name; return its Python."""
    call(sys.executable, "-m", "venv", folder / "beside")
    python = folder / "beside" / ("Scripts" if os.name == "nt" else "bin") / "python"
    call(python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "onnxruntime")
    (wheel,) = folder.glob("onnxruntime-*.whl")
    call(python, "-m", "pip", "install", "--quiet", rename_wheel(wheel))
    return python
