"""Names and constants of a graph: what a name means in its scope, and which names are free."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import ort_gridsample as ogs
from ort_gridsample.graph.new_names import Names
from ort_gridsample.graph.scope import UNSTATED_OPSET, Scope, opset_of, scopes_of
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, SPARSE_TENSOR, X, all_nodes
from support.models import parsed
from support.paths import Open, open_native, open_patched_file, open_session

THETA = np.array([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2]]], np.float32)

#: A constant ``size`` of 2×2, and an AffineGrid in a body with an input ``size``, of 3×5.
SHADOWED = {
    "Scan": """g (float[1,2,3] theta, int64[2,4] sizes, bool c) => (float[K,N,H,W,R] Y) {
        size = Constant <value_ints = [1, 1, 2, 2]> ()
        outer = Identity (size)
        one = Constant <value_int = 1> ()
        last, Y = Scan <
            num_scan_inputs = 1,
            body = b (int64 i, int64[4] size) => (int64 o, float[N,H,W,R] out) {
                o = Identity (i)
                out = AffineGrid (theta, size) }> (one, sizes) }""",
    "Loop": """g (float[1,2,3] theta, int64[2,4] sizes, bool c) => (float[K,N,H,W,R] Y) {
        size = Constant <value_ints = [1, 1, 2, 2]> ()
        outer = Identity (size)
        two = Constant <value_int = 2> ()
        zero = Constant <value_int = 0> ()
        first = Gather (sizes, zero)
        last, Y = Loop (two, c, first) <
            body = b (int64 i, bool on, int64[4] size)
                => (bool go, int64[4] after, float[N,H,W,R] out) {
                go = Identity (on)
                after = Identity (size)
                out = AffineGrid (theta, size) }> }""",
}


def open_lowered(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    return open_native(ogs.patch_model(model, target="primitives"))


def assert_outputs(
    model: onnx.ModelProto, expected: np.ndarray | None = None, **feeds: np.ndarray
) -> None:
    """Check a session and the lowered model. By default onnxruntime's output is expected."""
    if expected is None:
        (expected,) = open_native(model).run(None, feeds)
    for session in (open_session(model), open_lowered(model)):
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SHADOWED)
def test_input_of_a_body_shadows_an_outer_constant(name: str) -> None:
    model = parsed(SHADOWED[name])
    sizes = np.array([[1, 1, 3, 5], [1, 1, 3, 5]])
    feeds = {"theta": THETA, "sizes": sizes, "c": np.array(True)}
    assert open_session(model).run(None, feeds)[0].shape == (2, 1, 3, 5, 2)
    assert_outputs(model, **feeds)


def test_input_of_a_body_has_its_type_and_not_that_of_an_outer_value() -> None:
    model = parsed("""g (float16[N,C,H,W] X, float[N,C,H,W] Z, float[N,h,w,2] G)
        => (float[N,C,h,w] Y) {
            one = Constant <value_int = 1> ()
            true = Constant <value = bool {1}> ()
            unread = Identity (X)
            Y = Loop (one, true, Z) <
                body = b (int64 i, bool on, float[N,C,H,W] X) => (bool go, float[N,C,h,w] Q) {
                    go = Identity (on)
                    Q = GridSample (X, G) }> }""")
    (record,) = ogs.inspect_model(model)
    assert record.types["X"] == ("float32",)
    assert_outputs(model, X=X.astype(np.float16), Z=X, G=GRID)


def test_output_of_an_unknown_node_has_not_the_type_of_an_outer_value() -> None:
    model = parsed("""g (float16[N,C,H,W] X, float[N,h,w,2] G, bool c) => (Y) {
        unread = Identity (X)
        Y = If (c) <
            then_branch = t () => (T) {
                X = unknown.Op (G)
                T = GridSample (X, G) },
            else_branch = e () => (E) { E = Identity (G) }> }""")
    (record,) = ogs.inspect_model(model)
    assert record.types == {"X": (), "grid": ("float32",)}


#: Names that a body defines by itself, and "outer", which it reads from outside.
SCOPED_NAMES = ("outer", "initializer", "sparse", "output")


def main_and_body() -> tuple[Scope, Scope]:
    """Return the scope of constants 1 of these names and an If, and the scope of its branch."""
    body = helper.make_graph([], "body", [], [])
    body.initializer.append(numpy_helper.from_array(np.array(2), "initializer"))
    body.sparse_initializer.append(SPARSE_TENSOR)
    body.output.add(name="output")
    body.node.append(helper.make_node("Identity", ["outer"], ["output", ""]))
    constants = [helper.make_node("Constant", [], [name], value_int=1) for name in SCOPED_NAMES]
    choose = helper.make_node("If", ["c"], ["Y"], then_branch=body, else_branch=body)
    graph = helper.make_graph([*constants, choose], "g", [], [])
    main, branch, _ = scopes_of(helper.make_model(graph))
    return main, branch


def test_defining_scope_of_a_name_is_the_nearest() -> None:
    main, branch = main_and_body()
    defining_scopes = [branch.defining_scope(name) for name in (*SCOPED_NAMES, "")]
    assert defining_scopes == [main, branch, branch, branch, None]


def test_constant_of_a_name_is_that_of_the_nearest_scope() -> None:
    main, branch = main_and_body()
    constants = [branch.constant_value(name) for name in (*SCOPED_NAMES, "")]
    assert constants == [1, 2, None, None, None]
    assert [main.constant_value(name) for name in SCOPED_NAMES] == [1, 1, 1, 1]


def test_replacing_nodes_of_a_scope_keeps_the_bodies_of_others() -> None:
    main, _ = main_and_body()
    bodies = main.bodies[4]
    first, second, third, *_ = main.nodes
    main.replace_nodes({0: [], 1: [], 2: [first, second, third]})
    assert main.bodies == {4: bodies}
    assert main.nodes == list(main.container.node)
    main.replace_nodes({0: []})
    assert main.bodies == {3: bodies}
    assert main.nodes[3].op_type == "If"


def test_replacing_a_node_with_graphs_gives_its_new_position_their_scopes() -> None:
    main, _ = main_and_body()
    identity = helper.make_node("Identity", ["outer"], ["copy"])
    choose = main.nodes[4]
    main.replace_nodes({4: [identity, choose]})
    graphs = [attribute.g for attribute in main.container.node[5].attribute]
    assert {index: [body.container for body in main.bodies[index]] for index in main.bodies} == {
        5: graphs
    }
    assert main.readers["outer"] == {4, 5}


@pytest.mark.parametrize("new_types", [(), ("Neg",), ("Neg", "Abs", "Exp")])
def test_replacing_a_node_reads_no_other_node_again(new_types: tuple[str, ...]) -> None:
    """Opening a model replaces a few of its thousands of nodes."""
    nodes = "".join(f"v{i + 1} = Relu (v{i}) " for i in range(1000))
    (scope,) = scopes_of(parsed(f"g (float[2] v0) => (float[2] v1000) {{ {nodes} }}"))
    read_before = [*zip(scope.op_types, scope.inputs, scope.outputs, strict=True)]
    new_nodes = [helper.make_node(op_type, ["v500"], ["v501"]) for op_type in new_types]
    scope.replace_nodes({500: new_nodes})
    read_after = [*zip(scope.op_types, scope.inputs, scope.outputs, strict=True)]
    container = [(node.op_type, (*node.input,), (*node.output,)) for node in scope.container.node]
    assert read_after == container
    kept = [*read_after[:500], *read_after[500 + len(new_nodes) :]]
    for before, after in zip([*read_before[:500], *read_before[501:]], kept, strict=True):
        assert before[1] is after[1]
        assert before[2] is after[2]


def test_indices_of_operators_are_those_after_a_replacement() -> None:
    nodes = "a = Relu (x) b = other.Relu (a) c = Neg (b) y = Relu (c)"
    (scope,) = scopes_of(parsed(f"g (float[2] x) => (float[2] y) {{ {nodes} }}"))
    assert scope.indices_of(("Neg", "Relu")) == [0, 1, 2, 3]
    assert scope.indices_of(("Relu",)) == [0, 1, 3]
    assert scope.indices_of(("Abs",)) == []
    scope.replace_nodes({0: [helper.make_node("Abs", ["x"], ["a"])], 1: []})
    assert scope.indices_of(("Neg", "Relu")) == [1, 2]
    assert scope.indices_of(("Abs",)) == [0]


def test_replacing_a_node_of_a_body_updates_the_readers_around_it() -> None:
    main, branch = main_and_body()
    (index,) = main.bodies
    assert "first" not in main.readers
    new_node = helper.make_node("Identity", ["first"], ["second"])
    branch.replace_nodes({len(branch.nodes) - 1: [new_node, branch.nodes[-1]]})
    assert main.readers["first"] == {index}


def test_replacing_a_node_with_graphs_by_one_without_drops_their_scopes() -> None:
    main, _ = main_and_body()
    main.replace_nodes({4: [helper.make_node("Identity", ["outer"], ["Y"])]})
    assert main.bodies == {}


@pytest.mark.parametrize("condition", [True, False])
def test_grid_of_constants_is_folded_in_branches(condition: bool) -> None:
    model = parsed("""g (float[1,3,4,4] X, bool c) => (float[1,3,2,2] Y) {
        theta = Constant <value = float[1,2,3] {0.9, 0.1, 0.0, -0.1, 0.9, 0.2}> ()
        size = Constant <value_ints = [1, 3, 2, 2]> ()
        grid = AffineGrid (theta, size)
        Y = If (c) <
            then_branch = t () => (float[1,3,2,2] T) { T = GridSample (X, grid) },
            else_branch = e () => (float[1,3,2,2] E) {
                E = GridSample <mode = "cubic"> (X, grid) }> }""")
    lowered = ogs.patch_model(model, target="primitives")
    assert "Floor" not in {node.op_type for node in all_nodes(lowered)}
    assert_outputs(model, X=X[:1, :, :, :4], c=np.array(condition))


def affine_grid_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """Return a model of an AffineGrid of ``theta`` and ``size``, after other nodes."""
    model = parsed("g (float[1,2,3] theta) => (float[a,b,c,d] Y) { Y = AffineGrid (theta, size) }")
    model.graph.node.extend([*nodes, model.graph.node.pop()])
    return model


SIZE = numpy_helper.from_array(np.array([1, 1, 3, 5]), "size")


def test_constant_node_in_the_domain_ai_onnx_is_a_constant() -> None:
    constant = helper.make_node("Constant", [], ["size"], domain="ai.onnx", value=SIZE)
    model = affine_grid_of(constant)
    assert "size" in ogs.inspect_model(model)[0].constants
    assert_outputs(model, theta=THETA)


def affine_grid_of_default_size(ir_version: int) -> onnx.ModelProto:
    model = affine_grid_of()
    model.ir_version = ir_version
    model.graph.initializer.append(SIZE)
    model.graph.input.append(helper.make_tensor_value_info("size", TensorProto.INT64, [4]))
    return model


@pytest.mark.parametrize(("ir_version", "is_constant"), [(3, True), (4, False)])
def test_initializer_that_is_an_input_is_constant_only_before_ir_4(
    ir_version: int, is_constant: bool
) -> None:
    model = affine_grid_of_default_size(ir_version)
    assert ("size" in ogs.inspect_model(model)[0].constants) is is_constant
    assert_outputs(model, theta=THETA)


def test_initializer_that_is_an_input_can_be_fed_from_ir_4_on() -> None:
    model = affine_grid_of_default_size(4)
    assert_outputs(model, theta=THETA, size=np.array([1, 1, 2, 2]))


MODEL_OF_DEFAULT_SHAPE = parsed("""
    g (float[2,60] F, int64[4] shape = {2, 3, 4, 5}, float[2,4,5,2] G) => (float[a,b,c,d] Y) {
        X = Reshape (F, shape)
        Y = GridSample (X, G) }""")


def test_lengths_from_a_default_shape_are_unknown() -> None:
    assert [value.name for value in MODEL_OF_DEFAULT_SHAPE.graph.input] == ["F", "shape", "G"]
    (record,) = ogs.inspect_model(MODEL_OF_DEFAULT_SHAPE)
    (value,) = record.inputs["X"]
    assert value.rank == 4
    assert not any(isinstance(length, int) for length in value.shape)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 12, 5)])
def test_default_shape_can_be_fed(shape: tuple[int, ...]) -> None:
    feeds = {"F": X.reshape(2, 60), "shape": np.array(shape), "G": GRID}
    expected = ogs.grid_sample(X.reshape(shape), GRID)
    assert_outputs(MODEL_OF_DEFAULT_SHAPE, expected, **feeds)


@pytest.mark.parametrize(
    ("attribute", "constant"),
    [
        ("s: tensor = int64[4] {1, 1, 3, 5}", "value: tensor = @s"),
        ("s = [1, 1, 3, 5]", "value_ints: ints = @s"),
    ],
    ids=["tensor", "integers"],
)
def test_constant_from_an_attribute_of_a_function_has_a_known_shape(
    attribute: str, constant: str
) -> None:
    model = parsed(f"""g (float[1,2,3] theta) => (float[N,H,W,R] Y) {{
            Y = local.make <{attribute}> (theta) }}
        <domain: "local", opset_import: ["": 20]> make <s> (A) => (C) {{
            size = Constant <{constant}> ()
            C = AffineGrid (A, size) }}""")
    (record,) = ogs.inspect_model(model)
    assert "size" not in record.constants
    assert record.spatial_axes == (2,)
    assert record.ranks == {"theta": (3,), "size": (1,)}
    assert_outputs(model, ogs.affine_grid(THETA, (1, 1, 3, 5)), theta=THETA)
    assert_outputs(ogs.patch_model(model, target="primitives", functions=True), theta=THETA)


@pytest.fixture
def external_model(tmp_path: Path) -> Path:
    """The path of a model whose constant ``size`` is external data."""
    (tmp_path / "size.bin").write_bytes(np.array([1, 1, 3, 5]).tobytes())
    tensor = TensorProto(
        name="size", data_type=TensorProto.INT64, dims=[4], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="size.bin")
    model = affine_grid_of(helper.make_node("Constant", [], ["size"], value=tensor))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_constant_of_external_data_is_not_in_the_record(external_model: Path) -> None:
    model = onnx.load(external_model, load_external_data=False)
    for source in (model, external_model):
        (record,) = ogs.inspect_model(source)
        assert record.constants == {}
        assert record.types["size"] == ("int64",)


def test_constant_of_external_data_is_read_in_a_patch(external_model: Path) -> None:
    (output,) = open_lowered(external_model).run(None, {"theta": THETA})
    np.testing.assert_allclose(output, ogs.affine_grid(THETA, (1, 1, 3, 5)), atol=1e-6)


SAMPLES = {
    "main graph": f"""<ir_version: 9, opset_import: ["": 20]> {SIGNATURE} {{
        Y = GridSample (X, G) }}""",
    "function": f"""<ir_version: 9, opset_import: ["": 20, "local": 1]> {SIGNATURE} {{
            Y = local.warp (X, G) }}
        <domain: "local", opset_import: ["": 20]> warp (A, B) => (Y) {{
            Y = GridSample (A, B) }}""",
}
#: Names of values that a patch to Python ops adds.
ADDED_NAMES = ("Y_status", "Y_unguarded")


def model_with_stale_value_info(place: str) -> onnx.ModelProto:
    model = parser.parse_model(SAMPLES[place])
    container = model.functions[0] if model.functions else model.graph
    for name in ADDED_NAMES:
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, [7, 7])
        container.value_info.append(info)
    return model


def output_names(model: onnx.ModelProto) -> set[str]:
    return {name for node in all_nodes(model) for name in node.output}


@pytest.mark.parametrize("place", SAMPLES)
def test_names_in_value_info_are_not_given_to_values_of_ops(place: str) -> None:
    patched = ogs.patch_model(model_with_stale_value_info(place))
    assert output_names(patched).isdisjoint(ADDED_NAMES)


@pytest.mark.parametrize("place", SAMPLES)
def test_names_in_value_info_are_not_given_to_values_of_primitives(place: str) -> None:
    model = model_with_stale_value_info(place)
    names = output_names(ogs.patch_model(model, target="primitives"))
    taken = min(names - {"Y"})
    container = model.functions[0] if model.functions else model.graph
    container.value_info.append(helper.make_tensor_value_info(taken, TensorProto.FLOAT, None))
    other_names = output_names(ogs.patch_model(model, target="primitives"))
    assert taken not in other_names
    assert all(name.startswith("Y") for name in other_names)


@pytest.mark.parametrize("place", SAMPLES)
def test_unread_input_keeps_its_name(place: str) -> None:
    model = model_with_stale_value_info(place)
    model.graph.input.append(helper.make_tensor_value_info("Y_status", TensorProto.FLOAT, [1]))
    feeds = FEEDS | {"Y_status": np.ones(1, np.float32)}
    (output,) = open_patched_file(model).run(None, feeds)
    np.testing.assert_array_equal(output, ogs.grid_sample(X, GRID))


_SAMPLE = 'Y = com.microsoft.GridSample <padding_mode = "border"> (X, G)'
_WARP = f"""<domain: "local", opset_import: ["com.microsoft": 1]>
    warp (X, G) => (Y) {{ {_SAMPLE} }}"""
#: Imports, nodes and a function, of which the main graph or the function lacks ONNX's domain.
WITHOUT_ONNX_IMPORT = {
    "main graph": ('"com.microsoft": 1', _SAMPLE, ""),
    "main graph with a function": ('"local": 1', "Y = local.warp (X, G)", _WARP),
    "function": (
        '"": 17, "local": 1',
        "Z = local.warp (X, G) Y = Identity (Z)",
        _WARP,
    ),
}
every_model_without_import = pytest.mark.parametrize(
    ("imports", "nodes", "function"), WITHOUT_ONNX_IMPORT.values(), ids=WITHOUT_ONNX_IMPORT
)


def model_of_imports(imports: str, nodes: str, function: str) -> onnx.ModelProto:
    header = f"<ir_version: 9, opset_import: [{imports}]>"
    return parser.parse_model(f"{header} {SIGNATURE} {{ {nodes} }} {function}")


@every_model_without_import
def test_sample_without_an_import_of_onnx_is_native(
    imports: str, nodes: str, function: str
) -> None:
    (record,) = ogs.inspect_model(model_of_imports(imports, nodes, function))
    assert (record.error, record.native) == (None, True), record.reason


@pytest.mark.parametrize("opset", [None, 20])
@pytest.mark.parametrize(
    ("target", "open_model"),
    [
        ("ort_gridsample", open_patched_file),
        ("mmcv", open_session),
        ("ai.onnx", open_native),
        ("primitives", open_native),
    ],
)
@every_model_without_import
def test_sample_without_an_import_of_onnx_can_be_patched(
    imports: str, nodes: str, function: str, target: str, open_model: Open, opset: int | None
) -> None:
    model = model_of_imports(imports, nodes, function)
    patched = ogs.patch_model(model, target=target, opset=opset)
    onnx.checker.check_model(patched)
    (output,) = open_model(patched).run(None, FEEDS)
    expected = ogs.grid_sample(X, GRID, padding_mode="border")
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-4)


def test_onnx_nodes_without_an_import_run_like_in_onnxruntime() -> None:
    """The checker of onnx refuses such a model. To onnxruntime it has the newest opset."""
    header = '<ir_version: 9, opset_import: ["com.microsoft": 1]>'
    model = parser.parse_model(f"""{header} {SIGNATURE} {{
        A = Relu (X)
        B = com.microsoft.GridSample (A, G)
        Y = GridSample (B, G) }}""")
    (expected,) = open_native(model).run(None, FEEDS)
    (output,) = open_session(model).run(None, FEEDS)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-4)


def test_affine_grid_of_a_size_of_unknown_rank_runs() -> None:
    model = parsed("""g (float[1,2,3] theta, int64[] numbers, int64[] shape)
        => (float[a,b,c,d] Y) {
            size = Reshape (numbers, shape)
            Y = AffineGrid (theta, size) }""")
    (record,) = ogs.inspect_model(model)
    assert record.ranks["size"] == ()
    assert record.spatial_axes == (2,)
    assert record.native is True, record.reason
    feeds = {"theta": THETA, "numbers": np.array([1, 1, 3, 5]), "shape": np.array([4])}
    assert_outputs(model, ogs.affine_grid(THETA, (1, 1, 3, 5)), **feeds)


def names_of_a_model() -> Names:
    model = parser.parse_model(f"""{HEADER} {SIGNATURE}
        <float[1] initializer = {{1}}, float[1] valued> {{ Y = local.f (X, G) }}
        <domain: "local", opset_import: ["": 20]> f (A, B) => (D) {{ D = GridSample (A, B) }}""")
    model.graph.sparse_initializer.append(SPARSE_TENSOR)
    model.graph.node[0].name = "node"
    return Names(model)


@pytest.mark.parametrize(
    "name", ["X", "c", "Y", "initializer", "valued", "sparse", "node", "A", "D"]
)
def test_new_name_is_not_one_of_the_model(name: str) -> None:
    assert names_of_a_model().new(name) == f"{name}_2"


def test_names_are_taken_together_or_not_at_all() -> None:
    names = names_of_a_model()
    assert not names.take_all(["free", "X"])
    assert names.take_all(["free", "other"])
    assert not names.take_all(["other", "C"])
    assert (names.new("C"), names.new("C"), names.new("free")) == ("C", "C_2", "free_2")


@pytest.mark.parametrize(
    ("imports", "opset", "opset_of_nodes"),
    [
        ('"local": 3, "": 20', 20, 20),
        ('"local": 3, "ai.onnx": 17', 17, 17),
        ('"local": 3', UNSTATED_OPSET, UNSTATED_OPSET),
        ("", 0, 0),
    ],
)
def test_opset_of_a_model(imports: str, opset: int, opset_of_nodes: int) -> None:
    header = f"<ir_version: 9, opset_import: [{imports}]>"
    model = parser.parse_model(f"{header} g (float X) => (float Y) {{ }}")
    assert opset_of(model) == opset
    assert scopes_of(model)[0].opsets.get("", 0) == opset_of_nodes
