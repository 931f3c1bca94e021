"""GridSample as a function on arrays."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import spec
from ..reference.arrays import Array, native_dtype
from ..reference.plan import Plan, plan_for
from ..spec import ModeName, PaddingModeName
from ..system.num_threads import resolve_num_threads
from . import validation
from .cores import load_core

S = TypeVar("S", bound=np.generic)

#: The maximum size of an output for which it does not pay off to wake a thread.
MAX_SERIAL_ELEMENTS = 1 << 14


@overload
def grid_sample(
    X: npt.NDArray[S],
    grid: npt.ArrayLike,
    mode: ModeName = ...,
    padding_mode: PaddingModeName = ...,
    align_corners: bool = ...,
    *,
    where: str = ...,
    num_threads: SupportsIndex | None = ...,
) -> npt.NDArray[S]: ...
@overload
def grid_sample(
    X: npt.ArrayLike,
    grid: npt.ArrayLike,
    mode: ModeName = ...,
    padding_mode: PaddingModeName = ...,
    align_corners: bool = ...,
    *,
    where: str = ...,
    num_threads: SupportsIndex | None = ...,
) -> Array: ...
def grid_sample(
    X: npt.ArrayLike,
    grid: npt.ArrayLike,
    mode: ModeName = "linear",
    padding_mode: PaddingModeName = "zeros",
    align_corners: bool = False,
    *,
    where: str = "grid_sample",
    num_threads: SupportsIndex | None = None,
) -> Array:
    """Sample ``X`` (N, C, D1, …, Dr) at the positions in ``grid`` (N, D1_out, …, Dr_out, r).

    X may be complex, of strings or of ``ml_dtypes.bfloat16``.

    >>> import numpy as np
    >>> X = np.array([[[[0., 1.], [2., 3.]]]])    # one image of 2×2 pixels
    >>> grid = np.array([[[[0., 0.]]]])           # its center
    >>> grid_sample(X, grid)
    array([[[[1.5]]]])

    Args:
        X: (N, C, D1, …, Dr), r ≥ 1, of any numpy type that ONNX has, or ``ml_dtypes.bfloat16``.
            Strings require the mode ``"nearest"``.
        grid: (N, D1_out, …, Dr_out, r), floating point. Normalized coordinates: [-1, 1] is the
            extent of an axis of X. The last axis of ``grid`` lists the axes of X, innermost first.
            NaN counts as -1.
        mode: ``"nearest"``, ``"linear"``, ``"cubic"`` or ``"lanczos3"``. ``"bilinear"`` and
            ``"bicubic"`` are synonyms of linear and cubic. No specification has ``"lanczos3"``:
            only this function and the package's own ops do.
        padding_mode: the values outside X: ``"zeros"``, ``"border"``, ``"reflection"`` or
            ``"wrap"``, which no specification has either.
        align_corners: whether -1 and 1 are the centers of the outer pixels instead of their outer
            edges.
        where: the name of the function or node in error messages.
        num_threads: the maximum number of threads. None selects that of
            :func:`ort_gridsample.get_num_threads`.

    Returns:
        Y: (N, C, D1_out, …, Dr_out), of X's type. Integers are interpolated in floating point,
        truncated toward zero and saturated.

    Raises:
        GridSampleError: an argument is not as described here, or the result does not fit in memory.
        MemoryError: scratch memory cannot be allocated.

    Source: ONNX GridSample-22 (and -20, -16), OpenVINO GridSample-9.
    """
    X = validation.to_array(where, "X", X)
    grid = validation.to_array(where, "grid", grid)
    if X.dtype.kind == "O":
        validation.check_type(where, "X", X.dtype, spec.TYPES)
        validation.check_strings(where, "X", X)
    # A wrong mode may be unhashable: then check without the cache, for the error message.
    can_hash = type(mode) is str and type(padding_mode) is str
    check = _checked_plan if can_hash else _checked_plan.__wrapped__
    plan = check(where, X.dtype, grid.dtype, mode, padding_mode, bool(align_corners))
    if num_threads is not None:
        validation.check_num_threads(where, num_threads)
    shapes = _shapes(X.shape, grid.shape)
    if not shapes.are_plainly_valid:
        validation.check_grid_sample_shapes(where, X.shape, grid.shape, padding_mode)
    validation.check_memory(where, "Y", shapes.Y, X.dtype)
    if not X.flags.c_contiguous:  # it is copied
        validation.check_memory(where, "X", X.shape, X.dtype)
    if not grid.flags.c_contiguous:
        validation.check_memory(where, "grid", grid.shape, grid.dtype)

    try:
        return _sample(X, grid, shapes, plan, num_threads)
    except MemoryError as error:
        raise validation.memory_error(where, error) from error


def _sample(
    X: Array, grid: Array, shapes: _Shapes, plan: Plan, num_threads: SupportsIndex | None
) -> Array:
    """Sample arrays that were checked."""
    dtype = native_dtype(X.dtype)
    Y = np.empty(shapes.Y, dtype)
    if Y.size == 0:
        return Y
    if X.size == 0:
        Y[...] = plan.zero
        return Y
    X = np.ascontiguousarray(X, dtype)
    if not grid.dtype.isnative:
        grid = grid.astype(native_dtype(grid.dtype))
    flat_grid = grid.reshape(shapes.flat_grid)
    flat_Y = Y.reshape(shapes.flat_output)
    threads = resolve_num_threads(num_threads, is_worthwhile=Y.size > MAX_SERIAL_ELEMENTS)
    load_core().grid_sample(X, flat_grid, flat_Y, plan, threads)
    return Y


@lru_cache(maxsize=256)
def _checked_plan(
    where: str,
    X_dtype: np.dtype[np.generic],
    grid_dtype: np.dtype[np.generic],
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> Plan:
    """Check the types and attributes, and return the plan of these.

    Most calls have the types and attributes of an earlier one, whose plan is kept.

    Raises:
        GridSampleError: a type or an attribute is not allowed.
    """
    X_type = validation.check_type(where, "X", X_dtype, spec.TYPES)
    validation.check_type(where, "grid", grid_dtype, spec.FLOATS)
    validation.check_mode_and_padding(where, mode, padding_mode, X_type)
    return plan_for(native_dtype(X_dtype), mode, padding_mode, align_corners)


class _Shapes(NamedTuple):
    """The shapes that follow from those of X and the grid."""

    #: Whether they fit together, and X has no length of 0. If not, check_grid_sample_shapes
    #: decides.
    are_plainly_valid: bool
    Y: tuple[int, ...]
    #: The shapes of the grid and of Y with all positions on one axis.
    flat_grid: tuple[int, ...]
    flat_output: tuple[int, ...]


@lru_cache(maxsize=256)
def _shapes(X: tuple[int, ...], grid: tuple[int, ...]) -> _Shapes:
    """Return the shapes that follow from those of X and the grid.

    Most calls have the shapes of an earlier one.
    """
    r = len(X) - 2
    are_plainly_valid = (
        r >= 1 and len(grid) == r + 2 and grid[-1] == r and grid[0] == X[0] and 0 not in X
    )
    n_positions = math.prod(grid[1:-1])
    return _Shapes(
        are_plainly_valid,
        Y=X[:2] + grid[1:-1],
        flat_grid=(*grid[:1], n_positions, *grid[-1:]),
        flat_output=(*X[:2], n_positions),
    )
