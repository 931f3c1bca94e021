"""Vectorized sums over taps, of many positions or of rows of channels, and transposition of blocks.

This module generates LLVM instructions through Numba's intrinsics. LLVM does not vectorize the
equivalent loops, which are 3 to 8 times as slow.

An intrinsic is a function of Numba types. It returns a signature and a function ``generate``, which
emits the instructions for a call. Compiled code calls the intrinsic with values, without its first
parameter, Numba's context. Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions,
and a "value", "pointer" or "vector" is an LLVM value that exists when the kernel runs.

Arrays of uint16 and int16 may be the bits of halves: see :mod:`.halves`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import target
from .halves import BFLOAT16_BITS
from .structs import CACHE_LINE

#: Whether the processor has fused multiply-add and vectors so wide that it pays off to gather
#: pixels into them from arbitrary addresses.
CPU_HAS_FAST_VECTORS = target.has("avx2", "fma")
#: The sizes of vectors in bytes. Wide vectors are faster, but a processor that has them slows down
#: by a tenth for a while after each use. A processor without them splits them in two.
WIDE_VECTOR = 64
NARROW_VECTOR = 32
#: The layouts of the taps of a tile. GATHERED: the table has an index for each tap. CONTIGUOUS: the
#: table has the index of the first tap, and offsets of the others; each two taps are adjacent.
#: MASKED: as CONTIGUOUS, but a tap whose weight is NaN is skipped.
GATHERED, MASKED, CONTIGUOUS = range(3)
#: An index with this bit is a tap outside, which counts as 0. Every other index is a pixel of X.
OUTSIDE_BIT = np.uint32(1 << 31)
#: The numbers of channels of a panel: a vector of the processor, or a cache line.
NARROW_PANEL = 4
WIDE_PANEL = 16
#: Rows are prefetched this many positions ahead, which doubles the speed on random grids.
ROWS_AHEAD = 8
#: If there are at most FEW_TAPS taps, pixels are prefetched for PIXELS_AHEAD positions ahead, for
#: one of PREFETCH_STEP positions: 0.8 of the time in linear and nearest at 1080p. With more taps,
#: computing takes as long as the memory accesses.
PIXELS_AHEAD = 128
PREFETCH_STEP = 4
FEW_TAPS = 8
#: In mode nearest, one pixel is prefetched for this many positions of a smooth grid.
SMOOTH_STEP = 8
#: The number of positions that :func:`list_outside` examines at a time.
LISTED_AT_ONCE = 16
#: The numbers of channels that deformable attention adds up at once. It uses the largest one that
#: does not exceed the number of remaining channels.
ATTENTION_WIDTHS = 64, 32, 16, 4, 1

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
#: LLVM's name of an element type -> its size, which is also its alignment in memory. Vectors are
#: not aligned better than their elements.
_ITEMSIZE = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}


# Functions for kernels


def _sum_function(size: int) -> Any:
    """Return a function for kernels that adds up the taps of whole vectors.

    The classes below generate its instructions: :class:`_PositionSums` or :class:`_IntegerSums` if
    X is a channel, :class:`_ChannelSums` if X is a panel.

    Args:
        size: the size of a vector: in bytes for a channel, the number of channels for a panel.
    """

    @intrinsic
    def vector_sums(
        typing_context: Any,
        X: Any,
        index: Any,
        offsets: Any,
        layout: Any,
        weight: Any,
        begin: Any,
        end: Any,
        Y: Any,
        shift: Any,
    ) -> Any:
        """Add up the taps of positions ``begin`` to ``end``; write to Y, from begin + shift on."""
        sums_class = _PositionSums
        if X.ndim == 2:
            sums_class = _ChannelSums
        elif isinstance(Y.dtype, types.Integer):
            sums_class = _IntegerSums

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            call = _SumCall(context, builder, signature, arguments)
            for table_layout in sums_class.layouts:
                with _if_equal(builder, call.layout, table_layout):
                    sums_class(builder, call, size, table_layout).write()
            return context.get_dummy_value()

        return types.void(X, index, offsets, layout, weight, begin, end, Y, shift), generate

    return vector_sums


@intrinsic
def sum_addressed(
    typing_context: Any,
    X: Any,
    addresses: Any,
    weights: Any,
    first: Any,
    points: Any,
    Y: Any,
) -> Any:
    """Add up the weighted taps of a head of deformable attention.

    Args:
        typing_context: Numba's; callers omit it.
        X: an array of the type of the channels at the addresses.
        addresses: the address of each tap's channels (taps, ≥ first + 2 · points).
        weights: the weight of each tap, of the same shape.
        first: the first column of the head.
        points: the number of columns of the head. As many columns after them are prefetched.
        Y: the result (C,).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        X_array, table, weight, Y_array = _arrays(context, builder, arguments, signature.args)
        first_column = arguments[3]
        n_columns = arguments[4]
        pixel_type = X_array.data.type.pointee
        weight_type = weight.data.type.pointee
        taps, columns = cgutils.unpack_tuple(builder, table.shape)
        (channels,) = cgutils.unpack_tuple(builder, Y_array.shape)
        elements_per_line = CACHE_LINE // _ITEMSIZE[str(pixel_type)]

        def add_up(width: int, channel: Any) -> None:
            """Add up ``width`` channels from ``channel`` on."""
            pixels = ir.VectorType(pixel_type, width)
            sums = ir.VectorType(weight_type, width)
            total = cgutils.alloca_once_value(builder, _zeros(sums))

            def channels_of(entry: Any) -> Any:
                """Return a pointer to the channels of an entry of the table."""
                address = builder.load(builder.gep(table.data, [entry]))
                return builder.gep(builder.inttoptr(address, pixel_type.as_pointer()), [channel])

            with (
                cgutils.for_range(builder, taps) as rows,
                cgutils.for_range(builder, n_columns) as loop,
            ):
                row = builder.mul(rows.index, columns)
                entry = builder.add(builder.add(row, first_column), loop.index)
                next_head = channels_of(builder.add(entry, n_columns))
                for ahead in range(0, width, elements_per_line):
                    _prefetch(builder, builder.gep(next_head, [_INT64(ahead)]))
                values = _load(builder, channels_of(entry), pixels)
                if pixel_type != weight_type:
                    values = _widened(builder, values, X.dtype)
                tap_weight = builder.load(builder.gep(weight.data, [entry]))
                product = builder.fmul(
                    _all_lanes(builder, tap_weight, sums), values, flags=("contract",)
                )
                old_total = builder.load(total)
                builder.store(builder.fadd(old_total, product, flags=("contract",)), total)
            _store(builder, builder.load(total), builder.gep(Y_array.data, [channel]))

        begin = _INT64(0)
        for width in ATTENTION_WIDTHS:
            step = _INT64(width)
            channels_left = builder.sub(channels, begin)
            with cgutils.for_range(builder, builder.udiv(channels_left, step)) as loop:
                add_up(width, builder.add(begin, builder.mul(loop.index, step)))
            begin = builder.sub(channels, builder.urem(channels_left, step))
        return context.get_dummy_value()

    return types.void(X, addresses, weights, first, points, Y), generate


@intrinsic
def prefetch(typing_context: Any, x: Any, pixel: Any) -> Any:
    """Prefetch a pixel of the channel ``x`` (S,) for reading."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (channel,) = _arrays(context, builder, arguments[:1], signature.args[:1])
        _prefetch(builder, builder.gep(channel.data, [builder.zext(arguments[1], _INT64)]))
        return context.get_dummy_value()

    return types.void(x, types.uint32), generate


@intrinsic
def copy_pixels(
    typing_context: Any,
    x: Any,
    index: Any,
    step: Any,
    begin: Any,
    end: Any,
    y: Any,
    next_x: Any,
) -> Any:
    """Copy pixels of a channel, and prefetch pixels of the next channel.

    Args:
        typing_context: Numba's; callers omit it.
        x: the channel (S,).
        index: the pixel of each position (≥ P,).
        step: 1 or SMOOTH_STEP. One pixel is prefetched for so many positions.
        begin: the first position.
        end: the position after the last one. The number of positions is a multiple of ``step``.
        y: where the pixels are written (≥ P,).
        next_x: the next channel (S,).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = _arrays(context, builder, arguments, signature.args)
        channel, index_array, to_array, next_channel = arrays
        _, _, step, begin, end, _, _ = arguments
        for size in (1, SMOOTH_STEP):
            with (
                _if_equal(builder, step, size),
                cgutils.for_range_slice(builder, begin, end, _INT64(size), _INT64) as loop,
            ):
                position, _ = loop
                for number in range(size):
                    target_position = builder.add(position, _INT64(number))
                    entry = builder.load(builder.gep(index_array.data, [target_position]))
                    pixel = builder.zext(entry, _INT64)
                    if number == 0:
                        _prefetch(builder, builder.gep(next_channel.data, [pixel]))
                    value = builder.load(builder.gep(channel.data, [pixel]))
                    builder.store(value, builder.gep(to_array.data, [target_position]))
        return context.get_dummy_value()

    return types.void(x, index, step, begin, end, y, next_x), generate


@intrinsic
def list_outside(typing_context: Any, index: Any, inside: Any, positions: Any, listed: Any) -> Any:
    """Separate the positions that are inside of X from the others; return the number of the others.

    Args:
        typing_context: Numba's; callers omit it.
        index: the pixel of each position (≥ P + LISTED_AT_ONCE,).
        inside: where the pixels are written, with pixel 0 for an index outside. It has the shape of
            ``index``.
        positions: P.
        listed: where the positions outside are listed (≥ P,). It may be ``index``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = _arrays(context, builder, arguments, signature.args)
        index_array, inside_array, listed_array = arrays
        n_positions = arguments[2]
        lanes = ir.IntType(LISTED_AT_ONCE)
        step = _INT64(LISTED_AT_ONCE)
        vector = ir.VectorType(_INT32, LISTED_AT_ONCE)
        zeros = ir.Constant(vector, [0] * LISTED_AT_ONCE)
        count = cgutils.alloca_once_value(builder, _INT64(0))
        with cgutils.for_range_slice(builder, _INT64(0), n_positions, step, step.type) as loop:
            position, _ = loop
            pixels = _load(builder, builder.gep(index_array.data, [position]), vector)
            is_inside = builder.icmp_signed(">=", pixels, zeros)
            values = builder.select(is_inside, pixels, zeros)
            _store(builder, values, builder.gep(inside_array.data, [position]))
            # One bit per position outside, without those after the last position.
            bits = builder.bitcast(builder.not_(is_inside), lanes)
            excess = builder.sub(builder.add(position, step), n_positions)
            has_excess = builder.icmp_signed(">", excess, _INT64(0))
            shift = builder.trunc(builder.select(has_excess, excess, _INT64(0)), lanes)
            bits = builder.and_(bits, builder.lshr(lanes(-1), shift))
            remaining = cgutils.alloca_once_value(builder, bits)
            head = builder.append_basic_block("outside")
            body = builder.append_basic_block("outside.body")
            end = builder.append_basic_block("outside.end")
            builder.branch(head)
            builder.position_at_end(head)
            bits = builder.load(remaining)
            builder.cbranch(builder.icmp_unsigned("!=", bits, lanes(0)), body, end)
            builder.position_at_end(body)
            lane = builder.zext(builder.cttz(bits, ir.IntType(1)(0)), _INT64)
            number = builder.load(count)
            outside = builder.trunc(builder.add(position, lane), _INT32)
            builder.store(outside, builder.gep(listed_array.data, [number]))
            builder.store(builder.add(number, _INT64(1)), count)
            builder.store(builder.and_(bits, builder.sub(bits, lanes(1))), remaining)
            builder.branch(head)
            builder.position_at_end(end)
        return builder.load(count)

    return types.int64(index, inside, positions, listed), generate


@intrinsic
def transpose(
    typing_context: Any,
    source: Any,
    row: Any,
    column: Any,
    destination: Any,
    to_row: Any,
    to_column: Any,
    width: Any,
) -> Any:
    """Copy a square block of ``source`` to ``destination``, transposed.

    Halves are converted to float32.

    Args:
        typing_context: Numba's; callers omit it.
        source: an array of two axes.
        row: the first row of the block in ``source``.
        column: the first column of the block in ``source``.
        destination: an array of two axes.
        to_row: the first row of the block in ``destination``.
        to_column: the first column of the block in ``destination``.
        width: the number of rows and columns of the block, NARROW_PANEL or WIDE_PANEL.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        from_array, to_array = _arrays(context, builder, arguments, signature.args)
        _, first_row, first_column, _, first_to_row, first_to_column, block_width = arguments

        def element(array: Any, row: Any, column: Any) -> Any:
            """Return a pointer to an element of an array."""
            columns = cgutils.unpack_tuple(builder, array.shape)[1]
            return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

        for width in (NARROW_PANEL, WIDE_PANEL):
            with _if_equal(builder, block_width, width):
                vector = ir.VectorType(from_array.data.type.pointee, width)
                rows = []
                for number in range(width):
                    row = builder.add(first_row, _INT64(number))
                    rows.append(_load(builder, element(from_array, row, first_column), vector))
                if from_array.data.type != to_array.data.type:
                    rows = [_widened(builder, halves, signature.args[0].dtype) for halves in rows]
                for number, values in enumerate(_transposed(builder, rows)):
                    to_row = builder.add(first_to_row, _INT64(number))
                    _store(builder, values, element(to_array, to_row, first_to_column))
        return context.get_dummy_value()

    arguments = (source, row, column, destination, to_row, to_column, width)
    return types.void(*arguments), generate


@intrinsic
def copy_rows(
    typing_context: Any,
    panel: Any,
    index: Any,
    position: Any,
    Y: Any,
    to_position: Any,
) -> Any:
    """Copy the rows of a panel for WIDE_PANEL positions to the channels of Y, transposed.

    Rows for as many positions after them are prefetched.

    Args:
        typing_context: Numba's; callers omit it.
        panel: the panel (S + 1, WIDE_PANEL).
        index: the row for each position (≥ P,). An index beyond the last row is the last row.
        position: the first position. As many entries of ``index`` after those that are copied can
            be read.
        Y: where the values are written (C ≤ WIDE_PANEL, P).
        to_position: the first position in ``Y``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = _arrays(context, builder, arguments, signature.args)
        panel_array, index_array, to_array = arrays
        _, _, first_position, _, first_to_position = arguments
        last_row = builder.sub(cgutils.unpack_tuple(builder, panel_array.shape)[0], _INT64(1))
        channels, columns = cgutils.unpack_tuple(builder, to_array.shape)

        def row_of(position: Any) -> Any:
            """Return a pointer to the row of a position."""
            entry = builder.load(builder.gep(index_array.data, [position]))
            row = builder.zext(entry, _INT64)
            is_pixel = builder.icmp_unsigned("<", row, last_row)
            row = builder.select(is_pixel, row, last_row)
            return builder.gep(panel_array.data, [builder.mul(row, _INT64(WIDE_PANEL))])

        vector = ir.VectorType(panel_array.data.type.pointee, WIDE_PANEL)
        rows = []
        for number in range(WIDE_PANEL):
            position = builder.add(first_position, _INT64(number))
            _prefetch(builder, row_of(builder.add(position, _INT64(WIDE_PANEL))))
            rows.append(_load(builder, row_of(position), vector))
        for number, values in enumerate(_transposed(builder, rows)):
            is_channel = builder.icmp_signed("<", _INT64(number), channels)
            with builder.if_then(is_channel, likely=True):
                to_row = builder.mul(_INT64(number), columns)
                element = builder.gep(to_array.data, [builder.add(to_row, first_to_position)])
                _store(builder, values, element)
        return context.get_dummy_value()

    return types.void(panel, index, position, Y, to_position), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Return the columns of ``rows``, which are as many vectors as each has elements.

    Blocks of size 1, 2, 4, … on both sides of the diagonal are exchanged. All remain in registers.
    """
    rows = list(rows)
    width = len(rows)
    lanes = ir.VectorType(_INT32, width)
    size = 1
    while size < width:
        # Of a pair of rows: the lanes of the new first row, and those of the new second row.
        first = [lane + (width - size if lane & size else 0) for lane in range(width)]
        second = [lane + (width if lane & size else size) for lane in range(width)]
        for number in range(width):
            if not number & size:
                upper = rows[number]
                lower = rows[number + size]
                rows[number] = builder.shuffle_vector(upper, lower, ir.Constant(lanes, first))
                exchanged = builder.shuffle_vector(upper, lower, ir.Constant(lanes, second))
                rows[number + size] = exchanged
        size *= 2
    return rows


# Generators of sums over taps


class _SumCall:
    """The arguments of a call of a function that :func:`_sum_function` returns.

    Attributes:
        X: a channel (S,), or a panel (S + 1, W).
        index: the table's pixels (R, columns). The table of a panel has at least ROWS_AHEAD columns
            more than positions.
        offsets: the distances of contiguous taps to the first (R,), in pixels.
        layout: the layout of the table.
        weight: the table's weights (R, columns).
        begin: the first position.
        end: the position after the last one. The positions are whole vectors.
        Y: the output: (≥ end + shift,), or (≥ end + shift, W) for a panel.
        shift: the number that is added to a position to get the position in Y.
        X_type: the Numba type of X's elements.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        arrays = _arrays(context, builder, arguments, signature.args)
        self.X, self.index, self.offsets, self.weight, self.Y = arrays
        _, _, _, self.layout, _, self.begin, self.end, _, self.shift = arguments
        self.X_type = signature.args[0].dtype


class _PositionSums:
    """Generate sums over the taps of a channel. The lanes of a vector are positions.

    Args:
        builder: LLVM's.
        call: the arguments of the generated code.
        size: the size of a vector in bytes.
        layout: the layout of the taps.
    """

    #: The layouts that occur.
    layouts: tuple[int, ...] = (GATHERED, MASKED, CONTIGUOUS)

    def __init__(self, builder: Any, call: _SumCall, size: int, layout: int) -> None:
        self.builder = builder
        self.call = call
        self.layout = layout
        self.taps, self.columns = cgutils.unpack_tuple(builder, call.weight.shape)
        weight_type = call.weight.data.type.pointee
        self.vector = ir.VectorType(weight_type, self.lanes(size, weight_type))

    def lanes(self, size: int, weight_type: Any) -> int:
        """Return the number of lanes of a vector."""
        return max(1, size // _ITEMSIZE[str(weight_type)])

    @property
    def step(self) -> int:
        """The number of positions that are summed at once."""
        return int(self.vector.count)

    @property
    def first_tap(self) -> int:
        """The first tap that is added."""
        return 0

    @property
    def taps_at_once(self) -> int:
        """The number of taps that are added in one pass of the loop."""
        return 1 if self.layout == GATHERED else 2

    def write(self) -> None:
        """Generate the loops over positions and taps."""
        builder = self.builder
        call = self.call
        step = _INT64(self.step)
        with cgutils.for_range_slice(builder, call.begin, call.end, step, step.type) as loop:
            self.position, _ = loop
            self.total = cgutils.alloca_once_value(builder, _zeros(self.vector))
            self.emit_before_taps()
            self._add_taps()
            Y_position = builder.add(self.position, call.shift)
            self.store(builder.load(self.total), Y_position)

    def _add_taps(self) -> None:
        """Generate the loop over the taps of one vector."""
        builder = self.builder
        steps = builder.udiv(self.taps, _INT64(self.taps_at_once))
        with cgutils.for_range(builder, steps, start=_INT64(self.first_tap)) as loop:
            tap = builder.mul(loop.index, _INT64(self.taps_at_once))
            entry = builder.add(builder.mul(tap, self.columns), self.position)
            for values in self.values(tap, entry):
                self._add(self.weights(builder.gep(self.call.weight.data, [entry])), values)
                entry = builder.add(entry, self.columns)
            last_block = builder.basic_block
        # Do not unroll: few taps would run in the remainder of the loop, up to a tenth slower.
        no_unroll = builder.module.add_metadata(["llvm.loop.unroll.disable"])
        metadata = builder.module.add_metadata([no_unroll])
        metadata.operands = (metadata, *metadata.operands)
        last_block.terminator.set_metadata("llvm.loop", metadata)

    def _add(self, weight: Any, values: Any) -> None:
        """Add weighted ``values`` to the total, unless the weight is NaN and the layout MASKED."""
        builder = self.builder
        old_total = builder.load(self.total)
        product = builder.fmul(weight, values, flags=("contract",))
        total = builder.fadd(old_total, product, flags=("contract",))
        if self.layout == MASKED:
            has_weight = builder.fcmp_ordered("ord", weight, weight)
            total = builder.select(has_weight, total, old_total)
        builder.store(total, self.total)

    def emit_before_taps(self) -> None:
        """Generate what precedes the first tap of a vector."""
        if self.layout == GATHERED:
            return
        self.first_pixels = self.load_vector(self.call.index, self.position, _INT32)
        with self.builder.if_then(self.builder.icmp_unsigned("<=", self.taps, _INT64(FEW_TAPS))):
            self._prefetch_pixels()

    def _prefetch_pixels(self) -> None:
        """Prefetch the first and the last tap of some positions ahead."""
        builder = self.builder
        call = self.call
        last_tap = builder.sub(self.taps, _INT64(1))
        last_offset = builder.load(builder.gep(call.offsets.data, [last_tap]))
        for lane in range(0, self.vector.count, PREFETCH_STEP):
            ahead = builder.add(self.position, _INT64(PIXELS_AHEAD + lane))
            is_in_table = builder.icmp_unsigned("<", ahead, self.columns)
            entry = builder.select(is_in_table, ahead, self.position)
            pixel = builder.load(builder.gep(call.index.data, [entry]))
            first = builder.gep(call.X.data, [builder.zext(pixel, _INT64)])
            _prefetch(builder, first)
            _prefetch(builder, builder.gep(first, [last_offset]))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        """Yield the values of as many taps as are added at once, from ``tap`` on.

        ``entry`` is the first of the tap's entries in the table.
        """
        builder = self.builder
        X = self.call.X
        if self.layout == GATHERED:
            index = self.load_vector(self.call.index, entry, _INT32)
            yield self.to_compute_type(_read_inside(builder, X.data, index))
        elif X.data.type.pointee != self.vector.element:
            bits = self.call.X_type.bitwidth
            pairs = _pairs_of_integers(builder, self.tap_of_pixel_0(tap), self.first_pixels, bits)
            yield from map(self.to_compute_type, pairs)
        elif self.call.X_type == types.float32 and self.vector.count > 1:
            yield from _pairs_of_floats(builder, self.tap_of_pixel_0(tap), self.first_pixels)
        else:
            for step in range(2):
                base = builder.gep(self.tap_of_pixel_0(tap), [_INT32(step)])
                yield _read(builder, base, self.first_pixels, self.vector.element)

    def to_compute_type(self, pixels: Any) -> Any:
        """Convert a vector of pixels to the compute type."""
        if pixels.type == self.vector:
            return pixels
        return _widened(self.builder, pixels, self.call.X_type)

    def weights(self, pointer: Any) -> Any:
        """Load the weights of the vector's positions."""
        return _load(self.builder, pointer, self.vector)

    def store(self, total: Any, Y_position: Any) -> None:
        """Store the sums in Y."""
        _store(self.builder, total, self.builder.gep(self.call.Y.data, [Y_position]))

    def load_vector(self, array: Any, entry: Any, element: Any) -> Any:
        """Load a vector of ``element`` from an array, from ``entry`` on."""
        vector = ir.VectorType(element, self.vector.count)
        return _load(self.builder, self.builder.gep(array.data, [entry]), vector)

    def tap_of_pixel_0(self, tap: Any) -> Any:
        """Return the address of a contiguous tap if the first tap were pixel 0."""
        offset = self.builder.load(self.builder.gep(self.call.offsets.data, [tap]))
        return self.builder.gep(self.call.X.data, [offset])


class _IntegerSums(_PositionSums):
    """Generate sums over the taps of a channel of integers of up to 16 bits.

    :func:`ort_gridsample.reference.sums.sum_integers` defines them.
    """

    layouts = (GATHERED, CONTIGUOUS)

    @property
    def first_tap(self) -> int:
        # The difference of tap 0 is 0.
        return 1 if self.layout == GATHERED else 0

    def emit_before_taps(self) -> None:
        super().emit_before_taps()
        self.origin = next(super().values(_INT64(0), self.position))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        return (self.builder.fsub(values, self.origin) for values in super().values(tap, entry))

    def to_compute_type(self, pixels: Any) -> Any:
        widen = self.builder.sext if self.call.X_type.signed else self.builder.zext
        integers = widen(pixels, ir.VectorType(_INT32, self.vector.count))
        return self.builder.sitofp(integers, self.vector)

    def store(self, total: Any, Y_position: Any) -> None:
        """Store the sums, truncated toward zero and saturated."""
        builder = self.builder
        X_type = self.call.X_type
        lanes = self.vector.count
        values = builder.fadd(total, self.origin)
        for limit, is_beyond in ((X_type.maxval, ">"), (X_type.minval, "<")):
            limits = ir.Constant(self.vector, [float(limit)] * lanes)
            values = builder.select(builder.fcmp_ordered(is_beyond, values, limits), limits, values)
        integers = builder.fptosi(values, ir.VectorType(_INT32, lanes))
        pixels = ir.VectorType(ir.IntType(X_type.bitwidth), lanes)
        super().store(builder.trunc(integers, pixels), Y_position)


class _ChannelSums(_PositionSums):
    """Generate sums over the taps of a panel. The lanes of a vector are the panel's channels.

    In the layout GATHERED, an index beyond the last row of the panel is the last row.

    Args:
        builder: LLVM's.
        call: the arguments of the generated code.
        size: the number of channels.
        layout: the layout of the taps.
    """

    def lanes(self, size: int, weight_type: Any) -> int:
        return size

    @property
    def step(self) -> int:
        return 1

    @property
    def taps_at_once(self) -> int:
        return 2

    def emit_before_taps(self) -> None:
        builder = self.builder
        if self.layout == GATHERED:
            rows = cgutils.unpack_tuple(builder, self.call.X.shape)[0]
            self.last_row = builder.sub(rows, _INT64(1))
        else:
            self.first_row = self._row(self.position)
            self.first_row_ahead = self._row(builder.add(self.position, _INT64(ROWS_AHEAD)))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        width = self.vector.count
        if self.layout == GATHERED:
            next_entry = builder.add(entry, self.columns)
            for number, tap_entry in enumerate((entry, next_entry)):
                # Narrow rows of both taps tend to be in the same cache line.
                if number == 0 or width == WIDE_PANEL:
                    _prefetch(builder, self._row(builder.add(tap_entry, _INT64(ROWS_AHEAD))))
                yield _load(builder, self._row(tap_entry), self.vector)
        else:
            pixels = builder.load(builder.gep(self.call.offsets.data, [tap]))
            offset = builder.mul(pixels, _INT64(width))
            next_offset = builder.add(offset, _INT64(width))
            for tap_offset in (offset, next_offset):
                _prefetch(builder, builder.gep(self.first_row_ahead, [tap_offset]))
                yield _load(builder, builder.gep(self.first_row, [tap_offset]), self.vector)

    def _row(self, entry: Any) -> Any:
        """Return the address of the row of the panel that an entry of the table refers to."""
        builder = self.builder
        call = self.call
        row = builder.zext(builder.load(builder.gep(call.index.data, [entry])), _INT64)
        if self.layout == GATHERED:
            is_pixel = builder.icmp_unsigned("<", row, self.last_row)
            row = builder.select(is_pixel, row, self.last_row)
        return builder.gep(call.X.data, [builder.mul(row, _INT64(self.vector.count))])

    def weights(self, pointer: Any) -> Any:
        """Load the weight of the position, for all channels."""
        return _all_lanes(self.builder, self.builder.load(pointer), self.vector)

    def store(self, total: Any, Y_position: Any) -> None:
        row = self.builder.mul(Y_position, _INT64(self.vector.count))
        _store(self.builder, total, self.builder.gep(self.call.Y.data, [row]))


#: The sums for positions in wide vectors, in narrow vectors, and one by one.
sum_wide = _sum_function(WIDE_VECTOR)
sum_narrow = _sum_function(NARROW_VECTOR)
sum_single = _sum_function(1)
#: The sums for panels.
sum_rows_narrow = _sum_function(NARROW_PANEL)
sum_rows_wide = _sum_function(WIDE_PANEL)


# Helpers that emit instructions


def _if_equal(builder: Any, value: Any, number: int) -> Any:
    """Return the context in which code for ``value == number`` is generated."""
    return builder.if_then(builder.icmp_unsigned("==", value, value.type(number)))


def _zeros(vector: Any) -> Any:
    """Return a constant vector of zeros, of the LLVM type ``vector``."""
    return ir.Constant(vector, [0.0] * vector.count)


def _all_lanes(builder: Any, value: Any, vector: Any) -> Any:
    """Return ``value`` in all lanes of a vector, of the LLVM type ``vector``."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(one, one, _lanes(0, 0, vector.count))


def _arrays(context: Any, builder: Any, arguments: Any, numba_types: Any) -> list[Any]:
    """Return those of the ``arguments`` that are arrays, as Numba's array structures."""
    return [
        context.make_array(numba_type)(context, builder, value)
        for numba_type, value in zip(numba_types, arguments, strict=True)
        if isinstance(numba_type, types.Array)
    ]


def _lanes(first: int, step: int, count: int) -> Any:
    """Return the lanes ``first``, ``first + step``, … that a shuffle selects."""
    lanes = [first + step * lane for lane in range(count)]
    return ir.Constant(ir.VectorType(_INT32, count), lanes)


def _prefetch(builder: Any, pointer: Any) -> None:
    """Prefetch an address, which may be invalid, for reading into all caches."""
    byte_pointer = ir.IntType(8).as_pointer()
    prototype = ir.FunctionType(ir.VoidType(), [byte_pointer, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, prototype, "llvm.prefetch.p0")
    for_reading = _INT32(0)
    all_caches = _INT32(3)
    data_cache = _INT32(1)
    arguments = [builder.bitcast(pointer, byte_pointer), for_reading, all_caches, data_cache]
    builder.call(function, arguments)


def _read(builder: Any, base: Any, index: Any, element: Any) -> Any:
    """Read a vector of ``element`` at the pixels ``index``, counted from the pointer ``base``.

    It is read lane by lane: a gather instruction takes up to twice the time.
    """
    values = ir.Constant(ir.VectorType(element, index.type.count), ir.Undefined)
    for lane in map(_INT32, range(index.type.count)):
        pixel = builder.gep(base, [builder.zext(builder.extract_element(index, lane), _INT64)])
        value = builder.load(builder.bitcast(pixel, element.as_pointer()))
        value.align = _ITEMSIZE[str(base.type.pointee)]
        values = builder.insert_element(values, value, lane)
    return values


def _read_inside(builder: Any, base: Any, index: Any) -> Any:
    """Read the pixels at ``index``; 0 for an index outside, which has OUTSIDE_BIT."""
    first = ir.Constant(index.type, [0] * index.type.count)
    is_inside = builder.icmp_signed(">=", index, first)
    pixels = _read(builder, base, builder.select(is_inside, index, first), base.type.pointee)
    zeros = ir.Constant(pixels.type, [0] * index.type.count)
    return builder.select(is_inside, pixels, zeros)


def _pairs_of_floats(builder: Any, base: Any, index: Any) -> Iterator[Any]:
    """Yield the floats at ``index``, and then those after them.

    Two floats are read as one double, which takes half the time.
    """
    lanes = index.type.count
    interleaved = []
    for start in (0, lanes // 2):
        half_index = builder.shuffle_vector(index, index, _lanes(start, 1, lanes // 2))
        pairs = _read(builder, base, half_index, ir.DoubleType())
        interleaved.append(builder.bitcast(pairs, ir.VectorType(base.type.pointee, lanes)))
    for start in range(2):
        yield builder.shuffle_vector(*interleaved, _lanes(start, 2, lanes))


def _pairs_of_integers(builder: Any, base: Any, index: Any, bits: int) -> Iterator[Any]:
    """Yield the integers of ``bits`` bits at ``index``, and then those after them.

    Two integers are read as one.
    """
    lanes = index.type.count
    pairs = _read(builder, base, index, ir.IntType(2 * bits))
    second_of_pairs = builder.lshr(pairs, ir.Constant(pairs.type, [bits] * lanes))
    for values in (pairs, second_of_pairs):
        yield builder.trunc(values, ir.VectorType(ir.IntType(bits), lanes))


def _widened(builder: Any, halves: Any, bits_type: Any) -> Any:
    """Convert a vector of halves to float32. ``bits_type`` is one of :data:`.halves.HALF_BITS`."""
    lanes = halves.type.count
    floats = ir.VectorType(ir.FloatType(), lanes)
    if bits_type == BFLOAT16_BITS:
        shift = ir.Constant(ir.VectorType(_INT32, lanes), [16] * lanes)
        bits = builder.shl(builder.zext(halves, shift.type), shift)
        return builder.bitcast(bits, floats)
    float16s = builder.bitcast(halves, ir.VectorType(ir.HalfType(), lanes))
    return builder.fpext(float16s, floats)


def _load(builder: Any, pointer: Any, vector: Any) -> Any:
    """Load a vector, of the LLVM type ``vector``, from a pointer to its first element."""
    values = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    values.align = _ITEMSIZE[str(vector.element)]
    return values


def _store(builder: Any, values: Any, pointer: Any) -> None:
    """Store a vector at a pointer to its first element."""
    stored = builder.store(values, builder.bitcast(pointer, values.type.as_pointer()))
    stored.align = _ITEMSIZE[str(values.type.element)]
