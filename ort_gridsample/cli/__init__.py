"""The command line: one module a command, each with ``add_arguments(parser)`` and ``run(arguments)``."""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from ..functions.cores import get_core
from . import failures, output

#: Command -> its help line; its module is imported when it is run.
COMMANDS = {
    "bench": "time a model in onnxruntime alone and with this package, as a whole and node by node",
    "demo": "warp a photograph in every mode and padding, and draw the results",
    "inspect": "list the GridSample and AffineGrid nodes of a model",
    "library": "build a library of the compiled ops, which any program can use without Python",
    "patch": "write a model with its GridSample and AffineGrid nodes replaced by a target's",
    "verify": "run two models on the same inputs, and print how far they agree",
    "run": "run a model on arrays from files, or on random ones",
}

#: Exit statuses: a mistake of the user; one of this program; Ctrl-C; a closed pipe behind stdout.
MISTAKE, INTERNAL, INTERRUPTED, UNREAD = 2, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status: 0, 1 where ``verify`` found a difference, or one of those above."""
    try:
        with output.any_encoding():
            try:
                return _run(sys.argv[1:] if argv is None else list(argv))
            except KeyboardInterrupt:
                return _complain("interrupted", INTERRUPTED)
            finally:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return UNREAD


def _run(argv: list[str]) -> int:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--traceback", action="store_true", default=argparse.SUPPRESS, help="show where an error comes from"
    )
    parser = argparse.ArgumentParser(
        prog="ort-gridsample",
        description="Run any ONNX model that samples on a grid, in ONNX Runtime.",
        parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,  # which leaves --version on one line
    )
    versions = ", ".join(f"{name} {version}" for name, version in output.versions().items())
    parser.add_argument("--version", action="version", version=versions)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".", parents=[common])
        if name in argv:  # the others' modules need not be imported
            importlib.import_module(f"{__name__}.{name}").add_arguments(command)
    arguments = parser.parse_args(argv)
    try:
        get_core()  # a mistake in the environment is reported at once
    except ValueError as error:
        return _complain(str(error), MISTAKE)
    try:
        return int(importlib.import_module(f"{__name__}.{arguments.command}").run(arguments) or 0)
    except BrokenPipeError:
        raise
    except Exception as error:
        if "traceback" in arguments:
            traceback.print_exc()
        remedy = failures.remedy(error)
        if remedy is not None:
            return _complain(f"{failures.sentence(error)}{remedy}", MISTAKE)
        return _complain(f"a mistake of its own: {failures.sentence(error)}; {failures.REPORT}", INTERNAL)


def _complain(line: str, status: int) -> int:
    print(f"ort-gridsample: {line}", file=sys.stderr)
    return status
