"""Types of arguments, for argparse: each takes a text and refuses what makes no sense."""

import argparse
import math
from typing import Any


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    return at_least_0(text, least=1)


def at_least_0(text: str, least: int = 0) -> int:
    """A whole number of 0 or more."""
    number: int = _number(int, text, "a whole number")
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return number


def magnitude(text: str) -> float:
    """A finite number of 0 or more: seconds, a tolerance."""
    number: float = _number(float, text, "a number")
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of 0 or more")
    return number


def _number(kind: type[int] | type[float], text: str, what: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
