"""Vectorized sums over taps, of many positions or of rows of channels.

:mod:`.simd` describes the intrinsics, and :mod:`.tap_sums` calls them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .llvm_helpers import (
    INT32,
    INT64,
    ITEMSIZE,
    array_structs,
    emit_prefetch,
    fill_lanes,
    if_equal,
    load_vector,
    read_float_pairs,
    read_integer_pairs,
    read_pixels,
    read_pixels_inside,
    store_vector,
    widen_halves,
    zeros_of,
)
from .simd import (
    CONTIGUOUS,
    GATHERED,
    MASKED,
    NARROW_PANEL,
    NARROW_VECTOR,
    WIDE_PANEL,
    WIDE_VECTOR,
)
from .structs import CACHE_LINE

#: Rows are prefetched this many positions ahead, which doubles the speed on random grids.
ROWS_AHEAD = 8
#: With at most FEW_TAPS taps, pixels are prefetched for one of PREFETCH_STEP positions,
#: PIXELS_AHEAD positions ahead. Linear and nearest then take 0.8 times as long at 1080p. With more
#: taps, computing takes as long as the memory accesses.
PIXELS_AHEAD = 128
PREFETCH_STEP = 4
FEW_TAPS = 8
#: The numbers of channels that deformable attention adds up at once. It uses the largest one that
#: does not exceed the number of remaining channels.
ATTENTION_WIDTHS = 64, 32, 16, 4, 1


# --- Generators of sums over taps ---


class _SumCall:
    """The arguments of a call of a function that :func:`_sum_function` returns.

    Attributes:
        X: a channel (S,), or a panel (S + 1, W).
        index: the table's pixels (R, columns). The table of a panel has at least ROWS_AHEAD columns
            more than positions.
        offsets: the distances of contiguous taps to the first (≥ R,), in pixels.
        layout: the layout of the table.
        weight: the table's weights (R, columns).
        begin: the first position.
        end: the position after the last one. The positions are whole vectors.
        Y: the output: (≥ end + shift,), or (≥ end + shift, W) for a panel.
        shift: the number that is added to a position to get the position in Y.
        X_type: the Numba type of X's elements.
    """

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        X, table, self.begin, self.end, Y, self.shift = arguments
        X_type, table_type, _, _, Y_type, _ = signature.args
        fields = dict(zip(table_type.fields, cgutils.unpack_tuple(builder, table), strict=True))
        field_types = dict(zip(table_type.fields, table_type.types, strict=True))
        self.X, self.Y = array_structs(context, builder, (X, Y), (X_type, Y_type))
        self.index, self.weight, self.offsets = (
            context.make_array(field_types[name])(context, builder, fields[name])
            for name in ("index", "weight", "offsets")
        )
        self.layout = fields["layout"]
        self.X_type = X_type.dtype


class _TapSums:
    """Generate sums over taps in vectors.

    Args:
        builder: LLVM's.
        call: the arguments of the generated code.
        lanes: the number of lanes of a vector.
        layout: the layout of the taps.

    Attributes:
        taps: the number of taps.
        columns: the number of columns of the table.
        vector: the LLVM type of the sums.
        position: the first position of the vector for which instructions are emitted.
        total: a pointer to the vector's sums so far.
    """

    #: The layouts that occur.
    layouts: tuple[int, ...] = (GATHERED, MASKED, CONTIGUOUS)

    def __init__(self, builder: Any, call: _SumCall, lanes: int, layout: int) -> None:
        self.builder = builder
        self.call = call
        self.layout = layout
        self.taps, self.columns = cgutils.unpack_tuple(builder, call.weight.shape)
        self.vector = ir.VectorType(call.weight.data.type.pointee, lanes)
        self.position: Any = None
        self.total: Any = None

    @property
    def step(self) -> int:
        """The number of positions that are summed at once."""
        raise NotImplementedError

    @property
    def first_tap(self) -> int:
        """The first tap that is added."""
        return 0

    @property
    def taps_at_once(self) -> int:
        """The number of taps that are added in one pass of the loop."""
        raise NotImplementedError

    def emit_prologue(self) -> None:
        """Emit what precedes the first tap of a vector."""
        raise NotImplementedError

    def emit_values(self, tap: Any, entry: Any) -> Iterator[Any]:
        """Yield the values of as many taps as are added at once, from ``tap`` on.

        Each step emits instructions, so consume it in order. ``entry`` is the first of the tap's
        entries in the table.
        """
        raise NotImplementedError

    def emit_weights(self, pointer: Any) -> Any:
        """Load the weights of a tap from its entries of the table."""
        raise NotImplementedError

    def emit_store(self, total: Any, Y_position: Any) -> None:
        """Store the sums in Y."""
        raise NotImplementedError

    def write(self) -> None:
        """Emit the loops over positions and taps."""
        builder = self.builder
        call = self.call
        step = INT64(self.step)
        with cgutils.for_range_slice(builder, call.begin, call.end, step, step.type) as loop:
            self.position, _ = loop
            self.total = cgutils.alloca_once_value(builder, zeros_of(self.vector))
            self.emit_prologue()
            self._add_taps()
            Y_position = builder.add(self.position, call.shift)
            self.emit_store(builder.load(self.total), Y_position)

    def _add_taps(self) -> None:
        """Emit the loop over the taps of one vector."""
        builder = self.builder
        steps = builder.udiv(self.taps, INT64(self.taps_at_once))
        with cgutils.for_range(builder, steps, start=INT64(self.first_tap)) as loop:
            tap = builder.mul(loop.index, INT64(self.taps_at_once))
            entry = builder.add(builder.mul(tap, self.columns), self.position)
            for values in self.emit_values(tap, entry):
                pointer = builder.gep(self.call.weight.data, [entry])
                self._add(self.emit_weights(pointer), values)
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


class _PositionSums(_TapSums):
    """Generate sums over the taps of a channel. The lanes of a vector are positions.

    Args:
        builder: LLVM's.
        call: the arguments of the generated code.
        size: the size of a vector in bytes.
        layout: the layout of the taps.

    Attributes:
        first_pixels: the first taps of the vector's positions, unless the layout is GATHERED.
    """

    def __init__(self, builder: Any, call: _SumCall, size: int, layout: int) -> None:
        lanes = max(1, size // ITEMSIZE[str(call.weight.data.type.pointee)])
        super().__init__(builder, call, lanes, layout)
        self.first_pixels: Any = None

    @property
    def step(self) -> int:
        return int(self.vector.count)

    @property
    def taps_at_once(self) -> int:
        return 1 if self.layout == GATHERED else 2

    def emit_prologue(self) -> None:
        if self.layout == GATHERED:
            return
        self.first_pixels = self._load(self.call.index, self.position, INT32)
        with self.builder.if_then(self.builder.icmp_unsigned("<=", self.taps, INT64(FEW_TAPS))):
            self._prefetch_pixels()

    def _prefetch_pixels(self) -> None:
        """Prefetch the first and the last tap of some positions ahead."""
        builder = self.builder
        call = self.call
        last_tap = builder.sub(self.taps, INT64(1))
        last_offset = builder.load(builder.gep(call.offsets.data, [last_tap]))
        for lane in range(0, self.vector.count, PREFETCH_STEP):
            ahead = builder.add(self.position, INT64(PIXELS_AHEAD + lane))
            is_in_table = builder.icmp_unsigned("<", ahead, self.columns)
            entry = builder.select(is_in_table, ahead, self.position)
            pixel = builder.load(builder.gep(call.index.data, [entry]))
            first = builder.gep(call.X.data, [builder.zext(pixel, INT64)])
            emit_prefetch(builder, first)
            emit_prefetch(builder, builder.gep(first, [last_offset]))

    def emit_values(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        X = self.call.X
        if self.layout == GATHERED:
            index = self._load(self.call.index, entry, INT32)
            yield self._to_compute_type(read_pixels_inside(builder, X.data, index))
        elif X.data.type.pointee != self.vector.element:
            bits = self.call.X_type.bitwidth
            pairs = read_integer_pairs(builder, self._tap_of_pixel_0(tap), self.first_pixels, bits)
            yield from map(self._to_compute_type, pairs)
        elif self.call.X_type == types.float32 and self.vector.count > 1:
            yield from read_float_pairs(builder, self._tap_of_pixel_0(tap), self.first_pixels)
        else:
            for step in range(2):
                base = builder.gep(self._tap_of_pixel_0(tap), [INT32(step)])
                yield read_pixels(builder, base, self.first_pixels, self.vector.element)

    def _to_compute_type(self, pixels: Any) -> Any:
        """Convert a vector of pixels to the compute type."""
        if pixels.type == self.vector:
            return pixels
        return widen_halves(self.builder, pixels, self.call.X_type)

    def emit_weights(self, pointer: Any) -> Any:
        return load_vector(self.builder, pointer, self.vector)

    def emit_store(self, total: Any, Y_position: Any) -> None:
        store_vector(self.builder, total, self.builder.gep(self.call.Y.data, [Y_position]))

    def _load(self, array: Any, entry: Any, element: Any) -> Any:
        """Load a vector of ``element`` from an array, from ``entry`` on."""
        vector = ir.VectorType(element, self.vector.count)
        return load_vector(self.builder, self.builder.gep(array.data, [entry]), vector)

    def _tap_of_pixel_0(self, tap: Any) -> Any:
        """Return the address of a contiguous tap if the first tap were pixel 0."""
        offset = self.builder.load(self.builder.gep(self.call.offsets.data, [tap]))
        return self.builder.gep(self.call.X.data, [offset])


class _IntegerSums(_PositionSums):
    """Generate sums over the taps of a channel of integers of up to 16 bits.

    :func:`ort_gridsample.reference.sums.sum_integers` defines them.

    Attributes:
        origin: the value that is subtracted from the taps of each position.
    """

    layouts = (GATHERED, CONTIGUOUS)

    def __init__(self, builder: Any, call: _SumCall, size: int, layout: int) -> None:
        super().__init__(builder, call, size, layout)
        self.origin: Any = None

    @property
    def first_tap(self) -> int:
        # The difference of tap 0 is 0.
        return 1 if self.layout == GATHERED else 0

    def emit_prologue(self) -> None:
        super().emit_prologue()
        self.origin = next(super().emit_values(INT64(0), self.position))

    def emit_values(self, tap: Any, entry: Any) -> Iterator[Any]:
        for values in super().emit_values(tap, entry):
            yield self.builder.fsub(values, self.origin)

    def _to_compute_type(self, pixels: Any) -> Any:
        widen = self.builder.sext if self.call.X_type.signed else self.builder.zext
        integers = widen(pixels, ir.VectorType(INT32, self.vector.count))
        return self.builder.sitofp(integers, self.vector)

    def emit_store(self, total: Any, Y_position: Any) -> None:
        """Store the sums, truncated toward zero and saturated."""
        builder = self.builder
        X_type = self.call.X_type
        lanes = self.vector.count
        values = builder.fadd(total, self.origin)
        for limit, is_beyond in ((X_type.maxval, ">"), (X_type.minval, "<")):
            limits = ir.Constant(self.vector, [float(limit)] * lanes)
            values = builder.select(builder.fcmp_ordered(is_beyond, values, limits), limits, values)
        integers = builder.fptosi(values, ir.VectorType(INT32, lanes))
        pixels = ir.VectorType(ir.IntType(X_type.bitwidth), lanes)
        super().emit_store(builder.trunc(integers, pixels), Y_position)


class _ChannelSums(_TapSums):
    """Generate sums over the taps of a panel. The lanes of a vector are the panel's channels.

    In the layout GATHERED, an index beyond the last row of the panel is the last row.

    Attributes:
        last_row: the index of the panel's last row. Only the layout GATHERED has it.
        first_row: the address of the row of the first tap. The other layouts have it.
        first_row_ahead: the address of the row to prefetch, of the first tap.
    """

    def __init__(self, builder: Any, call: _SumCall, lanes: int, layout: int) -> None:
        super().__init__(builder, call, lanes, layout)
        self.last_row: Any = None
        self.first_row: Any = None
        self.first_row_ahead: Any = None

    @property
    def step(self) -> int:
        return 1

    @property
    def taps_at_once(self) -> int:
        return 2

    def emit_prologue(self) -> None:
        builder = self.builder
        if self.layout == GATHERED:
            rows = cgutils.unpack_tuple(builder, self.call.X.shape)[0]
            self.last_row = builder.sub(rows, INT64(1))
        else:
            self.first_row = self._row(self.position)
            self.first_row_ahead = self._row(builder.add(self.position, INT64(ROWS_AHEAD)))

    def emit_values(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        width = self.vector.count
        if self.layout == GATHERED:
            next_entry = builder.add(entry, self.columns)
            for number, tap_entry in enumerate((entry, next_entry)):
                # Narrow rows of both taps tend to be in the same cache line.
                if number == 0 or width == WIDE_PANEL:
                    row_ahead = self._row(builder.add(tap_entry, INT64(ROWS_AHEAD)))
                    emit_prefetch(builder, row_ahead)
                yield load_vector(builder, self._row(tap_entry), self.vector)
        else:
            pixels = builder.load(builder.gep(self.call.offsets.data, [tap]))
            offset = builder.mul(pixels, INT64(width))
            next_offset = builder.add(offset, INT64(width))
            for tap_offset in (offset, next_offset):
                emit_prefetch(builder, builder.gep(self.first_row_ahead, [tap_offset]))
                yield load_vector(builder, builder.gep(self.first_row, [tap_offset]), self.vector)

    def _row(self, entry: Any) -> Any:
        """Return the address of the row of the panel that an entry of the table refers to."""
        builder = self.builder
        call = self.call
        row = builder.zext(builder.load(builder.gep(call.index.data, [entry])), INT64)
        if self.layout == GATHERED:
            is_pixel = builder.icmp_unsigned("<", row, self.last_row)
            row = builder.select(is_pixel, row, self.last_row)
        return builder.gep(call.X.data, [builder.mul(row, INT64(self.vector.count))])

    def emit_weights(self, pointer: Any) -> Any:
        """Load the weight of the position, for all channels."""
        return fill_lanes(self.builder, self.builder.load(pointer), self.vector)

    def emit_store(self, total: Any, Y_position: Any) -> None:
        row = self.builder.mul(Y_position, INT64(self.vector.count))
        store_vector(self.builder, total, self.builder.gep(self.call.Y.data, [row]))


# --- Functions for kernels ---


def _sum_function(size: int) -> Any:
    """Return a function for kernels that adds up the taps of whole vectors.

    A subclass of :class:`_TapSums` generates its instructions: :class:`_PositionSums` or
    :class:`_IntegerSums` if X is a channel, :class:`_ChannelSums` if X is a panel.

    Args:
        size: the size of a vector: in bytes for a channel, the number of channels for a panel.
    """

    @intrinsic
    def vector_sums(
        typing_context: Any,
        X: Any,
        table: Any,
        begin: Any,
        end: Any,
        Y: Any,
        shift: Any,
    ) -> Any:
        """Add up the taps of positions ``begin`` to ``end``; write to Y, from begin + shift on."""
        sums_class: type[_TapSums] = _PositionSums
        if X.ndim == 2:
            sums_class = _ChannelSums
        elif isinstance(Y.dtype, types.Integer):
            sums_class = _IntegerSums

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            call = _SumCall(context, builder, signature, arguments)
            for table_layout in sums_class.layouts:
                with if_equal(builder, call.layout, table_layout):
                    sums_class(builder, call, size, table_layout).write()
            return context.get_dummy_value()

        return types.void(X, table, begin, end, Y, shift), generate

    return vector_sums


#: The sums for positions in wide vectors, in narrow vectors, and one by one.
sum_wide = _sum_function(WIDE_VECTOR)
sum_narrow = _sum_function(NARROW_VECTOR)
sum_single = _sum_function(1)
#: The sums for panels.
sum_rows_narrow = _sum_function(NARROW_PANEL)
sum_rows_wide = _sum_function(WIDE_PANEL)


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
        X_array, table, weight, Y_array = array_structs(context, builder, arguments, signature.args)
        first_column = arguments[3]
        n_columns = arguments[4]
        pixel_type = X_array.data.type.pointee
        weight_type = weight.data.type.pointee
        taps, columns = cgutils.unpack_tuple(builder, table.shape)
        (channels,) = cgutils.unpack_tuple(builder, Y_array.shape)
        elements_per_line = CACHE_LINE // ITEMSIZE[str(pixel_type)]

        def add_up(width: int, channel: Any) -> None:
            """Add up ``width`` channels from ``channel`` on."""
            pixels = ir.VectorType(pixel_type, width)
            sums = ir.VectorType(weight_type, width)
            total = cgutils.alloca_once_value(builder, zeros_of(sums))

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
                    emit_prefetch(builder, builder.gep(next_head, [INT64(ahead)]))
                values = load_vector(builder, channels_of(entry), pixels)
                if pixel_type != weight_type:
                    values = widen_halves(builder, values, X.dtype)
                tap_weight = builder.load(builder.gep(weight.data, [entry]))
                product = builder.fmul(
                    fill_lanes(builder, tap_weight, sums), values, flags=("contract",)
                )
                old_total = builder.load(total)
                builder.store(builder.fadd(old_total, product, flags=("contract",)), total)
            store_vector(builder, builder.load(total), builder.gep(Y_array.data, [channel]))

        begin = INT64(0)
        for width in ATTENTION_WIDTHS:
            step = INT64(width)
            channels_left = builder.sub(channels, begin)
            with cgutils.for_range(builder, builder.udiv(channels_left, step)) as loop:
                add_up(width, builder.add(begin, builder.mul(loop.index, step)))
            begin = builder.sub(channels, builder.urem(channels_left, step))
        return context.get_dummy_value()

    return types.void(X, addresses, weights, first, points, Y), generate
