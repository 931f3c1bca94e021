"""End the interpreter while daemon threads run a session.

Arguments: the name of a function in support.paths, and how the program ends (a key of ``ENDINGS``).
Prints the shape of a run's output just before the end.
"""

import sys
import threading

import onnxruntime

from support import paths
from support.programs import GRID, SLOW_GRID, SLOW_X, X, open_sampling, shape_or_error

THREADS = 3
FEEDS = {"X": SLOW_X, "grid": SLOW_GRID}


def exit_with_7(session: onnxruntime.InferenceSession) -> None:
    sys.exit(7)


def raise_error(session: onnxruntime.InferenceSession) -> None:
    raise ValueError("raised at the end")


def return_normally(session: onnxruntime.InferenceSession) -> None:
    pass


def start_asynchronous_run(session: onnxruntime.InferenceSession) -> None:
    session.run_async(None, FEEDS, lambda *_: None, None)


ENDINGS = {
    function.__name__: function
    for function in (exit_with_7, raise_error, return_normally, start_asynchronous_run)
}


def main(opener: str, ending: str) -> None:
    session = open_sampling(getattr(paths, opener), mode="cubic")
    has_started = threading.Semaphore(0)

    def work() -> None:
        session.run(None, FEEDS)
        has_started.release()
        for _ in range(1000):
            session.run(None, FEEDS)

    for _ in range(THREADS):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(THREADS):
        has_started.acquire()
    print(*shape_or_error(session, X, GRID), flush=True)
    ENDINGS[ending](session)


main(sys.argv[1], sys.argv[2])
