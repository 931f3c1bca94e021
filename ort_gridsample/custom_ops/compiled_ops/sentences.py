"""The error messages of compiled ops, formatted by compiled code.

Most are those of :mod:`ort_gridsample.functions.error_templates`. A message is encoded as bytes: a
byte below :data:`_FIRST_CHARACTER` is the place of an argument, which is a shape, an integer or a
text. The caller computes what else a sentence needs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numba import types
from numba.extending import register_jitable

from ...functions.error_templates import ErrorTemplate
from ...kernels.compilation import compiles_in
from ...kernels.pointers import (
    address_of,
    array_at,
    c_string,
    call,
    free,
    local_record,
    malloc,
    record_at,
    sizeof,
)
from ...kernels.structs import Address, ArrayRef, RecordRef
from .api_functions import api_function
from .c_api import INVALID_ARGUMENT
from .requests import Status
from .structs import ARGUMENT, ARGUMENTS, ERRORS, MAX_ARGUMENTS, MESSAGE, TEXT

#: An argument of a sentence: the fields of an ARGUMENT.
Argument: TypeAlias = Any

#: The kinds of arguments. A quoted text is written as Python's ``repr`` writes it.
_SHAPE, _INTEGER, _TEXT, _QUOTED_TEXT = range(4)

#: The first sentence of every op, and its index.
NO_MEMORY_SENTENCE = ErrorTemplate("memory", "exhausted", "{nbytes} free bytes for scratch memory")
NO_MEMORY_INDEX = 0
#: The result of a check that finds no error. Any other result is the index of a sentence.
NO_ERROR = -1
#: The arguments of a sentence without fields: an argument that is not written.
NO_ARGUMENTS = ((_INTEGER, 0, 0),)

#: No code of an argument is so large, and no code of a character in a sentence is smaller.
_FIRST_CHARACTER = 32
#: A message without memory has at most so many bytes of a name or a text.
_MAX_TEXT_BYTES = 512
_NO_LIMIT = (1 << 63) - 1

# Compiled code has no characters. It writes their codes.
_QUOTE = ord("'")
_DOUBLE_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_TAB = ord("\t")
_LINE_FEED = ord("\n")
_CARRIAGE_RETURN = ord("\r")
_DELETE = 0x7F
_MINUS = ord("-")
_ZERO = ord("0")
_LOWER_A = ord("a")
_LOWER_N = ord("n")
_LOWER_R = ord("r")
_LOWER_T = ord("t")
_LOWER_X = ord("x")
_OPEN = ord("(")
_CLOSE = ord(")")
_COMMA = ord(",")
_BLANK = ord(" ")

_WITH_OUTPUT = "with output "

#: The number of names in _COORDINATE_AXES. NumPy's arrays have at most so many axes.
_MAX_NAMES = 64
#: The names of the axes of a coordinate, each after a separator.
_COORDINATE_AXES = ", N" + "".join(f", D{number}_out" for number in range(1, _MAX_NAMES))
_SEPARATOR_SIZE = 2
_FIRST_NAME_SIZE = len(", N")
_OUTPUT_NAME_SIZE = len(", D1_out")
#: The index of the first name with another digit.
_FIRST_LONG_NAME = 10

create_status = api_function("CreateStatus")
#: C's strlen: the number of characters before a 0.
strlen: Any = types.ExternalFunction("strlen", types.int64(types.int64))


def encode(template: ErrorTemplate, *arguments: str, **known: object) -> bytes:
    """Encode the sentence of a template without the name of the node.

    Args:
        arguments: the names of fields, in the order in which compiled code passes their values.
    """
    codes = {name: chr(1 + index) for index, name in enumerate(arguments)}
    return str(template.error("", **codes, **known)).encode()


class SentenceTable:
    """The error messages of an op, some of which have names.

    Args:
        rows: the encoded messages, by name.
        after: the messages before them, such as those of another op.

    Attributes:
        encoded: all messages.
    """

    def __init__(self, rows: Mapping[str, bytes], after: Sequence[bytes] = ()) -> None:
        self.encoded = [*after, *rows.values()]
        self._indices = {name: len(after) + index for index, name in enumerate(rows)}

    def index(self, name: str) -> int:
        """Return the index of a message in ``encoded``."""
        return self._indices[name]


# --- The arguments of a sentence ---


@register_jitable
def shape_argument(lengths: ArrayRef) -> Argument:
    """Return a shape as an argument."""
    return np.int64(_SHAPE), np.int64(lengths.ctypes.data), len(lengths)


@register_jitable
def integer_argument(number: int) -> Argument:
    """Return a number as an argument."""
    return np.int64(_INTEGER), np.int64(number), np.int64(0)


@register_jitable
def text_argument(address: Address, length: int) -> Argument:
    """Return characters as an argument."""
    return np.int64(_TEXT), np.int64(address), np.int64(length)


@register_jitable
def quoted_argument(address: Address, length: int) -> Argument:
    """Return characters as an argument that is written in quotes."""
    return np.int64(_QUOTED_TEXT), np.int64(address), np.int64(length)


@register_jitable
def axis_names(first: int, end: int) -> Argument:
    """Return the names of the axes (N, D1_out, …) from ``first`` to, not including, ``end``."""
    return _names(_name_start(first) + _SEPARATOR_SIZE, _name_start(end))


@register_jitable
def leading_axis_names(end: int) -> Argument:
    """Return the names of the axes up to ``end``, each followed by a separator."""
    return _names(_SEPARATOR_SIZE, _name_start(end) + _SEPARATOR_SIZE)


@register_jitable
def trailing_axis_names(first: int, end: int) -> Argument:
    """Return the names of the axes from ``first`` to ``end``, each after a separator."""
    return _names(_name_start(first), _name_start(end))


@register_jitable
def _names(start: int, end: int) -> Argument:
    """Return a part of :data:`_COORDINATE_AXES`; nothing if it ends before its start."""
    return text_argument(c_string(_COORDINATE_AXES) + start, max(end - start, 0))


@register_jitable
def _name_start(index: int) -> int:
    """Return the index of the separator before a name in :data:`_COORDINATE_AXES`."""
    index = min(index, _MAX_NAMES)
    if index <= 0:
        return 0
    n_long_names = max(index - _FIRST_LONG_NAME, 0)
    return _FIRST_NAME_SIZE + _OUTPUT_NAME_SIZE * (index - 1) + n_long_names


# --- Messages ---


@register_jitable
def error_status(
    api: Address, errors_address: Address, sentence_index: int, arguments: Any
) -> Status:
    """Return an OrtStatus* with a sentence.

    Args:
        api: the address of the OrtApi.
        errors_address: the address of ERRORS.
        arguments: a tuple of the sentence's arguments, in the order of :func:`encode`.
    """
    memory = local_record(ARGUMENTS)
    for index in range(len(arguments)):
        kind, data, length = arguments[index]
        memory.rows[index].kind = kind
        memory.rows[index].data = data
        memory.rows[index].length = length
    create = record_at(errors_address, ERRORS).create_error
    return call(create, (api, errors_address, sentence_index, address_of(memory)))


@register_jitable
def no_memory(api: Address, errors_address: Address, nbytes: int) -> Status:
    """Return an OrtStatus* with the sentence that every op has first."""
    return error_status(api, errors_address, NO_MEMORY_INDEX, (integer_argument(nbytes),))


@compiles_in(0.8)
def create_error(
    api: Address, errors_address: Address, sentence_index: int, arguments_address: Address
) -> Status:
    """Return an OrtStatus*: see :func:`error_status`.

    All ops share this function, because copies would take a fifth of the compilation. A message
    that fits in a buffer on the stack needs no memory. A longer one about memory, or without
    memory, has the beginnings of its texts.
    """
    buffer = local_record(MESSAGE)
    address = address_of(buffer)
    size = sizeof(MESSAGE)
    max_text_bytes = _NO_LIMIT
    memory = 0
    for _ in range(2):
        message = array_at(address, (size,), np.uint8)
        end = _write_message(
            message, errors_address, sentence_index, arguments_address, max_text_bytes
        )
        if end < size:
            break
        if sentence_index != NO_MEMORY_INDEX:
            memory = malloc(end + 1)
        if memory != 0:
            address = memory
            size = end + 1
        else:
            max_text_bytes = _MAX_TEXT_BYTES
    status = create_status(api, (INVALID_ARGUMENT, address))
    if memory != 0:
        free(memory)
    return status


# Each of the following functions writes to the array ``message`` from the index ``end`` on, and
# returns the index after the last character. Characters that do not fit are counted only.


@register_jitable
def _write_message(
    message: ArrayRef,
    errors_address: Address,
    sentence_index: int,
    arguments_address: Address,
    max_text_bytes: int,
) -> int:
    """Write the message of :func:`create_error`, with a terminating 0; return its length."""
    errors = record_at(errors_address, ERRORS)
    sentence = array_at(errors.sentences, (sentence_index + 1,), TEXT)[sentence_index]
    codes = array_at(sentence.data, (sentence.length,), np.uint8)
    arguments = array_at(arguments_address, (MAX_ARGUMENTS,), ARGUMENT)
    end = _write_text(message, 0, errors.prefix, strlen(errors.prefix), max_text_bytes)
    end = _write_name(message, end, errors.name, max_text_bytes)
    for i in range(len(codes)):
        code = np.int64(codes[i])
        if code >= _FIRST_CHARACTER:
            end = _write_char(message, end, code)
        else:
            end = _write_argument(message, end, arguments[code - 1], max_text_bytes)
    message[min(end, len(message) - 1)] = 0
    return end


@register_jitable
def _write_argument(message: ArrayRef, end: int, argument: RecordRef, max_text_bytes: int) -> int:
    """Write an ARGUMENT."""
    data = argument.data
    length = argument.length
    if argument.kind == _INTEGER:
        return _write_integer(message, end, data)
    if argument.kind == _TEXT:
        return _write_text(message, end, data, length, max_text_bytes)
    if argument.kind == _QUOTED_TEXT:
        return _write_quoted(message, end, data, length, max_text_bytes)
    lengths = array_at(data, (length,), np.int64)
    end = _write_char(message, end, _OPEN)
    for i in range(len(lengths)):
        if i > 0:
            end = _write_char(message, end, _COMMA)
            end = _write_char(message, end, _BLANK)
        end = _write_integer(message, end, lengths[i])
    return _write_char(message, end, _CLOSE)


@register_jitable
def _write_name(message: ArrayRef, end: int, name: RecordRef, max_text_bytes: int) -> int:
    """Write the name of a node as :func:`ort_gridsample.errors.where_node` does, if it has one."""
    if name.data == 0:
        return end
    length = max(name.length, 0)
    characters = array_at(name.data, (length,), np.uint8)
    if length > 1 and characters[0] == _OPEN and characters[length - 1] == _CLOSE:
        # the output of a node without a name
        with_output = c_string(_WITH_OUTPUT)
        end = _write_text(message, end, with_output, len(_WITH_OUTPUT), max_text_bytes)
        return _write_quoted(message, end, name.data + 1, length - 2, max_text_bytes)
    return _write_quoted(message, end, name.data, length, max_text_bytes)


@register_jitable
def _write_text(
    message: ArrayRef, end: int, address: Address, length: int, max_text_bytes: int
) -> int:
    """Write the characters at an address."""
    length = _cut_length(address, length, max_text_bytes)
    characters = array_at(address, (length,), np.uint8)
    for i in range(length):
        end = _write_char(message, end, np.int64(characters[i]))
    return end


@register_jitable
def _cut_length(address: Address, length: int, max_bytes: int) -> int:
    """Return the length of a text that is cut between two characters of UTF-8."""
    if length <= max_bytes:
        return max(length, 0)
    characters = array_at(address, (length,), np.uint8)
    while characters[max_bytes] & 0xC0 == 0x80:  # within a character
        max_bytes -= 1
    return max_bytes


@register_jitable
def _write_quoted(
    message: ArrayRef, end: int, address: Address, length: int, max_text_bytes: int
) -> int:
    """Write characters as Python's ``repr`` does. All beyond ASCII count as printable."""
    length = _cut_length(address, length, max_text_bytes)
    characters = array_at(address, (length,), np.uint8)
    quote = _quote_for(characters)
    end = _write_char(message, end, quote)
    for i in range(length):
        code = np.int64(characters[i])
        escape = _escape_of(code, quote)
        if escape == 0:
            end = _write_char(message, end, code)
            continue
        end = _write_char(message, end, _BACKSLASH)
        end = _write_char(message, end, escape)
        if escape == _LOWER_X:
            end = _write_char(message, end, _hex_digit(code // 16))
            end = _write_char(message, end, _hex_digit(code % 16))
    return _write_char(message, end, quote)


@register_jitable
def _quote_for(characters: ArrayRef) -> int:
    """Return a single quote; a double quote if there are single quotes and no double quotes."""
    has_quote = False
    has_double_quote = False
    for i in range(len(characters)):
        has_quote = has_quote or characters[i] == _QUOTE
        has_double_quote = has_double_quote or characters[i] == _DOUBLE_QUOTE
    return _DOUBLE_QUOTE if has_quote and not has_double_quote else _QUOTE


@register_jitable
def _escape_of(code: int, quote: int) -> int:
    """Return the character after the backslash of an escape sequence; 0 without an escape."""
    if code in (quote, _BACKSLASH):
        return code
    if code == _TAB:
        return _LOWER_T
    if code == _LINE_FEED:
        return _LOWER_N
    if code == _CARRIAGE_RETURN:
        return _LOWER_R
    return _LOWER_X if code < _FIRST_CHARACTER or code == _DELETE else 0


@register_jitable
def _hex_digit(digit: int) -> int:
    """Return the character of a hexadecimal digit."""
    return _ZERO + digit if digit < 10 else _LOWER_A + digit - 10


@register_jitable
def _write_integer(message: ArrayRef, end: int, number: int) -> int:
    """Write a decimal integer."""
    if number < 0:
        end = _write_char(message, end, _MINUS)
    # Unsigned, as the smallest int64 has no positive counterpart.
    rest = np.uint64(number) if number >= 0 else np.uint64(0) - np.uint64(number)
    divisor = np.uint64(1)
    while rest // divisor >= np.uint64(10):
        divisor *= np.uint64(10)
    while divisor > np.uint64(0):
        digit = np.int64(rest // divisor % np.uint64(10))
        end = _write_char(message, end, _ZERO + digit)
        divisor = divisor // np.uint64(10)
    return end


@register_jitable
def _write_char(message: ArrayRef, end: int, code: int) -> int:
    """Write a character by its code."""
    if end < len(message):
        message[end] = np.uint8(code)
    return end + 1
