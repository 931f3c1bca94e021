"""Decide where a sampling node of a session runs if nodes are fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..detection.match import Match
from ..rewriting.targets import Target
from .decisions import Decision
from .placement import COMPILED_OP


def resolve_fusion(
    match: Match,
    decide_unfused: Callable[[Match], Decision],
    fused_target: Target,
    fusion_error: Callable[[Match], str],
) -> Decision:
    """Return the decision for the node of ``match``, given the decisions without fusion.

    There are three cases:

    * The node is absorbed: the op of another node does its work. It gets the decision of that node,
      and a reason that names the node. An absorbed node is part of a deformable attention with an
      op, or computes the grid of a GridSample.
    * The node is a host: its op also does the work of other nodes. It is a deformable attention, or
      a GridSample with a fused grid.
    * Otherwise its decision without fusion stays. If its grid cannot be fused, the reason is added.

    Args:
        match: the node to decide on.
        decide_unfused: returns the decision of :func:`.decide` for this or another node.
        fused_target: the target that fuses the nodes of a grid into their GridSample.
        fusion_error: returns why the grid of a GridSample cannot be fused into it although both are
            compiled ops, or "" if it can.
    """
    # The GridSample into which the node may be fused, or the node itself.
    fusion_host = match.fused_into or match
    attention_match = _attention_with_op(fusion_host, decide_unfused)
    if attention_match is not None and _is_replaced_by(match, attention_match):
        return _absorbed_decision(match, attention_match, decide_unfused(attention_match))
    decision = decide_unfused(match)
    if match.detected_attention is not None:
        return _host_decision(match, decision, decision.target)
    if not _is_grid_fused(fusion_host, attention_match, decide_unfused):
        return decision
    error = fusion_error(fusion_host)
    if error:
        return Decision(replace(decision.placement, reason=error), decision.target)
    if match is fusion_host:
        return _host_decision(match, decision, fused_target)
    return _absorbed_decision(match, fusion_host, Decision(decision.placement, fused_target))


def _host_decision(
    match: Match,
    decision: Decision,
    target: Target | None,
) -> Decision:
    """Return the decision for a host.

    Args:
        match: the host.
        decision: its decision without fusion.
        target: the target that fuses the nodes.
    """
    return Decision(replace(decision.placement, fused=match.record.fused), target)


def _absorbed_decision(match: Match, host: Match, host_decision: Decision) -> Decision:
    """Return the decision for a node that is absorbed.

    Args:
        match: the node.
        host: the node whose op does its work.
        host_decision: the decision for the host.
    """
    reason = f"fused into {host.record.where}"
    placement = replace(host_decision.placement, record=match.record, reason=reason)
    return Decision(placement, host_decision.target)


def _attention_with_op(
    node: Match,
    decide_unfused: Callable[[Match], Decision],
) -> Match | None:
    """Return the deformable attention that ``node`` is part of, if an op replaces it."""
    attention_match = node.enclosing_match
    if attention_match is None or decide_unfused(attention_match).target is None:
        return None
    return attention_match


def _is_replaced_by(match: Match, attention_match: Match) -> bool:
    """Whether the op of a deformable attention replaces the node of ``match``."""
    attention = attention_match.detected_attention
    return attention is not None and match.index in attention.path


def _is_grid_fused(
    grid_sample: Match,
    attention_match: Match | None,
    decide_unfused: Callable[[Match], Decision],
) -> bool:
    """Whether the nodes of the grid of ``grid_sample`` are fused into it.

    Args:
        grid_sample: a GridSample.
        attention_match: the deformable attention that replaces readers of ``grid_sample``, or
            None. It reads the grid of an AffineGrid.
        decide_unfused: as in :func:`resolve_fusion`.
    """
    if grid_sample.fused_grid is None:
        return False
    absorbed = grid_sample.fused_grid.absorbed
    if absorbed is None:
        return decide_unfused(grid_sample).placement.runs_on == COMPILED_OP
    if attention_match is not None:
        return False
    # The match of the source lacks ``fused_into``. Without it, the op of the absorbed node would be
    # compiled, which the fused op replaces.
    absorbed = replace(absorbed, fused_into=grid_sample)
    placements = [decide_unfused(node).placement for node in (grid_sample, absorbed)]
    return all(placement.runs_on == COMPILED_OP for placement in placements)
