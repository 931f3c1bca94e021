"""What the results come to: means and extremes by group."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .contestants import NATIVE
from .run import Result


@dataclass(frozen=True)
class Mean:
    """How one contestant compares with another on a group of cases.

    Attributes:
        cases: on how many both have a time.
        mean: the geometric mean of the ratios.
        least: the least ratio.
        at: the result that has it.
    """

    cases: int
    mean: float
    least: float
    at: Result


def means(results: Sequence[Result], contestant: str, baseline: str = NATIVE) -> dict[str, Mean]:
    """By group in turn, and "all" at last; groups without a ratio are left out."""
    found = {}
    for group in (*dict.fromkeys(result.case.group for result in results), "all"):
        members = [result for result in results if group in (result.case.group, "all")]
        ratios = [(ratio.median, i) for i, r in enumerate(members) if (ratio := r.ratio(contestant, baseline))]
        if ratios:
            least, at = min(ratios)
            mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
            found[group] = Mean(len(ratios), mean, least, members[at])
    return found
