"""Results as text of at most 100 columns."""

import os
import platform
import re
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import groupby, product

import onnxruntime

from ort_gridsample.cli.output import table
from ort_gridsample.cli.timing import Turn, measure

from .backends import BACKENDS, COMPILED, NATIVE, PYTHON, options_for
from .run import Result, means
from .suite import grid_sample_case, one_node

_PACKAGES = (
    "ort-gridsample",
    "numpy",
    "numba",
    "onnx",
    "onnxruntime",
    "onnxruntime-extensions",
    "torch",
    "openvino",
)

NONE = "–"
#: What ``--only`` and ``--list`` call it.
TINY_CALL = "a run on tiny tensors"
#: Which backends stand side by side. Sessions are compared with the first; of the functions the first is with others.
_CAPTIONS = {
    "Through session.run: ms a call ± half the distance of the quartiles, × as fast as onnxruntime.": BACKENDS[
        :3
    ],
    "Function against function: ms a call ± as above; ×: how many times as fast the first one is.": BACKENDS[
        3:
    ],
}


def environment_text(threads: int) -> str:
    where = f"Python {platform.python_version()} on {_processor()}, {os.cpu_count()} processors; {threads} threads"
    versions = [
        f"{name} {metadata.version(name)}"
        for name in _PACKAGES
        if any(metadata.distributions(name=name))
    ]
    return textwrap.fill(f"{where}; {', '.join(versions)}", 98)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def results_text(results: Sequence[Result]) -> str:
    """A block for every heading, the sessions' first; then why there are dashes."""
    parts = []
    for caption, backends in _CAPTIONS.items():
        shown = [each.name for each in backends if any(each.name in r.timings for r in results)]
        parts += [caption] * bool(shown)
        for heading, group in groupby(results, key=lambda result: result.case.heading):
            members = [result for result in group if any(name in result.timings for name in shown)]
            if members:
                rows = [list(_row(result, shown)) for result in members]
                parts.append(f"{heading}\n{table([['', *shown], *rows], indent='  ')}")
    return "\n\n".join([*parts, *_reasons(results)])


def _row(result: Result, names: Sequence[str]) -> Iterator[str]:
    yield result.case.label
    for name in names:
        timing, first = result.timings.get(name), names[0]
        ratio = result.ratio(name) if NATIVE in names else result.ratio(first, name)
        text = NONE if timing is None else f"{digits(timing.median * 1e3)} ±{timing.spread:.0%}"
        yield text if ratio is None or name == first else f"{text} {digits(ratio.median)}×"


def digits(value: float) -> str:
    """Three digits, or all of a larger number."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _reasons(results: Sequence[Result]) -> Iterable[str]:
    """Why backends have no time, each reason once."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for result in results:
        wrong = {name: f"WRONG: {reason}" for name, reason in result.wrong.items()}
        for name, reason in (*result.reasons.items(), *wrong.items()):
            key = re.sub(r"[\d.]+", "#", reason)  # the same but for its numbers
            found.setdefault((name, key), []).append((reason, result.case.name))
    if found:
        lines = ["Why there is a –:"]
        for (name, _), ((reason, case), *more) in found.items():
            said = f"  {name}: {reason}"
            said = said if len(said) <= 98 else f"{said[:97]}…"
            lines += [said, f"    {case}" + (f" and {len(more)} more" if more else "")]
        yield "\n".join(lines)


def summary_text(results: Sequence[Result]) -> str:
    """Geometric means by group, and the least ratios with their cases."""
    columns = {
        c.name: found for c in BACKENDS if c.name != NATIVE and (found := means(results, c.name))
    }
    rows: list[Sequence[object]] = [("", *columns)]
    for group in (*dict.fromkeys(result.case.group for result in results), "all"):
        if any(group in column for column in columns.values()):
            rows.append(
                (
                    group,
                    *(
                        f"{digits(c[group].mean)}×" if group in c else NONE
                        for c in columns.values()
                    ),
                )
            )
    title = "Geometric mean of how many times as fast as onnxruntime"
    parts = [f"{title}\n{table(rows, indent='  ')}"] * bool(columns)
    natively = product((COMPILED, PYTHON, "function numpy"), [NATIVE])
    for backend, baseline in (*natively, *product(["function jit"], ("PyTorch", "OpenVINO"))):
        if found := means(results, backend, baseline):
            rows = [("", "cases", "mean", "least", "at")]
            for group, mean in found.items():
                at = f"{mean.at.case.group}, as above" if group == "all" else mean.at.case.short
                rows.append((group, mean.cases, digits(mean.mean), digits(mean.least), at))
            parts.append(f"{backend} against {baseline}\n{table(rows, indent='  ')}")
    return "\n\n".join(parts)


def tiny_call(threads: int, rounds: int, seconds: float) -> str:
    """A table of how long a run of one node takes, in microseconds, and how much more than an Identity."""
    case = grid_sample_case((1, 1, 2, 2), (2, 2), "linear")
    feeds, X = case.feeds(), ("float32", (1, 1, 2, 2))
    session = onnxruntime.InferenceSession(
        one_node("Identity", {"X": X}, X, {}), options_for(threads)
    )
    turns = {"native Identity": Turn(partial(session.run, None, {"X": feeds["X"]}))}
    turns |= {
        c.name: c.turn(case, feeds, threads)[0] for c in BACKENDS if c.networks and c.installed
    }
    turns["native Identity"].call()
    timings = measure(turns, rounds, seconds)
    rows, floor = [["", "µs", "above Identity"]], timings["native Identity"]
    for name, timing in timings.items():
        above = (
            statistics.median(a - b for a, b in zip(timing.rounds, floor.rounds, strict=True)) * 1e6
        )
        rows.append([name, digits(timing.median * 1e6), NONE if timing is floor else digits(above)])
    return f"A run on tiny tensors (2×2 pixels), µs\n{table(rows, indent='  ')}"
