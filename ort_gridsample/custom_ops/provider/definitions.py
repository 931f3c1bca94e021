"""The kernels of the execution provider: which nodes run on which compiled ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ... import spec
from ..compiled_ops.c_api import ELEMENT_TYPES
from ..compiled_ops.catalog import OPS, Op

#: The name of the provider.
NAME = "GridSampleExecutionProvider"
VENDOR = "ort_gridsample"

#: A version that no operator has.
_LAST = 1 << 20


@dataclass(frozen=True)
class Definition:
    """A kernel of the provider.

    Attributes:
        operator: the type of the nodes.
        domain: their domain.
        first: the first version of the operator.
        last: the last version.
        op: the compiled op that computes the nodes.
        types: the types of the node's inputs.
    """

    operator: str
    domain: str
    first: int
    last: int
    op: Op
    types: tuple[str, ...]

    @property
    def element_types(self) -> list[int]:
        """The ``ONNXTensorElementDataType`` of each input."""
        return [ELEMENT_TYPES[name] for name in self.types]


def _op(name: str) -> Op:
    return next(op for op in OPS if op.name == name)


def _versions(operator: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last opset of each version of a standard operator."""
    firsts = sorted(spec.OPERATORS[operator])
    for index, first in enumerate(firsts):
        is_newest = index + 1 == len(firsts)
        yield first, _LAST if is_newest else firsts[index + 1] - 1


def definitions() -> list[Definition]:
    """List the kernels of the provider."""
    kernels = []
    for operator in ("GridSample", "AffineGrid"):
        op = _op(operator)
        for first, last in _versions(operator):
            allowed = tuple(spec.OPERATORS[operator][first].types.values())
            for types in op.types:
                if all(name in names for name, names in zip(types, allowed, strict=True)):
                    kernels.append(Definition(operator, "", first, last, op, types))
    # In onnxruntime's operator from before the standard had one, T1 is the type of X and of the
    # grid, and T2 that of Y. Its own kernel is for float32 only.
    op = _op("GridSample")
    for types in op.types:
        if types[0] == types[1] and types[0] != "bfloat16":
            kernels.append(Definition("GridSample", "com.microsoft", 1, 1, op, types))
    return kernels
