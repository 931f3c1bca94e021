"""The target of a session's nodes: each node becomes what was decided for it."""

from __future__ import annotations

from collections.abc import Sequence

from ..detection.helpers import has_status
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION, COMPILED, DOMAIN, OLD_COMPILED
from ..rewriting.attention_properties import has_unusual_starts
from ..rewriting.expansion import points_of
from ..rewriting.targets import Target
from .decisions import (
    Decision,
    Environment,
    decide,
    decide_without_compiled_op,
    prepare,
    resolve_fusion,
)
from .placement import COMPILED_OP, ONNXRUNTIME, PYTHON_OP, Placement

#: Where nodes run that are not replaced: by the name of their dialect, other than onnxruntime's own
#: kernel.
_UNREPLACED = {COMPILED: COMPILED_OP, DOMAIN: PYTHON_OP}


class _DecisionCache:
    """Decisions by record.

    Records are told apart by identity, because nodes in different graphs can have equal ones. Each
    decision keeps its record alive, so that no other record gets the same id.
    """

    def __init__(self) -> None:
        self._decisions: dict[int, tuple[NodeRecord, Decision]] = {}

    def get(self, record: NodeRecord) -> Decision | None:
        entry = self._decisions.get(id(record))
        return None if entry is None else entry[1]

    def put(self, record: NodeRecord, decision: Decision) -> None:
        self._decisions[id(record)] = record, decision


class SessionTarget(Target):
    """Write each node as decided, and keep the decisions.

    Args:
        environment: what the decisions depend on.
        compiles: whether to compile the op of a node when the node is decided. A node whose
            compilation fails is decided without a compiled op.
    """

    fuses = True

    def __init__(self, environment: Environment, compiles: bool = True) -> None:
        self._environment = environment
        self._compiles = compiles
        #: Decisions for nodes by themselves. A node is decided once, also because the user's
        #: function is called.
        self._alone = _DecisionCache()
        self._resolved = _DecisionCache()

    def decision_for(self, match: Match) -> Decision:
        """Return where the node of ``match`` runs, with all fusions."""
        decision = self._resolved.get(match.record)
        if decision is None:
            fused_op = self._environment.op_targets.fused_op
            decision = resolve_fusion(match, self._decide_alone, fused_op)
            self._resolved.put(match.record, decision)
        return decision

    def _decide_alone(self, match: Match) -> Decision:
        decision = self._alone.get(match.record)
        if decision is None:
            decision = decide(match, self._environment)
            error = prepare(match, decision) if self._compiles else ""
            if error:
                decision = decide_without_compiled_op(match, self._environment, error)
            self._alone.put(match.record, decision)
        return decision

    def placements(self, records: Sequence[NodeRecord]) -> list[Placement]:
        """Return the placements of nodes, whether they were decided or stayed without a decision.

        A deformable attention that no op replaces has none, because its nodes have their own.
        """
        placements = list[Placement]()
        for record in records:
            decision = self._resolved.get(record)
            if decision is not None:
                placement = decision.placement
            else:
                placement = Placement(record, _UNREPLACED.get(record.dialect.name, ONNXRUNTIME))
            if placement.ours or record.operator != ATTENTION:
                placements.append(placement)
        return placements

    def target_for(self, match: Match) -> Target | None:
        target = self.decision_for(match).target
        return None if target is None else target.target_for(match)

    def takes_composite(self, match: Match) -> bool:
        if match.signature is None or self._environment.accelerators is not None:
            return False
        return not self.expands(match)

    def expands(self, match: Match) -> bool:
        """Whether a composite node becomes GridSamples, because the session has no op for it.

        An op of this package stays if it can run. Another package's node becomes such an op, unless
        its levels do not follow each other, or other providers may run the GridSamples.
        """
        dialect = match.record.dialect
        has_accelerators = self._environment.accelerators is not None
        if dialect.has_planar_grids:
            return True
        if match.signature is not None:
            return not has_accelerators and has_unusual_starts(match)
        if dialect.name == OLD_COMPILED:
            return True
        if not match.record.patched:
            return not has_accelerators  # a provider may have a kernel for the node
        if self._environment.no_compiled_ops_reason:  # it must become a Python op
            return dialect.name == COMPILED or not has_status(match.node)
        if dialect.name == COMPILED:
            return False
        # A Python op whose numbers of points are known only in a run stays.
        return bool(points_of(match)) or not has_status(match.node)
