"""The functions of the C library that compiled code calls."""

from __future__ import annotations

import ctypes

from . import target

#: The functions that compiled code calls on every system. On POSIX it also calls ``sched_yield``.
NAMES = ("malloc", "free", "memset", "memcpy", "memcmp", "strlen", "strcspn")


def make_visible() -> None:
    """Let LLVM find the functions. On Windows it does not search the C runtime by itself.

    Raises:
        OSError: Windows has no Universal C Runtime.
    """
    if target.system != "win32":
        return
    import llvmlite.binding as llvm

    runtime = ctypes.CDLL("ucrtbase")
    for name in NAMES:
        llvm.add_symbol(name, ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value)
