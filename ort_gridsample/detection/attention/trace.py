"""Trace the data of a level back, through nodes that rearrange, cut or scale them.

A :class:`LevelTracer` goes back one node at a time. :data:`LEVEL_RULES` has one rule for each
operator that it can pass. The rule gets the output of the node as a :class:`TracedValue`, and
returns the input that has the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ...graph.run_errors import is_shape_check
from ...graph.scope import NO_MAKER
from ...graph.use_def import UseDef
from ...inference.axes import Axes, Factors, are_same, new_axes
from ...inference.lengths import ScopeLengths
from ...inference.views import LAYOUT_OPERATORS, Part, View


class TracedValue(NamedTuple):
    """A value that has the images, grids or weights of a level.

    Attributes:
        name: the name of the value.
        axes: its axes.
        level_axis: the factors of the axis of pixels or points. It covers one level at first; after
            a Slice or a Split was traced, it covers all levels of this value.
        level: the part of ``level_axis``, or of an axis of levels, that is meant; None if the value
            has only one level.
        scaling_steps: the number of traced steps of 2 x - 1, which scales a location to a grid.
    """

    name: str
    axes: Axes
    level_axis: Factors
    level: Part | None = None
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

    def source(self, value: TracedValue, op_types: Collection[str]) -> TracedValue | None:
        """Return the value that ``value`` is computed from.

        Return None if it is none of the operators ``op_types`` that computes ``value``, or if the
        rule of the operator does not apply.
        """
        index = self._use_def.makers.get(value.name)
        if index is None or not self._use_def.is_op(index, op_types):
            return None
        return LEVEL_RULES[self._use_def.scope.op_types[index]](self._lengths, index, value)

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


def _level_before_view(lengths: ScopeLengths, index: int, value: TracedValue) -> TracedValue | None:
    """The rule for layout operators: they rearrange the elements, or take one level out of all."""
    use_def = lengths.use_def
    name = use_def.scope.inputs[index][0]
    if use_def.makers.get(name, NO_MAKER) >= index:  # in an invalid model, it may come from itself
        return None
    view = lengths.view(value.name)
    if view is None or _has_checked_shape(use_def, index):
        return None
    if view.parts:
        return _level_among_all(view, value._replace(name=name))
    axes = view.axes_before(value.axes)
    return None if axes is None else value._replace(name=name, axes=axes)


def _has_checked_shape(use_def: UseDef, index: int) -> bool:
    """Whether the node is a Reshape to a shape that a check returns. The check must stay."""
    inputs = use_def.scope.inputs[index]
    maker = use_def.makers.get(inputs[1]) if len(inputs) > 1 else None
    return maker is not None and is_shape_check(use_def.nodes[maker])


def _level_among_all(view: View, value: TracedValue) -> TracedValue | None:
    """Return the input of a node that takes one level out of an axis of all levels.

    Args:
        value: its output, with the name of its input.
    """
    if value.level is not None or view.input_shape is None or len(view.parts) != 1:
        return None
    ((axis, part),) = view.parts.items()
    (all_levels,) = new_axes([view.input_shape[axis]])
    if len(value.axes) == len(view.input_shape) - 1:  # the node takes an index
        if part.section is None:
            return None
        axes = (*value.axes[:axis], all_levels, *value.axes[axis:])
        # Its index is that of a level, and not that of a pixel or point.
        return value._replace(axes=axes, level=replace(part, start=None))
    if len(value.axes) != len(view.input_shape) or part.step != 1 or part.listed is not None:
        return None
    if part.start is None and part.section is None:
        return None
    if not are_same(value.axes[axis], value.level_axis):
        return None
    axes = (*value.axes[:axis], all_levels, *value.axes[axis + 1 :])
    return value._replace(axes=axes, level_axis=all_levels, level=part)


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


#: Operator -> its rule.
LEVEL_RULES: Mapping[str, LevelRule] = {
    **dict.fromkeys(LAYOUT_OPERATORS, _level_before_view),
    "Mul": _level_before_doubling,
    "Sub": _level_before_subtraction,
}
