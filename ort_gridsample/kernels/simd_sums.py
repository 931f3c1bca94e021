"""Sums over taps in vectors, of many positions or of rows of channels.

There is one loop, :func:`_emit_sums`. Here ``pixels``, ``weights`` and ``total`` are vectors::

    for each vector of positions:
        total = 0
        for pixels of each tap, as the source reads them:
            sum = total + weights of the tap * element.widen(pixels)
            total = sum                           (MASKED: where the weights are not NaN)
        store element.narrow(total)

A source is one of two kinds, each with a class for GATHERED and for adjacent taps. The lanes are
positions if X is a channel (:class:`_Channel`). They are channels of one position if X is a panel
(:class:`_Panel`). An element (:class:`_Floats`, :class:`_Integers`) converts pixels to the type of
the weights, and sums to the type of Y.

:mod:`.simd` describes the intrinsics and the layouts, and :mod:`.tap_sums` calls them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .lanes import Lanes
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
    REGISTER_SIZE,
    WIDE_PANEL,
    WIDE_VECTOR,
)
from .structs import CACHE_LINE
from .tap_plans import HAS_ODD_TAPS

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
ATTENTION_WIDTHS = 64, 32, 16, 8, 4, 1


class _SumCall:
    """The arguments of a call of a function that :func:`_sum_function` returns.

    Attributes:
        X: a channel (S,), or a panel (S + 1, W).
        index: the table's pixels (R, columns). The table of a panel has at least ROWS_AHEAD columns
            more than positions.
        offsets: the distances of contiguous taps to the first (≥ R,), in pixels.
        layout: the layout of the table.
        weight: the table's weights (R, columns).
        taps: R.
        columns: the number of columns of the table.
        begin: the first position.
        end: the position after the last one. The positions are whole vectors.
        Y: the output: (≥ end + shift,), or (≥ end + shift, W) for a panel.
        shift: the number that is added to a position to get the position in Y.
        X_type: the Numba type of X's elements.
        weight_type: the LLVM type of weights and sums.
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
        self.weight_type = self.weight.data.type.pointee
        self.taps, self.columns = cgutils.unpack_tuple(builder, self.weight.shape)


# --- The loop ---


def _emit_sums(call: _SumCall, layout: int, source: _Source, element: _Floats) -> None:
    """Emit the loop of this module's docstring, for taps in one layout."""
    builder = source.builder
    with _vectors(call, source) as position:
        total = cgutils.alloca_once_value(builder, zeros_of(source.vector))
        source.begin(position)
        element.begin(source, position)
        with _taps(call, source, element) as tap:
            entry = builder.add(builder.mul(tap, call.columns), position)
            for pixels in source.read(tap, entry):
                values = element.widen(pixels)
                weights = source.weights(entry)
                old_total = Lanes(builder, builder.load(total))
                new_total = old_total.add_product(weights, values)
                if layout == MASKED and not source.reads_zeros:
                    new_total = weights.equals(weights).choose(new_total, old_total)
                builder.store(new_total.value, total)
                entry = builder.add(entry, call.columns)
        sums = element.narrow(Lanes(builder, builder.load(total)))
        store_vector(builder, sums, source.output_pointer(builder.add(position, call.shift)))


@contextmanager
def _vectors(call: _SumCall, source: _Source) -> Iterator[Any]:
    """Emit a loop over the positions of a call; yield the first position of a vector."""
    step = INT64(source.step)
    with cgutils.for_range_slice(source.builder, call.begin, call.end, step, step.type) as loop:
        yield loop[0]


@contextmanager
def _taps(call: _SumCall, source: _Source, element: _Floats) -> Iterator[Any]:
    """Emit a loop over the taps; yield the first of those that are read at once."""
    builder = source.builder
    at_once = INT64(source.taps_at_once)
    start = element.first_tap if source.taps_at_once == 1 else 0
    with _not_unrolled(builder, builder.udiv(call.taps, at_once), start) as index:
        yield builder.mul(index, at_once)


@contextmanager
def _not_unrolled(builder: Any, count: Any, start: int = 0) -> Iterator[Any]:
    """Emit a loop over ``start``, ``start + 1``, … less than ``count``; yield the number.

    LLVM does not unroll it: few taps would run in the remainder of the loop, up to a tenth slower.
    """
    with cgutils.for_range(builder, count, start=INT64(start)) as loop:
        yield loop.index
        last_block = builder.basic_block
    no_unroll = builder.module.add_metadata(["llvm.loop.unroll.disable"])
    metadata = builder.module.add_metadata([no_unroll])
    metadata.operands = (metadata, *metadata.operands)
    last_block.terminator.set_metadata("llvm.loop", metadata)


# --- Elements: to and from the type of the weights ---


class _Floats:
    """Convert floats: those of X to the weights' type. The sums are the result.

    Attributes:
        first_tap: the first tap that is added, if taps are read one by one.
    """

    first_tap = 0

    def __init__(self, builder: Any, call: _SumCall) -> None:
        self.builder = builder
        self.X_type = call.X_type
        self.weight_type = call.weight_type

    def begin(self, source: _Source, position: Any) -> None:
        """Emit what precedes the first tap of a vector."""

    def widen(self, pixels: Any) -> Lanes:
        """Convert a vector of pixels."""
        if pixels.type.element == self.weight_type:
            return Lanes(self.builder, pixels)
        return Lanes(self.builder, widen_halves(self.builder, pixels, self.X_type))

    def narrow(self, total: Lanes) -> Any:
        """Convert sums to a vector of elements of Y."""
        return total.value


class _Integers(_Floats):
    """Convert integers of up to 16 bits, less the first tap of the position.

    :func:`ort_gridsample.reference.sums.sum_integers` defines the sums.
    """

    first_tap = 1  # the difference of tap 0 is 0

    def begin(self, source: _Source, position: Any) -> None:
        self._origin = self._to_floats(next(source.read(INT64(0), position)))

    def widen(self, pixels: Any) -> Lanes:
        difference: Lanes = self._to_floats(pixels) - self._origin
        return difference

    def narrow(self, total: Lanes) -> Any:
        """Truncate toward zero, and saturate."""
        sums = (total + self._origin).clip(self.X_type.minval, self.X_type.maxval)
        bits = ir.VectorType(ir.IntType(self.X_type.bitwidth), sums.type.count)
        return self.builder.trunc(sums.to_integers().value, bits)

    def _to_floats(self, pixels: Any) -> Lanes:
        widen = self.builder.sext if self.X_type.signed else self.builder.zext
        integers = widen(pixels, ir.VectorType(INT32, pixels.type.count))
        return Lanes(self.builder, integers).to_floats(self.weight_type)


# --- Sources: where pixels, weights and sums are ---


class _Source:
    """Read the pixels and the weights of the taps of a vector.

    Args:
        builder: LLVM's.
        lanes: the number of lanes of a vector.
        taps_at_once: the number of taps that are read in one pass of the loop.

    Attributes:
        vector: the LLVM type of weights and sums.
        reads_pairs: whether two taps may be read at once.
        reads_zeros: whether a tap whose weight is NaN is read as zeros with the weight -0.
    """

    reads_pairs = True
    reads_zeros = False

    def __init__(self, builder: Any, call: _SumCall, lanes: int, taps_at_once: int) -> None:
        self.builder = builder
        self.call = call
        self.vector = ir.VectorType(call.weight_type, lanes)
        self.taps_at_once = taps_at_once

    @property
    def step(self) -> int:
        """The number of positions of a vector."""
        raise NotImplementedError

    def begin(self, position: Any) -> None:
        """Emit what precedes the first tap of the vector at a position."""

    def read(self, tap: Any, entry: Any) -> Iterator[Any]:
        """Yield the pixels of as many taps as are read at once, from ``tap`` on.

        Each step emits instructions, so consume it in order. ``entry`` is the first of the tap's
        entries in the table.
        """
        raise NotImplementedError

    def weights(self, entry: Any) -> Lanes:
        """Load the weights of a tap, given its first entry in the table."""
        raise NotImplementedError

    def output_pointer(self, position: Any) -> Any:
        """Return the address of the first sum, given the position in Y."""
        raise NotImplementedError


class _Channel(_Source):
    """A channel of X. The lanes of a vector are positions."""

    @property
    def step(self) -> int:
        return int(self.vector.count)

    def weights(self, entry: Any) -> Lanes:
        return self._load(self.call.weight, entry)

    def output_pointer(self, position: Any) -> Any:
        return self.builder.gep(self.call.Y.data, [position])

    def _load(self, array: Any, entry: Any) -> Lanes:
        """Load a vector of elements of a table, from ``entry`` on."""
        vector = ir.VectorType(array.data.type.pointee, self.vector.count)
        pointer = self.builder.gep(array.data, [entry])
        return Lanes(self.builder, load_vector(self.builder, pointer, vector))


class _GatheredChannel(_Channel):
    """A channel whose taps are anywhere. Those outside are 0."""

    reads_pairs = False

    def read(self, tap: Any, entry: Any) -> Iterator[Any]:
        index = self._load(self.call.index, entry)
        yield read_pixels_inside(self.builder, self.call.X.data, index.value)


class _AdjacentChannel(_Channel):
    """A channel whose taps are at the same distances from the first one, each two adjacent."""

    def begin(self, position: Any) -> None:
        self._first_pixels = self._load(self.call.index, position).value
        with self.builder.if_then(
            self.builder.icmp_unsigned("<=", self.call.taps, INT64(FEW_TAPS))
        ):
            self._prefetch_pixels(position)

    def read(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        element = self.call.X.data.type.pointee
        offset = builder.load(builder.gep(self.call.offsets.data, [tap]))
        base = builder.gep(self.call.X.data, [offset])
        if self.taps_at_once == 1:
            yield read_pixels(builder, base, self._first_pixels, element)
        elif element != self.vector.element:
            yield from read_integer_pairs(
                builder, base, self._first_pixels, self.call.X_type.bitwidth
            )
        elif self.call.X_type == types.float32 and self.vector.count > 1:
            yield from read_float_pairs(builder, base, self._first_pixels)
        else:
            for number in range(2):
                pointer = builder.gep(base, [INT32(number)])
                yield read_pixels(builder, pointer, self._first_pixels, element)

    def _prefetch_pixels(self, position: Any) -> None:
        """Prefetch the first and the last tap of some positions ahead."""
        builder = self.builder
        call = self.call
        last_tap = builder.sub(call.taps, INT64(1))
        last_offset = builder.load(builder.gep(call.offsets.data, [last_tap]))
        for lane in range(0, self.vector.count, PREFETCH_STEP):
            ahead = builder.add(position, INT64(PIXELS_AHEAD + lane))
            is_in_table = builder.icmp_unsigned("<", ahead, call.columns)
            entry = builder.select(is_in_table, ahead, position)
            pixel = builder.load(builder.gep(call.index.data, [entry]))
            first = builder.gep(call.X.data, [builder.zext(pixel, INT64)])
            emit_prefetch(builder, first)
            emit_prefetch(builder, builder.gep(first, [last_offset]))


class _Panel(_Source):
    """A panel. The lanes of a vector are its channels."""

    @property
    def step(self) -> int:
        return 1

    def weights(self, entry: Any) -> Lanes:
        return Lanes(self.builder, fill_lanes(self.builder, self._weight(entry), self.vector))

    def _weight(self, entry: Any) -> Any:
        """Load the weight of an entry of the table."""
        return self.builder.load(self.builder.gep(self.call.weight.data, [entry]))

    def output_pointer(self, position: Any) -> Any:
        return self._row(self.call.Y, position)

    def _pixel(self, entry: Any) -> Any:
        """Return the pixel of an entry of the table."""
        index = self.builder.gep(self.call.index.data, [entry])
        return self.builder.zext(self.builder.load(index), INT64)

    def _row(self, array: Any, number: Any) -> Any:
        """Return the address of a row of channels."""
        builder = self.builder
        return builder.gep(array.data, [builder.mul(number, INT64(self.vector.count))])


class _GatheredPanel(_Panel):
    """A panel whose taps are anywhere. Those outside read the last row."""

    def begin(self, position: Any) -> None:
        rows = cgutils.unpack_tuple(self.builder, self.call.X.shape)[0]
        self._last_row = self.builder.sub(rows, INT64(1))

    def read(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        for number in range(self.taps_at_once):
            # Narrow rows of both taps tend to be in the same cache line.
            if number == 0 or self.vector.count == WIDE_PANEL:
                row_ahead = self._row_of(builder.add(entry, INT64(ROWS_AHEAD)))
                emit_prefetch(builder, row_ahead)
            yield load_vector(builder, self._row_of(entry), self.vector)
            entry = builder.add(entry, self.call.columns)

    def _row_of(self, entry: Any) -> Any:
        """Return the address of the row that an entry of the table refers to."""
        builder = self.builder
        pixel = self._pixel(entry)
        is_inside = builder.icmp_unsigned("<", pixel, self._last_row)
        return self._row(self.call.X, builder.select(is_inside, pixel, self._last_row))


class _AdjacentPanel(_Panel):
    """A panel whose taps are at the same distances from the first one, each two adjacent."""

    def begin(self, position: Any) -> None:
        ahead = self.builder.add(position, INT64(ROWS_AHEAD))
        self._first_row = self._row(self.call.X, self._pixel(position))
        self._first_row_ahead = self._row(self.call.X, self._pixel(ahead))

    def read(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        width = INT64(self.vector.count)
        pixels = builder.load(builder.gep(self.call.offsets.data, [tap]))
        offset = builder.mul(pixels, width)
        for _ in range(self.taps_at_once):
            emit_prefetch(builder, builder.gep(self._first_row_ahead, [offset]))
            yield self._read_row(entry, builder.gep(self._first_row, [offset]))
            offset = builder.add(offset, width)
            entry = builder.add(entry, self.call.columns)

    def _read_row(self, entry: Any, row: Any) -> Any:
        """Load a row, the tap of an entry of the table."""
        return load_vector(self.builder, row, self.vector)


class _MaskedPanel(_AdjacentPanel):
    """As :class:`_AdjacentPanel`, for the layout MASKED on processors with narrow registers.

    A tap that is skipped reads the last row, which is 0, with the weight -0. The product is -0, and
    no sum changes by adding -0. Both choices are of one number, while the sum of a wide panel fills
    several narrow registers: there, choosing the old or the new sum takes two instructions for
    each.
    """

    reads_zeros = True

    def begin(self, position: Any) -> None:
        super().begin(position)
        rows = cgutils.unpack_tuple(self.builder, self.call.X.shape)[0]
        self._zeros = self._row(self.call.X, self.builder.sub(rows, INT64(1)))

    def weights(self, entry: Any) -> Lanes:
        builder = self.builder
        weight = self._weight(entry)
        counted = builder.select(self._counts(weight), weight, weight.type(-0.0))
        return Lanes(builder, fill_lanes(builder, counted, self.vector))

    def _read_row(self, entry: Any, row: Any) -> Any:
        counts = self._counts(self._weight(entry))
        return super()._read_row(entry, self.builder.select(counts, row, self._zeros))

    def _counts(self, weight: Any) -> Any:
        return self.builder.fcmp_ordered("ord", weight, weight)


# --- Functions for kernels ---

#: The sources of channels and panels, by the layout of the taps.
_SOURCES: Mapping[int, tuple[type[_Source], type[_Source]]] = {
    GATHERED: (_GatheredChannel, _GatheredPanel),
    MASKED: (_AdjacentChannel, _AdjacentPanel if REGISTER_SIZE > 16 else _MaskedPanel),
    CONTIGUOUS: (_AdjacentChannel, _AdjacentPanel),
}


def _taps_at_once(builder: Any, call: _SumCall, source_class: type[_Source]) -> Iterator[int]:
    """Yield the number of taps that are read at once, while the code for it is emitted.

    Two are, unless a mode has an odd number of taps on an axis. Of this mode, the taps that follow
    each other in the table may be in two rows of X.
    """
    if not source_class.reads_pairs:
        yield 1
    elif not HAS_ODD_TAPS:
        yield 2
    else:
        with builder.if_else(builder.trunc(call.taps, ir.IntType(1))) as (odd, even):
            with odd:
                yield 1
            with even:
                yield 2


def _sum_function(size: int) -> Any:
    """Return a function for kernels that adds up the taps of whole vectors.

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
        is_panel = X.ndim == 2
        are_integers = isinstance(Y.dtype, types.Integer)
        element_class = _Integers if are_integers else _Floats

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            call = _SumCall(context, builder, signature, arguments)
            lanes = size if is_panel else max(1, size // ITEMSIZE[str(call.weight_type)])
            for layout, (channel_class, panel_class) in _SOURCES.items():
                if layout == MASKED and are_integers:  # see KERNEL.may_mask
                    continue
                with if_equal(builder, call.layout, layout):
                    source_class = panel_class if is_panel else channel_class
                    for taps_at_once in _taps_at_once(builder, call, source_class):
                        source = source_class(builder, call, lanes, taps_at_once)
                        _emit_sums(call, layout, source, element_class(builder, call))
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
    rows: Any,
    channels: Any,
    Y: Any,
) -> Any:
    """Add up the weighted taps of heads of deformable attention.

    Args:
        typing_context: Numba's; callers omit it.
        X: an array of the type of the channels at the addresses.
        addresses: the address of each tap's channels (taps, ≥ first + (rows + 1) · points). The
            number of taps is even.
        weights: the weight of each tap, of the same shape.
        first: the first column of the first head.
        points: the number of columns of a head. As many columns after them are prefetched.
        rows: the number of heads, whose columns follow each other.
        channels: the number of channels of a head.
        Y: the sums (≥ rows · channels,).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        X_array, table, weight, Y_array = array_structs(context, builder, arguments, signature.args)
        _, _, _, first_column, n_columns, n_rows, n_channels, _ = arguments
        pixel_type = X_array.data.type.pointee
        weight_type = weight.data.type.pointee
        taps, columns = cgutils.unpack_tuple(builder, table.shape)
        elements_per_line = CACHE_LINE // ITEMSIZE[str(pixel_type)]

        def add_tap(entry: Any, channel: Any, total: Any) -> None:
            """Add the channels of an entry of the table, from ``channel`` on, to ``total``."""
            sums = total.type.pointee

            def channels_of(entry: Any) -> Any:
                """Return a pointer to the channels of an entry."""
                address = builder.load(builder.gep(table.data, [entry]))
                return builder.gep(builder.inttoptr(address, pixel_type.as_pointer()), [channel])

            next_head = channels_of(builder.add(entry, n_columns))
            for ahead in range(0, sums.count, elements_per_line):
                emit_prefetch(builder, builder.gep(next_head, [INT64(ahead)]))
            pixels = ir.VectorType(pixel_type, sums.count)
            values = load_vector(builder, channels_of(entry), pixels)
            if pixel_type != weight_type:
                values = widen_halves(builder, values, X.dtype)
            tap_weight = fill_lanes(builder, builder.load(builder.gep(weight.data, [entry])), sums)
            product = builder.fmul(tap_weight, values, flags=("contract",))
            old_total = builder.load(total)
            builder.store(builder.fadd(old_total, product, flags=("contract",)), total)

        def add_up(width: int, channel: Any, row: Any) -> None:
            """Add up ``width`` channels of a head, from ``channel`` on."""
            zeros = zeros_of(ir.VectorType(weight_type, width))
            # Several sums at once, because an addition waits for that of the tap before. The widest
            # block is several vectors. Two taps in turns would be slower there: with 8 heads of 256
            # channels 1.3 times, because such pixels compete for the same lines of the L1 cache.
            n_totals = 1 if width == ATTENTION_WIDTHS[0] else 2
            totals = [cgutils.alloca_once(builder, zeros.type) for _ in range(n_totals)]
            for total in totals:
                builder.store(zeros, total)
            column = builder.add(first_column, builder.mul(row, n_columns))
            with _not_unrolled(builder, builder.udiv(taps, INT64(n_totals))) as group:
                first_tap = builder.mul(group, INT64(n_totals))
                first_entry = builder.add(builder.mul(first_tap, columns), column)
                with _not_unrolled(builder, n_columns) as point:
                    entry = builder.add(first_entry, point)
                    for total in totals:
                        add_tap(entry, channel, total)
                        entry = builder.add(entry, columns)
            sums = builder.load(totals[0])
            for total in totals[1:]:
                sums = builder.fadd(sums, builder.load(total))
            element = builder.add(builder.mul(row, n_channels), channel)
            store_vector(builder, sums, builder.gep(Y_array.data, [element]))

        # Several times through all heads would read each pixel in several pieces.
        is_narrow = builder.icmp_unsigned("<=", n_channels, INT64(ATTENTION_WIDTHS[0]))
        rows_at_once = builder.select(is_narrow, n_rows, INT64(1))
        with cgutils.for_range_slice(builder, INT64(0), n_rows, rows_at_once, INT64) as groups:
            first_row, _ = groups
            begin = INT64(0)
            for width in ATTENTION_WIDTHS:
                step = INT64(width)
                channels_left = builder.sub(n_channels, begin)
                with cgutils.for_range(builder, builder.udiv(channels_left, step)) as loop:
                    channel = builder.add(begin, builder.mul(loop.index, step))
                    with cgutils.for_range(builder, rows_at_once) as heads:
                        add_up(width, channel, builder.add(first_row, heads.index))
                begin = builder.sub(n_channels, builder.urem(channels_left, step))
        return context.get_dummy_value()

    return types.void(X, addresses, weights, first, points, rows, channels, Y), generate
