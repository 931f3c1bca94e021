"""GridSample as a function on arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import spec
from ..reference.arrays import Array, aligned_empty, native_dtype
from ..reference.plan import Plan, plan_for
from ..spec import ModeName, PaddingModeName
from ..system.memory import MIN_CHECKED_BYTES
from . import validation
from .cores import load_core

S = TypeVar("S", bound=np.generic)

#: The minimum size in bytes, and number of channels, of an output that is aligned to cache lines.
#: Kernels of so many channels take 1.1 to 1.3 times as long if vectors that they write cross cache
#: lines.
MIN_ALIGNED_BYTES = 1 << 17
MIN_ALIGNED_CHANNELS = 9


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
    if type(X) is not np.ndarray:
        X = validation.to_array(where, "X", X)
    if type(grid) is not np.ndarray:
        grid = validation.to_array(where, "grid", grid)
    X_dtype = X.dtype
    if X_dtype.kind == "O":
        validation.check_type(where, "X", X_dtype, spec.TYPES)
        validation.check_strings(where, "X", X)
    # A wrong mode may be unhashable: then check without the cache, for the error message.
    can_hash = type(mode) is str and type(padding_mode) is str
    check = _checked_call if can_hash else _checked_call.__wrapped__
    align_corners = bool(align_corners)
    call = check(where, X_dtype, grid.dtype, mode, padding_mode, align_corners, X.shape, grid.shape)
    if num_threads is not None:
        validation.check_num_threads(where, num_threads)
    if not call.are_shapes_plainly_valid:
        validation.check_grid_sample_shapes(where, X.shape, grid.shape, padding_mode)
    if call.may_exceed_memory:
        validation.check_memory(where, "Y", call.Y_shape, X_dtype)
    if not X.flags.c_contiguous:  # it is copied
        validation.check_memory(where, "X", X.shape, X_dtype)
    if not grid.flags.c_contiguous:
        validation.check_memory(where, "grid", grid.shape, grid.dtype)

    try:
        return _sample(X, grid, call, num_threads)
    except MemoryError as error:
        raise validation.memory_error(where, error) from error


def _sample(X: Array, grid: Array, call: _Call, num_threads: SupportsIndex | None) -> Array:
    """Sample arrays that were checked."""
    Y = call.allocate(call.Y_shape, call.Y_dtype)
    if call.is_output_empty:
        return Y
    if X.size == 0:
        Y[...] = call.plan.zero
        return Y
    X = np.ascontiguousarray(X, call.Y_dtype)
    if not grid.dtype.isnative:
        grid = grid.astype(native_dtype(grid.dtype))
    load_core().grid_sample(X, grid, Y, call.plan, num_threads)
    return Y


class _Call(NamedTuple):
    """What follows from the types, attributes and shapes of a call."""

    plan: Plan
    #: Whether the shapes fit together, and X has no length of 0. If not, check_grid_sample_shapes
    #: decides.
    are_shapes_plainly_valid: bool
    Y_shape: tuple[int, ...]
    Y_dtype: np.dtype[np.generic]
    is_output_empty: bool
    #: Whether check_memory decides if there is memory for Y.
    may_exceed_memory: bool
    #: The function that allocates Y.
    allocate: Callable[[tuple[int, ...], np.dtype[np.generic]], Array]


@lru_cache(maxsize=256)
def _checked_call(
    where: str,
    X_dtype: np.dtype[np.generic],
    grid_dtype: np.dtype[np.generic],
    mode: str,
    padding_mode: str,
    align_corners: bool,
    X: tuple[int, ...],
    grid: tuple[int, ...],
) -> _Call:
    """Check the types and attributes, and return what follows from these and the shapes.

    Most calls have those of an earlier one, whose result is kept.

    Raises:
        GridSampleError: a type or an attribute is not allowed.
    """
    X_type = validation.check_type(where, "X", X_dtype, spec.TYPES)
    validation.check_type(where, "grid", grid_dtype, spec.FLOATS)
    validation.check_mode_and_padding(where, mode, padding_mode, X_type)
    dtype = native_dtype(X_dtype)
    r = len(X) - 2
    Y_shape = X[:2] + grid[1:-1]
    nbytes = math.prod(Y_shape) * dtype.itemsize
    is_aligned = nbytes >= MIN_ALIGNED_BYTES and len(X) > 1 and X[1] >= MIN_ALIGNED_CHANNELS
    return _Call(
        plan=plan_for(dtype, mode, padding_mode, align_corners),
        are_shapes_plainly_valid=(
            r >= 1 and len(grid) == r + 2 and grid[-1] == r and grid[0] == X[0] and 0 not in X
        ),
        Y_shape=Y_shape,
        Y_dtype=dtype,
        is_output_empty=0 in Y_shape,
        may_exceed_memory=not 0 < nbytes < MIN_CHECKED_BYTES,
        allocate=aligned_empty if is_aligned else np.empty,
    )
