"""Run a session many times, every tenth time with a wrong grid; print how much memory was gained.

Arguments: the name of a function in support.paths, and the number of runs. The result is the gain
of resident memory in MiB over this number of runs, after a fifth of them. It is the least gain of
three measurements: the allocator sometimes takes a few MiB once, and a leak is in each.
"""

import gc
import sys

import onnxruntime

from support import paths
from support.programs import GRID, X, open_sampling, resident_mib, shape_or_error


def resident_after(session: onnxruntime.InferenceSession, runs: int) -> float:
    for run in range(runs):
        if run % 10:
            shape_or_error(session, X, GRID[:, :8, :8])
        else:
            shape_or_error(session, X[:, :, :8], GRID[[0, 0]])
    gc.collect()
    return resident_mib()


session = open_sampling(getattr(paths, sys.argv[1]))
runs = int(sys.argv[2])
before = resident_after(session, runs // 5)
gains = []
for _ in range(3):
    after = resident_after(session, runs)
    gains.append(after - before)
    before = after
print(min(gains))
