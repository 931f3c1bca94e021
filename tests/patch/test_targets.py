"""Every dialect in, every target out."""

from collections import Counter
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
from ort_gridsample.graph.scope import scopes
from ort_gridsample.interop import pytorch
from ort_gridsample.patching import TargetName
from ort_gridsample.rewriting.targets.lowered import _common_shape
from ort_gridsample.rewriting.targets.runtimes import RuntimeName
from support.cases import Attributes
from support.compare import about, message_of, refusal
from support.exported_models import MODELS as EXPORTED
from support.exported_models import REFUSED, by_size, stored
from support.foreign_nodes import (
    CODES,
    DIALECTS,
    GRID3,
    PARSER,
    X3,
    called,
    feeds_of,
    normalized,
    sampler,
    with_constants,
    written,
)
from support.graphs import FEEDS, GRID, X, assert_answers_agree
from support.graphs import MODELS as GRAPHS
from support.models import PRIMITIVES, grid_sample_model, parsed
from support.paths import open_native, open_session

ARGUMENTS, NEAREST = Attributes("linear", "border", True), Attributes("nearest", "zeros", False)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_gives_the_standard_answer(name: str) -> None:
    """In onnxruntime, and in turns from this package's ops and from primitives."""
    model = DIALECTS[name]
    feeds = feeds_of(model)
    (record,) = ogs.inspect_model(model)
    assert (record.mode, record.padding_mode, record.align_corners) == ("linear", "border", 1)
    assert record.native == (name == "com.microsoft"), record.reason
    expected = ogs.grid_sample(feeds["X"], feeds["grid"], *astuple(ARGUMENTS))
    standard = ogs.patch_model(model, target="ai.onnx")
    onnx.checker.check_model(standard)
    (node,), (opset,) = (
        standard.graph.node,
        {e.version for e in standard.opset_import if not e.domain},
    )
    assert (node.name, node.op_type, list(node.input), opset) == (
        "warp",
        "GridSample",
        ["X", "grid"],
        max(opset, 16),
    )
    assert ogs.patch_model(model).opset_import[0].version == model.opset_import[0].version
    said = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert said == {
        "mode": b"bilinear" if opset < 20 else b"linear",
        "padding_mode": b"border",
        "align_corners": 1,
    }
    np.testing.assert_allclose(
        open_native(standard).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5
    )
    if list(DIALECTS).index(name) % 2:
        lowered = ogs.patch_model(model, target="primitives")
        np.testing.assert_allclose(
            open_native(lowered).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5
        )
    else:
        np.testing.assert_array_equal(open_session(model).run(None, feeds)[0], expected)


GENERATORS = [
    ("org.pytorch.aten", "affine_grid_generator", {}),
    ("org.pytorch.aten", "ATen", {"operator": "affine_grid_generator", "overload_name": ""}),
    *((domain, "affine_grid_generator", {"align_corners": 1}) for domain in ("", "onnxservice")),
]


@pytest.mark.parametrize("size", ["input", "attribute"])
@pytest.mark.parametrize(("domain", "op_type", "attributes"), GENERATORS)
def test_affine_grid_generator(
    size: str, domain: str, op_type: str, attributes: dict[str, object]
) -> None:
    theta = np.array([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2]]] * 2, np.float32)
    attributes = attributes | ({"size": [2, 3, 4, 5]} if size == "attribute" else {})
    inputs = (
        "theta, "
        + ("size" if size == "input" else "")
        + ("" if "align_corners" in attributes else ", align")
    )
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14, "{domain or "none"}": 1]>
        g (float[2, 2, 3] theta) => (float[2, 4, 5, 2] grid) <int64[4] size = {{2, 3, 4, 5}}, bool align = {{1}}>
        {{ grid = {called(op_type, domain, attributes)} ({inputs}) }}""")
    expected = ogs.affine_grid(theta, (2, 3, 4, 5), True)
    np.testing.assert_array_equal(open_session(model).run(None, {"theta": theta})[0], expected)
    for target in ("ai.onnx", "primitives"):
        answer = open_native(ogs.patch_model(model, target=target)).run(None, {"theta": theta})[0]
        np.testing.assert_allclose(answer, expected, atol=1e-6)


NAMES = "'interpolation_mode', 'padding_mode' or 'align_corners'"
UNREADABLE = [
    (
        "interpolation_mode is 3, expected 0, 1 or 2",
        "mmcv.grid_sampler",
        CODES | {"interpolation_mode": 3},
    ),
    (
        "align_corners is missing, expected 0 or 1",
        "mmcv.grid_sampler",
        {"interpolation_mode": 0, "padding_mode": 0},
    ),
    (f"attribute is 'order', expected {NAMES}", "mmcv.grid_sampler", CODES | {"order": 2}),
    (
        "padding_mode is 'zeros', expected 0, 1 or 2",
        "mmcv.grid_sampler",
        CODES | {"padding_mode": "zeros"},
    ),
    ("padding_mode is missing, expected 0, 1 or 2", "grid_sampler", {"interpolation_mode": 0}),
    (
        "mode is 'trilinear', expected 0, 1 or 2 (opset 16)",
        "GridSample3D",
        CODES | {"mode": "trilinear"},
    ),
    ("align_corners is missing, expected 0 or 1", "GridSampler", {"mode": 0, "paddingmode": 0}),
    (
        "interpolation_mode is said twice, expected said once",
        "GridSampler",
        PARSER | {"interpolation_mode": 1},
    ),
    (
        "mode is 'linear', expected 'bilinear', 'nearest' or 'bicubic' (opset 16)",
        "GridSample",
        {"mode": "linear"},
    ),
]


@pytest.mark.parametrize(("sentence", "op", "attributes"), UNREADABLE)
def test_what_cannot_be_read_is_reported(
    sentence: str, op: str, attributes: dict[str, object]
) -> None:
    domain, _, op_type = op.rpartition(".")
    if "mode" in attributes and op_type == "GridSample3D":
        del attributes["interpolation_mode"]
    assert (
        message_of(sampler(op_type, domain, 16, **attributes))
        == f"{op_type} node 'warp': {sentence}"
    )


def test_other_things_that_cannot_be_read_are_reported() -> None:
    """GridSample before there was one, which is no plugin's, and a code that is computed."""
    old = message_of(sampler("GridSample", "", mode="bilinear"))
    assert old == "GridSample node 'warp': opset is 11, expected at least 16"
    model = with_constants("grid_sampler", "aten")
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("mode", TensorProto.INT64, []))
    sentence = "interpolation_mode is the input 'mode', expected a constant"
    assert message_of(model) == f"grid_sampler node 'warp': {sentence}"


def test_a_plugin_takes_zero_for_what_it_is_not_told() -> None:
    """SparseOcc's export renames the node and takes its attributes away."""
    model = sampler("GridSample3D", "", 16, axes=3, version=1, namespace="")
    model.graph.node[0].attribute.append(helper.make_attribute("name", "GridSample3D"))
    (record,) = ogs.inspect_model(model)
    assert (record.mode, record.padding_mode, record.align_corners) == ("linear", "zeros", 0)
    answer = open_native(ogs.patch_model(model, target="primitives")).run(
        None, {"X": X3, "grid": GRID3}
    )[0]
    np.testing.assert_allclose(answer, ogs.grid_sample(X3, GRID3), atol=1e-5)


#: Without the target that takes no GridSample alone, see test_attention.py.
TARGETS = [target for target in target_names() if target != "tensorrt-plugins"]
ROUND = [target for target in TARGETS if target not in ("ai.onnx", "ai.onnx-2d", "primitives")]
SMALL = {
    **{name: parser.parse_model(text) for name, text in GRAPHS.items() if "function" not in name},
    "half": grid_sample_model(
        "float16", "float64", 2, [ARGUMENTS, Attributes("cubic", "zeros", False)]
    ),
    "three axes": grid_sample_model("float32", "float32", 3, [ARGUMENTS]),
}


def says(target: str, record: ogs.NodeRecord) -> bool:
    """Whether the target has a spelling for the node; others stay."""
    of = {"GridSampler": record.spatial_axes, "GridSample3D": (3,)}.get(target, (2,))
    is_sampled = record.operator == "GridSample" and record.spatial_axes == of
    return is_sampled or target in ("ort_gridsample", "compiled")


def is_node(record: ogs.NodeRecord) -> bool:
    return not record.unrolled


def assert_there_and_back_is_the_identity(model: onnx.ModelProto, target: TargetName) -> None:
    there = ogs.patch_model(model, target=target, nodes=is_node)
    rewritten = Counter(
        record.dialect.name for record in ogs.inspect_model(there) if is_node(record)
    )
    records = filter(is_node, ogs.inspect_model(model))
    assert rewritten == Counter(target if says(target, record) else "ai.onnx" for record in records)
    assert normalized(ogs.patch_model(there, target="ai.onnx", nodes=is_node)) == normalized(model)


@pytest.mark.parametrize("target", ROUND)
def test_there_and_back_is_the_identity(target: TargetName) -> None:
    for name, model in SMALL.items():
        with about(name):
            assert_there_and_back_is_the_identity(model, target)


@pytest.mark.parametrize("path", by_size(EXPORTED))
def test_exported_models_go_there_and_back(path: Path) -> None:
    """Targets take turns."""
    assert_there_and_back_is_the_identity(onnx.load(path), ROUND[EXPORTED.index(path) % len(ROUND)])


def test_through_every_spelling_and_back() -> None:
    there = model = SMALL["two in a row"]
    for target in ROUND:
        there = ogs.patch_model(there, target=target)
        said = target if target != "GridSample3D" else ROUND[ROUND.index(target) - 1]
        assert {record.dialect.name for record in ogs.inspect_model(there)} == {said}
    assert normalized(ogs.patch_model(there, target="ai.onnx")) == normalized(model)


def assert_lowered_answers_as_native(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], functions: bool
) -> None:
    lowered = ogs.patch_model(model, target="primitives", functions=functions)
    onnx.checker.check_model(lowered)
    before = {(n.domain, n.op_type) for scope in scopes(model) for n in scope}
    new = {(n.domain, n.op_type) for scope in scopes(lowered) for n in scope} - before
    assert {op_type for domain, op_type in new if domain == ""} <= PRIMITIVES
    assert {domain for domain, _ in new} <= (
        {"", "ort_gridsample.primitives"} if functions else {""}
    )
    assert {"GridSample", "AffineGrid"}.isdisjoint(
        n.op_type for scope in scopes(lowered) for n in scope
    )
    assert_answers_agree(lowered, model, feeds)


@pytest.mark.parametrize("functions", [False, True])
def test_lowered_models_answer_as_native(functions: bool) -> None:
    for name, text in GRAPHS.items():
        with about(name):
            assert_lowered_answers_as_native(parser.parse_model(text), FEEDS, functions)


@pytest.mark.parametrize("path", by_size(path for path in EXPORTED if path.stem not in REFUSED))
def test_lowered_exported_models_answer_as_native(path: Path) -> None:
    """Functions, or none, take turns."""
    assert_lowered_answers_as_native(
        onnx.load(path), stored(path, "in."), EXPORTED.index(path) % 2 == 0
    )


def test_lowered_models_have_functions_only_where_they_are_asked_for() -> None:
    """Many runtimes have none: those that hold a node are inlined, others stay."""
    functions = """sample (A, B) => (C) { C = GridSample <mode = "bilinear"> (A, B) }
        <domain: "local", opset_import: ["": 16]> negate (A) => (C) { C = Neg(A) }"""
    model = written("A = local.sample(X, G) Y = local.negate(A)", 16, functions)
    model.ir_version = 7  # before there were functions
    lowered = ogs.patch_model(model, target="primitives")
    assert ([function.name for function in lowered.functions], lowered.ir_version) == (
        ["negate"],
        7,
    )
    shared = ogs.patch_model(model, target="primitives", functions=True)
    assert {function.name for function in shared.functions} == {"sample", "negate", "GridSample_1"}
    assert shared.ir_version == 8
    [Y] = open_native(shared).run(None, FEEDS)
    np.testing.assert_allclose(Y, -ogs.grid_sample(X, GRID), atol=1e-5)


@pytest.mark.parametrize("opset", [11, 12])
def test_models_of_old_opsets_stay_what_they_are(opset: int) -> None:
    codes = "interpolation_mode = 0, padding_mode = 0, align_corners = 0"
    split = "B, Y = Split <axis = 2, split = [1, 3]> (A)"  # in opset 13 the sizes are an input
    lowered = ogs.patch_model(
        written(f"A = mmcv.grid_sampler <{codes}> (X, G) {split}", opset), target="primitives"
    )
    assert [(entry.domain, entry.version) for entry in lowered.opset_import] == [("", opset)]
    onnx.checker.check_model(lowered, full_check=True)
    [Y] = open_native(lowered).run(None, FEEDS)
    np.testing.assert_allclose(Y, ogs.grid_sample(X, GRID)[:, :, 1:], atol=1e-5)


def test_what_is_no_target_and_what_no_runtime_is_for() -> None:
    model = grid_sample_model("float32", "float32", 2, [ARGUMENTS])
    names = "'iree', 'mnn', 'onnx2tf', 'onnx2torch', 'onnxconverter-common', 'onnxruntime-webgpu', 'rknn' or 'tvm'"
    spelled = "'GridSample3D', 'GridSampler', 'mmdeploy', 'mmcv', 'com.microsoft', 'compiled' or 'tensorrt-plugins'"
    targets = f"'ort_gridsample', 'ai.onnx', 'ai.onnx-2d', 'primitives', {spelled}"
    for target, runtime, said in (
        (
            "primitives",
            "toaster",
            f"for_runtime is 'toaster', expected {names}; others run the primitives as they are",
        ),
        (
            "ai.onnx",
            "mnn",
            "for_runtime is 'mnn' with target 'ai.onnx', expected target 'primitives'",
        ),
        ("tensorrt", None, f"target is 'tensorrt', expected {targets}"),
    ):
        assert message_of(model, target=target, for_runtime=runtime) == f"patch_model: {said}"


@pytest.mark.parametrize(
    ("runtime", "opset"), [("onnx2torch", 17), ("rknn", 19), ("mnn", 22), ("tvm", 22)]
)
def test_a_runtime_gets_an_opset_that_it_reads(runtime: RuntimeName, opset: int) -> None:
    model = grid_sample_model("float32", "float32", 3, [ARGUMENTS], opset=22)
    patched = ogs.patch_model(model, target="primitives", for_runtime=runtime)
    assert [entry.version for entry in patched.opset_import if not entry.domain] == [opset]
    shapes = {node.output[0] for node in patched.graph.node if node.op_type == "Shape"}
    readers = {node.op_type for node in patched.graph.node if shapes.intersection(node.input)}
    assert readers == {"Slice" if runtime == "tvm" else "Gather"}
    asked = ogs.patch_model(model, target="primitives", for_runtime=runtime, opset=20)
    assert [entry.version for entry in asked.opset_import if not entry.domain] == [20]
    expected = ogs.grid_sample(X3, GRID3, *astuple(ARGUMENTS))
    for each in (patched, asked):
        np.testing.assert_allclose(
            open_native(each).run(None, {"X": X3, "grid": GRID3})[0], expected, atol=1e-5
        )


def test_nodes_lowered_alike_share_a_function() -> None:
    """Also with those of an earlier patch; someone else's may have the name that the next one would get."""
    assert _common_shape([(2, "C", 4), (2, "C", 5)]) == (
        2,
        "C",
        None,
    )  # what all calls of one know of a shape
    assert _common_shape([(2, 3), None]) is _common_shape([]) is None
    samples = [ARGUMENTS, NEAREST, ARGUMENTS]
    again = model = grid_sample_model("float32", "float32", 2, samples, opset=20)
    lower = partial(ogs.patch_model, target="primitives", functions=True)
    for name in ("sample1", "sample0", "sample2"):
        again = lower(again, nodes=lambda record, name=name: record.name == name)
    negate, opsets = helper.make_node("Neg", ["A"], ["B"]), [helper.make_opsetid("", 20)]
    function = helper.make_function(
        "ort_gridsample.primitives", "GridSample_1", ["A"], ["B"], [negate], opsets
    )
    model.functions.append(function)
    other = lower(model)
    assert [f.name for f in again.functions] == ["GridSample_1", "GridSample_2"]
    assert [f.name for f in other.functions] == ["GridSample_1", "GridSample_2", "GridSample_3"]
    for there, numbers in ((again, (2, 1, 2)), (other, (2, 3, 2))):
        called = [(f"sample{i}", f"GridSample_{number}") for i, number in enumerate(numbers)]
        assert [(node.name, node.op_type) for node in there.graph.node] == called
        onnx.checker.check_model(there)
        for answer, attributes in zip(
            open_native(there).run(None, {"X": X, "grid": GRID}), samples, strict=True
        ):
            np.testing.assert_allclose(
                answer, ogs.grid_sample(X, GRID, *astuple(attributes)), rtol=1e-5, atol=1e-5
            )


def answer_of(patched: onnx.ModelProto, target: TargetName) -> np.ndarray:
    """What the ops answer, or the standard's where ``target`` is a spelling of it."""
    if target == "ort_gridsample":
        return open_session(patched).run(None, FEEDS)[0]
    standard = patched if target == "primitives" else ogs.patch_model(patched, target="ai.onnx")
    onnx.checker.check_model(standard)
    return open_native(standard).run(None, FEEDS)[0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_passes_on_a_dialects_integers(target: TargetName) -> None:
    for said, default, dialect, attributes in (
        ("m = 1, p = 2, ac = 1", "", "mmcv", ("nearest", "reflection", True)),
        ("m = 2, p = 0", ": int = 0", "mmdeploy", ("cubic", "zeros", False)),
    ):
        codes = "interpolation_mode: int = @m, padding_mode: int = @p, align_corners: int = @ac"
        warp = f"warp <m, p, ac{default}> (A, B) => (C) {{ C = {dialect}.grid_sampler <{codes}> (A, B) }}"
        model = written(f"Y = local.warp <{said}> (X, G)", 20, warp)
        patched, expected = (
            ogs.patch_model(model, target=target),
            ogs.grid_sample(X, GRID, *attributes),
        )
        np.testing.assert_allclose(answer_of(patched, target), expected, rtol=1e-5, atol=1e-4)
        # Where the words are the same, the function stays.
        assert len(patched.functions) == (
            target in ("mmcv", "mmdeploy", "GridSampler", "GridSample3D")
        )


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_passes_on_the_standards_attributes(target: TargetName) -> None:
    expected = ogs.grid_sample(X, GRID, "cubic", "border") + ogs.grid_sample(
        X, GRID, "nearest", "zeros", True
    )
    words = "mode: string = @m, padding_mode: string = @p, align_corners: int = @ac"
    warp = f"warp <m, p, ac> (A, B) => (C) {{ C = GridSample <{words}> (A, B) }}"
    for opset, mode in ((16, "bicubic"), (20, "cubic")):
        nodes = f'A = local.warp <m = "{mode}", p = "border"> (X, G) B = local.warp <m = "nearest", ac = 1> (X, G)'
        patched = ogs.patch_model(written(f"{nodes} Y = Add (A, B)", opset, warp), target=target)
        # The one cannot say a node of two axes, the other is read back.
        said = {"GridSample3D": "ai.onnx", "ai.onnx-2d": "ai.onnx", "primitives": "unrolled"}.get(
            target, target
        )
        assert {record.dialect.name for record in ogs.inspect_model(patched)} == {said}, opset
        np.testing.assert_allclose(answer_of(patched, target), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["ort_gridsample", "com.microsoft", "ai.onnx"])
def test_an_attribute_that_is_passed_on_elsewhere_too_keeps_that_ones_default(
    target: TargetName,
) -> None:
    """What a call leaves out is 0 to the one operator and -1 to the other."""
    warp = """warp <k> (A, B) => (D) {
        C = GridSample <align_corners: int = @k> (A, B)
        one = Constant <value = bool {1}> ()
        D = If (one) <then_branch = t () => (E) { E = Softmax <axis: int = @k> (C) },
                      else_branch = e () => (F) { F = Identity (C) }> }"""
    model = written("A = local.warp (X, G) B = local.warp <k = 1> (X, G) Y = Add (A, B)", 20, warp)
    [expected] = open_native(model).run(None, FEEDS)
    patched = ogs.patch_model(model, target=target)
    np.testing.assert_allclose(answer_of(patched, target), expected, rtol=1e-5, atol=1e-5)


def test_two_nodes_that_are_passed_the_same_attribute_stay_in_their_function() -> None:
    for op in (
        "GridSample <align_corners",
        "mmcv.GridSampler <interpolationmode = 0, paddingmode = 0, aligncorners",
    ):
        warp = f"warp <k> (A, B) => (D) {{ C = {op}: int = @k> (A, B) D = {op}: int = @k> (C, B) }}"
        assert [
            f.name for f in ogs.patch_model(written("Y = local.warp (X, G)", 20, warp)).functions
        ] == ["warp"]


DIALECT_ATTRIBUTES = {
    "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
    "padding_mode": ogs.Spelling(
        "outside", {"zeros": "constant", "border": "edge"}, default="zeros"
    ),
    "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
}


def test_a_user_adds_a_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    mine = ogs.Dialect(
        "mine",
        "GridSample",
        "Warp",
        ("my.domain",),
        DIALECT_ATTRIBUTES,
        marks={"kind": ("spline",)},
    )
    ogs.add_dialect(mine)
    model = sampler("Warp", "my.domain", kind="spline", order=1, outside="edge", corners=1)
    [answer] = open_session(model).run(None, feeds_of(model))
    np.testing.assert_array_equal(answer, ogs.grid_sample(X, GRID, *astuple(ARGUMENTS)))
    back = ogs.patch_model(ogs.patch_model(model, target="mmcv"), target=mine)
    assert ogs.patch_model(ogs.patch_model(model, target="mmcv"), target="mine") == back
    assert sorted(back.graph.node[0].attribute, key=str) == sorted(
        model.graph.node[0].attribute, key=str
    )
    reflected = grid_sample_model(
        "float32", "float32", 2, [Attributes("linear", "reflection", False)]
    )
    sentence = "padding_mode is 'reflection', expected 'zeros' or 'border' in mine"
    assert message_of(reflected, target="mine") == f"GridSample node 'sample0': {sentence}"
    for change, said in (
        ({"name": "half", "attributes": {}}, "dialect 'half': attributes is"),
        (
            {"name": "none", "operator": "Warp"},
            "operator is 'Warp', expected 'GridSample' or 'AffineGrid'",
        ),
    ):
        assert said in str(refusal(ogs.add_dialect, replace(mine, **change)))


def test_add_dialect_again_replaces_the_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    first = ogs.Dialect("mine", "GridSample", "Warp", ("my.domain",), DIALECT_ATTRIBUTES)
    second = replace(first, op_type="Resample")
    ogs.add_dialect(first)
    ogs.add_dialect(second)
    assert [dialect for dialect in registry.dialects() if dialect.name == "mine"] == [second]


@pytest.mark.parametrize("name", [*registry.target_names(), "unrolled", "compiled before 0.2"])
def test_add_dialect_with_name_of_built_in_target_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registry", registry.Registry())
    dialect = ogs.Dialect(name, "GridSample", "Warp", ("my.domain",), DIALECT_ATTRIBUTES)
    error = refusal(ogs.add_dialect, dialect)
    assert (error.argument, error.found) == ("name", repr(name))
    assert (
        str(error)
        == f"dialect {name!r}: name is {name!r}, expected one that is not a target already"
    )
    assert dialect not in registry.dialects()


def test_pytorch_s_exporter_gets_the_standard_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyTorch; with it: test_pytorch.py."""
    modules, opset = Mock(), Mock(version=20)
    modules.default().opset = opset
    monkeypatch.setattr(
        pytorch, "import_module", {"onnxscript.evaluator": modules, "torch": modules}.__getitem__
    )
    monkeypatch.setattr(pytorch, "_register_affine_grid_shape", Mock())
    table = ogs.torch_translation_table()
    affine_grid = table.pop(modules.ops.aten.affine_grid_generator.default)
    assert {*table} == {
        getattr(modules.ops.aten, f"grid_sampler{end}").default for end in ("", "_2d", "_3d")
    }
    for opset.version, mode, grid_sample in zip(
        (20, 16, 19), ("cubic", *["bicubic"] * 2), table.values(), strict=True
    ):
        assert grid_sample("X", "grid", 2, 1, True) is opset.GridSample.return_value
        opset.GridSample.assert_called_with(
            "X", "grid", mode=mode, padding_mode="border", align_corners=1
        )
        error = refusal(grid_sample, "X", "grid", 0, 3, False)
        assert str(error) == "grid_sample: padding_mode is 3, expected 0, 1 or 2"
    error = refusal(affine_grid, "theta", "size", True)
    assert str(error) == "affine_grid: opset_version is 19, expected at least 20"
    opset.version = 20
    assert affine_grid("theta", "size", True) is opset.AffineGrid.return_value
    opset.AffineGrid.assert_called_with("theta", "size", align_corners=1)


@pytest.mark.parametrize("target", ["com.microsoft", "mmcv", "mmdeploy"])
@pytest.mark.parametrize(
    "X", ["float[a, b, c, d, e]", "float[]"], ids=["of five axes", "of unknown rank"]
)
def test_patch_to_a_dialect_of_two_axes_leaves_what_may_have_others(
    target: TargetName, X: str
) -> None:
    grid = "float[a, f, g, h, 3]" if "a" in X.partition("[")[2] else "float[]"
    text = f'g ({X} X, {grid} G) => (float[] y) {{ y = GridSample <mode = "linear"> (X, G) }}'
    (node,) = ogs.patch_model(parsed(text), target=target).graph.node
    assert (node.domain, node.op_type) == ("", "GridSample")


@pytest.mark.parametrize("target", ["com.microsoft", "mmdeploy"])
def test_patch_from_a_dialect_of_two_axes_needs_no_rank(target: TargetName) -> None:
    attributes = "<interpolation_mode = 0, padding_mode = 0, align_corners = 0>"
    model = parsed(
        f"g (float[] X, float[] G) => (float[] y) {{ y = mmcv.grid_sampler {attributes} (X, G) }}"
    )
    (node,) = ogs.patch_model(model, target=target).graph.node
    assert node.domain == target
