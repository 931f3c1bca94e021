"""Conversion of every dialect to every target."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.dialects import registry
from ort_gridsample.dialects.registry import target_names
from ort_gridsample.graph.runtimes import RuntimeName
from ort_gridsample.graph.scope import opset_of
from ort_gridsample.interop import pytorch
from ort_gridsample.patching import TargetName
from ort_gridsample.rewriting.targets.lowering_targets import _common_shape
from support.cases import Attributes
from support.choices import NO_MODE
from support.compare import refusal
from support.exported_models import (
    EXPORTED_MODELS,
    slow_if_large,
)
from support.foreign_nodes import (
    ALIGNED_BORDER,
    DIALECTS,
    GRID_3D,
    MMCV_ATTRIBUTES,
    ONNXPARSER_ATTRIBUTES,
    X_3D,
    canonical,
    constant_input_sampler,
    feeds_for,
    model_of_nodes,
    sampler_model,
)
from support.graphs import FEEDS, GRID, MODELS, X
from support.models import grid_sample_model, parsed
from support.paths import open_native, open_session

NEAREST = Attributes("nearest", "zeros", False)
FEEDS_3D = {"X": X_3D, "grid": GRID_3D}


def onnx_opsets(model: onnx.ModelProto) -> list[int]:
    return [entry.version for entry in model.opset_import if entry.domain == ""]


def function_names(model: onnx.ModelProto) -> list[str]:
    return [function.name for function in model.functions]


def expected_output(model: onnx.ModelProto) -> np.ndarray:
    feeds = feeds_for(model)
    return ogs.grid_sample(feeds["X"], feeds["grid"], *astuple(ALIGNED_BORDER))


@pytest.mark.parametrize("name", DIALECTS)
def test_record_of_a_dialect_has_its_attributes(name: str) -> None:
    (record,) = ogs.inspect_model(DIALECTS[name])
    assert (record.mode, record.padding_mode, record.align_corners) == ("linear", "border", 1)
    assert record.native == (name == "com.microsoft"), record.reason


@pytest.mark.parametrize("name", DIALECTS)
def test_dialect_patched_to_the_standard_has_its_attributes(name: str) -> None:
    model = DIALECTS[name]
    standard = ogs.patch_model(model, target="ai.onnx")
    onnx.checker.check_model(standard)
    (node,) = standard.graph.node
    (opset,) = onnx_opsets(standard)
    (record,) = ogs.inspect_model(model)
    first_opset = 20 if record.spatial_axes == (3,) else 16
    assert opset == max(first_opset, *onnx_opsets(model))
    assert (node.name, node.op_type, list(node.input)) == ("warp", "GridSample", ["X", "grid"])
    assert {a.name: helper.get_attribute_value(a) for a in node.attribute} == {
        "mode": b"linear" if opset >= 20 else b"bilinear",
        "padding_mode": b"border",
        "align_corners": 1,
    }


@pytest.mark.parametrize("name", DIALECTS)
def test_patch_of_a_dialect_to_ops_of_the_package_keeps_the_opset(name: str) -> None:
    model = DIALECTS[name]
    assert onnx_opsets(ogs.patch_model(model)) == onnx_opsets(model)


MODE_CODES = "0 (linear), 1 (nearest) or 2 (cubic)"
OPSET_16_MODES = (
    "'bilinear', 'nearest' or 'bicubic' (opset 16); 'linear' is called 'bilinear' in this opset"
)
PADDING_CODES = "0 (zeros), 1 (border) or 2 (reflection)"
#: Operator and attributes of a node, and the argument, its value and what is expected in the error.
WRONG_ATTRIBUTES = [
    (
        "mmcv.grid_sampler",
        MMCV_ATTRIBUTES | {"interpolation_mode": 3},
        ("interpolation_mode", "3", MODE_CODES),
    ),
    (
        "mmcv.grid_sampler",
        {"interpolation_mode": 0, "padding_mode": 0},
        ("align_corners", "missing", "0 or 1"),
    ),
    (
        "mmcv.grid_sampler",
        MMCV_ATTRIBUTES | {"order": 2},
        ("attribute", "'order'", "'interpolation_mode', 'padding_mode' or 'align_corners'"),
    ),
    (
        "mmcv.grid_sampler",
        MMCV_ATTRIBUTES | {"padding_mode": "zeros"},
        ("padding_mode", "'zeros'", PADDING_CODES),
    ),
    ("grid_sampler", {"interpolation_mode": 0}, ("padding_mode", "missing", PADDING_CODES)),
    (
        "GridSample3D",
        {"mode": "trilinear", "padding_mode": 1, "align_corners": 1},
        ("mode", "'trilinear'", f"{MODE_CODES} (opset 16)"),
    ),
    ("GridSampler", {"mode": 0, "paddingmode": 0}, ("align_corners", "missing", "0 or 1")),
    (
        "GridSampler",
        ONNXPARSER_ATTRIBUTES | {"interpolation_mode": 1},
        ("interpolation_mode", "given twice", "one value"),
    ),
    (
        "GridSample",
        {"mode": "linear"},
        ("mode", "'linear'", OPSET_16_MODES),
    ),
]


@pytest.mark.parametrize(("operator", "attributes", "parts"), WRONG_ATTRIBUTES)
def test_dialect_with_wrong_attributes_is_refused(
    operator: str, attributes: dict[str, object], parts: tuple[str, str, str]
) -> None:
    domain, _, op_type = operator.rpartition(".")
    error = refusal(ogs.patch_model, sampler_model(op_type, domain, 16, **attributes))
    assert error.where == f"{op_type} node 'warp'"
    assert (error.argument, error.found, error.expected) == parts


#: Inputs and attributes of an op of this package, and the argument and its value in the error.
WRONG_PACKAGE_OPS = [
    (["X", "grid"], {"mode": "nearest", "order": 2}, ("attribute", "'order'")),
    (["X", "grid"], {"mode": NO_MODE}, ("mode", repr(NO_MODE))),
    (["X"], {"mode": "nearest"}, ("grid", "missing")),
    (["X", ""], {"mode": "nearest"}, ("grid", "missing")),
    (["X", "grid", "grid"], {"mode": "nearest"}, ("the number of inputs", "3")),
]
PACKAGE_OPS = [
    ("ort_gridsample", "GridSample"),
    ("ort_gridsample.compiled", "CompiledGridSample"),
]


@pytest.mark.parametrize(("domain", "op_type"), PACKAGE_OPS)
@pytest.mark.parametrize(("inputs", "attributes", "parts"), WRONG_PACKAGE_OPS)
def test_wrong_op_of_the_package_is_refused(
    domain: str,
    op_type: str,
    inputs: list[str],
    attributes: dict[str, object],
    parts: tuple[str, str],
) -> None:
    model = sampler_model("GridSample", "", 20)
    (node,) = model.graph.node
    node.CopyFrom(helper.make_node(op_type, inputs, node.output, "warp", domain=domain))
    node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
    model.opset_import.append(helper.make_opsetid(domain, 1))
    error = refusal(ogs.patch_model, model, target="ai.onnx")
    assert error.where == "GridSample node 'warp'"
    assert (error.argument, error.found) == parts


def test_grid_sample_before_opset_16_is_refused() -> None:
    error = refusal(ogs.patch_model, sampler_model("GridSample", "", mode="bilinear"))
    assert error.where == "GridSample node 'warp'"
    assert (error.argument, error.found) == ("opset", "11 in the model")
    assert error.expected == "at least 16, the first opset that has GridSample"


def test_dialect_with_a_computed_mode_is_refused() -> None:
    model = constant_input_sampler("grid_sampler", "aten")
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("mode", TensorProto.INT64, []))
    error = refusal(ogs.patch_model, model)
    assert error.where == "grid_sampler node 'warp'"
    assert error.argument == "interpolation_mode"
    assert (error.found, error.expected) == ("the input 'mode'", "a constant")


#: Without "tensorrt-plugins", which writes attentions only: see contract/test_attention_nodes.py.
TARGETS = [target for target in target_names() if target != "tensorrt-plugins"]
#: The targets from which a model can be patched back to the same standard nodes.
REVERSIBLE_TARGETS = [
    target for target in TARGETS if target not in ("ai.onnx", "ai.onnx-2d", "primitives")
]
SMALL_MODELS = {
    **{name: parser.parse_model(text) for name, text in MODELS.items() if "function" not in name},
    "half": grid_sample_model(
        "float16", "float64", 2, [ALIGNED_BORDER, Attributes("cubic", "zeros", False)]
    ),
    "three axes": grid_sample_model("float32", "float32", 3, [ALIGNED_BORDER]),
}


def can_spell(target: str, record: ogs.NodeRecord) -> bool:
    """Whether the target has a node for this record. Other nodes stay."""
    if target in ("ort_gridsample", "compiled"):
        return True
    if record.operator != "GridSample":
        return False
    if target == "GridSampler":
        return True
    return record.spatial_axes == ((3,) if target == "GridSample3D" else (2,))


def is_node(record: ogs.NodeRecord) -> bool:
    return not record.decomposed


def assert_round_trip_is_the_identity(model: onnx.ModelProto, target: TargetName) -> None:
    patched = ogs.patch_model(model, target=target, nodes=is_node)
    dialects = Counter(
        record.dialect.name for record in ogs.inspect_model(patched) if is_node(record)
    )
    records = filter(is_node, ogs.inspect_model(model))
    assert dialects == Counter(
        target if can_spell(target, record) else "ai.onnx" for record in records
    )
    restored = ogs.patch_model(patched, target="ai.onnx", nodes=is_node)
    if opset_of(model) < 20 and any(map(is_raised, ogs.inspect_model(patched))):
        model = ogs.patch_model(model, target="ai.onnx", nodes=is_node, opset=20)
    assert canonical(restored) == canonical(model)


def is_raised(record: ogs.NodeRecord) -> bool:
    """Whether an opset before 20 is raised where the standard replaces this node."""
    is_of_another_package = record.dialect.name not in ("ai.onnx", "ort_gridsample", "compiled")
    needs_opset_20 = record.spatial_axes == (3,) or record.types.get("X") == ("float64",)
    return is_of_another_package and needs_opset_20


@pytest.mark.parametrize("target", REVERSIBLE_TARGETS)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_round_trip_through_a_target_is_the_identity(name: str, target: TargetName) -> None:
    assert_round_trip_is_the_identity(SMALL_MODELS[name], target)


@pytest.mark.parametrize("path", slow_if_large(EXPORTED_MODELS))
def test_round_trip_of_an_exported_model_is_the_identity(path: Path) -> None:
    """Each model takes another target, to save time."""
    number = EXPORTED_MODELS.index(path)
    target = REVERSIBLE_TARGETS[number % len(REVERSIBLE_TARGETS)]
    assert_round_trip_is_the_identity(onnx.load(path), target)


def test_round_trip_through_all_targets_is_the_identity() -> None:
    model = SMALL_MODELS["two in a row"]
    patched = model
    dialect = "ai.onnx"
    for target in REVERSIBLE_TARGETS:
        patched = ogs.patch_model(patched, target=target)
        if target != "GridSample3D":  # which leaves nodes of two axes
            dialect = target
        assert {record.dialect.name for record in ogs.inspect_model(patched)} == {dialect}
    assert canonical(ogs.patch_model(patched, target="ai.onnx")) == canonical(model)


def model_with_two_functions() -> onnx.ModelProto:
    functions = """sample (A, B) => (C) { C = GridSample <mode = "bilinear"> (A, B) }
        <domain: "local", opset_import: ["": 16]> negate (A) => (C) { C = Neg(A) }"""
    model = model_of_nodes("A = local.sample(X, G) Y = local.negate(A)", 16, functions)
    model.ir_version = 7  # before there were functions
    return model


def test_lowering_inlines_functions_that_sample() -> None:
    """Many runtimes cannot read functions."""
    lowered = ogs.patch_model(model_with_two_functions(), target="primitives")
    assert function_names(lowered) == ["negate"]
    assert lowered.ir_version == 7


def test_lowering_to_functions_keeps_and_adds_functions() -> None:
    lowered = ogs.patch_model(model_with_two_functions(), target="primitives", functions=True)
    assert set(function_names(lowered)) == {"sample", "negate", "GridSample_1"}
    assert lowered.ir_version == 8
    (output,) = open_native(lowered).run(None, FEEDS)
    np.testing.assert_allclose(output, -ogs.grid_sample(X, GRID), atol=1e-5)


@pytest.mark.parametrize("opset", [11, 12])
def test_lowering_keeps_an_old_opset(opset: int) -> None:
    codes = "interpolation_mode = 0, padding_mode = 0, align_corners = 0"
    # In opset 13 the sizes of Split are an input.
    nodes = f"A = mmcv.grid_sampler <{codes}> (X, G) B, Y = Split <axis = 2, split = [1, 3]> (A)"
    lowered = ogs.patch_model(model_of_nodes(nodes, opset), target="primitives")
    assert [(entry.domain, entry.version) for entry in lowered.opset_import] == [("", opset)]
    onnx.checker.check_model(lowered, full_check=True)
    (output,) = open_native(lowered).run(None, FEEDS)
    np.testing.assert_allclose(output, ogs.grid_sample(X, GRID)[:, :, 1:], atol=1e-5)


def test_patch_to_an_unknown_target_is_refused() -> None:
    error = refusal(ogs.patch_model, SMALL_MODELS["two in a row"], target="tensorrt")
    assert error.where == "patch_model"
    assert (error.argument, error.found) == ("target", "'tensorrt'")
    assert error.expected == (
        "'ort_gridsample', 'ai.onnx', 'ai.onnx-2d', 'primitives', 'GridSample3D', 'GridSampler', "
        "'mmdeploy', 'mmcv', 'com.microsoft', 'compiled' or 'tensorrt-plugins'; "
        "help(ort_gridsample.patch_model) describes them"
    )


def test_patch_for_an_unknown_runtime_is_refused() -> None:
    model = SMALL_MODELS["two in a row"]
    error = refusal(ogs.patch_model, model, target="primitives", for_runtime="toaster")
    assert error.where == "patch_model"
    assert (error.argument, error.found) == ("for_runtime", "'toaster'")
    assert error.expected == (
        "'coreml', 'directml', 'gather-free', 'iree', 'litert', 'mnn', 'ncnn', 'onnx2tf', "
        "'onnx2torch', 'onnxconverter-common', 'onnxruntime-webgpu', 'openvino', 'qnn', 'rknn', "
        "'tensorrt', 'tvm' or 'webgpu'; others run the primitives as they are"
    )


def test_patch_for_a_runtime_to_other_than_primitives_is_refused() -> None:
    model = SMALL_MODELS["two in a row"]
    error = refusal(ogs.patch_model, model, target="ai.onnx", for_runtime="mnn")
    assert error.where == "patch_model"
    assert (error.argument, error.found) == ("target", "'ai.onnx' with for_runtime")
    assert error.expected == "'primitives'"


@pytest.mark.parametrize(
    ("runtime", "opset"), [("onnx2torch", 17), ("rknn", 19), ("mnn", 22), ("tvm", 22)]
)
def test_patch_for_a_runtime_has_an_opset_that_it_reads(runtime: RuntimeName, opset: int) -> None:
    model = grid_sample_model("float32", "float32", 3, [ALIGNED_BORDER], opset=22)
    lower = partial(ogs.patch_model, model, target="primitives", for_runtime=runtime)
    patched = lower()
    patched_to_20 = lower(opset=20)
    assert onnx_opsets(patched) == [opset]
    assert onnx_opsets(patched_to_20) == [20]
    expected = ogs.grid_sample(X_3D, GRID_3D, *astuple(ALIGNED_BORDER))
    for lowered in (patched, patched_to_20):
        (output,) = open_native(lowered).run(None, FEEDS_3D)
        np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("runtime", ["onnx2torch", "rknn", "mnn", "tvm"])
def test_patch_for_a_runtime_reads_lengths_as_it_can(runtime: RuntimeName) -> None:
    model = grid_sample_model("float32", "float32", 3, [ALIGNED_BORDER], opset=22)
    nodes = ogs.patch_model(model, target="primitives", for_runtime=runtime).graph.node
    shapes = {node.output[0] for node in nodes if node.op_type == "Shape"}
    readers = {node.op_type for node in nodes if shapes.intersection(node.input)}
    assert readers == {"Slice" if runtime == "tvm" else "Gather"}


SAMPLES = [ALIGNED_BORDER, NEAREST, ALIGNED_BORDER]
lower_to_functions = partial(ogs.patch_model, target="primitives", functions=True)


def assert_lowered_samples(model: onnx.ModelProto, function_numbers: Sequence[int]) -> None:
    """Check the outputs of lowered SAMPLES, and the number of the function that each node calls."""
    assert [(node.name, node.op_type) for node in model.graph.node] == [
        (f"sample{i}", f"GridSample_{number}") for i, number in enumerate(function_numbers)
    ]
    onnx.checker.check_model(model)
    outputs = open_native(model).run(None, {"X": X, "grid": GRID})
    for output, attributes in zip(outputs, SAMPLES, strict=True):
        expected = ogs.grid_sample(X, GRID, *astuple(attributes))
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def test_equal_nodes_share_a_function_across_patches() -> None:
    model = grid_sample_model("float32", "float32", 2, SAMPLES, opset=20)
    for name in ("sample1", "sample0", "sample2"):
        model = lower_to_functions(model, nodes=lambda record, name=name: record.name == name)
    assert function_names(model) == ["GridSample_1", "GridSample_2"]
    assert_lowered_samples(model, [2, 1, 2])


def test_new_function_does_not_get_the_name_of_another() -> None:
    model = grid_sample_model("float32", "float32", 2, SAMPLES, opset=20)
    model.functions.append(
        helper.make_function(
            "ort_gridsample.primitives",
            "GridSample_1",
            ["A"],
            ["B"],
            [helper.make_node("Neg", ["A"], ["B"])],
            [helper.make_opsetid("", 20)],
        )
    )
    lowered = lower_to_functions(model)
    assert function_names(lowered) == ["GridSample_1", "GridSample_2", "GridSample_3"]
    assert_lowered_samples(lowered, [2, 3, 2])


@pytest.mark.parametrize(
    ("shapes", "common"),
    [([(2, "C", 4), (2, "C", 5)], (2, "C", None)), ([(2, 3), None], None), ([], None)],
)
def test_common_shape_has_the_lengths_that_all_shapes_have(
    shapes: list[tuple[int | str, ...] | None], common: tuple[int | str | None, ...] | None
) -> None:
    assert _common_shape(shapes) == common


def output_of(patched: onnx.ModelProto, target: TargetName) -> np.ndarray:
    """Run a patched model on FEEDS, as standard nodes if onnxruntime cannot run the target's."""
    if target == "ort_gridsample":
        return open_session(patched).run(None, FEEDS)[0]
    standard = patched if target == "primitives" else ogs.patch_model(patched, target="ai.onnx")
    onnx.checker.check_model(standard)
    return open_native(standard).run(None, FEEDS)[0]


#: Attributes of a call, the default of the function's, the dialect and the sample's attributes.
CALLS_WITH_CODES = [
    ("m = 1, p = 2, ac = 1", "", "mmcv", Attributes("nearest", "reflection", True)),
    ("m = 2, p = 0", ": int = 0", "mmdeploy", Attributes("cubic", "zeros", False)),
]


@pytest.mark.parametrize(("call", "default", "dialect", "attributes"), CALLS_WITH_CODES)
@pytest.mark.parametrize("target", TARGETS)
def test_function_passes_a_dialects_codes_on(
    target: TargetName, call: str, default: str, dialect: str, attributes: Attributes
) -> None:
    codes = "interpolation_mode: int = @m, padding_mode: int = @p, align_corners: int = @ac"
    body = f"C = {dialect}.grid_sampler <{codes}> (A, B)"
    warp = f"warp <m, p, ac{default}> (A, B) => (C) {{ {body} }}"
    patched = ogs.patch_model(
        model_of_nodes(f"Y = local.warp <{call}> (X, G)", 20, warp), target=target
    )
    expected = ogs.grid_sample(X, GRID, *astuple(attributes))
    np.testing.assert_allclose(output_of(patched, target), expected, rtol=1e-5, atol=1e-4)
    has_same_codes = target in ("mmcv", "mmdeploy", "GridSampler", "GridSample3D")
    assert function_names(patched) == (["warp"] if has_same_codes else [])


def test_function_with_a_word_in_place_of_a_code_is_written_with_the_code() -> None:
    codes = "interpolation_mode: string = @m, padding_mode = 0, align_corners = 0"
    warp = f"warp <m> (A, B) => (C) {{ C = GridSampler <{codes}> (A, B) }}"
    model = model_of_nodes('Y = local.warp <m = "nearest"> (X, G)', 20, warp)
    patched = ogs.patch_model(model, target="mmcv")
    expected = ogs.grid_sample(X, GRID, "nearest", "zeros", False)
    np.testing.assert_array_equal(output_of(patched, "mmcv"), expected)


def test_reference_to_a_word_keeps_its_type_where_a_code_is_written() -> None:
    attributes = "mode: string = @m, padding_mode = 1, align_corners: int = @ac"
    warp = f"warp <m, ac> (A, B) => (C) {{ C = GridSample <{attributes}> (A, B) }}"
    model = model_of_nodes('Y = local.warp <m = "nearest", ac = 1> (X, G)', 20, warp)
    (function,) = ogs.patch_model(model, target="GridSampler").functions
    types = {a.ref_attr_name: a.type for a in function.node[0].attribute if a.ref_attr_name}
    assert types == {"m": onnx.AttributeProto.STRING, "ac": onnx.AttributeProto.INT}


@pytest.mark.parametrize(("opset", "cubic"), [(16, "bicubic"), (20, "cubic")])
@pytest.mark.parametrize("target", TARGETS)
def test_function_passes_the_standards_attributes_on(
    target: TargetName, opset: int, cubic: str
) -> None:
    words = "mode: string = @m, padding_mode: string = @p, align_corners: int = @ac"
    warp = f"warp <m, p, ac> (A, B) => (C) {{ C = GridSample <{words}> (A, B) }}"
    nodes = f"""A = local.warp <m = "{cubic}", p = "border"> (X, G)
        B = local.warp <m = "nearest", ac = 1> (X, G)
        Y = Add (A, B)"""
    patched = ogs.patch_model(model_of_nodes(nodes, opset, warp), target=target)
    # GridSample3D has no node of two axes, and lowered nodes are detected again.
    written_dialects = {
        "GridSample3D": "ai.onnx",
        "ai.onnx-2d": "ai.onnx",
        "primitives": "decomposed",
    }
    dialects = {record.dialect.name for record in ogs.inspect_model(patched)}
    assert dialects == {written_dialects.get(target, target)}
    expected = ogs.grid_sample(X, GRID, "cubic", "border")
    expected += ogs.grid_sample(X, GRID, "nearest", "zeros", True)
    np.testing.assert_allclose(output_of(patched, target), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["ort_gridsample", "com.microsoft", "ai.onnx"])
def test_attribute_shared_with_another_operator_keeps_both_defaults(target: TargetName) -> None:
    """If a call omits the attribute, it is 0 for GridSample and -1 for Softmax."""
    warp = """warp <k> (A, B) => (D) {
        C = GridSample <align_corners: int = @k> (A, B)
        one = Constant <value = bool {1}> ()
        D = If (one) <then_branch = t () => (E) { E = Softmax <axis: int = @k> (C) },
                      else_branch = e () => (F) { F = Identity (C) }> }"""
    nodes = "A = local.warp (X, G) B = local.warp <k = 1> (X, G) Y = Add (A, B)"
    model = model_of_nodes(nodes, 20, warp)
    (expected,) = open_native(model).run(None, FEEDS)
    patched = ogs.patch_model(model, target=target)
    np.testing.assert_allclose(output_of(patched, target), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "sample",
    [
        "GridSample <align_corners",
        "mmcv.GridSampler <interpolationmode = 0, paddingmode = 0, aligncorners",
    ],
    ids=["standard", "mmcv"],
)
def test_function_with_two_nodes_of_one_attribute_is_not_inlined(sample: str) -> None:
    nodes = f"C = {sample}: int = @k> (A, B) D = {sample}: int = @k> (C, B)"
    model = model_of_nodes("Y = local.warp (X, G)", 20, f"warp <k> (A, B) => (D) {{ {nodes} }}")
    assert function_names(ogs.patch_model(model)) == ["warp"]


def test_mode_of_another_opset_in_a_dialect_is_refused_with_the_word_of_the_dialect() -> None:
    model = sampler_model("GridSample", "com.microsoft", mode="linear")
    error = refusal(ogs.patch_model, model)
    assert (error.argument, error.found) == ("mode", "'linear'")
    assert error.expected == (
        "'bilinear', 'nearest' or 'bicubic'; 'linear' is called 'bilinear' in this dialect"
    )


DIALECT_ATTRIBUTES = {
    "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
    "padding_mode": ogs.Spelling(
        "outside", {"zeros": "constant", "border": "edge"}, default="zeros"
    ),
    "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
}
MY_DIALECT = ogs.Dialect("mine", "GridSample", "Warp", ("my.domain",), DIALECT_ATTRIBUTES)


@pytest.mark.usefixtures("new_dialects")
def test_added_dialect_is_read_and_written() -> None:
    dialect = replace(MY_DIALECT, identifying_attributes={"kind": ("spline",)})
    ogs.add_dialect(dialect)
    model = sampler_model("Warp", "my.domain", kind="spline", order=1, outside="edge", corners=1)
    (output,) = open_session(model).run(None, feeds_for(model))
    np.testing.assert_array_equal(output, expected_output(model))
    mmcv = ogs.patch_model(model, target="mmcv")
    restored = ogs.patch_model(mmcv, target=dialect)
    assert ogs.patch_model(mmcv, target="mine") == restored
    restored_attributes = sorted(restored.graph.node[0].attribute, key=str)
    assert restored_attributes == sorted(model.graph.node[0].attribute, key=str)


@pytest.mark.usefixtures("new_dialects")
def test_patch_to_a_dialect_without_the_padding_is_refused() -> None:
    ogs.add_dialect(MY_DIALECT)
    attributes = Attributes("linear", "reflection", False)
    model = grid_sample_model("float32", "float32", 2, [attributes])
    error = refusal(ogs.patch_model, model, target="mine")
    assert error.where == "GridSample node 'sample0'"
    assert (error.argument, error.found) == ("padding_mode", "'reflection'")
    assert error.expected == "'zeros' or 'border' in mine"


@pytest.mark.usefixtures("new_dialects")
@pytest.mark.parametrize(
    ("grid", "expected_shape"), [("2, 2, h, 2", "(2, 3, 2, h)"), ("2, 4, 5, 2", "(2, 3, 4, 5)")]
)
def test_added_dialect_whose_output_contradicts_its_graph_is_refused(
    grid: str, expected_shape: str
) -> None:
    """A dialect cannot describe a grid whose coordinates are planes."""
    ogs.add_dialect(MY_DIALECT)
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
        g (float[2, 3, 4, 5] X, float[{grid}] grid) => (float[2, 3, 9, 2] Y) {{
            Y = my.domain.Warp <order = 1> (X, grid) }}""")
    model.graph.node[0].name = "warp"
    error = refusal(ogs.InferenceSession, model)
    assert error.where == "Warp node 'warp'"
    assert error.found == f"of shape {expected_shape}"
    assert error.expected == "(2, 3, 9, 2), as the graph states"


@pytest.mark.usefixtures("new_dialects")
def test_add_dialect_without_attributes_is_refused() -> None:
    error = refusal(ogs.add_dialect, replace(MY_DIALECT, name="half", attributes={}))
    assert (error.where, error.argument, error.verb) == ("dialect 'half'", "attributes", "are")


@pytest.mark.usefixtures("new_dialects")
@pytest.mark.parametrize(
    "spelling",
    [
        ogs.Spelling("order", {"bilinear": 0}),
        ogs.Spelling("order", {"linear": 0}, default="bilinear"),
        ogs.Spelling("order", {"linear": 0}, other_values={1: "bilinear"}),
    ],
    ids=["values", "default", "other values"],
)
def test_add_dialect_with_a_synonym_of_a_mode_is_refused(spelling: ogs.Spelling) -> None:
    dialect = replace(MY_DIALECT, attributes=DIALECT_ATTRIBUTES | {"mode": spelling})
    error = refusal(ogs.add_dialect, dialect)
    assert (error.where, error.argument) == ("dialect 'mine'", "the operator's mode")
    assert error.found == "'bilinear'"
    assert error.expected == "'linear', 'nearest' or 'cubic'"
    assert dialect not in registry.dialects()


@pytest.mark.usefixtures("new_dialects")
def test_add_dialect_of_an_unknown_operator_is_refused() -> None:
    error = refusal(ogs.add_dialect, replace(MY_DIALECT, operator="Warp"))
    assert (error.argument, error.found) == ("operator", "'Warp'")
    assert error.expected == "'GridSample' or 'AffineGrid'"


@pytest.mark.usefixtures("new_dialects")
@pytest.mark.parametrize(
    ("op_type", "domain"),
    [
        ("GridSample", ""),
        ("AffineGrid", "ai.onnx"),
        ("GridSample", "ort_gridsample"),
        ("CompiledGridSample", "ort_gridsample.compiled"),
        ("DeformableAttention", "ort_gridsample.compiled"),
        ("MultiScaleDeformableAttnTRT", "my.domain"),
    ],
)
@pytest.mark.parametrize("is_any_domain", [False, True])
def test_add_dialect_of_nodes_that_are_read_as_others_is_refused(
    op_type: str, domain: str, is_any_domain: bool
) -> None:
    domains = () if is_any_domain else (domain, "my.other")
    dialect = replace(MY_DIALECT, op_type=op_type, domains=domains, written_domain=domain)
    error = refusal(ogs.add_dialect, dialect)
    assert (error.where, error.argument) == ("dialect 'mine'", "op_type")
    assert error.found == f"{op_type!r} in domain {domain!r}"
    assert error.expected == "nodes that are not read as another operator or dialect already"
    assert dialect not in registry.dialects()


@pytest.mark.usefixtures("new_dialects")
def test_added_dialect_of_integer_codes_is_read_in_the_standard_domain() -> None:
    attributes = DIALECT_ATTRIBUTES | {
        "mode": ogs.Spelling("mode", {"nearest": 7, "linear": 8, "cubic": 9})
    }
    dialect = ogs.Dialect("mine", "GridSample", "GridSample", ("",), attributes, requires_code=True)
    ogs.add_dialect(dialect)
    model = sampler_model("GridSample", "", mode=7, outside="edge", corners=1)
    (record,) = ogs.inspect_model(model)
    assert (record.domain, record.mode, record.error) == ("", "nearest", None)


@pytest.mark.usefixtures("new_dialects")
@pytest.mark.parametrize("node_domain", ["", "ai.onnx"])
@pytest.mark.parametrize("dialect_domain", ["", "ai.onnx"])
def test_added_dialect_of_the_onnx_domain_is_read_by_both_names(
    dialect_domain: str, node_domain: str
) -> None:
    ogs.add_dialect(replace(MY_DIALECT, domains=(dialect_domain,)))
    model = sampler_model("Warp", "", order=0)
    model.graph.node[0].domain = node_domain
    (record,) = ogs.inspect_model(model)
    assert record.dialect.name == "mine"


@pytest.mark.usefixtures("new_dialects")
def test_added_dialect_of_the_onnx_domain_is_written_in_the_empty_domain() -> None:
    ogs.add_dialect(replace(MY_DIALECT, domains=("ai.onnx",)))
    model = grid_sample_model("float32", "float32", 2, [Attributes("linear")])
    (node,) = ogs.patch_model(model, target="mine").graph.node
    assert (node.op_type, node.domain) == ("Warp", "")


@pytest.mark.usefixtures("new_dialects")
def test_add_dialect_again_replaces_the_dialect() -> None:
    second = replace(MY_DIALECT, op_type="Resample")
    ogs.add_dialect(MY_DIALECT)
    ogs.add_dialect(second)
    assert [dialect for dialect in registry.dialects() if dialect.name == "mine"] == [second]


@pytest.mark.usefixtures("new_dialects")
@pytest.mark.parametrize("name", [*registry.target_names(), "decomposed"])
def test_add_dialect_with_name_of_built_in_target_is_refused(name: str) -> None:
    dialect = replace(MY_DIALECT, name=name)
    error = refusal(ogs.add_dialect, dialect)
    assert (error.where, error.argument) == (f"dialect {name!r}", "name")
    assert error.found == repr(name)
    assert error.expected == "one that no target and no built-in dialect has"
    assert dialect not in registry.dialects()


@pytest.fixture
def onnxscript_opset(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replace PyTorch and onnxscript by mocks, and return the opset that onnxscript evaluates."""
    opset = Mock(version=20)
    evaluator = Mock()
    evaluator.default().opset = opset
    torch = Mock()
    modules = {"onnxscript.evaluator": evaluator, "torch": torch}
    monkeypatch.setattr(pytorch, "import_module", modules.__getitem__)
    monkeypatch.setattr(pytorch, "_register_affine_grid_shape", Mock())
    opset.aten = torch.ops.aten
    return opset


# With PyTorch: see test_pytorch.py.
@pytest.mark.parametrize(("version", "mode"), [(16, "bicubic"), (19, "bicubic"), (20, "cubic")])
@pytest.mark.parametrize("operator", ["grid_sampler", "grid_sampler_2d", "grid_sampler_3d"])
def test_translation_table_for_torch_writes_grid_sample(
    operator: str, version: int, mode: str, onnxscript_opset: Mock
) -> None:
    onnxscript_opset.version = version
    overload = getattr(onnxscript_opset.aten, operator).default
    grid_sample = ogs.torch_translation_table()[overload]
    node = grid_sample("X", "grid", 2, 1, True)
    assert node is onnxscript_opset.GridSample.return_value
    onnxscript_opset.GridSample.assert_called_with(
        "X", "grid", mode=mode, padding_mode="border", align_corners=1
    )


def test_translation_table_for_torch_writes_affine_grid(onnxscript_opset: Mock) -> None:
    overload = onnxscript_opset.aten.affine_grid_generator.default
    affine_grid = ogs.torch_translation_table()[overload]
    assert affine_grid("theta", "size", True) is onnxscript_opset.AffineGrid.return_value
    onnxscript_opset.AffineGrid.assert_called_with("theta", "size", align_corners=1)


def test_translation_table_for_torch_has_only_these_operators(onnxscript_opset: Mock) -> None:
    aten = onnxscript_opset.aten
    assert set(ogs.torch_translation_table()) == {
        aten.affine_grid_generator.default,
        aten.grid_sampler.default,
        aten.grid_sampler_2d.default,
        aten.grid_sampler_3d.default,
    }


def test_translation_of_an_unknown_padding_for_torch_is_refused(onnxscript_opset: Mock) -> None:
    grid_sample = ogs.torch_translation_table()[onnxscript_opset.aten.grid_sampler.default]
    error = refusal(grid_sample, "X", "grid", 0, 3, False)
    assert str(error) == f"grid_sample: padding_mode is 3, expected {PADDING_CODES}"


def test_translation_of_affine_grid_before_opset_20_is_refused(onnxscript_opset: Mock) -> None:
    onnxscript_opset.version = 19
    overload = onnxscript_opset.aten.affine_grid_generator.default
    error = refusal(ogs.torch_translation_table()[overload], "theta", "size", True)
    assert str(error) == "affine_grid: opset_version is 19, expected at least 20"


@pytest.mark.parametrize("target", ["com.microsoft", "mmcv", "mmdeploy"])
@pytest.mark.parametrize(
    ("X_type", "grid_type"),
    [("float[a, b, c, d, e]", "float[a, f, g, h, 3]"), ("float[]", "float[]")],
    ids=["three axes", "unknown rank"],
)
def test_patch_to_a_dialect_of_two_axes_keeps_nodes_that_may_have_others(
    target: TargetName, X_type: str, grid_type: str
) -> None:
    model = parsed(f"""g ({X_type} X, {grid_type} G) => (float[] y) {{
        y = GridSample <mode = "linear"> (X, G) }}""")
    (node,) = ogs.patch_model(model, target=target).graph.node
    assert (node.domain, node.op_type) == ("", "GridSample")


@pytest.mark.parametrize("target", ["com.microsoft", "mmdeploy"])
def test_patch_from_a_dialect_of_two_axes_needs_no_rank(target: TargetName) -> None:
    sample = "mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0>"
    model = parsed(f"g (float[] X, float[] G) => (float[] y) {{ y = {sample} (X, G) }}")
    (node,) = ogs.patch_model(model, target=target).graph.node
    assert node.domain == target
