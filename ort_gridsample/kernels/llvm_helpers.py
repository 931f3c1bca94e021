"""Helpers that emit LLVM instructions.

Here ``builder`` is the llvmlite.ir.IRBuilder that emits instructions, and a "value", "pointer" or
"vector" is an LLVM value that exists when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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


def read_pixels(builder: Any, base: Any, index: Any, element: Any) -> Any:
    """Read a vector of ``element`` at the pixels ``index``, counted from the pointer ``base``.

    It is read lane by lane unless the processor gathers fast.
    """
    if can_gather(element, index.type.count):
        return gather(builder, base, index, element)
    values = ir.Constant(ir.VectorType(element, index.type.count), ir.Undefined)
    for lane in map(INT32, range(index.type.count)):
        pixel = builder.gep(base, [builder.zext(builder.extract_element(index, lane), INT64)])
        value = builder.load(builder.bitcast(pixel, element.as_pointer()))
        value.align = ITEMSIZE[str(base.type.pointee)]
        values = builder.insert_element(values, value, lane)
    return values


def read_pixels_inside(builder: Any, base: Any, index: Any) -> Any:
    """Read the pixels at ``index``; 0 for an index outside, which has OUTSIDE_BIT."""
    first = ir.Constant(index.type, [0] * index.type.count)
    is_inside = builder.icmp_signed(">=", index, first)
    pixels = read_pixels(builder, base, builder.select(is_inside, index, first), base.type.pointee)
    zeros = ir.Constant(pixels.type, [0] * index.type.count)
    return builder.select(is_inside, pixels, zeros)


def read_float_pairs(builder: Any, base: Any, index: Any) -> Iterator[Any]:
    """Yield the floats at ``index``, and then those after them.

    Two floats are read as one double, which takes half the time.
    """
    lanes = index.type.count
    interleaved = []
    # In this order, each 128 bits of the results are a shuffle of as many of both operands, which
    # needs one instruction.
    for first in (0, 2):
        half_lanes = [lane for lane in range(lanes) if lane % 4 // 2 == first // 2]
        half_index = builder.shuffle_vector(index, index, lane_list(half_lanes))
        pairs = read_pixels(builder, base, half_index, ir.DoubleType())
        interleaved.append(builder.bitcast(pairs, ir.VectorType(base.type.pointee, lanes)))
    for number in range(2):
        selected = [
            lane // 4 * 4 + lane % 2 * 2 + number + (lanes if lane % 4 >= 2 else 0)
            for lane in range(lanes)
        ]
        yield builder.shuffle_vector(*interleaved, lane_list(selected))


def read_integer_pairs(builder: Any, base: Any, index: Any, bits: int) -> Iterator[Any]:
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
