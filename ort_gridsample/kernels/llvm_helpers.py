"""Helpers that emit LLVM instructions.

Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions, and a "value", "pointer" or
"vector" is an LLVM value that exists when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import halves, target
from .halves import BFLOAT16_BITS

INT32 = ir.IntType(32)
INT64 = ir.IntType(64)
#: LLVM's name of an element type -> its size, which is also its alignment in memory. Vectors are
#: not aligned better than their elements.
ITEMSIZE = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}

#: Whether gather instructions are faster than single loads.
CPU_GATHERS_FAST = target.gathers_fast()
#: An element's LLVM type and the number of lanes -> the suffix of the name of LLVM's intrinsic.
_GATHERS = {
    ("double", 8): "dpd.512",
    ("float", 16): "dps.512",
    ("i32", 16): "dpi.512",
    ("i64", 8): "dpq.512",
}


def if_equal(builder: Any, value: Any, number: int) -> Any:
    """Return the context in which code for ``value == number`` is generated."""
    return builder.if_then(builder.icmp_unsigned("==", value, value.type(number)))


def zeros_of(vector: Any) -> Any:
    """Return a constant vector of zeros, of the LLVM type ``vector``."""
    return ir.Constant(vector, [0.0] * vector.count)


def fill_lanes(builder: Any, value: Any, vector: Any) -> Any:
    """Return ``value`` in all lanes of a vector, of the LLVM type ``vector``."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(one, one, lane_list([0] * vector.count))


def array_structs(context: Any, builder: Any, arguments: Any, numba_types: Any) -> list[Any]:
    """Return those of the ``arguments`` that are arrays, as Numba's array structures."""
    return [
        context.make_array(numba_type)(context, builder, value)
        for numba_type, value in zip(numba_types, arguments, strict=True)
        if isinstance(numba_type, types.Array)
    ]


def lane_list(lanes: Sequence[int]) -> Any:
    """Return the lanes that a shuffle selects."""
    return ir.Constant(ir.VectorType(INT32, len(lanes)), list(lanes))


def emit_prefetch(builder: Any, pointer: Any) -> None:
    """Prefetch an address, which may be invalid, for reading into all caches."""
    byte_pointer = ir.IntType(8).as_pointer()
    prototype = ir.FunctionType(ir.VoidType(), [byte_pointer, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, prototype, "llvm.prefetch.p0")
    for_reading = INT32(0)
    all_caches = INT32(3)
    data_cache = INT32(1)
    arguments = [builder.bitcast(pointer, byte_pointer), for_reading, all_caches, data_cache]
    builder.call(function, arguments)


def can_gather(element: Any, lanes: int) -> bool:
    """Whether the processor gathers vectors of so many elements, of an LLVM type, fast."""
    return CPU_GATHERS_FAST and (str(element), lanes) in _GATHERS


def gather(builder: Any, base: Any, index: Any, element: Any, are_read: Any = None) -> Any:
    """Gather a vector of ``element`` at ``index``, counted from the pointer ``base``.

    :func:`can_gather` tells for which types. ``are_read`` is a vector of bits: a lane whose bit is
    0 is not read, and becomes 0.
    """
    lanes = index.type.count
    vector = ir.VectorType(element, lanes)
    bits = ir.VectorType(ir.IntType(1), lanes)
    byte_pointer = ir.IntType(8).as_pointer()
    prototype = ir.FunctionType(vector, [vector, byte_pointer, index.type, bits, INT32])
    name = f"llvm.x86.avx512.mask.gather.{_GATHERS[str(element), lanes]}"
    function = cgutils.get_or_insert_function(builder.module, prototype, name)
    zeros = ir.Constant(vector, [0] * lanes)
    if are_read is None:
        are_read = ir.Constant(bits, [1] * lanes)
    stride = INT32(ITEMSIZE[str(base.type.pointee)])
    pointer = builder.bitcast(base, byte_pointer)
    return builder.call(function, [zeros, pointer, index, are_read, stride])


def can_compress(lanes: int) -> bool:
    """Whether the processor compresses vectors of so many int32."""
    return (lanes == 16 and target.has("avx512f")) or (
        lanes in (4, 8) and target.has("avx512f", "avx512vl")
    )


def compress(builder: Any, values: Any, are_kept: Any) -> Any:
    """Return the lanes of a vector of int32 whose bits are 1, one after the other, and then 0."""
    vector = values.type
    prototype = ir.FunctionType(vector, [vector, vector, are_kept.type])
    name = f"llvm.x86.avx512.mask.compress.v{vector.count}i32"
    function = cgutils.get_or_insert_function(builder.module, prototype, name)
    zeros = ir.Constant(vector, [0] * vector.count)
    return builder.call(function, [values, zeros, are_kept])


class _StoredIndex(NamedTuple):
    """A vector of int32 in memory, whose lanes are loaded where they are used."""

    #: Points to int32.
    pointer: Any
    #: The number, counted from the pointer, of each lane.
    numbers: Sequence[int]

    @property
    def type(self) -> Any:
        """The vector's LLVM type."""
        return ir.VectorType(INT32, len(self.numbers))


#: A vector of indices of pixels, int32: an LLVM value, or in memory.
Index: TypeAlias = Any


def stored_index(builder: Any, index: Any) -> Index:
    """Return a vector of indices such that reading pixels takes the least time.

    LLVM extracts all lanes of a vector in a register and then stores them, because there are more
    lanes than registers. Storing the vector instead takes 0.8 to 0.95 times as long with one
    channel.
    """
    if CPU_GATHERS_FAST:
        return index
    stored = cgutils.alloca_once(builder, index.type)
    builder.store(index, stored)
    pointer = builder.bitcast(stored, INT32.as_pointer())
    # LLVM would extract the lanes from the register nevertheless. It does not know what this
    # instruction does, which is nothing.
    prototype = ir.FunctionType(pointer.type, [pointer.type])
    opaque = builder.asm(prototype, "", "=r,0,~{memory}", [pointer], True)
    return _StoredIndex(opaque, range(index.type.count))


def index_at(builder: Any, pointer: Any, lanes: int) -> Index:
    """Return the vector of indices at a pointer, for reading pixels."""
    if CPU_GATHERS_FAST:
        return load_vector(builder, pointer, ir.VectorType(INT32, lanes))
    return _StoredIndex(pointer, range(lanes))


def lane_of(builder: Any, index: Index, lane: int) -> Any:
    """Return a lane of a vector of indices, as int64."""
    if isinstance(index, _StoredIndex):
        number = builder.load(builder.gep(index.pointer, [INT64(index.numbers[lane])]))
    else:
        number = builder.extract_element(index, INT32(lane))
    return builder.zext(number, INT64)


def _selected(builder: Any, index: Index, lanes: Sequence[int]) -> Index:
    """Return some lanes of a vector of indices."""
    if isinstance(index, _StoredIndex):
        return _StoredIndex(index.pointer, [index.numbers[lane] for lane in lanes])
    return builder.shuffle_vector(index, index, lane_list(lanes))


def read_pixels(builder: Any, base: Any, index: Index, element: Any) -> Any:
    """Read a vector of ``element`` at the pixels ``index``, counted from the pointer ``base``.

    It is read lane by lane unless the processor gathers fast.
    """
    if can_gather(element, index.type.count):
        return gather(builder, base, index, element)
    values = ir.Constant(ir.VectorType(element, index.type.count), ir.Undefined)
    for lane in range(index.type.count):
        pixel = builder.gep(base, [lane_of(builder, index, lane)])
        value = builder.load(builder.bitcast(pixel, element.as_pointer()))
        value.align = ITEMSIZE[str(base.type.pointee)]
        values = builder.insert_element(values, value, INT32(lane))
    return values


def read_pixels_inside(builder: Any, base: Any, index: Any) -> Any:
    """Read the pixels at ``index``; 0 for an index outside, which has OUTSIDE_BIT."""
    first = ir.Constant(index.type, [0] * index.type.count)
    is_inside = builder.icmp_signed(">=", index, first)
    pixels = read_pixels(builder, base, builder.select(is_inside, index, first), base.type.pointee)
    zeros = ir.Constant(pixels.type, [0] * index.type.count)
    return builder.select(is_inside, pixels, zeros)


def read_float_pairs(builder: Any, base: Any, index: Index) -> Iterator[Any]:
    """Yield the floats at ``index``, and then those after them.

    Two floats are read as one double, which takes half the time.
    """
    lanes = index.type.count
    interleaved = []
    # In this order, each 128 bits of the results are a shuffle of as many of both operands, which
    # needs one instruction.
    for first in (0, 2):
        half_lanes = [lane for lane in range(lanes) if lane % 4 // 2 == first // 2]
        half_index = _selected(builder, index, half_lanes)
        pairs = read_pixels(builder, base, half_index, ir.DoubleType())
        interleaved.append(builder.bitcast(pairs, ir.VectorType(base.type.pointee, lanes)))
    for number in range(2):
        selected = [
            lane // 4 * 4 + lane % 2 * 2 + number + (lanes if lane % 4 >= 2 else 0)
            for lane in range(lanes)
        ]
        yield builder.shuffle_vector(*interleaved, lane_list(selected))


def read_integer_pairs(builder: Any, base: Any, index: Index, bits: int) -> Iterator[Any]:
    """Yield the integers of ``bits`` bits at ``index``, and then those after them.

    Two integers are read as one.
    """
    lanes = index.type.count
    pairs = read_pixels(builder, base, index, ir.IntType(2 * bits))
    second_of_pairs = builder.lshr(pairs, ir.Constant(pairs.type, [bits] * lanes))
    for values in (pairs, second_of_pairs):
        yield builder.trunc(values, ir.VectorType(ir.IntType(bits), lanes))


def widen_halves(builder: Any, bits: Any, bits_type: Any) -> Any:
    """Convert a vector of halves to float32. ``bits_type`` is one of :data:`.halves.HALF_BITS`."""
    lanes = bits.type.count
    floats = ir.VectorType(ir.FloatType(), lanes)
    if bits_type == BFLOAT16_BITS:
        shift = ir.Constant(ir.VectorType(INT32, lanes), [16] * lanes)
        widened = builder.shl(builder.zext(bits, shift.type), shift)
        return builder.bitcast(widened, floats)
    if not halves.CPU_CONVERTS_FLOAT16:
        return _widen_by_bits(builder, bits, floats)
    return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), lanes)), floats)


def _widen_by_bits(builder: Any, bits: Any, floats: Any) -> Any:
    """Like :func:`.halves.from_float16`, for a vector.

    LLVM would call a function of the compiler's library, which not every system has.
    """
    words = ir.VectorType(INT32, floats.count)

    def constant(number: int) -> Any:
        return ir.Constant(words, [number] * floats.count)

    wide = builder.zext(bits, words)
    sign = builder.shl(builder.and_(wide, constant(0x8000)), constant(16))
    shifted = builder.shl(builder.and_(wide, constant(0x7FFF)), constant(13))
    factor = ir.Constant(floats, [2.0**112] * floats.count)
    finite = builder.bitcast(builder.fmul(builder.bitcast(shifted, floats), factor), words)
    is_finite = builder.icmp_unsigned("<", shifted, constant(0x0F800000))
    others = builder.or_(shifted, constant(0x7F800000))
    return builder.bitcast(builder.or_(builder.select(is_finite, finite, others), sign), floats)


def load_vector(builder: Any, pointer: Any, vector: Any) -> Any:
    """Load a vector, of the LLVM type ``vector``, from a pointer to its first element."""
    values = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    values.align = ITEMSIZE[str(vector.element)]
    return values


def store_vector(builder: Any, values: Any, pointer: Any) -> None:
    """Store a vector at a pointer to its first element."""
    stored = builder.store(values, builder.bitcast(pointer, values.type.as_pointer()))
    stored.align = ITEMSIZE[str(values.type.element)]
