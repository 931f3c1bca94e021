"""The values that a deformable attention reads.

The names of axes are those of :mod:`ort_gridsample.detection.attention.layouts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.expressions import Tensor


@dataclass(frozen=True)
class AttentionOperands:
    """The values that a deformable attention reads.

    In another package's node, L and P are two axes and r is 2. In this package's node, L and P may
    be one axis, P.

    Attributes:
        value: (B, S, H, D).
        level_table: the lengths of each level. Another package's: (L, 2), height and width. This
            package's: (L, 1 + r), with the number of points before the lengths.
        starts: (L,), the first pixel of each level; None if each level begins where the previous
            one ends.
        locations: (B, Q, H, L, P, r) or (B, Q, H, P, r), from 0 to 1.
        weights: the axes of ``locations`` without r, in the type of ``value``.
    """

    value: Tensor
    level_table: Tensor
    starts: Tensor | None
    locations: Tensor
    weights: Tensor
