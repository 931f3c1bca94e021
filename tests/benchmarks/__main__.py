"""Time this package against onnxruntime's own kernels, PyTorch and OpenVINO.

This is ``python -m tests.benchmarks``.
"""

import argparse
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ort_gridsample.cli.arguments import magnitude, positive
from ort_gridsample.progress import progress_bar

from . import plot, report, suite
from . import run as runner
from .backends import BACKENDS, kept

THREADS = 2
#: The options of ``--quick``.
QUICK = {"rounds": 3, "seconds": 0.3}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. The exit status is 1 if an output is wrong, and 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    threads_help = f"for each backend (default: {THREADS}; whole models: each side's own)"
    parser.add_argument("--threads", type=positive, metavar="N", help=threads_help)
    parser.add_argument(
        "--only", type=re.compile, default="", metavar="REGEX", help="only cases whose names match"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of the cases, and stop"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--rounds", type=positive, default=21, metavar="N", help="at most (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=magnitude, default=3.0, metavar="S", help="a case, about (default: 3)"
    )
    parser.add_argument(
        "--plot", type=_picture, metavar="FILE.png", help="draw the ratios of each case"
    )
    parser.add_argument(
        "--plot-means", type=_picture, metavar="FILE.png", help="draw their means, group by group"
    )
    arguments = parser.parse_args(argv)
    if arguments.quick:
        parser.set_defaults(**QUICK)
        arguments = parser.parse_args(argv)
    pattern = arguments.only
    all_cases = (*suite.operator_cases(), *suite.network_cases())
    cases = [case for case in all_cases if pattern.search(case.name)]
    has_tiny_call = bool(pattern.search(report.TINY_CALL))
    names = [case.name for case in cases]
    if has_tiny_call:
        names.append(report.TINY_CALL)
    if not names:
        parser.error(f"argument --only: {pattern.pattern!r} matches no case of --list")
    if arguments.list:
        print("\n".join(names))
        return 0
    rounds = arguments.rounds
    seconds = arguments.seconds
    threads = arguments.threads or THREADS
    backends = [backend for backend in BACKENDS if backend.installed]
    results: list[runner.Result] = []
    tiny_call = ""
    interrupted = False
    try:
        with progress_bar("benchmarks", len(names)) as begin, kept():
            for case in cases:
                begin(case.name)
                case_threads = threads if case.operator else arguments.threads or 0
                result = runner.run_case(case, backends, case_threads, rounds, seconds)
                results.append(result)
            if has_tiny_call:
                begin(report.TINY_CALL)
                functions = report.tiny_function(threads, rounds, seconds)
                tiny_call = f"{functions}\n\n{report.tiny_call(threads, rounds, seconds)}"
    except KeyboardInterrupt:
        interrupted = True
    parts = [report.environment_text(threads)]
    if results:
        parts += [report.results_text(results), report.summary_text(results)]
    print("\n\n".join(filter(None, [*parts, tiny_call])))
    if arguments.plot:
        plot.draw_cases(arguments.plot, results)
    if arguments.plot_means:
        plot.draw_means(arguments.plot_means, results)
    return 130 if interrupted else int(any(result.wrong for result in results))


def _picture(text: str) -> str:
    """Check that a picture can be written to a file, before minutes of measurements."""
    if not importlib.util.find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("a picture needs matplotlib: pip install matplotlib")
    if not Path(text).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not in a folder that exists")
    return text


if __name__ == "__main__":
    sys.exit(main())
