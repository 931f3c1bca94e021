"""Keep threads from returning to Python out of a run once the interpreter has ended: that would abort the process.

Python kills a daemon thread that asks for its lock then, and ONNX Runtime's frames on that thread's stack abort. So at
exit the ops, and this package's sessions, block such threads for ever before they ask.
"""

import atexit
import sys
import threading
import time
from types import FrameType

import onnxruntime

from ...reference.threads import after_fork

#: How long, in seconds, the end of the interpreter waits for runs to reach an op or their own end.
PATIENCE = 5.0

_RUNTIME_GLOBALS = vars(sys.modules[onnxruntime.InferenceSession.__module__])
_ender: int | None = None  # the thread that ends the interpreter, from the moment it does
_held: set[int] = set()
_pending = 0  # runs that were started asynchronously
_forever = threading.Lock()
_forever.acquire()


def hold() -> None:
    """Block for ever if another thread is ending the interpreter, unless that waits for this run."""
    this = threading.get_ident()
    if _ender not in (None, this) and not _is_in_runtime(sys._current_frames().get(_ender or 0)):
        _held.add(this)
        _forever.acquire()


def run_begins() -> None:
    """Before a run: :func:`hold`; RuntimeError on the thread that ends the interpreter, whose ops have ended."""
    if threading.get_ident() == _ender:
        raise RuntimeError(
            "this exit handler was registered before the process first used Python ops, and these have ended already: "
            "register it after the first session on Python ops is made"
        )
    hold()


def asynchronous_run_begins() -> None:
    """Count an asynchronous run, which has no thread of Python's, before it begins."""
    global _pending
    run_begins()
    _pending += 1


def asynchronous_run_ended() -> None:
    """Count an asynchronous run no longer."""
    global _pending
    _pending -= 1


def _at_exit() -> None:
    global _ender
    _ender = threading.get_ident()
    deadline = time.monotonic() + PATIENCE
    while _in_runs() > len(_held) and time.monotonic() < deadline:
        time.sleep(0.001)


def _in_runs() -> int:
    """The number of threads in a run, or about to return from one."""
    frames = sys._current_frames().items()
    return _pending + sum(at != _ender and (at in _held or _is_in_runtime(frame)) for at, frame in frames)


def _is_in_runtime(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals is _RUNTIME_GLOBALS:
            return True
        frame = frame.f_back
    return False


@after_fork
def _after_fork() -> None:
    global _pending
    _pending = 0  # the child has none of its parent's threads


def run_first_at_exit() -> None:
    """Register the exit handler of this module again: it must run before the one that ends all Python ops.

    onnxruntime-extensions registers that one when it is imported, and exit handlers run in the reverse order.
    """
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


run_first_at_exit()
