"""The shape of the compiled GridSample's output, as far as it can be said before a run.

An AffineGrid's is in the numbers of its size, which only a run knows, and no axis can be left without a number or a
name.
"""

from __future__ import annotations

Dim = int | str | None


def grid_sample_shape(X: list[Dim], grid: list[Dim]) -> list[int | str] | None:
    """Y's: (N, C, D1_out, …, Dr_out); None where not all of it is known."""
    if len(X) < 3 or len(grid) != len(X):
        return None
    shape = [X[0] if isinstance(X[0], int) else grid[0], X[1], *grid[1:-1]]
    known = [dim for dim in shape if dim is not None]
    return known if len(known) == len(shape) else None
