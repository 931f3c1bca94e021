"""The records that compiled functions share, as aligned NumPy structured dtypes.

Compiled code accesses a record through :func:`.pointers.record_at`, Python through the ctypes
structure of the same dtype. Fields are int64 unless a type is given. This includes addresses.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from typing import Any, TypeAlias

import numpy as np

Record: TypeAlias = np.dtype[Any]

# Annotations of compiled functions, for readers: Numba ignores them.

#: A record, by reference.
RecordRef: TypeAlias = Any
#: An array, by reference.
ArrayRef: TypeAlias = Any
Address: TypeAlias = int

#: The maximum number of pixels of a channel. Coordinates outside of X must be int32, too.
MAX_PIXELS = 1 << 30
#: The maximum number of axes of a level of deformable attention. A table has 2 ** axes rows.
MAX_LEVEL_AXES = 8

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
#: It is never changed after its creation. :mod:`.kernel_factories` and :mod:`.workers` have the
#: functions.
KERNEL = record(
    # Addresses of compiled functions. kernel_factories states the arguments of the last seven.
    "process_items",  # the work of a thread: workers.process_items, or that of an attention
    "proceed",  # begins the next phase of a launch
    "coordinates",  # writes the normalized coordinates of a tile
    "axis_taps",  # computes the taps of a tile on one axis
    "combine",  # adds the taps of an inner axis to the table
    "read",  # reads X through the table
    "sample_in_vectors",  # samples X without a table; 0 if there is no such kernel
    "pack",  # packs a part of X; 0 if X is never packed
    "read_packed",  # reads packed panels through the table; 0 if X is never packed
    # Constants.
    "mode",  # one of tap_plans.MODE_CODES
    "taps_per_axis",  # the number of taps of a position on one axis
    "padding",  # one of tap_plans.PADDING_CODES
    "align_corners",  # the attribute
    "X_size",  # the size of an element of X, in bytes
    "coordinate_size",  # the size of a coordinate, in bytes
    "weight_size",  # the size of a weight, in bytes; 0 in mode nearest, which has none
    "copy_size",  # in mode nearest, the size of an element of Y that waits to be written; else 0
    "packed_size",  # the size of an element of a packed panel, in bytes
    "cpus",  # the number of processors
    # In mode nearest, the size of the channels of a batch from which all pixels of an incoherent
    # grid are prefetched, in bytes.
    "prefetched_bytes",
    "may_mask",  # whether taps outside may be masked by a weight of NaN
    "columns",  # without a grid input, the number of Y's columns whose positions a worker keeps
)

#: A task for helper threads: calls of a C function that return 0 when there is nothing left to do.
TASK = record(
    "function",  # the address of the C function
    "argument",  # its first argument; the second one is the number of the thread
    "number",  # the number of the next thread
    "wanted",  # the number of helpers wanted
    "wanted_if_started",  # the number of helpers wanted if their threads must be started
    "active_helpers",  # the number of helpers that have an offer or are at work
)

#: The slot of a helper thread, which fills a cache line.
SLOT = record(
    "has_thread",  # whether the slot has a thread
    "offer",  # the address of the TASK that is offered to this thread
    ("rest_of_line", (np.int64, 6)),
)

#: Memory that the caller of a launch keeps.
ARENA = record(
    "start",  # the address of the first free byte
    "nbytes",  # the number of free bytes; below 0, so many bytes were asked for in vain
)

#: The phases of a launch. READING reads X, or the panels that PACKING has packed for all workers.
#: In PACKING_AND_READING each worker packs the panels that it reads. In END the launch has no
#: memory, or :func:`.workers.proceed` frees it.
NEW, READING, PACKING, PACKING_AND_READING, END = range(5)

#: How X is packed: not at all, by each worker for itself, or by all workers for all.
UNPACKED, PACKED_BY_EACH, PACKED_FOR_ALL = range(3)
#: For each of these, the phases of a round. END: a round has no such phase. After the rounds, the
#: channels that are not packed are read in one more phase, READING.
PHASES_OF_ROUND = ((END, END), (PACKING_AND_READING, END), (PACKING, READING))

#: The progress of a launch of either kind.
PROGRESS = record(
    "phase",  # one of the phases above; NEW when a launch begins
    "items",  # the number of items of the phase
    "next_item",  # the next item
    "step",  # the number of phases that have ended
    # A round of a LAUNCH: ``batches_at_once`` batches and ``panels_at_once`` panels of its plan.
    "first_batch",  # the first of these batches
    "first_channel",  # the first channel of these panels; after the rounds, that is not packed
)

#: How a launch is divided into work. :mod:`.workers` and :mod:`.packing` make the plan before the
#: first phase; afterwards it is only read.
LAUNCH_PLAN = record(
    "workers",  # the number of workers
    "tile_positions",  # the number of positions of a tile, for which a table of taps is computed
    "table_columns",  # the number of columns of a tile's table
    "chunk_positions",  # the number of positions of a chunk, which a worker samples tile by tile
    "chunks_per_batch",  # the number of chunks of a batch
    # The number of items after which a worker returns; 2**62: it does not. Of the group of panels
    # that a worker packs for itself, each chunk counts as an item.
    "items_per_call",
    "worker_size",  # the size of the scratch memory of a worker, in bytes
    "scratch_bytes",  # the size of the scratch memory of all workers
    # X, packed in panels: a panel has the channels of each pixel next to each other.
    "packing",  # how X is packed, as above
    "packed_channels",  # the number of channels that are packed, from the first one on
    "panel_channels",  # the number of channels of a panel
    "parts_per_panel",  # the number of parts of a panel
    "panels_at_once",  # the number of panels of a group: those that are packed at a time
    "groups_per_batch",  # the number of groups of a batch
    # The number of shares of the positions. A worker packs a group for one of them.
    "shares",
    "batches_at_once",  # the number of batches of a round
    "rounds",  # the number of rounds
    # Whether channels that are not packed are read through a table, even if tiles can be sampled in
    # vectors without one.
    "uses_table",
)

#: The arguments, the plan, the progress and the memory of a launch.
LAUNCH = record(
    # Arguments.
    "kernel",  # the address of the KERNEL
    "X",  # the address of X (n, c, pixels)
    "grid",  # the address of the grid (n, positions, r), or of what it is computed from
    "Y",  # the address of Y (n, c, positions)
    "n",  # the batch size
    "c",  # the number of channels
    "r",  # the number of spatial axes
    "pixels",  # the number of pixels of a channel of X
    "positions",  # the number of positions of a channel of Y
    "taps",  # the number of taps of a position, on all axes together
    "lengths",  # the address of the lengths of X's spatial axes (r,)
    "out_lengths",  # the address of the lengths of Y's spatial axes (r,), without a grid input
    "workers",  # the maximum number of workers
    "startable_helpers",  # the maximum number of helpers whose threads may be started
    "slots",  # the address of the slots of helper threads
    "n_slots",  # the number of slots; 0 if the caller has threads itself
    # Whether a worker returns after ``items_per_call`` items, to let Python handle signals.
    "must_pause",
    ("arena", ARENA),  # memory that the caller keeps
    ("progress", PROGRESS),
    ("plan", LAUNCH_PLAN),
    # The memory.
    "first_worker",  # the address of the WORKER of the first worker
    "memory",  # the address of the workers' scratch memory to free, or 0
    "packed",  # the address of the panels; 0 if X is not packed
    "packed_memory",  # the address to free, or 0
    ("task", TASK),
)

#: The beginning of a worker's scratch memory.
WORKER = record(
    "first_channel",  # the first channel that the worker reads
    "first_panel",  # the panel that begins with this channel
    "n_panels",  # the number of panels that the worker reads; 0: it reads the channels in X
    "layout",  # the layout of the taps in the worker's table, as in :mod:`.simd`
    "has_columns",  # whether the worker has the positions of Y's columns
    # In PACKING_AND_READING, for the group of panels that the worker has packed.
    "batch",  # its batch
    "next_position",  # the first position that the worker has not sampled yet
    "end_position",  # the position after the last one of its share
)

#: How a launch of deformable attention is divided into work. :mod:`.attention` makes the plan.
ATTENTION_PLAN = record(
    "workers",  # the number of workers
    "item_queries",  # the number of queries of an item
    "items_per_batch",  # the number of items of a batch
    "tile_queries",  # the number of queries of a tile
    "taps",  # the number of taps of a sample, on all axes together
    "samples",  # the number of samples of a tile
    "row",  # the number of channels of all heads
    "kept_rows",  # the number of queries whose sums are kept until all of an item are transposed
    "table_columns",  # the number of columns of a table: the samples, and columns after them
    # As in a LAUNCH_PLAN.
    "items_per_call",
    "worker_size",
    "scratch_bytes",
)

#: The arguments, the plan, the progress and the memory of a launch of deformable attention.
ATTENTION_LAUNCH = record(
    # Arguments.
    "value",  # the address of value (n, pixels, heads, channels)
    "locations",  # the address of the locations (n, queries, heads, points, r)
    "weights",  # the address of the weights (n, weight_queries, heads, points)
    "Y",  # the address of Y (n, queries, heads, channels)
    "channels_first",  # 1 if Y is (n, heads, channels, queries) instead
    "levels",  # the address of levels (n_levels, 1 + r), int64: numbers of points, and lengths
    "n",  # the batch size
    "pixels",  # the number of pixels of all levels
    "heads",  # the number of heads
    "channels",  # the number of channels of a head
    "queries",  # the number of queries
    "weight_queries",  # ``queries``; or 1 if the weights apply to all queries
    "points",  # the number of points of a head, on all levels
    "r",  # the number of spatial axes
    "n_levels",  # the number of levels
    "align_corners",  # the attribute
    "process_items",  # the address of the function with the work of a thread
    "workers",  # the maximum number of workers
    # Whether a worker returns after ``items_per_call`` items, to let Python handle signals.
    "must_pause",
    ("arena", ARENA),  # memory that the caller keeps
    ("progress", PROGRESS),
    ("plan", ATTENTION_PLAN),
    # The memory, as in a LAUNCH.
    "first_worker",
    "memory",
    ("task", TASK),
)

#: A kernel of a library, by name.
NAMED_KERNEL = record(
    "name",  # the address of a text with a terminating 0: operator, types and mode
    "kernel",  # the address of a KERNEL without an attribute and a number of processors
)

#: What the functions of this package call in a library, compiled for one level of processors.
FUNCTIONS = record(
    "layout",  # the number of :func:`layout_number`, by the release that built the library
    "position_work",  # jit_core.POSITION_WORK
    # Addresses of compiled functions of helper_threads.
    "offer_task",
    "withdraw_and_wait",
    "helper_loop",
    "n_kernels",  # the number of kernels
    "kernels",  # the address of an array of NAMED_KERNEL
)


def layout_number() -> int:
    """Return a number that changes with the records that Python and a library share."""
    records = (KERNEL, LAUNCH, ATTENTION_LAUNCH, SLOT, NAMED_KERNEL, FUNCTIONS)
    return zlib.crc32(repr([dtype.descr for dtype in records]).encode())
