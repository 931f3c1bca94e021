"""``ort-gridsample bench MODEL``: how it counts, and what it says. No test looks at how fast anything is."""

import json
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
from support.cases import Attributes
from support.models import grid_sample_model


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def turn(self, name: str, *seconds: float) -> Turn:
        """Calls that last as long as said, the last of ``seconds`` from then on."""
        lasting = chain(seconds, repeat(seconds[-1]))

        def call() -> None:
            self.log.append(name)
            self.now += next(lasting)

        return Turn(call, lambda: self.log.append(f"{name} begins"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(timing, "time", made)
    monkeypatch.setattr(timing, "_wait_until_idle", lambda: made.log.append("idle"))
    return made


def test_turns_rotate(clock: FakeClock) -> None:
    turns = {"a": clock.turn("a", 1.0), "b": clock.turn("b", 2.0)}
    assert timing.measure(turns, rounds=3, seconds=0) == {
        "a": Timing((1.0,) * 3),
        "b": Timing((2.0,) * 3),
    }
    turn_a, turn_b = ["a begins", "idle", "a"], ["b begins", "idle", "b"]
    assert clock.log[4:] == [*turn_a, *turn_b, *turn_b, *turn_a, *turn_a, *turn_b]


def test_short_calls_are_repeated_and_rounds_end_with_the_time(clock: FakeClock) -> None:
    # an estimate (5 calls a turn), then a round: one slow call that is not timed, and five that are
    turn = clock.turn("a", 0.002, 9.0, 0.001, 0.002, 0.004, 0.003, 9.0)
    (found,) = timing.measure({"a": turn}, rounds=1, seconds=0).values()
    assert found.rounds == (pytest.approx(0.003),)
    for seconds, rounds in ((7.5, 8), (0, timing.MIN_ROUNDS)):
        assert (
            len(timing.measure({"a": clock.turn("a", 1.0)}, rounds=50, seconds=seconds)["a"].rounds)
            == rounds
        )


def test_statistics() -> None:
    ours, theirs = Timing((1.0, 2.0, 4.0, 3.0, 5.0)), Timing((2.0, 6.0, 4.0, 3.0, 50.0))
    assert (ours.median, ours.quartiles) == (3.0, (2.0, 4.0))
    assert ours.spread == pytest.approx(1 / 3)
    assert ours.times_faster_than(theirs).rounds == (2.0, 3.0, 1.0, 1.0, 10.0)
    assert (
        ours.times_faster_than(theirs).median == 2.0
    )  # of the ratios, not the ratio of the medians


def test_profile() -> None:
    def event(name: str, ts: float, dur: float) -> dict:
        return {
            "cat": "Node",
            "name": f"{name}_kernel_time",
            "ts": ts,
            "dur": dur,
            "args": {"op_name": "Conv"},
        }

    events = [{"cat": "Session", "name": "model_run", "ts": 100.0 * i, "dur": 90} for i in range(5)]
    events += [event("a", 100 * i + 10, dur) for i, dur in enumerate((999, 999, 5, 7, 60))]
    events += [event("twice", 100 * i + at, 2) for i in range(5) for at in (30, 40)]
    events += [
        event("at once", 100 * i, dur) for i, dur in enumerate((999, 999, 9, 5, 9))
    ]  # as the run begins
    seconds = {"a": 7e-6, "twice": 4e-6, "at once": 9e-6}
    assert bench.read_profile(events) == {
        n: bench.Node("Conv", pytest.approx(s)) for n, s in seconds.items()
    }


def test_a_side_is_compared_with_the_native_one() -> None:
    def side(value: float, whole: float, warp: float) -> bench.SideResult:
        nodes = {"warp": bench.Node("GridSample", warp), "rest": bench.Node("Conv", 0.001)}
        return bench.SideResult([np.array([1, value])], Timing((whole,)), nodes, {})

    def rows(sides: dict[str, bench.SideResult]) -> list[str]:
        return [re.sub(" {2,}", "|", line.strip()) for line in bench.as_text(sides).splitlines()]

    sides = {bench.NATIVE: side(4, 0.006, 0.004), bench.OURS: side(3, 0.003, 0.002)}
    expected = ["warp|GridSample|4|2 2×", "all other nodes|1|1", "a run|6 ±0%|3 ±0% 2×"]
    assert rows(sides) == [f"ms|operator|{bench.NATIVE}|{bench.OURS}", *expected]
    unrolled = bench.SideResult([], Timing((0.006,)), {"warp": bench.Node("Add", 0.004)}, {})
    assert rows(sides | {bench.NATIVE: unrolled})[1:-1] == [
        "warp|GridSample|–|2",
        "all other nodes|4|1",
    ]
    found = bench.as_json(sides, {})
    assert (found[bench.NATIVE]["difference"], found[bench.OURS]["difference"]) == (None, 0.25)


def test_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(
        grid_sample_model("float32", "float32", 2, [Attributes()] * 2, opset=20), "model.onnx"
    )
    np.save("grid.npy", np.zeros((1, 4, 5, 2), np.float32))
    words = [
        "bench",
        "model.onnx",
        "--rounds",
        "2",
        "--input",
        "grid=grid.npy",
        "--shape",
        "X=1,2,6,7",
    ]
    assert main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    core = f"onnxruntime {onnxruntime.__version__}, core {ogs.get_core()}"
    assert head == f"model.onnx: {core}, as many threads as each side takes"
    assert {line.split()[0] for line in lines if "GridSample" in line} == {"sample0", "sample1"}
    assert any(line.startswith("  a run ") for line in lines)
    assert lines[-1].startswith("ort_gridsample: the outputs differ from onnxruntime's by at most ")
    assert main([*words, "--threads", "1", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["model"], content["threads"]) == ("model.onnx", 1)
    assert set(content["sides"]) == {bench.NATIVE, bench.OURS}
    for side in content["sides"].values():
        sampled = {name for name, node in side["nodes"].items() if node["op_type"] == "GridSample"}
        assert (len(side["rounds"]), sampled) == (2, {"sample0", "sample1"})
    assert content["sides"][bench.NATIVE]["ratio"] == 1
    assert content["sides"][bench.OURS]["difference"] < 1e-6
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "grid.npy",
        "model.onnx",
    ]  # no profile is left


def test_nodes_that_are_one_op(capsys: pytest.CaptureFixture[str]) -> None:
    """The op counts as the GridSample, and natively so does all that it stands for."""
    assert (
        main(["bench", str(Path(__file__).parents[1] / "exported" / "stn.onnx"), "--rounds", "1"])
        == 0
    )
    out = capsys.readouterr().out
    assert "\n/GridSample is fused with /AffineGrid, which its × counts\n" in out
    rows = r"^  /AffineGrid .* in /GridSample$", "^  /GridSample .*×$"
    assert [len(re.findall(row, out, re.MULTILINE)) for row in rows] == [1, 1]


def test_a_model_that_does_not_run_natively(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = grid_sample_model("uint8", "float32", 2, [Attributes("linear", "zeros", False)])
    onnx.save(model, tmp_path / "model.onnx")
    assert (
        main(["bench", str(tmp_path / "model.onnx"), "--rounds", "1", "--threads", "2", "--json"])
        == 0
    )
    sides = json.loads(capsys.readouterr().out)["sides"]
    assert ("GridSample" in sides[bench.NATIVE]["refusal"], sides[bench.OURS]["ratio"]) == (
        True,
        None,
    )
