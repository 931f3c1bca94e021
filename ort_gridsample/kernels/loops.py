"""The loops over a tile of positions, for all ranks, modes, paddings and types.

A tile has a table with one row per tap and one column per position: the index of the pixel of flat
X that the tap reads, and the tap's weight. Every channel is read through this table: from X or, if
each pixel is read often, from a copy of X with the :func:`channels_last`.

The NumPy core defines the same computations on arrays, in ``reference``: coordinates.py, taps.py,
sums.py and sampler.py. The order of the operations on a coordinate is the same, and no compiler
flag here lets the compiler change it.

The layouts of taps, ``GATHERED``, ``MASKED`` and ``CONTIGUOUS``, are those of :mod:`.simd`.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import register_jitable

from ..spec import CUBIC_A
from . import simd
from .halves import CONVERTS, widened
from .pointers import array, by_types
from .simd import (
    CONTIGUOUS,
    EVERY,
    GATHERED,
    GATHERS,
    MASKED,
    NARROW,
    OUTSIDE_BIT,
    PIXELS_AHEAD,
    VECTORS,
)

ZEROS, BORDER, REFLECTION = range(3)
#: The index of a tap that counts as 0; every other index is a pixel of X.
OUTSIDE = np.uint32(0xFFFFFFFF)
#: The maximum number of pixels of a channel. Coordinates outside of X must be int32, too.
MAX_PIXELS = 1 << 30
#: The maximum number of positions of a tile, and of positions times taps: the table stays in the
#: L2 cache.
MAX_TILE_POSITIONS = 2048
MAX_TILE_TAPS = 1 << 14
#: The table's rows are this much longer than a power of two. Otherwise all rows would compete for
#: the same cache lines.
ROW_PADDING = 16
#: The number of positions whose sums, channels last, are kept before they are written to Y.
STRIP = 64
#: From so many taps of all channels on, wide vectors gain more than they cost.
MIN_TAPS_FOR_WIDE = 1 << 16
#: The integer types that are summed in vectors.
SHORT_INTEGERS = types.int8, types.int16, types.uint8, types.uint16
#: The number of pixels that one call packs.
PIXELS_PER_PART = 1 << 12


@register_jitable
def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


@register_jitable
def unnormalize(g: Any, length: Any, align_corners: bool) -> Any:
    """Return the pixel coordinate of a normalized one, ``g``, on an axis of ``length`` pixels."""
    kind = type(g)
    if align_corners:
        return (g + kind(1)) * (kind(length - 1) * kind(0.5))
    return (g + kind(1)) * (kind(length) * kind(0.5)) - kind(0.5)


@register_jitable
def _fold(x: Any, low: Any, last: Any) -> Any:
    """Reflect ``x``, less than a period from 0, once at each end.

    The result is clipped, as rounding may leave it on the outer edge.
    """
    x = max(x, type(x)(2) * low - x)
    x = min(x, type(x)(2) * (last - low) - x)
    return _clip(x, type(x)(0), last)


@register_jitable
def _reflect(x: Any, low: Any, span: Any, last: Any) -> Any:
    """Reflect ``x`` until it lies inside."""
    kind = type(x)
    if span == 0:
        return kind(0)
    period = kind(2) * span
    remainder = x if abs(x) < period else kind(np.fmod(x, period))
    return _fold(remainder, low, last)


@register_jitable
def _pad_coordinates(
    g: Any,
    x: Any,
    length: int,
    padding: int,
    align_corners: bool,
    low: Any,
    span: Any,
    pads_index: bool,
) -> bool:
    """Compute finite pixel coordinates; if the padding acts on coordinates, they are inside.

    Args:
        g: normalized coordinates (P,).
        x: where the pixel coordinates are written (≥ P,).
        length: the number of pixels of the axis.
        padding: ZEROS, BORDER or REFLECTION.
        align_corners: the attribute.
        low: the first pixel's centre (``align_corners``) or outer edge.
        span: the distance from there to the last pixel's.
        pads_index: whether the padding acts on the taps' indices, in mode cubic.

    Returns:
        Whether all coordinates are so near that a single fold reflects them, and the taps around
        them.
    """
    kind = x.dtype.type
    at_nan = unnormalize(kind(-1), length, align_corners)
    # Beyond every tap.
    lowest = kind(-4)
    highest = kind(length + 3)
    if padding == REFLECTION or (padding == BORDER and not pads_index):
        lowest = kind(0)
        highest = kind(length - 1)
    near = kind(2) * span - kind(3)
    is_far = np.uint32(0)
    for p in range(len(g)):
        # Infinity times a span of 0 is NaN, and not a coordinate.
        finite = g[p] if np.isinf(g[p]) else unnormalize(g[p], length, align_corners)
        finite = at_nan if np.isnan(g[p]) else finite
        is_far = np.uint32(is_far | (np.uint32(0) if abs(finite) <= near else np.uint32(1)))
        is_reflected = padding == REFLECTION and not np.isinf(finite)
        x[p] = finite if is_reflected else _clip(finite, lowest, highest)
    if padding == REFLECTION and not pads_index:
        if is_far:
            for p in range(len(g)):
                x[p] = _reflect(x[p], low, span, highest)
        else:
            for p in range(len(g)):
                x[p] = _fold(x[p], low, highest)
    return is_far == 0


@register_jitable
def _near(d: Any) -> Any:
    """Return cubic's weight of a tap at distance ``d`` ≤ 1."""
    kind = type(d)
    a = kind(CUBIC_A)
    return ((a + kind(2)) * d - (a + kind(3))) * d * d + kind(1)


@register_jitable
def _far(d: Any) -> Any:
    """Return cubic's weight of a tap at distance 1 < ``d`` ≤ 2."""
    kind = type(d)
    a = kind(CUBIC_A)
    return ((d - kind(5)) * d + kind(8)) * d * a - kind(4) * a


@register_jitable
def _cubic(t: Any) -> Any:
    """Return the weights of four taps. The second one lies ``t`` before the coordinate."""
    kind = type(t)
    return _far(kind(1) + t), _near(t), _near(kind(1) - t), _far(kind(2) - t)


@register_jitable
def _weigh(x: Any, weight: Any, p: int, taps: int) -> Any:
    """Return the pixel from which the taps of coordinate ``x`` are counted; write their weights.

    The weights are column ``p`` of ``weight`` (taps, ≥ p + 1).
    """
    if taps == 1:
        return np.rint(x)  # half to even
    real = weight.dtype.type
    base = np.floor(x)
    t = real(x - base)
    if taps == 2:
        weight[0, p] = real(1) - t
        weight[1, p] = t
    else:
        weight[0, p], weight[1, p], weight[2, p], weight[3, p] = _cubic(t)
    return base


#: Where a tile's coordinates are: all taps are inside; or no coordinate is further from 0 than
#: MAX_NEAR; or some are.
INSIDE, NEAR, FAR_OUT = range(3)
MAX_NEAR = 1 << 22


@register_jitable
def _unpadded_taps(
    g: Any,
    length: int,
    align_corners: bool,
    x: Any,
    index: Any,
    weight: Any,
    taps: int,
    first: int,
) -> int:
    """Compute pixel coordinates, first taps and weights without padding.

    Args:
        g: normalized coordinates (P,).
        length: the number of pixels of the axis.
        align_corners: the attribute.
        x: where the pixel coordinates are written (≥ P,).
        index: where the first taps are written (≥ P,).
        weight: where the weights are written (taps, ≥ P).
        taps: the number of taps.
        first: the distance of the first tap to the pixel that :func:`_weigh` returns.

    Returns:
        Where the coordinates are. If INSIDE, no padding is needed. If FAR_OUT, some may be infinite
        or NaN.
    """
    kind = g.dtype.type
    lowest = kind(-first)
    highest = kind(length - 1 - (taps - 1 + first))
    offset = kind(first)
    far = kind(MAX_NEAR)
    if length > MAX_NEAR:
        highest = lowest - kind(1)  # it is not known exactly enough which coordinates are inside
    # As wide as the other values of the loops: wider flags halve the speed.
    outside = np.uint32(0)
    far_out = np.uint32(0)
    for p in range(len(g)):
        pixel = unnormalize(g[p], length, align_corners)
        is_inside = (pixel >= lowest) & (pixel <= highest)
        outside = np.uint32(outside | (np.uint32(0) if is_inside else np.uint32(1)))
        index[p] = np.uint32(np.int32(_weigh(pixel, weight, p, taps) + offset))
        x[p] = pixel
    if outside == 0:
        return INSIDE
    for p in range(len(g)):
        far_out = np.uint32(far_out | (np.uint32(0) if abs(x[p]) <= far else np.uint32(1)))
    return FAR_OUT if far_out else NEAR


# These loops do not write to an array that they read: that takes three times as long.


@register_jitable
def _pad_pixels(x: Any, positions: int, length: int, padding: int, index: Any) -> None:
    """Write the pixels of nearest to ``index`` (≥ P,), padded with ZEROS or BORDER.

    ``x`` (≥ P,) are pixel coordinates whose region is NEAR.
    """
    end = np.int32(length - 1)
    outside = OUTSIDE if padding == ZEROS else np.uint32(0)
    for p in range(positions):
        i = np.int32(np.rint(x[p]))
        inside = min(max(i, np.int32(0)), end)
        index[p] = np.uint32(inside) if inside == i else np.uint32(inside) | outside


@register_jitable
def _pad_pairs(x: Any, positions: int, length: int, padding: int, index: Any, weight: Any) -> None:
    """Write the taps of linear, padded with ZEROS or BORDER, as pairs inside.

    ``x`` (≥ P,) are pixel coordinates whose region is NEAR. The first taps are written to ``index``
    (≥ P,), the weights to ``weight`` (2, ≥ P).

    A pair that is partly outside is moved inside, and one tap is masked. So is a tap beyond the
    last pixel whose weight is 0.
    """
    real = weight.dtype.type
    kind = x.dtype.type
    masked = real(np.nan)
    last = np.int32(length - 2)
    first = weight[0]
    second = weight[1]
    lowest, highest = kind(-np.inf), kind(np.inf)
    if padding != ZEROS:
        lowest, highest = kind(0), kind(length - 1)
    for p in range(positions):
        pixel = _clip(x[p], lowest, highest)
        i = min(max(np.int32(np.floor(pixel)), np.int32(0)), last)
        distance = pixel - kind(i)
        t = real(distance)
        # Weights of taps of a moved pair, 1 minus the distance, in the order of operations of a
        # pair that was not moved.
        before = real(distance + kind(1))
        after = real(2) - t
        w = before if t < real(0) else real(1) - t
        first[p] = w if (t >= real(-1)) & (t < real(1)) else masked
        second[p] = min(t, after) if (t >= real(0)) & (t < real(2)) else masked
        index[p] = np.uint32(i)


@register_jitable
def _pad_quads(x: Any, positions: int, length: int, index: Any, weight: Any) -> None:
    """Write the taps of cubic, padded with ZEROS, as four taps inside.

    ``x`` (≥ P,) are pixel coordinates whose region is NEAR. The first taps are written to ``index``
    (≥ P,), the weights to ``weight`` (4, ≥ P).

    Four taps that are partly outside are moved inside, and some of them are masked.
    """
    real = weight.dtype.type
    masked = real(np.nan)
    last = np.int32(length - 4)
    for p in range(positions):
        base = np.floor(x[p])
        a, b, c, d = _cubic(real(x[p] - base))
        unmoved = np.int32(np.int32(base) - np.int32(1))
        i = min(max(unmoved, np.int32(0)), last)
        shift = np.int32(i - unmoved)
        for tap in range(4):
            unmoved_tap = np.int32(shift + tap)
            w = a if unmoved_tap == 0 else masked
            w = b if unmoved_tap == 1 else w
            w = c if unmoved_tap == 2 else w
            weight[tap, p] = d if unmoved_tap == 3 else w
        index[p] = np.uint32(i)


@register_jitable
def can_be_contiguous(taps: int, padding: int) -> bool:
    """Whether the taps on an axis can be contiguous at the borders, too, some of them masked."""
    return taps == 2 or (taps == 4 and padding == ZEROS)


@njit(nogil=True, error_model="numpy")
def axis_taps(
    g: Any,
    length: int,
    padding: int,
    align_corners: bool,
    x: Any,
    index: Any,
    weight: Any,
    taps: int,
    may_mask: bool,
) -> int:
    """Compute the taps of coordinates on one axis.

    Args:
        g: normalized coordinates (P,).
        length: the number of pixels of the axis.
        padding: ZEROS, BORDER or REFLECTION.
        align_corners: the attribute.
        x: scratch memory (≥ P,).
        index: where the taps' pixels are written (taps, ≥ P). Only the first row is written unless
            the layout is GATHERED.
        weight: where the weights are written (taps, ≥ P).
        taps: 1 for nearest, 2 for linear, 4 for cubic.
        may_mask: whether the layout may be MASKED.

    Returns:
        The layout of the taps.
    """
    positions = len(g)
    kind = x.dtype.type
    is_cubic = taps == 4
    first = -1 if is_cubic else 0
    contiguous = may_mask and length >= taps and can_be_contiguous(taps, padding)
    region = _unpadded_taps(g, length, align_corners, x, index[0], weight, taps, first)
    if region == INSIDE:
        return CONTIGUOUS
    # A single tap that is never outside is contiguous.
    layout = CONTIGUOUS if taps == 1 and padding != ZEROS else GATHERED
    is_near = region == NEAR and padding != REFLECTION
    if is_near and taps == 1:
        _pad_pixels(x, positions, length, padding, index[0])
        return layout
    # From the centre, or from the outer edge, of the first pixel to that of the last.
    low, span = (kind(0), kind(length - 1)) if align_corners else (kind(-0.5), kind(length))
    one_fold = True
    if not (is_near and contiguous):
        one_fold = _pad_coordinates(g, x, length, padding, align_corners, low, span, is_cubic)
    if contiguous:
        if is_cubic:
            _pad_quads(x, positions, length, index[0], weight)
        else:
            _pad_pairs(x, positions, length, padding, index[0], weight)
        return MASKED
    for p in range(positions):
        x[p] = _weigh(x[p], weight, p, taps)
    reflects_index = is_cubic and padding == REFLECTION
    end = np.int32(length - 1)
    outside = OUTSIDE if padding == ZEROS else np.uint32(0)
    for tap in range(taps):
        offset = kind(tap + first)
        row = index[tap]
        if reflects_index and one_fold:
            for p in range(positions):
                row[p] = np.uint32(np.int32(_fold(x[p] + offset, low, kind(end))))
        elif reflects_index:
            for p in range(positions):
                row[p] = np.uint32(_reflect(x[p] + offset, low, span, kind(end)))
        else:
            for p in range(positions):
                i = np.int32(x[p] + offset)
                inside = min(max(i, np.int32(0)), end)
                row[p] = np.uint32(inside) if inside == i else np.uint32(inside) | outside
    return layout


@register_jitable
def split(grid: Any, g: Any) -> None:
    """Write the coordinates ``grid`` (P, r) to ``g`` (r, ≥ P), the outermost axis first.

    A grid lists the innermost axis first. The loops for 2 and 3 axes are vectorized. Coordinates of
    uint16 and int16 are the bits of float16 and bfloat16.
    """
    positions, r = grid.shape
    flat = array(np.int64(grid.ctypes.data), (positions * r,), grid.dtype)
    # Unsigned indices, because Numba checks whether a signed index counts from the end.
    first = np.uint64(0)
    second = np.uint64(1)
    third = np.uint64(2)
    step = np.uint64(r)
    if r == 2:
        y, x = g[0], g[1]
        for p in range(positions):
            i = np.uint64(2) * np.uint64(p)
            x[p], y[p] = widened(flat[i + first]), widened(flat[i + second])
    elif r == 3:
        z, y, x = g[0], g[1], g[2]
        for p in range(positions):
            i = np.uint64(3) * np.uint64(p)
            x_p, y_p = widened(flat[i + first]), widened(flat[i + second])
            x[p], y[p], z[p] = x_p, y_p, widened(flat[i + third])
    else:
        for axis in range(r):
            out = g[axis]
            offset = np.uint64(r - 1 - axis)
            for p in range(positions):
                out[p] = widened(flat[step * np.uint64(p) + offset])


@register_jitable
def gather_index(index: Any, offsets: Any, weight: Any, layout: int, positions: int) -> None:
    """Convert a table of contiguous taps to the layout GATHERED.

    Args:
        index: the first row has the first taps (R, ≥ P). All rows are written.
        offsets: the distances of the taps to the first (≥ R,).
        weight: the weights (R, ≥ P). Those of masked taps become 0.
        layout: MASKED or CONTIGUOUS.
        positions: P.
    """
    first = index[0]
    for row in range(len(index) - 1, -1, -1):
        out = index[row]
        offset = np.uint32(offsets[row])
        for p in range(positions):
            out[p] = first[p] + offset
    if layout == MASKED:
        for row in range(len(index)):
            out = index[row]
            out_weight = weight[row]
            for p in range(positions):
                is_masked = np.isnan(out_weight[p])
                out[p] = OUTSIDE if is_masked else out[p]
                out_weight[p] = 0 if is_masked else out_weight[p]


@register_jitable
def combine(
    index: Any,
    weight: Any,
    axis_index: Any,
    axis_weight: Any,
    offsets: Any,
    layout: int,
    axis_layout: int,
    length: int,
    positions: int,
    out_index: Any,
    out_weight: Any,
) -> int:
    """Combine every tap of a table with every tap of an inner axis.

    Args:
        index: the pixels of the taps so far (R, ≥ P).
        weight: the weights of the taps so far (R, ≥ P).
        axis_index: the taps on the inner axis (T, ≥ P).
        axis_weight: the weights of the taps on the inner axis (T, ≥ P).
        offsets: the distances of contiguous taps so far to the first (≥ R · T,). They are replaced
            by those of the new table.
        layout: the layout of the taps so far.
        axis_layout: the layout of the taps on the inner axis.
        length: the length of the inner axis.
        positions: P.
        out_index: where the pixels of the new table are written (R · T, ≥ P).
        out_weight: where the weights of the new table are written (R · T, ≥ P), if T > 1.

    Returns:
        The layout of the new table.
    """
    rows = len(index)
    taps = len(axis_index)
    out_layout = min(layout, axis_layout)
    if out_layout == GATHERED and layout != GATHERED:
        gather_index(index, offsets, weight, layout, positions)
    for row in range(rows - 1, -1, -1):
        offset = offsets[row] * length
        for tap in range(taps - 1, -1, -1):
            offsets[row * taps + tap] = offset + tap
    if out_layout == GATHERED and axis_layout != GATHERED:
        # The offsets of the first row's taps are those on the inner axis.
        gather_index(axis_index, offsets, axis_weight, axis_layout, positions)
    stride = np.uint32(length)
    if out_layout != GATHERED:
        outer, inner, out = index[0], axis_index[0], out_index[0]
        for p in range(positions):
            out[p] = outer[p] * stride + inner[p]
    for row in range(rows):
        outer = index[row]
        outer_w = weight[row]
        for tap in range(taps):
            if out_layout == GATHERED:
                inner = axis_index[tap]
                out = out_index[row * taps + tap]
                for p in range(positions):
                    a, b = outer[p], inner[p]
                    out[p] = OUTSIDE if (a | b) >= OUTSIDE_BIT else a * stride + b
            if taps > 1:
                inner_w = axis_weight[tap]
                out_w = out_weight[row * taps + tap]
                for p in range(positions):
                    out_w[p] = outer_w[p] * inner_w[p]
    return out_layout


@register_jitable
def copy_pixels(X: Any, index: Any, layout: int, inside: Any, Y: Any, start: int) -> None:
    """Copy a pixel of each channel to each position.

    Args:
        X: channels (C ≤ 3, S).
        index: the pixel of each position (P,).
        layout: the layout of the taps. If GATHERED, the value for an index outside is 0.
        inside: ``index``, with any pixel for an index outside.
        Y: the result is written to Y[:, start:] (C, ≥ start + P).
        start: see ``Y``.
    """
    channels = len(X)
    positions = len(inside)
    whole = positions - positions % EVERY
    first, to_first = X[0], Y[0, start:]
    if channels == 1:
        for p in range(positions):
            to_first[p] = first[inside[p]]
    else:  # the second of two channels is copied twice
        second, to_second = X[1], Y[1, start:]
        third, to_third = X[channels - 1], Y[channels - 1, start:]
        for begin in range(0, whole, EVERY):
            soon = inside[min(begin + PIXELS_AHEAD, positions - 1)]
            simd.prefetch(first, soon)
            simd.prefetch(second, soon)
            simd.prefetch(third, soon)
            for p in range(begin, begin + EVERY):
                i = inside[p]
                to_first[p], to_second[p], to_third[p] = first[i], second[i], third[i]
        for p in range(whole, positions):
            i = inside[p]
            to_first[p], to_second[p], to_third[p] = first[i], second[i], third[i]
    if layout == GATHERED:
        zero = X.dtype.type(0)
        for c in range(channels):
            out = Y[c, start:]
            for p in range(len(index)):
                out[p] = out[p] if index[p] < OUTSIDE_BIT else zero


@by_types
def sum_taps(
    X: Any,
    index: Any,
    offsets: Any,
    layout: int,
    weight: Any,
    Y: Any,
    start: int,
    positions: int,
) -> Any:
    """Add up the weighted taps of each channel.

    Args:
        X: channels (C, S).
        index: the pixels of the taps (R, ≥ P).
        offsets: the distances of contiguous taps to the first (R,).
        layout: the layout of the taps.
        weight: the weights of the taps (R, ≥ P).
        Y: the result is written to Y[:, start:] (C, ≥ start + P).
        start: see ``Y``.
        positions: P.

    Returns:
        The new layout of the table, which may have been converted to GATHERED.
    """
    is_short = X.dtype == Y.dtype and X.dtype in SHORT_INTEGERS
    has_vectors = is_short or Y.dtype == weight.dtype
    return _sum_in_vectors if GATHERS and has_vectors else _sum_any


@register_jitable
def _sum_in_vectors(
    X: Any,
    index: Any,
    offsets: Any,
    layout: int,
    weight: Any,
    Y: Any,
    start: int,
    positions: int,
) -> int:
    wide = VECTORS[0] // weight.itemsize
    narrow = VECTORS[1] // weight.itemsize
    # Integers do not gain from wide vectors.
    are_integers = Y.itemsize < weight.itemsize
    are_few = len(X) * len(weight) * positions < MIN_TAPS_FOR_WIDE
    wide_end = 0 if are_few or are_integers else positions - positions % wide
    narrow_end = positions - positions % narrow
    for c in range(len(X)):
        image = X[c]
        out = Y[c]
        simd.sum_wide(image, index, offsets, layout, weight, 0, wide_end, out, start)
        simd.sum_narrow(image, index, offsets, layout, weight, wide_end, narrow_end, out, start)
        simd.sum_single(image, index, offsets, layout, weight, narrow_end, positions, out, start)
    return layout


@register_jitable
def _sum_any(
    X: Any,
    index: Any,
    offsets: Any,
    layout: int,
    weight: Any,
    Y: Any,
    start: int,
    positions: int,
) -> int:
    if layout != GATHERED:
        gather_index(index, offsets, weight, layout, positions)
    _sum_in_loops(X, index, weight, Y, start, positions)
    return GATHERED


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _sum_in_loops(X: Any, index: Any, weight: Any, Y: Any, start: int, positions: int) -> None:
    """Add up GATHERED taps as :func:`sum_taps`, four channels at a time.

    Thus an entry of the table is loaded once for four channels.
    """
    channels = X.shape[0]
    rows = index.shape[0]
    real = weight.dtype.type(0)
    out = Y.dtype.type(0)
    zero = _value(X.dtype.type(0), real, out)
    rows_in_fours = rows % 4 == 0  # only linear on one axis has fewer taps
    c = 0
    while rows_in_fours and channels - c > 1:
        # The last four may repeat a channel: that is cheaper than processing up to three alone.
        c1, c2, c3 = min(c + 1, channels - 1), min(c + 2, channels - 1), min(c + 3, channels - 1)
        x0, x1, x2, x3 = X[c], X[c1], X[c2], X[c3]
        y0, y1, y2, y3 = Y[c, start:], Y[c1, start:], Y[c2, start:], Y[c3, start:]
        for p in range(positions):
            first = index[0, p]
            inside = first if first < OUTSIDE_BIT else np.uint32(0)
            v0, v1, v2, v3 = x0[inside], x1[inside], x2[inside], x3[inside]
            o0, o1 = _origin(v0, first, real, out), _origin(v1, first, real, out)
            o2, o3 = _origin(v2, first, real, out), _origin(v3, first, real, out)
            s0 = s1 = s2 = s3 = zero
            row = 0
            while True:
                i, j = index[row, p], index[row + 1, p]
                k, m = index[row + 2, p], index[row + 3, p]
                if (i | j | k | m) < OUTSIDE_BIT:
                    u, v = weight[row, p], weight[row + 1, p]
                    w, z = weight[row + 2, p], weight[row + 3, p]
                    s0 += _four(x0, i, j, k, m, u, v, w, z, o0, real, out)
                    s1 += _four(x1, i, j, k, m, u, v, w, z, o1, real, out)
                    s2 += _four(x2, i, j, k, m, u, v, w, z, o2, real, out)
                    s3 += _four(x3, i, j, k, m, u, v, w, z, o3, real, out)
                else:
                    for tap in range(row, row + 4):
                        i, w = index[tap, p], weight[tap, p]
                        if i < OUTSIDE_BIT:
                            s0 += w * (_value(x0[i], real, out) - o0)
                            s1 += w * (_value(x1[i], real, out) - o1)
                            s2 += w * (_value(x2[i], real, out) - o2)
                            s3 += w * (_value(x3[i], real, out) - o3)
                        else:
                            s0, s1 = s0 - w * o0, s1 - w * o1
                            s2, s3 = s2 - w * o2, s3 - w * o3
                row += 4
                if row >= rows:
                    break
            y0[p] = _finish(s0, o0, v0, first, out)
            y1[p] = _finish(s1, o1, v1, first, out)
            y2[p] = _finish(s2, o2, v2, first, out)
            y3[p] = _finish(s3, o3, v3, first, out)
        c += 4
    for rest in range(c, channels):
        x0, y0 = X[rest], Y[rest, start:]
        for p in range(positions):
            first = index[0, p]
            v0 = x0[first if first < OUTSIDE_BIT else np.uint32(0)]
            o0 = _origin(v0, first, real, out)
            s0 = zero
            for row in range(rows):
                i, w = index[row, p], weight[row, p]
                if i < OUTSIDE_BIT:
                    s0 += w * (_value(x0[i], real, out) - o0)
                else:
                    s0 -= w * o0
            y0[p] = _finish(s0, o0, v0, first, out)


@register_jitable
def _four(
    x: Any,
    i: Any,
    j: Any,
    k: Any,
    m: Any,
    u: Any,
    v: Any,
    w: Any,
    z: Any,
    origin: Any,
    real: Any,
    out: Any,
) -> Any:
    """Return the sum of pixels i, j, k, m, less ``origin``, with weights u, v, w, z."""
    return (
        u * (_value(x[i], real, out) - origin)
        + v * (_value(x[j], real, out) - origin)
        + w * (_value(x[k], real, out) - origin)
        + z * (_value(x[m], real, out) - origin)
    )


@njit(nogil=True, error_model="numpy")
def channels_last(X: Any, batch: int, channel: int, start: int, rows: Any) -> None:
    """Copy a part of a panel, with the channels last.

    Args:
        X: (N, C, S).
        batch: the index in N.
        channel: the first of the panel's W channels. Channels beyond X's last one repeat it.
        start: the first pixel. At most PIXELS_PER_PART pixels are copied.
        rows: the panel (S + 1, W). Its last row is a pixel of 0, which is read for taps outside.
    """
    width = rows.shape[1]
    channels = X.shape[1]
    pixels = X.shape[2]
    if start + PIXELS_PER_PART > pixels:
        rows[pixels] = 0
    end = min(start + PIXELS_PER_PART, pixels)
    for begin in range(start, end, 2 * STRIP):
        stop = min(begin + 2 * STRIP, end)
        _transpose_pixels(X[batch], channel, begin, stop, rows, width, channels)


@by_types
def _transpose_pixels(
    X: Any,
    channel: int,
    begin: int,
    end: int,
    rows: Any,
    width: int,
    channels: int,
) -> Any:
    """Copy pixels ``begin`` to ``end`` of X (C, S) to ``rows`` (S + 1, width), from ``channel`` on.

    Whole blocks are copied in vectors, unless X is float16 and the processor does not convert it.
    ``channels`` is C.
    """

    def in_fours(
        X: Any,
        channel: int,
        begin: int,
        end: int,
        rows: Any,
        width: int,
        channels: int,
    ) -> None:
        last = channels - 1
        real = rows.dtype.type(0)
        for c in range(0, width, 4):
            first = channel + c
            x0, x1 = X[min(first, last)], X[min(first + 1, last)]
            x2, x3 = X[min(first + 2, last)], X[min(first + 3, last)]
            for i in range(begin, end):
                v0, v1 = _value(x0[i], real, real), _value(x1[i], real, real)
                v2, v3 = _value(x2[i], real, real), _value(x3[i], real, real)
                rows[i, c], rows[i, c + 1], rows[i, c + 2], rows[i, c + 3] = v0, v1, v2, v3

    compiled_in_fours = register_jitable(in_fours)

    def in_vectors(
        X: Any,
        channel: int,
        begin: int,
        end: int,
        rows: Any,
        width: int,
        channels: int,
    ) -> None:
        i = begin
        if channel + width <= channels:
            while i + width <= end:
                simd.transpose(X, channel, i, rows, i, 0, width)
                i += width
        if i < end:
            compiled_in_fours(X, channel, i, end, rows, width, channels)

    return in_vectors if CONVERTS or X.dtype != types.uint16 else in_fours


@register_jitable
def sum_packed(
    X: Any,
    index: Any,
    offsets: Any,
    layout: int,
    weight: Any,
    strip: Any,
    Y: Any,
    start: int,
    positions: int,
) -> None:
    """Add up the weighted taps of the channels of a panel. Only floats are packed.

    Args:
        X: the panel (S + 1, W).
        index: the pixels of the taps (R, ≥ P).
        offsets: the distances of contiguous taps to the first (R,).
        layout: the layout of the taps.
        weight: the weights of the taps (R, ≥ P).
        strip: scratch memory (STRIP, W).
        Y: the result is written to Y[:W, start:] (C, ≥ start + P), where C may be less than W.
        start: see ``Y``.
        positions: P.
    """
    width = X.shape[1]
    channels = min(width, len(Y))
    for begin in range(0, positions, STRIP):
        size = min(STRIP, positions - begin)
        end = begin + size
        whole = size - size % width if channels == width else 0
        if width == NARROW:
            simd.sum_rows_narrow(X, index, offsets, layout, weight, begin, end, strip, -begin)
        else:
            simd.sum_rows_wide(X, index, offsets, layout, weight, begin, end, strip, -begin)
        for p in range(0, whole, width):
            simd.transpose(strip, p, 0, Y, 0, start + begin + p, width)
        for c in range(channels):
            y = Y[c, start + begin :]
            for p in range(whole, size):
                y[p] = strip[p, c]


# Functions that depend on the types of X and Y. Their arguments are a pixel of X, ``real``, a 0 of
# the weights' type, and ``out``, a 0 of Y's type. They are not given arrays: if an array passes a
# branch, Numba counts references to it, which costs more than all the rest. If Y is float32, a
# pixel of uint16 or int16 is the bits of float16 or bfloat16.


@by_types
def _value(pixel: Any, real: Any, out: Any) -> Any:
    """Convert a pixel to the compute type."""
    if pixel in (types.uint16, types.int16) and isinstance(out, types.Float):
        return lambda pixel, real, out: widened(pixel)
    if isinstance(pixel, types.Complex):
        return lambda pixel, real, out: pixel
    kind = real
    return lambda pixel, real, out: kind(pixel)


@by_types
def _origin(pixel: Any, i: Any, real: Any, out: Any) -> Any:
    """Return the value that is subtracted from all taps: of integers, the first tap; otherwise 0.

    Thus the sum of equal integers is exact.
    """
    if isinstance(out, types.Integer):
        return lambda pixel, i, real, out: _value(pixel, real, out) if i < OUTSIDE_BIT else real
    return lambda pixel, i, real, out: real


@by_types
def _finish(total: Any, origin: Any, pixel: Any, i: Any, out: Any) -> Any:
    """Convert the sum to an element of Y. Integers are truncated toward zero and saturated."""
    if isinstance(out, types.Integer):
        kind = out
        low, high = kind.minval, kind.maxval
        low_sum, high_sum = float(low), float(high)

        def finish(total: Any, origin: Any, pixel: Any, i: Any, out: Any) -> Any:
            if total == 0 and i < OUTSIDE_BIT:
                return pixel  # beyond 2**53 the origin itself was rounded
            value = total + origin
            if value >= high_sum:
                return kind(high)
            if value <= low_sum:
                return kind(low)
            return kind(value)

        return finish
    if isinstance(out, types.Boolean):
        return lambda total, origin, pixel, i, out: total != 0
    return lambda total, origin, pixel, i, out: total
