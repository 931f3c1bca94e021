"""Wrong inputs of fused grids: the errors of separate ops, and lengths other than stated."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from support.compare import assert_identical, refusal
from support.fused_models import needs_compiled_ops, transformer, transformer_feeds
from support.grid_forms import chain_form, moved, remap
from support.models import parsed
from support.paths import open_compiled, open_native
from support.pixel_graphs import GraphBuilder, Shape
from support.provider_nodes import count_fused
from support.ways import WAYS, Arrays, way_param

#: The ways that fuse, and one that does not.
EVERY_WAY = [way_param(way=way) for way in ("compiled", "provider", "compiled file")]


def placed_counts(session: ogs.InferenceSession) -> list[int]:
    return [len(placement.fused) for placement in session.placements]


# AffineGrid

_FEEDS = transformer_feeds()
_X, _THETA, _SIZE = _FEEDS["X"], _FEEDS["theta"], _FEEDS["size"]
#: An input and its wrong value.
WRONG_AFFINE = [
    ("size", _SIZE[:-1]),
    ("size", _SIZE[None]),
    ("size", -_SIZE),
    ("size", np.array([3, 3, 5, 6])),
    ("size", np.array([2, 1, 1 << 40, 1 << 40])),
    ("theta", _THETA[:, :1]),
    ("theta", _THETA[0]),
    ("theta", np.ones((2, 1, 3), np.float32)),
    ("X", _X[:1]),
    ("X", _X[..., None]),
    ("X", _X[:, :, :, 0]),
    ("X", _X[0, 0]),
]


def assert_refused(way: str, model: onnx.ModelProto, feeds: Arrays, right_feeds: Arrays) -> None:
    """Check that a way has the error of a fused session, and runs afterwards."""
    expected = refusal(open_compiled(model).run, None, feeds)
    session = WAYS[way](model)
    with pytest.raises(Exception, match=re.escape(str(expected))):
        session.run(None, feeds)
    session.run(None, right_feeds)


@needs_compiled_ops
@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(("name", "wrong"), WRONG_AFFINE)
def test_wrong_input_of_a_fused_affine_grid_has_the_error_of_separate_ops(
    name: str, wrong: np.ndarray, way: str
) -> None:
    assert_refused(way, transformer(), _FEEDS | {name: wrong}, _FEEDS)


# Steps

#: An input, its shape, and the error.
WRONG_SHAPES = {
    "a coordinate": (
        "map_y",
        (1, 4, 4),
        "made of 'map_y' of shape (1, 4, 4)",
        "shape (N, D1_out, D2_out), like the other values that the grid is made of",
    ),
    "batches of X": (
        "X",
        (2, 1, 5, 6),
        "of shape (1, 3, 4, 2)",
        "N = 2 in axis 0, as X is of shape (2, 1, 5, 6)",
    ),
    "axes of X": (
        "X",
        (1, 1, 5),
        "of shape (1, 3, 4, 2)",
        "shape (N, D1_out, 1), as X of shape (1, 1, 5) has 1 spatial axis",
    ),
}


def remap_without_shapes(name: str, shape: Shape) -> tuple[onnx.ModelProto, Arrays]:
    """Return a model whose inputs have no lengths, and its feeds with one of another shape."""
    form = chain_form(remap, positions=(1, 3, 4), unknown_lengths=True, X_shape=(1, 1, 5, 6))
    if len(shape) == 3 and name == "X":
        form.model.graph.input[0].type.tensor_type.ClearField("shape")
    return form.model, form.feeds


@needs_compiled_ops
@pytest.mark.parametrize("way", [way_param(way=way) for way in ("compiled", "provider")])
@pytest.mark.parametrize(
    ("name", "shape", "found", "expected"), WRONG_SHAPES.values(), ids=WRONG_SHAPES
)
def test_fused_op_of_wrong_shapes_is_refused(
    name: str, shape: Shape, found: str, expected: str, way: str
) -> None:
    model, feeds = remap_without_shapes(name, shape)
    wrong_feeds = feeds | {name: np.zeros(shape, np.float32)}
    error = refusal(open_compiled(model).run, None, wrong_feeds)
    assert (error.where, error.argument) == ("GridSample node 'sample'", "grid")
    assert (error.found, error.expected) == (found, expected)
    assert_refused(way, model, wrong_feeds, feeds)


@needs_compiled_ops
@pytest.mark.parametrize("way", [way_param(way=way) for way in ("compiled", "provider")])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("X", (1, 3, 9, 8)), ("coords", (2, 5, 4, 2)), ("pixels", (1, 3, 6, 2))],
)
def test_fused_sum_of_wrong_shapes_is_refused(name: str, shape: Shape, way: str) -> None:
    form = chain_form(moved, unknown_lengths=True)
    wrong_feeds = form.feeds | {name: np.ones(shape, np.float32)}
    assert_refused(way, form.model, wrong_feeds, form.feeds)


def flow_with_stale_shapes() -> tuple[GraphBuilder, onnx.ModelProto]:
    """Return a flow added to a base. Symbols and a value_info state equal lengths."""
    graph = GraphBuilder()
    base = graph.add_input("base", 3, 4, 5, 2)
    moved = graph.add("Add", base, graph.add_input("flow", 3, 4, 5, 2))
    model = graph.model(graph.add("Mul", moved, 0.5), (3, 1, 5, 6))
    for value in model.graph.input:
        symbols = "NHWC" if value.name == "X" else "Nhw"
        for symbol, dim in zip(symbols, value.type.tensor_type.shape.dim, strict=False):
            dim.dim_param = symbol
    stale = helper.make_tensor_value_info(moved, TensorProto.FLOAT, [1, 4, 5, 2])
    model.graph.value_info.append(stale)
    return graph, model


@needs_compiled_ops
def test_fused_sum_of_lengths_other_than_stated_has_the_output_of_the_graph() -> None:
    _, model = flow_with_stale_shapes()
    session = open_compiled(model)
    native = open_native(model)
    assert placed_counts(session) == [2]
    rng = np.random.default_rng(0)
    lengths = [(3, 4, 5), (1, 4, 5), (3, 1, 5), (1, 1, 1), (3, 4, 1)]
    for base, displacement in product(lengths, repeat=2):
        feeds = {
            "base": rng.normal(size=(*base, 2)).astype(np.float32),
            "flow": rng.normal(size=(*displacement, 2)).astype(np.float32),
            "X": rng.normal(size=(max(base[0], displacement[0]), 1, 5, 6)).astype(np.float32),
        }
        (expected,) = native.run(None, feeds)
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)


@needs_compiled_ops
def test_fused_sum_of_lengths_that_do_not_broadcast_is_refused() -> None:
    graph, model = flow_with_stale_shapes()
    feeds = graph.feeds | {
        "base": np.zeros((3, 4, 5, 2), np.float32),
        "flow": np.zeros((3, 2, 5, 2), np.float32),
    }
    assert refusal(open_compiled(model).run, None, feeds).found.startswith("made of")


@needs_compiled_ops
def test_concat_that_may_fail_is_not_fused() -> None:
    """The fused op would broadcast coordinates that Concat refuses."""
    graph = GraphBuilder()
    x = graph.add_input("x", 1, 4, 5, 1)
    y = graph.add_input("y", 1, 4, 5, 1)
    together = graph.add("Concat", x, y, axis=3)
    moved = graph.add("Add", together, graph.add_input("flow", 3, 4, 5, 2))
    model = graph.model(moved, (3, 1, 5, 6))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = value.name
    session = open_compiled(model)
    assert placed_counts(session) == [1]
    session.run(None, graph.feeds)
    with pytest.raises(Exception, match="Concat"):
        session.run(None, graph.feeds | {"x": np.zeros((3, 4, 5, 1), np.float32)})


#: The model declares one element for a value that may have more in a run.
WRONG_DECLARATION = """
    agraph (float[B, 1, 4, 4] X, float[B, 3, 4, 2] coords, float[N] factors, int64[M] shape)
    => (float[B, 1, 3, 4] Y)
    <float SHAPE first> {
        first = Reshape (factors, shape)
        factor = Neg (first)
        grid = Mul (coords, factor)
        Y = GridSample (X, grid)
    }"""


@pytest.mark.parametrize("way", [way_param(way="provider")])
def test_value_that_is_wrongly_declared_as_a_scalar_raises_an_error(way: str) -> None:
    session = WAYS[way](parsed(WRONG_DECLARATION.replace(" SHAPE", "[1]")))
    assert count_fused(session) == 1
    feeds = {
        "X": np.ones((1, 1, 4, 4), np.float32),
        "coords": np.ones((1, 3, 4, 2), np.float32),
        "factors": np.ones(2, np.float32),
        "shape": np.array([2]),
    }
    sentence = r"GridSample node with output 'Y': grid is made of a value of shape \(2\)"
    with pytest.raises(Exception, match=sentence):
        session.run(None, feeds)


@pytest.mark.parametrize("way", [way_param(way="provider")])
def test_value_with_an_axis_of_batches_is_no_scalar(way: str) -> None:
    model = parsed(WRONG_DECLARATION.replace(" SHAPE", "[1, 1, 1, 1]"))
    rng = np.random.default_rng(0)
    feeds = {
        "X": rng.normal(size=(2, 1, 4, 4)).astype(np.float32),
        "coords": rng.uniform(-1, 1, (2, 3, 4, 2)).astype(np.float32),
        "factors": np.array([0.5, 0.25], np.float32),
        "shape": np.array([2, 1, 1, 1]),
    }
    (Y,) = WAYS[way](model).run(None, feeds)
    (expected,) = open_compiled(model).run(None, feeds)
    assert_identical(Y, expected)
