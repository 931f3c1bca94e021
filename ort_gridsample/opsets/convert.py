"""Convert a model to another opset in place: by onnx's converter, beyond its limits, and without its losses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from itertools import chain

import onnx
from onnx import helper, shape_inference, version_converter

from .. import spec
from ..dialects.registry import dialect_of
from ..dialects.spelling import AttributeReference
from ..dialects.table import SET_ASIDE, SET_ASIDE_DIALECTS, STANDARD
from ..errors import GridSampleError, where
from ..graph.scope import Names, Scope, called, domain_of, function_key, opset_of, scopes, subgraphs
from ..graph.use_def import drop_initializers
from .inlining import import_used, inline, versions_of, without_weights
from .newer import changes_meaning, keep_meaning
from .older.conversion import OLDEST, write_older
from .older.value_types import all_values

#: The domain, while the converter works, of nodes that are in ONNX's domain without being ONNX's operators.
_FOREIGN = "ort_gridsample.foreign"
#: The domain, during a step down, of nodes that mean the same before and after it: the converter may not know them.
_SAME = "ort_gridsample.same"


def convert_opset(model: onnx.ModelProto, version: int) -> None:
    """Convert ``model`` to this version of the ONNX domain; its functions are inlined, as they have none of their own.

    GridSample and AffineGrid nodes of which the two opsets have different versions are set aside, to be written anew:
    onnx's version converter knows no way down for them.

    Raises:
        GridSampleError: such a node is not what its opset allows, or the new opset has no such attribute or type of
            another.
        Exception: onnx's version converter cannot do it.
    """
    before = versions_of(model).get("", version)
    if opset_of(model) == 0:
        model.opset_import.append(helper.make_opsetid("", before))
    if model.functions:
        inline(model, {function_key(function)[:2] for function in model.functions})
    found = scopes(model)
    inference = all_values(model, found)
    is_rewritten = version < before or changes_meaning(version, before, found)
    if is_rewritten:
        inference.prepare()  # before nodes are moved to other domains, where they have no types
    for node in _nodes(model):  # in ONNX's domain without being one of ONNX's operators, or but in name
        if domain_of(node.domain) == "":
            dialect = dialect_of(node, {})
            if not onnx.defs.has(node.op_type) if dialect is None else dialect.name != "ai.onnx":
                node.domain = _FOREIGN
    _set_aside(model, version)
    import_used(model, {_FOREIGN: 1, SET_ASIDE: 1})
    read = [set(scope.readers) for scope in found]
    if version < before and before > OLDEST:
        write_older(model, max(version, OLDEST), inference, found)
    elif is_rewritten and version > before:
        keep_meaning(inference, found, Names(model, found))
    _convert(model, version)
    _put_back(model, _FOREIGN)
    import_used(model, {}, dropped={_FOREIGN})
    if version < before:
        try:
            shape_inference.infer_shapes(without_weights(model), check_type=True)
        except shape_inference.InferenceError as error:
            expected = f"one that has the types of all nodes, and onnx says: {' '.join(str(error).split())}"
            raise GridSampleError("model", "opset", str(version), expected) from None
        _drop_attributes(model, before, version)
        for scope, names in zip(scopes(model), read, strict=True):
            _drop_constants(scope, names - scope.readers.keys())  # axes, say, that are attributes now
        # Readers of older opsets read older files only. IR versions up to 4 differ in their meaning.
        least = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
        model.ir_version = min(model.ir_version, max(least, 4))


def _drop_constants(scope: Scope, names: Set[str]) -> None:
    """Drop the Constants and initializers of ``scope`` among ``names``, which nothing reads."""
    drop_initializers(scope, names)
    scope.replace(
        {
            index: ()
            for index, node in enumerate(scope.nodes)
            if node.op_type == "Constant" and not domain_of(node.domain) and not names.isdisjoint(node.output)
        }
    )


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return chain.from_iterable(scopes(model))


def _put_back(model: onnx.ModelProto, domain: str) -> None:
    """Let the nodes in ``domain`` be in ONNX's again."""
    for node in _nodes(model):
        if node.domain == domain:
            node.domain = ""


def unconvertible(model: onnx.ModelProto, version: int) -> tuple[str, str]:
    """Why :func:`convert_opset` left ``model`` unconverted: a node of the main graph, and the converter's words."""
    words: dict[int, str] = {}

    def ends_before(last: int) -> bool:
        part = without_weights(model)
        del part.graph.output[:], part.graph.node[last + 1 :], part.functions[:]
        try:
            _convert(part, version)
        except Exception as error:
            words[last] = " ".join(str(error).split())
        return last in words

    at = bisect_left(range(len(model.graph.node)), True, key=ends_before)
    return (_where(model.graph.node[at]), words[at]) if at in words else ("model", "it does not say why")


def _convert(model: onnx.ModelProto, version: int) -> None:
    """Convert the nodes of ``model``, in steps where onnx's converter stops for nodes that mean the same before."""
    before = opset_of(model)
    steps = [at for at in range(before, version, -1) if any(_means_the_same(node, at) for node in _nodes(model))]
    for at in steps:
        _step(model, at)
        # The types of values behind such nodes can be inferred only while these are in ONNX's domain.
        typed = shape_inference.infer_shapes(without_weights(model))
        for node in _nodes(typed):
            if _means_the_same(node, at):
                node.domain = _SAME
        import_used(typed, {_SAME: 1})
        _step(model, at - 1, typed)
    _step(model, version)


def _step(model: onnx.ModelProto, version: int, source: onnx.ModelProto | None = None) -> None:
    """Convert ``model`` by onnx's converter, which gets ``source``, by default the model without weights."""
    if opset_of(model) == version:
        return
    source = source or without_weights(model)
    _take_nodes(model.graph, version_converter.convert_version(source, version).graph)
    _put_back(model, _SAME)
    for entry in model.opset_import:
        if domain_of(entry.domain) == "":
            entry.version = version


def _means_the_same(node: onnx.NodeProto, version: int) -> bool:
    """Whether ``node``, of an operator that ``version`` changed, means the same in the opset before."""
    if domain_of(node.domain) or not onnx.defs.has(node.op_type, version - 1) or any(True for _ in subgraphs(node)):
        return False
    new = onnx.defs.get_schema(node.op_type, version, "")
    if new.since_version != version:
        return False
    old = onnx.defs.get_schema(node.op_type, version - 1, "")
    return _signature(new) == _signature(old)


def _signature(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """The inputs, outputs and attributes of an operator, without their types."""
    parameters = [[(each.name, each.option) for each in part] for part in (schema.inputs, schema.outputs)]
    named = schema.attributes.items()
    attributes = {name: (each.type, each.required, each.default_value.SerializeToString()) for name, each in named}
    return (*parameters, attributes)


def _is_default(attribute: onnx.AttributeProto, schema: onnx.defs.OpSchema) -> bool:
    """Whether the attribute equals its default in the schema."""
    if attribute.name not in schema.attributes:
        return False
    default = schema.attributes[attribute.name].default_value
    return bool(default.name) and helper.get_attribute_value(attribute) == helper.get_attribute_value(default)


def _set_aside(model: onnx.ModelProto, version: int) -> None:
    """Set standard nodes aside of which ``version`` has another version of the operator."""
    for scope in scopes(model):
        for node in scope:
            if domain_of(node.domain) or node.op_type not in spec.OPERATORS:
                continue
            now = spec.version_of(node.op_type, scope.opsets.get("", 0))
            if now is not None and now != spec.version_of(node.op_type, version):
                attributes = STANDARD[node.op_type][now].read(_where(node), node, lambda _: None, "")
                plain = {name: value for name, value in attributes.items() if not isinstance(value, AttributeReference)}
                del node.attribute[:]
                node.attribute.extend(SET_ASIDE_DIALECTS[node.op_type].write(plain))
                node.domain = SET_ASIDE


def _drop_attributes(model: onnx.ModelProto, before: int, version: int) -> None:
    """Drop attributes that opset ``version`` lacks, which the converter keeps; GridSampleError where one matters."""
    for node in _nodes(model):
        if domain_of(node.domain) or not onnx.defs.has(node.op_type, version):
            continue
        known = onnx.defs.get_schema(node.op_type, version, "").attributes
        for attribute in [each for each in node.attribute if each.name not in known]:
            if not _is_default(attribute, onnx.defs.get_schema(node.op_type, before, "")):
                found = repr(helper.get_attribute_value(attribute))
                raise GridSampleError(_where(node), attribute.name, found, f"what opset {version} can say")
            node.attribute.remove(attribute)


def _where(node: onnx.NodeProto) -> str:
    return where(node.op_type, called(node))


def _take_nodes(graph: onnx.GraphProto, converted: onnx.GraphProto) -> None:
    """Let ``graph`` have the nodes of ``converted``, and the initializers that they need, and else stay as it is."""
    before = {tuple(node.output): node for node in graph.node}
    for node in converted.node:
        original = before.get(tuple(node.output))
        if original is None:
            continue
        node.metadata_props.extend(original.metadata_props)
        inner = {attribute.name: attribute.g for attribute, _ in subgraphs(original)}
        for attribute, body in subgraphs(node):
            _take_nodes(inner[attribute.name], body)
            body.CopyFrom(inner[attribute.name])
    there = {tensor.name for tensor in graph.initializer}
    graph.initializer.extend(tensor for tensor in converted.initializer if tensor.name not in there)
    del graph.node[:]
    graph.node.extend(converted.node)
