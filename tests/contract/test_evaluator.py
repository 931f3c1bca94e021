"""Test this package's operators in onnx's evaluator (bit for bit) and in OpenVINO."""

import itertools
from collections.abc import Callable
from dataclasses import astuple
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import inliner, parser
from onnx.reference import ReferenceEvaluator

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.patching import TargetName
from support import faults
from support.attention_forms import TENSORRT, Node
from support.cases import (
    ATTRIBUTES,
    RANKS,
    SESSION_TYPES,
    SHAPES,
    Attributes,
    dtype_of,
    generator,
    image,
    is_defined,
)
from support.compare import about, assert_identical, refusal
from support.foreign_nodes import GRID_3D, X_3D, sampler_model
from support.graphs import GRID, HEADER, MODELS, SIGNATURE, X
from support.models import affine_grid_model, grid_sample_model, loose, parsed
from support.openvino_core import openvino_core
from support.paths import open_native

pytestmark = pytest.mark.usefixtures("numpy_core")


Runner = Callable[..., list[np.ndarray]]


def run(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """Run ``model`` in onnx's evaluator, with bfloat16 as float32, which NumPy has."""
    evaluator = ReferenceEvaluator(model, new_ops=ogs.reference_ops())
    values = map(without_bfloat16, inputs)
    return evaluator.run(None, dict(zip(evaluator.input_names, values, strict=True)))


def without_bfloat16(value: np.ndarray) -> np.ndarray:
    return value.astype(np.float32) if value.dtype.name == "bfloat16" else value


@pytest.mark.usefixtures("new_dialects")
def test_evaluator_runs_an_added_dialect_of_the_onnx_domain() -> None:
    """The domain has two names: ai.onnx and the empty string."""
    attributes = {
        "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1}, default="linear"),
        "padding_mode": ogs.Spelling("outside", {"zeros": "constant"}, default="zeros"),
        "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
    }
    ogs.add_dialect(ogs.Dialect("mine", "GridSample", "Warp", ("ai.onnx",), attributes))
    (output,) = run(sampler_model("Warp", "", order=0), X, GRID)
    assert_identical(output, ogs.grid_sample(X, GRID, "nearest"))


def read(model: onnx.ModelProto):
    """Return OpenVINO's model, with inlined functions."""
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
    core = openvino.Core()
    core.add_extension(ogs.openvino_extensions())
    return core.read_model(inliner.inline_local_functions(model).SerializeToString(), b"")


def run_openvino(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    """Run ``model`` in OpenVINO, with bfloat16 as float32."""
    converted = read(model)
    compiled = openvino_core().compile_model(converted, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, map(without_bfloat16, inputs), strict=True))
    ordered = [feeds[parameter.get_friendly_name()] for parameter in converted.get_parameters()]
    return list(compiled(ordered).values())


PACKAGE_TARGETS = ["ort_gridsample", "compiled"]
FLOATS = [name for name in spec.FLOATS if not (name == "bfloat16" and faults.NO_BFLOAT16_ARRAYS)]
NUMBERS = [name for name in SESSION_TYPES if name != "str"]
#: (X type, rank) for OpenVINO: each type with one of the ranks 1 to 3, and float32 with each.
OPENVINO_CASES = [
    *zip(NUMBERS, itertools.cycle(RANKS[:3])),
    *(("float32", rank) for rank in RANKS),
    ("uint8", 2),
]


def patched(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    return ogs.patch_model(model, target=target) if target else model


# Against the functions


@pytest.mark.parametrize(("X_type", "rank"), OPENVINO_CASES)
@pytest.mark.parametrize("target", PACKAGE_TARGETS)
def test_openvino_has_the_outputs_of_the_function(X_type: str, rank: int, target: str) -> None:
    """Not at ties, nor far outside, where OpenVINO's own kernel is wrong."""
    attributes = [
        values
        for values in ATTRIBUTES
        if is_defined(X_type, values.mode) and (values.mode != "cubic" or rank < 4)
    ]
    X = np.ascontiguousarray(image(X_type, SHAPES[rank].X)[:, :1])
    grid = generator("OpenVINO", rank).uniform(-1.4, 1.4, SHAPES[rank].grid).astype(np.float32)
    model = ogs.patch_model(grid_sample_model(X_type, "float32", rank, attributes), target=target)
    n_native = count_native(X_type, rank, attributes)
    operators = [op.get_type_name() for op in read(model).get_ops()]
    assert operators.count("GridSample") == n_native

    relative = {"float16": 2e-3, "bfloat16": 2e-2}.get(X_type, 1e-5)
    atol = relative * float(np.abs(X.astype(np.float64)).max())
    if X_type not in spec.FLOATS:
        atol = 0  # integers are truncated
    for values, Y in zip(attributes, run_openvino(model, X, grid), strict=True):
        expected = ogs.grid_sample(X, grid, *astuple(values)).astype(np.float64)
        assert np.abs(Y.astype(np.float64) - expected).max() <= atol, str(values)


def count_native(X_type: str, rank: int, attributes: list[Attributes]) -> int:
    """Return how many nodes run on OpenVINO's own GridSample."""
    if rank != 2:
        return 0
    if X_type in spec.FLOATS:
        return len(attributes)
    return sum(values.mode == "nearest" for values in attributes)


AFFINE_GRID_CASES = [
    *itertools.product([run], FLOATS, ["", *PACKAGE_TARGETS]),
    *itertools.product([run_openvino], ("float32", "float64", "float16"), PACKAGE_TARGETS),
]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize(("runner", "theta_type", "target"), AFFINE_GRID_CASES)
def test_affine_grid_has_the_outputs_of_the_function(
    runner: Runner, theta_type: str, target: str, rank: int, align_corners: bool
) -> None:
    dtype = dtype_of(theta_type)
    size = np.array([2, 3, 1, 4, 5][: rank + 2])
    theta = np.random.default_rng(rank).normal(size=(2, rank, rank + 1)).astype(dtype)
    model = patched(affine_grid_model(theta_type, rank, align_corners), target)
    (grid,) = runner(model, theta, size)
    expected = ogs.affine_grid(theta, size, align_corners)
    if runner is run:
        assert_identical(grid.astype(dtype), expected)
    else:
        atol = 1e-2 if theta_type == "float16" else 1e-5
        np.testing.assert_allclose(grid, expected, rtol=0, atol=atol)


def test_evaluator_runs_tensorrts_plugin_of_volumes() -> None:
    attributes = {"interpolation_mode": 1, "padding_mode": 2, "align_corners": 0}
    model = sampler_model("GridSample3D", "trt.plugins", axes=3, **attributes)
    (Y,) = run(model, X_3D, GRID_3D)
    assert_identical(Y, ogs.grid_sample(X_3D, GRID_3D, "nearest", "reflection"))


def test_evaluator_reads_the_size_of_an_aten_grid_from_an_attribute() -> None:
    call = "aten.affine_grid_generator <size = [2, 1, 3, 4], align_corners = 1> (theta)"
    model = parsed(f"g (float[N, 2, 3] theta) => (float[N, H, W, 2] grid) {{ grid = {call} }}", 16)
    theta = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    assert_identical(run(model, theta)[0], ogs.affine_grid(theta, (2, 1, 3, 4), True))


def test_evaluator_of_inconsistent_level_starts_raises() -> None:
    node = Node(f"trt.plugins.{TENSORRT}", "fed")
    feeds = node.feeds | {"starts": node.feeds["starts"] + 1}
    error = refusal(run, node.model, *(feeds[value.name] for value in node.model.graph.input))
    assert error.argument == "level_start_index"
    assert error.found == "inconsistent with spatial_shapes"


# Lengths of 0


every_empty_axis = pytest.mark.parametrize("empty_axis", range(4))


def size_with_empty_axis(empty_axis: int) -> list[int]:
    size = [2, 3, 4, 5]
    size[empty_axis] = 0
    return size


@every_empty_axis
def test_openvino_affine_grid_of_an_empty_axis_has_its_shape(empty_axis: int) -> None:
    size = size_with_empty_axis(empty_axis)
    theta = np.zeros((size[0], 2, 3), np.float32)
    model = ogs.patch_model(affine_grid_model("float32", 2, False))
    (grid,) = run_openvino(model, theta, np.array(size))
    assert grid.shape == ogs.affine_grid(theta, size, False).shape


@every_empty_axis
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("X_type", ["float32", "int32"])
def test_openvino_grid_sample_of_an_empty_axis_has_its_shape(
    X_type: str, mode: str, empty_axis: int
) -> None:
    n, c, *output = size_with_empty_axis(empty_axis)
    X = np.zeros((n, c, 4, 5), X_type)
    grid = np.zeros((n, *output, 2), np.float32)
    model = ogs.patch_model(grid_sample_model(X_type, "float32", 2, [Attributes(mode)]))
    (Y,) = run_openvino(model, X, grid)
    assert Y.shape == (n, c, *output)


def test_openvino_image_without_pixels_is_zeros() -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes("linear")])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 0
    X = np.ones((1, 1, 0, 5), np.float32)
    grid = np.zeros((1, 3, 4, 2), np.float32)
    (Y,) = run_openvino(ogs.patch_model(model), X, grid)
    assert Y.shape == (1, 1, 3, 4)
    assert not Y.any()


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_openvino_image_of_unknown_height_without_pixels_is_zeros(mode: str) -> None:
    """OpenVINO's own operator would read memory outside of X."""
    model = grid_sample_model("float32", "float32", 2, [Attributes(mode)])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    X = np.ones((1, 1, 0, 5), np.float32)
    grid = np.zeros((1, 3, 4, 2), np.float32)
    (Y,) = run_openvino(ogs.patch_model(model), X, grid)
    assert Y.shape == (1, 1, 3, 4)
    assert not Y.any()


# Bodies and functions

GRAPHS = MODELS | {
    "function, attribute with a default": f"""{HEADER} {SIGNATURE} {{
            Y = local.warp <p = "border"> (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp <p: string = "zeros"> (A, B) => (C) {{
            C = GridSample <padding_mode: string = @p> (A, B) }}"""
}


@pytest.mark.parametrize("target", ["", *get_args(TargetName)])
@pytest.mark.parametrize("graph", GRAPHS)
def test_evaluator_runs_nodes_in_bodies_and_functions(graph: str, target: str) -> None:
    """Patched to any target. The evaluator gets inlined functions."""
    if graph == "Scan" and faults.SCAN_SEES_NOTHING:
        pytest.skip("in this onnx's evaluator, the body of a Scan cannot read outer values")
    assert_outputs_of_onnxruntime(GRAPHS[graph], run, target)


@pytest.mark.parametrize("target", PACKAGE_TARGETS)
@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "Scan"])
def test_openvino_runs_nodes_in_bodies_and_functions(graph: str, target: str) -> None:
    """OpenVINO does not read this Scan."""
    assert_outputs_of_onnxruntime(GRAPHS[graph], run_openvino, target)


#: A function whose caller passes opset 16's word for a mode.
MODE_OF_CALLER = """
    <ir_version: 8, opset_import: ["" : 16, "local" : 1]>
    main (TYPE[2, 3, 4, 5] X, float[2, 4, 5, 2] G) => (TYPE[2, 3, 4, 5] Y) {
        Y = local.warp <m = "bilinear"> (X, G) }
    <domain: "local", opset_import: ["" : 16]> warp <m> (A, B) => (C) {
        C = GridSample <mode: string = @m> (A, B) }"""


@pytest.mark.parametrize("X_type", ["float32", "int32"])
@pytest.mark.parametrize("runner", [run, run_openvino])
def test_python_op_with_the_older_word_for_a_mode_samples_in_that_mode(
    runner: Runner, X_type: str
) -> None:
    """A patch does not replace the word, because the op accepts it."""
    onnx_type = "float" if X_type == "float32" else X_type
    model = parser.parse_model(MODE_OF_CALLER.replace("TYPE", onnx_type))
    inlined = inliner.inline_local_functions(ogs.patch_model(model, target="ort_gridsample"))
    (op,) = (node for node in inlined.graph.node if node.domain)
    assert b"bilinear" in [attribute.s for attribute in op.attribute]
    values = (100 * X).astype(X_type)
    (Y,) = runner(inlined, values, GRID)
    np.testing.assert_allclose(Y, ogs.grid_sample(values, GRID, "linear"), rtol=1e-5, atol=1e-4)


def assert_outputs_of_onnxruntime(text: str, runner: Runner, target: str) -> None:
    """Assert that a model has onnxruntime's outputs after a patch to ``target``."""
    model = parser.parse_model(text)
    native = open_native(model)
    inlined = inliner.inline_local_functions(patched(model, target))
    for condition in (False, True):
        inputs = X, GRID, np.array(condition)
        (expected,) = native.run(None, dict(zip("XGc", inputs, strict=True)))
        (Y,) = runner(inlined, *inputs)
        with about(condition):
            np.testing.assert_allclose(Y, expected, rtol=1e-5, atol=1e-4)


# Errors


def without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.node[0].name = ""
    return model


def without_grid(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.node[0].input[1]
    return model


GRID_SAMPLE = sampler_model("GridSample", "", 20)
WRONG_GRID = GRID[..., :1]
AS_X = "as X of shape (2, 3, 4, 5) has 2 spatial axes"
WRONG_SHAPE = (
    "GridSample node 'warp'",
    "grid",
    "of shape (2, 4, 5, 1)",
    f"shape (N, D1_out, D2_out, 2), {AS_X}",
)
#: A model, a grid, and the parts of the error.
MISTAKES = {
    "mode": (
        sampler_model("GridSample", "", 20, mode="bilinear"),
        GRID,
        (
            "GridSample node 'warp'",
            "mode",
            "'bilinear'",
            "'linear', 'nearest' or 'cubic'; 'bilinear' is called 'linear' in this opset",
        ),
    ),
    "grid": (GRID_SAMPLE, WRONG_GRID, WRONG_SHAPE),
    # The patch writes the name into an attribute as well.
    "grid of a patched node without a name": (
        without_names(ogs.patch_model(GRID_SAMPLE)),
        WRONG_GRID,
        WRONG_SHAPE,
    ),
    "missing input": (
        without_names(without_grid(sampler_model("GridSample", "", 20))),
        GRID,
        ("GridSample node with output 'Y'", "grid", "missing", "an input"),
    ),
    "ATen operator": (
        sampler_model("ATen", "aten", operator="roll"),
        GRID,
        ("ATen node 'warp'", "operator", "'roll'", "grid_sampler or affine_grid_generator"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_evaluator_of_a_wrong_model_or_grid_raises(mistake: str) -> None:
    model, grid, (where, argument, found, expected) = MISTAKES[mistake]
    error = refusal(run, model, X, grid)
    assert (error.where, error.argument) == (where, argument)
    assert (error.found, error.expected) == (found, expected)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            grid_sample_model("str", "float32", 2, [Attributes("nearest")]),
            "X is of type str, expected another type, as OpenVINO has no strings",
        ),
        (
            loose(grid_sample_model("int32", "float32", 2, [Attributes()])),
            "GridSample node 'sample0': X is of unknown rank",
        ),
    ],
    ids=["strings", "unknown rank"],
)
def test_openvino_of_an_unsupported_model_raises(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(RuntimeError, match="GridSampleError") as raised:
        read(ogs.patch_model(model))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("X_type", "grid_type", "argument"),
    [("float8e4m3fn", "float", "X"), ("uint4", "float", "X"), ("float", "float8e4m3fn", "grid")],
)
def test_openvino_of_a_type_that_the_operator_lacks_raises(
    X_type: str, grid_type: str, argument: str
) -> None:
    model = parser.parse_model(f"""
        <ir_version: 11, opset_import: ["": 23, "ort_gridsample": 1]>
        g ({X_type}[1, 1, 2, 2] X, {grid_type}[1, 1, 1, 2] grid) => ({X_type}[1, 1, 1, 1] Y) {{
            Y, positions = ort_gridsample.GridSample <node = "warp"> (X, grid)
        }}""")
    with pytest.raises(RuntimeError, match="GridSampleError") as raised:
        read(model)
    assert f"GridSample node 'warp': {argument} is of type " in str(raised.value)


@pytest.mark.parametrize("domain", ["ort_gridsample", "ort_gridsample.compiled"])
def test_openvino_of_fused_attention_raises_with_a_remedy(domain: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["": 20, "{domain}": 1]>
        g (float[1, 4, 1, 2] value, int64[1, 3] levels, float[1, 1, 1, 1, 2] locations,
           float[1, 1, 1, 1] weights) => (float[1, 1, 2] Y) {{
            Y = {domain}.DeformableAttention <node = "sum"> (value, levels, locations, weights)
        }}""")
    with pytest.raises(RuntimeError, match="GridSampleError") as raised:
        read(model)
    assert "DeformableAttention node 'sum'" in str(raised.value)
    assert "patch_model" in str(raised.value)
