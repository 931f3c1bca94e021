"""The nodes that compute coordinates, whose types no converter may change.

In float16 a coordinate among 1024 pixels is off by up to a quarter of one, in eight bits by four.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import onnx

from ..detection.helpers import is_helper, lowered_from, reads_grid
from ..dialects.registry import dialect_of
from ..errors import GridSampleError
from ..graph.scope import Key, Scope, domain_of, function_key, scopes
from .targets import FUNCTIONS_DOMAIN
from .unfusing import is_fused

#: Operators that compute or rearrange coordinates; the output of any other is the rest of the net's.
_ARITHMETIC = {
    *("Abs", "Add", "Cast", "Clip", "Concat", "Constant", "Cos", "Div", "Expand", "Floor", "Gather", "Identity"),
    *("Max", "Min", "Mod", "Mul", "Neg", "Range", "Reciprocal", "ReduceSum", "Reshape", "Shape", "Sin", "Slice"),
    *("Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where"),
}


def coordinate_nodes(model: onnx.ModelProto) -> list[str]:
    """Do as :func:`ort_gridsample.coordinate_nodes`."""
    names: dict[str, None] = {}
    for scope, coordinates in coordinates_read(scopes(model)):
        for node in (scope.nodes[index] for index in coordinates):
            if not node.name:
                where = f"{node.op_type} node ({', '.join(node.output)})"
                raise GridSampleError(where, "name", "''", "a name, by which it can be left alone")
            names[node.name] = None
    return list(names)


def coordinates_read(found: Sequence[Scope]) -> Iterator[tuple[Scope, dict[int, Sequence[str]]]]:
    """For each scope outside functions, the positions of its coordinate nodes and the coordinates that each reads."""
    sampling = _sampling_functions(found)
    for scope in found:
        if scope.function is None:
            yield scope, _coordinate_nodes(scope, sampling)


def _coordinate_nodes(scope: Scope, sampling: Container[Key]) -> dict[int, Sequence[str]]:
    """Those of ``scope``: the nodes concerned, what they were lowered to, and what leads to their coordinates alone."""
    readers, lowered = scope.readers, _lowered(scope)
    read: dict[int, Sequence[str]] = {}  # the position of a chosen node -> the values that it reads as coordinates
    for index, node in reversed([*enumerate(scope.nodes)]):
        coordinates = _coordinates(node, scope, sampling)
        if coordinates is not None or any(name in lowered for name in node.output):
            read[index] = coordinates or ()
        elif node.op_type in _ARITHMETIC and not domain_of(node.domain):
            as_coordinates = [name in read.get(at, ()) for name in node.output for at in readers.get(name, ())]
            if as_coordinates and all(as_coordinates):
                read[index] = node.input
    return dict(sorted(read.items()))


def _coordinates(node: onnx.NodeProto, scope: Scope, sampling: Container[Key]) -> Sequence[str] | None:
    """What ``node`` reads as coordinates; None where it is none concerned."""
    if lowered_from(node) is not None:
        return node.input if reads_grid(node) else ()
    dialect = dialect_of(node, scope.opsets)
    if dialect is not None or node.domain == FUNCTIONS_DOMAIN or is_fused(node):
        operator = node.op_type if dialect is None else dialect.operator
        return node.input if operator.startswith("AffineGrid") else node.input[1:]
    return () if function_key(node) in sampling or is_helper(node) else None


def _lowered(scope: Scope) -> set[str]:
    """The values between the nodes that one was lowered to, those included that onnxruntime put between them."""
    made: dict[str, set[str | None]] = {}
    read: dict[str, set[str | None]] = {}
    origins: set[str | None]
    for node in scope:
        for name in node.input:
            read.setdefault(name, set()).add(lowered_from(node))
    for node in scope:
        before = lowered_from(node)
        origins = set().union(*(made.get(name, ()) for name in node.input)) if before is None else {before}
        after = set().union(*(read.get(name, {None}) for name in node.output))
        if before is not None or (len(origins) == 1 and after == origins and node.op_type in _ARITHMETIC):
            made.update((name, origins) for name in node.output)
    return set(made)


def _sampling_functions(found: Sequence[Scope]) -> set[Key]:
    """The keys of the functions in which, or in what they call, there is a node concerned."""
    sampling: set[Key] = set()
    while True:
        more = {
            function_key(scope.function)
            for scope in found
            if scope.function is not None and any(_coordinates(node, scope, sampling) is not None for node in scope)
        }
        if more <= sampling:
            return sampling
        sampling |= more
