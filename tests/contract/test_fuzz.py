"""Run random cases on every core and kind of op. .github/docs/TESTS.md shows how to run many."""

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

from fuzz import is_nightly
from fuzz.inputs import FEW_TYPES, X_TYPES, Case, Tensor, cases
from fuzz.worker import Worker
from support.parameters import CORES, OPS, with_slow

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux",
        reason="only Linux limits the memory that a process may address",
    ),
    pytest.mark.timeout(300 + settings().max_examples),
]

#: The core and the ops of each worker. Compiled ops run on the compiled core only.
WORKERS = [(core, ops) for ops in OPS for core in CORES if ops == "python" or core == "jit"]
TYPES = {"few": FEW_TYPES, "all": X_TYPES}
#: Workers with types. The kernels of all types take minutes to compile.
QUICK = [
    ((core, ops), "few" if core == "jit" and not is_nightly() else "all") for core, ops in WORKERS
]
SLOW = [(names, "all") for names in WORKERS if (names, "all") not in QUICK]
#: Cases that Hypothesis draws independently. It would make later ones from parts of earlier ones.
BATCH = 10
#: Seconds to look for a smaller case that fails. A case that ends the process takes long.
SHRINK_SECONDS = 60.0


@pytest.fixture(scope="module")
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    # With checks, each kernel is compiled again.
    with Worker(*request.param, check_kernels=is_nightly()) as worker:
        yield worker


@with_slow(
    "worker,types",
    [*QUICK, *SLOW],
    QUICK,
    ids=lambda value: value if value in TYPES else "-".join(value),
    indirect=["worker"],
)
def test_random_cases_have_right_outputs_or_errors(
    worker: Worker, types: str, request: pytest.FixtureRequest
) -> None:
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
                failures[case] = f"{outcome.wrong} ({outcome.text})\n{command_of(worker, case)}"
                until = min(until, time.monotonic() + SHRINK_SECONDS)
        if case in failures:
            raise AssertionError(failures[case])

    default_seed = str(secrets.randbits(32)) if is_nightly() else "0"
    run_seed = request.config.getoption("hypothesis_seed") or default_seed
    n_cases = settings().max_examples
    for batch in range(n_cases // BATCH):
        seed(f"{run_seed} {batch}")(try_one)()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    print(f"{worker.name}: {kinds} (--hypothesis-seed={run_seed})")
    assert min(counts["answer"], counts["refusal"]) > n_cases / 6, "too few of one kind"


def command_of(worker: Worker, case: Case) -> str:
    """Return the command that repeats a case."""
    profile = "--hypothesis-profile=nightly " if is_nightly() else ""
    test = f"tests/contract/test_fuzz.py::test_known_case[FUZZ_CASE-{worker.name}]"
    return f"FUZZ_CASE={shlex.quote(case.to_json())} python -m pytest {profile}'{test}'"


X = Tensor("float16", (3, 2, 5, 2))
GRID = Tensor("float32", (3, 4, 4, 2))
STRINGS = Tensor("str", (1, 2, 6, 3, 3), "tame", "broadcast")
HUGE_GRID = Tensor("float64", (1, 3, 5, 1 << 20, 3), "tame", "broadcast")
INTEGERS = Tensor("int64", (1, 1, 1, 4, 3), "wild", "strided")
WILD = Tensor("float32", (1, 5, 5, 3, 3), "wild", "strided")
PLAIN = Case(
    route="session",
    operator="GridSample",
    first=X,
    second=GRID,
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
#: Cases that long runs have found.
KNOWN = {
    "a plugin's integers in an opset without the operator": replace(
        PLAIN, padding_mode=0, opset=13
    ),
    "a plugin's padding without its mode": replace(PLAIN, mode=None, padding_mode=0),
}
#: Such cases that take seconds, or need other kernels.
KNOWN_SLOW = {
    "more strings than there is memory for": replace(
        PLAIN, first=STRINGS, second=HUGE_GRID, mode="nearest"
    ),
    "huge integers with the weight 0": replace(PLAIN, first=INTEGERS, second=WILD),
}
KNOWN_PARAMS = [
    *(pytest.param(case, id=name) for name, case in KNOWN.items()),
    *(pytest.param(case, id=name, marks=pytest.mark.slow) for name, case in KNOWN_SLOW.items()),
]
if "FUZZ_CASE" in os.environ:
    KNOWN_PARAMS.append(pytest.param(Case.from_json(os.environ["FUZZ_CASE"]), id="FUZZ_CASE"))


@pytest.mark.parametrize("worker", WORKERS, ids="-".join, indirect=True)
@pytest.mark.parametrize("case", KNOWN_PARAMS)
def test_known_case(worker: Worker, case: Case) -> None:
    outcome = worker.run(case)
    assert not outcome.wrong, f"{outcome}\n{command_of(worker, case)}"
