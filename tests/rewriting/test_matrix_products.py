"""Models lowered without Gather: the oracle's outputs, with no other operators than the listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from itertools import product
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.graph.expressions import Expressions
from ort_gridsample.graph.runtimes import RUNTIMES
from ort_gridsample.reference.taps import MODE_RULES, Mode
from ort_gridsample.rewriting.targets import matrix_products
from ort_gridsample.rewriting.targets.lowered_arguments import Argument
from support.attention_forms import form_of
from support.cases import ATTRIBUTES, EXTENDED_ATTRIBUTES, SHAPES, Attributes, image, positions
from support.compare import about, assert_identical, assert_matches, refusal
from support.lowered_models import assert_close, run, run_reference
from support.models import affine_grid_model, grid_sample_model, make_model
from support.oracle import deformable_attention as oracle_attention
from support.oracle import grid_sample as oracle_sample
from support.paths import open_native

pytestmark = pytest.mark.usefixtures("numpy_core")

#: The operators of float32 models. A Constant is no operator of a run.
OPERATORS = {
    "Abs",
    "Add",
    "Concat",
    "Constant",
    "Floor",
    "MatMul",
    "Max",
    "Min",
    "Mul",
    "ReduceSum",
    "Reshape",
    "Sub",
    "Transpose",
}
WITHOUT_GATHER = [name for name, runtime in RUNTIMES.items() if runtime.lacks("Gather")]
ALL_ATTRIBUTES = (*ATTRIBUTES, *EXTENDED_ATTRIBUTES)
LINEAR = Attributes("linear", "zeros", False)
every_runtime = pytest.mark.parametrize("runtime", WITHOUT_GATHER)
every_attributes = pytest.mark.parametrize("attributes", ALL_ATTRIBUTES, ids=str)
Shape = Sequence[int | str | None]


def declare(model: onnx.ModelProto, **shapes: Shape) -> onnx.ModelProto:
    """State the shapes of inputs: lengths, names or None."""
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        del dims[:]
        for length in shapes[value.name]:
            dim = dims.add()
            if isinstance(length, str):
                dim.dim_param = length
            elif length is not None:
                dim.dim_value = length
    return model


def lower(
    X: np.ndarray,
    grid: np.ndarray,
    attributes: Attributes = LINEAR,
    *,
    shapes: tuple[Shape, Shape] | None = None,
    is_grid_constant: bool = False,
    runtime: str = "gather-free",
    **arguments: Any,
) -> onnx.ModelProto:
    """Return a lowered model of one GridSample of these arrays, whose shapes are known."""
    types = X.dtype.name, grid.dtype.name
    model = grid_sample_model(*types, X.ndim - 2, [attributes])
    if is_grid_constant:
        model.graph.input.pop()
        model.graph.initializer.append(numpy_helper.from_array(grid, "grid"))
    X_shape, grid_shape = shapes or (X.shape, grid.shape)
    declare(model, X=X_shape, grid=grid_shape)
    return ogs.patch_model(model, target="primitives", for_runtime=runtime, **arguments)


def operators(model: onnx.ModelProto) -> Counter[str]:
    """Return how often the model has each operator."""
    return Counter(node.op_type for node in model.graph.node)


def arrays(axes: int, batches: int = 2, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return X and a grid with coordinates inside, outside and infinite."""
    rng = np.random.default_rng(axes)
    X = rng.standard_normal((batches, channels, *(7, 4, 5)[:axes]), np.float32)
    grid = rng.uniform(-2, 2, (batches, *(3, 4, 2)[:axes], axes)).astype(np.float32)
    special = (np.inf, -np.inf, 1, -1, 30, -300)
    grid.reshape(-1)[: len(special)] = special[: grid.size]
    return X, grid


@every_attributes
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_products_have_the_outputs_of_the_oracle_and_only_listed_operators(
    attributes: Attributes, axes: int
) -> None:
    """Coordinates are ties, borders, outside, and infinite.

    Coordinates of reflection and wrap whose rest cannot be computed without Mod are left out.
    """
    X = image("float32", SHAPES[axes].X)
    grid = positions("float32", axes).copy()
    is_periodic = attributes.padding_mode in ("reflection", "wrap")
    is_inexact = np.isfinite(grid) & (np.abs(grid) > 1e5) if is_periodic else np.isnan(grid)
    grid[is_inexact | np.isnan(grid)] = 0.3
    lowered = lower(X, grid, attributes)
    assert set(operators(lowered)) <= OPERATORS
    expected = oracle_sample(X, grid, *astuple(attributes))
    (Y,) = (run(lowered, X, grid),)
    assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)


@every_runtime
@every_attributes
def test_products_for_a_runtime_are_close_to_the_core(runtime: str, attributes: Attributes) -> None:
    for axes in (1, 2, 3):
        X, grid = arrays(axes, batches=1)
        lowered = lower(X, grid, attributes, runtime=runtime)
        only = RUNTIMES[runtime].only or set()
        assert set(operators(lowered)) <= (only - {"Cast"}) | {"Constant"}
        with about(f"{axes=}"):
            assert_close(run(lowered, X, grid), X, grid, attributes)
            assert_close(run_reference(lowered, X, grid), X, grid, attributes)


def test_reshapes_for_ncnn_have_at_most_four_axes() -> None:
    X, grid = arrays(3, batches=1)
    lowered = lower(X, grid, Attributes("cubic", "border", True), runtime="ncnn")
    constants = {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in lowered.graph.node
        if node.op_type == "Constant"
    }
    shapes = [constants[n.input[1]] for n in lowered.graph.node if n.op_type == "Reshape"]
    assert max(map(len, shapes)) == 4
    assert operators(lowered)["ReduceSum"] == 0


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection", "wrap"])
def test_ties_and_their_neighbors_are_rounded_like_the_core(padding_mode: str) -> None:
    X = np.arange(7, dtype=np.float32).reshape(1, 1, -1)
    ties = np.arange(-20, 20, dtype=np.float32) + np.float32(0.5)
    for align_corners in (False, True):
        exact = ties * 2 / 6 - 1 if align_corners else (2 * ties + 1) / 7 - 1
        near = [exact, np.nextafter(exact, np.float32(-99)), np.nextafter(exact, np.float32(99))]
        grid = np.concatenate(near).astype(np.float32).reshape(1, -1, 1)
        attributes = Attributes("nearest", padding_mode, align_corners)
        assert_close(run(lower(X, grid, attributes), X, grid), X, grid, attributes)


@pytest.mark.parametrize("attributes", ALL_ATTRIBUTES[::5], ids=str)
def test_nan_among_coordinates_makes_the_samples_of_its_position_nan(
    attributes: Attributes,
) -> None:
    """In onnxruntime, where Max and Min of NaN are NaN."""
    X, grid = arrays(2)
    grid[np.isinf(grid)] = 0
    grid[1, 2, 3, 0] = np.nan
    Y = run(lower(X, grid, attributes), X, grid)
    assert np.isnan(Y[1, :, 2, 3]).all()
    Y[1, :, 2, 3] = 0
    grid[1, 2, 3, 0] = 0
    expected = ogs.grid_sample(X, grid, *astuple(attributes))
    expected[1, :, 2, 3] = 0
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pixel_that_is_not_finite_leaves_other_images_and_channels_as_they_are(
    value: float,
) -> None:
    X, grid = arrays(2)
    X[0, 1, 2, 3] = value
    Y = run(lower(X, grid), X, grid)
    expected = ogs.grid_sample(X, grid)
    for batch, channel in ((0, 0), (0, 2), (1, 0), (1, 1), (1, 2)):
        np.testing.assert_allclose(Y[batch, channel], expected[batch, channel], atol=1e-5)


@pytest.mark.parametrize(("X_type", "grid_type"), [*product(spec.FLOATS, spec.FLOATS)])
def test_products_of_each_type_equal_the_core(X_type: str, grid_type: str) -> None:
    X, grid = arrays(2)
    X = image(X_type, X.shape)
    grid = np.where(np.isfinite(grid), grid, 9).astype(positions(grid_type, 2).dtype)
    for mode, padding_mode in (("linear", "zeros"), ("cubic", "reflection"), ("nearest", "border")):
        attributes = Attributes(mode, padding_mode, True)
        Y = run(lower(X, grid, attributes, opset=22), X, grid)
        expected = oracle_sample(X, grid, *astuple(attributes))
        with about(attributes):
            assert Y.dtype == X.dtype
            assert_matches(Y, expected, grid.dtype, mode, padding_mode)


@every_attributes
def test_products_that_are_computed_in_float16_are_near_the_core(attributes: Attributes) -> None:
    """Many devices without Gather have no other type, however the file is written."""
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    X, grid = arrays(2)
    grid = np.clip(grid, -3, 3)
    grid = grid + np.float32(1 / 128)  # no coordinate is a tie
    half = float16.convert_float_to_float16(lower(X, grid, attributes), keep_io_types=True)
    expected = ogs.grid_sample(X, grid, *astuple(attributes))
    np.testing.assert_allclose(run(half, X, grid), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    "shapes",
    [
        (("N", 3, 7, 4), ("N", 3, 4, 2)),
        (("N", "C", 7, 4), ("N", 3, 4, 2)),
        (("N", 3, 7, 4), (None, "H", 4, 2)),
        (("N", 3, 7, 4), ("N", 3, "W", 2)),
        ((2, None, 7, 4), (None, 3, 4, None)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_unknown_lengths_that_no_operator_must_read_are_allowed(
    shapes: tuple[Shape, Shape], mode: str
) -> None:
    X, grid = arrays(2)
    attributes = Attributes(mode, "border", False)
    lowered = lower(X, grid, attributes, shapes=shapes)
    assert set(operators(lowered)) <= OPERATORS
    assert_close(run(lowered, X, grid), X, grid, attributes)


@pytest.mark.parametrize(
    ("shapes", "argument"),
    [
        ((("N", 3, "H", 4), ("N", 3, 4, 2)), "X"),
        ((("N", 3, 7, 4), ("N", "H", "W", 2)), "grid"),
        ((("N", "C", 7, 4), ("N", "H", 4, 2)), "X"),
    ],
    ids=["pixels", "positions", "channels and positions"],
)
def test_unknown_lengths_that_must_be_read_are_refused(
    shapes: tuple[Shape, Shape], argument: str
) -> None:
    error = refusal(lower, *arrays(2), shapes=shapes)
    assert (error.where, error.argument) == ("GridSample node 'sample0'", argument)


@pytest.mark.parametrize("X_type", ["int32", "bool", "uint8"])
def test_other_types_than_floats_are_refused(X_type: str) -> None:
    X, grid = arrays(2)
    error = refusal(lower, X.astype(X_type), grid, Attributes("nearest", "border", False))
    assert (error.argument, error.found) == ("X", f"of type {X_type}")


@pytest.mark.parametrize("attributes", [LINEAR, Attributes("cubic", "wrap", True)], ids=str)
def test_constant_grid_leaves_no_arithmetic_with_coordinates(attributes: Attributes) -> None:
    X, grid = arrays(2)
    lowered = lower(X, grid, attributes, is_grid_constant=True)
    products = {"Constant", "MatMul", "Mul", "ReduceSum", "Reshape", "Transpose"}
    assert set(operators(lowered)) <= products
    assert_close(run(lowered, X), X, grid, attributes)


@pytest.mark.parametrize("X_shape", [(0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 0, 4)])
def test_X_without_elements_is_not_multiplied(X_shape: tuple[int, ...]) -> None:  # noqa: N802
    X = np.ones(X_shape, np.float32)
    grid = np.zeros((X_shape[0], 3, 4, 2), np.float32)
    lowered = lower(X, grid)
    assert set(operators(lowered)) == {"Constant"}
    assert_identical(run(lowered, X, grid), ogs.grid_sample(X, grid))


@pytest.mark.parametrize("lengths", [(3, 4, 5), (3, 6, 5), (7, 4, 5), (5, 5, 5), (1, 1, 1)])
def test_longest_axis_is_multiplied_first(lengths: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).standard_normal((1, 2, *lengths), np.float32)
    _, grid = arrays(3, batches=1)
    lowered = onnx.shape_inference.infer_shapes(lower(X, grid), data_prop=True)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in lowered.graph.value_info
    }
    (matmul,) = [node for node in lowered.graph.node if node.op_type == "MatMul"]
    assert shapes[matmul.input[0]][-1] == max(lengths)
    assert_close(run(lowered, X, grid), X, grid, LINEAR)


@pytest.mark.parametrize("attributes", ALL_ATTRIBUTES[::5], ids=str)
def test_large_intermediate_values_are_computed_in_blocks(
    attributes: Attributes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_products, "MAX_INTERMEDIATE_BYTES", 1000)
    for axes, n_blocks in ((1, 3), (2, 12), (3, 24)):
        X, grid = arrays(axes)
        lowered = lower(X, grid, attributes)
        assert operators(lowered)["MatMul"] <= n_blocks
        assert_close(run(lowered, X, grid), X, grid, attributes)
    assert operators(lowered)["MatMul"] > 1
    assert set(operators(lowered)) <= OPERATORS


def test_number_of_blocks_divides_the_positions_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """127 is a prime: there are 127 blocks or one."""
    monkeypatch.setattr(matrix_products, "MAX_INTERMEDIATE_BYTES", 1)
    X = np.ones((1, 1, 4, 4), np.float32)
    for positions_of_row, n_blocks in ((127, 1), (120, 60), (6, 6)):
        grid = np.zeros((1, 1, positions_of_row, 2), np.float32)
        assert operators(lower(X, grid))["MatMul"] == n_blocks


def lowered_with_mode(
    X: np.ndarray, grid: np.ndarray, mode: str, padding_mode: str
) -> onnx.ModelProto:
    """Return a lowered GridSample of a mode that no node can have."""
    e = Expressions("sample", 17, RUNTIMES["gather-free"])
    arguments = [Argument(n, "float32", a.shape) for n, a in (("X", X), ("grid", grid))]
    nodes = matrix_products.lower_grid_sample(
        e, *arguments, "Y", mode=mode, padding_mode=padding_mode, align_corners=False
    )
    inputs = {"X": ("float32", X.shape), "grid": ("float32", grid.shape)}
    return make_model(nodes, inputs, {"Y": ("float32", [None] * X.ndim)}, 17)


def sine_weights(xp: Any, t: Any) -> Any:
    """Return weights of the two nearest pixels and the middle one that are sines."""
    half = xp.sin(t * (np.pi / 2))
    outer = half * half * 0.5
    return xp.concatenate([outer, 1 - outer * 2, outer], axis=-2)


def broken_weights(xp: Any, t: Any) -> Any:
    """Return weights with a step between the pixels."""
    step = xp.floor(t + 0.7) / (t + 1)
    return xp.concatenate([step, 1 - step], axis=-2)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection", "wrap"])
def test_mode_of_other_operators_has_polynomials_as_weights(
    padding_mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Mode(lambda xp, x: xp.rint(x), (-1, 0, 1), sine_weights, pads_taps=True)
    monkeypatch.setitem(MODE_RULES, "sine", row)  # type: ignore[arg-type]
    X, grid = arrays(2)
    lowered = lowered_with_mode(X, grid, "sine", padding_mode)
    assert set(operators(lowered)) <= OPERATORS
    expected = ogs.grid_sample(X, grid, "sine", padding_mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(run(lowered, X, grid), expected, rtol=0, atol=1e-5)


def test_mode_whose_weights_are_no_polynomials_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Mode(lambda xp, x: xp.floor(x), (0, 1), broken_weights, pads_taps=False)
    monkeypatch.setitem(MODE_RULES, "broken", row)  # type: ignore[arg-type]
    error = refusal(lowered_with_mode, *arrays(2), "broken", "zeros")
    assert (error.argument, error.found) == ("mode", "one whose weights are computed with Div")


class TestCost:
    X = np.zeros((1, 256, 80, 80), np.float32)
    grid = np.zeros((1, 8400, 1, 2), np.float32)

    def test_more_multiply_adds_than_allowed_are_refused(self) -> None:
        error = refusal(lower, self.X, self.grid)
        assert error.where == "GridSample node 'sample0'"
        assert error.argument == "the number of multiply-adds"
        assert error.found.startswith("13,762,560,000, for X of shape (1, 256, 80, 80)")
        assert error.expected.startswith("at most 10,000,000,000;")

    def test_the_maximum_can_be_raised(self) -> None:
        assert operators(lower(self.X, self.grid, max_multiply_adds=14 * 10**9))["MatMul"] >= 1

    def test_the_maximum_can_be_lowered(self) -> None:
        X, grid = arrays(2)
        error = refusal(lower, X, grid, max_multiply_adds=2015)
        assert error.found.startswith("2,016, ")  # 2 · 3 · 7 · 4 · 3 · 4
        lower(X, grid, max_multiply_adds=2016)

    @pytest.mark.parametrize("number", [0, -1, 1.5, True])
    def test_other_maxima_than_counts_are_refused(self, number: object) -> None:
        error = refusal(lower, *arrays(2), max_multiply_adds=number)
        assert (error.argument, error.found) == ("max_multiply_adds", repr(number))

    def test_a_maximum_for_other_runtimes_is_refused(self) -> None:
        error = refusal(lower, *arrays(2), runtime="mnn", max_multiply_adds=10)
        assert error.argument == "max_multiply_adds"
        assert all(repr(name) in error.expected for name in WITHOUT_GATHER)

    def test_an_unknown_number_of_positions_is_not_refused(self) -> None:
        shapes = (self.X.shape, ("N", "P", 1, 2))
        assert operators(lower(self.X, self.grid, shapes=shapes))["MatMul"] == 1

    def test_a_record_has_the_number(self) -> None:
        model = declare(grid_sample_model("float32", "float32", 2, [LINEAR]), X=(1, 3, 8, 9),
                        grid=(1, 5, 6, 2))  # fmt: skip
        (record,) = ogs.inspect_model(model)
        assert record.multiply_adds == 3 * 8 * 9 * 5 * 6

    def test_a_record_of_unknown_lengths_has_the_number_for_one(self) -> None:
        model = declare(grid_sample_model("float32", "float32", 2, [LINEAR]), X=("N", 3, 8, 9),
                        grid=("N", "P", 6, 2))  # fmt: skip
        (record,) = ogs.inspect_model(model)
        assert record.multiply_adds == 3 * 8 * 9 * 6

    def test_a_record_of_unknown_pixels_has_no_number(self) -> None:
        model = declare(grid_sample_model("float32", "float32", 2, [LINEAR]), X=(1, 3, "H", 9),
                        grid=(1, 5, 6, 2))  # fmt: skip
        (record,) = ogs.inspect_model(model)
        assert record.multiply_adds is None


@every_runtime
@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid_of_a_constant_size_has_the_output_of_the_function(
    axes: int, align_corners: bool, runtime: str
) -> None:
    theta = np.random.default_rng(axes).standard_normal((1, axes, axes + 1), np.float32)
    for lengths in ((4, 7, 5), (1, 1, 6), (3, 0, 2)):
        size = np.array([1, 3, *lengths[:axes]])
        model = affine_grid_model("float32", axes, align_corners)
        model.graph.input.pop()
        model.graph.initializer.append(numpy_helper.from_array(size, "size"))
        lowered = ogs.patch_model(model, target="primitives", for_runtime=runtime)
        assert set(operators(lowered)) <= OPERATORS
        expected = ogs.affine_grid(theta, size, align_corners)
        np.testing.assert_allclose(run(lowered, theta), expected, rtol=0, atol=1e-6)


def test_affine_grid_of_a_computed_size_is_refused() -> None:
    model = affine_grid_model("float32", 2, False)
    error = refusal(ogs.patch_model, model, target="primitives", for_runtime="gather-free")
    assert (error.argument, error.found) == ("size", "computed")


def test_computed_size_is_known_from_the_shape_of_the_grid() -> None:
    """The size is that of the shape of X, as exporters write it."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["": 20]>
        g (float[2, 3, 5, 6] X, float[2, 2, 3] theta) => (float[2, 3, 5, 6] Y) {
            size = Shape (X)
            grid = AffineGrid (theta, size)
            Y = GridSample <padding_mode = "border"> (X, grid) }""")
    lowered = ogs.patch_model(model, for_runtime="gather-free")
    assert set(operators(lowered)) <= OPERATORS
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2, 3, 5, 6), np.float32)
    theta = rng.standard_normal((2, 2, 3), np.float32)
    expected = ogs.grid_sample(X, ogs.affine_grid(theta, X.shape), padding_mode="border")
    np.testing.assert_allclose(run(lowered, X, theta), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "MultiscaleDeformableAttnPlugin_TRT, static, opset 17",
        "mmdeploy.MMCVMultiScaleDeformableAttention, static, opset 13, no points on 1 levels",
        "ort_gridsample.DeformableAttention, static, opset 17, first level without pixels",
    ],
)
def test_attention_node_becomes_listed_operators(name: str) -> None:
    form = form_of(name)
    lowered = ogs.patch_model(form.model, target="primitives", for_runtime="gather-free")
    assert set(operators(lowered)) <= OPERATORS
    form.assert_outputs(open_native(lowered).run(None, form.feeds))


@pytest.mark.parametrize("operator", ["GridSample", "DeformableAttention"])
def test_selected_nodes_of_an_attention_become_products(operator: str) -> None:
    form = form_of("stacked/static-dynamo")
    lowered = ogs.patch_model(
        form.model,
        nodes=lambda record: record.operator == operator,
        target="primitives",
        for_runtime="gather-free",
    )
    assert operators(lowered)["GridSample"] == 0
    form.assert_outputs(open_native(lowered).run(None, form.feeds))


def test_attention_whose_grid_samples_are_declined_stays() -> None:
    form = form_of("stacked/static-dynamo")
    lowered = ogs.patch_model(
        form.model, nodes=lambda record: False, target="primitives", for_runtime="gather-free"
    )
    assert lowered == form.model


def attention_model(
    batches: int | str, queries: int | str, points: Sequence[int], lengths: Sequence[Sequence[int]]
) -> onnx.ModelProto:
    """Return a model of a node of this package, with all points on one axis."""
    r = len(lengths[0])
    pixels = sum(map(prod, lengths))
    table = ", ".join(
        str(number) for n, row in zip(points, lengths, strict=True) for number in (n, *row)
    )
    n_points = sum(points)
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
        g (float[{batches}, {pixels}, 2, 3] value,
           float[{batches}, {queries}, 2, {n_points}, {r}] locations,
           float[{batches}, {queries}, 2, {n_points}] weights) => (float[N, Q, 6] Y)
        <int64[{len(points)}, {1 + r}] levels = {{{table}}}> {{
            [attention] Y = ort_gridsample.DeformableAttention
                (value, levels, locations, weights) }}""")


def attention_feeds(model: onnx.ModelProto, batches: int, queries: int) -> dict[str, np.ndarray]:
    """Return inputs with locations inside and outside."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        _, *others = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if value.name != "value":
            others[0] = queries
        feeds[value.name] = rng.uniform(-0.3, 1.3, (batches, *others)).astype(np.float32)
    return feeds


@pytest.mark.parametrize(
    ("points", "lengths"),
    [
        ((4, 4), ((5, 6), (3, 2))),
        ((3, 6, 3), ((5, 6), (3, 2), (2, 2))),
        ((2, 0, 1), ((5, 6), (3, 2), (4, 4))),
        ((2,), ((5, 6),)),
        ((2, 3), ((5,), (7,))),
        ((2, 2), ((2, 3, 4), (3, 1, 2))),
        ((1, 2), ((0, 6), (3, 2))),
    ],
    ids=str,
)
@pytest.mark.parametrize(("batches", "queries"), [(2, 5), ("N", 5), (2, "Q")])
def test_attention_of_any_levels_has_the_output_of_the_function(
    points: tuple[int, ...],
    lengths: tuple[tuple[int, ...], ...],
    batches: int | str,
    queries: int | str,
) -> None:
    model = attention_model(batches, queries, points, lengths)
    feeds = attention_feeds(model, 2, 5)
    lowered = ogs.patch_model(model, target="primitives", for_runtime="gather-free")
    assert set(operators(lowered)) <= OPERATORS
    levels = np.array([(n, *row) for n, row in zip(points, lengths, strict=True)])
    value, locations, weights = feeds.values()
    expected = oracle_attention(value, levels, locations, weights)
    (Y,) = open_native(lowered).run(None, feeds)
    np.testing.assert_allclose(Y, expected.reshape(Y.shape), rtol=0, atol=1e-5)


def test_attention_of_unknown_batches_and_queries_is_refused() -> None:
    model = attention_model("N", "Q", (4,), ((5, 6),))
    error = refusal(ogs.patch_model, model, target="primitives", for_runtime="gather-free")
    assert error.argument == "value"


def test_attention_with_too_many_multiply_adds_is_refused() -> None:
    model = attention_model(1, 300, (4,), ((80, 80),))
    (record,) = ogs.inspect_model(model)
    assert record.multiply_adds == 300 * 6400 * 2 * 3
    error = refusal(
        ogs.patch_model,
        model,
        target="primitives",
        for_runtime="gather-free",
        max_multiply_adds=11_519_999,
    )
    assert "attention" in error.where
    assert error.found.startswith("11,520,000, ")


def test_attention_whose_operands_need_other_operators_is_refused() -> None:
    model = form_of("MultiScaleDeformableAttnTRT, static, opset 17").model
    error = refusal(ogs.patch_model, model, target="primitives", for_runtime="gather-free")
    assert error.argument == "for_runtime"
    assert error.found.startswith("a runtime without ")
