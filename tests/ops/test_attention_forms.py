"""Test how deformable attention is recognized in models, and how plugins of it are converted.

test_attention.py tests the function and the ops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ort_gridsample as ogs
from conftest import OPS
from ort_gridsample.detection.find import find_matches
from ort_gridsample.detection.match import Match
from ort_gridsample.graph.new_nodes import Names
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.rewriting.targets.detected_attention import DetectedAttention
from ort_gridsample.session.accelerators import AcceleratorProbe
from ort_gridsample.session.placement import Placement
from ort_gridsample.session.prediction import predict_placements
from support.attention_models import (
    FORMS,
    Arrays,
    assert_attention_close,
    definition,
    form,
    form_feeds,
    operands,
)
from support.compare import refusal
from support.fused_models import assert_saved_model_can_be_read, needs_compiled_ops
from support.models import function_of, parsed
from support.paths import open_native, quiet_options, running_on
from support.processes import on_every_opener, run_program

ATTENTION = "DeformableAttention"


def is_no_attention(record: ogs.NodeRecord) -> bool:
    return record.operator != ATTENTION


def assert_same_outputs(
    session: ogs.InferenceSession, model: onnx.ModelProto, feeds: Arrays
) -> None:
    """Assert that the session has onnxruntime's outputs of the model."""
    outputs = session.run(None, feeds)
    for Y, expected in zip(outputs, open_native(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


def assert_attended(
    model: onnx.ModelProto, feeds: Arrays, count: int = 1, ops: str = "compiled"
) -> tuple[ogs.InferenceSession, list[ogs.Placement]]:
    """Open a session, and assert that it has ``count`` attentions and onnxruntime's outputs.

    Returns:
        The session and the placements of the attentions.
    """
    with running_on(ops):
        session = ogs.InferenceSession(model, quiet_options(), nodes="all")
    attentions = [
        placement for placement in session.placements if placement.record.operator == ATTENTION
    ]
    runs_on = {"compiled": "compiled op", "python": "Python op"}[ops]
    assert [placement.runs_on for placement in attentions] == [runs_on] * count
    assert_same_outputs(session, model, feeds)
    return session, attentions


# Exported models


@pytest.mark.parametrize("name", FORMS)
def test_attention_of_every_exported_form_is_one_op(name: str, ops: str) -> None:
    model = form(name)
    _, (attention,) = assert_attended(model, form_feeds(name), ops=ops)
    samplers = {node.name for node in model.graph.node if node.op_type == "GridSample"}
    assert samplers <= {*attention.fused}


@pytest.mark.parametrize("name", [name for name in FORMS if "static" not in name])
def test_attention_of_dynamic_axes_has_the_outputs_of_other_lengths(name: str, ops: str) -> None:
    with running_on(ops):
        session = ogs.InferenceSession(form(name), quiet_options(), nodes="all")
    queries = 8 if "queries" in name else 5
    assert_same_outputs(session, form(name), form_feeds(name, 3, queries))


@pytest.fixture
def stacked() -> tuple[onnx.ModelProto, Arrays, int, str]:
    """A model of an attention, its feeds, its opset, and the text of its inputs."""
    model = form("stacked/static-dynamo")
    feeds = form_feeds("stacked")
    (opset,) = (entry.version for entry in model.opset_import if not entry.domain)
    inputs = ", ".join(f"float{[*array.shape]} {name}" for name, array in feeds.items())
    return model, feeds, opset, inputs


def test_attention_in_a_function_is_one_op(
    stacked: tuple[onnx.ModelProto, Arrays, int, str], ops: str
) -> None:
    model, feeds, opset, inputs = stacked
    outer = parsed(f"outer ({inputs}) => (float[] Y2) {{ Y2 = local.attention (a, b, c) }}", opset)
    outer.functions.append(function_of(model, "local", "attention"))
    assert_attended(outer, feeds, ops=ops)


def test_attention_in_a_branch_is_one_op(
    stacked: tuple[onnx.ModelProto, Arrays, int, str], ops: str
) -> None:
    model, feeds, opset, inputs = stacked
    del model.graph.input[:]
    outer = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        outer ({inputs}, bool choice) => (float[] Y3) {{
            Y3 = If (choice) <else_branch = other () => (float[] Z) {{ Z = ReduceMax (c) }}> }}""")
    outer.graph.node[0].attribute.append(helper.make_attribute("then_branch", model.graph))
    assert_attended(outer, {**feeds, "choice": np.array(True)}, ops=ops)


@pytest.mark.parametrize(
    "name", [name for name in FORMS if name.startswith(("stacked", "concatenated"))]
)
def test_level_of_another_mode_is_added_to_the_attention(name: str, ops: str) -> None:
    model = form(name)
    _, nearest, _ = (node for node in model.graph.node if node.op_type == "GridSample")
    next(attribute for attribute in nearest.attribute if attribute.name == "mode").s = b"nearest"
    _, (attention,) = assert_attended(model, form_feeds(name), ops=ops)
    assert nearest.name not in attention.fused


def test_inspect_model_lists_an_attention() -> None:
    records = ogs.inspect_model(form("concatenated/static-dynamo"))
    assert [record.operator for record in records].count(ATTENTION) == 1


def test_session_that_declines_an_attention_replaces_its_grid_samples() -> None:
    session = ogs.InferenceSession(form("concatenated/static-dynamo"), nodes=is_no_attention)
    assert {placement.record.operator for placement in session.placements} == {"GridSample"}


def test_patched_file_has_the_grid_samples_of_an_attention() -> None:
    patched = ogs.patch_model(form("concatenated/static-dynamo"))
    assert [node.op_type for node in patched.graph.node].count("GridSample") == 3


@needs_compiled_ops
@pytest.mark.parametrize(
    "name", ["concatenated/batch-dynamo", "volumes/static-dynamo", "single/static-dynamo"]
)
def test_attention_that_onnxruntime_saved_is_read_back(name: str, tmp_path: Path) -> None:
    assert_saved_model_can_be_read(form(name), form_feeds(name), tmp_path / "saved.onnx", ATTENTION)


@on_every_opener
def test_attention_in_sixteen_threads_has_the_outputs_and_errors_of_each(open_model: str) -> None:
    if open_model not in ("open_session", "open_compiled"):
        pytest.skip("only sessions recognize an attention, patched files have GridSamples")
    assert run_program("attention_threads.py", open_model) == ["True"]


# Variants of one model

#: The nodes of an attention. There are two batches, two levels of 2×3 and 2×2 pixels, two heads of
#: four channels, three queries and two points.
LINES = {
    "grids": "twice = Mul (locations, two) grids = Sub (twice, one)",
    "images": "v0, v1 = Split <axis = 1> (value, areas)",
    "flat": "f0 = Reshape (v0, flat0) f1 = Reshape (v1, flat1)",
    "turned": "t0 = Transpose <perm = [0, 2, 1]> (f0) t1 = Transpose <perm = [0, 2, 1]> (f1)",
    "X": "X0 = Reshape (t0, shape0) X1 = Reshape (t1, shape1)",
    "levels": "g0 = Gather <axis = 3> (grids, i0) g1 = Gather <axis = 3> (grids, i1)",
    "heads first": "u0 = Transpose <perm = [0, 2, 1, 3, 4]> (g0) "
    "u1 = Transpose <perm = [0, 2, 1, 3, 4]> (g1)",
    "G": "G0 = Reshape (u0, grid_shape) G1 = Reshape (u1, grid_shape)",
    "samples": "S0 = GridSample (X0, G0) S1 = GridSample (X1, G1)",
    "new axis": "E0 = Unsqueeze (S0, three) E1 = Unsqueeze (S1, three)",
    "stack": "E = Concat <axis = 3> (E0, E1) all = Reshape (E, all_shape)",
    "weights": "w = Transpose <perm = [0, 2, 1, 3, 4]> (weights) W = Reshape (w, W_shape)",
    "sum": "product = Mul (all, W) total = ReduceSum <keepdims = 0> (product, last)",
    "out": "wide = Reshape (total, wide_shape) Y = Transpose <perm = [0, 2, 1]> (wide)",
}
_INT64_CONSTANTS = {
    "areas": (6, 4),
    "flat0": (2, 6, 8),
    "flat1": (2, 4, 8),
    "shape0": (4, 4, 2, 3),
    "shape1": (4, 4, 2, 2),
    "grid_shape": (4, 3, 2, 2),
    "all_shape": (4, 4, 3, 4),
    "W_shape": (4, 1, 3, 4),
    "W_shape_one_level": (4, 1, 3, 2),
    "W_shape_one_query": (4, 1, 1, 4),
    "wide_shape": (2, 8, 3),
    "three": (3,),
    "last": (-1,),
    "c0": (0,),
    "c1": (1,),
    "c2": (2,),
    "c6": (6,),
    "c10": (10,),
    "minus4": (-4,),
}
CONSTANTS = ", ".join(
    [
        "float two = {2}",
        "float one = {1}",
        "float other = {3}",
        "int64 i0 = {0}",
        "int64 i1 = {1}",
        *(
            f"int64[{len(row)}] {name} = {{{', '.join(map(str, row))}}}"
            for name, row in _INT64_CONSTANTS.items()
        ),
    ]
)
OUTPUT = "float[2, 3, 8] Y"


def variant_model(
    changes: Mapping[str, str],
    outputs: str = OUTPUT,
    queries_of_weights: int = 3,
    kind: str = "float",
) -> onnx.ModelProto:
    """Return the model of ``LINES`` with some of them changed.

    Args:
        changes: the new text of some lines.
        outputs: the text of the model's outputs.
        queries_of_weights: 3, or 1 if all queries have the same weights.
        kind: the type of all floats.
    """
    inputs = ", ".join(
        [
            "float[2, 10, 2, 4] value",
            "float[2, 3, 2, 2, 2, 2] locations",
            f"float[2, {queries_of_weights}, 2, 2, 2] weights",
        ]
    )
    nodes = " ".join({**LINES, **changes}.values())
    text = f"g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ {nodes} }}"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 20]> {text}'.replace("float", kind)
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"  # onnxruntime 1.20 derives the names of new nodes from Slices'
    return model


def variant_feeds(queries_of_weights: int = 3) -> Arrays:
    rng = np.random.default_rng(0)
    feeds = {
        "value": rng.normal(size=(2, 10, 2, 4)),
        "locations": rng.uniform(-0.2, 1.2, (2, 3, 2, 2, 2, 2)),
        "weights": rng.random((2, queries_of_weights, 2, 2, 2)),
    }
    return {name: array.astype(np.float32) for name, array in feeds.items()}


#: Properties of an attention -> the operand that is then read, or written, without nodes before.
IN_PLACE = {
    "value": "value",
    "locations": "locations",
    "has_weights_by_head": "weights",
    "has_output_by_query": "output",
}


@dataclass(frozen=True)
class Variant:
    """The lines that differ, and what is recognized of the model.

    Attributes:
        changes: the new text of some of ``LINES``.
        in_place: the operands that the op reads or writes as they lie in the model, or None if the
            model has no attention.
        output: the text of the model's output.
        queries_of_weights: as in :func:`variant_model`.
    """

    changes: dict[str, str] = field(default_factory=dict)
    in_place: str | None = "value locations weights output"
    output: str = OUTPUT
    queries_of_weights: int = 3


#: A sample of a grid that AffineGrid computes.
COMPUTED_GRID = {
    "samples": "z = Constant <value_ints = [4, 4, 3, 2]> () "
    "n = Constant <value_ints = [4, 2, 3]> () "
    "T = ConstantOfShape <value = float[1] {0.2}> (n) "
    "A0 = AffineGrid (T, z) "
    "S0 = GridSample (X0, A0) S1 = GridSample (X1, G1)"
}
ONE_AXIS_MORE = "l0 = Unsqueeze (g0, c0) s0 = Squeeze (l0, c0) "
VARIANTS = {
    "as exporters write it": Variant(),
    "weights first": Variant({"sum": LINES["sum"].replace("all, W", "W, all")}),
    "slices": Variant({"images": "v0 = Slice (value, c0, c6, c1) v1 = Slice (value, c6, c10, c1)"}),
    "grids are an input": Variant(
        {"grids": "grids = Identity (locations)"}, "value weights output"
    ),
    "Unsqueeze and Squeeze": Variant(
        {"heads first": ONE_AXIS_MORE + LINES["heads first"].replace("g0", "s0")}
    ),
    "Squeeze without axes": Variant(
        {
            "heads first": ONE_AXIS_MORE.replace("(l0, c0)", "(l0)")
            + LINES["heads first"].replace("g0", "s0")
        }
    ),
    "Gather that keeps the axis of levels": Variant(
        {
            "levels": "h0 = Gather <axis = 3> (grids, c0) h1 = Gather <axis = 3> (grids, c1) "
            "g0 = Squeeze (h0, three) g1 = Squeeze (h1, three)"
        },
        "value weights output",
    ),
    "Gather of heads": Variant(
        {"levels": LINES["levels"].replace("3", "2")}, "value weights output"
    ),
    "Split of heads": Variant(
        {
            "levels": "h0, h1 = Split <axis = 2, num_outputs = 2> (grids) "
            "g0 = Squeeze (h0, c2) g1 = Squeeze (h1, c2)"
        },
        "value weights output",
    ),
    "slices from the end": Variant(
        {"images": "v0 = Slice (value, c0, c6, c1) v1 = Slice (value, minus4, c10, c1)"}, ""
    ),
    "slices with steps": Variant(
        {"images": "v0 = Slice (value, c0, c6, c1, c1) v1 = Slice (value, c2, c10, c1, c2)"}, ""
    ),
    "factor first": Variant({"grids": "twice = Mul (two, locations) grids = Sub (twice, one)"}),
    "negated grids": Variant(
        {"grids": "twice = Mul (locations, two) grids = Sub (one, twice)"}, "value weights output"
    ),
    "another scale": Variant(
        {"grids": "twice = Mul (locations, other) grids = Sub (twice, one)"},
        "value weights output",
    ),
    "levels in another order": Variant(
        {"stack": LINES["stack"].replace("(E0, E1)", "(E1, E0)")}, ""
    ),
    "computed images": Variant(
        {"X": "r = Relu (t0) X0 = Reshape (r, shape0) X1 = Reshape (t1, shape1)"}, ""
    ),
    "computed weights": Variant(
        {"weights": LINES["weights"].replace("W =", "a =") + " W = Abs (a)"},
        "value locations output",
    ),
    "output by head": Variant(
        {"out": "wide = Reshape (total, wide_shape) Y = Identity (wide)"},
        "value locations weights",
        output="float[2, 8, 3] Y",
    ),
    "coordinates before points and levels": Variant(
        {
            "levels": LINES["levels"].replace("3", "5"),
            "heads first": LINES["heads first"].replace("3, 4", "4, 3"),
        },
        "value weights output",
    ),
    "one level": Variant(
        {
            "new axis": "",
            "stack": "all = Identity (S0)",
            "weights": "h = Gather <axis = 3> (weights, i0) "
            "w = Transpose <perm = [0, 2, 1, 3]> (h) W = Reshape (w, W_shape_one_level)",
        },
        "value weights output",
    ),
    "border": Variant(
        {"samples": 'S0 = GridSample <padding_mode = "border"> (X0, G0) S1 = GridSample (X1, G1)'},
        "value",
    ),
    "nearest": Variant(
        {"samples": LINES["samples"].replace("GridSample", 'GridSample <mode = "nearest">')}, None
    ),
    "two alignments": Variant(
        {"samples": "S0 = GridSample <align_corners = 1> (X0, G0) S1 = GridSample (X1, G1)"},
        "value",
    ),
    "Relu of a sample": Variant(
        {"new axis": "r = Relu (S1) " + LINES["new axis"].replace("S1", "r")}, "value"
    ),
    "weights of one query": Variant(
        {"weights": LINES["weights"].replace("W_shape", "W_shape_one_query")},
        queries_of_weights=1,
    ),
    "computed grid": Variant(COMPUTED_GRID, "value weights output"),
    "sum over a positive axis": Variant({"sum": LINES["sum"].replace("last", "three")}),
    "mean": Variant({"sum": LINES["sum"].replace("ReduceSum", "ReduceMean")}, None),
}


def attentions_of(model: onnx.ModelProto) -> list[Match]:
    """Return the deformable attentions that are detected around GridSamples."""
    matches = find_matches(model, scopes_of(model), None, with_reasons=False)
    return [match for match in matches if match.detected_attention is not None]


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_attention_variant_has_onnxruntimes_outputs_and_reads_operands_in_place(
    variant: Variant, ops: str
) -> None:
    model = variant_model(variant.changes, variant.output, variant.queries_of_weights)
    count = 0 if variant.in_place is None else 1
    assert_attended(model, variant_feeds(variant.queries_of_weights), count, ops)
    attentions = [match.detected_attention for match in attentions_of(model)]
    in_place = [
        " ".join(
            operand for attribute, operand in IN_PLACE.items() if getattr(attention, attribute)
        )
        for attention in attentions
    ]
    assert in_place == ([] if variant.in_place is None else [variant.in_place])


@pytest.fixture
def unknown_lengths() -> tuple[onnx.ModelProto, Arrays]:
    """A model that reads the shapes of its images from inputs, and its feeds."""
    model = variant_model({})
    feeds = variant_feeds()
    for tensor in list(model.graph.initializer):
        if tensor.name in ("shape0", "shape1"):
            feeds[tensor.name] = numpy_helper.to_array(tensor)
            model.graph.initializer.remove(tensor)
            shape_input = helper.make_tensor_value_info(tensor.name, TensorProto.INT64, tensor.dims)
            model.graph.input.append(shape_input)
    return model, feeds


def test_attention_of_unknown_lengths_is_one_op(
    unknown_lengths: tuple[onnx.ModelProto, Arrays], ops: str
) -> None:
    assert_attended(*unknown_lengths, ops=ops)


def test_saved_attention_of_unknown_lengths_runs_on_every_op(
    unknown_lengths: tuple[onnx.ModelProto, Arrays], ops: str, tmp_path: Path
) -> None:
    model, feeds = unknown_lengths
    options = quiet_options()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    with running_on(ops):
        ogs.InferenceSession(model, options, nodes="all")
    for other_ops in OPS:
        with running_on(other_ops):
            session = ogs.InferenceSession(tmp_path / "saved.onnx", quiet_options(), nodes="all")
        assert_same_outputs(session, model, feeds)
    if ops == "python":  # this op does not store the number of points on each level
        error = refusal(ogs.patch_model, tmp_path / "saved.onnx", target="ai.onnx")
        assert (error.argument, error.found) == ("levels", "computed")


@pytest.mark.parametrize("changes", [{}, {"grids": "grids = Identity (locations)"}])
def test_attention_of_float64_locations_is_computed_in_float64(
    changes: dict[str, str], ops: str
) -> None:
    model = variant_model(changes, kind="double")
    feeds = {name: array.astype(np.float64) for name, array in variant_feeds().items()}
    grid_samples = ogs.InferenceSession(model, nodes=is_no_attention)
    with running_on(ops):
        session = ogs.InferenceSession(model, nodes="all")
    assert ATTENTION in {placement.record.operator for placement in session.placements}
    (Y,) = session.run(None, feeds)
    (expected,) = grid_samples.run(None, feeds)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("grid_type", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_attention_of_grids_of_two_types_has_the_outputs_of_its_grid_samples(
    grid_type: int, ops: str
) -> None:
    grids = f"""
        G0 = Reshape (u0, grid_shape)
        uncast = Reshape (u1, grid_shape)
        G1 = Cast <to = {grid_type}> (uncast)"""
    model = variant_model({"G": grids})
    with running_on(ops):
        grid_samples = ogs.InferenceSession(model, quiet_options(), nodes=is_no_attention)
        session = ogs.InferenceSession(model, quiet_options(), nodes="all")
    assert ATTENTION in {placement.record.operator for placement in session.placements}
    (Y,) = session.run(None, variant_feeds())
    (expected,) = grid_samples.run(None, variant_feeds())
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


#: Inputs of an attention that has no value of all levels.
IMAGES = "float[N, 4, H, W] X0, float[N, 4, h, w] X1"
GRIDS = "float[N, Q, 2, 2] G0, float[N, Q, 2, 2] G1"


@pytest.mark.parametrize(("batches", "queries"), [(0, 3), (2, 0), (2, 3)])
def test_attention_of_images_has_the_outputs_of_any_number_of_batches_and_queries(
    batches: int, queries: int, ops: str
) -> None:
    model = parsed(f"""
        g ({IMAGES}, {GRIDS}, float[N, 1, Q, 4] weights) => (float[N, 4, Q] Y) {{
            S0 = GridSample (X0, G0)
            S1 = GridSample (X1, G1)
            samples = Concat <axis = 3> (S0, S1)
            n = Shape <start = 0, end = 1> (X0)
            one = Constant <value_ints = [1]> ()
            q = Shape <start = 1, end = 2> (G0)
            four = Constant <value_ints = [4]> ()
            shape = Concat <axis = 0> (n, one, q, four)
            W = Reshape (weights, shape)
            product = Mul (samples, W)
            last = Constant <value_ints = [-1]> ()
            Y = ReduceSum <keepdims = 0> (product, last)
        }}""")
    rng = np.random.default_rng(0)
    shapes = {
        "X0": (batches, 4, 2, 3),
        "X1": (batches, 4, 2, 2),
        "G0": (batches, queries, 2, 2),
        "G1": (batches, queries, 2, 2),
        "weights": (batches, 1, queries, 4),
    }
    feeds = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    with running_on(ops):
        grid_samples = ogs.InferenceSession(model, quiet_options(), nodes=is_no_attention)
        session = ogs.InferenceSession(model, quiet_options(), nodes="all")
    assert ATTENTION in {placement.record.operator for placement in session.placements}
    (Y,) = session.run(None, feeds)
    (expected,) = grid_samples.run(None, feeds)
    assert Y.shape == (batches, 4, queries)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)


def test_declined_attention_of_a_computed_grid_has_onnxruntimes_outputs() -> None:
    model = variant_model(COMPUTED_GRID)
    session = ogs.InferenceSession(model, nodes=is_no_attention)
    assert_same_outputs(session, model, variant_feeds())


#: Values that depend on themselves, in a model that is therefore not valid.
CYCLES = {
    "X": "c = Identity (d) d = Identity (c) X0 = Identity (c) X1 = Reshape (t1, shape1)",
    "out": "c = Identity (total) d = Identity (c) c = Identity (d)",
}


@pytest.mark.parametrize("line", CYCLES)
def test_inspect_model_of_a_cycle_ends(line: str) -> None:
    model = variant_model({line: CYCLES[line]})
    for name in "cd":
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4, 2, 3])
        model.graph.value_info.append(value)
    operators = [record.operator for record in ogs.inspect_model(model)]
    assert operators == [ATTENTION, "GridSample", "GridSample"]


@pytest.mark.parametrize("output", ["float[4, 4, 3, 2, 2] E", "float[4, 4, 3, 4] product"])
def test_attention_whose_products_are_read_is_not_replaced(output: str) -> None:
    assert_attended(variant_model({}, f"{OUTPUT}, {output}"), variant_feeds(), 0)


def test_sample_of_an_attention_that_is_read_is_also_computed_alone() -> None:
    model = variant_model({}, f"{OUTPUT}, float[4, 4, 3, 2] S0")
    session, _ = assert_attended(model, variant_feeds())
    alone = [
        placement.record.output
        for placement in session.placements
        if not placement.reason and not placement.fused
    ]
    assert alone == ["S0"]


@pytest.mark.parametrize(
    "output",
    [
        "float[2, 8, 6] t0",
        "float[4, 1, 3, 4] W",
        "float[2, 3, 2, 2, 2, 2] grids",
        "float[4, 4, 3] total",
    ],
)
def test_attention_whose_operands_or_output_are_read_keeps_them(output: str) -> None:
    assert_attended(variant_model({}, f"{OUTPUT}, {output}"), variant_feeds())


# Plugins

TENSORRT = "MultiscaleDeformableAttnPlugin_TRT"
PLUGINS = [
    (TENSORRT, ""),
    (TENSORRT, "trt.plugins"),
    ("MMCVMultiScaleDeformableAttention", "mmdeploy"),
]
PLUGIN_LEVELS = np.array([[4, 5, 7], [4, 3, 4]])


def plugin_model(op_type: str, domain: str, opset: int, is_constant: bool) -> onnx.ModelProto:
    """Return a model of one plugin node, whose levels are constants or inputs."""
    rows = {"int32[2, 2] shapes": "5, 7, 3, 4", "int32[2] starts": "0, 35"}
    inputs = ["float[B, 47, 3, 4] value"]
    if not is_constant:
        inputs += rows
    inputs += ["float[B, Q, 3, 2, 4, 2] locations", "float[B, Q, 3, 2, 4] weights"]
    constants = [f"{name} = {{{row}}}" for name, row in rows.items()] if is_constant else []
    imports = f', "{domain}": 1' if domain else ""
    name = f"{domain}.{op_type}" if domain else op_type
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}{imports}]>
        plugin ({", ".join(inputs)}) => (float[] Y) <{", ".join(constants)}> {{
            Y = {name} (value, shapes, starts, locations, weights) }}""")
    model.graph.node[0].name = "attention"
    return model


def plugin_feeds(is_constant: bool) -> tuple[Arrays, np.ndarray]:
    """Return feeds of :func:`plugin_model` with finite locations, and the expected output."""
    value, locations, weights = operands(PLUGIN_LEVELS)
    locations = np.clip(np.nan_to_num(locations), -9, 9)
    expected = definition(value, PLUGIN_LEVELS, locations, weights, False)
    feeds = {
        "value": value,
        "locations": locations.reshape(2, 5, 3, 2, 4, 2),
        "weights": weights.reshape(2, 5, 3, 2, 4),
    }
    if not is_constant:
        feeds["shapes"] = PLUGIN_LEVELS[:, 1:].astype(np.int32)
        feeds["starts"] = np.array([0, 35], np.int32)
    return feeds, expected


every_plugin = pytest.mark.parametrize(("op_type", "domain"), PLUGINS)
every_opset = pytest.mark.parametrize("opset", [11, 13, 17, 20])
constant_or_fed = pytest.mark.parametrize("is_constant", [True, False], ids=["constant", "fed"])


@constant_or_fed
@every_opset
@every_plugin
def test_plugin_in_a_session_is_the_definition(
    op_type: str, domain: str, opset: int, is_constant: bool, ops: str
) -> None:
    model = plugin_model(op_type, domain, opset, is_constant)
    assert ogs.inspect_model(model)[0].reason == "onnxruntime has no such operator"
    value, locations, weights = operands(PLUGIN_LEVELS)
    feeds, _ = plugin_feeds(is_constant)
    feeds["locations"] = locations.reshape(2, 5, 3, 2, 4, 2)  # some are not finite
    expected = definition(value, PLUGIN_LEVELS, locations, weights, False)

    with running_on(ops):
        session = ogs.InferenceSession(model, quiet_options(), nodes="all")
    (Y,) = session.run(None, feeds)
    assert Y.shape == ((2, 5, 3, 4) if op_type == TENSORRT else (2, 5, 12))
    assert_attention_close(Y.reshape(expected.shape), expected, "float32", "float32")
    if ops == "compiled" and opset >= 13:
        assert session.placements[0].record.operator == ATTENTION


@constant_or_fed
@every_opset
@every_plugin
@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
def test_lowered_plugin_is_the_definition(
    op_type: str, domain: str, opset: int, is_constant: bool, target: str
) -> None:
    if target == "primitives" and opset == 11 and not is_constant:
        pytest.skip("the rank of the levels is not inferred in opset 11")
    model = plugin_model(op_type, domain, opset, is_constant)
    feeds, expected = plugin_feeds(is_constant)
    (Y,) = open_native(ogs.patch_model(model, target=target)).run(None, feeds)
    assert_attention_close(Y.reshape(expected.shape), expected, "float32", "float32")


@pytest.mark.parametrize(
    "name", ["stacked/static-dynamo", "stacked/batch-torchscript", "single/static-torchscript"]
)
def test_attention_written_as_a_plugin_keeps_its_outputs(name: str) -> None:
    model = form(name)
    feeds = form_feeds(name)
    written = ogs.patch_model(model, target="tensorrt-plugins")
    (plugin,) = (node for node in written.graph.node if node.op_type == TENSORRT)
    assert "GridSample" not in {node.op_type for node in written.graph.node}

    constants = {tensor.name: tensor for tensor in written.graph.initializer}
    for node in written.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    shapes, starts = (numpy_helper.to_array(constants[name]) for name in plugin.input[1:3])
    assert (shapes.dtype, starts.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(starts, np.cumsum(shapes.prod(1)) - shapes.prod(1))

    lowered = ogs.patch_model(written, target="ai.onnx")
    onnx.checker.check_model(lowered)
    for session in (ogs.InferenceSession(written), open_native(lowered)):
        assert_same_outputs(session, model, feeds)


def test_plugin_gets_the_weights_of_one_query_for_every_query() -> None:
    variant = VARIANTS["weights of one query"]
    model = variant_model(variant.changes, queries_of_weights=1)
    feeds = variant_feeds(queries_of_weights=1)
    written = onnx.shape_inference.infer_shapes(ogs.patch_model(model, target="tensorrt-plugins"))
    assert TENSORRT in {node.op_type for node in written.graph.node}
    lowered = ogs.patch_model(written, target="ai.onnx")
    for session in (ogs.InferenceSession(written), open_native(lowered)):
        assert_same_outputs(session, model, feeds)


def test_weights_of_one_query_are_rearranged_without_batches() -> None:
    """A Reshape to a computed length (-1) would fail."""
    model = variant_model(VARIANTS["weights of one query"].changes, queries_of_weights=1)
    (match,) = attentions_of(model)
    assert match.detected_attention is not None
    operands = DetectedAttention(match, match.detected_attention, Names(model))
    output = helper.make_tensor_value_info(operands.write_weights(), TensorProto.FLOAT, None)
    weights = helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["B", 1, 2, 2, 2])
    graph = helper.make_graph(operands.nodes, "g", [weights], [output])
    opset = helper.make_opsetid("", 20)
    session = open_native(helper.make_model(graph, opset_imports=[opset], ir_version=8))
    (rearranged,) = session.run(None, {"weights": np.zeros((0, 1, 2, 2, 2), np.float32)})
    assert rearranged.shape == (0, 1, 2, 4)


def test_plugin_of_half_values_and_float32_locations_has_one_type() -> None:
    model = variant_model({})
    feeds = variant_feeds()
    for value in (model.graph.input[0], model.graph.input[2], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for name in ("value", "weights"):
        feeds[name] = feeds[name].astype(np.float16)
    written = onnx.shape_inference.infer_shapes(ogs.patch_model(model, target="tensorrt-plugins"))
    (plugin,) = (node for node in written.graph.node if node.op_type == TENSORRT)
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*written.graph.input, *written.graph.value_info)
    }
    assert {types[plugin.input[index]] for index in (0, 3, 4)} == {TensorProto.FLOAT}

    (Y,) = ogs.InferenceSession(written).run(None, feeds)
    (expected,) = ogs.InferenceSession(model).run(None, feeds)
    np.testing.assert_allclose(Y.astype(float), expected.astype(float), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    "name",
    ["concatenated/static-dynamo", "volumes/static-dynamo"],
    ids=["another number of points on each level", "three axes"],
)
def test_attention_that_the_plugin_does_not_support_is_not_changed(name: str) -> None:
    assert ogs.patch_model(form(name), target="tensorrt-plugins") == form(name)


@pytest.fixture
def unknown_levels() -> onnx.ModelProto:
    """A plugin whose number of levels is unknown."""
    model = plugin_model(TENSORRT, "", 17, is_constant=False)
    del model.graph.input[1].type.tensor_type.shape.dim[:]
    return model


def test_session_of_a_plugin_with_an_unknown_number_of_levels_is_refused(
    unknown_levels: onnx.ModelProto,
) -> None:
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


# What inspect reports of quantized attentions


def quantize_outputs(model: onnx.ModelProto, op_type: str) -> list[str]:
    """Quantize the outputs of these nodes in place, and return the names of the QuantizeLinears."""
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2**-5), "scale"))
    model.graph.initializer.append(numpy_helper.from_array(np.int8(0), "zero_point"))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    names = []
    for index, node in enumerate(nodes):
        model.graph.node.append(node)
        if node.op_type != op_type:
            continue
        output = node.output[0]
        model.graph.node[-1].output[0] = f"{output}_float"
        quantize = helper.make_node(
            "QuantizeLinear",
            [f"{output}_float", "scale", "zero_point"],
            [f"{output}_int8"],
            f"quantize_{index}",
        )
        dequantize = helper.make_node(
            "DequantizeLinear",
            [f"{output}_int8", "scale", "zero_point"],
            [output],
            f"dequantize_{index}",
        )
        model.graph.node.extend([quantize, dequantize])
        names.append(quantize.name)
    return names


def predicted(model: onnx.ModelProto) -> list[Placement]:
    return predict_placements(model, AcceleratorProbe([], "lower", only_sampling_nodes=False))


@pytest.mark.parametrize("op_type", ["GridSample", "Mul"])
def test_inspect_of_quantized_attention_names_what_prevents_the_fusion(op_type: str) -> None:
    model = form("concatenated/static-dynamo")
    assert not any("QuantizeLinear" in placement.note for placement in predicted(model))
    names = quantize_outputs(model, op_type)
    placements = predicted(model)
    assert {placement.record.op_type for placement in placements} == {"GridSample"}
    for placement in placements:
        assert "not fused into deformable attention" in placement.reason
        assert any(f"QuantizeLinear {name} lies between" in placement.reason for name in names)


def test_inspect_of_quantized_samples_that_are_no_attention_has_no_such_reason() -> None:
    model = parsed("""
        g (float[1,2,5,5] X, float[1,3,3,2] G, float[1,2,3,3] W) => (float[1,2,3,3] Y) {
            S = GridSample (X, G)
            Y = Mul (S, W) }""")
    quantize_outputs(model, "GridSample")
    (placement,) = predicted(model)
    assert "attention" not in placement.reason


def split_of_levels(name: str) -> tuple[onnx.ModelProto, onnx.NodeProto, onnx.TensorProto]:
    """Return a form, the Split of the pixels of all levels in it, and the constant lengths."""
    model = form(name)
    del model.graph.value_info[:]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants[node.output[0]] = node.attribute[0].t
    for node in model.graph.node:
        if node.op_type == "Split" and len(node.input) > 1:
            tensor = constants[node.input[1]]
            if len({*numpy_helper.to_array(tensor).tolist()}) > 1:  # of pixels, not of points
                return model, node, tensor
    raise AssertionError(name)


split_forms = pytest.mark.parametrize(
    "name",
    ["concatenated/batch-torchscript", "stacked/static-dynamo", "volumes/static-torchscript"],
)


@needs_compiled_ops
@split_forms
def test_fused_attention_reads_levels_by_the_lengths_of_their_images(name: str) -> None:
    """No check compares the lengths of a Split that only a run knows with those of the images."""
    model, split, tensor = split_of_levels(name)
    lengths = numpy_helper.to_array(tensor)
    split.input[1] = "lengths"
    model.graph.input.append(
        helper.make_tensor_value_info("lengths", TensorProto.INT64, lengths.shape)
    )
    feeds = form_feeds(name)
    right_feeds = feeds | {"lengths": lengths}
    session, _ = assert_attended(model, right_feeds)
    expected = session.run(None, right_feeds)
    wrong_feeds = feeds | {"lengths": lengths[::-1].copy()}
    for output, right in zip(session.run(None, wrong_feeds), expected, strict=True):
        np.testing.assert_array_equal(output, right)
    with pytest.raises(Exception, match=r"Reshape|GridSample"):
        open_native(model).run(None, wrong_feeds)


@split_forms
def test_attention_of_wrong_constant_split_lengths_is_refused(name: str) -> None:
    model, _, tensor = split_of_levels(name)
    wrong = numpy_helper.to_array(tensor)[::-1].copy()
    tensor.CopyFrom(numpy_helper.from_array(wrong, tensor.name))
    session = ogs.InferenceSession(model, quiet_options())
    for refusing in (session, open_native(model)):
        with pytest.raises(Exception, match=r"Reshape|GridSample"):
            refusing.run(None, form_feeds(name))
