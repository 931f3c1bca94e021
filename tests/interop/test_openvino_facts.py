"""What the table of runtimes says of OpenVINO, tried in the installed release."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from packaging.version import Version

import ort_gridsample as ogs
from ort_gridsample.detection.runtime_verdicts import verdict_on
from ort_gridsample.graph.runtimes import RUNTIMES
from support.models import parsed

openvino = pytest.importorskip("openvino")
RELEASE = Version(openvino.__version__.split("-")[0])
WORDS = {16: {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}}


def sample(rank: int, mode: str, opset: int, padding_mode: str) -> onnx.ModelProto:
    word = WORDS.get(opset, {}).get(mode, mode)
    dims, lengths = "4567"[:rank], "3" * rank
    return parsed(
        f"""g (float[2,3,{",".join(dims)}] X, float[2,{",".join(lengths)},{rank}] G)
            => (float[2,3,{",".join(lengths)}] Y) {{
            Y = GridSample <mode = "{word}", padding_mode = "{padding_mode}"> (X, G) }}""",
        opset,
    )


def run(model: onnx.ModelProto, feeds: list[np.ndarray], path: Path) -> np.ndarray:
    onnx.save(model, path)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return openvino.Core().compile_model(str(path), "CPU", options)(feeds)[0]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("opset", [16, 20, 22])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_openvino_runs_a_node_unless_there_is_a_fact_against_it(
    rank: int, mode: str, opset: int, padding_mode: str, tmp_path: Path
) -> None:
    model = sample(rank, mode, opset, padding_mode)
    (record,) = ogs.inspect_model(model)
    verdict = verdict_on(RUNTIMES["openvino"], record)
    refusals = [
        fact
        for fact in verdict.facts
        if fact.verdict != "runs" and not (fact.until and Version(fact.until) <= RELEASE)
    ]
    rng = np.random.default_rng(0)
    X = rng.random((2, 3, *(4, 5, 6)[:rank]), np.float32)
    grid = rng.uniform(-1.3, 1.3, (2, *(3,) * rank, rank)).astype(np.float32)
    if refusals:
        with pytest.raises(RuntimeError, match=r"4D|not a member of enum"):
            run(model, [X, grid], tmp_path / "model.onnx")
        return
    output = run(model, [X, grid], tmp_path / "model.onnx")
    expected = ogs.grid_sample(X, grid, mode, padding_mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_openvino_runs_a_model_that_was_written_for_it(
    rank: int, mode: str, padding_mode: str, tmp_path: Path
) -> None:
    model = sample(rank, mode, 22, padding_mode)
    rng = np.random.default_rng(0)
    X = rng.random((2, 3, *(4, 5, 6)[:rank]), np.float32)
    grid = rng.uniform(-1.3, 1.3, (2, *(3,) * rank, rank)).astype(np.float32)
    patched = ogs.patch_model(model, for_runtime="openvino")
    output = run(patched, [X, grid], tmp_path / "model.onnx")
    expected = ogs.grid_sample(X, grid, mode, padding_mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-4)
