"""float16 and bfloat16 as their bits, for compiled code: widened, and rounded to the nearest, ties to even."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from . import target
from .pointers import by_types

#: Whether the CPU converts float16: then its own instructions do.
CONVERTS = target.has("f16c")


@intrinsic
def rounded_by_cpu(context: Any, value: Any) -> Any:
    """As :func:`to_float16`."""
    return types.uint16(types.float32), lambda context, builder, signature, arguments: builder.bitcast(
        builder.fptrunc(arguments[0], ir.HalfType()), ir.IntType(16)
    )


@intrinsic
def widened_by_cpu(context: Any, half: Any) -> Any:
    """As :func:`from_float16`."""
    return types.float32(types.uint16), lambda context, builder, signature, arguments: builder.fpext(
        builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType()
    )


@register_jitable
def to_float16(value: Any) -> Any:
    """The bits of float16 for a float32."""
    bits = np.float32(value).view(np.uint32)
    magnitude = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # Between float16's normal numbers: the exponent's bias is another, and 13 bits of the fraction go.
    normal = (magnitude + np.uint32(0xC8000FFF) + ((magnitude >> np.uint32(13)) & np.uint32(1))) >> np.uint32(13)
    # Below them the sum with 0.5 has its last bit where float16 has its own.
    small = np.float32(magnitude.view(np.float32) + np.float32(0.5)).view(np.uint32) - np.uint32(0x3F000000)
    large = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else np.uint32(0x7C00)
    rounded = small if magnitude < np.uint32(0x38800000) else normal
    rounded = rounded if magnitude < np.uint32(0x47800000) else large
    return np.uint16(rounded | ((bits >> np.uint32(16)) & np.uint32(0x8000)))


@register_jitable
def to_bfloat16(value: Any) -> Any:
    """The bits of bfloat16 for a float32."""
    bits = np.float32(value).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40) if is_nan else rounded)


@register_jitable
def from_float16(half: Any) -> Any:
    """The float32 of float16's bits."""
    sign = np.uint32((np.uint32(half) & np.uint32(0x8000)) << np.uint32(16))
    shifted = np.uint32((np.uint32(half) & np.uint32(0x7FFF)) << np.uint32(13))
    # float32 has the same fields at other places, and another bias of the exponent.
    finite = np.float32(shifted.view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    magnitude = np.uint32(shifted | np.uint32(0x7F800000)) if shifted >= np.uint32(0x0F800000) else finite
    return np.uint32(magnitude | sign).view(np.float32)


@register_jitable
def from_bfloat16(half: Any) -> Any:
    """The float32 of bfloat16's bits."""
    return np.uint32(np.uint32(half) << np.uint32(16)).view(np.float32)


class Half(NamedTuple):
    """A half's type: what the core's kernels take its bits for, and how compiled code widens it and rounds to it."""

    bits: np.dtype[Any]
    widened: Callable[[Any], Any]
    rounded: Callable[[Any], Any]


_float16 = (widened_by_cpu, rounded_by_cpu) if CONVERTS else (from_float16, to_float16)
HALVES = {
    "float16": Half(np.dtype(np.uint16), *_float16),
    "bfloat16": Half(np.dtype(np.int16), from_bfloat16, to_bfloat16),
}
#: What stands for a half where a type is none.
EXACT = Half(np.dtype(np.void), *[register_jitable(lambda value: value)] * 2)
_BY_BITS = {str(half.bits): half for half in HALVES.values()}


def stored(type_name: str) -> np.dtype[Any]:
    """What elements of this type are taken for where they lie in memory: halves for their bits."""
    return HALVES[type_name].bits if type_name in HALVES else np.dtype(type_name)


@by_types
def widened(pixel: Any) -> Any:
    """A pixel as the number that it is: of uint16 or int16 the bits of float16 or bfloat16."""
    widen = _BY_BITS.get(str(pixel), EXACT).widened
    return lambda pixel: widen(pixel)


@by_types
def round_to(values: Any, halves: Any) -> Any:
    """Write the float32 ``values`` (P,) as bits into ``halves`` (P,): uint16 is float16, int16 is bfloat16."""
    rounded = _BY_BITS[str(halves.dtype)].rounded

    def loop(values: Any, halves: Any) -> None:
        for p in range(len(values)):
            halves[p] = rounded(values[p])

    return loop
