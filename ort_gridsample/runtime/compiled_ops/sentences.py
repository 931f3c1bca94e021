"""What a wrong input is answered with: the sentences of :mod:`ort_gridsample.checks`, filled in by compiled code.

A sentence becomes bytes when a session is made; where it quotes a shape or a number, it has a byte that no text has.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numba.extending import register_jitable

from ...checks import Sentence
from ...core.pointers import allocate, free, load, load_byte, store_byte
from .c_api import INVALID_ARGUMENT
from .calls import function

#: What a sentence may quote, and the byte that stands for it: two rows of numbers, and what is counted of the first.
FIRST, SECOND, FIRST_LENGTH, AXES, OUTPUTS, PLURAL, BYTES, END = 1, 2, 3, 4, 5, 6, 7, 0

_QUOTED = {
    "X": FIRST, "theta": FIRST, "grid": SECOND, "size": SECOND,
    "N": FIRST_LENGTH, "r": AXES, "outputs": OUTPUTS, "is": PLURAL, "nbytes": BYTES,
}  # fmt: skip

#: The digits of an int64, its sign, what stands between two numbers, and some more.
_ROOM = 32

create_status = function("CreateStatus")


def as_bytes(sentence: Sentence, where: str, **known: object) -> bytes:
    """The sentence about the node ``where``, with bytes for what only a run knows, and 0 at its end."""
    return f"{where}{_behind_place(sentence, *known.items())}\0".encode()


@lru_cache(maxsize=128)  # some name a model's values
def _behind_place(sentence: Sentence, *known: tuple[str, object]) -> str:
    quoted = {name: chr(code) for name, code in _QUOTED.items()}
    return str(sentence.error("", **(quoted | dict(known))))


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
        if code >= 32:
            store_byte(at, code)
            at += 1
        elif code == PLURAL:
            store_byte(at, 105 if first_count == 3 else 101)  # axis, or axes
            store_byte(at + 1, 115)
            at += 2
        else:
            at = _write(at, code, first, first_count, second, second_count, nbytes)
    store_byte(at, END)
    answer = create_status(api, (INVALID_ARGUMENT, text))
    free(text)
    return answer


@register_jitable
def _write(at: int, code: int, first: int, first_count: int, second: int, second_count: int, nbytes: int) -> int:
    """Write the numbers that a ``code`` stands for, a row of them in parentheses; answers where they end."""
    is_row = code in (FIRST, SECOND)
    row, count = (second, second_count) if code == SECOND else (first, first_count if code == FIRST else 1)
    if code == OUTPUTS:
        count = first_count - 2
    if is_row:
        store_byte(at, 40)
        at += 1
    for i in range(count):
        if i > 0:
            store_byte(at, 44)
            store_byte(at + 1, 32)
            at += 2
        if code == OUTPUTS:
            store_byte(at, 68)  # D
            at += 1
            number = i + 1
        elif code == AXES:
            number = first_count - 2
        elif code == BYTES:
            number = nbytes
        else:
            number = load(row + 8 * i)
        if number < 0:
            store_byte(at, 45)
            at += 1
        rest = np.uint64(number) if number >= 0 else np.uint64(0) - np.uint64(number)
        digits, scaled = 1, rest // np.uint64(10)
        while scaled > np.uint64(0):
            digits, scaled = digits + 1, scaled // np.uint64(10)
        for digit in range(digits):
            store_byte(at + digits - 1 - digit, 48 + np.int64(rest % np.uint64(10)))
            rest = rest // np.uint64(10)
        at += digits
        if code == OUTPUTS:
            for each in (95, 111, 117, 116):  # _out
                store_byte(at, each)
                at += 1
    if is_row:
        store_byte(at, 41)
        at += 1
    return at
