"""Operators written as other operators: for runtimes that lack them, and for exact rounding.

For a runtime without comparisons and logic, a condition is a number, 1 or 0. A Floor computes it:
of a difference that is clipped to [-1, 0], it is -1 if the difference is negative. Such a runtime
cannot tell NaN from numbers. Numbers whose magnitude is more than :func:`largest_finite` count as
infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .expressions import Expressions, Tensor, TensorLike


class MissingOperatorError(Exception):
    """A runtime lacks an operator, and nothing replaces it."""


def _mod_by_floor(e: Expressions, x: Tensor, y: TensorLike) -> Tensor:
    whole_periods = e.floor(e.abs(x) / y) * y
    if e.runtime.lacks("Where"):
        # Of x, at most the whole periods are left, with the sign of x.
        return x - e.maximum(e.minimum(x, whole_periods), whole_periods * -1)
    return e.where(e.less(x, 0), x + whole_periods, x - whole_periods)


def round_to_float32(e: Expressions, x: Tensor) -> Tensor:
    """Round ``x``, of type float64, to the nearest float32 (to even at ties).

    Infinity, NaN, and what rounds to infinity become NaN. No float32 appears, so that a converter
    to float16 has nothing to convert.

    Source: Veltkamp's splitting, in Dekker, "A floating-point technique for extending the available
    precision" (1971).
    """
    shift = 2.0 ** (np.finfo("float64").nmant - np.finfo("float32").nmant)
    scale = 2.0**867  # with it the product below overflows where float32 does, from 2**128 on
    product = x * ((shift + 1) * scale)
    rest = x * scale - product
    return (product + rest) * (1 / scale)


def _round(e: Expressions, x: Tensor) -> Tensor:
    return _round_by_floor(e, x) if e.runtime.lacks("Where") else _round_by_sum(e, x)


def _round_by_floor(e: Expressions, x: Tensor) -> Tensor:
    """Round ``x`` to the nearest number without fraction, to even at ties.

    All differences are exact. There is no large constant, which would be infinite in a runtime that
    computes in float16.
    """
    below = e.floor(x)
    fraction = x - below
    from_half = e.floor(0.5 - fraction)  # -1 if the fraction is more than a half
    up_to_half = e.floor(fraction - 0.5)  # -1 if it is less than a half
    is_tie = from_half + up_to_half + 1
    is_odd = below - e.floor(below * 0.5) * 2
    return below - from_half + is_tie * is_odd


def _round_by_sum(e: Expressions, x: Tensor) -> Tensor:
    large = e.constant(2.0 ** np.finfo(x.type).nmant, x.type)  # a sum with it has no fraction
    signed = e.where(e.less(x, 0), 0 - large, large)
    return e.where(e.less(e.abs(x), large), x + signed - signed, x)


def _divide(e: Expressions, x: Tensor, y: Tensor) -> Tensor:
    if y.constant is None:
        raise MissingOperatorError("Div")
    return x * e.constant(1 / y.constant, y.type)


def largest_finite(float_type: str) -> float:
    """Return the largest number that counts as finite for a runtime without comparisons.

    Pixel coordinates of this size have no fractions, and multiples of a period up to it are exact.
    """
    return float(2.0 ** np.finfo(float_type).nmant)


def _is_negative(e: Expressions, x: Tensor) -> Tensor:
    """Return 1 where ``x`` is negative, else 0."""
    return e.floor(e.maximum(e.minimum(x, 0), -1)) * -1


def _is_equal(e: Expressions, x: Tensor, y: Tensor) -> Tensor:
    """Return 1 where ``x`` and ``y`` are equal, else 0; for x - x and 0, where x is finite."""
    if x.name and x.name == y.name:
        return e.constant(True, "bool")
    t = e.operand_less_itself(x)
    if t is not None and y.constant is not None and not y.constant.any():
        is_finite = 1 - _is_negative(e, largest_finite(t.type) - e.abs(t))
        return replace(is_finite, finite=t)
    return e.floor(e.minimum(e.abs(x - y), 1) * -1) + 1


def _where(e: Expressions, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return a sum of ``x`` and ``y``, which must be finite except where ``x`` is tested for it."""
    if condition.constant is not None:
        if condition.constant.all():
            return x
        condition = condition.astype(x.type)
    t = condition.finite
    if t is not None and t.name == x.name:
        largest = largest_finite(x.type)
        x = e.maximum(e.minimum(x, largest), -largest)
    return x * condition + y * (1 - condition)


#: Operator -> the same by other operators, for a runtime that lacks it.
SUBSTITUTES: Mapping[str, Callable[..., Tensor]] = {
    "Clip": lambda e, x, low, high: e.minimum(e.maximum(x, low), high),
    "Div": _divide,
    "Equal": _is_equal,
    "Less": lambda e, x, y: _is_negative(e, x - y),
    "Max": lambda e, x, y: e.where(e.less(x, y), y, x),  # exact, as a sum of differences is not
    "Min": lambda e, x, y: e.where(e.less(x, y), x, y),
    "Mod": lambda e, x, y, fmod: _mod_by_floor(e, x, y),
    "Round": _round,
    "Where": _where,
}
