"""The schemas of ONNX's operators: defaults of attributes, and bodies as nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto, helper

from .. import spec
from ..graph.element_types import elem_type
from ..graph.new_names import Names
from ..graph.scope import domain_of, graphs_of
from ..inference.types import TypeAndShape

# Schemas are typed as Any, because the stubs of OpSchema lack these attributes.


def schema_of(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return the schema of a standard operator in an opset; None if the opset lacks it."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def has_default_value(
    attribute: onnx.AttributeProto, schema: Any, default_dilation: int | None = None
) -> bool:
    """Whether an attribute equals its default in an ``OpSchema``.

    Args:
        default_dilation: the default of all ``dilations``, for which schemas state none; None: they
            have no default.
    """
    value = helper.get_attribute_value(attribute)
    if attribute.name == "dilations" and default_dilation is not None:
        return all(dilation == default_dilation for dilation in value)
    if attribute.name not in schema.attributes:
        return False
    default = schema.attributes[attribute.name].default_value
    return bool(default.name) and value == helper.get_attribute_value(default)


def has_body(schema: Any) -> bool:
    """Whether ONNX defines a body for the operator of this ``OpSchema``."""
    return bool(schema.has_function or schema.has_context_dependent_function)


class NodesInOpset(NamedTuple):
    """Nodes, and the opset of the ONNX domain that they are written in."""

    nodes: Sequence[onnx.NodeProto]
    opset: int


def body_of(
    node: onnx.NodeProto,
    schema: Any,
    inputs: Sequence[TypeAndShape | None],
    names: Names,
) -> NodesInOpset | None:
    """Return the body that ONNX defines for a node.

    The body is the oldest that ONNX defines for this version of the operator. A body that holds
    graphs or calls functions is not used.

    Args:
        node: the node that the body replaces; not changed.
        schema: the schema of its operator, in the version of the node.
        inputs: the types of its inputs; None for inputs that are left out.
        names: returns names of new values and nodes.

    Returns:
        The nodes that compute ``node``; None if there is no usable body.
    """
    function = _function(node, schema, inputs)
    if function is None or not _is_usable(function):
        return None
    prefix = node.output[0] or node.op_type
    renamed = _argument_names(node, function, prefix, names)
    defaults = [attribute.default_value for attribute in schema.attributes.values()]
    values = {attribute.name: attribute for attribute in defaults if attribute.name}
    values.update((attribute.name, attribute) for attribute in node.attribute)
    nodes = []
    for body_node in function.node:
        for name in body_node.output:
            if name not in renamed:
                renamed[name] = names.new(f"{prefix}_{name}")
        node_inputs = [renamed[name] for name in body_node.input]
        node_outputs = [renamed[name] for name in body_node.output]
        copy = helper.make_node(body_node.op_type, node_inputs, node_outputs)
        copy.name = names.new(f"{prefix}_{body_node.op_type.lower()}")
        _copy_attributes(body_node, copy, values)
        nodes.append(copy)
    imports = [entry for entry in function.opset_import if domain_of(entry.domain) == ""]
    return NodesInOpset(nodes, imports[0].version)


def _is_usable(function: onnx.FunctionProto) -> bool:
    """Whether a body has only nodes of ONNX's operators, without graphs."""
    if any(domain_of(node.domain) for node in function.node):
        return False
    return not any(True for node in function.node for _ in graphs_of(node))


def _argument_names(
    node: onnx.NodeProto,
    function: onnx.FunctionProto,
    prefix: str,
    names: Names,
) -> dict[str, str]:
    """Return parameter of ``function`` -> the value of ``node`` that it is."""
    renamed = {"": ""}
    renamed.update(dict.fromkeys(function.input, ""))
    renamed.update(zip(function.input, node.input, strict=False))
    renamed.update(dict.fromkeys(function.output, ""))
    renamed.update(zip(function.output, node.output, strict=False))
    for name in function.output:
        renamed[name] = renamed[name] or names.new(f"{prefix}_{name}")
    return renamed


def _copy_attributes(
    source: onnx.NodeProto,
    target: onnx.NodeProto,
    values: Mapping[str, onnx.AttributeProto],
) -> None:
    """Copy attributes from a node of a body; references are replaced by their ``values``."""
    for attribute in source.attribute:
        if not attribute.ref_attr_name:
            target.attribute.add().CopyFrom(attribute)
        elif attribute.ref_attr_name in values:
            copy = target.attribute.add()
            copy.CopyFrom(values[attribute.ref_attr_name])
            copy.name = attribute.name


def _function(
    node: onnx.NodeProto,
    schema: Any,
    inputs: Sequence[TypeAndShape | None],
) -> onnx.FunctionProto | None:
    """Return the oldest function that ONNX defines for ``node``, or None."""
    versions = schema.function_opset_versions or schema.context_dependent_function_opset_versions
    usable_versions = [version for version in versions if version >= schema.since_version]
    if not usable_versions:
        return None
    version = min(usable_versions)
    if schema.has_function:
        serialized = schema.get_function_with_opset_version(version)
    else:
        if any(value is not None and value.type is None for value in inputs):
            return None
        types = [onnx.TypeProto() if value is None else _type_proto(value) for value in inputs]
        serialized = schema.get_context_dependent_function_with_opset_version(
            version,
            node.SerializeToString(),
            [type_proto.SerializeToString() for type_proto in types],
        )
    function = onnx.FunctionProto.FromString(serialized)
    return function if function.node else None


def _type_proto(value: TypeAndShape) -> onnx.TypeProto:
    """Return the type of a tensor of which ``value`` is known."""
    assert value.type is not None
    return helper.make_tensor_type_proto(_type_number(value.type), value.shape)


def _type_number(type_name: str) -> int:
    """Return ONNX's number of a type, which this package may lack."""
    if type_name in spec.TYPES:
        return elem_type(type_name)
    return TensorProto.DataType.Value(type_name.upper())
