"""How a type adds up its taps: from (values, weight) pairs of shapes (C, P) and (P,) to ``Y`` (C, P)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ._types import Array

Taps = Iterable[tuple[Array, Array | None]]
Sum = Callable[[Taps, Array, "np.dtype[np.generic]"], None]


def copy(taps: Taps, Y: Array, compute: np.dtype[np.generic]) -> None:
    """Nearest: the one tap's value, bit for bit."""
    for values, _ in taps:
        Y[...] = values


def floating(taps: Taps, Y: Array, compute: np.dtype[np.generic]) -> None:
    """Floats and complex: the weighted sum in ``compute``, rounded once to Y's type."""
    total = Y if Y.dtype == compute else np.empty(Y.shape, compute)
    _weighted_sum(taps, total)
    if total is not Y:
        Y[...] = total


def boolean(taps: Taps, Y: Array, compute: np.dtype[np.generic]) -> None:
    """Bool: the weighted sum; what is not 0 is True."""
    total = np.empty(Y.shape, compute)
    _weighted_sum(taps, total)
    np.not_equal(total, 0, out=Y)


def integer(taps: Taps, Y: Array, compute: np.dtype[np.generic]) -> None:
    """Integers: the weighted sum in ``compute``, truncated toward zero and saturated at the limits of Y's type.

    Weights add up to 1, so the sum is the first tap's value plus the weighted differences from it: where all taps are
    equal it is exact.
    """
    pairs = iter(taps)
    values, _ = next(pairs)
    first = values.copy()
    origin = first.astype(compute)
    total = np.zeros(Y.shape, compute)
    difference = np.empty(Y.shape, compute)
    for values, weight in pairs:
        np.subtract(values, origin, out=difference, casting="unsafe")
        difference *= weight
        total += difference
    exact = total == 0
    total += origin
    limits = np.iinfo(Y.dtype)
    too_high = total >= float(limits.max)
    too_low = total <= float(limits.min)
    with np.errstate(invalid="ignore"):
        Y[...] = total  # numpy truncates toward zero
    Y[too_high] = limits.max
    Y[too_low] = limits.min
    np.copyto(Y, first, where=exact)  # beyond 2**53 the origin itself was rounded


def _weighted_sum(taps: Taps, total: Array) -> None:
    started = False
    term = np.empty_like(total)
    for values, weight in taps:
        assert weight is not None  # only nearest has none
        np.multiply(values, weight, out=term if started else total, casting="unsafe")
        if started:
            total += term
        started = True
