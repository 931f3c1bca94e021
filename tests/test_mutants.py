"""The command that changes the package to see what the tests catch, on a small package of its own."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from mutants import suite
from mutants.__main__ import main
from mutants.changes import changes
from mutants.places import Ended, Places
from mutants.project import Project

PACKAGE = '''"""A toy."""
import os
LIMIT = 3
def held(x):
    return x > 0
def loose(x):
    return x > 0
def elsewhere(x):
    return -x
def limited(x):
    return min(x, LIMIT)
def endless(n):
    while n > 0:
        n -= 1
def never_run(x):
    return x + 1
def ends_the_process(x):
    if x < 0:
        os._exit(0)
'''
TESTS = """
import subprocess, sys, pytest, toy

@pytest.mark.parametrize("x", [-1, 0, 1])
def test_held(x):
    assert toy.held(x) == (x == 1)

def test_loose():
    assert toy.loose(2)

def test_elsewhere():
    assert subprocess.check_output([sys.executable, "-c", "import toy; print(toy.elsewhere(2))"]) == b"-2\\n"

def test_limited():
    assert toy.limited(5) == 3

def test_endless():
    toy.endless(2)

def test_ends_the_process():
    toy.ends_the_process(1)

def test_fails_as_things_are():
    assert toy.limited(5) == 4
"""
#: What becomes of the changes that the seed chooses.
SEED = "7"
OUTCOMES = {
    "LIMIT: 3 → 4": "caught",
    "held: return x > 0 → return None": "caught",
    "held: x > 0 → x >= 0": "caught",
    "held: 0 → 1": "caught",
    "loose: return x > 0 → return None": "caught",
    "loose: x > 0 → x >= 0": "survived",
    "loose: 0 → -1": "survived",
    "elsewhere: return -x → return None": "caught",
    "elsewhere: -x → x": "caught",
    "limited: return min(x, LIMIT) → return None": "caught",
    "limited: min → max": "caught",
    "endless: n > 0 → not n > 0": "survived",
    "endless: 0 → 1": "survived",
    "endless: n -= 1 → n += 1": "caught",
    "endless: 1 → 2": "survived",
    "never_run: return x + 1 → return None": "not covered",
    "never_run: x + 1 → x - 1": "not covered",
    "never_run: 1 → 2": "not covered",
    "ends_the_process: x < 0 → x >= 0": "caught",
    "ends_the_process: 0 → -1": "survived",
    "ends_the_process: os._exit(0) → pass": "not covered",
    "ends_the_process: 0 → 1": "not covered",
}


@pytest.fixture
def toy(tmp_path: Path) -> Project:
    files = {"toy/__init__.py": PACKAGE, "tests/test_toy.py": TESTS, "tests/test_other.py": "def test_other(): pass"}
    for path, text in files.items():
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).write_text(text)
    return Project(tmp_path / "project", "toy")


def _files(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_what_the_tests_see_is_caught_and_the_rest_survives(
    toy: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "PATIENCE", 5)
    before = _files(toy.root)
    words = ["--seed", SEED, "--jobs", "2", "--cache", str(tmp_path / "cache")]
    assert main([*words, "--json", str(tmp_path / "mutants.json")], toy) == 1
    out = capsys.readouterr().out
    assert _files(toy.root) == before
    assert "fails as things are, and is left out: tests/test_toy.py::test_fails_as_things_are" in out

    changes = json.loads((tmp_path / "mutants.json").read_text())["changes"]
    found = {f"{_name(change['line'])}: {change['before']} → {change['after']}": change for change in changes}
    assert {text: change["outcome"] for text, change in found.items()} == OUTCOMES
    assert found["elsewhere: -x → x"]["by"] == "tests/test_toy.py::test_elsewhere"
    assert found["endless: n -= 1 → n += 1"]["by"] == "tests/test_toy.py::test_endless"
    caught, _, survivors = out.partition(f"{list(OUTCOMES.values()).count('caught')} of {len(OUTCOMES)} caught")
    assert caught.count("\n1/22 ") == 1
    for change in changes:
        line = f"{change['outcome']}: toy/__init__.py:{change['line']} {change['kind']}: {change['before']} → "
        assert (line in survivors) == (change["outcome"] != "caught")

    assert main([*words, "--count", "1"], toy) == (changes[0]["outcome"] != "caught")
    assert "watched" not in capsys.readouterr().out, "which tests cover a line is not kept"


def _name(line: int) -> str:
    """What the package defines there."""
    start = [text for text in PACKAGE.splitlines()[:line] if not text.startswith(" ")][-1]
    return start.removeprefix("def ").partition("(")[0].partition(" ")[0]


def test_the_seed_decides(toy: Project, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*words: str) -> list[str]:
        assert main(["--list", *words], toy) == 0
        return capsys.readouterr().out.splitlines()

    assert listed("--seed", "1") == listed("--seed", "1") != listed("--seed", "2")
    assert listed("--seed", "1")[:3] == listed("--seed", "1", "--count", "3")
    assert listed("--only", "missing") == []


def test_two_commands_may_watch_the_same_tests(toy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, outcomes = tmp_path / "cache", suite._outcomes

    def meanwhile(ended: Ended) -> dict[str, tuple[str, float]]:
        monkeypatch.setattr(suite, "_outcomes", outcomes)
        assert len(list(suite.watch(Places(toy, tmp_path / "other", 1), toy, kept))) == 2
        return outcomes(ended)

    monkeypatch.setattr(suite, "_outcomes", meanwhile)
    assert len(list(suite.watch(Places(toy, tmp_path / "one", 1), toy, kept))) == 2
    assert {path.name for path in kept.iterdir()} == set(toy.keys.values())


SOURCE = '''"""Min."""
from typing import TYPE_CHECKING
__all__ = ["a"[1:]]
if TYPE_CHECKING:
    b = 3 < 4
@f(1)
def f(a: 1 = {}, b: str = "{}") -> 3:
    """Not 1."""
    return {}
'''
#: What a function may return, and what may become of that.
MADE = {
    "a if a and not b else b": (
        "a if a or not b else b", "a if a else b", "a if not b else b", "a if a and b else b", "a if True else b",
        "a if False else b", "a if not (a and not b) else b",
    ),
    "a.sum(axis=-1, keepdims=True)": (
        "a.sum(axis=-1)", "a.sum(keepdims=True)", "a.sum(axis=1, keepdims=True)", "a.sum(axis=-2, keepdims=True)",
        "a.sum(axis=-0, keepdims=True)", "a.sum(axis=-1, keepdims=False)",
    ),
    "a << -b in [max(a, b)]": (
        "a >> -b in [max(a, b)]", "a << b in [max(a, b)]", "a << -b not in [max(a, b)]", "a << -b in [min(a, b)]",
    ),
    'f"é{a + b:.3f}é" + str(a * (b - a))': (
        'f"é{a - b:.3f}é" + str(a * (b - a))', 'f"é{a + b:.3f}é" + str(a + (b - a))',
        'f"é{a + b:.3f}é" + str(a * (b + a))',
    ),
    "[b for b in a if b < 2.5]": (
        "[b for b in a if b <= 2.5]", "[b for b in a if b >= 2.5]", "[b for b in a if b < 3.5]",
        "[b for b in a if b < 1.5]", "[b for b in a if True]", "[b for b in a if not b < 2.5]",
    ),
    "np.minimum(a, b)": ("np.maximum(a, b)",),
}  # fmt: skip


@pytest.mark.parametrize("code", MADE)
def test_changes(code: str) -> None:
    source = SOURCE.format(2, "x", code).encode()
    made = [(3, "x", code), (1, "x", code), (2, "x_", code), (2, "x", None), *((2, "x", other) for other in MADE[code])]
    found = [ast.unparse(ast.parse(change.apply(source))) for change in changes("f.py", source)]
    assert sorted(found) == sorted(ast.unparse(ast.parse(SOURCE.format(*new))) for new in made)


def test_statements() -> None:
    source = b"def f(a):\n    a.x = 1\n    a += b\n    for b in a:\n        break\n    raise a"
    found = {
        (change.line, change.before, change.after)
        for change in changes("f.py", source)
        if change.kind == "statement dropped" and change.is_one(source)
    }
    assert found == {(2, "a.x = 1", "pass"), (3, "a += b", "pass"), (5, "break", "pass"), (6, "raise a", "pass")}


def test_what_is_frozen_in_kernels(tmp_path: Path) -> None:
    files = {
        "__init__": "from .driver import run",
        "spec": "A = 1",
        "compilation": "import numba as nb\ndef kernel(function):\n    return nb.njit(function)",
        "kernels": "from .compilation import kernel\nfrom .spec import A\nfrom . import low\n@kernel\ndef f(): pass",
        "low": "from numba.extending import intrinsic as i\ndef make():\n    @i(1)\n    def f(): pass",
        "driver": "from numba.core import event\nfrom toy import kernels, other\n@property\ndef run(): pass",
        "other": "def f():\n    import numba",
    }
    (tmp_path / "toy").mkdir()
    for name, text in files.items():
        (tmp_path / "toy" / f"{name}.py").write_text(text)
    project = Project(tmp_path, "toy")
    assert project.compiled == {"toy/kernels.py", "toy/low.py"}
    assert project.drivers("toy/low.py") == project.drivers("toy/kernels.py") == {"toy/driver.py"}
    assert project.frozen_in_kernels == {f"toy/{name}.py" for name in ("kernels", "low", "compilation", "spec")}
