"""Random chains of the nodes that are fused, between inputs and a grid."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import shape_inference

import ort_gridsample as ogs
from support.cases import ATTRIBUTES, Attributes
from support.compare import assert_identical
from support.fused_models import saved_by_session
from support.grid_forms import MAX_SOURCES
from support.models import function_of, parsed
from support.paths import HAS_COMPILED_OPS
from support.pixel_graphs import OPERATIONS, GraphBuilder, Shape
from support.ways import WAYS, Arrays, Runner, way_param

FUSING = [way_param(way=way) for way in ("compiled", "provider")]


@dataclass
class Coordinates:
    """The coordinates of a random chain.

    Attributes:
        values: one name of a value with ``length`` coordinates, or one name for each coordinate.
        axis: that of the coordinates in the value; None if each coordinate is a value.
        length: the number of coordinates along the axis.
    """

    values: list[str]
    axis: int | None
    length: int = 1


def perm_of_move(rank: int, start: int, stop: int) -> list[int]:
    """Return the perm of a Transpose that moves one axis."""
    perm = [axis for axis in range(rank) if axis != start]
    perm.insert(stop, start)
    return perm


class RandomChain:
    """Adds random nodes, of those that are fused, between inputs and a grid."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.axes = draw(st.integers(1, 3))
        self.rank = self.axes + 2
        self.graph = GraphBuilder(draw(st.sampled_from(["float32", "float64"])))
        self.batch = draw(st.integers(1, 3))
        self.lengths = [draw(st.integers(1, 9)) for _ in range(self.axes)]

    def number(self) -> float:
        return self.draw(st.sampled_from([0.0, -1.0, 0.5, 2.0, 3.0, -0.1]))

    def operation(self, *operands: object) -> str:
        """Add an arithmetic node of operands in any order."""
        op_type = self.draw(st.sampled_from(OPERATIONS))
        return self.graph.add(op_type, *self.draw(st.permutations(operands)))

    def start(self) -> Coordinates:
        if self.draw(st.booleans()):
            shape = [self.batch, *self.lengths]
            maps = [self.graph.add_input(f"map{i}", *shape) for i in range(self.axes)]
            return Coordinates(maps, None)
        axis = self.draw(st.integers(0, self.rank - 1))
        length = self.draw(st.integers(1, 4))
        shape = [self.batch, *self.lengths]
        shape.insert(axis, length)
        return Coordinates([self.graph.add_input("coords", *shape)], axis, length)

    def change(self, coords: Coordinates) -> Coordinates:
        """Add the nodes of one step."""
        choice = self.draw(st.sampled_from([*["arithmetic"] * 2, *["pair"] * 3, *["other"] * 4]))
        if choice == "pair":
            return self.combine_with_inputs(coords)
        if choice == "arithmetic":
            return replace(coords, values=[self.with_number(coords, v) for v in coords.values])
        if self.draw(st.integers(0, 3)) == 0:
            identities = [self.graph.add("Identity", value) for value in coords.values]
            return replace(coords, values=identities)
        if coords.axis is None:
            return self.concatenate(coords)
        if len(coords.values) > 1:
            squeezed = [self.graph.add("Squeeze", v, [coords.axis]) for v in coords.values]
            return Coordinates(squeezed, None)
        return self.rearrange(coords.values[0], coords.axis, coords.length)

    def with_number(self, coords: Coordinates, value: str) -> str:
        """Combine a value with a number, a number for each coordinate, or a scalar input."""
        kind = self.draw(st.sampled_from(["number", "row", "input", "row"]))
        if kind == "row":
            shape: list[int] = []
            if coords.axis is not None:
                shape = [coords.length, *[1] * (self.rank - 1 - coords.axis)]
            numbers = [self.number() for _ in range(int(np.prod(shape)))]
            return self.operation(value, np.reshape(numbers, shape))
        if kind == "number":
            return self.operation(value, self.number())
        name = self.graph.add_input(f"number{len(self.graph.feeds)}")
        self.graph.feeds[name] = np.array(self.number(), self.graph.type)
        return self.operation(value, name)

    def combine_with_inputs(self, coords: Coordinates) -> Coordinates:
        """Combine each value with an input, which may broadcast over batches or coordinates."""
        batches = [1, 2] if self.batch == 1 else [1, self.batch]
        batch = self.draw(st.sampled_from(batches))
        values = [self.with_input(coords, value, batch) for value in coords.values]
        self.batch = max(self.batch, batch)
        return replace(coords, values=values)

    def with_input(self, coords: Coordinates, value: str, batch: int) -> str:
        shape = [batch, *self.lengths]
        if coords.axis is not None:
            shape.insert(coords.axis, self.draw(st.sampled_from([1, coords.length])))
        other = self.graph.add_input(f"other{len(self.graph.feeds)}", *shape)
        if self.draw(st.booleans()):
            other = self.graph.add("Mul", other, self.number())
        return self.operation(value, other)

    def concatenate(self, coords: Coordinates) -> Coordinates:
        axis = self.draw(st.integers(0, self.rank - 1))
        rows = [self.graph.add("Unsqueeze", value, [axis]) for value in coords.values]
        spelled_axis = self.draw(st.sampled_from([axis, axis - self.rank]))
        return Coordinates([self.graph.add("Concat", *rows, axis=spelled_axis)], axis, self.axes)

    def rearrange(self, value: str, axis: int, length: int) -> Coordinates:
        """Move the axis of the coordinates, or choose some of them."""
        choice = self.draw(st.sampled_from(["move", "choose a row", "choose one by one"]))
        if choice == "move":
            new_axis = self.draw(st.integers(0, self.rank - 1))
            perm = perm_of_move(self.rank, axis, new_axis)
            return Coordinates([self.graph.add("Transpose", value, perm=perm)], new_axis, length)
        indices = [self.draw(st.integers(-length, length - 1)) for _ in range(self.axes)]
        if choice == "choose a row":
            row = self.graph.add("Gather", value, indices, axis=axis)
            return Coordinates([row], axis, self.axes)
        return Coordinates([self.graph.add("Gather", value, i, axis=axis) for i in indices], None)

    def finish(self, coords: Coordinates) -> str:
        """Make a grid with the coordinates along its last axis."""
        last = self.rank - 1
        axis = coords.axis
        values = coords.values
        if axis is None:
            values = [self.graph.add("Unsqueeze", value, [-1]) for value in values]
            axis = last
        grid = values[0]
        if len(values) > 1:
            grid = self.graph.add("Concat", *values, axis=axis)
        elif coords.length != self.axes:
            indices = [i % coords.length for i in range(self.axes)]
            grid = self.graph.add("Gather", grid, indices, axis=axis)
        if axis != last:
            perm = perm_of_move(self.rank, axis, last)
            grid = self.graph.add("Transpose", grid, perm=perm)
        return grid


class RandomGrid(NamedTuple):
    """A graph, the name of its grid, and a shape of X for that grid."""

    graph: GraphBuilder
    grid: str
    X_shape: Shape


@st.composite
def random_grids(draw: st.DrawFn) -> RandomGrid:
    """Draw a chain of nodes that are fused, in any order."""
    chain = RandomChain(draw)
    coords = chain.start()
    for _ in range(draw(st.integers(0, 6))):
        coords = chain.change(coords)
    grid = chain.finish(coords)
    channels = draw(st.integers(1, 3))
    X_shape = (chain.batch, channels, *(5, 4, 3)[: chain.axes])
    return RandomGrid(chain.graph, grid, X_shape)


@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.parametrize("way", FUSING)
@given(random_grid=random_grids(), attributes=st.sampled_from(ATTRIBUTES))
def test_fused_random_chain_has_the_output_of_the_graph(
    way: str, random_grid: RandomGrid, attributes: Attributes
) -> None:
    graph, grid, X_shape = random_grid
    if graph.type == "float64":
        attributes = replace(attributes, mode="linear")
    model = graph.model(grid, X_shape, attributes)
    (output,) = WAYS[way](model).run(None, graph.feeds)
    assert_identical(output, WAYS["compiled file"](model).run(None, graph.feeds)[0])


def saved_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model that onnxruntime saves of a session."""
    with tempfile.TemporaryDirectory() as folder:
        return saved_by_session(model, Path(folder) / "saved.onnx", nodes="all")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(random_grids())
def test_random_chain_is_fused(random_grid: RandomGrid) -> None:
    graph, grid, X_shape = random_grid
    pairs = sum(name.startswith("other") for name in graph.feeds)
    # A grid of one axis looks like a plane of coordinates.
    assume(len(X_shape) > 3 and pairs <= MAX_SOURCES - 3)
    model = graph.model(grid, X_shape)
    (record,) = ogs.inspect_model(model)
    assert bool(record.fused) == bool(graph.nodes)
    if not pairs and HAS_COMPILED_OPS:  # then all nodes that lead to the grid are fused
        node = saved_model(model).graph.node[-1]
        assert {*node.input[2:]} <= {*graph.feeds, ""}


def output_of(session: Runner, feeds: Arrays) -> np.ndarray | None:
    """Return the output, or None if the run is refused."""
    try:
        return session.run(None, feeds)[0]
    except Exception as error:
        assume("re-use buffer" not in str(error))  # onnxruntime plans memory by symbolic lengths
        return None


def called_twice(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that calls the graph on its inputs and on inputs named ``…_2``.

    Its output are both outputs in one row.
    """
    inputs = [value.name for value in model.graph.input]
    first = ", ".join(inputs)
    second = ", ".join(f"{name}_2" for name in inputs)
    calls = parsed(f"""calls () => (float[n] both) {{
        row = Constant <value_ints = [-1]> ()
        Y = local.chain ({first})
        Y_2 = local.chain ({second})
        row_1 = Reshape (Y, row)
        row_2 = Reshape (Y_2, row)
        both = Concat <axis = 0> (row_1, row_2) }}""")
    calls.functions.append(function_of(model, "local", "chain"))
    calls.graph.input.extend([*model.graph.input, *model.graph.input])
    for value in calls.graph.input[len(inputs) :]:
        value.name += "_2"
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("value")
    return calls


@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize("way", FUSING)
@given(random_grid=random_grids(), data=st.data())
def test_fused_random_chain_of_wrong_lengths_has_the_output_of_the_graph_or_is_refused(
    way: str, random_grid: RandomGrid, data: st.DataObject
) -> None:
    """Lengths differ from symbols, from stale value_info, or between the calls of a function."""
    graph, grid, X_shape = random_grid
    attributes = Attributes("linear", "zeros", False)
    model = graph.model(grid, X_shape, attributes, unknown_lengths=True)
    inferred = shape_inference.infer_shapes(graph.model(grid, X_shape))
    for value in inferred.graph.value_info:
        if data.draw(st.booleans()):
            model.graph.value_info.append(value)
    feeds = dict(graph.feeds)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_value:
                dim.dim_param = data.draw(st.sampled_from("NHW"))
                if data.draw(st.integers(0, 3)) == 0:
                    feeds[value.name] = feeds[value.name].take([0], axis)
    if data.draw(st.booleans()):
        model = called_twice(model)
        feeds["X_2"] = np.concatenate([feeds["X"], feeds["X"]], axis=1)
        for name, array in graph.feeds.items():
            if name != "X":
                feeds[f"{name}_2"] = array.take([0], 0) if data.draw(st.booleans()) else array
    expected = output_of(WAYS["compiled file"](model), feeds)
    output = output_of(WAYS[way](model), feeds)
    if expected is None:
        assert output is None
    else:
        assert_identical(output, expected)
