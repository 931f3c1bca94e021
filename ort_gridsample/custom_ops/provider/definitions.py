"""The operators of the execution provider, and the compiled ops that compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ... import spec
from ...detection.coordinate_rules import COORDINATE_RULES
from ...functions.grid_operators import GRID_OPERATORS
from ..compiled_ops.catalog import OPS, Op

#: The name of the provider.
NAME = "GridSampleExecutionProvider"
VENDOR = "ort_gridsample"

_MICROSOFT = "com.microsoft"
#: The domains of the operators.
DOMAINS = ("", _MICROSOFT)
#: The operators of the nodes that may compute a fused grid.
FUSED_OPERATORS = frozenset(
    {
        *COORDINATE_RULES,
        *GRID_OPERATORS,
        *(spec.OP_SPECS[name].compiled_type for name in GRID_OPERATORS),
        "Cast",
    }
)
#: The versions of an operator whose later versions are not known yet.
_LAST = 1 << 20
#: The types of com.microsoft's GridSample that have kernels.
_MICROSOFT_TYPES = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Overload:
    """The op for a combination of types.

    Attributes:
        op: the compiled op.
        types: the types of its inputs.
    """

    op: Op
    types: tuple[str, ...]


@dataclass(frozen=True)
class Definition:
    """An operator of the provider.

    Attributes:
        operator: the type of the nodes.
        domain: their domain.
        first: the first version of the operator.
        last: the last version.
        types: the types that T1 and T2 allow.
    """

    operator: str
    domain: str
    first: int
    last: int
    types: tuple[tuple[str, ...], ...]


def overloads() -> list[Overload]:
    """List the ops for all combinations of types.

    No two standard operators have inputs of the same types, so that the types of a node's inputs
    determine its op.
    """
    ops = [op for op in OPS if op.name in spec.OPERATORS]
    return [Overload(op, types) for op in ops for types in op.types]


def definitions(available: Sequence[Overload]) -> list[Definition]:
    """List the operators of a provider whose overloads are those ``available``."""
    result = []
    for operator in spec.OPERATORS:
        combinations = [overload.types for overload in available if overload.op.name == operator]
        for first, last in _versions(operator):
            allowed = tuple(spec.OPERATORS[operator][first].types.values())
            types = tuple(
                tuple(name for name in names if any(name == row[index] for row in combinations))
                for index, names in enumerate(allowed)
            )
            result.append(Definition(operator, "", first, last, types))
        if operator == "GridSample":
            # onnxruntime's operator from before the standard had one. X and the grid are of type
            # T1, Y of type T2. onnxruntime's own kernel is for float32 only.
            same = tuple(name for name in _MICROSOFT_TYPES if (name, name) in combinations)
            result.append(Definition(operator, _MICROSOFT, 1, 1, (same, same)))
    return [definition for definition in result if all(definition.types)]


def _versions(operator: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last opset of each version of a standard operator."""
    firsts = sorted(spec.OPERATORS[operator])
    for index, first in enumerate(firsts):
        is_newest = index + 1 == len(firsts)
        yield first, _LAST if is_newest else firsts[index + 1] - 1
