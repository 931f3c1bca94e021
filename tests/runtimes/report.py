"""What is printed of a run."""

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
    """What became of a runtime: its cells, or why it could not be installed."""

    runtime: Runtime
    versions: str
    cells: Cells
    missing: str = ""


def runtimes(rows: Iterable[Runtime]) -> str:
    table = [["RUNTIME", "what it is", "packages", "primitives", "note"]]
    for each in rows:
        packages = ", ".join(
            [*each.packages, *each.alone, *(f"npm {package}" for package in each.npm)]
        )
        table.append(
            [each.name, each.title, packages, f"--for {each.form}" if each.form else "", each.note]
        )
    return markdown(table)


def _cells(result: Result, form: str, group: str, dynamic: bool = False) -> list[Verdict]:
    return [
        v for t, v in result.cells.items() if (t.form, t.group, t.dynamic) == (form, group, dynamic)
    ]


def worst(verdicts: Sequence[Verdict]) -> str:
    """Several cells as one: right only where all are, and else how many are what."""
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
    """A row a runtime: each group's worst cell over paddings and alignments, standard / primitives / 4-D."""
    parts = []
    for dynamic in (False, True):
        rows = [[f"{'dynamic' if dynamic else 'static'} shapes", *GROUPS]]
        for result in results:
            row = (
                "/".join(worst(_cells(result, form, group, dynamic)) for form in forms(group))
                for group in GROUPS
            )
            rows.append(
                [
                    result.runtime.title,
                    *(["not installed"] * len(GROUPS) if result.missing else row),
                ]
            )
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
    """What each runtime said, and at which cells."""
    rows = [["runtime", "form", "at", "what it says"]]
    for result in results:
        if result.missing:
            rows.append([result.runtime.title, "", "", result.missing])
        alike: dict[
            tuple[str, str, str], list[Trial]
        ] = {}  # those together that say the same but for numbers
        for trial, verdict in result.cells.items():
            if verdict.kind != "right" or verdict.message:
                alike.setdefault(
                    (trial.form, verdict.kind, re.sub(r"\d+", "#", verdict.message)), []
                ).append(trial)
        for (form, kind, _), at in sorted(alike.items(), key=lambda said: FORMS.index(said[0][0])):
            worst_of = max((result.cells[trial] for trial in at), key=lambda verdict: verdict.error)
            by = f"wrong by {worst_of.error:.2g}: " if kind == "wrong" else ""
            rows.append(
                [
                    result.runtime.title,
                    form,
                    _places(at),
                    f"{by}{worst_of.message}".removesuffix(": "),
                ]
            )
    return markdown(rows)


def _places(trials: Sequence[Trial]) -> str:
    """The cells in a few words."""
    words = []
    for group in dict.fromkeys(trial.group for trial in trials):
        members = [trial for trial in trials if trial.group == group]
        if group == "exported":
            words.append(", ".join(trial.detail for trial in members))
        else:
            kinds = {"dynamic" if trial.dynamic else "static" for trial in members}
            words.append(f"{group} {' and '.join(sorted(kinds))} ({len(members)})")
    return "; ".join(words)
