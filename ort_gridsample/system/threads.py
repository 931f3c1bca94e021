"""A small pool of threads on which the cores run their blocks."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from .process import after_fork

T = TypeVar("T")


class _Work(Generic[T]):
    """A function to be called on every item, by several threads together."""

    def __init__(self, function: Callable[[T], None], items: Iterable[T]) -> None:
        self._function = function
        self._remaining = iter(items)
        self._changed = threading.Condition(threading.Lock())
        self._n_running_helpers = 0
        self.helper_errors: list[BaseException] = []

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
            self._n_running_helpers += 1
        try:
            self.run()
        except BaseException as error:
            self.helper_errors.append(error)
        finally:
            with self._changed:
                self._n_running_helpers -= 1
                self._changed.notify()

    def wait_for_helpers(self) -> None:
        """Return when no helper is running."""
        with self._changed:
            self._changed.wait_for(lambda: not self._n_running_helpers)


def for_each(function: Callable[[T], None], items: Iterable[T], num_threads: int) -> None:
    """Call ``function`` on every item, on several threads.

    Args:
        function: called once with each item, on any of the threads.
        items: the arguments. None of them is None. They are drawn under a lock.
        num_threads: the maximum number of threads, with the calling one.

    Raises:
        BaseException: an exception of a call. It discards the remaining items, and is raised
            when all running calls have returned.
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
        if work.helper_errors:
            raise work.helper_errors[0]
    finally:
        work.helper_errors.clear()  # an error refers to its frames, and these to the list


class _Pool:
    """A thread pool that grows to the largest number of threads requested so far."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads, and a lock that one of them may hold."""
        # A signal handler may sample, too, and come here while its thread is in ``submit``. The
        # locks of ThreadPoolExecutor are not reentrant, so that this lock alone would not suffice.
        self._lock = threading.RLock()
        self._is_submitting = False
        self._executor: ThreadPoolExecutor | None = None
        self._size = 0

    def submit(self, work: Callable[[], None], count: int) -> None:
        """Have ``count`` threads call ``work``, or as many as can be started.

        A signal handler that interrupts this method gets no threads.
        """
        with self._lock:
            if self._is_submitting:  # by the same thread, which holds the lock
                return
            try:
                self._is_submitting = True
                self._submit(work, count)
            finally:
                self._is_submitting = False

    def _submit(self, work: Callable[[], None], count: int) -> None:
        """Give ``work`` to the executor ``count`` times; the caller holds the lock."""
        if self._executor is None or self._size < count:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            self._executor = ThreadPoolExecutor(count, thread_name_prefix="ort_gridsample")
            self._size = count
        try:
            for _ in range(count):
                self._executor.submit(work)
        except RuntimeError:
            # No thread can be started, or the interpreter is shutting down. Running threads and the
            # caller do the work. Later tasks of this executor would wait forever.
            self._executor.shutdown(wait=False)
            self._executor = None


_pool = _Pool()

#: Returns the processor of the calling thread; None on systems that cannot move threads.
_current_cpu: Callable[[], int] | None = None
if hasattr(os, "sched_getaffinity"):
    _current_cpu = getattr(ctypes.CDLL(None), "sched_getcpu", None)


class WakeUpTime:
    """The time from :func:`submit` to the call of the work: a moving average, in nanoseconds."""

    #: The average before a time is added: that of a virtual machine.
    INITIAL = 100_000.0
    #: The weight of a time in the average.
    WEIGHT = 1 / 8
    #: A longer time counts as this one: other programs may have used all processors.
    LONGEST = 1_000_000
    #: The average is no longer than the initial one if no time has been added for so long. Work
    #: that is too short for a long wake-up time is not submitted, and adds none.
    MAX_AGE = 1_000_000_000

    def __init__(self) -> None:
        self._average = self.INITIAL
        self._last_added = 0

    def average(self, now: int) -> float:
        """Return the average at the time ``now``."""
        is_old = now - self._last_added > self.MAX_AGE
        return min(self._average, self.INITIAL) if is_old else self._average

    def add(self, nanoseconds: int, now: int) -> None:
        """Add a time, measured ``now``. If two threads add at once, one time may be lost."""
        average = self.average(now)
        self._average = average + (min(nanoseconds, self.LONGEST) - average) * self.WEIGHT
        self._last_added = now


wake_up_time = WakeUpTime()


def submit(work: Callable[[], None], count: int) -> None:
    """Have up to ``count`` threads of the pool call ``work``, as soon as they are free."""
    cpu = -1 if _current_cpu is None else _current_cpu()
    start = time.perf_counter_ns()
    _pool.submit(partial(_call_on_other_cpu, work, cpu, start), count)


def _call_on_other_cpu(work: Callable[[], None], cpu: int, start: int) -> None:
    """Call ``work`` on another processor than ``cpu``, if this thread may use another one.

    ``start`` is the time of :func:`submit`.

    Linux often wakes a thread on the processor of its waker, and leaves both there for some
    milliseconds. If other programs use all processors, it also moves the thread back there, where a
    helper that spins never runs at the same time as its caller.
    """
    allowed_cpus: set[int] = set()
    if _current_cpu is not None:
        with suppress(OSError):
            allowed_cpus = os.sched_getaffinity(0)
            other_cpus = allowed_cpus - {cpu}
            if other_cpus:
                os.sched_setaffinity(0, other_cpus)  # moves the thread
    now = time.perf_counter_ns()
    wake_up_time.add(now - start, now)
    try:
        work()
    finally:
        if len(allowed_cpus) > 1:
            with suppress(OSError):
                os.sched_setaffinity(0, allowed_cpus)


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork, but a lock that one of them held would.
    _pool.reset()
