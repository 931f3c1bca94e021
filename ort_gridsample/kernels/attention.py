"""Deformable attention in compiled code: weighted sums over samples of several images (levels).

A worker processes the queries tile by tile. For a tile it computes a table with one column per
sample, that is, per point of each head of each query, and one row per tap of a sample: the address
of the tap's channels, and its weight. Then it adds up the taps of each head, and prefetches those
of the next head at the same time. Values are read where they are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from .. import spec
from . import helper_threads, tap_table
from .compilation import KernelSpec, compile_time
from .halves import HALVES, round_to, stored, widened
from .pointers import address, arena_alloc, array, fetch_add, free, struct
from .scratch import ScratchArray, scratch_layout
from .simd import OUTSIDE_BIT, sum_addressed
from .structs import ATTENTION
from .workers import END, MAX_SCRATCH_BYTES, NEW, READING

#: The maximum number of columns of a table, unless one query has more: the table stays in the L1
#: cache.
MAX_COLUMNS = 256
#: The maximum number of axes of a level. A table has 2 ** axes rows.
MAX_LEVEL_AXES = 8
#: The number of taps of a row of channels from which on another worker is useful, and the number
#: after which a worker returns if it has to return from time to time.
MIN_TAPS_PER_WORKER = 1 << 12
TAPS_PER_PAUSE = 1 << 20

#: The scratch memory of a worker. Values and coordinates have at most 8 bytes.
SCRATCH_ARRAYS = (
    # The channels of a tap outside.
    ScratchArray("zeros", 8, ("channels",)),
    # Sums that wait to be rounded to halves.
    ScratchArray("sums", 8, ("channels",)),
    # For each sample: the byte offset of its head in its level's first pixel, the level's lengths,
    # the coordinates or the distances from the first tap, the pixel of the first tap by axis, and
    # the pixel of a tap in the level.
    ScratchArray("level_offset", np.dtype(np.int64), ("samples",)),
    ScratchArray("lengths", np.dtype(np.int32), ("r", "samples")),
    ScratchArray("coordinates", 8, ("r", "samples")),
    ScratchArray("base", np.dtype(np.int32), ("r", "samples")),
    ScratchArray("index", np.dtype(np.uint32), ("samples",)),
    # The table.
    ScratchArray("addresses", np.dtype(np.int64), ("taps", "width")),
    ScratchArray("weights", 8, ("taps", "width")),
)
_scratch_size, _scratch_address, _scratch_array = scratch_layout(ATTENTION, SCRATCH_ARRAYS)


def attention_functions(value_type: str, locations_type: str) -> list[KernelSpec]:
    """Return the functions for these types: the one that proceeds with a launch, and its worker."""
    return [(proceed_attention,), (attention_for, value_type, locations_type)]


@compile_time(1.1)
def proceed_attention(launch_address: int) -> int:
    """Begin or end a launch, as :func:`.workers.proceed`, given a :data:`.structs.ATTENTION`."""
    launch = struct(launch_address, ATTENTION)
    if launch.phase != NEW:
        launch.phase = END
        free(launch.memory)
        launch.memory = 0
        return 0
    _divide(launch)
    launch.first_worker, launch.memory = arena_alloc(launch.arena, launch.nbytes)
    if launch.first_worker == 0:
        return -1
    launch.phase = READING
    helper_threads.begin_task(launch.task, launch.worker, address(launch), launch.workers - 1)
    return launch.workers


@register_jitable
def _divide(launch: Any) -> None:
    """Divide the launch into items, tiles of whole queries, and choose the number of workers."""
    launch.taps = 1 << launch.r
    samples_per_query = launch.heads * launch.points
    launch.tile = min(max(1, MAX_COLUMNS // samples_per_query), launch.queries)
    launch.tiles = (launch.queries + launch.tile - 1) // launch.tile
    launch.items = launch.n * launch.tiles
    launch.next = 0
    launch.samples = launch.tile * samples_per_query
    launch.width = launch.samples + launch.points  # the head after the last one is prefetched, too
    launch.pause = 1 << 62
    if launch.pauses:
        launch.pause = max(1, TAPS_PER_PAUSE // (launch.samples * launch.taps))
    launch.worker_size = _scratch_size(launch)
    taps = launch.n * launch.queries * samples_per_query * launch.taps
    useful_workers = 1 + taps // MIN_TAPS_PER_WORKER
    fitting_workers = MAX_SCRATCH_BYTES // launch.worker_size
    launch.workers = max(1, min(launch.workers, launch.items, useful_workers, fitting_workers))
    launch.nbytes = launch.workers * launch.worker_size


@compile_time(4.1)
def attention_for(value_type: str, locations_type: str) -> Callable[..., int]:
    """Return the worker for values and weights of one type and locations of another.

    Its arguments and its result are those of :func:`.workers.process_items`.
    """
    bits = stored(value_type)
    location_bits = stored(locations_type)
    real = np.dtype(spec.TYPES[value_type].compute)
    coordinate = np.dtype(spec.TYPES[locations_type].compute)
    are_halves = value_type in HALVES
    size = bits.itemsize

    def attention(launch_address: int, number: int) -> int:
        launch = struct(launch_address, ATTENTION)
        scratch_address = launch.first_worker + number * launch.worker_size
        zeros = _scratch_array(launch, scratch_address, "zeros", bits)
        sums = _scratch_array(launch, scratch_address, "sums", real)
        level_offset = _scratch_array(launch, scratch_address, "level_offset", np.int64)
        lengths = _scratch_array(launch, scratch_address, "lengths", np.int32)
        coordinates = _scratch_array(launch, scratch_address, "coordinates", coordinate)
        base = _scratch_array(launch, scratch_address, "base", np.int32)
        index = _scratch_array(launch, scratch_address, "index", np.uint32)
        addresses = _scratch_array(launch, scratch_address, "addresses", np.int64)
        weights = _scratch_array(launch, scratch_address, "weights", real)

        r = launch.r
        queries = launch.queries
        heads = launch.heads
        points = launch.points
        channels = launch.channels
        per_query = heads * points  # samples
        pixel_size = heads * channels * size
        locations = array(launch.locations, (launch.n * queries * per_query, r), location_bits)
        weights_shape = (launch.n, launch.weighted * per_query)
        attention_weights = array(launch.weights, weights_shape, bits)
        Y = array(launch.Y, (launch.n, queries, heads * channels), bits)

        outside = np.int64(zeros.ctypes.data)
        for c in range(channels):
            zeros[c] = 0
        addresses[:, launch.samples :] = outside
        _find_levels(launch, level_offset, lengths, channels * size)

        for _ in range(launch.pause):
            item = fetch_add(launch, "next", 1)
            if item >= launch.items:
                return 0
            batch = item // launch.tiles
            begin = item % launch.tiles * launch.tile
            count = min(launch.tile, queries - begin)
            samples = count * per_query
            first = (batch * queries + begin) * per_query
            tap_table.split_axes(locations[first : first + samples], coordinates)
            for axis in range(r):
                _split_coordinates(
                    coordinates[axis, :samples],
                    lengths[axis],
                    launch.align_corners != 0,
                    base[axis],
                )
            first_weight = 0 if launch.weighted == 1 else begin * per_query
            sample_weights = attention_weights[batch, first_weight:]
            image = launch.value + batch * launch.pixels * pixel_size

            for tap in range(launch.taps):
                tap_weights = weights[tap]
                tap_addresses = addresses[tap]
                if launch.weighted == queries:
                    for p in range(samples):
                        tap_weights[p] = widened(sample_weights[p])
                else:
                    for p in range(samples):
                        tap_weights[p] = widened(sample_weights[p % per_query])
                for axis in range(r):
                    _combine_axis(
                        coordinates[axis],
                        base[axis],
                        lengths[axis],
                        tap >> (r - 1 - axis) & 1,
                        tap_weights,
                        index,
                        axis == 0,
                        samples,
                    )
                for p in range(samples):
                    inside = image + level_offset[p] + np.int64(index[p]) * pixel_size
                    tap_addresses[p] = inside if index[p] < OUTSIDE_BIT else outside

            for query in range(count):
                for head in range(heads):
                    p = query * per_query + head * points
                    y = Y[batch, begin + query, head * channels :]
                    if are_halves:
                        sum_addressed(zeros, addresses, weights, p, points, sums)
                        round_to(sums, y)
                    else:
                        sum_addressed(zeros, addresses, weights, p, points, y[:channels])
        return 1

    return attention


@register_jitable
def _find_levels(launch: Any, level_offset: Any, lengths: Any, head_size: int) -> None:
    """Fill ``level_offset`` and ``lengths`` of :data:`SCRATCH_ARRAYS`.

    ``head_size`` is the size of a head's channels in bytes.
    """
    r = launch.r
    points = launch.points
    levels = array(launch.levels, (launch.n_levels, 1 + r), np.int64)
    level = -1
    points_left = 0  # in the level
    pixel = 0  # the level's first
    area = 0
    for sample in range(len(level_offset)):
        point = sample % points
        head = sample // points % launch.heads
        if point == 0:
            level = -1
            points_left = 0
            pixel = 0
            area = 0
        while points_left == 0:
            level += 1
            pixel += area
            points_left = levels[level, 0]
            area = 1
            for axis in range(r):
                area *= levels[level, 1 + axis]
        points_left -= 1
        level_offset[sample] = (head + pixel * launch.heads) * head_size
        for axis in range(r):
            lengths[axis, sample] = levels[level, 1 + axis]


@register_jitable
def _split_coordinates(locations: Any, lengths: Any, align_corners: bool, base: Any) -> None:
    """Split locations (0 to 1) on an axis into first taps and distances from them, in pixels.

    Args:
        locations: the locations (P,), which are overwritten with the distances.
        lengths: the lengths of the axis (≥ P,).
        align_corners: the attribute.
        base: where the first taps are written (≥ P,).
    """
    real = locations.dtype.type
    for p in range(len(locations)):
        normalized = locations[p] * real(2) - real(1)
        length = real(lengths[p])
        normalized = real(-1) if np.isnan(normalized) else normalized
        # Infinity times a span of 0 is NaN, and not a coordinate.
        pixel = (
            normalized
            if np.isinf(normalized)
            else tap_table.unnormalize(normalized, length, align_corners)
        )
        locations[p] = min(max(pixel, real(-2)), length + real(1))
    for p in range(len(locations)):
        base[p] = np.int32(np.floor(locations[p]))
    for p in range(len(locations)):
        locations[p] -= np.floor(locations[p])


@register_jitable
def _combine_axis(
    distances: Any,
    base: Any,
    lengths: Any,
    tap: int,
    weight: Any,
    index: Any,
    is_first: bool,
    samples: int,
) -> None:
    """Multiply weights and extend pixel indices by the next inner axis.

    Args:
        distances: the distances from the first taps on the axis.
        base: the first taps on the axis.
        lengths: the lengths of the axis.
        tap: 0 for the first tap, 1 for the second.
        weight: the weights so far, which are updated.
        index: the pixel indices so far, which are updated.
        is_first: whether this is the outermost axis, so that ``index`` is not initialized.
        samples: the number of samples. No array has fewer elements.
    """
    real = weight.dtype.type
    for p in range(samples):
        weight[p] *= real(1) - real(distances[p]) if tap == 0 else real(distances[p])
    for p in range(samples):
        i = np.uint32(base[p] + np.int32(tap))
        length = np.uint32(lengths[p])
        outer = np.uint32(0) if is_first else index[p]
        is_outside = (i >= length) | (outer >= OUTSIDE_BIT)
        index[p] = tap_table.OUTSIDE if is_outside else np.uint32(outer * length + i)
