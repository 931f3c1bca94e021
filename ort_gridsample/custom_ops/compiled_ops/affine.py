"""AffineGrid in compiled code: as an op, and as the source of the grid of a GridSample.

The operations on a position have the order of :mod:`ort_gridsample.reference.affine`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...functions import error_templates as templates
from ...functions.error_templates import ErrorTemplate
from ...functions.validation import SIZE_AXIS_NAMES, format_choices
from ...kernels.compilation import compiles_in
from ...kernels.halves import HALVES, NO_CONVERSION, stored_dtype_of, widened
from ...kernels.kernel_factories import MIN_BYTES_PAST_CACHES
from ...kernels.pointers import (
    address_of,
    array_at,
    c_string,
    copy_past_caches,
    fetch_add,
    local_record,
    memcpy,
    record_at,
    round_up_to_line,
)
from ...kernels.structs import CACHE_LINE, LAUNCH, WORKER, Address, ArrayRef, RecordRef
from ...kernels.tap_plans import COMPILED_MODES
from ...kernels.tiles import scratch_array
from ...kernels.workers import DEFAULT_WORKERS
from ...reference import coordinates as reference_coordinates
from .catalog import Fields, OpImplementation
from .creation import (
    LAST_SENTENCES,
    choice_attribute,
    close_node,
    create_errors,
    create_single_state,
    destroy,
    integer_attribute,
    open_node,
)
from .requests import (
    Status,
    alloc,
    alloc_int64s,
    free_blocks,
    make_output,
    open_request,
    parallel_for,
    set_shape,
    shape_of,
    write_status_output,
)
from .sampling import SENTENCES as SAMPLE_SENTENCES
from .sampling import WRONG_INTERFACE_INDEX, create_sample_state
from .sampling import compute as compute_sample
from .sampling import state_fields as sample_fields
from .sentences import (
    NO_ERROR,
    NO_MEMORY_SENTENCE,
    SentenceTable,
    encode,
    error_status,
    integer_argument,
    no_memory,
    shape_argument,
    strlen,
    text_argument,
)
from .structs import BASIC_STATE, FILL, GRID_SAMPLE_STATE, NODE, OP, REQUEST, TEXT

normalize = register_jitable(reference_coordinates.normalize)

_GRID_TOO_LARGE = ErrorTemplate("grid", "for size {size}", "fewer bytes than an address can reach")
#: The arguments of the error messages about the values of size, as :func:`_size_arguments` returns
#: them.
_SIZE_ARGUMENTS = ("theta", "size", "N", "axes", "axis", "length")
_TABLE = SentenceTable(
    {
        "NO_MEMORY": encode(NO_MEMORY_SENTENCE, "nbytes"),
        "THETA_SHAPE_INVALID": encode(templates.THETA_SHAPE_INVALID, "theta"),
        "SIZE_NOT_1D": encode(templates.SIZE_NOT_1D, "size", type="int64"),
        "SIZE_LENGTH_MISMATCH": encode(templates.SIZE_LENGTH_MISMATCH, *_SIZE_ARGUMENTS),
        "SIZE_NEGATIVE": encode(templates.SIZE_NEGATIVE, *_SIZE_ARGUMENTS),
        "SIZE_BATCH_MISMATCH": encode(templates.SIZE_BATCH_MISMATCH, *_SIZE_ARGUMENTS),
        "GRID_TOO_LARGE": encode(_GRID_TOO_LARGE, *_SIZE_ARGUMENTS),
        **LAST_SENTENCES,
    }
)
#: All error messages of an AffineGrid.
SENTENCES = _TABLE.encoded

# The indices of the sentences, as numbers: compiled code reads no dictionary.
THETA_SHAPE_INVALID_INDEX = _TABLE.index("THETA_SHAPE_INVALID")
SIZE_NOT_1D_INDEX = _TABLE.index("SIZE_NOT_1D")
SIZE_LENGTH_MISMATCH_INDEX = _TABLE.index("SIZE_LENGTH_MISMATCH")
SIZE_NEGATIVE_INDEX = _TABLE.index("SIZE_NEGATIVE")
SIZE_BATCH_MISMATCH_INDEX = _TABLE.index("SIZE_BATCH_MISMATCH")
GRID_TOO_LARGE_INDEX = _TABLE.index("GRID_TOO_LARGE")
AFFINE_WRONG_INTERFACE_INDEX = _TABLE.index("WRONG_INTERFACE")
#: The names of the elements of a size for two and for three spatial axes.
SIZE_AXES_2 = SIZE_AXIS_NAMES[2]
SIZE_AXES_3 = SIZE_AXIS_NAMES[3]

_GRID_TYPE_UNKNOWN = ErrorTemplate("grid_type", "{value}", format_choices(spec.FLOATS))
_FUSED_TABLE = SentenceTable(
    {"GRID_TYPE_UNKNOWN": encode(_GRID_TYPE_UNKNOWN, "value")},
    after=[*SAMPLE_SENTENCES, *SENTENCES],
)
#: The error messages of a GridSample with a fused AffineGrid: the GridSample's, the AffineGrid's,
#: and one more.
FUSED_SENTENCES = _FUSED_TABLE.encoded
#: The offset of the AffineGrid's sentences in an array of TEXT, in bytes.
AFFINE_OFFSET = len(SAMPLE_SENTENCES) * TEXT.itemsize
GRID_TYPE_UNKNOWN_INDEX = _FUSED_TABLE.index("GRID_TYPE_UNKNOWN")

#: The values of the attribute ``grid_type``, each followed by a blank.
TYPE_WORDS = "".join(f"{name} " for name in spec.FLOATS)
#: The number of inputs of a fused op: X, size and theta.
N_FUSED_INPUTS = 3
#: The maximum number of columns in a chunk.
CHUNK = 2048
#: The minimum number of positions in an item of a large grid.
MIN_POSITIONS = 1 << 14
#: The maximum number of columns whose positions a worker of a GridSample stores. They are computed
#: once per worker if there are not more columns, otherwise once per tile.
MAX_COLUMNS = 4096


# --- Creation ---


def states(theta_type: str, size_type: str) -> tuple[Any, list[Fields]]:
    """Return the initial state of an AffineGrid."""
    kernel = {
        "process_items": (fill_for, theta_type),
        "X_size": stored_dtype_of(theta_type).itemsize,
    }
    return BASIC_STATE, [{"kernel": kernel}]


def create(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of an AffineGrid."""
    prefix = c_string("AffineGrid node ")
    return create_single_state(
        op_address, api, info, out, BASIC_STATE, prefix, AFFINE_WRONG_INTERFACE_INDEX
    )


def fused_states(X_type: str, size_type: str, theta_type: str) -> tuple[Any, list[Fields]]:
    """Return the initial states of a GridSample with a fused AffineGrid.

    The first group of states, one per mode, is for a grid of theta's type. It is followed by
    a group for each value of the attribute ``grid_type``.
    """
    return GRID_SAMPLE_STATE, [
        sample_fields(
            X_type,
            grid_type,
            mode,
            prepare_grid=(prepare_grid,),
            coordinates=(coordinates_for, theta_type, grid_type),
            columns=MAX_COLUMNS,
        )
        for grid_type in (theta_type, *spec.FLOATS)
        for mode in COMPILED_MODES
    ]


def create_fused(op_address: Address, api: Address, info: Address, out: Address) -> Status:
    """CreateKernelV2 of a GridSample with a fused AffineGrid."""
    op = record_at(op_address, OP)
    node = local_record(NODE)
    errors_address = open_node(
        node, op, api, info, c_string("GridSample node "), WRONG_INTERFACE_INDEX
    )
    affine_errors = create_errors(
        node,
        c_string("AffineGrid node "),
        c_string("affine_grid_node"),
        op.sentences + AFFINE_OFFSET,
    )
    type_words = c_string(TYPE_WORDS)
    grid_type = choice_attribute(
        node, c_string("grid_type"), type_words, -1, errors_address, GRID_TYPE_UNKNOWN_INDEX
    )
    group = grid_type + 1  # -1, no attribute: the first group, whose grids are of theta's type
    state_address = create_sample_state(node, op, errors_address, group, N_FUSED_INPUTS)
    if state_address != 0:
        state = record_at(state_address, GRID_SAMPLE_STATE)
        align_corners = integer_attribute(node, c_string("affine_grid_align_corners"), 0)
        state.affine_align_corners = align_corners
        state.affine_errors = affine_errors
    return close_node(node, state_address, out)


# --- Computation ---


def compute(state_address: Address, context: Address) -> Status:
    """KernelComputeV2: compute the grid."""
    state = record_at(state_address, BASIC_STATE)
    request = local_record(REQUEST)
    status = open_request(request, state, context, 2)
    if status == 0:
        theta = request.inputs[0]
        size = request.inputs[1]
        status = _check_and_set_grid(request, theta, size, state.kernel.X_size, state.errors)
    status = status or _fill(state, request)
    free_blocks(request.blocks)
    return status


def prepare_grid(request_address: Address) -> Status:
    """Set the grid of a GridSample whose second input is size, and whose third input is theta."""
    request = record_at(request_address, REQUEST)
    errors_address = record_at(request.launch.kernel, GRID_SAMPLE_STATE).affine_errors
    return _check_and_set_grid(request, request.inputs[2], request.inputs[1], 8, errors_address)


@register_jitable
def _check_and_set_grid(
    request: RecordRef, theta: RecordRef, size: RecordRef, itemsize: int, errors_address: Address
) -> Status:
    """Check the inputs of an AffineGrid, and set the shape and the data of ``request.grid``.

    The data are theta's.

    Args:
        request: a REQUEST.
        theta: an INPUT.
        size: an INPUT.
        errors_address: the address of the AffineGrid's ERRORS.
    """
    theta_shape = shape_of(theta)
    size_shape = shape_of(size)
    r = theta_shape[1] if len(theta_shape) == 3 else 0
    if (r != 2 and r != 3) or theta_shape[2] != r + 1:
        arguments = (shape_argument(theta_shape),)
        return error_status(request.api, errors_address, THETA_SHAPE_INVALID_INDEX, arguments)
    if len(size_shape) != 1:
        arguments = (shape_argument(size_shape),)
        return error_status(request.api, errors_address, SIZE_NOT_1D_INDEX, arguments)
    lengths = alloc_int64s(request, size_shape[0])
    if len(lengths) != size_shape[0]:
        return no_memory(request.api, errors_address, 8 * size_shape[0])
    # A copy, so that no other thread changes the lengths after they were checked.
    memcpy(np.int64(lengths.ctypes.data), size.data, 8 * len(lengths))
    sentence_index = _check_size(lengths, theta_shape, r, itemsize)
    if sentence_index != NO_ERROR:
        size_arguments = _size_arguments(lengths, theta_shape, r)
        return error_status(request.api, errors_address, sentence_index, size_arguments)
    grid_shape = alloc_int64s(request, r + 2)
    if len(grid_shape) == 0:
        return no_memory(request.api, errors_address, 8 * (r + 2))
    grid_shape[0] = lengths[0]
    for axis in range(r):
        grid_shape[axis + 1] = lengths[axis + 2]
    grid_shape[r + 1] = r
    request.grid.data = theta.data
    set_shape(request.grid, grid_shape)
    return 0


@register_jitable
def _check_size(size: ArrayRef, theta_shape: ArrayRef, r: int, itemsize: int) -> int:
    """Check the values of ``size``; return NO_ERROR, or the index of a sentence about them."""
    smallest = 0
    nbytes = float(itemsize * r)
    for axis in range(len(size)):
        smallest = min(smallest, size[axis])
        if axis != 1:  # the grid has no channels
            nbytes *= float(max(size[axis], 1))
    if len(size) != r + 2:
        return SIZE_LENGTH_MISMATCH_INDEX
    if smallest < 0:
        return SIZE_NEGATIVE_INDEX
    if size[0] != theta_shape[0]:
        return SIZE_BATCH_MISMATCH_INDEX
    if nbytes >= 2.0**63:
        return GRID_TOO_LARGE_INDEX
    return NO_ERROR


@register_jitable
def _size_arguments(size: ArrayRef, theta_shape: ArrayRef, r: int) -> Any:
    """Return :data:`_SIZE_ARGUMENTS`. The last two are the first negative length and its axis."""
    axes = c_string(SIZE_AXES_2) if r == 2 else c_string(SIZE_AXES_3)
    index = 0
    while index < len(size) - 1 and size[index] >= 0:
        index += 1
    # Names of one letter, with a separator of two characters: (N, C, H, W)
    axis = text_argument(axes + 1 + 3 * min(index, r + 1), 1)
    return (
        shape_argument(theta_shape),
        shape_argument(size),
        integer_argument(theta_shape[0]),
        text_argument(axes, strlen(axes)),
        axis,
        integer_argument(size[index] if len(size) > 0 else 0),
    )


@register_jitable
def _fill(state: RecordRef, request: RecordRef) -> int:
    """Create the grid as the output, and fill it on ONNX Runtime's threads."""
    grid_shape = shape_of(request.grid)
    task = local_record(FILL)
    status, task.grid = make_output(request, grid_shape)
    if status != 0:
        return status
    n = grid_shape[0]
    r = len(grid_shape) - 2
    columns = grid_shape[-2]
    rows = 1
    for axis in range(r - 1):
        rows *= grid_shape[axis + 1]
    if n * rows * columns == 0:
        return 0
    task.theta = request.grid.data
    task.lengths = np.int64(grid_shape[1:].ctypes.data)
    task.align_corners = state.kernel.align_corners
    task.n = n
    task.r = r
    task.rows = rows
    task.columns = columns
    chunk = min(columns, CHUNK)
    task.column_chunks = (columns + chunk - 1) // chunk
    task.rows_per_block = min(rows, (MIN_POSITIONS + chunk - 1) // chunk)
    task.row_blocks = (rows + task.rows_per_block - 1) // task.rows_per_block
    task.items = n * task.row_blocks * task.column_chunks
    task.next_item = 0
    workers = min(task.items, max(DEFAULT_WORKERS, state.kernel.cpus))
    task.workers = workers
    nbytes = workers * CHUNK * 8
    task.positions = round_up_to_line(alloc(request, nbytes + CACHE_LINE))
    task.buffers = round_up_to_line(alloc(request, 3 * nbytes + CACHE_LINE))
    if request.lacks_memory != 0:
        return no_memory(request.api, state.errors, 4 * nbytes)
    arguments = (request.context, state.kernel.process_items, workers, 0, address_of(task))
    return parallel_for(request.api, arguments)


@register_jitable
def normalized_position(i: int, length: int, align_corners: int) -> float:
    """Return the normalized position of pixel ``i`` of an axis.

    It is that of :func:`ort_gridsample.reference.affine.affine_grid`.
    """
    last = float(length - 1)
    return normalize(float(i), last, max(last, 1.0) if align_corners != 0 else float(length))


@register_jitable
def _fill_positions(x: ArrayRef, first: int, length: int, align_corners: int) -> None:
    """Write the normalized positions of the pixels of an axis from ``first`` on to ``x``."""
    real = x.dtype.type
    for i in range(len(x)):
        x[i] = real(normalized_position(first + i, length, align_corners))


@register_jitable
def base_and_factor(
    theta: ArrayRef, lengths: ArrayRef, row: int, rows: int, align_corners: int
) -> Any:
    """Return how a coordinate depends on the position along a row of the grid.

    Args:
        theta: theta's row (r + 1,) for the coordinate.
        lengths: the lengths (r,) of the grid's axes.
        rows: the number of rows in a batch.

    Returns:
        base and factor: the coordinate is base + position * factor.
    """
    # From the outermost axis inward. The last factors of theta's row are those of the outermost
    # axes.
    base = widened(theta[-1])
    r = len(lengths)
    real = type(base)
    for axis in range(r - 1):
        rows //= lengths[axis]
        outer_position = real(normalized_position(row // rows, lengths[axis], align_corners))
        base += outer_position * widened(theta[r - 1 - axis])
        row %= rows
    return base, widened(theta[0])


@compiles_in(1.8)
def fill_for(theta_type: str) -> Callable[..., int]:
    """Return the worker of an AffineGrid, for ``KernelContext_ParallelFor``.

    It fills items of the grid until none is left.
    """
    stored_dtype = stored_dtype_of(theta_type)
    itemsize = stored_dtype.itemsize
    position_dtype = np.dtype(spec.TYPES[theta_type].compute)
    round_value = HALVES.get(theta_type, NO_CONVERSION).round

    def fill(task_address: Address, number: int) -> int:
        task = record_at(task_address, FILL)
        align_corners = task.align_corners
        r = task.r
        rows = task.rows
        columns = task.columns
        lengths = array_at(task.lengths, (r,), np.int64)
        theta = array_at(task.theta, (task.n, r, r + 1), stored_dtype)
        grid = array_at(task.grid, (task.n, rows, columns * r), stored_dtype)
        x = array_at(task.positions, (task.workers, CHUNK), position_dtype)[number]
        buffer = array_at(task.buffers, (task.workers, 3 * CHUNK), stored_dtype)[number]
        writes_past_caches = task.n * rows * columns * r * itemsize >= MIN_BYTES_PAST_CACHES
        while True:
            item = fetch_add(task, "next_item", 1)
            if item >= task.items:
                return 0
            begin = item % task.column_chunks * CHUNK
            block = item // task.column_chunks % task.row_blocks
            batch = item // task.column_chunks // task.row_blocks
            count = min(CHUNK, columns - begin)
            _fill_positions(x[:count], begin, columns, align_corners)
            first_row = block * task.rows_per_block
            for row in range(first_row, min(first_row + task.rows_per_block, rows)):
                destination = grid[batch, row, begin * r : (begin + count) * r]
                out = buffer[: count * r] if writes_past_caches else destination
                for coordinate in range(r):
                    factors = theta[batch, coordinate]
                    base, factor = base_and_factor(factors, lengths, row, rows, align_corners)
                    for i in range(count):
                        out[r * i + coordinate] = round_value(base + x[i] * factor)
                if writes_past_caches:
                    copy_past_caches(destination, out)

    return fill


@compiles_in(2.0)
def coordinates_for(theta_type: str, grid_type: str) -> Callable[..., int]:
    """Return the function that computes the coordinates of a tile of a fused AffineGrid.

    Args:
        theta_type: the type of theta, in which the coordinates are computed.
        grid_type: the type of the GridSample's grid, to which the coordinates are converted.
    """
    stored_dtype = stored_dtype_of(theta_type)
    theta_half = HALVES.get(theta_type, NO_CONVERSION)
    round_theta = theta_half.round
    widen_theta = theta_half.widen
    grid_half = HALVES.get(grid_type, NO_CONVERSION)
    round_grid = grid_half.round
    widen_grid = grid_half.widen
    real = np.dtype(spec.TYPES[theta_type].compute).type
    grid_real = np.dtype(spec.TYPES[grid_type].compute).type

    def coordinates(
        launch_address: Address,
        worker_address: Address,
        batch: int,
        begin: int,
        positions: int,
    ) -> int:
        launch = record_at(launch_address, LAUNCH)
        worker = record_at(worker_address, WORKER)
        align_corners = record_at(launch.kernel, GRID_SAMPLE_STATE).affine_align_corners
        r = launch.r
        lengths = array_at(launch.out_lengths, (r,), np.int64)
        columns = lengths[r - 1]
        rows = 1
        for axis in range(r - 1):
            rows *= lengths[axis]
        x = scratch_array(launch, worker_address, "columns", real)
        if columns <= MAX_COLUMNS and worker.has_columns == 0:
            _fill_positions(x[:columns], 0, columns, align_corners)
            worker.has_columns = 1
        theta = array_at(launch.grid, (launch.n, r, r + 1), stored_dtype)[batch]
        normalized = scratch_array(launch, worker_address, "coordinates", grid_real)
        start = 0  # of the row, or of a part of it, in the tile
        while start < positions:
            row = (begin + start) // columns
            column = (begin + start) % columns
            count = min(positions - start, columns - column)
            if columns > MAX_COLUMNS:
                count = min(count, MAX_COLUMNS)
                _fill_positions(x[:count], column, columns, align_corners)
                column = 0
            for axis in range(r):
                row_coordinates = normalized[axis, start:]
                # The first row of theta is that of the innermost axis.
                base, factor = base_and_factor(
                    theta[r - 1 - axis], lengths, row, rows, align_corners
                )
                for i in range(count):
                    number = widen_theta(round_theta(base + x[column + i] * factor))
                    row_coordinates[i] = grid_real(widen_grid(round_grid(number)))
            start += count
        return 0

    return coordinates


_compute = register_jitable(compute)


def compute_with_status(state_address: Address, context: Address) -> Status:
    """KernelComputeV2 of an op that replaces a Python op, and has its status output."""
    status = _compute(state_address, context)
    return status or write_status_output(record_at(state_address, BASIC_STATE), context)


IMPLEMENTATION = OpImplementation(create, compute, destroy, SENTENCES, states)
WITH_STATUS = IMPLEMENTATION._replace(compute=compute_with_status)
FUSED_IMPLEMENTATION = OpImplementation(
    create_fused, compute_sample, destroy, FUSED_SENTENCES, fused_states
)
