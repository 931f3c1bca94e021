"""Send this process signals while it opens and runs sessions; print how many raised an exception.

Arguments: the number of signals of each kind, and names of functions in support.paths. Two other
threads run a session at the same time; no exception may be raised in them.
"""

import _thread
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import onnxruntime

import ort_gridsample as ogs
from support import paths
from support.cases import Attributes
from support.models import grid_sample_model
from support.programs import (
    GRID,
    X,
    open_sampling,
    print_for_each_opener,
    restore_interrupt_handler,
    shape_or_error,
)

THREADS = 2
EXCEPTIONS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}
rng = random.Random(0)
#: The targets of the openers that write and read a file.
FILE_TARGETS = {"open_patched_file": "ort_gridsample", "open_compiled_file": "compiled"}
SessionFactory = Callable[[], onnxruntime.InferenceSession]


def session_factory(open_model: paths.Open) -> SessionFactory:
    """Return a function that opens a session as ``open_model`` does, but without a file.

    If a signal interrupts the deletion of a temporary folder, shutil closes a descriptor twice, and
    raises an OSError instead of the handler's exception.
    """
    target = FILE_TARGETS.get(open_model.__name__)
    if target is None:
        return partial(open_sampling, open_model, mode="cubic")
    model = grid_sample_model("float32", "float32", 2, [Attributes("cubic")])
    patched = ogs.patch_model(model, target=target).SerializeToString()
    return lambda: onnxruntime.InferenceSession(
        patched, ogs.register(paths.quiet_options()), providers=["CPUExecutionProvider"]
    )


def kill_later(delay: float, signum: signal.Signals) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signum)


def count_interrupts(new_session: SessionFactory, signum: signal.Signals) -> int:
    """Send signals one after another; return how many raised the exception of their handler."""
    count = 0
    session = new_session()
    for _ in range(SIGNALS):
        try:
            # Thread.start could be interrupted.
            _thread.start_new_thread(kill_later, (rng.uniform(0, 0.02), signum))
            while True:
                if rng.random() < 0.2:
                    session = new_session()
                session.run(None, {"X": X, "grid": GRID})
        except (KeyboardInterrupt, SystemExit) as error:
            count += isinstance(error, EXCEPTIONS[signum])
    return count


def check(open_model: paths.Open) -> dict[str, object]:
    new_session = session_factory(open_model)
    session = new_session()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    is_stopping = threading.Event()
    errors_in_threads: list[str] = []

    def work() -> None:
        while not is_stopping.is_set():
            try:
                session.run(output_names=None, input_feed={"X": X, "grid": GRID})
            except BaseException as error:
                errors_in_threads.append(repr(error))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    results: dict[str, object] = {}
    for signum in EXCEPTIONS:
        count = count_interrupts(new_session, signum)
        results[signum.name] = [count, shape_or_error(session, X, GRID)]
    is_stopping.set()
    for thread in threads:
        thread.join()
    return {**results, "errors in threads": errors_in_threads}


SIGNALS = int(sys.argv[1])
restore_interrupt_handler()
print_for_each_opener(check, sys.argv[2:])
