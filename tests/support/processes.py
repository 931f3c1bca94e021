"""Run Python in processes of its own, for tests that might end or change the process.

Programs are files in tests/programs; short scripts are strings. Each runs in a process group, which
is killed at the end.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ort_gridsample.custom_ops.compiled_ops import registry
from support.paths import HAS_PYTHON_OPS, LIBRARY

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"
#: onnxruntime-extensions would import PyTorch, which takes seconds.
WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"
#: Run a program where some modules cannot be imported.
WITHOUT_MODULES = """
import json, runpy, sys
missing_modules, *sys.argv = sys.argv[1:]
for name in json.loads(missing_modules):
    sys.modules[name] = None
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: The first lines of every script: the folders of this tree, and Python's handler of Ctrl-C, which
#: is not installed if the parent ignores the signal (under nohup).
SCRIPT_START = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}

def told(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except Exception as error:
        return " ".join(f"{{type(error).__name__}}: {{error}}".split())
"""

#: The names that scripts with an opener of sessions use. Its field is the opener's name.
PREAMBLE = """
import numpy as np, onnxruntime, ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model, parsed
from support.paths import (
    open_compiled, open_compiled_file, open_library, open_native, open_patched_file, open_session
)
from support.programs import GRID as grid, X, open_sampling as make, resident_mib as resident
from support.programs import shape_or_error as attempt

open_model = {open_model}
"""

#: The functions of support.paths that open a session of Python ops, of compiled ops, and of any.
PYTHON_OPENERS = ["open_session", "open_patched_file"] if HAS_PYTHON_OPS else []
COMPILED_OPENERS = [] if registry.unavailable_reason() else ["open_compiled", "open_compiled_file"]
LIBRARY_OPENERS = ["open_library"] if LIBRARY else []
OPENERS = [*PYTHON_OPENERS, *COMPILED_OPENERS, *LIBRARY_OPENERS]
on_every_opener = pytest.mark.parametrize("open_model", OPENERS)

Environment = Mapping[str, str] | None
#: Seconds that a program may take. A test's own limit is 300 seconds.
PROGRAM_TIMEOUT = 280
#: Seconds that a script may take. The test's own limit is usually shorter.
SCRIPT_TIMEOUT = 1800


# --- Programs ---


@contextmanager
def start_program(
    name: str,
    *arguments: str,
    env: Environment = None,
    measures_coverage: bool = True,
    missing_modules: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """Start a program of tests/programs; kill its process group at the end.

    Args:
        name: the file in tests/programs.
        arguments: its command-line arguments.
        env: environment variables to add.
        measures_coverage: whether coverage may be measured. If a signal handler raises an exception
            anywhere, the lock of coverage can stay locked.
        missing_modules: modules that the program cannot import.

    Yields:
        The process, with pipes for its output.
    """
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, **(env or {})}
    command = [str(PROGRAMS / name), *arguments]
    if missing_modules:
        command = ["-c", WITHOUT_MODULES, json.dumps(missing_modules), *command]
    with _start(command, environment, measures_coverage) as process:
        yield process


def run_program(
    name: str,
    *arguments: str,
    env: Environment = None,
    timeout: float = PROGRAM_TIMEOUT,
    **options: Any,
) -> list[str]:
    """Return the lines that a program of tests/programs prints; its exit status must be 0.

    Args:
        name: the file in tests/programs.
        arguments: its command-line arguments.
        env: environment variables to add.
        timeout: seconds that it may take.
        options: see :func:`start_program`.
    """
    with start_program(name, *arguments, env=env, **options) as process:
        return _lines(process, timeout)


def run_with_missing_modules(
    command: Sequence[str], missing_modules: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run a program that cannot import ``missing_modules``; its exit status may be any.

    Args:
        command: the path of the program, and its arguments.
        missing_modules: the modules.
    """
    arguments = ["-c", WITHOUT_MODULES, json.dumps(missing_modules), *command]
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    with _start(arguments, environment, measures_coverage=True) as process:
        out, err = process.communicate(timeout=PROGRAM_TIMEOUT)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_json_program(name: str, *arguments: str, **options: Any) -> Any:
    """Return the JSON value that a program of tests/programs prints; see :func:`run_program`."""
    return json.loads("\n".join(run_program(name, *arguments, **options)))


def run_on_openers(
    name: str, *arguments: str, openers: Sequence[str] = OPENERS, **options: Any
) -> dict[str, Any]:
    """Run a program of tests/programs that calls ``support.programs.print_for_each_opener``.

    Args:
        name: the file in tests/programs.
        arguments: its arguments before the openers.
        openers: names of functions in support.paths; the last arguments.
        options: see :func:`run_program`.

    Returns:
        The program's result for each of ``openers``.
    """
    lines = run_program(name, *arguments, *openers, **options)
    results = dict(json.loads(line) for line in lines)
    assert list(results) == list(openers)
    return results


# --- Scripts ---


@contextmanager
def start_script(
    script: str,
    env: Environment = None,
    as_file: Path | None = None,
    storms: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Start a process of Python that runs ``script``; kill its process group at the end.

    Args:
        script: Python code, after :data:`SCRIPT_START`.
        env: all environment variables of the process.
        as_file: the file to write the script to, so that its own child processes can import it.
        storms: whether signal handlers may raise exceptions anywhere, so that coverage must not be
            measured.

    Yields:
        The process, with pipes for its output.
    """
    code = SCRIPT_START + script
    arguments = ["-c", code]
    if as_file is not None:
        as_file.write_text(code)
        arguments = [str(as_file)]
    with _start(arguments, os.environ if env is None else env, not storms) as process:
        yield process


def run_script(
    script: str, env: Environment = None, as_file: Path | None = None, storms: bool = False
) -> list[str]:
    """Return the lines that ``script`` prints; its exit status must be 0.

    The arguments are those of :func:`start_script`.
    """
    with start_script(script, env, as_file, storms) as process:
        return _lines(process, SCRIPT_TIMEOUT)


def run_with_opener(
    script: str, open_model: str, as_file: Path | None = None, first: str = "", storms: bool = False
) -> list[str]:
    """Return the lines that ``script`` prints after :data:`PREAMBLE`; its exit status must be 0.

    Args:
        script: Python code that uses the names of the preamble.
        open_model: the expression for ``open_model`` in the preamble.
        as_file: see :func:`start_script`.
        first: code before the preamble.
        storms: see :func:`start_script`.
    """
    return run_script(
        first + PREAMBLE.format(open_model=open_model) + script, as_file=as_file, storms=storms
    )


# --- Processes ---


@contextmanager
def _start(
    arguments: Sequence[str], env: Mapping[str, str], measures_coverage: bool
) -> Iterator[subprocess.Popen[str]]:
    environment = dict(env)
    if not measures_coverage:
        for name in env:
            if name.startswith("COVERAGE_"):
                del environment[name]
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that was started in a session of its own, and all processes it forked."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _lines(process: subprocess.Popen[str], timeout: float) -> list[str]:
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit status {process.returncode} after\n{out}\n{err}"
    return out.splitlines()


# --- Servers ---


def fetch(url: str, seconds: float = 60.0) -> str:
    """Return the text at ``url``; try again for some seconds until the server runs."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(url, timeout=seconds) as response:
                return response.read().decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
