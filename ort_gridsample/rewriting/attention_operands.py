"""The values that a deformable attention reads.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionOperands:
    """The values that a deformable attention reads, by name.

    Shapes are those of another package's node; ``n`` marks where this package's differs.

    n: L and P may be one axis, the last axis is r, and the table is (L, 1 + r).

    Attributes:
        value: (B, S, H, D).
        level_table: (L, 2), the height and the width of each level. n: the number of points and
            the lengths of each level.
        starts: (L,), the first pixel of each level; empty if each level begins where the previous
            one ends.
        locations: (B, Q, H, L, P, 2), n, from 0 to 1.
        weights: (B, Q, H, L, P), n, of the type of ``value``.
    """

    value: str
    level_table: str
    starts: str
    locations: str
    weights: str
