"""Inline functions in place: by onnx's inliner, without its losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

from ..graph.scope import Key, Scope, domain_of, function_key, scopes
from ..inference.backward_slice import SMALL_BYTES

#: The domain and the name of a function: its name for the inliner, which overloads share.
Name = tuple[str, str]


def inline(model: onnx.ModelProto, names: Collection[Name]) -> None:
    """Inline the functions of these domains and names.

    Raises:
        Exception: onnx's inliner cannot do it.
    """
    versions = versions_of(model)
    imports = {function_key(f): onnx.FunctionProto(opset_import=f.opset_import) for f in model.functions}
    for function in model.functions:
        for entry in function.opset_import:
            # The inliner wants the same versions everywhere; that is also how onnxruntime reads a function.
            entry.version = versions[domain_of(entry.domain)]
    left = _with_callers(model, names)
    while left:
        inner = _calls_with_defaults(model, left)
        now = left - inner or left
        inlined = inliner.inline_selected_functions(without_weights(model), sorted(now))
        fields = ([m.graph.node, m.graph.value_info, m.functions, m.opset_import] for m in (model, inlined))
        for ours, made in zip(*fields, strict=True):
            del ours[:]
            ours.extend(made)
        left -= now
    for function in model.functions:
        del function.opset_import[:]
        function.opset_import.extend(imports[function_key(function)].opset_import)
    import_used(model, versions)


def _with_callers(model: onnx.ModelProto, names: Collection[Name]) -> set[Name]:
    """``names``, and the functions that pass on an attribute to one of them, which has a default for it.

    Where a call leaves the attribute out, the default counts: a caller's body cannot say that.
    """
    found = set(names)
    calls = [(scope.function, node) for scope in scopes(model) for node in scope if scope.function is not None]
    while True:
        defaults = _defaults(model, found)
        callers = {
            function_key(caller)[:2]
            for caller, node in calls
            for default in defaults.get(function_key(node), ())
            for attribute in node.attribute
            if attribute.name == default.name and attribute.ref_attr_name in caller.attribute
        }
        if callers <= found:
            return found
        found |= callers


def _calls_with_defaults(model: onnx.ModelProto, names: Collection[Name]) -> set[Name]:
    """Write out in calls of the functions ``names`` the attributes that have a default: the inliner forgets it.

    The answer is to be inlined later: others of ``names`` call it, and may pass on what their own call leaves out.
    """
    inner, defaults = set(), _defaults(model, names)
    for scope in scopes(model) if defaults else ():
        for node in scope:
            if function_key(node) in defaults:
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(a for a in defaults[function_key(node)] if a.name not in given)
                if scope.function is not None and function_key(scope.function)[:2] in names:
                    inner.add(function_key(node)[:2])
    return inner


def _defaults(model: onnx.ModelProto, names: Collection[Name]) -> dict[Key, Sequence[onnx.AttributeProto]]:
    """The functions ``names`` that have attributes with defaults -> these."""
    found = ((function_key(function), function.attribute_proto) for function in model.functions)
    return {key: attributes for key, attributes in found if key[:2] in names and attributes}


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which large initializers are inputs: onnx copies a model several times, and takes none above 2 GiB."""
    graph, external = model.graph, TensorProto.EXTERNAL
    weights = [t for t in graph.initializer if t.ByteSize() > SMALL_BYTES or t.data_location == external]
    names = {tensor.name for tensor in weights}
    kept = {each: getattr(graph, each) for each in ("name", "node", "output", "value_info", "sparse_initializer")}
    light = onnx.GraphProto(**kept, input=[value for value in graph.input if value.name not in names])
    light.initializer.extend(_plain(tensor) for tensor in graph.initializer if tensor.name not in names)
    light.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in weights)
    return onnx.ModelProto(
        ir_version=model.ir_version, graph=light, opset_import=model.opset_import, functions=model.functions
    )


def _plain(tensor: TensorProto) -> TensorProto:
    """``tensor`` without raw data if it may be axes: before 1.22 onnx's converter does not read these from it."""
    if tensor.data_type != TensorProto.INT64 or not tensor.HasField("raw_data"):
        return tensor
    return helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, numpy_helper.to_array(tensor).ravel())


def import_used(
    model: onnx.ModelProto, versions: Mapping[str, int], dropped: Collection[str] = (), found: Sequence[Scope] = ()
) -> None:
    """Import in ``model`` and its functions the domains of ``versions`` that their nodes are in.

    An import of a ``dropped`` domain stays only where a node needs it. ``found`` are the scopes, where they are known.
    """
    used = defaultdict[int, set[str]](set)
    found = found or scopes(model)  # kept until the end, as an object's id is another's once it is gone
    for scope in found:
        for proto in (model, scope.function):
            used[id(proto)] |= scope.domains
    for proto in (model, *model.functions):
        here, imports = used[id(proto)], proto.opset_import
        for entry in [each for each in imports if each.domain in dropped and each.domain not in ("", *here)]:
            imports.remove(entry)
        missing = here - {domain_of(entry.domain) for entry in imports}
        imports.extend(helper.make_opsetid(d, version) for d, version in versions.items() if d in missing)


def versions_of(model: onnx.ModelProto) -> dict[str, int]:
    """Domain -> the version that the model imports, or the first function that does."""
    imports = [entry for proto in (model, *model.functions) for entry in proto.opset_import]
    return {domain_of(entry.domain): entry.version for entry in reversed(imports)}
