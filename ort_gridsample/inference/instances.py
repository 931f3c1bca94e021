"""Instances of scopes in a backward slice: a function has one for each call that is inlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx

from ..dialects.spelling import Dialect
from ..graph.scope import Scope


@dataclass(frozen=True, eq=False)
class Instance:
    """A scope in one chain of calls.

    Attributes:
        scope: the main graph, a body or a function.
        prefix: the prefix of the names of its values in the slice. It is unique, or empty if the
            values keep their names, as in the main graph.
        parent: the instance of the scope around it.
        call_attributes: the attributes that the call gives to the function.
        aliases: for the function's inputs and outputs, the names of the caller's values in the
            slice.
        caller: the instance that calls the function.
        arguments: for the function's inputs, the names of the caller's values in its own scope.
        call_depth: the number of calls in the chain.
        graph_depth: the number of graphs around it.
    """

    scope: Scope
    prefix: str = ""
    parent: Instance | None = None
    call_attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    caller: Instance | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    call_depth: int = 0
    graph_depth: int = 0

    def name_in_slice(self, name: str) -> str:
        """Return the name that the value ``name`` of this scope has in the slice.

        The empty name of an input that is left out stays empty.
        """
        if not self.prefix:
            return name
        defining_scope = self.scope.defining_scope(name)
        if defining_scope is None:
            return name and f"undefined {name}"
        instance = self._instance_of(defining_scope)
        return instance.aliases.get(name, instance.prefix + name)

    def find_constant(self, name: str) -> onnx.TensorProto | None:
        """Return the tensor of the constant ``name``, as :meth:`.Scope.find_constant` does.

        An input of a function is constant if the caller's value is.
        """
        defining_scope = self.scope.defining_scope(name)
        if defining_scope is None:
            return None
        instance = self._instance_of(defining_scope)
        if name not in instance.arguments:
            return defining_scope.find_constant(name)
        assert instance.caller is not None  # it has the arguments
        return instance.caller.find_constant(instance.arguments[name])

    def _instance_of(self, scope: Scope) -> Instance:
        """Return the instance of ``scope``, which is the scope of this instance or around it."""
        instance = self
        while instance.scope is not scope:
            assert instance.parent is not None  # ``scope`` is a scope around this one
            instance = instance.parent
        return instance


class InstanceNode(NamedTuple):
    """A node in an instance of its scope.

    Attributes:
        instance: the instance of the node's scope.
        node_index: the index of the node in ``instance.scope``.
        inputs: the names of its inputs in the slice.
        outputs: the names of its outputs in the slice.
        callee: the function that it calls.
        dialect: the dialect of a sampling node.
        may_have_tensor_attributes: whether its attributes may be tensors.
    """

    instance: Instance
    node_index: int
    inputs: Sequence[str]
    outputs: Sequence[str]
    callee: Scope | None
    dialect: Dialect | None
    may_have_tensor_attributes: bool

    @property
    def proto(self) -> onnx.NodeProto:
        return self.instance.scope.nodes[self.node_index]

    @property
    def bodies(self) -> Sequence[Scope]:
        """The scopes of the graphs that it holds."""
        return self.instance.scope.bodies.get(self.node_index, ())

    @property
    def opset(self) -> int:
        return self.instance.scope.opsets.get("", 0)
