"""The inputs of another package's deformable attention node, for the nodes that read them.

The signatures of the nodes are :data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`.
The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from functools import cached_property

from ..detection.match import Match
from ..dialects.table import AttentionSignature
from ..graph.expressions import Expressions, Tensor
from ..reference.arrays import Array
from ..spec import Shape, known_lengths
from .foreign_attention_facts import n_levels_of
from .match_facts import input_of


class ForeignInputs:
    """The inputs of an attention node, by their names in its signature.

    Args:
        match: the attention node.
        signature: the signature of the node.
        e: writes the nodes.

    Attributes:
        match: the attention node.
        signature: the signature of the node.
        e: writes the nodes.
        values: input -> its value; after a check, the checked value.
    """

    def __init__(self, match: Match, signature: AttentionSignature, e: Expressions) -> None:
        self.match = match
        self.signature = signature
        self.e = e
        self.values = {argument: input_of(match, e, argument) for argument in signature.inputs}

    @cached_property
    def n_levels(self) -> int:
        """The number of levels.

        Raises:
            GridSampleError: the model does not state it.
        """
        return n_levels_of(self.match)

    @cached_property
    def n_points(self) -> int | None:
        """The number of points on each level if it is known."""
        shape = self.shape("attention_weights")
        last = shape[-1] if shape is not None else None
        if not isinstance(last, int):
            return None
        return last // max(self.n_levels, 1) if self.signature.has_offsets else last

    @property
    def level_table(self) -> Tensor:
        """The height and the width of each level, (L, 2)."""
        return self.values[self.signature.lengths_input]

    @property
    def known_level_table(self) -> Array | None:
        """The height and the width of each level, (L, 2), if they are constant."""
        return self.match.record.constants.get(self.signature.lengths_input)

    @property
    def starts(self) -> Tensor | None:
        """The first pixel of each level, (L,), if an input has it."""
        return self.values.get("level_start_index")

    @property
    def known_starts(self) -> Array | None:
        """The first pixel of each level, (L,), if an input has it and is constant."""
        return self.match.record.constants.get("level_start_index")

    def areas(self) -> Tensor:
        """Return the number of pixels of each level, (L,)."""
        e = self.e
        table = self.level_table.astype("int64")
        return e.gather(table, 0, axis=1) * e.gather(table, 1, axis=1)

    def shape(self, argument: str) -> Shape | None:
        """Return the shape of an input if it is the same in all calls."""
        return self.match.record.shape_in_all_calls(argument)

    def has_known_lengths(self, *arguments: str) -> bool:
        """Whether all lengths of inputs are known. They were checked when the model was read."""
        return all(known_lengths(self.shape(argument)) is not None for argument in arguments)

    def lengths(self, argument: str, *axes: int) -> Tensor:
        """Return the lengths of some axes of an input."""
        return self.e.lengths(self.values[argument], *axes)

    def read_through_shape(self, argument: str, checked_shape: Tensor) -> None:
        """Read an input through a Reshape to its own shape, which was checked."""
        self.values[argument] = self.e.op("Reshape", self.values[argument], checked_shape)
