"""The command line, as a user types it."""

import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY, MagicMock, Mock

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample import versions
from ort_gridsample.cli import main, output_comparison
from ort_gridsample.cli.inputs import random_array
from ort_gridsample.cli.output import print_json
from ort_gridsample.custom_ops.provider.definitions import NAME as PROVIDER
from ort_gridsample.session import decisions, prediction
from support.attention_models import form
from support.cases import Attributes
from support.external_data import GRID, WRONG_GRID, X, cached_model, external_model
from support.models import grid_sample_model, parsed
from support.parameters import OPS
from support.paths import HAS_PROVIDER

#: A function of a command's words and its exit status, which returns its stdout, or its stderr if
#: the status is 2 or more.
Cli = Callable[..., str]

FAR = np.where(np.arange(GRID.size).reshape(GRID.shape) == 0, np.float32(3e9), GRID)
NO_PICTURES = not (find_spec("matplotlib") and find_spec("PIL"))
DEMO = pytest.mark.skipif(NO_PICTURES, reason="the demo needs matplotlib and pillow")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(words: str, status: int = 0) -> str:
        try:
            exit_status = main(words.split())
        except SystemExit as end:  # argparse's
            exit_status = end.code
        assert exit_status == status
        out, err = capsys.readouterr()
        assert (out if status > 1 else err) == ""
        return err if status > 1 else out

    return run


DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model and its inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    attributes = Attributes("cubic", "border", True)
    onnx.save(grid_sample_model("float32", "float32", 2, [attributes], 20), "model.onnx")
    for name, array in {"X": X, "grid": GRID, "wrong": WRONG_GRID, "far": FAR}.items():
        np.save(f"{name}.npy", array)
    return tmp_path


@pytest.fixture
def external() -> None:
    """Create the folders in, out and elsewhere, and a model with external data in the first."""
    for name in ("in", "out", "elsewhere"):
        Path(name).mkdir()
    external_model(Path("in"))


def save(graph: str, path: str) -> None:
    onnx.save(parsed(f"g {graph}"), path)


def files(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def assert_patched_output(path: str) -> None:
    session = onnxruntime.InferenceSession(path, ogs.register())
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], ogs.grid_sample(X, GRID))


def test_version_lists_releases(cli: Cli) -> None:
    (line,) = cli("--version").splitlines()
    releases = f"ort-gridsample {ogs.__version__}, onnxruntime {onnxruntime.__version__},"
    assert line.startswith(releases)
    assert f"numpy {np.__version__}" in line


def test_inspect_shows_attributes_types_and_placement(cli: Cli) -> None:
    out = cli("inspect model.onnx")
    cells = [
        "",
        "sample0",
        "GridSample-20",
        "cubic",
        "border",
        "1",
        "float32 4-D, float32 4-D",
        "yes",
    ]
    row = " +".join(cells)
    runs_on = r"(compiled op\n|onnxruntime \[1\]\n.*\[1\] \w+)"
    assert re.search(rf"main graph\n.* a patch +a session\n{row} +replaces it +{runs_on}", out)


def test_two_nodes_have_a_row_each_and_are_counted(cli: Cli) -> None:
    model = grid_sample_model("uint8", "float32", 2, [Attributes(), Attributes("nearest")])
    onnx.save(model, "two.onnx")
    lines = cli("inspect two.onnx").splitlines()
    first_words = [line.split()[0] for line in lines if not line.startswith("    ")]
    assert first_words == ["main", "node", "sample0", "sample1", "[1]"]
    assert cli("patch two.onnx patched.onnx").endswith("\npatched.onnx: 2 nodes replaced\n")


def test_inspect_json_has_the_record_and_the_placement(cli: Cli) -> None:
    (record,) = json.loads(cli("inspect --json model.onnx"))
    assert record["name"] == "sample0"
    assert record["mode"] == "cubic"
    assert record["align_corners"] == 1
    assert record["native"] is True
    session = {"runs_on": "onnxruntime", "reason": ANY, "fused": [], "library": ""}
    if "compiled" in OPS:
        session |= {"runs_on": "compiled op", "reason": ""}
    assert record["session"] == session
    assert record["inputs"]["X"] == [
        {"type": "float32", "rank": 4, "shape": ["N", "C", "D0", "D1"]}
    ]


WARP = "(float[n,1,5,7] X, float[n,9,9,2] G) => (float[n,1,9,9] Y)"
#: Nodes that a session refuses: their graph, their opset, and a word of the error.
REFUSED = {
    "a mode of another opset": (
        f'{WARP} {{ Y = GridSample <mode = "linear"> (X, G) }}',
        17,
        "mode",
    ),
    "an unknown mode": (f'{WARP} {{ Y = GridSample <mode = "lanczos"> (X, G) }}', 20, "mode"),
    "an unknown attribute": (f"{WARP} {{ Y = GridSample <factor = 2> (X, G) }}", 20, "factor"),
    "an attribute of another type": (
        f'{WARP} {{ Y = GridSample <align_corners = "yes"> (X, G) }}',
        20,
        "align",
    ),
    "a missing input": (f"{WARP} {{ Y = GridSample (X) }}", 20, "grid"),
    "a grid of integers": (
        f"{WARP.replace('float[n,9', 'int32[n,9')} {{ Y = GridSample (X, G) }}",
        20,
        "int32",
    ),
    "a grid of another rank": (
        f"{WARP.replace('9,9,2', '9,2')} {{ Y = GridSample (X, G) }}",
        20,
        "grid",
    ),
    "an opset without it": (f"{WARP} {{ Y = GridSample (X, G) }}", 15, "opset"),
    "a size of three": (
        "(float[1,2,3] t) => (float[a,b,c,d] Y) <int64[3] s = {1, 2, 3}> { Y = AffineGrid (t, s) }",
        20,
        "size",
    ),
}


@pytest.mark.parametrize(("graph", "opset", "word"), REFUSED.values(), ids=REFUSED)
def test_inspect_of_a_refused_node_shows_the_error(
    graph: str, opset: int, word: str, cli: Cli
) -> None:
    model = parsed(f"g {graph}", opset)
    onnx.save(model, "refused.onnx")
    with pytest.raises(ogs.GridSampleError) as refused:
        ogs.InferenceSession(model=model)
    out = cli("inspect refused.onnx")
    assert "refuses it [1]\n" in out
    assert f"[1] {refused.value}" in " ".join(out.split())
    assert not any(kind in out for kind in ("compiled op", "Python op", " onnxruntime"))
    (record,) = json.loads(cli("inspect refused.onnx --json"))
    session = {"runs_on": None, "reason": str(refused.value), "fused": [], "library": ""}
    assert record["session"] == session
    assert (record["native"], record["reason"]) == (False, str(refused.value))
    assert word in str(refused.value)


def test_inspect_of_a_refused_node_asks_no_provider() -> None:
    graph, opset, _ = REFUSED["a mode of another opset"]
    accelerator_probe = MagicMock()
    (placement,) = prediction.predict_placements(parsed(f"g {graph}", opset), accelerator_probe)
    assert (placement.runs_on, placement.reason) == ("", str(placement.record.error))
    accelerator_probe.form_of.assert_not_called()


@pytest.mark.parametrize("release", ["1.25.1", "1.26.0"])
def test_inspect_warns_of_a_kernel_that_reads_outside_of_x(
    release: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "compiled_ops_unavailable_reason", lambda: "no Numba here")
    monkeypatch.setattr(onnxruntime, "__version__", release)
    (record,) = json.loads(cli("inspect model.onnx --json"))
    reason = record["session"]["reason"]
    assert record["session"]["runs_on"] == "onnxruntime"
    assert reason.startswith("no Numba here")
    is_unsafe = release < versions.ONNXRUNTIME_STAYS_INSIDE_X
    assert ("unsafe for untrusted grids" in reason) == is_unsafe
    text = " ".join(cli("inspect model.onnx").split())
    assert ("unsafe for untrusted grids" in text) == is_unsafe


def test_inspect_does_not_warn_of_compiled_ops(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "compiled_ops_unavailable_reason", lambda: "")
    monkeypatch.setattr(onnxruntime, "__version__", "1.25.1")
    out = cli("inspect model.onnx")
    assert "compiled op" in out
    assert "unsafe" not in out


def test_patched_model_runs_with_the_functions_output(cli: Cli) -> None:
    assert cli("patch model.onnx patched.onnx").splitlines() == [
        "GridSample 'sample0' → ort_gridsample op",
        "patched.onnx: 1 node replaced",
    ]
    assert onnx.load("patched.onnx") == ogs.patch_model("model.onnx")
    expected = ogs.grid_sample(X, GRID, "cubic", "border", True)
    for model in ("model", "patched"):
        out = cli(f"run {model}.onnx --input X=X.npy --input grid=grid.npy --output out")
        assert "output  Y0    float32  (1, 3, 4, 5)" in out
        Y = np.load("out/Y0.npy")
        # The model may run on onnxruntime's own kernel, which rounds differently.
        np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(Y, expected)


def test_inspect_for_a_runtime_without_gather_shows_multiply_adds(cli: Cli) -> None:
    model = grid_sample_model("float32", "float32", 2, [Attributes()])
    for value, shape in zip(model.graph.input, ((1, 3, 80, 90), (1, 20, 30, 2)), strict=True):
        del value.type.tensor_type.shape.dim[:]
        for length in shape:
            value.type.tensor_type.shape.dim.add().dim_value = length
    onnx.save(model, "known.onnx")
    _, head, row, _ = cli("inspect known.onnx --for gather-free").splitlines()
    assert head.split()[-1] == "multiply-adds"
    assert row.split()[-1] == "12,960,000"
    (record,) = json.loads(cli("inspect known.onnx --for ncnn --json"))
    assert record["multiply_adds"] == 12_960_000
    (record,) = json.loads(cli("inspect known.onnx --for mnn --json"))
    assert "multiply_adds" not in record


def test_patch_has_the_maximum_of_multiply_adds(cli: Cli) -> None:
    model = grid_sample_model("float32", "float32", 1, [Attributes()])
    for value, shape in zip(model.graph.input, ((1, 1, 9), (1, 2, 1)), strict=True):
        del value.type.tensor_type.shape.dim[:]
        for length in shape:
            value.type.tensor_type.shape.dim.add().dim_value = length
    onnx.save(model, "known.onnx")
    cli("patch known.onnx lowered.onnx --for gather-free --max-multiply-adds 18")
    error = cli("patch known.onnx lowered.onnx --for gather-free --max-multiply-adds 17", 2)
    assert "multiply-adds is 18, for X of shape (1, 1, 9)" in error


def test_patch_has_the_functions_options(cli: Cli) -> None:
    out = cli("patch model.onnx lowered.onnx --target primitives --functions --for mnn --opset 18")
    assert out.splitlines() == [
        "GridSample 'sample0' → basic operators",
        "lowered.onnx: 1 node replaced",
        "lowered.onnx: opset 20 → 18",
    ]
    expected = ogs.patch_model(
        "model.onnx", target="primitives", functions=True, for_runtime="mnn", opset=18
    )
    assert onnx.load("lowered.onnx") == expected


def test_patch_for_a_runtime_names_what_each_node_became(cli: Cli) -> None:
    model = parsed(
        """g (float[1,2,4,5,6] X, float[1,3,3,3,3] G, float[1,2,4,5] Z, float[1,3,3,2] H)
            => (float[] A, float[] B, float[] C) {
            [linear] A = GridSample (X, G)
            [cubic] B = GridSample <mode = "cubic"> (X, G)
            [picture] C = GridSample (Z, H) }""",
        20,
    )
    onnx.save(model, "three.onnx")
    assert cli("patch three.onnx patched.onnx --for openvino").splitlines() == [
        "GridSample 'linear' → 4-D GridSample nodes",
        "GridSample 'cubic' → basic operators",
        "patched.onnx: 2 nodes replaced",
        "patched.onnx: opset 20 → 19",
    ]
    assert onnx.load("patched.onnx") == ogs.patch_model("three.onnx", for_runtime="openvino")


def test_patch_for_tensorrt_names_the_plugin(cli: Cli) -> None:
    onnx.save(form("stacked/static-dynamo"), "attention.onnx")
    line, *_ = cli("patch attention.onnx patched.onnx --for tensorrt").splitlines()
    assert line.startswith("DeformableAttention ")
    assert line.endswith(" → tensorrt-plugins node")
    out = cli("patch attention.onnx patched.onnx --target ai.onnx-2d --for tensorrt")
    assert out == "patched.onnx: opset 20 → 19\n"  # its GridSamples get opset 19's words


def test_patch_for_an_unknown_runtime_is_refused(cli: Cli) -> None:
    error = cli("patch model.onnx patched.onnx --for toaster", 2)
    assert "for_runtime is 'toaster', expected 'coreml', " in error


def test_inspect_for_a_runtime_prints_verdicts_and_sources(cli: Cli) -> None:
    *rows, reason, hint = cli("inspect model.onnx --for tensorrt").splitlines()
    assert rows[1].split()[-1] == "TensorRT"
    assert rows[2].endswith("wrong [1]")
    assert reason.startswith("[1] TensorRT gets a wrong result for linear and cubic as opset 20")
    assert "(tried 2026-" in reason
    assert "NVIDIA/TensorRT issue 4646" in reason
    assert hint == "ort-gridsample patch model.onnx OUT --for tensorrt writes a model for TensorRT"


def test_inspect_for_a_runtime_prints_facts_in_json(cli: Cli) -> None:
    (record,) = json.loads(cli("inspect model.onnx --for openvino --json"))
    verdict = record["for"]
    assert (verdict["runtime"], verdict["verdict"]) == ("OpenVINO", "refuses before 2026.3")
    (fact,) = verdict["facts"]
    assert (fact["tried"], fact["until"], fact["first_opset"]) == (True, "2026.3", 20)
    assert verdict["reasons"] == [
        f"OpenVINO refuses {fact['what']} before 2026.3 (tried {fact['date']}: {fact['source']})"
    ]
    (record,) = json.loads(cli("inspect model.onnx --json"))
    assert "for" not in record


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--for toaster", "inspect: --for is 'toaster', expected 'coreml', "),
        ("--for qnn --provider CPUExecutionProvider", "--for is given with --provider, expected"),
    ],
)
def test_inspect_for_a_runtime_refuses_other_options(words: str, message: str, cli: Cli) -> None:
    assert message in cli(f"inspect model.onnx {words}", 2)


def test_patch_of_half_precision_names_the_casts(cli: Cli) -> None:
    onnx.save(grid_sample_model("float16", "float16", 2, [Attributes()]), "half.onnx")
    line, _ = cli("patch half.onnx patched.onnx").splitlines()
    casts = "X cast from float16 to float32 and grid cast from float16 to float32"
    assert line == f"GridSample 'sample0' → ort_gridsample op, with {casts}"


LIBRARY_ARGUMENTS = [
    ("out.so --cpu generic --model a.onnx", ["generic"], ["a.onnx"]),
    ("out.so --model a.onnx b.onnx", [], ["a.onnx", "b.onnx"]),
    ("out.so --model a.onnx --model b.onnx", [], ["a.onnx", "b.onnx"]),
    ("--model a.onnx --model b.onnx out.so", [], ["a.onnx", "b.onnx"]),
    ("--model a.onnx b.onnx out.so --cpu generic", ["generic"], ["a.onnx", "b.onnx"]),
    ("--cpu generic native out.so", ["generic", "native"], None),
    ("--cpu generic --target x86_64-linux out.so", ["generic"], None),
]


@pytest.mark.parametrize(("words", "cpus", "models"), LIBRARY_ARGUMENTS)
def test_library_options_repeat_and_take_several_values(
    words: str,
    cpus: list[str],
    models: list[str] | None,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build = Mock(return_value="release 1")
    monkeypatch.setattr("ort_gridsample.cli.library.build_library", build)
    assert cli(f"library {words}") == "out.so: release 1\n"
    target = "x86_64-linux" if "--target" in words else None
    build.assert_called_once_with("out.so", cpus, target, models)


def test_library_without_out_is_refused(cli: Cli) -> None:
    """A model behind ``--model`` is not overwritten."""
    error = cli("library --model model.onnx model.onnx", 2)
    assert error.endswith("error: the following arguments are required: OUT\n")


@pytest.fixture
def half() -> str:
    """A file whose node has long cells in the table of inspect."""
    model = grid_sample_model("float16", "float16", 2, [Attributes()])
    model.graph.node[0].name = "a_name_of_forty_characters_is_not_too_long"
    onnx.save(model, "half.onnx")
    return "half.onnx"


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_inspect_lines_fit_columns(
    columns: int, half: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for path in ("model.onnx", half):
        lengths = [*map(len, cli(f"inspect {path}").splitlines())]
        assert columns - 40 < max(lengths) <= columns


@pytest.mark.parametrize("columns", [None, "", "0", "wide"])
def test_inspect_that_is_piped_prints_one_line_per_node_and_reason(
    columns: str | None, half: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    graph, head, row, *reasons = cli(f"inspect {half}").splitlines()
    assert (graph, head.split()[0]) == ("main graph", "node")
    assert row.split()[0] == "a_name_of_forty_characters_is_not_too_long"
    assert all(line.startswith("[") for line in reasons)


@pytest.mark.parametrize("columns", [80, 120])
def test_inspect_in_a_terminal_folds_at_its_width(
    columns: int, half: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr(os, "get_terminal_size", lambda file: size)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    lines = cli(f"inspect {half}").splitlines()
    assert columns - 40 < max(map(len, lines)) <= columns
    monkeypatch.setenv("COLUMNS", "90")
    assert max(map(len, cli(f"inspect {half}").splitlines())) <= 90


def test_run_random_prints_shapes_and_time_and_depends_on_the_seed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=iter((2.0, 2.25, 3.0, 3.25)).__next__)
    monkeypatch.setattr("ort_gridsample.cli.run.time", clock)
    out = cli("run model.onnx --random --shape X=1,2,9,9")
    assert out.startswith("        name  type     shape\ninput   X     float32  (1, 2, 9, 9)\n")
    assert "\noutput  Y0    float32  (1, 2, 8, 8)\n" in out
    assert "\ntime    250.00 ms (one run, without making the session)\n" in out
    clock.perf_counter = itertools.count().__next__
    for name, seed in {"a": "", "b": " --seed 0", "c": " --seed 1"}.items():
        cli(f"run model.onnx --random --output {name}{seed}")
    default, seed_0, seed_1 = (np.load(f"{name}/Y0.npy") for name in "abc")
    assert np.array_equal(default, seed_0)
    assert not np.array_equal(default, seed_1)


def test_inspect_of_a_file_with_the_name_of_a_command_needs_no_onnxruntime(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_module = Mock()
    monkeypatch.setattr("ort_gridsample.cli.check_module", check_module)
    os.rename("model.onnx", "bench")
    cli("inspect bench")
    check_module.assert_not_called()


def test_inspect_with_the_packages_provider_lists_the_nodes_of_an_unmodified_model(
    cli: Cli,
) -> None:
    pytest.importorskip("numba", reason="the provider needs compiled ops")
    words = f"inspect model.onnx --provider {PROVIDER}"
    if not HAS_PROVIDER:
        assert "execution providers" in cli(words, 2)
    elif not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"):
        assert "does not list the providers of nodes" in cli(words, 2)
    else:
        assert cli(words) == f"GridSample node 'sample0': {PROVIDER}\n"
        (row,) = json.loads(cli(f"{words} --json"))
        assert row == {
            "op_type": "GridSample",
            "name": "sample0",
            "n_others": 0,
            "provider": PROVIDER,
        }


@pytest.mark.skipif(not HAS_PROVIDER, reason="this onnxruntime has no such providers")
def test_inspect_with_the_packages_provider_reports_a_damaged_model(cli: Cli) -> None:
    Path("damaged.onnx").write_bytes(b"no model")
    assert "damaged.onnx" in cli(f"inspect damaged.onnx --provider {PROVIDER}", 2)


def test_run_accepts_the_shape_of_a_scalar(cli: Cli) -> None:
    onnx.save(parsed("g (float X) => (float Y) { Y = Neg (X) }", 20), "scalar.onnx")
    out = cli("run scalar.onnx --random --shape X=")
    assert out.splitlines()[1].split() == ["input", "X", "float32", "()"]


def test_run_refuses_an_input_without_a_file(cli: Cli) -> None:
    err = cli("run model.onnx --input X=", 2)
    expected = "--input has no file, expected an array saved by numpy.save"
    assert err == f"ort-gridsample: model.onnx: command line: {expected}\n"


@pytest.mark.parametrize("name", ["m", "model", "X"])
def test_error_names_a_file_whose_name_is_in_its_text(cli: Cli, name: str) -> None:
    os.rename("model.onnx", name)
    err = cli(f"run {name} --input X=X.npy --input grid=wrong.npy", 2)
    assert err.startswith(f"ort-gridsample: {name}: GridSample node 'sample0': grid is of shape")


def test_random_inputs_have_every_value_of_a_small_type() -> None:
    generator = np.random.default_rng(0)
    types = "bool", "string", "uint8", "float"
    arrays = {name: random_array(generator, "X", f"tensor({name})", (1000,)) for name in types}
    assert {*arrays["bool"]} == {False, True}
    assert {*arrays["string"]} == {*"abc"}
    assert (arrays["uint8"].min(), arrays["uint8"].max()) == (0, 99)
    assert -1 <= arrays["float"].min() < -0.99
    assert 0.99 < arrays["float"].max() < 1


def test_run_saves_each_output_in_a_separate_file(cli: Cli) -> None:
    """Also where a file system ignores the case of names."""
    np.save("two.npy", np.array([-2, -3], np.float32))
    save(
        "(float[2] X) => (float[2] p, float[2] q, float[2] A_b) {"
        " p = Neg (X) q = Abs (X) A_b = Exp (X) }",
        "m.onnx",
    )
    model = onnx.load("m.onnx")
    for i, name in enumerate(("a/b", "a:b")):
        model.graph.node[i].output[0] = name
        model.graph.output[i].name = name
    onnx.save(model, "m.onnx")
    out = cli("run m.onnx --input X=two.npy --output out")
    saved = re.findall(r"^saved   (.*): (.*)$", out, re.MULTILINE)
    files_of_outputs = {"a/b": "a_b.npy", "a:b": "a_b-2.npy", "A_b": "A_b-3.npy"}
    assert saved == [(name, str(Path("out", file))) for name, file in files_of_outputs.items()]
    outputs = [np.load(file) for _, file in saved]
    np.testing.assert_allclose(outputs, ([2, 3], [2, 3], np.exp([-2, -3])), rtol=1e-6)


OUTSIDE_ERROR = "external data is outside the folder of"
SAME_FILE_ERROR = "external data is the model file itself"


@pytest.mark.usefixtures("external")
@pytest.mark.parametrize("location", ["weights.bin", "../in/weights.bin"])
def test_external_data_stays_external(location: str, cli: Cli) -> None:
    """Also if its location leaves the model's folder and comes back."""
    model = onnx.load("in/model.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    Path("in/model.onnx").write_bytes(model.SerializeToString())
    copied = "out/weights.bin: external data, copied\n"
    replaced = "out/patched.onnx: 1 node replaced\n"
    for path, last_line in (
        ("in/patched.onnx", "in/patched.onnx: 1 node replaced\n"),
        ("out/patched.onnx", copied),
        ("out/patched.onnx", replaced),  # into a folder that has the data already
    ):
        assert cli(f"patch in/model.onnx {path}").endswith(last_line)
        assert Path(path).stat().st_size < 10_000
        assert_patched_output(path)
    assert files("out") == ["patched.onnx", "weights.bin"]
    Path("out/weights.bin").write_bytes(b"another")
    error = cli("patch in/model.onnx out/patched.onnx", 2)
    assert error.endswith("out/weights.bin, expected no other file at that path\n")
    assert Path("out/weights.bin").read_bytes() == b"another"


@pytest.mark.usefixtures("external")
def test_external_data_behind_links_is_copied(cli: Cli) -> None:
    path = cached_model(Path("elsewhere"))
    # Another opset also converts the other nodes of the model.
    out = cli(f"patch {path} out/patched.onnx --opset 17")
    assert "out/patched.onnx: opset 20 → 17\n" in out
    assert Path("out/patched.onnx").stat().st_size < 10_000
    assert_patched_output("out/patched.onnx")
    neighbour = path.with_name("patched.onnx")
    assert OUTSIDE_ERROR in cli(f"patch {path} {neighbour}", 2)
    assert not neighbour.exists()


@pytest.mark.usefixtures("external")
def test_external_data_is_not_written_over_nor_through_a_link(cli: Cli) -> None:
    before = Path("in/weights.bin").read_bytes()
    for out, expected in (
        ("in/weights.bin", SAME_FILE_ERROR),
        ("out/weights.bin", SAME_FILE_ERROR),
        ("out/patched.onnx", OUTSIDE_ERROR),
    ):
        if out == "out/patched.onnx":
            Path("out/weights.bin").symlink_to(Path("elsewhere/weights.bin").absolute())
        assert expected in cli(f"patch in/model.onnx {out}", 2), out
        assert files("elsewhere") == []
        assert files("out") == (["weights.bin"] if out == "out/patched.onnx" else [])
    assert Path("in/weights.bin").read_bytes() == before


@pytest.mark.usefixtures("external")
def test_failed_patch_leaves_only_the_previous_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A patch that fails leaves no copy of external data, and keeps the existing model."""
    out = Path("out/patched.onnx")
    out.mkdir()  # a folder with the name of the model
    error = "ort-gridsample: [Errno 21] Is a directory: 'out/patched.onnx'\n"
    assert cli("patch in/model.onnx out/patched.onnx", 2) == error
    assert files("out") == ["patched.onnx"]
    out.rmdir()
    out.write_bytes(b"before")
    no_space = MagicMock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(Path, "write_bytes", no_space)
    cli("patch model.onnx out/patched.onnx", 2)
    assert files("out") == ["patched.onnx"]
    assert out.read_bytes() == b"before"


def border_model(kind: str) -> onnx.ModelProto:
    """Return a GridSample with border padding, in the main graph, in a branch or in a function."""
    sample = 'Y = GridSample <mode = "linear", padding_mode = "border"> (X, given)'
    branches = ", ".join(
        f"{name}_branch = {name} () => (Y) {{ {sample} }}" for name in ("then", "else")
    )
    body = {
        "main": sample,
        "function": "Y = f.warp (X, given)",
        "branch": f"yes = Constant <value = bool {{1}}> () Y = If (yes) <{branches}>",
    }
    function = f'<domain: "f", opset_import: ["": 20]> warp (X, given) => (Y) {{ {sample} }}'
    return parsed(f"""g (float[N, C, H, W] X, float[N, h, w, 2] given) => (float[N, C, h, w] Y) {{
        {body[kind]} }}
        {function if kind == "function" else ""}""")


def test_verify_of_a_difference_lists_those_that_are_no_fault(cli: Cli) -> None:
    onnx.save(border_model("main"), "a.onnx")
    cli("patch a.onnx b.onnx --target primitives")
    out = cli("verify a.onnx b.onnx --input X=X.npy --input given=grid.npy")
    assert "no fault" not in out
    out = cli("verify a.onnx b.onnx --input X=X.npy --input given=far.npy", 1)
    assert re.search(r"Y +float32 +\S+ \S+ \S+ \S+ .* differs\ntwo differences are no fault", out)


def test_verify_compares_outputs_of_any_type() -> None:
    # These integers are equal as float64.
    a = np.array([2**60])
    b = np.array([2**60 + 1])
    assert output_comparison.difference(a, b)[0] > 0
    assert output_comparison.difference(a, a)[0] == 0
    assert not output_comparison.compare_outputs({"Y": a}, {"Y": b}, 1e-5)[0].agrees
    assert output_comparison.difference(np.array([1 + 1j]), np.array([1 + 3j]))[0] == 2
    strings = [np.array([text], object) for text in "ab"]
    assert output_comparison.difference(*strings)[0] == np.inf


def test_verify_of_an_infinite_and_a_finite_value_has_an_infinite_difference() -> None:
    assert output_comparison.difference(np.array([np.inf]), np.array([0.0]))[0] == np.inf


@pytest.mark.parametrize("values", [[], [np.nan], [np.nan, np.inf, -np.inf]])
def test_verify_compares_outputs_without_a_finite_value(values: list[float]) -> None:
    Y = np.array(values, "f")
    (result,) = output_comparison.compare_outputs({"Y": Y}, {"Y": Y.copy()}, 1e-5)
    assert (result.difference, result.magnitude, result.agrees) == (0, 0, True)


def test_log_of_onnxruntime_about_refused_model_is_hidden(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = "verify model.onnx model.onnx --input X=X.npy --input grid=wrong.npy"
    assert main(words.split()) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ort-gridsample: ")


def all_keys(content: object) -> set[str]:
    """Return the keys of all objects in the content of a JSON file."""
    if isinstance(content, dict):
        return set(content).union(*map(all_keys, content.values()))
    if isinstance(content, list):
        return set().union(*map(all_keys, content))
    return set()


#: A command -> the keys of its JSON output.
JSON_KEYS = {
    "inspect model.onnx": (
        "X action align_corners domain fused graph grid inputs library mode name native op_type"
        " opset padding_mode rank reason runs_on session shape type"
    ),
    "verify model.onnx model.onnx": (
        "A B agree agrees difference magnitude model name note outputs refusal shape type way"
    ),
    "bench model.onnx --rounds 1": (
        "Python core difference median model nodes numba numpy onnx onnxruntime"
        " onnxruntime-extensions op_type ort-gridsample ort_gridsample prefetching quartiles"
        " ratio rounds sample0 seconds shares sides threads versions"
    ),
    "run model.onnx --random --output out": "model inputs outputs seconds name type shape file",
}
#: Packages that are listed only if they are installed.
OPTIONAL_KEYS = {"numba", "onnxruntime-extensions"}


def fail_on_constant(name: str) -> None:
    pytest.fail(f"{name} is not JSON")


@pytest.mark.parametrize("words", JSON_KEYS)
def test_json_option_prints_only_json(words: str, cli: Cli) -> None:
    content = json.loads(cli(f"{words} --json"), parse_constant=fail_on_constant)
    assert all_keys(content) ^ set(JSON_KEYS[words].split()) <= OPTIONAL_KEYS


def test_json_of_a_run_has_the_saved_outputs(cli: Cli) -> None:
    content = json.loads(cli("run model.onnx --random --output out --json"))
    file = str(Path("out", "Y0.npy"))
    assert content["outputs"] == [
        {"name": "Y0", "type": "float32", "shape": [1, 8, 8, 8], "file": file}
    ]


def test_print_json_of_a_number_that_json_lacks_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"numbers": [0.5, np.nan, (np.inf, -np.inf, 2)]})
    assert json.loads(capsys.readouterr().out) == {"numbers": [0.5, None, [None, None, 2]]}


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_output_in_any_encoding_succeeds(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a node's name in Cyrillic. The stream keeps its error handler."""
    model = grid_sample_model("float16", "float16", 2, [Attributes()])
    model.graph.node[0].name = "Маша"
    onnx.save(model, "half.onnx")
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding, errors="xmlcharrefreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["bench", "model.onnx", "--rounds", "1"]) == 0
    assert main(["inspect", "half.onnx"]) == 0
    assert stream.errors == "xmlcharrefreplace"
    out = written.getvalue().decode(encoding)
    assert ("+-" if encoding == "ascii" else "±") in out
    assert "????" in out
    assert "cast X float16 -> float32" in out
    assert "&#" not in out


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise on Windows")
@pytest.mark.parametrize("words", ["inspect model.onnx", "--help"])
def test_broken_pipe_prints_no_error(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    folders = [str(Path(ogs.__file__).parents[1]), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    command = [sys.executable, "-m", "ort_gridsample", *words.split()]
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert done.stderr == b""
    ignored = words == "--help" and sys.version_info >= (3, 11)  # by argparse
    assert done.returncode == (0 if ignored else 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("words", ["verify model.onnx model.onnx", "inspect model.onnx"])
def test_full_disk_is_an_error_of_the_user(words: str) -> None:
    folders = [str(Path(ogs.__file__).parents[1]), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    environment["PYTHONUNBUFFERED"] = ""  # so that only the last flush fails
    command = [sys.executable, "-m", "ort_gridsample", *words.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("ort-gridsample: the output cannot be written: ")


# --- verify ---

#: Two models that compute the same on basic operators, as a patch could write one for the other.
TWICE = "(float[N,2] Z) => (float[N,2] Y) { Y = Add (Z, Z) }"


def add_unsupported_cast(model: onnx.ModelProto) -> None:
    """Cast the grid of a GridSample to float64, for which onnxruntime has no kernel.

    This package's session runs the node.
    """
    (node,) = (node for node in model.graph.node if node.op_type == "GridSample")
    cast = onnx.helper.make_node("Cast", [node.input[1]], ["wide"], to=onnx.TensorProto.DOUBLE)
    node.input[1] = "wide"
    model.graph.node.insert(0, cast)


def verify_status(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the exit status of ``verify``, and what it prints to stdout and stderr."""
    status = main(["verify", *words.split()])
    return status, *capsys.readouterr()


@pytest.fixture
def broken() -> str:
    """A file that only this package's session runs."""
    model = onnx.load("model.onnx")
    add_unsupported_cast(model)
    onnx.save(model, "broken.onnx")
    return "broken.onnx"


#: Why onnxruntime does not run a file -> the file's graph. Only the last of them fails in a run.
REFUSED_FILES = {
    "unknown operator": TWICE.replace("Y = Add", "Q = Unknown (Z) Y = Add"),
    "no kernel": TWICE.replace(
        "Y = Add (Z, Z)", "W = Cast <to = 16> (Z) V = Acosh (W) Y = Add (Z, Z) Q = Identity (V)"
    ),
    "wrong shape": TWICE.replace(
        "{ Y = Add (Z, Z)", "<int64[2] S = {7, 3}> { T = Add (Z, Z) Y = Reshape (T, S)"
    ),
}


@pytest.mark.parametrize("graph", REFUSED_FILES.values(), ids=REFUSED_FILES)
def test_verify_of_b_that_onnxruntime_refuses_prints_the_refusal_and_exits_with_3(
    graph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(TWICE, "twice.onnx")
    save(graph, "refused.onnx")
    status, out, err = verify_status("twice.onnx refused.onnx", capsys)
    assert (status, out) == (3, "")
    assert err.startswith("ort-gridsample: refused.onnx: onnxruntime does not run it: [ONNXRun")
    assert err.count("\n") == 1


def test_verify_of_b_that_only_a_session_runs_exits_with_3(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = verify_status(f"model.onnx {broken}", capsys)
    assert (status, out) == (3, "")
    assert "NOT_IMPLEMENTED" in err
    assert "--session" in err


def test_verify_json_of_b_that_onnxruntime_refuses_has_the_refusal(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = verify_status(f"model.onnx {broken} --json", capsys)
    assert (status, err) == (3, "")
    content = json.loads(out)
    refusal = content["B"].pop("refusal")
    assert "NOT_IMPLEMENTED" in refusal
    assert content == {
        "A": {"model": "model.onnx", "way": "onnxruntime", "refusal": ""},
        "B": {"model": "broken.onnx", "way": None},
        "outputs": [],
        "note": "",
        "agree": None,
    }


def test_verify_with_session_runs_b_in_the_session_and_says_why(broken: str, cli: Cli) -> None:
    out = cli(f"verify model.onnx {broken} --session")
    assert "B  broken.onnx  ort_gridsample's session\n" in out
    assert (
        "\nB ran in ort_gridsample's session, because onnxruntime does not run broken.onnx: ["
        in out
    )
    content = json.loads(cli(f"verify model.onnx {broken} --session --json"))
    assert content["B"]["way"] == "ort_gridsample's session"
    assert "NOT_IMPLEMENTED" in content["B"]["refusal"]
    assert content["agree"] is True


def test_verify_with_session_compares_the_session_with_onnxruntime(cli: Cli) -> None:
    out = cli("verify model.onnx model.onnx --session")
    assert "A  model.onnx  onnxruntime\nB  model.onnx  ort_gridsample's session\n" in out
    assert "because" not in out


def test_verify_of_a_that_onnxruntime_refuses_says_so_in_a_sentence(broken: str, cli: Cli) -> None:
    cli(f"patch {broken} lowered.onnx --target primitives")
    out = cli(f"verify {broken} lowered.onnx")
    assert (
        "\nA ran in ort_gridsample's session, because onnxruntime does not run broken.onnx: ["
        in out
    )
    assert "B  lowered.onnx  onnxruntime\n" in out


def test_verify_of_b_that_the_session_refuses_exits_with_3(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(TWICE, "twice.onnx")
    save(REFUSED_FILES["wrong shape"], "refused.onnx")
    status, _, err = verify_status("twice.onnx refused.onnx --session", capsys)
    assert status == 3
    assert "refused.onnx: ort_gridsample's session does not run it: " in err
    assert "--session" not in err


@pytest.mark.parametrize("target", ["ort_gridsample", "compiled"])
@pytest.mark.parametrize("place", ["main", "function", "branch"])
def test_verify_of_a_file_with_ops_of_this_package_registers_them(
    target: str, place: str, cli: Cli
) -> None:
    if target == "compiled" and "compiled" not in OPS:
        pytest.skip("no compiled ops here")
    onnx.save(border_model(place), "a.onnx")
    cli(f"patch a.onnx b.onnx --target {target}")
    out = cli("verify a.onnx b.onnx --input X=X.npy --input given=grid.npy")
    assert "B  b.onnx  onnxruntime with ort_gridsample's ops\n" in out


def test_verify_of_a_dialect_that_onnxruntime_lacks_asks_for_session(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(border_model("main"), "a.onnx")
    cli("patch a.onnx b.onnx --target mmcv")
    words = "a.onnx b.onnx --input X=X.npy --input given=grid.npy"
    status, _, err = verify_status(words, capsys)
    assert status == 3
    assert "mmcv" in err
    assert "agrees" in cli(f"verify {words} --session")


@pytest.mark.parametrize("name", ["missing.onnx", "X.npy"])
def test_verify_of_b_that_is_no_model_is_an_error_of_the_user(name: str, cli: Cli) -> None:
    assert name in cli(f"verify model.onnx {name}", 2)


@pytest.mark.usefixtures("external")
def test_verify_runs_files_with_external_data(cli: Cli) -> None:
    cli("patch in/model.onnx out/patched.onnx")
    assert "agrees" in cli("verify in/model.onnx out/patched.onnx")
    Path("out/weights.bin").unlink()
    Path("out/patched.onnx").rename("in/patched.onnx")
    assert "agrees" in cli("verify in/model.onnx in/patched.onnx")


def test_verify_of_strings_compares_them(cli: Cli) -> None:
    save("(string[2] T) => (string[2] U) { U = Identity (T) }", "a.onnx")
    save('(string[2] T) => (string[2] U) <string[2] S = {"a", ""}> { U = Identity (S) }', "b.onnx")
    assert re.search(r"U +string +\(2,\) .*agrees", cli("verify a.onnx a.onnx"))
    assert re.search(r"U +string +\(2,\) +inf .*differs", cli("verify a.onnx b.onnx", 1))


# --- bfloat16 ---


def bfloat16_model() -> str:
    """Save a model whose input and first output are bfloat16."""
    save(
        "(bfloat16[n] T) => (bfloat16[n] U, float[n] V) { U = Identity (T) V = Cast <to = 1> (T) }",
        "bfloat16.onnx",
    )
    return "bfloat16.onnx"


@pytest.mark.parametrize("stored", ["float32", "bits", "ml_dtypes"])
def test_run_feeds_and_saves_bfloat16(stored: str, cli: Cli) -> None:
    values = np.array([1, -2.5, 3e38, np.inf], np.float32)
    expected = values.astype(ml_dtypes.bfloat16)
    arrays = {"float32": values, "bits": expected.view(np.uint16), "ml_dtypes": expected}
    np.save("T.npy", arrays[stored])
    out = cli(f"run {bfloat16_model()} --input T=T.npy --output out")
    assert re.search(r"input +T +bfloat16 +\(4,\)\noutput +U +bfloat16 +\(4,\)\n", out)
    for name in "UV":
        saved = np.load(f"out/{name}.npy")
        assert saved.dtype == np.float32
        np.testing.assert_array_equal(saved, expected.astype(np.float32))


def test_run_draws_bfloat16_at_random(cli: Cli) -> None:
    cli(f"run {bfloat16_model()} --random --shape T=9 --output out")
    drawn = np.load("out/U.npy")
    assert len(set(drawn.tolist())) > 1
    np.testing.assert_array_equal(drawn, drawn.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("words", ["verify {0} {0}", "bench {0} --rounds 1"])
def test_commands_run_models_of_bfloat16(words: str, cli: Cli) -> None:
    out = cli(words.format(bfloat16_model()))
    assert "agrees" in out or "a run" in out


def test_verify_of_bfloat16_accepts_differences_within_the_tolerance(cli: Cli) -> None:
    graph = "g (bfloat16[1,2,5,6] X, bfloat16[1,3,4,2] G) => (bfloat16[1,2,3,4] Y) { BODY }"
    model = parsed(graph.replace("BODY", "Y = GridSample (X, G)"), 22)
    onnx.save(model, "a.onnx")
    cli("patch a.onnx b.onnx --target primitives")
    out = cli("verify a.onnx b.onnx --tolerance 0.02")
    assert re.search(r"Y +bfloat16 .*agrees", out)
    assert output_comparison.difference(
        np.array([2], ml_dtypes.bfloat16), np.array([3], ml_dtypes.bfloat16)
    ) == (1, 2)


def test_run_of_bfloat16_beside_a_sequence_is_refused(cli: Cli) -> None:
    save(
        "(bfloat16[2] T, float[2] Z) => (bfloat16[2] U, seq(float[2]) S) {"
        " U = Identity (T) S = SequenceConstruct (Z) }",
        "mixed.onnx",
    )
    error = cli("run mixed.onnx --random", 2)
    assert "output 'S' is of type seq(tensor(float)), expected a tensor of numbers" in error


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


REPORT = "please report it, with the output of --version and of this command with --traceback"
FAILURES = [
    (KeyboardInterrupt(), 130, "interrupted"),
    (MemoryError(), 2, "MemoryError (there is not enough memory)"),
    (missing("PIL"), 2, "No module named 'PIL': pip install pillow"),
    (
        missing("matplotlib.pyplot"),
        2,
        "No module named 'matplotlib.pyplot': pip install matplotlib",
    ),
    (missing("numba"), 2, "No module named 'numba': pip install numba"),
    (missing("lost"), 70, f"internal error: ModuleNotFoundError: No module named 'lost'; {REPORT}"),
]


@pytest.mark.parametrize(
    ("error", "status", "message"), FAILURES, ids=[repr(error) for error, *_ in FAILURES]
)
def test_failure_is_one_line_and_an_exit_status(
    error: BaseException, status: int, message: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ort_gridsample.cli.inspect.run", Mock(side_effect=error))
    assert cli("inspect model.onnx", status) == f"ort-gridsample: {message}\n"


def test_internal_error_has_a_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_gridsample.cli.inputs.make_feeds", Mock(side_effect=KeyError("lost")))
    message = f"ort-gridsample: internal error: KeyError: 'lost'; {REPORT}\n"
    assert cli("run model.onnx --random", 70) == message
    for words in ("--traceback run model.onnx --random", "run model.onnx --random --traceback"):
        traced = r"Traceback \(most recent call last\)(.|\n)* in _execute_mock_call\n(.|\n)*"
        assert re.fullmatch(traced + re.escape(message), cli(words, 70))


def test_environment_variables_are_checked_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ogs.set_core(None)
    monkeypatch.setenv("ORT_GRIDSAMPLE_CORE", "bogus")
    assert "ORT_GRIDSAMPLE_CORE is 'bogus', expected one of" in cli("inspect model.onnx", 2)


#: Commands and their outputs. "…" is a text of other packages, or a measured number.
TRANSCRIPT = (DATA / "transcript.txt").read_text(encoding="utf-8")
COMMAND_OUTPUTS = re.findall(r"\$ ort-gridsample (.*)\n((?:.+\n)+)", TRANSCRIPT)


@pytest.fixture
def transcript_files() -> None:
    """Create the files of the commands in the transcript."""
    np.save("double.npy", X.astype(np.float64))
    np.save("doubles.npy", np.zeros(2))
    broken = onnx.load("model.onnx")
    add_unsupported_cast(broken)
    onnx.save(broken, "broken.onnx")
    np.save("flat.npy", X.ravel())
    np.savez("X.npz", X=X)
    np.save("three.npy", np.zeros((1, 4, 5, 3), np.float32))
    np.save("text.npy", np.array(["a", "b"]))
    # The patched model runs on this package's ops, with or without Numba.
    onnx.save(ogs.patch_model("model.onnx"), "patched.onnx")
    onnx.save(border_model("function"), "inner.onnx")
    onnx.save(ogs.patch_model("inner.onnx"), "inner_patched.onnx")
    onnx.save(grid_sample_model("uint8", "float32", 2, [Attributes()]), "refused.onnx")
    Path("link.onnx").symlink_to("model.onnx")
    Path("photo.png").touch()
    save("(float[2] Z) => (float[2] Y) { Y = Abs (Z) }", "names.onnx")
    save("(float[2] Z) => (float[2] other) { other = Abs (Z) }", "other.onnx")
    save("(float[2] Z) => (float[4] Y) { Y = Concat <axis = 0> (Z, Z) }", "twice.onnx")
    save("(float[N,1,H,W] Z) => (float[N,1,H,W] Y) { Y = Neg (Z) }", "open.onnx")
    baked = "S = Constant <value_ints = [1, 1, 8, 8]> () R = Neg (Z) Y = Reshape (R, S)"
    save(f"(float[N,1,H,W] Z) => (float[N,1,H,W] Y) {{ {baked} }}", "baked.onnx")
    for type_ in ("string[2]", "bfloat16[2]", "seq(float[2])"):
        save(f"({type_} T) => ({type_} U) {{ U = Identity (T) }}", f"{type_[:4]}.onnx")
    save("() => (float[2] Y) { Y = Constant <value_floats = [1.0, 2.0]> () }", "constant.onnx")
    save("(float[2] Z) => (seq(float[2]) S) { S = SequenceConstruct (Z) }", "sequence.onnx")


@pytest.mark.usefixtures("transcript_files")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        pytest.param(*case, marks=DEMO if case[0].startswith("demo") else ())
        for case in COMMAND_OUTPUTS
    ],
)
def test_command_prints_its_result(words: str, expected: str, folder: Path, cli: Cli) -> None:
    """A mistake is one line and exit status 2, and leaves no file."""
    before = sorted(folder.iterdir())
    is_mistake = expected.startswith("ort-gridsample: ")
    status = 2 if is_mistake else 0
    if "differs" in expected or '"agree": false' in expected:
        status = 1
    if words.startswith("verify") and " does not run it" in expected:
        status = 3
    output = cli(words, status)
    pattern = ".*".join(map(re.escape, expected.split("…")))
    assert re.fullmatch(pattern, output), output
    assert not is_mistake or sorted(folder.iterdir()) == before


NOT_FINITE = "is not a finite number of 0 or more"
INVALID_OPTIONS = {
    "": "the following arguments are required: COMMAND",
    "bench model.onnx --threads two": "argument --threads: 'two' is not a whole number",
    "bench model.onnx --threads 0": "argument --threads: 0 is less than 1",
    "bench model.onnx --rounds 0": "argument --rounds: 0 is less than 1",
    "bench model.onnx --seconds x": "argument --seconds: 'x' is not a number",
    "bench model.onnx --seconds -1": f"argument --seconds: -1 {NOT_FINITE}",
    "run model.onnx --seed -1": "argument --seed: -1 is less than 0",
    "run model.onnx --seed x": "argument --seed: 'x' is not a whole number",
    "verify model.onnx model.onnx --tolerance -1": f"argument --tolerance: -1 {NOT_FINITE}",
    "verify model.onnx model.onnx --tolerance nan": f"argument --tolerance: nan {NOT_FINITE}",
}


@pytest.mark.parametrize(("words", "message"), INVALID_OPTIONS.items(), ids=INVALID_OPTIONS)
def test_invalid_option_is_refused(words: str, message: str, cli: Cli) -> None:
    assert cli(words, 2).endswith(f"error: {message}\n")


def assert_demo_output(out: str) -> None:
    """Check what the demo prints of a large photograph."""
    assert out.startswith(
        "AffineGrid → GridSample (opset 20) on a photograph of 2400×1600 pixels: "
        "ort_gridsample against"
    )
    head = (
        "'s own kernels, the largest difference of values in [0, 1]\n\n"
        "         zeros    border   reflection\n"
    )
    assert head in out
    refused = (
        "which is nearer\n\nThe same on the photograph's own bytes .uint8.:\n"
        "  onnxruntime    .*NOT_IMPLEMENTED.*\n"
    )
    truncated = (
        r"  ort_gridsample runs it; at most 1.00 of 255 from the result above "
        r"\(bytes are truncated\)\n"
    )
    assert re.search(f"{refused}{truncated}\nwarps.png: what each mode and padding did\n$", out)

    differences = [float(word) for word in re.findall(r"\d\.\de-?\+?\d\d", out)]
    assert len(differences) == 9
    assert max(differences[3:]) < 2e-3  # of linear and cubic
    ties = re.search(
        r"another pixel at (.*)% of.* They lie at most (\S+)\npixels from the middle between", out
    )
    assert ties is not None
    percentage, distance = ties.groups()
    assert 0 < float(percentage) < 0.2
    assert 0 < float(distance) < 2e-3


@DEMO
def test_demo_prints_the_differences_and_draws_a_picture(cli: Cli) -> None:
    """On a large picture, where mode nearest differs from onnxruntime at a few positions."""
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (1600, 2400, 3), np.uint8)
    Image.fromarray(noise).save("noise.bmp")
    assert_demo_output(cli("demo noise.bmp --output warps.png"))
    with Image.open("warps.png") as picture:
        colors = picture.convert("RGB").getcolors(1 << 24)
    assert colors is not None
    assert len(colors) > 10_000


def test_demo_without_matplotlib_prints_the_differences(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages cannot be imported, as in an installation without the extra."""
    for name in ("matplotlib", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    before = sorted(folder.iterdir())
    out = cli("demo")
    assert out.startswith("AffineGrid → GridSample (opset 20) on a synthetic image of 512×600 pix")
    assert "\nThe same on the synthetic image's own bytes (uint8):\n" in out
    assert out.endswith("(pip install matplotlib pillow)\n")
    assert len(re.findall(r"\d\.\de-?\+?\d\d", out.partition("nearest takes")[0])) == 9
    assert sorted(folder.iterdir()) == before
