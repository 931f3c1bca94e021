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
from typing import Generic, SupportsIndex, TypeVar

from .. import settings

T = TypeVar("T")

#: The name of Python's executable. In a host program ``sys.executable`` is the host.
_IS_PYTHON = re.compile(r"(^|[\\/])python(\d|\.|w|t|_?d)*(\.exe)?$", re.IGNORECASE)


def interpreter() -> str | None:
    """Return the executable that starts another process of this Python; None in a host program."""
    executable = sys.executable or ""
    if getattr(sys, "frozen", False) or not _IS_PYTHON.search(executable):
        return None
    return executable


def available_cpus() -> int:
    """Return the number of processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def after_fork(function: Callable[[], None]) -> Callable[[], None]:
    """Register ``function`` to be called in the child of each fork, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


class ConcurrencyLimit:
    """A context that at most ``count`` threads enter at once.

    More threads would contend for the caches and for Python's lock. A semaphore would lose a place
    if the handler of a signal raises between two of its steps; a queue's operations are single
    steps.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.reset()

    def reset(self) -> None:
        """Forget all threads inside the context."""
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(self, *_: object) -> None:
        self._free.put(None)


#: All Python ops compute within this limit, in any session and thread.
ops_limit = ConcurrencyLimit(available_cpus())


def get_num_threads() -> int:
    """Return the default number of threads of a call of a core.

    It is the number that :func:`set_num_threads` set, else the value of the environment variable
    ``ORT_GRIDSAMPLE_NUM_THREADS``, else the number of processors on which the process may run. It
    applies if neither a session option nor an argument gives a number. Helper threads of the
    compiled core wait for the next call for less than a millisecond, and then sleep.

    >>> get_num_threads() >= 1
    True

    Returns:
        The maximum number of threads of one call, at least 1.

    Raises:
        ValueError: the environment variable is not a whole number, or is less than 1.
    """
    return settings.NUM_THREADS.get() or available_cpus()


def set_num_threads(num_threads: SupportsIndex | None) -> None:
    """Set the number that :func:`get_num_threads` returns.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)

    Args:
        num_threads: at least 1; None restores the environment variable or the number of processors.

    Raises:
        TypeError: ``num_threads`` is not a whole number.
        ValueError: ``num_threads`` is less than 1.
    """
    if num_threads is not None and not settings.is_valid_num_threads(num_threads):
        kind = ValueError if isinstance(num_threads, SupportsIndex) else TypeError
        expected = f"{settings.VALID_NUM_THREADS} (or None)"
        raise kind(f"num_threads is {num_threads!r}, expected {expected}")
    settings.NUM_THREADS.value = None if num_threads is None else index(num_threads)


def resolve_num_threads(num_threads: SupportsIndex | None, is_worthwhile: bool = True) -> int:
    """Return ``num_threads``, or the default if it is None.

    ``is_worthwhile``: whether the work is large enough for several threads; else the default is 1.
    """
    if num_threads is not None:
        return index(num_threads)
    return get_num_threads() if is_worthwhile else 1


class _Work(Generic[T]):
    """A function to be called on every item, by several threads together."""

    def __init__(self, function: Callable[[T], None], items: Iterable[T]) -> None:
        self._function = function
        self._remaining = iter(items)
        self._changed = threading.Condition(threading.Lock())
        self._helpers = 0  # that are running
        self.errors: list[BaseException] = []  #: of helpers

    def run(self) -> None:
        """Process items until none remains. An exception discards all remaining items."""
        try:
            while True:
                with self._changed:
                    item = next(self._remaining, None)
                if item is None:
                    return
                self._function(item)
        except BaseException:
            with self._changed:
                self._remaining = iter(())
            raise

    def help(self) -> None:
        """Process items on a helper thread. Does nothing if it starts after the last item."""
        with self._changed:
            self._helpers += 1
        try:
            self.run()
        except BaseException as error:
            self.errors.append(error)
        finally:
            with self._changed:
                self._helpers -= 1
                self._changed.notify()

    def wait_for_helpers(self) -> None:
        """Return when no helper is running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._helpers)


def for_each(function: Callable[[T], None], items: Iterable[T], num_threads: int) -> None:
    """Call ``function`` on every item, on at most ``num_threads`` threads with the calling one.

    The first exception stops the work. It is raised when all running calls have returned.
    """
    if num_threads <= 1:
        for item in items:
            function(item)
        return
    work = _Work(function, items)
    submit(work.help, num_threads - 1)
    try:
        try:
            work.run()
        finally:
            work.wait_for_helpers()
        if work.errors:
            raise work.errors[0]
    finally:
        work.errors.clear()  # an error refers to its frames, and these to the list


class _Pool:
    """A thread pool that grows to the largest number of threads requested so far."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads, and a lock that one of them may hold."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._size = 0

    def submit(self, work: Callable[[], None], count: int) -> None:
        """Have ``count`` threads call ``work``, or as many as can be started."""
        with self._lock:
            if self._executor is None or self._size < count:
                if self._executor is not None:
                    self._executor.shutdown(wait=False)
                self._executor = ThreadPoolExecutor(count, thread_name_prefix="ort_gridsample")
                self._size = count
            try:
                for _ in range(count):
                    self._executor.submit(work)
            except RuntimeError:
                # No thread can be started, or the interpreter is shutting down. Running threads and
                # the caller do the work. Later tasks of this executor would wait forever.
                self._executor.shutdown(wait=False)
                self._executor = None


_pool = _Pool()

#: Returns the processor of the calling thread; None on systems that cannot move threads.
_cpu: Callable[[], int] | None = None
if hasattr(os, "sched_getaffinity"):
    _cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None)


def submit(work: Callable[[], None], count: int) -> None:
    """Have up to ``count`` threads of the pool call ``work``, as soon as they are free."""
    cpu = -1 if _cpu is None else _cpu()
    _pool.submit(partial(_call_on_other_cpu, work, cpu), count)


def _call_on_other_cpu(work: Callable[[], None], cpu: int) -> None:
    """Call ``work`` on another processor than ``cpu``, if this thread may use another one.

    Linux often wakes a thread on the processor of its waker, and leaves both there for some ms.
    """
    if _cpu is not None and _cpu() == cpu:
        with suppress(OSError):
            cpus = os.sched_getaffinity(0)
            others = cpus - {cpu}
            if others:
                os.sched_setaffinity(0, others)  # moves the thread
                os.sched_setaffinity(0, cpus)
    work()


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork, but a lock that one of them held would.
    _pool.reset()
    ops_limit.reset()
