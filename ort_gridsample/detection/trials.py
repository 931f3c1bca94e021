"""Test whether a model of basic operators computes GridSample or AffineGrid, by running it.

onnxruntime runs the model on inputs that distinguish all modes, paddings and alignments. The
results must equal those of one combination of attributes. The operators are linear in X and in
theta, and so few values of these inputs are enough. The coordinates of a grid are at all borders,
around them and far outside. A model that depends on unknown lengths runs with several lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import onnx

from ..dialects.spelling import AttributeValue
from ..inference.probe import Probe
from ..inference.types import TypeAndShape
from ..reference import affine, sampler
from ..reference.arrays import Array
from ..reference.coordinates import PADDING_RULES
from ..reference.plan import plan_for
from ..reference.taps import MODE_RULES
from .trial_inputs import (
    PossibleSample,
    SampleAttributes,
    first_round_feeds,
    later_feeds,
    possible_shapes,
    typed_inputs,
)
from .trial_rows import feeds_that_differ, without_equal
from .trial_ties import agrees_at_ties

#: The maximum number of positions of a run that are compared while several combinations of
#: attributes are possible.
MAX_COMPARED = 1 << 12
#: The same when only one combination is possible.
MAX_COMPARED_WITH_LAST = 1 << 16
#: Tolerance: above rounding error, below the difference between any two combinations of attributes.
TOLERANCE = 2e-4
#: The maximum error of a result, in roundings of the values and coordinates. In modes of many taps,
#: it is the number of taps of all axes.
MAX_ROUNDINGS = 8

#: The input ``size`` of an AffineGrid, with None instead of a batch that theta has.
AffineGridSize = tuple[int | None, ...]


class TrialResult(NamedTuple):
    """The operator that a model computes.

    Attributes:
        attributes: the attributes of the operator.
        image_lengths: for a GridSample whose X has all pixels on one axis, the height and the
            width. Otherwise empty.
        size: for an AffineGrid, its input ``size``. Otherwise empty.
    """

    attributes: Mapping[str, AttributeValue]
    image_lengths: tuple[int, ...] = ()
    size: AffineGridSize = ()


def is_flat(X: TypeAndShape, grid: TypeAndShape) -> bool:
    """Whether an image X (N, C, pixels) has all its pixels on one axis, for a grid of two axes."""
    return X.rank == 3 and grid.rank == 4


def try_sample(
    model: onnx.ModelProto, values: Sequence[TypeAndShape], probe: Probe
) -> TrialResult | None:
    """Return the attributes of the GridSample that a model computes, and the lengths of a flat X.

    Args:
        values: the types and shapes of its inputs: X, grid, and values whose shapes it reads.

    Returns:
        The result, or None if the model computes no GridSample.
    """
    n_axes = len(values[1].shape or ()) - 2
    equal_batches = ((0, 0), (1, 0))
    shapes = list(possible_shapes(values, [equal_batches, ((1, n_axes + 1), n_axes)]))
    if not shapes:
        return None
    possible = _all_samples(shapes[0][0], has_flat_pixels=is_flat(*values[:2]))
    # The first round is separate, because it excludes most models that compute something else.
    feeds = first_round_feeds(shapes[0], values, jumps=_jumps(possible))
    possible = _after_runs(possible, feeds, model, probe)
    if not possible:
        return None
    feeds_of_runs = later_feeds(
        shapes,
        values,
        jumps=_jumps(possible),
        image_lengths=possible[0].image_lengths,
    )
    possible = _after_runs(possible, list(feeds_of_runs), model, probe)
    if len(possible) > 1:
        possible = without_equal(possible)
    if len(possible) > 1:
        feeds = list(feeds_that_differ(possible, shapes, values))
        possible = _after_runs(possible, feeds, model, probe)
    if len(possible) != 1:
        return None
    (sample,) = possible
    if MODE_RULES[sample.attributes.mode].copies_values:
        for run_shapes in shapes:
            if not agrees_at_ties(model, run_shapes, values, probe, sample):
                return None
    return _result_of(sample)


def _result_of(sample: PossibleSample) -> TrialResult:
    """Return a sample as the result of its trials."""
    attributes: dict[str, AttributeValue] = {
        "mode": sample.attributes.mode,
        "padding_mode": sample.attributes.padding_mode,
        "align_corners": int(sample.attributes.align_corners),
    }
    return TrialResult(attributes, sample.image_lengths)


def _jumps(possible: Sequence[PossibleSample]) -> list[float]:
    """Return the fractions of a pixel at which the results of some samples jump."""
    modes = [MODE_RULES[name] for name in {sample.attributes.mode: None for sample in possible}]
    return [mode.jump for mode in modes if mode.copies_values]


def _after_runs(
    possible: Sequence[PossibleSample],
    feeds: Sequence[Sequence[Array]],
    model: onnx.ModelProto,
    probe: Probe,
) -> list[PossibleSample]:
    """Run the model; return the samples that have its results, or [] if it does not run."""
    results = probe.outputs(model, feeds)
    if results is None:
        return []
    return _still_possible(possible, feeds, results)


def _still_possible(
    possible: Sequence[PossibleSample],
    feeds: Sequence[Sequence[Array]],
    results: Sequence[Sequence[Array]],
) -> list[PossibleSample]:
    """Return the samples that have the results of all runs.

    Args:
        feeds: the inputs of each run.
        results: the outputs of each run, of which the first one counts.
    """
    remaining = list(possible)
    for (X, grid, *_), (result, *_) in zip(feeds, results, strict=True):
        n_compared = MAX_COMPARED_WITH_LAST if len(remaining) == 1 else MAX_COMPARED
        remaining = [
            sample for sample in remaining if _is_sample(sample, X, grid, result, n_compared)
        ]
    return remaining


def _all_samples(X_shape: Sequence[int], *, has_flat_pixels: bool) -> list[PossibleSample]:
    """Return all GridSamples that a model may compute.

    Args:
        X_shape: the shape of X.
        has_flat_pixels: whether X is (N, C, pixels).
    """
    possible_lengths: list[tuple[int, ...]] = [()]
    if has_flat_pixels:
        pixels = X_shape[2]
        possible_lengths = [(height, pixels // height) for height in _divisors(pixels)]
    combinations = product(MODE_RULES, PADDING_RULES, (False, True))
    all_attributes = [SampleAttributes(*combination) for combination in combinations]
    return [PossibleSample(*sample) for sample in product(all_attributes, possible_lengths)]


def _divisors(number: int) -> list[int]:
    """Return the divisors of a number of pixels in ascending order."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    large = [number // divisor for divisor in reversed(small) if divisor**2 < number]
    return small + large


def _is_sample(
    sample: PossibleSample,
    X: Array,
    grid: Array,
    result: Array,
    max_positions: int,
) -> bool:
    """Whether ``result`` is that of a GridSample, at ``max_positions`` of the positions."""
    attributes = sample.attributes
    X = X.reshape(*X.shape[:2], *(sample.image_lengths or X.shape[2:]))
    *outer, n_axes = grid.shape
    if result.dtype != X.dtype or result.shape != (*X.shape[:2], *outer[1:]):
        return False
    n_positions = math.prod(outer[1:])
    chosen = np.arange(n_positions)
    if n_positions > max_positions:
        chosen = np.random.default_rng(0).choice(chosen, max_positions, replace=False)
        chosen[[0, -1]] = 0, n_positions - 1
    expected = np.empty((*X.shape[:2], len(chosen)), X.dtype)
    coordinates = np.ascontiguousarray(grid.reshape(len(grid), n_positions, n_axes)[:, chosen])
    sampler.grid_sample(X, coordinates, expected, plan_for(X.dtype, *attributes), 1)
    innermost_first = X.shape[2:][::-1]
    pixels = ((abs(coordinates) + 1) * innermost_first / 2).sum(-1)[:, None]
    largest_term = MODE_RULES[attributes.mode].largest_term
    # Each tap adds a rounding of its weight and of the sum, on each axis.
    n_roundings = max(MAX_ROUNDINGS, MODE_RULES[attributes.mode].taps * n_axes)
    # The effect of a coordinate's rounding grows with the differences in X.
    magnitudes = largest_term * np.max(np.abs(X)) + np.ptp(X) * pixels
    compared = result.reshape(*X.shape[:2], n_positions)[..., chosen]
    return _are_equal(compared, expected, magnitudes, grid.dtype, n_roundings)


def _are_equal(
    result: Array,
    expected: Array,
    magnitudes: Array,
    coarser: np.dtype[Any],
    n_roundings: int = MAX_ROUNDINGS,
) -> bool:
    """Whether two arrays are equal up to so many roundings of values of these ``magnitudes``.

    They are rounded to the arrays' type, or to a ``coarser`` one.
    """
    epsilon = max(np.finfo(result.dtype).eps, np.finfo(coarser).eps)
    tolerance = np.minimum(TOLERANCE, n_roundings * epsilon * magnitudes)
    return bool((abs(result - expected) <= tolerance).all())


def try_affine_grid(
    model: onnx.ModelProto, values: Sequence[TypeAndShape], probe: Probe
) -> TrialResult | None:
    """Return the attributes and the size of the AffineGrid that a model computes.

    Args:
        values: the types and shapes of its inputs: theta, and values whose shapes it reads.

    Returns:
        The result, or None if the model computes no AffineGrid.
    """
    for n_axes in (2, 3):
        result = _try_affine_grid_of(n_axes, model, values, probe)
        if result is not None:
            return result
    return None


def _try_affine_grid_of(
    n_axes: int,
    model: onnx.ModelProto,
    values: Sequence[TypeAndShape],
    probe: Probe,
) -> TrialResult | None:
    """Like :func:`try_affine_grid`, but only for a theta of this number of spatial axes."""
    possible = [False, True]
    sizes = set[AffineGridSize]()
    for shapes in possible_shapes(values, [((0, 1), n_axes), ((0, 2), n_axes + 1)]):
        generators = [np.random.default_rng(seed) for seed in range(2)]
        thetas = [generator.uniform(-2, 2, shapes[0]) for generator in generators]
        feeds = [typed_inputs([theta], shapes, values) for theta in thetas]
        results = probe.outputs(model, feeds)
        if results is None:  # the model may need a theta of the other number of axes
            return None
        for (theta, *_), (result, *_) in zip(feeds, results, strict=True):
            possible = [
                align_corners
                for align_corners in possible
                if _is_affine_grid(theta, result, n_axes, align_corners)
            ]
            sizes.add((1, *result.shape[1:-1]))
    if not possible or len(sizes) != 1:
        return None
    batch = (values[0].shape or (None,))[0]
    size = (batch if isinstance(batch, int) else None, *sizes.pop())
    return TrialResult({"align_corners": int(possible[0])}, size=size)


def _is_affine_grid(theta: Array, result: Array, n_axes: int, align_corners: bool) -> bool:
    lengths = result.shape[1 : 1 + n_axes]
    if result.dtype != theta.dtype or result.shape != (len(theta), *lengths, n_axes):
        return False
    expected = np.empty_like(result)
    affine.affine_grid(theta, lengths, align_corners, expected, 1)
    return _are_equal(result, expected, np.max(np.abs(theta).sum(-1)), theta.dtype)
