"""Find the deformable attentions of a graph that the provider runs as one node."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from ...detection.attention.layouts import Attention
from ...detection.attention.matcher import values_to_infer
from ...detection.find import SearchOptions, find
from ...detection.match import Match
from ...dialects.table import ATTENTION
from ...errors import node_label
from ...graph.scope import scopes_of
from ...graph.use_def import UseDef, unread_nodes
from ...inference.lengths import OPERATORS
from .ort_graph import Graph

_ATTENTION_ONLY = SearchOptions(decomposed=False, fused_grids=False)


@dataclass(frozen=True)
class FusedLevel:
    """A level of a fused deformable attention.

    Attributes:
        points: the number of its points.
        lengths: the lengths of its spatial axes, if they are constants.
        shape: otherwise a value whose elements, from the third on, are these lengths.
        grid: the grid (B·H, Q, points, r), or "" if there are locations for all levels.
    """

    points: int
    lengths: tuple[int, ...]
    shape: str
    grid: str


@dataclass(frozen=True, kw_only=True)
class FusedAttention:
    """Nodes that one node of the provider replaces.

    Attributes:
        where: the place that errors name.
        positions: the positions of the nodes in the graph.
        output: the only value of these nodes that other nodes read.
        types: the types of the op's inputs: value, levels, locations and weights.
        grid_type: the type of the locations or of the grids.
        value: the value.
        locations: the locations in [0, 1], or "" if the levels have grids.
        weights: the weights.
        heads: the number of heads.
        channels: the number of channels of a head.
        splits_heads: whether the value is (B, S, H·D), and not (B, S, H, D).
        has_heads_first: whether the weights are (B·H, 1, Q, P), and not (B, Q, H, …).
        align_corners: the attribute of the GridSamples.
        r: the number of spatial axes.
        levels: the levels.
    """

    where: str
    positions: frozenset[int]
    output: str
    types: tuple[str, ...]
    grid_type: str
    value: str
    locations: str
    weights: str
    heads: int
    channels: int
    splits_heads: bool
    has_heads_first: bool
    align_corners: bool
    r: int
    levels: tuple[FusedLevel, ...]

    @property
    def inputs(self) -> set[str]:
        """The values that the node reads."""
        names = {self.value, self.locations, self.weights}
        for level in self.levels:
            names |= {level.shape, level.grid}
        return names - {""}


def find_fused_attentions(graph: Graph) -> list[FusedAttention]:
    """Return the deformable attentions in ``graph`` that become one node.

    No two of them have a node in common.
    """
    outline = graph.outline()
    (scope,) = scopes_of(outline)
    use_def = UseDef(scope)
    values = set(use_def.backward_closure(values_to_infer(use_def), OPERATORS))
    if not values:
        return []
    model = graph.model(values)
    scopes = scopes_of(model)
    matches = find(model, scopes, None, with_reasons=False, options=_ATTENTION_ONLY)
    use_def = UseDef(scopes[0])
    fused_attentions: list[FusedAttention] = []
    taken = set[int]()
    for match in matches:
        fused = _fused_attention(match, use_def)
        if fused is not None and taken.isdisjoint(fused.positions):
            taken |= fused.positions
            fused_attentions.append(fused)
    return fused_attentions


def _fused_attention(match: Match, use_def: UseDef) -> FusedAttention | None:
    """Return the nodes of a deformable attention that become one node.

    Return None if the match is something else, or if an operand must be computed by nodes that the
    graph does not have.
    """
    attention = match.attention
    record = match.record
    if attention is None or record.error is not None or attention.other_levels:
        return None
    if attention.value is None or not attention.has_output_by_query:
        return None
    levels = _levels_of(attention)
    if levels is None or any(len(types) != 1 for types in record.types.values()):
        return None
    value_type, levels_type, grid_type, weights_type = (types[0] for types in record.types.values())
    locations_type = grid_type
    if attention.locations is None and grid_type != "float64":
        locations_type = "float32"  # half precision would lose too much of a location
    name = match.node.name or record.name
    fused = FusedAttention(
        where=node_label(ATTENTION, name),
        positions=frozenset(),
        output=attention.output.name,
        types=(value_type, levels_type, locations_type, weights_type),
        grid_type=grid_type,
        value=attention.value.name,
        locations="" if attention.locations is None else attention.locations.name,
        weights=attention.weights.name,
        heads=attention.heads,
        channels=attention.channels,
        splits_heads=attention.value.layout == "B, S, H·D",
        has_heads_first=not attention.has_weights_by_head,
        align_corners=bool(record.align_corners),
        r=attention.axes,
        levels=levels,
    )
    positions = _positions_of(fused, attention.path, attention.nodes, use_def)
    return None if positions is None else replace(fused, positions=positions)


def _levels_of(attention: Attention) -> tuple[FusedLevel, ...] | None:
    """Return the levels; None if the lengths of a level are neither constants nor a value."""
    levels = []
    for level in attention.levels:
        grid = level.sample.values["grid"] if attention.locations is None else ""
        lengths = tuple(length.known for length in level.lengths)
        known_lengths = tuple(length for length in lengths if length is not None)
        if len(known_lengths) == len(lengths):
            levels.append(FusedLevel(level.points, known_lengths, "", grid))
        elif level.shape is not None:
            levels.append(FusedLevel(level.points, (), level.shape, grid))
        else:
            return None
    return tuple(levels)


def _positions_of(
    fused: FusedAttention,
    path: Set[int],
    candidates: Set[int],
    use_def: UseDef,
) -> frozenset[int] | None:
    """Return the positions of the nodes to fuse.

    No other node reads a value of these nodes, except the output. So there is no path from them
    over another node back to them.

    Args:
        fused: the deformable attention.
        path: the nodes that must be among them.
        candidates: the nodes that may be among them.
        use_def: the use-def chains of the graph.

    Returns:
        The positions; None if these nodes do not read all inputs of ``fused``.
    """
    kept = {fused.output} | fused.inputs
    positions = frozenset(path | unread_nodes(use_def, path, kept, candidates))
    inputs = use_def.scope.inputs
    outputs = use_def.scope.outputs
    read = set[str]().union(*(inputs[index] for index in positions))
    computed = set[str]().union(*(outputs[index] for index in positions))
    return positions if fused.inputs <= read - computed else None
