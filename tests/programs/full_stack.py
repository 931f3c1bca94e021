"""Run a session at every depth of a small stack.

Prints in JSON the different results, and the shape of a run's output afterwards.
"""

import json
import sys

import onnxruntime

from support.paths import open_session
from support.programs import GRID, X, open_sampling, shape_or_error

RECURSION_LIMIT = 250


def run_at_depth(session: onnxruntime.InferenceSession, depth: int) -> tuple[int, ...]:
    if depth:
        return run_at_depth(session, depth - 1)
    return session.run(None, {"X": X, "grid": GRID})[0].shape


def main() -> None:
    session = open_sampling(open_session)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    results = set()
    for depth in range(100, RECURSION_LIMIT):
        try:
            results.add(str(run_at_depth(session, depth)))
        except RecursionError:
            results.add("RecursionError")
    sys.setrecursionlimit(limit)
    print(json.dumps([sorted(results), shape_or_error(session, X, GRID)]))


main()
