"""The process: the program that started it, what it does after a fork, and what it never frees."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")

#: The name of Python's executable. In a host program ``sys.executable`` is the host.
_IS_PYTHON = re.compile(r"(^|[\\/])python(\d|\.|w|t|_?d)*(\.exe)?$", re.IGNORECASE)


def interpreter() -> str | None:
    """Return the executable that starts another process of this Python.

    Return None in a frozen program, or in a host program that embeds Python.
    """
    executable = sys.executable or ""
    if getattr(sys, "frozen", False) or not _IS_PYTHON.search(executable):
        return None
    return executable


def after_fork(function: Callable[[], None]) -> Callable[[], None]:
    """Decorate a function that is called in the child of each fork, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
    return function


def created_once(create: Callable[[], T]) -> Callable[[], T]:
    """Decorate a function without arguments, so that all its calls return one object.

    Of several threads that make the first call at once, one creates the object and the others wait,
    unlike with :func:`functools.cache`.
    """
    lock = threading.RLock()
    created: list[T] = []

    @after_fork
    def replace_lock() -> None:
        nonlocal lock
        lock = threading.RLock()  # another thread of the parent may hold the old one

    @wraps(create)
    def get() -> T:
        if not created:
            with lock:
                if not created:
                    created.append(create())
        return created[0]

    return get


def keep_forever(kept: Any) -> None:
    """Never free the object ``kept``, even when Python ends: other code may use it afterwards."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
