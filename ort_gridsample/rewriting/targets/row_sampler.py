"""The taps of a lowered GridSample, as rows of X that are gathered, weighted and summed.

X is a list of rows: one row for each pixel, with all its channels. A tap is a row number
(:mod:`.row_numbers`) and a weight. With zeros padding, a tap outside of X reads a row of zeros
(:mod:`.zero_rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ...graph.expressions import DimLike, Expressions, Tensor
from ...reference.coordinates import Padding
from ...reference.sums import to_integers
from ...reference.taps import Mode
from .row_numbers import RowNumbers
from .zero_rows import ZeroRows

#: Up to this number of channels, gathered values are transposed before they are weighted: operators
#: on tensors whose last axis is short are slow, in ONNX Runtime by a factor of 2 for 3 channels.
MAX_FEW_CHANNELS = 8


class RowSampler:
    """The taps of all P output positions of all N batches.

    Tensors of the spatial axes list these first, innermost first. One Gather reads each group of
    taps (:class:`.TapGroups`).

    Args:
        mode: determines the taps on each axis.
        sampled_shape: (N, C, D1, …, Dr).
        output_lengths: (D1_out, …, Dr_out).
        zero_rows: the zeros among the rows of X.

    Attributes:
        mode: the mode.
        zero_rows: the zeros among the rows of X.
        row_numbers: the numbers of the rows that the taps read.
    """

    def __init__(
        self,
        e: Expressions,
        mode: Mode,
        padding: Padding,
        sampled_shape: Sequence[DimLike],
        output_lengths: list[DimLike],
        zero_rows: ZeroRows,
    ) -> None:
        self._e = e
        self.mode = mode
        n_batches, channels, *lengths = sampled_shape
        self._n_batches = n_batches
        self._output_lengths = output_lengths
        self.zero_rows = zero_rows
        self._r = len(lengths)
        self.row_numbers = RowNumbers(
            e,
            mode,
            padding,
            n_batches=n_batches,
            lengths=lengths,
            output_lengths=output_lengths,
            zero_rows=zero_rows,
        )
        self._n_positions = self.row_numbers.n_positions
        self._tap_groups = self.row_numbers.tap_groups
        # With few channels, values (…, N·P, C) are weighted as (…, C, N·P).
        self._has_few_channels = isinstance(channels, int) and channels <= MAX_FEW_CHANNELS

    def joined_rows(self, rows: Tensor, batches: DimLike, channels: DimLike) -> Tensor:
        """Return the rows of all batches along one axis, after the row of zeros if there is one."""
        e = self._e
        rows = e.reshape(rows, [e.product([batches, *self.row_numbers.padded_lengths]), channels])
        if self.zero_rows.has_zero_row:
            rows = e.concatenate([e.zeros([1, channels], rows.type), rows])
        return rows

    def to_coordinates(self, grid: Tensor) -> Tensor:
        """Return the coordinates (r, 1, N·P) of a grid."""
        e = self._e
        if e.runtime.computes_shapes:
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

    def tap_weights(self, weight: Tensor) -> list[Tensor]:
        """Return the weights of each group from those of each axis.

        They are (group size, N·P, 1), or (group size, 1, N·P) for few channels.
        """
        axes = self._e.split(weight, self._r, 1, axis=0)[::-1]
        group_tail: list[DimLike] = [self._n_positions, 1]
        if self._has_few_channels:
            group_tail.reverse()
        return self._tap_groups.combined_groups(axes, Tensor.__mul__, group_tail)

    def gathered(self, rows: Tensor, index: Tensor) -> Tensor:
        """Return the rows at these indices: (…, N·P, C), or (…, C, N·P) for few channels."""
        e = self._e
        if rows.type == "str":
            # Of a row of strings, ONNX Runtime up to 1.32 gathers only the first.
            by_channel = e.gather(e.transpose(rows, (1, 0)), index, axis=1)
            values = e.transpose(by_channel, (1, 0) if self.row_numbers.is_flat else (1, 2, 0))
        else:
            values = e.gather(rows, index)
        if not self._has_few_channels:
            return values
        return e.transpose(values, (1, 0) if self.row_numbers.is_flat else (0, 2, 1))

    def weighted_sum(
        self, rows: Tensor, index_groups: Sequence[Tensor], weight_groups: Sequence[Tensor]
    ) -> Tensor:
        """Return the weighted sum of the rows.

        The sum of integers is the first tap plus the weighted differences from it.
        """
        e = self._e
        is_integer = rows.dtype.kind in "iu"
        converted = rows.astype(weight_groups[0].type)
        values = [self.gathered(converted, group) for group in index_groups]
        origin_index = index_groups[0]
        origin = values[0]
        if is_integer:
            if self._tap_groups.group_size > 1:
                origin_index = e.gather(origin_index, [0])
                origin = e.gather(origin, [0])
            values = [value - origin for value in values]
        terms = [value * weight for value, weight in zip(values, weight_groups, strict=True)]
        if self._tap_groups.group_size > 1:
            terms = [e.sum(term) for term in terms]
        total = reduce(Tensor.__add__, terms)
        if not is_integer:
            return total

        def first_tap() -> Tensor:
            return self.gathered(rows, origin_index).astype("int64")

        return to_integers(e, origin, total, rows.type, first_tap)
