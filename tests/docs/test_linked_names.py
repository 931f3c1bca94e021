"""Names of code that the pages link to a module."""

import re

import pytest

from support.pages import PAGES, REPOSITORY

#: A name in a module, as in "`MODES` in [reference/taps.py](reference/taps.py)".
_NAME_IN_MODULE = re.compile(r"`(\w+)`[^`.\[]*?\s(?:of|in)\s+\[[^\]]*\]\(([^)#:]+\.py)\)")
LINKED_NAMES = [
    pytest.param(page, name, module, id=f"{page}-{name}")
    for page, text in PAGES.items()
    for name, module in _NAME_IN_MODULE.findall(text)
]


@pytest.mark.parametrize(("page", "name", "module"), LINKED_NAMES)
def test_name_that_a_page_links_to_a_module_occurs_in_it(page: str, name: str, module: str) -> None:
    text = (REPOSITORY / page).parent.joinpath(module).read_text(encoding="utf-8")
    assert re.search(rf"\b{name}\b", text)


def test_names_of_extension_points_are_among_the_linked_names() -> None:
    names = {parameters.values[1] for parameters in LINKED_NAMES}
    assert {"COORDINATE_RULES", "LAYOUT_OPERATORS", "CONVERSION_RULES"} <= names
