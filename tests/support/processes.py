"""Python in processes of their own, for what might end one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from ort_gridsample.custom_ops.compiled_ops import registry
from support.paths import HAS_PYTHON_OPS, LIBRARY

TESTS = Path(__file__).parents[1]
#: onnxruntime-extensions would import it, for seconds.
WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"
#: What every process begins with: this tree, Ctrl-C as Python has it, though the parent ignores it (under nohup), and
#: what a call answers or raises.
BEGINNING = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}

def told(call, *given, **named):
    try:
        return call(*given, **named)
    except Exception as error:
        return " ".join(f"{{type(error).__name__}}: {{error}}".split())
"""

PREAMBLE = """
import numpy as np, onnxruntime, ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model, parsed
from support.paths import open_compiled, open_compiled_file, open_library, open_native, open_patched_file, open_session

def make(open_model, X_type="float32", mode="linear"):
    return open_model(grid_sample_model(X_type, "float32", 2, [Attributes(mode, "zeros", False)]))

def resident():  # in MiB
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

def attempt(session, X, grid):
    answer = told(session.run, None, {{"X": X, "grid": grid}})
    return answer if isinstance(answer, str) else answer[0].shape

X, grid = np.ones((1, 2, 64, 64), np.float32), np.zeros((1, 64, 64, 2), np.float32)
open_model = {open_model}
"""

#: The ways with Python in the run, and all.
PYTHON = ["open_session", "open_patched_file"] if HAS_PYTHON_OPS else []
COMPILED = [] if registry.unavailable_reason() else ["open_compiled", "open_compiled_file"]
WAYS = [*PYTHON, *COMPILED, *(["open_library"] if LIBRARY else [])]
every_way = pytest.mark.parametrize("open_model", WAYS)
Environment = Mapping[str, str] | None


@contextmanager
def started(
    script: str, env: Environment = None, as_file: Path | None = None, storms: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process of Python that runs ``script`` and has ended at the end, whatever happens.

    Where it ``storms``, handlers raise anywhere, coverage is not measured: its lock would stay locked for good.
    """
    code = BEGINNING + script
    if as_file is not None:  # which a process that it starts can import
        as_file.write_text(code)
    command = [sys.executable, *(["-c", code] if as_file is None else [str(as_file)])]
    environment = dict(os.environ if env is None else env)
    if storms:
        environment = {
            name: value for name, value in environment.items() if not name.startswith("COVERAGE_")
        }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that was started in a session of its own, with all processes that it forked."""
    if not hasattr(os, "killpg"):
        process.kill()
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def program(name: str, *arguments: str, env: Environment = None, seconds: float = 280) -> list[str]:
    """The lines that the program ``name`` of tests/programs prints; it must end well, and in time."""
    command = [sys.executable, str(TESTS / "programs" / name), *arguments]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), **(env or {})}
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            kill_group(process)
    assert process.returncode == 0, f"ended with {process.returncode} after\n{out}\n{err}"
    return out.splitlines()


def run(
    script: str, open_model: str, as_file: Path | None = None, first: str = "", storms: bool = False
) -> list[str]:
    """The lines that ``script`` prints after the preamble; it must end well."""
    return python(
        first + PREAMBLE.format(open_model=open_model) + script, as_file=as_file, storms=storms
    )


def run_each(
    script: str, ways: Sequence[str] = WAYS, storms: bool = False
) -> dict[str, tuple[str, ...]]:
    """The lines that ``script`` prints in each of the ``ways``, which one process goes through; it must end well."""
    each = f"for open_model in ({', '.join(ways)},):\n    print('in', open_model.__name__, flush=True)\n"
    answers: dict[str, tuple[str, ...]] = {}
    for line in run(each + indent(script, "    "), "None", storms=storms):
        word, _, rest = line.partition(" ")
        if word == "in" and rest in ways:
            answers[way := rest] = ()
        else:
            answers[way] += (line,)
    return answers


def python(
    script: str, env: Environment = None, as_file: Path | None = None, storms: bool = False
) -> list[str]:
    """The lines that ``script`` prints; it must end well."""
    with started(script, env, as_file, storms) as process:
        out, err = process.communicate(timeout=1800)  # the test's own timeout comes first
    assert process.returncode == 0, f"ended with {process.returncode} after\n{out}\n{err}"
    return out.splitlines()
