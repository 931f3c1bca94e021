"""Keep a forked child from destroying sessions of its parent, which would hang.

The destructor of a session joins the session's threads, and a forked child has no threads but the
one that forked. So before a fork this module takes references to all C sessions (``_sess``)
that it tracks. The parent drops the references after the fork; the child keeps them forever. The
child can run these sessions, and create and drop its own.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from typing import Any
from weakref import ref

import onnxruntime
from onnxruntime.capi import _pybind_state

from ..custom_ops.plain_session import PLAIN_SESSION as _PLAIN_SESSION
from ..system.process import keep_forever

#: Number -> weak reference to a C session (``InferenceSession._sess``). The references have no
#: callbacks, because an exception that a signal handler raises in a callback is lost. A number is
#: used once, so that threads can add and remove references at the same time without a lock.
_tracked: dict[int, ref[Any]] = {}
_numbers = itertools.count()
#: The length of :data:`_tracked` at which dead references are removed.
_limit = 64
#: The attribute of onnxruntime's class of sessions that :func:`keep_sessions_through_forks` sets.
_KEEPS_SESSIONS = "_ort_gridsample_keeps_sessions_through_forks"
#: Thread -> the sessions that are kept alive while this thread forks.
_held: dict[int, list[Any]] = {}
#: In a child: the sessions of its parents.
_inherited: list[Any] = []


def track(session: Any) -> None:
    """Never destroy this C session (``_sess``) in a forked child."""
    global _limit
    _tracked[next(_numbers)] = ref(session)
    if len(_tracked) > _limit:
        # A copy, because other threads add references. list(_tracked.items()) is not enough: it
        # allocates a tuple for each item, and the garbage collector can switch to another thread.
        for number, reference in _tracked.copy().items():
            if reference() is None:
                _tracked.pop(number, None)
        _limit = 2 * len(_tracked) + 64


def keep_sessions_through_forks() -> None:
    """Keep forked child processes from destroying sessions of onnxruntime, and hanging.

    >>> keep_sessions_through_forks()

    If a forked child drops a session that it inherited, replaces the session, or exits with it,
    onnxruntime waits forever for threads that the child does not have. After a call of this
    function, the sessions that exist and later ones are kept; an
    :class:`ort_gridsample.InferenceSession` always is. A child can run inherited sessions, and
    create and drop its own. Another call changes nothing.

    Since release 1.29, a thread of onnxruntime's telemetry also makes a forked child hang at its
    normal end, with or without sessions. Set the environment variable ``ORT_DISABLE_TELEMETRY=1``
    before onnxruntime is imported.
    """
    session_class = _PLAIN_SESSION
    if getattr(session_class, _KEEPS_SESSIONS, False):
        return
    set_attribute = session_class.__setattr__

    def set_and_track(self: Any, name: str, value: Any) -> None:
        set_attribute(self, name, value)
        track_attribute(name, value)

    session_class.__setattr__ = set_and_track
    setattr(session_class, _KEEPS_SESSIONS, True)
    for instance in gc.get_objects():
        if issubclass(type(instance), session_class):
            track_attribute("_sess", getattr(instance, "_sess", None))


def track_attribute(name: str, value: Any) -> None:
    """Track ``value`` if ``name`` is the attribute that holds the C session of a session."""
    if name == "_sess" and value is not None:
        track(value)


def loaded_session(model: bytes, options: onnxruntime.SessionOptions) -> Any:
    """Return a C session (``_sess``) that is not initialized for runs, and track it.

    Raises:
        Exception: onnxruntime's error if it refuses the model.
    """
    session = _pybind_state.InferenceSession(options, model, False, False)
    track(session)
    return session


def cpu_session(model: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Return a plain session on the CPU, and track it."""
    session = _PLAIN_SESSION(model, options, providers=["CPUExecutionProvider"])
    track(session._sess)
    return session


def _before_fork() -> None:
    sessions = (reference() for reference in _tracked.copy().values())
    _held[threading.get_ident()] = [session for session in sessions if session is not None]


def _after_fork_in_parent() -> None:
    _held.pop(threading.get_ident(), None)


def _after_fork_in_child() -> None:
    for sessions in _held.values():
        for session in sessions:
            # Keep the session also when the interpreter ends.
            keep_forever(session)
        _inherited.extend(sessions)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
