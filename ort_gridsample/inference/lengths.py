"""The lengths of the values in a scope, and the elements of shapes, as far as nodes state them.

A shape is the lengths of a value's axes. Elements are the numbers in a value that is itself a
shape, such as the second input of a Reshape. Both may be symbolic: see :mod:`.symbolic`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import onnx
from onnx import TensorProto, numpy_helper

from ..graph.placeholders import is_placeholder
from ..graph.scope import has_attribute_references
from ..graph.use_def import UseDef
from ..spec import Shape
from .computed_operands import LENGTH_TYPES
from .symbolic import ONE, Length, PartialLengths
from .types import Inference
from .views import LAYOUT_OPERATORS, REARRANGING, View, int_attribute, view_of

#: The maximum number of nodes in one chain that is followed back to find a length.
MAX_DEPTH = 64
#: The maximum number of elements of a tensor that is read as a shape or as indices.
MAX_ELEMENTS = 1024
_INT64 = struct.Struct("<q")
_INTEGER_TYPES = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


class InferredLengths:
    """The lengths that inference states for the values of one scope, and elements of constants.

    They are read many times as fast as those of :class:`ScopeLengths`, which follow nodes.

    Args:
        inference: the inferred types of the scope's values.
    """

    def __init__(self, use_def: UseDef, inference: Inference) -> None:
        self.use_def = use_def
        self._inference = inference
        self._dims: dict[str, Shape | None] = {}
        self._inferred: dict[str, tuple[Length, ...] | None] = {}
        self._views: dict[str, View | None] = {}
        self._constants: dict[str, PartialLengths | None] = {}

    def dims(self, name: str) -> Shape | None:
        """Return the inferred shape of a value in all calls, or None if its rank is unknown."""
        if name not in self._dims:
            self._dims[name] = self._inference.value_in_all_calls(self.use_def.scope, name).shape
        return self._dims[name]

    def shape(self, name: str) -> tuple[Length, ...] | None:
        """Return the lengths of the axes of a value, or None if its rank is unknown."""
        return self.inferred_shape(name) or self._shape_of_constant(name)

    def elements(self, name: str) -> PartialLengths | None:
        """Return the elements of an integer tensor of at most one axis.

        Returns:
            The elements; None if their number is unknown, or if the tensor is another one.
        """
        if name not in self._constants:
            constant = self.use_def.scope.find_constant(name) if name else None
            self._constants[name] = constant and self._elements_of_constant(name, constant)
        return self._constants[name]

    def inferred_shape(self, name: str) -> tuple[Length, ...] | None:
        """Return the inferred lengths, with new unknown factors for those that are unknown.

        Return None if the inferred rank is unknown.
        """
        if name not in self._inferred:
            shape = self.dims(name)
            lengths = None
            if shape is not None:
                lengths = tuple(
                    [
                        Length(length) if isinstance(length, int) else _unknown(name, axis)
                        for axis, length in enumerate(shape)
                    ]
                )
            self._inferred[name] = lengths
        return self._inferred[name]

    def view(self, name: str) -> View | None:
        """Return how a layout operator makes a value from the inputs of its node.

        Return None if another operator makes it, or if the rank of the value is unknown.
        """
        if name not in self._views:
            index = self.use_def.makers.get(name)
            is_layout = index is not None and self.use_def.is_op(index, LAYOUT_OPERATORS)
            node = self.use_def.nodes[index] if is_layout and index is not None else None
            self._views[name] = None if node is None else view_of(node, name, self)
        return self._views[name]

    def _shape_of_constant(self, name: str) -> tuple[Length, ...] | None:
        """Return the shape of a constant, or None if ``name`` is another value."""
        constant = self.use_def.scope.find_constant(name)
        return None if constant is None else tuple(map(Length, constant.dims))

    def _elements_of_constant(self, name: str, constant: TensorProto) -> PartialLengths | None:
        """Return the elements of the tensor ``constant``, which may lack its values."""
        if len(constant.dims) > 1 or max(constant.dims, default=1) > MAX_ELEMENTS:
            return None
        if constant.data_type not in _INTEGER_TYPES:
            return None
        if is_placeholder(constant):
            array = self.use_def.scope.constant_value(name)
            if array is None:
                return None
            values: Sequence[int] = array.ravel().tolist()
        else:
            values = _integers_of(constant)
        return [Length(element) for element in values]


def _integers_of(tensor: TensorProto) -> Sequence[int]:
    """Return the elements of a tensor of integers of at most one axis."""
    data = tensor.raw_data
    count = math.prod(tensor.dims)
    if tensor.data_type == TensorProto.INT64 and len(data) == count * _INT64.size:
        return [element for (element,) in _INT64.iter_unpack(data)]  # 5 times as fast as an array
    integers: list[int] = numpy_helper.to_array(tensor).ravel().tolist()
    return integers


def _unknown(name: str, axis: int) -> Length:
    """Return the length of an axis of a value of which nothing is known."""
    return Length(unknown=((name, axis),))


class ScopeLengths(InferredLengths):
    """The lengths of the values in one scope, from type inference and from the nodes.

    Args:
        inference: the inferred types of the scope's values.
        sampler_inputs: for the output of each GridSample in any dialect, the names of its X and
            grid.
    """

    def __init__(
        self,
        use_def: UseDef,
        inference: Inference,
        sampler_inputs: Mapping[str, tuple[str, str]],
    ) -> None:
        super().__init__(use_def, inference)
        self._sampler_inputs = sampler_inputs
        self._shapes: dict[str, tuple[Length, ...] | None] = {}
        self._elements: dict[str, PartialLengths | None] = {}
        self._depth = 0

    def shape(self, name: str) -> tuple[Length, ...] | None:
        """Return the lengths of the axes of a value, or None if its rank is unknown."""
        if name not in self._shapes:
            self._shapes[name] = None  # ends the recursion in an invalid model with a cycle
            self._shapes[name] = self._compute_shape(name)
        return self._shapes[name]

    def _compute_shape(self, name: str) -> tuple[Length, ...] | None:
        """Return the inferred lengths, else those by the node, else new unknown factors."""
        inferred = self.inferred_shape(name)
        if inferred is not None and not any(length.unknown for length in inferred):
            return inferred
        computed = self._shape_from_node(name)
        if inferred is None:
            if computed is None:
                return self._shape_of_constant(name)
            inferred = tuple(_unknown(name, axis) for axis in range(len(computed)))
        if computed is None or len(computed) != len(inferred):
            return inferred
        return tuple(
            [
                length if number.known is None and length is not None else number
                for number, length in zip(inferred, computed, strict=True)
            ]
        )

    def _shape_from_node(self, name: str) -> PartialLengths | None:
        """Return the shape of a value by the node that makes it, or None if its rank is unknown."""
        if name not in self._sampler_inputs:
            return self._apply_rule(name, _SHAPE_RULES)
        X_name, grid_name = self._sampler_inputs[name]
        X = self.shape(X_name)
        grid = self.shape(grid_name)
        if X is None or grid is None:
            return None
        return [*X[:2], *grid[1:-1]]

    def elements(self, name: str) -> PartialLengths | None:
        """Return the elements as :meth:`InferredLengths.elements`, also computed ones."""
        if name not in self._elements:
            self._elements[name] = None  # ends the recursion in an invalid model with a cycle
            self._elements[name] = self._compute_elements(name)
        return self._elements[name]

    def _compute_elements(self, name: str) -> PartialLengths | None:
        """Return the elements of a constant, or those that the rule of its operator gives."""
        constant = self.use_def.scope.find_constant(name) if name else None
        if constant is not None:
            return self._elements_of_constant(name, constant)
        shape = self._inference.value_in_all_calls(self.use_def.scope, name).shape
        if shape is None or len(shape) > 1:
            return None
        elements = self._apply_rule(name, _ELEMENT_RULES)
        if elements is None and shape and isinstance(shape[0], int):
            return [None] * shape[0]
        return elements

    def _apply_rule(self, name: str, rules: Mapping[str, _Rule]) -> PartialLengths | None:
        """Apply the rule of the operator that computes a value; return None if there is none."""
        index = self.use_def.makers.get(name)
        if index is None or not self.use_def.is_op(index, rules) or self._depth > MAX_DEPTH:
            return None
        node = self.use_def.nodes[index]
        if has_attribute_references(node):
            return None
        self._depth += 1
        try:
            result = rules[node.op_type](self, node, name)
        finally:
            self._depth -= 1
        return result


#: Compute the shape of one output of a node (:data:`_SHAPE_RULES`), or the elements of its 1-D
#: output (:data:`_ELEMENT_RULES`). The arguments are the lengths of the scope, the node and the
#: name of the output.
_Rule = Callable[[ScopeLengths, onnx.NodeProto, str], "PartialLengths | None"]


# Rules for shapes


def _shape_of_view(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    view = scope_lengths.view(name)
    return None if view is None else view.shape


def _same_shape(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    return scope_lengths.shape(node.input[0])


def _broadcast_shape(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    first, second = (scope_lengths.shape(operand) for operand in node.input)
    if first is None or second is None:
        return None
    pairs = zip_longest(first[::-1], second[::-1], fillvalue=ONE)
    shape = [_broadcast(a, b) for a, b in pairs]
    return shape[::-1]


def _broadcast(a: Length, b: Length) -> Length | None:
    """Return the length of an axis of two operands, or None if it depends on the run."""
    if a == ONE:
        return b
    if b == ONE:
        return a
    if a == b:
        return a
    return None


_SHAPE_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(LAYOUT_OPERATORS, _shape_of_view),
    "Add": _broadcast_shape,
    "Cast": _same_shape,
    "Div": _broadcast_shape,
    "Mul": _broadcast_shape,
    "Softmax": _same_shape,
    "Sub": _broadcast_shape,
}


# Rules for the elements of a shape


class _Row:
    """The lengths of a scope, in which a value with known elements has the axis that lists them."""

    def __init__(self, scope_lengths: ScopeLengths) -> None:
        self._scope_lengths = scope_lengths
        self.elements = scope_lengths.elements
        self.inferred_shape = scope_lengths.inferred_shape

    def shape(self, name: str) -> Sequence[Length] | None:
        shape = self._scope_lengths.shape(name)
        if shape == ():
            return shape
        elements = self.elements(name)
        return shape if elements is None else (Length(len(elements)),)


def _elements_of_view(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    names = node.input if node.op_type == "Concat" else node.input[:1]
    rows = []
    for operand in names:
        row = scope_lengths.elements(operand)
        if row is None:
            return None
        rows.append(row)
    if node.op_type in REARRANGING:
        return rows[0]
    view = view_of(node, name, _Row(scope_lengths))
    return None if view is None else view.elements(rows)


def _elements_of_cast(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    keeps_lengths = int_attribute(node, "to", 0) in LENGTH_TYPES
    return scope_lengths.elements(node.input[0]) if keeps_lengths else None


def _elements_of_shape(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    shape = scope_lengths.shape(node.input[0])
    if shape is None:
        return None
    return shape[int_attribute(node, "start", 0) : int_attribute(node, "end", len(shape))]


def _elements_of_mul(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    first, second = (scope_lengths.elements(operand) for operand in node.input)
    if first is None or second is None or len(first) != len(second):
        return None
    products = []
    for a, b in zip(first, second, strict=True):
        product = None if a is None or b is None else a * b
        products.append(product if product is not None and product.is_tractable else None)
    return products


_ELEMENT_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(LAYOUT_OPERATORS, _elements_of_view),
    "Cast": _elements_of_cast,
    "Mul": _elements_of_mul,
    "Shape": _elements_of_shape,
}
#: The operators that compute a shape from others.
SHAPE_OPERATORS = frozenset(_ELEMENT_RULES)
#: The operators that have rules.
OPERATORS = frozenset(_SHAPE_RULES) | SHAPE_OPERATORS
