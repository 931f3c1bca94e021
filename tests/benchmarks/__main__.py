"""``python -m tests.benchmarks``: time this package against onnxruntime's own kernels, PyTorch and OpenVINO."""

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
QUICK = {"rounds": 3, "seconds": 0.3}  # at most, and a case


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 where an answer was wrong, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    each_has = f"for each backend (default: {THREADS}; whole models: each side's own)"
    parser.add_argument("--threads", type=positive, metavar="N", help=each_has)
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
    wanted, every = arguments.only, (suite.operator_cases(), suite.network_cases())
    kernels, networks = ([case for case in cases if wanted.search(case.name)] for cases in every)
    others = [report.TINY_CALL] * bool(wanted.search(report.TINY_CALL))
    if not (kernels or networks or others):
        parser.error(f"argument --only: {wanted.pattern!r} matches no case of --list")
    if arguments.list:
        print("\n".join([*(case.name for case in (*kernels, *networks)), *others]))
        return 0
    rounds, seconds = arguments.rounds, arguments.seconds
    threads, backends = (
        arguments.threads or THREADS,
        [backend for backend in BACKENDS if backend.installed],
    )
    results: list[runner.Result] = []
    found, interrupted = list[str](), False
    try:
        with (
            progress_bar("benchmarks", len(kernels) + len(networks) + len(others)) as begin,
            kept(),
        ):
            for case in (*kernels, *networks):
                begin(case.name)
                of_each = threads if case.operator else arguments.threads or 0
                results.append(runner.run_case(case, backends, of_each, rounds, seconds))
            for name in others:
                begin(name)
                found.append(report.tiny_call(threads, rounds, seconds))
    except KeyboardInterrupt:
        interrupted = True
    parts = [report.environment_text(threads)]
    parts += [report.results_text(results), report.summary_text(results)] if results else []
    print("\n\n".join(filter(None, [*parts, *found])))
    if arguments.plot:
        plot.draw_cases(arguments.plot, results)
    if arguments.plot_means:
        plot.draw_means(arguments.plot_means, results)
    return 130 if interrupted else int(any(result.wrong for result in results))


def _picture(text: str) -> str:
    """A file that a picture can be written to: what would fail after minutes is said at once."""
    if not importlib.util.find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("a picture needs matplotlib: pip install matplotlib")
    if not Path(text).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not in a folder that exists")
    return text


if __name__ == "__main__":
    sys.exit(main())
