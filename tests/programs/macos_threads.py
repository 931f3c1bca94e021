"""Use the package as on macOS; print the results in JSON."""

from support import other_systems

other_systems.imitate_macos()

import json  # noqa: E402
import os  # noqa: E402

import numpy as np  # noqa: E402

import ort_gridsample as ogs  # noqa: E402
from ort_gridsample.system import memory  # noqa: E402
from support.paths import open_session  # noqa: E402
from support.programs import GRID, X, open_sampling, shape_or_error  # noqa: E402

Y = ogs.grid_sample(np.ones((2, 8, 64, 64), np.float32), np.zeros((2, 64, 64, 2), np.float32))
results = {
    "uses all processors": ogs.get_num_threads() == os.cpu_count(),
    "available memory": memory.available(),
    "function": Y.shape,
    "session": shape_or_error(open_sampling(open_session), X, GRID),
}
print(json.dumps(results))
