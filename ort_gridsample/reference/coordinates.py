"""From a normalized coordinate to a pixel coordinate inside X: the specification's text, step by step.

Pixel coordinates put the centre of pixel i at i. All functions work on one axis of X or on several at once, and on
whatever their namespace ``xp`` works on: :mod:`numpy` on arrays, or an object that offers the same functions
(``clip``, ``equal``, ``fmod``, ``maximum``, ``minimum``, ``where``; for modes also ``abs``, ``concatenate``, ``floor``,
``rint``, ``sin``, ``sum``; for sums ``less``) on values of its own that have arithmetic, ``dtype`` and ``astype``.
Arithmetic is preferred to logic: more runtimes have the operators.
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
    span: Number  #: the distance of the two points of reflection; 1 where they are one
    align_corners: bool  #: the operator's attribute
    may_be_single: bool  #: whether it may be an axis of one pixel

    @property
    def may_collapse(self) -> bool:
        """Whether all finite coordinates may be one pixel, where infinity times 0 would be NaN."""
        return self.align_corners and self.may_be_single

    @classmethod
    def of(cls, length: Number, align_corners: bool, may_be_single: bool, maximum: Callable[..., Number] = max) -> Axis:
        """An axis of ``length`` pixels; ``maximum`` is the function for such a number."""
        last = length - 1
        return cls(length, last, maximum(last, 1) if align_corners else length, align_corners, may_be_single)


def unnormalize(g: Values, axis: Axis) -> Values:
    """The pixel coordinates of finite normalized coordinates ``g``, in ``g``'s own type.

    With ``align_corners`` -1 and 1 are the centres of the first and last pixel, otherwise their outer edges. The order
    of the operations is ONNX Runtime's, as it decides on which side of a tie a coordinate falls; ONNX Runtime halves
    the result instead of the length, which is exact too.
    """
    x = g + 1
    if axis.align_corners:
        x *= axis.last * 0.5
    else:
        x *= axis.length * 0.5
        x -= 0.5
    return x


def normalize(x: Values, last: Number, span: Number) -> Values:  # pragma: no mutate block, Numba compiles it too
    """The normalized coordinates of pixel coordinates ``x``, on an axis as :class:`Axis` describes it.

    Exact but for the division, and the inverse of :func:`unnormalize`. An axis of one pixel, aligned, is at 0.
    """
    return (x * 2 - last) / span


def clip(xp: Namespace, x: Values, axis: Axis) -> Values:
    """The nearest coordinate between the centres of the first and the last pixel."""
    return xp.minimum(xp.maximum(x, 0), axis.last)


def reflect(xp: Namespace, x: Values, axis: Axis) -> Values:
    """Reflect finite ``x`` until it lies inside: about the outer pixels' centres, or (not aligned) their outer edges.

    Coordinates inside keep every bit. The others are clipped, as rounding may leave them on the outer edge.
    """
    low = 0.0 if axis.align_corners else -0.5
    # Whole periods first, as fmod is exact for coordinates far out; then about either end.
    x = xp.fmod(x, axis.span * 2)
    x = xp.maximum(x, 2 * low - x)
    x = xp.minimum(x, (axis.last - low) * 2 - x)
    return clip(xp, x, axis)


def _near(xp: Namespace, g: Values, axis: Axis, beyond: float) -> Values:
    """Pixel coordinates where all those far out count alike: brought nearer, and still beyond every tap."""
    near = xp.clip(g, -beyond, beyond)
    x = unnormalize(near, axis)
    if axis.may_collapse:  # finite coordinates are the one pixel, infinity is not
        x = xp.where(xp.equal(g - g, 0), x, near * axis.length)
    return x


def _infinity_at_edge(xp: Namespace, g: Values, axis: Axis, beyond: float) -> Values:
    x = unnormalize(g, axis)
    return xp.where(xp.equal(x - x, 0), x, xp.clip(g, 0, 1) * axis.last)


@dataclass(frozen=True)
class Padding:
    """A padding mode."""

    #: The step on a coordinate where the mode pads coordinates (nearest, linear), or on a tap's position where it pads
    #: taps (cubic).
    pad: Callable[[Namespace, Values, Axis], Values]
    #: The step from normalized coordinates, infinity included, to finite pixel coordinates with the same answer.
    finite: Callable[[Namespace, Values, Axis, float], Values] = _infinity_at_edge
    zero_outside: bool = False  #: whether a tap that is still outside counts as 0
    bounds: bool = False  #: whether ``pad`` makes infinity finite as well


PADDING: Mapping[str, Padding] = {
    "zeros": Padding(lambda xp, x, axis: x, _near, zero_outside=True),
    "border": Padding(clip, _near, bounds=True),
    "reflection": Padding(reflect),
}
