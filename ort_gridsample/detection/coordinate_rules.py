"""Trace the coordinates of a grid back, through the nodes that compute or rearrange them.

A :class:`CoordinateTracer` starts at a coordinate and goes back from node to node.
:data:`COORDINATE_RULES` has one rule for each operator that it can pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import onnx
from onnx import numpy_helper

from ..graph.scope import attribute_named, has_attribute_references
from ..graph.use_def import UseDef
from ..inference.types import Inference
from ..inference.views import int_attribute
from ..kernels.program_codes import MAX_STEPS, OPERATIONS
from ..spec import Dim, Shape, known_lengths
from .programs import Component, Program, ProgramStep, Scalar


class TracedNode(NamedTuple):
    """How a node computes a coordinate.

    Attributes:
        source: the coordinate in an input of the node.
        step: the step that the node applies to ``source``. None: the node only moves coordinates.
    """

    source: Component
    step: ProgramStep | None = None


class CoordinateTracer:
    """Traces the coordinates of one grid back, and collects the nodes on the way.

    Args:
        use_def: the use-def chains of the scope.
        inference: the inferred types of the scope's values.
        grid_rank: the rank of the grid.
        boundary: values that are not traced further.

    Attributes:
        use_def: the use-def chains of the scope.
        grid_rank: the rank of the grid.
        nodes: the indices of the traced nodes.
        unused_concat_inputs: output of a Concat -> its inputs that no coordinate comes from. Only
            Concats whose shapes are unknown are listed; one with such inputs must stay, because it
            checks their shapes in a run.
    """

    def __init__(
        self,
        use_def: UseDef,
        inference: Inference,
        grid_rank: int,
        boundary: Collection[str] = (),
    ) -> None:
        self.use_def = use_def
        self.grid_rank = grid_rank
        self.nodes: set[int] = set()
        self.unused_concat_inputs: dict[str, set[str]] = {}
        self._inference = inference
        self._boundary = boundary

    def trace_program(
        self, component: Component, *, allow_coordinate_operands: bool
    ) -> Program | None:
        """Trace a coordinate back, and add the traced nodes to :attr:`nodes`.

        Args:
            component: where the grid has the coordinate.
            allow_coordinate_operands: whether operands may be other coordinates.

        Returns:
            How the coordinate is computed, or None if the length of its axis is unknown.
        """
        steps: list[ProgramStep] = []
        nodes: set[int] = set()
        while component.name not in self._boundary and len(steps) < MAX_STEPS:
            index = self.use_def.makers.get(component.name)
            if index is None or index in nodes:  # in an invalid model, a value may come from itself
                break
            traced = self._trace(
                index, component, allow_coordinate_operands=allow_coordinate_operands
            )
            if traced is None:
                break
            source, step = traced
            if self.length(source) is None:
                break
            if step is not None:
                steps.append(step)
            nodes.add(index)
            component = replace(source, broadcasts=True) if component.broadcasts else source
        self.nodes |= nodes
        length = self.length(component)
        if length is None:
            return None
        return Program(component, length, tuple(reversed(steps)))

    def _trace(
        self,
        index: int,
        component: Component,
        *,
        allow_coordinate_operands: bool,
    ) -> TracedNode | None:
        """Return how a node computes a coordinate, or None if no rule fits."""
        if not self.use_def.is_op(index, COORDINATE_RULES):
            return None
        node = self.use_def.nodes[index]
        if has_attribute_references(node):
            return None
        traced = COORDINATE_RULES[node.op_type](self, node, component)
        if traced is None and allow_coordinate_operands and node.op_type in OPERATIONS:
            return _step_with_coordinate(self, node, component)
        return traced

    def rank(self, component: Component) -> int:
        """Return the rank of the value that contains ``component``."""
        return self.grid_rank if component.axis is not None else self.grid_rank - 1

    def note_taken_input(self, node: onnx.NodeProto, name: str) -> None:
        """Note that a coordinate was taken from an input of a Concat.

        The fused op does not compare the shapes of inputs from which it takes no coordinate. A
        Concat that has such inputs must stay.
        """
        unused = self.unused_concat_inputs.setdefault(node.output[0], set(node.input))
        unused.discard(name)

    def shape(self, name: str) -> Shape | None:
        """Return the inferred shape of ``name``."""
        return self._inference.value_in_all_calls(self.use_def.scope, name).shape

    def length_along(self, component: Component, name: str) -> int | None:
        """Return the length of ``name`` along the axis of ``component``.

        Return None if the length is unknown, or if ``name`` has another rank than the value that
        contains ``component``.
        """
        shape = self.shape(name)
        if shape is None or len(shape) != self.rank(component):
            return None
        length = 1 if component.axis is None else shape[component.axis]
        return length if isinstance(length, int) else None

    def length(self, component: Component) -> int | None:
        """Return the length of the axis of ``component``.

        Return None if it is unknown, or if the index is out of bounds.
        """
        length = self.length_along(component, component.name)
        if length is None or not 0 <= component.index < length:
            return None
        return length

    def integers(self, node: onnx.NodeProto, input_index: int, attribute: str) -> list[int] | None:
        """Return the integers in an input of ``node``, or in the attribute of older opsets.

        Return None if they are unknown.
        """
        if len(node.input) > input_index:
            name = node.input[input_index]
            value = self.use_def.scope.constant_value(name) if name else None
            if value is None or value.dtype.kind != "i":
                return None
            return [int(element) for element in value.ravel()]
        values = attribute_named(node, attribute)
        return None if values is None else list(values.ints)

    def scalar(self, name: str, component: Component) -> Scalar | None:
        """Return the single number of the operand ``name`` that applies to ``component``.

        Return None if there is no such number.
        """
        tensor = self.use_def.scope.load_constant(name)
        if tensor is None:
            shape = self.shape(name)
            is_scalar = shape is not None and set(shape) <= {1}
            return name if is_scalar and not self._is_initializer(name) else None
        missing_axes = self.rank(component) - len(tensor.dims)
        lengths = [1] * missing_axes + list(tensor.dims)
        if any(length != 1 for axis, length in enumerate(lengths) if axis != component.axis):
            return None
        row = numpy_helper.to_array(tensor).ravel()
        index = 0 if len(row) == 1 else component.index
        return float(row[index]) if index < len(row) else None

    def _is_initializer(self, name: str) -> bool:
        """Whether ``name`` is an initializer.

        The values of an initializer are unknown if a session's options replace them. onnxruntime
        nevertheless folds the nodes that read it, and so they cannot be fused.
        """
        scope = self.use_def.scope.defining_scope(name)
        return scope is not None and isinstance(scope.definitions[name], onnx.TensorProto)


#: A rule gets a node and a component of its output. It returns None if it cannot trace the
#: component. No attribute of the node is set by the caller of a function.
CoordinateRule = Callable[[CoordinateTracer, onnx.NodeProto, Component], TracedNode | None]


def _axis(node: onnx.NodeProto, rank: int) -> int:
    """Return the attribute ``axis`` as an index from 0 to ``rank`` - 1."""
    axis = int_attribute(node, "axis", 0)
    return axis + rank if axis < 0 else axis


def _before_identity(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode:
    """The rule for an Identity."""
    return TracedNode(Component(node.input[0], component.axis, component.index))


def _before_transpose(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for a Transpose that moves only the axis of the coordinates."""
    perm = attribute_named(node, "perm")
    if perm is None:  # the default reverses all axes
        return None
    other_axes = list(perm.ints)
    if tracer.rank(component) != len(other_axes):
        return None
    axis = component.axis
    if axis is not None:
        axis = other_axes.pop(axis)
    if other_axes != sorted(other_axes):
        return None
    return TracedNode(Component(node.input[0], axis, component.index))


def _before_unsqueeze(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for an Unsqueeze that adds the axis of the coordinates."""
    axes = tracer.integers(node, 1, "axes")
    if axes is None or component.axis is None:
        return None
    if [axis % tracer.rank(component) for axis in axes] != [component.axis]:
        return None
    return TracedNode(Component(node.input[0], None))


def _before_squeeze(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for a Squeeze that removes the axis of the coordinates."""
    axes = tracer.integers(node, 1, "axes")
    if axes is None or len(axes) != 1 or component.axis is not None:
        return None
    return TracedNode(Component(node.input[0], axes[0] % (tracer.rank(component) + 1)))


def _before_concat(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for a Concat along the axis of the coordinates."""
    if component.axis is None or _axis(node, tracer.rank(component)) != component.axis:
        return None
    are_known = all(known_lengths(tracer.shape(name)) is not None for name in node.input)
    index = component.index
    for name in node.input:
        length = tracer.length_along(component, name)
        if length is None:
            return None
        if component.broadcasts and not are_known:  # the fused op would not check the shapes
            return None
        if index < length:
            if not are_known:
                tracer.note_taken_input(node, name)
            return TracedNode(Component(name, component.axis, index))
        index -= length
    return None


def _before_split(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for a Split of the axis of the coordinates."""
    if component.axis is None or _axis(node, tracer.rank(component)) != component.axis:
        return None
    outputs = list(node.output)
    index = component.index
    for name in outputs[: outputs.index(component.name)]:
        length = tracer.length_along(component, name)
        if length is None:
            return None
        index += length
    return TracedNode(Component(node.input[0], component.axis, index))


def _before_gather(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for a Gather along the axis of the coordinates, at constant indices."""
    indices = tracer.use_def.scope.constant_value(node.input[1])
    shape = tracer.shape(node.input[0])
    if indices is None or shape is None or indices.size <= component.index:
        return None
    axis = _axis(node, len(shape))
    if not 0 <= axis < len(shape) or component.axis not in (None, axis):
        return None
    index = int(indices.ravel()[component.index])
    length = shape[axis]
    if index < 0 and isinstance(length, int):
        index += length
    return TracedNode(Component(node.input[0], axis, index))


def _before_slice(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for a Slice of the axis of the coordinates."""
    length = tracer.length_along(component, node.input[0])
    starts = tracer.integers(node, 1, "starts")
    ends = tracer.integers(node, 2, "ends")
    axes: list[int] | None = [0]
    if len(node.input) > 3 or attribute_named(node, "axes") is not None:
        axes = tracer.integers(node, 3, "axes")
    steps = tracer.integers(node, 4, "steps") if len(node.input) > 4 else [1]
    if component.axis is None or length is None or not (starts and ends and axes and steps):
        return None
    if steps[0] <= 0 or len(starts) != 1 or len(steps) != 1:
        return None
    if [axis % tracer.rank(component) for axis in axes] != [component.axis]:
        return None
    indices = range(length)[starts[0] : ends[0] : steps[0]]
    if component.index >= len(indices):
        return None
    return TracedNode(Component(node.input[0], component.axis, indices[component.index]))


def _step_with_scalar(
    tracer: CoordinateTracer,
    node: onnx.NodeProto,
    component: Component,
) -> TracedNode | None:
    """The rule for arithmetic with a scalar."""
    for scalar_input, coordinate_input in ((1, 0), (0, 1)):
        name = node.input[coordinate_input]
        scalar = tracer.scalar(node.input[scalar_input], component)
        length = tracer.length_along(component, name)
        if scalar is not None and length is not None:
            index = 0 if length == 1 else component.index  # one coordinate is broadcast to all
            step = ProgramStep(node.op_type, scalar, operand_first=scalar_input == 0)
            return TracedNode(Component(name, component.axis, index), step)
    return None


def _step_with_coordinate(
    tracer: CoordinateTracer,
    node: onnx.NodeProto,
    component: Component,
) -> TracedNode | None:
    """The rule for arithmetic with another coordinate.

    It is tried only if the rule of the table does not fit, and traces one operand to its own
    program, whose nodes the tracer adds. Only batches and coordinates may be broadcast.
    """
    shapes = [tracer.shape(name) or () for name in node.input]
    if any(len(shape) != tracer.rank(component) for shape in shapes):
        return None
    pairs = _length_pairs(shapes, component)
    if any(map(_are_known_to_differ, pairs.spatial)):
        return None
    may_broadcast = not all(map(_are_known_to_be_equal, (*pairs.spatial, pairs.batch)))
    broadcasts = component.broadcasts or may_broadcast
    operands = []
    for name, shape in zip(node.input, shapes, strict=True):
        is_single = component.axis is None or shape[component.axis] == 1
        index = 0 if is_single else component.index
        operands.append(Component(name, component.axis, index, broadcasts))
    if any(tracer.length(operand) is None for operand in operands):
        return None
    # Only the source may be combined with further coordinates; the operand's program has scalar
    # operands only.
    maker = tracer.use_def.makers.get(node.input[0])
    operand_first = maker is None or not tracer.use_def.is_op(maker, COORDINATE_RULES)
    operand, source = operands if operand_first else reversed(operands)
    program = tracer.trace_program(operand, allow_coordinate_operands=False)
    if program is None:
        return None
    return TracedNode(source, ProgramStep(node.op_type, program, operand_first))


class _LengthPairs(NamedTuple):
    """The lengths of two operands on each axis except that of the coordinates.

    Attributes:
        batch: the numbers of batches.
        spatial: the lengths on each spatial axis.
    """

    batch: tuple[Dim, ...]
    spatial: list[tuple[Dim, ...]]


def _length_pairs(shapes: Sequence[Shape], component: Component) -> _LengthPairs:
    """Return the lengths of two operands, by axis.

    Args:
        shapes: the shape of each operand, with the rank of the value that contains ``component``.
        component: the coordinate.
    """
    batch_axis = 1 if component.axis == 0 else 0
    pairs = list(zip(*shapes, strict=True))
    other_axes = (component.axis, batch_axis)
    spatial = [pair for axis, pair in enumerate(pairs) if axis not in other_axes]
    return _LengthPairs(pairs[batch_axis], spatial)


def _are_known_to_differ(pair: Sequence[Dim]) -> bool:
    """Whether two lengths are known numbers that differ."""
    first, second = pair
    return isinstance(first, int) and isinstance(second, int) and first != second


def _are_known_to_be_equal(pair: Sequence[Dim]) -> bool:
    """Whether two lengths are the same known number.

    Of two unknown lengths, one may be 1 and be broadcast in a run, even if both have one symbol.
    """
    first, second = pair
    return isinstance(first, int) and first == second


#: Operator of :data:`.program_codes.COORDINATE_OPERATORS` -> the rule for a node that computes a
#: coordinate.
COORDINATE_RULES: Mapping[str, CoordinateRule] = {
    "Concat": _before_concat,
    "Gather": _before_gather,
    "Identity": _before_identity,
    "Slice": _before_slice,
    "Split": _before_split,
    "Squeeze": _before_squeeze,
    "Transpose": _before_transpose,
    "Unsqueeze": _before_unsqueeze,
    **dict.fromkeys(OPERATIONS, _step_with_scalar),
}
