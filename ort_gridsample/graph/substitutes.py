"""Operators written as other operators: for runtimes that lack them, and for exact rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .expressions import Expressions, Tensor, TensorLike


def _mod_by_floor(e: Expressions, x: Tensor, y: TensorLike, fmod: int) -> Tensor:
    whole_periods = e.floor(e.abs(x) / y) * y
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


def _round_by_sum(e: Expressions, x: Tensor) -> Tensor:
    large = e.constant(2.0 ** np.finfo(x.type).nmant, x.type)  # a sum with it has no fraction
    signed = e.where(e.less(x, 0), 0 - large, large)
    return e.where(e.less(e.abs(x), large), x + signed - signed, x)


#: Operator -> the same by other operators, for a runtime that lacks it.
SUBSTITUTES: Mapping[str, Callable[..., Tensor]] = {
    "Max": lambda e, x, y: e.where(e.less(x, y), y, x),  # exact, as a sum of differences is not
    "Min": lambda e, x, y: e.where(e.less(x, y), x, y),
    "Mod": _mod_by_floor,
    "Round": _round_by_sum,
}
