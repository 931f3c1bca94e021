"""Write the results as text of about 100 columns."""

import os
import platform
import re
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import groupby, product

import numpy as np
import onnxruntime

from ort_gridsample.cli.output import table
from ort_gridsample.cli.timing import Timing, Turn, measure

from .backends import BACKENDS, COMPILED, NATIVE, PROVIDER, PYTHON, options_for
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
#: The name of :func:`tiny_call` and :func:`tiny_function` in ``--only`` and ``--list``.
TINY_CALL = "a run on tiny tensors"
#: The caption of a table -> its backends. Sessions are compared with the first of them, and the
#: first function with the others.
_CAPTIONS = {
    "Through session.run: ms a call ± half the distance of the quartiles, "
    "× as fast as onnxruntime.": [backend for backend in BACKENDS if backend.networks],
    "Function against function: ms a call ± as above; "
    "×: how many times as fast the first one is.": [
        backend for backend in BACKENDS if not backend.networks
    ],
}


#: The pairs of backends whose smallest ratios are listed.
_COMPARISONS = [
    *product((COMPILED, PYTHON, "function numpy"), [NATIVE]),
    (PROVIDER, COMPILED),
    *product(["function jit"], ("PyTorch", "OpenVINO")),
]


def environment_text(threads: int) -> str:
    """Return a paragraph about the machine and the versions of the packages.

    ``threads`` is 0 if each backend takes its own number of threads.
    """
    python = f"Python {platform.python_version()} on {_processor()}"
    thread_count = f"{threads} threads" if threads else "as many threads as each backend takes"
    processors = f"{os.cpu_count()} processors; {thread_count}"
    versions = [
        f"{name} {metadata.version(name)}"
        for name in _PACKAGES
        if any(metadata.distributions(name=name))
    ]
    return textwrap.fill(f"{python}, {processors}; {', '.join(versions)}", 98)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def results_text(results: Sequence[Result]) -> str:
    """Return a block for each heading, those of sessions first, and the reasons of dashes."""
    parts = []
    for caption, backends in _CAPTIONS.items():
        shown = [
            backend.name
            for backend in backends
            if any(backend.name in result.timings for result in results)
        ]
        if shown:
            parts.append(caption)
        for heading, group in groupby(results, key=lambda result: result.case.heading):
            members = [result for result in group if any(name in result.timings for name in shown)]
            if members:
                rows = [list(row(result, shown)) for result in members]
                parts.append(f"{heading}\n{table([['', *shown], *rows], indent='  ')}")
    return "\n\n".join([*parts, *reasons_text(results)])


def row(result: Result, names: Sequence[str]) -> Iterator[str]:
    """Yield the label of a case, and the time and the ratio of each backend."""
    first = names[0]
    yield result.case.label
    for name in names:
        timing = result.timings.get(name)
        ratio = result.ratio(name) if NATIVE in names else result.ratio(first, name)
        text = NONE if timing is None else f"{digits(timing.median * 1e3)} ±{timing.spread:.0%}"
        yield text if ratio is None or name == first else f"{text} {digits(ratio.median)}×"


def digits(value: float) -> str:
    """Format a number with three digits, or with all digits of a larger integer part."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def reasons_text(results: Sequence[Result]) -> Iterable[str]:
    """Yield a paragraph of the reasons why backends have no time."""
    #: (backend, reason without numbers) -> the reasons and names of the cases.
    cases: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for result in results:
        wrong = {name: f"WRONG: {reason}" for name, reason in result.wrong.items()}
        for name, reason in (*result.reasons.items(), *wrong.items()):
            key = re.sub(r"[\d.]+", "#", reason)
            cases.setdefault((name, key), []).append((reason, result.case.name))
    if cases:
        lines = ["Why there is a –:"]
        for (name, _), ((reason, case), *more) in cases.items():
            line = f"  {name}: {reason}"
            lines.append(line if len(line) <= 98 else f"{line[:97]}…")
            lines.append(f"    {case} and {len(more)} more" if more else f"    {case}")
        yield "\n".join(lines)


def summary_text(results: Sequence[Result]) -> str:
    """Return the geometric means of each group, and the smallest ratios with their cases."""
    # The provider is compared with the compiled op only, as the table is wide enough.
    names = [backend.name for backend in BACKENDS if backend.name not in (NATIVE, PROVIDER)]
    all_means = {name: means(results, name) for name in names}
    columns = {name: groups for name, groups in all_means.items() if groups}
    rows: list[Sequence[object]] = [("", *columns)]
    for group in (*dict.fromkeys(result.case.group for result in results), "all"):
        if any(group in column for column in columns.values()):
            cells = [
                f"{digits(column[group].mean)}×" if group in column else NONE
                for column in columns.values()
            ]
            rows.append((group, *cells))
    parts = []
    if columns:
        title = "Geometric mean of how many times as fast as onnxruntime"
        parts.append(f"{title}\n{table(rows, indent='  ')}")
    for backend, baseline in _COMPARISONS:
        parts += comparison_text(results, backend, baseline)
    return "\n\n".join(parts)


def comparison_text(results: Sequence[Result], backend: str, baseline: str) -> Iterator[str]:
    """Yield a table of the mean and least ratios of two backends, if they have any."""
    if groups := means(results, backend, baseline):
        rows: list[Sequence[object]] = [("", "cases", "mean", "least", "at")]
        for group, mean in groups.items():
            case = mean.slowest.case
            place = f"{case.group}, as above" if group == "all" else case.short
            rows.append((group, mean.cases, digits(mean.mean), digits(mean.least), place))
        yield f"{backend} against {baseline}\n{table(rows, indent='  ')}"


def tiny_function(threads: int, rounds: int, seconds: float) -> str:
    """Return a table of the microseconds of functions, and of the difference to numpy.empty."""
    case = grid_sample_case((1, 1, 4, 4), (4, 4), "linear")
    feeds = case.feeds()
    floor_name = "numpy.empty"
    turns = {floor_name: Turn(partial(np.empty, (1, 1, 4, 4), np.float32))}
    for backend in BACKENDS:
        if not backend.networks and backend.installed:
            turns[backend.name], _ = backend.turn(case, feeds, threads)
    timings = measure(turns, rounds, seconds)
    title = "A function on tiny arrays (4×4 pixels), µs"
    return _differences_text(title, timings, floor_name, f"above {floor_name}")


def tiny_call(threads: int, rounds: int, seconds: float) -> str:
    """Return a table of the microseconds of one node, and of the difference to an Identity."""
    case = grid_sample_case((1, 1, 2, 2), (2, 2), "linear")
    feeds = case.feeds()
    X = ("float32", (1, 1, 2, 2))
    session = onnxruntime.InferenceSession(
        one_node("Identity", {"X": X}, X, {}), options_for(threads)
    )
    floor_name = "native Identity"
    turns = {floor_name: Turn(partial(session.run, None, {"X": feeds["X"]}))}
    for backend in BACKENDS:
        if backend.networks and backend.installed:
            turns[backend.name], _ = backend.turn(case, feeds, threads)
    turns[floor_name].call()
    timings = measure(turns, rounds, seconds)
    title = "A run on tiny tensors (2×2 pixels), µs"
    return _differences_text(title, timings, floor_name, "above Identity")


def _differences_text(
    title: str, timings: Mapping[str, Timing], floor_name: str, above: str
) -> str:
    """Return a table of the microseconds of calls, and of the differences to one of them."""
    rows = [["", "µs", above]]
    floor = timings[floor_name]
    for name, timing in timings.items():
        differences = [a - b for a, b in zip(timing.rounds, floor.rounds, strict=True)]
        above_floor = digits(statistics.median(differences) * 1e6)
        rows.append([name, digits(timing.median * 1e6), NONE if timing is floor else above_floor])
    return f"{title}\n{table(rows, indent='  ')}"
