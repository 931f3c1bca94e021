"""What the commands print: in any encoding, as tables and as JSON."""

import codecs
import json
import math
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from importlib import metadata
from io import TextIOWrapper
from typing import Any

import numpy as np

from ..custom_ops.compiled_ops import library_file
from ..errors import GridSampleError

_DISTRIBUTIONS = ("ort-gridsample", "onnxruntime", "onnxruntime-extensions", "onnx", "numpy", "numba")
#: Replacements of characters that the terminal's encoding lacks; ``?`` for any other.
_PLAIN = {"×": "x", "±": "+-", "→": "->", "–": "-", "…": "...", "µ": "u"}
_ERRORS = "ort_gridsample.plain"


@contextmanager
def any_encoding() -> Iterator[None]:
    """Let stdout and stderr take every character, replaced by one that looks alike where their encoding lacks it."""
    codecs.register_error(_ERRORS, _plain)
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, TextIOWrapper)]
    before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_ERRORS)
    try:
        yield
    finally:
        for stream, errors in zip(streams, before, strict=True):
            with suppress(BrokenPipeError):  # this flushes
                stream.reconfigure(errors=errors)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


def table(rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """``rows`` in aligned columns, the first row being the heads."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(indent + line.rstrip() for line in lines)


def print_json(content: Any) -> None:
    """Print ``content``, dataclasses in it as objects, as JSON of ASCII characters, with null for what JSON lacks."""
    print(json.dumps(_finite(content), indent=2))


def _finite(content: Any) -> Any:
    if is_dataclass(content):
        content = vars(content)
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, (list, tuple)) else content


def versions() -> dict[str, str]:
    """The versions of this package, its dependencies, the library of ops that sessions use, and Python."""
    found = {}
    for name in _DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if (path := library_file.configured_library()) is not None:
        try:
            found["library"] = library_file.validate(path)
        except GridSampleError as error:
            found["library"] = f"of no use ({error})"
    return {**found, "Python": platform.python_version()}


def name_of(dtype: np.dtype[Any]) -> str:
    """The name of an array's element type, ``string`` for strings."""
    return "string" if dtype.kind == "O" else str(dtype)
