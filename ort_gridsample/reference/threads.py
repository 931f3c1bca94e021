"""A small pool of threads on which the cores run their blocks."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from operator import index
from queue import SimpleQueue
from typing import SupportsIndex, TypeVar

from .. import settings

T = TypeVar("T")
#: Fewer output elements than this are not worth waking a thread for.
ELEMENTS_PER_THREAD = 1 << 14


class Limit:
    """A context that at most ``count`` threads are in at once: more would contend for the caches and Python's lock.

    A semaphore would lose a place where a signal's handler raises between its steps; a queue's are one.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.renew()

    def renew(self) -> None:
        """Count from the beginning: no thread is in it."""
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *_: object) -> None:
        self._free.put(None)


_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_size = 0

#: Names of Python's executable; inside a host program ``sys.executable`` is the host.
_IS_PYTHON = re.compile(r"(^|[\\/])python(\d|\.|w|t|_?d)*(\.exe)?$", re.IGNORECASE)


def interpreter() -> str | None:
    """The executable that starts another process of this Python; None inside a host program."""
    executable = sys.executable or ""
    return executable if _IS_PYTHON.search(executable) and not getattr(sys, "frozen", False) else None


def available_cpus() -> int:
    """The number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: Every Python op computes within this limit, whichever session and thread it runs in.
ops_limit = Limit(available_cpus())


def get_num_threads() -> int:
    """The number of threads of one call of a core, where no session option and no argument gives another.

    It is the number that :func:`set_num_threads` set, else the environment variable ``ORT_GRIDSAMPLE_NUM_THREADS``,
    else the number of processors that the process may run on. Helper threads of the compiled core wait for its next
    call for less than a millisecond, and then sleep.

    Raises:
        ValueError: the environment variable is no whole number, or less than 1.
    """
    return settings.NUM_THREADS.get() or available_cpus()


def set_num_threads(num_threads: SupportsIndex | None) -> None:
    """Set the number that :func:`get_num_threads` returns; None goes back to the environment variable or the machine.

    Raises:
        TypeError: ``num_threads`` is no whole number.
        ValueError: it is less than 1.
    """
    if num_threads is not None and not settings.is_number(num_threads):
        kind = ValueError if isinstance(num_threads, SupportsIndex) else TypeError
        raise kind(f"num_threads is {num_threads!r}, expected {settings.A_NUMBER} (or None)")
    settings.NUM_THREADS.value = None if num_threads is None else index(num_threads)


def for_each(function: Callable[[T], None], items: Iterable[T], num_threads: int) -> None:
    """Call ``function`` on every item, on the calling thread and up to ``num_threads - 1`` others.

    The first exception stops the work, and is raised when all calls have returned.
    """
    remaining = iter(items)
    if num_threads <= 1:
        for item in remaining:
            function(item)
        return
    changed = threading.Condition(threading.Lock())
    helping, errors = 0, list[BaseException]()

    def work() -> None:
        nonlocal remaining
        try:
            while True:
                with changed:
                    item = next(remaining, None)
                if item is None:
                    return
                function(item)
        except BaseException:
            with changed:
                remaining = iter(())
            raise

    def help_out() -> None:  # does nothing on a thread that starts when no item remains
        nonlocal helping
        with changed:
            helping += 1
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            with changed:
                helping -= 1
                changed.notify()

    submit(help_out, num_threads - 1)
    try:
        try:
            work()
        finally:
            with changed:
                changed.wait_for(lambda: not helping)
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # an error knows its frames, and these know the list


#: The function that gives the calling thread's processor, where threads can be moved.
_cpu: Callable[[], int] | None = None
if hasattr(os, "sched_getaffinity"):
    _cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None)


def _elsewhere(work: Callable[[], None], cpu: int) -> None:
    """Call ``work`` on another processor than ``cpu``, if this thread may.

    Linux often wakes a thread on its waker's processor, and leaves both there for some ms.
    """
    if _cpu is not None and _cpu() == cpu:
        with suppress(OSError):
            cpus = os.sched_getaffinity(0)
            if cpus - {cpu}:
                os.sched_setaffinity(0, cpus - {cpu})
                os.sched_setaffinity(0, cpus)
    work()


def submit(work: Callable[[], None], count: int) -> None:
    """Have up to ``count`` threads of the pool call ``work``, as soon as they are free."""
    global _pool, _pool_size
    work = partial(_elsewhere, work, -1 if _cpu is None else _cpu())
    with _lock:
        if _pool is None or _pool_size < count:
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool, _pool_size = ThreadPoolExecutor(count, thread_name_prefix="ort_gridsample"), count
        try:
            for _ in range(count):
                _pool.submit(work)
        except RuntimeError:
            # No thread can be started, or the interpreter is shutting down: running threads and the caller do the
            # work, and the pool's other tasks would wait for good.
            _pool.shutdown(wait=False)
            _pool = None


def after_fork(forget: Callable[[], None]) -> Callable[[], None]:
    """Register ``forget`` to be called in the child of each fork, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    return forget


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork; a lock may have been held by one of them.
    global _pool, _pool_size, _lock
    _pool, _pool_size, _lock = None, 0, threading.Lock()
    ops_limit.renew()
