"""The errors of compiled ops: the sentences of :mod:`ort_gridsample.checks`, filled in by compiled code.

A sentence becomes bytes when a session is made. A byte below 32 stands for a shape or a number that it quotes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...checks import Sentence
from ...core.pointers import allocate, array, free
from .c_api import INVALID_ARGUMENT
from .calls import function
from .structs import TEXT

#: What a sentence may quote, and the byte that stands for it: two rows of numbers, and what is counted of the first.
FIRST, SECOND, FIRST_LENGTH, AXES, OUTPUTS, PLURAL, BYTES = range(1, 8)

_QUOTED = {
    "X": FIRST, "theta": FIRST, "grid": SECOND, "size": SECOND,
    "value": FIRST, "spatial_shapes": FIRST, "attention_weights": FIRST, "sampling_locations": SECOND,
    "pixels": BYTES, "n_levels": BYTES, "N": FIRST_LENGTH, "r": AXES, "outputs": OUTPUTS, "is": PLURAL,
    "nbytes": BYTES,
}  # fmt: skip

#: The first sentence of every op.
ROOM = Sentence("memory", "not to be had", "{nbytes} bytes of scratch")

#: The digits of an int64, its sign, what stands between two numbers, and some more.
_ROOM = 32

create_status = function("CreateStatus")


def as_bytes(sentence: Sentence, where: str, **known: object) -> bytes:
    """The sentence about the node ``where``: what is ``known`` filled in, and bytes for what only a run knows."""
    return f"{where}{_behind_place(sentence, *known.items())}".encode()


@lru_cache(maxsize=128)  # some name a model's values
def _behind_place(sentence: Sentence, *known: tuple[str, object]) -> str:
    quoted = {name: chr(code) for name, code in _QUOTED.items()}
    return str(sentence.error("", **(quoted | dict(known))))


@register_jitable
def no_room(api: int, sentences: int, nbytes: int) -> int:
    """A status: ``nbytes`` of memory are not to be had; the first of ``sentences`` says it."""
    none = array(0, (0,), np.int64)
    return refuse(api, sentences, 0, none, none, nbytes)


@register_jitable
def refuse(api: int, sentences: int, number: int, first: Any, second: Any, nbytes: int) -> int:
    """A status: a sentence filled in with two rows of int64, ``first`` and ``second``, and a number of bytes.

    ``sentences`` is the address of a row of TEXTs, each of :func:`as_bytes`, and ``number`` an index into it.
    """
    sentence = array(sentences, (number + 1,), TEXT)[number]
    codes, quotes = array(sentence.at, (sentence.length,), np.uint8), 0
    for i in range(len(codes)):
        quotes += codes[i] < 32
    size = len(codes) + 1 + quotes * _ROOM * (max(len(first), len(second)) + 1)
    at = allocate(size)
    if at == 0:
        return create_status(api, (INVALID_ARGUMENT, sentence.at))
    text, end = array(at, (size,), np.uint8), 0
    for i in range(len(codes)):
        code = np.int64(codes[i])
        if code >= 32:
            end = _letters(text, end, (code,))
        elif code == PLURAL:
            end = _letters(text, end, (105 if len(first) == 3 else 101, 115))  # axis, or axes
        else:
            end = _write(text, end, code, first, second, nbytes)
    text[end] = 0
    answer = create_status(api, (INVALID_ARGUMENT, at))
    free(at)
    return answer


@register_jitable
def _letters(text: Any, end: int, codes: Any) -> int:
    """Write letters; answers where they end."""
    for code in codes:
        text[end] = np.uint8(code)
        end += 1
    return end


@register_jitable
def _write(text: Any, end: int, code: int, first: Any, second: Any, nbytes: int) -> int:
    """Write the numbers that a ``code`` stands for, a row of them in parentheses; answers where they end."""
    is_row, count = code in (FIRST, SECOND), 1
    row = second if code == SECOND else first
    if is_row:
        end, count = _letters(text, end, (40,)), len(row)
    elif code == OUTPUTS:
        count = len(first) - 2
    for i in range(count):
        if i > 0:
            end = _letters(text, end, (44, 32))
        if code == OUTPUTS:
            end, number = _letters(text, end, (68,)), i + 1  # D1
        elif code == AXES:
            number = len(first) - 2
        elif code == BYTES:
            number = nbytes
        else:
            number = row[i]
        if number < 0:
            end = _letters(text, end, (45,))
        rest = np.uint64(number) if number >= 0 else np.uint64(0) - np.uint64(number)
        digits, scaled = 1, rest // np.uint64(10)
        while scaled > np.uint64(0):
            digits, scaled = digits + 1, scaled // np.uint64(10)
        for digit in range(digits):
            text[end + digits - 1 - digit] = np.uint8(48 + np.int64(rest % np.uint64(10)))
            rest = rest // np.uint64(10)
        end += digits
        if code == OUTPUTS:
            end = _letters(text, end, (95, 111, 117, 116))  # _out
    return _letters(text, end, (41,)) if is_row else end
