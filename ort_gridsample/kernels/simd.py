"""Pixels in the CPU's vectors: sums over taps of many positions, or of rows of channels, and blocks turned round.
Written in LLVM, the compiler's own language, by Numba's insides.

Numba's compiler does not find these vectors in loops that say the same, which are 3 to 8 times as slow.
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

#: Whether the CPU multiplies and adds at once, in vectors so wide that it pays to gather pixels into them from places
#: that have nothing to do with each other.
GATHERS = target.has("avx2", "fma")
#: The bytes of its vectors, then. The wide ones are faster, and a CPU that has them slows down by a tenth for a while
#: after each; another takes them as two.
VECTORS = (64, 32)
#: How the taps of a tile lie: each for itself, an index to each; or contiguous, an index to the first of them and the
#: offsets of the others, two and two side by side. Of MASKED ones a tap of weight NaN counts as 0.
GATHERED, MASKED, CONTIGUOUS = range(3)
#: An index from this on is of a tap outside, which counts as 0; every other index is a pixel of X.
OUTSIDE_BIT = np.uint32(1 << 31)
#: The channels of a panel, side by side in a row: a CPU's vector, or a line of its cache.
NARROW, WIDE = 4, 16
#: So many positions ahead rows are called into the cache: up to twice as fast on random grids.
AHEAD = 8
#: So are pixels of every so many positions, where the taps are few: 0.8 of the time in linear and nearest at 1080p. Of
#: more, the processor is at work for as long as the memory takes.
PIXELS_AHEAD, EVERY, FEW_TAPS = 128, 4, 8
#: The channels of attention that are added up at once, as long as there are so many.
WIDTHS = 64, 32, 16, 4, 1

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
#: What is known of an element's place: that of its type, not of a vector's.
_SIZE = {"i8": 1, "i16": 2, "i32": 4, "float": 4, "double": 8}


def _sum(size: int) -> Any:
    """What adds up as the class for its arrays says, from position ``p`` to ``end``, into ``Y`` at ``q`` more.

    To be called in a kernel. It takes whole vectors of ``size``.
    """

    @intrinsic
    def vector_sums(
        context: Any, X: Any, index: Any, offsets: Any, layout: Any, weight: Any, p: Any, end: Any, Y: Any, q: Any
    ) -> Any:
        kind = _Rows if X.ndim == 2 else _Integers if isinstance(Y.dtype, types.Integer) else _Sum

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            for each in kind.layouts:
                with _if_equal(builder, arguments[3], each):
                    kind(context, builder, arguments, signature.args, size, each).write()
            return context.get_dummy_value()

        return types.void(X, index, offsets, layout, weight, p, end, Y, q), generate

    return vector_sums


@intrinsic
def sum_addressed(context: Any, X: Any, addresses: Any, weights: Any, p: Any, points: Any, Y: Any) -> Any:
    """Add up the channels (C,) of the type of the array ``X`` at ``addresses`` (taps, ≥ p + 2 points) into ``Y`` (C,).

    Those of columns ``p`` to ``p + points``; as many columns behind them are called into the cache. ``weights`` are of
    the same shape. To be called in a kernel.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        X_, table, by, Y_ = _arrays(context, builder, arguments, signature.args)
        _, _, _, first, count, _ = arguments
        bits, real = X_.data.type.pointee, by.data.type.pointee
        taps, columns = cgutils.unpack_tuple(builder, table.shape)
        begin, (end,) = _INT64(0), cgutils.unpack_tuple(builder, Y_.shape)

        def add_up(width: int, channel: Any) -> None:
            loaded, vector = ir.VectorType(bits, width), ir.VectorType(real, width)
            total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * width))

            def place(entry: Any) -> Any:
                at = builder.load(builder.gep(table.data, [entry]))
                return builder.gep(builder.inttoptr(at, bits.as_pointer()), [channel])

            with cgutils.for_range(builder, taps) as rows, cgutils.for_range(builder, count) as loop:
                entry = builder.add(builder.add(builder.mul(rows.index, columns), first), loop.index)
                soon = place(builder.add(entry, count))
                for ahead in range(0, width, max(64 // _SIZE[str(bits)], 1)):
                    _prefetch(builder, builder.gep(soon, [_INT64(ahead)]))
                values = _load(builder, place(entry), loaded)
                if bits != real:
                    values = _widened(builder, values, X.dtype)
                weight = _all_lanes(builder, builder.load(builder.gep(by.data, [entry])), vector)
                product = builder.fmul(weight, values, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            _store(builder, builder.load(total), builder.gep(Y_.data, [channel]))

        for width in WIDTHS:
            step, left = _INT64(width), builder.sub(end, begin)
            with cgutils.for_range(builder, builder.udiv(left, step)) as loop:
                add_up(width, builder.add(begin, builder.mul(loop.index, step)))
            begin = builder.sub(end, builder.urem(left, step))
        return context.get_dummy_value()

    return types.void(X, addresses, weights, p, points, Y), generate


@intrinsic
def prefetch(context: Any, image: Any, i: Any) -> Any:
    """Call pixel ``i`` of ``image`` (S,) into all caches, to be read; to be called in a kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (pixels,) = _arrays(context, builder, arguments[:1], signature.args[:1])
        _prefetch(builder, builder.gep(pixels.data, [builder.zext(arguments[1], _INT64)]))
        return context.get_dummy_value()

    return types.void(image, types.uint32), generate


@intrinsic
def transpose(context: Any, source: Any, i: Any, j: Any, to: Any, k: Any, m: Any, width: Any) -> Any:
    """Write the rows ``i``, … and columns ``j``, … of ``source`` as columns ``m``, … and rows ``k``, … of ``to``.

    As many of each as ``width`` says, NARROW or WIDE, halves as their float32; to be called in a kernel.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        here, there = _arrays(context, builder, arguments, signature.args)
        _, row, column, _, to_row, to_column, chosen = arguments

        def place(array: Any, row: Any, column: Any) -> Any:
            columns = cgutils.unpack_tuple(builder, array.shape)[1]
            return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

        for width in (NARROW, WIDE):
            with _if_equal(builder, chosen, width):
                vector, lanes = ir.VectorType(here.data.type.pointee, width), ir.VectorType(_INT32, width)
                each = [_load(builder, place(here, builder.add(row, _INT64(n)), column), vector) for n in range(width)]
                if here.data.type != there.data.type:
                    each = [_widened(builder, halves, signature.args[0].dtype) for halves in each]
                # Blocks of 1, 2, 4, … across the diagonal change places, all in the same registers.
                apart = 1
                while apart < width:
                    first, second = (
                        ir.Constant(lanes, [lane + (far if lane & apart else near) for lane in range(width)])
                        for near, far in ((0, width - apart), (apart, width))
                    )
                    for n in range(width):
                        if not n & apart:
                            a, b = each[n], each[n + apart]
                            each[n] = builder.shuffle_vector(a, b, first)
                            each[n + apart] = builder.shuffle_vector(a, b, second)
                    apart *= 2
                for n, values in enumerate(each):
                    _store(builder, values, place(there, builder.add(to_row, _INT64(n)), to_column))
        return context.get_dummy_value()

    return types.void(source, i, j, to, k, m, width), generate


class _Sum:
    """Add up the taps of vectors of positions, of ``size`` bytes, pixels of ``X`` (S,), into ``Y``.

    The table is as :class:`_Rows` has it. A pixel of uint16 or int16 is the bits of float16 or bfloat16.
    """

    layouts: tuple[int, ...] = (GATHERED, MASKED, CONTIGUOUS)
    first_tap, in_bytes = 0, True  # whether the size of a vector is

    def __init__(self, context: Any, builder: Any, arguments: Any, kinds: Any, size: int, layout: int) -> None:
        self.builder, self.layout, self.pixel = builder, layout, kinds[0].dtype
        self.at_once = 1 if layout == GATHERED else 2
        self.X, self.index, self.offsets, self.weight, self.Y = _arrays(context, builder, arguments, kinds)
        self.positions, self.shift = arguments[5:7], arguments[8]
        self.taps, self.columns = cgutils.unpack_tuple(builder, self.weight.shape)
        real = self.weight.data.type.pointee
        self.vector = ir.VectorType(real, max(1, size // _SIZE[str(real)]) if self.in_bytes else size)

    def write(self) -> None:
        """Write it all."""
        builder, step = self.builder, _INT64(self.vector.count if self.in_bytes else 1)
        with cgutils.for_range_slice(builder, *self.positions, step, step.type) as (self.p, _):
            self.total = cgutils.alloca_once_value(builder, ir.Constant(self.vector, [0.0] * self.vector.count))
            self.begin()
            steps = builder.udiv(self.taps, _INT64(self.at_once))
            with cgutils.for_range(builder, steps, start=_INT64(self.first_tap)) as loop:
                tap = builder.mul(loop.index, _INT64(self.at_once))
                entry = builder.add(builder.mul(tap, self.columns), self.p)
                for values in self.values(tap, entry):
                    self._add(self.weights(builder.gep(self.weight.data, [entry])), values)
                    entry = builder.add(entry, self.columns)
                last = builder.basic_block
            # An unrolled loop leaves few taps to its remainder, which takes up to a tenth longer.
            rolled = builder.module.add_metadata([builder.module.add_metadata(["llvm.loop.unroll.disable"])])
            rolled.operands = (rolled, *rolled.operands)
            last.terminator.set_metadata("llvm.loop", rolled)
            self.store(builder.load(self.total), builder.add(self.p, self.shift))

    def _add(self, weight: Any, values: Any) -> None:
        builder, before = self.builder, self.builder.load(self.total)
        total = builder.fadd(before, builder.fmul(weight, values, flags=("contract",)), flags=("contract",))
        if self.layout == MASKED:
            total = builder.select(builder.fcmp_ordered("ord", weight, weight), total, before)
        builder.store(total, self.total)

    def begin(self) -> None:
        """Write what comes before the first tap."""
        builder = self.builder
        if self.layout == GATHERED:
            return
        self.first = self.loaded(self.index, self.p, _INT32)
        # Of few taps the first and the last are called into the caches, for some positions of a vector to come.
        with builder.if_then(builder.icmp_unsigned("<=", self.taps, _INT64(FEW_TAPS))):
            last = builder.load(builder.gep(self.offsets.data, [builder.sub(self.taps, _INT64(1))]))
            for lane in range(0, self.vector.count, EVERY):
                soon = builder.add(self.p, _INT64(PIXELS_AHEAD + lane))
                is_there = builder.icmp_unsigned("<", soon, self.columns)  # there is none behind the table
                index = builder.load(builder.gep(self.index.data, [builder.select(is_there, soon, self.p)]))
                pixel = builder.gep(self.X.data, [builder.zext(index, _INT64)])
                _prefetch(builder, pixel)
                _prefetch(builder, builder.gep(pixel, [last]))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        """The values of a tap, whose entries in the table begin at ``entry``, and of those at once with it."""
        builder, real = self.builder, self.vector.element
        if self.layout == GATHERED:
            yield self.numbers(_read_inside(builder, self.X.data, self.loaded(self.index, entry, _INT32)))
        elif self.X.data.type.pointee != real:
            yield from map(self.numbers, _pairs_of_integers(builder, self.base(tap), self.first, self.pixel.bitwidth))
        elif self.pixel == types.float32 and self.vector.count > 1:
            yield from _pairs_of_floats(builder, self.base(tap), self.first)
        else:
            for step in range(2):
                yield _read(builder, builder.gep(self.base(tap), [_INT32(step)]), self.first, real)

    def numbers(self, pixels: Any) -> Any:
        """The ``pixels`` in the type that is computed in."""
        return pixels if pixels.type == self.vector else _widened(self.builder, pixels, self.pixel)

    def weights(self, place: Any) -> Any:
        """The weights that lie at ``place``."""
        return _load(self.builder, place, self.vector)

    def store(self, total: Any, q: Any) -> None:
        """Store the sums at ``q``."""
        _store(self.builder, total, self.builder.gep(self.Y.data, [q]))

    def loaded(self, array: Any, entry: Any, kind: Any) -> Any:
        """As many elements as a vector has, from ``entry`` on."""
        return _load(self.builder, self.builder.gep(array.data, [entry]), ir.VectorType(kind, self.vector.count))

    def base(self, tap: Any) -> Any:
        """Where the pixels of a tap begin, whose index is that of the first."""
        return self.builder.gep(self.X.data, [self.builder.load(self.builder.gep(self.offsets.data, [tap]))])


class _Integers(_Sum):
    """As :class:`_Sum` for integers of up to 16 bits, by vectors of weights, as :func:`.sums.sum_integers` does."""

    layouts = (GATHERED, CONTIGUOUS)

    def begin(self) -> None:
        super().begin()
        self.origin = next(super().values(_INT64(0), self.p))
        self.first_tap = 1 if self.layout == GATHERED else 0  # whose difference is 0

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        return (self.builder.fsub(values, self.origin) for values in super().values(tap, entry))

    def numbers(self, pixels: Any) -> Any:
        widen = self.builder.sext if self.pixel.signed else self.builder.zext
        return self.builder.sitofp(widen(pixels, ir.VectorType(_INT32, self.vector.count)), self.vector)

    def store(self, total: Any, q: Any) -> None:
        """Truncated toward zero and saturated."""
        builder, found, count = self.builder, self.builder.fadd(total, self.origin), self.vector.count
        for limit, beyond in ((self.pixel.maxval, ">"), (self.pixel.minval, "<")):
            most = ir.Constant(self.vector, [float(limit)] * count)
            found = builder.select(builder.fcmp_ordered(beyond, found, most), most, found)
        whole = builder.fptosi(found, ir.VectorType(_INT32, count))
        super().store(builder.trunc(whole, ir.VectorType(ir.IntType(self.pixel.bitwidth), count)), q)


class _Rows(_Sum):
    """Add up the taps of positions, rows of ``X`` (S + 1, size), into rows of ``Y`` (…, size).

    The taps of a table lie as ``layout`` says: ``index`` and ``weight`` are (taps, ≥ end + AHEAD), ``offsets`` (taps,).
    An index beyond the last row is the last row.
    """

    in_bytes = False

    def begin(self) -> None:
        builder, self.at_once = self.builder, 2
        if self.layout == GATHERED:
            self.outside = builder.sub(cgutils.unpack_tuple(builder, self.X.shape)[0], _INT64(1))
        else:
            self.here, self.soon = self._row(self.p), self._row(builder.add(self.p, _INT64(AHEAD)))

    def values(self, tap: Any, entry: Any) -> Iterator[Any]:
        builder, width = self.builder, self.vector.count
        if self.layout == GATHERED:
            for number, each in enumerate((entry, builder.add(entry, self.columns))):
                if number == 0 or width == WIDE:  # else both taps tend to lie in one line of the cache
                    _prefetch(builder, self._row(builder.add(each, _INT64(AHEAD))))
                yield _load(builder, self._row(each), self.vector)
        else:
            offset = builder.mul(builder.load(builder.gep(self.offsets.data, [tap])), _INT64(width))
            for each in (offset, builder.add(offset, _INT64(width))):
                _prefetch(builder, builder.gep(self.soon, [each]))
                yield _load(builder, builder.gep(self.here, [each]), self.vector)

    def _row(self, entry: Any) -> Any:
        """Where the row begins whose index lies at ``entry``; the last row of an index outside."""
        builder = self.builder
        i = builder.zext(builder.load(builder.gep(self.index.data, [entry])), _INT64)
        if self.layout == GATHERED:
            i = builder.select(builder.icmp_unsigned("<", i, self.outside), i, self.outside)
        return builder.gep(self.X.data, [builder.mul(i, _INT64(self.vector.count))])

    def weights(self, place: Any) -> Any:
        """One weight for all channels."""
        return _all_lanes(self.builder, self.builder.load(place), self.vector)

    def store(self, total: Any, q: Any) -> None:
        row = self.builder.mul(q, _INT64(self.vector.count))
        _store(self.builder, total, self.builder.gep(self.Y.data, [row]))


sum_wide, sum_narrow, sum_single = map(_sum, (*VECTORS, 1))
sum_rows_narrow, sum_rows_wide = map(_sum, (NARROW, WIDE))


def _if_equal(builder: Any, value: Any, number: int) -> Any:
    return builder.if_then(builder.icmp_unsigned("==", value, value.type(number)))


def _all_lanes(builder: Any, value: Any, vector: Any) -> Any:
    """The ``value`` in all lanes of a ``vector``."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INT32(0))
    return builder.shuffle_vector(one, one, _lanes(0, 0, vector.count))


def _arrays(context: Any, builder: Any, arguments: Any, kinds: Any) -> list[Any]:
    """The arrays among the ``arguments``."""
    arrays = [(kind, value) for kind, value in zip(kinds, arguments, strict=True) if isinstance(kind, types.Array)]
    return [context.make_array(kind)(context, builder, value) for kind, value in arrays]


def _lanes(first: int, step: int, count: int) -> Any:
    """The numbers ``first``, ``first + step``, …: what a shuffle picks."""
    return ir.Constant(ir.VectorType(_INT32, count), [first + step * lane for lane in range(count)])


def _prefetch(builder: Any, place: Any) -> None:
    """Call what lies at ``place``, if anything does, into all caches, to be read."""
    flag, byte = _INT32, ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.bitcast(place, byte), flag(0), flag(3), flag(1)])


def _read(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    """What lies ``index`` pixels from ``base``, as elements of ``kind``.

    Lane by lane: an instruction that reads them all at once, where the CPU has one, takes up to twice the time.
    """
    values = ir.Constant(ir.VectorType(kind, index.type.count), ir.Undefined)
    for lane in map(_INT32, range(index.type.count)):
        pixel = builder.gep(base, [builder.zext(builder.extract_element(index, lane), _INT64)])
        value = builder.load(builder.bitcast(pixel, kind.as_pointer()))
        value.align = _SIZE[str(base.type.pointee)]
        values = builder.insert_element(values, value, lane)
    return values


def _read_inside(builder: Any, base: Any, index: Any) -> Any:
    """The pixels at ``index``; 0 for an index of 2**31 and more."""
    first = ir.Constant(index.type, [0] * index.type.count)
    inside = builder.icmp_signed(">=", index, first)
    pixels = _read(builder, base, builder.select(inside, index, first), base.type.pointee)
    return builder.select(inside, pixels, ir.Constant(pixels.type, [0] * index.type.count))


def _pairs_of_floats(builder: Any, base: Any, index: Any) -> Iterator[Any]:
    """The floats at ``index``, and then those behind them: two are read as one double, which takes half the time."""
    count, halves = index.type.count, []
    for start in (0, count // 2):
        some = builder.shuffle_vector(index, index, _lanes(start, 1, count // 2))
        pairs = _read(builder, base, some, ir.DoubleType())
        halves.append(builder.bitcast(pairs, ir.VectorType(base.type.pointee, count)))
    for start in range(2):
        yield builder.shuffle_vector(*halves, _lanes(start, 2, count))


def _pairs_of_integers(builder: Any, base: Any, index: Any, bits: int) -> Iterator[Any]:
    """The same of integers of so many ``bits``: each two are read as one integer."""
    count, pairs = index.type.count, _read(builder, base, index, ir.IntType(2 * bits))
    for shifted in (pairs, builder.lshr(pairs, ir.Constant(pairs.type, [bits] * count))):
        yield builder.trunc(shifted, ir.VectorType(ir.IntType(bits), count))


def _widened(builder: Any, halves: Any, kind: Any) -> Any:
    """The float32 of int16, the bits of float16 or, where their ``kind`` is signed, of bfloat16."""
    count = halves.type.count
    floats = ir.VectorType(ir.FloatType(), count)
    if kind == types.int16:
        shift = ir.Constant(ir.VectorType(_INT32, count), [16] * count)
        return builder.bitcast(builder.shl(builder.zext(halves, shift.type), shift), floats)
    return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), count)), floats)


def _load(builder: Any, place: Any, vector: Any) -> Any:
    values = builder.load(builder.bitcast(place, vector.as_pointer()))
    values.align = _SIZE[str(vector.element)]
    return values


def _store(builder: Any, values: Any, place: Any) -> None:
    stored = builder.store(values, builder.bitcast(place, values.type.as_pointer()))
    stored.align = _SIZE[str(values.type.element)]
