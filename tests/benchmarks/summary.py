"""What the results come to: means and extremes by group, and the package's targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .contestants import COMPILED, NATIVE
from .run import Result


@dataclass(frozen=True)
class Mean:
    """How one contestant compares with another on a group of cases.

    Attributes:
        group: the group, "all" for every case.
        cases: on how many both have a time.
        mean: the geometric mean of the ratios.
        least: the least ratio.
        at: the result that has it.
    """

    group: str
    cases: int
    mean: float
    least: float
    at: Result


def geometric_mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def means(results: Sequence[Result], contestant: str, baseline: str = NATIVE) -> list[Mean]:
    """The means of each group in turn, and of all; groups without a ratio are left out."""
    groups = dict.fromkeys(result.case.group for result in results)
    found = [_mean(group, [r for r in results if r.case.group == group], contestant, baseline) for group in groups]
    return [mean for mean in (*found, _mean("all", results, contestant, baseline)) if mean is not None]


def _mean(group: str, results: Sequence[Result], contestant: str, baseline: str) -> Mean | None:
    ratios = [(ratio.median, i) for i, r in enumerate(results) if (ratio := r.ratio(contestant, baseline)) is not None]
    if not ratios:
        return None
    least, at = min(ratios)
    return Mean(group, len(ratios), geometric_mean(ratio for ratio, _ in ratios), least, results[at])


@dataclass(frozen=True)
class Target:
    """Something to reach: ``value`` must be at least, or at most, ``limit``."""

    what: str
    value: float
    limit: float
    at_least: bool
    unit: str = "×"

    @property
    def reached(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


Selects = Callable[[Result], bool]


def _numpy_leads(result: Result) -> bool:
    return result.case.group.startswith(("2-D cubic", "3-D linear"))


def _is_kernel(result: Result) -> bool:
    return result.case.operator is not None


#: What, contestant, baseline, on which results, "least" or "mean", the limit.
_TARGETS: Sequence[tuple[str, str, str, Selects, str, float]] = (
    (f"{COMPILED}: every kernel", COMPILED, NATIVE, _is_kernel, "least", 1),
    (f"{COMPILED}: geometric mean", COMPILED, NATIVE, _is_kernel, "mean", 4),
    (f"{COMPILED}: every whole model", COMPILED, NATIVE, lambda r: not _is_kernel(r), "least", 1),
    (f"{COMPILED}: the registration U-Net", COMPILED, NATIVE, lambda r: "U-Net" in r.case.label, "least", 1.6),
    ("function jit against PyTorch: every kernel", "function jit", "PyTorch", _is_kernel, "least", 1),
    ("function jit against OpenVINO: geometric mean", "function jit", "OpenVINO", _is_kernel, "mean", 1),
    ("function numpy: 2-D cubic and 3-D linear", "function numpy", NATIVE, _numpy_leads, "least", 1),
    (
        "function numpy: every other kernel",
        "function numpy",
        NATIVE,
        lambda r: _is_kernel(r) and not _numpy_leads(r),
        "least",
        0.25,
    ),
)


def targets(results: Sequence[Result]) -> list[Target]:
    """The targets on which ``results`` have something to say."""
    found = []
    for what, contestant, baseline, selects, statistic, limit in _TARGETS:
        mean = _mean("", [r for r in results if selects(r)], contestant, baseline)
        if mean is not None:
            found.append(Target(what, getattr(mean, statistic), limit, at_least=True))
    return found
