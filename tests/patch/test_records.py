"""What is known of a node, and how it is said."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, parser

import ort_gridsample as ogs
from ort_gridsample import spec
from ort_gridsample.cli import main
from ort_gridsample.detection.find import records_of
from ort_gridsample.detection.records import NOT_ASKED, columns
from ort_gridsample.dialects.spelling import AttributeReference
from ort_gridsample.graph.element_types import elem_type
from ort_gridsample.session import forks, native
from support.cases import Attributes
from support.graphs import FEEDS, GRID, HEADER, SIGNATURE, X, one_node
from support.models import affine_grid_model, grid_sample_model
from support.paths import open_native, open_session

WARP = grid_sample_model("float32", "float32", 2, [Attributes("linear", "border", True)], opset=20)
PASSES_ON = parser.parse_model(f"""{HEADER} {SIGNATURE} {{ Y = local.warp <m = "nearest", ac = 1> (X, G) }}
    <domain: "local", opset_import: ["": 20]> warp <m, ac> (A, B) => (C) {{
        C = GridSample <mode: string = @m, align_corners: int = @ac> (A, B) }}""")


def test_records_are_hashable() -> None:
    [one], [same], [other] = map(ogs.inspect_model, (WARP, WARP, PASSES_ON))
    assert ({one: "found"}[same], len({one, same, other})) == ("found", 2)
    assert len({one.dialect, same.dialect, other.dialect}) == len({one.dialect, other.dialect})


def test_repr_says_what_inspect_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model in (
        WARP,
        PASSES_ON,
        affine_grid_model("float32", 3, False),
        one_node(mode="lanczos"),
    ):
        (record,) = ogs.inspect_model(model)
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        assert main(["inspect", str(path)]) == 0
        shown = capsys.readouterr().out
        for text in (*columns(record).values(), record.reason, record.graph):
            assert text in repr(record)
            assert text in shown
    said = "node: sample0, operator: GridSample-20, mode: linear, padding: border, align: 1, "
    said += "inputs: float32 4-D, float32 4-D, native: yes, a patch: replaces it"
    assert repr(ogs.inspect_model(WARP)[0]) == f"<NodeRecord {said}>"


def test_what_a_function_passes_on_reads_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = ogs.inspect_model(PASSES_ON)
    mode, align_corners = AttributeReference("m"), AttributeReference("ac")
    assert record.attributes == {
        "mode": mode,
        "padding_mode": "zeros",
        "align_corners": align_corners,
    }
    assert (str(record.mode), record.padding_mode, str(record.align_corners)) == (
        "@m",
        "zeros",
        "@ac",
    )
    path = tmp_path / "model.onnx"
    onnx.save(PASSES_ON, path)
    assert main(["inspect", str(path), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["mode"], said["align_corners"]) == ("@m", "@ac")


def test_onnxruntime_is_asked_where_the_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, expected in ((None, (False, NOT_ASKED)), (native, (True, ""))):
        (record,) = records_of(WARP, told)
        assert (record.native, record.reason) == expected
    asked, refusal = [], native.refusal
    monkeypatch.setattr(native, "refusal", lambda *a: asked.append(a[2]) or refusal(*a))
    for nodes, times in (("all", 0), ("unsupported", 1), (lambda record: not record.native, 1)):
        asked.clear()
        ogs.patch_model(WARP, nodes=nodes)
        open_session(WARP)
        assert asked == ["GridSample"] * times


def test_a_kernel_that_answers_wrongly_does_not_run_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older releases clip the coordinates of cubic with border padding, not the taps."""

    class Older(onnxruntime.InferenceSession):  # type: ignore[misc]
        def run(self, names: object, feeds: dict[str, np.ndarray], *_: object) -> list[np.ndarray]:
            return list(super().run(names, feeds | {"grid": feeds["grid"].clip(-1, 1)}))

    model = grid_sample_model("float32", "float32", 2, [Attributes("cubic", "border", True)])
    native._refusal.cache_clear()
    monkeypatch.setattr(forks, "_PLAIN_SESSION", Older)
    (record,) = ogs.inspect_model(model)
    native._refusal.cache_clear()
    assert record.native is False
    assert re.fullmatch(
        r"its own kernel is off by 0\.\d+ where values are in \[-1, 1\]", record.reason
    )


@pytest.mark.parametrize(
    ("theta_type", "rank"), [*zip(spec.FLOATS, (2, 3, 2, 3), strict=True), ("float32", 3)]
)
def test_affine_grid_records(theta_type: str, rank: int) -> None:
    model = affine_grid_model(theta_type, rank, True)
    (record,) = ogs.inspect_model(model)
    assert (record.operator, record.mode, record.padding_mode, record.align_corners) == (
        "AffineGrid",
        None,
        None,
        1,
    )
    assert (record.spatial_axes, record.types) == (
        (rank,),
        {"theta": (theta_type,), "size": ("int64",)},
    )
    # Native or not is what onnxruntime itself answers when it is given the model.
    theta = np.zeros((1, rank, rank + 1), "float32" if theta_type == "bfloat16" else theta_type)
    try:
        open_native(model).run(None, {"theta": theta, "size": np.array([1, 1, *[2] * rank])})
        runs = True
    except Exception:
        runs = False
    assert record.native == runs, record.reason
    assert ogs.patch_model(model, nodes="unsupported") == (
        model if runs else ogs.patch_model(model)
    )


THETAS = [
    ("float[N,2,3]", "int64[4]", (2,)),
    ("float[N,r,4]", "int64[n]", (3,)),
    ("float[N,r,s]", "int64[5]", (3,)),
]
THETAS += [("float[N,3,4]", "int64", (3,)), ("float[N,r,s]", "int64[n]", ())]


@pytest.mark.parametrize(("theta", "size", "axes"), THETAS)
def test_spatial_axes_of_an_affine_grid_from_any_shape(
    theta: str, size: str, axes: tuple[int, ...]
) -> None:
    model = parser.parse_model(
        f"{HEADER} g ({theta} T, {size} S) => (float[N,h,w,r] Y) {{ Y = AffineGrid (T, S) }}"
    )
    if size == "int64":  # the parser reads this as a number; without a shape it may be anything
        model.graph.input[1].type.tensor_type.ClearField("shape")
    (record,) = ogs.inspect_model(model)
    assert record.spatial_axes == axes


@pytest.mark.parametrize(
    ("X_type", "opset"), [("float32", 20), ("float32", 22), ("bfloat16", 22), ("uint8", 20)]
)
def test_what_onnxruntime_runs_is_what_it_says_when_tried(X_type: str, opset: int) -> None:
    model = one_node(elem_type(X_type), opset=opset, shapes="float[1,1,2,2] X, float[1,2,2,2] G")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (record,), says = ogs.inspect_model(model), ""
    try:
        open_native(model)
    except Exception as error:
        says = str(error)
    assert record.native == (not says)
    # It was tried alone, without its name, and fed what numpy has.
    says = says.replace("'warp'", "''").replace("(warp)", "()")
    assert (record.reason or "").replace(f"X as {X_type}", "X") == says


def test_the_action_names_the_types_and_a_patched_node_is_this_packages() -> None:
    half = one_node(TensorProto.FLOAT16, TensorProto.BFLOAT16, opset=22)
    (record,) = ogs.inspect_model(half)
    assert record.casts == {"X": "float32", "grid": "float32"}
    assert record.action == "replaces it, cast X float16 → float32, cast grid bfloat16 → float32"
    for model, target in ((half, "ort_gridsample"), (WARP, "ort_gridsample"), (WARP, "compiled")):
        (record,) = ogs.inspect_model(ogs.patch_model(model, target=target))
        said = (record.native, record.reason, record.action)
        assert said == (False, "it is a node of this package", "nothing, it is patched")
    (record,) = ogs.inspect_model(affine_grid_model("bfloat16", 2, False))
    assert (record.native, record.action) == (False, "replaces it, cast theta bfloat16 → float32")
    assert record.reason


#: Functions that are called as a dialect calls its operators.
NAMESAKES = [
    ("custom.plugins", "GridSampler"),
    ("custom.plugins", "GridSample3D"),
    ("mmcv", "grid_sampler"),
]
NAMESAKES += [("aten", "grid_sampler_2d"), ("aten", "affine_grid_generator")]


@pytest.mark.parametrize(("domain", "op_type"), NAMESAKES)
def test_a_function_named_like_a_dialects_operator_is_a_function(domain: str, op_type: str) -> None:
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 20, "{domain}": 1]>
        {SIGNATURE} {{ Y = {domain}.{op_type} (X, G) }}
        <domain: "{domain}", opset_import: ["": 20]> {op_type} (A, B) => (C) {{
            D = GridSample <mode = "nearest"> (A, B) C = Neg (D) }}""")
    (record,) = ogs.inspect_model(model)
    said = (record.graph, record.op_type, record.types["X"])
    assert said == (f"function {domain}::{op_type}", "GridSample", ("float32",))
    lowered = [ogs.patch_model(model, target=target) for target in ("primitives", "com.microsoft")]
    for session in (open_session(model), *map(open_native, lowered)):
        np.testing.assert_array_equal(
            session.run(None, FEEDS)[0], -ogs.grid_sample(X, GRID, "nearest")
        )


@pytest.mark.parametrize("function", [ogs.inspect_model, ogs.patch_model])
def test_a_model_comes_as_proto_bytes_or_path(function: object, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(WARP, path)
    expected = function(WARP)
    for model in (path, str(path), WARP.SerializeToString()):
        assert function(model) == function(model=model) == expected
    with pytest.raises(FileNotFoundError):
        function(tmp_path / "missing.onnx")
    for wrong, sentence in (
        (b"no model", r"the model is not readable as protobuf \(.+\), expected an ONNX model"),
        (b"", "the model is without a graph, expected an ONNX model"),
        (7, "model is of type int, expected a ModelProto, bytes or a path"),
    ):
        with pytest.raises(ogs.GridSampleError, match=f"^model: {sentence}$"):
            function(wrong)


def test_a_domain_that_is_not_imported_is_of_its_dialects_version() -> None:
    model = parser.parse_model(
        f"{HEADER} {SIGNATURE} {{ Y = mmcv.grid_sampler <align_corners = 0> (X, G) }}"
    )
    del model.opset_import[1:]
    assert [opset.domain for opset in model.opset_import] == [""]
    (record,) = ogs.inspect_model(model)
    assert (record.dialect.name, record.opset) == ("mmcv", 1)
