"""The command line: one module a command, each with ``add_arguments(parser)`` and ``run(arguments)``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

#: Command -> what it does, in a line; its module is imported when it is asked for.
COMMANDS = {
    "bench": "time a model in onnxruntime alone and with this package, as a whole and node by node",
    "demo": "warp a photograph in every mode and padding, and show what happened in a picture",
    "inspect": "list the GridSample and AffineGrid nodes of a model",
    "patch": "write a model whose GridSample and AffineGrid nodes are ort_gridsample's, or another target's",
    "verify": "run two models on the same inputs, and say how far they agree",
    "run": "run a model on arrays from files, or on random ones",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 where it did what was asked, 2 and one line on stderr where the user must mend something."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="ort-gridsample", description="Run any ONNX model that samples on a grid, in ONNX Runtime."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name in argv:  # the others' modules need not be imported
            importlib.import_module(f"{__name__}.{name}").add_arguments(command)
    arguments = parser.parse_args(argv)
    try:
        module = importlib.import_module(f"{__name__}.{arguments.command}")
        return int(module.run(arguments) or 0)
    except KeyboardInterrupt:
        return _complain("interrupted")
    except ModuleNotFoundError as error:
        return _complain(f"{arguments.command} needs {error.name}: pip install 'ort-gridsample[demo]'")
    except Exception as error:
        return _complain(" ".join(str(error).split()) or type(error).__name__)


def _complain(line: str) -> int:
    print(f"ort-gridsample: {line}", file=sys.stderr)
    return 2
