"""GridSample as it runs: what ONNX Runtime calls, what its threads do, and what is compiled for each type.

A run takes the positions in stretches, and a stretch in blocks. Of a block, ``table`` makes a table of taps from the
grid and ``read`` reads X through it into Y, as :mod:`ort_gridsample.core.kernels` states both. They are compiled each
for itself and call one another by address, so that one more type of X is one small function more.

What they hand on lies in two rows of int64: the kernel's ``state``, which is made with the session and never changes,
and the run's ``call``. The names in capitals are the places in them, in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import checks, spec
from ...core import jit_core, kernels
from ...core.halves import HALVES, round_to
from ...core.taps import MAX_TAPS
from ...core.vectors import GATHERS, NARROW, WIDE
from . import sentences
from .inputs import AXES, DATA, SIZE, close_inputs, copy_shape, open_inputs
from .pointers import allocate, array, call, fetch_add, free, function, load, memory_of_call, set_memory, store

get_output = function("KernelContext_GetOutput")
get_data = function("GetTensorMutableData")
parallel_for = function("KernelContext_ParallelFor")

# The kernel's state; ``REORDER`` is 0 where X is never laid out, and ``COLUMNS`` where the grid is given: else as many
# columns of Y are known to a lane once for all. The sentences' addresses come last.
(API, SHAPE_OF, LANE, COORDINATES, AXIS_TAPS, COMBINE, READ, REORDER, READ_ROWS) = range(0, 72, 8)
(TAPS, PADDING, ALIGNED, X_SIZE, G_SIZE, W_SIZE, CPUS, COLUMNS, GRID_ALIGNED) = range(72, 144, 8)
SENTENCES = 144

#: What a run may have to say, in the order of :data:`SENTENCES`: first that there is no memory.
ROOM = checks.Sentence("memory", "not to be had", "{nbytes} bytes of scratch")
PIXELS_LIMIT = checks.Sentence("X", "of shape {X}", f"at most {kernels.MAX_PIXELS} pixels a channel")
TAPS_LIMIT = checks.Sentence("X", "of shape {X}", "fewer spatial axes: a position has too many taps")
TOO_LARGE = checks.Sentence("Y", "for X of shape {X} and grid of shape {grid}", "fewer bytes than an address can reach")
SAID = (
    ROOM,
    checks.X_HAS_NO_AXES,
    checks.GRID_AXES,
    checks.GRID_BATCHES,
    TOO_LARGE,
    checks.X_HAS_NO_PIXEL,
    PIXELS_LIMIT,
    TAPS_LIMIT,
)
(_, NO_AXES, WRONG_AXES, WRONG_BATCHES, IS_TOO_LARGE, NO_PIXEL, TOO_MANY_PIXELS, TOO_MANY_TAPS) = range(8)
GOOD = -1

# The run's call: what is sampled where, how it is cut, and what lies where in a lane's scratch memory.
(KERNEL, X, GRID, Y, N, C, R, PIXELS, POSITIONS, ROWS, LENGTHS, BLOCK, WIDTH, STEP, PARTS, ITEMS, NEXT) = range(
    0, 136, 8
)
(SCRATCH, STRIDE, COORDINATE, AXIS, ALONG, ALONG_WEIGHT, INDEX, WEIGHT, OFFSETS, SUMS, TILE, STEPS) = range(136, 232, 8)
# X with its channels last, if it is laid out so: in rows of so many channels, so many batches and chunks at a time. How
# it is done: READING what is there, after LAYING it out for all threads, or each thread both for chunks of its own.
(ROWS_OF_X, ROW, FIRST_BATCH, BATCHES, FIRST_CHANNEL, CHUNKS, MOST_LANES, PHASE, OUT) = range(232, 304, 8)
READING, LAYING, BOTH = range(3)
SHAPES = 304  # those of X, grid and Y, one after the other
# What a lane reads: rows of X, from which channel on, and how many chunks of them; whether the taps of its table are
# whole; and whether it knows where the columns of Y lie. It begins its scratch memory.
(PLACE, CHANNEL, COUNT, WHOLE, KNOWN) = range(0, 40, 8)

#: What one stretch reads at least, in taps and channels, and how many of them a large run is cut into.
WORTH_A_STRETCH, STRETCHES = 1 << 16, 64
#: A thread takes a lane, and in it stretch after stretch; each lane has scratch memory, which is the bound of it all.
LANES, SCRATCH_BYTES = 64, 32 << 20
#: Beside its table, what a position costs, in channels.
OVERHEAD = 8
#: Channels whose sums wait in float32 until they are rounded to halves.
GROUP = 16
#: X is laid out with its channels last where each pixel is read so often, as :mod:`ort_gridsample.core.jit_core` does,
#: in at most so much memory.
NARROW_READS, WIDE_READS, ROUGH_READS, HALF_READS = (
    jit_core.NARROW_READS, jit_core.WIDE_READS, jit_core.ROUGH_READS, jit_core.HALF_READS
)  # fmt: skip
ROUGH_STEPS, ROUGH_PIXELS, CACHE_BYTES, OWN_BYTES, ROWS_BYTES = (
    jit_core.ROUGH_STEPS, jit_core.ROUGH_PIXELS, jit_core.CACHE_BYTES, jit_core.OWN_BYTES, 30 << 20
)  # fmt: skip
#: A line of the cache, at which each part of the scratch memory begins.
LINE = 64


def compute(state: int, context: int) -> int:
    """KernelComputeV2: sample, and answer with a status, 0 for good."""
    api = load(state + API)
    inputs = memory_of_call()
    status = open_inputs(api, load(state + SHAPE_OF), context, inputs, 2)
    if status == 0:
        axes, grid_axes = load(inputs + AXES), load(inputs + SIZE + AXES)
        run = allocate(SHAPES + 8 * (axes + 2 * grid_axes))
        if run == 0:
            status = sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, SHAPES)
        else:
            shape, grid_shape = run + SHAPES, run + SHAPES + 8 * axes
            status = copy_shape(api, inputs, shape)
            if status == 0:
                status = copy_shape(api, inputs + SIZE, grid_shape)
            if status == 0:
                store(run + X, load(inputs + DATA))
                store(run + GRID, load(inputs + SIZE + DATA))
                status = sample(api, context, state, run, shape, axes, grid_shape, grid_axes)
            free(run)
    close_inputs(api, inputs, 2)
    return status


@register_jitable
def sample(api: int, context: int, state: int, run: int, shape: int, axes: int, grid_shape: int, grid_axes: int) -> int:
    """Check the shapes of X and of the grid, behind which there is room for Y's, have Y made, and fill it."""
    wrong = _measure(state, run, shape, axes, grid_shape, grid_axes)
    if wrong == GOOD:
        return _fill(api, context, state, run)
    return sentences.status(api, load(state + SENTENCES + 8 * wrong), shape, axes, grid_shape, grid_axes, 0)


@register_jitable
def _measure(state: int, run: int, shape: int, axes: int, grid_shape: int, grid_axes: int) -> int:
    """Check the shapes, and write down what follows from them; answers with the number of a sentence, or GOOD."""
    r = axes - 2
    if r < 1:
        return NO_AXES
    if grid_axes != axes or load(grid_shape + 8 * (r + 1)) != r:
        return WRONG_AXES
    n, c = load(shape), load(shape + 8)
    if load(grid_shape) != n:
        return WRONG_BATCHES
    y_shape = grid_shape + 8 * axes
    store(y_shape, n)
    store(y_shape + 8, c)
    pixels, positions, rows, taps = 1, 1, 1, load(state + TAPS)
    # Of lengths of 0 beside large ones the product must not overflow either.
    room = float(max(n, 1)) * float(max(c, 1)) * float(load(state + X_SIZE))
    for axis in range(r):
        length = load(grid_shape + 8 * (axis + 1))
        store(y_shape + 8 * (axis + 2), length)
        positions *= length
        room *= float(max(length, 1))
        length = load(shape + 8 * (axis + 2))
        pixels = min(pixels * min(length, kernels.MAX_PIXELS + 1), kernels.MAX_PIXELS + 1)
        rows = min(rows * taps, MAX_TAPS + 1)
    for axis in range(r):
        if load(shape + 8 * (axis + 2)) == 0:
            pixels = 0
    if room >= 2.0**63:
        return IS_TOO_LARGE
    if n * c * positions > 0:
        if pixels == 0 and load(state + PADDING) != kernels.ZEROS:
            return NO_PIXEL
        if pixels > kernels.MAX_PIXELS:
            return TOO_MANY_PIXELS
        if rows > MAX_TAPS:
            return TOO_MANY_TAPS
    store(run + KERNEL, state)
    store(run + N, n)
    store(run + C, c)
    store(run + R, r)
    store(run + PIXELS, pixels)
    store(run + POSITIONS, positions)
    store(run + ROWS, rows)
    store(run + LENGTHS, shape + 16)
    store(run + OUT, y_shape + 16)
    return GOOD


@register_jitable
def _fill(api: int, context: int, state: int, run: int) -> int:
    """Have Y made, and fill it."""
    n, c, r, positions = load(run + N), load(run + C), load(run + R), load(run + POSITIONS)
    y_shape = load(run + OUT) - 16
    status = get_output(api, (context, 0, y_shape, r + 2, run + Y))
    if status == 0:
        status = get_data(api, (load(run + Y), run + Y))
    nbytes = n * c * positions * load(state + X_SIZE)
    if status != 0 or nbytes == 0:
        return status
    if load(run + PIXELS) == 0:
        set_memory(load(run + Y), np.int32(0), nbytes)
        return status
    lanes = _cut(state, run)
    size = lanes * load(run + STRIDE) + LINE
    scratch = allocate(size)
    if scratch == 0:
        return sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, size)
    store(run + SCRATCH, (scratch + LINE - 1) & -LINE)
    store(load(run + SCRATCH) + KNOWN, 0)
    store(run + PHASE, READING)
    size = _rows_bytes(state, run)
    rows = allocate(size + LINE) if size > 0 else 0
    store(run + ROWS_OF_X, 0 if rows == 0 else (rows + LINE - 1) & -LINE)  # without that memory X stays as it is
    store(run + FIRST_BATCH, 0)
    store(run + FIRST_CHANNEL, 0)
    if rows == 0:
        store(run + CHUNKS, 1)
        store(run + ROW, c)
        status = _go(api, context, run, READING, n * load(run + PARTS))
    elif load(run + PHASE) == BOTH:
        status = _go(api, context, run, BOTH, n * _groups(run))
    else:
        for first_batch in range(0, n, load(run + BATCHES)):
            for first_channel in range(0, c, load(run + CHUNKS) * load(run + ROW)):
                store(run + FIRST_BATCH, first_batch)
                store(run + FIRST_CHANNEL, first_channel)
                batches = min(load(run + BATCHES), n - first_batch)
                if status == 0:
                    chunks = _chunks(run, first_channel)
                    status = _go(api, context, run, LAYING, batches * chunks * _parts_of_rows(run))
                if status == 0:
                    status = _go(api, context, run, READING, batches * load(run + PARTS))
    free(rows)
    free(scratch)
    return status


@register_jitable
def _go(api: int, context: int, run: int, phase: int, items: int) -> int:
    """Have ``items`` done by the session's threads, each of which takes a lane; alone where that is enough."""
    store(run + PHASE, phase)
    store(run + ITEMS, items)
    store(run + NEXT, 0)
    lanes, lane = min(items, load(run + MOST_LANES)), load(load(run + KERNEL) + LANE)
    if lanes > 1:
        return parallel_for(api, (context, lane, lanes, 0, run))
    call(lane, (run, 0))
    return 0


@register_jitable
def _chunks(run: int, channel: int) -> int:
    """The chunks of channels, each a row wide, that are laid out at a time, from ``channel`` on."""
    row = load(run + ROW)
    return min(load(run + CHUNKS), (load(run + C) - channel + row - 1) // row)


@register_jitable
def _groups(run: int) -> int:
    """How often so many chunks are laid out for all channels."""
    channels = load(run + CHUNKS) * load(run + ROW)
    return (load(run + C) + channels - 1) // channels


@register_jitable
def _parts_of_rows(run: int) -> int:
    """The parts in which one chunk of one batch is laid out."""
    return load(run + PIXELS) // kernels.PART + 1


@register_jitable
def _cut(state: int, run: int) -> int:
    """Cut the run into stretches, and a lane's scratch memory into parts; answers with the number of lanes."""
    n, c, positions, rows = load(run + N), load(run + C), load(run + POSITIONS), load(run + ROWS)
    taps = load(state + TAPS)
    step = max(WORTH_A_STRETCH // ((c + OVERHEAD) * rows), n * positions // STRETCHES)
    step = min((step + LINE) & -LINE, positions)
    parts = (positions + step - 1) // step
    store(run + STEP, step)
    store(run + PARTS, parts)
    block = max(1, min(kernels.BLOCK_POSITIONS, kernels.BLOCK_TAPS // rows, positions))
    width = block + kernels.ROW_PADDING
    store(run + BLOCK, block)
    store(run + WIDTH, width)
    g_size, w_size = load(state + G_SIZE), load(state + W_SIZE)
    weights = 1 if taps > 1 else 0
    at, what = LINE, run + COORDINATE
    for size in (
        block * g_size,
        block * g_size,
        taps * width * 4,
        weights * taps * width * w_size,
        2 * rows * width * 4,
        weights * 2 * rows * width * w_size,
        rows * 8,
        weights * GROUP * width * w_size,
        weights * WIDE * kernels.TILE * w_size,
        load(state + COLUMNS) * 8,
    ):  # COORDINATE, AXIS, ALONG, ALONG_WEIGHT, INDEX, WEIGHT, OFFSETS, SUMS, TILE and STEPS
        store(what, at)
        at, what = (at + size + LINE - 1) & -LINE, what + 8
    store(run + STRIDE, at)
    # What is not worth two stretches is not worth waking a thread, however many batches it is.
    lanes = min(LANES, max(1, SCRATCH_BYTES // at), 1 + n * positions * rows * (c + OVERHEAD) // WORTH_A_STRETCH)
    store(run + MOST_LANES, lanes)
    return lanes


@register_jitable
def _rows_bytes(state: int, run: int) -> int:
    """The memory that X takes with its channels last, in the batches and chunks of a go; 0 where it stays as it is."""
    n, c, pixels = load(run + N), load(run + C), load(run + PIXELS)
    if load(state + REORDER) == 0 or c < 2:
        return 0
    narrow = c <= 2 * NARROW
    if narrow and GATHERS and load(state + X_SIZE) != 2:
        return 0
    row = NARROW if narrow else WIDE
    size = (pixels + 1) * row * load(state + W_SIZE)
    reads = float(load(run + POSITIONS) * load(run + ROWS)) / float(pixels)
    enough = WIDE_READS if not narrow else HALF_READS if load(state + X_SIZE) == 2 else NARROW_READS
    if size > ROWS_BYTES or not (reads >= enough or (reads >= ROUGH_READS and _is_rough(state, run))):
        return 0
    store(run + ROW, row)
    # Best each thread lays out what it reads, so that nothing goes from one CPU's cache to another's.
    cpus, chunks = load(state + CPUS), (c + row - 1) // row
    store(run + CHUNKS, max(1, min(chunks, OWN_BYTES // size)))
    own = cpus * load(run + CHUNKS) * size
    if n * _groups(run) >= 2 * cpus and own <= ROWS_BYTES:
        store(run + PHASE, BOTH)
        store(run + MOST_LANES, min(load(run + MOST_LANES), cpus))
        return own
    fitting = max(1, CACHE_BYTES // size)
    store(run + CHUNKS, min(chunks, fitting))
    store(run + BATCHES, max(1, min(n, fitting // load(run + CHUNKS))))
    return load(run + BATCHES) * load(run + CHUNKS) * size


@register_jitable
def _is_rough(state: int, run: int) -> bool:
    """Whether neighbouring positions, by the first few of them, lie pixels apart: each then waits for the memory."""
    count = min(ROUGH_STEPS, load(run + BLOCK))
    if load(run + POSITIONS) < ROUGH_STEPS:
        return False
    scratch = load(run + SCRATCH)
    half = _table(state, run, scratch, 0, 0, count)
    first = half * load(run + ROWS) * load(run + WIDTH)
    index = array(scratch + load(run + INDEX) + first * 4, (count,), np.uint32)
    rough = 0
    for p in range(count - 1):
        here, there = np.int64(index[p]), np.int64(index[p + 1])
        if (index[p] | index[p + 1]) < kernels.OUTSIDE_BIT:
            axis, apart = load(run + R), 0
            while axis > 0:
                axis -= 1
                length = load(load(run + LENGTHS) + 8 * axis)
                apart = max(apart, abs(here % length - there % length))
                here //= length
                there //= length
            rough += 1 if apart > ROUGH_PIXELS else 0
    return 4 * rough > count


@register_jitable
def _table(state: int, run: int, scratch: int, batch: int, begin: int, positions: int) -> int:
    """Make the table of a block from position ``begin`` on; answers in which half of its memory it is."""
    r, taps = load(run + R), load(state + TAPS)
    half, rows = 0, 1
    for axis in range(r):
        call(load(state + COORDINATES), (run, scratch, batch, begin, positions, axis))
        whole = call(load(state + AXIS_TAPS), (run, scratch, positions, axis))
        if axis > 0:
            whole = call(load(state + COMBINE), (run, scratch, half, rows, axis, positions, whole))
            half = 1 - half
        store(scratch + WHOLE, whole)
        rows *= taps
    return half


def lane(run: int, index: int) -> int:
    """What ``KernelContext_ParallelFor`` calls: take items of the run's phase as long as there are any."""
    phase, items, positions = load(run + PHASE), load(run + ITEMS), load(run + POSITIONS)
    scratch = load(run + SCRATCH) + index * load(run + STRIDE)
    row, chunks, size = load(run + ROW), load(run + CHUNKS), _chunk_bytes(run)
    store(scratch + KNOWN, 0)
    while True:
        item = fetch_add(run + NEXT, 1)
        if item >= items:
            return 0
        if phase == BOTH:
            groups = _groups(run)
            batch, channel = item // groups, item % groups * chunks * row
            place, count = load(run + ROWS_OF_X) + index * chunks * size, _chunks(run, channel)
            _lay(run, place, batch, channel, 0, count * _parts_of_rows(run))
            _sample(run, scratch, batch, 0, positions, place, channel, count)
        elif phase == LAYING:
            channel = load(run + FIRST_CHANNEL)
            count = _chunks(run, channel) * _parts_of_rows(run)
            batch, part = item // count, item % count
            place = load(run + ROWS_OF_X) + batch * chunks * size
            _lay(run, place, load(run + FIRST_BATCH) + batch, channel, part, part + 1)
        else:
            parts, step, channel = load(run + PARTS), load(run + STEP), load(run + FIRST_CHANNEL)
            batch, start = item // parts, item % parts * step
            place, stop = load(run + ROWS_OF_X) + batch * chunks * size, min(start + step, positions)
            batch += load(run + FIRST_BATCH)
            _sample(run, scratch, batch, start, stop, place, channel, _chunks(run, channel))


@register_jitable
def _chunk_bytes(run: int) -> int:
    """The bytes of one chunk of one batch of X, laid out."""
    return (load(run + PIXELS) + 1) * load(run + ROW) * load(load(run + KERNEL) + W_SIZE)


@register_jitable
def _lay(run: int, place: int, batch: int, channel: int, first: int, last: int) -> None:
    """Lay out the parts ``first`` to ``last`` of X: those of one chunk after the other, from ``channel`` on."""
    parts, row = _parts_of_rows(run), load(run + ROW)
    for part in range(first, last):
        chunk = part // parts
        to = place + chunk * _chunk_bytes(run)
        call(load(load(run + KERNEL) + REORDER), (run, to, batch, channel + chunk * row, part % parts))


@register_jitable
def _sample(run: int, scratch: int, batch: int, start: int, stop: int, place: int, channel: int, count: int) -> None:
    """Fill Y from position ``start`` to ``stop``: all channels, or ``count`` chunks of them, laid out at ``place``."""
    state, block = load(run + KERNEL), load(run + BLOCK)
    read = load(state + (READ if load(run + ROWS_OF_X) == 0 else READ_ROWS))
    store(scratch + PLACE, place)
    store(scratch + CHANNEL, channel)
    store(scratch + COUNT, count)
    for begin in range(start, stop, block):
        size = min(block, stop - begin)
        half = _table(state, run, scratch, batch, begin, size)
        call(read, (run, scratch, half, batch, begin, size))


def coordinates_for(grid_type: str) -> Callable[..., int]:
    """What takes one axis' coordinates of a block from a grid of this type."""
    half, kind = HALVES.get(grid_type), np.dtype(spec.TYPES[grid_type].compute)
    stored = half.bits if half else np.dtype(grid_type)
    size = stored.itemsize

    def coordinates(run: int, scratch: int, batch: int, begin: int, positions: int, axis: int) -> int:
        r = load(run + R)
        first = (batch * load(run + POSITIONS) + begin) * r * size
        grid = array(load(run + GRID) + first, (positions, r), stored)
        kernels.split(grid, axis, array(scratch + load(run + COORDINATE), (positions,), kind))
        return 0

    return coordinates


def axis_for(coordinate_type: str, weight_type: str) -> Callable[..., int]:
    """What works out one axis' taps of a block; of the outermost axis they are the table's beginning."""
    coordinate, real = np.dtype(coordinate_type), np.dtype(weight_type)

    def axis_taps(run: int, scratch: int, positions: int, axis: int) -> int:
        state, width = load(run + KERNEL), load(run + WIDTH)
        taps = load(state + TAPS)
        if axis == 0:
            kernels.begin_offsets(array(scratch + load(run + OFFSETS), (taps,), np.int64), taps)
        index = load(run + INDEX) if axis == 0 else load(run + ALONG)
        weight = load(run + WEIGHT) if axis == 0 else load(run + ALONG_WEIGHT)
        whole = kernels.axis_taps(
            array(scratch + load(run + COORDINATE), (positions,), coordinate),
            load(load(run + LENGTHS) + 8 * axis),
            load(state + PADDING),
            load(state + ALIGNED) != 0,
            array(scratch + load(run + AXIS), (positions,), coordinate),
            array(scratch + index, (taps, width), np.uint32),
            array(scratch + weight, (taps, width), real),
            taps,
        )
        return 1 if whole else 0

    return axis_taps


def combine_for(weight_type: str) -> Callable[..., int]:
    """What combines the table so far, of ``rows`` in its one ``half``, with an axis' taps, into its other half."""
    real = np.dtype(weight_type)
    real_size = real.itemsize

    def combine(run: int, scratch: int, half: int, rows: int, axis: int, positions: int, whole: int) -> int:
        width, all_rows = load(run + WIDTH), load(run + ROWS)
        taps = load(load(run + KERNEL) + TAPS)
        index, weight = scratch + load(run + INDEX), scratch + load(run + WEIGHT)
        now, then = half * all_rows * width, (1 - half) * all_rows * width
        whole = kernels.combine(
            array(index + now * 4, (rows, width), np.uint32),
            array(weight + now * real_size, (rows, width), real),
            array(scratch + load(run + ALONG), (taps, width), np.uint32),
            array(scratch + load(run + ALONG_WEIGHT), (taps, width), real),
            array(scratch + load(run + OFFSETS), (rows * taps,), np.int64),
            load(scratch + WHOLE) != 0,
            whole != 0,
            load(load(run + LENGTHS) + 8 * axis),
            positions,
            array(index + then * 4, (rows * taps, width), np.uint32),
            array(weight + then * real_size, (rows * taps, width), real),
        )
        return 1 if whole else 0

    return combine


def copy_for(bits_type: str) -> Callable[..., int]:
    """What reads X, of elements of the size of ``bits_type``, through a table of one tap."""
    bits = np.dtype(bits_type)
    zero, size = bits.type(0), bits.itemsize

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions, width = (
            load(run + C),
            load(run + PIXELS),
            load(run + POSITIONS),
            load(run + WIDTH),
        )
        index = array(scratch + load(run + INDEX) + half * width * 4, (positions,), np.uint32)
        for c in range(channels):
            channel = batch * channels + c
            image = array(load(run + X) + channel * pixels * size, (pixels,), bits)
            out = array(load(run + Y) + (channel * all_positions + begin) * size, (positions,), bits)
            for p in range(positions):
                i = index[p]
                out[p] = image[i] if i < kernels.OUTSIDE_BIT else zero
        return 0

    return read


def sum_for(X_type: str) -> Callable[..., int]:
    """What reads X of this type through a table with weights."""
    if X_type in HALVES:
        return _sum_halves_for(HALVES[X_type].bits)
    dtype, real = np.dtype(X_type), np.dtype(spec.TYPES[X_type].compute)
    size, real_size = dtype.itemsize, real.itemsize

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions = load(run + C), load(run + PIXELS), load(run + POSITIONS)
        rows, width = load(run + ROWS), load(run + WIDTH)
        table = half * rows * width
        kernels.sum_taps(
            array(load(run + X) + batch * channels * pixels * size, (channels, pixels), dtype),
            array(scratch + load(run + INDEX) + table * 4, (rows, width), np.uint32),
            array(scratch + load(run + OFFSETS), (rows,), np.int64),
            load(scratch + WHOLE) != 0,
            array(scratch + load(run + WEIGHT) + table * real_size, (rows, width), real),
            array(load(run + Y) + batch * channels * all_positions * size, (channels, all_positions), dtype),
            begin,
            positions,
        )
        return 0

    return read


def _sum_halves_for(bits: np.dtype[Any]) -> Callable[..., int]:
    """What reads halves of these ``bits`` through a table with weights of float32, and rounds the sums."""

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions = load(run + C), load(run + PIXELS), load(run + POSITIONS)
        rows, width = load(run + ROWS), load(run + WIDTH)
        table = half * rows * width
        index = array(scratch + load(run + INDEX) + table * 4, (rows, width), np.uint32)
        weight = array(scratch + load(run + WEIGHT) + table * 4, (rows, width), np.float32)
        offsets, whole = array(scratch + load(run + OFFSETS), (rows,), np.int64), load(scratch + WHOLE) != 0
        for first in range(0, channels, GROUP):
            count = min(GROUP, channels - first)
            channel = batch * channels + first
            sums = array(scratch + load(run + SUMS), (count, width), np.float32)
            image = array(load(run + X) + channel * pixels * 2, (count, pixels), bits)
            kernels.sum_taps(image, index, offsets, whole, weight, sums, 0, positions)
            out = array(load(run + Y) + channel * all_positions * 2, (count, all_positions), bits)
            for c in range(count):
                round_to(sums[c, :positions], out[c, begin:])
        return 0

    return read


def reorder_for(X_type: str) -> Callable[..., int]:
    """What lays out a part of a chunk of X of this type with its channels last."""
    half, real = HALVES.get(X_type), np.dtype(spec.TYPES[X_type].compute)
    dtype = half.bits if half else np.dtype(X_type)

    def reorder(run: int, place: int, batch: int, channel: int, part: int) -> int:
        pixels = load(run + PIXELS)
        kernels.channels_last(
            array(load(run + X), (load(run + N), load(run + C), pixels), dtype),
            batch,
            channel,
            part * kernels.PART,
            array(place, (pixels + 1, load(run + ROW)), real),
        )
        return 0

    return reorder


def sum_rows_for(X_type: str) -> Callable[..., int]:
    """What reads X of this type, laid out with its channels last, through a table."""
    half, real = HALVES.get(X_type), np.dtype(spec.TYPES[X_type].compute)
    real_size, size = real.itemsize, 2 if half else real.itemsize
    bits = half.bits if half else None

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions, row = load(run + C), load(run + PIXELS), load(run + POSITIONS), load(run + ROW)
        rows, width = load(run + ROWS), load(run + WIDTH)
        table = half * rows * width
        index = array(scratch + load(run + INDEX) + table * 4, (rows, width), np.uint32)
        weight = array(scratch + load(run + WEIGHT) + table * real_size, (rows, width), real)
        tile = array(scratch + load(run + TILE), (kernels.TILE, row), real)
        if load(scratch + WHOLE) != 0:
            kernels.spread(index, array(scratch + load(run + OFFSETS), (rows,), np.int64), positions)
        for chunk in range(load(scratch + COUNT)):
            channel = load(scratch + CHANNEL) + chunk * row
            count = min(row, channels - channel)
            rows_of_X = array(load(scratch + PLACE) + chunk * _chunk_bytes(run), (pixels + 1, row), real)
            out = load(run + Y) + (batch * channels + channel) * all_positions * size
            if bits is None:
                sums = array(out, (count, all_positions), real)
                kernels.sum_rows(rows_of_X, index, weight, tile, sums, begin, positions)
            else:
                sums = array(scratch + load(run + SUMS), (count, width), real)
                kernels.sum_rows(rows_of_X, index, weight, tile, sums, 0, positions)
                halves = array(out, (count, all_positions), bits)
                for c in range(count):
                    round_to(sums[c, :positions], halves[c, begin:])
        return 0

    return read
