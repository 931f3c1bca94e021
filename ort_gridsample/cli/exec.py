"""``ort-gridsample exec -- PROGRAM``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..startup import sitecustomize
from . import USER_ERROR, failures

if TYPE_CHECKING:
    from ..session.replacement import Option  # imports onnxruntime

#: The folder whose module Python imports when it starts.
_STARTUP = Path(sitecustomize.__file__).parent
#: The exit statuses of a shell for a program that cannot be started, and for one that is missing.
_NOT_STARTED = 126
_NOT_FOUND = 127


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = (
        "In PROGRAM and its child processes, onnxruntime.InferenceSession is "
        "ort_gridsample.InferenceSession, however it is imported. Exceptions are frozen programs, "
        "and those that ignore PYTHONPATH: python -S, -E and -I. If ort_gridsample cannot be "
        "imported, or its provider cannot be registered, onnxruntime's sessions are used, and a "
        "line on stderr has the reason. The exit status is the program's, 127 if it is not found, "
        "or 126 if it cannot be started."
    )
    parser.usage = "%(prog)s [-h] [--traceback] [--provider] [--report] -- PROGRAM ..."
    parser.add_argument(
        "--provider",
        action="store_true",
        help=(
            "keep onnxruntime's sessions, and add the execution provider to their providers, "
            "before the CPU's"
        ),
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help=(
            "print to stderr where the nodes of each session ran, unless a signal or os._exit ends "
            "the process"
        ),
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM",
        help="the program and its arguments, such as: -- python app.py",
    )


def run(arguments: argparse.Namespace) -> int:
    """Start the program. On POSIX, this process becomes the program."""
    command = list(arguments.program)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        return _fail("no program is given, expected one such as: exec -- python app.py")
    options: list[Option] = ["provider" if arguments.provider else "session"]
    if arguments.report:
        options.append("report")
    environment = environment_of(options, os.environ)
    try:
        if os.name == "posix":
            _become(command, environment)
        return _wait_for(command, environment)
    except OSError as error:
        is_missing = shutil.which(command[0]) is None and isinstance(error, FileNotFoundError)
        reason = "it is not found" if is_missing else failures.sentence(error)
        _fail(f"{command[0]!r} cannot be started: {reason}")
        return _NOT_FOUND if is_missing else _NOT_STARTED


def _fail(line: str) -> int:
    """Print the line of an error, and return the exit status of a mistake of the user."""
    print(f"ort-gridsample: {line}", file=sys.stderr)
    return USER_ERROR


def environment_of(options: Sequence[Option], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that has its sessions replaced.

    Args:
        options: what :func:`.session.replacement.session_class` gets.
    """
    folder = str(_STARTUP)
    # An empty PYTHONPATH is none, but an empty entry of several is the current folder.
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    entries = [entry for entry in entries if entry != folder] if entries != [""] else []
    path = os.pathsep.join([folder, *entries])
    return {**environment, "PYTHONPATH": path, sitecustomize.VARIABLE: ",".join(options)}


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the program.

    Raises:
        OSError: the program cannot be started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these signals, and the program would inherit that.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    os.execvpe(command[0], list(command), environment)


def _wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the program as a child process, and return its exit status.

    The console sends Ctrl-C to both processes. The program decides what it does then.
    """
    path = shutil.which(command[0], path=environment.get("PATH"))
    with subprocess.Popen([path or command[0], *command[1:]], env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
