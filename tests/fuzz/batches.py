"""Batches of cases: the same seed and index, always the same cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings

from .inputs import Case, cases
from .worker import Worker

BATCH = 100


@dataclass(frozen=True)
class Batch:
    """What came of one batch: outcomes by kind, and the cases that went wrong, each with what was wrong."""

    index: int
    counts: Counter[str]
    failures: list[tuple[Case, str]]


def run_batch(run_seed: int, index: int, worker: Worker, size: int = BATCH, shrink: bool = False) -> Batch:
    """Batch ``index`` of the run ``run_seed``.

    With ``shrink`` it ends at the first case that goes wrong, and its last failure is the smallest case like it.
    """
    counts: Counter[str] = Counter()
    failures: list[tuple[Case, str]] = []

    @seed(run_seed << 32 | index)
    @settings(
        max_examples=size,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases())
    def check(case: Case) -> None:
        result = worker.run(case)
        counts[result.kind] += 1
        if result.wrong:
            failures.append((case, f"{result.wrong} ({result.text})"))
            assert not shrink, result.wrong

    try:
        check()
    except AssertionError:
        if not failures:
            raise
    return Batch(index, counts, failures)


_worker: Worker | None = None


def start(core: str | None, ops: str | None) -> None:
    """Give this process its worker."""
    global _worker
    _worker = Worker(core, ops)


def batch(job: tuple[int, int]) -> Batch:
    """Run the batch ``job``, a run's seed and an index, on this process' worker."""
    assert _worker is not None
    return run_batch(*job, _worker)
