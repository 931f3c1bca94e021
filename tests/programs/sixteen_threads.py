"""Run sessions in sixteen threads, with right and wrong grids; print what went wrong in each case.

Arguments: the runs of each thread, and a list of cases in JSON: the name of a function in
support.paths, whether the threads share one session, and the execution mode.
"""

import json
import sys
import threading

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.paths import LIBRARY
from support.programs import shape_or_error

THREADS = 16
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1, 3, 96, 96)).astype(np.float32)
GRIDS = RNG.uniform(-1.2, 1.2, (THREADS, 1, 64, 64, 2)).astype(np.float32)
MODES = ("linear", "cubic")
MODEL = grid_sample_model("float32", "float32", 2, [Attributes(mode) for mode in MODES])
EXPECTED = [[ogs.grid_sample(X, grid, mode) for mode in MODES] for grid in GRIDS]


def open_session(opener: str, execution_mode: str) -> onnxruntime.InferenceSession:
    """Open a session of the same kind as the function of support.paths does, with two threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.inter_op_num_threads = 2
    options.execution_mode = getattr(onnxruntime.ExecutionMode, execution_mode)
    ogs.set_ops("python" if opener in ("open_session", "open_patched_file") else "compiled")
    if opener in ("open_session", "open_compiled"):
        return ogs.InferenceSession(MODEL, options, nodes="all")
    if opener == "open_library":
        options.register_custom_ops_library(LIBRARY)
    else:
        ogs.register(options)
    target = "ort_gridsample" if opener == "open_patched_file" else "compiled"
    patched = ogs.patch_model(MODEL, target=target)
    return onnxruntime.InferenceSession(patched.SerializeToString(), options)


def failures(runs: int, opener: str, is_shared: bool, execution_mode: str) -> list[str]:
    """Return the wrong outputs and errors of all threads."""
    shared_session = open_session(opener, execution_mode) if is_shared else None
    wrong: list[str] = []

    def work(index: int) -> None:
        try:
            session = shared_session or open_session(opener, execution_mode)
            for run in range(runs):
                if (index + run) % 4 == 0:
                    check_error(session, index)
                outputs = session.run(None, {"X": X, "grid": GRIDS[index]})
                np.testing.assert_array_equal(outputs, EXPECTED[index])
        except BaseException as error:
            wrong.append(f"thread {index}: {error!r}")

    def check_error(session: onnxruntime.InferenceSession, index: int) -> None:
        """Run a wrong grid, whose shape only this thread uses."""
        shape = (2 + index, 3, 3, 2)
        error = shape_or_error(session, X, np.zeros(shape, np.float32))
        if "rejected" not in error and str(shape) not in error:
            wrong.append(f"thread {index}: {error}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


print(json.dumps([failures(int(sys.argv[1]), *case) for case in json.loads(sys.argv[2])]))
