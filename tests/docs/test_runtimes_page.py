"""Test that ort_gridsample/OTHER_RUNTIMES.md has what the table of runtimes has."""

import pytest

from ort_gridsample.graph.runtimes import RUNTIMES
from support import runtimes_page
from support.pages import PAGES

PAGE = PAGES["ort_gridsample/OTHER_RUNTIMES.md"]


def test_page_has_the_tables_of_the_package() -> None:
    assert runtimes_page.rendered_page(PAGE) == PAGE, f"not up to date: {runtimes_page.COMMAND}"


def test_page_has_every_runtime_and_every_fact() -> None:
    cells = {cell.strip() for line in PAGE.splitlines() for cell in line.split("|")}
    assert {f"`{name}`" for name in RUNTIMES} <= cells
    for runtime in RUNTIMES.values():
        assert {fact.evidence for fact in runtime.facts} <= cells


@pytest.mark.parametrize("page", ["README.md", "ort_gridsample/GPUS.md"])
def test_page_is_linked_from_the_pages_that_users_open(page: str) -> None:
    assert "OTHER_RUNTIMES.md)" in PAGES[page]


def test_page_without_a_table_is_refused() -> None:
    page = PAGE.replace("| what the runtime does |", "| verdict |")
    with pytest.raises(ValueError, match="lacks the table"):
        runtimes_page.rendered_page(page)
