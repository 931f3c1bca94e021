"""Print text in any encoding, tables and JSON."""

import codecs
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from importlib import metadata
from io import TextIOWrapper
from typing import Any

import numpy as np

from ..errors import GridSampleError
from ..kernels import library_file, measured

_DISTRIBUTIONS = (
    "ort-gridsample",
    "onnxruntime",
    "onnxruntime-extensions",
    "onnx",
    "numpy",
    "numba",
)
#: Replacements of characters that the terminal's encoding lacks. Any other becomes ``?``.
_REPLACEMENTS = {"×": "x", "±": "+-", "→": "->", "–": "-", "…": "...", "µ": "u"}
#: The name of the error handler that replaces them.
_ERROR_HANDLER = "ort_gridsample.plain"

_COLUMN_GAP = "  "
#: The indentation of the further lines of a row that is folded.
_FOLD_INDENT = "    "


@contextmanager
def any_encoding() -> Iterator[None]:
    """Let stdout and stderr accept every character.

    A character that their encoding lacks is replaced by one that looks alike.
    """
    codecs.register_error(_ERROR_HANDLER, _replace_characters)
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, TextIOWrapper)]
    handlers_before = [stream.errors for stream in streams]
    for stream in streams:
        stream.reconfigure(errors=_ERROR_HANDLER)
    try:
        yield
    finally:
        for stream, handler in zip(streams, handlers_before, strict=True):
            with suppress(OSError):  # reconfigure flushes
                stream.reconfigure(errors=handler)


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_REPLACEMENTS.get(character, "?") for character in characters), error.end


def line_width() -> float:
    """Return the number of characters of a line of stdout: infinite, unless it is a terminal.

    The environment variable COLUMNS takes precedence, as in argparse's help.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or math.inf
    except (OSError, ValueError):  # no terminal; a stream without a file; a closed one
        return math.inf


def table(
    rows: Iterable[Sequence[object]],
    indent: str = "",
    max_width: float = math.inf,
) -> str:
    """Return rows in aligned columns.

    Args:
        rows: the rows; the first one has the heads of the columns.
        indent: what each line starts with.
        max_width: the number of characters of a line. Rows that are longer continue on further
            lines, at the same column in all rows. A cell that is longer has a line of its own.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    groups = _column_groups(widths, max_width - len(indent))
    lines = list[str]()
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        for group in groups:
            line = _COLUMN_GAP.join(padded[index] for index in group).rstrip()
            is_first = group[0] == 0
            if is_first or line:
                lines.append(f"{indent}{'' if is_first else _FOLD_INDENT}{line}".rstrip())
    return "\n".join(lines)


def _column_groups(widths: Sequence[int], max_width: float) -> list[list[int]]:
    """Return the indices of the columns on each line of a row."""
    groups: list[list[int]] = [[]]
    line_width = 0
    for index, width in enumerate(widths):
        if groups[-1] and line_width + len(_COLUMN_GAP) + width > max_width:
            groups.append([])
            line_width = len(_FOLD_INDENT)
        elif groups[-1]:
            line_width += len(_COLUMN_GAP)
        groups[-1].append(index)
        line_width += width
    return groups


def print_json(content: Any) -> None:
    """Print ``content`` as JSON of ASCII characters.

    Dataclasses become objects. Numbers that JSON lacks become null.
    """
    print(json.dumps(_plain_json(content), indent=2))


def _plain_json(content: Any) -> Any:
    """Return ``content`` as objects, lists and values that JSON has."""
    if is_dataclass(content):
        content = vars(content)
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _plain_json(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain_json(value) for value in content]
    return content


def versions() -> dict[str, str]:
    """Return the versions of this package, its dependencies and Python.

    Where sessions use a library of ops, its description is among them.
    """
    names_and_versions = dict[str, str]()
    for name in _DISTRIBUTIONS:
        with suppress(metadata.PackageNotFoundError):
            names_and_versions[name] = metadata.version(name)
    library = library_file.configured_library()
    if library is not None:
        try:
            names_and_versions["library"] = library_file.validate(library)
        except GridSampleError as error:
            names_and_versions["library"] = f"cannot be used ({error})"
    names_and_versions["Python"] = platform.python_version()
    try:
        names_and_versions["prefetching"] = measured.description()
    except GridSampleError as error:
        names_and_versions["prefetching"] = f"cannot be set ({error})"
    return names_and_versions


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of an array's element type, ``string`` for strings."""
    return "string" if dtype.kind == "O" else str(dtype)
