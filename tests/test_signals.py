"""Signals around runs: handlers are the user's own again when a run has ended, and are called on the main thread."""

from __future__ import annotations

import sys
import weakref

import pytest
from onnxruntime import SessionOptions

import ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from processes import PYTHON, WAYS, python, run, run_each

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


#: A signal that comes in an op, or several, whose handlers were set after the session was made.
WAITS = """
calls = []
signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(("called", signum, frame.f_code.co_name)))
print(during_an_op([signal.SIGTERM] * 3, then=lambda: calls.append("op")), calls)
try:
    print(during_an_op([signal.SIGINT]))
except KeyboardInterrupt:
    print("interrupted", attempt(session, X, grid), len(calls))
"""
WAITED = ("(1, 2, 64, 64) ['op', ('called', 15, 'deliver')]", "interrupted (1, 2, 64, 64) 2")

#: Not by registering, nor by a run, nor by a handler that raises while others wait to be put back.
LEAVES_NO_HANDLER = """
print(names())
ogs.register()
print(names(), attempt(session, X, grid), names())
for signums in [signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]:
    try:
        during_an_op(signums)
    except BaseException as error:
        print(type(error).__name__, names(), said)
"""
OWN = "['default_int_handler', 'terminate']"
LEFT_NONE = (
    OWN,
    f"{OWN} (1, 2, 64, 64) {OWN}",
    f"KeyboardInterrupt {OWN} []",
    f"SystemExit {OWN} [(15, True)]",
    f"SystemExit {OWN} [(15, True), (15, True)]",
)

#: The run, and with it the end that puts the handlers back, is not in a child that another thread forks.
FORK = """
import threading
begun, forked, ends = threading.Event(), threading.Event(), []
def fork():
    begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if names() == ["default_int_handler", "terminate"] else 1)
    forked.set()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread = threading.Thread(target=fork)
thread.start()
def meanwhile():
    begun.set()
    forked.wait(60)
print(during_an_op([], then=meanwhile))
thread.join()
print(*ends)
"""

#: A handler that is set during a run stays, and an event loop's is called once.
SET = """
import asyncio
def mine(signum, frame):
    print("mine")
during_an_op([], then=lambda: signal.signal(signal.SIGTERM, mine))
print(names())
calls = []
async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: calls.append("called"))
    print(during_an_op([signal.SIGTERM]))
    await asyncio.sleep(0.2)
asyncio.run(main())
print(calls)
"""
STAYED = ("['default_int_handler', 'mine']", "(1, 2, 64, 64)", "['called']")


#: In onnxruntime's own format, of which onnx reads nothing.
ORT_FORMAT = """
import tempfile
def open_model(model):
    options, path = ogs.register(), tempfile.mkdtemp() + "/patched.ort"
    options.optimized_model_filepath = path
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(ogs.patch_model(model).SerializeToString(), options)
    return ogs.InferenceSession(path)
"""


@HERE
def test_a_signal_waits_where_nobody_knows_what_runs() -> None:
    assert run(ORT_FORMAT + INSIDE + WAITS, "None", storms=True) == list(WAITED)


@HERE
def test_a_waiting_signal_is_delivered_and_no_handler_is_left() -> None:
    answers = run_each(INSIDE + WAITS + HANDLERS + LEAVES_NO_HANDLER + FORK + SET, PYTHON)
    assert answers == dict.fromkeys(PYTHON, (*WAITED, *LEFT_NONE, "(1, 2, 64, 64)", "0", *STAYED))


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


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run handles SIGINT from Python 3.11 on")
def test_asyncio_installs_its_own_handler() -> None:
    expected = ("False", "cancelled (1, 2, 64, 64)", "interrupted True")
    assert run_each(ASYNCIO) == dict.fromkeys(WAYS, expected)


#: Ctrl-C, again and again, while the main thread and others run sessions.
WORKERS = """
import _thread, os, random, signal, threading, time
session, rng, going, caught, elsewhere = make(open_model, mode="cubic"), random.Random(0), True, 0, []
def work():
    while going:
        try:
            session.run(output_names=None, input_feed={"X": X, "grid": grid})
        except BaseException as error:
            elsewhere.append(error)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
def shoot(delay):
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGINT)
for _ in range(TRIES):
    try:
        _thread.start_new_thread(shoot, (rng.uniform(0, 0.02),))
        while True:
            session.run(output_names=None, input_feed={"X": X, "grid": grid})
    except KeyboardInterrupt:
        caught += 1
going = False
for thread in threads:
    thread.join()
print(caught, elsewhere)
"""


@HERE
@pytest.mark.parametrize("tries", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_only_the_main_thread_is_interrupted(tries: int) -> None:
    """And arguments may be named, on every thread."""
    answers = run_each(WORKERS.replace("TRIES", str(tries)), storms=True)
    assert answers == dict.fromkeys(WAYS, (f"{tries} []",))


def test_sessions_of_others_are_left_alone() -> None:
    """A handler is called at once while a plain session of an unregistered model runs, as it always was; and whatever
    of this package is imported again, sessions are wrapped once.
    """
    script = """
import importlib, onnx, onnxruntime, numpy as np, ort_gridsample as ogs
from ort_gridsample.runtime import interrupts, registration
text = '<ir_version: 9, opset_import: ["": 20]> g (float[1] X) => (float[1] Y) { Y = Relu (X) }'
model = onnx.parser.parse_model(text).SerializeToString()
ogs.register()
seen = []
undisturbed = interrupts.undisturbed
interrupts.undisturbed = lambda run, *a, **k: seen.append(run.__name__) or undisturbed(run, *a, **k)
for options in None, onnxruntime.SessionOptions(), ogs.register():
    onnxruntime.InferenceSession(model, options).run(None, {"X": np.ones(1, np.float32)})
print(seen)
bare = [interrupts.bare(getattr(onnxruntime.InferenceSession, name)) for name in ("__init__", "run")]
for _ in range(3):
    importlib.reload(interrupts)
    importlib.reload(registration).register()
print(*[m is interrupts.bare(getattr(onnxruntime.InferenceSession, m.__name__)) for m in bare])
"""
    assert python(script) == ["['register_custom_ops_library', '__init__', 'run']", "True True"]


def test_nothing_of_pythons_runs_when_options_go() -> None:
    """A session ends slowly: what Python runs next would get the signal, and a callback would lose its exception."""
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    session = ogs.InferenceSession(model, nodes="all")
    for each in (ogs.register(), session._sess_options_initial, ogs.register(SessionOptions())):
        references = weakref.getweakrefs(each)
        assert references
        assert all(reference.__callback__ is None for reference in references)
