"""AffineGrid and GridSample in one, where nothing else reads the grid: it is worked out a block at a time, from theta.

Every number is that of the two ops, and so is what they say of a wrong input. State and call are those of
:mod:`.sampling`, with theta in the grid's place and the sentences of :mod:`.affine` behind its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...core.halves import HALVES, stored, widened
from ...core.lanes import BLOCK, COORDINATE, GRID, GRID_ALIGNED, KNOWN, OUT, STATE, STEPS, R, X
from ...core.pointers import allocate, array, free, load, memory_of_call, store
from . import sentences
from .affine import measure, position, refuse, row_base, unchanged
from .inputs import AXES, DATA, SIZE, close_inputs, copy_shape, open_inputs
from .sampling import API, SAID, SENTENCES, SHAPE_OF, SHAPES, sample

#: Where a lane knows the columns of Y once for all, there are at most so many.
MOST_COLUMNS = 4096
#: The sentences of sampling, which come first.
SENTENCES_OF_SAMPLING = len(SAID)
#: The most axes that theta's, size's and the grid's shapes have where they are right.
_AXES = 5


def compute(state: int, context: int) -> int:
    """KernelComputeV2: sample X at the grid that theta and size say, and answer with a status, 0 for good."""
    api = load(state + API)
    inputs = memory_of_call(3, SIZE)
    size, theta = inputs + SIZE, inputs + 2 * SIZE
    status = open_inputs(api, load(state + SHAPE_OF), context, inputs, 3)
    if status == 0:
        axes, theta_axes, size_axes = load(inputs + AXES), load(theta + AXES), load(size + AXES)
        # Of X, the grid and Y first, as they are sampled, where the grid has as many axes as X, or Y is never made.
        shape, grid_shape = SHAPES, SHAPES + 8 * axes
        theta_shape = grid_shape + 8 * (axes + _AXES)
        size_shape = theta_shape + 8 * theta_axes
        run = allocate(size_shape + 8 * size_axes)
        if run == 0:
            status = sentences.status(api, load(state + SENTENCES), 0, 0, 0, 0, SHAPES)
        else:
            status = copy_shape(api, inputs, run + shape)
            if status == 0:
                status = copy_shape(api, theta, run + theta_shape)
            if status == 0:
                status = copy_shape(api, size, run + size_shape)
            if status == 0:
                store(run + X, load(inputs + DATA))
                store(run + GRID, load(theta + DATA))
                status = _sample(
                    api, context, state, run, run + shape, axes, run + grid_shape,
                    run + theta_shape, theta_axes, load(size + DATA), run + size_shape, size_axes,
                )  # fmt: skip
            free(run)
    close_inputs(api, inputs, 3)
    return status


@register_jitable
def _sample(
    api: int, context: int, state: int, run: int, shape: int, axes: int, grid_shape: int,
    theta_shape: int, theta_axes: int, size: int, size_shape: int, size_axes: int,
) -> int:  # fmt: skip
    wrong = measure(theta_shape, theta_axes, size, size_shape, size_axes, 8, grid_shape)
    if wrong >= 0:
        said = state + SENTENCES + 8 * SENTENCES_OF_SAMPLING
        return refuse(api, said, wrong, theta_shape, theta_axes, size, size_shape, size_axes)
    return sample(api, context, state, run, shape, axes, grid_shape, load(theta_shape + 8) + 2)


def coordinates_for(theta_type: str, grid_type: str) -> Callable[..., int]:
    """What works out the coordinates of a block from theta of the one type, for a grid of the other."""
    half, grid_half = HALVES.get(theta_type), HALVES.get(grid_type)
    real, coordinate = np.dtype(spec.TYPES[theta_type].compute), np.dtype(spec.TYPES[grid_type].compute)
    kind, to = real.type, coordinate.type
    from_half, rounded = (half.widened, half.rounded) if half else (unchanged, unchanged)
    grid_widened, grid_rounded = (grid_half.widened, grid_half.rounded) if grid_half else (unchanged, unchanged)
    there = stored(theta_type)
    size = there.itemsize

    def coordinates(run: int, scratch: int, batch: int, begin: int, positions: int) -> int:
        r, out = load(run + R), load(run + OUT)
        aligned, most = load(load(run + STATE) + GRID_ALIGNED), MOST_COLUMNS
        columns, rows = load(out + 8 * (r - 1)), 1
        for outer in range(r - 1):
            rows *= load(out + 8 * outer)
        steps = array(scratch + load(run + STEPS), (most,), kind)
        if columns <= most and load(scratch + KNOWN) == 0:
            for i in range(columns):
                steps[i] = kind(position(i, columns, aligned))
            store(scratch + KNOWN, 1)
        theta = array(load(run + GRID) + batch * r * (r + 1) * size, (r, r + 1), there)
        g = array(scratch + load(run + COORDINATE), (r, load(run + BLOCK)), to)
        done = 0
        while done < positions:
            row, column = (begin + done) // columns, (begin + done) % columns
            count = min(positions - done, columns - column)
            if columns > most:
                count = min(count, most)
                for i in range(count):
                    steps[i] = kind(position(column + i, columns, aligned))
                column = 0
            for axis in range(r):
                row_of_theta, along = theta[r - 1 - axis], g[axis, done:]  # the innermost axis is theta's first
                base, factor = row_base(row_of_theta, out, row, rows, r, aligned), widened(row_of_theta[0])
                for i in range(count):
                    number = from_half(rounded(base + steps[column + i] * factor))
                    along[i] = to(grid_widened(grid_rounded(number)))
            done += count
        return 0

    return coordinates
