"""Run sessions in exit handlers, and in a thread while the interpreter ends; print the results.

Arguments: names of functions in support.paths.

Exit handlers are called from the last registered to the first. The first two handlers here are
called after the handlers of the Python ops, as they are registered before these ops are loaded. The
third is called after other threads may no longer start runs, and before the Python ops end. The
last is called before everything else.
"""

import atexit
import sys
import threading
import time

have_ops_ended = threading.Event()


def let_thread_run() -> None:
    have_ops_ended.set()
    time.sleep(0.3)


def run_after_the_ops() -> None:
    print("after the ops", shape_or_error(sessions["open_session"], X, GRID))


def run_before_the_ops_end() -> None:
    print("before the ops end", shape_or_error(sessions["open_patched_file"], X, GRID))


def run_first() -> None:
    for name, session in sessions.items():
        print(name, shape_or_error(session, X, GRID))


atexit.register(let_thread_run)
atexit.register(run_after_the_ops)
import onnxruntime_extensions  # noqa: E402, F401

atexit.register(run_before_the_ops_end)
from ort_gridsample import InferenceSession  # noqa: E402, F401

atexit.register(run_first)

from support import paths  # noqa: E402
from support.programs import GRID, X, open_sampling, shape_or_error  # noqa: E402


def run_in_thread() -> None:
    have_ops_ended.wait()
    print("in a thread", shape_or_error(sessions["open_session"], X, GRID), flush=True)


sessions = {name: open_sampling(getattr(paths, name)) for name in sys.argv[1:]}
threading.Thread(target=run_in_thread, daemon=True).start()
