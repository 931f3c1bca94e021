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
from unittest.mock import ANY, MagicMock, Mock, call

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from conftest import OPS
from ort_gridsample import spec, versions
from ort_gridsample.cli import COMMANDS, demo, main, verify
from ort_gridsample.cli.demo import draw_grid
from ort_gridsample.cli.far import LIMIT, zero_far_coordinates
from ort_gridsample.cli.inputs import random_array
from ort_gridsample.cli.output import print_json
from ort_gridsample.session import decisions, prediction
from support.cases import Attributes
from support.external_data import GRID, WRONG_GRID, X, cached_model, external_model
from support.models import grid_sample_model, parsed

#: Words -> what the command line prints in this process; on stderr where it ends with the status 2 or more.
Cli = Callable[..., str]

FAR = np.where(np.arange(GRID.size).reshape(GRID.shape) == 0, np.float32(3e9), GRID)
NO_PICTURES = not (find_spec("matplotlib") and find_spec("PIL"))
DEMO = pytest.mark.skipif(NO_PICTURES, reason="the demo needs matplotlib and pillow")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(words: str, status: int = 0) -> str:
        try:
            ended = main(words.split())
        except SystemExit as end:  # argparse's
            ended = end.code
        assert ended == status
        out, err = capsys.readouterr()
        assert (out if status > 1 else err) == ""
        return err if status > 1 else out

    return run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model and its inputs."""
    monkeypatch.chdir(tmp_path)
    onnx.save(
        grid_sample_model("float32", "float32", 2, [Attributes("cubic", "border", True)], 20),
        "model.onnx",
    )
    for name, array in {"X": X, "grid": GRID, "wrong": WRONG_GRID, "far": FAR}.items():
        np.save(f"{name}.npy", array)
    return tmp_path


@pytest.fixture
def external() -> None:
    """The folders in, out and elsewhere in the current one; a model with external data is in the first."""
    for name in ("in", "out", "elsewhere"):
        Path(name).mkdir()
    external_model(Path("in"))


def save(graph: str, path: str) -> None:
    onnx.save(parsed(f"g {graph}"), path)


def files(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def assert_answers(path: str) -> None:
    session = onnxruntime.InferenceSession(path, ogs.register())
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], ogs.grid_sample(X, GRID))


def test_help_and_version(cli: Cli) -> None:
    """Every command's help is that of data/help.txt, but for the breaks of lines."""
    expected = (
        Path(__file__).parents[1].joinpath("data").joinpath("help.txt").read_text(encoding="utf-8")
    )
    assert (
        "".join(cli(f"{command} --help") for command in ("", *COMMANDS)).split() == expected.split()
    )
    (line,) = cli("--version").splitlines()
    assert line.startswith(
        f"ort-gridsample {ogs.__version__}, onnxruntime {onnxruntime.__version__},"
    )
    assert f"numpy {np.__version__}" in line


def test_inspect(cli: Cli) -> None:
    out = cli("inspect model.onnx")
    row = " +".join(
        ["", "sample0", "GridSample-20", "cubic", "border", "1", "float32 4-D, float32 4-D", "yes"]
    )
    runs_on = r"(compiled op\n|onnxruntime \[1\]\n.*\[1\] \w+)"
    assert re.search(rf"main graph\n.* a patch\n +a session\n{row} +replaces it\n +{runs_on}", out)
    onnx.save(
        grid_sample_model("uint8", "float32", 2, [Attributes(), Attributes("nearest")]), "two.onnx"
    )
    lines = cli("inspect two.onnx").splitlines()
    first_words = [line.split()[0] for line in lines if not line.startswith("    ")]
    assert first_words == ["main", "node", "sample0", "sample1", "[1]"]
    assert cli("patch two.onnx there.onnx").endswith("\nthere.onnx: 2 nodes replaced\n")
    (record,) = json.loads(cli("inspect --json model.onnx"))
    assert (record["name"], record["mode"], record["align_corners"], record["native"]) == (
        "sample0",
        "cubic",
        1,
        True,
    )
    how = ("compiled op", "") if "compiled" in OPS else ("onnxruntime", ANY)
    assert record["session"] == {"runs_on": how[0], "reason": how[1], "fused": [], "library": ""}
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
    accelerators = MagicMock()
    (placement,) = prediction.predict_placements(parsed(f"g {graph}", opset), accelerators)
    assert (placement.runs_on, placement.reason) == ("", str(placement.record.error))
    accelerators.form_of.assert_not_called()


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


def test_patch_and_run(cli: Cli) -> None:
    each, last = cli("patch model.onnx patched.onnx").splitlines()
    assert each == "GridSample 'sample0' → ort_gridsample op"
    assert last == "patched.onnx: 1 node replaced"
    assert onnx.load("patched.onnx") == ogs.patch_model("model.onnx")
    for model in ("model", "patched"):
        out = cli(f"run {model}.onnx --input X=X.npy --input grid=grid.npy --output out")
        assert "output  Y0    float32  (1, 3, 4, 5)" in out
        expected = ogs.grid_sample(X, GRID, "cubic", "border", True)
        found = np.load("out/Y0.npy")
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=1e-5
        )  # of the unpatched, onnxruntime's own may be
    np.testing.assert_array_equal(found, expected)


def test_patch_has_the_functions_options(cli: Cli) -> None:
    said = cli("patch model.onnx lowered.onnx --target primitives --functions --for mnn --opset 18")
    assert said.splitlines() == [
        "GridSample 'sample0' → basic operators",
        "lowered.onnx: 1 node replaced",
        "lowered.onnx: opset 20 → 18",
    ]
    expected = ogs.patch_model(
        "model.onnx", target="primitives", functions=True, for_runtime="mnn", opset=18
    )
    assert onnx.load("lowered.onnx") == expected


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
    ("--cpu generic native out.so", ["generic", "native"], []),
    ("--cpu generic --target x86_64-linux out.so", ["generic"], []),
]


@pytest.mark.parametrize(("words", "cpus", "models"), LIBRARY_ARGUMENTS)
def test_library_options_repeat_and_take_several_values(
    words: str, cpus: list[str], models: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
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


def test_inspect_lines_fit_100_columns(cli: Cli) -> None:
    model = grid_sample_model("float16", "float16", 2, [Attributes()])
    model.graph.node[0].name = "a_name_of_forty_characters_is_not_too_long"
    onnx.save(model, "half.onnx")
    for path in ("model.onnx", "half.onnx"):
        assert max(map(len, cli(f"inspect {path}").splitlines())) <= 100


def test_run_random(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=iter((2.0, 2.25, 3.0, 3.25)).__next__)
    monkeypatch.setattr("ort_gridsample.cli.run.time", clock)
    out = cli("run model.onnx --random --shape X=1,2,9,9")
    assert out.startswith("        name  type     shape\ninput   X     float32  (1, 2, 9, 9)\n")
    assert "\noutput  Y0    float32  (1, 2, 8, 8)\n" in out
    assert "\ntime    250.00 ms (one run, without making the session)\n" in out
    clock.perf_counter = itertools.count().__next__
    for name, seed in {"a": "", "b": " --seed 0", "c": " --seed 1"}.items():
        cli(f"run model.onnx --random --output {name}{seed}")
    one, same, other = (np.load(f"{name}/Y0.npy") for name in "abc")
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_random_inputs_have_every_value_of_a_small_type() -> None:
    generator = np.random.default_rng(0)
    types = "bool", "string", "uint8", "float"
    found = {name: random_array(generator, "X", f"tensor({name})", (1000,)) for name in types}
    assert ({*found["bool"]}, {*found["string"]}) == ({False, True}, {*"abc"})
    assert (found["uint8"].min(), found["uint8"].max()) == (0, 99)
    assert -1 <= found["float"].min() < -0.99 < 0.99 < found["float"].max() < 1


def test_each_output_is_saved_in_a_file_of_its_own(cli: Cli) -> None:
    """Though some file systems take two names for one."""
    np.save("two.npy", np.array([-2, -3], np.float32))
    save(
        "(float[2] X) => (float[2] p, float[2] q, float[2] A_b) { p = Neg (X) q = Abs (X) A_b = Exp (X) }",
        "m.onnx",
    )
    model = onnx.load("m.onnx")
    for i, name in enumerate(("a/b", "a:b")):
        model.graph.node[i].output[0] = model.graph.output[i].name = name
    onnx.save(model, "m.onnx")
    saved = re.findall(
        r"^saved   (.*): (.*)$", cli("run m.onnx --input X=two.npy --output out"), re.MULTILINE
    )
    expected = {"a/b": "a_b.npy", "a:b": "a_b-2.npy", "A_b": "A_b-3.npy"}
    assert saved == [(name, str(Path("out", file))) for name, file in expected.items()]
    np.testing.assert_allclose(
        [np.load(file) for _, file in saved], ([2, 3], [2, 3], np.exp([-2, -3])), rtol=1e-6
    )


IN_THE_WAY = "external data is in the way of"


@pytest.mark.usefixtures("external")
@pytest.mark.parametrize("location", ["weights.bin", "../in/weights.bin"])
def test_external_data_stays_external(location: str, cli: Cli) -> None:
    """Also where its location leaves the model's folder and comes back, by a name that the copy's folder has not."""
    model = onnx.load("in/model.onnx", load_external_data=False)
    for entry in (entry for tensor in model.graph.initializer for entry in tensor.external_data):
        entry.value = location if entry.key == "location" else entry.value
    Path("in/model.onnx").write_bytes(model.SerializeToString())
    # Once more into a folder that has the data already.
    for out, copied in (
        ("in/patched.onnx", False),
        ("out/patched.onnx", True),
        ("out/patched.onnx", False),
    ):
        said = cli(f"patch in/model.onnx {out}")
        assert said.endswith(
            "out/weights.bin: external data, copied\n" if copied else f"{out}: 1 node replaced\n"
        )
        assert Path(out).stat().st_size < 10_000
        assert_answers(out)
    assert files("out") == ["patched.onnx", "weights.bin"]
    Path("out/weights.bin").write_bytes(b"another")
    refused = cli("patch in/model.onnx out/patched.onnx", 2)
    assert refused.endswith("out/weights.bin, expected no other file, or link to one, there\n")
    assert Path("out/weights.bin").read_bytes() == b"another"


@pytest.mark.usefixtures("external")
def test_external_data_behind_links_is_copied(cli: Cli) -> None:
    path = cached_model(Path("elsewhere"))
    said = cli(
        f"patch {path} out/patched.onnx --opset 17"
    )  # for which the rest of the model is converted
    assert "out/patched.onnx: opset 20 → 17\n" in said
    assert Path("out/patched.onnx").stat().st_size < 10_000
    assert_answers("out/patched.onnx")
    beside = path.with_name("patched.onnx")
    assert IN_THE_WAY in cli(f"patch {path} {beside}", 2)
    assert not beside.exists()


@pytest.mark.usefixtures("external")
def test_external_data_is_not_written_over_nor_through_a_link(cli: Cli) -> None:
    before = Path("in/weights.bin").read_bytes()
    for out in ("in/weights.bin", "out/weights.bin", "out/patched.onnx"):
        if out == "out/patched.onnx":
            Path("out/weights.bin").symlink_to(Path("elsewhere/weights.bin").absolute())
        assert IN_THE_WAY in cli(f"patch in/model.onnx {out}", 2), out
        assert files("elsewhere") == []
        assert files("out") == (["weights.bin"] if out == "out/patched.onnx" else [])
    assert Path("in/weights.bin").read_bytes() == before


@pytest.mark.usefixtures("external")
def test_the_only_file_left_is_whole(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch that fails leaves no copy of external data, and the model that was there."""
    out = Path("out/patched.onnx")
    out.mkdir()  # a folder where the model would be
    said = "ort-gridsample: [Errno 21] Is a directory: 'out/patched.onnx'\n"
    assert cli("patch in/model.onnx out/patched.onnx", 2) == said
    assert files("out") == ["patched.onnx"]
    out.rmdir()
    out.write_bytes(b"before")
    monkeypatch.setattr(
        Path, "write_bytes", MagicMock(side_effect=OSError(28, "No space left on device"))
    )
    cli("patch model.onnx out/patched.onnx", 2)
    assert (files("out"), out.read_bytes()) == (["patched.onnx"], b"before")


def far_model(kind: str) -> onnx.ModelProto:
    """GridSample with border padding, its grid an input, computed, in a branch or in a function."""
    sample = 'Y = GridSample <mode = "linear", padding_mode = "border"> (X, grid)'
    computed = f"grid = Identity (given) {sample}"
    branches = ", ".join(
        f"{name}_branch = {name} () => (Y) {{ {computed} }}" for name in ("then", "else")
    )
    body = {
        "input": sample.replace("grid)", "given)"),
        "computed": computed,
        "function": "Y = f.warp (X, given)",
    }
    body["branch"] = f"yes = Constant <value = bool {{1}}> () Y = If (yes) <{branches}>"
    function = f'<domain: "f", opset_import: ["": 20]> warp (X, grid) => (Y) {{ {sample} }}'
    return parsed(f"""g (float[N, C, H, W] X, float[N, h, w, 2] given) => (float[N, C, h, w] Y) {{ {body[kind]} }}
        {function if kind == "function" else ""}""")


@pytest.mark.parametrize("kind", ["input", "computed", "branch", "function"])
def test_verify_says_how_far_coordinates_account_for_a_difference(kind: str, cli: Cli) -> None:
    target = "ort_gridsample" if kind in ("input", "function") else "primitives"
    onnx.save(far_model(kind), "a.onnx")
    cli(f"patch a.onnx b.onnx --target {target}")
    out = cli("verify a.onnx b.onnx --input X=X.npy --input given=grid.npy")
    assert "coordinates" not in out
    out = cli("verify a.onnx b.onnx --input X=X.npy --input given=far.npy", 1)
    assert re.search(r"Y +float32 +\S+ \S+ \S+ \S+ .* differs", out)
    if kind in ("input", "computed"):
        assert re.search(
            rf"grid '\w+': 1 of {GRID.size} coordinates are further out than ±10000", out
        )
    else:
        assert "coordinates are not counted" in out
    assert "all agree: these coordinates account for it" in out


def test_far_coordinates_are_put_to_0() -> None:
    model, changed = far_model("computed"), far_model("computed")
    zero_far_coordinates(changed, {"grid": "float32"})
    feeds = {"X": X, "given": np.where(abs(FAR) < LIMIT, FAR, np.float32(0))}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    answer = onnxruntime.InferenceSession(changed.SerializeToString()).run(
        None, {"X": X, "given": FAR}
    )[0]
    np.testing.assert_array_equal(answer, expected)


def test_verify_says_so_where_coordinates_are_not_to_blame(cli: Cli) -> None:
    onnx.save(
        grid_sample_model("float32", "float32", 2, [Attributes("cubic", "zeros", True)], opset=20),
        "other.onnx",
    )
    for name, grid in {"outside": GRID * 3, "far": FAR * 3}.items():
        np.save(f"{name}.npy", grid)
        out = cli(f"verify model.onnx other.onnx --input X=X.npy --input grid={name}.npy", 1)
        assert "account for it" not in out
        assert ("this is left:" in out) == (name == "far")
    content = json.loads(
        cli("verify model.onnx other.onnx --input X=X.npy --input grid=far.npy --json", 1)
    )
    assert (content["agree"], content["far"]["agree"]) == (False, False)
    assert content["far"]["grids"]["grid"] == {"coordinates": GRID.size, "far": 1}


def test_answers_are_compared_as_they_are() -> None:
    a, b = np.array([2**60]), np.array([2**60 + 1])  # which are one float64
    assert verify.difference(a, b)[0] > 0 == verify.difference(a, a)[0]
    assert not verify.agreements({"Y": a}, {"Y": b}, 1e-5)[0].agrees
    assert verify.difference(np.array([1 + 1j]), np.array([1 + 3j]))[0] == 2
    assert verify.difference(np.array(["a"], object), np.array(["b"], object))[0] == np.inf
    for without_largest in (
        np.array(values, "f") for values in ([], [np.nan], [np.nan, np.inf, -np.inf])
    ):
        (found,) = verify.agreements({"Y": without_largest}, {"Y": without_largest.copy()}, 1e-5)
        assert (found.difference, found.of, found.agrees) == (0, 0, True), without_largest


def test_what_onnxruntime_logs_of_a_refusal_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "verify",
                "model.onnx",
                "model.onnx",
                "--input",
                "X=X.npy",
                "--input",
                "grid=wrong.npy",
            ]
        )
        == 2
    )
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ort-gridsample: ")


def keys(content: object) -> set[str]:
    inside = (
        content.values()
        if isinstance(content, dict)
        else content
        if isinstance(content, list)
        else ()
    )
    return (set(content) if isinstance(content, dict) else set()).union(*map(keys, inside))


SAID = {
    "inspect": "X action align_corners domain fused graph grid inputs library mode name native op_type opset"
    " padding_mode rank reason runs_on session shape type",
    "verify": "A B agree agrees difference far model name note of outputs refusal shape type way",
    "bench": "Python core difference median model nodes numba numpy onnx onnxruntime onnxruntime-extensions op_type"
    " ort-gridsample ort_gridsample quartiles ratio rounds sample0 seconds shares sides threads versions",
}


def test_json_is_all_that_is_printed(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        "inspect model.onnx",
        "verify model.onnx model.onnx",
        "bench model.onnx --rounds 1",
    ):
        content = json.loads(
            cli(f"{words} --json"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
        )
        optional = {"numba", "onnxruntime-extensions"}
        assert keys(content) ^ set(SAID[words.split()[0]].split()) <= optional, words
    content, file = (
        json.loads(cli("run model.onnx --random --output out --json")),
        str(Path("out", "Y0.npy")),
    )
    assert keys(content) == {
        "model",
        "inputs",
        "outputs",
        "seconds",
        "name",
        "type",
        "shape",
        "file",
    }
    assert content["outputs"] == [
        {"name": "Y0", "type": "float32", "shape": [1, 8, 8, 8], "file": file}
    ]
    print_json({"numbers": [0.5, np.nan, (np.inf, -np.inf, 2)]})
    assert json.loads(capsys.readouterr().out) == {"numbers": [0.5, None, [None, None, 2]]}


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_any_encoding_will_do(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a name that few have; and the stream comes back as it was."""
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
def test_a_broken_pipe_is_silent(words: str) -> None:
    read, write = os.pipe()
    os.close(read)
    path = os.pathsep.join(
        filter(None, [str(Path(ogs.__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    command = [sys.executable, "-m", "ort_gridsample", *words.split()]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    assert done.stderr == b""
    ignored = words == "--help" and sys.version_info >= (3, 11)  # by argparse
    assert done.returncode == (0 if ignored else 141)


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


REPORT = "please report it, with what --version and, for this command, --traceback print"
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
    ("error", "status", "said"), FAILURES, ids=[repr(error) for error, *_ in FAILURES]
)
def test_each_failure_is_a_line_and_a_status(
    error: BaseException, status: int, said: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ort_gridsample.cli.inspect.run", Mock(side_effect=error))
    assert cli("inspect model.onnx", status) == f"ort-gridsample: {said}\n"


def test_a_mistake_of_our_own_is_traced_and_not_blamed_on_the_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ort_gridsample.cli.inputs.make_feeds", Mock(side_effect=KeyError("lost")))
    said = f"ort-gridsample: internal error: KeyError: 'lost'; {REPORT}\n"
    assert cli("run model.onnx --random", 70) == said
    for words in ("--traceback run model.onnx --random", "run model.onnx --random --traceback"):
        traced = r"Traceback \(most recent call last\)(.|\n)* in _execute_mock_call\n(.|\n)*"
        assert re.fullmatch(traced + re.escape(said), cli(words, 70))


def test_the_environment_is_read_first(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ogs.set_core(None)
    monkeypatch.setenv("ORT_GRIDSAMPLE_CORE", "bogus")
    assert "ORT_GRIDSAMPLE_CORE is 'bogus', expected one of" in cli("inspect model.onnx", 2)


#: What is said to each command; … is what other packages say, or measured.
TRANSCRIPT = (
    Path(__file__)
    .parents[1]
    .joinpath("data")
    .joinpath("transcript.txt")
    .read_text(encoding="utf-8")
)
SAID_TO = re.findall(r"\$ ort-gridsample (.*)\n((?:.+\n)+)", TRANSCRIPT)


@pytest.mark.parametrize(
    ("words", "said"),
    [pytest.param(*case, marks=DEMO if case[0].startswith("demo") else ()) for case in SAID_TO],
)
def test_what_each_command_says(words: str, said: str, folder: Path, cli: Cli) -> None:
    """A mistake is one line and exit code 2, and leaves no file."""
    (
        np.save("double.npy", X.astype(np.float64)),
        np.save("flat.npy", X.ravel()),
        np.savez("X.npz", X=X),
    )
    (
        np.save("three.npy", np.zeros((1, 4, 5, 3), np.float32)),
        np.save("text.npy", np.array(["a", "b"])),
    )
    onnx.save(
        ogs.patch_model("model.onnx"), "patched.onnx"
    )  # which runs on this package's ops everywhere
    onnx.save(far_model("function"), "inner.onnx")
    onnx.save(ogs.patch_model("inner.onnx"), "inner_patched.onnx")
    Path("link.onnx").symlink_to("model.onnx")
    Path("photo.png").touch()
    save("(float[2] Z) => (float[2] Y) { Y = Abs (Z) }", "names.onnx")
    save("(float[2] Z) => (float[2] other) { other = Abs (Z) }", "other.onnx")
    save("(float[2] Z) => (float[4] Y) { Y = Concat <axis = 0> (Z, Z) }", "twice.onnx")
    save("(float[N,1,H,W] Z) => (float[N,1,H,W] Y) { Y = Neg (Z) }", "open.onnx")
    baked = "S = Constant <value_ints = [1, 1, 8, 8]> () R = Neg (Z) Y = Reshape (R, S)"
    save(f"(float[N,1,H,W] Z) => (float[N,1,H,W] Y) {{ {baked} }}", "baked.onnx")
    onnx.save(grid_sample_model("uint8", "float32", 2, [Attributes()]), "refused.onnx")
    for type_ in ("string[2]", "bfloat16[2]", "seq(float[2])"):
        save(f"({type_} T) => ({type_} U) {{ U = Identity (T) }}", f"{type_[:4]}.onnx")
    save("() => (float[2] Y) { Y = Constant <value_floats = [1.0, 2.0]> () }", "constant.onnx")
    save("(float[2] Z) => (seq(float[2]) S) { S = SequenceConstruct (Z) }", "sequence.onnx")
    before, is_mistake = sorted(folder.iterdir()), said.startswith("ort-gridsample: ")
    found = cli(
        words, 2 if is_mistake else any(word in said for word in ("differs", '"agree": false'))
    )
    assert re.fullmatch(".*".join(map(re.escape, said.split("…"))), found), found
    assert not is_mistake or sorted(folder.iterdir()) == before


def test_options_that_make_no_sense_are_refused(cli: Cli) -> None:
    finite = "is not a finite number of 0 or more"
    for words, said in (
        ("", "the following arguments are required: COMMAND"),
        ("bench model.onnx --threads two", "argument --threads: 'two' is not a whole number"),
        ("bench model.onnx --threads 0", "argument --threads: 0 is less than 1"),
        ("bench model.onnx --rounds 0", "argument --rounds: 0 is less than 1"),
        ("bench model.onnx --seconds x", "argument --seconds: 'x' is not a number"),
        ("bench model.onnx --seconds -1", f"argument --seconds: -1 {finite}"),
        ("run model.onnx --seed -1", "argument --seed: -1 is less than 0"),
        ("run model.onnx --seed x", "argument --seed: 'x' is not a whole number"),
        ("verify model.onnx model.onnx --tolerance -1", f"argument --tolerance: -1 {finite}"),
        ("verify model.onnx model.onnx --tolerance nan", f"argument --tolerance: nan {finite}"),
    ):
        assert cli(words, 2).endswith(f"error: {said}\n")


def test_the_demo_measures_ties_along_the_nearer_axis(capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.array(
        [[(2.501, 3.2), (2.504, 3.2), (4.2, 5.498), (1, 1)]]
    )  # the last one is no tie
    differences = {("nearest", "zeros"): np.array([1.0, 1, 1, 0]) * np.ones((1, 3, 1, 4))}
    demo.print_ties(differences, (2 * pixels[None] + 1) / (16, 8) - 1, (8, 16))
    assert "at 75.00% of the positions. They lie at most 4e-03\n" in capsys.readouterr().out


@DEMO
def test_the_demo_prints_and_draws_what_each_side_answers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large picture, of which nearest takes other pixels than onnxruntime at a few positions."""
    from matplotlib.figure import Figure
    from PIL import Image

    noise, drawn = np.random.default_rng(0).integers(0, 256, (1600, 2400, 3), np.uint8), []
    Image.fromarray(noise).save("noise.bmp")
    assert demo.read_photo(None).shape == (600, 512, 3)
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **how: drawn.append((figure, how)))
    out = cli("demo noise.bmp --output warps.png")
    assert out.startswith(
        "AffineGrid → GridSample (opset 20) on a photograph of 2400×1600 pixels: ort_gridsample against"
    )
    head = "'s own kernels, the largest difference of values in [0, 1]\n\n         zeros    border   reflection\n"
    assert head in out
    ties = "which is nearer\n\nThe same on the photograph's own bytes .uint8.:\n  onnxruntime    .*NOT_IMPLEMENTED.*\n"
    truncated = r"  ort_gridsample runs it; at most 1.00 of 255 from the result above \(bytes are truncated\)\n"
    assert re.search(f"{ties}{truncated}\nwarps.png: what each mode and padding did\n$", out)
    differences = [float(word) for word in re.findall(r"\d\.\de-?\+?\d\d", out)]
    assert len(differences) == 9
    assert max(differences[3:]) < 2e-3  # of the modes that add up
    ties = re.search(
        r"another pixel at (.*)% of.* They lie at most (\S+)\npixels from the middle between", out
    )
    (part, most) = ties.groups()
    assert 0 < float(part) < 0.2
    assert 0 < float(most) < 2e-3
    ((figure, how),) = drawn
    assert how == {"dpi": 75, "format": "png"}
    photo, *others, scale = figure.axes
    assert scale.get_xlabel() == "values are in [0, 1]"
    assert [axes.get_title() for axes in others[:3]] == list(spec.MODES)
    assert np.array_equal(photo.images[0].get_array(), noise)
    X = noise.transpose(2, 0, 1)[None].astype("float32") / 255
    grid = ogs.affine_grid(demo.theta(1600, 2400), (1, 3, *demo.OUTPUT))
    for number, (mode, padding_mode) in enumerate(
        itertools.product(spec.MODES, spec.PADDING_MODES)
    ):
        axes, beside = others[3 + number], others[12 + number]
        Y = ogs.grid_sample(X, grid, mode, padding_mode)[0].transpose(1, 2, 0).clip(0, 1)
        np.testing.assert_allclose(axes.images[0].get_array(), Y, atol=1e-5)
        assert axes.get_title() == (padding_mode if number < 3 else "")
        assert axes.get_ylabel() == beside.get_ylabel() == ("" if number % 3 else mode)
        assert (beside.get_title(), beside.title.get_fontsize()) == (
            f"at most {differences[number]:.1e}",
            10,
        )
        (shown,) = beside.images
        assert f"{shown.get_array().max():.1e}" == f"{differences[number]:.1e}"
        assert (shown.get_cmap().name, shown.norm.vmin, shown.norm.clip) == (
            "magma",
            demo.LEAST,
            True,
        )
        assert f"{shown.norm.vmax:.1e}" == f"{max(differences):.1e}"
        assert not (*axes.get_xticks(), *axes.get_yticks())
    titles = [
        each.get_suptitle() for each in (figure, *figure.subfigs[0].subfigs, *figure.subfigs[1:])
    ]
    assert [title.split()[0] for title in titles] == [
        "GridSample:",
        "The",
        "The",
        "The",
        "Difference",
    ]


def test_the_demo_draws_the_outputs_pixels_where_they_lie() -> None:
    """Of the identity the outermost lines run along the photograph's edges, heavier than the others."""
    (height, width), axes = (60, 80), MagicMock()
    draw_grid(axes, np.eye(2, 3, dtype=np.float32)[None], height, width)
    *grid, (x, y) = (np.array(each.args) for each in axes.plot.call_args_list)
    widths = [each.kwargs.get("linewidth") for each in axes.plot.call_args_list]
    for group, along, n, m in ((slice(13), 0, width, height), (slice(13, 24), 1, height, width)):
        rows = np.array(grid[group])
        np.testing.assert_allclose(rows[:, along].min(1), -0.5, atol=1e-4)
        np.testing.assert_allclose(rows[:, along].max(1), n - 0.5, atol=1e-4)
        np.testing.assert_allclose(rows[[0, -1], 1 - along, 0], (-0.5, m - 0.5), atol=1e-4)
        first, *others, last = widths[group]
        assert first == last > max(others) > 0
    (note,) = axes.annotate.call_args_list
    assert note == call(
        "output's top left", pytest.approx((-0.5, -0.5), abs=1e-4), backgroundcolor="yellow"
    )
    assert axes.mock_calls[-2:] == [
        call.set(xticks=[], yticks=[], aspect="equal"),
        call.set_facecolor("0.85"),
    ]
    assert [each.kwargs["color"] for each in axes.plot.call_args_list] == 24 * ["yellow"] + [
        "white"
    ]
    # The outline of the detail is a rectangle inside, closed.
    assert (x[0], y[0]) == (x[-1], y[-1])
    assert 0 < x.min() < x.max() < width
    assert 0 < y.min() < y.max() < height
    np.testing.assert_allclose((np.ptp(x), np.ptp(y)), demo.DETAIL * height, rtol=1e-4)
    assert {*zip(x, y, strict=True)} == {
        (a, b) for a in (x.min(), x.max()) for b in (y.min(), y.max())
    }
