"""Attributes and weights in a backward slice: without large values, and with types instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import onnx
from onnx import helper

from .. import spec
from ..graph.element_types import elem_type
from ..graph.placeholders import is_placeholder, new_placeholder

#: Tensors up to this size may be shapes, whose values inference needs. Larger ones are weights.
SMALL_BYTES = 1 << 12
_FLOATS = frozenset(map(elem_type, spec.FLOATS))
#: The attributes of a Constant that hold a row of numbers -> their element type.
_ROW_TYPES = {"value_floats": onnx.TensorProto.FLOAT, "value_ints": onnx.TensorProto.INT64}


def resolved_attributes(
    node: onnx.NodeProto,
    call_attributes: Mapping[str, onnx.AttributeProto],
) -> Iterator[onnx.AttributeProto]:
    """Yield the attributes of ``node`` except graphs.

    References to attributes of its function are replaced by the ``call_attributes`` of the
    function.
    """
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            if not attribute.HasField("g") and not attribute.graphs:
                yield attribute
        elif attribute.ref_attr_name in call_attributes:
            resolved = onnx.AttributeProto()
            resolved.CopyFrom(call_attributes[attribute.ref_attr_name])
            resolved.name = attribute.name
            yield resolved


def is_weight(tensor: onnx.TensorProto) -> bool:
    """Whether inference does not need the values of a tensor. It needs no matrices of floats."""
    if tensor.data_type in _FLOATS and len(tensor.dims) > 1:
        return True
    return tensor.ByteSize() > SMALL_BYTES or is_placeholder(tensor)


def without_data(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    """Return a large attribute without its value, but with the type of a tensor."""
    bare = onnx.AttributeProto(name=attribute.name, type=attribute.type)
    if attribute.HasField("t"):
        bare.t.CopyFrom(new_placeholder(attribute.t.data_type, attribute.t.dims))
    return bare


def constant_type(attribute: onnx.AttributeProto) -> onnx.TypeProto:
    """Return the type of a Constant that has this large attribute."""
    if attribute.HasField("t"):
        return weight_type(attribute.t.data_type, *attribute.t.dims)
    if attribute.HasField("sparse_tensor"):
        sparse = attribute.sparse_tensor
        return weight_type(sparse.values.data_type, *sparse.dims)
    if attribute.name == "value_string":
        return weight_type(onnx.TensorProto.STRING)
    return weight_type(_ROW_TYPES.get(attribute.name, onnx.TensorProto.STRING), 0)


def weight_type(number: int, *dims: int) -> onnx.TypeProto:
    """Return the type of a weight. It must not be changed."""
    # The length of a 1-D weight is left open, so that inference does not follow its elements as
    # those of a shape.
    return tensor_type(number, *(dims if len(dims) > 1 else [None] * len(dims)))


@lru_cache(maxsize=1024)  # a model has thousands of initializers, and few types
def tensor_type(number: int, *dims: int | None) -> onnx.TypeProto:
    """Return the type of a tensor. It must not be changed."""
    return helper.make_tensor_type_proto(number, dims)
