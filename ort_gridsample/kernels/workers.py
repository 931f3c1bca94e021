"""GridSample in compiled code: the division of a launch into work, and the work of a thread.

A launch is one call of the operator, a :data:`~.structs.LAUNCH`. Its output positions are divided
into chunks, and a chunk into tiles. For a tile, kernels of :mod:`.kernel_factories` compute the
coordinates, and sample X in vectors (:mod:`.vector_sampling`). Where that is not possible,
:func:`.tiles.fill_table_from_coordinates` computes a table of taps (:mod:`.tap_table`), and
``read`` reads X through the table into Y (:mod:`.tap_sums`).

How a launch is divided is its plan (``launch.plan``), which is made once and then only read. What
changes is its progress (``launch.progress``): the phase, and the next item, which a worker takes::

    make the plan
    for each round of the plan:
        for each phase of PHASES_OF_ROUND[plan.packing]:
            workers process the items of the phase
    if some channels are not packed:
        workers process the items of a phase READING
    free the memory

:mod:`.jit_core` or a compiled op fills a LAUNCH and calls :func:`proceed`. As long as this returns
a number of workers, that many threads call :func:`process_items`. In arguments, ``launch_address``
is the address of the LAUNCH and ``worker_address`` that of the thread's :data:`~.structs.WORKER`,
at the beginning of its scratch memory.
"""

from numba.extending import register_jitable

from . import helper_threads, tap_table
from .compilation import compiles_in
from .packing import panel_count, plan_packing, plan_without_packing
from .pointers import address_of, arena_alloc, call, fetch_add, free, record_at
from .structs import (
    CACHE_LINE,
    END,
    KERNEL,
    LAUNCH,
    NEW,
    PACKING,
    PACKING_AND_READING,
    PHASES_OF_ROUND,
    READING,
    UNPACKED,
    Address,
    RecordRef,
)
from .tiles import fill_table_from_coordinates, scratch_size, worker_record

# The division of a launch. Its work is measured in taps times channels.

#: The minimum work of a chunk.
MIN_TAPS_PER_CHUNK = 1 << 16
#: The number of chunks of a large launch, unless there are more workers: then one per worker.
CHUNKS_PER_LAUNCH = 64
#: The work after which a worker returns, if it has to return from time to time.
TAPS_PER_PAUSE = 1 << 24
#: The work for a position's part of the table, in channels.
POSITION_OVERHEAD = 8
#: In mode nearest, chunks have at least so many positions, if that leaves work for each thread.
#: With 256 channels, chunks of 256 positions take 1.2 times the time.
MIN_COPIED_POSITIONS = 1024
#: The maximum number of workers if the caller does not know its number of threads, unless there are
#: more processors.
DEFAULT_WORKERS = 64
#: The maximum size of the scratch memory of all workers together.
MAX_SCRATCH_BYTES = 32 << 20
#: The number of phases of a round, by the way of packing.
N_PHASES = tuple(len(phases) - phases.count(END) for phases in PHASES_OF_ROUND)


# --- The phases of a launch ---


@compiles_in(3.3)
def proceed(launch_address: Address) -> int:
    """Begin a launch or, after all workers of a phase have finished, its next phase.

    Args:
        launch_address: the address of a :data:`.structs.LAUNCH`. If its phase is set to
            :data:`END`, the launch is aborted.

    Returns:
        The number of workers of the phase; 0 if the launch has ended and its memory is free; -1 if
        there is not enough memory for the workers. Before it returns, it runs every phase without
        pauses that has one worker, or for which no thread is started.
    """
    launch = record_at(launch_address, LAUNCH)
    count = _next_phase(launch)
    while (
        count > 0
        and launch.plan.packing == UNPACKED
        and launch.progress.items <= launch.plan.items_per_call
        and (count == 1 or _has_helpers(launch, count - 1))
    ):
        # A small launch is a single call of the caller. With four calls and Python between them,
        # two threads gain 4 µs less.
        if count > 1:
            launch.task.wanted_if_started = 0
            helper_threads.make_offers(launch.task, launch.slots, launch.n_slots)
        call(record_at(launch.kernel, KERNEL).process_items, (launch_address, 0))
        if count > 1:
            helper_threads.end_task(launch.task, launch.slots, launch.n_slots)
        count = _next_phase(launch)
    return count


@register_jitable
def _has_helpers(launch: RecordRef, wanted: int) -> bool:
    """Whether this function need not return, so that threads are started for ``wanted`` helpers."""
    if launch.n_slots == 0:
        return False
    n_spinning = helper_threads.count_spinning(launch.slots, launch.n_slots, wanted)
    return min(wanted, launch.startable_helpers) <= n_spinning


@register_jitable
def _next_phase(launch: RecordRef) -> int:
    """Begin a launch or its next phase, as :func:`proceed`."""
    plan = launch.plan
    progress = launch.progress
    if progress.phase == NEW:
        if not _begin(launch):
            return -1
        progress.step = 0
    else:
        progress.step += 1
    phases = N_PHASES[plan.packing]
    steps = plan.rounds * phases
    has_unpacked_channels = plan.packed_channels < launch.c
    if progress.phase == END or progress.step >= steps + has_unpacked_channels:
        _end(launch)
        return 0
    if progress.step < steps:
        _begin_phase(launch, PHASES_OF_ROUND[plan.packing][progress.step % phases])
    else:
        _begin_unpacked_phase(launch)
    count = min(progress.items, plan.workers)
    kernel = record_at(launch.kernel, KERNEL)
    helper_threads.begin_task(launch.task, kernel.process_items, address_of(launch), count - 1)
    return count


@register_jitable
def _begin(launch: RecordRef) -> bool:
    """Make the plan and allocate memory; return whether there is enough."""
    _divide(launch)
    # The scratch memory first: plan_packing() computes a table with worker 0 to see whether the
    # grid is incoherent. It may reduce the number of workers; their memory is not reduced.
    launch.first_worker, launch.memory = arena_alloc(launch.arena, launch.plan.scratch_bytes)
    if launch.first_worker == 0:
        return False
    worker_record(launch, 0).has_columns = 0
    size = plan_packing(launch)
    launch.packed = 0
    launch.packed_memory = 0
    if size > 0:
        launch.packed, launch.packed_memory = arena_alloc(launch.arena, size)
    if launch.packed == 0:  # also if there is not enough memory
        plan_without_packing(launch)
    return True


@register_jitable
def _end(launch: RecordRef) -> None:
    """Free the memory after the last phase, or if the caller aborts the launch."""
    launch.progress.phase = END
    free(launch.packed_memory)
    free(launch.memory)
    # In case the caller is interrupted before it sees the result, and calls again.
    launch.memory = 0
    launch.packed_memory = 0


@register_jitable
def _begin_phase(launch: RecordRef, phase: int) -> None:
    """Set the progress to the beginning of a ``phase``, of the round of the launch's step."""
    plan = launch.plan
    progress = launch.progress
    number = progress.step // N_PHASES[plan.packing]
    progress.first_batch = number // plan.groups_per_batch * plan.batches_at_once
    group = number % plan.groups_per_batch
    progress.first_channel = group * plan.panels_at_once * plan.panel_channels
    batches = min(plan.batches_at_once, launch.n - progress.first_batch)
    if phase == PACKING_AND_READING:
        progress.items = launch.n * plan.groups_per_batch * plan.shares
    elif phase == PACKING:
        panels = panel_count(launch, progress.first_channel)
        progress.items = batches * panels * plan.parts_per_panel
    else:
        progress.items = batches * plan.chunks_per_batch
    progress.phase = phase
    progress.next_item = 0
    if phase == PACKING_AND_READING:
        for worker in range(min(progress.items, plan.workers)):
            worker_record(launch, worker).next_position = 0
            worker_record(launch, worker).end_position = 0


@register_jitable
def _begin_unpacked_phase(launch: RecordRef) -> None:
    """Set the progress to the beginning of the phase that reads channels that are not packed."""
    progress = launch.progress
    progress.first_batch = 0
    progress.first_channel = launch.plan.packed_channels
    progress.items = launch.n * launch.plan.chunks_per_batch
    progress.phase = READING
    progress.next_item = 0


# --- The plan ---


@register_jitable
def _divide(launch: RecordRef) -> None:
    """Plan chunks and tiles, the number of workers and their memory."""
    plan = launch.plan
    work = (launch.c + POSITION_OVERHEAD) * launch.taps  # for a position
    plan.chunk_positions = _chunk_positions(launch, work)
    plan.chunks_per_batch = (launch.positions + plan.chunk_positions - 1) // plan.chunk_positions
    plan.items_per_call = 1 << 62
    if launch.must_pause:
        plan.items_per_call = max(1, TAPS_PER_PAUSE // (work * plan.chunk_positions))
    max_tile = min(tap_table.MAX_TILE_POSITIONS, tap_table.MAX_TILE_TAPS // launch.taps)
    if launch.c <= tap_table.FEW_CHANNELS:
        max_tile = min(max_tile, tap_table.MAX_TILE_POSITIONS_OF_FEW_CHANNELS)
    if max_tile > CACHE_LINE:
        # Whole vectors of any type: the remaining positions of a tile are summed one by one.
        max_tile &= -CACHE_LINE
    plan.tile_positions = max(1, min(max_tile, launch.positions))
    plan.table_columns = plan.tile_positions + tap_table.ROW_PADDING
    plan.worker_size = scratch_size(launch)
    # Work that is not worth two chunks is not worth a second worker, even if it has several
    # batches.
    useful_workers = 1 + launch.n * launch.positions * work // MIN_TAPS_PER_CHUNK
    fitting_workers = max(1, MAX_SCRATCH_BYTES // plan.worker_size)
    plan.workers = min(launch.workers, fitting_workers, useful_workers)
    plan.scratch_bytes = plan.workers * plan.worker_size


@register_jitable
def _chunk_positions(launch: RecordRef, work: int) -> int:
    """Return the number of positions of a chunk. ``work`` is the work for a position."""
    min_chunk = MIN_TAPS_PER_CHUNK // work
    max_chunk = max(1, TAPS_PER_PAUSE // work)
    all_positions = launch.n * launch.positions
    even_chunk = all_positions // max(CHUNKS_PER_LAUNCH, launch.workers)
    kernel = record_at(launch.kernel, KERNEL)
    if kernel.copy_size != 0:  # mode nearest
        threads = max(1, min(launch.workers, kernel.cpus))
        min_chunk = max(min_chunk, min(MIN_COPIED_POSITIONS, all_positions // threads))
    chunk = min(max(min_chunk, even_chunk), max_chunk)
    # A multiple of CACHE_LINE positions, so that chunks of any type are whole cache lines. At least
    # one multiple, as ``chunk`` may be 0.
    return min((chunk + CACHE_LINE) & -CACHE_LINE, launch.positions)


# --- The work of a thread ---


@compiles_in(1.2)
def process_items(launch_address: Address, number: int) -> int:
    """Process items of the launch's phase, until there are none or it is time for a pause.

    Args:
        launch_address: the address of a :data:`.structs.LAUNCH`.
        number: the number of the worker.

    Returns:
        1 if there may be more items, otherwise 0.
    """
    launch = record_at(launch_address, LAUNCH)
    plan = launch.plan
    progress = launch.progress
    worker = worker_record(launch, number)
    phase = progress.phase
    worker.has_columns = 0
    for _ in range(plan.items_per_call):
        if phase == PACKING_AND_READING and worker.next_position < worker.end_position:
            _sample_group(launch, worker)
            continue
        item = fetch_add(progress, "next_item", 1)
        if item >= progress.items:
            return 0
        if phase == PACKING_AND_READING:
            _pack_group(launch, worker, number, item)
            _sample_group(launch, worker)
        elif phase == PACKING:
            parts = panel_count(launch, progress.first_channel) * plan.parts_per_panel
            batch = item // parts
            part = item % parts
            source = progress.first_batch + batch
            first_panel = batch * plan.panels_at_once
            _pack(launch, first_panel, source, progress.first_channel, part, part + 1)
        else:
            batch = item // plan.chunks_per_batch
            start = item % plan.chunks_per_batch * plan.chunk_positions
            stop = min(start + plan.chunk_positions, launch.positions)
            worker.first_panel = batch * plan.panels_at_once
            worker.first_channel = progress.first_channel
            worker.n_panels = panel_count(launch, worker.first_channel)
            _sample(launch, worker, progress.first_batch + batch, start, stop)
    return 1


@register_jitable
def _pack_group(launch: RecordRef, worker: RecordRef, number: int, item: int) -> None:
    """Pack a group of panels, which the worker with this ``number`` reads afterwards."""
    plan = launch.plan
    group = item // plan.shares
    channel = group % plan.groups_per_batch * plan.panels_at_once * plan.panel_channels
    count = panel_count(launch, channel)
    worker.batch = group // plan.groups_per_batch
    worker.first_panel = number * plan.panels_at_once
    worker.first_channel = channel
    worker.n_panels = count
    share = item % plan.shares
    size = launch.positions // plan.shares // CACHE_LINE * CACHE_LINE
    worker.next_position = share * size
    worker.end_position = launch.positions if share == plan.shares - 1 else (share + 1) * size
    end_part = count * plan.parts_per_panel
    _pack(launch, worker.first_panel, worker.batch, channel, 0, end_part)


@register_jitable
def _sample_group(launch: RecordRef, worker: RecordRef) -> None:
    """Sample the next positions of the worker's group: all, or a chunk if the worker must pause."""
    plan = launch.plan
    start = worker.next_position
    count = worker.end_position - start
    if launch.must_pause:
        # Whole tiles: smaller ones take more time for each position.
        tiles = (plan.chunk_positions + plan.tile_positions - 1) // plan.tile_positions
        count = min(count, tiles * plan.tile_positions)
    _sample(launch, worker, worker.batch, start, start + count)
    worker.next_position += count


@register_jitable
def _pack(
    launch: RecordRef,
    first_panel: int,
    batch: int,
    channel: int,
    first_part: int,
    end_part: int,
) -> None:
    """Pack the parts from ``first_part`` up to, not including, ``end_part`` of X[batch, channel:].

    The panels begin with ``first_panel``. Parts are counted across panels.
    """
    plan = launch.plan
    pack = record_at(launch.kernel, KERNEL).pack
    for part in range(first_part, end_part):
        number = part // plan.parts_per_panel
        arguments = (
            address_of(launch),
            first_panel + number,
            batch,
            channel + number * plan.panel_channels,
            part % plan.parts_per_panel,
        )
        call(pack, arguments)


@register_jitable
def _sample(launch: RecordRef, worker: RecordRef, batch: int, start: int, stop: int) -> None:
    """Fill Y[batch, :, start:stop]: the channels of the worker's panels, or those not packed."""
    kernel = record_at(launch.kernel, KERNEL)
    reads_panels = worker.n_panels > 0
    read = kernel.read_packed if reads_panels else kernel.read
    uses_table = reads_panels or launch.plan.uses_table != 0 or kernel.sample_in_vectors == 0
    tile_positions = launch.plan.tile_positions
    for begin in range(start, stop, tile_positions):
        size = min(tile_positions, stop - begin)
        tile = (address_of(launch), address_of(worker), batch, begin, size)
        call(kernel.coordinates, tile)
        if not uses_table and call(kernel.sample_in_vectors, tile) != 0:
            continue
        buffer = fill_table_from_coordinates(launch, worker, size)
        call(read, (address_of(launch), address_of(worker), buffer, batch, begin, size))
