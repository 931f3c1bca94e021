"""What the inputs of one call must look like. Every check names the argument, what was found and what was expected."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from . import spec
from .core import memory, threads
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


def num_threads(where: str, found: object) -> None:
    """Check that there can be so many threads, or None."""
    if found is not None and not threads.is_number(found):
        raise GridSampleError(where, "num_threads", repr(found), f"{threads.A_NUMBER}, or None")


#: A dimension; in a model it may be a name or unknown, and then agrees with everything.
Dim = int | str | None


def _differ(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


def _shown(shape: Sequence[Dim]) -> str:
    return f"of shape ({', '.join('?' if d is None else str(d) for d in shape)})"


def grid_sample_shapes(
    where: str, X: Sequence[Dim] | None, grid: Sequence[Dim] | None, padding_mode: object = "zeros"
) -> None:
    """Check the shapes of X and grid against each other, as far as they are known."""
    if X is not None and len(X) < 3:
        raise GridSampleError(where, "X", _shown(X), "shape (N, C, D1, …, Dr) with at least one spatial axis")
    if grid is not None and (len(grid) < 3 or _differ(grid[-1], len(grid) - 2)) and X is None:
        raise GridSampleError(where, "grid", _shown(grid), "shape (N, D1_out, …, Dr_out, r)")
    if X is None or grid is None:
        return
    r = len(X) - 2
    if len(grid) != r + 2 or _differ(grid[-1], r):
        outputs = ", ".join(f"D{i + 1}_out" for i in range(r))
        axes = "1 spatial axis" if r == 1 else f"{r} spatial axes"
        raise GridSampleError(where, "grid", _shown(grid), f"shape (N, {outputs}, {r}), as X {_shown(X)} has {axes}")
    if _differ(grid[0], X[0]):
        raise GridSampleError(where, "grid", _shown(grid), f"N = {X[0]} first, as X is {_shown(X)}")
    Y = (*X[:2], *grid[1:-1])
    if 0 in X[2:] and padding_mode in ("border", "reflection") and all(isinstance(d, int) and d > 0 for d in Y):
        raise GridSampleError(
            where, "X", _shown(X), f"no spatial axis of length 0, as padding_mode {padding_mode!r} needs a pixel"
        )


def affine_grid_shapes(where: str, theta: Sequence[Dim] | None, size: Sequence[int] | None) -> None:
    """Check theta's shape and size against each other, as far as they are known."""
    r = None
    if theta is not None:
        r = len(theta) == 3 and next((r for r in (2, 3) if not (_differ(theta[1], r) or _differ(theta[2], r + 1))), 0)
        if not r:
            raise GridSampleError(where, "theta", _shown(theta), "shape (N, 2, 3) or (N, 3, 4)")
    if size is None:
        return
    expected = {None: "(N, C, H, W) or (N, C, D, H, W)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}[r]
    beside = f", as theta is {_shown(theta)}" if theta is not None else ""
    if len(size) not in ((4, 5) if r is None else (r + 2,)):
        raise GridSampleError(where, "size", str(tuple(size)), expected + beside)
    if min(size) < 0:
        raise GridSampleError(where, "size", str(tuple(size)), f"{expected}, nothing negative{beside}")
    if theta is not None and _differ(theta[0], size[0]):
        raise GridSampleError(where, "size", str(tuple(size)), f"N = {theta[0]} first{beside}")


def fits_memory(where: str, argument: str, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
    """Check that there is room for an array of this shape, before any of it is taken."""
    # numpy multiplies the other axes of an empty array too.
    nbytes = math.prod(max(1, int(length)) for length in shape) * dtype.itemsize
    if nbytes < memory.WORTH_ASKING:
        return
    found = f"of shape {tuple(map(int, shape))} and {nbytes} bytes"
    if nbytes > np.iinfo(np.intp).max:
        raise GridSampleError(where, argument, found, "fewer bytes than an address can reach")
    room = memory.available()
    if room is not None and nbytes > room and 0 not in shape:
        raise GridSampleError(where, argument, found, f"at most {room} bytes, the memory that is left")
