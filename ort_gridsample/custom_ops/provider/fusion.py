"""Find the subgraphs of a graph that the provider runs as one node each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from ...detection.attention.matcher import values_to_infer
from ...detection.find import SearchOptions, find_matches
from ...detection.hosts import choose_hosts
from ...detection.match import Match
from ...dialects.registry import operator_types
from ...graph.scope import Scope, scopes_of
from ...graph.use_def import UseDef
from ...inference.lengths import OPERATORS
from .attention_fusion import fuse_attention
from .definitions import FUSED_OPERATORS
from .fused_subgraph import FusedSubgraph, NotFusedError
from .grid_fusion import check_grid_is_not_computed, fuse_grid_sample, grids_of, values_of_grids
from .ort_graph import Graph

logger = logging.getLogger("ort_gridsample")

_SEARCH_OPTIONS = SearchOptions(decomposed=False)


def find_fused_subgraphs(graph: Graph) -> list[FusedSubgraph]:
    """Return the subgraphs of ``graph`` that become one node each.

    A node is in at most one subgraph. Nodes that another provider runs are in none.
    """
    (outline,) = scopes_of(graph.outline())
    values = _values_to_read(graph, outline)
    if not values:
        return []
    model = graph.model(values)
    scopes = scopes_of(model)
    matches = find_matches(model, scopes, None, with_reasons=False, options=_SEARCH_OPTIONS)
    subgraphs: dict[Match, FusedSubgraph] = {}

    def can_fuse(host: Match) -> bool:
        try:
            subgraph = subgraph_of(host)
            _check_unassigned(graph, subgraph)
        except NotFusedError as reason:
            _log_reason(host, reason)
            return False
        subgraphs[host] = subgraph
        return True

    absorbed = {match for host in choose_hosts(matches, can_fuse) for match in host.absorbed}
    for match in matches:
        if not match.is_host and match not in absorbed:
            try:
                check_grid_is_not_computed(match, outline)
            except NotFusedError as reason:
                _log_reason(match, reason)
    return list(subgraphs.values())


def subgraph_of(host: Match) -> FusedSubgraph:
    """Return the nodes that become one node if a host is fused.

    Raises:
        NotFusedError: the provider cannot fuse them.
    """
    if host.detected_attention is not None:
        return fuse_attention(host, host.detected_attention)
    assert host.fused_grid is not None  # otherwise it is no host
    return fuse_grid_sample(host, host.fused_grid)


def _log_reason(match: Match, reason: NotFusedError) -> None:
    logger.debug("%s is not fused by the provider: %s", match.record.where, reason)


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


def _values_to_read(graph: Graph, scope: Scope) -> set[str]:
    """Return the values that the searches visit, without those at which they end.

    The searches read the types of these values, the attributes of the nodes that compute them, and
    the types of the inputs of these nodes. The types of the values at the ends are those that
    onnxruntime has inferred from all nodes of the graph.

    Args:
        scope: the outline of ``graph``.
    """
    use_def = UseDef(scope)
    values = set(use_def.backward_closure(values_to_infer(use_def), OPERATORS))
    grid_values = set(values_of_grids(use_def))
    values |= grid_values
    visited = OPERATORS | FUSED_OPERATORS | operator_types() | {"ReduceSum"}
    for name in [*values]:
        maker = use_def.makers.get(name)
        if maker is not None and scope.op_types[maker] not in visited:
            values.remove(name)
    # A log names the nodes that compute the grids.
    values.update(grids_of(scope))
    values.update(_values_of_shapes(graph, scope, grid_values))
    return values


def _values_of_shapes(graph: Graph, scope: Scope, names: Iterable[str]) -> Iterator[str]:
    """Yield the values from which shapes follow that onnxruntime has not inferred.

    Args:
        names: values whose shapes the search reads.
    """
    pending = [name for name in names if name in scope.makers and not graph.knows_last_axis(name)]
    seen = set(pending)
    for name in pending:  # grows while it is iterated
        yield name
        for value in scope.inputs[scope.makers[name]]:
            if value in seen or value not in scope.makers:
                continue
            if graph.is_shape(value) or not graph.knows_last_axis(value):
                seen.add(value)
                pending.append(value)
