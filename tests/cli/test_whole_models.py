"""The benchmark of whole models: its arguments, its export and its tables."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks import backends, models, run
from benchmarks.backends import NATIVE, Backend
from benchmarks.suite import Arrays, Case, network_case
from ort_gridsample.cli.timing import Timing
from support.exported_models import EXPORTED_FOLDER

#: A model of five samplers, each with nodes that compute its grid.
REGISTRATION = EXPORTED_FOLDER / "voxelmorph.onnx"
#: A model that onnxruntime refuses. Some of its outputs are infinite.
REFUSED = EXPORTED_FOLDER / "grounding_dino.onnx"
ONCE = ["--rounds", "1", "--seconds", "0"]


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    """Restore the core and the ops, which backends set."""
    with backends.kept():
        yield


def cells(out: str, title: str) -> dict[str, Sequence[str]]:
    """Return the rows of the table below ``title`` by their first cell."""
    (block,) = (block for block in out.split("\n\n") if block.startswith(title))
    rows = [re.split("  +", line.strip()) for line in block.splitlines()[1:]]
    return {row[0]: row[1:] for row in rows}


def measured(name: str = "warp", shares: Mapping[str, float] | None = None) -> models.Measured:
    """Return results that no machine measured: ours takes half the time, and opens 1 ms later."""
    sides = (NATIVE, models.OURS)
    result = run.Result(
        network_case(name, Mock()),
        {NATIVE: Timing((0.1,)), models.OURS: Timing((0.05,))},
        differences={models.OURS: 1e-6},
    )
    return models.Measured(
        name=name,
        variant="7 steps",
        inputs=[(1, 3, 64, 64), (1, 3, 64, 64), (1, 21)],
        result=result,
        sampling=models.Sampling(
            samplers=6,
            ops=2,
            fused=8,
            shares=shares or dict(zip(sides, (0.004, 0.001), strict=True)),
            totals=dict.fromkeys(sides, 0.016),
        ),
        opening=dict(zip(sides, (0.02, 0.021), strict=True)),
    )


def test_names_are_those_of_the_exporting_script() -> None:
    script = models.SCRIPT.read_text(encoding="utf-8")
    assert sorted(re.findall(r"^def (\w+)\(\) -> Form:", script, re.M)) == sorted(models.MODELS)
    assert {*models.UNORDERED, *models.TOLERANCES} <= {*models.MODELS}


def test_list_option_prints_the_names_that_match(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == list(models.MODELS)
    assert models.main(["--list", "--only", "detr"]) == 0
    assert capsys.readouterr().out.splitlines() == ["rt_detr_v2_r50", "deformable_detr_r50"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--only nothing", "'nothing' matches no model of --list"),
        ("--rounds 0", "less than 1"),
        ("--seconds -1", "not a finite number of 0 or more"),
        ("missing.onnx", "missing.onnx is not a file"),
    ],
)
def test_wrong_arguments_are_refused(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        models.main(words.split())
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_missing_model_without_its_exporter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "NEEDED_TO_EXPORT", ("torch", "no_such_package"))
    with pytest.raises(SystemExit, match="2"):
        models.main(["--folder", str(tmp_path), "--only", "raft"])
    error = capsys.readouterr().err
    assert "raft_large" in error
    assert "pip install -r tests/exported/requirements.txt" in error


def test_only_missing_models_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = Mock()
    monkeypatch.setattr("benchmarks.models.subprocess.run", exported)
    paths = [tmp_path / f"{name}.onnx" for name in ("complete", "interrupted", "missing")]
    for path in (paths[0], paths[0].with_suffix(".npz"), paths[1]):
        path.touch()
    models.export_missing(paths)
    assert [call.args[0][-1] for call in exported.call_args_list] == ["interrupted", "missing"]
    assert all(str(tmp_path) in call.args[0] for call in exported.call_args_list)


def test_named_model_is_read_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in (".onnx", ".npz"):
        shutil.copy(REGISTRATION.with_suffix(suffix), tmp_path / f"voxelmorph_3d{suffix}")
    monkeypatch.setattr(models, "can_export", lambda: False)  # the module has other inputs
    assert models.main(["--folder", str(tmp_path), "--only", "voxel", *ONCE]) == 0
    table = cells(capsys.readouterr().out, "Models")
    samplers_ops_fused = ["5", "5", "80"]
    assert table["VoxelMorph"] == ["7 integration steps", "1×1×8×6×7", *samplers_ops_fused]


def test_model_on_the_command_line_has_a_row_in_each_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert models.main([str(REGISTRATION), *ONCE]) == 0
    out = capsys.readouterr().out
    assert f"numpy {np.__version__}" in " ".join(out.split())
    whole = cells(out, "The whole model")["voxelmorph"]
    assert whole[0].endswith("±0%")
    assert whole[1].endswith("×")
    _, share, ours = cells(out, "Only the samplers")["voxelmorph"]
    assert share.endswith("%")
    assert ours.endswith("×")
    assert len(cells(out, "Opening")["voxelmorph"]) == 3
    assert float(cells(out, "Outputs")["voxelmorph"][0]) < 1e-5


def test_backends_option_limits_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(REGISTRATION), "--backends", f"^({NATIVE}|{models.OURS})$", *ONCE]
    assert models.main(words) == 0
    assert cells(capsys.readouterr().out, "The whole model")[NATIVE] == [models.OURS]


def test_model_that_onnxruntime_refuses_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main([str(REFUSED), *ONCE]) == 0
    out = capsys.readouterr().out
    assert cells(out, "Only the samplers")["grounding_dino"][:2] == ["–", "–"]
    assert cells(out, "Opening")["grounding_dino"][0::2] == ["–", "–"]
    assert re.search(r"  onnxruntime: .*Could not find an implementation", out)


def test_wrong_output_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(case: Case, feeds: Arrays, threads: int) -> backends.Call:
        call = backends.session_call(case, feeds, threads)
        return lambda: [output + np.float32(0.5) for output in call()]

    native, *_ = backends.BACKENDS
    ours = Backend(models.OURS, wrong, core=backends.CORES[0], networks=True)
    monkeypatch.setattr(models, "backends_for", lambda name: [native, ours])
    assert models.main([str(REGISTRATION), *ONCE]) == 1
    assert f"{models.OURS}: WRONG: a value is 0.5 off" in capsys.readouterr().out


def test_interrupted_benchmark_keeps_its_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = Mock(side_effect=[measured(), KeyboardInterrupt])
    monkeypatch.setattr(models, "measure_model", measure)
    assert models.main([str(REGISTRATION), str(REFUSED)]) == 130
    runs = cells(capsys.readouterr().out, "The whole model")
    assert runs["warp"] == ["100 ±0%", "50.0 ±0% 2.00×"]


def test_tables_have_the_share_and_the_ratio_of_the_replaced_nodes() -> None:
    table = cells(models.sampling_text([measured()]), "Only")
    assert table["warp"] == ["4.00", "25.0%", "1.00 4.00×"]


def test_table_of_models_has_the_different_shapes_of_inputs() -> None:
    table = cells(models.models_text([measured()]), "Models")
    assert table["warp"] == ["7 steps", "1×3×64×64, 1×21", "6", "2", "8"]


def test_table_of_opening_has_the_difference() -> None:
    table = cells(models.opening_text([measured()]), "Opening")
    assert table["warp"] == ["20.0", "21.0", "1.00"]


def test_replaced_nodes_that_no_profile_names_have_no_time() -> None:
    """The nodes of a function get other names when onnxruntime inlines it."""
    nameless = measured(shares=dict.fromkeys((NATIVE, models.OURS), 0.0))
    assert cells(models.sampling_text([nameless]), "Only")["warp"] == ["–", "–", "–"]


def test_text_fits_100_columns() -> None:
    names = [name for name, _ in models.MODELS.values()]
    text = "\n".join(
        function([measured(name) for name in names])
        for function in (
            models.models_text,
            models.runs_text,
            models.sampling_text,
            models.opening_text,
            models.differences_text,
        )
    )
    assert max(map(len, text.splitlines())) <= 100


def test_unordered_outputs_are_compared_as_sets() -> None:
    rows = np.random.default_rng(0).random((1, 5, 3))

    def backend(name: str, output: np.ndarray) -> Backend:
        return Backend(name, lambda *_: lambda: [output], networks=True)

    def result(unordered_axis: int | None, other: np.ndarray) -> run.Result:
        case = models.replace(network_case("x", Mock()), feeds=dict, unordered_axis=unordered_axis)
        pair = [backend("a", rows), backend("b", other)]
        return run.run_case(case, pair, threads=0, rounds=1, seconds=0)

    swapped = rows[:, [1, 0, 2, 3, 4]]
    assert result(1, swapped).differences == {"b": 0.0}
    assert "b" in result(None, swapped).reasons
    assert "b" in result(1, rows + 0.1).reasons
