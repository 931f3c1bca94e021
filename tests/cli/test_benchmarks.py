"""The benchmark suite: its cases, statistics and command."""

import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest

import ort_gridsample as ogs
from benchmarks import backends, installation, networks, report, run, suite
from benchmarks.__main__ import main
from benchmarks.backends import BACKENDS, NATIVE, Backend
from benchmarks.suite import Case, grid_sample_case
from ort_gridsample.cli.timing import Timing
from ort_gridsample.kernels.structs import CACHE_LINE

TINY = grid_sample_case((1, 2, 6, 7), (4, 5), "linear")
#: A case that onnxruntime's own kernel does not support.
UNSUPPORTED = grid_sample_case((1, 2, 6, 7), (4, 5), "nearest", type="uint8")
STANDARD = list(suite.operator_cases())
INSTALLED = [backend for backend in BACKENDS if backend.installed]


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the core and the ops, which backends set, and limit the suite to two cases."""
    monkeypatch.setattr(suite, "operator_cases", lambda: iter([TINY, UNSUPPORTED]))
    with backends.kept():
        yield


def test_list_option_prints_the_names_of_all_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    names = [case.name for case in (TINY, UNSUPPORTED, *suite.network_cases())]
    assert capsys.readouterr().out.splitlines() == [*names, report.TINY_CALL]


@pytest.mark.parametrize("type_", ["float32", "float16"])
def test_attention_case_begins_its_feeds_with_cache_lines(type_: str) -> None:
    shapes = networks.Attention(5, ((4, 3),), heads=2, channels=3, points=(2,))
    feeds = suite.attention_case("small", shapes, type_).feeds()
    assert {array.ctypes.data % CACHE_LINE for array in feeds.values()} == {0}
    assert {name: array.shape for name, array in feeds.items()} == shapes.shapes


@pytest.mark.parametrize("case", [TINY, UNSUPPORTED, suite.affine_grid_case(2, (3, 4))])
def test_case_has_a_model_and_reproducible_feeds(case: Case) -> None:
    model = onnx.load_from_string(case.model())
    feeds = case.feeds()
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == list(feeds)
    np.testing.assert_equal(feeds, case.feeds())


def test_whole_models_are_valid_and_have_their_grid_samples() -> None:
    for (name, build), count in zip(suite.NETWORKS.items(), (1, 1, 1, 6, 4), strict=True):
        model = build()
        onnx.checker.check_model(model, full_check=True)
        assert [node.op_type for node in model.graph.node].count("GridSample") == count, name


@pytest.mark.slow
def test_whole_model_runs_with_default_options() -> None:
    (case,) = (case for case in suite.network_cases() if case.label.startswith("voxelmorph"))
    with pytest.raises(Exception, match="allow_spinning"):
        backends.options_for(0).get_session_config_entry("session.intra_op.allow_spinning")
    result = run.run_case(case, INSTALLED, threads=0, rounds=1, seconds=0)
    assert set(result.timings) == {backend.name for backend in INSTALLED if backend.networks}
    assert not result.wrong


def test_wrong_output_has_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(case: Case, feeds: suite.Arrays, threads: int) -> backends.Call:
        return lambda: [ogs.grid_sample(*feeds.values()) + np.float32(0.01)]

    backends_to_run = [BACKENDS[0], Backend("Python op", wrong, "numpy"), Backend("PyTorch", wrong)]
    monkeypatch.setattr("benchmarks.__main__.BACKENDS", backends_to_run)
    result = run.run_case(TINY, backends_to_run, threads=1, rounds=1, seconds=0)
    assert set(result.timings) == {NATIVE}
    assert "another answer: a value is 0.01 off" in result.reasons["PyTorch"]
    assert main(["--only", "6×7.*float32", "--rounds", "1"]) == 1
    assert "Python op: WRONG: a value is 0.01 off" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "type", "change", "elements", "reason"),
    [
        ("linear", "float32", 0.05, 10_000, ""),
        ("linear", "float32", 0.5, 1, "a value is 0.5 off, 0.1 are allowed"),
        ("linear", "float32", np.nan, 1, "a value is nan off, 0.1 are allowed"),
        ("nearest", "float32", 50, 20, ""),  # ties
        ("nearest", "float32", 50, 100, "1.0% of the values are others"),
        ("linear", "uint8", 1, 10_000, ""),
        ("linear", "uint8", 2, 1, "a value is 2 off, 1 are allowed"),
    ],
)
def test_disagreement_of_changed_elements_has_the_reason(
    mode: str, type: str, change: float, elements: int, reason: str
) -> None:
    case = grid_sample_case((1, 1, 9, 9), (100, 100), mode, type=type)
    expected = (np.arange(10_000) < 100).astype(type) * np.array(100, type)
    output = expected.copy()
    output[:elements] += np.array(change).astype(type)
    assert run.disagreement([output], [expected], case) == reason
    another_shape = f"{type} (9999,) instead of {type} (10000,)"
    assert run.disagreement([output[1:]], [expected], case) == another_shape


def test_disagreement_of_equal_infinities_is_none() -> None:
    expected = np.array([1.0, -np.inf, 3.0], np.float32)
    assert run.disagreement([expected], [expected], TINY) == ""
    output = np.array([1.0, -np.inf, 2.0], np.float32)
    assert "a value is 1 off" in run.disagreement([output], [expected], TINY)
    assert "a value is inf off" in run.disagreement([np.abs(expected)], [expected], TINY)


def test_means_are_geometric_and_skip_cases_without_times() -> None:
    results = [
        run.Result(case, {NATIVE: Timing((ratio,)), "PyTorch": Timing((1.0,))})
        for case, ratio in zip(STANDARD[6:10], (2.0, 8.0, 4.0, 4.0), strict=True)
    ]
    means = run.means([*results, run.Result(UNSUPPORTED)], "PyTorch")
    assert list(means) == ["2-D linear", "all"]
    assert means["all"] == run.Mean(4, pytest.approx(4), 2, results[0])


def test_text_fits_100_columns() -> None:
    timings = {backend.name: Timing((1.23, 1.5, 0.98)) for backend in BACKENDS}
    results = [run.Result(case, timings, {NATIVE: "no " * 60}) for case in STANDARD]
    lines = f"{report.results_text(results)}\n{report.summary_text(results)}".splitlines()
    assert max(map(len, lines)) <= 100
    row = f"linear zeros random 1230 ±11%{3 * ' 1230 ±11% 1.00×'}"
    assert row in [" ".join(line.split()) for line in lines]


def test_command_prints_tables_and_draws_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="a plot needs the extra demo")
    cases = tmp_path / "cases.png"
    means = tmp_path / "means.png"
    words = ["--only", "6×7|tiny", "--rounds", "2", "--seconds", "0"]
    assert main([*words, "--plot", str(cases), "--plot-means", str(means)]) == 0
    assert cases.read_bytes().startswith(b"\x89PNG")
    assert means.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    # There are 100 columns, unless a busy machine makes the numbers long.
    assert max(map(len, out.splitlines())) <= 110
    assert f"numpy {np.__version__}" in " ".join(out.split())
    tables = [[re.split("  +", line) for line in block.splitlines()] for block in out.split("\n\n")]
    heads = [table[1][1:] for table in tables if table[0] == [TINY.heading]]
    assert heads == [
        [backend.name for backend in INSTALLED if backend.networks],
        [backend.name for backend in INSTALLED if not backend.networks],
    ]
    assert re.search(rf"  {NATIVE}: .+\n    {UNSUPPORTED.name}$", out, re.MULTILINE)
    assert [row[1] for row in tables[-1][2:]] == ["native Identity", *heads[0]]
    assert [row[1] for row in tables[-2][2:]] == ["numpy.empty", *heads[1]]


def test_interrupted_benchmark_keeps_its_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run.Result(TINY, {NATIVE: Timing((0.25,))})
    monkeypatch.setattr(run, "run_case", Mock(side_effect=[done, KeyboardInterrupt]))
    assert main([]) == 130
    assert "linear zeros rotated  250 ±0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--only nothing", "'nothing' matches no case of --list"),
        ("--plot missing/b.png", "is not in a folder that exists"),
        ("--seconds -1", "not a finite number of 0 or more"),
        ("--rounds 0", "less than 1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_installation_table_has_a_row_for_each_model() -> None:
    seconds = {"rt_detr_v2": (6.31, 1.62), "voxelmorph": (13.6, 1.8)}
    wheel = installation.Installation("dist/ort_gridsample.whl", 36.4, seconds)
    head, *rows = installation.as_text([wheel]).splitlines()
    assert head.split() == ["installed", "MB", "added", "model", "first", "s", "next", "s"]
    assert [row.split() for row in rows] == [
        ["ort_gridsample.whl", "36", "rt_detr_v2", "6.3", "1.6"],
        ["ort_gridsample.whl", "36", "voxelmorph", "13.6", "1.8"],
    ]


@pytest.mark.network
def test_installation_of_the_clone_is_measured(tmp_path: Path) -> None:
    result = installation.measure(str(Path(__file__).parents[2]), tmp_path)
    assert 5 < result.megabytes < 500
    assert set(result.seconds) == set(installation.MODELS)
    assert all(min(pair) > 0 for pair in result.seconds.values())
