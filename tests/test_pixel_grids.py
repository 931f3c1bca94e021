"""What makes a grid right before a GridSample, in one with it: wherever it is found, with the graph's own answers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from cases import ATTRIBUTES
from compare import assert_identical
from ort_gridsample.model.pixel_grids import MOST_SOURCES, MOST_STEPS, absorb
from ort_gridsample.runtime import choice
from paths import quiet_options
from test_fusion import attributes_of, two_ops

compiled = pytest.mark.skipif(bool(choice.ops.why_not()), reason=f"no compiled ops: {choice.ops.why_not()}")

Shape = tuple[int, ...]


@dataclass
class Graph:
    """A model that is written node by node, ends in a GridSample, and is fed at random."""

    type: str = "float32"
    opset: int = 20
    shapes: dict[str, Shape] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)

    def fed(self, name: str, *shape: int) -> str:
        self.shapes[name] = shape
        rng = np.random.default_rng(len(self.feeds))
        self.feeds[name] = rng.uniform(-3, 12, shape).astype(self.type)
        return name

    def constant(self, value: object, dtype: str = "") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype or self.type), name))
        return name

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> list[str]:
        number = len(self.nodes)
        names = [f"{op_type}{number}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, f"{op_type}{number}", **attributes))
        return names

    def sampled(
        self, grid: str, X: Shape, attributes: dict[str, object] | None = None, opset: int = 0, loose: bool = False
    ) -> onnx.ModelProto:
        """The model; ``loose``: whose inputs' lengths are unknown where they are no number of coordinates."""
        elem = TensorProto.DOUBLE if self.type == "float64" else TensorProto.FLOAT
        self.feeds["X"] = np.random.default_rng(1).normal(size=X).astype(np.float32)
        r = len(X) - 2
        inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None] * len(X) if loose else X)]
        for name, shape in self.shapes.items():
            said = [length if not loose or length <= max(r, 1) else None for length in shape]
            inputs.append(helper.make_tensor_value_info(name, elem, said))
        mode = {
            "mode": "linear",
            "padding_mode": "reflection",
            **(attributes or {}),
        }  # which no coordinate is outside of
        nodes = [*self.nodes, helper.make_node("GridSample", ["X", grid], ["Y"], "sample", **mode)]
        outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * len(X))]
        graph = helper.make_graph(nodes, "pixels", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)


def flow(graph: Graph, n: int, h: int, w: int) -> str:
    """As for RAFT: coordinates in pixels, split, normalized one by one, put together."""
    coords = graph.fed("coords", n, h, w, 2)
    parts = graph.add("Split", coords, outputs=2, axis=-1, num_outputs=2)
    made = []
    for part, length in zip(parts, (8, 9), strict=True):
        (twice,) = graph.add("Mul", part, graph.constant(2))
        (divided,) = graph.add("Div", twice, graph.constant(length - 1))
        made += graph.add("Sub", divided, graph.constant(1))
    return graph.add("Concat", *made, axis=-1)[0]


def stacked(graph: Graph, n: int, h: int, w: int) -> str:
    """As PyTorch indexes and stacks."""
    coords, made = graph.fed("coords", n, h, w, 2), []
    for index, length in enumerate((8, 9)):
        (part,) = graph.add("Gather", coords, graph.constant(index, "int64"), axis=3)
        (scaled,) = graph.add("Mul", graph.constant(2 / (length - 1)), part)
        (shifted,) = graph.add("Sub", scaled, graph.constant([1]))
        made += graph.add("Unsqueeze", shifted, graph.constant([-1], "int64"))
    return graph.add("Concat", *made, axis=3)[0]


def remap(graph: Graph, n: int, h: int, w: int) -> str:
    """Two maps, one of each coordinate."""
    made = []
    for name, length in (("map_x", 8), ("map_y", 9)):
        (shifted,) = graph.add("Add", graph.fed(name, n, h, w), graph.constant(0.5))
        (scaled,) = graph.add("Mul", shifted, graph.constant(2 / length))
        (moved,) = graph.add("Sub", scaled, graph.constant(1))
        made += graph.add("Unsqueeze", moved, graph.constant([3], "int64"))
    return graph.add("Concat", *made, axis=3)[0]


def planar(graph: Graph, n: int, h: int, w: int) -> str:
    """Coordinates in planes, y first."""
    coords = graph.fed("coords", n, 2, h, w)
    (scaled,) = graph.add("Div", coords, graph.constant(np.array([9, 8]).reshape(2, 1, 1)))
    (last,) = graph.add("Transpose", scaled, perm=[0, 2, 3, 1])
    return graph.add("Gather", last, graph.constant([1, 0], "int64"), axis=-1)[0]


def at_once(graph: Graph, n: int, h: int, w: int) -> str:
    """All coordinates at once, by a row of numbers, which come first as well as second."""
    coords = graph.fed("coords", n, h, w, 2)
    (scaled,) = graph.add("Div", coords, graph.constant([7, 8]))
    (turned,) = graph.add("Sub", graph.constant([[0.5, 1]]), scaled)
    (over,) = graph.add("Div", graph.constant(-0.25), turned)
    return graph.add("Add", graph.constant([1, 2]), over)[0]


def from_shapes(graph: Graph, n: int, h: int, w: int) -> str:
    """Numbers that only a run knows."""
    coords, made = graph.fed("coords", n, h, w, 2), []
    (shape,) = graph.add("Shape", "X")
    parts = graph.add("Split", coords, graph.constant([1, 1], "int64"), outputs=2, axis=3)
    for part, axis in zip(parts, (3, 2), strict=True):
        (length,) = graph.add("Gather", shape, graph.constant(axis, "int64"), axis=0)
        (as_float,) = graph.add("Cast", length, to=helper.np_dtype_to_tensor_dtype(np.dtype(graph.type)))
        (last,) = graph.add("Sub", as_float, graph.constant(1))
        (divided,) = graph.add("Div", part, last)
        made += graph.add("Sub", divided, graph.constant(0.5))
    return graph.add("Concat", *made, axis=3)[0]


def slices(graph: Graph, n: int, h: int, w: int) -> str:
    """Slices of planes, of more than are read; batches behind the coordinates."""
    coords = graph.fed("coords", 5, n, h, w)
    made = []
    for start, stop in ((-1, 1 << 40), (1, 2)):
        said = [graph.constant([each], "int64") for each in (start, stop, 0)]
        (part,) = graph.add("Slice", coords, *said)
        (flat,) = graph.add("Squeeze", part, graph.constant([0], "int64"))
        (scaled,) = graph.add("Div", flat, graph.constant(6))
        made += graph.add("Unsqueeze", scaled, graph.constant([1], "int64"))
    (together,) = graph.add("Concat", *made, axis=1)
    (same,) = graph.add("Identity", together)
    return graph.add("Transpose", same, perm=[0, 2, 3, 1])[0]


def between(graph: Graph, n: int, h: int, w: int) -> str:
    """The coordinates of each row, one behind the other."""
    (scaled,) = graph.add("Mul", graph.fed("coords", n, h, 2, w), graph.constant(0.2))
    return graph.add("Transpose", scaled, perm=[0, 1, 3, 2])[0]


def one_for_both(graph: Graph, n: int, h: int, w: int) -> str:
    """One coordinate, which each number of a row makes another of."""
    return graph.add("Mul", graph.fed("coords", n, h, w, 1), graph.constant([0.1, 0.2]))[0]


def places(h: int, w: int) -> np.ndarray:
    """The pixels of an image (h, w, 2), x first."""
    return np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1)


def displaced(graph: Graph, n: int, h: int, w: int) -> str:
    """Normalized coordinates that all batches share, and planes of what is added to them."""
    (scaled,) = graph.add("Mul", graph.fed("flow", n, 2, h, w), graph.constant(0.02))
    (last,) = graph.add("Transpose", scaled, perm=[0, 2, 3, 1])
    shared = graph.constant(places(h, w)[None] / (max(h, 2), max(w, 2)) - 0.5)
    return graph.add("Add", shared, last)[0]


def displaced_pixels(graph: Graph, n: int, h: int, w: int) -> str:
    """Pixels that a flow begins at, each coordinate normalized by itself; less, and as a part of, a third."""
    shared = graph.constant(places(h, w).transpose(2, 0, 1)[None])
    if h == 0:  # onnxruntime 1.17 refuses a model that subtracts from a constant without elements
        shared = graph.fed("places", 1, 2, h, w)
    (moved,) = graph.add("Add", graph.fed("flow", n, 2, h, w), shared)
    (less,) = graph.add("Sub", shared, moved)
    (part,) = graph.add("Div", less, graph.add("Add", graph.fed("scale", n, 1, h, w), graph.constant(20))[0])
    made = []
    for index, length in ((1, 8), (0, 9)):
        (one,) = graph.add("Gather", part, graph.constant(index, "int64"), axis=1)
        (scaled,) = graph.add("Mul", one, graph.constant(2 / length))
        made += graph.add("Unsqueeze", scaled, graph.constant([3], "int64"))
    return graph.add("Concat", *made, axis=3)[0]


def displaced_together(graph: Graph, n: int, h: int, w: int) -> str:
    """What all batches share is made of two values itself."""
    (shared,) = graph.add("Sub", graph.fed("one", 1, h, w, 2), graph.fed("other", 1, h, w, 2))
    (moved,) = graph.add("Add", graph.fed("flow", n, h, w, 2), shared)
    return graph.add("Mul", moved, graph.constant(0.05))[0]


CHAINS: dict[str, tuple[Callable[[Graph, int, int, int], str], int]] = {
    "flow": (flow, 8),
    "stacked": (stacked, 9),
    "remap": (remap, 9),
    "planar": (planar, 3),
    "at once": (at_once, 4),
    "from shapes": (from_shapes, 6),
    "slices": (slices, 11),
    "between": (between, 2),
    "one for both": (one_for_both, 1),
    "displaced": (displaced, 3),
    "displaced pixels": (displaced_pixels, 11),
    "displaced together": (displaced_together, 3),
}

#: How many of a chain's nodes are taken in where the number of coordinates that they choose from is not known.
#: So are coordinates that others meet, where the lengths of both are not known.
BEHIND_UNKNOWN = {"slices": 7, "displaced": 0, "displaced pixels": 7, "displaced together": 1}


def open_fused(model: onnx.ModelProto) -> ogs.InferenceSession:
    return ogs.InferenceSession(model, quiet_options())


def taken_in(session: ogs.InferenceSession) -> list[int]:
    return [len(placement.takes_in) for placement in session.replaced]


@compiled
@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("type", ["float32", "float64"])
@pytest.mark.parametrize("chain", CHAINS)
def test_is_the_graph_bit_for_bit(chain: str, type: str, loose: bool) -> None:
    build, nodes = CHAINS[chain]
    for attributes in ATTRIBUTES[::5]:
        for n, h, w in ((2, 3, 5), (1, 70, 90), (3, 1, 2100), (2, 0, 4)):
            graph = Graph(type)
            model = graph.sampled(build(graph, n, h, w), (n, 3, 9, 8), attributes_of(attributes), loose=loose)
            session, expected = open_fused(model), two_ops(model)
            assert taken_in(session) == [BEHIND_UNKNOWN.get(chain, nodes) if loose else nodes]
            assert_identical(session.run(None, graph.feeds)[0], expected.run(None, graph.feeds)[0])


@compiled
def test_as_onnxruntime_does_it() -> None:
    """The nodes that are taken in answer as onnxruntime's own do."""
    for build, _ in CHAINS.values():
        graph = Graph()
        model = graph.sampled(build(graph, 2, 30, 40), (2, 3, 9, 8))
        native = onnxruntime.InferenceSession(model.SerializeToString(), quiet_options())
        answers = [each.run(None, graph.feeds)[0] for each in (open_fused(model), native)]
        np.testing.assert_allclose(*answers, atol=1e-5)


@compiled
def test_the_older_spelling() -> None:
    """Axes, starts and parts as attributes."""
    graph = Graph(opset=9)
    x, y = graph.add("Split", graph.fed("coords", 1, 4, 5, 2), outputs=2, axis=3, split=[1, 1])
    made = []
    for part in (y, x):
        (flat,) = graph.add("Squeeze", part, axes=[3])
        (scaled,) = graph.add("Mul", flat, graph.constant(0.1))
        made += graph.add("Unsqueeze", scaled, axes=[1])
    (together,) = graph.add("Concat", *made, axis=1)
    parts = [graph.add("Slice", together, starts=[i], ends=[i + 1], axes=[1])[0] for i in (0, 1)]
    (again,) = graph.add("Concat", *parts, axis=1)
    (grid,) = graph.add("Transpose", again, perm=[0, 2, 3, 1])
    model = graph.sampled(grid, (1, 2, 6, 7))
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "grid_sampler", "mmcv"
    del model.graph.node[-1].attribute[:]
    for name in ("interpolation_mode", "padding_mode", "align_corners"):
        model.graph.node[-1].attribute.append(helper.make_attribute(name, 0))
    model.opset_import.append(helper.make_opsetid("mmcv", 1))
    session = open_fused(model)
    assert taken_in(session) == [len(graph.nodes)]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@compiled
def test_numbers_that_are_none_and_zeros_with_a_sign() -> None:
    graph = Graph()
    coords = graph.fed("coords", 1, 3, 40, 2)
    specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1.0]
    graph.feeds["coords"][:] = np.resize(specials, (1, 3, 40, 2))
    (added,) = graph.add("Add", coords, graph.constant([-0.0, 0.0]))
    (over,) = graph.add("Div", graph.constant([1, -0.0]), added)
    (grid,) = graph.add("Mul", over, graph.constant(np.float32(np.inf)))
    for attributes in ATTRIBUTES:
        model = graph.sampled(grid, (1, 2, 6, 7), attributes_of(attributes))
        session = open_fused(model)
        assert taken_in(session) == [3]
        assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@dataclass
class Coordinates:
    """Where a chain that is being written has its coordinates: along an axis of one value, or each in its own."""

    values: list[str]
    axis: int | None
    length: int = 1


def moved(axes: int, start: int, to: int) -> list[int]:
    order = [axis for axis in range(axes) if axis != start]
    order.insert(to, start)
    return order


@st.composite
def chains(draw: st.DrawFn) -> tuple[Graph, str, Shape]:
    """A chain of any nodes that are taken in, in any order; the grid that it makes, and a shape of X for that."""
    r = draw(st.integers(1, 3))
    graph = Graph(draw(st.sampled_from(["float32", "float64"])))
    batches = [draw(st.integers(1, 3))]  # those of the values on the way, one after the other
    rest = [batches[0], *(draw(st.integers(1, 9)) for _ in range(r))]
    numbers = st.sampled_from([0.0, -1.0, 0.5, 2.0, 3.0, -0.1])

    def arithmetic(name: str, row: Sequence[int]) -> str:
        """A node with one number, or one for each coordinate, that comes first or second."""
        if draw(st.booleans()):
            number = graph.constant(np.reshape([draw(numbers) for _ in range(int(np.prod(row)))], row))
        elif draw(st.booleans()):
            number = graph.fed(f"number{len(graph.feeds)}")
            graph.feeds[number] = np.array(draw(numbers), graph.type)
        else:
            number = graph.constant(draw(numbers))
        inputs = draw(st.permutations([name, number]))
        return graph.add(draw(st.sampled_from(["Add", "Sub", "Mul", "Div"])), *inputs)[0]

    def pair(name: str, at: Coordinates) -> str:
        """A node with another coordinate for each, or with one that all batches, or all coordinates, have in common."""
        shape = [batches[-1], *rest[1:]]
        if at.axis is not None:
            shape.insert(at.axis, draw(st.sampled_from([1, at.length])))
        other = graph.fed(f"other{len(graph.feeds)}", *shape)
        if draw(st.booleans()):
            (other,) = graph.add("Mul", other, graph.constant(draw(numbers)))
        return graph.add(draw(st.sampled_from(["Add", "Sub", "Mul", "Div"])), *draw(st.permutations([name, other])))[0]

    def change(at: Coordinates) -> Coordinates:
        what = draw(st.integers(0, 8))
        if what > 5:
            before = batches[-1]
            batches.append(draw(st.sampled_from([1, 2] if before == 1 else [1, before])))
            made = Coordinates([pair(name, at) for name in at.values], at.axis, at.length)
            batches.append(max(before, batches[-1]))
            return made
        if what == 0:
            return Coordinates([graph.add("Identity", name)[0] for name in at.values], at.axis, at.length)
        if what in (1, 2):
            row = [] if at.axis is None else [at.length, *[1] * (r + 1 - at.axis)]
            return Coordinates([arithmetic(name, row) for name in at.values], at.axis, at.length)
        if at.axis is None:
            axis = draw(st.integers(0, r + 1))
            axes = graph.constant([axis], "int64")
            rows = [graph.add("Unsqueeze", name, axes)[0] for name in at.values]
            return Coordinates(graph.add("Concat", *rows, axis=axis - (r + 2) * draw(st.integers(0, 1))), axis, r)
        if len(at.values) > 1:
            axes = graph.constant([at.axis], "int64")
            return Coordinates([graph.add("Squeeze", name, axes)[0] for name in at.values], None)
        (name,) = at.values
        if what == 3:
            to = draw(st.integers(0, r + 1))
            return Coordinates(graph.add("Transpose", name, perm=moved(r + 2, at.axis, to)), to, at.length)
        chosen = [draw(st.integers(-at.length, at.length - 1)) for _ in range(r)]
        if what == 4:
            return Coordinates(graph.add("Gather", name, graph.constant(chosen, "int64"), axis=at.axis), at.axis, r)
        return Coordinates(
            [graph.add("Gather", name, graph.constant(i, "int64"), axis=at.axis)[0] for i in chosen], None
        )

    if draw(st.booleans()):
        at = Coordinates([graph.fed(f"map{i}", *rest) for i in range(r)], None)
    else:
        axis, length = draw(st.integers(0, r + 1)), draw(st.integers(1, 4))
        at = Coordinates([graph.fed("coords", *rest[:axis], length, *rest[axis:])], axis, length)
    for _ in range(draw(st.integers(0, 6))):
        at = change(at)
    while (at.axis, at.length, len(at.values)) != (r + 1, r, 1):
        if at.axis is None:
            axes = graph.constant([-1], "int64")
            at = Coordinates([graph.add("Unsqueeze", name, axes)[0] for name in at.values], r + 1)
            at = Coordinates(graph.add("Concat", *at.values, axis=-1), r + 1, r)
        elif len(at.values) > 1:
            at = Coordinates(graph.add("Concat", *at.values, axis=at.axis), at.axis, r)
        elif at.length != r:
            row = graph.constant([i % at.length for i in range(r)], "int64")
            at = Coordinates(graph.add("Gather", *at.values, row, axis=at.axis), at.axis, r)
        else:
            at = Coordinates(graph.add("Transpose", *at.values, perm=moved(r + 2, at.axis, r + 1)), r + 1, r)
    return graph, at.values[0], (batches[-1], draw(st.integers(1, 3)), *(5, 4, 3)[:r])


@compiled
@settings(max_examples=80, deadline=None)
@given(chains(), st.sampled_from(ATTRIBUTES))
def test_any_chain(chain: tuple[Graph, str, Shape], attributes: object) -> None:
    graph, grid, X = chain
    model = graph.sampled(grid, X, attributes_of(attributes))  # type: ignore[arg-type]
    session = open_fused(model)
    too_many = sum(name.startswith("other") for name in graph.feeds) > MOST_SOURCES - 3
    if graph.nodes and len(X) > 3 and not too_many:  # of one axis a grid and a plane are told apart by nothing
        assert taken_in(session) != [0]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


def test_coordinates_that_meet_others() -> None:
    """How much of what makes them is taken in."""

    def model(build: Callable[[Graph, str], str], shape: Shape = (2, 3, 4, 2), **others: Shape) -> list[int]:
        graph = Graph()
        x = graph.fed("coords", *shape)
        for name, other in others.items():
            graph.fed(name, *other)
        return found(graph.sampled(build(graph, x), (2, 1, *[5] * (len(shape) - 2))))

    assert model(lambda g, x: g.add("Mul", x, x)[0]) == [1]
    assert model(lambda g, x: g.add("Add", x, "y")[0], y=(2, 3, 4, 2)) == [1]
    assert model(lambda g, x: g.add("Add", x, "y")[0], y=(1, 3, 4, 2)) == [1]
    assert model(lambda g, x: g.add("Add", x, "y")[0], y=(2, 3, 4, 1)) == [1]
    # What spreads out over more than batches and coordinates is left alone.
    assert model(lambda g, x: g.add("Add", x, "y")[0], y=(2, 1, 4, 2)) == [0]
    assert model(lambda g, x: g.add("Add", x, "y")[0], y=(3, 4, 2)) == [0]
    # Of two values that are made of two each, one is followed back, whichever it is.
    assert model(lambda g, x: g.add("Add", x, g.add("Add", "y", x)[0])[0], y=(2, 3, 4, 2)) == [2]
    assert model(lambda g, x: g.add("Add", g.add("Add", "y", x)[0], x)[0], y=(2, 3, 4, 2)) == [2]
    assert model(lambda g, x: g.add("Mul", *[g.add("Add", x, "y")[0] for _ in "ab"])[0], y=(2, 3, 4, 2)) == [2]

    def apart(g: Graph, x: str) -> str:
        """Three coordinates of three values each: of so many none is made."""
        rows = []
        for i in range(3):
            three, index = [], g.constant([i], "int64")
            for name in (x, "y", "z"):
                (one,) = g.add("Gather", name, index, axis=4)
                three += g.add("Neg", one)
            rows += g.add("Add", g.add("Add", *three[:2])[0], three[2])
        return g.add("Concat", *rows, axis=4)[0]

    assert model(apart, (2, 3, 4, 2, 3), y=(2, 3, 4, 2, 3), z=(2, 3, 4, 2, 3)) == [1]


def test_inspect_says_so() -> None:
    graph = Graph()
    (record,) = ogs.inspect_model(graph.sampled(remap(graph, 1, 3, 4), (1, 1, 5, 6)))
    assert record.takes_in == tuple(node.name for node in graph.nodes)


@compiled
def test_a_session_says_so() -> None:
    graph = Graph()
    session = open_fused(graph.sampled(remap(graph, 1, 3, 4), (1, 1, 5, 6)))
    assert str(session.replaced[0]).endswith(": compiled op (one with the 9 nodes that make its grid)")


@compiled
def test_nodes_can_decline_it() -> None:
    graph = Graph()
    model = graph.sampled(remap(graph, 1, 3, 4), (1, 1, 5, 6))
    session = ogs.InferenceSession(model, quiet_options(), nodes=lambda record: not record.takes_in)
    assert [(each.runs_on, each.takes_in) for each in session.replaced] == [("onnxruntime", ())]


@compiled
def test_is_pickled_and_opened_again(tmp_path) -> None:
    graph = Graph()
    model = graph.sampled(from_shapes(graph, 1, 3, 4), (1, 1, 5, 6))
    expected = two_ops(model).run(None, graph.feeds)[0]
    onnx.save(ogs.patch_model(model, target="compiled"), tmp_path / "patched.onnx")
    onnx.save(model, tmp_path / "model.onnx")
    for given_model in (model, model.SerializeToString(), tmp_path / "model.onnx", tmp_path / "patched.onnx"):
        session = open_fused(given_model)
        for each in (session, pickle.loads(pickle.dumps(session))):
            assert taken_in(each) == [6]
            assert_identical(each.run(None, graph.feeds)[0], expected)


def found(model: onnx.ModelProto) -> list[int]:
    return [len(record.takes_in) for record in ogs.inspect_model(model)]


def readers(model: onnx.ModelProto, name: str) -> list[onnx.ModelProto]:
    """Models in which somebody else reads the value ``name``: the caller, a node, a graph, another GridSample."""
    output, reader, body, other = (onnx.ModelProto.FromString(model.SerializeToString()) for _ in range(4))
    output.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    reader.graph.node.append(helper.make_node("Neg", [name], ["elsewhere"]))
    inner = helper.make_graph(
        [helper.make_node("Neg", [name], ["n"])], "body", [], [helper.make_tensor_value_info("n", 1, None)]
    )
    body.graph.node.append(helper.make_node("If", ["yes"], ["elsewhere"], then_branch=inner, else_branch=inner))
    other.graph.node.append(helper.make_node("GridSample", [name, "grid"], ["elsewhere"]))
    return [output, reader, body, other]


def test_what_somebody_else_reads_is_made_as_before() -> None:
    graph = Graph()
    model = graph.sampled(flow(graph, 1, 3, 4), (1, 1, 5, 6))
    assert found(model) == [8]
    # The grid, a coordinate in the middle of its way, and the one that both come from.
    for name, left in ((model.graph.node[-1].input[1], 0), ("Div2_0", 5), ("Split0_1", 7)):
        for each in readers(model, name):
            assert found(each)[0] == left, name


@compiled
def test_and_then_the_answer_is_the_same() -> None:
    graph = Graph()
    model = graph.sampled(flow(graph, 1, 3, 4), (1, 1, 5, 6))
    for name in ("Div2_0", "Split0_1"):
        read = readers(model, name)[0]
        session, expected = open_fused(read), two_ops(read)
        for a, b in zip(session.run(None, graph.feeds), expected.run(None, graph.feeds), strict=True):
            assert_identical(a, b)


def test_what_changes_more_than_numbers_do_is_left_alone() -> None:
    def model(build: Callable[[Graph, str], str], type: str = "float32", shape: Shape = (1, 3, 4, 2)) -> list[int]:
        graph = Graph(type)
        return found(graph.sampled(build(graph, graph.fed("coords", *shape)), (1, 1, 5, 6)))

    assert model(lambda g, x: g.add("Mul", x, g.constant(2))[0]) == [1]
    assert model(lambda g, x: g.add("Neg", x)[0]) == [0]
    assert model(lambda g, x: g.add("Mul", x, g.constant(np.ones((3, 4, 2))))[0]) == [0]
    assert model(lambda g, x: g.add("Mul", x, g.constant(np.ones((1, 1, 1, 1, 2))))[0]) == [0]
    assert model(lambda g, x: g.add("Transpose", x, perm=[0, 2, 1, 3])[0]) == [0]
    assert model(lambda g, x: g.add("Transpose", x)[0], shape=(2, 4, 3, 1)) == [0]
    assert model(lambda g, x: g.add("Gather", x, g.constant([1, 0, 2], "int64"), axis=1)[0]) == [0]
    assert model(lambda g, x: g.add("Concat", x, x, axis=1)[0]) == [0]
    assert model(lambda g, x: g.add("Unsqueeze", x, g.constant([0], "int64"))[0], shape=(3, 4, 2)) == [0]
    assert model(lambda g, x: g.add("Mul", x, g.constant(2))[0], shape=(1, 3, 4, 3)) == [0]
    assert model(lambda g, x: g.add("Mul", x, g.constant(np.ones((1, 2))))[0], type="float64") == [1]
    assert model(lambda g, x: g.add("Mul", x, g.constant([[1, 2]]))[0]) == [1]
    halves = [helper.make_node("Cast", ["coords"], ["half"], to=TensorProto.FLOAT16)]
    graph = Graph()
    graph.fed("coords", 1, 3, 4, 2)
    graph.nodes = halves
    assert found(graph.sampled(graph.add("Mul", "half", graph.constant(2, "float16"))[0], (1, 1, 5, 6))) == [0]


@compiled
def test_coordinates_are_chosen_from_either_end_and_in_steps() -> None:
    for build in (
        lambda g, x: [g.add("Gather", x, g.constant(i, "int64"), axis=-1)[0] for i in (-1, -3)],
        lambda g, x: [g.add("Gather", x, g.constant([i], "int64"), axis=3)[0] for i in (-4, 2)],
        lambda g, x: [g.add("Slice", x, *(g.constant([i], "int64") for i in (1, 4, -1, 2)))[0]],
    ):
        graph = Graph()
        parts = build(graph, graph.fed("coords", 2, 3, 5, 4))
        if len(parts) > 1 and len(graph.constants[0].dims) == 0:
            axes = graph.constant([3], "int64")
            parts = [graph.add("Unsqueeze", part, axes)[0] for part in parts]
        (grid,) = graph.add("Concat", *parts, axis=3) if len(parts) > 1 else parts
        model = graph.sampled(grid, (2, 3, 9, 8))
        session = open_fused(model)
        assert taken_in(session) == [len(graph.nodes)]
        assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@compiled
def test_one_coordinate_of_each_of_two_grids() -> None:
    graph, parts = Graph(), []
    for i, name in enumerate(("one", "other")):
        coords = graph.fed(name, 1, 30, 40, 2)
        parts += graph.add("Gather", coords, graph.constant([i], "int64"), axis=3)
    model = graph.sampled(graph.add("Concat", *parts, axis=3)[0], (1, 2, 9, 8))
    session = open_fused(model)
    assert taken_in(session) == [3]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@pytest.mark.parametrize("step", [0, -1])
def test_steps_that_lead_nowhere_or_back_are_left_alone(step: int) -> None:
    graph = Graph()
    coords = graph.fed("coords", 1, 3, 4, 2)
    (grid,) = graph.add("Slice", coords, *(graph.constant([i], "int64") for i in (1, -9, 3, step)))
    assert found(graph.sampled(grid, (1, 1, 5, 6))) == [0]


def test_no_constant_is_left_that_nobody_reads() -> None:
    """Onnxruntime would warn of each."""
    graph = Graph()
    coords = graph.fed("coords", 1, 3, 4, 2)
    graph.nodes.append(helper.make_node("Constant", [], ["two"], value_float=2.0))
    (twice,) = graph.add("Mul", coords, "two")
    (grid,) = graph.add("Sub", twice, graph.constant([1, 2]))
    model = ogs.patch_model(graph.sampled(grid, (1, 1, 5, 6)), target="compiled")
    assert absorb(model, None) == {"sample": ("Mul1", "Sub2")}
    assert [node.op_type for node in model.graph.node] == ["Constant", "ort_gridsample_PixelGridSample"]
    assert not model.graph.initializer


@compiled
def test_a_coordinate_may_be_the_number_that_another_meets() -> None:
    """Where there is one position, no shape tells them apart."""
    graph = Graph()
    x, y = graph.add("Split", graph.fed("coords", 1, 1, 1, 2), outputs=2, axis=3, num_outputs=2)
    (product,) = graph.add("Mul", x, y)
    model = graph.sampled(graph.add("Concat", product, y, axis=3)[0], (1, 2, 9, 8))
    session = open_fused(model)
    assert taken_in(session) == [2]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@compiled
@pytest.mark.parametrize("sampled", ["Mul0_0", "Identity2_0"])
def test_what_is_sampled_may_be_what_the_grid_is_made_of(sampled: str) -> None:
    graph = Graph()
    (scaled,) = graph.add("Mul", graph.fed("coords", 1, 2, 5, 2), graph.constant(0.1))
    (moved,) = graph.add("Transpose", scaled, perm=[0, 2, 3, 1])
    (grid,) = graph.add("Identity", moved)
    graph.feeds["coords"] = graph.feeds["coords"][:, :, :2]
    graph.shapes["coords"] = (1, 2, 2, 2)
    model = graph.sampled(grid, (1, 2, 2, 2))
    model.graph.node[-1].input[0] = sampled
    del model.graph.input[0], graph.feeds["X"]
    session = open_fused(model)
    assert taken_in(session) == [2 if sampled == "Mul0_0" else 0]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@compiled
def test_inputs_that_have_defaults_stay() -> None:
    """Models of the first IR versions list their initializers among their inputs."""
    graph = Graph()
    model = graph.sampled(at_once(graph, 1, 3, 4), (1, 1, 5, 6))
    for constant in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(constant.name, TensorProto.FLOAT, constant.dims))
    model.ir_version = 3
    session, expected = open_fused(model), two_ops(model)
    assert taken_in(session) == [4]
    assert [each.name for each in session.get_inputs()] == [each.name for each in expected.get_inputs()]
    assert_identical(session.run(None, graph.feeds)[0], expected.run(None, graph.feeds)[0])


def test_no_grid_is_made_of_more_values_than_an_op_takes() -> None:
    for r in (MOST_SOURCES, MOST_SOURCES + 1):
        graph = Graph()
        axes = graph.constant([-1], "int64")
        maps = [graph.add("Unsqueeze", graph.fed(f"map{i}", 1, *[2] * r), axes)[0] for i in range(r)]
        model = graph.sampled(graph.add("Concat", *maps, axis=-1)[0], (1, 1, *[3] * r))
        assert found(model) == [r + 1 if r == MOST_SOURCES else 0]


@compiled
def test_what_is_too_long_is_taken_in_in_part() -> None:
    graph = Graph()
    at = graph.fed("coords", 1, 3, 4, 2)
    for _ in range(MOST_STEPS + 3):
        (at,) = graph.add("Mul", at, graph.constant(1.01))
    model = graph.sampled(at, (1, 1, 5, 6))
    session = open_fused(model)
    assert taken_in(session) == [MOST_STEPS]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@compiled
def test_shapes_that_do_not_go_together_are_told() -> None:
    graph = Graph()
    model = graph.sampled(remap(graph, 1, 3, 4), (1, 1, 5, 6), loose=True)
    session = open_fused(model)
    wrong = graph.feeds | {"map_y": np.zeros((1, 4, 4), np.float32)}
    with pytest.raises(ogs.GridSampleError) as told:
        session.run(None, wrong)
    assert str(told.value) == (
        "GridSample node 'sample': grid is made of 'map_y' of shape (1, 4, 4), expected shape (N, D1_out, D2_out), "
        "as what else it is made of"
    )
    with pytest.raises(ogs.GridSampleError, match=r"grid is of shape \(1, 3, 4, 2\), expected N = 2 first"):
        session.run(None, graph.feeds | {"X": np.zeros((2, 1, 5, 6), np.float32)})
    with pytest.raises(ogs.GridSampleError, match=r"X of shape \(1, 1, 5\) has 1 spatial axis"):
        open_fused(loosened(model)).run(None, graph.feeds | {"X": np.zeros((1, 1, 5), np.float32)})
    assert session.run(None, graph.feeds)[0].shape == (1, 1, 3, 4)


@compiled
def test_lengths_that_have_the_same_name_are_the_same() -> None:
    graph = Graph()
    base, flow = graph.fed("base", 1, 3, 4, 2), graph.fed("flow", 2, 3, 4, 2)
    model = graph.sampled(graph.add("Add", base, flow)[0], (2, 1, 5, 6))
    names: list[list[int | str]] = [[1, "h", "w", 2], ["n", "h", "w", 2]]
    for value, lengths in zip(model.graph.input[1:], names, strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, lengths))
    session = open_fused(model)
    assert taken_in(session) == [1]
    assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])
    with pytest.raises(ogs.GridSampleError) as told:
        session.run(None, graph.feeds | {"base": np.zeros((1, 4, 4, 2), np.float32)})
    assert str(told.value) == (
        "GridSample node 'sample': grid is made of 'base' of shape (1, 4, 4, 2), "
        "expected shape (1, D1_out, D2_out, 2), as what else it is made of"
    )
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "another"
    assert taken_in(open_fused(model)) == [0]


def loosened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The ``model`` of whose X not even the number of axes is known."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.input[0].type.tensor_type.ClearField("shape")
    return copy


@compiled
def test_a_model_that_lies_about_a_shape_is_told() -> None:
    """The number of coordinates is what the model says, until a run shows that it is not."""
    graph = Graph()
    shape = graph.fed("coords", 1, 3, 4, 2)
    (lied,) = graph.add("Reshape", shape, "shape")
    (scaled,) = graph.add("Mul", lied, graph.constant(0.1))
    model = graph.sampled(scaled, (1, 1, 5, 6))
    model.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [None]))
    model.graph.value_info.append(helper.make_tensor_value_info(lied, TensorProto.FLOAT, ["n", "h", "w", 2]))
    session = open_fused(model)
    assert taken_in(session) == [1]
    assert session.run(None, graph.feeds | {"shape": np.array([1, 2, 6, 2])})[0].shape == (1, 1, 2, 6)
    with pytest.raises(ogs.GridSampleError, match=r"'Reshape0_0' of shape \(1, 3, 2, 4\), expected shape \(N, D1_out"):
        session.run(None, graph.feeds | {"shape": np.array([1, 3, 2, 4])})
    with pytest.raises(ogs.GridSampleError, match=r"'Reshape0_0' of shape \(3, 4, 2\), expected shape \(N, D1_out"):
        session.run(None, graph.feeds | {"shape": np.array([3, 4, 2])})


def test_a_grid_that_comes_from_itself_is_left_alone() -> None:
    graph = Graph()
    graph.nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("one", "other"), ("other", "one"))]
    model = graph.sampled("one", (1, 1, 5, 6))
    for name in ("one", "other"):
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 2]))
    assert found(model) == [0]


@compiled
def test_in_functions_and_inner_graphs() -> None:
    graph = Graph()
    inner = graph.sampled(planar(graph, 2, 5, 6), (2, 3, 9, 8))
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    called = [helper.make_node("Constant", [], [t.name], value=t) for t in inner.graph.initializer]
    function = helper.make_function("mine", "Warp", ["X", "coords"], ["Y"], [*called, *inner.graph.node], imports[:1])
    branch = helper.make_graph(
        [*called, *inner.graph.node], "branch", [], [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    by_call = helper.make_graph(
        [helper.make_node("Warp", ["X", "coords"], ["Y"], domain="mine")],
        "calls", inner.graph.input, inner.graph.output,
    )  # fmt: skip
    by_branch = helper.make_graph(
        [helper.make_node("If", ["yes"], ["Y"], then_branch=branch, else_branch=branch)],
        "holds", inner.graph.input, inner.graph.output, [yes],
    )  # fmt: skip
    for outer, functions, count in ((by_call, [function], 1), (by_branch, [], 2)):
        model = helper.make_model(outer, opset_imports=imports, functions=functions, ir_version=9)
        session = open_fused(model)
        assert taken_in(session) == [3] * count
        assert_identical(session.run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0])


@compiled
@pytest.mark.parametrize(
    "coordinates",
    [
        [[1, 3, 0, 2, 0], [0, 3, 1, 2, 0]],
        [[0, 3, 2, 2, 0], [0, 3, 1, 2, 0]],
        [[0, 9, 0, 2, 0], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 0, 8], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 0, *[0] * (MOST_STEPS + 1)], [0, 3, 1, 2, 0]],
        [[0, 3, 0], [0, 3, 1, 2, 0]],
        [[0, 3, "0", 2, 0], [0, 3, 1, 2, 0]],
        [[0, 3, 0.5, 2, 0], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 2], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 1], [0, 3, 1, 2, 1]],
        [[0, 3, 0, 2, 0, [0]], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 0, [8, [0, 3, 1, 2, 0]]], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 0, [0, [1, 3, 1, 2, 0]]], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 0, [0, [0, 3, 1, 2, 0, 8]]], [0, 3, 1, 2, 0]],
        [[0, 3, 0, 2, 0, [0, [0, 3, 1, 2, 0, [0, [0, 3, 1, 2, 0]]]]], [0, 3, 1, 2, 0]],
        [1, 2],
        "nonsense",
        None,
    ],
)
def test_an_op_that_no_session_wrote_is_refused(coordinates: object) -> None:
    with pytest.raises(Exception, match=r"GridSample node 'sample': coordinates is .*, expected what a session writes"):
        open_written(coordinates, ["coords"])


def open_written(coordinates: object, sources: list[str], numbers: int = 1) -> onnxruntime.InferenceSession:
    """A session of the op as somebody may write it."""
    graph = Graph()
    graph.fed("coords", 1, 3, 4, 2)
    model = graph.sampled("coords", (1, 1, 5, 6))
    node = model.graph.node[-1]
    node.op_type, node.domain = "ort_gridsample_PixelGridSample", "ai.onnx.contrib"
    del node.input[:], node.attribute[:]
    node.input.extend(["X", "numbers", "coords"])
    for name, value in (("coordinates", coordinates), ("sources", sources)):
        node.attribute.append(helper.make_attribute(name, json.dumps(value)))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(numbers, np.float32), "numbers"))
    model.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    return onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))


@compiled
def test_an_op_that_lacks_what_it_reads_says_so() -> None:
    fed = {"X": np.ones((1, 1, 5, 6), np.float32), "coords": np.zeros((1, 3, 4, 2), np.float32)}
    good = open_written([[0, 3, 0, 2, 0, 0], [0, 3, 1, 2, 0]], ["coords"])
    assert good.run(None, fed)[0].shape == (1, 1, 3, 4)
    for session in (
        open_written([[0, 3, 0, 2, 0, 0], [1, 3, 1, 2, 0]], ["coords", "more"]),
        open_written([[0, 3, 0, 2, 0, 0], [0, 3, 1, 2, 0, 0]], ["coords"]),
    ):
        with pytest.raises(Exception, match="grid is made of a value that is left out, expected"):
            session.run(None, fed)
