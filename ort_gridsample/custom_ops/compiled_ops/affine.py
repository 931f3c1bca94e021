"""AffineGrid as it runs: as an op of its own, and as the source of the coordinates of a GridSample.

The order of the operations on a position is that of :mod:`ort_gridsample.reference.affine`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from ... import spec
from ...functions import validation
from ...kernels.halves import EXACT, HALVES, stored, widened
from ...kernels.pointers import address, aligned, array, chars, copy_past_caches, fetch_add, local, struct, view
from ...kernels.structs import CACHE_LINE, LAUNCH, WORKER
from ...kernels.workers import PASSED_BYTES, TAPS, WORKERS
from ...reference import coordinates as core_coordinates
from .catalog import Fields, Kernels
from .creation import LAST, choice, close_node, create_plain, destroy, errors_of, integer, open_node
from .requests import free_blocks, keep, make_output, open_request, parallel_for, reserve, shape, write_status_output
from .sampling import IS_OTHER, begin_sample
from .sampling import SENTENCES as SAMPLE_SENTENCES
from .sampling import compute as sample
from .sampling import state as sample_state
from .sentences import NO_ROOM, ROOM, as_bytes, complain, refuse
from .structs import FILL, GRID_SAMPLE, NODE, OP, PLAIN, REQUEST, TEXT

normalize = register_jitable(core_coordinates.normalize)

TOO_LARGE = validation.ErrorTemplate("grid", "for size {size}", "fewer bytes than an address can reach")
_OF_SIZE = validation.SIZE_NOT_1D, validation.SIZE_AXES, validation.SIZE_NEGATIVE, validation.SIZE_BATCHES
_SENTENCES = ROOM, validation.THETA, *_OF_SIZE, TOO_LARGE
N_SENTENCES = len(_SENTENCES)
(GOOD, WRONG_THETA, NO_ROW, WRONG_AXES, NEGATIVE, WRONG_BATCHES, IS_TOO_LARGE) = range(N_SENTENCES)
#: Those of a run are there for 2 and then for 3 spatial axes.
SENTENCES = [as_bytes(each, axes=axes, type="int64") for axes in validation.SIZE.values() for each in _SENTENCES] + LAST
#: Those of an AffineGrid that is fused lie behind the GridSample's.
FUSED_SENTENCES, BEFORE = [*SAMPLE_SENTENCES, *SENTENCES], len(SAMPLE_SENTENCES) * TEXT.itemsize
NO_GRID_TYPE = len(FUSED_SENTENCES)
FUSED_SENTENCES += [as_bytes(validation.ErrorTemplate("grid_type", "{value}", validation.format_choices(spec.FLOATS)))]

#: The types that a fused grid may be rounded to, where it is not of theta's.
TYPE_WORDS = "".join(f"{name} " for name in spec.FLOATS)
#: The columns and the positions that are filled in one go.
CHUNK, WORTH_A_GO = 2048, 1 << 14
#: A worker of a GridSample has the positions of so many columns at a time; of no more, once for all tiles.
MOST_COLUMNS = 4096


def states(theta_type: str, size_type: str) -> tuple[Any, list[Fields]]:
    """The state of an AffineGrid."""
    return PLAIN, [{"kernel": {"worker": (fill_for, theta_type), "X_size": stored(theta_type).itemsize}}]


def create(op_at: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2 of an AffineGrid."""
    return create_plain(op_at, api, info, out, chars("AffineGrid node "), 2 * N_SENTENCES)


def fused_states(X_type: str, size_type: str, theta_type: str) -> tuple[Any, list[Fields]]:
    """The states of a GridSample and its AffineGrid, one a mode: for a grid of theta's type, then of each there is."""
    return GRID_SAMPLE, [
        sample_state(X_type, grid_type, mode, (measure,), (coordinates_for, theta_type, grid_type), MOST_COLUMNS)
        for grid_type in (theta_type, *spec.FLOATS)
        for mode in TAPS
    ]


def create_fused(op_at: int, api: int, info: int, out: int) -> int:
    """CreateKernelV2 of a GridSample and its AffineGrid."""
    op, node = struct(op_at, OP), local(NODE)
    errors = open_node(node, op, api, info, chars("GridSample node "), IS_OTHER)
    grid_errors = errors_of(node, chars("AffineGrid node "), chars("affine_grid_node"), op.sentences + BEFORE)
    kind = choice(node, chars("grid_type"), chars(TYPE_WORDS), -1, errors, NO_GRID_TYPE)
    at = begin_sample(node, op, errors, kind + 1, 3)
    if at != 0:
        made = struct(at, GRID_SAMPLE)
        made.affine_align_corners = integer(node, chars("affine_grid_align_corners"), 0)
        made.affine_sentences = grid_errors
    return close_node(node, at, out)


def compute(op_at: int, context: int) -> int:
    """KernelComputeV2: compute the grid; returns a status, 0 for success."""
    op, request = struct(op_at, PLAIN), local(REQUEST)
    status = open_request(request, op, context, 2)
    status = status or _measure(request, request.inputs[0], request.inputs[1], op.kernel.X_size, op.sentences)
    status = status or _fill(op, request)
    free_blocks(request.blocks)
    return status


def measure(request_at: int) -> int:
    """Set the grid of a GridSample whose second input is size and whose third is theta; returns a status."""
    request = struct(request_at, REQUEST)
    sentences = struct(request.launch.kernel, GRID_SAMPLE).affine_sentences
    return _measure(request, request.inputs[2], request.inputs[1], 8, sentences)


@register_jitable
def _measure(request: Any, theta_input: Any, size_input: Any, nbytes: int, sentences: int) -> int:
    """Set the request's grid, of elements of ``nbytes``: its shape, and as its data theta's; returns a status."""
    theta, size = shape(theta_input), shape(size_input)
    r = theta[1] if len(theta) == 3 else 0
    if (r != 2 and r != 3) or theta[2] != r + 1:
        return refuse(request.api, sentences, WRONG_THETA, theta, theta, 0)
    first = (r - 2) * N_SENTENCES
    if len(size) != 1:
        return refuse(request.api, sentences, first + NO_ROW, theta, size, 0)
    size = array(size_input.data, (size[0],), np.int64)
    wrong, least, total = GOOD, 0, float(nbytes * r)
    for length in size:
        total *= float(max(length, 1))
        least = min(least, length)
    if len(size) != r + 2:
        wrong = WRONG_AXES
    elif least < 0:
        wrong = NEGATIVE
    elif size[0] != theta[0]:
        wrong = WRONG_BATCHES
    elif total >= 2.0**63:
        wrong = IS_TOO_LARGE
    if wrong != GOOD:
        return refuse(request.api, sentences, first + wrong, theta, size, 0)
    grid = keep(request, r + 2)
    if len(grid) == 0:
        return complain(request.api, sentences, NO_ROOM, 8 * (r + 2))
    grid[0], grid[r + 1] = size[0], r
    for axis in range(r):
        grid[axis + 1] = size[axis + 2]
    request.grid.data, request.grid.shape, request.grid.axes = theta_input.data, np.int64(grid.ctypes.data), r + 2
    return 0


@register_jitable
def _fill(op: Any, request: Any) -> int:
    """Allocate the grid as the output, and fill it."""
    grid, launch = shape(request.grid), local(FILL)
    status, launch.grid = make_output(request, grid)
    if status != 0:
        return status
    n, r, columns, rows = grid[0], len(grid) - 2, grid[-2], 1
    for axis in range(r - 1):
        rows *= grid[axis + 1]
    if n * rows * columns == 0:
        return 0
    chunk = min(columns, CHUNK)
    launch.theta, launch.lengths = request.grid.data, np.int64(grid[1:].ctypes.data)
    launch.align_corners, launch.n, launch.r, launch.rows, launch.columns = op.kernel.align_corners, n, r, rows, columns
    launch.chunks = (columns + chunk - 1) // chunk
    launch.step = min(rows, (WORTH_A_GO + chunk - 1) // chunk)
    launch.parts = (rows + launch.step - 1) // launch.step
    launch.items, launch.next = n * launch.parts * launch.chunks, 0
    workers = min(launch.items, max(WORKERS, op.kernel.cpus))
    nbytes, launch.workers = workers * CHUNK * 8, workers
    launch.positions = aligned(reserve(request, nbytes + CACHE_LINE))
    launch.waiting = aligned(reserve(request, 3 * nbytes + CACHE_LINE))
    if request.lacks_memory != 0:
        return complain(request.api, op.sentences, NO_ROOM, 4 * nbytes)
    return parallel_for(request.api, (request.context, op.kernel.worker, workers, 0, address(launch)))


@register_jitable
def position(i: int, length: int, align_corners: int) -> float:
    """Where pixel ``i`` of an axis lies, as :func:`ort_gridsample.reference.affine.positions` says."""
    last = float(length - 1)
    return normalize(float(i), last, max(last, 1.0) if align_corners != 0 else float(length))


@register_jitable
def line(theta: Any, lengths: Any, row: int, rows: int, align_corners: int) -> Any:
    """The base and the factor of a coordinate along one of the grid's ``rows``: base + factor * position.

    ``theta`` is the coordinate's row (r + 1,), ``lengths`` (r,) are those of the grid's axes.
    """
    # From the outermost axis inward, as the last factors of theta's row are the outermost axes'.
    base, r = widened(theta[-1]), len(lengths)
    kind = type(base)
    for axis in range(r - 1):
        rows //= lengths[axis]
        base += kind(position(row // rows, lengths[axis], align_corners)) * widened(theta[r - 1 - axis])
        row %= rows
    return base, widened(theta[0])


def fill_for(theta_type: str) -> Callable[..., int]:
    """What ``KernelContext_ParallelFor`` calls: fill rows of the grid as long as there are any."""
    bits, real = stored(theta_type), np.dtype(spec.TYPES[theta_type].compute)
    rounded, kind, size = HALVES.get(theta_type, EXACT).rounded, real.type, bits.itemsize

    def fill(launch_at: int, number: int) -> int:
        launch = struct(launch_at, FILL)
        align_corners, r, rows, columns = launch.align_corners, launch.r, launch.rows, launch.columns
        lengths = array(launch.lengths, (r,), np.int64)
        theta = array(launch.theta, (launch.n, r, r + 1), bits)
        grid = array(launch.grid, (launch.n, rows, columns * r), bits)
        x = array(launch.positions, (launch.workers, CHUNK), real)[number]
        waiting = array(launch.waiting, (launch.workers, 3 * CHUNK), bits)[number]
        passes = launch.n * rows * columns * r * size >= PASSED_BYTES
        while True:
            item = fetch_add(launch, "next", 1)
            if item >= launch.items:
                return 0
            begin = item % launch.chunks * CHUNK
            part, batch = item // launch.chunks % launch.parts, item // launch.chunks // launch.parts
            count = min(CHUNK, columns - begin)
            for i in range(count):
                x[i] = kind(position(begin + i, columns, align_corners))
            for row in range(part * launch.step, min((part + 1) * launch.step, rows)):
                to = grid[batch, row, begin * r : (begin + count) * r]
                out = waiting[: count * r] if passes else to
                for coordinate in range(r):
                    base, factor = line(theta[batch, coordinate], lengths, row, rows, align_corners)
                    for i in range(count):
                        out[r * i + coordinate] = rounded(base + x[i] * factor)
                if passes:
                    copy_past_caches(to, out)

    return fill


def coordinates_for(theta_type: str, grid_type: str) -> Callable[..., int]:
    """What computes the coordinates of a tile from theta of the one type, for a grid of the other."""
    half, grid_half, bits = HALVES.get(theta_type, EXACT), HALVES.get(grid_type, EXACT), stored(theta_type)
    from_half, rounded, grid_widened, grid_rounded = half.widened, half.rounded, grid_half.widened, grid_half.rounded
    real, coordinate = np.dtype(spec.TYPES[theta_type].compute), np.dtype(spec.TYPES[grid_type].compute)
    kind, to = real.type, coordinate.type

    def coordinates(launch_at: int, worker_at: int, batch: int, begin: int, positions: int) -> int:
        launch, worker = struct(launch_at, LAUNCH), struct(worker_at, WORKER)
        align_corners = struct(launch.kernel, GRID_SAMPLE).affine_align_corners
        r, most = launch.r, MOST_COLUMNS
        lengths = array(launch.out_lengths, (r,), np.int64)
        columns, rows = lengths[r - 1], 1
        for axis in range(r - 1):
            rows *= lengths[axis]
        x = view(worker, launch.scratch.columns, (most,), kind)
        if columns <= most and worker.has_columns == 0:
            for i in range(columns):
                x[i] = kind(position(i, columns, align_corners))
            worker.has_columns = 1
        theta = array(launch.grid, (launch.n, r, r + 1), bits)[batch]
        g = view(worker, launch.scratch.coordinates, (r, launch.tile), to)
        done = 0
        while done < positions:
            row, column = (begin + done) // columns, (begin + done) % columns
            count = min(positions - done, columns - column)
            if columns > most:
                count = min(count, most)
                for i in range(count):
                    x[i] = kind(position(column + i, columns, align_corners))
                column = 0
            for axis in range(r):
                along = g[axis, done:]
                # The innermost axis is theta's first.
                base, factor = line(theta[r - 1 - axis], lengths, row, rows, align_corners)
                for i in range(count):
                    number = from_half(rounded(base + x[column + i] * factor))
                    along[i] = to(grid_widened(grid_rounded(number)))
            done += count
        return 0

    return coordinates


_compute = register_jitable(compute)


def compute_with_status(op_at: int, context: int) -> int:
    """KernelComputeV2 of an op that stands in for a Python op, with its status output."""
    return _compute(op_at, context) or write_status_output(struct(op_at, PLAIN), context)


KERNELS = Kernels(create, compute, destroy, SENTENCES, states)
WITH_STATUS = KERNELS._replace(compute=compute_with_status)
FUSED = Kernels(create_fused, sample, destroy, FUSED_SENTENCES, fused_states)
