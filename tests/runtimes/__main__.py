"""``python -m tests.runtimes``: try every runtime, each in an environment of its own, and print the matrix."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import onnx

import ort_gridsample as ogs

from . import report
from .environments import NotInstalledError, default_cache, environment
from .report import Result, alike
from .table import RUNTIMES, Runtime
from .trials import FORMS, Trial, trials
from .verdicts import Verdict, judge
from .workers import Worker


def attempt(runtime: Runtime, worker: Worker, trial: Trial) -> Verdict:
    """One cell."""
    try:
        task = trial.task(2 if runtime.batches else 1, runtime.form)
    except ogs.GridSampleError as error:
        return Verdict("refused", message=f"patch_model: {error}")
    return judge(task, worker.ask(task), runtime.tolerance)


def run(runtime: Runtime, chosen: Sequence[Trial], cache: Path, seconds: float) -> Result:
    """One runtime's part of the matrix; says on standard error how far it is."""
    try:
        installed = environment(runtime, cache)
    except NotInstalledError as error:
        return Result(runtime, "", {}, str(error))
    cells, began = {}, time.monotonic()
    with Worker(installed.command, seconds) as worker:
        for number, trial in enumerate(chosen, 1):
            if sys.stderr.isatty():
                print(f"\r{runtime.name} {number}/{len(chosen)} {trial.name:70}", end="", file=sys.stderr, flush=True)
            cells[trial] = attempt(runtime, worker, trial)
    print(f"\r{runtime.name}: {time.monotonic() - began:.0f} s{'':80}", file=sys.stderr)
    return Result(runtime, installed.versions, cells)


def save(result: Result, folder: Path) -> Iterator[str]:
    """Write a lowered model for each thing that the runtime says about them, with inputs and the right outputs."""
    runtime = result.runtime
    for trial, *_ in alike(result.cells):
        verdict = result.cells[trial]
        if trial.form != "primitives" or verdict.kind == "right":
            continue
        try:
            task = trial.task(2 if runtime.batches else 1, runtime.form)
        except ogs.GridSampleError:
            continue  # as its cell says
        path = folder / runtime.name / f"{trial.name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(task.model, path)
        arrays: dict[str, Any] = {f"in.{name}": value for name, value in task.feeds[0].items()}
        arrays |= {f"out.{name}": value for name, value in task.expected[0].items()}
        numpy.savez_compressed(path.with_suffix(".npz"), **arrays)
        yield f"{path}: {verdict} {verdict.message}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; 1 where a lowered model is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.runtimes", description=__doc__)
    parser.add_argument("runtimes", nargs="*", metavar="RUNTIME", help=f"of {', '.join(RUNTIMES)}; all by default")
    parser.add_argument("--fast", action="store_true", help="only those that install in seconds")
    parser.add_argument("--list", action="store_true", help="print what would be tried, and run nothing")
    parser.add_argument("--only", default="", metavar="REGEX", help="only the cells whose name this matches")
    parser.add_argument("--form", choices=FORMS, help="only the standard operators, or only primitives")
    parser.add_argument("--all", action="store_true", help="print every cell")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every cell there")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="print what --json wrote, and run nothing")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write models that show what fails")
    parser.add_argument("--cache", type=Path, default=default_cache(), metavar="DIR", help="keeps the environments")
    parser.add_argument("--seconds", type=float, default=120, help="how long a runtime may take for one model")
    options = parser.parse_args(arguments)
    unknown = set(options.runtimes) - set(RUNTIMES)
    if unknown:
        parser.error(f"no runtime is called {', '.join(sorted(unknown))}; there are {', '.join(RUNTIMES)}")
    rows = [RUNTIMES[name] for name in options.runtimes or RUNTIMES]
    rows = [row for row in rows if row.fast or not options.fast]
    if options.list:
        print(report.runtimes(rows))
        return 0
    chosen = [t for t in trials() if re.search(options.only, t.name) and options.form in (None, t.form)]
    date, results = datetime.date.today().isoformat(), []
    for file in options.read or []:
        date, read = report.from_json(json.loads(file.read_text(encoding="utf-8")))
        results += [dataclasses.replace(r, cells={t: v for t, v in r.cells.items() if t in chosen}) for r in read]
    for row in rows if not options.read else []:
        results.append(run(row, chosen, options.cache.resolve(), options.seconds))
        if options.json:  # after each, as all of them take long
            options.json.write_text(json.dumps(report.as_json(results, date), indent=1), encoding="utf-8")
    results.sort(key=lambda result: list(RUNTIMES).index(result.runtime.name))
    print(f"{date}; ort-gridsample {ogs.__version__}, onnx {onnx.__version__}, numpy {numpy.__version__}\n")
    print(f"{report.summary(results)}\n\n{report.reasons(results)}")
    if options.all:
        print(f"\n{report.every_cell(results)}")
    if options.save:
        for result in results:
            print("\n".join(save(result, options.save)))
    lowered = [v for result in results for trial, v in result.cells.items() if trial.form == "primitives"]
    return int(any(verdict.kind != "right" for verdict in lowered))


if __name__ == "__main__":
    sys.exit(main())
