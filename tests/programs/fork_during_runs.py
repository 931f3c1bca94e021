"""Fork while other threads run a session; print, for each opener, how the children ended.

Arguments: the number of forks, and names of functions in support.paths. The results are the exit
statuses of the children, and the number of asynchronous runs at the end.
"""

import os
import signal
import sys
import threading

from ort_gridsample.custom_ops.python_ops import shutdown
from support import paths
from support.programs import (
    GRID,
    SLOW_GRID,
    SLOW_X,
    X,
    open_sampling,
    print_for_each_opener,
    shape_or_error,
)

#: Seconds that a child may take.
LIMIT = 30


def run_in_child(open_model: paths.Open) -> int:
    """Return the exit status of a child that opens and runs a session.

    The asynchronous run of the parent is not in the child, whose end must not wait for it.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        has_failed = True
        try:
            shape = shape_or_error(open_sampling(open_model), X, GRID)
            has_failed = shutdown.asynchronous_runs() != 0 or shape != X.shape
        finally:
            # As children of multiprocessing end: onnxruntime would wait for threads that were not
            # forked.
            os._exit(int(has_failed))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check(open_model: paths.Open) -> dict[str, object]:
    shutdown.begin_asynchronous_run()
    session = open_sampling(open_model, mode="cubic")
    # A fork inside an import leaves the module locked in the child, so import everything first.
    shape_or_error(session, X, GRID)
    is_stopping = threading.Event()

    def work() -> None:
        while not is_stopping.is_set():
            session.run(None, {"X": SLOW_X, "grid": SLOW_GRID})

    threads = [threading.Thread(target=work, daemon=True) for _ in range((os.cpu_count() or 1) + 1)]
    for thread in threads:
        thread.start()
    statuses = [run_in_child(open_model) for _ in range(FORKS)]
    is_stopping.set()
    for thread in threads:
        thread.join()
    shutdown.end_asynchronous_run()
    return {"exit statuses": statuses, "asynchronous runs": shutdown.asynchronous_runs()}


FORKS = int(sys.argv[1])
print_for_each_opener(check, sys.argv[2:])
