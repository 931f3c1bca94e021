"""Defer signal handlers while ONNX Runtime calls Python: one that raised in a Python op would end the process.

Python calls signal handlers on the main thread, between two bytecodes: during a session's run those of an op, while a
session is made those that make a compiled op's kernel. So during either on the main thread, every handler of Python's
(Ctrl-C's raises KeyboardInterrupt) is replaced by one that waits; at the end it is put back, and called if its signal
came. Other threads run no handlers.
"""

import signal
import sys
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal without its conversion to an enum, as every run calls it
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from types import FrameType
from typing import Any

import onnxruntime

from ..reference.threads import after_fork

RUNS = ("run", "run_with_ort_values", "run_with_ortvaluevector", "run_with_iobinding")
_BARE = "_ort_gridsample_bare"
_SIGNALS = tuple(map(int, signal.valid_signals()))


#: Called before a plain session is made, with the session, its model and its options. It returns whether the options
#: were registered: then the session is made with signals deferred.
Prepare = Callable[[Any, Any, "onnxruntime.SessionOptions | None"], bool]


@cache
def defer_in_sessions(prepare: Prepare) -> None:
    """Make and run sessions that may run this package's ops :func:`undisturbed`.

    The methods of onnxruntime's own class are wrapped, as a plain session runs patched models too.
    """

    def makes(session: Any, path_or_bytes: Any = None, sess_options: Any = None, *_: Any, **__: Any) -> bool:
        return prepare(session, path_or_bytes, sess_options)

    def runs(session: Any, *_: Any, **__: Any) -> bool:
        return getattr(session, "_runs_python_ops", False)

    for name in ("__init__", *RUNS):
        method = bare(getattr(onnxruntime.InferenceSession, name))
        setattr(onnxruntime.InferenceSession, name, _wrapped(method, makes if name == "__init__" else runs))


def _wrapped(run: Callable[..., Any], concerned: Callable[..., bool]) -> Callable[..., Any]:
    @wraps(run)
    def wrapper(session: Any, *args: Any, **kwargs: Any) -> Any:
        if concerned(session, *args, **kwargs):
            return undisturbed(run, session, *args, **kwargs)
        return run(session, *args, **kwargs)

    setattr(wrapper, _BARE, (wrapper, run))
    return wrapper


def bare(method: Callable[..., Any]) -> Callable[..., Any]:
    """The ``method`` of onnxruntime's class, without the wrapper of this module."""
    kept: tuple[Any, Callable[..., Any]] = getattr(method, _BARE, (method, method))
    return kept[1] if kept[0] is method else method  # another wrapper has copied its attributes


@dataclass(eq=False)
class _Waiting:
    """A signal handler that waits for the end of the run."""

    signum: int
    handler: Callable[[int, FrameType | None], object]
    came: bool = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if _under_way:
            self.came = True
        else:  # another handler raised before this one could be put back
            self.put_back()
            self.handler(signum, frame)

    def put_back(self) -> None:
        """Give the signal its own handler again, unless it was given another meanwhile."""
        if getsignal(self.signum) is self:
            signal.signal(self.signum, self.handler)


_under_way = False
_waiting: list[_Waiting] = []


def undisturbed(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``run(*args, **kwargs)``; on the main thread, handlers of signals that come meanwhile are called at its end."""
    global _under_way
    if threading.get_ident() != threading.main_thread().ident or _under_way:
        return run(*args, **kwargs)
    try:
        _under_way = True
        for signum in _SIGNALS:
            handler = getsignal(signum)
            if callable(handler):
                _waiting.append(_Waiting(signum, handler))
                signal.signal(signum, _waiting[-1])
        return run(*args, **kwargs)
    finally:
        try:
            _end()
        finally:
            _under_way = False


def _end() -> None:
    """Put all handlers back, then call those whose signals came, each of them whatever another one raises."""
    global _under_way
    try:
        for waiting in reversed(_waiting):
            waiting.put_back()
        _under_way = False
        while _waiting:
            if (first := _waiting.pop(0)).came:
                first.handler(first.signum, sys._getframe())
    finally:
        if _waiting:
            _end()


@after_fork
def _after_fork() -> None:
    for waiting in _waiting:
        waiting.came = False  # the signals that came are the parent's, as the run is
    _end()
