"""Defer signal handlers while ONNX Runtime calls Python.

An exception that a handler raises in a Python op would end the process.
Python calls signal handlers on the main thread, between two bytecodes. During a session's run these
are the bytecodes of an op; while a session is created, those that compile a kernel. During both,
every handler that is a Python function (that of Ctrl-C raises KeyboardInterrupt) is replaced by one
that only records the signal. At the end the original handlers are restored, and called for the
signals that were recorded. Other threads call no handlers.

A callback of ctypes must not raise at all (:class:`NeverRaising`). If it is called outside of a
deferral, as when a run fails, the signals that it receives are handled when ONNX Runtime has
returned to Python.
"""

import _thread
import logging
import signal
import sys
import threading
import time

# Every run calls getsignal. This one does not convert handlers to an enum, as that of ``signal``
# does.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import FrameType
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

from ..system.process import after_fork
from .identity_map import IdentityMap
from .plain_session import PLAIN_SESSION

#: The methods that run a session.
RUN_METHODS = ("run", "run_with_ort_values", "run_with_ortvaluevector", "run_with_iobinding")
#: The classes of onnxruntime's extension module -> their methods that create sessions. Later
#: releases have more of them than earlier ones.
_CREATION_METHODS = {
    "InferenceSession": ("__init__", "initialize_session"),
    "ModelCompiler": ("__init__", "compile_to_file", "compile_to_bytes", "compile_to_stream"),
}
#: An attribute of sessions: whether a run may call Python ops. Its presence means that the ops were
#: added to the session's options.
RUNS_PYTHON_OPS = "_runs_python_ops"
#: The attribute of a wrapper with the wrapper itself and the function that it wraps.
_UNWRAPPED = "_ort_gridsample_unwrapped"
logger = logging.getLogger("ort_gridsample")
_SIGNALS = tuple(map(int, signal.valid_signals()))

Handler = Callable[[int, FrameType | None], object]

#: A function that is called before a plain session is created, with the session, its model and its
#: options.
Prepare = Callable[[Any, Any, Any], None]

#: Whether a session with these options may call functions of this package in Python.
MayCallPython = Callable[["onnxruntime.SessionOptions | None"], bool]


# --- Sessions ---


@cache
def defer_in_sessions(prepare: Prepare, may_call: MayCallPython) -> None:
    """Defer signals while sessions that may run this package's ops are created and run.

    This wraps methods of onnxruntime's own class, as plain sessions run patched models too.
    Sessions are also created by other means, such as ``set_providers`` and a ModelCompiler. All of
    them call onnxruntime's extension module. Compiled ops and the execution provider need the
    deferral of a creation as well: Python may call a handler on the entry to a callback, in which
    nothing catches the handler's exception.

    Args:
        prepare: prepares a plain session before it is created.
        may_call: whether a session with these options may call functions of this package.
    """

    def defers_creation(
        session: Any,
        path_or_bytes: Any = None,
        sess_options: Any = None,
        *_: Any,
        **__: Any,
    ) -> bool:
        prepare(session, path_or_bytes, sess_options)
        return may_call(sess_options)

    def defers_run(session: Any, *_: Any, **__: Any) -> bool:
        return getattr(session, RUNS_PYTHON_OPS, False)

    _wrap_method("__init__", defers_creation)
    for name in RUN_METHODS:
        _wrap_method(name, defers_run)
    for class_name, names in _CREATION_METHODS.items():
        extension_class = getattr(onnxruntime_pybind11_state, class_name, None)
        if extension_class is not None:
            _defer_in_extension_class(extension_class, names, may_call)


def _defer_in_extension_class(
    extension_class: Any, names: Sequence[str], may_call: MayCallPython
) -> None:
    """Defer signals in methods of a class of onnxruntime's extension module, if they exist.

    Args:
        extension_class: the class. The first argument of its constructor is the options.
        names: the names of the methods.
        may_call: whether a session with these options may call functions of this package.
    """
    is_deferring = IdentityMap[bool]()

    def wrap(name: str) -> None:
        method = unwrapped(getattr(extension_class, name))

        @wraps(method)
        def wrapper(instance: Any, *args: Any, **kwargs: Any) -> Any:
            if name == "__init__" and may_call(args[0] if args else None):
                is_deferring[instance] = True
            if _deferral.is_active or not is_deferring.get(instance):
                return method(instance, *args, **kwargs)
            return with_signals_deferred(method, instance, *args, **kwargs)

        setattr(wrapper, _UNWRAPPED, (wrapper, method))
        setattr(extension_class, name, wrapper)

    for name in names:
        if hasattr(extension_class, name):
            wrap(name)


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
            if callable(handler) and handler not in self._handlers:
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

    def begin_after_interrupts(self) -> None:
        """Replace all handlers, and receive a Ctrl-C that arrives before its handler is replaced.

        This is for callbacks, in which no handler may raise.
        """
        is_interrupted = False
        while True:
            try:
                self.begin()
                break
            except KeyboardInterrupt:
                is_interrupted = True
        if is_interrupted:
            for deferred in self._handlers:
                deferred.was_received |= deferred.signum == signal.SIGINT

    def postpone(self) -> None:
        """Restore the handlers whose signals were not received, and send the other signals again.

        The others are restored and called when Python code runs that no callback has called.
        """
        self.is_active = False
        while self._handlers:
            deferred = self._handlers.pop()
            if deferred.was_received:
                _send_after_callback(deferred.signum)
            else:
                deferred.restore()

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
        elif _is_in_callback(frame):
            _send_after_callback(signum)
        else:  # it was postponed, or an exception of another handler prevented its restoration
            self.restore()
            self.handler(signum, frame)

    def restore(self) -> None:
        """Restore the original handler, unless the signal was given another one since."""
        if getsignal(self.signum) is self:
            signal.signal(self.signum, self.handler)


_deferral = _Deferral()


def with_signals_deferred(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function``; on the main thread, call signal handlers only when it has returned."""
    if not _is_main_thread() or _deferral.is_active:
        return function(*args, **kwargs)
    try:
        _deferral.begin()
        return function(*args, **kwargs)
    finally:
        _deferral.end()


def _is_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


#: The exception of a callback whose own exception cannot be reported.
_NO_TEXT = RuntimeError("a callback of ort_gridsample failed")


class NeverRaising:
    """A function for a callback of ctypes, which never raises.

    ctypes would print an exception, and return an arbitrary number. Signal handlers are called only
    after the C function that called the callback has returned to Python, as they may raise.

    Args:
        failure: returns the result if ``function`` raises, from the exception and the arguments.
    """

    def __init__(self, function: Callable[..., int], failure: Callable[..., int]) -> None:
        self._function = function
        self._failure = failure

    def __call__(self, *arguments: int) -> int:
        is_deferring = _is_main_thread() and not _deferral.is_active
        try:
            if is_deferring:
                _deferral.begin_after_interrupts()
            return self._function(*arguments)
        except BaseException as error:  # none of a signal handler: these are deferred
            try:
                return self._failure(error, *arguments)
            except Exception:  # the exception has no text, or there is no memory for it
                return self._failure(_NO_TEXT, *arguments)
        finally:
            if is_deferring:
                _deferral.postpone()


def _is_in_callback(frame: FrameType | None) -> bool:
    """Whether ``frame`` is of a callback of ctypes, or of a function that it calls."""
    while frame is not None:
        if frame.f_code is NeverRaising.__call__.__code__:
            return True
        frame = frame.f_back
    return False


def _send_after_callback(signum: int) -> None:
    """Send this process a signal again as soon as the main thread is in no callback.

    A thread sends it: Python would handle a signal that the main thread sends within the callback.
    """
    try:
        thread = threading.Thread(target=_wait_and_send, args=(signum,), daemon=True)
        thread.start()
    except (MemoryError, RuntimeError) as error:  # none can be started: do not raise here
        logger.warning("signal %d in a callback of onnxruntime is lost: %r", signum, error)


def _wait_and_send(signum: int) -> None:
    main_thread = threading.main_thread().ident
    assert main_thread is not None  # it runs
    while _is_in_callback(sys._current_frames().get(main_thread)):
        time.sleep(0.001)
    if sys.platform == "win32":
        _thread.interrupt_main(signum)
    else:  # it also interrupts a system call of the main thread
        signal.pthread_kill(main_thread, signum)


@after_fork
def _after_fork() -> None:
    _deferral.forget()
