"""Adding up taps: one function for each kind of element type.

Every function has the arguments ``(values, weight, Y)``: values (C, T, P) and weights (T, P) of T
taps, and the result ``Y`` (C, P), which is filled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import Array
from .coordinates import Namespace, Values

SumFunction = Callable[[Array, Array, Array], None]

_WEIGHTED_SUM = "ctp,tp->cp"


def sum_floats(values: Array, weight: Array, Y: Array) -> None:
    """Add up floats or complex numbers in the weights' precision, and round once to Y's type."""
    if Y.dtype.kind == "c" or Y.dtype == weight.dtype:
        np.einsum(_WEIGHTED_SUM, values, weight, out=Y)
    else:
        Y[...] = np.einsum(_WEIGHTED_SUM, values.astype(weight.dtype), weight)


def sum_bools(values: Array, weight: Array, Y: Array) -> None:
    """Fill Y with whether the weighted sum of bools is not 0."""
    np.not_equal(np.einsum(_WEIGHTED_SUM, values.astype(weight.dtype), weight), 0, out=Y)


def sum_integers(values: Array, weight: Array, Y: Array) -> None:
    """Add up integers in the weights' type, truncate toward zero, and saturate at Y's limits.

    The weights add up to 1. So the sum is the value of the first tap plus the weighted differences
    from it, which is exact if all taps are equal.
    """
    first = values[:, 0]
    origin = first.astype(weight.dtype)
    difference = values[:, 1:].astype(weight.dtype)
    difference -= origin[:, None]
    difference = np.einsum(_WEIGHTED_SUM, difference, weight[1:])
    Y[...] = to_integers(
        np,
        origin,
        difference,
        Y.dtype.name,
        lambda: first.astype("int64", copy=False),
    )


def to_integers(
    xp: Namespace,
    origin: Values,
    difference: Values,
    dtype: str,
    exact: Callable[[], Values],
) -> Values:
    """Convert ``origin + difference`` to integers, truncated toward zero and saturated.

    Args:
        xp: numpy, or a namespace as in :mod:`.coordinates`.
        origin: the value of the first tap, as floating point.
        difference: the weighted sum of the differences from ``origin``, of its type.
        dtype: the name of the integer type.
        exact: returns the integers from which ``origin`` was rounded, as int64. They are the result
            wherever ``difference`` is 0. Called only for types of 64 bits.

    Returns:
        Integers of type ``dtype``. For a type of 64 bits they are the int64 with the same bits,
        because ONNX Runtime has no Where for uint64.
    """
    limits = np.iinfo(dtype)
    total = origin + difference
    largest = float(limits.max)
    is_limit_exact = int(largest) == limits.max  # float64 cannot represent a limit of 64 bits
    low = float(limits.min)
    high = largest if is_limit_exact else float(np.nextafter(largest, 0))
    integers = xp.clip(total, low, high).astype(dtype)
    if is_limit_exact:
        return integers

    saturated = int(np.array(limits.max, dtype).astype("int64"))
    fits = xp.less(total, largest)
    integers = xp.where(fits, integers.astype("int64", copy=False), saturated)
    return xp.where(xp.equal(difference, 0), exact(), integers)
