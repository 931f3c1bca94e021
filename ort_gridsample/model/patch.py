"""Rewriting the nodes of a model to a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import onnx

from .. import checks
from ..errors import GridSampleError
from . import dialects
from .asking import Native
from .conversion import import_used, inline, raise_opset
from .dialects import COMPILED, DOMAIN
from .files import explaining_invalid
from .graphs import Names, Scope, domain_of, function_key, scopes
from .inference import Inference
from .matches import Match, find
from .records import NodeRecord
from .targets import FUNCTIONS_DOMAIN, Replacement, Target
from .targets.compiled_op import CompiledOp
from .targets.python_op import PythonOp
from .targets.runtimes import ANY, RUNTIMES
from .targets.spelled import Spelled

Selection = Literal["all", "unsupported"] | Callable[[NodeRecord], bool]


def targets() -> list[str]:
    """The names that :func:`ort_gridsample.patch_model` takes as ``target``."""
    spelled = dict.fromkeys(dialect.name for dialect in reversed(dialects.dialects()) if not dialect.reads_only)
    return [DOMAIN, "ai.onnx", "primitives", *spelled]


def patch_in_place(
    model: onnx.ModelProto,
    nodes: Selection = "all",
    target: str = DOMAIN,
    functions: bool = False,
    native: Native | None = None,
    for_runtime: str | None = None,
) -> list[NodeRecord]:
    """Do as :func:`ort_gridsample.patch_model` to ``model`` itself, and return the records of what it replaced.

    ``native`` is asked whether onnxruntime runs a node where ``nodes`` depend on it, and for types that onnx does not
    know.
    """
    return patch_and_report(model, nodes, target, functions, native, for_runtime)[0]


def patch_and_report(
    model: onnx.ModelProto,
    nodes: Selection = "all",
    target: str | Target = DOMAIN,
    functions: bool = False,
    native: Native | None = None,
    for_runtime: str | None = None,
) -> tuple[list[NodeRecord], list[NodeRecord]]:
    """Do as :func:`patch_in_place`, and return the records of what it replaced and of the nodes that stay."""
    if isinstance(target, str) and target not in targets():
        raise GridSampleError("patch_model", "target", repr(target), checks.listed(targets()))
    check_selection("patch_model", nodes)
    if for_runtime is not None:
        _check_runtime(target, for_runtime)
    to = _target(target, functions, model.functions, for_runtime) if isinstance(target, str) else target
    with explaining_invalid(model):
        return _patch(model, nodes, to, native)


def check_selection(where: str, nodes: object) -> None:
    """Check what says which nodes to patch."""
    if not callable(nodes) and nodes not in ("all", "unsupported"):
        raise GridSampleError(where, "nodes", repr(nodes), "'all', 'unsupported' or a function of a NodeRecord")


def _patch(
    model: onnx.ModelProto, nodes: Selection, to: Target, native: Native | None
) -> tuple[list[NodeRecord], list[NodeRecord]]:
    while True:
        found = scopes(model)
        matches = find(model, found, Inference(model, found, native), None if nodes == "all" else native)
        selected = [match for match in matches if to.takes(match) and _is_selected(match.record, nodes)]
        for match in selected:
            if match.record.error is not None:
                raise match.record.error
        if not (_inline(model, selected, to) or _raise_opset(model, selected, to)):
            break
    if selected:
        names, by_scope = Names(model), _by_scope(selected)
        replacements = {id(match): to.replace(match, names) for match in selected}
        for scope in reversed(found):  # inner graphs first: a list of nodes that was rewritten holds copies
            if id(scope) in by_scope:
                _rewrite(scope, by_scope[id(scope)], replacements)
        _add_functions(model, replacements.values())
        versions = _imports() | {domain: version for domain, version in found[0].opsets.items() if domain == ""}
        import_used(model, versions, dropped={match.record.domain for match in selected})
    replaced = {id(match) for match in selected}
    return [m.record for m in selected], [m.record for m in matches if id(m) not in replaced]


def _check_runtime(target: str | Target, name: str) -> None:
    """Check what runtime lowered nodes are for."""
    if target != "primitives":
        raise GridSampleError("patch_model", "for_runtime", f"{name!r} with target {target!r}", "target 'primitives'")
    if name not in RUNTIMES:
        expected = f"{checks.listed(list(RUNTIMES))}; others run the primitives as they are"
        raise GridSampleError("patch_model", "for_runtime", repr(name), expected)


def _target(name: str, functions: bool, there: Iterable[onnx.FunctionProto], for_runtime: str | None) -> Target:
    if name == DOMAIN:
        return PythonOp()
    if name == COMPILED:
        return CompiledOp()
    if name == "primitives":
        from .targets.lowered import Primitives  # here, as few need it and importing it takes a while

        return Primitives(functions, there, RUNTIMES[for_runtime] if for_runtime else ANY)
    return Spelled(name)


def bind_threads(model: onnx.ModelProto, num_threads: int) -> bool:
    """Let the ops in ``model`` use ``num_threads`` threads, 0 for the process' default; whether that changed it."""
    changed = False
    for scope in scopes(model):
        for node in scope:
            for attribute in node.attribute if node.domain == DOMAIN else ():
                if attribute.name == "num_threads" and attribute.i != num_threads:
                    attribute.i, changed = num_threads, True
    return changed


def _is_selected(record: NodeRecord, nodes: Selection) -> bool:
    if callable(nodes):
        return bool(nodes(record))
    return nodes == "all" or not record.native


def _by_scope(matches: Sequence[Match]) -> dict[int, list[Match]]:
    grouped: dict[int, list[Match]] = {}
    for match in matches:
        grouped.setdefault(id(match.scope), []).append(match)
    return grouped


def _inline(model: onnx.ModelProto, selected: Sequence[Match], to: Target) -> bool:
    """Inline the functions of which one body cannot serve all calls; whether there was one."""
    functions = {
        function_key(match.scope.function)[:2]
        for match in selected
        if match.scope.function is not None and to.needs_inlining(match)
    }
    if functions:
        inline(model, functions)
    return bool(functions)


def _raise_opset(model: onnx.ModelProto, selected: Sequence[Match], to: Target) -> bool:
    """Raise the model's opset where the replacements need it; whether that was so."""
    old = [(m, to.least_opset(m)) for m in selected if m.scope.opsets.get("", 0) < to.least_opset(m)]
    if not old:
        return False
    match, least = max(old, key=lambda pair: pair[1])
    before = {domain_of(entry.domain): entry.version for entry in model.opset_import}.get("", 0)
    try:
        raise_opset(model, least)
    except Exception as error:
        why = " ".join(str(error).split())
        expected = f"at least {least}, and onnx's version converter says: {why}"
        raise GridSampleError(match.record.where, "opset", str(before), expected) from None
    return True


def _rewrite(scope: Scope, matches: Sequence[Match], replacements: dict[int, Replacement]) -> None:
    """Put the replacements where the nodes of ``matches`` and their helpers are."""
    replaced = {match.index: replacements[id(match)] for match in matches}
    dropped = {index for match in matches for index in match.helpers}
    nodes = onnx.GraphProto()  # copies, as the list that holds the originals is emptied
    for index, node in enumerate(scope):
        if index in replaced:
            nodes.node.extend(replaced[index].nodes)
        elif index not in dropped:
            nodes.node.append(node)
    # The first node's guard comes last: onnxruntime walks back from the last node, so that a failed op is reported
    # before what reads its placeholder can fail.
    for index in sorted(replaced, reverse=True):
        nodes.node.extend(replaced[index].guards)
    del scope.container.node[:]
    scope.container.node.extend(nodes.node)


def _add_functions(model: onnx.ModelProto, replacements: Iterable[Replacement]) -> None:
    there = {function_key(function) for function in model.functions}
    for replacement in replacements:
        for function in replacement.functions:
            if function_key(function) not in there:
                there.add(function_key(function))
                model.functions.append(function)


def _imports() -> dict[str, int]:
    """Domain -> version, of the domains that a replacement may be in."""
    versions = {d.domain: d.version for d in dialects.dialects() if d.domain}
    return versions | {DOMAIN: dialects.VERSION, FUNCTIONS_DOMAIN: 1}
