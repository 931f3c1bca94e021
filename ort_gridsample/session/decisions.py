"""Decide where a sampling node of a session runs, in two steps.

:func:`decide` decides for a node as if nothing were fused: the first rule of :data:`RULES` that
applies, else an op of this package. :func:`resolve_fusion` then changes the decision for a node
that is fused into another node, and for a node that other nodes are fused into. Neither changes the
model nor compiles anything: :func:`compile_op` and :func:`compile_fused_op` compile the op of a
decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ..custom_ops.compiled_ops import library_file, registry
from ..custom_ops.compiled_ops.fused_types import source_types, state_index
from ..detection.match import Match
from ..detection.node_checks import reason_of
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION, FUSED
from ..graph.files import keep_errors
from ..reference.taps import COMPILED_MODES
from ..rewriting.foreign_attention_facts import op_record
from ..rewriting.passes import Selection
from ..rewriting.targets import Target
from ..rewriting.targets.attention import (
    CompiledAttentionTarget,
    ForeignAttentionTarget,
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
        self._subgraphs: dict[str, Target] = {
            COMPILED_OP: CompiledAttentionTarget(),
            PYTHON_OP: PythonAttentionTarget(in_session=in_session),
        }
        self._attention_nodes: dict[str, Target] = {
            COMPILED_OP: ForeignAttentionTarget(),
            PYTHON_OP: ForeignAttentionTarget(is_python=True, in_session=in_session),
        }

    def of(self, match: Match, op: str) -> Target:
        """Return the target that writes ``match`` as ``op``, which is COMPILED_OP or PYTHON_OP."""
        if match.is_foreign_attention:
            return self._attention_nodes[op]
        if match.attention is not None:
            return self._subgraphs[op]
        return self._nodes[op]


@dataclass(frozen=True)
class DecisionContext:
    """The conditions that decisions depend on, other than the node.

    Attributes:
        nodes: the nodes that must be replaced: ``"all"``, ``"unsupported"`` or a function of a
            record. If None, a node is replaced if there is a compiled op for it, or if
            onnxruntime does not run it.
        accelerator_probe: finds the forms of nodes that accelerators run. None if no accelerator
            may run a node.
        op_targets: the targets that write ops of this package.
    """

    nodes: Selection | None
    accelerator_probe: AcceleratorProbe | None
    op_targets: OpTargets

    @cached_property
    def no_compiled_ops_reason(self) -> str:
        """Why the session has no compiled ops. Computed when needed, because it imports Numba."""
        return compiled_ops_unavailable_reason()


def context_of(
    nodes: Selection | None,
    accelerator_probe: AcceleratorProbe,
    is_saved: bool,
) -> DecisionContext:
    """Return the context of the decisions of a session.

    Args:
        nodes: the session's argument. If it requires ops of this package, no accelerator runs a
            node.
        accelerator_probe: the probe of the session's accelerators.
        is_saved: whether onnxruntime saves the model.
    """
    may_accelerate = accelerator_probe.is_active and nodes in (None, "unsupported")
    return DecisionContext(
        nodes=nodes,
        accelerator_probe=accelerator_probe if may_accelerate else None,
        op_targets=OpTargets(is_saved),
    )


def decide(match: Match, context: DecisionContext) -> Decision:
    """Decide where the node of ``match`` runs if nothing is fused."""
    for rule in RULES:
        decision = rule(match, context)
        if decision is not None:
            return decision
    reason = context.no_compiled_ops_reason or unsupported_reason(match.record)
    if reason:
        return decide_without_compiled_op(match, context, reason)
    placement = Placement(match.record, COMPILED_OP, library=_library_description())
    return Decision(placement, context.op_targets.of(match, COMPILED_OP))


def decide_without_compiled_op(match: Match, context: DecisionContext, reason: str) -> Decision:
    """Decide where the node of ``match`` runs if it cannot be a compiled op.

    Args:
        match: the node to decide on.
        context: the session's context.
        reason: why the node cannot be a compiled op.
    """
    if context.nodes is None and _probed_record(match).native:
        return Decision(Placement(match.record, ONNXRUNTIME, reason))
    placement = Placement(match.record, PYTHON_OP, reason)
    return Decision(placement, context.op_targets.of(match, PYTHON_OP))


# Rules


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
    """Write the node in the first form that the accelerators run."""
    if context.accelerator_probe is None:
        return None
    form = context.accelerator_probe.form_of(match.record, match.scope.opsets)
    if form is None:
        return None
    accelerators = context.accelerator_probe.name
    reason = ""
    if form.name:
        refusal = f"{accelerators} refuses the node itself: {form.refusal}"
        reason = f"written as {form.name}, because {refusal}"
    return Decision(Placement(match.record, accelerators, reason), form.target)


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
    return replace(
        match.record, reason=reason_of(match.record, match.scope.opsets, installed_runtime.PROBE)
    )


def _library_description() -> str:
    path = library_file.configured_library()
    return "" if path is None else f"{path}, {library_file.validate(path)}"


# Fusion


def resolve_fusion(
    match: Match,
    decide_unfused: Callable[[Match], Decision],
    fused_target: Target,
    fusion_error: Callable[[Match], str] = lambda grid_sample: "",
) -> Decision:
    """Return the decision for the node of ``match``, given the decisions without fusion.

    There are three cases:

    * The node is absorbed: the op of another node does its work. It gets the placement and the
      target of that node. Such a node is part of a deformable attention with an op, or computes
      the grid of a GridSample.
    * The node is a host: its op also does the work of other nodes. It is a deformable attention, or
      a GridSample with a fused grid.
    * Otherwise its decision without fusion stays.

    Args:
        match: the node to decide on.
        decide_unfused: returns the decision of :func:`decide` for this or another node.
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
    if match.attention is not None:
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
    attention_match = node.enclosing_attention
    if attention_match is None or decide_unfused(attention_match).target is None:
        return None
    return attention_match


def _is_replaced_by(match: Match, attention_match: Match) -> bool:
    """Whether the op of a deformable attention replaces the node of ``match``."""
    attention = attention_match.attention
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
    affine_grid = grid_sample.fused_grid.affine_grid
    if affine_grid is None:
        return decide_unfused(grid_sample).placement.runs_on == COMPILED_OP
    if attention_match is not None:
        return False
    # The match in ``fused_grid`` lacks ``fused_into``. Without it, the op of the AffineGrid would
    # be compiled, which the fused op replaces.
    affine_grid = replace(affine_grid, fused_into=grid_sample)
    placements = [decide_unfused(node).placement for node in (grid_sample, affine_grid)]
    return all(placement.runs_on == COMPILED_OP for placement in placements)


# Compilation


def compile_op(match: Match, decision: Decision) -> str:
    """Compile the compiled op of a decision of :func:`decide`, or load it from the cache.

    Returns:
        Why that failed, or "" if it did not fail or if there is nothing to compile.
    """
    record = match.record
    if decision.placement.runs_on != COMPILED_OP or not _has_valid_attributes(record):
        return ""
    try:
        compiled_record = op_record(match) if match.is_foreign_attention else record
        for types in product(*compiled_record.types.values()):
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
    if grid_sample.fused_grid is None or not _has_valid_attributes(record):
        return ""
    try:
        state = state_index(record, grid_sample.fused_grid)
        for types in product(record.types["X"], *source_types(grid_sample.fused_grid)):
            registry.prepare(FUSED, types, state)
    except Exception as error:
        return f"its grid is not fused, as compiling that failed: {error}"
    return ""


def _has_valid_attributes(record: NodeRecord) -> bool:
    """Whether the attributes of a node are valid, and not those of a call of its function."""
    return record.error is None and not record.has_attribute_references


def _mode_index(record: NodeRecord) -> int:
    if record.operator != "GridSample":
        return 0
    return COMPILED_MODES.index(str(record.mode))
