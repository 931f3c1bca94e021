"""What is installed, no benchmark suite and no module that only tests use, and what a registry shows of it."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ort_gridsample import __version__, cli
from ort_gridsample.runtime.compiled_ops.catalog import OPS

ROOT = Path(cli.__file__).parents[2]
README = ROOT / "README.md"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "ort_gridsample").rglob("*.py")
}
#: What Python and the entry point import, and what the package imports by a name that it computes.
ENTRIES = {"ort_gridsample", "ort_gridsample.__main__", *(f"ort_gridsample.cli.{name}" for name in cli.COMMANDS)}
KERNELS = ("emission", *(op.kernels.split(".")[0] for op in OPS))
ENTRIES |= {f"ort_gridsample.runtime.compiled_ops.{each}" for each in KERNELS}


def imported(name: str) -> Iterator[str]:
    """The package's modules that module ``name`` imports, wherever in it."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
            yield from (found for found in (base, *(f"{base}.{each.name}" for each in node.names)) if found in MODULES)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            first = node.args[0]
            if isinstance(first, ast.Constant) and f"{package}{first.value}" in MODULES:
                yield f"{package}{first.value}"


def test_every_module_is_used_by_the_package_itself_and_no_benchmark_suite_is_installed() -> None:
    found: set[str] = set()
    ahead = set(ENTRIES)
    while ahead:
        found |= ahead
        ahead = {other for name in ahead for other in (name.rpartition(".")[0], *imported(name)) if other} - found
    assert set(MODULES) - found == set()
    assert not any("bench" in name for name in MODULES if name != "ort_gridsample.cli.bench")


def test_no_link_of_the_readme_is_dead_on_a_registry_s_page() -> None:
    """Around that there is no repository."""
    builder = pytest.importorskip("hatch_fancy_pypi_readme", reason="it comes with the extra 'dev'")
    command = [sys.executable, "-m", builder.__name__]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    readme, shown = (re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in (README.read_text("utf-8"), shown))
    targets = re.findall(r"\]\(([^)]+)\)", shown)
    assert all(target.startswith(("#", "https://")) for target in targets), targets
    assert [text for text, _ in re.findall(r"(?<!!)\[([^\[\]]+)\]\(([^)#:]+)\)", readme) if text not in shown] == []


def test_the_changelog_speaks_of_this_version() -> None:
    text = (ROOT / "ort_gridsample" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == __version__
