"""Interpolation modes: the pixels of an axis that a coordinate reads (its taps), and their weights.

As in :mod:`.coordinates`, ``xp`` is NumPy or another namespace. For P output positions values have
the shape (…, P), and with an axis of T taps (…, T, P).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..spec import CUBIC_A
from .arrays import Array
from .coordinates import Axis, Namespace, Padding, Values, unnormalize

#: The maximum number of taps, of all axes together, of a position in a compiled op. Its table of
#: taps is in scratch memory.
MAX_TAPS = 1 << 16


@dataclass(frozen=True)
class Mode:
    """An interpolation mode, for one axis."""

    base: Callable[[Namespace, Values], Values]  #: the pixel from which the taps are counted
    offsets: tuple[int, ...]  #: the taps, in pixels from the base
    #: Converts distances from the base in pixels, (…, 1, P), to the taps' weights, (…, T, P); None
    #: if there is one tap.
    weights: Callable[[Namespace, Values], Values] | None
    pads_taps: bool  #: whether padding applies to each tap instead of to the coordinate

    @property
    def taps(self) -> int:
        """The number of pixels of an axis that a coordinate reads."""
        return len(self.offsets)

    @property
    def outside_coordinate(self) -> float:
        """A normalized coordinate at which every tap is outside X on the same side.

        This holds for axes of any length, and for both signs.
        """
        return 2.0 * max(2, *map(abs, self.offsets)) + 3


def _linear(xp: Namespace, t: Values) -> Values:
    """Return the weights 1 - t and t; both are exact to the last bit."""
    return xp.abs(t - _column((1, 0), t))


def _cubic(xp: Namespace, t: Values) -> Values:
    """Return Keys' weights for the distances d = 1 + t, t, 1 - t and 2 - t.

    There is one polynomial for the two outer taps and one for the two inner taps::

        outer: ((d - 5)·d + 8)·d·a - 4·a
        inner: ((a + 2)·d - (a + 3))·d·d + 1

    Both are evaluated as ``(((c3·d + c2)·d + c1)·d)·scale + c0``.

    Source: Keys, "Cubic convolution interpolation for digital image processing" (1981).
    """
    a = CUBIC_A
    # c3, c2, c1, scale, c0
    outer = (1, -5, 8, a, -4 * a)
    inner = (a + 2, -a - 3, 0, 1, 1)
    coefficients = zip(outer, inner, inner, outer, strict=True)
    c3, c2, c1, scale, c0 = (_column(of_taps, t) for of_taps in coefficients)
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
    """Return one number per tap, (T, 1), of the type of ``like``."""
    return np.array(of_taps, like.dtype)[:, None]


#: numpy's rint rounds half to even.
MODE_RULES: Mapping[str, Mode] = {
    "nearest": Mode(lambda xp, x: xp.rint(x), (0,), None, pads_taps=False),
    "linear": Mode(lambda xp, x: xp.floor(x), (0, 1), _linear, pads_taps=False),
    "cubic": Mode(lambda xp, x: xp.floor(x), (-1, 0, 1, 2), _cubic, pads_taps=True),
}

#: The modes and paddings that have compiled kernels. All others run on the NumPy core.
COMPILED_MODES = ("nearest", "linear", "cubic")
COMPILED_PADDING = ("zeros", "border", "reflection")
#: The number of taps on an axis of each mode that has kernels.
TAPS = {mode: MODE_RULES[mode].taps for mode in COMPILED_MODES}


def pixel_coordinates(
    xp: Namespace,
    g: Values,
    axis: Axis,
    mode: Mode,
    padding: Padding,
) -> Values:
    """Convert any normalized coordinates ``g`` to finite pixel coordinates.

    NaN counts as -1. The result is padded if the mode pads coordinates.
    """
    g = xp.where(xp.equal(g, g), g, -1)
    if mode.pads_taps:
        return padding.to_finite_pixels(xp, g, axis, mode.outside_coordinate)
    if padding.pad_handles_infinity and not axis.may_collapse:
        x = unnormalize(g, axis)
    else:
        x = padding.to_finite_pixels(xp, g, axis, mode.outside_coordinate)
    return padding.pad(xp, x, axis)


def axis_taps(
    xp: Namespace,
    g: Values,
    axis: Axis,
    mode: Mode,
    padding: Padding,
    dtype: object,
    first_pixel: int = 0,
) -> tuple[Values, Values | None]:
    """Return the pixels and the weights of the taps of any normalized coordinates.

    With zeros padding a tap may lie outside X. With other paddings only the second tap of linear
    may: one pixel after the last, with the weight 0.

    Args:
        xp: numpy, or another namespace.
        g: (…, 1, P), normalized coordinates; NaN and infinity are allowed.
        axis: the axis of X.
        mode: the interpolation mode.
        padding: the padding mode.
        dtype: the type of the weights.
        first_pixel: the number that the axis's first pixel has in the result.

    Returns:
        Pixels and weights, both (…, T, P); for modes with one tap the weights are None.
    """
    x = pixel_coordinates(xp, g, axis, mode, padding)
    return taps_at(xp, x, axis, mode, padding, dtype, first_pixel)


def taps_at(
    xp: Namespace,
    x: Values,
    axis: Axis,
    mode: Mode,
    padding: Padding,
    dtype: object,
    first_pixel: int = 0,
) -> tuple[Values, Values | None]:
    """Return the taps of pixel coordinates ``x``, as :func:`axis_taps` does."""
    base = mode.base(xp, x)
    offsets = [first_pixel + offset for offset in mode.offsets]
    tap_pixel = base if offsets == [0] else base + _column(offsets, x)
    if mode.pads_taps:
        tap_pixel = padding.pad(xp, tap_pixel, axis)
    if mode.weights is None:
        return tap_pixel, None
    distance = (x - base).astype(dtype, copy=False)
    return tap_pixel, mode.weights(xp, distance)
