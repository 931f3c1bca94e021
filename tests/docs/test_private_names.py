"""Private names of a layer are read only by the tests of that layer."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.pages import REPOSITORY

TESTS = REPOSITORY / "tests"
PACKAGE = "ort_gridsample"
#: The layers that change most. Their private functions can be renamed or deleted, and tests outside
#: of the layer's own folder still pass.
LAYERS = ("custom_ops", "detection", "rewriting", "session")
#: Programs run in another process. They belong to the folders whose tests run them.
FOLDERS_OF_PROGRAMS = ("programs", "support")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def private_names(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the layer and the dotted name of each private name that a file takes from the package.

    A name is imported, is an attribute of an imported module, or is replaced in one by
    ``monkeypatch``.
    """
    return tuple(_private_names(path))


def _private_names(path: Path) -> Iterator[tuple[str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    names = set(imported.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{imported.get(node.value.id, '')}.{node.attr}")
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            target, attribute = node.args[:2]
            if isinstance(target, ast.Name) and isinstance(attribute, ast.Constant):
                names.add(f"{imported.get(target.id, '')}.{attribute.value}")
    for name in sorted(names):
        package, layer, *parts = [*name.split("."), ""]
        if package == PACKAGE and layer in LAYERS and any(map(_is_private, parts)):
            yield layer, name


@cache
def modules_of_tests() -> dict[Path, str]:
    """Return the text of every test module."""
    return {path: path.read_text(encoding="utf-8") for path in TESTS.glob("*/test_*.py")}


def folders_of(path: Path) -> set[str]:
    """Return the folder of a file; of a program, or of what only programs use, those of its tests.

    Modules of tests/support that a program imports are files of that program.
    """
    folder = path.relative_to(TESTS).parts[0]
    if folder not in FOLDERS_OF_PROGRAMS:
        return {folder}
    users = {module for module, text in modules_of_tests().items() if path.stem in text}
    return {module.relative_to(TESTS).parts[0] for module in users}


@pytest.mark.parametrize("layer", LAYERS)
def test_private_names_of_a_layer_are_read_in_its_own_folder_only(layer: str) -> None:
    read_elsewhere = {
        (str(path.relative_to(TESTS)), name)
        for path in TESTS.rglob("*.py")
        for of_layer, name in private_names(path)
        if of_layer == layer and folders_of(path) != {layer}
    }
    assert not read_elsewhere
