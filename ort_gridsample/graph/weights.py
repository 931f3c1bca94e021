"""The large initializers of a model, which stay where they were read.

They are not parsed, not copied with the model and not serialized. In the model that is parsed, they
are tensors of external data without a location. onnxruntime gets their values as files in memory,
or as arrays before 1.31.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import accumulate
from os import PathLike
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import TensorProto

from ..errors import GridSampleError
from ..spec import TYPES
from ..system.num_threads import get_num_threads
from ..system.threads import for_each
from .element_types import elem_type
from .message_fields import Buffer, fields_of, mapped_file

#: Serialized models of fewer bytes are parsed as a whole.
MIN_MODEL_BYTES = 1 << 24
#: Tensors of at most this many bytes are parsed.
MAX_PARSED_TENSOR_BYTES = 1 << 16
#: The name of the file of external data, which is in memory only.
LOCATION = "weights of ort_gridsample"

#: The types whose values are the same bytes in a file as in an array.
_ARRAY_TYPES = TYPES.keys() - {"bfloat16", "str", "complex64", "complex128"}
#: ONNX's number of such a type -> its dtype.
_DTYPES = {elem_type(name): np.dtype(name) for name in TYPES if name in _ARRAY_TYPES}
#: ONNX's number of each type whose values are bytes -> the number of bytes of an element.
_ELEMENT_BYTES = {number: dtype.itemsize for number, dtype in _DTYPES.items()} | {
    TensorProto.BFLOAT16: 2,
    TensorProto.COMPLEX64: 8,
    TensorProto.COMPLEX128: 16,
}
#: Values in memory begin at multiples of this many bytes.
_ALIGNMENT = 64
#: The numbers of the fields of a ModelProto, of a GraphProto and of a TensorProto.
_GRAPH_FIELD = 7
_INITIALIZER_FIELD = 5
_RAW_DATA_FIELD = 9

ByteArray: TypeAlias = npt.NDArray[np.uint8]


class Span(NamedTuple):
    """Where the values of a tensor are in a model: their offset and their length, in bytes."""

    offset: int
    length: int


class LoadedWeights(NamedTuple):
    """Values of weights in memory.

    Attributes:
        files: the location of external data -> its content.
        arrays: the name of a weight -> its values, a view of a file.
    """

    files: dict[str, ByteArray]
    arrays: dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Weights(ABC):
    """The large initializers of the main graph of a model.

    Attributes:
        spans: the name of a weight -> where its values are in what contains them.
    """

    spans: Mapping[str, Span] = field(default_factory=dict, kw_only=True)

    def __contains__(self, name: str) -> bool:
        return name in self.spans

    @abstractmethod
    def _load(self, weights: Sequence[TensorProto]) -> LoadedWeights:
        """Like :meth:`load`, but for tensors that are all weights."""

    def load(self, tensors: Collection[TensorProto]) -> LoadedWeights:
        """Read the values of the weights among ``tensors``, and set their external data.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        return self._load([tensor for tensor in tensors if tensor.name in self.spans])

    def with_values(self, tensor: TensorProto) -> TensorProto:
        """Return a copy of ``tensor``, with its values if it is one of the weights.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        copy = deepcopy(tensor)
        for array in self.load([copy]).arrays.values():
            copy.ClearField("data_location")
            copy.ClearField("external_data")
            copy.raw_data = array.tobytes()
        return copy

    def restore(self, model: onnx.ModelProto, names: Collection[str]) -> Weights:
        """Put the values of the weights ``names`` back into ``model``; return the other weights.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """
        for tensor in model.graph.initializer:
            if tensor.name in self.spans and tensor.name in names:
                tensor.CopyFrom(self.with_values(tensor))
        return self.without(names)

    def without(self, names: Collection[str]) -> Weights:
        """Return the weights except ``names``."""
        spans = {name: span for name, span in self.spans.items() if name not in names}
        return replace(self, spans=spans)


@dataclass(frozen=True)
class SerializedWeights(Weights):
    """Weights inside of a serialized model.

    Attributes:
        source: the bytes of the model, or its path.
        spans: the name of a weight -> where its values are in ``source``.
    """

    source: bytes | str | PathLike[str] = b""

    def _load(self, weights: Sequence[TensorProto]) -> LoadedWeights:
        lengths = [self.spans[tensor.name].length for tensor in weights]
        aligned_lengths = (-(-length // _ALIGNMENT) * _ALIGNMENT for length in lengths)
        *offsets, total = accumulate(aligned_lengths, initial=0)
        memory = _aligned_memory(total)
        loaded = LoadedWeights({LOCATION: memory}, {})
        parts = list[tuple[str, ByteArray]]()
        for tensor, offset, length in zip(weights, offsets, lengths, strict=True):
            part = memory[offset : offset + length]
            parts.append((tensor.name, part))
            loaded.arrays[tensor.name] = _as_array(tensor, part)
            _set_external_data(tensor, LOCATION, offset, length)
        for_each(self._read_into, parts, get_num_threads())
        return loaded

    def _read_into(self, part: tuple[str, ByteArray]) -> None:
        """Read the values of a weight.

        Args:
            part: the name of the weight, and the memory to read to.

        Raises:
            OSError: the file cannot be read.
        """
        name, memory = part
        span = self.spans[name]
        source = self.source
        if isinstance(source, bytes):
            memory[:] = np.frombuffer(source, np.uint8, span.length, span.offset)
            return
        with open(source, "rb", buffering=0) as file:
            file.seek(span.offset)
            n_read = 0
            while n_read < span.length:  # Linux reads at most 2 GiB at a time
                n_bytes = file.readinto(memory[n_read:].data)
                if not n_bytes:
                    raise OSError(f"{source!r} ends before the values of {name}")
                n_read += n_bytes


@dataclass(frozen=True)
class SeparateWeights(Weights):
    """Weights in memory, each by itself. All offsets of the spans are 0.

    Attributes:
        values: the name of a weight -> its tensor, or the bytes of its values.
        spans: the name of a weight -> where its values are in its bytes.
    """

    values: Mapping[str, TensorProto | ByteArray]

    def _load(self, weights: Sequence[TensorProto]) -> LoadedWeights:
        return _refer_to_values(weights, self.values)


NO_WEIGHTS: Weights = SerializedWeights()


def _aligned_memory(length: int) -> ByteArray:
    """Return memory that begins at a multiple of the alignment."""
    # The system provides one large block faster than many small ones.
    block = np.empty(length + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return block[start : start + length]


def _as_array(tensor: TensorProto, data: ByteArray) -> npt.NDArray[np.generic]:
    """Return a view of ``data`` with the type and the shape of ``tensor``."""
    return data.view(_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))


def _set_external_data(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Add to ``tensor`` where its external data is."""
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value=str(offset))
    tensor.external_data.add(key="length", value=str(length))


def _refer_to_values(
    weights: Collection[TensorProto],
    values: Mapping[str, TensorProto | ByteArray],
) -> LoadedWeights:
    """Set the external data of ``weights`` to files, each of which has the values of one weight.

    The bytes of a tensor are a copy by protobuf, which becomes the file. One file for all weights
    would be a second copy.

    Raises:
        GridSampleError: the bytes of a weight are not those of an array of its shape.
    """
    loaded = LoadedWeights({}, {})
    for index, tensor in enumerate(weights):
        data = values[tensor.name]
        if isinstance(data, TensorProto):
            data = np.frombuffer(data.raw_data, np.uint8)
            # Only now, because reading the length of raw_data copies raw_data.
            _check_length(tensor, data.size)
        location = f"{LOCATION} {index}"
        loaded.files[location] = data
        loaded.arrays[tensor.name] = _as_array(tensor, data)
        _set_external_data(tensor, location, 0, data.size)
    return loaded


def _check_length(tensor: TensorProto, length: int) -> None:
    """Check that the values of ``tensor`` have ``length`` bytes, by its shape.

    Raises:
        GridSampleError: they have another number of bytes.
    """
    expected_length = values_bytes(TensorProto(data_type=tensor.data_type, dims=tensor.dims))
    if length != expected_length:
        where = f"initializer {tensor.name!r}"
        expected = f"of {expected_length} bytes, as its shape {list(tensor.dims)} requires"
        raise GridSampleError(where, "raw_data", f"of {length} bytes", expected)


def values_bytes(tensor: TensorProto) -> int:
    """Return about how many bytes the values in ``tensor`` have, by its shape."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return 0
    return math.prod(tensor.dims) * _ELEMENT_BYTES.get(tensor.data_type, 1)


def split_proto(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Weights]:
    """Return a copy of ``model`` without its large initializers, and these.

    The values of the weights stay in ``model``.
    """
    copy = onnx.ModelProto()
    _copy_fields(model, copy, excluded="graph")
    _copy_fields(model.graph, copy.graph, excluded="initializer")
    # onnxruntime decides which of several initializers of one name it takes.
    n_tensors = Counter(tensor.name for tensor in model.graph.initializer)
    kept_names = _inputs_and_outputs(model.graph)
    kept_names.update(name for name, number in n_tensors.items() if number > 1)
    tensors = dict[str, TensorProto]()
    for tensor in model.graph.initializer:
        new_tensor = copy.graph.initializer.add()
        if tensor.name in kept_names or not _is_large_array(tensor):
            new_tensor.CopyFrom(tensor)
            continue
        _copy_fields(tensor, new_tensor, excluded="raw_data")
        new_tensor.data_location = TensorProto.EXTERNAL
        tensors[tensor.name] = tensor
    spans = {name: Span(0, values_bytes(tensor)) for name, tensor in tensors.items()}
    return copy, SeparateWeights(tensors, spans=spans)


def _copy_fields(source: Message, target: Message, excluded: str) -> None:
    """Copy the fields of a message that are set, except the field named ``excluded``."""
    # Not ListFields, which would copy the bytes of the excluded field.
    for descriptor in source.DESCRIPTOR.fields:
        name = descriptor.name
        if name == excluded:
            continue
        value = getattr(source, name)
        if not isinstance(value, (Message, str, bytes, int, float)):
            getattr(target, name).extend(value)
        elif source.HasField(name):
            if isinstance(value, Message):
                getattr(target, name).CopyFrom(value)
            else:
                setattr(target, name, value)


def _is_large_array(tensor: TensorProto) -> bool:
    """Whether ``tensor`` is large and has its values as bytes that onnxruntime can use."""
    if tensor.data_type not in _DTYPES or min(tensor.dims, default=1) <= 0:
        return False
    if values_bytes(tensor) <= MAX_PARSED_TENSOR_BYTES:
        return False
    return tensor.HasField("raw_data") and not _has_other_data(tensor)


def _has_other_data(tensor: TensorProto) -> bool:
    """Whether the values of ``tensor`` are external data, or a part of a larger tensor."""
    has_external_data = bool(tensor.external_data) or tensor.data_location != TensorProto.DEFAULT
    return has_external_data or tensor.HasField("segment")


def _inputs_and_outputs(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs and outputs of ``graph``, which cannot be weights.

    onnxruntime takes no values from options for initializers that are inputs or outputs.
    """
    return {value.name for value in (*graph.input, *graph.output)}


def split_source(source: bytes | str | PathLike[str]) -> tuple[onnx.ModelProto, Weights] | None:
    """Read a model without its large initializers.

    Args:
        source: the bytes of a model, or a path.

    Returns:
        The model and its large initializers. None if it must be parsed as a whole: it is small, has
        no such initializers, or cannot be read, which parsing explains by an error.
    """
    try:
        if isinstance(source, bytes):
            return _split_buffer(source, source) if len(source) >= MIN_MODEL_BYTES else None
        if not isinstance(source, (str, PathLike)):
            return None  # an integer would be a file descriptor of the caller
        if os.stat(source).st_size < MIN_MODEL_BYTES:
            return None
        with mapped_file(source) as buffer:
            return _split_buffer(buffer, source)
    except (OSError, ValueError, DecodeError):
        return None


def _split_buffer(
    buffer: Buffer,
    source: bytes | str | PathLike[str],
) -> tuple[onnx.ModelProto, Weights] | None:
    """Read a model from ``buffer``, as :func:`split_source`.

    Raises:
        ValueError: the buffer is not a model.
        DecodeError: a part of it is not a message of its type.
    """
    graph_fields = [
        model_field
        for model_field in fields_of(buffer, 0, len(buffer))
        if model_field.number == _GRAPH_FIELD and model_field.has_length
    ]
    if len(graph_fields) != 1:
        return None
    (graph_field,) = graph_fields
    model = onnx.ModelProto.FromString(buffer[: graph_field.start] + buffer[graph_field.end :])
    spans = _parse_graph(buffer, graph_field.content_start, graph_field.end, model.graph)
    if not spans:
        return None
    n_names = len({tensor.name for tensor in model.graph.initializer})
    if n_names < len(model.graph.initializer):
        return None
    weights = SerializedWeights(source, spans=spans)
    return model, weights.restore(model, _inputs_and_outputs(model.graph))


def _parse_graph(buffer: Buffer, start: int, end: int, graph: onnx.GraphProto) -> dict[str, Span]:
    """Parse the graph between two offsets of ``buffer`` to ``graph``, without large initializers.

    Returns:
        The name of a large initializer -> where its values are.

    Raises:
        ValueError: the bytes are not a graph.
        DecodeError: a part of them is not a message of its type.
    """
    spans: dict[str, Span] = {}
    parsed_end = start
    for graph_field in fields_of(buffer, start, end):
        is_initializer = graph_field.number == _INITIALIZER_FIELD and graph_field.has_length
        length = graph_field.end - graph_field.content_start
        if not is_initializer or length <= MAX_PARSED_TENSOR_BYTES:
            continue
        weight = _parse_weight(buffer, graph_field.content_start, graph_field.end)
        if weight is None:
            continue
        tensor, span = weight
        spans[tensor.name] = span
        # protobuf merges the parts of a message.
        graph.MergeFromString(buffer[parsed_end : graph_field.start])
        graph.initializer.append(tensor)
        parsed_end = graph_field.end
    if spans:
        graph.MergeFromString(buffer[parsed_end:end])
    return spans


def _parse_weight(buffer: Buffer, start: int, end: int) -> tuple[TensorProto, Span] | None:
    """Parse the tensor between two offsets of ``buffer``, without its values.

    Returns:
        The tensor, and where its values are. None if its values are not the bytes of an array of
        its shape.

    Raises:
        ValueError: the bytes are not a tensor.
        DecodeError: a part of them is not a message of its type.
    """
    data_fields = [
        tensor_field
        for tensor_field in fields_of(buffer, start, end)
        if tensor_field.number == _RAW_DATA_FIELD and tensor_field.has_length
    ]
    if len(data_fields) != 1:
        return None
    (data_field,) = data_fields
    span = Span(data_field.content_start, data_field.end - data_field.content_start)
    tensor = TensorProto.FromString(buffer[start : data_field.start] + buffer[data_field.end : end])
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or min(tensor.dims, default=1) <= 0 or _has_other_data(tensor):
        return None
    if math.prod(tensor.dims) * dtype.itemsize != span.length:
        return None
    tensor.data_location = TensorProto.EXTERNAL
    return tensor, span
