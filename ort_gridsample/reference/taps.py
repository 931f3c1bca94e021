"""Interpolation modes: which pixels of an axis a coordinate reads (its taps), and with which weights.

As in :mod:`.coordinates`, ``xp`` is NumPy or another namespace. Values are (…, P) over P output positions, and with an
axis of T taps (…, T, P).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..spec import CUBIC_A
from .arrays import Array
from .coordinates import Axis, Namespace, Padding, Values, unnormalize

#: The most taps, of all axes together, that a position has in a compiled op, whose table is in scratch memory.
MAX_TAPS = 1 << 16


@dataclass(frozen=True)
class Mode:
    """An interpolation mode, for one axis."""

    base: Callable[[Namespace, Values], Values]  #: the pixel from which the taps are counted
    offsets: tuple[int, ...]  #: the taps, in pixels from the base
    #: From the distance t to the base, in pixels, (…, 1, P), to the taps' weights (…, T, P); None for one tap.
    weights: Callable[[Namespace, Values], Values] | None
    pads_taps: bool  #: whether padding acts on each tap instead of on the coordinate

    @property
    def taps(self) -> int:
        """How many pixels of an axis a coordinate reads."""
        return len(self.offsets)

    @property
    def beyond(self) -> float:
        """A normalized coordinate this far out is beyond every tap, on its own side, however short the axis is."""
        return 2.0 * max(2, *map(abs, self.offsets)) + 3


def _linear(xp: Namespace, t: Values) -> Values:
    return xp.abs(t - _column((1, 0), t))  # 1 - t and t, to the last bit


def _cubic(xp: Namespace, t: Values) -> Values:
    """Keys, "Cubic convolution interpolation for digital image processing" (1981), at 1+t, t, 1-t and 2-t.

    One polynomial for the outer taps, ((d - 5)·d + 8)·d·a - 4·a, another for the inner, ((a + 2)·d - (a + 3))·d·d + 1.
    """
    a = CUBIC_A
    far, near = (1, -5, 8, a, -4 * a), (a + 2, -a - 3, 0, 1, 1)
    c3, c2, c1, scale, c0 = (_column(c, t) for c in zip(far, near, near, far, strict=True))
    d = xp.abs(t - _column((-1, 0, 1, 2), t))
    weight = d * c3
    weight += c2
    weight *= d
    weight += c1
    weight *= d
    weight *= scale
    weight += c0
    return weight


def _column(of_taps: Sequence[float], like: Values) -> Array:
    """One number a tap, to broadcast against values (…, T, P) of the type of ``like``."""
    return np.array(of_taps, like.dtype)[:, None]


MODES: Mapping[str, Mode] = {
    "nearest": Mode(lambda xp, x: xp.rint(x), (0,), None, pads_taps=False),  # rint: half to even
    "linear": Mode(lambda xp, x: xp.floor(x), (0, 1), _linear, pads_taps=False),
    "cubic": Mode(lambda xp, x: xp.floor(x), (-1, 0, 1, 2), _cubic, pads_taps=True),
}

#: The modes and paddings that compiled kernels have; the others run on the NumPy core.
COMPILED_MODES, COMPILED_PADDING = ("nearest", "linear", "cubic"), ("zeros", "border", "reflection")


def pixel_coordinates(xp: Namespace, g: Values, axis: Axis, mode: Mode, padding: Padding) -> Values:
    """The finite pixel coordinates of any normalized ones ``g``, padded where the mode pads coordinates."""
    g = xp.where(xp.equal(g, g), g, -1)  # NaN counts as -1
    if mode.pads_taps:
        return padding.finite(xp, g, axis, mode.beyond)
    bounded = padding.bounds and not axis.may_collapse
    return padding.pad(xp, unnormalize(g, axis) if bounded else padding.finite(xp, g, axis, mode.beyond), axis)


def axis_taps(
    xp: Namespace, g: Values, axis: Axis, mode: Mode, padding: Padding, dtype: object, first: int = 0
) -> tuple[Values, Values | None]:
    """The taps of any normalized coordinates ``g`` (…, 1, P): positions and weights of type ``dtype``, (…, T, P) both.

    With zeros padding a tap may lie outside; with the others linear's second tap may, one pixel beyond the last, with
    weight 0. Positions count from ``first``, that of the first pixel.
    """
    x = pixel_coordinates(xp, g, axis, mode, padding)
    return taps_at(xp, x, axis, mode, padding, dtype, first)


def taps_at(
    xp: Namespace, x: Values, axis: Axis, mode: Mode, padding: Padding, dtype: object, first: int = 0
) -> tuple[Values, Values | None]:
    """The taps of pixel coordinates ``x``, as :func:`axis_taps` returns them."""
    base = mode.base(xp, x)
    offsets = [first + offset for offset in mode.offsets]
    position = base if offsets == [0] else base + _column(offsets, x)
    if mode.pads_taps:
        position = padding.pad(xp, position, axis)
    return position, mode.weights(xp, (x - base).astype(dtype, copy=False)) if mode.weights else None
