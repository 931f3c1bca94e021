"""The table of runtimes: its trials, its verdicts, and its resistance to failing runtimes."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from unittest.mock import Mock

import numpy as np
import pytest

from runtimes import environments, report
from runtimes.__main__ import main
from runtimes.environments import ADAPTERS, NotInstalledError, environment
from runtimes.report import Result
from runtimes.table import RUNTIMES, Runtime
from runtimes.trials import EXPORTED, Trial, trials
from runtimes.verdicts import Verdict, judge, shortened
from runtimes.workers import Worker

LINEAR = Trial("primitives", "2-D linear", "zeros unaligned")
STANDARD = Trial("standard", "2-D linear", "zeros unaligned")
DYNAMIC = Trial("primitives", "2-D linear", "zeros unaligned", dynamic=True)
N_EXPORTED = len(list(EXPORTED.glob("*.onnx")))
Toy: TypeAlias = Callable[..., Worker]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """A function that sets what a toy runtime does after each run, and returns its worker.

    The toy runs models in onnxruntime, and then executes the code of a file beside it.
    """
    script = """
import os, sys, time
from pathlib import Path
import numpy as np
import onnx
import onnxruntime

def load(path, inputs, outputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    known = {"os": os, "sys": sys, "time": time, "np": np, "again": -1}
    known["ops"] = [node.op_type for node in onnx.load(path).graph.node]
    def run(feed):
        known["answers"], known["again"] = session.run(outputs, feed), known["again"] + 1
        exec(Path(__file__).with_suffix(".after.py").read_text(), known)
        return known["answers"]
    return run
"""
    adapter = tmp_path_factory.mktemp("toy") / "toy.py"
    adapter.write_text(script)
    with Worker((sys.executable, str(ADAPTERS / "worker.py"), str(adapter)), 60) as worker:

        def make(code: str = "pass") -> Worker:
            adapter.with_suffix(".after.py").write_text(code)
            return worker

        yield make


def verdict(worker: Worker, trial: Trial) -> Verdict:
    task = trial.task()
    return judge(task, worker.ask(task), 1e-4)


def test_dynamic_trial_has_two_shapes_and_states_none() -> None:
    task = Trial("standard", "3-D cubic", "border aligned", dynamic=True).task()
    assert len(task.feeds) == len(task.expected) == 2
    assert task.feeds[0]["X"].shape != task.feeds[1]["X"].shape
    dims = [dim for value in task.model.graph.input for dim in value.type.tensor_type.shape.dim]
    assert [dim.dim_value for dim in dims if not dim.dim_param] == [3]  # the rank


def test_output_of_onnxruntime_is_right(toy: Toy) -> None:
    assert verdict(toy(), LINEAR).kind == "right"
    assert verdict(toy(), DYNAMIC).kind == "right"


def test_wrong_output_has_its_relative_error(toy: Toy) -> None:
    result = verdict(toy("answers[0][0, 0, 0, 0] += 0.5"), LINEAR)
    assert result.kind == "wrong"
    assert result.error == pytest.approx(
        0.5 / np.abs(LINEAR.task().expected[0]["Y"]).max(), rel=1e-4
    )


def test_output_that_is_wrong_only_at_the_second_shape(toy: Toy) -> None:
    result = verdict(toy("answers[0] += again"), DYNAMIC)
    assert (result.kind, result.message) == ("wrong", "at the second shape only")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("answers = [answers[0][0]]", "Y of shape (3, 6, 4), not (2, 3, 6, 4)"),
        ("answers = []", "no output Y"),
        ("answers[0][0] = np.nan", "Y is not finite"),
    ],
)
def test_output_that_cannot_be_compared_is_wrong(code: str, message: str, toy: Toy) -> None:
    assert verdict(toy(code), LINEAR) == Verdict("wrong", np.inf, message)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no such kernel')", "ValueError: no such kernel"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            "print('out of luck', file=sys.stderr, flush=True); os.abort()",
            "crashed: SIGABRT out of luck",
        ),
        ("os._exit(7)", "crashed: exit status 7"),
        ("time.sleep(600)", "timed out after 1 s"),
    ],
)
def test_failure_of_a_runtime_is_a_verdict_and_the_next_trial_runs(
    code: str, message: str, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = toy(f"if 'Floor' in ops: {code}")
    assert verdict(worker, STANDARD).kind == "right"
    with monkeypatch.context() as patch:
        patch.setattr(worker, "seconds", 1 if "sleep" in code else worker.seconds)
        assert verdict(worker, LINEAR) == Verdict("refused", message=message)
    assert verdict(worker, STANDARD).kind == "right"


def test_runtime_that_prints_and_reads_does_not_disturb_its_worker(toy: Toy) -> None:
    worker = toy("print('{}', flush=True); os.system('echo noise'); sys.stdin.read()")
    assert verdict(worker, LINEAR).kind == verdict(worker, LINEAR).kind == "right"


def test_runtime_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("import no_such_runtime")
    with Worker(
        (sys.executable, str(ADAPTERS / "worker.py"), str(tmp_path / "none.py")), 60
    ) as worker:
        assert "No module named 'no_such_runtime'" in verdict(worker, LINEAR).message


def test_environment_of_a_missing_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotInstalledError, match=r"toy needs Python 2\.2"):
        environment(Runtime("toy", "toy", ("numpy",), python=("2.2",)), tmp_path)


def test_environment_is_kept_only_if_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Runtime("toy", "toy", ("none",))
    monkeypatch.setattr(environments, "_versions", lambda folder: "")
    monkeypatch.setattr(
        environments, "_install", Mock(side_effect=[NotInstalledError("no network"), None])
    )
    with pytest.raises(NotInstalledError, match="no network"):
        environment(toy, tmp_path)
    assert list(tmp_path.iterdir()) == []
    command, _ = environment(toy, tmp_path)
    assert environment(toy, tmp_path)[0] == command
    assert command[:1] == tuple(str(folder / "bin" / "python") for folder in tmp_path.iterdir())


def test_message_is_shortened() -> None:
    assert (
        shortened("TractError: a\nb /usr/lib/x/y.rs:12:3 c\nStack backtrace:\n 0: d")
        == "TractError: a b … c"
    )
    assert len(shortened("long " * 1000)) == 240


def test_summary_and_reasons_of_a_report() -> None:
    cells = {trial: Verdict("right") for trial in trials()}
    cells[LINEAR] = Verdict("wrong", 0.25)
    cells[DYNAMIC] = Verdict("refused", message="no Shape")
    results = [
        Result(RUNTIMES["tract"], "tract==0.23.9", cells),
        Result(RUNTIMES["mnn"], "", {}, "there is no pip"),
    ]
    static, dynamic, exported = report.summary(results).split("\n\n")
    assert "| tract 0.23.9 | ✓/✓ | ✓/wrong 1 of 6 by 0.25 | ✓/✓ |" in static
    assert "| tract 0.23.9 | ✓/✓ | ✓/✗ 1 of 6 | ✓/✓ |" in dynamic
    assert "| MNN 3.6.1 | not installed |" in static
    assert f"| tract 0.23.9 | {N_EXPORTED} of {N_EXPORTED} right |" in exported
    reasons = report.reasons(results)
    assert "| tract 0.23.9 | primitives | 2-D linear dynamic (1) | no Shape |" in reasons
    assert "| tract 0.23.9 | primitives | 2-D linear static (1) | wrong by 0.25 |" in reasons
    assert "there is no pip" in reasons


@pytest.mark.network
@pytest.mark.timeout(1200)
def test_lowered_models_are_right_in_the_fast_runtimes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are installed to the folder ORT_GRIDSAMPLE_RUNTIMES, or to a temporary one."""
    folder = os.environ.get("ORT_GRIDSAMPLE_RUNTIMES") or str(tmp_path)
    status = main(
        ["--fast", "--form", "primitives", "--only", "unaligned-static", "--cache", folder]
    )
    assert status == 0, capsys.readouterr().out
