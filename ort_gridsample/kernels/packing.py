"""Packing: whether and how X is copied to panels, with the channels of a pixel next to each other.

Vectors read the channels of a pixel from a panel at once. A panel with few channels takes as long
as a whole one, so that a few channels after the last whole panel are read from X. A group is the
panels that a worker packs for itself, for all positions or a share of them; otherwise all workers
pack and read the same panels.
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
#: If X is read in fast vectors, a wide panel pays off with at least so many channels, and with so
#: many more reads per pixel for each channel that it lacks: of any grid, and of an incoherent one.
#: In mode nearest, few more are enough, because a table and sums take no time.
MIN_CHANNELS_WIDE = 7 if CPU_HAS_FAST_VECTORS else 1
READS_PER_LACKING_CHANNEL = 1.75 if CPU_HAS_FAST_VECTORS else 0.0
READS_PER_LACKING_CHANNEL_INCOHERENT = 0.75 if CPU_HAS_FAST_VECTORS else 0.0
READS_PER_LACKING_CHANNEL_COPIED = 0.2 if CPU_HAS_FAST_VECTORS else 0.0
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
#: The maximum number of workers that pack the same group, each for its share of the positions, so
#: that all threads have work. One panel for two threads takes 0.5 to 0.9 times as long as if both
#: pack it together. In mode nearest, packing takes as long as reading, so that one worker packs.
MAX_SHARES = 2
#: With at least so many groups for each thread, threads that have one group less do not matter.
MIN_GROUPS_WITHOUT_SHARES = 4
#: The maximum size of a panel, and of the panels of all workers.
MAX_PACKED_BYTES = 30 << 20
#: Channels that are not packed are read through a table instead of without one: of a coherent grid,
#: if X and Y exceed this size, because each channel is then read and written in one sequence; of an
#: incoherent one, if X is between these sizes, has at least so many channels, and positions have at
#: most so many taps, moved inside together, because a single channel stays in a closer cache.
MAX_BYTES_WITHOUT_TABLE = 18 << 20
MIN_INCOHERENT_BYTES = 1 << 18
MAX_INCOHERENT_BYTES = 1 << 24
MIN_INCOHERENT_CHANNELS = 3
MAX_INCOHERENT_TAPS = 8


@register_jitable
def _choose_reading(launch: RecordRef) -> tuple[int, int, bool]:
    """Choose how the channels are read. The grid is examined only if the choice depends on it.

    Returns:
        The number of channels of a panel, and of all channels that are packed, both 0 if packing X
        does not pay off; and whether other channels are read through a table if both is possible.
    """
    choice = _choice(launch, False)
    choice_if_incoherent = _choice(launch, True)
    if choice != choice_if_incoherent and _is_incoherent(launch):
        return choice_if_incoherent
    return choice


@register_jitable
def _choice(launch: RecordRef, is_incoherent: bool) -> tuple[int, int, bool]:
    """Return the choice of :func:`_choose_reading` for a coherent or an incoherent grid."""
    c = launch.c
    width = 0
    packed = 0
    if record_at(launch.kernel, KERNEL).pack != 0 and c > 1:
        is_few = c <= 2 * NARROW_PANEL
        rest = c % WIDE_PANEL
        if CPU_HAS_FAST_VECTORS or not is_few:
            if _pays_off(launch, rest, is_incoherent):
                packed = c
            elif c > rest and _pays_off(launch, WIDE_PANEL, is_incoherent):
                packed = c - rest
        if packed > 0:
            width = WIDE_PANEL
        elif is_few and _pays_off_narrow(launch, is_incoherent):
            width = NARROW_PANEL
            packed = c
    return width, packed, _prefers_table(launch, c - packed, is_incoherent)


@register_jitable
def _pays_off(launch: RecordRef, channels: int, is_incoherent: bool) -> bool:
    """Whether packing so many channels in a wide panel pays off."""
    if channels < MIN_CHANNELS_WIDE or _panel_size(launch, WIDE_PANEL) > MAX_PACKED_BYTES:
        return False
    kernel = record_at(launch.kernel, KERNEL)
    lacking = WIDE_PANEL - channels
    if kernel.copy_size != 0:  # mode nearest
        if not is_incoherent or _stays_in_cache(launch, kernel.copy_size):
            return False
        min_reads = MIN_READS_COPIED + READS_PER_LACKING_CHANNEL_COPIED * lacking
    else:
        min_reads = MIN_READS_WIDE + READS_PER_LACKING_CHANNEL * lacking
        if is_incoherent:
            min_reads = MIN_READS_INCOHERENT + READS_PER_LACKING_CHANNEL_INCOHERENT * lacking
    return _reads_per_pixel(launch) >= min_reads


@register_jitable
def _pays_off_narrow(launch: RecordRef, is_incoherent: bool) -> bool:
    """Whether packing all channels in narrow panels pays off."""
    kernel = record_at(launch.kernel, KERNEL)
    if kernel.copy_size != 0 or _panel_size(launch, NARROW_PANEL) > MAX_PACKED_BYTES:
        return False
    if CPU_HAS_FAST_VECTORS:
        if CPU_GATHERS_FAST or not is_incoherent:
            return False
        if tap_table.are_adjacent(kernel.mode, kernel.padding):
            are_halves = kernel.X_size < kernel.packed_size
            fills_panels = launch.c % NARROW_PANEL == 0
            min_positions = MIN_POSITIONS_ADJACENT * float(launch.pixels)
            return fills_panels and not are_halves and launch.positions >= min_positions
    min_reads = MIN_READS_INCOHERENT if is_incoherent else float(MIN_READS_NARROW)
    return _reads_per_pixel(launch) >= min_reads


@register_jitable
def _prefers_table(launch: RecordRef, channels: int, is_incoherent: bool) -> bool:
    """Whether so many channels, which are not packed, are read through a table."""
    kernel = record_at(launch.kernel, KERNEL)
    if channels == 0 or kernel.sample_in_vectors == 0 or kernel.copy_size != 0:
        return False
    X_bytes = channels * launch.pixels * kernel.X_size
    Y_bytes = channels * launch.positions * kernel.X_size
    if not is_incoherent:
        return X_bytes + Y_bytes > MAX_BYTES_WITHOUT_TABLE
    return (
        channels >= MIN_INCOHERENT_CHANNELS
        and launch.taps <= MAX_INCOHERENT_TAPS
        and MIN_INCOHERENT_BYTES <= X_bytes <= MAX_INCOHERENT_BYTES
        and tap_table.moves_inside(kernel.mode, kernel.padding)
    )


@register_jitable
def _reads_per_pixel(launch: RecordRef) -> float:
    return float(launch.positions * launch.taps) / float(launch.pixels)


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
    plan.panel_channels, plan.packed_channels, plan.uses_table = _choose_reading(launch)
    if plan.panel_channels == 0:
        return 0
    size = _panel_size(launch, plan.panel_channels)
    threads = min(record_at(launch.kernel, KERNEL).cpus, plan.workers)
    panels = _ratio_rounded_up(plan.packed_channels, plan.panel_channels)
    plan.parts_per_panel = launch.pixels // tap_sums.PIXELS_PER_PART + 1
    # It is best if each thread packs what it reads: then no data moves between the processors'
    # caches.
    plan.panels_at_once = max(1, min(panels, WORKER_PANELS_BYTES // size))
    plan.groups_per_batch = _ratio_rounded_up(panels, plan.panels_at_once)
    total = threads * plan.panels_at_once * size
    groups = launch.n * plan.groups_per_batch
    is_even = groups % threads == 0 or groups >= MIN_GROUPS_WITHOUT_SHARES * threads
    copies_pixels = record_at(launch.kernel, KERNEL).copy_size != 0
    plan.shares = 1 if is_even or copies_pixels else MAX_SHARES
    if groups * plan.shares >= threads and total <= MAX_PACKED_BYTES:
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
    """Plan no round: all channels are read from X itself."""
    plan = launch.plan
    plan.packing = UNPACKED
    plan.packed_channels = 0
    plan.panel_channels = 0
    plan.panels_at_once = 0
    plan.groups_per_batch = 0
    plan.shares = 0
    plan.batches_at_once = 0
    plan.rounds = 0


@register_jitable
def _ratio_rounded_up(number: int, divisor: int) -> int:
    return (number + divisor - 1) // divisor


@register_jitable
def panel_count(launch: RecordRef, channel: int) -> int:
    """Return the number of panels that are packed at a time, from ``channel`` on.

    It is 0 if the channel is not packed.
    """
    channels = launch.plan.packed_channels - channel
    if channels == 0:
        return 0
    return min(launch.plan.panels_at_once, _ratio_rounded_up(channels, launch.plan.panel_channels))


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
