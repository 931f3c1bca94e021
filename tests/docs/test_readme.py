"""Test the commands, snippets and links on all pages of the repository.

Commands and snippets run in a folder that looks like a clone, next to a model that onnxruntime
refuses. Placeholders are replaced by files. Tools of the test suites are run with ``--help`` only,
as their own tests run them.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.pages import PAGES, REPOSITORY, TEXT, blocks
from support.parameters import OPS, with_slow
from support.paths import HAS_BFLOAT16_VALUES, HAS_PROVIDER, HAS_PYTHON_OPS, LIBRARY

#: A command in a line of the examples' page, and the picture below it.
_PICTURE = re.compile(r"^`(.+)`\n\n!\[.+\]\((.+)\)$", re.MULTILINE)
#: A picture of the examples' page -> the command that draws it.
PICTURES = {name: command for command, name in _PICTURE.findall(PAGES["examples/README.md"])}
#: The beginning of a command in prose; one with an ellipsis is incomplete.
_COMMAND = re.compile(r"(python3?|pip|tox|ort-gridsample) [^…]+$")
#: The rows of a table of guarantees.
_GUARANTEES = re.compile(r"^\|.*\| tested by \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)
#: Placeholder in a command -> the file that replaces it.
PLACEHOLDERS = {
    "MODEL": "model.onnx",
    "IN": "model.onnx",
    "A": "model.onnx",
    "OUT": "anywhere.onnx",
    "B": "anywhere.onnx",
}
#: Beginnings of commands that are not run here: .ci/run creates environments and installs packages,
#: and other tests run the other commands.
RUN_ELSEWHERE = (
    "python3 -m venv",
    "pip install",
    "pip uninstall",
    "pre-commit",
    "pytest",
    "python -m pytest",
    "tox",
    "bash .ci/run",
    ".ci/release",
    "ort-gridsample demo",
    "ort-gridsample exec",
    "ort-gridsample library",
    "python examples/dask_folder.py",
    "python examples/ray_folder.py",
    "python -m tests",
    "python examples/web/build.py",
    "python -m http.server",
    "python -m ort_gridsample.library.wheel",
    *PICTURES.values(),
)
#: The picture of every mode and padding is larger than the others.
MAX_PICTURE_BYTES = {name: 1_000_000 if name == "demo.png" else 150_000 for name in PICTURES}


def commands() -> list[str]:
    """Return the commands in sh blocks, after prompts, and in prose and tables.

    Placeholders are replaced by files.
    """
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    shown = [line for block in blocks("text") for line in block.splitlines()]
    lines += [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    lines += [code for code in inline if _COMMAND.match(code)]
    without_comments = [line.partition("  #")[0].split() for line in lines]
    replaced = [[PLACEHOLDERS.get(word, word) for word in words] for words in without_comments]
    return list(dict.fromkeys(map(" ".join, replaced)))


COMMANDS = commands()
SNIPPETS = blocks("python")
RUN_HERE = [command for command in COMMANDS if not command.startswith(RUN_ELSEWHERE)]
RUN_FAST = [command for command in RUN_HERE if not command.endswith("native_support.py")]
#: Each snippet with the model that onnxruntime refuses, and the first one with exported models too.
SNIPPET_CASES = [(number, "") for number, _ in enumerate(SNIPPETS)]
EXPORTED_CASES = [(0, "ic_stn_loop"), (0, "voxelmorph")]
#: Tool of a test suite -> the options that the pages name.
TOOLS: dict[str, set[str]] = {}
for tool, options in re.findall(r"^python -m (tests\S*)(.*)$", "\n".join(COMMANDS), re.M):
    TOOLS.setdefault(tool, set()).update(re.findall(r"--[\w-]+", options))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tests, the examples without pictures, a model and its inputs."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "tests").symlink_to(REPOSITORY / "tests")
    without_pictures = shutil.ignore_patterns("*.png")
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=without_pictures)
    model = grid_sample_model("uint8", "float32", 2, [Attributes("linear")], opset=20)
    onnx.save(model, folder / "model.onnx")
    onnx.save(ogs.patch_model(model, target="primitives"), folder / "anywhere.onnx")
    np.save(folder / "X.npy", np.zeros((1, 2, 4, 4), np.uint8))
    np.save(folder / "grid.npy", np.zeros((1, 3, 3, 2), np.float32))
    return folder


def run(command: str, folder: Path) -> str:
    """Run a command with this Python's scripts and this package, and return its output.

    The command must succeed.
    """
    environment = dict(os.environ)
    for variable, path in {"PATH": Path(sys.executable).parent, "PYTHONPATH": REPOSITORY}.items():
        environment[variable] = os.pathsep.join(filter(None, [str(path), os.environ.get(variable)]))
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def anchors(text: str) -> list[str]:
    """Return the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall("(?m)^#+ (.+)", text)
    return [re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower() for heading in headings]


@pytest.mark.parametrize("page", PAGES)
def test_link_of_page_leads_to_a_file_and_a_heading(page: str) -> None:
    folder = (REPOSITORY / page).parent
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]*)(?:#([^)]*))?\)", PAGES[page]):
        assert (folder / target).exists(), target
        if anchor:
            text = (folder / target).read_text(encoding="utf-8") if target else PAGES[page]
            assert anchor in anchors(text), anchor


@pytest.mark.parametrize("page", PAGES)
def test_test_that_a_page_names_is_in_the_linked_module(page: str) -> None:
    folder = (REPOSITORY / page).parent
    module = ""
    for linked, test in re.findall(r"\[\w+\]\(([\w/.]+\.py)\)|`::(\w+)`", PAGES[page]):
        if linked:
            module = (folder / linked).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in module, test


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if "| tested by |" in text])
def test_row_of_a_table_of_guarantees_links_a_test_module(page: str) -> None:
    tables = _GUARANTEES.findall(PAGES[page])
    assert tables
    for row in "".join(tables).splitlines():
        assert re.search(r"\[test_\w+\]\([\w/.]*test_\w+\.py\)", row.split("|")[-2]), row


def test_commands_are_found_in_blocks_tables_and_sentences() -> None:
    assert "ort-gridsample inspect model.onnx" in RUN_HERE  # in a table
    assert "python examples/native_support.py" in RUN_HERE  # in a sentence
    assert "python -m tests.benchmarks" in COMMANDS  # after a prompt
    assert "pip install --no-deps ." in COMMANDS  # in a block of several lines


def test_every_example_is_on_a_page() -> None:
    examples = {path.name for path in (REPOSITORY / "examples").glob("*.p*")}
    assert examples == {*PICTURES, *re.findall(r"python examples/(\w+\.py)", " ".join(COMMANDS))}


def test_tox_environment_that_a_page_names_is_defined() -> None:
    configuration = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for names in re.findall(r"tox -e ([\w,-]+)", " ".join(COMMANDS)):
        assert all(f"[tool.tox.env.{name}]" in configuration for name in names.split(",")), names


@with_slow("command", RUN_HERE, RUN_FAST)
def test_command_succeeds(command: str, clone: Path) -> None:
    if command == "pip check" and not HAS_PYTHON_OPS and sys.version_info < (3, 14):
        pytest.skip("the environment lacks a dependency: onnxruntime-extensions is not installed")
    run(command, clone)


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_has_the_options_that_the_pages_name(tool: str, clone: Path) -> None:
    assert TOOLS[tool] <= set(re.findall(r"--[\w-]+", run(f"python -m {tool} --help", clone)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_example_draws_the_picture_on_its_page(name: str, clone: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="the examples need pillow and matplotlib")
    run(PICTURES[name], clone)
    stored_path = REPOSITORY / "examples" / name
    assert stored_path.stat().st_size < MAX_PICTURE_BYTES[name]
    stored, drawn = (
        np.asarray(image.open(path).convert("L").resize((32, 32)), float)
        for path in (stored_path, clone / "examples" / name)
    )
    assert abs(drawn - stored).mean() < 5  # of 255: fonts and palettes vary between releases


@pytest.mark.slow
@pytest.mark.parametrize(("library", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_folder_example_on_a_cluster_writes_every_picture_and_compiles_once(
    library: str, package: str, clone: Path, tmp_path: Path
) -> None:
    """The cluster consists of one machine."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    image = pytest.importorskip("PIL.Image", reason="the examples need pillow and matplotlib")
    source = tmp_path / "pictures"
    destination = tmp_path / "straight"
    source.mkdir()
    rng = np.random.default_rng(0)
    pictures = {f"{i:02}.png": rng.integers(0, 256, (24, 40, 3), np.uint8) for i in range(24)}
    for name, picture in pictures.items():
        image.fromarray(picture).save(source / name)

    script = f"python examples/{library}_folder.py {source} {destination}"
    output = run(f"NUMBA_CACHE_DIR={tmp_path}/kernels {script}", clone)
    assert "kernels on disk: 0\n" in output
    (n_compiled,) = re.findall(r"after the first session: (\d+)", output)
    assert (int(n_compiled) > 0) == ("compiled" in OPS)
    summary = rf"^24 pictures in {re.escape(str(destination))}, by [12] workers$"
    assert re.search(summary, output, re.MULTILINE)
    assert "kernels that workers compiled: 0\n" in output

    assert sorted(path.name for path in destination.iterdir()) == sorted(pictures)
    theta = np.array([[[0.87, -0.5, 0], [0.5, 0.87, 0]]], np.float32)
    for name, picture in pictures.items():
        X = np.ascontiguousarray(picture.transpose(2, 0, 1)[None])
        grid = ogs.affine_grid(theta, X.shape)
        expected = ogs.grid_sample(X, grid, "cubic", "reflection")[0].transpose(1, 2, 0)
        written = np.asarray(image.open(destination / name)).astype(int)
        # Sums in another order may be truncated to a neighbouring integer.
        assert np.abs(written - expected).max() <= 1, name


@with_slow("number,exported", [*SNIPPET_CASES, *EXPORTED_CASES], SNIPPET_CASES)
def test_snippet_next_to_a_model_runs(
    number: int,
    exported: str,
    clone: Path,
    tmp_path: Path,
) -> None:
    if re.search("register_provider|get_ep_devices", SNIPPETS[number]) and not HAS_PROVIDER:
        pytest.skip("this onnxruntime has no execution providers with kernels")
    if "BFLOAT16" in SNIPPETS[number] and not HAS_BFLOAT16_VALUES:
        pytest.skip("this onnxruntime has no values of bfloat16 in Python")
    (tmp_path / "pasted.py").write_text(SNIPPETS[number], encoding="utf-8")
    model = REPOSITORY / "tests/exported" / f"{exported}.onnx" if exported else clone / "model.onnx"
    shutil.copy(model, tmp_path / "model.onnx")
    output = run("python pasted.py", tmp_path)
    if number == 0:  # the README's first snippet prints what each node runs on
        assert "GridSample node " in output
    if (number, exported) == (0, "voxelmorph") and "compiled" in OPS and not LIBRARY:
        shown = re.search(r"^GridSample node .*$", PAGES["README.md"], re.MULTILINE)
        assert shown is not None
        assert shown[0] in output.splitlines()
