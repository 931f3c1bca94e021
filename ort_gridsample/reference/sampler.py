"""The NumPy core: any rank, mode and padding, in blocks of output positions that fit the cache.

Channels are read one by one through a table: for P output positions the T pixels of flat X that each reads, and their
weights. Many channels whose pixels are read often are read all at once, from a channels-last copy of X.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from .. import spec
from . import sums
from .arrays import Array, Floats, Indices, Mask
from .coordinates import PADDING, Axis, unnormalize
from .plan import Plan, type_name
from .taps import MODES, axis_taps
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
    """Sample ``X`` (N, C, D1, …, Dr) at ``grid`` (N, P, r) into ``Y`` (N, C, P).

    See :mod:`ort_gridsample.functions.cores`.
    """
    n, c, positions = Y.shape
    lengths = X.shape[2:]
    flat_X, taps = X.reshape(n, c, -1), MODES[plan.mode].taps ** len(lengths)
    threads = max(1, min(num_threads, -(-Y.size * taps // TAPS_PER_THREAD)))
    if _reads_rows(c, flat_X.shape[2], positions, taps, plan):
        each, images = 1 if n >= threads else threads, zip(flat_X, grid, Y, strict=True)
        return for_each(lambda image: _sample_rows(*image, lengths, plan, each), images, threads // each)
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
    value: Array, levels: Indices, locations: Floats, weights: Floats, Y: Array, plan: Plan, num_threads: int
) -> None:
    """Add up samples of ``value`` into ``Y`` (B, Q, H, D), with weights; see :mod:`ort_gridsample.functions.cores`."""
    batches, queries, heads, channels = Y.shape
    weights = np.broadcast_to(weights, (batches, queries, *weights.shape[2:]))
    taps, compute = 1 << locations.shape[-1], plan.compute
    coordinates = spec.TYPES[type_name(locations.dtype)].compute
    each = taps * max(levels[:, 0].tolist())
    step = max(1, CHUNK_BYTES // (each * max(1, channels) * compute.itemsize))

    def add_up(block: tuple[int, int, slice]) -> None:
        batch, head, at = block
        grid, by = locations[batch, at, head].astype(coordinates), weights[batch, at, head].astype(compute)
        total, pixel, first = np.zeros((len(grid), channels), compute), 0, 0
        with np.errstate(all="ignore"):
            grid = grid * 2 - 1
            for count, *lengths in levels.tolist():
                some = slice(first, first := first + count)
                image = value[batch, pixel : (pixel := pixel + math.prod(lengths)), head]
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
        np.bitwise_and(bits, -taps.inside.astype(bits.dtype), out=bits)


@dataclass(frozen=True)
class Table:
    """The taps of P output positions, on one axis or on several."""

    index: Indices  #: (T, P), the pixel read, always inside X, whatever the coordinate
    weight: Array | None  #: (T, P), its weight; None is a weight of 1
    inside: Mask | None  #: (T, P), whether the tap lies inside X (elsewhere it counts as 0); None is everywhere

    def times(self, inner: Table, length: int) -> Table:
        """Every combination of these taps with those of the next axis inward, which has ``length`` pixels."""
        weight = None if inner.weight is None else _pairs(np.multiply, self.weight, inner.weight)
        inside = None
        if self.inside is not None or inner.inside is not None:
            each = (np.broadcast_to(True, t.index.shape) if t.inside is None else t.inside for t in (self, inner))
            inside = _pairs(np.logical_and, *each)
        return Table(_pairs(np.add, self.index * length, inner.index), weight, inside)

    def part(self, at: slice) -> Table:
        """The table of the positions ``at``."""
        weight = None if self.weight is None else self.weight[:, at]
        return Table(self.index[:, at], weight, None if self.inside is None else self.inside[:, at])


def _pairs(function: np.ufunc, outer: Any, inner: Array) -> Array:
    return function(outer[:, None], inner).reshape(-1, inner.shape[1])


def table(grid: Floats, lengths: tuple[int, ...], plan: Plan) -> Table:
    """The table of the positions ``grid`` (P, r) in an X with axes of these ``lengths``."""
    coordinates = spec.TYPES[type_name(grid.dtype)].compute
    found: Table | None = None
    for g, length in zip(grid.T[::-1], lengths, strict=True):  # the grid lists the innermost axis first
        along = _axis_table(g.astype(coordinates)[None], length, plan)
        found = found.times(along, length) if found else along
    assert found is not None  # a grid has at least one axis
    return found


def _axis_table(g: Floats, length: int, plan: Plan) -> Table:
    """The table of ``g`` (1, P) on an axis of ``length`` pixels."""
    mode, padding = MODES[plan.mode], PADDING[plan.padding_mode]
    axis = Axis.of(length, plan.align_corners, length == 1)
    x = unnormalize(g, axis)
    low, high = float(x.min()), float(x.max())
    if low + mode.offsets[0] >= 0 and high + mode.offsets[-1] <= length - 1:  # every tap is inside
        base = mode.base(np, x)
        weight = mode.weights(np, (x - base).astype(plan.weights, copy=False)) if mode.weights else None
        return Table(base.astype(np.intp) + np.array(mode.offsets, np.intp)[:, None], weight, None)
    position, weight = axis_taps(np, g, axis, mode, padding, plan.weights)
    index = position.astype(np.intp)
    clipped = np.clip(index, 0, length - 1)
    inside = clipped == index if padding.zero_outside else None
    return Table(clipped, weight, None if inside is None or inside.all() else inside)
