"""Random cases on every core and kind of op; ``tests/README.md`` says how to try many."""

import os
import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, seed, settings

from conftest import CORES, OPS, with_slow
from fuzz import is_nightly
from fuzz.inputs import FEW_TYPES, X_TYPES, Case, Tensor, cases
from fuzz.worker import Worker

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux",
        reason="elsewhere nothing limits the memory that a process may claim",
    ),
    pytest.mark.timeout(300 + settings().max_examples),
]

WAYS = [(core, ops) for ops in OPS for core in CORES if ops == "python" or core == "jit"]
TYPES = {"few": FEW_TYPES, "all": X_TYPES}
#: Kernels of all types take minutes to compile.
QUICK = [(way, "few" if way[0] == "jit" and not is_nightly() else "all") for way in WAYS]
SLOW = [(way, "all") for way in WAYS if (way, "all") not in QUICK]
#: So many cases are drawn each for itself; those after them Hypothesis would make of parts of one another.
BATCH = 10
#: For how long to look for a smaller case that goes wrong, in seconds: what ends the process each time takes long.
SHRINKING = 60.0


@pytest.fixture(scope="module")
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    # With checks each kernel is compiled anew; test_cores.test_kernels_stay_inside does so with some.
    with Worker(*request.param, check_kernels=is_nightly()) as worker:
        yield worker


@with_slow(
    "worker,types",
    [*QUICK, *SLOW],
    QUICK,
    ids=lambda v: v if v in TYPES else "-".join(v),
    indirect=["worker"],
)
def test_every_case_is_answered_or_refused_in_words(
    worker: Worker, types: str, request: pytest.FixtureRequest
) -> None:
    for key, case in FOUND.items():
        assert not worker.run(case).wrong, f"{key}\n{again(worker, case)}"
    counts: Counter[str] = Counter()
    failures: dict[Case, str] = {}
    until = float("inf")

    @settings(max_examples=BATCH)
    @given(case=cases(TYPES[types]))
    def try_one(case: Case) -> None:
        nonlocal until
        if case not in failures and time.monotonic() < until:
            outcome = worker.run(case)
            counts.update([outcome.kind, f"{case.operator} {outcome.kind}"])
            if outcome.wrong:
                failures[case] = f"{outcome.wrong} ({outcome.text})\n{again(worker, case)}"
                until = min(until, time.monotonic() + SHRINKING)
        if case in failures:
            raise AssertionError(failures[case])

    run = request.config.getoption("hypothesis_seed") or (
        str(secrets.randbits(32)) if is_nightly() else "0"
    )
    n_cases = settings().max_examples
    for batch in range(n_cases // BATCH):
        seed(f"{run} {batch}")(try_one)()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{worker.name}: {kinds} (--hypothesis-seed={run})")
    assert min(counts["answer"], counts["refusal"]) > n_cases / 6, (
        "one half of the cases is not tried"
    )


def again(worker: Worker, case: Case) -> str:
    profile = "--hypothesis-profile=nightly " * is_nightly()
    test = f"tests/test_fuzz.py::test_what_was_found[FUZZ_CASE-{worker.name}]"
    return f"FUZZ_CASE={shlex.quote(case.to_json())} python -m pytest {profile}'{test}'"


X, GRID = Tensor("float16", (3, 2, 5, 2)), Tensor("float32", (3, 4, 4, 2))
TEXT = Tensor("str", (1, 2, 6, 3, 3), "tame", "broadcast")
ENDLESS = Tensor("float64", (1, 3, 5, 1 << 20, 3), "tame", "broadcast")
INTEGERS = Tensor("int64", (1, 1, 1, 4, 3), "wild", "strided")
WILD = Tensor("float32", (1, 5, 5, 3, 3), "wild", "strided")
PLAIN = Case(
    "session", "GridSample", X, GRID, (), "bicubic", "zeros", 0, 16, "names", "", "warp", seed=7
)
#: What long runs have found: every run tries it first.
FOUND = {
    "a plugin's integers in an opset without the operator": replace(
        PLAIN, padding_mode=0, opset=13
    ),
    "a plugin's padding without its mode": replace(PLAIN, mode=None, padding_mode=0),
}
#: What they have found that takes seconds, or kernels of its own.
FOUND_SLOWLY = {
    "more strings than there is room for": replace(
        PLAIN, first=TEXT, second=ENDLESS, mode="nearest"
    ),
    "huge integers that weigh nothing": replace(PLAIN, first=INTEGERS, second=WILD),
}
FOUND_PARAMS = [
    pytest.param(case, id=key, marks=pytest.mark.slow) for key, case in FOUND_SLOWLY.items()
]
if "FUZZ_CASE" in os.environ:
    FOUND_PARAMS.append(pytest.param(Case.from_json(os.environ["FUZZ_CASE"]), id="FUZZ_CASE"))


@pytest.mark.parametrize("worker", WAYS, ids="-".join, indirect=True)
@pytest.mark.parametrize("case", FOUND_PARAMS)
def test_what_was_found(worker: Worker, case: Case) -> None:
    outcome = worker.run(case)
    assert not outcome.wrong, outcome
