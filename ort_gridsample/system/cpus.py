"""The number of processors that this process may use."""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from .cgroups import group_folders


def available_cpus() -> int:
    """Return the number of processors that this process may use, at least 1.

    It is the number of processors of its affinity, or less if a control group limits their time:
    1.5 processors are 2.
    """
    if hasattr(os, "sched_getaffinity"):
        n_cpus = len(os.sched_getaffinity(0))
    else:
        n_cpus = os.cpu_count() or 1
    return max(1, math.ceil(min(n_cpus, _cpu_quota())))


#: How long :func:`recently_available_cpus` returns a number, in nanoseconds.
MAX_AGE = 10_000_000


class _RecentCpus(threading.local):
    """The number of processors of a thread. Each thread has its own affinity."""

    n_cpus = 1
    #: Until when the number is returned.
    end = 0


_recent_cpus = _RecentCpus()


def recently_available_cpus() -> int:
    """Return :func:`available_cpus`, or its result of up to 10 ms ago in a tenth of the time."""
    now = time.monotonic_ns()
    if now >= _recent_cpus.end:
        _recent_cpus.n_cpus = available_cpus()
        _recent_cpus.end = now + MAX_AGE
    return _recent_cpus.n_cpus


@cache  # a process reads the files once
def _cpu_quota() -> float:
    """Return the smallest limit of the control groups, in processors; infinity without a limit."""
    return min((_group_quota(folder) for folder in group_folders("cpu")), default=math.inf)


def _group_quota(folder: Path) -> float:
    """Return the limit of one control group, in processors; infinity without a limit."""
    with suppress(OSError, ValueError):  # ValueError: the quota is "max"
        quota, period = map(int, (folder / "cpu.max").read_text().split())
        return quota / period
    with suppress(OSError, ValueError):
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        if quota > 0:  # -1: there is no limit
            return quota / period
    return math.inf
