"""Errors, threads, forks, signals and the end of the interpreter, in processes of their own."""

import json
import random
import signal
import sys
import time
import weakref
from itertools import cycle, product

import pytest
from onnxruntime import SessionOptions

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.parameters import with_slow
from support.paths import needs_python_ops
from support.processes import (
    COMPILED_OPENERS,
    OPENERS,
    PYTHON_OPENERS,
    run_json_program,
    run_on_openers,
    run_program,
    start_program,
)

#: The shape of Y for the feeds of support.programs.
Y_SHAPE = [1, 2, 64, 64]
NODE = "GridSample node 'sample0'"


# --- Errors ---


def test_session_after_wrong_grids_names_the_node_and_runs_on() -> None:
    for opener, result in run_on_openers("session_errors.py").items():
        # A plain session of Python ops only reports which node has failed.
        is_plain = opener == "open_patched_file"
        message = f"rejected the input of {NODE}" if is_plain else f"{NODE}: grid is of shape (3, "
        assert message in result["wrong grid"], opener
        assert result["right grid"] == Y_SHAPE, opener
        assert all("GridSample node" in error for error in result["asynchronous, wrong grid"])
        assert result["asynchronous, right grid"] == [Y_SHAPE] * 16, opener


@needs_python_ops
def test_exception_in_python_op_is_raised_by_run_and_session_runs_on() -> None:
    results = run_on_openers("exceptions_in_python_op.py", openers=PYTHON_OPENERS)
    for opener, runs in results.items():
        message = "rejected" if opener == "open_patched_file" else "broken on purpose"
        assert len(runs) == 5
        assert all(message in run["raised"] for run in runs), runs
        assert all(run["next run"] == Y_SHAPE for run in runs), runs


@needs_python_ops
def test_full_stack_in_run_raises_recursion_error() -> None:
    results, shape_afterwards = run_json_program("full_stack.py")
    assert results == [str(tuple(Y_SHAPE)), "RecursionError"]
    assert shape_afterwards == Y_SHAPE


# --- Threads and other packages ---

#: Whether threads share a session, and the session's execution mode.
THREADING = [*product((True, False), ("ORT_SEQUENTIAL", "ORT_PARALLEL"))]


@pytest.mark.parametrize(
    ("runs", "cases"),
    [
        (1, [*zip(OPENERS, THREADING, strict=False)]),
        pytest.param(6, [*product(OPENERS, THREADING)], marks=pytest.mark.slow),
    ],
    ids=["one run", "six runs"],
)
def test_sixteen_threads_get_their_own_outputs_and_errors(
    runs: int, cases: list[tuple[str, tuple[bool, str]]]
) -> None:
    arguments = [(opener, is_shared, mode) for opener, (is_shared, mode) in cases]
    failures = run_json_program("sixteen_threads.py", str(runs), json.dumps(arguments))
    assert failures == [[]] * len(cases)


@needs_python_ops
def test_python_ops_of_other_packages_run_before_and_after_ours() -> None:
    before, after, results = run_json_program("other_python_ops.py", *OPENERS)
    assert before == after == [2.0, 2.0, 2.0]
    assert [opener for opener, _, _ in results] == OPENERS * 2
    for opener, shape, error in results:
        message = "rejected" if opener == "open_patched_file" else "of shape (3, 64, 64, 2)"
        assert shape == Y_SHAPE, opener
        assert message in error, opener


# --- Forks ---


@pytest.mark.slow
def test_session_in_children_of_each_start_method_is_right() -> None:
    lines = run_program("start_methods.py")
    assert lines == ["fork True True", "spawn True True", "forkserver True True"]


@pytest.mark.parametrize("forks", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_child_forked_during_runs_of_other_threads_ends(forks: int) -> None:
    """The child lacks these threads, so it must not wait for them."""
    results = run_on_openers("fork_during_runs.py", str(forks))
    expected = {"exit statuses": [0] * forks, "asynchronous runs": 0}
    assert results == dict.fromkeys(OPENERS, expected)


# --- The end of the interpreter ---

#: The exit status of each ending of end_during_runs.py in which only daemon threads run a session.
EXIT_STATUSES = {"exit_with_7": 7, "raise_error": 1, "return_normally": 0}
QUICK_ENDINGS = [
    # A plain session does not report that an asynchronous run has started.
    ("open_session" if PYTHON_OPENERS else "open_compiled", "start_asynchronous_run"),
    *((opener, "exit_with_7") for opener in PYTHON_OPENERS[1:]),
]
#: Without plain sessions of compiled ops: there onnxruntime aborts at the end, as without this
#: package.
ALL_ENDINGS = [*product([*PYTHON_OPENERS, *COMPILED_OPENERS[:1]], EXIT_STATUSES)]
ENDINGS = [*QUICK_ENDINGS, *(case for case in ALL_ENDINGS if case not in QUICK_ENDINGS)]


@with_slow("opener,ending", ENDINGS, QUICK_ENDINGS)
def test_interpreter_ends_normally_while_runs_are_in_flight(opener: str, ending: str) -> None:
    with start_program("end_during_runs.py", opener, ending, measures_coverage=False) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == EXIT_STATUSES.get(ending, 0), err
    assert out.split() == [str(length) for length in Y_SHAPE], err


@needs_python_ops
def test_run_in_exit_handler_is_refused_only_after_the_ops_have_ended() -> None:
    """In this package's session. No run starts in another thread then."""
    *results, after_the_ops = run_program("runs_in_exit_handlers.py", *OPENERS)
    assert results == [f"{name} {tuple(Y_SHAPE)}" for name in [*OPENERS, "before the ops end"]]
    assert after_the_ops.startswith("after the ops RuntimeError: Python ops have already ended")


@pytest.mark.skipif(not COMPILED_OPENERS, reason="there are no compiled ops")
def test_exit_handler_runs_compiled_ops_asynchronously() -> None:
    assert run_json_program("asynchronous_run_at_exit.py") == Y_SHAPE


# --- Signals ---

needs_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="a process of Windows cannot be sent signals"
)


@needs_signals
@pytest.mark.parametrize("count", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_every_signal_during_runs_and_creation_raises_on_the_main_thread_only(count: int) -> None:
    """Also while kernels of compiled ops are compiled, and for a handler that was set later."""
    results = run_on_openers("signals_during_runs.py", str(count), measures_coverage=False)
    expected = {
        "SIGINT": [count, Y_SHAPE],
        "SIGTERM": [count, Y_SHAPE],
        "errors in threads": [],
    }
    assert results == dict.fromkeys(OPENERS, expected)


SIGNALLED = [*zip(OPENERS, cycle((signal.SIGINT, signal.SIGTERM)), strict=False)]


@needs_signals
@with_slow("opener,signum", SIGNALLED, SIGNALLED[:1])
def test_signal_without_handler_during_runs_ends_the_process(
    opener: str, signum: signal.Signals
) -> None:
    with start_program("run_forever.py", opener, measures_coverage=False) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(random.Random(int(signum)).uniform(0, 0.1))
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signum, err
    if signum == signal.SIGINT:
        assert "KeyboardInterrupt" in err


#: The results of the scenarios of signals_in_python_op.py.
SIGNALS_IN_PYTHON_OP = {
    "signal_sent_three_times": [Y_SHAPE, "op", ["handler", int(signal.SIGTERM), True]],
    "interrupt": ["KeyboardInterrupt", Y_SHAPE],
    "handlers_after_registration_and_run": [["default_int_handler", "default_int_handler"]] * 3,
    "handlers_that_raise": [
        ["KeyboardInterrupt", ["default_int_handler", "terminate"], []],
        ["SystemExit", ["default_int_handler", "terminate"], [[int(signal.SIGTERM), True]]],
        ["SystemExit", ["default_int_handler", "terminate"], [[int(signal.SIGTERM), True]]],
    ],
    "fork_in_another_thread": [Y_SHAPE, 0],
    "handler_set_in_op": ["default_int_handler", "new_handler"],
    "handler_of_event_loop": [Y_SHAPE, "called"],
}


@needs_python_ops
@needs_signals
def test_signal_in_python_op_is_handled_after_the_run_and_handlers_are_restored() -> None:
    results = run_on_openers("signals_in_python_op.py", openers=PYTHON_OPENERS)
    for opener in PYTHON_OPENERS:
        assert results[opener] == SIGNALS_IN_PYTHON_OP


@needs_python_ops
@needs_signals
def test_signal_in_python_op_of_ort_format_is_handled_after_the_run() -> None:
    results = run_on_openers(
        "signals_in_python_op.py", openers=["open_ort_format"], measures_coverage=False
    )
    assert results["open_ort_format"] == SIGNALS_IN_PYTHON_OP


@needs_python_ops
@needs_signals
def test_interrupt_handler_of_asyncio_cancels_the_main_task() -> None:
    expected = {
        "default handler in loop": False,
        "run after cancellation": Y_SHAPE,
        "default handler after interrupt": True,
    }
    assert run_on_openers("asyncio_interrupt.py") == dict.fromkeys(OPENERS, expected)


def test_plain_session_without_registered_options_defers_no_signals() -> None:
    """Methods are wrapped once, even if the modules are reloaded."""
    deferred_methods, are_wrapped_once = run_json_program("plain_sessions.py")
    assert deferred_methods == ["__init__"]
    assert are_wrapped_once == [True, True]


def test_references_to_options_have_no_callback() -> None:
    """A signal during the destruction of a session would raise in it, and be lost."""
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    session = ogs.InferenceSession(model, nodes="all")
    for options in (ogs.register(), session._sess_options_initial, ogs.register(SessionOptions())):
        references = weakref.getweakrefs(options)
        assert {reference.__callback__ for reference in references} == {None}
