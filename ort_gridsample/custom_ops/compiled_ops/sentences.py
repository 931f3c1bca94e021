"""The error messages of compiled ops, formatted by compiled code.

They are those of :mod:`ort_gridsample.functions.validation`. A message is encoded as bytes: a byte
below :data:`_FIRST_CHARACTER` is a placeholder for a shape, a number or a value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ...functions.validation import ErrorTemplate
from ...kernels.compilation import compiles_in
from ...kernels.pointers import (
    address_of,
    array_at,
    c_string,
    call,
    free,
    local_record,
    malloc,
    memcpy,
    record_at,
    sizeof,
)
from ...kernels.structs import Address, ArrayRef, RecordRef
from .api_functions import api_function
from .c_api import INVALID_ARGUMENT
from .requests import Status
from .structs import ERRORS, MESSAGE, TEXT

#: The placeholders in an encoded message.
(
    FIRST,  # the first shape
    SECOND,  # the second shape
    LENGTH_0,  # the first length of the first shape
    LENGTH_1,  # its second length
    N_SPATIAL_AXES,  # the number of its spatial axes: those from the third on
    OUTPUTS,  # the names of the output's spatial axes: D1_out, …
    AXIS_WORD,  # "axis" or "axes", for this number
    NUMBER,  # an integer
    VALUE,  # a text of the node
    COORDINATES,  # the shape of a coordinate; a COORDINATE_SHAPE record replaces the second shape
    NEGATIVE,  # the first negative length of the second shape, with the name of its axis
    ALL_BUT_LAST,  # the second shape without its last length
) = range(1, 13)

#: The fields of the sentences, and the placeholder for each.
_PLACEHOLDERS = {
    "X": FIRST,
    "theta": FIRST,
    "value_shape": FIRST,
    "levels": FIRST,
    "attention_weights": FIRST,
    "grid": SECOND,
    "size": SECOND,
    "sampling_locations": SECOND,
    "N": LENGTH_0,
    "n_pixels": LENGTH_1,
    "negative": NEGATIVE,
    "weights_shape": ALL_BUT_LAST,
    "r": N_SPATIAL_AXES,
    "outputs": OUTPUTS,
    "axis_word": AXIS_WORD,
    "pixels": NUMBER,
    "n_levels": NUMBER,
    "nbytes": NUMBER,
    "number": NUMBER,
    "value": VALUE,
    "coordinates": COORDINATES,
}

#: The first sentence of every op, and its index.
NO_MEMORY_SENTENCE = ErrorTemplate("memory", "exhausted", "{nbytes} free bytes for scratch memory")
NO_MEMORY_INDEX = 0
#: The result of a check that finds no error. Any other result is the index of a sentence.
NO_ERROR = -1

#: No code of a placeholder is so large, and no code of a character in a sentence is smaller.
_FIRST_CHARACTER = 32

#: A bound of the characters of an int64 with its sign, and of the name of an output axis. Both
#: include a separator.
_MAX_INTEGER_CHARS = 32

# Compiled code has no characters. It writes their codes.
_QUOTE = ord("'")
_DOUBLE_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_TAB = ord("\t")
_LINE_FEED = ord("\n")
_CARRIAGE_RETURN = ord("\r")
_DELETE = 0x7F
_QUESTION_MARK = ord("?")
_MINUS = ord("-")
_ZERO = ord("0")
_LOWER_A = ord("a")
_OPEN = tuple(b"(")
_CLOSE = tuple(b")")
_SEPARATOR = tuple(b", ")
_AXIS = tuple(b"axis")
_AXES = tuple(b"axes")
_N = tuple(b"N")
_D = tuple(b"D")
_OUT = tuple(b"_out")
_ESCAPED_TAB = tuple(rb"\t")
_ESCAPED_LINE_FEED = tuple(rb"\n")
_ESCAPED_CARRIAGE_RETURN = tuple(rb"\r")
_HEX_ESCAPE = tuple(rb"\x")
_WITH_OUTPUT = tuple(b"with output ")
_EQUALS = tuple(b" = ")
_C = tuple(b"C")
#: The names of the last three axes of an image.
_SPATIAL_AXES = tuple(b"DHW")

#: A brief message has so many bytes of a name or a prefix at most.
_MAX_NAME_BYTES = 512
#: The parts of a brief message before its sentence: the prefix, a quote, the name and a quote.
_PREFIX_PART = -4
_NAME_PART = -2

create_status = api_function("CreateStatus")
#: C's strlen: the number of characters before a 0.
strlen: Any = types.ExternalFunction("strlen", types.int64(types.int64))


def encode(sentence: ErrorTemplate, **known: object) -> bytes:
    """Encode ``sentence`` without the name of the node.

    Args:
        sentence: the sentence.
        known: values of some fields. The other fields become placeholders.
    """
    placeholders = {name: chr(code) for name, code in _PLACEHOLDERS.items()}
    return str(sentence.error("", **(placeholders | known))).encode()


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


# The caller of these functions passes the address of ERRORS, and the index of one of their
# sentences.


@register_jitable
def error_with_number(
    api: Address, errors_address: Address, sentence_index: int, number: int
) -> Status:
    """Return an OrtStatus* with a sentence that contains no shape, and at most a ``number``."""
    no_shape = array_at(0, (0,), np.int64)
    return error_with_shapes(api, errors_address, sentence_index, no_shape, no_shape, number)


@register_jitable
def error_with_shape(
    api: Address,
    errors_address: Address,
    sentence_index: int,
    first: ArrayRef,
    number: int = 0,
) -> Status:
    """Return an OrtStatus* with a sentence that contains only the ``first`` shape."""
    no_shape = array_at(0, (0,), np.int64)
    return error_with_shapes(api, errors_address, sentence_index, first, no_shape, number)


@register_jitable
def error_with_shapes(
    api: Address,
    errors_address: Address,
    sentence_index: int,
    first: ArrayRef,
    second: ArrayRef,
    number: int = 0,
) -> Status:
    """Return an OrtStatus* with a sentence that contains shapes and a ``number``.

    The message is brief, without shapes, if the function that writes it cannot be loaded or has no
    memory. An error about memory is always brief.

    Args:
        api: the address of the OrtApi.
        errors_address: the address of ERRORS.
        sentence_index: the index of the sentence.
        first: the shape for the placeholder FIRST and those that depend on it, int64.
        second: the shape for the placeholder SECOND, or the fields of a COORDINATE_SHAPE, int64.
        number: the integer for the placeholder NUMBER.
    """
    errors = record_at(errors_address, ERRORS)
    is_brief = sentence_index == NO_MEMORY_INDEX
    for _ in range(2):  # the first call fails if a signal handler in Python raises an exception
        if not is_brief and errors.create_error == 0:
            call(errors.load_create_error, (errors_address,))
    if is_brief or errors.create_error == 0:
        return call(errors.create_brief_error, (api, errors_address, sentence_index, number))
    return call(
        errors.create_error,
        (
            api,
            errors_address,
            sentence_index,
            np.int64(first.ctypes.data),
            len(first),
            np.int64(second.ctypes.data),
            len(second),
            number,
        ),
    )


@compiles_in(1.0)
def create_error(
    api: Address,
    errors_address: Address,
    sentence_index: int,
    first_address: Address,
    first_axes: int,
    second_address: Address,
    second_axes: int,
    number: int,
) -> Status:
    """Return an OrtStatus*: see :func:`error_with_shapes`.

    All ops share this function, which :mod:`.error_loading` compiles when it is needed. If each op
    contained a copy, the copies would take a fifth of the compilation.
    """
    first = array_at(first_address, (first_axes,), np.int64)
    second = array_at(second_address, (second_axes,), np.int64)
    errors = record_at(errors_address, ERRORS)
    sentence = array_at(errors.sentences, (sentence_index + 1,), TEXT)[sentence_index]
    codes = array_at(sentence.data, (sentence.length,), np.uint8)
    size = _max_size(codes, errors, first, second)
    memory = malloc(size)
    if memory == 0:
        return call(errors.create_brief_error, (api, errors_address, sentence_index, number))
    message = array_at(memory, (size,), np.uint8)
    end = _write_where(message, 0, errors)
    for i in range(len(codes)):
        end = _write_code(message, end, np.int64(codes[i]), errors, first, second, number)
    message[end] = 0
    status = create_status(api, (INVALID_ARGUMENT, memory))
    free(memory)
    return status


@compiles_in(0.2)
def create_brief_error(
    api: Address, errors_address: Address, sentence_index: int, number: int
) -> Status:
    """Return an OrtStatus* with a sentence that contains no shapes, without allocating memory.

    This function is loaded together with an op, unlike :func:`create_error`, because an error about
    memory must not need memory. It is small, so that compiling it takes 0.18 s and loading it 2 ms.
    Shapes and characters that are not printable become question marks. Names are cut.
    """
    errors = record_at(errors_address, ERRORS)
    sentence = array_at(errors.sentences, (sentence_index + 1,), TEXT)[sentence_index]
    memory = local_record(MESSAGE)
    message = array_at(address_of(memory), (sizeof(MESSAGE),), np.uint8)
    # The digits are written to the end of the buffer first.
    digits_end = len(message) - 1
    digits_start = digits_end
    rest = abs(number)
    while rest > 0 or digits_start == digits_end:
        digits_start -= 1
        message[digits_start] = _ZERO + rest % 10
        rest //= 10
    if number < 0:
        digits_start -= 1
        message[digits_start] = _MINUS
    name = errors.name
    has_name = name.length > 0
    is_output = has_name and _has_brackets(array_at(name.data, (name.length,), np.uint8))
    end = 0
    for part in range(-4, sentence.length):
        address = sentence.data + part
        length = 1
        if part == _PREFIX_PART:
            address = errors.prefix
            length = strlen(errors.prefix)
        elif part == _NAME_PART:
            address = name.data + is_output
            length = max(name.length - 2 * is_output, 0)
        elif part < 0:  # the quotes of the name
            address = c_string("with output '")
            length = len(_WITH_OUTPUT) + 1
            if part > _NAME_PART or not is_output:
                address += len(_WITH_OUTPUT)
                length = 1
            length *= has_name
        elif array_at(address, (1,), np.uint8)[0] == NUMBER:
            address = address_of(memory) + digits_start
            length = digits_end - digits_start
        elif array_at(address, (1,), np.uint8)[0] == VALUE:
            address = errors.value.data
            length = errors.value.length
        characters = array_at(address, (length,), np.uint8)
        if length > _MAX_NAME_BYTES:
            length = _MAX_NAME_BYTES
            while characters[length] & 0xC0 == 0x80:  # within a character
                length -= 1
        for i in range(min(length, digits_start - end)):
            is_printable = characters[i] >= _FIRST_CHARACTER and characters[i] != _DELETE
            message[end] = characters[i] if is_printable else _QUESTION_MARK
            end += 1
    message[end] = 0
    return create_status(api, (INVALID_ARGUMENT, address_of(memory)))


@register_jitable
def _write_code(
    message: ArrayRef,
    end: int,
    code: int,
    errors: RecordRef,
    first: ArrayRef,
    second: ArrayRef,
    number: int,
) -> int:
    """Write a character, or what replaces a placeholder; return the index after it."""
    if code >= _FIRST_CHARACTER:
        return _write_chars(message, end, (code,))
    if code == AXIS_WORD:
        return _write_chars(message, end, _AXIS if len(first) == 3 else _AXES)
    if code == VALUE:
        return _write_value(message, end, errors)
    if code == COORDINATES:
        return _write_coordinates(message, end, second)
    if code in (FIRST, SECOND):
        return _write_shape(message, end, first if code == FIRST else second)
    if code == OUTPUTS:
        for axis in range(len(first) - 2):
            end = _write_output_axis(message, _write_separator(message, end, axis), axis + 1)
        return end
    if code == NEGATIVE:
        return _write_negative(message, end, second)
    if code == ALL_BUT_LAST:
        return _write_shape(message, end, second[: len(second) - 1])
    if code == N_SPATIAL_AXES:
        number = len(first) - 2
    elif code == LENGTH_0:
        number = first[0]
    elif code == LENGTH_1:
        number = first[1]
    return _write_integer(message, end, number)


@register_jitable
def _max_size(codes: Any, errors: RecordRef, first: ArrayRef, second: ArrayRef) -> int:
    """Return an upper bound of the bytes of a message, with its terminating 0."""
    size = strlen(errors.prefix) + _max_repr_chars(errors.name) + 1
    for i in range(len(codes)):
        size += _max_chars(np.int64(codes[i]), errors, first, second)
    return size


@register_jitable
def _max_repr_chars(text: RecordRef) -> int:
    """Return an upper bound of the characters of a TEXT in quotes, with "with output "."""
    return len(_WITH_OUTPUT) + 4 * max(text.length, 0) + 2


@register_jitable
def _max_chars(code: int, errors: RecordRef, first: ArrayRef, second: ArrayRef) -> int:
    """Return an upper bound of the characters that replace a ``code``."""
    if code >= _FIRST_CHARACTER:
        return 1
    if code == VALUE:
        return _max_repr_chars(errors.value)
    n_integers = 1
    if code in (FIRST, OUTPUTS):
        n_integers = len(first)
    elif code in (SECOND, ALL_BUT_LAST):
        n_integers = len(second)
    elif code == COORDINATES:
        n_integers = second[2] + 2  # the field r, and at most two more axes
    return _MAX_INTEGER_CHARS * (n_integers + 1)  # parentheses take less space than an integer


@register_jitable
def _has_brackets(characters: ArrayRef) -> bool:
    return len(characters) > 1 and characters[0] == _OPEN[0] and characters[-1] == _CLOSE[0]


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
def _hex_digit(digit: int) -> int:
    """Return the character of a hexadecimal digit."""
    return _ZERO + digit if digit < 10 else _LOWER_A + digit - 10


# Each of the following functions writes to the array ``message`` from the index ``end`` on, and
# returns the index after the last character.


@register_jitable
def _write_where(message: ArrayRef, end: int, errors: RecordRef) -> int:
    """Write the place that a message names, as :func:`ort_gridsample.errors.where_node` does."""
    end = _write_bytes(message, end, errors.prefix, strlen(errors.prefix))
    name = errors.name
    if name.data == 0:
        return end
    characters = array_at(name.data, (max(name.length, 0),), np.uint8)
    if _has_brackets(characters):  # the output of a node without a name
        end = _write_chars(message, end, _WITH_OUTPUT)
        characters = characters[1:-1]
    return _write_repr(message, end, characters)


@register_jitable
def _write_value(message: ArrayRef, end: int, errors: RecordRef) -> int:
    """Write the value of a message, in quotes if ``errors.quotes_value``."""
    value = errors.value
    if errors.quotes_value:
        return _write_repr(message, end, array_at(value.data, (value.length,), np.uint8))
    return _write_bytes(message, end, value.data, value.length)


@register_jitable
def _write_bytes(message: ArrayRef, end: int, address: Address, length: int) -> int:
    """Write the characters at an address."""
    memcpy(np.int64(message[end:].ctypes.data), address, length)
    return end + length


@register_jitable
def _write_repr(message: ArrayRef, end: int, characters: ArrayRef) -> int:
    """Write characters as Python's ``repr`` does. All beyond ASCII count as printable."""
    quote = _quote_for(characters)
    end = _write_chars(message, end, (quote,))
    for i in range(len(characters)):
        end = _write_escaped(message, end, np.int64(characters[i]), quote)
    return _write_chars(message, end, (quote,))


@register_jitable
def _write_escaped(message: ArrayRef, end: int, code: int, quote: int) -> int:
    """Write a character, or its escape sequence."""
    if code in (quote, _BACKSLASH):
        return _write_chars(message, end, (_BACKSLASH, code))
    if code == _TAB:
        return _write_chars(message, end, _ESCAPED_TAB)
    if code == _LINE_FEED:
        return _write_chars(message, end, _ESCAPED_LINE_FEED)
    if code == _CARRIAGE_RETURN:
        return _write_chars(message, end, _ESCAPED_CARRIAGE_RETURN)
    if code < _FIRST_CHARACTER or code == _DELETE:
        end = _write_chars(message, end, _HEX_ESCAPE)
        return _write_chars(message, end, (_hex_digit(code // 16), _hex_digit(code % 16)))
    return _write_chars(message, end, (code,))


@register_jitable
def _write_coordinates(message: ArrayRef, end: int, coordinates: ArrayRef) -> int:
    """Write the shape of a coordinate, such as (N, D1_out, 2), given a COORDINATE_SHAPE."""
    listing_axis = coordinates[0]
    listing_length = coordinates[1]
    r = coordinates[2]
    end = _write_chars(message, end, _OPEN)
    axes = r + 2 if listing_axis >= 0 else r + 1
    for axis in range(axes):
        end = _write_separator(message, end, axis)
        number = axis - 1 if 0 <= listing_axis < axis else axis
        if axis == listing_axis:
            end = _write_integer(message, end, listing_length)
        elif number == 0:
            end = _write_chars(message, end, _N)
        else:
            end = _write_output_axis(message, end, number)
    return _write_chars(message, end, _CLOSE)


@register_jitable
def _write_output_axis(message: ArrayRef, end: int, number: int) -> int:
    """Write the name of an output axis, such as ``D1_out``."""
    end = _write_integer(message, _write_chars(message, end, _D), number)
    return _write_chars(message, end, _OUT)


@register_jitable
def _write_chars(message: ArrayRef, end: int, codes: Any) -> int:
    """Write characters by their codes."""
    for code in codes:
        message[end] = np.uint8(code)
        end += 1
    return end


@register_jitable
def _write_shape(message: ArrayRef, end: int, lengths: ArrayRef) -> int:
    """Write integers in parentheses."""
    end = _write_chars(message, end, _OPEN)
    for i in range(len(lengths)):
        end = _write_integer(message, _write_separator(message, end, i), lengths[i])
    return _write_chars(message, end, _CLOSE)


@register_jitable
def _write_negative(message: ArrayRef, end: int, lengths: ArrayRef) -> int:
    """Write the first negative length of (N, C, H, W) or (N, C, D, H, W), such as ``H = -2``."""
    axis = 0
    for i in range(len(lengths) - 1, -1, -1):
        if lengths[i] < 0:
            axis = i
    if axis == 0:
        end = _write_chars(message, end, _N)
    elif axis == 1:
        end = _write_chars(message, end, _C)
    else:
        end = _write_chars(message, end, (_SPATIAL_AXES[axis + 3 - len(lengths)],))
    return _write_integer(message, _write_chars(message, end, _EQUALS), lengths[axis])


@register_jitable
def _write_separator(message: ArrayRef, end: int, index: int) -> int:
    """Write a comma and a blank before every item of a list but the first."""
    return _write_chars(message, end, _SEPARATOR) if index > 0 else end


@register_jitable
def _write_integer(message: ArrayRef, end: int, number: int) -> int:
    """Write a decimal integer."""
    if number < 0:
        end = _write_chars(message, end, (_MINUS,))
    # Unsigned, as the smallest int64 has no positive counterpart.
    rest = np.uint64(number) if number >= 0 else np.uint64(0) - np.uint64(number)
    n_digits = 1
    scaled = rest // np.uint64(10)
    while scaled > np.uint64(0):
        n_digits += 1
        scaled = scaled // np.uint64(10)
    for digit in range(n_digits):
        message[end + n_digits - 1 - digit] = np.uint8(_ZERO + np.int64(rest % np.uint64(10)))
        rest = rest // np.uint64(10)
    return end + n_digits
