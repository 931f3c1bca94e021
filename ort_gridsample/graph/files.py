"""Model files: reading them, and writing them whole or not at all."""

from __future__ import annotations

import filecmp
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError, EncodeError

from ..errors import GridSampleError
from .scope import TENSORS, Scope, scopes

#: A model in memory, serialized, or at a path.
Model = onnx.ModelProto | bytes | str | PathLike[str]


def read_model(model: Model, *, external_data: bool = False) -> onnx.ModelProto:
    """``model`` itself, or what these bytes or that path hold, of a path with or without its external data.

    Raises:
        GridSampleError: the file is not an ONNX model, or its external data lies outside its folder.
        OSError: the file cannot be read.
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return _parsed(model, "model", "the model")
    if not isinstance(model, (str, PathLike)):
        raise GridSampleError("model", "model", f"of type {type(model).__name__}", "a ModelProto, bytes or a path")
    proto = _parsed(Path(model).read_bytes(), os.fspath(model), "the file")
    if external_data and (folder := follow_links(proto, model)) is not None:
        onnx.load_external_data_for_model(proto, folder)
    return proto


def _parsed(data: bytes, where: str, argument: str) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter by protobuf in pure Python
        raise GridSampleError(where, argument, f"not readable as protobuf ({error})", "an ONNX model") from None
    if not proto.HasField("graph"):
        raise GridSampleError(where, argument, "without a graph", "an ONNX model")
    return proto


#: Fields of a serialized ModelProto, and how long the number is that follows a field of fixed length.
_OPSET_IMPORT, _FUNCTIONS, _FIXED = 8, 25, {1: 8, 5: 4}


def imported_domains(model: bytes | str | PathLike[str]) -> frozenset[str] | None:
    """The domains that a serialized model, or the model in a file, and its functions import.

    The graph is not read, so that this takes the same time for models of any size. None: the file is not an ONNX model.

    Raises:
        OSError: the file cannot be read.
    """
    domains: set[str] = set()
    with BytesIO(model) if isinstance(model, bytes) else open(model, "rb") as file:
        try:
            for field, length in _fields(file):
                if field == _OPSET_IMPORT:
                    domains.add(onnx.OperatorSetIdProto.FromString(file.read(length)).domain)
                elif field == _FUNCTIONS:
                    function = onnx.FunctionProto.FromString(file.read(length))
                    domains.update(entry.domain for entry in function.opset_import)
                else:
                    file.seek(length, os.SEEK_CUR)
        except (DecodeError, UnicodeDecodeError, EOFError, ValueError, OverflowError):
            return None
    return frozenset(domains)


def _fields(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """The number and the length of each field of a serialized message; the caller reads or skips what it contains.

    Raises:
        EOFError: the file ends within a field.
        ValueError: the file is not a serialized message.
    """
    while (first := file.read(1)) != b"":
        key = _varint(file, first)
        wire_type = key & 7
        if wire_type == 0:
            _varint(file, file.read(1))
        elif wire_type == 2:
            yield key >> 3, _varint(file, file.read(1))
        elif wire_type in _FIXED:
            file.seek(_FIXED[wire_type], os.SEEK_CUR)
        else:
            raise ValueError(f"wire type {wire_type}")


def _varint(file: BinaryIO, first: bytes) -> int:
    """The integer that begins with the byte ``first``, seven bits in each byte."""
    value = 0
    for shift in range(0, 70, 7):
        byte = first if shift == 0 else file.read(1)
        if byte == b"":
            raise EOFError
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("an integer of more than 10 bytes")


@contextmanager
def explaining_invalid(model: onnx.ModelProto) -> Iterator[None]:
    """Let what fails inside say so where that is because ``model`` is not valid.

    Nothing is checked before: most damage does not concern the nodes that this package looks at.
    """
    try:
        yield
    except (GridSampleError, OSError, MemoryError):
        raise
    except Exception as error:
        fault = str(error)
        if not isinstance(error, (UnicodeDecodeError, RecursionError, DecodeError, EncodeError)):
            try:
                onnx.checker.check_model(model)
            except Exception as complaint:
                fault = " ".join(str(complaint).split())
            else:
                raise
        raise GridSampleError("model", "the model", f"not valid ({fault})", "an ONNX model") from error


@contextmanager
def written_whole(path: str | PathLike[str]) -> Iterator[Path]:
    """A new file beside ``path`` to write to: it takes ``path``'s place at the end, or goes away on an error.

    Raises:
        OSError: the file cannot be written; it names ``path``.
    """
    target, beside = Path(path), None
    try:
        new = target.parent / f".{target.name}.{secrets.token_hex(4)}{target.suffix}"
        new.touch(exist_ok=False)  # as public as the system makes any: tempfile's are private
        beside = new
        yield beside
        beside.replace(target)
    except BaseException as error:
        if beside is not None:
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and (not beside or error.filename in (None, str(beside))):
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def write_model(model: onnx.ModelProto, path: str | PathLike[str], external_data_of: str | PathLike[str]) -> list[Path]:
    """Write ``model`` to ``path``, with its external data beside it, and return the files that were copied for that.

    ``external_data_of`` is the path that the model was read from; in the same folder its data serves both. Locations
    that lead out of that folder and back lose the detour, in ``model`` too.

    Raises:
        GridSampleError: a location of external data is not inside the model's folder, or another file is in its place.
        OSError: a file cannot be read or written.
    """
    out, source = Path(path).resolve(), Path(external_data_of).parent.resolve()
    entries = list(locations(model))
    files, copies = _files(entries, external_data_of), dict[Path, Path]()
    for entry in entries:
        data = files[entry.value]
        entry.value = Path(os.path.relpath(source / entry.value, source)).as_posix()
        beside = out.parent / entry.value
        # onnxruntime reads no file outside the model's folder.
        fits = beside.resolve() != out and data != out and beside.resolve().is_relative_to(out.parent)
        there = beside if beside.exists() else copies.setdefault(beside, data)
        if not fits or not (there.samefile(data) or filecmp.cmp(data, there, shallow=False)):
            found, expected = f"in the way of {beside}", "no other file, or link to one, there"
            raise GridSampleError(str(path), "external data", found, expected)
    with ExitStack() as undo:
        for beside, data in copies.items():
            beside.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(beside) as file:
                shutil.copyfile(data, file)
            undo.callback(beside.unlink, missing_ok=True)
        with written_whole(path) as file:
            file.write_bytes(model.SerializeToString())
        undo.pop_all()
    return list(copies)


def follow_links(model: onnx.ModelProto, path: str | PathLike[str], found: Sequence[Scope] = ()) -> str | None:
    """Let the external data of the model at ``path`` have locations without links in one folder, and return that.

    None is returned where it has no external data. ``found`` are the model's scopes, where they are known.

    Raises:
        GridSampleError: a location is not inside the model's folder.
    """
    entries = list(locations(model, found))
    if not entries:
        return None
    files, folders = _files(entries, path), _folders(path)
    folder = next((f for f in folders if all(file.is_relative_to(f) for file in files.values())), folders[0])
    for entry in entries:
        entry.value = os.path.relpath(files[entry.value], folder)
    return str(folder)


def _files(entries: Iterable[onnx.StringStringEntryProto], path: str | PathLike[str]) -> dict[str, Path]:
    """Location -> the file there, without links, of the external data of the model at ``path``."""
    folders, files = _folders(path), {}
    for location in dict.fromkeys(entry.value for entry in entries):
        try:
            files[location] = (Path(path).parent / location).resolve()
            is_inside = any(files[location].is_relative_to(folder) for folder in folders)
        except (OSError, RuntimeError, ValueError):  # links in a circle, or no name for a file
            is_inside = False
        if not is_inside:
            raise GridSampleError(str(path), "external data", f"at {location!r}", "a file in the model's folder")
    return files


def _folders(path: str | PathLike[str]) -> tuple[Path, Path]:
    """The folder that ``path`` is in, and the one of the file that it leads to: a hub's cache is made of links."""
    return Path(path).parent.resolve(), Path(path).resolve().parent


def locations(model: onnx.ModelProto, found: Sequence[Scope] = ()) -> Iterator[onnx.StringStringEntryProto]:
    """Where tensors of ``model`` say in which files, relative to its folder, their data lies."""
    tensors: list[onnx.TensorProto] = []
    for scope in found or scopes(model):
        if isinstance(scope.container, onnx.GraphProto):
            tensors += scope.container.initializer
        for attribute in (each for index in scope.holders(TENSORS) for each in scope.nodes[index].attribute):
            tensors += [attribute.t] if attribute.HasField("t") else attribute.tensors
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (entry for entry in tensor.external_data if entry.key == "location")
