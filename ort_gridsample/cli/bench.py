"""``ort-gridsample bench MODEL``: time a model in onnxruntime alone and with this package."""

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

from .. import spec
from ..custom_ops.plain_session import PLAIN_SESSION
from ..dialects.registry import dialects
from ..dialects.table import COMPILED, FUSED_TYPES
from ..errors import GridSampleError, one_line, shortened_names
from ..functions.cores import get_core
from ..reference.arrays import Array
from ..session.installed_runtime import quiet_options
from ..session.session import InferenceSession
from . import inputs, providers, runners
from .arguments import magnitude, positive
from .failures import about
from .output import print_json, table, versions
from .output_comparison import relative_difference
from .timing import Timing, Turn, measure

BASELINE = "onnxruntime"
OURS = "ort_gridsample"
#: Side -> the class of its session. The first side is the baseline.
SIDES: Mapping[str, Callable[..., Any]] = {
    BASELINE: PLAIN_SESSION,
    OURS: InferenceSession,
}
_COMPILED_DIALECTS = [dialect for dialect in dialects() if dialect.name == COMPILED]
#: Compiled op -> its operator.
_OPERATORS = {dialect.op_type: dialect.operator for dialect in _COMPILED_DIALECTS}
_OPERATORS |= dict.fromkeys(FUSED_TYPES, "GridSample")
#: The number of runs under the profiler, after WARM_UP runs that do not count.
PROFILED_RUNS = 7
WARM_UP = 2


@dataclass(frozen=True)
class Node:
    """A node in a profile: its operator, and its seconds in a run, as the median over runs."""

    op_type: str
    seconds: float


@dataclass(frozen=True)
class SideResult:
    """What was measured on one side.

    Attributes:
        outputs: the outputs of one run, in the order of the model.
        timing: the seconds of a run, without the profiler.
        nodes: the nodes in the profile, by name.
        fused_with: name of a node -> names of the nodes that are fused with it.
    """

    outputs: Sequence[Array]
    timing: Timing
    nodes: Mapping[str, Node]
    fused_with: Mapping[str, Sequence[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    inputs.add_arguments(parser)
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="the number of threads of each side (default: its own choice)",
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        default=21,
        metavar="N",
        help="the maximum number of rounds (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=magnitude,
        default=3.0,
        metavar="S",
        help="the approximate duration (default: %(default)g)",
    )
    providers.add_arguments(
        parser, "run both sides on this execution provider, and on the CPU what it does not run"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, times in seconds")


def run(arguments: argparse.Namespace) -> None:
    """Time a model on both sides, and print the results."""
    providers.register_provider(arguments, "bench")
    with about(arguments.model):
        feeds = inputs.make_feeds(InferenceSession(arguments.model), arguments, random=True)
        results, refusals = _measure(arguments, feeds)
    if arguments.json:
        content: dict[str, object] = {
            "model": arguments.model,
            "threads": arguments.threads,
            "core": get_core(),
            "versions": versions(),
            "sides": sides_json(results, refusals),
        }
        if arguments.provider:
            content["provider"] = arguments.provider
        print_json(content)
        return
    _print(arguments, results, refusals)


def _print(
    arguments: argparse.Namespace,
    results: Mapping[str, SideResult],
    refusals: Mapping[str, str],
) -> None:
    """Print the results as text for people."""
    thread_count = "as many threads as each side takes"
    if arguments.threads:
        thread_count = f"{arguments.threads} thread{'s' if arguments.threads > 1 else ''}"
    release = onnxruntime.__version__
    provider = f", {arguments.provider}" if arguments.provider else ""
    print(f"{arguments.model}: onnxruntime {release}{provider}, core {get_core()}, {thread_count}")
    print(
        "ms: the median time of a run ± half the interquartile range; "
        "times of nodes are from onnxruntime's profile"
    )
    print(f"×: how many times as fast as {BASELINE}")
    print(as_text(results))
    ours = results[OURS]
    for node, fused_nodes in ours.fused_with.items():
        names = shortened_names(fused_nodes)
        print(f"{node} is fused with {names}: its × includes the time of the nodes fused into it")
    for name, reason in refusals.items():
        print(f"{name} does not run it: {reason}")
    relative = _relative_difference(ours, results.get(BASELINE))
    if relative is not None:
        print(
            f"{OURS}: the outputs differ from {BASELINE}'s by at most {relative:.1e} "
            "of their largest value"
        )


def _measure(
    arguments: argparse.Namespace,
    feeds: dict[str, Array],
) -> tuple[dict[str, SideResult], dict[str, str]]:
    """Measure each side that runs the model.

    Returns:
        The results by side, and onnxruntime's error if it alone does not run the model.

    Raises:
        GridSampleError: an output is not a tensor.
    """
    opened = dict[str, _OpenedSide]()
    refusals = dict[str, str]()
    for side in SIDES:
        try:
            opened[side] = _open_side(side, arguments, feeds)
        except Exception as error:
            if side == OURS:
                raise
            refusals[side] = one_line(error)
    _check_outputs(opened[OURS].outputs)
    threads = arguments.threads or 0
    nodes = {
        side: profile(SIDES[side], arguments.model, feeds, threads, provider=arguments.provider)
        for side in opened
    }
    turns = {
        side: Turn(runners.call(opened_side.session, feeds)) for side, opened_side in opened.items()
    }
    timings = measure(turns, arguments.rounds, arguments.seconds)
    results = {
        side: SideResult(
            outputs=list(opened_side.outputs.values()),
            timing=timings[side],
            nodes=nodes[side],
            fused_with=_fused_names(opened_side.session) if side == OURS else {},
        )
        for side, opened_side in opened.items()
    }
    return results, refusals


class _OpenedSide(NamedTuple):
    """A session of one side, and the outputs of its first run by name."""

    session: Any
    outputs: runners.Arrays


def _open_side(side: str, arguments: argparse.Namespace, feeds: dict[str, Array]) -> _OpenedSide:
    """Open a session of the model, and run it once.

    Raises:
        Exception: the session does not run the model.
    """
    options = quiet_options(arguments.threads or 0)
    session = providers.open_session(SIDES[side], arguments.model, options, arguments.provider)
    return _OpenedSide(session, runners.run_session(session, feeds))


def _fused_names(session: InferenceSession) -> dict[str, Sequence[str]]:
    """Return name of a node -> names of the nodes that are fused with it."""
    return {
        placement.record.name: placement.fused
        for placement in session.placements
        if placement.fused
    }


def _check_outputs(outputs: runners.Arrays) -> None:
    """Check that all outputs are tensors.

    Raises:
        GridSampleError: an output is not.
    """
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray):
            found = f"a {type(value).__name__}"
            raise GridSampleError("bench", f"output {name!r}", found, "a tensor, to be compared")


def profile(
    session_class: Callable[..., Any],
    model: str,
    feeds: Mapping[str, Array],
    threads: int,
    *,
    warm_up: int = WARM_UP,
    n_runs: int = PROFILED_RUNS,
    provider: str | None = None,
) -> dict[str, Node]:
    """Run a model under onnxruntime's profiler, and return its nodes by name.

    Args:
        threads: the number of threads; 0 for onnxruntime's default.
        warm_up: the number of runs that do not count.
        n_runs: the number of runs after them.
        provider: the execution provider before the CPU's.
    """
    options = quiet_options(threads)
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = providers.open_session(session_class, model, options, provider)
        call = runners.call(session, feeds)
        for _ in range(warm_up + n_runs):
            call()
        path = Path(session.end_profiling())
        return read_profile(json.loads(path.read_text(encoding="utf-8")), n_runs, warm_up)


def read_profile(
    events: list[dict[str, Any]], n_runs: int = PROFILED_RUNS, warm_up: int = WARM_UP
) -> dict[str, Node]:
    """Return the nodes in the events of a profile, by name.

    The runs of a node within a run of the model are added up.

    Args:
        n_runs: the number of runs of the model after those that do not count.
        warm_up: the number of runs that do not count.

    Raises:
        GridSampleError: the profile lacks runs, because onnxruntime dropped their events.
    """
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    run_starts = starts[warm_up:]
    if len(run_starts) < n_runs:
        found = f"incomplete after {len(events)} events"
        limit = "which onnxruntime's profiler limits to about 1,000,000"
        expected = f"the events of {warm_up + n_runs} runs, {limit}"
        raise GridSampleError("bench", "the profile of the nodes", found, expected)
    seconds: dict[str, dict[float, float]] = defaultdict(lambda: dict.fromkeys(run_starts, 0.0))
    op_types = dict[str, str]()
    for event in events:
        is_kernel = event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
        if not is_kernel or event["ts"] < run_starts[0]:
            continue
        name = event["name"].removesuffix("_kernel_time")
        op_type = event["args"]["op_name"]
        run_start = max(start for start in run_starts if start <= event["ts"])
        seconds[name][run_start] += event["dur"] / 1e6
        op_types[name] = _OPERATORS.get(op_type, op_type)
    return {
        name: Node(op_types[name], statistics.median(seconds_by_run.values()))
        for name, seconds_by_run in seconds.items()
    }


def as_text(results: Mapping[str, SideResult]) -> str:
    """Return a table of GridSample and AffineGrid nodes, all other nodes, and whole runs."""
    # A decomposed operator has the name of one of its nodes. It counts among the other nodes.
    op_types = {
        name: node.op_type
        for result in results.values()
        for name, node in result.nodes.items()
        if node.op_type in spec.OPERATORS
    }
    baseline = results.get(BASELINE)
    columns = [
        [*op_types, "all other nodes", "a run"],
        [*op_types.values(), "", ""],
    ]
    for result in results.values():
        cells = [_node_cell(name, result, baseline) for name in op_types]
        others = [n.seconds for n in result.nodes.values() if n.op_type not in spec.OPERATORS]
        columns.append([*cells, _milliseconds(sum(others)), _run_cell(result, baseline)])
    heads = ("ms", "operator", *results)
    return table([heads, *zip(*columns, strict=True)], indent="  ")


def _run_cell(result: SideResult, baseline: SideResult | None) -> str:
    """Return the time of a run, and how many times as fast as the baseline it is."""
    timing = result.timing
    cell = f"{_milliseconds(timing.median)} ±{timing.spread:.0%}"
    if baseline is None or result is baseline:
        return cell
    return f"{cell} {timing.times_faster_than(baseline.timing).median:.3g}×"


def _node_cell(name: str, result: SideResult, baseline: SideResult | None) -> str:
    """Return the time of a node, and how many times as fast as the baseline it is.

    The time of the baseline is that of the node and the nodes that are fused with it.
    """
    node = result.nodes.get(name)
    if node is None or node.op_type not in spec.OPERATORS:
        for other_name, fused_names in result.fused_with.items():
            if name in fused_names:
                return f"in {other_name}"
        return "–"
    cell = _milliseconds(node.seconds)
    if baseline is None or baseline is result or not node.seconds:
        return cell
    if name in baseline.nodes and baseline.nodes[name].op_type != node.op_type:
        return cell
    names = (name, *result.fused_with.get(name, ()))
    baseline_seconds = sum(baseline.nodes[name].seconds for name in names if name in baseline.nodes)
    return f"{cell} {baseline_seconds / node.seconds:.3g}×" if baseline_seconds else cell


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"


def sides_json(results: Mapping[str, SideResult], refusals: Mapping[str, str]) -> dict[str, Any]:
    """Return the results by side for JSON, times in seconds."""
    baseline = results.get(BASELINE)
    content: dict[str, Any] = {side: {"refusal": reason} for side, reason in refusals.items()}
    for side, result in results.items():
        ratio = None
        if baseline is not None:
            ratio = result.timing.times_faster_than(baseline.timing).median
        content[side] = {
            "median": result.timing.median,
            "quartiles": result.timing.quartiles,
            "rounds": result.timing.rounds,
            "ratio": ratio,
            "nodes": result.nodes,
            "shares": result.fused_with,
            "difference": _relative_difference(result, baseline),
        }
    return content


def _relative_difference(result: SideResult, baseline: SideResult | None) -> float | None:
    """Return the relative difference to the baseline, or None if there is no other baseline."""
    if baseline is None or baseline is result:
        return None
    return relative_difference(baseline.outputs, result.outputs)
