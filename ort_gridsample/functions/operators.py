"""The operators as functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from .. import spec
from ..errors import GridSampleError
from ..reference import affine
from ..reference.arrays import Array
from ..reference.plan import plan_for, type_name
from ..reference.threads import ELEMENTS_PER_THREAD, get_num_threads
from ..spec import ModeName, PaddingModeName
from . import validation
from .cores import load_core

S = TypeVar("S", bound=np.generic)


@overload
def grid_sample(
    X: npt.NDArray[S], grid: npt.ArrayLike, mode: ModeName = ..., padding_mode: PaddingModeName = ...,
    align_corners: bool = ..., *, where: str = ..., num_threads: SupportsIndex | None = ...,
) -> npt.NDArray[S]: ...  # fmt: skip
@overload
def grid_sample(
    X: npt.ArrayLike, grid: npt.ArrayLike, mode: ModeName = ..., padding_mode: PaddingModeName = ...,
    align_corners: bool = ..., *, where: str = ..., num_threads: SupportsIndex | None = ...,
) -> Array: ...  # fmt: skip
def grid_sample(
    X: npt.ArrayLike, grid: npt.ArrayLike, mode: ModeName = "linear", padding_mode: PaddingModeName = "zeros",
    align_corners: bool = False, *, where: str = "grid_sample", num_threads: SupportsIndex | None = None,
) -> Array:  # fmt: skip
    """Sample ``X`` at the positions ``grid``.

    >>> import numpy as np
    >>> X = np.array([[[[0., 1.], [2., 3.]]]])           # one image of 2×2 pixels
    >>> grid_sample(X, np.zeros((1, 1, 1, 2)))            # at its centre
    array([[[[1.5]]]])

    Args:
        X: (N, C, D1, …, Dr), r ≥ 1; any numpy type that ONNX has, and bfloat16 of ``ml_dtypes``. Strings can only be
            sampled with ``"nearest"``.
        grid: (N, D1_out, …, Dr_out, r), floating point: normalized coordinates in [-1, 1], the innermost axis of X
            first. Coordinates outside are answered by ``padding_mode``; NaN counts as -1.
        mode: ``"nearest"``, ``"linear"`` or ``"cubic"`` (``"bilinear"`` and ``"bicubic"`` are synonyms).
        padding_mode: ``"zeros"``, ``"border"`` or ``"reflection"``.
        align_corners: whether -1 and 1 are the centres of the outer pixels instead of their outer edges.
        where: the name of the function or node in errors.
        num_threads: the most threads; None is :func:`ort_gridsample.get_num_threads`.

    Returns:
        Y: (N, C, D1_out, …, Dr_out), of X's type. Integers are interpolated in floating point, truncated toward zero
        and saturated.

    Raises:
        GridSampleError: an argument is not as described here.

    Source: ONNX GridSample-22 (and -20, -16), OpenVINO GridSample-9.
    """
    X, grid = np.asarray(X), np.asarray(grid)
    name = validation.element_type(where, "X", X.dtype, spec.TYPES)
    validation.element_type(where, "grid", grid.dtype, spec.FLOATS)
    validation.mode_and_padding(where, mode, padding_mode, name)
    validation.num_threads(where, num_threads)
    validation.grid_sample_shapes(where, X.shape, grid.shape, padding_mode)
    shape = (*X.shape[:2], *grid.shape[1:-1])
    validation.fits_memory(where, "Y", shape, X.dtype)
    for argument, array in (("X", X), ("grid", grid)):
        if not array.flags.c_contiguous:  # a copy is made
            validation.fits_memory(where, argument, array.shape, array.dtype)
    dtype = _native(X.dtype)
    plan = plan_for(dtype, mode, padding_mode, bool(align_corners))
    Y = np.empty(shape, dtype)
    if Y.size == 0:
        return Y
    if X.size == 0:
        Y[...] = plan.zero
        return Y
    X, grid = np.ascontiguousarray(X, dtype), grid.astype(_native(grid.dtype), copy=False)
    positions, count = grid.reshape(len(grid), -1, grid.shape[-1]), _count(num_threads, Y.size > ELEMENTS_PER_THREAD)
    load_core().grid_sample(X, positions, Y.reshape(*shape[:2], -1), plan, count)
    return Y


@overload
def affine_grid(
    theta: npt.NDArray[S], size: Sequence[SupportsIndex] | npt.NDArray[np.integer], align_corners: bool = ...,
    *, where: str = ..., num_threads: SupportsIndex | None = ...,
) -> npt.NDArray[S]: ...  # fmt: skip
@overload
def affine_grid(
    theta: npt.ArrayLike, size: Sequence[SupportsIndex] | npt.NDArray[np.integer], align_corners: bool = ...,
    *, where: str = ..., num_threads: SupportsIndex | None = ...,
) -> Array: ...  # fmt: skip
def affine_grid(
    theta: npt.ArrayLike, size: Sequence[SupportsIndex] | npt.NDArray[np.integer], align_corners: bool = False,
    *, where: str = "affine_grid", num_threads: SupportsIndex | None = None,
) -> Array:  # fmt: skip
    """The grid that samples an image transformed by ``theta``.

    >>> affine_grid([[[1., 0., 0.], [0., 1., 0.]]], (1, 1, 1, 2))    # the identity, for an output of 1×2 pixels
    array([[[[-0.5,  0. ],
             [ 0.5,  0. ]]]])

    Args:
        theta: (N, 2, 3) or (N, 3, 4), floating point: from normalized output to normalized input coordinates.
        size: (N, C, H, W) or (N, C, D, H, W) of the output, integers.
        align_corners: whether -1 and 1 are the centres of the outer pixels instead of their outer edges.
        where: the name of the function or node in errors.
        num_threads: the most threads; None is :func:`ort_gridsample.get_num_threads`.

    Returns:
        grid: (N, H, W, 2) or (N, D, H, W, 3), of theta's type: normalized coordinates, innermost axis first.

    Raises:
        GridSampleError: an argument is not as described here.

    Source: ONNX AffineGrid-20. On an axis of one pixel with ``align_corners`` the position is 0, as in PyTorch.
    """
    theta, size = np.asarray(theta), np.asarray(size)
    validation.element_type(where, "theta", theta.dtype, spec.FLOATS)
    validation.num_threads(where, num_threads)
    if size.dtype.kind not in "iu" or size.ndim != 1:
        raise validation.SIZE_IS_NO_ROW.error(where, type=size.dtype, size=validation.shown(size.shape))
    lengths = size.tolist()
    validation.affine_grid_shapes(where, theta.shape, lengths)
    shape = (lengths[0], *lengths[2:], len(lengths) - 2)
    dtype = _native(theta.dtype)
    validation.fits_memory(where, "grid", shape, dtype)
    grid = np.empty(shape, dtype)
    compute = np.dtype(spec.TYPES[dtype.name].compute)
    affine.affine_grid(theta.astype(compute), shape[1:-1], bool(align_corners), grid, _count(num_threads))
    return grid


def deformable_attention(
    value: npt.ArrayLike, spatial_shapes: Sequence[Sequence[SupportsIndex]] | npt.NDArray[np.integer],
    sampling_locations: npt.ArrayLike, attention_weights: npt.ArrayLike, align_corners: bool = False,
    *, where: str = "deformable_attention", num_threads: SupportsIndex | None = None,
) -> Array:  # fmt: skip
    """Multi-scale deformable attention: for each query and head a weighted sum of samples of several images.

    >>> import numpy as np
    >>> value = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1, 1)              # one image of 2×2 pixels, one channel
    >>> where = np.array([0.25, 0.25, 0.5, 0.5]).reshape(1, 1, 1, 1, 2, 2)      # its first pixel, and its centre
    >>> deformable_attention(value, [(2, 2)], where, np.full((1, 1, 1, 1, 2), 0.5))
    array([[[1.75]]])

    Samples are linear, and 0 outside of an image.

    Args:
        value: (B, S, H, D), floating point: the S pixels of all L levels, H heads of D channels.
        spatial_shapes: (L, r), integers: the lengths of each level, outermost axis first, whose products add up to S.
        sampling_locations: (B, Q, H, L, P, r), floating point: P points on each level for each of Q queries, in [0, 1]
            from edge to edge (or with ``align_corners`` from centre to centre), innermost axis first.
        attention_weights: (B, Q, H, L, P), of value's type.
        align_corners: whether 0 and 1 are the centres of the outer pixels instead of their outer edges.
        where: the name of the function or node in errors.
        num_threads: the most threads; None is :func:`ort_gridsample.get_num_threads`.

    Returns:
        Y: (B, Q, H·D), of value's type.

    Raises:
        GridSampleError: an argument is not as described here.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection" (2021), equation 3.
    """
    lengths, locations = np.asarray(spatial_shapes), np.asarray(sampling_locations)
    if lengths.dtype.kind not in "iu":
        raise GridSampleError(where, "spatial_shapes", f"of type {lengths.dtype}", "integers")
    if lengths.ndim != 2 or lengths.shape[1] < 1:
        raise validation.LEVELS.error(where, spatial_shapes=validation.shown(lengths.shape))
    weights = np.asarray(attention_weights)
    if locations.ndim == 6 and weights.shape != locations.shape[:-1]:
        quoted = {
            "attention_weights": validation.shown(weights.shape),
            "sampling_locations": validation.shown(locations.shape),
        }
        raise validation.ATTENTION_WEIGHTS.error(where, **quoted)
    points = locations.shape[4] if locations.ndim == 6 else -1  # which no shape has
    levels = np.insert(lengths, 0, points, axis=1)
    return attend(value, levels, locations, weights, align_corners, where=where, num_threads=num_threads)


def attend(
    value: npt.ArrayLike, levels: Array, sampling_locations: npt.ArrayLike, attention_weights: npt.ArrayLike,
    align_corners: bool, *, where: str, num_threads: SupportsIndex | None,
) -> Array:  # fmt: skip
    """As :func:`deformable_attention`; ``levels`` (L, 1 + r) has the points of each level before its lengths.

    The points of all levels may be in one axis: locations (B, Q, H, P, r) and weights (B, Q, H, P). Weights
    (B, 1, H, P) may be of one query for all.
    """
    value, locations, weights = map(np.asarray, (value, sampling_locations, attention_weights))
    for argument, array in (("value", value), ("sampling_locations", locations)):
        validation.element_type(where, argument, array.dtype, spec.FLOATS)
    validation.element_type(where, "attention_weights", weights.dtype, (type_name(value.dtype),))
    validation.num_threads(where, num_threads)
    if levels.ndim != 2 or levels.shape[1] < 2:
        raise validation.LEVELS.error(where, spatial_shapes=validation.shown(levels.shape))
    levels = levels.astype(np.int64, order="C")
    points, lengths = levels[:, 0], levels[:, 1:]
    validation.attention_shapes(where, value.shape, lengths, points.tolist(), locations.shape, weights.shape)
    n, queries, heads, channels = *locations.shape[:3], value.shape[3]
    shape, r, dtype = (n, queries, heads * channels), lengths.shape[1], _native(value.dtype)
    validation.fits_memory(where, "Y", shape, dtype)
    Y = np.zeros(shape, dtype)
    if Y.size and weights.size and value.size:
        plan = plan_for(dtype, "linear", "zeros", bool(align_corners))
        at = np.ascontiguousarray(locations, _native(locations.dtype)).reshape(n, queries, heads, -1, r)
        by = np.ascontiguousarray(weights, dtype).reshape(n, weights.shape[1], heads, -1)
        arrays = np.ascontiguousarray(value, dtype), levels, at, by, Y.reshape(n, queries, heads, channels)
        load_core().deformable_attention(*arrays, plan, _count(num_threads))
    return Y


def _count(num_threads: SupportsIndex | None, worthwhile: bool = True) -> int:
    if num_threads is not None:
        return index(num_threads)
    return get_num_threads() if worthwhile else 1


def _native(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    # numpy's variable-width strings have no byte order to change.
    return dtype if dtype.isnative else dtype.newbyteorder("=")
