"""Patched models: their outputs, their nodes, and the errors of static mistakes."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
from support.graphs import (
    FEEDS,
    GRID,
    HEADER,
    MODELS,
    X,
    all_nodes,
    is_standard,
    single_node_model,
)
from support.models import parsed
from support.paths import (
    needs_python_ops,
    open_session,
    quiet_options,
    running_on,
)
from support.processes import run_program

#: Functions of other packages that remove unread nodes from a model.
CLEANERS = (
    "onnxslim.slim",
    "onnxoptimizer.optimize",
    "onnxsim.simplify",
    "onnxscript.optimizer.optimize",
)
OPTIMIZATION_LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")
REJECTED = "ort_gridsample rejected the input of GridSample node"


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def annotated(name: str) -> onnx.ModelProto:
    """Return a model with names, doc strings, metadata and value_info."""
    model = parser.parse_model(MODELS[name])
    for i, node in enumerate(all_nodes(model)):
        node.name = f"node {i}"
        node.doc_string = f"doc {i}"
    model.graph.doc_string = "a graph"
    model.doc_string = "a model"
    model.producer_name = "a producer"
    model.metadata_props.add(key="k", value="v")
    model.graph.value_info.append(
        helper.make_tensor_value_info("A", TensorProto.FLOAT, ["N", "C", "h", "w"])
    )
    return model


@pytest.mark.parametrize("name", MODELS)
def test_patch_replaces_all_sampling_nodes(name: str) -> None:
    patched = ogs.patch_model(annotated(name))
    onnx.checker.check_model(patched)
    assert not any(map(is_standard, all_nodes(patched)))
    assert ogs.patch_model(patched) == patched


@pytest.mark.parametrize("name", MODELS)
def test_patch_does_not_change_its_argument(name: str) -> None:
    model = annotated(name)
    before = model.SerializeToString(deterministic=True)
    ogs.patch_model(model)
    assert model.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", MODELS)
def test_patch_keeps_metadata(name: str) -> None:
    model = annotated(name)
    patched = ogs.patch_model(model)
    for field in ("doc_string", "producer_name", "metadata_props", "ir_version"):
        assert getattr(patched, field) == getattr(model, field)
    for field in ("input", "output", "value_info", "initializer", "name", "doc_string"):
        assert getattr(patched.graph, field) == getattr(model.graph, field)


# The function of "half in a function, full outside" is inlined.
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("half in")])
def test_patch_keeps_names_of_nodes_and_values(name: str) -> None:
    def descriptions(model: onnx.ModelProto) -> Counter[tuple[str, ...]]:
        return Counter(
            (node.name, node.doc_string, node.op_type, *node.input) for node in all_nodes(model)
        )

    def outputs(model: onnx.ModelProto) -> set[str]:
        return {output for node in all_nodes(model) for output in node.output}

    model = annotated(name)
    patched = ogs.patch_model(model)
    assert descriptions(model) <= descriptions(patched)
    assert outputs(model) <= outputs(patched)


def clean(patched: onnx.ModelProto, cleaner: str) -> onnx.ModelProto:
    """Remove the unread nodes of a patched model, by a function of another package."""
    module, _, function = cleaner.rpartition(".")
    pytest.importorskip(module)
    cleaned = getattr(import_module(module), function)(patched)
    return cleaned[0] if isinstance(cleaned, tuple) else cleaned


def saved_by_session(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    options = quiet_options()
    options.optimized_model_filepath = str(path)
    with running_on("python"):
        ogs.InferenceSession(model, options, nodes="all")
    return onnx.load(path)


@needs_python_ops
@pytest.mark.parametrize("reader", ["Identity (A)", "Reshape (A, all)", "Cast <to = 11> (A)"])
@pytest.mark.parametrize("cleaner", ["onnx", "session", *OPTIMIZATION_LEVELS, *CLEANERS])
def test_failed_op_has_no_output_whichever_tool_cleans_the_model(
    cleaner: str, reader: str, tmp_path: Path
) -> None:
    model = parser.parse_model(f"""{HEADER}
        g (float[2,3,4,5] X, float[2,4,5,r] G) => (float[M] Y) {{
            all = Constant <value_ints = [-1]> ()
            A = GridSample (X, G)
            B = {reader}
            Y = Reshape (B, all) }}""")
    if "Cast" in reader:
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    patched = ogs.patch_model(model)
    options = ogs.register()
    if cleaner in OPTIMIZATION_LEVELS:
        levels = onnxruntime.GraphOptimizationLevel.__members__
        options.graph_optimization_level = levels[cleaner]
    elif cleaner in CLEANERS:
        patched = clean(patched, cleaner)
    else:
        if cleaner == "session":  # the guard of a session's model has no reader
            patched = saved_by_session(model, tmp_path / "saved.onnx")
        patched = onnx.utils.Extractor(patched).extract_model(["X", "G"], ["Y"])
    session = onnxruntime.InferenceSession(patched.SerializeToString(), options)
    expected = ogs.grid_sample(X, GRID).ravel()
    np.testing.assert_allclose(session.run(["Y"], {"X": X, "G": GRID})[0], expected, rtol=1e-6)
    with pytest.raises(Exception, match=REJECTED):
        session.run(["Y"], {"X": X, "G": GRID[..., :1]})


def test_guard_in_a_session_copies_only_positions(tmp_path: Path, python_ops: None) -> None:
    options = quiet_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "run")
    session = ogs.InferenceSession(single_node_model(), options, nodes="all")
    session.run(None, {"X": X, "G": GRID})
    events = json.loads(Path(session.end_profiling()).read_text())
    (output_bytes,) = (
        event["args"]["output_size"]
        for event in events
        if event.get("args", {}).get("op_name") == "GatherND" and "output_size" in event["args"]
    )
    assert int(output_bytes) <= 8 * len(X)


def with_unread_guard(patched: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the guard that a session writes in memory, which nothing reads."""
    model = onnx.ModelProto.FromString(patched.SerializeToString())
    op = next(node for node in model.graph.node if node.op_type == "GridSample")
    guard = next(node for node in model.graph.node if node.op_type == "GatherND")
    op.output[0] = guard.output[0]
    guard.output[0] = "Y_unread"
    guard.input[:] = [op.output[1], op.output[1]]
    return model


@pytest.mark.parametrize("X_type", ["FLOAT", "FLOAT16"])
def test_patch_replaces_a_guard_that_is_not_read(X_type: str) -> None:
    patched = ogs.patch_model(single_node_model(TensorProto.DataType.Value(X_type)))
    model = with_unread_guard(patched)
    guarded = ogs.patch_model(model)
    assert op_types(guarded) == op_types(patched)
    assert ogs.patch_model(guarded) == guarded
    assert op_types(ogs.patch_model(model, target="ai.onnx")) == ["GridSample"]


@pytest.mark.parametrize("half", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_patch_puts_casts_around_half_precision(half: int) -> None:
    patched = ogs.patch_model(single_node_model(half, half, opset=22))
    assert op_types(patched) == ["Cast", "Cast", "GridSample", "GatherND", "Cast"]
    assert patched.graph.output[0].type.tensor_type.elem_type == half


def with_shared_cast() -> onnx.ModelProto:
    """Return a patched model of two nodes, whose equal Casts another tool has merged."""
    model = parsed(
        """g (float16[1,1,4,4] X, float16[1,2,2,2] G, float16[1,2,2,2] H)
        => (float16[1,1,2,2] Y, float16[1,1,2,2] Z) {
            Y = GridSample (X, G)
            Z = GridSample (X, H) }""",
        22,
    )
    for node, name in zip(model.graph.node, ("first", "second"), strict=True):
        node.name = name
    patched = ogs.patch_model(model)
    nodes = patched.graph.node
    casts_of_X = [node for node in nodes if node.op_type == "Cast" and node.input[0] == "X"]
    kept, merged = casts_of_X
    for node in nodes:
        node.input[:] = [
            kept.output[0] if name == merged.output[0] else name for name in node.input
        ]
    nodes.remove(merged)
    return patched


@pytest.mark.parametrize("name", ["first", "second"])
def test_patch_of_one_node_keeps_the_cast_that_another_node_reads(name: str) -> None:
    patched = ogs.patch_model(
        with_shared_cast(), target="ai.onnx", nodes=lambda record: record.name == name
    )
    onnx.checker.check_model(patched)


def test_patch_of_all_nodes_drops_their_shared_cast() -> None:
    patched = ogs.patch_model(with_shared_cast(), target="ai.onnx")
    assert op_types(patched) == ["GridSample", "GridSample"]


def test_patch_writes_all_attributes() -> None:
    patched = ogs.patch_model(single_node_model())
    (op,) = (node for node in all_nodes(patched) if node.domain == DOMAIN)
    assert {a.name: helper.get_attribute_value(a) for a in op.attribute} == {
        "mode": b"linear",
        "padding_mode": b"zeros",
        "align_corners": 0,
        "node": b"warp",
        "num_threads": 0,
    }


@pytest.mark.parametrize(
    ("types", "function_count"),
    [
        (("float", "double"), 1),
        (("float16", "float16"), 1),
        (("float", "float16"), 0),
        (("bfloat16", "float16"), 0),
    ],
)
def test_patch_inlines_a_function_only_if_its_calls_need_different_casts(
    types: tuple[str, str], function_count: int
) -> None:
    first, second = types
    model = parsed(
        f"""g ({first}[1,1,4,4] X0, {first}[1,2,2,2] G0, {second}[1,1,4,4] X1, {second}[1,2,2,2] G1)
        => ({first}[1,1,2,2] Y0, {second}[1,1,2,2] Y1) {{
            Y0 = local.warp (X0, G0)
            Y1 = local.warp (X1, G1) }}
        <domain: "local", opset_import: ["": 22]> warp (A, B) => (C) {{
            C = GridSample (A, B) }}""",
        22,
    )
    assert len(ogs.patch_model(model).functions) == function_count


def test_patch_of_unsupported_nodes_leaves_native_ones() -> None:
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[1,1,4,4] X, float[1,2,2,2] G, float[1,1,4,4,4] V, float[1,2,2,2,3] H,
           uint8[1,1,4,4] B)
        => (float[1,1,2,2] A, float[1,1,2,2,2] C, uint8[1,1,2,2] D) {
            A = GridSample (X, G)
            C = GridSample <mode = "cubic"> (V, H)
            D = GridSample (B, G) }""")
    for node, name in zip(model.graph.node, ("float32", "cubic in 3-D", "uint8"), strict=True):
        node.name = name
    assert {record.name for record in ogs.inspect_model(model) if record.native} == {"float32"}
    nodes = list(all_nodes(ogs.patch_model(model, nodes="unsupported")))
    assert {node.name for node in nodes if node.domain == DOMAIN} == {"cubic in 3-D", "uint8"}
    assert {node.name for node in nodes if is_standard(node)} == {"float32"}


def test_patch_of_nodes_chosen_by_their_records_leaves_the_others() -> None:
    model = parser.parse_model(MODELS["two in a row"])
    patched = ogs.patch_model(model, nodes=lambda record: record.align_corners == 1)
    domains = [node.domain for node in all_nodes(patched) if node.op_type == "GridSample"]
    assert sorted(domains) == ["", DOMAIN]


def test_patch_of_unknown_choice_of_nodes_is_refused() -> None:
    model = parser.parse_model(MODELS["two in a row"])
    error = refusal(ogs.patch_model, model, nodes="some")
    assert (error.where, error.argument, error.found) == ("patch_model", "nodes", "'some'")
    assert error.expected == (
        "'all', 'unsupported', or a function that gets the NodeRecord of a node and returns "
        "whether to replace the node"
    )


MODES = "'linear', 'nearest' or 'cubic' (opset 20)"
RENAMED = "'bilinear' is called 'linear' in this opset"
FLOATS = "one of float32, float64, float16, bfloat16"


@dataclass(frozen=True)
class Mistake:
    """Arguments of single_node_model, and the parts of the error."""

    arguments: dict[str, object]
    argument: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.argument} {self.found}"


MISTAKES = [
    Mistake({"mode": "lanczos"}, "mode", "'lanczos'", MODES),
    Mistake({"mode": "bilinear"}, "mode", "'bilinear'", f"{MODES}; {RENAMED}"),
    Mistake({"mode": b"\xff"}, "mode", "'\ufffd'", MODES),
    # References to a function's attributes are displayed like this.
    Mistake({"mode": "@linear"}, "mode", "'@linear'", MODES),
    Mistake(
        {"mode": "linear", "opset": 16},
        "mode",
        "'linear'",
        "'bilinear', 'nearest' or 'bicubic' (opset 16); "
        "'linear' is called 'bilinear' in this opset",
    ),
    Mistake(
        {"padding_mode": "x"},
        "padding_mode",
        "'x'",
        "'zeros', 'border' or 'reflection' (opset 20)",
    ),
    Mistake({"align_corners": 2}, "align_corners", "2", "0 or 1 (opset 20)"),
    Mistake(
        {"antialias": 1},
        "attribute",
        "'antialias'",
        "'mode', 'padding_mode' or 'align_corners'",
    ),
    Mistake(
        {"opset": 15},
        "opset",
        "15 in the model",
        "at least 16, the first opset that has GridSample",
    ),
    Mistake(
        {"X_type": TensorProto.COMPLEX64},
        "X",
        "of type complex64",
        "another type, as ONNX Runtime has no complex tensors: "
        "sample the real and the imaginary part separately",
    ),
    Mistake({"grid_type": TensorProto.INT32}, "grid", "of type int32", FLOATS),
    Mistake({"grid_type": TensorProto.STRING}, "grid", "of type str", FLOATS),
    Mistake(
        {"X_type": TensorProto.STRING},
        "mode",
        "'linear'",
        "'nearest', the only mode that is defined for str X",
    ),
    Mistake(
        {"inputs": "float[N,C,H,W] X, float[N,h,w,3] G"},
        "grid",
        "of shape (N, h, w, 3)",
        "shape (N, D1_out, D2_out, 2), as X of shape (N, C, H, W) has 2 spatial axes",
    ),
    Mistake(
        {"inputs": "float[N,C,H] X, float[N,h,w,2] G"},
        "grid",
        "of shape (N, h, w, 2)",
        "shape (N, D1_out, 1), as X of shape (N, C, H) has 1 spatial axis",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_static_mistake_is_refused(mistake: Mistake) -> None:
    model = single_node_model(**mistake.arguments)
    calls: list[Callable[..., object]] = [
        partial(ogs.patch_model, target="ort_gridsample"),
        partial(ogs.patch_model, target="compiled"),
        partial(ogs.patch_model, target="primitives"),
        ogs.InferenceSession,
    ]
    errors = [refusal(call, model) for call in calls]
    (record,) = ogs.inspect_model(model)
    assert record.error is not None
    assert record.action == "refuses it"
    for error in (*errors, record.error):
        assert error.where == "GridSample node 'warp'"
        assert (error.argument, error.found) == (mistake.argument, mistake.found)
        assert error.expected == mistake.expected


def test_error_of_a_static_mistake_is_a_sentence() -> None:
    error = refusal(ogs.patch_model, single_node_model(mode="lanczos"))
    assert str(error) == (
        "GridSample node 'warp': mode is 'lanczos', "
        "expected 'linear', 'nearest' or 'cubic' (opset 20)"
    )


def without_grid() -> onnx.ModelProto:
    model = single_node_model()
    del model.graph.node[0].input[1]
    return model


def without_output() -> onnx.ModelProto:
    model = single_node_model()
    model.graph.node[0].output[0] = ""
    return model


def with_three_inputs() -> onnx.ModelProto:
    model = single_node_model()
    model.graph.node[0].input.append("X")
    return model


def with_two_outputs() -> onnx.ModelProto:
    model = single_node_model()
    model.graph.node[0].output.append("Z")
    return model


@pytest.mark.parametrize(
    ("make_model", "argument", "found", "expected"),
    [
        (without_grid, "grid", "missing", "an input"),
        (without_output, "the output", "without a name", "one that has a name"),
        (with_three_inputs, "the number of inputs", "3", "at most 2"),
        (with_two_outputs, "the number of outputs", "2", "1"),
    ],
)
def test_patch_of_wrong_inputs_or_outputs_is_refused(
    make_model: Callable[[], onnx.ModelProto], argument: str, found: str, expected: str
) -> None:
    error = refusal(ogs.patch_model, make_model())
    assert error.where == "GridSample node 'warp'"
    assert (error.argument, error.found, error.expected) == (argument, found, expected)


def test_lowering_of_a_wrong_size_is_refused() -> None:
    model = parsed("g (float[N,2,3] T, int64[3] S) => (Y) { Y = AffineGrid (T, S) }")
    error = refusal(ogs.patch_model, model, target="primitives")
    assert error.where == "AffineGrid node with output 'Y'"
    assert (error.argument, error.found) == ("size", "of shape (3)")
    assert error.expected == "4 or 5 numbers"


def test_lowering_of_an_unknown_type_is_refused() -> None:
    model = parsed("g (float[N,h,w,2] G) => (Y) { X = local.Op (G) Y = GridSample (X, G) }")
    error = refusal(ogs.patch_model, model, target="primitives")
    assert error.where == "GridSample node with output 'Y'"
    assert (error.argument, error.found) == ("X", "of unknown type")
    assert error.expected == "a type that the model states, or that onnx can infer"


def test_record_in_a_function_has_the_types_and_ranks_of_its_calls() -> None:
    (record,) = ogs.inspect_model(parser.parse_model(MODELS["function in a function in an If"]))
    assert record.graph == "function local::inner"
    assert record.ranks == {"X": (4,), "grid": (4,)}
    assert record.types == {"X": ("float32",), "grid": ("float32",)}


def test_record_in_a_branch_has_the_path_of_the_branch() -> None:
    records = ogs.inspect_model(parser.parse_model(MODELS["If"]))
    assert {record.graph for record in records} == {
        "If #0 then_branch",
        "If #0 else_branch",
        "If #0 else_branch/If #1 else_branch",
    }


def test_types_behind_patched_nodes_are_known() -> None:
    model = parser.parse_model(MODELS["two in a row"].replace("float[N,C", "float16[N,C"))
    half_patched = ogs.patch_model(model, nodes=lambda record: record.output == "A")
    assert ogs.patch_model(half_patched).graph.node[-2].op_type == "GatherND"
    open_session(half_patched).run(None, FEEDS | {"X": X.astype(np.float16)})


@pytest.mark.skipif(
    sys.platform == "win32", reason="Python has no function for the peak memory on Windows"
)
def test_inspection_of_a_long_input_costs_no_memory() -> None:
    X_types, peak_increase = run_program("inspect_long_input.py")
    assert X_types == "('float32',)"
    assert int(peak_increase) < 100 << 20
