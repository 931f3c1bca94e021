"""Which tests run a line, and how long each takes: watched once, by coverage, and kept."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
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

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Suite:
    """A project's tests, as :func:`watch` saw them.

    A line's contexts are the tests that run it; where it runs for more than one of a file's tests, as an import or in a
    fixture, the file.

    Attributes:
        seconds: every test that passes, and the time that it takes.
        failing: every test that does not pass as things are: no change is tried on it.
        need_kernels: tests that do not pass where Numba has everything to compile, as far as that was seen.
    """

    def __init__(self, project: Project, cache: Path) -> None:
        self._project = project
        folders = [cache / key for key in project.keys.values()]
        self._lines = [CoverageData(str(folder / "lines")) for folder in folders]
        for lines in self._lines:
            lines.read()
        self._outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        for folder in folders:
            for test, (outcome, seconds) in json.loads((folder / "tests.json").read_text()).items():
                self._outcomes[test] = outcome
                if outcome == PASSED:
                    self.seconds[test] = seconds
        self.failing = [test for test, outcome in self._outcomes.items() if outcome == FAILED]
        self.need_kernels: set[str] = set()
        self._by_file: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            self._by_file[_file(test)].append(test)
        self._contexts = lru_cache(maxsize=None)(self._contexts_of)

    def covering(self, change: Change) -> list[str]:
        """The tests that run what ``change`` changes, those first that may tell much in little time."""
        contexts = self._contexts(change.path)
        candidates = ({context for line in lines for context in contexts.get(line, ())} for lines in change.lines)
        found = next(filter(None, candidates), set())
        if not change.in_function:  # an import ran it, and any test of the file may use what it made
            found = {_file(context) for context in found}
        if change.path in self._project.compiled:  # what calls a compiled function may run any line of it
            drivers = (self._contexts(driver).values() for driver in self._project.drivers(change.path))
            found |= {context for line in itertools.chain.from_iterable(drivers) for context in line if "::" in context}
        return self.in_order(test for context in found for test in self._tests(context))

    def in_order(self, tests: Iterable[str]) -> list[str]:
        """Test functions take turns, each with its quickest parameters first, so that all have had as much time."""
        spent: dict[str, float] = defaultdict(float)
        turns = {}
        for test in sorted(set(tests), key=lambda test: (self.seconds[test], test)):
            function = test.partition("[")[0]
            spent[function] += self.seconds[test]
            turns[test] = spent[function]
        return sorted(turns, key=lambda test: (turns[test], test))

    def plan(self, tests: Iterable[str]) -> dict[str, float | None]:
        """What the plugin is told: to run ``tests``, in order, each within a time that it takes only if it hangs."""
        chosen: dict[str, float | None] = {test: PATIENCE + 10 * self.seconds[test] for test in tests}
        return chosen | {test: None for test in self._outcomes if test not in chosen}

    def _contexts_of(self, path: str) -> Mapping[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for lines in self._lines:
            for line, contexts in lines.contexts_by_lineno(path).items():
                found[line].update(contexts)
        return found

    def _tests(self, context: str) -> Iterable[str]:
        if context in self._by_file:
            return self._by_file[context]
        return (context,) if context in self.seconds else ()


def _file(context: str) -> str:
    return context.partition("::")[0]


def watch(places: Places, project: Project, cache: Path) -> Iterator[str]:
    """Run the tests of which ``cache`` does not know yet which lines each runs; yields their files as they are done."""
    cache.mkdir(parents=True, exist_ok=True)
    unknown = [path for path, key in project.keys.items() if not (cache / key).exists()]
    return places.each(partial(_watch, cache=cache), unknown)


def _watch(place: Place, path: str, cache: Path) -> str:
    folder = Path(tempfile.mkdtemp(dir=place.folder))
    configuration = folder / "coveragerc"
    configuration.write_text(CONFIGURATION.format(folder=folder, tree=place.tree, package=place.project.package))
    watched = {"COVERAGE_PROCESS_START": str(configuration), "COVERAGE_CORE": "ctrace", "MUTANTS_FILE": path}
    ended = place.test([path], LIMIT, more=watched, stop=False)
    if ended.code not in (0, 1, 5):  # all passed, some failed, there were none
        raise RuntimeError(f"{path} cannot be watched, its process ended with {ended.code}:\n{ended.output}")
    outcomes = _outcomes(ended)
    failed: dict[str, float | None] = {test: LIMIT for test, (outcome, _) in outcomes.items() if outcome == FAILED}
    if failed:  # perhaps only because it was watched
        outcomes |= _outcomes(place.test([path], LIMIT, failed, stop=False))

    made = folder / "made"
    made.mkdir()
    lines = CoverageData(str(made / "lines"))
    for part in folder.glob("lines*"):
        with contextlib.suppress(CoverageException):  # of a process that was ended as it wrote
            data = CoverageData(str(part))
            data.read()
            lines.update(data, map_path=partial(_relative, place.tree))
    lines.close()
    (made / "tests.json").write_text(json.dumps(outcomes))
    kept = cache / place.project.keys[path]
    with tempfile.TemporaryDirectory(dir=cache) as part:
        copy = shutil.copytree(made, Path(part) / "copy")  # perhaps from another disk
        try:
            copy.rename(kept)
        except OSError:
            if not kept.exists():  # else another process was first
                raise
    return path


def _relative(tree: Path, name: str) -> str:
    return Path(name).relative_to(tree).as_posix()


def _outcomes(ended: Ended) -> dict[str, tuple[str, float]]:
    """Each test that began, with its outcome and seconds; one that never was done has failed."""
    entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry in ended.log:
        entries[entry["test"]].append(entry)
    return {test: _outcome(parts) for test, parts in entries.items()}


def _outcome(parts: list[dict[str, Any]]) -> tuple[str, float]:
    found = {part.get("outcome") for part in parts} if "done" in parts[-1] else {FAILED}
    outcome = next(outcome for outcome in (FAILED, SKIPPED, PASSED) if outcome in found)
    return outcome, sum(part.get("seconds", 0) for part in parts)
