"""The NumPy core: any rank, mode and padding, in blocks of output positions that fit the cache.

A table of taps lists the T pixels of flat X that each of P output positions reads, and their
weights. Channels are gathered one by one through this table. If there are many channels and the
pixels are read often, all channels are gathered at once, from a channels-last copy of X.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal

import numpy as np

from .. import spec
from ..system.threads import for_each
from . import sums
from .arrays import Array, Floats, Indices, Mask
from .coordinates import PADDING, Axis, unnormalize
from .plan import Plan, type_name
from .taps import MODES, axis_taps

#: The name of this core, as :func:`ort_gridsample.set_core` takes it.
NAME: Final = "numpy"

#: The limits of a block: large enough to make numpy's cost per call small, and small enough to stay
#: in the cache.
BLOCK_POSITIONS = 1 << 14
BLOCK_TAPS = 1 << 17
CHUNK_BYTES = 1 << 20
#: numpy's mode for indices outside X. There are none, and this mode is faster than ``"raise"``.
INDEX_MODE: Literal["raise", "clip"] = "clip"
#: Item size of a pixel -> an integer type of this size, to clear the bits of pixels outside.
_BITS = {np.dtype(kind).itemsize: kind for kind in (np.int8, np.int16, np.int32, np.int64)}
#: The taps that are worth another thread: threads wait for the GIL between numpy's calls.
TAPS_PER_THREAD = 1 << 21
#: The minimum number of channels that is worth a channels-last copy of an image.
MIN_CHANNELS_LAST = 16
#: The maximum size of a channels-last copy of an image.
MAX_CHANNELS_LAST_BYTES = 1 << 28
#: The channels that are transposed at once: this takes a quarter of the time of transposing all.
TRANSPOSED_CHANNELS = 8


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P).

    :mod:`ort_gridsample.functions.cores` describes the arguments.
    """
    n, channels, positions = Y.shape
    lengths = X.shape[2:]
    flat_X = X.reshape(n, channels, -1)
    taps = MODES[plan.mode].taps ** len(lengths)
    threads = max(1, min(num_threads, _ceil_div(Y.size * taps, TAPS_PER_THREAD)))
    if _is_channels_last_faster(channels, flat_X.shape[2], positions, taps, plan):
        _sample_images(flat_X, grid, Y, lengths, plan, threads)
    else:
        _sample_blocks(flat_X, grid, Y, lengths, plan, threads)


def deformable_attention(
    value: Array,
    levels: Indices,
    locations: Floats,
    weights: Floats,
    Y: Array,
    plan: Plan,
    num_threads: int,
) -> None:
    """Add up weighted samples of ``value`` (B, S, H, D) into ``Y`` (B, Q, H, D).

    :mod:`ort_gridsample.functions.cores` describes the arguments.
    """
    batches, queries, heads, channels = Y.shape
    weights = np.broadcast_to(weights, (batches, queries, *weights.shape[2:]))
    taps = 1 << locations.shape[-1]
    coordinate_type = spec.TYPES[type_name(locations.dtype)].compute
    taps_per_query = taps * max(levels[:, 0].tolist())
    query_bytes = taps_per_query * max(1, channels) * plan.compute.itemsize
    step = max(1, CHUNK_BYTES // query_bytes)
    level_slices = _split_levels(levels)

    def add_up(block: tuple[int, int, slice]) -> None:
        batch, head, block_queries = block
        grid = locations[batch, block_queries, head].astype(coordinate_type)
        block_weights = weights[batch, block_queries, head].astype(plan.compute)
        total = np.zeros((len(grid), channels), plan.compute)
        with np.errstate(all="ignore"):
            grid = grid * 2 - 1  # from [0, 1] to [-1, 1]
            for level in level_slices:
                if level.n_points == 0:
                    continue
                image = value[batch, level.pixels, head]
                level_grid = grid[:, level.points]
                level_weights = block_weights[:, level.points]
                total += _attend_level(image, level_grid, level_weights, level.lengths, plan)
        Y[batch, block_queries, head] = total

    starts = product(range(batches), range(heads), range(0, queries, step))
    blocks = [(batch, head, slice(start, start + step)) for batch, head, start in starts]
    threads = _ceil_div(weights.size * taps * channels, TAPS_PER_THREAD)
    for_each(add_up, blocks, min(num_threads, threads, len(blocks)))


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Do nothing: this core has nothing to compile."""


@dataclass(frozen=True)
class _Level:
    """One level of deformable attention: an image in the pixels of all levels."""

    lengths: tuple[int, ...]  #: of its axes, outermost first
    n_points: int
    pixels: slice  #: its pixels in ``value``
    points: slice  #: its points in ``locations`` and ``weights``


def _split_levels(levels: Indices) -> list[_Level]:
    """Divide all pixels and points among the levels.

    ``levels`` is (L, 1 + r): the number of points of each level, and its lengths.
    """
    split = []
    first_pixel = 0
    first_point = 0
    for n_points, *lengths in levels.tolist():
        pixels = slice(first_pixel, first_pixel + math.prod(lengths))
        points = slice(first_point, first_point + n_points)
        split.append(_Level(tuple(lengths), n_points, pixels, points))
        first_pixel = pixels.stop
        first_point = points.stop
    return split


def _attend_level(
    image: Array,
    grid: Floats,
    weights: Floats,
    lengths: tuple[int, ...],
    plan: Plan,
) -> Array:
    """Add up the weighted samples of one level.

    Args:
        image: (S, D), the pixels of the level.
        grid: (Q, P, r), normalized coordinates in [-1, 1].
        weights: (Q, P), the weights of the samples.
        lengths: the r lengths of the image.
        plan: the plan of the call.

    Returns:
        The sums, (Q, D).
    """
    if len(image) == 0:
        # All samples are 0, but the product with an infinite or NaN weight is NaN. The products are
        # added, because the sum of finite weights may overflow.
        return np.zeros((1, image.shape[1]), plan.compute) + (weights * 0).sum(1)[:, None]
    table = tap_table(grid.reshape(-1, len(lengths)), lengths, plan)
    assert table.weight is not None  # it is None only for nearest
    pixels = image.take(table.index, axis=0, mode=INDEX_MODE).astype(plan.compute, copy=False)
    if table.inside is not None:
        pixels[~table.inside] = 0
    tap_weights = table.weight.reshape(-1, *weights.shape) * weights
    return np.einsum("tqpd,tqp->qd", pixels.reshape(*tap_weights.shape, -1), tap_weights)


def _is_channels_last_faster(
    channels: int,
    pixels: int,
    positions: int,
    taps: int,
    plan: Plan,
) -> bool:
    """Whether a channels-last copy of X saves more time than it and transposing Y take."""
    if plan.sum is not sums.sum_floats or channels < MIN_CHANNELS_LAST:
        return False
    if channels * pixels * plan.compute.itemsize > MAX_CHANNELS_LAST_BYTES:
        return False
    return taps * positions >= pixels + positions


def _sample_blocks(
    X: Array,
    grid: Floats,
    Y: Array,
    lengths: tuple[int, ...],
    plan: Plan,
    threads: int,
) -> None:
    """Sample ``X`` (N, C, S) channel by channel, in blocks of batches and positions."""
    n, _, positions = Y.shape
    taps = MODES[plan.mode].taps ** len(lengths)
    share = _ceil_div(n * positions, 2 * threads)
    step = max(64, min(BLOCK_POSITIONS, BLOCK_TAPS // taps, share))
    batch_step = max(1, step // max(positions, 1))  # small batches share a table
    blocks = list(product(_slices(n, batch_step), _slices(positions, step)))

    def sample(block: tuple[slice, slice]) -> None:
        batches, block_positions = block
        # Overflow and infinity in coordinates are defined: see ``coordinates``.
        with np.errstate(all="ignore"):
            block_grid = grid[batches, block_positions].reshape(-1, len(lengths))
            table = tap_table(block_grid, lengths, plan)
            outputs = Y[batches, :, block_positions]
            count = outputs.shape[2]
            for i, (image, output) in enumerate(zip(X[batches], outputs, strict=True)):
                image_table = table.part(slice(i * count, (i + 1) * count))
                _sample_block(image, image_table, output, plan)

    for_each(sample, blocks, min(threads, len(blocks)))


def _sample_block(X: Array, table: TapTable, Y: Array, plan: Plan) -> None:
    """Fill ``Y`` (C, P) from one image ``X`` (C, S)."""
    if plan.sum is None or table.weight is None:
        for x, y in zip(X, Y, strict=True):
            x.take(table.index[0], out=y, mode=INDEX_MODE)
        _zero_outside(Y[:, None], table, plan)
        return
    chunk_channels = max(1, CHUNK_BYTES // (table.index.size * plan.compute.itemsize))
    buffer = np.empty((min(chunk_channels, len(X)), *table.index.shape), X.dtype)
    for start in range(0, len(X), chunk_channels):
        chunk = slice(start, start + chunk_channels)
        values = buffer[: len(X) - start]
        X[chunk].take(table.index, axis=1, out=values, mode=INDEX_MODE)
        _zero_outside(values, table, plan)
        plan.sum(values, table.weight, Y[chunk])


def _sample_images(
    X: Array,
    grid: Floats,
    Y: Array,
    lengths: tuple[int, ...],
    plan: Plan,
    threads: int,
) -> None:
    """Sample ``X`` (N, C, S) with channels-last copies of its images.

    If there are enough images, each thread samples whole images. Otherwise all threads share one.
    """
    threads_per_image = 1 if len(X) >= threads else threads

    def sample(arrays: tuple[Array, Floats, Array]) -> None:
        _sample_channels_last(*arrays, lengths, plan, threads_per_image)

    for_each(sample, zip(X, grid, Y, strict=True), threads // threads_per_image)


def _sample_channels_last(
    X: Array,
    grid: Floats,
    Y: Array,
    lengths: tuple[int, ...],
    plan: Plan,
    threads: int,
) -> None:
    """Fill ``Y`` (C, P) from one image ``X`` (C, S) of many channels, at ``grid`` (P, r)."""
    channels, pixels = X.shape
    positions = Y.shape[1]
    rows = np.empty((pixels + 1, channels), plan.compute)
    rows[pixels] = 0  # the row that taps outside X read

    def transpose(chunk: slice) -> None:
        rows[:pixels, chunk] = X[chunk].T

    def sample(block: slice) -> None:
        with np.errstate(all="ignore"):
            table = tap_table(grid[block], lengths, plan)
            assert table.weight is not None  # it is None only for nearest
            index = table.index
            if table.inside is not None:
                index = np.where(table.inside, index, pixels)
            output = Y[:, block]
            step = max(1, CHUNK_BYTES // (len(index) * rows[0].nbytes))
            for start in range(0, output.shape[1], step):
                chunk = slice(start, start + step)
                values = rows.take(index[:, chunk], axis=0, mode=INDEX_MODE)
                output[:, chunk] = np.einsum("tpc,tp->pc", values, table.weight[:, chunk]).T

    share = positions if threads == 1 else _ceil_div(positions, 2 * threads)
    step = max(64, min(BLOCK_POSITIONS, share))
    for_each(transpose, _slices(channels, TRANSPOSED_CHANNELS), threads)
    for_each(sample, _slices(positions, step), threads)


def _zero_outside(values: Array, table: TapTable, plan: Plan) -> None:
    """Set the ``values`` (C, T, P) of taps outside X to zero.

    A weight of 0 would not suffice, because values may be NaN.
    """
    if table.inside is None:
        return
    if plan.zero != 0 or values.itemsize not in _BITS:
        np.copyto(values, values.dtype.type(plan.zero), where=~table.inside)
    else:
        bits = values.view(_BITS[values.itemsize])
        np.bitwise_and(bits, -table.inside.astype(bits.dtype), out=bits)


@dataclass(frozen=True)
class TapTable:
    """The T taps of each of P output positions, on one axis or on several."""

    index: Indices  #: (T, P), the pixel that is read; inside X for any coordinate
    weight: Array | None  #: (T, P), its weight; None if all weights are 1
    #: (T, P), whether the tap lies inside X; a tap outside counts as 0. None if all lie inside.
    inside: Mask | None

    def times(self, inner: TapTable, length: int) -> TapTable:
        """Combine each of these taps with each tap of ``inner``, the next axis inward.

        ``length`` is the length of that axis.
        """
        index = _combine(np.add, self.index * length, inner.index)
        weight = None
        if inner.weight is not None:
            weight = _combine(np.multiply, self.weight, inner.weight)
        inside = None
        if self.inside is not None or inner.inside is not None:
            inside = _combine(np.logical_and, self._inside_mask(), inner._inside_mask())
        return TapTable(index, weight, inside)

    def part(self, positions: slice) -> TapTable:
        """Return the table of some of the positions."""
        return TapTable(
            self.index[:, positions],
            None if self.weight is None else self.weight[:, positions],
            None if self.inside is None else self.inside[:, positions],
        )

    def _inside_mask(self) -> Mask:
        if self.inside is None:
            return np.broadcast_to(np.True_, self.index.shape)
        return self.inside


def _combine(function: np.ufunc, outer: Any, inner: Array) -> Array:
    """Apply ``function`` to each pair of taps: from (T1, P) and (T2, P) to (T1·T2, P)."""
    return function(outer[:, None], inner).reshape(-1, inner.shape[1])


def tap_table(grid: Floats, lengths: Sequence[int], plan: Plan) -> TapTable:
    """Return the table of the positions ``grid`` (P, r) in an X with axes of these ``lengths``."""
    coordinate_type = spec.TYPES[type_name(grid.dtype)].compute
    table: TapTable | None = None
    # The grid lists the innermost axis first.
    for g, length in zip(grid.T[::-1], lengths, strict=True):
        axis_table = _axis_table(g.astype(coordinate_type)[None], length, plan)
        table = axis_table if table is None else table.times(axis_table, length)
    assert table is not None  # a grid has at least one axis
    return table


def _axis_table(g: Floats, length: int, plan: Plan) -> TapTable:
    """Return the table of ``g`` (1, P) on an axis of ``length`` pixels."""
    mode = MODES[plan.mode]
    padding = PADDING[plan.padding_mode]
    axis = Axis.of(length, plan.align_corners, may_be_single=length == 1)

    # If all taps are inside X, padding changes nothing. NaN and infinity fail this comparison.
    x = unnormalize(g, axis)
    first_tap = float(x.min()) + mode.offsets[0]
    last_tap = float(x.max()) + mode.offsets[-1]
    if first_tap >= 0 and last_tap <= length - 1:
        base = mode.base(np, x)
        index = base.astype(np.intp) + np.array(mode.offsets, np.intp)[:, None]
        if mode.weights is None:
            return TapTable(index, None, None)
        distance = (x - base).astype(plan.weights, copy=False)
        return TapTable(index, mode.weights(np, distance), None)

    position, weight = axis_taps(np, g, axis, mode, padding, plan.weights)
    index = position.astype(np.intp)
    clipped = np.clip(index, 0, length - 1)
    if padding.zero_outside:
        inside = clipped == index
        if not inside.all():
            return TapTable(clipped, weight, inside)
    return TapTable(clipped, weight, None)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _slices(stop: int, step: int) -> list[slice]:
    """Cut ``range(stop)`` into slices of ``step`` elements."""
    return [slice(start, start + step) for start in range(0, stop, step)]
