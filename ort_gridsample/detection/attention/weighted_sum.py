"""Weighted sums of samples: the end of decomposed deformable attention.

From a sum, the samples are traced back to levels (:mod:`.level_matcher`), and the values of all
levels to operands (:mod:`.operand_matcher`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...graph.first_opsets import FIRST_OPSET_WITH_AXES_AS_INPUT
from ...graph.scope import NO_MAKER
from ...graph.use_def import UseDef
from ...inference.lengths import ScopeLengths
from ...inference.symbolic import Length
from ...inference.views import REARRANGING
from ..match import Match
from .trace import LevelTracer

#: The first opset in which the targets can write what they need.
MIN_OPSET = FIRST_OPSET_WITH_AXES_AS_INPUT


def sums_of_products(use_def: UseDef) -> Iterator[int]:
    """Yield the indices of ReduceSums of a Mul, in opsets from :data:`MIN_OPSET` on."""
    if use_def.scope.opsets.get("", 0) < MIN_OPSET:
        return
    for index in use_def.scope.indices_of(("ReduceSum",)):
        if not use_def.is_op(index, ("ReduceSum",)):
            continue
        maker = use_def.makers.get(use_def.scope.inputs[index][0])
        if maker is None or not use_def.is_op(maker, ("Mul",)):
            continue
        if len(use_def.scope.inputs[maker]) == 2:
            yield index


def rearranging_readers(use_def: UseDef, name: str) -> Iterator[int]:
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
        if not use_def.is_op(reader, REARRANGING):
            return
        yield reader
        index = reader
        name = use_def.scope.outputs[reader][0]


@dataclass(frozen=True)
class WeightedSum:
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

    lengths: ScopeLengths
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
        lengths: ScopeLengths,
        samples: Mapping[str, Match],
        sum_index: int,
        sampled_input: int,
    ) -> WeightedSum:
        """Return the sum of a ReduceSum and the Mul before it.

        Args:
            lengths: the lengths of the scope's values.
            samples: the GridSamples of the scope by the names of their outputs.
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
