"""External data: the files of a model's tensors, and tensors whose values are in such files."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import onnx

from ..errors import GridSampleError
from .placeholders import is_placeholder
from .scope import Scope, scopes_of
from .tensors import has_data, tensors_of


def resolve_locations(
    model: onnx.ModelProto,
    path: str | PathLike[str],
    scopes: Sequence[Scope] = (),
) -> str | None:
    """Replace the locations of a model's external data by those of the files that links lead to.

    Args:
        model: the model at ``path``, which is changed.
        scopes: the scopes of ``model`` if they are known.

    Returns:
        The folder that the new locations are relative to; None if there is no external data.

    Raises:
        GridSampleError: a location is not inside the model's folder.
    """
    entries = list(locations(model, scopes))
    if not entries:
        return None
    files = external_files(entries, path)
    folder = _common_folder(files, _folders(path))
    for entry, file in zip(entries, files, strict=True):
        entry.value = os.path.relpath(file, folder)
    return str(folder)


def _common_folder(files: Sequence[Path], folders: Sequence[Path]) -> Path:
    """Return the first of ``folders`` that contains all ``files``; if none does, their parent."""
    for folder in folders:
        if all(file.is_relative_to(folder) for file in files):
            return folder
    # onnx refuses locations outside of the folder, such as "../blobs/1".
    return Path(os.path.commonpath(folders))


def external_files(
    entries: Iterable[onnx.StringStringEntryProto],
    path: str | PathLike[str],
) -> list[Path]:
    """Return the file, without links, that each location of external data leads to.

    Raises:
        GridSampleError: a location is not inside the model's folder.
    """
    folders = _folders(path)
    files: dict[str, Path] = {}
    resolved = []
    for entry in entries:
        if entry.value not in files:
            files[entry.value] = _external_file(entry.value, path, folders)
        resolved.append(files[entry.value])
    return resolved


def _external_file(location: str, path: str | PathLike[str], folders: Sequence[Path]) -> Path:
    """Return the file that a location leads to, which must be in one of ``folders``.

    Raises:
        GridSampleError: it is not.
    """
    try:
        file = (Path(path).parent / location).resolve()
        if any(file.is_relative_to(folder) for folder in folders):
            return file
    except (OSError, RuntimeError, ValueError):  # links in a circle, or not a file name
        pass
    found = f"at {location!r}"
    expected = "a file in the model's folder"
    raise GridSampleError(str(path), "external data", found, expected)


def _folders(path: str | PathLike[str]) -> tuple[Path, Path]:
    """Return the folder of ``path``, and the folder of the file that it links to.

    They differ in the cache of a model hub, which is made of links.
    """
    return Path(path).parent.resolve(), Path(path).resolve().parent


def locations(
    model: onnx.ModelProto,
    scopes: Sequence[Scope] = (),
) -> Iterator[onnx.StringStringEntryProto]:
    """Yield the locations of external data, relative to the model's folder.

    Args:
        scopes: the scopes of ``model`` if they are known.
    """
    for tensor in tensors_of(scopes or scopes_of(model)).with_parts_of_sparse():
        if is_placeholder(tensor):
            yield from (entry for entry in tensor.external_data if entry.key == "location")


def shorten_locations(
    entries: Iterable[onnx.StringStringEntryProto], folder: str | PathLike[str]
) -> None:
    """Shorten locations that lead out of the model's ``folder`` and back into it."""
    for entry in entries:
        location = os.path.relpath(Path(folder) / entry.value, folder)
        entry.value = Path(location).as_posix()


class ExternalCopy(NamedTuple):
    """A file of external data to copy.

    Attributes:
        new_file: the file to write.
        source_file: the file to read.
    """

    new_file: Path
    source_file: Path


def external_data_to_copy(
    entries: Iterable[onnx.StringStringEntryProto],
    files: Iterable[Path],
    path: str | PathLike[str],
) -> list[ExternalCopy]:
    """Return the external data to copy with a model; data that is already there is not copied.

    Args:
        entries: the locations in the model.
        files: the file that each location leads to in the model that was read.

    Raises:
        GridSampleError: a file would be outside of the new model's folder, or another file is in
            its place.
        OSError: a file cannot be read.
    """
    new_model_file = Path(path).resolve()
    copies: dict[Path, Path] = {}
    for entry, source_file in zip(entries, files, strict=True):
        new_file = new_model_file.parent / entry.value
        _check_copy(new_file, source_file, new_model_file, path)
        if not new_file.exists():
            copies.setdefault(new_file, source_file)  # several locations may lead to one file
        if not _have_same_content(source_file, copies.get(new_file, new_file)):
            found = f"different from the file at {new_file}"
            raise GridSampleError(str(path), "external data", found, "no other file at that path")
    return [ExternalCopy(new_file, source_file) for new_file, source_file in copies.items()]


def _check_copy(
    new_file: Path, source_file: Path, new_model_file: Path, path: str | PathLike[str]
) -> None:
    """Check that external data can be written.

    Args:
        new_file: the file to write.
        source_file: the file to copy.
        new_model_file: the file of the new model, without links.
        path: the path of the new model, for an error.

    Raises:
        GridSampleError: the file cannot be written.
    """
    # onnxruntime reads no file outside the model's folder.
    if not new_file.resolve().is_relative_to(new_model_file.parent):
        found = f"outside the folder of {path}, at {new_file.resolve()}"
        raise GridSampleError(str(path), "external data", found, "a file in that folder")
    if new_model_file in (new_file.resolve(), source_file):
        raise GridSampleError(str(path), "external data", "the model file itself", "another file")


def _have_same_content(file: Path, other: Path) -> bool:
    return other.samefile(file) or filecmp.cmp(file, other, shallow=False)


def without_external_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of ``model`` in which tensors with external data have no elements.

    onnx's checker refuses external data that is not in the working directory. A weight of a
    session's model has no location at all.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensors, sparse_tensors = tensors_of(scopes_of(copy))
    for sparse in sparse_tensors:
        if not has_data(sparse):
            _clear_data(sparse.values)
            _clear_data(sparse.indices)
    for tensor in tensors:
        if is_placeholder(tensor):
            _clear_data(tensor)
    return copy


def _clear_data(tensor: onnx.TensorProto) -> None:
    """Make ``tensor`` one of its name and type, without elements."""
    empty = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
    tensor.CopyFrom(empty)
