"""``python -m tests.benchmarks``: time this package against onnxruntime's own kernels, PyTorch and OpenVINO."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ort_gridsample.cli.arguments import magnitude, positive
from ort_gridsample.model.files import written_whole
from ort_gridsample.progress import shown

from . import costs, plot, report, suite
from . import run as runner
from .summary import targets

THREADS = 2
#: Rounds at most, and seconds a case: the standard, and with ``--quick``.
ROUNDS, SECONDS = 21, 3.0
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help=f"threads for each contestant (default: {THREADS}; whole models: each side's own default)",
    )
    parser.add_argument(
        "--only", type=_pattern, default="", metavar="REGEX", help="only the cases whose names match (see --list)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and stop")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no costs at large sizes")
    parser.add_argument("--rounds", type=positive, metavar="N", help=f"at most (default: {ROUNDS})")
    parser.add_argument("--seconds", type=magnitude, metavar="S", help=f"for each case, about (default: {SECONDS:g})")
    parser.add_argument(
        "--json", type=_file, metavar="FILE", help="write everything as JSON; - prints it instead of the tables"
    )
    parser.add_argument("--plot", type=picture, metavar="FILE.png", help="draw the ratios of each case")
    parser.add_argument("--plot-means", type=picture, metavar="FILE.png", help="draw their means, group by group")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 1 where an answer was wrong, 130 after Ctrl-C."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    kernels: list[suite.Case] = list(suite.operator_cases())
    networks: list[suite.Case] = list(suite.network_cases())
    names = [f"costs: {name}" for name in costs.COSTS]
    wanted = arguments.only
    kernels, networks = ([c for c in cases if wanted.search(suite.name_of(c))] for cases in (kernels, networks))
    names = [name for name in names if wanted.search(name)]
    if not (kernels or networks or names):
        parser.error(f"argument --only: {wanted.pattern!r} matches no case of --list")
    if arguments.list:
        print("\n".join([*map(suite.name_of, (*kernels, *networks)), *names]))
        return 0
    effort = costs.Effort(
        threads=arguments.threads or THREADS,
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        seconds=arguments.seconds if arguments.seconds is not None else QUICK_SECONDS if arguments.quick else SECONDS,
        quick=arguments.quick,
    )
    contestants = runner.taking_part()
    results: list[runner.Result] = []
    found: list[costs.Cost] = []
    interrupted = False
    # extend() takes what a generator yielded until it was interrupted: that is shown too.
    try:
        with shown("benchmarks", len(kernels) + len(networks) + len(names)) as begin:
            how: dict[str, Any] = {"rounds": effort.rounds, "seconds": effort.seconds, "begin": begin}
            results.extend(runner.run_cases(kernels, contestants, threads=effort.threads, **how))
            results.extend(runner.run_cases(networks, contestants, threads=arguments.threads or 0, **how))
            found.extend(costs.run_costs([name.removeprefix("costs: ") for name in names], effort, begin))
    except KeyboardInterrupt:
        interrupted = True
    reached = targets(results) + [target for cost in found for target in cost.targets]
    environment = report.environment(effort.threads)
    if arguments.json:
        _write_json(arguments.json, report.as_json(environment, results, found, reached))
    if arguments.json != "-":
        parts = [report.environment_text(environment)]
        parts += [report.results_text(results), report.summary_text(results)] if results else []
        parts += [report.costs_text(found), report.targets_text(reached)]
        print("\n\n".join(filter(None, parts)))
    if arguments.plot:
        plot.draw_cases(arguments.plot, results)
    if arguments.plot_means:
        plot.draw_means(arguments.plot_means, results)
    return 130 if interrupted else int(any(result.wrong for result in results))


def _file(text: str) -> str:
    """A file that can be written: what would fail after minutes is said at once."""
    if text != "-" and not Path(text).resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not in a folder that exists")
    return text


def picture(text: str) -> str:
    """A file that a picture can be written to."""
    if not importlib.util.find_spec("matplotlib"):
        raise argparse.ArgumentTypeError("a picture needs matplotlib: pip install matplotlib")
    return _file(text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression ({error})") from None


def _write_json(file: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    with written_whole(file) as beside:
        beside.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
