"""The target of a session's nodes: write each node as it was decided."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from ..detection.helper_nodes import has_status
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION, COMPILED, DOMAIN
from ..rewriting.expansion import points_of
from ..rewriting.foreign_attention_facts import has_unusual_starts
from ..rewriting.targets import Target, TargetSelector
from .decisions import Decision, DecisionContext, decide, decide_without_compiled_op
from .fusion_decisions import resolve_fusion
from .op_compilation import compile_fused_op, compile_op
from .placement import COMPILED_OP, ONNXRUNTIME, PYTHON_OP, Placement

logger = logging.getLogger("ort_gridsample")

#: Dialect -> where its nodes run if they are not replaced. Nodes of other dialects run on
#: onnxruntime's own kernel.
_UNREPLACED = {COMPILED: COMPILED_OP, DOMAIN: PYTHON_OP}


T = TypeVar("T")


class _RecordMap(Generic[T]):
    """Values by record.

    Records are told apart by identity, because nodes in different graphs can have equal ones. Each
    entry keeps its record alive, so that no other record gets the same id.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[NodeRecord, T]] = {}

    def get(self, record: NodeRecord) -> T | None:
        entry = self._entries.get(id(record))
        return None if entry is None else entry[1]

    def set(self, record: NodeRecord, value: T) -> T:
        self._entries[id(record)] = record, value
        return value


def _may_be_fused(match: Match) -> bool:
    """Whether the node may be fused with the nodes of a grid, or is one of these."""
    return match.fused_grid is not None or match.fused_into is not None


class SessionTarget(TargetSelector):
    """Write each node as decided, and keep the decisions.

    Args:
        context: the conditions that the decisions depend on.
        compiles: whether an op is compiled as soon as a node is assigned to it. If that fails, the
            node runs elsewhere.
    """

    fuses = True

    def __init__(self, context: DecisionContext, compiles: bool = True) -> None:
        self._context = context
        self._compiles = compiles
        #: Decisions without fusion. A node is decided once, also because the user's function is
        #: called.
        self._unfused = _RecordMap[Decision]()
        self._resolved = _RecordMap[Decision]()
        #: By GridSample: why its grid cannot be fused, or "".
        self._fusion_errors = _RecordMap[str]()

    def decision_for(self, match: Match) -> Decision:
        """Decide where the node of ``match`` runs, with all fusions, and compile its op.

        Later calls return the same decision.
        """
        decision = self._resolved.get(match.record)
        if decision is not None:
            return decision
        if not self._context.fuses_grids:
            match = replace(match, fused_grid=None, fused_into=None)
        decision = self._resolve(match)
        if _may_be_fused(match) and self._own_op_fails_to_compile(match, decision):
            # The op is now another one; that may change the fusion.
            decision = self._resolve(match)
        return self._resolved.set(match.record, decision)

    def _own_op_fails_to_compile(self, match: Match, decision: Decision) -> bool:
        """Compile the op of a node that may be fused, if the fusion did not replace it.

        Args:
            match: a node that may be fused.
            decision: its decision with all fusions.

        Returns:
            Whether that failed. The node's decision without fusion is then another one.
        """
        unfused = self._decide_unfused(match)
        if decision.target is not unfused.target:
            return False
        error = self._compile_error(match, unfused)
        if error:
            self._fall_back(match, error)
        return bool(error)

    def _resolve(self, match: Match) -> Decision:
        return resolve_fusion(
            match,
            decide_unfused=self._decide_unfused,
            fused_target=self._context.op_targets.fused_op,
            fusion_error=self._fusion_error,
        )

    def _decide_unfused(self, match: Match) -> Decision:
        """Return the decision without fusion.

        The op of a node that may be fused is not compiled yet, because a fused op may replace it.
        """
        decision = self._unfused.get(match.record)
        if decision is not None:
            return decision
        decision = decide(match, self._context)
        error = "" if _may_be_fused(match) else self._compile_error(match, decision)
        if error:
            return self._fall_back(match, error)
        return self._unfused.set(match.record, decision)

    def _compile_error(self, match: Match, decision: Decision) -> str:
        """Compile the op of a decision without fusion; return why that failed, or ""."""
        return compile_op(match, decision) if self._compiles else ""

    def _fall_back(self, match: Match, error: str) -> Decision:
        """Decide without a compiled op, and replace the node's decision without fusion.

        Args:
            match: the node.
            error: why its op cannot be compiled.
        """
        decision = decide_without_compiled_op(match, self._context, error)
        runs_on = decision.placement.runs_on
        logger.warning("%s: %s; it runs on: %s", match.record.where, error, runs_on)
        return self._unfused.set(match.record, decision)

    def _fusion_error(self, grid_sample: Match) -> str:
        """Compile the op with a fused grid; return why that failed, or "" if it did not."""
        if not self._compiles:
            return ""
        error = self._fusion_errors.get(grid_sample.record)
        if error is not None:
            return error
        error = compile_fused_op(grid_sample)
        if error:
            logger.warning("%s: %s", grid_sample.record.where, error)
        return self._fusion_errors.set(grid_sample.record, error)

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
            if placement.is_ours or record.operator != ATTENTION:
                placements.append(placement)
        return placements

    def target_for(self, match: Match) -> Target | None:
        target = self.decision_for(match).target
        return None if target is None else target.target_for(match)

    def replaces_composite(self, match: Match) -> bool:
        if not match.is_foreign_attention or self._context.accelerator_probe is not None:
            return False
        return not self.needs_expansion(match)

    def needs_expansion(self, match: Match) -> bool:
        """Whether a composite node becomes GridSamples, because the session has no op for it."""
        if match.record.dialect.has_planar_grids:
            return True
        if match.is_foreign_attention:
            return self._foreign_needs_expansion(match)
        return self._own_needs_expansion(match)

    def _foreign_needs_expansion(self, match: Match) -> bool:
        """Whether a deformable attention of another package becomes GridSamples.

        It becomes an op of this package, unless its levels do not follow each other. If other
        providers may run it, it stays.
        """
        has_accelerators = self._context.accelerator_probe is not None
        return not has_accelerators and has_unusual_starts(match)

    def _own_needs_expansion(self, match: Match) -> bool:
        """Whether a deformable attention of this package becomes GridSamples.

        An op that was found as a decomposed form is expanded unless other providers may run it.
        Without compiled ops, a compiled op, and a Python op without a status output, are expanded.
        """
        dialect = match.record.dialect
        if not match.record.patched:
            return self._context.accelerator_probe is None  # a provider may run the node
        if self._context.no_compiled_ops_reason:  # it must become a Python op
            return dialect.name == COMPILED or not has_status(match.node)
        if dialect.name == COMPILED:
            return False
        # A Python op whose numbers of points are known only in a run stays.
        return points_of(match) is not None or not has_status(match.node)
