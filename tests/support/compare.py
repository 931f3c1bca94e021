"""Compare results with the oracle's, and with each other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from support.oracle import Expected

#: The types that are interpolated in float64. All others are interpolated in float32.
IN_FLOAT64 = ("float64", "complex128", "int32", "int64", "uint32", "uint64")

#: The rounding errors of the weights and sums of one axis, as a multiple of the compute type's
#: epsilon times the largest value that is read.
ROUNDINGS = {"nearest": 0, "linear": 8, "cubic": 32, "lanczos3": 48}


@contextmanager
def about(case: object) -> Iterator[None]:
    """Prefix the message of an AssertionError with ``case``."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


def refusal(
    function: Callable[..., object], *args: object, **kwargs: object
) -> ogs.GridSampleError:
    """Return the GridSampleError that this call raises."""
    with pytest.raises(ogs.GridSampleError) as raised:
        function(*args, **kwargs)
    return raised.value


def message_of(model: onnx.ModelProto, **kwargs: Any) -> str:
    """Return the message of the GridSampleError that ``patch_model`` raises."""
    return str(refusal(ogs.patch_model, model, **kwargs))


def finfo(dtype: np.dtype) -> np.finfo:
    """Return ``numpy.finfo(dtype)``, also for bfloat16."""
    return ml_dtypes.finfo(dtype) if dtype == ml_dtypes.bfloat16 else np.finfo(dtype)


def type_name(dtype: np.dtype) -> str:
    """Return the name of ``dtype`` in ``spec.TYPES``."""
    return "str" if dtype.kind in "OUT" else dtype.name


def tolerance(
    expected: Expected, dtype: np.dtype, grid_dtype: np.dtype, mode: str, padding_mode: str
) -> np.ndarray:
    """Return the rounding error that each sum may have, for an X of ``dtype``."""
    rank = expected.values.ndim - 2
    eps = float(np.finfo(np.float64 if dtype.name in IN_FLOAT64 else np.float32).eps)
    if padding_mode in ("reflection", "wrap") and grid_dtype != np.float64:
        # A coordinate is padded in the compute type of the grid.
        eps = max(eps, float(np.finfo(np.float32).eps))
    return ROUNDINGS[mode] * rank * eps * expected.scale


def assert_matches(
    Y: np.ndarray, expected: Expected, grid_dtype: np.dtype, mode: str, padding_mode: str
) -> None:
    """Assert that ``Y`` is the oracle's result.

    Nearest must be identical. Floats may differ by the tolerance. Integers and booleans must be the
    cast of a value within the tolerance.
    """
    assert Y.shape == expected.values.shape
    if mode == "nearest":
        assert_identical(Y, expected.values)
        return
    values = expected.values
    error = tolerance(expected, Y.dtype, grid_dtype, mode, padding_mode)
    if Y.dtype.kind == "b":
        is_certain = (abs(values) > error) | (expected.scale == 0)
        np.testing.assert_array_equal(Y[is_certain], values[is_certain] != 0)
    elif Y.dtype.kind in "iu":
        _assert_truncated(Y, values, error)
    else:
        _assert_rounded(Y, values, error)


def _assert_truncated(Y: np.ndarray, values: np.ndarray, error: np.ndarray) -> None:
    """Assert that integers are truncated and saturated from ``values`` ± ``error``."""
    limits = np.iinfo(Y.dtype)
    lowest, highest = (
        np.clip(np.trunc(bound), limits.min, limits.max)
        for bound in (values - error, values + error)
    )
    wide = Y.astype(np.float64)
    is_wrong = (wide < lowest) | (wide > highest)
    assert not is_wrong.any(), f"{Y[is_wrong]} instead of {values[is_wrong]}"


def _assert_rounded(Y: np.ndarray, values: np.ndarray, error: np.ndarray) -> None:
    """Assert that floats are finite and rounded from ``values`` ± ``error``."""
    info = finfo(Y.dtype)
    if info.bits < 32:
        error = error + abs(values) * float(info.eps) / 2 + float(info.smallest_subnormal)
    Y = Y.astype(values.dtype)
    assert np.isfinite(Y).all()
    is_wrong = abs(Y - values) > error
    assert not is_wrong.any(), (
        f"{Y[is_wrong]} instead of {values[is_wrong]}, more than {error[is_wrong]} off"
    )


def assert_identical(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert that type, shape and every bit are equal. NaN equals NaN."""
    assert type_name(actual.dtype) == type_name(expected.dtype)
    assert actual.shape == expected.shape
    if type_name(actual.dtype) == "bfloat16":
        # NumPy's comparison does not recognize NaN in bfloat16.
        actual = actual.astype(np.float32)
        expected = expected.astype(np.float32)
    np.testing.assert_array_equal(actual, expected)


def assert_same_to_rounding(actual: np.ndarray, expected: np.ndarray, mode: str) -> None:
    """Assert that values of magnitude 1 agree, if sums may be computed in another order.

    Nearest must be identical.
    """
    if mode == "nearest":
        assert_identical(actual, expected)
        return
    assert actual.dtype == expected.dtype
    atol = 32 * float(np.finfo(expected.dtype).eps)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)
