"""Run a session on wrong grids; print, for each opener, what the runs returned or raised.

Arguments: names of functions in support.paths.
"""

import sys
import threading

import onnxruntime

from support import paths
from support.programs import (
    GRID,
    WRONG_GRID,
    X,
    open_sampling,
    print_for_each_opener,
    shape_or_error,
)

ASYNCHRONOUS_RUNS = 20
#: Every fifth asynchronous run has a wrong grid.
PERIOD = 5


def asynchronous_results(session: onnxruntime.InferenceSession) -> list[tuple[int, ...] | str]:
    """Return the shape or the error of each asynchronous run."""
    results: dict[int, tuple[int, ...] | str] = {}
    finished = threading.Semaphore(0)

    def callback(outputs: list, index: int, error: str) -> None:
        results[index] = error or outputs[0].shape
        finished.release()

    for index in range(ASYNCHRONOUS_RUNS):
        grid = GRID if index % PERIOD else WRONG_GRID
        session.run_async(None, {"X": X, "grid": grid}, callback, index)
    for _ in range(ASYNCHRONOUS_RUNS):
        if not finished.acquire(timeout=60):
            raise TimeoutError(f"only {sorted(results)} have finished")
    return [results[index] for index in range(ASYNCHRONOUS_RUNS)]


def check(open_model: paths.Open) -> dict[str, object]:
    session = open_sampling(open_model)
    results = asynchronous_results(session)
    return {
        "asynchronous, wrong grid": results[::PERIOD],
        "asynchronous, right grid": [
            result for index, result in enumerate(results) if index % PERIOD
        ],
        "wrong grid": shape_or_error(session, X, WRONG_GRID),
        "right grid": shape_or_error(session, X, GRID),
    }


print_for_each_opener(check, sys.argv[1:])
