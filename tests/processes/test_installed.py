"""What is installed, and beside what: older releases of what the package stands on, bounds, modules, another build."""

import ast
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ort_gridsample import __version__, cli, versions
from ort_gridsample.custom_ops.compiled_ops.catalog import OPS
from support.processes import python

REPOSITORY = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def test_releases_are_told_apart() -> None:
    new_enough = {
        "onnxruntime": ["1.17", "1.17.0", "1.100.0.dev20300101+gpu", "2.0"],
        "numpy": ["1.26.0rc1", "2.0.0"],
    }
    older = {"onnxruntime": ["1.16.3", "0.99"], "numpy": ["1.25.2"]}
    assert not any(
        versions.incompatibility_message(name, each)
        for name, releases in new_enough.items()
        for each in releases
    )
    assert all(
        versions.incompatibility_message(name, each)
        for name, releases in older.items()
        for each in releases
    )


def test_what_is_older_or_missing_is_told_when_the_package_is_imported(tmp_path: Path) -> None:
    # Imports the package anew in one broken environment after another, and prints what it says of each.
    script = """
import sys, types
from unittest.mock import patch
import numpy, onnx, onnxruntime
def imported():
    for name in [name for name in sys.modules if name.startswith("ort_gridsample")]:
        del sys.modules[name]
    try:
        import ort_gridsample
    except ImportError as error:
        print(error)
for module in numpy, onnx, onnxruntime:
    with patch.object(module, "__version__", "0.9.1"):
        imported()
for name in "numpy", "onnx", "onnxruntime":
    with patch.dict(sys.modules, {name: None}):
        imported()
with patch.dict(sys.modules, onnxruntime=types.ModuleType("onnxruntime")):
    imported()  # two builds share a folder; when one is uninstalled, it is there still, and next to nothing is in it
with patch.object(sys, "version_info", (3, 9, 18)):
    imported()
sys.path.insert(0, FOLDER)
with patch.dict(sys.modules):
    for name in [name for name in sys.modules if name.split(".")[0] == "onnx"]:
        del sys.modules[name]
    imported()
"""
    (tmp_path / "onnx.py").write_text("import nowhere_to_be_found")
    lines = python(script.replace("FOLDER", repr(str(tmp_path))))
    for name, older, missing in zip(
        ["numpy", "onnx", "onnxruntime"], lines[:3], lines[3:6], strict=True
    ):
        needed = f"{name} {versions.OLDEST[name]} or newer, and 0.9.1 is installed"
        assert (
            older == f"ort_gridsample needs {needed}: pip install '{name}>={versions.OLDEST[name]}'"
        )
        assert missing.startswith(
            f"ort_gridsample needs {name}, and none is installed: pip install {name}"
        )
        assert ("onnxruntime-gpu" in missing) == (name == "onnxruntime")
    half, python_itself, elsewhere = lines[6:]
    assert half.startswith(
        "what is installed as onnxruntime is not whole: uninstall every build of it"
    )
    assert python_itself == "ort_gridsample needs Python 3.11 or newer, and this is 3.9"
    assert (
        elsewhere == "No module named 'nowhere_to_be_found'"
    )  # a module that something else misses


def test_older_onnxruntime_extensions_are_told_before_their_library_is_loaded() -> None:
    pytest.importorskip(
        "onnxruntime_extensions._version", reason="there is no onnxruntime-extensions"
    )
    script = """
import importlib.machinery, sys
class Older(importlib.machinery.SourceFileLoader):
    def get_data(self, path):
        return b"__version__ = '0.10.1'"
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "onnxruntime_extensions._version":
            return importlib.machinery.ModuleSpec(name, Older(name, "_version.py"), origin="_version.py")
sys.meta_path.insert(0, Finder())
import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
ogs.set_ops("python")
print(told(lambda: ogs.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]), nodes="all")))
print('onnxruntime_extensions._ocos' in sys.modules)
"""
    said, loaded = python(script)
    assert (
        "ort_gridsample needs onnxruntime-extensions 0.11 or newer, and 0.10.1 is installed" in said
    )
    assert loaded == "False"


@pytest.mark.parametrize(
    ("release", "needed"), [("0.60.0", "0.61 or newer"), ("0.69.0", "older than 0.69")]
)
def test_a_numba_that_nobody_tried_is_left_alone_until_it_is_asked_for(
    release: str, needed: str
) -> None:
    pytest.importorskip("numba", reason="Numba is not installed")
    script = f"""
import numba
numba.__version__ = "{release}"
import numpy as np, ort_gridsample as ogs
def sample():
    return ogs.grid_sample(np.ones((1, 1, 4, 4), "f"), np.zeros((1, 2, 2, 2), "f")).shape
print(sample(), ogs.get_core(), ogs.get_ops())
for ask in lambda: ogs.set_ops("compiled"), lambda: ogs.set_core("jit") or sample():
    print(told(ask))
"""
    answer, *asked = python(script)
    assert (answer, len(asked)) == ("(1, 1, 2, 2) numpy python", 2)
    said = (
        f"ort_gridsample needs numba {needed}, and {release} is installed: pip install 'numba>=0.61"
    )
    assert all(line.startswith("ImportError: ") and said in line for line in asked)


def test_the_bounds_are_the_same_everywhere() -> None:
    every = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["jit"]]
    assert (
        dict(re.findall(r"^([\w-]+)>=([\d.]+)", requirement)[0] for requirement in every)
        == versions.OLDEST
    )
    assert f"numba>={versions.OLDEST['numba']},<{versions.UNTESTED_NUMBA}" in every
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, versions.PYTHON))
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + "".join(map(str, versions.PYTHON))


def test_what_coverage_leaves_out_is_what_numba_compiles() -> None:
    for name in PYPROJECT["tool"]["coverage"]["run"]["omit"]:
        assert "numba" in (REPOSITORY / name.removeprefix("*/")).read_text(encoding="utf-8"), name


MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (REPOSITORY / "ort_gridsample").rglob("*.py")
}
#: What Python and the entry point import, and what the package imports by a name that it computes.
ENTRIES = {
    "ort_gridsample",
    "ort_gridsample.__main__",
    *(f"ort_gridsample.cli.{name}" for name in cli.COMMANDS),
}
KERNELS = {op.kernels.split(".")[0] for op in OPS}
ENTRIES.add("ort_gridsample.library.emission")
ENTRIES.add("ort_gridsample._pyinstaller.hook-ort_gridsample")  # which PyInstaller executes
ENTRIES |= {f"ort_gridsample.custom_ops.compiled_ops.{each}" for each in KERNELS}


def imported(name: str) -> Iterator[str]:
    """The package's modules that module ``name`` imports, wherever in it."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".")
            base = ".".join(
                [*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])]
            )
            yield from (
                found
                for found in (base, *(f"{base}.{each.name}" for each in node.names))
                if found in MODULES
            )
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            first = node.args[0]
            if isinstance(first, ast.Constant) and f"{package}{first.value}" in MODULES:
                yield f"{package}{first.value}"


def test_every_module_is_used_by_the_package_itself_and_no_benchmark_suite_is_installed() -> None:
    found: set[str] = set()
    ahead = set(ENTRIES)
    while ahead:
        found |= ahead
        ahead = {
            other for name in ahead for other in (name.rpartition(".")[0], *imported(name)) if other
        } - found
    assert set(MODULES) - found == set()
    assert not any("bench" in name for name in MODULES if name != "ort_gridsample.cli.bench")


def test_no_link_of_the_readme_is_dead_on_a_registry_s_page() -> None:
    """Around that there is no repository."""
    builder = pytest.importorskip("hatch_fancy_pypi_readme", reason="it comes with the extra 'dev'")
    command = [sys.executable, "-m", builder.__name__]
    shown = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    readme, shown = (
        re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for text in ((REPOSITORY / "README.md").read_text("utf-8"), shown)
    )
    targets = re.findall(r"\]\(([^)]+)\)", shown)
    assert all(target.startswith(("#", "https://")) for target in targets), targets
    assert [
        text
        for text, _ in re.findall(r"(?<!!)\[([^\[\]]+)\]\(([^)#:]+)\)", readme)
        if text not in shown
    ] == []


def test_the_changelog_speaks_of_this_version() -> None:
    text = (REPOSITORY / "ort_gridsample" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", text, re.MULTILINE)[0] == __version__


#: The page's commands after that which installs the other build; there, a clone is installed.
COMMANDS = re.compile(
    r"^pip (install --no-deps \.)\npip (install [^#\n]*)\npip (install [^#\n]*)", re.MULTILINE
)


def call(*command: object) -> str:
    """What a command prints; it must end well."""
    settings = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_COMPILE": "1"}
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | settings
    done = subprocess.run(
        [*map(str, command)], cwd=REPOSITORY.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def renamed(wheel: Path, name: str = "onnxruntime_gpu") -> Path:
    _, version, tags = wheel.name.split("-", 2)
    path = wheel.with_name(f"{name}-{version}-{tags}")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                data = data.replace(b"\nName: onnxruntime\n", f"\nName: {name}\n".encode(), 1)
            if entry.filename.endswith(".dist-info/RECORD"):
                data = re.sub(
                    rb",sha256=[^,\n]*,\d*\n",
                    b",,\n",
                    data.replace(b"onnxruntime-", f"{name}-".encode()),
                )
            new.writestr(entry.filename.replace("onnxruntime-", f"{name}-", 1), data)
    return path


def contents(python: Path) -> dict[str, str]:
    where = "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])"
    folder = Path(call(python, "-c", where).strip())
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.mark.network
@pytest.mark.timeout(900)
def test_another_build_stays_as_it_was(tmp_path: Path) -> None:
    script = """
import importlib.metadata, numpy as np, onnx, onnxruntime, ort_gridsample as ogs
names = [distribution.metadata["Name"] for distribution in importlib.metadata.distributions()]
assert "onnxruntime" not in names, names
text = '<ir_version: 9, opset_import: ["": 20]> g (int8[1,1,2,2] X, float[1,1,1,2] G) => (int8[1,1,1,1] Y)'
model = onnx.parser.parse_model(text + "{ Y = GridSample <mode = \\"nearest\\"> (X, G) }")
session = ogs.InferenceSession(model, providers=["CPUExecutionProvider"])
feeds = {"X": np.arange(4, dtype=np.int8).reshape(1, 1, 2, 2), "G": np.full((1, 1, 1, 2), 0.5, np.float32)}
print(session.run(None, feeds)[0].item(), session.replaced[0].runs_on)
"""
    call(sys.executable, "-m", "venv", tmp_path / "beside")
    python = tmp_path / "beside" / ("Scripts" if os.name == "nt" else "bin") / "python"
    call(python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path, "onnxruntime")
    (wheel,) = tmp_path.glob("onnxruntime-*.whl")
    call(python, "-m", "pip", "install", "--quiet", renamed(wheel))
    before = contents(python)
    (commands,) = COMMANDS.findall(
        (REPOSITORY / "ort_gridsample" / "INSTALL.md").read_text(encoding="utf-8")
    )
    for command in commands:
        call(
            python,
            "-m",
            "pip",
            *(REPOSITORY if word == "." else word for word in shlex.split(command)),
        )
    assert call(python, "-c", script).split(maxsplit=1) == ["3", "compiled op\n"]
    assert contents(python) == before
