"""The table of the taps of a tile of output positions, for all ranks, modes and paddings.

The table has one row per tap and one column per position: the index of the pixel of flat X that the
tap reads, and the tap's weight. :mod:`.tap_sums` reads the channels of X through this table. Its
layouts, ``GATHERED``, ``MASKED`` and ``CONTIGUOUS``, are defined in :mod:`.simd`.

The NumPy core defines the same computations on arrays, in ``coordinates.py`` and ``taps.py`` of
:mod:`ort_gridsample.reference`. The order of the operations on a coordinate is the same, and no
compiler flag in this module lets the compiler change it.

Names in docstrings and loops:

- ``p``: a position of the tile, 0 ≤ p < P. Arrays of shape (≥ P,) have room for a longer tile.
- ``normalized``: coordinates as in the grid. On each axis, X extends from -1 to 1.
- ``coordinates``: coordinates in pixels. The center of pixel i is at i.
- ``index``: indices of pixels, on one axis or in flat X.
- ``low`` and ``span``: where reflection begins on an axis, the first pixel's center
  (``align_corners``) or outer edge, and the distance from there to the same point of the last
  pixel.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from ..spec import CUBIC_A
from .halves import widened
from .pointers import array_at
from .simd import CONTIGUOUS, GATHERED, MASKED, OUTSIDE_BIT
from .structs import BORDER, REFLECTION, ZEROS, ArrayRef

#: The index of a tap that counts as 0; every other index is a pixel of X.
OUTSIDE = np.uint32(0xFFFFFFFF)
#: The maximum number of positions of a tile, and of positions times taps: the table stays in the
#: L2 cache.
MAX_TILE_POSITIONS = 2048
MAX_TILE_TAPS = 1 << 14
#: The maximum number of positions of a tile if X has at most FEW_CHANNELS. Computing the table then
#: takes longer than reading it, and 0.9 times as long if the table stays in the L1 cache.
FEW_CHANNELS = 2
MAX_TILE_POSITIONS_OF_FEW_CHANNELS = 512
#: The table's rows are this much longer than a power of two. Otherwise all rows would compete for
#: the same cache lines.
ROW_PADDING = 16

#: The region of a tile's coordinates: all taps are inside; or no coordinate is further from 0 than
#: MAX_NEAR; or some are.
INSIDE, NEAR, FAR_OUT = range(3)
MAX_NEAR = 1 << 22
#: The maximum length of an axis whose pixels all are exact coordinates in float32. In float64, they
#: are exact on every axis.
MAX_EXACT_LENGTH = 1 << 24


class Axis(NamedTuple):
    """An axis of X, with the attributes that decide about its taps."""

    #: The number of pixels.
    length: int
    #: ZEROS, BORDER or REFLECTION.
    padding: int
    align_corners: bool
    #: The number of taps of a position: 1 for nearest, 2 for linear, 4 for cubic.
    taps: int


class TapTable(NamedTuple):
    """A table of taps: R taps of P positions."""

    #: The pixels (R, ≥ P). Only the first row is set unless the layout is GATHERED.
    index: ArrayRef
    #: The weights (R, ≥ P).
    weight: ArrayRef
    #: The distances of contiguous taps to the first (≥ R,), in pixels.
    offsets: ArrayRef
    #: GATHERED, MASKED or CONTIGUOUS.
    layout: int


# --- Coordinates ---


@register_jitable
def _clip(value: Any, low: Any, high: Any) -> Any:
    return min(max(value, low), high)


@register_jitable
def unnormalize(normalized: Any, length: Any, align_corners: bool) -> Any:
    """Return the pixel coordinate of a normalized coordinate on an axis of ``length`` pixels."""
    real = type(normalized)
    if align_corners:
        return (normalized + real(1)) * (real(length - 1) * real(0.5))
    return (normalized + real(1)) * (real(length) * real(0.5)) - real(0.5)


@register_jitable
def _reflect_once(coordinate: Any, low: Any, last: Any) -> Any:
    """Reflect a coordinate, less than a period from 0, once at each end.

    The result is clipped to 0 … ``last``, because rounding may leave it on the outer edge.
    """
    real = type(coordinate)
    coordinate = max(coordinate, real(2) * low - coordinate)
    coordinate = min(coordinate, real(2) * (last - low) - coordinate)
    return _clip(coordinate, real(0), last)


@register_jitable
def _reflect(coordinate: Any, low: Any, span: Any, last: Any) -> Any:
    """Reflect a finite coordinate until it lies inside 0 … ``last``."""
    real = type(coordinate)
    if span == 0:
        return real(0)
    period = real(2) * span
    remainder = coordinate if abs(coordinate) < period else real(np.fmod(coordinate, period))
    return _reflect_once(remainder, low, last)


@register_jitable
def _reflection_range(axis: Any, real: Any) -> Any:
    """Return ``low`` and ``span`` of an axis (see the module) as numbers of the type ``real``."""
    if axis.align_corners:
        return real(0), real(axis.length - 1)
    return real(-0.5), real(axis.length)


@register_jitable
def _pad_coordinates(axis: Any, normalized: ArrayRef, coordinates: ArrayRef) -> bool:
    """Compute finite pixel coordinates.

    For nearest and linear, BORDER and REFLECTION move them inside X. In mode cubic the padding acts
    on the taps' indices.

    Args:
        axis: the axis.
        normalized: the normalized coordinates (P,).
        coordinates: where the pixel coordinates are written (≥ P,).

    Returns:
        Whether all coordinates are so near to X that one reflection at each end suffices for them
        and for the taps around them.
    """
    real = coordinates.dtype.type
    length = axis.length
    padding = axis.padding
    align_corners = axis.align_corners
    pads_index = axis.taps == 4
    low, span = _reflection_range(axis, real)
    at_nan = unnormalize(real(-1), length, align_corners)
    # Beyond every tap, also after ``highest`` is rounded to float32.
    lowest = real(-4)
    highest = real(length + 3 + (length >> 20))
    if padding == REFLECTION or (padding == BORDER and not pads_index):
        lowest = real(0)
        highest = real(length - 1)
    max_reflected_once = real(2) * span - real(3)
    needs_several_reflections = np.uint32(0)
    for p in range(len(normalized)):
        # Infinity times a span of 0 is NaN, and not a coordinate.
        is_infinite = np.isinf(normalized[p])
        finite = normalized[p] if is_infinite else unnormalize(normalized[p], length, align_corners)
        finite = at_nan if np.isnan(normalized[p]) else finite
        needs_several_reflections = np.uint32(
            needs_several_reflections
            | (np.uint32(0) if abs(finite) <= max_reflected_once else np.uint32(1))
        )
        is_reflected = padding == REFLECTION and not np.isinf(finite)
        coordinates[p] = finite if is_reflected else _clip(finite, lowest, highest)
    if padding == REFLECTION and not pads_index:
        if needs_several_reflections:
            for p in range(len(normalized)):
                coordinates[p] = _reflect(coordinates[p], low, span, highest)
        else:
            for p in range(len(normalized)):
                coordinates[p] = _reflect_once(coordinates[p], low, highest)
    return needs_several_reflections == 0


# --- Weights ---


@register_jitable
def _inner_cubic_weight(distance: Any, real: Any) -> Any:
    """Return the weight of a tap at a ``distance`` ≤ 1."""
    a = real(CUBIC_A)
    return ((a + real(2)) * distance - (a + real(3))) * distance * distance + real(1)


@register_jitable
def _outer_cubic_weight(distance: Any, real: Any) -> Any:
    """Return the weight of a tap at a ``distance`` from 1 to 2."""
    a = real(CUBIC_A)
    return ((distance - real(5)) * distance + real(8)) * distance * a - real(4) * a


@register_jitable
def cubic_weights(distance: Any, real: Any) -> Any:
    """Return the weights of four taps. The second one lies ``distance`` before the coordinate.

    ``distance`` is a number, or a vector of generated code, and ``real`` converts a number to its
    type.
    """
    return (
        _outer_cubic_weight(real(1) + distance, real),
        _inner_cubic_weight(distance, real),
        _inner_cubic_weight(real(1) - distance, real),
        _outer_cubic_weight(real(2) - distance, real),
    )


@register_jitable
def _write_weights(coordinate: Any, weight: ArrayRef, p: int, taps: int) -> Any:
    """Write the weights of a coordinate's taps to column ``p`` of ``weight`` (taps, ≥ P).

    Returns:
        The pixel from which the taps are counted, as a coordinate. For nearest, which has no
        weights, this is the tap itself.
    """
    if taps == 1:
        return np.rint(coordinate)  # half to even
    real = weight.dtype.type
    base = np.floor(coordinate)
    distance = real(coordinate - base)
    if taps == 2:
        weight[0, p] = real(1) - distance
        weight[1, p] = distance
    else:
        weight[0, p], weight[1, p], weight[2, p], weight[3, p] = cubic_weights(distance, real)
    return base


# --- The taps on one axis ---


@register_jitable
def _first_offset(axis: Any) -> int:
    """Return the first tap, counted from the pixel that :func:`_write_weights` returns."""
    return -1 if axis.taps == 4 else 0


@register_jitable
def _unpadded_taps(
    axis: Any, normalized: ArrayRef, coordinates: ArrayRef, index: ArrayRef, weight: ArrayRef
) -> int:
    """Compute pixel coordinates, first taps and weights without padding.

    Args:
        axis: the axis.
        normalized: the normalized coordinates (P,).
        coordinates: where the pixel coordinates are written (≥ P,).
        index: where the first taps are written (≥ P,).
        weight: where the weights are written (taps, ≥ P).

    Returns:
        The region of the coordinates. If INSIDE, no padding is needed. If FAR_OUT, some coordinates
        may be infinite or NaN.
    """
    length = axis.length
    align_corners = axis.align_corners
    taps = axis.taps
    first_offset = _first_offset(axis)
    real = normalized.dtype.type
    lowest = real(-first_offset)
    highest = real(length - 1 - (taps - 1 + first_offset))
    offset = real(first_offset)
    max_near = real(MAX_NEAR)
    if length > MAX_NEAR:
        # Rounded coordinates do not tell exactly which taps are inside: none is INSIDE.
        highest = lowest - real(1)
    # As wide as the other values of the loops: wider flags halve the speed.
    has_outside = np.uint32(0)
    has_far = np.uint32(0)
    for p in range(len(normalized)):
        coordinate = unnormalize(normalized[p], length, align_corners)
        is_inside = (coordinate >= lowest) & (coordinate <= highest)
        has_outside = np.uint32(has_outside | (np.uint32(0) if is_inside else np.uint32(1)))
        base = _write_weights(coordinate, weight, p, taps)
        index[p] = np.uint32(np.int32(base + offset))
        coordinates[p] = coordinate
    if has_outside == 0:
        return INSIDE
    for p in range(len(normalized)):
        is_near = abs(coordinates[p]) <= max_near
        has_far = np.uint32(has_far | (np.uint32(0) if is_near else np.uint32(1)))
    return FAR_OUT if has_far else NEAR


# The next two loops do not write to an array that they read: that takes three times as long.


@register_jitable
def _pad_pixels(axis: Any, coordinates: ArrayRef, positions: int, index: ArrayRef) -> None:
    """Write the pixels of nearest, padded with ZEROS or BORDER.

    Args:
        axis: the axis.
        coordinates: the pixel coordinates (≥ P,), whose region is NEAR.
        positions: P.
        index: where the pixels are written (≥ P,).
    """
    last = np.int32(axis.length - 1)
    outside = OUTSIDE if axis.padding == ZEROS else np.uint32(0)
    for p in range(positions):
        pixel = np.int32(np.rint(coordinates[p]))
        inside = min(max(pixel, np.int32(0)), last)
        index[p] = np.uint32(inside) if inside == pixel else np.uint32(inside) | outside


@register_jitable
def _pad_pairs(
    axis: Any, coordinates: ArrayRef, positions: int, index: ArrayRef, weight: ArrayRef
) -> None:
    """Write the taps of linear as pairs of pixels inside.

    A pair that is partly outside is moved inside, and one tap is masked. So is a tap beyond the
    last pixel whose weight is 0. Coordinates are clipped to the image unless the padding is ZEROS.

    Args:
        axis: the axis.
        coordinates: the pixel coordinates (≥ P,): NEAR ones, or those that
            :func:`_pad_coordinates` wrote.
        positions: P.
        index: where the first taps are written (≥ P,).
        weight: where the weights are written (2, ≥ P).
    """
    length = axis.length
    weight_type = weight.dtype.type
    coordinate_type = coordinates.dtype.type
    masked = weight_type(np.nan)
    last_first = np.int32(length - 2)
    first_weight = weight[0]
    second_weight = weight[1]
    minus_one = coordinate_type(-1)
    zero = coordinate_type(0)
    one = coordinate_type(1)
    two = coordinate_type(2)
    lowest = coordinate_type(-np.inf)
    highest = coordinate_type(np.inf)
    if axis.padding != ZEROS:
        lowest = coordinate_type(0)
        highest = coordinate_type(length - 1)
    for p in range(positions):
        coordinate = _clip(coordinates[p], lowest, highest)
        first = min(max(np.int32(np.floor(coordinate)), np.int32(0)), last_first)
        distance = coordinate - coordinate_type(first)
        t = weight_type(distance)
        # The operations have the same order as for a pair that was not moved, so the results are
        # bit-identical.
        if_moved_right = weight_type(distance + one)
        if_moved_left = weight_type(1) - weight_type(distance - one)
        # Compare the distance: a weight is rounded to its type, and may be 0 or 1.
        is_first_inside = (distance >= minus_one) & (distance < one)
        is_second_inside = (distance >= zero) & (distance < two)
        weight_of_first = if_moved_right if t < weight_type(0) else weight_type(1) - t
        first_weight[p] = weight_of_first if is_first_inside else masked
        second_weight[p] = min(t, if_moved_left) if is_second_inside else masked
        index[p] = np.uint32(first)


@register_jitable
def _pad_quads(axis: Any, positions: int, index: ArrayRef, weight: ArrayRef) -> None:
    """Replace the taps of cubic, padded with ZEROS, by four pixels inside.

    Four taps that are partly outside are moved inside, and some of them are masked.

    Args:
        axis: the axis.
        positions: P.
        index: the first taps without padding (≥ P,), as int32. They are overwritten.
        weight: the weights (4, ≥ P). They are overwritten.
    """
    masked = weight.dtype.type(np.nan)
    last_first = np.int32(axis.length - 4)
    for p in range(positions):
        unmoved = np.int32(index[p])
        first = min(max(unmoved, np.int32(0)), last_first)
        # Few quads are moved. A loop without a branch takes five times as long.
        if first != unmoved:
            w0 = weight[0, p]
            w1 = weight[1, p]
            w2 = weight[2, p]
            w3 = weight[3, p]
            for tap in range(4):
                unmoved_tap = first - unmoved + tap
                w = w0 if unmoved_tap == 0 else masked
                w = w1 if unmoved_tap == 1 else w
                w = w2 if unmoved_tap == 2 else w
                weight[tap, p] = w3 if unmoved_tap == 3 else w
            index[p] = np.uint32(first)


@register_jitable
def _write_quads(coordinates: ArrayRef, positions: int, index: ArrayRef, weight: ArrayRef) -> None:
    """Write the taps and weights of cubic for pixel coordinates (≥ P,), without padding."""
    for p in range(positions):
        base = _write_weights(coordinates[p], weight, p, 4)
        index[p] = np.uint32(np.int32(base) - np.int32(1))


@register_jitable
def _gathered_taps(
    axis: Any,
    coordinates: ArrayRef,
    positions: int,
    reflects_once: bool,
    index: ArrayRef,
    weight: ArrayRef,
) -> None:
    """Write the index of each tap, and the weights.

    Args:
        axis: the axis.
        coordinates: the pixel coordinates (≥ P,), as :func:`_pad_coordinates` writes them. They are
            overwritten.
        positions: P.
        reflects_once: what :func:`_pad_coordinates` returned.
        index: where the taps' pixels are written (taps, ≥ P).
        weight: where the weights are written (taps, ≥ P).
    """
    padding = axis.padding
    taps = axis.taps
    first_offset = _first_offset(axis)
    real = coordinates.dtype.type
    low, span = _reflection_range(axis, real)
    for p in range(positions):
        coordinates[p] = _write_weights(coordinates[p], weight, p, taps)
    reflects_index = taps == 4 and padding == REFLECTION
    last = np.int32(axis.length - 1)
    outside = OUTSIDE if padding == ZEROS else np.uint32(0)
    for tap in range(taps):
        offset = real(tap + first_offset)
        row = index[tap]
        if reflects_index and reflects_once:
            for p in range(positions):
                reflected = _reflect_once(coordinates[p] + offset, low, real(last))
                row[p] = np.uint32(np.int32(reflected))
        elif reflects_index:
            for p in range(positions):
                row[p] = np.uint32(_reflect(coordinates[p] + offset, low, span, real(last)))
        else:
            for p in range(positions):
                pixel = np.int32(coordinates[p] + offset)
                inside = min(max(pixel, np.int32(0)), last)
                row[p] = np.uint32(inside) if inside == pixel else np.uint32(inside) | outside


@register_jitable
def can_be_contiguous(taps: int, padding: int) -> bool:
    """Whether the taps on an axis can be contiguous at the borders, too, some of them masked."""
    return taps == 2 or (taps == 4 and padding == ZEROS)


@register_jitable
def _can_mask(axis: Any, coordinates: ArrayRef) -> bool:
    """Whether the taps on an axis can be MASKED, given the array of their pixel coordinates.

    :func:`_pad_pairs` computes the distance of a coordinate to the last but one pixel. In float32,
    that pixel of a long axis may be rounded to a neighbor.
    """
    is_exact = coordinates.itemsize > 4 or axis.length <= MAX_EXACT_LENGTH
    return (
        axis.length >= axis.taps
        and can_be_contiguous(axis.taps, axis.padding)
        and (axis.taps == 4 or is_exact)
    )


@register_jitable
def compute_axis_taps(
    axis: Any,
    normalized: ArrayRef,
    coordinates: ArrayRef,
    index: ArrayRef,
    weight: ArrayRef,
    may_mask: bool,
) -> int:
    """Compute the taps of a tile on one axis.

    Args:
        axis: the :class:`Axis`.
        normalized: the normalized coordinates (P,).
        coordinates: scratch memory for pixel coordinates (≥ P,).
        index: where the taps' pixels are written (taps, ≥ P). Only the first row is written unless
            the layout is GATHERED.
        weight: where the weights are written (taps, ≥ P).
        may_mask: whether the layout may be MASKED.

    Returns:
        The layout of the taps. INSIDE → CONTIGUOUS; one tap → CONTIGUOUS, or GATHERED if some may
        be outside with ZEROS; linear, and cubic with ZEROS, if masks are allowed and
        :func:`_can_mask` → MASKED; all others → GATHERED.
    """
    positions = len(normalized)
    padding = axis.padding
    taps = axis.taps
    first_index = index[0]
    region = _unpadded_taps(axis, normalized, coordinates, first_index, weight)
    if region == INSIDE:
        return CONTIGUOUS
    # A single tap that is never outside is contiguous.
    single_layout = GATHERED if padding == ZEROS else CONTIGUOUS
    # For NEAR coordinates the loops of _pad_* do the padding themselves, except reflection.
    pads_in_loop = region == NEAR and padding != REFLECTION
    if taps == 1 and pads_in_loop:
        _pad_pixels(axis, coordinates, positions, first_index)
        return single_layout
    if may_mask and _can_mask(axis, coordinates):
        if not pads_in_loop:
            _pad_coordinates(axis, normalized, coordinates)
        if taps == 2:
            _pad_pairs(axis, coordinates, positions, first_index, weight)
            return MASKED
        if not pads_in_loop:
            _write_quads(coordinates, positions, first_index, weight)
        _pad_quads(axis, positions, first_index, weight)
        return MASKED
    reflects_once = _pad_coordinates(axis, normalized, coordinates)
    _gathered_taps(axis, coordinates, positions, reflects_once, index, weight)
    return single_layout if taps == 1 else GATHERED


@register_jitable
def split_axes(grid: ArrayRef, normalized: ArrayRef) -> None:
    """Copy the coordinates of each axis of a grid to a row of their own.

    The loops for 2 and 3 axes are vectorized.

    Args:
        grid: the grid (P, r), in its stored type. It lists the innermost axis first. The bits of
            halves are converted.
        normalized: where the coordinates are written (r, ≥ P), the outermost axis first.
    """
    positions, r = grid.shape
    flat = array_at(np.int64(grid.ctypes.data), (positions * r,), grid.dtype)
    # Unsigned indices, because Numba checks whether a signed index counts from the end.
    first = np.uint64(0)
    second = np.uint64(1)
    third = np.uint64(2)
    step = np.uint64(r)
    if r == 2:
        outer = normalized[0]
        inner = normalized[1]
        for p in range(positions):
            entry = np.uint64(2) * np.uint64(p)
            inner_value = widened(flat[entry + first])
            outer_value = widened(flat[entry + second])
            inner[p] = inner_value
            outer[p] = outer_value
    elif r == 3:
        outer = normalized[0]
        middle = normalized[1]
        inner = normalized[2]
        for p in range(positions):
            entry = np.uint64(3) * np.uint64(p)
            inner_value = widened(flat[entry + first])
            middle_value = widened(flat[entry + second])
            outer_value = widened(flat[entry + third])
            inner[p] = inner_value
            middle[p] = middle_value
            outer[p] = outer_value
    else:
        for axis in range(r):
            row = normalized[axis]
            offset = np.uint64(r - 1 - axis)
            for p in range(positions):
                row[p] = widened(flat[step * np.uint64(p) + offset])


# --- The taps on several axes ---


@register_jitable
def convert_to_gathered(table: Any, positions: int) -> None:
    """Convert the arrays of a :class:`TapTable` of contiguous taps to the layout GATHERED.

    Args:
        table: the table. All rows of its index are written. Weights of masked taps become 0.
        positions: P.
    """
    index = table.index
    weight = table.weight
    first = index[0]
    for row in range(len(index) - 1, -1, -1):
        row_index = index[row]
        offset = np.uint32(table.offsets[row])
        for p in range(positions):
            row_index[p] = first[p] + offset
    if table.layout == MASKED:
        for row in range(len(index)):
            row_index = index[row]
            row_weight = weight[row]
            for p in range(positions):
                is_masked = np.isnan(row_weight[p])
                row_index[p] = OUTSIDE if is_masked else row_index[p]
                row_weight[p] = 0 if is_masked else row_weight[p]


@register_jitable
def combine_taps(
    outer: Any,
    inner: Any,
    length: int,
    positions: int,
    new_index: ArrayRef,
    new_weight: ArrayRef,
) -> int:
    """Combine every tap of a table with every tap of an inner axis.

    Args:
        outer: the :class:`TapTable` so far, of R taps. Its offsets (≥ R · T,) are replaced by those
            of the new table.
        inner: the :class:`TapTable` of the inner axis, of T taps. It has the same array of offsets,
            whose values are those of ``outer``.
        length: the length of the inner axis.
        positions: P.
        new_index: where the pixels of the new table are written (R · T, ≥ P).
        new_weight: where the weights of the new table are written (R · T, ≥ P), if T > 1.

    Returns:
        The layout of the new table.
    """
    offsets = outer.offsets
    rows = len(outer.index)
    n_inner_taps = len(inner.index)
    # A table is gathered if the taps on any axis are, and masked if any are masked.
    new_layout = min(outer.layout, inner.layout)
    if new_layout == GATHERED and outer.layout != GATHERED:
        convert_to_gathered(outer, positions)
    for row in range(rows - 1, -1, -1):
        offset = offsets[row] * length
        for tap in range(n_inner_taps - 1, -1, -1):
            offsets[row * n_inner_taps + tap] = offset + tap
    if new_layout == GATHERED and inner.layout != GATHERED:
        # The offsets of the first row's taps are those on the inner axis.
        convert_to_gathered(inner, positions)
    stride = np.uint32(length)
    if new_layout != GATHERED:
        outer_pixels = outer.index[0]
        inner_pixels = inner.index[0]
        new_row = new_index[0]
        for p in range(positions):
            new_row[p] = outer_pixels[p] * stride + inner_pixels[p]
    for row in range(rows):
        outer_pixels = outer.index[row]
        outer_weight = outer.weight[row]
        for tap in range(n_inner_taps):
            if new_layout == GATHERED:
                inner_pixels = inner.index[tap]
                new_row = new_index[row * n_inner_taps + tap]
                for p in range(positions):
                    is_outside = (outer_pixels[p] | inner_pixels[p]) >= OUTSIDE_BIT
                    pixel = outer_pixels[p] * stride + inner_pixels[p]
                    new_row[p] = OUTSIDE if is_outside else pixel
            if n_inner_taps > 1:
                inner_weight = inner.weight[tap]
                product = new_weight[row * n_inner_taps + tap]
                for p in range(positions):
                    product[p] = outer_weight[p] * inner_weight[p]
    return new_layout
