"""GridSample as it runs in compiled code: how a run is cut, what its threads do, and what is compiled for each type.

A run takes the positions in stretches, and a stretch in blocks. Of a block, ``table`` makes a table of taps from the
grid and ``read`` reads X through it into Y, as :mod:`.kernels` states both. They are compiled each for itself and call
one another by address, so that one more type of X is one small function more.

Whoever samples, :mod:`.jit_core` or a compiled op, says what, has a run cut, gives it memory and, phase after phase,
has as many threads as it answers call :func:`lane`. What is handed on lies in two rows of int64: the ``state``, which
is made once for a way to sample and never changes, and the ``run``. The names in capitals are the places in them, in
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from .. import spec
from . import crew, kernels
from .halves import HALVES, round_to, stored
from .pointers import LINE, array, call, copy_past_caches, fetch_add, load, store
from .vectors import GATHERS, NARROW, WIDE

# The state: the first two words are an op's. ``REORDER`` is 0 where X is never laid out, and ``COLUMNS`` where there is
# a grid: else as many columns of Y are known to a lane once for all. ``MAY_GAP`` is 0 where sums need the weight of a
# tap outside as well.
(LANE, COORDINATES, AXIS_TAPS, COMBINE, READ, REORDER, READ_ROWS) = range(16, 72, 8)
(TAPS, PADDING, ALIGNED, X_SIZE, G_SIZE, W_SIZE, CPUS, COLUMNS, GRID_ALIGNED, MAY_GAP) = range(72, 152, 8)
STATE_BYTES = 152

# The run: what is sampled where, and by how many lanes at most,
(STATE, X, GRID, Y, N, C, R, PIXELS, POSITIONS, ROWS, LENGTHS, MOST_LANES) = range(0, 96, 8)
# how it is cut, and what lies where in a lane's scratch memory.
(BLOCK, WIDTH, STEP, PARTS, PAUSE, ITEMS, NEXT, SCRATCH, STRIDE) = range(96, 168, 8)
(COORDINATE, AXIS, ALONG, ALONG_WEIGHT, INDEX, WEIGHT, OFFSETS, SUMS, TILE, STEPS) = range(168, 248, 8)
# X with its channels last, if it is laid out so: in rows of so many channels, so many batches and chunks at a go. How a
# go begins: by READING what is there, by LAYING it out for all threads, or each thread does BOTH for chunks of its own.
(ROWS_OF_X, ROW, BATCHES, CHUNKS, HOW, PHASE, FIRST_BATCH, FIRST_CHANNEL) = range(248, 312, 8)
READING, LAYING, BOTH = range(3)
# What is offered to helpers.
TASK = 312
RUN_BYTES = TASK + crew.TASK_BYTES
# What a lane reads: rows of X, from which channel on, and how many chunks of them; how the taps of its table lie; and
# whether it knows where the columns of Y lie. It begins its scratch memory.
(PLACE, CHANNEL, COUNT, TAPS_LIE, KNOWN) = range(0, 40, 8)

#: What one stretch reads at least, in taps and channels, how many of them a large run is cut into (or one a lane, if
#: that is more), and after how much a lane comes back where it is asked to.
WORTH_A_STRETCH, STRETCHES, WORTH_A_PAUSE = 1 << 16, 64, 1 << 24
#: A thread takes a lane, and in it stretch after stretch; each lane has scratch memory, which is the bound of it all.
#: Where nobody says how many threads there are, there are so many lanes, or as many as processors.
LANES, SCRATCH_BYTES = 64, 32 << 20
#: Beside its table, what a position costs, in channels.
OVERHEAD = 8
#: Channels whose sums wait in float32 until they are rounded to halves.
GROUP = 16
#: X is laid out in rows of channels where each pixel is read so often: more pays for the copy, and a rough grid gains
#: more. Narrow rows pay where taps are read one by one; where the CPU gathers them, for rough grids alone. Measured on
#: 2-D cubic of 3 channels with border padding: 0.75 of the time by a random grid, 1.3 by a smooth one.
NARROW_READS, WIDE_READS, ROUGH_READS = 8, 2, 0.4
ROUGH_STEPS, ROUGH_PIXELS = 256, 4
#: No more is laid out at a time than the CPU's second cache holds, and by a thread for itself half of that; and no X of
#: which one chunk is larger than this.
CACHE_BYTES, OWN_BYTES, ROWS_BYTES = 1 << 20, 1 << 19, 30 << 20
#: A Y of so many bytes stays in no cache. Pixels that are copied and not computed are written past these then, as to be
#: read before it is written takes as long as to be written: 0.8 of the time. Sums wait for other things.
PASSED_BYTES = 1 << 24
#: Channels that are copied at once then: they are waited for together, which takes 0.7 of the time. In the caches they
#: push each other out.
TOGETHER = 3


@register_jitable
def cut(run: int) -> int:
    """Cut the run into stretches, and a lane's scratch memory into parts; answers with the bytes of all lanes'.

    Of the run, what comes before :data:`BLOCK` is given.
    """
    n, c, positions, rows = load(run + N), load(run + C), load(run + POSITIONS), load(run + ROWS)
    state = load(run + STATE)
    taps = load(state + TAPS)
    cost = (c + OVERHEAD) * rows
    stretches = max(STRETCHES, load(run + MOST_LANES))
    step = min(max(WORTH_A_STRETCH // cost, n * positions // stretches), max(1, WORTH_A_PAUSE // cost))
    step = min((step + LINE) & -LINE, positions)
    parts = (positions + step - 1) // step
    store(run + STEP, step)
    store(run + PARTS, parts)
    store(run + PAUSE, max(1, WORTH_A_PAUSE // (cost * step)))
    block = max(1, min(kernels.BLOCK_POSITIONS, kernels.BLOCK_TAPS // rows, positions))
    width = block + kernels.ROW_PADDING
    store(run + BLOCK, block)
    store(run + WIDTH, width)
    g_size, w_size = load(state + G_SIZE), load(state + W_SIZE)
    weights = 1 if taps > 1 else 0
    at, what = LINE, run + COORDINATE  # each part begins at a line of the caches
    for size in (
        load(run + R) * block * g_size,
        block * g_size,
        taps * width * 4,
        weights * taps * width * w_size,
        2 * rows * width * 4,
        weights * 2 * rows * width * w_size,
        rows * 8,
        width * (GROUP * w_size if weights else TOGETHER * load(state + X_SIZE)),
        weights * WIDE * kernels.TILE * w_size,
        load(state + COLUMNS) * 8,
    ):  # COORDINATE, AXIS, ALONG, ALONG_WEIGHT, INDEX, WEIGHT, OFFSETS, SUMS, TILE and STEPS
        store(what, at)
        at, what = (at + size + LINE - 1) & -LINE, what + 8
    store(run + STRIDE, at)
    # What is not worth two stretches is not worth waking a thread, however many batches it is.
    worth = 1 + n * positions * cost // WORTH_A_STRETCH
    lanes = min(load(run + MOST_LANES), max(1, SCRATCH_BYTES // at), worth)
    store(run + MOST_LANES, lanes)
    return lanes * at + LINE


@register_jitable
def lay(run: int, scratch: int) -> int:
    """Take the memory that :func:`cut` asked for, and see whether X is laid out in rows: the bytes they take, or 0."""
    scratch = (scratch + LINE - 1) & -LINE
    store(run + SCRATCH, scratch)
    store(scratch + KNOWN, 0)
    store(run + ROWS_OF_X, 0)
    state, n, c, pixels = load(run + STATE), load(run + N), load(run + C), load(run + PIXELS)
    if load(state + REORDER) == 0 or c < 2:
        return 0
    narrow = c <= 2 * NARROW
    if narrow and GATHERS and kernels.can_lie_together(load(state + TAPS), load(state + PADDING)):
        return 0
    row = NARROW if narrow else WIDE
    size = (pixels + 1) * row * load(state + W_SIZE)
    reads = float(load(run + POSITIONS) * load(run + ROWS)) / float(pixels)
    enough = reads >= NARROW_READS and not GATHERS if narrow else reads >= WIDE_READS
    if size > ROWS_BYTES or not (enough or (reads >= ROUGH_READS and _is_rough(run))):
        return 0
    store(run + ROW, row)
    # Best each thread lays out what it reads, so that nothing goes from one CPU's cache to another's.
    threads, chunks = min(load(state + CPUS), load(run + MOST_LANES)), (c + row - 1) // row
    store(run + CHUNKS, max(1, min(chunks, OWN_BYTES // size)))
    own = threads * load(run + CHUNKS) * size
    if n * _groups(run) >= threads and own <= ROWS_BYTES:
        store(run + HOW, BOTH)
        store(run + MOST_LANES, threads)
        return own + LINE
    fitting = max(1, CACHE_BYTES // size)
    store(run + HOW, LAYING)
    store(run + CHUNKS, min(chunks, fitting))
    store(run + BATCHES, max(1, min(n, fitting // load(run + CHUNKS))))
    return load(run + BATCHES) * load(run + CHUNKS) * size + LINE


@register_jitable
def begin(run: int, rows: int) -> int:
    """Take the memory that :func:`lay` asked for, and begin as :func:`advance` goes on; 0 leaves X as it is."""
    store(run + ROWS_OF_X, 0 if rows == 0 else (rows + LINE - 1) & -LINE)
    if rows == 0:  # one go, of all channels
        store(run + HOW, READING)
        store(run + BATCHES, load(run + N))
        store(run + CHUNKS, 1)
        store(run + ROW, load(run + C))
    store(run + FIRST_BATCH, 0)
    store(run + FIRST_CHANNEL, 0)
    return _enter(run, load(run + HOW))


@register_jitable
def advance(run: int) -> int:
    """Go on to the next phase, when all lanes are through with the one before; answers with its lanes, 0 at the end."""
    phase = load(run + PHASE)
    if phase == LAYING:
        return _enter(run, READING)
    if phase == BOTH:
        return 0
    channel = load(run + FIRST_CHANNEL) + load(run + CHUNKS) * load(run + ROW)
    if channel >= load(run + C):
        channel = 0
        store(run + FIRST_BATCH, load(run + FIRST_BATCH) + load(run + BATCHES))
    store(run + FIRST_CHANNEL, channel)
    return 0 if load(run + FIRST_BATCH) >= load(run + N) else _enter(run, load(run + HOW))


@register_jitable
def _enter(run: int, phase: int) -> int:
    """Begin a phase; answers with its lanes."""
    batches = min(load(run + BATCHES), load(run + N) - load(run + FIRST_BATCH))
    if phase == BOTH:
        items = load(run + N) * _groups(run)
    elif phase == LAYING:
        items = batches * _chunks(run, load(run + FIRST_CHANNEL)) * _parts_of_rows(run)
    else:
        items = batches * load(run + PARTS)
    store(run + PHASE, phase)
    store(run + ITEMS, items)
    store(run + NEXT, 0)
    count = min(items, load(run + MOST_LANES))
    crew.begin_task(run + TASK, load(load(run + STATE) + LANE), run, count - 1)
    return count


#: What :func:`steer` does.
CUT, LAY, BEGIN, ADVANCE, INVITE, FINISH, ATTEND = range(7)


def steer(run: int, what: int, memory: int) -> int:
    """The steps above, and those of :mod:`.crew`, for those who are not compiled themselves."""
    if what == CUT:
        return cut(run)
    if what == LAY:
        return lay(run, memory)
    if what == BEGIN:
        return begin(run, memory)
    if what == ADVANCE:
        return advance(run)
    if what == INVITE:
        return crew.invite(run + TASK, memory)
    return crew.finish(run + TASK, memory) if what == FINISH else crew.attend(memory)


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
def _is_rough(run: int) -> bool:
    """Whether neighbouring positions, by the first few of them, lie pixels apart: each then waits for the memory."""
    count = min(ROUGH_STEPS, load(run + BLOCK))
    if load(run + POSITIONS) < ROUGH_STEPS:
        return False
    scratch = load(run + SCRATCH)
    half = _table(run, scratch, 0, 0, count)
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
def _table(run: int, scratch: int, batch: int, begin: int, positions: int) -> int:
    """Make the table of a block from position ``begin`` on; answers in which half of its memory it is."""
    state, r = load(run + STATE), load(run + R)
    taps = load(state + TAPS)
    half, rows = 0, 1
    call(load(state + COORDINATES), (run, scratch, batch, begin, positions))
    for axis in range(r):
        how = call(load(state + AXIS_TAPS), (run, scratch, positions, axis))
        if axis > 0:
            how = call(load(state + COMBINE), (run, scratch, half, rows, axis, positions, how))
            half = 1 - half
        store(scratch + TAPS_LIE, how)
        rows *= taps
    return half


def lane(run: int, index: int) -> int:
    """Take items of the run's phase, up to :data:`PAUSE`; answers whether there may be more."""
    phase, items, positions = load(run + PHASE), load(run + ITEMS), load(run + POSITIONS)
    scratch = load(run + SCRATCH) + index * load(run + STRIDE)
    row, chunks, size = load(run + ROW), load(run + CHUNKS), _chunk_bytes(run)
    store(scratch + KNOWN, 0)
    for _ in range(load(run + PAUSE)):
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
    return 1


@register_jitable
def _chunk_bytes(run: int) -> int:
    """The bytes of one chunk of one batch of X, laid out."""
    return (load(run + PIXELS) + 1) * load(run + ROW) * load(load(run + STATE) + W_SIZE)


@register_jitable
def _lay(run: int, place: int, batch: int, channel: int, first: int, last: int) -> None:
    """Lay out the parts ``first`` to ``last`` of X: those of one chunk after the other, from ``channel`` on."""
    parts, row = _parts_of_rows(run), load(run + ROW)
    for part in range(first, last):
        chunk = part // parts
        to = place + chunk * _chunk_bytes(run)
        call(load(load(run + STATE) + REORDER), (run, to, batch, channel + chunk * row, part % parts))


@register_jitable
def _sample(run: int, scratch: int, batch: int, start: int, stop: int, place: int, channel: int, count: int) -> None:
    """Fill Y from position ``start`` to ``stop``: all channels, or ``count`` chunks of them, laid out at ``place``."""
    state, block = load(run + STATE), load(run + BLOCK)
    read = load(state + (READ if load(run + ROWS_OF_X) == 0 else READ_ROWS))
    store(scratch + PLACE, place)
    store(scratch + CHANNEL, channel)
    store(scratch + COUNT, count)
    for begin in range(start, stop, block):
        size = min(block, stop - begin)
        half = _table(run, scratch, batch, begin, size)
        call(read, (run, scratch, half, batch, begin, size))


def coordinates_for(grid_type: str) -> Callable[..., int]:
    """What takes the coordinates of a block from a grid of this type."""
    there, kind = stored(grid_type), np.dtype(spec.TYPES[grid_type].compute)
    size = there.itemsize

    def coordinates(run: int, scratch: int, batch: int, begin: int, positions: int) -> int:
        r = load(run + R)
        first = (batch * load(run + POSITIONS) + begin) * r * size
        grid = array(load(run + GRID) + first, (positions, r), there)
        kernels.split(grid, array(scratch + load(run + COORDINATE), (r, load(run + BLOCK)), kind))
        return 0

    return coordinates


def axis_for(coordinate_type: str, weight_type: str) -> Callable[..., int]:
    """What works out one axis' taps of a block; of the outermost axis they are the table's beginning."""
    coordinate, real = np.dtype(coordinate_type), np.dtype(weight_type)
    g_size = coordinate.itemsize

    def axis_taps(run: int, scratch: int, positions: int, axis: int) -> int:
        state, width = load(run + STATE), load(run + WIDTH)
        taps = load(state + TAPS)
        if axis == 0:
            kernels.begin_offsets(array(scratch + load(run + OFFSETS), (taps,), np.int64), taps)
        index = load(run + INDEX) if axis == 0 else load(run + ALONG)
        weight = load(run + WEIGHT) if axis == 0 else load(run + ALONG_WEIGHT)
        return kernels.axis_taps(
            array(scratch + load(run + COORDINATE) + axis * load(run + BLOCK) * g_size, (positions,), coordinate),
            load(load(run + LENGTHS) + 8 * axis),
            load(state + PADDING),
            load(state + ALIGNED) != 0,
            array(scratch + load(run + AXIS), (positions,), coordinate),
            array(scratch + index, (taps, width), np.uint32),
            array(scratch + weight, (taps, width), real),
            taps,
            load(state + MAY_GAP) != 0,
        )

    return axis_taps


def combine_for(weight_type: str) -> Callable[..., int]:
    """What combines the table so far, of ``rows`` in its one ``half``, with an axis' taps, into its other half."""
    real = np.dtype(weight_type)
    real_size = real.itemsize

    def combine(run: int, scratch: int, half: int, rows: int, axis: int, positions: int, how_along: int) -> int:
        width, all_rows = load(run + WIDTH), load(run + ROWS)
        taps = load(load(run + STATE) + TAPS)
        index, weight = scratch + load(run + INDEX), scratch + load(run + WEIGHT)
        now, then = half * all_rows * width, (1 - half) * all_rows * width
        return kernels.combine(
            array(index + now * 4, (rows, width), np.uint32),
            array(weight + now * real_size, (rows, width), real),
            array(scratch + load(run + ALONG), (taps, width), np.uint32),
            array(scratch + load(run + ALONG_WEIGHT), (taps, width), real),
            array(scratch + load(run + OFFSETS), (rows * taps,), np.int64),
            load(scratch + TAPS_LIE),
            how_along,
            load(load(run + LENGTHS) + 8 * axis),
            positions,
            array(index + then * 4, (rows * taps, width), np.uint32),
            array(weight + then * real_size, (rows * taps, width), real),
        )

    return combine


def copy_for(bits_type: str) -> Callable[..., int]:
    """What reads X, of elements of the size of ``bits_type``, through a table of one tap."""
    bits = np.dtype(bits_type)
    size = bits.itemsize

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions = load(run + C), load(run + PIXELS), load(run + POSITIONS)
        width, how, nbytes = load(run + WIDTH), load(scratch + TAPS_LIE), positions * size
        index = array(scratch + load(run + INDEX) + half * width * 4, (positions,), np.uint32)
        inside = array(scratch + load(run + INDEX) + (1 - half) * width * 4, (positions,), np.uint32)
        kernels.clear_outside(index, inside)
        passes = load(run + N) * channels * all_positions * size >= PASSED_BYTES
        together = TOGETHER if passes else 1
        for first in range(0, channels, together):
            count = min(together, channels - first)
            channel = batch * channels + first
            image = array(load(run + X) + channel * pixels * size, (count, pixels), bits)
            to = load(run + Y) + (channel * all_positions + begin) * size
            here = scratch + load(run + SUMS) if passes else to
            kernels.copy_pixels(image, index, how, inside, array(here, (count, width), bits))
            if passes:
                for c in range(count):
                    copy_past_caches(to + c * all_positions * size, here + c * width * size, nbytes)
        return 0

    return read


def weights_of(X_type: str) -> np.dtype[Any]:
    """The type of the weights of X's taps: what X is computed in, or its real part."""
    return np.dtype(np.finfo(str(spec.TYPES[X_type].compute)).dtype)


def sum_for(X_type: str) -> Callable[..., int]:
    """What reads X of this type through a table with weights."""
    if X_type in HALVES:
        return _sum_halves_for(HALVES[X_type].bits)
    dtype, real = np.dtype(X_type), weights_of(X_type)
    size, real_size = dtype.itemsize, real.itemsize

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions = load(run + C), load(run + PIXELS), load(run + POSITIONS)
        rows, width = load(run + ROWS), load(run + WIDTH)
        table = half * rows * width
        kernels.sum_taps(
            array(load(run + X) + batch * channels * pixels * size, (channels, pixels), dtype),
            array(scratch + load(run + INDEX) + table * 4, (rows, width), np.uint32),
            array(scratch + load(run + OFFSETS), (rows,), np.int64),
            load(scratch + TAPS_LIE),
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
        offsets, how = array(scratch + load(run + OFFSETS), (rows,), np.int64), load(scratch + TAPS_LIE)
        for first in range(0, channels, GROUP):
            count = min(GROUP, channels - first)
            channel = batch * channels + first
            sums = array(scratch + load(run + SUMS), (count, width), np.float32)
            image = array(load(run + X) + channel * pixels * 2, (count, pixels), bits)
            how = kernels.sum_taps(image, index, offsets, how, weight, sums, 0, positions)
            out = array(load(run + Y) + channel * all_positions * 2, (count, all_positions), bits)
            for c in range(count):
                round_to(sums[c, :positions], out[c, begin:])
        return 0

    return read


def reorder_for(X_type: str) -> Callable[..., int]:
    """What lays out a part of a chunk of X of this type with its channels last."""
    dtype, real = stored(X_type), np.dtype(spec.TYPES[X_type].compute)

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
    bits, real = stored(X_type), np.dtype(spec.TYPES[X_type].compute)
    real_size, size, are_halves = real.itemsize, bits.itemsize, X_type in HALVES

    def read(run: int, scratch: int, half: int, batch: int, begin: int, positions: int) -> int:
        channels, pixels, all_positions, row = load(run + C), load(run + PIXELS), load(run + POSITIONS), load(run + ROW)
        rows, width = load(run + ROWS), load(run + WIDTH)
        table = half * rows * width
        index = array(scratch + load(run + INDEX) + table * 4, (rows, width), np.uint32)
        weight = array(scratch + load(run + WEIGHT) + table * real_size, (rows, width), real)
        tile = array(scratch + load(run + TILE), (kernels.TILE, row), real)
        offsets, how = array(scratch + load(run + OFFSETS), (rows,), np.int64), load(scratch + TAPS_LIE)
        for chunk in range(load(scratch + COUNT)):
            channel = load(scratch + CHANNEL) + chunk * row
            count = min(row, channels - channel)
            rows_of_X = array(load(scratch + PLACE) + chunk * _chunk_bytes(run), (pixels + 1, row), real)
            out = load(run + Y) + (batch * channels + channel) * all_positions * size
            if not are_halves:
                sums = array(out, (count, all_positions), real)
                kernels.sum_rows(rows_of_X, index, offsets, how, weight, tile, sums, begin, positions)
            else:
                sums = array(scratch + load(run + SUMS), (count, width), real)
                kernels.sum_rows(rows_of_X, index, offsets, how, weight, tile, sums, 0, positions)
                halves = array(out, (count, all_positions), bits)
                for c in range(count):
                    round_to(sums[c, :positions], halves[c, begin:])
        return 0

    return read
