"""Convert a model to another opset in place, also where onnx's version converter cannot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import onnx
from onnx import helper, shape_inference, version_converter

from .. import spec
from ..dialects.registry import dialect_of
from ..dialects.spelling import AttributeReference
from ..dialects.table import AI_ONNX, STANDARD, UNVERSIONED, UNVERSIONED_DIALECTS
from ..errors import GridSampleError, one_line
from ..graph.new_names import Names
from ..graph.scope import Scope, domain_of, function_key, graphs_of, opset_of, scopes_of, where_of
from ..graph.tensors import write_dense_constants
from ..graph.use_def import drop_unread_constants, is_constant
from ..inference.types import Inference
from .imports import import_missing, import_used, unify_onnx_domain, versions_of
from .inlining import inline, without_weights
from .newer import has_flattening_nodes_to_rewrite, rewrite_flattening_nodes, set_allowzero
from .old_operators import OldOperators
from .older.value_types import inference_of_all_values
from .older.writer import OLDEST, write_older
from .result_checks import check_signatures, check_types
from .schema_functions import has_default_value, schema_of

#: The domain, during a conversion, of nodes in ONNX's domain that are not ONNX's operators.
_FOREIGN = "ort_gridsample.foreign"
#: The domain, during one step down, of nodes that mean the same before and after the step. The
#: converter may not know them.
_SAME = "ort_gridsample.same"
#: The oldest IR version that is written. Up to version 4 the versions differ in their meaning.
_OLDEST_IR_VERSION = 4


def convert_opset(model: onnx.ModelProto, new_opset: int) -> None:
    """Convert ``model`` to another opset, in place.

    * All functions are inlined.
    * The ONNX domain is written as the empty string, and missing imports of other domains are
      added.
    * Sparse Constants become dense, because onnx's tools take their values for sparse tensors.
    * Standard sampling nodes of which the two opsets have different versions stay in the domain
      :data:`.table.UNVERSIONED`, and the caller writes them again.
    * Nodes that onnx's converter does not convert, or to which it gives another meaning, are
      rewritten (:mod:`.older`, :mod:`.newer`, :mod:`.old_operators`).
    * onnx's converter converts all other nodes of ONNX's operators.
    * The nodes are checked, because the converter keeps some that the new opset lacks.
    * What a model of an older opset does not need is removed.

    Raises:
        GridSampleError: a sampling node is not what its opset allows, or another node cannot be
            written in the new opset.
        Exception: onnx's version converter cannot convert the model.
    """
    unify_onnx_domain(model)
    old_opset = _opset_before(model, new_opset)
    if all(entry.domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", old_opset))
    import_missing(model)
    write_dense_constants(scopes_of(model))
    # onnx's converter does not convert functions.
    if model.functions:
        inline(model, {function_key(function)[:2] for function in model.functions})
    scopes = scopes_of(model)
    inference = inference_of_all_values(model, scopes)
    old_operators = OldOperators(scopes, old_opset, new_opset)
    has_flattening_nodes = has_flattening_nodes_to_rewrite(old_opset, new_opset, scopes)
    if new_opset < old_opset or has_flattening_nodes or old_operators.needs_types:
        inference.infer_now()  # before nodes move to other domains, where they have no types
    source = without_weights(model)
    # Out of the converter's sight.
    _move_foreign_nodes(model, old_opset)
    _move_sampling_nodes(model, new_opset)
    import_used(model, {_FOREIGN: 1, UNVERSIONED: 1})
    values_before = _values_of(scopes)
    old_operators.prepare(Names(model, scopes))
    _rewrite_and_convert(
        model, scopes, inference, old_opset, new_opset, has_flattening_nodes=has_flattening_nodes
    )
    converted_scopes = scopes_of(model)
    old_operators.finish(converted_scopes, inference)
    if new_opset < old_opset:
        _drop_attributes(model, old_opset, new_opset)
    check_signatures(converted_scopes, old_opset, new_opset)
    check_types(model, source, new_opset)
    # Back into ONNX's domain.
    _return_to_onnx_domain(model, _FOREIGN)
    import_used(model, {}, dropped={_FOREIGN})
    if new_opset < old_opset:
        _finish_older_model(model, values_before)


def _opset_before(model: onnx.ModelProto, new_opset: int) -> int:
    """Return the opset of ``model``, or else of its functions.

    It is ``new_opset`` if none of them imports ONNX's domain.
    """
    return versions_of(model).get("", opset_of(model) or new_opset)


def _rewrite_and_convert(
    model: onnx.ModelProto,
    scopes: Sequence[Scope],
    inference: Inference,
    old_opset: int,
    new_opset: int,
    *,
    has_flattening_nodes: bool,
) -> None:
    """Convert the nodes of ``model`` that are in ONNX's domain.

    Args:
        model: the model, without functions; changed in place.
        inference: the types of its values.
        old_opset: its opset.
        new_opset: the opset to convert to.
        has_flattening_nodes: the result of :func:`has_flattening_nodes_to_rewrite`.
    """
    # What the converter would keep unconverted, or convert to another meaning.
    flat_values: set[str] = set()
    if new_opset < old_opset and old_opset > OLDEST:
        write_older(model, max(new_opset, OLDEST), inference, scopes)
    elif has_flattening_nodes:
        names = Names(model, scopes)
        flat_values = rewrite_flattening_nodes(inference, scopes, names, new_opset)
    # Everything else.
    _convert_stepwise(model, new_opset)
    if flat_values:
        set_allowzero(_nodes(model), new_opset, flat_values)


class _Values(NamedTuple):
    """The values of a scope before a conversion: those that nodes read, and the Constants."""

    read: set[str]
    constants: set[str]


def _values_of(scopes: Sequence[Scope]) -> list[_Values]:
    """Return the values of each scope."""
    return [_Values(set(scope.readers), _constants_of(scope)) for scope in scopes]


def _constants_of(scope: Scope) -> set[str]:
    """Return the outputs of the Constants in ``scope``."""
    return {name for node in scope.nodes if is_constant(node) for name in node.output}


def _move_foreign_nodes(model: onnx.ModelProto, opset: int) -> None:
    """Move nodes out of ONNX's domain that are not ONNX's operators, or have only their names.

    ``opset`` is that of the model. onnxruntime has operators of its own in this domain, some of
    which ONNX has only in later opsets, such as LayerNormalization.
    """
    for node in _nodes(model):
        if domain_of(node.domain):
            continue
        dialect = dialect_of(node, {})
        is_foreign = schema_of(node.op_type, opset) is None
        if dialect is not None:
            is_foreign = dialect.name != AI_ONNX
        if is_foreign:
            node.domain = _FOREIGN


def _finish_older_model(model: onnx.ModelProto, values_before: Sequence[_Values]) -> None:
    """Remove what a model that was converted to an older opset does not need.

    Args:
        model: the model, which is changed.
        values_before: the values of each scope before the conversion.
    """
    constants = list[tuple[Scope, str]]()
    for scope, before in zip(scopes_of(model), values_before, strict=True):
        # Axes that are attributes now, and constants of new nodes that were not needed.
        names = before.read | _constants_of(scope) - before.constants
        constants += [(scope, name) for name in names]
    drop_unread_constants(constants)
    # Tools for older opsets read only older files.
    least = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    model.ir_version = min(model.ir_version, max(least, _OLDEST_IR_VERSION))


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of all scopes of ``model``."""
    yield from chain.from_iterable(scopes_of(model))


def _return_to_onnx_domain(model: onnx.ModelProto, domain: str) -> None:
    """Move the nodes in ``domain`` to ONNX's domain."""
    for node in _nodes(model):
        if node.domain == domain:
            node.domain = ""


def first_unconvertible_node(model: onnx.ModelProto, new_opset: int) -> tuple[str, str]:
    """Find the node because of which :func:`convert_opset` failed.

    Returns:
        The first node of the main graph that the converter cannot convert, and its error message.
    """
    messages: dict[int, str] = {}

    def fails_up_to(last: int) -> bool:
        """Whether the converter fails on the nodes up to the index ``last``; keep its message."""
        part = without_weights(model)
        del part.graph.output[:]
        del part.graph.node[last + 1 :]
        del part.functions[:]
        try:
            _convert_stepwise(part, new_opset)
        except Exception as error:
            messages[last] = one_line(error)
        return last in messages

    nodes = model.graph.node
    index = bisect_left(range(len(nodes)), True, key=fails_up_to)
    if index not in messages:
        return "model", "it states no reason"
    return where_of(nodes[index]), messages[index]


def _convert_stepwise(model: onnx.ModelProto, new_opset: int) -> None:
    """Convert the nodes of ``model``, in steps around the nodes that onnx's converter lacks.

    The converter stops at nodes that it does not know, even if they mean the same in the opset
    before. These are moved to another domain for one step.
    """
    opsets = range(opset_of(model), new_opset, -1)
    stops = [
        opset
        for opset in opsets
        if any(_has_new_version_of_same_signature(node, opset) for node in _nodes(model))
    ]
    for opset in stops:
        _run_converter(model, opset)
        # The types behind such nodes can be inferred only while these are in ONNX's domain.
        typed = shape_inference.infer_shapes(without_weights(model))
        for node in _nodes(typed):
            if _has_new_version_of_same_signature(node, opset):
                node.domain = _SAME
        import_used(typed, {_SAME: 1})
        _run_converter(model, opset - 1, typed)
    _run_converter(model, new_opset)


def _run_converter(
    model: onnx.ModelProto,
    new_opset: int,
    source: onnx.ModelProto | None = None,
) -> None:
    """Convert ``model``, all of whose nodes onnx's converter knows.

    Args:
        model: the model, whose nodes are replaced in place.
        new_opset: the opset to convert to.
        source: the model that the converter reads, by default ``model`` without weights.
    """
    if opset_of(model) == new_opset:
        return
    source = source or without_weights(model)
    converted = version_converter.convert_version(source, new_opset)
    _replace_nodes(model.graph, converted.graph)
    _return_to_onnx_domain(model, _SAME)
    for entry in model.opset_import:
        if domain_of(entry.domain) == "":
            entry.version = new_opset


def _has_new_version_of_same_signature(node: onnx.NodeProto, opset: int) -> bool:
    """Whether the operator of ``node`` has a new version in ``opset`` with the same signature.

    The signature is the inputs, outputs and attributes, as in the version before.
    """
    if domain_of(node.domain) or not onnx.defs.has(node.op_type, opset - 1):
        return False
    if any(True for _ in graphs_of(node)):
        return False
    new = onnx.defs.get_schema(node.op_type, opset, "")
    if new.since_version != opset:
        return False
    old = onnx.defs.get_schema(node.op_type, opset - 1, "")
    return _signature(new) == _signature(old)


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """Return the inputs, outputs and attributes of an operator, without their types."""
    inputs = [(parameter.name, parameter.option) for parameter in schema.inputs]
    outputs = [(parameter.name, parameter.option) for parameter in schema.outputs]
    attributes = {}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value.SerializeToString()
        attributes[name] = (attribute.type, attribute.required, default)
    return inputs, outputs, attributes


def _move_sampling_nodes(model: onnx.ModelProto, new_opset: int) -> None:
    """Set standard sampling nodes aside if ``new_opset`` has another version of their operator."""
    for scope in scopes_of(model):
        for node in scope:
            if domain_of(node.domain) or node.op_type not in spec.OPERATORS:
                continue
            current = spec.version_of(node.op_type, scope.opsets.get("", 0))
            if current is None or current == spec.version_of(node.op_type, new_opset):
                continue
            dialect = STANDARD[node.op_type][current]
            attributes = dialect.read(where_of(node), node, lambda _: None, "")
            plain = {}
            for name, value in attributes.items():
                if not isinstance(value, AttributeReference):
                    plain[name] = value
            del node.attribute[:]
            node.attribute.extend(UNVERSIONED_DIALECTS[node.op_type].write(plain))
            node.domain = UNVERSIONED


def _drop_attributes(model: onnx.ModelProto, old_opset: int, new_opset: int) -> None:
    """Drop attributes that ``new_opset`` lacks, which the converter keeps.

    Raises:
        GridSampleError: such an attribute has an effect.
    """
    for node in _nodes(model):
        if domain_of(node.domain) or not onnx.defs.has(node.op_type, new_opset):
            continue
        known = onnx.defs.get_schema(node.op_type, new_opset, "").attributes
        for attribute in list(node.attribute):
            if attribute.name in known:
                continue
            old_schema = onnx.defs.get_schema(node.op_type, old_opset, "")
            if not has_default_value(attribute, old_schema):
                found = repr(helper.get_attribute_value(attribute))
                expected = f"a value that opset {new_opset} has"
                raise GridSampleError(where_of(node), attribute.name, found, expected)
            node.attribute.remove(attribute)


def _replace_nodes(graph: onnx.GraphProto, converted: onnx.GraphProto) -> None:
    """Replace the nodes of ``graph`` by those of ``converted``, and add new initializers.

    Everything else of ``graph`` and of the graphs in it is kept, and the metadata of nodes.
    """
    originals = {tuple(node.output): node for node in graph.node}
    for node in converted.node:
        original = originals.get(tuple(node.output))
        if original is None:
            continue
        node.metadata_props.extend(original.metadata_props)
        bodies = {attribute.name: attribute.g for attribute, _ in graphs_of(original)}
        for attribute, body in graphs_of(node):
            _replace_nodes(bodies[attribute.name], body)
            body.CopyFrom(bodies[attribute.name])
    present = {tensor.name for tensor in graph.initializer}
    present.update(sparse.values.name for sparse in graph.sparse_initializer)
    new = [tensor for tensor in converted.initializer if tensor.name not in present]
    graph.initializer.extend(new)
    del graph.node[:]
    graph.node.extend(converted.node)
