"""The domains that a model and its functions import, and their versions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import helper

from ..graph.scope import Scope, domain_of, scopes_of


def import_used(
    model: onnx.ModelProto,
    versions: Mapping[str, int],
    dropped: Collection[str] = (),
    scopes: Sequence[Scope] = (),
) -> None:
    """Import in ``model`` and its functions the domains that their nodes need.

    Args:
        model: the model, which is changed.
        versions: the domains that can be missing -> their versions.
        dropped: domains whose imports are removed unless a node needs them.
        scopes: the scopes of ``model`` if they are known.
    """
    scopes = scopes or scopes_of(model)  # kept until the end: the id of a deleted object is reused
    used = defaultdict[int, set[str]](set)
    for scope in scopes:
        used[id(model)] |= scope.domains
        used[id(scope.function)] |= scope.domains
    for proto in (model, *model.functions):
        domains = used[id(proto)]
        imports = proto.opset_import
        for entry in list(imports):
            if entry.domain in dropped and entry.domain not in ("", *domains):
                imports.remove(entry)
        missing = domains - {domain_of(entry.domain) for entry in imports}
        for domain, version in versions.items():
            if domain in missing:
                imports.append(helper.make_opsetid(domain, version))


def versions_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return domain -> the version that the model imports, or else the first function with it.

    If a domain is imported twice, the last import counts, as in onnxruntime.
    """
    versions: dict[str, int] = {}
    for proto in (*reversed(model.functions), model):
        versions.update((domain_of(entry.domain), entry.version) for entry in proto.opset_import)
    return versions


def unify_onnx_domain(model: onnx.ModelProto) -> None:
    """Write the ONNX domain as the empty string, in nodes, functions and imports of ``model``.

    onnxruntime accepts both names of the domain in one model, and onnx's tools do not.
    """
    for scope in scopes_of(model):
        for node in scope:
            if node.domain and not domain_of(node.domain):
                node.domain = ""
    for proto in (model, *model.functions):
        _unify_imports(proto)
    for function in model.functions:
        function.domain = domain_of(function.domain)


def _unify_imports(proto: onnx.ModelProto | onnx.FunctionProto) -> None:
    """Import the ONNX domain once, as the empty string, in the version that counts."""
    entries = [entry for entry in proto.opset_import if not domain_of(entry.domain)]
    if not entries:
        return
    entries[0].domain = ""
    entries[0].version = entries[-1].version
    for entry in entries[1:]:
        proto.opset_import.remove(entry)


def import_missing(model: onnx.ModelProto) -> None:
    """Import the domains of nodes in ``model`` and its functions that lack their imports.

    onnxruntime runs nodes in domains that it knows without an import, and onnx's tools refuse them.
    The import has the version that has the newest schemas of these nodes, which onnxruntime uses.
    """
    scopes = scopes_of(model)
    versions = versions_of(model)
    op_types = defaultdict[str, set[str]](set)
    for scope in scopes:
        for domain in scope.domains - versions.keys() - {""}:
            op_types[domain].update(node.op_type for node in scope.nodes if node.domain == domain)
    for domain, names in op_types.items():
        versions[domain] = max(_newest_version(name, domain) for name in names)
    import_used(model, versions, scopes=scopes)


def _newest_version(op_type: str, domain: str) -> int:
    """Return the version of a domain that has the newest schema of an operator, or else 1."""
    if not onnx.defs.has(op_type, domain):
        return 1
    since_version: int = onnx.defs.get_schema(op_type, domain=domain).since_version
    return since_version
