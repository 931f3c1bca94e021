"""The taps of vectors, of a table and of the NumPy core: the same pixels and weights, bit for bit.

X has a channel for each pixel, which is 1 at this pixel and 0 elsewhere. So an output is the sum of
the weights with which a position reads a pixel. Up to two weights have the same sum in any order.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings

import ort_gridsample as ogs
from fuzz import is_nightly
from ort_gridsample.reference.coordinates import PADDING_RULES, Axis
from ort_gridsample.reference.taps import MODE_RULES, axis_taps
from support.compare import about

pytest.importorskip("numba", reason="the compiled core needs Numba")

from ort_gridsample.kernels import jit_core

pytestmark = [pytest.mark.usefixtures("default_core"), pytest.mark.timeout(1800)]

#: The cases of each mode: all attributes with random lengths and coordinates.
N_CASES = settings().max_examples if is_nightly() else 40
#: Coordinates far outside, or not finite.
FAR = np.array([1e10, -1e10, 3.4e38, -3.4e38, np.nan, np.inf, -np.inf, 30, -30, 1e4])


class Sample(NamedTuple):
    lengths: tuple[int, ...]
    grid: np.ndarray
    mode: str
    padding_mode: str
    align_corners: bool


def samples(mode: str) -> Iterator[Sample]:
    """Yield random cases: 1 to 3 axes, some shorter than the taps, with far coordinates."""
    rng = np.random.default_rng(MODE_RULES[mode].taps)
    attributes = itertools.cycle(itertools.product(PADDING_RULES, (False, True)))
    for padding_mode, align_corners in itertools.islice(attributes, N_CASES):
        r = int(rng.integers(1, 4))
        shortest = rng.choice([1, MODE_RULES[mode].taps])
        longest = shortest + {1: 30, 2: 4, 3: 1}[r]
        lengths = tuple(int(length) for length in rng.integers(shortest, longest + 1, r))
        pixels = np.array(lengths[::-1])
        shape = (int(rng.choice([3, 16, 33, 70])), r)
        width = rng.choice([0.9, 1.5, 8])
        choices = [
            rng.uniform(-width, width, shape),
            (rng.integers(-2, pixels + 2, shape) * 2 + 1) / pixels - 1,  # centers of pixels
            rng.integers(-2, pixels + 2, shape) * 2 / pixels - 1,  # their edges
            rng.choice(FAR, shape),
        ]
        choice = rng.choice(len(choices), shape, p=[0.5, 0.2, 0.2, 0.1])
        with np.errstate(over="ignore"):
            grid = np.choose(choice, choices).astype(np.float32)
        yield Sample(lengths, grid, mode, padding_mode, align_corners)


def reads_per_pixel(sample: Sample) -> np.ndarray:
    """Return how many taps of each position read each pixel (pixels, positions)."""
    counts = []
    for length, g in zip(sample.lengths, sample.grid.T[::-1], strict=True):
        axis = Axis.of(length, sample.align_corners, may_be_single=length == 1)
        mode = MODE_RULES[sample.mode]
        with np.errstate(all="ignore"):
            pixels, _ = axis_taps(
                np, g[None], axis, mode, PADDING_RULES[sample.padding_mode], "float32"
            )
        counts.append((pixels == np.arange(length)[:, None, None]).sum(1))
    return reduce(lambda outer, inner: (outer[:, None] * inner).reshape(-1, inner.shape[1]), counts)


def outputs(sample: Sample) -> dict[str, np.ndarray]:
    """Return the sum of the weights of each pixel and position, by the way it is computed."""
    n_pixels = int(np.prod(sample.lengths))
    X = np.eye(n_pixels, dtype=np.float32).reshape(1, n_pixels, *sample.lengths)
    grid = sample.grid.reshape(1, -1, *(1,) * (len(sample.lengths) - 1), len(sample.lengths))
    attributes: Any = sample[2:]
    results = {}
    ogs.set_core("numpy")
    results["NumPy"] = ogs.grid_sample(X, grid, *attributes)
    ogs.set_core("jit")
    kernel = jit_core._sampling_functions("float32", "float32", *attributes).kernel
    results["panels"] = ogs.grid_sample(X, grid, *attributes)
    with without(kernel, "pack"):
        results["vectors"] = ogs.grid_sample(X, grid, *attributes)
        with without(kernel, "sample_in_vectors"):
            results["table"] = ogs.grid_sample(X, grid, *attributes)
    return {way: Y.reshape(n_pixels, -1) for way, Y in results.items()}


@contextmanager
def without(kernel: Any, function: str) -> Iterator[None]:
    """Remove a function of a kernel descriptor for a while. Kernels are cached."""
    address = getattr(kernel, function)
    setattr(kernel, function, 0)
    try:
        yield
    finally:
        setattr(kernel, function, address)


@pytest.mark.parametrize("mode", MODE_RULES)
def test_taps_of_random_cases_are_the_same_to_the_bit(mode: str) -> None:
    n_compared = 0
    for sample in samples(mode):
        expected, *others = outputs(sample).items()
        is_compared = reads_per_pixel(sample) <= 2
        n_compared += int(is_compared.sum())
        for way, Y in others:
            with about((way, sample)):
                bits = Y.view(np.uint32)[is_compared]
                np.testing.assert_array_equal(bits, expected[1].view(np.uint32)[is_compared])
    assert n_compared > 100 * N_CASES


@pytest.mark.parametrize("edge", [-1, 1])
@pytest.mark.parametrize("length", [2, 3, 4, 5])
@pytest.mark.parametrize("padding_mode", PADDING_RULES)
def test_nearest_pixel_of_an_outer_edge_is_that_of_the_padded_coordinate(
    padding_mode: str, length: int, edge: int
) -> None:
    """The edge is a tie, and padding may move it to a tie that is rounded to another pixel."""
    grid = np.array([[edge]], np.float32)
    sample = Sample((length,), grid, "nearest", padding_mode, False)
    expected, *others = outputs(sample).items()
    for way, Y in others:
        with about(way):
            np.testing.assert_array_equal(Y, expected[1])
