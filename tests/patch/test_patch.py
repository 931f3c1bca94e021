"""What a patch does to a model, and what it leaves alone."""

import json
import sys
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import ort_gridsample as ogs
from ort_gridsample.dialects.table import DOMAIN
from support.compare import refusal
from support.graphs import FEEDS, GRID, HEADER, MODELS, X, is_standard, nodes, one_node
from support.models import parsed
from support.paths import (
    OPENERS,
    needs_python_ops,
    open_native,
    open_session,
    quiet_options,
    running_on,
)
from support.processes import python

#: Module and function of others that drop nodes which nobody reads.
CLEANERS = (
    "onnxslim.slim",
    "onnxoptimizer.optimize",
    "onnxsim.simplify",
    "onnxscript.optimizer.optimize",
)


@pytest.mark.parametrize("name", MODELS)
def test_patched_answers_as_native(name: str) -> None:
    model = parser.parse_model(MODELS[name])
    native, *patched = (open_model(model) for open_model in (open_native, *OPENERS))
    for condition in (False, True):
        feeds = FEEDS | {"c": np.array(condition)}
        for session in patched:
            np.testing.assert_allclose(
                session.run(None, feeds)[0], native.run(None, feeds)[0], rtol=1e-5, atol=1e-4
            )


@pytest.mark.parametrize("name", MODELS)
def test_patch_reaches_every_node_and_nothing_else(name: str) -> None:
    model = parser.parse_model(MODELS[name])
    for i, node in enumerate(nodes(model)):
        node.name, node.doc_string = f"node {i}", f"doc {i}"
    model.graph.doc_string, model.doc_string, model.producer_name = (
        "a graph",
        "a model",
        "a producer",
    )
    model.metadata_props.add(key="k", value="v")
    model.graph.value_info.append(
        helper.make_tensor_value_info("A", TensorProto.FLOAT, ["N", "C", "h", "w"])
    )
    before, patched = model.SerializeToString(deterministic=True), ogs.patch_model(model)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(patched)
    assert not any(map(is_standard, nodes(patched)))
    assert ogs.patch_model(patched) == patched
    for field in ("doc_string", "producer_name", "metadata_props", "ir_version"):
        assert getattr(patched, field) == getattr(model, field)
    for field in ("input", "output", "value_info", "initializer", "name", "doc_string"):
        assert getattr(patched.graph, field) == getattr(model.graph, field)
    if (
        name != "half in a function, full outside"
    ):  # where the function's body goes to each of its calls
        kept = Counter((n.name, n.doc_string, n.op_type, *n.input) for n in nodes(patched))
        assert not Counter((n.name, n.doc_string, n.op_type, *n.input) for n in nodes(model)) - kept
        assert not {o for n in nodes(model) for o in n.output} - {
            o for n in nodes(patched) for o in n.output
        }


@needs_python_ops
@pytest.mark.parametrize("behind", ["Identity (A)", "Reshape (A, all)", "Cast <to = 11> (A)"])
@pytest.mark.parametrize(
    "by", ["onnx", "session", "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL", *CLEANERS]
)
def test_a_failed_op_has_no_answer_whoever_cleans_the_model(
    by: str, behind: str, tmp_path: Path
) -> None:
    model = parser.parse_model(f"""{HEADER} g (float[2,3,4,5] X, float[2,4,5,r] G) => (float[M] Y) {{
        all = Constant <value_ints = [-1]> () A = GridSample (X, G) B = {behind} Y = Reshape (B, all) }}""")
    model.graph.output[0].type.tensor_type.elem_type = 11 if "Cast" in behind else 1
    patched = ogs.patch_model(model)
    options, (module, _, function) = ogs.register(), by.rpartition(".")
    if module:
        pytest.importorskip(module)
        patched = getattr(import_module(module), function)(patched)
    elif by in ("onnx", "session"):
        if (
            by == "session"
        ):  # what it runs itself has a guard that nobody reads, what it saves has not
            saving = quiet_options()
            saving.optimized_model_filepath = str(tmp_path / "saved.onnx")
            with running_on("python"):
                ogs.InferenceSession(model, saving, nodes="all")
            patched = onnx.load(tmp_path / "saved.onnx")
        patched = onnx.utils.Extractor(patched).extract_model(["X", "G"], ["Y"])
    else:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.__members__[by]
    patched = patched[0] if isinstance(patched, tuple) else patched
    session = onnxruntime.InferenceSession(patched.SerializeToString(), options)
    np.testing.assert_allclose(
        session.run(["Y"], {"X": X, "G": GRID})[0], ogs.grid_sample(X, GRID).ravel(), rtol=1e-6
    )
    with pytest.raises(Exception, match="ort_gridsample rejected the input of GridSample node"):
        session.run(["Y"], {"X": X, "G": GRID[..., :1]})


def test_the_guard_of_a_session_copies_nothing(tmp_path: Path, python_ops: None) -> None:
    options = quiet_options()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "run")
    session = ogs.InferenceSession(one_node(), options, nodes="all")
    session.run(None, {"X": X, "G": GRID})
    said = [
        event["args"]
        for event in json.loads(Path(session.end_profiling()).read_text())
        if "args" in event
    ]
    (copied,) = (
        args["output_size"]
        for args in said
        if args.get("op_name") == "GatherND" and "output_size" in args
    )
    assert int(copied) <= 8 * len(X)


@needs_python_ops
@pytest.mark.parametrize("X_type", ["FLOAT", "FLOAT16"])
def test_a_model_of_an_earlier_release_runs_and_gets_the_guard_of_this_one(X_type: str) -> None:
    patched = ogs.patch_model(one_node(TensorProto.DataType.Value(X_type)))
    earlier = onnx.ModelProto()
    earlier.CopyFrom(patched)
    op, guard = (
        next(n for n in earlier.graph.node if n.op_type == kind)
        for kind in ("GridSample", "GatherND")
    )
    op.output[0], guard.output[0] = guard.output[0], "Y_unread"
    guard.op_type, guard.input[:] = "Gather", [op.output[1]] * 2
    session = onnxruntime.InferenceSession(earlier.SerializeToString(), ogs.register())
    feeds = {
        "X": X.astype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(X_type))),
        "G": GRID,
    }
    np.testing.assert_allclose(
        session.run(None, feeds)[0], ogs.grid_sample(feeds["X"], GRID), rtol=1e-3
    )
    with pytest.raises(
        Exception, match="ort_gridsample rejected the input of GridSample node 'warp'"
    ):
        session.run(None, feeds | {"G": GRID[:1]})
    guarded = ogs.patch_model(earlier)
    assert [n.op_type for n in guarded.graph.node] == [n.op_type for n in patched.graph.node]
    assert ogs.patch_model(guarded) == guarded
    assert [n.op_type for n in ogs.patch_model(earlier, target="ai.onnx").graph.node] == [
        "GridSample"
    ]


def test_halves_go_through_casts_and_all_attributes_are_written_out() -> None:
    for half in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        patched = ogs.patch_model(one_node(half, half, opset=22))
        assert [n.op_type for n in patched.graph.node] == [
            "Cast",
            "Cast",
            "GridSample",
            "GatherND",
            "Cast",
        ]
        assert patched.graph.output[0].type.tensor_type.elem_type == half
    (op,) = (n for n in nodes(ogs.patch_model(one_node())) if n.domain == DOMAIN)
    said = {a.name: helper.get_attribute_value(a) for a in op.attribute}
    attributes = {"mode": b"linear", "padding_mode": b"zeros", "align_corners": 0}
    assert said == attributes | {"node": b"warp", "num_threads": 0}


def test_a_function_is_inlined_where_its_calls_need_other_casts() -> None:
    halves = {("float16", "float16"): 1, ("float", "float16"): 0, ("bfloat16", "float16"): 0}
    for types, kept in ({("float", "double"): 1} | halves).items():
        inputs = ", ".join(
            f"{each}[1,1,4,4] X{i}, {each}[1,2,2,2] G{i}" for i, each in enumerate(types)
        )
        model = parsed(
            f"""g ({inputs}) => ({types[0]}[1,1,2,2] Y0, {types[1]}[1,1,2,2] Y1) {{
                Y0 = local.warp (X0, G0) Y1 = local.warp (X1, G1) }}
            <domain: "local", opset_import: ["": 22]> warp (A, B) => (C) {{ C = GridSample (A, B) }}""",
            22,
        )
        assert len(ogs.patch_model(model).functions) == kept


def test_nodes_are_chosen_by_what_the_runtime_says_or_by_their_records() -> None:
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[1,1,4,4] X, float[1,2,2,2] G, float[1,1,4,4,4] V, float[1,2,2,2,3] H, uint8[1,1,4,4] B) => (
            float[1,1,2,2] A, float[1,1,2,2,2] C, uint8[1,1,2,2] D)
        { A = GridSample (X, G) C = GridSample <mode = "cubic"> (V, H) D = GridSample (B, G) }""")
    for node, name in zip(model.graph.node, ("runs", "cubic_in_3d", "bytes"), strict=True):
        node.name = name
    native = {r.name for r in ogs.inspect_model(model) if r.native}
    patched = ogs.patch_model(model, nodes="unsupported")
    assert native == {"runs"}
    assert {n.name for n in nodes(patched) if n.domain == DOMAIN} == {"cubic_in_3d", "bytes"}
    assert {n.name for n in nodes(patched) if is_standard(n)} == {"runs"}
    # Nodes may be chosen by their records, too.
    model = parser.parse_model(MODELS["two in a row"])
    patched = ogs.patch_model(model, nodes=lambda record: record.align_corners == 1)
    assert Counter(n.domain for n in nodes(patched) if n.op_type == "GridSample") == {
        "": 1,
        DOMAIN: 1,
    }
    error = refusal(ogs.patch_model, model, nodes="some")
    assert error.expected == "'all', 'unsupported' or a function of a NodeRecord"


UNKNOWN = "X is of unknown type, expected a type that is known before it runs"
NAMELESS = "the output is without a name, expected one that has a name"
MODES = "'linear', 'nearest' or 'cubic' (opset 20)"
FLOATS = "float32, float64, float16, bfloat16"

NOT_COMPLEX = (
    "ONNX Runtime has no complex tensors: sample the real and the imaginary part each for itself"
)
IN_TWO = "(N, D1_out, D2_out, 2), as X of shape (N, C, H, W) has 2 spatial axes"
IN_ONE = "(N, D1_out, 1), as X of shape (N, C, H) has 1 spatial axis"
#: What one_node is given, and what is said of it.
MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"mode": "lanczos"}, f"mode is 'lanczos', expected {MODES}"),
    ({"mode": "bilinear"}, f"mode is 'bilinear', expected {MODES}"),
    ({"mode": b"\xff"}, f"mode is '\ufffd', expected {MODES}"),
    (
        {"mode": "@linear"},
        f"mode is '@linear', expected {MODES}",
    ),  # as what a function passes on is shown
    (
        {"mode": "linear", "opset": 16},
        "mode is 'linear', expected 'bilinear', 'nearest' or 'bicubic' (opset 16)",
    ),
    (
        {"padding_mode": "x"},
        "padding_mode is 'x', expected 'zeros', 'border' or 'reflection' (opset 20)",
    ),
    ({"align_corners": 2}, "align_corners is 2, expected 0 or 1 (opset 20)"),
    (
        {"antialias": 1},
        "attribute is 'antialias', expected 'mode', 'padding_mode' or 'align_corners'",
    ),
    ({"opset": 15}, "opset is 15, expected at least 16"),
    (
        {"X_type": TensorProto.COMPLEX64},
        f"X is of type complex64, expected another type, as {NOT_COMPLEX}",
    ),
    ({"grid_type": TensorProto.INT32}, f"grid is of type int32, expected one of {FLOATS}"),
    ({"grid_type": TensorProto.STRING}, f"grid is of type str, expected one of {FLOATS}"),
    (
        {"X_type": TensorProto.STRING},
        "mode is 'linear', expected 'nearest', the only mode that is defined for str X",
    ),
    (
        {"shapes": "float[N,C,H,W] X, float[N,h,w,3] G"},
        f"grid is of shape (N, h, w, 3), expected shape {IN_TWO}",
    ),
    (
        {"shapes": "float[N,C,H] X, float[N,h,w,2] G"},
        f"grid is of shape (N, h, w, 2), expected shape {IN_ONE}",
    ),
]


@pytest.mark.parametrize(("said", "sentence"), MISTAKES, ids=str)
def test_static_mistakes_are_reported_at_once(said: dict[str, object], sentence: str) -> None:
    model, sentence = one_node(**said), f"GridSample node 'warp': {sentence}"
    patches = [
        partial(ogs.patch_model, target=target)
        for target in ("ort_gridsample", "compiled", "primitives")
    ]
    for make in (*patches, ogs.InferenceSession):
        assert str(refusal(make, model)) == sentence
    (record,) = ogs.inspect_model(model)
    assert (str(record.error), record.action) == (sentence, "refuses it")


def test_what_a_node_lacks_is_reported() -> None:
    without_grid, without_name = one_node(), one_node()
    del without_grid.graph.node[0].input[1]
    without_name.graph.node[0].output[0] = ""
    three_inputs, two_outputs = one_node(), one_node()
    three_inputs.graph.node[0].input.append("X")
    two_outputs.graph.node[0].output.append("Z")
    no_size = parsed("g (float[N,2,3] T, int64[3] S) => (Y) { Y = AffineGrid (T, S) }")
    no_type = parsed("g (float[N,h,w,2] G) => (Y) { X = local.Op (G) Y = GridSample (X, G) }")
    for target, model, node, said in (
        (
            "ort_gridsample",
            without_grid,
            "GridSample node 'warp'",
            "grid is missing, expected an input",
        ),
        ("ort_gridsample", without_name, "GridSample node 'warp'", NAMELESS),
        (
            "ort_gridsample",
            three_inputs,
            "GridSample node 'warp'",
            "inputs is 3, expected at most 2",
        ),
        ("ort_gridsample", two_outputs, "GridSample node 'warp'", "outputs is 2, expected 1"),
        (
            "primitives",
            no_size,
            "AffineGrid node '(Y)'",
            "size is of shape (3,), expected 4 or 5 numbers",
        ),
        ("primitives", no_type, "GridSample node '(Y)'", UNKNOWN),
    ):
        assert str(refusal(ogs.patch_model, model, target=target)) == f"{node}: {said}"


def test_inspect_says_where_a_node_is() -> None:
    (record,) = ogs.inspect_model(parser.parse_model(MODELS["function in a function in an If"]))
    assert (record.graph, record.ranks) == ("function local::inner", {"X": (4,), "grid": (4,)})
    assert record.types == {"X": ("float32",), "grid": ("float32",)}
    records = ogs.inspect_model(parser.parse_model(MODELS["If"]))
    outer = "If #0 else_branch"
    assert {r.graph for r in records} == {"If #0 then_branch", outer, f"{outer}/If #1 else_branch"}


def test_types_reach_through_patched_nodes() -> None:
    model = parser.parse_model(MODELS["two in a row"].replace("float[N,C", "float16[N,C"))
    half_patched = ogs.patch_model(model, nodes=lambda record: record.output == "A")
    assert ogs.patch_model(half_patched).graph.node[-2].op_type == "GatherND"
    open_session(half_patched).run(None, FEEDS | {"X": X.astype(np.float16)})


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows tells no peak of memory through Python"
)
def test_a_long_row_of_weights_costs_no_memory() -> None:
    (line,) = python("""
import resource, ort_gridsample as ogs
from onnx import parser
model = parser.parse_model('''<ir_version: 9, opset_import: ["": 20]>
    g (float[600000000] long, float[1,1,4,4] X, float[1,2,2,2] G, int64[1] i) => (float[1,1,2,2] Y, float[M] Z) {
        Y = GridSample (X, G) row = Gather (long, i) Z = Add (long, row) }''')
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
(record,) = ogs.inspect_model(model)
print(record.types["X"], peak() - before)
""")
    types, _, more = line.rpartition(" ")
    assert types == "('float32',)"
    assert int(more) < 100 << 20
