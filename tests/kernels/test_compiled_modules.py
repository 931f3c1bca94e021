"""The lists in pyproject.toml of modules that Numba compiles.

Coverage and mutation testing see Python code only. A module is in both lists if compiled code
reaches a function of it, and if it cannot be imported without Numba. So modules whose functions
also run as Python are not listed.
"""

import tomllib
from pathlib import Path

import pytest

import ort_gridsample as ogs
from support.processes import run_script

pytest.importorskip("numba", reason="kernels are compiled by Numba")
from ort_gridsample.kernels import kernel_key
from support.compiled_sources import compiled_specs, kernel_function, library_functions

ROOT = Path(ogs.__file__).parents[1]

#: A module that mutmut cannot change, because it runs as a script under another name.
SCRIPT = "ort_gridsample/session/provider_script.py"

#: Print the modules of ``modules`` that can be imported without Numba.
IMPORT_WITHOUT_NUMBA = """
import importlib, sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
for module in {modules}:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        continue
    print(module)
"""


@pytest.fixture(scope="module")
def compiled_modules() -> set[str]:
    """Return the paths of the modules that only Numba runs, from the root of the project."""
    modules = set()
    for function in (*map(kernel_function, compiled_specs()), *library_functions()):
        modules |= kernel_key.modules_of(kernel_key.reached_definitions(function))
    modules -= {*run_script(IMPORT_WITHOUT_NUMBA.format(modules=sorted(modules)))}
    return {module.replace(".", "/") + ".py" for module in modules}


def listed(*keys: str) -> list[str]:
    value = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    for key in keys:
        value = value[key]
    return value


def test_coverage_omits_the_compiled_modules(compiled_modules: set[str]) -> None:
    """The patterns begin with a star, because a relative path would refer to the current folder."""
    assert listed("coverage", "run", "omit") == [f"*/{path}" for path in sorted(compiled_modules)]


def test_mutmut_changes_no_compiled_module(compiled_modules: set[str]) -> None:
    assert listed("mutmut", "do_not_mutate") == [*sorted(compiled_modules), SCRIPT]
