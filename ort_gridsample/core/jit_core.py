"""The compiled core: the functions' and the Python op's way to the lanes, on the package's own threads.

Importing this module imports Numba.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from . import crew, kernels, lanes, numpy_core
from .arrays import Array, Floats
from .compilation import not_at_hand
from .plan import Plan, type_name
from .pointers import LINE
from .taps import MAX_TAPS
from .threads import after_fork, available_cpus, submit
from .ways import PADDING, TAPS, parts, state_of

logger = logging.getLogger("ort_gridsample")

#: Fewer taps than this are not worth a helper that is there, and not worth waking one.
TAPS_PER_HELPER, TAPS_PER_THREAD = 1 << 16, 1 << 18
#: So much memory each thread keeps for its next call: fresh memory costs more than to write to it.
KEPT_BYTES = 1 << 21

#: As many helpers as the machine has processors for, or as somebody may ask for all the same.
HELPERS = max(63, available_cpus() - 1)

_WORDS = lanes.RUN_BYTES // 8


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P); see :mod:`ort_gridsample.core`."""
    (n, c, positions), lengths = Y.shape, X.shape[2:]
    pixels, rows = math.prod(lengths), TAPS.get(plan.mode, 0) ** len(lengths)
    is_stated = plan.mode in TAPS and plan.padding_mode in PADDING
    if not is_stated or X.dtype.kind in "OUT" or pixels > kernels.MAX_PIXELS or rows > MAX_TAPS:
        # Numba knows no strings, and a table's index has 31 bits.
        return numpy_core.grid_sample(X, grid, Y, plan, num_threads)
    way = _way(type_name(X.dtype), type_name(grid.dtype), plan.mode, plan.padding_mode, plan.align_corners)
    X, grid = _plain(X), _plain(grid)
    taps = Y.size * rows
    threads = min(num_threads, HELPERS + 1, taps // TAPS_PER_HELPER + 1)
    words = (ctypes.c_int64 * (_WORDS + len(lengths)))(
        way.address, _address(X), _address(grid), _address(Y), n, c, len(lengths), pixels, positions, rows, 0, threads
    )
    run = ctypes.addressof(words)
    words[lanes.LENGTHS // 8] = run + lanes.RUN_BYTES
    words[_WORDS:] = list(lengths)
    words[(lanes.TASK + crew.WOKEN) // 8] = taps // TAPS_PER_THREAD

    # Not there while it is used: a signal's handler may sample, too.
    scratch, rows_of_X = kept = _kept.__dict__.pop("memory", None) or (_Memory(), _Memory())

    size = way.steer(run, lanes.LAY, scratch.at_least(way.steer(run, lanes.CUT, 0)))
    count = way.steer(run, lanes.BEGIN, rows_of_X.at_least(size) if size else 0)
    while count:
        _do(way, words, run, count)
        count = way.steer(run, lanes.ADVANCE, 0)
    if scratch.size + rows_of_X.size <= KEPT_BYTES:
        _kept.memory = kept


def _do(way: _Way, words: ctypes.Array[ctypes.c_int64], run: int, count: int) -> None:
    """Do a phase of the run in ``count`` lanes, with helpers: these are through when it returns, or raises."""
    try:
        if count > 1 and (asleep := way.steer(run, lanes.INVITE, _places)):
            submit(partial(way.steer, 0, lanes.ATTEND, _places), asleep)
        while way.lane(run, 0):  # between whose calls Python hears of signals
            pass
    except BaseException:
        words[lanes.NEXT // 8] = words[lanes.ITEMS // 8]  # the others need not go on
        raise
    finally:
        if count > 1:
            way.steer(run, lanes.FINISH, _places)


class _Way(NamedTuple):
    """A way to sample: its state and where that lies, and the functions that Python calls."""

    state: Array
    address: int
    steer: ctypes._FuncPointer
    lane: ctypes._FuncPointer


@cache
def _way(X_type: str, grid_type: str, mode: str, padding_mode: str, align_corners: bool) -> _Way:
    steer, *numbers = state_of(X_type, grid_type, mode, padding_mode, align_corners, entry=(lanes.steer,))
    state, word = np.array([0, 0, *numbers], np.int64), ctypes.c_int64
    kinds = (ctypes.CFUNCTYPE(word, word, word, word)(steer), ctypes.CFUNCTYPE(word, word, word)(numbers[0]))
    return _Way(state, _address(state), *kinds)


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Compile what sampling an X of ``dtype`` at a grid of ``grid_dtype`` needs, or load it from the disk."""
    names = type_name(dtype), type_name(grid_dtype), mode
    if not_at_hand(parts(*names, (lanes.steer,))):
        what = f"{mode} for X of {dtype}"
        logger.warning("compiling %s, a few seconds, once: Numba keeps it on disk (NUMBA_CACHE_DIR)", what)
    _way(*names, "zeros", False)


_kept = threading.local()


class _Memory:
    """Memory that grows."""

    def __init__(self) -> None:
        self.size, self._address, self._bytes = 0, 0, np.empty(0, np.uint8)

    def at_least(self, size: int) -> int:
        """The address of so many bytes."""
        if size > self.size:
            self._bytes = np.empty(size, np.uint8)
            self.size, self._address = size, _address(self._bytes)
        return self._address


def _address(array: Array) -> int:
    try:
        buffer: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # in a quarter of the time
    except (TypeError, ValueError):  # it is read-only, or of a type that buffers have no name for
        return int(array.__array_interface__["data"][0])


_crew = np.zeros((2 + HELPERS) * LINE, np.uint8)
_places = (_address(_crew) + 2 * LINE - 1) & -LINE
_places_of_crew = _crew[_places - _address(_crew) :][: HELPERS * LINE]
ctypes.c_int64.from_address(_places + crew.PLACES_BYTES).value = _places_of_crew.nbytes


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork.
    _places_of_crew[:] = 0


def _plain(array: Array) -> Array:
    """In C order, and where the processor may read it in vectors."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()
