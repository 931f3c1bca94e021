"""``ort-gridsample bench MODEL``: time a model in onnxruntime alone and with this package."""

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from .. import spec
from ..dialects.registry import dialects
from ..dialects.table import COMPILED, FUSED
from ..functions.cores import get_core
from ..reference.arrays import Array
from ..session.native import quiet_options
from ..session.session import InferenceSession
from . import inputs
from .arguments import magnitude, positive
from .failures import about
from .output import print_json, table, versions
from .timing import Timing, Turn, measure
from .verify import difference

#: Side -> how to make its session; the first is the baseline.
NATIVE, OURS = "onnxruntime", "ort_gridsample"
SIDES: Mapping[str, Callable[..., Any]] = {NATIVE: onnxruntime.InferenceSession, OURS: InferenceSession}
#: Compiled op -> its operator.
_OPERATORS = {each.op_type: each.operator for each in dialects() if each.name == COMPILED} | {FUSED: "GridSample"}
#: Runs under the profiler, after WARM_UP runs that do not count.
PROFILED_RUNS, WARM_UP = 7, 2


@dataclass(frozen=True)
class Node:
    """One node in a profile: its operator, and its seconds in a run, the median over runs."""

    op_type: str
    seconds: float


@dataclass(frozen=True)
class Side:
    """A side's outputs, the seconds of a run, its nodes by name, and by the name of a node those fused with it."""

    answers: Sequence[Array]
    timing: Timing
    nodes: Mapping[str, Node]
    shares: Mapping[str, Sequence[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    inputs.add_arguments(parser)
    add("--threads", type=positive, metavar="N", help="threads of each side (default: its own choice)")
    add("--rounds", type=positive, default=21, metavar="N", help="the most rounds (default: %(default)s)")
    add("--seconds", type=magnitude, default=3.0, metavar="S", help="how long, about (default: %(default)g)")
    add("--json", action="store_true", help="print JSON, times in seconds")


def run(arguments: argparse.Namespace) -> None:
    with about(arguments.model):
        feeds = inputs.feeds(InferenceSession(arguments.model), arguments, random=True)
        sides, refusals = _measured(arguments, feeds)
    if arguments.json:
        content = {"model": arguments.model, "threads": arguments.threads, "core": get_core(), "versions": versions()}
        print_json({**content, "sides": as_json(sides, refusals)})
        return
    threads = f"{arguments.threads} threads" if arguments.threads else "as many threads as each side takes"
    print(f"{arguments.model}: onnxruntime {onnxruntime.__version__}, core {get_core()}, {threads}")
    print("ms: nodes from onnxruntime's profile; a run without it, ± half the distance of the quartiles")
    print(f"×: how many times as fast as {NATIVE}")
    print(as_text(sides))
    for node, others in sides[OURS].shares.items():
        print(f"{node} is fused with {', '.join(others)}, which its × counts")
    for name, reason in refusals.items():
        print(f"{name} does not run it: {reason}")
    if (part := _difference(sides[OURS], sides.get(NATIVE))) is not None:
        print(f"{OURS}: the outputs differ from {NATIVE}'s by at most {part:.1e} of their largest value")


def _measured(arguments: argparse.Namespace, feeds: dict[str, Array]) -> tuple[dict[str, Side], dict[str, str]]:
    """Each side that runs the model, and onnxruntime's error where it alone refuses the model."""
    sessions, answers, refusals = {}, {}, {}
    for name, make in SIDES.items():
        try:
            session = make(arguments.model, quiet_options(arguments.threads or 0), providers=["CPUExecutionProvider"])
            answers[name] = session.run(None, feeds)
            sessions[name] = session
        except Exception as error:
            if name == OURS:
                raise
            refusals[name] = " ".join(str(error).split())
    nodes = {name: _profile(SIDES[name], arguments, feeds) for name in sessions}
    turns = {name: Turn(partial(session.run, None, feeds)) for name, session in sessions.items()}
    timings = measure(turns, arguments.rounds, arguments.seconds)
    shares = {each.record.name: each.fused for each in sessions[OURS].replaced if each.fused}
    return {n: Side(answers[n], timings[n], nodes[n], shares if n == OURS else {}) for n in sessions}, refusals


def _profile(make: Callable[..., Any], arguments: argparse.Namespace, feeds: dict[str, Array]) -> dict[str, Node]:
    options = quiet_options(arguments.threads or 0)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = make(arguments.model, options, providers=["CPUExecutionProvider"])
        for _ in range(WARM_UP + PROFILED_RUNS):
            session.run(None, feeds)
        return read_profile(json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")))


def read_profile(events: list[dict[str, Any]]) -> dict[str, Node]:
    """The nodes in an onnxruntime profile, by name; a node that runs several times in a run counts with their sum."""
    runs = sorted(event["ts"] for event in events if event.get("name") == "model_run")[WARM_UP:]
    seconds: dict[str, dict[float, float]] = defaultdict(lambda: dict.fromkeys(runs, 0.0))
    op_types: dict[str, str] = {}
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time") or event["ts"] < min(runs):
            continue
        name, op_type = event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]
        seconds[name][max(start for start in runs if start <= event["ts"])] += event["dur"] / 1e6
        op_types[name] = _OPERATORS.get(op_type, op_type)
    return {name: Node(op_types[name], statistics.median(by_run.values())) for name, by_run in seconds.items()}


def as_text(sides: Mapping[str, Side]) -> str:
    """A table: GridSample and AffineGrid one by one, the other nodes together, and whole runs."""
    # A decomposed form has the name of one of its nodes, of other operators, and counts among the other nodes.
    each = (item for side in sides.values() for item in side.nodes.items())
    op_types = {name: node.op_type for name, node in each if node.op_type in spec.OPERATORS}
    native, columns = sides.get(NATIVE), list[list[str]]()
    for side in sides.values():
        others = sum(node.seconds for node in side.nodes.values() if node.op_type not in spec.OPERATORS)
        whole = f"{_ms(side.timing.median)} ±{side.timing.spread:.0%}"
        if native and side is not native:
            whole += f" {side.timing.times_faster_than(native.timing).median:.3g}×"
        columns.append([*(_cell(name, side, native) for name in op_types), _ms(others), whole])
    names, operators = [*op_types, "all other nodes", "a run"], [*op_types.values(), "", ""]
    return table([("ms", "operator", *sides), *zip(names, operators, *columns, strict=True)], indent="  ")


def _cell(name: str, side: Side, native: Side | None) -> str:
    """The time of a node on ``side``, and how many times as long it and the nodes fused with it took natively."""
    node = side.nodes.get(name)
    if node is None or node.op_type not in spec.OPERATORS:
        return next((f"in {other}" for other, shared in side.shares.items() if name in shared), "–")
    if native is None or native is side or not node.seconds or native.nodes.get(name, node).op_type != node.op_type:
        return _ms(node.seconds)
    there = sum(native.nodes[n].seconds for n in (name, *side.shares.get(name, ())) if n in native.nodes)
    return _ms(node.seconds) + (f" {there / node.seconds:.3g}×" if there else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def as_json(sides: Mapping[str, Side], refusals: Mapping[str, str]) -> dict[str, Any]:
    """The sides by name for JSON, times in seconds."""
    native = sides.get(NATIVE)
    found: dict[str, Any] = {name: {"refusal": reason} for name, reason in refusals.items()}
    for name, side in sides.items():
        found[name] = {
            "median": side.timing.median,
            "quartiles": side.timing.quartiles,
            "rounds": side.timing.rounds,
            "ratio": side.timing.times_faster_than(native.timing).median if native else None,
            "nodes": side.nodes,
            "shares": side.shares,
            "difference": _difference(side, native),
        }
    return found


def _difference(side: Side, native: Side | None) -> float | None:
    """The largest difference of an output to the native one, over its largest value; None of that one itself."""
    if native is None or native is side:
        return None
    pairs = (difference(a, b) for a, b in zip(native.answers, side.answers, strict=True))
    return max((most / max(size, np.finfo(float).tiny) for most, size in pairs), default=0.0)
