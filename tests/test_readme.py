"""Every command and every snippet of the README and its pages, every example among them, as they stand: new ones too.

Run in a folder that looks like a clone, beside a model that onnxruntime refuses. What is called by a placeholder is
given. The suites' tools are asked for their options alone, as their own tests run them.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from cases import Attributes
from conftest import OPS, with_slow
from models import grid_sample_model

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("", ".github", "ort_gridsample", "ort_gridsample/dialects", "examples", "tests", "tests/*")
FILES = [file for folder in FOLDERS for file in sorted(REPOSITORY.glob(f"{folder}/*.md".lstrip("/")))]
PAGES = {file.relative_to(REPOSITORY).as_posix(): file.read_text(encoding="utf-8") for file in FILES}
TEXT = "\n".join(PAGES.values())
#: The gallery's pictures, and the commands that draw them.
PICTURES = {name: line for line, name in re.findall(r"^`(.+)`\n\n!\[.+\]\((.+)\)$", PAGES["examples/README.md"], re.M)}
#: Placeholder -> what a user would write there.
PLACEHOLDERS = {**dict.fromkeys(("MODEL", "IN", "A"), "model.onnx"), **dict.fromkeys(("OUT", "B"), "anywhere.onnx")}
#: Commands that are run elsewhere: .ci/run makes environments, and installs; a test of its own runs the folders.
ELSEWHERE = (
    *("python3 -m venv", "pip install", "pre-commit", "pytest", "python -m pytest", "tox", "bash .ci/run"),
    *("ort-gridsample demo", "python examples/dask_folder.py", "python examples/ray_folder.py", "python -m tests"),
    "ort-gridsample library",
    *PICTURES.values(),
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.M | re.S)


def commands() -> list[str]:
    """What sh blocks, lines after a prompt, sentences and tables call, with what a user would fill in."""
    found = [line for block in blocks("sh") for line in block.splitlines()]
    found += [line.removeprefix("$ ") for block in blocks("text") for line in block.splitlines() if line[:2] == "$ "]
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
    code = (" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose))
    found += [text for text in code if re.match(r"(python3?|pip|tox|ort-gridsample) [^…]+$", text)]
    plain = (command.partition("  #")[0] for command in found)
    return list(dict.fromkeys(" ".join(PLACEHOLDERS.get(word, word) for word in line.split()) for line in plain))


COMMANDS, SNIPPETS = commands(), blocks("python")
RUN = [command for command in COMMANDS if not command.startswith(ELSEWHERE)]
ALONE = [(number, "") for number, _ in enumerate(SNIPPETS)]
#: Tool of a suite -> the options that the pages name.
TOOLS: dict[str, set[str]] = {}
for tool, options in re.findall(r"^python -m (tests\S*)(.*)$", "\n".join(COMMANDS), re.M):
    TOOLS.setdefault(tool, set()).update(re.findall(r"--[\w-]+", options))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the repository's tests, its examples without their pictures, a model, and its inputs."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "tests").symlink_to(REPOSITORY / "tests")
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.png"))
    model = grid_sample_model("uint8", "float32", 2, [Attributes("linear")], opset=20)
    onnx.save(model, folder / "model.onnx")
    onnx.save(ogs.patch_model(model, target="primitives"), folder / "anywhere.onnx")
    np.save(folder / "X.npy", np.zeros((1, 2, 4, 4), np.uint8))
    np.save(folder / "grid.npy", np.zeros((1, 3, 3, 2), np.float32))
    return folder


def run(command: str, folder: Path) -> str:
    """What it prints, run with this Python's scripts and this package; it must end well."""
    first = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(REPOSITORY)}
    paths = {name: os.pathsep.join(filter(None, [path, os.environ.get(name)])) for name, path in first.items()}
    done = subprocess.run(command, shell=True, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES)
def test_what_is_linked_and_named_is_there(page: str) -> None:
    folder, file = (REPOSITORY / page).parent, ""
    for target, place in re.findall(r"\]\((?!https:)([^)#]*)(?:#([^)]*))?\)", PAGES[page]):
        assert (folder / target).exists(), target
        text = (folder / target).read_text(encoding="utf-8") if target.endswith(".md") else PAGES[page]
        places = [re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in re.findall("(?m)^#+ (.+)", text)]
        assert not place or place in places, place
    for linked, test in re.findall(r"\[\w+\]\(([\w/.]+\.py)\)|`::(\w+)`", PAGES[page]):
        file = (folder / linked).read_text(encoding="utf-8") if linked else file
        assert not test or f"def {test}(" in file, test
    tables = re.findall(r"^\|.*\| tested by \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGES[page], re.MULTILINE)
    assert tables or "| tested by |" not in PAGES[page]
    for row in "".join(tables).splitlines():
        assert re.search(r"\[test_\w+\]\([\w/.]*test_\w+\.py\)", row.split("|")[-2]), row


def test_every_public_name_is_on_its_page_as_it_is_called() -> None:
    page = re.findall(r"(?m)^### (.+)\n\n```pyi\n((?:.+\n)+)```\n\n\w.{10}", PAGES["ort_gridsample/API.md"])
    assert sorted(name for name, _ in page) == sorted({*ogs.__all__} - {"__version__"})
    for name, written in page:
        called = inspect.signature(getattr(ogs, name))
        if inspect.isclass(getattr(ogs, name)):
            called = called.replace(return_annotation=called.empty)
        found, expected = (re.sub(r"""[\s"']|,(?=\n\))""", "", text) for text in (written, f"{name}{called}"))
        assert found == expected, f"{name}{called}"


def test_nothing_is_overlooked() -> None:
    assert "ort-gridsample inspect model.onnx" in RUN  # in a table
    assert "python examples/native_support.py" in RUN  # in a sentence
    assert "python -m tests.benchmarks" in COMMANDS  # after a prompt
    assert "pip install --no-deps ." in COMMANDS  # in a block of several lines
    examples = {path.name for path in (REPOSITORY / "examples").glob("*.p*")}
    assert examples == {*PICTURES, *re.findall(r"python examples/(\w+\.py)", " ".join(COMMANDS))}
    configuration = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for names in re.findall(r"tox -e ([\w,-]+)", " ".join(COMMANDS)):
        assert all(f"[tool.tox.env.{name}]" in configuration for name in names.split(",")), names


@with_slow("command", RUN, [each for each in RUN if not each.endswith("native_support.py")])
def test_command(command: str, clone: Path) -> None:
    run(command, clone)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_has_the_options_that_the_pages_name(tool: str, clone: Path) -> None:
    assert TOOLS[tool] <= set(re.findall(r"--[\w-]+", run(f"python -m {tool} --help", clone)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_in_the_gallery_is_what_its_line_draws(name: str, clone: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the examples need pillow and matplotlib")
    run(PICTURES[name], clone)
    pictures = [folder / "examples" / name for folder in (REPOSITORY, clone)]
    assert pictures[0].stat().st_size < (1_000_000 if name == "demo.png" else 150_000)
    stored, drawn = (np.asarray(image.open(each).convert("L").resize((32, 32)), float) for each in pictures)
    assert abs(drawn - stored).mean() < 5  # of 255: fonts and palettes vary a little from release to release


@pytest.mark.slow
@pytest.mark.parametrize(("library", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_folder_on_a_cluster(library: str, package: str, clone: Path, tmp_path: Path) -> None:
    """Of one machine: every picture, and one compilation."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install '.[examples]'")
    folder, into = tmp_path / "pictures", tmp_path / "straight"
    folder.mkdir()
    rng = np.random.default_rng(0)
    pictures = {f"{i:02}.png": rng.integers(0, 256, (24, 40, 3), np.uint8) for i in range(24)}
    for name, picture in pictures.items():
        image.fromarray(picture).save(folder / name)
    said = run(f"NUMBA_CACHE_DIR={tmp_path}/kernels python examples/{library}_folder.py {folder} {into}", clone)
    assert "kernels on disk: 0\n" in said
    (compiled,) = re.findall(r"after the first session: (\d+)", said)
    assert (int(compiled) > 0) == ("compiled" in OPS)
    assert re.search(rf"^24 pictures in {re.escape(str(into))}, by [12] workers$", said, re.MULTILINE)
    assert "kernels that workers compiled: 0\n" in said
    assert sorted(path.name for path in into.iterdir()) == sorted(pictures)
    theta = np.array([[[0.87, -0.5, 0], [0.5, 0.87, 0]]], np.float32)
    for name, picture in pictures.items():
        X = np.ascontiguousarray(picture.transpose(2, 0, 1)[None])
        expected = ogs.grid_sample(X, ogs.affine_grid(theta, X.shape), "cubic", "reflection")[0].transpose(1, 2, 0)
        # Sums in another order may be truncated another way.
        assert np.abs(np.asarray(image.open(into / name)).astype(int) - expected).max() <= 1, name


@with_slow("number,beside", [*ALONE, (0, "ic_stn_loop"), (0, "voxelmorph")], ALONE)
def test_a_snippet_runs_when_it_is_pasted_beside_a_model(number: int, beside: str, clone: Path, tmp_path: Path) -> None:
    (tmp_path / "pasted.py").write_text(SNIPPETS[number], encoding="utf-8")
    model = REPOSITORY / "tests/exported" / f"{beside}.onnx" if beside else clone / "model.onnx"
    shutil.copy(model, tmp_path / "model.onnx")
    assert "GridSample node " in run("python pasted.py", tmp_path) or number


def test_the_error_of_the_readme_is_onnxruntime_s(clone: Path) -> None:
    with pytest.raises(Exception, match="NOT_IMPLEMENTED : Could not find an implementation for GridSample") as raised:
        onnxruntime.InferenceSession(clone / "model.onnx")
    (line,) = [block for block in blocks("text") if "Could not find" in block]
    assert line.strip().partition("GridSample")[0] in f"{type(raised.value).__name__}: {raised.value}"
