"""Where the values of a model's large initializers are, and how they are read.

The values are not parsed, not copied with the model and not serialized. onnxruntime gets them as
files in memory, or as arrays before 1.31.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from os import PathLike
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from ..errors import GridSampleError
from ..spec import TYPES
from ..system.num_threads import get_num_threads
from ..system.threads import for_each
from .element_types import elem_type
from .placeholders import is_placeholder, refer_to

#: The name of the file of external data, which is in memory only.
LOCATION = "weights of ort_gridsample"

#: The types whose values are the same bytes in a file as in an array.
_ARRAY_TYPES = TYPES.keys() - {"bfloat16", "str", "complex64", "complex128"}
#: ONNX's number of such a type -> its dtype.
ARRAY_DTYPES = {elem_type(name): np.dtype(name) for name in TYPES if name in _ARRAY_TYPES}
#: ONNX's number of each type whose values are bytes -> the number of bytes of an element.
_ELEMENT_BYTES = {number: dtype.itemsize for number, dtype in ARRAY_DTYPES.items()} | {
    TensorProto.BFLOAT16: 2,
    TensorProto.COMPLEX64: 8,
    TensorProto.COMPLEX128: 16,
}
#: Values in memory begin at multiples of this many bytes.
_ALIGNMENT = 64

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


class Weights(ABC):
    """The values of large initializers of the main graph of a model, outside of the model."""

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The names of the initializers."""

    @abstractmethod
    def load(self, weights: Sequence[TensorProto]) -> LoadedWeights:
        """Read the values of placeholders of the weights, and state in these where they are.

        Raises:
            GridSampleError: the bytes of a weight are not those of an array of its shape.
            OSError: the file cannot be read.
        """


@dataclass(frozen=True)
class SerializedWeights(Weights):
    """Weights inside of a serialized model.

    Attributes:
        source: the bytes of the model, or its path.
        spans: the name of a weight -> where its values are in ``source``.
    """

    source: bytes | str | PathLike[str] = b""
    spans: Mapping[str, Span] = field(default_factory=dict)

    @property
    def names(self) -> Collection[str]:
        return self.spans.keys()

    def load(self, weights: Sequence[TensorProto]) -> LoadedWeights:
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
            refer_to(tensor, LOCATION, offset, length)
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
    """Weights in memory, each by itself.

    Attributes:
        values: the name of a weight -> its tensor, or the bytes of its values.
    """

    values: Mapping[str, TensorProto | ByteArray]

    @property
    def names(self) -> Collection[str]:
        return self.values.keys()

    def load(self, weights: Sequence[TensorProto]) -> LoadedWeights:
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
    return data.view(ARRAY_DTYPES[tensor.data_type]).reshape(tuple(tensor.dims))


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
        refer_to(tensor, location, 0, data.size)
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
    if is_placeholder(tensor):
        return 0
    return math.prod(tensor.dims) * _ELEMENT_BYTES.get(tensor.data_type, 1)
