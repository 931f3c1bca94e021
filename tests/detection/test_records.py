"""Records of nodes: what they contain, and how they are displayed."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.cli import main
from ort_gridsample.detection.find import records_of
from ort_gridsample.detection.records import NOT_ASKED, columns
from ort_gridsample.dialects.spelling import AttributeReference
from ort_gridsample.graph.element_types import elem_type
from ort_gridsample.inference.runtime_probe import RuntimeProbe
from ort_gridsample.session.installed_runtime import InstalledRuntime
from ort_gridsample.session.placement import Placement
from support.attention_models import form, form_feeds
from support.cases import Attributes
from support.compare import refusal
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, X, single_node_model
from support.models import affine_grid_model, grid_sample_model, parsed
from support.paths import open_native, open_session

SAMPLE = grid_sample_model(
    "float32", "float32", 2, [Attributes("linear", "border", True)], opset=20
)
#: A function whose node takes its attributes from the call.
REFERENCES = parser.parse_model(f"""{HEADER} {SIGNATURE} {{
        Y = local.warp <m = "nearest", ac = 1> (X, G) }}
    <domain: "local", opset_import: ["": 20]> warp <m, ac> (A, B) => (C) {{
        C = GridSample <mode: string = @m, align_corners: int = @ac> (A, B) }}""")


def record_of(model: onnx.ModelProto) -> ogs.NodeRecord:
    (record,) = ogs.inspect_model(model)
    return record


def test_records_can_be_keys() -> None:
    record = record_of(SAMPLE)
    assert {record: "value"}[record_of(SAMPLE)] == "value"
    assert len({record, record_of(SAMPLE), record_of(REFERENCES)}) == 2


#: A function that is called with a float32 image, and with one of unknown type.
CALLED_WITH_UNKNOWN_TYPE = parser.parse_model("""
    <ir_version: 8, opset_import: ["": 20, "local": 1, "other": 1]>
    g (float[1,1,4,4] X, float[1,3,4,2] G, float16[1,1,4,4] H) => (float[1,1,3,4] Y, float[] Z) {
        Y = local.warp (X, G)
        U = other.Unknown (H)
        Z = local.warp (U, G) }
    <opset_import: ["": 20], domain: "local"> warp (A, B) => (C) { C = GridSample (A, B) }""")


def test_inputs_of_function_called_with_unknown_type_include_the_unknown_type() -> None:
    record = record_of(CALLED_WITH_UNKNOWN_TYPE)
    assert {value.type for value in record.inputs["X"]} == {"float32", None}
    assert record.types["X"] == ("float32",)
    assert record.varies_in_type("X")
    assert not record.varies_in_type("grid")


def test_function_called_with_unknown_type_is_not_lowered_as_of_the_known_type() -> None:
    error = refusal(ogs.patch_model, CALLED_WITH_UNKNOWN_TYPE, target="primitives", functions=True)
    assert (error.argument, error.found) == ("X", "of unknown type")


def test_dialects_of_records_can_be_keys() -> None:
    assert len({record_of(SAMPLE).dialect, record_of(SAMPLE).dialect}) == 1


@pytest.mark.parametrize(
    "model",
    [
        SAMPLE,
        REFERENCES,
        affine_grid_model("float32", 3, False),
        single_node_model(mode="lanczos"),
    ],
    ids=["sample", "references", "AffineGrid", "wrong mode"],
)
def test_repr_of_a_record_has_the_text_of_the_inspect_command(
    model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of(model)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert main(["inspect", str(path)]) == 0
    output = capsys.readouterr().out
    for text in (*columns(record).values(), record.reason, record.graph):
        assert text in repr(record)
        assert text in output


def test_repr_of_a_record() -> None:
    assert repr(record_of(SAMPLE)) == (
        "<NodeRecord node: sample0, operator: GridSample-20, mode: linear, padding: border, "
        "align: 1, inputs: float32 4-D, float32 4-D, native: yes, a patch: replaces it>"
    )


def test_repr_of_placement_has_only_the_place_of_its_node() -> None:
    placement = Placement(record_of(SAMPLE), "compiled op", "a long reason", ("a",) * 100, "a.so")
    assert repr(placement) == "<Placement GridSample node 'sample0': compiled op>"
    refused = Placement(record_of(SAMPLE), "", "a long reason")
    assert repr(refused) == "<Placement GridSample node 'sample0': refused>"


def test_record_in_a_function_has_references_to_its_attributes() -> None:
    record = record_of(REFERENCES)
    assert record.attributes == {
        "mode": AttributeReference("m"),
        "padding_mode": "zeros",
        "align_corners": AttributeReference("ac"),
    }
    assert (str(record.mode), str(record.align_corners)) == ("@m", "@ac")
    assert record.padding_mode == "zeros"


def test_records_in_overloads_of_a_function_have_different_labels() -> None:
    model = parsed(f"{SIGNATURE} {{ Z = my.warp (X, G) Y = my.warp (Z, G) }}")
    for node, overload in zip(model.graph.node, "ab", strict=True):
        node.overload = overload
        function = onnx.helper.make_function(
            "my", "warp", ["X", "G"], ["Y"],
            [onnx.helper.make_node("GridSample", ["X", "G"], ["Y"])], model.opset_import,
            overload=overload,
        )  # fmt: skip
        model.functions.append(function)
    labels = [record.label for record in records_of(model)]
    assert labels == ["(Y in function my::warp:a)", "(Y in function my::warp:b)"]


def test_inspect_command_writes_references_to_attributes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(REFERENCES, path)
    assert main(["inspect", str(path), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["mode"], record["align_corners"]) == ("@m", "@ac")


def test_record_is_native_if_onnxruntime_runs_the_node() -> None:
    record = record_of(SAMPLE)
    assert (record.native, record.reason) == (True, "")


def test_record_that_onnxruntime_was_not_asked_about_is_not_native() -> None:
    (record,) = records_of(SAMPLE, None)
    assert (record.native, record.reason) == (False, NOT_ASKED)


def test_column_of_a_record_that_onnxruntime_was_not_asked_about_is_unknown() -> None:
    (record,) = records_of(SAMPLE, None)
    assert columns(record)["native"] == "unknown"


@pytest.mark.parametrize(
    ("nodes", "calls"),
    [("all", 0), ("unsupported", 1), (lambda record: not record.native, 1)],
    ids=["all", "unsupported", "function"],
)
def test_patch_asks_onnxruntime_only_if_the_choice_of_nodes_needs_it(
    nodes: object, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal_of_node = create_autospec(RuntimeProbe.refusal, side_effect=RuntimeProbe.refusal)
    monkeypatch.setattr(RuntimeProbe, "refusal", refusal_of_node)
    ogs.patch_model(SAMPLE, nodes=nodes)
    open_session(SAMPLE)  # replaces all nodes
    assert [call.args[3] for call in refusal_of_node.call_args_list] == ["GridSample"] * calls


class OlderRuntime(InstalledRuntime):
    """Older releases clip the coordinates of cubic with border padding, and not the taps."""

    def run(self, model: bytes, feeds: Sequence[Mapping[str, Any]], **options: bool) -> Any:
        clipped = [{**arrays, "grid": arrays["grid"].clip(-1, 1)} for arrays in feeds]
        return super().run(model, clipped, **options)


def test_node_whose_kernel_is_wrong_is_not_native() -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes("cubic", "border", True)])
    (record,) = records_of(model, RuntimeProbe(OlderRuntime()))
    assert record.native is False
    reason = r"its own kernel is off by 0\.\d+ where values are in \[-1, 1\]"
    assert re.fullmatch(reason, record.reason)


AFFINE_GRIDS = [
    ("float32", 2),
    ("float32", 3),
    ("float64", 3),
    ("float16", 2),
    ("bfloat16", 3),
]
every_affine_grid = pytest.mark.parametrize(("theta_type", "axes"), AFFINE_GRIDS)


def test_affine_grids_have_every_type() -> None:
    assert {theta_type for theta_type, _ in AFFINE_GRIDS} == set(spec.FLOATS)


@every_affine_grid
def test_record_of_an_affine_grid(theta_type: str, axes: int) -> None:
    record = record_of(affine_grid_model(theta_type, axes, True))
    assert record.operator == "AffineGrid"
    assert (record.mode, record.padding_mode, record.align_corners) == (None, None, 1)
    assert record.spatial_axes == (axes,)
    assert record.types == {"theta": (theta_type,), "size": ("int64",)}


@every_affine_grid
def test_affine_grid_is_native_if_onnxruntime_runs_it(theta_type: str, axes: int) -> None:
    model = affine_grid_model(theta_type, axes, True)
    input_type = "float32" if theta_type == "bfloat16" else theta_type
    theta = np.zeros((1, axes, axes + 1), input_type)
    try:
        open_native(model).run(None, {"theta": theta, "size": np.array([1, 1, *[2] * axes])})
        is_run = True
    except Exception:
        is_run = False
    record = record_of(model)
    assert record.native == is_run, record.reason
    expected = model if is_run else ogs.patch_model(model)
    assert ogs.patch_model(model, nodes="unsupported") == expected


@pytest.mark.parametrize(
    ("theta", "size", "axes"),
    [
        ("float[N,2,3]", "int64[4]", (2,)),
        ("float[N,r,4]", "int64[n]", (3,)),
        ("float[N,r,s]", "int64[5]", (3,)),
        ("float[N,3,4]", "int64", (3,)),
        ("float[N,r,s]", "int64[n]", ()),
    ],
)
def test_spatial_axes_of_an_affine_grid_follow_from_any_shape(
    theta: str, size: str, axes: tuple[int, ...]
) -> None:
    model = parser.parse_model(
        f"{HEADER} g ({theta} T, {size} S) => (float[N,h,w,r] Y) {{ Y = AffineGrid (T, S) }}"
    )
    if size == "int64":  # onnx's parser reads a scalar; without a shape the rank is unknown
        model.graph.input[1].type.tensor_type.ClearField("shape")
    assert record_of(model).spatial_axes == axes


@pytest.mark.parametrize(
    ("X_type", "opset"), [("float32", 20), ("float32", 22), ("bfloat16", 22), ("uint8", 20)]
)
def test_reason_of_a_node_that_is_not_native_is_onnxruntimes_message(
    X_type: str, opset: int
) -> None:
    inputs = "float[1,1,2,2] X, float[1,2,2,2] G"
    model = single_node_model(elem_type(X_type), opset=opset, inputs=inputs)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    message = ""
    try:
        open_native(model)
    except Exception as error:
        message = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    record = record_of(model)
    assert record.native == (not message)
    # The node of the probe has no name, and X is cast from a type that NumPy has.
    message = message.replace("'warp'", "''").replace("(warp)", "()")
    assert (record.reason or "").replace(f"X as {X_type}", "X") == message


HALF = single_node_model(TensorProto.FLOAT16, TensorProto.BFLOAT16, opset=22)


def test_action_of_a_sample_in_half_precision_names_the_casts() -> None:
    record = record_of(HALF)
    assert record.casts == {"X": "float32", "grid": "float32"}
    assert record.action == "replaces it, cast X float16 → float32, cast grid bfloat16 → float32"


def test_action_of_an_affine_grid_in_half_precision_names_the_cast() -> None:
    record = record_of(affine_grid_model("bfloat16", 2, False))
    assert record.native is False
    assert record.reason
    assert record.action == "replaces it, cast theta bfloat16 → float32"


@pytest.mark.parametrize(
    ("model", "target"),
    [(HALF, "ort_gridsample"), (SAMPLE, "ort_gridsample"), (SAMPLE, "compiled")],
    ids=["half", "Python op", "compiled op"],
)
def test_record_of_a_patched_node_has_no_action(model: onnx.ModelProto, target: str) -> None:
    record = record_of(ogs.patch_model(model, target=target))
    assert (record.native, record.reason) == (False, "it is a node of this package")
    assert record.action == "nothing, it is patched"


@pytest.mark.parametrize(
    ("domain", "op_type"),
    [
        ("custom.plugins", "GridSampler"),
        ("custom.plugins", "GridSample3D"),
        ("mmcv", "grid_sampler"),
        ("aten", "grid_sampler_2d"),
        ("aten", "affine_grid_generator"),
    ],
)
def test_function_with_the_name_of_a_dialects_operator_is_read_as_a_function(
    domain: str, op_type: str
) -> None:
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20, "{domain}": 1]>
        {SIGNATURE} {{ Y = {domain}.{op_type} (X, G) }}
        <domain: "{domain}", opset_import: ["": 20]> {op_type} (A, B) => (C) {{
            D = GridSample <mode = "nearest"> (A, B)
            C = Neg (D) }}""")
    record = record_of(model)
    assert record.graph == f"function {domain}::{op_type}"
    assert (record.op_type, record.types["X"]) == ("GridSample", ("float32",))
    sessions = [open_session(model)]
    for target in ("primitives", "com.microsoft"):
        sessions.append(open_native(ogs.patch_model(model, target=target)))
    expected = -ogs.grid_sample(X, GRID, "nearest")
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, FEEDS)[0], expected)


every_function_of_a_model = pytest.mark.parametrize(
    "function", [ogs.inspect_model, ogs.patch_model]
)


@every_function_of_a_model
def test_model_may_be_a_proto_bytes_or_a_path(
    function: Callable[..., object], tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(SAMPLE, path)
    expected = function(SAMPLE)
    for model in (path, str(path), SAMPLE.SerializeToString()):
        assert function(model) == expected
        assert function(model=model) == expected


@every_function_of_a_model
def test_model_at_a_missing_path_is_refused(
    function: Callable[..., object], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        function(tmp_path / "missing.onnx")


@every_function_of_a_model
@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (b"no model", r"the model is not readable as protobuf \(.+\), expected an ONNX model"),
        (b"", "the model is without a graph, expected an ONNX model"),
        (7, "model is of type int, expected a ModelProto, bytes or a path"),
    ],
    ids=["damaged", "empty", "number"],
)
def test_value_that_is_no_model_is_refused(
    function: Callable[..., object], model: object, sentence: str
) -> None:
    with pytest.raises(ogs.GridSampleError, match=f"^model: {sentence}$"):
        function(model)


def test_node_of_a_domain_without_an_import_has_the_version_of_its_dialect() -> None:
    model = parser.parse_model(
        f"{HEADER} {SIGNATURE} {{ Y = mmcv.grid_sampler <align_corners = 0> (X, G) }}"
    )
    del model.opset_import[1:]
    assert [opset.domain for opset in model.opset_import] == [""]
    record = record_of(model)
    assert (record.dialect.name, record.opset) == ("mmcv", 1)


def test_size_that_a_function_passes_on_as_an_attribute_is_refused() -> None:
    domain = "org.pytorch.aten"
    model = parsed(f"""g (float[1,2,3] theta) => (float[N,H,W,R] Y) {{
            Y = local.make <s = [1, 1, 3, 5]> (theta) }}
        <domain: "local", opset_import: ["": 20, "{domain}": 1]> make <s> (A) => (C) {{
            C = {domain}.affine_grid_generator <align_corners = 0, size: ints = @s> (A) }}""")
    error = record_of(model).error
    assert error is not None
    assert (error.argument, error.found) == ("size", "the attribute 's' of its function")


def attention_with_wide_grids(levels: Collection[int]) -> onnx.ModelProto:
    """Return deformable attention of three levels; the grids of these levels are float64.

    onnxruntime has no kernel for a GridSample whose grid is float64 and whose X is float32.
    """
    model = form("stacked/static-dynamo")
    nodes = []
    level = 0
    for node in model.graph.node:
        if node.op_type == "GridSample":
            if level in levels:
                wide = f"wide_{level}"
                nodes.append(
                    onnx.helper.make_node("Cast", [node.input[1]], [wide], to=TensorProto.DOUBLE)
                )
                node.input[1] = wide
            level += 1
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize("levels", [(), (0,), (2,), (0, 1, 2)], ids=str)
def test_attention_is_native_if_onnxruntime_runs_its_grid_samples(levels: tuple[int, ...]) -> None:
    model = attention_with_wide_grids(levels)
    attention, *samples = ogs.inspect_model(model)
    assert attention.operator == "DeformableAttention"
    assert [sample.native for sample in samples] == [level not in levels for level in range(3)]
    assert attention.native == (not levels)
    if levels:
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
            open_native(model)
        refused = samples[levels[0]]
        assert attention.reason == f"its {refused.where}: {refused.reason}"
    else:
        open_native(model)


def test_inspect_of_attention_that_onnxruntime_refuses_prints_no(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(attention_with_wide_grids([1]), path)
    assert main(["inspect", "--json", str(path)]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["native"] for record in records] == [False, True, False, True]
    assert records[0]["reason"].startswith("its GridSample node ")
    assert main(["inspect", str(path)]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert re.search(r"DeformableAttention-\d+ .* no \[1\]  replaces its GridSamples", row)


def test_attention_of_records_without_a_probe_is_not_native() -> None:
    attention, *samples = records_of(attention_with_wide_grids(()))
    assert {record.reason for record in (attention, *samples)} == {NOT_ASKED}
    assert columns(attention)["native"] == "unknown"


@pytest.mark.usefixtures("python_ops")
@pytest.mark.parametrize(("levels", "is_replaced"), [((), False), ((1,), True)], ids=str)
def test_session_of_unsupported_nodes_replaces_attention_that_onnxruntime_refuses(
    levels: tuple[int, ...], is_replaced: bool
) -> None:
    model = attention_with_wide_grids(levels)
    session = ogs.InferenceSession(model, nodes="unsupported")
    attentions = [p for p in session.placements if p.record.operator == "DeformableAttention"]
    assert any(placement.is_ours for placement in attentions) == is_replaced
    feeds = form_feeds("stacked")
    (expected,) = open_native(attention_with_wide_grids(())).run(None, feeds)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=0, atol=1e-5)


def test_decomposed_grid_sample_is_native() -> None:
    model = ogs.patch_model(SAMPLE, target="primitives")
    record = record_of(model)
    assert record.decomposed
    assert record.native
    open_native(model)


def test_fused_affine_grid_has_a_native_of_its_own() -> None:
    """Onnxruntime runs the AffineGrid, and not the GridSample that it is fused into."""
    model = parsed(
        """g (float[1,2,3] theta, uint8[1,1,4,4] X) => (uint8[1,1,3,4] Y)
        <int64[4] size = {1, 1, 3, 4}> {
            grid = AffineGrid (theta, size)
            Y = GridSample (X, grid) }""",
        20,
    )
    records = {record.operator: record for record in ogs.inspect_model(model)}
    assert records["AffineGrid"].native
    assert not records["GridSample"].native
