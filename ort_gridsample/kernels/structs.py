"""The records that compiled functions share, as aligned NumPy structured dtypes.

Compiled code accesses a record through :func:`.pointers.struct`, Python through the ctypes
structure of the same dtype. Fields are int64 unless a type is given. This includes addresses.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, TypeAlias

import numpy as np

Record: TypeAlias = np.dtype[Any]

#: The size of a line of the processor's caches, in bytes.
CACHE_LINE = 64


def record(*fields: str | tuple[str, Any]) -> Record:
    """Return the dtype of a record.

    Args:
        fields: names of int64 fields, separated by blanks; or pairs of a name and a type.
    """
    types: list[tuple[str, Any]] = []
    for field in fields:
        if isinstance(field, str):
            types += [(name, np.int64) for name in field.split()]
        else:
            types.append(field)
    return np.dtype(types, align=True)


def ctypes_type(dtype: Record) -> Any:
    """Return the ctypes structure of a record, whose fields are int64, arrays of int64 or records.

    NumPy's function for this creates packed structures. Python 3.14 deprecates them, except on
    Windows.
    """
    fields = [
        (name, _ctypes_field(dtype.fields[name][0]))  # type: ignore[index]
        for name in dtype.names or ()
    ]
    structure = type("Record", (ctypes.Structure,), {"_fields_": fields})
    assert ctypes.sizeof(structure) == dtype.itemsize
    return structure


def _ctypes_field(dtype: Record) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _ctypes_field(base) * math.prod(shape)
    if dtype.names is not None:
        return ctypes_type(dtype)
    assert dtype == np.int64
    return ctypes.c_int64


#: The kernel descriptor: the functions and constants for one combination of types and attributes.
#: It is never changed after its creation.
KERNEL = record(
    # The addresses of compiled functions. The last two are 0 if X is never packed.
    "worker proceed coordinates axis_taps combine read pack read_packed",
    # The number of taps on an axis, one of workers.PADDING, and an attribute.
    "taps padding align_corners",
    # The sizes of elements in bytes. Weights have size 0 if there are none, in mode nearest. Copies
    # are elements of Y that wait to be written, in mode nearest; otherwise their size is 0.
    "X_size coordinate_size weight_size copy_size",
    # The number of processors, and whether taps outside may be masked by a weight of NaN.
    "cpus may_mask",
    # If there is no grid input: the number of Y's columns whose positions a worker keeps.
    "columns",
)

#: A task for helper threads: a C function, which is called with ``argument`` and the number of a
#: thread until it returns 0; the next number; the number of helpers wanted, and the number wanted
#: if threads must be started for them; and the number of helpers that have an offer or are at work.
TASK = record("function argument number wanted wanted_if_started expected")

#: The slot of a helper thread, which fills a cache line: whether it has a thread, and the address
#: of the task that is offered to that thread.
SLOT = record("has_thread offer", ("rest_of_line", (np.int64, 6)))

#: Memory that the caller of a launch keeps: the first free byte, and the number of free bytes.
ARENA = record("start nbytes")

#: The arguments and the progress of a launch. :func:`.workers.proceed` divides it into chunks.
LAUNCH = record(
    # Addresses, lengths and products of lengths. ``rows`` is the number of taps on all axes
    # together.
    "kernel X grid Y n c r pixels positions rows lengths out_lengths",
    # The maximum number of workers, and whether a worker returns from time to time.
    "workers pauses",
    # The positions of a tile, the columns of its table, the positions of a chunk, the chunks of a
    # batch.
    "tile width chunk chunks",
    # The phase, its number of items, the next item, and after how many items a worker returns.
    "phase items next pause",
    ("arena", ARENA),
    # The scratch memory of all workers: its size, what must be freed, the address of the first
    # worker's, and the size of each.
    "nbytes memory first_worker worker_size",
    # X, packed in panels of ``panel`` channels: its address (0: X is not packed), what must be
    # freed, and the phase that packs X.
    "packed packed_memory packing panel",
    # The number of parts of a panel, and of groups of panels that a worker packs for itself.
    "parts groups",
    # The batches and the panels that are packed at a time, and the first of each.
    "batches panels first_batch first_channel",
    ("task", TASK),
)

#: The beginning of a worker's scratch memory: the first channel that it reads from panels, the
#: first of these panels and their number; the layout of the taps in its table, as in :mod:`.simd`;
#: and whether it has the positions of Y's columns.
WORKER = record("channel first_panel panels layout has_columns")

#: The arguments and the progress of a launch of deformable attention.
#: :func:`.attention.proceed_attention` divides it into items.
ATTENTION = record(
    # Addresses of arrays: value (n, pixels, heads, channels), locations (n, queries, heads, points,
    # r), weights (n, weighted, heads, points), where ``weighted`` is ``queries`` or 1, and Y (n,
    # queries, heads, channels). And of the int64 array levels (n_levels, 1 + r): the number of
    # points of each level, and its lengths.
    "value locations weights Y levels",
    "n pixels heads channels queries weighted points r n_levels align_corners",
    # The address of the worker function, the maximum number of workers, and whether a worker
    # returns from time to time.
    "worker workers pauses",
    # The queries of an item, and the items of a batch.
    "tile tiles",
    # The taps of a sample, the samples of an item, and the columns of a table. These are the
    # samples and the columns behind them.
    "taps samples width",
    # As in a LAUNCH.
    "phase items next pause",
    ("arena", ARENA),
    "nbytes memory first_worker worker_size",
    ("task", TASK),
)
