"""The GridSample op: what ONNX Runtime calls, and how it has the lanes of :mod:`ort_gridsample.core.lanes` run.

The state is theirs, with the two words that every op's begins with, and the addresses of its sentences last; so is the
run, behind which the shapes lie.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from ... import checks
from ...core import kernels, lanes, workers
from ...core.lanes import (
    GRID,
    LANE,
    LENGTHS,
    MOST_LANES,
    NBYTES,
    OUT,
    OWN_BYTES,
    PADDING,
    PAUSES,
    PHASE,
    PIXELS,
    POSITIONS,
    PROCEED,
    ROWS,
    STATE,
    TAPS,
    X_SIZE,
    C,
    N,
    R,
    X,
    Y,
)
from ...core.pointers import allocate, call, free, load, memory_of_call, set_memory, store
from ...core.taps import MAX_TAPS
from . import sentences
from .calls import function
from .inputs import AXES, DATA, SIZE, close_inputs, copy_shape, get_data, open_inputs

get_output = function("KernelContext_GetOutput")
parallel_for = function("KernelContext_ParallelFor")

(API, SHAPE_OF) = range(0, 16, 8)
SENTENCES = lanes.STATE_BYTES
SHAPES = lanes.RUN_BYTES  # those of X, grid and Y, one after the other

#: What a run may have to say, in the order of :data:`SENTENCES`: first that there is no memory.
ROOM = checks.Sentence("memory", "not to be had", "{nbytes} bytes of scratch")
PIXELS_LIMIT = checks.Sentence("X", "of shape {X}", f"at most {kernels.MAX_PIXELS} pixels a channel")
TAPS_LIMIT = checks.Sentence("X", "of shape {X}", "fewer spatial axes: a position has too many taps")
TOO_LARGE = checks.Sentence("Y", "for X of shape {X} and grid of shape {grid}", "fewer bytes than an address can reach")
SAID = (
    *(ROOM, checks.X_HAS_NO_AXES, checks.GRID_AXES, checks.GRID_BATCHES, TOO_LARGE, checks.X_HAS_NO_PIXEL),
    *(PIXELS_LIMIT, TAPS_LIMIT),
)
(_, NO_AXES, WRONG_AXES, WRONG_BATCHES, IS_TOO_LARGE, NO_PIXEL, TOO_MANY_PIXELS, TOO_MANY_TAPS) = range(8)
GOOD = -1


def compute(state: int, context: int) -> int:
    """KernelComputeV2: sample, and answer with a status, 0 for good."""
    api = load(state + API)
    inputs = memory_of_call(2, SIZE)
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
    store(run + STATE, state)
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
    y_shape = load(run + OUT) - 16
    status = get_output(api, (context, 0, y_shape, load(run + R) + 2, run + Y))
    if status == 0:
        status = get_data(api, (load(run + Y), run + Y))
    nbytes = load(run + N) * load(run + C) * load(run + POSITIONS) * load(state + X_SIZE)
    if status != 0 or nbytes == 0:
        return status
    if load(run + PIXELS) == 0:
        set_memory(load(run + Y), np.int32(0), nbytes)
        return status
    store(run + MOST_LANES, max(lanes.LANES, load(state + lanes.CPUS)))
    store(run + PAUSES, 0)
    store(run + OWN_BYTES, 0)
    store(run + PHASE, workers.NEW)
    count = call(load(state + PROCEED), (run,))
    while count > 0:
        if count > 1:
            status = parallel_for(api, (context, load(state + LANE), count, 0, run))
        else:
            call(load(state + LANE), (run, 0))
        if status != 0:
            store(run + PHASE, workers.END)
        count = call(load(state + PROCEED), (run,))
    if count < 0:
        return sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, load(run + NBYTES))
    return status
