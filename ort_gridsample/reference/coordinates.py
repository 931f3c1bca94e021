"""From a normalized coordinate to a pixel coordinate inside X, step by step as specified.

In pixel coordinates the center of pixel i is at i. All functions work on one axis of X, or on
several axes at once. Their namespace ``xp`` is :mod:`numpy`, or an object that has the same
functions for values of another kind: ``abs``, ``clip``, ``concatenate``, ``equal``, ``floor``,
``fmod``, ``less``, ``maximum``, ``minimum``, ``rint``, ``sin``, ``sum``, ``where``. Rows use no
others (:mod:`.row_checks`).

Such values have arithmetic operators, ``dtype`` and ``astype``. Arithmetic is preferred to logic,
because more runtimes have the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .row_checks import RowTable, check_padding

Namespace: TypeAlias = Any  #: numpy, or an object with some of its functions
Values: TypeAlias = Any  #: floating point: an array, or the namespace's values
Number: TypeAlias = Any  #: a float, or values that broadcast against others


@dataclass(frozen=True)
class Axis:
    """An axis of X."""

    length: Number  #: its number of pixels, as a coordinate
    last: Number  #: the coordinate of its last pixel
    span: Number  #: the distance of the two points of reflection; 1 if they coincide
    scale: Number  #: the pixels per unit of a normalized coordinate
    offset: Number | None  #: the distance of the first pixel from -1, in pixels; None: it is 0
    low: Number  #: the lower point of reflection: the center or the outer edge of the first pixel
    #: Whether all finite coordinates may map to one pixel; infinity times 0 is NaN there.
    may_collapse: bool
    #: The function that computes the maximum of two of these numbers.
    maximum: Callable[..., Number] = max

    @classmethod
    def of(
        cls,
        length: Number,
        align_corners: bool,
        *,
        may_be_single: bool,
        maximum: Callable[..., Number] = max,
    ) -> Axis:
        """Return an axis of ``length`` pixels.

        Args:
            length: a number, or values of several axes.
            may_be_single: whether the length may be 1.
            maximum: the function that computes the maximum of a length and a number.
        """
        last = length - 1
        if align_corners:
            span = maximum(last, 1)
            return cls(length, last, span, last * 0.5, None, 0.0, may_be_single, maximum)
        return cls(length, last, length, length * 0.5, 0.5, -0.5, False, maximum)


def nan_as_minus_one(xp: Namespace, g: Values) -> Values:
    """Replace NaN among normalized coordinates by -1."""
    return xp.where(xp.equal(g, g), g, -1)


def unnormalize(g: Values, axis: Axis) -> Values:
    """Convert finite normalized coordinates ``g`` to pixel coordinates of the same type.

    With ``align_corners`` -1 and 1 are the centers of the first and the last pixel, otherwise their
    outer edges. The order of the operations is ONNX Runtime's, because rounding decides on which
    side of a tie a coordinate lies. ONNX Runtime halves the result instead of the length. Both are
    exact.
    """
    x = g + 1
    x *= axis.scale
    if axis.offset is not None:
        x -= axis.offset
    return x


def normalize(x: Values, last: Number, span: Number) -> Values:  # pragma: no mutate block
    """Convert pixel coordinates to normalized coordinates, the inverse of :func:`unnormalize`.

    ``last`` and ``span`` are those of an :class:`Axis`. All operations but the division are exact.
    The result is 0 on an axis of one pixel with ``align_corners``. Numba compiles this function
    too.
    """
    return (x * 2 - last) / span


def clip(xp: Namespace, x: Values, axis: Axis) -> Values:
    """Clip ``x`` to the centers of the first and the last pixel."""
    return xp.minimum(xp.maximum(x, 0), axis.last)


def _reflect_once(xp: Namespace, x: Values, axis: Axis) -> Values:
    """Reflect ``x``, less than a period from 0, once at each end.

    The points of reflection are the centers of the outer pixels with ``align_corners``, otherwise
    their outer edges. Coordinates inside X keep every bit. Others are clipped as well, because
    rounding may leave them on the outer edge.
    """
    x = xp.maximum(x, axis.low * 2 - x)
    x = xp.minimum(x, (axis.last - axis.low) * 2 - x)
    return clip(xp, x, axis)


def _wrap_once(xp: Namespace, x: Values, axis: Axis) -> Values:
    """Add or subtract the length where ``x``, at most a length from X, is outside.

    The period is the number of pixels, with either alignment. A coordinate between the last pixel
    and the first one lies between them, as in SciPy's ``grid-wrap``. One just before the first one
    may be rounded to the length, whose taps are those of 0.
    """
    not_before = xp.where(xp.less(x, axis.length), x, x - axis.length)
    return xp.where(xp.less(x, 0), x + axis.length, not_before)


@dataclass(frozen=True)
class Padding:
    """A padding mode.

    A mode pads coordinates (nearest, linear) or the positions of taps (cubic).
    """

    #: Pads finite pixel coordinates. If there is a ``period``, only those at most a period from 0.
    pad_once: Callable[[Namespace, Values, Axis], Values]
    #: The number of pixels after which the padding repeats itself. None: it never does, and then
    #: all coordinates that are far outside on one side have the same result.
    period: Callable[[Axis], Number] | None = None
    zero_outside: bool = False  #: whether a tap that is outside X after padding counts as 0
    #: Whether the positions of taps are padded in every mode, because those next to a coordinate
    #: inside may be anywhere. Coordinates are padded as well, so that results repeat themselves to
    #: the bit. ``pad_once`` then also pads taps up to a period after the last pixel.
    pads_taps: bool = False
    pad_handles_infinity: bool = False  #: whether ``pad`` makes infinity finite as well

    def __post_init__(self) -> None:
        check_padding(self, Axis.of)

    @property
    def needs_pixel(self) -> bool:
        """Whether the padding reads a pixel of X at every coordinate."""
        return not self.zero_outside

    def pad(self, xp: Namespace, x: Values, axis: Axis) -> Values:
        """Pad finite pixel coordinates, or positions of taps."""
        if self.period is not None:
            # fmod is exact, however large x is.
            x = xp.fmod(x, self.period(axis))
        return self.pad_once(xp, x, axis)

    def to_finite_pixels(
        self, xp: Namespace, g: Values, axis: Axis, outside_coordinate: float
    ) -> Values:
        """Convert any normalized coordinates to finite pixel coordinates with the same result.

        Args:
            xp: numpy, or another namespace.
            g: normalized coordinates, which may be infinite.
            outside_coordinate: :attr:`.taps.Mode.outside_coordinate`.
        """
        if self.period is None:
            x = _clip_far(xp, g, axis, outside_coordinate)
        else:
            x = infinity_at_edge(xp, unnormalize(g, axis), g, axis)
        return self.pad(xp, x, axis) if self.pads_taps else x


def _clip_far(xp: Namespace, g: Values, axis: Axis, outside_coordinate: float) -> Values:
    """Unnormalize ``g``, for paddings to which all coordinates far outside are equivalent.

    Coordinates beyond ±``outside_coordinate`` are clipped there, which is still outside for every
    tap.
    """
    near = xp.clip(g, -outside_coordinate, outside_coordinate)
    x = unnormalize(near, axis)
    if axis.may_collapse:
        # Every finite coordinate is the single pixel, but infinity is outside.
        x = xp.where(xp.equal(g - g, 0), x, near * axis.length)
    return x


def infinity_at_edge(xp: Namespace, x: Values, g: Values, axis: Axis) -> Values:
    """Replace the pixel coordinates ``x`` of ``g`` that are not finite by the outer pixels.

    They are those of infinite coordinates, and of coordinates that overflow.
    """
    return xp.where(xp.equal(x - x, 0), x, xp.clip(g, 0, 1) * axis.last)


PADDING_RULES: Mapping[str, Padding] = RowTable(
    {
        "zeros": Padding(lambda xp, x, axis: x, zero_outside=True),
        "border": Padding(clip, pad_handles_infinity=True),
        "reflection": Padding(_reflect_once, period=lambda axis: axis.span * 2),
        # An extension of this package: no specification has it.
        "wrap": Padding(_wrap_once, period=lambda axis: axis.length, pads_taps=True),
    }
)
