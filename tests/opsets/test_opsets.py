"""Models in another opset: older ones, newer ones, and round trips."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import helper, inliner, numpy_helper, parser, shape_inference, version_converter

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.graph.scope import opset_of, scopes_of
from ort_gridsample.patching import TargetName
from support import faults
from support.cases import ATTRIBUTES
from support.compare import refusal
from support.exported_models import (
    EXPORTED_MODELS,
    WITHOUT_NATIVE_KERNELS,
    slow_if_large,
    stored_arrays,
)
from support.foreign_nodes import canonical, model_of_nodes
from support.graphs import FEEDS, GRID, MODELS, X, assert_same_outputs
from support.models import grid_sample_model, parsed
from support.paths import open_native, open_patched_file, open_session

MMCV_SAMPLE = "mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 1, align_corners = 1>"
OLDER_MODES = {"nearest": b"nearest", "linear": b"bilinear", "cubic": b"bicubic"}


def model_with_metadata() -> onnx.ModelProto:
    """Return a model of opset 22 with samples of all attributes."""
    model = grid_sample_model("float32", "float32", 2, ATTRIBUTES, 22)
    model.metadata_props.add(key="model", value="a model")
    model.graph.node[0].doc_string = "a warp"
    model.graph.node[0].metadata_props.add(key="made by", value="hand")
    return model


every_older_opset = pytest.mark.parametrize("opset", [16, 17, 18, 19])


@every_older_opset
def test_model_in_an_older_opset_has_the_same_outputs(opset: int) -> None:
    model = model_with_metadata()
    older = ogs.patch_model(model, target="ai.onnx", opset=opset)
    onnx.checker.check_model(older, full_check=True)
    assert opset_of(older) == opset
    assert older.ir_version == (9 if opset == 19 else 8)
    assert_same_outputs(older, model, {"X": X, "grid": GRID})


@every_older_opset
def test_conversion_does_not_change_its_argument(opset: int) -> None:
    model = model_with_metadata()
    before = model.SerializeToString(deterministic=True)
    ogs.patch_model(model, target="ai.onnx", opset=opset)
    assert model.SerializeToString(deterministic=True) == before


@every_older_opset
def test_modes_in_an_older_opset_have_their_older_names(opset: int) -> None:
    older = ogs.patch_model(model_with_metadata(), target="ai.onnx", opset=opset)
    modes = [helper.get_node_attr_value(node, "mode") for node in older.graph.node]
    assert modes == [OLDER_MODES[attributes.mode] for attributes in ATTRIBUTES]


@every_older_opset
def test_round_trip_through_an_older_opset_keeps_nodes_and_metadata(opset: int) -> None:
    model = canonical(model_with_metadata())
    older = ogs.patch_model(model_with_metadata(), target="ai.onnx", opset=opset)
    restored = canonical(ogs.patch_model(older, target="ai.onnx", opset=22))
    assert restored.graph == model.graph
    assert restored.metadata_props == model.metadata_props


@pytest.mark.parametrize("new", [16, 18, 20, 21, 22])
@pytest.mark.parametrize("old", [16, 20, 22])
def test_default_attributes_are_kept_in_another_opset(old: int, new: int) -> None:
    model = model_of_nodes("Y = GridSample (X, G)", old)
    converted = ogs.patch_model(model, target="ai.onnx", opset=new)
    onnx.checker.check_model(converted, full_check=True)
    (record,) = ogs.inspect_model(converted)
    assert record.opset == new
    assert (record.mode, record.padding_mode, record.align_corners) == ("linear", "zeros", 0)


@dataclass(frozen=True)
class ModelWithFeeds:
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]


def load(source: str | Path) -> ModelWithFeeds:
    """Load a model of MODELS by its name, or an exported model by its path."""
    if isinstance(source, str):
        loaded = ModelWithFeeds(parser.parse_model(MODELS[source]), FEEDS)
    else:
        loaded = ModelWithFeeds(onnx.load(source), stored_arrays(source, "in."))
    has_bodies = re.search(r"= (If|Loop|Scan)\b", onnx.printer.to_text(loaded.model))
    if faults.NO_ADAPTERS and has_bodies:
        pytest.skip("onnx's converter has no way down for If, Loop and Scan yet")
    return loaded


RUNNABLE_MODELS = [path for path in EXPORTED_MODELS if path.stem not in WITHOUT_NATIVE_KERNELS]


def records_newer_than(opset: int, model: onnx.ModelProto) -> list[ogs.NodeRecord]:
    """Return the records of standard nodes that the opset lacks."""
    return [
        record
        for record in ogs.inspect_model(model)
        if record.dialect.name == "ai.onnx"
        and record.opset > opset
        and (record.operator == "AffineGrid" or record.spatial_axes == (3,))
    ]


def assert_refused(model: onnx.ModelProto, record: ogs.NodeRecord, opset: int) -> None:
    """Check that the opset lacks the node of this record."""
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=opset)
    name = record.label.split("/")[-1].strip("()")
    assert error.where.endswith(f"{name}'")
    assert (error.argument, error.found) == ("opset", f"{opset} in the patched model")
    assert error.expected.startswith("at least 20, the first opset ")


@pytest.mark.parametrize("source", [*map(pytest.param, MODELS), *slow_if_large(RUNNABLE_MODELS)])
def test_round_trip_through_opset_18_has_the_same_outputs(source: str | Path) -> None:
    """Nodes that the older opset lacks are lowered."""
    loaded = load(source)
    model = loaded.model
    opset = min(opset_of(model), 18)
    target: TargetName = "ai.onnx"
    newer_records = records_newer_than(opset, model)
    if newer_records:
        assert_refused(model, newer_records[0], opset)
        target = "primitives"
    older = ogs.patch_model(model, target=target, opset=opset)
    onnx.checker.check_model(older)
    newer = ogs.patch_model(older, target=target, opset=22)
    for converted, expected_opset in ((older, opset), (newer, 22)):
        opsets = {opset_of(converted), *(scope.opsets[""] for scope in scopes_of(converted))}
        assert opsets == {expected_opset}
        assert_same_outputs(converted, model, loaded.feeds)


@pytest.mark.parametrize("name", MODELS)
def test_model_in_opset_13_has_the_same_outputs(name: str) -> None:
    """Some operators that onnx's converter cannot convert are the same in opset 13."""
    loaded = load(name)
    older = ogs.patch_model(loaded.model, target="primitives", opset=13)
    onnx.checker.check_model(older, full_check=True)
    assert (opset_of(older), older.ir_version) == (13, 7)
    assert_same_outputs(older, loaded.model, loaded.feeds)


@faults.needs_named_nodes
def test_conversion_of_a_type_that_the_opset_lacks_is_refused() -> None:
    nodes = """A = Cast <to = 6> (X)
        [relu] B = Relu (A)
        C = Cast <to = 1> (B)
        Y = GridSample (C, G)"""
    model = model_of_nodes(nodes)
    assert opset_of(ogs.patch_model(model, target="primitives", opset=14)) == 14
    error = refusal(ogs.patch_model, model, target="primitives", opset=13)
    assert error.where == "Relu node 'relu'"
    assert (error.argument, error.found) == ("the type of A", "int32")
    assert error.expected == "a type that opset 13 has for X"


@faults.needs_named_nodes
def test_conversion_of_nodes_that_the_opset_lacks_is_refused() -> None:
    nodes = """[first] A = Trilu (X)
        [second] B = Relu (A)
        [third] C = Trilu (B)
        [warp] Y = GridSample (C, G)"""
    error = refusal(ogs.patch_model, model_of_nodes(nodes), target="primitives", opset=13)
    assert str(error) == (
        "Trilu node 'first': opset is 13, expected at least 14, which has this Trilu; "
        "1 more cannot be converted: "
        "Trilu node 'third' (opset is 13, expected at least 14, which has this Trilu)"
    )


#: Targets and opsets. Each model takes other opsets, to save time.
TARGETS = ("ort_gridsample", "compiled", "mmcv", "mmdeploy", "GridSampler", "com.microsoft")
OPSETS_OF_TARGETS = {
    "If": (20, 22, 16, 18, 20, 22),
    "function": (16, 18, 20, 22, 16, 18),
    "two in a row": (16, 18, 20, 22, 16, 18),
}


@pytest.mark.parametrize(
    ("name", "target", "opset"),
    [
        (name, target, opset)
        for name, opsets in OPSETS_OF_TARGETS.items()
        for target, opset in zip(TARGETS, opsets, strict=True)
    ],
)
def test_patch_to_a_target_in_another_opset_can_be_undone(
    name: str, target: TargetName, opset: int
) -> None:
    model = parser.parse_model(MODELS[name])
    patched = ogs.patch_model(model, target=target, opset=opset)
    assert opset_of(patched) == opset
    assert ogs.patch_model(patched, target=target, opset=opset) == patched
    assert {record.dialect.name for record in ogs.inspect_model(patched)} == {target}
    restored = ogs.patch_model(patched, target="ai.onnx")
    onnx.checker.check_model(restored, full_check=True)
    assert opset_of(restored) == opset
    assert_same_outputs(restored, model)


VOLUME_MODEL = parser.parse_model("""<ir_version: 10, opset_import: ["": 22]>
    g (float[N,C,D,H,W] X, float[N,3,4] theta, int64[5] size) => (float[N,C,d,h,w] Y) {
        grid = AffineGrid (theta, size)
        A = GridSample <mode = "nearest", padding_mode = "border"> (X, grid)
        Y = Relu (A) }""")
own_targets = pytest.mark.parametrize(
    "target", ["ort_gridsample", *([] if registry.unavailable_reason() else ["compiled"])]
)


def volume_feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "X": rng.standard_normal((1, 2, 4, 5, 6)).astype(np.float32),
        "theta": rng.uniform(-1, 1, (1, 3, 4)).astype(np.float32),
        "size": np.array([1, 2, 3, 4, 5]),
    }


def volume_output() -> np.ndarray:
    feeds = volume_feeds()
    grid = ogs.affine_grid(feeds["theta"], (1, 2, 3, 4, 5))
    return ogs.grid_sample(feeds["X"], grid, "nearest", "border").clip(0)


@own_targets
def test_ops_of_the_package_run_in_an_opset_that_lacks_the_operators(
    target: Literal["ort_gridsample", "compiled"],
) -> None:
    older = ogs.patch_model(VOLUME_MODEL, target=target, opset=18)
    (output,) = open_patched_file(older, target).run(None, volume_feeds())
    np.testing.assert_array_equal(output, volume_output())


def test_primitives_run_in_an_opset_that_lacks_the_operators() -> None:
    lowered = ogs.patch_model(VOLUME_MODEL, target="primitives", opset=18)
    (output,) = open_native(lowered).run(None, volume_feeds())
    np.testing.assert_allclose(output, volume_output(), atol=1e-6)


@own_targets
def test_patch_of_unsupported_nodes_replaces_those_that_the_opset_lacks(
    target: Literal["ort_gridsample", "compiled"],
) -> None:
    patched = ogs.patch_model(VOLUME_MODEL, target=target, opset=18, nodes="unsupported")
    assert [record.patched for record in ogs.inspect_model(patched)] == [True, True]


def test_function_of_an_older_opset_does_not_lower_the_opset_of_the_model() -> None:
    model = model_of_nodes(
        "Y = local.warp (X, G)",
        20,
        """warp (A, B) => (C) {
            C = mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0>
                (A, B) }""",
    )
    for entry in model.functions[0].opset_import:
        if not entry.domain:
            entry.version = 13
    assert opset_of(ogs.patch_model(model, target="ai.onnx")) == 20


def test_nodes_that_are_not_chosen_are_converted_too() -> None:
    model = grid_sample_model("float32", "float32", 2, ATTRIBUTES[-2:], 22)
    records = []

    def is_second(record: ogs.NodeRecord) -> bool:
        records.append((record.domain, record.opset, record.op_type))
        return record.name == "sample1"

    older = ogs.patch_model(model, target="mmcv", opset=17, nodes=is_second)
    first, second = older.graph.node
    assert (first.domain, first.op_type) == ("", "GridSample")
    assert (second.domain, second.op_type) == ("mmcv", "grid_sampler")
    assert helper.get_node_attr_value(first, "mode") == b"bicubic"
    assert {(e.domain, e.version) for e in older.opset_import} == {("", 17), ("mmcv", 1)}
    assert set(records) == {("", 22, "GridSample"), ("", 17, "GridSample")}


@pytest.mark.parametrize(
    ("X_type", "axes", "old", "new", "expected"),
    [
        ("float32", 3, 22, 19, "20, the first opset whose GridSample takes an input of 5 axes"),
        ("float32", 1, 20, 16, "20, the first opset whose GridSample takes an input of 3 axes"),
        ("bfloat16", 2, 22, 20, "22, the first opset whose GridSample has these types and axes"),
        ("float32", 2, 16, 15, "16, the first opset that has GridSample"),
    ],
)
def test_conversion_to_an_opset_that_lacks_the_sample_is_refused(
    X_type: str, axes: int, old: int, new: int, expected: str
) -> None:
    model = grid_sample_model(X_type, "float32", axes, ATTRIBUTES[:1], old)
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=new)
    assert error.where == "GridSample node 'sample0'"
    assert (error.argument, error.found) == ("opset", f"{new} in the patched model")
    assert error.expected == f"at least {expected}"


@pytest.mark.parametrize("nodes", ["", "B = Squeeze (X)"], ids=["sample", "converted node"])
def test_lowering_to_opset_10_is_refused(nodes: str) -> None:
    model = model_of_nodes(f"Y = {MMCV_SAMPLE} (X, G) {nodes}", 10)
    error = refusal(ogs.patch_model, model, target="primitives", opset=10)
    assert error.where == "grid_sampler node with output 'Y'"
    assert (error.argument, error.found) == ("opset", "10 in the patched model")
    assert error.expected == "at least 11, the first in which the target can write this node"


@pytest.mark.parametrize("opset", [0, 10**6, "16", 16.5])
def test_conversion_to_no_opset_is_refused(opset: object) -> None:
    model = model_of_nodes("Y = GridSample (X, G)")
    error = refusal(ogs.patch_model, model, opset=opset)
    assert error.where == "patch_model"
    assert (error.argument, error.found) == ("opset", repr(opset))
    assert error.expected == f"a number from 1 to {onnx.defs.onnx_opset_version()}"


@faults.needs_adapters
def test_attribute_that_the_opset_lacks_is_refused() -> None:
    pool = "AveragePool <kernel_shape = [2, 2], dilations = [2, 2]>"
    model = model_of_nodes(f"A = GridSample (X, G) Y = {pool} (A)", 20)
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=18)
    assert error.where == "AveragePool node with output 'Y'"
    assert (error.argument, error.found) == ("dilations", "[2, 2]")
    assert error.expected == "a value that opset 18 has"


@faults.needs_adapters
def test_attribute_that_the_opset_lacks_is_dropped_if_it_is_the_default() -> None:
    nodes = """A = GridSample (X, G)
        axes = Constant <value = int64[1] {1}> ()
        Y = ReduceMax <noop_with_empty_axes = 0> (A, axes)"""
    model = model_of_nodes(nodes, 20)
    older = ogs.patch_model(model, target="ai.onnx", opset=16)
    onnx.checker.check_model(older, full_check=True)
    sample, reduction = older.graph.node
    assert sample.op_type == "GridSample"
    assert reduction.op_type == "ReduceMax"
    assert [attribute.name for attribute in reduction.attribute] == ["axes"]
    assert_same_outputs(older, model)


MODEL_OF_MODES = model_of_nodes(
    'A = local.warp <m = "cubic"> (X, G) B = local.warp (X, G) Y = Add (A, B)',
    function="""warp <m: string = "linear"> (A, B) => (C) {
        C = GridSample <mode: string = @m> (A, B) }""",
)


def test_modes_that_a_function_passes_on_have_their_older_names() -> None:
    older = ogs.patch_model(MODEL_OF_MODES, target="ai.onnx", opset=16)
    onnx.checker.check_model(older, full_check=True)
    assert {record.mode for record in ogs.inspect_model(older)} == {"cubic", "linear"}
    assert_same_outputs(older, MODEL_OF_MODES)


def test_function_that_passes_modes_on_is_lowered_to_functions() -> None:
    lowered = ogs.patch_model(MODEL_OF_MODES, target="primitives", functions=True, opset=16)
    assert (len(lowered.functions), lowered.ir_version) == (2, 8)
    assert_same_outputs(lowered, MODEL_OF_MODES)


WEIGHTS = numpy_helper.from_array(np.ones((1, 3, 64, 64), np.float32), "W")


def model_of_weights() -> onnx.ModelProto:
    model = parsed("""g (float[1,2,2,2] G) => (float[1,1,2,2] A) {
            Y = local.warp (W, G)
            [lower] L = Trilu (Y)
            A, B, C = Split <axis = 1, num_outputs = 3> (L) }
        <domain: "local", opset_import: ["": 20]> warp (P, Q) => (R) { R = GridSample (P, Q) }""")
    model.graph.initializer.append(WEIGHTS)
    return model


@pytest.fixture
def sizes_for_onnx(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the models that onnx's tools are called with."""
    sizes: list[int] = []

    def recorded(function: Callable[..., object]) -> Callable[..., object]:
        def call(model: onnx.ModelProto, *arguments: object, **options: object) -> object:
            sizes.append(model.ByteSize())
            return function(model, *arguments, **options)

        return call

    for module, name in (
        (version_converter, "convert_version"),
        (inliner, "inline_selected_functions"),
        (shape_inference, "infer_shapes"),
    ):
        monkeypatch.setattr(module, name, recorded(getattr(module, name)))
    return sizes


@faults.needs_named_nodes
def test_tools_of_onnx_get_no_weights(sizes_for_onnx: list[int]) -> None:
    """They refuse models of more than 2 GiB."""
    model = model_of_weights()
    older = ogs.patch_model(model, target="ai.onnx", opset=18)
    assert older.graph.initializer == model.graph.initializer
    error = refusal(ogs.patch_model, model, target="mmcv", opset=13)
    assert error.where == "Trilu node 'lower'"
    assert (error.argument, error.found) == ("opset", "13")
    assert len(sizes_for_onnx) > 4
    assert max(sizes_for_onnx) < 2000


#: Operators that changed between opsets 11 and 22, in nodes whose meaning did not change.
CHANGED_OPERATORS = """
    shape = Constant <value = int64[2] {0, -1}> ()
    axes = Constant <value = int64[1] {1}> ()
    axis = Constant <value = int64 {2}> ()
    row = Constant <value = int64[4] {0, 1, 2, 0}> ()
    a_row = Constant <value = int64[2] {1, 4}> ()
    first = Constant <value = int64[1] {0}> ()
    one = Constant <value = float[1] {1.0}> ()
    step = Constant <value = float {0.01}> ()
    parts = Constant <value = int64[2] {1, 2}> ()
    pads = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
    low = Constant <value = float {-1.0}> ()
    repeats = Constant <value = int64[4] {1, 1, 1, 1}> ()
    scale = Constant <value = float[3] {1.0, 2.0, 0.5}> ()
    zeros = Constant <value = float[3] {0.0, 0.1, 0.2}> ()
    length = Constant <value_ints = [1, 1, 1, 1]> ()
    A = Abs (X)
    B = Add (A, X)
    C = Clip (B, low)
    D = Relu (C)
    E = Sigmoid (D)
    F = Pad (E, pads)
    H = Reshape <allowzero = 0> (F, shape)
    I = Softmax <axis = 1> (H)
    J = ReduceMax (F, axes)
    K = Mul (F, J)
    L = BatchNormalization <training_mode = 0> (K, scale, zeros, zeros, scale)
    M1,
    M2 = Split <axis = 1> (L, parts)
    M = Concat <axis = 1> (M1, M2)
    N = Transpose <perm = [0, 1, 3, 2]> (M)
    O = Tile (N, repeats)
    P = Exp (O)
    S1 = Shape <end = 2> (P)
    S2 = Shape <start = 2> (P)
    S = Concat <axis = 0> (S1, S2)
    Q = ConstantOfShape (length)
    R = Sub (P, Q)
    T = Expand (R, S)
    U = Cast <to = 1> (T)
    V = Unsqueeze (U, axes)
    W = Squeeze (V, axes)
    Z = ReduceSum <keepdims = 1> (I)
    a = Div (W, Z)
    b = Sqrt (a)
    d = Identity (b)
    e = Where (c, d, W)
    f = Pow (e, low)
    g = Neg (f)
    h = CumSum (g, axis)
    i = Erf (h)
    at = Reshape <allowzero = 1> (row, a_row)
    j = AveragePool <kernel_shape = [1, 1]> (i)
    k = ReduceMean <keepdims = 1> (j)
    l = Sub (j, k)
    m = ScatterND <reduction = "none"> (l, at, one)
    n = GatherND (m, first)
    o = Add (m, n)
    p = QuantizeLinear (o, step)
    q = DequantizeLinear (p, step)
    r = Add (o, q)
    Y = GridSample <padding_mode = "border"> (r, G)
"""


@faults.needs_adapters
@pytest.mark.parametrize("opset", range(11, 23))
def test_changed_operators_have_the_same_outputs_in_each_opset(opset: int) -> None:
    model = model_of_nodes(CHANGED_OPERATORS)
    onnx.checker.check_model(model, full_check=True)
    patched = ogs.patch_model(model, target="mmcv", opset=opset)
    assert {(e.domain, e.version) for e in patched.opset_import} == {("", opset), ("mmcv", 1)}
    assert {node.domain for node in patched.graph.node} == {"", "mmcv"}
    (output,) = open_session(patched).run(None, FEEDS)
    (expected,) = open_native(model).run(None, FEEDS)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-4)
