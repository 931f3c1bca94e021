"""AffineGrid as it runs: what ONNX Runtime calls, and what fills the grid, compiled for each type of theta.

The order of the operations on a position is that of :mod:`ort_gridsample.core.affine`. State and call are as in
:mod:`.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import checks, spec
from ...core import coordinates
from ...core.halves import HALVES, stored, widened
from ...core.lanes import LANES, LINE, PASSED_BYTES
from ...core.pointers import (
    allocate,
    array,
    call,
    copy_past_caches,
    fetch_add,
    free,
    load,
    memory_of_call,
    store,
    struct,
)
from . import sentences
from .inputs import AXES, DATA, SIZE, close_inputs, copy_shape, get_data, open_inputs
from .sampling import ROOM, get_output, parallel_for

normalize = register_jitable(coordinates.normalize)

# The kernel's state.
(API, SHAPE_OF, LANE, ALIGNED, THETA_SIZE, CPUS) = range(0, 48, 8)
SENTENCES = 48

TOO_LARGE = checks.Sentence("grid", "for size {size}", "fewer bytes than an address can reach")
#: What a run may have to say, each for 2 and for 3 spatial axes.
SAID = (
    *(ROOM, checks.THETA, checks.SIZE_IS_NO_ROW, checks.SIZE_AXES, checks.SIZE_NEGATIVE, checks.SIZE_BATCHES),
    TOO_LARGE,
)
SAID_OF_ALL = len(SAID)
(_, WRONG_THETA, NO_ROW, WRONG_AXES, NEGATIVE, WRONG_BATCHES, IS_TOO_LARGE) = range(7)

# The run's call.
(KERNEL, THETA, GRID, N, R, LENGTHS, ROWS, COLUMNS, STEP, CHUNKS, PARTS, ITEMS, NEXT, SCRATCH) = range(0, 112, 8)
#: The one field of it that is counted up by several at once.
_RUN: Any = {"names": ["next"], "formats": ["i8"], "offsets": [NEXT], "itemsize": 112}
RUN = np.dtype(_RUN, align=True)
SHAPES = 112  # those of theta, of size, and of the grid, one after the other

#: The columns and the positions that are filled in one go.
CHUNK, WORTH_A_GO = 2048, 1 << 14
#: What a lane needs: where columns lie, and a chunk of three coordinates each that waits to be written past the caches.
LANE_BYTES = 4 * CHUNK * 8


def compute(state: int, context: int) -> int:
    """KernelComputeV2: make the grid, and answer with a status, 0 for good."""
    api = load(state + API)
    inputs = memory_of_call(2, SIZE)
    status = open_inputs(api, load(state + SHAPE_OF), context, inputs, 2)
    if status == 0:
        axes, size_axes = load(inputs + AXES), load(inputs + SIZE + AXES)
        run = allocate(SHAPES + 8 * (axes + size_axes + 5))
        if run == 0:
            status = sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, SHAPES)
        else:
            status = copy_shape(api, inputs, run + SHAPES)
            if status == 0:
                status = copy_shape(api, inputs + SIZE, run + SHAPES + 8 * axes)
            if status == 0:
                status = _make(api, context, state, inputs, run)
            free(run)
    close_inputs(api, inputs, 2)
    return status


@register_jitable
def measure(theta_shape: int, axes: int, size: int, size_shape: int, size_axes: int, nbytes: int, shape: int) -> int:
    """Put the grid's shape, whose numbers take ``nbytes`` each, where ``shape`` says, of theta's shape and of size.

    Answers with the number of what is wrong with them, or -1.
    """
    r = 0 if axes != 3 else load(theta_shape + 8)
    if axes != 3 or (r != 2 and r != 3) or load(theta_shape + 16) != r + 1:
        return WRONG_THETA
    if size_axes != 1:
        return NO_ROW
    if load(size_shape) != r + 2:
        return WRONG_AXES
    total, least = float(nbytes * r), 0
    for axis in range(r + 2):
        length = load(size + 8 * axis)
        total *= float(max(length, 1))
        least = min(least, length)
    if least < 0:
        return NEGATIVE
    if load(size) != load(theta_shape):
        return WRONG_BATCHES
    if total >= 2.0**63:
        return IS_TOO_LARGE
    store(shape, load(size))
    for axis in range(r):
        store(shape + 8 * (axis + 1), load(size + 8 * (axis + 2)))
    store(shape + 8 * (r + 1), r)
    return -1


@register_jitable
def refuse(
    api: int, said: int, wrong: int, theta_shape: int, axes: int, size: int, size_shape: int, size_axes: int
) -> int:
    """The status for what :func:`measure` answered, of the sentences whose addresses lie where ``said`` says."""
    r = 2 if wrong == WRONG_THETA else load(theta_shape + 8)
    row, count = (size, load(size_shape)) if size_axes == 1 else (size_shape, size_axes)
    sentence = load(said + 8 * (wrong + (r - 2) * SAID_OF_ALL))
    return sentences.status(api, sentence, theta_shape, axes, row, count, 0)


@register_jitable
def _make(api: int, context: int, state: int, inputs: int, run: int) -> int:
    """Check theta and size, have the grid made, and fill it."""
    axes, size_axes = load(inputs + AXES), load(inputs + SIZE + AXES)
    theta_shape, size_shape = run + SHAPES, run + SHAPES + 8 * axes
    size, shape = load(inputs + SIZE + DATA), size_shape + 8 * size_axes
    wrong = measure(theta_shape, axes, size, size_shape, size_axes, load(state + THETA_SIZE), shape)
    if wrong >= 0:
        return refuse(api, state + SENTENCES, wrong, theta_shape, axes, size, size_shape, size_axes)
    r = load(theta_shape + 8)
    status = get_output(api, (context, 0, shape, r + 2, run + GRID))
    if status == 0:
        status = get_data(api, (load(run + GRID), run + GRID))
    if status != 0:
        return status
    columns, rows = load(shape + 8 * r), 1
    for axis in range(r - 1):
        rows *= load(shape + 8 * (axis + 1))
    if load(size) * rows * columns == 0:
        return 0
    chunk = min(columns, CHUNK)
    chunks = (columns + chunk - 1) // chunk
    step = min(rows, (WORTH_A_GO + chunk - 1) // chunk)
    parts = (rows + step - 1) // step
    items = load(size) * parts * chunks
    store(run + KERNEL, state)
    store(run + THETA, load(inputs + DATA))
    store(run + N, load(size))
    store(run + R, r)
    store(run + LENGTHS, shape + 8)
    store(run + ROWS, rows)
    store(run + COLUMNS, columns)
    store(run + STEP, step)
    store(run + CHUNKS, chunks)
    store(run + PARTS, parts)
    store(run + ITEMS, items)
    store(run + NEXT, 0)
    lanes = min(items, max(LANES, load(state + CPUS)))
    room = lanes * LANE_BYTES + LINE
    scratch = allocate(room)
    if scratch == 0:
        return sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, room)
    store(run + SCRATCH, (scratch + LINE - 1) & -LINE)
    if lanes == 1:
        call(load(state + LANE), (run, 0))
    else:
        status = parallel_for(api, (context, load(state + LANE), lanes, 0, run))
    free(scratch)
    return status


@register_jitable
def position(i: int, length: int, aligned: int) -> float:
    """Where pixel ``i`` of an axis lies, in normalized coordinates."""
    last = float(length - 1)
    return normalize(float(i), last, max(last, 1.0) if aligned != 0 else float(length))


@register_jitable
def row_base(theta: Any, lengths: int, row: int, rows: int, r: int, aligned: int) -> Any:
    """What a coordinate is in a row of the grid but for the column's part, of its row (r + 1,) of theta.

    ``lengths`` is where those of the grid's axes lie, and ``rows`` how many rows these make.
    """
    # From the outermost axis inward, as the last factors of theta's row are the outermost axes'.
    shift = widened(theta[r])
    base, rest, inner = shift, row, rows
    for axis in range(r - 1):
        length = load(lengths + 8 * axis)
        inner //= length
        part = type(shift)(position(rest // inner, length, aligned)) * widened(theta[r - 1 - axis])
        rest %= inner
        base += part
    return base


@register_jitable
def unchanged(value: Any) -> Any:
    """What neither has to be widened nor rounded."""
    return value


def fill_for(theta_type: str) -> Callable[..., int]:
    """What ``KernelContext_ParallelFor`` calls: fill rows of the grid as long as there are any."""
    half = HALVES.get(theta_type)
    there = stored(theta_type)
    real = np.dtype(spec.TYPES[theta_type].compute)
    rounded = half.rounded if half else unchanged
    size, kind = there.itemsize, real.type

    def lane(run: int, index: int) -> int:
        aligned, r, lengths = load(load(run + KERNEL) + ALIGNED), load(run + R), load(run + LENGTHS)
        rows, columns, step = load(run + ROWS), load(run + COLUMNS), load(run + STEP)
        chunks, parts, items = load(run + CHUNKS), load(run + PARTS), load(run + ITEMS)
        waiting = load(run + SCRATCH) + index * LANE_BYTES
        x = array(waiting + 3 * CHUNK * 8, (CHUNK,), real)
        passes = load(run + N) * rows * columns * r * size >= PASSED_BYTES
        theta = array(load(run + THETA), (load(run + N), r, r + 1), there)
        while True:
            item = fetch_add(struct(run, RUN), "next", 1)
            if item >= items:
                return 0
            chunk = item % chunks
            part = (item // chunks) % parts
            batch = item // chunks // parts
            begin = chunk * CHUNK
            count = min(CHUNK, columns - begin)
            for i in range(count):
                x[i] = kind(position(begin + i, columns, aligned))
            for row in range(part * step, min((part + 1) * step, rows)):
                first = ((batch * rows + row) * columns + begin) * r
                to = load(run + GRID) + first * size
                out = array(waiting if passes else to, (count * r,), there)
                for coordinate in range(r):
                    base = row_base(theta[batch, coordinate], lengths, row, rows, r, aligned)
                    factor = widened(theta[batch, coordinate, 0])
                    if r == 2:
                        for i in range(count):
                            out[2 * i + coordinate] = rounded(base + x[i] * factor)
                    else:
                        for i in range(count):
                            out[3 * i + coordinate] = rounded(base + x[i] * factor)
                if passes:
                    copy_past_caches(array(to, (count * r,), there), out)

    return lane
