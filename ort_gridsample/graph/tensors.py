"""The tensors of a model, and the number of bytes of their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .placeholders import is_placeholder
from .scope import TENSOR_ATTRIBUTES, AttributeType, Scope, scopes_of
from .weights import values_bytes

#: protobuf serializes no larger message.
MAX_SERIALIZED_BYTES = (1 << 31) - 1


class Tensors(NamedTuple):
    """The tensors of a model: initializers, and attributes of nodes.

    Attributes:
        dense: the tensors that are not a part of a sparse one.
        sparse: the sparse tensors.
    """

    dense: list[onnx.TensorProto]
    sparse: list[onnx.SparseTensorProto]

    def with_parts_of_sparse(self) -> list[onnx.TensorProto]:
        """Return the dense tensors, and the values and indices of the sparse ones."""
        parts = [part for sparse in self.sparse for part in (sparse.values, sparse.indices)]
        return [*self.dense, *parts]


def tensors_of(scopes: Iterable[Scope]) -> Tensors:
    """Return the tensors of a model with these scopes."""
    tensors: list[onnx.TensorProto] = []
    sparse_tensors: list[onnx.SparseTensorProto] = []
    for scope in scopes:
        if isinstance(scope.container, onnx.GraphProto):
            tensors += scope.container.initializer
            sparse_tensors += scope.container.sparse_initializer
        for index in scope.attribute_holders(TENSOR_ATTRIBUTES):
            for attribute in scope.nodes[index].attribute:
                tensors += [attribute.t] if attribute.HasField("t") else attribute.tensors
                sparse_tensors += attribute.sparse_tensors
                if attribute.HasField("sparse_tensor"):
                    sparse_tensors.append(attribute.sparse_tensor)
    return Tensors(tensors, sparse_tensors)


def exceeds_protobuf(model: onnx.ModelProto) -> bool:
    """Whether ``model`` has more values than protobuf can serialize, by the shapes of its tensors.

    Reading the values would copy them.
    """
    tensors = tensors_of(scopes_of(model)).with_parts_of_sparse()
    return sum(map(values_bytes, tensors)) > MAX_SERIALIZED_BYTES


def dense_tensor(sparse: onnx.SparseTensorProto) -> TensorProto:
    """Return a sparse tensor, whose data is in the model, as a dense tensor of the same name."""
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:  # indices of the flat array
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return numpy_helper.from_array(dense, sparse.values.name)


def has_data(sparse: onnx.SparseTensorProto) -> bool:
    """Whether the values and the indices of a sparse tensor are in the model."""
    return not (is_placeholder(sparse.values) or is_placeholder(sparse.indices))


def write_dense_constants(scopes: Iterable[Scope]) -> None:
    """Write the sparse values of Constants as dense ones, if their data is in the model."""
    for scope in scopes:
        for index in scope.attribute_holders((AttributeType.SPARSE_TENSOR,)):
            for attribute in scope.nodes[index].attribute:
                if attribute.name == "sparse_value" and has_data(attribute.sparse_tensor):
                    tensor = dense_tensor(attribute.sparse_tensor)
                    attribute.CopyFrom(helper.make_attribute("value", tensor))
