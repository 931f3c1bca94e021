"""Run tasks in the process of a runtime. A crash or a hang is an error like any other."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx

from .trials import Arrays, Task


@dataclass(frozen=True)
class Answer:
    """The answer of a runtime to a task.

    Attributes:
        outputs: those for each feed, or none if there is an error.
        error: the error.
        remark: a remark of the adapter.
        milliseconds: of a processor, for the first feed: the median of several runs, if it was
            asked for.
    """

    outputs: tuple[Arrays, ...] = ()
    error: str = ""
    remark: str = ""
    milliseconds: float = 0.0


class Worker:
    """The process of a runtime, which is started when it is needed.

    Attributes:
        grace: seconds that the process may take to end after its input ends.
    """

    grace = 1.0

    def __init__(self, command: tuple[str, ...], seconds: float) -> None:
        """Create a worker without a process.

        Args:
            command: the command that runs the adapter.
            seconds: the time that it may take to start, or for one task.
        """
        self.command = command
        self.seconds = seconds
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        self.folder = tempfile.TemporaryDirectory(prefix="runtimes-")
        self.printed = (Path(self.folder.name) / "printed.txt").open("w+b")
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._end()
        self.printed.close()
        self.folder.cleanup()

    def ask(self, task: Task, timed_runs: int = 0) -> Answer:
        """Return the runtime's answer. A crash, a hang and a malformed answer are errors.

        Args:
            task: the task.
            timed_runs: how often the first feed is run again, to time it.
        """
        if error := self.start():
            return Answer(error=error)
        with tempfile.TemporaryDirectory(dir=self.folder.name) as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(task.model, path)
            names = [output.name for output in task.model.graph.output]
            feeds = [{name: _encoded(value) for name, value in feed.items()} for feed in task.feeds]
            before = self.printed.seek(0, os.SEEK_END)
            job = {"model": str(path), "feeds": feeds, "outputs": names, "timed_runs": timed_runs}
            answer = self.exchange(json.dumps(job))
        if isinstance(answer, str):
            return Answer(error=answer)
        if "error" in answer:
            return Answer(error=f"{answer['error']}\n{self._printed(before)}")
        outputs = tuple(
            dict(zip(names, map(_decoded, values), strict=False)) for values in answer["outputs"]
        )
        remark = str(answer.get("remark", ""))
        return Answer(outputs, remark=remark, milliseconds=answer.get("milliseconds", 0.0))

    def start(self) -> str:
        """Start the process if there is none. Return an error, or ""."""
        if self.process is not None:
            return ""
        self.socket, other = socket.socketpair()
        with other:  # a socket, unlike a pipe, has a timeout
            ends: dict[str, Any] = {"stdin": other, "stdout": other, "stderr": self.printed}
            self.process = subprocess.Popen(
                self.command, **ends, cwd=self.folder.name, start_new_session=True
            )
        self.lines = self.socket.makefile("rw", encoding="utf-8")
        began = self.exchange("")
        return began if isinstance(began, str) else ""

    def exchange(self, line: str) -> dict[str, Any] | str:
        """Send a line, or nothing, and return the answer, or an error if the process has ended."""
        before = self.printed.seek(0, os.SEEK_END)
        self.socket.settimeout(self.seconds)
        try:
            self.lines.write(line and f"{line}\n")
            self.lines.flush()
            answer = self.lines.readline()
        except TimeoutError:
            self._end()
            return f"timed out after {self.seconds:.0f} s"
        except ConnectionError:
            answer = ""
        if answer:
            return json.loads(answer)
        code = self._end()
        ending = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"crashed: {ending}\n{self._printed(before)}"

    def _printed(self, since: int) -> str:
        self.printed.seek(since)
        return self.printed.read().decode(errors="replace")

    def _end(self) -> int:
        """End the process and its child processes, and return the exit status."""
        if self.process is None:
            return 0
        for end in (self.lines, self.socket):
            with contextlib.suppress(ConnectionError):
                end.close()
        try:
            code = self.process.wait(self.grace)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        self.process = None
        return code


def _encoded(value: np.ndarray) -> dict[str, Any]:
    return {
        "type": value.dtype.name,
        "shape": value.shape,
        "data": base64.b64encode(value.tobytes()).decode(),
    }


def _decoded(array: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(array["data"]), array["type"]).reshape(array["shape"])
