"""Threads, processes, signals and the interpreter's end: right answers, and ends that are Python's own."""

from __future__ import annotations

import random
import signal
import time

import pytest

from processes import COMPILED, PYTHON, every_way, run, start

THREADS = """
import threading
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
options.execution_mode = onnxruntime.ExecutionMode.{mode}
options.inter_op_num_threads = 2
compiled = open_model in (open_compiled, open_compiled_file)
ogs.set_ops("compiled" if compiled else "python")
def open_with(model):
    if open_model in (open_session, open_compiled):
        return ogs.InferenceSession(model, options, nodes="all")
    patched = ogs.patch_model(model, target="compiled" if compiled else "ort_gridsample")
    return onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register(options))
open_one = lambda: open_with(grid_sample_model("float32", "float32", 2, [Attributes("linear"), Attributes("cubic")]))
rng = np.random.default_rng(0)
X = rng.normal(size=(1, 3, 96, 96)).astype(np.float32)
grids = rng.uniform(-1.2, 1.2, (16, 1, 64, 64, 2)).astype(np.float32)
expected = [[ogs.grid_sample(X, grid, mode) for mode in ("linear", "cubic")] for grid in grids]
shared, wrong = open_one(), []
def work(i):
    session = shared if {shared} else open_one()
    for k in range(6):
        if (i + k) % 4 == 0:  # this thread's own mistake, of a size of its own
            bad = np.zeros((2 + i, 3, 3, 2), np.float32)
            said = attempt(session, X, bad)
            if "rejected" not in said and f"({{2 + i}}, 3, 3, 2)" not in said:
                wrong.append(said)
        try:
            answers = session.run(None, {{"X": X, "grid": grids[i]}})
        except Exception as error:
            wrong.append(error)
        else:
            if not all(np.array_equal(a, e) for a, e in zip(answers, expected[i], strict=True)):
                wrong.append(i)
threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(threads), wrong)
"""


@every_way
@pytest.mark.parametrize("mode", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
@pytest.mark.parametrize("shared", [True, False])
def test_sixteen_threads_get_their_own_answers_and_errors(open_model: str, mode: str, shared: bool) -> None:
    assert run(THREADS.format(mode=mode, shared=shared), open_model) == ["16 []"]


ASYNCHRONOUS = """
import threading
session, done, seen = make(open_model), threading.Semaphore(0), {}
def callback(results, i, error):
    seen[i] = error if error else results[0].shape
    done.release()
right = ogs.grid_sample(X, grid)
for i in range(20):
    session.run_async(None, {"X": X, "grid": grid[[0] * (2 if i % 5 == 0 else 1)]}, callback, i)
for i in range(20):
    assert done.acquire(timeout=60)
print(all(seen[i] == (1, 2, 64, 64) if i % 5 else "GridSample node" in seen[i] for i in range(20)))
"""


@every_way
def test_asynchronous_runs(open_model: str) -> None:
    assert run(ASYNCHRONOUS, open_model) == ["True"]


OTHERS = """
from onnxruntime_extensions import PyCustomOpDef, get_library_path, onnx_op
import onnx
from onnx import helper
def define(name):
    @onnx_op(op_type=name, inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
    def double(x):
        return 2 * x
def others(name, options):
    a, b = [helper.make_tensor_value_info(n, 1, [None]) for n in "ab"]
    graph = helper.make_graph([helper.make_node(name, ["a"], ["b"], domain="ai.onnx.contrib")], "g", [a], [b])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.contrib", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()
    return onnxruntime.InferenceSession(model, options).run(None, {"a": np.ones(3, np.float32)})[0].tolist()
def options():
    fresh = onnxruntime.SessionOptions()  # old ones have no notion of newer ops, of anyone's
    fresh.register_custom_ops_library(get_library_path())
    return fresh
define("Before")
first = make(open_model)
print(others("Before", options()))
for i in range(50):
    define(f"After{i}")
print(others("After49", ogs.register(options())))
for session in (first, make(open_model)):
    print(attempt(session, X, grid), "of shape (3, 64, 64, 2)" in attempt(session, X, grid[[0] * 3]) or "rejected")
"""


@every_way
def test_ops_of_others_registered_before_and_after(open_model: str) -> None:
    words = "rejected" if open_model == "open_patched_file" else "True"
    assert run(OTHERS, open_model) == ["[2.0, 2.0, 2.0]"] * 2 + [f"(1, 2, 64, 64) {words}"] * 2


PROCESSES = """
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


def test_fork_spawn_and_forkserver_with_a_session_alive(tmp_path_factory: pytest.TempPathFactory) -> None:
    lines = run(PROCESSES, "open_session", as_file=tmp_path_factory.mktemp("processes") / "main.py")
    assert lines == ["fork True True", "spawn True True", "forkserver True True"]


FORKS = """
import os, signal, threading
image, places = np.ones((1, 16, 256, 256), np.float32), np.zeros((1, 256, 256, 2), np.float32)
session, going = make(open_model, mode="cubic"), True
attempt(session, X, grid)  # a fork inside an import leaves the module locked in the child, whatever is imported
def work():
    while going:
        session.run(None, {"X": image, "grid": places})
threads = [threading.Thread(target=work) for _ in range(os.cpu_count() + 1)]
[thread.start() for thread in threads]
ends = []
for _ in range(5):
    child = os.fork()
    if child == 0:  # ends as multiprocessing's children do: onnxruntime would wait for threads that were not forked
        signal.alarm(30)
        os._exit(attempt(make(open_model), X, grid) != X.shape)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
going = False
[thread.join() for thread in threads]
print(ends)
"""


@every_way
def test_a_fork_while_other_threads_compute(open_model: str) -> None:
    """Those threads are not in the child: it must not wait for them."""
    assert run(FORKS, open_model) == [str([0] * 5)]


FORKS_BESIDE = """
import os
from ort_gridsample.runtime.python_ops import exits
exits.asynchronous_run_begins()
child = os.fork()
if child == 0:
    print(exits._pending, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(exits._pending)
exits.asynchronous_run_ended()
"""


def test_a_forked_child_waits_for_no_run_of_its_parents() -> None:
    assert run(FORKS_BESIDE, "open_session") == ["0", "1"]


ENDING = """
import threading, time
image = np.ones((1, 16, 256, 256), np.float32)
places = np.random.default_rng(0).uniform(-1, 1, (1, 256, 256, 2)).astype(np.float32)
session, begun = make(open_model, mode="cubic"), threading.Semaphore(0)
def work():
    for i in range(1000):
        if i == 1:
            begun.release()
        session.run(None, {"X": image, "grid": places})
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(3):
    begun.acquire()
print(attempt(session, X, grid), flush=True)
"""
ENDS = {
    "": 0,
    "sys.exit(7)": 7,
    "raise ValueError('an end')": 1,
}


# Not a plain session of compiled ops: its end is onnxruntime's own, which aborts.
@pytest.mark.parametrize("open_model", [*PYTHON, *COMPILED[:1]])
@pytest.mark.parametrize("how", ENDS)
def test_the_interpreter_ends_while_runs_are_in_flight(open_model: str, how: str) -> None:
    with start(ENDING + how, open_model) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (ENDS[how], "(1, 2, 64, 64)\n"), err


def test_the_interpreter_ends_while_an_asynchronous_run_is_in_flight() -> None:
    """In this package's session, as a plain one says nobody that it began such a run."""
    asynchronous = "session.run_async(None, {'X': image, 'grid': places}, lambda *_: None, None)"
    with start(ENDING + asynchronous, "open_session") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "(1, 2, 64, 64)\n"), err


#: A handler that runs when the ops have ended, as it was registered before they were there.
LATE = """
import atexit, threading, time
ended = threading.Event()
def late():
    ended.set()
    time.sleep(1)
atexit.register(late)
"""
BEGUN_LATE = """
session = make(open_model)
print(attempt(session, X, grid), flush=True)
def work():
    ended.wait()
    print(attempt(session, X, grid), flush=True)
threading.Thread(target=work, daemon=True).start()
"""


def test_no_run_begins_when_the_ops_have_ended() -> None:
    """In this package's session, as below."""
    assert run(BEGUN_LATE, "open_session", first=LATE) == ["(1, 2, 64, 64)"]


HANDLER = "import atexit\natexit.register(lambda: print(attempt(session, X, grid)))\n"


@every_way
def test_a_run_in_an_exit_handler_is_answered(open_model: str) -> None:
    assert run(HANDLER + "session = make(open_model)", open_model) == ["(1, 2, 64, 64)"]


def test_a_run_in_an_exit_handler_between_the_two_imports_is_answered() -> None:
    """Handlers run from the last registered to the first: this one before the ops end, and after others are held."""
    first = "import onnxruntime_extensions\n" + HANDLER
    assert run("session = make(open_model)", "open_patched_file", first=first) == ["(1, 2, 64, 64)"]


def test_a_run_in_an_exit_handler_after_the_ops_have_ended_is_refused() -> None:
    """In this package's session: a plain one does not ask whether there are ops."""
    (said,) = run("session = make(open_model)", "open_session", first=HANDLER)
    assert said.startswith("a run in an exit handler that was registered before ort_gridsample was imported")


DEEP = """
session = make(open_model)
sys.setrecursionlimit(250)
def down(levels):
    return down(levels - 1) if levels else attempt_here()
def attempt_here():
    return session.run(None, {"X": X, "grid": grid})[0].shape
seen = {}
for levels in range(100, 250):
    try:
        end = down(levels)
    except RecursionError:
        end = "RecursionError"
    seen[end] = seen.get(end, 0) + 1
sys.setrecursionlimit(1000)
print(sorted(map(str, seen)), attempt(session, X, grid))
"""


def test_a_full_stack_is_a_recursion_error() -> None:
    assert run(DEEP, "open_session") == ["['(1, 2, 64, 64)', 'RecursionError'] (1, 2, 64, 64)"]


#: Signals one after the other, in runs and while sessions are made; Ctrl-C's own handler, and one that was set late.
STORM = """
import _thread, os, random, signal, time
ogs.set_ops({ops!r})
rng, caught = random.Random(0), 0
model = grid_sample_model("float32", "float32", 2, [Attributes("cubic", "zeros", False)])
session = ogs.InferenceSession(model, nodes="all")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
def shoot(delay):
    time.sleep(delay)
    os.kill(os.getpid(), {signum})
for _ in range({tries}):
    try:
        _thread.start_new_thread(shoot, (rng.uniform(0, 0.02),))  # no Thread, whose start may not be interrupted
        while True:
            if rng.random() < 0.2:
                session = ogs.InferenceSession(model, nodes="all")
            session.run(None, {{"X": X, "grid": grid}})
    except (KeyboardInterrupt, SystemExit):
        caught += 1
print(caught, attempt(session, X, grid))
"""


@pytest.mark.parametrize("ops", ["python", "auto"])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_hundred_signals_are_handled_as_python_does(signum: signal.Signals, ops: str) -> None:
    """Whether Python is what runs, or what makes the kernels of the ops that run without it."""
    script = STORM.format(signum=int(signum), tries=100, ops=ops)
    assert run(script, "open_session", storms=True) == ["100 (1, 2, 64, 64)"]


ENDLESS = """
session = make(open_model, mode="cubic")
print("ready", flush=True)
while True:
    session.run(None, {"X": X, "grid": grid})
"""


@every_way
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_nobody_handles_ends_the_process_as_pythons_own(open_model: str, signum: signal.Signals) -> None:
    with start(ENDLESS, open_model) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(random.Random(int(signum)).uniform(0, 0.1))
        process.send_signal(signum)
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signum, err
    assert signum == signal.SIGTERM or "KeyboardInterrupt" in err
