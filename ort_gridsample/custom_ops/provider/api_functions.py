"""ONNX Runtime's functions for execution providers, for compiled code."""

from typing import Any

import numpy as np
from numba.extending import register_jitable

from ...kernels import pointers
from ...kernels.pointers import caller
from .ep_api import EP_API_OFFSETS, PROVIDER_FUNCTION_OFFSETS


def provider_api_function(name: str, n_outputs: int = 0) -> Any:
    """Return the function ``name`` of OrtApi: see :func:`ort_gridsample.kernels.pointers.caller`.

    Its first argument is the address of the OrtApi.
    """
    return caller(n_outputs, PROVIDER_FUNCTION_OFFSETS[name])


def ep_function(name: str, n_outputs: int = 0) -> Any:
    """Return the function ``name`` of OrtEpApi.

    Its first argument is the address of the OrtEpApi.
    """
    return caller(n_outputs, EP_API_OFFSETS[name])


@register_jitable
def write_word(address: int, value: int) -> None:
    """Write a pointer or a size to ``address``."""
    pointers.array_at(address, (1,), np.int64)[0] = value


@register_jitable
def write_int(address: int, value: int) -> None:
    """Write a C int or an enum to ``address``."""
    pointers.array_at(address, (1,), np.int32)[0] = value


@register_jitable
def write_bool(address: int, value: int) -> None:
    """Write a C bool to ``address``."""
    pointers.array_at(address, (1,), np.uint8)[0] = value
