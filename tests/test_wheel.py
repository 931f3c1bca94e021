"""What is installed, no benchmark suite and no module that only tests use, and what a registry shows of it."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ort_gridsample import __version__, cli

ROOT = Path(cli.__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "ort_gridsample").rglob("*.py")
}
#: What Python and the entry point import, and what the package imports by a name that it computes.
ENTRIES = {"ort_gridsample", "ort_gridsample.__main__", *(f"ort_gridsample.cli.{name}" for name in cli.COMMANDS)}


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


def test_every_module_is_used_by_the_package_itself() -> None:
    found: set[str] = set()
    ahead = set(ENTRIES)
    while ahead:
        found |= ahead
        ahead = {other for name in ahead for other in (name.rpartition(".")[0], *imported(name)) if other} - found
    assert set(MODULES) - found == set()


def test_no_benchmark_suite_is_installed() -> None:
    assert not any("bench" in name for name in MODULES if name != "ort_gridsample.cli.bench")


PAGE = """[code](x.py#L3) `[a](b)` [there](https://elsewhere/x) [below](#below)
```python
f[0](x)
```
![a picture](examples/demo.png) and [`a`
test](tests/test_a.py).
"""


def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What the build asks for the README, without the tool that builds."""
    interface = SimpleNamespace(MetadataHookInterface=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("metadata", ROOT / ".ci" / "metadata.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_the_repository_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = hook(monkeypatch).absolute
    at = "https://host/owner/name"
    assert absolute(PAGE, f"{at}/") == (
        f"[code]({at}/blob/HEAD/x.py#L3) `[a](b)` [there](https://elsewhere/x) [below](#below)\n"
        "```python\nf[0](x)\n```\n"
        f"![a picture]({at}/raw/HEAD/examples/demo.png) and [`a`\ntest]({at}/blob/HEAD/tests/test_a.py).\n"
    )
    assert absolute(PAGE, None) == (
        "code `[a](b)` [there](https://elsewhere/x) [below](#below)\n"
        "```python\nf[0](x)\n```\n"
        "*a picture* and `a`\ntest.\n"
    )


@pytest.mark.parametrize("repository", [None, "https://host/owner/name"])
def test_no_link_of_the_readme_is_dead_on_a_registry_s_page(
    repository: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {} if repository is None else {"urls": {"Repository": repository}}
    hook(monkeypatch).Metadata(root=str(ROOT)).update(metadata)
    text = re.sub(r"```.*?```", "", metadata["readme"]["text"], flags=re.DOTALL)
    assert all(target.startswith(("#", "https://")) for target in re.findall(r"\]\(([^)]+)\)", text))
    assert repository is None or "![A photograph" in text
    assert repository is None or f"]({repository}/raw/HEAD/examples/demo.png)" in text


def test_the_changelog_speaks_of_this_version() -> None:
    text = (ROOT / "ort_gridsample" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == __version__
