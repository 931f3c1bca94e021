"""Patch a model: detect its sampling nodes and rewrite them to a target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import onnx

from .. import spec
from ..detection.match import Match
from ..detection.records import NodeRecord
from ..dialects.registry import PRIMITIVES, TWO_AXES, dialects, target_names
from ..dialects.table import AI_ONNX, COMPILED, DOMAIN, TENSORRT_ATTENTION, UNVERSIONED, VERSION
from ..errors import GridSampleError
from ..functions import validation
from ..graph.files import translate_errors
from ..graph.new_names import Names
from ..graph.runtimes import ANY, RUNTIMES, Runtime
from ..graph.scope import Scope, function_key, opset_of, scopes_of
from ..inference.declared_shapes import clear_unconfirmed_shapes
from ..inference.probe import Probe
from ..opsets.imports import import_used
from .float16 import keep_coordinates
from .passes import Patch, PatchPlan, Selection
from .replacing import insert_replacements, values_around
from .targets import ABSORBED, FUNCTIONS_DOMAIN, Replacement, Target, TargetSelector
from .targets.compiled_op import CompiledOpTarget
from .targets.dialect_target import DialectTarget
from .targets.python_op import PythonOpTarget
from .targets.tensorrt import TensorRTPluginsTarget

#: The oldest IR version with model-local functions.
_FUNCTIONS_IR_VERSION = 8


class PatchedRecords(NamedTuple):
    """The records of the sampling nodes of a patched model.

    Attributes:
        replaced: the nodes that the patch replaced, as the passes left them: of an expanded node,
            its GridSamples.
        kept: the other nodes.
    """

    replaced: list[NodeRecord]
    kept: list[NodeRecord]


class PatchReport(NamedTuple):
    """What a patch did.

    Attributes:
        replaced: as in :class:`PatchedRecords`.
        kept: as in :class:`PatchedRecords`.
        targets: the name of the target that replaced each node.
    """

    replaced: list[NodeRecord]
    kept: list[NodeRecord]
    targets: list[str]


def patch_to(
    model: onnx.ModelProto,
    *,
    nodes: Selection,
    target: str | None,
    functions: bool,
    probe: Probe,
    opset: int | None,
    for_runtime: str | None,
    max_multiply_adds: int | None = None,
    has_run_checks: bool = True,
) -> PatchReport:
    """Patch ``model`` in place; the arguments are those of :func:`ort_gridsample.patch_model`.

    Raises:
        GridSampleError: an argument is wrong, the model is invalid, or a node cannot be written.
    """
    _check_arguments(nodes, target, opset, for_runtime)
    runtime = RUNTIMES[for_runtime] if for_runtime else ANY
    if max_multiply_adds is not None:
        _check_max_multiply_adds(max_multiply_adds, runtime)
        runtime = replace(runtime, max_multiply_adds=max_multiply_adds)
    names = targets_of(target, for_runtime)
    opset = _opset_to_write(model, names, opset, runtime)
    report = PatchReport([], [], [])
    with translate_errors(model):
        for patch in _patches(names, functions, model, opset, runtime):
            plan = rewrite_matches(
                model, patch.selector, nodes, probe, patch.opset, has_run_checks=has_run_checks
            )
            report.replaced.extend(match.record for match in plan.targets)
            report.targets.extend(patch.names[id(target)] for target in plan.targets.values())
            report.kept[:] = [match.record for match in plan.kept]
        if runtime.coordinate_type is not None:
            keep_coordinates(model, probe)
        return report


def targets_of(target: str | None, for_runtime: str | None) -> tuple[str, ...]:
    """Return the names of the targets that a patch tries for each node, in this order.

    Args:
        target: the argument of :func:`ort_gridsample.patch_model`.
        for_runtime: the argument, which must be known.
    """
    if for_runtime is None:
        return (DOMAIN if target is None else target,)
    targets = RUNTIMES[for_runtime].targets
    return targets if target is None else targets[targets.index(target) :]


class _PartialPatch(NamedTuple):
    """One of the patches that follow each other.

    Attributes:
        selector: selects the targets of the nodes.
        names: the id of a target -> its name.
        opset: the opset to write, or None for any.
    """

    selector: TargetSelector
    names: Mapping[int, str]
    opset: int | None


def _patches(
    names: Sequence[str],
    functions: bool,
    model: onnx.ModelProto,
    opset: int | None,
    runtime: Runtime,
) -> Iterator[_PartialPatch]:
    """Yield the patches that write the targets with these ``names``.

    TensorRT's plugin is written before the GridSamples of a deformable attention become other
    nodes. The model keeps its opset then, because the other nodes may not exist in ``opset``.
    """
    plugin = TENSORRT_ATTENTION.name
    has_plugin = len(names) > 1 and plugin in names
    if has_plugin:
        names = [name for name in names if name != plugin]
        plugins = TensorRTPluginsTarget()
        yield _PartialPatch(plugins, {id(plugins): plugin}, None)
    targets = {name: _target_named(name, functions, model, opset, runtime) for name in names}
    absorbed = {id(ABSORBED): names[-1]}
    if len(names) == 1:
        (target,) = targets.values()
        yield _PartialPatch(target, {id(target): names[0]} | absorbed, opset)
        return
    from .targets.runtime_target import RuntimeTarget

    selector = RuntimeTarget(runtime, targets, composites=plugin if has_plugin else "")
    yield _PartialPatch(selector, selector.names | absorbed, opset)


def opset_for_decomposed(
    kept: Iterable[NodeRecord],
    *,
    nodes: Selection,
    target: str,
    opset: int,
) -> int | None:
    """Return the opset in which a patch would replace decomposed operators that it kept.

    Args:
        kept: the records of the nodes that a patch kept.
        nodes: the nodes to replace.
        opset: the opset of the patched model.

    Returns:
        The opset. None if there are no such operators.
    """
    if target != AI_ONNX or nodes != "all":
        return None
    standard = DialectTarget(AI_ONNX, "runnable")
    decomposed = [record for record in kept if record.decomposed]
    opsets = [
        standard.least_opset_of(record)
        for record in decomposed
        if record.operator in spec.OPERATORS
    ]
    return max((least for least in opsets if least > opset), default=None)


def _check_arguments(
    nodes: object,
    target: str | None,
    opset: int | None,
    for_runtime: str | None,
) -> None:
    """Check the arguments of :func:`patch_to`.

    Raises:
        GridSampleError: an argument is wrong.
    """
    if target is not None and target not in target_names():
        choices = validation.format_choices(target_names())
        expected = f"{choices}; help(ort_gridsample.patch_model) describes them"
        raise GridSampleError("patch_model", "target", repr(target), expected)
    check_selection("patch_model", nodes)
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not _is_opset(opset, newest):
        raise GridSampleError("patch_model", "opset", repr(opset), f"a number from 1 to {newest}")
    if for_runtime not in (None, *RUNTIMES):
        expected = f"{validation.format_choices(RUNTIMES)}; others run the primitives as they are"
        raise GridSampleError("patch_model", "for_runtime", repr(for_runtime), expected)
    if for_runtime is not None and target not in (None, *RUNTIMES[for_runtime].targets):
        found = f"{target!r} with for_runtime"
        choices = validation.format_choices(RUNTIMES[for_runtime].targets)
        raise GridSampleError("patch_model", "target", found, choices)


def _check_max_multiply_adds(number: object, runtime: Runtime) -> None:
    """Check the argument ``max_multiply_adds`` of :func:`patch_to`.

    Raises:
        GridSampleError: the argument is wrong.
    """
    if not runtime.lacks("Gather"):
        names = [name for name, row in RUNTIMES.items() if row.lacks("Gather")]
        expected = f"None, unless for_runtime is {validation.format_choices(names)}"
        raise GridSampleError("patch_model", "max_multiply_adds", repr(number), expected)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        expected = "a whole number, at least 1, or None"
        raise GridSampleError("patch_model", "max_multiply_adds", repr(number), expected)


def _is_opset(opset: object, newest: int) -> bool:
    """Whether ``opset`` is a whole number from 1 to ``newest``; a bool is not a number here."""
    return isinstance(opset, int) and not isinstance(opset, bool) and 1 <= opset <= newest


def check_selection(where: str, nodes: object) -> None:
    """Check the argument that selects the nodes to patch.

    Raises:
        GridSampleError: the argument is wrong.
    """
    if not callable(nodes) and nodes not in ("all", "unsupported"):
        expected = (
            "'all', 'unsupported', or a function that gets the NodeRecord of a node and returns "
            "whether to replace the node"
        )
        raise GridSampleError(where, "nodes", repr(nodes), expected)


def _opset_to_write(
    model: onnx.ModelProto,
    targets: Sequence[str],
    opset: int | None,
    runtime: Runtime,
) -> int | None:
    """Return the opset to convert ``model`` to, or None if it may have any.

    Raises:
        GridSampleError: the target does not write ``opset``.
    """
    newest = runtime.opset
    if TWO_AXES in targets:
        from .targets.two_axes import FIRST_OPSET, LAST_OPSET

        newest = LAST_OPSET
        if opset is not None and not FIRST_OPSET <= opset <= LAST_OPSET:
            expected = f"a number from {FIRST_OPSET} to {LAST_OPSET} with target {TWO_AXES!r}"
            raise GridSampleError("patch_model", "opset", repr(opset), expected)
    if opset is None and newest is not None and opset_of(model) > newest:
        return newest
    return opset


def _target_named(
    name: str,
    functions: bool,
    model: onnx.ModelProto,
    opset: int | None,
    runtime: Runtime,
) -> Target:
    """Return the target with this name."""
    if name in (PRIMITIVES, TWO_AXES):
        # Imported here: few callers need it, and importing it takes a while.
        from .targets.lowering_targets import PrimitivesTarget, TwoAxesTarget

        lowering = TwoAxesTarget if name == TWO_AXES else PrimitivesTarget
        return lowering(functions, model.functions, runtime)
    if name == DOMAIN:
        return PythonOpTarget()
    if name == COMPILED:
        return CompiledOpTarget()
    if name == TENSORRT_ATTENTION.name:
        return TensorRTPluginsTarget()
    return DialectTarget(name, "runnable" if opset is None else "certain")


def rewrite_selected_nodes(
    model: onnx.ModelProto,
    target: TargetSelector,
    nodes: Selection = "all",
    probe: Probe | None = None,
    opset: int | None = None,
    *,
    has_run_checks: bool = True,
) -> PatchedRecords:
    """Rewrite nodes as :func:`rewrite_matches` does, whose arguments these are."""
    plan = rewrite_matches(model, target, nodes, probe, opset, has_run_checks=has_run_checks)
    return PatchedRecords(
        replaced=[match.record for match in plan.targets],
        kept=[match.record for match in plan.kept],
    )


def rewrite_matches(
    model: onnx.ModelProto,
    target: TargetSelector,
    nodes: Selection = "all",
    probe: Probe | None = None,
    opset: int | None = None,
    all_scopes: list[Scope] | None = None,
    *,
    has_run_checks: bool = True,
) -> PatchPlan:
    """Rewrite the selected nodes of ``model`` as ``target``; return what was replaced and kept.

    Args:
        model: the model, which is changed.
        nodes: the nodes to replace.
        probe: tests whether onnxruntime runs a node, where ``nodes`` depend on it, and returns
            types that onnx does not infer.
        opset: the opset to convert the model to; None: its own, or the oldest newer one that the
            target needs.
        all_scopes: the scopes of ``model`` if they are known; updated in place.
        has_run_checks: as in :class:`.Patch`.

    Raises:
        GridSampleError: a node is wrong or cannot be written.
    """
    all_scopes = scopes_of(model) if all_scopes is None else all_scopes
    standard = DialectTarget(AI_ONNX, "any" if opset is None else "certain")
    patch = Patch(model, all_scopes, target, standard, nodes, probe, opset, has_run_checks)
    plan = patch.prepare()
    _rewrite(patch, plan)
    return plan


def _rewrite(patch: Patch, plan: PatchPlan) -> None:
    """Replace the nodes of ``plan``.

    Raises:
        GridSampleError: a node cannot be written.
    """
    targets = plan.targets | dict.fromkeys(plan.unversioned, patch.standard)
    if not targets:
        return
    if patch.opset is not None:
        _check_opset(targets, patch.opset)
    names = Names(patch.model, patch.all_scopes)
    preparing_nodes = [node for match in plan.targets for node in match.preparing_nodes]
    if preparing_nodes:
        # Detection chose these names among those that the model does not have.
        are_free = names.take_all({name for node in preparing_nodes for name in node.output})
        assert are_free
    replacements = {
        match: target.replacement_for(match, names) for match, target in targets.items()
    }
    clear_unconfirmed_shapes(
        patch.all_scopes, values_around(patch.all_scopes, replacements), plan.inference
    )
    insert_replacements(patch.all_scopes, replacements)
    _add_functions(patch.model, replacements.values())
    _import_domains(patch, plan)


def _check_opset(targets: Mapping[Match, Target], opset: int) -> None:
    """Check that all nodes can be written in ``opset``.

    Raises:
        GridSampleError: a node cannot.
    """
    for match, target in targets.items():
        least = target.least_opset(match)
        if least > match.opset:
            found = f"{opset} in the patched model"
            expected = f"at least {least}, {target.least_opset_reason(match)}"
            raise GridSampleError(match.record.where, "opset", found, expected)


def _add_functions(model: onnx.ModelProto, replacements: Iterable[Replacement]) -> None:
    """Add to ``model`` the model-local functions that ``replacements`` call."""
    functions = [function for replacement in replacements for function in replacement.functions]
    called = {function_key(function): function for function in functions}
    if not called:
        return
    present = {function_key(function) for function in model.functions}
    model.ir_version = max(model.ir_version, _FUNCTIONS_IR_VERSION)
    model.functions.extend(function for key, function in called.items() if key not in present)


def _import_domains(patch: Patch, plan: PatchPlan) -> None:
    """Import the domains of the new nodes, and drop imports that only replaced nodes needed."""
    versions = {dialect.domain: dialect.version for dialect in dialects() if dialect.domain}
    versions |= {DOMAIN: VERSION, FUNCTIONS_DOMAIN: 1}
    opsets = patch.all_scopes[0].opsets
    if "" in opsets:
        versions[""] = opsets[""]
    replaced_domains = {match.record.domain for match in plan.targets}
    import_used(patch.model, versions, {UNVERSIONED, *replaced_domains}, patch.all_scopes)


def bind_threads(all_scopes: Iterable[Scope], num_threads: int) -> bool:
    """Set the number of threads of the Python ops, and return whether that changed an op.

    Args:
        num_threads: the number of threads, or 0 for the process' default.
    """
    is_changed = False
    for scope in all_scopes:
        if DOMAIN not in scope.domains:
            continue
        for node in scope.nodes:
            for attribute in node.attribute if node.domain == DOMAIN else ():
                if attribute.name == "num_threads" and attribute.i != num_threads:
                    attribute.i = num_threads
                    is_changed = True
    return is_changed
