"""Deformable attention as a call: every form in a model becomes a call, and targets write calls.

A model has deformable attention around GridSamples, as a node of another package, or as a node of
this package. Each of these forms is an :class:`AttentionSource`. The names of axes are those of
:mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..detection.attention.layouts import OutputLayout
from ..detection.records import NodeRecord
from ..graph.expressions import Expressions, Tensor
from ..reference.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The levels of a deformable attention.

    Attributes:
        lengths: (L, r), the spatial lengths of each level.
        known_lengths: the lengths if they are constant.
        number: L, or None if the model does not state it.
        points: the number of points on each level; None if all have P, which is not known.
        starts: (L,), the first pixel of each level; None if each level begins where the previous
            one ends.
        known_starts: the starts if they are constant.
    """

    lengths: Tensor
    known_lengths: Array | None
    number: int | None
    points: Sequence[int] | None
    starts: Tensor | None = None
    known_starts: Array | None = None

    def areas(self) -> Tensor:
        """Return the number of pixels of each level, (L,)."""
        e = self.lengths.owner
        table = self.lengths.astype("int64")
        return e.gather(table, 0, axis=1) * e.gather(table, 1, axis=1)


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """A deformable attention.

    Attributes:
        record: the properties of an op that computes it, without the names of its operands.
        value: (B, S, H, D).
        levels: the levels.
        locations: (B, Q, H, L, P, r) or (B, Q, H, P, r), from 0 to 1.
        weights: the axes of ``locations`` without r, in the type of ``value``. Weights (B, 1, H, P)
            are those of one query for all queries.
        has_level_axis: whether locations and weights are known to have the axis L.
        is_per_query: whether there are weights for each query.
    """

    record: NodeRecord
    value: Tensor
    levels: Levels
    locations: Tensor
    weights: Tensor
    has_level_axis: bool
    is_per_query: bool = True

    def level_table(self) -> Tensor:
        """Return (L, 1 + r): the number of points, and the spatial lengths, of each level."""
        e = self.value.owner
        levels = self.levels
        if levels.points is not None and levels.known_lengths is not None:
            points = np.reshape(np.array(levels.points, np.int64), (-1, 1))
            return e.constant(np.concatenate([points, levels.known_lengths], axis=1))
        if self.has_level_axis or levels.points is None:
            cell = e.op("Reshape", e.lengths(self.locations, 4), e.row(1, 1))
            assert levels.number is not None  # targets that need a table require it
            column = e.expand(cell, [levels.number, 1])
        else:
            column = e.constant(np.reshape(levels.points, (-1, 1)))
        return e.concatenate([column, levels.lengths.astype("int64")], axis=1)


class AttentionSource(ABC):
    """A deformable attention of a model.

    Attributes:
        e: writes the nodes.
    """

    e: Expressions

    @property
    @abstractmethod
    def output_layout(self) -> OutputLayout:
        """The layout of the model's output."""

    @abstractmethod
    def call(self) -> AttentionCall:
        """Return the operands. Nodes compute those that the model does not have."""

    @property
    def is_partial(self) -> bool:
        """Whether the model adds other samples to the result of the call."""
        return False

    def rearranged(self, by_query: Tensor, call: AttentionCall) -> Tensor:
        """Return the result in :attr:`output_layout` from (B, Q, H·D)."""
        if self.output_layout == "by_query":
            return by_query
        assert self.output_layout == "by_head"  # only detected attentions have the third layout
        e = self.e
        return e.op("Reshape", by_query, e.shape([0, 0, e.lengths(call.value, 2, 3)]))

    def output(self, result: Tensor) -> Tensor:
        """Return the model's output, which follows from the result in :attr:`output_layout`."""
        return result
