"""``ort-gridsample bench [MODEL]``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..bench import costs, plot, report, suite, user_model
from ..bench import run as runner
from ..bench.progress import Progress
from ..bench.summary import targets
from ..errors import GridSampleError
from ..model.files import written_whole
from ..runtime.session import InferenceSession
from . import inputs

THREADS = 2
#: Rounds at most, and seconds a case: the standard, and with ``--quick``.
ROUNDS, SECONDS = 21, 3.0
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="an ONNX model (default: the standard suite)")
    inputs.add_arguments(parser)
    parser.add_argument(
        "--threads",
        type=_at_least_one,
        metavar="N",
        help=f"threads for each contestant (default: {THREADS}; whole models and MODEL: each side's own default)",
    )
    parser.add_argument("--only", metavar="REGEX", help="of the suite, only the cases whose names match (see --list)")
    parser.add_argument("--list", action="store_true", help="print the names of the suite's cases, and stop")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no costs at large sizes")
    parser.add_argument("--rounds", type=_at_least_one, metavar="N", help=f"at most (default: {ROUNDS})")
    parser.add_argument("--seconds", type=float, metavar="S", help=f"for each case, about (default: {SECONDS:g})")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON; - prints it instead of the tables")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the ratios")


def run(arguments: argparse.Namespace) -> None:
    _check(arguments)
    effort = costs.Effort(
        threads=arguments.threads or THREADS,
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        seconds=arguments.seconds if arguments.seconds is not None else QUICK_SECONDS if arguments.quick else SECONDS,
        quick=arguments.quick,
    )
    if arguments.model:
        _bench_model(arguments, effort)
    else:
        _bench_suite(arguments, effort)


def _bench_suite(arguments: argparse.Namespace, effort: costs.Effort) -> None:
    kernels: list[suite.Case] = list(suite.operator_cases())
    networks: list[suite.Case] = list(suite.network_cases())
    names = [f"costs: {name}" for name in costs.COSTS]
    wanted = _pattern(arguments.only)
    kernels, networks = ([c for c in cases if wanted.search(suite.name_of(c))] for cases in (kernels, networks))
    names = [name for name in names if wanted.search(name)]
    if not (kernels or networks or names):
        raise GridSampleError("bench", "--only", f"{arguments.only!r}, which matches no case", "one of --list")
    if arguments.list:
        print("\n".join([*map(suite.name_of, (*kernels, *networks)), *names]))
        return
    progress = Progress(len(kernels) + len(networks) + len(names))
    contestants = runner.taking_part()
    how: dict[str, Any] = {"rounds": effort.rounds, "seconds": effort.seconds, "progress": progress}
    results: list[runner.Result] = []
    found: list[costs.Cost] = []
    interrupted = False
    # extend() takes what a generator yielded until it was interrupted: that is shown too.
    try:
        results.extend(runner.run_cases(kernels, contestants, threads=effort.threads, **how))
        results.extend(runner.run_cases(networks, contestants, threads=arguments.threads or 0, **how))
        found.extend(costs.run_costs([name.removeprefix("costs: ") for name in names], effort, progress))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.done()
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
        plot.draw(arguments.plot, results)
    if interrupted:
        raise KeyboardInterrupt
    _complain_of_wrong_answers(results)


def _bench_model(arguments: argparse.Namespace, effort: costs.Effort) -> None:
    feeds = inputs.feeds(InferenceSession(arguments.model), arguments, random=True)
    progress = Progress(len([c for c in runner.taking_part() if c.networks]) + 1)
    try:
        found = user_model.run_model(
            arguments.model,
            feeds,
            threads=arguments.threads or 0,
            rounds=effort.rounds,
            seconds=effort.seconds,
            progress=progress,
        )
    finally:
        progress.done()
    environment = report.environment(arguments.threads or 0)
    if arguments.json:
        _write_json(arguments.json, report.model_json(environment, found))
    if arguments.json != "-":
        print(f"{report.environment_text(environment)}\n\n{report.model_text(found)}")
    if arguments.plot:
        plot.draw(arguments.plot, [found.result])


def _check(arguments: argparse.Namespace) -> None:
    """What would fail after minutes is said at once."""
    for option, file in (("--json", arguments.json), ("--plot", arguments.plot)):
        if file and file != "-" and not Path(file).resolve().parent.is_dir():
            raise GridSampleError("bench", option, repr(file), "a file in a folder that exists")
    if arguments.plot and not importlib.util.find_spec("matplotlib"):
        raise ModuleNotFoundError("matplotlib", name="matplotlib")
    if arguments.model:
        if arguments.only or arguments.list:
            raise GridSampleError("bench", "--only" if arguments.only else "--list", "given", "no MODEL beside it")
    elif arguments.input or arguments.shape:
        raise GridSampleError("bench", "--input" if arguments.input else "--shape", "given", "a MODEL beside it")


def _pattern(regex: str | None) -> re.Pattern[str]:
    try:
        return re.compile(regex or "")
    except re.error as error:
        raise GridSampleError("bench", "--only", f"{regex!r} ({error})", "a regular expression") from None


def _write_json(file: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    with written_whole(file) as beside:
        beside.write_text(text, encoding="utf-8")


def _complain_of_wrong_answers(results: Sequence[runner.Result]) -> None:
    wrong: Iterable[tuple[str, str, str]] = (
        (suite.name_of(result.case), name, what) for result in results for name, what in result.wrong.items()
    )
    for case, name, what in wrong:
        raise GridSampleError(case, f"the answer of {name}", f"wrong ({what})", "the others' answer")


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number
