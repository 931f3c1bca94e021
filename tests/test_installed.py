"""What the package says of older releases of what it stands on, and where the bounds of these are written."""

import re
import sys
from pathlib import Path

import pytest

from ort_gridsample import versions
from processes import python

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no tomllib")

REPOSITORY = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def test_releases_are_told_apart() -> None:
    new_enough = {"onnxruntime": ["1.17", "1.17.0", "1.100.0.dev20300101+gpu", "2.0"], "numpy": ["1.26.0rc1", "2.0.0"]}
    older = {"onnxruntime": ["1.16.3", "0.99"], "numpy": ["1.25.2"]}
    assert not any(versions.complaint(name, each) for name, releases in new_enough.items() for each in releases)
    assert all(versions.complaint(name, each) for name, releases in older.items() for each in releases)


#: Imports the package anew in one broken environment after another, and prints what it says of each.
BROKEN = """
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


def test_what_is_older_or_missing_is_told_when_the_package_is_imported(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("import nowhere_to_be_found")
    lines = python(BROKEN.replace("FOLDER", repr(str(tmp_path))))
    for name, older, missing in zip(["numpy", "onnx", "onnxruntime"], lines[:3], lines[3:6], strict=True):
        needed = f"{name} {versions.OLDEST[name]} or newer, and 0.9.1 is installed"
        assert older == f"ort_gridsample needs {needed}: pip install '{name}>={versions.OLDEST[name]}'"
        assert missing.startswith(f"ort_gridsample needs {name}, and none is installed: pip install {name}")
        assert ("onnxruntime-gpu" in missing) == (name == "onnxruntime")
    half, python_itself, elsewhere = lines[6:]
    assert half.startswith("what is installed as onnxruntime is not whole: uninstall every build of it")
    assert python_itself == "ort_gridsample needs Python 3.10 or newer, and this is 3.9"
    assert elsewhere == "No module named 'nowhere_to_be_found'"  # a module that something else misses


def test_older_onnxruntime_extensions_are_told_before_their_library_is_loaded() -> None:
    pytest.importorskip("onnxruntime_extensions._version", reason="there is no onnxruntime-extensions")
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
print(told(ogs.register))
print('onnxruntime_extensions._ocos' in sys.modules)
"""
    said, loaded = python(script)
    assert "ort_gridsample needs onnxruntime-extensions 0.11 or newer, and 0.10.1 is installed" in said
    assert loaded == "False"


@pytest.mark.parametrize(("release", "needed"), [("0.60.0", "0.61 or newer"), ("0.69.0", "older than 0.69")])
def test_a_numba_that_nobody_tried_is_left_alone_until_it_is_asked_for(release: str, needed: str) -> None:
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
    said = f"ort_gridsample needs numba {needed}, and {release} is installed: pip install 'numba>=0.61"
    assert all(line.startswith("ImportError: ") and said in line for line in asked)


def test_the_bounds_are_the_same_everywhere() -> None:
    every = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["jit"]]
    assert dict(re.findall(r"^([\w-]+)>=([\d.]+)", requirement)[0] for requirement in every) == versions.OLDEST
    assert f"numba>={versions.OLDEST['numba']},<{versions.NEWER_NUMBA}" in every
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, versions.PYTHON))
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + "".join(map(str, versions.PYTHON))


def test_what_coverage_leaves_out_is_what_numba_compiles() -> None:
    for name in PYPROJECT["tool"]["coverage"]["run"]["omit"]:
        assert "numba" in (REPOSITORY / name.removeprefix("*/")).read_text(encoding="utf-8"), name
