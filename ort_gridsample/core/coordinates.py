"""From a normalized coordinate to a pixel coordinate inside X: the specification's text, step by step.

Pixel coordinates put the centre of pixel i at i. All functions work on one axis of X or on several at once, and on
whatever their namespace ``xp`` works on: :mod:`numpy` on arrays, or an object that offers the same functions
(``abs``, ``clip``, ``equal``, ``fmod``, ``isinf``, ``where``; for modes also ``concatenate``, ``floor``, ``rint``) on
values of its own that have arithmetic, comparisons, ``&``, ``dtype`` and ``astype``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Namespace: TypeAlias = Any  #: numpy, or what offers some of its functions
Values: TypeAlias = Any  #: floating point: an array, or what ``xp`` works on
Number: TypeAlias = Any  #: a float, or values that broadcast against others


@dataclass(frozen=True)
class Axis:
    """What coordinates are told of an axis of X.

    Attributes:
        length: its number of pixels, as a coordinate.
        last: the coordinate of its last pixel.
        span: how far the two points of reflection are from each other; 1 where they are one.
        align_corners: the operator's attribute.
        may_be_single: whether it may be an axis of one pixel.
    """

    length: Number
    last: Number
    span: Number
    align_corners: bool
    may_be_single: bool

    @classmethod
    def of(cls, length: int, align_corners: bool) -> Axis:
        """An axis of ``length`` pixels."""
        span = max(length - 1, 1) if align_corners else length
        return cls(float(length), float(length - 1), float(span), align_corners, length == 1)


def unnormalize(g: Values, axis: Axis) -> Values:
    """The pixel coordinates of finite normalized coordinates ``g``, in ``g``'s own type.

    With ``align_corners`` -1 and 1 are the centres of the first and last pixel, otherwise their outer edges. The order
    of the operations is ONNX Runtime's: it decides on which side of a tie a coordinate falls. It halves the result
    instead of the length, but to halve is exact.
    """
    x = g + 1
    if axis.align_corners:
        x *= axis.last * 0.5
    else:
        x *= axis.length * 0.5
        x -= 0.5
    return x


def unnormalize_all(xp: Namespace, g: Values, axis: Axis) -> Values:
    """As :func:`unnormalize` for any ``g``: NaN counts as -1, and what is infinite stays so, whatever the length."""
    g = xp.where(xp.equal(g, g), g, -1)
    x = unnormalize(g, axis)
    if axis.align_corners and axis.may_be_single:  # infinity times 0 is no coordinate
        x = xp.where(xp.isinf(g), g, x)
    return x


def clip(xp: Namespace, x: Values, axis: Axis) -> Values:
    """The nearest coordinate between the centres of the first and the last pixel."""
    return xp.clip(x, 0, axis.last)


def reflect(xp: Namespace, x: Values, axis: Axis) -> Values:
    """Reflect finite ``x`` until it lies inside: about the outer pixels' centres, or (not aligned) their outer edges.

    What lies inside already stays as it is, bit for bit. Rounding may leave the other on the outer edge: it is clipped.
    """
    # Whole periods first: fmod is exact, so that a coordinate far out loses nothing.
    distance = xp.fmod(x, axis.span * 2)
    if axis.align_corners:
        low, high = 0.0, axis.last
        reflected = xp.abs(axis.span - xp.abs(axis.span - xp.abs(distance)))
    else:
        low, high = -0.5, axis.last + 0.5
        distance = xp.abs(distance + 0.5)
        reflected = xp.abs(axis.span - xp.abs(axis.span - distance)) - 0.5
    return clip(xp, xp.where((x >= low) & (x <= high), x, reflected), axis)


def _as_it_is(xp: Namespace, x: Values, axis: Axis) -> Values:
    return x


def _beyond_every_tap(xp: Namespace, x: Values, axis: Axis) -> Values:
    return xp.clip(x, -4, axis.last + 4)


def _infinity_at_edge(xp: Namespace, x: Values, axis: Axis) -> Values:
    return xp.where(xp.isinf(x), clip(xp, x, axis), x)


Step = Callable[[Namespace, Values, Axis], Values]


@dataclass(frozen=True)
class Padding:
    """A padding mode.

    Attributes:
        coordinate: what becomes of a coordinate where the mode pads those (nearest, linear): finite afterwards.
        bound: makes a coordinate finite, without changing what the mode answers for it, where taps are padded (cubic).
        tap: what becomes of a tap's position there.
        zero_outside: whether a tap that is still outside counts as 0.
    """

    coordinate: Step
    bound: Step
    tap: Step
    zero_outside: bool = False


PADDING: Mapping[str, Padding] = {
    "zeros": Padding(_beyond_every_tap, _beyond_every_tap, _as_it_is, zero_outside=True),
    "border": Padding(clip, _beyond_every_tap, clip),
    "reflection": Padding(
        lambda xp, x, axis: reflect(xp, _infinity_at_edge(xp, x, axis), axis), _infinity_at_edge, reflect
    ),
}
