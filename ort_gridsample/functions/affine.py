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
from . import error_templates as templates
from . import validation
from .grid_operators import Constants, GridOperator, InputShapes, length_of

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
        raise templates.SIZE_NOT_1D.error(where, type=size.dtype, size=size_shape)
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


# --- AffineGrid in models ---


def _count_affine_axes(shapes: InputShapes) -> int | None:
    theta, size = shapes
    rows = length_of(theta, 1)  # theta is (N, r, r + 1)
    if rows is not None:
        return rows
    row_length = length_of(theta, 2)
    if row_length is not None:
        return row_length - 1
    size_length = length_of(size, 0)  # size is N, C and r lengths
    return None if size_length is None else size_length - 2


def _check_affine_grid(where: str, shapes: InputShapes, constants: Constants) -> None:
    """Check the shapes of an AffineGrid's inputs, and the values of a constant size."""
    theta, size = shapes
    validation.check_affine_grid_shapes(where, theta, _constant_row(constants, "size"))
    if not validation.may_match(size, (4,)) and not validation.may_match(size, (5,)):
        size_shape = validation.format_shape(size or ())
        raise templates.SIZE_SHAPE_INVALID.error(where, size=size_shape)


def _affine_grid_shape(constants: Constants) -> list[spec.Dim] | None:
    numbers = _constant_row(constants, "size")
    return None if numbers is None else [numbers[0], *numbers[2:], len(numbers) - 2]


def _constant_row(constants: Constants, name: str) -> list[int] | None:
    """Return the numbers of a constant of one axis; None if there is none."""
    constant = constants.get(name)
    return constant.tolist() if constant is not None and constant.ndim == 1 else None


def _affine_test_shapes(shapes: InputShapes, n_axes: int) -> list[list[spec.Dim]]:
    return [list(shapes[0] or (None, n_axes, n_axes + 1)), [n_axes + 2]]


def _affine_test_inputs(
    shapes: Sequence[Sequence[spec.Dim]], size: Sequence[int], constants: Constants
) -> list[Array]:
    n, *other_lengths = constants["size"].tolist() if "size" in constants else size
    batch = shapes[0][0]
    if isinstance(batch, int):
        n = batch
    r = len(size) - 2
    theta = np.random.default_rng(0).random((n, r, r + 1))
    return [theta, np.array([n, *other_lengths], np.int64)]


#: What is specific to AffineGrid.
GRID_OPERATOR = GridOperator(
    fused_inputs=("size", "theta"),
    fused_prefix="affine_grid_",
    count_axes=_count_affine_axes,
    check=_check_affine_grid,
    grid_shape=_affine_grid_shape,
    test_shapes=_affine_test_shapes,
    test_inputs=_affine_test_inputs,
)
