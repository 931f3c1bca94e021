"""AffineGrid nodes whose grid is read by one GridSample alone: found in a graph, and made one node with it.

Between the two may stand what exporters leave there and what changes no place: Identities, Transposes that undo each
other, and a Cast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from ..spec import newest
from .dialects import COMPILED, EXTENSIONS_DOMAIN, FUSED, Dialect, dialect_of
from .element_types import type_of
from .graphs import Scope, domain_of, function_key, scopes, subgraphs
from .helpers import guards, is_helper
from .use_def import rewrite


@dataclass(frozen=True)
class Pair:
    """An AffineGrid and the GridSample that alone reads its grid.

    Attributes:
        affine, sample: their positions in their scope.
        between: those of the nodes between them.
        grid_type: the type that the grid is cast to, by numpy's name; empty where it stays theta's.
    """

    affine: int
    sample: int
    between: tuple[int, ...]
    grid_type: str


def pairs(scope: Scope, functions: Collection[tuple[str, str, str]], dialect: str | None = None) -> Iterator[Pair]:
    """The pairs in ``scope``, of nodes in the ``dialect`` of that name; None: in any.

    ``functions`` are the keys (:func:`.graphs.function_key`) of its model's functions.
    """
    nodes = list(scope)
    spelled: dict[int, Dialect] = {}
    for index, node in enumerate(nodes):
        found = dialect_of(node, scope.opsets, functions)
        if found is not None and dialect in (None, found.name):
            spelled[index] = found
    if len({each.operator for each in spelled.values()}) < 2:
        return
    makers = {name: index for index, node in enumerate(nodes) for name in node.output}
    reads = Counter(_read(scope))
    for sample, found in spelled.items():
        if found.operator == "GridSample" and len(nodes[sample].input) > 1:
            pair = _back_from(sample, nodes, makers, reads, spelled)
            if pair is not None:
                yield pair


def _read(scope: Scope) -> Iterator[str]:
    """Every name that is read in ``scope`` or in what it holds, as often as it is."""
    yield from (
        scope.container.output
        if isinstance(scope.container, onnx.FunctionProto)
        else (value.name for value in scope.container.output)
    )
    graphs: list[Sequence[onnx.NodeProto]] = [scope.container.node]
    for nodes in graphs:  # grows while it is walked
        for node in nodes:
            yield from node.input
            for _, graph in subgraphs(node):
                yield from (value.name for value in graph.output)
                graphs.append(graph.node)


def _back_from(
    sample: int,
    nodes: Sequence[onnx.NodeProto],
    makers: dict[str, int],
    reads: Counter[str],
    spelled: dict[int, Dialect],
) -> Pair | None:
    between: list[int] = []
    order: list[int] | None = None
    value, grid_type = nodes[sample].input[1], ""
    while True:
        at = makers.get(value)
        if at is None or reads[value] != 1:
            return None
        node = nodes[at]
        if at in spelled:
            if spelled[at].operator != "AffineGrid" or len(node.input) != 2:
                return None
            if order is not None and order != sorted(order):
                return None
            return Pair(at, sample, tuple(between), grid_type)
        is_guard = guards(node, nodes[makers.get(next(iter(node.input), ""), at)])
        is_type = is_helper(node) and node.op_type == "CastLike"
        if domain_of(node.domain) or not (is_guard or is_type or len(node.input) == 1):
            return None
        if node.op_type == "Cast" and not grid_type:
            to = next((a.i for a in node.attribute if a.name == "to" and not a.ref_attr_name), 0)
            grid_type = type_of(to) or ""
            if grid_type not in newest("GridSample").types["grid"]:
                return None
        elif node.op_type == "Transpose" and node.attribute and not node.attribute[0].ref_attr_name:
            axes = list(node.attribute[0].ints)
            order = axes if order is None else [axes[axis] for axis in order]
        elif node.op_type != "Identity" and not (is_guard or is_type):
            return None
        between.append(at)
        value = node.input[0]


def fuse(model: onnx.ModelProto) -> dict[str, str]:
    """Make each pair of compiled ops in ``model`` one node; answers with the AffineGrids' labels and GridSamples'."""
    fused: dict[str, str] = {}
    functions = {function_key(function) for function in model.functions}
    for scope in reversed(scopes(model)):  # inner graphs first: a list of nodes that was rewritten holds copies
        found = list(pairs(scope, functions, COMPILED))
        if found:
            nodes = list(scope)
            replaced = {index: list[onnx.NodeProto]() for pair in found for index in (pair.affine, *pair.between)}
            replaced |= {
                pair.sample: [_fused(nodes[pair.affine], nodes[pair.sample], pair.grid_type)] for pair in found
            }
            fused.update((label(nodes[pair.affine]), label(nodes[pair.sample])) for pair in found)
            rewrite(scope, replaced)
    return fused


def label(node: onnx.NodeProto) -> str:
    """How errors name the compiled op ``node``."""
    return next((a.s.decode() for a in node.attribute if a.name == "node"), node.name)


def _fused(affine: onnx.NodeProto, sample: onnx.NodeProto, grid_type: str) -> onnx.NodeProto:
    node = onnx.NodeProto()
    node.CopyFrom(sample)
    node.op_type, node.domain = FUSED, EXTENSIONS_DOMAIN
    del node.input[:]
    node.input.extend([sample.input[0], *affine.input])
    for attribute in affine.attribute:
        if attribute.name == "align_corners":
            node.attribute.add().CopyFrom(attribute)
            node.attribute[-1].name = "affine_grid_align_corners"
    node.attribute.append(helper.make_attribute("affine_grid_node", label(affine)))
    if grid_type:
        node.attribute.append(helper.make_attribute("grid_type", grid_type))
    return node
