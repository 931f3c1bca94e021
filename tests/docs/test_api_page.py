"""Test that ort_gridsample/API.md is what the package's docstrings and help give."""

import re
from collections.abc import Mapping

import pytest

from ort_gridsample import cli
from support import api_page
from support.pages import PAGES

PAGE = PAGES["ort_gridsample/API.md"]
TEMPLATE = api_page.TEMPLATE.read_text(encoding="utf-8")


def test_page_is_written_from_the_docstrings() -> None:
    assert api_page.rendered_page() == PAGE, f"API.md is not up to date: {api_page.COMMAND}"


def test_page_has_every_public_name() -> None:
    # At the beginning of a heading, of a line of a list, or of a paragraph.
    names = re.findall(r"^(?:### |- `|`)(\w+)", PAGE, re.MULTILINE)
    assert set(names) >= api_page.PUBLIC_NAMES - {"NodeRecord"}
    assert "A `NodeRecord` has" in PAGE


def test_page_has_at_most_250_lines() -> None:
    assert len(PAGE.splitlines()) <= 250


def test_page_without_a_public_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_page, "PUBLIC_NAMES", api_page.PUBLIC_NAMES | {"new_name"})
    with pytest.raises(ValueError, match=r"api_page\.md lacks new_name"):
        api_page.rendered_page()


def test_page_without_a_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "new-command", "do something")
    with pytest.raises(ValueError, match=r"api_page\.md lacks new-command"):
        api_page.rendered_page()


def test_page_without_a_target_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_page, "TARGETS", api_page.TARGETS | {"new-target"})
    with pytest.raises(ValueError, match="the targets new-target"):
        api_page.rendered_page()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("@entry no_such_name", "no_such_name"),
        ("@entry patch_model no_such_argument", "no_such_argument"),
        ("@fields NodeRecord no_such_field", "no_such_field"),
        ("@fields Placement no_such_field", "no_such_field"),
        ("@no_such_directive", "no_such_directive"),
        ("{help no_such_command}", "no_such_command"),
        ("a [link][no-such-link]", "no-such-link"),
    ],
)
def test_directive_without_a_source_is_refused(template: str, message: str) -> None:
    with pytest.raises((KeyError, AttributeError), match=message):
        api_page.Page(f"{TEMPLATE}\n{template}\n").render()


def function(names: Mapping[str, int]) -> None:
    """Do something with ``names``, as :func:`ort_gridsample.patch_model` does.

    Second paragraph of the text.

    Introduction of the example:

    >>> function({})

    Details.

    Args:
        names: the first sentence,
            and its second line.

            Details of the argument.

    Returns:
        nothing: this is no argument.
    """


def test_docstring_text_ends_at_the_example() -> None:
    docstring = api_page.Docstring(function)
    assert [text.split()[0] for text in docstring.text] == ["Do", "Second", "Introduction"]
    assert docstring.example == ">>> function({})"


def test_docstring_entries_are_those_of_the_section() -> None:
    paragraphs = ["the first sentence, and its second line.", "Details of the argument."]
    assert api_page.Docstring(function).entries("Args") == {"names": paragraphs}
