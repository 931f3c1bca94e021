"""Trace the data of a level back, through nodes that rearrange, cut or scale them.

A :class:`LevelTracer` goes back one node at a time. :data:`LEVEL_RULES` has one rule for each
operator that it can pass. The rule gets the output of the node as a :class:`TracedValue`, and
returns the input that has the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...graph.scope import NO_MAKER, has_attribute_references
from ...graph.use_def import UseDef
from ...inference.lengths import ScopeLengths, int_attribute, permutation
from ..helper_nodes import is_shape_check
from .axes import Axes, Factor, are_same, regroup


@dataclass(frozen=True)
class LevelIndex:
    """A level by its index among ``count`` levels, as a Gather or a Split takes it."""

    index: int
    count: int


@dataclass(frozen=True)
class LevelStart:
    """A level by its first pixel or point, as a Slice takes it."""

    start: int


class TracedValue(NamedTuple):
    """A value that has the images, grids or weights of a level.

    Attributes:
        name: the name of the value.
        axes: its axes.
        level_axis: the factors of the axis of pixels or points. It covers one level at first; after
            a Slice or a Split was traced, it covers all levels of this value.
        level: which of the levels in this value is meant, or None if it has only one.
        scaling_steps: the number of traced steps of 2 x - 1, which scales a location to a grid.
    """

    name: str
    axes: Axes
    level_axis: list[Factor]
    level: LevelIndex | LevelStart | None = None
    scaling_steps: int = 0


#: A rule gets the index of a node and its output, and returns its input. It returns None if the
#: node does more to the data than the rule allows.
LevelRule = Callable[[ScopeLengths, int, TracedValue], TracedValue | None]


class LevelTracer:
    """Traces values of one scope.

    Args:
        lengths: the lengths of the values.

    Attributes:
        nodes: the indices of the nodes that :meth:`sources` passed, and of those that callers add.
    """

    def __init__(self, lengths: ScopeLengths) -> None:
        self._lengths = lengths
        self._use_def = lengths.use_def
        self.nodes: set[int] = set()

    def source(self, value: TracedValue, rules: Mapping[str, LevelRule]) -> TracedValue | None:
        """Return the value that ``value`` is computed from, or None if no rule applies."""
        index = self._use_def.makers.get(value.name)
        if index is None or not self._use_def.is_op(index, rules):
            return None
        if has_attribute_references(self._use_def.nodes[index]):
            return None
        return rules[self._use_def.scope.op_types[index]](self._lengths, index, value)

    def sources(self, value: TracedValue) -> Iterator[TracedValue]:
        """Yield ``value`` and the values that it is computed from, nearest first.

        The nodes between these values are added to ``nodes``.
        """
        traced = value
        yield traced
        while (source := self.source(traced, LEVEL_RULES)) is not None:
            self.nodes.add(self._use_def.makers[traced.name])
            traced = source
            yield traced


def _rearranged_input(use_def: UseDef, index: int) -> str | None:
    """Return the input of a node that rearranges its input.

    Return None if the input comes from the node itself, as in an invalid model.
    """
    name = use_def.scope.inputs[index][0]
    return name if use_def.makers.get(name, NO_MAKER) < index else None


def _level_before_transpose(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    name = _rearranged_input(lengths.use_def, index)
    if name is None:
        return None
    order = permutation(lengths.use_def.nodes[index], len(value.axes))
    axes = [value.axes[order.index(axis)] for axis in range(len(order))]
    return value._replace(name=name, axes=axes)


def _level_before_reshape(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    """The rule for all operators that keep the order of the elements."""
    name = _rearranged_input(lengths.use_def, index)
    if name is None or _has_checked_shape(lengths.use_def, index):
        return None
    axes = regroup(value.axes, lengths.shape(name))
    return None if axes is None else value._replace(name=name, axes=axes)


def _has_checked_shape(use_def: UseDef, index: int) -> bool:
    """Whether the node is a Reshape to a shape that a check returns. The check must stay."""
    inputs = use_def.scope.inputs[index]
    maker = use_def.makers.get(inputs[1]) if len(inputs) > 1 else None
    return maker is not None and is_shape_check(use_def.nodes[maker])


def _level_before_gather(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    """The rule for a Gather that takes one level along an axis of all levels."""
    node = lengths.use_def.nodes[index]
    shape = lengths.shape(node.input[0])
    if value.level is not None or not shape or len(shape) != len(value.axes) + 1:
        return None
    index_value = lengths.use_def.scope.constant_value(node.input[1])
    axis = int_attribute(node, "axis", 0) % len(shape)
    count = shape[axis].known
    if index_value is None or index_value.ndim > 0 or not count:
        return None
    axes = list(value.axes)
    axes.insert(axis, [Factor(shape[axis])])
    return value._replace(
        name=node.input[0],
        axes=axes,
        level=LevelIndex(int(index_value) % count, count),
    )


def _level_before_split(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    node = lengths.use_def.nodes[index]
    level = LevelIndex(list(node.output).index(value.name), len(node.output))
    return _level_among_all(lengths, index, value, int_attribute(node, "axis", 0), level)


def _level_before_slice(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    node = lengths.use_def.nodes[index]
    axes = lengths.known_integers(node, 3)
    starts = lengths.known_integers(node, 1)
    steps = lengths.known_integers(node, 4) if len(node.input) > 4 else [1]
    if not axes or not starts or starts[0] < 0 or len(axes) != 1 or steps != [1]:
        return None
    return _level_among_all(lengths, index, value, axes[0], LevelStart(starts[0]))


def _level_among_all(
    lengths: ScopeLengths,
    index: int,
    value: TracedValue,
    axis: int,
    level: LevelIndex | LevelStart,
) -> TracedValue | None:
    """Return the input of a node that takes one level out of the ``axis`` of all levels."""
    name = lengths.use_def.nodes[index].input[0]
    shape = lengths.shape(name)
    if value.level is not None or not shape:
        return None
    axis %= len(value.axes)
    if not are_same(value.axes[axis], value.level_axis):
        return None
    level_axis = [Factor(shape[axis])]
    axes = [*value.axes[:axis], level_axis, *value.axes[axis + 1 :]]
    return value._replace(name=name, axes=axes, level_axis=level_axis, level=level)


def _level_before_subtraction(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    """The rule for the second step of 2 x - 1."""
    if value.scaling_steps != 0:
        return None
    node = lengths.use_def.nodes[index]
    if not _is_number(lengths, node.input[1], 1, value):
        return None
    return value._replace(name=node.input[0], scaling_steps=1)


def _level_before_doubling(
    lengths: ScopeLengths, index: int, value: TracedValue
) -> TracedValue | None:
    """The rule for the first step of 2 x - 1."""
    if value.scaling_steps != 1:
        return None
    node = lengths.use_def.nodes[index]
    for operand, factor in ((0, 1), (1, 0)):
        if _is_number(lengths, node.input[factor], 2, value):
            return value._replace(name=node.input[operand], scaling_steps=2)
    return None


def _is_number(lengths: ScopeLengths, name: str, number: int, value: TracedValue) -> bool:
    """Whether ``name`` is a constant equal to ``number`` that can be broadcast to ``value``."""
    constant = lengths.use_def.scope.constant_value(name)
    if constant is None or constant.size != 1 or constant.ndim > len(value.axes):
        return False
    return bool(constant.item() == number)


#: The rules of the operators that only rearrange a value.
VIEW_RULES: Mapping[str, LevelRule] = {
    "Flatten": _level_before_reshape,
    "Identity": _level_before_reshape,
    "Reshape": _level_before_reshape,
    "Squeeze": _level_before_reshape,
    "Transpose": _level_before_transpose,
    "Unsqueeze": _level_before_reshape,
}
#: The rules of all operators.
LEVEL_RULES: Mapping[str, LevelRule] = {
    **VIEW_RULES,
    "Gather": _level_before_gather,
    "Mul": _level_before_doubling,
    "Slice": _level_before_slice,
    "Split": _level_before_split,
    "Sub": _level_before_subtraction,
}
