"""Models that compute a grid in every form that is fused, with feeds, and forms that are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.cases import ATTRIBUTES, Attributes
from support.forms import Form
from support.fused_models import GridSteps, transformer, transformer_feeds
from support.models import function_of, parsed
from support.pixel_graphs import GraphBuilder, GridFunction, Shape, build_graph
from support.provider_nodes import in_both_branches

#: The most steps of a coordinate, and the most values, that a GridSample fuses.
MAX_STEPS = 16
MAX_SOURCES = 6
LINEAR = Attributes("linear", "zeros")

# Chains of nodes

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


def planes(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Rearrange planes of coordinates, y first."""
    coords = graph.add_input("coords", n, 2, h, w)
    channels_last = graph.add("Transpose", coords, perm=[0, 2, 3, 1])
    return graph.add("Gather", channels_last, [1, 0], axis=-1)


def moved(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Add a flow to pixel coordinates that are computed too, and normalize the sum."""
    pixels = graph.add("Mul", graph.add_input("pixels", 1, h, w, 2), 3)
    coords = graph.add("Mul", graph.add_input("coords", n, h, w, 2), 2)
    return graph.apply(graph.add("Add", pixels, coords), ("Div", [8, 9]), ("Sub", 1))


def scaled_by_inputs(graph: GraphBuilder, n: int, h: int, w: int) -> str:
    """Normalize by scalars that are inputs, and by constants."""
    coords = graph.add_input("coords", n, h, w, 2)
    scaled = graph.add("Mul", graph.add_input("factor"), coords)
    return graph.apply(scaled, ("Add", 0.25), ("Sub", graph.add_input("offset", 1)))


#: A chain of nodes -> how many of them are fused, if the lengths of inputs are known or not.
CHAINS: dict[Chain, tuple[int, int]] = {
    flow: (8, 8),
    remap: (9, 9),
    planar: (6, 6),
    from_shapes: (6, 6),
    slices: (11, 7),
    one_for_both: (1, 1),
    displaced: (11, 11),
    planes: (2, 2),
    moved: (5, 5),
    scaled_by_inputs: (3, 3),
}


def chain_form(
    chain: Chain,
    grid_type: str = "float32",
    attributes: Attributes = LINEAR,
    positions: tuple[int, int, int] = (2, 3, 5),
    unknown_lengths: bool = False,
    X_shape: Shape | None = None,
) -> Form:
    """Return a form whose grid a chain computes."""
    graph = GraphBuilder(grid_type)
    n, h, w = positions
    model = graph.model(chain(graph, n, h, w), X_shape or (n, 3, 9, 8), attributes, unknown_lengths)
    return Form(model, graph.feeds, fused=(CHAINS[chain][unknown_lengths],), tolerance=2e-5)


# Nodes that choose and combine coordinates


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


def reshaped_rows(graph: GraphBuilder) -> str:
    """Choose planes of coordinates by single indices, and restore their axis by Reshapes."""
    planes = graph.add("Transpose", "coords", perm=[0, 3, 1, 2])
    rows = []
    for index in (1, 0):
        plane = graph.add("Gather", planes, index, axis=1)
        rows.append(graph.add("Reshape", graph.add("Mul", plane, 0.1), [0, 0, 3, -1]))
    return graph.add("Concat", *rows, axis=3)


def reshaped_as(graph: GraphBuilder) -> str:
    """Reshape to lengths that the graph reads from the coordinates."""
    shape = graph.add("Shape", "coords")
    spatial = graph.add("Slice", shape, [0], [3])
    lengths = graph.add("Concat", spatial, [2], axis=0)
    return graph.add("Reshape", graph.add("Mul", "coords", 0.1), lengths)


def split_and_swapped(graph: GraphBuilder) -> str:
    x, y = graph.add_multi("Split", "coords", outputs=2, axis=-1, num_outputs=2)
    return graph.add("Concat", y, x, axis=-1)


def split_in_unequal_parts(graph: GraphBuilder) -> str:
    *_, y, x = graph.add_multi("Split", "coords", [2, 1, 1, 1], outputs=4, axis=3)
    return graph.add("Concat", x, y, axis=3)


def split_with_a_shorter_end(graph: GraphBuilder) -> str:
    """Five coordinates in parts of two, two and one."""
    _, second, end = graph.add_multi("Split", "coords", outputs=3, axis=3, num_outputs=3)
    return graph.add("Concat", end, graph.add("Gather", second, [1], axis=3), axis=3)


def squeezed_without_axes(graph: GraphBuilder) -> str:
    plane = graph.add("Mul", graph.add("Squeeze", "coords"), 0.1)
    return graph.add("Expand", graph.add("Unsqueeze", plane, [-1]), [1, 1, 1, 2])


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


class Steps(NamedTuple):
    """The inputs besides coords of shape (2, 3, 4, 2), the nodes, and how many of them are fused.

    The inputs may contain another shape of coords.
    """

    inputs: dict[str, Shape]
    make_grid: GridFunction
    fused_count: int


FOUR: dict[str, Shape] = {"coords": (2, 3, 5, 4)}
#: Valid grids, whose nodes choose coordinates.
CHOICES = {
    "negative indices": Steps(FOUR, negative_indices, 5),
    "rows of one index": Steps(FOUR, row_indices, 3),
    "slice": Steps(FOUR, lambda g: g.add("Slice", "coords", [1], [4], [-1], [2]), 1),
    "backwards": Steps({}, lambda g: g.add("Slice", "coords", [1], [-9], [3], [-1]), 1),
    "negative slice": Steps(FOUR, lambda g: g.add("Slice", "coords", [-3], [-1], [3]), 1),
    "of two values": Steps({"y": (2, 3, 4, 2)}, second_of_each, 3),
    "of a concatenation of pairs": Steps(
        {"y": (2, 3, 4, 2)},
        lambda g: g.add("Gather", g.add("Concat", "y", "coords", axis=3), [3, 0], axis=3),
        2,
    ),
    "of a concatenation": Steps({"y": (2, 3, 4, 1)}, last_two_of_three, 2),
    "reshaped rows": Steps({"coords": (2, 4, 3, 2)}, reshaped_rows, 8),
    "reshaped as by a shape": Steps({}, reshaped_as, 2),
    "split without sizes": Steps({}, split_and_swapped, 2),
    "split in unequal parts": Steps({"coords": (2, 3, 4, 5)}, split_in_unequal_parts, 2),
    "split with a shorter end": Steps({"coords": (2, 3, 4, 5)}, split_with_a_shorter_end, 3),
    "squeezed without axes": Steps({"coords": (2, 3, 4, 1)}, squeezed_without_axes, 4),
    "expanded": Steps(
        {"coords": (2, 3, 4, 1)}, lambda g: g.add("Expand", "coords", [2, 1, 1, 2]), 1
    ),
    # With one position, shapes do not distinguish a coordinate from a number.
    "one position": Steps({"coords": (1, 1, 1, 2)}, one_by_another, 2),
    "too many steps": Steps(
        {}, lambda g: g.apply("coords", *[("Mul", 1.01)] * (MAX_STEPS + 3)), MAX_STEPS
    ),
}


def add_y(graph: GraphBuilder) -> str:
    return graph.add("Add", "coords", "y")


#: Graphs that need not be valid grids.
GRAPHS = {
    # Two values meet.
    "square": Steps({}, lambda g: g.add("Mul", "coords", "coords"), 1),
    "same shape": Steps({"y": (2, 3, 4, 2)}, add_y, 1),
    "one batch": Steps({"y": (1, 3, 4, 2)}, add_y, 1),
    "one coordinate": Steps({"y": (2, 3, 4, 1)}, add_y, 1),
    "transposed": Steps({"coords": (2, 2, 3, 4), "y": (2, 1, 3, 4)}, transposed_sum, 2),
    # Other axes are broadcast.
    "one row": Steps({"y": (2, 1, 4, 2)}, add_y, 0),
    "no batch": Steps({"y": (3, 4, 2)}, add_y, 0),
    # If both values are computed from two values, one of them is followed.
    "sum at the right": Steps(
        {"y": (2, 3, 4, 2)}, lambda g: g.add("Add", "coords", g.add("Add", "y", "coords")), 2
    ),
    "sum at the left": Steps(
        {"y": (2, 3, 4, 2)}, lambda g: g.add("Add", g.add("Add", "y", "coords"), "coords"), 2
    ),
    "sums at both sides": Steps({"y": (2, 3, 4, 2)}, lambda g: g.add("Mul", add_y(g), add_y(g)), 2),
    "sums of three": Steps(
        {"coords": (2, 3, 4, 2, 3), "y": (2, 3, 4, 2, 3), "z": (2, 3, 4, 2, 3)}, sums_of_three, 1
    ),
    # A number for each coordinate is fused, and no other constant.
    "number": Steps({}, lambda g: g.add("Mul", "coords", 2), 1),
    "row of numbers": Steps({}, lambda g: g.add("Mul", "coords", [[1, 2]]), 1),
    "plane of numbers": Steps({}, lambda g: g.add("Mul", "coords", np.ones((3, 4, 2))), 0),
    "higher rank": Steps({}, lambda g: g.add("Mul", "coords", np.ones((1, 1, 1, 1, 2))), 0),
    "row that does not broadcast": Steps(
        {"coords": (2, 3, 4, 5, 3)}, lambda g: g.add("Mul", "coords", [1, 2]), 0
    ),
    "half precision": Steps(
        {},
        lambda g: g.add(
            "Mul",
            g.add("Cast", "coords", to=TensorProto.FLOAT16),
            g.add_constant(2, "float16"),
        ),
        0,
    ),
    "three coordinates": Steps({"coords": (1, 3, 4, 3)}, lambda g: g.add("Mul", "coords", 2), 0),
    "Neg": Steps({}, lambda g: g.add("Neg", "coords"), 0),
    # Other axes are moved or chosen from.
    "transposed image": Steps({}, lambda g: g.add("Transpose", "coords", perm=[0, 2, 1, 3]), 0),
    "transposed without perm": Steps(
        {"coords": (2, 4, 3, 1)}, lambda g: g.add("Transpose", "coords"), 0
    ),
    "chosen rows": Steps({}, lambda g: g.add("Gather", "coords", [1, 0, 2], axis=1), 0),
    "concatenated rows": Steps({}, lambda g: g.add("Concat", "coords", "coords", axis=1), 0),
    "unsqueezed batch": Steps(
        {"coords": (3, 4, 2)}, lambda g: g.add("Unsqueeze", "coords", [0]), 0
    ),
    # Indices are computed.
    "computed indices": Steps(
        {"i": (2,)}, lambda g: g.add("Gather", "coords", as_integers(g, "i"), axis=3), 0
    ),
    "computed start": Steps(
        {"i": (1,)}, lambda g: g.add("Slice", "coords", as_integers(g, "i"), [9], [3]), 0
    ),
    "computed step": Steps(
        {"i": (1,)}, lambda g: g.add("Slice", "coords", [0], [9], [3], as_integers(g, "i")), 0
    ),
    "computed axis of a slice": Steps(
        {"i": (1,)}, lambda g: g.add("Slice", "coords", [0], [9], as_integers(g, "i")), 0
    ),
    "computed axis of a squeeze": Steps(
        {"i": (1,)},
        lambda g: g.add("Squeeze", g.add("Unsqueeze", "coords", [0]), as_integers(g, "i")),
        0,
    ),
    # Several axes at once.
    "slice of two axes": Steps({}, lambda g: g.add("Slice", "coords", [0, 0], [2, 1], [3, 0]), 0),
    # Nothing changes.
    "slice of two whole axes": Steps(
        {}, lambda g: g.add("Slice", "coords", [0, 0], [2, 2], [3, 0]), 1
    ),
    "expanded to its lengths": Steps({}, lambda g: g.add("Expand", "coords", [2, 1, 1, 1]), 0),
    "two axes, squeezed at once": Steps(
        {}, lambda g: g.add("Squeeze", g.add("Unsqueeze", "coords", [0, 1]), [0, 1]), 0
    ),
    "two axes, squeezed and unsqueezed": Steps(
        {},
        lambda g: g.add(
            "Unsqueeze", g.add("Squeeze", g.add("Unsqueeze", "coords", [0, 1]), [0]), [0]
        ),
        0,
    ),
    # Invalid steps of a slice.
    "step 0": Steps({}, lambda g: g.add("Slice", "coords", [1], [-9], [3], [0]), 0),
    # An Expand or a Reshape changes other axes.
    "expanded batch": Steps(
        {"coords": (1, 3, 4, 2)}, lambda g: g.add("Expand", "coords", [2, 1, 1, 1]), 0
    ),
    "split rows": Steps(
        {"coords": (6, 4, 2)}, lambda g: g.add("Reshape", "coords", [2, 3, 4, 2]), 0
    ),
}


def steps_form(name: str) -> Form:
    """Return a valid grid of :data:`CHOICES`."""
    steps = CHOICES[name]
    graph, model = build_graph(steps.inputs, steps.make_grid)
    return Form(model, graph.feeds, fused=(steps.fused_count,), tolerance=2e-5)


def special_values(attributes: Attributes) -> Form:
    """Return arithmetic of infinities, NaN, zeros of both signs, and large and small numbers."""
    graph = GraphBuilder()
    coords = graph.add_input("coords", 1, 3, 40, 2)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1.0]
    graph.feeds[coords][:] = np.resize(special, (1, 3, 40, 2))
    quotients = graph.add("Div", [1, -0.0], graph.add("Add", coords, [-0.0, 0.0]))
    model = graph.model(graph.add("Mul", quotients, np.inf), (1, 2, 6, 7), attributes)
    return Form(model, graph.feeds, fused=(3,), tolerance=2e-5)


def of_opset_9() -> Form:
    """Return nodes whose axes, starts and lengths are attributes."""
    graph = GraphBuilder(opset=9)
    coords = graph.add_input("coords", 1, 4, 5, 2)
    x, y = graph.add_multi("Split", coords, outputs=2, axis=3, split=[1, 1])
    planes_of_coords = []
    for coordinate in (y, x):
        scaled = graph.add("Mul", graph.add("Squeeze", coordinate, axes=[3]), 0.1)
        planes_of_coords.append(graph.add("Unsqueeze", scaled, axes=[1]))
    together = graph.add("Concat", *planes_of_coords, axis=1)
    first = graph.add("Slice", together, starts=[0], ends=[1], axes=[1])
    second = graph.add("Slice", together, starts=[1], ends=[2], axes=[1])
    grid = graph.add("Transpose", graph.add("Concat", first, second, axis=1), perm=[0, 2, 3, 1])
    model = graph.model(grid, (1, 2, 6, 7))
    codes = {"interpolation_mode": 0, "padding_mode": 0, "align_corners": 0}
    sampler = helper.make_node("grid_sampler", ["X", grid], ["Y"], "s", domain="mmcv", **codes)
    model.graph.node[-1].CopyFrom(sampler)
    model.opset_import.append(helper.make_opsetid("mmcv", 1))
    return Form(model, graph.feeds, fused=(len(graph.nodes),), tolerance=2e-5)


def in_function(chain: Chain) -> Form:
    """Return a model that computes its grid in a function."""
    graph = GraphBuilder()
    inner = graph.model(chain(graph, 2, 5, 6), (2, 3, 9, 8))
    model = parsed("g () => (float[] Y) { Y = mine.Warp () }")
    model.graph.node[0].input.extend(value.name for value in inner.graph.input)
    model.functions.append(function_of(inner, "mine", "Warp"))
    model.graph.input.extend(inner.graph.input)
    return Form(model, graph.feeds, fused=(CHAINS[chain][0],), tolerance=2e-5)


def with_constant_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model that has Constants instead of initializers, as bodies usually do."""
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    constants = [
        helper.make_node("Constant", [], [t.name], value=t) for t in model.graph.initializer
    ]
    del changed.graph.node[:], changed.graph.initializer[:]
    changed.graph.node.extend([*constants, *model.graph.node])
    return changed


def in_branches(chain: Chain, condition: bool) -> Form:
    """Return a model that computes its grid in both branches of an If."""
    graph = GraphBuilder()
    inner = graph.model(chain(graph, 2, 5, 6), (2, 3, 9, 8))
    inner.graph.CopyFrom(with_constant_nodes(inner).graph)
    count = CHAINS[chain][0]
    feeds = graph.feeds | {"condition": np.array(condition)}
    return Form(in_both_branches(inner), feeds, fused=(count, count), tolerance=2e-5)


def with_constant(kind: str) -> Form:
    """Return a grid that is scaled by an initializer or by the output of a Constant."""
    graph = GraphBuilder()
    if kind == "Constant":
        graph.nodes.append(helper.make_node("Constant", [], ["two"], value_float=2.0))
    else:
        graph.add_constant(2)
        graph.constants[-1].name = "two"
    grid = graph.apply(graph.add_input("coords", 1, 3, 4, 2), ("Mul", "two"), ("Sub", [1, 2]))
    return Form(graph.model(grid, (1, 1, 5, 6)), graph.feeds, fused=(2,), tolerance=2e-5)


def of_initializers_that_are_inputs() -> Form:
    """Return a model that lists its initializers among its inputs, as those of IR version 3."""
    form = chain_form(planar)
    for constant in form.model.graph.initializer:
        info = helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims)
        form.model.graph.input.append(info)
    form.model.ir_version = 3
    return form


def of_sampled_value(X: str, count: int) -> Form:
    """Return a model that samples a value which leads to the grid, too."""
    graph = GraphBuilder()
    scaled = graph.add("Mul", graph.add_input("coords", 1, 2, 2, 2), 0.1)
    transposed = graph.add("Transpose", scaled, perm=[0, 2, 3, 1])
    model = graph.model(graph.add("Identity", transposed), (1, 2, 2, 2))
    model.graph.node[-1].input[0] = X
    del model.graph.input[0]
    del graph.feeds["X"]
    return Form(model, graph.feeds, fused=(count,), tolerance=2e-5)


#: The length of an attribute of :func:`after_a_long_attribute`, in elements of 8 bytes.
N_PIECES = 600


def after_a_long_attribute() -> Form:
    """Return a model whose grid is computed from a piece of N_PIECES lengths."""
    pieces = [f"piece{index}" for index in range(N_PIECES)]
    nodes = [
        helper.make_node("Split", ["coords"], pieces, axis=1, split=[3] + [1] * (N_PIECES - 1)),
        helper.make_node("Mul", ["piece0", "factor"], ["grid"]),
        helper.make_node("GridSample", ["X", "grid"], ["Y"], domain="com.microsoft"),
    ]
    value = helper.make_tensor_value_info
    inputs = [
        value("X", TensorProto.FLOAT, [2, 3, 9, 8]),
        value("coords", TensorProto.FLOAT, [2, N_PIECES + 2, 4, 2]),
    ]
    factor = onnx.numpy_helper.from_array(np.array(2, np.float32), "factor")
    outputs = [value("Y", TensorProto.FLOAT, [2, 3, 3, 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [factor])
    imports = [helper.make_opsetid("", 12), helper.make_opsetid("com.microsoft", 1)]
    rng = np.random.default_rng(0)
    feeds = {
        "X": rng.normal(size=(2, 3, 9, 8)).astype(np.float32),
        "coords": rng.uniform(-0.6, 0.6, (2, N_PIECES + 2, 4, 2)).astype(np.float32),
    }
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return Form(model, feeds, fused=(1,), tolerance=2e-5)


# Another reader

_SHARED_MODEL = """
    agraph (float[2, 3, 9, 8] X, float[2, 3, 9, 8] X2, float[2, 3, 4, 2] coords, bool yes)
    => (float[2, 3, 3, 4] Y, float[a, b, c, d] Z)
    <float half = {0.5}, float one = {1}> {
        a = Mul (coords, half)
        grid = Sub (a, one)
        Y = GridSample (X, grid)
        Z = READER
    }"""
#: What reads a value besides the GridSample.
READERS = {
    "GridSample": "GridSample (X2, VALUE)",
    "node": "Neg (VALUE)",
    "output": "Identity (VALUE)",
    "body": """If (yes) <
        then_branch = then () => (float[a, b, c, d] n) { n = Neg (VALUE) },
        else_branch = other () => (float[a, b, c, d] p) { p = Abs (VALUE) }
    >""",
}


def shared(reader: str, value: str) -> Form:
    """Return a grid of two steps, of which something else reads ``grid`` or ``a``."""
    text = _SHARED_MODEL.replace("READER", READERS[reader].replace("VALUE", value))
    rng = np.random.default_rng(0)
    feeds = {
        "X": rng.normal(size=(2, 3, 9, 8)).astype(np.float32),
        "X2": rng.normal(size=(2, 3, 9, 8)).astype(np.float32),
        "coords": rng.uniform(-1, 5, (2, 3, 4, 2)).astype(np.float32),
        "yes": np.array(True),
    }
    count = 0 if value == "grid" else 1
    fused = (count, 0) if reader == "GridSample" else (count,)
    return Form(parsed(text), feeds, fused=fused, tolerance=2e-5)


# AffineGrid


def cast_to(elem_type: int) -> tuple[str, dict[str, object]]:
    return "Cast", {"to": elem_type}


def affine(
    steps: GridSteps = (),
    theta_type: str = "FLOAT",
    attributes: Attributes = LINEAR,
    align_corners: int = 0,
    axes: int = 2,
    lengths: tuple[int, int, int] = (7, 5, 6),
    is_fused: bool = True,
) -> Form:
    """Return a GridSample of a grid that AffineGrid computes, with steps between them."""
    model = transformer(steps, theta_type, attributes, align_corners)
    tolerance = {"BFLOAT16": 0.5, "FLOAT16": 0.1}.get(theta_type, 1e-4)
    feeds = transformer_feeds(theta_type, axes, lengths)
    if align_corners:  # declare the shapes
        for value in model.graph.input:
            elem_type = value.type.tensor_type.elem_type
            shape = feeds[value.name].shape
            value.type.CopyFrom(helper.make_tensor_type_proto(elem_type, shape))
    fused = (0, 1 + len(steps)) if is_fused else (0, 0)
    return Form(model, feeds, fused=fused, tolerance=tolerance)


def _moved_and_back(axes: int) -> GridSteps:
    """Return Transposes that undo each other, with an Identity between them."""
    return [
        ("Transpose", {"perm": [0, axes + 1, *range(1, axes + 1)]}),
        ("Identity", {}),
        ("Transpose", {"perm": [0, *range(2, axes + 2), 1]}),
    ]


_FLOAT16 = [cast_to(TensorProto.FLOAT16)]
#: The type of theta, the nodes between AffineGrid and GridSample, and the number of axes.
AFFINE_CHAINS: dict[str, tuple[str, GridSteps, int]] = {
    "nothing": ("FLOAT", (), 2),
    "three axes": ("FLOAT", (), 3),
    "Transposes that undo each other": ("FLOAT", _moved_and_back(2), 2),
    "Transposes of three axes": ("FLOAT", _moved_and_back(3), 3),
    "spatial axes swapped and back": (
        "FLOAT",
        [("Transpose", {"perm": [0, 2, 1, 3]}), ("Concat", {"axis": 1})] * 2,
        2,
    ),
    "a narrower grid": ("FLOAT", _FLOAT16, 2),
    "float64": ("DOUBLE", (), 2),
    "float64, three axes": ("DOUBLE", (), 3),
}
#: These need more compilations.
SLOW_AFFINE_CHAINS: dict[str, tuple[str, GridSteps, int]] = {
    "a wider grid": ("FLOAT16", [cast_to(TensorProto.FLOAT)], 2),
    "float64 and a narrower grid": ("DOUBLE", [cast_to(TensorProto.FLOAT)], 3),
    "float64 and a bfloat16 grid": ("DOUBLE", [cast_to(TensorProto.BFLOAT16)], 2),
    "bfloat16": ("BFLOAT16", (), 2),
}
UNFUSED_STEPS: dict[str, GridSteps] = {
    "a Transpose of spatial axes": [("Transpose", {"perm": [0, 2, 1, 3]})],
    "two Casts": [cast_to(TensorProto.FLOAT16), cast_to(TensorProto.FLOAT)],
    "another operator": [("Neg", {})],
}


Build = Callable[[], Form]
NEAREST = Attributes("nearest", "zeros")
#: Attributes, with float64 only linear ones, as each mode would be compiled for it.
CHAIN_CASES: list[tuple[str, Attributes, bool]] = [
    ("float32", Attributes("nearest", "zeros", False), False),
    ("float32", Attributes("linear", "reflection", True), False),
    ("float32", Attributes("cubic", "zeros", False), True),
    ("float32", Attributes("nearest", "border", True), True),
    ("float64", Attributes("linear", "border", False), False),
    ("float64", Attributes("linear", "zeros", True), True),
]
FORMS: dict[str, Build] = {
    **{
        f"{chain.__name__}, {grid_type}, {attributes}, {'un' * unknown}known lengths": partial(
            chain_form, chain, grid_type, attributes, (2, 3, 5), unknown
        )
        for chain in CHAINS
        for grid_type, attributes, unknown in CHAIN_CASES
    },
    **{
        f"flow, {attributes}": partial(chain_form, flow, "float32", attributes)
        for attributes in ATTRIBUTES
    },
    "flow, no positions": partial(chain_form, flow, positions=(2, 0, 4)),
    **{f"choice: {name}": partial(steps_form, name) for name in CHOICES},
    **{f"special values, {a}": partial(special_values, a) for a in ATTRIBUTES[::5]},
    "opset 9": of_opset_9,
    "after a long attribute": after_a_long_attribute,
    **{f"function, {c.__name__}": partial(in_function, c) for c in (flow, planar, displaced)},
    **{
        f"branches, {c.__name__}, {condition}": partial(in_branches, c, condition)
        for c in (flow, planar, displaced)
        for condition in (True, False)
    },
    **{f"constant: {kind}": partial(with_constant, kind) for kind in ("initializer", "Constant")},
    "initializers that are inputs": of_initializers_that_are_inputs,
    "sampled value": partial(of_sampled_value, "Mul0_0", 2),
    "sampled value, last": partial(of_sampled_value, "Identity2_0", 0),
    **{
        f"{value} is read by a {reader}": partial(shared, reader, value)
        for value in ("grid", "a")
        for reader in READERS
    },
    **{
        f"affine, {name}, {'aligned' if aligned else 'edges'}": partial(
            affine, steps, theta_type, align_corners=aligned, axes=axes
        )
        for name, (theta_type, steps, axes) in (AFFINE_CHAINS | SLOW_AFFINE_CHAINS).items()
        for aligned in (0, 1)
    },
    **{
        f"affine, {attributes}, {axes} axes": partial(affine, attributes=attributes, axes=axes)
        for attributes in ATTRIBUTES
        for axes in (2, 3)
        if attributes.mode != "cubic" or axes == 2
    },
    **{
        f"affine, then {name}": partial(affine, steps, is_fused=False)
        for name, steps in UNFUSED_STEPS.items()
    },
}


@cache
def form_of(name: str) -> Form:
    """Return the form of this name."""
    return FORMS[name]()
