"""``python -m tests.mutants``: make small changes to the package, one at a time, and see which the tests catch.

For developers: a change that survives says what no test looks at, unless it is equal to what was there. The working
tree is left alone: changes are made in copies of it. The same seed makes the same changes of the same files, and a
greater count makes more after them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from .changes import Change, changes
from .places import Place, Places
from .project import Project
from .suite import Suite, watch
from .trial import Trial, attempt, run

#: Tests that show, before any change, that they run at all in a copy.
FIRST = 20


def chosen(project: Project, seed: int, count: int, only: str = "") -> list[Change]:
    """``count`` places in the code at random, in the files whose path matches ``only``, and a change of each."""
    rng = random.Random(seed)
    sources = {path: (project.root / path).read_bytes() for path in project.modules if re.search(only, path)}
    places = [
        list(group)
        for path, source in sources.items()
        for _, group in groupby(changes(path, source), key=lambda change: (change.start, change.end))
    ]
    rng.shuffle(places)
    one_each = (rng.choice(place) for place in places)
    return list(islice((change for change in one_each if change.is_one(sources[change.path])), count))


def _suite(project: Project, places: Places, cache: Path) -> Suite:
    began = time.monotonic()
    for path in watch(places, project, cache):
        print(f"watched {path}, {time.monotonic() - began:.0f} s", flush=True)
    return Suite(project, cache)


def _check(places: Places, suite: Suite, jobs: int) -> None:
    tests = suite.in_order(suite.seconds)[:FIRST]

    def check(place: Place, _: int) -> None:
        ended = run(place, suite, tests)
        if not ended.all_passed:
            raise RuntimeError(f"the tests fail in a copy that nobody has changed:\n{ended.output}")

    list(places.each(check, range(jobs)))


def trials(
    project: Project, selected: Sequence[Change], jobs: int, cache: Path, seconds: float = math.inf
) -> Iterator[Trial]:
    """Try each change, ``jobs`` side by side; which tests cover a line is kept in ``cache``."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        places = Places(project, Path(folder), jobs)
        suite = _suite(project, places, cache)
        for test in suite.failing:
            print(f"fails as things are, and is left out: {test}")
        _check(places, suite, jobs)
        yield from places.each(lambda place, change: attempt(place, suite, change, seconds), selected)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ort_gridsample-mutants"


def main(words: Sequence[str] | None = None, project: Project | None = None) -> int:
    """Run the command line; the exit status is 1 where a change survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many changes (default: %(default)s)")
    parser.add_argument("--skip", type=int, default=0, help="go on after so many of them, as a run before left off")
    parser.add_argument(
        "--seconds", type=float, default=math.inf,
        help="try each on tests of so many seconds, those that tell most first (default: on all that cover it)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default: %(default)s)")
    parser.add_argument("--only", metavar="REGEX", default="", help="change only files whose path matches")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="side by side (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the changes, and try none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome of every change to FILE")
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", default=_cache(),
        help="where to keep which tests cover a line, for as long as package and tests stay (default: %(default)s)",
    )  # fmt: skip
    arguments = parser.parse_args(words)
    project = project or Project(Path(__file__).resolve().parents[2], "ort_gridsample")
    selected = chosen(project, arguments.seed, arguments.count, arguments.only)[arguments.skip :]
    if arguments.list:
        for change in selected:
            print(change)
        return 0

    done: list[Trial] = []
    try:
        for trial in trials(project, selected, arguments.jobs, arguments.cache, arguments.seconds):
            done.append(trial)
            _print(trial, f"{len(done)}/{len(selected)} ")
            if arguments.json:
                entries = [_entry(trial) for trial in done]
                arguments.json.write_text(json.dumps({"seed": arguments.seed, "changes": entries}, indent=1) + "\n")
    except KeyboardInterrupt:
        print("interrupted")

    survivors = [trial for trial in done if trial.outcome != "caught"]
    caught = len(done) - len(survivors)
    print(f"\n{caught} of {len(done)} caught ({caught / max(len(done), 1):.1%})")
    for trial in sorted(survivors, key=lambda trial: (trial.change.path, trial.change.line)):
        _print(trial)
    return 130 if len(done) < len(selected) else int(bool(survivors))


def _print(trial: Trial, first: str = "") -> None:
    by = f", by {trial.by}" if trial.by else ""
    print(f"{first}{trial.outcome}: {trial.change}{by} ({trial.seconds:.0f} s)", flush=True)


def _entry(trial: Trial) -> dict[str, object]:
    entry = dataclasses.asdict(trial)
    change = entry.pop("change")
    return {name: change[name] for name in ("path", "line", "kind", "before", "after")} | entry


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as an exception, which ends what was started
    sys.exit(main())
