"""Find decomposed deformable attention: the weighted sum of samples of several images.

Exporters write it as a GridSample for each level, a Concat of the samples, a Mul by the weights and
a ReduceSum. From there, the values, locations and weights are traced back (:mod:`.trace`) to
operands that :func:`ort_gridsample.deformable_attention` can read. Where there is no such operand,
a target computes it from the inputs of the GridSamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from ...dialects.registry import operator_types
from ...graph.use_def import UseDef, unread_nodes
from ...inference.axes import known_product, length_of, new_axes
from ...inference.lengths import OPERATORS, SHAPE_OPERATORS, ScopeLengths
from ...inference.symbolic import ONE, Length
from ...inference.types import Inference
from ...inference.views import int_attribute, known_integers
from ...spec import ATTENTION_SAMPLE, FLOATS
from ..match import Match
from ..records import NodeRecord
from .layouts import Attention, Level
from .level_matcher import LevelMatcher, SampledLevel
from .operand_matcher import OperandMatcher
from .operands import SummedAxes
from .weighted_sum import WeightedSum, rearranging_readers, sums_of_products

#: The operators between the operands and the sum.
_ATTENTION_OPERATORS = OPERATORS | {"ReduceSum"}
#: The operators that compute the shapes for Reshapes.
_SHAPE_OPERATORS = SHAPE_OPERATORS | {"Constant"}


def is_attention_sample(record: NodeRecord) -> bool:
    """Whether a GridSample samples as deformable attention does.

    It is linear, has zeros outside, and its image is of a floating-point type.
    """
    if (record.mode, record.padding_mode) != ATTENTION_SAMPLE:
        return False
    if record.align_corners not in (0, 1):
        return False
    types = set(record.types["X"])
    return bool(types) and types <= set(FLOATS)


def values_to_infer(use_def: UseDef) -> Iterator[str]:
    """Yield the values of a scope whose types and shapes :func:`find_attentions` reads."""
    sums = [use_def.nodes[index] for index in sums_of_products(use_def)]
    summed = [node.input[0] for node in sums]
    yield from use_def.backward_closure(summed, _ATTENTION_OPERATORS, operator_types())
    for node in sums:
        yield node.output[0]
        for index in rearranging_readers(use_def, node.output[0]):
            yield use_def.scope.outputs[index][0]
            yield from use_def.scope.inputs[index][1:2]


def find_attentions(
    use_def: UseDef,
    samples: Mapping[str, Match],
    inference: Inference,
) -> Iterator[Attention]:
    """Yield the deformable attentions of a scope.

    Args:
        samples: the valid GridSamples of the scope by the names of their outputs.
        inference: an inference that includes :func:`values_to_infer`.
    """
    eligible = {name: match for name, match in samples.items() if is_attention_sample(match.record)}
    if not eligible:
        return
    inputs = {}
    for name, match in samples.items():
        inputs[name] = match.record.values["X"], match.record.values["grid"]
    lengths = ScopeLengths(use_def, inference, inputs)
    for index in sums_of_products(use_def):
        node = use_def.nodes[index]
        if known_integers(lengths, node, 1) not in ([-1], [3]):
            continue
        if int_attribute(node, "keepdims", 1) != 0:
            continue
        for sampled_input in (0, 1):
            weighted_sum = WeightedSum.of(lengths, eligible, index, sampled_input)
            attention = _AttentionMatcher(weighted_sum).find_attention()
            if attention is not None:
                yield attention
                break


class _AttentionMatcher:
    """Matches one sum of products against deformable attention."""

    def __init__(self, weighted_sum: WeightedSum) -> None:
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
        levels = LevelMatcher(self._sum).find_levels(summed_axes)
        if levels is None:
            return None
        operands = OperandMatcher(self._sum).find_operands(levels, summed_axes)
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
        return SummedAxes(*new_axes(self._sum.sampled_shape))

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

    def _level(self, level: SampledLevel) -> Level:
        record = level.sample.record
        X = record.values["X"]
        if self._may_be_other_image(level):
            # The Reshape must stay, because it fails. It does if the lengths are read from X.
            lengths = tuple(Length(unknown=((X, 2 + i),)) for i in range(len(level.lengths)))
            return Level(record, level.points, lengths, shape=None)
        return Level(record, level.points, level.lengths, self._shape_value(X))

    def _may_be_other_image(self, level: SampledLevel) -> bool:
        """Whether a Reshape makes the image, perhaps to other lengths than B·H and D in a run."""
        X = level.sample.record.values["X"]
        shape_name = self._reshape_target(X)
        if shape_name is None:
            return False
        image_shape = self._lengths.shape(X)
        assert image_shape is not None  # it is as long as that of the sample
        elements = (self._lengths.elements(shape_name) or [None, None])[:2]
        for axis, element in enumerate(elements):
            if element == Length(-1):
                continue  # it follows from the other lengths
            length = image_shape[axis]
            is_unknown = element is None and length.known is None
            if is_unknown or length != length_of(level.traced.axes[axis]):
                return True
        return False

    def _shape_value(self, name: str) -> str | None:
        """Return the shape that a Reshape to ``name`` reads.

        Return None if another node computes ``name``, or if a length from the third on may not be
        positive.
        """
        shape = self._reshape_target(name)
        if shape is None:
            return None
        lengths = (self._lengths.elements(shape) or [])[2:]
        if not lengths or not all(length is not None and length.number > 0 for length in lengths):
            return None
        return shape

    def _reshape_target(self, name: str) -> str | None:
        """Return the shape that a Reshape to ``name`` reads, or None if it is no Reshape's."""
        index = self._use_def.makers.get(name)
        if index is None or not self._use_def.is_op(index, ("Reshape",)):
            return None
        return self._use_def.nodes[index].input[1]
