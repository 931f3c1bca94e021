"""The conversion of a node to the previous version of its operator, as rules see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx
from onnx import AttributeProto, defs, helper, numpy_helper

from ...graph.expressions import Expressions
from ...graph.new_names import Names
from ...graph.placeholders import is_placeholder
from ...graph.scope import Scope, constant_tensor
from ...inference.types import Inference, TypeAndShape
from ...spec import Shape
from .obstacles import ObstacleError


@dataclass
class Context:
    """The surroundings of a node that is converted.

    Attributes:
        scope: the scope of the node.
        inference: the types of all values in ``scope``.
        names: the names of the model's values and nodes.
        new_opset: the opset to convert to.
    """

    scope: Scope
    inference: Inference
    names: Names
    new_opset: int
    _new_constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """Return the value of ``name`` if the model or a new node holds it."""
        if not name:
            return None
        if name in self._new_constants:
            return self._new_constants[name]
        return self.scope.constant_value(name)

    def record_constant(self, node: onnx.NodeProto) -> None:
        """Remember the value of a new ``node`` if it is a Constant."""
        tensor = constant_tensor(node)
        if tensor is not None and not is_placeholder(tensor):
            self._new_constants[node.output[0]] = numpy_helper.to_array(tensor)


@dataclass
class VersionStep:
    """A node that is taken to the opset before ``since``.

    Attributes:
        context: the surroundings of the node.
        node: a copy of the node, which rules may change.
        since: the first opset of the node's version of its operator.
    """

    context: Context
    node: onnx.NodeProto
    since: int

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or ``default`` if the node lacks it."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default

    def remove_attributes(self, *names: str) -> None:
        """Remove attributes."""
        for attribute in list(self.node.attribute):
            if attribute.name in names:
                self.node.attribute.remove(attribute)

    def set_attributes(self, **values: Any) -> None:
        """Set the values of attributes. An empty list is one of integers."""
        self.remove_attributes(*values)
        for name, value in values.items():
            attr_type = AttributeProto.INTS if value == [] else None
            attribute = helper.make_attribute(name, value, attr_type=attr_type)
            self.node.attribute.append(attribute)

    def input(self, input_index: int) -> str:
        """Return the name of an input; empty if the node lacks it."""
        return self.node.input[input_index] if input_index < len(self.node.input) else ""

    def truncate_inputs(self, count: int) -> None:
        """Remove all inputs but the first ``count``."""
        del self.node.input[count:]

    def constant_input(self, input_index: int) -> npt.NDArray[Any] | None:
        """Return the value of an input if it is constant."""
        return self.context.constant(self.input(input_index))

    def constant_integers(self, input_index: int) -> list[int]:
        """Return the integers of a constant input that is an attribute in the older opset.

        Raises:
            ObstacleError: the input is computed.
        """
        value = self.constant_input(input_index)
        if value is None:
            schema = defs.get_schema(self.node.op_type, self.since, "")
            found = f"computed ({self.input(input_index)})"
            expected = f"a constant before opset {self.since}"
            raise ObstacleError(schema.inputs[input_index].name, found, expected)
        return [int(number) for number in value.ravel()]

    def input_value(self, input_index: int) -> TypeAndShape:
        """Return what is known of the type and the shape of an input."""
        return self.context.inference.value_in_all_calls(
            self.context.scope, self.input(input_index)
        )

    def input_type(self, input_index: int) -> str | None:
        """Return the type of an input, or None if it is not known."""
        return self.input_value(input_index).type

    def input_shape(self, input_index: int) -> Shape | None:
        """Return the shape of an input, or None if it is not known."""
        return self.input_value(input_index).shape

    def input_rank(self, input_index: int) -> int | None:
        """Return the rank of an input, or None if it is not known."""
        value = self.constant_input(input_index)
        if value is not None:
            return value.ndim
        shape = self.input_shape(input_index)
        return None if shape is None else len(shape)

    def expressions(self) -> Expressions:
        """Return expressions for the nodes that are written in place of the node."""
        prefix = self.node.output[0] or self.node.op_type
        return Expressions(prefix, self.since - 1, names=self.context.names)

    def obstacle(self, argument: str, found: object, verb: str = "is") -> ObstacleError:
        """Return the error that the older opset lacks this value of an attribute or input."""
        expected = f"a value that opset {self.since - 1} has"
        return ObstacleError(argument, str(found), expected, verb)


#: The result of a rule: the nodes of the older opset. If the node may have attributes that the
#: older version of its operator lacks, it is the result of
#: :func:`.signature_fit.fit_to_older_signature`.
Rewritten = Sequence[onnx.NodeProto]
#: A function that rewrites a node, or raises ObstacleError.
ConversionRule = Callable[[VersionStep], Rewritten]
