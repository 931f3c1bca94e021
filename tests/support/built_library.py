"""The library of a few kernels that tests use. It is built again after an edit that concerns it.

Libraries are kept in pytest's cache folder, under a key of the sources that they are made from.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
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
_FOLDER = Path(__file__).parents[2] / ".pytest_cache" / "d"
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


def _key(sources: Iterable[Path]) -> str:
    """Return a hash of all that decides about the code of a library.

    Args:
        sources: the files that it is made from, other than those of the package.
    """
    import llvmlite.binding

    parts = [
        sys.version,
        platform.platform(),
        llvmlite.binding.get_host_cpu_name(),
        llvmlite.binding.get_host_cpu_features().flatten(),
        os.environ.get("MUTANT_UNDER_TEST", ""),
        *(f"{name} {metadata.version(name)}" for name in ("numba", "llvmlite", "numpy")),
        *(path.read_text(encoding="utf-8") for path in (Path(__file__), *sources)),
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
    return kept_library("library", _build)


def _build(path: Path) -> None:
    ogs.build_library(path, "native", models=library_models())


def kept_library(name: str, build: Callable[[Path], None], *sources: Path) -> Path:
    """Return the path of a library for this processor, which is built unless it is kept.

    Args:
        name: the name of the folder of the library.
        build: builds the library, and writes it to the path.
        sources: the files that the library is made from, other than those of the package.
    """
    libraries = _FOLDER / name
    folder = libraries / _key(sources)
    path = folder / "libort_gridsample.so"
    libraries.mkdir(parents=True, exist_ok=True)
    with _locked(libraries):
        if not path.exists():
            for older in libraries.glob("*/"):
                shutil.rmtree(older, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=libraries) as temporary:
                built = Path(temporary) / path.name
                build(built)
                folder.mkdir()
                built.replace(path)
    return path
