"""The ops of machine code: the whole matrix against the oracle, their sentences, and what may not disturb them."""

from __future__ import annotations

import itertools
import pickle
import threading
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import ort_gridsample as ogs
from cases import (
    ATTRIBUTES,
    SESSION_TYPES,
    Attributes,
    Case,
    by_types_and_rank,
    generator,
    is_defined,
    matrix,
    positions,
)
from compare import about, assert_identical, assert_matches
from models import affine_grid_model, grid_sample_model, make_model
from ort_gridsample import spec, versions
from ort_gridsample.core.memory import available
from ort_gridsample.runtime import choice
from ort_gridsample.runtime.compiled_ops import c_api, kernels
from paths import (
    open_compiled,
    open_compiled_file,
    open_patched_file,
    open_session,
    quiet_options,
    run,
    running_on,
)
from processes import run as run_process
from processes import start as start_process

pytestmark = pytest.mark.skipif(bool(choice.ops.why_not()), reason=f"no compiled ops: {choice.ops.why_not()}")

TYPES = tuple(name for name in SESSION_TYPES if name != "str")
MATRIX = by_types_and_rank(matrix(TYPES))


@cache
def answers(X_type: str, grid_type: str, rank: int) -> dict[Attributes, np.ndarray]:
    """What one model answers that holds a node for each mode, padding and alignment."""
    X, grid = Case(X_type, grid_type, rank, ATTRIBUTES[0]).X, positions(grid_type, rank)
    session = open_compiled(grid_sample_model(X_type, grid_type, rank, ATTRIBUTES))
    assert {placement.runs_on for placement in session.replaced} == {"compiled op"}
    return dict(zip(ATTRIBUTES, run(session, X.dtype, X, grid), strict=True))


@pytest.mark.parametrize("group", MATRIX)
def test_matches_the_oracle(group: str) -> None:
    for case in MATRIX[group]:
        Y = answers(case.X_type, case.grid_type, case.rank)[case.attributes]
        with about(case):
            assert_matches(Y, case.expected, case.grid.dtype, case.attributes.mode, case.attributes.padding_mode)


@pytest.mark.parametrize(
    ("X_type", "grid_type"), [("float32", "float32"), ("uint8", "float16"), ("bfloat16", "float64")]
)
def test_the_file_answers_as_the_session(X_type: str, grid_type: str) -> None:
    X, grid = Case(X_type, grid_type, 2, ATTRIBUTES[0]).X, positions(grid_type, 2)
    found = run(open_compiled_file(grid_sample_model(X_type, grid_type, 2, ATTRIBUTES)), X.dtype, X, grid)
    for Y, expected in zip(found, answers(X_type, grid_type, 2).values(), strict=True):
        assert_identical(Y, expected)


@pytest.mark.parametrize("theta_type", spec.FLOATS)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(
    "size", [(2, 3, 4, 5), (2, 1, 3, 4, 5), (1, 1, 3, 5000), (1, 1, 300, 1), (2, 1, 0, 4), (0, 1, 2, 3)]
)
def test_affine_grid_is_the_functions(theta_type: str, aligned: bool, size: tuple[int, ...]) -> None:
    axes = len(size) - 2
    theta = generator("theta", axes).normal(size=(size[0], axes, axes + 1))
    theta = theta.astype(np.float32 if theta_type == "bfloat16" else theta_type)
    session = open_compiled(affine_grid_model(theta_type, axes, aligned))
    (grid,) = session.run(None, {"theta": theta, "size": np.array(size, np.int64)})
    if theta_type == "bfloat16":
        import ml_dtypes

        theta = theta.astype(ml_dtypes.bfloat16)
    assert_identical(grid, ogs.affine_grid(theta, size, aligned).astype(grid.dtype))


@pytest.mark.parametrize("size", [(1, 1, 1451, 1453), (2, 1, 73, 101, 103)])
@pytest.mark.parametrize("theta_type", ["float32", "float64"])
def test_a_large_affine_grid_is_written_past_the_caches(theta_type: str, size: tuple[int, ...]) -> None:
    from ort_gridsample.core.lanes import PASSED_BYTES

    theta = generator("theta", len(size) - 2).normal(size=(size[0], len(size) - 2, len(size) - 1)).astype(theta_type)
    session = open_compiled(affine_grid_model(theta_type, len(size) - 2, False))
    (grid,) = session.run(None, {"theta": theta, "size": np.array(size, np.int64)})
    assert grid.nbytes >= PASSED_BYTES
    assert_identical(grid, ogs.affine_grid(theta, size))


#: Large enough for many stretches, blocks and threads, in odd sizes.
LARGE = {
    "two axes": ((2, 3, 150, 131), (2, 211, 163, 2)),
    "many channels": ((1, 70, 31, 33), (1, 41, 37, 2)),
    "few positions of many channels": ((3, 129, 40, 40), (3, 5, 1, 2)),
    "one stretch of very many channels": ((1, 8200, 8, 9), (1, 8, 8, 2)),
    "three axes": ((1, 5, 20, 21, 22), (1, 23, 24, 25, 3)),
    "one axis": ((2, 3, 5000), (2, 70001, 1)),
}


@cache
def large(X_type: str, mode: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[np.ndarray, ...]:
    """X, grid, and what the NumPy core makes of them."""
    rng = generator("large", shapes)
    X = (rng.normal(size=shapes[0]) * 60).astype(X_type)
    grid = rng.uniform(-1.2, 1.2, shapes[1]).astype("float32")
    before = ogs.get_core()
    ogs.set_core("numpy")
    try:
        return X, grid, ogs.grid_sample(X, grid, mode, "reflection")
    finally:
        ogs.set_core(before)


@pytest.mark.parametrize("mode", spec.MODES)
@pytest.mark.parametrize("shapes", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("X_type", ["float32", "float64", "float16", "uint8"])
@pytest.mark.parametrize(("threads", "cpus"), [(1, 1), (3, 2), (3, 64)])
def test_large_inputs_answer_as_the_numpy_core(
    X_type: str,
    mode: str,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    threads: int,
    cpus: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However the work is cut: threads lay X out for themselves where there is enough of it for each of the CPUs."""
    monkeypatch.setattr("ort_gridsample.core.ways.available_cpus", lambda: cpus)
    X, grid, expected = large(X_type, mode, shapes)
    options = quiet_options()
    options.intra_op_num_threads = threads
    model = grid_sample_model(X_type, "float32", X.ndim - 2, [Attributes(mode, "reflection")])
    (Y,) = ogs.InferenceSession(model, options).run(None, {"X": X, "grid": grid})
    if mode == "nearest":
        assert_identical(Y, expected)
    else:
        tolerance = {"float64": 1e-11, "float16": 0.13, "uint8": 1}.get(X_type, 1e-3)
        np.testing.assert_allclose(Y.astype(float), expected.astype(float), rtol=0, atol=tolerance)


def test_no_position_and_no_pixel() -> None:
    for padding_mode, (X, grid) in itertools.product(
        spec.PADDING_MODES,
        [
            ((0, 2, 3, 3), (0, 4, 4, 2)),
            ((2, 0, 3, 3), (2, 4, 4, 2)),
            ((1, 2, 3, 3), (1, 0, 4, 2)),
            ((1, 2, 0, 3), (1, 0, 4, 2)),
        ],
    ):
        session = open_compiled(grid_sample_model("float32", "float32", 2, [Attributes("linear", padding_mode)]))
        (Y,) = session.run(None, {"X": np.ones(X, np.float32), "grid": np.zeros(grid, np.float32)})
        assert Y.shape == (*X[:2], *grid[1:-1])
    session = open_compiled(grid_sample_model("float32", "float32", 2, [Attributes("linear", "zeros")]))
    (Y,) = session.run(None, {"X": np.ones((1, 2, 0, 3), np.float32), "grid": np.zeros((1, 2, 2, 2), np.float32)})
    np.testing.assert_array_equal(Y, np.zeros((1, 2, 2, 2)))


def loose(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the shapes that onnxruntime would check before the op does."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    return model


#: What each wrong pair of inputs makes the op say, but for the node.
WRONG_GRIDS = {
    ((1, 2, 5, 6), (1, 3, 4, 3)): "reflection",
    ((1, 2, 5, 6), (1, 3, 2)): "reflection",
    ((1, 2, 5, 6), (2, 3, 4, 2)): "reflection",
    ((1, 2, 5), (1, 3, 4, 2)): "reflection",
    ((1, 2), (1, 3)): "reflection",
    ((), ()): "zeros",
    ((1, 2, 0, 6), (1, 3, 4, 2)): "border",
    ((1, 2, 5, 6, 7), (1, 3, 4, 3, 12345678901)): "zeros",
}


@pytest.mark.parametrize(("shapes", "padding_mode"), WRONG_GRIDS.items(), ids=str)
def test_a_wrong_grid_is_the_functions_sentence(shapes: tuple, padding_mode: str) -> None:
    X, grid = (np.broadcast_to(np.float32(0), shape) for shape in shapes)
    if grid.size > 1 << 20:  # as a claim: nobody makes it
        grid = np.zeros((*grid.shape[:-1], 4), np.float32)
    model = loose(grid_sample_model("float32", "float32", 2, [Attributes("linear", padding_mode)]))
    where = "GridSample node 'sample0'"
    with pytest.raises(ogs.GridSampleError) as expected:
        ogs.grid_sample(X, grid, "linear", padding_mode, where=where)
    session = open_compiled(model)
    for _ in range(2):  # the session goes on
        with pytest.raises(ogs.GridSampleError) as found:
            session.run(None, {"X": X, "grid": grid})
        assert found.value.args == expected.value.args
    with pytest.raises(Exception, match="GridSample node") as plain:
        open_compiled_file(model).run(None, {"X": X, "grid": grid})
    assert str(expected.value) in str(plain.value)
    good = np.ones((1, 2, 3, 3), np.float32), np.zeros((1, 2, 2, 2), np.float32)
    assert session.run(None, dict(zip(("X", "grid"), good, strict=True)))[0].shape == (1, 2, 2, 2)


def test_a_node_that_says_no_label_goes_by_its_own_name() -> None:
    """As one that was written by hand, or copied by a tool that knows only its inputs."""
    model = loose(grid_sample_model("float32", "float32", 2, [Attributes("linear")]))
    patched = ogs.patch_model(model, target="compiled")
    (node,) = (node for node in patched.graph.node if node.domain)
    kept = [attribute for attribute in node.attribute if attribute.name != "node"]
    assert len(kept) < len(node.attribute)
    del node.attribute[:]
    node.attribute.extend(kept)
    node.name = "by hand"
    session = onnxruntime.InferenceSession(patched.SerializeToString(), ogs.register())
    with pytest.raises(Exception, match="GridSample node 'by hand': grid is of shape"):
        session.run(None, {"X": np.ones((1, 2, 3, 3), np.float32), "grid": np.zeros((1, 2, 2, 3), np.float32)})


WRONG_SIZES = [
    ((1, 2, 4), (1, 1, 2, 3)),
    ((2, 3), (1, 1, 2, 3)),
    ((1, 2, 3), (1, 1, 2, 3, 4)),
    ((1, 3, 4), (1, 1, 2, 3)),
    ((2, 2, 3), (1, 1, 2, 3)),
    ((1, 2, 3), (1, 1, -2, 3)),
    ((1, 3, 4), (1, 1, 2, -(2**63), 3)),
    ((1, 2, 3), ((1, 1), (2, 3))),
    ((1, 2, 3), 5),
]


@pytest.mark.parametrize(("theta", "size"), WRONG_SIZES, ids=str)
def test_a_wrong_size_is_the_functions_sentence(theta: tuple[int, ...], size: object) -> None:
    where, feeds = "AffineGrid node '(grid)'", {"theta": np.zeros(theta, np.float32), "size": np.array(size, np.int64)}
    with pytest.raises(ogs.GridSampleError) as expected:
        ogs.affine_grid(*feeds.values(), where=where)
    with pytest.raises(ogs.GridSampleError) as found:
        open_compiled(loose(affine_grid_model("float32", 2, False))).run(None, feeds)
    assert found.value.args == expected.value.args


def test_sizes_that_no_machine_has_are_refused() -> None:
    session = open_compiled(loose(affine_grid_model("float32", 2, False)))
    theta = np.zeros((1, 2, 3), np.float32)
    with pytest.raises(ogs.GridSampleError, match="fewer bytes than an address can reach"):
        session.run(None, {"theta": theta, "size": np.array([1, 1, 2**40, 2**40])})
    with pytest.raises(Exception, match="allocate"):  # in onnxruntime's own words
        session.run(None, {"theta": theta, "size": np.array([1, 1, 2**21, 2**21])})
    session = open_compiled(loose(grid_sample_model("float32", "float32", 1, [Attributes()])))
    for channels, sentence in ((2**60, "fewer bytes than an address can reach"), (2**45, "allocate")):
        X = np.zeros((1, channels, 0), np.float32)  # of no pixel
        with pytest.raises(Exception, match=sentence):
            session.run(None, {"X": X, "grid": np.zeros((1, 2**10, 1), np.float32)})
    assert session.run(None, {"X": np.ones((1, 1, 3), np.float32), "grid": np.zeros((1, 2, 1), np.float32)})


def test_shapes_are_inferred() -> None:
    def shape(X: list, grid: list) -> list:
        node = helper.make_node("GridSample", ["X", "grid"], ["Y"])
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("X", X), ("grid", grid), ("Y", None))
        ]
        graph = helper.make_graph([node], "g", ends[:2], ends[2:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        found = [output.shape for output in open_compiled(model).get_outputs()]
        native = onnxruntime.InferenceSession(model.SerializeToString()).get_outputs()
        assert found == [output.shape for output in native]
        return found[0]

    assert shape(["N", "C", "H", "W"], ["N", "h", "w", 2]) == ["N", "C", "h", "w"]
    assert shape([1, 3, "H", "W"], [1, 7, 8, 2]) == [1, 3, 7, 8]


def test_in_functions_and_branches() -> None:
    node = helper.make_node("GridSample", ["X", "grid"], ["T"], mode="cubic")
    function = helper.make_function(
        "d", "F", ["X", "grid"], ["Y"], [node, helper.make_node("Abs", ["T"], ["Y"])], [helper.make_opsetid("", 20)]
    )

    def branch(mode: str) -> onnx.GraphProto:
        sample = helper.make_node("GridSample", ["X", "grid"], [mode], mode=mode)
        return helper.make_graph([sample], mode, [], [helper.make_empty_tensor_value_info(mode)])

    nodes = [
        helper.make_node("F", ["X", "grid"], ["Y0"], domain="d"),
        helper.make_node("If", ["which"], ["Y1"], then_branch=branch("nearest"), else_branch=branch("linear")),
    ]
    values = {
        "X": (TensorProto.FLOAT, [1, 2, 5, 6]),
        "grid": (TensorProto.FLOAT, [1, 3, 4, 2]),
        "which": (TensorProto.BOOL, []),
    }
    inputs = [helper.make_tensor_value_info(name, *value) for name, value in values.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("Y0", "Y1")]
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("d", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=9)
    rng = generator("branches")
    X, grid = rng.normal(size=(1, 2, 5, 6)).astype("f"), rng.uniform(-1, 1, (1, 3, 4, 2)).astype("f")
    for session in (open_compiled(model), open_compiled_file(model)):
        for which, mode in ((True, "nearest"), (False, "linear")):
            Y0, Y1 = session.run(None, {"X": X, "grid": grid, "which": np.array(which)})
            np.testing.assert_allclose(Y0, abs(ogs.grid_sample(X, grid, "cubic")), rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(Y1, ogs.grid_sample(X, grid, mode), rtol=1e-5, atol=1e-6)


def test_a_kernel_that_cannot_be_made_is_an_exception() -> None:
    """Such as one for a mode that somebody wrote into a file by hand."""
    model = ogs.patch_model(grid_sample_model("float32", "float32", 2, [Attributes()]), target="compiled")
    (node,) = (node for node in model.graph.node if node.domain)
    node.attribute.append(helper.make_attribute("mode", "bogus"))
    for attribute in [attribute for attribute in node.attribute[:-1] if attribute.name == "mode"]:
        node.attribute.remove(attribute)
    with pytest.raises(Exception, match="GridSample node 'sample0': mode is 'bogus', expected"):
        onnxruntime.InferenceSession(model.SerializeToString(), ogs.register())


def test_there_and_back() -> None:
    model = grid_sample_model("float16", "float16", 2, ATTRIBUTES)
    compiled = ogs.patch_model(model, target="compiled")
    assert {node.domain for node in compiled.graph.node} == {"ai.onnx.contrib"}
    assert ogs.patch_model(compiled, target="compiled") == compiled
    python = ogs.patch_model(compiled)
    assert ogs.patch_model(model).graph.node == python.graph.node
    assert ogs.patch_model(python, target="compiled").graph.node == compiled.graph.node
    back = ogs.patch_model(compiled, target="ai.onnx")
    assert back.graph == ogs.patch_model(python, target="ai.onnx").graph
    assert back.opset_import == model.opset_import


def test_strings_stay_with_the_python_op() -> None:
    model = grid_sample_model("str", "float32", 2, [Attributes("nearest")])
    (placement,) = open_compiled(model).replaced
    assert (placement.runs_on, placement.reason) == ("Python op", "X is of type str")
    (node,) = ogs.patch_model(model, target="compiled").graph.node
    assert node.op_type == "GridSample"


def test_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def on(X_type: str = "float32", **arguments: object) -> tuple[str, str]:
        (placement,) = ogs.InferenceSession(grid_sample_model(X_type, X_type, 2, [Attributes()]), **arguments).replaced
        return placement.runs_on, placement.reason

    assert ogs.get_ops() == "compiled"
    assert on() == on(nodes="all") == on("bfloat16", nodes="unsupported") == ("compiled op", "")
    assert on(nodes="unsupported") == ("onnxruntime", "onnxruntime runs it, and nodes is 'unsupported'")
    assert on("float16", nodes=lambda record: False)[0] == "onnxruntime"
    assert on(nodes=lambda record: record.native)[0] == "compiled op"
    with running_on("python"):
        assert ogs.get_ops() == "python"
        assert on() == ("onnxruntime", "Python ops were asked for")
        assert on("bfloat16") == on(nodes="all") == ("Python op", "Python ops were asked for")
    monkeypatch.setenv("ORT_GRIDSAMPLE_OPS", "python")
    assert ogs.get_ops() == "python"
    monkeypatch.setenv("ORT_GRIDSAMPLE_OPS", "bogus")
    with pytest.raises(ValueError, match="ORT_GRIDSAMPLE_OPS is 'bogus', expected one of 'auto'"):
        ogs.get_ops()
    with pytest.raises(ValueError, match="the choice of ops is 'jit'"):
        ogs.set_ops("jit")  # type: ignore[arg-type]
    with pytest.raises(ogs.GridSampleError, match="nodes is 'some', expected"):
        on(nodes="some")


def test_where_there_are_none_the_python_op_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.ops, "why_not", lambda: "it is Tuesday")
    model = grid_sample_model("bfloat16", "float32", 2, [Attributes()])
    (placement,) = ogs.InferenceSession(model).replaced
    assert (placement.runs_on, placement.reason) == ("Python op", "it is Tuesday")
    with pytest.raises(ImportError, match="compiled ops cannot be had: it is Tuesday"):
        ogs.set_ops("compiled")
    assert ogs.get_ops() == "python"


def test_what_cannot_be_compiled_runs_on_the_python_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(kernels, "grid_sample_kernel", fails)
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    for nodes, runs_on in ((None, "onnxruntime"), ("all", "Python op")):
        session = ogs.InferenceSession(model, nodes=nodes)
        (placement,) = session.replaced
        assert (placement.runs_on, placement.reason) == (runs_on, "compiling it failed: no compiler today")
        feeds = {"X": np.ones((1, 1, 2, 2), np.float32), "grid": np.zeros((1, 2, 2, 2), np.float32)}
        assert session.run(None, feeds)[0].shape == (1, 1, 2, 2)


def test_the_oldest_release_has_every_function() -> None:
    assert versions.OLDEST["onnxruntime"] == f"1.{c_api.VERSION}"
    assert all(function.since <= c_api.VERSION for function in c_api.FUNCTIONS.values())


@pytest.mark.parametrize("is_there", [True, False])
def test_shapes_are_read_with_and_without_the_function_that_newer_releases_have(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of X and of grids, of theta and size, and of what the fused op takes."""
    if not is_there:
        monkeypatch.setattr(c_api.Api, "shape_of", 0)
    elif not versions.at_least(onnxruntime.__version__, "1.25"):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no such function")
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[N, 3, H, W] X, float[N, 2, 3] theta, int64[4] size)
            => (float[N, 3, h, w] Y, float[N, h, w, 2] grid, float[N, 3, h, w] Z) {
            grid = AffineGrid (theta, size)
            Y = GridSample (X, grid)
            alone = AffineGrid <align_corners = 1> (theta, size)
            Z = GridSample <mode = "cubic"> (X, alone)
        }"""
    )
    rng = np.random.default_rng(0)
    X, theta = rng.standard_normal((2, 3, 7, 5), np.float32), rng.uniform(-1, 1, (2, 2, 3)).astype(np.float32)
    session = open_compiled(model)
    assert {placement.runs_on for placement in session.replaced} == {"compiled op"}
    Y, grid, Z = session.run(None, {"X": X, "theta": theta, "size": np.array([2, 3, 4, 6])})
    expected = ogs.affine_grid(theta, (2, 3, 4, 6))
    np.testing.assert_allclose(grid, expected, atol=1e-6)
    np.testing.assert_allclose(Y, ogs.grid_sample(X, expected), atol=1e-5)
    aligned = ogs.affine_grid(theta, (2, 3, 4, 6), align_corners=True)
    np.testing.assert_allclose(Z, ogs.grid_sample(X, aligned, "cubic"), atol=1e-5)
    with pytest.raises(Exception, match="size is"):
        session.run(None, {"X": X, "theta": theta, "size": np.array([3, 3, 4, 6])})


def test_files_of_python_ops_become_compiled_ones() -> None:
    model = grid_sample_model("float16", "float32", 2, [Attributes()])
    session = ogs.InferenceSession(ogs.patch_model(model))
    assert [placement.runs_on for placement in session.replaced] == ["compiled op"]
    with running_on("python"):
        session = ogs.InferenceSession(ogs.patch_model(model, target="compiled"))
    assert [placement.runs_on for placement in session.replaced] == ["Python op"]
    X, grid = Case("float16", "float32", 2, ATTRIBUTES[0]).X, positions("float32", 2)
    expected = ogs.grid_sample(X, grid)
    np.testing.assert_allclose(session.run(None, {"X": X, "grid": grid})[0], expected, rtol=1e-2)


def test_pickled() -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    session = pickle.loads(pickle.dumps(open_compiled(model)))
    assert [placement.runs_on for placement in session.replaced] == ["compiled op"]


def test_options_stay_as_they_are() -> None:
    options = onnxruntime.SessionOptions()
    ogs.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]), options)
    session = ogs.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]), options)
    for each in (options, session.get_session_options()):
        with pytest.raises(Exception, match="allow_spinning"):
            each.get_session_config_entry("session.intra_op.allow_spinning")


def test_no_number_of_threads_is_written() -> None:
    (node,) = ogs.patch_model(grid_sample_model("float32", "float32", 2, [Attributes()]), target="compiled").graph.node
    assert [attribute.name for attribute in node.attribute] == ["mode", "padding_mode", "align_corners", "node"]


def test_sixteen_threads_on_one_session() -> None:
    session = open_compiled(loose(grid_sample_model("float32", "float32", 2, [Attributes("cubic", "border")])))
    rng, found, refused = generator("threads"), {}, [0] * 16
    feeds = [
        {
            "X": rng.normal(size=(1, 3, 60 + i, 50)).astype("f"),
            "grid": rng.uniform(-1, 1, (1, 100, 90 - i, 2)).astype("f"),
        }
        for i in range(16)
    ]
    wrong = {"X": feeds[0]["X"], "grid": feeds[0]["grid"][..., :1]}

    def work(i: int) -> None:
        for _ in range(5):
            found[i] = session.run(None, feeds[i])[0]
            with pytest.raises(ogs.GridSampleError):
                session.run(None, wrong)
            refused[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == [5] * 16
    for i, feed in enumerate(feeds):
        np.testing.assert_allclose(found[i], ogs.grid_sample(**feed, mode="cubic", padding_mode="border"), atol=1e-5)


#: Once a run has written its first number, a call of C keeps Python's lock until it has written its last. Both are read
#: from memory that is bound as the run's output.
HOLDS_THE_LOCK = """
import ctypes, threading, time
from numba import cfunc, types
from ort_gridsample.core.pointers import load_byte
usleep = types.ExternalFunction("usleep", types.int32(types.uint32))

@cfunc(types.int64(types.int64, types.int64))
def wait(at, milliseconds):
    while load_byte(at) == 0 and milliseconds > 0:
        usleep(1000)
        milliseconds -= 1
    return milliseconds

with_the_lock = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(wait.address)
session = make(open_compiled)
X, grid = np.full((1, 16, 64, 64), 3, np.float32), np.zeros((1, 1024, 1024, 2), np.float32)
Y = np.zeros((1, 16, 1024, 1024), np.float32)
first, last = (Y.ctypes.data + at + 3 for at in (0, Y.nbytes - 4))  # the byte of a float 3 that is not 0
binding = session.io_binding()
binding.bind_cpu_input("X", X)
binding.bind_cpu_input("grid", grid)
binding.bind_output("Y0", "cpu", 0, np.float32, Y.shape, Y.ctypes.data)
for attempt in range(50):
    Y[...] = 0
    thread = threading.Thread(target=session.run_with_iobinding, args=(binding,))
    thread.start()
    while not Y[0, 0, 0, 0]:
        time.sleep(0)
    was_under_way = not Y[0, -1, -1, -1]
    left = with_the_lock(last, 60_000)
    thread.join()
    if was_under_way:
        break
print(was_under_way, left > 0, Y.min())
"""


def test_a_run_goes_on_while_another_thread_holds_the_lock() -> None:
    assert run_process(HOLDS_THE_LOCK, "open_compiled") == ["True True 3.0"]


ENDS_WITH_SESSIONS_ALIVE = """
sessions = [make(open_compiled), make(open_compiled_file)]
for session in sessions:
    print(attempt(session, X, grid))
import builtins
builtins.kept = sessions  # which lives until the interpreter is nearly gone
"""


def test_the_interpreter_ends_with_sessions_alive() -> None:
    with start_process(ENDS_WITH_SESSIONS_ALIVE, "open_compiled") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err, out.splitlines()) == (0, "", ["(1, 2, 64, 64)"] * 2)


#: What a run takes at its peak beyond what was there before, and whether its answer is right.
PEAK = """
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024
image = np.ones((1, 64, 2048, 2048), np.float32)
line = np.linspace(-0.9, 0.9, 2048, dtype=np.float32)
grid = np.stack(np.broadcast_arrays(line, line[:, None]), -1)[None].copy()
session = make(open_model)
attempt(session, X, np.zeros((1, 64, 64, 2), np.float32))
before = status("VmRSS")
(Y,) = session.run(None, {"X": image, "grid": grid})
print(status("VmHWM") - before, bool(abs(Y[0, :, ::16, ::16] - 1).max() < 1e-5))
"""
#: MiB of scratch memory, and some for what the allocators keep.
SCRATCH = 64 + 16


@pytest.mark.skipif((available() or 1 << 40) < 8 << 30, reason="X and Y take a GiB each, in one process after another")
def test_a_large_run_takes_no_more_memory_than_natively_but_for_its_scratch() -> None:
    (compiled, right), (native, as_well) = (
        line.split() for way in ("open_compiled", "open_native") for line in run_process(PEAK, way)
    )
    assert (right, as_well) == ("True", "True")
    assert float(compiled) <= float(native) + SCRATCH


MANY_SESSIONS = """
import resource
def size():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
model = grid_sample_model("float32", "float32", 2, [Attributes()]).SerializeToString()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
patched = ogs.patch_model(model, target="compiled").SerializeToString()
ogs.register(options)
sizes = []
for i in range(10_000):
    session = onnxruntime.InferenceSession(patched, options)
    if i % 100 == 0:
        attempt(session, X, grid)
    if i % 2000 == 1999:
        sizes.append(size())
print(sizes[-1] - sizes[0] < 8)
"""


def test_ten_thousand_sessions_made_and_dropped_leave_nothing_behind() -> None:
    assert run_process(MANY_SESSIONS, "open_compiled") == ["True"]


RELOADED = """
import importlib, sys
from ort_gridsample.runtime.compiled_ops import ops
first = make(open_compiled)
importlib.reload(ops)
for name in [name for name in sys.modules if name.startswith("ort_gridsample")]:
    del sys.modules[name]
import ort_gridsample as again
from ort_gridsample.runtime.compiled_ops import ops as other
print(other is not ops, other.why_not() == "")
second = again.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]))
print([placement.runs_on for placement in second.replaced], attempt(first, X, grid), attempt(second, X, grid))
again.set_ops("python")
third = again.InferenceSession(grid_sample_model("float32", "float32", 2, [Attributes()]), nodes="all")
print([placement.runs_on for placement in third.replaced], attempt(third, X, grid))
"""


def test_reloading_adds_nothing_twice() -> None:
    assert run_process(RELOADED, "open_compiled") == [
        "True True",
        "['compiled op'] (1, 2, 64, 64) (1, 2, 64, 64)",
        "['Python op'] (1, 2, 64, 64)",
    ]


FORKED = """
import os
session = make(open_compiled)
child = os.fork()
if child == 0:
    print(attempt(make(open_compiled, "uint8", "nearest"), X.astype("u1"), grid), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(attempt(session, X, grid))
"""


def test_a_forked_child_makes_sessions_of_its_own() -> None:
    assert run_process(FORKED, "open_compiled") == ["(1, 2, 64, 64)"] * 2


#: The cache's folder becomes a file, which nobody can write into; or holds what no compiler wrote.
@pytest.mark.parametrize("folder", ["a file", "damaged"])
def test_a_useless_cache_is_slower_and_no_worse(folder: str, tmp_path) -> None:
    cache_folder = tmp_path / "cache"
    first = f"import os\nos.environ['NUMBA_CACHE_DIR'] = {str(cache_folder)!r}\n"
    script = 'print(attempt(make(open_compiled, mode="nearest"), X, grid))'
    if folder == "a file":
        cache_folder.write_text("")
    else:
        assert run_process(script, "open_compiled", first=first) == ["(1, 2, 64, 64)"]
        for file in cache_folder.rglob("*.nb*"):
            file.write_bytes(file.read_bytes()[:100])
    assert run_process(script, "open_compiled", first=first) == ["(1, 2, 64, 64)"]


COLD = """
import pathlib
from ort_gridsample.core import compilation
{before}
compiled = []
address = compilation.Function.address
def counted(self):
    if not self.is_at_hand:
        compiled.append(self)
    return address(self)
compilation.Function.address = counted
print(attempt(make(open_compiled), X, grid), len(compiled), len(list(pathlib.Path({cache!r}).rglob("*.nbc"))))
"""


def test_two_processes_compile_from_both_ends(tmp_path) -> None:
    """A helper takes some of the eight functions; without one all are compiled here, and with a full cache none."""
    before = {
        "alone": "def refused(*_, **__):\n    raise OSError\ncompilation.subprocess.Popen = refused",
        "helped": "compilation.available_cpus = lambda: 2",
    }
    counts = {}
    for name, script in before.items():
        cache = str(tmp_path / name)
        first = f"import os\nos.environ['NUMBA_CACHE_DIR'] = {cache!r}\n"
        code = COLD.format(before=script, cache=cache)
        for which in ("cold", "warm"):
            (line,) = run_process(code, "open_compiled", first=first)
            answer, counts[name, which], files = line.rsplit(maxsplit=2)
            assert (answer, files) == ("(1, 2, 64, 64)", "8"), (name, which, line)
    assert (counts["alone", "cold"], counts["alone", "warm"], counts["helped", "warm"]) == ("8", "0", "0")
    assert 1 <= int(counts["helped", "cold"]) < 8


def test_every_type_is_compiled_or_named() -> None:
    assert set(c_api.ELEMENT_TYPES) | {"str", "complex64", "complex128"} == set(spec.TYPES)
    assert all(is_defined(name, "linear") for name in c_api.ELEMENT_TYPES)


def test_the_python_op_beside_it() -> None:
    """Both kinds of ops in one process, on options of their own."""
    model = make_model(
        [helper.make_node("GridSample", ["X", "grid"], ["Y"])],
        {"X": ("float32", [1, 2, 64, 64]), "grid": ("float32", [1, 64, 64, 2])},
        {"Y": ("float32", [1, 2, 64, 64])},
        20,
    )
    feeds = {"X": np.ones((1, 2, 64, 64), "f"), "grid": np.zeros((1, 64, 64, 2), "f")}
    for opener in (open_session, open_compiled, open_patched_file, open_compiled_file):
        np.testing.assert_array_equal(opener(model).run(None, feeds)[0], np.ones((1, 2, 64, 64)))
