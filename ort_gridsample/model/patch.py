"""Rewriting the nodes of a model to a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Literal

import onnx
from onnx import helper, inliner, version_converter

from .. import checks
from ..errors import GridSampleError
from . import dialects
from .dialects import DOMAIN
from .files import read_model, sound
from .graphs import Names, Scope, domain_of, function_key, scopes
from .inference import Inference
from .records import NodeRecord, find
from .targets import FUNCTIONS_DOMAIN, Replacement, Target
from .targets.python_op import PythonOp
from .targets.spelled import Spelled

Selection = Literal["all", "unsupported"] | Callable[[NodeRecord], bool]


def patch_model(
    model: onnx.ModelProto | str | PathLike[str],
    *,
    nodes: Selection = "all",
    target: str = DOMAIN,
    functions: bool = False,
) -> onnx.ModelProto:
    """A copy of ``model`` in which GridSample and AffineGrid nodes, in whatever dialect, are what ``target`` says.

    Names of inputs, outputs, initializers and nodes, value_info, metadata and doc strings stay as they are; patching a
    patched model changes nothing.

    Args:
        model: a ModelProto, which is not changed, or a path; the external data of a path is loaded.
        nodes: ``"all"``; ``"unsupported"``, those that the installed onnxruntime does not run by itself (or that
            cannot be known before it runs); or a function from a :class:`NodeRecord` to a bool.
        target:
            ``"ort_gridsample"``: this package's ops. The result runs on any ``onnxruntime.InferenceSession`` whose
            options went through :func:`ort_gridsample.register`. float16 and bfloat16 tensors go through Casts to
            float32 and back, as no Python-defined op can take them.
            ``"ai.onnx"``: the standard operators, the model's opset raised where it has none yet.
            ``"primitives"``: basic standard operators only; runs anywhere, without this package.
            ``"com.microsoft"``, ``"mmcv"``, ``"mmdeploy"``, ``"GridSampler"``, ``"GridSample3D"``, or the name of a
            dialect that was added: that dialect. Nodes that it has no spelling for stay as they are.
        functions: with ``"primitives"``, whether nodes that are lowered alike share a model-local function.

    Raises:
        GridSampleError: a node concerned is not what its opset or dialect allows, the target cannot say it, the
            file is not an ONNX model, or its external data lies outside its folder.
        OSError: the file cannot be read.
    """
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
    else:
        copy = read_model(model, external_data=True)
    patch_in_place(copy, nodes, target, functions)
    return copy


def targets() -> list[str]:
    """The names that :func:`patch_model` takes as ``target``."""
    spelled = dict.fromkeys(dialect.name for dialect in reversed(dialects.dialects()) if not dialect.reads_only)
    return [DOMAIN, "ai.onnx", "primitives", *spelled]


@sound
def patch_in_place(
    model: onnx.ModelProto, nodes: Selection = "all", target: str = DOMAIN, functions: bool = False
) -> list[NodeRecord]:
    """Do as :func:`patch_model` to ``model`` itself, and return the records of the nodes that it replaced."""
    if target not in targets():
        raise GridSampleError("patch_model", "target", repr(target), checks.listed(targets()))
    if not callable(nodes) and nodes not in ("all", "unsupported"):
        raise GridSampleError("patch_model", "nodes", repr(nodes), "'all', 'unsupported' or a function of a NodeRecord")
    to = _target(target, functions)
    while True:
        found = scopes(model)
        selected = [r for r in find(found, Inference(model, found)) if to.takes(r) and _is_selected(r, nodes)]
        for record in selected:
            if record.error is not None:
                raise record.error
        if not (_inline_torn(model, selected, to) or _raise_opset(model, selected, to)):
            break
    if selected:
        names, by_scope = Names(model), _by_scope(selected)
        replacements = {id(record): to.replace(record, names) for record in selected}
        for scope in reversed(found):  # inner graphs first: a list of nodes that was rewritten holds copies
            if id(scope) in by_scope:
                _rewrite(scope, by_scope[id(scope)], replacements)
        _add_functions(model, replacements.values())
        _import_what_is_used(model, {record.domain for record in selected})
    return selected


def _target(name: str, functions: bool) -> Target:
    if name == DOMAIN:
        return PythonOp()
    if name == "primitives":
        from .targets.lowered import Primitives  # here, as few need it and importing it takes a while

        return Primitives(functions)
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


def _by_scope(records: Sequence[NodeRecord]) -> dict[int, list[NodeRecord]]:
    grouped: dict[int, list[NodeRecord]] = {}
    for record in records:
        grouped.setdefault(id(record.scope), []).append(record)
    return grouped


def _inline_torn(model: onnx.ModelProto, selected: Sequence[NodeRecord], to: Target) -> bool:
    """Inline the functions of which one body cannot serve all calls; whether there was one."""
    torn = {function_key(r.scope.function)[:2] for r in selected if r.scope.function is not None and to.is_torn(r)}
    if torn:
        model.CopyFrom(inliner.inline_selected_functions(model, sorted(torn)))
    return bool(torn)


def _raise_opset(model: onnx.ModelProto, selected: Sequence[NodeRecord], to: Target) -> bool:
    """Raise the model's opset where the replacements need it; whether that was so."""
    old = [(r, to.least_opset(r)) for r in selected if r.scope.opsets.get("", 0) < to.least_opset(r)]
    if not old:
        return False
    record, least = max(old, key=lambda pair: pair[1])
    expected = f"at least {least}"
    if any(r.scope.function is not None for r, _ in old):
        raise GridSampleError(record.where, "its function's opset", str(record.scope.opsets.get("", 0)), expected)
    for r in selected:
        if not r.domain and r.dialect.name != "ai.onnx":  # the converter takes every node of ONNX's domain for ONNX's
            r.node.domain = r.dialect.domain
    _import_what_is_used(model, set())
    before = {domain_of(entry.domain): entry.version for entry in model.opset_import}.get("", 0)
    try:
        model.CopyFrom(version_converter.convert_version(model, least))
    except Exception as error:
        why = " ".join(str(error).split())
        raise GridSampleError(
            record.where, "opset", str(before), f"{expected}, and onnx's version converter says: {why}"
        ) from None
    return True


def _rewrite(scope: Scope, records: Sequence[NodeRecord], replacements: dict[int, Replacement]) -> None:
    """Put the replacements where the nodes of ``records`` and their helpers are."""
    replaced = {record.index: replacements[id(record)] for record in records}
    dropped = {index for record in records for index in record.helpers}
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


def _import_what_is_used(model: onnx.ModelProto, left: set[str]) -> None:
    """Import the domains of the nodes, and no more those of ``left`` that none is in any longer."""
    versions = {d.domain: d.version for d in dialects.dialects() if d.domain}
    versions |= {DOMAIN: dialects.VERSION, FUNCTIONS_DOMAIN: 1}
    used: dict[int, set[str]] = {}
    everywhere: set[str] = set()
    for scope in scopes(model):
        domains = {domain_of(node.domain) for node in scope}
        everywhere |= domains
        if scope.function is not None:
            used.setdefault(id(scope.function), set()).update(domains)
    for proto in (model, *model.functions):
        here = everywhere if proto is model else used.get(id(proto), set())
        kept = [e for e in proto.opset_import if e.domain not in left or not e.domain or e.domain in here]
        imported = {entry.domain for entry in kept}
        kept += [helper.make_opsetid(d, v) for d, v in versions.items() if d in here and d not in imported]
        copies = onnx.ModelProto(opset_import=kept)
        del proto.opset_import[:]
        proto.opset_import.extend(copies.opset_import)
