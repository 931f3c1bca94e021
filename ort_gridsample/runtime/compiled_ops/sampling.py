"""GridSample as it runs: what ONNX Runtime calls, and how it has the workers of :mod:`ort_gridsample.core.workers` run.

The grid is the second input, or has a source: a compiled function measures it, and another computes the coordinates of
a tile (:mod:`.affine`, :mod:`.program_grids`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import checks
from ...core import kernels, workers
from ...core.pointers import address, call, local, set_memory, struct
from ...core.taps import MAX_TAPS
from .requests import close_request, keep, launched, make_output, open_request, shape
from .sentences import ROOM, no_room, refuse
from .structs import GRID_SAMPLE, REQUEST

#: The sentences of the op, and their numbers.
PIXELS_LIMIT = checks.Sentence("X", "of shape {X}", f"at most {kernels.MAX_PIXELS} pixels a channel")
TAPS_LIMIT = checks.Sentence("X", "of shape {X}", "fewer spatial axes: a position has too many taps")
TOO_LARGE = checks.Sentence("Y", "for X of shape {X} and grid of shape {grid}", "fewer bytes than an address can reach")
SENTENCES = (
    *(ROOM, checks.X_HAS_NO_AXES, checks.GRID_AXES, checks.GRID_BATCHES, TOO_LARGE, checks.X_HAS_NO_PIXEL),
    *(PIXELS_LIMIT, TAPS_LIMIT),
)
(GOOD, NO_AXES, WRONG_AXES, WRONG_BATCHES, IS_TOO_LARGE, NO_PIXEL, TOO_MANY_PIXELS, TOO_MANY_TAPS) = range(8)


def compute(op_at: int, context: int) -> int:
    """KernelComputeV2: sample; returns a status, 0 for success."""
    op, request = struct(op_at, GRID_SAMPLE), local(REQUEST)
    request.launch.kernel = op_at
    status = open_request(request, op.kernel.api, op.kernel.shape_of, context, op.n_inputs)
    if status == 0:
        if op.measure != 0:
            status = call(op.measure, (address(request),))
        else:
            given = request.inputs[1]
            request.grid.data, request.grid.shape, request.grid.axes = given.data, given.shape, given.axes
    if status == 0:
        status = _sample(op, request)
    close_request(request)
    return status


@register_jitable
def _sample(op: Any, request: Any) -> int:
    """Check the shapes of X and of the grid, allocate Y as the output, and fill it."""
    X, grid, launch = shape(request.inputs[0]), shape(request.grid), request.launch
    wrong = _measure(op, launch, X, grid)
    if wrong != GOOD:
        return refuse(request.api, op.sentences, wrong, X, grid, 0)
    Y = keep(request, len(X))
    if len(Y) == 0:
        return no_room(request.api, op.sentences, 8 * len(X))
    for axis in range(len(Y)):  # to assign an array takes a second to compile
        Y[axis] = X[axis] if axis < 2 else grid[axis - 1]
    status, launch.Y = make_output(request, Y)
    nbytes = launch.n * launch.c * launch.positions * op.kernel.X_size
    if status != 0 or nbytes == 0:
        return status
    if launch.pixels == 0:
        set_memory(launch.Y, np.int32(0), nbytes)
        return status
    launch.X, launch.grid = request.inputs[0].data, request.grid.data
    launch.lengths, launch.out_lengths = np.int64(X[2:].ctypes.data), np.int64(Y[2:].ctypes.data)
    launch.workers, launch.pauses = max(workers.WORKERS, op.kernel.cpus), 0
    return launched(request, launch, op.kernel.proceed, op.kernel.worker, op.sentences)


@register_jitable
def _measure(op: Any, launch: Any, X: Any, grid: Any) -> int:
    """Check the shapes and set the launch's lengths; returns the number of a sentence, or GOOD."""
    r = len(X) - 2
    if r < 1:
        return NO_AXES
    if len(grid) != len(X) or grid[r + 1] != r:
        return WRONG_AXES
    n, c = X[0], X[1]
    if grid[0] != n:
        return WRONG_BATCHES
    pixels, positions, rows, most = 1, 1, 1, kernels.MAX_PIXELS + 1
    # Of lengths of 0 beside large ones the product must not overflow either.
    nbytes = float(max(n, 1)) * float(max(c, 1)) * float(op.kernel.X_size)
    for axis in range(r):
        positions *= grid[axis + 1]
        nbytes *= float(max(grid[axis + 1], 1))
        pixels = min(pixels * min(X[axis + 2], most), most)
        rows = min(rows * op.kernel.taps, MAX_TAPS + 1)
    for axis in range(r):
        if X[axis + 2] == 0:
            pixels = 0
    if nbytes >= 2.0**63:
        return IS_TOO_LARGE
    if n * c * positions > 0:
        if pixels == 0 and op.kernel.padding != kernels.ZEROS:
            return NO_PIXEL
        if pixels > kernels.MAX_PIXELS:
            return TOO_MANY_PIXELS
        if rows > MAX_TAPS:
            return TOO_MANY_TAPS
    launch.n, launch.c, launch.r = n, c, r
    launch.pixels, launch.positions, launch.rows = pixels, positions, rows
    return GOOD
