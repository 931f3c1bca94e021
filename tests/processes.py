"""Python in processes of their own, for what might end one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

#: onnxruntime-extensions would import it, for seconds.
WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"

PREAMBLE = (
    WITHOUT_TORCH
    + """
sys.path[:0] = {tests!r}, {root!r}
import numpy as np, onnxruntime, ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from paths import open_patched_file, open_session

def make(open_model, X_type="float32", mode="linear"):
    return open_model(grid_sample_model(X_type, "float32", 2, [Attributes(mode, "zeros", False)]))

def attempt(session, X, grid):
    try:
        return session.run(None, {{"X": X, "grid": grid}})[0].shape
    except Exception as error:
        return str(error)

X, grid = np.ones((1, 2, 64, 64), np.float32), np.zeros((1, 64, 64, 2), np.float32)
open_model = {open_model}
"""
)


def start(script: str, open_model: str, as_file: Path | None = None, first: str = "") -> subprocess.Popen[str]:
    """Run ``script`` after the preamble, and ``first`` before it."""
    code = first + PREAMBLE.format(tests=str(TESTS), root=str(TESTS.parent), open_model=open_model) + script
    if as_file is not None:  # which a process that it starts can import
        as_file.write_text(code)
    command = [sys.executable, *(["-c", code] if as_file is None else [str(as_file)])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(script: str, open_model: str, as_file: Path | None = None, first: str = "") -> list[str]:
    """The lines that :func:`start`'s process prints; it must end well."""
    process = start(script, open_model, as_file, first)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, f"ended with {process.returncode}\n{err}"
    return out.splitlines()


both = pytest.mark.parametrize("open_model", ["open_session", "open_patched_file"])
