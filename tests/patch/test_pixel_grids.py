"""What makes a grid right before a GridSample, in one with it: wherever it is found, with the graph's own answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, shape_inference

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.structs import REQUEST
from ort_gridsample.detection import programs
from ort_gridsample.detection.programs import MAX_SOURCES, MAX_STEPS, OPERATIONS
from ort_gridsample.functions.validation import format_shape
from ort_gridsample.rewriting.patch import patch_in_place
from ort_gridsample.rewriting.targets.compiled_op import FusedOp
from support.cases import ATTRIBUTES, Attributes
from support.compare import about, assert_identical, refusal
from support.fused_models import assert_read_back, compiled, fused, readers, two_ops
from support.models import function_of, parsed
from support.paths import open_native, quiet_options
from support.pixel_graphs import Build, Graph, Shape, made

#: What float64 is tried with: each mode would be compiled for it.
LINEAR = [each for each in ATTRIBUTES if each.mode == "linear"]


def open_fused(model: onnx.ModelProto) -> ogs.InferenceSession:
    return ogs.InferenceSession(model, quiet_options())


def found(model: onnx.ModelProto) -> list[int]:
    return [len(record.fused) for record in ogs.inspect_model(model)]


def assert_fused(graph: Graph, model: onnx.ModelProto, *nodes: int) -> ogs.InferenceSession:
    """So many nodes are fused, and all answers are those of one op for each node."""
    session, expected = open_fused(model), two_ops(model)
    assert fused(session) == [*nodes]
    for answer, one in zip(
        session.run(None, graph.feeds), expected.run(None, graph.feeds), strict=True
    ):
        assert_identical(answer, one)
    return session


#: What makes a grid of n times h times w positions.
Chain = Callable[[Graph, int, int, int], str]


def flow(graph: Graph, n: int, h: int, w: int) -> str:
    """As for RAFT: coordinates in pixels, split, normalized one by one, put together."""
    parts = graph.add_all(
        "Split", graph.fed("coords", n, h, w, 2), outputs=2, axis=-1, num_outputs=2
    )
    lengths = zip(parts, (8, 9), strict=True)
    made = [
        graph.apply(part, ("Mul", 2), ("Div", length - 1), ("Sub", 1)) for part, length in lengths
    ]
    return graph.add("Concat", *made, axis=-1)


def remap(graph: Graph, n: int, h: int, w: int) -> str:
    """Two maps, one of each coordinate."""
    steps = [
        (name, ("Add", 0.5), ("Mul", 2 / at), ("Sub", 1))
        for name, at in (("map_x", 8), ("map_y", 9))
    ]
    made = [
        graph.apply(graph.fed(name, n, h, w), *more, ("Unsqueeze", [3])) for name, *more in steps
    ]
    return graph.add("Concat", *made, axis=3)


def planar(graph: Graph, n: int, h: int, w: int) -> str:
    """Coordinates in planes, y first, all at once, by rows of numbers, which come first as well as second."""
    scaled = graph.add(
        "Div", -0.25, graph.add("Div", graph.fed("coords", n, 2, h, w), np.array([[[9]], [[8]]]))
    )
    chosen = graph.add("Gather", graph.add("Transpose", scaled, perm=[0, 2, 3, 1]), [1, 0], axis=-1)
    return graph.add("Add", [1, 2], graph.add("Sub", [[0.5, 1]], chosen))


def from_shapes(graph: Graph, n: int, h: int, w: int) -> str:
    """Numbers that only a run knows."""
    coords, made, shape = graph.fed("coords", n, h, w, 2), [], graph.add("Shape", "X")
    for part, axis in zip(
        graph.add_all("Split", coords, [1, 1], outputs=2, axis=3), (3, 2), strict=True
    ):
        length = graph.add("Gather", shape, axis, axis=0)
        as_float = graph.add(
            "Cast", length, to=helper.np_dtype_to_tensor_dtype(np.dtype(graph.type))
        )
        made.append(graph.apply(part, ("Div", graph.add("Sub", as_float, 1)), ("Sub", 0.5)))
    return graph.add("Concat", *made, axis=3)


def slices(graph: Graph, n: int, h: int, w: int) -> str:
    """Slices of planes, of more than are read; batches behind the coordinates."""
    coords = graph.fed("coords", 5, n, h, w)
    parts = (
        graph.add("Slice", coords, [-1], [1 << 40], [0]),
        graph.add("Slice", coords, [1], [2]),
    )  # from the first on
    made = [graph.apply(part, ("Squeeze", [0]), ("Div", 6), ("Unsqueeze", [1])) for part in parts]
    return graph.add(
        "Transpose", graph.add("Identity", graph.add("Concat", *made, axis=1)), perm=[0, 2, 3, 1]
    )


def one_for_both(graph: Graph, n: int, h: int, w: int) -> str:
    """One coordinate, which each number of a row makes another of."""
    return graph.add("Mul", graph.fed("coords", n, h, w, 1), [0.1, 0.2])


def displaced(graph: Graph, n: int, h: int, w: int) -> str:
    """Pixels that a flow begins at, each coordinate normalized by itself; less, and as a part of, a third."""
    shared = graph.constant([np.meshgrid(np.arange(w), np.arange(h))])  # x first
    less = graph.add("Sub", shared, graph.add("Add", graph.fed("flow", n, 2, h, w), shared))
    part = graph.add("Div", less, graph.add("Add", graph.fed("scale", n, 1, h, w), 20))
    ones = [
        (graph.add("Gather", part, index, axis=1), 2 / length) for index, length in ((1, 8), (0, 9))
    ]
    return graph.add(
        "Concat", *(graph.apply(one, ("Mul", by), ("Unsqueeze", [3])) for one, by in ones), axis=3
    )


#: How many of a chain's nodes are fused; and where the number of coordinates that they choose from is not known, nor
#: the lengths of coordinates that meet.
CHAINS: dict[Chain, tuple[int, int]] = {
    **{flow: (8, 8), remap: (9, 9), planar: (6, 6), from_shapes: (6, 6), slices: (11, 7)},
    **{one_for_both: (1, 1), displaced: (11, 11)},
}


@compiled
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.__name__)
def test_is_the_graph_bit_for_bit(chain: Chain) -> None:
    """Every other shape of each type and knowledge, those that the next chain leaves out."""
    shapes = ((2, 3, 5), (1, 70, 90), (3, 1, 2100), (2, 0, 4))
    cases = enumerate(product(("float32", "float64"), (False, True), shapes))
    for i, (type_, loose, (n, h, w)) in [*cases][[*CHAINS].index(chain) % 2 :: 2]:
        graph, attributes = (
            Graph(type_),
            ATTRIBUTES[i * 5 % len(ATTRIBUTES)] if type_ == "float32" else LINEAR[i % 6],
        )
        model = graph.sampled(chain(graph, n, h, w), (n, 3, 9, 8), attributes, loose)
        with about((type_, loose, (n, h, w), attributes)):
            assert_fused(graph, model, CHAINS[chain][loose])


@compiled
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.__name__)
def test_a_model_that_a_session_saved_is_read_back(chain: Chain, tmp_path: Path) -> None:
    graph = Graph()
    model = graph.sampled(chain(graph, 2, 3, 5), (2, 3, 9, 8))
    assert_read_back(model, graph.feeds, tmp_path / "saved.onnx", "GridSample")
    for opset in (
        (12, 13) if chain is one_for_both else ()
    ):  # in which axes are an attribute, and an input
        older = ogs.patch_model(model, target="mmcv", opset=opset)
        assert_read_back(older, graph.feeds, tmp_path / "older.onnx", "GridSample")


@compiled
@pytest.mark.parametrize("as_node", [False, True])
def test_a_number_that_is_added_to_the_options_is_met(as_node: bool) -> None:
    graph, options = Graph(), quiet_options()
    model = graph.sampled(
        graph.add("Sub", graph.add("Mul", graph.fed("coords", 1, 3, 4, 2), 0.1), 1), (1, 2, 6, 7)
    )
    name = model.graph.node[0].input[1]
    if as_node:  # which is an initializer to onnxruntime
        (tensor,) = (each for each in model.graph.initializer if each.name == name)
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=tensor))
        model.graph.initializer.remove(tensor)
    added = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(0.4, np.float32))
    options.add_initializer(name, added)
    expected = onnxruntime.InferenceSession(model.SerializeToString(), options).run(
        None, graph.feeds
    )[0]
    session = ogs.InferenceSession(model, options, nodes="all")
    np.testing.assert_allclose(session.run(None, graph.feeds)[0], expected, atol=1e-5)
    assert fused(session) == [1]


@compiled
def test_the_older_spelling() -> None:
    """Axes, starts and parts as attributes."""
    graph = Graph(opset=9)
    x, y = graph.add_all("Split", graph.fed("coords", 1, 4, 5, 2), outputs=2, axis=3, split=[1, 1])
    flat = [graph.add("Mul", graph.add("Squeeze", part, axes=[3]), 0.1) for part in (y, x)]
    together = graph.add(
        "Concat", *(graph.add("Unsqueeze", each, axes=[1]) for each in flat), axis=1
    )
    parts = [graph.add("Slice", together, starts=[i], ends=[i + 1], axes=[1]) for i in (0, 1)]
    grid = graph.add("Transpose", graph.add("Concat", *parts, axis=1), perm=[0, 2, 3, 1])
    model = graph.sampled(grid, (1, 2, 6, 7))
    sampler = dict.fromkeys(("interpolation_mode", "padding_mode", "align_corners"), 0)
    model.graph.node[-1].CopyFrom(
        helper.make_node("grid_sampler", ["X", grid], ["Y"], "s", domain="mmcv", **sampler)
    )
    model.opset_import.append(helper.make_opsetid("mmcv", 1))
    assert_fused(graph, model, len(graph.nodes))


@compiled
def test_numbers_that_are_none_and_zeros_with_a_sign() -> None:
    graph = Graph()
    added = graph.add("Add", graph.fed("coords", 1, 3, 40, 2), [-0.0, 0.0])
    graph.feeds["coords"][:] = np.resize(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1.0], (1, 3, 40, 2)
    )
    grid = graph.add("Mul", graph.add("Div", [1, -0.0], added), np.inf)
    for attributes in ATTRIBUTES[::5]:
        assert_fused(graph, graph.sampled(grid, (1, 2, 6, 7), attributes), 3)


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
    """A chain of any nodes that are fused, in any order; the grid that it makes, and a shape of X for that."""
    r, graph = draw(st.integers(1, 3)), Graph(draw(st.sampled_from(["float32", "float64"])))
    batches = [draw(st.integers(1, 3))]  # those of the values on the way, one after the other
    rest = [batches[0], *(draw(st.integers(1, 9)) for _ in range(r))]
    numbers, operations = (
        st.sampled_from([0.0, -1.0, 0.5, 2.0, 3.0, -0.1]),
        st.sampled_from(OPERATIONS),
    )

    def arithmetic(name: str, row: Sequence[int]) -> str:
        """A node with one number, or one for each coordinate, that comes first or second."""
        number: object = draw(numbers)
        if draw(st.booleans()):
            number = np.reshape([draw(numbers) for _ in range(int(np.prod(row)))], row)
        elif draw(st.booleans()):
            fed = graph.fed(f"number{len(graph.feeds)}")
            graph.feeds[fed], number = np.array(number, graph.type), fed
        return graph.add(draw(operations), *draw(st.permutations([name, number])))

    def pair(name: str, at: Coordinates) -> str:
        """A node with another coordinate for each, or with one that all batches, or all coordinates, have in common."""
        shape = [batches[-1], *rest[1:]]
        if at.axis is not None:
            shape.insert(at.axis, draw(st.sampled_from([1, at.length])))
        other = graph.fed(f"other{len(graph.feeds)}", *shape)
        if draw(st.booleans()):
            other = graph.add("Mul", other, draw(numbers))
        return graph.add(draw(operations), *draw(st.permutations([name, other])))

    def change(at: Coordinates) -> Coordinates:
        what = draw(st.integers(0, 8))
        if what > 5:
            before = batches[-1]
            batches.append(draw(st.sampled_from([1, 2] if before == 1 else [1, before])))
            made = replace(at, values=[pair(name, at) for name in at.values])
            batches.append(max(before, batches[-1]))
            return made
        if what == 0:
            return replace(at, values=[graph.add("Identity", name) for name in at.values])
        if what in (1, 2):
            row = [] if at.axis is None else [at.length, *[1] * (r + 1 - at.axis)]
            return replace(at, values=[arithmetic(name, row) for name in at.values])
        if at.axis is None:
            axis = draw(st.integers(0, r + 1))
            rows = [graph.add("Unsqueeze", name, [axis]) for name in at.values]
            return Coordinates(
                [graph.add("Concat", *rows, axis=axis - (r + 2) * draw(st.integers(0, 1)))], axis, r
            )
        if len(at.values) > 1:
            return Coordinates([graph.add("Squeeze", name, [at.axis]) for name in at.values], None)
        (name,) = at.values
        if what == 3:
            to = draw(st.integers(0, r + 1))
            return Coordinates(
                [graph.add("Transpose", name, perm=moved(r + 2, at.axis, to))], to, at.length
            )
        chosen = [draw(st.integers(-at.length, at.length - 1)) for _ in range(r)]
        if what == 4:
            return Coordinates([graph.add("Gather", name, chosen, axis=at.axis)], at.axis, r)
        return Coordinates([graph.add("Gather", name, i, axis=at.axis) for i in chosen], None)

    if draw(st.booleans()):
        at = Coordinates([graph.fed(f"map{i}", *rest) for i in range(r)], None)
    else:
        axis, length = draw(st.integers(0, r + 1)), draw(st.integers(1, 4))
        at = Coordinates([graph.fed("coords", *rest[:axis], length, *rest[axis:])], axis, length)
    for _ in range(draw(st.integers(0, 6))):
        at = change(at)
    if at.axis is None:
        at = Coordinates([graph.add("Unsqueeze", name, [-1]) for name in at.values], r + 1)
    (grid,) = (
        at.values if len(at.values) == 1 else graph.add_all("Concat", *at.values, axis=at.axis)
    )
    if len(at.values) == 1 and at.length != r:
        grid = graph.add("Gather", grid, [i % at.length for i in range(r)], axis=at.axis)
    if at.axis != r + 1:
        grid = graph.add("Transpose", grid, perm=moved(r + 2, at.axis, r + 1))
    return graph, grid, (batches[-1], draw(st.integers(1, 3)), *(5, 4, 3)[:r])


@compiled
@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains(), st.sampled_from(ATTRIBUTES))
def test_any_chain(chain: tuple[Graph, str, Shape], attributes: Attributes) -> None:
    graph, grid, X = chain
    model = graph.sampled(
        grid, X, attributes if graph.type == "float32" else replace(attributes, mode="linear")
    )
    assert_identical(
        open_fused(model).run(None, graph.feeds)[0], two_ops(model).run(None, graph.feeds)[0]
    )
    pairs = sum(name.startswith("other") for name in graph.feeds)
    if (
        len(X) > 3 and pairs <= MAX_SOURCES - 3
    ):  # of one axis a grid and a plane are told apart by nothing
        patch_in_place(model, target=FusedOp())
        node = model.graph.node[-1]
        assert node.op_type == ("FusedGridSample" if graph.nodes else "GridSample")
        assert pairs or {*node.input[2:]} <= {
            *graph.feeds
        }  # nothing is left between the node and what is fed


def answer_of(
    session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]
) -> np.ndarray | None:
    """None where the run is refused."""
    try:
        return session.run(None, feeds)[0]
    except Exception as error:
        assume("re-use buffer" not in str(error))  # which onnxruntime plans by symbols
        return None


def called_twice(model: onnx.ModelProto) -> onnx.ModelProto:
    """The whole graph as a function, of the model's inputs and of others, called ``…_2``; both answers in one row."""
    inputs = [value.name for value in model.graph.input]
    first, second = (", ".join(name + end for name in inputs) for end in ("", "_2"))
    calls = parsed(f"""calls () => (float[n] both) {{
        row = Constant <value_ints = [-1]> () Y = local.chain ({first}) Y_2 = local.chain ({second})
        row_1 = Reshape (Y, row) row_2 = Reshape (Y_2, row) both = Concat <axis = 0> (row_1, row_2) }}""")
    calls.functions.append(function_of(model, "local", "chain"))
    calls.graph.input.extend([*model.graph.input, *model.graph.input])
    for other in calls.graph.input[len(inputs) :]:
        other.name += "_2"
        for dim in other.type.tensor_type.shape.dim:
            dim.ClearField("value")
    return calls


@compiled
@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains(), st.data())
def test_any_chain_of_other_lengths_than_the_model_says(
    chain: tuple[Graph, str, Shape], data: st.DataObject
) -> None:
    """By symbols, left-over value_info, or functions called with several shapes: fused as apart, or neither runs."""
    graph, grid, X = chain
    model = graph.sampled(grid, X, replace(ATTRIBUTES[0], mode="linear"), loose=True)
    for value in shape_inference.infer_shapes(graph.sampled(grid, X)).graph.value_info:
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
        model, feeds["X_2"] = called_twice(model), np.concatenate([feeds["X"]] * 2, axis=1)
        for name in [*graph.feeds][:-1]:  # the last is X
            feeds[f"{name}_2"] = (
                graph.feeds[name].take([0], 0) if data.draw(st.booleans()) else graph.feeds[name]
            )
    expected, answer = (
        answer_of(session, feeds) for session in (two_ops(model), open_fused(model))
    )
    assert (expected is None) == (answer is None)
    if expected is not None:
        assert_identical(answer, expected)


def moved_back(graph: Graph) -> str:
    """Three coordinates of three values each: of so many none is made."""
    rows = []
    for i in range(3):
        three = [
            graph.add("Neg", graph.add("Gather", name, [i], axis=4))
            for name in ("coords", "y", "z")
        ]
        rows.append(graph.add("Add", graph.add("Add", *three[:2]), three[2]))
    return graph.add("Concat", *rows, axis=4)


def moved_sum(graph: Graph) -> str:
    return graph.add("Transpose", graph.add("Add", "coords", "y"), perm=[1, 2, 3, 0])


def ends(graph: Graph) -> str:
    """The last coordinate and the third but one, as they are called from behind."""
    rows = [
        graph.add("Unsqueeze", graph.add("Gather", "coords", i, axis=-1), [3]) for i in (-1, -3)
    ]
    return graph.add("Concat", *rows, axis=3)


def one_by_another(graph: Graph) -> str:
    x, y = graph.add_all("Split", "coords", outputs=2, axis=3, num_outputs=2)
    return graph.add("Concat", graph.add("Mul", x, y), y, axis=3)


FOUR: dict[str, Shape] = {"coords": (2, 3, 5, 4)}
#: What is fed besides coordinates of shape (2, 3, 4, 2), or instead of them; how a grid is made of these; and how many
#: nodes are fused: of grids that are right, and of others.
GRIDS: list[tuple[dict[str, Shape], Build, int]] = [
    # Coordinates are chosen from either end, in steps, and of several values.
    (FOUR, ends, 5),
    (
        FOUR,
        lambda g: g.add(
            "Concat", *(g.add("Gather", "coords", [i], axis=3) for i in (-4, 2)), axis=3
        ),
        3,
    ),
    (FOUR, lambda g: g.add("Slice", "coords", [1], [4], [-1], [2]), 1),
    (FOUR, lambda g: g.add("Slice", "coords", [-3], [-1], [3]), 1),
    (
        {"y": (2, 3, 4, 2)},
        lambda g: g.add(
            "Concat", *(g.add("Gather", x, [1], axis=3) for x in ("coords", "y")), axis=3
        ),
        3,
    ),
    # The last of a part that has both.
    (
        {"y": (2, 3, 4, 1)},
        lambda g: g.add("Gather", g.add("Concat", "y", "coords", axis=3), [2, 1], axis=3),
        2,
    ),
    # A coordinate may be the number that another meets: where there is one position, no shape tells them apart.
    ({"coords": (1, 1, 1, 2)}, one_by_another, 2),
    # What is too long is fused in part.
    ({}, lambda g: g.apply("coords", *[("Mul", 1.01)] * (MAX_STEPS + 3)), MAX_STEPS),
]
MEETINGS: list[tuple[dict[str, Shape], Build, int]] = [
    ({}, lambda g: g.add("Mul", "coords", "coords"), 1),
    *(
        ({"y": y}, lambda g: g.add("Add", "coords", "y"), 1)
        for y in ((2, 3, 4, 2), (1, 3, 4, 2), (2, 3, 4, 1))
    ),
    ({"coords": (2, 2, 3, 4), "y": (2, 1, 3, 4)}, moved_sum, 2),
    # What is broadcast over more than batches and coordinates is left alone.
    *(({"y": y}, lambda g: g.add("Add", "coords", "y"), 0) for y in ((2, 1, 4, 2), (3, 4, 2))),
    # Of two values that are made of two each, one is followed back, whichever it is.
    ({"y": (2, 3, 4, 2)}, lambda g: g.add("Add", "coords", g.add("Add", "y", "coords")), 2),
    ({"y": (2, 3, 4, 2)}, lambda g: g.add("Add", g.add("Add", "y", "coords"), "coords"), 2),
    ({"y": (2, 3, 4, 2)}, lambda g: g.add("Mul", *(g.add("Add", "coords", "y") for _ in "ab")), 2),
    ({"coords": (2, 3, 4, 2, 3), "y": (2, 3, 4, 2, 3), "z": (2, 3, 4, 2, 3)}, moved_back, 1),
    # What changes otherwise than by a number for each coordinate, or in half precision, is left alone too.
    ({}, lambda g: g.add("Mul", "coords", 2), 1),
    ({}, lambda g: g.add("Mul", "coords", [[1, 2]]), 1),
    ({}, lambda g: g.add("Mul", "coords", np.ones((3, 4, 2))), 0),
    ({}, lambda g: g.add("Mul", "coords", np.ones((1, 1, 1, 1, 2))), 0),
    (
        {"coords": (2, 3, 4, 5, 3)},
        lambda g: g.add("Mul", "coords", [1, 2]),
        0,
    ),  # which nobody broadcasts
    ({}, lambda g: g.add("Mul", g.add("Cast", "coords", to=10), g.constant(2, "float16")), 0),
    ({"coords": (1, 3, 4, 3)}, lambda g: g.add("Mul", "coords", 2), 0),
    ({}, lambda g: g.add("Neg", "coords"), 0),
    ({}, lambda g: g.add("Transpose", "coords", perm=[0, 2, 1, 3]), 0),
    ({"coords": (2, 4, 3, 1)}, lambda g: g.add("Transpose", "coords"), 0),
    ({}, lambda g: g.add("Gather", "coords", [1, 0, 2], axis=1), 0),
    ({}, lambda g: g.add("Concat", "coords", "coords", axis=1), 0),
    ({"coords": (3, 4, 2)}, lambda g: g.add("Unsqueeze", "coords", [0]), 0),
    # What is chosen, or how, only a run knows; several axes that come and go.
    ({"i": (2,)}, lambda g: g.add("Gather", "coords", g.add("Cast", "i", to=7), axis=3), 0),
    ({"i": (1,)}, lambda g: g.add("Slice", "coords", g.add("Cast", "i", to=7), [9], [3]), 0),
    ({"i": (1,)}, lambda g: g.add("Slice", "coords", [0], [9], [3], g.add("Cast", "i", to=7)), 0),
    ({"i": (1,)}, lambda g: g.add("Slice", "coords", [0], [9], g.add("Cast", "i", to=7)), 0),
    (
        {"i": (1,)},
        lambda g: g.add("Squeeze", g.add("Unsqueeze", "coords", [0]), g.add("Cast", "i", to=7)),
        0,
    ),
    ({}, lambda g: g.add("Slice", "coords", [0, 0], [2, 2], [3, 0]), 0),
    ({}, lambda g: g.add("Squeeze", g.add("Unsqueeze", "coords", [0, 1]), [0, 1]), 0),
    (
        {},
        lambda g: g.add(
            "Unsqueeze", g.add("Squeeze", g.add("Unsqueeze", "coords", [0, 1]), [0]), [0]
        ),
        0,
    ),
    # Steps that lead nowhere, or back.
    ({}, lambda g: g.add("Slice", "coords", [1], [-9], [3], [0]), 0),
    ({}, lambda g: g.add("Slice", "coords", [1], [-9], [3], [-1]), 0),
]


@compiled
def test_coordinates_are_chosen_in_any_way() -> None:
    for fed, build, nodes in GRIDS:
        assert_fused(*made(fed, build), nodes)


def test_what_is_fused_of_coordinates_that_meet_others_or_change_otherwise() -> None:
    for fed, build, nodes in MEETINGS:
        model = made(fed, build)[1]
        with about((fed, [node.op_type for node in model.graph.node])):
            assert found(model) == [nodes]


def test_no_grid_is_made_of_more_values_than_an_op_takes() -> None:
    for r in (MAX_SOURCES, MAX_SOURCES + 1):
        graph = Graph()
        maps = [graph.add("Unsqueeze", graph.fed(f"map{i}", 1, *[2] * r), [-1]) for i in range(r)]
        model = graph.sampled(graph.add("Concat", *maps, axis=-1), (1, 1, *[3] * r))
        assert found(model) == [r + 1 if r == MAX_SOURCES else 0]
    assert REQUEST["inputs"].shape == (2 + MAX_SOURCES,)


def test_a_grid_that_comes_from_itself_is_left_alone() -> None:
    graph = Graph()
    for one, other in (("a", "b"), ("b", "a")):
        graph.nodes.append(helper.make_node("Identity", [one], [other]))
    model = graph.sampled("a", (1, 1, 5, 6))
    model.graph.value_info.extend(
        helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 3, 4, 2]) for x in "ab"
    )
    assert found(model) == [0]


@compiled
def test_a_record_and_a_session_say_so_and_nodes_can_decline_it() -> None:
    graph, one = Graph(), Graph()
    model = graph.sampled(remap(graph, 1, 3, 4), (1, 1, 5, 6))
    (record,) = ogs.inspect_model(model)
    assert record.fused == tuple(node.name for node in graph.nodes)
    assert ": compiled op" in (said := str(open_fused(model).replaced[0]))
    assert said.endswith(" (fused with the 9 nodes that compute its grid)")
    declined = ogs.InferenceSession(model, quiet_options(), nodes=lambda record: not record.fused)
    assert [(each.runs_on, each.fused) for each in declined.replaced] == [("onnxruntime", ())]
    session = open_fused(one.sampled(one_for_both(one, 1, 3, 4), (1, 1, 5, 6)))
    assert str(session.replaced[0]).endswith(" (fused with the node that computes its grid)")


@compiled
def test_what_somebody_else_reads_is_made_as_before() -> None:
    graph = Graph()
    model = graph.sampled(flow(graph, 1, 3, 4), (1, 1, 5, 6))
    assert found(model) == [8]
    # The grid, a coordinate in the middle of its way, and the one that both come from.
    for name, left in ((model.graph.node[-1].input[1], 0), ("Div2_0", 5), ("Split0_1", 7)):
        for each in readers(model, name):
            assert found(each)[0] == left, name
        assert_fused(graph, readers(model, name)[0], left)


def test_no_constant_is_left_that_nobody_reads() -> None:
    """Onnxruntime would warn of each."""
    graph = Graph()
    graph.nodes.append(helper.make_node("Constant", [], ["two"], value_float=2.0))
    grid = graph.apply(graph.fed("coords", 1, 3, 4, 2), ("Mul", "two"), ("Sub", [1, 2]))
    model = graph.sampled(grid, (1, 1, 5, 6))
    (record,), _ = patch_in_place(model, target=FusedOp())
    assert record.fused == ("Mul1", "Sub2")
    assert [node.op_type for node in model.graph.node] == ["Constant", "FusedGridSample"]
    assert not model.graph.initializer


@compiled
def test_what_is_sampled_may_be_what_the_grid_is_made_of() -> None:
    for sampled, nodes in (("Mul0_0", 2), ("Identity2_0", 0)):
        graph = Graph()
        scaled = graph.add("Mul", graph.fed("coords", 1, 2, 2, 2), 0.1)
        model = graph.sampled(
            graph.add("Identity", graph.add("Transpose", scaled, perm=[0, 2, 3, 1])), (1, 2, 2, 2)
        )
        model.graph.node[-1].input[0] = sampled
        del model.graph.input[0], graph.feeds["X"]
        assert_fused(graph, model, nodes)


@compiled
def test_inputs_that_have_defaults_stay() -> None:
    """Models of the first IR versions list their initializers among their inputs."""
    graph = Graph()
    model = graph.sampled(planar(graph, 1, 3, 4), (1, 1, 5, 6))
    for constant in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(constant.name, constant.data_type, constant.dims)
        )
    model.ir_version = 3
    session = assert_fused(graph, model, 6)
    assert [each.name for each in session.get_inputs()] == [
        each.name for each in two_ops(model).get_inputs()
    ]


@compiled
def test_shapes_that_do_not_go_together_are_told() -> None:
    graph, unknown, row = (
        Graph(),
        onnx.ModelProto(),
        "expected shape (N, D1_out, 1), as X of shape (1, 1, 5) has",
    )
    model = graph.sampled(remap(graph, 1, 3, 4), (1, 1, 5, 6), loose=True)
    unknown.CopyFrom(model)
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    made = "made of 'map_y' of shape (1, 4, 4), expected shape (N, D1_out, D2_out), as what else it is made of"
    two = "of shape (1, 3, 4, 2), expected N = 2 first, as X is of shape (2, 1, 5, 6)"
    for each, name, shape, said in (
        (model, "map_y", (1, 4, 4), made),
        (model, "X", (2, 1, 5, 6), two),
        (unknown, "X", (1, 1, 5), f"of shape (1, 3, 4, 2), {row} 1 spatial axis"),
    ):
        session, wrong = open_fused(each), graph.feeds | {name: np.zeros(shape, np.float32)}
        assert str(refusal(session.run, None, wrong)) == f"GridSample node 'sample': grid is {said}"
        assert session.run(None, graph.feeds)[0].shape == (1, 1, 3, 4)


@compiled
def test_what_a_model_guesses_decides_nothing() -> None:
    """Symbols, and what it says of values on the way, are no promise: a run may be of other lengths."""
    graph = Graph()
    moved = graph.add("Add", graph.fed("base", 3, 4, 5, 2), graph.fed("flow", 3, 4, 5, 2))
    model = graph.sampled(graph.add("Mul", moved, 0.5), (3, 1, 5, 6))
    for value in model.graph.input:
        for symbol, dim in zip(
            "NHWC" if value.name == "X" else "Nhw", value.type.tensor_type.shape.dim, strict=False
        ):
            dim.dim_param = symbol
    model.graph.value_info.append(
        helper.make_tensor_value_info(moved, TensorProto.FLOAT, [1, 4, 5, 2])
    )
    session, native = open_fused(model), open_native(model)
    assert fused(session) == [2]
    rng = np.random.default_rng(0)
    for base, flow in product([(3, 4, 5), (1, 4, 5), (3, 1, 5), (1, 1, 1), (3, 4, 1)], repeat=2):
        graph.feeds |= {"base": rng.normal(size=(*base, 2)), "flow": rng.normal(size=(*flow, 2))}
        graph.feeds |= {name: graph.feeds[name].astype(np.float32) for name in ("base", "flow")}
        graph.feeds["X"] = rng.normal(size=(max(base[0], flow[0]), 1, 5, 6)).astype(np.float32)
        np.testing.assert_allclose(
            *[each.run(None, graph.feeds)[0] for each in (session, native)], atol=1e-5
        )
    graph.feeds["flow"] = np.zeros((3, 2, 5, 2), np.float32)
    feeds = graph.feeds | {"base": np.zeros((3, 4, 5, 2), np.float32)}
    assert refusal(session.run, None, feeds).found.startswith("made of")


@compiled
def test_coordinates_of_two_shapes_are_put_together_by_nobody() -> None:
    """Where a flow would broadcast what Concat refuses, Concat is left where it is."""
    graph = Graph()
    parts = [graph.fed(name, 1, 4, 5, 1) for name in "xy"]
    moved = graph.add("Add", graph.add("Concat", *parts, axis=3), graph.fed("flow", 3, 4, 5, 2))
    model = graph.sampled(moved, (3, 1, 5, 6))
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = value.name
    session = open_fused(model)
    assert fused(session) == [1]
    session.run(None, graph.feeds)
    with pytest.raises(Exception, match="Concat"):
        session.run(None, graph.feeds | {"x": np.zeros((3, 4, 5, 1), np.float32)})


@pytest.mark.parametrize("chain", [planar, displaced])
def test_in_functions_and_inner_graphs(chain: Chain) -> None:
    """Onnxruntime 1.17 needs to be told the type of an op of several values, which a function cannot."""
    graph = Graph()
    inner = graph.sampled(chain(graph, 2, 5, 6), (2, 3, 9, 8))
    call = parsed("g () => (float[] Y) { Y = mine.Warp () }")
    call.graph.node[0].input.extend(value.name for value in inner.graph.input)
    call.functions.append(function_of(inner, "mine", "Warp"))
    branches = "then_branch = t () => (float[] Y) { }, else_branch = e () => (float[] Y) { }"
    choose = parsed(
        f"g () => (float[] Y) {{ yes = Constant <value = bool {{1}}> () Y = If (yes) <{branches}> }}"
    )
    for branch in choose.graph.node[1].attribute:
        branch.g.node.extend(call.functions[0].node)
    for model, count in ((call, 1), (choose, 2)):
        model.graph.input.extend(inner.graph.input)
        assert_fused(graph, model, *[CHAINS[chain][0]] * count)


def written(coordinates: object, sources: list[str]) -> onnx.ModelProto:
    """The op as somebody may write it."""
    model = parsed("""g (float[1,1,5,6] X, float[1,3,4,2] coords) => (float[N,C,h,w] Y) <float[1] numbers = {0}> {
        Y = ort_gridsample.compiled.FusedGridSample (X, numbers, coords) }""")
    (node,), said = model.graph.node, "\n".join(map(repr, sources))
    node.name = "sample"
    node.attribute.append(
        helper.make_attribute("coordinates", coordinates, attr_type=onnx.AttributeProto.INTS)
    )
    node.attribute.append(helper.make_attribute("sources", said))
    return model


def open_written(coordinates: object, sources: list[str]) -> onnxruntime.InferenceSession:
    model = written(coordinates, sources)
    return onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))


Y_ALONE = [0, 3, 1, 2]


#: What no session writes of the first coordinate beside a good second, with what computes operands; and of both.
NO_X = [
    *(
        [1, 3, 0, 2],
        [0, 3, 2, 2],
        [0, 9, 0, 2],
        [0, -2, 0, 2],
        [0, 3, 0, 2, 16],
        [0, 3, 0, 2, -1],
        [0, 3, 0],
    ),
    *([0, 3, 0, 2, 8], [0, 3, 0, 2, *[0] * (MAX_STEPS + 1)]),
]
OPERANDS = [
    ([0, 3, 0, 2, 8], [1, 3, 1, 2]),
    ([0, 3, 0, 2, 8], [*Y_ALONE, 8], Y_ALONE),
    ([0, 3, 0, 2], Y_ALONE),
]
NO_COORDINATES = [
    programs.encode([x, Y_ALONE, *more], 2) for x, *more in (*([x] for x in NO_X), *OPERANDS)
]
NO_COORDINATES += [[], [0], [2, 1, 2], [-1, *Y_ALONE, 0], [1, *Y_ALONE, 3], [1, *Y_ALONE, -1]]


@compiled
def test_an_op_that_no_session_wrote_is_refused() -> None:
    for coordinates in NO_COORDINATES:
        with pytest.raises(Exception, match="initialization") as told:
            open_written(coordinates, ["coords"])
        sentence = f"GridSample node 'sample': coordinates is {format_shape(coordinates)}, expected what a session writes"
        assert str(told.value).endswith(sentence)
        with pytest.raises(
            ogs.GridSampleError, match=r"inputs or attributes is .*, expected what a session writes"
        ):
            ogs.patch_model(written(coordinates, ["coords"]), target="primitives")
    # And one that lacks what it reads says so.
    fed = {"X": np.ones((1, 1, 5, 6), np.float32), "coords": np.zeros((1, 3, 4, 2), np.float32)}
    x = [0, 3, 0, 2, 0]
    assert open_written(programs.encode([x, Y_ALONE], 2), ["coords"]).run(None, fed)[0].shape == (
        1,
        1,
        3,
        4,
    )
    for y, sources in (([1, 3, 1, 2], ["coords", "more"]), ([*Y_ALONE, 0], ["coords"])):
        expected = f"grid is made of a value that is left out, expected {len(sources)} values and their numbers$"
        with pytest.raises(Exception, match=expected):
            open_written(programs.encode([x, y], 2), sources).run(None, fed)
