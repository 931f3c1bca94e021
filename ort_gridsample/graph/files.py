"""Model files: read them, and write them atomically. External data is in :mod:`.external_data`."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError, EncodeError

from ..errors import GridSampleError, one_line
from .external_data import (
    external_data_to_copy,
    external_files,
    locations,
    resolve_locations,
    shorten_locations,
    without_external_data,
)
from .message_fields import Buffer, fields_of, mapped_file
from .tensors import exceeds_protobuf

#: A model in memory, serialized, or at a path.
Model = onnx.ModelProto | bytes | str | PathLike[str]

#: The numbers of fields of a ModelProto.
_OPSET_IMPORT_FIELD = 8
_FUNCTIONS_FIELD = 25
#: Exceptions that may also come from a fault of this package.
_PROGRAMMING_ERRORS = (
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
#: The attribute of an exception that a function of the caller raised.
_RAISED_BY_CALLER = "_ort_gridsample_raised_by_caller"
#: Exceptions that only the model causes.
_MODEL_ERRORS = (UnicodeDecodeError, RecursionError, DecodeError, EncodeError)


def read_model(model: Model, *, external_data: bool = False) -> onnx.ModelProto:
    """Return the model that ``model`` is or contains.

    Args:
        model: a model, which is returned as it is; the bytes of a model; or a path.
        external_data: whether the external data of a model at a path is loaded.

    Raises:
        GridSampleError: the file is not an ONNX model, or has external data outside its folder.
        OSError: the file cannot be read.
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if isinstance(model, bytes):
        return _parsed(model, "model", "the model")
    if not isinstance(model, (str, PathLike)):
        found = f"of type {type(model).__name__}"
        raise GridSampleError("model", "model", found, "a ModelProto, bytes or a path")
    proto = _parsed(Path(model).read_bytes(), os.fspath(model), "the file")
    if external_data:
        folder = resolve_locations(proto, model)
        if folder is not None:
            onnx.load_external_data_for_model(proto, folder)
    return proto


def _parsed(data: bytes, where: str, argument: str) -> onnx.ModelProto:
    """Return the model that ``data`` contains.

    Raises:
        GridSampleError: the data is not an ONNX model; the error has ``where`` and ``argument``.
    """
    try:
        proto = onnx.ModelProto.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # protobuf in pure Python raises the latter
        found = f"not readable as protobuf ({error})"
        raise GridSampleError(where, argument, found, "an ONNX model") from None
    if not proto.HasField("graph"):
        raise GridSampleError(where, argument, "without a graph", "an ONNX model")
    return proto


def imported_domains(model: bytes | str | PathLike[str]) -> frozenset[str] | None:
    """Return the domains that a serialized model and its functions import.

    The graph is not read, so that this takes the same time for models of any size.

    Args:
        model: the bytes of a model, or a path.

    Returns:
        The domains; None if the file is not an ONNX model.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        if isinstance(model, bytes):
            return frozenset(_imports_in(model))
        with mapped_file(model) as buffer:
            return frozenset(_imports_in(buffer))
    except (DecodeError, ValueError):
        return None


def _imports_in(buffer: Buffer) -> Iterator[str]:
    """Yield the domains that the serialized model in ``buffer`` and its functions import.

    Raises:
        ValueError: the buffer is not a model.
        DecodeError: a part of it is not a message of its type.
    """
    for field in fields_of(buffer, 0, len(buffer)):
        content = slice(field.content_start, field.end)
        if not field.has_length:
            continue
        if field.number == _OPSET_IMPORT_FIELD:
            yield onnx.OperatorSetIdProto.FromString(buffer[content]).domain
        elif field.number == _FUNCTIONS_FIELD:
            function = onnx.FunctionProto.FromString(buffer[content])
            yield from (entry.domain for entry in function.opset_import)


@contextmanager
def keep_errors() -> Iterator[None]:
    """Let errors pass through :func:`translate_errors`, because a function of the caller runs."""
    try:
        yield
    except Exception as error:
        setattr(error, _RAISED_BY_CALLER, True)
        raise


@contextmanager
def translate_errors(model: onnx.ModelProto) -> Iterator[None]:
    """Replace errors that an invalid ``model`` causes by a GridSampleError that says so.

    The model is checked only after an error, because most faults do not affect the nodes that this
    package reads.
    """
    try:
        yield
    except (GridSampleError, OSError, MemoryError):
        raise
    except Exception as error:
        if hasattr(error, _RAISED_BY_CALLER):
            raise
        fault = _fault_of(model, error)
        if fault is None:
            raise
        found = f"not valid ({fault})"
        raise GridSampleError("model", "the model", found, "an ONNX model") from error


def _fault_of(model: onnx.ModelProto, error: Exception) -> str | None:
    """Return the fault of ``model`` that may have caused ``error``.

    Return None if the model is valid, or if onnx's checker cannot read it because of its size.
    """
    if isinstance(error, _MODEL_ERRORS):
        return str(error)
    if exceeds_protobuf(model):
        return None
    try:
        onnx.checker.check_model(without_external_data(model))
    except Exception as complaint:
        fault = one_line(complaint)
        if isinstance(error, _PROGRAMMING_ERRORS):
            # The model may be wrong elsewhere, and not the reason for this error.
            fault += f"; reading it raised {type(error).__name__}: {error}"
        return fault
    return None


@contextmanager
def atomic_write(path: str | PathLike[str]) -> Iterator[Path]:
    """Yield a new file in the folder of ``path``, which replaces ``path`` at the end.

    If ``path`` is a link, the file that it links to is replaced. The new file is removed if an
    error is raised.

    Raises:
        OSError: the file cannot be written; the error names ``path``.
    """
    target = Path(os.path.realpath(path))
    temporary = None
    try:
        # The name of the target may already have the maximum length.
        new = target.parent / f".{secrets.token_hex(8)}{target.suffix}"
        new.touch(exist_ok=False)  # with the default permissions; those of tempfile are private
        temporary = new
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno:
            is_of_new_file = temporary is None or error.filename in (None, str(temporary))
            if is_of_new_file:
                raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_model(
    model: onnx.ModelProto,
    path: str | PathLike[str],
    external_data_of: str | PathLike[str],
) -> list[Path]:
    """Write ``model`` to ``path``, and its external data to the same folder.

    Args:
        model: the model. Locations that lead out of its folder and back are shortened.
        path: the path to write to.
        external_data_of: the path that the model was read from. If it is in the folder of
            ``path``, both models use the same external data.

    Returns:
        The files of external data that were copied.

    Raises:
        GridSampleError: a location of external data is not inside the model's folder, or another
            file is in its place.
        OSError: a file cannot be read or written.
    """
    entries = list(locations(model))
    files = external_files(entries, external_data_of)
    shorten_locations(entries, Path(external_data_of).parent.resolve())
    copies = external_data_to_copy(entries, files, path)
    with ExitStack() as undo:
        for new_file, source_file in copies:
            new_file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(new_file) as file:
                shutil.copyfile(source_file, file)
            undo.callback(new_file.resolve().unlink, missing_ok=True)  # not a link to the copy
        with atomic_write(path) as file:
            file.write_bytes(model.SerializeToString())
        undo.pop_all()
    return [new_file for new_file, _ in copies]
