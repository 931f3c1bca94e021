"""Find decomposed deformable attention: the weighted sum of samples of several images.

Exporters write it as a GridSample for each level, a Concat of the samples, a Mul by the weights and
a ReduceSum. From there, the values, locations and weights are traced back (:mod:`.trace`) to
operands that :func:`ort_gridsample.deformable_attention` can read. Where there is no such operand,
a target computes it from the inputs of the GridSamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain, pairwise

import onnx

from ...dialects.registry import operator_types
from ...graph.first_opsets import FIRST_OPSET_WITH_AXES_AS_INPUT
from ...graph.scope import NO_MAKER
from ...graph.use_def import UseDef, unread_nodes
from ...inference.lengths import (
    ONE,
    OPERATORS,
    Length,
    Lengths,
    int_attribute,
    permutation,
    product_of,
)
from ...inference.types import Inference
from ...spec import FLOATS
from ..match import Match
from ..records import NodeRecord
from .axes import Axes, Factor, are_same, flatten, known_product, leaves, regroup
from .layouts import Attention, Level, Operand, OtherLevel
from .operands import (
    SummedAxes,
    find_shared_operand,
    locations_layout,
    value_layout,
    weights_layout,
)
from .trace import VIEW_RULES, LevelTracer, TracedValue

#: The first opset in which the targets can write what they need.
MIN_OPSET = FIRST_OPSET_WITH_AXES_AS_INPUT
#: The operators between the operands and the sum.
_ATTENTION_OPERATORS = OPERATORS | VIEW_RULES.keys() | {"ReduceSum"}
#: The operators that compute the shapes for Reshapes.
_SHAPE_OPERATORS = OPERATORS - {"Add", "Div", "Softmax", "Split", "Sub", "Transpose"} | {"Constant"}


def is_attention_sample(record: NodeRecord) -> bool:
    """Whether a GridSample samples as deformable attention does.

    It is linear, has zeros outside, and its image is of a floating-point type.
    """
    if (record.mode, record.padding_mode) != ("linear", "zeros"):
        return False
    if record.align_corners not in (0, 1):
        return False
    types = set(record.types["X"])
    return bool(types) and types <= set(FLOATS)


def values_to_infer(use_def: UseDef) -> Iterator[str]:
    """Yield the values of a scope whose types and shapes :func:`find_attentions` reads."""
    sums = [use_def.nodes[index] for index in _sums_of_products(use_def)]
    summed = [node.input[0] for node in sums]
    yield from use_def.backward_closure(summed, _ATTENTION_OPERATORS, operator_types())
    for node in sums:
        yield node.output[0]
        for index in _rearranging_readers(use_def, node.output[0]):
            yield use_def.scope.outputs[index][0]
            yield from use_def.scope.inputs[index][1:2]


def find_attentions(
    use_def: UseDef,
    samples: Mapping[str, Match],
    inference: Inference,
) -> Iterator[Attention]:
    """Yield the deformable attentions of a scope.

    Args:
        use_def: the use-def chains of the scope.
        samples: the valid GridSamples of the scope by the names of their outputs.
        inference: an inference that includes :func:`values_to_infer`.
    """
    eligible = {name: match for name, match in samples.items() if is_attention_sample(match.record)}
    if not eligible:
        return
    inputs = {}
    for name, match in samples.items():
        inputs[name] = match.record.values["X"], match.record.values["grid"]
    lengths = Lengths(use_def, inference, inputs)
    for index in _sums_of_products(use_def):
        node = use_def.nodes[index]
        if lengths.known_integers(node, 1) not in ([-1], [3]):
            continue
        if int_attribute(node, "keepdims", 1) != 0:
            continue
        for sampled_input in (0, 1):
            weighted_sum = _WeightedSum.of(lengths, eligible, index, sampled_input)
            attention = _AttentionMatcher(weighted_sum).find_attention()
            if attention is not None:
                yield attention
                break


def _sums_of_products(use_def: UseDef) -> Iterator[int]:
    """Yield the indices of ReduceSums of a Mul, in opsets from :data:`MIN_OPSET` on."""
    if use_def.scope.opsets.get("", 0) < MIN_OPSET:
        return
    for index, op_type in enumerate(use_def.scope.op_types):
        if op_type != "ReduceSum" or not use_def.is_op(index, (op_type,)):
            continue
        maker = use_def.makers.get(use_def.scope.inputs[index][0])
        if maker is None or not use_def.is_op(maker, ("Mul",)):
            continue
        if len(use_def.scope.inputs[maker]) == 2:
            yield index


def _rearranging_readers(use_def: UseDef, name: str) -> Iterator[int]:
    """Yield the indices of nodes that rearrange ``name`` one after another.

    The last one is the first whose output has several readers, or another kind of reader.
    """
    index = use_def.makers.get(name, NO_MAKER)
    while True:
        readers = use_def.scope.readers.get(name, set())
        if len(readers) != 1:
            return
        (reader,) = readers
        if reader <= index:  # in an invalid model, a value may come from itself
            return
        if not use_def.is_op(reader, ("Identity", "Reshape", "Transpose")):
            return
        yield reader
        index = reader
        name = use_def.scope.outputs[reader][0]


@dataclass(frozen=True)
class _SampledLevel:
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
class _MatchedLevels:
    """The levels of a sum.

    Attributes:
        sampled: the levels that one op can sample; at least one.
        others: the other levels.
        sum_nodes: the indices of the nodes between the levels and the sum.
    """

    sampled: Sequence[_SampledLevel]
    others: Sequence[OtherLevel]
    sum_nodes: frozenset[int]

    @property
    def sample_nodes(self) -> frozenset[int]:
        """The indices of the nodes that compute the samples."""
        return frozenset[int]().union(*(level.sample.replaced_nodes for level in self.sampled))


@dataclass(frozen=True, kw_only=True)
class _MatchedOperands:
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


@dataclass(frozen=True)
class _WeightedSum:
    """A sum of products that may be deformable attention.

    Attributes:
        lengths: the lengths of the scope's values.
        use_def: the use-def chains of the scope.
        samples: the GridSamples that may be part of it, by the names of their outputs.
        tracer: traces its values, and collects the nodes of the attention.
        sum_index: the index of the ReduceSum.
        product_index: the index of the Mul.
        total: the name of the sum.
        sampled: the name of the factor that has the samples.
        weights: the name of the factor that has the weights.
    """

    lengths: Lengths
    use_def: UseDef
    samples: Mapping[str, Match]
    tracer: LevelTracer
    sum_index: int
    product_index: int
    total: str
    sampled: str
    weights: str

    @classmethod
    def of(
        cls,
        lengths: Lengths,
        samples: Mapping[str, Match],
        sum_index: int,
        sampled_input: int,
    ) -> _WeightedSum:
        """Return the sum of a ReduceSum and the Mul before it.

        Args:
            lengths: the lengths of the scope's values.
            samples: the GridSamples of the scope by the names of their outputs.
            sum_index: the index of the ReduceSum.
            sampled_input: which input of the Mul has the samples. The other one has the weights.
        """
        use_def = lengths.use_def
        sum_node = use_def.nodes[sum_index]
        product_index = use_def.makers[sum_node.input[0]]
        factors = use_def.nodes[product_index].input
        return cls(
            lengths=lengths,
            use_def=use_def,
            samples=samples,
            tracer=LevelTracer(lengths),
            sum_index=sum_index,
            product_index=product_index,
            total=sum_node.output[0],
            sampled=factors[sampled_input],
            weights=factors[1 - sampled_input],
        )

    @cached_property
    def sampled_shape(self) -> Sequence[Length]:
        """The shape of the samples, or () if its rank is unknown."""
        return self.lengths.shape(self.sampled) or ()

    @cached_property
    def weights_shape(self) -> Sequence[Length]:
        """The shape of the weights, or () if its rank is unknown."""
        return self.lengths.shape(self.weights) or ()


class _LevelMatcher:
    """Traces the samples of a sum back to the levels of deformable attention."""

    def __init__(self, weighted_sum: _WeightedSum) -> None:
        self._sum = weighted_sum
        self._use_def = weighted_sum.use_def
        self._lengths = weighted_sum.lengths
        self._tracer = weighted_sum.tracer

    def find_levels(self, summed_axes: SummedAxes) -> _MatchedLevels | None:
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
        return _MatchedLevels(sampled, others, sum_nodes)

    def _trace_levels(self, summed_axes: SummedAxes) -> list[TracedValue]:
        """Return the values that are joined to the samples of all levels."""
        axes = [
            summed_axes.batch_heads,
            summed_axes.channels,
            summed_axes.queries,
            summed_axes.points,
        ]
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
            levels = self._concatenated_levels(index, traced, summed_axes)
            if levels:
                return _Join(levels, passed_nodes | {index})
            source = self._tracer.source(traced, VIEW_RULES)
            if source is None:
                return None
            passed_nodes.add(index)
            traced = source
        return _Join([traced], passed_nodes)

    def _concatenated_levels(
        self,
        index: int,
        value: TracedValue,
        summed_axes: SummedAxes,
    ) -> list[TracedValue]:
        """Return the inputs of a Concat of levels, on a new axis or on the axis of the points.

        Return an empty list if the node is something else.
        """
        if not self._use_def.is_op(index, ("Concat",)):
            return []
        node = self._use_def.nodes[index]
        axis = int_attribute(node, "axis", 0) % len(value.axes)
        last = len(value.axes) - 1
        shapes = [self._lengths.shape(name) or () for name in node.input]
        lengths = [shape[axis] if axis < len(shape) else None for shape in shapes]
        if axis == last and are_same(value.axes[last], summed_axes.points):
            levels = []
            for name, length in zip(node.input, lengths, strict=True):
                points = [] if length is None else [Factor(length)]
                axes = [*value.axes[:last], points]
                levels.append(replace(value, name=name, axes=axes, level_axis=points))
            return levels
        is_new_axis = all(length == ONE for length in lengths)
        if is_new_axis and are_same(value.axes[axis] + value.axes[last], summed_axes.points):
            axes = [*value.axes[:axis], [], *value.axes[axis + 1 :]]
            points = value.axes[last]
            return [replace(value, name=name, axes=axes, level_axis=points) for name in node.input]
        return []

    def _sampled_levels(
        self,
        values: Sequence[TracedValue],
        summed_axes: SummedAxes,
    ) -> list[_SampledLevel]:
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
            levels.append(_SampledLevel(sample, value, points, lengths))
        return [level for level in levels if self._are_sampled_alike(level, levels[0])]

    def _image_shape(self, sample: Match) -> tuple[Length, ...]:
        return self._lengths.shape(sample.record.values["X"]) or ()

    def _are_sampled_alike(self, level: _SampledLevel, other: _SampledLevel) -> bool:
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
        sampled: Sequence[_SampledLevel],
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
            others.append(OtherLevel(value.name, points))
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


class _OperandMatcher:
    """Finds the values that one op can read and write instead of those of the levels."""

    def __init__(self, weighted_sum: _WeightedSum) -> None:
        self._sum = weighted_sum
        self._use_def = weighted_sum.use_def
        self._lengths = weighted_sum.lengths
        self._tracer = weighted_sum.tracer

    def find_operands(
        self,
        levels: _MatchedLevels,
        summed_axes: SummedAxes,
    ) -> _MatchedOperands | None:
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
        output = Operand(self._sum.total, "B·H, D, Q")
        output_nodes = frozenset[int]()
        if is_complete:
            output, output_nodes = self._find_output(summed_axes)
        return _MatchedOperands(
            heads=heads,
            value=value,
            locations=locations,
            weights=weights,
            output=output,
            output_nodes=output_nodes,
        )

    def _find_value(
        self,
        levels: Sequence[_SampledLevel],
        summed_axes: SummedAxes,
    ) -> tuple[Operand | None, list[Factor]]:
        """Return the value of all levels, and the factors of H.

        If there is no such value, return None and no factors.
        """
        images = []
        for level in levels:
            batch_heads, channels, *_ = level.traced.axes
            image_axes = [[Factor(length)] for length in level.lengths]
            name = level.sample.record.values["X"]
            axes = [batch_heads, channels, *image_axes]
            images.append(TracedValue(name, axes, flatten(image_axes)))
        pixel_counts = [level.pixels for level in levels]
        layout_of = partial(value_layout, summed_axes=summed_axes)
        shared = find_shared_operand(self._tracer, images, pixel_counts, layout_of)
        if shared is None:
            return None, []
        traced, value = shared
        batch = leaves(traced.axes[0])
        return value, leaves(summed_axes.batch_heads)[len(batch) :]

    def _find_locations(
        self,
        levels: Sequence[_SampledLevel],
        summed_axes: SummedAxes,
    ) -> Operand | None:
        """Return the locations of all levels."""
        grids = []
        coordinates = [Factor(Length(len(levels[0].lengths)))]
        for level in levels:
            batch_heads, _, *output_axes = level.traced.axes
            axes = [batch_heads, *output_axes, coordinates]
            name = level.sample.record.values["grid"]
            grids.append(replace(level.traced, name=name, axes=axes))
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
        axes: Axes = [[Factor(batch_heads)], [], [Factor(queries)], summed_axes.points]
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
        """Return the value (B, Q, H·D) that the sum is rearranged to, and the nodes that do so.

        If there is no such value, return the sum (B·H, D, Q) itself.
        """
        axes: Axes = [summed_axes.batch_heads, summed_axes.channels, summed_axes.queries]
        nodes = set[int]()
        for index in _rearranging_readers(self._use_def, self._sum.total):
            rearranged = self._rearranged(axes, self._use_def.nodes[index])
            if rearranged is None:
                break
            axes = rearranged
            nodes.add(index)
            if len(axes) != 3 or not summed_axes.are_by_query(axes):
                continue
            if are_same(axes[2], summed_axes.heads + summed_axes.channels):
                output = self._use_def.scope.outputs[index][0]
                return Operand(output, "B, Q, H·D"), frozenset(nodes)
        return Operand(self._sum.total, "B·H, D, Q"), frozenset()

    def _rearranged(self, axes: Axes, node: onnx.NodeProto) -> Axes | None:
        """Return the axes of the output of an Identity, a Reshape or a Transpose.

        Args:
            axes: the axes of the input.
            node: the node.

        Returns:
            The axes, or None if those of a Reshape do not follow from ``axes``.
        """
        if node.op_type == "Transpose":
            return [axes[axis] for axis in permutation(node, len(axes))]
        if node.op_type == "Reshape":
            return regroup(axes, self._lengths.shape(node.output[0]))
        return axes


class _AttentionMatcher:
    """Matches one sum of products against deformable attention."""

    def __init__(self, weighted_sum: _WeightedSum) -> None:
        self._sum = weighted_sum
        self._use_def = weighted_sum.use_def
        self._lengths = weighted_sum.lengths
        self._tracer = weighted_sum.tracer

    def find_attention(self) -> Attention | None:
        """Return the deformable attention, or None if the sum is something else."""
        summed_axes = self._summed_axes()
        channels = None if summed_axes is None else known_product(summed_axes.channels)
        if summed_axes is None or not channels:
            return None
        levels = _LevelMatcher(self._sum).find_levels(summed_axes)
        if levels is None:
            return None
        operands = _OperandMatcher(self._sum).find_operands(levels, summed_axes)
        if operands is None:
            return None
        levels_to_output_nodes = levels.sum_nodes | operands.output_nodes
        nodes = self._with_shape_nodes(
            self._tracer.nodes | levels.sample_nodes | levels_to_output_nodes
        )
        path = self._find_path(
            nodes=nodes,
            sample_nodes=levels.sample_nodes,
            levels_to_output_nodes=levels_to_output_nodes,
            output=operands.output.name,
            names_read=operands.names_read,
        )
        if path is None:
            return None
        return Attention(
            levels=tuple(self._level(level) for level in levels.sampled),
            other_levels=tuple(levels.others),
            output=operands.output,
            path=path,
            nodes=nodes,
            heads=operands.heads,
            channels=channels,
            queries=self._sum.sampled_shape[2].known,
            value=operands.value,
            locations=operands.locations,
            weights=operands.weights,
            is_per_query=self._sum.weights_shape[2] == self._sum.sampled_shape[2],
        )

    def _summed_axes(self) -> SummedAxes | None:
        """Return the axes of the product.

        Return None if the samples are not (B·H, D, Q, P), or the weights not (…, 1, …, P).
        """
        if len(self._sum.sampled_shape) != 4 or len(self._sum.weights_shape) != 4:
            return None
        if (
            self._sum.weights_shape[1] != ONE
            or self._sum.weights_shape[3] != self._sum.sampled_shape[3]
        ):
            return None
        return SummedAxes(*([Factor(length)] for length in self._sum.sampled_shape))

    def _with_shape_nodes(self, nodes: Set[int]) -> frozenset[int]:
        """Return the indices ``nodes``, and those of the nodes that compute shapes for them."""
        use_def = self._use_def
        shape_nodes = set[int]()
        inputs = [name for index in nodes for name in use_def.scope.inputs[index]]
        for name in use_def.backward_closure(inputs, _SHAPE_OPERATORS):
            maker = use_def.makers.get(name)
            if maker is not None and use_def.is_op(maker, _SHAPE_OPERATORS):
                shape_nodes.add(maker)
        return frozenset(nodes | shape_nodes)

    def _find_path(
        self,
        *,
        nodes: Set[int],
        sample_nodes: Set[int],
        levels_to_output_nodes: Set[int],
        output: str,
        names_read: Set[str],
    ) -> frozenset[int] | None:
        """Return the indices of the nodes from the samples to ``output`` that one op replaces.

        A sample that another node reads is not among them: it is also computed separately.

        Args:
            nodes: all nodes of deformable attention, which are dropped if no other node reads them.
            sample_nodes: the nodes of the samples.
            levels_to_output_nodes: the nodes between the samples and ``output``.
            output: the output of deformable attention.
            names_read: the names of the values that the op reads.

        Returns:
            The indices, or None if a node that stays reads a value inside of the sum.
        """
        use_def = self._use_def
        read = names_read | {output}
        replaced = levels_to_output_nodes | sample_nodes
        dropped_operands = unread_nodes(use_def, replaced, read, nodes)
        inside = replaced | dropped_operands
        for index in levels_to_output_nodes:
            for name in use_def.scope.outputs[index]:
                readers = use_def.scope.readers.get(name, set())
                if name and name != output and not readers <= inside:
                    return None
        # The samples are candidates here, because one that another node reads stays.
        dropped_samples = unread_nodes(
            use_def, levels_to_output_nodes | dropped_operands, read, sample_nodes
        )
        return frozenset(levels_to_output_nodes | dropped_samples)

    def _level(self, level: _SampledLevel) -> Level:
        record = level.sample.record
        return Level(record, level.points, level.lengths, self._shape_value(record.values["X"]))

    def _shape_value(self, name: str) -> str | None:
        """Return the shape that a Reshape to ``name`` reads.

        Return None if another node computes ``name``, or if a length from the third on may not be
        positive.
        """
        index = self._use_def.makers.get(name)
        if index is None or not self._use_def.is_op(index, ("Reshape",)):
            return None
        shape = self._use_def.nodes[index].input[1]
        lengths = (self._lengths.elements(shape) or [])[2:]
        if not lengths or not all(length is not None and length.number > 0 for length in lengths):
            return None
        return shape
