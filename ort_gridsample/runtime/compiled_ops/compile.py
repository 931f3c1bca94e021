"""From a function to an address: compiled, kept on disk, and there until the process ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import types
from numba.core.ccallback import CFunc

from ...core.compilation import SOURCES, KernelCache

#: The files that the functions here are made of; where one differs, what is on disk is not used.
_SOURCES = (*SOURCES, *sorted(Path(__file__).parent.glob("*.py")))


def address_of(function: Callable[..., int], arguments: int) -> int:
    """The address of ``function``, of so many int64 ``arguments``, as a C function that answers with an int64.

    It is compiled now or comes from Numba's cache on disk. It is never freed: sessions that outlive Python call it.
    """
    made: Any = CFunc(function, (tuple([types.int64] * arguments), types.int64), {}, {"error_model": "numpy"})
    with suppress(RuntimeError, OSError):  # else it is compiled in every process anew
        made._cache = KernelCache(function, _SOURCES)
    made.compile()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return int(made.address)
