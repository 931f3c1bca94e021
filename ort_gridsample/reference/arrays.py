"""Type aliases of arrays, their addresses, and the byte order of their elements."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[Any]  #: floating point
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


_int64_at = ctypes.c_int64.from_address
#: The offset of the address of the data in an array: the first field after Python's header of an
#: object. Only CPython has objects at fixed addresses, which ``id`` returns.
_DATA_OFFSET = object.__basicsize__


def _address_in_interface(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _address_in_object(array: Array) -> int:
    """Return the address of an array's data in a seventh of the time of its interface."""
    return _int64_at(id(array) + _DATA_OFFSET).value


_example = np.zeros(1)
data_address = _address_in_interface
if sys.implementation.name == "cpython" and _address_in_object(_example) == data_address(_example):
    data_address = _address_in_object


#: The alignment of arrays of :func:`aligned_empty`, in bytes: a line of the processor's caches.
ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return an array as of :func:`numpy.empty`, at the beginning of a cache line.

    NumPy aligns arrays to 16 bytes. An array of objects or strings may begin anywhere.
    """
    if dtype.hasobject or dtype.kind in "SUT":
        return np.empty(shape, dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT - 1, np.uint8)
    offset = -data_address(memory) % ALIGNMENT
    return np.ndarray(shape, dtype, memory, offset)


def native_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return ``dtype`` in the byte order of this machine."""
    # newbyteorder fails on numpy's variable-width strings, which are always native.
    return dtype if dtype.isnative else dtype.newbyteorder("=")
