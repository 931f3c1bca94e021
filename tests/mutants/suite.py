"""Which tests run a line, and how long each takes: watched once, by coverage, and kept."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from coverage import CoverageData
from coverage.exceptions import CoverageException

from .changes import Change
from .places import Ended, Place, Places
from .project import Project

#: Lines that a subprocess runs, too, count for the test that started it.
CONFIGURATION = """
[run]
parallel = true
data_file = {folder}/lines
include = {tree}/{package}/*
context = ${{MUTANTS_CONTEXT-}}
patch = _exit
disable_warnings = no-data-collected
"""
#: Seconds for the tests of one file, while they are watched.
LIMIT = 3600
#: Seconds that a test may take beyond ten times what it took: Numba may have to compile first, beside others.
PATIENCE = 120.0


class Suite:
    """A project's tests, as :func:`watch` saw them.

    A line's contexts are the tests that run it; where it runs for more than one of a file's tests, as an import or in a
    fixture, the file.

    Attributes:
        seconds: every test that passes, and the time that it takes.
        failing: every test that does not pass as things are: no change is tried on it.
    """

    def __init__(self, project: Project, folder: Path) -> None:
        self._project = project
        known = json.loads((folder / "tests.json").read_text())
        self.seconds: Mapping[str, float] = known["seconds"]
        self.failing: list[str] = known["failing"]
        self._skipped: list[str] = known["skipped"]
        lines = CoverageData(str(folder / "lines"))
        lines.read()
        self._contexts = lru_cache(maxsize=None)(lines.contexts_by_lineno)
        self._by_file: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            self._by_file[_file(test)].append(test)

    def covering(self, change: Change) -> list[str]:
        """The tests that run what ``change`` changes, those first that may tell much in little time."""
        contexts = self._contexts(change.path)
        candidates = ({context for line in lines for context in contexts.get(line, ())} for lines in change.lines)
        found = next(filter(None, candidates), set())
        if not change.in_function:  # an import ran it, and any test of the file may use what it made
            found = {_file(context) for context in found}
        if change.path in self._project.compiled:  # what calls a compiled function may run any line of it
            drivers = (self._contexts(driver).values() for driver in self._project.drivers(change.path))
            found = found.union(*itertools.chain.from_iterable(drivers))
        return self.in_order(test for context in found for test in self._tests(context))

    def plan(self, tests: Iterable[str]) -> dict[str, float | None]:
        """What the plugin is told: to run ``tests``, in order, each within a time that it takes only if it hangs."""
        chosen: dict[str, float | None] = {test: PATIENCE + 10 * self.seconds[test] for test in tests}
        others = itertools.chain(self.seconds, self.failing, self._skipped)
        return chosen | {test: None for test in others if test not in chosen}

    def _tests(self, context: str) -> Iterable[str]:
        if context in self._by_file:
            return self._by_file[context]
        return (context,) if context in self.seconds else ()

    def in_order(self, tests: Iterable[str]) -> list[str]:
        """Test functions take turns, each with its quickest parameters first, so that all have had as much time."""
        spent: dict[str, float] = defaultdict(float)
        turns = {}
        for test in sorted(set(tests), key=lambda test: (self.seconds[test], test)):
            function = test.partition("[")[0]
            spent[function] += self.seconds[test]
            turns[test] = spent[function]
        return sorted(turns, key=lambda test: (turns[test], test))


def _file(context: str) -> str:
    return context.partition("::")[0]


def watch(places: Places, project: Project, folder: Path) -> Iterator[str]:
    """Run all tests, and keep in ``folder`` which lines each runs; yields each test file as it is done."""
    tests: dict[str, _Outcome] = {}
    lines = CoverageData(str(folder / "lines"))
    for path, outcomes, tree, parts in places.each(_watch_file, project.test_files):
        tests |= outcomes
        for part in parts:
            with contextlib.suppress(CoverageException):  # of a process that was ended as it wrote
                data = CoverageData(str(part))
                data.read()
                lines.update(data, map_path=lambda name, tree=tree: Path(name).relative_to(tree).as_posix())
        yield path
    known: dict[str, Any] = {
        "seconds": {test: outcome.seconds for test, outcome in tests.items() if outcome.is_passed},
        "failing": [test for test, outcome in tests.items() if outcome.is_failed],
        "skipped": [test for test, outcome in tests.items() if not (outcome.is_passed or outcome.is_failed)],
    }
    (folder / "tests.json").write_text(json.dumps(known))


@dataclass
class _Outcome:
    """What the plugin noted of a test: its parts' seconds and outcomes, none where it ended its process."""

    seconds: float = 0
    parts: list[str] = field(default_factory=list)

    @property
    def is_failed(self) -> bool:
        return "failed" in self.parts or not self.parts

    @property
    def is_passed(self) -> bool:
        return set(self.parts) == {"passed"}


def _outcomes(ended: Ended) -> dict[str, _Outcome]:
    found: dict[str, _Outcome] = defaultdict(_Outcome)
    for entry in ended.log:
        outcome = found[entry["test"]]
        if "outcome" in entry:
            outcome.seconds += entry["seconds"]
            outcome.parts.append(entry["outcome"])
    return found


def _watch_file(place: Place, path: str) -> tuple[str, dict[str, _Outcome], Path, list[Path]]:
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    configuration = folder / "coveragerc"
    configuration.write_text(CONFIGURATION.format(folder=folder, tree=place.tree, package=place.project.package))
    watched = {"COVERAGE_PROCESS_START": str(configuration), "COVERAGE_CORE": "ctrace", "MUTANTS_FILE": path}
    ended = place.test([path], LIMIT, more=watched, stop=False)
    if ended.code not in (0, 1, 5):  # all passed, some failed, there were none
        raise RuntimeError(f"{path} cannot be watched:\n{ended.output}")
    outcomes = _outcomes(ended)
    failed: dict[str, float | None] = {test: LIMIT for test, outcome in outcomes.items() if outcome.is_failed}
    if failed:  # perhaps only because it was watched
        outcomes |= _outcomes(place.test([path], LIMIT, failed, stop=False))
    return path, outcomes, place.tree, sorted(folder.glob("lines*"))
