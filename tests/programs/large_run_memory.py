"""Print, for each opener, the peak memory of a large run in MiB, and whether its output is right.

Arguments: the channels of X, the length of each axis of the output, and functions of support.paths
that open sessions.
"""

import sys

import numpy as np

from support import paths
from support.memory import clear_peak, peak_mib
from support.programs import (
    GRID,
    X,
    open_sampling,
    print_for_each_opener,
    resident_mib,
    shape_or_error,
)

channels, length = map(int, sys.argv[1:3])
image = np.ones((1, channels, 2048, 2048), np.float32)
line = np.linspace(-0.9, 0.9, length, dtype=np.float32)
grid = np.stack(np.broadcast_arrays(line, line[:, None]), -1)[None].copy()


def run(open_model: paths.Open) -> tuple[float, bool]:
    session = open_sampling(open_model)
    shape_or_error(session, X, GRID)  # compiles the kernels
    clear_peak()
    before = resident_mib()
    (Y,) = session.run(None, {"X": image, "grid": grid})
    peak = peak_mib() - before
    return peak, bool(abs(Y[0, :, ::16, ::16] - 1).max() < 1e-5)


print_for_each_opener(run, sys.argv[3:])
