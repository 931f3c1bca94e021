"""The ops against the implementations in the field, wherever those support the case.

Two things are left out because the field itself disagrees there: coordinates far out or not finite, where integers
overflow in it, and ties for the libraries that order the arithmetic of a coordinate differently from ONNX Runtime.
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
from support.paths import PATHS, Function, Model, open_native, run

DATA = Path(__file__).parents[1] / "data"
ANSWERS = dict(np.load(DATA / "pytorch_answers.npz"))
#: Relative to values of about 1.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def arrays(dtype: str, r: int) -> tuple[np.ndarray, np.ndarray]:
    """An X and a grid inside and outside, without ties."""
    X = image(dtype, (2, 4, *(9, 8, 7)[:r])) / np.array([1, 1000, 1, 1000], dtype).reshape(
        4, *(1,) * r
    )
    return X, generator("parity", r).uniform(-3, 3, (2, *(7, 6, 5)[:r], r)).astype(dtype)


def ties(dtype: str, r: int) -> np.ndarray:
    """A grid of exact ties and centres, and of the numbers next to them, for axes of 8 and 9 pixels."""
    exact = np.arange(-24, 25, dtype=dtype) / 16
    numbers = np.concatenate(
        [exact, *(np.nextafter(exact, exact.dtype.type(end)) for end in (np.inf, -np.inf))]
    )
    return generator("ties", r).choice(numbers, (2, 60, *(5,) * (r - 1), r))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=TOLERANCE[found.dtype.name] * max(1, abs(expected).max())
    )


#: Attributes that the field supports, by rank: cubic in 2-D only.
SUPPORTED = {2: ATTRIBUTES, 3: [each for each in ATTRIBUTES if each.mode != "cubic"]}
OPSETS = {"float32": (16, 20, 22), "float64": (20, 22)}
#: The default run compiles no kernels for float64.
on_floats = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)


@on_floats
@pytest.mark.parametrize("r", SUPPORTED)
def test_native(dtype: str, r: int, path: Function | Model) -> None:
    """At the opsets in turns."""
    opset = min(
        OPSETS[dtype][(list(PATHS.values()).index(path) + r) % len(OPSETS[dtype])], faults.OPSET
    )
    native = open_native(grid_sample_model(dtype, dtype, r, SUPPORTED[r], opset))
    X, grid = arrays(dtype, r)
    on_ties = ties(dtype, r)
    for positions in (grid, on_ties, on_ties.clip(-1, 1)):
        answers = path.grid_samples(X, positions, SUPPORTED[r], opset)
        for attributes, Y, expected in zip(
            SUPPORTED[r], answers, run(native, X.dtype, X, positions), strict=True
        ):
            # Its kernel rounds before it reflects, the specification's nearest after: they differ on a tie outside.
            if positions is not on_ties or attributes != Attributes("nearest", "reflection", False):
                with about((attributes, opset)):
                    assert_close(Y, expected)


@on_floats
def test_native_affine_grid(dtype: str, path: Function | Model) -> None:
    precision = "float32" if faults.SINGLE_AFFINE_GRID else dtype
    for r, align_corners in itertools.product((2, 3), (False, True)):
        theta, size = (
            generator("theta", r).normal(size=(2, r, r + 1)).astype(dtype),
            (2, 3, *(4, 5, 6)[:r]),
        )
        [expected] = run(
            open_native(affine_grid_model(dtype, r, align_corners)),
            theta.dtype,
            theta,
            np.array(size),
        )
        found = path.affine_grid(theta, size, align_corners)
        assert found.dtype == dtype
        with about((r, align_corners)):
            assert_close(found.astype(precision), expected.astype(precision))


def test_pytorch_on_file(path: Function | Model) -> None:
    assert sum(name.startswith("grid_sample ") for name in ANSWERS) == sum(
        map(len, SUPPORTED.values())
    )
    for r, supported in SUPPORTED.items():
        answers = path.grid_samples(ANSWERS[f"X{r}"], ANSWERS[f"grid{r}"], supported)
        for (mode, padding_mode, align_corners), Y in zip(
            map(astuple, supported), answers, strict=True
        ):
            name = f"grid_sample {r} {mode} {padding_mode} {align_corners:d}"
            with about(name):
                assert_close(Y, ANSWERS[name])


def test_pytorch_affine_grid_on_file(path: Function | Model) -> None:
    names = [name for name in ANSWERS if name.startswith("affine_grid ")]
    assert len(names) == 12
    for name in names:
        _, r, _, align_corners = name.split()
        n, *lengths, _ = ANSWERS[name].shape
        with about(name):
            assert_close(
                path.affine_grid(ANSWERS[f"theta{r}"], (n, 1, *lengths), align_corners == "1"),
                ANSWERS[name],
            )


def test_pytorch_on_file_is_pytorch() -> None:
    pytest.importorskip("torch", reason="compares the file with PyTorch itself")
    script = runpy.run_path(str(DATA / "make_pytorch_answers.py"))
    arrays = script["inputs"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about an aligned axis of one pixel
        answers = script["answers"](arrays)
    assert set(ANSWERS) == set(arrays) | set(answers)
    for name, value in (arrays | answers).items():
        with about(name):
            assert_close(ANSWERS[name], value)


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_openvino(dtype: str) -> None:
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not a dependency of the tests")
    opset = importlib.import_module("openvino.opset9")
    X, grid = arrays("float32", 2)
    X = (X * 100).astype(dtype)
    inputs = [opset.parameter([-1] * 4, X.dtype), opset.parameter([-1, -1, -1, 2], grid.dtype)]
    for attributes in ATTRIBUTES:
        named = node_attributes(attributes, 16) | {"align_corners": attributes.align_corners}
        model = openvino.Model([opset.grid_sample(*inputs, named)], inputs)
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        expected, Y = compiled([X, grid])[0], grid_sample(X, grid, *astuple(attributes))
        with about(attributes):
            if dtype == "float32":
                assert_close(Y, expected)
            elif attributes.mode == "cubic":
                # Truncated from float32: where all taps are equal, its rounding error may cost it 1.
                assert abs(Y - expected).max() <= 1
            else:
                assert_identical(Y, expected)
