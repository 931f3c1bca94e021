"""Expand samplers of planar grids, whose coordinates are in axis 1, to GridSamples."""

from __future__ import annotations

from ..detection.match import Match
from ..dialects.table import standard
from ..graph.expressions import Expressions
from ..graph.first_opsets import FIRST_OPSET_WITH_GRID_SAMPLE
from ..graph.new_names import Names
from ..graph.runtimes import ANY, Runtime
from .match_facts import known_type
from .targets import Replacement, with_operator

#: onnxruntime's domain of contrib operators, which has GridSample for older opsets.
CONTRIB_DOMAIN = "com.microsoft"


def expanded_sampler(match: Match, names: Names, runtime: Runtime = ANY) -> Replacement:
    """Return a GridSample for a sampler of planar grids."""
    record = match.record
    X, grid_name = record.values.values()
    (r,) = record.dialect.axes or (2,)
    type_name = known_type(match, "grid")
    e = Expressions(record.output, match.opset, runtime, names)
    grid = e.input(grid_name, type_name)
    if type_name not in ("float32", "float64"):
        grid = grid.astype("float32")  # a quotient in half precision would move the coordinates
    scaled = e.transpose(grid, [0, *range(2, r + 2), 1]) / record.dialect.edge_coordinate
    domain = "" if match.opset >= FIRST_OPSET_WITH_GRID_SAMPLE else CONTRIB_DOMAIN
    sample = with_operator(
        match.node, "GridSample", domain, inputs=[X, e.name_of(scaled)], outputs=[record.output]
    )
    attributes = standard("GridSample", match.opset).write(record.possible_attributes)
    sample.attribute.extend(attributes)
    e.node(sample)
    return Replacement(e.finish_all())
