"""From a function to an address: compiled, kept on disk, and there until the process ends."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from numba import cfunc, types


def address_of(function: Callable[..., Any], arguments: int) -> int:
    """The address of ``function``, of so many int64 ``arguments``, as a C function that answers with an int64.

    It is compiled now or comes from Numba's cache on disk. It is never freed: sessions that outlive Python call it.
    """
    signature = types.int64(*[types.int64] * arguments)
    try:
        made = cfunc(signature, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no folder to write to at all
        made = cfunc(signature, error_model="numpy")(function)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return int(made.address)
