"""The records that compiled functions share, as aligned NumPy structured dtypes: each field has its name and type here.

Compiled code reaches a record by :func:`.pointers.struct`, Python by the ctypes structure of the same dtype. Addresses,
and offsets from the beginning of a record, are int64 too.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, TypeAlias

import numpy as np

Record: TypeAlias = np.dtype[Any]

#: What a processor's caches read and write at a time, in bytes.
CACHE_LINE = 64


def record(*fields: str | tuple[str, Any]) -> Record:
    """A record of ``fields``: names of int64, separated by blanks, or a name and its type."""
    listed: list[Any] = []
    for field in fields:
        listed += [(name, np.int64) for name in field.split()] if isinstance(field, str) else [field]
    return np.dtype(listed, align=True)


def ctypes_type(dtype: Record) -> Any:
    """The ctypes structure of a record, whose fields are all int64, arrays of int64 or records.

    NumPy's function for this makes packed structures, which Python 3.14 deprecates on other systems than Windows.
    """
    fields = [(name, _ctypes_field(dtype.fields[name][0])) for name in dtype.names or ()]  # type: ignore[index]
    made = type("Record", (ctypes.Structure,), {"_fields_": fields})
    assert ctypes.sizeof(made) == dtype.itemsize
    return made


def _ctypes_field(dtype: Record) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _ctypes_field(base) * math.prod(shape)
    if dtype.names is not None:
        return ctypes_type(dtype)
    assert dtype == np.int64
    return ctypes.c_int64


#: The kernel descriptor: one way to sample, made once and never changed.
KERNEL = record(
    # The addresses of compiled functions; the last two are 0 where X is never packed.
    "worker proceed coordinates axis_taps combine read pack read_packed",
    # The taps on an axis, the padding, sizes of elements in bytes, processors; and whether the sum does without the
    # weights of taps outside.
    "taps padding align_corners X_size coordinate_size weight_size cpus may_mask",
    # Where there is no grid: as many columns of Y are known to a worker once for all.
    "columns",
)

#: A task for helper threads: a function, to call with ``argument`` and a number until it answers 0; the next number,
#: which nobody else has; how many helpers are wanted, how many if some must be woken, how many are expected or at work.
TASK = record("function argument number wanted woken expected")

#: A helper thread's slot, a line of the caches: whether a thread is there, and the address of the task it is offered.
SLOT = record("there offer", ("rest_of_line", (np.int64, 6)))

#: Memory that a caller keeps: where what is left of it lies, and its bytes.
ARENA = record("at nbytes")

#: Where the arrays of a worker's scratch memory lie, in bytes from its header: a tile's coordinates; on one axis those
#: in pixels, the taps and their weights; the two buffers of the table's taps and weights; how far contiguous taps lie
#: from the first; sums that wait to be rounded or written, and a strip of them with the channels last; Y's columns.
SCRATCH = record("coordinates axis along along_weight index weight offsets sums strip columns")

#: The launch arguments: what is sampled where, how :func:`.workers.proceed` cuts that, and how far it is.
LAUNCH = record(
    # Addresses, lengths and products of lengths; ``rows`` are the taps of all axes together.
    "kernel X grid Y n c r pixels positions rows lengths out_lengths",
    # At most so many workers, and whether they come back now and then, before nothing is left.
    "workers pauses",
    # The positions of a tile, the columns of the table, the positions of a chunk of Y, and the chunks of a batch.
    "tile width chunk chunks",
    # The phase, its items, the next of them, and after how many a worker comes back.
    "phase items next pause",
    ("own", ARENA),
    # The workers': its bytes, what was allocated for it, where the first one's lies, and the bytes of each.
    "nbytes memory first_worker worker_size",
    ("scratch", SCRATCH),
    # X packed in panels of so many channels: where (0: it is not), what was allocated, and how it is packed; the parts
    # of a panel; how often, for all channels, a worker's own panels are packed; the batches and panels that are there
    # at a time, and the first of them.
    "packed packed_memory packing panel parts groups batches panels first_batch first_channel",
    ("task", TASK),
)

#: What begins a worker's scratch memory: the channel from which on it reads panels, the first of them and how many; how
#: the taps of its table lie; and whether it has Y's columns.
WORKER = record("channel first_panel panels layout has_columns")

#: The launch arguments of deformable attention, and how :func:`.attention.proceed_attention` cuts it into items.
ATTENTION = record(
    # Addresses: values (n, pixels, heads, channels), locations (n, queries, heads, points, r), weights (n, weighted,
    # heads, points) for all queries or one for all, Y (n, queries, heads, channels); of int64 levels (n_levels, 1 + r),
    # each its points and its lengths.
    "value locations weights Y levels",
    "n pixels heads channels queries weighted points r n_levels align_corners",
    # The address of the worker; at most so many workers, and whether they come back now and then.
    "worker workers pauses",
    # The queries of an item, the items of a batch, and the columns of a table with those behind its last.
    "tile tiles width",
    "phase items next pause",
    ("own", ARENA),
    # The workers': their bytes, what was allocated for them, where the first one's lie, and the bytes of each.
    "nbytes memory first_worker worker_size",
    # Where the arrays of a worker lie, in bytes: see :func:`.attention.attention_for`.
    ("scratch", record("zeros sums first lengths coordinates base index addresses weights")),
    ("task", TASK),
)
