"""Memory in compiled code: records and arrays at an address, atomic operations on fields, and calls by address or type.

In compiled code an address is an int64. Nothing here raises or allocates anything of Python's.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload, register_jitable

from . import target
from .structs import CACHE_LINE

_WORD = ir.IntType(64)
#: The bits of an address that say where in a line of the caches it lies.
_WITHIN_LINE = np.int64(CACHE_LINE - 1)


def caller(n_answers: int = 0, offset: int | None = None) -> Any:
    """A function for compiled code, of an address and a tuple of int64: it calls the C function there with these.

    With an ``offset`` the C function's own address lies so many bytes behind that one. It answers with what the C
    function does; or where that writes ``n_answers`` words, by pointers that come last, with these behind it.
    """
    answer = types.Tuple([types.int64] * (1 + n_answers)) if n_answers else types.int64

    @intrinsic
    def call_it(typing: Any, at: Any, arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            at = values[0]
            if offset is not None:
                at = builder.load(builder.inttoptr(builder.add(at, _WORD(offset)), _WORD.as_pointer()))
            answers = [cgutils.alloca_once_value(builder, _WORD(0)) for _ in range(n_answers)]
            words = [*cgutils.unpack_tuple(builder, values[1]), *(builder.ptrtoint(each, _WORD) for each in answers)]
            kind = ir.FunctionType(_WORD, [_WORD] * len(words)).as_pointer()
            first = builder.call(builder.inttoptr(at, kind), words)
            if not answers:
                return first
            return context.make_tuple(builder, signature.return_type, [first, *map(builder.load, answers)])

        return answer(types.int64, arguments), generate

    return call_it


#: What the C function at an address answers to a tuple of int64.
call = caller()


@intrinsic
def struct(typing: Any, at: Any, dtype: Any) -> Any:
    """The record of ``dtype``, one of :mod:`.structs`, ``at`` an address."""
    kind = dtype.dtype
    return kind(types.int64, dtype), lambda context, builder, signature, values: builder.inttoptr(
        values[0], context.get_value_type(kind)
    )


@intrinsic
def address(typing: Any, record: Any) -> Any:
    """Where the ``record`` lies."""
    return types.int64(record), lambda context, builder, signature, values: builder.ptrtoint(values[0], _WORD)


@intrinsic
def sizeof(typing: Any, dtype: Any) -> Any:
    """The bytes of a record of ``dtype``."""
    size = dtype.dtype.size
    return types.int64(dtype), lambda context, builder, signature, values: _WORD(size)


@intrinsic(prefer_literal=True)
def chars(typing: Any, text: Any) -> Any:
    """The address of a literal ``text``, as C has it: with a 0 at its end."""
    return types.int64(text), lambda context, builder, signature, values: builder.ptrtoint(
        context.insert_const_string(builder.module, text.literal_value), _WORD
    )


def _field(builder: Any, signature: Any, values: Any) -> Any:
    """A pointer to the int64 field of a record, the first argument, that the second names."""
    record, name = signature.args[:2]
    place = builder.gep(values[0], [ir.IntType(32)(0), ir.IntType(32)(record.offset(name.literal_value))])
    return builder.bitcast(place, _WORD.as_pointer())


@intrinsic(prefer_literal=True)
def fetch_add(typing: Any, record: Any, field: Any, value: Any) -> Any:
    """Add ``value`` to a field, whoever else does at the same time; answers what it was."""
    return types.int64(record, field, types.int64), lambda context, builder, signature, values: builder.atomic_rmw(
        "add", _field(builder, signature, values), values[2], "seq_cst"
    )


@intrinsic(prefer_literal=True)
def load_shared(typing: Any, record: Any, field: Any) -> Any:
    """A field, and all that another thread wrote before it."""
    return types.int64(record, field), lambda context, builder, signature, values: builder.load_atomic(
        _field(builder, signature, values), "seq_cst", 8
    )


@intrinsic(prefer_literal=True)
def store_shared(typing: Any, record: Any, field: Any, value: Any) -> Any:
    """Put ``value`` into a field, for other threads to find with all that was written before."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store_atomic(values[2], _field(builder, signature, values), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(record, field, types.int64), generate


@intrinsic(prefer_literal=True)
def compare_and_swap(typing: Any, record: Any, field: Any, expected: Any, value: Any) -> Any:
    """Put ``value`` into a field if ``expected`` is there, in one step; answers whether it was."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = builder.cmpxchg(_field(builder, signature, values), *values[2:], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(record, field, types.int64, types.int64), generate


@intrinsic
def local(typing: Any, dtype: Any) -> Any:
    """A record of ``dtype``, whose fields are whole int64, in memory that is the calling function's own."""
    kind = dtype.dtype

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        memory = cgutils.alloca_once(builder, _WORD, size=kind.size // 8)
        return builder.bitcast(memory, context.get_value_type(kind))

    return kind(dtype), generate


@intrinsic
def _pointer(typing: Any, at: Any) -> Any:
    return types.voidptr(types.int64), lambda context, builder, signature, values: builder.inttoptr(
        values[0], ir.IntType(8).as_pointer()
    )


def by_types(choose: Callable[..., Any]) -> Any:
    """What compiled code calls as the function that ``choose`` answers to the types of the arguments."""

    @wraps(choose)
    def chosen(*arguments: Any) -> Any: ...

    overload(chosen, strict=False)(choose)
    return chosen


@register_jitable
def array(at: int, shape: Any, dtype: Any) -> Any:
    """The memory ``at`` as an array in C order."""
    return numba.carray(_pointer(at), shape, dtype)


@register_jitable
def view(record: Any, offset: int, shape: Any, dtype: Any) -> Any:
    """The array in C order that begins ``offset`` bytes behind the beginning of ``record``."""
    return array(address(record) + offset, shape, dtype)


@register_jitable
def aligned(size: int) -> int:
    """``size``, or an address, raised to a multiple of a line of the caches."""
    return (size + CACHE_LINE - 1) & -CACHE_LINE


#: Let another thread have the processor, if one wants it. Windows has no such function of this name.
sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())
if target.system == "win32":
    sched_yield = register_jitable(lambda: 0)

#: malloc, free, memset and memcpy of C.
allocate: Any = types.ExternalFunction("malloc", types.int64(types.int64))
free: Any = types.ExternalFunction("free", types.void(types.int64))
set_memory: Any = types.ExternalFunction("memset", types.int64(types.int64, types.int32, types.int64))
copy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))


@register_jitable
def take(arena: Any, nbytes: int) -> tuple[int, int]:
    """Memory of so many bytes: where it begins (0: there is none), at a line of the caches, and what is to be freed.

    Nothing is to be freed where the ``arena`` had room.
    """
    size = nbytes + CACHE_LINE
    if size <= arena.nbytes:
        at = arena.at
        arena.at, arena.nbytes = at + size, arena.nbytes - size
        return aligned(at), 0
    at = allocate(size)
    return aligned(at), at


@intrinsic
def _copy_line_past_caches(typing: Any, to: Any, source: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        line = ir.VectorType(ir.IntType(32), CACHE_LINE // 4).as_pointer()
        there, here = (builder.inttoptr(value, line) for value in values)
        loaded = builder.load(here)
        loaded.align = 1
        stored = builder.store(loaded, there)
        stored.align = CACHE_LINE
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@register_jitable
def copy_past_caches(to: Any, source: Any) -> None:
    """Copy the array ``source`` (P,) into ``to`` (≥ P,), both in C order, whole lines of the caches past them.

    What is there is not read before it is written. Other threads find it after an operation on memory that they share.
    """
    there, here, nbytes = np.int64(to.ctypes.data), np.int64(source.ctypes.data), source.nbytes
    first = min(-there & _WITHIN_LINE, nbytes)
    last = first + (nbytes - first & -CACHE_LINE)
    copy(there, here, first)
    for at in range(first, last, CACHE_LINE):
        _copy_line_past_caches(there + at, here + at)
    copy(there + last, here + last, nbytes - last)
