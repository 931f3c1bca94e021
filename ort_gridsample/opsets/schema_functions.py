"""The bodies that ONNX defines for some of its operators, as nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from .. import spec
from ..graph.element_types import elem_type
from ..graph.scope import Names, domain_of, subgraphs
from ..inference.types import Value


def has_body(schema: Any) -> bool:
    """Whether ONNX defines a body for the operator of this ``OpSchema``, whose stubs lack these attributes."""
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(
    node: onnx.NodeProto, schema: Any, inputs: Sequence[Value | None], names: Names
) -> tuple[list[onnx.NodeProto], int] | None:
    """The nodes that compute ``node``, and the opset that they are written in; None where ONNX defines none.

    ``inputs`` are the types of its inputs, None for those that are left out. The body is the oldest that ONNX defines
    for this version of the operator. A body that holds graphs is not used.
    """
    function = _function(node, schema, inputs)
    if function is None or any(True for each in function.node for _ in subgraphs(each)):
        return None
    if any(domain_of(each.domain) for each in function.node):
        return None
    renamed = {"": ""}
    for parameters, arguments in ((function.input, node.input), (function.output, node.output)):
        renamed.update(dict.fromkeys(parameters, ""))
        renamed.update(zip(parameters, arguments, strict=False))
    prefix = node.output[0] or node.op_type
    for name in function.output:
        renamed[name] = renamed[name] or names.new(f"{prefix}_{name}")
    given = {attribute.name: attribute for attribute in node.attribute}
    defaults = {name: each.default_value for name, each in schema.attributes.items() if each.default_value.name}
    nodes = []
    for each in function.node:
        for name in each.output:
            if name not in renamed:
                renamed[name] = names.new(f"{prefix}_{name}")
        copy = helper.make_node(
            each.op_type, [renamed[name] for name in each.input], [renamed[name] for name in each.output]
        )
        copy.name = names.new(f"{prefix}_{each.op_type.lower()}")
        for attribute in each.attribute:
            if not attribute.ref_attr_name:
                copy.attribute.add().CopyFrom(attribute)
            elif (value := given.get(attribute.ref_attr_name, defaults.get(attribute.ref_attr_name))) is not None:
                passed = copy.attribute.add()
                passed.CopyFrom(value)
                passed.name = attribute.name
        nodes.append(copy)
    version = next(each.version for each in function.opset_import if domain_of(each.domain) == "")
    return nodes, version


def _function(node: onnx.NodeProto, schema: Any, inputs: Sequence[Value | None]) -> onnx.FunctionProto | None:
    """The oldest function that ONNX defines for ``node``, whose operator has this ``schema``."""
    versions = schema.function_opset_versions or schema.context_dependent_function_opset_versions
    if not (newer := [version for version in versions if version >= schema.since_version]):
        return None
    version = min(newer)
    if schema.has_function:
        serialized = schema.get_function_with_opset_version(version)
    else:
        if any(value is not None and value.type is None for value in inputs):
            return None
        types = [onnx.TypeProto() if value is None else _type_proto(value) for value in inputs]
        serialized = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), [each.SerializeToString() for each in types]
        )
    function = onnx.FunctionProto.FromString(serialized)
    return function if function.node else None


def _type_proto(value: Value) -> onnx.TypeProto:
    """The type of a tensor of which ``value`` is known."""
    assert value.type is not None
    number = elem_type(value.type) if value.type in spec.TYPES else TensorProto.DataType.Value(value.type.upper())
    return helper.make_tensor_type_proto(number, value.shape)
