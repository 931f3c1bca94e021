"""The benchmark sweep: its cases, its sample and its tables."""

import re
from collections.abc import Iterator

import pytest

from benchmarks import backends, run, suite, sweep
from benchmarks.backends import COMPILED, NATIVE
from ort_gridsample.cli.timing import Timing

CASES = list(sweep.sweep_cases())


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    """Restore the core and the ops, which backends set."""
    with backends.kept():
        yield


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert sweep.main([*words, "--list"]) == 0
    return capsys.readouterr().out.splitlines()


def test_whole_sweep_lists_all_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "--whole") == [case.name for case in CASES]
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("group", ["2-D nearest", "2-D cubic float16", "3-D linear uint8"])
def test_sweep_has_every_number_of_channels(group: str) -> None:
    firsts = {case.heading.split("×")[1] for case in CASES if case.group == group}
    assert firsts == set(map(str, sweep.CHANNELS))


def test_sample_is_the_same_in_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    sample = listed(capsys, "--cases", "20")
    assert len(sample) == 20
    assert listed(capsys, "--cases", "20") == sample
    assert listed(capsys, "--cases", "20", "--seed", "1") != sample


def test_nearest_is_compared_with_linear_for_many_channels_and_positions() -> None:
    def is_compared(channels: int, side: int, mode: str) -> bool:
        case = suite.grid_sample_case((1, channels, side, side), (side, side), mode)
        return sweep.is_compared_with_linear(case)

    assert is_compared(8, 64, "nearest")
    assert not is_compared(4, 64, "nearest")
    assert not is_compared(8, 63, "nearest")
    assert not is_compared(8, 64, "linear")


def test_sweep_prints_the_least_ratios_beside_the_means(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--only", "^1×8×64×64 → 64×64 float32 nearest zeros random", "--rounds", "1"]
    assert sweep.main([*words, "--seconds", "0"]) == 0
    out = capsys.readouterr().out
    heads = re.findall(r"^(.+ against .+)\n +cases +mean +least +at$", out, re.MULTILINE)
    assert heads[0] == f"{COMPILED} against {NATIVE}"
    assert heads[-1] == f"{sweep.FUNCTION} against {sweep.LINEAR}"
    assert "Cases in which another backend is ahead" in out


def test_losses_are_listed_from_the_worst_on() -> None:
    ratios = (0.9, 1.5, 0.5)
    results = [
        run.Result(case, {COMPILED: Timing((1e-6,)), NATIVE: Timing((ratio * 1e-6,))})
        for case, ratio in zip(CASES, ratios, strict=False)
    ]
    rows = sweep.losses_text(results).splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["0.500", "0.900"]
    assert CASES[2].name in rows[0]


def test_without_losses_the_text_states_none() -> None:
    assert sweep.losses_text([]).endswith(": none")


def test_pattern_without_a_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        sweep.main(["--only", "nothing"])
    assert "matches no case" in capsys.readouterr().err
