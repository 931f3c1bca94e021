"""How near an answer must come to the oracle's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from support.oracle import Expected

#: The types that are interpolated in float64; all others in float32.
IN_FLOAT64 = ("float64", "complex128", "int32", "int64", "uint32", "uint64")

#: Roundings of one axis' weights and sums, in units of the compute type's epsilon times the largest value read.
ROUNDINGS = {"nearest": 0, "linear": 8, "cubic": 32}


@contextmanager
def about(case: object) -> Iterator[None]:
    """Name the case in whatever an assertion says within."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


def refusal(call: Callable[..., object], *given: object, **named: object) -> ogs.GridSampleError:
    """The GridSampleError that this call raises."""
    with pytest.raises(ogs.GridSampleError) as raised:
        call(*given, **named)
    return raised.value


def finfo(dtype: np.dtype) -> np.finfo:
    """``numpy.finfo``, and of bfloat16 too."""
    return ml_dtypes.finfo(dtype) if dtype == ml_dtypes.bfloat16 else np.finfo(dtype)


def type_name(dtype: np.dtype) -> str:
    return "str" if dtype.kind in "OUT" else dtype.name


def tolerance(
    expected: Expected, dtype: np.dtype, grid_dtype: np.dtype, mode: str, padding_mode: str
) -> np.ndarray:
    """The rounding error that the sums may have."""
    rank = expected.values.ndim - 2
    eps = float(np.finfo(np.float64 if dtype.name in IN_FLOAT64 else np.float32).eps)
    if padding_mode == "reflection" and grid_dtype != np.float64:
        eps = max(
            eps, float(np.finfo(np.float32).eps)
        )  # a coordinate is reflected in the type that it has
    return ROUNDINGS[mode] * rank * eps * expected.scale


def assert_matches(
    Y: np.ndarray, expected: Expected, grid_dtype: np.dtype, mode: str, padding_mode: str
) -> None:
    """Check the oracle's answer: floats within rounding, integers cast from within rounding, nearest bit for bit."""
    assert Y.shape == expected.values.shape
    if mode == "nearest":
        assert_identical(Y, expected.values)
        return
    dtype, values = Y.dtype, expected.values
    error = tolerance(expected, dtype, grid_dtype, mode, padding_mode)
    if dtype.kind == "b":
        certain = (abs(values) > error) | (expected.scale == 0)
        np.testing.assert_array_equal(Y[certain], values[certain] != 0)
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        lowest, highest = (
            np.clip(np.trunc(v), limits.min, limits.max) for v in (values - error, values + error)
        )
        wrong = (Y.astype(np.float64) < lowest) | (Y.astype(np.float64) > highest)
        assert not wrong.any(), f"{Y[wrong]} instead of {values[wrong]}"
    else:
        info = finfo(dtype)
        if info.bits < 32:
            error = error + abs(values) * float(info.eps) / 2 + float(info.smallest_subnormal)
        Y = Y.astype(values.dtype)
        assert np.isfinite(Y).all()
        wrong = abs(Y - values) > error
        assert not wrong.any(), (
            f"{Y[wrong]} instead of {values[wrong]}, more than {error[wrong]} off"
        )


def assert_identical(found: np.ndarray, expected: np.ndarray) -> None:
    """Check type, shape and every bit, save that NaN equals NaN."""
    assert type_name(found.dtype) == type_name(expected.dtype)
    assert found.shape == expected.shape
    if type_name(found.dtype) == "bfloat16":  # whose NaN numpy's own comparison takes for a number
        found, expected = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(found, expected)


def assert_same_to_rounding(found: np.ndarray, expected: np.ndarray, mode: str) -> None:
    """Nearest bit for bit; other sums may run in another order, of values of magnitude 1 or so."""
    if mode == "nearest":
        assert_identical(found, expected)
    else:
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=32 * float(np.finfo(expected.dtype).eps)
        )


def message_of(model: onnx.ModelProto, **how: Any) -> str:
    return str(refusal(ogs.patch_model, model, **how))
