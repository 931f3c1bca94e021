"""Deformable attention in compiled code: weighted sums over samples of several images (levels).

A worker processes the queries tile by tile. For a tile it computes a table with one column per
sample, that is, per point of each head of each query, and one row per tap of a sample: the address
of the tap's channels, and its weight. Then it adds up the taps of each head, and prefetches those
of the next head at the same time. Values are read where they are.

An item is a tile. If the output has the queries on its last axis, an item is as many tiles as fill
a cache line with queries: their sums are kept in scratch memory, and transposed to the output.

About a third of the time is the table, and the rest the sums. DECISIONS.md states how far they are
from the speed of the caches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from .. import spec
from . import helper_threads, tap_table
from .axis_vectors import VECTOR_SIZE, VectorAxis, padded, taps_of, vectors_of
from .compilation import FunctionSpec, compiles_in
from .halves import stored_dtype_of, widened, write_rounded
from .lanes import Lanes, filled_lanes
from .llvm_helpers import INT32, INT64, ITEMSIZE, array_structs, load_vector, store_vector
from .pointers import address_of, arena_alloc, array_at, by_types, fetch_add, free, record_at
from .scratch import ScratchArray, scratch_layout
from .simd_sums import sum_addressed
from .structs import ATTENTION_LAUNCH, END, NEW, READING, Address, ArrayRef, RecordRef
from .tap_plans import COMPILED_MODE_RULES, COMPILED_PADDING_RULES, tap_plan
from .workers import MAX_SCRATCH_BYTES

#: The maximum number of columns of a table, unless one query has more: the table stays in the L1
#: cache.
MAX_COLUMNS = 256
#: The minimum number of queries of an item if Y has the queries on its last axis: those of a cache
#: line in float32.
TRANSPOSED_QUERIES = 16
#: From this many taps on, each of all channels of a head, another worker is useful.
MIN_TAPS_PER_WORKER = 1 << 12
#: A worker that must pause returns after this many of them.
TAPS_PER_PAUSE = 1 << 20

_MODE, _PADDING = spec.ATTENTION_SAMPLE
#: How the taps of a sample are computed: two on each axis, which count as 0 if they are outside.
_PLAN = tap_plan(COMPILED_MODE_RULES[_MODE], COMPILED_PADDING_RULES[_PADDING])
assert (_PLAN.mode.offsets, _PLAN.padding.zero_outside) == ((0, 1), True)

#: The scratch memory of a worker. Values and coordinates have at most 8 bytes.
SCRATCH_ARRAYS = (
    # The channels of a tap outside.
    ScratchArray("zeros", 8, ("channels",)),
    # Sums that wait to be rounded to halves.
    ScratchArray("sums", 8, ("channels",)),
    # The sums of an item that are transposed to Y.
    ScratchArray("rows", 8, ("plan.kept_rows", "plan.row")),
    # For each sample: the byte offset of its head in its level's first pixel, the level's lengths,
    # and the coordinates.
    ScratchArray("level_offset", np.dtype(np.int64), ("plan.table_columns",)),
    ScratchArray("lengths", np.dtype(np.int32), ("r", "plan.table_columns")),
    ScratchArray("coordinates", 8, ("r", "plan.table_columns")),
    # The pixels of the taps of a vector of samples.
    ScratchArray("index", np.dtype(np.int32), ("plan.taps", tap_table.ROW_PADDING)),
    # The table.
    ScratchArray("addresses", np.dtype(np.int64), ("plan.taps", "plan.table_columns")),
    ScratchArray("weights", 8, ("plan.taps", "plan.table_columns")),
)
_scratch_size, _, _scratch_array = scratch_layout(ATTENTION_LAUNCH, SCRATCH_ARRAYS)


class _Tile(NamedTuple):
    """The samples of a tile, and memory for sums: arrays of :data:`SCRATCH_ARRAYS`, by name."""

    sums: ArrayRef
    level_offset: ArrayRef
    lengths: ArrayRef
    coordinates: ArrayRef
    index: ArrayRef


class _Table(NamedTuple):
    """The taps of a tile's samples: arrays of :data:`SCRATCH_ARRAYS`, by name.

    They are not fields of :class:`_Tile`, because the sums read nothing else of a tile.
    """

    zeros: ArrayRef
    addresses: ArrayRef
    weights: ArrayRef


class _Operands(NamedTuple):
    """The arrays of a launch that are read and written by samples and queries."""

    #: (n · queries · heads · points, r)
    locations: ArrayRef
    #: (n, weight_queries · heads · points)
    weights: ArrayRef
    #: (n, queries · heads · channels): Y, or the queries of an item that are transposed to it
    rows: ArrayRef
    #: (n · heads · channels, queries) if Y has these axes; otherwise not used
    Y: ArrayRef


def attention_functions(value_type: str, locations_type: str) -> list[FunctionSpec]:
    """Return the functions for these types: the one that proceeds with a launch, and its worker."""
    return [(proceed_attention,), (attention_for, value_type, locations_type)]


@compiles_in(1.1)
def proceed_attention(launch_address: Address) -> int:
    """Begin or end a launch, as :func:`.workers.proceed`.

    The argument is the address of a :data:`.structs.ATTENTION_LAUNCH`.
    """
    launch = record_at(launch_address, ATTENTION_LAUNCH)
    plan = launch.plan
    progress = launch.progress
    if progress.phase != NEW:
        progress.phase = END
        free(launch.memory)
        launch.memory = 0
        return 0
    _make_plan(launch)
    launch.first_worker, launch.memory = arena_alloc(launch.arena, plan.scratch_bytes)
    if launch.first_worker == 0:
        return -1
    progress.phase = READING
    progress.items = launch.n * plan.items_per_batch
    progress.next_item = 0
    helper_threads.begin_task(
        launch.task, launch.process_items, address_of(launch), plan.workers - 1
    )
    return plan.workers


@register_jitable
def _make_plan(launch: RecordRef) -> None:
    """Divide the launch into items, of whole queries, and choose the number of workers."""
    plan = launch.plan
    plan.taps = 1 << launch.r
    samples_per_query = launch.heads * launch.points
    plan.tile_queries = min(max(1, MAX_COLUMNS // samples_per_query), launch.queries)
    plan.item_queries = plan.tile_queries
    plan.row = launch.heads * launch.channels
    plan.kept_rows = 0
    if launch.channels_first:
        plan.tile_queries = min(plan.tile_queries, TRANSPOSED_QUERIES)
        tiles = (TRANSPOSED_QUERIES + plan.tile_queries - 1) // plan.tile_queries
        plan.item_queries = tiles * plan.tile_queries
        plan.kept_rows = plan.item_queries
    plan.items_per_batch = (launch.queries + plan.item_queries - 1) // plan.item_queries
    plan.samples = plan.tile_queries * samples_per_query
    # The head after the last one is prefetched, too, and the last vector may be longer.
    plan.table_columns = plan.samples + max(launch.points, tap_table.ROW_PADDING)
    plan.items_per_call = 1 << 62
    if launch.must_pause:
        item_samples = plan.item_queries * samples_per_query
        plan.items_per_call = max(1, TAPS_PER_PAUSE // (item_samples * plan.taps))
    plan.worker_size = _scratch_size(launch)
    items = launch.n * plan.items_per_batch
    taps = launch.n * launch.queries * samples_per_query * plan.taps
    useful_workers = 1 + taps // MIN_TAPS_PER_WORKER
    fitting_workers = MAX_SCRATCH_BYTES // plan.worker_size
    plan.workers = max(1, min(launch.workers, items, useful_workers, fitting_workers))
    plan.scratch_bytes = plan.workers * plan.worker_size


@compiles_in(4.1)
def attention_for(value_type: str, locations_type: str) -> Callable[..., int]:
    """Return the worker for values and weights of one type and locations of another.

    Its arguments and its result are those of :func:`.workers.process_items`.
    """
    stored_dtype = stored_dtype_of(value_type)
    location_dtype = stored_dtype_of(locations_type)
    weight_dtype = np.dtype(spec.TYPES[value_type].compute)
    coordinate_dtype = np.dtype(spec.TYPES[locations_type].compute)

    def attention(launch_address: Address, number: int) -> int:
        launch = record_at(launch_address, ATTENTION_LAUNCH)
        memory = launch.first_worker + number * launch.plan.worker_size
        tile = _Tile(
            sums=_scratch_array(launch, memory, "sums", weight_dtype),
            level_offset=_scratch_array(launch, memory, "level_offset", np.int64),
            lengths=_scratch_array(launch, memory, "lengths", np.int32),
            coordinates=_scratch_array(launch, memory, "coordinates", coordinate_dtype),
            index=_scratch_array(launch, memory, "index", np.int32),
        )
        table = _Table(
            zeros=_scratch_array(launch, memory, "zeros", stored_dtype),
            addresses=_scratch_array(launch, memory, "addresses", np.int64),
            weights=_scratch_array(launch, memory, "weights", weight_dtype),
        )
        n = launch.n
        per_query = launch.heads * launch.points
        locations_shape = (n * launch.queries * per_query, launch.r)
        weights_shape = (n, launch.weight_queries * per_query)
        row = launch.plan.row
        rows = array_at(launch.Y, (n, launch.queries * row), stored_dtype)
        if launch.channels_first:
            kept = _scratch_array(launch, memory, "rows", stored_dtype)
            rows = array_at(np.int64(kept.ctypes.data), (1, kept.size), stored_dtype)
        operands = _Operands(
            locations=array_at(launch.locations, locations_shape, location_dtype),
            weights=array_at(launch.weights, weights_shape, stored_dtype),
            rows=rows,
            Y=array_at(launch.Y, (n * row, launch.queries), stored_dtype),
        )
        _begin_tiles(launch, tile, table)
        for _ in range(launch.plan.items_per_call):
            item = fetch_add(launch.progress, "next_item", 1)
            if item >= launch.progress.items:
                return 0
            _process_item(launch, item, tile, table, operands)
        return 1

    return attention


@register_jitable
def _begin_tiles(launch: RecordRef, tile: Any, table: Any) -> None:
    """Write the elements of a :class:`_Tile` and its :class:`_Table` that all items share."""
    for channel in range(launch.channels):
        table.zeros[channel] = 0
    table.addresses[:, launch.plan.samples :] = np.int64(table.zeros.ctypes.data)
    tile.level_offset[launch.plan.samples :] = 0
    tile.lengths[:, launch.plan.samples :] = 1
    head_size = launch.channels * table.zeros.itemsize
    _find_levels(launch, tile.level_offset, tile.lengths, head_size)


@register_jitable
def _process_item(launch: RecordRef, item: int, tile: Any, table: Any, operands: Any) -> None:
    """Compute Y for the queries of an item.

    Args:
        launch: an ATTENTION_LAUNCH.
        tile: the :class:`_Tile`, which is overwritten.
        table: its :class:`_Table`, which is overwritten.
        operands: the :class:`_Operands`.
    """
    plan = launch.plan
    batch = item // plan.items_per_batch
    first_query = item % plan.items_per_batch * plan.item_queries
    end = min(first_query + plan.item_queries, launch.queries)
    if launch.channels_first:
        rows = operands.rows[0]
    else:
        rows = operands.rows[batch, first_query * plan.row :]
    per_query = launch.heads * launch.points  # samples
    # A single call of each function, so that all of them are inlined: 18 % of the time.
    for first in range(first_query, end, plan.tile_queries):
        n_queries = min(plan.tile_queries, end - first)
        samples = n_queries * per_query
        first_sample = (batch * launch.queries + first) * per_query
        locations = operands.locations[first_sample : first_sample + samples]
        first_weight = 0 if launch.weight_queries == 1 else first * per_query
        sample_weights = operands.weights[batch, first_weight:]
        _fill_table(launch, batch, tile, table, locations, sample_weights)
        y = rows[(first - first_query) * plan.row :]
        _sum_heads(launch, table, n_queries * launch.heads, tile.sums, y)
    if launch.channels_first:
        channels = operands.Y[batch * plan.row : (batch + 1) * plan.row]
        _transpose(rows, channels[:, first_query:end])


@register_jitable
def _transpose(rows: ArrayRef, to: ArrayRef) -> None:
    """Copy ``rows`` (queries · heads · channels) to an array (heads · channels, queries)."""
    n_channels, n_queries = to.shape
    for channel in range(n_channels):
        for query in range(n_queries):
            to[channel, query] = rows[query * n_channels + channel]


@register_jitable
def _fill_table(
    launch: RecordRef,
    batch: int,
    tile: Any,
    table: Any,
    locations: ArrayRef,
    sample_weights: ArrayRef,
) -> None:
    """Write the addresses and the weights of the taps of a tile.

    Args:
        launch: an ATTENTION_LAUNCH.
        tile: the :class:`_Tile`, which is overwritten.
        table: the :class:`_Table` to write.
        locations: the locations (samples, r) of the tile's samples.
        sample_weights: the weights (≥ samples,) of the samples, or those of one query.
    """
    samples = len(locations)
    all_weights = table.weights[0]
    if launch.weight_queries == launch.queries:
        for p in range(samples):
            all_weights[p] = widened(sample_weights[p])
    else:
        per_query = launch.heads * launch.points
        for p in range(samples):
            all_weights[p] = widened(sample_weights[p % per_query])
    tap_table.split_axes(locations, tile.coordinates)
    pixel_size = launch.heads * launch.channels * table.zeros.itemsize
    _fill_columns(
        tile.coordinates,
        tile.lengths,
        launch.align_corners != 0,
        tile.level_offset,
        launch.value + batch * launch.pixels * pixel_size,
        pixel_size,
        np.int64(table.zeros.ctypes.data),
        tile.index,
        table.addresses,
        table.weights,
        samples,
    )


@by_types
def _sum_heads(launch: Any, table: Any, heads: int, sums: Any, y: Any) -> Any:
    """Add up the weighted taps of all heads of a tile's queries.

    Args:
        launch: an ATTENTION_LAUNCH.
        table: the :class:`_Table`.
        heads: the number of heads of all queries together.
        sums: ``tile.sums``, of the type of the weights.
        y: the result (≥ heads · channels,). If its type differs from ``sums``, they are rounded.
    """
    return _sum_float_heads if y.dtype == sums.dtype else _sum_half_heads


@register_jitable
def _sum_float_heads(
    launch: RecordRef, table: Any, heads: int, sums: ArrayRef, y: ArrayRef
) -> None:
    """Add up as :func:`_sum_heads`, without a conversion."""
    points = launch.points
    channels = launch.channels
    sum_addressed(table.zeros, table.addresses, table.weights, 0, points, heads, channels, y)


@register_jitable
def _sum_half_heads(launch: RecordRef, table: Any, heads: int, sums: ArrayRef, y: ArrayRef) -> None:
    """Add up as :func:`_sum_heads`, and round to halves."""
    points = launch.points
    channels = launch.channels
    for head in range(heads):
        first = head * points
        sum_addressed(table.zeros, table.addresses, table.weights, first, points, 1, channels, sums)
        write_rounded(sums, y[head * channels :])


@register_jitable
def _find_levels(
    launch: RecordRef, level_offset: ArrayRef, lengths: ArrayRef, head_size: int
) -> None:
    """Fill ``level_offset`` and ``lengths`` of :data:`SCRATCH_ARRAYS`.

    ``head_size`` is the size of a head's channels in bytes.
    """
    r = launch.r
    levels = array_at(launch.levels, (launch.n_levels, 1 + r), np.int64)
    sample = 0
    for _ in range(launch.plan.tile_queries):
        for head in range(launch.heads):
            pixel = 0  # the level's first
            for level in range(launch.n_levels):
                area = 1
                for axis in range(r):
                    area *= levels[level, 1 + axis]
                for _ in range(levels[level, 0]):
                    level_offset[sample] = (head + pixel * launch.heads) * head_size
                    for axis in range(r):
                        lengths[axis, sample] = levels[level, 1 + axis]
                    sample += 1
                pixel += area


@intrinsic
def _fill_columns(
    typing_context: Any,
    locations: Any,
    lengths: Any,
    align_corners: Any,
    level_offset: Any,
    first_pixel: Any,
    pixel_size: Any,
    outside: Any,
    index: Any,
    addresses: Any,
    weights: Any,
    samples: Any,
) -> Any:
    """Write the addresses and the weights of the taps of samples, vector by vector.

    Each axis splits every tap on the axes before it in two: tap ``k`` becomes taps ``2 · k`` and
    ``2 · k + 1``.

    Args:
        typing_context: Numba's; callers omit it.
        locations: the locations (r, columns), 0 to 1. There are at least
            :data:`.tap_table.ROW_PADDING` columns more than samples.
        lengths: the lengths of each sample's level (r, columns).
        level_offset: the byte offset of each sample's channels in its level's first pixel
            (columns,).
        first_pixel: the address of the first pixel of all levels.
        pixel_size: the size of a pixel in bytes.
        outside: the address of the channels of a tap outside.
        index: memory for the pixels of the taps of a vector (taps, ROW_PADDING), int32.
        addresses: where the addresses are written (taps, columns).
        weights: where the weights are written (taps, columns). The first row has the weights of the
            samples.
        samples: the number of samples.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        locations, lengths, level_offset, index, addresses, weights = arrays
        _, _, align_corners, _, first_pixel, pixel_size, outside, _, _, _, samples = arguments
        coordinate = locations.data.type.pointee
        real = weights.data.type.pointee
        lanes = VECTOR_SIZE // max(ITEMSIZE[str(coordinate)], ITEMSIZE[str(real)])
        r, _ = cgutils.unpack_tuple(builder, locations.shape)
        taps, columns = cgutils.unpack_tuple(builder, weights.shape)

        def pointer_at(array: Any, row: Any, column: Any) -> Any:
            """Return a pointer to an element of an array of as many columns as the table."""
            return builder.gep(array.data, [builder.add(builder.mul(row, columns), column)])

        def load(pointer: Any) -> Lanes:
            vector = ir.VectorType(pointer.type.pointee, lanes)
            return Lanes(builder, load_vector(builder, pointer, vector))

        def index_at(tap: Any) -> Any:
            entry = builder.mul(tap, INT64(tap_table.ROW_PADDING))
            return builder.gep(index.data, [entry])

        def split_axis(axis_number: Any, begin: Any) -> None:
            """Split the taps on the axes before this one, and update their weights."""
            length = load(pointer_at(lengths, axis_number, begin))
            location = load(pointer_at(locations, axis_number, begin))
            axis = VectorAxis.of(length, align_corners, coordinate)
            axis_taps = taps_of(_PLAN.mode, padded(_PLAN, axis, location * 2 - 1), real)
            pixels = [axis_taps.first + number for number in range(2)]
            are_inside = [pixel.is_index_of(length) for pixel in pixels]
            n_taps = builder.shl(INT64(1), axis_number)
            with cgutils.for_range(builder, n_taps) as loop:
                # From the last tap on, because a tap is replaced by two.
                tap = builder.sub(builder.sub(n_taps, INT64(1)), loop.index)
                outer_pixel = load(index_at(tap))
                outer_weight = load(pointer_at(weights, tap, begin))
                row_pixel = outer_pixel * length
                is_outer_inside = outer_pixel.is_at_least(0)
                for number in range(2):
                    new_tap = builder.add(builder.mul(tap, INT64(2)), INT64(number))
                    is_inside = is_outer_inside & are_inside[number]
                    pixel = is_inside.choose(row_pixel + pixels[number], tap_table.OUTSIDE_INT32)
                    weight = outer_weight * axis_taps.weights[number]
                    store_vector(builder, pixel.value, index_at(new_tap))
                    store_vector(builder, weight.value, pointer_at(weights, new_tap, begin))

        def write_addresses(tap: Any, begin: Any) -> None:
            """Write the addresses of a tap of a vector of samples."""
            pixel = load(index_at(tap))
            integers = ir.VectorType(INT64, lanes)
            wide_pixel = Lanes(builder, builder.zext(pixel.value, integers))
            size, first, zeros = (
                filled_lanes(builder, number, lanes)
                for number in (pixel_size, first_pixel, outside)
            )
            offset = load(builder.gep(level_offset.data, [begin]))
            address = wide_pixel * size + (offset + first)
            address = pixel.is_at_least(0).choose(address, zeros)
            store_vector(builder, address.value, pointer_at(addresses, tap, begin))

        with vectors_of(builder, samples, lanes) as vector:
            no_pixels = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
            store_vector(builder, no_pixels, index_at(INT64(0)))
            with cgutils.for_range(builder, r) as axes:
                split_axis(axes.index, vector.begin)
            with cgutils.for_range(builder, taps) as all_taps:
                write_addresses(all_taps.index, vector.begin)
        return context.get_dummy_value()

    argument_types = (
        locations,
        lengths,
        types.boolean,
        level_offset,
        types.int64,
        types.int64,
        types.int64,
        index,
        addresses,
        weights,
        types.int64,
    )
    return types.void(*argument_types), generate
