"""Models with nodes of every dialect, written by hand."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx
from onnx import helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes_of
from support.graphs import GRID, SIGNATURE, X
from support.models import parsed

X_3D = np.random.default_rng(2).standard_normal((2, 3, 4, 5, 6)).astype(np.float32)
GRID_3D = np.random.default_rng(3).uniform(-1.3, 1.3, (2, 3, 4, 5, 3)).astype(np.float32)

# One mode, padding and alignment (linear, border, aligned) in three spellings.
MMCV_ATTRIBUTES = {"interpolation_mode": 0, "padding_mode": 1, "align_corners": 1}
WORD_ATTRIBUTES = {"mode": "bilinear", "padding_mode": "border", "align_corners": 1}
ONNXPARSER_ATTRIBUTES = {"interpolationmode": 0, "paddingmode": 1, "aligncorners": 1}


def node_text(op_type: str, domain: str, attributes: Mapping[str, object]) -> str:
    """Return an operator with its domain and attributes, as onnx's parser reads them."""
    name = f"{domain}.{op_type}" if domain else op_type
    if not attributes:
        return name
    values = ", ".join(
        f'{attribute} = "{value}"' if isinstance(value, str) else f"{attribute} = {value}"
        for attribute, value in attributes.items()
    )
    return f"{name} <{values}>"


def model_of_nodes(nodes: str, opset: int = 22, function: str = "") -> onnx.ModelProto:
    """Return a model of these nodes, from X and G to Y, and of a function of the domain local."""
    text = nodes + function
    domains = [name for name in ("local", "mmcv", "mmdeploy") if f"{name}." in text]
    imports = ", ".join([f'"": {opset}', *(f'"{domain}": 1' for domain in domains)])
    model_text = f"<ir_version: 9, opset_import: [{imports}]> {SIGNATURE} {{ {nodes} }}"
    if function:
        model_text += f' <domain: "local", opset_import: [{imports}]> {function}'
    return parser.parse_model(model_text)


def sampler_model(
    op_type: str,
    domain: str,
    opset: int = 11,
    axes: int = 2,
    inputs: str = "X, grid",
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one node, ``warp``, that samples X at grid.

    ``inputs`` of the node may name the constants ``mode``, ``padding`` and ``align``.
    """
    dims = [f"d{i}" for i in range(axes)]
    X_dims = ", ".join(dims)
    Y_dims = ", ".join(reversed(dims))
    X = f"float[N, C, {X_dims}] X"
    grid = f"float[N, {Y_dims}, {axes}] grid"
    Y = f"float[N, C, {Y_dims}] Y"
    constants = ""
    if "align" in inputs:
        constants = "int64 mode = {0}, int64 padding = {1}, bool align = {1}"
    node = node_text(op_type, domain, attributes)
    model = parsed(f"g ({X}, {grid}) => ({Y}) <{constants}> {{ Y = {node} ({inputs}) }}", opset)
    model.graph.node[0].name = "warp"
    return model


constant_input_sampler = partial(sampler_model, opset=13, inputs="X, grid, mode, padding, align")


#: One model of each dialect, at the opset and with the attributes that its exporter writes.
#: All compute the same.
DIALECTS = {
    "com.microsoft": sampler_model("GridSample", "com.microsoft", 12, **WORD_ATTRIBUTES),
    "mmcv": sampler_model("grid_sampler", "mmcv", **MMCV_ATTRIBUTES),
    "mmdeploy": sampler_model("grid_sampler", "mmdeploy", 13, **MMCV_ATTRIBUTES),
    "GridSampler": sampler_model(
        "GridSampler", "", plugin_version="1", plugin_namespace="", **MMCV_ATTRIBUTES
    ),
    "GridSampler of a domain": sampler_model("GridSampler", "custom.plugins", **MMCV_ATTRIBUTES),
    "GridSample3D": sampler_model("GridSample3D", "", 16, axes=3, **MMCV_ATTRIBUTES),
    "GridSample3D, renamed": sampler_model(
        "GridSample3D", "", 20, axes=3, **WORD_ATTRIBUTES | {"mode": "linear"}
    ),
    "GridSample3D, renamed before 20": sampler_model(
        "GridSample3D", "", 16, axes=3, **WORD_ATTRIBUTES
    ),
    "GridSampler of onnxparser-trt-plugin-sample": sampler_model(
        "GridSampler", "", 10, **ONNXPARSER_ATTRIBUTES
    ),
    "GridSampler of myonnx_plugin": sampler_model(
        "GridSampler", "myonnx_plugin", **ONNXPARSER_ATTRIBUTES
    ),
    "GridSample of a plugin": sampler_model(
        "GridSample", "", mode=0, padding_mode=1, align_corners=1
    ),
    "GridSample of another plugin": sampler_model("GridSample", "", **ONNXPARSER_ATTRIBUTES),
    "mmcv without its domain": sampler_model("grid_sampler", "", **MMCV_ATTRIBUTES),
    "mmdeploy without its domain": sampler_model("grid_sampler", "", 13, **MMCV_ATTRIBUTES),
    "onnxservice": sampler_model("grid_sampler", "onnxservice", **MMCV_ATTRIBUTES),
    "onnxservice, with constants": constant_input_sampler("grid_sampler", "onnxservice"),
    "aten::grid_sampler": constant_input_sampler("grid_sampler", "aten"),
    "aten::grid_sampler_2d": sampler_model("grid_sampler_2d", "aten", **MMCV_ATTRIBUTES),
    "aten::grid_sampler_3d": sampler_model("grid_sampler_3d", "aten", axes=3, **MMCV_ATTRIBUTES),
    "org.pytorch.aten::grid_sampler": constant_input_sampler("grid_sampler", "org.pytorch.aten"),
    "ATen": constant_input_sampler(
        "ATen", "org.pytorch.aten", operator="grid_sampler", overload_name=""
    ),
    "ATen with attributes": sampler_model(
        "ATen", "aten", operator="grid_sampler_2d", **MMCV_ATTRIBUTES
    ),
}


def feeds_for(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return X and grid for a model of :data:`DIALECTS`."""
    rank = len(model.graph.input[0].type.tensor_type.shape.dim)
    if rank == 5:
        return {"X": X_3D, "grid": GRID_3D}
    return {"X": X, "grid": GRID}


def canonical(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with sorted opset imports and all attributes of sampling nodes, in order."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for scope in scopes_of(copy):
        for node in scope:
            if node.op_type in ogs.spec.OPERATORS and node.domain == "":
                version = ogs.spec.version_of(node.op_type, scope.opsets[""])
                _write_all_attributes(node, version)
    imports = sorted((entry.domain, entry.version) for entry in copy.opset_import)
    del copy.opset_import[:]
    copy.opset_import.extend(helper.make_opsetid(*entry) for entry in imports)
    return copy


def _write_all_attributes(node: onnx.NodeProto, version: int) -> None:
    given = {attribute.name: attribute for attribute in node.attribute}
    attributes = [
        given.get(name) or helper.make_attribute(name, attribute.default)
        for name, attribute in ogs.spec.OPERATORS[node.op_type][version].attributes.items()
    ]
    node.ClearField("domain")
    node.ClearField("attribute")
    node.attribute.extend(attributes)
