"""Inline functions in place, with the defaults and imports that onnx's inliner loses."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

from ..graph.placeholders import is_placeholder, new_placeholder
from ..graph.scope import FunctionKey, domain_of, function_key, scopes_of, with_bodies
from ..graph.tensors import dense_tensor, has_data
from ..inference.light_attributes import SMALL_BYTES
from .imports import import_used, unify_onnx_domain, versions_of

#: The domain and the name of a function, by which the inliner identifies it. Overloads share it.
FunctionName = tuple[str, str]

#: The size of the largest element of a tensor, a complex128.
_MAX_ITEM_BYTES = 16


def inline(model: onnx.ModelProto, names: Collection[FunctionName]) -> None:
    """Inline the functions with these domains and names.

    Raises:
        Exception: onnx's inliner cannot inline them.
    """
    unify_onnx_domain(model)
    versions = versions_of(model)
    original_imports = {}
    for function in model.functions:
        imports = onnx.FunctionProto(opset_import=function.opset_import)
        original_imports[function_key(function)] = imports
    # The inliner requires the same versions everywhere. onnxruntime also reads functions in the
    # versions of the model.
    for function in model.functions:
        for entry in function.opset_import:
            entry.version = versions[domain_of(entry.domain)]
    pending = _with_callers(model, names)
    while pending:
        called_inside = _write_defaults_to_calls(model, pending)
        selected = pending - called_inside or pending
        _inline_selected(model, selected)
        pending -= selected
    for function in model.functions:
        del function.opset_import[:]
        function.opset_import.extend(original_imports[function_key(function)].opset_import)
    import_used(model, versions)


def _inline_selected(model: onnx.ModelProto, names: Collection[FunctionName]) -> None:
    """Inline functions of ``model`` as onnx's inliner does, without a copy of the weights."""
    inlined = inliner.inline_selected_functions(without_weights(model), sorted(names))
    for field, new in (
        (model.graph.node, inlined.graph.node),
        (model.graph.value_info, inlined.graph.value_info),
        (model.functions, inlined.functions),
        (model.opset_import, inlined.opset_import),
    ):
        del field[:]
        field.extend(new)


def _with_callers(model: onnx.ModelProto, names: Collection[FunctionName]) -> set[FunctionName]:
    """Return ``names``, and the functions that pass an attribute with a default to one of them.

    If a call leaves out the attribute, the default applies. The body of a caller cannot express
    that, so callers are inlined as well.
    """
    selected = set(names)
    calls = []
    for scope in scopes_of(model):
        if scope.function is not None:
            calls += [(scope.function, node) for node in scope]
    while True:
        defaults = _defaults(model, selected)
        callers = {
            function_key(caller)[:2]
            for caller, node in calls
            if _passes_attribute(caller, node, defaults.get(function_key(node), ()))
        }
        if callers <= selected:
            return selected
        selected |= callers


def _passes_attribute(
    caller: onnx.FunctionProto,
    node: onnx.NodeProto,
    defaults: Sequence[onnx.AttributeProto],
) -> bool:
    """Whether ``node`` passes an attribute of ``caller`` to an attribute with a default."""
    with_default = {attribute.name for attribute in defaults}
    passed = {a.name for a in node.attribute if a.ref_attr_name in caller.attribute}
    return not with_default.isdisjoint(passed)


def _write_defaults_to_calls(
    model: onnx.ModelProto, names: Collection[FunctionName]
) -> set[FunctionName]:
    """Write the defaults of functions ``names`` to their calls, because the inliner loses them.

    Returns:
        The functions that other functions of ``names`` call. They must be inlined later, because
        their callers may pass an attribute that their own calls leave out.
    """
    called_inside: set[FunctionName] = set()
    defaults = _defaults(model, names)
    if not defaults:
        return called_inside
    for scope in scopes_of(model):
        is_inside = scope.function is not None and function_key(scope.function)[:2] in names
        for node in scope:
            key = function_key(node)
            if key not in defaults:
                continue
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(a for a in defaults[key] if a.name not in given)
            if is_inside:
                called_inside.add(key[:2])
    return called_inside


def _defaults(
    model: onnx.ModelProto,
    names: Collection[FunctionName],
) -> dict[FunctionKey, Sequence[onnx.AttributeProto]]:
    """Return function -> its attributes with defaults, for functions ``names`` that have any."""
    defaults = {}
    for function in model.functions:
        key = function_key(function)
        if key[:2] in names and function.attribute_proto:
            defaults[key] = function.attribute_proto
    return defaults


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of ``model`` in which large initializers are inputs, and none are sparse.

    onnx copies a model several times, and cannot read models above 2 GiB. Its tools take a sparse
    initializer for a value of another type, or ignore it; onnxruntime reads it as a dense one.
    """
    graph = model.graph
    weights = [
        tensor
        for tensor in graph.initializer
        if tensor.ByteSize() > SMALL_BYTES or is_placeholder(tensor)
    ]
    weight_names = {tensor.name for tensor in weights}
    sparse_names = {sparse.values.name for sparse in graph.sparse_initializer}
    replaced_names = weight_names | sparse_names
    light = onnx.GraphProto(
        name=graph.name,
        node=graph.node,
        output=graph.output,
        value_info=graph.value_info,
        input=[value for value in graph.input if value.name not in replaced_names],
    )
    for tensor in graph.initializer:
        if tensor.name not in weight_names:
            light.initializer.append(_without_raw_data(tensor))
    for tensor in weights:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        light.input.append(value)
    for sparse in graph.sparse_initializer:
        if _is_small(sparse):
            light.initializer.append(_without_raw_data(dense_tensor(sparse)))
        else:
            dtype = sparse.values.data_type
            value = helper.make_tensor_value_info(sparse.values.name, dtype, sparse.dims)
            light.input.append(value)
    for body in with_bodies(light)[1:]:
        for sparse in body.sparse_initializer:
            # A body, unlike the main graph, cannot have more inputs.
            values = sparse.values
            placeholder = new_placeholder(values.data_type, sparse.dims, values.name)
            tensor = dense_tensor(sparse) if _is_small(sparse) else placeholder
            body.initializer.append(_without_raw_data(tensor))
        del body.sparse_initializer[:]
    return onnx.ModelProto(
        ir_version=model.ir_version,
        graph=light,
        opset_import=model.opset_import,
        functions=model.functions,
    )


def _is_small(sparse: onnx.SparseTensorProto) -> bool:
    """Whether a sparse tensor is small as a dense one, and its values are in the model."""
    return has_data(sparse) and math.prod(sparse.dims) * _MAX_ITEM_BYTES <= SMALL_BYTES


def _without_raw_data(tensor: TensorProto) -> TensorProto:
    """Return ``tensor`` without raw data if its elements are int64, as those of axes are.

    Before 1.22, onnx's converter does not read axes from raw data.
    """
    if tensor.data_type != TensorProto.INT64 or not tensor.HasField("raw_data"):
        return tensor
    elements = numpy_helper.to_array(tensor).ravel()
    return helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, elements)
