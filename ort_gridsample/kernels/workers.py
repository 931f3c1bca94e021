"""GridSample as it runs in compiled code: how a launch is cut, what its workers do, and what is compiled for each type.

A launch takes the positions in chunks, and a chunk in tiles. Of a tile, ``_table`` makes a table of taps from the grid
and ``read`` reads X through it into Y, as :mod:`.kernels` states both. They are compiled each for itself and call one
another by address, so that one more type of X is one small function more.

Whoever samples, :mod:`.jit_core` or a compiled op, fills a :data:`~.structs.LAUNCH` and, as often as :func:`proceed`
answers with a number of workers, has as many threads call :func:`worker`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from .. import spec
from ..reference.taps import COMPILED_MODES, MODES
from . import helper_threads, loops
from .compilation import compile_time
from .halves import HALVES, round_to, stored
from .pointers import address, aligned, array, call, copy_past_caches, fetch_add, free, sizeof, struct, take, view
from .simd import GATHERS, NARROW, OUTSIDE_BIT, WIDE
from .structs import CACHE_LINE, KERNEL, LAUNCH, WORKER

#: The modes, with their taps on an axis, and the paddings that the kernels state; any other is the NumPy core's.
TAPS = {mode: MODES[mode].taps for mode in COMPILED_MODES}
PADDING = {"zeros": loops.ZEROS, "border": loops.BORDER, "reflection": loops.REFLECTION}
#: The phases of a launch. X is read as it is or as it was packed for all workers, or each packs the panels it reads.
NEW, READING, PACKING, PACKING_AND_READING, END = range(5)
#: What one chunk reads at least, in taps and channels, how many of them a large launch is cut into (or one a worker, if
#: that is more), and after how much a worker comes back where it is asked to.
WORTH_A_CHUNK, CHUNKS, WORTH_A_PAUSE = 1 << 16, 64, 1 << 24
#: A thread takes a worker, and in it chunk after chunk; each worker has scratch memory, which is the bound of it all.
#: Where nobody says how many threads there are, there are so many workers, or as many as processors.
WORKERS, SCRATCH_BYTES = 64, 32 << 20
#: Beside its table, what a position costs, in channels.
OVERHEAD = 8
#: Channels whose sums wait in float32 until they are rounded to halves.
GROUP = 16
#: X is packed where each pixel is read so often: more pays for the copy, and an incoherent grid gains more. Narrow
#: panels pay where taps are read one by one; where the CPU gathers them, for incoherent grids alone. Measured on 2-D
#: cubic of 3 channels with border padding: 0.75 of the time by a random grid, 1.3 by a smooth one.
NARROW_READS, WIDE_READS, INCOHERENT_READS = 8, 2, 0.4
INCOHERENT_STEPS, INCOHERENT_PIXELS = 256, 4
#: No more is packed at a time than the CPU's second cache holds, and by a thread for itself half of that; and no X of
#: which one panel is larger than this.
CACHE_BYTES, OWN_BYTES, PACKED_BYTES = 1 << 20, 1 << 19, 30 << 20
#: A Y of so many bytes stays in no cache. Pixels that are copied and not computed are written past these then, as to be
#: read before it is written takes as long as to be written: 0.8 of the time. Sums wait for other things.
PASSED_BYTES = 1 << 24
#: Channels that are copied at once then: they are waited for together, which takes 0.7 of the time. In the caches they
#: push each other out.
TOGETHER = 3


@compile_time(3.3)
def proceed(launch_at: int) -> int:
    """Begin the launch or, when all workers are through with a phase, go on: the workers of the next phase.

    0 is the end: its memory is free again, as it is where the phase was set to :data:`END`. -1: no memory was to be
    had for its workers.
    """
    launch = struct(launch_at, LAUNCH)
    if launch.phase == NEW:
        _cut(launch)
        launch.first_worker, launch.memory = take(launch.own, launch.nbytes)
        if launch.first_worker == 0:
            return -1
        _worker(launch, 0).has_columns = 0
        size = _plan_packing(launch)
        launch.packed, launch.packed_memory = take(launch.own, size) if size > 0 else (0, 0)
        if launch.packed == 0:  # nor where there is no memory for that: read in one go, of all channels
            launch.packing, launch.batches, launch.panels, launch.panel = READING, launch.n, 1, launch.c
        launch.first_batch = launch.first_channel = 0
        return _enter(launch, launch.packing)
    if launch.phase == PACKING:
        return _enter(launch, READING)
    if launch.phase == READING:
        launch.first_channel += launch.panels * launch.panel
        if launch.first_channel >= launch.c:
            launch.first_channel = 0
            launch.first_batch += launch.batches
        if launch.first_batch < launch.n:
            return _enter(launch, launch.packing)
    free(launch.packed_memory)
    free(launch.memory)
    launch.memory = launch.packed_memory = 0  # for one who is interrupted before the answer reaches it
    return 0


@register_jitable
def _enter(launch: Any, phase: int) -> int:
    """Begin a phase; answers with its workers."""
    batches = min(launch.batches, launch.n - launch.first_batch)
    if phase == PACKING_AND_READING:
        launch.items = launch.n * launch.groups
    elif phase == PACKING:
        launch.items = batches * _panels(launch, launch.first_channel) * launch.parts
    else:
        launch.items = batches * launch.chunks
    launch.phase, launch.next = phase, 0
    count = min(launch.items, launch.workers)
    kernel = struct(launch.kernel, KERNEL)
    helper_threads.begin_task(launch.task, kernel.worker, address(launch), count - 1)
    return count


@register_jitable
def _cut(launch: Any) -> None:
    """Cut the launch into chunks, and a worker's scratch memory into arrays."""
    kernel, scratch, rows = struct(launch.kernel, KERNEL), launch.scratch, launch.rows
    taps = kernel.taps
    cost = (launch.c + OVERHEAD) * rows
    positions = launch.n * launch.positions
    chunk = min(max(WORTH_A_CHUNK // cost, positions // max(CHUNKS, launch.workers)), max(1, WORTH_A_PAUSE // cost))
    launch.chunk = min((chunk + CACHE_LINE) & -CACHE_LINE, launch.positions)
    launch.chunks = (launch.positions + launch.chunk - 1) // launch.chunk
    launch.pause = max(1, WORTH_A_PAUSE // (cost * launch.chunk)) if launch.pauses else 1 << 62
    tile = max(1, min(loops.MAX_TILE_POSITIONS, loops.MAX_TILE_TAPS // rows, launch.positions))
    width = tile + loops.ROW_PADDING
    launch.tile, launch.width = tile, width
    weight_size = kernel.weight_size if taps > 1 else 0
    end = aligned(sizeof(WORKER))
    scratch.coordinates, end = end, aligned(end + launch.r * tile * kernel.coordinate_size)
    scratch.axis, end = end, aligned(end + tile * kernel.coordinate_size)
    scratch.along, end = end, aligned(end + taps * width * 4)
    scratch.along_weight, end = end, aligned(end + taps * width * weight_size)
    scratch.index, end = end, aligned(end + 2 * rows * width * 4)
    scratch.weight, end = end, aligned(end + 2 * rows * width * weight_size)
    scratch.offsets, end = end, aligned(end + rows * 8)
    waiting = GROUP * weight_size if taps > 1 else TOGETHER * kernel.X_size
    scratch.sums, end = end, aligned(end + width * waiting)
    scratch.strip, end = end, aligned(end + WIDE * loops.STRIP * weight_size)
    scratch.columns, end = end, aligned(end + kernel.columns * 8)
    launch.worker_size = end
    # What is not worth two chunks is not worth waking a thread, however many batches it is.
    worth = 1 + positions * cost // WORTH_A_CHUNK
    launch.workers = min(launch.workers, max(1, SCRATCH_BYTES // end), worth)
    launch.nbytes = launch.workers * end


@register_jitable
def _plan_packing(launch: Any) -> int:
    """Decide whether X is packed, and how: the bytes that takes, or 0."""
    kernel, n, c = struct(launch.kernel, KERNEL), launch.n, launch.c
    if kernel.pack == 0 or c < 2:
        return 0
    narrow = c <= 2 * NARROW
    if narrow and GATHERS and loops.can_be_contiguous(kernel.taps, kernel.padding):
        return 0
    launch.panel = NARROW if narrow else WIDE
    size = (launch.pixels + 1) * launch.panel * kernel.weight_size  # with a pixel for those outside
    reads = float(launch.positions * launch.rows) / float(launch.pixels)
    enough = reads >= NARROW_READS and not GATHERS if narrow else reads >= WIDE_READS
    if size > PACKED_BYTES or not (enough or (reads >= INCOHERENT_READS and _is_incoherent(launch))):
        return 0
    # Best each thread packs what it reads, so that nothing goes from one CPU's cache to another's.
    threads, panels = min(kernel.cpus, launch.workers), (c + launch.panel - 1) // launch.panel
    launch.panels = max(1, min(panels, OWN_BYTES // size))
    launch.groups, launch.parts = (panels + launch.panels - 1) // launch.panels, launch.pixels // loops.PIXELS_PER_PART + 1
    own = threads * launch.panels * size
    if n * launch.groups >= threads and own <= PACKED_BYTES:
        launch.packing, launch.workers = PACKING_AND_READING, threads
        return own
    fitting = max(1, CACHE_BYTES // size)
    launch.packing, launch.panels = PACKING, min(panels, fitting)
    launch.batches = max(1, min(n, fitting // launch.panels))
    return launch.batches * launch.panels * size


@register_jitable
def _panels(launch: Any, channel: int) -> int:
    """The panels that are packed at a time, from ``channel`` on."""
    return min(launch.panels, (launch.c - channel + launch.panel - 1) // launch.panel)


@register_jitable
def _is_incoherent(launch: Any) -> bool:
    """Whether neighbouring positions, by the first few of them, lie pixels apart: each then waits for the memory."""
    count = min(INCOHERENT_STEPS, launch.tile)
    if launch.positions < INCOHERENT_STEPS:
        return False
    worker = _worker(launch, 0)
    index = view(worker, launch.scratch.index, (2, launch.rows, launch.width), np.uint32)
    first = index[_table(launch, worker, 0, 0, count), 0]
    lengths, incoherent = array(launch.lengths, (launch.r,), np.int64), 0
    for p in range(count - 1):
        here, there = np.int64(first[p]), np.int64(first[p + 1])
        if (first[p] | first[p + 1]) < OUTSIDE_BIT:
            apart = 0
            for axis in range(launch.r - 1, -1, -1):
                length = lengths[axis]
                apart = max(apart, abs(here % length - there % length))
                here //= length
                there //= length
            incoherent += 1 if apart > INCOHERENT_PIXELS else 0
    return 4 * incoherent > count


@compile_time(1.2)
def worker(launch_at: int, number: int) -> int:
    """Take items of the launch's phase, up to its pause; answers whether there may be more."""
    launch = struct(launch_at, LAUNCH)
    this, phase, panels = _worker(launch, number), launch.phase, launch.panels
    this.has_columns = 0
    for _ in range(launch.pause):
        item = fetch_add(launch, "next", 1)
        if item >= launch.items:
            return 0
        if phase == PACKING_AND_READING:
            batch, channel = item // launch.groups, item % launch.groups * panels * launch.panel
            count = _panels(launch, channel)
            this.first_panel, this.channel, this.panels = number * panels, channel, count
            _pack(launch, this.first_panel, batch, channel, 0, count * launch.parts)
            _sample(launch, this, batch, 0, launch.positions)
        elif phase == PACKING:
            count = _panels(launch, launch.first_channel) * launch.parts
            batch, part = item // count, item % count
            _pack(launch, batch * panels, launch.first_batch + batch, launch.first_channel, part, part + 1)
        else:
            batch, start = item // launch.chunks, item % launch.chunks * launch.chunk
            this.first_panel, this.channel = batch * panels, launch.first_channel
            this.panels = _panels(launch, this.channel)
            stop = min(start + launch.chunk, launch.positions)
            _sample(launch, this, launch.first_batch + batch, start, stop)
    return 1


@register_jitable
def _worker(launch: Any, number: int) -> Any:
    """The header of a worker's scratch memory."""
    return struct(launch.first_worker + number * launch.worker_size, WORKER)


@register_jitable
def _pack(launch: Any, panel: int, batch: int, channel: int, first: int, last: int) -> None:
    """Pack the parts ``first`` to ``last`` of X from ``channel`` on, into panels from ``panel`` on."""
    pack = struct(launch.kernel, KERNEL).pack
    for part in range(first, last):
        number = part // launch.parts
        call(pack, (address(launch), panel + number, batch, channel + number * launch.panel, part % launch.parts))


@register_jitable
def _sample(launch: Any, worker: Any, batch: int, start: int, stop: int) -> None:
    """Fill Y from position ``start`` to ``stop``: all channels, or those of the worker's panels."""
    kernel = struct(launch.kernel, KERNEL)
    read = kernel.read if launch.packed == 0 else kernel.read_packed
    for begin in range(start, stop, launch.tile):
        size = min(launch.tile, stop - begin)
        buffer = _table(launch, worker, batch, begin, size)
        call(read, (address(launch), address(worker), buffer, batch, begin, size))


@register_jitable
def _table(launch: Any, worker: Any, batch: int, begin: int, positions: int) -> int:
    """Make the table of a tile from position ``begin`` on; answers in which buffer it is."""
    kernel, here, there = struct(launch.kernel, KERNEL), address(launch), address(worker)
    rows = 1
    call(kernel.coordinates, (here, there, batch, begin, positions))
    for axis in range(launch.r):
        layout = call(kernel.axis_taps, (here, there, positions, axis))
        if axis > 0:
            layout = call(kernel.combine, (here, there, rows, axis, positions, layout))
        worker.layout = layout
        rows *= kernel.taps
    return (launch.r - 1) % 2


@compile_time(1.4)
def coordinates_for(grid_type: str) -> Callable[..., int]:
    """What takes the coordinates of a tile from a grid of this type."""
    bits, real = stored(grid_type), np.dtype(spec.TYPES[grid_type].compute)

    def coordinates(launch_at: int, worker_at: int, batch: int, begin: int, positions: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        grid = array(launch.grid, (launch.n, launch.positions, launch.r), bits)
        g = view(worker, launch.scratch.coordinates, (launch.r, launch.tile), real)
        loops.split(grid[batch, begin : begin + positions], g)
        return 0

    return coordinates


@compile_time(8.0)
def axis_taps_for(coordinate_type: str, weight_type: str) -> Callable[..., int]:
    """What works out one axis' taps of a tile; of the outermost axis they are the table's beginning."""
    coordinate, real = np.dtype(coordinate_type), np.dtype(weight_type)

    def axis_taps(launch_at: int, worker_at: int, positions: int, axis: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        kernel, scratch = struct(launch.kernel, KERNEL), launch.scratch
        taps = kernel.taps
        offsets = view(worker, scratch.offsets, (taps,), np.int64)
        for tap in range(taps if axis == 0 else 0):
            offsets[tap] = tap
        index = scratch.index if axis == 0 else scratch.along
        weight = scratch.weight if axis == 0 else scratch.along_weight
        g = view(worker, scratch.coordinates, (launch.r, launch.tile), coordinate)[axis, :positions]
        x, lengths = view(worker, scratch.axis, (positions,), coordinate), array(launch.lengths, (launch.r,), np.int64)
        i, w = view(worker, index, (taps, launch.width), np.uint32), view(worker, weight, (taps, launch.width), real)
        align_corners, may_mask = kernel.align_corners != 0, kernel.may_mask != 0
        return loops.axis_taps(g, lengths[axis], kernel.padding, align_corners, x, i, w, taps, may_mask)

    return axis_taps


@compile_time(3.7)
def combine_for(weight_type: str) -> Callable[..., int]:
    """What combines the table so far, ``rows`` in one buffer, with an axis' taps, into the other: they take turns."""
    real = np.dtype(weight_type)

    def combine(launch_at: int, worker_at: int, rows: int, axis: int, positions: int, layout_along: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        scratch, width, taps = launch.scratch, launch.width, struct(launch.kernel, KERNEL).taps
        index = view(worker, scratch.index, (2, launch.rows, width), np.uint32)
        weight = view(worker, scratch.weight, (2, launch.rows, width), real)
        along = view(worker, scratch.along, (taps, width), np.uint32)
        along_weight = view(worker, scratch.along_weight, (taps, width), real)
        offsets = view(worker, scratch.offsets, (rows * taps,), np.int64)
        length = array(launch.lengths, (launch.r,), np.int64)[axis]
        here, by = index[(axis - 1) % 2, :rows], weight[(axis - 1) % 2, :rows]
        to, to_weight = index[axis % 2, : rows * taps], weight[axis % 2, : rows * taps]
        return loops.combine(
            here, by, along, along_weight, offsets, worker.layout, layout_along, length, positions, to, to_weight
        )

    return combine


@compile_time(2.6)
def copy_for(bits_type: str) -> Callable[..., int]:
    """What reads X, of elements of the size of ``bits_type``, through a table of one tap."""
    bits = np.dtype(bits_type)
    size = bits.itemsize

    def read(launch_at: int, worker_at: int, buffer: int, batch: int, begin: int, positions: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        taps = view(worker, launch.scratch.index, (2, launch.width), np.uint32)
        index, inside = taps[buffer, :positions], taps[1 - buffer, :positions]
        # A processor cannot guess where a random grid lies outside: the first pixel is read there, and forgotten.
        for p in range(len(index)):
            inside[p] = index[p] if index[p] < OUTSIDE_BIT else np.uint32(0)
        X = array(launch.X, (launch.n, launch.c, launch.pixels), bits)[batch]
        Y = array(launch.Y, (launch.n, launch.c, launch.positions), bits)[batch]
        if launch.n * launch.c * launch.positions * size < PASSED_BYTES:
            for c in range(launch.c):
                loops.copy_pixels(X[c : c + 1], index, worker.layout, inside, Y[c : c + 1], begin)
            return 0
        for first in range(0, launch.c, TOGETHER):
            count = min(TOGETHER, launch.c - first)
            waiting = view(worker, launch.scratch.sums, (count, launch.width), bits)
            loops.copy_pixels(X[first : first + count], index, worker.layout, inside, waiting, 0)
            for c in range(count):
                copy_past_caches(Y[first + c, begin:], waiting[c, :positions])
        return 0

    return read


def weights_of(X_type: str) -> np.dtype[Any]:
    """The type of the weights of X's taps: what X is computed in, or its real part."""
    return np.dtype(np.finfo(str(spec.TYPES[X_type].compute)).dtype)


@compile_time(1.9)
def sum_for(X_type: str) -> Callable[..., int]:
    """What reads X of this type through a table with weights."""
    bits, real, are_halves = stored(X_type), weights_of(X_type), X_type in HALVES

    def read(launch_at: int, worker_at: int, buffer: int, batch: int, begin: int, positions: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        index, weight, offsets = _read_table(launch, worker, buffer, real)
        X = array(launch.X, (launch.n, launch.c, launch.pixels), bits)[batch]
        Y = array(launch.Y, (launch.n, launch.c, launch.positions), bits)[batch]
        layout = worker.layout
        if not are_halves:
            loops.sum_taps(X, index, offsets, layout, weight, Y, begin, positions)
            return 0
        for first in range(0, launch.c, GROUP):
            count = min(GROUP, launch.c - first)
            sums = view(worker, launch.scratch.sums, (count, launch.width), real)
            layout = loops.sum_taps(X[first : first + count], index, offsets, layout, weight, sums, 0, positions)
            for c in range(count):
                round_to(sums[c, :positions], Y[first + c, begin:])
        return 0

    return read


@compile_time(1.7)
def pack_for(X_type: str) -> Callable[..., int]:
    """What packs a part of a panel of X of this type: its channels last."""
    bits, real = stored(X_type), np.dtype(spec.TYPES[X_type].compute)

    def pack(launch_at: int, panel: int, batch: int, channel: int, part: int) -> int:
        launch = struct(launch_at, LAUNCH)
        X = array(launch.X, (launch.n, launch.c, launch.pixels), bits)
        packed = array(launch.packed, (panel + 1, launch.pixels + 1, launch.panel), real)
        loops.channels_last(X, batch, channel, part * loops.PIXELS_PER_PART, packed[panel])
        return 0

    return pack


@compile_time(2.8)
def sum_packed_for(X_type: str) -> Callable[..., int]:
    """What reads the panels of X of this type through a table."""
    bits, real, are_halves = stored(X_type), np.dtype(spec.TYPES[X_type].compute), X_type in HALVES

    def read(launch_at: int, worker_at: int, buffer: int, batch: int, begin: int, positions: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        index, weight, offsets = _read_table(launch, worker, buffer, real)
        layout, strip = worker.layout, view(worker, launch.scratch.strip, (loops.STRIP, launch.panel), real)
        first = worker.first_panel
        packed = array(launch.packed, (first + worker.panels, launch.pixels + 1, launch.panel), real)[first:]
        Y = array(launch.Y, (launch.n, launch.c, launch.positions), bits)[batch]
        for panel in range(worker.panels):
            channel = worker.channel + panel * launch.panel
            out = Y[channel : min(channel + launch.panel, launch.c)]
            if not are_halves:
                loops.sum_packed(packed[panel], index, offsets, layout, weight, strip, out, begin, positions)
            else:
                sums = view(worker, launch.scratch.sums, (len(out), launch.width), real)
                loops.sum_packed(packed[panel], index, offsets, layout, weight, strip, sums, 0, positions)
                for c in range(len(out)):
                    round_to(sums[c, :positions], out[c, begin:])
        return 0

    return read


@register_jitable
def _read_table(launch: Any, worker: Any, buffer: int, real: Any) -> Any:
    """The taps and weights (rows, width) of the table in ``buffer``, and the offsets (rows,) of contiguous taps."""
    shape = 2, launch.rows, launch.width
    index = view(worker, launch.scratch.index, shape, np.uint32)[buffer]
    weight = view(worker, launch.scratch.weight, shape, real)[buffer]
    return index, weight, view(worker, launch.scratch.offsets, (launch.rows,), np.int64)


def numbers(X_type: str, grid_type: str, mode: str) -> dict[str, int]:
    """The fields of a :data:`.structs.KERNEL` that are numbers, but for an op's own, the attributes and processors."""
    coordinate, weight = _types(X_type, grid_type, mode)
    return {
        "taps": TAPS[mode],
        "X_size": stored(X_type).itemsize,
        "coordinate_size": stored(coordinate).itemsize,
        "weight_size": stored(weight).itemsize,
        "may_mask": int(not X_type.startswith(("int", "uint"))),
    }


def parts(X_type: str, grid_type: str, mode: str, coordinates: Any = None) -> dict[str, tuple[Any, ...] | None]:
    """The functions of a descriptor, as :data:`.compilation.KernelSpec`, by its fields.

    Where there is no grid, ``coordinates`` computes them.
    """
    coordinate, weight = _types(X_type, grid_type, mode)
    size = stored(X_type).itemsize
    packs = mode != "nearest" and (X_type in HALVES or X_type == weight)  # floats
    return {
        "worker": (worker,),
        "proceed": (proceed,),
        "coordinates": coordinates or (coordinates_for, grid_type),
        "axis_taps": (axis_taps_for, coordinate, weight),
        "combine": (combine_for, weight),
        # There is no integer of 16 bytes.
        "read": (copy_for, f"uint{8 * size}" if size <= 8 else X_type) if mode == "nearest" else (sum_for, X_type),
        "pack": (pack_for, X_type) if packs else None,
        "read_packed": (sum_packed_for, X_type) if packs else None,
    }


def _types(X_type: str, grid_type: str, mode: str) -> tuple[str, str]:
    """Those of the coordinates and of the weights, which nearest has none of."""
    coordinate = str(spec.TYPES[grid_type].compute)
    return coordinate, coordinate if mode == "nearest" else weights_of(X_type).name
