"""Wrong operands of deformable attention, in every way: errors name the node and the operand."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ort_gridsample as ogs
from support.attention_forms import (
    BEVFORMER,
    MICROSOFT,
    MMCV,
    OWN,
    TENSORRT,
    Node,
    form_of,
    own,
    split_of_levels,
)
from support.attention_models import Arrays, form, form_feeds, op_model
from support.compare import refusal
from support.models import loose, parsed
from support.paths import open_native, quiet_options, running_on
from support.ways import WAYS, way_param

Shape = tuple[int, ...]
SESSIONS = ("python", "compiled")
LOWERED = ("ai.onnx", "primitives", "functions")
FILES = ("patched file", "compiled file")
#: The ways that run every wrong shape by default.
QUICK = (*SESSIONS, "ai.onnx", "provider")
every_session = pytest.mark.parametrize("way", [way_param(way=way) for way in SESSIONS])

# The function and the op


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


#: Arguments of the function that are not wrong.
ARGUMENTS: Arrays = {
    "value": zeros(2, 47, 3, 4),
    "spatial_shapes": np.array([[5, 7], [3, 4]]),
    "sampling_locations": zeros(2, 5, 3, 2, 4, 2),
    "attention_weights": zeros(2, 5, 3, 2, 4),
}
#: The feeds of the op that are not wrong, with the points of all levels in one axis.
OP_FEEDS: Arrays = {
    "value": zeros(2, 47, 3, 4),
    "levels": np.array([[4, 5, 7], [4, 3, 4]]),
    "at": zeros(2, 5, 3, 8, 2),
    "by": zeros(2, 5, 3, 8),
}


class Mistake(NamedTuple):
    """A wrong argument of ``deformable_attention``, and the parts of its error."""

    argument: str
    value: np.ndarray
    found: str
    expected: str


PIXELS = "47 pixels, the length S of value, which is of shape (B, S, H, D) = (2, 47, 3, 4)"
LOCATIONS = "shape (B, Q, H, L, P, r), as value (B, S, H, D) is of shape (2, 47, 3, 4) and L is 2"
WEIGHTS = "shape (2, 5, 3, 2, 4), as sampling_locations is of shape (2, 5, 3, 2, 4, 2)"
SPATIAL_SHAPES = "shape (L, r), with at least one spatial axis"
ANY_FLOAT = "one of float32, float64, float16, bfloat16"
TYPE_MISTAKES = {
    "weights of another type": Mistake(
        "attention_weights", np.zeros((2, 5, 3, 2, 4)), "of type float64", "one of float32"
    ),
    "spatial shapes of floats": Mistake(
        "spatial_shapes", np.ones((2, 2)), "of type float64", "integers"
    ),
    "value of integers": Mistake("value", np.zeros((2, 47, 3, 4), int), "of type int64", ANY_FLOAT),
    "locations of integers": Mistake(
        "sampling_locations", np.zeros((2, 5, 3, 2, 4, 2), int), "of type int64", ANY_FLOAT
    ),
    "lengths beyond int64": Mistake(
        "spatial_shapes",
        np.array([[1 << 63, 1]], np.uint64),
        "a length of 9223372036854775808",
        "lengths below 2**63",
    ),
}
SHAPE_MISTAKES = {
    "value of three axes": Mistake(
        "value", zeros(47, 3, 4), "of shape (47, 3, 4)", "shape (B, S, H, D)"
    ),
    "fewer pixels": Mistake(
        "spatial_shapes", np.array([[5, 7], [3, 3]]), "of 44 pixels in all levels together", PIXELS
    ),
    "pixels beyond 32 bits": Mistake(
        "spatial_shapes",
        np.array([[65536, 65536], [3, 3]]),
        "of 4294967305 pixels in all levels together",
        PIXELS,
    ),
    "nearly as many pixels as compiled ops write": Mistake(
        "spatial_shapes",
        np.array([[1 << 30, 1 << 30], [3, 3]]),
        "of 1152921504606846985 pixels in all levels together",
        PIXELS,
    ),
    "an empty level of huge lengths": Mistake(
        "spatial_shapes",
        np.array([[1 << 62, 0], [3, 3]]),
        "of 9 pixels in all levels together",
        PIXELS,
    ),
    "spatial shapes of one axis": Mistake(
        "spatial_shapes", np.array([5, 7]), "of shape (2)", SPATIAL_SHAPES
    ),
    "negative lengths": Mistake(
        "spatial_shapes",
        np.array([[5, 7], [-3, -4]]),
        "a negative length",
        "lengths of at least 0",
    ),
    "locations of seven axes": Mistake(
        "sampling_locations",
        zeros(2, 5, 3, 8, 2, 4, 2),
        "of shape (2, 5, 3, 8, 2, 4, 2)",
        LOCATIONS,
    ),
    "locations of seven axes with as many points": Mistake(
        "sampling_locations",
        zeros(2, 5, 3, 1, 2, 4, 2),
        "of shape (2, 5, 3, 1, 2, 4, 2)",
        LOCATIONS,
    ),
    "three coordinates": Mistake(
        "sampling_locations", zeros(2, 5, 3, 2, 4, 3), "of shape (2, 5, 3, 2, 4, 3)", LOCATIONS
    ),
    "more heads of weights": Mistake(
        "attention_weights", zeros(2, 5, 4, 2, 4), "of shape (2, 5, 4, 2, 4)", WEIGHTS
    ),
    "fewer queries of weights": Mistake(
        "attention_weights", zeros(2, 4, 3, 2, 4), "of shape (2, 4, 3, 2, 4)", WEIGHTS
    ),
    "weights of three axes": Mistake(
        "attention_weights", zeros(2, 5, 3), "of shape (2, 5, 3)", WEIGHTS
    ),
}
#: Shapes that the op accepts.
OP_SHAPES = {
    "weights with the points of all levels": Mistake(
        "attention_weights", zeros(2, 5, 3, 8), "of shape (2, 5, 3, 8)", WEIGHTS
    ),
    "weights of one query": Mistake(
        "attention_weights", zeros(2, 1, 3, 8), "of shape (2, 1, 3, 8)", WEIGHTS
    ),
    "locations with the points of all levels": Mistake(
        "sampling_locations", zeros(2, 5, 3, 8, 2), "of shape (2, 5, 3, 8, 2)", LOCATIONS
    ),
}
MISTAKES = TYPE_MISTAKES | SHAPE_MISTAKES | OP_SHAPES


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_function_of_a_wrong_argument_is_refused(mistake: Mistake) -> None:
    arguments = ARGUMENTS | {mistake.argument: mistake.value}
    error = refusal(ogs.deformable_attention, **arguments)
    assert error.where == "deformable_attention"
    assert (error.argument, error.found) == (mistake.argument, mistake.found)
    assert error.expected == mistake.expected


#: The name of the guard of a Python op in a file: onnxruntime prints it.
GUARD = "ort_gridsample rejected the input of attention (ort_gridsample.InferenceSession says why)"


def op_session(way: str) -> ogs.InferenceSession:
    """Return a session of one attention whose levels are fed, on this kind of op."""
    model = op_model("float32", "float32", False)
    if way == "python":
        model = parsed("""
            g (float[] value, int64[] levels, float[] at, float[] by)
            => (float[] Y, int64[] guarded) {
                Y, status = ort_gridsample.DeformableAttention
                    <align_corners = 0, node = "attention", num_threads = 1>
                    (value, levels, at, by)
                guarded = GatherND (status, status) }""")
        node, guard = model.graph.node
        node.name = "attention"
        guard.name = GUARD
    with running_on(way):
        return ogs.InferenceSession(model, quiet_options())


# onnxruntime itself refuses inputs of other types.
@every_session
@pytest.mark.parametrize("mistake", SHAPE_MISTAKES.values(), ids=SHAPE_MISTAKES)
def test_op_of_wrong_shapes_has_the_error_of_the_function(mistake: Mistake, way: str) -> None:
    value, spatial_shapes, locations, weights = (
        ARGUMENTS | {mistake.argument: mistake.value}
    ).values()
    argument, found, expected = mistake.argument, mistake.found, mistake.expected
    if argument == "spatial_shapes":
        argument = "levels"
        found = found.replace("negative length", "negative length or number of points")
        expected = expected.replace("(L, r)", "(L, 1 + r)").replace("lengths", "numbers")
    levels = spatial_shapes
    if levels.ndim == 2:
        levels = np.insert(spatial_shapes, 0, 4, axis=1)  # four points on each level
    feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
    error = refusal(op_session(way).run, None, feeds)
    assert error.where == "DeformableAttention node 'attention'"
    assert (error.argument, error.found, error.expected) == (argument, found, expected)


#: Shapes of which each has the right number of points, and the argument in the error.
OP_MISTAKES: dict[str, tuple[Arrays, str, str]] = {
    "points of no level": (
        {
            "value": zeros(1, 0, 1, 1),
            "levels": np.zeros((0, 3), np.int64),
            "at": zeros(1, 1, 1, 0, 3, 2),
            "by": zeros(1, 1, 1, 0, 5),
        },
        "attention_weights",
        "of shape (1, 1, 1, 0, 5)",
    ),
    "locations of four axes": (
        {
            "value": zeros(1, 4, 2, 3),
            "levels": np.array([[1, 2, 2]]),
            "at": zeros(1, 5, 2, 2),
            "by": zeros(1, 5, 2, 1),
        },
        "sampling_locations",
        "of shape (1, 5, 2, 2)",
    ),
    "locations of seven axes": (
        {
            "value": zeros(1, 4, 2, 3),
            "levels": np.array([[1, 2, 2]]),
            "at": zeros(1, 5, 2, 1, 1, 1, 2),
            "by": zeros(1, 5, 2, 1),
        },
        "sampling_locations",
        "of shape (1, 5, 2, 1, 1, 1, 2)",
    ),
    "weights of six axes": (
        {
            "value": zeros(1, 2, 1, 1),
            "levels": np.array([[4, 1, 2]]),
            "at": zeros(1, 1, 1, 1, 4, 2),
            "by": zeros(1, 1, 1, 2, 1, 2),
        },
        "attention_weights",
        "of shape (1, 1, 1, 2, 1, 2)",
    ),
    "weights of seven axes": (
        {
            "value": zeros(1, 2, 1, 1),
            "levels": np.array([[4, 1, 2]]),
            "at": zeros(1, 1, 1, 4, 2),
            "by": zeros(1, 1, 1, 1, 1, 2, 2),
        },
        "attention_weights",
        "of shape (1, 1, 1, 1, 1, 2, 2)",
    ),
    "negative points of a level": (
        {
            "value": zeros(1, 2, 1, 1),
            "levels": np.array([[5, 1, 1], [-1, 1, 1]]),
            "at": zeros(1, 1, 1, 4, 2),
            "by": zeros(1, 1, 1, 4),
        },
        "levels",
        "a negative length or number of points",
    ),
}


@every_session
@pytest.mark.parametrize(("feeds", "argument", "found"), OP_MISTAKES.values(), ids=OP_MISTAKES)
def test_op_of_wrong_numbers_of_points_is_refused(
    feeds: Arrays, argument: str, found: str, way: str
) -> None:
    error = refusal(op_session(way).run, None, feeds)
    assert error.where == "DeformableAttention node 'attention'"
    assert (error.argument, error.found) == (argument, found)


def test_function_of_bfloat16_values_and_float32_locations_is_of_bfloat16() -> None:
    halves = {
        name: ARGUMENTS[name].astype(ml_dtypes.bfloat16) for name in ("value", "attention_weights")
    }
    assert ogs.deformable_attention(**ARGUMENTS | halves).dtype == ml_dtypes.bfloat16


# Nodes of other packages, and of this one

B, Q, H, L, P, D, N_PIXELS = 2, 5, 4, 2, 4, 3, 30
#: The input that is wrong -> its wrong shape. All have as many elements as some other right shape.
WRONG_LOCATED = [
    ("sampling_locations", (B, 1, H, L, P, 2)),
    ("sampling_locations", (B, Q, H, P, L, 2)),
    ("sampling_locations", (B, Q, H, L, P, 3)),
    ("sampling_locations", (1, Q, H, L, P, 2)),
    ("attention_weights", (B, 1, H, L, P)),
    ("attention_weights", (B, Q, H, P, L)),
    ("attention_weights", (B, Q, H, L, 1)),
    ("attention_weights", (B, H, Q, L, P)),
    ("attention_weights", (1, Q, H, L, P)),
    ("value", (B, N_PIXELS - 1, H, D)),
    ("value", (B, N_PIXELS, 1, D)),
]
WRONG_OFFSET = [
    ("reference_points", (B, 1, 1, 4)),
    ("reference_points", (1, Q, 1, 4)),
    ("sampling_offsets", (B, 1, H, L * P * 2)),
    ("sampling_offsets", (B, Q, H, L * P)),
    ("logits", (B, 1, H, L * P)),
    ("logits", (B, Q, 1, L * P)),
    ("value", (B, N_PIXELS - 1, H, D)),
]
WRONG = [
    *itertools.product((TENSORRT, MMCV, OWN), WRONG_LOCATED),
    *itertools.product((BEVFORMER[0],), WRONG_OFFSET),
]


@pytest.mark.parametrize(("op_type", "wrong"), [row for row in WRONG if row[0] != OWN])
def test_node_of_a_wrong_static_shape_is_refused_when_read(
    op_type: str, wrong: tuple[str, Shape]
) -> None:
    model = Node(op_type, wrong=wrong).model
    where = f"{op_type.split('.')[-1]} node 'attention'"
    for target in ("ai.onnx", "primitives", "ort_gridsample"):
        assert refusal(ogs.patch_model, model, target=target).where == where
    assert refusal(ogs.InferenceSession, model).where == where
    assert ogs.inspect_model(model)[0].error is not None


def shape_cells() -> list[Any]:
    """Return a parameter for each wrong shape that is fed, and each way."""
    return [
        way_param(op_type, wrong, shapes, way=way, marks=() if way in QUICK else [pytest.mark.slow])
        for op_type, wrong in WRONG
        for shapes in (("dynamic",) if op_type == OWN else ("dynamic", "fed"))
        for way in (*SESSIONS, *LOWERED, *FILES, "provider")
        if shapes == "dynamic" or way in (*SESSIONS, "primitives")
        if way != "provider" or op_type == MMCV
    ]


@pytest.mark.parametrize(("op_type", "wrong", "shapes", "way"), shape_cells())
def test_node_fed_a_wrong_shape_is_refused_in_every_way(
    op_type: str, wrong: tuple[str, Shape], shapes: str, way: str
) -> None:
    node = Node(op_type, shapes, wrong=wrong)
    session = WAYS[way](node.model)
    with pytest.raises(Exception, match=r"node 'attention': [a-z_]+ (is|of) ") as raised:
        session.run(None, node.feeds)
    if way in SESSIONS:
        assert isinstance(raised.value, ogs.GridSampleError)
    if way in LOWERED:
        assert "is of another shape, expected" in str(raised.value)


def test_lowered_file_in_a_session_of_this_package_raises_its_error() -> None:
    node = Node(MMCV, "dynamic", wrong=WRONG_LOCATED[0])
    patched = ogs.patch_model(node.model, target="ai.onnx")
    session = ogs.InferenceSession(patched, quiet_options())
    assert isinstance(refusal(session.run, None, node.feeds), ogs.GridSampleError)


# Nodes of this package

#: Shapes of a wrong rank with the right number of elements, and the argument in the error.
WRONG_OWN_RANKS = [
    ({"value": (B, N_PIXELS, H, D, 1)}, "value"),
    ({"attention_weights": (B, Q, H, L, P, 1)}, "attention_weights"),
    ({"attention_weights": (B, Q, H, 1, L, P)}, "attention_weights"),
    ({"sampling_locations": (B, Q, H, L, P, 1, 2)}, "sampling_locations"),
]
#: Shapes of a right rank that do not fit, and the argument in the error.
WRONG_OWN = [
    ({"attention_weights": (B, Q, H, P, L)}, "attention_weights"),
    ({"attention_weights": (B, 1, H, L, P)}, "attention_weights"),
    ({"attention_weights": (B, 2, H, L * P)}, "attention_weights"),
    ({"sampling_locations": (B, Q, H, P, L, 2)}, "sampling_locations"),
    (
        {"sampling_locations": (B, Q, H, P, L, 2), "attention_weights": (B, Q, H, P, L)},
        "sampling_locations",
    ),
    ({"value": (B, N_PIXELS + 10, H, D)}, "value"),
    ({"value": (B, N_PIXELS - 3, H, D)}, "value"),
]


def own_with(shapes: dict[str, Shape], **arguments: bool) -> tuple[onnx.ModelProto, Arrays]:
    """Return a model of this package's node, and feeds of which some have these shapes."""
    right = own()
    feeds = {
        name: np.resize(array, shapes.get(name, array.shape)) for name, array in right.feeds.items()
    }
    ranks = {name: array.ndim for name, array in feeds.items()}
    model = own(ranks=ranks if arguments.pop("are_ranks_known", False) else None, **arguments).model
    if len(model.graph.input) == 4:
        feeds["levels"] = Node(OWN).level_arrays["lengths"]
    return model, feeds


@pytest.mark.parametrize(("shapes", "argument"), WRONG_OWN_RANKS)
def test_own_node_of_a_wrong_rank_is_refused_when_patched(
    shapes: dict[str, Shape], argument: str
) -> None:
    model, _ = own_with(shapes, are_ranks_known=True)
    error = refusal(ogs.patch_model, model, target="primitives")
    assert (error.where, error.argument) == ("DeformableAttention node 'attention'", argument)


def as_written(model: onnx.ModelProto, way: str) -> onnx.ModelProto:
    """Return the node as in a file of a user, or as a session on these ops writes it."""
    written = onnx.ModelProto.FromString(model.SerializeToString())
    (node,) = written.graph.node
    if way == "compiled":
        node.domain = "ort_gridsample.compiled"
        written.opset_import[1].domain = "ort_gridsample.compiled"
    elif way == "python":
        node.output.append("status")
        hint = "ort_gridsample.InferenceSession says why"
        name = f"ort_gridsample rejected the input of DeformableAttention node 'attention' ({hint})"
        guard = helper.make_node("GatherND", ["status", "status"], ["guarded"], name)
        guard.metadata_props.add(
            key="ort_gridsample.helper_of", value="DeformableAttention node 'attention'"
        )
        written.graph.node.append(guard)
    return written


def own_cells() -> list[Any]:
    """Return shapes, the argument of the error, and properties of the model.

    Wrong ranks that are known are refused when the model is patched.
    """
    cells = []
    for (shapes, argument), is_known, is_constant in itertools.product(
        (*WRONG_OWN_RANKS, *WRONG_OWN), (False, True), (False, True)
    ):
        if not (is_known and (shapes, argument) in WRONG_OWN_RANKS):
            cells.append((shapes, argument, is_known, is_constant, "file"))
    for (shapes, argument), way in itertools.product(
        (*WRONG_OWN_RANKS, *WRONG_OWN), ("compiled", "python")
    ):
        cells.append((shapes, argument, False, True, way))
    return cells


@pytest.mark.parametrize(
    ("shapes", "argument", "are_ranks_known", "has_constant_levels", "writer"), own_cells()
)
def test_own_node_fed_shapes_that_do_not_fit_is_refused_by_lowered_model(
    shapes: dict[str, Shape],
    argument: str,
    are_ranks_known: bool,
    has_constant_levels: bool,
    writer: str,
) -> None:
    model, feeds = own_with(
        shapes, are_ranks_known=are_ranks_known, has_constant_levels=has_constant_levels
    )
    lowered = open_native(ogs.patch_model(as_written(model, writer), target="ai.onnx"))
    sentence = f"node 'attention': {argument} is of another shape, expected"
    with pytest.raises(Exception, match=sentence):
        lowered.run(None, feeds)


@pytest.mark.parametrize(
    ("n_batches", "points"), [(B, (0, 0)), (0, (1, 2))], ids=["no points", "no batches"]
)
@pytest.mark.parametrize("way", ["ai.onnx", "primitives"])
def test_own_node_fed_points_that_no_level_has_is_refused_by_lowered_model(
    way: str, n_batches: int, points: tuple[int, ...]
) -> None:
    """The output has no elements, or no level is sampled, so that no Reshape fails."""
    model = own().model
    (levels,) = model.graph.initializer
    lengths = Node(OWN).level_arrays["lengths"][:, 1:]
    levels.CopyFrom(numpy_helper.from_array(np.column_stack([points, lengths]), "levels"))
    lowered = WAYS[way](model)

    def feeds(n_points: int) -> Arrays:
        return {
            "value": np.ones((n_batches, N_PIXELS, H, D), np.float32),
            "sampling_locations": np.ones((n_batches, Q, H, n_points, 2), np.float32),
            "attention_weights": np.ones((n_batches, Q, H, n_points), np.float32),
        }

    (output,) = lowered.run(None, feeds(sum(points)))
    assert output.shape == (n_batches, Q, H * D)
    sentence = "node 'attention': sampling_locations is of another shape, expected"
    with pytest.raises(Exception, match=sentence):
        lowered.run(None, feeds(sum(points) + 2))


def test_own_node_fed_weights_of_one_axis_is_refused_by_lowered_model() -> None:
    """The level has a single point, and so the number of elements fits."""
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
        g (float[b,6,h,d] v, float[] l, float[] w) => (float[] Y) <int64[1,3] t = {{1, 2, 3}}>
        {{ Y = {OWN} (v, t, l, w) }}""")
    for value in model.graph.input[1:]:
        value.type.tensor_type.ClearField("shape")
    lowered = open_native(ogs.patch_model(model, target="ai.onnx"))
    shapes = {"v": (1, 6, 2, 3), "l": (1, 5, 2, 1, 2), "w": (1, 5, 2)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with pytest.raises(Exception, match="attention_weights is of another shape, expected"):
        lowered.run(None, feeds)


def own_levels(levels: np.ndarray | None) -> onnx.ModelProto:
    """Return a node with constant levels, or with an input of levels if they are None."""
    model = Node(OWN).model
    del model.graph.initializer[:]
    if levels is None:
        info = helper.make_tensor_value_info("lengths", TensorProto.INT64, [2, 3])
        model.graph.input.append(info)
    else:
        model.graph.initializer.append(numpy_helper.from_array(levels, "lengths"))
    return model


TWO_LEVELS = np.array([[4, 4, 6], [4, 2, 3]])
#: Levels of a node, what the error finds, and the start of what it expects.
WRONG_LEVELS = {
    "fed": (None, "computed", ""),
    "one axis": (TWO_LEVELS[0], "of shape (3)", "a constant of shape (L"),
    "no length": (TWO_LEVELS[:, :1], "of shape (2, 1)", "a constant of shape (L"),
    "pixels without levels": (TWO_LEVELS[:0], "of 0 pixels in all levels together", ""),
}


@pytest.mark.parametrize(("levels", "found", "expected"), WRONG_LEVELS.values(), ids=WRONG_LEVELS)
def test_session_of_wrong_levels_is_refused(
    levels: np.ndarray | None, found: str, expected: str
) -> None:
    error = refusal(ogs.InferenceSession, own_levels(levels))
    assert (error.argument, error.found) == ("levels", found)
    assert error.expected.startswith(expected)


def test_own_node_of_a_value_of_one_axis_is_refused() -> None:
    model = Node(OWN, "dynamic").model
    value, locations, _ = model.graph.input
    value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    value.type.tensor_type.shape.dim.add(dim_value=5)
    locations.type.tensor_type.ClearField("shape")
    error = refusal(ogs.patch_model, model, target="primitives")
    assert (error.argument, error.found) == ("value", "of shape (5)")


# Levels of nodes of other packages


@every_session
def test_node_fed_other_starts_is_refused(way: str) -> None:
    """An op of this package reads no starts."""
    node = Node(MMCV, "fed")
    feeds = node.feeds | {"starts": np.array([6, 0])}
    error = refusal(WAYS[way](node.model).run, None, feeds)
    assert error.where == "MMCVMultiScaleDeformableAttention node 'attention'"
    assert error.argument == "level_start_index"


#: Wrong lengths that are fed, and a part of the error.
WRONG_LENGTHS = [
    ([[4], [2]], "spatial_shapes is of shape (2, 1), expected shape (L, 2)"),
    ([[4, 6], [-2, 3]], "contains a negative length"),
]


@every_session
def test_node_fed_negative_lengths_is_refused(way: str) -> None:
    node = Node(MMCV, "fed")
    feeds = node.feeds | {"lengths": np.array([[4, 6], [-2, 3]])}
    error = refusal(WAYS[way](node.model).run, None, feeds)
    assert error.where == "MMCVMultiScaleDeformableAttention node 'attention'"
    assert error.argument == "spatial_shapes"


@pytest.mark.parametrize("way", [way_param(way="provider")])
@pytest.mark.parametrize(("lengths", "sentence"), WRONG_LENGTHS)
def test_node_fed_wrong_lengths_is_refused_by_the_provider(
    lengths: list[list[int]], sentence: str, way: str
) -> None:
    node = Node(MMCV, "fed")
    feeds = node.feeds | {"lengths": np.array(lengths)}
    with pytest.raises(Exception, match=r"node 'attention'") as raised:
        WAYS[way](loose(node.model)).run(None, feeds)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("way", [way_param(way="provider")])
def test_node_fed_other_starts_is_refused_by_the_provider(way: str) -> None:
    node = Node(MMCV, "fed")
    feeds = node.feeds | {"starts": np.array([0, 19])}
    sentence = "level_start_index is inconsistent with spatial_shapes, expected the first pixel"
    with pytest.raises(Exception, match=sentence):
        WAYS[way](node.model).run(None, feeds)


@every_session
def test_node_fed_two_starts_for_one_level_is_refused(way: str) -> None:
    node = Node(MMCV, "fed", lengths=((4, 6),))
    model = node.model
    (starts,) = (value for value in model.graph.input if value.name == "starts")
    starts.type.tensor_type.shape.dim[0].dim_param = "levels"
    session = WAYS[way](model)
    session.run(None, node.feeds)
    error = refusal(session.run, None, node.feeds | {"starts": np.array([0, 0])})
    assert (error.where, error.argument) == (
        "MMCVMultiScaleDeformableAttention node 'attention'",
        "level_start_index",
    )


def test_node_of_the_draft_is_refused() -> None:
    """The draft of onnxruntime's pull request 20184 has reference points as third input."""
    model = Node(MICROSOFT).model
    (starts,) = (tensor for tensor in model.graph.initializer if tensor.name == "starts")
    starts.CopyFrom(numpy_helper.from_array(np.zeros(2, np.float32), "starts"))
    error = refusal(ogs.InferenceSession, model)
    assert (error.argument, error.found) == ("level_start_index", "of type float32")
    assert "pull request 20184" in error.expected


def test_node_of_three_axes_is_refused() -> None:
    error = refusal(ogs.InferenceSession, Node(MMCV, lengths=((2, 3, 4), (1, 2, 3))).model)
    assert (error.argument, error.found) == ("spatial_shapes", "of shape (2, 3)")


@pytest.mark.parametrize("target", ["ai.onnx", "tensorrt-plugins", "compiled"])
def test_scalar_spatial_shapes_are_refused(target: Any) -> None:
    model = Node(MMCV).model
    (lengths,) = (tensor for tensor in model.graph.initializer if tensor.name == "lengths")
    lengths.CopyFrom(numpy_helper.from_array(np.array(16), "lengths"))
    error = refusal(ogs.patch_model, model, target=target)
    assert (error.argument, error.found) == ("spatial_shapes", "of shape ()")


def test_bevformer_node_without_levels_is_refused() -> None:
    model = Node(BEVFORMER[0], "fed", lengths=()).model
    error = refusal(ogs.patch_model, model, target="primitives")
    assert error.argument == "attention_weights"
    assert error.expected == "a last axis of L·P points, as L is 0"


@every_session
def test_bevformer_node_fed_fewer_points_than_levels_is_refused(way: str) -> None:
    node = Node(BEVFORMER[0], "dynamic")
    feeds = node.feeds | {"sampling_offsets": zeros(B, Q, H, 2), "logits": zeros(B, Q, H, 1)}
    with pytest.raises(Exception, match=r"cannot be reshaped|attention"):
        WAYS[way](node.model).run(None, feeds)


# Plugins


@pytest.fixture
def unknown_levels() -> onnx.ModelProto:
    """A plugin whose number of levels is unknown."""
    model = Node(TENSORRT, "fed").model
    (lengths,) = (value for value in model.graph.input if value.name == "lengths")
    del lengths.type.tensor_type.shape.dim[:]
    return model


def test_session_of_a_plugin_with_an_unknown_number_of_levels_is_refused(
    unknown_levels: onnx.ModelProto,
) -> None:
    for value in unknown_levels.graph.input:
        if value.name in ("sampling_locations", "attention_weights"):
            value.type.tensor_type.shape.dim[3].dim_param = "L"
    error = refusal(ogs.InferenceSession, unknown_levels)
    assert (error.argument, error.found) == ("spatial_shapes", "of an unknown number of rows")
    assert error.expected.startswith("one for each level")


def test_patch_model_of_a_plugin_with_four_inputs_is_refused(
    unknown_levels: onnx.ModelProto,
) -> None:
    del unknown_levels.graph.node[0].input[4:]
    error = refusal(ogs.patch_model, unknown_levels, target="ai.onnx")
    assert (error.argument, error.found) == ("the number of inputs", "4")
    assert error.expected.startswith("5: value, spatial_shapes")


def test_patch_model_of_no_nodes_does_not_change_an_invalid_plugin(
    unknown_levels: onnx.ModelProto,
) -> None:
    del unknown_levels.graph.node[0].input[4:]
    assert ogs.patch_model(unknown_levels, nodes=lambda record: False) == unknown_levels


# Attention of GridSamples

SPLIT_FORMS = (
    "concatenated/batch-torchscript",
    "stacked/static-dynamo",
    "volumes/static-torchscript",
)


@pytest.mark.parametrize("way", [way_param(way="compiled")])
@pytest.mark.parametrize("name", SPLIT_FORMS)
def test_fused_attention_reads_levels_by_the_lengths_of_their_images(name: str, way: str) -> None:
    """No check compares the lengths of a Split that only a run knows with those of the images."""
    form = form_of(f"fed Split, {name}")
    session = WAYS[way](form.model)
    wrong_feeds = form.feeds | {"lengths": form.feeds["lengths"][::-1].copy()}
    for output, right in zip(
        session.run(None, wrong_feeds), session.run(None, form.feeds), strict=True
    ):
        np.testing.assert_array_equal(output, right)
    with pytest.raises(Exception, match=r"Reshape|GridSample"):
        open_native(form.model).run(None, wrong_feeds)


@pytest.mark.parametrize("name", SPLIT_FORMS)
def test_attention_of_wrong_constant_split_lengths_is_refused(name: str) -> None:
    model, _, tensor = split_of_levels(name)
    wrong = numpy_helper.to_array(tensor)[::-1].copy()
    tensor.CopyFrom(numpy_helper.from_array(wrong, tensor.name))
    session = ogs.InferenceSession(model, quiet_options())
    for refusing in (session, open_native(model)):
        with pytest.raises(Exception, match=r"Reshape|GridSample"):
            refusing.run(None, form_feeds(name))


FUSING = [way_param(way=way) for way in ("compiled", "provider")]


@pytest.mark.parametrize("way", FUSING)
@pytest.mark.parametrize(
    ("wrong", "argument"), [("a", "sampling_locations"), ("c", "attention_weights")]
)
def test_fused_attention_of_a_wrong_batch_names_its_node(
    wrong: str, argument: str, way: str
) -> None:
    name = "single/queries-dynamo"
    feeds = form_feeds(name)
    session = WAYS[way](form(name))
    sentence = f"DeformableAttention node 'node_transpose_3': {argument} is "
    with pytest.raises(Exception, match=sentence):
        session.run(None, {**feeds, wrong: feeds[wrong][:1]})
    session.run(None, feeds)


@pytest.mark.parametrize("way", [way_param(way=way) for way in ("python", "compiled", "provider")])
@pytest.mark.parametrize(("name", "number"), [("batches", 3), ("channels", 5)])
def test_image_whose_fed_lengths_are_wrong_is_refused(name: str, number: int, way: str) -> None:
    form = form_of(f"fed {name} of an image")
    fed = "images" if name == "batches" else name
    with pytest.raises(Exception, match="cannot be reshaped"):
        WAYS[way](form.model).run(None, form.feeds | {fed: np.array([number])})


@pytest.mark.parametrize("way", [way_param(way="provider")])
@pytest.mark.parametrize(
    ("shape", "image_shape"),
    [((1, 1, 2, 2, 5), r"\(6, 4, 2, 2, 5\)"), ((1, 1, 20), r"\(6, 4, 20\)")],
    ids=str,
)
def test_level_with_another_number_of_axes_raises_an_error_with_its_lengths(
    shape: Shape, image_shape: str, way: str
) -> None:
    form = form_of("computed lengths of an image")
    with pytest.raises(Exception, match=f"output 'Y': levels is .*{image_shape}, expected 4 axes"):
        WAYS[way](form.model).run(None, form.feeds | {"shape": np.array(shape)})
