"""Run models in every runtime, each in its own environment, and print the results.

This is ``python -m tests.runtimes``.
"""

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy
import onnx

import ort_gridsample as ogs
from ort_gridsample.graph.runtimes import RuntimeName
from ort_gridsample.progress import progress_bar

from . import report
from .environments import CACHE, NotInstalledError, environment
from .report import Result
from .table import RUNTIMES, Runtime
from .trials import FORMS, Trial, trials
from .verdicts import Verdict, judge
from .workers import Worker


def run(
    runtime: Runtime,
    chosen: Sequence[Trial],
    cache: Path,
    seconds: float,
    form: RuntimeName | None = None,
) -> Result:
    """Run the chosen trials in a runtime, each for at most so many ``seconds``.

    Lowered models have the form for this runtime, or ``form``.
    """
    try:
        command, versions = environment(runtime, cache)
    except NotInstalledError as error:
        return Result(runtime, "", {}, str(error))
    cells = {}
    with Worker(command, seconds) as worker, progress_bar(runtime.name, len(chosen)) as begin:
        for trial in chosen:
            begin(trial.name)
            try:
                task = trial.task(2 if runtime.batches else 1, form or runtime.form)
                cells[trial] = judge(task, worker.ask(task), runtime.tolerance)
            except ogs.GridSampleError as error:
                cells[trial] = Verdict("refused", message=f"patch_model: {error}")
    return Result(runtime, versions, cells)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. The exit status is 1 if a lowered model is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.runtimes", description=__doc__)
    parser.add_argument(
        "runtimes", nargs="*", metavar="RUNTIME", help=f"of {', '.join(RUNTIMES)}; all by default"
    )
    parser.add_argument("--fast", action="store_true", help="only those that install in seconds")
    parser.add_argument(
        "--list", action="store_true", help="print what would be tried, and run nothing"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only the cells whose name this matches"
    )
    parser.add_argument(
        "--form", choices=FORMS, help="only the standard operators, or what a target makes of them"
    )
    parser.add_argument(
        "--for",
        dest="lowered_form",
        choices=get_args(RuntimeName),
        help="the runtime that lowered models are for (default: the one that runs them)",
    )
    parser.add_argument(
        "--cache", type=Path, default=CACHE, metavar="DIR", help="keeps the environments"
    )
    parser.add_argument(
        "--seconds", type=float, default=120, help="how long a runtime may take for one model"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.runtimes) - set(RUNTIMES)
    if unknown:
        parser.error(
            f"no runtime is called {', '.join(sorted(unknown))}; there are {', '.join(RUNTIMES)}"
        )
    rows = [RUNTIMES[name] for name in options.runtimes or RUNTIMES]
    rows = [row for row in rows if row.fast or not options.fast]
    if options.list:
        print(report.runtimes(rows))
        return 0
    chosen = [
        trial
        for trial in trials()
        if re.search(options.only, trial.name) and options.form in (None, trial.form)
    ]
    cache = options.cache.resolve()
    results = [run(row, chosen, cache, options.seconds, options.lowered_form) for row in rows]
    versions = (
        f"ort-gridsample {ogs.__version__}, onnx {onnx.__version__}, numpy {numpy.__version__}"
    )
    header = f"{datetime.date.today()}; {versions}"
    print("\n\n".join([header, report.summary(results), report.reasons(results)]))
    lowered = [
        verdict
        for result in results
        for trial, verdict in result.cells.items()
        if trial.form == "primitives"
    ]
    return int(any(verdict.kind != "right" for verdict in lowered))


if __name__ == "__main__":
    sys.exit(main())
