"""The standard suite: what it times, how it counts, and what it says. No test looks at how fast anything is."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from benchmarks import backends, report, run, suite
from benchmarks.__main__ import main
from benchmarks.backends import BACKENDS, NATIVE, Backend
from benchmarks.suite import Case, grid_sample_case
from ort_gridsample.cli.timing import Timing

TINY = grid_sample_case((1, 2, 6, 7), (4, 5), "linear")
UNSUPPORTED = grid_sample_case(
    (1, 2, 6, 7), (4, 5), "nearest", type="uint8"
)  # by onnxruntime's own kernel
STANDARD = list(suite.operator_cases())
INSTALLED = [backend for backend in BACKENDS if backend.installed]


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the core and the ops, which backends set; the command has two kernels."""
    monkeypatch.setattr(suite, "operator_cases", lambda: iter([TINY, UNSUPPORTED]))
    with backends.kept():
        yield


def test_the_suite_is_the_standard_one() -> None:
    assert len(STANDARD) == len({case.name for case in STANDARD})
    kernels = {f"2-D {mode}": 20 for mode in ("nearest", "linear", "cubic")} | {
        "3-D nearest": 4,
        "3-D linear": 4,
    }
    types = {
        f"2-D {mode} {type}": 2
        for mode in ("nearest", "linear", "cubic")
        for type in ("float64", "float16")
    }
    others = {"2-D nearest uint8": 2, "2-D linear uint8": 2, "AffineGrid": 2}
    assert Counter(case.group for case in STANDARD) == {**kernels, **types, **others}
    assert STANDARD[7].name == "1×3×512×512 → 512×512 float32 linear zeros random"
    assert STANDARD[7].short == "1×3×512×512 → 512×512 zeros random"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = [case.name for case in (TINY, UNSUPPORTED, *suite.network_cases())]
    assert capsys.readouterr().out.splitlines() == [*names, report.TINY_CALL]


@pytest.mark.parametrize("case", [TINY, UNSUPPORTED, suite.affine_grid_case(2, (3, 4))])
def test_a_case_is_a_model_and_the_same_feeds_every_time(case: Case) -> None:
    model, feeds = onnx.load_from_string(case.model()), case.feeds()
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == list(feeds)
    np.testing.assert_equal(feeds, case.feeds())


def test_whole_models() -> None:
    for (name, build), nodes in zip(suite.NETWORKS.items(), (1, 1, 1, 6, 4), strict=True):
        model = build()
        onnx.checker.check_model(model, full_check=True)
        assert [node.op_type for node in model.graph.node].count("GridSample") == nodes, name


@pytest.mark.slow
def test_a_whole_model_runs_with_onnxruntimes_own_options() -> None:
    (case,) = (case for case in suite.network_cases() if case.label.startswith("voxelmorph"))
    with pytest.raises(Exception, match="allow_spinning"):
        backends.options_for(0).get_session_config_entry("session.intra_op.allow_spinning")
    result = run.run_case(case, INSTALLED, threads=0, rounds=1, seconds=0)
    assert set(result.timings) == {c.name for c in INSTALLED if c.networks}
    assert not result.wrong


def test_a_wrong_answer_has_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(case: Case, feeds: suite.Arrays, threads: int) -> backends.Call:
        return lambda: [ogs.grid_sample(*feeds.values()) + np.float32(0.01)]

    everyone = [BACKENDS[0], Backend("Python op", wrong, "numpy"), Backend("PyTorch", wrong)]
    monkeypatch.setattr("benchmarks.__main__.BACKENDS", everyone)
    result = run.run_case(TINY, everyone, threads=1, rounds=1, seconds=0)
    assert set(result.timings) == {NATIVE}
    assert "another answer: a value is 0.01 off" in result.reasons["PyTorch"]
    assert main(["--only", "6×7.*float32", "--rounds", "1"]) == 1
    assert "Python op: WRONG: a value is 0.01 off" in capsys.readouterr().out


def test_disagreement() -> None:
    for mode, type, change, elements, wrong in (
        ("linear", "float32", 0.05, 10_000, ""),
        ("linear", "float32", 0.5, 1, "a value is 0.5 off, 0.1 are allowed"),
        ("linear", "float32", np.nan, 1, "a value is nan off, 0.1 are allowed"),
        ("nearest", "float32", 50, 20, ""),  # ties
        ("nearest", "float32", 50, 100, "1.0% of the values are others"),
        ("linear", "uint8", 1, 10_000, ""),
        ("linear", "uint8", 2, 1, "a value is 2 off, 1 are allowed"),
    ):
        case = grid_sample_case((1, 1, 9, 9), (100, 100), mode, type=type)
        expected = (np.arange(10_000) < 100).astype(type) * np.array(100, type)
        found = expected.copy()
        found[:elements] += np.array(change).astype(type)
        assert run.disagreement([found], [expected], case) == wrong, (mode, change)
        assert (
            run.disagreement([found[1:]], [expected], case)
            == f"{type} (9999,) instead of {type} (10000,)"
        )


def test_means() -> None:
    pairs = list(zip(STANDARD[6:10], (2.0, 8.0, 4.0, 4.0), strict=True))
    found = [
        run.Result(case, {NATIVE: Timing((ratio,)), "PyTorch": Timing((1.0,))})
        for case, ratio in pairs
    ]
    means = run.means([*found, run.Result(UNSUPPORTED)], "PyTorch")
    assert list(means) == ["2-D linear", "all"]
    assert means["all"] == run.Mean(4, pytest.approx(4), 2, found[0])


def test_text_fits_100_columns() -> None:
    slow = {c.name: Timing((1.23, 1.5, 0.98)) for c in BACKENDS}
    found = [run.Result(case, slow, {NATIVE: "no " * 60}) for case in STANDARD]
    lines = f"{report.results_text(found)}\n{report.summary_text(found)}".splitlines()
    assert max(map(len, lines)) <= 100
    row = "linear zeros random 1230 ±11% 1230 ±11% 1.00× 1230 ±11% 1.00×"
    assert row in [" ".join(line.split()) for line in lines]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="a plot needs the extra demo")
    pictures = [tmp_path / "cases.png", tmp_path / "means.png"]
    words = ["--only", "6×7|tiny", "--rounds", "2", "--seconds", "0", "--plot", str(pictures[0])]
    assert main([*words, "--plot-means", str(pictures[1])]) == 0
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    out = capsys.readouterr().out
    assert (
        max(map(len, out.splitlines())) <= 110
    )  # 100, unless a busy machine makes the numbers long
    assert f"numpy {np.__version__}" in " ".join(out.split())
    tables = [[re.split("  +", line) for line in block.splitlines()] for block in out.split("\n\n")]
    heads = [table[1][1:] for table in tables if table[0] == [TINY.heading]]
    assert heads == [
        [c.name for c in INSTALLED if c.networks],
        [c.name for c in INSTALLED if not c.networks],
    ]
    assert re.search(rf"  {NATIVE}: .+\n    {UNSUPPORTED.name}$", out, re.MULTILINE)
    assert [row[1] for row in tables[-1][2:]] == ["native Identity", *heads[0]]


def test_an_interruption_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run.Result(TINY, {NATIVE: Timing((0.25,))})
    monkeypatch.setattr(run, "run_case", Mock(side_effect=[done, KeyboardInterrupt]))
    assert main([]) == 130
    assert "linear zeros rotated  250 ±0%" in capsys.readouterr().out


def test_a_mistake_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        ("--only nothing", "'nothing' matches no case of --list"),
        ("--plot missing/b.png", "is not in a folder that exists"),
        ("--seconds -1", "not a finite number of 0 or more"),
        ("--rounds 0", "less than 1"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(words.split())
        assert sentence in capsys.readouterr().err.splitlines()[-1]
