"""The inputs of another package's deformable attention node, for the nodes that read them.

The signatures of the nodes are :data:`ort_gridsample.dialects.table.ATTENTION_SIGNATURES`.
The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from functools import cached_property

from ..detection.match import Match
from ..dialects.table import AttentionSignature
from ..graph.new_nodes import Nodes
from ..reference.arrays import Array
from ..spec import Shape, known_lengths
from .foreign_attention_facts import n_levels_of


class ForeignInputs:
    """The inputs of an attention node, by their names in its signature.

    A method ``write_x`` appends nodes and returns the name of the value x.

    Args:
        match: the attention node.
        signature: the signature of the node.
        nodes: the list to write to.

    Attributes:
        match: the attention node.
        signature: the signature of the node.
        nodes: the list to write to.
        names: input -> the name of its value; after a check, the name of the checked value.
    """

    def __init__(self, match: Match, signature: AttentionSignature, nodes: Nodes) -> None:
        self.match = match
        self.signature = signature
        self.nodes = nodes
        self.names = dict(zip(signature.inputs, match.node.input, strict=True))
        self._shape_names: dict[str, str] = {}

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
    def level_table(self) -> str:
        """The name of the height and the width of each level, (L, 2)."""
        return self.names[self.signature.lengths_input]

    @property
    def known_level_table(self) -> Array | None:
        """The height and the width of each level, (L, 2), if they are constant."""
        return self.match.record.constants.get(self.signature.lengths_input)

    @property
    def known_starts(self) -> Array | None:
        """The first pixel of each level, (L,), if an input has it and is constant."""
        return self.match.record.constants.get("level_start_index")

    @property
    def has_starts(self) -> bool:
        """Whether an input has the first pixel of each level."""
        return "level_start_index" in self.signature.inputs

    def shape(self, argument: str) -> Shape | None:
        """Return the shape of an input if it is the same in all calls."""
        return self.match.record.shape_in_all_calls(argument)

    def has_known_lengths(self, *arguments: str) -> bool:
        """Whether all lengths of inputs are known. They were checked when the model was read."""
        return all(known_lengths(self.shape(argument)) is not None for argument in arguments)

    def write_shape(self, argument: str) -> str:
        """Write the shape of an input."""
        if argument not in self._shape_names:
            self._shape_names[argument] = self.nodes.add("Shape", self.names[argument])
        return self._shape_names[argument]

    def write_axis_lengths(self, argument: str, *axes: int) -> str:
        """Write the lengths of some axes of an input."""
        return self.nodes.add("Gather", self.write_shape(argument), self.nodes.row(*axes))

    def read_through_shape_check(self, argument: str, checked_shape: str) -> None:
        """Read an input through a Reshape to its own shape, which was checked."""
        self.names[argument] = self.nodes.add("Reshape", self.names[argument], checked_shape)

    def read_through_rank_check(self, argument: str, checked_shape: str) -> None:
        """Read an input, and the lengths of its axes, through a shape whose rank was checked."""
        self.read_through_shape_check(argument, checked_shape)
        self._shape_names[argument] = checked_shape
