"""Models for TensorRT, parsed and built by TensorRT-RTX. Neither needs a GPU; a run would."""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import onnx
import pytest

import ort_gridsample as ogs
from ort_gridsample.detection.runtime_verdicts import verdict_on
from ort_gridsample.graph.runtimes import RUNTIMES
from runtimes.environments import environment
from runtimes.table import Runtime
from support.exported_models import EXPORTED_MODELS, stored_arrays
from support.models import parsed

PROGRAM = Path(__file__).parents[1] / "programs" / "tensorrt_builder.py"
RTX = Runtime("tensorrt-rtx", "TensorRT-RTX 1.7.1", ("tensorrt_rtx==1.7.1.116",))
# A large package is installed and engines are built, which takes minutes.
pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1200)]
Shapes = dict[str, list[int]]
Build = Callable[[Sequence[tuple[onnx.ModelProto, Shapes]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function that parses models and builds engines, and returns the results."""
    folder = tmp_path_factory.mktemp("tensorrt")
    cache = Path(os.environ.get("ORT_GRIDSAMPLE_RUNTIMES") or folder)
    (python, *_), _ = environment(RTX, cache)

    def build(models: Sequence[tuple[onnx.ModelProto, Shapes]]) -> list[dict[str, Any]]:
        tasks = []
        for index, (model, shapes) in enumerate(models):
            path = folder / f"{index}.onnx"
            onnx.save(model, path)
            tasks.append({"path": str(path), "shapes": shapes})
        done = subprocess.run(
            [python, PROGRAM], input=json.dumps(tasks), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return build


@pytest.mark.parametrize("target", ["ai.onnx-2d", "primitives"])
def test_exported_models_for_tensorrt_are_built(
    target: Literal["ai.onnx-2d", "primitives"], build: Build
) -> None:
    models = [
        (
            ogs.patch_model(path, target=target, for_runtime="tensorrt"),
            {name: [*array.shape] for name, array in stored_arrays(path, "in.").items()},
        )
        for path in EXPORTED_MODELS
    ]
    results = build(models)
    failed = {
        path.stem: result["errors"]
        for path, result in zip(EXPORTED_MODELS, results, strict=True)
        if result["errors"] or not result["bytes"]
    }
    assert failed == {}
    n_samples = sum(len(result["samples"]) for result in results)
    assert (n_samples > 0) == (target == "ai.onnx-2d")


def test_parser_reads_nodes_as_the_facts_say(build: Build) -> None:
    """The modes of opset 20 are read since release 1.6, and 5-D images are sampled."""
    cases = [
        *product((16, 20, 22), (1, 2, 3, 4), ("nearest", "linear", "cubic"), ["float"], ["float"]),
        *product([16], [2], ["linear"], ["float", "float16", "double"], ["float", "float16"]),
        *product([16], [2], ["nearest"], ["int32", "uint8", "int64"], ["float"]),
    ]
    models = []
    for opset, rank, mode, X_type, grid_type in cases:
        word = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode) if opset < 20 else mode
        dims, lengths = ",".join("4567"[:rank]), ",".join("3" * rank)
        text = f"""g ({X_type}[1,2,{dims}] X, {grid_type}[1,{lengths},{rank}] G)
            => ({X_type}[1,2,{lengths}] Y) {{
            Y = GridSample <mode = "{word}", padding_mode = "border"> (X, G) }}"""
        models.append(parsed(text, opset))
    for case, model, result in zip(
        cases, models, build([(model, {}) for model in models]), strict=True
    ):
        (record,) = ogs.inspect_model(model)
        facts = verdict_on(RUNTIMES["tensorrt"], record).facts
        is_refused = any(fact.verdict == "refuses" and not fact.until for fact in facts)
        assert bool(result["errors"]) == is_refused, (case, result)
        if not is_refused:
            assert result["samples"] == [[case[2], "border", 0]], case
            assert result["bytes"], case


def test_affine_grid_is_refused(build: Build) -> None:
    model = parsed(
        """g (float[1,2,3] theta) => (float[1,4,5,2] grid) <int64[4] size = {1, 2, 4, 5}> {
            grid = AffineGrid (theta, size) }""",
        20,
    )
    patched = ogs.patch_model(model, for_runtime="tensorrt")
    refused, built = build([(model, {}), (patched, {})])
    assert refused["errors"]
    assert not built["errors"]
    assert built["bytes"]
