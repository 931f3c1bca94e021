"""Large initializers of a model, kept where they were read: never parsed, copied with the model or serialised.

In the model that is parsed they are tensors of external data without a location. onnxruntime gets them as they lie in
memory, as a file would hold them; before 1.31 as arrays.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from io import BytesIO
from itertools import accumulate
from os import PathLike
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto

from ..reference.num_threads import get_num_threads
from ..reference.threads import for_each
from ..spec import TYPES
from .element_types import elem_type

#: Models of fewer bytes are parsed whole, and so are tensors of fewer bytes.
SMALL_MODEL, SMALL_TENSOR = 1 << 24, 1 << 16

#: ONNX's numbers of the types whose values lie in a file as in an array of NumPy's -> that array's type.
_DTYPES = {
    elem_type(t): np.dtype(t)
    for t in TYPES
    if t not in ("bfloat16", "str", "complex64", "complex128")
}
#: Values begin at multiples of so many bytes.
_ALIGNED = 64
#: The name of the file that a tensor's external data would lie in.
LOCATION = "weights of ort_gridsample"
#: protobuf serializes no message of more bytes.
MAX_SERIALIZED = (1 << 31) - 1
#: The numbers of the fields of a ModelProto, a GraphProto and a TensorProto.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


class Loaded(NamedTuple):
    """Values that were read: all of them as they lie in memory, (bytes,), and each as an array there."""

    memory: npt.NDArray[np.uint8]
    arrays: dict[str, npt.NDArray[np.generic]]
    #: Location of external data -> the bytes there.
    files: dict[str, npt.NDArray[np.uint8]]


#: Name -> a tensor with its values, or its values as bytes.
Values: TypeAlias = Mapping[str, TensorProto | npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Weights:
    """The large initializers of the main graph of a model."""

    #: The bytes of the model, its path, or the values themselves.
    source: bytes | str | PathLike[str] | Values = b""
    #: Name -> offset of the values in the source, and their number of bytes.
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def loaded(self, tensors: Collection[TensorProto]) -> Loaded:
        """The values of those of ``tensors`` that are among the weights, which say then where these lie in memory.

        Raises:
            OSError: the file cannot be read.
        """
        wanted = [tensor for tensor in tensors if tensor.name in self.places]
        if isinstance(self.source, Mapping):
            return _loaded_apart(wanted, self.source)
        sizes = [self.places[tensor.name][1] for tensor in wanted]
        *starts, end = accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)
        memory = np.empty(
            end + _ALIGNED, np.uint8
        )  # in one piece, which takes the system less time than many
        memory = memory[-memory.ctypes.data % _ALIGNED :][:end]
        loaded = Loaded(memory, {}, {LOCATION: memory})
        pieces = list[tuple[str, npt.NDArray[np.uint8]]]()
        for tensor, size, start in zip(wanted, sizes, starts, strict=True):
            pieces.append((tensor.name, loaded.memory[start : start + size]))
            loaded.arrays[tensor.name] = (
                pieces[-1][1].view(_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))
            )
            for key, value in (
                ("location", LOCATION),
                ("offset", str(start)),
                ("length", str(size)),
            ):
                tensor.external_data.add(key=key, value=value)
        for_each(self._read, pieces, get_num_threads())
        return loaded

    def _read(self, each: tuple[str, npt.NDArray[np.uint8]]) -> None:
        """Read the values of a name into a piece of memory, which no thread keeps that comes too late."""
        (name, piece), source = each, self.source
        assert not isinstance(source, Mapping)
        offset, size = self.places[name]
        with (
            BytesIO(source)
            if isinstance(source, bytes)
            else open(source, "rb", buffering=0) as file
        ):
            if file.seek(offset) != offset or file.readinto(piece.data) != size:
                raise OSError(f"{source!r} ends before the values of {name}")

    def whole(self, tensor: TensorProto) -> TensorProto:
        """A copy of ``tensor`` with its values, where these are among the weights."""
        copy = deepcopy(tensor)
        for array in self.loaded([copy]).arrays.values():
            copy.ClearField("data_location")
            copy.ClearField("external_data")
            copy.raw_data = array.tobytes()
        return copy

    def put_back(self, model: onnx.ModelProto, names: Collection[str]) -> Weights:
        """Let the initializers ``names`` of ``model`` have their values, and return the other weights."""
        for tensor in model.graph.initializer:
            if tensor.name in self.places and tensor.name in names:
                tensor.CopyFrom(self.whole(tensor))
        return self.without(names)

    def without(self, names: Collection[str]) -> Weights:
        """Return the weights without those of these ``names``."""
        return Weights(
            self.source, {name: place for name, place in self.places.items() if name not in names}
        )


def _loaded_apart(tensors: Collection[TensorProto], values: Values) -> Loaded:
    """Let each of ``tensors`` have a location of external data of its own, where its values are the only ones.

    protobuf copies the bytes of a tensor when they are read. These copies are used as they are: a block for all values
    would be a second copy.
    """
    loaded = Loaded(np.empty(0, np.uint8), {}, {})
    for index, tensor in enumerate(tensors):
        source = values[tensor.name]
        data = (
            np.frombuffer(source.raw_data, np.uint8) if isinstance(source, TensorProto) else source
        )
        location = f"{LOCATION} {index}"
        loaded.files[location] = data
        loaded.arrays[tensor.name] = data.view(_DTYPES[tensor.data_type]).reshape(
            tuple(tensor.dims)
        )
        for key, value in (("location", location), ("offset", "0"), ("length", str(data.size))):
            tensor.external_data.add(key=key, value=value)
    return loaded


NO_WEIGHTS = Weights()


def exceeds_protobuf(model: onnx.ModelProto) -> bool:
    """Whether ``model`` has more values than protobuf can serialize, by the shapes of its tensors."""
    return _values_bytes(model.graph) > MAX_SERIALIZED


def _values_bytes(graph: onnx.GraphProto) -> int:
    """Return about how many bytes the values in ``graph`` take: to read the values would copy them."""
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    constants = (attribute.t for attribute in attributes if attribute.HasField("t"))
    return sum(map(_nbytes, graph.initializer)) + sum(map(_nbytes, constants))


def _nbytes(tensor: TensorProto) -> int:
    if tensor.data_location == TensorProto.EXTERNAL:
        return 0
    dtype = _DTYPES.get(tensor.data_type)
    return math.prod(tensor.dims) * (1 if dtype is None else dtype.itemsize)


def split_proto(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """Return a copy of ``model`` without its large initializers, and these, which stay in ``model``."""
    copy = onnx.ModelProto()
    _copy_fields(model, copy, "graph")
    _copy_fields(model.graph, copy.graph, "initializer")
    held = {value.name for value in (*model.graph.input, *model.graph.output)}
    values = dict[str, TensorProto]()
    for tensor in model.graph.initializer:
        new = copy.graph.initializer.add()
        if tensor.name in held or not _is_apart(tensor):
            new.CopyFrom(tensor)
            continue
        _copy_fields(tensor, new, "raw_data")
        new.data_location = TensorProto.EXTERNAL
        values[tensor.name] = tensor
    return copy, Weights(values, {name: (0, _nbytes(tensor)) for name, tensor in values.items()})


def _copy_fields(source: Message, target: Message, without: str) -> None:
    """Copy all fields of a message that are set, but the one named ``without``."""
    for descriptor, value in source.ListFields():
        if descriptor.name == without:
            continue
        if isinstance(value, Message):
            getattr(target, descriptor.name).CopyFrom(value)
        elif isinstance(value, (str, bytes, int, float)):
            setattr(target, descriptor.name, value)
        else:
            getattr(target, descriptor.name).extend(value)


def _is_apart(tensor: TensorProto) -> bool:
    """Whether onnxruntime can get the values of ``tensor`` from memory."""
    if _nbytes(tensor) <= SMALL_TENSOR or tensor.data_type not in _DTYPES:
        return False
    return tensor.HasField("raw_data") and not (tensor.data_location or tensor.HasField("segment"))


def split(source: bytes | str | PathLike[str]) -> tuple[onnx.ModelProto, Weights] | None:
    """The model in these bytes or at that path without its weights, and these; None: it is to be parsed whole."""
    try:
        if isinstance(source, bytes):
            return _split(source, source) if len(source) >= SMALL_MODEL else None
        if not isinstance(source, (str, PathLike)):
            return None  # a number would be the file of another
        with open(source, "rb") as file:
            if os.fstat(file.fileno()).st_size < SMALL_MODEL:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _split(data, source)
    except (
        OSError,
        LookupError,
        ValueError,
        DecodeError,
    ):  # whoever parses it whole says what is wrong with it
        return None


def _split(
    data: bytes | mmap.mmap, source: bytes | str | PathLike[str]
) -> tuple[onnx.ModelProto, Weights] | None:
    ((_, graph_key, at, end),) = (
        field for field in _fields(data, 0, len(data)) if field[0] == _GRAPH
    )
    model, places = (
        onnx.ModelProto.FromString(data[:graph_key] + data[end:]),
        dict[str, tuple[int, int]](),
    )
    graph = model.graph  # read piece by piece, as protobuf merges messages
    for number, key, start, stop in _fields(data, at, end):
        apart = (
            _tensor(data, start, stop)
            if number == _INITIALIZER and stop - start > SMALL_TENSOR
            else None
        )
        if apart is not None:
            tensor, places[tensor.name] = apart
            graph.MergeFromString(data[at:key])
            graph.initializer.append(tensor)
            at = stop
    if not places:
        return None
    graph.MergeFromString(data[at:end])
    if len({tensor.name for tensor in graph.initializer}) < len(graph.initializer):
        return None
    # No session takes values for what may be fed, or is an output.
    held = {value.name for value in (*graph.input, *graph.output)}
    return model, Weights(source, places).put_back(model, held)


def _tensor(
    data: bytes | mmap.mmap, start: int, stop: int
) -> tuple[TensorProto, tuple[int, int]] | None:
    """The tensor in these bytes without its values, and where these are; None where they are not as expected."""
    raw = [field[1:] for field in _fields(data, start, stop) if field[0] == _RAW_DATA]
    if len(raw) != 1:
        return None
    ((key, at, end),) = raw
    tensor = TensorProto.FromString(data[start:key] + data[end:stop])
    dtype = _DTYPES.get(tensor.data_type)
    fits = (
        dtype is not None
        and min(tensor.dims, default=1) > 0
        and math.prod(tensor.dims) * dtype.itemsize == end - at
    )
    if not fits or tensor.external_data or tensor.data_location or tensor.HasField("segment"):
        return None
    tensor.data_location = TensorProto.EXTERNAL
    return tensor, (at, end - at)


def _fields(data: bytes | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Of each field its number, and where key, value and the next begin; LookupError, ValueError: it is no message."""
    while at < end:
        key, start = _varint(data, at)
        kind = key & 7
        if kind == 2:
            size, start = _varint(data, start)
            stop = start + size
        elif kind == 0:
            stop = _varint(data, start)[1]
        else:
            stop = start + {1: 8, 5: 4}[kind]
        if stop > end:
            raise ValueError(stop)
        yield key >> 3, at, start, stop
        at = stop


def _varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """The number that begins at a place, and where it ends."""
    value = 0
    for last, shift in enumerate(range(0, 64, 7), at):
        value |= (data[last] & 127) << shift
        if data[last] < 128:
            return value, last + 1
    raise ValueError(at)
