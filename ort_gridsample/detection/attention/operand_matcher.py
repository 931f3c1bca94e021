"""Find the operands of deformable attention: values of all levels that one op can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...inference.axes import (
    Axes,
    Factors,
    flatten,
    known_product,
    new_axes,
    rest_after,
)
from ...inference.symbolic import Length
from .layouts import Operand
from .level_matcher import MatchedLevels, SampledLevel
from .operands import (
    SummedAxes,
    find_shared_operand,
    locations_layout,
    output_layout,
    value_layout,
    weights_layout,
)
from .trace import TracedValue
from .weighted_sum import WeightedSum, rearranging_readers


@dataclass(frozen=True, kw_only=True)
class MatchedOperands:
    """The values that one op can read and write.

    Attributes:
        heads: H.
        value: the value of all levels, or None if there is none.
        locations: the locations of all levels, or None if there are none.
        weights: the weights.
        output: the value that the op computes.
        output_nodes: the indices of the nodes from the sum to the output.
    """

    heads: int
    value: Operand | None
    locations: Operand | None
    weights: Operand
    output: Operand
    output_nodes: frozenset[int]

    @property
    def names_read(self) -> set[str]:
        """The names of the values that the op reads."""
        operands = (self.value, self.locations, self.weights)
        return {operand.name for operand in operands if operand is not None}


class OperandMatcher:
    """Finds the values that one op can read and write instead of those of the levels."""

    def __init__(self, weighted_sum: WeightedSum) -> None:
        self._sum = weighted_sum
        self._use_def = weighted_sum.use_def
        self._lengths = weighted_sum.lengths
        self._tracer = weighted_sum.tracer

    def find_operands(
        self,
        levels: MatchedLevels,
        summed_axes: SummedAxes,
    ) -> MatchedOperands | None:
        """Return the values that one op can read and write.

        Return None if H is unknown, or if one batch may have the weights of all.
        """
        value, head_factors = self._find_value(levels.sampled, summed_axes)
        summed_axes = replace(summed_axes, heads=head_factors)
        heads = known_product(summed_axes.heads)
        if not heads:
            return None
        locations = self._find_locations(levels.sampled, summed_axes)
        is_complete = not levels.others
        weights = self._find_weights(summed_axes, heads=heads, allows_layout_by_head=is_complete)
        if weights is None:
            return None
        output = Operand(self._sum.total, "channels_first")
        output_nodes = frozenset[int]()
        if is_complete:
            output, output_nodes = self._find_output(summed_axes)
        return MatchedOperands(
            heads=heads,
            value=value,
            locations=locations,
            weights=weights,
            output=output,
            output_nodes=output_nodes,
        )

    def _find_value(
        self,
        levels: Sequence[SampledLevel],
        summed_axes: SummedAxes,
    ) -> tuple[Operand | None, Factors]:
        """Return the value of all levels, and the factors of H.

        If there is no such value, return None and no factors.
        """
        images = []
        for level in levels:
            batch_heads, channels, *_ = level.traced.axes
            image_axes = new_axes(level.lengths)
            name = level.sample.record.values["X"]
            axes = (batch_heads, channels, *image_axes)
            images.append(TracedValue(name, axes, flatten(image_axes)))
        pixel_counts = [level.pixels for level in levels]
        layout_of = partial(value_layout, summed_axes=summed_axes)
        shared = find_shared_operand(self._tracer, images, pixel_counts, layout_of)
        if shared is None:
            return None, ()
        traced, value = shared
        return value, rest_after(traced.axes[0], summed_axes.batch_heads) or ()

    def _find_locations(
        self,
        levels: Sequence[SampledLevel],
        summed_axes: SummedAxes,
    ) -> Operand | None:
        """Return the locations of all levels."""
        grids = []
        (coordinates,) = new_axes([Length(len(levels[0].lengths))])
        for level in levels:
            batch_heads, _, *output_axes = level.traced.axes
            axes = (batch_heads, *output_axes, coordinates)
            name = level.sample.record.values["grid"]
            grids.append(level.traced._replace(name=name, axes=axes))
        point_counts = [level.points for level in levels]
        layout_of = partial(locations_layout, summed_axes=summed_axes, coordinates=coordinates)
        shared = find_shared_operand(self._tracer, grids, point_counts, layout_of)
        if shared is None:
            return None
        _, locations = shared
        return locations

    def _find_weights(
        self,
        summed_axes: SummedAxes,
        *,
        heads: int,
        allows_layout_by_head: bool,
    ) -> Operand | None:
        """Return the weights: by head if the graph has them so.

        Return None if one batch may have the weights of all.
        """
        batch_heads, _, queries, _ = self._sum.weights_shape
        # A single batch or query is broadcast: its axis is not the product's.
        batch_axis, query_axis = new_axes([batch_heads, queries])
        axes: Axes = (batch_axis, (), query_axis, summed_axes.points)
        weights = Operand(self._sum.weights, "B·H, 1, Q, P")
        is_by_head = False
        if allows_layout_by_head:
            traced = TracedValue(self._sum.weights, axes, summed_axes.points)
            for source in self._tracer.sources(traced):
                layout = weights_layout(source, summed_axes, weights_axes=axes, heads=heads)
                if layout is not None:
                    weights = Operand(source.name, layout)
                    is_by_head = True
        has_several_rows = is_by_head and heads > 1
        may_broadcast = batch_heads.number < 2 and not has_several_rows
        if may_broadcast and batch_heads != self._sum.sampled_shape[0]:
            return None
        return weights

    def _find_output(self, summed_axes: SummedAxes) -> tuple[Operand, frozenset[int]]:
        """Return the value that the sum is rearranged to, and the nodes that do so.

        It is (B, Q, H·D) if there is such a value, otherwise (B, Q, H, D). If there is neither,
        return the sum (B·H, D, Q) itself.
        """
        output = Operand(self._sum.total, "channels_first")
        output_nodes = frozenset[int]()
        axes: Axes = (summed_axes.batch_heads, summed_axes.channels, summed_axes.queries)
        nodes = set[int]()
        for index in rearranging_readers(self._use_def, self._sum.total):
            name = self._use_def.scope.outputs[index][0]
            view = self._lengths.view(name)
            rearranged = None if view is None else view.axes_after(axes)
            if rearranged is None:
                break
            axes = rearranged
            nodes.add(index)
            layout = output_layout(axes, summed_axes)
            if layout is not None:
                output = Operand(name, layout)
                output_nodes = frozenset(nodes)
            if layout == "by_query":
                break
        return output, output_nodes
