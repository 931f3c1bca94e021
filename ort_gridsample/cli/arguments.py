"""Types of arguments, for argparse: each takes a text and refuses what makes no sense."""

import argparse
import math
from functools import partial
from typing import TypeVar

T = TypeVar("T", int, float)


def _number(kind: type[T], what: str, least: int, otherwise: str, text: str) -> T:
    """The finite number of ``least`` or more in ``text``, of this ``kind``, which errors name in these words."""
    try:
        number = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
    if not least <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is {otherwise}")
    return number


positive = partial(_number, int, "a whole number", 1, "less than 1")
at_least_0 = partial(_number, int, "a whole number", 0, "less than 0")
#: Seconds, a tolerance.
magnitude = partial(_number, float, "a number", 0, "not a finite number of 0 or more")
