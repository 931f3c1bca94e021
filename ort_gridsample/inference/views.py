"""What layout operators do to the axes of a value.

A layout operator computes nothing: each element of its output is an element of an input. A
:class:`View` is the map from the axes of the output to those of the input. :data:`LAYOUT_OPERATORS`
has a rule for each operator, which makes the view of a node from the lengths of its inputs. A
length may be a number or symbolic.

Lengths of values, the elements of shapes, the coordinates of grids and the operands of attention
are all traced by views. No other module interprets these operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple, Protocol

import onnx

from ..graph.scope import attribute_named, has_attribute_references
from .axes import Axes, Factor, Factors, are_same, merged, regroup, whole_axes
from .symbolic import ONE, Length, PartialLengths, known_numbers, product_of

#: onnxruntime reads these ends of a Slice as the end in the direction of the step.
OPEN_ENDS = frozenset({(1 << 31) - 1, (1 << 63) - 1})


class Lengths(Protocol):
    """What is known of the values of a scope."""

    def shape(self, name: str) -> Sequence[Length] | None:
        """Return the lengths of the axes of a value, or None if its rank is unknown."""

    def elements(self, name: str) -> PartialLengths | None:
        """Return the elements of an integer tensor of at most one axis, or None."""

    def inferred_shape(self, name: str) -> Sequence[Length] | None:
        """Return the lengths of the axes of a value as inference states them.

        None if it does not state the rank. An unknown length is a factor that no other value has.
        """


@dataclass(frozen=True)
class Part:
    """The indices that a node takes of an axis of its input.

    They are ``start``, ``start + step``, …, unless they are listed.

    Attributes:
        start: the first index, or None if it is unknown.
        length: the number of indices.
        step: the difference of an index and the one before it.
        listed: the indices, if they are no such sequence.
        section: if the axis consists of sections of one length, or of those that a Split returns:
            the index of this one, and their number.
    """

    start: int | None
    length: Length
    step: int = 1
    listed: tuple[int, ...] | None = None
    section: tuple[int, int] | None = None

    def index(self, position: int) -> int | None:
        """Return one of the indices, or None if it is unknown or does not exist."""
        count = self.length.known
        if count is not None and not 0 <= position < count:
            return None
        if self.listed is not None:
            return self.listed[position]
        return None if self.start is None else self.start + position * self.step

    def indices(self) -> list[int] | None:
        """Return all indices, or None if one of them is unknown."""
        indices = [self.index(position) for position in range(self.length.known or 0)]
        known = [index for index in indices if index is not None]
        is_complete = self.length.known is not None and len(known) == len(indices)
        return known if is_complete else None


@dataclass(frozen=True)
class Source:
    """Where an input has what the output has at an index of an axis.

    Attributes:
        input: the index of the input.
        axis: the axis of the input, or None if the input has no such axis.
        index: the index on that axis.
    """

    input: int
    axis: int | None
    index: int = 0


class _ViewFields(NamedTuple):
    """The attributes of a :class:`View`.

    Attributes:
        shape: the lengths of the output's axes.
        input_shape: the lengths of the input's axes, or None if its rank is unknown.
        mapped_axes: the :attr:`axes`, or None if they follow from the shapes, because the order of
            the elements is kept.
        parts: the axes of the input of which the node takes a part. It takes all other axes whole.
            A part that is no axis of the output has one index.
        keeps_order: whether the output has the elements of the input in their order.
        may_fail: whether the node may fail because of the lengths of its inputs.
        joined_axis: the axis on which a Concat of several inputs joins them. For its other axes,
            the map is that of each input.
        joined_lengths: the lengths of the inputs on this axis; None if they are unknown.
    """

    shape: tuple[Length, ...]
    input_shape: tuple[Length, ...] | None
    mapped_axes: tuple[Factors | None, ...] | None
    parts: Mapping[int, Part] = MappingProxyType({})
    keeps_order: bool = False
    may_fail: bool = False
    joined_axis: int | None = None
    joined_lengths: PartialLengths = ()


# A tuple is made in a fourth of the time of a frozen dataclass. Cached properties need a __dict__.
class View(_ViewFields):
    """The map from the axes of a node's output to the axes of its input.

    A node takes a part of some axes, and rearranges the elements that it took.
    """

    @cached_property
    def axes(self) -> tuple[Factors | None, ...]:
        """For each axis of the output the digits of the indices on the taken axes of the input.

        :class:`.Factor` names these axes by their indices. An axis without digits is new, or
        repeats an axis of length 1. None: the digits are unknown.
        """
        if self.mapped_axes is not None:
            return self.mapped_axes
        if self.input_shape is None:
            return (None,) * len(self.shape)
        if self.shape == self.input_shape:
            return whole_axes(self.shape)
        return regroup(whole_axes(self.input_shape), self.shape) or (None,) * len(self.shape)

    @cached_property
    def same_axes(self) -> tuple[int | None, ...] | None:
        """The axis of the input that each axis of the output is, or None for one of length 1.

        None as a whole: the axes of the output are others, such as merged ones.
        """
        if self.parts or self.input_shape is None or self.joined_axis is not None:
            return None
        same: list[int | None] = []
        for factors in self.axes:
            if factors is None:
                return None
            axis = factors[0].axis if factors else None
            if isinstance(axis, int) and self._is_whole(factors, axis):
                same.append(axis)
            elif not merged(factors):
                same.append(None)
            else:
                return None
        unused = {*range(len(self.input_shape))} - {*same}
        return tuple(same) if all(self.input_shape[axis] == ONE for axis in unused) else None

    def _is_whole(self, factors: Factors | None, axis: int) -> bool:
        """Whether ``factors`` are the whole ``axis`` of the input."""
        assert self.input_shape is not None  # it has the axis
        length = self.input_shape[axis]
        if factors == ((length, axis, ONE),):  # a Factor is such a tuple, which is made faster
            return True
        return factors is not None and are_same(factors, (Factor(length, axis),))

    def _is_same(self, axis: int, input_axis: int) -> bool:
        """Whether an axis of the output is one of the input, and not a repetition of it."""
        assert self.input_shape is not None  # it has the axis
        is_as_long = self.shape[axis] == self.input_shape[input_axis]
        return is_as_long and self._is_whole(self.axes[axis], input_axis)

    def axes_before(self, axes: Sequence[Factors]) -> Axes | None:
        """Return the axes of the input, if ``axes`` are those of the output.

        Return None if the node does more than to rearrange the elements, or if the axes of the
        input do not follow.
        """
        if len(axes) != len(self.shape):
            return None
        if self.mapped_axes is None and self.shape != self.input_shape:
            return regroup(axes, self.input_shape)
        if self.same_axes is None or self.input_shape is None:
            return regroup(axes, self.input_shape) if self.keeps_order else None
        sources: list[Factors] = [()] * len(self.input_shape)
        for factors, axis in zip(axes, self.same_axes, strict=True):
            if axis is not None:
                sources[axis] = factors
            elif merged(factors):
                return None
        return tuple(sources)

    def axes_after(self, axes: Sequence[Factors]) -> Axes | None:
        """Return the axes of the output, if ``axes`` are those of the input.

        Return None as :meth:`axes_before`.
        """
        if self.input_shape is None:
            in_order = self.keeps_order and self.mapped_axes is None
            return regroup(axes, self.shape) if in_order else None
        if len(axes) != len(self.input_shape):
            return None
        if self.mapped_axes is None and self.shape != self.input_shape:
            return regroup(axes, self.shape)
        if self.same_axes is None:
            return regroup(axes, self.shape) if self.keeps_order else None
        if any(merged(axes[axis]) for axis in {*range(len(axes))} - {*self.same_axes}):
            return None
        is_repeated = [length != ONE for length in self.shape]
        if any(axis is None and is_repeated[i] for i, axis in enumerate(self.same_axes)):
            return None
        return tuple(() if axis is None else axes[axis] for axis in self.same_axes)

    def source_of(self, axis: int | None, index: int = 0) -> Source | None:
        """Return where an input has what the output has at an index of an axis.

        All other axes must be those of the input, whole and in their order.

        Args:
            axis: an axis of the output. None: return where the output comes from as a whole. It may
                be at one index of an axis of the input.
            index: the index on that axis.
        """
        if self.input_shape is None:
            return None
        if self.joined_axis is not None:
            return self._joined_source(axis, index)
        others = [i for i in range(len(self.axes)) if i != axis]
        input_rank = len(self.input_shape)
        for input_axis in self._candidate_axes(axis):
            n_input_axes = input_rank if input_axis is None else input_rank - 1
            if n_input_axes != len(others) or any(i != input_axis for i in self.parts):
                continue
            input_axes = [i for i in range(input_rank) if i != input_axis]
            if not all(map(self._is_same, others, input_axes)):
                continue
            source = self._index_on(axis, index, input_axis)
            if source is not None:
                return source
        return None

    def _candidate_axes(self, axis: int | None) -> Iterator[int | None]:
        """Yield the axes of the input that an axis of the output may be, likely ones first."""
        assert self.input_shape is not None  # source_of() returns None otherwise
        factors = None if axis is None else self.axes[axis]
        for factor in factors or ():
            if isinstance(factor.axis, int):
                yield factor.axis
        yield from self.parts
        used = {factor.axis for factors in self.axes if factors for factor in factors}
        yield from (i for i in range(len(self.input_shape)) if i not in used)
        yield None

    def _index_on(self, axis: int | None, index: int, input_axis: int | None) -> Source | None:
        """Return the source of an index if ``axis`` is ``input_axis``, a part of it or an index."""
        factors = () if axis is None else self.axes[axis]
        if factors is None:
            return None
        if input_axis is None:
            return Source(0, None) if not merged(factors) else None
        assert self.input_shape is not None  # it has the axis
        part = self.parts.get(input_axis, Part(0, self.input_shape[input_axis]))
        if not merged(factors):
            position = 0
        elif are_same(factors, (Factor(part.length, input_axis),)):
            position = index
        else:
            return None
        if not factors and part.length != ONE:
            return None
        input_index = part.index(position)
        return None if input_index is None else Source(0, input_axis, input_index)

    def _joined_source(self, axis: int | None, index: int) -> Source | None:
        """Return which input of a Concat has an index of the joined axis."""
        if axis != self.joined_axis:
            return None
        for input_index, length in enumerate(self.joined_lengths):
            if length is None or length.known is None:
                return None
            if index < length.known:
                return Source(input_index, axis, index)
            index -= length.known
        return None

    def elements(self, rows: Sequence[PartialLengths]) -> PartialLengths | None:
        """Return the elements of the output, which has at most one axis.

        Args:
            rows: the elements of each input that the node rearranges.
        """
        if self.joined_axis is not None:
            return [element for row in rows for element in row]
        (row,) = rows
        for part in self.parts.values():
            indices = part.indices()
            if indices is None or any(not 0 <= index < len(row) for index in indices):
                return None
            row = [row[index] for index in indices]
        count = product_of(self.shape).known
        if count is None:
            return None
        if len(row) == 1:
            return [row[0]] * count
        return row if len(row) == count else None


class LayoutOperator(NamedTuple):
    """How a layout operator is interpreted.

    Attributes:
        rule: makes the view of a node.
        rearranges: whether the output has exactly the elements of the first input.
    """

    rule: Callable[[_Node], View | None]
    rearranges: bool = False


class _Node(NamedTuple):
    """A node whose view is made.

    Attributes:
        proto: the node.
        output: the name of the output that is meant.
        lengths: what is known of the values that the node reads.
    """

    proto: onnx.NodeProto
    output: str
    lengths: Lengths

    @property
    def shape(self) -> tuple[Length, ...] | None:
        """The lengths of the first input, or None if its rank is unknown."""
        shape = self.lengths.shape(self.proto.input[0])
        return None if shape is None else tuple(shape)

    def unknown(self, axis: int) -> Length:
        """Return the length of an axis of the output of which nothing is known."""
        return Length(unknown=((self.output, axis),))

    def has(self, input_index: int, attribute: str) -> bool:
        """Whether the node has an operand: an input, or an attribute in older opsets."""
        inputs = self.proto.input
        if len(inputs) > input_index and inputs[input_index]:
            return True
        return attribute_named(self.proto, attribute) is not None

    def integers(self, input_index: int, attribute: str) -> list[int] | None:
        """Return the integers of an operand, or None if one of them is unknown."""
        return known_integers(self.lengths, self.proto, input_index, attribute)

    def axis(self, rank: int, default: int) -> int | None:
        """Return the attribute ``axis`` as an index; None if a value of ``rank`` axes lacks it."""
        return _index(int_attribute(self.proto, "axis", default), rank)


def view_of(node: onnx.NodeProto, output: str, lengths: Lengths) -> View | None:
    """Return what a layout operator does to axes.

    Args:
        node: a node of one of :data:`LAYOUT_OPERATORS`.
        output: the name of one of its outputs.
        lengths: what is known of its inputs.

    Returns:
        The view, or None if the rank of the output is unknown, or if the node is invalid.
    """
    if has_attribute_references(node):
        return None
    return LAYOUT_OPERATORS[node.op_type].rule(_Node(node, output, lengths))


def known_integers(
    lengths: Lengths, node: onnx.NodeProto, input_index: int, attribute: str = ""
) -> list[int] | None:
    """Return the integers of an operand of ``node``.

    Args:
        lengths: what is known of the values that the node reads.
        node: the node, with its attributes as in the scope's opset.
        input_index: the index of the input in ``node.input``.
        attribute: the attribute that holds the integers in older opsets, where the node has no such
            input.

    Returns:
        The integers; None if at least one of them is unknown, or if there is no such operand.
    """
    if len(node.input) > input_index and node.input[input_index]:
        return known_numbers(lengths.elements(node.input[input_index]))
    values = attribute_named(node, attribute)
    return None if values is None or values.ref_attr_name else list(values.ints)


def int_attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """Return an integer attribute of ``node``, or its default."""
    attribute = attribute_named(node, name)
    return default if attribute is None else int(attribute.i)


def _index(index: int, length: int) -> int | None:
    """Return an index from 0 to ``length`` - 1; negative ones count from the end."""
    return index % length if -length <= index < length else None


def _indices(indices: Sequence[int], length: int) -> list[int] | None:
    """Return indices as :func:`_index`; None if one does not exist or is listed twice."""
    normalized = [index % length for index in indices if -length <= index < length]
    if len(normalized) < len(indices) or len({*normalized}) < len(indices):
        return None
    return normalized


def _view_of_identity(node: _Node) -> View | None:
    shape = node.shape
    return None if shape is None else View(shape, shape, None, keeps_order=True)


def _view_of_transpose(node: _Node) -> View | None:
    shape = node.shape
    if shape is None:
        return None
    attribute = attribute_named(node.proto, "perm")
    perm = range(len(shape))[::-1] if attribute is None else list(attribute.ints)
    if sorted(perm) != [*range(len(shape))]:
        return None
    axes = whole_axes(shape)
    return View(tuple(shape[axis] for axis in perm), shape, tuple(axes[axis] for axis in perm))


def _view_of_reshape(node: _Node) -> View | None:
    """Return the view of a Reshape, in which 0 copies a length and -1 follows from the others."""
    input_shape = node.shape
    inferred = node.lengths.inferred_shape(node.output)
    if inferred is not None and not any(length.unknown for length in inferred):
        return _in_order(node, input_shape, inferred)
    target = _reshape_target(node)
    if target is None:
        return None
    shape: list[Length | None] = list(target)
    if not int_attribute(node.proto, "allowzero", 0):
        for axis, length in enumerate(shape):
            if length == Length(0):
                has_axis = input_shape is not None and axis < len(input_shape)
                shape[axis] = input_shape[axis] if input_shape and has_axis else None
    for axis, length in enumerate(shape):
        if length == Length(-1):
            shape[axis] = _remaining_length(input_shape, [*shape[:axis], *shape[axis + 1 :]])
    return _in_order(node, input_shape, shape)


def _reshape_target(node: _Node) -> PartialLengths | None:
    """Return the shape that a Reshape reads, which is an attribute before opset 5."""
    if len(node.proto.input) > 1:
        return node.lengths.elements(node.proto.input[1])
    attribute = attribute_named(node.proto, "shape")
    return None if attribute is None else [Length(length) for length in attribute.ints]


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


def _in_order(node: _Node, input_shape: tuple[Length, ...] | None, lengths: PartialLengths) -> View:
    """Return the view of a node whose output has these lengths, and the elements in their order."""
    shape = tuple(
        length if length is not None and length.is_tractable else node.unknown(axis)
        for axis, length in enumerate(lengths)
    )
    may_fail = input_shape is None or product_of(shape) != product_of(input_shape)
    return View(shape, input_shape, None, keeps_order=True, may_fail=may_fail)


def _view_of_flatten(node: _Node) -> View | None:
    shape = node.shape
    if shape is None:
        return None
    axis = int_attribute(node.proto, "axis", 1)
    if not -len(shape) <= axis <= len(shape):
        return None
    if axis < 0:
        axis += len(shape)
    return _in_order(node, shape, [product_of(shape[:axis]), product_of(shape[axis:])])


def _view_of_unsqueeze(node: _Node) -> View | None:
    shape = node.shape
    axes = node.integers(1, "axes")
    if shape is None or axes is None:
        return None
    rank = len(shape) + len(axes)
    new = _indices(axes, rank)
    if new is None:
        return None
    output_axes: list[Factors] = [*whole_axes(shape)]
    lengths = [*shape]
    for axis in sorted(new):
        output_axes.insert(axis, ())
        lengths.insert(axis, ONE)
    return View(tuple(lengths), shape, tuple(output_axes), keeps_order=True)


def _view_of_squeeze(node: _Node) -> View | None:
    """Return the view of a Squeeze, which drops all axes of length 1 if it lists none."""
    shape = node.shape
    if shape is None:
        return None
    axes = node.integers(1, "axes")
    if not axes:
        if axes is None and node.has(1, "axes"):
            return None
        lengths = known_numbers(shape)
        if lengths is None:
            return None
        axes = [axis for axis, length in enumerate(lengths) if length == 1]
    dropped = _indices(axes, len(shape))
    if dropped is None:
        return None
    kept = [axis for axis in range(len(shape)) if axis not in dropped]
    whole = whole_axes(shape)
    return View(
        tuple(shape[axis] for axis in kept),
        shape,
        tuple(whole[axis] for axis in kept),
        keeps_order=True,
        may_fail=any(shape[axis] != ONE for axis in dropped),
    )


def _with_parts(shape: tuple[Length, ...], parts: Mapping[int, Part]) -> View:
    """Return the view of a node that takes parts of axes, and keeps all axes."""
    cut = {axis: part for axis, part in parts.items() if not _is_all(part, shape[axis])}
    lengths = [cut[axis].length if axis in cut else length for axis, length in enumerate(shape)]
    return View(tuple(lengths), shape, whole_axes(lengths), cut, keeps_order=not cut)


def _is_all(part: Part, length: Length) -> bool:
    """Whether ``part`` has all indices of an axis in their order."""
    is_sequence = part.listed is None and part.start == 0 and part.step == 1
    return is_sequence and part.length == length


def _view_of_slice(node: _Node) -> View | None:
    shape = node.shape
    if shape is None:
        return None
    starts = node.integers(1, "starts")
    ends = node.integers(2, "ends")
    axes = node.integers(3, "axes")
    if axes is None and not node.has(3, "axes"):
        n_axes = len(starts or ends or shape)
        axes = None if starts is None and ends is None and n_axes > 1 else [*range(n_axes)]
    steps = node.integers(4, "steps")
    has_unknown_steps = steps is None and node.has(4, "steps")
    taken = None if axes is None else _indices(axes, len(shape))
    if taken is None:
        return None
    if steps is None:
        steps = [1] * len(taken)
    operands = [operand for operand in (starts, ends, steps) if operand is not None]
    if any(len(operand) != len(taken) for operand in operands) or 0 in steps:
        return None
    parts = {}
    for position, axis in enumerate(taken):
        start = None if starts is None else starts[position]
        end = None if ends is None else ends[position]
        step = None if has_unknown_steps else steps[position]
        parts[axis] = _sliced(shape[axis], start, end, step, node.unknown(axis))
    return _with_parts(shape, parts)


def _sliced(
    length: Length, start: int | None, end: int | None, step: int | None, unknown: Length
) -> Part:
    """Return the part of an axis that a Slice takes.

    Args:
        length: the length of the axis.
        start: the first index; None: it is unknown.
        end: the end, also None if it is unknown.
        step: the step, also None if it is unknown.
        unknown: the length of the part if nothing is known of it.
    """
    if start is None or step is None:
        return Part(None, unknown)
    if length.known is not None and end is not None:
        is_open = step < 0 and end in OPEN_ENDS
        indices = range(length.known)[start : None if is_open else end : step]
        return Part(indices.start, Length(len(indices)), indices.step)
    if start == 0 and step == 1 and end in OPEN_ENDS:
        return Part(0, length)
    return Part(start if start >= 0 and step > 0 else None, unknown, step)


def _view_of_split(node: _Node) -> View | None:
    shape = node.shape
    axis = None if shape is None else node.axis(len(shape), 0)
    if shape is None or axis is None:
        return None
    outputs = list(node.proto.output)
    index = outputs.index(node.output)
    section = index, len(outputs)
    sizes = node.integers(1, "split")
    if sizes is None and not node.has(1, "split"):
        sizes = _even_sizes(shape[axis], len(outputs))
        if sizes is None:
            length = shape[axis].divided_by(Length(len(outputs))) or node.unknown(axis)
            return _with_parts(shape, {axis: Part(None if index else 0, length, section=section)})
    if sizes is None or len(sizes) != len(outputs):
        part = Part(None if index else 0, node.unknown(axis), section=section)
    else:
        part = Part(sum(sizes[:index]), Length(sizes[index]), section=section)
    return _with_parts(shape, {axis: part})


def _even_sizes(length: Length, count: int) -> list[int] | None:
    """Return the sizes of ``count`` parts of an axis, of which the last one may be smaller."""
    if length.known is None:
        return None
    size = -(-length.known // count)
    starts = [min(index * size, length.known) for index in range(count + 1)]
    return [end - start for start, end in pairwise(starts)]


def _view_of_gather(node: _Node) -> View | None:
    """Return the view of a Gather, whose indices may have any number of axes."""
    shape = node.shape
    axis = None if shape is None else node.axis(len(shape), 0)
    indices_shape = node.lengths.shape(node.proto.input[1])
    if shape is None or axis is None or indices_shape is None:
        return None
    count = product_of(indices_shape)
    part = _gathered(shape[axis], count, node.integers(1, ""))
    if len(indices_shape) == 1:
        return _with_parts(shape, {axis: part})
    # Each axis of the indices is a digit of their number.
    digits: list[Factor] = []
    inner = ONE
    for length in reversed(indices_shape):
        digits.insert(0, Factor(length, axis, inner))
        inner = inner * length
    whole = whole_axes(shape)
    return View(
        (*shape[:axis], *indices_shape, *shape[axis + 1 :]),
        shape,
        (*whole[:axis], *((digit,) for digit in digits), *whole[axis + 1 :]),
        {axis: part},
    )


def _gathered(length: Length, count: Length, indices: Sequence[int] | None) -> Part:
    """Return the part of an axis that a Gather takes.

    Args:
        length: the length of the axis.
        count: the number of indices.
        indices: the indices, or None if they are unknown.
    """
    number = length.known
    if indices is not None and number is not None:
        indices = _existing(indices, number)
    if indices is None or any(index < 0 for index in indices):
        return Part(None, count)
    if len(indices) == 1:
        section = None if number is None else (indices[0], number)
        return Part(indices[0], count, section=section)
    steps = {after - before for before, after in pairwise(indices)}
    if len(steps) == 1:
        return Part(indices[0], count, steps.pop())
    return Part(None, count, listed=tuple(indices))


def _existing(indices: Sequence[int], length: int) -> list[int] | None:
    """Return indices from 0 to ``length`` - 1, or None if one does not exist."""
    normalized = [_index(index, length) for index in indices]
    known = [index for index in normalized if index is not None]
    return known if len(known) == len(indices) else None


def _view_of_expand(node: _Node) -> View | None:
    """Return the view of an Expand, which repeats axes of length 1 and adds axes in front."""
    input_shape = node.shape
    target = node.lengths.elements(node.proto.input[1])
    if input_shape is None or target is None:
        return None
    rank = max(len(input_shape), len(target))
    n_new = rank - len(input_shape)
    wanted = [ONE] * (rank - len(target)) + list(target)
    shape = []
    axes: list[Factors | None] = []
    for axis, length in enumerate(wanted):
        old = ONE if axis < n_new else input_shape[axis - n_new]
        whole = () if axis < n_new else (Factor(old, axis - n_new),)
        if length in (ONE, old):
            shape.append(old)
            axes.append(whole)
        elif old == ONE:
            shape.append(node.unknown(axis) if length is None else length)
            axes.append(())
        elif old.known is not None:  # the other length is 1 or the same
            shape.append(old)
            axes.append(whole)
        else:  # the axis may be repeated or not
            is_known = length is not None and length.known is not None
            shape.append(length if length is not None and is_known else node.unknown(axis))
            axes.append(None)
    may_fail = any(
        length not in (ONE, old)
        for length, old in zip(wanted[n_new:], input_shape, strict=True)
        if old != ONE
    )
    keeps_order = not may_fail and product_of(shape) == product_of(input_shape)
    return View(tuple(shape), input_shape, tuple(axes), keeps_order=keeps_order, may_fail=may_fail)


def _view_of_concat(node: _Node) -> View | None:
    shape = node.shape
    axis = None if shape is None else node.axis(len(shape), 0)
    if shape is None or axis is None:
        return None
    if len(node.proto.input) == 1:
        return _view_of_identity(node)
    shapes = [node.lengths.shape(name) or () for name in node.proto.input]
    joined = [lengths[axis] if axis < len(lengths) else None for lengths in shapes]
    numbers = known_numbers(joined)
    total = node.unknown(axis) if numbers is None else Length(sum(numbers))
    return View(
        (*shape[:axis], total, *shape[axis + 1 :]),
        shape,
        whole_axes((*shape[:axis], total, *shape[axis + 1 :])),
        may_fail=True,
        joined_axis=axis,
        joined_lengths=tuple(joined),
    )


#: Operator -> how its nodes are interpreted.
LAYOUT_OPERATORS: Mapping[str, LayoutOperator] = {
    "Concat": LayoutOperator(_view_of_concat),
    "Expand": LayoutOperator(_view_of_expand),
    "Flatten": LayoutOperator(_view_of_flatten, rearranges=True),
    "Gather": LayoutOperator(_view_of_gather),
    "Identity": LayoutOperator(_view_of_identity, rearranges=True),
    "Reshape": LayoutOperator(_view_of_reshape, rearranges=True),
    "Slice": LayoutOperator(_view_of_slice),
    "Split": LayoutOperator(_view_of_split),
    "Squeeze": LayoutOperator(_view_of_squeeze, rearranges=True),
    "Transpose": LayoutOperator(_view_of_transpose, rearranges=True),
    "Unsqueeze": LayoutOperator(_view_of_unsqueeze, rearranges=True),
}
#: The operators whose output has exactly the elements of the first input.
REARRANGING = frozenset(name for name, row in LAYOUT_OPERATORS.items() if row.rearranges)
