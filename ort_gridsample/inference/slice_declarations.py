"""The declared types and the initializers of a backward slice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

import onnx
from onnx import TensorProto, helper

from .instances import Instance
from .light_attributes import is_weight, weight_type

#: The types of values by their names.
Types = dict[str, onnx.TypeProto]


class SliceDeclarations:
    """Writes the inputs and initializers of a model to its backward slice.

    Args:
        needed: the names in the slice of the values that it needs. The caller may add more later.
    """

    def __init__(self, graph: onnx.GraphProto, needed: Collection[str]) -> None:
        self._graph = graph
        self._needed = needed

    def add_inputs(self, main: Instance) -> None:
        """Add the needed inputs of the main graph."""
        scope = main.scope
        assert isinstance(scope.container, onnx.GraphProto)
        for value in scope.container.input:
            if scope.definitions[value.name] is None and value.name in self._needed:
                added = self._graph.input.add()
                added.CopyFrom(value)
                if not value.type.HasField("tensor_type"):
                    # onnxruntime compares only the shapes of tensors with those of a feed.
                    clear_shapes(added.type)

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


def declared_types(instances: Iterable[Instance], needed: Collection[str]) -> Types:
    """Return the types that the model declares for the values that nodes compute.

    The slice has the exact types of inputs and initializers. A declaration must not replace them:
    exporters write value_info for initializers, too, and onnx would use a weaker one.

    Args:
        instances: the instances of all scopes.
        needed: the names in the slice of the values that it needs.
    """
    types: Types = {}
    for instance in instances:
        scope = instance.scope
        container = scope.container
        is_main = scope.parent is None and isinstance(container, onnx.GraphProto)
        outputs = container.output if is_main else ()
        for value in chain(container.value_info, outputs):
            name = instance.name_in_slice(value.name)
            is_computed = isinstance(scope.definitions.get(value.name), onnx.NodeProto)
            if is_computed and (name in needed or is_main):
                types[name] = value.type
    return types


def clear_shapes(type_proto: onnx.TypeProto) -> None:
    """Remove the shape of a tensor from its type, or that of the tensors in a sequence."""
    while True:
        kind = type_proto.WhichOneof("value")
        if kind not in ("sequence_type", "optional_type"):
            break
        type_proto = getattr(type_proto, kind).elem_type
    if kind == "tensor_type":
        type_proto.tensor_type.ClearField("shape")


def add_body_input(values: Any, instance: Instance, value: onnx.ValueInfoProto) -> None:
    """Add an input of the body ``instance`` without its shape to a field of a graph.

    onnxruntime does not require that a run has this shape, which may come from another model.

    Args:
        values: the field, ``graph.input``.
        value: the declaration of the input in the model.
    """
    added = values.add()
    added.CopyFrom(value)
    added.name = instance.name_in_slice(value.name)
    clear_shapes(added.type)


def add_body_output(values: Any, instance: Instance, value: onnx.ValueInfoProto) -> None:
    """Add an output like :func:`add_body_input`, but an initializer with its exact type."""
    definition = instance.scope.definitions.get(value.name)
    if isinstance(definition, onnx.TensorProto):
        values.add(name=instance.name_in_slice(value.name), type=_initializer_type(definition))
    else:
        add_body_input(values, instance, value)


def add_body_constants(graph: onnx.GraphProto, instance: Instance, needed: Collection[str]) -> None:
    """Add the integers that nodes of a body read from initializers.

    All initializers are in the main graph of the slice. onnx reads no element of an initializer of
    another graph, such as the shape of a Reshape.

    Args:
        needed: the names in the slice of the values that it needs.
    """
    for name in dict.fromkeys(chain.from_iterable(instance.scope.inputs)):
        is_computed = isinstance(instance.scope.definitions.get(name), onnx.NodeProto)
        if is_computed or instance.name_in_slice(name) not in needed:
            continue
        tensor = instance.scope.find_constant(name)
        if tensor is not None and tensor.data_type == TensorProto.INT64 and not is_weight(tensor):
            added = graph.initializer.add()
            added.CopyFrom(tensor)
            added.name = instance.name_in_slice(name)


def _initializer_type(tensor: onnx.TensorProto) -> onnx.TypeProto:
    """Return the type of an initializer in the slice. It must not be changed."""
    if is_weight(tensor):
        return weight_type(tensor.data_type, *tensor.dims)
    return helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
