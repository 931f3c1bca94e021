"""Deformable attention: every form in which models have it, in every way of running them."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample import spec
from support import faults, oracle
from support.attention_forms import (
    BEVFORMER,
    COMPILED,
    EXPORTED_FORMS,
    FORMS,
    LEVELS_OF_ANY_RANK,
    MICROSOFT,
    MMCV,
    NODES,
    OWN,
    SMALL,
    TENSORRT,
    TOLERANCES,
    VARIANTS,
    form_of,
    variant,
)
from support.attention_models import (
    assert_attention_close,
    form,
    form_feeds,
    op_model,
    operands,
    session_for,
)
from support.command import printed
from support.compare import refusal
from support.fused_models import assert_saved_model_can_be_read, needs_compiled_ops
from support.graphs import all_nodes
from support.models import parsed
from support.oracle_evaluator import in_layout
from support.paths import (
    HAS_COMPILED_OPS,
    HAS_PYTHON_OPS,
    INSTALLED_CORES,
    core_set_to,
    quiet_options,
    running_on,
)
from support.processes import on_every_opener, run_program
from support.provider_nodes import count_fused
from support.ways import ATTENTION, WAYS, Limit, Matrix, way_param

# The matrix


_STANDARD = ("patched file", "compiled file", "ai.onnx", "primitives", "functions")
_BEV = "|".join(map(re.escape, BEVFORMER))
LIMITS = [
    Limit(
        ("provider",),
        rf"{OWN}|in a function of different",
        "the domain of Python ops has no ops unless they are registered",
        "not a registered function",
    ),
    Limit(
        ("provider",),
        rf"{_BEV}|{TENSORRT}|{MICROSOFT}|.*behind a Softmax",
        "onnxruntime knows no operator that others add to these domains",
        "not a registered function|No Op registered",
    ),
    Limit(
        ("provider",),
        f"half|{MMCV} in a function of two types",
        "the op has one type",
        "output type|Type Error|InferOutputTypes",
    ),
    Limit(
        ("provider",),
        f"{MMCV}, other starts",
        "the op reads levels that follow each other",
        "level_start_index",
    ),
    Limit(
        ("evaluator",),
        rf"{OWN}|{COMPILED}|{MMCV}|{MICROSOFT}|{_BEV}|half|mmcv|in a function of different"
        "|.*behind a Softmax",
        "reference_ops has the plugin of TensorRT only",
        "unknown|No registered schema",
    ),
    Limit(
        ("tensorrt-plugins",),
        rf"{MMCV}, .*, no (batches|queries)",
        "the Reshape behind the plugin has a length of -1, which needs elements",
        "Reshape",
    ),
    Limit(
        _STANDARD,
        r".*dynamic, opset 1[23], no points on",
        "before opset 14, a Reshape to a length of 0 copies that of another axis",
        "Reshape|GridSample node",
    ),
    Limit(
        (*_STANDARD, "declined"),
        f"{OWN} of bfloat16",
        "onnxruntime has no arithmetic of bfloat16",
    ),
    Limit(
        ("ai.onnx",),
        rf"float64 and float32|grids of float(32, float64|64, float32)|{OWN} of float.*float64"
        rf"|{OWN} of float64|.*in a function of two types",
        "onnxruntime has no GridSample of two types or of float64",
    ),
    Limit(
        ("ai.onnx", "tensorrt-plugins"),
        f"{OWN} of float(32|16)",
        "onnxruntime's GridSample differs where coordinates are not finite, and has no rank 3",
    ),
]
if faults.EMPTY_CONSTANTS:
    LIMITS += [
        Limit(
            (*_STANDARD, "tensorrt-plugins"),
            r"images, (0 batches|.* 0 queries)|.*(dynamic|fed), no points$",
            "this onnxruntime fails for tensors without elements",
        )
    ]
if faults.NO_BFLOAT16_ARRAYS:
    LIMITS += [
        Limit(
            tuple(WAYS),
            f"{OWN} of bfloat16",
            "this onnx has no arrays of bfloat16",
        )
    ]

#: The forms that all ways run by default.
SAMPLE = {
    "stacked/static-dynamo",
    "concatenated/queries-torchscript",
    "volumes/batch-dynamo",
    SMALL,
    "stacked/queries-dynamo, other lengths",
    "concatenated/static-torchscript, nearest level",
    "function",
    "branch",
    *list(VARIANTS)[:12],
    "aligned",
    "weights of one query",
    "computed grid",
    "fed shapes of images",
    "images, 2 batches, 3 queries",
    *(name for name in NODES if re.search(r"static, opset 17$|fed, opset 13$", name)),
    *(
        name
        for name in NODES
        if re.search(r"Softmax|in a function|one query|half|other starts", name)
    ),
    f"{MMCV}, dynamic, no points",
    f"{MMCV}, static, no queries",
    f"{MMCV}, dynamic, opset 13, no points on 1 levels",
    "float64 and float32 grids",
    f"{OWN} of bfloat16, locations of bfloat16, planes, edges",
    f"{OWN} of float32, locations of float32, planes, edges",
    f"{BEVFORMER[0]}, fed, no points",
    f"{OWN}, dynamic, opset 12, first level without pixels",
    f"{OWN}, merged axes, unknown ranks",
    f"{OWN}, aligned",
    *(name for name in NODES if name.startswith(COMPILED)),
    "output by head",
    "output of separate heads",
}


MATRIX = Matrix(
    form_of,
    LIMITS,
    sample=SAMPLE.__contains__,
    quick_ways=("compiled", "provider", "primitives"),
    library=rf"{OWN}, (as mmcv|aligned|fed levels|weights of one query, .*)"
    rf"|{MMCV}, (fed|dynamic), opset 1[37]$|aligned|slices|branch|function",
)
CELLS = MATRIX.cells(EXPORTED_FORMS | VARIANTS)
# The other ways run nodes of other packages.
CELLS += MATRIX.cells(NODES, ["declined"])
CELLS += MATRIX.sample_cells(
    "matrix products",
    [
        name
        for name in FORMS
        if name in EXPORTED_FORMS
        or re.match(r"aligned|slices|\S*(Plugin_TRT|MMCV).*, static", name)
    ],
)


#: Forms of which the execution provider fuses as many attentions as a session. Of others, it may
#: fuse fewer, because it searches the graph that onnxruntime has optimized.
PROVIDER_FUSES = (
    r"(stacked|concatenated|single|volumes)/\w+-\w+(, other lengths)?$"
    "|function|branches|grids of float|computed lengths of an image|as exporters write it"
    "|output (by head|of separate heads)|.*ReduceSum is an output"
)
#: Forms of which the provider fuses none: another node reads a value inside, or a fed length may
#: make the model fail.
PROVIDER_LEAVES = r".*(GridSample|Concat) is an output|fed (batches|channels) of an image"
#: Sessions whose ops are one for each attention.
FUSING_WAYS = ("python", "compiled")
#: Releases since 1.25 have fused nodes in bodies.
FUSES_IN_BODIES = not faults.before("1.25")


def assert_fused(name: str, way: str, session: Any) -> None:
    """Check the number of nodes that are one attention."""
    form = form_of(name)
    if way in FUSING_WAYS and form.attentions is not None:
        assert isinstance(session, ogs.InferenceSession)
        ours = [placement for placement in session.placements if placement.is_ours]
        operators = [placement.record.operator for placement in ours]
        assert operators.count(ATTENTION) == form.attentions
    elif way == "provider" and re.match(PROVIDER_FUSES, name):
        is_left = name.startswith("branches") and not FUSES_IN_BODIES
        assert count_fused(session) == (0 if is_left else form.attentions)
    elif way == "provider" and re.match(PROVIDER_LEAVES, name):
        assert count_fused(session) == 0


@pytest.mark.parametrize(("name", "way"), CELLS)
def test_attention_in_any_form_and_way_has_the_outputs_of_the_oracle(name: str, way: str) -> None:
    result = MATRIX.run(name, way)
    if result:
        assert_fused(name, way, result[0])


def test_limits_are_those_of_forms_that_all_ways_run() -> None:
    MATRIX.assert_limits_are_tested(FORMS)


@pytest.mark.parametrize("way", [way_param(way=way) for way in ("python", "compiled", "provider")])
@pytest.mark.parametrize("name", ["stacked/queries-dynamo", "concatenated/queries-torchscript"])
def test_one_session_runs_any_batch_and_queries(name: str, way: str) -> None:
    session = WAYS[way](form(name))
    for suffix in ("", ", other lengths"):
        expected = form_of(name + suffix)
        expected.assert_outputs(session.run(None, expected.feeds))


# Functions and ops

EQUAL_POINTS = {
    "rows": LEVELS_OF_ANY_RANK["rows"],
    "planes": np.array([[2, 5, 7], [2, 1, 4], [2, 3, 1]]),
    "volumes": LEVELS_OF_ANY_RANK["volumes"],
}
LOCATION_TYPES = [(kind, kind) for kind in TOLERANCES]
LOCATION_TYPES += [("float32", "float64"), ("float64", "float32"), ("bfloat16", "float32")]
OPS = (*(["python"] if HAS_PYTHON_OPS else []), *(["compiled"] if HAS_COMPILED_OPS else []))
every_core = pytest.mark.parametrize("core", INSTALLED_CORES)


def called(levels: np.ndarray, align: bool, *arrays: np.ndarray, **arguments: int) -> np.ndarray:
    """Call the function with the operands of levels with as many points each."""
    value, locations, weights = arrays
    n_levels, points = len(levels), levels[0, 0]
    shape = (*locations.shape[:3], n_levels, points)
    at = locations.reshape(*shape, locations.shape[-1])
    return ogs.deformable_attention(
        value, levels[:, 1:], at, weights.reshape(shape), align, **arguments
    )


def expected_of(levels: np.ndarray, align: bool, *arrays: np.ndarray) -> np.ndarray:
    Y = oracle.deformable_attention(arrays[0], levels, *arrays[1:], align)
    return Y.reshape(*Y.shape[:2], Y.shape[2] * Y.shape[3])


@every_core
@pytest.mark.parametrize("align", [False, True], ids=["edges", "centers"])
@pytest.mark.parametrize("levels", EQUAL_POINTS.values(), ids=EQUAL_POINTS)
@pytest.mark.parametrize(("kind", "locations"), LOCATION_TYPES)
def test_function_is_the_oracle(
    kind: str, locations: str, levels: np.ndarray, align: bool, core: str
) -> None:
    for channels in (1, 4, 21, 64, 117):
        arrays = operands(levels, kind, locations, d=channels)
        with core_set_to(core):
            Y = called(levels, align, *arrays, num_threads=2)
        assert_attention_close(Y, expected_of(levels, align, *arrays), kind, locations)


#: B, Q, H and D.
SIZES_OF_OUTPUTS = [
    (1, 1, 1, 1),
    (1, 17, 2, 7),
    (3, 5, 3, 4),
    (2, 33, 8, 16),
    (1, 260, 1, 5),
    (2, 0, 3, 4),
]


@pytest.mark.parametrize("layout", spec.OUTPUT_LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "locations"), [types for types in LOCATION_TYPES if "bfloat16" not in types]
)
@needs_compiled_ops
def test_output_of_a_node_in_any_layout_is_the_default_rearranged(
    kind: str, locations: str, layout: str
) -> None:
    """Also of more queries than are transposed at once, and of tiles of all sizes.

    onnxruntime takes no arrays of bfloat16.
    """
    levels = EQUAL_POINTS["planes"]
    one_point = levels[:1] - [1, 0, 0]
    for (n, q, h, d), rows in itertools.product(SIZES_OF_OUTPUTS, (levels, one_point)):
        value, at, by = operands(rows, kind, locations, n=n, q=q, h=h, d=d)
        feeds = {"value": value, "levels": rows, "at": at, "by": by}
        expected = in_layout(called(rows, False, value, at, by).reshape(n, q, h, d), layout)
        (Y,) = session_for(kind, locations, False, layout).run(None, feeds)
        np.testing.assert_array_equal(Y, expected)


@pytest.mark.parametrize("layout", spec.OUTPUT_LAYOUTS)
@pytest.mark.parametrize("n", [2, "N"])
@needs_compiled_ops
def test_inferred_shape_of_an_output_in_any_layout_is_that_of_a_run(
    n: int | str, layout: str
) -> None:
    """The number B·H of an unknown B has no name, and so the shape is not inferred."""
    value, at, by = operands(EQUAL_POINTS["planes"], n=2, q=5, h=3, d=4)
    model = op_model("float32", "float32", False, layout)
    for info, array in zip(model.graph.input, (value, EQUAL_POINTS["planes"], at, by), strict=True):
        for axis, length in enumerate(array.shape):
            dim = info.type.tensor_type.shape.dim.add()
            if axis == 0 and info.name != "levels" and isinstance(n, str):
                dim.dim_param = n
            else:
                dim.dim_value = length
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(model.SerializeToString(), ogs.register(quiet_options()))
    feeds = {"value": value, "levels": EQUAL_POINTS["planes"], "at": at, "by": by}
    (Y,) = session.run(None, feeds)
    inferred = session.get_outputs()[0].shape
    if layout == "channels_first" and n == "N":
        assert len(inferred) in (0, 3)
        assert not any(isinstance(length, int) for length in inferred)
    else:
        assert inferred == [n if length == 2 else length for length in Y.shape]


@needs_compiled_ops
def test_compiled_op_of_an_unknown_output_layout_is_refused_with_the_words() -> None:
    model = op_model("float32", "float32", False, "by_channel").SerializeToString()
    with pytest.raises(Exception, match="output_layout is 'by_channel', expected 'by_query', "):
        onnxruntime.InferenceSession(model, ogs.register(quiet_options()))


@every_core
def test_any_number_of_threads_has_identical_outputs(core: str) -> None:
    levels = np.array([[4, 30, 40], [4, 15, 20]])
    arrays = operands(levels, q=2000, h=4, d=32)
    with core_set_to(core):
        outputs = [called(levels, False, *arrays, num_threads=threads) for threads in (1, 2, 5)]
    for Y in outputs[1:]:
        np.testing.assert_array_equal(outputs[0], Y)


@given(st.data())
def test_attention_of_any_lengths_agrees_on_every_core_and_op(data: st.DataObject) -> None:
    """Also without levels, with levels of one pixel or none, and with any locations."""
    axes = data.draw(st.integers(1, 3))
    row = st.tuples(st.integers(0, 3), *[st.integers(0, 4)] * axes)
    rows = data.draw(st.lists(row, max_size=3))
    levels = np.array(rows, np.int64).reshape(len(rows), 1 + axes)
    if data.draw(st.booleans()):
        levels[:, :1] = levels[:1, :1]
    types = [("float32", "float32"), ("float32", "float64"), ("float16", "float16")]
    kind, locations_type = data.draw(st.sampled_from(types))
    queries = data.draw(st.integers(0, 9) | st.just(700))
    value, locations, weights = operands(
        levels,
        kind,
        locations_type,
        n=data.draw(st.integers(0, 2)),
        q=queries,
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
    if len(levels) and (levels[:, 0] == levels[0, 0]).all():
        for core in INSTALLED_CORES:
            with core_set_to(core):
                outputs.append(called(levels, align, value, locations, all_weights))
    if HAS_COMPILED_OPS:
        feeds = {"value": value, "levels": levels, "at": locations, "by": weights}
        outputs += session_for(kind, locations_type, align).run(None, feeds)
        if len(outputs) > 1:
            np.testing.assert_array_equal(*outputs[-2:])
    if queries < 700:
        outputs.append(expected_of(levels, align, value, locations, all_weights))
    for Y in outputs[:-1]:
        assert_attention_close(Y, outputs[-1].astype(np.float64), kind, locations_type)


@every_core
def test_weights_whose_sum_overflows_are_0_on_an_empty_level(core: str) -> None:
    locations = np.full((1, 1, 1, 2, 2, 2), 0.5)
    weights = np.full((1, 1, 1, 2, 2), 1.7e308)
    with core_set_to(core):
        Y = ogs.deformable_attention(np.zeros((1, 1, 1, 1)), [(0, 2), (1, 1)], locations, weights)
    np.testing.assert_array_equal(Y, [[[0.0]]])


@every_core
@pytest.mark.parametrize("weight", [np.inf, np.nan])
@pytest.mark.parametrize("lengths", [[(0, 2), (1, 1)], [(0, 2), (0, 0)]])
def test_infinite_weight_is_nan_on_an_empty_level(
    lengths: list[tuple[int, int]], weight: float, core: str
) -> None:
    value = np.zeros((1, sum(a * b for a, b in lengths), 1, 1))
    locations = np.full((1, 1, 1, 2, 2, 2), 0.5)
    weights = np.ones((1, 1, 1, 2, 2))
    weights[..., 0, 0] = weight
    with core_set_to(core):
        Y = ogs.deformable_attention(value, lengths, locations, weights)
    np.testing.assert_array_equal(Y, [[[np.nan]]])


@pytest.mark.slow
@every_core
def test_location_far_outside_a_level_longer_than_float32_integers_is_0(core: str) -> None:
    """In float32, 1 pixel beyond the last one is rounded to the last one."""
    length = (1 << 24) + 1
    locations = np.array([[0.5, 5.0], [5.0, 0.5], [np.inf, 0.5]], np.float32)
    with core_set_to(core):
        Y = ogs.deformable_attention(
            np.ones((1, length, 1, 1), np.float32),
            np.array([[1, length]]),
            locations.reshape(1, 3, 1, 1, 1, 2),
            np.ones((1, 3, 1, 1, 1), np.float32),
        )
    np.testing.assert_array_equal(Y, np.zeros((1, 3, 1), np.float32))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_spatial_shapes_of_any_integer_type_are_accepted(dtype: str) -> None:
    """There are more points than uint8 can count."""
    locations = np.full((1, 1, 1, 1, 300, 2), 0.5)
    weights = np.full((1, 1, 1, 1, 300), 1 / 300)
    Y = ogs.deformable_attention(
        np.ones((1, 2, 1, 1)), np.array([[1, 2]], dtype), locations, weights
    )
    np.testing.assert_allclose(Y, [[[1.0]]])


# What is recognized

#: The name of a variant -> the values of the model that the op reads, and the one that it writes.
#: The others are rearranged. Only variants with a value of all levels have a row.
IN_PLACE = {
    "as exporters write it": "value locations weights Y",
    "weights first": "value locations weights Y",
    "slices": "value locations weights Y",
    "grids are an input": "value weights Y",
    "Unsqueeze and Squeeze": "value locations weights Y",
    "Squeeze without axes": "value locations weights Y",
    "factor first": "value locations weights Y",
    "Gather that keeps the axis of levels": "value weights Y",
    "Gather of heads": "value weights Y",
    "Split of heads": "value weights Y",
    "negated grids": "value weights Y",
    "another scale": "value weights Y",
    "computed weights": "value locations Y",
    "output by head": "value locations weights",
    "output of separate heads": "value locations weights Y",
    "coordinates before points and levels": "value weights Y",
    "weights of one query": "value locations weights Y",
    "computed grid": "value weights Y",
    "sum over a positive axis": "value locations weights Y",
    "value of one axis of channels": "value locations weights Y",
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_attention_of_a_variant_reads_operands_in_place(name: str) -> None:
    records = ogs.inspect_model(form_of(name).model)
    (record,) = (record for record in records if record.operator == ATTENTION)
    values = {*record.values.values(), record.output}
    operands = [value for value in ("value", "locations", "weights", "Y") if value in values]
    assert " ".join(operands) == IN_PLACE[name]


@pytest.mark.parametrize("name", [name for name in EXPORTED_FORMS if "is an output" not in name])
def test_record_of_an_exported_attention_lists_its_samplers(name: str) -> None:
    """A level that is sampled in another mode is not one of them."""
    model = form_of(name).model
    attentions = [r for r in ogs.inspect_model(model) if r.operator == ATTENTION]
    nodes = [*all_nodes(model)]
    samplers = {node.name for node in nodes if node.op_type == "GridSample"}
    nearest = {
        node.name
        for node in nodes
        if any(attribute.s == b"nearest" for attribute in node.attribute)
    }
    for attention in attentions:
        assert samplers & {*attention.fused} == samplers - nearest


def test_patched_file_has_the_grid_samples_of_an_attention() -> None:
    patched = ogs.patch_model(form("concatenated/static-dynamo"))
    assert [node.op_type for node in patched.graph.node].count("GridSample") == 3


def test_session_that_declines_an_attention_replaces_its_grid_samples() -> None:
    session = WAYS["declined"](form("concatenated/static-dynamo"))
    assert isinstance(session, ogs.InferenceSession)
    assert {placement.record.operator for placement in session.placements} == {"GridSample"}


@needs_compiled_ops
def test_sample_of_an_attention_that_is_read_is_also_computed_alone() -> None:
    session = WAYS["compiled"](form_of("a sample is read").model)
    assert isinstance(session, ogs.InferenceSession)
    alone = [
        placement.record.output
        for placement in session.placements
        if not placement.reason and not placement.fused
    ]
    assert alone == ["S0"]


#: Values that depend on themselves, in a model that is therefore not valid.
CYCLES = {
    "X": "c = Identity (d) d = Identity (c) X0 = Identity (c) X1 = Reshape (t1, shape1)",
    "out": "c = Identity (total) d = Identity (c) c = Identity (d)",
}


@pytest.mark.parametrize("line", CYCLES)
def test_inspect_model_of_a_cycle_ends(line: str) -> None:
    model = variant({line: CYCLES[line]}).model
    for name in "cd":
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4, 2, 3])
        model.graph.value_info.append(value)
    operators = [record.operator for record in ogs.inspect_model(model)]
    assert operators == [ATTENTION, "GridSample", "GridSample"]


# Sessions


@on_every_opener
def test_attention_in_sixteen_threads_has_the_outputs_and_errors_of_each(open_model: str) -> None:
    if open_model not in ("open_session", "open_compiled"):
        pytest.skip("only sessions recognize an attention, patched files have GridSamples")
    assert run_program("attention_threads.py", open_model) == ["True"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory from Linux")
@needs_compiled_ops
def test_compiled_attention_allocates_no_more_than_its_output() -> None:
    """In onnxruntime, the samples alone take 80 MiB."""
    (line,) = run_program("attention_memory.py")
    peak_mib, output_mib = map(float, line.split())
    assert peak_mib < 8 + output_mib


@pytest.mark.parametrize("way", [way_param(way=way) for way in ("python", "compiled")])
def test_saved_attention_of_fed_lengths_runs_on_every_op(way: str, tmp_path: Path) -> None:
    form = form_of("fed shapes of images")
    options = quiet_options()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    with running_on(way):
        ogs.InferenceSession(form.model, options, nodes="all")
    saved = onnx.load(tmp_path / "saved.onnx")
    for other_way in OPS:
        form.assert_outputs(WAYS[other_way](saved).run(None, form.feeds))
    if way == "python":  # this op does not store the number of points on each level
        error = refusal(ogs.patch_model, saved, target="ai.onnx")
        assert (error.argument, error.found) == ("levels", "computed")


@needs_compiled_ops
@pytest.mark.parametrize(
    "name", ["concatenated/batch-dynamo", "volumes/static-dynamo", "single/static-dynamo"]
)
def test_attention_that_onnxruntime_saved_is_read_back(name: str, tmp_path: Path) -> None:
    assert_saved_model_can_be_read(form(name), form_feeds(name), tmp_path / "saved.onnx", ATTENTION)


# Quantized attentions


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


@pytest.mark.parametrize("op_type", ["GridSample", "Mul"])
def test_inspect_of_quantized_attention_names_what_prevents_the_fusion(
    op_type: str, tmp_path: Path
) -> None:
    model = form("concatenated/static-dynamo")
    onnx.save(model, tmp_path / "float.onnx")
    names = quantize_outputs(model, op_type)
    onnx.save(model, tmp_path / "quantized.onnx")
    assert "QuantizeLinear" not in printed("inspect", tmp_path / "float.onnx")
    inspected = printed("inspect", tmp_path / "quantized.onnx")
    assert "not fused into deformable attention" in inspected
    assert any(f"QuantizeLinear {name} lies between" in inspected for name in names)


def test_inspect_of_a_quantized_sample_that_is_no_attention_has_no_such_reason(
    tmp_path: Path,
) -> None:
    model = parsed("""
        g (float[1,2,5,5] X, float[1,3,3,2] G, float[1,2,3,3] W) => (float[1,2,3,3] Y) {
            S = GridSample (X, G)
            Y = Mul (S, W) }""")
    quantize_outputs(model, "GridSample")
    onnx.save(model, tmp_path / "quantized.onnx")
    assert "attention" not in printed("inspect", tmp_path / "quantized.onnx")
