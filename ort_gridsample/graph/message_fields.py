"""Find the fields of a serialized protobuf message without parsing their contents."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import NamedTuple, TypeAlias

#: The bytes of a message, or a file that is mapped to memory.
Buffer: TypeAlias = bytes | mmap.mmap

_VARINT = 0
_LENGTH_DELIMITED = 2
#: Wire type -> the number of bytes of a value of fixed length.
_FIXED_LENGTHS = {1: 8, 5: 4}
#: A varint has seven bits of an integer of 64 bits in each byte.
_MAX_VARINT_BYTES = 10


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: the number of the field in the message's definition.
        has_length: whether the content is a message, a string, bytes or packed numbers.
        start: the offset of the field's key.
        content_start: the offset of the content.
        end: the offset after the content.
    """

    number: int
    has_length: bool
    start: int
    content_start: int
    end: int


def fields_of(buffer: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message between two offsets of ``buffer``.

    Raises:
        ValueError: the bytes are not a message, or end within a field.
    """
    while start < end:
        key, content_start = _read_varint(buffer, start)
        wire_type = key & 7
        if wire_type == _LENGTH_DELIMITED:
            length, content_start = _read_varint(buffer, content_start)
            field_end = content_start + length
        elif wire_type == _VARINT:
            _, field_end = _read_varint(buffer, content_start)
        elif wire_type in _FIXED_LENGTHS:
            field_end = content_start + _FIXED_LENGTHS[wire_type]
        else:
            raise ValueError(f"the field at byte {start} has the unknown wire type {wire_type}")
        if field_end > end:
            raise ValueError(f"the message ends within the field at byte {start}")
        yield Field(key >> 3, wire_type == _LENGTH_DELIMITED, start, content_start, field_end)
        start = field_end


def _read_varint(buffer: Buffer, start: int) -> tuple[int, int]:
    """Return the integer at an offset, and the offset after it.

    Raises:
        ValueError: the integer has too many bytes, or the buffer ends within it.
    """
    value = 0
    try:
        for index in range(_MAX_VARINT_BYTES):
            byte = buffer[start + index]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value, start + index + 1
    except IndexError:
        raise ValueError(f"the message ends within the integer at byte {start}") from None
    raise ValueError(f"the integer at byte {start} has more than {_MAX_VARINT_BYTES} bytes")


@contextmanager
def mapped_file(path: str | PathLike[str]) -> Iterator[Buffer]:
    """Yield the content of a file, which is mapped to memory if possible.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # an empty file, or a file system that maps no files
            yield file.read()
            return
        with mapped:
            yield mapped
