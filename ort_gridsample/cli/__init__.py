"""The command line.

Each command is a module with two functions: ``add_arguments(parser)``, which also sets the
parser's epilog, and ``run(arguments)``.
"""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from .. import settings
from ..versions import check_module
from . import failures, output

#: Command -> its line of help. The command's module is imported only if the command runs.
COMMANDS = {
    "bench": "time a model in onnxruntime alone and with this package, as a whole and node by node",
    "demo": "warp a photograph in every mode and padding, and draw the results",
    "exec": "run a program with the sessions of onnxruntime replaced by those of this package",
    "inspect": "list a model's GridSample and AffineGrid nodes, and why onnxruntime refuses some",
    "library": "build a library of the compiled ops, which any program can use without Python",
    "patch": "write a model with its GridSample and AffineGrid nodes replaced by a target's",
    "verify": "run two models on the same inputs, and print how far they agree",
    "run": "run a model on arrays from files, or on random ones",
}

#: The commands that work where onnxruntime is not installed.
_WITHOUT_ONNXRUNTIME = ("exec", "inspect", "patch")

#: Exit statuses: after an error of the user, after an internal error, after Ctrl-C, and if the
#: reader of stdout closed the pipe.
USER_ERROR = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
CLOSED_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    On POSIX, ``exec`` does not return: the process becomes another program.

    Args:
        argv: the arguments, or None for those of the process.

    Returns:
        The exit status: 0, one of the constants above, or one of ``verify``: 1 for a difference,
        3 if B does not run.
    """
    try:
        with output.any_encoding():
            try:
                return _run(sys.argv[1:] if argv is None else list(argv))
            except KeyboardInterrupt:
                return _fail("interrupted", INTERRUPTED)
            finally:
                sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return CLOSED_PIPE
    except OSError as error:  # such as a full disk
        _discard_output()
        return _fail(f"the output cannot be written: {failures.sentence(error)}", USER_ERROR)


def _discard_output() -> None:
    """Discard what stdout holds. Python flushes it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    """Run one command, and turn its errors into exit statuses."""
    try:
        parser = _parser(argv)
    except ImportError as error:
        return _fail(str(error), USER_ERROR)
    arguments = parser.parse_args(argv)
    try:
        _check_environment()  # report a mistake in the environment before all others
    except ValueError as error:
        return _fail(str(error), USER_ERROR)
    command = importlib.import_module(f"{__name__}.{arguments.command}")
    try:
        return int(command.run(arguments) or 0)
    except BrokenPipeError:
        raise
    except Exception as error:
        if "traceback" in arguments:
            traceback.print_exc()
        text = failures.sentence(error)
        remedy = failures.remedy(error)
        if remedy is None:
            return _fail(f"internal error: {text}; {failures.REPORT}", INTERNAL_ERROR)
        return _fail(f"{text}{remedy}", USER_ERROR)


def _check_environment() -> None:
    """Check the environment variables of all settings.

    Raises:
        GridSampleError: the value of a variable is not allowed.
    """
    for setting in (settings.CORE, settings.OPS, settings.NUM_THREADS):
        setting.get()


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command in ``argv``.

    The parser has all commands, but only the arguments of this one.
    """
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--traceback",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show where an error comes from",
    )
    parser = argparse.ArgumentParser(
        prog="ort-gridsample",
        description="Run any ONNX model that samples on a grid, in ONNX Runtime.",
        parents=[common],
        # The default formatter breaks the line of --version.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    versions = ", ".join(f"{name} {version}" for name, version in output.versions().items())
    parser.add_argument("--version", action="version", version=versions)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen_command = next((word for word in argv if not word.startswith("-")), None)
    for name, help_line in COMMANDS.items():
        description = f"{help_line[0].upper()}{help_line[1:]}."
        command = commands.add_parser(
            name,
            help=help_line,
            description=description,
            parents=[common],
        )
        if name == chosen_command:
            if name not in _WITHOUT_ONNXRUNTIME:
                check_module("onnxruntime")
            importlib.import_module(f"{__name__}.{name}").add_arguments(command)
    return parser


def _fail(line: str, status: int) -> int:
    """Print the line of an error, and return the exit status."""
    print(f"ort-gridsample: {line}", file=sys.stderr)
    return status
