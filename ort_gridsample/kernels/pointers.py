"""Memory in compiled code: records, arrays, atomic operations, and calls by address.

In compiled code an address is an int64. The name of an argument that is the address of a record of
this package ends in ``_address``; without the suffix it is the record. Addresses of ONNX Runtime's
objects (``api``, ``info``, ``context``, ``node``) have no suffix.

Nothing here raises an exception or allocates a Python object.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload, register_jitable
from numba.np.arrayobj import make_array, populate_array

from . import target
from .structs import CACHE_LINE, ArrayRef, RecordRef

_INT64 = ir.IntType(64)
#: The bits of an address that are the position within a cache line.
_WITHIN_LINE = np.int64(CACHE_LINE - 1)


# --- Calls ---


def caller(n_results: int = 0, offset: int | None = None, n_arguments: int | None = None) -> Any:
    """Return a function for compiled code that calls a C function of int64 arguments.

    Its arguments are an address and a tuple of int64, the arguments of the C function.

    Args:
        n_results: the number of values that the C function writes through pointers, its last
            arguments. The returned function allocates them.
        offset: None if the address is that of the C function. Otherwise the address of the C
            function is stored ``offset`` bytes after the given address.
        n_arguments: the number of arguments of the C function, with the pointers to results. A call
            with another number does not compile. None: the number is not checked.

    Returns:
        A function that returns the result of the C function; or, with ``n_results``, a tuple of the
        result and these values.
    """
    result = types.Tuple([types.int64] * (1 + n_results)) if n_results else types.int64

    @intrinsic
    def call_function(typing_context: Any, address: Any, arguments_type: Any) -> Any:
        n_passed = len(arguments_type) + n_results
        if n_arguments is not None and n_passed != n_arguments:
            message = f"a C function of {n_arguments} arguments is called with {n_passed}"
            raise TypingError(message)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = arguments[0]
            if offset is not None:
                field = builder.add(address, _INT64(offset))
                address = builder.load(builder.inttoptr(field, _INT64.as_pointer()))
            results = [cgutils.alloca_once_value(builder, _INT64(0)) for _ in range(n_results)]
            words = [
                *cgutils.unpack_tuple(builder, arguments[1]),
                *(builder.ptrtoint(pointer, _INT64) for pointer in results),
            ]
            function_type = ir.FunctionType(_INT64, [_INT64] * len(words)).as_pointer()
            returned = builder.call(builder.inttoptr(address, function_type), words)
            if not results:
                return returned
            loaded = [builder.load(pointer) for pointer in results]
            return context.make_tuple(builder, signature.return_type, [returned, *loaded])

        return result(types.int64, arguments_type), generate

    return call_function


#: ``call(address, arguments)`` calls the C function at an address.
call = caller()


# --- Records ---


@intrinsic
def record_at(typing_context: Any, address: Any, dtype: Any) -> Any:
    """Return the record of ``dtype``, one of :mod:`.structs`, at an ``address``."""
    record = dtype.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(record))

    return record(types.int64, dtype), generate


@intrinsic
def address_of(typing_context: Any, record: Any) -> Any:
    """Return the address of a ``record``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], _INT64)

    return types.int64(record), generate


@intrinsic
def sizeof(typing_context: Any, dtype: Any) -> Any:
    """Return the size of a record of ``dtype`` in bytes."""
    size = dtype.dtype.size
    return types.int64(dtype), lambda context, builder, signature, arguments: _INT64(size)


@intrinsic
def local_record(typing_context: Any, dtype: Any) -> Any:
    """Return an uninitialized record of ``dtype`` on the stack of the calling function.

    The size of the record must be a multiple of 8 bytes.
    """
    record = dtype.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        memory = cgutils.alloca_once(builder, _INT64, size=record.size // 8)
        return builder.bitcast(memory, context.get_value_type(record))

    return record(dtype), generate


# --- Int64 fields of records ---
#
# Atomic operations are sequentially consistent.


def _field_pointer(builder: Any, signature: Any, arguments: Any) -> Any:
    """Return a pointer to an int64 field. The first two arguments are the record and the name."""
    record, name = signature.args[:2]
    offset = ir.IntType(32)(record.offset(name.literal_value))
    field = builder.gep(arguments[0], [ir.IntType(32)(0), offset])
    return builder.bitcast(field, _INT64.as_pointer())


@intrinsic(prefer_literal=True)
def field_address(typing_context: Any, record: Any, field: Any) -> Any:
    """Return the address of an int64 field."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(_field_pointer(builder, signature, arguments), _INT64)

    return types.int64(record, field), generate


@intrinsic(prefer_literal=True)
def fetch_add(typing_context: Any, record: Any, field: Any, value: Any) -> Any:
    """Atomically add ``value`` to a field; return the old value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _field_pointer(builder, signature, arguments)
        return builder.atomic_rmw("add", pointer, arguments[2], "seq_cst")

    return types.int64(record, field, types.int64), generate


@intrinsic(prefer_literal=True)
def load_shared(typing_context: Any, record: Any, field: Any) -> Any:
    """Atomically load a field."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_field_pointer(builder, signature, arguments), "seq_cst", 8)

    return types.int64(record, field), generate


@intrinsic(prefer_literal=True)
def store_shared(typing_context: Any, record: Any, field: Any, value: Any) -> Any:
    """Atomically store ``value`` in a field."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _field_pointer(builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(record, field, types.int64), generate


@intrinsic(prefer_literal=True)
def compare_and_swap(
    typing_context: Any, record: Any, field: Any, expected: Any, value: Any
) -> Any:
    """Atomically store ``value`` in a field if the field is ``expected``; return whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _field_pointer(builder, signature, arguments)
        result = builder.cmpxchg(pointer, *arguments[2:], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(record, field, types.int64, types.int64), generate


# --- Arrays and strings ---


@intrinsic(prefer_literal=True)
def c_string(typing_context: Any, text: Any) -> Any:
    """Return the address of a literal ``text`` as a null-terminated C string."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        constant = context.insert_const_string(builder.module, text.literal_value)
        return builder.ptrtoint(constant, _INT64)

    return types.int64(text), generate


@intrinsic
def array_at(typing_context: Any, address: Any, shape: Any, dtype: Any) -> Any:
    """Return the array in C order at an ``address``.

    :func:`numba.carray` does the same in several functions, which are compiled for each type.
    """
    array_type = types.Array(dtype.dtype, len(shape), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = make_array(array_type)(context, builder)
        lengths = [
            context.cast(builder, length, length_type, types.intp)
            for length, length_type in zip(
                cgutils.unpack_tuple(builder, arguments[1]), signature.args[1], strict=True
            )
        ]
        itemsize = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        strides = [_INT64(itemsize)]
        for length in lengths[:0:-1]:
            strides.insert(0, builder.mul(strides[0], length))
        data = builder.inttoptr(arguments[0], array.data.type)
        populate_array(array, data, lengths, strides, itemsize, meminfo=None)
        return array._getvalue()

    return array_type(types.int64, shape, dtype), generate


#: Decorate a function for compiled code that returns an array. Numba refuses such a function if the
#: code that calls it has no reference counts, unless the function has them.
returns_array: Any = register_jitable(_nrt=True)


def by_types(choose: Callable[..., Any]) -> Any:
    """Decorate a function that returns an implementation for the types of its arguments.

    Numba calls the decorated function once for each combination of types, with the types as
    arguments, and compiles the function that it returns. Compiled code calls the decorated function
    with values, which are the arguments of the returned function::

        @by_types
        def is_nan(value_type):
            if isinstance(value_type, types.Float):
                return lambda value: value != value
            return lambda value: False

    Args:
        choose: a function of types that returns a function of values. Both have the same number of
            arguments.
    """

    @wraps(choose)
    def chosen(*arguments: Any) -> Any: ...

    overload(chosen, strict=False)(choose)
    return chosen


# --- Functions of the C library ---

#: Let another thread run. Windows has no function of this name.
sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())
if target.system == "win32":
    sched_yield = register_jitable(lambda: 0)

malloc: Any = types.ExternalFunction("malloc", types.int64(types.int64))
free: Any = types.ExternalFunction("free", types.void(types.int64))
_MEMSET = types.int64(types.int64, types.int32, types.int64)
memset: Any = types.ExternalFunction("memset", _MEMSET)
memcpy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))


# --- Locks ---


@register_jitable
def acquire_lock(record: RecordRef) -> None:
    """Wait until no other thread has the lock of ``record``, its field ``lock``, and take it."""
    while not compare_and_swap(record, "lock", 0, 1):
        sched_yield()


@register_jitable
def release_lock(record: RecordRef) -> None:
    """Free the lock of ``record``."""
    store_shared(record, "lock", 0)


# --- Memory in cache lines ---


@register_jitable
def round_up_to_line(size: int) -> int:
    """Round a size or an address up to a multiple of a cache line."""
    return (size + CACHE_LINE - 1) & -CACHE_LINE


@register_jitable
def arena_alloc(arena: RecordRef, nbytes: int) -> tuple[int, int]:
    """Allocate memory from a :data:`.structs.ARENA`, or with malloc if the arena is too small.

    Returns:
        The address of the memory, at the beginning of a cache line, or 0 if there is not enough;
        and the address to free later, or 0 if the memory belongs to the arena.
    """
    size = nbytes + CACHE_LINE
    arena.nbytes -= size
    if arena.nbytes >= 0:
        start = arena.start
        arena.start = start + size
        return round_up_to_line(start), 0
    start = malloc(size)
    return round_up_to_line(start), start


@intrinsic
def _copy_line_past_caches(typing_context: Any, to: Any, source: Any) -> Any:
    """Copy a cache line between two addresses. ``to`` is the beginning of a line."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(ir.IntType(32), CACHE_LINE // 4).as_pointer()
        target_pointer, source_pointer = (
            builder.inttoptr(argument, line) for argument in arguments
        )
        loaded = builder.load(source_pointer)
        loaded.align = 1
        stored = builder.store(loaded, target_pointer)
        stored.align = CACHE_LINE
        one = ir.Constant(ir.IntType(32), 1)
        stored.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@register_jitable
def copy_past_caches(to: ArrayRef, source: ArrayRef) -> None:
    """Copy the array ``source`` (P,) to the beginning of ``to`` (≥ P,), both in C order.

    Whole cache lines are written with non-temporal stores: they are not read before. Other threads
    see them after an atomic operation.
    """
    to_address = np.int64(to.ctypes.data)
    source_address = np.int64(source.ctypes.data)
    nbytes = source.nbytes
    first = min(-to_address & _WITHIN_LINE, nbytes)
    end = first + (nbytes - first & -CACHE_LINE)
    memcpy(to_address, source_address, first)
    for offset in range(first, end, CACHE_LINE):
        _copy_line_past_caches(to_address + offset, source_address + offset)
    memcpy(to_address + end, source_address + end, nbytes - end)
