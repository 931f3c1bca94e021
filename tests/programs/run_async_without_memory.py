"""Run a session asynchronously on a feed of 64 MiB with 30 MiB of free memory; print the error."""

import numpy as np

from support import paths
from support.address_limit import address_limit
from support.programs import GRID, X, open_sampling, result_or_error, shape_or_error

FREE_BYTES = 30 << 20

session = open_sampling(paths.open_session)
LARGE_X = np.ones((1, 4, 2048, 2048), np.float32)
shape_or_error(session, X, GRID)
with address_limit(FREE_BYTES):
    feeds = {"X": LARGE_X, "grid": GRID}
    print(result_or_error(session.run_async, None, feeds, lambda *_: None, None))
