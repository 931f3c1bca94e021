"""Forked children that inherit sessions from their parent end."""

import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from ort_gridsample.session import forks
from support.paths import needs_python_ops
from support.processes import PROGRAMS, TESTS, fetch, kill_group, run_program

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
SESSIONS = ["package", "parallel", "plain", "plain_before", "patched"]


@pytest.mark.parametrize(
    ("session", "before"),
    [
        *((session, "ran") for session in SESSIONS),
        ("package", "idle"),
        *(
            pytest.param(session, "idle", marks=pytest.mark.slow)
            for session in SESSIONS
            if session != "package"
        ),
    ],
)
def test_forked_child_with_a_session_ends(session: str, before: str) -> None:
    lines = run_program("fork_endings.py", session, before)
    assert lines == [f"{ending} ended" for ending in ENDINGS]


@needs_python_ops
def test_forked_child_with_python_ops_ends() -> None:
    lines = run_program("fork_endings.py", "package", "ran", env={"ORT_GRIDSAMPLE_OPS": "python"})
    assert lines == [f"{ending} ended" for ending in ENDINGS]


class Native:
    """An object with weak references, as a native session."""


def test_track_forgets_destroyed_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_tracked", {})
    monkeypatch.setattr(forks, "_limit", 64)
    kept = Native()
    forks.track(kept)
    for _ in range(10_000):
        forks.track(Native())
    assert len(forks._tracked) < 200
    assert next(iter(forks._tracked.values()))() is kept


def test_track_references_have_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that a signal handler raises in a callback is lost."""
    monkeypatch.setattr(forks, "_tracked", {})
    native = Native()
    forks.track(native)
    (reference,) = forks._tracked.values()
    assert reference.__callback__ is None
    assert reference() is native


def test_track_from_several_threads_forgets_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_tracked", {})
    monkeypatch.setattr(forks, "_limit", 64)
    sessions = [Native() for _ in range(2000)]

    def track(part: list[Native]) -> None:
        for native in part:
            forks.track(native)
            for _ in range(20):
                forks.track(Native())

    def do_nothing(phase: str, info: dict[str, int]) -> None:
        """Let the interpreter change threads while it collects garbage."""

    gc.callbacks.append(do_nothing)
    thresholds = gc.get_threshold()
    interval = sys.getswitchinterval()
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(track, [sessions[first::4] for first in range(4)]))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(do_nothing)
    tracked = {id(reference()) for reference in forks._tracked.values()}
    assert tracked.issuperset(map(id, sessions))


def test_fork_leaves_no_references_in_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_tracked", {})
    native = Native()
    forks.track(native)
    before = sys.getrefcount(native)
    forks._before_fork()
    assert sys.getrefcount(native) == before + 1
    forks._after_fork_in_parent()
    assert sys.getrefcount(native) == before


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gunicorn") is None, reason="gunicorn is not installed"
)
def test_gunicorn_workers_run_and_replace_a_preloaded_session() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(PROGRAMS), str(TESTS), str(TESTS.parent)]
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "PYTHONPATH": os.pathsep.join(paths)}
    options = ["--preload", "--workers=2", f"--bind=127.0.0.1:{port}", "--graceful-timeout=20"]
    command = [sys.executable, "-m", "gunicorn", *options, "wsgi_server:application"]
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            answers = [fetch(f"http://127.0.0.1:{port}/") for _ in range(20)]
            assert {answer.split()[0] for answer in answers} == {"True"}
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
            with pytest.raises(ProcessLookupError):
                os.killpg(server.pid, 0)  # every worker has ended
        finally:
            kill_group(server)


@pytest.mark.skipif(bool(unavailable_reason()), reason=f"no compiled ops: {unavailable_reason()}")
def test_compiled_op_is_compiled_in_forked_child_while_parent_holds_locks() -> None:
    assert run_program("inherited_locks.py") == ["(1, 2, 64, 64)", "0"]
