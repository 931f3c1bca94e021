"""The functions of ONNX Runtime's C API, for compiled code."""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...kernels.pointers import array_at, caller
from ...kernels.structs import Address
from . import c_api


def api_function(name: str, n_results: int = 0) -> Any:
    """Return a function of :data:`.c_api.FUNCTIONS` for compiled code.

    Args:
        n_results: the number of its last arguments that are pointers to results.

    Returns:
        A function that takes the address of the struct that has the function, such as the OrtApi,
        and a tuple of the other arguments. It returns the result of the function, which usually is
        an OrtStatus*, or a tuple of this and the results: see :func:`.pointers.caller`.
    """
    row = c_api.FUNCTIONS[name]
    return caller(n_results, row.offset, row.n_arguments)


#: Call :data:`.c_api.SHAPE_REFERENCE` by its own address. The results are the element type of a
#: value, the address of its lengths, and their number.
get_shape_reference = caller(3, None, c_api.FUNCTIONS[c_api.SHAPE_REFERENCE].n_arguments)

_has_function = register_jitable(c_api.has_function)
_SHAPE_REFERENCE_SINCE = c_api.FUNCTIONS[c_api.SHAPE_REFERENCE].since
_SHAPE_REFERENCE_INDEX = c_api.FUNCTIONS[c_api.SHAPE_REFERENCE].offset // 8


@register_jitable
def shape_reference(api: Address, minor_version: int) -> Address:
    """Return the address of :data:`.c_api.SHAPE_REFERENCE`; 0 if it does not exist.

    Args:
        api: the OrtApi.
        minor_version: the minor version of onnxruntime's release 1.x.
    """
    if not _has_function(minor_version, _SHAPE_REFERENCE_SINCE):
        return 0
    functions = array_at(api, (_SHAPE_REFERENCE_INDEX + 1,), np.int64)
    return functions[_SHAPE_REFERENCE_INDEX]


@register_jitable
def write_word(address: int, value: int) -> None:
    """Write a pointer or a size to ``address``."""
    array_at(address, (1,), np.int64)[0] = value


@register_jitable
def write_int(address: int, value: int) -> None:
    """Write a C int or an enum to ``address``."""
    array_at(address, (1,), np.int32)[0] = value


@register_jitable
def write_bool(address: int, value: int) -> None:
    """Write a C bool to ``address``."""
    array_at(address, (1,), np.uint8)[0] = value
