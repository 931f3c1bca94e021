"""Deformable attention in a graph, as data.

The names of axes: batch B, heads H, channels D of a head, queries Q, levels L, points P on each
level (or on all levels together, where there is no axis L), pixels S of all levels, groups G of
reference points, and r coordinates of a location or spatial axes of a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from ...inference.symbolic import Length, known_numbers
from ..records import NodeRecord

ValueLayout = Literal["B, S, H, D", "B, S, H·D"]
LocationsLayout = Literal["B, Q, H, P, r", "B, Q, H, L, P, r"]
WeightsLayout = Literal["B, Q, H, P", "B, Q, H, L, P", "B·H, 1, Q, P"]
#: The keys of :data:`ort_gridsample.spec.OUTPUT_LAYOUTS`.
OutputLayout = Literal["by_query", "by_head", "channels_first"]
Layout = ValueLayout | LocationsLayout | WeightsLayout | OutputLayout


@dataclass(frozen=True)
class Operand:
    """A value of the graph that deformable attention can read or write as it is.

    Attributes:
        name: the name of the value.
        layout: its axes; for an output, their name.
    """

    name: str
    layout: Layout


@dataclass(frozen=True)
class Level:
    """A level that a GridSample samples.

    Attributes:
        sample: the GridSample.
        points: the number of its points.
        lengths: the lengths of its spatial axes.
        shape: a value whose elements, from the third on, are these lengths, or None.
    """

    sample: NodeRecord
    points: int
    lengths: tuple[Length, ...]
    shape: str | None

    @property
    def known_lengths(self) -> list[int]:
        """The lengths of the spatial axes; an empty list if they are not all constants."""
        return known_numbers(self.lengths) or []


class OtherLevel(NamedTuple):
    """A level of the sum that is not sampled as deformable attention samples.

    Attributes:
        name: the value that is multiplied by the weights, (B·H, D, Q, …).
        points: the indices of its points on the axis of all points.
        sample: the GridSample that computes the value, if one does.
    """

    name: str
    points: range
    sample: NodeRecord | None


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Deformable attention and its operands.

    Attributes:
        levels: the levels, one for each GridSample.
        other_levels: the levels that must be added to the result. If there are any, the weights and
            the output have the layouts of the sum, (B·H, 1, Q, P) and (B·H, D, Q).
        output: the value that it computes.
        path: the indices of the nodes from the samples to the output, without samples that other
            nodes also read.
        nodes: the indices of ``path``, of the samples that it lacks, and of the nodes that compute
            the operands and shapes.
        heads: H, which is 1 if the images do not come from a value that has several heads.
        channels: D.
        queries: Q, or None if it is unknown.
        value: the value of all levels, or None if the graph has only the images.
        locations: the locations of all levels, in [0, 1], or None if the graph has only the grids.
        weights: the weights.
        is_per_query: whether there are weights for each query. If not, one query may have the
            weights of all.
    """

    levels: tuple[Level, ...]
    other_levels: tuple[OtherLevel, ...]
    output: Operand
    path: frozenset[int]
    nodes: frozenset[int]
    heads: int
    channels: int
    queries: int | None
    value: Operand | None
    locations: Operand | None
    weights: Operand
    is_per_query: bool

    @property
    def r(self) -> int:
        """The number of spatial axes, and of the coordinates of a location."""
        return len(self.levels[0].lengths)

    @property
    def samples(self) -> list[NodeRecord]:
        """The GridSamples of all levels."""
        others = (level.sample for level in self.other_levels)
        return [*(level.sample for level in self.levels), *filter(None, others)]

    @property
    def points(self) -> tuple[int, ...]:
        """The number of points on each level."""
        return tuple(level.points for level in self.levels)

    def locations_type(self, coordinate_type: str) -> str:
        """Return the type of the locations that an op reads.

        Locations of the graph are read as they are. Those that are computed from grids are at least
        in single precision, because half precision would lose too much of them.

        Args:
            coordinate_type: the type of the locations or of the grids.
        """
        if self.locations is not None or coordinate_type == "float64":
            return coordinate_type
        return "float32"

    @property
    def has_weights_by_query(self) -> bool:
        """Whether the weights are (B, Q, H, …), or those of one query for all."""
        return self.weights.layout != "B·H, 1, Q, P"

    @property
    def output_layout(self) -> OutputLayout:
        """The layout of the output."""
        return cast(OutputLayout, self.output.layout)
