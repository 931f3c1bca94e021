"""Nothing that goes wrong in an op ends the process: each case runs in one of its own, which an abort would end."""

from __future__ import annotations

import random
import signal
import time

import pytest

from processes import both, every_way, run, start

REJECTED = {
    "open_session": "GridSample node 'sample0': grid is of shape (3, 64, 64, 2)",
    "open_patched_file": "ort_gridsample rejected the input of GridSample node 'sample0'",
    "open_compiled": "GridSample node 'sample0': grid is of shape (3, 64, 64, 2)",
    "open_compiled_file": "GridSample node 'sample0': grid is of shape (3, 64, 64, 2)",
}


@every_way
def test_wrong_grid(open_model: str) -> None:
    wrong, right = run(
        "session = make(open_model)\nprint(attempt(session, X, grid[[0] * 3]))\nprint(attempt(session, X, grid))",
        open_model,
    )
    assert REJECTED[open_model] in wrong
    assert right == "(1, 2, 64, 64)"


@every_way
def test_half_precision(open_model: str) -> None:
    script = """
print(attempt(make(open_model, "float16"), X.astype("float16"), grid))
print(attempt(make(open_model, "bfloat16"), X, grid))
"""
    assert run(script, open_model) == ["(1, 2, 64, 64)"] * 2


EXCEPTIONS = """
import ort_gridsample.runtime.python_ops.ops as ops
session, function = make(open_model), ops.grid_sample
for exception in ValueError, MemoryError, KeyboardInterrupt, SystemExit, RecursionError:
    def broken(*args, **kwargs):
        raise exception("broken on purpose")
    ops.grid_sample = broken
    try:
        print(attempt(session, X, grid))
    except BaseException as error:
        print(type(error).__name__, error)
    ops.grid_sample = function
    print(attempt(session, X, grid))
"""


@both
def test_exception_in_the_core(open_model: str) -> None:
    lines = run(EXCEPTIONS, open_model)
    sentence = "broken on purpose" if open_model == "open_session" else "ort_gridsample rejected"
    assert [sentence in line for line in lines[::2]] == [True] * 5, lines
    assert lines[1::2] == ["(1, 2, 64, 64)"] * 5


INTERRUPTED = """
session = make(open_model, mode="cubic")
print("ready", flush=True)
try:
    while True:
        session.run(None, {"X": X, "grid": grid})
except KeyboardInterrupt:
    print("interrupted", attempt(session, X, grid))
except SystemExit:
    print("terminated", attempt(session, X, grid))
"""


@every_way
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_arrive_after_the_run(open_model: str, signum: signal.Signals) -> None:
    handler = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    with start(handler + INTERRUPTED, open_model) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0, 0.1))
        process.send_signal(signum)
        out, err = process.communicate(timeout=60)
    word = "interrupted" if signum == signal.SIGINT else "terminated"
    assert (process.returncode, out) == (0, f"{word} (1, 2, 64, 64)\n"), err
