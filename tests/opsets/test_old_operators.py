"""Old operators that onnx's version converter converts to another meaning, or not at all."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from ort_gridsample.graph.scope import scopes_of
from ort_gridsample.opsets import convert
from ort_gridsample.patching import TargetName
from support.compare import refusal
from support.models import parsed
from support.paths import open_native

RNG = np.random.default_rng(0)
FEEDS = {
    "X": RNG.standard_normal((1, 2, 6, 6)).astype(np.float32),
    "G": RNG.uniform(-1, 1, (1, 4, 4, 2)).astype(np.float32),
}


def old_model(nodes: str, opset: int) -> onnx.ModelProto:
    """Return a model of an old opset that samples the value V, which ``nodes`` compute."""
    return parsed(
        f"""g (float[1,2,6,6] X, float[1,4,4,2] G) => (float[1,2,4,4] Y) {{
            {nodes}
            Y = com.microsoft.GridSample (V, G) }}""",
        opset,
    )


def output_of(model: onnx.ModelProto) -> np.ndarray:
    (output,) = open_native(model).run(None, FEEDS)
    return output


def resize(mode: str, scales: str, op_type: str = "Resize") -> str:
    return f"""scales = Constant <value = float[4] {{{scales}}}> ()
        V = {op_type} <mode = "{mode}"> (X, scales)"""


def resize_to_computed_scales(mode: str, divisor: str) -> str:
    """Return a Resize whose scales only a run knows."""
    return f"""shape = Shape (X)
        lengths = Cast <to = 1> (shape)
        six = Constant <value = float[4] {{{divisor}}}> ()
        scales = Div (lengths, six)
        V = Resize <mode = "{mode}"> (X, scales)"""


#: The name of a case -> the nodes that compute V, and their opset.
CHANGED: dict[str, tuple[str, int]] = {
    "linear Resize": (resize("linear", "1.0, 1.0, 2.0, 2.0"), 10),
    "linear Resize by a fraction": (resize("linear", "1.0, 1.0, 1.5, 1.7"), 10),
    "linear Resize to fewer pixels": (resize("linear", "1.0, 1.0, 0.6, 0.7"), 10),
    "nearest Resize": (resize("nearest", "1.0, 1.0, 1.7, 2.3"), 10),
    "nearest Resize to fewer pixels": (resize("nearest", "1.0, 1.0, 0.6, 0.7"), 10),
    "nearest Resize to fewer and more": (resize("nearest", "1.0, 1.0, 0.6, 1.7"), 10),
    "linear Resize to computed lengths": (
        resize_to_computed_scales("linear", "1.0, 2.0, 4.0, 9.0"),
        10,
    ),
    "nearest Resize to computed lengths": (
        resize_to_computed_scales("nearest", "1.0, 2.0, 4.0, 9.0"),
        10,
    ),
    "linear Upsample of opset 9": (resize("linear", "1.0, 1.0, 2.0, 1.5", "Upsample"), 9),
    "nearest Upsample of opset 9": (resize("nearest", "1.0, 1.0, 1.7, 2.3", "Upsample"), 9),
    "linear Upsample of opset 7": (
        'V = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 1.5]> (X)',
        7,
    ),
    "nearest Upsample of opset 7": ("V = Upsample <scales = [1.0, 1.0, 1.7, 2.3]> (X)", 7),
    "Clip": ("V = Clip <min = -0.5, max = 0.5> (X)", 10),
    "Clip of float16": (
        "H = Cast <to = 10> (X) K = Clip <min = -0.5, max = 0.5> (H) V = Cast <to = 1> (K)",
        10,
    ),
    "Clip of float16 from above": (
        "H = Cast <to = 10> (X) K = Clip <max = 0.5> (H) V = Cast <to = 1> (K)",
        10,
    ),
    "Pad of float64": (
        """D = Cast <to = 11> (X)
        P = Pad <pads = [0, 0, 1, 1, 0, 0, 2, 1], value = 3.0> (D)
        V = Cast <to = 1> (P)""",
        10,
    ),
    "Pad of float64 with its default": (
        """D = Cast <to = 11> (X)
        P = Pad <pads = [0, 0, 1, 1, 0, 0, 2, 1]> (D)
        V = Cast <to = 1> (P)""",
        10,
    ),
    "Resize and Clip in a branch": (
        f"""c = Constant <value = bool {{1}}> ()
        V = If (c) <
            then_branch = t () => (float[a,b,d,e] T) {{
                {resize("linear", "1.0, 1.0, 1.5, 2.0").replace("V =", "R =")}
                H = Cast <to = 10> (R)
                K = Clip <min = -0.5, max = 0.5> (H)
                T = Cast <to = 1> (K) }},
            else_branch = e () => (float[i,j,k,l] E) {{
                {resize("nearest", "1.0, 1.0, 1.5, 2.0").replace("V =", "E =")} }}>""",
        10,
    ),
    "Slice, TopK and Scatter": (
        """S = Slice <axes = [2], starts = [1], ends = [6]> (X)
        K, indices = TopK <axis = 3, k = 4> (S)
        rows = Constant <value = int64[1,1,1,2] {2, 3}> ()
        new = Constant <value = float[1,1,1,2] {5.0, 6.0}> ()
        V = Scatter <axis = 3> (K, rows, new)""",
        9,
    ),
    "Dropout whose mask is not read": ("V, mask = Dropout <ratio = 0.3> (X)", 7),
    "Scan without a batch axis": (
        """zero = Sub (X, X)
        start = Squeeze <axes = [0]> (zero)
        last, V = Scan <num_scan_inputs = 1, body = b (float[2,6,6] s, float[2,6,6] x)
            => (float[2,6,6] t, float[2,6,6] y) { t = Add (s, x) y = Clip <min = -0.5> (t) }>
            (start, X)""",
        9,
    ),
}


@pytest.mark.parametrize(
    ("target", "new"), [("primitives", 11), ("primitives", 13), ("ai.onnx", 16), ("ai.onnx", 22)]
)
@pytest.mark.parametrize("name", CHANGED)
def test_raised_old_operator_has_the_same_output(name: str, target: TargetName, new: int) -> None:
    nodes, old = CHANGED[name]
    model = old_model(nodes, old)
    raised = ogs.patch_model(model, target=target, opset=new)
    onnx.checker.check_model(raised, full_check=True)
    tolerance = 1e-3 if "<to = 10>" in nodes else 1e-5  # float16
    np.testing.assert_allclose(output_of(raised), output_of(model), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("target", "new"), [("primitives", 11), ("ai.onnx", 16), ("ai.onnx", 18), ("ai.onnx", 20)]
)
@pytest.mark.parametrize("old", [10, 12, 15])
def test_operator_that_only_onnxruntime_has_in_an_opset_is_kept(
    old: int, target: TargetName, new: int
) -> None:
    model = old_model(
        """scale = Constant <value = float[6] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> ()
        V = LayerNormalization <axis = -1> (X, scale, scale)""",
        old,
    )
    converted = ogs.patch_model(model, target=target, opset=new)
    assert "LayerNormalization" in {node.op_type for node in converted.graph.node}
    np.testing.assert_allclose(output_of(converted), output_of(model), rtol=1e-5, atol=1e-5)


def test_raised_resize_keeps_its_name_at_the_node_that_makes_the_output() -> None:
    nodes = resize_to_computed_scales("nearest", "1.0, 2.0, 4.0, 9.0")
    model = old_model(nodes.replace("V = Resize", "[resize] V = Resize"), 10)
    raised = ogs.patch_model(model, target="ai.onnx")
    makers = {output: node.name for node in raised.graph.node for output in node.output}
    assert makers["V"] == "resize"
    names = [node.name for node in raised.graph.node if node.name]
    assert len(names) == len({*names})


def scan_with_batch_axis() -> onnx.ModelProto:
    """Return a model of opset 8 with a Scan over axis 1 of X, for each element of axis 0."""
    model = old_model("V = Identity (X)", 8)
    value = [6, 6]
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, value) for name in ("s", "x")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, value) for name in ("t", "y")],
    )
    start = helper.make_tensor("start", TensorProto.FLOAT, [1, 6, 6], np.zeros(36))
    model.graph.initializer.append(start)
    model.graph.node[0].CopyFrom(
        helper.make_node(
            "Scan", ["", "start", "X"], ["last", "V"], "scan", num_scan_inputs=1, body=body
        )
    )
    assert np.isfinite(output_of(model)).all()
    return model


@pytest.mark.parametrize(("target", "opset"), [("ai.onnx", None), ("primitives", 13)])
def test_raised_scan_with_a_batch_axis_is_refused(target: TargetName, opset: int | None) -> None:
    error = refusal(ogs.patch_model, scan_with_batch_axis(), target=target, opset=opset)
    assert (error.where, error.argument) == ("Scan node 'scan'", "opset")
    assert error.found == f"{opset or 16} in the patched model"
    assert error.expected == "one before 9: this Scan has a batch axis"


def test_scan_with_a_batch_axis_is_kept_where_the_opset_is() -> None:
    model = scan_with_batch_axis()
    kept = ogs.patch_model(model, target="mmcv")
    assert [node.op_type for node in kept.graph.node] == ["Scan", "grid_sampler"]


@pytest.mark.parametrize("new", [10, 11])
def test_scan_without_a_batch_axis_is_refused_before_opset_9(new: int) -> None:
    nodes, old = CHANGED["Scan without a batch axis"]
    error = refusal(convert.convert_opset, old_model(nodes, old), 8)
    assert error.where == "Scan node with output 'last, V'"
    assert error.expected == "one since 9: this Scan has no batch axis"


def test_mask_of_an_old_dropout_that_is_read_is_refused() -> None:
    model = old_model("D, mask = Dropout (X) V = Mul (D, mask)", 7)
    error = refusal(ogs.patch_model, model, target="ai.onnx")
    assert (error.where, error.argument) == ("Dropout node with output 'D, mask'", "mask")


def test_batch_normalization_by_element_is_refused() -> None:
    ones = ", ".join(["1.0"] * 72)
    model = old_model(
        f"""s = Constant <value = float[2,6,6] {{{ones}}}> ()
        V = BatchNormalization <spatial = 0> (X, s, s, s, s)""",
        7,
    )
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=16)
    assert error.where == "BatchNormalization node with output 'V'"


#: Nodes that the converter may leave in a model -> the argument of the error.
LEFT_BY_A_CONVERTER = {
    "V = Softmax (X, G)": "the number of inputs",
    "V, W = Relu (X)": "the number of outputs",
    "V = Gather (X)": "indices",
    "V = Relu <alpha = 1.0> (X)": "alpha",
    "V = Concat (X, X)": "axis",
    "V = Upsample (X, G)": "opset",
}


@pytest.mark.parametrize("is_in_branch", [False, True])
@pytest.mark.parametrize("node", LEFT_BY_A_CONVERTER)
def test_node_that_the_converter_leaves_unconverted_is_refused(
    node: str, is_in_branch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converter checks nothing of its result, which onnxruntime refuses."""
    nodes = node
    if is_in_branch:
        nodes = f"""c = Constant <value = bool {{1}}> ()
            V = If (c) <
                then_branch = t () => (float[N,C,H,W] T) {{ {node} T = Neg (V) }},
                else_branch = e () => (float[N,C,H,W] E) {{ E = Identity (X) }}>"""
    model = old_model(nodes, 9)
    monkeypatch.setattr(convert, "_convert_stepwise", set_opset)
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=17)
    operator = node.split("= ")[1].split()[0]
    assert error.where.startswith(f"{operator} node with output 'V")
    assert error.argument == LEFT_BY_A_CONVERTER[node]


def set_opset(model: onnx.ModelProto, opset: int) -> None:
    """Change the opset of a model, and no node."""
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = opset


def test_wrong_type_after_a_conversion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = old_model("V = Relu (X)", 12)

    def convert_wrongly(model: onnx.ModelProto, opset: int) -> None:
        set_opset(model, opset)
        for scope in scopes_of(model):
            for node in scope.nodes:
                if node.op_type == "Relu":
                    node.op_type = "Not"

    monkeypatch.setattr(convert, "_convert_stepwise", convert_wrongly)
    error = refusal(ogs.patch_model, model, target="ai.onnx", opset=17)
    assert (error.where, error.argument) == ("Not node with output 'V'", "opset")
