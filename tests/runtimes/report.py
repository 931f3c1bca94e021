"""Write the results of a run as tables."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .table import Runtime
from .trials import FORMS, MODES, RANKS, Trial, forms
from .verdicts import Verdict

Cells = dict[Trial, Verdict]
GROUPS = tuple(f"{rank}-D {mode}" for rank in RANKS for mode in MODES)


@dataclass(frozen=True)
class Result:
    """The result of a runtime: its cells, or why it could not be installed."""

    runtime: Runtime
    versions: str
    cells: Cells
    missing: str = ""


def runtimes(rows: Iterable[Runtime]) -> str:
    """Return a table of the runtimes."""
    table = [["RUNTIME", "what it is", "packages", "primitives", "note"]]
    for runtime in rows:
        npm_packages = [f"npm {package}" for package in runtime.npm]
        packages = ", ".join([*runtime.packages, *runtime.alone, *npm_packages])
        form = f"--for {runtime.form}" if runtime.form else ""
        table.append([runtime.name, runtime.title, packages, form, runtime.note])
    return markdown(table)


def _cells(result: Result, form: str, group: str, dynamic: bool = False) -> list[Verdict]:
    return [
        verdict
        for trial, verdict in result.cells.items()
        if (trial.form, trial.group, trial.dynamic) == (form, group, dynamic)
    ]


def worst(verdicts: Sequence[Verdict]) -> str:
    """Summarize several cells in one. It is right if all are, or has the counts of the others."""
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
    """Return a table in Markdown, with the first row as its header."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def summary(results: Sequence[Result]) -> str:
    """Return tables with a row for each runtime.

    Each cell has the worst of all paddings and alignments: standard / primitives / 4-D.
    """
    parts = []
    for dynamic in (False, True):
        rows = [[f"{'dynamic' if dynamic else 'static'} shapes", *GROUPS]]
        for result in results:
            row = ["not installed"] * len(GROUPS)
            if not result.missing:
                row = [
                    "/".join(worst(_cells(result, form, group, dynamic)) for form in forms(group))
                    for group in GROUPS
                ]
            rows.append([result.runtime.title, *row])
        parts.append(markdown(rows))
    rows = [["exported models", "standard", "primitives"]]
    for result in results:
        counts = (
            _count([cell.kind for cell in _cells(result, form, "exported")])
            for form in forms("exported")
        )
        rows.append([result.runtime.title, *counts])
    return "\n\n".join([*parts, markdown(rows)])


def _count(kinds: Sequence[str]) -> str:
    words = [f"{kinds.count('right')} of {len(kinds)} right"] if kinds else ["–"]
    words += [f"{kinds.count(kind)} {kind}" for kind in ("wrong", "refused") if kind in kinds]
    return ", ".join(words)


def reasons(results: Sequence[Result]) -> str:
    """Return a table of the messages of each runtime, and the cells that they belong to."""
    rows = [["runtime", "form", "at", "what it says"]]
    for result in results:
        if result.missing:
            rows.append([result.runtime.title, "", "", result.missing])
        rows += _reasons_of(result)
    return markdown(rows)


def _reasons_of(result: Result) -> list[list[str]]:
    #: (form, kind, message without numbers) -> the trials with such a message.
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial, verdict in result.cells.items():
        if verdict.kind != "right" or verdict.message:
            key = (trial.form, verdict.kind, re.sub(r"\d+", "#", verdict.message))
            groups.setdefault(key, []).append(trial)
    rows = []
    for (form, kind, _), trials in sorted(groups.items(), key=_form_index):
        verdict = max((result.cells[trial] for trial in trials), key=lambda cell: cell.error)
        error = f"wrong by {verdict.error:.2g}: " if kind == "wrong" else ""
        message = f"{error}{verdict.message}".removesuffix(": ")
        rows.append([result.runtime.title, form, _places(trials), message])
    return rows


def _form_index(group: tuple[tuple[str, str, str], list[Trial]]) -> int:
    (form, _, _), _ = group
    return [*FORMS].index(form)  # type: ignore[arg-type]


def _places(trials: Sequence[Trial]) -> str:
    """Describe the cells in a few words."""
    words = []
    for group in dict.fromkeys(trial.group for trial in trials):
        members = [trial for trial in trials if trial.group == group]
        if group == "exported":
            words.append(", ".join(trial.detail for trial in members))
        else:
            kinds = {"dynamic" if trial.dynamic else "static" for trial in members}
            words.append(f"{group} {' and '.join(sorted(kinds))} ({len(members)})")
    return "; ".join(words)
