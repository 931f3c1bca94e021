"""Deformable attention: on every core and op, and found in every form in which it is written."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

import ort_gridsample as ogs
from conftest import CORES, OPS
from ort_gridsample.detection.find import find
from ort_gridsample.detection.helpers import guard_name
from ort_gridsample.functions.attention import attend
from ort_gridsample.graph.scope import scopes
from ort_gridsample.session.accelerators import Accelerators
from ort_gridsample.session.placement import Placement
from ort_gridsample.session.prediction import predict_placements
from ort_gridsample.spec import FLOATS
from support.attention_models import (
    FORMS,
    LEVELS,
    Arrays,
    form,
    form_feeds,
    op_model,
    operands,
    session_for,
)
from support.compare import refusal
from support.fused_models import assert_read_back, compiled
from support.models import function_of, parsed
from support.paths import Array, open_native, quiet_options, running_on
from support.processes import every_way
from support.processes import run as run_process

TYPES = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}


def definition(value: Array, levels: Array, locations: Array, weights: Array, align: bool) -> Array:
    """Sums over GridSamples of each level, in float64."""
    n, _, heads, channels = value.shape
    total, first, point, queries = 0.0, 0, 0, locations.shape[1]
    for points, *lengths in levels.tolist():
        pixels = int(np.prod(lengths))
        image = (
            value[:, first : first + pixels]
            .transpose(0, 2, 3, 1)
            .reshape(n * heads, channels, *lengths)
        )
        at = locations[:, :, :, point : point + points].astype(np.float64) * 2 - 1
        grid = at.transpose(0, 2, 1, 3, 4).reshape(
            n * heads, queries * points, *[1] * (len(lengths) - 1), len(lengths)
        )
        sample = ogs.grid_sample(image.astype(np.float64), grid, align_corners=align)
        by = weights[:, :, :, point : point + points].astype(np.float64).transpose(0, 2, 1, 3)
        by = by.reshape(n * heads, 1, queries, points)
        total = total + (sample.reshape(n * heads, channels, queries, points) * by).sum(-1)
        first, point = first + pixels, point + points
    return np.asarray(total).reshape(n, heads * channels, queries).transpose(0, 2, 1)


def close(found: np.ndarray, expected: np.ndarray, kind: str, locations: str = "float64") -> None:
    allowed = max(TYPES[kind], 2e-5 if locations == "float32" else 0) * max(
        1.0, float(np.abs(expected).max(initial=0))
    )
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=allowed)


LEVELS["volumes"] = np.array([[2, 4, 3, 5], [2, 1, 2, 2]])


@pytest.mark.parametrize("align", [False, True], ids=["edges", "centres"])
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.usefixtures("core")
def test_it_is_a_sum_over_samples(kind: str, levels: np.ndarray, align: bool) -> None:
    for channels in (1, 4, 21, 64, 117):
        for locations in ("float32", "float64") if kind in ("float32", "float64") else (kind,):
            value, at, by = operands(levels, kind, locations, d=channels)
            found = attend(value, levels, at, by, align, where="here", num_threads=2)
            coarser = "float32" if locations != "float64" else locations
            close(found, definition(value, levels, at, by, align), kind, coarser)


@pytest.mark.parametrize("align", [False, True], ids=["edges", "centres"])
def test_the_compiled_op_is_the_nodes_that_it_stands_for(align: bool) -> None:
    model, (value, at, by) = (
        op_model("float32", "float32", align),
        operands(LEVELS["planes"], locations="float32"),
    )
    model.graph.initializer.append(numpy_helper.from_array(LEVELS["planes"], "levels"))
    del model.graph.input[1]
    session = onnxruntime.InferenceSession(
        ogs.patch_model(model, target="ai.onnx").SerializeToString()
    )
    feeds = {"value": value, "at": (at := np.clip(np.nan_to_num(at), -0.3, 1.3)), "by": by}
    close(
        session.run(None, feeds)[0],
        definition(value, LEVELS["planes"], at, by, align),
        "float32",
        "float32",
    )


@pytest.mark.usefixtures("core")
def test_any_number_of_threads_has_the_same_answer() -> None:
    levels = np.array([[4, 30, 40], [4, 15, 20]])
    value, at, by = operands(levels, q=2000, h=4, d=32)
    one, *others = (
        attend(value, levels, at, by, False, where="here", num_threads=threads)
        for threads in (1, 2, 5)
    )
    for other in others:
        np.testing.assert_array_equal(one, other)


def test_the_function_takes_what_others_take() -> None:
    levels = np.array([[2, 5, 7], [2, 3, 4]])
    value, at, by = operands(levels)
    found = ogs.deformable_attention(
        value, levels[:, 1:], at.reshape(2, 5, 3, 2, 2, 2), by.reshape(2, 5, 3, 2, 2)
    )
    close(found, definition(value, levels, at, by, False), "float32", "float32")
    assert found.shape == (2, 5, 12)
    halves = {
        name: GOOD[name].astype(ml_dtypes.bfloat16) for name in ("value", "attention_weights")
    }
    assert ogs.deformable_attention(**GOOD | halves).dtype == ml_dtypes.bfloat16


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


GOOD: Arrays = {"value": zeros(2, 47, 3, 4), "spatial_shapes": np.array([[5, 7], [3, 4]])}
GOOD |= {"sampling_locations": zeros(2, 5, 3, 2, 4, 2), "attention_weights": zeros(2, 5, 3, 2, 4)}
PIXELS = "those of value, of shape (B, S, H, D) = (2, 47, 3, 4), in all levels together"
AXES = "shape (B, Q, H, L, P, r), as value (B, S, H, D) is of shape (2, 47, 3, 4) and L is 2"
FLOATING = ("value", "sampling_locations")
ALL_BUT_ONE = "all axes but the last of sampling_locations, which is of shape (2, 5, 3, 2, 4, 2)"
BAD = [
    ("value", zeros(47, 3, 4), "of shape (47, 3, 4), expected shape (B, S, H, D)"),
    ("spatial_shapes", np.array([[5, 7], [3, 3]]), f"with 44 pixels, expected {PIXELS}"),
    (
        "spatial_shapes",
        np.array([5, 7]),
        "of shape (2), expected shape (L, r), with at least one spatial axis",
    ),
    (
        "spatial_shapes",
        np.array([[5, 7], [-3, -4]]),
        "with a negative length, expected nothing negative",
    ),
    (
        "sampling_locations",
        zeros(2, 5, 3, 8, 2, 4, 2),
        f"of shape (2, 5, 3, 8, 2, 4, 2), expected {AXES}",
    ),
    (
        "sampling_locations",
        zeros(2, 5, 3, 2, 4, 3),
        f"of shape (2, 5, 3, 2, 4, 3), expected {AXES}",
    ),
    (
        "attention_weights",
        zeros(2, 5, 4, 2, 4),
        f"of shape (2, 5, 4, 2, 4), expected {ALL_BUT_ONE}",
    ),
    (
        "attention_weights",
        zeros(2, 4, 3, 2, 4),
        f"of shape (2, 4, 3, 2, 4), expected {ALL_BUT_ONE}",
    ),
    ("attention_weights", zeros(2, 5, 3), f"of shape (2, 5, 3), expected {ALL_BUT_ONE}"),
    ("attention_weights", np.zeros((2, 5, 3, 2, 4)), "of type float64, expected one of float32"),
    ("spatial_shapes", np.ones((2, 2)), "of type float64, expected integers"),
    *(
        (name, GOOD[name].astype(int), f"of type int64, expected one of {', '.join(FLOATS)}")
        for name in FLOATING
    ),
]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_spatial_shapes_of_any_integer_type_are_accepted(dtype: str) -> None:
    """With more points than the type can count."""
    value = np.ones((1, 2, 1, 1))
    locations = np.full((1, 1, 1, 1, 300, 2), 0.5)
    weights = np.full((1, 1, 1, 1, 300), 1 / 300)
    Y = ogs.deformable_attention(value, np.array([[1, 2]], dtype), locations, weights)
    np.testing.assert_allclose(Y, [[[1.0]]])
    error = refusal(
        ogs.deformable_attention, value, np.array([[1, 2]], dtype), locations[0], weights
    )
    assert error.argument == "sampling_locations"


@pytest.mark.parametrize(("name", "value", "said"), BAD)
def test_what_is_wrong_is_said(name: str, value: np.ndarray, said: str) -> None:
    wrong = GOOD | {name: value}
    assert (
        str(refusal(ogs.deformable_attention, **wrong)) == f"deformable_attention: {name} is {said}"
    )
    levels = wrong["spatial_shapes"]
    levels = levels if levels.ndim == 1 else np.insert(levels, 0, 4, axis=1)
    feeds = dict(zip(("value", "levels", "at", "by"), wrong.values(), strict=True)) | {
        "levels": levels
    }
    for ops in () if "of type" in said else OPS:  # onnxruntime itself refuses other types
        told = str(refusal(session_of_the_op(ops).run, None, feeds))
        assert re.fullmatch(f"DeformableAttention node .*: {name} is {re.escape(said)}", told)


def session_of_the_op(ops: str) -> ogs.InferenceSession:
    model = op_model("float32", "float32", False)
    if ops == "python":
        model = parsed("""g (float[] value, int64[] levels, float[] at, float[] by) => (float[] Y, int64[] guarded) {
            Y, status = ort_gridsample.DeformableAttention <align_corners = 0, node = "attention", num_threads = 1>
                (value, levels, at, by) guarded = GatherND (status, status) }""")
        model.graph.node[0].name, model.graph.node[1].name = "attention", guard_name("attention")
    with running_on(ops):
        return ogs.InferenceSession(model, quiet_options())


@given(st.data())
def test_any_lengths_at_all(data: st.DataObject) -> None:
    """Every core and the compiled op, without levels, with some of one pixel or none, and points anywhere."""
    axes, count = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    rows = st.tuples(st.integers(0, 3), *[st.integers(0, 4)] * axes)
    levels = np.array(data.draw(st.lists(rows, min_size=count, max_size=count)), np.int64).reshape(
        count, 1 + axes
    )
    channels, queries = st.sampled_from([0, 1, 5, 16, 37]), st.integers(0, 9) | st.just(700)
    n, q, h, d = data.draw(st.tuples(st.integers(0, 2), queries, st.integers(1, 3), channels))
    kinds = data.draw(
        st.sampled_from([("float32", "float32"), ("float32", "float64"), ("float16", "float16")])
    )
    value, at, by = operands(levels, *kinds, n=n, q=q, h=h, d=d, seed=data.draw(st.integers(0, 99)))
    by, align = by[:, :1] if data.draw(st.booleans()) else by, data.draw(st.booleans())
    before, answers = ogs.get_core(), []
    for core in CORES:
        ogs.set_core(core)
        answers.append(attend(value, levels, at, by, align, where="here", num_threads=2))
    ogs.set_core(before)
    if value.size and count and (levels[:, 1:].prod(1) > 0).all():
        close(
            answers[0],
            definition(value, levels, at, np.broadcast_to(by, at.shape[:-1]), align),
            *kinds,
        )
    for answer in answers[1:]:
        close(answer, answers[0].astype(np.float64), *kinds)
    if "compiled" in OPS:
        feeds = {"value": value, "levels": levels, "at": at, "by": by}
        np.testing.assert_array_equal(session_for(*kinds, align).run(None, feeds)[0], answers[-1])


def assert_attended(
    model: onnx.ModelProto, feeds: Arrays, count: int = 1, ops: str = "compiled"
) -> tuple[ogs.InferenceSession, list[ogs.Placement]]:
    """So many deformable attentions are one op each, and the answers are onnxruntime's."""
    with running_on(ops):
        session = ogs.InferenceSession(model, quiet_options(), nodes="all")
    whole = [
        placement
        for placement in session.replaced
        if placement.record.operator == "DeformableAttention"
    ]
    assert [each.runs_on for each in whole] == [f"{ops} op".replace("python", "Python")] * count
    for found, expected in zip(
        session.run(None, feeds), open_native(model).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    return session, whole


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_found(name: str, ops: str) -> None:
    model = form(name)
    session, (whole,) = assert_attended(model, form_feeds(name), ops=ops)
    assert {*whole.fused} >= {
        node.name for node in model.graph.node if node.op_type == "GridSample"
    }
    if "static" not in name:
        other = form_feeds(name, 3, 8 if "queries" in name else 5)
        expected = open_native(model).run(None, other)
        np.testing.assert_allclose(session.run(None, other)[0], expected[0], rtol=0, atol=1e-5)


def test_in_a_branch_and_in_a_function(ops: str) -> None:
    model, feeds = form("stacked/static-dynamo"), form_feeds("stacked")
    graph, (opset,) = model.graph, (each.version for each in model.opset_import if not each.domain)
    inputs = ", ".join(f"float{[*each.shape]} {name}" for name, each in feeds.items())
    outer = parsed(f"outer ({inputs}) => (float[] Y2) {{ Y2 = local.attention (a, b, c) }}", opset)
    outer.functions.append(function_of(model, "local", "attention"))
    assert_attended(outer, feeds, ops=ops)
    del graph.input[:]
    outer = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]> outer ({inputs}, bool choice)
        => (float[] Y3) {{ Y3 = If (choice) <else_branch = other () => (float[] Z) {{ Z = ReduceMax (c) }}> }}""")
    outer.graph.node[0].attribute.append(helper.make_attribute("then_branch", graph))
    assert_attended(outer, {**feeds, "choice": np.array(True)}, ops=ops)


#: Two levels of 2×3 and 2×2 pixels, two heads of four channels, three queries and two points; by lines, to change some.
LINES = {
    "grids": "twice = Mul (at, two) grids = Sub (twice, one)",
    "images": "v0, v1 = Split <axis = 1> (value, areas)",
    "flat": "f0 = Reshape (v0, flat0) f1 = Reshape (v1, flat1)",
    "turned": "t0 = Transpose <perm = [0, 2, 1]> (f0) t1 = Transpose <perm = [0, 2, 1]> (f1)",
    "X": "X0 = Reshape (t0, shape0) X1 = Reshape (t1, shape1)",
    "levels": "g0 = Gather <axis = 3> (grids, i0) g1 = Gather <axis = 3> (grids, i1)",
    "places": "u0 = Transpose <perm = [0, 2, 1, 3, 4]> (g0) u1 = Transpose <perm = [0, 2, 1, 3, 4]> (g1)",
    "G": "G0 = Reshape (u0, places) G1 = Reshape (u1, places)",
    "samples": "S0 = GridSample (X0, G0) S1 = GridSample (X1, G1)",
    "new axis": "E0 = Unsqueeze (S0, three) E1 = Unsqueeze (S1, three)",
    "stack": "E = Concat <axis = 3> (E0, E1) all = Reshape (E, every)",
    "weights": "w = Transpose <perm = [0, 2, 1, 3, 4]> (by) W = Reshape (w, each)",
    "sum": "product = Mul (all, W) total = ReduceSum <keepdims = 0> (product, last)",
    "out": "wide = Reshape (total, whole) Y = Transpose <perm = [0, 2, 1]> (wide)",
}
_ROWS = {
    **{
        "areas": (6, 4),
        "flat0": (2, 6, 8),
        "flat1": (2, 4, 8),
        "shape0": (4, 4, 2, 3),
        "shape1": (4, 4, 2, 2),
    },
    **{
        "three": (3,),
        "places": (4, 3, 2, 2),
        "every": (4, 4, 3, 4),
        "each": (4, 1, 3, 4),
        "last": (-1,),
    },
    **{
        "whole": (2, 8, 3),
        "c0": (0,),
        "c1": (1,),
        "c2": (2,),
        "last4": (-4,),
        "c6": (6,),
        "c10": (10,),
    },
    "half": (4, 1, 3, 2),
    "alone": (4, 1, 1, 4),
}
CONSTANTS = "float two = {2}, float one = {1}, float other = {3}, int64 i0 = {0}, int64 i1 = {1}"
CONSTANTS += "".join(
    f", int64[{len(row)}] {name} = {{{', '.join(map(str, row))}}}" for name, row in _ROWS.items()
)


def written(
    changes: Mapping[str, str],
    outputs: str = "float[2, 3, 8] Y",
    queries: int = 3,
    kind: str = "float",
) -> onnx.ModelProto:
    nodes = " ".join({**LINES, **changes}.values())
    inputs = (
        f"float[2, 10, 2, 4] value, float[2, 3, 2, 2, 2, 2] at, float[2, {queries}, 2, 2, 2] by"
    )
    text = f'<ir_version: 8, opset_import: ["": 20]> g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {nodes} }}'
    model = parser.parse_model(text.replace("float", kind))
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"  # onnxruntime 1.20 names what it makes of Slices after them
    return model


def written_feeds(queries: int = 3) -> Arrays:
    rng, by = np.random.default_rng(0), (2, queries, 2, 2, 2)
    feeds = (
        rng.normal(size=(2, 10, 2, 4)),
        rng.uniform(-0.2, 1.2, (2, 3, 2, 2, 2, 2)),
        rng.random(by),
    )
    return {
        name: each.astype(np.float32)
        for name, each in zip(("value", "at", "by"), feeds, strict=True)
    }


#: What differs, in which lines; and the operands that are read where they lie, None: it is no deformable attention.
ALL = "value locations weights output"
ONE_LEVEL = {"new axis": "", "stack": "all = Identity (S0)"}
ONE_LEVEL["weights"] = (
    "h = Gather <axis = 3> (by, i0) w = Transpose <perm = [0, 2, 1, 3]> (h) W = Reshape (w, half)"
)
KEPT = "h0 = Gather <axis = 3> (grids, c0) h1 = Gather <axis = 3> (grids, c1) "
KEPT += "g0 = Squeeze (h0, three) g1 = Squeeze (h1, three)"
KEPT_HEADS = (
    "h0, h1 = Split <axis = 2, num_outputs = 2> (grids) g0 = Squeeze (h0, c2) g1 = Squeeze (h1, c2)"
)
LONG = "l0 = Unsqueeze (g0, c0) s0 = Squeeze (l0, c0) "
MADE = "z = Constant <value_ints = [4, 4, 3, 2]> () n = Constant <value_ints = [4, 2, 3]> () "
MADE += "T = ConstantOfShape <value = float[1] {0.2}> (n) A0 = AffineGrid (T, z) "
MADE += "S0 = GridSample (X0, A0) S1 = GridSample (X1, G1)"
VARIANTS: dict[str, tuple[dict[str, str], str | None]] = {
    "as exporters write it": ({}, ALL),
    "weights first": ({"sum": LINES["sum"].replace("all, W", "W, all")}, ALL),
    "slices": ({"images": "v0 = Slice (value, c0, c6, c1) v1 = Slice (value, c6, c10, c1)"}, ALL),
    "grids as they are": ({"grids": "grids = Identity (at)"}, "value weights output"),
    "an axis that comes and goes": ({"places": LONG + LINES["places"].replace("g0", "s0")}, ALL),
    "an axis that goes without a word": (
        {"places": LONG.replace("(l0, c0)", "(l0)") + LINES["places"].replace("g0", "s0")},
        ALL,
    ),
    "a level that keeps its axis": ({"levels": KEPT}, "value weights output"),
    "heads for levels": ({"levels": LINES["levels"].replace("3", "2")}, "value weights output"),
    "heads that are split": ({"levels": KEPT_HEADS}, "value weights output"),
    "slices from behind": (
        {"images": "v0 = Slice (value, c0, c6, c1) v1 = Slice (value, last4, c10, c1)"},
        "",
    ),
    "slices in steps": (
        {"images": "v0 = Slice (value, c0, c6, c1, c1) v1 = Slice (value, c2, c10, c1, c2)"},
        "",
    ),
    "the factor first": ({"grids": "twice = Mul (two, at) grids = Sub (twice, one)"}, ALL),
    "grids turned around": (
        {"grids": "twice = Mul (at, two) grids = Sub (one, twice)"},
        "value weights output",
    ),
    "another scale": (
        {"grids": "twice = Mul (at, other) grids = Sub (twice, one)"},
        "value weights output",
    ),
    "levels in another order": ({"stack": LINES["stack"].replace("(E0, E1)", "(E1, E0)")}, ""),
    "images that are computed": (
        {"X": "r = Relu (t0) X0 = Reshape (r, shape0) X1 = Reshape (t1, shape1)"},
        "",
    ),
    "computed weights": (
        {"weights": LINES["weights"].replace("W", "a") + " W = Abs (a)"},
        "value locations output",
    ),
    "a sum that goes on otherwise": (
        {"out": "wide = Reshape (total, whole) Y = Identity (wide)"},
        ALL[:-7],
    ),
    "one level": (ONE_LEVEL, "value weights output"),
    "border": (
        {"samples": 'S0 = GridSample <padding_mode = "border"> (X0, G0) S1 = GridSample (X1, G1)'},
        "value",
    ),
    "nearest": (
        {"samples": LINES["samples"].replace("GridSample", 'GridSample <mode = "nearest">')},
        None,
    ),
    "two alignments": (
        {"samples": "S0 = GridSample <align_corners = 1> (X0, G0) S1 = GridSample (X1, G1)"},
        "value",
    ),
    "a sample that is changed": (
        {"new axis": "r = Relu (S1) " + LINES["new axis"].replace("S1", "r")},
        "value",
    ),
    "one query's weights for all": ({"weights": LINES["weights"].replace("each", "alone")}, ALL),
    "a grid that is made": ({"samples": MADE}, "value weights output"),
    "a sum by the number of its axis": ({"sum": LINES["sum"].replace("last", "three")}, ALL),
    "another sum": ({"sum": LINES["sum"].replace("ReduceSum", "ReduceMean")}, None),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_written_otherwise(name: str, ops: str) -> None:
    (changes, read), queries = VARIANTS[name], 1 if "one query" in name else 3
    model = written(
        changes, "float[2, 8, 3] Y" if "goes on" in name else "float[2, 3, 8] Y", queries
    )
    assert_attended(model, written_feeds(queries), int(read is not None), ops)
    found = [
        match.attention
        for match in find(model, scopes(model), None, False)
        if match.attention is not None
    ]
    has = {
        "value": "value",
        "locations": "locations",
        "has_weights_by_head": "weights",
        "has_output_by_query": "output",
    }
    lie = [
        " ".join(operand for field, operand in has.items() if getattr(each, field))
        for each in found
    ]
    assert lie == ([] if read is None else [read])


def test_a_node_of_this_package_that_nobody_patched(ops: str) -> None:
    levels = LEVELS["planes"]
    value, at, by = operands(levels, locations="float32")
    feeds = {"value": value, "at": np.clip(np.nan_to_num(at), -0.3, 1.3), "by": by}
    inputs = ", ".join(f"float{[*each.shape]} {name}" for name, each in feeds.items())
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "ort_gridsample": 1]>
        g ({inputs}, int64[3, 3] levels) => (float[] Y) {{
        Y = ort_gridsample.DeformableAttention (value, levels, at, by) }}""")
    with pytest.raises(ogs.GridSampleError, match="levels is computed, expected a constant"):
        ogs.InferenceSession(model)
    del model.graph.input[-1]
    for wrong, shape in (
        (levels[0], r"\(3\)"),
        (levels[:0], r"\(0, 3\)"),
        (levels[:, :1], r"\(3, 1\)"),
    ):
        model.graph.initializer.append(numpy_helper.from_array(wrong, "levels"))
        with pytest.raises(
            ogs.GridSampleError,
            match=rf"levels is of shape {shape}, expected a constant of shape \(L",
        ):
            ogs.InferenceSession(model)
        del model.graph.initializer[:]
    model.graph.initializer.append(numpy_helper.from_array(levels, "levels"))
    (answer,) = ogs.InferenceSession(model).run(None, feeds)
    close(answer, definition(value, levels, feeds["at"], by, False), "float32", "float32")


def test_lengths_that_only_a_run_knows(ops: str, tmp_path: Path) -> None:
    """Also of a model that a session saved, of which a Python op does not say the points on each level."""
    model, feeds, options = written({}), written_feeds(), quiet_options()
    for tensor in [each for each in model.graph.initializer if each.name in ("shape0", "shape1")]:
        feeds[tensor.name] = numpy_helper.to_array(tensor)
        model.graph.initializer.remove(tensor)
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, TensorProto.INT64, tensor.dims)
        )
    assert_attended(model, feeds, ops=ops)
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    with running_on(ops):
        ogs.InferenceSession(model, options, nodes="all")
    for again in OPS:
        with running_on(again):
            session = ogs.InferenceSession(tmp_path / "saved.onnx", quiet_options(), nodes="all")
        (answer,), (expected,) = session.run(None, feeds), open_native(model).run(None, feeds)
        np.testing.assert_allclose(answer, expected, rtol=0, atol=1e-5)
    if ops == "python":
        with pytest.raises(ogs.GridSampleError, match="levels is computed, expected a constant"):
            ogs.patch_model(tmp_path / "saved.onnx", target="ai.onnx")


def test_locations_in_double_precision_keep_it(ops: str) -> None:
    """Also those that are made of grids."""
    model = written({"grids": "grids = Identity (at)"}, kind="double")
    feeds = {name: each.astype(np.float64) for name, each in written_feeds().items()}
    alone = ogs.InferenceSession(
        model, nodes=lambda record: record.operator != "DeformableAttention"
    )
    with running_on(ops):
        session = ogs.InferenceSession(model, nodes="all")
    assert "DeformableAttention" in {each.record.operator for each in session.replaced}
    np.testing.assert_allclose(
        session.run(None, feeds)[0], alone.run(None, feeds)[0], rtol=0, atol=1e-13
    )


FROM_ITSELF = {
    "X": "c = Identity (d) d = Identity (c) X0 = Identity (c) X1 = Reshape (t1, shape1)",
    "out": "c = Identity (total) d = Identity (c) c = Identity (d)",
}


@pytest.mark.parametrize("name", FROM_ITSELF)
def test_what_comes_from_itself_is_not_followed_without_end(name: str) -> None:
    """In a model that is not valid."""
    model = written({name: FROM_ITSELF[name]})
    model.graph.value_info.extend(
        helper.make_tensor_value_info(name, 1, [4, 4, 2, 3]) for name in "cd"
    )
    assert [record.operator for record in ogs.inspect_model(model)] == [
        "DeformableAttention",
        *["GridSample"] * 2,
    ]


@pytest.mark.parametrize(
    "name", [each for each in FORMS if each.startswith(("stacked", "concatenated"))]
)
def test_what_is_not_sampled_so_is_added(name: str, ops: str) -> None:
    model = form(name)
    _, other, _ = (node for node in model.graph.node if node.op_type == "GridSample")
    next(each for each in other.attribute if each.name == "mode").s = b"nearest"
    _, (whole,) = assert_attended(model, form_feeds(name), ops=ops)
    assert other.name not in whole.fused


def test_what_somebody_else_reads_stays() -> None:
    feeds = written_feeds()
    for other in ("float[4, 4, 3, 2, 2] E", "float[4, 4, 3, 4] product"):
        assert_attended(written({}, f"float[2, 3, 8] Y, {other}"), feeds, 0)
    session, _ = assert_attended(written({}, "float[2, 3, 8] Y, float[4, 4, 3, 2] S0"), feeds, 1)
    assert [
        each.record.output for each in session.replaced if not each.reason and not each.fused
    ] == ["S0"]
    for other in (
        "float[2, 8, 6] t0",
        "float[4, 1, 3, 4] W",
        "float[2, 3, 2, 2, 2, 2] grids",
        "float[4, 4, 3] total",
    ):
        assert_attended(written({}, f"float[2, 3, 8] Y, {other}"), feeds, 1)


def test_it_is_listed_and_declined() -> None:
    model = form("concatenated/static-dynamo")
    assert [r.operator for r in ogs.inspect_model(model)].count("DeformableAttention") == 1
    session = ogs.InferenceSession(
        model, nodes=lambda record: record.operator != "DeformableAttention"
    )
    assert {each.record.operator for each in session.replaced} == {"GridSample"}
    made, feeds = written({"samples": MADE}), written_feeds()
    alone = ogs.InferenceSession(
        made, nodes=lambda record: record.operator != "DeformableAttention"
    )
    np.testing.assert_allclose(
        alone.run(None, feeds)[0], open_native(made).run(None, feeds)[0], rtol=0, atol=1e-5
    )
    # A file has the GridSamples each by itself.
    assert [node.op_type for node in ogs.patch_model(model).graph.node].count("GridSample") == 3


TENSORRT = "MultiscaleDeformableAttnPlugin_TRT"
PLUGINS = [
    (TENSORRT, ""),
    (TENSORRT, "trt.plugins"),
    ("MMCVMultiScaleDeformableAttention", "mmdeploy"),
]


def plugin_model(op_type: str, domain: str, opset: int, is_constant: bool) -> onnx.ModelProto:
    rows = {"int32[2, 2] shapes": "5, 7, 3, 4", "int32[2] starts": "0, 35"}
    fed = "" if is_constant else "".join(f"{name}, " for name in rows)
    held = ", ".join(f"{name} = {{{row}}}" for name, row in rows.items()) if is_constant else ""
    imports, name = (f', "{domain}": 1', f"{domain}.{op_type}") if domain else ("", op_type)
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}{imports}]>
        plugin (float[B, 47, 3, 4] value, {fed}float[B, Q, 3, 2, 4, 2] at, float[B, Q, 3, 2, 4] by) => (float[] Y)
        <{held}> {{ Y = {name} (value, shapes, starts, at, by) }}""")
    model.graph.node[0].name = "attention"
    return model


@pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "fed"])
@pytest.mark.parametrize("opset", [11, 13, 17, 20])
@pytest.mark.parametrize(("op_type", "domain"), PLUGINS)
def test_a_plugin_runs_and_is_lowered(
    op_type: str, domain: str, opset: int, is_constant: bool
) -> None:
    model, levels = (
        plugin_model(op_type, domain, opset, is_constant),
        np.array([[4, 5, 7], [4, 3, 4]]),
    )
    assert ogs.inspect_model(model)[0].reason == "onnxruntime has no such operator"
    value, at, by = operands(levels)
    feeds = {"value": value, "at": at.reshape(2, 5, 3, 2, 4, 2), "by": by.reshape(2, 5, 3, 2, 4)}
    if not is_constant:
        feeds |= {"shapes": levels[:, 1:].astype(np.int32), "starts": np.array([0, 35], np.int32)}
    expected = definition(value, levels, at, by, False)
    for ops in OPS:
        with running_on(ops):
            session = ogs.InferenceSession(model, quiet_options(), nodes="all")
        (found,) = session.run(None, feeds)
        assert found.shape == ((2, 5, 3, 4) if "TRT" in op_type else (2, 5, 12))
        close(found.reshape(expected.shape), expected, "float32", "float32")
        if ops == "compiled" and opset >= 13:
            assert session.replaced[0].record.operator == "DeformableAttention"
    targets = (
        ("ai.onnx", "primitives") if opset > 11 or is_constant else ("ai.onnx",)
    )  # ranks are not inferred there
    finite = {**feeds, "at": np.clip(np.nan_to_num(feeds["at"]), -9, 9)}
    expected = definition(value, levels, finite["at"].reshape(at.shape), by, False)
    for target in targets:
        (found,) = open_native(ogs.patch_model(model, target=target)).run(None, finite)
        close(found.reshape(expected.shape), expected, "float32", "float32")


@pytest.mark.parametrize(
    "name", ["stacked/static-dynamo", "stacked/batch-torchscript", "single/static-torchscript"]
)
def test_there_and_back_through_the_plugin(name: str) -> None:
    model, feeds = form(name), form_feeds(name)
    written = ogs.patch_model(model, target="tensorrt-plugins")
    (plugin,) = (node for node in written.graph.node if node.op_type == TENSORRT)
    assert "GridSample" not in {node.op_type for node in written.graph.node}
    held = {t.name: t for t in written.graph.initializer}
    held |= {
        node.output[0]: node.attribute[0].t
        for node in written.graph.node
        if node.op_type == "Constant"
    }
    shapes, starts = (onnx.numpy_helper.to_array(held[each]) for each in plugin.input[1:3])
    assert (shapes.dtype, starts.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(starts, np.cumsum(shapes.prod(1)) - shapes.prod(1))
    (expected,) = open_native(model).run(None, feeds)
    for back in (
        ogs.InferenceSession(written),
        open_native(ogs.patch_model(written, target="ai.onnx")),
    ):
        np.testing.assert_allclose(back.run(None, feeds)[0], expected, rtol=0, atol=1e-5)
    onnx.checker.check_model(ogs.patch_model(written, target="ai.onnx"))


def test_tensorrt_plugin_of_half_values_and_single_locations_has_one_type() -> None:
    model, feeds = written({}), written_feeds()
    for value in (model.graph.input[0], model.graph.input[2], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    feeds |= {name: feeds[name].astype(np.float16) for name in ("value", "by")}
    plugins = onnx.shape_inference.infer_shapes(ogs.patch_model(model, target="tensorrt-plugins"))
    types = {
        each.name: each.type.tensor_type.elem_type
        for each in (*plugins.graph.input, *plugins.graph.value_info)
    }
    (plugin,) = (node for node in plugins.graph.node if node.op_type == TENSORRT)
    assert {types[plugin.input[index]] for index in (0, 3, 4)} == {TensorProto.FLOAT}
    (found,), (expected,) = (
        ogs.InferenceSession(each).run(None, feeds) for each in (plugins, model)
    )
    np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0, atol=2e-3)


def test_what_the_plugin_cannot_say_stays_and_one_that_says_too_little_is_refused() -> None:
    for model in map(
        form, ("concatenated/static-dynamo", "volumes/static-dynamo")
    ):  # other points a level; three axes
        assert ogs.patch_model(model, target="tensorrt-plugins") == model
    model = plugin_model(TENSORRT, "", 17, False)
    del model.graph.input[1].type.tensor_type.shape.dim[:]
    unknown = "spatial_shapes is of an unknown number of rows, expected one for each level"
    assert unknown in str(refusal(ogs.InferenceSession, model))
    del model.graph.node[0].input[4:]
    assert "inputs is 4, expected 5: value, spatial_shapes" in str(
        refusal(ogs.patch_model, model, target="ai.onnx")
    )
    assert ogs.patch_model(model, nodes=lambda record: False) == model


@compiled
@pytest.mark.parametrize(
    "name", ["concatenated/batch-dynamo", "volumes/static-dynamo", "single/static-dynamo"]
)
def test_what_onnxruntime_saved_is_read_back(name: str, tmp_path: Path) -> None:
    assert_read_back(form(name), form_feeds(name), tmp_path / "saved.onnx", "DeformableAttention")


THREADS = """
from concurrent.futures import ThreadPoolExecutor
from support import attention_models as t
model = t.form("stacked/queries-dynamo")
session = open_model(model)
expected = {n: open_native(model).run(None, t.form_feeds("stacked", n, 40))[0] for n in (1, 2, 3)}

def one(number):
    feeds = t.form_feeds("stacked", 1 + number % 3, 40)
    if number % 5 == 0:
        feeds["c"] = feeds["c"][:, :30]
        try:
            session.run(None, feeds)
        except Exception as error:
            return "attention_weights" in str(error) or "rejected" in str(error)
    return bool(np.allclose(session.run(None, feeds)[0], expected[1 + number % 3], rtol=0, atol=1e-5))

with ThreadPoolExecutor(16) as pool:
    print(all(pool.map(one, range(400))))
"""


@every_way
def test_sixteen_threads_get_their_own_answers_and_errors(open_model: str) -> None:
    if open_model in ("open_session", "open_compiled"):  # sessions find it, files do not
        assert run_process(THREADS, open_model) == ["True"]


PEAK = """
from support import attention_models as t
levels = np.array([[4, 64, 64], [4, 32, 32]])
feeds = dict(zip(("value", "at", "by"), t.operands(levels, n=1, q=5120, h=8, d=32))) | {"levels": levels}
session = t.session_for("float32", "float32", False)
session.run(None, feeds)
open("/proc/self/clear_refs", "w").write("5")  # forgets the peak of that run
before = resident()
(Y,) = session.run(None, feeds)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(peak - before < 8 + Y.nbytes / 2**20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for the memory")
@compiled
def test_nothing_is_written_but_the_output() -> None:
    """Natively the samples alone take 80 MiB."""
    assert run_process(PEAK, "open_compiled") == ["True"]


def quantized_after(model: onnx.ModelProto, op_type: str) -> list[str]:
    """Quantize the outputs of these nodes in place; the names of the QuantizeLinear nodes."""
    model.graph.initializer.extend([numpy_helper.from_array(np.float32(2**-5), "scale")])
    model.graph.initializer.extend([numpy_helper.from_array(np.int8(0), "zero_point")])
    names = []
    for index, node in reversed([*enumerate(model.graph.node)]):
        if node.op_type == op_type:
            output = node.output[0]
            node.output[0] = f"{output}_float"
            quantize = (
                [f"{output}_float", "scale", "zero_point"],
                [f"{output}_int8"],
                f"quantize_{index}",
            )
            dequantize = [f"{output}_int8", "scale", "zero_point"], [output], f"dequantize_{index}"
            model.graph.node.insert(index + 1, helper.make_node("QuantizeLinear", *quantize))
            model.graph.node.insert(index + 2, helper.make_node("DequantizeLinear", *dequantize))
            names.append(f"quantize_{index}")
    return names[::-1]


def predicted(model: onnx.ModelProto) -> list[Placement]:
    return predict_placements(model, Accelerators([], "lower", alone=False))


@pytest.mark.parametrize("op_type", ["GridSample", "Mul"])
def test_inspect_of_quantized_attention_names_what_prevents_the_fusion(op_type: str) -> None:
    model = form("concatenated/static-dynamo")
    assert not any("QuantizeLinear" in placement.note for placement in predicted(model))
    names = quantized_after(model, op_type)
    placements = predicted(model)
    assert {placement.record.op_type for placement in placements} == {"GridSample"}
    for placement in placements:
        assert "not fused into deformable attention" in placement.reason
        assert any(f"QuantizeLinear {name} lies between" in placement.reason for name in names)


def test_inspect_of_quantized_samples_that_are_no_attention_has_no_such_reason() -> None:
    model = parsed("""g (float[1,2,5,5] X, float[1,3,3,2] G, float[1,2,3,3] W) => (float[1,2,3,3] Y) {
        S = GridSample (X, G) Y = Mul (S, W) }""")
    quantized_after(model, "GridSample")
    (placement,) = predicted(model)
    assert "attention" not in placement.reason
