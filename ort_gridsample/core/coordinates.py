"""From a normalized coordinate to a pixel coordinate inside X: the specification's text, step by step.

All functions work on arrays of one axis' coordinates. ``length`` is the number of pixels of X on that axis; pixel
coordinates put the centre of pixel i at i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .arrays import Floats


def denormalize(g: Floats, length: int, align_corners: bool) -> Floats:
    """Pixel coordinates of the normalized coordinates ``g``, in ``g``'s own type; see :func:`settle` for NaN and inf.

    With ``align_corners`` -1 and 1 are the centres of the first and last pixel, otherwise their outer edges. The order
    of the operations is ONNX Runtime's: it decides on which side of a tie a coordinate falls.
    """
    x = g + g.dtype.type(1)
    if align_corners:
        x *= 0.5
        x *= length - 1
    else:
        x *= length
        x -= 1
        x *= 0.5
    return x


def settle(x: Floats, g: Floats, length: int, align_corners: bool) -> None:
    """Mend, in ``x``, the pixel coordinates of what is not finite in ``g``.

    NaN counts as -1. An infinite ``g`` stays infinite: it is outside, whatever the length.
    """
    x[np.isnan(g)] = denormalize(np.array([-1], g.dtype), length, align_corners)
    np.copyto(x, g, where=np.isinf(g))  # infinity times a span of 0 is no coordinate


def reflect(x: Floats, length: int, align_corners: bool) -> Floats:
    """Reflect finite ``x`` until it lies inside: about the outer pixels' centres, or (not aligned) their outer edges.

    What lies inside already stays as it is, bit for bit.
    """
    low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
    span = high - low
    if span == 0:
        return np.zeros_like(x)
    # Whole periods first: fmod is exact, so that a coordinate far out loses nothing.
    distance = np.abs(np.fmod(x, 2 * span) - low)
    reflected = low + np.abs(span - np.abs(span - distance))
    return np.where((x >= low) & (x <= high), x, reflected)


def clip(x: Floats, length: int) -> Floats:
    """The nearest coordinate between the centres of the first and the last pixel."""
    return np.clip(x, 0, length - 1)


@dataclass(frozen=True)
class Padding:
    """A padding mode, for one axis of ``length`` pixels.

    Attributes:
        bound: makes any coordinate finite without changing what the mode answers for it.
        move: moves a finite coordinate (nearest, linear) or the index of a tap (cubic) inside.
        zero_outside: whether a tap that is still outside counts as 0.
    """

    bound: Callable[[Floats, int], Floats]
    move: Callable[[Floats, int, bool], Floats]
    zero_outside: bool = False


def _beyond_every_tap(x: Floats, length: int) -> Floats:
    return np.clip(x, -4, length + 3)


def _infinity_at_edge(x: Floats, length: int) -> Floats:
    return np.where(np.isinf(x), clip(x, length), x)


#: A mode's ``move`` for cubic acts on indices: see ``taps.Mode.pads_index``.
PADDING: Mapping[str, Padding] = {
    "zeros": Padding(_beyond_every_tap, lambda x, length, align_corners: x, zero_outside=True),
    "border": Padding(_beyond_every_tap, lambda x, length, align_corners: clip(x, length)),
    "reflection": Padding(
        _infinity_at_edge, lambda x, length, align_corners: clip(reflect(x, length, align_corners), length)
    ),
}
