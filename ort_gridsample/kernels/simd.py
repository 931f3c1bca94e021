"""Vectorized sums over taps, of many positions or of rows of channels, and transposition of blocks.

This module generates LLVM instructions through Numba's intrinsics. LLVM does not vectorize the
equivalent loops, which are 3 to 8 times as slow.
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
from .structs import CACHE_LINE

#: Whether the processor has fused multiply-add and vectors so wide that it pays off to gather
#: pixels into them from arbitrary addresses.
GATHERS = target.has("avx2", "fma")
#: The sizes of its vectors in bytes, the wide ones first. Wide vectors are faster, but a processor
#: that has them slows down by a tenth for a while after each use. A processor without them splits
#: them in two.
VECTORS = (64, 32)
#: The layouts of the taps of a tile. GATHERED: the table has an index for each tap. CONTIGUOUS: the
#: table has the index of the first tap, and offsets of the others; each two taps are adjacent.
#: MASKED: contiguous, and a tap of weight NaN counts as 0.
GATHERED, MASKED, CONTIGUOUS = range(3)
#: An index with this bit is a tap outside, which counts as 0. Every other index is a pixel of X.
OUTSIDE_BIT = np.uint32(1 << 31)
#: The numbers of channels in a row of a panel: a vector of the processor, or a cache line.
NARROW = 4
WIDE = 16
#: Rows are prefetched for so many positions ahead: up to twice as fast on random grids.
AHEAD = 8
#: If there are at most FEW_TAPS taps, pixels are prefetched for PIXELS_AHEAD positions ahead, for
#: one of EVERY positions: 0.8 of the time in linear and nearest at 1080p. With more taps, computing
#: takes as long as the memory accesses.
PIXELS_AHEAD = 128
EVERY = 4
FEW_TAPS = 8
#: The numbers of channels that deformable attention adds up at once, as long as so many are left.
WIDTHS = 64, 32, 16, 4, 1

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
#: The alignment of elements in memory. Vectors are not aligned better than their elements.
_SIZE = {"i8": 1, "i16": 2, "i32": 4, "float": 4, "double": 8}


def _sum_function(size: int) -> Any:
    """Return a function for kernels that adds up taps, for vectors of ``size``.

    Its arguments are those of the classes below: ``X``, the table ``index``, ``offsets``,
    ``layout`` and ``weight``, the positions ``begin`` to ``end``, which are whole vectors, ``Y``,
    and the number of positions ``shift`` by which the result is shifted in Y.
    """

    @intrinsic
    def vector_sums(
        context: Any,
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
        generator = _Sum
        if X.ndim == 2:
            generator = _Rows
        elif isinstance(Y.dtype, types.Integer):
            generator = _Integers

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for layout in generator.layouts:
                with _if_equal(builder, arguments[3], layout):
                    sums = generator(context, builder, arguments, signature.args, size, layout)
                    sums.write()
            return context.get_dummy_value()

        return types.void(X, index, offsets, layout, weight, begin, end, Y, shift), generate

    return vector_sums


@intrinsic
def sum_addressed(
    context: Any,
    X: Any,
    addresses: Any,
    weights: Any,
    first: Any,
    points: Any,
    Y: Any,
) -> Any:
    """Add up the weighted taps of a head of deformable attention.

    Args:
        context: Numba's; callers omit it.
        X: an array of the type of the channels at the addresses.
        addresses: the address of each tap's channels (taps, ≥ first + 2 · points).
        weights: the weight of each tap, of the same shape.
        first: the first column of the head.
        points: the number of columns of the head. As many columns behind them are prefetched.
        Y: the result (C,).
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        X_array, table, weight, out = _arrays(context, builder, arguments, signature.args)
        first_column = arguments[3]
        n_columns = arguments[4]
        pixel_type = X_array.data.type.pointee
        real = weight.data.type.pointee
        taps, columns = cgutils.unpack_tuple(builder, table.shape)
        (channels,) = cgutils.unpack_tuple(builder, out.shape)

        def add_up(width: int, channel: Any) -> None:
            """Add up ``width`` channels from ``channel`` on."""
            pixels = ir.VectorType(pixel_type, width)
            vector = ir.VectorType(real, width)
            total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * width))

            def place(entry: Any) -> Any:
                """Return a pointer to the channels of an entry of the table."""
                address = builder.load(builder.gep(table.data, [entry]))
                return builder.gep(builder.inttoptr(address, pixel_type.as_pointer()), [channel])

            with (
                cgutils.for_range(builder, taps) as rows,
                cgutils.for_range(builder, n_columns) as loop,
            ):
                row = builder.mul(rows.index, columns)
                entry = builder.add(builder.add(row, first_column), loop.index)
                next_head = place(builder.add(entry, n_columns))
                for ahead in range(0, width, max(CACHE_LINE // _SIZE[str(pixel_type)], 1)):
                    _prefetch(builder, builder.gep(next_head, [_INT64(ahead)]))
                values = _load(builder, place(entry), pixels)
                if pixel_type != real:
                    values = _widened(builder, values, X.dtype)
                w = _all_lanes(builder, builder.load(builder.gep(weight.data, [entry])), vector)
                product = builder.fmul(w, values, flags=("contract",))
                old_total = builder.load(total)
                builder.store(builder.fadd(old_total, product, flags=("contract",)), total)
            _store(builder, builder.load(total), builder.gep(out.data, [channel]))

        begin = _INT64(0)
        for width in WIDTHS:
            step = _INT64(width)
            channels_left = builder.sub(channels, begin)
            with cgutils.for_range(builder, builder.udiv(channels_left, step)) as loop:
                add_up(width, builder.add(begin, builder.mul(loop.index, step)))
            begin = builder.sub(channels, builder.urem(channels_left, step))
        return context.get_dummy_value()

    return types.void(X, addresses, weights, first, points, Y), generate


@intrinsic
def prefetch(context: Any, image: Any, i: Any) -> Any:
    """Prefetch pixel ``i`` of ``image`` (S,) for reading."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (pixels,) = _arrays(context, builder, arguments[:1], signature.args[:1])
        _prefetch(builder, builder.gep(pixels.data, [builder.zext(arguments[1], _INT64)]))
        return context.get_dummy_value()

    return types.void(image, types.uint32), generate


@intrinsic
def transpose(
    context: Any,
    source: Any,
    i: Any,
    j: Any,
    to: Any,
    k: Any,
    m: Any,
    width: Any,
) -> Any:
    """Copy the square block of ``source`` at row ``i`` and column ``j`` to ``to``, transposed.

    Halves are converted to float32.

    Args:
        context: Numba's; callers omit it.
        source: an array of two axes.
        i: the first row in ``source``.
        j: the first column in ``source``.
        to: an array of two axes.
        k: the first row in ``to``.
        m: the first column in ``to``.
        width: the number of rows and columns of the block, NARROW or WIDE.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, to = _arrays(context, builder, arguments, signature.args)
        _, row, column, _, to_row, to_column, chosen_width = arguments

        def place(array: Any, row: Any, column: Any) -> Any:
            columns = cgutils.unpack_tuple(builder, array.shape)[1]
            return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

        for width in (NARROW, WIDE):
            with _if_equal(builder, chosen_width, width):
                vector = ir.VectorType(source.data.type.pointee, width)
                rows = []
                for n in range(width):
                    row_n = builder.add(row, _INT64(n))
                    rows.append(_load(builder, place(source, row_n, column), vector))
                if source.data.type != to.data.type:
                    rows = [_widened(builder, halves, signature.args[0].dtype) for halves in rows]
                _transpose_vectors(builder, rows)
                for n, values in enumerate(rows):
                    to_row_n = builder.add(to_row, _INT64(n))
                    _store(builder, values, place(to, to_row_n, to_column))
        return context.get_dummy_value()

    return types.void(source, i, j, to, k, m, width), generate


def _transpose_vectors(builder: Any, rows: list[Any]) -> None:
    """Replace ``rows``, as many vectors as each has elements, by the columns.

    Blocks of size 1, 2, 4, … on both sides of the diagonal are exchanged. All remain in registers.
    """
    width = len(rows)
    lanes = ir.VectorType(_INT32, width)
    size = 1
    while size < width:
        # Of a pair of rows: the lanes of the new first row, and those of the new second row.
        first = [lane + (width - size if lane & size else 0) for lane in range(width)]
        second = [lane + (width if lane & size else size) for lane in range(width)]
        for n in range(width):
            if not n & size:
                a = rows[n]
                b = rows[n + size]
                rows[n] = builder.shuffle_vector(a, b, ir.Constant(lanes, first))
                rows[n + size] = builder.shuffle_vector(a, b, ir.Constant(lanes, second))
        size *= 2


class _Sum:
    """Generate a sum over taps, for positions in vectors.

    X (S,) and Y (≥ end + shift,) are one channel. A pixel of uint16 or int16 is the bits of float16
    or bfloat16. The table is that of :class:`_Rows`.

    Args:
        context: Numba's.
        builder: LLVM's.
        arguments: those of the function that :func:`_sum_function` returns.
        kinds: their Numba types.
        size: the size of a vector, in bytes or elements. See ``size_in_bytes``.
        layout: the layout of the taps.
    """

    #: The layouts that occur.
    layouts: tuple[int, ...] = (GATHERED, MASKED, CONTIGUOUS)
    #: The first tap that is added.
    first_tap = 0
    #: Whether ``size`` is in bytes, and a vector contains positions; otherwise it contains
    #: channels.
    size_in_bytes = True

    def __init__(
        self,
        context: Any,
        builder: Any,
        arguments: Any,
        kinds: Any,
        size: int,
        layout: int,
    ) -> None:
        self.builder = builder
        self.layout = layout
        self.pixel = kinds[0].dtype
        self.taps_at_once = 1 if layout == GATHERED else 2
        arrays = _arrays(context, builder, arguments, kinds)
        self.X, self.index, self.offsets, self.weight, self.Y = arrays
        self.positions = arguments[5:7]
        self.shift = arguments[8]
        self.taps, self.columns = cgutils.unpack_tuple(builder, self.weight.shape)
        real = self.weight.data.type.pointee
        count = max(1, size // _SIZE[str(real)]) if self.size_in_bytes else size
        self.vector = ir.VectorType(real, count)

    def write(self) -> None:
        """Generate the loops over positions and taps."""
        builder = self.builder
        step = _INT64(self.vector.count if self.size_in_bytes else 1)
        zeros = ir.Constant(self.vector, [0.0] * self.vector.count)
        with cgutils.for_range_slice(builder, *self.positions, step, step.type) as (self.p, _):
            self.total = cgutils.alloca_once_value(builder, zeros)
            self.begin()
            steps = builder.udiv(self.taps, _INT64(self.taps_at_once))
            with cgutils.for_range(builder, steps, start=_INT64(self.first_tap)) as loop:
                tap = builder.mul(loop.index, _INT64(self.taps_at_once))
                entry = builder.add(builder.mul(tap, self.columns), self.p)
                for values in self.values(tap, entry):
                    self._add(self.weights(builder.gep(self.weight.data, [entry])), values)
                    entry = builder.add(entry, self.columns)
                last_block = builder.basic_block
            # Do not unroll: few taps would run in the remainder of the loop, up to a tenth slower.
            no_unroll = builder.module.add_metadata(["llvm.loop.unroll.disable"])
            metadata = builder.module.add_metadata([no_unroll])
            metadata.operands = (metadata, *metadata.operands)
            last_block.terminator.set_metadata("llvm.loop", metadata)
            self.store(builder.load(self.total), builder.add(self.p, self.shift))

    def _add(self, weight: Any, values: Any) -> None:
        """Add weighted ``values`` to the total, unless the weight is NaN."""
        builder = self.builder
        old_total = builder.load(self.total)
        product = builder.fmul(weight, values, flags=("contract",))
        total = builder.fadd(old_total, product, flags=("contract",))
        if self.layout == MASKED:
            has_weight = builder.fcmp_ordered("ord", weight, weight)
            total = builder.select(has_weight, total, old_total)
        builder.store(total, self.total)

    def begin(self) -> None:
        """Generate what precedes the first tap of a vector."""
        builder = self.builder
        if self.layout == GATHERED:
            return
        self.first = self.load_vector(self.index, self.p, _INT32)
        # If there are few taps, prefetch the first and the last of some positions ahead.
        with builder.if_then(builder.icmp_unsigned("<=", self.taps, _INT64(FEW_TAPS))):
            last = builder.load(builder.gep(self.offsets.data, [builder.sub(self.taps, _INT64(1))]))
            for lane in range(0, self.vector.count, EVERY):
                ahead = builder.add(self.p, _INT64(PIXELS_AHEAD + lane))
                is_in_table = builder.icmp_unsigned("<", ahead, self.columns)
                entry = builder.select(is_in_table, ahead, self.p)
                index = builder.load(builder.gep(self.index.data, [entry]))
                pixel = builder.gep(self.X.data, [builder.zext(index, _INT64)])
                _prefetch(builder, pixel)
                _prefetch(builder, builder.gep(pixel, [last]))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        """Yield the values of as many taps as are added at once, from ``tap`` on.

        ``entry`` is the first of the tap's entries in the table.
        """
        builder = self.builder
        real = self.vector.element
        if self.layout == GATHERED:
            index = self.load_vector(self.index, entry, _INT32)
            yield self.as_real(_read_inside(builder, self.X.data, index))
        elif self.X.data.type.pointee != real:
            bits = self.pixel.bitwidth
            pairs = _pairs_of_integers(builder, self.base(tap), self.first, bits)
            yield from map(self.as_real, pairs)
        elif self.pixel == types.float32 and self.vector.count > 1:
            yield from _pairs_of_floats(builder, self.base(tap), self.first)
        else:
            for step in range(2):
                base = builder.gep(self.base(tap), [_INT32(step)])
                yield _read(builder, base, self.first, real)

    def as_real(self, pixels: Any) -> Any:
        """Convert ``pixels`` to the compute type."""
        return pixels if pixels.type == self.vector else _widened(self.builder, pixels, self.pixel)

    def weights(self, place: Any) -> Any:
        """Return the weights at ``place``."""
        return _load(self.builder, place, self.vector)

    def store(self, total: Any, q: Any) -> None:
        """Store the sums at position ``q`` of Y."""
        _store(self.builder, total, self.builder.gep(self.Y.data, [q]))

    def load_vector(self, array: Any, entry: Any, element: Any) -> Any:
        """Load a vector from an array, from ``entry`` on."""
        vector = ir.VectorType(element, self.vector.count)
        return _load(self.builder, self.builder.gep(array.data, [entry]), vector)

    def base(self, tap: Any) -> Any:
        """Return the address of a contiguous tap if the first tap were pixel 0."""
        offset = self.builder.load(self.builder.gep(self.offsets.data, [tap]))
        return self.builder.gep(self.X.data, [offset])


class _Integers(_Sum):
    """Generate the sum of :class:`_Sum` for integers of up to 16 bits.

    :func:`ort_gridsample.reference.sums.sum_integers` defines it.
    """

    layouts = (GATHERED, CONTIGUOUS)

    def begin(self) -> None:
        super().begin()
        self.origin = next(super().values(_INT64(0), self.p))
        # The difference of tap 0 is 0.
        self.first_tap = 1 if self.layout == GATHERED else 0

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        return (self.builder.fsub(values, self.origin) for values in super().values(tap, entry))

    def as_real(self, pixels: Any) -> Any:
        widen = self.builder.sext if self.pixel.signed else self.builder.zext
        integers = widen(pixels, ir.VectorType(_INT32, self.vector.count))
        return self.builder.sitofp(integers, self.vector)

    def store(self, total: Any, q: Any) -> None:
        """Store the sums, truncated toward zero and saturated."""
        builder = self.builder
        count = self.vector.count
        values = builder.fadd(total, self.origin)
        for limit, is_beyond in ((self.pixel.maxval, ">"), (self.pixel.minval, "<")):
            limits = ir.Constant(self.vector, [float(limit)] * count)
            values = builder.select(builder.fcmp_ordered(is_beyond, values, limits), limits, values)
        integers = builder.fptosi(values, ir.VectorType(_INT32, count))
        pixel = ir.IntType(self.pixel.bitwidth)
        super().store(builder.trunc(integers, ir.VectorType(pixel, count)), q)


class _Rows(_Sum):
    """Generate a sum over taps, for channels in vectors.

    X (S + 1, size) and Y (…, size) have the channels last. The table consists of ``index`` and
    ``weight`` (taps, ≥ end + AHEAD), and ``offsets`` (taps,). An index beyond the last row of X is
    the last row.
    """

    size_in_bytes = False

    def begin(self) -> None:
        builder = self.builder
        self.taps_at_once = 2
        if self.layout == GATHERED:
            rows = cgutils.unpack_tuple(builder, self.X.shape)[0]
            self.outside = builder.sub(rows, _INT64(1))
        else:
            self.first_row = self._row(self.p)
            self.first_row_ahead = self._row(builder.add(self.p, _INT64(AHEAD)))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder = self.builder
        width = self.vector.count
        if self.layout == GATHERED:
            next_entry = builder.add(entry, self.columns)
            for number, tap_entry in enumerate((entry, next_entry)):
                # Narrow rows of both taps tend to be in the same cache line.
                if number == 0 or width == WIDE:
                    _prefetch(builder, self._row(builder.add(tap_entry, _INT64(AHEAD))))
                yield _load(builder, self._row(tap_entry), self.vector)
        else:
            pixels = builder.load(builder.gep(self.offsets.data, [tap]))
            offset = builder.mul(pixels, _INT64(width))
            next_offset = builder.add(offset, _INT64(width))
            for tap_offset in (offset, next_offset):
                _prefetch(builder, builder.gep(self.first_row_ahead, [tap_offset]))
                yield _load(builder, builder.gep(self.first_row, [tap_offset]), self.vector)

    def _row(self, entry: Any) -> Any:
        """Return the address of the row whose index is at ``entry``; the last row if outside."""
        builder = self.builder
        i = builder.zext(builder.load(builder.gep(self.index.data, [entry])), _INT64)
        if self.layout == GATHERED:
            i = builder.select(builder.icmp_unsigned("<", i, self.outside), i, self.outside)
        return builder.gep(self.X.data, [builder.mul(i, _INT64(self.vector.count))])

    def weights(self, place: Any) -> Any:
        """Return the weight at ``place``, for all channels."""
        return _all_lanes(self.builder, self.builder.load(place), self.vector)

    def store(self, total: Any, q: Any) -> None:
        row = self.builder.mul(q, _INT64(self.vector.count))
        _store(self.builder, total, self.builder.gep(self.Y.data, [row]))


#: The sums for positions in wide vectors, in narrow vectors, and one by one.
sum_wide = _sum_function(VECTORS[0])
sum_narrow = _sum_function(VECTORS[1])
sum_single = _sum_function(1)
#: The sums for panels.
sum_rows_narrow = _sum_function(NARROW)
sum_rows_wide = _sum_function(WIDE)


def _if_equal(builder: Any, value: Any, number: int) -> Any:
    """Return the context in which code for ``value == number`` is generated."""
    return builder.if_then(builder.icmp_unsigned("==", value, value.type(number)))


def _all_lanes(builder: Any, value: Any, vector: Any) -> Any:
    """Return the ``value`` in all lanes of a ``vector``."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(one, one, _lanes(0, 0, vector.count))


def _arrays(context: Any, builder: Any, arguments: Any, kinds: Any) -> list[Any]:
    """Return the arrays among the ``arguments``, of Numba types ``kinds``."""
    return [
        context.make_array(kind)(context, builder, value)
        for kind, value in zip(kinds, arguments, strict=True)
        if isinstance(kind, types.Array)
    ]


def _lanes(first: int, step: int, count: int) -> Any:
    """Return the lanes ``first``, ``first + step``, … that a shuffle selects."""
    lanes = [first + step * lane for lane in range(count)]
    return ir.Constant(ir.VectorType(_INT32, count), lanes)


def _prefetch(builder: Any, place: Any) -> None:
    """Prefetch ``place``, which may be an invalid address, for reading into all caches."""
    pointer = ir.IntType(8).as_pointer()
    prototype = ir.FunctionType(ir.VoidType(), [pointer, _INT32, _INT32, _INT32])
    prefetch = cgutils.get_or_insert_function(builder.module, prototype, "llvm.prefetch.p0")
    for_reading = _INT32(0)
    all_caches = _INT32(3)
    data_cache = _INT32(1)
    arguments = [builder.bitcast(place, pointer), for_reading, all_caches, data_cache]
    builder.call(prefetch, arguments)


def _read(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    """Read elements of ``kind`` at ``index`` pixels from ``base``.

    They are read lane by lane: a gather instruction takes up to twice the time.
    """
    values = ir.Constant(ir.VectorType(kind, index.type.count), ir.Undefined)
    for lane in map(_INT32, range(index.type.count)):
        pixel = builder.gep(base, [builder.zext(builder.extract_element(index, lane), _INT64)])
        value = builder.load(builder.bitcast(pixel, kind.as_pointer()))
        value.align = _SIZE[str(base.type.pointee)]
        values = builder.insert_element(values, value, lane)
    return values


def _read_inside(builder: Any, base: Any, index: Any) -> Any:
    """Read the pixels at ``index``; 0 for an index outside, which has OUTSIDE_BIT."""
    first = ir.Constant(index.type, [0] * index.type.count)
    inside = builder.icmp_signed(">=", index, first)
    pixels = _read(builder, base, builder.select(inside, index, first), base.type.pointee)
    return builder.select(inside, pixels, ir.Constant(pixels.type, [0] * index.type.count))


def _pairs_of_floats(builder: Any, base: Any, index: Any) -> Iterator[Any]:
    """Yield the floats at ``index``, and then those behind them.

    Two floats are read as one double, which takes half the time.
    """
    count = index.type.count
    halves = []
    for start in (0, count // 2):
        half_index = builder.shuffle_vector(index, index, _lanes(start, 1, count // 2))
        pairs = _read(builder, base, half_index, ir.DoubleType())
        halves.append(builder.bitcast(pairs, ir.VectorType(base.type.pointee, count)))
    for start in range(2):
        yield builder.shuffle_vector(*halves, _lanes(start, 2, count))


def _pairs_of_integers(builder: Any, base: Any, index: Any, bits: int) -> Iterator[Any]:
    """Yield the integers of so many ``bits`` at ``index``, and then those behind them.

    Two integers are read as one.
    """
    count = index.type.count
    pairs = _read(builder, base, index, ir.IntType(2 * bits))
    second_of_pairs = builder.lshr(pairs, ir.Constant(pairs.type, [bits] * count))
    for values in (pairs, second_of_pairs):
        yield builder.trunc(values, ir.VectorType(ir.IntType(bits), count))


def _widened(builder: Any, halves: Any, kind: Any) -> Any:
    """Convert the bits of halves to float32. Numba's type ``kind`` is uint16 or int16."""
    count = halves.type.count
    floats = ir.VectorType(ir.FloatType(), count)
    if kind == types.int16:
        shift = ir.Constant(ir.VectorType(_INT32, count), [16] * count)
        bits = builder.shl(builder.zext(halves, shift.type), shift)
        return builder.bitcast(bits, floats)
    float16s = builder.bitcast(halves, ir.VectorType(ir.HalfType(), count))
    return builder.fpext(float16s, floats)


def _load(builder: Any, place: Any, vector: Any) -> Any:
    """Load a ``vector`` from a pointer to its first element."""
    values = builder.load(builder.bitcast(place, vector.as_pointer()))
    values.align = _SIZE[str(vector.element)]
    return values


def _store(builder: Any, values: Any, place: Any) -> None:
    """Store a vector at a pointer to its first element."""
    stored = builder.store(values, builder.bitcast(place, values.type.as_pointer()))
    stored.align = _SIZE[str(values.type.element)]
