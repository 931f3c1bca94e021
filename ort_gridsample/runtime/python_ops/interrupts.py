"""Keep signal handlers from raising inside a Python-defined op, where an exception ends the process.

Python runs signal handlers on the main thread, between two bytecodes of whatever it executes there: while a session
runs, that is an op. So every Python-level handler (Ctrl-C's raises KeyboardInterrupt) is wrapped: inside an op it
waits, everywhere else it is the handler that it was.
"""

from __future__ import annotations

import signal
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal without its conversion to an enum: this runs before every run
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from .extensions import onnx_op

#: How long a signal waits before it is tried again, in seconds.
PATIENCE = 0.002

_SIGNALS = tuple(signal.valid_signals())
_OP_GLOBALS = onnx_op.__globals__  # of the module whose function onnxruntime-extensions calls first
_MAIN = threading.main_thread()

Handler = Callable[[int, FrameType | None], object]
_waiting: set[int] = set()


def protect() -> None:
    """Wrap the Python-level signal handlers that are set now. Does nothing on any thread but the main one."""
    if threading.get_ident() != _MAIN.ident:
        return
    for signum in _SIGNALS:
        handler = getsignal(signum)
        if callable(handler) and not isinstance(handler, _Waiting):
            signal.signal(signum, _Waiting(handler))


def deliver() -> None:
    """Call the handlers of the signals that waited, now that no op is running."""
    while _waiting:
        signum = _waiting.pop()
        handler = getsignal(signum)
        if callable(handler):
            handler(signum, None)


class _Waiting:
    """A signal handler that waits while an op is running."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if _inside_op(frame):
            _waiting.add(signum)
            with suppress(RuntimeError, MemoryError):  # no room for a thread: it waits for the next signal or run
                # Not threading.Thread: the code interrupted may hold its locks.
                start_new_thread(_try_again, (signum,))
        else:
            self.handler(signum, frame)


def _inside_op(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals is _OP_GLOBALS:
            return True
        frame = frame.f_back
    return False


def _try_again(signum: int) -> None:
    time.sleep(PATIENCE)
    if signum in _waiting:  # else delivered meanwhile
        _waiting.discard(signum)
        signal.raise_signal(signum)
