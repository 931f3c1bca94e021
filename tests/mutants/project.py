"""The project under change: its files, and what they import."""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import hashlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PLUGIN = Path(__file__).with_name("plugin.py")
#: This command and its tests, which say nothing of the package.
OWN = ("tests/mutants/", "tests/test_mutants.py")


@dataclass(frozen=True)
class Project:
    """A folder ``root`` with the package ``package`` in it, and its tests in ``tests``."""

    root: Path
    package: str

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The package's files, relative to the root."""
        return self._files(self.package, "*.py")

    @cached_property
    def test_files(self) -> tuple[str, ...]:
        """The files of tests, relative to the root."""
        return tuple(path for path in self._files("tests", "test_*.py") if not path.startswith(OWN))

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """For each file of tests a word for all that decides which lines its tests run."""
        others = set(self._files("tests", "*.py")).difference(self.test_files)
        helpers = sorted(path for path in others if not path.startswith(OWN))
        common = hashlib.sha256(f"{sys.version}\0{sys.prefix}\0{PLUGIN.read_text()}".encode())
        for path in (*self.modules, *helpers):
            common.update(path.encode() + b"\0" + (self.root / path).read_bytes() + b"\0")
        return {
            path: hashlib.sha256(common.digest() + path.encode() + (self.root / path).read_bytes()).hexdigest()[:16]
            for path in self.test_files
        }

    def _files(self, folder: str, pattern: str) -> tuple[str, ...]:
        return tuple(sorted(p.relative_to(self.root).as_posix() for p in (self.root / folder).rglob(pattern)))

    @cached_property
    def compiled(self) -> frozenset[str]:
        """The modules with functions that Numba compiles: no tool for Python sees their lines run."""

        def compiles(source: str | None) -> bool:
            return source == "numba" or "numba" in self._imported.get(source or "", {}).values()

        return frozenset(
            module
            for module, imported in self._imported.items()
            for function in ast.walk(self._trees[module])
            if isinstance(function, ast.FunctionDef)
            and any(compiles(imported.get(_first_name(decorator))) for decorator in function.decorator_list)
        )

    @cached_property
    def frozen_in_kernels(self) -> frozenset[str]:
        """The compiled modules, and what they import: compiled code keeps what it has read there."""
        imported = frozenset(m for module in self.compiled for m in self._imported[module].values())
        return self.compiled | imported.intersection(self.modules)

    def drivers(self, module: str) -> frozenset[str]:
        """The modules that import the compiled ``module``, and are not compiled themselves."""
        found = frozenset(m for m, imported in self._imported.items() if module in imported.values())
        return frozenset[str]().union(*(self.drivers(m) if m in self.compiled else {m} for m in found))

    @cached_property
    def _trees(self) -> Mapping[str, ast.Module]:
        return {module: ast.parse((self.root / module).read_bytes()) for module in self.modules}

    @cached_property
    def _imported(self) -> Mapping[str, Mapping[str, str]]:
        """From the names that each module imports, to where from: a module by its file, another package by its name."""
        return {module: dict(self._imports_of(module, tree)) for module, tree in self._trees.items()}

    def _imports_of(self, module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
        for node in ast.walk(tree):  # in a function too
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    yield alias.asname or first, first
            elif isinstance(node, ast.ImportFrom):
                above = Path(module).parts[: -node.level] if node.level else ()
                base = Path(*above, *(node.module or "").split("."))
                for alias in node.names:
                    source = self._file_of(base / alias.name) or self._file_of(base) or base.parts[0]
                    yield alias.asname or alias.name, source

    def _file_of(self, module: Path) -> str | None:
        files = (module.with_suffix(".py").as_posix(), (module / "__init__.py").as_posix())
        return next((file for file in files if file in self.modules), None)

    def copy(self, to: Path) -> None:
        """Copy all that is not ignored by git; the files keep their times."""
        ignored = [".git"]
        with contextlib.suppress(FileNotFoundError):
            ignored += [line.strip().strip("/") for line in (self.root / ".gitignore").read_text().splitlines()]

        def ignore(folder: str, names: list[str]) -> set[str]:
            return {name for pattern in ignored for name in fnmatch.filter(names, pattern)}

        shutil.copytree(self.root, to, ignore=ignore)


def _first_name(node: ast.expr) -> str:
    """What an expression such as a decorator begins with."""
    while not isinstance(node, ast.Name):
        node = node.func if isinstance(node, ast.Call) else node.value  # type: ignore[attr-defined]
    return node.id
