"""Deformable attention in compiled code: weighted sums over samples of several images at several points.

A worker takes the queries tile by tile. Of a tile it makes a table, with a column for each point of each head of each
query and a row for each tap of these points: the address of the tap's channels, and its weight. Then it adds up a
head's taps, and calls those of the next head into the cache meanwhile. Values are read where they lie.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from .. import spec
from . import helper_threads, loops
from .compilation import KernelSpec, compile_time
from .halves import HALVES, round_to, stored, widened
from .pointers import address, aligned, array, fetch_add, free, struct, take
from .simd import OUTSIDE_BIT, sum_addressed
from .structs import ATTENTION
from .workers import NEW, READING, SCRATCH_BYTES

#: The columns of a table, unless one query has more: it stays in a CPU's first cache.
COLUMNS = 256
#: The most axes of a level: its taps are a table's rows.
MOST_AXES = 8
#: So many taps of a row of channels are worth a thread; after so many a worker comes back where it is asked to.
WORTH_A_THREAD, WORTH_A_PAUSE = 1 << 12, 1 << 20


def parts(value_type: str, locations_type: str) -> list[KernelSpec]:
    """The functions for these types: the one that goes on with a launch, and its worker."""
    return [(proceed_attention,), (attention_for, value_type, locations_type)]


@compile_time(1.1)
def proceed_attention(launch_at: int) -> int:
    """As :func:`.workers.proceed`, for an :data:`.structs.ATTENTION`."""
    launch = struct(launch_at, ATTENTION)
    if launch.phase != NEW:
        free(launch.memory)
        launch.memory = 0
        return 0
    _cut(launch)
    launch.first_worker, launch.memory = take(launch.own, launch.nbytes)
    if launch.first_worker == 0:
        return -1
    launch.phase = READING
    helper_threads.begin_task(launch.task, launch.worker, address(launch), launch.workers - 1)
    return launch.workers


@register_jitable
def _cut(launch: Any) -> None:
    """Cut the launch into items, tiles of whole queries, and a worker's scratch memory into arrays."""
    scratch, r, taps = launch.scratch, launch.r, 1 << launch.r
    each = launch.heads * launch.points
    launch.tile = min(max(1, COLUMNS // each), launch.queries)
    launch.tiles = (launch.queries + launch.tile - 1) // launch.tile
    launch.items, launch.next = launch.n * launch.tiles, 0
    columns = launch.tile * each
    launch.width = columns + launch.points  # as the head behind the last is looked at
    launch.pause = max(1, WORTH_A_PAUSE // (columns * taps)) if launch.pauses else 1 << 62
    scratch.zeros, end = 0, aligned(launch.channels * 8)
    scratch.sums, end = end, aligned(end + launch.channels * 8)
    scratch.first, end = end, aligned(end + columns * 8)
    scratch.lengths, end = end, aligned(end + r * columns * 4)
    scratch.coordinates, end = end, aligned(end + r * columns * 8)
    scratch.base, end = end, aligned(end + r * columns * 4)
    scratch.index, end = end, aligned(end + columns * 4)
    scratch.addresses, end = end, aligned(end + taps * launch.width * 8)
    scratch.weights, end = end, aligned(end + taps * launch.width * 8)
    launch.worker_size = end
    worth = 1 + launch.n * launch.queries * each * taps // WORTH_A_THREAD
    launch.workers = max(1, min(launch.workers, launch.items, worth, SCRATCH_BYTES // end))
    launch.nbytes = launch.workers * end


@compile_time(4.1)
def attention_for(value_type: str, locations_type: str) -> Callable[..., int]:
    """The worker for values and weights of one type and locations of another, as :func:`.workers.worker` is."""
    bits, location_bits = stored(value_type), stored(locations_type)
    real, coordinate = np.dtype(spec.TYPES[value_type].compute), np.dtype(spec.TYPES[locations_type].compute)
    are_halves, size = value_type in HALVES, bits.itemsize

    def attention(launch_at: int, number: int) -> int:
        launch = struct(launch_at, ATTENTION)
        n, queries, heads, points, r = launch.n, launch.queries, launch.heads, launch.points, launch.r
        channels, tile, scratch, taps, each = launch.channels, launch.tile, launch.scratch, 1 << r, heads * points
        columns, row_size = tile * each, heads * channels * size
        at = launch.first_worker + number * launch.worker_size
        zeros, sums = array(at + scratch.zeros, (channels,), bits), array(at + scratch.sums, (channels,), real)
        first = array(at + scratch.first, (columns,), np.int64)
        lengths = array(at + scratch.lengths, (r, columns), np.int32)
        coordinates = array(at + scratch.coordinates, (r, columns), coordinate)
        base = array(at + scratch.base, (r, columns), np.int32)
        index = array(at + scratch.index, (columns,), np.uint32)
        addresses = array(at + scratch.addresses, (taps, launch.width), np.int64)
        weights = array(at + scratch.weights, (taps, launch.width), real)
        locations = array(launch.locations, (n * queries * each, r), location_bits)
        attention_weights = array(launch.weights, (n, launch.weighted * each), bits)
        Y = array(launch.Y, (n, queries, heads * channels), bits)
        outside = np.int64(zeros.ctypes.data)
        for c in range(channels):
            zeros[c] = 0
        addresses[:, columns:] = outside
        _begin_columns(launch, first, lengths, channels * size)
        for _ in range(launch.pause):
            item = fetch_add(launch, "next", 1)
            if item >= launch.items:
                return 0
            batch, begin = item // launch.tiles, item % launch.tiles * tile
            count = min(tile, queries - begin)
            used, row = count * each, (batch * queries + begin) * each
            loops.split(locations[row : row + used], coordinates)
            for axis in range(r):
                _axis(coordinates[axis, :used], lengths[axis], launch.align_corners != 0, base[axis])
            by = attention_weights[batch, 0 if launch.weighted == 1 else begin * each :]
            image = launch.value + batch * launch.pixels * row_size
            for tap in range(taps):
                weight, address_ = weights[tap], addresses[tap]
                if launch.weighted == queries:
                    for p in range(used):
                        weight[p] = widened(by[p])
                else:
                    for p in range(used):
                        weight[p] = widened(by[p % each])
                for axis in range(r):
                    t, which = coordinates[axis], tap >> (r - 1 - axis) & 1
                    _combine(t, base[axis], lengths[axis], which, weight, index, axis == 0, used)
                for p in range(used):
                    there = image + first[p] + np.int64(index[p]) * row_size
                    address_[p] = there if index[p] < OUTSIDE_BIT else outside
            for query in range(count):
                for head in range(heads):
                    p, y = query * each + head * points, Y[batch, begin + query, head * channels :]
                    if are_halves:
                        sum_addressed(zeros, addresses, weights, p, points, sums)
                        round_to(sums, y)
                    else:
                        sum_addressed(zeros, addresses, weights, p, points, y[:channels])
        return 1

    return attention


@register_jitable
def _begin_columns(launch: Any, first: Any, lengths: Any, head_size: int) -> None:
    """Write, for each column, where its level begins for its head, in bytes, and the level's lengths."""
    r, points = launch.r, launch.points
    levels = array(launch.levels, (launch.n_levels, 1 + r), np.int64)
    level, left, pixel, area = -1, 0, 0, 0
    for column in range(len(first)):
        point, head = column % points, column // points % launch.heads
        if point == 0:
            level, left, pixel, area = -1, 0, 0, 0
        while left == 0:
            level, pixel = level + 1, pixel + area
            left, area = levels[level, 0], 1
            for axis in range(r):
                area *= levels[level, 1 + axis]
        left -= 1
        first[column] = (head + pixel * launch.heads) * head_size
        for axis in range(r):
            lengths[axis, column] = levels[level, 1 + axis]


@register_jitable
def _axis(x: Any, lengths: Any, align_corners: bool, base: Any) -> None:
    """Write the pixels before the locations ``x`` (P,) into ``base`` (≥ P,), and the distances to them into ``x``."""
    kind = x.dtype.type
    for p in range(len(x)):
        g, length = x[p] * kind(2) - kind(1), kind(lengths[p])
        g = kind(-1) if np.isnan(g) else g
        # Infinity times a span of 0 is no coordinate.
        at = g if np.isinf(g) else loops.unnormalize(g, length, align_corners)
        x[p] = min(max(at, kind(-2)), length + kind(1))
    for p in range(len(x)):
        base[p] = np.int32(np.floor(x[p]))
    for p in range(len(x)):
        x[p] -= np.floor(x[p])


@register_jitable
def _combine(
    t: Any, base: Any, lengths: Any, tap: int, weight: Any, index: Any, is_first: bool, positions: int
) -> None:
    """Take an inner axis' first or second tap, at distances ``t``, into the ``weight`` and ``index`` of positions."""
    real = weight.dtype.type
    for p in range(positions):
        weight[p] *= real(1) - real(t[p]) if tap == 0 else real(t[p])
    for p in range(positions):
        i, length, outer = np.uint32(base[p] + np.int32(tap)), np.uint32(lengths[p]), index[p]
        outer = np.uint32(0) if is_first else outer
        is_outside = (i >= length) | (outer >= OUTSIDE_BIT)
        index[p] = loops.OUTSIDE if is_outside else np.uint32(outer * length + i)
