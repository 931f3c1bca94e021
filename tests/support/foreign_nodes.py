"""Models with nodes of every dialect, written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from itertools import product

import numpy as np
import onnx
from onnx import helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes_of
from support.cases import Attributes
from support.graphs import GRID, SIGNATURE, X
from support.models import parsed

X_3D = np.random.default_rng(2).standard_normal((2, 3, 4, 5, 6)).astype(np.float32)
GRID_3D = np.random.default_rng(3).uniform(-1.3, 1.3, (2, 3, 4, 5, 3)).astype(np.float32)

#: PyTorch's integers for modes and paddings.
MODE_CODES = {"linear": 0, "nearest": 1, "cubic": 2}
PADDING_CODES = {"zeros": 0, "border": 1, "reflection": 2}
#: The words of modes before opset 20.
OLDER_WORDS = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def codes(
    attributes: Attributes, names: Sequence[str] = ("interpolation_mode", "padding_mode")
) -> dict[str, int]:
    """Return the attributes as integers, the first two with these names."""
    mode, padding_mode, align_corners = astuple(attributes)
    values = MODE_CODES[mode], PADDING_CODES[padding_mode], int(align_corners)
    align_name = "aligncorners" if names[1] == "paddingmode" else "align_corners"
    return dict(zip((*names, align_name), values, strict=True))


#: One mode, padding and alignment in two spellings.
ALIGNED_BORDER = Attributes("linear", "border", True)
MMCV_ATTRIBUTES = codes(ALIGNED_BORDER)
ONNXPARSER_ATTRIBUTES = codes(ALIGNED_BORDER, ("interpolationmode", "paddingmode"))


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
    constants: str = "",
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one node, ``warp``, that samples X at grid.

    ``inputs`` of the node may name the ``constants``.
    """
    dims = [f"d{i}" for i in range(axes)]
    X_dims = ", ".join(dims)
    Y_dims = ", ".join(reversed(dims))
    X = f"float[N, C, {X_dims}] X"
    grid = f"float[N, {Y_dims}, {axes}] grid"
    Y = f"float[N, C, {Y_dims}] Y"
    node = node_text(op_type, domain, attributes)
    model = parsed(f"g ({X}, {grid}) => ({Y}) <{constants}> {{ Y = {node} ({inputs}) }}", opset)
    model.graph.node[0].name = "warp"
    return model


def constant_input_sampler(
    op_type: str, domain: str, attributes: Attributes = ALIGNED_BORDER, **other: object
) -> onnx.ModelProto:
    """Return a model as :func:`sampler_model`, whose node has its attributes as constant inputs."""
    mode, padding, align = codes(attributes).values()
    constants = f"int64 mode = {{{mode}}}, int64 padding = {{{padding}}}, bool align = {{{align}}}"
    inputs = "X, grid, mode, padding, align"
    return sampler_model(op_type, domain, 13, inputs=inputs, constants=constants, **other)


def models_of_dialects(attributes: Attributes) -> dict[str, onnx.ModelProto]:
    """Return a model of each dialect, at the opset and as its exporter writes it.

    All have these attributes, and compute the same.
    """
    mode, padding_mode, align_corners = astuple(attributes)
    words = {
        "mode": OLDER_WORDS[mode],
        "padding_mode": padding_mode,
        "align_corners": int(align_corners),
    }
    mmcv = codes(attributes)
    onnxparser = codes(attributes, ("interpolationmode", "paddingmode"))
    plugin = codes(attributes, ("mode", "padding_mode"))
    with_constants = partial(constant_input_sampler, attributes=attributes)
    return {
        "com.microsoft": sampler_model("GridSample", "com.microsoft", 12, **words),
        "mmcv": sampler_model("grid_sampler", "mmcv", **mmcv),
        "mmdeploy": sampler_model("grid_sampler", "mmdeploy", 13, **mmcv),
        "GridSampler": sampler_model(
            "GridSampler", "", plugin_version="1", plugin_namespace="", **mmcv
        ),
        "GridSampler of a domain": sampler_model("GridSampler", "custom.plugins", **mmcv),
        "GridSample3D": sampler_model("GridSample3D", "", 16, axes=3, **mmcv),
        "GridSample3D, renamed": sampler_model(
            "GridSample3D", "", 20, axes=3, **words | {"mode": mode}
        ),
        "GridSample3D, renamed before 20": sampler_model("GridSample3D", "", 16, axes=3, **words),
        "GridSampler of onnxparser-trt-plugin-sample": sampler_model(
            "GridSampler", "", 10, **onnxparser
        ),
        "GridSampler of myonnx_plugin": sampler_model("GridSampler", "myonnx_plugin", **onnxparser),
        "GridSample of a plugin": sampler_model("GridSample", "", **plugin),
        "GridSample of another plugin": sampler_model("GridSample", "", **onnxparser),
        "mmcv without its domain": sampler_model("grid_sampler", "", **mmcv),
        "mmdeploy without its domain": sampler_model("grid_sampler", "", 13, **mmcv),
        "onnxservice": sampler_model("grid_sampler", "onnxservice", **mmcv),
        "onnxservice, with constants": with_constants("grid_sampler", "onnxservice"),
        "aten::grid_sampler": with_constants("grid_sampler", "aten"),
        "aten::grid_sampler_2d": sampler_model("grid_sampler_2d", "aten", **mmcv),
        "aten::grid_sampler_3d": sampler_model("grid_sampler_3d", "aten", axes=3, **mmcv),
        "org.pytorch.aten::grid_sampler": with_constants("grid_sampler", "org.pytorch.aten"),
        "ATen": with_constants(
            "ATen", "org.pytorch.aten", operator="grid_sampler", overload_name=""
        ),
        "ATen with attributes": sampler_model("ATen", "aten", operator="grid_sampler_2d", **mmcv),
    }


DIALECTS = models_of_dialects(ALIGNED_BORDER)
#: The nodes that may lack all attributes, which are then linear, zeros and not aligned.
WITHOUT_ATTRIBUTES = {
    "dialect com.microsoft": sampler_model("GridSample", "com.microsoft", 12),
    # SparseOcc's exporter renames the node, and removes its attributes.
    "dialect GridSample3D": sampler_model(
        "GridSample3D", "", 16, axes=3, version=1, namespace="", name="GridSample3D"
    ),
    "standard of opset 16": sampler_model("GridSample", "", 16),
    "standard of opset 20": sampler_model("GridSample", "", 20),
}


#: Domain, operator and attributes. Without an attribute, align_corners is an input.
_AFFINE_GRID_GENERATORS: list[tuple[str, str, dict[str, object]]] = [
    ("org.pytorch.aten", "affine_grid_generator", {}),
    ("org.pytorch.aten", "ATen", {"operator": "affine_grid_generator", "overload_name": ""}),
    ("", "affine_grid_generator", {"align_corners": 1}),
    ("onnxservice", "affine_grid_generator", {"align_corners": 1}),
]
AFFINE_SIZE = (2, 3, 4, 5)
AFFINE_FEEDS = {"theta": np.array([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2]]] * 2, np.float32)}


def affine_grid_generators() -> dict[str, onnx.ModelProto]:
    """Return models of PyTorch's node for an aligned AffineGrid, by their names."""
    models = {}
    for (domain, op_type, fixed), size in product(_AFFINE_GRID_GENERATORS, ("input", "attribute")):
        inputs = ["theta", "size" if size == "input" else ""]
        if "align_corners" not in fixed:
            inputs.append("align")
        attributes = fixed | ({"size": list(AFFINE_SIZE)} if size == "attribute" else {})
        lengths = ", ".join(map(str, AFFINE_SIZE))
        models[f"{domain}::{op_type}, size is an {size}"] = parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 14, "{domain or "none"}": 1]>
            g (float[2, 2, 3] theta) => (float[2, 4, 5, 2] grid)
            <int64[4] size = {{{lengths}}}, bool align = {{1}}> {{
                grid = {node_text(op_type, domain, attributes)} ({", ".join(inputs)}) }}""")
    return models


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
