"""The compiled core: the functions' and the Python op's way to the workers, on the package's own threads, by Numba."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..reference import sampler
from ..reference.arrays import Array, Floats, Indices
from ..reference.plan import Plan, type_name
from ..reference.taps import MAX_TAPS
from ..reference.threads import after_fork, available_cpus, submit
from . import helper_threads, loops
from .attention import MOST_AXES
from .attention import parts as attention_parts
from .compilation import KernelSpec, addresses, uncompiled
from .structs import ATTENTION, KERNEL, LAUNCH, SLOT, ctypes_type
from .workers import END, PADDING, TAPS, numbers, parts

logger = logging.getLogger("ort_gridsample")
#: Fewer taps than this are not worth a helper that is there, and not worth waking one.
TAPS_PER_HELPER, TAPS_PER_THREAD = 1 << 16, 1 << 18
#: So much memory each thread keeps for its next call: fresh memory costs more than to write to it.
KEPT_BYTES = 1 << 21
#: As many helpers as the machine has processors for, or as somebody may ask for all the same.
HELPERS = max(63, available_cpus() - 1)

_HELPING: list[KernelSpec] = [(helper_threads.invite,), (helper_threads.finish,), (helper_threads.attend,)]
_Kernel: Any = ctypes_type(KERNEL)
_Launch: Any = ctypes_type(LAUNCH)
_Attention: Any = ctypes_type(ATTENTION)


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P).

    See :mod:`ort_gridsample.functions.cores`.
    """
    (n, c, positions), lengths = Y.shape, X.shape[2:]
    pixels, rows = math.prod(lengths), TAPS.get(plan.mode, 0) ** len(lengths)
    is_stated = plan.mode in TAPS and plan.padding_mode in PADDING
    if not is_stated or X.dtype.kind in "OUT" or pixels > loops.MAX_PIXELS or rows > MAX_TAPS:
        # Numba knows no strings, and a table's index has 31 bits.
        return sampler.grid_sample(X, grid, Y, plan, num_threads)
    variant = _variant(type_name(X.dtype), type_name(grid.dtype), plan.mode, plan.padding_mode, plan.align_corners)
    X, grid = _plain(X), _plain(grid)
    taps, all_lengths = Y.size * rows, (ctypes.c_int64 * len(lengths))(*lengths)
    launch = _Launch(
        kernel=ctypes.addressof(variant.kernel), X=_address(X), grid=_address(grid), Y=_address(Y), n=n, c=c,
        r=len(lengths), pixels=pixels, positions=positions, rows=rows, lengths=ctypes.addressof(all_lengths),
        workers=min(num_threads, HELPERS + 1), pauses=1,
    )  # fmt: skip
    _launched(variant, launch, taps)


def deformable_attention(
    value: Array, levels: Indices, locations: Floats, weights: Floats, Y: Array, plan: Plan, num_threads: int
) -> None:
    """Add up samples of ``value`` into ``Y`` (B, Q, H, D), with weights; see :mod:`ort_gridsample.functions.cores`."""
    r, (n, queries, heads, channels) = locations.shape[-1], Y.shape
    if r > MOST_AXES or value.shape[1] > loops.MAX_PIXELS:
        return sampler.deformable_attention(value, levels, locations, weights, Y, plan, num_threads)
    taps = weights.size << r
    variant = _attention(type_name(value.dtype), type_name(locations.dtype))
    arrays = {"value": value, "levels": levels, "locations": locations, "weights": weights}
    plain = {name: _plain(array) for name, array in arrays.items()}
    launch = _Attention(
        **{name: _address(array) for name, array in plain.items()}, Y=_address(Y), n=n, pixels=value.shape[1],
        heads=heads, channels=channels, queries=queries, weighted=weights.shape[1], points=weights.shape[3], r=r,
        n_levels=len(levels),
        align_corners=plan.align_corners, worker=ctypes.cast(variant.worker, ctypes.c_void_p).value,
        workers=min(num_threads, HELPERS + 1), pauses=1,
    )  # fmt: skip
    _launched(variant, launch, taps * channels)


def _launched(variant: _Variant, launch: Any, taps: int) -> None:
    """Do all of a ``launch``, which reads so many ``taps``, with helper threads where these are worth it."""
    launch.workers = min(launch.workers, taps // TAPS_PER_HELPER + 1)
    launch.task.woken = taps // TAPS_PER_THREAD
    # Not there while it is used: a signal's handler may sample, too.
    memory = _kept.__dict__.pop("memory", None) or _Memory()
    launch.own.at, launch.own.nbytes = ctypes.addressof(memory), KEPT_BYTES
    at = ctypes.addressof(launch)
    try:
        while (count := variant.proceed(at)) > 0:
            _do(variant, launch, at, count)
    except BaseException:
        launch.phase = END
        variant.proceed(at)
        raise
    if count < 0:
        raise MemoryError(f"no room for {launch.nbytes} bytes of scratch")
    _kept.memory = memory


_kept, _Memory = threading.local(), ctypes.c_byte * KEPT_BYTES


def _do(variant: _Variant, launch: Any, at: int, count: int) -> None:
    """Do a phase of the launch in ``count`` workers, with helpers: these are through when it returns, or raises."""
    task = ctypes.addressof(launch.task)
    try:
        if count > 1 and (asleep := variant.invite(task, *_slots_at)):
            submit(partial(variant.attend, *_slots_at), asleep)
        while variant.worker(at, 0):  # between whose calls Python hears of signals
            pass
    except BaseException:
        launch.next = launch.items  # the others need not go on
        raise
    finally:
        if count > 1:
            variant.finish(task, *_slots_at)


class _Variant(NamedTuple):
    """A kernel's descriptor, where there is one, and the functions that Python calls, with :mod:`.helper_threads`'."""

    kernel: Any
    proceed: ctypes._FuncPointer
    worker: ctypes._FuncPointer
    invite: ctypes._FuncPointer
    finish: ctypes._FuncPointer
    attend: ctypes._FuncPointer


@cache
def _variant(X_type: str, grid_type: str, mode: str, padding_mode: str, align_corners: bool) -> _Variant:
    named = parts(X_type, grid_type, mode)
    found = addresses([*named.values(), *_HELPING])
    attributes = {"padding": PADDING[padding_mode], "align_corners": int(align_corners), "cpus": available_cpus()}
    fields = {**dict(zip(named, found, strict=False)), **numbers(X_type, grid_type, mode), **attributes}
    return _variant_of(_Kernel(**fields), fields["proceed"], fields["worker"], *found[len(named) :])


@cache
def _attention(value_type: str, locations_type: str) -> _Variant:
    return _variant_of(None, *addresses([*attention_parts(value_type, locations_type), *_HELPING]))


def _variant_of(kernel: Any, *functions: int) -> _Variant:
    word = ctypes.c_int64
    one, two, three = (ctypes.CFUNCTYPE(word, *[word] * count) for count in (1, 2, 3))
    return _Variant(kernel, *(kind(at) for kind, at in zip((one, two, three, three, two), functions, strict=True)))


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Compile what sampling an X of ``dtype`` at a grid of ``grid_dtype`` needs, or load it from the disk."""
    if mode not in TAPS:
        return
    names = type_name(dtype), type_name(grid_dtype), mode
    if uncompiled([*_HELPING, *parts(*names).values()]):
        what = f"{mode} for X of {dtype}"
        logger.warning("compiling %s, a few seconds, once: Numba keeps it on disk (NUMBA_CACHE_DIR)", what)
    _variant(*names, "zeros", False)


def _address(array: Array) -> int:
    try:
        buffer: Any = array
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # in a quarter of the time
    except (TypeError, ValueError):  # it is read-only, or of a type that buffers have no name for
        return int(array.__array_interface__["data"][0])


_memory = np.zeros((1 + HELPERS) * SLOT.itemsize, np.uint8)
_slots = _memory[-_address(_memory) % SLOT.itemsize :][: HELPERS * SLOT.itemsize].view(SLOT)
_slots_at = _address(_slots), HELPERS


@after_fork
def _after_fork() -> None:
    # Threads do not survive a fork.
    _slots.view(np.uint8)[:] = 0


def _plain(array: Array) -> Array:
    """In C order, and where the processor may read it in vectors."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()
