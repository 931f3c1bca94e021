"""AffineGrid: the normalized positions of the output's pixels, transformed by theta."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from ..system.threads import for_each
from .arrays import Array, Floats
from .coordinates import Axis, Values, normalize

#: The elements of a grid that are worth another thread.
ELEMENTS_PER_THREAD = 1 << 15
#: The grid is cut into this many slabs per thread, so that threads that finish early get more work.
SLABS_PER_THREAD = 4


def transform(row: Values, positions: Sequence[Values]) -> Values:
    """Apply one row of theta to positions; return one coordinate of the grid.

    Args:
        row: (r + 1,), the factors of the axes, innermost first, and then the offset.
        positions: r values that broadcast against each other: the normalized positions along each
            axis, outermost axis first.
    """
    *factors, total = row
    for position, factor in zip(positions, reversed(factors), strict=True):
        total = total + position * factor
    return total


def affine_grid(
    theta: Floats,
    lengths: tuple[int, ...],
    align_corners: bool,
    grid: Array,
    num_threads: int,
) -> None:
    """Fill ``grid`` with the normalized positions of the output, transformed by ``theta``.

    Args:
        theta: (N, r, r + 1), of the type to compute in.
        lengths: D1, …, Dr, the lengths of the output's axes.
        align_corners: whether -1 and 1 are the centers of the outer pixels.
        grid: (N, D1, …, Dr, r), the result: normalized coordinates, innermost axis first.
        num_threads: the maximum number of threads.
    """
    r = len(lengths)
    axes = [
        _axis_positions(length, align_corners, theta.dtype).reshape((-1,) + (1,) * (r - 1 - i))
        for i, length in enumerate(lengths)
    ]

    def fill(slab: tuple[int, int, slice]) -> None:
        batch, row, outer_range = slab
        with np.errstate(all="ignore"):
            # The innermost axis comes last, so that only one operation covers the whole slab.
            outer = transform(theta[batch, row, 1:], [axes[0][outer_range], *axes[1:-1]])
            inner = axes[-1] * theta[batch, row, 0]
            np.add(outer, inner, out=grid[batch, outer_range, ..., row])

    outermost = lengths[0]
    step = max(1, outermost // (SLABS_PER_THREAD * num_threads))
    starts = product(range(len(theta)), range(0, outermost, step), range(r))
    slabs = [(batch, row, slice(start, start + step)) for batch, start, row in starts]
    for_each(fill, slabs, min(num_threads, grid.size // ELEMENTS_PER_THREAD + 1))


def _axis_positions(length: int, align_corners: bool, dtype: np.dtype[np.generic]) -> Floats:
    """Return the normalized positions of an axis's pixels: computed in float64, then rounded."""
    axis = Axis.of(length, align_corners, may_be_single=length == 1)
    pixels = np.arange(length, dtype=np.float64)
    return normalize(pixels, axis.last, axis.span).astype(dtype)
