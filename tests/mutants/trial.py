"""One change, and what the tests say to it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import accumulate

from .changes import Change
from .places import Ended, Place
from .suite import Suite

#: Seconds in which any process of tests has begun.
START = 300


@dataclass(frozen=True)
class Trial:
    """What came of a change.

    Attributes:
        outcome: ``"caught"``, ``"survived"``, or ``"not covered"`` where no test runs what was changed.
        by: the test that caught it, ``"an import"`` where none began.
        seconds: how long that took.
    """

    change: Change
    outcome: str
    by: str = ""
    seconds: float = 0


def attempt(place: Place, suite: Suite, change: Change, seconds: float = math.inf) -> Trial:
    """Run the tests that cover ``change``, of about so many ``seconds``, until one fails, ends the process or hangs."""
    tests = suite.covering(change)
    spent = accumulate(suite.seconds[test] for test in tests)
    tests = [test for test, at in zip(tests, spent, strict=True) if at <= seconds or test is tests[0]]
    if not tests:
        return Trial(change, "not covered")
    began = time.monotonic()
    source = (place.tree / change.path).read_bytes()
    new_kernels = change.path in place.project.frozen_in_kernels
    while True:
        tests = [test for test in tests if not new_kernels or test not in suite.need_kernels]
        with place.changed(change.path, change.apply(source)):
            ended = run(place, suite, tests, new_kernels)
        took = time.monotonic() - began
        if ended.all_passed:
            return Trial(change, "survived", "", took)
        by = ended.log[-1]["test"] if ended.log else "an import"
        if not new_kernels or by not in suite.seconds or run(place, suite, [by], new_kernels).all_passed:
            return Trial(change, "caught", by, took)
        suite.need_kernels.add(by)  # it fails as things are, too, where they are not compiled yet


def run(place: Place, suite: Suite, tests: list[str], new_kernels: bool = False) -> Ended:
    """Run ``tests``, in order, until one fails."""
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    limit = START + 3 * sum(suite.seconds[test] for test in tests)
    return place.test(files, limit, suite.plan(tests), new_kernels=new_kernels)
