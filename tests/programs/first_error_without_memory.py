"""Let the first error of a process occur while there is no memory; print it, and standard error.

Arguments: ``memory``, for an error about scratch memory, or ``shape``, for one about a shape; the
name of a function in support.paths.
"""

import json
import os
import sys
import tempfile

import numpy as np
import onnxruntime

from support import paths
from support.address_limit import address_limit
from support.programs import GRID, WRONG_GRID, X, open_sampling, result_or_error, shape_or_error

#: Feeds of a run whose Y has 16 MiB, and which needs some MiB of scratch memory.
LARGE_X = np.ones((1, 64, 256, 256), np.float32)
LARGE_GRID = np.zeros((1, 256, 256, 2), np.float32)
FREE_KIB = range(512, 48 << 10, 512)


def error_without_memory(session: onnxruntime.InferenceSession, error: str) -> str:
    if error == "shape":
        with address_limit(1 << 20):
            return str(shape_or_error(session, X, WRONG_GRID))
    for size in FREE_KIB:  # enough for Y, but not for scratch memory
        with address_limit(size << 10):
            result = result_or_error(session.run, None, {"X": LARGE_X, "grid": LARGE_GRID})
        if isinstance(result, str) and "scratch memory" in result:
            return result
    return "no run lacked scratch memory"


quiet_options = paths.quiet_options


def options_without_arena() -> onnxruntime.SessionOptions:
    """Return options whose sessions free memory that they do not use."""
    options = quiet_options()
    options.enable_cpu_mem_arena = False
    return options


paths.quiet_options = options_without_arena
session = open_sampling(getattr(paths, sys.argv[2]))
shape_or_error(session, X, GRID)
with tempfile.TemporaryFile() as standard_error:
    os.dup2(standard_error.fileno(), 2)
    message = error_without_memory(session, sys.argv[1])
    standard_error.seek(0)
    print(json.dumps([message, standard_error.read().decode()]))
