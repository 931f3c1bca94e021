"""The process: the program that started it, what it does after a fork, and what it never frees."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from typing import Any

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


def keep_forever(kept: Any) -> None:
    """Never free the object ``kept``, even when Python ends: other code may use it afterwards."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
