"""Test deformable attention as a function and as an op: outputs, errors, threads and memory.

test_attention_forms.py tests how it is recognized in models.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

import ort_gridsample as ogs
from conftest import CORES, OPS, core_set_to
from ort_gridsample.detection.helper_nodes import guard_name
from ort_gridsample.functions.attention import attend
from ort_gridsample.spec import FLOATS
from support.attention_models import (
    LEVELS,
    TOLERANCES,
    Arrays,
    assert_attention_close,
    definition,
    op_model,
    operands,
    session_for,
)
from support.compare import refusal
from support.fused_models import needs_compiled_ops
from support.models import parsed
from support.paths import quiet_options, running_on
from support.processes import run_program

ALIGNMENTS = pytest.mark.parametrize("align", [False, True], ids=["edges", "centres"])
LEVELS_OF_ANY_RANK = LEVELS | {"volumes": np.array([[2, 4, 3, 5], [2, 1, 2, 2]])}


# Outputs


@ALIGNMENTS
@pytest.mark.parametrize("levels", LEVELS_OF_ANY_RANK.values(), ids=LEVELS_OF_ANY_RANK)
@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.usefixtures("core")
def test_attention_on_every_core_is_the_sum_of_grid_samples(
    kind: str, levels: np.ndarray, align: bool
) -> None:
    location_types = ("float32", "float64") if kind in ("float32", "float64") else (kind,)
    for channels in (1, 4, 21, 64, 117):
        for locations_type in location_types:
            value, locations, weights = operands(levels, kind, locations_type, d=channels)
            Y = attend(value, levels, locations, weights, align, where="test", num_threads=2)
            expected = definition(value, levels, locations, weights, align)
            assert_attention_close(Y, expected, kind, locations_type)


@ALIGNMENTS
def test_lowered_compiled_attention_has_the_outputs_of_the_definition(align: bool) -> None:
    levels = LEVELS["planes"]
    model = op_model("float32", "float32", align)
    model.graph.initializer.append(numpy_helper.from_array(levels, "levels"))
    del model.graph.input[1]
    value, locations, weights = operands(levels, locations="float32")
    locations = np.clip(np.nan_to_num(locations), -0.3, 1.3)

    lowered = ogs.patch_model(model, target="ai.onnx")
    session = onnxruntime.InferenceSession(lowered.SerializeToString())
    (Y,) = session.run(None, {"value": value, "at": locations, "by": weights})
    expected = definition(value, levels, locations, weights, align)
    assert_attention_close(Y, expected, "float32", "float32")


@pytest.mark.usefixtures("core")
def test_attention_with_any_number_of_threads_has_identical_outputs() -> None:
    levels = np.array([[4, 30, 40], [4, 15, 20]])
    value, locations, weights = operands(levels, q=2000, h=4, d=32)
    outputs = [
        attend(value, levels, locations, weights, False, where="test", num_threads=threads)
        for threads in (1, 2, 5)
    ]
    for Y in outputs[1:]:
        np.testing.assert_array_equal(outputs[0], Y)


def test_deformable_attention_with_arguments_as_in_mmcv_is_the_definition() -> None:
    levels = np.array([[2, 5, 7], [2, 3, 4]])
    value, locations, weights = operands(levels)
    Y = ogs.deformable_attention(
        value,
        levels[:, 1:],
        locations.reshape(2, 5, 3, 2, 2, 2),
        weights.reshape(2, 5, 3, 2, 2),
    )
    assert Y.shape == (2, 5, 12)
    expected = definition(value, levels, locations, weights, False)
    assert_attention_close(Y, expected, "float32", "float32")


@given(st.data())
def test_attention_of_any_lengths_agrees_on_every_core_and_op(data: st.DataObject) -> None:
    """Also without levels, with levels of one pixel or none, and with any locations."""
    axes = data.draw(st.integers(1, 3))
    n_levels = data.draw(st.integers(0, 3))
    row = st.tuples(st.integers(0, 3), *[st.integers(0, 4)] * axes)
    rows = data.draw(st.lists(row, min_size=n_levels, max_size=n_levels))
    levels = np.array(rows, np.int64).reshape(n_levels, 1 + axes)
    types = [("float32", "float32"), ("float32", "float64"), ("float16", "float16")]
    kind, locations_type = data.draw(st.sampled_from(types))
    value, locations, weights = operands(
        levels,
        kind,
        locations_type,
        n=data.draw(st.integers(0, 2)),
        q=data.draw(st.integers(0, 9) | st.just(700)),
        h=data.draw(st.integers(1, 3)),
        d=data.draw(st.sampled_from([0, 1, 5, 16, 37])),
        seed=data.draw(st.integers(0, 99)),
    )
    all_weights = weights
    if data.draw(st.booleans()):  # all queries have the weights of one
        weights = weights[:, :1]
        all_weights = np.broadcast_to(weights, locations.shape[:-1])
    align = data.draw(st.booleans())

    outputs = []
    for core in CORES:
        with core_set_to(core):
            Y = attend(value, levels, locations, weights, align, where="test", num_threads=2)
        outputs.append(Y)
    if value.size and n_levels and (levels[:, 1:].prod(1) > 0).all():
        expected = definition(value, levels, locations, all_weights, align)
        assert_attention_close(outputs[0], expected, kind, locations_type)
    for Y in outputs[1:]:
        assert_attention_close(Y, outputs[0].astype(np.float64), kind, locations_type)
    if "compiled" in OPS:
        feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
        (Y,) = session_for(kind, locations_type, align).run(None, feeds)
        np.testing.assert_array_equal(Y, outputs[-1])


# Types and errors


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


#: Arguments of the function that are not wrong.
ARGUMENTS: Arrays = {
    "value": zeros(2, 47, 3, 4),
    "spatial_shapes": np.array([[5, 7], [3, 4]]),
    "sampling_locations": zeros(2, 5, 3, 2, 4, 2),
    "attention_weights": zeros(2, 5, 3, 2, 4),
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
ANY_FLOAT = f"one of {', '.join(FLOATS)}"
TYPE_MISTAKES = {
    "weights of another type": Mistake(
        "attention_weights", np.zeros((2, 5, 3, 2, 4)), "of type float64", "one of float32"
    ),
    "spatial shapes of floats": Mistake(
        "spatial_shapes", np.ones((2, 2)), "of type float64", "integers"
    ),
    "value of integers": Mistake(
        "value", ARGUMENTS["value"].astype(int), "of type int64", ANY_FLOAT
    ),
    "locations of integers": Mistake(
        "sampling_locations",
        ARGUMENTS["sampling_locations"].astype(int),
        "of type int64",
        ANY_FLOAT,
    ),
}
SHAPE_MISTAKES = {
    "value of three axes": Mistake(
        "value", zeros(47, 3, 4), "of shape (47, 3, 4)", "shape (B, S, H, D)"
    ),
    "fewer pixels": Mistake(
        "spatial_shapes", np.array([[5, 7], [3, 3]]), "of 44 pixels in all levels together", PIXELS
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
MISTAKES = TYPE_MISTAKES | SHAPE_MISTAKES


def attention_session(ops: str) -> ogs.InferenceSession:
    """Return a session of one DeformableAttention, ``attention``, on these ops."""
    model = op_model("float32", "float32", False)
    if ops == "python":
        model = parsed("""
            g (float[] value, int64[] levels, float[] at, float[] by)
            => (float[] Y, int64[] guarded) {
                Y, status = ort_gridsample.DeformableAttention
                    <align_corners = 0, node = "attention", num_threads = 1>
                    (value, levels, at, by)
                guarded = GatherND (status, status) }""")
        node, guard = model.graph.node
        node.name = "attention"
        guard.name = guard_name("attention")
    with running_on(ops):
        return ogs.InferenceSession(model, quiet_options())


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_deformable_attention_of_a_wrong_argument_is_refused(mistake: Mistake) -> None:
    arguments = ARGUMENTS | {mistake.argument: mistake.value}
    error = refusal(ogs.deformable_attention, **arguments)
    assert error.where == "deformable_attention"
    assert (error.argument, error.found) == (mistake.argument, mistake.found)
    assert error.expected == mistake.expected


# onnxruntime itself refuses inputs of other types.
@pytest.mark.parametrize("mistake", SHAPE_MISTAKES.values(), ids=SHAPE_MISTAKES)
def test_attention_op_of_wrong_shapes_has_the_error_of_the_function(
    mistake: Mistake, ops: str
) -> None:
    value, spatial_shapes, locations, weights = (
        ARGUMENTS | {mistake.argument: mistake.value}
    ).values()
    argument = mistake.argument
    found = mistake.found
    expected = mistake.expected
    if argument == "spatial_shapes":
        argument = "levels"
        found = found.replace("negative length", "negative length or number of points")
        expected = expected.replace("(L, r)", "(L, 1 + r)").replace("lengths", "numbers")
    levels = spatial_shapes
    if levels.ndim == 2:
        levels = np.insert(spatial_shapes, 0, 4, axis=1)  # four points on each level
    feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
    error = refusal(attention_session(ops).run, None, feeds)
    assert error.where == "DeformableAttention node 'attention'"
    assert (error.argument, error.found, error.expected) == (argument, found, expected)


def test_attention_op_of_wrong_points_of_no_level_has_the_error_of_attend(ops: str) -> None:
    """Without a level there are no points: 0 × 3 and 0 × 5 do not differ."""
    value = zeros(1, 0, 1, 1)
    levels = np.zeros((0, 3), np.int64)
    locations = zeros(1, 1, 1, 0, 3, 2)
    weights = zeros(1, 1, 1, 0, 5)
    where = "DeformableAttention node 'attention'"
    expected = refusal(attend, value, levels, locations, weights, False, where=where, num_threads=1)
    feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
    error = refusal(attention_session(ops).run, None, feeds)
    assert error.args == expected.args


@pytest.mark.parametrize("shape", [(1, 5, 2, 2), (1, 5, 2, 1, 1, 1, 2)])
def test_attention_op_of_wrong_number_of_location_axes_has_the_error_of_attend(
    shape: tuple[int, ...], ops: str
) -> None:
    """The number of points is right: one for each head."""
    value = zeros(1, 4, 2, 3)
    levels = np.array([[1, 2, 2]])
    locations = zeros(*shape)
    weights = zeros(1, 5, 2, 1)
    where = "DeformableAttention node 'attention'"
    expected = refusal(attend, value, levels, locations, weights, False, where=where, num_threads=1)
    feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
    error = refusal(attention_session(ops).run, None, feeds)
    assert str(error) == str(expected)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2, 1, 2), (1, 1, 1, 1, 1, 2, 2)])
@pytest.mark.usefixtures("core")
def test_attend_wrong_number_of_weight_axes_is_refused(shape: tuple[int, ...]) -> None:
    """The number of points is right: four for each head."""
    value = zeros(1, 2, 1, 1)
    levels = np.array([[4, 1, 2]])
    locations = zeros(1, 1, 1, 4, 2)
    weights = zeros(*shape)
    error = refusal(attend, value, levels, locations, weights, False, where="test", num_threads=1)
    assert error.argument == "attention_weights"
    assert error.found == f"of shape {shape}"


@pytest.mark.parametrize("shape", [(1, 1, 1, 2, 1, 2), (1, 1, 1, 1, 1, 2, 2)])
def test_attention_op_of_wrong_number_of_weight_axes_has_the_error_of_attend(
    shape: tuple[int, ...], ops: str
) -> None:
    value = zeros(1, 2, 1, 1)
    levels = np.array([[4, 1, 2]])
    locations = zeros(1, 1, 1, 1, 4, 2)
    weights = zeros(*shape)
    where = "DeformableAttention node 'attention'"
    expected = refusal(attend, value, levels, locations, weights, False, where=where, num_threads=1)
    feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
    error = refusal(attention_session(ops).run, None, feeds)
    assert error.args == expected.args


def test_attend_negative_points_of_a_level_is_refused() -> None:
    value = zeros(1, 2, 1, 1)
    levels = np.array([[5, 1, 1], [-1, 1, 1]])
    locations = zeros(1, 1, 1, 4, 2)
    weights = zeros(1, 1, 1, 4)
    error = refusal(attend, value, levels, locations, weights, False, where="test", num_threads=1)
    assert error.argument == "levels"
    assert error.found == "a negative length or number of points"


def test_deformable_attention_of_bfloat16_values_and_float32_locations_is_of_bfloat16() -> None:
    halves = {
        name: ARGUMENTS[name].astype(ml_dtypes.bfloat16) for name in ("value", "attention_weights")
    }
    assert ogs.deformable_attention(**ARGUMENTS | halves).dtype == ml_dtypes.bfloat16


def test_deformable_attention_of_lengths_beyond_int64_is_refused() -> None:
    spatial_shapes = np.array([[1 << 63, 1]], np.uint64)
    arguments = ARGUMENTS | {"spatial_shapes": spatial_shapes}
    error = refusal(ogs.deformable_attention, **arguments)
    assert error.argument == "spatial_shapes"
    assert error.found == "a length of 9223372036854775808"
    assert error.expected == "lengths below 2**63"


@pytest.mark.usefixtures("core")
def test_deformable_attention_of_weights_whose_sum_overflows_is_0_on_an_empty_level() -> None:
    value = np.zeros((1, 1, 1, 1))
    spatial_shapes = np.array([[0, 2], [1, 1]])
    locations = np.full((1, 1, 1, 2, 2, 2), 0.5)
    weights = np.full((1, 1, 1, 2, 2), 1.7e308)
    Y = ogs.deformable_attention(value, spatial_shapes, locations, weights)
    np.testing.assert_array_equal(Y, [[[0.0]]])


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_deformable_attention_of_infinite_weight_is_nan_on_an_empty_level(weight: float) -> None:
    value = np.zeros((1, 1, 1, 1))
    spatial_shapes = np.array([[0, 2], [1, 1]])
    locations = np.full((1, 1, 1, 2, 2, 2), 0.5)
    weights = np.ones((1, 1, 1, 2, 2))
    weights[..., 0, 0] = weight
    Y = ogs.deformable_attention(value, spatial_shapes, locations, weights)
    np.testing.assert_array_equal(Y, [[[np.nan]]])


@pytest.mark.slow
@pytest.mark.usefixtures("core")
def test_location_far_outside_a_level_longer_than_float32_integers_is_0() -> None:
    """In float32, 1 pixel beyond the last one is rounded to the last one."""
    length = (1 << 24) + 1
    value = np.ones((1, length, 1, 1), np.float32)
    locations = np.array([[0.5, 5.0], [5.0, 0.5], [np.inf, 0.5]], np.float32)
    Y = ogs.deformable_attention(
        value,
        np.array([[1, length]]),
        locations.reshape(1, 3, 1, 1, 1, 2),
        np.ones((1, 3, 1, 1, 1), np.float32),
    )
    np.testing.assert_array_equal(Y, np.zeros((1, 3, 1), np.float32))


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_deformable_attention_of_infinite_weight_is_nan_without_pixels(weight: float) -> None:
    locations = np.full((1, 1, 1, 1, 2, 2), 0.5)
    weights = np.array([weight, 1.0]).reshape(1, 1, 1, 1, 2)
    Y = ogs.deformable_attention(np.zeros((1, 0, 1, 1)), [(0, 2)], locations, weights)
    np.testing.assert_array_equal(Y, [[[np.nan]]])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_spatial_shapes_of_any_integer_type_are_accepted(dtype: str) -> None:
    """There are more points than uint8 can count."""
    value = np.ones((1, 2, 1, 1))
    spatial_shapes = np.array([[1, 2]], dtype)
    locations = np.full((1, 1, 1, 1, 300, 2), 0.5)
    weights = np.full((1, 1, 1, 1, 300), 1 / 300)
    Y = ogs.deformable_attention(value, spatial_shapes, locations, weights)
    np.testing.assert_allclose(Y, [[[1.0]]])
    error = refusal(ogs.deformable_attention, value, spatial_shapes, locations[0], weights)
    assert error.argument == "sampling_locations"


# A node ort_gridsample.DeformableAttention, as patched files have it


class AttentionNode:
    """A model of one such node, without levels, and its feeds."""

    levels = LEVELS["planes"]

    def __init__(self) -> None:
        value, locations, weights = operands(self.levels, locations="float32")
        locations = np.clip(np.nan_to_num(locations), -0.3, 1.3)
        self.feeds = {"value": value, "at": locations, "by": weights}

    def model(self, levels: np.ndarray | None) -> onnx.ModelProto:
        """Return the model with constant levels, or with an input of levels if they are None."""
        inputs = [f"float{[*array.shape]} {name}" for name, array in self.feeds.items()]
        if levels is None:
            inputs.append("int64[3, 3] levels")
        model = parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
            g ({", ".join(inputs)}) => (float[] Y) {{
                Y = ort_gridsample.DeformableAttention (value, levels, at, by) }}""")
        if levels is not None:
            model.graph.initializer.append(numpy_helper.from_array(levels, "levels"))
        return model


def test_session_of_an_attention_node_with_constant_levels_is_the_definition() -> None:
    node = AttentionNode()
    (Y,) = ogs.InferenceSession(node.model(node.levels)).run(None, node.feeds)
    value, locations, weights = node.feeds.values()
    expected = definition(value, node.levels, locations, weights, False)
    assert_attention_close(Y, expected, "float32", "float32")


def test_session_of_an_attention_node_with_computed_levels_is_refused() -> None:
    error = refusal(ogs.InferenceSession, AttentionNode().model(None))
    assert (error.argument, error.found) == ("levels", "computed")


@pytest.mark.parametrize(
    ("index", "shape"),
    [(0, "(3)"), ((slice(None), slice(1)), "(3, 1)")],
    ids=["one axis", "no length"],
)
def test_session_of_an_attention_node_with_levels_of_a_wrong_shape_is_refused(
    index: object, shape: str
) -> None:
    node = AttentionNode()
    error = refusal(ogs.InferenceSession, node.model(node.levels[index]))
    assert (error.argument, error.found) == ("levels", f"of shape {shape}")
    assert error.expected.startswith("a constant of shape (L")


def test_session_of_an_attention_node_with_pixels_without_levels_is_refused() -> None:
    node = AttentionNode()
    error = refusal(ogs.InferenceSession, node.model(node.levels[:0]))
    assert (error.argument, error.found) == ("levels", "of 0 pixels in all levels together")


# Memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory from Linux")
@needs_compiled_ops
def test_compiled_attention_allocates_no_more_than_its_output() -> None:
    """In onnxruntime, the samples alone take 80 MiB."""
    (line,) = run_program("attention_memory.py")
    peak_mib, output_mib = map(float, line.split())
    assert peak_mib < 8 + output_mib
