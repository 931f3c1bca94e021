"""Run a session with less and less free memory; print the results in JSON.

Arguments: the name of a function in support.paths, which array is large (a key of ``FEEDS``), and
the free memory of each run in MiB. The results are those of each run, and of a small run after it.
"""

import json
import sys

import numpy as np

from support import paths
from support.address_limit import address_limit
from support.programs import GRID, X, open_sampling, shape_or_error

#: Feeds whose output, grid or X has 64 MiB. The last X is not contiguous, so onnxruntime copies it.
FEEDS = {
    "output": lambda: (np.ones((1, 64, 8, 8), np.float32), np.zeros((1, 512, 512, 2), np.float32)),
    "grid": lambda: (X, np.zeros((1, 4096, 2048, 2), np.float32)),
    "X": lambda: (np.ones((1, 4, 2048, 2048), np.float32), GRID),
    "broadcast X": lambda: (np.broadcast_to(np.float32(1), (1, 4, 2048, 2048)), GRID),
}


def main(opener: str, large_array: str, free_mib: list[int]) -> None:
    results = []
    for size in free_mib:
        session = open_sampling(getattr(paths, opener))
        feeds = FEEDS[large_array]()
        shape_or_error(session, X, GRID)
        with address_limit(size << 20):
            result = shape_or_error(session, *feeds)
        results.append([result, shape_or_error(session, X, GRID)])
    print(json.dumps(results))


main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])
