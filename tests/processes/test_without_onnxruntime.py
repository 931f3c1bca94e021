"""The package where onnxruntime, onnxruntime-extensions and Numba are not installed."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.patching import MISSED_WITHOUT_ONNXRUNTIME
from support.exported_models import EXPORTED_FOLDER, EXPORTED_MODELS
from support.processes import PROGRAMS, run_json_program, run_with_missing_modules

REPOSITORY = Path(__file__).parents[2]
MISSING_MODULES = ("llvmlite", "numba", "onnxruntime", "onnxruntime_extensions")
NEEDS_ONNXRUNTIME = (
    "ort_gridsample needs onnxruntime, and none is installed: pip install onnxruntime (or another "
    "build of it, such as onnxruntime-gpu)"
)
NAMES_WITH_ONNXRUNTIME = {
    "InferenceSession",
    "Placement",
    "build_library",
    "get_ops",
    "keep_sessions_through_forks",
    "quantization_sessions",
    "register",
    "register_provider",
    "set_ops",
}
MODELS = [
    EXPORTED_FOLDER / f"{name}.onnx"
    for name in ("cond_if", "kornia_warp_perspective_float64", "rt_detr_v2", "stn", "stn_3d")
]
TARGETS = ["ort_gridsample", "ai.onnx", "primitives"]
#: A decomposed AffineGrid, which is detected by running it.
DECOMPOSED = EXPORTED_FOLDER / "stn_bicubic.onnx"


def arguments(models: Sequence[Path], targets: Sequence[str]) -> list[str]:
    return [*map(str, models), "to", *targets]


@pytest.fixture(scope="module")
def results() -> Any:
    """What tests/programs/without_onnxruntime.py prints in a process without these modules."""
    return run_json_program(
        "without_onnxruntime.py",
        *arguments([*MODELS, DECOMPOSED], TARGETS),
        missing_modules=MISSING_MODULES,
    )


def patch_result(path: Path, target: str) -> str:
    """Return the hash of a model that is patched with onnxruntime, or the error."""
    try:
        model = ogs.patch_model(path, target=target)
    except ogs.GridSampleError as error:
        return str(error)
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def test_names_that_need_onnxruntime_raise_its_sentence(results: Any) -> None:
    expected = dict.fromkeys(NAMES_WITH_ONNXRUNTIME, f"ImportError: {NEEDS_ONNXRUNTIME}")
    assert results["errors"] == expected


def test_selection_of_unsupported_nodes_raises_the_sentence(results: Any) -> None:
    assert results["unsupported"] == NEEDS_ONNXRUNTIME


def test_reason_states_that_onnxruntime_is_not_installed(results: Any) -> None:
    reasons = results["reasons"]["kornia_warp_perspective_float64"]
    assert reasons == ["unknown, because onnxruntime is not installed"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_patched_model_has_the_same_bytes(results: Any, path: Path, target: str) -> None:
    patched = results["patched"][f"{path.stem} to {target}"]
    assert patched["result"] == patch_result(path, target)


def test_patch_of_a_model_with_open_questions_warns(results: Any) -> None:
    patched = results["patched"][f"{DECOMPOSED.stem} to ort_gridsample"]
    assert patched["warnings"] == f"{MISSED_WITHOUT_ONNXRUNTIME}; this model may have some\n"


def test_patch_of_a_model_without_open_questions_warns_of_nothing(results: Any) -> None:
    patched = results["patched"]["kornia_warp_perspective_float64 to primitives"]
    assert patched["warnings"] == ""


def assert_same_or_warned(results: Any, path: Path, target: str) -> None:
    """Check that a patch without onnxruntime has the same bytes or error, or a warning."""
    patched = results["patched"][f"{path.stem} to {target}"]
    is_same = patched["result"] == patch_result(path, target)
    assert is_same or patched["warnings"], (path.stem, target, patched)


@pytest.mark.slow
def test_every_patch_has_the_same_bytes_or_a_warning() -> None:
    results = run_json_program(
        "without_onnxruntime.py",
        *arguments(EXPORTED_MODELS, target_names()),
        missing_modules=MISSING_MODULES,
    )
    for path in EXPORTED_MODELS:
        for target in target_names():
            assert_same_or_warned(results, path, target)


@pytest.mark.network
@pytest.mark.timeout(600)
def test_environment_of_onnx_and_numpy_alone_patches_with_the_same_bytes(tmp_path: Path) -> None:
    python = tmp_path / ("Scripts" if os.name == "nt" else "bin") / "python"
    requirements = [f"onnx=={onnx.__version__}", f"numpy=={np.__version__}"]
    for command in (
        [sys.executable, "-m", "venv", str(tmp_path)],
        [str(python), "-m", "pip", "install", "--quiet", *requirements],
    ):
        subprocess.run(command, check=True, timeout=300)
    process = subprocess.run(
        [python, PROGRAMS / "without_onnxruntime.py", *arguments(MODELS, TARGETS)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    results = json.loads(process.stdout)
    for path in MODELS:
        for target in TARGETS:
            assert_same_or_warned(results, path, target)


# --- The command line ---


def command(*words: str) -> tuple[int, str, str]:
    """Run a command of the package without these modules; return its status, stdout and stderr."""
    process = run_with_missing_modules([str(PROGRAMS / "command_line.py"), *words], MISSING_MODULES)
    return process.returncode, process.stdout, process.stderr


def test_command_inspect_states_what_is_unknown() -> None:
    status, out, err = command("inspect", str(MODELS[1]))
    assert (status, out.split()[:4]) == (0, ["main", "graph", "node", "operator"])
    assert "unknown [1]" in out
    assert "a session" not in out
    expected = (
        f"{MISSED_WITHOUT_ONNXRUNTIME}; which nodes it runs, and what a session does with them"
    )
    assert expected in err
    assert err.count("\n") == 1


def test_command_inspect_writes_json_without_a_session() -> None:
    status, out, _ = command("inspect", "--json", str(MODELS[1]))
    (record,) = json.loads(out)
    assert (status, record["native"], record["session"]) == (0, False, None)


def test_command_patch_writes_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "patched.onnx"
    status, _, err = command("patch", str(MODELS[3]), str(path), "--target", "primitives")
    assert status == 0, err
    patched = onnx.load(path).SerializeToString(deterministic=True)
    assert hashlib.sha256(patched).hexdigest() == patch_result(MODELS[3], "primitives")


@pytest.mark.parametrize(
    "words",
    [
        ("run", str(MODELS[3])),
        ("patch", "--nodes", "unsupported", str(MODELS[3]), "patched.onnx"),
        ("inspect", "--provider", "CPUExecutionProvider", str(MODELS[3])),
        ("library", "--help"),
    ],
    ids=["run", "patch unsupported", "inspect a provider", "library"],
)
def test_command_that_needs_onnxruntime_prints_the_sentence(words: tuple[str, ...]) -> None:
    status, _, err = command(*words)
    assert status == 2
    assert NEEDS_ONNXRUNTIME in err
