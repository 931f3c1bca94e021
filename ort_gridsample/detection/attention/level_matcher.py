"""Trace the samples of a weighted sum back to the levels of deformable attention."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from ...inference.axes import Factor, Factors, are_same, flatten, known_product
from ...inference.symbolic import ONE, Length, product_of
from ...inference.views import REARRANGING
from ..match import Match
from .layouts import OtherLevel
from .operands import SummedAxes
from .trace import TracedValue
from .weighted_sum import WeightedSum

#: The operators between a Concat of levels and their sum. A Concat of one input only rearranges.
_BEFORE_JOIN = REARRANGING | {"Concat"}


@dataclass(frozen=True)
class SampledLevel:
    """A level and its GridSample.

    Attributes:
        sample: the GridSample.
        traced: its output, as a part of the product.
        points: the number of its points.
        lengths: the lengths of its spatial axes.
    """

    sample: Match
    traced: TracedValue
    points: int
    lengths: tuple[Length, ...]

    @property
    def pixels(self) -> int | None:
        """The number of pixels of the image, or None if it is unknown."""
        return product_of(self.lengths).known


@dataclass(frozen=True)
class _Join:
    """The values that a Concat joins, or the sample that a value rearranges.

    Attributes:
        values: the inputs of the Concat, or the output of the GridSample.
        nodes: the indices of the nodes that compute the joined value from them.
    """

    values: Sequence[TracedValue]
    nodes: Set[int]


@dataclass(frozen=True)
class MatchedLevels:
    """The levels of a sum.

    Attributes:
        sampled: the levels that one op can sample; at least one.
        others: the other levels.
        sum_nodes: the indices of the nodes between the levels and the sum.
    """

    sampled: Sequence[SampledLevel]
    others: Sequence[OtherLevel]
    sum_nodes: frozenset[int]

    @property
    def sample_nodes(self) -> frozenset[int]:
        """The indices of the nodes that compute the samples."""
        return frozenset[int]().union(*(level.sample.replaced_nodes for level in self.sampled))


class LevelMatcher:
    """Traces the samples of a sum back to the levels of deformable attention."""

    def __init__(self, weighted_sum: WeightedSum) -> None:
        self._sum = weighted_sum
        self._use_def = weighted_sum.use_def
        self._lengths = weighted_sum.lengths
        self._tracer = weighted_sum.tracer

    def find_levels(self, summed_axes: SummedAxes) -> MatchedLevels | None:
        """Trace the samples of the product back to their levels.

        Return None if there is no GridSample, or if a level is something else.
        """
        self._tracer.nodes |= {self._sum.sum_index, self._sum.product_index}
        values = self._trace_levels(summed_axes)
        sum_nodes = frozenset(self._tracer.nodes)
        sampled = self._sampled_levels(values, summed_axes)
        others = self._other_levels(values, sampled, summed_axes)
        if not sampled or others is None:
            return None
        return MatchedLevels(sampled, others, sum_nodes)

    def _trace_levels(self, summed_axes: SummedAxes) -> list[TracedValue]:
        """Return the values that are joined to the samples of all levels."""
        axes = (
            summed_axes.batch_heads,
            summed_axes.channels,
            summed_axes.queries,
            summed_axes.points,
        )
        return self._joined_values(
            TracedValue(self._sum.sampled, axes, summed_axes.points), summed_axes
        )

    def _joined_values(self, value: TracedValue, summed_axes: SummedAxes) -> list[TracedValue]:
        """Trace ``value`` back through Concats to the values of the levels.

        Return ``value`` itself if it does not come from a Concat of levels or a GridSample.
        """
        if value.name in self._sum.samples:
            return [value]
        join = self._trace_to_join(value, summed_axes)
        if join is None:
            return [value]
        self._tracer.nodes |= join.nodes
        joined = (self._joined_values(source, summed_axes) for source in join.values)
        return list(chain.from_iterable(joined))

    def _trace_to_join(self, value: TracedValue, summed_axes: SummedAxes) -> _Join | None:
        """Trace ``value`` back to the next Concat of levels or GridSample.

        Return None if it comes from neither.
        """
        passed_nodes = set[int]()
        traced = value
        while traced.name not in self._sum.samples:
            index = self._use_def.makers.get(traced.name)
            if index is None:
                return None
            levels = self._concatenated_levels(traced, summed_axes)
            if levels:
                return _Join(levels, passed_nodes | {index})
            source = self._tracer.source(traced, _BEFORE_JOIN)
            if source is None:
                return None
            passed_nodes.add(index)
            traced = source
        return _Join([traced], passed_nodes)

    def _concatenated_levels(
        self,
        value: TracedValue,
        summed_axes: SummedAxes,
    ) -> list[TracedValue]:
        """Return the inputs of a Concat of levels, on a new axis or on the axis of the points.

        Return an empty list if ``value`` is something else.
        """
        index = self._use_def.makers[value.name]
        view = self._lengths.view(value.name)
        axis = None if view is None else view.joined_axis
        if view is None or axis is None or len(view.shape) != len(value.axes):
            return []
        names = self._use_def.scope.inputs[index]
        last = len(value.axes) - 1
        if axis == last and are_same(value.axes[last], summed_axes.points):
            levels = []
            for name, length in zip(names, view.joined_lengths, strict=True):
                points: Factors = () if length is None else (Factor.of_new_axis(length),)
                axes = (*value.axes[:last], points)
                levels.append(value._replace(name=name, axes=axes, level_axis=points))
            return levels
        is_new_axis = all(length == ONE for length in view.joined_lengths)
        if is_new_axis and are_same(value.axes[axis] + value.axes[last], summed_axes.points):
            axes = (*value.axes[:axis], (), *value.axes[axis + 1 :])
            return [
                value._replace(name=name, axes=axes, level_axis=value.axes[last]) for name in names
            ]
        return []

    def _sampled_levels(
        self,
        values: Sequence[TracedValue],
        summed_axes: SummedAxes,
    ) -> list[SampledLevel]:
        """Return the levels that one op can sample.

        They have the rank, the type of grid and ``align_corners`` of the first one.
        """
        levels = []
        for value in values:
            if not self._is_sample(value, summed_axes):
                continue
            sample = self._sum.samples[value.name]
            lengths = self._image_shape(sample)[2:]
            points = known_product(value.level_axis) or 0
            levels.append(SampledLevel(sample, value, points, lengths))
        return [level for level in levels if self._are_sampled_alike(level, levels[0])]

    def _image_shape(self, sample: Match) -> tuple[Length, ...]:
        return self._lengths.shape(sample.record.values["X"]) or ()

    def _are_sampled_alike(self, level: SampledLevel, other: SampledLevel) -> bool:
        """Whether one op can sample two levels."""
        first = level.sample.record
        second = other.sample.record
        if len(self._image_shape(level.sample)) != len(self._image_shape(other.sample)):
            return False
        has_same_types = first.types["grid"] == second.types["grid"]
        return has_same_types and first.align_corners == second.align_corners

    def _is_sample(self, value: TracedValue, summed_axes: SummedAxes) -> bool:
        """Whether ``value`` is a GridSample (B·H, D, …) of the queries and points of the sum."""
        sample = self._sum.samples.get(value.name)
        if sample is None or len(value.axes) != len(self._image_shape(sample)):
            return False
        batch_heads, channels, *output_axes = value.axes
        return (
            are_same(batch_heads, summed_axes.batch_heads)
            and are_same(channels, summed_axes.channels)
            and are_same(flatten(output_axes), summed_axes.queries + value.level_axis)
        )

    def _other_levels(
        self,
        values: Sequence[TracedValue],
        sampled: Sequence[SampledLevel],
        summed_axes: SummedAxes,
    ) -> list[OtherLevel] | None:
        """Return the levels among ``values`` that are not ``sampled``.

        Return None if one of them is not (B·H, D, Q, …), or if the number of points of a level is
        unknown.
        """
        counts = [known_product(value.level_axis) for value in values]
        known_counts = [count for count in counts if count is not None]
        if len(known_counts) < len(counts):
            return None
        ends = accumulate(known_counts, initial=0)
        point_ranges = [range(*bounds) for bounds in pairwise(ends)]
        sampled_values = [level.traced for level in sampled]
        others = []
        for value, points in zip(values, point_ranges, strict=True):
            if value in sampled_values:
                continue
            if not self._is_other_level(value, summed_axes):
                return None
            sample = self._sum.samples.get(value.name)
            others.append(OtherLevel(value.name, points, sample.record if sample else None))
        return others

    def _is_other_level(self, value: TracedValue, summed_axes: SummedAxes) -> bool:
        """Whether the axes of ``value`` are (B·H, D, Q, …)."""
        if len(value.axes) <= 3:
            return False
        batch_heads, channels, queries, *points = value.axes
        return (
            are_same(batch_heads, summed_axes.batch_heads)
            and are_same(channels, summed_axes.channels)
            and are_same(queries, summed_axes.queries)
            and are_same(flatten(points), value.level_axis)
        )
