"""The NumPy core: any rank, mode and padding, in blocks of output positions that fit the cache.

Channels are read one by one through a table of taps; many channels whose pixels are read often are read all at once,
from a channels-last copy of X.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Literal

import numpy as np

from .. import spec
from . import sums
from .arrays import Array, Floats, Indices
from .plan import Plan, type_name
from .table import Table, table
from .taps import MODES
from .threads import for_each

#: The most in one block: enough that numpy's cost per call is small, little enough to stay in the cache.
BLOCK_POSITIONS = 1 << 14
BLOCK_TAPS = 1 << 17
CHUNK_BYTES = 1 << 20
#: numpy's mode for an index outside X: there is none, and this is faster than ``"raise"``.
OUTSIDE: Literal["raise", "clip"] = "clip"
#: The integers that have as many bytes as a pixel, to clear those outside.
_BITS = {np.dtype(each).itemsize: each for each in (np.int8, np.int16, np.int32, np.int64)}
#: So many taps are worth another thread: all wait for Python's lock between numpy's calls.
TAPS_PER_THREAD = 1 << 21
#: So many channels are worth a channels-last copy of an image, of at most so many bytes; it is made so many channels at
#: a time, which takes a quarter of the time of all at once.
CHANNELS_LAST, ROWS_BYTES, TRANSPOSED = 16, 1 << 28, 8


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P); see :mod:`ort_gridsample.core`."""
    n, c, positions = Y.shape
    lengths = X.shape[2:]
    flat_X, taps = X.reshape(n, c, -1), MODES[plan.mode].taps ** len(lengths)
    threads = max(1, min(num_threads, -(-Y.size * taps // TAPS_PER_THREAD)))
    if _reads_rows(c, flat_X.shape[2], positions, taps, plan):
        each = 1 if n >= threads else threads

        def sample_batch(batch: int) -> None:
            _sample_rows(flat_X[batch], grid[batch], Y[batch], lengths, plan, each)

        return for_each(sample_batch, range(n), threads // each)
    share = -(-n * positions // (2 * threads))
    step = max(64, min(BLOCK_POSITIONS, BLOCK_TAPS // taps, share))
    batches = max(1, step // max(positions, 1))  # those that share a table
    corners = product(range(0, n, batches), range(0, positions, step))
    blocks = [(slice(batch, batch + batches), slice(start, start + step)) for batch, start in corners]

    def sample(block: tuple[slice, slice]) -> None:
        some, at = block
        # An overflow or an infinity in a coordinate has its answer: see ``coordinates``.
        with np.errstate(all="ignore"):
            found = table(grid[some, at].reshape(-1, len(lengths)), lengths, plan)
            images, outputs = flat_X[some], Y[some, :, at]
            count = outputs.shape[2]
            for i, (image, output) in enumerate(zip(images, outputs, strict=True)):
                _sample_block(image, found.part(slice(i * count, (i + 1) * count)), output, plan)

    for_each(sample, blocks, min(threads, len(blocks)))


def deformable_attention(
    value: Array, levels: Indices, counts: Indices, locations: Floats, weights: Floats, Y: Array,
    plan: Plan, num_threads: int,
) -> None:  # fmt: skip
    """Add up samples of ``value`` into ``Y`` (B, Q, H, D), with weights; see :mod:`ort_gridsample.core`."""
    batches, queries, heads, channels = Y.shape
    weights = np.broadcast_to(weights, (batches, queries, *weights.shape[2:]))
    taps, compute = 1 << locations.shape[-1], plan.compute
    coordinates = spec.TYPES[type_name(locations.dtype)].compute
    each = taps * max([1, *counts.tolist()])
    step = max(1, CHUNK_BYTES // (each * max(1, channels) * compute.itemsize))

    def add_up(block: tuple[int, int, slice]) -> None:
        batch, head, at = block
        grid, by = locations[batch, at, head].astype(coordinates), weights[batch, at, head].astype(compute)
        total, first = np.zeros((len(grid), channels), compute), 0
        with np.errstate(all="ignore"):
            grid = grid * 2 - 1
            for (start, *lengths), count in zip(levels.tolist(), counts.tolist(), strict=True):
                some = slice(first, first := first + count)
                image = value[batch, start : start + math.prod(lengths), head]
                if count:
                    total += _attended(image, grid[:, some], by[:, some], tuple(lengths), plan)
        Y[batch, at, head] = total

    corners = product(range(batches), range(heads), range(0, queries, step))
    blocks = [(batch, head, slice(query, query + step)) for batch, head, query in corners]
    threads = -(-weights.size * taps * channels // TAPS_PER_THREAD)
    for_each(add_up, blocks, min(num_threads, threads, len(blocks)))


def _attended(image: Array, grid: Floats, by: Floats, lengths: tuple[int, ...], plan: Plan) -> Array:
    """The sums (Q, D) over the samples of ``image`` (S, D) at ``grid`` (Q, P, r), times the weights ``by`` (Q, P)."""
    if len(image) == 0:
        return np.zeros((1, image.shape[1]), plan.compute) * by.sum(1)[:, None]
    found = table(grid.reshape(-1, len(lengths)), lengths, plan)
    assert found.weight is not None  # as only nearest's is
    rows = image.take(found.index, axis=0, mode=OUTSIDE).astype(plan.compute, copy=False)
    if found.inside is not None:
        rows[~found.inside] = 0
    weight = found.weight.reshape(-1, *by.shape) * by
    return np.einsum("tqpd,tqp->qd", rows.reshape(*weight.shape, -1), weight)


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Nothing to do ahead of time."""


def _sample_block(X: Array, taps: Table, Y: Array, plan: Plan) -> None:
    """``Y`` (C, P) from ``X`` (C, S)."""
    if plan.sum is None or taps.weight is None:
        for x, y in zip(X, Y, strict=True):
            x.take(taps.index[0], out=y, mode=OUTSIDE)
        _zero_outside(Y[:, None], taps, plan)
        return
    size = max(1, CHUNK_BYTES // (taps.index.size * plan.compute.itemsize))
    buffer = np.empty((min(size, len(X)), *taps.index.shape), X.dtype)
    for start in range(0, len(X), size):
        chunk = slice(start, start + size)
        values = buffer[: len(X) - start]
        X[chunk].take(taps.index, axis=1, out=values, mode=OUTSIDE)
        _zero_outside(values, taps, plan)
        plan.sum(values, taps.weight, Y[chunk])


def _reads_rows(channels: int, pixels: int, positions: int, taps: int, plan: Plan) -> bool:
    """Whether a channels-last copy of X saves more time than it and the transposition of Y take."""
    if plan.sum is not sums.floating or channels < CHANNELS_LAST:
        return False
    return taps * positions >= pixels + positions and channels * pixels * plan.compute.itemsize <= ROWS_BYTES


def _sample_rows(X: Array, grid: Floats, Y: Array, lengths: tuple[int, ...], plan: Plan, threads: int) -> None:
    """``Y`` (C, P) from ``X`` (C, S), of many channels, at ``grid`` (P, r)."""
    (channels, pixels), positions = X.shape, Y.shape[1]
    rows = np.empty((pixels + 1, channels), plan.compute)
    rows[pixels] = 0  # the pixel outside

    def transpose(some: slice) -> None:
        rows[:pixels, some] = X[some].T

    def sample(block: slice) -> None:
        with np.errstate(all="ignore"):
            found, y = table(grid[block], lengths, plan), Y[:, block]
            assert found.weight is not None  # as only nearest's is
            index = found.index if found.inside is None else np.where(found.inside, found.index, pixels)
            step = max(1, CHUNK_BYTES // (len(index) * rows[0].nbytes))
            for start in range(0, y.shape[1], step):
                at = slice(start, start + step)
                values = rows.take(index[:, at], axis=0, mode=OUTSIDE)
                y[:, at] = np.einsum("tpc,tp->pc", values, found.weight[:, at]).T

    share = positions if threads == 1 else -(-positions // (2 * threads))
    step = max(64, min(BLOCK_POSITIONS, share))
    for_each(transpose, [slice(first, first + TRANSPOSED) for first in range(0, channels, TRANSPOSED)], threads)
    for_each(sample, [slice(start, start + step) for start in range(0, positions, step)], threads)


def _zero_outside(values: Array, taps: Table, plan: Plan) -> None:
    """Clear the ``values`` (C, T, P) of taps outside, which may be NaN, so that a weight of 0 would not do."""
    if taps.inside is None:
        return
    if plan.zero != 0 or values.itemsize not in _BITS:
        np.copyto(values, values.dtype.type(plan.zero), where=~taps.inside)
    else:
        bits = values.view(_BITS[values.itemsize])
        bits &= -taps.inside.astype(bits.dtype)
