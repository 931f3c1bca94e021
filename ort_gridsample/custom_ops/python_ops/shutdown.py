"""Keep threads from returning to Python from a run after the interpreter has ended.

Python ends a daemon thread that acquires the interpreter lock after that. ONNX Runtime's frames on
the thread's stack would then abort the process. So at exit, the ops and this package's sessions
block such threads forever before they acquire the lock.
"""

import atexit
import sys
import threading
import time
from types import FrameType

from ...system.process import after_fork
from ..plain_session import PLAIN_SESSION

#: How long the exit handler waits for runs to reach an op or their own end, in seconds.
MAX_WAIT = 5.0

_RUNTIME_GLOBALS = vars(sys.modules[PLAIN_SESSION.__module__])


class Shutdown:
    """The end of the interpreter, and the runs that it waits for.

    Attributes:
        exiting_thread: the thread that ends the interpreter, once it does.
        blocked_threads: the threads that are blocked forever.
        asynchronous_runs: the number of runs that were started asynchronously and have not ended.
    """

    def __init__(self) -> None:
        self.exiting_thread: int | None = None
        self.blocked_threads: set[int] = set()
        self.asynchronous_runs = 0
        self._never_released = threading.Lock()
        self._never_released.acquire()

    def block_if_exiting(self) -> None:
        """Block forever if another thread ends the interpreter, unless that thread is in a run."""
        exiting_thread = self.exiting_thread
        if exiting_thread is None:
            return
        current_thread = threading.get_ident()
        if exiting_thread == current_thread:
            return
        if not _is_in_runtime(sys._current_frames().get(exiting_thread)):
            self.blocked_threads.add(current_thread)
            self._never_released.acquire()

    def at_exit(self) -> None:
        """Wait until all threads in runs are blocked, or their runs have ended."""
        self.exiting_thread = threading.get_ident()
        deadline = time.monotonic() + MAX_WAIT
        while self._count_runs() > len(self.blocked_threads) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _count_runs(self) -> int:
        """Count the threads in a run, or about to return from one."""
        count = self.asynchronous_runs
        for thread, frame in sys._current_frames().items():
            if thread == self.exiting_thread:
                continue
            if thread in self.blocked_threads or _is_in_runtime(frame):
                count += 1
        return count


def _is_in_runtime(frame: FrameType | None) -> bool:
    """Whether ``frame`` was called by a function of onnxruntime's Python package."""
    while frame is not None:
        if frame.f_globals is _RUNTIME_GLOBALS:
            return True
        frame = frame.f_back
    return False


_shutdown = Shutdown()
block_if_exiting = _shutdown.block_if_exiting


def begin_run() -> None:
    """Call :func:`block_if_exiting` before a run.

    Raises:
        RuntimeError: this thread ends the interpreter, and the Python ops have ended already.
    """
    if threading.get_ident() == _shutdown.exiting_thread:
        raise RuntimeError(
            "Python ops have already ended: register this exit handler after the first session "
            "with Python ops is created"
        )
    block_if_exiting()


def begin_asynchronous_run() -> None:
    """Count an asynchronous run, which has no Python thread, before it begins."""
    _shutdown.asynchronous_runs += 1


def end_asynchronous_run() -> None:
    """Stop counting an asynchronous run."""
    _shutdown.asynchronous_runs -= 1


def asynchronous_runs() -> int:
    """Return the number of asynchronous runs that have not ended."""
    return _shutdown.asynchronous_runs


@after_fork
def _after_fork() -> None:
    _shutdown.asynchronous_runs = 0  # the child has none of its parent's threads


def run_first_at_exit() -> None:
    """Register the exit handler of this module again.

    It must run before the one that ends all Python ops. onnxruntime-extensions registers that one
    when it is imported, and exit handlers run in the reverse order.
    """
    atexit.unregister(_shutdown.at_exit)
    atexit.register(_shutdown.at_exit)


run_first_at_exit()
