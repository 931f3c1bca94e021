"""The functions that create error messages.

The one for all messages is loaded when the first error occurs: compiling it takes more than a
second, and most processes have no error. The one for brief messages is loaded with each op, because
an error about memory must not need memory.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ...functions.cores import logger
from ...kernels.structs import ctypes_type
from ...system.process import keep_forever
from . import c_api
from .structs import ERRORS

_ErrorsStruct: Any = ctypes_type(ERRORS)


@cache
def loader_address() -> int:
    """Return the address of a C function that loads :func:`.sentences.create_error`.

    The C function takes the address of ERRORS, and sets their field ``create_error``. The field is
    unchanged if loading and compiling fail. The C function may be called from any thread.
    """
    callback = c_api.callback(1, _load_create_error, _loading_failure)
    keep_forever(callback)
    return c_api.address_of_callback(callback)


def brief_spec() -> tuple[Any]:
    """Return the function for brief messages, to compile. This imports Numba."""
    from .sentences import create_brief_error

    return (create_brief_error,)


def _load_create_error(errors_address: int) -> int:
    _ErrorsStruct.from_address(errors_address).create_error = _create_error_address()
    return 0  # callers look at the field


def _loading_failure(error: BaseException, errors_address: int) -> int:
    logger.debug("error messages are not loaded: %r", error)
    return 0


def _create_error_address() -> int:
    """Return the address of ``create_error``, loaded from disk or compiled. This imports Numba."""
    from ...kernels.compilation import addresses
    from .sentences import create_error

    (address,) = addresses([(create_error,)])
    return address
