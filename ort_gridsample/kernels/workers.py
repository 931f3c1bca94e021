"""GridSample in compiled code: the division of a launch into work, and the kernels for each type.

A launch is one call of the operator, a :data:`~.structs.LAUNCH`. Its output positions are divided
into chunks, and a chunk into tiles. For a tile, ``_fill_table`` computes a table of taps from the
grid (:mod:`.tap_table`), and a kernel ``read`` reads X through the table into Y
(:mod:`.tap_sums`).

The kernels of a launch are compiled separately and call each other by address, so that another type
of X needs only one more small kernel. A :data:`~.structs.KERNEL` has their addresses. Functions
with a name in ``_for`` are factories: they return the kernel for some types.

:mod:`.jit_core` or a compiled op fills a LAUNCH and calls :func:`proceed`. As long as this returns
a number of workers, that many threads call :func:`process_items`. In arguments, ``launch_address``
is the address of the LAUNCH and ``worker_address`` that of the thread's :data:`~.structs.WORKER`,
at the beginning of its scratch memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from .. import spec
from ..reference.taps import COMPILED_MODES, MODE_RULES
from . import helper_threads, simd, tap_sums, tap_table
from .compilation import KernelSpec, compiles_in
from .halves import HALVES, stored, write_rounded
from .pointers import (
    address_of,
    arena_alloc,
    array_at,
    call,
    copy_past_caches,
    fetch_add,
    free,
    record_at,
)
from .scratch import ScratchArray, scratch_layout
from .simd import CPU_HAS_FAST_VECTORS, GATHERED, NARROW_PANEL, OUTSIDE_BIT, WIDE_PANEL
from .structs import CACHE_LINE, KERNEL, LAUNCH, WORKER
from .tap_table import TapTable

#: The number of taps on an axis of each mode that has kernels. Other modes run on the NumPy core.
TAPS = {mode: MODE_RULES[mode].taps for mode in COMPILED_MODES}
#: The paddings that have kernels.
PADDING_CODES = {
    "zeros": tap_table.ZEROS,
    "border": tap_table.BORDER,
    "reflection": tap_table.REFLECTION,
}

#: The phases of a launch. READING reads X, or the panels that PACKING has packed for all workers.
#: In PACKING_AND_READING each worker packs the panels that it reads. In END the launch has no
#: memory, or :func:`proceed` frees it.
NEW, READING, PACKING, PACKING_AND_READING, END = range(5)

# The division of a launch. Its work is measured in taps times channels.

#: The minimum work of a chunk.
MIN_TAPS_PER_CHUNK = 1 << 16
#: The number of chunks of a large launch, unless there are more workers: then one per worker.
CHUNKS_PER_LAUNCH = 64
#: The work after which a worker returns, if it has to return from time to time.
TAPS_PER_PAUSE = 1 << 24
#: The work for a position's part of the table, in channels.
POSITION_OVERHEAD = 8
#: In mode nearest, chunks have at least so many positions, if that leaves work for each thread.
#: With 256 channels, chunks of 256 positions take 1.2 times the time.
MIN_COPIED_POSITIONS = 1024
#: The maximum number of workers if the caller does not know its number of threads, unless there are
#: more processors.
DEFAULT_WORKERS = 64
#: The maximum size of the scratch memory of all workers together.
MAX_SCRATCH_BYTES = 32 << 20
#: The number of channels whose sums wait in float32 until they are rounded to halves. They may be
#: those of a wide panel.
CHANNELS_PER_GROUP = 16
assert CHANNELS_PER_GROUP >= WIDE_PANEL

# When X is packed: the minimum reads per pixel for which the copy pays off. Incoherent grids, whose
# neighbouring positions are pixels apart, gain more. Narrow panels pay off if taps are read one by
# one; if the processor gathers them, only for incoherent grids. Measured on 2-D cubic of 3 channels
# with border padding: 0.75 of the time for a random grid, 1.3 for a smooth one.

MIN_READS_NARROW = 8
MIN_READS_WIDE = 2
MIN_READS_INCOHERENT = 0.4
#: In mode nearest, only incoherent grids gain, unless each channel of X stays in the L1 cache, and
#: the channels of a batch in the L2 cache. Reading pixels apart from each other takes 2 ns then,
#: packing a pixel and reading the copy 0.7 ns.
MIN_READS_COPIED = 0.2
MAX_CACHED_CHANNEL = 1 << 14
MAX_CACHED_BATCH = 1 << 19
#: Of an incoherent grid, all pixels are prefetched if the channels of a batch do not fit the L2
#: cache. Otherwise this costs more than it saves: 1.3 times the time of one channel.
MIN_BYTES_TO_PREFETCH = 1 << 20
#: A grid is incoherent if a quarter of its first INCOHERENT_POSITIONS positions are more than
#: COHERENT_PIXELS from the next one, on any axis.
INCOHERENT_POSITIONS = 256
COHERENT_PIXELS = 4
#: The panels for all workers that are packed at a time fit the L2 cache; those of one worker half
#: of it.
SHARED_PANELS_BYTES = 1 << 20
WORKER_PANELS_BYTES = 1 << 19
#: The maximum size of a panel, and of the panels of all workers.
MAX_PACKED_BYTES = 30 << 20

#: The minimum size of a Y that does not stay in a cache. Pixels that are only copied are then
#: written past the caches: reading a cache line before writing it takes as long as writing it. 0.8
#: of the time. Sums are not limited by memory.
MIN_BYTES_PAST_CACHES = 1 << 24

#: The scratch memory of a worker, after a WORKER.
SCRATCH_ARRAYS = (
    # The coordinates of a tile: normalized ones by axis, and those of one axis in pixels.
    ScratchArray("coordinates", "kernel.coordinate_size", ("r", "tile_positions")),
    ScratchArray("pixel_coordinates", "kernel.coordinate_size", ("tile_positions",)),
    # The taps of an inner axis, and their weights.
    ScratchArray("axis_index", np.dtype(np.uint32), ("kernel.taps_per_axis", "table_columns")),
    ScratchArray("axis_weight", "kernel.weight_size", ("kernel.taps_per_axis", "table_columns")),
    # The table's taps and weights, in two buffers.
    ScratchArray("index", np.dtype(np.uint32), (2, "taps", "table_columns")),
    ScratchArray("weight", "kernel.weight_size", (2, "taps", "table_columns")),
    # The distances of contiguous taps to the first.
    ScratchArray("offsets", np.dtype(np.int64), ("taps",)),
    # Values that wait to be rounded, or to be written.
    ScratchArray("sums", "kernel.weight_size", (CHANNELS_PER_GROUP, "table_columns")),
    ScratchArray("copies", "kernel.copy_size", ("table_columns",)),
    # Sums with the channels last: up to WIDE_PANEL channels of STRIP positions.
    ScratchArray("strip", "kernel.weight_size", (tap_sums.STRIP * WIDE_PANEL,)),
    # The positions of Y's columns, if an AffineGrid is computed.
    ScratchArray("columns", 8, ("kernel.columns",)),
)
scratch_size, scratch_address, scratch_array = scratch_layout(
    LAUNCH, SCRATCH_ARRAYS, WORKER.itemsize, {"kernel": KERNEL}
)


# The phases of a launch


@compiles_in(3.3)
def proceed(launch_address: int) -> int:
    """Begin a launch or, after all workers of a phase have finished, its next phase.

    Args:
        launch_address: the address of a :data:`.structs.LAUNCH`. If its phase is set to
            :data:`END`, the launch is aborted.

    Returns:
        The number of workers of the phase; 0 if the launch has ended and its memory is free; -1 if
        there is not enough memory for the workers. Before it returns, it runs every phase that has
        one worker and no pauses.
    """
    launch = record_at(launch_address, LAUNCH)
    count = _next_phase(launch)
    while count == 1 and launch.packing_phase == READING and launch.items <= launch.items_per_call:
        # A small launch is a single call of the caller.
        call(record_at(launch.kernel, KERNEL).worker, (launch_address, 0))
        count = _next_phase(launch)
    return count


@register_jitable
def _next_phase(launch: Any) -> int:
    """Begin a launch or its next phase, as :func:`proceed`."""
    if launch.phase == NEW:
        _divide(launch)
        launch.first_worker, launch.memory = arena_alloc(launch.arena, launch.scratch_bytes)
        if launch.first_worker == 0:
            return -1
        _worker_record(launch, 0).has_columns = 0
        size = _plan_packing(launch)
        launch.packed = 0
        launch.packed_memory = 0
        if size > 0:
            launch.packed, launch.packed_memory = arena_alloc(launch.arena, size)
        if launch.packed == 0:  # also if there is not enough memory: read all channels of X at once
            launch.packing_phase = READING
            launch.batches_at_once = launch.n
            launch.panels_at_once = 1
            launch.panel_channels = launch.c
        launch.first_batch = 0
        launch.first_channel = 0
        return _begin_phase(launch, launch.packing_phase)
    if launch.phase == PACKING:
        return _begin_phase(launch, READING)
    if launch.phase == READING:
        launch.first_channel += launch.panels_at_once * launch.panel_channels
        if launch.first_channel >= launch.c:
            launch.first_channel = 0
            launch.first_batch += launch.batches_at_once
        if launch.first_batch < launch.n:
            return _begin_phase(launch, launch.packing_phase)
    # The last phase was READING or PACKING_AND_READING, or the caller aborts the launch.
    launch.phase = END
    free(launch.packed_memory)
    free(launch.memory)
    # In case the caller is interrupted before it sees the result, and calls again.
    launch.memory = 0
    launch.packed_memory = 0
    return 0


@register_jitable
def _begin_phase(launch: Any, phase: int) -> int:
    """Begin a ``phase``; return its number of workers."""
    batches = min(launch.batches_at_once, launch.n - launch.first_batch)
    if phase == PACKING_AND_READING:
        launch.items = launch.n * launch.groups_per_batch
    elif phase == PACKING:
        launch.items = batches * _panel_count(launch, launch.first_channel) * launch.parts_per_panel
    else:
        launch.items = batches * launch.chunks_per_batch
    launch.phase = phase
    launch.next_item = 0
    count = min(launch.items, launch.workers)
    kernel = record_at(launch.kernel, KERNEL)
    helper_threads.begin_task(launch.task, kernel.worker, address_of(launch), count - 1)
    return count


@register_jitable
def _divide(launch: Any) -> None:
    """Divide the launch into chunks and tiles, and choose the number of workers."""
    work = (launch.c + POSITION_OVERHEAD) * launch.taps  # for a position
    _choose_chunk(launch, work)
    launch.items_per_call = 1 << 62
    if launch.must_pause:
        launch.items_per_call = max(1, TAPS_PER_PAUSE // (work * launch.chunk_positions))
    max_tile = min(tap_table.MAX_TILE_POSITIONS, tap_table.MAX_TILE_TAPS // launch.taps)
    launch.tile_positions = max(1, min(max_tile, launch.positions))
    launch.table_columns = launch.tile_positions + tap_table.ROW_PADDING
    launch.worker_size = scratch_size(launch)
    # Work that is not worth two chunks is not worth a second worker, even if it has several
    # batches.
    useful_workers = 1 + launch.n * launch.positions * work // MIN_TAPS_PER_CHUNK
    fitting_workers = max(1, MAX_SCRATCH_BYTES // launch.worker_size)
    launch.workers = min(launch.workers, fitting_workers, useful_workers)
    launch.scratch_bytes = launch.workers * launch.worker_size


@register_jitable
def _choose_chunk(launch: Any, work: int) -> None:
    """Set the number of chunks and of their positions, given the work for a position."""
    min_chunk = MIN_TAPS_PER_CHUNK // work
    max_chunk = max(1, TAPS_PER_PAUSE // work)
    all_positions = launch.n * launch.positions
    even_chunk = all_positions // max(CHUNKS_PER_LAUNCH, launch.workers)
    kernel = record_at(launch.kernel, KERNEL)
    if kernel.copy_size != 0:  # mode nearest
        threads = max(1, min(launch.workers, kernel.cpus))
        min_chunk = max(min_chunk, min(MIN_COPIED_POSITIONS, all_positions // threads))
    chunk = min(max(min_chunk, even_chunk), max_chunk)
    # A multiple of the line, and at least one line, as ``chunk`` may be 0.
    launch.chunk_positions = min((chunk + CACHE_LINE) & -CACHE_LINE, launch.positions)
    last_of_chunk = launch.chunk_positions - 1
    launch.chunks_per_batch = (launch.positions + last_of_chunk) // launch.chunk_positions


@register_jitable
def _choose_panel_channels(launch: Any) -> int:
    """Return the number of channels of a panel, or 0 if packing X does not pay off."""
    kernel = record_at(launch.kernel, KERNEL)
    if kernel.pack == 0 or launch.c < 2:
        return 0
    is_narrow = launch.c <= 2 * NARROW_PANEL
    width = NARROW_PANEL if is_narrow else WIDE_PANEL
    if _panel_size(launch, width) > MAX_PACKED_BYTES:
        return 0
    reads = float(launch.positions * launch.taps) / float(launch.pixels)
    min_reads, min_reads_incoherent = _min_reads(launch, is_narrow)
    if reads >= min_reads or (reads >= min_reads_incoherent and _is_incoherent(launch)):
        return width
    return 0


@register_jitable
def _min_reads(launch: Any, is_narrow: bool) -> tuple[float, float]:
    """Return the number of reads of each pixel from which packing X pays off.

    Args:
        launch: a LAUNCH.
        is_narrow: whether the panels are narrow.

    Returns:
        The numbers for any grid and for an incoherent one. If packing never pays off, the number is
        NaN, as any comparison with it is false.
    """
    kernel = record_at(launch.kernel, KERNEL)
    if kernel.copy_size != 0:  # mode nearest
        if is_narrow or _stays_in_cache(launch, kernel.copy_size):
            return np.nan, np.nan
        return np.nan, float(MIN_READS_COPIED)
    if not is_narrow:
        return float(MIN_READS_WIDE), float(MIN_READS_INCOHERENT)
    if not CPU_HAS_FAST_VECTORS:
        return float(MIN_READS_NARROW), float(MIN_READS_INCOHERENT)
    if tap_table.can_be_contiguous(kernel.taps_per_axis, kernel.padding):
        return np.nan, np.nan
    return np.nan, float(MIN_READS_INCOHERENT)


@register_jitable
def _panel_size(launch: Any, width: int) -> int:
    """Return the size in bytes of a panel of ``width`` channels.

    A panel has one pixel more than X. Taps outside read this pixel.
    """
    return (launch.pixels + 1) * width * record_at(launch.kernel, KERNEL).packed_size


@register_jitable
def _plan_packing(launch: Any) -> int:
    """Decide whether and how X is packed; return the size of the panels in bytes, or 0."""
    launch.panel_channels = _choose_panel_channels(launch)
    if launch.panel_channels == 0:
        return 0
    size = _panel_size(launch, launch.panel_channels)
    threads = min(record_at(launch.kernel, KERNEL).cpus, launch.workers)
    panels = (launch.c + launch.panel_channels - 1) // launch.panel_channels
    launch.panels_at_once = max(1, min(panels, WORKER_PANELS_BYTES // size))
    launch.groups_per_batch = (panels + launch.panels_at_once - 1) // launch.panels_at_once
    launch.parts_per_panel = launch.pixels // tap_sums.PIXELS_PER_PART + 1
    # It is best if each thread packs what it reads: then no data moves between the processors'
    # caches.
    total = threads * launch.panels_at_once * size
    if launch.n * launch.groups_per_batch >= threads and total <= MAX_PACKED_BYTES:
        launch.packing_phase = PACKING_AND_READING
        launch.workers = threads
        return total
    fitting_panels = max(1, SHARED_PANELS_BYTES // size)
    launch.packing_phase = PACKING
    launch.panels_at_once = min(panels, fitting_panels)
    launch.batches_at_once = max(1, min(launch.n, fitting_panels // launch.panels_at_once))
    return launch.batches_at_once * launch.panels_at_once * size


@register_jitable
def _panel_count(launch: Any, channel: int) -> int:
    """Return the number of panels that are packed at a time, from ``channel`` on."""
    channels = launch.c - channel
    panels = (channels + launch.panel_channels - 1) // launch.panel_channels
    return min(launch.panels_at_once, panels)


@register_jitable
def _is_incoherent(launch: Any) -> bool:
    """Whether neighbouring positions read pixels far apart, so that each read waits for memory."""
    if launch.positions < INCOHERENT_POSITIONS:
        return False
    count = min(INCOHERENT_POSITIONS, launch.tile_positions)
    worker = _worker_record(launch, 0)
    buffer = _fill_table(launch, worker, 0, 0, count)
    first_tap = scratch_array(launch, address_of(worker), "index", np.uint32)[buffer, 0]
    lengths = array_at(launch.lengths, (launch.r,), np.int64)
    n_incoherent = 0
    for p in range(count - 1):
        pixel = np.int64(first_tap[p])
        next_pixel = np.int64(first_tap[p + 1])
        if (first_tap[p] | first_tap[p + 1]) < OUTSIDE_BIT:
            distance = 0
            for axis in range(launch.r - 1, -1, -1):
                length = lengths[axis]
                distance = max(distance, abs(pixel % length - next_pixel % length))
                pixel //= length
                next_pixel //= length
            if distance > COHERENT_PIXELS:
                n_incoherent += 1
    return 4 * n_incoherent > count


# The work of a thread


@compiles_in(1.2)
def process_items(launch_address: int, number: int) -> int:
    """Process items of the launch's phase, until there are none or it is time for a pause.

    Args:
        launch_address: the address of a :data:`.structs.LAUNCH`.
        number: the number of the worker.

    Returns:
        1 if there may be more items, otherwise 0.
    """
    launch = record_at(launch_address, LAUNCH)
    worker = _worker_record(launch, number)
    phase = launch.phase
    panels = launch.panels_at_once
    worker.has_columns = 0
    for _ in range(launch.items_per_call):
        item = fetch_add(launch, "next_item", 1)
        if item >= launch.items:
            return 0
        if phase == PACKING_AND_READING:
            batch = item // launch.groups_per_batch
            channel = item % launch.groups_per_batch * panels * launch.panel_channels
            count = _panel_count(launch, channel)
            worker.first_panel = number * panels
            worker.first_channel = channel
            worker.n_panels = count
            _pack(launch, worker.first_panel, batch, channel, 0, count * launch.parts_per_panel)
            _sample(launch, worker, batch, 0, launch.positions)
        elif phase == PACKING:
            parts = _panel_count(launch, launch.first_channel) * launch.parts_per_panel
            batch = item // parts
            part = item % parts
            source = launch.first_batch + batch
            _pack(launch, batch * panels, source, launch.first_channel, part, part + 1)
        else:
            batch = item // launch.chunks_per_batch
            start = item % launch.chunks_per_batch * launch.chunk_positions
            stop = min(start + launch.chunk_positions, launch.positions)
            worker.first_panel = batch * panels
            worker.first_channel = launch.first_channel
            worker.n_panels = _panel_count(launch, worker.first_channel)
            _sample(launch, worker, launch.first_batch + batch, start, stop)
    return 1


@register_jitable
def _worker_record(launch: Any, number: int) -> Any:
    """Return the :data:`.structs.WORKER` of a worker."""
    return record_at(launch.first_worker + number * launch.worker_size, WORKER)


@register_jitable
def _pack(
    launch: Any,
    first_panel: int,
    batch: int,
    channel: int,
    first_part: int,
    last_part: int,
) -> None:
    """Pack parts ``first_part`` to ``last_part`` of X[batch, channel:].

    The panels begin with ``first_panel``. Parts are counted across panels.
    """
    pack = record_at(launch.kernel, KERNEL).pack
    for part in range(first_part, last_part):
        number = part // launch.parts_per_panel
        arguments = (
            address_of(launch),
            first_panel + number,
            batch,
            channel + number * launch.panel_channels,
            part % launch.parts_per_panel,
        )
        call(pack, arguments)


@register_jitable
def _sample(launch: Any, worker: Any, batch: int, start: int, stop: int) -> None:
    """Fill Y[batch, :, start:stop]: all channels, or those of the worker's panels."""
    kernel = record_at(launch.kernel, KERNEL)
    read = kernel.read if launch.packed == 0 else kernel.read_packed
    for begin in range(start, stop, launch.tile_positions):
        size = min(launch.tile_positions, stop - begin)
        buffer = _fill_table(launch, worker, batch, begin, size)
        call(read, (address_of(launch), address_of(worker), buffer, batch, begin, size))


@register_jitable
def _fill_table(launch: Any, worker: Any, batch: int, begin: int, positions: int) -> int:
    """Compute the table of the tile from position ``begin`` on; return the number of its buffer."""
    kernel = record_at(launch.kernel, KERNEL)
    launch_address = address_of(launch)
    worker_address = address_of(worker)
    rows = 1
    call(kernel.coordinates, (launch_address, worker_address, batch, begin, positions))
    for axis in range(launch.r):
        layout = call(kernel.axis_taps, (launch_address, worker_address, positions, axis))
        if axis > 0:
            layout = call(
                kernel.combine, (launch_address, worker_address, rows, axis, positions, layout)
            )
        worker.layout = layout
        rows *= kernel.taps_per_axis
    return (launch.r - 1) % 2


# The kernels, by types


@compiles_in(1.4)
def coordinates_for(grid_type: str) -> Callable[..., int]:
    """Return the kernel that reads the coordinates of a tile from a grid of this type."""
    bits = stored(grid_type)
    real = np.dtype(spec.TYPES[grid_type].compute)

    def coordinates(
        launch_address: int, worker_address: int, batch: int, begin: int, positions: int
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        grid = array_at(launch.grid, (launch.n, launch.positions, launch.r), bits)
        normalized = scratch_array(launch, worker_address, "coordinates", real)
        tap_table.split_axes(grid[batch, begin : begin + positions], normalized)
        return 0

    return coordinates


@compiles_in(8.0)
def axis_taps_for(coordinate_type: str, weight_type: str) -> Callable[..., int]:
    """Return the kernel that computes the taps of a tile on one axis.

    The taps of the outermost axis are the beginning of the table.
    """
    coordinate = np.dtype(coordinate_type)
    real = np.dtype(weight_type)

    def axis_taps(launch_address: int, worker_address: int, positions: int, axis: int) -> int:
        launch = record_at(launch_address, LAUNCH)
        kernel = record_at(launch.kernel, KERNEL)
        taps = kernel.taps_per_axis
        index_address = scratch_address(launch, worker_address, "axis_index")
        weight_address = scratch_address(launch, worker_address, "axis_weight")
        if axis == 0:
            index_address = scratch_address(launch, worker_address, "index")
            weight_address = scratch_address(launch, worker_address, "weight")
            offsets = scratch_array(launch, worker_address, "offsets", np.int64)
            for tap in range(taps):
                offsets[tap] = tap
        length = array_at(launch.lengths, (launch.r,), np.int64)[axis]
        return tap_table.compute_axis_taps(
            tap_table.Axis(length, kernel.padding, kernel.align_corners != 0, taps),
            scratch_array(launch, worker_address, "coordinates", coordinate)[axis, :positions],
            scratch_array(launch, worker_address, "pixel_coordinates", coordinate),
            array_at(index_address, (taps, launch.table_columns), np.uint32),
            array_at(weight_address, (taps, launch.table_columns), real),
            kernel.may_mask != 0,
        )

    return axis_taps


@compiles_in(3.7)
def combine_for(weight_type: str) -> Callable[..., int]:
    """Return the kernel that adds the taps of an inner axis to the table.

    It reads the table so far, ``rows`` in one buffer, and writes the new table to the other buffer.
    """
    real = np.dtype(weight_type)

    def combine(
        launch_address: int,
        worker_address: int,
        rows: int,
        axis: int,
        positions: int,
        axis_layout: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        new_rows = rows * record_at(launch.kernel, KERNEL).taps_per_axis
        index = scratch_array(launch, worker_address, "index", np.uint32)
        weight = scratch_array(launch, worker_address, "weight", real)
        offsets = scratch_array(launch, worker_address, "offsets", np.int64)
        source = (axis - 1) % 2
        target = axis % 2
        axis_index = scratch_array(launch, worker_address, "axis_index", np.uint32)
        axis_weight = scratch_array(launch, worker_address, "axis_weight", real)
        return tap_table.combine_taps(
            TapTable(index[source, :rows], weight[source, :rows], offsets, worker.layout),
            TapTable(axis_index, axis_weight, offsets, axis_layout),
            array_at(launch.lengths, (launch.r,), np.int64)[axis],
            positions,
            index[target, :new_rows],
            weight[target, :new_rows],
        )

    return combine


@compiles_in(1.5)
def copy_packed_for(bits_type: str) -> Callable[..., int]:
    """Return the kernel that reads packed panels through a table of one tap without weights.

    Args:
        bits_type: a type of the size of X's elements.
    """
    bits = np.dtype(bits_type)

    def read(
        launch_address: int,
        worker_address: int,
        buffer: int,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        index = scratch_array(launch, worker_address, "index", np.uint32)[buffer, 0]
        Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), bits)[batch]
        first_panel = worker.first_panel
        panels_shape = (first_panel + worker.n_panels, launch.pixels + 1, WIDE_PANEL)
        panels = array_at(launch.packed, panels_shape, bits)
        for number in range(worker.n_panels):
            first = worker.first_channel + number * WIDE_PANEL
            last = min(first + WIDE_PANEL, launch.c)
            panel = panels[first_panel + number]
            tap_sums.copy_packed(panel, index, Y[first:last], begin, positions)
        return 0

    return read


@compiles_in(2.6)
def copy_for(bits_type: str) -> Callable[..., int]:
    """Return the kernel that reads X through a table of one tap without weights.

    Args:
        bits_type: a type of the size of X's elements.
    """
    bits = np.dtype(bits_type)
    size = bits.itemsize

    def read(
        launch_address: int,
        worker_address: int,
        buffer: int,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        layout = record_at(worker_address, WORKER).layout
        table = scratch_array(launch, worker_address, "index", np.uint32)
        index = table[buffer, 0, :positions]
        n_outside = 0
        if layout == GATHERED:
            inside = table[1 - buffer, 0]
            n_outside = simd.list_outside(table[buffer, 0], inside, positions, table[buffer, 0])
            index = inside[:positions]
        outside = table[buffer, 0, :n_outside]
        X = array_at(launch.X, (launch.n, launch.c, launch.pixels), bits)[batch]
        Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), bits)[batch]
        writes_past_caches = launch.n * launch.c * launch.positions * size >= MIN_BYTES_PAST_CACHES
        copies = scratch_array(launch, worker_address, "copies", bits)
        step = simd.SMOOTH_STEP
        if launch.c * launch.pixels * size > MIN_BYTES_TO_PREFETCH:
            step = tap_sums.prefetch_step(index)
            for p in range(0, positions, step):
                simd.prefetch(X[0], index[p])
        for c in range(launch.c):
            y = Y[c, begin:]
            next_x = X[min(c + 1, launch.c - 1)]
            values = copies if writes_past_caches else y
            tap_sums.copy_pixels(X[c], index, outside, step, values, next_x)
            if writes_past_caches:
                copy_past_caches(y, copies[:positions])
        return 0

    return read


@register_jitable
def _stays_in_cache(launch: Any, size: int) -> bool:
    """Whether X, with elements of ``size`` bytes, stays in a cache in mode nearest."""
    channel_bytes = launch.pixels * size
    batch_bytes = launch.c * channel_bytes
    return channel_bytes <= MAX_CACHED_CHANNEL and batch_bytes <= MAX_CACHED_BATCH


def weights_of(X_type: str) -> np.dtype[Any]:
    """Return the type of the weights of X's taps: X's compute type, or that of its real part."""
    return np.dtype(np.finfo(str(spec.TYPES[X_type].compute)).dtype)


@compiles_in(1.9)
def sum_for(X_type: str) -> Callable[..., int]:
    """Return the kernel that reads X of this type through a table with weights."""
    return _sum_kernel(X_type, reads_panels=False)


@compiles_in(2.8)
def sum_packed_for(X_type: str) -> Callable[..., int]:
    """Return the kernel that reads the panels of X of this type through a table with weights."""
    return _sum_kernel(X_type, reads_panels=True)


def _sum_kernel(X_type: str, *, reads_panels: bool) -> Callable[..., int]:
    """Return a kernel that adds up the taps of a tile, some channels at a time.

    The channels are those of X or, with ``reads_panels``, those of the worker's panels. The sums
    are written to Y. Those of halves first wait in scratch memory, in float32, until they are
    rounded. Numba compiles only one branch of the conditions on these two properties.
    """
    bits = stored(X_type)
    real = weights_of(X_type)
    are_halves = X_type in HALVES

    def read(
        launch_address: int,
        worker_address: int,
        buffer: int,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        waiting_sums = scratch_array(launch, worker_address, "sums", real)
        Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), bits)[batch]
        if reads_panels:
            first_panel = worker.first_panel
            panels_shape = (first_panel + worker.n_panels, launch.pixels + 1, launch.panel_channels)
            panels = array_at(launch.packed, panels_shape, real)
            strip_address = scratch_address(launch, worker_address, "strip")
            strip = array_at(strip_address, (tap_sums.STRIP, launch.panel_channels), real)
            first_channel = worker.first_channel
            last_channel = min(first_channel + worker.n_panels * launch.panel_channels, launch.c)
            step = launch.panel_channels
        else:
            X = array_at(launch.X, (launch.n, launch.c, launch.pixels), bits)[batch]
            first_channel = 0
            last_channel = launch.c
            step = CHANNELS_PER_GROUP if are_halves else launch.c
        for first in range(first_channel, last_channel, step):
            last = min(first + step, last_channel)
            if are_halves:
                sums = waiting_sums[: last - first]
                start = 0
            else:
                sums = Y[first:last]
                start = begin
            table = _table(launch, worker, buffer, real)
            if reads_panels:
                panel = panels[first_panel + (first - first_channel) // step]
                tap_sums.sum_packed(panel, table, strip, sums, start, positions)
            else:
                worker.layout = tap_sums.sum_taps(X[first:last], table, sums, start, positions)
            if are_halves:
                for channel in range(first, last):
                    write_rounded(sums[channel - first, :positions], Y[channel, begin:])
        return 0

    return read


@compiles_in(1.7)
def pack_for(X_type: str, packed_type: str) -> Callable[..., int]:
    """Return the kernel that packs a part of a panel, channels last, for these types."""
    bits = stored(X_type)
    real = np.dtype(packed_type)

    def pack(launch_address: int, panel: int, batch: int, channel: int, part: int) -> int:
        launch = record_at(launch_address, LAUNCH)
        X = array_at(launch.X, (launch.n, launch.c, launch.pixels), bits)
        panels_shape = (panel + 1, launch.pixels + 1, launch.panel_channels)
        packed = array_at(launch.packed, panels_shape, real)
        tap_sums.pack_part(X, batch, channel, part * tap_sums.PIXELS_PER_PART, packed[panel])
        return 0

    return pack


@register_jitable
def _table(launch: Any, worker: Any, buffer: int, real: Any) -> Any:
    """Return the :class:`.tap_table.TapTable` in a buffer of a worker."""
    worker_address = address_of(worker)
    index = scratch_array(launch, worker_address, "index", np.uint32)[buffer]
    weight = scratch_array(launch, worker_address, "weight", real)[buffer]
    offsets = scratch_array(launch, worker_address, "offsets", np.int64)
    return TapTable(index, weight, offsets, worker.layout)


# The fields of a kernel descriptor


def kernel_constants(X_type: str, grid_type: str, mode: str) -> dict[str, int]:
    """Return the constants of a :data:`.structs.KERNEL` that depend on types and mode."""
    coordinate, weight = _compute_types(X_type, grid_type, mode)
    X_size = stored(X_type).itemsize
    has_weights = mode != "nearest"
    return {
        "taps_per_axis": TAPS[mode],
        "X_size": X_size,
        "coordinate_size": stored(coordinate).itemsize,
        "weight_size": stored(weight).itemsize if has_weights else 0,
        "copy_size": 0 if has_weights else X_size,
        "packed_size": stored(weight).itemsize if has_weights else X_size,
        "may_mask": int(not X_type.startswith(("int", "uint"))),
    }


def kernel_functions(
    X_type: str, grid_type: str, mode: str, coordinates: KernelSpec | None = None
) -> dict[str, KernelSpec | None]:
    """Return the functions of a :data:`.structs.KERNEL`, by field.

    If there is no grid input, ``coordinates`` is the kernel that computes the coordinates.
    """
    coordinate, weight = _compute_types(X_type, grid_type, mode)
    size = stored(X_type).itemsize
    is_float = X_type in HALVES or X_type == weight
    read: KernelSpec = (sum_for, X_type)
    pack: KernelSpec | None = None
    read_packed: KernelSpec | None = None
    if mode == "nearest":
        # There is no integer of 16 bytes.
        read = (copy_for, f"uint{8 * size}" if size <= 8 else X_type)
        if size <= 8:
            # Values are only moved. The kernels for floats do this, and linear shares them.
            bits = {1: "uint8", 2: "uint16", 4: "float32", 8: "float64"}[size]
            pack = (pack_for, bits, bits)
            read_packed = (copy_packed_for, bits)
    elif is_float:
        pack = (pack_for, X_type, weight)
        read_packed = (sum_packed_for, X_type)
    return {
        "worker": (process_items,),
        "proceed": (proceed,),
        "coordinates": coordinates or (coordinates_for, grid_type),
        "axis_taps": (axis_taps_for, coordinate, weight),
        "combine": (combine_for, weight),
        "read": read,
        "pack": pack,
        "read_packed": read_packed,
    }


def _compute_types(X_type: str, grid_type: str, mode: str) -> tuple[str, str]:
    """Return the types of the coordinates and of the weights.

    In mode nearest there are no weights; their type is then that of the coordinates.
    """
    coordinate = str(spec.TYPES[grid_type].compute)
    weight = coordinate if mode == "nearest" else weights_of(X_type).name
    return coordinate, weight
