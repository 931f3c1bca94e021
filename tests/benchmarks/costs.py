"""What it costs besides the kernels: calls, sessions, imports, memory, and growth with the size."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import onnxruntime

from ort_gridsample.cli.timing import Timing, Turn, measure

from . import probes
from .contestants import CONTESTANTS, CORES, kept, options_for, plain_copy
from .suite import grid_sample_case, one_node

Row = dict[str, object]


@dataclass(frozen=True)
class Effort:
    """How much is done: threads, rounds, seconds for each comparison, and whether large sizes are left out."""

    threads: int
    rounds: int
    seconds: float
    quick: bool


def tiny_call(effort: Effort) -> Iterator[Row]:
    """A run of one node on tiny tensors."""
    case = grid_sample_case((1, 1, 2, 2), (2, 2), "linear")
    feeds = case.feeds()
    identity = one_node("Identity", {"X": ("float32", (1, 1, 2, 2))}, ("float32", (1, 1, 2, 2)), {})
    session = onnxruntime.InferenceSession(identity, options_for(effort.threads))
    turns = {"native Identity": Turn(partial(session.run, None, {"X": feeds["X"]}))}
    for contestant in CONTESTANTS:
        if contestant.networks and contestant.installed:
            turns[contestant.name], _ = contestant.turn(case, feeds, effort.threads)
    turns["native Identity"].call()
    timings = measure(turns, effort.rounds, effort.seconds)
    floor = timings["native Identity"]
    for name, timing in timings.items():
        above = None if timing is floor else _above(timing, floor) * 1e6
        yield {"": name, "µs": timing.median * 1e6, "above Identity": above}


def _above(timing: Timing, floor: Timing) -> float:
    """The median of how much longer it takes, round by round."""
    return statistics.median(a - b for a, b in zip(timing.rounds, floor.rounds, strict=True))


def dispatch(effort: Effort) -> Iterator[Row]:
    """What a session adds to the function, with small inputs and with large ones."""
    for X, output in (((1, 64, 64, 64), (256, 256)), ((1, 4, 1024, 1024), (1024, 1024))):
        case = grid_sample_case(X, output, "linear")
        feeds = case.feeds()
        turns = {"copy": plain_copy(2 * (case.moved_bytes or 0), effort.threads)}
        ours = [contestant for contestant in CONTESTANTS if contestant.core and contestant.installed]
        for contestant in ours:
            turns[contestant.name], _ = contestant.turn(case, feeds, effort.threads)
        timings = measure(turns, effort.rounds, effort.seconds)
        for contestant in ours:
            if contestant.ops is not None:
                session, function = timings[contestant.name], timings[f"function {contestant.core}"]
                yield {
                    "": f"{case.heading} {contestant.name}",
                    "function": function.median * 1e3,
                    "session": session.median * 1e3,
                    "above": _above(session, function) * 1e3,
                    "a copy of inputs and output": timings["copy"].median * 1e3,
                }


def making(effort: Effort) -> Iterator[Row]:
    """Sessions, in fresh processes with a fresh cache: the first process compiles, the second finds it compiled."""
    for name in (contestant.name for contestant in CONTESTANTS if contestant.ops and contestant.installed):
        with tempfile.TemporaryDirectory() as cache:
            ask = partial(probes.ask, "making", name, environment={"NUMBA_CACHE_DIR": cache})
            cold, *warm = (ask() for _ in range(2 if effort.quick else 4))

        def above(processes: list[dict[str, float]], which: str) -> float:
            return statistics.median(each[f"patched {which}"] - each[f"native {which}"] for each in processes) * 1e3

        yield {
            "": name,
            "a native one": statistics.median(each["native after"] for each in warm) * 1e3,
            "cold cache": above([cold], "first"),
            "first in a process": above(warm, "first"),
            "each after": above(warm, "after"),
            "first run, cold": cold["patched run"] * 1e3,
            "first run, warm": warm[0]["patched run"] * 1e3,
        }


def importing(effort: Effort) -> Iterator[Row]:
    """The package's own part of the import."""
    milliseconds = [probes.import_seconds() * 1e3 for _ in range(3 if effort.quick else 7)]
    yield {"median": statistics.median(milliseconds), "least": min(milliseconds), "most": max(milliseconds)}


def memory(effort: Effort) -> Iterator[Row]:
    """Peak memory, in fresh processes."""
    if not os.path.exists("/proc/self/clear_refs"):
        yield {"": "cannot be measured here: this needs Linux"}
        return
    rows: dict[str, Row] = {}
    for core in CORES:
        for which in ("suite",) if effort.quick else ("suite", "large"):
            found = probes.ask("memory", core, which, environment=probes.MEMORY_ENVIRONMENT)
            for case, mebibytes in found.items():
                rows.setdefault(case, {"": case.removesuffix(" zeros rotated")}).update(mebibytes)
    yield from rows.values()


def growth(effort: Effort) -> Iterator[Row]:
    """Time by output elements."""
    contestants = [c for c in CONTESTANTS if c.networks and c.installed]
    for exponent in range(14, 23 if effort.quick else 27, 2):
        height = 1 << (exponent - 2) // 2
        case = grid_sample_case((1, 4, 512, 512), (height, (1 << exponent - 2) // height), "linear")
        feeds = case.feeds()
        turns = {c.name: c.turn(case, feeds, effort.threads)[0] for c in contestants}
        timings = measure(turns, effort.rounds, effort.seconds)
        yield {
            "elements": f"2^{exponent}",
            **{name: timing.median / 2**exponent * 1e9 for name, timing in timings.items()},
        }


#: Name -> what the table says, and what makes its rows.
COSTS: Mapping[str, tuple[str, Callable[[Effort], Iterator[Row]]]] = {
    "tiny call": ("A run on tiny tensors (2×2 pixels), µs", tiny_call),
    "dispatch": ("A run with 4 million output elements against the function, linear, ms", dispatch),
    "making": ("Making a session for a model of one node, more than a native one, ms", making),
    "import": ("Importing ort_gridsample after its hard dependencies, ms", importing),
    "memory": (
        "Temporary memory beyond inputs and output, MiB\n"
        "(of it, with a Python op, copies: of the inputs and the output, by onnxruntime-extensions)",
        memory,
    ),
    "growth": ("Growth with the output (1×4×512×512 → 4 channels, linear), ns an output element", growth),
}


@dataclass(frozen=True)
class Cost:
    """One table: its name, what it says, and its rows."""

    name: str
    title: str
    rows: list[Row]


def run_costs(names: list[str], effort: Effort, begin: Callable[[str], None]) -> Iterator[Cost]:
    """Measure the costs called ``names``, one by one."""
    with kept():
        for name in names:
            begin(f"costs: {name}")
            title, rows = COSTS[name]
            yield Cost(name, title, list(rows(effort)))
