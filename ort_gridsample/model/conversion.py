"""Inlining functions and raising the opset of a model in place: onnx's own, with what that loses put back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import helper, inliner, version_converter

from .dialects import dialect_of
from .graphs import domain_of, function_key, scopes, subgraphs

#: Where nodes are while the converter works that are in ONNX's domain without being ONNX's: it takes all for its own.
_FOREIGN = "ort_gridsample.foreign"


#: The domain and the name of a function.
Name = tuple[str, str]


def inline(model: onnx.ModelProto, names: Collection[Name]) -> None:
    """Inline the functions of these domains and names.

    Raises:
        Exception: onnx's inliner cannot do it.
    """
    versions = _versions(model)
    said = {
        function_key(function): onnx.FunctionProto(opset_import=function.opset_import) for function in model.functions
    }
    for function in model.functions:
        for entry in function.opset_import:
            # The inliner wants the same versions everywhere; that is also how onnxruntime reads a function.
            entry.version = versions[domain_of(entry.domain)]
    left = _with_callers(model, names)
    while left:
        inner = _calls_with_defaults(model, left)
        now = left - inner or left
        model.CopyFrom(inliner.inline_selected_functions(model, sorted(now)))
        left -= now
    for function in model.functions:
        del function.opset_import[:]
        function.opset_import.extend(said[function_key(function)].opset_import)
    import_used(model, versions)


def _with_callers(model: onnx.ModelProto, names: Collection[Name]) -> set[Name]:
    """``names``, and the functions that pass on to one of them what they may not have been given, against its default.

    There is no way to write that in the caller's body.
    """
    found = set(names)
    calls = [(scope.function, node) for scope in scopes(model) for node in scope if scope.function is not None]
    while True:
        defaults = _defaults(model, found)
        callers = {
            _name(caller)
            for caller, node in calls
            for default in defaults.get(function_key(node), ())
            for attribute in node.attribute
            if attribute.name == default.name and attribute.ref_attr_name in caller.attribute
        }
        if callers <= found:
            return found
        found |= callers


def _calls_with_defaults(model: onnx.ModelProto, names: Collection[Name]) -> set[Name]:
    """Let calls of the functions ``names`` say what they leave to the functions' defaults, which the inliner forgets.

    Returns:
        The functions for which that is too early: another one of ``names`` calls them, and may pass on an attribute
        that it is not given itself.
    """
    inner, defaults = set(), _defaults(model, names)
    for scope in scopes(model) if defaults else ():
        for node in scope:
            if function_key(node) in defaults:
                said = {attribute.name for attribute in node.attribute}
                node.attribute.extend(a for a in defaults[function_key(node)] if a.name not in said)
                if scope.function is not None and _name(scope.function) in names:
                    inner.add(_name(node))
    return inner


def _defaults(
    model: onnx.ModelProto, names: Collection[Name]
) -> dict[tuple[str, str, str], Sequence[onnx.AttributeProto]]:
    """Those of the functions ``names`` that have attributes with defaults -> these."""
    return {function_key(f): f.attribute_proto for f in model.functions if _name(f) in names and f.attribute_proto}


def _name(node: onnx.NodeProto | onnx.FunctionProto) -> Name:
    """What the inliner knows a function by: its overloads are one to it."""
    return function_key(node)[:2]


def raise_opset(model: onnx.ModelProto, version: int) -> None:
    """Convert ``model`` to this version of the ONNX domain; its functions are inlined, as they have none of their own.

    Raises:
        Exception: onnx's version converter cannot do it.
    """
    if not any(domain_of(entry.domain) == "" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", _versions(model).get("", version)))
    if model.functions:
        inline(model, {_name(function) for function in model.functions})
    for node in (node for scope in scopes(model) for node in scope if _is_foreign(node)):
        node.domain = _FOREIGN
    import_used(model, {_FOREIGN: 1})
    converted = version_converter.convert_version(model, version)
    _take_nodes(model.graph, converted.graph)
    for scope in scopes(model):
        for node in scope:
            if node.domain == _FOREIGN:
                node.domain = ""
    for entry in model.opset_import:
        if domain_of(entry.domain) == "":
            entry.version = version
    import_used(model, {}, dropped={_FOREIGN})


def _is_foreign(node: onnx.NodeProto) -> bool:
    """Whether ``node`` is in ONNX's domain without being one of ONNX's operators, or but in name."""
    if domain_of(node.domain) != "":
        return False
    dialect = dialect_of(node, {})
    return not onnx.defs.has(node.op_type) if dialect is None else dialect.name != "ai.onnx"


def import_used(model: onnx.ModelProto, versions: Mapping[str, int], dropped: Collection[str] = ()) -> None:
    """Let ``model`` and its functions import those of ``versions`` that their nodes are in.

    Of the domains ``dropped`` no import stays that no node needs.
    """
    used: dict[int, set[str]] = {}
    everywhere: set[str] = set()
    for scope in scopes(model):
        domains = {domain_of(node.domain) for node in scope}
        everywhere |= domains
        if scope.function is not None:
            used.setdefault(id(scope.function), set()).update(domains)
    for proto in (model, *model.functions):
        here = everywhere if proto is model else used.get(id(proto), set())
        kept = [e for e in proto.opset_import if e.domain not in dropped or not e.domain or e.domain in here]
        imported = {domain_of(entry.domain) for entry in kept}
        kept += [helper.make_opsetid(d, v) for d, v in versions.items() if d in here and d not in imported]
        copies = onnx.ModelProto(opset_import=kept)
        del proto.opset_import[:]
        proto.opset_import.extend(copies.opset_import)


def _versions(model: onnx.ModelProto) -> dict[str, int]:
    """Domain -> the version that the model imports, or the first function that does."""
    versions: dict[str, int] = {}
    for proto in (model, *model.functions):
        for entry in proto.opset_import:
            versions.setdefault(domain_of(entry.domain), entry.version)
    return versions


def _take_nodes(graph: onnx.GraphProto, converted: onnx.GraphProto) -> None:
    """Let ``graph`` have the nodes of ``converted``, and the initializers that they need, and else stay what it is."""
    before = {tuple(node.output): node for node in graph.node}
    for node in converted.node:
        original = before.get(tuple(node.output))
        if original is None:
            continue
        node.metadata_props.extend(original.metadata_props)
        inner = {attribute.name: attribute.g for attribute, _ in subgraphs(original)}
        for attribute, body in subgraphs(node):
            kept = onnx.GraphProto()
            kept.CopyFrom(inner[attribute.name])
            _take_nodes(kept, body)
            attribute.g.CopyFrom(kept)
    there = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(tensor for tensor in converted.initializer if tensor.name not in there)
    del graph.node[:]
    graph.node.extend(converted.node)
