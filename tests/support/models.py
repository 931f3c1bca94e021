"""Small models of the operators' nodes."""

import re
from collections.abc import Sequence

import onnx
import onnx.parser
from onnx import TensorProto, helper

from ort_gridsample import spec
from support import faults
from support.cases import Attributes

#: The operators that a model lowered to primitives may have.
PRIMITIVES = {
    "Abs",
    "Add",
    "Cast",
    "Clip",
    "Concat",
    "Constant",
    "Div",
    "Equal",
    "Expand",
    "Floor",
    "Gather",
    "Less",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Pad",
    "Range",
    "ReduceSum",
    "Reshape",
    "Round",
    "Shape",
    "Split",
    "Sub",
    "Transpose",
    "Where",
}

#: mode -> its name before opset 20, for the modes that were renamed.
_OPSET_16_MODES = {mode: synonym for synonym, mode in spec.MODE_SYNONYMS.items()}


#: The domain of this package's own nodes, and its version.
DOMAIN = "ort_gridsample"
VERSION = 1


def parsed(text: str, opset: int = 20) -> onnx.ModelProto:
    """Parse the text of a graph, and of the functions that follow it.

    The domains of operators that the graph calls are imported in version 1.
    """
    domains = sorted({*re.findall(r"([A-Za-z_][\w.]*)\.\w+ ?[<(]", text)})
    imports = "".join(f', "{domain}": 1' for domain in domains)
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{imports}]> {text}')


def tensor_type(name: str) -> int:
    """Return the ONNX element type of a name in ``spec.TYPES``."""
    return TensorProto.DataType.Value(spec.TYPES[name].onnx.upper())


def is_standard(attributes: Attributes) -> bool:
    """Whether a standard node can have these attributes."""
    has_mode = spec.mode_of(attributes.mode) in spec.MODES
    return has_mode and attributes.padding_mode in spec.PADDING_MODES


def node_attributes(attributes: Attributes, opset: int) -> dict[str, str | int]:
    """Return the attributes of a GridSample node, spelled as in this opset."""
    mode = spec.mode_of(attributes.mode)
    return {
        "mode": _OPSET_16_MODES.get(mode, mode) if opset < 20 else mode,
        "padding_mode": attributes.padding_mode,
        "align_corners": int(attributes.align_corners),
    }


def grid_sample_model(
    X_type: str,
    grid_type: str,
    rank: int,
    attributes: Sequence[Attributes],
    opset: int = 0,
    planar: bool = False,
) -> onnx.ModelProto:
    """Return a model of X and grid, with one GridSample node for each of ``attributes``.

    Args:
        X_type: a name in ``spec.TYPES``.
        grid_type: a name in ``spec.FLOATS``.
        rank: the number of spatial axes.
        attributes: those of the nodes. Node i has the output ``Yi``. Nodes with a mode or a padding
            that no specification has are of this package's domain.
        opset: by default the newest that onnxruntime reads, or 22 for bfloat16.
        planar: whether the input grid has its coordinates in axis 1. Each node is then preceded by
            a Transpose.
    """
    opset = opset or (22 if "bfloat16" in (X_type, grid_type) else faults.OPSET)
    nodes = []
    for i, node_values in enumerate(attributes):
        grid = "grid"
        if planar:
            grid = f"moved{i}"
            perm = [0, *range(2, rank + 2), 1]
            nodes.append(helper.make_node("Transpose", ["grid"], [grid], perm=perm))
        written = node_attributes(node_values, opset)
        node = helper.make_node("GridSample", ["X", grid], [f"Y{i}"], f"sample{i}", **written)
        if not is_standard(node_values):
            node.domain = DOMAIN
        nodes.append(node)
    lengths = [f"D{i}" for i in range(rank)]
    output_lengths = [f"D{i}_out" for i in range(rank)]
    grid_shape = ["N", rank, *output_lengths] if planar else ["N", *output_lengths, rank]
    inputs = {"X": (X_type, ["N", "C", *lengths]), "grid": (grid_type, grid_shape)}
    Y_shape = ["N", "C", *output_lengths]
    outputs = {f"Y{i}": (X_type, Y_shape) for i in range(len(attributes))}
    return make_model(nodes, inputs, outputs, opset)


def affine_grid_model(theta_type: str, rank: int, align_corners: bool) -> onnx.ModelProto:
    """Return a model of theta and size, with one AffineGrid node and its output grid."""
    node = helper.make_node(
        "AffineGrid", ["theta", "size"], ["grid"], align_corners=int(align_corners)
    )
    inputs = {"theta": (theta_type, ["N", rank, rank + 1]), "size": ("int64", [rank + 2])}
    grid = (theta_type, ["N", *(f"D{i}" for i in range(rank)), rank])
    return make_model([node], inputs, {"grid": grid}, 22 if theta_type == "bfloat16" else 20)


def loose(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the shapes of the inputs and outputs, which onnxruntime would check before an op."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    return model


def function_of(model: onnx.ModelProto, domain: str, name: str) -> onnx.FunctionProto:
    """Return the main graph of ``model`` as a function, with its initializers as constants."""
    graph = model.graph
    constants = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
    ]
    inputs = [value.name for value in graph.input]
    outputs = [value.name for value in graph.output]
    nodes = [*constants, *graph.node]
    return helper.make_function(domain, name, inputs, outputs, nodes, model.opset_import)


#: The name of an input or output -> its type and shape.
Values = dict[str, tuple[str, list]]


def make_model(
    nodes: list[onnx.NodeProto], inputs: Values, outputs: Values, opset: int
) -> onnx.ModelProto:
    """Return a checked model of these nodes.

    NumPy has no bfloat16: such inputs and outputs of the nodes are float32 in the model, and are
    cast.
    """
    nodes = list(nodes)
    for name in _bfloat16_names(inputs):
        _rename_edges(nodes, "input", name, f"{name}_bfloat16")
        cast = helper.make_node("Cast", [name], [f"{name}_bfloat16"], to=TensorProto.BFLOAT16)
        nodes.insert(0, cast)
    for name in _bfloat16_names(outputs):
        _rename_edges(nodes, "output", name, f"{name}_bfloat16")
        cast = helper.make_node("Cast", [f"{name}_bfloat16"], [name], to=TensorProto.FLOAT)
        nodes.append(cast)
    graph = helper.make_graph(nodes, "test", _value_infos(inputs), _value_infos(outputs))
    imports = [helper.make_opsetid("", opset)]
    domains = {node.domain for node in nodes} - {""}
    imports += [helper.make_opsetid(domain, VERSION) for domain in sorted(domains)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    onnx.checker.check_model(model, full_check=not domains)
    return model


def _bfloat16_names(values: Values) -> list[str]:
    return [name for name, (type_, _) in values.items() if type_ == "bfloat16"]


def _rename_edges(nodes: list[onnx.NodeProto], field: str, name: str, new_name: str) -> None:
    """Rename a value in the inputs or outputs of the nodes."""
    for node in nodes:
        edges = getattr(node, field)
        edges[:] = [new_name if edge == name else edge for edge in edges]


def _value_infos(values: Values) -> list[onnx.ValueInfoProto]:
    infos = []
    for name, (type_, shape) in values.items():
        stored_type = "float32" if type_ == "bfloat16" else type_
        infos.append(helper.make_tensor_value_info(name, tensor_type(stored_type), shape))
    return infos
