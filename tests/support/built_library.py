"""The library of a few kernels that tests use. It is built again after an edit that concerns it.

It is kept in pytest's cache folder, under a key of the sources that it is made from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.library import builder
from support.attention_models import op_model
from support.cases import Attributes
from support.models import affine_grid_model, grid_sample_model

CAN_COMPILE = bool(importlib.util.find_spec("numba")) and versions.is_at_least(
    metadata.version("numba"), builder.OLDEST_NUMBA
)
HAS_ZIG = bool(importlib.util.find_spec("ziglang"))
CAN_LINK = CAN_COMPILE and (HAS_ZIG or bool(shutil.which("cc")))
needs_linker = pytest.mark.skipif(
    not CAN_LINK, reason=f"a library needs Numba {builder.OLDEST_NUMBA}, and cc or ziglang"
)
_PACKAGE = Path(ogs.__file__).parent
_FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "d" / "library"
#: The folders of the package whose code no library has, and which decide nothing about its code.
_OTHER_FOLDERS = {
    *("_pyinstaller", "cli", "detection", "graph", "inference", "interop", "opsets", "rewriting"),
    *("session", "startup"),
}


def library_models() -> list[onnx.ModelProto]:
    """Return models that need the kernels of the library."""
    samples = [("float32", "linear"), ("float32", "nearest"), ("uint8", "linear")]
    return [
        *(grid_sample_model(X, "float32", 2, [Attributes(mode)]) for X, mode in samples),
        affine_grid_model("float32", 2, True),
        op_model("float32", "float32", False),
    ]


def _key() -> str:
    """Return a hash of all that decides about the code of the library."""
    import llvmlite.binding

    parts = [
        sys.version,
        platform.platform(),
        llvmlite.binding.get_host_cpu_name(),
        llvmlite.binding.get_host_cpu_features().flatten(),
        os.environ.get("MUTANT_UNDER_TEST", ""),
        *(f"{name} {metadata.version(name)}" for name in ("numba", "llvmlite", "numpy")),
        Path(__file__).read_text(encoding="utf-8"),
    ]
    for path in sorted(_PACKAGE.rglob("*.py")):
        name = path.relative_to(_PACKAGE)
        if name.parts[0] not in _OTHER_FOLDERS:
            parts += [name.as_posix(), path.read_text(encoding="utf-8")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let the other test processes wait meanwhile."""
    if importlib.util.find_spec("fcntl") is None:
        yield
        return
    import fcntl

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def built_library() -> Path:
    """Return the path of the library for this processor."""
    folder = _FOLDER / _key()
    path = folder / "libort_gridsample.so"
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with _locked(_FOLDER):
        if not path.exists():
            for older in _FOLDER.glob("*/"):
                shutil.rmtree(older, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=_FOLDER) as temporary:
                built = Path(temporary) / path.name
                ogs.build_library(built, "native", models=library_models())
                folder.mkdir()
                built.replace(path)
    return path
