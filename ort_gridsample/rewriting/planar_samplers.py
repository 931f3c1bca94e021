"""Expand samplers of planar grids, whose coordinates are in axis 1, to GridSamples."""

from __future__ import annotations

from ..detection.match import Match
from ..dialects.table import standard
from ..graph.element_types import elem_type
from ..graph.first_opsets import FIRST_OPSET_WITH_GRID_SAMPLE
from ..graph.new_nodes import Names, Nodes
from .match_facts import known_type
from .targets import Replacement, with_operator
from .typed_constants import write_typed_constant

#: The domain of onnxruntime's GridSample for older opsets.
BEFORE_GRID_SAMPLE = "com.microsoft"


def expanded_sampler(match: Match, names: Names) -> Replacement:
    """Return a GridSample for a sampler of planar grids."""
    record = match.record
    X, grid = record.values.values()
    (r,) = record.dialect.axes or (2,)
    type_name = known_type(match, "grid")
    nodes = Nodes(names, record.output)
    if type_name not in ("float32", "float64"):
        type_name = "float32"  # a quotient in half precision would move the coordinates
        grid = nodes.add("Cast", grid, to=elem_type(type_name))
    coordinates_last = nodes.add("Transpose", grid, perm=[0, *range(2, r + 2), 1])
    scale = write_typed_constant(nodes, record.dialect.edge_coordinate, type_name)
    scaled = nodes.add("Div", coordinates_last, scale)
    domain = "" if match.opset >= FIRST_OPSET_WITH_GRID_SAMPLE else BEFORE_GRID_SAMPLE
    sample = with_operator(
        match.node, "GridSample", domain, inputs=[X, scaled], outputs=[record.output]
    )
    attributes = standard("GridSample", match.opset).write(record.possible_attributes)
    sample.attribute.extend(attributes)
    return Replacement([*nodes, sample])
