"""Type aliases of arrays, and the byte order of their elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[Any]  #: floating point
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


#: The alignment of arrays of :func:`aligned_empty`, in bytes: a line of the processor's caches.
ALIGNMENT = 64


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return an array as of :func:`numpy.empty`, at the beginning of a cache line.

    NumPy aligns arrays to 16 bytes. An array of objects or strings may begin anywhere.
    """
    if dtype.hasobject or dtype.kind in "SUT":
        return np.empty(shape, dtype)
    memory = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT - 1, np.uint8)
    offset = -memory.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, memory, offset)


def native_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return ``dtype`` in the byte order of this machine."""
    # newbyteorder fails on numpy's variable-width strings, which are always native.
    return dtype if dtype.isnative else dtype.newbyteorder("=")
