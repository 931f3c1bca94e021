"""Conversion of models with sparse initializers and Constants, which onnxruntime reads as dense."""

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper, inliner, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.patching import TargetName
from support import faults
from support.graphs import FEEDS, SIGNATURE, assert_same_outputs
from support.models import parsed

#: The shapes of a small tensor, and of one that onnx's tools do not get.
SHAPES = [(1, 1, 1, 2), (1, 40, 50, 2)]

BRANCH = """Y = If (c) <
    then_branch = t () => (float[N,C,h,w] T) {
        M = ReduceMax <keepdims = 1> (sparse)
        H = Mul (G, M)
        T = GridSample (X, H) },
    else_branch = e () => (float[N,C,h,w] E) { E = GridSample (X, G) }>"""
PLACES = {
    "main": """M = ReduceMax <keepdims = 1> (sparse)
        H = Mul (G, M)
        Y = GridSample (X, H)""",
    "branch": BRANCH,
}


def sparse_tensor(shape: tuple[int, ...], is_flat: bool) -> onnx.SparseTensorProto:
    """Return a sparse tensor with two values, by flat indices or by an index for each axis."""
    flat = np.array([0, np.prod(shape) - 1], np.int64)
    indices = flat if is_flat else np.stack(np.unravel_index(flat, shape), axis=1)
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([0.25, 0.75], np.float32), "sparse"),
        numpy_helper.from_array(indices.astype(np.int64), "indices"),
        shape,
    )


def model_of(nodes: str, sparse: onnx.SparseTensorProto, opset: int) -> onnx.ModelProto:
    """Return a model with a sparse initializer in the graph whose nodes read it."""
    model = parsed(f"{SIGNATURE} {{ {nodes} }}", opset)
    for scope in scopes_of(model):
        if any("sparse" in node.input for node in scope):
            assert isinstance(scope.container, onnx.GraphProto)
            scope.container.sparse_initializer.append(sparse)
    return model


def constant_of(sparse: onnx.SparseTensorProto) -> onnx.NodeProto:
    attribute = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.CopyFrom(sparse)
    return onnx.NodeProto(op_type="Constant", output=["sparse"], attribute=[attribute])


conversions = pytest.mark.parametrize(
    ("target", "new"), [("ai.onnx", 16), ("ai.onnx", 22), ("primitives", 11), ("primitives", 18)]
)


@faults.needs_adapters
@conversions
@pytest.mark.parametrize("old", [17, 20])
@pytest.mark.parametrize("shape", SHAPES, ids=["small", "large"])
@pytest.mark.parametrize("is_flat", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_conversion_keeps_sparse_initializers(
    place: str, is_flat: bool, shape: tuple[int, ...], old: int, target: TargetName, new: int
) -> None:
    sparse = sparse_tensor(shape, is_flat)
    model = model_of(PLACES[place], sparse, old)
    onnx.checker.check_model(model)
    converted = ogs.patch_model(model, target=target, opset=new)
    onnx.checker.check_model(converted)
    kept = [
        tensor
        for scope in scopes_of(converted)
        if isinstance(scope.container, onnx.GraphProto)
        for tensor in scope.container.sparse_initializer
    ]
    assert kept == [sparse]
    assert_same_outputs(converted, model, FEEDS)


@faults.needs_adapters
@conversions
@pytest.mark.parametrize("old", [17, 20])
@pytest.mark.parametrize("shape", SHAPES, ids=["small", "large"])
@pytest.mark.parametrize("place", [*PLACES, "function"])
def test_conversion_writes_sparse_constants_as_dense_ones(
    place: str, shape: tuple[int, ...], old: int, target: TargetName, new: int
) -> None:
    nodes = PLACES.get(place)
    if nodes is None:
        nodes = f"""Y = local.sample (X, G) }}
            <domain: "local", opset_import: ["": {old}]> sample (X, G) => (Y) {{ {PLACES["main"]}"""
    model = parsed(f"{SIGNATURE} {{ {nodes} }}", old)
    for scope in scopes_of(model):
        if any("sparse" in node.input for node in scope):
            scope.container.node.insert(0, constant_of(sparse_tensor(shape, is_flat=True)))
    converted = ogs.patch_model(model, target=target, opset=new)
    onnx.checker.check_model(converted, full_check=True)
    # onnxruntime 1.32 often crashes when it opens a function with a sparse Constant.
    assert_same_outputs(converted, inliner.inline_local_functions(model), FEEDS)


@faults.needs_adapters
def test_sparse_initializer_that_is_an_input_stays_its_default() -> None:
    model = model_of(PLACES["main"], sparse_tensor((1, 1, 1, 2), is_flat=True), 20)
    model.graph.input.append(helper.make_tensor_value_info("sparse", 1, (1, 1, 1, 2)))
    converted = ogs.patch_model(model, target="primitives", opset=13)
    assert converted.graph.input == model.graph.input
    assert_same_outputs(converted, model, FEEDS)
    fed = FEEDS | {"sparse": np.full((1, 1, 1, 2), 0.5, np.float32)}
    assert_same_outputs(converted, model, fed)
