"""Decide where a sampling node of a session runs, in two steps.

:func:`decide` decides for one node by itself: the first of :data:`RULES` that applies, else an op
of this package. :func:`resolve_fusion` then changes the decision of a node that is fused into
another node, or that other nodes are fused into. Neither changes the model nor compiles anything;
:func:`prepare` compiles the op of a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from ..custom_ops.compiled_ops import library_file, registry
from ..detection.match import Match
from ..detection.node_checks import reason_of
from ..detection.records import NodeRecord
from ..dialects.table import ATTENTION
from ..functions.cores import logger
from ..reference.taps import COMPILED_MODES
from ..rewriting.attention_properties import op_record
from ..rewriting.passes import Selection
from ..rewriting.targets import Target
from ..rewriting.targets.attention import CompiledAttention, ForeignAttention, PythonAttention
from ..rewriting.targets.compiled_op import CompiledOp, FusedOp, unsupported_reason
from ..rewriting.targets.python_op import PythonOp
from . import native
from .accelerators import Accelerators
from .placement import (
    COMPILED_OP,
    ONNXRUNTIME,
    PYTHON_OP,
    Placement,
    compiled_ops_unavailable_reason,
)


@dataclass(frozen=True)
class Decision:
    """Where a node runs, and how it is rewritten for that."""

    placement: Placement
    target: Target | None = None  #: what replaces the node; None: the node stays


class OpTargets:
    """The targets that write ops of this package.

    Args:
        is_saved: whether onnxruntime saves the model. Other tools may then change the file, so the
            guard of a Python op must be one that no tool can remove.
    """

    def __init__(self, is_saved: bool) -> None:
        in_session = not is_saved
        self.fused_op = FusedOp()
        self._nodes: dict[str, Target] = {
            COMPILED_OP: CompiledOp(),
            PYTHON_OP: PythonOp(in_session=in_session),
        }
        self._subgraphs: dict[str, Target] = {
            COMPILED_OP: CompiledAttention(),
            PYTHON_OP: PythonAttention(in_session=in_session),
        }
        self._attention_nodes: dict[str, Target] = {
            COMPILED_OP: ForeignAttention(),
            PYTHON_OP: ForeignAttention(is_python=True, in_session=in_session),
        }

    def of(self, match: Match, op: str) -> Target:
        """Return the target that writes ``match`` as ``op``, which is COMPILED_OP or PYTHON_OP."""
        if match.signature is not None:
            return self._attention_nodes[op]
        if match.attention is not None:
            return self._subgraphs[op]
        return self._nodes[op]


@dataclass(frozen=True)
class Environment:
    """What a decision depends on, other than the node.

    Attributes:
        nodes: the nodes that must not stay onnxruntime's own: ``"all"``, ``"unsupported"`` or a
            function of a record. None: those that have a compiled op, or that onnxruntime does not
            run.
        accelerators: the execution providers before the CPU's that may run nodes. None if there are
            none.
        op_targets: the targets that write ops of this package.
    """

    nodes: Selection | None
    accelerators: Accelerators | None
    op_targets: OpTargets

    @cached_property
    def no_compiled_ops_reason(self) -> str:
        """Why the session has no compiled ops. Computed when needed, because it imports Numba."""
        return compiled_ops_unavailable_reason()


def environment_of(
    nodes: Selection | None,
    accelerators: Accelerators,
    is_saved: bool,
) -> Environment:
    """Return the environment of a session with these arguments.

    The providers of ``accelerators`` run no node if ``nodes`` asks for ops.
    """
    may_accelerate = accelerators.is_active and nodes in (None, "unsupported")
    return Environment(nodes, accelerators if may_accelerate else None, OpTargets(is_saved))


def decide(match: Match, environment: Environment) -> Decision:
    """Decide where the node of ``match`` runs if nothing is fused."""
    for rule in RULES:
        decision = rule(match, environment)
        if decision is not None:
            return decision
    reason = environment.no_compiled_ops_reason or unsupported_reason(match.record)
    if reason:
        return decide_without_compiled_op(match, environment, reason)
    placement = Placement(match.record, COMPILED_OP, library=_library_description())
    return Decision(placement, environment.op_targets.of(match, COMPILED_OP))


def decide_without_compiled_op(match: Match, environment: Environment, reason: str) -> Decision:
    """Decide where the node of ``match`` runs if it cannot be a compiled op.

    ``reason`` is why it cannot.
    """
    if environment.nodes is None and _with_native_reason(match).native:
        return Decision(Placement(match.record, ONNXRUNTIME, reason))
    placement = Placement(match.record, PYTHON_OP, reason)
    return Decision(placement, environment.op_targets.of(match, PYTHON_OP))


def _leave_attention_to_providers(match: Match, environment: Environment) -> Decision | None:
    if environment.accelerators is None or match.record.operator != ATTENTION:
        return None
    reason = "its GridSamples may run on another provider"
    return Decision(Placement(match.record, ONNXRUNTIME, reason))


def _leave_unselected_node(match: Match, environment: Environment) -> Decision | None:
    if not callable(environment.nodes) or match.record.patched:
        return None
    if environment.nodes(_with_native_reason(match)):
        return None
    return Decision(Placement(match.record, ONNXRUNTIME, "the function given as nodes leaves it"))


def _leave_supported_node(match: Match, environment: Environment) -> Decision | None:
    if environment.nodes != "unsupported" or not _with_native_reason(match).native:
        return None
    reason = "onnxruntime runs it, and nodes is 'unsupported'"
    return Decision(Placement(match.record, ONNXRUNTIME, reason))


def _run_on_provider(match: Match, environment: Environment) -> Decision | None:
    if environment.accelerators is None:
        return None
    form = environment.accelerators.form_of(match.record, match.scope.opsets)
    if form is None:
        return None
    reason = ""
    if form.name:
        reason = f"written as {form.name}, as it does not run the node itself: {form.refusal}"
    return Decision(Placement(match.record, environment.accelerators.name, reason), form.target)


Rule = Callable[[Match, Environment], Decision | None]
#: The reasons for which a node is not an op of this package, in the order in which they apply.
RULES: tuple[Rule, ...] = (
    _leave_attention_to_providers,
    _leave_unselected_node,
    _leave_supported_node,
    _run_on_provider,
)


def _with_native_reason(match: Match) -> NodeRecord:
    """Return the record with the reason why onnxruntime does not run the node, by trying it."""
    return replace(match.record, reason=reason_of(match.record, match.scope.opsets, native))


def _library_description() -> str:
    path = library_file.configured_library()
    return "" if path is None else f"{path}, {library_file.validate(path)}"


def resolve_fusion(
    match: Match,
    decide_alone: Callable[[Match], Decision],
    fused_op: Target,
) -> Decision:
    """Return the decision for the node of ``match``, given the decisions for nodes by themselves.

    Args:
        match: the node.
        decide_alone: returns the decision of :func:`decide` for this or another node.
        fused_op: the target that fuses the nodes of a grid into their GridSample.
    """
    sample = match.fused_into or match
    attention = sample.read_by
    if attention is not None and decide_alone(attention).target is None:
        attention = None
    if attention is not None and _is_on_path(match, attention):
        decision = decide_alone(attention)
        reason = f"fused into {attention.record.where}"
        placement = replace(decision.placement, record=match.record, reason=reason)
        return Decision(placement, decision.target)
    decision = decide_alone(match)
    if match.attention is not None:
        placement = replace(decision.placement, fused=match.record.fused)
        return Decision(placement, decision.target)
    if not _is_grid_fused(sample, attention, decide_alone):
        return decision
    if match.fused_grid is not None:
        placement = replace(decision.placement, fused=match.record.fused)
    else:
        placement = replace(decision.placement, reason=f"fused into {sample.record.where}")
    return Decision(placement, fused_op)


def _is_on_path(match: Match, attention: Match) -> bool:
    """Whether the op of a deformable attention replaces the node of ``match``."""
    return attention.attention is not None and match.index in attention.attention.path


def _is_grid_fused(
    sample: Match,
    attention: Match | None,
    decide_alone: Callable[[Match], Decision],
) -> bool:
    """Whether the nodes of the grid of ``sample`` are fused into it.

    ``attention`` is the deformable attention that replaces readers of ``sample``. It reads the grid
    of an AffineGrid.
    """
    if sample.fused_grid is None:
        return False
    affine_grid = sample.fused_grid.affine_grid
    if affine_grid is None:
        return decide_alone(sample).placement.runs_on == COMPILED_OP
    if attention is not None:
        return False
    placements = [decide_alone(node).placement for node in (sample, affine_grid)]
    return all(placement.runs_on == COMPILED_OP for placement in placements)


def prepare(match: Match, decision: Decision) -> str:
    """Compile the compiled op of a decision, or load it from the cache.

    Returns:
        Why that failed. Empty if it did not, or if there is nothing to compile.
    """
    record = match.record
    if decision.placement.runs_on != COMPILED_OP or record.error is not None or record.passes_on:
        return ""
    mode = 0
    if record.operator == "GridSample":
        mode = COMPILED_MODES.index(str(record.mode))
    try:
        compiled_record = record if match.signature is None else op_record(match)
        for types in product(*compiled_record.types.values()):
            registry.prepare(record.operator, types, mode)
    except Exception as error:
        logger.warning("compiling %s failed, it runs on the Python op: %r", record.where, error)
        return f"compiling it failed: {error}"
    return ""
