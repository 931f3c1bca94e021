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

    IREE does not follow shapes that are computed from lengths of a run: it does not split or gather
    by an index with an axis of 1 next to an unknown axis, and takes the 1 for N. For such runtimes,
    ``_computes_shapes`` is false, and tensors are reshaped to avoid these axes.

    Args:
        e: writes the nodes.
        mode: determines the taps on each axis.
        sampled_shape: (N, C, D1, …, Dr).
        output_lengths: (D1_out, …, Dr_out).
        zero_rows: the zeros among the rows of X.

    Attributes:
        mode: the mode.
        zero_rows: the zeros among the rows of X.
    """

    def __init__(
        self,
        e: Expressions,
        mode: Mode,
        sampled_shape: Sequence[DimLike],
        output_lengths: list[DimLike],
        zero_rows: ZeroRows,
    ) -> None:
        self._e = e
        self.mode = mode
        n_batches, channels, *lengths = sampled_shape
        self._n_batches = n_batches
        self._lengths = lengths
        self._output_lengths = output_lengths
        self.zero_rows = zero_rows
        self._r = len(lengths)
        self._taps = mode.taps
        self._n_positions = e.product([n_batches, *output_lengths])  # N·P
        # D1, …, Dr with the zeros around them
        self._padded = [length + 2 * zero_rows.border for length in lengths]
        # With few channels, values (…, N·P, C) are weighted as (…, C, N·P).
        self._has_few_channels = isinstance(channels, int) and channels <= MAX_FEW_CHANNELS
        # Whether the runtime follows shapes that are computed from lengths of a run.
        self._computes_shapes = e.runtime.computes_shapes
        self._is_flat = self._taps == 1 and not self._computes_shapes
        # The number of outer axes of which each combination of taps is a group.
        max_gathers = e.runtime.max_gathers
        self._n_outer_axes = max(
            axes for axes in range(self._r + 1) if self._taps**axes <= max_gathers
        )
        # The number of taps in a group.
        self._group_size = int(self._taps ** (self._r - self._n_outer_axes))
        # int32 is faster. It is used where it is known to suffice.
        total = e.product([n_batches, *self._padded])
        is_small = isinstance(total, int) and total < 2**31
        is_int32 = is_small or not e.runtime.has_int64_indices
        self._index_type = "int32" if is_int32 else "int64"

    def joined_rows(self, rows: Tensor, batches: DimLike, channels: DimLike) -> Tensor:
        """Return the rows of all batches along one axis, after the row of zeros if there is one."""
        e = self._e
        rows = e.reshape(rows, [e.product([batches, *self._padded]), channels])
        if self.zero_rows.has_zero_row:
            rows = e.concatenate([e.zeros([1, channels], rows.type), rows])
        return rows

    def to_coordinates(self, grid: Tensor) -> Tensor:
        """Return the coordinates (r, 1, N·P) of a grid."""
        e = self._e
        if self._computes_shapes:
            return e.transpose(e.reshape(grid, [1, self._n_positions, self._r]), (2, 0, 1))
        by_axis = e.transpose(e.reshape(grid, [self._n_positions, self._r]), (1, 0))
        return e.reshape(by_axis, [self._r, 1, self._n_positions])

    def channels_first(self, total: Tensor, channels: DimLike) -> Tensor:
        """Return the sums (N·P, C), or (C, N·P) for few channels, with C before P."""
        e = self._e
        if self._has_few_channels and self._n_batches == 1:
            return total
        n_outputs = e.product(self._output_lengths)  # P
        if self._has_few_channels:
            by_channel = e.reshape(total, [channels, self._n_batches, n_outputs])
            return e.transpose(by_channel, (1, 0, 2))
        by_batch = e.reshape(total, [self._n_batches, n_outputs, channels])
        return e.transpose(by_batch, (0, 2, 1))

    def row_indices(self, position: Tensor, axis: Axis) -> list[Tensor]:
        """Return the rows to read, (group size, N·P) or flat, for each group.

        Args:
            position: the positions of the taps (axes, taps, N·P).
            axis: the axes of X.
        """
        e = self._e
        r = self._r
        pixel = self._inside(position, axis)
        index = pixel.astype(self._index_type)
        if self._is_flat:
            return [self._flat_index(index)]
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1, 1])
        *inner, outer = e.split(index, r, 1, axis=0)
        if self._n_batches != 1:
            by_batch = e.reshape(
                outer, [self._taps, self._n_batches, e.product(self._output_lengths)]
            )
            outer = by_batch + self._first_rows()
            if not self._computes_shapes:
                outer = e.reshape(outer, [self._taps, self._n_positions])
        tail: list[DimLike] = [self._n_positions]
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
        e = self._e
        if self.zero_rows.border:
            return e.minimum(e.maximum(position, 0), axis.length + 1)
        if self.zero_rows.has_zero_row:
            return e.minimum(e.maximum(position, 0), axis.last)
        if self._taps > 1 and not self.mode.pads_taps:
            # The coordinate is inside, but the pixel after it need not be.
            return e.minimum(position, axis.last)
        return position

    def tap_weights(self, weight: Tensor) -> list[Tensor]:
        """Return the weights of each group from those of each axis.

        They are (group size, N·P, 1), or (group size, 1, N·P) for few channels.
        """
        axes = self._e.split(weight, self._r, 1, axis=0)[::-1]
        tail: list[DimLike] = [self._n_positions, 1]
        if self._has_few_channels:
            tail.reverse()
        return self._groups(axes, Tensor.__mul__, tail)

    def gathered(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return the rows at these indices: (…, N·P, C), or (…, C, N·P) for few channels."""
        e = self._e
        if rows.type == "str":
            # Of a row of strings, ONNX Runtime up to 1.32 gathers only the first.
            by_channel = e.gather(e.transpose(rows, (1, 0)), index, axis=1)
            values = e.transpose(by_channel, (1, 0) if self._is_flat else (1, 2, 0))
        else:
            values = e.gather(rows, index)
        if not self._has_few_channels:
            return values
        return e.transpose(values, (1, 0) if self._is_flat else (0, 2, 1))

    def weighted_sum(
        self, rows: Tensor, index: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> Tensor:
        """Return the weighted sum of the rows.

        The sum of integers is the first tap plus the weighted differences from it.
        """
        e = self._e
        is_integer = rows.dtype.kind in "iu"
        converted = rows.astype(weights[0].type)
        values = [self.gathered(converted, group) for group in index]
        first_index = index[0]
        origin = values[0]
        if is_integer:
            if self._group_size > 1:
                first_index = e.gather(first_index, [0])
                origin = e.gather(origin, [0])
            values = [value - origin for value in values]
        terms = [value * weight for value, weight in zip(values, weights, strict=True)]
        if self._group_size > 1:
            terms = [e.sum(term) for term in terms]
        total = reduce(Tensor.__add__, terms)
        if not is_integer:
            return total

        def first_tap() -> Tensor:
            return self.gathered(rows, first_index).astype("int64")

        return to_integers(e, origin, total, rows.type, first_tap)

    def _as_index_type(self, dims: Sequence[DimLike]) -> Tensor:
        """Return lengths as one tensor of the indices' type.

        tract cannot multiply an index by a number of the type of a shape, hence the detour.
        """
        return self._e.shape(dims).astype("float64").astype(self._index_type)

    def _strides(self, first_axes: Sequence[int]) -> Tensor:
        """Return the number of rows of all axes from each of ``first_axes`` on."""
        e = self._e
        if self._computes_shapes:
            return self._as_index_type([e.product(self._padded[axis:]) for axis in first_axes])
        padded: list[DimLike] = []
        for length in self._lengths:
            number = length if isinstance(length, int) else self._as_index_type([length])
            padded.append(number + 2 * self.zero_rows.border)
        totals = [e.product(padded[axis:]) for axis in first_axes]
        parts = [
            self._as_index_type([total]) if isinstance(total, int) else total for total in totals
        ]
        return e.concatenate(parts)

    def _first_rows(self) -> Tensor:
        """Return the first row of each batch, (N, 1)."""
        e = self._e
        if not self._computes_shapes and isinstance(self._n_batches, Tensor):
            stride = e.reshape(self._strides([0]), [1, 1])
            return e.op(
                "CumSum", e.expand(stride, [self._n_batches, 1]), e.constant(0), exclusive=1
            )
        batch = e.op("Range", 0, e.gather(e.shape([self._n_batches]), 0), 1).astype(
            self._index_type
        )
        return e.reshape(batch * self._strides([0]), [-1, 1])

    def _flat_index(self, index: Tensor) -> Tensor:
        """Return the rows to read, (N·P,), for an ``index`` (axes, 1, N·P)."""
        e = self._e
        r = self._r
        index = e.reshape(index, [r, self._n_positions])
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1])
        parts = [e.reshape(part, [-1]) for part in e.split(index, r, 1, axis=0)]
        if self._n_batches != 1:
            first_rows = e.reshape(self._first_rows(), [self._n_batches, *[1] * r])
            parts.append(
                e.reshape(e.expand(first_rows, [self._n_batches, *self._output_lengths]), [-1])
            )
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
        return self._outer_groups(axes, self._n_outer_axes, combine, tail)

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
        e = self._e
        n_groups = self._taps**n_outer
        group_size = self._taps ** (len(axes) - n_outer)
        if n_groups <= e.runtime.max_split_outputs or n_outer <= 1:
            combined = self._combined(axes, combine, tail)
            return e.split(combined, n_groups, group_size, axis=0)
        inner = self._combined(axes[n_outer - 1 :], combine, tail)
        outer_rows = self._outer_groups(axes[: n_outer - 1], n_outer - 1, combine, tail)
        groups = []
        for outer_row in outer_rows:
            groups += e.split(combine(outer_row, inner), self._taps, group_size, axis=0)
        return groups

    def _combined(
        self,
        axes: Sequence[Tensor],
        combine: Callable[..., Tensor],
        tail: list[DimLike],
    ) -> Tensor:
        """Return all combinations of the axes' taps, (combinations, *tail)."""
        e = self._e
        total = axes[0]
        n_combinations = self._taps
        for axis_taps in axes[1:]:
            total = combine(e.reshape(total, [n_combinations, 1, self._n_positions]), axis_taps)
            n_combinations *= self._taps
        return e.reshape(total, [n_combinations, *tail])


def _as_small_constant(index: Tensor) -> Tensor:
    """Return ``index`` as int32 if it is constant and fits, which halves its size."""
    if index.constant is not None and index.constant.max() < 2**31:
        return index.astype("int32")
    return index
