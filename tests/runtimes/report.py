"""What is printed of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .table import RUNTIMES, Runtime
from .trials import FORMS, MODES, RANKS, Trial
from .verdicts import Verdict

Cells = dict[Trial, Verdict]
GROUPS = tuple(f"{rank}-D {mode}" for rank in RANKS for mode in MODES)


@dataclass(frozen=True)
class Result:
    """What became of a runtime: its cells, or why it could not be installed."""

    runtime: Runtime
    versions: str
    cells: Cells
    missing: str = ""


def runtimes(rows: Iterable[Runtime]) -> str:
    """What is tried: a row a runtime."""
    table = [["RUNTIME", "what it is", "packages", "primitives", "note"]]
    for each in rows:
        packages = ", ".join([*each.packages, *each.alone, *(f"npm {package}" for package in each.npm)])
        table.append([each.name, each.title, packages, f"--for {each.form}" if each.form else "", each.note])
    return markdown(table)


def worst(verdicts: Iterable[Verdict]) -> str:
    """Several cells as one: right only where all are, and else how many are what."""
    verdicts = list(verdicts)
    if not verdicts:
        return "–"
    wrong = [verdict for verdict in verdicts if verdict.kind == "wrong"]
    refused = sum(verdict.kind == "refused" for verdict in verdicts)
    if refused == len(verdicts):
        return "✗"
    parts = [f"✗ {refused} of {len(verdicts)}"] if refused else []
    if wrong:
        share = "" if len(wrong) == len(verdicts) else f" {len(wrong)} of {len(verdicts)}"
        parts.append(f"wrong{share} by {max(verdict.error for verdict in wrong):.2g}")
    return ", ".join(parts) or "✓"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown, the first row being the heads."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def summary(results: Sequence[Result]) -> str:
    """A row a runtime: each group's worst cell over paddings and alignments, standard / primitives."""
    parts = []
    for dynamic in (False, True):
        rows = [[f"{'dynamic' if dynamic else 'static'} shapes", *GROUPS]]
        for result in results:
            row = [result.runtime.title]
            for group in GROUPS:
                both = [
                    worst(v for t, v in result.cells.items() if (t.form, t.group, t.dynamic) == (form, group, dynamic))
                    for form in FORMS
                ]
                row.append("/".join(both) if not result.missing else "not installed")
            rows.append(row)
        parts.append(markdown(rows))
    rows = [["exported models", "standard", "primitives"]]
    for result in results:
        counts = [_count([v for t, v in result.cells.items() if (t.form, t.group) == (f, "exported")]) for f in FORMS]
        rows.append([result.runtime.title, *counts])
    return "\n\n".join([*parts, markdown(rows)])


def _count(verdicts: Sequence[Verdict]) -> str:
    kinds = [verdict.kind for verdict in verdicts]
    words = [f"{kinds.count('right')} of {len(kinds)} right"] if kinds else ["–"]
    words += [f"{kinds.count(kind)} {kind}" for kind in ("wrong", "refused") if kind in kinds]
    return ", ".join(words)


def alike(cells: Cells) -> list[list[Trial]]:
    """The cells about which there is something to say, those together that say the same but for numbers."""
    said: dict[tuple[str, str, str], list[Trial]] = {}
    for trial, verdict in cells.items():
        if verdict.kind != "right" or verdict.message:
            said.setdefault((trial.form, verdict.kind, re.sub(r"\d+", "#", verdict.message)), []).append(trial)
    return list(said.values())


def reasons(results: Sequence[Result]) -> str:
    """What each runtime said, and at which cells."""
    rows = [["runtime", "form", "at", "what it says"]]
    for result in results:
        if result.missing:
            rows.append([result.runtime.title, "", "", result.missing])
        for form in FORMS:
            for at in alike({trial: verdict for trial, verdict in result.cells.items() if trial.form == form}):
                verdicts = [result.cells[trial] for trial in at]
                worst_of = max(verdicts, key=lambda verdict: verdict.error)
                said = f"{worst_of}: {worst_of.message}".rstrip(": ") if worst_of.kind == "wrong" else worst_of.message
                rows.append([result.runtime.title, form, _places(at), said])
    return markdown(rows)


def _places(trials: Sequence[Trial]) -> str:
    """The cells in a few words."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.group, []).append(trial)
    words = []
    for group, members in groups.items():
        if group == "exported":
            words.append(", ".join(trial.detail for trial in members))
        else:
            kinds = {"dynamic" if trial.dynamic else "static" for trial in members}
            words.append(f"{group} {' and '.join(sorted(kinds))} ({len(members)})")
    return "; ".join(words)


def every_cell(results: Sequence[Result]) -> str:
    """A row a cell."""
    rows = [["runtime", "cell", "verdict", "error", "message"]]
    for result in results:
        for trial, verdict in result.cells.items():
            error = "" if verdict.kind == "refused" else f"{verdict.error:.1e}"
            rows.append([result.runtime.title, trial.name, verdict.kind, error, verdict.message])
    return markdown(rows)


def as_json(results: Sequence[Result], date: str) -> dict[str, object]:
    """Everything, for programs."""
    runtimes = []
    for each in results:
        cells = [{"trial": asdict(trial), "verdict": asdict(verdict)} for trial, verdict in each.cells.items()]
        kept = {"name": each.runtime.name, "versions": each.versions, "missing": each.missing, "cells": cells}
        runtimes.append(kept)
    return {"date": date, "runtimes": runtimes}


def from_json(data: dict[str, Any]) -> tuple[str, list[Result]]:
    """The date and the results that :func:`as_json` wrote."""
    results = []
    for each in data["runtimes"]:
        cells = {Trial(**cell["trial"]): Verdict(**cell["verdict"]) for cell in each["cells"]}
        results.append(Result(RUNTIMES[each["name"]], each["versions"], cells, each["missing"]))
    return data["date"], results
