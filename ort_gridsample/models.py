"""Model files: reading them, and writing them whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from .errors import GridSampleError


def read_model(model: onnx.ModelProto | str | PathLike[str], *, external_data: bool = False) -> onnx.ModelProto:
    """``model`` itself, or the model at that path, with or without its external data.

    Raises:
        GridSampleError: the file is not an ONNX model.
        OSError: the file cannot be read.
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, (str, PathLike)):
        raise GridSampleError("model", "model", f"of type {type(model).__name__}", "a ModelProto or a path")
    path = os.fspath(model)
    try:
        with open(path, "rb") as file:
            proto = onnx.ModelProto.FromString(file.read())
    except DecodeError as error:
        raise GridSampleError(path, "the file", f"not readable as protobuf ({error})", "an ONNX model") from None
    if not proto.HasField("graph"):
        raise GridSampleError(path, "the file", "without a graph", "an ONNX model")
    if external_data:
        onnx.load_external_data_for_model(proto, os.path.dirname(os.path.abspath(path)))
    return proto


@contextmanager
def written_whole(path: str | PathLike[str]) -> Iterator[Path]:
    """A new file beside ``path`` to write to: it takes ``path``'s place at the end, or goes away on an error."""
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o666 & ~mask)  # mkstemp makes a file private
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
