"""Use sessions in children of multiprocessing, by each start method, while a session is alive.

Prints, for each method, whether the outputs in the children and then in the parent were right.
"""

import multiprocessing
import pickle

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.paths import open_session
from support.programs import GRID, X, open_sampling

CALLS = 4


def is_right(session: onnxruntime.InferenceSession, factor: int) -> bool:
    (Y,) = session.run(None, {"X": X * factor, "grid": GRID})
    return bool(np.array_equal(Y, ogs.grid_sample(X * factor, GRID)))


def is_pickled_session_right(data: bytes, factor: int) -> bool:
    return is_right(pickle.loads(data), factor)


def is_new_session_right(factor: int) -> bool:
    return is_right(open_sampling(open_session), factor)


def main() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    session = ogs.InferenceSession(model, options, nodes="all")
    is_right(session, 1)
    data = pickle.dumps(session)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            results = pool.starmap(
                is_pickled_session_right, [(data, factor) for factor in range(CALLS)]
            )
            results += pool.map(is_new_session_right, range(CALLS))
        print(method, all(results), is_right(session, 2))


if __name__ == "__main__":
    main()
