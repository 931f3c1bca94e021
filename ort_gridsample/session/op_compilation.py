"""Compile the ops that nodes of a session are assigned to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from ..custom_ops.compiled_ops import registry
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..kernels.tap_plans import MODE_CODES
from ..rewriting.foreign_attention_facts import op_record
from .decisions import Decision
from .placement import COMPILED_OP


def compile_op(match: Match, decision: Decision) -> str:
    """Compile the compiled op of a decision of :func:`.decide`, or load it from the cache.

    Returns:
        Why that failed, or "" if it did not fail or if there is nothing to compile.
    """
    record = match.record
    if decision.placement.runs_on != COMPILED_OP or not _has_valid_attributes(record):
        return ""
    try:
        for types in product(*_op_types(match).values()):
            registry.prepare(record.operator, types, _mode_index(record))
    except Exception as error:
        return f"compiling it failed: {error}"
    return ""


def compile_fused_op(grid_sample: Match) -> str:
    """Compile the op of a GridSample with a fused grid, or load it from the cache.

    Returns:
        Why that failed, or "" if it did not fail or if there is nothing to compile.
    """
    record = grid_sample.record
    source = grid_sample.fused_grid
    if source is None or not _has_valid_attributes(record):
        return ""
    try:
        state = source.state_index(str(record.mode))
        for types in product(record.types["X"], *source.input_types):
            registry.prepare(source.op_name, types, state)
    except Exception as error:
        return f"its grid is not fused, as compiling that failed: {error}"
    return ""


def _op_types(match: Match) -> Mapping[str, Iterable[str]]:
    """Return the types that the inputs of the op for a node may have, by the inputs' names."""
    if match.is_foreign_attention:
        return op_record(match).types
    types = match.record.types
    if match.detected_attention is None:
        return types
    locations_type = match.detected_attention.locations_type
    return {**types, "sampling_locations": {*map(locations_type, types["sampling_locations"])}}


def _has_valid_attributes(record: NodeRecord) -> bool:
    """Whether the attributes of a node are valid, and not those of a call of its function."""
    return record.error is None and not record.has_attribute_references


def _mode_index(record: NodeRecord) -> int:
    if record.operator != "GridSample":
        return 0
    return MODE_CODES[str(record.mode)]
