"""Test the models that PyTorch's exporters write with this package's translations."""

import io
import itertools
import warnings
from importlib.util import find_spec

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from support.graphs import all_nodes

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional

dynamo = pytest.mark.skipif(
    find_spec("onnxscript") is None, reason="PyTorch's exporter needs onnxscript"
)
older = pytest.mark.skipif(
    find_spec("torch.onnx.symbolic_helper") is None, reason="this PyTorch has no older exporter"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
#: The modes of PyTorch's operators, by rank.
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
    """Return a module that samples in every mode, padding and alignment."""
    attributes = [*itertools.product(MODES[rank], PADDING, (False, True))]
    return Module(lambda X, grid: tuple(F.grid_sample(X, grid, *values) for values in attributes))


def affine_grids(X, theta):
    """Return grids of the size of X, with and without aligned corners."""
    return tuple(F.affine_grid(theta, X.shape, align_corners=align) for align in (False, True))


def sample_cubic(X, grid):
    return F.grid_sample(X, grid, "bicubic", "border", True)


def sample_nearest(X, grid):
    return F.grid_sample(X, grid, "nearest", "zeros", False)


GRIDS = Module(affine_grids)
#: Samples in the bodies of an If.
BRANCHES = Module(
    lambda X, grid: (torch.cond(X.sum() > 0, sample_cubic, sample_nearest, (X, grid)),)
)


def image(lengths: tuple[int, ...]):
    return torch.rand(2, 3, *lengths, generator=torch.Generator().manual_seed(0))


def positions(lengths: tuple[int, ...]):
    generator = torch.Generator().manual_seed(1)
    return torch.rand((2, *lengths, len(lengths)), generator=generator) * 2.6 - 1.3


def theta(rank: int):
    return torch.rand(2, rank, rank + 1, generator=torch.Generator().manual_seed(2))


def exported(module, args, opset: int, shapes=None) -> onnx.ModelProto:
    program = torch.onnx.export(
        module,
        args,
        custom_translation_table=ogs.torch_translation_table(),
        dynamo=True,
        opset_version=opset,
        dynamic_shapes=shapes,
        verbose=False,
    )
    return program.model_proto


def exported_by_torchscript(module, args, opset: int, axes=None) -> onnx.ModelProto:
    file = io.BytesIO()
    torch.onnx.export(
        module,
        args,
        file,
        dynamo=False,
        opset_version=opset,
        input_names=["first", "second"],
        dynamic_axes=axes,
    )
    return onnx.load_from_string(file.getvalue())


def assert_outputs_of_pytorch(model: onnx.ModelProto, module, *args) -> None:
    """Check the model, and compare the outputs of this package's session with PyTorch's."""
    onnx.checker.check_model(model, full_check=True)
    session = ogs.InferenceSession(model)
    feeds = {
        description.name: value.numpy()
        for description, value in zip(session.get_inputs(), args, strict=True)
    }
    for Y, expected in zip(session.run(None, feeds), module(*args), strict=True):
        np.testing.assert_allclose(Y, expected.numpy(), rtol=0, atol=1e-5)


def assert_standard(model: onnx.ModelProto, opset: int) -> None:
    """Assert that the nodes are the standard operators of this opset."""
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": opset}
    assert {record.error for record in ogs.inspect_model(model)} == {None}


@dynamo
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("opset", [16, 18, 20, 22])
def test_exported_grid_sample_has_the_outputs_of_pytorch(rank: int, opset: int) -> None:
    module = sampler(rank)
    small = image(SMALL[rank]), positions(SMALL[rank][::-1])
    large = image(LARGE[rank]), positions(LARGE[rank])
    X_axes = {2 + axis: f"X{axis}" for axis in range(rank)}
    grid_axes = {1 + axis: f"grid{axis}" for axis in range(rank)}
    model = exported(module, small, opset, (X_axes, grid_axes))
    assert_standard(model, opset)
    for args in (small, large):
        assert_outputs_of_pytorch(model, module, *args)


@dynamo
@pytest.mark.parametrize(
    ("rank", "opset", "dynamic"), [(2, 20, True), (3, 22, True), (2, 20, False)]
)
def test_exported_affine_grid_has_the_outputs_of_pytorch(
    rank: int, opset: int, dynamic: bool
) -> None:
    axes = ({2 + axis: f"X{axis}" for axis in range(rank)}, {}) if dynamic else None
    model = exported(GRIDS, (image(SMALL[rank]), theta(rank)), opset, axes)
    assert_standard(model, opset)
    assert [node.op_type for node in all_nodes(model)].count("AffineGrid") == 2
    sizes = [SMALL[rank], LARGE[rank]] if dynamic else [SMALL[rank]]
    for lengths in sizes:
        assert_outputs_of_pytorch(model, GRIDS, image(lengths), theta(rank))


@dynamo
@pytest.mark.parametrize("opset", [18, 20, 22])
def test_exported_branches_are_spelled_as_in_their_opset(opset: int) -> None:
    args = (image(SMALL[2]), positions(SMALL[2]))
    model = exported(BRANCHES, args, opset)
    assert_standard(model, opset)
    assert_outputs_of_pytorch(model, BRANCHES, *args)
    assert_outputs_of_pytorch(model, BRANCHES, -args[0], args[1])


@dynamo
def test_aten_grid_sampler_3d_is_exported_as_grid_sample() -> None:
    module = Module(lambda X, grid: (torch.ops.aten.grid_sampler_3d(X, grid, 0, 1, True),))
    args = image(SMALL[3]), positions(SMALL[3])
    model = exported(module, args, 20)
    assert [node.op_type for node in all_nodes(model)] == ["GridSample"]
    assert_outputs_of_pytorch(model, module, *args)


@dynamo
def test_export_of_affine_grid_before_opset_20_is_refused() -> None:
    with pytest.raises(Exception, match="affine_grid") as caught:
        exported(GRIDS, (image(SMALL[2]), theta(2)), 18)
    # The representation includes the causes of the exception.
    assert "affine_grid: opset_version is 18, expected at least 20" in str(caught.getrepr())


@dynamo
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_translation_table_changes_no_grid_of_pytorch(device: str) -> None:
    expected_grids = [grid.clone() for grid in GRIDS(image(SMALL[3]), theta(3))]
    ogs.torch_translation_table()
    grids = GRIDS(image(SMALL[3]).to(device), theta(3).to(device))
    for grid, expected in zip(grids, expected_grids, strict=True):
        assert (grid.shape, grid.dtype) == (expected.shape, expected.dtype)
        assert grid.stride() == expected.stride()
        if device == "cpu":
            assert torch.equal(grid, expected)


@older
@pytest.mark.parametrize("opset", [16, 18, 20])
@pytest.mark.parametrize("rank", [2, 3])
def test_older_exporter_writes_standard_grid_samples(rank: int, opset: int) -> None:
    module = sampler(rank)
    args = image(SMALL[rank]), positions(SMALL[rank])
    with ogs.torch_symbolics():
        model = exported_by_torchscript(module, args, opset)
    assert_standard(model, opset)
    assert_outputs_of_pytorch(model, module, *args)


@older
@pytest.mark.parametrize("rank", [2, 3])
def test_older_exporter_writes_affine_grids_of_dynamic_sizes(rank: int) -> None:
    axes = {"first": {2 + axis: f"X{axis}" for axis in range(rank)}}
    with ogs.torch_symbolics():
        model = exported_by_torchscript(GRIDS, (image(SMALL[rank]), theta(rank)), 20, axes)
    assert [node.op_type for node in all_nodes(model)].count("AffineGrid") == 2
    assert_outputs_of_pytorch(model, GRIDS, image(LARGE[rank]), theta(rank))


@older
def test_older_exporter_is_unchanged_before_and_after_the_context() -> None:
    args = image(SMALL[3]), positions(SMALL[3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="5D volumetric input"):
            exported_by_torchscript(sampler(3), args, 18)
        with ogs.torch_symbolics():
            pass
        with pytest.raises(Exception, match="5D volumetric input"):
            exported_by_torchscript(sampler(3), args, 18)


@older
def test_torch_symbolics_inside_another_keep_those_of_the_outer_context() -> None:
    with ogs.torch_symbolics():
        with ogs.torch_symbolics():
            pass
        model = exported_by_torchscript(sampler(3), (image(SMALL[3]), positions(SMALL[3])), 18)
    assert_standard(model, 18)


@older
def test_torch_symbolics_that_end_first_keep_those_of_another_context() -> None:
    """As in two threads."""
    first = ogs.torch_symbolics()
    first.__enter__()
    with ogs.torch_symbolics():
        first.__exit__(None, None, None)
        model = exported_by_torchscript(sampler(3), (image(SMALL[3]), positions(SMALL[3])), 18)
    assert_standard(model, 18)


@older
def test_older_exporter_is_unchanged_after_a_context_inside_another() -> None:
    with ogs.torch_symbolics(), ogs.torch_symbolics():
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="5D volumetric input"):
            exported_by_torchscript(sampler(3), (image(SMALL[3]), positions(SMALL[3])), 18)
