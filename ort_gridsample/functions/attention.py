"""Deformable attention as functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from .. import spec
from ..reference.arrays import Array, native_dtype
from ..reference.plan import Plan, plan_for, type_name
from ..system.num_threads import resolve_num_threads
from . import error_templates as templates
from . import validation
from .attention_shapes import output_shape
from .cores import load_core


def deformable_attention(
    value: npt.ArrayLike,
    spatial_shapes: Sequence[Sequence[SupportsIndex]] | npt.NDArray[np.integer],
    sampling_locations: npt.ArrayLike,
    attention_weights: npt.ArrayLike,
    align_corners: bool = False,
    *,
    where: str = "deformable_attention",
    num_threads: SupportsIndex | None = None,
) -> Array:
    """Compute multi-scale deformable attention: weighted sums of samples of several images.

    Values (B, S, H, D) belong to the pixels of levels of ``spatial_shapes`` (L, r). They are
    sampled at locations (B, Q, H, L, P, r) in [0, 1], and summed with weights (B, Q, H, L, P) to an
    output (B, Q, H·D). Sampling is linear, and pixels outside an image are 0. transformers and mmcv
    have functions with these arguments.

    >>> import numpy as np
    >>> pixels = np.array([1., 2., 3., 4.]).reshape(1, 4, 1, 1)      # one image of 2×2 pixels
    >>> locations = np.array([[0.25, 0.25], [0.5, 0.5]])             # its first pixel, its center
    >>> weights = np.array([0.5, 0.5]).reshape(1, 1, 1, 1, 2)
    >>> deformable_attention(pixels, [(2, 2)], locations.reshape(1, 1, 1, 1, 2, 2), weights)
    array([[[1.75]]])

    Args:
        value: (B, S, H, D), floating point. The S pixels of all L levels, for H heads of D
            channels.
        spatial_shapes: (L, r), integers. The lengths of each level, outermost axis first; their
            products add up to S.
        sampling_locations: (B, Q, H, L, P, r), floating point. P points on each level for each of Q
            queries, innermost axis first. [0, 1] is the extent of an axis, from edge to edge.
        attention_weights: (B, Q, H, L, P), of value's type.
        align_corners: whether 0 and 1 are the centers of the outer pixels instead of their outer
            edges.
        where: the name of the function or node in error messages.
        num_threads: the maximum number of threads. None selects that of
            :func:`ort_gridsample.get_num_threads`.

    Returns:
        Y: (B, Q, H·D), of value's type.

    Raises:
        GridSampleError: an argument is not as described here, or the result does not fit in memory.
        MemoryError: scratch memory cannot be allocated.

    Source: Zhu et al., "Deformable DETR: Deformable Transformers for End-to-End Object Detection"
    (2021), equation 3.
    """
    value = validation.to_array(where, "value", value)
    lengths = validation.to_array(where, "spatial_shapes", spatial_shapes)
    locations = validation.to_array(where, "sampling_locations", sampling_locations)
    if lengths.dtype.kind not in "iu":
        raise templates.SPATIAL_SHAPES_TYPE_INVALID.error(where, type=lengths.dtype)
    if lengths.ndim != 2 or lengths.shape[1] < 1:
        shape = validation.format_shape(lengths.shape)
        raise templates.SPATIAL_SHAPES_SHAPE_INVALID.error(where, spatial_shapes=shape)
    if lengths.min(initial=0) < 0:
        raise templates.LENGTHS_NEGATIVE.error(where, argument="spatial_shapes")
    longest = int(lengths.max(initial=0))
    if longest > np.iinfo(np.int64).max:
        raise templates.SPATIAL_SHAPES_TOO_LONG.error(where, length=longest)
    weights = validation.to_array(where, "attention_weights", attention_weights)
    if locations.ndim == 6 and weights.shape != locations.shape[:-1]:
        raise templates.WEIGHTS_SHAPE_MISMATCH.error(
            where,
            attention_weights=validation.format_shape(weights.shape),
            sampling_locations=validation.format_shape(locations.shape),
            weights_shape=validation.format_shape(locations.shape[:-1]),
        )
    if locations.ndim != 6:
        raise templates.LOCATIONS_SHAPE_MISMATCH.error(
            where,
            sampling_locations=validation.format_shape(locations.shape),
            value_shape=validation.format_shape(value.shape),
            n_levels=len(lengths),
        )
    n_points = locations.shape[4]
    levels = np.insert(lengths.astype(np.int64), 0, n_points, axis=1)
    return attend(
        value,
        levels,
        locations,
        weights,
        align_corners,
        where=where,
        num_threads=num_threads,
        levels_argument="spatial_shapes",
    )


def attend(
    value: npt.ArrayLike,
    levels: Array,
    sampling_locations: npt.ArrayLike,
    attention_weights: npt.ArrayLike,
    align_corners: bool,
    *,
    where: str,
    num_threads: SupportsIndex | None,
    output_layout: str = "by_query",
    levels_argument: str = "levels",
) -> Array:
    """Compute deformable attention as the op DeformableAttention does.

    It differs from :func:`deformable_attention` in the shapes that it accepts and returns.

    Args:
        value: (B, S, H, D), floating point.
        levels: (L, 1 + r), integers: the number of points of each level, and its lengths.
        sampling_locations: (B, Q, H, L, P, r), or (B, Q, H, P, r) with the points of all levels in
            one axis.
        attention_weights: (B, Q, H, L, P) or (B, Q, H, P), of value's type. Weights (B, 1, H, P)
            apply to all queries.
        align_corners: as for :func:`deformable_attention`.
        where: the name of the function or node in error messages.
        num_threads: the maximum number of threads. None selects that of
            :func:`ort_gridsample.get_num_threads`.
        output_layout: the layout of Y, a key of :data:`ort_gridsample.spec.OUTPUT_LAYOUTS`.
        levels_argument: the name of the argument with the lengths in error messages.

    Returns:
        Y, of value's type.

    Raises:
        GridSampleError: an argument is not as described here, or the result does not fit in memory.
        MemoryError: scratch memory cannot be allocated.
    """
    value = validation.to_array(where, "value", value)
    locations = validation.to_array(where, "sampling_locations", sampling_locations)
    weights = validation.to_array(where, "attention_weights", attention_weights)
    validation.check_type(where, "value", value.dtype, spec.FLOATS)
    validation.check_type(where, "sampling_locations", locations.dtype, spec.FLOATS)
    validation.check_type(where, "attention_weights", weights.dtype, (type_name(value.dtype),))
    validation.check_num_threads(where, num_threads)
    if output_layout not in spec.OUTPUT_LAYOUTS:
        raise templates.OUTPUT_LAYOUT_UNKNOWN.error(
            where,
            value=repr(output_layout),
            listed=validation.format_choices(spec.OUTPUT_LAYOUTS),
        )
    if levels.ndim != 2 or levels.shape[1] < 2:
        shape = validation.format_shape(levels.shape)
        raise templates.LEVELS_SHAPE_INVALID.error(where, levels=shape)
    levels = levels.astype(np.int64, order="C")
    validation.check_attention_shapes(
        where,
        value=value.shape,
        levels=levels,
        levels_argument=levels_argument,
        locations=locations.shape,
        weights=weights.shape,
    )
    n_batches, n_queries, n_heads = locations.shape[:3]
    n_channels = value.shape[3]
    Y_shape = output_shape(output_layout, n_batches, n_queries, n_heads, n_channels)
    dtype = native_dtype(value.dtype)
    validation.check_memory(where, "Y", Y_shape, dtype)

    try:
        Y = np.zeros(Y_shape, dtype)
        # Without pixels, the samples are 0, but the product with an infinite or NaN weight is NaN.
        if Y.size > 0 and weights.size > 0:
            plan = plan_for(dtype, *spec.ATTENTION_SAMPLE, bool(align_corners))
            sums = Y.reshape(n_batches, n_queries, n_heads, n_channels)
            if output_layout == "channels_first":
                sums = Y.reshape(n_batches, n_heads, n_channels, n_queries).transpose(0, 3, 1, 2)
            threads = resolve_num_threads(num_threads)
            _call_core(value, levels, locations, weights, sums, plan, threads)
    except MemoryError as error:
        raise validation.memory_error(where, error) from error
    return Y


def _call_core(
    value: Array,
    levels: Array,
    locations: Array,
    weights: Array,
    Y: Array,
    plan: Plan,
    num_threads: int,
) -> None:
    """Call the core with the operands as it reads them: contiguous, with the points on one axis.

    ``Y`` is (B, Q, H, D).
    """
    n_batches, n_queries, n_heads = locations.shape[:3]
    n_axes = levels.shape[1] - 1
    dtype = Y.dtype
    locations = np.ascontiguousarray(locations, native_dtype(locations.dtype))
    weights = np.ascontiguousarray(weights, dtype)
    load_core().deformable_attention(
        np.ascontiguousarray(value, dtype),
        levels,
        locations.reshape(n_batches, n_queries, n_heads, -1, n_axes),
        weights.reshape(n_batches, weights.shape[1], n_heads, -1),
        Y,
        plan,
        num_threads,
    )
