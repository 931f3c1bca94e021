"""The numbers of the rows of X that the taps of a lowered GridSample read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ...graph.expressions import DimLike, Expressions, Tensor
from ...reference.coordinates import Axis, Padding
from ...reference.taps import Mode, pads_taps
from .tap_groups import TapGroups
from .zero_rows import ZeroRows


class RowNumbers:
    """The rows of all batches, numbered along one axis, and those that the taps read.

    IREE does not follow shapes that are computed from lengths of a run: it does not split or gather
    by an index with an axis of 1 next to an unknown axis, and takes the 1 for N. For such runtimes,
    tensors are reshaped to avoid these axes.

    Args:
        mode: determines the taps on each axis.
        n_batches: N.
        lengths: (D1, …, Dr).
        output_lengths: (D1_out, …, Dr_out).
        zero_rows: the zeros among the rows of X.

    Attributes:
        n_positions: N·P, the number of output positions of all batches.
        padded_lengths: D1, …, Dr with the zeros around them.
        tap_groups: the groups of taps.
        is_flat: whether the row numbers are (N·P,), without an axis for the taps of a group.
    """

    def __init__(
        self,
        e: Expressions,
        mode: Mode,
        padding: Padding,
        *,
        n_batches: DimLike,
        lengths: Sequence[DimLike],
        output_lengths: Sequence[DimLike],
        zero_rows: ZeroRows,
    ) -> None:
        self._e = e
        self._mode = mode
        self._padding = padding
        self._n_batches = n_batches
        self._lengths = lengths
        self._output_lengths = output_lengths
        self._zero_rows = zero_rows
        self._r = len(lengths)
        self._computes_shapes = e.runtime.computes_shapes
        self.n_positions = e.product([n_batches, *output_lengths])
        self.padded_lengths = [length + 2 * zero_rows.border for length in lengths]
        self.tap_groups = TapGroups(e, mode.taps, self._r, self.n_positions)
        self.is_flat = mode.taps == 1 and not self._computes_shapes
        # int32 is faster. It is used where it is known to suffice.
        total = e.product([n_batches, *self.padded_lengths])
        is_small = isinstance(total, int) and total < 2**31
        is_int32 = is_small or not e.runtime.has_int64_indices
        self._index_type = "int32" if is_int32 else "int64"

    def row_indices(self, position: Tensor, axis: Axis) -> list[Tensor]:
        """Return the numbers of the rows to read, (group size, N·P) or (N·P,), for each group.

        Args:
            position: the positions of the taps (axes, taps, N·P).
        """
        e = self._e
        r = self._r
        pixel = self._inside(position, axis)
        index = pixel.astype(self._index_type)
        if self.is_flat:
            return [self._flat_index(index)]
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1, 1])
        *inner, outer = e.split(index, r, 1, axis=0)
        if self._n_batches != 1:
            by_batch = e.reshape(
                outer, [self._mode.taps, self._n_batches, e.product(self._output_lengths)]
            )
            outer = by_batch + self._first_rows()
            if not self._computes_shapes:
                outer = e.reshape(outer, [self._mode.taps, self.n_positions])
        group_tail: list[DimLike] = [self.n_positions]
        if self._zero_rows.has_zero_row:
            # Row 0 consists of zeros, so the pixels are counted from 1. The factor is 0 if the
            # position is outside of X along any axis, which selects row 0.
            is_inside = e.equal(position, pixel).astype(index.type)
            factors = self.tap_groups.combined_groups(
                e.split(is_inside, r, 1, axis=0)[::-1], Tensor.__mul__, group_tail
            )
            rows = self.tap_groups.combined_groups(
                [outer + 1, *reversed(inner)], Tensor.__add__, group_tail
            )
            indices = [row * factor for row, factor in zip(rows, factors, strict=True)]
        else:
            indices = self.tap_groups.combined_groups(
                [outer, *reversed(inner)], Tensor.__add__, group_tail
            )
        return [_as_small_constant(index) for index in indices]

    def _inside(self, position: Tensor, axis: Axis) -> Tensor:
        """Return the positions, moved to the nearest pixel or zero."""
        e = self._e
        if self._zero_rows.border:
            return e.minimum(e.maximum(position, 0), axis.length + 1)
        if self._zero_rows.has_zero_row:
            return e.minimum(e.maximum(position, 0), axis.last)
        if pads_taps(self._mode, self._padding):
            return position
        # The coordinate is inside, but pixels before or after it need not be.
        if self._mode.offsets[0] < 0:
            position = e.maximum(position, 0)
        if self._mode.offsets[-1] > 0:
            position = e.minimum(position, axis.last)
        return position

    def _strides(self, first_axes: Sequence[int]) -> Tensor:
        """Return the number of rows of all axes from each of ``first_axes`` on."""
        if not self._computes_shapes:
            return self._strides_without_shapes(first_axes)
        rows_per_step = [self._e.product(self.padded_lengths[axis:]) for axis in first_axes]
        return self._as_index_type(rows_per_step)

    def _strides_without_shapes(self, first_axes: Sequence[int]) -> Tensor:
        """Return the strides for a runtime that does not follow computed shapes.

        Lengths that are known only in a run are converted to the indices' type before they are
        multiplied, so that their products are not computed as shapes.
        """
        e = self._e
        padded: list[DimLike] = []
        for length in self._lengths:
            number = length if isinstance(length, int) else self._as_index_type([length])
            padded.append(number + 2 * self._zero_rows.border)
        rows_per_step = [e.product(padded[axis:]) for axis in first_axes]
        strides = [
            self._as_index_type([rows]) if isinstance(rows, int) else rows for rows in rows_per_step
        ]
        return e.concatenate(strides)

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
        index = e.reshape(index, [r, self.n_positions])
        if r > 1:
            index = index * e.reshape(self._strides(range(r, 0, -1)), [r, 1])
        parts = [e.reshape(part, [-1]) for part in e.split(index, r, 1, axis=0)]
        if self._n_batches != 1:
            first_rows = e.reshape(self._first_rows(), [self._n_batches, *[1] * r])
            parts.append(
                e.reshape(e.expand(first_rows, [self._n_batches, *self._output_lengths]), [-1])
            )
        return reduce(Tensor.__add__, parts)

    def _as_index_type(self, dims: Sequence[DimLike]) -> Tensor:
        """Return lengths as one tensor of the indices' type.

        tract cannot multiply an index by a number of the type of a shape, hence the detour.
        """
        return self._e.shape(dims).astype("float64").astype(self._index_type)


def _as_small_constant(index: Tensor) -> Tensor:
    """Return ``index`` as int32 if it is constant and fits, which halves its size."""
    if index.constant is not None and index.constant.max() < 2**31:
        return index.astype("int32")
    return index
