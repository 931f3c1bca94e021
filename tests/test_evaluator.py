"""onnx's own evaluator with this package's operators: the function's answers, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from functools import cache

import numpy as np
import onnx
import pytest
from onnx import inliner, parser
from onnx.reference import ReferenceEvaluator

import faults
import ort_gridsample as ogs
from cases import ATTRIBUTES, Attributes, Case, by_types_and_rank, dtype_of, is_defined, matrix, positions
from compare import about, assert_identical, assert_matches
from models import affine_grid_model, grid_sample_model
from ort_gridsample import spec
from ort_gridsample.model.patch import targets
from paths import function_answer, open_native
from test_patch import GRID, X
from test_patch import MODELS as GRAPHS
from test_targets import GRID3, X3, sampler, with_constants

MATRIX = by_types_and_rank(matrix())


def run(model: onnx.ModelProto, *inputs: np.ndarray, own: bool = False) -> list[np.ndarray]:
    """All outputs of ``model``; bfloat16 travels as float32, as NumPy knows none."""
    if faults.NO_BFLOAT16_ARRAYS and any(value.dtype.name == "bfloat16" for value in inputs):
        pytest.skip("onnx's evaluator has no bfloat16 arrays yet")
    evaluator = ReferenceEvaluator(model, new_ops=None if own else ogs.reference_ops())
    carried = [value.astype(np.float32) if value.dtype.name == "bfloat16" else value for value in inputs]
    return evaluator.run(None, dict(zip(evaluator.input_names, carried, strict=True)))


@cache
def answers(core: str, X_type: str, grid_type: str, rank: int, opset: int = 22, target: str = "") -> dict:
    """What one model answers that holds a node for each mode, padding and alignment, as it is or patched."""
    attributes = [each for each in ATTRIBUTES if is_defined(X_type, each.mode)]
    model = grid_sample_model(X_type, grid_type, rank, attributes, opset)
    if target:
        model = ogs.patch_model(model, target=target)
    image = Case(X_type, grid_type, rank, attributes[0]).X
    found = run(model, image, positions(grid_type, rank))
    return dict(zip(attributes, [Y.astype(image.dtype) for Y in found], strict=True))


@pytest.mark.parametrize("group", MATRIX)
def test_answers_as_the_function(group: str, core: str) -> None:
    for case in MATRIX[group]:
        with about(case):
            Y = answers(core, case.X_type, case.grid_type, case.rank)[case.attributes]
            assert_identical(Y, function_answer(case, core))


@pytest.mark.parametrize("opset", [16, 20])
@pytest.mark.parametrize("X_type", [name for name in spec.TYPES if name != "bfloat16"])
def test_older_opsets_answer_as_the_newest(X_type: str, opset: int, core: str) -> None:
    expected = answers(core, X_type, "float32", 2)
    for attributes, Y in answers(core, X_type, "float32", 2, opset).items():
        assert_identical(Y, expected[attributes])


@pytest.mark.parametrize("target", ["ort_gridsample", "compiled", "ai.onnx"])
@pytest.mark.parametrize("X_type", [name for name, each in spec.TYPES.items() if each.carrier is not None])
def test_patched_models_answer_the_same(X_type: str, target: str, core: str) -> None:
    expected = answers(core, X_type, "float32", 3)
    for attributes, Y in answers(core, X_type, "float32", 3, target=target).items():
        assert_identical(Y, expected[attributes])


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("theta_type", spec.FLOATS)
@pytest.mark.parametrize("target", ["", "ort_gridsample", "compiled"])
def test_affine_grid(theta_type: str, rank: int, align_corners: bool, target: str, core: str) -> None:
    theta = np.random.default_rng(rank).normal(size=(2, rank, rank + 1)).astype(np.float32)
    model, size = affine_grid_model(theta_type, rank, align_corners), np.array([2, 3, 1, 4, 5][: rank + 2])
    expected = ogs.affine_grid(theta.astype(dtype_of(theta_type)), size, align_corners)
    inputs = [theta.astype(expected.dtype), size]
    (found,) = run(ogs.patch_model(model, target=target) if target else model, *inputs)
    assert_identical(found.astype(expected.dtype), expected)


def test_is_right_where_the_evaluator_s_own_is_wrong() -> None:
    """Its own clips the coordinate before it takes cubic's taps, and stores the weights in an integer X's type."""
    case = Case("float32", "float32", 2, Attributes("cubic", "border", False))
    inside = np.random.default_rng(0).uniform(-1.2, 1.2, case.grid.shape).astype(np.float32)
    model = grid_sample_model("float32", "float32", 2, [case.attributes])
    (theirs,), (ours,) = run(model, case.X[:, :1], inside, own=True), run(model, case.X[:, :1], inside)
    expected = ogs.grid_sample(case.X[:, :1], inside, *astuple(case.attributes))
    assert np.abs(theirs - expected).max() > 0.01
    assert_identical(ours, expected)
    assert_matches(function_answer(case, ogs.get_core()), case.expected, case.grid.dtype, "cubic", "border")


DIALECTS = {
    "com.microsoft": sampler("GridSample", "com.microsoft", mode="bilinear", padding_mode="border", align_corners=1),
    **{
        f"{domain}::{op_type}": sampler(op_type, domain, interpolation_mode=0, padding_mode=1, align_corners=1)
        for domain, op_type in (("mmcv", "grid_sampler"), ("mmdeploy", "grid_sampler"), ("trt.plugins", "GridSampler"))
    },
    "GridSampler": sampler("GridSampler", "", interpolation_mode=0, padding_mode=1, align_corners=1),
    "aten, inputs": with_constants("grid_sampler_2d", "aten"),
    "ATen": with_constants("ATen", "org.pytorch.aten", operator="grid_sampler"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_other_dialects(dialect: str) -> None:
    image, grid = X3[:, :, 0], np.ascontiguousarray(GRID3[:, 0, ..., :2])
    assert_identical(run(DIALECTS[dialect], image, grid)[0], ogs.grid_sample(image, grid, "linear", "border", True))


def test_a_dialect_in_three_axes() -> None:
    model = sampler("GridSample3D", "trt.plugins", axes=3, interpolation_mode=1, padding_mode=2, align_corners=0)
    assert_identical(run(model, X3, GRID3)[0], ogs.grid_sample(X3, GRID3, "nearest", "reflection"))


def test_the_size_of_an_aten_grid_is_an_attribute() -> None:
    model = parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 16, "aten": 1]>
        g (float[N, 2, 3] theta) => (float[N, H, W, 2] grid) {
            grid = aten.affine_grid_generator <size = [2, 1, 3, 4], align_corners = 1> (theta)
        }
        """
    )
    theta = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    assert_identical(run(model, theta)[0], ogs.affine_grid(theta, (2, 1, 3, 4), True))


@pytest.mark.parametrize("condition", [False, True])
@pytest.mark.parametrize("target", ["", *targets()])
@pytest.mark.parametrize("graph", GRAPHS)
def test_bodies_and_functions(graph: str, target: str, condition: bool) -> None:
    """Nodes in If, Loop and Scan bodies, and in functions, which the evaluator takes inlined."""
    model = parser.parse_model(GRAPHS[graph])
    inputs = X, GRID, np.array(condition)
    if graph == "Scan" and faults.SCAN_SEES_NOTHING:
        pytest.skip("onnx's evaluator shows a Scan's body nothing from outside yet")
    expected = open_native(model).run(None, dict(zip("XGc", inputs, strict=True)))[0]
    patched = ogs.patch_model(model, target=target) if target else model
    found = run(inliner.inline_local_functions(patched), *inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", ["", *targets()])
def test_functions_are_right_inlined(target: str) -> None:
    """Where the evaluator's own operator is wrong."""
    model = parser.parse_model(
        """
        <ir_version: 10, opset_import: ["": 20, "local": 1]>
        g (float[N,C,H,W] X, float[N,h,w,2] G) => (float[N,C,h,w] Y) { Y = local.warp <p = "border"> (X, G) }
        <domain: "local", opset_import: ["": 20]> warp <p: string = "zeros"> (A, B) => (C) {
            C = GridSample <mode = "cubic", padding_mode: string = @p> (A, B) }
        """
    )
    patched = ogs.patch_model(model, target=target) if target else model
    (found,) = run(inliner.inline_local_functions(patched), X, GRID)
    np.testing.assert_allclose(found, ogs.grid_sample(X, GRID, "cubic", "border"), rtol=1e-5, atol=1e-4)


WRONG: dict[str, tuple[onnx.ModelProto, Sequence[np.ndarray], str]] = {
    "attribute": (
        sampler("GridSample", "", 20, mode="bilinear"),
        (X, GRID),
        "GridSample node 'warp': mode is 'bilinear', expected 'linear', 'nearest' or 'cubic'",
    ),
    "shape": (
        sampler("GridSample", "", 20),
        (X, GRID[..., :1]),
        "GridSample node 'warp': grid is of shape",
    ),
    "shape, patched": (
        ogs.patch_model(sampler("GridSample", "", 20)),
        (X, GRID[..., :1]),
        "GridSample node 'warp': grid is of shape",
    ),
    "another operator": (
        sampler("ATen", "aten", operator="roll"),
        (X, GRID),
        "ATen node 'warp': operator is 'roll', expected grid_sampler or affine_grid_generator",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said(wrong: str) -> None:
    model, inputs, said = WRONG[wrong]
    with pytest.raises(ogs.GridSampleError) as caught:
        run(model, *inputs)
    assert str(caught.value).startswith(said)
    if "mode" in said:
        assert str(caught.value) == said
