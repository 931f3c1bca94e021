"""Results as text of at most 100 columns, and as JSON."""

from __future__ import annotations

import os
import platform
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import groupby
from typing import Any

from ort_gridsample.cli.table import table
from ort_gridsample.cli.timing import Timing

from .contestants import COMPILED, CONTESTANTS, COPY, NATIVE, PYTHON
from .costs import Cost
from .run import Result
from .suite import name_of
from .summary import Target, means

_DISTRIBUTIONS = (
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


@dataclass(frozen=True)
class _View:
    """One way to look at the results: which contestants side by side, and whether a plain copy is beside them.

    The first of ``names`` is what the others are compared with: they with it where there is a copy, else it with them.
    """

    caption: str
    names: tuple[str, ...]
    copy: bool


_VIEWS = (
    _View(
        "Through session.run: ms a call ± half the distance of the quartiles, × as fast as onnxruntime.\n"
        "copy: ms to copy the bytes that must move; then how many times that each of the sessions takes.",
        (NATIVE, COMPILED, PYTHON),
        copy=True,
    ),
    _View(
        "Function against function: ms a call ± as above; ×: how many times as fast the first one is.",
        ("function jit", "function numpy", "PyTorch", "OpenVINO"),
        copy=False,
    ),
)


def environment(threads: int) -> dict[str, Any]:
    """Where the numbers come from."""
    return {
        "python": platform.python_version(),
        "machine": f"{_processor()}, {os.cpu_count()} processors",
        "threads": threads,
        "versions": {name: _version(name) for name in _DISTRIBUTIONS if _version(name)},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def environment_text(environment: Mapping[str, Any]) -> str:
    versions = [f"{name} {version}" for name, version in environment["versions"].items()]
    threads = f"{environment['threads']} threads" if environment["threads"] else "as many threads as each side takes"
    return textwrap.fill(
        f"Python {environment['python']} on {environment['machine']}; {threads}; {', '.join(versions)}", 98
    )


def results_text(results: Sequence[Result]) -> str:
    """A block for every heading, the sessions' first; then why there are dashes."""
    parts = []
    for view in _VIEWS:
        shown = [name for name in view.names if any(name in r.timings for r in results)]
        if not shown:
            continue
        parts.append(view.caption)
        for heading, group in groupby(results, key=lambda result: result.case.heading):
            members = [result for result in group if any(name in result.timings for name in shown)]
            if members:
                rows = [["", *shown], *([r.case.label, *_cells(r, shown, view)] for r in members)]
                if view.copy and any(COPY in r.timings for r in members):
                    rows = [[*row, *cells] for row, cells in zip(rows, _copy_column(members, shown), strict=True)]
                parts.append(f"{heading}\n{table(rows, indent='  ')}")
    parts += _reasons(results)
    return "\n\n".join(parts)


def _cells(result: Result, names: Sequence[str], view: _View) -> Iterable[str]:
    for name in names:
        ratio = None if name == names[0] else result.ratio(name) if view.copy else result.ratio(names[0], name)
        yield _cell(result.timings.get(name), ratio)


def _copy_column(results: Sequence[Result], names: Sequence[str]) -> Iterable[Sequence[str]]:
    """The plain copy, and how many times that each of ``names`` takes: the head, then a row for each of ``results``."""
    yield [COPY, "× copy"]
    for result in results:
        copy = result.timings[COPY].median
        times = (result.timings.get(name) for name in names)
        yield [digits(copy * 1e3), " ".join(NONE if t is None else digits(t.median / copy) for t in times)]


def _cell(timing: Timing | None, ratio: Timing | None) -> str:
    if timing is None:
        return NONE
    text = f"{digits(timing.median * 1e3)} ±{timing.spread:.0%}"
    return text if ratio is None else f"{text} {digits(ratio.median)}×"


def digits(value: float) -> str:
    """Three digits, or all of a larger number."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _reasons(results: Sequence[Result]) -> Iterable[str]:
    """Why contestants have no time, each reason once."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for result in results:
        wrong = {name: f"WRONG: {reason}" for name, reason in result.wrong.items()}
        for name, reason in (*result.reasons.items(), *wrong.items()):
            key = re.sub(r"[\d.]+", "#", reason)  # the same but for its numbers
            found.setdefault((name, key), []).append((reason, name_of(result.case)))
    if found:
        lines = ["Why there is a –:"]
        for (name, _), cases in found.items():
            (reason, case), more = cases[0], len(cases) - 1
            lines += [_cut(f"  {name}: {reason}"), f"    {case}" + (f" and {more} more" if more else "")]
        yield "\n".join(lines)


def _cut(text: str, width: int = 98) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def summary_text(results: Sequence[Result]) -> str:
    """Geometric means by group, and the least ratios with their cases."""
    names = [c.name for c in CONTESTANTS if c.name != NATIVE and any(r.ratio(c.name) for r in results)]
    parts = []
    if names:
        columns = {name: {mean.group: mean for mean in means(results, name)} for name in names}
        groups = [*dict.fromkeys(r.case.group for r in results), "all"]
        rows: list[Sequence[object]] = [("", *names)]
        for group in groups:
            if any(group in column for column in columns.values()):
                cells = (f"{digits(c[group].mean)}×" if group in c else NONE for c in columns.values())
                rows.append((group, *cells))
        parts.append(f"Geometric mean of how many times as fast as onnxruntime\n{table(rows, indent='  ')}")
    for contestant, baseline in (
        (COMPILED, NATIVE),
        (PYTHON, NATIVE),
        ("function numpy", NATIVE),
        ("function jit", "PyTorch"),
        ("function jit", "OpenVINO"),
    ):
        found = means(results, contestant, baseline)
        if found:
            rows = [("", "cases", "mean", "least", "at")]
            rows += [(m.group, m.cases, digits(m.mean), digits(m.least), m.at.case.short) for m in found[:-1]]
            m = found[-1]
            rows.append((m.group, m.cases, digits(m.mean), digits(m.least), f"{m.at.case.group}, as above"))
            parts.append(f"{contestant} against {baseline}\n{table(rows, indent='  ')}")
    return "\n\n".join(parts)


def targets_text(targets: Sequence[Target]) -> str:
    rows: list[Sequence[object]] = [("", "found", "wanted", "")]
    for target in targets:
        wanted = f"at {'least' if target.at_least else 'most'} {target.limit:g} {target.unit}"
        rows.append((target.what, f"{digits(target.value)} {target.unit}", wanted, "" if target.reached else "MISSED"))
    return f"Targets\n{table(rows, indent='  ')}"


def costs_text(costs: Sequence[Cost]) -> str:
    """A table for each cost."""
    parts = []
    for cost in costs:
        heads = list(cost.rows[0])
        rows = [[_shown(row.get(head)) for head in heads] for row in cost.rows]
        parts.append(f"{cost.title}\n{table([heads, *rows], indent='  ')}")
    return "\n\n".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "0" if abs(value) < 5e-4 else ("-" if value < 0 else "") + digits(abs(value))
    return NONE if value is None else str(value)


def as_json(
    environment: Mapping[str, Any], results: Sequence[Result], costs: Sequence[Cost], targets: Sequence[Target]
) -> dict[str, Any]:
    """Everything, numbers in seconds unless their name says otherwise."""
    return {
        "environment": dict(environment),
        "cases": [_result_json(result) for result in results],
        "means": {
            f"{contestant.name} against {baseline}": [
                {"group": m.group, "cases": m.cases, "mean": m.mean, "least": m.least, "at": name_of(m.at.case)}
                for m in means(results, contestant.name, baseline)
            ]
            for contestant in CONTESTANTS
            for baseline in (NATIVE, "PyTorch", "OpenVINO")
            if contestant.name != baseline and means(results, contestant.name, baseline)
        },
        "costs": [{"name": cost.name, "title": cost.title, "rows": cost.rows} for cost in costs],
        "targets": [
            {
                "what": target.what,
                "value": target.value,
                "limit": target.limit,
                "at_least": target.at_least,
                "unit": target.unit,
                "reached": target.reached,
            }
            for target in targets
        ],
    }


def _result_json(result: Result) -> dict[str, Any]:
    return {
        "name": name_of(result.case),
        "group": result.case.group,
        "moved_bytes": result.case.moved_bytes(),
        "contestants": {
            name: {
                "median": timing.median,
                "quartiles": timing.quartiles,
                "rounds": timing.rounds,
                "ratio": None if (ratio := result.ratio(name)) is None else ratio.median,
                "ratio_quartiles": None if ratio is None else ratio.quartiles,
            }
            for name, timing in result.timings.items()
        },
        "reasons": result.reasons,
        "wrong": result.wrong,
    }
