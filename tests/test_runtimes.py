"""The matrix of runtimes: what is asked, how answers are judged, and that no runtime can stop it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from runtimes import environments, report
from runtimes.__main__ import attempt, main
from runtimes.environments import ADAPTERS, NotInstalledError, environment
from runtimes.operators import OPERATORS
from runtimes.report import REST, Result
from runtimes.rest import rest_of
from runtimes.smallest import smallest
from runtimes.table import RUNTIMES, Runtime
from runtimes.trials import EXPORTED, Trial, operator_trials, trials
from runtimes.verdicts import Verdict, judge, shortened
from runtimes.workers import Worker

LINEAR = Trial("primitives", "2-D linear", "zeros unaligned")
STANDARD = Trial("standard", "2-D linear", "zeros unaligned")
DYNAMIC = Trial("primitives", "2-D linear", "zeros unaligned", dynamic=True)

#: A runtime that is as right as onnxruntime, and does something else besides.
ADAPTER = """
import os, sys, time
import numpy as np
import onnx
import onnxruntime

def load(path, inputs, outputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ops = [node.op_type for node in onnx.load(path).graph.node]
    def run(feed):
        answers = session.run(outputs, feed)
        {besides}
        return answers
    return run
"""


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[object]:
    """Makes a worker of a toy runtime that does that besides."""
    workers = []

    def make(besides: str = "pass", seconds: float = 60) -> Worker:
        adapter = tmp_path / f"toy{len(workers)}.py"
        adapter.write_text(ADAPTER.format(besides=besides))
        worker = Worker((sys.executable, str(ADAPTERS / "worker.py"), str(adapter)), seconds)
        workers.append(worker.__enter__())
        return worker

    yield make
    for worker in workers:
        worker.__exit__()


def verdict(worker: Worker, trial: Trial) -> Verdict:
    task = trial.task()
    return judge(task, worker.ask(task), 1e-4)


# What is asked


def test_every_cell_is_there_once() -> None:
    cells = list(trials())
    models = len(list(EXPORTED.glob("*.onnx")))
    assert len(cells) == 2 * (2 * 3 * 3 * 2 * 2 + models)  # rank, mode, padding, alignment, static and dynamic
    assert len({cell.name for cell in cells}) == len(cells)
    assert len({cell.name for cell in operator_trials()}) == len(list(operator_trials()))


def test_a_dynamic_model_is_asked_twice_and_knows_no_shape() -> None:
    task = Trial("standard", "3-D cubic", "border aligned", dynamic=True).task()
    assert len(task.feeds) == len(task.expected) == 2
    assert task.feeds[0]["X"].shape != task.feeds[1]["X"].shape
    dims = [dim for value in task.model.graph.input for dim in value.type.tensor_type.shape.dim]
    assert [dim.dim_value for dim in dims if not dim.dim_param] == [3]  # the rank


def test_lowered_models_have_no_grid_sample() -> None:
    assert "GridSample" not in {node.op_type for node in LINEAR.task().model.graph.node}
    assert [node.op_type for node in STANDARD.task().model.graph.node] == ["GridSample"]


@pytest.mark.parametrize("opset", OPERATORS)
def test_operators_are_stated_rightly(opset: int, toy: object) -> None:
    worker = toy()
    cells = [trial for trial in operator_trials() if trial.group == f"opset {opset}"]
    assert len(cells) > 70
    wrong = {trial.name: found for trial in cells if (found := verdict(worker, trial)).kind != "right"}
    assert not wrong


# What a runtime may do


def test_a_right_answer(toy: object) -> None:
    assert verdict(toy(), LINEAR).kind == "right"
    assert verdict(toy(), DYNAMIC).kind == "right"


def test_a_wrong_answer_says_by_how_much(toy: object) -> None:
    found = verdict(toy("answers[0][0, 0, 0, 0] += 0.5"), LINEAR)
    assert found.kind == "wrong"
    assert found.error == pytest.approx(0.5 / np.abs(LINEAR.task().expected[0]["Y"]).max(), rel=1e-4)


def test_wrong_at_the_second_shape(toy: object) -> None:
    found = verdict(toy("answers[0] += run.__dict__.setdefault('again', 0); run.again = 1"), DYNAMIC)
    assert (found.kind, found.message) == ("wrong", "at the second shape only")


@pytest.mark.parametrize(
    ("besides", "message"),
    [
        ("answers = [answers[0][0]]", "Y of shape (3, 6, 4), not (2, 3, 6, 4)"),
        ("answers = []", "no output Y"),
        ("answers[0][0] = np.nan", "Y is not finite"),
    ],
)
def test_an_answer_that_is_none(besides: str, message: str, toy: object) -> None:
    assert verdict(toy(besides), LINEAR) == Verdict("wrong", np.inf, message)


@pytest.mark.parametrize(
    ("besides", "message"),
    [
        ("raise ValueError('no such kernel')", "ValueError: no such kernel"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("print('out of luck', file=sys.stderr, flush=True); os.abort()", "crashed: SIGABRT out of luck"),
        ("os._exit(7)", "crashed: exit status 7"),
        ("time.sleep(60)", "timed out after 3 s"),
    ],
)
def test_whatever_happens_is_a_cell_and_the_next_one_is_asked(besides: str, message: str, toy: object) -> None:
    worker = toy(f"if 'Floor' in ops: {besides}", seconds=3 if "sleep" in besides else 60)
    assert verdict(worker, LINEAR) == Verdict("refused", message=message)
    assert verdict(worker, STANDARD).kind == "right"


def test_what_a_runtime_prints_and_reads_is_no_answer(toy: object) -> None:
    worker = toy("print('{}', flush=True); os.system('echo noise'); sys.stdin.read()")
    assert verdict(worker, LINEAR).kind == "right"
    assert verdict(worker, LINEAR).kind == "right"


def test_a_runtime_that_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("import no_such_runtime")
    with Worker((sys.executable, str(ADAPTERS / "worker.py"), str(tmp_path / "none.py")), 60) as worker:
        assert "No module named 'no_such_runtime'" in verdict(worker, LINEAR).message


def test_no_environment_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotInstalledError, match=r"toy needs Python 2\.2"):
        environment(Runtime("toy", "toy", ("numpy",), python=("2.2",)), tmp_path)


def test_an_environment_that_others_make_meanwhile_serves_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy, installs = Runtime("toy", "toy", ("none",)), []

    def install(runtime: Runtime, folder: Path) -> None:
        installs.append(folder)
        if len(installs) == 2:
            raise NotInstalledError("no network")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        if len(installs) == 1:
            with pytest.raises(NotInstalledError, match="no network"):
                environment(runtime, tmp_path)
            subprocess.run([folder / "bin" / "python", "-c", ""], check=True)
            environment(runtime, tmp_path)

    monkeypatch.setattr(environments, "_install", install)
    monkeypatch.setattr(environments, "_versions", lambda folder: "")
    python, *_ = environment(toy, tmp_path).command
    subprocess.run([python, "-c", ""], check=True)
    assert len(installs) == 3
    assert len(list(tmp_path.iterdir())) == 1  # and nothing is left beside it


EXPORTED_STN = Trial("primitives", "exported", "stn")


@pytest.mark.parametrize(("missing", "rest"), [("Floor", False), ("Conv", True)])
def test_whether_the_rest_of_a_model_runs(missing: str, rest: bool, toy: object) -> None:
    worker = toy(f"if '{missing}' in ops: raise ValueError('no {missing}')")
    found = attempt(Runtime("toy", "toy"), worker, EXPORTED_STN)
    assert found == Verdict("refused", message=f"{REST} (refused): ValueError: no {missing}" if rest else found.message)
    assert found.message.startswith(REST) == rest
    assert (f"; {REST} in 1" in report.summary([Result(RUNTIMES["tract"], "", {EXPORTED_STN: found})])) == rest


@pytest.mark.parametrize("name", [path.stem for path in sorted(EXPORTED.glob("*.onnx"))])
def test_the_rest_has_neither_node_and_the_same_outputs(name: str) -> None:
    task = Trial("standard", "exported", name).task()
    rest = rest_of(task)
    onnx.checker.check_model(rest.model, full_check=True)
    text = onnx.printer.to_text(rest.model)
    assert "= GridSample" not in text
    assert "= AffineGrid" not in text
    for found, expected in zip(rest.expected, task.expected, strict=True):
        assert {n: (v.shape, v.dtype) for n, v in found.items()} == {n: (v.shape, v.dtype) for n, v in expected.items()}


# What is said


def test_the_smallest_model_is_one_node(toy: object) -> None:
    worker = toy("if 'Floor' in ops: raise ValueError('no Floor')")
    found = smallest(LINEAR.task(), lambda task: bool(worker.ask(task).error))
    assert [node.op_type for node in found.model.graph.node if node.op_type != "Constant"] == ["Floor"]
    onnx.checker.check_model(found.model, full_check=True)
    assert judge(found, toy().ask(found), 1e-4).kind == "right"


def test_messages_are_shortened() -> None:
    said = "TractError: a\nb /usr/lib/x/y.rs:12:3 c\nStack backtrace:\n 0: d"
    assert shortened(said) == "TractError: a b … c"
    assert len(shortened("long " * 1000)) == 240


def results() -> list[Result]:
    cells = {trial: Verdict("right") for trial in trials()}
    cells[LINEAR] = Verdict("wrong", 0.25)
    cells[DYNAMIC] = Verdict("refused", message="no Shape")
    return [Result(RUNTIMES["tract"], "tract==0.23.9", cells), Result(RUNTIMES["mnn"], "", {}, "there is no pip")]


def test_the_summary() -> None:
    static, dynamic, exported = report.summary(results()).split("\n\n")
    assert "| tract 0.23.9 | ✓/✓ | ✓/wrong 1 of 6 by 0.25 | ✓/✓ |" in static
    assert "| tract 0.23.9 | ✓/✓ | ✓/✗ 1 of 6 | ✓/✓ |" in dynamic
    assert "| MNN 3.6.1 | not installed |" in static
    models = len(list(EXPORTED.glob("*.onnx")))
    assert f"| tract 0.23.9 | {models} of {models} right |" in exported


def test_the_reasons_and_every_cell() -> None:
    assert "| tract 0.23.9 | primitives | 2-D linear dynamic (1) | no Shape |" in report.reasons(results())
    assert "there is no pip" in report.reasons(results())
    assert "| tract 0.23.9 | primitives-2d-linear-zeros-unaligned-static | wrong | 2.5e-01 |  |" in report.every_cell(
        results()
    )
    cells = report.as_json(results(), "2026-01-01")
    assert report.from_json(json.loads(json.dumps(cells))) == ("2026-01-01", results())


def test_an_unknown_runtime_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tracked"])
    assert "no runtime is called tracked" in capsys.readouterr().err


# In truth


def registry_is_reachable() -> bool:
    try:
        socket.create_connection(("pypi.org", 443), timeout=3).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not registry_is_reachable(), reason="the runtimes come from pypi.org, which cannot be reached")
def test_lowered_models_are_right_in_the_fast_runtimes(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--fast", "--form", "primitives", "--only", "unaligned-static"])
    assert status == 0, capsys.readouterr().out
