"""The NumPy core: any rank, mode and padding, in blocks of output positions that fit the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ._types import Array, Floats
from .coordinates import PADDING, denormalize
from .plan import Plan
from .taps import MODES, Tap, axis_taps
from .threads import for_each

#: A block's output positions, and the bytes of its taps and of one chunk of channels: all stay in a CPU's own cache.
BLOCK_POSITIONS = 8192
TAPS_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18

#: Fewer output elements than this are not worth waking a thread for.
ELEMENTS_PER_THREAD = 1 << 14


def grid_sample(X: Array, grid: Floats, Y: Array, plan: Plan, num_threads: int) -> None:
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P); see :mod:`ort_gridsample.core`."""
    n, c, positions = Y.shape
    lengths = X.shape[2:]
    flat_X = X.reshape(n, c, -1)
    bytes_per_position = 16 * len(MODES[plan.mode].offsets) ** len(lengths)
    step = min(BLOCK_POSITIONS, max(64, TAPS_BYTES // bytes_per_position))
    blocks = [(batch, slice(i, min(i + step, positions))) for batch in range(n) for i in range(0, positions, step)]

    def sample(block: tuple[int, slice]) -> None:
        batch, at = block
        # An overflow or an infinity in a coordinate has its answer: see ``coordinates``.
        with np.errstate(all="ignore"):
            taps = _grid_taps(grid[batch, at], lengths, plan)
            _sample_block(flat_X[batch], taps, Y[batch, :, at], plan)

    for_each(sample, blocks, min(num_threads, len(blocks), Y.size // ELEMENTS_PER_THREAD + 1))


def _grid_taps(grid: Floats, lengths: tuple[int, ...], plan: Plan) -> list[Tap]:
    """The taps of the positions ``grid`` (P, r): every combination of the axes' taps, as indices into flat X."""
    mode, padding = MODES[plan.mode], PADDING[plan.padding_mode]
    coordinates = np.float64 if grid.dtype == np.float64 else np.float32
    taps: list[Tap] = []
    for axis, length in enumerate(lengths):
        g = grid[:, len(lengths) - 1 - axis].astype(coordinates)  # the grid lists the innermost axis first
        x = denormalize(g, length, plan.align_corners)
        along = axis_taps(x, length, mode, padding, plan.align_corners, plan.weights)
        taps = [_combine(outer, inner, length) for outer in taps for inner in along] if taps else along
    return taps


def _combine(outer: Tap, inner: Tap, length: int) -> Tap:
    return Tap(
        outer.index * length + inner.index,
        None if outer.weight is None or inner.weight is None else outer.weight * inner.weight,
        inner.inside if outer.inside is None else outer.inside if inner.inside is None else outer.inside & inner.inside,
    )


def _sample_block(X: Array, taps: list[Tap], Y: Array, plan: Plan) -> None:
    """``Y`` (C, P) from ``X`` (C, S), a chunk of channels at a time."""
    channels, positions = Y.shape
    size = max(1, CHUNK_BYTES // (positions * plan.compute.itemsize))
    for start in range(0, channels, size):
        chunk = slice(start, start + size)
        plan.sum(_values(X[chunk], taps, plan), Y[chunk], plan.compute)


def _values(X: Array, taps: list[Tap], plan: Plan) -> Iterator[tuple[Array, Array | None]]:
    """Each tap's values (C, P), in one buffer for all, with its weights."""
    values = np.empty((len(X), len(taps[0].index)), X.dtype)
    for tap in taps:
        np.take(X, tap.index, axis=1, out=values, mode="clip")
        if tap.inside is not None and not tap.inside.all():
            values[:, ~tap.inside] = plan.zero
        yield values, tap.weight
