"""The taps of a lowered GridSample, as rows of X that are gathered, weighted and summed.

X is a list of rows: one row for each pixel, with all its channels. A tap is a row number and a
weight. With zeros padding, the rows of X are surrounded by rows of zeros, or there is one row of
zeros before all others: a tap outside of X reads one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from ...reference.coordinates import Axis, Padding
from ...reference.sums import to_integers
from ...reference.taps import Mode
from .expressions import DimLike, Expressions, Tensor
from .runtimes import ANY

#: The types of X for which every runtime has a Pad.
PADDED_TYPES = ("float32", "float64")
#: Up to this number of channels, gathered values are transposed before they are weighted: operators
#: on tensors whose last axis is short are slow, in ONNX Runtime by a factor of 2 for 3 channels.
MAX_FEW_CHANNELS = 8
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
        e: writes the nodes.
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


class RowSampler:
    """The taps of all P output positions of all N batches.

    Tensors of the spatial axes list these first, innermost first. The combinations of all axes'
    taps are computed in groups, one group for each gather.

    Args:
        e: writes the nodes.
        mode: determines the taps on each axis.
        dims: (N, C, D1, …, Dr).
        out: (D1_out, …, Dr_out).
        zero_rows: the zeros among the rows of X.
    """

    def __init__(
        self,
        e: Expressions,
        mode: Mode,
        dims: Sequence[DimLike],
        out: list[DimLike],
        zero_rows: ZeroRows,
    ) -> None:
        self.e = e
        self.mode = mode
        n, c, *lengths = dims
        self.n = n
        self.lengths = lengths
        self.out = out
        self.zero_rows = zero_rows
        self.r = len(lengths)
        self.taps = mode.taps
        self.positions = e.product([n, *out])  # N·P
        # D1, …, Dr with the zeros around them
        self.padded = [length + 2 * zero_rows.border for length in lengths]
        # With few channels, values (…, N·P, C) are weighted as (…, C, N·P).
        self.has_few_channels = isinstance(c, int) and c <= MAX_FEW_CHANNELS
        # Whether the runtime follows shapes that are computed from lengths of a run.
        self.follows_lengths = e.runtime.computes_shapes
        # IREE cannot gather by an index with an axis of 1, for the taps, before an unknown axis.
        self.is_flat = self.taps == 1 and not self.follows_lengths
        # The number of outer axes of which each combination of taps is a group.
        max_gathers = e.runtime.max_gathers
        self.outer_axes = max(axes for axes in range(self.r + 1) if self.taps**axes <= max_gathers)
        # The number of taps in a group.
        self.group_size = int(self.taps ** (self.r - self.outer_axes))
        # int32 is faster. It is used where it is known to suffice.
        total = e.product([n, *self.padded])
        is_small = isinstance(total, int) and total < 2**31
        is_int32 = is_small or not e.runtime.has_int64_indices
        self.index_type = "int32" if is_int32 else "int64"

    def joined_rows(self, rows: Tensor, batches: DimLike, c: DimLike) -> Tensor:
        """Return the rows of all batches along one axis, after the row of zeros if there is one."""
        e = self.e
        rows = e.reshape(rows, [e.product([batches, *self.padded]), c])
        if self.zero_rows.has_zero_row:
            rows = e.concatenate([e.zeros([1, c], rows.type), rows])
        return rows

    def coordinates(self, grid: Tensor) -> Tensor:
        """Return the coordinates (r, 1, N·P) of a grid."""
        e = self.e
        if self.follows_lengths:
            return e.transpose(e.reshape(grid, [1, self.positions, self.r]), (2, 0, 1))
        # IREE takes the 1 for N.
        by_axis = e.transpose(e.reshape(grid, [self.positions, self.r]), (1, 0))
        return e.reshape(by_axis, [self.r, 1, self.positions])

    def channels_first(self, total: Tensor, c: DimLike) -> Tensor:
        """Return the sums (N·P, C), or (C, N·P) for few channels, with C before P."""
        e = self.e
        if not self.has_few_channels:
            return e.transpose(e.reshape(total, [self.n, e.product(self.out), c]), (0, 2, 1))
        if self.n != 1:
            return e.transpose(e.reshape(total, [c, self.n, e.product(self.out)]), (1, 0, 2))
        return total

    def index(self, position: Tensor, axis: Axis) -> list[Tensor]:
        """Return the rows to read, (group size, N·P) or flat, for each group.

        Args:
            position: the positions of the taps (axes, taps, N·P).
            axis: the axes of X.
        """
        e = self.e
        r = self.r
        pixel = self._inside(position, axis)
        index = pixel.astype(self.index_type)
        if self.is_flat:
            return [self._flat_index(index)]
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1, 1])
        *inner, outer = e.split(index, r, 1, axis=0)
        if self.n != 1:
            by_batch = e.reshape(outer, [self.taps, self.n, e.product(self.out)])
            outer = by_batch + self._first_rows()
            if not self.follows_lengths:
                outer = e.reshape(outer, [self.taps, self.positions])
        tail: list[DimLike] = [self.positions]
        if self.zero_rows.has_zero_row:
            # Row 0 consists of zeros, so the pixels are counted from 1. The factor is 0 if the
            # position is outside of X along any axis, which selects row 0.
            is_inside = e.equal(position, pixel).astype(index.type)
            factors = self._groups(e.split(is_inside, r, 1, axis=0)[::-1], Tensor.__mul__, tail)
            rows = self._groups([outer + 1, *reversed(inner)], Tensor.__add__, tail)
            indices = [row * factor for row, factor in zip(rows, factors, strict=True)]
        else:
            indices = self._groups([outer, *reversed(inner)], Tensor.__add__, tail)
        return [_as_small_constant(index) for index in indices]

    def _inside(self, position: Tensor, axis: Axis) -> Tensor:
        """Return the positions, moved to the nearest pixel or zero."""
        e = self.e
        if self.zero_rows.border:
            return e.minimum(e.maximum(position, 0), axis.length + 1)
        if self.zero_rows.has_zero_row:
            return e.minimum(e.maximum(position, 0), axis.last)
        if self.taps > 1 and not self.mode.pads_taps:
            # The coordinate is inside, but the pixel after it need not be.
            return e.minimum(position, axis.last)
        return position

    def weight(self, weight: Tensor) -> list[Tensor]:
        """Return the weights of each group from those of each axis.

        They are (group size, N·P, 1), or (group size, 1, N·P) for few channels.
        """
        axes = self.e.split(weight, self.r, 1, axis=0)[::-1]
        tail: list[DimLike] = [self.positions, 1]
        if self.has_few_channels:
            tail.reverse()
        return self._groups(axes, Tensor.__mul__, tail)

    def values(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return the rows at these indices: (…, N·P, C), or (…, C, N·P) for few channels."""
        e = self.e
        if rows.type == "str":
            # Of a row of strings, ONNX Runtime up to 1.32 gathers only the first.
            by_channel = e.gather(e.transpose(rows, (1, 0)), index, axis=1)
            values = e.transpose(by_channel, (1, 0) if self.is_flat else (1, 2, 0))
        else:
            values = e.gather(rows, index)
        if not self.has_few_channels:
            return values
        return e.transpose(values, (1, 0) if self.is_flat else (0, 2, 1))

    def sum(self, rows: Tensor, index: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the rows.

        The sum of integers is the first tap plus the weighted differences from it.
        """
        e = self.e
        is_integer = rows.dtype.kind in "iu"
        converted = rows.astype(weights[0].type)
        values = [self.values(converted, group) for group in index]
        first_index = index[0]
        origin = values[0]
        if is_integer:
            if self.group_size > 1:
                first_index = e.gather(first_index, [0])
                origin = e.gather(origin, [0])
            values = [value - origin for value in values]
        terms = [value * weight for value, weight in zip(values, weights, strict=True)]
        if self.group_size > 1:
            terms = [e.sum(term) for term in terms]
        total = reduce(Tensor.__add__, terms)
        if not is_integer:
            return total

        def first_tap() -> Tensor:
            return self.values(rows, first_index).astype("int64")

        return to_integers(e, origin, total, rows.type, first_tap)

    def _numbers(self, dims: Sequence[DimLike]) -> Tensor:
        """Return lengths as one tensor of the indices' type.

        tract cannot multiply an index by a number of the type of a shape, hence the detour.
        """
        return self.e.shape(dims).astype("float64").astype(self.index_type)

    def _strides(self, first_axes: Sequence[int]) -> Tensor:
        """Return the number of rows of all axes from each of ``first_axes`` on."""
        e = self.e
        if self.follows_lengths:
            return self._numbers([e.product(self.padded[axis:]) for axis in first_axes])
        padded: list[DimLike] = []
        for length in self.lengths:
            number = length if isinstance(length, int) else self._numbers([length])
            padded.append(number + 2 * self.zero_rows.border)
        totals = [e.product(padded[axis:]) for axis in first_axes]
        parts = [self._numbers([total]) if isinstance(total, int) else total for total in totals]
        return e.concatenate(parts)

    def _first_rows(self) -> Tensor:
        """Return the first row of each batch, (N, 1)."""
        e = self.e
        if not self.follows_lengths and isinstance(self.n, Tensor):
            stride = e.reshape(self._strides([0]), [1, 1])
            return e.op("CumSum", e.expand(stride, [self.n, 1]), e.constant(0), exclusive=1)
        batch = e.op("Range", 0, e.gather(e.shape([self.n]), 0), 1).astype(self.index_type)
        return e.reshape(batch * self._strides([0]), [-1, 1])

    def _flat_index(self, index: Tensor) -> Tensor:
        """Return the rows to read, (N·P,), for an ``index`` (axes, 1, N·P).

        IREE cannot split such an index.
        """
        e = self.e
        r = self.r
        index = e.reshape(index, [r, self.positions])
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1])
        parts = [e.reshape(part, [-1]) for part in e.split(index, r, 1, axis=0)]
        if self.n != 1:
            first_rows = e.reshape(self._first_rows(), [self.n, *[1] * r])
            parts.append(e.reshape(e.expand(first_rows, [self.n, *self.out]), [-1]))
        return reduce(Tensor.__add__, parts)

    def _groups(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> list[Tensor]:
        """Return all combinations of the axes' taps in groups.

        Args:
            axes: the taps (1, taps, N·P) of each axis, outermost first.
            combine: combines the taps of two axes.
            tail: the shape of a group is (group size, *tail).
        """
        return self._outer_groups(axes, self.outer_axes, combine, tail)

    def _outer_groups(
        self,
        axes: Sequence[Tensor],
        n_outer: int,
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> list[Tensor]:
        """Like :meth:`_groups`, but with a group for each combination of the outer axes' taps.

        No Split has more outputs than the runtime allows.
        """
        e = self.e
        n_groups = self.taps**n_outer
        group_size = self.taps ** (len(axes) - n_outer)
        if n_groups <= e.runtime.max_split_outputs or n_outer <= 1:
            combined = self._combined(axes, combine, tail)
            return e.split(combined, n_groups, group_size, axis=0)
        inner = self._combined(axes[n_outer - 1 :], combine, tail)
        outer_rows = self._outer_groups(axes[: n_outer - 1], n_outer - 1, combine, tail)
        groups = []
        for outer_row in outer_rows:
            groups += e.split(combine(outer_row, inner), self.taps, group_size, axis=0)
        return groups

    def _combined(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> Tensor:
        """Return all combinations of the axes' taps, (combinations, *tail)."""
        e = self.e
        total = axes[0]
        n_combinations = self.taps
        for axis_taps in axes[1:]:
            total = combine(e.reshape(total, [n_combinations, 1, self.positions]), axis_taps)
            n_combinations *= self.taps
        return e.reshape(total, [n_combinations, *tail])


def _as_small_constant(index: Tensor) -> Tensor:
    """Return ``index`` as int32 if it is constant and fits, which halves its size."""
    if index.constant is not None and index.constant.max() < 2**31:
        return index.astype("int32")
    return index
