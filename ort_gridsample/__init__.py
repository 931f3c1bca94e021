"""ONNX GridSample and AffineGrid for ONNX Runtime: every type, rank and mode, defined in Python."""

from .core.choice import get_core, set_core
from .core.threads import get_num_threads, set_num_threads
from .errors import GridSampleError
from .functions import affine_grid, grid_sample

__all__ = [
    "GridSampleError",
    "affine_grid",
    "get_core",
    "get_num_threads",
    "grid_sample",
    "set_core",
    "set_num_threads",
]
