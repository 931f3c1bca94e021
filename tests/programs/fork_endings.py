"""Fork with a session alive; print how each child ended.

Arguments: how the session is created (a key of ``SESSIONS``), and whether it runs before the forks
(``ran`` or ``idle``). Each line of the output is the name of an ending (of ``ENDINGS``), and
``ended``, or what went wrong. A child that does not end in time is killed.
"""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

# A thread of onnxruntime's telemetry makes a forked child hang at its normal end.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

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


def options_of_two_threads() -> onnxruntime.SessionOptions:
    """Return options of a session whose destructor waits for a thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return options


def package() -> onnxruntime.InferenceSession:
    return ogs.InferenceSession(MODEL, options_of_two_threads(), nodes="all")


def parallel() -> onnxruntime.InferenceSession:
    options = options_of_two_threads()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 2
    return ogs.InferenceSession(MODEL, options, nodes="all")


def plain() -> onnxruntime.InferenceSession:
    ogs.keep_sessions_through_forks()
    ogs.keep_sessions_through_forks()  # the second call changes nothing
    return onnxruntime.InferenceSession(MODEL.SerializeToString(), options_of_two_threads(), CPU)


def plain_before() -> onnxruntime.InferenceSession:
    session = onnxruntime.InferenceSession(MODEL.SerializeToString(), options_of_two_threads(), CPU)
    ogs.keep_sessions_through_forks()
    return session


def patched() -> onnxruntime.InferenceSession:
    ogs.keep_sessions_through_forks()
    return onnxruntime.InferenceSession(
        ogs.patch_model(MODEL).SerializeToString(), ogs.register(options_of_two_threads()), CPU
    )


SESSIONS = {create.__name__: create for create in (package, parallel, plain, plain_before, patched)}

Holder = list[onnxruntime.InferenceSession]


def check(session: onnxruntime.InferenceSession) -> None:
    """Check the output of a session."""
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
    """Check the output of a session of the parent.

    A session with ORT_PARALLEL would wait for threads that the child lacks.
    """
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
    del new  # its threads are in the child
    check(ogs.InferenceSession(MODEL))
    os._exit(0)


def leave(holder: Holder) -> None:
    check_inherited(holder.pop())
    sys.exit(0)


def end(holder: Holder) -> None:
    holder.clear()


def fork_again(holder: Holder) -> None:
    holder.append(SESSIONS[sys.argv[1]]())
    outcome = outcome_of(drop, holder)
    if outcome != "ended":
        print("grandchild:", outcome, flush=True)
    os._exit(int(outcome != "ended"))


ENDINGS = (drop, drop_a_binding, collect_a_cycle, replace, run_and_open, leave, end, fork_again)


class IsChildError(Exception):
    """A child reaches the end of the program."""


def outcome_of(ending: Callable[[Holder], None], holder: Holder) -> str:
    """Fork a child that calls ``ending`` with the session in ``holder``; return how it ended."""
    child = os.fork()
    if child == 0:
        ending(holder)
        raise IsChildError
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return "ended" if code == 0 else f"exit status {code}"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"killed after {LIMIT} seconds"


def main() -> None:
    session = SESSIONS[sys.argv[1]]()
    if sys.argv[2] == "ran":
        check(session)
    holder = [session]
    del session
    for ending in ENDINGS:
        print(ending.__name__, outcome_of(ending, holder), flush=True)
        check(holder[0])


if __name__ == "__main__":
    with suppress(IsChildError):  # a child continues to the normal end of the interpreter
        main()
