"""Load the function that creates error messages, when the first error occurs.

Compiling it takes more than a second, and most processes have no error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...kernels.structs import ctypes_type
from ...system.process import keep_forever
from ..signals import with_signals_deferred
from . import c_api
from .structs import ERRORS

_ErrorsStruct: Any = ctypes_type(ERRORS)


@cache
def loader_address() -> int:
    """Return the address of a C function that loads :func:`.sentences.create_error`.

    The C function takes the address of ERRORS, and sets their field ``create_error``. The field is
    unchanged if loading and compiling fail, or if a signal handler raises an exception. The C
    function may be called from any thread.
    """
    callback = c_api.function_type(1)(_load_create_error)
    keep_forever(callback)
    return c_api.address_of_callback(callback)


def _load_create_error(errors_address: int) -> int:
    address = with_signals_deferred(_create_error_address)
    _ErrorsStruct.from_address(errors_address).create_error = address
    return 0  # callers look at the field: after an exception, ctypes returns any number


@cache
def _create_error_address() -> int:
    """Return the address of ``create_error``, loaded from disk or compiled. This imports Numba."""
    from ...kernels.compilation import addresses
    from .sentences import create_error

    (address,) = addresses([(create_error,)])
    return address
