"""pytest's plugin in the processes that try a change: which tests run, in which order, for how long, and what ran.

It stands alone, as it is copied to where the changed package cannot shadow it. Its environment says what to do:
``MUTANTS_LOG`` is the file to which a line of JSON is appended as each test begins, as its parts end, and as it is
done. ``MUTANTS_TESTS`` is a file of JSON: from the tests to run, in order, to the seconds that each may take; and from
those not to run to null. Without it, all run. ``MUTANTS_FILE`` is the test file, where coverage watches; it is told
``MUTANTS_CONTEXT``, what runs the lines.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LOG = Path(os.environ["MUTANTS_LOG"])
TESTS = json.loads(Path(os.environ["MUTANTS_TESTS"]).read_text()) if "MUTANTS_TESTS" in os.environ else {}
FILE = os.environ.get("MUTANTS_FILE")
PACKAGE = os.environ["MUTANTS_PACKAGE"]
#: The seconds that a test may take that has no limit of its own.
LIMIT = 1200


def _log(**entry: Any) -> None:
    with LOG.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _watch(name: str) -> None:
    """Let coverage note what runs from now on, here and in processes that are started, as run by ``name``."""
    if FILE is None:
        return
    from coverage import Coverage

    os.environ["MUTANTS_CONTEXT"] = name
    coverage = Coverage.current()
    assert coverage is not None, "coverage was not started"
    coverage.switch_context(name)


def _forget() -> None:
    """Empty the package's caches, so that a test that needs what another has cached is seen to run it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == PACKAGE:
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


if FILE is not None:
    _watch(FILE)


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Let Hypothesis try the same examples for every change, and be content with the first that fails."""
    if "hypothesis" in module_path.read_text(encoding="utf-8"):  # to import it takes longer than most tests
        from hypothesis import HealthCheck, Phase, settings

        phases, all_checks = (Phase.explicit, Phase.generate), list(HealthCheck)
        settings.register_profile(
            "mutants", derandomize=True, database=None, deadline=None, phases=phases, suppress_health_check=all_checks
        )
        settings.load_profile("mutants")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose and sort; parameters that only the changed package has are tried where others of the function are."""
    if TESTS:
        order = {test: i for i, (test, limit) in enumerate(TESTS.items()) if limit is not None}
        functions = {test.partition("[")[0] for test in order}
        new = {item.nodeid for item in items if item.nodeid not in TESTS and item.nodeid.partition("[")[0] in functions}
        chosen = [item for item in items if item.nodeid in order or item.nodeid in new]
        items[:] = sorted(chosen, key=lambda item: order.get(item.nodeid, len(order)))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    _log(test=item.nodeid)
    # A thread outside Python ends the process, whatever holds it.
    faulthandler.dump_traceback_later(TESTS.get(item.nodeid, LIMIT), exit=True, file=2)
    if FILE is not None:
        _forget()
        _watch(item.nodeid)
    yield
    if FILE is not None:
        _watch(FILE)
    faulthandler.cancel_dump_traceback_later()
    _log(test=item.nodeid, done=True)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, None]:
    """What a fixture of many tests runs is run by the whole file."""
    now = os.environ.get("MUTANTS_CONTEXT")
    shared = FILE is not None and fixturedef.scope != "function"
    if shared:
        _watch(str(FILE))
    yield
    if shared:
        _watch(str(now))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _log(test=report.nodeid, seconds=report.duration, outcome=report.outcome)
