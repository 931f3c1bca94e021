"""The shapes of the compiled ops' outputs, as far as they can be known before a run."""

from __future__ import annotations

Dim = int | str | None


def grid_sample_shape(X: list[Dim], grid: list[Dim]) -> list[Dim] | None:
    """Y's: (N, C, D1_out, …, Dr_out); None where nothing is known."""
    if len(X) < 3 or len(grid) != len(X):
        return None
    return [X[0] if isinstance(X[0], int) else grid[0], X[1], *grid[1:-1]]


def affine_grid_shape(theta: list[Dim], size: list[Dim]) -> list[Dim] | None:
    """The grid's: (N, D1, …, Dr, r), of which the size's numbers are known in the run only; None where nothing is."""
    r = theta[1] if len(theta) == 3 else None
    return [theta[0], *[None] * r, r] if isinstance(r, int) and r in (2, 3) else None
