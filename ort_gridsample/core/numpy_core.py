"""The NumPy core: any rank, mode and padding, in blocks of output positions that fit the cache."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .arrays import Array, Floats
from .plan import Plan
from .table import Table, table
from .taps import MODES
from .threads import for_each

#: What one block holds at most: enough that numpy's own cost per call is small, little enough to stay in the cache.
BLOCK_POSITIONS = 1 << 14
BLOCK_TAPS = 1 << 17
CHUNK_BYTES = 1 << 20

#: What numpy does with an index outside X. There is none, and not to look for it is faster than ``"raise"``.
OUTSIDE: Literal["raise", "clip"] = "clip"

#: What is worth another thread, in taps: all wait for Python's lock between numpy's calls.
TAPS_PER_THREAD = 1 << 20


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P); see :mod:`ort_gridsample.core`."""
    n, c, positions = Y.shape
    lengths = X.shape[2:]
    flat_X, taps = X.reshape(n, c, -1), len(MODES[plan.mode].offsets) ** len(lengths)
    threads = max(1, min(num_threads, -(-Y.size * taps // TAPS_PER_THREAD)))
    share = -(-n * positions // (2 * threads))
    step = max(64, min(BLOCK_POSITIONS, BLOCK_TAPS // taps, share))
    batches = max(1, step // max(positions, 1))  # those that share a table
    blocks = [
        (slice(batch, batch + batches), slice(start, start + step))
        for batch in range(0, n, batches)
        for start in range(0, positions, step)
    ]

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


def _zero_outside(values: Array, taps: Table, plan: Plan) -> None:
    """Clear the ``values`` (C, T, P) of taps outside; a weight of 0 would not do: they may be NaN."""
    if taps.inside is None:
        return
    size = values.itemsize
    if size in (1, 2, 4, 8) and plan.zero == 0:
        bits = values.view(f"i{size}")
        bits &= -taps.inside.astype(bits.dtype)
    else:
        np.copyto(values, values.dtype.type(plan.zero), where=~taps.inside)
