"""What must hold whatever the arrays are."""

from dataclasses import astuple

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import oracle
from cases import ATTRIBUTES, Attributes, image
from compare import assert_matches
from ort_gridsample import grid_sample, spec

pytestmark = pytest.mark.usefixtures("core")

quick = settings(max_examples=40, deadline=None, derandomize=True)

lengths = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
attributes = st.sampled_from(ATTRIBUTES)
NUMBERS = [name for name in spec.TYPES if name not in ("str", "bool")]
#: Types that the default run compiles kernels for.
COMPILED = ["float32", "float16", "uint8"]


@quick
@given(st.data(), lengths, attributes, st.integers(0, 2**32 - 1))
def test_a_constant_image_stays_constant(
    core: str, data: st.DataObject, lengths: tuple[int, ...], attributes: Attributes, seed: int
) -> None:
    X_type, rng = data.draw(st.sampled_from(COMPILED if core == "jit" else NUMBERS)), np.random.default_rng(seed)
    value = image(X_type, (1, 2, 50)).reshape(-1)[rng.integers(100)]
    grid = rng.uniform(-2.5, 2.5, (1, *(1,) * (len(lengths) - 1), 12, len(lengths)))
    if attributes.padding_mode == "zeros":  # inside only, where no tap is a zero
        x, n = 2 + rng.uniform(0, 1, grid.shape) * (np.array(lengths) - 1), np.array(lengths) + 4
        grid = (2 * x / (n - 1) - 1 if attributes.align_corners else (2 * x + 1) / n - 1)[..., ::-1]
        lengths = tuple(n)
    X = np.full((1, 1, *lengths), value)
    Y = grid_sample(X, grid.astype("d" if X_type == "float64" else "f"), *astuple(attributes))
    if attributes.mode == "nearest" or Y.dtype.kind in "iu":
        assert (value == Y).all()
    else:
        tolerance = 1e-12 if X_type in ("float64", "complex128") else 1e-4 if "32" in X_type or "64" in X_type else 1e-2
        np.testing.assert_allclose(Y.astype(np.complex128), np.complex128(value), rtol=tolerance)


#: Halves, which no weight of float32 makes subnormal.
finite = st.floats(-6e4, 6e4, width=16)
#: Any number whose pixel coordinate is finite, often nearby, and what is none.
anything = st.one_of(*(st.floats(-x, x, width=32) for x in (1.5, 2.0**120)), st.sampled_from([np.nan, np.inf, -np.inf]))


@settings(quick, max_examples=200)
@given(st.data(), lengths, attributes)
def test_any_arrays_match_the_oracle(data: st.DataObject, lengths: tuple[int, ...], attributes: Attributes) -> None:
    """X lies between numbers that are none: a tap that leaves it would show."""
    r = len(lengths)
    X = data.draw(arrays.arrays(np.float32, (2, 2, *lengths), elements=finite, fill=finite))
    grid = data.draw(arrays.arrays(np.float32, (2, *(1,) * (r - 1), 6, r), elements=anything, fill=anything))
    around = np.full(X.size, np.nan, np.float32)
    fenced = np.concatenate([around, X.reshape(-1), around])[X.size : -X.size].reshape(X.shape)
    expected = oracle.grid_sample(X, grid, *astuple(attributes))
    Y = grid_sample(fenced, grid, *astuple(attributes))
    assert_matches(Y, expected, grid.dtype, attributes.mode, attributes.padding_mode)
