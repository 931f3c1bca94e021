"""Forked children that inherit sessions from their parent end."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys

import pytest

from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
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
