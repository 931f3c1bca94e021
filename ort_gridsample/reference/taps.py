"""Interpolation modes: the pixels of an axis that a coordinate reads (its taps), and their weights.

As in :mod:`.coordinates`, ``xp`` is NumPy or another namespace. For P output positions values have
the shape (…, P), and with an axis of T taps (…, T, P).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..spec import CUBIC_A, MODE_SYNONYMS
from .arrays import Array
from .coordinates import Axis, Namespace, Padding, Values, nan_as_minus_one, unnormalize
from .row_checks import RowTable, check_mode

#: The maximum number of taps, of all axes together, of a position in a compiled op. Its table of
#: taps is in scratch memory.
MAX_TAPS = 1 << 16

#: The precision of :attr:`Mode.jump`.
_JUMP_BITS = 30
_JUMP_DIGITS = 8


@dataclass(frozen=True)
class Mode:
    """An interpolation mode, for one axis."""

    base: Callable[[Namespace, Values], Values]  #: the pixel from which the taps are counted
    offsets: tuple[int, ...]  #: the taps, in pixels from the base
    #: Converts distances from the base in pixels, (…, 1, P), to the taps' weights, (…, T, P); None
    #: if there is one tap.
    weights: Callable[[Namespace, Values], Values] | None
    pads_taps: bool  #: whether padding applies to each tap instead of to the coordinate
    #: The largest term that is added up for a weight, by which its rounding is bounded.
    largest_term: float = 1.0

    def __post_init__(self) -> None:
        check_mode(self)

    @property
    def copies_values(self) -> bool:
        """Whether values of X are only copied, so that X can be of any type."""
        return self.weights is None

    @property
    def taps(self) -> int:
        """The number of pixels of an axis that a coordinate reads."""
        return len(self.offsets)

    @property
    def jump(self) -> float:
        """The fraction of a pixel coordinate at which the base becomes the next pixel."""
        low, high = 0.0, 1.0  # whose bases are 0 and 1
        for _ in range(_JUMP_BITS):
            middle = (low + high) / 2
            if self.base(np, np.array([middle]))[0] > 0:
                high = middle
            else:
                low = middle
        return round(high, _JUMP_DIGITS) % 1

    @property
    def outside_coordinate(self) -> float:
        """A normalized coordinate at which every tap is outside X on the same side.

        This holds for axes of any length, and for both signs.
        """
        return 2.0 * max(2, *map(abs, self.offsets)) + 3


def _linear(xp: Namespace, t: Values) -> Values:
    """Return the weights 1 - t and t: the weight of a tap is the distance from the other tap."""
    return _distances(t, (1, 0))


def _cubic(xp: Namespace, t: Values) -> Values:
    """Return Keys' weights for the distances d = 1 + t, t, 1 - t and 2 - t.

    There is one polynomial for the two outer taps and one for the two inner taps::

        outer: ((d - 5)·d + 8)·d·a - 4·a
        inner: ((a + 2)·d - (a + 3))·d·d + 1

    Both are evaluated as ``(((c3·d + c2)·d + c1)·d)·scale + c0``, where adding a c1 of -0 and
    multiplying by 1 change no bit, and compilers omit them.

    Source: Keys, "Cubic convolution interpolation for digital image processing" (1981).
    """
    a = CUBIC_A
    # c3, c2, c1, scale, c0
    outer = (1, -5, 8, a, -4 * a)
    inner = (a + 2, -a - 3, -0.0, 1, 1)
    coefficients = zip(outer, inner, inner, outer, strict=True)
    c3, c2, c1, scale, c0 = (_column(of_taps, t) for of_taps in coefficients)
    d = _distances(t, (-1, 0, 1, 2))
    weight = d * c3
    weight += c2
    weight *= d
    weight += c1
    weight *= d
    weight *= scale
    weight += c0
    return weight


#: The coefficients of the sine of π·x/3, divided by x, as a polynomial of x² for x in [0, 1]: its
#: Taylor series. The last term is less than half a unit in the last place of float64.
_SINE_TERMS = tuple(
    (-1) ** n * (math.pi / 3) ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(10)
)


def _lanczos3(xp: Namespace, t: Values) -> Values:
    """Return Lanczos' weights sinc(d)·sinc(d/3) for the distances d of six taps, 3 pixels wide.

    They are divided by their sum, so that a constant image remains constant. This also removes the
    sine of π·t, a factor of all of them up to the sign. What remains are the sines of π·d/3 divided
    by d². With p and q, those of t and 1 - t, they are q, p + q, p, q, p + q and p up to the sign.
    All are multiplied by t·(1 - t), so that no tap is divided by 0.

    Source: Turkowski, "Filters for common resampling tasks" (1990).
    """
    rest = 1 - t
    sine = _sine_of_third(t)
    other_sine = _sine_of_third(rest)
    factor = t * rest
    p = factor * (t * sine)
    q = factor * (rest * other_sine)
    negative = (p + q) * -1
    first = t + 2
    second = t + 1
    fifth = rest + 1
    sixth = rest + 2
    weights = (
        q / (first * first),
        negative / (second * second),
        rest * sine,
        t * other_sine,
        negative / (fifth * fifth),
        p / (sixth * sixth),
    )
    total = weights[0]
    for weight in weights[1:]:
        total = total + weight
    scale = 1 / total
    return xp.concatenate([weight * scale for weight in weights], axis=-2)


def _sine_of_third(x: Values) -> Values:
    """Return the sine of π·x/3, divided by x, for x in [0, 1]."""
    # Terms that no rounding to the type of x shows are omitted.
    smallest = float(np.finfo(x.dtype).eps) / 8
    terms = [term for term in _SINE_TERMS if abs(term) > smallest]
    square = x * x
    total = square * terms[-1] + terms[-2]
    for term in terms[-3::-1]:
        total = total * square + term
    return total


def _distances(t: Values, offsets: Sequence[int]) -> Values:
    """Return the distances of a coordinate from pixels at these ``offsets`` from its base.

    The coordinate lies ``t`` after the base, 0 ≤ t < 1. The distances are t - offset or, for pixels
    after the base, offset - t, and rounded once.
    """
    signs = [-1.0 if offset > 0 else 1.0 for offset in offsets]
    # For the base itself -0.0 is added, which changes no bit.
    starts = [-sign * offset for sign, offset in zip(signs, offsets, strict=True)]
    return t * _column(signs, t) + _column(starts, t)


def _column(of_taps: Sequence[float], like: Values) -> Array:
    """Return one number per tap, (T, 1), of the type of ``like``."""
    return np.array(of_taps, like.dtype)[:, None]


#: numpy's rint rounds half to even.
MODE_RULES: Mapping[str, Mode] = RowTable(
    {
        "nearest": Mode(lambda xp, x: xp.rint(x), (0,), None, pads_taps=False),
        "linear": Mode(lambda xp, x: xp.floor(x), (0, 1), _linear, pads_taps=False),
        "cubic": Mode(
            lambda xp, x: xp.floor(x), (-1, 0, 1, 2), _cubic, pads_taps=True, largest_term=8
        ),
        # An extension of this package: no specification has it.
        "lanczos3": Mode(lambda xp, x: xp.floor(x), tuple(range(-2, 4)), _lanczos3, pads_taps=True),
    },
    reserved=tuple(MODE_SYNONYMS),
)


def pads_taps(mode: Mode, padding: Padding) -> bool:
    """Whether the positions of taps are padded."""
    return mode.pads_taps or padding.pads_taps


def pixel_coordinates(
    xp: Namespace,
    g: Values,
    axis: Axis,
    mode: Mode,
    padding: Padding,
) -> Values:
    """Convert any normalized coordinates ``g`` to finite pixel coordinates.

    NaN counts as -1. The result is padded unless the taps are.
    """
    g = nan_as_minus_one(xp, g)
    if pads_taps(mode, padding):
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
    tap_pixel = tap_positions(mode, base, first_pixel)
    if pads_taps(mode, padding):
        tap_pixel = padding.pad(xp, tap_pixel, axis)
    if mode.weights is None:
        return tap_pixel, None
    distance = (x - base).astype(dtype, copy=False)
    return tap_pixel, mode.weights(xp, distance)


def tap_positions(mode: Mode, base: Values, first_pixel: int = 0) -> Values:
    """Return the positions of the taps that are counted from the pixels ``base``, unpadded."""
    offsets = [first_pixel + offset for offset in mode.offsets]
    return base if offsets == [0] else base + _column(offsets, base)
