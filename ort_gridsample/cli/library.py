"""``ort-gridsample library OUT``."""

import argparse

from ..custom_ops.compiled_ops.linking import MACHINES
from ..kernels.library_trailer import SUFFIXES
from ..library.builder import CPUS, NATIVE, build_library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = (
        "%(prog)s [-h] [--traceback] [--cpu CPU [CPU ...]] [--target MACHINE]\n"
        "                              [--model MODEL [MODEL ...]]\n"
        "                              OUT"
    )
    # Not required by argparse: OUT may be among the values of the option in front of it.
    parser.add_argument(
        "library",
        metavar="OUT",
        nargs="?",
        help="the library to write: a .so, .dll or .dylib",
    )
    parser.add_argument(
        "--cpu",
        action="extend",
        nargs="+",
        default=[],
        help=(
            f"the processors to build variants for: {', '.join(CPUS)}, or {NATIVE} "
            "(default: all of the machine's); the library uses the best variant that runs; "
            "may be repeated"
        ),
    )
    parser.add_argument(
        "--target",
        metavar="MACHINE",
        help=f"build for another machine: {', '.join(MACHINES)} (default: this one)",
    )
    parser.add_argument(
        "--model",
        action="extend",
        nargs="+",
        help="build only what these models need (default: everything); may be repeated",
    )
    parser.set_defaults(usage_error=parser.error)


def run(arguments: argparse.Namespace) -> None:
    """Build a library."""
    if arguments.library is None:
        arguments.library = _take_library(arguments.cpu, arguments.model)
    if arguments.library is None:
        arguments.usage_error("the following arguments are required: OUT")
    description = build_library(
        arguments.library,
        arguments.cpu,
        arguments.target,
        arguments.model,
    )
    print(f"{arguments.library}: {description}")


def _take_library(*options: list[str] | None) -> str | None:
    """Remove OUT from the values of the option that it follows, and return it.

    An option with several values also gets the argument behind them. Only a library can be meant if
    that argument ends as the name of one does: processors and models have other names.
    """
    for values in options:
        if values and _is_library(values[-1]):
            return values.pop()
    return None


def _is_library(value: str) -> bool:
    return value.endswith(tuple(SUFFIXES.values()))
