"""The function that writes error messages, compiled when the first error occurs.

To compile it takes more than a second, and most processes have no error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...kernels.structs import ctypes_type
from ...system.process import keep_forever
from ..signals import with_signals_deferred
from . import c_api
from .structs import ERRORS

_Errors: Any = ctypes_type(ERRORS)


@cache
def function_address() -> int:
    """Return the address of a C function that loads :func:`.sentences.create_error`.

    Its argument is the address of ERRORS, whose field ``create_error`` it sets. The field remains
    as it is if the function can neither be loaded nor compiled, or if a signal handler raises an
    exception. ONNX Runtime may call the C function in any thread.
    """
    callback = c_api.function_type(1)(_load_create_error)
    keep_forever(callback)
    return c_api.address_of_callback(callback)


def _load_create_error(errors_address: int) -> int:
    # The result does not tell whether this fails: after an exception, ctypes returns any number.
    address = with_signals_deferred(_create_error_address)
    _Errors.from_address(errors_address).create_error = address
    return 0


@cache
def _create_error_address() -> int:
    """Compile the function, or load it from disk. This imports Numba."""
    from ...kernels.compilation import addresses
    from .sentences import create_error

    (address,) = addresses([(create_error,)])
    return address
