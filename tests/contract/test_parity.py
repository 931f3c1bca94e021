"""Compare the ops with onnxruntime, PyTorch and OpenVINO in the cases that these support.

Two kinds of coordinates are left out because the libraries disagree: those that are far outside or
not finite, where integers overflow, and ties, if a library computes coordinates in another order
than onnxruntime.
"""

import importlib
import itertools
import runpy
import warnings
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from ort_gridsample import grid_sample
from support import faults
from support.cases import ATTRIBUTES, Attributes, generator, image
from support.compare import about, assert_identical
from support.models import affine_grid_model, grid_sample_model, node_attributes
from support.openvino_core import openvino_core
from support.paths import PATHS, Function, Model, open_native, run

DATA = Path(__file__).parents[1] / "data"
STORED = dict(np.load(DATA / "pytorch_answers.npz"))
#: The allowed difference, relative to values of about 1.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def arrays(dtype: str, r: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an X and a grid with coordinates inside and outside, but no ties."""
    channel_scales = np.array([1, 1000, 1, 1000], dtype).reshape(4, *(1,) * r)
    X = image(dtype, (2, 4, *(9, 8, 7)[:r])) / channel_scales
    grid = generator("parity", r).uniform(-3, 3, (2, *(7, 6, 5)[:r], r)).astype(dtype)
    return X, grid


def ties(dtype: str, r: int) -> np.ndarray:
    """Return a grid of ties and centres for axes of 8 and 9 pixels, and of adjacent numbers."""
    exact = np.arange(-24, 25, dtype=dtype) / 16
    above = np.nextafter(exact, exact.dtype.type(np.inf))
    below = np.nextafter(exact, exact.dtype.type(-np.inf))
    numbers = np.concatenate([exact, above, below])
    return generator("ties", r).choice(numbers, (2, 60, *(5,) * (r - 1), r))


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    atol = TOLERANCE[actual.dtype.name] * max(1, abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


#: The attributes that the libraries support, by rank. They have cubic in 2-D only.
SUPPORTED = {2: ATTRIBUTES, 3: [values for values in ATTRIBUTES if values.mode != "cubic"]}
#: The opsets whose GridSample onnxruntime implements.
OPSETS = {"float32": (16, 20, 22), "float64": (20, 22)}
#: Each path with one of the opsets.
PATH_OPSETS = {
    dtype: dict(zip(PATHS, itertools.cycle(opsets), strict=False))
    for dtype, opsets in OPSETS.items()
}
#: The default run does not compile kernels for float64.
on_floats = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)


@on_floats
@pytest.mark.parametrize("r", SUPPORTED)
@pytest.mark.parametrize("name", PATHS)
def test_grid_sample_agrees_with_onnxruntime(dtype: str, r: int, name: str) -> None:
    opset = min(PATH_OPSETS[dtype][name], faults.OPSET)
    supported = SUPPORTED[r]
    native = open_native(grid_sample_model(dtype, dtype, r, supported, opset))
    X, grid = arrays(dtype, r)
    on_ties = ties(dtype, r)
    for positions in (grid, on_ties, on_ties.clip(-1, 1)):
        outputs = PATHS[name].grid_samples(X, positions, supported, opset)
        expected_outputs = run(native, X.dtype, X, positions)
        for attributes, Y, expected in zip(supported, outputs, expected_outputs, strict=True):
            # onnxruntime rounds before it reflects; in the specification, nearest rounds after.
            # The results differ at a tie outside.
            if positions is on_ties and attributes == Attributes("nearest", "reflection", False):
                continue
            with about((attributes, opset)):
                assert_close(Y, expected)


@on_floats
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("r", [2, 3])
def test_affine_grid_agrees_with_onnxruntime(
    dtype: str, r: int, align_corners: bool, path: Function | Model
) -> None:
    precision = "float32" if faults.SINGLE_AFFINE_GRID else dtype
    theta = generator("theta", r).normal(size=(2, r, r + 1)).astype(dtype)
    size = (2, 3, *(4, 5, 6)[:r])
    native = open_native(affine_grid_model(dtype, r, align_corners))
    (expected,) = run(native, theta.dtype, theta, np.array(size))
    grid = path.affine_grid(theta, size, align_corners)
    assert grid.dtype == dtype
    assert_close(grid.astype(precision), expected.astype(precision))


def stored_names(operator: str) -> list[str]:
    return [name for name in STORED if name.startswith(f"{operator} ")]


def test_stored_outputs_of_pytorch_have_every_case() -> None:
    assert len(stored_names("grid_sample")) == sum(map(len, SUPPORTED.values()))
    assert len(stored_names("affine_grid")) == 12


@pytest.mark.parametrize("r", SUPPORTED)
def test_grid_sample_agrees_with_the_stored_outputs_of_pytorch(
    r: int, path: Function | Model
) -> None:
    outputs = path.grid_samples(STORED[f"X{r}"], STORED[f"grid{r}"], SUPPORTED[r])
    for values, Y in zip(SUPPORTED[r], outputs, strict=True):
        name = f"grid_sample {r} {values.mode} {values.padding_mode} {values.align_corners:d}"
        with about(name):
            assert_close(Y, STORED[name])


@pytest.mark.parametrize("name", stored_names("affine_grid"))
def test_affine_grid_agrees_with_the_stored_outputs_of_pytorch(
    name: str, path: Function | Model
) -> None:
    _, r, _, align_corners = name.split()
    n, *lengths, _ = STORED[name].shape
    grid = path.affine_grid(STORED[f"theta{r}"], (n, 1, *lengths), align_corners == "1")
    assert_close(grid, STORED[name])


def test_stored_outputs_of_pytorch_are_those_of_the_installed_one() -> None:
    pytest.importorskip("torch", reason="compares the file with PyTorch itself")
    script = runpy.run_path(str(DATA / "make_pytorch_answers.py"))
    arrays = script["inputs"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an aligned axis of one pixel
        answers = script["answers"](arrays)
    assert set(STORED) == set(arrays) | set(answers)
    for name, value in (arrays | answers).items():
        with about(name):
            assert_close(STORED[name], value)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_grid_sample_agrees_with_openvino(dtype: str, attributes: Attributes) -> None:
    core = openvino_core()
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset9")
    X, grid = arrays("float32", 2)
    X = (X * 100).astype(dtype)
    inputs = [opset.parameter([-1] * 4, X.dtype), opset.parameter([-1, -1, -1, 2], grid.dtype)]
    written = node_attributes(attributes, 16) | {"align_corners": attributes.align_corners}
    model = openvino.Model([opset.grid_sample(*inputs, written)], inputs)
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    expected = compiled([X, grid])[0]
    Y = grid_sample(X, grid, *astuple(attributes))
    if dtype == "float32":
        assert_close(Y, expected)
    elif attributes.mode == "cubic":
        # OpenVINO truncates from float32. If all taps are equal, rounding may cost 1.
        assert abs(Y - expected).max() <= 1
    else:
        assert_identical(Y, expected)
