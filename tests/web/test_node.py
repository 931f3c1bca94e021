"""The page's Python and onnxruntime-web in node: the same bytes and records as here."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import ort_gridsample as ogs
from ort_gridsample.cli.inspect import Row, row_json
from ort_gridsample.dialects.registry import target_names
from support.exported_models import EXPORTED_FOLDER, EXPORTED_MODELS, WITHOUT_NATIVE_KERNELS
from support.models import parsed

PROGRAM = Path(__file__).with_name("run_in_node.mjs")
REFUSED = "kornia_warp_perspective_float64"
NAMES = ("cond_if", REFUSED, "rt_detr_v2", "stn_3d", "stn_bicubic")
MODELS = [EXPORTED_FOLDER / f"{name}.onnx" for name in NAMES]
#: Sentences of onnx contain the path of its source, where it was built.
_BUILD_PATH = re.compile(r"\S*/(?=onnx/\w+)")
Result = dict[str, Any]


def run_in_node(page: Path, folder: Path, models: Sequence[Path], runs: bool) -> list[Result]:
    """Inspect and patch models with the page's Python; return a result for each."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    job = {"models": list(map(str, models)), "targets": target_names(), "runs": runs}
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(job))
    process = subprocess.run(
        [node, str(PROGRAM), str(page), str(job_file)], capture_output=True, text=True, timeout=1500
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.fixture(scope="module")
def results(
    page_folder: Path, index: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Result]:
    """The results of five models by their names."""
    skip_other_onnx(index)
    folder = tmp_path_factory.mktemp("node")
    models = [*MODELS, bfloat16_model(folder)]
    return {result["name"]: result for result in run_in_node(page_folder, folder, models, True)}


def bfloat16_model(folder: Path) -> Path:
    """Write a model whose grid is a constant of bfloat16, a type that the page's NumPy lacks."""
    model = parsed("g (bfloat16[1,1,4,4] X) => (bfloat16[1,1,3,3] Y) { Y = GridSample (X, G) }", 22)
    grid = np.linspace(-1, 1, 18)
    tensor = helper.make_tensor("G", onnx.TensorProto.BFLOAT16, [1, 3, 3, 2], grid)
    model.graph.initializer.append(tensor)
    path = folder / "bfloat16.onnx"
    onnx.save(model, path)
    return path


def skip_other_onnx(index: Any) -> None:
    """Skip a test if the page has another release of onnx, which may write other bytes."""
    versions = {package["name"]: package["version"] for package in index["packages"]}
    if versions["onnx"] != onnx.__version__:
        pytest.skip(f"the page has onnx {versions['onnx']}, and this is {onnx.__version__}")


def patched_here(path: Path) -> dict[str, str]:
    """Return the hash of a model for each target, or the error of the patch."""
    patched = {}
    for target in target_names():
        try:
            content = ogs.patch_model(path, target=target).SerializeToString()
            patched[target] = hashlib.sha256(content).hexdigest()
        except ogs.GridSampleError as error:
            patched[target] = " ".join(str(error).split())
    return patched


def without_build_paths(patched: dict[str, str]) -> dict[str, str]:
    return {target: _BUILD_PATH.sub("", text) for target, text in patched.items()}


def assert_same(result: Result, path: Path) -> None:
    """Check that all patches in node have the same bytes or the same sentence as here."""
    expected = without_build_paths(patched_here(path))
    assert without_build_paths(result["patched"]) == expected, path.stem


@pytest.mark.network
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_patched_models_have_the_same_bytes(results: dict[str, Result], path: Path) -> None:
    assert_same(results[path.stem], path)


@pytest.mark.network
def test_patched_model_with_a_constant_of_bfloat16_has_the_same_bytes(
    results: dict[str, Result], tmp_path: Path
) -> None:
    assert_same(results["bfloat16"], bfloat16_model(tmp_path))


@pytest.mark.network
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_records_are_the_same(results: dict[str, Result], path: Path) -> None:
    expected = [json.loads(json.dumps(row_json(Row(r)))) for r in ogs.inspect_model(path)]
    assert results[path.stem]["records"] == expected


@pytest.mark.network
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_patched_model_has_the_stored_answer_in_onnxruntime_web(
    results: dict[str, Result], path: Path
) -> None:
    comparison = results[path.stem]["comparison"]
    assert comparison["after"] == ""
    assert comparison["agreements"]
    assert all(agreement["agrees"] for agreement in comparison["agreements"])


@pytest.mark.network
def test_model_before_the_patch_runs_if_onnxruntime_has_the_kernels(
    results: dict[str, Result],
) -> None:
    refused = {name for name in NAMES if results[name]["comparison"]["before"]}
    assert refused == set(NAMES) & set(WITHOUT_NATIVE_KERNELS)
    assert "Could not find an implementation" in results[REFUSED]["comparison"]["before"]


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(1600)
def test_all_patches_of_all_models_have_the_same_bytes(
    page_folder: Path, index: Any, tmp_path: Path
) -> None:
    skip_other_onnx(index)
    results = run_in_node(page_folder, tmp_path, EXPORTED_MODELS, runs=False)
    for result, path in zip(results, EXPORTED_MODELS, strict=True):
        assert_same(result, path)
