"""What it costs besides the kernels: calls, sessions, imports, memory, and growth with the size."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import onnxruntime

from ort_gridsample.cli.timing import Turn, measure

from . import cores, probes
from .contestants import COMPILED, CONTESTANTS, NATIVE, PYTHON, options_for, plain_copy
from .suite import GridSampleCase, one_node
from .summary import Target

Row = dict[str, object]


@dataclass(frozen=True)
class Effort:
    """How much is done: threads, rounds, seconds for each comparison, and whether large sizes are left out."""

    threads: int
    rounds: int
    seconds: float
    quick: bool


@dataclass
class Cost:
    """One table: its name, what it says, its rows, and the targets that it decides."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)


def tiny_call(effort: Effort) -> Cost:
    """A run of one node on tiny tensors."""
    cost = Cost("tiny call", "A run on tiny tensors (2×2 pixels), µs")
    case = GridSampleCase((1, 1, 2, 2), (2, 2), "linear")
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
        above = statistics.median(t - f for t, f in zip(timing.rounds, floor.rounds, strict=True)) * 1e6
        cost.rows.append(
            {"": name, "µs": timing.median * 1e6, "above Identity": above if timing is not floor else None}
        )
    if COMPILED in timings:
        ratio = timings[COMPILED].times_faster_than(timings[NATIVE]).median
        cost.targets.append(Target(f"{COMPILED}: a tiny call", ratio, 1, at_least=True))
    return cost


def dispatch(effort: Effort) -> Cost:
    """What a session adds to the function, with small inputs and with large ones."""
    cost = Cost("dispatch", "A run with 4 million output elements against the function, linear, ms")
    for case in (
        GridSampleCase((1, 64, 64, 64), (256, 256), "linear"),
        GridSampleCase((1, 4, 1024, 1024), (1024, 1024), "linear"),
    ):
        feeds = case.feeds()
        turns = {"copy": plain_copy(2 * case.moved_bytes(), effort.threads)}
        for contestant in CONTESTANTS:
            if contestant.core in cores.installed():
                turns[contestant.name], _ = contestant.turn(case, feeds, effort.threads)
        timings = measure(turns, effort.rounds, effort.seconds)
        for contestant in CONTESTANTS:
            if contestant.ops is None or contestant.name not in timings:
                continue
            session, function = timings[contestant.name], timings[f"function {contestant.core}"]
            above = statistics.median(s - f for s, f in zip(session.rounds, function.rounds, strict=True)) * 1e3
            cost.rows.append(
                {
                    "": f"{case.heading} {contestant.name}",
                    "function": function.median * 1e3,
                    "session": session.median * 1e3,
                    "above": above,
                    "a copy of inputs and output": timings["copy"].median * 1e3,
                }
            )
    return cost


#: Milliseconds that making a session may take: with Python ops, and with compiled ones.
MAKING = (
    {"cold cache": 10_000, "first": 1000, "after": 50},
    {"cold cache": 5000, "first": 600, "after": 10},
)


def making(effort: Effort) -> Cost:
    """Sessions, in fresh processes with a fresh cache: the first process compiles, the second finds it compiled."""
    cost = Cost("making", "Making a session for a model of one node, more than a native one, ms")
    for name in (contestant.name for contestant in CONTESTANTS if contestant.ops and contestant.installed):
        with tempfile.TemporaryDirectory() as cache:
            environment = {"NUMBA_CACHE_DIR": cache}
            cold = probes.ask("making", name, environment=environment)
            warm = [probes.ask("making", name, environment=environment) for _ in range(1 if effort.quick else 3)]
        above: dict[str, float] = {"cold cache": cold["patched first"] - cold["native first"]}
        for which in ("first", "after"):
            above[which] = statistics.median(each[f"patched {which}"] - each[f"native {which}"] for each in warm)
        limits = MAKING[name == COMPILED]
        words = {"cold cache": "cold cache", "first": "first in a process", "after": "each after"}
        row: Row = {"": name, "a native one": statistics.median(each["native after"] for each in warm) * 1e3}
        for which, limit in limits.items():
            row[words[which]] = above[which] * 1e3
            what = f"{name}: making it, {words[which]}"
            cost.targets.append(Target(what, above[which] * 1e3, limit, at_least=False, unit="ms"))
        for when, process in (("cold", cold), ("warm", warm[0])):
            row[f"first run, {when}"] = process["patched run"] * 1e3
        cost.rows.append(row)
    return cost


def importing(effort: Effort) -> Cost:
    """The package's own part of the import."""
    milliseconds = [probes.import_seconds() * 1e3 for _ in range(3 if effort.quick else 7)]
    median = statistics.median(milliseconds)
    cost = Cost("import", "Importing ort_gridsample after its hard dependencies, ms")
    cost.rows.append({"median": median, "least": min(milliseconds), "most": max(milliseconds)})
    cost.targets.append(Target("importing the package", median, 50, at_least=False, unit="ms"))
    return cost


def memory(effort: Effort) -> Cost:
    """Peak memory, in fresh processes."""
    cost = Cost(
        "memory",
        "Temporary memory beyond inputs and output, MiB\n"
        "(of it, with a Python op, copies: of the inputs and the output, by onnxruntime-extensions)",
    )
    if not os.path.exists("/proc/self/clear_refs"):
        cost.rows.append({"": "cannot be measured here: this needs Linux"})
        return cost
    rows: dict[str, Row] = {}
    most: dict[str, float] = {}
    for core in cores.installed():
        for which in ("suite",) if effort.quick else ("suite", "large"):
            found = probes.ask("memory", core, which, environment=probes.MEMORY_ENVIRONMENT)
            for case, mebibytes in found.items():
                copies = mebibytes.pop("copies")
                row = rows.setdefault(case, {"": case.removesuffix(" zeros rotated"), "copies": copies})
                for name, value in mebibytes.items():
                    row[name] = value
                    own = value - (copies if name == PYTHON else 0.0)
                    what = f"{name}: temporary memory" + (" but for the copies" if name == PYTHON else "")
                    most[what] = max(most.get(what, 0.0), own)
    cost.rows += rows.values()
    cost.targets += (Target(what, value, 64, at_least=False, unit="MiB") for what, value in most.items())
    return cost


def growth(effort: Effort) -> Cost:
    """Time by output elements."""
    cost = Cost("growth", "Growth with the output (1×4×512×512 → 4 channels, linear), ns an output element")
    exponents = range(14, 23 if effort.quick else 27, 2)
    contestants = [c for c in CONTESTANTS if c.networks and c.installed]
    for exponent in exponents:
        height = 1 << (exponent - 2) // 2
        case = GridSampleCase((1, 4, 512, 512), (height, (1 << exponent - 2) // height), "linear")
        feeds = case.feeds()
        turns = {c.name: c.turn(case, feeds, effort.threads)[0] for c in contestants}
        timings = measure(turns, effort.rounds, effort.seconds)
        row: Row = {"elements": f"2^{exponent}"}
        row.update({name: timing.median / 2**exponent * 1e9 for name, timing in timings.items()})
        cost.rows.append(row)
    return cost


COSTS: Mapping[str, Callable[[Effort], Cost]] = {
    "tiny call": tiny_call,
    "dispatch": dispatch,
    "making": making,
    "import": importing,
    "memory": memory,
    "growth": growth,
}


def run_costs(names: list[str], effort: Effort, begin: Callable[[str], None]) -> Iterator[Cost]:
    """Measure the costs called ``names``, one by one."""
    with cores.kept():
        for name in names:
            begin(f"costs: {name}")
            yield COSTS[name](effort)
