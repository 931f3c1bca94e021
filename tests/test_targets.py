"""Every dialect in, every target out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ort_gridsample as ogs
from cases import Attributes
from models import PRIMITIVES, grid_sample_model
from ort_gridsample.cli import main
from ort_gridsample.model.graphs import scopes
from ort_gridsample.model.patch import targets
from ort_gridsample.model.targets.runtimes import RuntimeName
from paths import open_native, open_session
from test_exported import MODELS as EXPORTED
from test_exported import REFUSED, stored
from test_patch import GRID, SIGNATURE, X
from test_patch import MODELS as GRAPHS

X3 = np.random.default_rng(2).standard_normal((2, 3, 4, 5, 6)).astype(np.float32)
GRID3 = np.random.default_rng(3).uniform(-1.3, 1.3, (2, 3, 4, 5, 3)).astype(np.float32)

CODES = {"interpolation_mode": 0, "padding_mode": 1, "align_corners": 1}
PARSER = {"interpolationmode": 0, "paddingmode": 1, "aligncorners": 1}
ARGUMENTS = Attributes("linear", "border", True)


def one_node(
    node: onnx.NodeProto, opsets: Mapping[str, int], *constants: onnx.TensorProto, axes: int = 2
) -> onnx.ModelProto:
    tensor = helper.make_tensor_value_info
    dims = [f"d{i}" for i in range(axes)]
    inputs = [
        tensor("X", TensorProto.FLOAT, ["N", "C", *dims]),
        tensor("grid", TensorProto.FLOAT, ["N", *dims[::-1], axes]),
    ]
    outputs = [tensor("Y", TensorProto.FLOAT, ["N", "C", *dims[::-1]])]
    graph = helper.make_graph([node], "g", inputs, outputs, constants)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def sampler(op_type: str, domain: str, opset: int = 11, axes: int = 2, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(op_type, ["X", "grid"], ["Y"], "warp", domain=domain, **attributes)
    return one_node(node, {"": opset} | ({domain: 1} if domain else {}), axes=axes)


def with_constants(op_type: str, domain: str, **attributes: object) -> onnx.ModelProto:
    names = ["mode", "padding", "align"]
    node = helper.make_node(op_type, ["X", "grid", *names], ["Y"], "warp", domain=domain, **attributes)
    scalars = [np.array(0), np.array(1), np.array(True)]
    constants = [numpy_helper.from_array(value, name) for value, name in zip(scalars, names, strict=True)]
    return one_node(node, {"": 13, domain: 1}, *constants)


#: As their exporters write them: mmcv at opset 11, its successor at 13, plugins with what TensorRT reads.
DIALECTS = {
    "com.microsoft": sampler(
        "GridSample", "com.microsoft", 12, mode="bilinear", padding_mode="border", align_corners=1
    ),
    "mmcv": sampler("grid_sampler", "mmcv", **CODES),
    "mmdeploy": sampler("grid_sampler", "mmdeploy", 13, **CODES),
    "GridSampler": sampler("GridSampler", "", plugin_version="1", plugin_namespace="", **CODES),
    "GridSampler of a domain": sampler("GridSampler", "custom.plugins", **CODES),
    "GridSample3D": sampler("GridSample3D", "", 16, axes=3, **CODES),
    "GridSample3D, renamed": sampler(
        "GridSample3D", "", 20, axes=3, mode="linear", padding_mode="border", align_corners=1
    ),
    "GridSample3D, renamed before 20": sampler(
        "GridSample3D", "", 16, axes=3, mode="bilinear", padding_mode="border", align_corners=1
    ),
    "GridSampler of onnxparser-trt-plugin-sample": sampler("GridSampler", "", 10, **PARSER),
    "GridSampler of myonnx_plugin": sampler("GridSampler", "myonnx_plugin", **PARSER),
    "GridSample of a plugin": sampler("GridSample", "", mode=0, padding_mode=1, align_corners=1),
    "GridSample of another plugin": sampler("GridSample", "", **PARSER),
    "mmcv without its domain": sampler("grid_sampler", "", **CODES),
    "mmdeploy without its domain": sampler("grid_sampler", "", 13, **CODES),
    "onnxservice": sampler("grid_sampler", "onnxservice", **CODES),
    "onnxservice, with constants": with_constants("grid_sampler", "onnxservice"),
    "aten::grid_sampler": with_constants("grid_sampler", "aten"),
    "aten::grid_sampler_2d": sampler("grid_sampler_2d", "aten", **CODES),
    "aten::grid_sampler_3d": sampler("grid_sampler_3d", "aten", axes=3, **CODES),
    "org.pytorch.aten::grid_sampler": with_constants("grid_sampler", "org.pytorch.aten"),
    "ATen": with_constants("ATen", "org.pytorch.aten", operator="grid_sampler", overload_name=""),
    "ATen with attributes": sampler("ATen", "aten", operator="grid_sampler_2d", **CODES),
}


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    three = len(model.graph.input[0].type.tensor_type.shape.dim) == 5
    return {"X": X3 if three else X, "grid": GRID3 if three else GRID}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("target", ["ort_gridsample", "ai.onnx", "primitives"])
def test_a_dialect_gives_the_standard_answer(name: str, target: str) -> None:
    model = DIALECTS[name]
    feeds = feeds_of(model)
    expected = ogs.grid_sample(feeds["X"], feeds["grid"], *astuple(ARGUMENTS))
    if target == "ort_gridsample":
        np.testing.assert_array_equal(ogs.InferenceSession(model, nodes="all").run(None, feeds)[0], expected)
    patched = ogs.patch_model(model, target=target)
    onnx.checker.check_model(patched)
    session = (
        open_native(patched)
        if target != "ort_gridsample"
        else onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
    )
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)
    (record,) = ogs.inspect_model(model)
    assert (record.mode, record.padding_mode, record.align_corners) == ("linear", "border", 1)


@pytest.mark.parametrize("size", ["input", "attribute"])
@pytest.mark.parametrize("form", ["node", "ATen", "without a domain", "onnxservice"])
def test_affine_grid_generator(size: str, form: str) -> None:
    theta = np.array([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2]]] * 2, np.float32)
    attributes: dict = {"size": [2, 3, 4, 5]} if size == "attribute" else {}
    inputs = ["theta", "", "align"] if size == "attribute" else ["theta", "size", "align"]
    if form == "ATen":
        attributes |= {"operator": "affine_grid_generator", "overload_name": ""}
    op_type = "ATen" if form == "ATen" else "affine_grid_generator"
    domain = {"without a domain": "", "onnxservice": "onnxservice"}.get(form, "org.pytorch.aten")
    if domain != "org.pytorch.aten":  # which have an attribute
        del inputs[2]
        attributes["align_corners"] = 1
    node = helper.make_node(op_type, inputs, ["grid"], "make grid", domain=domain, **attributes)
    constants = [numpy_helper.from_array(np.array(True), "align")]
    if size == "input":
        constants.append(numpy_helper.from_array(np.array([2, 3, 4, 5]), "size"))
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [tensor("theta", TensorProto.FLOAT, [2, 2, 3])],
        [tensor("grid", TensorProto.FLOAT, [2, 4, 5, 2])],
        constants,
    )
    imports = [helper.make_opsetid("", 14), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    expected = ogs.affine_grid(theta, (2, 3, 4, 5), True)
    np.testing.assert_array_equal(ogs.InferenceSession(model, nodes="all").run(None, {"theta": theta})[0], expected)
    for target in ("ai.onnx", "primitives"):
        answer = open_native(ogs.patch_model(model, target=target)).run(None, {"theta": theta})[0]
        np.testing.assert_allclose(answer, expected, atol=1e-6)


UNREADABLE = {
    "code": (
        sampler("grid_sampler", "mmcv", **CODES | {"interpolation_mode": 3}),
        "interpolation_mode is 3",
    ),
    "missing": (sampler("grid_sampler", "mmcv", interpolation_mode=0, padding_mode=0), "align_corners is missing"),
    "unknown": (
        sampler("grid_sampler", "mmcv", **CODES, order=2),
        "attribute is 'order', expected",
    ),
    "type": (
        sampler("grid_sampler", "mmcv", **CODES | {"padding_mode": "zeros"}),
        "padding_mode is 'zeros'",
    ),
    "without a domain": (sampler("grid_sampler", "", interpolation_mode=0), "padding_mode is missing"),
    "word": (
        sampler("GridSample3D", "", 16, axes=3, mode="trilinear", padding_mode="zeros", align_corners=1),
        "mode is 'trilinear', expected 0, 1 or 2",
    ),
    "name of a plugin's": (sampler("GridSampler", "", mode=0, paddingmode=0), "align_corners is missing"),
    "two names": (
        sampler("GridSampler", "", **PARSER, interpolation_mode=1),
        "interpolation_mode is said twice, expected said once",
    ),
    "GridSample of no plugin": (sampler("GridSample", "", mode="bilinear"), "opset is 11, expected at least 16"),
    "GridSample of no plugin, in words": (
        sampler("GridSample", "", 16, mode="linear"),
        "mode is 'linear', expected 'bilinear'",
    ),
}


@pytest.mark.parametrize(("model", "sentence"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_reported(model: onnx.ModelProto, sentence: str) -> None:
    with pytest.raises(ogs.GridSampleError, match=f"{model.graph.node[0].op_type} node 'warp': {sentence}"):
        ogs.patch_model(model)


def test_a_plugin_takes_zero_for_what_it_is_not_told() -> None:
    """SparseOcc's export renames the node and takes its attributes away."""
    model = sampler("GridSample3D", "", 16, axes=3, version=1, namespace="")
    model.graph.node[0].attribute.append(helper.make_attribute("name", "GridSample3D"))
    (record,) = ogs.inspect_model(model)
    assert (record.mode, record.padding_mode, record.align_corners) == ("linear", "zeros", 0)
    answer = open_native(ogs.patch_model(model, target="primitives")).run(None, {"X": X3, "grid": GRID3})[0]
    np.testing.assert_allclose(answer, ogs.grid_sample(X3, GRID3), atol=1e-5)


def test_a_code_that_is_computed_is_reported() -> None:
    model = with_constants("grid_sampler", "aten")
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("mode", TensorProto.INT64, []))
    with pytest.raises(ogs.GridSampleError, match="interpolation_mode is the input 'mode', expected a constant"):
        ogs.patch_model(model)


def normalized(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with the attributes of its GridSamples and AffineGrids written out, in order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for scope in scopes(copy):
        for node in scope:
            if node.op_type in ogs.spec.OPERATORS and node.domain == "":
                there = {a.name: a for a in node.attribute}
                version = ogs.spec.version_of(node.op_type, scope.opsets[""])
                attributes = [
                    there.get(name) or helper.make_attribute(name, attribute.default)
                    for name, attribute in ogs.spec.OPERATORS[node.op_type][version].attributes.items()
                ]
                node.ClearField("domain")
                copies = onnx.NodeProto(attribute=attributes)
                del node.attribute[:]
                node.attribute.extend(copies.attribute)
    imports = sorted((entry.domain, entry.version) for entry in copy.opset_import)
    del copy.opset_import[:]
    copy.opset_import.extend(helper.make_opsetid(*entry) for entry in imports)
    return copy


ROUND = [target for target in targets() if target not in ("ai.onnx", "primitives")]
STANDARD = {
    **{name: parser.parse_model(text) for name, text in GRAPHS.items() if "function" not in name},
    **{path.stem: onnx.load(path) for path in EXPORTED},
    "half": grid_sample_model("float16", "float64", 2, [ARGUMENTS, Attributes("cubic", "zeros", False)]),
}


def samples_in(axes: int) -> Callable[[ogs.NodeRecord], bool]:
    return lambda record: record.operator == "GridSample" and record.spatial_axes == (axes,)


#: Which nodes each target has a spelling for; the others stay.
SAYS: dict[str, Callable[[ogs.NodeRecord], bool]] = {
    "ort_gridsample": lambda record: True,
    "compiled": lambda record: True,
    "com.microsoft": samples_in(2),
    "mmcv": samples_in(2),
    "mmdeploy": samples_in(2),
    "GridSampler": lambda record: record.operator == "GridSample",
    "GridSample3D": samples_in(3),
}


def is_node(record: ogs.NodeRecord) -> bool:
    return not record.unrolled


@pytest.mark.parametrize("name", STANDARD)
@pytest.mark.parametrize("target", ROUND)
def test_there_and_back_is_the_identity(name: str, target: str) -> None:
    model = STANDARD[name]
    there = ogs.patch_model(model, target=target, nodes=is_node)
    rewritten = Counter(record.dialect.name for record in ogs.inspect_model(there) if is_node(record))
    records = filter(is_node, ogs.inspect_model(model))
    assert rewritten == Counter(target if SAYS[target](record) else "ai.onnx" for record in records)
    back = ogs.patch_model(there, target="ai.onnx", nodes=is_node)
    assert normalized(back) == normalized(model)


def test_through_every_spelling_and_back() -> None:
    model = STANDARD["two in a row"]
    there = model
    for target in ROUND:
        there = ogs.patch_model(there, target=target)
        said = target if target != "GridSample3D" else ROUND[ROUND.index(target) - 1]
        assert {record.dialect.name for record in ogs.inspect_model(there)} == {said}
    assert normalized(ogs.patch_model(there, target="ai.onnx")) == normalized(model)


@pytest.mark.parametrize("name", [*GRAPHS, *(path.stem for path in EXPORTED if path.stem not in REFUSED)])
@pytest.mark.parametrize("functions", [False, True])
def test_lowered_models_answer_as_native(name: str, functions: bool) -> None:
    if name in GRAPHS:
        model = parser.parse_model(GRAPHS[name])
        feeds = {"X": X, "G": GRID, "c": np.array(True)}
    else:
        path = next(path for path in EXPORTED if path.stem == name)
        model = onnx.load(path)
        feeds = stored(path, "in.")
    lowered = ogs.patch_model(model, target="primitives", functions=functions)
    onnx.checker.check_model(lowered)
    before = {(n.domain, n.op_type) for scope in scopes(model) for n in scope}
    new = {(n.domain, n.op_type) for scope in scopes(lowered) for n in scope} - before
    assert {op_type for domain, op_type in new if domain == ""} <= PRIMITIVES
    assert {domain for domain, _ in new} <= ({"", "ort_gridsample.primitives"} if functions else {""})
    assert all(record.unrolled for record in ogs.inspect_model(lowered))
    for ours, native in zip(open_native(lowered).run(None, feeds), open_native(model).run(None, feeds), strict=True):
        finite = native[np.isfinite(native)]
        atol = 2e-5 * float(np.abs(finite).max()) if finite.size else 0
        np.testing.assert_allclose(ours, native, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(("functions", "ir_version"), [(False, 7), (True, 8)])
def test_a_model_from_before_there_were_functions_is_of_a_later_version_with_them(
    functions: bool, ir_version: int
) -> None:
    model = parser.parse_model(
        f'<ir_version: 7, opset_import: ["": 16]> {SIGNATURE} {{ Y = GridSample <mode = "bilinear"> (X, G) }}'
    )
    assert ogs.patch_model(model, target="primitives", functions=functions).ir_version == ir_version


def test_lowered_models_have_functions_only_where_they_are_asked_for() -> None:
    """Many runtimes have none: those that hold a node are inlined, others stay."""
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20, "f": 1]>
        g (float[2,3,4,5] X, float[2,4,5,2] G) => (float[2,3,4,5] Y) {
            A = f.sample(X, G)
            Y = f.negate(A)
        }
        <domain: "f", opset_import: ["": 20]> sample (X, G) => (Y) { Y = GridSample(X, G) }
        <domain: "f", opset_import: ["": 20]> negate (X) => (Y) { Y = Neg(X) }"""
    )
    lowered = ogs.patch_model(model, target="primitives")
    assert [function.name for function in lowered.functions] == ["negate"]
    assert {f.name for f in ogs.patch_model(model, target="primitives", functions=True).functions} >= {
        "sample",
        "negate",
    }
    np.testing.assert_allclose(
        open_native(lowered).run(None, {"X": X, "G": GRID})[0], -ogs.grid_sample(X, GRID), atol=1e-5
    )


@pytest.mark.parametrize("opset", [11, 12])
def test_models_of_old_opsets_stay_what_they_are(opset: int) -> None:
    node = helper.make_node("grid_sampler", ["X", "G"], ["A"], "sample", domain="mmcv", interpolation_mode=0)
    node.attribute.extend(helper.make_node("", [], [], padding_mode=0, align_corners=0).attribute)
    halves = helper.make_node("Split", ["A"], ["B", "Y"], axis=2, split=[1, 3])  # in opset 13 the sizes are an input
    infos = [
        helper.make_tensor_value_info(*each) for each in (("X", 1, X.shape), ("G", 1, GRID.shape), ("Y", 1, [None] * 4))
    ]
    graph = helper.make_graph([node, halves], "g", infos[:2], infos[2:])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("mmcv", 1)]
    lowered = ogs.patch_model(helper.make_model(graph, opset_imports=opsets, ir_version=6), target="primitives")
    assert [(entry.domain, entry.version) for entry in lowered.opset_import] == [("", opset)]
    onnx.checker.check_model(lowered, full_check=True)
    [Y] = open_native(lowered).run(None, {"X": X, "G": GRID})
    np.testing.assert_allclose(Y, ogs.grid_sample(X, GRID)[:, :, 1:], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"target": "primitives", "for_runtime": "toaster"},
            "expected .*'mnn'.*; others run the primitives as they are",
        ),
        ({"target": "ai.onnx", "for_runtime": "mnn"}, "'mnn' with target 'ai.onnx', expected target 'primitives'"),
    ],
)
def test_what_no_runtime_is_for(arguments: dict[str, Any], expected: str) -> None:
    model = grid_sample_model("float32", "float32", 2, [ARGUMENTS])
    with pytest.raises(ogs.GridSampleError, match=expected):
        ogs.patch_model(model, **arguments)


@pytest.mark.parametrize(("runtime", "opset"), [("onnx2torch", 17), ("rknn", 19), ("mnn", 22)])
def test_a_runtime_gets_an_opset_that_it_reads(runtime: RuntimeName, opset: int) -> None:
    model = grid_sample_model("float32", "float32", 3, [ARGUMENTS], opset=22)
    patched = ogs.patch_model(model, target="primitives", for_runtime=runtime)
    assert [entry.version for entry in patched.opset_import if not entry.domain] == [opset]
    asked = ogs.patch_model(model, target="primitives", for_runtime=runtime, opset=20)
    assert [entry.version for entry in asked.opset_import if not entry.domain] == [20]
    expected = ogs.grid_sample(X3, GRID3, *astuple(ARGUMENTS))
    for each in (patched, asked):
        np.testing.assert_allclose(open_native(each).run(None, {"X": X3, "grid": GRID3})[0], expected, atol=1e-5)


def test_nodes_lowered_alike_share_a_function() -> None:
    model = grid_sample_model("float32", "float32", 2, [ARGUMENTS, ARGUMENTS, Attributes("nearest", "zeros", False)])
    inlined = ogs.patch_model(model, target="primitives")
    shared = ogs.patch_model(model, target="primitives", functions=True)
    assert len(shared.functions) == 2
    assert [n.name for n in shared.graph.node] == ["sample0", "sample1", "sample2"]
    assert all(n.name.startswith(("sample0/", "sample1/", "sample2/")) for n in inlined.graph.node)
    assert shared.ByteSize() < inlined.ByteSize()


@pytest.mark.parametrize("again", [False, True])
def test_shared_functions_of_a_model_that_has_some_already(again: bool) -> None:
    """Of an earlier patch, or of someone else, whose function has the name that the next one would get."""
    samples = [ARGUMENTS, Attributes("nearest", "zeros", False), ARGUMENTS]
    model = grid_sample_model("float32", "float32", 2, samples, opset=20)
    if again:
        there = model
        for name in ("sample1", "sample0", "sample2"):
            there = ogs.patch_model(
                there, target="primitives", functions=True, nodes=lambda record, name=name: record.name == name
            )
        assert len(there.functions) == 2
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        domain, opsets = "ort_gridsample.primitives", [helper.make_opsetid("", 20)]
        negate = helper.make_node("Neg", ["A"], ["B"])
        copy.functions.append(helper.make_function(domain, "GridSample_1", ["A"], ["B"], [negate], opsets))
        there = ogs.patch_model(copy, target="primitives", functions=True)
        assert len(there.functions) == 3
    onnx.checker.check_model(there)
    answers = open_native(there).run(None, {"X": X, "grid": GRID})
    for answer, attributes in zip(answers, samples, strict=True):
        np.testing.assert_allclose(answer, ogs.grid_sample(X, GRID, *astuple(attributes)), rtol=1e-5, atol=1e-5)


def test_a_grid_from_constants_is_folded() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20]> g (float[1,3,4,4] X) => (float[1,3,2,2] Y) {
            theta = Constant <value = float[1,2,3] {0.9, 0.1, 0.0, -0.1, 0.9, 0.2}> ()
            size = Constant <value_ints = [1, 3, 2, 2]> ()
            grid = AffineGrid (theta, size)
            Y = GridSample (X, grid) }"""
    )
    lowered = ogs.patch_model(model, target="primitives")
    used = {n.op_type for n in lowered.graph.node}
    assert "Floor" not in used
    feeds = {"X": X[:1, :, :, :4]}
    [answer], [native] = open_native(lowered).run(None, feeds), open_native(model).run(None, feeds)
    np.testing.assert_allclose(answer, native, atol=1e-4)


def test_opset_is_raised_only_where_it_must_be() -> None:
    assert ogs.patch_model(DIALECTS["mmcv"], target="ai.onnx").opset_import[0].version == 16
    assert ogs.patch_model(DIALECTS["mmcv"]).opset_import[0].version == 11
    with pytest.raises(ogs.GridSampleError, match=r"target is 'tensorrt', expected 'ort_gridsample', 'ai.onnx'"):
        ogs.patch_model(DIALECTS["mmcv"], target="tensorrt")


def test_what_a_dialect_cannot_say_stays() -> None:
    three = grid_sample_model("float32", "float32", 3, [ARGUMENTS])
    assert ogs.patch_model(three, target="mmcv") == three
    spelled = ogs.patch_model(three, target="GridSample3D")
    assert [(n.op_type, helper.get_node_attr_value(n, "padding_mode")) for n in spelled.graph.node] == [
        ("GridSample3D", 1)
    ]
    two = grid_sample_model("float32", "float32", 2, [ARGUMENTS])
    assert ogs.patch_model(two, target="GridSample3D") == two


def test_com_microsoft_runs_natively() -> None:
    model = grid_sample_model("float32", "float32", 2, [ARGUMENTS])
    spelled = ogs.patch_model(model, target="com.microsoft")
    (record,) = ogs.inspect_model(spelled)
    assert record.native, record.reason
    feeds = {"X": X, "grid": GRID}
    [answer], [native] = open_native(spelled).run(None, feeds), open_native(model).run(None, feeds)
    np.testing.assert_allclose(answer, native, atol=1e-5)


@pytest.fixture
def mine() -> ogs.Dialect:
    dialect = ogs.Dialect(
        "mine",
        "GridSample",
        "Warp",
        ("my.domain",),
        {
            "mode": ogs.Spelling("order", {"nearest": 0, "linear": 1, "cubic": 3}),
            "padding_mode": ogs.Spelling("outside", {"zeros": "constant", "border": "edge"}, default="zeros"),
            "align_corners": ogs.Spelling("corners", {0: 0, 1: 1}, default=0),
        },
    )
    ogs.add_dialect(dialect)
    yield dialect
    ogs.model.dialects._DIALECTS.remove(dialect)


CALLS = {
    "given": ("m = 1, p = 2, ac = 1", ("nearest", "reflection", True)),
    "left out": ("m = 2, p = 0", ("cubic", "zeros", False)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("dialect", ["mmcv", "mmdeploy"])
def test_a_function_passes_on_a_dialects_integers(call: str, target: str, dialect: str) -> None:
    said, attributes = CALLS[call]
    default = ", ac: int = 0" if "ac" not in said else ", ac"
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20, "local": 1]> {SIGNATURE} {{
            Y = local.warp <{said}> (X, G) }}
        <domain: "local", opset_import: ["": 20, "{dialect}": 1]> warp <m, p{default}> (A, B) => (C) {{
            C = {dialect}.grid_sampler <interpolation_mode: int = @m, padding_mode: int = @p,
                align_corners: int = @ac> (A, B) }}"""
    )
    patched = ogs.patch_model(model, target=target)
    standard = patched if target in ("ort_gridsample", "primitives") else ogs.patch_model(patched, target="ai.onnx")
    onnx.checker.check_model(standard)
    session = open_session(standard) if target == "ort_gridsample" else open_native(standard)
    [answer] = session.run(None, {"X": X, "G": GRID, "c": np.array(True)})
    np.testing.assert_allclose(answer, ogs.grid_sample(X, GRID, *attributes), rtol=1e-5, atol=1e-4)
    # Where the words are the same, the function stays.
    assert len(patched.functions) == (target in ("mmcv", "mmdeploy", "GridSampler", "GridSample3D"))


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("opset", [16, 20])
def test_a_function_passes_on_the_standards_attributes(target: str, opset: int) -> None:
    mode = "bicubic" if opset == 16 else "cubic"
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": {opset}, "local": 1]> {SIGNATURE} {{
            A = local.warp <m = "{mode}", p = "border"> (X, G) B = local.warp <m = "nearest", ac = 1> (X, G)
            Y = Add (A, B) }}
        <domain: "local", opset_import: ["": {opset}]> warp <m, p, ac> (A, B) => (C) {{
            C = GridSample <mode: string = @m, padding_mode: string = @p, align_corners: int = @ac> (A, B) }}"""
    )
    patched = ogs.patch_model(model, target=target)
    # The one cannot say a node of two axes, the other is read back.
    said = {"GridSample3D": "ai.onnx", "primitives": "unrolled"}.get(target, target)
    assert {record.dialect.name for record in ogs.inspect_model(patched)} <= {said}
    standard = patched if target in ("ort_gridsample", "primitives") else ogs.patch_model(patched, target="ai.onnx")
    session = open_session(standard) if target == "ort_gridsample" else open_native(standard)
    [answer] = session.run(None, {"X": X, "G": GRID, "c": np.array(True)})
    expected = ogs.grid_sample(X, GRID, "cubic", "border") + ogs.grid_sample(X, GRID, "nearest", "zeros", True)
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["ort_gridsample", "com.microsoft", "ai.onnx"])
def test_an_attribute_that_is_passed_on_elsewhere_too_keeps_that_ones_default(target: str) -> None:
    """What a call leaves out is 0 to the one operator and -1 to the other."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20, "local": 1]> {SIGNATURE} {{
            A = local.warp (X, G) B = local.warp <k = 1> (X, G) Y = Add (A, B) }}
        <domain: "local", opset_import: ["": 20]> warp <k> (A, B) => (D) {{
            C = GridSample <align_corners: int = @k> (A, B)
            one = Constant <value = bool {{1}}> ()
            D = If (one) <then_branch = t () => (E) {{ E = Softmax <axis: int = @k> (C) }},
                          else_branch = e () => (F) {{ F = Identity (C) }}> }}"""
    )
    feeds = {"X": X, "G": GRID, "c": np.array(True)}
    [expected] = open_native(model).run(None, feeds)
    patched = ogs.patch_model(model, target=target)
    session = open_session(patched) if target == "ort_gridsample" else open_native(patched)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)


def test_two_nodes_that_are_passed_the_same_attribute_stay_in_their_function() -> None:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20, "local": 1]> {SIGNATURE} {{ Y = local.warp (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp <k> (A, B) => (D) {{
            C = GridSample <align_corners: int = @k> (A, B) D = GridSample <align_corners: int = @k> (C, B) }}"""
    )
    assert [f.name for f in ogs.patch_model(model).functions] == ["warp"]


def test_a_user_adds_a_dialect(mine: ogs.Dialect) -> None:
    model = sampler("Warp", "my.domain", order=1, outside="edge", corners=1)
    feeds = feeds_of(model)
    np.testing.assert_array_equal(
        ogs.InferenceSession(model, nodes="all").run(None, feeds)[0],
        ogs.grid_sample(feeds["X"], feeds["grid"], *astuple(ARGUMENTS)),
    )
    back = ogs.patch_model(ogs.patch_model(model, target="mmcv"), target=mine)
    assert ogs.patch_model(ogs.patch_model(model, target="mmcv"), target="mine") == back
    assert sorted(back.graph.node[0].attribute, key=str) == sorted(model.graph.node[0].attribute, key=str)
    reflected = grid_sample_model("float32", "float32", 2, [Attributes("linear", "reflection", False)])
    with pytest.raises(ogs.GridSampleError, match="padding_mode is 'reflection', expected 'zeros' or 'border' in mine"):
        ogs.patch_model(reflected, target="mine")


def test_a_dialect_that_lacks_an_attribute_is_refused() -> None:
    with pytest.raises(ogs.GridSampleError, match="dialect 'half': attributes is"):
        ogs.add_dialect(ogs.Dialect("half", "GridSample", "Warp", ("my.domain",), {}))


def test_patch_and_verify_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / name) for name in ("standard.onnx", "lowered.onnx", "other.onnx")]
    model = grid_sample_model("float32", "float32", 2, [ARGUMENTS])
    other = grid_sample_model("float32", "float32", 2, [Attributes("nearest", "zeros", False)])
    onnx.save(model, paths[0])
    onnx.save(other, paths[2])
    assert main(["patch", paths[0], paths[1], "--target", "primitives"]) == 0
    shapes = ["--shape", "X=2,3,4,5", "--shape", "grid=2,4,5,2"]
    assert main(["verify", paths[0], paths[1], *shapes]) == 0
    assert "Y0" in capsys.readouterr().out
    assert main(["patch", paths[0], paths[1], "--target", "primitives", "--for", "onnxruntime-webgpu"]) == 0
    assert not {node.op_type for node in onnx.load(paths[1]).graph.node} & {"Max", "Min"}
    assert main(["verify", paths[0], paths[1], *shapes]) == 0
    capsys.readouterr()
    assert main(["verify", paths[0], paths[2], *shapes]) == 1
    assert "differs" in capsys.readouterr().out
