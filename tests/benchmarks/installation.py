"""Measure what an installation costs: its size on disk, and the time until a session is open.

This is ``python -m tests.benchmarks.installation WHEEL_OR_FOLDER ...``, in a clone. Each argument
is what ``pip install`` takes, such as a wheel, ``.`` or ``.[jit]``, and is installed into a new
environment that has onnxruntime already. Then each of the models is opened in two new processes,
without and with the kernels that the first process may have compiled. The times are those of whole
processes, from the start of Python on.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .cold_start import EXPORTED, open_at_once

MODELS = ("rt_detr_v2", "voxelmorph")
#: Megabytes as drives and package indices count them.
_MB = 1e6


class Installation(NamedTuple):
    """What an installation costs.

    Attributes:
        name: the argument of pip.
        megabytes: what it adds to an environment with onnxruntime.
        seconds: model -> the time of its first session, and of the next one.
    """

    name: str
    megabytes: float
    seconds: dict[str, tuple[float, float]]


def install(python: Path, *packages: str) -> None:
    """Install packages without compiling their modules, which Python does when it imports them."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", *packages]
    subprocess.run(command, check=True)


def megabytes(folder: Path) -> float:
    """Return the size of all files in ``folder``, without modules that Python has compiled."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sum(path.stat().st_size for path in files) / _MB


def measure(name: str, folder: Path) -> Installation:
    """Install ``name`` into a new environment in ``folder``, and open the models there."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    install(python, "onnxruntime")
    without = megabytes(folder)
    install(python, name)
    added = megabytes(folder) - without
    seconds = {}
    for model in MODELS:
        path = EXPORTED / f"{model}.onnx"
        with tempfile.TemporaryDirectory() as cache:
            open_at_once(path, cache, 1, python)  # Python compiles the modules of the packages
        with tempfile.TemporaryDirectory() as cache:
            first, following = (open_at_once(path, cache, 1, python).elapsed for _ in range(2))
        seconds[model] = (first, following)
    return Installation(name, added, seconds)


def as_text(installations: Sequence[Installation]) -> str:
    """Return a table of installations."""
    names = [Path(installation.name).name for installation in installations]
    width = max(map(len, ["installed", *names]))
    lines = [f"{'installed':{width}}{'MB added':>10}  {'model':12}{'first s':>9}{'next s':>9}"]
    for name, (_, added, seconds) in zip(names, installations, strict=True):
        for model, (first, following) in seconds.items():
            row = f"{name:{width}}{added:10.0f}  {model:12}{first:9.1f}{following:9.1f}"
            lines.append(row)
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table for the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.installation")
    parser.add_argument("packages", nargs="+", metavar="WHEEL_OR_FOLDER")
    arguments = parser.parse_args(argv)
    installations = []
    for name in arguments.packages:
        with tempfile.TemporaryDirectory() as folder:
            installations.append(measure(name, Path(folder)))
    print(as_text(installations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
