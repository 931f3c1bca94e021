"""What it costs besides the kernels: calls, and growth with the size."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import onnxruntime

from ort_gridsample.cli.timing import Turn, measure

from .contestants import CONTESTANTS, kept, options_for
from .suite import Arrays, Case, grid_sample_case, one_node

Row = dict[str, object]
Cost = tuple[str, list[Row]]


@dataclass(frozen=True)
class Effort:
    """How much is done: threads, rounds, seconds for each comparison, and whether large sizes are left out."""

    threads: int
    rounds: int
    seconds: float
    quick: bool


def _sessions(case: Case, feeds: Arrays, effort: Effort) -> dict[str, Turn]:
    return {c.name: c.turn(case, feeds, effort.threads)[0] for c in CONTESTANTS if c.networks and c.installed}


def tiny_call(effort: Effort) -> Iterator[Row]:
    """A run of one node on tiny tensors."""
    case = grid_sample_case((1, 1, 2, 2), (2, 2), "linear")
    feeds = case.feeds()
    identity = one_node("Identity", {"X": ("float32", (1, 1, 2, 2))}, ("float32", (1, 1, 2, 2)), {})
    session = onnxruntime.InferenceSession(identity, options_for(effort.threads))
    turns = {"native Identity": Turn(partial(session.run, None, {"X": feeds["X"]}))}
    turns |= _sessions(case, feeds, effort)
    turns["native Identity"].call()
    timings = measure(turns, effort.rounds, effort.seconds)
    floor = timings["native Identity"]
    for name, timing in timings.items():
        above = statistics.median(a - b for a, b in zip(timing.rounds, floor.rounds, strict=True)) * 1e6
        yield {"": name, "µs": timing.median * 1e6, "above Identity": None if timing is floor else above}


def growth(effort: Effort) -> Iterator[Row]:
    """Time by output elements."""
    for exponent in range(14, 23 if effort.quick else 27, 2):
        height = 1 << (exponent - 2) // 2
        case = grid_sample_case((1, 4, 512, 512), (height, (1 << exponent - 2) // height), "linear")
        timings = measure(_sessions(case, case.feeds(), effort), effort.rounds, effort.seconds)
        nanoseconds = {name: timing.median / 2**exponent * 1e9 for name, timing in timings.items()}
        yield {"elements": f"2^{exponent}", **nanoseconds}


#: Name -> what the table says, and what makes its rows.
COSTS: Mapping[str, tuple[str, Callable[[Effort], Iterator[Row]]]] = {
    "tiny call": ("A run on tiny tensors (2×2 pixels), µs", tiny_call),
    "growth": ("Growth with the output (1×4×512×512 → 4 channels, linear), ns an output element", growth),
}


def run_costs(names: list[str], effort: Effort, begin: Callable[[str], None]) -> Iterator[Cost]:
    """Measure the costs called ``names``, one by one: what each table says, and its rows."""
    with kept():
        for name in names:
            begin(f"costs: {name}")
            title, rows = COSTS[name]
            yield title, list(rows(effort))
