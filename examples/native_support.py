"""Print which nodes the installed onnxruntime runs: ``python examples/native_support.py``.

Each node is tried. There is a row for each version of an operator and the types of X (or theta)
with the same results: the types of the other input, the numbers of spatial axes, and the modes.
ort_gridsample runs all of them except complex types, which onnxruntime has no tensors of.
"""

from itertools import product

import onnxruntime
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample import spec

AXES = (1, 2, 3, 4)


def tensor(name: str, type_name: str, shape: list[int | None] | None):
    elem_type = TensorProto.DataType.Value(spec.TYPES[type_name].onnx.upper())
    return helper.make_tensor_value_info(name, elem_type, shape)


def runs(operator: str, opset: int, types: dict[str, str], axes: int, mode: str) -> bool:
    """Whether onnxruntime runs a model of one such node."""
    any_image = [None] * (axes + 2)
    shapes = {
        "X": any_image,
        "grid": any_image,
        "theta": [None, axes, axes + 1],
        "size": [axes + 2],
    }
    inputs = [tensor(name, type_name, shapes[name]) for name, type_name in types.items()]
    output = tensor("Y", next(iter(types.values())), None)
    node = helper.make_node(operator, list(types), ["Y"], **({"mode": mode} if mode else {}))
    graph = helper.make_graph([node], "one node", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    (record,) = ogs.inspect_model(model)
    return record.native


def supported_inputs(operator: str, opset: int, type_name: str) -> tuple[str, str]:
    """Return the types of the other input, and the modes for each number of spatial axes."""
    version = spec.OPERATORS[operator][opset]
    first, second = version.types
    modes = version.attributes["mode"].allowed if "mode" in version.attributes else ("",)
    runs_with = [
        (other, axes, mode or "yes")
        for other, axes, mode in product(version.types[second], AXES, modes)
        if (operator == "GridSample" or axes in (2, 3))
        and runs(operator, opset, {first: type_name, second: other}, axes, mode)
    ]
    others = dict.fromkeys(other for other, _, _ in runs_with)
    all_axes = dict.fromkeys(axes for _, axes, _ in runs_with)
    descriptions = []
    for n in all_axes:
        modes_of_n = dict.fromkeys(mode for _, axes, mode in runs_with if axes == n)
        descriptions.append(f"{n}-D: {', '.join(modes_of_n)}")
    return ", ".join(others) or "none", "; ".join(descriptions) or "nothing"


print(f"onnxruntime {onnxruntime.__version__}\n")
print("| operator | X or theta | grid or size | what runs |\n|---|---|---|---|")
for operator, versions in spec.OPERATORS.items():
    for opset, version in versions.items():
        same_results: dict[tuple[str, str], list[str]] = {}
        for type_name in next(iter(version.types.values())):
            same_results.setdefault(supported_inputs(operator, opset, type_name), []).append(
                type_name
            )
        for (others, modes), types in same_results.items():
            print(f"| {operator}-{opset} | {', '.join(types)} | {others} | {modes} |")
