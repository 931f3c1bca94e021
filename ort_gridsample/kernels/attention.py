"""Deformable attention in compiled code: weighted sums over samples of several images (levels).

A worker processes the queries tile by tile. For a tile it computes a table with one column per
sample, that is, per point of each head of each query, and one row per tap of a sample: the address
of the tap's channels, and its weight. Then it adds up the taps of each head, and prefetches those
of the next head at the same time. Values are read where they are.

An item is a tile. If the output has the queries on its last axis, an item is as many tiles as fill
a cache line with queries: their sums are kept in scratch memory, and transposed to the output.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from .. import spec
from . import helper_threads, tap_table
from .axis_vectors import VECTOR_SIZE, VectorAxis, padded, taps_of, vectors_of
from .compilation import FunctionSpec, compiles_in
from .halves import stored_dtype_of, widened, write_rounded
from .lanes import VECTORS, Lanes
from .llvm_helpers import INT32, ITEMSIZE, array_structs, if_equal, load_vector, store_vector
from .pointers import address_of, arena_alloc, array_at, by_types, fetch_add, free, record_at
from .scratch import ScratchArray, scratch_layout
from .simd import OUTSIDE_BIT
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
    # the coordinates or the distances from the first tap, the pixel of the first tap by axis, and
    # the pixel of a tap in the level.
    ScratchArray("level_offset", np.dtype(np.int64), ("plan.samples",)),
    ScratchArray("lengths", np.dtype(np.int32), ("r", "plan.table_columns")),
    ScratchArray("coordinates", 8, ("r", "plan.table_columns")),
    ScratchArray("base", np.dtype(np.int32), ("r", "plan.table_columns")),
    ScratchArray("index", np.dtype(np.uint32), ("plan.samples",)),
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
    base: ArrayRef
    index: ArrayRef


class _Table(NamedTuple):
    """The taps of a tile's samples: arrays of :data:`SCRATCH_ARRAYS`, by name.

    They are not fields of :class:`_Tile`, because passing so many arrays to the sums of each query
    takes up to 4 % of the time.
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
    #: (n, queries, heads · channels): Y, or the queries of an item that are transposed to it
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
            base=_scratch_array(launch, memory, "base", np.int32),
            index=_scratch_array(launch, memory, "index", np.uint32),
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
        rows = array_at(launch.Y, (n, launch.queries, row), stored_dtype)
        if launch.channels_first:
            kept = _scratch_array(launch, memory, "rows", stored_dtype)
            rows = array_at(np.int64(kept.ctypes.data), (1, len(kept), row), stored_dtype)
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
    rows = operands.rows[0] if launch.channels_first else operands.rows[batch, first_query:]
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
        for query in range(n_queries):
            y = rows[first - first_query + query]
            _sum_heads(launch, table, query * per_query, tile.sums, y)
    if launch.channels_first:
        channels = operands.Y[batch * plan.row : (batch + 1) * plan.row]
        _transpose(rows[: end - first_query], channels[:, first_query:end])


@register_jitable
def _transpose(rows: ArrayRef, to: ArrayRef) -> None:
    """Copy ``rows`` (queries, heads · channels) to an array with the axes in the other order."""
    n_queries, n_channels = rows.shape
    for channel in range(n_channels):
        for query in range(n_queries):
            to[channel, query] = rows[query, channel]


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
    tap_table.split_axes(locations, tile.coordinates)
    for axis in range(launch.r):
        _split_locations(
            tile.coordinates[axis],
            tile.lengths[axis],
            launch.align_corners != 0,
            tile.base[axis],
            samples,
        )
    for tap in range(launch.plan.taps):
        _fill_tap_row(launch, batch, tap, tile, table, samples, sample_weights)


@register_jitable
def _fill_tap_row(
    launch: RecordRef,
    batch: int,
    tap: int,
    tile: Any,
    table: Any,
    samples: int,
    sample_weights: ArrayRef,
) -> None:
    """Write a row of the table: a tap of each sample of a tile.

    Args:
        launch: an ATTENTION_LAUNCH.
        tap: the index of the tap among those of a sample.
        tile: the :class:`_Tile` with the first taps on each axis. Its ``index`` is overwritten.
        table: its :class:`_Table`.
        samples: the number of samples of the tile.
        sample_weights: the weights (≥ samples,) of the samples, or those of one query.
    """
    tap_weights = table.weights[tap]
    tap_addresses = table.addresses[tap]
    if launch.weight_queries == launch.queries:
        for p in range(samples):
            tap_weights[p] = widened(sample_weights[p])
    else:
        per_query = launch.heads * launch.points
        for p in range(samples):
            tap_weights[p] = widened(sample_weights[p % per_query])
    for axis in range(launch.r):
        _combine_axis(
            tile.coordinates[axis],
            tile.base[axis],
            tile.lengths[axis],
            tap >> (launch.r - 1 - axis) & 1,
            tap_weights,
            tile.index,
            axis == 0,
            samples,
        )
    pixel_size = launch.heads * launch.channels * table.zeros.itemsize
    first_pixel = launch.value + batch * launch.pixels * pixel_size
    outside = np.int64(table.zeros.ctypes.data)
    for p in range(samples):
        inside = first_pixel + tile.level_offset[p] + np.int64(tile.index[p]) * pixel_size
        tap_addresses[p] = inside if tile.index[p] < OUTSIDE_BIT else outside


@by_types
def _sum_heads(launch: Any, table: Any, first_sample: int, sums: Any, y: Any) -> Any:
    """Add up the weighted taps of all heads of a query.

    Args:
        launch: an ATTENTION_LAUNCH.
        table: the :class:`_Table`.
        first_sample: the first sample of the query.
        sums: ``tile.sums``, of the type of the weights.
        y: the result (heads · channels,). If its type differs from ``sums``, they are rounded.
    """
    return _sum_float_heads if y.dtype == sums.dtype else _sum_half_heads


@register_jitable
def _sum_float_heads(
    launch: RecordRef, table: Any, first_sample: int, sums: ArrayRef, y: ArrayRef
) -> None:
    """Add up as :func:`_sum_heads`, without a conversion."""
    points = launch.points
    channels = launch.channels
    for head in range(launch.heads):
        first = first_sample + head * points
        head_sums = y[head * channels :][:channels]
        sum_addressed(table.zeros, table.addresses, table.weights, first, points, head_sums)


@register_jitable
def _sum_half_heads(
    launch: RecordRef, table: Any, first_sample: int, sums: ArrayRef, y: ArrayRef
) -> None:
    """Add up as :func:`_sum_heads`, and round to halves."""
    points = launch.points
    for head in range(launch.heads):
        first = first_sample + head * points
        sum_addressed(table.zeros, table.addresses, table.weights, first, points, sums)
        write_rounded(sums, y[head * launch.channels :])


@register_jitable
def _find_levels(
    launch: RecordRef, level_offset: ArrayRef, lengths: ArrayRef, head_size: int
) -> None:
    """Fill ``level_offset`` and ``lengths`` of :data:`SCRATCH_ARRAYS`.

    ``head_size`` is the size of a head's channels in bytes.
    """
    r = launch.r
    points = launch.points
    levels = array_at(launch.levels, (launch.n_levels, 1 + r), np.int64)
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


@intrinsic
def _split_locations(
    typing_context: Any,
    locations: Any,
    lengths: Any,
    align_corners: Any,
    base: Any,
    samples: Any,
) -> Any:
    """Split locations (0 to 1) on an axis into first taps and distances from them, in pixels.

    Args:
        typing_context: Numba's; callers omit it.
        locations: the locations (≥ samples,), which are overwritten with the distances. This array
            and the others have at least :data:`.tap_table.ROW_PADDING` columns more than samples.
        lengths: the length of the axis for each location.
        base: where the first taps are written.
        samples: the number of locations.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = array_structs(context, builder, arguments, signature.args)
        locations, lengths, base = arrays
        _, _, align_corners, _, samples = arguments
        coordinate = locations.data.type.pointee
        lanes = VECTOR_SIZE // ITEMSIZE[str(coordinate)]
        with vectors_of(builder, samples, lanes) as vector:
            begin = vector.begin
            x_pointer = builder.gep(locations.data, [begin])
            length_pointer = builder.gep(lengths.data, [begin])
            values = load_vector(builder, x_pointer, ir.VectorType(coordinate, lanes))
            integers = load_vector(builder, length_pointer, ir.VectorType(INT32, lanes))
            axis = VectorAxis.of(Lanes(builder, integers), align_corners, coordinate)
            x = padded(_PLAN, axis, Lanes(builder, values) * 2 - 1)
            taps = taps_of(_PLAN.mode, x, coordinate)
            store_vector(builder, (x - taps.base).value, x_pointer)
            store_vector(builder, taps.first.value, builder.gep(base.data, [begin]))
        return context.get_dummy_value()

    argument_types = locations, lengths, types.boolean, base, types.int64
    return types.void(*argument_types), generate


@intrinsic
def _multiply_weights(
    typing_context: Any, distances: Any, tap: Any, weight: Any, samples: Any
) -> Any:
    """Multiply ``weight`` by the weights of a tap on an axis.

    Args:
        typing_context: Numba's; callers omit it.
        distances: the distances from the first tap (≥ samples,), with room as in
            :func:`_split_locations`.
        tap: the number of the tap.
        weight: the weights so far, which are updated. It has the same shape.
        samples: the number of samples.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        distances, weight = array_structs(context, builder, arguments, signature.args)
        _, tap, _, samples = arguments
        coordinate = distances.data.type.pointee
        real = weight.data.type.pointee
        lanes = VECTOR_SIZE // ITEMSIZE[str(real)]
        assert _PLAN.mode.weights is not None
        for number in range(_PLAN.mode.taps):
            with (
                if_equal(builder, tap, number),
                vectors_of(builder, samples, lanes) as vector,
            ):
                begin = vector.begin
                pointer = builder.gep(distances.data, [begin])
                values = load_vector(builder, pointer, ir.VectorType(coordinate, lanes))
                t = Lanes(builder, values).to_floats(real)
                tap_weight = tuple(_PLAN.mode.weights(VECTORS, t))[number]
                pointer = builder.gep(weight.data, [begin])
                old = Lanes(builder, load_vector(builder, pointer, t.type))
                store_vector(builder, (old * tap_weight).value, pointer)
        return context.get_dummy_value()

    return types.void(distances, types.int64, weight, types.int64), generate


@register_jitable
def _combine_axis(
    distances: ArrayRef,
    base: ArrayRef,
    lengths: ArrayRef,
    tap: int,
    weight: ArrayRef,
    index: ArrayRef,
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
    _multiply_weights(distances, tap, weight, samples)
    for p in range(samples):
        i = np.uint32(base[p] + np.int32(tap))
        length = np.uint32(lengths[p])
        outer = np.uint32(0) if is_first else index[p]
        is_outside = (i >= length) | (outer >= OUTSIDE_BIT)
        index[p] = tap_table.OUTSIDE if is_outside else np.uint32(outer * length + i)
