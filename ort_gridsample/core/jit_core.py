"""The compiled core: stretches of output positions, each one call of a kernel, on the package's own threads.

Importing this module imports Numba.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba.core import event

from .. import progress
from . import kernels, numpy_core, sums, vectors
from .arrays import Array, Floats
from .plan import Plan, plan_for
from .threads import for_each

logger = logging.getLogger("ort_gridsample")

T = TypeVar("T")

#: The modes and paddings that the kernels state; any other is the NumPy core's.
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
PADDING = {"zeros": kernels.ZEROS, "border": kernels.BORDER, "reflection": kernels.REFLECTION}

#: Fewer taps than this are not worth waking a thread for.
TAPS_PER_THREAD = 1 << 19
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
#: No more is laid out at a time than the CPU's second cache holds, and by a thread for itself half of that.
CACHE_BYTES, OWN_BYTES = 1 << 20, 1 << 19


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P); see :mod:`ort_gridsample.core`."""
    n, c, _ = Y.shape
    flat_X = X.reshape(n, c, -1)
    is_stated = plan.mode in TAPS and plan.padding_mode in PADDING
    if not is_stated or X.dtype.kind in "OUT" or flat_X.shape[2] > kernels.MAX_PIXELS:
        # Numba knows no strings, and a table's index has 31 bits.
        return numpy_core.grid_sample(X, grid, Y, plan, num_threads)
    lengths, taps = np.array(X.shape[2:]), TAPS[plan.mode]
    bits, is_half = None, False
    if taps == 1 and X.itemsize <= 8:  # nearest only copies: one kernel for each size of element
        bits = f"u{X.itemsize}"
    elif X.itemsize == 2 and X.dtype.kind not in "iu":
        bits, is_half = "u2" if X.dtype == np.float16 else "i2", True
    if bits:
        flat_X, Y = flat_X.view(bits), Y.view(bits)
    threads = min(num_threads, Y.size * taps ** len(lengths) // TAPS_PER_THREAD + 1)
    work = _Work(_read_only(flat_X), grid, Y, plan, is_half, lengths, taps, threads)
    layout = _layout(work)
    if layout is None:
        work.do(work.sample, work.stretches(range(n), slice(0, c), np.empty((n, 0, 1, 1), plan.weights)))
    elif layout.own:
        work.in_own_rows(layout)
    else:
        work.in_shared_rows(layout)


class _Work(NamedTuple):
    """One call: what is sampled where, and on how many threads.

    ``X`` (N, C, S), ``grid`` (N, P, r) and ``Y`` (N, C, P) are as the kernels take them, halves as their bits.
    """

    X: Array
    grid: Floats
    Y: Array
    plan: Plan
    is_half: bool
    lengths: Array
    taps: int
    threads: int

    @property
    def _how(self) -> tuple[Array, int, bool, int]:
        return self.lengths, PADDING[self.plan.padding_mode], self.plan.align_corners, self.taps

    def do(self, work: Callable[[T], None], items: list[T]) -> None:
        """Do so for each of these items."""
        for_each(work, items, min(self.threads, len(items)))

    def stretches(self, batches: range, channels: slice, rows: Array) -> list[tuple[int, slice, slice, Array]]:
        """What there is to sample of these batches and channels, through ``rows`` (N', K, S + 1, W)."""
        n, c, positions = self.Y.shape
        share = -(-n * positions // (4 * self.threads)) if self.threads > 1 else positions
        step = max(MIN_POSITIONS, min(share, MAX_POSITIONS, MAX_ELEMENTS // c))
        return [
            (batch, slice(start, start + step), channels, rows[batch - batches.start])
            for batch in batches
            for start in range(0, positions, step)
        ]

    def sample(self, stretch: tuple[int, slice, slice, Array]) -> None:
        """Fill one of the :meth:`stretches`."""
        batch, here, channels, rows = stretch
        g, start = _given(self.grid[batch, here]), here.start
        if self.taps == 1:
            kernels.nearest(self.X, g, self.Y, batch, start, *self._how)
        elif self.is_half:
            part = np.empty((1, channels.stop - channels.start, len(g)), self.plan.compute)
            kernels.weighted(self.X[batch : batch + 1], g, part, 0, 0, *self._how, rows, 0)
            kernels.round_halves(part, self.Y, batch, channels.start, start)
        else:
            kernels.weighted(self.X, g, self.Y, batch, start, *self._how, rows, channels.start)

    def in_own_rows(self, layout: _Layout) -> None:
        """Each thread lays out what it then reads, so that nothing goes from one CPU's cache to another's."""
        n, c, positions = self.Y.shape
        goes = -(-c // layout.channels)

        def lay_and_sample(which: range) -> None:
            """Do some of the goes, of which an image takes so many."""
            begin, end = which.start // goes, -(-which.stop // goes)
            to = np.empty((end - begin, c, positions), self.plan.compute) if self.is_half else self.Y[begin:end]
            first, last = which.start - begin * goes, which.stop - begin * goes
            with layout.rows(layout.chunks) as rows:
                kernels.in_rows(self.X[begin:end], _given(self.grid[begin:end]), to, first, last, *self._how, rows[0])
            if self.is_half:
                kernels.round_halves(to, self.Y, begin, 0, 0)

        size = goes if self.is_half else -(-n * goes // (4 * self.threads)) if self.threads > 1 else n * goes
        self.do(lay_and_sample, [range(first, min(first + size, n * goes)) for first in range(0, n * goes, size)])

    def in_shared_rows(self, layout: _Layout) -> None:
        """All threads lay out as much as there is room for, then all read that."""
        n, c, _ = self.Y.shape
        for batch in range(0, n, layout.batches):
            for channel in range(0, c, layout.channels):
                batches = range(batch, min(batch + layout.batches, n))
                channels = slice(channel, min(channel + layout.channels, c))
                with layout.rows(-(-(channels.stop - channel) // layout.width)) as rows:
                    parts = [
                        (each, channel + k * layout.width, start, rows[each - batch, k])
                        for each in batches
                        for k in range(rows.shape[1])
                        for start in range(0, rows.shape[2], kernels.PART)
                    ]
                    self.do(lambda part: kernels.channels_last(self.X, *part), parts)
                    self.do(self.sample, self.stretches(batches, channels, rows))


class _Layout(NamedTuple):
    """How X is laid out in rows of channels, so much at a go.

    Attributes:
        batches: of one go.
        chunks: of channels, each a row ``width`` wide.
        own: whether each thread lays out what it then reads.
    """

    batches: int
    chunks: int
    pixels: int
    width: int
    dtype: np.dtype[np.generic]
    own: bool

    @property
    def channels(self) -> int:
        """Those of one go."""
        return self.chunks * self.width

    @contextmanager
    def rows(self, chunks: int) -> Iterator[Array]:
        """Room for the rows of one go, of so many chunks: (N', K, S + 1, W)."""
        shape = self.batches, chunks, self.pixels + 1, self.width
        size = math.prod(shape) * self.dtype.itemsize
        # Not there while it is used: a signal's handler may sample, too.
        memory = _kept.__dict__.pop("memory", None)
        if memory is None or memory.size < size:
            memory = _aligned(max(size, OWN_BYTES))
        yield memory[:size].view(self.dtype).reshape(shape)
        if memory.size <= CACHE_BYTES:
            _kept.memory = memory


#: Each thread's memory for rows: fresh memory costs more than to write to it.
_kept = threading.local()


def _layout(work: _Work) -> _Layout | None:
    """How X is laid out in rows; None where it stays as it is."""
    (n, c, pixels), plan, grid = work.X.shape, work.plan, work.grid
    narrow = c <= 2 * vectors.NARROW
    in_rows = plan.sum is sums.floating and plan.compute.kind == "f" and c >= MIN_CHANNELS
    if not in_rows or (narrow and vectors.GATHERS and not work.is_half):
        return None
    width = vectors.NARROW if narrow else vectors.WIDE
    size = (pixels + 1) * width * plan.weights.itemsize
    enough = WIDE_READS if not narrow else HALF_READS if work.is_half else NARROW_READS
    reads = grid.shape[1] * work.taps ** len(work.lengths) / pixels
    if size > ROWS_BYTES or not (reads >= enough or (reads >= ROUGH_READS and _is_rough(grid, work.lengths))):
        return None
    chunks = -(-c // width)
    own = max(1, min(chunks, OWN_BYTES // size))
    goes = n if work.is_half else n * -(-chunks // own)
    converts = work.is_half or grid.dtype.itemsize == 2  # a whole image at a time
    few = not converts or grid.shape[1] * c <= MAX_ELEMENTS
    if goes >= 2 * work.threads and work.threads * own * size <= ROWS_BYTES and few:
        return _Layout(1, own, pixels, width, plan.weights, own=True)
    fitting = max(1, CACHE_BYTES // size)
    shared = min(chunks, fitting)
    return _Layout(max(1, min(n, fitting // shared)), shared, pixels, width, plan.weights, own=False)


def _is_rough(grid: Floats, lengths: Array) -> bool:
    """Whether neighbouring positions, by the first few of them, lie pixels apart: each then waits for the memory."""
    if grid.shape[1] < ROUGH_STEPS:
        return False
    with np.errstate(all="ignore"):
        steps = np.abs(np.diff(grid[0, :ROUGH_STEPS].astype(np.float32), axis=0)) * (lengths[::-1] / 2)
    return bool((steps > ROUGH_PIXELS).any(axis=1).mean() > 0.25)


def _aligned(size: int) -> Array:
    """So many bytes that begin with a line of the CPU's cache, so that a row of 16 channels is one."""
    line = 64
    memory = np.empty(size + line, np.uint8)
    start = -memory.ctypes.data % line
    return memory[start : start + size]


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Compile what sampling an X of ``dtype`` at a grid of ``grid_dtype`` needs, or load it from Numba's cache."""
    # So many channels and positions that an X which can be laid out in rows is.
    channels, positions = 2 * vectors.NARROW + 1, WIDE_READS
    what = f"{mode} for X of {dtype}"
    with progress.shown("compiling") as begin, event.install_listener("numba:compile", _Explanation(what, begin)):
        for n in (1, 2):  # all threads share one image's rows, two images each has its own
            X, grid = np.zeros((n, channels, 1), dtype), np.zeros((n, positions, 1), grid_dtype)
            grid_sample(X, grid, np.empty((n, channels, positions), dtype), plan_for(dtype, mode, "zeros", False), 1)


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


def _given(grid: Floats) -> Floats:
    """A part of the grid as kernels take it: anything else would be another kernel to compile."""
    return _read_only(np.ascontiguousarray(grid, np.float64 if grid.dtype == np.float64 else np.float32))


def _read_only(array: Array) -> Array:
    """An aligned array that cannot be written to: Numba compiles a kernel for each of the other kinds too."""
    array = array.view() if array.flags.aligned else array.copy()
    array.flags.writeable = False
    return array
