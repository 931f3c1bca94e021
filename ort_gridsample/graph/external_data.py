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
from .scope import TENSOR_ATTRIBUTES, Scope, scopes_of


def follow_links(
    model: onnx.ModelProto,
    path: str | PathLike[str],
    scopes: Sequence[Scope] = (),
) -> str | None:
    """Resolve links in the locations of a model's external data.

    Args:
        model: the model at ``path``; its locations are changed.
        path: the path of the model.
        scopes: the scopes of ``model`` if they are known.

    Returns:
        The folder that the new locations are relative to; None if there is no external data.

    Raises:
        GridSampleError: a location is not inside the model's folder.
    """
    entries = list(locations(model, scopes))
    if not entries:
        return None
    files = _external_files(entries, path)
    folder = _common_folder(list(files.values()), _folders(path))
    for entry in entries:
        entry.value = os.path.relpath(files[entry.value], folder)
    return str(folder)


def _common_folder(files: Sequence[Path], folders: Sequence[Path]) -> Path:
    """Return the first of ``folders`` that contains all ``files``; if none does, their parent."""
    for folder in folders:
        if all(file.is_relative_to(folder) for file in files):
            return folder
    # onnx refuses locations outside of the folder, such as "../blobs/1".
    return Path(os.path.commonpath(folders))


def _external_files(
    entries: Iterable[onnx.StringStringEntryProto],
    path: str | PathLike[str],
) -> dict[str, Path]:
    """Return location -> file, without links, of the external data of the model at ``path``.

    Raises:
        GridSampleError: a location is not inside the model's folder.
    """
    folders = _folders(path)
    files = {}
    for location in dict.fromkeys(entry.value for entry in entries):
        try:
            files[location] = (Path(path).parent / location).resolve()
            is_inside = any(files[location].is_relative_to(folder) for folder in folders)
        except (OSError, RuntimeError, ValueError):  # links in a circle, or not a file name
            is_inside = False
        if not is_inside:
            found = f"at {location!r}"
            expected = "a file in the model's folder"
            raise GridSampleError(str(path), "external data", found, expected)
    return files


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
        model: the model.
        scopes: the scopes of ``model`` if they are known.
    """
    tensors, sparse_tensors = _tensors_of(scopes or scopes_of(model))
    for sparse in sparse_tensors:
        tensors += [sparse.values, sparse.indices]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield from (entry for entry in tensor.external_data if entry.key == "location")


class _Tensors(NamedTuple):
    """The tensors of a model: initializers, and attributes of nodes.

    Attributes:
        dense: the tensors that are not a part of a sparse one.
        sparse: the sparse tensors.
    """

    dense: list[onnx.TensorProto]
    sparse: list[onnx.SparseTensorProto]


def _tensors_of(scopes: Iterable[Scope]) -> _Tensors:
    """Return the tensors of a model with these scopes."""
    tensors: list[onnx.TensorProto] = []
    sparse_tensors: list[onnx.SparseTensorProto] = []
    for scope in scopes:
        if isinstance(scope.container, onnx.GraphProto):
            tensors += scope.container.initializer
            sparse_tensors += scope.container.sparse_initializer
        for index in scope.attribute_holders(TENSOR_ATTRIBUTES):
            for attribute in scope.nodes[index].attribute:
                tensors += [attribute.t] if attribute.HasField("t") else attribute.tensors
                sparse_tensors += attribute.sparse_tensors
                if attribute.HasField("sparse_tensor"):
                    sparse_tensors.append(attribute.sparse_tensor)
    return _Tensors(tensors, sparse_tensors)


def external_data_to_copy(
    model: onnx.ModelProto,
    path: str | PathLike[str],
    external_data_of: str | PathLike[str],
) -> dict[Path, Path]:
    """Return new file -> file of external data, as :func:`.files.write_model` copies them.

    The locations of ``model`` are shortened.
    """
    out = Path(path).resolve()
    source_folder = Path(external_data_of).parent.resolve()
    entries = list(locations(model))
    files = _external_files(entries, external_data_of)
    copies: dict[Path, Path] = {}
    for entry in entries:
        data = files[entry.value]
        location = os.path.relpath(source_folder / entry.value, source_folder)
        entry.value = Path(location).as_posix()
        copy = out.parent / entry.value
        _check_copy(copy, data, path)
        if not copy.exists():
            copies.setdefault(copy, data)  # several locations may lead to one file
        if not _have_same_content(data, copies.get(copy, copy)):
            found = f"different from the file at {copy}"
            raise GridSampleError(str(path), "external data", found, "no other file at that path")
    return copies


def _check_copy(copy: Path, data: Path, path: str | PathLike[str]) -> None:
    """Check that external data can be written.

    Args:
        copy: the file to write.
        data: the file to copy.
        path: the path of the new model.

    Raises:
        GridSampleError: the file cannot be written.
    """
    out = Path(path).resolve()
    # onnxruntime reads no file outside the model's folder.
    if not copy.resolve().is_relative_to(out.parent):
        found = f"outside the folder of {path}, at {copy.resolve()}"
        raise GridSampleError(str(path), "external data", found, "a file in that folder")
    if out in (copy.resolve(), data):
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
    tensors, sparse_tensors = _tensors_of(scopes_of(copy))
    for sparse in sparse_tensors:
        parts = (sparse.values, sparse.indices)
        if any(part.data_location == onnx.TensorProto.EXTERNAL for part in parts):
            _clear_data(sparse.values)
            _clear_data(sparse.indices)
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _clear_data(tensor)
    return copy


def _clear_data(tensor: onnx.TensorProto) -> None:
    """Make ``tensor`` one of its name and type, without elements."""
    empty = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0])
    tensor.CopyFrom(empty)
