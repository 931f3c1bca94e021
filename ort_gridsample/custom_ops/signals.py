"""Defer signal handlers while ONNX Runtime calls Python.

An exception that a handler raises in a Python op would end the process.
Python calls signal handlers on the main thread, between two bytecodes. During a session's run these
are the bytecodes of an op; while a session is created, those that compile a kernel. During both,
every handler that is a Python function (that of Ctrl-C raises KeyboardInterrupt) is replaced by one
that only records the signal. At the end the original handlers are restored, and called for the
signals that were recorded. Other threads call no handlers.
"""

import signal
import sys
import threading

# Every run calls getsignal. This one does not convert handlers to an enum, as that of ``signal``
# does.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from types import FrameType
from typing import Any

from ..system.process import after_fork
from .plain_session import PLAIN_SESSION

#: The methods that run a session.
RUN_METHODS = ("run", "run_with_ort_values", "run_with_ortvaluevector", "run_with_iobinding")
#: An attribute of sessions: whether a run may call Python ops. Its presence means that the ops were
#: added to the session's options.
RUNS_PYTHON_OPS = "_runs_python_ops"
#: The attribute of a wrapper with the wrapper itself and the function that it wraps.
_UNWRAPPED = "_ort_gridsample_unwrapped"
_SIGNALS = tuple(map(int, signal.valid_signals()))

Handler = Callable[[int, FrameType | None], object]

#: A function that is called before a plain session is created, with the session, its model and its
#: options. It returns whether the options were registered. The session is then created with signals
#: deferred.
Prepare = Callable[[Any, Any, Any], bool]


# --- Sessions ---


@cache
def defer_in_sessions(prepare: Prepare) -> None:
    """Defer signals while sessions that may run this package's ops are created and run.

    This wraps methods of onnxruntime's own class, as plain sessions run patched models too.
    """

    def defers_creation(
        session: Any,
        path_or_bytes: Any = None,
        sess_options: Any = None,
        *_: Any,
        **__: Any,
    ) -> bool:
        return prepare(session, path_or_bytes, sess_options)

    def defers_run(session: Any, *_: Any, **__: Any) -> bool:
        return getattr(session, RUNS_PYTHON_OPS, False)

    _wrap_method("__init__", defers_creation)
    for name in RUN_METHODS:
        _wrap_method(name, defers_run)


def _wrap_method(name: str, is_deferring: Callable[..., bool]) -> None:
    """Defer signals in a method of onnxruntime's class, if ``is_deferring`` with its arguments."""
    method = unwrapped(getattr(PLAIN_SESSION, name))

    @wraps(method)
    def wrapper(session: Any, *args: Any, **kwargs: Any) -> Any:
        if is_deferring(session, *args, **kwargs):
            return with_signals_deferred(method, session, *args, **kwargs)
        return method(session, *args, **kwargs)

    setattr(wrapper, _UNWRAPPED, (wrapper, method))
    setattr(PLAIN_SESSION, name, wrapper)


@cache
def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of onnxruntime's class that ``method`` wraps, or ``method`` itself."""
    wrapper, original = getattr(method, _UNWRAPPED, (method, method))
    # A wrapper of another package that copied the attributes of ours is not unwrapped.
    return original if wrapper is method else method


# --- Deferral ---


class _Deferral:
    """The handlers that are deferred at the moment. Only the main thread changes it."""

    def __init__(self) -> None:
        self.is_active = False
        self._handlers: list[DeferredHandler] = []

    def begin(self) -> None:
        """Replace all handlers that are Python functions."""
        self.is_active = True
        for signum in _SIGNALS:
            handler = getsignal(signum)
            if callable(handler):
                deferred = DeferredHandler(signum, handler, self)
                self._handlers.append(deferred)
                signal.signal(signum, deferred)

    def end(self) -> None:
        """Restore all handlers, then call those whose signals were received.

        Each is called even if another one raises an exception.
        """
        try:
            self._end()
        finally:
            self.is_active = False

    def _end(self) -> None:
        try:
            for deferred in reversed(self._handlers):
                deferred.restore()
            self.is_active = False
            while self._handlers:
                deferred = self._handlers.pop(0)
                if deferred.was_received:
                    deferred.handler(deferred.signum, sys._getframe())
        finally:
            if self._handlers:
                self._end()

    def forget(self) -> None:
        """Restore all handlers in a forked child. The signals were received by its parent."""
        for deferred in self._handlers:
            deferred.was_received = False
        self._end()


@dataclass(eq=False)
class DeferredHandler:
    """A signal handler that records its signal.

    Attributes:
        signum: the signal.
        handler: the original handler.
        deferral: the deferral that it belongs to.
        was_received: whether the signal was received.
    """

    signum: int
    handler: Handler
    deferral: _Deferral
    was_received: bool = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.deferral.is_active:
            self.was_received = True
        else:  # an exception of another handler prevented that this one was restored
            self.restore()
            self.handler(signum, frame)

    def restore(self) -> None:
        """Restore the original handler, unless the signal was given another one since."""
        if getsignal(self.signum) is self:
            signal.signal(self.signum, self.handler)


_deferral = _Deferral()


def with_signals_deferred(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function``; on the main thread, call signal handlers only when it has returned."""
    is_main_thread = threading.get_ident() == threading.main_thread().ident
    if not is_main_thread or _deferral.is_active:
        return function(*args, **kwargs)
    try:
        _deferral.begin()
        return function(*args, **kwargs)
    finally:
        _deferral.end()


@after_fork
def _after_fork() -> None:
    _deferral.forget()
