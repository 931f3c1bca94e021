"""Compile the ops that nodes of a session are assigned to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from ..custom_ops.compiled_ops import registry
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..kernels.tap_plans import MODE_CODES
from ..rewriting.foreign_attention_facts import op_record
from ..rewriting.targets import ABSORBED
from ..rewriting.targets.compiled_op import FusedOpTarget
from .decisions import Decision
from .placement import COMPILED_OP


def compile_ops(decisions: Mapping[Match, Decision]) -> dict[Match, str]:
    """Compile the compiled ops of decisions, or load them from the cache.

    Returns:
        The node of each op that cannot be compiled -> why.
    """
    errors = {}
    for match, decision in decisions.items():
        if decision.placement.runs_on != COMPILED_OP or decision.target is ABSORBED:
            continue
        if not _has_valid_attributes(match.record):
            continue
        is_fused = isinstance(decision.target, FusedOpTarget)
        error = _compile_fused_op(match) if is_fused else _compile_op(match)
        if error:
            errors[match] = error
    return errors


def _compile_op(match: Match) -> str:
    """Compile the op of a node; return why that failed, or ""."""
    record = match.record
    try:
        for types in product(*_op_types(match).values()):
            registry.prepare(record.operator, types, _mode_index(record))
    except Exception as error:
        return f"compiling it failed: {error}"
    return ""


def _compile_fused_op(grid_sample: Match) -> str:
    """Compile the op of a GridSample with a fused grid; return why that failed, or ""."""
    record = grid_sample.record
    source = grid_sample.fused_grid
    assert source is not None  # otherwise its op has no fused grid
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
