"""The standard suite: what it times, how it counts, and what it says. No test looks at how fast anything is."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from benchmarks import contestants, cores, costs, probes, report, run, scales, suite, summary
from benchmarks.__main__ import main
from benchmarks.contestants import CONTESTANTS, NATIVE, Contestant
from benchmarks.suite import GridSampleCase
from ort_gridsample.cli.timing import Timing

TINY = GridSampleCase((1, 2, 6, 7), (4, 5), "linear")
UNSUPPORTED = GridSampleCase((1, 2, 6, 7), (4, 5), "nearest", type="uint8")
EFFORT = costs.Effort(threads=2, rounds=2, seconds=0, quick=True)


@pytest.fixture(scope="module", autouse=True)
def _kept() -> Iterator[None]:
    """Contestants set the core and the ops that they run on."""
    with cores.kept():
        yield


@pytest.fixture(scope="module")
def results() -> list[run.Result]:
    """A tiny case, and one that onnxruntime has no kernel for, on every contestant."""
    return [run.run_case(case, run.taking_part(), threads=2, rounds=3, seconds=0) for case in (TINY, UNSUPPORTED)]


# What is timed


ZEROS, ALL = ("zeros",), ("zeros", "border", "reflection")
STANDARD = {
    "1×3×512×512 → 512×512 float32": ("nearest linear cubic", ALL),
    "1×3×1080×1920 → 1080×1920 float32": ("nearest linear cubic", ALL),
    "1×64×128×128 → 128×128 float32": ("nearest linear cubic", ZEROS),
    "8×32×64×64 → 64×64 float32": ("nearest linear cubic", ZEROS),
    "1×256×64×64 → 64×64 float32": ("nearest linear cubic", ZEROS),
    "8×32×100×100 → 300×4 float32": ("nearest linear cubic", ZEROS),
    "1×32×16×64×64 → 16×64×64 float32": ("nearest linear", ZEROS),
    "1×1×128×128×128 → 128×128×128 float32": ("nearest linear", ZEROS),
    "1×3×1080×1920 → 1080×1920 uint8": ("nearest linear", ZEROS),
    "1×3×512×512 → 512×512 float64": ("nearest linear cubic", ZEROS),
    "1×3×512×512 → 512×512 float16": ("nearest linear cubic", ZEROS),
}


def test_the_suite_is_the_standard_one() -> None:
    expected = {
        f"{heading} {mode} {padding} {grid}"
        for heading, (modes, paddings) in STANDARD.items()
        for mode in modes.split()
        for padding in paddings
        for grid in ("rotated", "random")
    }
    expected |= {"8×1080×1920 float32 AffineGrid", "1×128×128×128 float32 AffineGrid"}
    names = [suite.name_of(case) for case in suite.operator_cases()]
    assert len(names) == len(set(names))
    assert set(names) == expected


@pytest.mark.parametrize("case", [TINY, UNSUPPORTED, suite.AffineGridCase(2, (3, 4))], ids=suite.name_of)
def test_a_case_is_a_model_and_the_same_feeds_every_time(case: suite.Case) -> None:
    onnx.checker.check_model(onnx.load_from_string(case.model()), full_check=True)
    for name, array in case.feeds().items():
        np.testing.assert_array_equal(array, case.feeds()[name])
    assert case.moved_bytes() == {TINY: (84 + 40 + 40) * 4, UNSUPPORTED: 40 + 40 + 160}.get(case, 2 * 3 * 4 * 2 * 4)


def test_grids() -> None:
    grid = suite.GridSampleCase((1, 1, 8, 8), (8, 8), "linear").feeds()["grid"]
    expected = ogs.affine_grid(np.eye(2, 3)[None], (1, 1, 8, 8)) * suite.SCALE
    np.testing.assert_allclose(np.hypot(*grid.T), np.hypot(*expected.T), rtol=1e-5)
    assert abs(grid - expected).max() > 0.1


@pytest.mark.parametrize(("name", "nodes"), list(zip(suite.NETWORKS, (1, 1, 1, 6, 4), strict=True)))
def test_whole_models(name: str, nodes: int) -> None:
    model = suite.NETWORKS[name]()
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count("GridSample") == nodes
    rank = 5 if name.startswith("3-D") else 4
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    shapes = {v.name: v.type.tensor_type.shape.dim for v in (*inferred.graph.value_info, *inferred.graph.output)}
    assert {len(shapes[n.output[0]]) for n in model.graph.node if n.op_type == "GridSample"} == {rank}


def test_a_whole_model_runs_with_onnxruntimes_own_options() -> None:
    (case,) = (case for case in suite.network_cases() if case.label.startswith("conv"))
    options = contestants.options_for(0)
    assert options.intra_op_num_threads == 0
    with pytest.raises(Exception, match="allow_spinning"):
        options.get_session_config_entry("session.intra_op.allow_spinning")
    result = run.run_case(case, run.taking_part(), threads=0, rounds=1, seconds=0)
    assert set(result.timings) == {c.name for c in CONTESTANTS if c.networks and c.installed}
    assert not result.wrong


# How it is counted


def results_of(**ratios: list[float]) -> list[run.Result]:
    """Results on several cases in which native takes 1 s, and the others what makes these ratios."""
    cases = [case for case in suite.operator_cases() if case.heading.startswith("1×3×512") and case.label[0] in "cl"]
    found = []
    for i, case in enumerate(cases[: len(next(iter(ratios.values())))]):
        times = {name.replace("_", " "): Timing((1 / values[i],)) for name, values in ratios.items()}
        found.append(run.Result(case, {NATIVE: Timing((1.0,)), **times}))
    return found


def test_means_and_targets() -> None:
    found = results_of(compiled_op=[2, 8, 4, 4], function_numpy=[0.2, 1, 1, 1], function_jit=[1, 1, 1, 1])
    *groups, every = summary.means(found, "compiled op")
    assert [group.group for group in groups] == ["2-D linear"]
    assert (every.cases, every.mean, every.least, every.at) == (4, pytest.approx(4), 2, found[0])
    targets = {target.what: target for target in summary.targets(found)}
    assert not any("PyTorch" in what or "whole" in what for what in targets)  # nothing is known of them
    assert targets["compiled op: geometric mean"].reached
    assert targets["compiled op: every kernel"].value == 2
    assert not targets["function numpy: every other kernel"].reached
    assert not summary.Target("", 2, 1, at_least=False).reached


# Every contestant, on a tiny case


def test_everyone_takes_part(results: list[run.Result]) -> None:
    tiny, unsupported = results
    assert set(tiny.timings) == {c.name for c in CONTESTANTS if c.installed} | {"copy"}
    assert not tiny.reasons
    assert not tiny.wrong
    assert not unsupported.wrong
    assert "GridSample" in unsupported.reasons[NATIVE]
    assert {"Python op", "function numpy"} <= set(unsupported.timings)
    assert ogs.get_core() in ("jit", "numpy")


def test_a_wrong_answer_has_no_time_but_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(case: suite.Case, feeds: suite.Arrays, threads: int) -> contestants.Call:
        return lambda: [ogs.grid_sample(*feeds.values()) + np.float32(0.01)]

    everyone = [*CONTESTANTS[:1], Contestant("Python op", wrong, "numpy"), Contestant("PyTorch", wrong)]
    monkeypatch.setattr(run, "CONTESTANTS", everyone)
    monkeypatch.setattr(suite, "operator_cases", lambda: iter([TINY]))
    (result,) = (run.run_case(TINY, everyone, threads=1, rounds=1, seconds=0),)
    assert set(result.timings) == {NATIVE, "copy"}
    assert "0.01 off" in result.wrong["Python op"]
    assert "another answer: a value is 0.01 off" in result.reasons["PyTorch"]
    assert main(["--only", "6×7", "--rounds", "1"]) == 1
    assert "Python op: WRONG: a value is 0.01 off" in capsys.readouterr().out


def test_disagreement() -> None:
    def disagreement(case: GridSampleCase, change: float, elements: int) -> str:
        expected = np.zeros((1, 1, 100, 100), case.type)
        expected[0, 0, 0] = 100
        found = expected.copy()
        found.reshape(-1)[:elements] += np.array(change).astype(case.type)
        return run.disagreement([found], [expected], case)

    linear, nearest = (GridSampleCase((1, 1, 9, 9), (100, 100), mode) for mode in ("linear", "nearest"))
    assert not disagreement(linear, 0.05, 10_000)
    assert disagreement(linear, 0.5, 1)
    assert disagreement(linear, np.nan, 1)
    assert not disagreement(nearest, 50, 10)  # ties
    assert disagreement(nearest, 50, 100)
    as_bytes = GridSampleCase((1, 1, 9, 9), (100, 100), "linear", type="uint8")
    assert not disagreement(as_bytes, 1, 10_000)
    assert disagreement(as_bytes, 2, 1)
    assert "instead of" in run.disagreement([np.zeros(3)], [np.zeros(4)], linear)


def test_json(results: list[run.Result]) -> None:
    content = json.loads(json.dumps(report.as_json(report.environment(2), results, [], summary.targets(results))))
    assert set(content) == {"environment", "cases", "means", "costs", "targets"}
    assert content["environment"]["versions"]["numpy"] == np.__version__
    tiny, unsupported = content["cases"]
    native = tiny["contestants"][NATIVE]
    for name, found in tiny["contestants"].items():
        assert found["median"] == statistics.median(found["rounds"])
        ratios = [a / b for a, b in zip(native["rounds"], found["rounds"], strict=True)]
        assert found["ratio"] == pytest.approx(statistics.median(ratios))
        assert found["ratio_quartiles"][0] <= found["ratio"] <= found["ratio_quartiles"][1]
        assert (found["ratio"] == 1) or name != NATIVE
    assert all(found["ratio"] is None for found in unsupported["contestants"].values())
    assert NATIVE in unsupported["reasons"]


def test_text_fits_100_columns() -> None:
    slow = Timing((1.23, 1.5, 0.98))
    names = [*(c.name for c in CONTESTANTS), "copy"]
    found = [run.Result(case, dict.fromkeys(names, slow)) for case in suite.operator_cases()]
    found += [run.Result(case, dict.fromkeys(names[:3], slow), {NATIVE: "no " * 60}) for case in suite.network_cases()]
    text = "\n".join(
        (report.results_text(found), report.summary_text(found), report.targets_text(summary.targets(found)))
    )
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) > 2 * len(found)


# The costs


def test_tiny_call() -> None:
    cost = costs.tiny_call(EFFORT)
    assert [row[""] for row in cost.rows][:2] == ["native Identity", NATIVE]
    compiled = [c.name for c in CONTESTANTS if c.installed and c.ops == "compiled"]
    assert [t.what for t in cost.targets] == [f"{name}: a tiny call" for name in compiled]
    assert "above Identity" in report.costs_text([cost])


def test_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "range", lambda *_: [6, 8], raising=False)
    rows = costs.growth(EFFORT).rows
    assert [row["elements"] for row in rows] == ["2^6", "2^8"]


def test_probes_run_in_a_process_of_their_own() -> None:
    found = probes.ask("making", "Python op")
    assert set(found) == {f"{who} {when}" for who in ("native", "patched") for when in ("first", "run", "after")}
    with pytest.raises(probes.ProbeError, match="went wrong"):
        probes._python(["-c", "raise SystemExit('went wrong')"])


def test_memory_counts_what_a_call_needs_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of the memory is asked of Linux")
    size = 1 << 26

    def wasteful(case: suite.Case, feeds: suite.Arrays, threads: int) -> contestants.Call:
        return lambda: [np.ones(size // 8)[:1].copy()]

    monkeypatch.setattr(probes, "CONTESTANTS", [Contestant("function numpy", wasteful, "numpy")])
    monkeypatch.setattr(probes, "_memory_cases", lambda which: [(TINY, TINY)])
    found = probes.memory("numpy", "")[suite.name_of(TINY)]
    assert found["function numpy"] == pytest.approx(size / 2**20, rel=0.1)
    assert found["copies"] == pytest.approx((84 + 40) * 4 / 2**20, rel=0.1)


# The command


@pytest.fixture
def tiny_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "operator_cases", lambda: iter([TINY, UNSUPPORTED]))


@pytest.mark.usefixtures("tiny_suite")
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="a plot needs the extra demo")
    words = ["--only", "6×7|tiny", "--rounds", "2", "--seconds", "0"]
    files = {
        option: tmp_path / name
        for option, name in (("--json", "b.json"), ("--plot", "b.png"), ("--plot-means", "m.png"))
    }
    assert main([*words, *(str(word) for pair in files.items() for word in pair)]) == 0
    out = capsys.readouterr().out
    assert "1×2×6×7 → 4×5 float32" in out
    assert "Targets" in out
    assert max(map(len, out.splitlines())) <= 110  # 100, unless a busy machine makes the numbers long
    content = json.loads((tmp_path / "b.json").read_text())
    assert [case["name"] for case in content["cases"]] == [suite.name_of(case) for case in (TINY, UNSUPPORTED)]
    assert [cost["name"] for cost in content["costs"]] == ["tiny call"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("b.png", "m.png"))


def test_every_scale_is_timed_on_every_grid_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="a plot needs the extra demo")
    sizes = [dataclasses.replace(scale, sizes=scale.sizes[:2]) for scale in scales.SCALES]
    monkeypatch.setattr(scales, "SCALES", sizes)
    monkeypatch.setattr(scales, "ROUNDS", 1)
    assert scales.main(["--plot", str(tmp_path / "scales.png")]) == 0
    out = capsys.readouterr().out
    for scale in sizes:
        for grid in suite.GRIDS:
            lines = out.split(f"{scale.name}, {grid} grid")[1].splitlines()[1:4]
            assert [line.split()[0] for line in lines[1:]] == list(map(str, scale.sizes))
            assert all(name in lines[0] for name in (*(c.name for c in run.taking_part()), contestants.COPY))
    assert max(map(len, out.splitlines())) <= 110
    assert (tmp_path / "scales.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scale", scales.SCALES, ids=lambda scale: str(scale.name.split()[0]))
def test_a_scale_counts_what_it_says(scale: scales.Scale) -> None:
    for size in scale.sizes:
        case = scale.case(size, "random")
        assert size in (math.prod((*case.X[:2], *case.output)), case.X[0], case.X[1])


@pytest.mark.usefixtures("tiny_suite")
def test_json_on_stdout_is_only_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "6×7.*uint8", "--rounds", "1", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cases"]) == 1


def test_what_there_was_before_an_interruption_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(case: suite.Case, *_: object, **__: object) -> run.Result:
        if case is not TINY:
            raise KeyboardInterrupt
        return run.Result(TINY, {NATIVE: Timing((0.25,))})

    monkeypatch.setattr(suite, "operator_cases", lambda: iter([TINY, UNSUPPORTED]))
    monkeypatch.setattr(run, "run_case", interrupted)
    assert main([]) == 130
    assert "250" in capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(suite.operator_cases())) + len(suite.NETWORKS) + len(suite.EXPORTED) + len(
        costs.COSTS
    )


REPOSITORY = Path(__file__).parents[1]

MISTAKES = {
    "no such case": (["--only", "nothing"], "'nothing' matches no case of --list"),
    "no regex": (["--only", "("], "is not a regular expression"),
    "no folder": (["--json", "missing/b.json"], "is not in a folder that exists"),
    "no folder to draw in": (["--plot", "missing/b.png"], "is not in a folder that exists"),
    "no time": (["--seconds", "-1"], "not a finite number of 0 or more"),
    "no rounds": (["--rounds", "0"], "less than 1"),
}


@pytest.mark.parametrize(("words", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_said_before_anything_is_timed(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "--plot" in words:
        pytest.importorskip("matplotlib", reason="a plot needs the extra demo")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert sentence in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("question", ["spinning", "throughput", "lowered_speed", "evaluator_speed"])
def test_the_other_questions_are_answered(question: str) -> None:
    command = [sys.executable, "-m", f"tests.benchmarks.{question}", "--quick"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 1
