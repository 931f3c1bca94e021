"""The errors of compiled ops: the sentences of :mod:`ort_gridsample.functions.validation`, filled in by compiled code.

A sentence is bytes. A byte below 32 stands for a shape, a number or a value that it quotes.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from ...functions.validation import ErrorTemplate
from ...kernels.pointers import allocate, array, copy, free, struct
from .c_api import INVALID_ARGUMENT
from .requests import function, reserve
from .structs import ERRORS, TEXT

#: What a sentence may quote, and the byte that stands for it: two rows of numbers, and what is counted of the first; a
#: number, and a value of the node; and the shape of r coordinates, the second row's axis, length and r.
FIRST, SECOND, FIRST_LENGTH, AXES, OUTPUTS, PLURAL, BYTES, VALUE, COORDINATES = range(1, 10)

_QUOTED = {
    "X": FIRST, "theta": FIRST, "grid": SECOND, "size": SECOND,
    "value_shape": FIRST, "spatial_shapes": FIRST, "attention_weights": FIRST, "sampling_locations": SECOND,
    "pixels": BYTES, "n_levels": BYTES, "N": FIRST_LENGTH, "r": AXES, "outputs": OUTPUTS, "is": PLURAL,
    "nbytes": BYTES, "value": VALUE, "coordinates": COORDINATES,
}  # fmt: skip

#: The first sentence of every op, and its number.
ROOM, NO_ROOM = ErrorTemplate("memory", "not to be had", "{nbytes} bytes of scratch"), 0
#: The digits of an int64, its sign, what stands between two numbers, and some more.
_ROOM = 32

create_status = function("CreateStatus")
#: strlen of C: the length of the characters at an address, which a 0 ends.
length_of: Any = types.ExternalFunction("strlen", types.int64(types.int64))


def as_bytes(sentence: ErrorTemplate, **known: object) -> bytes:
    """The ``sentence`` without the name of the node: with what is ``known``, and bytes for what only a node knows."""
    quoted = {name: chr(code) for name, code in _QUOTED.items()}
    return str(sentence.error("", **(quoted | known))).encode()


@register_jitable
def complain(api: int, errors: int, number: int, nbytes: int) -> int:
    """As :func:`refuse`, with a sentence that quotes no row."""
    none = array(0, (0,), np.int64)
    return refuse(api, errors, number, none, none, nbytes)


@register_jitable
def refuse(api: int, errors_at: int, number: int, first: Any, second: Any, nbytes: int) -> int:
    """A status: a sentence filled in with two rows of int64, ``first`` and ``second``, and a number of bytes.

    ``errors_at`` is the address of ERRORS, and ``number`` an index into their sentences, each of :func:`as_bytes`.
    """
    errors = struct(errors_at, ERRORS)
    sentence, where, value = array(errors.sentences, (number + 1,), TEXT)[number], errors.where, errors.value
    codes, quotes = array(sentence.at, (sentence.length,), np.uint8), 0
    for i in range(len(codes)):
        quotes += codes[i] < 32
    size = where.length + len(codes) + quotes * (_ROOM * (max(len(first), len(second)) + 1) + value.length) + 1
    if len(second) == 3:
        size += quotes * _ROOM * second[2]  # of COORDINATES
    at = allocate(size)
    if at == 0:
        return create_status(api, (INVALID_ARGUMENT, sentence.at))
    text = array(at, (size,), np.uint8)
    end = _copied(text, 0, where)
    for i in range(len(codes)):
        code = np.int64(codes[i])
        if code >= 32:
            end = _letters(text, end, (code,))
        elif code == PLURAL:
            end = _letters(text, end, (105 if len(first) == 3 else 101, 115))  # axis, or axes
        elif code == VALUE:
            end = _copied(text, end, value)
        elif code == COORDINATES:
            end = _write_coordinates(text, end, second)
        elif code in (FIRST, SECOND):
            end = _row(text, end, first if code == FIRST else second)
        elif code == OUTPUTS:
            for axis in range(len(first) - 2):
                end = _output(text, _comma(text, end, axis), axis + 1)
        else:
            end = _digits(text, end, len(first) - 2 if code == AXES else first[0] if code == FIRST_LENGTH else nbytes)
    text[end] = 0
    answer = create_status(api, (INVALID_ARGUMENT, at))
    free(at)
    return answer


@register_jitable
def _copied(text: Any, end: int, found: Any) -> int:
    """Write the TEXT ``found``; answers where it ends."""
    copy(np.int64(text[end:].ctypes.data), found.at, found.length)
    return end + found.length


@register_jitable
def quoted(node: Any, before: int, found: Any, to: Any) -> None:
    """Set the TEXT ``to`` to the characters ``before`` and the TEXT ``found`` as Python's ``repr`` writes it.

    It is kept with the ``node``. Beyond ASCII all letters are taken for printable.
    """
    given, length = array(found.at, (max(found.length, 0),), np.uint8), length_of(before)
    size = length + 4 * len(given) + 3
    to.at = reserve(node, size)
    if to.at == 0:
        return
    text, quote, has_double, end = array(to.at, (size,), np.uint8), 39, False, length
    copy(to.at, before, length)
    for i in range(len(given)):
        quote, has_double = 34 if given[i] == 39 else quote, has_double or given[i] == 34
    quote = 39 if has_double else quote  # a single one, unless there are such and no double ones
    end = _letters(text, end, (quote,))
    for i in range(len(given)):
        code = np.int64(given[i])
        if code in (quote, 92):
            end = _letters(text, end, (92, code))
        elif code in (9, 10, 13):
            end = _letters(text, end, (92, 116 if code == 9 else 110 if code == 10 else 114))
        elif code < 32 or code == 127:
            high, low = code // 16, code % 16
            end = _letters(text, end, (92, 120, 48 + high, low + (48 if low < 10 else 87)))
        else:
            end = _letters(text, end, (code,))
    to.length = _letters(text, end, (quote,))


@register_jitable
def _write_coordinates(text: Any, end: int, about: Any) -> int:
    """Write the shape of ``about`` (axis, length, r); answers where it ends."""
    axis, length, r = about[0], about[1], about[2]
    end = _letters(text, end, (40,))
    for at in range(r + 1 + (axis >= 0)):
        end, number = _comma(text, end, at), at - (0 <= axis < at)
        if at == axis:
            end = _digits(text, end, length)
        elif number == 0:
            end = _letters(text, end, (78,))  # N
        else:
            end = _output(text, end, number)
    return _letters(text, end, (41,))


@register_jitable
def _output(text: Any, end: int, number: int) -> int:
    """Write ``D1_out`` or the like; answers where it ends."""
    return _letters(text, _digits(text, _letters(text, end, (68,)), number), (95, 111, 117, 116))


@register_jitable
def _letters(text: Any, end: int, codes: Any) -> int:
    """Write letters; answers where they end."""
    for code in codes:
        text[end] = np.uint8(code)
        end += 1
    return end


@register_jitable
def _row(text: Any, end: int, numbers: Any) -> int:
    """Write ``numbers`` in parentheses; answers where they end."""
    end = _letters(text, end, (40,))
    for i in range(len(numbers)):
        end = _digits(text, _comma(text, end, i), numbers[i])
    return _letters(text, end, (41,))


@register_jitable
def _comma(text: Any, end: int, number: int) -> int:
    """Write what stands before the ``number``-th of several; answers where it ends."""
    return _letters(text, end, (44, 32)) if number > 0 else end


@register_jitable
def _digits(text: Any, end: int, number: int) -> int:
    """Write a ``number``; answers where it ends."""
    if number < 0:
        end = _letters(text, end, (45,))
    rest = np.uint64(number) if number >= 0 else np.uint64(0) - np.uint64(number)
    digits, scaled = 1, rest // np.uint64(10)
    while scaled > np.uint64(0):
        digits, scaled = digits + 1, scaled // np.uint64(10)
    for digit in range(digits):
        text[end + digits - 1 - digit] = np.uint8(48 + np.int64(rest % np.uint64(10)))
        rest = rest // np.uint64(10)
    return end + digits
