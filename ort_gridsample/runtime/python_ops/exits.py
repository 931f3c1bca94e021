"""Keep threads from returning to Python out of a run once the interpreter has ended: that would abort the process.

Python kills a daemon thread that asks for its lock then, and ONNX Runtime's frames on that thread's stack abort. So at
exit the ops, and this package's sessions, block such threads for ever before they ask.
"""

import atexit
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

import onnxruntime

from ...core.threads import after_fork
from .. import extensions

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
            "a run in an exit handler that was registered before ort_gridsample was imported: its ops have ended; "
            "expected a handler registered after, which runs before they end"
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


with suppress(ImportError):
    extensions.load()  # first: its own exit handler, which ends every op, runs after the one that is registered later
atexit.register(_at_exit)
