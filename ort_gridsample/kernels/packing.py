"""Packing: whether and how X is copied to panels, with the channels of a pixel next to each other.

Vectors read the channels of a pixel from a panel at once. A group is the panels that a worker packs
for itself; otherwise all workers pack and read the same panels.
"""

import numpy as np
from numba.extending import register_jitable

from . import tap_sums, tap_table
from .llvm_helpers import CPU_GATHERS_FAST
from .pointers import address_of, array_at, record_at
from .simd import CPU_HAS_FAST_VECTORS, NARROW_PANEL, OUTSIDE_BIT, WIDE_PANEL
from .structs import KERNEL, PACKED_BY_EACH, PACKED_FOR_ALL, UNPACKED, RecordRef
from .tiles import fill_table, scratch_array, worker_record

#: The minimum reads per pixel from which packing X pays off. Incoherent grids, whose neighboring
#: positions are pixels apart, gain more. Narrow panels pay off if taps are read one by one. If the
#: processor reads them in vectors, they pay off only for incoherent grids, and not at all if it
#: gathers fast.
MIN_READS_NARROW = 8
MIN_READS_WIDE = 2
MIN_READS_INCOHERENT = 0.4
#: Adjacent taps of such grids gain if the channels fill the panels, except halves, and from so many
#: positions per pixel. With eight channels of 256² or 32³ pixels and as many positions, linear
#: takes 0.67 to 0.84 times as long, with a quarter of the positions as long as without panels.
MIN_POSITIONS_ADJACENT = 0.5
#: In mode nearest, only incoherent grids gain, unless each channel of X stays in the L1 cache, and
#: the channels of a batch in the L2 cache. Reading pixels apart from each other takes 2 ns then,
#: packing a pixel and reading the copy 0.7 ns.
MIN_READS_COPIED = 0.2
MAX_CACHED_CHANNEL = 1 << 14
MAX_CACHED_BATCH = 1 << 19
#: The same if the processor gathers pixels fast, from a channel of any size. Up to this size
#: gathering takes 0.3 to 0.4 ns, packing and reading the copy 0.5 to 0.7 ns; with twice the
#: channels, gathering takes 0.8 to 1 ns.
MAX_GATHERED_BATCH = 1 << 20
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


@register_jitable
def _choose_panel_channels(launch: RecordRef) -> int:
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
def _min_reads(launch: RecordRef, is_narrow: bool) -> tuple[float, float]:
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
    if CPU_GATHERS_FAST:
        return np.nan, np.nan
    if tap_table.are_adjacent(kernel.mode, kernel.padding):
        are_halves = kernel.X_size < kernel.packed_size
        if launch.c % NARROW_PANEL != 0 or are_halves:
            return np.nan, np.nan
        return np.nan, MIN_POSITIONS_ADJACENT * float(launch.taps)
    return np.nan, float(MIN_READS_INCOHERENT)


@register_jitable
def _panel_size(launch: RecordRef, width: int) -> int:
    """Return the size in bytes of a panel of ``width`` channels.

    A panel has one pixel more than X. Taps outside read this pixel.
    """
    return (launch.pixels + 1) * width * record_at(launch.kernel, KERNEL).packed_size


@register_jitable
def plan_packing(launch: RecordRef) -> int:
    """Plan whether and how X is packed; return the size of the panels in bytes, or 0.

    The plan already has tiles and workers, and scratch memory. Packing may reduce the number of
    workers. If X is not packed, :func:`plan_without_packing` completes the plan.
    """
    plan = launch.plan
    plan.panel_channels = _choose_panel_channels(launch)
    if plan.panel_channels == 0:
        return 0
    size = _panel_size(launch, plan.panel_channels)
    threads = min(record_at(launch.kernel, KERNEL).cpus, plan.workers)
    panels = _ratio_rounded_up(launch.c, plan.panel_channels)
    plan.parts_per_panel = launch.pixels // tap_sums.PIXELS_PER_PART + 1
    # It is best if each thread packs what it reads: then no data moves between the processors'
    # caches.
    plan.panels_at_once = max(1, min(panels, WORKER_PANELS_BYTES // size))
    plan.groups_per_batch = _ratio_rounded_up(panels, plan.panels_at_once)
    total = threads * plan.panels_at_once * size
    if launch.n * plan.groups_per_batch >= threads and total <= MAX_PACKED_BYTES:
        plan.packing = PACKED_BY_EACH
        plan.workers = threads
        plan.batches_at_once = launch.n
        plan.rounds = 1
        return total
    fitting_panels = max(1, SHARED_PANELS_BYTES // size)
    plan.packing = PACKED_FOR_ALL
    plan.panels_at_once = min(panels, fitting_panels)
    plan.groups_per_batch = _ratio_rounded_up(panels, plan.panels_at_once)
    plan.batches_at_once = max(1, min(launch.n, fitting_panels // plan.panels_at_once))
    plan.rounds = _ratio_rounded_up(launch.n, plan.batches_at_once) * plan.groups_per_batch
    return plan.batches_at_once * plan.panels_at_once * size


@register_jitable
def plan_without_packing(launch: RecordRef) -> None:
    """Plan one round that reads all channels of all batches from X itself."""
    plan = launch.plan
    plan.packing = UNPACKED
    plan.panel_channels = launch.c
    plan.panels_at_once = 1
    plan.groups_per_batch = 1
    plan.batches_at_once = launch.n
    plan.rounds = 1


@register_jitable
def _ratio_rounded_up(number: int, divisor: int) -> int:
    return (number + divisor - 1) // divisor


@register_jitable
def panel_count(launch: RecordRef, channel: int) -> int:
    """Return the number of panels that are packed at a time, from ``channel`` on."""
    panels = _ratio_rounded_up(launch.c - channel, launch.plan.panel_channels)
    return min(launch.plan.panels_at_once, panels)


@register_jitable
def _is_incoherent(launch: RecordRef) -> bool:
    """Whether neighboring positions read pixels far apart, so that each read waits for memory."""
    if launch.positions < INCOHERENT_POSITIONS:
        return False
    count = min(INCOHERENT_POSITIONS, launch.plan.tile_positions)
    worker = worker_record(launch, 0)
    buffer = fill_table(launch, worker, 0, 0, count)
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


@register_jitable
def _stays_in_cache(launch: RecordRef, size: int) -> bool:
    """Whether X, with elements of ``size`` bytes, stays in a cache in mode nearest."""
    channel_bytes = launch.pixels * size
    batch_bytes = launch.c * channel_bytes
    if CPU_GATHERS_FAST and (size == 4 or size == 8):
        return batch_bytes <= MAX_GATHERED_BATCH
    return channel_bytes <= MAX_CACHED_CHANNEL and batch_bytes <= MAX_CACHED_BATCH
