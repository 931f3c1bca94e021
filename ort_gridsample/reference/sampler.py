"""The NumPy core: any rank, mode and padding, in blocks of output positions that fit the cache.

A table of taps lists the T pixels of flat X that each of P output positions reads, and their
weights. Channels are gathered through this table: one by one in mode nearest, else as many at a
time as a buffer holds. If there are many channels and the pixels are read often, all channels are
gathered at once, from a channels-last copy of X.
"""

from __future__ import annotations

from itertools import product
from typing import Final, SupportsIndex

import numpy as np

from ..system.num_threads import resolve_num_threads
from ..system.threads import for_each
from . import blocks, sums
from .arrays import Array, Floats
from .attention import deformable_attention
from .blocks import ceil_div, slices
from .plan import Plan
from .tap_table import TapTable, tap_table
from .taps import MODE_RULES

__all__ = ["NAME", "deformable_attention", "grid_sample", "prepare"]

#: The name of this core, as :func:`ort_gridsample.set_core` takes it.
NAME: Final = "numpy"

#: Item size of a pixel -> an integer type of this size, to clear the bits of pixels outside.
_BITS = {np.dtype(kind).itemsize: kind for kind in (np.int8, np.int16, np.int32, np.int64)}
#: The minimum number of channels that is worth a channels-last copy of an image.
MIN_CHANNELS_LAST = 16
#: The maximum size of a channels-last copy of an image.
MAX_CHANNELS_LAST_BYTES = 1 << 28
#: The channels that are transposed at once: this takes a quarter of the time of transposing all.
TRANSPOSED_CHANNELS = 8


def grid_sample(
    X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: SupportsIndex | None
) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, …, r) into ``Y`` (N, C, …).

    :mod:`ort_gridsample.functions.cores` describes the arguments.
    """
    lengths = X.shape[2:]
    grid = grid.reshape(len(grid), -1, len(lengths))
    Y = Y.reshape(*Y.shape[:2], grid.shape[1])
    n_batches, n_channels, n_positions = Y.shape
    flat_X = X.reshape(n_batches, n_channels, -1)
    n_taps = MODE_RULES[plan.mode].taps ** len(lengths)
    threads = max(1, ceil_div(Y.size * n_taps, blocks.TAPS_PER_THREAD))
    if threads > 1:
        threads = min(resolve_num_threads(num_threads), threads)
    if _is_channels_last_faster(n_channels, flat_X.shape[2], n_positions, n_taps, plan):
        _sample_images(flat_X, grid, Y, lengths, plan, threads)
    else:
        _sample_blocks(flat_X, grid, Y, lengths, plan, threads)


def prepare(dtype: np.dtype[np.generic], grid_dtype: np.dtype[np.generic], mode: str) -> None:
    """Do nothing: this core has nothing to compile."""


def _is_channels_last_faster(
    n_channels: int,
    n_pixels: int,
    n_positions: int,
    n_taps: int,
    plan: Plan,
) -> bool:
    """Whether a channels-last copy of X saves more time than it and transposing Y take."""
    if plan.sum is not sums.sum_floats or n_channels < MIN_CHANNELS_LAST:
        return False
    if n_channels * n_pixels * plan.compute.itemsize > MAX_CHANNELS_LAST_BYTES:
        return False
    return n_taps * n_positions >= n_pixels + n_positions


def _sample_blocks(
    X: Array,
    grid: Floats,
    Y: Array,
    lengths: tuple[int, ...],
    plan: Plan,
    threads: int,
) -> None:
    """Sample ``X`` (N, C, S) in blocks of batches and positions."""
    n_batches, _, n_positions = Y.shape
    n_taps = MODE_RULES[plan.mode].taps ** len(lengths)
    share = ceil_div(n_batches * n_positions, 2 * threads)
    max_step = min(blocks.BLOCK_POSITIONS, blocks.BLOCK_TAPS // n_taps)
    step = max(blocks.MIN_BLOCK_POSITIONS, min(max_step, share))
    batch_step = max(1, step // max(n_positions, 1))  # small batches share a table
    all_blocks = list(product(slices(n_batches, batch_step), slices(n_positions, step)))

    def sample(block: tuple[slice, slice]) -> None:
        batches, block_positions = block
        # Overflow and infinity in coordinates are defined: see ``coordinates``.
        with np.errstate(all="ignore"):
            block_grid = grid[batches, block_positions].reshape(-1, len(lengths))
            table = tap_table(block_grid, lengths, plan)
            outputs = Y[batches, :, block_positions]
            count = outputs.shape[2]
            for i, (image, output) in enumerate(zip(X[batches], outputs, strict=True)):
                image_table = table.part(slice(i * count, (i + 1) * count))
                _sample_block(image, image_table, output, plan)

    for_each(sample, all_blocks, min(threads, len(all_blocks)))


def _sample_block(X: Array, table: TapTable, Y: Array, plan: Plan) -> None:
    """Fill ``Y`` (C, P) from one image ``X`` (C, S)."""
    if plan.sum is None or table.weight is None:
        for x, y in zip(X, Y, strict=True):
            x.take(table.index[0], out=y, mode=blocks.INDEX_MODE)
        _zero_outside(Y[:, None], table, plan)
        return
    chunk_channels = max(1, blocks.CHUNK_BYTES // (table.index.size * plan.compute.itemsize))
    buffer = np.empty((min(chunk_channels, len(X)), *table.index.shape), X.dtype)
    for start in range(0, len(X), chunk_channels):
        chunk = slice(start, start + chunk_channels)
        values = buffer[: len(X) - start]
        X[chunk].take(table.index, axis=1, out=values, mode=blocks.INDEX_MODE)
        _zero_outside(values, table, plan)
        plan.sum(values, table.weight, Y[chunk])


def _sample_images(
    X: Array,
    grid: Floats,
    Y: Array,
    lengths: tuple[int, ...],
    plan: Plan,
    threads: int,
) -> None:
    """Sample ``X`` (N, C, S) with channels-last copies of its images.

    If there are enough images, each thread samples whole images. Otherwise all threads share one.
    """
    threads_per_image = 1 if len(X) >= threads else threads

    def sample(arrays: tuple[Array, Floats, Array]) -> None:
        _sample_channels_last(*arrays, lengths, plan, threads_per_image)

    for_each(sample, zip(X, grid, Y, strict=True), threads // threads_per_image)


def _sample_channels_last(
    X: Array,
    grid: Floats,
    Y: Array,
    lengths: tuple[int, ...],
    plan: Plan,
    threads: int,
) -> None:
    """Fill ``Y`` (C, P) from one image ``X`` (C, S) of many channels, at ``grid`` (P, r)."""
    n_channels, n_pixels = X.shape
    n_positions = Y.shape[1]
    rows = np.empty((n_pixels + 1, n_channels), plan.compute)
    rows[n_pixels] = 0  # the row that taps outside X read

    def transpose(chunk: slice) -> None:
        rows[:n_pixels, chunk] = X[chunk].T

    def sample(block: slice) -> None:
        with np.errstate(all="ignore"):
            table = tap_table(grid[block], lengths, plan)
            assert table.weight is not None  # it is None only for nearest
            index = table.index
            if table.inside is not None:
                index = np.where(table.inside, index, n_pixels)
            output = Y[:, block]
            step = max(1, blocks.CHUNK_BYTES // (len(index) * rows[0].nbytes))
            for start in range(0, output.shape[1], step):
                chunk = slice(start, start + step)
                values = rows.take(index[:, chunk], axis=0, mode=blocks.INDEX_MODE)
                output[:, chunk] = np.einsum("tpc,tp->pc", values, table.weight[:, chunk]).T

    share = n_positions if threads == 1 else ceil_div(n_positions, 2 * threads)
    step = max(blocks.MIN_BLOCK_POSITIONS, min(blocks.BLOCK_POSITIONS, share))
    for_each(transpose, slices(n_channels, TRANSPOSED_CHANNELS), threads)
    for_each(sample, slices(n_positions, step), threads)


def _zero_outside(values: Array, table: TapTable, plan: Plan) -> None:
    """Set the ``values`` (C, T, P) of taps outside X to zero.

    A weight of 0 would not suffice, because values may be NaN.
    """
    if table.inside is None:
        return
    if plan.zero != 0 or values.itemsize not in _BITS:
        np.copyto(values, values.dtype.type(plan.zero), where=~table.inside)
    else:
        bits = values.view(_BITS[values.itemsize])
        np.bitwise_and(bits, -table.inside.astype(bits.dtype), out=bits)
