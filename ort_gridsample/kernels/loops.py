"""What a worker does to a tile of positions: all ranks, modes and paddings, for each type of X and of coordinates.

A tile gets a table, one row per tap and one column per position: which pixel of flat X the tap reads, and with which
weight. Then every channel is read through that table: from X or, where each pixel is read often, from a copy of X with
its :func:`channels_last`. Loops state here what :mod:`.coordinates`, :mod:`.taps`, :mod:`.sums` and :mod:`.numpy_core`
state on arrays. The order of the operations on a coordinate is the same, and no flag here lets the compiler change it.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import register_jitable

from ..spec import CUBIC_A
from . import simd
from .halves import CONVERTS, widened
from .pointers import array, by_types
from .simd import CONTIGUOUS, EVERY, GATHERED, GATHERS, MASKED, NARROW, OUTSIDE_BIT, PIXELS_AHEAD, VECTORS

ZEROS, BORDER, REFLECTION = range(3)
#: The index of a tap that counts as 0; every other index is a pixel of X.
OUTSIDE = np.uint32(0xFFFFFFFF)
MAX_PIXELS = 1 << 30  # and so that a coordinate beyond X, too, is an int32
#: The most positions, and positions times taps, of a tile: its table stays in a CPU's second cache.
TILE_POSITIONS = 2048
TILE_TAPS = 1 << 14
#: The table's rows are this much longer than a power of two, else all compete for the same lines of the cache.
ROW_PADDING = 16
#: The positions whose sums, channels last, are kept before they are written to Y.
STRIP = 64
#: From so many taps of all channels on wide vectors gain more than they cost.
WORTH_WIDE = 1 << 16
#: The integers that are summed in vectors.
SHORT_INTEGERS = types.int8, types.int16, types.uint8, types.uint16
#: The pixels that one call packs.
PART = 1 << 12


@register_jitable
def _clip(x: Any, low: Any, high: Any) -> Any:
    return min(max(x, low), high)


@register_jitable
def unnormalize(g: Any, length: Any, align_corners: bool) -> Any:
    """The pixel coordinate of a normalized one ``g``, on an axis of ``length`` pixels."""
    kind = type(g)
    if align_corners:
        return (g + kind(1)) * (kind(length - 1) * kind(0.5))
    return (g + kind(1)) * (kind(length) * kind(0.5)) - kind(0.5)


@register_jitable
def _fold(x: Any, low: Any, last: Any) -> Any:
    """``x``, less than a period from 0, reflected; then clipped, as rounding may leave it on the outer edge."""
    x = max(x, type(x)(2) * low - x)
    x = min(x, type(x)(2) * (last - low) - x)
    return _clip(x, type(x)(0), last)


@register_jitable
def _reflect(x: Any, low: Any, span: Any, last: Any) -> Any:
    """``x`` reflected until it lies inside."""
    kind = type(x)
    if span == 0:
        return kind(0)
    period = kind(2) * span
    return _fold(x if abs(x) < period else kind(np.fmod(x, period)), low, last)


@register_jitable
def _pad_coordinates(
    g: Any, x: Any, length: int, padding: int, align_corners: bool, low: Any, span: Any, pads_index: bool
) -> bool:
    """Write pixel coordinates of ``g`` (P,) into ``x`` (≥ P,): finite and, where padding acts on coordinates, inside.

    Returns whether all lie so near that one fold reflects them, or the taps around them.
    """
    kind = x.dtype.type
    at_nan = unnormalize(kind(-1), length, align_corners)
    lowest, highest = kind(-4), kind(length + 3)  # beyond every tap
    if padding == REFLECTION or (padding == BORDER and not pads_index):
        lowest, highest = kind(0), kind(length - 1)
    near = kind(2) * span - kind(3)
    is_far = np.uint32(0)
    for p in range(len(g)):
        # Infinity times a span of 0 is no coordinate.
        finite = g[p] if np.isinf(g[p]) else unnormalize(g[p], length, align_corners)
        finite = at_nan if np.isnan(g[p]) else finite
        is_far = np.uint32(is_far | (np.uint32(0) if abs(finite) <= near else np.uint32(1)))
        x[p] = finite if padding == REFLECTION and not np.isinf(finite) else _clip(finite, lowest, highest)
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
    a, kind = type(d)(CUBIC_A), type(d)
    return ((a + kind(2)) * d - (a + kind(3))) * d * d + kind(1)


@register_jitable
def _far(d: Any) -> Any:
    a, kind = type(d)(CUBIC_A), type(d)
    return ((d - kind(5)) * d + kind(8)) * d * a - kind(4) * a


@register_jitable
def _cubic(t: Any) -> Any:
    """The weights of four taps, of which the second lies ``t`` before the coordinate."""
    kind = type(t)
    return _far(kind(1) + t), _near(t), _near(kind(1) - t), _far(kind(2) - t)


@register_jitable
def _weigh(x: Any, weight: Any, p: int, taps: int) -> Any:
    """The pixel from which the taps of coordinate ``x`` are counted, and their weights at position ``p``."""
    if taps == 1:
        return np.rint(x)  # half to even
    real = weight.dtype.type
    base = np.floor(x)
    t = real(x - base)
    if taps == 2:
        weight[0, p], weight[1, p] = real(1) - t, t
    else:
        weight[0, p], weight[1, p], weight[2, p], weight[3, p] = _cubic(t)
    return base


#: A tile's coordinates: all taps are inside, or no coordinate is further out than :data:`FAR`, or some are.
INSIDE, NEAR, FAR_OUT = range(3)
FAR = 1 << 22


@register_jitable
def _unpadded_taps(
    g: Any, length: int, align_corners: bool, x: Any, index: Any, weight: Any, taps: int, first: int
) -> int:
    """Write the pixel coordinates into ``x`` (≥ P,), the first taps into ``index`` (≥ P,), and weights, unpadded.

    Returns where the coordinates lie: if ``INSIDE`` no padding is needed; if ``FAR_OUT`` some are infinite or NaN.
    """
    kind = g.dtype.type
    least, most, offset, far = kind(-first), kind(length - 1 - (taps - 1 + first)), kind(first), kind(FAR)
    if length > FAR:
        most = least - kind(1)  # which coordinates are inside is not to be said that exactly
    outside = far_out = np.uint32(0)  # as wide as what else is worked on: anything wider halves the speed
    for p in range(len(g)):
        at = unnormalize(g[p], length, align_corners)
        outside = np.uint32(outside | (np.uint32(0) if (at >= least) & (at <= most) else np.uint32(1)))
        index[p] = np.uint32(np.int32(_weigh(at, weight, p, taps) + offset))
        x[p] = at
    if outside == 0:
        return INSIDE
    for p in range(len(g)):
        far_out = np.uint32(far_out | (np.uint32(0) if abs(x[p]) <= far else np.uint32(1)))
    return FAR_OUT if far_out else NEAR


# These loops write to no array that they read: that takes three times as long.


@register_jitable
def _pad_pixels(x: Any, positions: int, length: int, padding: int, index: Any) -> None:
    """Nearest's pixels ``index`` (≥ P,) of near coordinates ``x`` (≥ P,), with zeros or border padding."""
    end, outside = np.int32(length - 1), OUTSIDE if padding == ZEROS else np.uint32(0)
    for p in range(positions):
        i = np.int32(np.rint(x[p]))
        inside = min(max(i, np.int32(0)), end)
        index[p] = np.uint32(inside) if inside == i else np.uint32(inside) | outside


@register_jitable
def _pad_pairs(x: Any, positions: int, length: int, padding: int, index: Any, weight: Any) -> None:
    """Linear's taps of near coordinates ``x`` (≥ P,), with zeros or border padding, as pairs inside.

    Of a pair half outside, one tap is masked in the next pair inside. So is a tap beyond the last pixel, whose weight
    is 0.
    """
    real, kind = weight.dtype.type, x.dtype.type
    masked, last = real(np.nan), np.int32(length - 2)
    first, second = weight[0], weight[1]
    lowest, highest = (kind(-np.inf), kind(np.inf)) if padding == ZEROS else (kind(0), kind(length - 1))
    for p in range(positions):
        at = _clip(x[p], lowest, highest)
        i = min(max(np.int32(np.floor(at)), np.int32(0)), last)
        distance = at - kind(i)
        t = real(distance)
        # Both are 1 less the distance, in the order of operations of a pair that was not moved.
        before, after = real(distance + kind(1)), real(2) - t
        w = before if t < real(0) else real(1) - t
        first[p] = w if (t >= real(-1)) & (t < real(1)) else masked
        second[p] = min(t, after) if (t >= real(0)) & (t < real(2)) else masked
        index[p] = np.uint32(i)


@register_jitable
def _pad_quads(x: Any, positions: int, length: int, index: Any, weight: Any) -> None:
    """Cubic's taps of near coordinates ``x`` (≥ P,), with zeros padding, as four inside, some of them masked."""
    real = weight.dtype.type
    masked, last = real(np.nan), np.int32(length - 4)
    for p in range(positions):
        base = np.floor(x[p])
        a, b, c, d = _cubic(real(x[p] - base))
        wanted = np.int32(np.int32(base) - np.int32(1))
        i = min(max(wanted, np.int32(0)), last)
        moved = np.int32(i - wanted)
        for tap in range(4):
            which = np.int32(moved + tap)
            found = a if which == 0 else masked
            found = b if which == 1 else found
            found = c if which == 2 else found
            weight[tap, p] = d if which == 3 else found
        index[p] = np.uint32(i)


@register_jitable
def can_be_contiguous(taps: int, padding: int) -> bool:
    """Whether the taps of an axis are contiguous at the borders, too, where some are masked."""
    return taps == 2 or (taps == 4 and padding == ZEROS)


@njit(nogil=True, error_model="numpy")
def axis_taps(
    g: Any, length: int, padding: int, align_corners: bool, x: Any, index: Any, weight: Any, taps: int, may_mask: bool
) -> int:
    """The taps, 1, 2 or 4 for nearest, linear or cubic, of the coordinates ``g`` (P,) on an axis of ``length`` pixels.

    Fills the first P columns of ``index``, unless the taps lie :data:`GATHERED` its first row alone, and of ``weight``,
    (taps, ≥ P) both; ``x`` (≥ P,) is scratch. Returns their layout: with :data:`MASKED` only if they ``may_mask``.
    """
    positions = len(g)
    kind = x.dtype.type
    cubic = taps == 4
    first = -1 if cubic else 0
    contiguous = may_mask and length >= taps and can_be_contiguous(taps, padding)
    where = _unpadded_taps(g, length, align_corners, x, index[0], weight, taps, first)
    if where == INSIDE:
        return CONTIGUOUS
    none_outside = CONTIGUOUS if taps == 1 and padding != ZEROS else GATHERED
    is_near = where == NEAR and padding != REFLECTION
    if is_near and taps == 1:
        _pad_pixels(x, positions, length, padding, index[0])
        return none_outside
    # From the middle, or from the edge, of the first pixel to that of the last.
    low, span = (kind(0), kind(length - 1)) if align_corners else (kind(-0.5), kind(length))
    near = True
    if not (is_near and contiguous):
        near = _pad_coordinates(g, x, length, padding, align_corners, low, span, cubic)
    if contiguous:
        if cubic:
            _pad_quads(x, positions, length, index[0], weight)
        else:
            _pad_pairs(x, positions, length, padding, index[0], weight)
        return MASKED
    for p in range(positions):
        x[p] = _weigh(x[p], weight, p, taps)
    reflects_index = cubic and padding == REFLECTION
    end = np.int32(length - 1)
    outside = OUTSIDE if padding == ZEROS else np.uint32(0)
    for tap in range(taps):
        offset = kind(tap + first)
        row = index[tap]
        if reflects_index and near:
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
    return none_outside


@register_jitable
def split(grid: Any, g: Any) -> None:
    """Write the coordinates ``grid`` (P, r) into ``g`` (r, P), the outermost axis first: with a known r in vectors.

    Those of uint16 and int16 are the bits of float16 and bfloat16.
    """
    positions, r = grid.shape
    flat = array(np.int64(grid.ctypes.data), (positions * r,), grid.dtype)  # it lists the innermost axis first
    # Of what has no sign Numba does not ask whether it counts from the end.
    first, second, third, step = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(r)
    if r == 2:
        y, x = g[0], g[1]
        for p in range(positions):
            at = np.uint64(2) * np.uint64(p)
            x[p], y[p] = widened(flat[at + first]), widened(flat[at + second])
    elif r == 3:
        z, y, x = g[0], g[1], g[2]
        for p in range(positions):
            at = np.uint64(3) * np.uint64(p)
            x[p], y[p], z[p] = widened(flat[at + first]), widened(flat[at + second]), widened(flat[at + third])
    else:
        for axis in range(r):
            out, last = g[axis], np.uint64(r - 1 - axis)
            for p in range(positions):
                out[p] = widened(flat[step * np.uint64(p) + last])


@register_jitable
def gather_index(index: Any, offsets: Any, weight: Any, layout: int, positions: int) -> None:
    """Give the taps of a table (R, ≥ P) that lie side by side by their ``offsets`` (≥ R,) an index each."""
    first = index[0]
    for row in range(len(index) - 1, -1, -1):
        out, offset = index[row], np.uint32(offsets[row])
        for p in range(positions):
            out[p] = first[p] + offset
    if layout == MASKED:
        for row in range(len(index)):
            out, by = index[row], weight[row]
            for p in range(positions):
                is_gap = np.isnan(by[p])
                out[p] = OUTSIDE if is_gap else out[p]
                by[p] = 0 if is_gap else by[p]


@register_jitable
def combine(
    index: Any, weight: Any, along: Any, along_weight: Any, offsets: Any, layout: int, layout_along: int,
    length: int, positions: int, to: Any, to_weight: Any,
) -> int:  # fmt: skip
    """Every combination of the taps so far, in ``index`` (R, ≥ P), with those of an inner axis in ``along`` (T, ≥ P).

    Fills ``to`` (R · T, ≥ P) and, of more than one tap, ``to_weight``, and turns the ``offsets`` (≥ R · T,) of the taps
    so far into theirs. Those so far lie as ``layout`` says, the others as ``layout_along``; returns the layout of all.
    """
    rows, taps = len(index), len(along)
    layout_all = min(layout, layout_along)
    if layout_all == GATHERED and layout != GATHERED:
        gather_index(index, offsets, weight, layout, positions)
    for row in range(rows - 1, -1, -1):
        offset = offsets[row] * length
        for tap in range(taps - 1, -1, -1):
            offsets[row * taps + tap] = offset + tap
    if layout_all == GATHERED and layout_along != GATHERED:
        # Of the first row's taps, offsets are as on one axis.
        gather_index(along, offsets, along_weight, layout_along, positions)
    stride = np.uint32(length)
    if layout_all != GATHERED:
        outer, inner, out = index[0], along[0], to[0]
        for p in range(positions):
            out[p] = outer[p] * stride + inner[p]
    for row in range(rows):
        outer, outer_weight = index[row], weight[row]
        for tap in range(taps):
            if layout_all == GATHERED:
                inner, out = along[tap], to[row * taps + tap]
                for p in range(positions):
                    a, b = outer[p], inner[p]
                    out[p] = OUTSIDE if (a | b) >= OUTSIDE_BIT else a * stride + b
            if taps > 1:
                inner_weight, out_weight = along_weight[tap], to_weight[row * taps + tap]
                for p in range(positions):
                    out_weight[p] = outer_weight[p] * inner_weight[p]
    return layout_all


@register_jitable
def copy_pixels(X: Any, index: Any, layout: int, inside: Any, Y: Any, start: int) -> None:
    """Copy pixels ``inside`` X (C ≤ 3, S) into Y[:, start:]: 0 for an ``index`` outside, if they lie GATHERED."""
    channels, positions = len(X), len(inside)
    whole = positions - positions % EVERY
    first, to_first = X[0], Y[0, start:]
    if channels == 1:
        for p in range(positions):
            to_first[p] = first[inside[p]]
    else:  # of two, one twice
        second, third, to_second, to_third = X[1], X[channels - 1], Y[1, start:], Y[channels - 1, start:]
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
def sum_taps(X: Any, index: Any, offsets: Any, layout: int, weight: Any, Y: Any, start: int, positions: int) -> Any:
    """Read X (C, S) through the table, whose taps lie as ``layout`` says, into Y[:, start:]; returns the new layout."""
    short = X.dtype == Y.dtype and X.dtype in SHORT_INTEGERS
    return _sum_in_vectors if GATHERS and (short or Y.dtype == weight.dtype) else _sum_any


@register_jitable
def _sum_in_vectors(
    X: Any, index: Any, offsets: Any, layout: int, weight: Any, Y: Any, start: int, positions: int
) -> int:
    wide, narrow = VECTORS[0] // weight.itemsize, VECTORS[1] // weight.itemsize
    few = len(X) * len(weight) * positions < WORTH_WIDE or Y.itemsize < weight.itemsize  # integers gain nothing
    wides, narrows = 0 if few else positions - positions % wide, positions - positions % narrow
    for c in range(len(X)):
        image, out = X[c], Y[c]
        simd.sum_wide(image, index, offsets, layout, weight, 0, wides, out, start)
        simd.sum_narrow(image, index, offsets, layout, weight, wides, narrows, out, start)
        simd.sum_single(image, index, offsets, layout, weight, narrows, positions, out, start)
    return layout


@register_jitable
def _sum_any(X: Any, index: Any, offsets: Any, layout: int, weight: Any, Y: Any, start: int, positions: int) -> int:
    if layout != GATHERED:
        gather_index(index, offsets, weight, layout, positions)
    _sum_in_loops(X, index, weight, Y, start, positions)
    return GATHERED


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def _sum_in_loops(X: Any, index: Any, weight: Any, Y: Any, start: int, positions: int) -> None:
    """Four channels at a time, to load an entry once for all."""
    channels, rows = X.shape[0], index.shape[0]
    real, out = weight.dtype.type(0), Y.dtype.type(0)
    zero = _value(X.dtype.type(0), real, out)
    fours = rows % 4 == 0  # only linear on one axis has fewer taps
    c = 0
    while fours and channels - c > 1:
        # The last four may repeat a channel: that is cheaper than to take three alone.
        c1, c2, c3 = min(c + 1, channels - 1), min(c + 2, channels - 1), min(c + 3, channels - 1)
        x0, x1, x2, x3 = X[c], X[c1], X[c2], X[c3]
        y0, y1, y2, y3 = Y[c, start:], Y[c1, start:], Y[c2, start:], Y[c3, start:]
        for p in range(positions):
            first = index[0, p]
            at = first if first < OUTSIDE_BIT else np.uint32(0)
            v0, v1, v2, v3 = x0[at], x1[at], x2[at], x3[at]
            o0, o1 = _origin(v0, first, real, out), _origin(v1, first, real, out)
            o2, o3 = _origin(v2, first, real, out), _origin(v3, first, real, out)
            s0 = s1 = s2 = s3 = zero
            row = 0
            while True:
                i, j, k, m = index[row, p], index[row + 1, p], index[row + 2, p], index[row + 3, p]
                if (i | j | k | m) < OUTSIDE_BIT:
                    u, v, w, z = weight[row, p], weight[row + 1, p], weight[row + 2, p], weight[row + 3, p]
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
                            s0, s1, s2, s3 = s0 - w * o0, s1 - w * o1, s2 - w * o2, s3 - w * o3
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
    x: Any, i: Any, j: Any, k: Any, m: Any, u: Any, v: Any, w: Any, z: Any, origin: Any, real: Any, out: Any
) -> Any:
    return (
        u * (_value(x[i], real, out) - origin)
        + v * (_value(x[j], real, out) - origin)
        + w * (_value(x[k], real, out) - origin)
        + z * (_value(x[m], real, out) - origin)
    )


@njit(nogil=True, error_model="numpy")
def channels_last(X: Any, batch: int, channel: int, start: int, rows: Any) -> None:
    """Write PART pixels of X[batch] from ``start``, and W channels from ``channel`` on, into ``rows`` (S + 1, W).

    The last row, beyond X's last pixel, is the pixel outside, 0. What is beyond X's last channel repeats it.
    """
    width, channels, pixels = rows.shape[1], X.shape[1], X.shape[2]
    if start + PART > pixels:
        rows[pixels] = 0
    end = min(start + PART, pixels)
    for begin in range(start, end, 2 * STRIP):
        _turn(X[batch], channel, begin, min(begin + 2 * STRIP, end), rows, width, channels)


@by_types
def _turn(X: Any, channel: int, begin: int, end: int, rows: Any, width: int, channels: int) -> Any:
    """Lay out the pixels ``begin`` to ``end`` of X (C, S): in vectors, as far as they are whole and can be widened."""

    def in_fours(X: Any, channel: int, begin: int, end: int, rows: Any, width: int, channels: int) -> None:
        last, real = channels - 1, rows.dtype.type(0)
        for c in range(0, width, 4):
            at = channel + c
            x0, x1 = X[min(at, last)], X[min(at + 1, last)]
            x2, x3 = X[min(at + 2, last)], X[min(at + 3, last)]
            for i in range(begin, end):
                v0, v1 = _value(x0[i], real, real), _value(x1[i], real, real)
                v2, v3 = _value(x2[i], real, real), _value(x3[i], real, real)
                rows[i, c], rows[i, c + 1], rows[i, c + 2], rows[i, c + 3] = v0, v1, v2, v3

    fours = register_jitable(in_fours)

    def in_vectors(X: Any, channel: int, begin: int, end: int, rows: Any, width: int, channels: int) -> None:
        i = begin
        if channel + width <= channels:
            while i + width <= end:
                simd.transpose(X, channel, i, rows, i, 0, width)
                i += width
        if i < end:
            fours(X, channel, i, end, rows, width, channels)

    return in_vectors if CONVERTS or X.dtype != types.uint16 else in_fours


@register_jitable
def sum_packed(
    X: Any, index: Any, offsets: Any, layout: int, weight: Any, strip: Any, Y: Any, start: int, positions: int
) -> None:
    """Read a panel X (S + 1, W) through the table, whose taps lie as ``layout`` says, into Y[:W, start:].

    Only floats are packed. ``strip`` (STRIP, W) is scratch.
    """
    width = X.shape[1]
    channels = min(width, len(Y))
    for begin in range(0, positions, STRIP):
        size = min(STRIP, positions - begin)
        whole = size - size % width if channels == width else 0
        if width == NARROW:
            simd.sum_rows_narrow(X, index, offsets, layout, weight, begin, begin + size, strip, -begin)
        else:
            simd.sum_rows_wide(X, index, offsets, layout, weight, begin, begin + size, strip, -begin)
        for p in range(0, whole, width):
            simd.transpose(strip, p, 0, Y, 0, start + begin + p, width)
        for c in range(channels):
            y = Y[c, start + begin :]
            for p in range(whole, size):
                y[p] = strip[p, c]


# What depends on the types of X and Y, given a pixel of X and a 0 of the weights' type, ``real``, and of Y's, ``out``.
# Never given arrays: where these pass a branch, Numba counts who holds them, which costs more than all the rest.
# A pixel of uint16 or int16 for a Y of float32 is the bits of float16 or bfloat16.


@by_types
def _value(pixel: Any, real: Any, out: Any) -> Any:
    """The pixel in the type that is computed in."""
    if pixel in (types.uint16, types.int16) and isinstance(out, types.Float):
        return lambda pixel, real, out: widened(pixel)
    if isinstance(pixel, types.Complex):
        return lambda pixel, real, out: pixel
    kind = real
    return lambda pixel, real, out: kind(pixel)


@by_types
def _origin(pixel: Any, i: Any, real: Any, out: Any) -> Any:
    """What integers are summed relative to, the first tap: where all taps are equal the sum is exact. Else 0."""
    if isinstance(out, types.Integer):
        return lambda pixel, i, real, out: _value(pixel, real, out) if i < OUTSIDE_BIT else real
    return lambda pixel, i, real, out: real


@by_types
def _finish(total: Any, origin: Any, pixel: Any, i: Any, out: Any) -> Any:
    """The sum as an element of Y: integers truncated toward zero and saturated."""
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
