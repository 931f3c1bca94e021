"""The types and the state that the op of a GridSample with a fused grid has for a node."""

from __future__ import annotations

from ... import spec
from ...detection.match import FusedGrid
from ...detection.records import NodeRecord
from ...kernels.tap_plans import COMPILED_MODES


def source_types(grid: FusedGrid) -> list[tuple[str, ...]]:
    """Return the possible types of the op's second and third input."""
    if grid.affine_grid is None:
        return [(grid.type,), (grid.type,)]
    types = grid.affine_grid.record.types
    return [types["size"], types["theta"]]


def state_index(sample: NodeRecord, grid: FusedGrid) -> int:
    """Return the index of the op's initial state for the GridSample ``sample``.

    The op has groups of a state per mode: see :func:`.affine.fused_states`.
    """
    group = 0
    if grid.affine_grid is not None and grid.type:
        group = 1 + spec.FLOATS.index(grid.type)
    return group * len(COMPILED_MODES) + COMPILED_MODES.index(str(sample.mode))
