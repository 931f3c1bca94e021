"""Interpolation modes: which pixels of one axis a coordinate reads (its taps), and with which weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ..spec import CUBIC_A
from .arrays import Array, Floats, Indices, Mask
from .coordinates import Padding, denormalize, settle


@dataclass(frozen=True)
class Taps:
    """The T taps of P output positions, on one axis or on several.

    Attributes:
        index: (T, P), the pixel read, always inside X, whatever the coordinate.
        weight: (T, P), its weight; None is a weight of 1.
        inside: (T, P), where the tap lies inside X, elsewhere it counts as 0; None is everywhere.
    """

    index: Indices
    weight: Array | None
    inside: Mask | None

    def times(self, inner: Taps, length: int) -> Taps:
        """Every combination of these taps with those of the next axis inward, which has ``length`` pixels."""
        return Taps(
            _pairs(np.add, self.index * length, inner.index),
            None if self.weight is None or inner.weight is None else _pairs(np.multiply, self.weight, inner.weight),
            self._inside_times(inner),
        )

    def _inside_times(self, inner: Taps) -> Mask | None:
        if self.inside is None and inner.inside is None:
            return None
        everywhere = np.True_
        return _pairs(
            np.logical_and,
            np.broadcast_to(everywhere, self.index.shape) if self.inside is None else self.inside,
            np.broadcast_to(everywhere, inner.index.shape) if inner.inside is None else inner.inside,
        )


def _pairs(function: np.ufunc, outer: Array, inner: Array) -> Array:
    return function(outer[:, None], inner).reshape(-1, inner.shape[1])


@dataclass(frozen=True)
class Mode:
    """An interpolation mode, for one axis.

    Attributes:
        base: the pixel from which the taps are counted.
        offsets: the taps, in pixels from the base.
        weights: from the distance t to the base, in pixels, (P,), to the taps' weights (T, P); None where all are 1.
        pads_index: whether padding acts on each tap's index instead of on the coordinate.
    """

    base: Callable[[Floats], Floats]
    offsets: tuple[int, ...]
    weights: Callable[[Floats], Array | None]
    pads_index: bool


def _nearest(t: Floats) -> None:
    return None


def _linear(t: Floats) -> Array:
    weight = np.empty((2, len(t)), t.dtype)
    np.subtract(1, t, out=weight[0])
    weight[1] = t
    return weight


def _cubic(t: Floats) -> Array:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), at 1+t, t, 1-t and 2-t."""
    a = t.dtype.type(CUBIC_A)

    def near(d: Floats) -> Floats:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Floats) -> Floats:
        return ((d - 5) * d + 8) * d * a - 4 * a

    return np.stack((far(1 + t), near(t), near(1 - t), far(2 - t)))


MODES: Mapping[str, Mode] = {
    "nearest": Mode(np.rint, (0,), _nearest, pads_index=False),  # rint: half to even
    "linear": Mode(np.floor, (0, 1), _linear, pads_index=False),
    "cubic": Mode(np.floor, (-1, 0, 1, 2), _cubic, pads_index=True),
}


def axis_taps(
    g: Floats, length: int, mode: Mode, padding: Padding, align_corners: bool, dtype: np.dtype[np.generic]
) -> Taps:
    """The taps of the normalized coordinates ``g`` on an axis of ``length`` pixels, with weights of type ``dtype``."""
    x = denormalize(g, length, align_corners)
    offsets = np.array(mode.offsets, np.intp)[:, None]
    low, high = float(np.minimum.reduce(x)), float(np.maximum.reduce(x))
    if low + mode.offsets[0] >= 0 and high + mode.offsets[-1] <= length - 1:  # every tap is inside
        base = mode.base(x)
        weight = mode.weights((x - base).astype(dtype, copy=False))
        return Taps(base.astype(np.intp) + offsets, weight, None)
    if not isfinite(low + high):
        settle(x, g, length, align_corners)
    x = padding.bound(x, length)
    if not mode.pads_index:
        x = padding.move(x, length, align_corners)
    base = mode.base(x)
    weight = mode.weights((x - base).astype(dtype, copy=False))
    position = base + offsets.astype(x.dtype)
    if mode.pads_index:
        position = padding.move(position, length, align_corners)
    index = position.astype(np.intp)
    clipped = np.clip(index, 0, length - 1)
    inside = clipped == index if padding.zero_outside else None
    return Taps(clipped, weight, None if inside is None or inside.all() else inside)
