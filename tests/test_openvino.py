"""Patched models in OpenVINO, with this package's extensions: the function's answers."""

import itertools
from dataclasses import astuple

import numpy as np
import onnx
import pytest
from onnx import inliner, parser

import ort_gridsample as ogs
from cases import ATTRIBUTES, RANKS, SESSION_TYPES, SHAPES, Attributes, dtype_of, generator, image, is_defined
from models import affine_grid_model, grid_sample_model, loose
from ort_gridsample import spec
from paths import open_native
from test_patch import GRID, X
from test_patch import MODELS as GRAPHS

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")

TARGETS = ["ort_gridsample", "compiled"]
NUMBERS = [name for name in SESSION_TYPES if name != "str"]
#: Every type, the ranks in turn, and every rank.
KINDS = [(name, RANKS[i % 3]) for i, name in enumerate(NUMBERS)] + [("float32", r) for r in RANKS] + [("uint8", 2)]


def read(model: onnx.ModelProto):
    core = openvino.Core()
    core.add_extension(ogs.openvino_extensions())
    return core.read_model(model.SerializeToString(), b"")


def run(model, *inputs: np.ndarray) -> list[np.ndarray]:
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    carried = [value.astype(np.float32) if value.dtype.name == "bfloat16" else value for value in inputs]
    return list(compiled(carried).values())


def positions(grid_type: str, rank: int) -> np.ndarray:
    """Not far outside, where OpenVINO's own answers go wrong, and on no tie."""
    return generator("OpenVINO", rank).uniform(-1.4, 1.4, SHAPES[rank].grid).astype(dtype_of(grid_type))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("X_type", "rank"), KINDS)
def test_answers_as_the_function(X_type: str, rank: int, target: str) -> None:
    attributes = [each for each in ATTRIBUTES if is_defined(X_type, each.mode) and (each.mode != "cubic" or rank < 4)]
    pixels, grid = np.ascontiguousarray(image(X_type, SHAPES[rank].X)[:, :1]), positions("float32", rank)
    model = read(ogs.patch_model(grid_sample_model(X_type, "float32", rank, attributes), target=target))
    own = [each for each in attributes if each.mode == "nearest" or X_type in spec.FLOATS] if rank == 2 else []
    assert [op.get_type_name() for op in model.get_ops()].count("GridSample") == len(own)
    for each, Y in zip(attributes, run(model, pixels, grid), strict=True):
        expected = ogs.grid_sample(pixels, grid, *astuple(each))
        error = {"float16": 2e-3, "bfloat16": 2e-2}.get(X_type, 1e-5) * float(np.abs(pixels.astype(np.float64)).max())
        error = error if X_type in spec.FLOATS else 0  # integers are truncated
        assert np.abs(Y.astype(np.float64) - expected.astype(np.float64)).max() <= error, str(each)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("theta_type", ["float32", "float64", "float16"])
def test_affine_grid(theta_type: str, target: str) -> None:
    for rank, align_corners in itertools.product((2, 3), (False, True)):
        theta = generator("theta", rank).normal(size=(2, rank, rank + 1)).astype(theta_type)
        size = np.array([2, 3, 1, 4, 5][: rank + 2])
        model = read(ogs.patch_model(affine_grid_model(theta_type, rank, align_corners), target=target))
        (found,) = run(model, theta, size)
        expected = ogs.affine_grid(theta, size, align_corners)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-2 if theta_type == "float16" else 1e-5)


@pytest.mark.parametrize("none", range(4))
def test_lengths_of_0(none: int) -> None:
    size = np.array([0 if axis == none else 2 + axis for axis in range(4)])
    theta = np.zeros((size[0], 2, 3), np.float32)
    (found,) = run(read(ogs.patch_model(affine_grid_model("float32", 2, False))), theta, size)
    assert found.shape == ogs.affine_grid(theta, size, False).shape
    X, grid = (np.zeros(shape, np.float32) for shape in ((*size[:2], 4, 5), (size[0], *size[2:], 2)))
    for X_type, mode in itertools.product(("float32", "int32"), ("nearest", "linear")):
        model = read(ogs.patch_model(grid_sample_model(X_type, "float32", 2, [Attributes(mode)])))
        assert run(model, X.astype(X_type), grid)[0].shape == ogs.grid_sample(X, grid, mode).shape


def test_an_image_known_to_have_no_pixels() -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes("linear")])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 0
    (found,) = run(read(ogs.patch_model(model)), np.ones((1, 1, 0, 5), np.float32), np.zeros((1, 3, 4, 2), np.float32))
    assert found.shape == (1, 1, 3, 4)
    assert not found.any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "Scan"])  # which OpenVINO does not read
def test_bodies_and_functions(graph: str, target: str) -> None:
    """OpenVINO takes functions inlined."""
    model = parser.parse_model(GRAPHS[graph])
    converted = read(inliner.inline_local_functions(ogs.patch_model(model, target=target)))
    for condition in (False, True):
        feeds = dict(zip("XGc", (X, GRID, np.array(condition)), strict=True))
        (expected,) = open_native(model).run(None, feeds)
        found = run(converted, *(feeds[parameter.get_friendly_name()] for parameter in converted.get_parameters()))[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_what_cannot_be_is_refused_in_words() -> None:
    strings = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
    unknown_axes = loose(grid_sample_model("int32", "float32", 2, [Attributes()]))
    expected = "X is of type str, expected another type, as OpenVINO has no strings"
    for model, said in ((strings, expected), (unknown_axes, "sample0: X is of unknown rank")):
        with pytest.raises(RuntimeError, match="GridSampleError") as caught:
            read(ogs.patch_model(model))
        assert said in str(caught.value)
