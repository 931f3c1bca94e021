"""The layout of scratch memory: a table of arrays that yields offsets, views and the total size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

from .structs import CACHE_LINE, Record

_INT64 = ir.IntType(64)


class ScratchArray(NamedTuple):
    """A row of the table: an array in C order.

    A *field* is the name of an int64 field of the launch. ``"plan.table_columns"`` is a field of
    the record ``plan`` inside the launch, and ``"kernel.taps_per_axis"`` one of the record whose
    address is in the field ``kernel``.
    """

    name: str
    #: The type of the elements; or, if it differs between kernels, their size in bytes: a field, or
    #: an upper bound.
    element: np.dtype[Any] | str | int
    #: Numbers and fields.
    shape: Sequence[int | str]


def scratch_layout(
    launch_record: Record,
    table: Sequence[ScratchArray],
    header_size: int = 0,
    pointed_records: Mapping[str, Record] | None = None,
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return the functions of compiled code that access scratch memory.

    Args:
        launch_record: the record with the sizes of the arrays.
        table: the arrays, in the order in which they lie in memory. Each begins at a cache line.
        header_size: the number of bytes before the first array.
        pointed_records: the records of fields that are addresses of records.

    Returns:
        Three functions of a launch. The last two also have the address of the memory and the
        literal name of an array as arguments:

        - ``scratch_size(launch)`` returns the size of the memory in bytes.
        - ``scratch_address(launch, memory, name)`` returns the address of an array.
        - ``scratch_array(launch, memory, name, dtype)`` returns an array. Its type must fit the
          table.
    """
    indices = {row.name: index for index, row in enumerate(table)}
    layout = _Layout(launch_record, table, header_size, pointed_records or {})

    @intrinsic
    def scratch_size(typing_context: Any, launch: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return layout.offset(builder, arguments[0], len(table))

        return types.int64(launch), generate

    @intrinsic(prefer_literal=True)
    def scratch_address(typing_context: Any, launch: Any, memory: Any, name: Any) -> Any:
        index = indices[name.literal_value]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            launch, memory = arguments[:2]
            return builder.add(memory, layout.offset(builder, launch, index))

        return types.int64(launch, types.int64, name), generate

    @intrinsic(prefer_literal=True)
    def scratch_array(typing_context: Any, launch: Any, memory: Any, name: Any, dtype: Any) -> Any:
        index = indices[name.literal_value]
        row = table[index]
        element = dtype.dtype
        _check_type(row, element)
        array_type = types.Array(element, len(row.shape), "C")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            launch, memory = arguments[:2]
            return layout.array(context, builder, launch, memory, index, array_type)

        return array_type(launch, types.int64, name, dtype), generate

    return scratch_size, scratch_address, scratch_array


def _check_type(row: ScratchArray, element: Any) -> None:
    """Raise TypingError if the array of this ``row`` cannot have elements of this type."""
    if isinstance(row.element, np.dtype):
        fits = from_dtype(row.element) == element
    elif isinstance(row.element, int):
        fits = element.bitwidth <= 8 * row.element
    else:
        fits = True  # the size is not known before the launch
    if not fits:
        raise TypingError(f"scratch array {row.name} of {element}, expected {row.element}")


class _Layout:
    """Generate LLVM instructions that compute the offsets of arrays from the fields of a launch."""

    def __init__(
        self,
        launch_record: Record,
        table: Sequence[ScratchArray],
        header_size: int,
        pointed_records: Mapping[str, Record],
    ) -> None:
        self._launch_record = launch_record
        self._table = table
        self._header_size = header_size
        self._pointed_records = pointed_records

    def offset(self, builder: Any, launch: Any, index: int) -> Any:
        """Return the offset of the array with this ``index``.

        If ``index`` is the number of arrays, this is the total size.
        """
        end = _aligned(builder, _INT64(self._header_size))
        for row in self._table[:index]:
            element = row.element
            itemsize = element.itemsize if isinstance(element, np.dtype) else element
            nbytes = self.value(builder, launch, itemsize)
            for length in row.shape:
                nbytes = builder.mul(nbytes, self.value(builder, launch, length))
            end = builder.add(end, _aligned(builder, nbytes))
        return end

    def array(
        self,
        context: Any,
        builder: Any,
        launch: Any,
        memory: Any,
        index: int,
        array_type: Any,
    ) -> Any:
        """Return the array with this ``index``, of Numba's type ``array_type``."""
        element = context.get_data_type(array_type.dtype)
        itemsize = _INT64(context.get_abi_sizeof(element))
        shape = [self.value(builder, launch, length) for length in self._table[index].shape]
        strides = [itemsize]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(length, strides[0]))
        begin = builder.add(memory, self.offset(builder, launch, index))
        array = context.make_array(array_type)(context, builder)
        populate_array(
            array,
            data=builder.inttoptr(begin, element.as_pointer()),
            shape=shape,
            strides=strides,
            itemsize=itemsize,
            meminfo=None,
        )
        return array._getvalue()

    def value(self, builder: Any, launch: Any, number: int | str) -> Any:
        """Return a ``number`` of the table, which may be a field of the ``launch``."""
        if isinstance(number, int):
            return _INT64(number)
        pointer = launch
        record = self._launch_record
        *outer_names, name = number.split(".")
        for outer_name in outer_names:
            if outer_name in self._pointed_records:
                address = builder.load(_field(builder, pointer, record, outer_name))
                pointer = builder.inttoptr(address, _INT64.as_pointer())
                record = self._pointed_records[outer_name]
            else:
                pointer = _field(builder, pointer, record, outer_name)
                record = record.fields[outer_name][0]  # type: ignore[index]
        return builder.load(_field(builder, pointer, record, name))


def _field(builder: Any, pointer: Any, record: Record, name: str) -> Any:
    """Return a pointer to a field of the ``record`` at ``pointer``, as to an int64."""
    offset = record.fields[name][1]  # type: ignore[index]
    begin = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(begin, [_INT64(offset)]), _INT64.as_pointer())


def _aligned(builder: Any, size: Any) -> Any:
    """Round ``size`` up to whole cache lines."""
    return builder.and_(builder.add(size, _INT64(CACHE_LINE - 1)), _INT64(-CACHE_LINE))
