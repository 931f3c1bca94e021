"""Errors, threads, processes, signals and the interpreter's end: right answers, and ends that are Python's own."""

import random
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path

import pytest
from onnxruntime import SessionOptions

import ort_gridsample as ogs
from conftest import with_slow
from ort_gridsample.custom_ops import signals
from support.cases import Attributes
from support.models import grid_sample_model
from support.paths import needs_python_ops
from support.processes import COMPILED, PREAMBLE, PYTHON, WAYS, python, run, run_each, started

SHAPE = "(1, 2, 64, 64)"


def test_wrong_grid_and_exceptions_in_the_core() -> None:
    """Wrong grids, of a run and of twenty asynchronous ones; what an op raises on purpose, where Python runs."""
    script = """
import threading
session, ops = make(open_model), ogs
if RAISED:
    import ort_gridsample.custom_ops.python_ops.ops as ops
function = ops.grid_sample
done, seen = threading.Semaphore(0), {}
def callback(results, i, error):
    seen[i] = error if error else results[0].shape
    done.release()
for i in range(20):
    session.run_async(None, {"X": X, "grid": grid[[0] * (2 if i % 5 == 0 else 1)]}, callback, i)
print(all(done.acquire(timeout=60) for i in range(20)))
print(all(seen[i] == X.shape if i % 5 else "GridSample node" in seen[i] for i in range(20)))
print(attempt(session, X, grid[[0] * 3]))
print(attempt(session, X, grid))
for exception in (ValueError, MemoryError, KeyboardInterrupt, SystemExit, RecursionError)[:RAISED]:
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
    answers = run_each(
        script.replace("RAISED", "(5 if open_model in (open_session, open_patched_file) else 0)")
    )
    assert list(answers) == WAYS
    node = "GridSample node 'sample0'"
    for way, (all_ended, as_they_should, wrong, *raised) in answers.items():
        assert (all_ended, as_they_should) == ("True", "True"), way
        plain = way == "open_patched_file"  # which says no more than which node it was
        assert (
            f"rejected the input of {node}" if plain else f"{node}: grid is of shape (3, 64, 64, 2)"
        ) in wrong, way
        sentence = "ort_gridsample rejected" if plain else "broken on purpose"
        assert [sentence in line for line in raised[1::2]] == [True] * (
            5 if way in PYTHON else 0
        ), (way, raised)
        assert set(raised[::2]) == {SHAPE}, way


@pytest.mark.parametrize("runs", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_sixteen_threads_get_their_own_answers_and_errors(runs: int) -> None:
    """On one session, or each on its own; and where one runs nodes side by side."""
    threads = """
import threading
rng = np.random.default_rng(0)
X = rng.normal(size=(1, 3, 96, 96)).astype(np.float32)
grids = rng.uniform(-1.2, 1.2, (16, 1, 64, 64, 2)).astype(np.float32)
expected = [[ogs.grid_sample(X, grid, mode) for mode in ("linear", "cubic")] for grid in grids]
model = grid_sample_model("float32", "float32", 2, [Attributes("linear"), Attributes("cubic")])
def open_one():
    if open_model in (open_session, open_compiled):
        return ogs.InferenceSession(model, options, nodes="all")
    patched = ogs.patch_model(model, target="compiled" if compiled else "ort_gridsample")
    return onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register(options))
def work(i):
    session = one if shared else open_one()
    for k in range(RUNS):
        if (i + k) % 4 == 0:  # this thread's own mistake, of a size of its own
            said = attempt(session, X, np.zeros((2 + i, 3, 3, 2), np.float32))
            if "rejected" not in said and f"({2 + i}, 3, 3, 2)" not in said:
                wrong.append(said)
        try:
            answers = session.run(None, {"X": X, "grid": grids[i]})
            np.testing.assert_array_equal(answers, expected[i])
        except BaseException as error:
            wrong.append(error)
for open_model, shared, mode in CASES:
    compiled, wrong, options = open_model in (open_compiled, open_compiled_file), [], onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 2
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    ogs.set_ops("compiled" if compiled else "python")
    one = open_one()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(threads), wrong)
"""
    how = [*product((True, False), ("ORT_SEQUENTIAL", "ORT_PARALLEL"))]
    cases = [*product(WAYS, how)] if runs > 1 else [*zip(WAYS, how, strict=False)]
    listed = "".join(f"({way}, {shared}, {mode!r}), " for way, (shared, mode) in cases)
    script = threads.replace("CASES", f"[{listed}]").replace("RUNS", str(runs))
    assert run(script, "None") == ["16 []"] * len(cases)


@needs_python_ops
def test_ops_of_others_registered_before_and_after() -> None:
    script = """
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op
def define(name):
    @onnx_op(op_type=name, inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
    def double(x):
        return 2 * x
def others(name, options):
    model = parsed(f"g (float[N] a) => (float[N] b) {{ b = ai.onnx.contrib.{name} (a) }}")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {"a": np.ones(3, np.float32)})[0].tolist()
def options():
    fresh = onnxruntime.SessionOptions()  # old ones have no notion of newer ops, of anyone's
    fresh.register_custom_ops_library(get_library_path())
    return fresh
define("Before")
before = [make(way) for way in ways]
print(others("Before", options()))
for i in range(50):
    define(f"After{i}")
print(others("After49", ogs.register(options())))
for session in before + [make(way) for way in ways]:
    said = attempt(session, X, grid[[0] * 3])
    print(attempt(session, X, grid), "of shape (3, 64, 64, 2)" in said or "rejected" in said and "rejected")
"""
    ours = [f"{SHAPE} {'rejected' if way == 'open_patched_file' else 'True'}" for way in WAYS]
    assert (
        run(f"ways = [{', '.join(WAYS)}]\n{script}", "None") == ["[2.0, 2.0, 2.0]"] * 2 + ours * 2
    )


@pytest.mark.slow
def test_fork_spawn_and_forkserver_with_a_session_alive(tmp_path: Path) -> None:
    script = """
import multiprocessing, pickle
def answer(session, i):
    Y = session.run(None, {"X": X * i, "grid": grid})[0]
    return bool(np.array_equal(Y, ogs.grid_sample(X * i, grid)))
def pickled(data, i):
    return answer(pickle.loads(data), i)
def own(i):
    return answer(make(open_session), i)
if __name__ == "__main__":
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = ogs.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]), options, nodes="all")
    answer(session, 1)
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            data = pickle.dumps(session)
            results = pool.starmap(pickled, [(data, i) for i in range(4)]) + pool.map(own, range(4))
        print(method, all(results), answer(session, 2))
"""
    lines = run(script, "open_session", as_file=tmp_path / "main.py")
    assert lines == ["fork True True", "spawn True True", "forkserver True True"]


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_a_fork_while_other_threads_compute(times: int) -> None:
    """Those threads are not in the child: it must not wait for them."""
    # As though an asynchronous run were in flight, which is not in the child, and for which its end must not wait.
    script = """
import os, signal, threading
from ort_gridsample.custom_ops.python_ops import shutdown
shutdown.begin_asynchronous_run()
image, places = np.ones((1, 16, 128, 128), np.float32), np.zeros((1, 128, 128, 2), np.float32)
session, going = make(open_model, mode="cubic"), True
attempt(session, X, grid)  # a fork inside an import leaves the module locked in the child, whatever is imported
def work():
    while going:
        session.run(None, {"X": image, "grid": places})
threads = [threading.Thread(target=work) for _ in range(os.cpu_count() + 1)]
[thread.start() for thread in threads]
ends = []
for _ in range(TIMES):
    child = os.fork()
    if child == 0:  # ends as multiprocessing's children do: onnxruntime would wait for threads that were not forked
        signal.alarm(30)
        os._exit(shutdown.asynchronous_runs() or attempt(make(open_model), X, grid) != X.shape)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
going = False
[thread.join() for thread in threads]
shutdown.end_asynchronous_run()
print(*ends, shutdown.asynchronous_runs())
"""
    assert run_each(script.replace("TIMES", str(times))) == dict.fromkeys(
        WAYS, (" ".join("0" * (times + 1)),)
    )


ENDS = {"sys.exit(7)": 7, "raise ValueError('an end')": 1, "": 0}
#: In this package's session, as a plain one says nobody that it began such a run.
ASYNCHRONOUSLY = "session.run_async(None, {'X': image, 'grid': places}, lambda *_: None, None)"
QUICK = [
    ("open_session" if PYTHON else "open_compiled", ASYNCHRONOUSLY),
    *((way, "sys.exit(7)") for way in PYTHON[1:]),
]
#: Not a plain session of compiled ops: its end is onnxruntime's own, which aborts.
ENDINGS = [*QUICK, *(each for each in product([*PYTHON, *COMPILED[:1]], ENDS) if each not in QUICK)]


@with_slow("open_model,how", ENDINGS, QUICK)
def test_the_interpreter_ends_while_runs_are_in_flight(open_model: str, how: str) -> None:
    script = """
import threading, time
image = np.ones((1, 16, 128, 128), np.float32)
places = np.random.default_rng(0).uniform(-1, 1, (1, 128, 128, 2)).astype(np.float32)
session, begun = make(open_model, mode="cubic"), threading.Semaphore(0)
def work():
    for i in range(1000):
        if i == 1:
            begun.release()
        session.run(None, {"X": image, "grid": places})
[threading.Thread(target=work, daemon=True).start() for _ in range(3)]
[begun.acquire() for _ in range(3)]
print(attempt(session, X, grid), flush=True)
"""
    with started(PREAMBLE.format(open_model=open_model) + script + how, storms=True) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (ENDS.get(how, 0), f"{SHAPE}\n"), err


@needs_python_ops
def test_a_run_in_an_exit_handler_is_answered_until_the_ops_have_ended() -> None:
    """Then it is refused, and does not begin on other threads, in this package's session; a plain one does not ask."""
    # Exit handlers run from the last registered to the first: "late" and "early" when the ops have ended, as they were
    # registered before these were there, "between" before they end and after other threads are held.
    exits = """
import atexit, threading, time
ended = threading.Event()
def late():
    ended.set()
    time.sleep(0.3)
atexit.register(late)
atexit.register(lambda: print("early", attempt(sessions[open_session], X, grid)))
import onnxruntime_extensions
atexit.register(lambda: print("between", attempt(sessions[open_patched_file], X, grid)))
import ort_gridsample
atexit.register(lambda: [print(way.__name__, attempt(session, X, grid)) for way, session in sessions.items()])
"""
    script = f"""
sessions = {{way: make(way) for way in ({", ".join(WAYS)})}}
def work():
    ended.wait()
    print("in a thread", attempt(sessions[open_session], X, grid), flush=True)
threading.Thread(target=work, daemon=True).start()
"""
    *answered, early = run(script, "None", first=exits)
    assert answered == [f"{way} {SHAPE}" for way in [*WAYS, "between"]]
    assert early.startswith(
        "early RuntimeError: this exit handler was registered before the process first used Python ops"
    )


@needs_python_ops
def test_a_full_stack_is_a_recursion_error() -> None:
    script = """
session = make(open_model)
sys.setrecursionlimit(250)
def down(levels):
    return down(levels - 1) if levels else session.run(None, {"X": X, "grid": grid})[0].shape
seen = set()
for levels in range(100, 250):
    try:
        seen.add(str(down(levels)))
    except RecursionError:
        seen.add("RecursionError")
sys.setrecursionlimit(1000)
print(sorted(seen), attempt(session, X, grid))
"""
    assert run(script, "open_session") == [f"['{SHAPE}', 'RecursionError'] {SHAPE}"]


can_be_sent = pytest.mark.skipif(sys.platform == "win32", reason="no signal can be sent there")
SIGNALLED = [*zip(WAYS, cycle((signal.SIGINT, signal.SIGTERM)), strict=False)]


@can_be_sent
@pytest.mark.parametrize("tries", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_a_hundred_signals_are_handled_as_python_does(tries: int) -> None:
    """Whether Python is what runs, or what makes the kernels of the ops that run without it."""
    # Signals one after the other, in runs and while sessions are made; Ctrl-C's own handler, and one that was set late.
    # Other threads run a session meanwhile, and name its arguments: to them comes nothing.
    script = """
import _thread, os, random, signal, threading, time
rng, going, elsewhere = random.Random(0), True, []
session = others = make(open_model, mode="cubic")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
def work():
    while going:
        try:
            others.run(output_names=None, input_feed={"X": X, "grid": grid})
        except BaseException as error:
            elsewhere.append(error)
threads = [threading.Thread(target=work) for _ in range(2)]
[thread.start() for thread in threads]
def shoot(delay, signum):
    time.sleep(delay)
    os.kill(os.getpid(), signum)
for signum in signal.SIGINT, signal.SIGTERM:
    caught = 0
    for _ in range(TRIES):
        try:
            _thread.start_new_thread(shoot, (rng.uniform(0, 0.02), signum))  # no Thread, whose start may be interrupted
            while True:
                if rng.random() < 0.2:
                    session = make(open_model, mode="cubic")
                session.run(None, {"X": X, "grid": grid})
        except (KeyboardInterrupt, SystemExit) as error:
            caught += isinstance(error, KeyboardInterrupt if signum == signal.SIGINT else SystemExit)
    print(caught, attempt(session, X, grid))
going = False
[thread.join() for thread in threads]
print(elsewhere)
"""
    answers = run_each(script.replace("TRIES", str(tries)), storms=True)
    assert answers == dict.fromkeys(WAYS, (f"{tries} {SHAPE}", f"{tries} {SHAPE}", "[]"))


@with_slow("open_model,signum", SIGNALLED, SIGNALLED[:1])
def test_a_signal_that_nobody_handles_ends_the_process_as_pythons_own(
    open_model: str, signum: signal.Signals
) -> None:
    script = """
session = make(open_model, mode="cubic")
print("ready", flush=True)
while True:
    session.run(None, {"X": X, "grid": grid})
"""
    with started(PREAMBLE.format(open_model=open_model) + script, storms=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(random.Random(int(signum)).uniform(0, 0.1))
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signum, err
    assert signum == signal.SIGTERM or "KeyboardInterrupt" in err


@needs_python_ops
@can_be_sent
def test_a_waiting_signal_is_delivered_and_no_handler_is_left() -> None:
    # Signals from inside the op, where a handler that raises would end the process.
    script = """
import asyncio, os, signal, threading
import ort_gridsample.custom_ops.python_ops.ops as ops
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
# One that comes in an op, or several, whose handlers were set after the session was made.
calls = []
signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(("called", signum, frame is not None)))
print(during_an_op([signal.SIGTERM] * 3, then=lambda: calls.append("op")), calls)
try:
    print(during_an_op([signal.SIGINT]))
except KeyboardInterrupt:
    print("interrupted", attempt(session, X, grid), len(calls))
# No handler is left, by registering, by a run, or by a handler that raises while others wait to be put back.
said = []
def terminate(signum, frame):
    said.append((signum, frame is not None))
    raise SystemExit(3)
signal.signal(signal.SIGTERM, terminate)
print(names())
ogs.register()
print(names(), attempt(session, X, grid), names())
for signums in [signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]:
    try:
        during_an_op(signums)
    except BaseException as error:
        print(type(error).__name__, names(), said)
# The run, and with it the end that puts the handlers back, is not in a child that another thread forks.
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
# A handler that is set during a run stays, and an event loop's is called once.
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
    # In onnxruntime's own format, of which onnx reads nothing.
    ort_format = """
import tempfile
def open_model(model):
    options, path = ogs.register(), tempfile.mkdtemp() + "/patched.ort"
    options.optimized_model_filepath = path
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(ogs.patch_model(model).SerializeToString(), options)
    return ogs.InferenceSession(path)
"""
    own = "['default_int_handler', 'terminate']"
    waited = (f"{SHAPE} ['op', ('called', 15, True)]", f"interrupted {SHAPE} 2")
    terminated = (f"SystemExit {own} [(15, True)]", f"SystemExit {own} [(15, True), (15, True)]")
    left = (own, f"{own} {SHAPE} {own}", f"KeyboardInterrupt {own} []", *terminated, SHAPE, "0")
    stayed = (own.replace("terminate", "mine"), SHAPE, "['called']")
    assert run_each(script, PYTHON) == dict.fromkeys(PYTHON, (*waited, *left, *stayed))
    assert run(ort_format + script, "None", storms=True) == [*waited, *left, *stayed]


@needs_python_ops
def test_asyncio_installs_its_own_handler() -> None:
    script = """
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
    assert run_each(script) == dict.fromkeys(
        WAYS, ("False", f"cancelled {SHAPE}", "interrupted True")
    )


@pytest.fixture
def seen() -> Iterator[list[object]]:
    """What two handlers, of which one raises, were called with; they are there until the end."""
    called = list[object]()

    def raising(signum: int, frame: object) -> None:
        called.append(signum)
        raise InterruptedError(signum)

    handlers = {signal.SIGINT: raising, signal.SIGTERM: lambda signum, frame: called.append(signum)}
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    yield called
    for signum, handler in before.items():
        assert signal.signal(signum, handler) is handlers[signum]


def test_a_handler_is_called_at_the_end_of_every_run(seen: list[object]) -> None:
    def interrupted(answer: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        seen.append(answer)
        return answer

    def nested(answer: int) -> int:
        return deferred(interrupted, answer) + deferred(interrupted, answer)

    deferred = signals.with_signals_deferred
    assert [deferred(interrupted, answer) for answer in (-1, -2)] == [-1, -2]
    assert deferred(nested, -3) == -6
    assert seen == [-1, signal.SIGTERM, -2, signal.SIGTERM, -3, -3, signal.SIGTERM]


def test_every_handler_is_called_whatever_another_raises(seen: list[object]) -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        seen.append(-1)

    with pytest.raises(InterruptedError):
        signals.with_signals_deferred(interrupted)
    assert seen == [-1, signal.SIGINT, signal.SIGTERM]


def test_a_fork_in_a_run_has_its_own_signals(seen: list[object]) -> None:
    def forked() -> None:
        signal.raise_signal(signal.SIGTERM)  # which came to the parent
        signals._after_fork()
        signal.raise_signal(signal.SIGTERM)
        seen.append(-1)

    signals.with_signals_deferred(forked)
    assert seen == [signal.SIGTERM, -1]


def test_sessions_of_others_are_left_alone() -> None:
    """In them a handler is called at once, as it always was; and sessions are wrapped once, whatever is reloaded."""
    script = """
import importlib, onnxruntime, numpy as np, ort_gridsample as ogs
from support.models import parsed
from ort_gridsample.custom_ops import signals
from ort_gridsample.session import registration
model = parsed("g (float[1] X) => (float[1] Y) { Y = Relu (X) }").SerializeToString()
ogs.register()
seen = []
deferred = signals.with_signals_deferred
signals.with_signals_deferred = lambda run, *a, **k: seen.append(run.__name__) or deferred(run, *a, **k)
for options in None, onnxruntime.SessionOptions(), ogs.register():
    session = onnxruntime.InferenceSession(model, options)
    del session._sess_options_initial  # onnxruntime's own affair
    session.run(None, {"X": np.ones(1, np.float32)})
print(seen)
bare = [signals.unwrapped(getattr(onnxruntime.InferenceSession, name)) for name in ("__init__", "run")]
for _ in range(3):
    importlib.reload(signals)
    importlib.reload(registration).register()
print(*[m is signals.unwrapped(getattr(onnxruntime.InferenceSession, m.__name__)) for m in bare])
"""
    assert python(script) == ["['__init__']", "True True"]


def test_nothing_of_pythons_runs_when_options_go() -> None:
    """A session ends slowly: what Python runs next would get the signal, and a callback would lose its exception."""
    session = ogs.InferenceSession(
        grid_sample_model("float32", "float32", 2, [Attributes()]), nodes="all"
    )
    for each in (ogs.register(), session._sess_options_initial, ogs.register(SessionOptions())):
        assert {reference.__callback__ for reference in weakref.getweakrefs(each)} == {None}
