"""Fusion of the nodes that compute a GridSample's grid from pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser, shape_inference

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.structs import REQUEST
from ort_gridsample.detection import programs
from ort_gridsample.functions.validation import format_shape
from ort_gridsample.kernels.program_codes import (
    MAX_SOURCES,
    MAX_STEPS,
    OPERATIONS,
    WITH_PROGRAM,
)
from ort_gridsample.rewriting.patch import rewrite_selected_nodes
from ort_gridsample.rewriting.targets.compiled_op import FusedOpTarget
from support.cases import ATTRIBUTES, Attributes
from support.compare import about, assert_identical, refusal
from support.fused_models import (
    assert_saved_model_can_be_read,
    fused_counts,
    models_with_another_reader,
    needs_compiled_ops,
    open_unfused,
)
from support.models import function_of, parsed
from support.paths import HAS_PROVIDER, Open, open_native, open_provider, quiet_options
from support.pixel_graphs import GraphBuilder, GridFunction, Shape, build_graph


def open_fused(model: onnx.ModelProto) -> ogs.InferenceSession:
    return ogs.InferenceSession(model, quiet_options())


#: Functions that open sessions which fuse grids.
FUSING_SESSIONS: list[Open] = [open_fused, *([open_provider] if HAS_PROVIDER else [])]


def recorded_counts(model: onnx.ModelProto) -> list[int]:
    """Return the number of nodes that each record lists as fused."""
    return [len(record.fused) for record in ogs.inspect_model(model)]


def assert_fused(graph: GraphBuilder, model: onnx.ModelProto, *counts: int) -> ogs.InferenceSession:
    """Check the numbers of fused nodes, and that the outputs equal those of separate nodes."""
    session = open_fused(model)
    assert fused_counts(session) == [*counts]
    outputs = session.run(None, graph.feeds)
    expected_outputs = open_unfused(model).run(None, graph.feeds)
    for output, expected in zip(outputs, expected_outputs, strict=True):
        assert_identical(output, expected)
    return session


#: Adds the nodes that compute a grid of n × h × w positions, and returns its name.
Chain = Callable[[GraphBuilder, int, int, int], str]


def flow(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Split pixel coordinates, normalize each, and concatenate them, as RAFT does."""
    coords = graph.add_input("coords", n, h, w, 2)
    x, y = graph.add_multi("Split", coords, outputs=2, axis=-1, num_outputs=2)
    normalized = [
        graph.apply(coordinate, ("Mul", 2), ("Div", length - 1), ("Sub", 1))
        for coordinate, length in ((x, 8), (y, 9))
    ]
    return graph.add("Concat", *normalized, axis=-1)


def remap(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Normalize two maps of one coordinate each."""
    normalized = [
        graph.apply(
            graph.add_input(name, n, h, w),
            ("Add", 0.5),
            ("Mul", 2 / length),
            ("Sub", 1),
            ("Unsqueeze", [3]),
        )
        for name, length in (("map_x", 8), ("map_y", 9))
    ]
    return graph.add("Concat", *normalized, axis=3)


def planar(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Normalize planes of coordinates, y first, with constants on either side of the operators."""
    coords = graph.add_input("coords", n, 2, h, w)
    quotients = graph.add("Div", -0.25, graph.add("Div", coords, np.array([[[9]], [[8]]])))
    channels_last = graph.add("Transpose", quotients, perm=[0, 2, 3, 1])
    x_first = graph.add("Gather", channels_last, [1, 0], axis=-1)
    return graph.add("Add", [1, 2], graph.add("Sub", [[0.5, 1]], x_first))


def from_shapes(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Normalize by lengths that the graph reads from X."""
    coords = graph.add_input("coords", n, h, w, 2)
    shape = graph.add("Shape", "X")
    x, y = graph.add_multi("Split", coords, [1, 1], outputs=2, axis=3)
    elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(graph.type))
    normalized = []
    for coordinate, axis in ((x, 3), (y, 2)):
        length = graph.add("Cast", graph.add("Gather", shape, axis, axis=0), to=elem_type)
        last = graph.add("Sub", length, 1)
        normalized.append(graph.apply(coordinate, ("Div", last), ("Sub", 0.5)))
    return graph.add("Concat", *normalized, axis=3)


def slices(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Slice two of five planes of coordinates, in front of the batches."""
    coords = graph.add_input("coords", 5, n, h, w)
    last = graph.add("Slice", coords, [-1], [1 << 40], [0])
    second = graph.add("Slice", coords, [1], [2])  # the axis is the first by default
    planes = [
        graph.apply(plane, ("Squeeze", [0]), ("Div", 6), ("Unsqueeze", [1]))
        for plane in (last, second)
    ]
    together = graph.add("Identity", graph.add("Concat", *planes, axis=1))
    return graph.add("Transpose", together, perm=[0, 2, 3, 1])


def one_for_both(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Multiply one coordinate by a row of two numbers."""
    return graph.add("Mul", graph.add_input("coords", n, h, w, 1), [0.1, 0.2])


def displaced(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Displace pixels by a flow, divide by a third value, and normalize each coordinate."""
    pixels = graph.add_constant([np.meshgrid(np.arange(w), np.arange(h))])  # x first
    displacement = graph.add("Add", graph.add_input("flow", n, 2, h, w), pixels)
    difference = graph.add("Sub", pixels, displacement)
    divisor = graph.add("Add", graph.add_input("scale", n, 1, h, w), 20)
    quotient = graph.add("Div", difference, divisor)
    second = graph.add("Gather", quotient, 1, axis=1)
    first = graph.add("Gather", quotient, 0, axis=1)
    normalized = [
        graph.apply(coordinate, ("Mul", 2 / length), ("Unsqueeze", [3]))
        for coordinate, length in ((second, 8), (first, 9))
    ]
    return graph.add("Concat", *normalized, axis=3)


class FusedCounts(NamedTuple):
    """The number of nodes that are fused, by whether the lengths of the inputs are known."""

    known: int
    unknown: int


CHAINS: dict[Chain, FusedCounts] = {
    flow: FusedCounts(8, 8),
    remap: FusedCounts(9, 9),
    planar: FusedCounts(6, 6),
    from_shapes: FusedCounts(6, 6),
    slices: FusedCounts(11, 7),
    one_for_both: FusedCounts(1, 1),
    displaced: FusedCounts(11, 11),
}
every_chain = pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.__name__)


class GridCase(NamedTuple):
    """A type, whether lengths are unknown, the shape of the grid's positions, and attributes."""

    type: str
    unknown_lengths: bool
    positions: tuple[int, int, int]
    attributes: Attributes


#: With float64 only linear samples, as each mode would be compiled for it.
UNALIGNED_CASES = [
    GridCase("float32", False, (2, 3, 5), Attributes("nearest", "zeros", False)),
    GridCase("float32", False, (3, 1, 2100), Attributes("linear", "reflection", False)),
    GridCase("float32", True, (2, 3, 5), Attributes("nearest", "border", False)),
    GridCase("float32", True, (3, 1, 2100), Attributes("cubic", "zeros", False)),
    GridCase("float64", False, (2, 3, 5), Attributes("linear", "border", False)),
    GridCase("float64", False, (3, 1, 2100), Attributes("linear", "reflection", False)),
    GridCase("float64", True, (2, 3, 5), Attributes("linear", "zeros", False)),
    GridCase("float64", True, (3, 1, 2100), Attributes("linear", "border", False)),
]
ALIGNED_CASES = [
    GridCase("float32", False, (1, 70, 90), Attributes("nearest", "reflection", True)),
    GridCase("float32", False, (2, 0, 4), Attributes("cubic", "border", True)),
    GridCase("float32", True, (1, 70, 90), Attributes("linear", "zeros", True)),
    GridCase("float32", True, (2, 0, 4), Attributes("cubic", "reflection", True)),
    GridCase("float64", False, (1, 70, 90), Attributes("linear", "border", True)),
    GridCase("float64", False, (2, 0, 4), Attributes("linear", "reflection", True)),
    GridCase("float64", True, (1, 70, 90), Attributes("linear", "zeros", True)),
    GridCase("float64", True, (2, 0, 4), Attributes("linear", "border", True)),
]


@needs_compiled_ops
@pytest.mark.parametrize(
    ("chain", "cases"),
    [
        (flow, UNALIGNED_CASES),
        (remap, ALIGNED_CASES),
        (planar, UNALIGNED_CASES),
        (from_shapes, ALIGNED_CASES),
        (slices, UNALIGNED_CASES),
        (one_for_both, ALIGNED_CASES),
        (displaced, UNALIGNED_CASES),
    ],
    ids=[chain.__name__ for chain in CHAINS],
)
def test_fused_grid_has_the_output_of_the_graph(chain: Chain, cases: list[GridCase]) -> None:
    for case in cases:
        graph = GraphBuilder(case.type)
        n, h, w = case.positions
        grid = chain(graph, n, h, w)
        model = graph.model(grid, (n, 3, 9, 8), case.attributes, case.unknown_lengths)
        counts = CHAINS[chain]
        with about(case):
            assert_fused(graph, model, counts.unknown if case.unknown_lengths else counts.known)


@needs_compiled_ops
@every_chain
def test_fused_model_saved_by_onnxruntime_can_be_read(chain: Chain, tmp_path: Path) -> None:
    graph = GraphBuilder()
    model = graph.model(chain(graph, 2, 3, 5), (2, 3, 9, 8))
    assert_saved_model_can_be_read(model, graph.feeds, tmp_path / "saved.onnx", "GridSample")


@needs_compiled_ops
@pytest.mark.parametrize("opset", [12, 13], ids=["axes as attribute", "axes as input"])
def test_fused_model_of_an_older_opset_can_be_read(opset: int, tmp_path: Path) -> None:
    graph = GraphBuilder()
    model = graph.model(one_for_both(graph, 2, 3, 5), (2, 3, 9, 8))
    older = ogs.patch_model(model, target="mmcv", opset=opset)
    assert_saved_model_can_be_read(older, graph.feeds, tmp_path / "saved.onnx", "GridSample")


@needs_compiled_ops
@pytest.mark.parametrize("kind", ["initializer", "Constant"])
def test_fused_constant_replaced_by_session_options_is_read(kind: str) -> None:
    """The output of a Constant is an initializer to onnxruntime."""
    graph = GraphBuilder()
    scaled = graph.add("Mul", graph.add_input("coords", 1, 3, 4, 2), 0.1)
    model = graph.model(graph.add("Sub", scaled, 1), (1, 2, 6, 7))
    name = model.graph.node[0].input[1]
    if kind == "Constant":
        (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
        model.graph.initializer.remove(tensor)
    options = quiet_options()
    replacement = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(0.4, np.float32))
    options.add_initializer(name, replacement)
    native = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (expected,) = native.run(None, graph.feeds)
    session = ogs.InferenceSession(model, options, nodes="all")
    np.testing.assert_allclose(session.run(None, graph.feeds)[0], expected, atol=1e-5)
    assert fused_counts(session) == [1]


@needs_compiled_ops
def test_nodes_of_opset_9_are_fused() -> None:
    """Axes, starts and lengths are attributes there."""
    graph = GraphBuilder(opset=9)
    coords = graph.add_input("coords", 1, 4, 5, 2)
    x, y = graph.add_multi("Split", coords, outputs=2, axis=3, split=[1, 1])
    planes = []
    for coordinate in (y, x):
        scaled = graph.add("Mul", graph.add("Squeeze", coordinate, axes=[3]), 0.1)
        planes.append(graph.add("Unsqueeze", scaled, axes=[1]))
    together = graph.add("Concat", *planes, axis=1)
    first = graph.add("Slice", together, starts=[0], ends=[1], axes=[1])
    second = graph.add("Slice", together, starts=[1], ends=[2], axes=[1])
    grid = graph.add("Transpose", graph.add("Concat", first, second, axis=1), perm=[0, 2, 3, 1])
    model = graph.model(grid, (1, 2, 6, 7))
    codes = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": 0}
    sampler = helper.make_node("grid_sampler", ["X", grid], ["Y"], "s", domain="mmcv", **codes)
    model.graph.node[-1].CopyFrom(sampler)
    model.opset_import.append(helper.make_opsetid("mmcv", 1))
    assert_fused(graph, model, len(graph.nodes))


def test_slice_whose_axes_a_caller_sets_is_not_fused_in_the_function() -> None:
    """Without the attribute, the axis of a Slice-1 is the first."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 9, "local": 1, "com.microsoft": 1]>
        g (float[2,1,4,4] X, float[2,3,2,2] P) => (float[2,1,2,2] Y) {
            Y = local.warp <axes = [1]> (X, P) }
        <opset_import: ["": 9, "com.microsoft": 1], domain: "local"> warp <axes> (X, P) => (Y) {
            S = Slice <axes: ints = @axes, starts = [0], ends = [2]> (P)
            T = Transpose <perm = [1, 2, 3, 0]> (S)
            Y = com.microsoft.GridSample (X, T) }""")
    (record,) = ogs.inspect_model(model)
    assert "(S)" not in record.fused


@needs_compiled_ops
@pytest.mark.parametrize("attributes", ATTRIBUTES[::5], ids=str)
def test_fused_arithmetic_of_special_values_is_that_of_the_graph(attributes: Attributes) -> None:
    graph = GraphBuilder()
    coords = graph.add_input("coords", 1, 3, 40, 2)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1.0]
    graph.feeds[coords][:] = np.resize(special, (1, 3, 40, 2))
    quotients = graph.add("Div", [1, -0.0], graph.add("Add", coords, [-0.0, 0.0]))
    grid = graph.add("Mul", quotients, np.inf)
    assert_fused(graph, graph.model(grid, (1, 2, 6, 7), attributes), 3)


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


@needs_compiled_ops
@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.parametrize("open_model", FUSING_SESSIONS)
@given(random_grid=random_grids(), attributes=st.sampled_from(ATTRIBUTES))
def test_fused_random_chain_has_the_output_of_the_graph(
    open_model: Open, random_grid: RandomGrid, attributes: Attributes
) -> None:
    graph, grid, X_shape = random_grid
    if graph.type == "float64":
        attributes = replace(attributes, mode="linear")
    model = graph.model(grid, X_shape, attributes)
    (output,) = open_model(model).run(None, graph.feeds)
    assert_identical(output, open_unfused(model).run(None, graph.feeds)[0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(random_grids())
def test_random_chain_is_fused(random_grid: RandomGrid) -> None:
    graph, grid, X_shape = random_grid
    pairs = sum(name.startswith("other") for name in graph.feeds)
    # A grid of one axis looks like a plane of coordinates.
    assume(len(X_shape) > 3 and pairs <= MAX_SOURCES - 3)
    model = graph.model(grid, X_shape)
    rewrite_selected_nodes(model, target=FusedOpTarget())
    node = model.graph.node[-1]
    assert node.op_type == ("FusedGridSample" if graph.nodes else "GridSample")
    if not pairs:  # then all nodes are fused
        assert set(node.input[2:]) <= set(graph.feeds)


def output_of(
    session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]
) -> np.ndarray | None:
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


@needs_compiled_ops
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.parametrize("open_model", FUSING_SESSIONS)
@given(random_grid=random_grids(), data=st.data())
def test_fused_random_chain_of_wrong_lengths_has_the_output_of_the_graph_or_is_refused(
    open_model: Open, random_grid: RandomGrid, data: st.DataObject
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
    expected = output_of(open_unfused(model), feeds)
    output = output_of(open_model(model), feeds)
    if expected is None:
        assert output is None
    else:
        assert_identical(output, expected)


def sums_of_three(graph: GraphBuilder) -> str:
    """Add coordinates of three values."""
    rows = []
    for i in range(3):
        negated = [
            graph.add("Neg", graph.add("Gather", name, [i], axis=4))
            for name in ("coords", "y", "z")
        ]
        partial_sum = graph.add("Add", negated[0], negated[1])
        rows.append(graph.add("Add", partial_sum, negated[2]))
    return graph.add("Concat", *rows, axis=4)


def transposed_sum(graph: GraphBuilder) -> str:
    return graph.add("Transpose", graph.add("Add", "coords", "y"), perm=[1, 2, 3, 0])


def negative_indices(graph: GraphBuilder) -> str:
    """Choose the last coordinate and the last but two."""
    rows = [
        graph.add("Unsqueeze", graph.add("Gather", "coords", index, axis=-1), [3])
        for index in (-1, -3)
    ]
    return graph.add("Concat", *rows, axis=3)


def row_indices(graph: GraphBuilder) -> str:
    rows = [graph.add("Gather", "coords", [index], axis=3) for index in (-4, 2)]
    return graph.add("Concat", *rows, axis=3)


def second_of_each(graph: GraphBuilder) -> str:
    rows = [graph.add("Gather", value, [1], axis=3) for value in ("coords", "y")]
    return graph.add("Concat", *rows, axis=3)


def last_two_of_three(graph: GraphBuilder) -> str:
    return graph.add("Gather", graph.add("Concat", "y", "coords", axis=3), [2, 1], axis=3)


def one_by_another(graph: GraphBuilder) -> str:
    x, y = graph.add_multi("Split", "coords", outputs=2, axis=3, num_outputs=2)
    return graph.add("Concat", graph.add("Mul", x, y), y, axis=3)


def as_integers(graph: GraphBuilder, name: str) -> str:
    return graph.add("Cast", name, to=TensorProto.INT64)


class GridGraph(NamedTuple):
    """The inputs besides coords of shape (2, 3, 4, 2), the nodes, and how many of them are fused.

    The inputs may contain another shape of coords.
    """

    inputs: dict[str, Shape]
    make_grid: GridFunction
    fused_count: int


FOUR: dict[str, Shape] = {"coords": (2, 3, 5, 4)}
#: Valid grids, whose nodes choose coordinates.
CHOICES = {
    "negative indices": GridGraph(FOUR, negative_indices, 5),
    "rows of one index": GridGraph(FOUR, row_indices, 3),
    "slice": GridGraph(FOUR, lambda g: g.add("Slice", "coords", [1], [4], [-1], [2]), 1),
    "negative slice": GridGraph(FOUR, lambda g: g.add("Slice", "coords", [-3], [-1], [3]), 1),
    "of two values": GridGraph({"y": (2, 3, 4, 2)}, second_of_each, 3),
    "of a concatenation": GridGraph({"y": (2, 3, 4, 1)}, last_two_of_three, 2),
    # With one position, shapes do not distinguish a coordinate from a number.
    "one position": GridGraph({"coords": (1, 1, 1, 2)}, one_by_another, 2),
    "too many steps": GridGraph(
        {}, lambda g: g.apply("coords", *[("Mul", 1.01)] * (MAX_STEPS + 3)), MAX_STEPS
    ),
}


def add_y(graph: GraphBuilder) -> str:
    return graph.add("Add", "coords", "y")


#: Graphs that need not be valid grids.
GRAPHS = {
    # Two values meet.
    "square": GridGraph({}, lambda g: g.add("Mul", "coords", "coords"), 1),
    "same shape": GridGraph({"y": (2, 3, 4, 2)}, add_y, 1),
    "one batch": GridGraph({"y": (1, 3, 4, 2)}, add_y, 1),
    "one coordinate": GridGraph({"y": (2, 3, 4, 1)}, add_y, 1),
    "transposed": GridGraph({"coords": (2, 2, 3, 4), "y": (2, 1, 3, 4)}, transposed_sum, 2),
    # Other axes are broadcast.
    "one row": GridGraph({"y": (2, 1, 4, 2)}, add_y, 0),
    "no batch": GridGraph({"y": (3, 4, 2)}, add_y, 0),
    # If both values are computed from two values, one of them is followed.
    "sum at the right": GridGraph(
        {"y": (2, 3, 4, 2)}, lambda g: g.add("Add", "coords", g.add("Add", "y", "coords")), 2
    ),
    "sum at the left": GridGraph(
        {"y": (2, 3, 4, 2)}, lambda g: g.add("Add", g.add("Add", "y", "coords"), "coords"), 2
    ),
    "sums at both sides": GridGraph(
        {"y": (2, 3, 4, 2)}, lambda g: g.add("Mul", add_y(g), add_y(g)), 2
    ),
    "sums of three": GridGraph(
        {"coords": (2, 3, 4, 2, 3), "y": (2, 3, 4, 2, 3), "z": (2, 3, 4, 2, 3)}, sums_of_three, 1
    ),
    # A number for each coordinate is fused, and no other constant.
    "number": GridGraph({}, lambda g: g.add("Mul", "coords", 2), 1),
    "row of numbers": GridGraph({}, lambda g: g.add("Mul", "coords", [[1, 2]]), 1),
    "plane of numbers": GridGraph({}, lambda g: g.add("Mul", "coords", np.ones((3, 4, 2))), 0),
    "higher rank": GridGraph({}, lambda g: g.add("Mul", "coords", np.ones((1, 1, 1, 1, 2))), 0),
    "row that does not broadcast": GridGraph(
        {"coords": (2, 3, 4, 5, 3)}, lambda g: g.add("Mul", "coords", [1, 2]), 0
    ),
    "half precision": GridGraph(
        {},
        lambda g: g.add(
            "Mul",
            g.add("Cast", "coords", to=TensorProto.FLOAT16),
            g.add_constant(2, "float16"),
        ),
        0,
    ),
    "three coordinates": GridGraph(
        {"coords": (1, 3, 4, 3)}, lambda g: g.add("Mul", "coords", 2), 0
    ),
    "Neg": GridGraph({}, lambda g: g.add("Neg", "coords"), 0),
    # Other axes are moved or chosen from.
    "transposed image": GridGraph({}, lambda g: g.add("Transpose", "coords", perm=[0, 2, 1, 3]), 0),
    "transposed without perm": GridGraph(
        {"coords": (2, 4, 3, 1)}, lambda g: g.add("Transpose", "coords"), 0
    ),
    "chosen rows": GridGraph({}, lambda g: g.add("Gather", "coords", [1, 0, 2], axis=1), 0),
    "concatenated rows": GridGraph({}, lambda g: g.add("Concat", "coords", "coords", axis=1), 0),
    "unsqueezed batch": GridGraph(
        {"coords": (3, 4, 2)}, lambda g: g.add("Unsqueeze", "coords", [0]), 0
    ),
    # Indices are computed.
    "computed indices": GridGraph(
        {"i": (2,)}, lambda g: g.add("Gather", "coords", as_integers(g, "i"), axis=3), 0
    ),
    "computed start": GridGraph(
        {"i": (1,)}, lambda g: g.add("Slice", "coords", as_integers(g, "i"), [9], [3]), 0
    ),
    "computed step": GridGraph(
        {"i": (1,)}, lambda g: g.add("Slice", "coords", [0], [9], [3], as_integers(g, "i")), 0
    ),
    "computed axis of a slice": GridGraph(
        {"i": (1,)}, lambda g: g.add("Slice", "coords", [0], [9], as_integers(g, "i")), 0
    ),
    "computed axis of a squeeze": GridGraph(
        {"i": (1,)},
        lambda g: g.add("Squeeze", g.add("Unsqueeze", "coords", [0]), as_integers(g, "i")),
        0,
    ),
    # Several axes at once.
    "slice of two axes": GridGraph(
        {}, lambda g: g.add("Slice", "coords", [0, 0], [2, 2], [3, 0]), 0
    ),
    "two axes, squeezed at once": GridGraph(
        {}, lambda g: g.add("Squeeze", g.add("Unsqueeze", "coords", [0, 1]), [0, 1]), 0
    ),
    "two axes, squeezed and unsqueezed": GridGraph(
        {},
        lambda g: g.add(
            "Unsqueeze", g.add("Squeeze", g.add("Unsqueeze", "coords", [0, 1]), [0]), [0]
        ),
        0,
    ),
    # Invalid steps of a slice.
    "step 0": GridGraph({}, lambda g: g.add("Slice", "coords", [1], [-9], [3], [0]), 0),
    "step -1": GridGraph({}, lambda g: g.add("Slice", "coords", [1], [-9], [3], [-1]), 0),
}


@needs_compiled_ops
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_fused_choice_of_coordinates_has_the_output_of_the_graph(choice: GridGraph) -> None:
    graph, model = build_graph(choice.inputs, choice.make_grid)
    assert_fused(graph, model, choice.fused_count)


@pytest.mark.parametrize("grid_graph", GRAPHS.values(), ids=GRAPHS)
def test_number_of_fused_nodes(grid_graph: GridGraph) -> None:
    _, model = build_graph(grid_graph.inputs, grid_graph.make_grid)
    assert recorded_counts(model) == [grid_graph.fused_count]


@pytest.mark.parametrize(
    ("axes", "fused_count"), [(MAX_SOURCES, MAX_SOURCES + 1), (MAX_SOURCES + 1, 0)]
)
def test_grid_of_too_many_values_is_not_fused(axes: int, fused_count: int) -> None:
    graph = GraphBuilder()
    maps = [graph.add_input(f"map{i}", 1, *[2] * axes) for i in range(axes)]
    rows = [graph.add("Unsqueeze", name, [-1]) for name in maps]
    model = graph.model(graph.add("Concat", *rows, axis=-1), (1, 1, *[3] * axes))
    assert recorded_counts(model) == [fused_count]


def test_compiled_op_has_room_for_all_sources() -> None:
    assert REQUEST["inputs"].shape == (2 + MAX_SOURCES,)


def test_cyclic_grid_is_not_fused() -> None:
    graph = GraphBuilder()
    graph.nodes.append(helper.make_node("Identity", ["a"], ["b"]))
    graph.nodes.append(helper.make_node("Identity", ["b"], ["a"]))
    model = graph.model("a", (1, 1, 5, 6))
    for name in ("a", "b"):
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 2])
        model.graph.value_info.append(info)
    assert recorded_counts(model) == [0]


def test_record_lists_the_fused_nodes() -> None:
    graph = GraphBuilder()
    model = graph.model(remap(graph, 1, 3, 4), (1, 1, 5, 6))
    (record,) = ogs.inspect_model(model)
    assert record.fused == tuple(node.name for node in graph.nodes)


@needs_compiled_ops
@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (remap, " (fused with the 9 nodes that compute its grid)"),
        (one_for_both, " (fused with the node that computes its grid)"),
    ],
    ids=["several", "one"],
)
def test_placement_is_displayed_with_the_number_of_fused_nodes(chain: Chain, text: str) -> None:
    graph = GraphBuilder()
    session = open_fused(graph.model(chain(graph, 1, 3, 4), (1, 1, 5, 6)))
    displayed = str(session.placements[0])
    assert ": compiled op" in displayed
    assert displayed.endswith(text)


@needs_compiled_ops
def test_session_without_fused_nodes_runs_on_onnxruntime() -> None:
    graph = GraphBuilder()
    model = graph.model(remap(graph, 1, 3, 4), (1, 1, 5, 6))
    session = ogs.InferenceSession(model, quiet_options(), nodes=lambda record: not record.fused)
    placements = [(placement.runs_on, placement.fused) for placement in session.placements]
    assert placements == [("onnxruntime", ())]


def test_all_nodes_of_a_flow_are_fused() -> None:
    graph = GraphBuilder()
    assert recorded_counts(graph.model(flow(graph, 1, 3, 4), (1, 1, 5, 6))) == [8]


@pytest.mark.parametrize(
    ("value", "fused_count"),
    [("grid", 0), ("Div2_0", 5), ("Split0_1", 7)],
    ids=["grid", "a step of x", "y before its steps"],
)
@pytest.mark.parametrize("reader", ["output", "node", "body", "GridSample"])
def test_value_with_another_reader_is_not_fused(reader: str, value: str, fused_count: int) -> None:
    graph = GraphBuilder()
    grid = flow(graph, 1, 3, 4)
    model = graph.model(grid, (1, 1, 5, 6))
    name = grid if value == "grid" else value
    assert recorded_counts(models_with_another_reader(model, name)[reader])[0] == fused_count


@needs_compiled_ops
@pytest.mark.parametrize(("value", "fused_count"), [("grid", 0), ("Div2_0", 5), ("Split0_1", 7)])
def test_value_that_is_an_output_has_the_output_of_the_graph(value: str, fused_count: int) -> None:
    graph = GraphBuilder()
    grid = flow(graph, 1, 3, 4)
    model = graph.model(grid, (1, 1, 5, 6))
    name = grid if value == "grid" else value
    assert_fused(graph, models_with_another_reader(model, name)["output"], fused_count)


def test_constants_of_fused_nodes_are_removed() -> None:
    """An unread initializer would cause a warning of onnxruntime."""
    graph = GraphBuilder()
    graph.nodes.append(helper.make_node("Constant", [], ["two"], value_float=2.0))
    grid = graph.apply(graph.add_input("coords", 1, 3, 4, 2), ("Mul", "two"), ("Sub", [1, 2]))
    model = graph.model(grid, (1, 1, 5, 6))
    (record,), _ = rewrite_selected_nodes(model, target=FusedOpTarget())
    assert record.fused == ("Mul1", "Sub2")
    assert [node.op_type for node in model.graph.node] == ["Constant", "FusedGridSample"]
    assert not model.graph.initializer


@needs_compiled_ops
@pytest.mark.parametrize(("X", "fused_count"), [("Mul0_0", 2), ("Identity2_0", 0)])
def test_value_that_is_sampled_and_leads_to_the_grid_is_kept(X: str, fused_count: int) -> None:
    graph = GraphBuilder()
    scaled = graph.add("Mul", graph.add_input("coords", 1, 2, 2, 2), 0.1)
    transposed = graph.add("Transpose", scaled, perm=[0, 2, 3, 1])
    model = graph.model(graph.add("Identity", transposed), (1, 2, 2, 2))
    model.graph.node[-1].input[0] = X
    del model.graph.input[0]
    del graph.feeds["X"]
    assert_fused(graph, model, fused_count)


@needs_compiled_ops
def test_initializers_that_are_inputs_are_kept() -> None:
    """Models of the first IR versions list their initializers among their inputs."""
    graph = GraphBuilder()
    model = graph.model(planar(graph, 1, 3, 4), (1, 1, 5, 6))
    for constant in model.graph.initializer:
        info = helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims)
        model.graph.input.append(info)
    model.ir_version = 3
    session = assert_fused(graph, model, 6)
    inputs = [value.name for value in open_unfused(model).get_inputs()]
    assert [value.name for value in session.get_inputs()] == inputs


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


@needs_compiled_ops
@pytest.mark.parametrize(
    ("name", "shape", "found", "expected"), WRONG_SHAPES.values(), ids=WRONG_SHAPES
)
def test_fused_op_of_wrong_shapes_is_refused(
    name: str, shape: Shape, found: str, expected: str
) -> None:
    graph = GraphBuilder()
    model = graph.model(remap(graph, 1, 3, 4), (1, 1, 5, 6), unknown_lengths=True)
    if len(shape) == 3 and name == "X":
        model.graph.input[0].type.tensor_type.ClearField("shape")
    session = open_fused(model)
    error = refusal(session.run, None, graph.feeds | {name: np.zeros(shape, np.float32)})
    assert (error.where, error.argument) == ("GridSample node 'sample'", "grid")
    assert (error.found, error.expected) == (found, expected)
    assert session.run(None, graph.feeds)[0].shape == (1, 1, 3, 4)


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
    session = open_fused(model)
    native = open_native(model)
    assert fused_counts(session) == [2]
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
    assert refusal(open_fused(model).run, None, feeds).found.startswith("made of")


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
    session = open_fused(model)
    assert fused_counts(session) == [1]
    session.run(None, graph.feeds)
    with pytest.raises(Exception, match="Concat"):
        session.run(None, graph.feeds | {"x": np.zeros((3, 4, 5, 1), np.float32)})


# Without a declared type, onnxruntime 1.17 refuses an op of several values in a function.
@needs_compiled_ops
@pytest.mark.parametrize("chain", [planar, displaced])
def test_grid_in_a_function_is_fused(chain: Chain) -> None:
    graph = GraphBuilder()
    inner = graph.model(chain(graph, 2, 5, 6), (2, 3, 9, 8))
    model = parsed("g () => (float[] Y) { Y = mine.Warp () }")
    model.graph.node[0].input.extend(value.name for value in inner.graph.input)
    model.functions.append(function_of(inner, "mine", "Warp"))
    model.graph.input.extend(inner.graph.input)
    assert_fused(graph, model, CHAINS[chain].known)


@needs_compiled_ops
@pytest.mark.parametrize("chain", [planar, displaced])
def test_grids_in_branches_are_fused(chain: Chain) -> None:
    graph = GraphBuilder()
    inner = graph.model(chain(graph, 2, 5, 6), (2, 3, 9, 8))
    model = parsed("""g () => (float[] Y) {
        yes = Constant <value = bool {1}> ()
        Y = If (yes) <then_branch = t () => (float[] Y) { },
                      else_branch = e () => (float[] Y) { }> }""")
    for branch in model.graph.node[1].attribute:
        branch.g.node.extend(function_of(inner, "mine", "Warp").node)
    model.graph.input.extend(inner.graph.input)
    count = CHAINS[chain].known
    assert_fused(graph, model, count, count)


def fused_op_model(coordinates: list[int], sources: Sequence[str]) -> onnx.ModelProto:
    """Return a model of one fused op with these attributes."""
    model = parsed("""g (float[1,1,5,6] X, float[1,3,4,2] coords) => (float[N,C,h,w] Y)
        <float[1] numbers = {0}> {
            Y = ort_gridsample.compiled.FusedGridSample (X, numbers, coords) }""")
    (node,) = model.graph.node
    node.name = "sample"
    integers = onnx.AttributeProto.INTS
    node.attribute.append(helper.make_attribute("coordinates", coordinates, attr_type=integers))
    node.attribute.append(helper.make_attribute("sources", "\n".join(map(repr, sources))))
    return model


def open_fused_op(coordinates: list[int], sources: Sequence[str]) -> onnxruntime.InferenceSession:
    model = fused_op_model(coordinates, sources)
    return onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))


#: A program is a source, its length, the index of the coordinate, its axis, and steps.
VALID_X = [0, 3, 0, 2, 0]
VALID_Y = [0, 3, 1, 2]
STEP_WITH_PROGRAM = WITH_PROGRAM
INVALID_X = [
    [1, 3, 0, 2],
    [0, 3, 2, 2],
    [0, 9, 0, 2],
    [0, -2, 0, 2],
    [0, 3, 0, 2, 16],
    [0, 3, 0, 2, -1],
    [0, 3, 0],
    [0, 3, 0, 2, STEP_WITH_PROGRAM],
    [0, 3, 0, 2, *[0] * (MAX_STEPS + 1)],
]
#: Programs of x, of y, and of operands.
INVALID_PROGRAMS = [
    *([program_of_x, VALID_Y] for program_of_x in INVALID_X),
    [[0, 3, 0, 2, STEP_WITH_PROGRAM], VALID_Y, [1, 3, 1, 2]],
    [[0, 3, 0, 2, STEP_WITH_PROGRAM], VALID_Y, [*VALID_Y, STEP_WITH_PROGRAM], VALID_Y],
    [[0, 3, 0, 2], VALID_Y, VALID_Y],
]
INVALID_COORDINATES = [
    *(programs.encode(rows, 2) for rows in INVALID_PROGRAMS),
    [],
    [0],
    [2, 1, 2],
    [-1, *VALID_Y, 0],
    [1, *VALID_Y, 3],
    [1, *VALID_Y, -1],
]


@needs_compiled_ops
@pytest.mark.parametrize("coordinates", INVALID_COORDINATES, ids=str)
def test_fused_op_with_invalid_coordinates_is_refused(coordinates: list[int]) -> None:
    with pytest.raises(Exception, match="initialization") as raised:
        open_fused_op(coordinates, ["coords"])
    assert str(raised.value).endswith(
        f"GridSample node 'sample': coordinates is {format_shape(coordinates)}, "
        "expected the programs that a session writes"
    )


@pytest.mark.parametrize("coordinates", INVALID_COORDINATES, ids=str)
def test_lowering_of_a_fused_op_with_invalid_coordinates_is_refused(
    coordinates: list[int],
) -> None:
    model = fused_op_model(coordinates, ["coords"])
    error = refusal(ogs.patch_model, model, target="primitives")
    assert error.argument == "the fused node"
    assert error.expected == "what a session writes"


FUSED_OP_FEEDS = {
    "X": np.ones((1, 1, 5, 6), np.float32),
    "coords": np.zeros((1, 3, 4, 2), np.float32),
}


@needs_compiled_ops
def test_fused_op_with_valid_coordinates_runs() -> None:
    session = open_fused_op(programs.encode([VALID_X, VALID_Y], 2), ["coords"])
    assert session.run(None, FUSED_OP_FEEDS)[0].shape == (1, 1, 3, 4)


@needs_compiled_ops
@pytest.mark.parametrize(
    ("program_of_y", "sources"),
    [([1, 3, 1, 2], ["coords", "more"]), ([*VALID_Y, 0], ["coords"])],
    ids=["source", "number"],
)
def test_fused_op_with_a_missing_input_is_refused(
    program_of_y: list[int], sources: list[str]
) -> None:
    session = open_fused_op(programs.encode([VALID_X, program_of_y], 2), sources)
    sentence = (
        "grid is computed from an input that is omitted, "
        f"expected {len(sources)} inputs and the scalars of their programs$"
    )
    with pytest.raises(Exception, match=sentence):
        session.run(None, FUSED_OP_FEEDS)
