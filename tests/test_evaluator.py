"""onnx's own evaluator with this package's operators: the function's answers, bit for bit."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import inliner, parser
from onnx.reference import ReferenceEvaluator

import faults
import ort_gridsample as ogs
from cases import ATTRIBUTES, RANKS, Case, dtype_of, is_defined
from compare import about, assert_identical, refusal
from models import affine_grid_model, grid_sample_model, parsed
from ort_gridsample import spec
from ort_gridsample.model.patch import targets
from paths import function_answer, open_native
from test_patch import GRID, HEADER, MODELS, SIGNATURE, X
from test_targets import DIALECTS, GRID3, X3, feeds_of, sampler

pytestmark = pytest.mark.usefixtures("numpy_core")


def run(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """All outputs of ``model``; bfloat16 travels as float32, as NumPy knows none."""
    evaluator = ReferenceEvaluator(model, new_ops=ogs.reference_ops())
    carried = [value.astype(np.float32) if value.dtype.name == "bfloat16" else value for value in inputs]
    return evaluator.run(None, dict(zip(evaluator.input_names, carried, strict=True)))


#: What the evaluator is given: the model, or what a patch makes of it.
TARGETS = ["", "ort_gridsample", "compiled", "ai.onnx"]
FLOATS = [name for name in spec.FLOATS if not (name == "bfloat16" and faults.NO_BFLOAT16_ARRAYS)]


def patched(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    return ogs.patch_model(model, target=target) if target else model


@pytest.mark.parametrize("X_type", [name for name in spec.TYPES if name in FLOATS or name not in spec.FLOATS])
def test_answers_as_the_function(X_type: str) -> None:
    """With each type of grid; ranks, opsets and targets in turns."""
    attributes = [each for each in ATTRIBUTES if is_defined(X_type, each.mode)]
    turn = list(spec.TYPES).index(X_type)
    for i, grid_type in enumerate(FLOATS):
        rank = RANKS[(turn + i) % 4]
        opset = 22 if "bfloat16" in (X_type, grid_type) else (16, 20, 22)[(turn + i) % 3]
        target = TARGETS[(turn // 4 + i) % 4] if spec.TYPES[X_type].transport is not None else ""
        model = grid_sample_model(X_type, grid_type, rank, attributes, opset)
        cases = [Case(X_type, grid_type, rank, each) for each in attributes]
        for case, Y in zip(cases, run(patched(model, target), cases[0].X, cases[0].grid), strict=True):
            with about(f"{case}, opset {opset}, {target}"):
                assert_identical(Y.astype(cases[0].X.dtype), function_answer(case, "numpy"))


@pytest.mark.parametrize("theta_type", FLOATS)
@pytest.mark.parametrize("target", TARGETS[:3])
def test_affine_grid(theta_type: str, target: str) -> None:
    for rank, align_corners in itertools.product((2, 3), (False, True)):
        theta = np.random.default_rng(rank).normal(size=(2, rank, rank + 1)).astype(np.float32)
        model, size = affine_grid_model(theta_type, rank, align_corners), np.array([2, 3, 1, 4, 5][: rank + 2])
        expected = ogs.affine_grid(theta.astype(dtype_of(theta_type)), size, align_corners)
        (found,) = run(patched(model, target), theta.astype(expected.dtype), size)
        with about((rank, align_corners)):
            assert_identical(found.astype(expected.dtype), expected)


def test_other_dialects() -> None:
    """All but a plugin's operator in a domain of somebody's own."""
    for dialect, model in DIALECTS.items():
        if model.graph.node[0].domain not in ("custom.plugins", "myonnx_plugin"):
            image, grid = feeds_of(model).values()
            with about(dialect):
                assert_identical(run(model, image, grid)[0], ogs.grid_sample(image, grid, "linear", "border", True))
    model = sampler("GridSample3D", "trt.plugins", axes=3, interpolation_mode=1, padding_mode=2, align_corners=0)
    assert_identical(run(model, X3, GRID3)[0], ogs.grid_sample(X3, GRID3, "nearest", "reflection"))


def test_the_size_of_an_aten_grid_is_an_attribute() -> None:
    call = "aten.affine_grid_generator <size = [2, 1, 3, 4], align_corners = 1> (theta)"
    model = parsed(f"g (float[N, 2, 3] theta) => (float[N, H, W, 2] grid) {{ grid = {call} }}", 16)
    theta = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    assert_identical(run(model, theta)[0], ogs.affine_grid(theta, (2, 1, 3, 4), True))


GRAPHS = MODELS | {
    "function, attribute with a default": f"""{HEADER} {SIGNATURE} {{ Y = local.warp <p = "border"> (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp <p: string = "zeros"> (A, B) => (C) {{
            C = GridSample <padding_mode: string = @p> (A, B) }}"""
}
SCAN = pytest.mark.skipif(faults.SCAN_SEES_NOTHING, reason="onnx's evaluator shows a Scan's body nothing from outside")


@pytest.mark.parametrize("graph", [pytest.param(name, marks=SCAN if name == "Scan" else ()) for name in GRAPHS])
def test_bodies_and_functions(graph: str) -> None:
    """Nodes in If, Loop and Scan bodies, and in functions, which the evaluator takes inlined, patched to any target."""
    model = parser.parse_model(GRAPHS[graph])
    native = open_native(model)
    inlined = {each: inliner.inline_local_functions(patched(model, each)) for each in ("", *targets())}
    for condition in (False, True):
        inputs = X, GRID, np.array(condition)
        (expected,) = native.run(None, dict(zip("XGc", inputs, strict=True)))
        for target, each in inlined.items():
            with about((target, condition)):
                np.testing.assert_allclose(run(each, *inputs)[0], expected, rtol=1e-5, atol=1e-4)


def test_what_is_wrong_is_said() -> None:
    right, without = (sampler("GridSample", "", 20) for _ in range(2))
    unnamed = ogs.patch_model(right)
    unnamed.graph.node[0].name = ""  # which the patch wrote into an attribute as well
    without.graph.node[0].name = ""
    del without.graph.node[0].input[1]
    operator = "operator is 'roll', expected grid_sampler or affine_grid_generator"
    mode = "GridSample node 'warp': mode is 'bilinear', expected 'linear', 'nearest' or 'cubic'"
    shape = "GridSample node 'warp': grid is of shape (2, 4, 5, 1), expected shape (N, D1_out, D2_out, 2), as X of "
    for model, grid, said in (
        (sampler("GridSample", "", 20, mode="bilinear"), GRID, mode),
        (right, GRID[..., :1], f"{shape}shape (2, 3, 4, 5) has 2 spatial axes"),
        (unnamed, GRID[..., :1], f"{shape}shape (2, 3, 4, 5) has 2 spatial axes"),
        (without, GRID, "GridSample node '(Y)': grid is missing, expected an input"),
        (sampler("ATen", "aten", operator="roll"), GRID, f"ATen node 'warp': {operator}"),
    ):
        assert str(refusal(run, model, X, grid)) == said
