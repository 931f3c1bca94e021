"""``ort-gridsample bench``: rounds, statistics and output."""

import json
import math
import re
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ort_gridsample as ogs
from ort_gridsample.cli import bench, main, timing
from ort_gridsample.cli.timing import Timing, Turn
from ort_gridsample.errors import shortened_names
from support.attention_models import form
from support.cases import Attributes
from support.compare import refusal
from support.models import grid_sample_model


def side_result(output: np.ndarray) -> bench.SideResult:
    """Return a result with one output, and without nodes."""
    return bench.SideResult([output], Timing((1.0,)), nodes={}, fused_with={})


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def turn(self, name: str, *seconds: float) -> Turn:
        """Return a turn whose calls last ``seconds``, and then as long as the last of these."""
        durations = chain(seconds, repeat(seconds[-1]))

        def call() -> None:
            self.log.append(name)
            self.now += next(durations)

        return Turn(call, lambda: self.log.append(f"{name} begins"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(timing, "time", fake)
    monkeypatch.setattr(timing, "_wait_until_idle", lambda: fake.log.append("idle"))
    return fake


def test_measure_rotates_turns(clock: FakeClock) -> None:
    turns = {"a": clock.turn("a", 1.0), "b": clock.turn("b", 2.0)}
    assert timing.measure(turns, rounds=3, seconds=0) == {
        "a": Timing((1.0,) * 3),
        "b": Timing((2.0,) * 3),
    }
    turn_a = ["a begins", "idle", "a"]
    turn_b = ["b begins", "idle", "b"]
    assert clock.log[4:] == [*turn_a, *turn_b, *turn_b, *turn_a, *turn_a, *turn_b]


def test_measure_repeats_short_calls(clock: FakeClock) -> None:
    # The first call loads something. The second one estimates 5 calls per turn. In the round, one
    # slow call is not timed, and five are.
    turn = clock.turn("a", 0.04, 0.002, 9.0, 0.001, 0.002, 0.004, 0.003, 9.0)
    (result,) = timing.measure({"a": turn}, rounds=1, seconds=0).values()
    assert result.rounds == (pytest.approx(0.003),)


@pytest.mark.parametrize(("seconds", "rounds"), [(7.5, 8), (0, timing.MIN_ROUNDS)])
def test_measure_ends_in_time(seconds: float, rounds: int, clock: FakeClock) -> None:
    turns = {"a": clock.turn("a", 1.0)}
    assert len(timing.measure(turns, rounds=50, seconds=seconds)["a"].rounds) == rounds


def test_timing_has_the_median_and_quartiles_of_its_rounds() -> None:
    timing = Timing((1.0, 2.0, 4.0, 3.0, 5.0))
    assert timing.median == 3.0
    assert timing.quartiles == (2.0, 4.0)
    assert timing.spread == pytest.approx(1 / 3)


def test_times_faster_than_is_the_median_of_the_ratios() -> None:
    """It is not the ratio of the medians."""
    timing = Timing((1.0, 2.0, 4.0, 3.0, 5.0))
    ratios = timing.times_faster_than(Timing((2.0, 6.0, 4.0, 3.0, 50.0)))
    assert ratios.rounds == (2.0, 3.0, 1.0, 1.0, 10.0)
    assert ratios.median == 2.0


def test_read_profile_has_the_median_time_of_each_node() -> None:
    """The first two of five runs are not counted."""

    def event(name: str, ts: float, dur: float) -> dict:
        return {
            "cat": "Node",
            "name": f"{name}_kernel_time",
            "ts": ts,
            "dur": dur,
            "args": {"op_name": "Conv"},
        }

    begins = [100.0 * i for i in range(5)]
    events = [{"cat": "Session", "name": "model_run", "ts": ts, "dur": 90} for ts in begins]
    for ts, duration in zip(begins, (999, 999, 5, 7, 60), strict=True):
        events.append(event("later", ts + 10, duration))
    for ts in begins:
        events += [event("twice", ts + 30, 2), event("twice", ts + 40, 2)]
    for ts, duration in zip(begins, (999, 999, 9, 5, 9), strict=True):
        events.append(event("at the beginning", ts, duration))
    seconds = {"later": 7e-6, "twice": 4e-6, "at the beginning": 9e-6}
    assert bench.read_profile(events, n_runs=3) == {
        name: bench.Node("Conv", pytest.approx(duration)) for name, duration in seconds.items()
    }


def test_read_profile_without_the_last_runs_raises() -> None:
    events = [{"cat": "Session", "name": "model_run", "ts": 100.0 * i, "dur": 90} for i in range(2)]
    events.append(
        {
            "cat": "Node",
            "name": "warp_kernel_time",
            "ts": 110.0,
            "dur": 5,
            "args": {"op_name": "Conv"},
        }
    )
    error = refusal(bench.read_profile, events)
    assert (error.where, error.found) == ("bench", "incomplete after 3 events")


def test_bench_compares_runs_with_the_native_one() -> None:
    def side(value: float, whole: float, warp: float) -> bench.SideResult:
        nodes = {"warp": bench.Node("GridSample", warp), "rest": bench.Node("Conv", 0.001)}
        return bench.SideResult([np.array([1, value])], Timing((whole,)), nodes, {})

    def rows(sides: dict[str, bench.SideResult]) -> list[str]:
        return [re.sub(" {2,}", "|", line.strip()) for line in bench.as_text(sides).splitlines()]

    sides = {bench.BASELINE: side(4, 0.006, 0.004), bench.OURS: side(3, 0.003, 0.002)}
    expected = ["warp|GridSample|4|2 2×", "all other nodes|1|1", "a run|6 ±0%|3 ±0% 2×"]
    assert rows(sides) == [f"ms|operator|{bench.BASELINE}|{bench.OURS}", *expected]
    decomposed = bench.SideResult([], Timing((0.006,)), {"warp": bench.Node("Add", 0.004)}, {})
    assert rows(sides | {bench.BASELINE: decomposed})[1:-1] == [
        "warp|GridSample|–|2",
        "all other nodes|4|1",
    ]
    content = bench.sides_json(sides, {})
    assert content[bench.BASELINE]["difference"] is None
    assert content[bench.OURS]["difference"] == 0.25


BENCH = "bench model.onnx --rounds 2 --input grid=grid.npy --shape X=1,2,6,7"


def test_relative_difference_to_outputs_of_zeros_is_infinite() -> None:
    baseline, result = (side_result(np.full(3, value)) for value in (0.0, 0.5))
    assert bench._relative_difference(result, baseline) == math.inf


def test_relative_difference_of_equal_zeros_is_0() -> None:
    baseline, result = (side_result(np.zeros(3)) for _ in range(2))
    assert bench._relative_difference(result, baseline) == 0.0


def test_relative_difference_is_a_share_of_the_largest_value() -> None:
    baseline, result = (side_result(np.array([1.0, value])) for value in (4.0, 3.0))
    assert bench._relative_difference(result, baseline) == 0.25


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model of two GridSamples and a grid."""
    monkeypatch.chdir(tmp_path)
    model = grid_sample_model("float32", "float32", 2, [Attributes(), Attributes()], opset=20)
    onnx.save(model, "model.onnx")
    np.save("grid.npy", np.zeros((1, 4, 5, 2), np.float32))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_bench_of_a_model_prints_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BENCH.split()) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    core = f"onnxruntime {onnxruntime.__version__}, core {ogs.get_core()}"
    assert head == f"model.onnx: {core}, as many threads as each side takes"
    assert {line.split()[0] for line in lines if "GridSample" in line} == {"sample0", "sample1"}
    assert any(line.startswith("  a run ") for line in lines)
    assert lines[-1].startswith("ort_gridsample: the outputs differ from onnxruntime's by at most ")


@pytest.mark.usefixtures("folder")
def test_bench_with_one_thread_prints_a_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"{BENCH} --threads 1".split()) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(", 1 thread")


def test_bench_json_has_rounds_and_nodes_of_both_sides(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"{BENCH} --threads 1 --json".split()) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["model"], content["threads"]) == ("model.onnx", 1)
    assert set(content["sides"]) == {bench.BASELINE, bench.OURS}
    for side in content["sides"].values():
        sampled = {name for name, node in side["nodes"].items() if node["op_type"] == "GridSample"}
        assert len(side["rounds"]) == 2
        assert sampled == {"sample0", "sample1"}
    assert content["sides"][bench.BASELINE]["ratio"] == 1
    assert content["sides"][bench.OURS]["difference"] < 1e-6
    # onnxruntime's profiles are removed.
    assert sorted(path.name for path in folder.iterdir()) == ["grid.npy", "model.onnx"]


def test_bench_of_fused_nodes_prints_one_op(capsys: pytest.CaptureFixture[str]) -> None:
    """The time of the op is compared with onnxruntime's time of all nodes that it replaces."""
    model = Path(__file__).parents[1] / "exported" / "stn.onnx"
    assert main(["bench", str(model), "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    fused = "/GridSample is fused with /AffineGrid"
    assert f"\n{fused}: its × includes the time of the nodes fused into it\n" in out
    rows = r"^  /AffineGrid .* in /GridSample$", "^  /GridSample .*×$"
    assert [len(re.findall(row, out, re.MULTILINE)) for row in rows] == [1, 1]


def test_bench_of_model_without_native_kernels_prints_our_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = grid_sample_model("uint8", "float32", 2, [Attributes("linear", "zeros", False)])
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert main(["bench", str(path), "--rounds", "1", "--threads", "2", "--json"]) == 0
    sides = json.loads(capsys.readouterr().out)["sides"]
    assert "GridSample" in sides[bench.BASELINE]["refusal"]
    assert sides[bench.OURS]["ratio"] is None


def test_bench_names_a_few_of_many_fused_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(form("stacked/static-dynamo"), path)
    session = ogs.InferenceSession(path)
    (attention, *_) = session.placements
    if attention.runs_on == "onnxruntime":
        pytest.skip("attention is fused into compiled ops only")
    assert main(["bench", str(path), "--rounds", "1"]) == 0
    first, second, third, *others = attention.fused
    names = f"{first}, {second}, {third} and {len(others)} more nodes"
    assert f"\n{attention.record.name} is fused with {names}: its" in capsys.readouterr().out


def test_shortened_names_are_complete_if_they_are_few() -> None:
    assert shortened_names(["a"]) == "a"
    assert shortened_names([*"abcd"]) == "a, b, c, d"
    assert shortened_names([*"abcde"]) == "a, b, c and 2 more nodes"
