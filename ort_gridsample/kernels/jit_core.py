"""The compiled core: it runs compiled kernels on NumPy arrays, on the package's own threads.

The kernels are those of a library, if it has them (:mod:`.library_kernels`). Numba compiles other
kernels. Without Numba, calls that need them run on the NumPy core.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import math
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from types import ModuleType
from typing import Any, Final, NamedTuple, SupportsIndex

import numpy as np

from .. import versions
from ..reference import sampler
from ..reference.arrays import Array, Floats, Indices, data_address
from ..reference.plan import Plan, type_name
from ..reference.taps import MAX_TAPS
from ..system.cpus import available_cpus
from ..system.num_threads import resolve_num_threads
from ..system.process import after_fork
from ..system.threads import submit, wake_up_time
from .library_kernels import kernel_name, library_kernels
from .structs import (
    ATTENTION_LAUNCH,
    END,
    KERNEL,
    LAUNCH,
    MAX_LEVEL_AXES,
    MAX_PIXELS,
    NEW,
    PROGRESS,
    SLOT,
    ctypes_type,
)
from .tap_plans import PADDING_CODES, TAPS

logger = logging.getLogger("ort_gridsample")

#: The name of this core, as :func:`ort_gridsample.set_core` takes it.
NAME: Final = "jit"

#: The work for each helper of a launch. In a loop of calls the helpers spin.
WORK_PER_HELPER = 1 << 16
#: The same for a call without a recent one, for each nanosecond in which a thread wakes up. It is
#: three times the work that is done in the meantime.
WORK_PER_NANOSECOND = 21
#: The maximum time between two calls of a loop, in nanoseconds. Helpers spin longer, so that a loop
#: starts their threads once.
MAX_PAUSE_OF_LOOP = 250_000
#: The time after which threads of helpers that have not started may be started again, in
#: nanoseconds.
MAX_TIME_OF_START = 20_000_000
#: Each thread keeps this many bytes of scratch memory for its next call. Fresh memory costs more
#: than writing to it.
KEPT_BYTES = 1 << 21
#: The process keeps the memory of one call that needs more, such as panels, up to this size. To get
#: as much from the system again, page by page, takes up to six times as long as the call: 9 ms for
#: 16 channels of 480×640 (:class:`_LargeMemory`).
MAX_KEPT_LARGE_BYTES = 1 << 25
#: It is freed after so many large calls that do not need it.
MAX_UNNEEDED_CALLS = 64
#: The work of a large call. No other call needs more than a thread keeps.
MIN_WORK_OF_LARGE_CALL = 1 << 18
#: The number of slots for helpers. A caller may ask for more threads than the machine has
#: processors.
MAX_HELPERS = max(63, available_cpus() - 1)
MAX_WORKERS = MAX_HELPERS + 1

#: The functions of helper threads that Numba compiles, by field of :class:`_CoreFunctions`. Empty
#: until Numba is needed.
_HELPER_FUNCTIONS: dict[str, tuple[Any, ...]] = {}
_Kernel: Any = ctypes_type(KERNEL)
_Launch: Any = ctypes_type(LAUNCH)
_Attention: Any = ctypes_type(ATTENTION_LAUNCH)


#: The first fields of a LAUNCH: its arguments, its arena and its phase. Those that change together
#: are packed before, in three groups. To pack all takes a fifth of the time of a ctypes structure
#: with keyword arguments.
_LAUNCH_ARGUMENTS = struct.Struct("=4q64s2q24s24s")
_SIZES = struct.Struct("=8q")
_CALLER = struct.Struct("=3q")
_ARENA = struct.Struct("=3q")
assert _LAUNCH_ARGUMENTS.size == LAUNCH.fields["progress"][1] + 8  # type: ignore[index]
assert LAUNCH.names is not None
assert LAUNCH.names[:19] == (
    "kernel",
    "X",
    "grid",
    "Y",
    "n",
    "c",
    "r",
    "pixels",
    "positions",
    "taps",
    "lengths",
    "out_lengths",
    "workers",
    "startable_helpers",
    "slots",
    "n_slots",
    "must_pause",
    "arena",
    "progress",
), "grid_sample packs them in this order"
assert PROGRESS.names is not None
assert PROGRESS.names[0] == "phase"
_ARENA_OFFSET = LAUNCH.itemsize


@cache
def _compiler() -> ModuleType | None:
    """Import Numba and return :mod:`.core_compiler`; return None if Numba cannot be used."""
    try:
        release = importlib.import_module("numba").__version__
        if versions.incompatibility_message("numba", release):
            return None
        from . import core_compiler
    except Exception as error:  # Numba may refuse a newer NumPy with more than an ImportError
        logger.debug("the compiled core does not use Numba: %s", error)
        return None
    _HELPER_FUNCTIONS.update(core_compiler.HELPER_FUNCTIONS)
    return core_compiler


def missing_on_disk(function_specs: Sequence[Any]) -> Sequence[Any]:
    """Return the functions that Numba must compile, as :func:`.compilation.missing_on_disk`."""
    compiler = _compiler()
    return [] if compiler is None else compiler.missing_on_disk(function_specs)


def _position_work() -> int:
    """Return how many taps can be read while those of a position are computed."""
    library = library_kernels()
    if library is not None:
        return int(library.functions.position_work)
    compiler = _compiler()
    if compiler is None:
        raise ImportError("the compiled core needs Numba, or a library with its kernels")
    return int(compiler.POSITION_WORK)


#: The work of a launch is counted in taps: :func:`_position_work` for each position.
POSITION_WORK = _position_work()


class _Workspace:
    """The memory of a call, which its thread keeps for the next one.

    Attributes:
        buffer: the memory: a LAUNCH and the arena.
        launch: the LAUNCH.
        address: the address of the buffer, and of the LAUNCH.
        arena: the fields ``arena`` and ``progress.phase`` of a new launch, packed.
    """

    def __init__(self) -> None:
        self.buffer = (ctypes.c_byte * (_ARENA_OFFSET + KEPT_BYTES))()
        self.launch = _Launch.from_buffer(self.buffer)
        self.address = ctypes.addressof(self.buffer)
        self.arena = _ARENA.pack(self.address + _ARENA_OFFSET, KEPT_BYTES, NEW)


class _LargeMemory:
    """The memory that the process keeps for the next large call, whichever thread makes it.

    NumPy allocates it, because it asks the system for large pages.
    """

    def __init__(self) -> None:
        # One array, or for a while those of calls that ended together. Its methods are atomic.
        self._kept: list[Array] = []
        self._unneeded_calls = 0

    def take(self) -> Array | None:
        """Return the memory, or None if there is none or another thread uses it."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def keep(self, memory: Array | None, wanted: int) -> None:
        """Keep memory for the next call.

        Args:
            memory: the memory of a call, as :meth:`take` returned it.
            wanted: the number of bytes that the call asked for.
        """
        if wanted > KEPT_BYTES:
            self._unneeded_calls = 0
            if wanted <= MAX_KEPT_LARGE_BYTES and (memory is None or memory.nbytes < wanted):
                memory = None  # before more is allocated
                with suppress(MemoryError):  # the call succeeded without it
                    memory = np.empty(-(-wanted // KEPT_BYTES) * KEPT_BYTES, np.uint8)
        elif memory is not None:
            self._unneeded_calls += 1
            if self._unneeded_calls > MAX_UNNEEDED_CALLS:
                memory = None
        if memory is not None and not self._kept:
            self._kept.append(memory)


_thread_local = threading.local()
_large_memory = _LargeMemory()

#: When threads of helpers were started that have not begun to work yet.
_start_time = -MAX_TIME_OF_START


def grid_sample(
    X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: SupportsIndex | None
) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, …, r) into ``Y`` (N, C, …).

    See :mod:`ort_gridsample.functions.cores`.
    """
    call = _prepared_call(
        X.shape,
        X.dtype,
        grid.dtype,
        Y.shape,
        plan.mode,
        plan.padding_mode,
        plan.align_corners,
    )
    if call is None:
        return sampler.grid_sample(X, grid, Y, plan, num_threads)
    functions = call.functions
    X = _contiguous(X)
    grid = _contiguous(grid)
    workers = 1
    startable_helpers = 0
    if call.max_workers > 1:
        workers = min(resolve_num_threads(num_threads), call.max_workers)
        if workers > 1:
            startable_helpers = _startable_helpers(call.work)
    # While the workspace is in use, it is not in _thread_local: a signal handler may sample as
    # well.
    workspace = _thread_local.__dict__.pop("workspace", None) or _Workspace()
    memory = _large_memory.take() if call.is_large else None
    nbytes = KEPT_BYTES if memory is None else memory.nbytes
    _LAUNCH_ARGUMENTS.pack_into(
        workspace.buffer,
        0,
        functions.kernel_address,
        data_address(X),
        data_address(grid),
        data_address(Y),
        call.sizes,
        workers,
        startable_helpers,
        _caller_arguments,
        workspace.arena if memory is None else _ARENA.pack(data_address(memory), nbytes, NEW),
    )
    _run(functions, workspace.launch, workspace.address, startable_helpers)
    _thread_local.workspace = workspace
    if call.is_large:
        _large_memory.keep(memory, nbytes - workspace.launch.arena.nbytes)
    if workers > 1:
        _thread_local.end_of_call = time.perf_counter_ns()


class _PreparedCall(NamedTuple):
    """What the types, shapes and attributes of a call decide."""

    functions: _CoreFunctions
    #: The fields ``n`` to ``out_lengths`` of the LAUNCH, packed.
    sizes: bytes
    #: The lengths of X's spatial axes, whose address is in ``sizes``.
    lengths: Array
    work: int
    max_workers: int
    is_large: bool


@lru_cache(maxsize=256)
def _prepared_call(
    X_shape: tuple[int, ...],
    X_dtype: np.dtype[Any],
    grid_dtype: np.dtype[Any],
    Y_shape: tuple[int, ...],
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> _PreparedCall | None:
    """Prepare a call of :func:`grid_sample`; return None if it runs on the NumPy core."""
    n, c = Y_shape[:2]
    positions = math.prod(Y_shape[2:])
    lengths = X_shape[2:]
    pixels = math.prod(lengths)
    taps_per_position = TAPS.get(mode, 0) ** len(lengths)
    X_type = type_name(X_dtype)
    has_kernels = mode in TAPS and padding_mode in PADDING_CODES
    is_string = X_type == "str"  # Numba does not support arrays of strings or objects
    # The index of a tap has 31 bits.
    is_small = pixels <= MAX_PIXELS and taps_per_position <= MAX_TAPS
    if not has_kernels or is_string or not is_small:
        return None
    functions = _sampling_functions(
        X_type, type_name(grid_dtype), mode, padding_mode, align_corners
    )
    if functions is None:
        return None
    work = n * positions * (POSITION_WORK + c * taps_per_position)
    kept_lengths = np.array(lengths, np.int64)
    return _PreparedCall(
        functions=functions,
        sizes=_SIZES.pack(
            n, c, len(lengths), pixels, positions, taps_per_position, data_address(kept_lengths), 0
        ),
        lengths=kept_lengths,
        work=work,
        max_workers=min(MAX_WORKERS, work // WORK_PER_HELPER + 1),
        is_large=work >= MIN_WORK_OF_LARGE_CALL,
    )


def deformable_attention(
    value: Array,
    levels: Indices,
    locations: Floats,
    weights: Floats,
    Y: Array,
    plan: Plan,
    num_threads: int,
) -> None:
    """Add up weighted samples of ``value`` into ``Y`` (B, Q, H, D).

    See :mod:`ort_gridsample.functions.cores`.
    """
    n, queries, heads, channels = Y.shape
    pixels = value.shape[1]
    r = locations.shape[-1]
    functions = None
    if r <= MAX_LEVEL_AXES and pixels <= MAX_PIXELS:
        functions = _attention_functions(type_name(value.dtype), type_name(locations.dtype))
    if functions is None:
        return sampler.deformable_attention(value, levels, locations, weights, Y, plan, num_threads)
    value = _contiguous(value)
    levels = _contiguous(levels)
    locations = _contiguous(locations)
    weights = _contiguous(weights)
    launch = _Attention(
        value=data_address(value),
        locations=data_address(locations),
        weights=data_address(weights),
        Y=data_address(Y),
        channels_first=int(not Y.flags.c_contiguous),
        levels=data_address(levels),
        n=n,
        pixels=pixels,
        heads=heads,
        channels=channels,
        queries=queries,
        weight_queries=weights.shape[1],
        points=weights.shape[3],
        r=r,
        n_levels=len(levels),
        align_corners=plan.align_corners,
        process_items=ctypes.cast(functions.process_items, ctypes.c_void_p).value,
        must_pause=1,
    )
    # Counted by the locations: the weights may be those of one query for all.
    points = locations.size // r
    work = points * (POSITION_WORK + (channels << r))
    launch.workers = min(num_threads, MAX_WORKERS, work // WORK_PER_HELPER + 1)
    startable_helpers = 0 if launch.workers == 1 else _startable_helpers(work)
    workspace = _thread_local.__dict__.pop("workspace", None) or _Workspace()
    launch.arena.start = workspace.address + _ARENA_OFFSET
    launch.arena.nbytes = KEPT_BYTES
    _run(functions, launch, ctypes.addressof(launch), startable_helpers)
    _thread_local.workspace = workspace
    if launch.workers > 1:
        _thread_local.end_of_call = time.perf_counter_ns()


def _run(
    functions: _CoreFunctions, launch: Any, launch_address: int, startable_helpers: int
) -> None:
    """Run all phases of a ``launch``. The threads of so many helpers may be started."""
    try:
        while (n_workers := functions.proceed(launch_address)) > 0:
            if n_workers > 1:
                launch.task.wanted_if_started = startable_helpers
            _run_phase(functions, launch, launch_address, n_workers)
    except BaseException:
        # Helpers use the memory that the last phase frees. A signal handler may have raised before
        # the phase waited for them.
        functions.withdraw_and_wait(ctypes.addressof(launch.task), *_slots_arguments)
        launch.progress.phase = END
        functions.proceed(launch_address)
        raise
    if n_workers < 0:
        raise MemoryError(f"cannot allocate {launch.plan.scratch_bytes} bytes of scratch memory")


def _startable_helpers(work: int) -> int:
    """Return the number of helpers whose threads may be started for so much ``work``.

    None are started while threads of an earlier call are starting: they need the GIL, which a loop
    of calls leaves to them late. Each call would start more threads, which find nothing to do.
    """
    if time.perf_counter_ns() - _start_time < MAX_TIME_OF_START:
        return 0
    return work // _work_per_helper()


def _work_per_helper() -> int:
    """Return the work for each helper of a call whose thread must be started."""
    now = time.perf_counter_ns()
    if now - getattr(_thread_local, "end_of_call", -MAX_PAUSE_OF_LOOP) < MAX_PAUSE_OF_LOOP:
        return WORK_PER_HELPER
    return max(WORK_PER_HELPER, int(WORK_PER_NANOSECOND * wake_up_time.average(now)))


def _run_phase(functions: _CoreFunctions, launch: Any, launch_address: int, n_workers: int) -> None:
    """Run a phase of the launch in this thread and helper threads. All have finished afterwards."""
    task_address = ctypes.addressof(launch.task)
    try:
        if n_workers > 1:
            n_threads = functions.offer_task(task_address, *_slots_arguments)
            if n_threads:
                _start_helpers(functions, n_threads)
        # Between these calls Python handles signals.
        while functions.process_items(launch_address, 0):
            pass
    except BaseException:
        # The helpers stop after their current item.
        launch.progress.next_item = launch.progress.items
        raise
    finally:
        if n_workers > 1:
            functions.withdraw_and_wait(task_address, *_slots_arguments)


def _start_helpers(functions: _CoreFunctions, count: int) -> None:
    """Start the threads of ``count`` helpers."""
    global _start_time
    _start_time = time.perf_counter_ns()
    submit(partial(_help, functions), count)


def _help(functions: _CoreFunctions) -> Any:
    """Work on tasks of calls, in a helper's thread."""
    global _start_time
    _start_time = -MAX_TIME_OF_START
    return functions.helper_loop(*_slots_arguments)


class _CoreFunctions(NamedTuple):
    """The C functions for one combination of types and attributes."""

    #: The kernel descriptor, and its address; None and 0 for deformable attention.
    kernel: Any
    kernel_address: int
    # Functions of :mod:`.workers` or :mod:`.attention`.
    proceed: ctypes._FuncPointer
    process_items: ctypes._FuncPointer
    # Functions of :mod:`.helper_threads`.
    offer_task: ctypes._FuncPointer
    withdraw_and_wait: ctypes._FuncPointer
    helper_loop: ctypes._FuncPointer


#: Field of :class:`_CoreFunctions` -> the number of arguments of the C function, which are int64.
_N_ARGUMENTS = {
    "proceed": 1,
    "process_items": 2,
    "offer_task": 3,
    "withdraw_and_wait": 3,
    "helper_loop": 2,
}


@cache
def _sampling_functions(
    X_type: str,
    grid_type: str,
    mode: str,
    padding_mode: str,
    align_corners: bool,
) -> _CoreFunctions | None:
    """Return the functions of a GridSample, compiled if necessary; None if that is impossible."""
    from_library = _library_functions("GridSample", X_type, grid_type, mode)
    if from_library is not None:
        kernel, compiled = from_library
    else:
        compiler = _compiler()
        if compiler is None:
            return None
        function_specs = compiler.kernel_functions(X_type, grid_type, mode)
        compiled = _compile({**function_specs, **_HELPER_FUNCTIONS})
        kernel = _Kernel(
            **{name: compiled[name] for name in function_specs},
            **compiler.kernel_constants(X_type, grid_type, mode),
        )
    kernel.padding = PADDING_CODES[padding_mode]
    kernel.align_corners = int(align_corners)
    kernel.cpus = available_cpus()
    return _load_functions(kernel, compiled)


@cache
def _attention_functions(value_type: str, locations_type: str) -> _CoreFunctions | None:
    """Return the functions of deformable attention, as :func:`_sampling_functions`."""
    from_library = _library_functions("DeformableAttention", value_type, locations_type)
    if from_library is not None:
        return _load_functions(None, from_library[1])
    compiler = _compiler()
    if compiler is None:
        return None
    proceed, process_items = compiler.attention_functions(value_type, locations_type)
    compiled = _compile({"proceed": proceed, "process_items": process_items, **_HELPER_FUNCTIONS})
    return _load_functions(None, compiled)


def _library_functions(operator: str, *types: str) -> tuple[Any, dict[str, int]] | None:
    """Return a copy of a kernel of the library, and the addresses of the functions of a call.

    Return None if there is no library, or if it lacks the kernel.

    Args:
        operator: as in :func:`.library_kernels.kernel_name`.
        types: as there.
    """
    library = library_kernels()
    found = None if library is None else library.kernels.get(kernel_name(operator, *types))
    if library is None or found is None:
        return None
    kernel = _Kernel.from_buffer_copy(found)
    compiled = {name: getattr(kernel, name) for name in ("proceed", "process_items")}
    for name in ("offer_task", "withdraw_and_wait", "helper_loop"):
        compiled[name] = getattr(library.functions, name)
    return kernel, compiled


def _compile(function_specs: Mapping[str, tuple[Any, ...] | None]) -> dict[str, int]:
    """Return the addresses of the compiled functions, by the same names; 0 for None."""
    compiler = _compiler()
    assert compiler is not None
    compiled = compiler.addresses(list(function_specs.values()))
    return dict(zip(function_specs, compiled, strict=True))


def _load_functions(kernel: Any, compiled: Mapping[str, int]) -> _CoreFunctions:
    """Return the C functions, given their addresses by name."""
    int64 = ctypes.c_int64
    fields = {}
    for name, n_arguments in _N_ARGUMENTS.items():
        prototype = ctypes.CFUNCTYPE(int64, *[int64] * n_arguments)
        fields[name] = prototype(compiled[name])
    kernel_address = 0 if kernel is None else ctypes.addressof(kernel)
    return _CoreFunctions(kernel=kernel, kernel_address=kernel_address, **fields)


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Compile or load the kernels that sample an X of ``dtype`` at a grid of ``grid_dtype``."""
    if mode not in TAPS or type_name(dtype) == "str":
        return
    names = type_name(dtype), type_name(grid_dtype), mode
    compiler = None
    if _library_functions("GridSample", *names) is None:
        compiler = _compiler()
    if compiler is None:
        return
    if missing_on_disk([*_HELPER_FUNCTIONS.values(), *compiler.kernel_functions(*names).values()]):
        kernels = f"{mode} for X of {dtype}"
        logger.warning(
            "compiling kernels for %s; this takes a few seconds, and later processes load them "
            "from disk (NUMBA_CACHE_DIR)",
            kernels,
        )
    padding_mode = next(iter(PADDING_CODES))  # the kernels of a mode have all paddings
    _sampling_functions(*names, padding_mode, False)


# The slots of helpers are aligned to their size, a cache line.
_slot_memory = np.zeros((1 + MAX_HELPERS) * SLOT.itemsize, np.uint8)
_first_slot = -data_address(_slot_memory) % SLOT.itemsize
_slots = _slot_memory[_first_slot:][: MAX_HELPERS * SLOT.itemsize].view(SLOT)
#: The arguments of helper_threads' functions: the address of the slots, and their number.
_slots_arguments = data_address(_slots), MAX_HELPERS
#: The fields ``slots`` to ``must_pause`` of a LAUNCH, packed.
_caller_arguments = _CALLER.pack(*_slots_arguments, 1)


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork.
    global _start_time
    _start_time = -MAX_TIME_OF_START
    _slots.view(np.uint8)[:] = 0


def _contiguous(array: Array) -> Array:
    """Return the array in C order and aligned, so that the processor can read it in vectors."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()
