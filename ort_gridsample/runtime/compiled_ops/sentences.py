"""What a wrong input is answered with: the sentences of :mod:`ort_gridsample.checks`, filled in by compiled code.

A sentence becomes bytes when a session is made; where it quotes a shape or a number, it has a byte that no text has.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from ...checks import Sentence
from .c_api import INVALID_ARGUMENT
from .pointers import allocate, free, function, load, load_byte, store_byte

#: What a sentence may quote, and the byte that stands for it: two rows of numbers, and what is counted of the first.
FIRST, SECOND, FIRST_LENGTH, AXES, OUTPUTS, PLURAL, BYTES, END = 1, 2, 3, 4, 5, 6, 7, 0

_QUOTED = {
    "X": FIRST,
    "theta": FIRST,
    "grid": SECOND,
    "size": SECOND,
    "N": FIRST_LENGTH,
    "r": AXES,
    "outputs": OUTPUTS,
    "is": PLURAL,
    "nbytes": BYTES,
}

#: The digits of an int64, its sign, what stands between two numbers, and some more.
_ROOM = 32

create_status = function("CreateStatus")


def as_bytes(sentence: Sentence, where: str, **known: object) -> bytes:
    """The sentence about the node ``where``, with bytes for what only a run knows, and 0 at its end."""
    quoted = {name: chr(code) for name, code in _QUOTED.items()}
    return str(sentence.error(where, **(quoted | known))).encode() + b"\0"


@register_jitable
def status(api: int, sentence: int, first: int, first_count: int, second: int, second_count: int, nbytes: int) -> int:
    """A status that says the ``sentence`` of :func:`as_bytes` of two rows of int64 and a number of bytes."""
    length, quotes = 0, 0
    while load_byte(sentence + length) != END:
        quotes += load_byte(sentence + length) < 32
        length += 1
    text = allocate(length + 1 + quotes * _ROOM * (max(first_count, second_count) + 1))
    if text == 0:
        return create_status(api, (INVALID_ARGUMENT, sentence))
    at = text
    for i in range(length):
        code = load_byte(sentence + i)
        if code == FIRST:
            at = _write_row(at, first, first_count)
        elif code == SECOND:
            at = _write_row(at, second, second_count)
        elif code == FIRST_LENGTH:
            at = _write(at, load(first))
        elif code == AXES:
            at = _write(at, first_count - 2)
        elif code == PLURAL:
            at = _byte(_byte(at, 105 if first_count == 3 else 101), 115)  # axis, or axes
        elif code == OUTPUTS:
            for axis in range(first_count - 2):
                if axis > 0:
                    at = _comma(at)
                at = _byte(at, 68)  # D
                at = _write(at, axis + 1)
                for each in (95, 111, 117, 116):  # _out
                    at = _byte(at, each)
        elif code == BYTES:
            at = _write(at, nbytes)
        else:
            at = _byte(at, code)
    store_byte(at, END)
    answer = create_status(api, (INVALID_ARGUMENT, text))
    free(text)
    return answer


@register_jitable
def _byte(at: int, value: int) -> int:
    store_byte(at, value)
    return at + 1


@register_jitable
def _comma(at: int) -> int:
    return _byte(_byte(at, 44), 32)


@register_jitable
def _write(at: int, number: int) -> int:
    """Write a number in digits; answers where they end."""
    rest = np.uint64(number)
    if number < 0:
        at = _byte(at, 45)
        rest = np.uint64(0) - rest
    digits, scaled = 1, rest // np.uint64(10)
    while scaled > np.uint64(0):
        digits, scaled = digits + 1, scaled // np.uint64(10)
    for i in range(digits):
        store_byte(at + digits - 1 - i, 48 + np.int64(rest % np.uint64(10)))
        rest = rest // np.uint64(10)
    return at + digits


@register_jitable
def _write_row(at: int, row: int, length: int) -> int:
    """Write a row of int64 as a shape is shown."""
    at = _byte(at, 40)
    for i in range(length):
        if i > 0:
            at = _comma(at)
        at = _write(at, load(row + 8 * i))
    return _byte(at, 41)
