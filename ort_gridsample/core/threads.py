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


class Turns:
    """A context that only so many threads are in at once: more would take the caches, and Python's lock, in turns."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.renew()

    def renew(self) -> None:
        """Forget who is in."""
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


#: How a Python is called: inside a host program it is that which Python calls its executable.
_IS_PYTHON = re.compile(r"(^|[\\/])python(\d|\.|w|t|_?d)*(\.exe)?$", re.IGNORECASE)


def interpreter() -> str | None:
    """What starts another process of this Python; None inside a host program, whose name Python gives there."""
    executable = sys.executable or ""
    return executable if _IS_PYTHON.search(executable) and not getattr(sys, "frozen", False) else None


def available_cpus() -> int:
    """The number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: What every op computes in, whichever session and thread it runs in.
turns = Turns(available_cpus())


def get_num_threads() -> int:
    """The number of threads that one call of a core uses when nothing else says (a session's option, an argument).

    It is what :func:`set_num_threads` set, else the environment variable ``ORT_GRIDSAMPLE_NUM_THREADS``, else the
    number of processors that the process may run on. Threads that have helped the compiled core look out for its next
    call for less than a millisecond, and then sleep.

    Raises:
        ValueError: the environment variable is no whole number, or less than 1.
    """
    return settings.NUM_THREADS.get() or available_cpus()


def set_num_threads(num_threads: SupportsIndex | None) -> None:
    """Set what :func:`get_num_threads` answers; None goes back to the environment variable or the machine.

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

    The first exception stops the work and is raised here, after every thread has let go of its item.
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

    def help_out() -> None:  # whenever a thread comes to it: once nothing remains, that does nothing
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


#: What says on which processor a thread runs, where threads can be moved.
_cpu: Callable[[], int] | None = None
if hasattr(os, "sched_getaffinity"):
    _cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None)


def _elsewhere(work: Callable[[], None], cpu: int) -> None:
    """Call ``work`` on another processor than ``cpu``, if this thread may.

    Linux often wakes a thread where its waker runs, and leaves the two there for some ms.
    """
    if _cpu is not None and _cpu() == cpu:
        with suppress(OSError):
            cpus = os.sched_getaffinity(0)
            if cpus - {cpu}:
                os.sched_setaffinity(0, cpus - {cpu})
                os.sched_setaffinity(0, cpus)
    work()


def submit(work: Callable[[], None], count: int) -> None:
    """Let up to ``count`` threads of the pool call ``work``, as soon as they can."""
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
            # No thread can be started, or the interpreter is shutting down: those that run, and the caller, do the
            # work. What the pool holds beyond them would wait there for good.
            _pool.shutdown(wait=False)
            _pool = None


def after_fork(forget: Callable[[], None]) -> Callable[[], None]:
    """Have ``forget`` called in the child of each fork, where there are any."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
    return forget


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork; a lock may have been held by one of them.
    global _pool, _pool_size, _lock
    _pool, _pool_size, _lock = None, 0, threading.Lock()
    turns.renew()
