"""Prepare a model for the replacement of its nodes by passes, until no pass changes the model.

Each pass changes the model in place and returns whether it did. Then the nodes are detected again,
because a pass changes types, opsets and the graphs that nodes are in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx

from ..detection.find import SearchOptions, search
from ..detection.match import Match
from ..detection.node_checks import check_no_fused_nodes
from ..detection.records import NodeRecord
from ..errors import GridSampleError, one_line
from ..graph.files import keep_errors
from ..graph.first_opsets import FIRST_OPSET_WITH_ALLOWZERO
from ..graph.new_names import Names
from ..graph.scope import Scope, function_key, opset_of, scopes_of
from ..inference.declared_shapes import names_with_declared_shapes
from ..inference.probe import Probe
from ..inference.types import Inference
from ..opsets.convert import convert_opset, first_unconvertible_node
from ..opsets.imports import import_used
from ..opsets.inlining import inline
from .expansion import expanded
from .foreign_attention_facts import reads_weights_of_caller
from .planar_samplers import CONTRIB_DOMAIN
from .replacing import insert_replacements
from .targets import ABSORBED, Target, TargetSelector

#: Which nodes a patch replaces, as in :func:`ort_gridsample.patch_model`.
Selection = Literal["all", "unsupported"] | Callable[[NodeRecord], bool]


@dataclass(frozen=True)
class PatchPlan:
    """What a patch does with the nodes of a model in its current state.

    Attributes:
        composites: nodes that must be expanded to several nodes before any node is replaced.
        targets: the node -> the target that replaces it; empty while there are ``composites``.
        kept: the nodes that stay.
        unversioned: the standard nodes of ``kept`` that must be written in the model's new opset.
        inference: the inferred types of the model.
    """

    composites: Sequence[Match]
    targets: dict[Match, Target]
    kept: Sequence[Match]
    unversioned: Sequence[Match]
    inference: Inference

    def raise_errors(self) -> None:
        """Raise the error of the first node that is wrong and would be written.

        Raises:
            GridSampleError: there is such a node.
        """
        for match in (*self.composites, *self.targets, *self.unversioned):
            if match.record.error is not None:
                raise match.record.error


@dataclass
class Patch:
    """A patch of one model.

    Attributes:
        model: the model, which the passes change.
        all_scopes: the scopes of ``model``; updated in place when the model changes.
        target: the target of the selected nodes.
        standard: the target of standard nodes whose opset changes.
        selection: the nodes to replace.
        probe: tests whether onnxruntime runs a node, and returns types that onnx does not infer.
        opset: the opset of the result, or None for any.
        has_run_checks: whether an attention node of this package that is expanded checks its inputs
            in a run.
    """

    model: onnx.ModelProto
    all_scopes: list[Scope]
    target: TargetSelector
    standard: Target
    selection: Selection
    probe: Probe | None
    opset: int | None
    has_run_checks: bool = True

    def prepare(self) -> PatchPlan:
        """Run the passes until none changes the model; return the plan for the resulting model.

        Raises:
            GridSampleError: a session has fused a node of the model, or a node is wrong.
        """
        check_no_fused_nodes(self.all_scopes)
        plan = self._plan()
        while any(run_pass(self, plan) for run_pass in _PASSES):
            self.update_scopes()
            plan = self._plan()
        return plan

    def update_scopes(self) -> None:
        """Read the scopes of the model again."""
        self.all_scopes[:] = scopes_of(self.model, self.all_scopes[0].source)

    def _plan(self) -> PatchPlan:
        """Return what to do with the nodes of the model.

        Raises:
            GridSampleError: a node that would be written is wrong.
        """
        matches, inference = search(
            self.model,
            self.all_scopes,
            self.probe,
            with_reasons=self.selection != "all",
            options=SearchOptions(
                decomposed=self.target.replaces_decomposed,
                fused_grids=self.target.fuses or callable(self.selection),
                attention=self.target.fuses or self.target.replaces_attention,
            ),
            names_to_confirm=names_with_declared_shapes(self.all_scopes),
        )
        composites = [match for match in matches if self._is_expanded(match)]
        targets = {} if composites else self._targets_of(matches)
        replaced = {*composites, *targets}
        kept = [match for match in matches if match not in replaced]
        unversioned = [] if composites else [match for match in kept if match.is_unversioned]
        plan = PatchPlan(composites, targets, kept, unversioned, inference)
        plan.raise_errors()
        return plan

    def _is_expanded(self, match: Match) -> bool:
        """Whether a node is a selected composite that the target does not write as one node."""
        return (
            match.is_composite and self.target.needs_expansion(match) and self._is_selected(match)
        )

    def _targets_of(self, matches: Sequence[Match]) -> dict[Match, Target]:
        """Return the selected nodes that are replaced -> their targets."""
        candidates = [
            match
            for match in matches
            if not match.is_composite or self.target.replaces_composite(match)
        ]
        targets = self.target.targets_of(candidates)
        hosts = [match for match, target in targets.items() if target is not ABSORBED]
        declined = {host for host in hosts if host.absorbed and not self._is_selected(host)}
        if declined:  # the nodes that they would absorb are replaced by themselves
            targets = self.target.targets_of([m for m in candidates if m not in declined])
        return {
            match: target
            for match, target in targets.items()
            if target is ABSORBED or self._is_selected(match)
        }

    def _is_selected(self, match: Match) -> bool:
        """Whether the caller selects a node for replacement."""
        if callable(self.selection):
            with keep_errors():
                return bool(self.selection(match.record))
        if self.selection == "all" or not match.record.native:
            return True
        # onnxruntime also runs some nodes that their opset does not allow. They must not be
        # written.
        return match.is_unversioned and self.standard.least_opset(match) > match.record.opset


def _inline_composites(patch: Patch, plan: PatchPlan) -> bool:
    """Inline functions of which one body cannot serve all calls after the expansion."""
    functions = {
        function_key(match.scope.function)[:2]
        for match in plan.composites
        if match.scope.function is not None and _depends_on_calls(match)
    }
    if functions:
        inline(patch.model, functions)
    return bool(functions)


def _depends_on_calls(match: Match) -> bool:
    """Whether the expansion of a composite node depends on the calls of its function.

    The calls may differ in types, axes or attributes, or pass the output of a Softmax as weights.
    """
    record = match.record
    varies_in_types = any(map(record.varies_in_type, record.values))
    varies_in_axes = len(record.spatial_axes) > 1
    if record.has_attribute_references or varies_in_types or varies_in_axes:
        return True
    return reads_weights_of_caller(match)


def _expand_composites(patch: Patch, plan: PatchPlan) -> bool:
    """Replace composite nodes by the nodes that they are equivalent to."""
    if not plan.composites:
        return False
    names = Names(patch.model, patch.all_scopes)
    has_allowzero = patch.target.has_allowzero
    if patch.opset is not None and patch.opset < FIRST_OPSET_WITH_ALLOWZERO:
        has_allowzero = False  # the model is converted to this opset afterwards
    replacements = {
        match: expanded(
            match,
            names,
            has_allowzero=has_allowzero,
            is_checked=patch.has_run_checks,
            runtime=patch.target.runtime,
        )
        for match in plan.composites
    }
    insert_replacements(patch.all_scopes, replacements)
    import_used(patch.model, {CONTRIB_DOMAIN: 1})
    return True


def _inline_functions(patch: Patch, plan: PatchPlan) -> bool:
    """Inline functions of which one body cannot serve all calls after the replacement."""
    functions = {
        function_key(match.scope.function)[:2]
        for match, target in plan.targets.items()
        if match.scope.function is not None and target.needs_inlining(match)
    }
    if functions:
        inline(patch.model, functions)
    return bool(functions)


def _convert_opset(patch: Patch, plan: PatchPlan) -> bool:
    """Convert the model to the opset that the patch or its replacements need."""
    if patch.opset is None:
        return _raise_opset(patch.model, plan)
    if all(scope.opsets.get("", patch.opset) == patch.opset for scope in patch.all_scopes):
        return False
    _convert_to(patch.model, patch.opset)
    return True


def _convert_to(model: onnx.ModelProto, opset: int) -> None:
    """Convert ``model`` to ``opset``.

    Raises:
        GridSampleError: it cannot be converted.
    """
    before = opset_of(model)
    error = _try_to_convert(model, opset)
    if error is not None:
        place, text = first_unconvertible_node(model, opset)
        found = f"{opset} in the patched model"
        expected = f"one to which onnx's version converter converts opset {before}; it says: {text}"
        raise GridSampleError(place, "opset", found, expected)


def _try_to_convert(model: onnx.ModelProto, opset: int) -> Exception | None:
    """Convert ``model`` to ``opset``; return the error of onnx's version converter, or None.

    Raises:
        GridSampleError: a node cannot be expressed in ``opset``.
    """
    try:
        convert_opset(model, opset)
    except GridSampleError:
        raise
    except Exception as error:
        return error
    return None


def _raise_opset(model: onnx.ModelProto, plan: PatchPlan) -> bool:
    """Convert ``model`` to the oldest opset in which all replacements can be written, if needed.

    Return whether a replaced node had an older opset. If only a function has, the model keeps its
    opset, and the function is inlined.

    Raises:
        GridSampleError: the model cannot be converted.
    """
    needed = {match: target.least_opset(match) for match, target in plan.targets.items()}
    too_old = [match for match in needed if needed[match] > match.opset]
    if not too_old:
        return False
    match = max(too_old, key=needed.__getitem__)
    before = opset_of(model)
    needed_opset = needed[match]
    error = _try_to_convert(model, max(needed_opset, before))
    if error is not None:
        text = one_line(error)
        reason = f"onnx's version converter cannot convert the model to {needed_opset}: {text}"
        found = f"{before} in the model"
        expected = f"at least {needed_opset}, and {reason}"
        raise GridSampleError(match.record.where, "opset", found, expected)
    return True


_PASSES: tuple[Callable[[Patch, PatchPlan], bool], ...] = (
    _inline_composites,
    _expand_composites,
    _inline_functions,
    _convert_opset,
)
