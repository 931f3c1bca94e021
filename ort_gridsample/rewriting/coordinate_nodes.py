"""The nodes that compute coordinates, whose types no converter may change.

In float16, a coordinate among 1024 pixels is off by up to a quarter of a pixel; in eight bits, by
four pixels.

The nodes of decomposed deformable attention are listed as well. A converter writes Casts or
quantization between them, with which they could no longer be replaced by one op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple, TypeAlias

import onnx

from .. import spec
from ..detection.attention.layouts import Attention
from ..detection.find import SearchOptions, find_matches
from ..detection.helper_nodes import is_helper
from ..detection.lowered_names import lowered_from, reads_grid
from ..detection.node_checks import check_no_fused_nodes
from ..dialects.registry import attention_signature, dialect_of
from ..dialects.table import ATTENTION
from ..errors import GridSampleError, where_node
from ..functions.grid_operators import GRID_OPERATORS
from ..graph.scope import FunctionKey, Scope, display_name, domain_of, function_key, scopes_of
from ..inference.probe import Probe
from ..inference.views import LAYOUT_OPERATORS
from .targets import FUNCTIONS_DOMAIN

#: Operators that compute or rearrange coordinates. The outputs of others are not coordinates.
_ARITHMETIC = {
    *LAYOUT_OPERATORS,
    "Abs",
    "Add",
    "Cast",
    "Clip",
    "Constant",
    "Cos",
    "Div",
    "Floor",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Range",
    "Reciprocal",
    "ReduceSum",
    "Shape",
    "Sin",
    "Sub",
    "Sum",
    "Tile",
    "Where",
}
#: The inputs of deformable attention that are coordinates.
_COORDINATES_OF_ATTENTION = ("sampling_locations", "reference_points", "sampling_offsets")
#: The names of the nodes that nodes were lowered from; None for nodes that were not lowered.
_Origins: TypeAlias = set[str | None]


#: The search for attention that an op could replace. Nodes that were lowered stay decomposed.
_ONLY_ATTENTION = SearchOptions(decomposed=False, fused_grids=False)


def coordinate_nodes(model: onnx.ModelProto, *, attention: bool, probe: Probe | None) -> list[str]:
    """Return the names of coordinate nodes, as :func:`ort_gridsample.coordinate_nodes`.

    Args:
        model: the model.
        attention: whether to list the nodes of deformable attention.
        probe: returns types that onnx does not infer.
    """
    all_scopes = scopes_of(model)
    attention_nodes: dict[int, set[int]] = {}
    if attention:
        attention_nodes = _attention_nodes(model, all_scopes, probe)
    names: dict[str, None] = {}
    for scope, coordinates in coordinates_read(all_scopes):
        for index in sorted(coordinates.keys() | attention_nodes.get(id(scope), set())):
            node = scope.nodes[index]
            if not node.name:
                where = where_node(node.op_type, display_name(node))
                expected = "a name, because converters exclude nodes by name"
                raise GridSampleError(where, "name", "''", expected)
            names[node.name] = None
    return list(names)


def _attention_nodes(
    model: onnx.ModelProto, all_scopes: Sequence[Scope], probe: Probe | None
) -> dict[int, set[int]]:
    """Return the indices of the nodes of decomposed deformable attention, by the id of the scope.

    They are the nodes between the operands and the output.
    """
    indices: dict[int, set[int]] = {}
    matches = find_matches(model, all_scopes, probe, with_reasons=False, options=_ONLY_ATTENTION)
    for match in matches:
        if match.detected_attention is not None:
            nodes = indices.setdefault(id(match.scope), set())
            nodes |= _nodes_after_operands(match.scope, match.detected_attention)
    return indices


def _nodes_after_operands(scope: Scope, attention: Attention) -> set[int]:
    """Return the nodes of ``attention`` that rearrange, sample or add up its operands.

    The other ones compute shapes, which converters do not change.
    """
    operands = (attention.value, attention.locations, attention.weights)
    reached = {operand.name for operand in operands if operand is not None}
    indices = set(attention.path)
    for index in sorted(attention.nodes):
        is_shape = scope.op_types[index] == "Shape"
        if index in indices or (not is_shape and not reached.isdisjoint(scope.inputs[index])):
            indices.add(index)
            reached.update(scope.outputs[index])
    return indices


def coordinates_read(
    all_scopes: Sequence[Scope],
) -> Iterator[tuple[Scope, dict[int, Sequence[str]]]]:
    """Yield the scopes outside functions, and their coordinate nodes.

    Yields:
        Pairs of a scope and a dictionary: the index of a coordinate node -> the coordinates that
        the node reads.

    Raises:
        GridSampleError: a session has fused a node of the model.
    """
    check_no_fused_nodes(all_scopes)
    functions = _functions_of(all_scopes)
    for scope in all_scopes:
        if scope.function is None:
            yield scope, _coordinate_nodes(scope, functions)


class _Functions(NamedTuple):
    """The keys of a model's functions.

    Attributes:
        all: the keys of all functions.
        sampling: the keys of those that sample, or call functions that do.
    """

    all: Set[FunctionKey]
    sampling: Set[FunctionKey]


def _coordinate_nodes(scope: Scope, functions: _Functions) -> dict[int, Sequence[str]]:
    """Return the coordinate nodes of ``scope``, as :func:`coordinates_read`.

    They are the sampling nodes, the nodes that these were lowered to, and the arithmetic of which
    all results are read as coordinates.

    Args:
        scope: the list of nodes to search.
    """
    lowered = _lowered_values(scope)
    read: dict[int, Sequence[str]] = {}
    for index, node in reversed([*enumerate(scope.nodes)]):
        coordinates = _coordinates(node, scope, functions)
        if coordinates is not None or any(name in lowered for name in node.output):
            read[index] = coordinates or ()
        elif node.op_type in _ARITHMETIC and not domain_of(node.domain):
            is_coordinate = []
            for name in node.output:
                for reader in scope.readers.get(name, ()):
                    is_coordinate.append(name in read.get(reader, ()))
            if is_coordinate and all(is_coordinate):
                read[index] = node.input
    return dict(sorted(read.items()))


def _coordinates(
    node: onnx.NodeProto,
    scope: Scope,
    functions: _Functions,
) -> Sequence[str] | None:
    """Return the coordinates that ``node`` reads; None if it does not sample."""
    if lowered_from(node) is not None:
        return node.input if reads_grid(node) else ()
    dialect = dialect_of(node, scope.opsets, functions.all)
    if dialect is not None and dialect.operator == ATTENTION:
        return _coordinates_of_attention(node)
    if dialect is not None or node.domain == FUNCTIONS_DOMAIN:
        operator = node.op_type if dialect is None else dialect.operator
        return node.input if operator.startswith(tuple(GRID_OPERATORS)) else node.input[1:]
    return () if function_key(node) in functions.sampling or is_helper(node) else None


def _coordinates_of_attention(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a deformable attention that its locations are computed from."""
    signature = attention_signature(node)
    arguments = tuple(spec.newest(ATTENTION).types) if signature is None else signature.inputs
    return [
        name
        for argument, name in zip(arguments, node.input, strict=False)
        if argument in _COORDINATES_OF_ATTENTION
    ]


def _lowered_values(scope: Scope) -> set[str]:
    """Return the values that lowered nodes make.

    Nodes that onnxruntime inserted between the nodes of one lowered node are included.
    """
    readers: dict[str, _Origins] = {}
    for node in scope:
        for name in node.input:
            readers.setdefault(name, set()).add(lowered_from(node))
    makers: dict[str, _Origins] = {}
    for node in scope:
        origin = lowered_from(node)
        if origin is not None:
            makers.update((name, {origin}) for name in node.output)
            continue
        before: _Origins = set().union(*(makers.get(name, ()) for name in node.input))
        after: _Origins = set().union(*(readers.get(name, {None}) for name in node.output))
        if len(before) == 1 and after == before and node.op_type in _ARITHMETIC:
            makers.update((name, before) for name in node.output)
    return set(makers)


def _functions_of(all_scopes: Sequence[Scope]) -> _Functions:
    """Return the keys of the functions of a model."""
    keys = {function_key(scope.function) for scope in all_scopes if scope.function is not None}
    sampling: set[FunctionKey] = set()
    functions = _Functions(keys, sampling)
    while True:
        size = len(sampling)
        for scope in all_scopes:
            if scope.function is None:
                continue
            if any(_coordinates(node, scope, functions) is not None for node in scope):
                sampling.add(function_key(scope.function))
        if len(sampling) == size:
            return functions
