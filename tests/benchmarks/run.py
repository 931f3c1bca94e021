"""Run cases: compare the outputs of all backends, time them, and compute means of ratios."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ort_gridsample.cli.output_comparison import relative_difference
from ort_gridsample.cli.timing import Timing, Turn, measure

from .backends import NATIVE, Answers, Backend
from .suite import Case

#: The share of elements of nearest that may have a neighbour's value, where a coordinate is a tie.
TIES = 2e-3


@dataclass
class Result:
    """The result of a case, by backend.

    Attributes:
        case: the case.
        timings: the timings.
        reasons: why a backend has no timing.
        wrong: what is wrong with an output of this package.
        differences: for whole models, the relative difference to the outputs of the first backend.
    """

    case: Case
    timings: dict[str, Timing] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)

    def ratio(self, backend: str, baseline: str = NATIVE) -> Timing | None:
        """Return how many times as fast as ``baseline``, or None if one of the two has no time."""
        if backend not in self.timings or baseline not in self.timings:
            return None
        return self.timings[backend].times_faster_than(self.timings[baseline])


def run_case(
    case: Case,
    backends: Sequence[Backend],
    threads: int,
    rounds: int,
    seconds: float,
    others: Mapping[str, Turn] = MappingProxyType({}),
) -> Result:
    """Time ``backends`` on ``case``, for at most ``rounds`` rounds or so many ``seconds``.

    ``others`` take turns with the backends, but their outputs are not compared. Exceptions of this
    package are raised. Those of other libraries are reasons in the result.
    """
    result = Result(case)
    feeds = case.feeds()
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
        if case.unordered_axis is not None:
            answers = [np.sort(answer, axis=case.unordered_axis) for answer in answers]
        if expected is None:  # the first backend that runs the case
            expected = [np.array(answer) for answer in answers]
        elif case.operator is None:
            result.differences[backend.name] = relative_difference(expected, answers)
        wrong = disagreement(answers, expected, case)
        if wrong and backend.core is not None:
            result.wrong[backend.name] = wrong
        elif wrong:
            result.reasons[backend.name] = f"another answer: {wrong}"
        else:
            turns[backend.name] = turn
    if turns or others:
        result.timings = measure({**turns, **others}, rounds, seconds)
    return result


def disagreement(actual: Answers, expected: Answers, case: Case) -> str:
    """Describe how ``actual`` differs from ``expected``, or return "" if they agree."""
    for a, b in zip(actual, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{a.dtype} {a.shape} instead of {b.dtype} {b.shape}"
        dtype = np.float64 if a.dtype == np.float64 else np.float32
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.subtract(a, b, dtype=dtype))
        difference[a == b] = 0  # such as two infinities
        allowed = case.tolerance
        if b.dtype.kind not in "iu":
            allowed *= float(np.abs(b).max(initial=1e-30, where=np.isfinite(b)))
        if case.attributes.get("mode") == "nearest":
            part = np.count_nonzero(difference > allowed) / max(1, difference.size)
            if part > TIES:
                return f"{part:.1%} of the values are others"
        elif not difference.max(initial=0) <= allowed:  # NaN is wrong too
            return f"a value is {difference.max():.2g} off, {allowed:.2g} are allowed"
    return ""


@dataclass(frozen=True)
class Mean:
    """The mean of the ratios of a group of cases.

    Attributes:
        cases: the number of cases in which both backends have a time.
        mean: the geometric mean.
        least: the smallest ratio.
        slowest: the result with the smallest ratio.
    """

    cases: int
    mean: float
    least: float
    slowest: Result


def means(results: Sequence[Result], backend: str, baseline: str = NATIVE) -> dict[str, Mean]:
    """Return the mean of each group with a ratio, and at the end that of "all"."""
    group_means = {}
    for group in (*dict.fromkeys(result.case.group for result in results), "all"):
        members = [result for result in results if group in (result.case.group, "all")]
        ratios = [
            (ratio.median, i)
            for i, r in enumerate(members)
            if (ratio := r.ratio(backend, baseline))
        ]
        if ratios:
            least, index = min(ratios)
            mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
            group_means[group] = Mean(len(ratios), mean, least, members[index])
    return group_means
