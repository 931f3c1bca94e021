"""Names and constants of a model: what a name means where it is read, and new names that mean nothing yet."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.scope import UNSTATED_OPSET, Names, opset_of, scopes
from support.compare import about
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, SPARSE, X
from support.models import parsed
from support.paths import open_native, open_patched_file, open_session

THETA = np.array([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2]]], np.float32)

AFFINE = "g (float[1,2,3] theta, int64[2,4] sizes, bool c)"
OUTER = "size = Constant <value_ints = [1, 1, 2, 2]> () outer = Identity (size)"

#: Each has an outer constant ``size`` of 2×2, and an AffineGrid in a body whose ``size``, of 3×5, it is fed.
FED = {
    "Scan": f"""{AFFINE} => (float[K,N,H,W,R] Y) {{ {OUTER} one = Constant <value_int = 1> ()
        last, Y = Scan <num_scan_inputs = 1, body = b (int64 i, int64[4] size) => (int64 o, float[N,H,W,R] out) {{
            o = Identity (i) out = AffineGrid (theta, size) }}> (one, sizes) }}""",
    "Loop": f"""{AFFINE} => (float[K,N,H,W,R] Y) {{ {OUTER}
        two = Constant <value_int = 2> () zero = Constant <value_int = 0> () first = Gather (sizes, zero)
        last, Y = Loop (two, c, first) <body = b (int64 i, bool on, int64[4] size) => (
                bool go, int64[4] after, float[N,H,W,R] out) {{
            go = Identity (on) after = Identity (size) out = AffineGrid (theta, size) }}> }}""",
}


def lowered(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    return open_native(ogs.patch_model(model, target="primitives"))


def assert_answers(
    model: onnx.ModelProto, expected: np.ndarray | None = None, **feeds: np.ndarray
) -> None:
    """A session and a lowered model answer what is ``expected``, which is what onnxruntime does if nothing is said."""
    if expected is None:
        (expected,) = open_native(model).run(None, feeds)
    for session in (open_session(model), lowered(model)):
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FED)
def test_a_name_means_what_the_nearest_scope_says(name: str) -> None:
    model, feeds = (
        parsed(FED[name]),
        {"theta": THETA, "sizes": np.array([[1, 1, 3, 5]] * 2), "c": np.array(True)},
    )
    assert open_session(model).run(None, feeds)[0].shape == (2, 1, 3, 5, 2)
    assert_answers(model, **feeds)


def test_types_are_those_of_the_nearest_scope() -> None:
    """The X that a Loop carries is called as the main graph's, whose type is another; or comes from an unknown node."""
    model = parsed("""g (float16[N,C,H,W] X, float[N,C,H,W] Z, float[N,h,w,2] G) => (float[N,C,h,w] Y) {
            one = Constant <value_int = 1> () true = Constant <value = bool {1}> () unread = Identity (X)
            Y = Loop (one, true, Z) <body = b (int64 i, bool on, float[N,C,H,W] X) => (bool go, float[N,C,h,w] Q)
                { go = Identity (on) Q = GridSample (X, G) }> }""")
    (record,) = ogs.inspect_model(model)
    assert record.types["X"] == ("float32",)
    assert_answers(model, X=X.astype(np.float16), Z=X, G=GRID)
    model = parsed("""g (float16[N,C,H,W] X, float[N,h,w,2] G, bool c) => (Y) {
            unread = Identity (X)
            Y = If (c) <then_branch = t () => (T) { X = unknown.Op (G) T = GridSample (X, G) },
                        else_branch = e () => (E) { E = Identity (G) }> }""")
    (record,) = ogs.inspect_model(model)
    assert record.types == {"X": (), "grid": ("float32",)}


def test_what_gives_a_name_its_value() -> None:
    body = helper.make_graph([], "body", [], [])
    body.initializer.append(numpy_helper.from_array(np.array(2), "initializer"))
    body.sparse_initializer.append(SPARSE)
    body.output.add(name="output")
    body.node.append(helper.make_node("Identity", ["outer"], ["output", ""]))
    names = ("outer", "initializer", "sparse", "output", "")
    outer = [helper.make_node("Constant", [], [name], value_int=1) for name in names if name]
    choose = helper.make_node("If", ["c"], ["Y"], then_branch=body, else_branch=body)
    main, inner, _ = scopes(helper.make_model(helper.make_graph([*outer, choose], "g", [], [])))
    assert [inner.home(name) for name in names] == [main, inner, inner, inner, None]
    assert [inner.constant(name) for name in names] == [1, 2, None, None, None]
    assert [main.constant(name) for name in names[:-1]] == [1, 1, 1, 1]
    held = main.bodies[4]
    main.replace({0: [], 1: [], 2: [*outer[:2], outer[2]]})
    assert (main.bodies, main.nodes) == ({4: held}, list(main.container.node))
    main.replace({0: []})
    assert (main.bodies, main.nodes[3].op_type) == ({3: held}, "If")


def test_a_grid_of_constants_is_folded_in_branches_too() -> None:
    model = parsed("""g (float[1,3,4,4] X, bool c) => (float[1,3,2,2] Y) {
            theta = Constant <value = float[1,2,3] {0.9, 0.1, 0.0, -0.1, 0.9, 0.2}> ()
            size = Constant <value_ints = [1, 3, 2, 2]> () grid = AffineGrid (theta, size)
            Y = If (c) <then_branch = t () => (float[1,3,2,2] T) { T = GridSample (X, grid) },
                        else_branch = e () => (float[1,3,2,2] E) { E = GridSample <mode = "cubic"> (X, grid) }> }""")
    patched = ogs.patch_model(model, target="primitives")
    assert "Floor" not in {node.op_type for scope in scopes(patched) for node in scope}
    for c in (True, False):
        assert_answers(model, X=X[:1, :, :, :4], c=np.array(c))


def affine(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A model of an AffineGrid of ``theta`` and what ``nodes`` make of ``size``."""
    model = parsed("g (float[1,2,3] theta) => (float[a,b,c,d] Y) { Y = AffineGrid (theta, size) }")
    model.graph.node.extend([*nodes, model.graph.node.pop()])
    return model


SIZE = numpy_helper.from_array(np.array([1, 1, 3, 5]), "size")


def test_a_constant_in_the_domain_ai_onnx_is_one() -> None:
    model = affine(helper.make_node("Constant", [], ["size"], domain="ai.onnx", value=SIZE))
    assert "size" in ogs.inspect_model(model)[0].constants  # no node has to split it
    assert_answers(model, theta=THETA)


@pytest.mark.parametrize(("ir_version", "constant"), [(3, True), (4, False)])
def test_an_initializer_that_is_an_input_is_constant_before_ir_4(
    ir_version: int, constant: bool
) -> None:
    model = affine()
    model.ir_version = ir_version
    model.graph.initializer.append(SIZE)
    model.graph.input.append(helper.make_tensor_value_info("size", TensorProto.INT64, [4]))
    assert ("size" in ogs.inspect_model(model)[0].constants) is constant
    assert_answers(model, theta=THETA)
    if not constant:
        assert_answers(model, theta=THETA, size=np.array([1, 1, 2, 2]))


def test_a_shape_that_may_be_overridden_is_not_followed() -> None:
    """From IR 4 on the initializer ``shape`` is a default: X need not have the shape that it says."""
    model = parsed("""g (float[2,60] F, int64[4] shape = {2, 3, 4, 5}, float[2,4,5,2] G) => (float[a,b,c,d] Y) {
            X = Reshape (F, shape) Y = GridSample (X, G) }""")
    assert [value.name for value in model.graph.input] == ["F", "shape", "G"]
    (record,) = ogs.inspect_model(model)
    (known,) = record.inputs["X"]
    assert known.rank == 4
    assert not any(isinstance(length, int) for length in known.shape)
    for shape in ((2, 3, 4, 5), (2, 1, 12, 5)):
        feeds = {"F": X.reshape(2, 60), "shape": np.array(shape), "G": GRID}
        assert_answers(model, ogs.grid_sample(X.reshape(shape), GRID), **feeds)


PASSED = {
    "s: tensor = int64[4] {1, 1, 3, 5}": "value: tensor = @s",
    "s = [1, 1, 3, 5]": "value_ints: ints = @s",
}


@pytest.mark.parametrize(("attribute", "constant"), PASSED.items())
def test_a_constant_that_a_function_passes_on(attribute: str, constant: str) -> None:
    model = parsed(f"""g (float[1,2,3] theta) => (float[N,H,W,R] Y) {{ Y = local.make <{attribute}> (theta) }}
        <domain: "local", opset_import: ["": 20]> make <s> (A) => (C) {{
            size = Constant <{constant}> () C = AffineGrid (A, size) }}""")
    (record,) = ogs.inspect_model(model)
    assert ("size" in record.constants, record.spatial_axes) == (False, (2,))
    assert record.ranks == {"theta": (3,), "size": (1,)}
    assert_answers(model, ogs.affine_grid(THETA, (1, 1, 3, 5)), theta=THETA)
    assert_answers(ogs.patch_model(model, target="primitives", functions=True), theta=THETA)


def test_a_constant_of_external_data_is_none(tmp_path: Path) -> None:
    tensor = TensorProto(
        name="size", data_type=TensorProto.INT64, dims=[4], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="size.bin")
    model = affine(helper.make_node("Constant", [], ["size"], value=tensor))
    (tmp_path / "size.bin").write_bytes(np.array([1, 1, 3, 5]).tobytes())
    onnx.save(model, tmp_path / "model.onnx")
    for each in (model, tmp_path / "model.onnx"):
        (record,) = ogs.inspect_model(each)
        assert (record.constants, record.types["size"]) == ({}, ("int64",))
    expected = ogs.affine_grid(THETA, (1, 1, 3, 5))  # with its external data
    np.testing.assert_allclose(
        lowered(tmp_path / "model.onnx").run(None, {"theta": THETA})[0], expected, atol=1e-6
    )


STALE = {
    "main graph": f'<ir_version: 9, opset_import: ["": 20]> {SIGNATURE} {{ Y = GridSample (X, G) }}',
    "function": f"""<ir_version: 9, opset_import: ["": 20, "local": 1]> {SIGNATURE} {{ Y = local.warp (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp (A, B) => (Y) {{ Y = GridSample (A, B) }}""",
}


@pytest.mark.parametrize("name", STALE)
def test_a_name_that_only_a_value_info_has_is_taken(name: str) -> None:
    model = parser.parse_model(STALE[name])
    for stale in ("Y_status", "Y_unguarded"):
        container = model.functions[0] if model.functions else model.graph
        container.value_info.append(helper.make_tensor_value_info(stale, TensorProto.FLOAT, [7, 7]))

    def made(**target: str) -> set[str]:
        return {
            name
            for scope in scopes(ogs.patch_model(model, **target))
            for node in scope
            for name in node.output
        }

    assert made().isdisjoint({"Y_status", "Y_unguarded"})
    taken, *_ = sorted(made(target="primitives") - {"Y"})
    container.value_info.append(helper.make_tensor_value_info(taken, TensorProto.FLOAT, None))
    assert taken not in made(target="primitives")
    assert all(name.startswith("Y") for name in made(target="primitives"))
    # Nor does an input lose its name that nothing reads.
    model.graph.input.append(helper.make_tensor_value_info("Y_status", TensorProto.FLOAT, [1]))
    answer = open_patched_file(model).run(None, FEEDS | {"Y_status": np.ones(1, np.float32)})[0]
    np.testing.assert_array_equal(answer, ogs.grid_sample(X, GRID))


_SAMPLE = 'com.microsoft.GridSample <padding_mode = "border">'
_WARP = f'<domain: "local", opset_import: ["com.microsoft": 1]> warp (X, G) => (Y) {{ Y = {_SAMPLE} (X, G) }}'
NO_ONNX = {
    "main graph": ('"com.microsoft": 1', f"Y = {_SAMPLE} (X, G)", ""),
    "function": ('"local": 1', "Y = local.warp (X, G)", _WARP),
    "function in a model that does": (
        '"": 17, "local": 1',
        "Z = local.warp (X, G) Y = Identity (Z)",
        _WARP,
    ),
}

TARGETS = {
    "ort_gridsample": open_patched_file,
    "mmcv": open_session,
    "ai.onnx": open_native,
    "primitives": open_native,
}


@pytest.mark.parametrize(("imports", "nodes", "function"), NO_ONNX.values(), ids=NO_ONNX)
def test_a_model_that_does_not_import_the_onnx_domain(
    imports: str, nodes: str, function: str
) -> None:
    model = parser.parse_model(
        f"<ir_version: 9, opset_import: [{imports}]> {SIGNATURE} {{ {nodes} }} {function}"
    )
    (record,) = ogs.inspect_model(model)
    assert (record.error, record.native) == (None, True), record.reason
    expected = ogs.grid_sample(X, GRID, padding_mode="border")
    for (target, open_model), opset in itertools.product(TARGETS.items(), (None, 20)):
        patched = ogs.patch_model(model, target=target, opset=opset)
        onnx.checker.check_model(patched)
        with about((target, opset)):
            np.testing.assert_allclose(
                open_model(patched).run(None, FEEDS)[0], expected, rtol=1e-5, atol=1e-4
            )


def test_onnx_nodes_without_an_import_are_what_onnxruntime_takes_them_for() -> None:
    """The checker of onnx refuses such a model; onnxruntime reads it in its newest opset."""
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["com.microsoft": 1]> {SIGNATURE} {{
            A = Relu (X) B = com.microsoft.GridSample (A, G) Y = GridSample (B, G) }}""")
    [expected] = open_native(model).run(None, FEEDS)
    np.testing.assert_allclose(
        open_session(model).run(None, FEEDS)[0], expected, rtol=1e-5, atol=1e-4
    )


def test_a_size_of_unknown_rank() -> None:
    model = parsed("""g (float[1,2,3] theta, int64[] numbers, int64[] shape) => (float[a,b,c,d] Y) {
        size = Reshape (numbers, shape) Y = AffineGrid (theta, size) }""")
    (record,) = ogs.inspect_model(model)
    assert (record.ranks["size"], record.spatial_axes, record.native) == ((), (2,), True), (
        record.reason
    )
    expected = ogs.affine_grid(THETA, (1, 1, 3, 5))
    assert_answers(
        model, expected, theta=THETA, numbers=np.array([1, 1, 3, 5]), shape=np.array([4])
    )


def test_all_names_are_taken_or_none() -> None:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE}
        <float[1] initializer = {{1}}, float[1] valued> {{ Y = local.f (X, G) }}
        <domain: "local", opset_import: ["": 20]> f (A, B) => (D) {{ D = GridSample (A, B) }}""")
    model.graph.sparse_initializer.append(SPARSE)
    model.graph.node[0].name = "node"
    names = Names(model)
    for taken in ("X", "c", "Y", "initializer", "valued", "sparse", "node", "A", "D"):
        assert names.new(taken) == f"{taken}_2"
    assert not names.take_all(["free", "X"])
    assert names.take_all(["free", "other"])
    assert not names.take_all(["other", "C"])
    assert (names.new("C"), names.new("C"), names.new("free")) == ("C", "C_2", "free_2")


def test_the_opset_of_a_model() -> None:
    for imports, opset in (
        ('"local": 3, "": 20', 20),
        ('"local": 3, "ai.onnx": 17', 17),
        ('"local": 3', 0),
        ("", 0),
    ):
        model = parser.parse_model(
            f"<ir_version: 9, opset_import: [{imports}]> g (float X) => (float Y) {{ }}"
        )
        assert opset_of(model) == opset
        assert scopes(model)[0].opsets.get("", 0) == (opset or (UNSTATED_OPSET if imports else 0))
