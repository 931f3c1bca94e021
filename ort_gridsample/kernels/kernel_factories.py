"""The kernels of a launch, by types and mode.

Functions with a name in ``_for`` are factories: they return the kernel for some types. The kernels
of a launch are compiled separately and call each other by address, so that another type of X needs
only one more small kernel. A :data:`~.structs.KERNEL` has their addresses:
:func:`kernel_functions` and :func:`kernel_constants` return its fields.

:mod:`.tiles` and :mod:`.workers` call the kernels, with int64 arguments. ``launch`` and ``worker``
are the addresses of a :data:`~.structs.LAUNCH` and a :data:`~.structs.WORKER`:

- ``coordinates(launch, worker, batch, begin, positions)`` writes the scratch array ``coordinates``.
- ``axis_taps(launch, worker, positions, axis)`` returns the layout of the axis' taps.
- ``combine(launch, worker, rows, axis, positions, axis_layout)`` returns the layout of the new
  table. The old one has ``rows`` rows, in buffer ``(axis - 1) % 2``.
- ``sample_in_vectors(launch, worker, batch, begin, positions)`` fills
  ``Y[batch, :, begin : begin + positions]`` from the scratch array ``coordinates``, without a
  table. It returns 1, or 0 if it cannot.
- ``read(launch, worker, buffer, batch, begin, positions)`` fills
  ``Y[batch, :, begin : begin + positions]``, and ``read_packed`` the channels of the worker's
  panels. ``buffer`` is the result of
  :func:`.tiles.fill_table_from_coordinates`.
- ``pack(launch, panel, batch, channel, part)`` packs a part of the panel that begins with
  ``channel``.

A kernel whose result is not stated returns 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from .. import spec
from . import measured, simd, tap_sums, tap_table, vector_sampling
from .axis_vectors import VECTOR_SIZE
from .compilation import FunctionSpec, compiles_in
from .halves import HALVES, stored_dtype_of, write_rounded
from .pointers import address_of, array_at, copy_past_caches, record_at
from .simd import WIDE_PANEL
from .structs import KERNEL, LAUNCH, WORKER, Address, ArrayRef, RecordRef
from .tap_plans import COMPILED_MODE_RULES, MODE_CODES, TAPS
from .tap_table import TapTable
from .tiles import CHANNELS_PER_GROUP, scratch_address, scratch_array
from .workers import proceed, process_items

#: If the channels of a batch exceed this size, in bytes, they may not fit the L2 cache. Then the
#: pixels of the first channel are prefetched, as those of the next channels always are.
MIN_BYTES_TO_PREFETCH = 1 << 20
#: The minimum size of a Y that does not stay in a cache. Copied pixels are then written past the
#: caches, which takes 0.8 times as long, because no cache line is read before it is written. Sums
#: do not gain: they are not limited by memory.
MIN_BYTES_PAST_CACHES = 1 << 24


@compiles_in(1.4)
def coordinates_for(grid_type: str) -> Callable[..., int]:
    """Return the kernel that reads the coordinates of a tile from a grid of this type."""
    stored_dtype = stored_dtype_of(grid_type)
    coordinate_dtype = np.dtype(spec.TYPES[grid_type].compute)

    def coordinates(
        launch_address: Address, worker_address: Address, batch: int, begin: int, positions: int
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        grid = array_at(launch.grid, (launch.n, launch.positions, launch.r), stored_dtype)
        normalized = scratch_array(launch, worker_address, "coordinates", coordinate_dtype)
        tap_table.split_axes(grid[batch, begin : begin + positions], normalized)
        return 0

    return coordinates


@compiles_in(8.0)
def axis_taps_for(coordinate_type: str, weight_type: str) -> Callable[..., int]:
    """Return the kernel that computes the taps of a tile on one axis.

    The taps of the outermost axis are the beginning of the table.
    """
    coordinate_dtype = np.dtype(coordinate_type)
    weight_dtype = np.dtype(weight_type)

    def axis_taps(
        launch_address: Address, worker_address: Address, positions: int, axis: int
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        kernel = record_at(launch.kernel, KERNEL)
        taps = kernel.taps_per_axis
        index_address = scratch_address(launch, worker_address, "axis_index")
        weight_address = scratch_address(launch, worker_address, "axis_weight")
        if axis == 0:
            index_address = scratch_address(launch, worker_address, "index")
            weight_address = scratch_address(launch, worker_address, "weight")
            offsets = scratch_array(launch, worker_address, "offsets", np.int64)
            for tap in range(taps):
                offsets[tap] = tap
        length = array_at(launch.lengths, (launch.r,), np.int64)[axis]
        normalized = scratch_array(launch, worker_address, "coordinates", coordinate_dtype)
        return tap_table.compute_axis_taps(
            tap_table.SampledAxis(length, kernel.padding, kernel.align_corners != 0, kernel.mode),
            normalized[axis],
            positions,
            array_at(index_address, (taps, launch.plan.table_columns), np.uint32),
            array_at(weight_address, (taps, launch.plan.table_columns), weight_dtype),
            kernel.may_mask != 0,
        )

    return axis_taps


@compiles_in(3.7)
def combine_for(weight_type: str) -> Callable[..., int]:
    """Return the kernel that adds the taps of an inner axis to the table.

    It reads the table so far, ``rows`` in one buffer, and writes the new table to the other buffer.
    """
    weight_dtype = np.dtype(weight_type)

    def combine(
        launch_address: Address,
        worker_address: Address,
        rows: int,
        axis: int,
        positions: int,
        axis_layout: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        new_rows = rows * record_at(launch.kernel, KERNEL).taps_per_axis
        index = scratch_array(launch, worker_address, "index", np.uint32)
        weight = scratch_array(launch, worker_address, "weight", weight_dtype)
        offsets = scratch_array(launch, worker_address, "offsets", np.int64)
        source = (axis - 1) % 2
        target = axis % 2
        axis_index = scratch_array(launch, worker_address, "axis_index", np.uint32)
        axis_weight = scratch_array(launch, worker_address, "axis_weight", weight_dtype)
        return tap_table.combine_taps(
            TapTable(index[source, :rows], weight[source, :rows], offsets, worker.layout),
            TapTable(axis_index, axis_weight, offsets, axis_layout),
            array_at(launch.lengths, (launch.r,), np.int64)[axis],
            positions,
            index[target, :new_rows],
            weight[target, :new_rows],
        )

    return combine


@compiles_in(1.5)
def copy_packed_for(bits_type: str) -> Callable[..., int]:
    """Return the kernel that reads packed panels through a table of one tap without weights.

    Args:
        bits_type: a type of the size of X's elements.
    """
    stored_dtype = np.dtype(bits_type)

    def read(
        launch_address: Address,
        worker_address: Address,
        buffer: int,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        index = scratch_array(launch, worker_address, "index", np.uint32)[buffer, 0]
        Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), stored_dtype)[batch]
        first_panel = worker.first_panel
        panels_shape = (first_panel + worker.n_panels, launch.pixels + 1, WIDE_PANEL)
        panels = array_at(launch.packed, panels_shape, stored_dtype)
        for number in range(worker.n_panels):
            first = worker.first_channel + number * WIDE_PANEL
            end = min(first + WIDE_PANEL, launch.plan.packed_channels)
            panel = panels[first_panel + number]
            tap_sums.copy_packed(panel, index, Y[first:end], begin, positions)
        return 0

    return read


@compiles_in(2.6)
def copy_for(bits_type: str) -> Callable[..., int]:
    """Return the kernel that reads X through a table of one tap without weights.

    Args:
        bits_type: a type of the size of X's elements.
    """
    stored_dtype = np.dtype(bits_type)

    def read(
        launch_address: Address,
        worker_address: Address,
        buffer: int,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        index = scratch_array(launch, worker_address, "index", np.uint32)[buffer, 0, :positions]
        has_outside = tap_sums.is_any_outside(index)
        _copy_channels(
            launch, worker_address, buffer, batch, begin, index, has_outside, stored_dtype
        )
        return 0

    return read


@register_jitable
def _copy_channels(
    launch: RecordRef,
    worker_address: Address,
    buffer: int,
    batch: int,
    begin: int,
    index: ArrayRef,
    has_outside: bool,
    stored_dtype: Any,
) -> None:
    """Copy a pixel of each channel to each position of a tile.

    The pixels ``index`` (P,) are in the first row of a buffer of the table. ``has_outside`` is
    whether some are outside. ``stored_dtype`` is a type of the size of X's elements.
    """
    positions = len(index)
    inside = index
    if has_outside:
        table = scratch_array(launch, worker_address, "index", np.uint32)
        inside = table[1 - buffer, 0, :positions]
        tap_sums.move_inside(index, inside)
    first_channel = record_at(worker_address, WORKER).first_channel
    X = array_at(launch.X, (launch.n, launch.c, launch.pixels), stored_dtype)[batch, first_channel:]
    Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), stored_dtype)
    Y = Y[batch, first_channel:]
    nbytes = launch.n * launch.c * launch.positions * X.itemsize
    copies = scratch_array(launch, worker_address, "copies", stored_dtype)
    if nbytes < MIN_BYTES_PAST_CACHES:
        copies = copies[:0]
    prefetched_bytes = record_at(launch.kernel, KERNEL).prefetched_bytes
    _copy_tile(X, index, inside, has_outside, Y, begin, copies, prefetched_bytes)


@register_jitable
def _copy_tile(
    X: ArrayRef,
    index: ArrayRef,
    inside: ArrayRef,
    has_outside: bool,
    Y: ArrayRef,
    begin: int,
    copies: ArrayRef,
    prefetched_bytes: int,
) -> None:
    """Copy a pixel of each channel to each position of a tile.

    Args:
        X: channels (C, S).
        index: the pixel of each position (P,). If it is outside, the value is 0.
        inside: the pixels, moved inside (P,).
        has_outside: whether some are outside.
        Y: the result is written to Y[:, begin:] (C, ≥ begin + P).
        begin: see ``Y``.
        copies: scratch memory (≥ P,), from which Y is written past the caches; or empty.
        prefetched_bytes: the size of X from which all pixels of an incoherent grid are prefetched.
    """
    positions = len(inside)
    channels = len(X)
    step = simd.SMOOTH_STEP
    nbytes = X.size * X.itemsize
    if nbytes >= prefetched_bytes:
        step = tap_sums.prefetch_step(index)
    if nbytes > MIN_BYTES_TO_PREFETCH:
        for p in range(0, positions, step):
            simd.prefetch(X[0], inside[p])
    for c in range(channels):
        y = Y[c, begin:]
        next_x = X[min(c + 1, channels - 1)]
        values = copies if len(copies) > 0 else y
        tap_sums.copy_pixels(X[c], index, inside, has_outside, step, values, next_x)
        if len(copies) > 0:
            copy_past_caches(y, copies[:positions])


@compiles_in(0.7)
def copy_tiles(
    X_address: Address,
    channels: int,
    pixels: int,
    index_address: Address,
    positions: int,
    Y_address: Address,
    prefetched_bytes: int,
) -> int:
    """Copy pixels of uint32 as a kernel does, for a measurement (:mod:`.measured`); return 0.

    Args:
        X_address: the address of X (channels, pixels).
        channels: see ``X_address``.
        pixels: see ``X_address``.
        index_address: the address of the pixel of each position, all of them of X.
        positions: the number of positions.
        Y_address: the address of Y (channels, positions).
        prefetched_bytes: as in a KERNEL.
    """
    X = array_at(X_address, (channels, pixels), np.uint32)
    index = array_at(index_address, (positions,), np.uint32)
    Y = array_at(Y_address, (channels, positions), np.uint32)
    for begin in range(0, positions, tap_table.MAX_TILE_POSITIONS):
        tile = index[begin : begin + tap_table.MAX_TILE_POSITIONS]
        _copy_tile(X, tile, tile, False, Y, begin, index[:0], prefetched_bytes)
    return 0


def weight_dtype_of(X_type: str) -> np.dtype[Any]:
    """Return the type of the weights of X's taps: X's compute type, or that of its real part."""
    return np.dtype(np.finfo(str(spec.TYPES[X_type].compute)).dtype)


@compiles_in(1.9)
def sum_for(X_type: str) -> Callable[..., int]:
    """Return the kernel that reads X of this type through a table with weights."""
    return _sum_kernel(X_type, reads_panels=False)


@compiles_in(2.8)
def sum_packed_for(X_type: str) -> Callable[..., int]:
    """Return the kernel that reads the panels of X of this type through a table with weights."""
    return _sum_kernel(X_type, reads_panels=True)


def _sum_kernel(X_type: str, *, reads_panels: bool) -> Callable[..., int]:
    """Return a kernel that adds up the taps of a tile, some channels at a time.

    The channels are those of X or, with ``reads_panels``, those of the worker's panels. The sums
    are written to Y. Those of halves first wait in scratch memory, in float32, until they are
    rounded. Numba compiles only one branch of the conditions on these two properties.
    """
    stored_dtype = stored_dtype_of(X_type)
    weight_dtype = weight_dtype_of(X_type)
    are_halves = X_type in HALVES

    def read(
        launch_address: Address,
        worker_address: Address,
        buffer: int,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        waiting_sums = scratch_array(launch, worker_address, "sums", weight_dtype)
        Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), stored_dtype)[batch]
        if reads_panels:
            step = launch.plan.panel_channels
            first_panel = worker.first_panel
            panels_shape = (first_panel + worker.n_panels, launch.pixels + 1, step)
            panels = array_at(launch.packed, panels_shape, weight_dtype)
            strip_address = scratch_address(launch, worker_address, "strip")
            strip = array_at(strip_address, (tap_sums.STRIP, step), weight_dtype)
            first_channel = worker.first_channel
            end_channel = min(first_channel + worker.n_panels * step, launch.plan.packed_channels)
        else:
            X = array_at(launch.X, (launch.n, launch.c, launch.pixels), stored_dtype)[batch]
            first_channel = worker.first_channel
            end_channel = launch.c
            step = CHANNELS_PER_GROUP if are_halves else launch.c
        for first in range(first_channel, end_channel, step):
            end = min(first + step, end_channel)
            if are_halves:
                sums = waiting_sums[: end - first]
                start = 0
            else:
                sums = Y[first:end]
                start = begin
            table = _table(launch, worker, buffer, weight_dtype)
            if reads_panels:
                panel = panels[first_panel + (first - first_channel) // step]
                tap_sums.sum_packed(panel, table, strip, sums, start, positions)
            else:
                worker.layout = tap_sums.sum_taps(X[first:end], table, sums, start, positions)
            if are_halves:
                for channel in range(first, end):
                    write_rounded(sums[channel - first, :positions], Y[channel, begin:])
        return 0

    return read


@compiles_in(2.6)
def copy_in_vectors_for(coordinate_type: str, bits_type: str, mode: str) -> Callable[..., int]:
    """Return the kernel that copies pixels without a table, if it can.

    Args:
        coordinate_type: the type of the coordinates.
        bits_type: a type of the size of X's elements.
        mode: a mode without weights.
    """
    coordinate_dtype = np.dtype(coordinate_type)
    stored_dtype = np.dtype(bits_type)
    lanes = VECTOR_SIZE // coordinate_dtype.itemsize

    def sample(
        launch_address: Address, worker_address: Address, batch: int, begin: int, positions: int
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        if not _fits_vectors(launch, positions, lanes):
            return 0
        kernel = record_at(launch.kernel, KERNEL)
        index = scratch_array(launch, worker_address, "index", np.uint32)[0, 0, :positions]
        is_done, has_outside = vector_sampling.pixels_to_copy(
            mode,
            scratch_array(launch, worker_address, "coordinates", coordinate_dtype),
            array_at(launch.lengths, (launch.r,), np.int64),
            kernel.padding,
            kernel.align_corners != 0,
            positions,
            index,
        )
        if not is_done:
            return 0
        _copy_channels(launch, worker_address, 0, batch, begin, index, has_outside, stored_dtype)
        return 1

    return sample


@compiles_in(1.5)
def sum_in_vectors_for(coordinate_type: str, X_type: str, mode: str) -> Callable[..., int]:
    """Return the kernel that adds up weighted taps without a table, if it can."""
    coordinate_dtype = np.dtype(coordinate_type)
    stored_dtype = stored_dtype_of(X_type)
    weight_dtype = weight_dtype_of(X_type)
    are_halves = X_type in HALVES
    lanes = vector_sampling.lanes_of_sums(TAPS[mode], weight_dtype.itemsize)

    def sample(
        launch_address: Address, worker_address: Address, batch: int, begin: int, positions: int
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        if not _fits_vectors(launch, positions, lanes):
            return 0
        kernel = record_at(launch.kernel, KERNEL)
        normalized = scratch_array(launch, worker_address, "coordinates", coordinate_dtype)
        lengths = array_at(launch.lengths, (launch.r,), np.int64)
        waiting_sums = scratch_array(launch, worker_address, "sums", weight_dtype)
        # A table has several taps: all their rows.
        postponed = scratch_array(launch, worker_address, "index", np.uint32)[0]
        X = array_at(launch.X, (launch.n, launch.c, launch.pixels), stored_dtype)[batch]
        Y = array_at(launch.Y, (launch.n, launch.c, launch.positions), stored_dtype)[batch]
        # The taps are computed again for each group. To read all channels at once takes 1.8 times
        # as long with 128 channels of 256×256.
        for first in range(worker.first_channel, launch.c, CHANNELS_PER_GROUP):
            end = min(first + CHANNELS_PER_GROUP, launch.c)
            if are_halves:
                sums = waiting_sums[: end - first]
                start = 0
            else:
                sums = Y[first:end]
                start = begin
            is_done = vector_sampling.sum_taps(
                mode,
                X[first:end],
                normalized,
                lengths,
                kernel.padding,
                kernel.align_corners != 0,
                positions,
                sums,
                start,
                postponed,
            )
            if not is_done:
                return 0
            if are_halves:
                for channel in range(first, end):
                    write_rounded(sums[channel - first, :positions], Y[channel, begin:])
        return 1

    return sample


@register_jitable
def _fits_vectors(launch: RecordRef, positions: int, lanes: int) -> bool:
    """Whether a tile can be sampled in vectors of so many lanes."""
    kernel = record_at(launch.kernel, KERNEL)
    taps = kernel.taps_per_axis
    if positions < lanes:
        return False
    lengths = array_at(launch.lengths, (launch.r,), np.int64)
    for axis in range(launch.r):
        if lengths[axis] < taps or lengths[axis] > tap_table.MAX_NEAR:
            return False
    return True


@compiles_in(1.7)
def pack_for(X_type: str, packed_type: str) -> Callable[..., int]:
    """Return the kernel that packs a part of a panel, channels last, for these types."""
    stored_dtype = stored_dtype_of(X_type)
    packed_dtype = np.dtype(packed_type)

    def pack(launch_address: Address, panel: int, batch: int, channel: int, part: int) -> int:
        launch = record_at(launch_address, LAUNCH)
        X = array_at(launch.X, (launch.n, launch.c, launch.pixels), stored_dtype)
        panels_shape = (panel + 1, launch.pixels + 1, launch.plan.panel_channels)
        packed = array_at(launch.packed, panels_shape, packed_dtype)
        tap_sums.pack_part(X, batch, channel, part * tap_sums.PIXELS_PER_PART, packed[panel])
        return 0

    return pack


@register_jitable
def _table(launch: RecordRef, worker: RecordRef, buffer: int, weight_dtype: Any) -> Any:
    """Return the :class:`.tap_table.TapTable` in a buffer of a worker."""
    worker_address = address_of(worker)
    index = scratch_array(launch, worker_address, "index", np.uint32)[buffer]
    weight = scratch_array(launch, worker_address, "weight", weight_dtype)[buffer]
    offsets = scratch_array(launch, worker_address, "offsets", np.int64)
    return TapTable(index, weight, offsets, worker.layout)


# --- The fields of a kernel descriptor ---


def kernel_constants(X_type: str, grid_type: str, mode: str) -> dict[str, int]:
    """Return the constants of a :data:`.structs.KERNEL` that depend on types and mode."""
    coordinate, weight = _compute_types(X_type, grid_type, mode)
    X_size = stored_dtype_of(X_type).itemsize
    has_weights = not COMPILED_MODE_RULES[mode].copies_values
    return {
        "mode": MODE_CODES[mode],
        "taps_per_axis": TAPS[mode],
        "X_size": X_size,
        "coordinate_size": stored_dtype_of(coordinate).itemsize,
        "weight_size": stored_dtype_of(weight).itemsize if has_weights else 0,
        "copy_size": 0 if has_weights else X_size,
        "packed_size": stored_dtype_of(weight).itemsize if has_weights else X_size,
        "prefetched_bytes": 0 if has_weights else measured.prefetched_bytes(),
        "may_mask": int(not X_type.startswith(("int", "uint"))),
    }


def kernel_functions(
    X_type: str, grid_type: str, mode: str, coordinates: FunctionSpec | None = None
) -> dict[str, FunctionSpec | None]:
    """Return the functions of a :data:`.structs.KERNEL`, by field.

    If there is no grid input, ``coordinates`` is the kernel that computes the coordinates.
    """
    coordinate, weight = _compute_types(X_type, grid_type, mode)
    size = stored_dtype_of(X_type).itemsize
    is_float = X_type in HALVES or X_type == weight
    read: FunctionSpec = (sum_for, X_type)
    pack: FunctionSpec | None = None
    read_packed: FunctionSpec | None = None
    sample_in_vectors: FunctionSpec | None = None
    has_vectors = bool(vector_sampling.supported_axes(TAPS[mode]))
    if COMPILED_MODE_RULES[mode].copies_values:
        # There is no integer of 16 bytes.
        read = (copy_for, f"uint{8 * size}" if size <= 8 else X_type)
        if size <= 8:
            # Values are only moved. The kernels for floats do this, and linear shares them.
            shared_type = {1: "uint8", 2: "uint16", 4: "float32", 8: "float64"}[size]
            pack = (pack_for, shared_type, shared_type)
            read_packed = (copy_packed_for, shared_type)
            sample_in_vectors = (copy_in_vectors_for, coordinate, f"uint{8 * size}", mode)
    elif is_float:
        pack = (pack_for, X_type, weight)
        read_packed = (sum_packed_for, X_type)
        if has_vectors:
            sample_in_vectors = (sum_in_vectors_for, coordinate, X_type, mode)
    return {
        "process_items": (process_items,),
        "proceed": (proceed,),
        "coordinates": coordinates or (coordinates_for, grid_type),
        "axis_taps": (axis_taps_for, coordinate, weight),
        "combine": (combine_for, weight),
        "read": read,
        "sample_in_vectors": sample_in_vectors if simd.CPU_HAS_FAST_VECTORS else None,
        "pack": pack,
        "read_packed": read_packed,
    }


def _compute_types(X_type: str, grid_type: str, mode: str) -> tuple[str, str]:
    """Return the types of the coordinates and of the weights.

    In a mode without weights, their type is that of the coordinates.
    """
    coordinate = str(spec.TYPES[grid_type].compute)
    copies_values = COMPILED_MODE_RULES[mode].copies_values
    weight = coordinate if copies_values else weight_dtype_of(X_type).name
    return coordinate, weight
