"""Trace the coordinates of a grid back, through the nodes that compute or rearrange them.

A :class:`CoordinateTracer` starts at a coordinate and goes back from node to node.
:data:`COORDINATE_RULES` has one rule for each operator that it can pass.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import onnx
from onnx import TensorProto

from ..graph.placeholders import is_placeholder
from ..graph.scope import has_attribute_references
from ..inference.lengths import InferredLengths
from ..inference.views import LAYOUT_OPERATORS
from ..kernels.program_codes import MAX_STEPS, OPERATIONS
from ..spec import Dim, Shape, known_lengths
from .programs import Component, Program, ProgramStep, Scalar

_FLOAT = struct.Struct("<f")
#: onnxruntime removes these if the output has the shape of the input.
_REMOVED_BY_RUNTIME = ("Expand", "Flatten", "Reshape")


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
        lengths: the lengths of the scope's values.
        boundary: values that are not traced further.

    Attributes:
        use_def: the use-def chains of the scope.
        grid_rank: the rank of the grid.
        lengths: the lengths that inference states.
        nodes: the indices of the traced nodes.
        changes_grid: whether there are traced nodes besides those that onnxruntime removes.
        unused_concat_inputs: output of a Concat -> its inputs that no coordinate comes from. Only
            Concats whose shapes are unknown are listed; one with such inputs must stay, because it
            checks their shapes in a run.
    """

    def __init__(
        self,
        lengths: InferredLengths,
        grid_rank: int,
        boundary: Collection[str] = (),
    ) -> None:
        self.lengths = lengths
        self.use_def = lengths.use_def
        self.grid_rank = grid_rank
        self.nodes: set[int] = set()
        self.changes_grid = False
        self.unused_concat_inputs: dict[str, set[str]] = {}
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
            is_same = (source.axis, source.index) == (component.axis, component.index)
            if not is_same or not self.use_def.is_op(index, _REMOVED_BY_RUNTIME):
                self.changes_grid = True
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
        op_type = node.op_type
        traced = COORDINATE_RULES[op_type](self, node, component)
        if traced is None and allow_coordinate_operands and op_type in OPERATIONS:
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
        return self.lengths.dims(name)

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

    def scalar(self, name: str, component: Component) -> Scalar | None:
        """Return the single number of the operand ``name`` that applies to ``component``.

        Return None if there is no such number.
        """
        tensor = self.use_def.scope.find_constant(name)
        if tensor is None:
            shape = self.shape(name)
            is_scalar = shape is not None and set(shape) <= {1}
            return name if is_scalar and not self._is_initializer(name) else None
        dims = tensor.dims[:]
        count = 1
        if dims:
            missing_axes = max(0, self.rank(component) - len(dims))
            for axis, length in enumerate(dims, missing_axes):
                if axis == component.axis:
                    count = length
                elif length != 1:
                    return None
        index = 0 if count == 1 else component.index
        if index >= count:
            return None
        if tensor.data_type == TensorProto.FLOAT:
            data = tensor.raw_data
            if len(data) == count * _FLOAT.size and not is_placeholder(tensor):
                number: float = _FLOAT.unpack_from(data, index * _FLOAT.size)[0]
                return number  # in a fifth of the time that an array takes
        values = self.use_def.scope.constant_value(name)
        assert values is not None  # it is a constant
        return float(values.ravel()[index])

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


def _moved(
    tracer: CoordinateTracer, node: onnx.NodeProto, component: Component
) -> TracedNode | None:
    """The rule for layout operators that leave all axes except that of the coordinates alone."""
    input_shape = tracer.shape(node.input[0])
    if input_shape is None or len(input_shape) not in (tracer.grid_rank, tracer.grid_rank - 1):
        return None
    view = tracer.lengths.view(component.name)
    if view is None or len(view.shape) != tracer.rank(component):
        return None
    source = view.source_of(component.axis, component.index)
    if source is None:
        return None
    name = node.input[source.input]
    if view.joined_axis is not None:
        are_known = all(known_lengths(tracer.shape(name)) is not None for name in node.input)
        if component.broadcasts and not are_known:  # the fused op would not check the shapes
            return None
        if not are_known:
            tracer.note_taken_input(node, name)
    elif view.may_fail:
        return None
    return TracedNode(Component(name, source.axis, source.index))


def _step_with_scalar(
    tracer: CoordinateTracer,
    node: onnx.NodeProto,
    component: Component,
) -> TracedNode | None:
    """The rule for arithmetic with a scalar."""
    inputs = node.input
    first, second = inputs[0], inputs[1]
    for name, operand, operand_first in ((first, second, False), (second, first, True)):
        scalar = tracer.scalar(operand, component)
        length = None if scalar is None else tracer.length_along(component, name)
        if scalar is not None and length is not None:
            index = 0 if length == 1 else component.index  # one coordinate is broadcast to all
            step = ProgramStep(node.op_type, scalar, operand_first)
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


#: Operator -> the rule for a node that computes or moves a coordinate.
COORDINATE_RULES: Mapping[str, CoordinateRule] = {
    **dict.fromkeys(LAYOUT_OPERATORS, _moved),
    **dict.fromkeys(OPERATIONS, _step_with_scalar),
}
