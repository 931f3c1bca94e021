"""From a normalized coordinate to a pixel coordinate inside X, step by step as specified.

In pixel coordinates the center of pixel i is at i. All functions work on one axis of X, or on
several axes at once. Their namespace ``xp`` is :mod:`numpy`, or an object that has the same
functions for values of another kind:

- for paddings ``clip``, ``equal``, ``fmod``, ``maximum``, ``minimum``, ``where``;
- for modes also ``abs``, ``concatenate``, ``floor``, ``rint``, ``sin``, ``sum``;
- for sums also ``less``.

Such values have arithmetic operators, ``dtype`` and ``astype``. Arithmetic is preferred to logic,
because more runtimes have the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Namespace: TypeAlias = Any  #: numpy, or an object with some of its functions
Values: TypeAlias = Any  #: floating point: an array, or the namespace's values
Number: TypeAlias = Any  #: a float, or values that broadcast against others


@dataclass(frozen=True)
class Axis:
    """An axis of X."""

    length: Number  #: its number of pixels, as a coordinate
    last: Number  #: the coordinate of its last pixel
    span: Number  #: the distance of the two points of reflection; 1 if they coincide
    align_corners: bool  #: the operator's attribute
    may_be_single: bool  #: whether the axis may have a length of 1

    @property
    def may_collapse(self) -> bool:
        """Whether all finite coordinates may map to one pixel; infinity times 0 is NaN there."""
        return self.align_corners and self.may_be_single

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
            align_corners: the operator's attribute.
            may_be_single: whether the length may be 1.
            maximum: the function that computes the maximum of a length and a number.
        """
        last = length - 1
        span = maximum(last, 1) if align_corners else length
        return cls(length, last, span, align_corners, may_be_single)


def unnormalize(g: Values, axis: Axis) -> Values:
    """Convert finite normalized coordinates ``g`` to pixel coordinates of the same type.

    With ``align_corners`` -1 and 1 are the centers of the first and the last pixel, otherwise their
    outer edges. The order of the operations is ONNX Runtime's, because rounding decides on which
    side of a tie a coordinate lies. ONNX Runtime halves the result instead of the length. Both are
    exact.
    """
    x = g + 1
    if axis.align_corners:
        x *= axis.last * 0.5
    else:
        x *= axis.length * 0.5
        x -= 0.5
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


def reflect(xp: Namespace, x: Values, axis: Axis) -> Values:
    """Reflect finite ``x`` until it lies inside X.

    The points of reflection are the centers of the outer pixels with ``align_corners``, otherwise
    their outer edges. Coordinates inside X keep every bit. Others are clipped as well, because
    rounding may leave them on the outer edge.
    """
    low = 0.0 if axis.align_corners else -0.5
    # Remove whole periods first: fmod is exact, however large x is. Then reflect at both ends.
    x = xp.fmod(x, axis.span * 2)
    x = xp.maximum(x, 2 * low - x)
    x = xp.minimum(x, (axis.last - low) * 2 - x)
    return clip(xp, x, axis)


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


def _infinity_at_edge(xp: Namespace, g: Values, axis: Axis, outside_coordinate: float) -> Values:
    """Unnormalize ``g``; infinities, and coordinates that overflow, become the outer pixels."""
    x = unnormalize(g, axis)
    return xp.where(xp.equal(x - x, 0), x, xp.clip(g, 0, 1) * axis.last)


@dataclass(frozen=True)
class Padding:
    """A padding mode."""

    #: Pads pixel coordinates if the mode pads coordinates (nearest, linear), or the positions of
    #: taps if it pads taps (cubic).
    pad: Callable[[Namespace, Values, Axis], Values]
    #: Converts normalized coordinates, which may be infinite, to finite pixel coordinates that have
    #: the same result. Its last argument is :attr:`.taps.Mode.outside_coordinate`.
    to_finite_pixels: Callable[[Namespace, Values, Axis, float], Values] = _infinity_at_edge
    zero_outside: bool = False  #: whether a tap that is outside X after padding counts as 0
    pad_handles_infinity: bool = False  #: whether ``pad`` makes infinity finite as well


PADDING_RULES: Mapping[str, Padding] = {
    "zeros": Padding(lambda xp, x, axis: x, _clip_far, zero_outside=True),
    "border": Padding(clip, _clip_far, pad_handles_infinity=True),
    "reflection": Padding(reflect),
}
