"""Find the subgraphs of a graph that the provider runs as one node each."""

from __future__ import annotations

import logging

from ...detection.attention.matcher import values_to_infer
from ...detection.find import SearchOptions, find_matches
from ...graph.scope import scopes_of
from ...graph.use_def import UseDef
from ...inference.lengths import OPERATORS
from .attention_fusion import fuse_attention
from .fused_subgraph import FusedSubgraph, NotFusedError
from .grid_fusion import fuse_grid_sample, values_of_grids
from .ort_graph import Graph

logger = logging.getLogger("ort_gridsample")

_SEARCH_OPTIONS = SearchOptions(decomposed=False)


def find_fused_subgraphs(graph: Graph) -> list[FusedSubgraph]:
    """Return the subgraphs of ``graph`` that become one node each.

    A node is in at most one subgraph. Nodes that another provider runs are in none. Deformable
    attention has precedence over the computed grids of its GridSamples.
    """
    values = _values_to_read(graph)
    if not values:
        return []
    model = graph.model(values)
    scopes = scopes_of(model)
    subgraphs: list[FusedSubgraph] = []
    fused_indices = set[int]()
    # find_matches() returns the attentions first.
    for match in find_matches(model, scopes, None, with_reasons=False, options=_SEARCH_OPTIONS):
        if match.index in fused_indices:
            continue
        try:
            subgraph = fuse_attention(match) or fuse_grid_sample(match)
            if subgraph is None or not fused_indices.isdisjoint(subgraph.nodes):
                continue
            _check_unassigned(graph, subgraph)
        except NotFusedError as reason:
            logger.debug("%s is not fused by the provider: %s", match.record.where, reason)
            continue
        fused_indices |= subgraph.nodes
        subgraphs.append(subgraph)
    return subgraphs


def _check_unassigned(graph: Graph, subgraph: FusedSubgraph) -> None:
    """Check that no other provider runs a node of ``subgraph``.

    Raises:
        NotFusedError: another provider runs one.
    """
    for index in sorted(subgraph.nodes):
        node = graph.nodes[index]
        if graph.is_assigned(node):
            name = node.outputs[0] if node.outputs else ""
            raise NotFusedError(f"another provider runs {node.op_type} with output {name!r}")


def _values_to_read(graph: Graph) -> set[str]:
    """Return the values that the searches visit.

    The searches read the types of these values, and the attributes of the nodes that compute them.
    """
    (scope,) = scopes_of(graph.outline())
    use_def = UseDef(scope)
    values = set(use_def.backward_closure(values_to_infer(use_def), OPERATORS))
    values.update(values_of_grids(use_def))
    return values
