"""Small models made of the operators' nodes."""

import re
from collections.abc import Sequence

import onnx
import onnx.parser
from onnx import TensorProto, helper

from ort_gridsample import spec
from support import faults
from support.cases import Attributes

#: Every operator that nodes lowered to primitives may be.
PRIMITIVES = {
    *(
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
    ),
    *(
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
    ),
    *("Transpose", "Where"),
}

_OPSET_16_MODES = {mode: synonym for synonym, mode in spec.MODE_SYNONYMS.items()}


def parsed(text: str, opset: int = 20) -> onnx.ModelProto:
    """The model of this graph, and of the functions behind it; other domains that it calls are of version 1."""
    imports = "".join(
        f', "{domain}": 1'
        for domain in sorted({*re.findall(r"([A-Za-z_][\w.]*)\.\w+ ?[<(]", text)})
    )
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{imports}]> {text}')


def tensor_type(name: str) -> int:
    """The ONNX element type of a name in ``spec.TYPES``."""
    return TensorProto.DataType.Value(spec.TYPES[name].onnx.upper())


def node_attributes(attributes: Attributes, opset: int) -> dict[str, str | int]:
    """The attributes as a GridSample node of this opset writes them."""
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
    """A model of inputs X and grid with one GridSample node and output, Y0, Y1, …, for each of ``attributes``.

    It is of the newest opset that onnxruntime reads where none is said, but bfloat16 came with opset 22. ``planar``:
    the coordinates of the grid come in planes, one behind the other, and the model moves them for each node.
    """
    opset = opset or (22 if "bfloat16" in (X_type, grid_type) else faults.OPSET)
    nodes = []
    for i, each in enumerate(attributes):
        grid = f"moved{i}" if planar else "grid"
        if planar:
            nodes.append(
                helper.make_node("Transpose", ["grid"], [grid], perm=[0, *range(2, rank + 2), 1])
            )
        said = node_attributes(each, opset)
        nodes.append(helper.make_node("GridSample", ["X", grid], [f"Y{i}"], f"sample{i}", **said))
    X_shape = ["N", "C", *(f"D{i}" for i in range(rank))]
    outputs = [f"D{i}_out" for i in range(rank)]
    inputs = {
        "X": (X_type, X_shape),
        "grid": (grid_type, ["N", rank, *outputs] if planar else ["N", *outputs, rank]),
    }
    return make_model(
        nodes,
        inputs,
        {f"Y{i}": (X_type, ["N", "C", *outputs]) for i in range(len(attributes))},
        opset,
    )


def affine_grid_model(theta_type: str, rank: int, align_corners: bool) -> onnx.ModelProto:
    """A model of inputs theta and size with one AffineGrid node and output, grid."""
    node = helper.make_node(
        "AffineGrid", ["theta", "size"], ["grid"], align_corners=int(align_corners)
    )
    inputs = {"theta": (theta_type, ["N", rank, rank + 1]), "size": ("int64", [rank + 2])}
    grid = (theta_type, ["N", *(f"D{i}" for i in range(rank)), rank])
    return make_model([node], inputs, {"grid": grid}, 22 if theta_type == "bfloat16" else 20)


def loose(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the shapes that onnxruntime would check before an op does."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    return model


def function_of(model: onnx.ModelProto, domain: str, name: str) -> onnx.FunctionProto:
    """The whole model as a function, in which the initializers are constants."""
    graph = model.graph
    held = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in graph.initializer
    ]
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    return helper.make_function(
        domain, name, inputs, outputs, [*held, *graph.node], model.opset_import
    )


Values = dict[str, tuple[str, list]]


def make_model(
    nodes: list[onnx.NodeProto], inputs: Values, outputs: Values, opset: int
) -> onnx.ModelProto:
    """A checked model whose bfloat16 inputs and outputs are float32 outside: NumPy knows no bfloat16.

    ``inputs`` and ``outputs`` are (type, shape) by name.
    """
    nodes = list(nodes)

    def outside(values: Values) -> list[onnx.ValueInfoProto]:
        carried = {
            name: "float32" if type_ == "bfloat16" else type_ for name, (type_, _) in values.items()
        }
        return [
            helper.make_tensor_value_info(name, tensor_type(carried[name]), values[name][1])
            for name in values
        ]

    for field, values in (("input", inputs), ("output", outputs)):
        for name in [name for name, (type_, _) in values.items() if type_ == "bfloat16"]:
            inner = f"{name}_bfloat16"
            for edges in (getattr(node, field) for node in nodes):
                edges[:] = [inner if edge == name else edge for edge in edges]
            if field == "input":
                nodes.insert(0, helper.make_node("Cast", [name], [inner], to=TensorProto.BFLOAT16))
            else:
                nodes.append(helper.make_node("Cast", [inner], [name], to=TensorProto.FLOAT))
    graph = helper.make_graph(nodes, "test", outside(inputs), outside(outputs))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model
