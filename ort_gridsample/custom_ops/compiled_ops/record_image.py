"""Images: records that contain addresses of one another and of compiled functions, as bytes.

An image is copied to the memory of this process (:mod:`.registry`), or becomes the data of a
library (:mod:`ort_gridsample.library.emission`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .catalog import Fields
from .structs import TEXT

_WORD = struct.Struct("<q")
_INT64 = np.dtype(np.int64)
_POINTER = np.dtype([("address", _INT64)])


class Relocation(int):
    """An offset in an image, in bytes. A field with this value becomes an address."""


class RecordImage:
    """The bytes of records, and the fields that must be set to addresses.

    Attributes:
        data: the bytes of the records, with 0 in fields that contain an address.
        relocations: the offset of a field -> the offset in ``data`` whose address the field
            contains.
        functions: the offset of a field -> the compiled function whose address the field contains,
            as :data:`ort_gridsample.kernels.compilation.FunctionSpec`.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.relocations: dict[int, Relocation] = {}
        self.functions: dict[int, tuple[Any, ...]] = {}
        #: The offsets of texts and of arrays of TEXT. Equal ones are one, as nothing changes them.
        self._texts: dict[bytes | tuple[bytes, ...], Relocation] = {}

    def add_text(self, text: bytes) -> Relocation:
        """Append ``text`` and a terminating 0 unless the image has it, and return its offset."""
        if text not in self._texts:
            self._texts[text] = self._append(text + b"\0")
        return self._texts[text]

    def add_texts(self, texts: Sequence[bytes]) -> Relocation:
        """Append an array of TEXT unless the image has it, and return its offset."""
        key = tuple(texts)
        if key not in self._texts:
            rows = [{"data": self.add_text(text), "length": len(text)} for text in texts]
            self._texts[key] = self.add_records(TEXT, *rows)
        return self._texts[key]

    def add_pointers(self, targets: Sequence[Any]) -> Relocation:
        """Append an array of addresses, and return its offset. A target is a value of a field."""
        return self.add_records(_POINTER, *({"address": target} for target in targets))

    def add_records(self, dtype: np.dtype[Any], *rows: Fields) -> Relocation:
        """Append an array of records.

        Args:
            dtype: the type of the records.
            rows: the fields of each record. Other fields are 0.

        Returns:
            The offset of the array.
        """
        offset = self._append(bytes(dtype.itemsize * len(rows)))
        for index, fields in enumerate(rows):
            self.set_fields(offset + index * dtype.itemsize, dtype, fields)
        return offset

    def _append(self, data: bytes) -> Relocation:
        offset = Relocation(len(self.data))
        self.data += data + bytes(-len(data) % 8)
        return offset

    def set_fields(self, offset: int, dtype: np.dtype[Any], fields: Fields) -> None:
        """Set ``fields`` of the record of type ``dtype`` at ``offset``."""
        dtype_fields: Any = dtype.fields
        for name, value in fields.items():
            field_dtype, field_offset = dtype_fields[name]
            start = offset + field_offset
            if type(value) is int and field_dtype is _INT64:  # most fields
                _WORD.pack_into(self.data, start, value)
            elif isinstance(value, Relocation):
                self.relocations[start] = value
            elif isinstance(value, tuple):
                self.functions[start] = value
            elif isinstance(value, Mapping):
                self.set_fields(start, field_dtype, value)
            elif value is not None:
                encoded = np.array(value, field_dtype.base).tobytes()
                if len(encoded) != field_dtype.itemsize:
                    raise ValueError(f"{name} is {value!r}, expected {field_dtype}")
                self.data[start : start + len(encoded)] = encoded

    def with_addresses(self, address: int, functions: Sequence[int]) -> bytes:
        """Return the bytes of the image for the memory at ``address``.

        Args:
            address: the address.
            functions: the addresses of :attr:`functions`.
        """
        data = self.data.copy()
        fields = dict(zip(self.functions, functions, strict=True))
        fields |= {offset: address + place for offset, place in self.relocations.items()}
        for offset, value in fields.items():
            _WORD.pack_into(data, offset, value)
        return bytes(data)


def row_of(dtype: np.dtype[Any], fields: Fields) -> list[int]:
    """Return the integers of a record whose fields are int64 or arrays of int64."""
    image = RecordImage()
    image.add_records(dtype, fields)
    return [int(number) for number in np.frombuffer(image.data, np.int64)]
