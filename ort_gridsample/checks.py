"""What the inputs of one call must look like. Every check names the argument, what was found and what was expected."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from . import spec
from .core.plan import type_name
from .errors import GridSampleError


def listed(names: Iterable[object]) -> str:
    """``'a', 'b' or 'c'``."""
    *most, last = [repr(name) for name in names]
    return f"{', '.join(most)} or {last}" if most else last


def mode_and_padding(where: str, mode: str, padding_mode: str, X_type: str) -> None:
    """Check the two attributes, and that the mode is defined for an X of type ``X_type``."""
    if spec.mode_of(mode) not in spec.MODES:
        raise GridSampleError(where, "mode", repr(mode), listed((*spec.MODES, *spec.MODE_SYNONYMS)))
    if padding_mode not in spec.PADDING_MODES:
        raise GridSampleError(where, "padding_mode", repr(padding_mode), listed(spec.PADDING_MODES))
    if spec.TYPES[X_type].compute is None and spec.mode_of(mode) != "nearest":
        raise GridSampleError(where, "mode", repr(mode), f"'nearest', the only mode that is defined for {X_type} X")


def element_type(where: str, argument: str, dtype: np.dtype[np.generic], allowed: Collection[str]) -> str:
    """The name of ``dtype`` in :data:`ort_gridsample.spec.TYPES`, checked to be among ``allowed``."""
    name = type_name(dtype)
    if name not in allowed:
        raise GridSampleError(where, argument, f"of type {dtype}", f"one of {', '.join(allowed)}")
    return name


def grid_sample_shape(
    where: str, X: Sequence[int], grid: Sequence[int], padding_mode: str = "zeros"
) -> tuple[int, ...]:
    """The shape of Y for these shapes of X and grid."""
    X, grid = tuple(X), tuple(grid)
    r = len(X) - 2
    if r < 1:
        raise GridSampleError(where, "X", f"of shape {X}", "(N, C, D1, …, Dr), at least one spatial axis")
    if len(grid) != r + 2 or grid[-1] != r:
        outputs = ", ".join(f"D{i + 1}_out" for i in range(r))
        raise GridSampleError(
            where, "grid", f"of shape {grid}", f"(N, {outputs}, {r}), as X of shape {X} has {r} spatial axes"
        )
    if grid[0] != X[0]:
        raise GridSampleError(where, "grid", f"of shape {grid}", f"N = {X[0]} first, as in X of shape {X}")
    Y = (*X[:2], *grid[1:-1])
    if 0 in X[2:] and 0 not in Y and padding_mode != "zeros":
        raise GridSampleError(
            where, "X", f"of shape {X}", f"no spatial axis of length 0: padding_mode {padding_mode!r} needs a pixel"
        )
    return Y


def affine_grid_shape(where: str, theta: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """The shape of the grid for a theta of this shape and for this size."""
    theta, size = tuple(theta), tuple(size)
    found = f"of shape {theta}"
    if len(theta) != 3 or theta[1:] not in ((2, 3), (3, 4)):
        raise GridSampleError(where, "theta", found, "(N, 2, 3) or (N, 3, 4)")
    r = theta[1]
    expected = "(N, C, H, W)" if r == 2 else "(N, C, D, H, W)"
    if len(size) != r + 2:
        raise GridSampleError(where, "size", f"{size}", f"{expected}, as theta is {found}")
    if min(size) < 0:
        raise GridSampleError(where, "size", f"{size}", f"{expected}, none of them negative, as theta is {found}")
    if size[0] != theta[0]:
        raise GridSampleError(where, "size", f"{size}", f"N = {theta[0]} first, as theta is {found}")
    return (size[0], *size[2:], r)


def fits_memory(where: str, argument: str, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
    """Check that an array of this shape can be addressed at all."""
    count = 1
    for length in shape:
        count *= int(length)
    if count * dtype.itemsize > sys.maxsize:
        raise GridSampleError(where, argument, f"of shape {tuple(shape)}", "fewer bytes than an address can reach")
