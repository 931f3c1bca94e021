"""The declared types and the initializers of a backward slice."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
from onnx import helper

from ..graph.scope import Scope
from .instances import Instance
from .light_attributes import is_weight, weight_type


class SliceDeclarations:
    """Writes the declarations of a model to its backward slice.

    Args:
        graph: the main graph of the slice.
        needed: the names in the slice of the values that it needs. The caller may add more later.

    Attributes:
        ranks: the ranks that the model declares for its values, by their names in the slice. A run
            need not have them.
    """

    def __init__(self, graph: onnx.GraphProto, needed: Collection[str]) -> None:
        self.ranks: dict[str, int] = {}
        self._graph = graph
        self._needed = needed

    def add_types(self, instance: Instance) -> None:
        """Add the types that the model declares for needed values of ``instance``."""
        scope = instance.scope
        container = scope.container
        for value in container.value_info:
            name = instance.name_in_slice(value.name)
            if name in self._needed and _is_computed(scope, value.name):
                self.add_without_shape(self._graph.value_info, value, name)
        if scope.parent is not None or isinstance(container, onnx.FunctionProto):
            return
        for value in container.output:
            if _is_computed(scope, value.name):
                name = instance.name_in_slice(value.name)
                self.add_without_shape(self._graph.value_info, value, name)
        for value in container.input:
            name = instance.name_in_slice(value.name)
            if scope.definitions[value.name] is None and name in self._needed:
                _add_renamed(self._graph.input, value, name)

    def add_without_shape(self, values: Any, value: onnx.ValueInfoProto, name: str) -> None:
        """Add ``value`` without its shape to a field of a graph, and keep its rank.

        onnxruntime does not require that a run has this shape, which may come from another model.

        Args:
            values: the field, such as ``graph.output``.
            value: a declaration of the model.
            name: the name of the value in the slice.
        """
        tensor = _add_renamed(values, value, name).type.tensor_type
        if tensor.HasField("shape"):
            self.ranks[name] = len(tensor.shape.dim)
            tensor.ClearField("shape")

    def add_output(self, values: Any, instance: Instance, value: onnx.ValueInfoProto) -> None:
        """Add an output of the body ``instance`` without its shape to a field of a graph.

        An initializer has its own type, which no other declaration may hide.
        """
        name = instance.name_in_slice(value.name)
        definition = instance.scope.definitions.get(value.name)
        if isinstance(definition, onnx.TensorProto):
            values.add(name=name, type=_initializer_type(definition))
        else:
            self.add_without_shape(values, value, name)

    def add_initializers(self, instance: Instance) -> None:
        """Add the needed initializers of ``instance``, weights as inputs."""
        scope = instance.scope
        container = scope.container
        if isinstance(container, onnx.FunctionProto):
            return
        graph = self._graph
        definitions = scope.definitions
        for tensor in container.initializer:
            original_name = tensor.name
            name = instance.name_in_slice(original_name) if instance.prefix else original_name
            if name not in self._needed or definitions[original_name] is None:
                continue
            if is_weight(tensor):
                graph.input.add(name=name, type=weight_type(tensor.data_type, *tensor.dims))
            else:
                graph.initializer.append(tensor)
                if instance.prefix:
                    graph.initializer[-1].name = name
        for sparse in container.sparse_initializer:
            name = instance.name_in_slice(sparse.values.name)
            if name in self._needed:
                sparse_type = weight_type(sparse.values.data_type, *sparse.dims)
                graph.input.add(name=name, type=sparse_type)


def _is_computed(scope: Scope, name: str) -> bool:
    """Whether a node of ``scope`` computes a value.

    Only such values are declared in the slice. The slice has the exact types of inputs and
    initializers, and onnx would use a weaker declaration instead of them: exporters write
    value_info for initializers, too.
    """
    return isinstance(scope.definitions.get(name), onnx.NodeProto)


def _initializer_type(tensor: onnx.TensorProto) -> onnx.TypeProto:
    """Return the type of an initializer in the slice. It must not be changed."""
    if is_weight(tensor):
        return weight_type(tensor.data_type, *tensor.dims)
    return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))


def _add_renamed(values: Any, value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Add ``value`` to ``values``, a field of a graph, under this ``name``."""
    added: onnx.ValueInfoProto = values.add()
    added.CopyFrom(value)
    added.name = name
    return added
