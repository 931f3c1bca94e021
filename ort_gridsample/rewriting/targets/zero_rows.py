"""The zeros among the rows of X, which taps outside of X read.

With zeros padding, the rows of X are surrounded by rows of zeros, or there is one row of zeros
before all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...graph.expressions import DimLike, Expressions, Tensor
from ...graph.runtimes import ANY
from ...reference.coordinates import Padding
from ...reference.taps import Mode

#: The types of X for which every runtime has a Pad.
PADDED_TYPES = ("float32", "float64")
#: The number of values of X, and of channels for each tap, from which zeros around X are slower
#: than logic: a Pad in ONNX Runtime writes all of its output twice.
MIN_LARGE_VALUES = 1 << 17
MIN_LARGE_CHANNELS_PER_TAP = 32


@dataclass(frozen=True)
class ZeroRows:
    """The zeros among the rows of X.

    Attributes:
        border: the number of zeros before and after the pixels of each axis, 0 or 1.
        has_zero_row: whether there is one row of zeros before all others.
    """

    border: int
    has_zero_row: bool


def zero_rows_for(
    e: Expressions, mode: Mode, padding: Padding, dims: Sequence[DimLike]
) -> ZeroRows:
    """Return the faster layout for an X of shape ``dims``."""
    if not padding.zero_outside:
        return ZeroRows(border=0, has_zero_row=False)
    known = [dim for dim in dims if isinstance(dim, int)]
    r = len(dims) - 2
    is_large = (
        len(known) == len(dims)
        and prod(known) >= MIN_LARGE_VALUES
        and known[1] >= MIN_LARGE_CHANNELS_PER_TAP * mode.taps**r
    )
    if is_large and e.runtime == ANY:
        return ZeroRows(border=0, has_zero_row=True)
    return ZeroRows(border=1, has_zero_row=False)


def surrounded_by_zeros(e: Expressions, rows: Tensor, dims: list[DimLike]) -> Tensor:
    """Return rows (N, S, C) with zeros before and after each spatial axis.

    Args:
        rows: (N, S, C), or a tensor of the same elements.
        dims: (N, D1, …, Dr, C).
    """
    n, *outer, inner, c = dims
    if rows.type in PADDED_TYPES and isinstance(c, int):
        # The last two axes as one: not every runtime has kernels for many axes.
        rows = e.reshape(rows, [n, *outer, e.product([inner, c])])
        return e.pad(rows, [0, *[1] * len(outer), c])
    rows = e.reshape(rows, dims)
    if rows.type in PADDED_TYPES:
        return e.pad(rows, [0, *[1] * (len(dims) - 2), 0])
    for axis in range(1, len(dims) - 1):
        zeros = e.zeros([*dims[:axis], 1, *dims[axis + 1 :]], rows.type)
        dims = [*dims[:axis], dims[axis] + 2, *dims[axis + 1 :]]
        rows = e.concatenate([zeros, rows, zeros], axis)
    return rows
