"""What the installed onnxruntime runs by itself, asked of it by trying: ``python examples/native_support.py``.

A row for every version of an operator and the types of X (or theta) that fare alike: the grid types, the numbers of
spatial axes and the modes that run. ort_gridsample runs all of them but complex, which onnxruntime has no tensors of.
"""

from itertools import product

import onnxruntime
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample import spec

AXES = (1, 2, 3, 4)


def tensor(name: str, type_name: str, shape: list[int | None] | None):
    return helper.make_tensor_value_info(
        name, TensorProto.DataType.Value(spec.TYPES[type_name].onnx.upper()), shape
    )


def runs(operator: str, opset: int, types: dict[str, str], axes: int, mode: str) -> bool:
    """Whether onnxruntime runs a model of this one node."""
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


def what_runs(operator: str, opset: int, type_name: str) -> tuple[str, str]:
    """The other input's types, and the modes for each number of spatial axes, as text."""
    version = spec.OPERATORS[operator][opset]
    first, second = version.types
    modes = version.attributes["mode"].allowed if "mode" in version.attributes else ("",)
    found = [
        (other, axes, mode or "yes")
        for other, axes, mode in product(version.types[second], AXES, modes)
        if (operator == "GridSample" or axes in (2, 3))
        and runs(operator, opset, {first: type_name, second: other}, axes, mode)
    ]
    others = dict.fromkeys(other for other, _, _ in found)
    all_axes = dict.fromkeys(axes for _, axes, _ in found)
    by_axes = (
        f"{n}-D: {', '.join(dict.fromkeys(mode for _, axes, mode in found if axes == n))}"
        for n in all_axes
    )
    return ", ".join(others) or "none", "; ".join(by_axes) or "nothing"


print(f"onnxruntime {onnxruntime.__version__}\n")
print("| operator | X or theta | grid or size | what runs |\n|---|---|---|---|")
for operator, versions in spec.OPERATORS.items():
    for opset, version in versions.items():
        alike: dict[tuple[str, str], list[str]] = {}
        for type_name in next(iter(version.types.values())):
            alike.setdefault(what_runs(operator, opset, type_name), []).append(type_name)
        for (others, modes), types in alike.items():
            print(f"| {operator}-{opset} | {', '.join(types)} | {others} | {modes} |")
