"""A process that runs models on execution providers, and that a provider may crash."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ..reference.arrays import Array
from ..system.process import interpreter
from . import provider_script
from .plugins import Devices, Providers, are_found_by_name, plugins

#: How the reason begins if the providers take too long.
TIMED_OUT = "it takes longer"
#: How long a provider may take to compile and run one node.
SECONDS = 60
#: What onnxruntime's error contains if a provider does not take all nodes.
_IS_LEFT_TO_CPU = "fallback to CPU EP has been explicitly disabled"
#: The number of characters of an error that are shown.
_MAX_ERROR_LENGTH = 300
#: The reason if no process can be started.
NO_PYTHON = "a host program that embeds Python cannot start a probe process"
_SCRIPT = Path(provider_script.__file__)


class ProviderProcess:
    """A :class:`.Runner` that runs models on execution providers only, in a process of its own.

    The process starts with the first model. It starts again with the next model after it ended.
    The libraries of plugins are registered there as well.

    Args:
        providers: the providers, which must run all nodes.
        devices: the devices of those that are plugins.
    """

    def __init__(self, providers: Providers, devices: Devices | None = None) -> None:
        self._by_name = are_found_by_name(providers) and not devices
        self._names = [name for name, _ in providers]
        self._options = [dict(provider_options) for _, provider_options in providers]
        self._devices = dict(devices or {})
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def run(
        self,
        model: bytes,
        feeds: Sequence[Mapping[str, Array]],
        *,
        optimized: bool,
    ) -> list[list[Array]]:
        """See :meth:`.Runner.run`.

        Raises:
            RuntimeError: the providers do not run the model. The message is the reason.
        """
        outputs: list[list[Array]] = self._answer(model, feeds, optimized, False)
        return outputs

    def seconds(self, model: bytes, feeds: Mapping[str, Array]) -> float:
        """Return the seconds of a run of a serialized model.

        Raises:
            RuntimeError: the providers do not run the model. The message is the reason.
        """
        return float(self._answer(model, [feeds], True, True))

    def _answer(self, model: bytes, *arguments: object) -> Any:
        """Return the result of :func:`provider_script.answer` in the process.

        Args:
            model: the serialized model.

        Raises:
            RuntimeError: the result is the reason why there is none.
        """
        known_plugins = plugins()
        libraries = [tuple(known_plugins[name]) for name in self._names if name in known_plugins]
        devices = None if self._by_name else self._devices
        answer = self._call(model, self._names, self._options, libraries, devices, *arguments)
        if not isinstance(answer, str):
            return answer
        if _IS_LEFT_TO_CPU in answer:
            raise RuntimeError("it leaves the node to the CPU")
        is_short = len(answer) <= _MAX_ERROR_LENGTH
        raise RuntimeError(answer if is_short else f"…{answer[-_MAX_ERROR_LENGTH:]}")

    def _call(self, *arguments: object) -> Any:
        """Call :func:`provider_script.answer` with ``arguments`` in the process.

        Returns:
            Its result, or the reason why there is none.
        """
        python = interpreter()
        if python is None:
            return NO_PYTHON
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
    """Start the process of :mod:`.provider_script` with the path of this Python."""
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
    while not line.endswith(provider_script.READY):
        if not line:
            raise EOFError
        line = stdout.readline()
