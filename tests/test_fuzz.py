"""A few hundred random cases; ``python -m tests.fuzz`` runs as many as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from conftest import CORES, OPS
from fuzz.batches import run_batch
from fuzz.inputs import Case, Tensor
from fuzz.worker import Worker

WAYS = [(core, "python") for core in CORES] + [("jit", ops) for ops in OPS if ops != "python"]


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    # A kernel for every type would take minutes to compile with checks: see test_cores.test_kernels_stay_inside.
    worker = Worker(*request.param, check_kernels=False)
    yield worker
    worker.close()


@pytest.mark.parametrize("index", range(2))
def test_every_case_is_answered_or_refused_in_words(worker: Worker, index: int) -> None:
    batch = run_batch(4, index, worker, size=150, shrink=True)
    assert not batch.failures, "\n".join(
        f"{wrong}\npython -m tests.fuzz --case '{case.to_json()}'" for case, wrong in batch.failures[-1:]
    )
    assert min(batch.counts["answer"], batch.counts["refusal"]) > 25, "one half of the cases is not tried"


PLAIN = Case(
    route="session",
    operator="GridSample",
    first=Tensor("float16", (3, 2, 5, 2)),
    second=Tensor("float32", (3, 4, 4, 2)),
    size=(),
    mode="bicubic",
    padding_mode="zeros",
    align_corners=0,
    opset=16,
    declared="names",
    slip="",
    name="warp",
    seed=7,
)
#: What long runs have found.
FOUND = {
    "more strings than there is room for": replace(
        PLAIN,
        first=Tensor("str", (1, 2, 6, 3, 3), "tame", "broadcast"),
        second=Tensor("float64", (1, 3, 5, 1 << 20, 3), "tame", "broadcast"),
        mode="nearest",
        padding_mode="border",
        align_corners=1,
        opset=19,
    ),
    "a plugin's integers in an opset without the operator": replace(PLAIN, padding_mode=0, opset=13),
    "a plugin's padding without its mode": replace(PLAIN, mode=None, padding_mode=0),
    "huge integers that weigh nothing": replace(
        PLAIN,
        first=Tensor("int64", (1, 1, 1, 4, 3), "wild", "strided"),
        second=Tensor("float32", (1, 5, 5, 3, 3), "wild", "strided"),
        mode="bicubic",
        opset=19,
        seed=7,
    ),
}


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_what_was_found(worker: Worker, case: Case) -> None:
    outcome = worker.run(case)
    assert not outcome.wrong, outcome
