"""Pixels in the CPU's vectors: sums over those of many positions, sums over rows of channels, and to rows and back.
Written in LLVM, the compiler's own language.

Numba's compiler does not find these vectors in the loops that say the same, which are 3 to 8 times as slow. They are
written by Numba's insides; where those are not as expected, the loops do the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import extending, types
from numba.core import cgutils as untyped_cgutils

from .halves import widened

cgutils: Any = untyped_cgutils
intrinsic: Any = extending.intrinsic  # its types take the typing context for an argument of the caller's

#: Whether the CPU multiplies and adds at once, in vectors so wide that it pays to gather pixels into them from places
#: that have nothing to do with each other.
GATHERS = all(get_host_cpu_features().get(name) for name in ("avx2", "fma"))
#: The bytes of its vectors, then. The wide ones are faster, and a CPU that has them slows down by a tenth for a while
#: after each; another takes them as two.
VECTORS = (64, 32)

#: Channels that lie side by side in a row: a CPU's vector, or a line of its cache.
NARROW, WIDE = 4, 16
#: What is known of an element's place: that of its type, not of a vector's.
_SIZE = {"i8": 1, "i16": 2, "i32": 4, "float": 4, "double": 8}
_INT32: Any = ir.IntType(32)
#: So many positions ahead the rows are called into the cache: up to twice as fast on random grids.
AHEAD = 8
#: So are pixels of every so many positions, where the taps are few: 0.8 of the time in linear and nearest at 1080p. Of
#: more, the processor is at work for as long as the memory takes.
PIXELS_AHEAD, EVERY, FEW_TAPS = 128, 4, 8

logger = logging.getLogger("ort_gridsample")


def add_up_in_loops(X: Any, index: Any, weight: Any, p: Any, sums: Any, q: Any) -> None:
    """Add up the taps of position ``p``, rows of ``X`` (S + 1, W), into row ``q`` of ``sums`` (> q, W).

    ``index`` and ``weight`` are (taps, > p + AHEAD), taps even. An index beyond the last row is the last row.
    """
    outside, width = len(X) - 1, X.shape[1]
    for c in range(width):
        sums[q, c] = 0
    for tap in range(len(index)):
        i, w = min(index[tap, p], outside), weight[tap, p]
        for c in range(width):
            sums[q, c] += w * X[i, c]


def add_up(width: int) -> Any:
    """As :func:`add_up_in_loops`, for rows of ``width`` channels; to be called in a kernel."""

    @intrinsic
    def add_up_rows(context: Any, X: Any, index: Any, weight: Any, p: Any, sums: Any, q: Any) -> Any:
        return types.void(X, index, weight, p, sums, q), _written(_write_sums, add_up_in_loops, width)

    return add_up_rows


def add_up_together_in_loops(X: Any, first: Any, offsets: Any, weight: Any, p: Any, sums: Any, q: Any) -> None:
    """As :func:`add_up_in_loops` where each tap lies by one of the ``offsets`` (taps,) behind the ``first`` (> p,).

    Two and two of them lie side by side. One whose weight is no number counts as 0.
    """
    width = X.shape[1]
    for c in range(width):
        sums[q, c] = 0
    for tap in range(len(offsets)):
        w = weight[tap, p]
        if w == w:
            for c in range(width):
                sums[q, c] += w * X[first[p] + offsets[tap], c]


def add_up_together(width: int, gaps: bool) -> Any:
    """As :func:`add_up_together_in_loops`, for rows of ``width`` channels; to be called in a kernel.

    Unless there may be ``gaps``, all weights are numbers.
    """
    write = partial(_write_sums_together, gaps=gaps)

    @intrinsic
    def add_up_rows_together(
        context: Any, X: Any, first: Any, offsets: Any, weight: Any, p: Any, sums: Any, q: Any
    ) -> Any:
        generate = _written(write, add_up_together_in_loops, width)
        return types.void(X, first, offsets, weight, p, sums, q), generate

    return add_up_rows_together


@extending.register_jitable
def gather_in_loops(X: Any, index: Any, weight: Any, p: Any, Y: Any, q: Any, lanes: int) -> None:
    """Add up the taps of ``lanes`` positions from ``p`` on, pixels of ``X`` (S,), into Y[q:].

    ``index`` and ``weight`` are (taps, > p). An index of 2**31 and more counts as 0. A pixel of uint16 or int16 for
    weights of float32 is the bits of float16 or bfloat16.
    """
    for lane in range(lanes):
        total = weight[0, 0] * 0
        for tap in range(len(index)):
            i = index[tap, p + lane]
            if i < 1 << 31:
                total += weight[tap, p + lane] * widened(X[i])
        Y[q + lane] = total


@extending.register_jitable
def gather_integers_in_loops(X: Any, index: Any, weight: Any, p: Any, Y: Any, q: Any, lanes: int) -> None:
    """As :func:`gather_in_loops` for integers of up to 16 bits: truncated toward zero and saturated.

    They are added up as differences from the first tap: where all taps are equal the sum is exact.
    """
    for lane in range(lanes):
        i = index[0, p + lane]
        origin = weight.dtype.type(X[i]) if i < 1 << 31 else weight[0, 0] * 0
        total = origin * 0
        for tap in range(1, len(index)):
            i = index[tap, p + lane]
            value = weight.dtype.type(X[i]) if i < 1 << 31 else origin * 0
            total += weight[tap, p + lane] * (value - origin)
        limits = np.iinfo(Y.dtype)
        Y[q + lane] = int(min(max(total + origin, limits.min), limits.max))


@extending.register_jitable
def gather_integers_whole_in_loops(
    X: Any, first: Any, offsets: Any, weight: Any, p: Any, Y: Any, q: Any, lanes: int
) -> None:
    """As :func:`gather_integers_in_loops` where each tap lies by one of the ``offsets`` (taps,) behind the ``first``.

    Two and two of them lie side by side.
    """
    for lane in range(lanes):
        i = first[p + lane]
        origin = weight.dtype.type(X[i])
        total = origin * 0
        for tap in range(1, len(offsets)):
            total += weight[tap, p + lane] * (weight.dtype.type(X[i + offsets[tap]]) - origin)
        limits = np.iinfo(Y.dtype)
        Y[q + lane] = int(min(max(total + origin, limits.min), limits.max))


def gather(size: int) -> Any:
    """As :func:`gather_in_loops`, for a vector of ``size`` bytes; to be called in a kernel."""
    return _gather(size, _write_gathered, gather_in_loops)


def gather_integers(size: int) -> Any:
    """As :func:`gather_integers_in_loops`, for a vector of ``size`` bytes of weights; to be called in a kernel."""
    return _gather(size, _write_integers, gather_integers_in_loops)


def _gather(size: int, write: Callable[..., None], loops: Callable[..., None]) -> Any:
    def in_loops(X: Any, index: Any, weight: Any, p: Any, Y: Any, q: Any) -> None:
        loops(X, index, weight, p, Y, q, size // weight.itemsize)

    @intrinsic
    def gather_vector(context: Any, X: Any, index: Any, weight: Any, p: Any, Y: Any, q: Any) -> Any:
        return types.void(X, index, weight, p, Y, q), _written(write, in_loops, size)

    return gather_vector


@extending.register_jitable
def gather_whole_in_loops(X: Any, first: Any, offsets: Any, weight: Any, p: Any, Y: Any, q: Any, lanes: int) -> None:
    """As :func:`gather_in_loops` where each tap lies by one of the ``offsets`` (taps,) behind the ``first`` (> p,).

    Two and two of them lie side by side. One whose weight is no number counts as 0.
    """
    for lane in range(lanes):
        total = weight[0, 0] * 0
        for tap in range(len(offsets)):
            w = weight[tap, p + lane]
            if w == w:
                total += w * widened(X[first[p + lane] + offsets[tap]])
        Y[q + lane] = total


def gather_whole(size: int, gaps: bool) -> Any:
    """As :func:`gather_whole_in_loops`, for a vector of ``size`` bytes; to be called in a kernel.

    Unless there may be ``gaps``, all weights are numbers.
    """
    return _gather_whole(size, partial(_write_gathered_whole, gaps=gaps), gather_whole_in_loops)


def gather_integers_whole(size: int) -> Any:
    """As :func:`gather_integers_whole_in_loops`, for a vector of ``size`` bytes of weights; to call in a kernel."""
    return _gather_whole(size, _write_integers_whole, gather_integers_whole_in_loops)


def _gather_whole(size: int, write: Callable[..., None], loops: Callable[..., None]) -> Any:
    def in_loops(X: Any, first: Any, offsets: Any, weight: Any, p: Any, Y: Any, q: Any) -> None:
        loops(X, first, offsets, weight, p, Y, q, size // weight.itemsize)

    @intrinsic
    def gather_whole_vector(context: Any, X: Any, first: Any, offsets: Any, weight: Any, p: Any, Y: Any, q: Any) -> Any:
        return types.void(X, first, offsets, weight, p, Y, q), _written(write, in_loops, size)

    return gather_whole_vector


@intrinsic
def prefetch(context: Any, image: Any, i: Any) -> Any:
    """Call pixel ``i`` of ``image`` (S,) into all caches, to be read; to be called in a kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (pixels,) = _arrays(context, builder, arguments[:1], signature.args[:1])
        _prefetch(builder, builder.gep(pixels.data, [builder.zext(arguments[1], ir.IntType(64))]))
        return context.get_dummy_value()

    return types.void(image, types.uint32), generate


@intrinsic
def multiply_add(context: Any, a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` with one rounding, as the vectors have it, of numbers of one type; to be called in a kernel."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return c(a, b, c), generate


def transpose_in_loops(source: Any, i: Any, j: Any, to: Any, k: Any, m: Any) -> None:
    """Write the rows ``i``, … and columns ``j``, … of ``source`` as columns ``m``, … and rows ``k``, … of ``to``.

    As many of each as the shorter of the two arrays' rows is long.
    """
    width = min(source.shape[1], to.shape[1])
    for row in range(width):
        for column in range(width):
            to[k + column, m + row] = source[i + row, j + column]


def transpose(width: int) -> Any:
    """As :func:`transpose_in_loops`, for ``width`` rows and columns; to be called in a kernel."""

    @intrinsic
    def transpose_block(context: Any, source: Any, i: Any, j: Any, to: Any, k: Any, m: Any) -> Any:
        return types.void(source, i, j, to, k, m), _written(_write_transposed, transpose_in_loops, width)

    return transpose_block


def _written(write: Callable[..., None], in_loops: Callable[..., None], width: int) -> Any:
    """What generates the code that ``write`` writes; that of ``in_loops`` where it cannot."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        try:
            write(context, *_draft(arguments), signature.args, width)
        except Exception as error:
            logger.warning("this Numba's insides are unknown, kernels will be slower: %r", error)
            return context.compile_internal(builder, in_loops, signature, arguments)
        write(context, builder, arguments, signature.args, width)
        return context.get_dummy_value()

    return generate


def _draft(arguments: Any) -> tuple[Any, Any]:
    """A place to write first, so that what cannot be written leaves nothing half-written behind."""
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function: Any = ir.Function(ir.Module(), kind, "draft")
    return ir.IRBuilder(function.append_basic_block()), function.args


def _arrays(context: Any, builder: Any, arguments: Any, kinds: Any) -> list[Any]:
    """The arrays among the ``arguments``."""
    return [
        context.make_array(kind)(context, builder, value)
        for kind, value in zip(kinds, arguments, strict=True)
        if isinstance(kind, types.Array)
    ]


def _write_sums(context: Any, builder: Any, arguments: Any, kinds: Any, width: int) -> None:
    x, at, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, p, _, q = arguments
    word = p.type
    taps, columns = cgutils.unpack_tuple(builder, at.shape)
    outside = builder.sub(cgutils.unpack_tuple(builder, x.shape)[0], word(1))
    total = _Total(builder, x.data.type.pointee, width)

    def row_of(entry: Any) -> Any:
        i = builder.zext(builder.load(builder.gep(at.data, [entry])), word)
        i = builder.select(builder.icmp_unsigned("<", i, outside), i, outside)
        return builder.gep(x.data, [builder.mul(i, word(width))])

    with cgutils.for_range(builder, builder.lshr(taps, word(1))) as loop:
        for tap in range(2):
            row = builder.add(builder.shl(loop.index, word(1)), word(tap))
            entry = builder.add(builder.mul(row, columns), p)
            if tap == 0 or width == WIDE:  # else both taps tend to lie in one line of the cache
                _prefetch(builder, row_of(builder.add(entry, word(AHEAD))))
            values = _load(builder, row_of(entry), total.vector)
            total.add_times(builder.load(builder.gep(by.data, [entry])), values)
    _store(builder, total.value, builder.gep(to.data, [builder.mul(q, word(width))]))


def _write_sums_together(context: Any, builder: Any, arguments: Any, kinds: Any, width: int, gaps: bool) -> None:
    x, at, apart, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, _, p, _, q = arguments
    word = p.type
    taps, columns = cgutils.unpack_tuple(builder, by.shape)
    total = _Total(builder, x.data.type.pointee, width)

    def row_of(position: Any) -> Any:
        i = builder.zext(builder.load(builder.gep(at.data, [position])), word)
        return builder.gep(x.data, [builder.mul(i, word(width))])

    here, soon = row_of(p), row_of(builder.add(p, word(AHEAD)))
    with cgutils.for_range(builder, builder.lshr(taps, word(1))) as loop:
        tap = builder.shl(loop.index, word(1))
        offset = builder.mul(builder.load(builder.gep(apart.data, [tap])), word(width))
        entry = builder.add(builder.mul(tap, columns), p)
        for _ in range(2):
            _prefetch(builder, builder.gep(soon, [offset]))
            values = _load(builder, builder.gep(here, [offset]), total.vector)
            total.add_times(builder.load(builder.gep(by.data, [entry])), values, gaps)
            offset, entry = builder.add(offset, word(width)), builder.add(entry, columns)
    _store(builder, total.value, builder.gep(to.data, [builder.mul(q, word(width))]))


def _write_gathered(context: Any, builder: Any, arguments: Any, kinds: Any, size: int) -> None:
    x, at, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, p, _, q = arguments
    lanes = size // _SIZE[str(by.data.type.pointee)]
    total = _Total(builder, by.data.type.pointee, lanes)
    taps, columns = cgutils.unpack_tuple(builder, at.shape)
    with cgutils.for_range(builder, taps) as loop:
        entry = builder.add(builder.mul(loop.index, columns), p)
        index = _load(builder, builder.gep(at.data, [entry]), ir.VectorType(_INT32, lanes))
        pixels = _read_inside(builder, x.data, index)
        if by.data.type.pointee != x.data.type.pointee:
            pixels = _widened(builder, pixels, kinds[0].dtype)
        total.add(builder.gep(by.data, [entry]), pixels)
    _store(builder, total.value, builder.gep(to.data, [q]))


def _write_gathered_whole(context: Any, builder: Any, arguments: Any, kinds: Any, size: int, gaps: bool) -> None:
    x, at, apart, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, _, p, _, q = arguments
    lanes = size // _SIZE[str(by.data.type.pointee)]
    read = {types.float64: _pairs_of_doubles, types.float32: _pairs_of_floats}.get(kinds[0].dtype, _pairs_of_halves)
    total = _Total(builder, by.data.type.pointee, lanes)
    first = _load(builder, builder.gep(at.data, [p]), ir.VectorType(_INT32, lanes))
    taps, columns = cgutils.unpack_tuple(builder, by.shape)
    _prefetch_whole(builder, x, at, apart, p, lanes, taps, columns)
    with cgutils.for_range(builder, builder.lshr(taps, taps.type(1))) as loop:
        tap = builder.shl(loop.index, taps.type(1))
        entry = builder.add(builder.mul(tap, columns), p)
        base = builder.gep(x.data, [builder.load(builder.gep(apart.data, [tap]))])
        for values in read(builder, base, first, kinds[0].dtype):
            total.add(builder.gep(by.data, [entry]), values, gaps)
            entry = builder.add(entry, columns)
    _store(builder, total.value, builder.gep(to.data, [q]))


def _prefetch_whole(builder: Any, x: Any, at: Any, apart: Any, p: Any, lanes: int, taps: Any, columns: Any) -> None:
    """Call the first and the last of few ``taps`` into the caches, of some positions of a vector to come."""
    with builder.if_then(builder.icmp_unsigned("<=", taps, taps.type(FEW_TAPS))):
        last = builder.load(builder.gep(apart.data, [builder.sub(taps, taps.type(1))]))
        for lane in range(0, lanes, EVERY):
            soon = builder.add(p, p.type(PIXELS_AHEAD + lane))
            soon = builder.select(builder.icmp_unsigned("<", soon, columns), soon, p)  # there is none behind the table
            pixel = builder.gep(x.data, [builder.zext(builder.load(builder.gep(at.data, [soon])), p.type)])
            _prefetch(builder, pixel)
            _prefetch(builder, builder.gep(pixel, [last]))


def _write_integers(context: Any, builder: Any, arguments: Any, kinds: Any, size: int) -> None:
    x, at, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, p, _, q = arguments
    taps, columns = cgutils.unpack_tuple(builder, at.shape)
    total = _Total(builder, by.data.type.pointee, size // _SIZE[str(by.data.type.pointee)])

    def values(entry: Any) -> Any:
        index = _load(builder, builder.gep(at.data, [entry]), ir.VectorType(_INT32, total.vector.count))
        return _as_floats(builder, _read_inside(builder, x.data, index), kinds[0].dtype, total.vector)

    origin = values(p)
    with cgutils.for_range(builder, taps, start=taps.type(1)) as loop:
        entry = builder.add(builder.mul(loop.index, columns), p)
        total.add(builder.gep(by.data, [entry]), builder.fsub(values(entry), origin))
    _store_integers(builder, total, origin, kinds[0].dtype, builder.gep(to.data, [q]))


def _write_integers_whole(context: Any, builder: Any, arguments: Any, kinds: Any, size: int) -> None:
    x, at, apart, by, to = _arrays(context, builder, arguments, kinds)
    _, _, _, _, p, _, q = arguments
    taps, columns = cgutils.unpack_tuple(builder, by.shape)
    total = _Total(builder, by.data.type.pointee, size // _SIZE[str(by.data.type.pointee)])
    first = _load(builder, builder.gep(at.data, [p]), ir.VectorType(_INT32, total.vector.count))
    integer = kinds[0].dtype
    _prefetch_whole(builder, x, at, apart, p, total.vector.count, taps, columns)

    def pairs(tap: Any) -> Iterator[Any]:
        """The pixels of two taps, each two read as one integer."""
        base = builder.gep(x.data, [builder.load(builder.gep(apart.data, [tap]))])
        both = _read(builder, base, first, ir.IntType(2 * integer.bitwidth))
        for bits in (both, builder.lshr(both, ir.Constant(both.type, [integer.bitwidth] * both.type.count))):
            one = builder.trunc(bits, ir.VectorType(ir.IntType(integer.bitwidth), both.type.count))
            yield _as_floats(builder, one, integer, total.vector)

    origin = next(pairs(taps.type(0)))
    with cgutils.for_range(builder, builder.lshr(taps, taps.type(1))) as loop:
        tap = builder.shl(loop.index, taps.type(1))
        entry = builder.add(builder.mul(tap, columns), p)
        for values in pairs(tap):
            total.add(builder.gep(by.data, [entry]), builder.fsub(values, origin))
            entry = builder.add(entry, columns)
    _store_integers(builder, total, origin, integer, builder.gep(to.data, [q]))


def _as_floats(builder: Any, pixels: Any, integer: Any, vector: Any) -> Any:
    """Integers of type ``integer`` as a ``vector`` of floats."""
    wide = ir.VectorType(_INT32, vector.count)
    return builder.sitofp((builder.sext if integer.signed else builder.zext)(pixels, wide), vector)


def _store_integers(builder: Any, total: _Total, origin: Any, integer: Any, place: Any) -> None:
    """Store ``total`` and ``origin`` together as integers of type ``integer``, truncated toward zero and saturated."""
    found, lanes = builder.fadd(total.value, origin), total.vector.count
    for limit, beyond in ((integer.maxval, ">"), (integer.minval, "<")):
        most = ir.Constant(total.vector, [float(limit)] * lanes)
        found = builder.select(builder.fcmp_ordered(beyond, found, most), most, found)
    whole = builder.fptosi(found, ir.VectorType(_INT32, lanes))
    _store(builder, builder.trunc(whole, ir.VectorType(ir.IntType(integer.bitwidth), lanes)), place)


class _Total:
    """A vector of sums, of products of weights and values."""

    def __init__(self, builder: Any, kind: Any, lanes: int) -> None:
        self._builder, self.vector = builder, ir.VectorType(kind, lanes)
        self._at = cgutils.alloca_once_value(builder, ir.Constant(self.vector, [0.0] * lanes))

    def add(self, weights: Any, values: Any, gaps: bool = False) -> None:
        """Add the ``values``, each times one of the weights that lie at ``weights``, or with ``gaps`` none."""
        self._add(_load(self._builder, weights, self.vector), values, gaps)

    def add_times(self, weight: Any, values: Any, gaps: bool = False) -> None:
        """Add the ``values``, all times one ``weight``, or with ``gaps`` none."""
        one = self._builder.insert_element(ir.Constant(self.vector, ir.Undefined), weight, _INT32(0))
        self._add(self._builder.shuffle_vector(one, one, _lanes(0, 0, self.vector.count)), values, gaps)

    def _add(self, weight: Any, values: Any, gaps: bool) -> None:
        builder, before = self._builder, self.value
        total = builder.fadd(before, builder.fmul(weight, values, flags=("contract",)), flags=("contract",))
        if gaps:
            total = builder.select(builder.fcmp_ordered("ord", weight, weight), total, before)
        builder.store(total, self._at)

    @property
    def value(self) -> Any:
        return self._builder.load(self._at)


def _lanes(first: int, step: int, count: int) -> Any:
    """The numbers ``first``, ``first + step``, …: what a shuffle picks."""
    return ir.Constant(ir.VectorType(_INT32, count), [first + step * lane for lane in range(count)])


def _prefetch(builder: Any, place: Any) -> None:
    """Call what lies at ``place``, if anything does, into all caches, to be read."""
    flag, byte = ir.IntType(32), ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.bitcast(place, byte), flag(0), flag(3), flag(1)])


def _read(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    """What lies ``index`` pixels from ``base``, as elements of ``kind``.

    Lane by lane: an instruction that reads them all at once, where the CPU has one, takes up to twice the time.
    """
    values = ir.Constant(ir.VectorType(kind, index.type.count), ir.Undefined)
    for lane in map(_INT32, range(index.type.count)):
        pixel = builder.gep(base, [builder.zext(builder.extract_element(index, lane), ir.IntType(64))])
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


def _pairs_of_doubles(builder: Any, base: Any, index: Any, kind: Any) -> Iterator[Any]:
    """The pixels at ``index``, and then those after them."""
    for step in range(2):
        yield _read(builder, builder.gep(base, [_INT32(step)]), index, base.type.pointee)


def _pairs_of_floats(builder: Any, base: Any, index: Any, kind: Any) -> Iterator[Any]:
    """The same: each two are read as one double, which takes half the time."""
    count = index.type.count
    halves = []
    for start in (0, count // 2):
        some = builder.shuffle_vector(index, index, _lanes(start, 1, count // 2))
        pairs = _read(builder, base, some, ir.DoubleType())
        halves.append(builder.bitcast(pairs, ir.VectorType(base.type.pointee, count)))
    for start in range(2):
        yield builder.shuffle_vector(*halves, _lanes(start, 2, count))


def _pairs_of_halves(builder: Any, base: Any, index: Any, kind: Any) -> Iterator[Any]:
    """The same: each two are read as one int32, and widened by the processor."""
    count = index.type.count
    shift = ir.Constant(index.type, [16] * count)
    pairs = _read(builder, base, index, _INT32)
    for bits in (pairs, builder.lshr(pairs, shift)):
        yield _widened(builder, builder.trunc(bits, ir.VectorType(ir.IntType(16), count)), kind)


def _widened(builder: Any, halves: Any, kind: Any) -> Any:
    """The float32 of int16, the bits of float16 or, where their ``kind`` is signed, of bfloat16."""
    count = halves.type.count
    floats = ir.VectorType(ir.FloatType(), count)
    if kind == types.int16:
        shift = ir.Constant(ir.VectorType(_INT32, count), [16] * count)
        return builder.bitcast(builder.shl(builder.zext(halves, shift.type), shift), floats)
    return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), count)), floats)


def _write_transposed(context: Any, builder: Any, arguments: Any, kinds: Any, width: int) -> None:
    source, to = _arrays(context, builder, arguments, kinds)
    _, i, j, _, k, m = arguments
    word = ir.IntType(64)

    def place(array: Any, row: Any, column: Any) -> Any:
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

    vector = ir.VectorType(source.data.type.pointee, width)
    rows = [_load(builder, place(source, builder.add(i, word(row)), j), vector) for row in range(width)]
    # Blocks of 1, 2, 4, … across the diagonal change places, all in the same registers.
    apart = 1
    while apart < width:
        first, second = (
            ir.Constant(
                ir.VectorType(ir.IntType(32), width),
                [lane + (there if lane & apart else here) for lane in range(width)],
            )
            for here, there in ((0, width - apart), (apart, width))
        )
        for row in range(width):
            if not row & apart:
                a, b = rows[row], rows[row + apart]
                rows[row] = builder.shuffle_vector(a, b, first)
                rows[row + apart] = builder.shuffle_vector(a, b, second)
        apart *= 2
    for column, values in enumerate(rows):
        _store(builder, values, place(to, builder.add(k, word(column)), m))


def _load(builder: Any, place: Any, vector: Any) -> Any:
    values = builder.load(builder.bitcast(place, vector.as_pointer()))
    values.align = _SIZE[str(vector.element)]
    return values


def _store(builder: Any, values: Any, place: Any) -> None:
    stored = builder.store(values, builder.bitcast(place, values.type.as_pointer()))
    stored.align = _SIZE[str(values.type.element)]
