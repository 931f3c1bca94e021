"""The command ``patch`` runs a lowered model once, and warns if that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ort_gridsample.cli import main, patch, trial_run
from support.models import parsed

SAMPLE = """g (float[{batch}, 1, 5, 6] x, float[{batch}, {height}, 4, 2] c) => (float[] y) {{
    {before} y = GridSample <mode = "linear"> (x, {grid}) }}"""


def save_model(batch: str = "2", height: str = "3", before: str = "", grid: str = "c") -> None:
    text = SAMPLE.format(batch=batch, height=height, before=before, grid=grid)
    model = parsed(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, "in.onnx")


@pytest.fixture
def warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[], list[str]]:
    """A function that returns the messages of all warnings, in an empty current folder."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.WARNING, "ort_gridsample")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def faulty_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a patch append a Reshape that fails in each run."""
    patch_to = patch.patch_to

    def patch_wrongly(model: onnx.ModelProto, **options: object) -> object:
        result = patch_to(model, **options)
        graph = model.graph
        graph.node[-1].output[0] = "inner"
        graph.node.append(helper.make_node("Reshape", ["inner", "length"], ["y"]))
        graph.initializer.append(numpy_helper.from_array(np.array([7]), "length"))
        return result

    monkeypatch.setattr(patch, "patch_to", patch_wrongly)


def run_patch(target: str, *options: str) -> None:
    main(["patch", "in.onnx", "out.onnx", "--target", target, *options])


@pytest.mark.usefixtures("faulty_lowering")
@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize("target", ["primitives", "ai.onnx-2d"])
def test_patch_to_a_model_that_fails_in_a_run_warns(
    target: str, batch: str, warnings: Callable[[], list[str]]
) -> None:
    save_model(batch)
    if target == "ai.onnx-2d":
        model = parsed("""g (float[1, 1, 4, 5, 6] x, float[1, 2, 3, 4, 3] c) => (float[] y) {
            y = GridSample <mode = "nearest"> (x, c) }""")
        model.graph.output[0].type.tensor_type.ClearField("shape")
        onnx.save(model, "in.onnx")
    run_patch(target)
    (warning,) = warnings()
    assert warning.startswith("in.onnx runs on random inputs, and out.onnx fails on them")
    assert "Reshape" in warning
    assert Path("out.onnx").exists()


@pytest.mark.usefixtures("faulty_lowering")
def test_patch_of_a_model_that_no_random_inputs_fit_does_not_warn(
    warnings: Callable[[], list[str]],
) -> None:
    save_model(
        height="H",
        before="shape = Constant <value_ints = [2, 17, 13, 2]> () r = Reshape (c, shape)",
        grid="r",
    )
    run_patch("primitives")
    assert warnings() == []


@pytest.mark.usefixtures("faulty_lowering")
def test_patch_tries_several_lengths(warnings: Callable[[], list[str]]) -> None:
    """Only the last lengths that are tried fit the source."""
    save_model(
        height="H",
        before="shape = Constant <value_ints = [2, 16, 16, 2]> () r = Reshape (c, shape)",
        grid="r",
    )
    run_patch("primitives")
    assert len(warnings()) == 1


@pytest.mark.usefixtures("faulty_lowering")
def test_patch_of_a_model_of_large_inputs_does_not_run_it(
    warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "MAX_ELEMENTS", 50)
    save_model()
    run_patch("primitives")
    assert warnings() == []


@pytest.mark.parametrize("batch", ["2", "N"])
def test_patch_to_a_model_that_runs_does_not_warn(
    batch: str, warnings: Callable[[], list[str]]
) -> None:
    save_model(batch)
    run_patch("primitives")
    run_patch("primitives", "--opset", "11")
    assert warnings() == []


def test_patch_of_a_model_that_only_a_session_runs_does_not_warn(
    warnings: Callable[[], list[str]],
) -> None:
    onnx.save(
        parsed("""g (uint8[2, 1, 5, 6] x, float[2, 3, 4, 2] c) => (uint8[N, C, H, W] y) {
            y = GridSample <mode = "nearest"> (x, c) }"""),
        "in.onnx",
    )
    run_patch("primitives")
    assert warnings() == []
