"""Adding up taps, for each kind of type: from values (C, T, P) and weights (T, P) to ``Y`` (C, P)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import Array
from .coordinates import Namespace, Values

Sum = Callable[[Array, Array, Array], None]

_WEIGHTED_SUM = "ctp,tp->cp"


def floating(values: Array, weight: Array, Y: Array) -> None:
    """Floats and complex: the weighted sum in the weights' precision, rounded once to Y's type."""
    if Y.dtype.kind == "c" or Y.dtype == weight.dtype:
        np.einsum(_WEIGHTED_SUM, values, weight, out=Y)
    else:
        Y[...] = np.einsum(_WEIGHTED_SUM, values.astype(weight.dtype), weight)


def boolean(values: Array, weight: Array, Y: Array) -> None:
    """Bool: whether the weighted sum is not 0."""
    np.not_equal(np.einsum(_WEIGHTED_SUM, values.astype(weight.dtype), weight), 0, out=Y)


def integer(values: Array, weight: Array, Y: Array) -> None:
    """Integers: the weighted sum in the weights' type, truncated toward zero and saturated at the limits of Y's type.

    Weights add up to 1, so the sum is the first tap's value plus the weighted differences from it, which is exact
    where all taps are equal.
    """
    first = values[:, 0]
    origin = first.astype(weight.dtype)
    difference = values[:, 1:].astype(weight.dtype)
    difference -= origin[:, None]
    difference = np.einsum(_WEIGHTED_SUM, difference, weight[1:])
    Y[...] = to_integers(np, origin, difference, Y.dtype.name, lambda: first.astype("int64", copy=False))


def to_integers(xp: Namespace, origin: Values, difference: Values, dtype: str, exact: Callable[[], Values]) -> Values:
    """``origin + difference`` as integers of type ``dtype``: truncated toward zero, saturated at the type's limits.

    ``exact`` gives the integers from which ``origin`` was rounded, as int64: where the difference is 0 they are the
    answer. Of a type of 64 bits the answer is the int64 of the same bits, as ONNX Runtime has no Where for uint64.
    """
    limits, total = np.iinfo(dtype), origin + difference
    largest = float(limits.max)
    fits = int(largest) == limits.max  # 64 bits do not fit into float64
    low, high = float(limits.min), largest if fits else float(np.nextafter(largest, 0))
    integers = xp.clip(total, low, high).astype(dtype)
    if fits:
        return integers
    saturated = int(np.array(limits.max, dtype).astype("int64"))
    integers = xp.where(xp.less(total, largest), integers.astype("int64", copy=False), saturated)
    return xp.where(xp.equal(difference, 0), exact(), integers)
