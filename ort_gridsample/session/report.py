"""Print at the end of a process where the nodes of its sessions run."""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from ..graph.files import Model
from ..system.process import after_fork

#: The environment variable of startup/sitecustomize.py, which cannot be imported from here.
VARIABLE = "ORT_GRIDSAMPLE_EXEC"
#: The line of a model without lines of its own.
NO_NODES = "no node that samples on a grid"


class Report:
    """The models that sessions of this process opened, with a line for each placement."""

    def __init__(self) -> None:
        # A program of the command may open this package's sessions by their own name only.
        self.is_enabled = "report" in os.environ.get(VARIABLE, "").split(",")
        #: Description of a model, and its lines -> the number of sessions.
        self._session_counts = Counter[tuple[str, tuple[str, ...]]]()
        #: Whether this process prints the report when it ends.
        self._is_scheduled = False
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        """Forget the sessions of the parent, which reports them itself."""
        self._session_counts = Counter()
        self._is_scheduled = False

    def add(self, model: Model, lines: Iterable[str]) -> None:
        """Add a session of ``model``."""
        self._session_counts[_description(model), tuple(lines)] += 1
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule()

    def _schedule(self) -> None:
        """Print the report when the process ends."""
        atexit.register(self.print)
        process = sys.modules.get("multiprocessing.process")
        util = sys.modules.get("multiprocessing.util")
        if process is not None and util is not None and process.parent_process() is not None:
            # Most children of multiprocessing call no exit handlers but its own, the lowest
            # priority last.
            util.Finalize(None, self.print, exitpriority=-1000)

    def print(self) -> None:
        """Print the sessions to stderr, each once."""
        session_counts = self._session_counts
        self._session_counts = Counter()
        output = list[str]()
        for (description, lines), count in session_counts.items():
            times = f" ({count} sessions)" if count > 1 else ""
            output.append(f"ort-gridsample: {description}{times}\n")
            output += [f"  {line}\n" for line in lines or (NO_NODES,)]
        if sys.stderr is not None:
            with suppress(OSError, ValueError):  # it may be closed
                sys.stderr.write("".join(output))
                sys.stderr.flush()


_report = Report()


def enable() -> None:
    """Report the sessions that are opened from now on."""
    _report.is_enabled = True


def is_enabled() -> bool:
    """Whether sessions are reported."""
    return _report.is_enabled


def add(model: Model, lines: Iterable[object]) -> None:
    """Report a session of ``model`` with ``lines``, if reports are enabled."""
    if _report.is_enabled:
        _report.add(model, map(str, lines))


def _description(model: Model) -> str:
    """Return the path of a model, or the size of its bytes."""
    if isinstance(model, (str, os.PathLike)):
        return str(os.fspath(model))
    if isinstance(model, bytes):
        return f"a model of {len(model)} bytes"
    return f"a {type(model).__name__}"
