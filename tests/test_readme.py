"""Every command and every snippet of the README and its pages, every example among them, as they stand: new ones too.

Run in a folder that looks like a clone, with a model in it. What is called by a placeholder is given, and what takes
minutes is asked for less.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from cases import Attributes
from models import grid_sample_model

REPOSITORY = Path(__file__).parents[1]
PAGES = [
    REPOSITORY / page
    for page in (
        "README.md",
        "ort_gridsample/INSTALL.md",
        "examples/README.md",
        "ort_gridsample/README.md",
        "ort_gridsample/SEMANTICS.md",
        "ort_gridsample/model/README.md",
        "tests/README.md",
        "tests/benchmarks/README.md",
        "tests/runtimes/README.md",
    )
]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
GALLERY = (REPOSITORY / "examples/README.md").read_text(encoding="utf-8")
EXAMPLES = sorted(path.name for path in (REPOSITORY / "examples").glob("*.py"))
#: The examples that draw a picture, by the picture that is stored.
DRAWN = sorted(path.with_suffix(".py").name for path in (REPOSITORY / "examples").glob("*.png") if path.stem != "demo")
#: Examples that test_clusters.py runs.
ON_CLUSTERS = ("dask_folder.py", "ray_folder.py")

#: Placeholder -> what a user would write there.
PLACEHOLDERS = {"MODEL": "model.onnx", "IN": "model.onnx", "OUT": "out.onnx", "A": "model.onnx", "B": "model.onnx"}
#: Beginning of a command -> what is added to it: what it cannot do without, or what makes it short. The longer ones of
#: two that begin alike come later.
ADDED = {
    "ort-gridsample run": "--random",
    "ort-gridsample bench": "--rounds 1",
    "python -m tests": "--list",
    "python -m tests.versions": "--list",
    "python -m tests.install": "--help",
    "python -m tests.fuzz": "--cases 200 --workers 1",
    "python -m tests.mutants": "--list",
    "python -m tests.benchmarks": "--quick --only tiny",
    "python -m tests.benchmarks.evaluator_speed": "--quick",
    "python -m tests.benchmarks.lowered_speed": "--quick",
    "python -m tests.benchmarks.scales": "--quick",
    "python -m tests.benchmarks.spinning": "--quick",
    "python -m tests.benchmarks.throughput": "--quick",
    "python -m tests.runtimes": "--list",
}
#: Commands that are run as they stand elsewhere: .ci/run makes environments, and installs; a test compares pictures.
ELSEWHERE = ("python3 -m venv", "pip install", *(f"python examples/{name}" for name in (*DRAWN, *ON_CLUSTERS)))


def blocks(language: str) -> list[str]:
    """The code blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def scripts() -> list[str]:
    """The commands: the sh blocks, lines after a prompt, and what sentences and tables call."""
    found = blocks("sh")
    found += [line.removeprefix("$ ") for block in blocks("text") for line in block.splitlines() if line[:2] == "$ "]
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    code = (" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose))
    found += [text for text in code if re.match(r"(python3?|pip|ort-gridsample) [^…]+$", text)]
    return list(dict.fromkeys(map(str.strip, found)))


def as_run(command: str) -> str:
    """The command as the test runs it: placeholders filled in, and what is ADDED to the longest of its beginnings."""
    command = command.partition("  #")[0]
    beginnings = [beginning for beginning in ADDED if f"{command} ".startswith(f"{beginning} ")]
    words = [PLACEHOLDERS.get(word, word) for word in command.split()]
    return " ".join([*words, *(ADDED[beginning] for beginning in beginnings[-1:])])


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the repository's tests, its examples without their pictures, a model, and its inputs."""
    folder = tmp_path_factory.mktemp("clone")
    # Links to files, not to folders: what a command writes there comes in the place of a link.
    shutil.copytree(
        REPOSITORY / "tests",
        folder / "tests",
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.png"))
    model = grid_sample_model("float32", "float32", 2, [Attributes("linear", "zeros", False)], opset=20)
    onnx.save(model, folder / "model.onnx")
    np.save(folder / "X.npy", np.zeros((1, 2, 4, 4), np.float32))
    np.save(folder / "grid.npy", np.zeros((1, 3, 3, 2), np.float32))
    return folder


def run(command: str, folder: Path) -> None:
    scripts = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_what_is_linked_and_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    file = ""
    for linked, test in re.findall(r"\[\w+\]\(([\w/.]+\.py)\)|`::(\w+)`", text):
        file = (page.parent / linked).read_text(encoding="utf-8") if linked else file
        assert not test or f"def {test}(" in file, test


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_every_row_of_what_is_held_names_a_test(page: Path) -> None:
    tables = re.findall(r"^\|.*\| held by \|\n\|[-|]+\|\n((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert tables or "held by" not in page.read_text(encoding="utf-8")
    for row in "".join(tables).splitlines():
        held_by = row.split("|")[-2]
        assert re.search(r"\[test_\w+\]\([\w/.]*test_\w+\.py\)", held_by), row


def test_the_readme_is_a_tour() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_nothing_is_overlooked() -> None:
    found = scripts()
    assert "ort-gridsample inspect MODEL" in found  # in a table
    assert "python examples/native_support.py" in found  # in a sentence
    assert "python -m tests.benchmarks" in found  # after a prompt
    assert any("pip install --no-deps ." in script for script in found)  # in a block of several lines
    assert any("ogs.InferenceSession" in block for block in blocks("python"))
    for beginning in ADDED:  # and nothing is listed above that is nowhere
        assert any(f"{script} ".startswith(f"{beginning} ") for script in found)
    for name in EXAMPLES:
        assert any(f"{script} ".startswith(f"python examples/{name} ") for script in found), name


@pytest.mark.parametrize("script", [script for script in scripts() if not script.startswith(ELSEWHERE)])
def test_command(script: str, clone: Path) -> None:
    if script.startswith("ort-gridsample demo"):
        pytest.importorskip("matplotlib", reason="the demo needs matplotlib")
        pytest.importorskip("PIL", reason="the demo needs pillow")
    run(" && ".join(map(as_run, script.splitlines())), clone)


@pytest.mark.parametrize("name", DRAWN)
def test_the_picture_in_the_gallery_is_what_its_line_draws(name: str, clone: Path) -> None:
    pytest.importorskip("matplotlib", reason="the examples need matplotlib")
    image = pytest.importorskip("PIL.Image", reason="the examples need pillow")
    picture = Path("examples", name).with_suffix(".png")
    assert re.search(rf"^`python examples/{name}`\n\n!\[.+\]\({picture.name}\)$", GALLERY, re.MULTILINE)
    assert (REPOSITORY / picture).stat().st_size < 150_000
    run(f"python examples/{name}", clone)
    stored, drawn = (
        np.asarray(image.open(folder / picture).convert("L").resize((32, 32)), float) for folder in (REPOSITORY, clone)
    )
    assert abs(drawn - stored).mean() < 5  # of 255: fonts and palettes vary a little from release to release


def test_snippets(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone)
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    names: dict[str, Any] = {"onnx": onnx, "onnxruntime": onnxruntime, "theta": theta, "X": np.load("X.npy")}
    for snippet in blocks("python"):
        exec(compile(snippet, "README.md", "exec"), names)
    assert names["Y"].shape == (1, 2, 480, 640)
    assert names["session"].run(None, {"X": names["X"], "grid": np.load("grid.npy")})[0].shape == (1, 2, 3, 3)
