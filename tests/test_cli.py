"""The command line, as a user types it."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from cases import Attributes
from models import grid_sample_model
from ort_gridsample import spec
from ort_gridsample.cli import COMMANDS, demo, main, verify
from ort_gridsample.cli.demo import draw_grid
from ort_gridsample.cli.inputs import random_array
from ort_gridsample.cli.output import print_json
from test_session import FEEDS, GRID, WRONG_GRID, X, cached_model, external_model


@pytest.fixture
def path(tmp_path: Path) -> str:
    model = grid_sample_model("float32", "float32", 2, [Attributes("cubic", "border", True)], opset=20)
    onnx.save(model, tmp_path / "model.onnx")
    for name, array in {"X": X, "grid": GRID, "wrong": WRONG_GRID}.items():
        np.save(tmp_path / f"{name}.npy", array)
    return str(tmp_path / "model.onnx")


def test_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "ort_gridsample", "--help"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert all(command in shown.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"ort-gridsample {command}" in capsys.readouterr().out


def test_inspect(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path]) == 0
    assert re.search(
        r"main graph\n.*\n +sample0 +GridSample-20 +cubic +border +1 +float32 4-D, float32 4-D +yes +replaces it +"
        r"(compiled op\n|onnxruntime \[1\]\n.*\[1\] \w+)",
        capsys.readouterr().out,
    )
    assert main(["inspect", "--json", path]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["name"], record["mode"], record["align_corners"], record["native"]) == ("sample0", "cubic", 1, True)
    assert record["session"] in (
        {"runs_on": "compiled op", "reason": "", "within": "", "takes_in": []},
        {"runs_on": "onnxruntime", "reason": ANY, "within": "", "takes_in": []},
    )
    assert record["inputs"]["X"] == [{"type": "float32", "rank": 4, "shape": ["N", "C", "D0", "D1"]}]


def test_patch_and_run(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patched = str(tmp_path / "patched.onnx")
    assert main(["patch", path, patched]) == 0
    each, last = capsys.readouterr().out.splitlines()
    assert each.startswith("GridSample sample0: replaces it")
    assert last == f"{patched}: 1 node replaced"
    assert onnx.load(patched) == ogs.patch_model(path)
    inputs = [word for name in FEEDS for word in ("--input", f"{name}={tmp_path / name}.npy")]
    for model in (path, patched):
        assert main(["run", model, *inputs, "--output", str(tmp_path / "out")]) == 0
        assert "output  Y0    float32  (1, 3, 4, 5)" in capsys.readouterr().out
        expected = ogs.grid_sample(X, GRID, "cubic", "border", True)
        found = np.load(tmp_path / "out" / "Y0.npy")
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # of the unpatched, onnxruntime's own may be
    np.testing.assert_array_equal(found, expected)


def test_run_random(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", path, "--random", "--shape", "X=1,2,9,9"]) == 0
    out = capsys.readouterr().out
    assert "input   X     float32  (1, 2, 9, 9)" in out
    assert "output  Y0    float32  (1, 2, 8, 8)" in out


@pytest.mark.parametrize("of", ["bfloat16[2]", "seq(float[2])"])
def test_nothing_random_is_made_of_what_numpy_has_no_type_for(
    of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f'<ir_version: 9, opset_import: ["": 20]> g ({of} X) => ({of} Y) {{ Y = Identity (X) }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx"), "--random"]) == 2
    err = capsys.readouterr().err
    assert re.search(r"input 'X' is of type \S+, expected a tensor of a type of numpy's", err), err


def test_run_says_how_long_it_took(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(perf_counter=iter((2.0, 2.25)).__next__)
    monkeypatch.setattr("ort_gridsample.cli.run.time", clock)
    assert main(["run", path, "--random"]) == 0
    assert "time    250.00 ms" in capsys.readouterr().out


def test_external_data_stays_external(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir(), target.mkdir()
    path = external_model(source)
    # Once more into a folder that has the data already.
    for out in (source / "patched.onnx", target / "patched.onnx", target / "patched.onnx"):
        assert main(["patch", str(path), str(out)]) == 0
        assert out.stat().st_size < 10_000
        np.testing.assert_array_equal(ogs.InferenceSession(out).run(None, {"X": X})[0], ogs.grid_sample(X, GRID))
    assert sorted(p.name for p in target.iterdir()) == ["patched.onnx", "weights.bin"]
    (target / "weights.bin").write_bytes(b"another")
    assert main(["patch", str(path), str(target / "patched.onnx")]) == 2
    assert "external data is in the way of" in capsys.readouterr().err
    assert (target / "weights.bin").read_bytes() == b"another"


def test_external_data_behind_links_is_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = cached_model(tmp_path), tmp_path / "out"
    target.mkdir()
    out = target / "patched.onnx"
    assert main(["patch", str(path), str(out)]) == 0
    session = onnxruntime.InferenceSession(out, ogs.register())
    np.testing.assert_array_equal(session.run(None, {"X": X})[0], ogs.grid_sample(X, GRID))
    assert main(["patch", str(path), str(path.parent / "patched.onnx")]) == 2  # onnxruntime would not follow its links
    assert "external data is in the way of" in capsys.readouterr().err
    assert not (path.parent / "patched.onnx").exists()


def test_external_data_of_a_detour_stays_in_the_folder(tmp_path: Path) -> None:
    """A location may leave the model's folder and come back, by its name: that of the copy's folder is another."""
    source, target = tmp_path / "m", tmp_path / "deep" / "out"
    source.mkdir(), target.mkdir(parents=True)
    path = external_model(source)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        (location,) = (entry for entry in tensor.external_data if entry.key == "location")
        location.value = "../m/weights.bin"
    path.write_bytes(model.SerializeToString())
    assert main(["patch", str(path), str(target / "patched.onnx")]) == 0
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")) == [
        "deep/out/patched.onnx",
        "deep/out/weights.bin",
        "m/model.onnx",
        "m/weights.bin",
    ]
    np.testing.assert_array_equal(
        ogs.InferenceSession(target / "patched.onnx").run(None, {"X": X})[0], ogs.grid_sample(X, GRID)
    )


def test_external_data_is_not_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target, elsewhere = (tmp_path / name for name in ("in", "out", "elsewhere"))
    for folder in (source, target, elsewhere):
        folder.mkdir()
    path = external_model(source)
    (target / "weights.bin").symlink_to(elsewhere / "weights.bin")
    assert main(["patch", str(path), str(target / "patched.onnx")]) == 2
    assert "external data is in the way of" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("out", ["in/weights.bin", "out/weights.bin"])
def test_external_data_is_not_overwritten_by_the_model(
    tmp_path: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir(), (tmp_path / "out").mkdir()
    path = external_model(tmp_path / "in")
    before = (tmp_path / "in" / "weights.bin").read_bytes()
    assert main(["patch", str(path), str(tmp_path / out)]) == 2
    assert "external data is in the way of" in capsys.readouterr().err
    assert (tmp_path / "in" / "weights.bin").read_bytes() == before
    assert not list((tmp_path / "out").iterdir())


def test_a_patch_that_fails_leaves_no_copy_of_external_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    path, out = external_model(tmp_path / "in"), tmp_path / "out" / "patched.onnx"
    out.mkdir(parents=True)  # a folder where the model would be
    assert main(["patch", str(path), str(out)]) == 2
    assert capsys.readouterr().err == f"ort-gridsample: [Errno 21] Is a directory: '{out}'\n"
    assert list(out.parent.iterdir()) == [out]


@pytest.fixture
def two_names(tmp_path: Path) -> str:
    """A model whose outputs' names are one as file names."""
    nodes = [onnx.helper.make_node(op, ["X"], [name]) for op, name in (("Neg", "a/b"), ("Abs", "a:b"), ("Exp", "A_b"))]
    tensor = onnx.helper.make_tensor_value_info
    outputs = [tensor(node.output[0], onnx.TensorProto.FLOAT, [2]) for node in nodes]
    graph = onnx.helper.make_graph(nodes, "g", [tensor("X", onnx.TensorProto.FLOAT, [2])], outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, tmp_path / "names.onnx")
    np.save(tmp_path / "two.npy", np.array([-2, -3], np.float32))
    return str(tmp_path / "names.onnx")


def test_each_output_is_saved_in_a_file_of_its_own(
    two_names: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", two_names, "--input", f"X={tmp_path / 'two.npy'}", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    files = dict(re.findall(r"^saved   (.*?): (.*)$", capsys.readouterr().out.replace("a:b:", "a.b:"), re.MULTILINE))
    assert {Path(file).name for file in files.values()} == {"a_b.npy", "a_b-2.npy", "A_b-3.npy"}
    np.testing.assert_array_equal(np.load(files["a/b"]), [2, 3])
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "a_b-2.npy"), [2, 3])
    np.testing.assert_allclose(np.load(files["A_b"]), np.exp([-2, -3]), rtol=1e-6)


# verify

FAR = np.where(np.arange(GRID.size).reshape(GRID.shape) == 0, np.float32(3e9), GRID)


def far_model(kind: str) -> onnx.ModelProto:
    """GridSample with border padding, its grid an input, computed, in a branch or in a function."""
    sample = 'Y = GridSample <mode = "linear", padding_mode = "border"> (X, grid)'
    computed = f"grid = Identity (given) {sample}"
    branches = ", ".join(f"{name}_branch = {name} () => (Y) {{ {computed} }}" for name in ("then", "else"))
    body = {
        "input": sample.replace("grid)", "given)"),
        "computed": computed,
        "branch": f"yes = Constant <value = bool {{1}}> () Y = If (yes) <{branches}>",
        "function": "Y = f.warp (X, given)",
    }[kind]
    function = f'<domain: "f", opset_import: ["": 20]> warp (X, grid) => (Y) {{ {sample} }}'
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20, "f": 1]>
        g (float[N, C, H, W] X, float[N, h, w, 2] given) => (float[N, C, h, w] Y) {{ {body} }}
        {function if kind == "function" else ""}"""
    )


@pytest.mark.parametrize("target", ["ort_gridsample", "primitives"])
@pytest.mark.parametrize("kind", ["input", "computed", "branch", "function"])
def test_verify_says_how_far_coordinates_account_for_a_difference(
    kind: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    onnx.save(far_model(kind), a)
    for name, array in {"X": X, "far": FAR, "near": GRID}.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert main(["patch", a, b, "--target", target]) == 0
    inputs = ["--input", f"X={tmp_path / 'X.npy'}", "--input"]
    assert main(["verify", a, b, *inputs, f"given={tmp_path / 'near.npy'}"]) == 0
    assert "coordinates" not in capsys.readouterr().out
    assert main(["verify", a, b, *inputs, f"given={tmp_path / 'far.npy'}"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"Y +float32 +\S+ \S+ \S+ \S+ .* differs", out)
    if kind in ("input", "computed"):
        assert re.search(rf"grid '\w+': 1 of {GRID.size} coordinates are further out than ±10000", out)
    else:
        assert "coordinates are not counted" in out
    assert "all agree: these coordinates account for it" in out


def test_verify_runs_each_side_as_a_stranger_would(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patched, refused = str(tmp_path / "patched.onnx"), str(tmp_path / "refused.onnx")
    onnx.save(ogs.patch_model(path), patched)
    assert main(["verify", path, patched]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^A .*model\.onnx +onnxruntime$", out, re.MULTILINE)
    assert re.search(r"^B .*patched\.onnx +onnxruntime with ort_gridsample's ops$", out, re.MULTILINE)
    onnx.save(grid_sample_model("uint8", "float32", 2, [Attributes("linear", "zeros", False)]), refused)
    assert main(["verify", refused, refused, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["A"]["way"] == "ort_gridsample's session"
    assert "NOT_IMPLEMENTED" in content["A"]["refusal"]


def test_verify_says_so_where_coordinates_are_not_to_blame(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tmp_path / "other.onnx")
    onnx.save(grid_sample_model("float32", "float32", 2, [Attributes("cubic", "zeros", True)], opset=20), other)
    for name, grid in {"outside": GRID * 3, "far": FAR * 3}.items():
        np.save(tmp_path / f"{name}.npy", grid)
        words = ["verify", path, other, "--input", f"X={tmp_path / 'X.npy'}"]
        assert main([*words, "--input", f"grid={tmp_path / name}.npy"]) == 1
        out = capsys.readouterr().out
        assert "account for it" not in out
        assert ("this is left:" in out) == (name == "far")
    assert main([*words, "--input", f"grid={tmp_path / 'far.npy'}", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["agree"] is False
    assert content["far"]["agree"] is False
    assert content["far"]["grids"]["grid"] == {"coordinates": GRID.size, "far": 1}


def test_integers_that_float64_has_not_are_told_apart() -> None:
    a, b = np.array([2**60]), np.array([2**60 + 1])
    assert verify.difference(a, b)[0] > 0
    assert verify.difference(a, a)[0] == 0


@pytest.mark.parametrize("values", [[], [np.nan], [np.nan, np.inf, -np.inf]], ids=str)
def test_what_has_no_largest_value_agrees_with_itself(values: list[float]) -> None:
    a = np.array(values, np.float32)
    (found,) = verify.agreements({"Y": a}, {"Y": a.copy()}, 1e-5)
    assert (found.difference, found.of, found.agrees) == (0, 0, True)


def test_verify_compares_no_outputs_of_different_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    for path, length, node in ((a, 2, "Neg (X)"), (b, 4, "Concat <axis = 0> (X, X)")):
        text = f'<ir_version: 9, opset_import: ["": 20]> g (float[2] X) => (float[{length}] Y) {{ Y = {node} }}'
        onnx.save(onnx.parser.parse_model(text), path)
    assert main(["verify", a, b]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^Y +float32 +\(2,\) +inf +0 +differs$", out, re.MULTILINE)
    unknown = f"{a} has no grid that is known"
    assert f"whether coordinates further out than ±10000 account for it is not known: {unknown}\n" in out
    assert main(["verify", a, b, "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    (output,) = content["outputs"]
    assert output == {"name": "Y", "type": "float32", "shape": [2], "difference": None, "of": 0, "agrees": False}
    assert (content["far"]["agree"], content["far"]["unknown"]) == (None, unknown)


def test_verify_names_the_model_whose_outputs_are_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(tmp_path / f"{name}.onnx") for name in "YZ"]
    for name, path in zip("YZ", paths, strict=True):
        text = f'<ir_version: 9, opset_import: ["": 20]> g (float[2] X) => (float[2] {name}) {{ {name} = Neg (X) }}'
        onnx.save(onnx.parser.parse_model(text), path)
    assert main(["verify", *paths]) == 2
    assert f"{paths[1]}: outputs is ['Z'], expected those of {paths[0]}: ['Y']" in capsys.readouterr().err


def test_what_onnxruntime_logs_of_a_refusal_is_not_shown(
    path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inputs = [word for name in ("X", "grid") for word in ("--input", f"{name}={tmp_path / name}.npy")]
    np.save(tmp_path / "grid.npy", WRONG_GRID)
    assert main(["verify", path, path, *inputs]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ort-gridsample: ")


# What is said, and where

JSON = {
    "inspect": (["inspect", "model.onnx"], list),
    "verify": (["verify", "model.onnx", "model.onnx"], dict),
    "run": (["run", "model.onnx", "--random", "--output", "out"], dict),
    "bench": (["bench", "model.onnx", "--rounds", "1"], dict),
}


@pytest.mark.parametrize(("words", "kind"), JSON.values(), ids=JSON)
def test_json_is_all_that_is_printed(
    path: str, words: list[str], kind: type, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(path).parent)
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(content, kind)
    if words[0] == "run":
        assert content["outputs"] == [
            {"name": "Y0", "type": "float32", "shape": [1, 8, 8, 8], "file": str(Path("out", "Y0.npy"))}
        ]


def test_numbers_that_json_has_not_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"numbers": [0.5, np.nan, (np.inf, -np.inf, 2)]})
    assert json.loads(capsys.readouterr().out) == {"numbers": [0.5, None, [None, None, 2]]}


def process(words: list[str], folder: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join(filter(None, [str(Path(ogs.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "ort_gridsample", *words]
    environment = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=300)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize("words", [["bench", "model.onnx", "--rounds", "1"], ["inspect", "half.onnx"], ["demo"]])
def test_any_encoding_will_do(path: str, words: list[str], encoding: str) -> None:
    if words == ["demo"]:
        pytest.importorskip("matplotlib", reason="the demo needs matplotlib")
        pytest.importorskip("PIL", reason="the demo needs pillow")
    folder = Path(path).parent
    half = grid_sample_model("float16", "float16", 2, [Attributes("linear", "zeros", False)])
    half.graph.node[0].name = "Маша"
    onnx.save(half, folder / "half.onnx")
    done = process(words, folder, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    out = done.stdout.decode(encoding)
    assert {"bench": "of the quartiles", "inspect": "????", "demo": "512x600"}[words[0]] in out.replace("×", "x")
    if words[0] == "inspect":
        assert "cast X float16 -> float32" in out


def test_streams_come_back_as_they_were(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "ascii", errors="xmlcharrefreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["bench", path, "--rounds", "1"]) == 0
    assert stream.errors == "xmlcharrefreplace"
    assert b"+-" in written.getvalue()
    assert b"&#" not in written.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise on Windows")
@pytest.mark.parametrize("words", [["inspect", "model.onnx"], ["inspect", "model.onnx", "--json"], ["--help"]])
def test_a_broken_pipe_is_silent(path: str, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "ort_gridsample", *words]
    done = subprocess.run(command, cwd=Path(path).parent, stdout=write, stderr=subprocess.PIPE, timeout=300)
    os.close(write)
    assert done.stderr == b""
    ignored = words == ["--help"] and sys.version_info >= (3, 11)  # by argparse
    assert done.returncode == (0 if ignored else 141)


def test_control_c_exits_with_130(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ort_gridsample.cli.inspect.run", interrupted)
    assert main(["inspect", path]) == 130
    assert capsys.readouterr().err == "ort-gridsample: interrupted\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"ort-gridsample {ogs.__version__}, onnxruntime {onnxruntime.__version__},")
    assert f"numpy {np.__version__}" in line


def test_a_mistake_of_our_own_says_how_to_report_it(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(arguments: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("ort_gridsample.cli.inspect.run", broken)
    assert main(["inspect", path]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError: 'lost'; please report it" in line
    assert "--version" in line
    assert "--traceback" in line
    for words in (["--traceback", "inspect", path], ["inspect", path, "--traceback"]):
        assert main(words) == 70
        error = capsys.readouterr().err
        assert error.startswith("Traceback (most recent call last)")
        assert "in broken" in error


def test_a_mistake_of_our_own_is_not_blamed_on_the_file(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **options: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("ort_gridsample.cli.inputs.feeds", broken)
    assert main(["run", path, "--random"]) == 70
    error = capsys.readouterr().err
    assert "KeyError: 'lost'; please report it" in error
    assert path not in error


@pytest.mark.parametrize(
    ("module", "remedy"),
    [("PIL", "pip install pillow"), ("matplotlib.pyplot", "pip install matplotlib"), ("numba", "pip install numba")],
)
def test_a_missing_package_is_named_as_it_is_installed(
    path: str, module: str, remedy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(arguments: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("ort_gridsample.cli.inspect.run", missing)
    assert main(["inspect", path]) == 2
    assert capsys.readouterr().err == f"ort-gridsample: No module named {module!r}: {remedy}\n"


def test_the_environment_is_read_first(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ogs.get_core()
    monkeypatch.setenv("ORT_GRIDSAMPLE_CORE", "bogus")
    ogs.set_core(None)
    try:
        assert main(["inspect", path]) == 2
        assert "ORT_GRIDSAMPLE_CORE is 'bogus', expected one of" in capsys.readouterr().err
    finally:
        ogs.set_core(before)


def test_nothing_to_patch_is_said(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out.onnx")
    assert main(["patch", path, out, "--nodes", "unsupported"]) == 0
    assert capsys.readouterr().out == f"{out}: nothing to replace, the model is as it was\n"
    assert onnx.load(out) == onnx.load(path)


BOTH = ["--input", "X=X.npy", "--input", "grid=grid.npy"]
MISTAKES = {
    "no such model": (["inspect", "missing.onnx"], "No such file or directory: 'missing.onnx'"),
    "no model": (["inspect", "X.npy"], "X.npy"),
    "no model to run": (["run", "X.npy", "--random"], "X.npy"),
    "no model to verify": (["verify", "model.onnx", "X.npy"], "X.npy"),
    "no such folder": (["patch", "model.onnx", "missing/out.onnx"], "No such file or directory: 'missing/out.onnx'"),
    "in is out": (["patch", "model.onnx", "model.onnx"], "OUT is 'model.onnx', which is IN, expected another file"),
    "in is out, behind a link": (["patch", "model.onnx", "link.onnx"], "which is IN"),
    "functions of what": (["patch", "model.onnx", "out.onnx", "--functions"], "expected --target primitives"),
    "a runtime of what": (["patch", "model.onnx", "out.onnx", "--for", "mnn"], "expected --target primitives"),
    "no such input": (
        ["run", "model.onnx", "--input", "Z=X.npy"],
        "ort-gridsample: model.onnx: the input's name is 'Z', expected one of X, grid",
    ),
    "no inputs": (["run", "model.onnx"], "--input X=FILE.npy or --random"),
    "an input twice": (["run", "model.onnx", *BOTH, "--input", "X=X.npy"], "given twice for 'X', expected once"),
    "a shape of a file": (["run", "model.onnx", *BOTH, "--shape", "X=1,3,4,4"], "--input gives 'X' from a file"),
    "no file": (["run", "model.onnx", "--random", "--input", "X"], "expected NAME=VALUE"),
    "no array": (["run", "model.onnx", "--random", "--input", "X=model.onnx"], "expected an array saved by numpy.save"),
    "arrays": (["run", "model.onnx", "--random", "--input", "X=X.npz"], "expected an array saved by numpy.save"),
    "no shape": (["run", "model.onnx", "--random", "--shape", "X=a"], "expected numbers with commas"),
    "no length": (["run", "model.onnx", "--random", "--shape", "X=1,-3"], "expected numbers with commas"),
    "wrong grid": (["run", "patched.onnx", "--input", "X=X.npy", "--input", "grid=wrong.npy"], "'sample0': grid is of"),
    "other type": (
        ["run", "model.onnx", "--random", "--input", "X=double.npy"],
        f"input 'X', from double.npy, is float64 of shape {X.shape}, expected float32 of shape (N, C, D0, D1); "
        "convert it with numpy.save(file, numpy.load(file).astype('float32'))",
    ),
    "other rank": (
        ["verify", "model.onnx", "model.onnx", "--input", "X=flat.npy"],
        f"input 'X', from flat.npy, is float32 of shape ({X.size},), expected float32 of shape (N, C, D0, D1); reshape",
    ),
    "other length": (
        ["run", "model.onnx", "--input", "X=X.npy", "--input", "grid=three.npy"],
        "is float32 of shape (1, 4, 5, 3), expected float32 of shape (N, D0_out, D1_out, 2); reshape or transpose it",
    ),
    "other inputs": (["verify", "model.onnx", "names.onnx"], "names.onnx"),
    "an output that is no tensor": (
        ["run", "sequence.onnx", "--random", "--output", "out"],
        "output 'S' is a list, expected a tensor, to be saved",
    ),
    "a picture of no kind": (["demo", "--output", "demo.xyz"], "'demo.xyz', expected a name that ends in"),
    "the photograph itself": (["demo", "photo.png", "--output", "photo.png"], "which is the photograph"),
}


@pytest.mark.parametrize(("words", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    path: str, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "demo":
        pytest.importorskip("matplotlib", reason="the demo needs matplotlib")
    monkeypatch.chdir(Path(path).parent)
    np.save("double.npy", X.astype(np.float64)), np.save("flat.npy", X.ravel()), np.savez("X.npz", X=X)
    np.save("three.npy", np.zeros((1, 4, 5, 3), np.float32))
    onnx.save(ogs.patch_model(path), "patched.onnx")  # which runs on this package's ops everywhere
    Path("link.onnx").symlink_to("model.onnx")
    Path("photo.png").touch()
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[2] Z) => (float[2] Y) { Y = Abs (Z) }'
    onnx.save(onnx.parser.parse_model(text), "names.onnx")
    text = text.replace("float[2] Y", "seq(float[2]) S").replace("Y = Abs", "S = SequenceConstruct")
    onnx.save(onnx.parser.parse_model(text), "sequence.onnx")
    before = sorted(Path.cwd().iterdir())
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert error[0].startswith("ort-gridsample: ")
    assert sentence in error[0]
    assert sorted(Path.cwd().iterdir()) == before


REFUSED = {
    "negative seconds": ["bench", "model.onnx", "--seconds", "-1"],
    "no rounds": ["bench", "model.onnx", "--rounds", "0"],
    "a negative tolerance": ["verify", "model.onnx", "model.onnx", "--tolerance", "-1"],
    "no tolerance": ["verify", "model.onnx", "model.onnx", "--tolerance", "nan"],
    "a negative seed": ["run", "model.onnx", "--random", "--seed", "-1"],
    "no number": ["run", "model.onnx", "--random", "--seed", "x"],
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_options_that_make_no_sense_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert f"argument {words[-2]}: " in capsys.readouterr().err.splitlines()[-1]


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image", reason="the demo needs the extra demo")
    pytest.importorskip("matplotlib", reason="the demo needs the extra demo")
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    picture = tmp_path / "demo.png"
    assert main(["demo", "--output", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "NOT_IMPLEMENTED" in out
    differences = [float(word) for line in out.splitlines() for word in re.findall(r"\d\.\de-?\+?\d\d", line)]
    assert len(differences) == 9
    assert max(differences) < 2e-4
    with image.open(picture) as drawn:
        assert drawn.size == (1275, 720)
        assert len(np.unique(np.asarray(drawn.convert("L")))) > 100
    # The colour bar's range has every difference in it, and so what the titles say.
    (bar,) = (axes for axes in figures[0].axes if axes.get_label() == "<colorbar>")
    shown = [each for axes in figures[0].axes for each in axes.images if each.get_cmap().name == "magma"]
    assert len(shown) == 9
    most = max(float(each.get_array().max()) for each in shown)
    assert bar.get_xlim()[1] == pytest.approx(most, rel=1e-6)
    assert all(each.norm.vmax == pytest.approx(most, rel=1e-6) for each in shown)


def test_the_demos_picture_has_every_mode_and_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL", reason="the demo needs the extra demo")
    pytest.importorskip("matplotlib", reason="the demo needs the extra demo")
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: figures.append(self))
    assert main(["demo", "--output", str(tmp_path / "demo.png")]) == 0
    photo, *images, _ = figures[0].axes  # the last one is the colour bar's
    assert [len(axes.images) for axes in images] == [1] * (3 + 9 + 9)
    assert [axes.get_title() for axes in images[:12]] == [*spec.MODES, *spec.PADDING_MODES, *[""] * 6]
    # The output is turned about the middle of the photograph.
    height, width = photo.images[0].get_array().shape[:2]
    middle = np.mean([line.get_xydata() for line in photo.lines[:13]], axis=(0, 1))
    np.testing.assert_allclose(middle, ((width - 1) / 2, (height - 1) / 2), atol=1e-2)


def test_the_demo_measures_ties_along_the_nearer_axis(capsys: pytest.CaptureFixture[str]) -> None:
    height, width = 8, 16
    pixels = np.array([[(2.501, 3.2), (2.504, 3.2), (4.2, 5.498), (1, 1)]])  # the last one is no tie
    grid = (2 * pixels[None] + 1) / (width, height) - 1
    theirs, ours = np.zeros((1, 3, 1, 4)), np.zeros((1, 3, 1, 4))
    ours[..., :3] = 1
    demo.print_ties({("nearest", "zeros"): ours}, {("nearest", "zeros"): theirs}, grid, (height, width))
    assert "at 75.00% of the positions. They lie at most 4e-03\n" in capsys.readouterr().out


def test_the_demo_says_why_nearest_differs_on_a_large_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image", reason="the demo needs the extra demo")
    pytest.importorskip("matplotlib", reason="the demo needs the extra demo")
    noise = np.random.default_rng(0).integers(0, 256, (2400, 3600, 3), np.uint8)
    image.fromarray(noise).save(tmp_path / "large.png")
    assert main(["demo", str(tmp_path / "large.png"), "--output", str(tmp_path / "demo.png")]) == 0
    out = capsys.readouterr().out
    (part, most) = re.search(r"another pixel at (.*)% of the positions. They lie at most (\S+)\n", out).groups()
    assert 0 < float(part) < 0.2
    assert 0 < float(most) < 2e-3


def test_the_demos_picture_is_not_the_clones() -> None:
    ignored = (Path(__file__).parents[1] / ".gitignore").read_text().splitlines()
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    assert f"/{parser.get_default('output')}" in ignored


def test_the_only_file_left_is_whole(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "folder" / "patched.onnx"
    target.parent.mkdir()
    target.write_bytes(b"before")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main(["patch", path, str(target)]) == 2
    assert [p.name for p in target.parent.iterdir()] == ["patched.onnx"]
    assert target.read_bytes() == b"before"


def test_random_inputs_have_every_value_of_a_small_type() -> None:
    generator = np.random.default_rng(0)
    found = {name: random_array(generator, "X", f"tensor({name})", (1000,)) for name in ("bool", "uint8", "float")}
    assert set(found["bool"].tolist()) == {False, True}
    assert (found["uint8"].min(), found["uint8"].max()) == (0, 99)
    assert -1 <= found["float"].min() < -0.99 < 0.99 < found["float"].max() < 1


def test_the_demo_draws_the_outputs_pixels_where_they_lie() -> None:
    """Of the identity the outermost lines run along the photograph's edges, heavier than the others."""
    height, width = 60, 80
    lines: list[tuple[np.ndarray, np.ndarray, dict[str, object]]] = []
    notes: list[tuple[float, float]] = []
    axes = SimpleNamespace(
        plot=lambda x, y, **how: lines.append((np.array(x), np.array(y), how)),
        annotate=lambda text, at, **how: notes.append(at),
        set=lambda **how: None,
        set_facecolor=lambda colour: None,
    )
    draw_grid(axes, np.eye(2, 3, dtype=np.float32)[None], height, width)
    *grid, (x, y, _) = lines
    rows, columns = grid[:13], grid[13:]
    assert len(columns) == 11
    for group, along, across, n, m in ((rows, 0, 1, width, height), (columns, 1, 0, height, width)):
        for line in group:
            np.testing.assert_allclose((line[along].min(), line[along].max()), (-0.5, n - 0.5), atol=1e-4)
        np.testing.assert_allclose([line[across][0] for line in group[:: len(group) - 1]], (-0.5, m - 0.5), atol=1e-4)
        heavy = [line[2]["linewidth"] for line in group]
        assert heavy[0] == heavy[-1] > max(heavy[1:-1]) > 0
    np.testing.assert_allclose(notes, [(-0.5, -0.5)], atol=1e-4)
    # The outline of the detail is a rectangle inside, closed.
    assert (x[0], y[0]) == (x[-1], y[-1])
    assert 0 < x.min() < x.max() < width
    assert 0 < y.min() < y.max() < height
    np.testing.assert_allclose((np.ptp(x), np.ptp(y)), demo.DETAIL * height, rtol=1e-4)
    assert {(a, b) for a, b in zip(x, y, strict=True)} == {
        (a, b) for a in (x.min(), x.max()) for b in (y.min(), y.max())
    }
