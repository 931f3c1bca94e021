"""What is written for nodes of deformable attention, and BEVFormer's samplers of planar grids.

Their outputs are cells of the matrix of :mod:`contract.test_attention`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

import ort_gridsample as ogs
from support import faults
from support.attention_forms import (
    BEVFORMER,
    MICROSOFT,
    MMCV,
    TENSORRT,
    Node,
    form_of,
)
from support.attention_models import form
from support.compare import refusal
from support.forms import Form
from support.oracle_evaluator import expected_outputs
from support.paths import open_native
from support.ways import WAYS, way_param

# TensorRT's plugin


def plugins_of(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == TENSORRT]


def elem_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the inferred element types of a model's values."""
    inferred = onnx.shape_inference.infer_shapes(model)
    values = (*inferred.graph.input, *inferred.graph.value_info)
    return {value.name: value.type.tensor_type.elem_type for value in values}


@pytest.mark.parametrize(
    "name", ["stacked/static-dynamo", "stacked/batch-torchscript", "single/static-torchscript"]
)
def test_exported_attention_is_written_as_one_plugin(name: str) -> None:
    written = ogs.patch_model(form(name), target="tensorrt-plugins")
    (plugin,) = plugins_of(written)
    assert "GridSample" not in {node.op_type for node in written.graph.node}

    constants = {tensor.name: tensor for tensor in written.graph.initializer}
    for node in written.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    shapes, starts = (numpy_helper.to_array(constants[name]) for name in plugin.input[1:3])
    assert (shapes.dtype, starts.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(starts, np.cumsum(shapes.prod(1)) - shapes.prod(1))


@pytest.mark.parametrize("shapes", ["static", "dynamic", "fed"])
@pytest.mark.parametrize("op_type", [MMCV, MICROSOFT, *BEVFORMER])
def test_every_attention_node_is_written_as_one_plugin(op_type: str, shapes: str) -> None:
    written = ogs.patch_model(Node(op_type, shapes).model, target="tensorrt-plugins")
    assert len(plugins_of(written)) == 1
    assert op_type.split(".")[-1] not in {node.op_type for node in written.graph.node}


@pytest.mark.parametrize(
    "name",
    [
        "stacked/static-dynamo",
        "stacked/batch-torchscript",
        "single/static-torchscript",
        "weights of one query",
    ],
)
def test_written_plugin_that_is_lowered_again_keeps_its_outputs(name: str) -> None:
    attention = form_of(name)
    written = ogs.patch_model(attention.model, target="tensorrt-plugins")
    assert len(plugins_of(written)) == 1
    lowered = ogs.patch_model(onnx.shape_inference.infer_shapes(written), target="ai.onnx")
    onnx.checker.check_model(lowered)
    for Y, expected in zip(
        open_native(lowered).run(None, attention.feeds), attention.expected, strict=True
    ):
        np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    ["concatenated/static-dynamo", "volumes/static-dynamo"],
    ids=["another number of points on each level", "three axes"],
)
def test_attention_that_the_plugin_does_not_support_is_not_changed(name: str) -> None:
    assert ogs.patch_model(form(name), target="tensorrt-plugins") == form(name)


def test_attention_of_double_precision_is_not_written_as_a_plugin() -> None:
    names = ("value", "sampling_locations", "attention_weights")
    model = Node(MMCV, types=tuple((name, "float64") for name in names)).model
    assert ogs.patch_model(model, target="tensorrt-plugins") == model


@pytest.mark.parametrize("name", ["half values", "half locations"])
def test_written_plugin_has_one_type(name: str) -> None:
    written = ogs.patch_model(form_of(name).model, target="tensorrt-plugins")
    types = elem_types(written)
    (plugin,) = plugins_of(written)
    assert {types[plugin.input[index]] for index in (0, 3, 4)} == {onnx.TensorProto.FLOAT}


def test_written_plugin_of_half_values_and_float32_locations_has_one_type() -> None:
    attention = form_of("as exporters write it")
    model = onnx.ModelProto.FromString(attention.model.SerializeToString())
    feeds = dict(attention.feeds)
    for value in (model.graph.input[0], model.graph.input[2], model.graph.output[0]):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for name in ("value", "weights"):
        feeds[name] = feeds[name].astype(np.float16)
    written = ogs.patch_model(model, target="tensorrt-plugins")
    types = elem_types(written)
    (plugin,) = plugins_of(written)
    assert {types[plugin.input[index]] for index in (0, 3, 4)} == {onnx.TensorProto.FLOAT}
    (Y,) = ogs.InferenceSession(written).run(None, feeds)
    (expected,) = attention.expected
    np.testing.assert_allclose(Y.astype(float), expected, rtol=0, atol=2e-3)


@pytest.mark.skipif(
    faults.EMPTY_CONSTANTS, reason="this onnxruntime fails for tensors without elements"
)
def test_detected_attention_without_points_is_not_written_as_a_plugin() -> None:
    """A Reshape to no points would copy the length of another axis."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,6,2,3] v, float[1,2,2,1,0,2] l, float[1,2,2,1,0] w) => (float[] Y)
        {
            two = Constant <value_float = 2.0> ()
            one = Constant <value_float = 1.0> ()
            scaled = Mul (l, two)
            grids = Sub (scaled, one)
            rows = Transpose <perm = [0, 2, 3, 1]> (v)
            image_shape = Constant <value_ints = [2, 3, 2, 3]> ()
            image = Reshape (rows, image_shape)
            zero = Constant <value_int = 0> ()
            level = Gather <axis = 3> (grids, zero)
            by_head = Transpose <perm = [0, 2, 1, 3, 4]> (level)
            grid_shape = Constant <value_ints = [2, 2, 0, 2]> ()
            grid = Reshape <allowzero = 1> (by_head, grid_shape)
            samples = GridSample (image, grid)
            weights_by_head = Transpose <perm = [0, 2, 1, 3, 4]> (w)
            weights_shape = Constant <value_ints = [2, 1, 2, 0]> ()
            weights = Reshape <allowzero = 1> (weights_by_head, weights_shape)
            products = Mul (samples, weights)
            axis = Constant <value_ints = [-1]> ()
            sums = ReduceSum <keepdims = 0> (products, axis)
            rows_shape = Constant <value_ints = [1, 6, 2]> ()
            by_row = Reshape (sums, rows_shape)
            Y = Transpose <perm = [0, 2, 1]> (by_row)
        }""")
    feeds = {
        value.name: np.ones([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
    }
    patched = ogs.patch_model(model, target="tensorrt-plugins")
    (output,) = open_native(patched).run(None, feeds)
    np.testing.assert_array_equal(output, np.zeros((1, 2, 6), np.float32), strict=True)


# Lowered nodes


def test_lowered_attention_of_a_value_of_unknown_type_states_no_type() -> None:
    model = Node(MMCV).model
    model.graph.node.insert(0, helper.make_node("Unknown", ["value"], ["raw"], domain="foreign"))
    model.graph.node[1].input[0] = "raw"
    model.opset_import.append(helper.make_opsetid("foreign", 1))
    lowered = ogs.patch_model(model, target="ai.onnx")
    images = {node.input[0] for node in lowered.graph.node if node.op_type == "GridSample"}
    assert len(images) == 2
    assert images.isdisjoint(value.name for value in lowered.graph.value_info)


@pytest.mark.parametrize("shapes", ["dynamic", "fed"])
@pytest.mark.parametrize("op_type", [TENSORRT, BEVFORMER[0]])
def test_attention_node_lowered_to_opset_13_has_the_outputs_of_the_oracle(
    op_type: str, shapes: str
) -> None:
    """Reshape has no attribute ``allowzero`` there."""
    node = Node(op_type, shapes)
    patched = ogs.patch_model(node.model, target="primitives", opset=13)
    (Y,) = open_native(patched).run(None, node.feeds)
    (expected,) = expected_outputs(node.model, node.feeds)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


def test_node_fed_a_level_without_pixels_lowered_to_primitives_is_the_oracle() -> None:
    """With ``ai.onnx``, onnxruntime refuses an image without pixels."""
    node = Node(MMCV, "fed", lengths=((4, 6), (0, 0)))
    (Y,) = WAYS["primitives"](node.model).run(None, node.feeds)
    (expected,) = expected_outputs(node.model, node.feeds)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


# BEVFormer's samplers


@dataclass(frozen=True)
class Sampler:
    """A node whose grid is planes of coordinates from -10 to 10."""

    op_type: str
    codes: tuple[int, int, int]
    is_static: bool = True
    opset: int = 17
    kind: str = "float"

    @property
    def axes(self) -> int:
        return int(self.op_type[len("GridSampler")])

    @property
    def form(self) -> Form:
        X_shape = (2, 3, 4, 5, 6)[: self.axes + 2]
        grid_shape = (2, self.axes, 3, 4, 5)[: self.axes + 2]
        X_dims, grid_dims = (
            ", ".join(
                str(length) if self.is_static else f"{name}{i}" for i, length in enumerate(shape)
            )
            for name, shape in (("X", X_shape), ("g", grid_shape))
        )
        mode, padding, aligned = self.codes
        model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {self.opset}]>
            g ({self.kind}[{X_dims}] X, {self.kind}[{grid_dims}] grid) => ({self.kind}[] Y) {{
                Y = {self.op_type} <
                    interpolation_mode = {mode},
                    padding_mode = {padding},
                    align_corners = {aligned}> (X, grid) }}""")
        model.graph.node[0].name = "warp"
        rng = np.random.default_rng(1)
        dtype = "float16" if self.kind == "float16" else "float32"
        X = rng.normal(size=X_shape)
        grid = rng.uniform(-13, 13, grid_shape)
        feeds = {"X": X.astype(dtype), "grid": grid.astype(dtype)}
        return Form(model, feeds, tolerance=2e-3 if dtype == "float16" else 1e-4)


SAMPLERS = [f"GridSampler{axes}DTRT{suffix}" for axes in (2, 3) for suffix in ("", "2")]
#: Numbers of modes and paddings, and whether corners are aligned. Cubic has two axes only.
CODES = [(2, 0, 0), (0, 1, 1), (1, 2, 0), (0, 0, 1)]


@pytest.mark.parametrize(
    "way",
    [
        way_param(way=way)
        for way in ("python", "compiled", "primitives", "patched file", "evaluator")
    ],
)
@pytest.mark.parametrize(("op_type", "codes"), [*itertools.product(SAMPLERS, CODES)])
def test_planar_sampler_in_any_way_has_the_outputs_of_the_oracle(
    op_type: str, codes: tuple[int, int, int], way: str
) -> None:
    if "3D" in op_type and codes[0] == 2:
        codes = (0, *codes[1:])
    for is_static, opset in ((True, 20), (False, 13)):
        sampler = Sampler(op_type, codes, is_static, opset).form
        (Y,) = WAYS[way](sampler.model).run(None, sampler.feeds)
        np.testing.assert_allclose(Y, sampler.expected[0], rtol=0, atol=sampler.tolerance)


@pytest.mark.parametrize("way", [way_param(way=way) for way in ("python", "compiled", "evaluator")])
def test_planar_sampler_of_half_precision_scales_in_single(way: str) -> None:
    sampler = Sampler("GridSampler2DTRT2", (0, 1, 0), kind="float16").form
    (Y,) = WAYS[way](sampler.model).run(None, sampler.feeds)
    assert Y.dtype == np.float16
    expected = sampler.expected[0].astype(float)
    np.testing.assert_allclose(Y.astype(float), expected, rtol=0, atol=sampler.tolerance)


WRONG_PLANES = [
    ((2, 3, 4, 5), (2, 3, 4, 2), "grid"),
    ((2, 3, 4, 5), (1, 2, 3, 4), "grid"),
    ((2, 3, 4, 5), (2, 2, 3), "grid"),
    ((2, 3, 4, 5, 6), (2, 2, 3, 4), "X"),
    ((2, 3, 4), (2, 2, 3, 2), "X"),
]


@pytest.mark.parametrize(("X", "grid", "argument"), WRONG_PLANES)
def test_planar_sampler_of_a_wrong_shape_is_refused(
    X: tuple[int, ...], grid: tuple[int, ...], argument: str
) -> None:
    model = Sampler("GridSampler2DTRT", (0, 0, 0)).form.model
    for value, shape in zip(model.graph.input, (X, grid), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, 1, shape))
    feeds = {"X": np.zeros(X, np.float32), "grid": np.zeros(grid, np.float32)}
    error = refusal(ogs.InferenceSession, model)
    assert (error.where, error.argument) == ("GridSampler2DTRT node 'warp'", argument)
    assert refusal(WAYS["evaluator"](model).run, None, feeds).argument == argument
