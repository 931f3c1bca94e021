"""What the package says of older releases of what it stands on, and where the bounds of these are written."""

from __future__ import annotations

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

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]

SAID = "\ntry:\n    {asked}\nexcept ImportError as error:\n    print(error)\n"
IMPORT = SAID.format(asked="import ort_gridsample")

#: Name -> release -> whether it will do.
RELEASES = [
    ("onnxruntime", "1.16.3", False),
    ("onnxruntime", "1.17", True),
    ("onnxruntime", "1.17.0", True),
    ("onnxruntime", "1.100.0.dev20300101+gpu", True),
    ("onnxruntime", "2.0", True),
    ("onnxruntime", "0.99", False),
    ("numpy", "1.25.2", False),
    ("numpy", "1.26.0rc1", True),
    ("numpy", "2.0.0", True),
]


@pytest.mark.parametrize(("name", "release", "will_do"), RELEASES)
def test_releases_are_told_apart(name: str, release: str, will_do: bool) -> None:
    assert (versions.complaint(name, release) == "") == will_do


@pytest.mark.parametrize("name", ["numpy", "onnx", "onnxruntime"])
def test_an_older_release_is_told_when_the_package_is_imported(name: str) -> None:
    oldest = versions.OLDEST[name]
    (said,) = python(f"import {name}\n{name}.__version__ = '0.9.1'{IMPORT}")
    assert (
        said == f"ort_gridsample needs {name} {oldest} or newer, and 0.9.1 is installed: pip install '{name}>={oldest}'"
    )


@pytest.mark.parametrize("name", ["numpy", "onnx", "onnxruntime"])
def test_what_is_missing_is_told_when_the_package_is_imported(name: str) -> None:
    hidden = f"import sys\nsys.modules[{name!r}] = None"
    (said,) = python(hidden + IMPORT)
    assert said.startswith(f"ort_gridsample needs {name}, and none is installed: pip install {name}")
    assert ("onnxruntime-gpu" in said) == (name == "onnxruntime")


def test_a_module_that_something_else_misses_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "onnx.py").write_text("import nowhere_to_be_found")
    (said,) = python(f"import sys\nsys.path.insert(0, {str(tmp_path)!r}){IMPORT}")
    assert said == "No module named 'nowhere_to_be_found'"


def test_half_an_onnxruntime_is_told_when_the_package_is_imported() -> None:
    """Two builds share a folder; when one is uninstalled, it is there still, and next to nothing is in it."""
    (said,) = python(f"import sys, types\nsys.modules['onnxruntime'] = types.ModuleType('onnxruntime'){IMPORT}")
    assert said.startswith("what is installed as onnxruntime is not whole: uninstall every build of it")


def test_an_older_python_is_told() -> None:
    (said,) = python(f"import sys, numpy, onnx, onnxruntime\nsys.version_info = (3, 9, 18){IMPORT}")
    assert said == "ort_gridsample needs Python 3.10 or newer, and this is 3.9"


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
"""
    script += SAID.format(asked="ogs.register()") + "print('onnxruntime_extensions._ocos' in sys.modules)"
    said, loaded = python(script)
    assert "ort_gridsample needs onnxruntime-extensions 0.11 or newer, and 0.10.1 is installed" in said
    assert loaded == "False"


OLD_NUMBA = "import numba\nnumba.__version__ = '0.60.0'\nimport numpy as np, ort_gridsample as ogs\n"
SAMPLE = "print(ogs.grid_sample(np.ones((1, 1, 4, 4), 'f'), np.zeros((1, 2, 2, 2), 'f')).shape)"


def test_an_older_numba_is_left_alone() -> None:
    pytest.importorskip("numba", reason="Numba is not installed")
    assert python(f"{OLD_NUMBA}{SAMPLE}\nprint(ogs.get_core(), ogs.get_ops())") == ["(1, 1, 2, 2)", "numpy python"]


@pytest.mark.parametrize("asked", [f"ogs.set_core('jit'); {SAMPLE}", "ogs.set_ops('compiled')"])
def test_an_older_numba_that_is_asked_for_is_told(asked: str) -> None:
    pytest.importorskip("numba", reason="Numba is not installed")
    (said,) = python(OLD_NUMBA + SAID.format(asked=asked))
    assert "ort_gridsample needs numba 0.61 or newer, and 0.60.0 is installed: pip install 'numba>=0.61'" in said


def asked_for() -> dict[str, str]:
    """The oldest release of everything that pyproject.toml asks for."""
    every = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["jit"]]
    found = {}
    for requirement in every:
        name, oldest = re.findall(r"^([\w-]+)>=([\d.]+)", requirement)[0]
        found[name] = oldest
    return found


def test_the_bounds_are_the_same_everywhere() -> None:
    assert asked_for() == versions.OLDEST
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, versions.PYTHON))
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py" + "".join(map(str, versions.PYTHON))


def test_what_coverage_leaves_out_is_what_numba_compiles() -> None:
    for name in PYPROJECT["tool"]["coverage"]["run"]["omit"]:
        assert "numba" in (Path(__file__).parents[1] / name.removeprefix("*/")).read_text(encoding="utf-8"), name
