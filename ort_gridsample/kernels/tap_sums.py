"""The loops that read the channels of X through a table of taps, and add up.

:mod:`.tap_table` computes the table of a tile. Channels are read from X or, if each pixel is read
often, from panels: copies of some channels of X with the channels last (:func:`pack_part`). The
vectors of these loops are in :mod:`.simd`.

The NumPy core defines the same computations on arrays, in ``sums.py`` and ``sampler.py`` of
:mod:`ort_gridsample.reference`.

Names in docstrings and loops: X has S pixels, C channels and N batches; the table has R taps and P
positions, and ``p`` is a position. Arrays of shape (≥ P,) have room for a longer tile. A panel has
W channels, NARROW_PANEL or WIDE_PANEL. Halves are handled as their bits: see :mod:`.halves`.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import register_jitable

from . import simd, simd_sums
from .halves import CPU_CONVERTS_FLOAT16, FLOAT16_BITS, HALF_BITS, widened
from .pointers import by_types
from .simd import (
    CPU_HAS_FAST_VECTORS,
    GATHERED,
    NARROW_PANEL,
    NARROW_VECTOR,
    OUTSIDE_BIT,
    WIDE_PANEL,
    WIDE_VECTOR,
)
from .structs import CACHE_LINE, ArrayRef
from .tap_table import convert_to_gathered

#: The number of positions whose sums, channels last, are kept before they are written to Y.
STRIP = 64
#: The minimum taps of all channels for which wide vectors gain more than they cost.
MIN_TAPS_FOR_WIDE = 1 << 16
#: The integer types that are summed in vectors.
SHORT_INTEGERS = types.int8, types.int16, types.uint8, types.uint16
#: The number of positions of a tile whose pixels tell whether the grid is smooth.
MAX_POSITIONS_EXAMINED = 128
#: The number of pixels that one call packs.
PIXELS_PER_PART = 1 << 12


# --- Pixels that are only copied, in mode nearest ---


@register_jitable
def prefetch_step(index: ArrayRef) -> int:
    """Return for how many positions of a tile one pixel is prefetched, if X exceeds the caches.

    Args:
        index: the pixel of each position (P,).
    """
    count = min(len(index) - 1, MAX_POSITIONS_EXAMINED)
    n_jumps = 0
    for p in range(count):
        distance = np.uint32(index[p + 1] - index[p] + np.uint32(simd.SMOOTH_STEP))
        n_jumps += 1 if distance > np.uint32(2 * simd.SMOOTH_STEP) else 0
    return 1 if 4 * n_jumps > count else simd.SMOOTH_STEP


@register_jitable
def move_inside(index: ArrayRef, inside: ArrayRef) -> None:
    """Write each pixel of ``index`` (P,) to ``inside`` (P,), pixel 0 for one outside."""
    for p in range(len(index)):
        inside[p] = index[p] if index[p] < OUTSIDE_BIT else np.uint32(0)


@register_jitable
def is_any_outside(index: ArrayRef) -> bool:
    """Whether a pixel of ``index`` (P,) is outside."""
    marks = np.uint32(0)
    for p in range(len(index)):
        marks = np.uint32(marks | index[p])  # Numba's result has 64 bits
    return bool(marks >= OUTSIDE_BIT)


@register_jitable
def copy_pixels(
    x: ArrayRef,
    index: ArrayRef,
    inside: ArrayRef,
    has_outside: bool,
    step: int,
    y: ArrayRef,
    next_x: ArrayRef,
) -> None:
    """Copy a pixel of a channel to each position, and prefetch pixels of the next channel.

    Args:
        x: the channel (S,).
        index: the pixel of each position (P,). If it is outside, the value is 0.
        inside: what :func:`move_inside` wrote (P,).
        has_outside: whether some are outside.
        step: what :func:`prefetch_step` returned.
        y: the result (≥ P,).
        next_x: the next channel (S,).
    """
    positions = len(inside)
    whole = positions - positions % simd.COPIED_AT_ONCE
    simd.copy_pixels(x, index, inside, has_outside, step, whole, y, next_x)
    for p in range(whole, positions):
        y[p] = x.dtype.type(0) if has_outside and index[p] >= OUTSIDE_BIT else x[inside[p]]


@register_jitable
def copy_packed(panel: ArrayRef, index: ArrayRef, Y: ArrayRef, start: int, positions: int) -> None:
    """Copy the channels of a panel to each position.

    Args:
        panel: the panel (S + 1, WIDE_PANEL).
        index: the pixel of each position (≥ P + WIDE_PANEL,). If outside, the value is 0.
        Y: the result is written to Y[:, start:] (C ≤ WIDE_PANEL, ≥ start + P).
        start: see ``Y``.
        positions: P.
    """
    # Vectors that begin at a cache line are written twice as fast.
    misaligned = -(np.int64(Y.ctypes.data) // Y.itemsize + start) % (CACHE_LINE // Y.itemsize)
    first_whole = min(misaligned, positions)
    end_whole = positions - (positions - first_whole) % WIDE_PANEL
    last_row = np.uint32(len(panel) - 1)
    for p in range(first_whole, end_whole, WIDE_PANEL):
        simd.copy_rows(panel, index, p, Y, start + p)
    for p in range(positions):
        if p < first_whole or p >= end_whole:
            row = min(index[p], last_row)
            for channel in range(len(Y)):
                Y[channel, start + p] = panel[row, channel]


# --- Sums over taps of X ---


@by_types
def sum_taps(
    X: Any,
    table: Any,
    Y: Any,
    start: int,
    positions: int,
) -> Any:
    """Add up the weighted taps of each channel.

    Args:
        X: channels (C, S).
        table: the :class:`.tap_table.TapTable`.
        Y: the result is written to Y[:, start:] (C, ≥ start + P). Sums of halves are float32.
        start: see ``Y``.
        positions: P.

    Returns:
        The new layout of the table, which may have been converted to GATHERED.
    """
    is_short_integer = X.dtype == Y.dtype and X.dtype in SHORT_INTEGERS
    weight = table.types[table.fields.index("weight")]
    has_vectors = is_short_integer or Y.dtype == weight.dtype
    return _sum_in_vectors if CPU_HAS_FAST_VECTORS and has_vectors else _sum_in_loops


@register_jitable
def _sum_in_vectors(
    X: ArrayRef,
    table: Any,
    Y: ArrayRef,
    start: int,
    positions: int,
) -> int:
    """Add up as :func:`sum_taps`: in vectors of positions, and the last positions one by one."""
    weight = table.weight
    wide = WIDE_VECTOR // weight.itemsize
    narrow = NARROW_VECTOR // weight.itemsize
    # Integers do not gain from wide vectors.
    are_integers = Y.itemsize < weight.itemsize
    are_few = len(X) * len(weight) * positions < MIN_TAPS_FOR_WIDE
    wide_end = 0 if are_few or are_integers else positions - positions % wide
    narrow_end = positions - positions % narrow
    for channel in range(len(X)):
        x = X[channel]
        y = Y[channel]
        simd_sums.sum_wide(x, table, 0, wide_end, y, start)
        simd_sums.sum_narrow(x, table, wide_end, narrow_end, y, start)
        simd_sums.sum_single(x, table, narrow_end, positions, y, start)
    return table.layout


@register_jitable
def _sum_in_loops(
    X: ArrayRef,
    table: Any,
    Y: ArrayRef,
    start: int,
    positions: int,
) -> int:
    """Add up as :func:`sum_taps`, for types and processors without vectors."""
    if table.layout != GATHERED:
        convert_to_gathered(table, positions)
    _sum_gathered(X, table.index, table.weight, Y, start, positions)
    return GATHERED


@register_jitable(fastmath={"contract"})
def _sum_gathered(
    X: ArrayRef, index: ArrayRef, weight: ArrayRef, Y: ArrayRef, start: int, positions: int
) -> None:
    """Add up GATHERED taps as :func:`sum_taps`.

    Four channels are added up at a time, so that an entry of the table is loaded once for all four.
    """
    channels = X.shape[0]
    channel = 0
    if index.shape[0] % 4 == 0:  # false for linear and lanczos3 on one axis
        while channels - channel > 1:
            _sum_four_channels(X, channel, index, weight, Y, start, positions)
            channel += 4
    for rest in range(channel, channels):
        _sum_one_channel(X[rest], index, weight, Y[rest, start:], positions)


@register_jitable
def _sum_four_channels(
    X: ArrayRef,
    channel: int,
    index: ArrayRef,
    weight: ArrayRef,
    Y: ArrayRef,
    start: int,
    positions: int,
) -> None:
    """Add up GATHERED taps of four channels, from ``channel`` on, four taps at a time.

    If fewer channels are left, the last one is repeated: this is cheaper than to process up to
    three channels one by one.
    """
    rows = index.shape[0]
    last_channel = X.shape[0] - 1
    channel1 = min(channel + 1, last_channel)
    channel2 = min(channel + 2, last_channel)
    channel3 = min(channel + 3, last_channel)
    x0 = X[channel]
    x1 = X[channel1]
    x2 = X[channel2]
    x3 = X[channel3]
    y0 = Y[channel, start:]
    y1 = Y[channel1, start:]
    y2 = Y[channel2, start:]
    y3 = Y[channel3, start:]
    weight_like = weight.dtype.type(0)
    Y_like = Y.dtype.type(0)
    zero = _to_compute_type(X.dtype.type(0), weight_like, Y_like)
    for p in range(positions):
        first = index[0, p]
        first_inside = first if first < OUTSIDE_BIT else np.uint32(0)
        value0 = x0[first_inside]
        value1 = x1[first_inside]
        value2 = x2[first_inside]
        value3 = x3[first_inside]
        origin0 = _origin(value0, first, weight_like, Y_like)
        origin1 = _origin(value1, first, weight_like, Y_like)
        origin2 = _origin(value2, first, weight_like, Y_like)
        origin3 = _origin(value3, first, weight_like, Y_like)
        total0 = zero
        total1 = zero
        total2 = zero
        total3 = zero
        row = 0
        while True:
            pixels = (index[row, p], index[row + 1, p], index[row + 2, p], index[row + 3, p])
            if (pixels[0] | pixels[1] | pixels[2] | pixels[3]) < OUTSIDE_BIT:
                w = (weight[row, p], weight[row + 1, p], weight[row + 2, p], weight[row + 3, p])
                total0 += _sum_four_taps(x0, pixels, w, origin0, weight_like, Y_like)
                total1 += _sum_four_taps(x1, pixels, w, origin1, weight_like, Y_like)
                total2 += _sum_four_taps(x2, pixels, w, origin2, weight_like, Y_like)
                total3 += _sum_four_taps(x3, pixels, w, origin3, weight_like, Y_like)
            else:
                for tap in range(row, row + 4):
                    pixel = index[tap, p]
                    tap_weight = weight[tap, p]
                    if pixel < OUTSIDE_BIT:
                        tap0 = _to_compute_type(x0[pixel], weight_like, Y_like)
                        tap1 = _to_compute_type(x1[pixel], weight_like, Y_like)
                        tap2 = _to_compute_type(x2[pixel], weight_like, Y_like)
                        tap3 = _to_compute_type(x3[pixel], weight_like, Y_like)
                        total0 += tap_weight * (tap0 - origin0)
                        total1 += tap_weight * (tap1 - origin1)
                        total2 += tap_weight * (tap2 - origin2)
                        total3 += tap_weight * (tap3 - origin3)
                    else:
                        total0 -= tap_weight * origin0
                        total1 -= tap_weight * origin1
                        total2 -= tap_weight * origin2
                        total3 -= tap_weight * origin3
            row += 4
            if row >= rows:
                break
        y0[p] = _to_output(total0, origin0, value0, first, Y_like)
        y1[p] = _to_output(total1, origin1, value1, first, Y_like)
        y2[p] = _to_output(total2, origin2, value2, first, Y_like)
        y3[p] = _to_output(total3, origin3, value3, first, Y_like)


@register_jitable
def _sum_four_taps(
    x: ArrayRef,
    pixels: Any,
    weights: Any,
    origin: Any,
    weight_like: Any,
    Y_like: Any,
) -> Any:
    """Return the weighted sum of four pixels of ``x``, less ``origin``."""
    return (
        weights[0] * (_to_compute_type(x[pixels[0]], weight_like, Y_like) - origin)
        + weights[1] * (_to_compute_type(x[pixels[1]], weight_like, Y_like) - origin)
        + weights[2] * (_to_compute_type(x[pixels[2]], weight_like, Y_like) - origin)
        + weights[3] * (_to_compute_type(x[pixels[3]], weight_like, Y_like) - origin)
    )


@register_jitable
def _sum_one_channel(
    x: ArrayRef, index: ArrayRef, weight: ArrayRef, y: ArrayRef, positions: int
) -> None:
    """Add up GATHERED taps of channel ``x`` (S,) into ``y`` (≥ P,)."""
    weight_like = weight.dtype.type(0)
    Y_like = y.dtype.type(0)
    for p in range(positions):
        first = index[0, p]
        value = x[first if first < OUTSIDE_BIT else np.uint32(0)]
        origin = _origin(value, first, weight_like, Y_like)
        total = _to_compute_type(x.dtype.type(0), weight_like, Y_like)
        for row in range(index.shape[0]):
            pixel = index[row, p]
            tap_weight = weight[row, p]
            if pixel < OUTSIDE_BIT:
                total += tap_weight * (_to_compute_type(x[pixel], weight_like, Y_like) - origin)
            else:
                total -= tap_weight * origin
        y[p] = _to_output(total, origin, value, first, Y_like)


# --- Sums over taps of panels ---


@register_jitable
def pack_part(X: ArrayRef, batch: int, channel: int, start: int, panel: ArrayRef) -> None:
    """Copy some pixels of X to a panel, where the channels are last.

    Args:
        X: (N, C, S).
        batch: the index in N.
        channel: the first of the panel's W channels. Channels beyond X's last one repeat it.
        start: the first pixel. At most PIXELS_PER_PART pixels are copied.
        panel: the panel (S + 1, W). Its last row is a pixel of 0, which is read for taps outside.
    """
    pixels = X.shape[2]
    if start + PIXELS_PER_PART > pixels:
        panel[pixels] = 0
    end = min(start + PIXELS_PER_PART, pixels)
    for begin in range(start, end, 2 * STRIP):
        stop = min(begin + 2 * STRIP, end)
        _transpose_pixels(X[batch], channel, begin, stop, panel)


@by_types
def _transpose_pixels(X: Any, channel: int, begin: int, end: int, panel: Any) -> Any:
    """Copy the pixels from ``begin`` up to, not including, ``end`` of X (C, S) to a panel.

    The channels of the panel begin with ``channel``.
    """
    has_vectors = CPU_CONVERTS_FLOAT16 or X.dtype != FLOAT16_BITS or X.dtype == panel.dtype
    return _transpose_in_vectors if has_vectors else _transpose_in_fours


@register_jitable
def _transpose_in_vectors(X: ArrayRef, channel: int, begin: int, end: int, panel: ArrayRef) -> None:
    """Copy as :func:`_transpose_pixels`, whole blocks in vectors."""
    width = panel.shape[1]
    pixel = begin
    while pixel + width <= end:
        simd.transpose_channels(X, channel, pixel, panel, pixel, 0, width)
        pixel += width
    if pixel < end:
        _transpose_in_fours(X, channel, pixel, end, panel)


@register_jitable
def _transpose_in_fours(X: ArrayRef, channel: int, begin: int, end: int, panel: ArrayRef) -> None:
    """Copy as :func:`_transpose_pixels`, four channels at a time."""
    last_channel = len(X) - 1
    zero = panel.dtype.type(0)
    for column in range(0, panel.shape[1], 4):
        first = channel + column
        x0 = X[min(first, last_channel)]
        x1 = X[min(first + 1, last_channel)]
        x2 = X[min(first + 2, last_channel)]
        x3 = X[min(first + 3, last_channel)]
        for pixel in range(begin, end):
            value0 = _to_compute_type(x0[pixel], zero, zero)
            value1 = _to_compute_type(x1[pixel], zero, zero)
            value2 = _to_compute_type(x2[pixel], zero, zero)
            value3 = _to_compute_type(x3[pixel], zero, zero)
            panel[pixel, column] = value0
            panel[pixel, column + 1] = value1
            panel[pixel, column + 2] = value2
            panel[pixel, column + 3] = value3


@register_jitable
def sum_packed(
    panel: ArrayRef,
    table: Any,
    strip: ArrayRef,
    Y: ArrayRef,
    start: int,
    positions: int,
) -> None:
    """Add up the weighted taps of the channels of a panel. Only floats are packed.

    Args:
        panel: the panel (S + 1, W).
        table: the :class:`.tap_table.TapTable`.
        strip: scratch memory (STRIP, W).
        Y: the result is written to Y[:W, start:] (C, ≥ start + P), where C may be less than W.
            Sums of halves are float32.
        start: see ``Y``.
        positions: P.
    """
    width = panel.shape[1]
    channels = min(width, len(Y))
    for begin in range(0, positions, STRIP):
        size = min(STRIP, positions - begin)
        end = begin + size
        whole = size - size % width
        if width == NARROW_PANEL:
            simd_sums.sum_rows_narrow(panel, table, begin, end, strip, -begin)
        else:
            simd_sums.sum_rows_wide(panel, table, begin, end, strip, -begin)
        for p in range(0, whole, width):
            simd.transpose_to_channels(strip, p, 0, Y, 0, start + begin + p, width)
        for channel in range(channels):
            y = Y[channel, start + begin :]
            for p in range(whole, size):
                y[p] = strip[p, channel]


# Conversions that depend on the types of X and Y: see :func:`.pointers.by_types`. ``weight_like``
# and ``Y_like`` are zeros of the types of the weights and of Y. They are not arrays, because Numba
# counts references to an array that passes a branch, which costs more than all the rest.


@by_types
def _to_compute_type(pixel_type: Any, weight_type: Any, Y_type: Any) -> Any:
    """Convert a pixel to the compute type. Halves, whose sums are float32, are widened."""
    if pixel_type in HALF_BITS and isinstance(Y_type, types.Float):
        return lambda pixel, weight_like, Y_like: widened(pixel)
    if isinstance(pixel_type, types.Complex):
        return lambda pixel, weight_like, Y_like: pixel
    return lambda pixel, weight_like, Y_like: weight_type(pixel)


@by_types
def _origin(pixel_type: Any, index_type: Any, weight_type: Any, Y_type: Any) -> Any:
    """Return the value that is subtracted from all taps: of integers, the first tap; otherwise 0.

    Thus the sum of equal integers is exact. The arguments are the pixel of the first tap and its
    index, ``weight_like`` and ``Y_like``.
    """
    if not isinstance(Y_type, types.Integer):
        return lambda pixel, index, weight_like, Y_like: weight_like

    def first_tap(pixel: Any, index: Any, weight_like: Any, Y_like: Any) -> Any:
        if index < OUTSIDE_BIT:
            return _to_compute_type(pixel, weight_like, Y_like)
        return weight_like

    return first_tap


@by_types
def _to_output(total_type: Any, origin: Any, pixel: Any, index: Any, Y_type: Any) -> Any:
    """Convert a sum to an element of Y. Integers are truncated toward zero and saturated.

    The arguments are the sum, the :func:`_origin`, the pixel of the first tap and its index, and
    ``Y_like``.
    """
    if isinstance(Y_type, types.Boolean):
        return lambda total, origin, pixel, index, Y_like: total != 0
    if not isinstance(Y_type, types.Integer):
        return lambda total, origin, pixel, index, Y_like: total
    lowest = Y_type.minval
    highest = Y_type.maxval
    lowest_total = float(lowest)
    highest_total = float(highest)

    def to_integer(total: Any, origin: Any, pixel: Any, index: Any, Y_like: Any) -> Any:
        if total == 0 and index < OUTSIDE_BIT:
            return pixel  # beyond 2**53 the origin itself was rounded
        value = total + origin
        if value >= highest_total:
            return Y_type(highest)
        if value <= lowest_total:
            return Y_type(lowest)
        return Y_type(value)

    return to_integer
