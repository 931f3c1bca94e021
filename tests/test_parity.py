"""The ops against the implementations in the field, wherever those support the case.

Two things are left out because the field itself disagrees there: coordinates far out or not finite, where integers
overflow in it, and ties for the libraries that order the arithmetic of a coordinate differently from ONNX Runtime.
"""

from __future__ import annotations

import importlib
import runpy
import warnings
from dataclasses import asdict, astuple
from pathlib import Path

import numpy as np
import pytest

import faults
from cases import ATTRIBUTES, Attributes, generator, image
from compare import assert_identical
from models import affine_grid_model, grid_sample_model
from ort_gridsample import affine_grid, grid_sample, spec
from paths import Function, Model, open_native, run

DATA = Path(__file__).parent / "data"
ANSWERS = dict(np.load(DATA / "pytorch_answers.npz"))

#: Relative to values of about 1.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}
SYNONYMS = {mode: synonym for synonym, mode in spec.MODE_SYNONYMS.items()}


def arrays(dtype: str, r: int) -> tuple[np.ndarray, np.ndarray]:
    """An X and a grid inside and outside, without ties."""
    X = image(dtype, (2, 4, *(9, 8, 7)[:r])) / np.array([1, 1000, 1, 1000], dtype).reshape(4, *(1,) * r)
    return X, generator("parity", r).uniform(-3, 3, (2, *(7, 6, 5)[:r], r)).astype(dtype)


def ties(dtype: str, r: int) -> np.ndarray:
    """A grid of exact ties and centres, and of the numbers next to them, for axes of 8 and 9 pixels."""
    exact = np.arange(-24, 25, dtype=dtype) / 16
    infinity = np.array(np.inf, dtype)
    numbers = np.concatenate([exact, np.nextafter(exact, infinity), np.nextafter(exact, -infinity)])
    return generator("ties", r).choice(numbers, (2, 60, *(5,) * (r - 1), r))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE[found.dtype.name] * max(1, abs(expected).max()))


def combinations(*ranks: int) -> list:
    """Ranks and attributes that the field supports: cubic in 2-D only."""
    return [
        pytest.param(r, attributes, id=f"{r}d-{attributes}")
        for r in ranks
        for attributes in ATTRIBUTES
        if attributes.mode != "cubic" or r == 2
    ]


# onnxruntime's own kernels


NATIVE = [("float32", 16), ("float32", 20), ("float32", 22), ("float64", 20), ("float64", 22)]


@pytest.mark.parametrize(("dtype", "opset"), NATIVE)
@pytest.mark.parametrize(("r", "attributes"), combinations(2, 3))
def test_native(dtype: str, opset: int, r: int, attributes: Attributes, path: Function | Model) -> None:
    X, grid = arrays(dtype, r)
    model = grid_sample_model(dtype, dtype, r, [attributes], opset)
    native = open_native(model)
    on_ties = ties(dtype, r)
    if attributes == Attributes("nearest", "reflection", False):
        # Its kernel rounds before it reflects, the specification's nearest after: they differ on a tie outside.
        on_ties = on_ties.clip(-1, 1)
    for positions in (grid, on_ties):
        [expected] = run(native, X.dtype, X, positions)
        assert_close(path.grid_sample(X, positions, *astuple(attributes), opset=opset), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("r", [2, 3])
def test_native_affine_grid(r: int, align_corners: bool, dtype: str, path: Function | Model) -> None:
    theta, size = generator("theta", r).normal(size=(2, r, r + 1)).astype(dtype), (2, 3, *(4, 5, 6)[:r])
    model = affine_grid_model(dtype, r, align_corners)
    native = open_native(model)
    [expected] = run(native, theta.dtype, theta, np.array(size))
    found = path.affine_grid(theta, size, align_corners)
    assert found.dtype == dtype
    precision = "float32" if faults.SINGLE_AFFINE_GRID else dtype
    assert_close(found.astype(precision), expected.astype(precision))


# PyTorch, from its answers on file and, where it is installed, from itself


def on_file(operator: str) -> list:
    """The keys and answers of one operator."""
    keys = {name: tuple(name.split()) for name in ANSWERS}
    return [
        pytest.param(key[1:], ANSWERS[name], id="-".join(key[1:])) for name, key in keys.items() if key[0] == operator
    ]


@pytest.mark.parametrize(("key", "expected"), on_file("grid_sample"))
def test_pytorch_on_file(key: tuple[str, ...], expected: np.ndarray, path: Function | Model) -> None:
    r, mode, padding_mode, align_corners = key
    Y = path.grid_sample(ANSWERS[f"X{r}"], ANSWERS[f"grid{r}"], mode, padding_mode, align_corners == "1")
    assert_close(Y, expected)


@pytest.mark.parametrize(("key", "expected"), on_file("affine_grid"))
def test_pytorch_affine_grid_on_file(key: tuple[str, ...], expected: np.ndarray, path: Function | Model) -> None:
    r, _, align_corners = key
    n, *lengths, _ = expected.shape
    grid = path.affine_grid(ANSWERS[f"theta{r}"], (n, 1, *lengths), align_corners == "1")
    assert_close(grid, expected)


def test_pytorch_on_file_is_pytorch() -> None:
    pytest.importorskip("torch", reason="compares the file with PyTorch itself")
    script = runpy.run_path(str(DATA / "make_pytorch_answers.py"))
    arrays = script["inputs"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an aligned axis of one pixel
        answers = script["answers"](arrays)
    assert set(ANSWERS) == set(arrays) | set(answers)
    for name, value in (arrays | answers).items():
        assert_close(ANSWERS[name], value)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("r", "attributes"), combinations(2, 3))
def test_pytorch(dtype: str, r: int, attributes: Attributes) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch's answers on file are tested without it")
    X, grid = arrays(dtype, r)
    mode = SYNONYMS.get(attributes.mode, attributes.mode)
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(X), torch.from_numpy(grid), mode, attributes.padding_mode, attributes.align_corners
    )
    assert_close(grid_sample(X, grid, *astuple(attributes)), expected.numpy())


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 2, 3, 4)], ids=str)
def test_pytorch_affine_grid(size: tuple[int, ...], align_corners: bool, dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch's answers on file are tested without it")
    r = len(size) - 2
    theta = generator("theta", r).normal(size=(2, r, r + 1)).astype(dtype)
    expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), size, align_corners)
    assert_close(affine_grid(theta, size, align_corners), expected.numpy())


# OpenVINO, whose CPU plugin computes in float32


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_openvino(attributes: Attributes, dtype: str) -> None:
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not a dependency of the tests")
    opset = importlib.import_module("openvino.opset9")
    X, grid = arrays("float32", 2)
    X = (X * 100).astype(dtype)
    inputs = [opset.parameter([-1] * 4, X.dtype), opset.parameter([-1, -1, -1, 2], grid.dtype)]
    named = {**asdict(attributes), "mode": SYNONYMS.get(attributes.mode, attributes.mode)}
    model = openvino.Model([opset.grid_sample(*inputs, named)], inputs)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = compiled([X, grid])[0]
    Y = grid_sample(X, grid, *astuple(attributes))
    if dtype == "float32":
        assert_close(Y, expected)
    elif attributes.mode == "cubic":
        # Truncated from float32: where all taps are equal, its rounding error may cost it 1.
        assert abs(Y - expected).max() <= 1
    else:
        assert_identical(Y, expected)
