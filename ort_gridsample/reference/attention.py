"""Deformable attention of the NumPy core, level by level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from .. import spec
from ..system.threads import for_each
from . import blocks
from .arrays import Array, Floats, Indices
from .blocks import ceil_div
from .plan import Plan, type_name
from .tap_table import tap_table


def deformable_attention(
    value: Array,
    levels: Indices,
    locations: Floats,
    weights: Floats,
    Y: Array,
    plan: Plan,
    num_threads: int,
) -> None:
    """Add up weighted samples of ``value`` (B, S, H, D) into ``Y`` (B, Q, H, D).

    :mod:`ort_gridsample.functions.cores` describes the arguments.
    """
    n_batches, n_queries, n_heads, n_channels = Y.shape
    weights = np.broadcast_to(weights, (n_batches, n_queries, *weights.shape[2:]))
    n_taps = 1 << locations.shape[-1]
    coordinate_type = spec.TYPES[type_name(locations.dtype)].compute
    taps_per_query = n_taps * max(levels[:, 0].tolist())
    query_bytes = taps_per_query * max(1, n_channels) * plan.compute.itemsize
    step = max(1, blocks.CHUNK_BYTES // query_bytes)
    level_slices = _split_levels(levels)

    def add_up(block: tuple[int, int, slice]) -> None:
        batch, head, block_queries = block
        Y[batch, block_queries, head] = _attend_levels(
            value[batch, :, head],
            level_slices,
            locations[batch, block_queries, head].astype(coordinate_type),
            weights[batch, block_queries, head].astype(plan.compute),
            plan,
        )

    starts = product(range(n_batches), range(n_heads), range(0, n_queries, step))
    query_blocks = [(batch, head, slice(start, start + step)) for batch, head, start in starts]
    threads = ceil_div(weights.size * n_taps * n_channels, blocks.TAPS_PER_THREAD)
    for_each(add_up, query_blocks, min(num_threads, threads, len(query_blocks)))


@dataclass(frozen=True)
class _Level:
    """One level of deformable attention: an image in the pixels of all levels."""

    lengths: tuple[int, ...]  #: of its axes, outermost first
    n_points: int
    pixels: slice  #: its pixels in ``value``
    points: slice  #: its points in ``locations`` and ``weights``


def _split_levels(levels: Indices) -> list[_Level]:
    """Divide all pixels and points among the levels.

    ``levels`` is (L, 1 + r): the number of points of each level, and its lengths.
    """
    split = []
    first_pixel = 0
    first_point = 0
    for n_points, *lengths in levels.tolist():
        pixels = slice(first_pixel, first_pixel + math.prod(lengths))
        points = slice(first_point, first_point + n_points)
        split.append(_Level(tuple(lengths), n_points, pixels, points))
        first_pixel = pixels.stop
        first_point = points.stop
    return split


def _attend_levels(
    pixels: Array,
    levels: Sequence[_Level],
    locations: Floats,
    weights: Floats,
    plan: Plan,
) -> Array:
    """Add up the weighted samples of all levels, for some queries of one head.

    Args:
        pixels: (S, D), the pixels of all levels.
        locations: (Q, P, r), in [0, 1].
        weights: (Q, P), the weights of the samples.
        plan: the plan of linear and zeros for the type of ``pixels``.

    Returns:
        The sums, (Q, D).
    """
    total = np.zeros((len(locations), pixels.shape[1]), plan.compute)
    with np.errstate(all="ignore"):
        grid = locations * 2 - 1  # from [0, 1] to [-1, 1]
        for level in levels:
            if level.n_points > 0:
                total += _attend_level(
                    pixels[level.pixels],
                    grid[:, level.points],
                    weights[:, level.points],
                    level.lengths,
                    plan,
                )
    return total


def _attend_level(
    image: Array,
    grid: Floats,
    weights: Floats,
    lengths: tuple[int, ...],
    plan: Plan,
) -> Array:
    """Add up the weighted samples of one level.

    Args:
        image: (S, D), the pixels of the level.
        grid: (Q, P, r), normalized coordinates in [-1, 1].
        weights: (Q, P), the weights of the samples.
        lengths: the r lengths of the image.
        plan: the plan of linear and zeros for the type of ``image``.

    Returns:
        The sums, (Q, D).
    """
    if len(image) == 0:
        # All samples are 0, but the product with an infinite or NaN weight is NaN. The products are
        # added, because the sum of finite weights may overflow.
        return np.zeros((1, image.shape[1]), plan.compute) + (weights * 0).sum(1)[:, None]
    table = tap_table(grid.reshape(-1, len(lengths)), lengths, plan)
    assert table.weight is not None  # it is None only for nearest
    pixels = image.take(table.index, axis=0, mode=blocks.INDEX_MODE)
    pixels = pixels.astype(plan.compute, copy=False)
    if table.inside is not None:
        pixels[~table.inside] = 0
    tap_weights = table.weight.reshape(-1, *weights.shape) * weights
    return np.einsum("tqpd,tqp->qd", pixels.reshape(*tap_weights.shape, -1), tap_weights)
