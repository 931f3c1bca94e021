"""What a patch asks of onnx's inliner and version converter, and that nothing is lost there."""

from copy import deepcopy
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph import scope as graphs
from ort_gridsample.opsets import convert, inlining
from support.compare import message_of
from support.foreign_nodes import written
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, SPARSE, X, assert_answers_agree
from support.paths import needs_python_ops, open_native, open_patched_file

CODES = "interpolation_mode = 0, padding_mode = 1, align_corners = 1"
BORDER = ogs.grid_sample(X, GRID, "linear", "border", True)


old = partial(written, opset=12)
HALF = f"H = Cast <to = 10> (X) Z = mmcv.grid_sampler <{CODES}> (H, G) Y = Cast <to = 1> (Z)"


def assert_answers(model: onnx.ModelProto, expected: np.ndarray) -> None:
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_allclose(
        open_native(model).run(None, FEEDS)[0], expected, rtol=1e-5, atol=1e-4
    )


def test_raising_the_opset_keeps_all_that_the_converter_loses() -> None:
    model = old(f"""A = Relu (X) Z = mmcv.grid_sampler <{CODES}> (A, G)
        Y = If (c) <then_branch = t () => (float[N,C,h,w] T) {{ T = Neg (Z) }},
                    else_branch = e () => (float[N,C,h,w] E) {{ E = Abs (Z) }}>""")
    for scope in graphs.scopes(model):
        for node in scope:
            node.name = node.doc_string = f"{node.op_type} {node.output[0]}"
            node.metadata_props.add(key="made by", value=node.output[0])
        scope.container.metadata_props.add(key="graph", value="a graph")
    model.metadata_props.add(key="model", value="a model")
    model.graph.input[0].metadata_props.add(key="input", value="an image")
    model.graph.value_info.append(
        helper.make_tensor_value_info("Z", TensorProto.FLOAT, ["N", "C", "h", "w"])
    )
    model.graph.sparse_initializer.append(SPARSE)
    annotation = model.graph.quantization_annotation.add(tensor_name="A")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="sparse")

    raised = ogs.patch_model(model, target="ai.onnx")

    assert [(e.domain, e.version) for e in raised.opset_import] == [("", 16)]
    assert raised.metadata_props == model.metadata_props
    for field in (
        "input",
        "output",
        "value_info",
        "sparse_initializer",
        "quantization_annotation",
        "metadata_props",
    ):
        assert getattr(raised.graph, field) == getattr(model.graph, field)
    for before, after in zip(graphs.scopes(model), graphs.scopes(raised), strict=True):
        assert after.container.metadata_props == before.container.metadata_props
        assert [n.metadata_props for n in after] == [n.metadata_props for n in before]
        assert [n.name for n in after] == [n.name for n in before]
    np.testing.assert_allclose(open_native(raised).run(None, FEEDS)[0], -BORDER.clip(0), atol=1e-5)


Z = f"Z = mmcv.grid_sampler <{CODES}> (X, G)"
BRANCHES = """then_branch = t () => (float[N,C,h,w] T) { U = Unsqueeze <axes = [0]> (Z) T = Squeeze <axes = [0]> (U) },
    else_branch = e () => (float[N,C,h,w] E) { E = Abs (Z) }"""
WARP = f"warp (A, B) => (D) {{ C = mmcv.grid_sampler <{CODES}> (A, B) D = Relu (C) }}"
RAISED = {
    "nodes that newer opsets write otherwise, in a branch": (
        f"{Z} Y = If (c) <{BRANCHES}>",
        "",
        BORDER,
    ),
    "a function beside the node": (
        f"{Z} Y = local.twice (Z)",
        "twice (A) => (B) { B = Add (A, A) }",
        2 * BORDER,
    ),
    "a node in a function": ("Y = local.warp (X, G)", WARP, BORDER.clip(0)),
}


@pytest.mark.parametrize(("nodes", "functions", "expected"), RAISED.values(), ids=RAISED)
def test_all_that_an_older_opset_writes_otherwise_is_raised(
    nodes: str, functions: str, expected: np.ndarray
) -> None:
    for target in ("ai.onnx", "primitives"):
        assert_answers(ogs.patch_model(old(nodes, function=functions), target=target), expected)


def test_nodes_of_others_in_the_onnx_domain_are_left_alone() -> None:
    model = old(
        f"A = GridSampler <{CODES}> (X, G) B = Plugin <size = 2> (A) Y = mmcv.grid_sampler <{CODES}> (B, G)"
    )
    raised = ogs.patch_model(model, target="ai.onnx", nodes=lambda record: record.domain == "mmcv")
    kinds = [(n.domain, n.op_type) for n in raised.graph.node]
    assert kinds == [("", "GridSampler"), ("", "Plugin"), ("", "GridSample")]
    assert [e.domain for e in raised.opset_import] == [""]


def test_what_the_converter_cannot_raise_is_said_in_its_words() -> None:
    model = old(f"A = GridSample (X, G) Y = mmcv.grid_sampler <{CODES}> (A, G)", opset=6)
    said = message_of(model, target="ai.onnx", nodes=lambda record: record.domain == "mmcv")
    expected = "expected at least 16, and onnx's version converter says: "
    assert said.startswith(f"grid_sampler node '(Y)': opset is 6, {expected}")


def test_helpers_are_found_again_after_the_opset_is_raised() -> None:
    patched = ogs.patch_model(old(HALF))
    sampler = "grid_sampler node '(Z)'"
    casts = f"ort_gridsample casts for {sampler}"
    guard = (
        f"ort_gridsample rejected the input of {sampler} (ort_gridsample.InferenceSession says why)"
    )
    assert [(n.op_type, n.name, *n.input, *n.output) for n in patched.graph.node] == [
        ("Cast", "", "X", "H"),
        ("Cast", casts, "H", "H_as_float32"),
        ("GridSample", "", "H_as_float32", "G", "Z_unguarded", "Z_status"),
        ("GatherND", guard, "Z_unguarded", "Z_status", "Z_as_float32"),
        ("Cast", f"{casts}_2", "Z_as_float32", "Z"),
        ("Cast", "", "Z", "Y"),
    ]
    helps = [
        (entry.key, entry.value) for node in patched.graph.node for entry in node.metadata_props
    ]
    assert helps == [("ort_gridsample.helps", sampler)] * 3
    back = ogs.patch_model(patched, target="ai.onnx")
    assert back.opset_import[0].version == 16
    assert [n.op_type for n in back.graph.node] == ["Cast", "GridSample", "Cast"]


@needs_python_ops
@pytest.mark.parametrize("opset", [7, 10, 11])
def test_the_guard_of_an_old_opset_is_found_again(opset: int) -> None:
    model = old(f"A = mmcv.grid_sampler <{CODES}> (X, G) Y = Relu (A)", opset=opset)
    patched = ogs.patch_model(model)
    session = onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
    np.testing.assert_allclose(session.run(None, FEEDS)[0], BORDER.clip(0), rtol=1e-5, atol=1e-4)
    with pytest.raises(Exception, match="ort_gridsample rejected the input of grid_sampler node"):
        session.run(None, FEEDS | {"G": GRID[:1]})
    for node in patched.graph.node:
        del node.metadata_props[:]
    assert ogs.patch_model(patched) == patched
    assert ogs.patch_model(patched, target="mmcv").graph == model.graph
    model.graph.node[0].attribute[0].i = 1
    model.graph.input[
        0
    ].type.tensor_type.elem_type = TensorProto.STRING  # of which Gather takes only some
    assert ogs.patch_model(model).opset_import[0].version == max(opset, 11)


def test_a_patched_model_whose_metadata_someone_dropped_stays_valid() -> None:
    """The Casts are then the model's own; a guard is known by what it reads."""
    half = old(HALF, opset=16)
    patched = ogs.patch_model(half)
    for node in patched.graph.node:
        del node.metadata_props[:]
    back = ogs.patch_model(patched, target="ai.onnx")
    onnx.checker.check_model(back, full_check=True)
    assert [n.op_type for n in back.graph.node] == ["Cast", "Cast", "GridSample", "Cast", "Cast"]
    [expected] = open_native(ogs.patch_model(half, target="ai.onnx")).run(None, FEEDS)
    np.testing.assert_allclose(
        open_native(back).run(None, FEEDS)[0], expected, rtol=1e-2, atol=1e-1
    )


def test_helpers_are_found_again_after_inlining() -> None:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{ Y = local.warp <ac = 1> (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp <ac> (A, B) => (C) {{
            C = GridSample <align_corners: int = @ac, padding_mode = "border"> (A, B) }}""")
    patched = ogs.patch_model(model)
    assert [n.op_type for n in patched.functions[0].node] == ["GridSample", "GatherND", "CastLike"]
    for target in ("mmcv", "primitives", "ai.onnx"):
        there = ogs.patch_model(patched, target=target)
        onnx.checker.check_model(there)
        left = [n for scope in graphs.scopes(there) for n in scope]
        assert "CastLike" not in {n.op_type for n in left}, target
        assert "Y_status" not in {name for n in left for name in n.input}, target
    assert_answers(ogs.patch_model(patched, target="primitives"), BORDER)


def test_a_guard_whose_squeeze_was_merged_away_is_said() -> None:
    """The guard of opsets without GatherND; whoever merges its Squeeze with what reads it hands on another value."""
    patched = ogs.patch_model(
        old(f"Z = mmcv.grid_sampler <{CODES}> (X, G) Y = Squeeze <axes = [0]> (Z)", opset=10)
    )
    raised = ogs.patch_model(patched, target="ai.onnx", opset=20)
    assert {node.op_type for node in raised.graph.node if not node.domain} == {
        "Constant",
        "GridSample",
        "Squeeze",
    }
    *_, gather, own, others = patched.graph.node
    assert [gather.op_type, own.op_type, others.op_type] == ["Gather", "Squeeze", "Squeeze"]
    others.input[:], others.attribute[0].ints[:] = gather.output, [1, 0]
    patched.graph.node.remove(own)
    for merged in (True, False):
        if not merged:
            patched.graph.node.remove(others)
            patched.graph.output[0].name = gather.output[0]
        said = "GridSample node '(Z_unguarded, Z_status)': the guard behind it is without its Squeeze, expected"
        assert message_of(patched, target="ai.onnx") == f"{said} the nodes that a patch writes"


def test_a_function_is_inlined_into_a_model_of_another_opset() -> None:
    """Valid, as the operators that it uses are the same in both; onnx's inliner alone refuses."""
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{
            H = Cast <to = 10> (X) I = local.warp (H, G) J = Cast <to = 1> (I) K = local.warp (X, G) L = Add (J, K)
            Y = local.other (L) }}
        <domain: "local", opset_import: ["": 21]> warp (A, B) => (C) {{ C = GridSample <mode = "nearest"> (A, B) }}
        <domain: "local", opset_import: ["": 19, "local": 2]> other (A) => (C) {{ C = Relu (A) }}""")
    patched = ogs.patch_model(model)
    assert [[(e.domain, e.version) for e in f.opset_import] for f in patched.functions] == [
        [("", 19), ("local", 2)]
    ]
    expected = ogs.grid_sample(X, GRID, "nearest")
    np.testing.assert_allclose(
        open_patched_file(model).run(None, FEEDS)[0], 2 * expected.clip(0), rtol=1e-3, atol=1e-3
    )


def inlined(model: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    copy = deepcopy(model)
    inlining.inline(copy, {("local", name) for name in names})
    return copy


def test_inlining_imports_what_only_the_function_imported() -> None:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{ Y = local.outer (X) }}
        <domain: "local", opset_import: ["local": 1]> outer (A) => (C) {{ C = local.inner (A) }}
        <domain: "local", opset_import: ["": 20, "com.microsoft": 1]> inner (A) => (C) {{
            B = com.microsoft.Gelu (A) C = Relu (B) }}""")
    one, both = inlined(model, {"inner"}), inlined(model, {"inner", "outer"})
    assert {e.domain: e.version for e in one.functions[0].opset_import} == {
        "local": 1,
        "com.microsoft": 1,
        "": 20,
    }
    assert {e.domain: e.version for e in both.opset_import} == {
        "": 20,
        "local": 1,
        "com.microsoft": 1,
    }
    for each in (one, both):
        assert_answers_agree(each, model)


def test_each_function_imports_what_its_own_nodes_need() -> None:
    bodies = {"a": "com.microsoft.Gelu", "b": "Relu", "c": "com.microsoft.Gelu", "d": "Relu"}
    functions = "".join(f"""
        <domain: "local", opset_import: ["local": 1]> outer_{name} (A) => (C) {{ C = local.inner_{name} (A) }}
        <domain: "local", opset_import: ["": 20, "com.microsoft": 1]> inner_{name} (A) => (C) {{ C = {op} (A) }}
        """ for name, op in bodies.items())  # fmt: skip
    calls = (
        "A = local.outer_a (X) B = local.outer_b (A) C = local.outer_c (B) Y = local.outer_d (C)"
    )
    model = parser.parse_model(f"{HEADER} {SIGNATURE} {{ {calls} }} {functions}")
    rest = inlined(model, {f"inner_{name}" for name in bodies})
    for function in rest.functions:
        used = {node.domain for node in function.node}
        assert {each.domain for each in function.opset_import} == {"local", *used}, function.name
    assert_answers_agree(rest, model)


@pytest.mark.parametrize("names", [{"warp"}, {"outer"}, {"warp", "outer"}])
def test_inlining_keeps_the_defaults_of_functions(names: set[str]) -> None:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE} {{
            A = local.warp (X, G) B = local.warp <ac = 0> (X, G) C = local.outer (X, G) D = local.outer <x = 0> (X, G)
            Y = Sum (A, B, C, D) }}
        <domain: "local", opset_import: ["": 20, "local": 1]> outer <x> (A, B) => (C) {{
            D = local.warp <ac: int = @x> (A, B) C = Neg (D) }}
        <domain: "local", opset_import: ["": 20]> warp <ac: int = 1> (A, B) => (C) {{
            C = GridSample <align_corners: int = @ac, padding_mode = "border"> (A, B) }}""")
    rest = inlined(model, names)
    assert {f.name for f in rest.functions} == ({"warp"} if names == {"outer"} else set())
    assert_answers_agree(rest, model)


def test_raising_to_the_opset_that_is_there_changes_nothing_but_functions() -> None:
    model = old("Y = Relu (X)", opset=16)
    before = deepcopy(model)
    convert.convert_opset(model, 16)
    assert model == before
