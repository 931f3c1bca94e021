"""Types of command-line arguments, for argparse."""

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)


def positive(text: str) -> int:
    """Return the whole number of 1 or more in ``text``."""
    number = _parse(int, text, "a whole number")
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def non_negative(text: str) -> int:
    """Return the whole number of 0 or more in ``text``."""
    number = _parse(int, text, "a whole number")
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


def magnitude(text: str) -> float:
    """Return the finite number of 0 or more in ``text``, such as seconds or a tolerance."""
    number = _parse(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of 0 or more")
    return number


def _parse(parse: Callable[[str], T], text: str, expected: str) -> T:
    try:
        return parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}") from None
