"""Conversions that a patch leaves to onnx's inliner and version converter: nothing may be lost."""

from copy import deepcopy
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.opsets import convert, inlining
from ort_gridsample.patching import TargetName
from support.compare import refusal
from support.foreign_nodes import model_of_nodes
from support.graphs import (
    FEEDS,
    GRID,
    HEADER,
    SIGNATURE,
    SPARSE_TENSOR,
    X,
    all_nodes,
    assert_same_outputs,
)
from support.paths import needs_python_ops, open_native, open_patched_file

CODES = "interpolation_mode = 0, padding_mode = 1, align_corners = 1"
SAMPLE = f"Z = mmcv.grid_sampler <{CODES}> (X, G)"
HALF_SAMPLE = f"""H = Cast <to = 10> (X)
    Z = mmcv.grid_sampler <{CODES}> (H, G)
    Y = Cast <to = 1> (Z)"""
#: The output of the sampling nodes of this module.
SAMPLED = ogs.grid_sample(X, GRID, "linear", "border", True)

old_model = partial(model_of_nodes, opset=12)


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def imports_of(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in proto.opset_import}


def assert_output(model: onnx.ModelProto, expected: np.ndarray) -> None:
    onnx.checker.check_model(model, full_check=True)
    (output,) = open_native(model).run(None, FEEDS)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-4)


def annotated_model() -> onnx.ModelProto:
    """Return a model of opset 12 with metadata at every place that onnx's converter drops."""
    model = old_model(f"""A = Relu (X)
        Z = mmcv.grid_sampler <{CODES}> (A, G)
        Y = If (c) <then_branch = t () => (float[N,C,h,w] T) {{ T = Neg (Z) }},
                    else_branch = e () => (float[N,C,h,w] E) {{ E = Abs (Z) }}>""")
    for scope in scopes_of(model):
        for node in scope:
            node.name = f"{node.op_type} {node.output[0]}"
            node.doc_string = node.name
            node.metadata_props.add(key="made by", value=node.output[0])
        scope.container.metadata_props.add(key="graph", value="a graph")
    model.metadata_props.add(key="model", value="a model")
    model.graph.input[0].metadata_props.add(key="input", value="an image")
    model.graph.value_info.append(
        helper.make_tensor_value_info("Z", TensorProto.FLOAT, ["N", "C", "h", "w"])
    )
    model.graph.sparse_initializer.append(SPARSE_TENSOR)
    annotation = model.graph.quantization_annotation.add(tensor_name="A")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="sparse")
    return model


def test_raised_model_has_the_output_of_the_function() -> None:
    raised = ogs.patch_model(annotated_model(), target="ai.onnx")
    assert imports_of(raised) == {"": 16}
    (output,) = open_native(raised).run(None, FEEDS)
    np.testing.assert_allclose(output, -SAMPLED.clip(0), atol=1e-5)


def test_raising_the_opset_keeps_metadata() -> None:
    model = annotated_model()
    raised = ogs.patch_model(model, target="ai.onnx")
    assert raised.metadata_props == model.metadata_props
    for before, after in zip(scopes_of(model), scopes_of(raised), strict=True):
        assert after.container.metadata_props == before.container.metadata_props
        assert [n.metadata_props for n in after] == [n.metadata_props for n in before]
        assert [n.name for n in after] == [n.name for n in before]


@pytest.mark.parametrize(
    "field",
    [
        "input",
        "output",
        "value_info",
        "sparse_initializer",
        "quantization_annotation",
        "metadata_props",
    ],
)
def test_raising_the_opset_keeps_fields_of_the_graph(field: str) -> None:
    model = annotated_model()
    raised = ogs.patch_model(model, target="ai.onnx")
    assert getattr(raised.graph, field) == getattr(model.graph, field)


#: Nodes, a function and the output.
RAISED = {
    "axes of nodes in a branch": (
        f"""{SAMPLE}
        Y = If (c) <
            then_branch = t () => (float[N,C,h,w] T) {{
                U = Unsqueeze <axes = [0]> (Z)
                T = Squeeze <axes = [0]> (U) }},
            else_branch = e () => (float[N,C,h,w] E) {{ E = Abs (Z) }}>""",
        "",
        SAMPLED,
    ),
    "a function beside the node": (
        f"{SAMPLE} Y = local.twice (Z)",
        "twice (A) => (B) { B = Add (A, A) }",
        2 * SAMPLED,
    ),
    "a node in a function": (
        "Y = local.warp (X, G)",
        f"warp (A, B) => (D) {{ C = mmcv.grid_sampler <{CODES}> (A, B) D = Relu (C) }}",
        SAMPLED.clip(0),
    ),
}


@pytest.mark.parametrize("target", ["ai.onnx", "primitives"])
@pytest.mark.parametrize(("nodes", "function", "expected"), RAISED.values(), ids=RAISED)
def test_nodes_that_changed_are_converted_when_the_opset_is_raised(
    nodes: str, function: str, expected: np.ndarray, target: str
) -> None:
    model = old_model(nodes, function=function)
    assert_output(ogs.patch_model(model, target=target), expected)


def test_unknown_nodes_in_the_onnx_domain_are_kept_when_the_opset_is_raised() -> None:
    model = old_model(f"""A = GridSampler <{CODES}> (X, G)
        B = Plugin <size = 2> (A)
        Y = mmcv.grid_sampler <{CODES}> (B, G)""")
    raised = ogs.patch_model(model, target="ai.onnx", nodes=lambda record: record.domain == "mmcv")
    assert op_types(raised) == ["GridSampler", "Plugin", "GridSample"]
    assert {node.domain for node in raised.graph.node} == {""}
    assert list(imports_of(raised)) == [""]


def test_error_of_onnxs_converter_is_passed_on() -> None:
    model = old_model(f"A = GridSample (X, G) Y = mmcv.grid_sampler <{CODES}> (A, G)", opset=6)
    error = refusal(
        ogs.patch_model, model, target="ai.onnx", nodes=lambda record: record.domain == "mmcv"
    )
    assert error.where == "grid_sampler node with output 'Y'"
    assert (error.argument, error.found) == ("opset", "6 in the model")
    assert error.expected.startswith(
        "at least 16, and onnx's version converter cannot convert the model to 16: "
    )


def test_helper_nodes_of_a_patch() -> None:
    patched = ogs.patch_model(old_model(HALF_SAMPLE))
    label = "grid_sampler node with output 'Z'"
    casts = f"ort_gridsample casts for {label}"
    guard = (
        f"ort_gridsample rejected the input of {label} (ort_gridsample.InferenceSession says why)"
    )
    assert [(n.op_type, n.name, *n.input, *n.output) for n in patched.graph.node] == [
        ("Cast", "", "X", "H"),
        ("Cast", casts, "H", "H_as_float32"),
        ("GridSample", "", "H_as_float32", "G", "Z_unguarded", "Z_status"),
        ("GatherND", guard, "Z_unguarded", "Z_status", "Z_as_float32"),
        ("Cast", f"{casts}_2", "Z_as_float32", "Z"),
        ("Cast", "", "Z", "Y"),
    ]
    properties = [prop for node in patched.graph.node for prop in node.metadata_props]
    assert [(p.key, p.value) for p in properties] == [("ort_gridsample.helps", label)] * 3


def test_helper_nodes_are_removed_when_the_opset_is_raised() -> None:
    raised = ogs.patch_model(ogs.patch_model(old_model(HALF_SAMPLE)), target="ai.onnx")
    assert imports_of(raised)[""] == 16
    assert op_types(raised) == ["Cast", "GridSample", "Cast"]


@pytest.fixture
def chained_half_model() -> onnx.ModelProto:
    """Two nodes in float16: the second one samples the output of the first one."""
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 20]>
        g (float16[1,2,4,5] X, float[1,3,3,2] G) => (float16[1,2,3,3] Y) {
            A = GridSample (X, G)
            Y = GridSample (A, G) }""")
    for node, name in zip(model.graph.node, "ab", strict=True):
        node.name = name
    return model


#: The targets of the nodes a and b.
MIXED_TARGETS = [("ort_gridsample", "compiled"), ("compiled", "ort_gridsample")]


@pytest.mark.parametrize("targets", MIXED_TARGETS)
def test_cast_of_one_node_is_no_helper_of_its_neighbour(
    targets: tuple[TargetName, TargetName], chained_half_model: onnx.ModelProto
) -> None:
    model = chained_half_model
    for name, target in zip("ab", targets, strict=True):
        model = ogs.patch_model(
            model, target=target, nodes=lambda record, name=name: record.name == name
        )
    types = {record.name: record.types["X"] for record in ogs.inspect_model(model)}
    assert types == {"a": ("float16",), "b": ("float16",)}
    restored = ogs.patch_model(model, target="ai.onnx")
    assert op_types(restored) == ["GridSample", "GridSample"]
    onnx.checker.check_model(restored, full_check=True)


def without_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without the metadata of nodes."""
    copy = deepcopy(model)
    for node in copy.graph.node:
        del node.metadata_props[:]
    return copy


every_old_opset = pytest.mark.parametrize("opset", [7, 10, 11])


def sample_of_old_opset(opset: int) -> onnx.ModelProto:
    return old_model(f"A = mmcv.grid_sampler <{CODES}> (X, G) Y = Relu (A)", opset=opset)


@needs_python_ops
@every_old_opset
def test_patched_model_of_an_old_opset_runs(opset: int) -> None:
    patched = ogs.patch_model(sample_of_old_opset(opset))
    session = onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
    (output,) = session.run(None, FEEDS)
    np.testing.assert_allclose(output, SAMPLED.clip(0), rtol=1e-5, atol=1e-4)
    with pytest.raises(Exception, match="ort_gridsample rejected the input of grid_sampler node"):
        session.run(None, FEEDS | {"G": GRID[:1]})


@every_old_opset
def test_guard_of_an_old_opset_is_found_without_metadata(opset: int) -> None:
    model = sample_of_old_opset(opset)
    patched = without_metadata(ogs.patch_model(model))
    assert ogs.patch_model(patched) == patched
    assert ogs.patch_model(patched, target="mmcv").graph == model.graph


@every_old_opset
def test_patch_of_strings_needs_opset_11(opset: int) -> None:
    """Older opsets gather only some types."""
    model = sample_of_old_opset(opset)
    model.graph.node[0].attribute[0].i = 1  # nearest
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    assert imports_of(ogs.patch_model(model))[""] == max(opset, 11)


def test_patched_model_without_metadata_stays_valid() -> None:
    """Its Casts are then the model's own, and the guard is found by its inputs."""
    model = old_model(HALF_SAMPLE, opset=16)
    patched = without_metadata(ogs.patch_model(model))
    restored = ogs.patch_model(patched, target="ai.onnx")
    onnx.checker.check_model(restored, full_check=True)
    assert op_types(restored) == ["Cast", "Cast", "GridSample", "Cast", "Cast"]
    (expected,) = open_native(ogs.patch_model(model, target="ai.onnx")).run(None, FEEDS)
    (output,) = open_native(restored).run(None, FEEDS)
    np.testing.assert_allclose(output, expected, rtol=1e-2, atol=1e-1)


def patched_function() -> onnx.ModelProto:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{ Y = local.warp <ac = 1> (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp <ac> (A, B) => (C) {{
            C = GridSample <align_corners: int = @ac, padding_mode = "border"> (A, B) }}""")
    return ogs.patch_model(model)


def test_helper_nodes_in_a_function() -> None:
    (function,) = patched_function().functions
    assert [n.op_type for n in function.node] == ["GridSample", "GatherND", "CastLike"]


@pytest.mark.parametrize("target", ["mmcv", "primitives", "ai.onnx"])
def test_helper_nodes_in_a_function_are_removed(target: str) -> None:
    model = ogs.patch_model(patched_function(), target=target)
    onnx.checker.check_model(model)
    nodes = list(all_nodes(model))
    assert "CastLike" not in {node.op_type for node in nodes}
    assert "Y_status" not in {name for node in nodes for name in node.input}


def test_patched_function_can_be_lowered() -> None:
    assert_output(ogs.patch_model(patched_function(), target="primitives"), SAMPLED)


#: In opset 10, which has no GatherND, a guard is a Gather and a Squeeze.
GUARDED_BY_SQUEEZE = f"{SAMPLE} Y = Squeeze <axes = [0]> (Z)"


def test_guard_with_a_squeeze_is_removed() -> None:
    patched = ogs.patch_model(old_model(GUARDED_BY_SQUEEZE, opset=10))
    *_, gather, squeeze_of_guard, squeeze = patched.graph.node
    assert [gather.op_type, squeeze_of_guard.op_type] == ["Gather", "Squeeze"]
    assert squeeze.op_type == "Squeeze"
    raised = ogs.patch_model(patched, target="ai.onnx", opset=20)
    op_types = {node.op_type for node in raised.graph.node if not node.domain}
    assert op_types == {"Constant", "GridSample", "Squeeze"}


def test_status_with_a_reader_besides_the_guard_is_refused() -> None:
    patched = ogs.patch_model(old_model(SAMPLE + " Y = Identity (Z)"))
    patched.graph.node.append(helper.make_node("Identity", ["Z_status"], ["S"], "reader"))
    patched.graph.output.append(helper.make_tensor_value_info("S", TensorProto.INT64, None))
    error = refusal(ogs.patch_model, patched, target="ai.onnx")
    assert error.argument == "the status 'Z_status'"
    assert error.found == "an input of Identity node 'reader'"


@pytest.mark.parametrize("is_merged", [True, False], ids=["merged", "removed"])
def test_guard_without_its_squeeze_is_refused(is_merged: bool) -> None:
    """A tool that merges the Squeeze with its reader changes the value that they pass on."""
    patched = ogs.patch_model(old_model(GUARDED_BY_SQUEEZE, opset=10))
    *_, gather, squeeze_of_guard, squeeze = patched.graph.node
    squeeze.input[:] = gather.output
    squeeze.attribute[0].ints[:] = [1, 0]
    patched.graph.node.remove(squeeze_of_guard)
    if not is_merged:
        patched.graph.node.remove(squeeze)
        patched.graph.output[0].name = gather.output[0]
    error = refusal(ogs.patch_model, patched, target="ai.onnx")
    assert error.where == "GridSample node with output 'Z_unguarded, Z_status'"
    assert (error.argument, error.found) == ("the guard", "without its Squeeze")
    assert error.expected == "a Squeeze of axis 1 after it, as a patch writes"


def test_function_of_another_opset_is_inlined() -> None:
    """Its operators are the same in both opsets. onnx's inliner alone refuses it."""
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{
            H = Cast <to = 10> (X)
            I = local.warp (H, G)
            J = Cast <to = 1> (I)
            K = local.warp (X, G)
            L = Add (J, K)
            Y = local.other (L) }}
        <domain: "local", opset_import: ["": 21]> warp (A, B) => (C) {{
            C = GridSample <mode = "nearest"> (A, B) }}
        <domain: "local", opset_import: ["": 19, "local": 2]> other (A) => (C) {{
            C = Relu (A) }}""")
    (function,) = ogs.patch_model(model).functions
    assert imports_of(function) == {"": 19, "local": 2}
    (output,) = open_patched_file(model).run(None, FEEDS)
    expected = 2 * ogs.grid_sample(X, GRID, "nearest").clip(0)
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-3)


def inline(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """Return a copy with calls of these functions replaced by their nodes."""
    copy = deepcopy(model)
    inlining.inline(copy, {("local", name) for name in names})
    return copy


NESTED_FUNCTIONS = parser.parse_model(f"""{HEADER} {SIGNATURE} {{ Y = local.outer (X) }}
    <domain: "local", opset_import: ["local": 1]> outer (A) => (C) {{ C = local.inner (A) }}
    <domain: "local", opset_import: ["": 20, "com.microsoft": 1]> inner (A) => (C) {{
        B = com.microsoft.Gelu (A)
        C = Relu (B) }}""")


def test_inlining_into_a_function_adds_its_imports() -> None:
    model = inline(NESTED_FUNCTIONS, {"inner"})
    assert imports_of(model.functions[0]) == {"local": 1, "com.microsoft": 1, "": 20}
    assert_same_outputs(model, NESTED_FUNCTIONS)


def test_inlining_into_the_main_graph_adds_imports() -> None:
    model = inline(NESTED_FUNCTIONS, {"inner", "outer"})
    assert imports_of(model) == {"": 20, "local": 1, "com.microsoft": 1}
    assert_same_outputs(model, NESTED_FUNCTIONS)


def test_inlining_adds_only_imports_that_the_nodes_need() -> None:
    bodies = {"a": "com.microsoft.Gelu", "b": "Relu", "c": "com.microsoft.Gelu", "d": "Relu"}
    functions = [
        f"""<domain: "local", opset_import: ["local": 1]> outer_{name} (A) => (C) {{
            C = local.inner_{name} (A) }}
        <domain: "local", opset_import: ["": 20, "com.microsoft": 1]> inner_{name} (A) => (C) {{
            C = {op} (A) }}"""
        for name, op in bodies.items()
    ]
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{
        A = local.outer_a (X)
        B = local.outer_b (A)
        C = local.outer_c (B)
        Y = local.outer_d (C) }} {" ".join(functions)}""")
    inlined = inline(model, {f"inner_{name}" for name in bodies})
    for function in inlined.functions:
        domains = {node.domain for node in function.node}
        assert set(imports_of(function)) == {"local", *domains}, function.name
    assert_same_outputs(inlined, model)


@pytest.mark.parametrize(
    "names", [{"warp"}, {"outer"}, {"warp", "outer"}], ids=["warp", "outer", "both"]
)
def test_inlining_keeps_the_defaults_of_attributes(names: set[str]) -> None:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{
            A = local.warp (X, G)
            B = local.warp <ac = 0> (X, G)
            C = local.outer (X, G)
            D = local.outer <x = 0> (X, G)
            Y = Sum (A, B, C, D) }}
        <domain: "local", opset_import: ["": 20, "local": 1]> outer <x> (A, B) => (C) {{
            D = local.warp <ac: int = @x> (A, B)
            C = Neg (D) }}
        <domain: "local", opset_import: ["": 20]> warp <ac: int = 1> (A, B) => (C) {{
            C = GridSample <align_corners: int = @ac, padding_mode = "border"> (A, B) }}""")
    inlined = inline(model, names)
    kept = {"warp"} if names == {"outer"} else set()
    assert {function.name for function in inlined.functions} == kept
    assert_same_outputs(inlined, model)


def test_conversion_to_the_same_opset_changes_nothing() -> None:
    model = old_model("Y = Relu (X)", opset=16)
    before = deepcopy(model)
    convert.convert_opset(model, 16)
    assert model == before
