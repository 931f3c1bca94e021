"""Detection of GridSamples and AffineGrids that are decomposed into basic operators."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple
from unittest.mock import MagicMock, create_autospec

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_gridsample as ogs
from ort_gridsample.detection import decomposed, find
from ort_gridsample.detection.find import records_of
from ort_gridsample.graph.new_names import Names
from ort_gridsample.graph.scope import opset_of
from ort_gridsample.inference import types
from ort_gridsample.inference.runtime_probe import RuntimeProbe
from support import faults
from support.cases import Attributes
from support.decomposed_models import (
    BILINEAR_ZEROS,
    DECOMPOSED_MODELS,
    ONE_OF_EACH_KIND,
    feeds_for,
    load_decomposed,
)
from support.fused_models import models_with_another_reader
from support.graphs import all_nodes
from support.models import function_of, grid_sample_model, parsed
from support.parameters import with_sweep
from support.paths import Open, open_native, open_patched_file, open_session


@pytest.fixture(autouse=True)
def no_kept_results() -> None:
    """Forget the results of the trials of former tests."""
    decomposed._trial_results.clear()


#: Models that are not detected, and why.
UNDETECTED = {
    "discrete/nearest-border-0-static-dynamo": "it rounds half a pixel further on",
    "attention/bilinear-zeros-0-dynamic-dynamo": (
        "it does not state that X and the grid have the same batch times heads"
    ),
}
if faults.FEW_SHAPES:
    UNDETECTED["attention/bilinear-zeros-0-static-torchscript"] = (
        "onnxruntime does not infer its grid's shape yet"
    )
DYNAMIC = "decomposed/bilinear-border-1-dynamic-dynamo"
#: A session that compiles nothing. The contract suite has the other ways.
SESSIONS = (open_session,)


class Operator(NamedTuple):
    """An operator that is decomposed in a model."""

    op_type: str
    mode: str | None
    padding_mode: str | None
    align_corners: int


BILINEAR = Operator("GridSample", "linear", "zeros", 0)


def expected_operators(name: str) -> list[Operator]:
    """Return the operators in a model of DECOMPOSED_MODELS, of those that can be detected."""
    if name in UNDETECTED:
        return []
    form, _, description = name.partition("/")
    if form == "affine_grid":
        _, align_corners, *_ = description.split("-")
        return [Operator("AffineGrid", None, None, int(align_corners))]
    mode, padding_mode, align_corners, *_ = description.split("-")
    count = 2 if form == "attention" else 1
    operator = Operator("GridSample", ogs.spec.mode_of(mode), padding_mode, int(align_corners))
    return [operator] * count


def detected_operators(model: onnx.ModelProto) -> list[Operator]:
    return [
        Operator(record.operator, record.mode, record.padding_mode, record.align_corners)
        for record in ogs.inspect_model(model)
        if record.decomposed
    ]


def assert_same_outputs(
    model: onnx.ModelProto, *others: onnx.ModelProto, sessions: Sequence[Open] = SESSIONS
) -> None:
    """Check ``sessions`` of a model, and ``others`` in onnxruntime, against onnxruntime."""
    feeds = feeds_for(model)
    expected_outputs = open_native(model).run(None, feeds)
    opened = [open_model(model) for open_model in sessions]
    for session in (*opened, *map(open_native, others)):
        outputs = session.run(None, feeds)
        for output, expected in zip(outputs, expected_outputs, strict=True):
            assert output.dtype == expected.dtype
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=2e-4)


@with_sweep("name", sorted(DECOMPOSED_MODELS), ONE_OF_EACH_KIND)
def test_decomposed_operator_is_detected(name: str) -> None:
    model = load_decomposed(name)
    open_native(model)  # skips the test if onnxruntime cannot read the model
    expected = expected_operators(name)
    assert detected_operators(model) == expected
    patched = ogs.patch_model(model, target="ai.onnx")
    onnx.checker.check_model(patched)
    assert_same_outputs(model, patched, sessions=[])
    # Opset 18 has no AffineGrid.
    if any(operator.op_type == "GridSample" for operator in expected):
        op_types = {node.op_type for node in patched.graph.node}
        assert "GridSample" in op_types
        assert not op_types & {"GatherND", "GatherElements", "Floor", "Round"}


def test_decomposed_models_have_every_mode_padding_and_alignment() -> None:
    operators = {operator for name in DECOMPOSED_MODELS for operator in expected_operators(name)}
    attributes = product(ogs.spec.MODES, ogs.spec.PADDING_MODES, (0, 1))
    samples = {Operator("GridSample", *values) for values in attributes}
    affine_grids = {Operator("AffineGrid", None, None, align_corners) for align_corners in (0, 1)}
    assert operators == samples | affine_grids


@dataclass(frozen=True)
class LoweredCase:
    """Attributes of a sample, its number of axes, and whether it is lowered to a function."""

    mode: str
    padding_mode: str
    align_corners: int
    axes: int
    functions: bool = False

    def __str__(self) -> str:
        form = "function" if self.functions else "nodes"
        values = (self.mode, self.padding_mode, self.align_corners, f"{self.axes}d", form)
        return "-".join(map(str, values))


QUICK_LOWERED = [
    LoweredCase("nearest", "zeros", 0, axes=2, functions=True),
    LoweredCase("nearest", "border", 1, axes=2, functions=True),
    LoweredCase("nearest", "reflection", 0, axes=3),
    LoweredCase("linear", "zeros", 1, axes=3),
    LoweredCase("linear", "border", 0, axes=2),
    LoweredCase("linear", "reflection", 1, axes=2),
    LoweredCase("cubic", "zeros", 0, axes=3, functions=True),
    LoweredCase("cubic", "border", 1, axes=3, functions=True),
    LoweredCase("cubic", "reflection", 0, axes=2),
]
MORE_LOWERED = [
    LoweredCase("nearest", "zeros", 1, axes=2),
    LoweredCase("nearest", "border", 0, axes=2),
    LoweredCase("nearest", "reflection", 1, axes=3),
    LoweredCase("linear", "zeros", 0, axes=3, functions=True),
    LoweredCase("linear", "border", 1, axes=2, functions=True),
    LoweredCase("linear", "reflection", 0, axes=2),
    LoweredCase("cubic", "zeros", 1, axes=3),
    LoweredCase("cubic", "border", 0, axes=3),
    LoweredCase("cubic", "reflection", 1, axes=2),
]


@with_sweep("case", [*QUICK_LOWERED, *MORE_LOWERED], QUICK_LOWERED, ids=str)
def test_lowered_sample_is_detected(case: LoweredCase) -> None:
    attributes = Attributes(case.mode, case.padding_mode, bool(case.align_corners))
    model = grid_sample_model("float32", "float32", case.axes, [attributes])
    lowered = ogs.patch_model(model, target="primitives", functions=case.functions)
    operator = Operator("GridSample", case.mode, case.padding_mode, case.align_corners)
    assert detected_operators(lowered) == [operator]
    assert ogs.patch_model(lowered, target="primitives") == lowered
    standard = ogs.patch_model(lowered, target="ai.onnx")
    (node,) = (node for node in all_nodes(standard) if node.op_type == "GridSample")
    assert helper.get_node_attr_value(node, "mode").decode() == case.mode


def test_lowered_sample_of_very_many_positions_is_detected() -> None:
    """It has more than :data:`ort_gridsample.detection.trials.MAX_COMPARED`."""
    inputs = "float[1, 1, 20, 30] X, float[1, 250, 300, 2] G"
    model = parsed(f"g ({inputs}) => (float[1, 1, 250, 300] Y) {{ Y = GridSample (X, G) }}")
    assert detected_operators(ogs.patch_model(model, target="primitives")) == [BILINEAR]


@pytest.mark.parametrize(("height", "width"), [(1, 8), (2, 4), (8, 1)])
def test_lowered_sample_of_an_image_with_pixels_in_one_axis_is_detected(
    height: int, width: int
) -> None:
    model = parsed(f"""g (float[2,3,8] a, float[2,5,5,2] b) => (float[2,3,5,5] Y) {{
        shape = Constant <value_ints = [2,3,{height},{width}]> ()
        X = Reshape (a, shape)
        Y = GridSample (X, b) }}""")
    lowered = ogs.patch_model(model, target="primitives")
    (reshape,) = (node for node in lowered.graph.node if node.output[0] == "X")
    lowered.graph.node.remove(reshape)
    for node in lowered.graph.node:
        node.input[:] = ["a" if name == "X" else name for name in node.input]
    assert detected_operators(lowered) == [BILINEAR]
    assert_same_outputs(model, lowered, ogs.patch_model(lowered, target="ai.onnx"), sessions=[])


def test_record_of_a_decomposed_sample() -> None:
    model = load_decomposed(BILINEAR_ZEROS)
    faults.skip_unread(model)
    (record,) = ogs.inspect_model(model)
    assert (record.dialect.name, record.domain) == ("decomposed", "decomposed")
    assert (record.op_type, record.output) == ("GridSample", "Y")
    assert (record.native, record.reason, record.error) == (True, "", None)
    assert record.values == {"X": "a", "grid": "b"}
    assert record.types == {"X": ("float32",), "grid": ("float32",)}


def test_detection_without_a_runtime_finds_no_decomposed_sample() -> None:
    assert records_of(load_decomposed(BILINEAR_ZEROS)) == []


@pytest.mark.parametrize(
    "nodes", [lambda record: not record.decomposed, "unsupported"], ids=["function", "unsupported"]
)
def test_decomposed_sample_that_is_not_chosen_is_kept(nodes: object) -> None:
    model = load_decomposed(BILINEAR_ZEROS)
    faults.skip_unread(model)
    assert ogs.patch_model(model, nodes=nodes) == model


def test_patch_replaces_all_nodes_of_a_decomposed_sample() -> None:
    model = load_decomposed(BILINEAR_ZEROS)
    faults.skip_unread(model)
    patched = ogs.patch_model(model)
    assert patched.graph.node[0].op_type == "GridSample"
    assert not patched.graph.initializer
    assert ogs.patch_model(patched) == patched


def test_decomposed_affine_grid_of_a_computed_size_has_no_constant_size() -> None:
    (record,) = ogs.inspect_model(load_decomposed("affine_grid/3-1-dynamic-torchscript"))
    assert record.values["theta"] == "a"
    assert record.values["size"]
    assert "size" not in record.constants


def test_decomposed_affine_grid_of_a_known_size_has_a_constant_size() -> None:
    (record,) = ogs.inspect_model(load_decomposed("affine_grid/2-1-static-dynamo"))
    assert record.values["theta"] == "a"
    assert record.constants["size"].tolist() == [2, 1, 4, 5]


def test_decomposed_affine_grid_is_replaced_only_from_opset_20_on() -> None:
    model = load_decomposed("affine_grid/2-1-static-dynamo")
    assert ogs.patch_model(model, target="ai.onnx") == model
    model.opset_import[0].version = 20
    patched = ogs.patch_model(model, target="ai.onnx")
    assert [node.op_type for node in patched.graph.node] == ["Constant", "AffineGrid"]


def test_decomposed_affine_grid_of_a_base_from_nodes_is_detected() -> None:
    name = "affine_grid/2-0-static-dynamo"
    model = load_decomposed(name)
    (base,) = (tensor.name for tensor in model.graph.initializer if len(tensor.dims) > 1)
    for node in model.graph.node:
        node.input[:] = ["copied" if value == base else value for value in node.input]
    model.graph.node.insert(0, helper.make_node("Identity", [base], ["copied"]))
    assert detected_operators(model) == expected_operators(name)
    assert_same_outputs(model)


def constants_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield node.attribute[0].t


def with_changed_constant(model: onnx.ModelProto, number: int, change: float) -> onnx.ModelProto:
    """Return a copy in which the last element of a constant is changed; booleans are inverted."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = list(constants_of(copy))[number]
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype == bool:
        array ^= True
    else:
        array.reshape(-1)[-1] += np.array(change).astype(array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return copy


#: Models, and changes of their constants.
QUICK_CHANGES = [
    (BILINEAR_ZEROS, (-1, 5e-5)),
    (DYNAMIC, (1, 0.01)),
    ("affine_grid/2-0-static-dynamo", (1, -1, 0.01, 5e-5)),
]
ALL_CHANGES = [
    (name, (1, -1, 0.01, 5e-5))
    for name in (
        BILINEAR_ZEROS,
        DYNAMIC,
        "decomposed/nearest-reflection-1-static-dynamo",
        "padded/bilinear-zeros-1-static-dynamo",
        "clamped/bilinear-border-0-dynamic-dynamo",
        "affine_grid/3-1-dynamic-dynamo",
    )
]


@with_sweep("name,changes", [*QUICK_CHANGES, *ALL_CHANGES], QUICK_CHANGES)
def test_operator_of_a_changed_constant_is_detected_only_if_its_output_is_the_same(
    name: str, changes: Sequence[float]
) -> None:
    model = load_decomposed(name)
    feeds = feeds_for(model)
    for change in changes:
        undetected_count = 0
        for number, tensor in enumerate(constants_of(model)):
            is_float = tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE)
            if not is_float and change != int(change):
                continue
            changed = with_changed_constant(model, number, change)
            if not detected_operators(changed):
                undetected_count += 1
                continue
            (output,) = open_session(ogs.patch_model(changed)).run(None, feeds)
            (expected,) = open_native(changed).run(None, feeds)
            np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)
        assert undetected_count > 0, change


@pytest.mark.parametrize(
    ("size", "padding_mode"), [(8, "zeros"), (600, "border"), (8, "reflection")]
)
def test_lowered_sample_with_a_weight_off_by_5e_5_is_not_detected(
    size: int, padding_mode: str
) -> None:
    """The difference must not be taken for rounding, which depends on the size of the image."""
    model = grid_sample_model("float32", "float32", 1, [Attributes("linear", padding_mode, True)])
    X_type = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3, size])
    model.graph.input[0].type.CopyFrom(X_type)
    lowered = ogs.patch_model(model, target="primitives")
    assert len(detected_operators(lowered)) == 1
    nodes = lowered.graph.node
    last_mul = max(index for index, node in enumerate(nodes) if node.op_type == "Mul")
    lowered.graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [], [1.00005]))
    scale = helper.make_node("Mul", [nodes[last_mul].input[0], "factor"], ["scaled"])
    nodes.insert(last_mul, scale)
    nodes[last_mul + 1].input[0] = "scaled"
    onnx.checker.check_model(lowered)
    assert detected_operators(lowered) == []


def first_node(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == op_type)


def swap_columns_of_the_grid(model: onnx.ModelProto) -> None:
    grid = model.graph.node[1].output[0]
    x, y = (n for n in model.graph.node if n.op_type == "Gather" and n.input[0] == grid)
    x.input[1], y.input[1] = y.input[1], x.input[1]


def make_a_constant_an_input(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT)
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    model.graph.input.append(info)


def move_floor_to_another_domain(model: onnx.ModelProto) -> None:
    first_node(model, "Floor").domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))


def convert_to_half_precision(model: onnx.ModelProto) -> None:
    """Convert all floats; the rounding of float16 is too coarse to compare outputs."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def remove_shape_of_X(model: onnx.ModelProto) -> None:  # noqa: N802
    model.graph.input[0].type.tensor_type.ClearField("shape")


@pytest.mark.parametrize(
    "change",
    [
        swap_columns_of_the_grid,
        make_a_constant_an_input,
        move_floor_to_another_domain,
        convert_to_half_precision,
        remove_shape_of_X,
    ],
)
def test_nodes_that_may_compute_something_else_are_not_detected(
    change: Callable[[onnx.ModelProto], None],
) -> None:
    model = load_decomposed(BILINEAR_ZEROS)
    change(model)
    assert detected_operators(model) == []
    assert ogs.patch_model(model) == model


@pytest.mark.parametrize("op_type", ["Mul", "GatherND"], ids=["a weight", "pixels of a corner"])
@pytest.mark.parametrize("reader", ["output", "node", "body"])
def test_nodes_with_another_reader_are_not_detected(reader: str, op_type: str) -> None:
    model = load_decomposed(BILINEAR_ZEROS)
    value = first_node(model, op_type).output[0]
    with_reader = models_with_another_reader(model, value)[reader]
    assert detected_operators(with_reader) == []
    assert ogs.patch_model(with_reader) == with_reader


def model_with_branch(
    name: str, body: onnx.GraphProto, outer_constants: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    """Return a model with the inputs of another, and a branch with the nodes of ``body``."""
    source = load_decomposed(name)
    model = parsed(
        """g (bool c) => (float[] out) {
            out = If (c) <then_branch = t () => (float[] Y) { },
                          else_branch = e () => (float[] n) { n = Identity (a) }> }""",
        opset_of(source),
    )
    model.graph.input.extend(source.graph.input)
    model.graph.initializer.extend(outer_constants)
    branch = model.graph.node[0].attribute[0].g
    branch.node.extend(body.node)
    branch.initializer.extend(body.initializer)
    return model


@pytest.mark.parametrize(
    "name",
    [
        BILINEAR_ZEROS,
        DYNAMIC,
        "affine_grid/2-0-static-dynamo",
        "affine_grid/2-0-dynamic-dynamo",
    ],
)
def test_decomposed_operator_in_a_branch_is_detected(name: str) -> None:
    source = load_decomposed(name)
    model = model_with_branch(name, source.graph)
    assert detected_operators(model) == expected_operators(name)
    feeds = feeds_for(source) | {"c": np.array(True)}
    (expected,) = open_native(model).run(None, feeds)
    for open_model in (open_session, open_patched_file):
        (output,) = open_model(model).run(None, feeds)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("offset", [0, 1], ids=["right", "wrong"])
@pytest.mark.parametrize("is_shadowed", [True, False], ids=["shadowed", "outer"])
def test_constant_of_the_nearest_scope_is_read(is_shadowed: bool, offset: int) -> None:
    body = load_decomposed(BILINEAR_ZEROS).graph
    tensor = next(t for t in body.initializer if t.data_type == TensorProto.FLOAT and not t.dims)
    outer = numpy_helper.from_array(numpy_helper.to_array(tensor) + np.float32(offset), tensor.name)
    if not is_shadowed:
        body.initializer.remove(tensor)
    model = model_with_branch(BILINEAR_ZEROS, body, outer_constants=[outer])
    is_detected = is_shadowed or offset == 0
    assert detected_operators(model) == ([BILINEAR] if is_detected else [])


def test_decomposed_operator_in_a_function_is_detected() -> None:
    source = load_decomposed(BILINEAR_ZEROS)
    model = parsed("g () => (float[] out) { out = local.sample (a, b) }", 18)
    model.graph.input.extend(source.graph.input)
    model.functions.append(function_of(source, "local", "sample"))
    assert detected_operators(model) == [BILINEAR]
    assert_same_outputs(model)


def add_copy(
    model: onnx.ModelProto, from_op_type: str = "", X: str = "a", prefix: str = "second"
) -> None:
    """Add a copy of a model's nodes, with an output of its own.

    Args:
        model: the model of one output Y.
        from_op_type: copy only the nodes of this operator and those that depend on them.
        X: what the copies read in place of ``a``.
        prefix: the beginning of the new names.
    """
    copied = set[str]()
    for node in list(model.graph.node):
        is_copied = from_op_type in ("", node.op_type) or not copied.isdisjoint(node.input)
        if not is_copied:
            continue
        copy = model.graph.node.add()
        copy.CopyFrom(node)
        inputs = [X if name == "a" else name for name in node.input]
        copy.input[:] = [f"{prefix} {name}" if name in copied else name for name in inputs]
        copy.output[:] = [f"{prefix} {name}" for name in node.output]
        copy.name = f"{prefix} {node.name}"
        copied.update(node.output)
    model.graph.output.append(helper.make_tensor_value_info(f"{prefix} Y", TensorProto.FLOAT, None))


def test_decomposed_samples_that_share_coordinates_are_detected() -> None:
    """Exporters that eliminate common subexpressions write them."""
    model = load_decomposed(BILINEAR_ZEROS)
    add_copy(model, "GatherND", "mask")
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [2, 3, 4, 5]))
    assert detected_operators(model) == [BILINEAR, BILINEAR]
    both = ogs.patch_model(model, target="ai.onnx")
    assert [node.op_type for node in both.graph.node] == ["GridSample", "GridSample"]
    one = ogs.patch_model(model, target="ai.onnx", nodes=lambda record: record.output == "Y")
    op_types = [node.op_type for node in one.graph.node]
    assert (op_types.count("GridSample"), op_types.count("GatherND")) == (1, 4)
    assert_same_outputs(model, both, one)


def test_decomposed_sample_with_a_shape_that_is_an_output_is_detected() -> None:
    model = load_decomposed(DYNAMIC)
    shape = first_node(model, "Shape").output[0]
    model.graph.output.append(helper.make_tensor_value_info(shape, TensorProto.INT64, None))
    assert detected_operators(model) == expected_operators(DYNAMIC)
    patched = ogs.patch_model(model, target="ai.onnx")
    assert_same_outputs(model, patched)


@pytest.mark.parametrize(("dims", "is_detected"), [("NCHW", True), ("NCHV", False)])
def test_decomposed_sample_may_read_lengths_of_a_tensor_of_the_same_shape(
    dims: str, is_detected: bool
) -> None:
    """Exporters read a length from any tensor with that dimension."""
    model = load_decomposed(DYNAMIC)
    model.graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, [*dims]))
    for value, symbols in zip(model.graph.input, ("NCHW", "Nhw"), strict=False):
        for dim, symbol in zip(value.type.tensor_type.shape.dim, symbols, strict=False):
            dim.dim_param = symbol
    for node in model.graph.node:
        if node.op_type == "Shape" and node.input[0] == "a":
            node.input[0] = "image"
    expected = expected_operators(DYNAMIC) if is_detected else []
    assert detected_operators(model) == expected


@pytest.mark.parametrize(
    "name",
    sorted({BILINEAR_ZEROS, "attention/bilinear-zeros-0-static-torchscript"} - {*UNDETECTED}),
)
def test_equal_decomposed_operators_are_run_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_models = create_autospec(RuntimeProbe.outputs, side_effect=RuntimeProbe.outputs)
    monkeypatch.setattr(RuntimeProbe, "outputs", run_models)
    model = load_decomposed(name)
    detected_operators(model)
    calls_of_one = run_models.call_count
    run_models.reset_mock()
    decomposed._trial_results.clear()
    add_copy(model)
    assert detected_operators(model) == expected_operators(name) * 2
    assert run_models.call_count == calls_of_one


def test_results_of_trials_are_kept_for_the_next_detection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_models = create_autospec(RuntimeProbe.outputs, side_effect=RuntimeProbe.outputs)
    monkeypatch.setattr(RuntimeProbe, "outputs", run_models)
    expected = detected_operators(load_decomposed(BILINEAR_ZEROS))
    assert run_models.call_count > 0
    run_models.reset_mock()
    assert detected_operators(load_decomposed(BILINEAR_ZEROS)) == expected
    run_models.assert_not_called()


def test_results_of_trials_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decomposed, "MAX_RESULTS", 1)
    for name in (BILINEAR_ZEROS, DYNAMIC):
        detected_operators(load_decomposed(name))
    assert len(decomposed._trial_results) == 1


def test_names_of_a_model_with_many_decomposed_operators_are_collected_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load_decomposed("affine_grid/2-0-dynamic-dynamo")
    for prefix in "abcde":
        add_copy(model, prefix=prefix)
    counted = MagicMock(side_effect=Names)
    monkeypatch.setattr(find, "Names", counted)
    assert len(detected_operators(model)) == 32
    assert counted.call_count == 1


def test_types_are_read_a_bounded_number_of_times_for_each_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = "".join(f"G{i} = Add (G, D) Y{i} = GridSample (X, G{i})\n" for i in range(20))
    inputs = "float[N,1,4,4] X, float[N,3,3,2] G, float[N,3,3,2] D"
    model = parsed(f"g ({inputs}) => (float[N,1,3,3] Y0) {{ {samples} }}")
    counted = MagicMock(side_effect=types.value_of)
    monkeypatch.setattr(types, "value_of", counted)
    assert [len(record.fused) for record in ogs.inspect_model(model)] == [1] * 20
    assert counted.call_count < 8 * 20


#: Ways to round to a pixel. GridSample's is to even.
ROUND_TO_EVEN = "r = Round ({x})"
ROUND_UP = "h = Add ({x}, half) r = Floor (h)"
#: Paddings: between the edges, or between the centres, of the outer pixels.
REFLECT = """q = Div ({x}, twice) f = Floor (q) m = Mul (f, twice)
    w = Sub ({x}, m) v = Sub (end, w) u = Min (w, v)"""
CLIP = "c0 = Max ({x}, zero) u = Min (c0, last)"


def decomposed_nearest(
    width: int, rounding: str, padding: str, is_rounded_first: bool
) -> onnx.ModelProto:
    """Return an unaligned nearest sample of a row of pixels in basic operators."""
    if is_rounded_first:
        pixels = f"{rounding.format(x='p')} {padding.format(x='r')} i = Identity (u)"
    else:
        pixels = f"""{padding.format(x="p")} {rounding.format(x="u")}
            c = Max (r, zero) i = Min (c, last)"""
    return parsed(
        f"""g (float[1,1,1,{width}] X, float[1,1,24,2] G) => (float[1,1,1,24] Y)
        <float[2] L = {{{width}, 1}}, float[2] twice = {{{2 * width}, 2}},
         float[2] end = {{{2 * width - 1}, 1}}, float[2] last = {{{width - 1}, 0}},
         float zero = {{0}}, float one = {{1}}, float half = {{0.5}},
         int64[3] rows = {{1, 1, {width}}}, int64[2] steps = {{1, {width}}},
         int64[1] innermost = {{3}}, int64[4] out = {{1, 1, 1, 24}}, int64[1] flat = {{-1}}> {{
            a = Add (G, one)
            b = Mul (a, L)
            d = Sub (b, one)
            p = Mul (d, half)
            {pixels}
            j = Cast <to = 7> (i)
            k = Mul (j, steps)
            s = ReduceSum <keepdims = 0> (k, innermost)
            t = Reshape (s, flat)
            x = Reshape (X, rows)
            y = Gather <axis = 2> (x, t)
            Y = Reshape (y, out) }}""",
        16,
    )


NEAREST_BORDER = Operator("GridSample", "nearest", "border", 0)


@with_sweep("width", [3, 4, 5, 7, 9, 10, 33, 64], quick=(4, 10))
@pytest.mark.parametrize(
    ("rounding", "padding", "is_rounded_first", "expected"),
    [
        (ROUND_TO_EVEN, CLIP, False, [NEAREST_BORDER]),
        (ROUND_TO_EVEN, CLIP, True, [NEAREST_BORDER]),  # the bounds are integers
        (ROUND_TO_EVEN, REFLECT, True, []),
        (ROUND_UP, CLIP, False, []),
        (ROUND_UP, CLIP, True, []),
        (ROUND_UP, REFLECT, True, []),
    ],
    ids=[
        *("clip, round", "round, clip", "round, reflect"),
        *("clip, round up", "round up, clip", "round up, reflect"),
    ],
)
def test_decomposed_nearest_is_detected_only_if_it_agrees_at_ties(
    width: int, rounding: str, padding: str, is_rounded_first: bool, expected: list[Operator]
) -> None:
    """With most widths only rounding in the graph's order of operations makes a tie."""
    model = decomposed_nearest(width, rounding, padding, is_rounded_first)
    assert detected_operators(model) == expected


EMPTY_BASES = {
    "MatMul": "Y = MatMul (base, theta)",
    "Mul": "P = Mul (base, theta) Y = ReduceSum <keepdims = 0> (P, axes)",
}


@pytest.mark.parametrize("nodes", EMPTY_BASES.values(), ids=EMPTY_BASES)
def test_product_with_a_constant_without_elements_is_no_affine_grid(nodes: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[4,4] theta) => (float[N,M] Y) <int64[1] axes = {{0}}> {{ {nodes} }}""")
    base = numpy_helper.from_array(np.zeros((0, 4), np.float32), "base")
    model.graph.initializer.append(base)
    assert ogs.inspect_model(model) == []


def test_inspect_model_of_a_product_of_a_number_and_a_base_has_no_record() -> None:
    """A constant that may be the base of a grid is multiplied by what has no axes."""
    base = np.ones((12, 3), np.float32)
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Mul", ["factor", "base"], ["product"]),
                helper.make_node("ReduceSum", ["product"], ["y"]),
            ],
            "g",
            [helper.make_tensor_value_info("factor", TensorProto.FLOAT, [])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(base, "base")],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    assert ogs.inspect_model(model) == []
