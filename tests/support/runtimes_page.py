"""Write the tables of ort_gridsample/OTHER_RUNTIMES.md from the package's table of runtimes.

This is ``python -m tests.support.runtimes_page``. The text around the tables is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ort_gridsample.graph.runtime_facts import Fact
from ort_gridsample.graph.runtimes import RUNTIMES

PAGE = Path(__file__).parents[2] / "ort_gridsample/OTHER_RUNTIMES.md"
COMMAND = "python -m tests.support.runtimes_page"
RUNTIMES_HEAD = ("`--for`", "runtime", "targets, in the order in which they are tried", "why")
FACTS_HEAD = ("`--for`", "what the runtime does", "with which nodes", "how this is known")
_VERBS = {"runs": "runs", "refuses": "refuses", "wrong": "wrong result"}


def runtimes_table() -> str:
    """Return the table of all runtimes."""
    rows = []
    for name, runtime in RUNTIMES.items():
        targets = ", ".join(f"`{target}`" for target in runtime.targets)
        rows.append([f"`{name}`", runtime.title, targets, runtime.why])
    return _table(RUNTIMES_HEAD, rows)


def facts_table() -> str:
    """Return the table of all facts. Runtimes with the same facts share their rows."""
    names_of: dict[tuple[Fact, ...], list[str]] = {}
    for name, runtime in RUNTIMES.items():
        if runtime.facts:
            names_of.setdefault(runtime.facts, []).append(name)
    rows = []
    for facts, names in names_of.items():
        for fact in sorted(facts, key=lambda fact: list(_VERBS).index(fact.verdict)):
            until = f" before {fact.until}" if fact.until else ""
            verb = f"{_VERBS[fact.verdict]}{until}"
            rows.append([", ".join(f"`{name}`" for name in names), verb, fact.what, fact.evidence])
    return _table(FACTS_HEAD, rows)


def rendered_page(page: str) -> str:
    """Return the page with its tables as they should be.

    Raises:
        ValueError: the page lacks a table.
    """
    for head, table in ((RUNTIMES_HEAD, runtimes_table()), (FACTS_HEAD, facts_table())):
        pattern = re.escape(_row(head)) + r"\n(?:\|.*\n)*"
        if not re.search(pattern, page):
            raise ValueError(f"{PAGE.name} lacks the table {_row(head)}")
        page = re.sub(pattern, lambda match, table=table: table, page)  # type: ignore[misc]
    return page


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [_row(head), f"|{'---|' * len(head)}", *map(_row, rows)]
    return "".join(f"{line}\n" for line in lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', ', ') for cell in cells)} |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(rendered_page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
