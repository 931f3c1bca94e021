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
        """The modules that import Numba: what it compiles no tool for Python sees run."""
        return frozenset(module for module, names in self._imported.items() if "numba" in names)

    @cached_property
    def frozen_in_kernels(self) -> frozenset[str]:
        """The compiled modules, and what they import: Numba keeps what it has read there."""
        found, new = frozenset[str](), self.compiled
        while new:
            found |= new
            new = frozenset(m for module in new for m in self._imported[module] if m in self._imported) - found
        return found

    def drivers(self, module: str) -> frozenset[str]:
        """The modules that import the compiled ``module``, and are not compiled themselves."""
        found = frozenset(m for m, names in self._imported.items() if module in names)
        return frozenset[str]().union(*(self.drivers(m) if m in self.compiled else {m} for m in found))

    @cached_property
    def _imported(self) -> Mapping[str, frozenset[str]]:
        """What each module imports when it is imported: other modules by their files, other packages by name."""
        return {module: frozenset(self._imports_of(module)) for module in self.modules}

    def _imports_of(self, module: str) -> Iterator[str]:
        for statement in ast.parse((self.root / module).read_bytes()).body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for node in ast.walk(statement):
                if isinstance(node, ast.Import):
                    yield from (alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom):
                    above = Path(module).parts[: -node.level] if node.level else ()
                    base = Path(*above, *(node.module or "").split("."))
                    yield base.parts[0]
                    yield from (self._file_of(base / alias.name) or self._file_of(base) or "" for alias in node.names)

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
