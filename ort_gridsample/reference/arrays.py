"""Type aliases of arrays, and the byte order of their elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[Any]  #: floating point
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def native_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return ``dtype`` in the byte order of this machine."""
    # newbyteorder fails on numpy's variable-width strings, which are always native.
    return dtype if dtype.isnative else dtype.newbyteorder("=")
