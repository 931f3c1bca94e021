"""Sessions of the execution provider in a parent and in its forked children."""

import os

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.paths import open_provider

X = np.ones((1, 2, 5, 6), np.float32)
GRID = np.zeros((1, 3, 4, 2), np.float32)
FEED = {"X": X, "grid": GRID}
MODEL = grid_sample_model("float32", "float32", 2, [Attributes()])

expected = ogs.grid_sample(X, GRID)
session = open_provider(MODEL)


def child() -> int:
    """Run the parent's session and a new one; return an exit status."""
    assert ogs.register_provider() == "GridSampleExecutionProvider"
    assert np.array_equal(session.run(None, FEED)[0], expected)
    assert np.array_equal(open_provider(MODEL).run(None, FEED)[0], expected)
    return 0


codes = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = child()
        finally:
            os._exit(status)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print("parent", np.array_equal(session.run(None, FEED)[0], expected))
print("children", *codes)
assert onnxruntime.__version__
