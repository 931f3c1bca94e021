"""Place the nodes of a session's model.

:func:`place_nodes` decides each node once (:mod:`.decisions`), and chooses the hosts that absorb
others (:mod:`ort_gridsample.detection.hosts`). Then it compiles the ops of the decisions. If that
fails, the nodes are placed again without the ops that failed. A prediction compiles no op.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..detection.hosts import choose_hosts
from ..detection.match import Match
from ..dialects.table import ATTENTION, COMPILED, DOMAIN
from ..rewriting.targets import ABSORBED
from .decisions import Decision, DecisionContext, decide, decide_without_compiled_op
from .op_compilation import compile_ops
from .placement import COMPILED_OP, ONNXRUNTIME, PYTHON_OP, Placement

logger = logging.getLogger("ort_gridsample")

#: Dialect -> where its nodes run if they are not replaced. Nodes of other dialects run on
#: onnxruntime's own kernel.
_UNREPLACED = {COMPILED: COMPILED_OP, DOMAIN: PYTHON_OP}


def place_nodes(
    matches: Sequence[Match], context: DecisionContext, *, compiles: bool
) -> dict[Match, Decision]:
    """Return where each node runs, in the order of ``matches``.

    Args:
        matches: the nodes, deformable attentions first.
        context: the conditions that decisions depend on.
        compiles: whether the ops are compiled. A node whose op cannot be compiled runs elsewhere.
    """
    placer = _Placer(matches, context)
    while True:
        decisions = placer.place()
        errors = compile_ops(decisions) if compiles else {}
        if not errors:
            return decisions
        for match, error in errors.items():
            placer.fall_back(match, decisions[match], error)


def placements_of(matches: Iterable[Match], decisions: Mapping[Match, Decision]) -> list[Placement]:
    """Return the placements of nodes. Nodes that stay need no decision.

    A deformable attention that no op replaces has none, because its nodes have their own.
    """
    placements = list[Placement]()
    for match in matches:
        record = match.record
        decision = decisions.get(match)
        if decision is not None:
            placement = decision.placement
        else:
            placement = Placement(record, _UNREPLACED.get(record.dialect.name, ONNXRUNTIME))
        if placement.is_ours or record.operator != ATTENTION:
            placements.append(placement)
    return placements


class _Placer:
    """Places nodes, and keeps the decision of each node by itself.

    A node is decided once, also because the user's function is called.
    """

    def __init__(self, matches: Sequence[Match], context: DecisionContext) -> None:
        self._matches = matches
        self._context = context
        self._decisions: dict[Match, Decision] = {}
        #: The GridSamples whose op with a fused grid cannot be compiled.
        self._unfused = set[Match]()

    def place(self) -> dict[Match, Decision]:
        """Return the decision for each node."""
        fused: dict[Match, Decision] = {}
        for host in choose_hosts(self._matches, self._can_fuse):
            fused[host] = self._host_decision(host)
            for match in host.absorbed:
                placement = replace(
                    self._decision(host).placement,
                    record=match.record,
                    reason=f"fused into {host.record.where}",
                )
                fused[match] = Decision(placement, ABSORBED)
        return {match: fused.get(match) or self._decision(match) for match in self._matches}

    def fall_back(self, match: Match, decision: Decision, error: str) -> None:
        """Change the decisions of nodes whose op cannot be compiled.

        Args:
            match: a host, or another node with an op.
            decision: the decision for it.
        """
        where = match.record.where
        if decision.target is self._context.op_targets.fused_op:
            logger.warning("%s: %s", where, error)
            self._unfused.add(match)
            for node in (match, *match.absorbed):
                single = self._decision(node)
                placement = replace(single.placement, reason=error)
                self._decisions[node] = replace(single, placement=placement)
            return
        single = decide_without_compiled_op(match, self._context, error)
        logger.warning("%s: %s; it runs on: %s", where, error, single.placement.runs_on)
        self._decisions[match] = single

    def _can_fuse(self, host: Match) -> bool:
        if host.detected_attention is not None:
            return self._decision(host).target is not None
        if not self._context.fuses_grids or host in self._unfused:
            return False
        decisions = [self._decision(match) for match in (*host.absorbed, host)]
        return all(decision.placement.runs_on == COMPILED_OP for decision in decisions)

    def _host_decision(self, host: Match) -> Decision:
        decision = self._decision(host)
        is_attention = host.detected_attention is not None
        target = decision.target if is_attention else self._context.op_targets.fused_op
        placement = replace(decision.placement, fused=host.record.fused)
        if placement.reason and not is_attention:
            fusion = replace(placement, reason="").note
            placement = replace(placement, reason=f"{fusion}; {placement.reason}")
        return Decision(placement, target)

    def _decision(self, match: Match) -> Decision:
        """Return the decision for a node by itself."""
        decision = self._decisions.get(match)
        if decision is None:
            decision = decide(match, self._context)
            self._decisions[match] = decision
        return decision
