"""AffineGrid as a function on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import spec
from ..reference import affine
from ..reference.arrays import Array, native_dtype
from ..reference.plan import type_name
from ..system.num_threads import resolve_num_threads
from . import validation

S = TypeVar("S", bound=np.generic)


@overload
def affine_grid(
    theta: npt.NDArray[S],
    size: Sequence[SupportsIndex] | npt.NDArray[np.integer],
    align_corners: bool = ...,
    *,
    where: str = ...,
    num_threads: SupportsIndex | None = ...,
) -> npt.NDArray[S]: ...
@overload
def affine_grid(
    theta: npt.ArrayLike,
    size: Sequence[SupportsIndex] | npt.NDArray[np.integer],
    align_corners: bool = ...,
    *,
    where: str = ...,
    num_threads: SupportsIndex | None = ...,
) -> Array: ...
def affine_grid(
    theta: npt.ArrayLike,
    size: Sequence[SupportsIndex] | npt.NDArray[np.integer],
    align_corners: bool = False,
    *,
    where: str = "affine_grid",
    num_threads: SupportsIndex | None = None,
) -> Array:
    """Return the grid that samples an image transformed by ``theta`` (N, 2, 3) or (N, 3, 4).

    ``size`` is the shape of the output (N, C, H, W) or (N, C, D, H, W).

    >>> identity = [[[1., 0., 0.], [0., 1., 0.]]]
    >>> affine_grid(identity, (1, 1, 1, 2))    # for an output of 1×2 pixels
    array([[[[-0.5,  0. ],
             [ 0.5,  0. ]]]])

    Args:
        theta: (N, 2, 3) or (N, 3, 4), floating point. Matrices that map normalized coordinates of
            the output to normalized coordinates of the input, innermost axis first.
        size: (N, C, H, W) or (N, C, D, H, W) of the output, integers.
        align_corners: whether -1 and 1 are the centers of the outer pixels instead of their outer
            edges.
        where: the name of the function or node in error messages.
        num_threads: the maximum number of threads. None selects that of
            :func:`ort_gridsample.get_num_threads`.

    Returns:
        grid: (N, H, W, 2) or (N, D, H, W, 3), of theta's type. Normalized coordinates, innermost
        axis first.

    Raises:
        GridSampleError: an argument is not as described here, or the result does not fit in memory.

    Source: ONNX AffineGrid-20. With ``align_corners`` the position on an axis of one pixel is 0, as
    in PyTorch.
    """
    theta = validation.to_array(where, "theta", theta)
    size = validation.to_array(where, "size", size)
    validation.check_type(where, "theta", theta.dtype, spec.FLOATS)
    validation.check_num_threads(where, num_threads)
    if size.dtype.kind not in "iu" or size.ndim != 1:
        size_shape = validation.format_shape(size.shape)
        raise validation.SIZE_NOT_1D.error(where, type=size.dtype, size=size_shape)
    output_size = size.tolist()
    validation.check_affine_grid_shapes(where, theta.shape, output_size)
    lengths = tuple(output_size[2:])
    shape = (output_size[0], *lengths, len(lengths))
    dtype = native_dtype(theta.dtype)
    validation.check_memory(where, "grid", shape, dtype)

    try:
        grid = np.empty(shape, dtype)
        matrices = theta.astype(spec.TYPES[type_name(dtype)].compute)
        threads = resolve_num_threads(num_threads)
        affine.affine_grid(matrices, lengths, bool(align_corners), grid, threads)
    except MemoryError as error:
        raise validation.memory_error(where, error) from error
    return grid
