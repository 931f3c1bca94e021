"""The target of a session's nodes: write each node as it was decided."""

from __future__ import annotations

from collections.abc import Sequence

from ..detection.helper_nodes import has_status
from ..detection.match import Match
from ..dialects.table import COMPILED
from ..rewriting.expansion import points_of
from ..rewriting.foreign_attention_facts import has_unusual_starts
from ..rewriting.targets import Target, TargetSelector
from .decisions import Decision, DecisionContext
from .placing import place_nodes


class SessionTarget(TargetSelector):
    """Write each node as decided.

    Args:
        context: the conditions that the decisions depend on.

    Attributes:
        decisions: those for the nodes of the last call of :meth:`targets_of`.
    """

    fuses = True

    def __init__(self, context: DecisionContext) -> None:
        self._context = context
        self.decisions: dict[Match, Decision] = {}

    def targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        self.decisions = place_nodes(matches, self._context, compiles=True)
        targets: dict[Match, Target] = {}
        for match, decision in self.decisions.items():
            if decision.target is not None and decision.target.replaces(match):
                targets[match] = decision.target
        return targets

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
