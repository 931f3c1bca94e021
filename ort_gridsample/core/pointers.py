"""Addresses in compiled code: memory read and written through them, and the functions that lie there called.

In compiled code an address is an int64. Nothing here raises or allocates anything of Python's.
"""

from __future__ import annotations

import sys
from typing import Any

import numba as untyped_numba
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as untyped_cgutils
from numba.extending import register_jitable

cgutils: Any = untyped_cgutils
numba: Any = untyped_numba
intrinsic: Any = extending.intrinsic  # its types take the typing context for an argument of the caller's

_WORD = ir.IntType(64)


@intrinsic
def call(typing: Any, at: Any, arguments: Any) -> Any:
    """What the C function ``at`` answers to ``arguments``, a tuple of int64."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words = cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(_WORD, [_WORD] * len(words)).as_pointer()
        return builder.call(builder.inttoptr(values[0], kind), words)

    return types.int64(types.int64, arguments), generate


@intrinsic
def load(typing: Any, at: Any) -> Any:
    """The int64 that lies ``at``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(builder.inttoptr(values[0], _WORD.as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def load_byte(typing: Any, at: Any) -> Any:
    """The byte that lies ``at``, as an int64."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(values[0], ir.IntType(8).as_pointer())), _WORD)

    return types.int64(types.int64), generate


@intrinsic
def store(typing: Any, at: Any, value: Any) -> Any:
    """Put the int64 ``value`` where ``at`` says."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[1], builder.inttoptr(values[0], _WORD.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store_byte(typing: Any, at: Any, value: Any) -> Any:
    """Put the lowest byte of ``value`` where ``at`` says."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte = ir.IntType(8)
        builder.store(builder.trunc(values[1], byte), builder.inttoptr(values[0], byte.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fetch_add(typing: Any, at: Any, value: Any) -> Any:
    """Add ``value`` to the int64 that lies ``at``, whoever else does at the same time; answers what it was."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(values[0], _WORD.as_pointer()), values[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_shared(typing: Any, at: Any) -> Any:
    """The int64 that lies ``at``, and all that another thread wrote before it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(values[0], _WORD.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@intrinsic
def store_shared(typing: Any, at: Any, value: Any) -> Any:
    """Put the int64 ``value`` where ``at`` says, for other threads to find with all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store_atomic(values[1], builder.inttoptr(values[0], _WORD.as_pointer()), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def compare_and_swap(typing: Any, at: Any, expected: Any, value: Any) -> Any:
    """Put ``value`` where ``at`` says if ``expected`` lies there, in one step; answers whether it did."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        at, expected, value = values
        found = builder.cmpxchg(builder.inttoptr(at, _WORD.as_pointer()), expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def memory_of_call(typing: Any, count: Any, size: Any) -> Any:
    """The address of ``count`` times ``size`` bytes, constants and whole int64, that are the calling function's own."""
    words = count.literal_value * size.literal_value // 8

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once(builder, _WORD, size=words), _WORD)

    return types.int64(count, size), generate


@intrinsic
def _pointer(typing: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@register_jitable
def array(at: int, shape: Any, dtype: Any) -> Any:
    """The memory ``at`` as an array in C order."""
    return numba.carray(_pointer(at), shape, dtype)


@register_jitable
def _keep_on() -> int:
    return 0


#: Let another thread have the processor, if one wants it. Windows has no such function of this name.
give_way: Any = _keep_on if sys.platform == "win32" else types.ExternalFunction("sched_yield", types.int32())

#: What a processor's caches read and write at a time, in bytes.
LINE = 64

#: malloc, free, memset and memcpy of C.
allocate: Any = types.ExternalFunction("malloc", types.int64(types.int64))
free: Any = types.ExternalFunction("free", types.void(types.int64))
set_memory: Any = types.ExternalFunction("memset", types.int64(types.int64, types.int32, types.int64))
copy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))


@intrinsic
def _copy_line_past_caches(typing: Any, to: Any, source: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        line = ir.VectorType(ir.IntType(32), LINE // 4).as_pointer()
        there, here = (builder.inttoptr(value, line) for value in values)
        loaded = builder.load(here)
        loaded.align = 1
        stored = builder.store(loaded, there)
        stored.align = LINE
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@register_jitable
def copy_past_caches(to: int, source: int, nbytes: int) -> None:
    """Copy so many bytes, whole lines of the caches past them: what is there is not read before it is written.

    Other threads find them after an operation on memory that they share.
    """
    first = min(-to & (LINE - 1), nbytes)
    last = first + (nbytes - first & -LINE)
    copy(to, source, first)
    for at in range(first, last, LINE):
        _copy_line_past_caches(to + at, source + at)
    copy(to + last, source + last, nbytes - last)
