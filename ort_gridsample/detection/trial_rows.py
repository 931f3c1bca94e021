"""Tell apart GridSamples that have the same results in the first rounds of a trial.

Two rows of modes or paddings may differ in one alignment only, or only at coordinates that a trial
does not use. If such rows were not told apart, a new row could prevent that an existing row is
recognized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from ..inference.types import TypeAndShape
from ..reference.arrays import Array
from ..reference.coordinates import PADDING_RULES, Axis, normalize
from ..reference.taps import MODE_RULES, axis_taps
from .trial_inputs import InputShapes, PossibleSample, SampleAttributes, typed_inputs

#: The lengths of the axes on which rows are compared.
_LENGTHS = (1, 2, 3, 4, 5, 7, 10)
#: The weights of a pixel differ by at most this if two samples are equal, and by at least this at
#: the coordinates of feeds that tell two samples apart.
_MAX_EQUAL = 1e-6
_MIN_DIFFERENT = 1e-2
#: The number of coordinates per pixel, and the distance of the first one from a pixel: none is near
#: a centre or an edge of a pixel in either alignment, where a rounding could decide.
_COORDINATES_PER_PIXEL = 12
_FIRST_COORDINATE = 0.0131
#: The coordinates are so many pixels and lengths outside of an axis.
_PIXELS_OUTSIDE = 8
_LENGTHS_OUTSIDE = 4
#: Normalized coordinates far outside, on one side.
_FAR = np.geomspace(100, 1e9, 64)


def without_equal(possible: Sequence[PossibleSample]) -> list[PossibleSample]:
    """Return the samples without those that equal an earlier one for every X and grid.

    The order is that of the tables of modes and paddings, so that an existing row comes first.
    """
    different: list[PossibleSample] = []
    for sample in possible:
        if not any(_are_equal(sample, other) for other in different):
            different.append(sample)
    return different


def _are_equal(sample: PossibleSample, other: PossibleSample) -> bool:
    if sample.image_lengths != other.image_lengths:
        return False
    for length in _LENGTHS:
        g = _coordinates(length, sample.attributes.align_corners)
        weights = _pixel_weights(sample.attributes, length, g)
        difference = weights - _pixel_weights(other.attributes, length, g)
        if np.abs(difference).max(initial=0) > _MAX_EQUAL:
            return False
    return True


def feeds_that_differ(
    possible: Sequence[PossibleSample],
    shapes_of_runs: Sequence[InputShapes],
    values: Sequence[TypeAndShape],
) -> Iterator[list[Array]]:
    """Yield feeds for which the results of the samples differ, as far as there are any.

    Args:
        shapes_of_runs: shapes that the inputs may have.
        values: the types of the inputs.
    """
    for sample, other in combinations(possible, 2):
        for shapes in shapes_of_runs:
            lengths = (sample.image_lengths or shapes[0][2:])[::-1]
            for index, length in enumerate(lengths):
                g = _coordinates(length, sample.attributes.align_corners)
                first, second = (
                    _pixel_weights(attributes, length, g)
                    for attributes in (sample.attributes, other.attributes)
                )
                differing = g[(abs(first - second) > _MIN_DIFFERENT).any(1)]
                if len(differing):
                    yield _feeds_at(differing, index, shapes, values)


def _feeds_at(
    coordinates: Array, axis_index: int, shapes: InputShapes, values: Sequence[TypeAndShape]
) -> list[Array]:
    """Return random feeds with these coordinates on an axis."""
    generator = np.random.default_rng(0)
    X = generator.uniform(-1, 1, shapes[0])
    grid = generator.uniform(-0.5, 0.5, shapes[1])
    grid[..., axis_index] = generator.choice(coordinates, grid.shape[:-1])
    return typed_inputs((X, grid), shapes, values)


def _coordinates(length: int, align_corners: bool) -> Array:
    """Return normalized coordinates on an axis: inside, around and far outside."""
    axis = Axis.of(length, align_corners, may_be_single=length == 1)
    outside = _PIXELS_OUTSIDE + _LENGTHS_OUTSIDE * length
    pixels = np.arange(-outside, length + outside, 1 / _COORDINATES_PER_PIXEL) + _FIRST_COORDINATE
    near = normalize(pixels, axis.last, axis.span)
    return np.concatenate([near, -_FAR, _FAR])


def _pixel_weights(attributes: SampleAttributes, length: int, g: Array) -> Array:
    """Return the weight of each pixel of an axis at each of the coordinates ``g``."""
    mode = MODE_RULES[attributes.mode]
    padding = PADDING_RULES[attributes.padding_mode]
    axis = Axis.of(length, attributes.align_corners, may_be_single=length == 1)
    pixels, weights = axis_taps(np, g[None], axis, mode, padding, "float64")
    if weights is None:
        weights = np.ones(pixels.shape)
    inside = np.clip(pixels, 0, axis.last)
    if padding.zero_outside:
        weights = np.where(pixels == inside, weights, 0)
    # A tap outside with another padding reads the outer pixel.
    all_weights = np.zeros((len(g), length))
    for tap, weight in zip(inside.astype(np.intp), weights, strict=True):
        all_weights[np.arange(len(g)), tap] += weight
    return all_weights
