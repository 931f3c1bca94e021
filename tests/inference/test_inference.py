"""Inference of types and shapes: by onnx, by onnxruntime for unknown operators, and its cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser, shape_inference

import ort_gridsample as ogs
from ort_gridsample.detection.find import records_of
from ort_gridsample.graph.scope import scopes_of, with_bodies
from ort_gridsample.inference import backward_slice
from ort_gridsample.inference import types as inference
from ort_gridsample.inference.backward_slice import BackwardSlice
from ort_gridsample.inference.instances import InstanceNode
from ort_gridsample.inference.light_attributes import SMALL_BYTES, constant_type
from ort_gridsample.inference.types import Inference, TypeAndShape, value_of
from ort_gridsample.patching import TargetName
from ort_gridsample.session import installed_runtime
from support import faults
from support.graphs import FEEDS, GRID, X
from support.models import parsed
from support.paths import (
    HAS_PYTHON_OPS,
    NO_PYTHON_OPS,
    open_compiled,
    open_native,
    open_patched_file,
    open_session,
)

pytestmark = pytest.mark.usefixtures("numpy_core")


GELU = "com.microsoft.Gelu"
SIGNATURE = "g (HALF[N,C,H,W] X, float[N,h,w,2] G, bool c) => (HALF[N,C,h,w] Y)"

FUNCTION_HEADER = f'<domain: "local", opset_import: ["": {faults.OPSET}, "com.microsoft": 1]>'
OUTER_HEADER = f'<domain: "local", opset_import: ["": {faults.OPSET}, "local": 1]>'

#: Models in which a GridSample samples the output of a Gelu, whose type onnx does not infer.
BEHIND_GELU = {
    "main graph": f"{SIGNATURE} {{ A = {GELU} (X) Y = GridSample (A, G) }}",
    "two in a row": f"""{SIGNATURE} {{
        A = {GELU} (X)
        B = GridSample (A, G)
        C = {GELU} (B)
        Y = GridSample (C, G) }}""",
    "nodes of ONNX between": f"""{SIGNATURE} {{
        A = {GELU} (X)
        B = Add (A, A)
        C = {GELU} (B)
        D = Sub (C, A)
        Y = GridSample (D, G) }}""",
    "function": f"""{SIGNATURE} {{ Y = local.warp (X, G) }}
        {FUNCTION_HEADER} warp (A, B) => (D) {{
            C = {GELU} (A)
            D = GridSample (C, B) }}""",
    "If": f"""{SIGNATURE} {{
        Y = If (c) <
            then_branch = t () => (HALF[N,C,h,w] T) {{
                A = {GELU} (X)
                T = GridSample (A, G) }},
            else_branch = e () => (HALF[N,C,h,w] E) {{ E = GridSample (X, G) }}> }}""",
    "behind an If": f"""{SIGNATURE} {{
        A = If (c) <
            then_branch = t () => (T) {{ T = {GELU} (X) }},
            else_branch = e () => (E) {{ E = {GELU} (X) }}>
        Y = GridSample (A, G) }}""",
    "Loop": f"""{SIGNATURE} {{
        two = Constant <value_int = 2> ()
        first = {GELU} (X)
        Y = Loop (two, c, first) <body = b (int64 i, bool on, before) => (bool go, after) {{
            go = Identity (on)
            A = {GELU} (before)
            after = GridSample (A, G) }}> }}""",
    "a function in an If in a function": f"""{SIGNATURE} {{ Y = local.outer (X, G, c) }}
        {OUTER_HEADER} outer (A, B, c) => (C) {{
            C = If (c) <
                then_branch = t () => (T) {{ T = local.inner (A, B) }},
                else_branch = e () => (E) {{ E = GridSample (A, B) }}> }}
        {FUNCTION_HEADER} inner (A, B) => (D) {{
            C = {GELU} (A)
            D = GridSample (C, B) }}""",
}


def halves(text: str, half: str = "float16") -> onnx.ModelProto:
    return parsed(text.replace("HALF", half), faults.OPSET)


@pytest.mark.parametrize("name", BEHIND_GELU)
def test_half_precision_behind_an_operator_unknown_to_onnx_is_inferred_and_runs(name: str) -> None:
    for half in ("float16", "bfloat16"):
        model = halves(BEHIND_GELU[name], half)
        for record in ogs.inspect_model(model):
            assert (record.types["X"], record.casts) == ((half,), {"X": "float32"})
        unasked = [record.types["X"] for record in records_of(model)]
        assert () in unasked
        assert {*unasked} <= {(), (half,)}
    model = halves(BEHIND_GELU[name])
    feeds = FEEDS | {"X": X.astype(np.float16)}
    [expected] = open_native(model).run(None, feeds)
    for open_model in (open_session, open_patched_file):
        np.testing.assert_allclose(
            open_model(model).run(None, feeds)[0], expected, rtol=1e-2, atol=0.1
        )


#: The types of X and the grid behind nodes that onnx, or nobody, knows, in a main graph.
BEHIND_OTHER_DOMAINS = {
    "a node with a constant input": (
        f"""{SIGNATURE} <float16[5] bias = {{0, 0, 0, 0, 0}}> {{
            A = com.microsoft.BiasGelu (X, bias) Y = GridSample (A, G) }}""",
        ("float16", "float32"),
    ),
    "a node of which another output's type is declared": (
        """g (float[N,S,H] A, float[H] scale, float[1,4,4,2] G) => (float[N,S,H] first, float Y)
        <float[N,S,H] first> {
            first, mean, variance, sum = com.microsoft.SkipLayerNormalization (A, A, scale)
            axis = Constant <value_ints = [1]> ()
            X = Unsqueeze (sum, axis)
            Y = GridSample (X, G) }""",
        ("float32", "float32"),
    ),
    "beside what nobody knows": (
        f"""{SIGNATURE} {{
            A = {GELU} (X) P = unknown.Op (G) B = {GELU} (A) Q = unknown.Other (P)
            C = {GELU} (B) Y = GridSample (C, Q) }}""",
        ("float16", None),
    ),
    "sequences before what nobody knows": (
        """g (float[1,1,4,4] X, float[1,2,2,2] grid) => (Y) {
            S = SequenceConstruct (X, X) i = Constant <value = int64 {0}> ()
            one = SequenceAt (S, i) other = some.Unknown (one, S) Y = GridSample (other, grid) }""",
        (None, "float32"),
    ),
}


@pytest.mark.parametrize(("text", "types"), BEHIND_OTHER_DOMAINS.values(), ids=BEHIND_OTHER_DOMAINS)
def test_types_behind_nodes_of_other_domains_are_inferred_if_onnxruntime_has_them(
    text: str, types: tuple[str | None, str | None]
) -> None:
    model = halves(text)
    (record,) = ogs.inspect_model(model)
    assert record.types == {
        name: (type_,) if type_ else () for name, type_ in zip(("X", "grid"), types, strict=True)
    }
    assert [node.op_type for node in ogs.patch_model(model).graph.node].count("Cast") == 2 * (
        types[0] == "float16"
    )


def test_ranks_and_lengths_behind_unknown_operators_and_computed_shapes_are_inferred() -> None:
    model = halves(BEHIND_GELU["nodes of ONNX between"], "float")
    (record,) = ogs.inspect_model(model)
    assert record.ranks == {"X": (4,), "grid": (4,)}
    native, lowered = (
        open_native(proto) for proto in (model, ogs.patch_model(model, target="primitives"))
    )
    np.testing.assert_allclose(
        lowered.run(None, FEEDS)[0], native.run(None, FEEDS)[0], rtol=1e-4, atol=1e-3
    )
    model = parsed("""g (float[4, 6] A, float[1, 2, 3, 2] G) => (float[1, 1, 2, 3] Y) {
            ones = Constant <value_ints = [1, 1]> () lengths = Shape (A) same = Mul (lengths, ones)
            shape = Concat <axis = 0> (ones, same)
            X = Reshape (A, shape)
            Y = GridSample (X, G) }""")
    patched = ogs.patch_model(model, target="primitives")
    assert sum(node.op_type == "Shape" for node in patched.graph.node) == 1  # the model's own
    model = parsed("""g (float[1, 1, 4, 6] A, float[1, 2, 3, 2] G) => (float[1, 1, 2, 3] Y)
        <float[4] scales = {1.0, 1.0, 2.0, 3.0}> {
            X = Resize (A, , scales)
            Y = GridSample (X, G) }""")
    assert ogs.inspect_model(model)[0].inputs["X"] == [TypeAndShape("float32", (1, 1, 8, 18))]


def test_onnxruntime_is_asked_only_for_unknown_types() -> None:
    runtime = Mock(wraps=installed_runtime.PROBE)
    known = halves(BEHIND_GELU["main graph"])
    known.graph.value_info.append(helper.make_tensor_value_info("A", TensorProto.FLOAT16, None))
    aside = halves(f"{SIGNATURE} {{ A = {GELU} (X) Y = GridSample (X, G) Z = {GELU} (Y) }}")
    for model in (known, aside):
        assert [record.types["X"] for record in records_of(model, runtime)] == [("float16",)]
    runtime.types_of.assert_not_called()
    records_of(halves(BEHIND_GELU["nodes of ONNX between"]), runtime)
    [((question,), _)] = runtime.types_of.call_args_list
    assert [node.op_type for node in question.graph.node] == ["Gelu", "Add", "Gelu", "Sub"]
    assert len(question.graph.input) == 1


def test_types_inferred_by_onnxruntime(capfd: pytest.CaptureFixture[str]) -> None:
    model = parsed(f"""g (bfloat16[2,C] X, string[3] S) => (A, B, C, D) {{
            A = {GELU} (X)
            B = Identity (S)
            C = SequenceConstruct (S)
            D = ReduceSum <keepdims = 0> (X) }}""")
    assert installed_runtime.PROBE.types_of(model) == {
        "A": helper.make_tensor_type_proto(TensorProto.BFLOAT16, [2, None]),
        "B": helper.make_tensor_type_proto(TensorProto.STRING, [3]),
        "D": helper.make_tensor_type_proto(
            TensorProto.BFLOAT16, None
        ),  # onnxruntime says no more of a number
    }
    model.graph.node[0].domain = "unknown"
    assert (
        installed_runtime.PROBE.types_of(model)
        == installed_runtime.PROBE.types_of(onnx.ModelProto())
        == {}
    )
    assert capfd.readouterr() == ("", "")


def in_function(
    body: str = "C = GridSample (A, B)",
    inputs: str = "",
    call: str = "local.warp",
    opset: int = 20,
    X: str = "float",
) -> onnx.ModelProto:
    """Return a model that calls a function ``warp`` of A and B with X and G."""
    inputs = inputs or f"{X}[N,C,H,W] X, float[N,h,w,2] G"
    attributes = "<to>" if "<to" in call else ""
    return parsed(f"""g ({inputs}) => ({X}[N,C,h,w] Y) {{ Y = {call} (X, G) }}
        <domain: "local", opset_import: ["": {opset}, "mmcv": 1]>
        warp {attributes} (A, B) => (C) {{ {body} }}""")


def casting(to: int) -> onnx.ModelProto:
    body = "D = Cast <to: int = @to> (A) E = GridSample (D, B) C = Cast <to = 1> (E)"
    return in_function(body, call=f"local.warp <to = {to}>")


GIVEN_WEIGHT = in_function(inputs="float[N,h,w,2] G", X="float16")
GIVEN_WEIGHT.graph.initializer.append(numpy_helper.from_array(X.astype(np.float16), "X"))
MMCV = "mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 1, align_corners = 1>"
LINEAR = ()
BORDER = ("linear", "border", True)
#: What samples in a function, X's type, the attributes, and how near the answer comes.
FUNCTIONS = {
    "of float64": (in_function(X="double"), "float64", LINEAR, 1e-6),
    "of an opset before CastLike": (
        in_function(f"C = {MMCV} (A, B)", opset=14),
        "float32",
        BORDER,
        1e-5,
    ),
    "given an initializer": (GIVEN_WEIGHT, "float16", LINEAR, 1e-2),
    "casting to float16": (casting(TensorProto.FLOAT16), "float16", LINEAR, 1e-3),
    "casting to float64": (casting(TensorProto.DOUBLE), "float64", LINEAR, 1e-3),
    "casting to uint8": (casting(TensorProto.UINT8), "uint8", LINEAR, 1e-3),
}


@pytest.mark.parametrize(
    ("model", "X_type", "attributes", "rtol"), FUNCTIONS.values(), ids=FUNCTIONS
)
def test_function_has_the_types_of_its_calls(
    model: onnx.ModelProto, X_type: str, attributes: tuple, rtol: float
) -> None:
    (record,) = ogs.inspect_model(model)
    assert record.types == {"X": (X_type,), "grid": ("float32",)}
    assert record.inputs["X"][0].shape == (
        X.shape if model is GIVEN_WEIGHT else ("N", "C", "H", "W")
    )
    expected = ogs.grid_sample(X.astype(X_type), GRID, *attributes)
    lowered = open_native(ogs.patch_model(model, target="primitives"))
    for session in (open_session(model), open_patched_file(model), lowered):
        feeds = {value.name: FEEDS[value.name] for value in session.get_inputs()}
        if session.get_inputs()[0].type == "tensor(double)":
            feeds["X"] = X.astype(np.float64)
        (answer,) = session.run(None, feeds)
        assert answer.dtype == helper.tensor_dtype_to_np_dtype(
            model.graph.output[0].type.tensor_type.elem_type
        )
        np.testing.assert_allclose(answer, expected, rtol=rtol, atol=rtol)


def test_function_of_another_opset_is_inferred_in_its_own() -> None:
    """The axes of Squeeze are an attribute in its opset, and an input in that of the main graph."""
    body = f"U = Unsqueeze <axes = [0]> (A) S = Squeeze <axes = [0]> (U) C = {MMCV} (S, B)"
    (record,) = ogs.inspect_model(
        in_function(body, inputs="float[1,1,H,W] X, float[1,h,w,2] G", opset=11)
    )
    assert record.inputs["X"] == [TypeAndShape("float32", (1, 1, "H", "W"))]


def test_record_in_a_function_has_the_types_of_all_calls() -> None:
    """Also where it is called without an input, or an output of it is an input."""
    model = parsed("""g (
        float[N,C,H,W] X, float16[N,C,H,W,D] Z, float[N,h,w,2] G, float[N,d,h,w,3] K,
        uint8[N,C,H,W] U) => (P, Q, R) {
            P, same = local.warp (X, G)
            Q = local.warp (Z, K)
            V, R = local.both (U, G) }
        <domain: "local", opset_import: ["": 20]> warp (A, B) => (C, A) { C = GridSample (A, B) }
        <domain: "local", opset_import: ["": 20, "local": 1]> both (A, B) => (C, D) {
            C, E = local.warp (A, B) D = GridSample <mode = "nearest"> (E, B) }""")
    warp, both = ogs.inspect_model(model)
    axes = {"float32": "NCHW", "float16": "NCHWD", "uint8": "NCHW"}
    assert set(warp.inputs["X"]) == {
        TypeAndShape(type_, tuple(dims)) for type_, dims in axes.items()
    }
    assert both.inputs["X"] == [TypeAndShape("uint8", tuple("NCHW"))]


def test_function_called_with_several_shapes_runs() -> None:
    """A function that is called with several batches and numbers of axes is refused for none."""
    model = parsed("""g (
        float[2,1,4,4] X, float[2,5,5,2] G, float[3,1,4,4] Z, float[3,5,5,2] K,
        float[1,1,3,3,3] U, float[1,2,2,2,3] V) => (P, Q, R) {
            P = local.warp (X, G)
            Q = local.warp (Z, K)
            R = local.warp (U, V) }
        <domain: "local", opset_import: ["": 20]> warp (A, B) => (C) { C = GridSample (A, B) }""")
    (record,) = ogs.inspect_model(model)
    assert len(record.cases) == len(record.inputs["X"]) == 3
    shapes = {value.name: value_of(value.type).shape for value in model.graph.input}
    feeds = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    for lowered in (model, ogs.patch_model(model, target="primitives", functions=True)):
        for session in (open_session(lowered), open_compiled(lowered), open_patched_file(lowered)):
            for Y in session.run(None, feeds):
                np.testing.assert_array_equal(Y, 0.5)


def test_stale_lengths_in_value_info_are_not_used() -> None:
    """A model that is exported for a batch of 1 may be made dynamic by its inputs only."""
    model = parsed("""g (float[N,1,4,4] X, float[N,H,W,2] G) => (float[N,1,H,W] Y)
        <float[1,1,4,4] A, float[1,5,5,2] B> { A = Relu (X) B = Tanh (G) Y = GridSample (A, B) }""")
    feeds = {"X": np.resize(X, (3, 1, 4, 4)), "G": np.resize(GRID, (3, 6, 7, 2))}
    (expected,) = open_native(model).run(None, feeds)
    for session in (open_session(model), open_native(ogs.patch_model(model, target="primitives"))):
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=1e-5)
    A, _, *_ = ogs.patch_model(model, target="primitives").graph.value_info
    assert value_of(A.type).shape == (None, 1, 4, 4)


def large(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float16), name)


def with_weights() -> onnx.ModelProto:
    """Return a model with weights of 10 KB at every place, all of which lead to a GridSample."""
    model = parsed("""g (float[N,C,H,W] X, float[N,h,w,2] G, bool c) => (Y) {
            D = unknown.Op (X) E = local.add (A, B) F = Add (D, E)
            I = If (c) <
                then_branch = t () => (T) { T = Add (F, W) },
                else_branch = e () => (E) { E = Identity (S) }>
            Y = GridSample (I, G) }
        <domain: "local", opset_import: ["": 20]> add <value> (P, Q) => (R) {
            K = Constant <value: tensor = @value> () T = Add (P, K) R = Add (T, Q) }""")
    graph = model.graph
    graph.initializer.append(large("A", 1, 1, 64, 64))
    graph.node.insert(0, helper.make_node("Constant", [], ["B"], value=large("", 1, 1, 64, 64)))
    graph.node[1].attribute.extend(
        helper.make_node("", [], [], table=large("", 64, 64), rows=[0.5] * 4000).attribute
    )
    graph.node[2].attribute.extend(
        helper.make_node("", [], [], value=large("", 1, 1, 64, 64)).attribute
    )
    indices = numpy_helper.from_array(np.arange(4096))
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(large("S", 4096), indices, [1, 1, 64, 64])
    )
    graph.node[4].attribute[0].g.initializer.append(large("W", 1, 1, 64, 64))
    floats = helper.make_node("Constant", [], ["unused"], value_floats=[0.5] * 4000)
    model.functions[0].node.extend([floats, helper.make_node("Identity", ["unused"], ["unread"])])
    return model


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """Copies of what is given to onnx's shape inference."""
    models = []
    infer = shape_inference.infer_shapes
    keeping = Mock(
        side_effect=lambda model, **how: models.append(deepcopy(model)) or infer(model, **how)
    )
    monkeypatch.setattr(shape_inference, "infer_shapes", keeping)
    return models


def test_inference_gets_no_weights(given: list[onnx.ModelProto]) -> None:
    model = with_weights()
    assert model.ByteSize() > 80_000
    runtime = Mock(wraps=installed_runtime.PROBE)
    (record,) = records_of(model, runtime)
    assert record.inputs["grid"] == [TypeAndShape("float32", ("N", "h", "w", 2))]
    asked = [call.args[0] for call in runtime.types_of.call_args_list]
    assert max(m.ByteSize() for m in given) < SMALL_BYTES
    assert max(m.ByteSize() for m in asked) < SMALL_BYTES
    nodes = (
        helper.make_node("GridSample", [name, "G"], [f"sampled {name}"], mode="nearest")
        for name in "ABSE"
    )
    model.graph.node.extend(nodes)
    _, *records = ogs.inspect_model(model)
    assert [record.inputs["X"] for record in records] == [
        [TypeAndShape("float16", (1, 1, 64, 64))]
    ] * 4


@pytest.mark.parametrize("count", [1023, 1025, 4096])
def test_inference_gets_no_large_constants_of_functions(
    count: int, given: list[onnx.ModelProto]
) -> None:
    """Floats of 4 bytes: the second is above 4 KiB with its header, the first is not."""
    model = in_function("K = Constant <value = float[1] {0}> () C = GridSample (K, B)")
    ones = np.ones((1, 1, 1, count), np.float32)
    model.functions[0].node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(ones))
    (record,) = ogs.inspect_model(model)
    assert record.inputs["X"] == [TypeAndShape("float32", ones.shape)]
    assert max(m.ByteSize() for m in given) < SMALL_BYTES + 2000
    expected = ogs.grid_sample(ones, GRID[:1])
    np.testing.assert_allclose(
        open_session(model).run(None, {"X": X[:1], "G": GRID[:1]})[0], expected, rtol=1e-6
    )


def many_functions(count: int, *, chain: bool, sampled: bool) -> onnx.ModelProto:
    """A model that calls so many functions, one after another or each in the one before."""
    last, grid = ("GridSample", "N,h,w,2") if sampled else ("Max", "N,C,H,W")
    calls = "".join(
        f"Y{i} = local.f{i} ({f'Y{i - 1}' if i else 'X'}, G) " for i in range(1 if chain else count)
    )
    output = f"Y{calls.count('=') - 1}"
    text = f"g (float[N,C,H,W] X, float[{grid}] G) => (float[a,b,c,d] {output}) {{ {calls} }}"
    for i in range(count):
        called = f"local.f{i + 1}" if chain and i < count - 1 else last
        body = f"B = Relu (A) D = Neg (B) C = {called} (D, G)"
        text += (
            f'<domain: "local", opset_import: ["": 20, "local": 1]> f{i} (A, G) => (C) {{ {body} }}'
        )
    return parsed(text)


@pytest.mark.parametrize("chain", [False, True])
def test_inference_is_linear_in_functions_that_sample(
    chain: bool, given: list[onnx.ModelProto]
) -> None:
    """Without a sampling node nothing is inferred."""
    # From 1.32 on, onnxruntime refuses calls that lie deeper than 100.
    model = many_functions(100 if chain else 200, chain=chain, sampled=False)
    assert ogs.inspect_model(model) == []
    assert ogs.patch_model(model) == model
    ogs.InferenceSession(model)
    assert not given
    sizes = []
    calls = []
    for count in (50, 100, 200):
        given.clear()
        records = ogs.inspect_model(many_functions(count, chain=chain, sampled=True))
        assert [record.types["X"] for record in records] == [("float32",)] * (1 if chain else count)
        sizes.append(sum(proto.ByteSize() for proto in given))
        calls.append(len(given))
    assert calls == calls[:1] * 3
    assert sizes[2] < 2.2 * sizes[1] < 2.2 * 2.2 * sizes[0]


def test_session_infers_once(given: list[onnx.ModelProto]) -> None:
    model = halves(f"{SIGNATURE} {{ A = Relu (X) Y = GridSample (A, G) }}", "float")
    ogs.inspect_model(model)
    once = len(given)
    for proto in (model, ogs.patch_model(model)):
        given.clear()
        ogs.InferenceSession(proto)
        assert len(given) == once


def test_backward_slice_has_only_nodes_that_lead_to_a_sample() -> None:
    def kinds() -> list[str]:
        return [node.op_type for node in BackwardSlice(model, scopes_of(model)).model.graph.node]

    model = many_functions(50, chain=False, sampled=False)
    model.graph.node.insert(0, helper.make_node("Relu", ["X"], ["R"]))
    model.graph.node.insert(
        1, helper.make_node("GridSample", ["R", "G"], ["sampled"], mode="nearest")
    )
    model.graph.node.append(helper.make_node("Neg", ["sampled"], ["negated"]))
    assert kinds() == ["Relu", "GridSample"]
    # An X that a function makes: that one is followed, and no other.
    model.graph.node[1].input[0] = "Y0"
    model.graph.node.append(model.graph.node.pop(1))
    assert kinds() == ["Relu", "Neg", "Max", "GridSample"]


def test_session_infers_no_values_that_lead_to_no_sample(given: list[onnx.ModelProto]) -> None:
    unrelated = "".join(f"v{i + 1} = Sigmoid (v{i}) " for i in range(1000))
    ogs.InferenceSession(
        parsed(f"""g (float[1,2,5,6] X, float[1,3,3,2] G, float[N] v0)
            => (float[a,b,c,d] Y, float[N] v1000) {{
            R = Relu (X) Y = GridSample (R, G) {unrelated} }}""")
    )
    assert {node.op_type for proto in given for node in proto.graph.node} == {"Relu", "GridSample"}
    assert max(len(proto.functions) for proto in given) == 1


def test_backward_slice_shares_nodes_that_need_no_other_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of the other nodes takes as long as several that are shared."""
    visited = []

    def slice_node(self: BackwardSlice, node: InstanceNode) -> Sequence[onnx.NodeProto]:
        visited.append(node.proto.op_type)
        return original(self, node)

    original = BackwardSlice._slice_node
    monkeypatch.setattr(BackwardSlice, "_slice_node", slice_node)
    chain = "".join(f"v{i + 1} = Sigmoid (v{i}) " for i in range(1000))
    model = parsed(f"""g (float[1,2,5,6] v0, float[1,3,3,2] G) => (float[a,b,c,d] Y) {{
        {chain} C = Cast <to = 1> (v1000) Y = GridSample (C, G) }}""")
    slice_nodes = BackwardSlice(model, scopes_of(model)).model.graph.node
    assert [node.op_type for node in slice_nodes].count("Sigmoid") == 1000
    assert visited == ["Cast"]


@pytest.mark.parametrize("place", ["main graph", "branches"])
def test_inference_gets_no_long_descriptions_of_nodes(
    place: str, given: list[onnx.ModelProto]
) -> None:
    """PyTorch's exporter writes a stack trace for each node."""
    nodes = "R = Relu (X) Y = GridSample (R, G)"
    if place == "branches":
        branches = [
            f"b () => (float[a,b,c,d] Y{i}) {{ R{i} = Relu (X) Y{i} = GridSample (R{i}, G) }}"
            for i in range(2)
        ]
        nodes = f"Z = If (c) <then_branch = {branches[0]}, else_branch = {branches[1]}>"
    output = "Z" if place == "branches" else "Y"
    model = parsed(f"""g (float[1,2,5,6] X, float[1,3,3,2] G, bool c)
        => (float[a,b,c,d] {output}) {{ {nodes} }}""")
    for graph in with_bodies(model.graph):
        for node in graph.node:
            node.doc_string = "described " * 100
            node.metadata_props.add(key="stack trace", value="described " * 100)
    records = ogs.inspect_model(model)
    assert [record.inputs["X"][0].shape for record in records] == [(1, 2, 5, 6)] * len(records)
    assert given
    assert not any(b"described" in proto.SerializeToString() for proto in given)
    assert b"described" in ogs.patch_model(model, target="primitives").SerializeToString()


def test_backward_slice_leaves_out_node_that_omits_an_output() -> None:
    """An omitted output and an omitted input both have the empty name."""
    model = parsed("""g (float[1,2,5,6] X, float[1,3,3,2] G, float[9] other) => (Y, D) {
        C = Clip (X, , high)
        Y = GridSample (C, G)
        D = Dropout (other) }""")
    model.graph.node[-1].output.append("")
    model.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), "high"))
    model.graph.node.insert(0, model.graph.node.pop())
    nodes = BackwardSlice(model, scopes_of(model)).model.graph.node
    assert [node.op_type for node in nodes] == ["Clip", "GridSample"]


def test_backward_slice_does_not_confuse_values_of_branches_with_others() -> None:
    model = parsed("""g (float16[2,1] other, float[1,2,5,6] X, float[1,3,3,2] G, bool c) => (Y) {
        Y = If (c) <then_branch = t () => (T) { A = Relu (X) T = GridSample (A, G) },
                    else_branch = e () => (E) { B = Relu (X) E = GridSample (B, G) }> }""")
    for name in ("1 A", "2 B", "1  A"):
        model.graph.input[0].name = name
        assert [record.inputs["X"] for record in records_of(model)] == [
            [TypeAndShape("float32", (1, 2, 5, 6))]
        ] * 2


def test_backward_slice_of_calls_that_double_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of forty calls the next one twice: all of it would be a million million nodes."""
    text = """g (float[N,C,H,W] X, float[N,h,w,2] G) => (Y, Z) {
        Y = local.f0 (X, G)
        Z = GridSample (X, G) }"""
    for i in range(40):
        inner = (
            f"D = local.f{i + 1} (A, B) C = local.f{i + 1} (D, B)"
            if i < 39
            else "C = GridSample (A, B)"
        )
        text += f"""<domain: "local", opset_import: ["": 20, "local": 1]> f{i} (A, B) => (C) {{
            {inner} }}"""
    model = parsed(text)
    assert backward_slice.MAX_INLINED_NODES <= 1 << 16
    monkeypatch.setattr(backward_slice, "MAX_INLINED_NODES", 1000)
    assert len(BackwardSlice(model, scopes_of(model)).model.graph.node) < 1000
    main, inner = ogs.inspect_model(model)
    assert main.types["X"] == ("float32",)
    assert inner.types["grid"] in ((), ("float32",))


@pytest.mark.parametrize("levels", [10, 60])
def test_calls_nested_in_branches_are_inferred_up_to_a_depth(levels: int) -> None:
    """When the calls are followed, the graphs are nested deeper than protobuf reads them."""
    text = """g (float[N,C,H,W] X, float[N,h,w,2] G, bool c) => (Y, Z) {
        Y = local.f0 (X, G, c)
        Z = GridSample (X, G) }"""
    for i in range(levels):
        inner = f"T = local.f{i + 1} (A, B, c)" if i < levels - 1 else "T = GridSample (A, B)"
        text += f"""<domain: "local", opset_import: ["": 20, "local": 1]> f{i} (A, B, c) => (C) {{
            C = If (c) <
                then_branch = t () => (T) {{ {inner} }},
                else_branch = e () => (E) {{ E = Relu (A) }}> }}"""
    main, inner = ogs.inspect_model(parsed(text))
    assert main.types["X"] == ("float32",)
    assert inner.types["X"] == (("float32",) if levels < backward_slice.MAX_GRAPH_DEPTH else ())


def test_uncalled_functions_and_lists_of_graphs_are_read() -> None:
    model = in_function(call="GridSample")
    model_scopes = scopes_of(model)
    assert Inference(model, model_scopes).values_by_call(model_scopes[1], ["A"]) == [
        (TypeAndShape(),)
    ]
    assert [record.types["X"] for record in ogs.inspect_model(model)] == [("float32",), ()]
    bodies = [
        parser.parse_graph(f"b{i} () => (float[N] Q{i}) {{ Q{i} = GridSample (X, G) }}")
        for i in range(3)
    ]
    several = helper.make_node(
        "Several", [], ["Z"], domain="unknown", bodies=bodies[:2], last=bodies[2]
    )
    model.graph.node.append(several)
    model_scopes = scopes_of(model)
    assert [scope.path for scope in model_scopes[1:4]] == [
        "Several #1 bodies",
        "Several #1 bodies",
        "Several #1 last",
    ]
    (node,) = (
        node
        for node in BackwardSlice(model, model_scopes).model.graph.node
        if node.op_type == "Several"
    )
    assert [(a.name, len(a.graphs), len(a.g.node)) for a in node.attribute] == [
        ("bodies", 2, 0),
        ("last", 0, 1),
    ]
    assert [record.ranks["X"] for record in ogs.inspect_model(model)][:4] == [(4,)] * 4


def test_recursive_functions_are_inferred_in_bounded_time() -> None:
    model = parsed("""g (float[N,C,H,W] X, float[N,h,w,2] G) => (Y) { Y = local.f (X, G) }
        <domain: "local", opset_import: ["": 20, "local": 1]> f (A, B) => (C) {
            D = local.h (A, B) C = GridSample (D, B) }
        <domain: "local", opset_import: ["": 20, "local": 1]> h (A, B) => (C) {
            C = local.f (A, B) }""")
    (record,) = ogs.inspect_model(model)
    assert record.types["grid"] == ("float32",)
    if not faults.RECURSION_CRASHES:
        with pytest.raises(Exception, match="recursi"):
            open_native(model)


def _infer_slice(model: onnx.ModelProto) -> None:
    backward_slice = BackwardSlice(model, scopes_of(model))
    backward_slice.model.CopyFrom(model)
    inference._infer(backward_slice)


@pytest.mark.parametrize(
    "ask",
    [
        _infer_slice,
        installed_runtime.PROBE.types_of,
        lambda model: installed_runtime.PROBE.outputs(model, []),
    ],
)
def test_failed_inference_is_logged(ask: Callable, caplog: pytest.LogCaptureFixture) -> None:
    model = halves(f"{SIGNATURE} {{ Y = GridSample (X, G) }}")
    del model.opset_import[:]
    with caplog.at_level(logging.DEBUG, "ort_gridsample"):
        ask(model)
    ((name, level, text),) = caplog.record_tuples
    assert (name, level) == ("ort_gridsample", logging.DEBUG)
    assert "opset" in text


ROWS = [
    ("floats", 0.5, TensorProto.FLOAT),
    ("ints", 1, TensorProto.INT64),
    ("strings", b"a", TensorProto.STRING),
]


@pytest.mark.parametrize(("kind", "value", "elem_type"), ROWS)
def test_large_constant_has_a_type(kind: str, value: object, elem_type: int) -> None:
    (attribute,) = helper.make_node(
        "Constant", [], ["row"], **{f"value_{kind}": [value] * 2000}
    ).attribute
    assert constant_type(attribute).tensor_type.elem_type == elem_type


def test_large_constant_of_one_string_is_a_scalar() -> None:
    attribute = helper.make_attribute("value_string", b"a" * SMALL_BYTES)
    assert value_of(constant_type(attribute)) == TypeAndShape("str", ())


def test_wrong_value_info_of_an_initializer_is_not_used() -> None:
    grid = numpy_helper.from_array(np.zeros((2, 3, 4, 2), np.float32), "grid")
    model = parsed("""g (float[2,3,5,6] X) => (float[2,3,3,4] Y) <int64[2,12,2] grid> {
        Y = GridSample(X, grid) }""")
    model.graph.initializer.append(grid)
    (record,) = ogs.inspect_model(model)
    assert (record.types["grid"], record.ranks["grid"]) == (("float32",), (4,))
    assert record.error is None


#: What leads to X and grid by shapes that a run computes, in words that all opsets from 11 on have.
COMPUTED_SHAPES = {
    "of a Slice": """
        size = Shape (x) n = Slice (size, zero, one)
        t = Concat <axis = 0> (n, a) u = Concat <axis = 0> (n, b)
        X = Reshape (x, t) G = Reshape (c, u)
    """,
    "of a Gather, and arithmetic": """
        size = Shape (x) n = Gather (size, zero)
        t = Concat <axis = 0> (n, a) u = Concat <axis = 0> (n, b)
        X = Reshape (x, t) d = Reshape (c, u) m = Mul (d, two) G = Sub (m, two)
    """,
    "of a turned flow": """
        size = Shape (x) n = Gather (size, zero)
        t = Concat <axis = 0> (n, a) v = Concat <axis = 0> (n, two_first)
        x0 = Reshape (x, t) x1 = BatchNormalization (x0, scale, scale, scale, scale)
        X = MaxPool <kernel_shape = [2, 2]> (x1)
        d = Reshape (c, v) m = Div (d, two) G = Transpose <perm = [0, 2, 3, 1]> (m)
    """,
}


@pytest.mark.parametrize("nodes", COMPUTED_SHAPES.values(), ids=COMPUTED_SHAPES)
def test_inspect_model_of_each_opset_gives_the_same_record(nodes: str) -> None:
    constants = (
        "int64[1] zero = {0}, int64[1] one = {1}, int64[3] a = {4, 5, 6}, int64[3] b = {7, 8, 2}, "
    )
    constants += "int64[3] two_first = {2, 7, 8}, float[1] two = {2}, float[4] scale = {1, 1, 1, 1}"
    sample = (
        "y = mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0> (X, G)"
    )
    signature = "g (float[n, k] x, float[n, l] c) => (float[p, q, r, s] y)"
    text = f"{signature} <{constants}> {{ {nodes} {sample} }}"
    records = [ogs.inspect_model(parsed(text, opset))[0] for opset in (11, 12, 13, 14, 16, 20)]
    assert records[0].spatial_axes == (2,)
    assert all(record.fused == records[0].fused for record in records)
    assert all(record.cases == records[0].cases for record in records)
    assert bool(records[0].fused) == ("m = " in nodes)


@pytest.mark.parametrize(
    "nodes",
    [
        "X = Unsqueeze <axes = [1]> (x)",
        "w = Unsqueeze <axes = [1, 3]> (x) X = Squeeze <axes = [3]> (w)",
        "p, q = Split <axis = 1, split = [4, 4]> (x) X = Unsqueeze <axes = [1]> (q)",
        "w = Unsqueeze <axes = [1, 4]> (x) X = ReduceSum <axes = [4], keepdims = 0> (w)",
        "p, q = Split <axis = 1> (x) X = Unsqueeze <axes = [1]> (q)",
    ],
)
def test_inference_of_axes_as_attributes_has_the_lengths(nodes: str) -> None:
    text = f"g (float[n, 8, 6] x, float[n, 7, 8, 2] G) => (float[p, q, r, s] y) {{ {nodes}"
    codes = "interpolation_mode = 0, padding_mode = 0, align_corners = 0"
    text += f" y = mmcv.grid_sampler <{codes}> (X, G) }}"
    (record,) = ogs.inspect_model(parsed(text, 11))
    ((X, _),) = record.cases
    assert X.shape is not None
    assert X.shape[1:] == (1, 4 if "Split" in nodes else 8, 6)


@pytest.mark.parametrize(
    ("node", "shape"),
    [("Squeeze", (7, 8)), ("Unsqueeze", (1, 7, 8)), ("ReduceSum", (1, 1, 1))],
)
def test_inspect_model_with_empty_axes_as_attribute_has_a_record(
    node: str, shape: tuple[int, ...]
) -> None:
    nodes = f"w = {node} <axes: ints = []> (x) X = Reshape (w, size)"
    codes = "interpolation_mode = 0, padding_mode = 0, align_corners = 0"
    sample = f"y = mmcv.grid_sampler <{codes}> (X, G)"
    signature = "g (float[1, 7, 8] x, float[1, 7, 8, 2] G) => (float[p, q, r, s] y)"
    constants = f"int64[4] size = {{1, 1, {shape[-2]}, {shape[-1]}}}"
    (record,) = ogs.inspect_model(parsed(f"{signature} <{constants}> {{ {nodes} {sample} }}", 11))
    assert record.error is None
    assert record.spatial_axes == (2,)


#: Squeezes of x with an empty list of axes, and their opsets.
EMPTY_AXES = [
    (11, "X = Squeeze <axes: ints = []> (x)"),
    (17, "axes = Constant <value = int64[0] {}> () X = Squeeze (x, axes)"),
]


def squeezed_model(opset: int, nodes: str, x_shape: str) -> onnx.ModelProto:
    """Return a model of these nodes, which squeeze x, and a GridSample of mmcv."""
    return parsed(
        f"""g (float[{x_shape}] x, float[2, 4, 5, 2] G) => (float[p, q, r, s] y) {{
            {nodes}
            y = mmcv.grid_sampler
                <interpolation_mode = 0, padding_mode = 0, align_corners = 0> (X, G) }}""",
        opset,
    )


@pytest.mark.parametrize(("opset", "nodes"), EMPTY_AXES)
def test_squeeze_with_empty_axes_has_the_shape_of_a_run(opset: int, nodes: str) -> None:
    """A run removes the axes of length 1. The inference of onnx keeps them."""
    (record,) = ogs.inspect_model(squeezed_model(opset, nodes, "2, 3, 1, 4, 5"))
    assert record.error is None
    assert record.inputs["X"][0].shape == (2, 3, 4, 5)


def test_squeeze_with_empty_axes_of_a_call_has_the_shape_of_a_run() -> None:
    """The call of a model-local function gives the axes."""
    model = squeezed_model(11, "X = local.F <axes: ints = []> (x)", "2, 3, 1, 4, 5")
    model.opset_import.append(helper.make_opsetid("local", 1))
    function = parser.parse_function("""
        <domain: "local", opset_import: ["": 11]>
        F <axes> (a) => (b) { b = Squeeze <axes: ints = @axes> (a) }""")
    model.functions.append(function)
    (record,) = ogs.inspect_model(model)
    assert record.error is None
    assert record.inputs["X"][0].shape == (2, 3, 4, 5)


@pytest.mark.parametrize(("opset", "nodes"), EMPTY_AXES)
def test_squeeze_of_unknown_lengths_with_empty_axes_has_an_unknown_rank(
    opset: int, nodes: str
) -> None:
    (record,) = ogs.inspect_model(squeezed_model(opset, nodes, "2, c, d, 4, 5"))
    assert record.ranks["X"] == ()


@pytest.mark.parametrize(("opset", "nodes"), EMPTY_AXES)
def test_session_of_sample_behind_squeeze_with_empty_axes_has_its_output(
    opset: int, nodes: str
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 1, 4, 5)).astype(np.float32)
    grid = rng.uniform(-1, 1, (2, 4, 5, 2)).astype(np.float32)
    session = ogs.InferenceSession(squeezed_model(opset, nodes, "2, 3, 1, 4, 5"))
    (Y,) = session.run(None, {"x": x, "G": grid})
    np.testing.assert_allclose(Y, ogs.grid_sample(x[:, :, 0], grid), rtol=0, atol=1e-5)


#: What makes X of x, with an input G or an AffineGrid.
LEADING = {
    "an operator of known rank": ("float[a, b, c, d] x, float[e, f, h, 2] G", "X = Relu (x)"),
    "a Reshape to a fed shape": (
        "float[a, b, c, d] x, float[e, f, h, 2] G, int64[k] to",
        "X = Reshape (x, to)",
    ),
    "an AffineGrid": (
        "float[a, b, c, d] x, float[n, 2, 3] T",
        "X = Relu (x) size = Constant <value_ints = [1, 1, 3, 4]> () G = AffineGrid (T, size)",
    ),
}
#: Wrong declarations of values.
DECLARED: list[tuple[str, list[int | None]]] = [
    ("Y", [9, 9, 9, 9]),
    ("Y", [None, 9, None, 1]),
    ("Y", [2, 3]),
    ("Y", []),
    ("X", [9, 9, 9, 9]),
    ("X", [2, 3]),
    ("X", [1, 2, 3, 4, 5]),
    ("Z", [1, 1, 1, 1]),
    ("Z", [1]),
]


@pytest.mark.parametrize(
    "target", ["ort_gridsample", "compiled", "ai.onnx-2d", "primitives", "com.microsoft"]
)
@pytest.mark.parametrize("leading", LEADING)
def test_patch_with_wrong_value_info_has_the_same_outputs_or_is_refused(
    leading: str, target: TargetName
) -> None:
    if target == "ort_gridsample" and not HAS_PYTHON_OPS:
        pytest.skip(NO_PYTHON_OPS)
    inputs, nodes = LEADING[leading]
    tail = 'Y = GridSample <mode = "linear"> (X, G) Z = Neg (Y) s = Shape (Y) t = Shape (Z)'
    model = parsed(f"g ({inputs}) => (float[] Z, int64[] s, int64[] t) {{ {nodes} {tail} }}")
    del model.graph.output[0]
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((1, 2, 5, 6), "float32"),
        "G": rng.uniform(-1, 1, (1, 3, 4, 2)).astype("float32"),
        "T": np.ones((1, 2, 3), np.float32),
        "to": np.array([1, 2, 5, 6]),
    }
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    model.graph.output.add().CopyFrom(helper.make_tensor_value_info("Y", TensorProto.FLOAT, None))
    # These targets keep a node that has two axes already, or may have others.
    is_replaced = leading == "an AffineGrid" or target not in ("ai.onnx-2d", "com.microsoft")

    def answers(model: onnx.ModelProto) -> list[np.ndarray]:
        patched = ogs.patch_model(model, target=target).SerializeToString()
        options = ogs.register(onnxruntime.SessionOptions())
        session = onnxruntime.InferenceSession(patched, options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)

    expected = answers(model)
    for name, shape in DECLARED if is_replaced else ():
        wrong = deepcopy(model)
        if name == "Y":
            del wrong.graph.output[-1]
        wrong.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        try:
            outputs = answers(wrong)
        except ogs.GridSampleError:
            assert (leading, name) == ("a Reshape to a fed shape", "X")
            continue
        for output, expected_output in zip(outputs, expected, strict=False):
            np.testing.assert_array_equal(output, expected_output, f"{name} {shape}")


@pytest.mark.parametrize(
    ("is_prepared", "expected"),
    [(True, TypeAndShape("float32", (2, 3, 4, 5))), (False, TypeAndShape())],
)
def test_prepared_inference_has_types_after_nodes_change(
    is_prepared: bool, expected: TypeAndShape
) -> None:
    model = parsed("""g (float[2, 3, 4, 5] X, float[2, 6, 7, 2] G) => (float[] Y) {
        A = Relu (X)
        Y = GridSample (A, G) }""")
    model_scopes = scopes_of(model)
    inferred = Inference(model, model_scopes)
    if is_prepared:
        inferred.infer_now()
    model.graph.node[0].domain = "other"
    assert inferred.value_in_all_calls(model_scopes[0], "A") == expected


def test_name_of_a_new_input_is_no_name_of_the_model() -> None:
    """In opset 12, ``axes`` is an attribute; the slice has newer nodes, with an input."""
    model = parsed(
        """g (float[1, 2, 3, 4, 5] X, float[2, 4, 4, 2] grid) => (Y) {
            A = Squeeze <axes = [0]> (X)
            Y = mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 0, align_corners = 0>
                (A, grid)
        }""",
        12,
    )
    model.graph.input[1].name = model.graph.node[1].input[1] = "A axes"
    (scope,) = scopes_of(model)
    slice_types = Inference(model, [scope])
    assert slice_types.value_in_all_calls(scope, "A") == TypeAndShape("float32", (2, 3, 4, 5))
