"""What the installed onnxruntime runs by itself, asked of it by trying: ``python examples/native_support.py``.

A row for every version of an operator and the types of X (or theta) that fare alike: the grid types, the numbers of
spatial axes and the modes that run. ort_gridsample runs all of them but complex, which onnxruntime has no tensors of.
"""

from itertools import product

import onnxruntime

from ort_gridsample import spec
from ort_gridsample.runtime import native


def what_runs(operator: str, opset: int, type_name: str) -> tuple[str, str]:
    """The other input's types, and the modes for each number of spatial axes, as text."""
    version = spec.OPERATORS[operator][opset]
    first, second = version.types
    modes = version.attributes["mode"].allowed if "mode" in version.attributes else ("yes",)
    runs = [
        (other, axes, mode)
        for other, axes, mode in product(version.types[second], (1, 2, 3, 4), modes)
        if (operator == "GridSample" or axes in (2, 3))
        and not native.refusal(
            operator, opset, {first: type_name, second: other}, axes, {"mode": mode} if mode != "yes" else {}
        )
    ]
    others = dict.fromkeys(other for other, _, _ in runs)
    all_axes = dict.fromkeys(axes for _, axes, _ in runs)
    by_axes = (f"{n}-D: {', '.join(dict.fromkeys(mode for _, axes, mode in runs if axes == n))}" for n in all_axes)
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
