"""The contract suite uses the package as its users do."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ort_gridsample as ogs

CONTRACT = Path(__file__).parent
SUPPORT = CONTRACT.parent / "support"
PACKAGE = "ort_gridsample"

#: Public names that are not imported with the package: API.md lists the types of arguments, and
#: :class:`NodeRecord` refers to the names of modes in ``spec``.
DOCUMENTED = {f"{PACKAGE}.patching.{name}" for name in ("TargetName", "RuntimeName")}
DOCUMENTED.add(f"{PACKAGE}.spec")

#: The modules of tests/support that the contract suite uses -> the internal modules that they
#: import, because no public name has what they need.
INTERNALS = {
    # The versions of the operators' attributes, and the opset of a node in a function.
    "foreign_nodes.py": {"ort_gridsample.graph.scope.scopes_of"},
    # The entry point of the command.
    "command.py": {"ort_gridsample.cli.main"},
    # Whether ops are installed, and the oldest release of the provider: what is skipped.
    "fused_models.py": {"ort_gridsample.custom_ops.compiled_ops.registry"},
    "paths.py": {
        "ort_gridsample.versions",
        "ort_gridsample.custom_ops.compiled_ops.registry",
        "ort_gridsample.custom_ops.provider.ep_api",
        "ort_gridsample.custom_ops.python_ops.extensions",
    },
    # Which runtimes have nodes of another form.
    "runtime_forms.py": {
        f"ort_gridsample.graph.runtimes.{name}" for name in ("ANY", "RUNTIMES", "Runtime")
    },
    # Whether a library can be built: the oldest Numba for that.
    "built_library.py": {"ort_gridsample.versions", "ort_gridsample.library.builder"},
    # Whether ops are installed: which programs can run.
    "processes.py": {"ort_gridsample.custom_ops.compiled_ops.registry"},
}


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """Return the modules and names that a file imports, as dotted names."""
    return tuple(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path.name} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def internal_modules(path: Path) -> set[str]:
    """Return what a file imports from inside the package, except public names."""
    names = {name for name in imported_modules(path) if name.split(".")[0] == PACKAGE}
    public = {PACKAGE, *(f"{PACKAGE}.{name}" for name in ogs.__all__)}
    return names - public - DOCUMENTED


def support_modules(path: Path) -> set[Path]:
    """Return the modules of tests/support that a file imports, and those that they import."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for name in imported_modules(waiting.pop()):
            package, *parts = name.split(".")
            module = SUPPORT / f"{parts[0]}.py" if parts else SUPPORT
            if package == "support" and module.is_file() and module not in found:
                found.add(module)
                waiting.append(module)
    return found


MODULES = sorted(CONTRACT.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_contract_module_imports_public_names_only(path: Path) -> None:
    assert internal_modules(path) == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_contract_module_imports_no_other_folder_of_tests(path: Path) -> None:
    folders = {entry.name for entry in CONTRACT.parent.iterdir() if entry.is_dir()}
    packages = {name.split(".")[0] for name in imported_modules(path)}
    assert packages & (folders | {"conftest"}) <= {"support", "fuzz"}


def test_support_modules_import_only_the_listed_internals() -> None:
    modules = set().union(*map(support_modules, MODULES))
    unlisted = {}
    for path in modules:
        allowed = INTERNALS.get(path.name, set())
        names = {
            name
            for name in internal_modules(path)
            if not any(name == module or name.startswith(f"{module}.") for module in allowed)
        }
        if names:
            unlisted[path.name] = names
    assert unlisted == {}


def test_every_listed_internal_is_imported() -> None:
    for name, allowed in INTERNALS.items():
        names = internal_modules(SUPPORT / name)
        assert all(any(n.startswith(module) for n in names) for module in allowed), name
