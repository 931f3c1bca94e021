"""Names for the arrays that the core passes around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[Any]  #: floating point
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
