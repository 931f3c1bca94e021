"""Interpolation modes: which pixels of one axis a coordinate reads (its taps), and with which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..spec import CUBIC_A
from ._types import Array, Floats, Indices, Mask
from .coordinates import Padding


@dataclass(frozen=True)
class Tap:
    """One tap of one axis, for a block of output positions.

    Attributes:
        index: the pixel read, always inside X, whatever the coordinate.
        weight: its weight; None is a weight of 1.
        inside: where the tap lies inside X, elsewhere it counts as 0; None is everywhere.
    """

    index: Indices
    weight: Array | None
    inside: Mask | None


@dataclass(frozen=True)
class Mode:
    """An interpolation mode, for one axis.

    Attributes:
        base: the pixel from which the taps are counted.
        offsets: the taps, in pixels from the base.
        weights: from the distance to the base, in pixels, to one weight a tap.
        pads_index: whether padding acts on each tap's index instead of on the coordinate.
    """

    base: Callable[[Floats], Floats]
    offsets: tuple[int, ...]
    weights: Callable[[Floats], tuple[Array | None, ...]]
    pads_index: bool


def _nearest(t: Floats) -> tuple[Array | None, ...]:
    return (None,)


def _linear(t: Floats) -> tuple[Array | None, ...]:
    return 1 - t, t


def _cubic(t: Floats) -> tuple[Array | None, ...]:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), at 1+t, t, 1-t and 2-t."""
    a = t.dtype.type(CUBIC_A)

    def near(d: Floats) -> Floats:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Floats) -> Floats:
        return ((d - 5) * d + 8) * d * a - 4 * a

    return far(1 + t), near(t), near(1 - t), far(2 - t)


MODES: Mapping[str, Mode] = {
    "nearest": Mode(np.rint, (0,), _nearest, pads_index=False),  # rint: half to even
    "linear": Mode(np.floor, (0, 1), _linear, pads_index=False),
    "cubic": Mode(np.floor, (-1, 0, 1, 2), _cubic, pads_index=True),
}


def axis_taps(
    x: Floats, length: int, mode: Mode, padding: Padding, align_corners: bool, dtype: np.dtype[np.generic]
) -> list[Tap]:
    """The taps of the pixel coordinates ``x`` on an axis of ``length`` pixels, with weights of type ``dtype``."""
    interior = float(x.min()) + mode.offsets[0] >= 0 and float(x.max()) + mode.offsets[-1] <= length - 1
    if not interior:
        x = padding.bound(x, length)
        if not mode.pads_index:
            x = padding.move(x, length, align_corners)
    base = mode.base(x)
    weights = mode.weights((x - base).astype(dtype, copy=False))
    taps = []
    for offset, weight in zip(mode.offsets, weights, strict=True):
        position = base + offset if offset else base
        if not interior and mode.pads_index:
            position = padding.move(position, length, align_corners)
        index, inside = position.astype(np.intp), None
        if not interior:
            clipped = np.clip(index, 0, length - 1)
            if padding.zero_outside:
                inside = clipped == index
            index = clipped
        taps.append(Tap(index, weight, inside))
    return taps
