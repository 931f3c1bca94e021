"""The tensors of a model, and the number of bytes of their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import onnx

from .scope import TENSOR_ATTRIBUTES, Scope, scopes_of
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
