"""onnx's own evaluator and OpenVINO with this package's operators: the function's answers, there bit for bit."""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import onnx
import pytest
from onnx import inliner, parser
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.dialects.registry import target_names
from support import faults
from support.cases import (
    ATTRIBUTES,
    RANKS,
    SESSION_TYPES,
    SHAPES,
    Attributes,
    Case,
    dtype_of,
    generator,
    image,
    is_defined,
)
from support.compare import about, assert_identical, refusal
from support.foreign_nodes import DIALECTS, GRID3, X3, feeds_of, sampler
from support.graphs import GRID, HEADER, MODELS, SIGNATURE, X
from support.models import affine_grid_model, grid_sample_model, loose, parsed
from support.paths import function_answer, open_native

pytestmark = pytest.mark.usefixtures("numpy_core")


def run(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """All outputs of ``model``; bfloat16 travels as float32, as NumPy knows none."""
    evaluator = ReferenceEvaluator(model, new_ops=ogs.reference_ops())
    return evaluator.run(None, dict(zip(evaluator.input_names, map(carried, inputs), strict=True)))


def carried(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


def read(model: onnx.ModelProto):
    """OpenVINO's model, in which functions are inlined."""
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    core = openvino.Core()
    core.add_extension(ogs.openvino_extensions())
    return core.read_model(inliner.inline_local_functions(model).SerializeToString(), b"")


def run_openvino(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """As :func:`run`."""
    converted = read(model)
    compiled = (
        importlib.import_module("openvino").Core().compile_model(converted, "CPU", IN_FLOAT32)
    )
    feeds = dict(
        zip([value.name for value in model.graph.input], map(carried, inputs), strict=True)
    )
    return list(
        compiled([feeds[each.get_friendly_name()] for each in converted.get_parameters()]).values()
    )


#: What a runner is given: the model, or what a patch makes of it.
TARGETS = ["", "ort_gridsample", "compiled", "ai.onnx"]
FLOATS = [name for name in spec.FLOATS if not (name == "bfloat16" and faults.NO_BFLOAT16_ARRAYS)]
NUMBERS = [name for name in SESSION_TYPES if name != "str"]
IN_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32"}
#: For OpenVINO: every type, the ranks in turn, and every rank.
KINDS = (
    [(name, RANKS[i % 3]) for i, name in enumerate(NUMBERS)]
    + [("float32", r) for r in RANKS]
    + [("uint8", 2)]
)


def patched(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    return ogs.patch_model(model, target=target) if target else model


@pytest.mark.parametrize(
    "X_type", [name for name in spec.TYPES if name in FLOATS or name not in spec.FLOATS]
)
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
        for case, Y in zip(
            cases, run(patched(model, target), cases[0].X, cases[0].grid), strict=True
        ):
            with about(f"{case}, opset {opset}, {target}"):
                assert_identical(Y.astype(cases[0].X.dtype), function_answer(case, "numpy"))


@pytest.mark.parametrize(("X_type", "rank"), KINDS)
@pytest.mark.parametrize("target", TARGETS[1:3])
def test_openvino_answers_as_the_function(X_type: str, rank: int, target: str) -> None:
    """At positions not far outside, where OpenVINO's own answers go wrong, and on no tie."""
    attributes = [
        each
        for each in ATTRIBUTES
        if is_defined(X_type, each.mode) and (each.mode != "cubic" or rank < 4)
    ]
    pixels = np.ascontiguousarray(image(X_type, SHAPES[rank].X)[:, :1])
    grid = generator("OpenVINO", rank).uniform(-1.4, 1.4, SHAPES[rank].grid).astype(np.float32)
    model = ogs.patch_model(grid_sample_model(X_type, "float32", rank, attributes), target=target)
    own = (
        [each for each in attributes if each.mode == "nearest" or X_type in spec.FLOATS]
        if rank == 2
        else []
    )
    assert [op.get_type_name() for op in read(model).get_ops()].count("GridSample") == len(own)
    for each, Y in zip(attributes, run_openvino(model, pixels, grid), strict=True):
        expected = ogs.grid_sample(pixels, grid, *astuple(each))
        error = {"float16": 2e-3, "bfloat16": 2e-2}.get(X_type, 1e-5) * float(
            np.abs(pixels.astype(np.float64)).max()
        )
        error = error if X_type in spec.FLOATS else 0  # integers are truncated
        assert np.abs(Y.astype(np.float64) - expected.astype(np.float64)).max() <= error, str(each)


AFFINE = [*itertools.product([run], FLOATS, TARGETS[:3])]
AFFINE += itertools.product([run_openvino], ("float32", "float64", "float16"), TARGETS[1:3])


@pytest.mark.parametrize(("runner", "theta_type", "target"), AFFINE)
def test_affine_grid(runner: Callable[..., list[np.ndarray]], theta_type: str, target: str) -> None:
    for rank, align_corners in itertools.product((2, 3), (False, True)):
        size = np.array([2, 3, 1, 4, 5][: rank + 2])
        theta = (
            np.random.default_rng(rank)
            .normal(size=(2, rank, rank + 1))
            .astype(dtype_of(theta_type))
        )
        (found,) = runner(
            patched(affine_grid_model(theta_type, rank, align_corners), target), theta, size
        )
        expected = ogs.affine_grid(theta, size, align_corners)
        with about((rank, align_corners)):
            if runner is run:
                assert_identical(found.astype(theta.dtype), expected)
            else:
                np.testing.assert_allclose(
                    found, expected, rtol=0, atol=1e-2 if theta_type == "float16" else 1e-5
                )


def test_other_dialects() -> None:
    """All but a plugin's operator in a domain of somebody's own."""
    for dialect, model in DIALECTS.items():
        if model.graph.node[0].domain not in ("custom.plugins", "myonnx_plugin"):
            image, grid = feeds_of(model).values()
            with about(dialect):
                assert_identical(
                    run(model, image, grid)[0],
                    ogs.grid_sample(image, grid, "linear", "border", True),
                )
    model = sampler(
        "GridSample3D", "trt.plugins", axes=3, interpolation_mode=1, padding_mode=2, align_corners=0
    )
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


@pytest.mark.parametrize("none", range(4))
def test_openvino_takes_lengths_of_0(none: int) -> None:
    size = np.array([0 if axis == none else 2 + axis for axis in range(4)])
    theta = np.zeros((size[0], 2, 3), np.float32)
    (found,) = run_openvino(ogs.patch_model(affine_grid_model("float32", 2, False)), theta, size)
    assert found.shape == ogs.affine_grid(theta, size, False).shape
    X, grid = (
        np.zeros(shape, np.float32) for shape in ((*size[:2], 4, 5), (size[0], *size[2:], 2))
    )
    for X_type, mode in itertools.product(("float32", "int32"), ("nearest", "linear")):
        model = ogs.patch_model(grid_sample_model(X_type, "float32", 2, [Attributes(mode)]))
        assert (
            run_openvino(model, X.astype(X_type), grid)[0].shape
            == ogs.grid_sample(X, grid, mode).shape
        )


def test_an_image_known_to_have_no_pixels_in_openvino() -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes("linear")])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 0
    feeds = np.ones((1, 1, 0, 5), np.float32), np.zeros((1, 3, 4, 2), np.float32)
    (found,) = run_openvino(ogs.patch_model(model), *feeds)
    assert found.shape == (1, 1, 3, 4)
    assert not found.any()


@pytest.mark.parametrize("graph", GRAPHS)
def test_bodies_and_functions(graph: str) -> None:
    """Nodes in If, Loop and Scan bodies, and in functions, which the evaluator takes inlined, patched to any target."""
    if graph == "Scan" and faults.SCAN_SEES_NOTHING:
        pytest.skip("onnx's evaluator shows a Scan's body nothing from outside")
    assert_answers_as_native(GRAPHS[graph], run, ["", *target_names()])


@pytest.mark.parametrize(
    "graph", [name for name in GRAPHS if name != "Scan"]
)  # which OpenVINO does not read
def test_bodies_and_functions_in_openvino(graph: str) -> None:
    assert_answers_as_native(GRAPHS[graph], run_openvino, TARGETS[1:3])


def assert_answers_as_native(
    text: str, runner: Callable[..., list[np.ndarray]], targets: list[str]
) -> None:
    model = parser.parse_model(text)
    native = open_native(model)
    inlined = {each: inliner.inline_local_functions(patched(model, each)) for each in targets}
    for target, condition in itertools.product(targets, (False, True)):
        inputs = X, GRID, np.array(condition)
        (expected,) = native.run(None, dict(zip("XGc", inputs, strict=True)))
        with about((target, condition)):
            np.testing.assert_allclose(
                runner(inlined[target], *inputs)[0], expected, rtol=1e-5, atol=1e-4
            )


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


def test_openvino_is_told_in_words_what_cannot_be() -> None:
    strings = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
    unknown_axes = loose(grid_sample_model("int32", "float32", 2, [Attributes()]))
    expected = "X is of type str, expected another type, as OpenVINO has no strings"
    for model, said in ((strings, expected), (unknown_axes, "sample0: X is of unknown rank")):
        with pytest.raises(RuntimeError, match="GridSampleError") as caught:
            read(ogs.patch_model(model))
        assert said in str(caught.value)
