"""Signals around runs: handlers are the user's own again when a run has ended, and are called on the main thread."""

from __future__ import annotations

import sys
import weakref

import pytest
from onnxruntime import SessionOptions

import ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from processes import both, every_way, python, run

HERE = pytest.mark.skipif(sys.platform == "win32", reason="no signal can be sent there")

#: Sends a signal from inside the op, where a handler that raises would end the process.
INSIDE = """
import os, signal
import ort_gridsample.runtime.python_ops.ops as ops
session, function = make(open_model), ops.grid_sample
def during_an_op(signums, then=lambda: None):
    def grid_sample(*args, **kwargs):
        for signum in signums:
            signal.raise_signal(signum)
        then()
        return function(*args, **kwargs)
    ops.grid_sample = grid_sample
    try:
        return attempt(session, X, grid)
    finally:
        ops.grid_sample = function
def names():
    return [getattr(signal.getsignal(s), "__name__", "?") for s in (signal.SIGINT, signal.SIGTERM)]
"""

HANDLERS = """
said = []
def terminate(signum, frame):
    said.append((signum, frame is not None))
    raise SystemExit(3)
signal.signal(signal.SIGTERM, terminate)
"""


@both
def test_a_signal_that_waits_is_delivered_when_the_run_returns(open_model: str) -> None:
    script = """
calls = []
signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(("called", signum, frame.f_code.co_name)))
print(during_an_op([signal.SIGTERM] * 3, then=lambda: calls.append("op")), calls)
try:
    print(during_an_op([signal.SIGINT]))
except KeyboardInterrupt:
    print("interrupted", attempt(session, X, grid), len(calls))
"""
    first, second = run(INSIDE + script, open_model)
    assert first == "(1, 2, 64, 64) ['op', ('called', 15, 'deliver')]"
    assert second == "interrupted (1, 2, 64, 64) 2"


@both
def test_no_handler_is_left_installed(open_model: str) -> None:
    """Not by registering, nor by a run, nor by a handler that raises while others wait to be put back."""
    script = """
print(names())
ogs.register()
print(names(), attempt(session, X, grid), names())
for signums in [signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]:
    try:
        during_an_op(signums)
    except BaseException as error:
        print(type(error).__name__, names(), said)
"""
    lines = run(INSIDE + HANDLERS + script, open_model)
    own = "['default_int_handler', 'terminate']"
    assert lines == [
        own,
        f"{own} (1, 2, 64, 64) {own}",
        f"KeyboardInterrupt {own} []",
        f"SystemExit {own} [(15, True)]",
        f"SystemExit {own} [(15, True), (15, True)]",
    ]


@both
def test_a_handler_that_is_set_during_a_run_stays(open_model: str) -> None:
    script = """
def mine(signum, frame):
    print("mine")
during_an_op([], then=lambda: signal.signal(signal.SIGTERM, mine))
print(names())
"""
    assert run(INSIDE + HANDLERS + script, open_model) == ["['default_int_handler', 'mine']"]


@both
def test_a_handler_that_is_set_late_waits_too(open_model: str) -> None:
    assert run(INSIDE + HANDLERS + "try:\n    during_an_op([15])\nexcept SystemExit:\n    print(said)", open_model) == [
        "[(15, True)]"
    ]


ASYNCIO = """
import asyncio, os, signal, threading
session = make(open_model)
attempt(session, X, grid)
ogs.register()
async def main():
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    try:
        attempt(session, X, grid)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        print("cancelled", attempt(session, X, grid))
        raise
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@every_way
@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run handles SIGINT from Python 3.11 on")
def test_asyncio_installs_its_own_handler(open_model: str) -> None:
    assert run(ASYNCIO, open_model) == ["False", "cancelled (1, 2, 64, 64)", "interrupted True"]


LOOP = """
import asyncio
calls = []
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: calls.append("called"))
    print(during_an_op([signal.SIGTERM]))
    await asyncio.sleep(0.2)
asyncio.run(main())
print(calls)
"""


@both
@HERE
def test_a_signal_handler_of_an_event_loop_is_called_once(open_model: str) -> None:
    assert run(INSIDE + LOOP, open_model) == ["(1, 2, 64, 64)", "['called']"]


#: Ctrl-C, again and again, while the main thread and others run sessions.
WORKERS = """
import _thread, os, random, signal, threading, time
session, rng, going, caught, elsewhere = make(open_model, mode="cubic"), random.Random(0), True, 0, []
def work():
    while going:
        try:
            session.run(None, {"X": X, "grid": grid})
        except BaseException as error:
            elsewhere.append(error)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
def shoot(delay):
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)
for _ in range(20):
    try:
        _thread.start_new_thread(shoot, (rng.uniform(0, 0.02),))
        while True:
            session.run(None, {"X": X, "grid": grid})
    except KeyboardInterrupt:
        caught += 1
going = False
for thread in threads:
    thread.join()
print(caught, elsewhere)
"""


@every_way
@HERE
def test_only_the_main_thread_is_interrupted(open_model: str) -> None:
    assert run(WORKERS, open_model, storms=True) == ["20 []"]


FORK = """
import threading
begun, forked = threading.Event(), threading.Event()
def fork():
    begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if names() == ["default_int_handler", "terminate"] else 1)
    forked.set()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ends = []
thread = threading.Thread(target=fork)
thread.start()
def meanwhile():
    begun.set()
    forked.wait(60)
print(during_an_op([], then=meanwhile))
thread.join()
print(*ends)
"""


@both
@HERE
def test_a_fork_during_a_run_has_the_handlers_of_before(open_model: str) -> None:
    """The run, and with it the end that puts them back, is not in the child."""
    assert run(INSIDE + HANDLERS + FORK, open_model) == ["(1, 2, 64, 64)", "0"]


def test_sessions_of_others_are_left_alone() -> None:
    """A handler is called at once while a plain session of an unregistered model runs, as it always was."""
    script = """
import signal
import numpy as np, onnxruntime, ort_gridsample as ogs
from models import make_model
from onnx import helper
model = make_model([helper.make_node("Relu", ["X"], ["Y"])], {"X": ("float32", [1])}, {"Y": ("float32", [1])}, 20)
ogs.register()
from ort_gridsample.runtime import interrupts
seen = []
undisturbed = interrupts.undisturbed
interrupts.undisturbed = lambda run, *a, **k: seen.append(run.__name__) or undisturbed(run, *a, **k)
for options in None, onnxruntime.SessionOptions(), ogs.register():
    onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"X": np.ones(1, np.float32)})
print(seen)
"""
    assert python(script) == ["['register_custom_ops_library', '__init__', 'run']"]


def test_nothing_of_pythons_runs_when_options_go() -> None:
    """A session ends slowly: what Python runs next would get the signal, and a callback would lose its exception."""
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    options = ogs.register()
    for each in (
        options,
        ogs.InferenceSession(model, nodes="all")._sess_options_initial,
        ogs.register(SessionOptions()),
    ):
        references = weakref.getweakrefs(each)
        assert references
        assert all(reference.__callback__ is None for reference in references)


def test_sessions_are_wrapped_once() -> None:
    """Whatever of this package is imported again."""
    script = """
import importlib, onnxruntime
import ort_gridsample as ogs
from ort_gridsample.runtime import interrupts, registration
ogs.register()
bare = [interrupts.bare(getattr(onnxruntime.InferenceSession, name)) for name in ("__init__", "run")]
for _ in range(3):
    importlib.reload(interrupts)
    importlib.reload(registration).register()
print(*[m is interrupts.bare(getattr(onnxruntime.InferenceSession, m.__name__)) for m in bare])
"""
    assert python(script) == ["True True"]


@both
def test_every_thread_may_name_its_arguments(open_model: str) -> None:
    script = """
import threading
session, answers = make(open_model), []
def work():
    answers.append(session.run(output_names=None, input_feed={"X": X, "grid": grid})[0].shape)
thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
print(answers)
"""
    assert run(script, open_model) == ["[(1, 2, 64, 64), (1, 2, 64, 64)]"]
