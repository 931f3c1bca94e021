"""A separate environment for each runtime, which is created once and kept."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from .table import Runtime

ADAPTERS = Path(__file__).parent / "adapters"
#: The folder of the environments, in the user's cache folder.
CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ort_gridsample" / "runtimes"
)


class NotInstalledError(Exception):
    """The environment of a runtime cannot be created, for the reason in the message."""


def environment(runtime: Runtime, cache: Path) -> tuple[tuple[str, ...], str]:
    """Return the command that runs the adapter of a runtime, and the installed versions.

    The environment is created if there is none.
    """
    packages = "\n".join([*runtime.packages, *runtime.alone, *runtime.npm])
    folder = cache / f"{runtime.name}-{zlib.crc32(packages.encode()):08x}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Renamed at the end, so that no incomplete environment is kept.
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}-", dir=cache) as scratch:
            incomplete = Path(scratch) / "incomplete"
            incomplete.mkdir()
            _install(runtime, incomplete)
            incomplete.rename(folder)
    adapter = str(ADAPTERS / runtime.program)
    if not runtime.packages:
        if not (node := shutil.which("node")):
            raise NotInstalledError("there is no node")
        return (node, adapter, str(folder)), ", ".join(runtime.npm)
    return (str(folder / "bin" / "python"), str(ADAPTERS / "worker.py"), adapter), _versions(folder)


def _install(runtime: Runtime, folder: Path) -> None:
    if runtime.npm:
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"]
        npm += ["--prefix", str(folder)]
        _run(runtime, [*npm, *runtime.npm], folder)
    if not runtime.packages:
        return
    _run(runtime, [_python(runtime), "-m", "venv", str(folder)], folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    _run(runtime, [*pip, *runtime.packages], folder)
    if runtime.alone:
        _run(runtime, [*pip, "--no-deps", *runtime.alone], folder)


def _run(runtime: Runtime, command: list[str], folder: Path) -> None:
    if not shutil.which(command[0]):
        raise NotInstalledError(f"{runtime.name} needs {command[0]}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "ERROR" in line or "error" in line]
        message = " ".join(errors[-2:]) or done.stderr[-300:]
        raise NotInstalledError(f"{runtime.name}: {' '.join(command[-4:])}: {message}")


def _python(runtime: Runtime) -> str:
    """Return an interpreter of a version that the runtime supports, if possible this one."""
    if not runtime.python or f"{sys.version_info[0]}.{sys.version_info[1]}" in runtime.python:
        return sys.executable
    pyenv = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    for version in runtime.python:
        for python in (
            shutil.which(f"python{version}"),
            *glob.glob(f"{pyenv}/versions/{version}.*/bin/python"),
        ):
            if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                return python
    raise NotInstalledError(f"{runtime.name} needs Python {' or '.join(runtime.python)}")


def _versions(folder: Path) -> str:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "freeze", "--disable-pip-version-check"]
    return ", ".join(subprocess.run(pip, capture_output=True, text=True).stdout.split("\n")[:-1])
