"""Run a session of compiled ops asynchronously in an exit handler; print the shape of the output.

The handler is registered before the package is imported, so it is called after the package's own
exit handler.
"""

import atexit
import json
import threading
from collections.abc import Sequence

import numpy as np


def run_at_exit() -> None:
    has_ended = threading.Event()

    def call_back(outputs: Sequence[np.ndarray], user_data: object, error: str) -> None:
        print(json.dumps(error or outputs[0].shape), flush=True)
        has_ended.set()

    session.run_async(None, {"X": X, "grid": GRID}, call_back, None)
    has_ended.wait(60)


atexit.register(run_at_exit)
import ort_gridsample as ogs  # noqa: E402
from support.programs import GRID, X, open_sampling  # noqa: E402

session = open_sampling(ogs.InferenceSession)
assert session.placements[0].runs_on == "compiled op"
