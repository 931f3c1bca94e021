"""The tiles of a launch: the scratch memory of a worker, and the table of a tile's taps.

The scratch memory begins with a :data:`~.structs.WORKER`. :data:`SCRATCH_ARRAYS` lists the arrays
that follow.
"""

import numpy as np
from numba.extending import register_jitable

from . import tap_sums
from .pointers import address_of, call, record_at
from .scratch import ScratchArray, scratch_layout
from .simd import WIDE_PANEL
from .structs import KERNEL, LAUNCH, WORKER, RecordRef

#: The number of channels whose sums wait in float32 until they are rounded to halves. They may be
#: those of a wide panel.
CHANNELS_PER_GROUP = 16
assert CHANNELS_PER_GROUP >= WIDE_PANEL

#: The scratch memory of a worker, after a WORKER.
SCRATCH_ARRAYS = (
    # The normalized coordinates of a tile by axis, and memory for those of one axis.
    ScratchArray("coordinates", "kernel.coordinate_size", ("r", "plan.table_columns")),
    ScratchArray("axis_coordinates", "kernel.coordinate_size", ("plan.tile_positions",)),
    # The taps of an inner axis, and their weights.
    ScratchArray("axis_index", np.dtype(np.uint32), ("kernel.taps_per_axis", "plan.table_columns")),
    ScratchArray(
        "axis_weight", "kernel.weight_size", ("kernel.taps_per_axis", "plan.table_columns")
    ),
    # The table's taps and weights, in two buffers.
    ScratchArray("index", np.dtype(np.uint32), (2, "taps", "plan.table_columns")),
    ScratchArray("weight", "kernel.weight_size", (2, "taps", "plan.table_columns")),
    # The distances of contiguous taps to the first.
    ScratchArray("offsets", np.dtype(np.int64), ("taps",)),
    # Values that wait to be rounded, or to be written.
    ScratchArray("sums", "kernel.weight_size", (CHANNELS_PER_GROUP, "plan.table_columns")),
    ScratchArray("copies", "kernel.copy_size", ("plan.table_columns",)),
    # Sums with the channels last: up to WIDE_PANEL channels of STRIP positions.
    ScratchArray("strip", "kernel.weight_size", (tap_sums.STRIP * WIDE_PANEL,)),
    # The positions of Y's columns, if an AffineGrid is computed.
    ScratchArray("columns", 8, ("kernel.columns",)),
)
scratch_size, scratch_address, scratch_array = scratch_layout(
    LAUNCH, SCRATCH_ARRAYS, WORKER.itemsize, {"kernel": KERNEL}
)


@register_jitable
def worker_record(launch: RecordRef, number: int) -> RecordRef:
    """Return the :data:`.structs.WORKER` of a worker."""
    return record_at(launch.first_worker + number * launch.plan.worker_size, WORKER)


@register_jitable
def fill_table(launch: RecordRef, worker: RecordRef, batch: int, begin: int, positions: int) -> int:
    """Compute the table of the tile from position ``begin`` on; return the number of its buffer."""
    kernel = record_at(launch.kernel, KERNEL)
    call(kernel.coordinates, (address_of(launch), address_of(worker), batch, begin, positions))
    return fill_table_from_coordinates(launch, worker, positions)


@register_jitable
def fill_table_from_coordinates(launch: RecordRef, worker: RecordRef, positions: int) -> int:
    """Compute the table of a tile as :func:`fill_table`, from the scratch array ``coordinates``."""
    kernel = record_at(launch.kernel, KERNEL)
    launch_address = address_of(launch)
    worker_address = address_of(worker)
    rows = 1
    for axis in range(launch.r):
        layout = call(kernel.axis_taps, (launch_address, worker_address, positions, axis))
        if axis > 0:
            layout = call(
                kernel.combine, (launch_address, worker_address, rows, axis, positions, layout)
            )
        worker.layout = layout
        rows *= kernel.taps_per_axis
    return (launch.r - 1) % 2
