"""The compiled core: stretches of output positions, each one call of a kernel, on the package's own threads.

Importing this module imports Numba.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba.core import event

from .. import progress
from . import kernels, numpy_core, sums, vectors
from .arrays import Array, Floats
from .plan import Plan, plan_for
from .threads import ELEMENTS_PER_THREAD, for_each

logger = logging.getLogger("ort_gridsample")

#: The modes and paddings that the kernels state; any other is the NumPy core's.
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
PADDING = {"zeros": kernels.ZEROS, "border": kernels.BORDER, "reflection": kernels.REFLECTION}

#: What one stretch holds: enough to be worth handing over, little enough to share fairly and to convert on the side.
MIN_POSITIONS, MAX_POSITIONS = 512, 1 << 16
MAX_ELEMENTS = 1 << 21
#: X is laid out in rows of channels where each pixel is read so often: more pays for the copy, and a rough grid gains
#: more. Measured on 2-D linear: 0.8 of the time at 4 reads of 3 channels by a random grid, 1.3 by a smooth one. Halves
#: are converted once on the way: 0.7 at 4 reads by a smooth grid. Narrow rows of floats never
#: pay where the CPU gathers pixels.
NARROW_READS, WIDE_READS, ROUGH_READS, HALF_READS = 8, 2, 0.4, 3
MIN_CHANNELS, ROWS_BYTES = 2, 40 << 20
ROUGH_STEPS, ROUGH_PIXELS = 256, 4
#: What a rough grid finds in the CPU's second cache, if no more is laid out at a time.
CACHE_BYTES = 1 << 20


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P); see :mod:`ort_gridsample.core`."""
    n, c, positions = Y.shape
    flat_X = X.reshape(n, c, -1)
    is_stated = plan.mode in TAPS and plan.padding_mode in PADDING
    if not is_stated or X.dtype.kind in "OUT" or flat_X.shape[2] > kernels.MAX_PIXELS:
        # Numba knows no strings, and a table's index has 31 bits.
        return numpy_core.grid_sample(X, grid, Y, plan, num_threads)
    lengths, taps = np.array(X.shape[2:]), TAPS[plan.mode]
    how = lengths, PADDING[plan.padding_mode], plan.align_corners, taps
    coordinates = np.float64 if grid.dtype == np.float64 else np.float32
    half = None
    if taps == 1 and X.itemsize <= 8:  # nearest only copies: one kernel for each size of element
        bits = f"u{X.itemsize}"
        flat_X, Y = flat_X.view(bits), Y.view(bits)
    elif X.itemsize == 2 and X.dtype.kind not in "iu":
        half = "u2" if X.dtype == np.float16 else "i2"
        flat_X = flat_X.view(half)
    flat_X = _read_only(flat_X)

    def reorder(part: tuple[int, int, int, Array]) -> None:
        kernels.channels_last(flat_X, *part)

    def sample(stretch: tuple[int, int, slice, Array]) -> None:
        batch, start, channels, rows = stretch
        # Always of the same types, in C order: anything else would be another kernel to compile.
        g = _read_only(np.ascontiguousarray(grid[batch, start : start + step], coordinates))
        if taps == 1:
            kernels.nearest(flat_X, g, Y, batch, start, *how)
        elif half:
            part = np.empty((1, channels.stop - channels.start, len(g)), plan.compute)
            kernels.weighted(flat_X[batch : batch + 1], g, part, 0, 0, *how, rows, 0)
            with np.errstate(over="ignore"):  # beyond the half's largest: infinity
                Y[batch, channels, start : start + step] = part[0]
        else:
            kernels.weighted(flat_X, g, Y, batch, start, *how, rows, channels.start)

    threads = min(num_threads, Y.size // ELEMENTS_PER_THREAD + 1)
    share = -(-n * positions // (4 * threads)) if threads > 1 else positions
    step = max(MIN_POSITIONS, min(share, MAX_POSITIONS, MAX_ELEMENTS // c))
    for batches, channels, rows in _rounds(flat_X, grid, lengths, plan):
        _, chunks, end, width = rows.shape
        parts = [
            (batch, channels.start + k * width, start, rows[batch - batches.start, k])
            for batch in batches
            for k in range(chunks)
            for start in range(0, end, kernels.PART)
        ]
        for_each(reorder, parts, min(threads, len(parts)))
        stretches = [
            (batch, start, channels, rows[batch - batches.start])
            for batch in batches
            for start in range(0, positions, step)
        ]
        for_each(sample, stretches, min(threads, len(stretches)))


def _rounds(X: Array, grid: Floats, lengths: Array, plan: Plan) -> Iterator[tuple[range, slice, Array]]:
    """The batches, the channels, and memory (N', K, S + 1, W) to lay X (N, C, S) out in rows; K is 0 where it stays."""
    n, c, pixels = X.shape
    narrow = c <= 2 * vectors.NARROW
    enough = WIDE_READS if not narrow else HALF_READS if X.dtype.kind in "iu" else NARROW_READS
    reads = grid.shape[1] * TAPS[plan.mode] ** len(lengths) / pixels
    in_rows = plan.sum is sums.floating and plan.compute.kind == "f" and c >= MIN_CHANNELS
    in_rows = in_rows and not (narrow and vectors.GATHERS and X.dtype.kind == "f")
    rough = in_rows and reads >= ROUGH_READS and _is_rough(grid, lengths)
    if in_rows and (reads >= enough or rough):
        width = vectors.NARROW if narrow else vectors.WIDE
        chunks, size = -(-c // width), (pixels + 1) * width * plan.weights.itemsize
        if size <= ROWS_BYTES:
            fitting = max(1, (CACHE_BYTES if rough else ROWS_BYTES) // size)
            batches, chunks = max(1, min(n, fitting // chunks)), min(chunks, fitting)
            rows = _empty_aligned((batches, chunks, pixels + 1, width), plan.weights)
            for batch in range(0, n, batches):
                for channel in range(0, c, chunks * width):
                    of = slice(channel, min(channel + chunks * width, c))
                    yield range(batch, min(batch + batches, n)), of, rows[:, : -(-(of.stop - channel) // width)]
            return
    yield range(n), slice(0, c), np.empty((n, 0, 1, 1), plan.weights)


def _is_rough(grid: Floats, lengths: Array) -> bool:
    """Whether neighbouring positions, by the first few of them, lie pixels apart: each then waits for the memory."""
    if grid.shape[1] < ROUGH_STEPS:
        return False
    with np.errstate(all="ignore"):
        steps = np.abs(np.diff(grid[0, :ROUGH_STEPS].astype(np.float32), axis=0)) * (lengths[::-1] / 2)
    return bool((steps > ROUGH_PIXELS).any(axis=1).mean() > 0.25)


def _empty_aligned(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An array that begins with a line of the CPU's cache, so that a row of it is one."""
    size, line = math.prod(shape) * dtype.itemsize, 64
    memory = np.empty(size + line, np.uint8)
    start = -memory.ctypes.data % line
    return memory[start : start + size].view(dtype).reshape(shape)


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Compile what sampling an X of ``dtype`` at a grid of ``grid_dtype`` needs, or load it from Numba's cache."""
    # So many positions that an X which can be laid out in rows is.
    X, grid = np.zeros((1, MIN_CHANNELS, 1), dtype), np.zeros((1, NARROW_READS, 1), grid_dtype)
    Y = np.empty((1, MIN_CHANNELS, NARROW_READS), dtype)
    what = f"{mode} for X of {dtype}"
    with progress.shown("compiling") as begin, event.install_listener("numba:compile", _Explanation(what, begin)):
        grid_sample(X, grid, Y, plan_for(dtype, mode, "zeros", False), 1)


class _Explanation(event.Listener):
    """Says what is being compiled, once, when this thread begins to; of what is on disk Numba compiles nothing."""

    def __init__(self, what: str, begin: Callable[[str], None]) -> None:
        self._what, self._begin, self._thread, self._said = what, begin, threading.get_ident(), False

    def on_start(self, event: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._begin(self._what)
        if not self._said:
            self._said = True
            logger.warning("compiling %s, a few seconds, once: Numba keeps it on disk (NUMBA_CACHE_DIR)", self._what)

    def on_end(self, event: Any) -> None:
        pass


def _read_only(array: Array) -> Array:
    """An aligned array that cannot be written to: Numba compiles a kernel for each of the other kinds too."""
    array = array.view() if array.flags.aligned else array.copy()
    array.flags.writeable = False
    return array
