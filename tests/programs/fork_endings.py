"""Fork with a session alive; print how each child ended.

Arguments: how the session is made (a key of ``SESSIONS``), and whether it runs before the forks (``ran`` or ``idle``).
Each line of the output is the name of an ending, and ``right``, or what went wrong. A child that does not end in time
is killed.
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # its thread makes a forked child hang at its normal end
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model

#: Seconds that a child may take.
LIMIT = 60
MODEL = grid_sample_model("float32", "float32", 2, [Attributes()])
FEEDS = {"X": np.ones((1, 8, 64, 64), np.float32), "grid": np.zeros((1, 64, 64, 2), np.float32)}
CPU = ["CPUExecutionProvider"]


def two_threads() -> onnxruntime.SessionOptions:
    """Options of a session with a thread of its own, which its destructor waits for."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return options


def own() -> onnxruntime.InferenceSession:
    return ogs.InferenceSession(MODEL, two_threads(), nodes="all")


def parallel() -> onnxruntime.InferenceSession:
    options = two_threads()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 2
    return ogs.InferenceSession(MODEL, options, nodes="all")


def plain() -> onnxruntime.InferenceSession:
    ogs.keep_sessions_through_forks()
    ogs.keep_sessions_through_forks()  # the second call changes nothing
    return onnxruntime.InferenceSession(MODEL.SerializeToString(), two_threads(), CPU)


def plain_before() -> onnxruntime.InferenceSession:
    session = onnxruntime.InferenceSession(MODEL.SerializeToString(), two_threads(), CPU)
    ogs.keep_sessions_through_forks()
    return session


def patched() -> onnxruntime.InferenceSession:
    ogs.keep_sessions_through_forks()
    return onnxruntime.InferenceSession(
        ogs.patch_model(MODEL).SerializeToString(), ogs.register(two_threads()), CPU
    )


SESSIONS = {each.__name__: each for each in (own, parallel, plain, plain_before, patched)}

Holder = list[onnxruntime.InferenceSession]


def check(session: onnxruntime.InferenceSession) -> None:
    """Run a session, and compare its answer."""
    assert np.array_equal(session.run(None, FEEDS)[0], FEEDS["X"])


def drop(holder: Holder) -> None:
    holder.clear()
    gc.collect()
    os._exit(0)


def drop_a_binding(holder: Holder) -> None:
    binding = holder[0].io_binding()
    binding.bind_cpu_input("X", FEEDS["X"])
    holder.clear()
    del binding
    gc.collect()
    os._exit(0)


def collect_a_cycle(holder: Holder) -> None:
    cycle = [holder.pop()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    os._exit(0)


def check_inherited(session: onnxruntime.InferenceSession) -> None:
    """Run a session of the parent's; one that runs nodes in parallel waits for threads that the child does not have."""
    if session.get_session_options().execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL:
        check(session)


def replace(holder: Holder) -> None:
    holder[0].set_providers(CPU)
    check(holder[0])
    holder[0] = SESSIONS[sys.argv[1]]()
    check(holder[0])
    os._exit(0)


def run_and_open(holder: Holder) -> None:
    check_inherited(holder[0])
    new = SESSIONS[sys.argv[1]]()
    check(new)
    del new  # the child's own session has its threads
    check(ogs.InferenceSession(MODEL))
    os._exit(0)


def leave(holder: Holder) -> None:
    check_inherited(holder.pop())
    sys.exit(0)


def end(holder: Holder) -> None:
    holder.clear()


def fork_again(holder: Holder) -> None:
    holder.append(SESSIONS[sys.argv[1]]())
    status = ending_of(drop, holder)
    print("a grandchild ended", status, flush=True) if status != "right" else None
    os._exit(status != "right")


ENDINGS = (drop, drop_a_binding, collect_a_cycle, replace, run_and_open, leave, end, fork_again)


class IsChildError(Exception):
    """Raised in a child that ends as a program does."""


def ending_of(action: Callable[[Holder], None], holder: Holder) -> str:
    """How a child ends that does ``action`` with the session in ``holder``."""
    child = os.fork()
    if child == 0:
        action(holder)
        raise IsChildError
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return "right" if code == 0 else f"exit status {code}"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"still there after {LIMIT} seconds"


def main() -> None:
    session = SESSIONS[sys.argv[1]]()
    if sys.argv[2] == "ran":
        check(session)
    holder = [session]
    del session
    for action in ENDINGS:
        print(action.__name__, ending_of(action, holder), flush=True)
        check(holder[0])  # the parent goes on


if __name__ == "__main__":
    with suppress(IsChildError):  # a child goes on to the normal end of the interpreter
        main()
