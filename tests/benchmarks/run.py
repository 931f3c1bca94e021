"""Running cases: every backend checked against the others, then timed against them; and what that comes to."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ort_gridsample.cli.timing import Timing, Turn, measure

from .backends import NATIVE, Answers, Backend
from .suite import Case

#: Nearest: the part of the elements that may be a neighbour's, where a coordinate lies on a tie.
TIES = 2e-3


@dataclass
class Result:
    """What came of a case, by backend."""

    case: Case
    timings: dict[str, Timing] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why it has no timing
    wrong: dict[str, str] = field(
        default_factory=dict
    )  # what is wrong with an answer of this package

    def ratio(self, backend: str, baseline: str = NATIVE) -> Timing | None:
        """How many times faster than ``baseline``; None where one of the two has no time."""
        if backend not in self.timings or baseline not in self.timings:
            return None
        return self.timings[backend].times_faster_than(self.timings[baseline])


def run_case(
    case: Case, backends: Sequence[Backend], threads: int, rounds: int, seconds: float
) -> Result:
    """Time ``backends`` on ``case``: ``rounds`` rounds, or as many as fit ``seconds``; this package's may raise."""
    result, feeds = Result(case), case.feeds()
    turns: dict[str, Turn] = {}
    expected: Answers | None = None
    for backend in backends:
        if case.operator is None and not backend.networks:
            continue
        try:
            turn, answers = backend.turn(case, feeds, threads)
        except Exception as error:
            if backend.core is not None:
                raise
            result.reasons[backend.name] = " ".join(str(error).split())
            continue
        if expected is None:  # the first that runs it
            expected = [np.array(answer) for answer in answers]
        wrong = disagreement(answers, expected, case)
        if wrong and backend.core is not None:
            result.wrong[backend.name] = wrong
        elif wrong:
            result.reasons[backend.name] = f"another answer: {wrong}"
        else:
            turns[backend.name] = turn
    result.timings = measure(turns, rounds, seconds)
    return result


def disagreement(found: Answers, expected: Answers, case: Case) -> str:
    """What is wrong with the outputs ``found``, in words; empty where they agree."""
    for a, b in zip(found, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
        with np.errstate(invalid="ignore"):  # float64 only where float32 would not do
            difference = np.abs(
                np.subtract(a, b, dtype=np.float64 if a.dtype == np.float64 else np.float32)
            )
        allowed = (
            case.tolerance
            if b.dtype.kind in "iu"
            else case.tolerance * float(np.abs(b).max(initial=1e-30))
        )
        if case.attributes.get("mode") == "nearest":
            part = np.count_nonzero(difference > allowed) / max(1, difference.size)
            if part > TIES:
                return f"{part:.1%} of the values are others"
        elif not difference.max(initial=0) <= allowed:  # NaN is wrong too
            return f"a value is {difference.max():.2g} off, {allowed:.2g} are allowed"
    return ""


@dataclass(frozen=True)
class Mean:
    cases: int  # on which both have a time
    mean: float  # the geometric one, of the ratios
    least: float
    at: Result  # which has the least ratio


def means(results: Sequence[Result], backend: str, baseline: str = NATIVE) -> dict[str, Mean]:
    """By group in turn, and "all" at last; groups without a ratio are left out."""
    found = {}
    for group in (*dict.fromkeys(result.case.group for result in results), "all"):
        members = [result for result in results if group in (result.case.group, "all")]
        ratios = [
            (ratio.median, i)
            for i, r in enumerate(members)
            if (ratio := r.ratio(backend, baseline))
        ]
        if ratios:
            least, at = min(ratios)
            mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
            found[group] = Mean(len(ratios), mean, least, members[at])
    return found
