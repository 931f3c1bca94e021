"""Decide where a sampling node of a session runs by itself.

:func:`decide` returns the decision of the first rule of :data:`RULES` that applies. Without one, it
is a compiled op, else a Python op or onnxruntime's own kernel. A decision may run models of the
node alone, but does not change the session's model. :mod:`.placing` also decides which nodes are
fused, and has their ops compiled (:mod:`.op_compilation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..detection.match import Match
from ..detection.node_checks import reason_of, reason_of_attention
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION
from ..graph.files import keep_errors
from ..kernels import library_file
from ..rewriting.passes import Selection
from ..rewriting.targets import Target
from ..rewriting.targets.attention import (
    CompiledAttentionTarget,
    PythonAttentionTarget,
)
from ..rewriting.targets.compiled_op import CompiledOpTarget, FusedOpTarget, unsupported_reason
from ..rewriting.targets.python_op import PythonOpTarget
from . import installed_runtime
from .accelerators import AcceleratorProbe
from .ops_choice import compiled_ops_unavailable_reason
from .placement import COMPILED_OP, ONNXRUNTIME, PYTHON_OP, Placement


@dataclass(frozen=True)
class Decision:
    """Where a node runs, and how it is rewritten for that.

    Attributes:
        placement: where the node runs, and why.
        target: the target that replaces the node, or None if the node stays.
    """

    placement: Placement
    target: Target | None = None


class OpTargets:
    """The targets that write ops of this package.

    Args:
        is_saved: whether onnxruntime saves the model. Other tools may then change the file, so the
            guard of a Python op must be one that no tool can remove.
    """

    def __init__(self, is_saved: bool) -> None:
        in_session = not is_saved
        self.fused_op = FusedOpTarget()
        self._nodes: dict[str, Target] = {
            COMPILED_OP: CompiledOpTarget(),
            PYTHON_OP: PythonOpTarget(in_session=in_session),
        }
        self._attentions: dict[str, Target] = {
            COMPILED_OP: CompiledAttentionTarget(),
            PYTHON_OP: PythonAttentionTarget(in_session=in_session),
        }

    def of(self, match: Match, op: str) -> Target:
        """Return the target that writes ``match`` as ``op``, which is COMPILED_OP or PYTHON_OP."""
        if match.is_foreign_attention or match.detected_attention is not None:
            return self._attentions[op]
        return self._nodes[op]


@dataclass(frozen=True)
class DecisionContext:
    """The conditions that decisions depend on, other than the node.

    Attributes:
        nodes: the nodes that must be replaced: ``"all"``, ``"unsupported"`` or a function of a
            record. If None, a node that no accelerator runs is replaced if there is a compiled op
            for it, or if onnxruntime does not run it.
        accelerator_probe: finds the forms of nodes that accelerators run. None if no accelerator
            may run a node.
        op_targets: the targets that write ops of this package.
        fuses_grids: whether grids may be fused into their GridSamples.
    """

    nodes: Selection | None
    accelerator_probe: AcceleratorProbe | None
    op_targets: OpTargets
    fuses_grids: bool = True

    @property
    def no_compiled_ops_reason(self) -> str:
        """Why the session has no compiled ops. The first call imports Numba."""
        return compiled_ops_unavailable_reason()


def context_of(
    nodes: Selection | None,
    accelerator_probe: AcceleratorProbe,
    is_saved: bool,
    fuses_grids: bool = True,
) -> DecisionContext:
    """Return the context of the decisions of a session.

    Args:
        nodes: the session's argument. If it requires ops of this package, no accelerator runs a
            node.
        is_saved: whether onnxruntime saves the model.
        fuses_grids: whether grids may be fused into their GridSamples.
    """
    may_accelerate = accelerator_probe.is_active and nodes in (None, "unsupported")
    return DecisionContext(
        nodes=nodes,
        accelerator_probe=accelerator_probe if may_accelerate else None,
        op_targets=OpTargets(is_saved),
        fuses_grids=fuses_grids,
    )


def decide(match: Match, context: DecisionContext) -> Decision:
    """Decide where the node of ``match`` runs by itself."""
    for rule in RULES:
        decision = rule(match, context)
        if decision is not None:
            return decision
    return _decide_on_cpu(match, context)


def _decide_on_cpu(match: Match, context: DecisionContext) -> Decision:
    """Decide where the node of ``match`` runs if it must run on the CPU's provider."""
    reason = context.no_compiled_ops_reason or unsupported_reason(match.record)
    if reason:
        return decide_without_compiled_op(match, context, reason)
    placement = Placement(match.record, COMPILED_OP, library=_library_description())
    return Decision(placement, context.op_targets.of(match, COMPILED_OP))


def decide_without_compiled_op(match: Match, context: DecisionContext, reason: str) -> Decision:
    """Decide where the node of ``match`` runs if it cannot be a compiled op.

    Args:
        match: the node to decide on.
    """
    if context.nodes is None and _probed_record(match).native:
        return Decision(Placement(match.record, ONNXRUNTIME, reason))
    placement = Placement(match.record, PYTHON_OP, reason)
    return Decision(placement, context.op_targets.of(match, PYTHON_OP))


def _leave_attention_to_accelerators(match: Match, context: DecisionContext) -> Decision | None:
    """Keep decomposed deformable attention, whose GridSamples have decisions of their own."""
    if context.accelerator_probe is None or match.record.operator != ATTENTION:
        return None
    reason = "its GridSamples may run on another provider"
    return Decision(Placement(match.record, ONNXRUNTIME, reason))


def _leave_unselected_node(match: Match, context: DecisionContext) -> Decision | None:
    """Keep a node that the user's function does not select, unless it already is an op of ours."""
    if not callable(context.nodes) or match.record.patched:
        return None
    record = _probed_record(match)
    with keep_errors():
        is_selected = context.nodes(record)
    if is_selected:
        return None
    return Decision(
        Placement(match.record, ONNXRUNTIME, "not selected by the function passed as nodes")
    )


def _leave_supported_node(match: Match, context: DecisionContext) -> Decision | None:
    """Keep a node that onnxruntime runs, if only unsupported nodes must be replaced."""
    if context.nodes != "unsupported" or not _probed_record(match).native:
        return None
    reason = "onnxruntime runs it, and nodes is 'unsupported'"
    return Decision(Placement(match.record, ONNXRUNTIME, reason))


def _run_on_accelerator(match: Match, context: DecisionContext) -> Decision | None:
    """Write the node in a form that the accelerators run, unless the CPU is faster."""
    if context.accelerator_probe is None:
        return None
    form = context.accelerator_probe.form_of(match.record, match.scope.opsets)
    if form is None:
        return None
    if form.faster_on_cpu:
        decision = _decide_on_cpu(match, context)
        reasons = filter(None, (decision.placement.reason, form.faster_on_cpu))
        return replace(decision, placement=replace(decision.placement, reason="; ".join(reasons)))
    accelerators = context.accelerator_probe.name
    placement = Placement(match.record, accelerators, form.reason(accelerators))
    return Decision(placement, form.target)


#: Return the decision for a node that does not become an op of this package, or None if the rule
#: does not apply.
Rule = Callable[[Match, DecisionContext], Decision | None]
#: The rules, in the order in which they apply.
RULES: tuple[Rule, ...] = (
    _leave_attention_to_accelerators,
    _leave_unselected_node,
    _leave_supported_node,
    _run_on_accelerator,
)


def _probed_record(match: Match) -> NodeRecord:
    """Try the node in onnxruntime; return its record with onnxruntime's refusal as ``reason``.

    A placement has the record without that reason, and a reason of its own.
    """
    record = match.record
    opsets = match.scope.opsets
    probe = installed_runtime.PROBE
    if match.detected_attention is None:
        return replace(record, reason=reason_of(record, opsets, probe))
    samples = match.detected_attention.samples
    probed = [replace(sample, reason=reason_of(sample, opsets, probe)) for sample in samples]
    return replace(record, reason=reason_of_attention(probed))


def _library_description() -> str:
    path = library_file.configured_library()
    return "" if path is None else f"{path}, {library_file.validate(path)}"
