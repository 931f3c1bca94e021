"""AffineGrid: the positions of the output's pixels, transformed by theta."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from .arrays import Array, Floats
from .coordinates import Axis, Values, normalize
from .threads import for_each


def transform(row: Values, positions: Sequence[Values]) -> Values:
    """One coordinate of a grid: a row (r + 1,) of theta, applied to ``positions`` along its axes, outermost first."""
    *factors, total = row
    for position, factor in zip(positions, reversed(factors), strict=True):
        total = total + position * factor
    return total


def affine_grid(theta: Floats, lengths: tuple[int, ...], align_corners: bool, grid: Array, num_threads: int) -> None:
    """Fill ``grid`` (N, D1, …, Dr, r) with the positions of the output, transformed by ``theta`` (N, r, r + 1).

    ``lengths`` are D1, …, Dr; coordinates are normalized, innermost axis first.
    """
    r = len(lengths)
    axes = []
    for i, length in enumerate(lengths):
        axis = Axis.of(length, align_corners, length == 1)
        positions = normalize(np.arange(length, dtype=np.float64), axis.last, axis.span)
        axes.append(positions.astype(theta.dtype).reshape((-1,) + (1,) * (r - 1 - i)))

    def fill(slab: tuple[int, int, slice]) -> None:
        batch, row, at = slab
        with np.errstate(all="ignore"):
            outer = transform(theta[batch, row, 1:], [axes[0][at], *axes[1:-1]])
            np.add(outer, axes[-1] * theta[batch, row, 0], out=grid[batch, at, ..., row])

    outermost = lengths[0]
    step = max(1, outermost // (4 * num_threads))
    corners = product(range(len(theta)), range(0, outermost, step), range(r))
    slabs = [(batch, row, slice(start, start + step)) for batch, start, row in corners]
    for_each(fill, slabs, min(num_threads, grid.size // (1 << 15) + 1))
