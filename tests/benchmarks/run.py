"""Running cases: every contestant checked against the others, then timed against them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ort_gridsample.cli.timing import Timing, Turn, measure

from . import cores
from .compare import disagreement
from .contestants import CONTESTANTS, COPY, NATIVE, Answers, Contestant, plain_copy
from .suite import Case, name_of


@dataclass
class Result:
    """What came of a case.

    Attributes:
        case: the case.
        timings: contestant -> its seconds, COPY among them.
        reasons: contestant -> why it has no timing.
        wrong: contestant of this package -> what is wrong with its answer.
    """

    case: Case
    timings: dict[str, Timing] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)

    def ratio(self, contestant: str, baseline: str = NATIVE) -> Timing | None:
        """How many times faster than ``baseline``; None where one of the two has no time."""
        if contestant not in self.timings or baseline not in self.timings:
            return None
        return self.timings[contestant].times_faster_than(self.timings[baseline])


def taking_part() -> list[Contestant]:
    """The contestants that are installed."""
    return [contestant for contestant in CONTESTANTS if contestant.installed]


def run_cases(
    cases: Sequence[Case],
    contestants: Iterable[Contestant],
    *,
    threads: int,
    rounds: int,
    seconds: float,
    begin: Callable[[str], None],
) -> Iterator[Result]:
    """Time ``contestants`` on each of ``cases`` in turn; the core that was set before is set again after."""
    contestants = list(contestants)
    with cores.kept():
        for case in cases:
            begin(name_of(case))
            yield run_case(case, contestants, threads=threads, rounds=rounds, seconds=seconds)


def run_case(case: Case, contestants: Sequence[Contestant], *, threads: int, rounds: int, seconds: float) -> Result:
    """Time ``contestants`` on ``case``: ``rounds`` rounds, or as many as fit ``seconds``.

    Raises:
        Exception: a contestant of this package cannot run the case.
    """
    result, feeds = Result(case), case.feeds()
    turns: dict[str, Turn] = {}
    expected: Answers | None = None
    for contestant in contestants:
        if case.operator is None and not contestant.networks:
            continue
        try:
            turn, answers = contestant.turn(case, feeds, threads)
        except Exception as error:
            if contestant.core is not None:
                raise
            result.reasons[contestant.name] = " ".join(str(error).split())
            continue
        if expected is None:  # the first that runs it
            expected = [np.array(answer) for answer in answers]
        wrong = disagreement(answers, expected, case)
        if wrong and contestant.core is not None:
            result.wrong[contestant.name] = wrong
        elif wrong:
            result.reasons[contestant.name] = f"another answer: {wrong}"
        else:
            turns[contestant.name] = turn
    moved = case.moved_bytes()
    if moved is not None:
        turns[COPY] = plain_copy(moved, threads)
    result.timings = measure(turns, rounds, seconds)
    return result
