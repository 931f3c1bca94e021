"""A model in the opset that somebody asked for: older ones, newer ones, and there and back."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import helper, inliner, numpy_helper, parser, shape_inference, version_converter

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops import registry
from ort_gridsample.graph.scope import opset_of, scopes
from ort_gridsample.patching import TargetName
from support import faults
from support.cases import ATTRIBUTES
from support.compare import about, message_of
from support.exported_models import MODELS as EXPORTED
from support.exported_models import REFUSED, by_size, stored
from support.foreign_nodes import normalized, written
from support.graphs import FEEDS, GRID, X, assert_answers_agree
from support.graphs import MODELS as GRAPHS
from support.models import grid_sample_model, parsed
from support.paths import open_native, open_patched_file, open_session


@pytest.mark.parametrize("opset", [16, 17, 18, 19])
def test_an_older_opset_spells_every_mode_in_its_way_and_metadata_stay(opset: int) -> None:
    model = grid_sample_model("float32", "float32", 2, ATTRIBUTES, 22)
    model.metadata_props.add(key="model", value="a model")
    model.graph.node[0].doc_string = "a warp"
    model.graph.node[0].metadata_props.add(key="made by", value="hand")
    before = model.SerializeToString(deterministic=True)
    older = ogs.patch_model(model, target="ai.onnx", opset=opset)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(older, full_check=True)
    assert (opset_of(older), older.ir_version) == (opset, 8 if opset < 19 else 9)
    words = [helper.get_attribute_value(node.attribute[0]).decode() for node in older.graph.node]
    assert words == ["nearest"] * 6 + ["bilinear"] * 6 + ["bicubic"] * 6
    assert_answers_agree(older, model, {"X": X, "grid": GRID})
    again = normalized(ogs.patch_model(older, target="ai.onnx", opset=22))
    assert (again.graph, again.metadata_props) == (normalized(model).graph, model.metadata_props)


@pytest.mark.parametrize("old", [16, 20, 22])
def test_defaults_are_said_or_stay_unsaid_rightly(old: int) -> None:
    model = written("Y = GridSample (X, G)", old)
    for new in (16, 18, 20, 21, 22):
        there = ogs.patch_model(model, target="ai.onnx", opset=new)
        (record,) = ogs.inspect_model(there)
        assert (record.opset, record.mode, record.padding_mode, record.align_corners) == (
            new,
            "linear",
            "zeros",
            0,
        )
        onnx.checker.check_model(there, full_check=True)


#: Graphs of every kind, and the exported models that onnx's converter takes down, of which the large ones are slow.
MOVED = [
    *map(pytest.param, GRAPHS),
    *by_size(path for path in EXPORTED if path.stem not in REFUSED),
]


def opened(moved: str | Path) -> tuple[str, onnx.ModelProto, dict[str, np.ndarray]]:
    """The name of the graph or file, the model, and what to feed it."""
    if isinstance(moved, str):
        name, model, feeds = moved, parser.parse_model(GRAPHS[moved]), FEEDS
    else:
        name, model, feeds = moved.stem, onnx.load(moved), stored(moved, "in.")
    if faults.NO_ADAPTERS and re.search(r"= (If|Loop|Scan)\b", onnx.printer.to_text(model)):
        pytest.skip("onnx's converter has no way down for If, Loop and Scan yet")
    return name, model, feeds


@pytest.mark.parametrize("moved", MOVED)
def test_down_and_up_again_answers_the_same(moved: str | Path) -> None:
    """As primitives where the older opset cannot say a node."""
    _, model, feeds = opened(moved)
    older = min(opset_of(model), 18)
    target: TargetName = "ai.onnx"
    newer = [r for r in ogs.inspect_model(model) if r.dialect.name == "ai.onnx" and r.opset > older]
    if low := [r for r in newer if r.operator == "AffineGrid" or r.spatial_axes == (3,)]:
        target = "primitives"
        said = message_of(model, target="ai.onnx", opset=older)
        assert said.endswith(
            f"{low[0].label.split('/')[-1]}': opset is {older}, expected at least 20"
        )
    there = ogs.patch_model(model, target=target, opset=older)
    onnx.checker.check_model(there)
    for each, opset in ((there, older), (ogs.patch_model(there, target=target, opset=22), 22)):
        assert {opset_of(each), *(scope.opsets[""] for scope in scopes(each))} == {opset}
        assert_answers_agree(each, model, feeds)


@pytest.mark.parametrize("name", GRAPHS)
def test_down_to_13_answers_the_same(name: str) -> None:
    """Where onnx's converter has no way for operators that mean the same before."""
    _, model, feeds = opened(name)
    there = ogs.patch_model(model, target="primitives", opset=13)
    onnx.checker.check_model(there, full_check=True)
    assert (opset_of(there), there.ir_version) == (13, 7)
    assert_answers_agree(there, model, feeds)


@faults.needs_named_nodes
def test_a_node_that_the_older_opset_does_not_have_is_named() -> None:
    """Or one with a type that it does not have."""
    model = written(
        "A = Cast <to = 6> (X) [relu] B = Relu (A) C = Cast <to = 1> (B) Y = GridSample (C, G)"
    )
    assert opset_of(ogs.patch_model(model, target="primitives", opset=14)) == 14
    said = message_of(model, target="primitives", opset=13)
    assert (
        said == "Relu node 'relu': the type of A is int32, expected a type that opset 13 has for X"
    )
    model = written(
        "[first] A = Trilu (X) [second] B = Relu (A) [third] C = Trilu (B) [warp] Y = GridSample (C, G)"
    )
    said = message_of(model, target="primitives", opset=13)
    expected = "opset is 13, expected at least 14, which has this Trilu"
    others = "1 more cannot be converted: Trilu node 'third' (opset is 13, expected at least 14, which has this Trilu)"
    assert said == f"Trilu node 'first': {expected}; {others}"


@pytest.mark.parametrize("name", ["If", "function", "two in a row"])
def test_every_target_in_every_opset(name: str) -> None:
    """Of a graph with subgraphs, of one with functions, and of one with both modes; opsets take turns."""
    model = parser.parse_model(GRAPHS[name])
    targets = ("ort_gridsample", "compiled", "mmcv", "mmdeploy", "GridSampler", "com.microsoft")
    for i, target in enumerate(targets):
        opset = (16, 18, 20, 22)[(i + len(name)) % 4]
        with about((target, opset)):
            there = ogs.patch_model(model, target=target, opset=opset)
            assert opset_of(there) == opset
            assert ogs.patch_model(there, target=target, opset=opset) == there
            assert {record.dialect.name for record in ogs.inspect_model(there)} == {target}
            back = ogs.patch_model(there, target="ai.onnx")
            onnx.checker.check_model(back, full_check=True)
            assert opset_of(back) == opset
            assert_answers_agree(back, model)


@pytest.mark.parametrize(
    "target", ["ort_gridsample", *([] if registry.unavailable_reason() else ["compiled"])]
)
def test_this_packages_ops_run_what_the_opset_cannot_say(
    target: Literal["ort_gridsample", "compiled"],
) -> None:
    """AffineGrid, and three axes, at opset 18: the functions of the session's file know no opset."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 22]>
        g (float[N,C,D,H,W] X, float[N,3,4] theta, int64[5] size) => (float[N,C,d,h,w] Y) {
            grid = AffineGrid (theta, size)
            A = GridSample <mode = "nearest", padding_mode = "border"> (X, grid)
            Y = Relu (A) }""")
    rng = np.random.default_rng(5)
    volume = rng.standard_normal((1, 2, 4, 5, 6)).astype(np.float32)
    theta = rng.uniform(-1, 1, (1, 3, 4)).astype(np.float32)
    feeds = {"X": volume, "theta": theta, "size": np.array([1, 2, 3, 4, 5])}
    expected = ogs.grid_sample(
        volume, ogs.affine_grid(theta, (1, 2, 3, 4, 5)), "nearest", "border"
    ).clip(0)
    older = ogs.patch_model(model, target=target, opset=18)
    np.testing.assert_array_equal(open_patched_file(older, target).run(None, feeds)[0], expected)
    lowered = ogs.patch_model(model, target="primitives", opset=18)
    np.testing.assert_allclose(open_native(lowered).run(None, feeds)[0], expected, atol=1e-6)
    some = ogs.patch_model(
        model, target=target, opset=18, nodes="unsupported"
    )  # what nobody can write is not left
    assert [record.patched for record in ogs.inspect_model(some)] == [True, True]


def test_nodes_that_are_not_replaced_are_written_for_the_opset_too() -> None:
    model, seen = grid_sample_model("float32", "float32", 2, ATTRIBUTES[-2:], 22), []

    def second(record: ogs.NodeRecord) -> bool:
        seen.append((record.domain, record.opset, record.op_type))
        return record.name == "sample1"

    older = ogs.patch_model(model, target="mmcv", opset=17, nodes=second)
    assert [(n.domain, n.op_type) for n in older.graph.node] == [
        ("", "GridSample"),
        ("mmcv", "grid_sampler"),
    ]
    assert older.graph.node[0].attribute[0].s == b"bicubic"
    assert {(e.domain, e.version) for e in older.opset_import} == {("", 17), ("mmcv", 1)}
    assert set(seen) == {("", 22, "GridSample"), ("", 17, "GridSample")}


def test_an_opset_that_cannot_be_is_refused() -> None:
    """By the operator, by the target, also where nothing had to be converted, or as it is none."""
    for X_type, rank, old, new, least in (
        *(("float32", 3, 22, 19, 20), ("float32", 1, 20, 16, 20)),
        *(("bfloat16", 2, 22, 20, 22), ("float32", 2, 16, 15, 16)),
    ):
        model = grid_sample_model(X_type, "float32", rank, ATTRIBUTES[:1], old)
        said = f"GridSample node 'sample0': opset is {new}, expected at least {least}"
        assert message_of(model, target="ai.onnx", opset=new) == said
    sampler = (
        "Y = mmcv.grid_sampler <interpolation_mode = 0, padding_mode = 1, align_corners = 1> (X, G)"
    )
    for nodes in ("", "B = Squeeze (X)"):
        said = message_of(written(f"{sampler} {nodes}", 10), target="primitives", opset=10)
        assert said == "grid_sampler node '(Y)': opset is 10, expected at least 11"
    for opset in (0, 10**6, "16", 16.5):
        expected = f"a number from 1 to {onnx.defs.onnx_opset_version()}"
        assert (
            message_of(model, opset=opset)
            == f"patch_model: opset is {opset!r}, expected {expected}"
        )


@faults.needs_adapters
def test_attributes_that_go_without_saying_are_dropped_and_others_refused() -> None:
    pooled = written(
        "A = GridSample (X, G) Y = AveragePool <kernel_shape = [2, 2], dilations = [2, 2]> (A)", 20
    )
    said = message_of(pooled, target="ai.onnx", opset=18)
    assert said == "AveragePool node '(Y)': dilations is [2, 2], expected a value that opset 18 has"
    axes = "axes = Constant <value = int64[1] {1}> ()"
    reduced = written(
        f"A = GridSample (X, G) {axes} Y = ReduceMax <noop_with_empty_axes = 0> (A, axes)", 20
    )
    older = ogs.patch_model(reduced, target="ai.onnx", opset=16)
    onnx.checker.check_model(older, full_check=True)
    # The axes are an attribute now.
    assert [(node.op_type, len(node.attribute)) for node in older.graph.node] == [
        ("GridSample", 3),
        ("ReduceMax", 1),
    ]
    assert_answers_agree(older, reduced)


def test_a_function_passes_on_what_the_older_opset_calls_otherwise() -> None:
    warp = 'warp <m: string = "linear"> (A, B) => (C) { C = GridSample <mode: string = @m> (A, B) }'
    model = written(
        'A = local.warp <m = "cubic"> (X, G) B = local.warp (X, G) Y = Add (A, B)', function=warp
    )
    older = ogs.patch_model(model, target="ai.onnx", opset=16)
    onnx.checker.check_model(older, full_check=True)
    assert {record.mode for record in ogs.inspect_model(older)} == {"cubic", "linear"}
    assert_answers_agree(older, model)
    shared = ogs.patch_model(model, target="primitives", functions=True, opset=16)
    assert (len(shared.functions), shared.ir_version) == (2, 8)
    assert_answers_agree(shared, model)


@faults.needs_named_nodes
def test_weights_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model of more than 2 GiB, weights included, onnx takes none."""
    weights = numpy_helper.from_array(np.ones((1, 3, 64, 64), np.float32), "W")
    model = parsed("""g (float[1,2,2,2] G) => (float[1,1,2,2] A) {
            Y = local.warp (W, G) [lower] L = Trilu (Y) A, B, C = Split <axis = 1, num_outputs = 3> (L) }
        <domain: "local", opset_import: ["": 20]> warp (P, Q) => (R) { R = GridSample (P, Q) }""")
    model.graph.initializer.append(weights)
    sizes: list[int] = []
    for module, name in (
        (version_converter, "convert_version"),
        (inliner, "inline_selected_functions"),
        (shape_inference, "infer_shapes"),
    ):
        original = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda m, *to, of=original, **named: (sizes.append(m.ByteSize()), of(m, *to, **named))[
                1
            ],
        )
    assert (
        ogs.patch_model(model, target="ai.onnx", opset=18).graph.initializer
        == model.graph.initializer
    )
    assert message_of(model, target="mmcv", opset=13).startswith("Trilu node 'lower': opset is 13")
    assert len(sizes) > 4
    assert max(sizes) < 2000


@faults.needs_adapters
@pytest.mark.parametrize("opset", range(11, 23))
def test_every_step_of_the_way_down(opset: int) -> None:
    # Operators that changed between opsets 11 and 22, as nodes in which they mean the same in all of them.
    nodes = """
    shape = Constant <value = int64[2] {0, -1}> () axes = Constant <value = int64[1] {1}> ()
    axis = Constant <value = int64 {2}> () row = Constant <value = int64[4] {0, 1, 2, 0}> ()
    a_row = Constant <value = int64[2] {1, 4}> () first = Constant <value = int64[1] {0}> ()
    one = Constant <value = float[1] {1.0}> () step = Constant <value = float {0.01}> ()
    parts = Constant <value = int64[2] {1, 2}> () pads = Constant <value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}> ()
    low = Constant <value = float {-1.0}> () repeats = Constant <value = int64[4] {1, 1, 1, 1}> ()
    scale = Constant <value = float[3] {1.0, 2.0, 0.5}> () zeros = Constant <value = float[3] {0.0, 0.1, 0.2}> ()
    length = Constant <value_ints = [1, 1, 1, 1]> ()
    A = Abs (X) B = Add (A, X) C = Clip (B, low) D = Relu (C) E = Sigmoid (D) F = Pad (E, pads)
    H = Reshape <allowzero = 0> (F, shape) I = Softmax <axis = 1> (H) J = ReduceMax (F, axes) K = Mul (F, J)
    L = BatchNormalization <training_mode = 0> (K, scale, zeros, zeros, scale) M1, M2 = Split <axis = 1> (L, parts)
    M = Concat <axis = 1> (M1, M2) N = Transpose <perm = [0, 1, 3, 2]> (M) O = Tile (N, repeats) P = Exp (O)
    S1 = Shape <end = 2> (P) S2 = Shape <start = 2> (P) S = Concat <axis = 0> (S1, S2)
    Q = ConstantOfShape (length) R = Sub (P, Q) T = Expand (R, S) U = Cast <to = 1> (T)
    V = Unsqueeze (U, axes) W = Squeeze (V, axes) Z = ReduceSum <keepdims = 1> (I) a = Div (W, Z) b = Sqrt (a)
    d = Identity (b) e = Where (c, d, W) f = Pow (e, low) g = Neg (f) h = CumSum (g, axis) i = Erf (h)
    at = Reshape <allowzero = 1> (row, a_row) j = AveragePool <kernel_shape = [1, 1]> (i)
    k = ReduceMean <keepdims = 1> (j) l = Sub (j, k) m = ScatterND <reduction = "none"> (l, at, one)
    n = GatherND (m, first) o = Add (m, n) p = QuantizeLinear (o, step) q = DequantizeLinear (p, step) r = Add (o, q)
    Y = GridSample <padding_mode = "border"> (r, G)
"""
    model = written(nodes)
    onnx.checker.check_model(model, full_check=True)
    there = ogs.patch_model(model, target="mmcv", opset=opset)
    assert {(e.domain, e.version) for e in there.opset_import} == {("", opset), ("mmcv", 1)}
    [ours], [theirs] = open_session(there).run(None, FEEDS), open_native(model).run(None, FEEDS)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    assert not {node.domain for node in there.graph.node} - {"", "mmcv"}
