"""Try models on execution providers in a separate process, and keep the answers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from ..graph.files import atomic_write
from ..inference.runtime_probe import MIN_WRONG_DIFFERENCE
from ..kernels.cache_folder import cache_folder, sealed, unsealed
from ..reference.arrays import Array
from ..system.process import interpreter
from . import accelerator_process
from .probe_cases import ProbeCase

#: Execution providers with their options.
Providers: TypeAlias = Sequence[tuple[str, Mapping[str, str]]]

#: The answer if the providers run a probe correctly. Any other answer is the reason why not.
RUNS = "yes"
#: How the answer begins if the providers take too long.
TIMED_OUT = "it takes longer"
#: How long a provider may take to compile and run one node.
SECONDS = 60
#: After so many seconds a refusal is out of date, because a driver may have been installed.
_MAX_REFUSAL_AGE = 86400.0
#: What onnxruntime's error contains if a provider does not take all nodes.
_IS_LEFT_TO_CPU = "fallback to CPU EP has been explicitly disabled"
#: The number of characters of an error that are shown.
_MAX_ERROR_LENGTH = 300
_NO_PYTHON = "a host program that embeds Python cannot start a probe process"
_SCRIPT = Path(accelerator_process.__file__)


class ProbeProcess:
    """A process that runs models, and that a provider may crash.

    The process starts with the first model. It starts again with the next model after it ended.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def run(self, *arguments: object) -> Array | str:
        """Call :func:`accelerator_process.answer` with ``arguments`` in the process.

        Returns:
            The output of the model, or the reason why there is none.
        """
        python = interpreter()
        if python is None:
            return _NO_PYTHON
        is_new = self._process is None
        process = self._process or _start(python)
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(SECONDS, process.kill)
        start = time.monotonic()
        timer.start()
        try:
            if is_new:
                _skip_output(process.stdout)
            pickle.dump(arguments, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            is_late = time.monotonic() - start >= SECONDS
            status = process.wait()
            self.close()
            if is_late:
                return f"{TIMED_OUT} than {SECONDS} seconds"
            return f"the provider crashed (exit status {status})"
        finally:
            timer.cancel()


def _start(python: str) -> subprocess.Popen[bytes]:
    """Start the process of :mod:`.accelerator_process` with the path of this Python."""
    run_script = f"runpy.run_path({str(_SCRIPT)!r}, None, '__main__')"
    code = f"import sys, runpy; sys.path[:] = {sys.path!r}; {run_script}"
    pipes: Any = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    return subprocess.Popen([python, "-c", code], **pipes)


def _skip_output(stdout: IO[bytes]) -> None:
    """Read what a new process prints before it is ready.

    Raises:
        EOFError: the process ended.
    """
    line = stdout.readline()
    while not line.endswith(accelerator_process.READY):
        if not line:
            raise EOFError
        line = stdout.readline()


def try_on_providers(
    process: ProbeProcess,
    model: bytes,
    providers: Providers,
    case: ProbeCase,
) -> str:
    """Run a form of a node on execution providers, and check the output.

    Args:
        process: the process to run in.
        model: the model of ``case``, or a rewritten one.
        providers: the providers, which must run all nodes.
        case: the inputs and the expected output.

    Returns:
        RUNS, or the reason why the providers do not run the model, or not correctly.
    """
    feeds, expected = case.make()
    names = [name for name, _ in providers]
    options = [dict(provider_options) for _, provider_options in providers]
    output = process.run(model, names, options, feeds)
    if isinstance(output, str):
        if _IS_LEFT_TO_CPU in output:
            return "it leaves the node to the CPU"
        is_short = len(output) <= _MAX_ERROR_LENGTH
        return output if is_short else f"…{output[-_MAX_ERROR_LENGTH:]}"
    if output.shape != expected.shape:
        return f"its answer is of shape {output.shape}, expected {expected.shape}"
    differences = np.nan_to_num(np.abs(output - expected), nan=np.inf, posinf=np.inf)
    difference = float(differences.max(initial=0))
    if difference < MIN_WRONG_DIFFERENCE:
        return RUNS
    return f"its answer is off by {difference:.2g} where values are in [0, 1]"


class AnswerCache:
    """The answers of :func:`try_on_providers` by key, in memory and on disk.

    Forked processes inherit the answers in memory. A file holds the text of an answer and its hash,
    and has the key as its name. A refusal on disk is valid for a day.
    """

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """Return the answer, or None if there is none."""
        answer = self._answers.get(key) or self._read(key)
        if answer:
            self._answers[key] = answer
        return answer

    def put(self, key: str, answer: str) -> None:
        """Keep an answer in memory, and on disk if it is valid for other processes.

        If the provider timed out, the machine may be busy. In a host program, the provider was not
        tried, and the next process may be a Python.
        """
        self._answers[key] = answer
        if answer != _NO_PYTHON and not answer.startswith(TIMED_OUT):
            self._write(key, answer)

    def _read(self, key: str) -> str | None:
        with suppress(OSError, RuntimeError):  # there is no file, or no home directory
            file = _folder() / key
            encoded = unsealed(file.read_bytes(), key)
            is_new = time.time() - file.stat().st_mtime < _MAX_REFUSAL_AGE
            if encoded is not None and (is_new or encoded == RUNS.encode()):
                return encoded.decode()
        return None

    def _write(self, key: str, answer: str) -> None:
        with suppress(OSError, RuntimeError):
            _folder().mkdir(parents=True, exist_ok=True)
            with atomic_write(_folder() / key) as file:
                file.write_bytes(sealed(answer.encode(errors="backslashreplace"), key))


def _folder() -> Path:
    return cache_folder() / "providers"


#: The answers of this process.
ANSWERS = AnswerCache()
