"""How a type adds up its taps: from values (C, T, P) and weights (T, P) to ``Y`` (C, P)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import Array

Sum = Callable[[Array, Array, Array], None]

_WEIGHTED_SUM = "ctp,tp->cp"
_WEIGHTED_SUM_OF_ROWS = "tpc,tp->pc"


def floating(values: Array, weight: Array, Y: Array) -> None:
    """Floats and complex: the weighted sum in the weights' precision, rounded once to Y's type."""
    if Y.dtype.kind == "c" or Y.dtype == weight.dtype:
        np.einsum(_WEIGHTED_SUM, values, weight, out=Y)
    else:
        Y[...] = np.einsum(_WEIGHTED_SUM, values.astype(weight.dtype), weight)


def of_rows(values: Array, weight: Array) -> Array:
    """The weighted sums (P, C) of floats and complex values (T, P, C), in the precision of their type."""
    return np.einsum(_WEIGHTED_SUM_OF_ROWS, values, weight)


def boolean(values: Array, weight: Array, Y: Array) -> None:
    """Bool: the weighted sum; what is not 0 is True."""
    np.not_equal(np.einsum(_WEIGHTED_SUM, values.astype(weight.dtype), weight), 0, out=Y)


def integer(values: Array, weight: Array, Y: Array) -> None:
    """Integers: the weighted sum in the weights' type, truncated toward zero and saturated at the limits of Y's type.

    Weights add up to 1, so the sum is the first tap's value plus the weighted differences from it: where all taps are
    equal it is exact.
    """
    first = values[:, 0]
    origin = first.astype(weight.dtype)
    difference = values[:, 1:].astype(weight.dtype)
    difference -= origin[:, None]
    total = np.einsum(_WEIGHTED_SUM, difference, weight[1:])
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
