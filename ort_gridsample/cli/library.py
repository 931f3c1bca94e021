"""``ort-gridsample library OUT``."""

import argparse

from ..library.builder import CPUS, NATIVE, TARGETS, build_library


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("library", metavar="OUT", help="the library that is written: a .so, .dll or .dylib")
    cpus = f"the processors that it has variants for, of which it takes the best that runs: {', '.join(CPUS)}, or "
    add("--cpu", nargs="+", default=[], help=f"{cpus}{NATIVE} (default: all of its machine's)")
    machines = f"another machine: {', '.join(TARGETS)} (default: this one)"
    add("--target", metavar="MACHINE", help=machines)
    add("--model", nargs="+", default=[], help="only what these models need (default: everything)")


def run(arguments: argparse.Namespace) -> None:
    said = build_library(arguments.library, arguments.cpu, arguments.target, arguments.model)
    print(f"{arguments.library}: {said}")
