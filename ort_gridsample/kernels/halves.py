"""Conversion of float16 and bfloat16 ("halves") in compiled code.

Numba has neither type. Compiled code therefore handles arrays of halves as arrays of their bits:

- an array of uint16 has the bits of float16,
- an array of int16 has the bits of bfloat16.

The integer types uint16 and int16 exist as well. The type of the sums tells which is meant: sums of
halves are float32, and sums of integers have the type of the integers. The kernels round sums of
halves with :func:`write_rounded`. Where only floating point occurs (grids, theta, panels,
attention), uint16 and int16 always mean halves.

Rounding is to nearest, ties to even.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from . import target
from .pointers import by_types

#: Whether the processor has instructions that convert float16. Otherwise integer arithmetic does.
#: All 64-bit ARM processors have them. ``f16c`` is a feature of x86-64.
CPU_CONVERTS_FLOAT16 = target.processor == "aarch64" or target.has("f16c")


#: The Numba types of the bits of halves.
FLOAT16_BITS = types.uint16
BFLOAT16_BITS = types.int16
HALF_BITS = (FLOAT16_BITS, BFLOAT16_BITS)

# Bits of float32.
#: The smallest normal number of float16: 2**-14.
_SMALLEST_NORMAL = 0x38800000
#: From here on, numbers overflow float16: 2**16.
_OVERFLOW = 0x47800000
_INFINITY = 0x7F800000
#: To add: -112, the difference of the exponents' biases, and half a unit of float16 less one.
_REBIAS_AND_ROUND = 0xC8000FFF


@intrinsic
def round_by_cpu(typing_context: Any, value: Any) -> Any:
    """Convert as :func:`to_float16`, with the processor's instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.fptrunc(arguments[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return FLOAT16_BITS(types.float32), generate


@intrinsic
def widen_by_cpu(typing_context: Any, half: Any) -> Any:
    """Convert as :func:`from_float16`, with the processor's instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = builder.bitcast(arguments[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(FLOAT16_BITS), generate


@register_jitable
def to_float16(value: Any) -> Any:
    """Round a float32 to the bits of a float16."""
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # A normal number: change the exponent's bias, and round off 13 bits of the fraction.
    last_bit = (magnitude >> np.uint32(13)) & np.uint32(1)
    normal = (magnitude + np.uint32(_REBIAS_AND_ROUND) + last_bit) >> np.uint32(13)
    # A subnormal number: adding 0.5 rounds it to a multiple of the smallest float16.
    shifted = np.float32(magnitude.view(np.float32) + np.float32(0.5))
    small = shifted.view(np.uint32) - np.uint32(0x3F000000)
    large = np.uint32(0x7E00) if magnitude > np.uint32(_INFINITY) else np.uint32(0x7C00)
    rounded = small if magnitude < np.uint32(_SMALLEST_NORMAL) else normal
    rounded = rounded if magnitude < np.uint32(_OVERFLOW) else large
    return np.uint16(rounded | ((bits >> np.uint32(16)) & np.uint32(0x8000)))


@register_jitable
def to_bfloat16(value: Any) -> Any:
    """Round a float32 to the bits of a bfloat16."""
    bits = np.float32(value).view(np.uint32)
    last_bit = (bits >> np.uint32(16)) & np.uint32(1)
    # Numba adds in 64 bits, in vectors of half as many lanes, unless each sum is converted.
    rounded = np.uint32(bits + np.uint32(np.uint32(0x7FFF) + last_bit)) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(_INFINITY)
    return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40) if is_nan else rounded)


@register_jitable
def from_float16(half: Any) -> Any:
    """Convert the bits of a float16 to float32."""
    sign = np.uint32((np.uint32(half) & np.uint32(0x8000)) << np.uint32(16))
    shifted = np.uint32((np.uint32(half) & np.uint32(0x7FFF)) << np.uint32(13))
    # The fields of float32 have other positions, and its exponent has another bias.
    finite = np.float32(shifted.view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    is_finite = shifted < np.uint32(0x0F800000)
    magnitude = finite if is_finite else np.uint32(shifted | np.uint32(_INFINITY))
    return np.uint32(magnitude | sign).view(np.float32)


@register_jitable
def from_bfloat16(half: Any) -> Any:
    """Convert the bits of a bfloat16 to float32."""
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


class Half(NamedTuple):
    """A floating-point type of 16 bits in compiled code."""

    #: The integer type of its bits.
    bits: np.dtype[Any]
    #: Converts its bits to float32.
    widen: Callable[[Any], Any]
    #: Rounds a float32 to its bits.
    round: Callable[[Any], Any]


_float16 = (widen_by_cpu, round_by_cpu) if CPU_CONVERTS_FLOAT16 else (from_float16, to_float16)
HALVES = {
    "float16": Half(np.dtype(np.uint16), *_float16),
    "bfloat16": Half(np.dtype(np.int16), from_bfloat16, to_bfloat16),
}
_unchanged = register_jitable(lambda value: value)
#: The conversions of a type that is not a half: none.
NO_CONVERSION = Half(np.dtype(np.void), _unchanged, _unchanged)
_BY_BITS = {str(half.bits): half for half in HALVES.values()}


def stored_dtype_of(type_name: str) -> np.dtype[Any]:
    """Return the dtype of arrays of this type in compiled code. For a half it is that of its bits.

    Args:
        type_name: a name of :data:`ort_gridsample.spec.TYPES`.
    """
    return HALVES[type_name].bits if type_name in HALVES else np.dtype(type_name)


@by_types
def widened(pixel: Any) -> Any:
    """Convert the bits of a half to float32. Return a pixel of another type as it is."""
    widen = _BY_BITS.get(str(pixel), NO_CONVERSION).widen
    return lambda pixel: widen(pixel)


@by_types
def write_rounded(values: Any, halves: Any) -> Any:
    """Round float32 ``values`` (P,) to halves, whose bits are written to ``halves`` (≥ P,)."""
    round_value = _BY_BITS[str(halves.dtype)].round

    def loop(values: Any, halves: Any) -> None:
        for p in range(len(values)):
            halves[p] = round_value(values[p])

    return loop
