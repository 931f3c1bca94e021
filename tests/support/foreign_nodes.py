"""Models with nodes of every dialect, written by hand."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx
from onnx import helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes
from support.graphs import GRID, SIGNATURE, X
from support.models import parsed

X3 = np.random.default_rng(2).standard_normal((2, 3, 4, 5, 6)).astype(np.float32)


GRID3 = np.random.default_rng(3).uniform(-1.3, 1.3, (2, 3, 4, 5, 3)).astype(np.float32)


CODES = {"interpolation_mode": 0, "padding_mode": 1, "align_corners": 1}


WORDS = {"mode": "bilinear", "padding_mode": "border", "align_corners": 1}


PARSER = {"interpolationmode": 0, "paddingmode": 1, "aligncorners": 1}


def called(op_type: str, domain: str, attributes: Mapping[str, object]) -> str:
    said = ", ".join(
        f'{name} = "{x}"' if isinstance(x, str) else f"{name} = {x}"
        for name, x in attributes.items()
    )
    return f"{domain}.{op_type}"[not domain :] + (f" <{said}>" if said else "")


def written(nodes: str, opset: int = 22, function: str = "") -> onnx.ModelProto:
    """The model of these nodes, which give Y of X and G, and of a function of the domain ``local``."""
    text = nodes + function
    others = "".join(
        f', "{domain}": 1' for domain in ("local", "mmcv", "mmdeploy") if f"{domain}." in text
    )
    header = f'["": {opset}{others}]>'
    local = f'<domain: "local", opset_import: {header} {function}' if function else ""
    return parser.parse_model(
        f"<ir_version: 9, opset_import: {header} {SIGNATURE} {{ {nodes} }} {local}"
    )


def sampler(
    op_type: str,
    domain: str,
    opset: int = 11,
    axes: int = 2,
    inputs: str = "X, grid",
    **attributes: object,
) -> onnx.ModelProto:
    """The model of this operator, which gives Y, of X and grid, and of constants if ``inputs`` say so."""
    dims = [f"d{i}" for i in range(axes)]
    inside, outside = ", ".join(dims), ", ".join(dims[::-1])
    constants = (
        "int64 mode = {0}, int64 padding = {1}, bool align = {1}" if "align" in inputs else ""
    )
    values = (
        f"(float[N, C, {inside}] X, float[N, {outside}, {axes}] grid) => (float[N, C, {outside}] Y)"
    )
    model = parsed(
        f"g {values} <{constants}> {{ Y = {called(op_type, domain, attributes)} ({inputs}) }}",
        opset,
    )
    model.graph.node[0].name = "warp"
    return model


with_constants = partial(sampler, opset=13, inputs="X, grid, mode, padding, align")


#: As their exporters write them: mmcv at opset 11, its successor at 13, plugins with what TensorRT reads.
DIALECTS = {
    "com.microsoft": sampler("GridSample", "com.microsoft", 12, **WORDS),
    "mmcv": sampler("grid_sampler", "mmcv", **CODES),
    "mmdeploy": sampler("grid_sampler", "mmdeploy", 13, **CODES),
    "GridSampler": sampler("GridSampler", "", plugin_version="1", plugin_namespace="", **CODES),
    "GridSampler of a domain": sampler("GridSampler", "custom.plugins", **CODES),
    "GridSample3D": sampler("GridSample3D", "", 16, axes=3, **CODES),
    "GridSample3D, renamed": sampler("GridSample3D", "", 20, axes=3, **WORDS | {"mode": "linear"}),
    "GridSample3D, renamed before 20": sampler("GridSample3D", "", 16, axes=3, **WORDS),
    "GridSampler of onnxparser-trt-plugin-sample": sampler("GridSampler", "", 10, **PARSER),
    "GridSampler of myonnx_plugin": sampler("GridSampler", "myonnx_plugin", **PARSER),
    "GridSample of a plugin": sampler("GridSample", "", mode=0, padding_mode=1, align_corners=1),
    "GridSample of another plugin": sampler("GridSample", "", **PARSER),
    "mmcv without its domain": sampler("grid_sampler", "", **CODES),
    "mmdeploy without its domain": sampler("grid_sampler", "", 13, **CODES),
    "onnxservice": sampler("grid_sampler", "onnxservice", **CODES),
    "onnxservice, with constants": with_constants("grid_sampler", "onnxservice"),
    "aten::grid_sampler": with_constants("grid_sampler", "aten"),
    "aten::grid_sampler_2d": sampler("grid_sampler_2d", "aten", **CODES),
    "aten::grid_sampler_3d": sampler("grid_sampler_3d", "aten", axes=3, **CODES),
    "org.pytorch.aten::grid_sampler": with_constants("grid_sampler", "org.pytorch.aten"),
    "ATen": with_constants("ATen", "org.pytorch.aten", operator="grid_sampler", overload_name=""),
    "ATen with attributes": sampler("ATen", "aten", operator="grid_sampler_2d", **CODES),
}


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    three = len(model.graph.input[0].type.tensor_type.shape.dim) == 5
    return {"X": X3, "grid": GRID3} if three else {"X": X, "grid": GRID}


def normalized(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with the attributes of its GridSamples and AffineGrids written out, in order."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for scope in scopes(copy):
        for node in scope:
            if node.op_type in ogs.spec.OPERATORS and node.domain == "":
                there = {a.name: a for a in node.attribute}
                version = ogs.spec.version_of(node.op_type, scope.opsets[""])
                defaults = ogs.spec.OPERATORS[node.op_type][version].attributes
                whole = [
                    there.get(name) or helper.make_attribute(name, a.default)
                    for name, a in defaults.items()
                ]
                node.ClearField("domain")
                node.ClearField("attribute")
                node.attribute.extend(whole)
    imports = sorted((entry.domain, entry.version) for entry in copy.opset_import)
    del copy.opset_import[:]
    copy.opset_import.extend(helper.make_opsetid(*entry) for entry in imports)
    return copy
