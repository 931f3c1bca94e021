"""The shapes of operands that deformable attention accepts.

Compiled ops contain these functions, so that the rules are stated once. They are written as loops
on shapes and levels. Compiled integers wrap around beyond int64, and so sums are capped, and the
size of a product is computed as a float too.

A row of ``levels`` (L, 1 + r) is the number of points of a level, and its lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..reference.arrays import Array

#: The number of points must be smaller. Up to this bound a sum of int64 does not wrap around.
MAX_POINTS = 1 << 61


def output_shape(layout: str, batches: Any, queries: Any, heads: Any, channels: Any) -> list[Any]:
    """Return the shape of the output in a layout of :data:`ort_gridsample.spec.OUTPUT_LAYOUTS`.

    The lengths are integers, or tensors of a model. Compiled ops do not contain this function.
    """
    if layout == "by_query":
        return [batches, queries, heads * channels]
    if layout == "by_head":
        return [batches, queries, heads, channels]
    return [batches * heads, channels, queries]


def count_points(value: Sequence[int], shape: Sequence[int], n_last_axes: int) -> int:
    """Return the number of points of each head.

    Args:
        value: the shape (B, S, H, D) of value.
        shape: the shape (B, Q, H, …) of the locations or of the weights.
        n_last_axes: the number of its last axes that do not enumerate points.

    Returns:
        The number, or -1 if the shape does not fit that of value, or has :data:`MAX_POINTS` or
        more.
    """
    if len(shape) < 4 or shape[0] != value[0] or shape[2] != value[2]:
        return -1
    count = 1
    magnitude = 1.0  # unlike the count, it does not wrap around
    for axis in range(3, len(shape) - n_last_axes):
        count *= shape[axis]
        magnitude *= float(shape[axis])
    return count if magnitude < float(MAX_POINTS) else -1


def has_points_of_levels(levels: Array, n_points: int, locations: Sequence[int]) -> bool:
    """Whether the locations have the points and the axes of the levels.

    Args:
        levels: the levels, without a negative number.
        n_points: the number of points of the locations; -1 if their shape is wrong.
        locations: the shape (B, Q, H, L, P, r) or (B, Q, H, P, r) of the locations.
    """
    total = 0
    for level in range(len(levels)):
        total = min(total + min(levels[level, 0], MAX_POINTS), MAX_POINTS)
    n_axes = len(locations)
    if total != n_points or n_axes not in (5, 6):
        return False
    has_levels = n_axes != 6 or locations[3] == len(levels)
    return has_levels and locations[n_axes - 1] == levels.shape[1] - 1


def do_weights_fit(weights: Sequence[int], locations: Sequence[int]) -> bool:
    """Whether a shape of weights, with the right number of points, fits that of the locations.

    Args:
        weights: the shape (B, Q, H, L, P), (B, Q, H, P), or (B, 1, H, P) for one query that applies
            to all.
        locations: the shape of the locations.
    """
    n_axes = len(weights)
    if n_axes not in (4, 5):
        return False
    have_levels = n_axes == 5 and len(locations) == 6
    if have_levels and weights[3] != locations[3]:
        return False
    # Without a level, the numbers of points are equal even if this axis differs.
    if have_levels and weights[4] != locations[4]:
        return False
    is_one_for_all_queries = weights[1] == 1 and n_axes == 4
    return is_one_for_all_queries or weights[1] == locations[1]
