"""Symbolic lengths of axes: products of a number and of lengths that are known only in a run.

Exporters often compute the shape that a Reshape reads from the shapes of other values. These
products tell how such a Reshape splits and merges axes.

A shape is the lengths of a value's axes. Elements are the numbers in a value that is itself a
shape, such as the second input of a Reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from operator import mul
from typing import NamedTuple

import onnx

from ..graph.scope import attribute_named, has_attribute_references
from ..graph.use_def import UseDef
from .computed_operands import LENGTH_TYPES, OPEN_ENDS
from .types import Inference, length_at

#: The maximum number of nodes in one chain that is followed back to find a length.
MAX_DEPTH = 64
#: The maximum number of unknown factors of a length. A chain of products doubles them at each node.
MAX_FACTORS = 64
#: The maximum length of an axis: lengths are int64.
_MAX_NUMBER = (1 << 63) - 1


class Length(NamedTuple):
    """A product of a number and of unknown lengths.

    As an element of a Reshape's shape, 0 and -1 have ONNX's meaning.

    Attributes:
        number: the known factor.
        unknown: the unknown factors, each a value's name and an axis, sorted.
    """

    number: int = 1
    unknown: tuple[tuple[str, int], ...] = ()

    def __mul__(self, other: Length) -> Length:  # type: ignore[override]
        return Length(self.number * other.number, tuple(sorted(self.unknown + other.unknown)))

    def divided_by(self, other: Length) -> Length | None:
        """Return the quotient, or None if ``other`` is not a divisor."""
        remaining = list(self.unknown)
        for factor in other.unknown:
            if factor not in remaining:
                return None
            remaining.remove(factor)
        if other.number == 0 or self.number % other.number != 0:
            return None
        return Length(self.number // other.number, tuple(remaining))

    @property
    def is_tractable(self) -> bool:
        """Whether the factors are few enough to compute with, and the number fits int64."""
        return len(self.unknown) <= MAX_FACTORS and abs(self.number) <= _MAX_NUMBER

    @property
    def known(self) -> int | None:
        """The length as a number, or None if it has unknown factors."""
        return None if self.unknown else self.number


ONE = Length()
#: The lengths of the axes of a value, or the elements of a 1-D tensor of lengths. An unknown
#: length is None.
PartialLengths = Sequence[Length | None]


class ScopeLengths:
    """The lengths of the values in one scope, from type inference and from the nodes.

    Args:
        use_def: the use-def chains of the scope.
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
        self.use_def = use_def
        self._inference = inference
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
        inferred = self._inference.value_in_all_calls(self.use_def.scope, name).shape
        if inferred is not None and all(isinstance(length, int) for length in inferred):
            computed = None
        else:
            computed = self._shape_from_node(name)
        if inferred is None:
            if computed is None:
                return None
            inferred = (None,) * len(computed)
        if computed is None or len(computed) != len(inferred):
            computed = [None] * len(inferred)
        shape = []
        for axis, (number, length) in enumerate(zip(inferred, computed, strict=True)):
            if isinstance(number, int):
                shape.append(Length(number))
            else:
                shape.append(length or Length(unknown=((name, axis),)))
        return tuple(shape)

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
        """Return the elements of an integer tensor of at most one axis.

        Returns:
            The elements; None if their number is unknown, or if the tensor is another one.
        """
        if name not in self._elements:
            self._elements[name] = None  # ends the recursion in an invalid model with a cycle
            self._elements[name] = self._compute_elements(name)
        return self._elements[name]

    def _compute_elements(self, name: str) -> PartialLengths | None:
        """Return the elements of a constant, or those that the rule of its operator gives."""
        constant = self.use_def.scope.constant_value(name) if name else None
        if constant is not None:
            if constant.ndim > 1 or constant.dtype.kind != "i":
                return None
            return [Length(int(element)) for element in constant.ravel()]
        shape = self._inference.value_in_all_calls(self.use_def.scope, name).shape
        if shape is None or len(shape) > 1:
            return None
        elements = self._apply_rule(name, _ELEMENT_RULES)
        if elements is None and shape and isinstance(shape[0], int):
            return [None] * shape[0]
        return elements

    def known_integers(
        self,
        node: onnx.NodeProto,
        input_index: int,
        attribute: str = "",
    ) -> list[int] | None:
        """Return the integers in an input of ``node``.

        Args:
            node: a node of this scope, with its attributes as in the scope's opset.
            input_index: the index of the input in ``node.input``.
            attribute: the attribute that holds the integers in older opsets, where the node has no
                such input.

        Returns:
            The integers; None if at least one of them is unknown.
        """
        if len(node.input) <= input_index:
            for candidate in node.attribute:
                if candidate.name == attribute and not candidate.ref_attr_name:
                    return list(candidate.ints)
            return None
        elements = self.elements(node.input[input_index])
        if elements is None:
            return None
        integers = [None if element is None else element.known for element in elements]
        known = [integer for integer in integers if integer is not None]
        return known if len(known) == len(integers) else None

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
        if result is None:
            return None
        return [length if length and length.is_tractable else None for length in result]


#: Compute the shape of one output of a node (:data:`_SHAPE_RULES`), or the elements of its 1-D
#: output (:data:`_ELEMENT_RULES`). The arguments are the lengths of the scope, the node and the
#: name of the output.
_Rule = Callable[[ScopeLengths, onnx.NodeProto, str], "PartialLengths | None"]


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of ``node``, or its default."""
    attribute = attribute_named(node, name)
    return default if attribute is None else int(attribute.i)


def permutation(node: onnx.NodeProto, rank: int) -> list[int]:
    """Return the order in which a Transpose of ``rank`` axes lists the axes of its input."""
    attribute = attribute_named(node, "perm")
    perm = [] if attribute is None else list(attribute.ints)
    axes = list(range(rank))
    return perm if sorted(perm) == axes else axes[::-1]


def product_of(lengths: Sequence[Length]) -> Length:
    """Return the product of ``lengths``."""
    return reduce(mul, lengths, ONE)


# Rules for shapes


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


def _shape_of_transpose(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    shape = scope_lengths.shape(node.input[0])
    return None if shape is None else [shape[axis] for axis in permutation(node, len(shape))]


def _shape_of_reshape(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    input_shape = scope_lengths.shape(node.input[0])
    target = scope_lengths.elements(node.input[1])
    if target is None:
        return None
    shape = list(target)
    if not int_attribute(node, "allowzero", 0):
        for axis, length in enumerate(shape):
            if length == Length(0):
                shape[axis] = length_at(input_shape, axis)
    for axis, length in enumerate(shape):
        if length == Length(-1):
            shape[axis] = _remaining_length(input_shape, [*shape[:axis], *shape[axis + 1 :]])
    return shape


def _remaining_length(
    input_shape: Sequence[Length] | None, others: PartialLengths
) -> Length | None:
    """Return the length of the axis -1 of a Reshape. ``others`` are those of its other axes."""
    if input_shape is None:
        return None
    remaining: Length | None = product_of(input_shape)
    for length in others:
        if remaining is None or length is None:
            return None
        remaining = remaining.divided_by(length)
    return remaining


def _shape_of_unsqueeze(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    shape = scope_lengths.shape(node.input[0])
    axes = scope_lengths.known_integers(node, 1, "axes")
    if shape is None or axes is None:
        return None
    rank = len(shape) + len(axes)
    new_axes = {axis % rank for axis in axes}
    if len(new_axes) < len(axes):
        return None
    old_lengths = iter(shape)
    return [ONE if axis in new_axes else next(old_lengths) for axis in range(rank)]


def _shape_of_squeeze(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    # Without axes, all axes of length 1 are removed.
    axes = scope_lengths.known_integers(node, 1, "axes") or None
    return _without_axes(scope_lengths, node, axes)


def _shape_of_gather(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    """Return the shape of the output of a Gather with a single index."""
    index = scope_lengths.use_def.scope.constant_value(node.input[1])
    is_scalar = index is not None and index.ndim == 0
    return _without_axes(
        scope_lengths, node, [int_attribute(node, "axis", 0)] if is_scalar else None
    )


def _without_axes(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, axes: Sequence[int] | None
) -> PartialLengths | None:
    shape = scope_lengths.shape(node.input[0])
    if not shape or axes is None:
        return None
    dropped = {axis % len(shape) for axis in axes}
    return [length for axis, length in enumerate(shape) if axis not in dropped]


def _shape_of_slice(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    return _unchanged_axes(scope_lengths, node, scope_lengths.known_integers(node, 3))


def _unchanged_axes(
    scope_lengths: ScopeLengths,
    node: onnx.NodeProto,
    changed_axes: Sequence[int] | None,
) -> list[Length | None] | None:
    """Return the shape of the first input, with None for the axes that the node changes."""
    shape = scope_lengths.shape(node.input[0])
    if not shape or changed_axes is None:
        return None
    changed = {axis % len(shape) for axis in changed_axes}
    return [None if axis in changed else length for axis, length in enumerate(shape)]


def _shape_of_concat(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    shape = _unchanged_axes(scope_lengths, node, [int_attribute(node, "axis", 0)])
    if shape is None:
        return None
    axis = int_attribute(node, "axis", 0) % len(shape)
    shapes = [scope_lengths.shape(operand) or () for operand in node.input]
    known = [operand[axis].known if axis < len(operand) else None for operand in shapes]
    numbers = [length for length in known if length is not None]
    if len(numbers) == len(node.input):
        shape[axis] = Length(sum(numbers))
    return shape


def _shape_of_split(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    shape = _unchanged_axes(scope_lengths, node, [int_attribute(node, "axis", 0)])
    sizes = scope_lengths.known_integers(node, 1, "split") or []
    if shape is not None and len(sizes) == len(node.output):
        axis = int_attribute(node, "axis", 0) % len(shape)
        shape[axis] = Length(sizes[list(node.output).index(name)])
    return shape


_SHAPE_RULES: Mapping[str, _Rule] = {
    "Add": _broadcast_shape,
    "Cast": _same_shape,
    "Concat": _shape_of_concat,
    "Div": _broadcast_shape,
    "Gather": _shape_of_gather,
    "Identity": _same_shape,
    "Mul": _broadcast_shape,
    "Reshape": _shape_of_reshape,
    "Slice": _shape_of_slice,
    "Softmax": _same_shape,
    "Split": _shape_of_split,
    "Squeeze": _shape_of_squeeze,
    "Sub": _broadcast_shape,
    "Transpose": _shape_of_transpose,
    "Unsqueeze": _shape_of_unsqueeze,
}


# Rules for the elements of a shape


def _same_elements(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    return scope_lengths.elements(node.input[0])


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


def _elements_of_gather(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    elements = scope_lengths.elements(node.input[0])
    indices = scope_lengths.known_integers(node, 1)
    if elements is None or indices is None:
        return None
    if not all(-len(elements) <= index < len(elements) for index in indices):
        return None
    return [elements[index] for index in indices]


def _elements_of_slice(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    elements = scope_lengths.elements(node.input[0])
    starts = scope_lengths.known_integers(node, 1)
    ends = scope_lengths.known_integers(node, 2)
    steps = scope_lengths.known_integers(node, 4) if len(node.input) > 4 else [1]
    if elements is None or starts is None or ends is None or steps is None:
        return None
    if not (len(starts) == len(ends) == len(steps) == 1) or steps[0] == 0:
        return None
    if steps[0] < 0 and ends[0] in OPEN_ENDS:
        return elements[starts[0] :: steps[0]]
    return elements[starts[0] : ends[0] : steps[0]]


def _elements_of_concat(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    joined: list[Length | None] = []
    for operand in node.input:
        elements = scope_lengths.elements(operand)
        if elements is None:
            return None
        joined += elements
    return joined


def _elements_of_mul(
    scope_lengths: ScopeLengths, node: onnx.NodeProto, name: str
) -> PartialLengths | None:
    first, second = (scope_lengths.elements(operand) for operand in node.input)
    if first is None or second is None or len(first) != len(second):
        return None
    return [None if a is None or b is None else a * b for a, b in zip(first, second, strict=True)]


_ELEMENT_RULES: Mapping[str, _Rule] = {
    "Cast": _elements_of_cast,
    "Concat": _elements_of_concat,
    "Gather": _elements_of_gather,
    "Identity": _same_elements,
    "Mul": _elements_of_mul,
    "Reshape": _same_elements,
    "Shape": _elements_of_shape,
    "Slice": _elements_of_slice,
    "Squeeze": _same_elements,
    "Unsqueeze": _same_elements,
}
#: The operators that have rules.
OPERATORS = _SHAPE_RULES.keys() | _ELEMENT_RULES.keys()
