"""Importing the package: what it imports, and what works without onnxruntime-extensions."""

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.custom_ops.compiled_ops.registry import unavailable_reason
from ort_gridsample.custom_ops.python_ops import extensions
from support.paths import needs_python_ops
from support.processes import WITHOUT_TORCH, run_json_program, run_program, run_script

#: Packages that neither this package nor onnxruntime-extensions may import.
HEAVY_PACKAGES = ("torch", "transformers", "numba", "matplotlib", "onnxscript", "openvino", "tqdm")
#: Run a session of Python ops.
RUN_SESSION = """
import numpy as np, ort_gridsample as ogs
from support.programs import GRID, X, open_sampling, shape_or_error
from support.paths import open_session
ogs.set_ops("python")
print(shape_or_error(open_sampling(open_session), X, GRID))
"""
Y_SHAPE = "(1, 2, 64, 64)"
#: Import onnxruntime-extensions, and print whether it is complete.
IMPORT_EXTENSIONS = """
import onnxruntime_extensions as extensions
print(extensions.onnx_op is extensions.Opdef.declare, extensions.OrtPyFunction.__name__)
"""
needs_compiled_ops = pytest.mark.skipif(
    bool(unavailable_reason()), reason=f"no compiled ops: {unavailable_reason()}"
)


# --- What is imported ---


def test_import_imports_no_heavy_package_and_changes_no_environment_variable(
    tmp_path: Path,
) -> None:
    """onnxruntime-extensions imports PyTorch, and sets a variable that makes protobuf slow."""
    for name in HEAVY_PACKAGES:
        (tmp_path / f"{name}.py").write_text("print(__name__, 'is imported')")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PROTOCOL_BUFFERS")
    }
    script = f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
before = dict(os.environ)
import ort_gridsample as ogs
ogs.register()
print([n for n in sys.modules if n.split(".")[0] in {HEAVY_PACKAGES}], before == dict(os.environ))
"""
    assert run_script(script, env=environment) == ["[] True"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize(
    "imports",
    [
        "import torch\nimport sys, ort_gridsample",
        "import sys, ort_gridsample\nassert 'torch' not in sys.modules\nimport torch",
    ],
    ids=["torch first", "torch after"],
)
def test_pytorch_may_be_imported_before_or_after(imports: str) -> None:
    assert run_script(f"{imports}\n{RUN_SESSION}") == [Y_SHAPE]


@needs_python_ops
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
def test_onnxruntime_extensions_may_be_imported_before_or_after(is_first: bool) -> None:
    """The package is complete, and its ops and ours are in one library."""
    environment = {**os.environ, "ORT_GRIDSAMPLE_OPS": "python", "ORT_GRIDSAMPLE_CORE": "numpy"}
    scripts = [IMPORT_EXTENSIONS, RUN_SESSION]
    expected = ["True OrtPyFunction", Y_SHAPE]
    if not is_first:
        scripts.reverse()
        expected.reverse()
    assert run_script(WITHOUT_TORCH + "".join(scripts), environment) == expected


@needs_python_ops
def test_onnxruntime_extensions_imported_in_a_thread_meanwhile_is_complete() -> None:
    lines = run_program("import_extensions_in_thread.py", missing_modules=["torch"])
    assert sorted(lines) == ["1 2 64 64", "True"]


def test_package_has_only_its_public_names() -> None:
    names = {name for name in dir(ogs) if not name.startswith("__")}
    assert names == set(ogs.__all__) - {"__version__"}
    assert all(hasattr(ogs, name) for name in ogs.__all__)


def test_version_is_the_installed_one() -> None:
    assert ogs.__version__ == importlib.metadata.version("ort-gridsample")


@needs_python_ops
def test_older_onnxruntime_extensions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.OLDEST, "onnxruntime-extensions", "99.1")
    message = r"Python ops need .* needs onnxruntime-extensions 99\.1 or newer, and .* is installed"
    with pytest.raises(ImportError, match=message):
        extensions.load()


# --- Without onnxruntime-extensions ---


@needs_compiled_ops
def test_onnxruntime_extensions_are_imported_for_python_ops_only() -> None:
    script = """
import sys, onnxruntime, ort_gridsample as ogs
from support.programs import GRID, X, open_sampling, shape_or_error
def open_compiled_file(model):
    patched = ogs.patch_model(model, target="compiled").SerializeToString()
    return onnxruntime.InferenceSession(patched, ogs.register())
for open_model in (lambda model: ogs.InferenceSession(model, nodes="all")), open_compiled_file:
    shape = shape_or_error(open_sampling(open_model), X, GRID)
    print(shape, any(name.startswith("onnxruntime_extensions") for name in sys.modules))
"""
    assert run_script(script) == [f"{Y_SHAPE} False"] * 2


#: The type of X, the mode and the number of spatial axes; each needs kernels of its own.
CASES = [("float32", "linear", 2), ("float16", "linear", 2), ("uint8", "nearest", 1)]
SLOW_CASES = [
    ("bfloat16", "linear", 2),
    ("float64", "cubic", 3),
    ("int64", "linear", 2),
    ("bool", "nearest", 2),
]


@needs_compiled_ops
@pytest.mark.parametrize("target", ["ort_gridsample", "compiled"])
@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(SLOW_CASES, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_without_onnxruntime_extensions_patched_files_run_on_compiled_ops(
    target: str, cases: list[tuple[str, str, int]]
) -> None:
    """Compiled ops replace Python ops, whose guards and Casts remain."""
    wrong_cases, affine_grid_error, error, shape, is_loaded = run_json_program(
        "patched_files_without_extensions.py",
        target,
        json.dumps(cases),
        missing_modules=["onnxruntime_extensions"],
    )
    assert wrong_cases == []
    assert affine_grid_error < 1e-6
    assert (
        "GridSample node 'sample0': grid is of shape (1, 3, 1), expected N = 2 in axis 0" in error
    )
    assert shape == ["N", "C", "D0_out"]
    assert not is_loaded


@needs_compiled_ops
def test_without_onnxruntime_extensions_strings_are_refused_with_an_error_message() -> None:
    results = run_json_program(
        "strings_without_extensions.py", missing_modules=["onnxruntime_extensions"]
    )
    assert results["function"] == results["lowered model"] == [1, 2, 3, 3]
    assert results["session"].startswith(
        "ImportError: GridSample node 'sample0': X is of type str, and string tensors run on Python"
    )
    message = "string tensors run on Python ops only, which need onnxruntime-extensions"
    assert message in results["patched file"]


@needs_compiled_ops
def test_without_onnxruntime_extensions_attention_runs_in_patched_files() -> None:
    difference, error = run_json_program(
        "attention_without_extensions.py", missing_modules=["onnxruntime_extensions"]
    )
    assert difference < 1e-5
    assert "DeformableAttention node 'a': attention_weights is of shape" in error


def test_without_onnxruntime_extensions_and_numba_everything_but_ops_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = run_json_program(
        "without_ops.py", missing_modules=["onnxruntime_extensions", "numba"]
    )
    assert results["function"] == results["session"] == [1, 2, 3, 3]
    assert results["records"] == 1
    assert results["runs on"] == "onnxruntime"

    module, message = results["register"]
    assert module == "onnxruntime_extensions"
    assert message.startswith("ort_gridsample has no ops to register: compiled ops cannot be")
    assert "'primitives'" in message
    module, message = results["session of all nodes"]
    assert module == "onnxruntime_extensions"
    assert message.startswith("Python ops need onnxruntime-extensions (it is not installed)")
    assert "'primitives'" in message

    status, message = results["commands"].pop("run patched")
    assert status == 2
    assert message.startswith("ort-gridsample: ")
    assert "onnxruntime-extensions" in message
    assert [*results["commands"].values()] == [[0, ""]] * 5
