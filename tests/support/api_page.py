"""Write ort_gridsample/API.md from docstrings, signatures and the command line's help.

This is ``python -m tests.support.api_page``. The template, tests/data/api_page.md, is the page with
directives. A directive is a line that begins with ``@``, or a word in braces:

- ``@entry NAME [ARGUMENT …]``: a heading, the signature, the text and these arguments
- ``@names NAME …``: a list of names, each with its arguments and its text
- ``@name NAME``: the same for one name, as a paragraph
- ``@fields NAME FIELD …``: a list of fields of a class
- ``@example NAME``: the example of a docstring, as a program
- ``@targets``, ``@options COMMAND`` and ``@epilog COMMAND``
- ``{help COMMAND}`` and ``{values TYPE}``, in a line

The text of a docstring is what precedes its example and its sections. The rest is for ``help()``.
Links are reference links, whose targets the template lists at its end.
"""

from __future__ import annotations

import argparse
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import ort_gridsample as ogs
from ort_gridsample import cli, settings, spec
from ort_gridsample.graph import runtimes
from ort_gridsample.patching import TargetName

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "ort_gridsample/API.md"
TEMPLATE = REPOSITORY / "tests/data/api_page.md"
COMMAND = "python -m tests.support.api_page"
PUBLIC_NAMES = frozenset(ogs.__all__) - {"__version__"}
TARGETS = frozenset(get_args(TargetName))

_WIDTH = 120
_WIDTH_OF_CODE = 100
_SECTION = re.compile(r"(\w+):$")
_ENTRY = re.compile(r"    (\w[\w, ]*): ")
_ROLE = re.compile(r":\w+:`[\w.]*?(\w+)`")
#: Names of a target's row in the docstring of patch_model.
_TARGET_ROW = re.compile(r'((?:``"[\w.-]+"``(?:, )?)+): (.*)', re.DOTALL)
#: Words in the plain text of a help: options, and names in modules.
_CODE = re.compile(r"(?<![\w`])(--?[A-Za-z][\w-]*|[a-z_]+\.\w+(?:\.\w+)*|[A-Z]{4,})\b")
_INLINE = re.compile(r"\{(\w+) (\w+)\}")
_REFERENCE = re.compile(r"^\[([\w-]+)\]: (\S+)\n", re.MULTILINE)
_TYPES = {
    name: getattr(module, name)
    for module, names in {
        settings: ("CoreName", "OpsName"),
        spec: ("ModeName", "PaddingModeName"),
        runtimes: ("RuntimeName",),
    }.items()
    for name in names
}


class Docstring:
    """The parts of a docstring.

    Attributes:
        text: the paragraphs before the first example or section.
        example: the first example, or an empty text.
    """

    def __init__(self, public: object) -> None:
        self._blocks = (inspect.getdoc(public) or "").split("\n\n")
        n_description = _first_index(self._blocks, lambda block: bool(_section_name(block)))
        description = self._blocks[:n_description]
        n_text = _first_index(description, lambda block: block.startswith(">>>"))
        self.text = description[:n_text]
        self.example = description[n_text] if n_text < len(description) else ""

    def entries(self, section: str) -> dict[str, list[str]]:
        """Return the entries of a section, such as ``Args``: name -> its paragraphs."""
        entries: dict[str, list[str]] = {}
        is_in_section = False
        for block in self._blocks:
            name = _section_name(block)
            is_in_section = name == section if name else is_in_section and block[:4].isspace()
            if not is_in_section:
                continue
            for paragraph in _entry_paragraphs(block):
                match = _ENTRY.match(paragraph)
                if match:
                    entries[match[1]] = [_joined(paragraph[match.end() :])]
                elif paragraph.strip():
                    entries[next(reversed(entries))].append(_joined(paragraph))
        return entries


def _first_index(blocks: Sequence[str], is_sought: Callable[[str], bool]) -> int:
    return next((i for i, block in enumerate(blocks) if is_sought(block)), len(blocks))


def _section_name(block: str) -> str:
    """Return the name of the section that a block begins, or an empty text."""
    match = _SECTION.match(block.partition("\n")[0])
    return match[1] if match else ""


def _entry_paragraphs(block: str) -> list[str]:
    """Split a block of a section into its entries, or the text that continues an entry."""
    lines = block.split("\n")[1:] if _section_name(block) else block.split("\n")
    return re.split(r"\n(?=    \w)", "\n".join(lines))


def _joined(text: str) -> str:
    return " ".join(text.split())


def _markdown(text: str) -> str:
    """Return a text of a docstring in Markdown, in one line."""
    return _ROLE.sub(r"`\1`", _joined(text)).replace("``", "`")


def _markdown_of_help(text: str) -> str:
    """Return a text of the command line in Markdown."""
    return _CODE.sub(r"`\1`", _joined(text))


def _wrapped(text: str, indent: str = "") -> str:
    """Return a text in lines. ``indent`` is that of all lines but the first."""
    return textwrap.fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _bullet(name: str, text: str) -> str:
    return _wrapped(f"- `{name}`: {text}", "  ")


def _signature(name: str) -> str:
    """Return the signature of a public name as in a stub, without a class's return type."""
    public = getattr(ogs, name)
    signature = inspect.signature(public)
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter))
    end = ")"
    if not inspect.isclass(public):
        end = f") -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}{end}"
    if len(line) <= _WIDTH:
        return line
    arguments = textwrap.fill(
        # Lines are not broken inside an argument.
        ", ".join(part.replace(" ", "\0") for part in parts) + ",",
        _WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{name}(\n{arguments}\n{end}".replace("\0", " ")


def _call(name: str) -> str:
    """Return the name of a class, or the call of a function with its most important arguments."""
    public = getattr(ogs, name)
    if inspect.isclass(public):
        return name
    arguments = []
    for parameter in inspect.signature(public).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            arguments.append("…")
            break
        has_default = parameter.default is not inspect.Parameter.empty
        default = f"={_default(parameter)}" if has_default else ""
        arguments.append(f"{parameter.name}{default}")
    return f"{name}({', '.join(arguments)})"


def _parameter(parameter: inspect.Parameter) -> str:
    prefix = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
    text = f"{prefix}{parameter.name}: {_annotation(parameter.annotation)}"
    has_default = parameter.default is not inspect.Parameter.empty
    return f"{text} = {_default(parameter)}" if has_default else text


def _default(parameter: inspect.Parameter) -> str:
    return repr(parameter.default).replace("'", '"')


def _text(name: str) -> str:
    """Return the text of a public name, without a paragraph that introduces the example."""
    paragraphs = [_markdown(paragraph) for paragraph in Docstring(getattr(ogs, name)).text]
    return " ".join(paragraph for paragraph in paragraphs if not paragraph.endswith(":"))


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"ort_gridsample.cli.{command}").add_arguments(parser)
    return parser


@dataclass
class Page:
    """A page that is written from a template."""

    template: str
    names: set[str] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)

    def render(self) -> str:
        """Return the page.

        Raises:
            ValueError: the template lacks a public name or a command.
        """
        targets = dict(_REFERENCE.findall(self.template))
        lines = [self._line(line) for line in _REFERENCE.sub("", self.template).splitlines()]
        for found, expected in ((self.names, PUBLIC_NAMES), (self.commands, set(cli.COMMANDS))):
            missing = ", ".join(sorted(expected - found))
            if missing:
                raise ValueError(f"{TEMPLATE.name} lacks {missing}")
        text = "\n".join(lines).rstrip() + "\n"
        return re.sub(r"\]\[([\w-]+)\]", lambda match: f"]({targets[match[1]]})", text)

    def _line(self, line: str) -> str:
        if line.startswith("@"):
            directive, *arguments = line[1:].split()
            return "\n".join(self._directives[directive](*arguments))
        return _INLINE.sub(lambda match: self._inline[match[1]](match[2]), line)

    @cached_property
    def _directives(self) -> Mapping[str, Callable[..., Iterator[str]]]:
        return {
            "entry": self._entry,
            "names": self._list,
            "name": self._paragraph,
            "fields": self._fields,
            "example": self._example,
            "targets": self._targets,
            "options": self._options,
            "epilog": self._epilog,
        }

    @cached_property
    def _inline(self) -> Mapping[str, Callable[[str], str]]:
        return {"help": self._help, "values": self._values}

    def _entry(self, name: str, *arguments: str) -> Iterator[str]:
        self.names.add(name)
        yield f"### {name}\n"
        yield f"```pyi\n{_signature(name)}\n```\n"
        yield _wrapped(_text(name))
        if arguments:
            yield ""
        entries = Docstring(getattr(ogs, name)).entries("Args")
        for argument in arguments:
            yield _bullet(argument, _markdown(entries[argument][0]))

    def _list(self, *names: str) -> Iterator[str]:
        self.names.update(names)
        for name in names:
            yield _bullet(_call(name), _text(name))

    def _paragraph(self, name: str) -> Iterator[str]:
        self.names.add(name)
        yield _wrapped(f"`{_call(name)}`: {_text(name)}")

    def _fields(self, name: str, *fields: str) -> Iterator[str]:
        self.names.add(name)
        public = getattr(ogs, name)
        entries = Docstring(public).entries("Attributes")
        for attribute in fields:
            is_entry = attribute in entries
            doc = entries[attribute] if is_entry else Docstring(getattr(public, attribute)).text
            text = _markdown(doc[0])
            yield _bullet(attribute, text if is_entry else f"{text[0].lower()}{text[1:]}")

    def _example(self, name: str) -> Iterator[str]:
        docstring = Docstring(getattr(ogs, name))
        introduction = _markdown(docstring.text[-1])
        if introduction.endswith(":"):
            yield f"{_wrapped(introduction)}\n"
        examples = doctest.DocTestParser().get_examples(docstring.example)
        # The tests run blocks of "python".
        is_run = not any(doctest.SKIP in example.options for example in examples)
        yield "```python" if is_run else "```py"
        for example in examples:
            source = re.sub(r" +# doctest: .*", "", example.source).rstrip()
            output = example.want.splitlines()
            if len(output) == 1 and len(source) + len(output[0]) < _WIDTH_OF_CODE:
                source += f"  # {output.pop()}"
            yield source
            for line in output:
                yield f"# {line}"
        yield "```"

    def _targets(self) -> Iterator[str]:
        described = set()
        for paragraph in Docstring(ogs.patch_model).entries("Args")["target"]:
            match = _TARGET_ROW.fullmatch(paragraph)
            if match is None:
                continue
            names = re.findall(r'"([\w.-]+)"', match[1])
            described.update(names)
            yield f"| {', '.join(f'`{name}`' for name in names)} | {_markdown(match[2])} |"
        missing = ", ".join(sorted(TARGETS - described))
        if missing:
            raise ValueError(f"the docstring of patch_model lacks the targets {missing}")

    def _options(self, command: str) -> Iterator[str]:
        for action in _parser(command)._actions:  # argparse has no public list of them
            if action.option_strings and "--help" not in action.option_strings:
                yield _bullet(action.option_strings[-1], _markdown_of_help(action.help or ""))

    def _epilog(self, command: str) -> Iterator[str]:
        yield _wrapped(_markdown_of_help(_parser(command).epilog or ""))

    def _help(self, command: str) -> str:
        self.commands.add(command)
        return _markdown_of_help(cli.COMMANDS[command])

    def _values(self, name: str) -> str:
        *values, last = [f"`{value}`" for value in get_args(_TYPES[name])]
        return f"{', '.join(values)} or {last}"


def rendered_page() -> str:
    """Return the page that the template and the package give."""
    return Page(TEMPLATE.read_text(encoding="utf-8")).render()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=f"Write {PAGE.name}.")
    parser.parse_args()
    PAGE.write_text(rendered_page(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
