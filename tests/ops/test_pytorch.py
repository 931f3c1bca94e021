"""Models that PyTorch's exporters write with this package's translations: the standard operators, PyTorch's answers."""

import io
import itertools
import warnings
from importlib.util import find_spec

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from support.graphs import nodes

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

dynamo = pytest.mark.skipif(
    find_spec("onnxscript") is None, reason="PyTorch's exporter needs onnxscript"
)
older = pytest.mark.skipif(
    find_spec("torch.onnx.symbolic_helper") is None, reason="there is no older exporter"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
#: PyTorch's own operators know no others.
MODES = {2: ("bilinear", "nearest", "bicubic"), 3: ("bilinear", "nearest")}
PADDING = ("zeros", "border", "reflection")
SMALL = {2: (5, 6), 3: (3, 5, 6)}
LARGE = {2: (8, 7), 3: (4, 8, 7)}


class Module(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, first, second):
        return self.function(first, second)


def sampler(rank: int) -> Module:
    """Samples in every mode, padding and alignment that PyTorch has."""
    ways = [*itertools.product(MODES[rank], PADDING, (False, True))]
    return Module(lambda X, grid: tuple(F.grid_sample(X, grid, *way) for way in ways))


#: Makes a grid as large as X, both ways.
GRID = Module(
    lambda X, theta: tuple(
        F.affine_grid(theta, X.shape, align_corners=align) for align in (False, True)
    )
)
#: Samples in the bodies of an If.
BODIES = (
    lambda X, grid: F.grid_sample(X, grid, "bicubic", "border", True),
    lambda X, grid: F.grid_sample(X, grid, "nearest", "zeros", False),
)
EITHER = Module(lambda X, grid: (torch.cond(X.sum() > 0, *BODIES, (X, grid)),))


def image(lengths: tuple[int, ...]):
    return torch.rand(2, 3, *lengths, generator=torch.Generator().manual_seed(0))


def positions(lengths: tuple[int, ...]):
    return (
        torch.rand((2, *lengths, len(lengths)), generator=torch.Generator().manual_seed(1)) * 2.6
        - 1.3
    )


def theta(rank: int):
    return torch.rand(2, rank, rank + 1, generator=torch.Generator().manual_seed(2))


def exported(module, args, opset: int, shapes=None) -> onnx.ModelProto:
    table = ogs.torch_translation_table()
    options = {"dynamo": True, "opset_version": opset, "dynamic_shapes": shapes, "verbose": False}
    return torch.onnx.export(module, args, custom_translation_table=table, **options).model_proto


def exported_by_the_older(module, args, opset: int, axes=None) -> onnx.ModelProto:
    file, options = io.BytesIO(), {"input_names": ["first", "second"], "dynamic_axes": axes}
    torch.onnx.export(module, args, file, dynamo=False, opset_version=opset, **options)
    return onnx.load_from_string(file.getvalue())


def assert_answers_as_pytorch(model: onnx.ModelProto, module, *args) -> None:
    """In this package's session and, where it may, checked by onnx."""
    onnx.checker.check_model(model, full_check=True)
    session = ogs.InferenceSession(model)
    feeds = {
        description.name: value.numpy()
        for description, value in zip(session.get_inputs(), args, strict=True)
    }
    for found, expected in zip(session.run(None, feeds), module(*args), strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-5)


def assert_at(model: onnx.ModelProto, opset: int) -> None:
    """Its nodes are the standard operators as this opset has them."""
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": opset}
    assert {record.error for record in ogs.inspect_model(model)} == {None}


@dynamo
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("opset", [16, 18, 20, 22])
def test_sampling(rank: int, opset: int) -> None:
    module, args = sampler(rank), (image(SMALL[rank]), positions(SMALL[rank][::-1]))
    axes = {2 + axis: f"X{axis}" for axis in range(rank)}
    model = exported(module, args, opset, (axes, {1 + axis: f"grid{axis}" for axis in range(rank)}))
    assert_at(model, opset)
    for each in (args, (image(LARGE[rank]), positions(LARGE[rank]))):
        assert_answers_as_pytorch(model, module, *each)


@dynamo
@pytest.mark.parametrize(
    ("rank", "opset", "dynamic"), [(2, 20, True), (3, 22, True), (2, 20, False)]
)
def test_grids_of_dynamic_and_fixed_sizes(rank: int, opset: int, dynamic: bool) -> None:
    axes = ({2 + axis: f"X{axis}" for axis in range(rank)}, {}) if dynamic else None
    model = exported(GRID, (image(SMALL[rank]), theta(rank)), opset, axes)
    assert_at(model, opset)
    assert [node.op_type for node in nodes(model)].count("AffineGrid") == 2
    for lengths in (SMALL[rank], LARGE[rank])[: 1 + dynamic]:
        assert_answers_as_pytorch(model, GRID, image(lengths), theta(rank))


@dynamo
@pytest.mark.parametrize("opset", [18, 20, 22])
def test_bodies_have_the_spelling_of_their_opset(opset: int) -> None:
    args = (image(SMALL[2]), positions(SMALL[2]))
    model = exported(EITHER, args, opset)
    assert_at(model, opset)
    assert_answers_as_pytorch(model, EITHER, *args)
    assert_answers_as_pytorch(model, EITHER, -args[0], args[1])


@dynamo
def test_what_sampling_volumes_comes_to() -> None:
    module = Module(lambda X, grid: (torch.ops.aten.grid_sampler_3d(X, grid, 0, 1, True),))
    args = image(SMALL[3]), positions(SMALL[3])
    model = exported(module, args, 20)
    assert [node.op_type for node in nodes(model)] == ["GridSample"]
    assert_answers_as_pytorch(model, module, *args)


@dynamo
def test_a_grid_before_its_opset_is_refused_in_words() -> None:
    with pytest.raises(Exception, match="affine_grid") as caught:
        exported(GRID, (image(SMALL[2]), theta(2)), 18)
    assert "affine_grid: opset_version is 18, expected at least 20" in str(
        caught.getrepr()
    )  # with what it comes from


@dynamo
def test_the_shape_of_a_grid_is_pytorch_s() -> None:
    """Knowing it changes no answer."""
    before = [grid.clone() for grid in GRID(image(SMALL[3]), theta(3))]
    ogs.torch_translation_table()
    for device in ("cpu", "meta"):
        for grid, expected in zip(
            GRID(image(SMALL[3]).to(device), theta(3).to(device)), before, strict=True
        ):
            assert (grid.shape, grid.dtype, grid.stride()) == (
                expected.shape,
                expected.dtype,
                expected.stride(),
            )
            assert device == "meta" or torch.equal(grid, expected)


@older
@pytest.mark.parametrize("rank", [2, 3])
def test_the_older_exporter(rank: int) -> None:
    """Samples at every opset, and makes grids of dynamic sizes."""
    module, args = sampler(rank), (image(SMALL[rank]), positions(SMALL[rank]))
    for opset in (16, 18, 20):
        with ogs.torch_symbolics():
            model = exported_by_the_older(module, args, opset)
        assert_at(model, opset)
        assert_answers_as_pytorch(model, module, *args)
    axes = {"first": {2 + axis: f"X{axis}" for axis in range(rank)}}
    with ogs.torch_symbolics():
        model = exported_by_the_older(GRID, (args[0], theta(rank)), 20, axes)
    assert [node.op_type for node in nodes(model)].count("AffineGrid") == 2
    assert_answers_as_pytorch(model, GRID, image(LARGE[rank]), theta(rank))


@older
def test_the_older_exporter_is_left_as_it_was() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            with pytest.raises(Exception, match="5D volumetric input"):
                exported_by_the_older(sampler(3), (image(SMALL[3]), positions(SMALL[3])), 18)
            with ogs.torch_symbolics():
                pass
