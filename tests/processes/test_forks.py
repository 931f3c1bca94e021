"""Forked children end, however they do, with sessions of their parent that they inherit."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from ort_gridsample.session import forks
from support import processes

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
ENDINGS = [
    "drop",
    "drop_a_binding",
    "collect_a_cycle",
    "replace",
    "run_and_open",
    "leave",
    "end",
    "fork_again",
]
SESSIONS = ["own", "parallel", "plain", "plain_before", "patched"]


@pytest.mark.parametrize(
    ("session", "before"),
    [
        *((session, "ran") for session in SESSIONS),
        ("own", "idle"),
        *(
            pytest.param(session, "idle", marks=pytest.mark.slow)
            for session in SESSIONS
            if session != "own"
        ),
    ],
)
def test_forked_child_with_a_session_ends(session: str, before: str) -> None:
    lines = processes.program("fork_endings.py", session, before)
    assert lines == [f"{ending} right" for ending in ENDINGS]


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_extensions") is None, reason="there are no Python ops"
)
def test_forked_child_with_python_ops_ends() -> None:
    lines = processes.program("fork_endings.py", "own", "ran", env={"ORT_GRIDSAMPLE_OPS": "python"})
    assert lines == [f"{ending} right" for ending in ENDINGS]


class Native:
    """Something that can be referred to weakly, as a native session."""


def test_sessions_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_tracked", [])
    monkeypatch.setattr(forks, "_limit", 64)
    kept = Native()
    forks.track(kept)
    for _ in range(10_000):
        forks.track(Native())
    assert len(forks._tracked) < 200
    assert forks._tracked[0]() is kept


def test_references_to_sessions_have_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that a signal handler raises in a callback is lost."""
    monkeypatch.setattr(forks, "_tracked", [])
    forks.track(native := Native())
    assert [each.__callback__ for each in forks._tracked] == [None]
    assert forks._tracked[0]() is native


def test_a_fork_leaves_no_references_in_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_tracked", [])
    native = Native()
    forks.track(native)
    before = sys.getrefcount(native)
    forks._before_fork()
    assert sys.getrefcount(native) == before + 1
    forks._after_fork_in_parent()
    assert sys.getrefcount(native) == before


SERVER = """
import os, numpy as np, ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
model = grid_sample_model("float32", "float32", 2, [Attributes()])
feeds = {"X": np.ones((1, 8, 64, 64), np.float32), "grid": np.zeros((1, 64, 64, 2), np.float32)}
session = ogs.InferenceSession(model)
session.run(None, feeds)

def application(environ, start_response):
    global session
    right = bool(np.array_equal(session.run(None, feeds)[0], feeds["X"]))
    session = ogs.InferenceSession(model)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{right} {os.getpid()}".encode()]
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gunicorn") is None, reason="gunicorn is not installed"
)
def test_gunicorn_workers_run_and_replace_a_preloaded_session(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(tmp_path), str(processes.TESTS), str(processes.TESTS.parent)]
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "--workers=2",
        f"--bind=127.0.0.1:{port}",
    ]
    command += ["--graceful-timeout=20", "server:application"]
    with subprocess.Popen(command, env=environment, start_new_session=True, cwd=tmp_path) as server:
        try:
            answers = [fetch(f"http://127.0.0.1:{port}/") for _ in range(20)]
            assert {answer.split()[0] for answer in answers} == {"True"}
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
            with pytest.raises(ProcessLookupError):
                os.killpg(server.pid, 0)  # no worker is left
        finally:
            processes.kill_group(server)


def fetch(url: str, seconds: float = 60.0) -> str:
    """The text at ``url``, as soon as the server answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=seconds) as response:
                return response.read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_compiled_ops_are_compiled_in_a_forked_child_too() -> None:
    """Also where another thread of the parent holds the lock of the registration while it forks."""
    if unavailable_reason():
        pytest.skip(unavailable_reason())
    script = """
import os, threading
from ort_gridsample.custom_ops.python_ops import extensions
from ort_gridsample.session import options
from ort_gridsample.custom_ops.compiled_ops.registry import compiled_ops
make(open_compiled)
locks = [compiled_ops()._lock, options._lock, extensions._lock]
held, done = threading.Event(), threading.Event()
def hold():
    for lock in locks:
        lock.acquire()
    held.set()
    done.wait(60)
thread = threading.Thread(target=hold, daemon=True)
thread.start()
held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(60)
    print(attempt(make(open_compiled, "uint8", "nearest"), X.astype("u1"), grid), flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
"""
    assert processes.run(script, "open_compiled") == ["(1, 2, 64, 64)", "0"]
