"""What kernels need to know about the machine, and no feature of a processor tells.

It is measured once per machine: the answer is kept on disk, for this processor and release. A
measurement takes a few milliseconds, after its kernel has been compiled. Without Numba, answers can
be read.

Whether prefetching pays off is such a fact. A pixel that is not in the L2 cache is waited for, and
prefetching many pixels shortens that on some processors. Others already read enough pixels at a
time. Prefetching then only takes time: on an AMD EPYC (Zen 5), 1.5 times the time of mode nearest,
for X of 3 to 4 MB and a random grid.
"""

from __future__ import annotations

import ctypes
import os
import platform
import secrets
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from .. import settings
from . import cache_folder, target

#: The size of X from which all pixels of an incoherent grid are prefetched, if that pays off for an
#: X that exceeds the L2 cache; and otherwise, when X exceeds all caches.
PREFETCHED_FROM_L2 = 1 << 20
PREFETCHED_FROM_MEMORY = 1 << 24

#: The measurement copies these pixels of some channels, which exceed the L2 cache. All sizes are
#: powers of two.
_CHANNELS = 2
_PIXELS = 1 << 20
_POSITIONS = 1 << 15
_ROUNDS = 11
#: Prefetching pays off if copying takes less than this part of the time, in most rounds and by the
#: least times. Either alone may be wrong on a machine that other programs use.
_MAX_RATIO = 0.9


def prefetched_bytes() -> int:
    """Return the size of X from which all pixels of an incoherent grid are prefetched.

    It is the setting, else the answer on disk, else it is measured. For another machine, it is
    chosen by a feature: the processors that gather fast gain from prefetching.
    """
    if target.is_chosen():
        return PREFETCHED_FROM_L2 if target.gathers_fast() else PREFETCHED_FROM_MEMORY
    return settings.PREFETCHED_BYTES.get() or _measured_once()


def description() -> str:
    """Return the answer and where it is from, as text for people. Nothing is measured."""
    fixed = settings.PREFETCHED_BYTES.get()
    if fixed is not None:
        return f"from {fixed} bytes (set)"
    answer = _read()
    return "not measured" if answer is None else f"from {answer} bytes (measured)"


@cache
def _measured_once() -> int:
    """Return the answer on disk, or measure and keep it."""
    answer = _read()
    if answer is None:
        answer = PREFETCHED_FROM_L2 if prefetching_pays_off() else PREFETCHED_FROM_MEMORY
        _write(answer)
    return answer


def prefetching_pays_off() -> bool:
    """Measure whether prefetching shortens the copying of pixels far apart."""
    from .compilation import addresses
    from .kernel_factories import copy_tiles

    int64 = ctypes.c_int64
    prototype = ctypes.CFUNCTYPE(int64, *[int64] * copy_tiles.__code__.co_argcount)
    copy = prototype(addresses([(copy_tiles,)])[0])
    X = np.ones((_CHANNELS, _PIXELS), np.uint32)
    index = _scattered(_POSITIONS) % np.uint32(_PIXELS)
    Y = np.ones((_CHANNELS, _POSITIONS), np.uint32)
    arrays = X.ctypes.data, _CHANNELS, _PIXELS, index.ctypes.data, _POSITIONS, Y.ctypes.data
    times = []
    for _ in range(_ROUNDS):
        for limit in (0, 1 << 62):  # all pixels are prefetched, or not
            start = time.perf_counter_ns()
            copy(*arrays, limit)
            times.append(time.perf_counter_ns() - start)
    prefetched, others = times[::2], times[1::2]
    ratios = sorted(time / other for time, other in zip(prefetched, others, strict=True))
    return max(ratios[_ROUNDS // 2], min(prefetched) / min(others)) < _MAX_RATIO


def _scattered(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return numbers without a pattern that a processor finds, the same in each process."""
    numbers = np.arange(1, count + 1, dtype=np.uint32)
    for factor in (0x85EBCA6B, 0xC2B2AE35):  # multipliers of MurmurHash3's finalizer
        numbers *= np.uint32(factor)
        numbers ^= numbers >> np.uint32(15)
    return numbers


# --- Answers on disk ---


def _read() -> int | None:
    """Return the answer on disk, or None."""
    with suppress(OSError, RuntimeError, ValueError):  # no file, no home folder, or no number
        text = cache_folder.unsealed(_file().read_bytes(), _file().name)
        if text is not None:
            return int(text)
    return None


def _write(answer: int) -> None:
    """Keep the answer on disk, if possible."""
    with suppress(OSError, RuntimeError):
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{secrets.token_hex(8)}")
        temporary.write_bytes(cache_folder.sealed(str(answer).encode(), file.name))
        temporary.replace(file)


def _file() -> Path:
    """Return the file of the answer."""
    return cache_folder.cache_folder() / "measured" / f"prefetched-bytes-{_machine()}"


def _machine() -> str:
    """Return a hash of the processor, of the features that Numba uses, and of this release."""
    release = vars(sys.modules[__name__.partition(".")[0]])["__version__"]
    numba_settings = [os.environ.get(f"NUMBA_CPU_{name}", "") for name in ("NAME", "FEATURES")]
    parts = [release, sys.platform, platform.machine(), *_processor(), *numba_settings]
    return cache_folder.digest("\0".join(parts).encode(), "machine")


@cache
def _processor() -> list[str]:
    """Return a description of the first processor, without what changes while it runs."""
    with suppress(OSError):
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
        names = ("vendor_id", "cpu family", "model", "stepping", "cache size", "flags", "CPU ")
        return [line for line in first.splitlines() if line.startswith(names)]
    return [platform.processor()]
