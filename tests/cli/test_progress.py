"""Progress bars on terminals and in notebooks, and tables of records in notebooks."""

import io
import pickle
import sys
import time
import types
from html import unescape
from xml.etree import ElementTree

import pytest
from onnx import parser

import ort_gridsample as ogs
from ort_gridsample import progress
from ort_gridsample.cli.timing import Turn, measure
from ort_gridsample.detection.records import columns
from support.cases import Attributes
from support.graphs import MODELS
from support.models import grid_sample_model, parsed
from support.parameters import OPS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show progress bars at once: the tests take less than the delay."""
    pytest.importorskip(
        "tqdm", reason="tqdm is not installed: pip install 'ort-gridsample[progress]'"
    )
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)


#: A bar is drawn ten times a second at most.
SECONDS_PER_DRAWING = 0.12


def run_three_steps(
    stderr: object, monkeypatch: pytest.MonkeyPatch, pause: float = SECONDS_PER_DRAWING
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.progress_bar("thinking", 3) as begin_step:
        for step in ("first", "second", "third"):
            begin_step(step)
            time.sleep(pause)


@pytest.mark.usefixtures("no_delay")
def test_terminal_shows_progress_and_clears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    run_three_steps(terminal, monkeypatch)
    output = terminal.getvalue()
    for part in ("thinking", "2/3", "third"):
        assert part in output
    assert output.endswith("\r")


@pytest.mark.usefixtures("no_delay")
def test_measure_shows_progress_on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    measure({"nothing": Turn(lambda: None)}, rounds=12, seconds=1.0)
    assert "timing" in terminal.getvalue()
    assert "nothing" in terminal.getvalue()


@pytest.mark.usefixtures("no_delay")
def test_log_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    run_three_steps(log, monkeypatch, pause=0)
    assert log.getvalue() == ""


@pytest.mark.usefixtures("no_delay")
def test_program_without_console_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    run_three_steps(None, monkeypatch, pause=0)


def test_short_task_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    run_three_steps(terminal, monkeypatch, pause=0)
    assert terminal.getvalue() == ""


def test_terminal_without_tqdm_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    terminal = Terminal()
    run_three_steps(terminal, monkeypatch, pause=0)
    assert terminal.getvalue() == ""


@pytest.fixture
def notebook_calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Fake a notebook, where stderr is no terminal; return the calls of tqdm's bar."""
    calls: list[object] = []
    methods = {
        "__init__": lambda self, **options: calls.append(options),
        "set_postfix_str": lambda self, step, refresh: calls.append(step),
        "update": lambda self, steps: calls.append(steps),
        "close": lambda self: calls.append("closed"),
    }
    fake_tqdm = types.SimpleNamespace(tqdm=type("Bar", (), methods))
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", fake_tqdm)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return calls


def bar_options(description: str, total: int) -> dict[str, object]:
    return {"desc": description, "total": total, "delay": 2.0, "leave": False, "disable": None}


def test_notebook_shows_progress(
    notebook_calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_three_steps(sys.stderr, monkeypatch, pause=0)
    steps = ["first", 0, "second", 1, "third", 1]
    assert notebook_calls == [bar_options("thinking", 3), *steps, "closed"]


@pytest.mark.skipif("compiled" not in OPS, reason="there are no compiled ops")
def test_compilation_shows_progress(
    notebook_calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gridsample.kernels import compilation

    def axis_taps_for(kind: str) -> None: ...

    function = types.SimpleNamespace(needs_no_lock=False, address=lambda: 7, lock_path=None)
    monkeypatch.setattr(compilation, "compiled_function", lambda part: function)
    assert compilation.addresses([None, (axis_taps_for, "float32")]) == [0, 7]
    assert notebook_calls == [bar_options("compiling", 1), "axis taps float32", 0, "closed"]


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_records_are_a_well_formed_table_in_a_notebook(text: str) -> None:
    model = parser.parse_model(text)
    model.graph.node[0].name = "<b>&amp;"
    records = ogs.inspect_model(model)
    table = ElementTree.fromstring(records._repr_html_())
    header, *rows = ([cell.text or "" for cell in row] for row in table.iter("tr"))
    assert header == ["graph", *columns(records[0]), "why not native"]
    assert rows == [
        [record.graph, *map(str, columns(record).values()), record.reason] for record in records
    ]


def test_records_of_model_without_the_operators_have_a_sentence_as_table() -> None:
    records = ogs.inspect_model(parsed("g (float[1] X) => (float[1] Y) { Y = Abs (X) }", 16))
    assert "no sampling nodes" in unescape(records._repr_html_())


def test_records_behave_as_a_list() -> None:
    attributes = [Attributes(), Attributes("nearest")]
    records = ogs.inspect_model(grid_sample_model("uint8", "float32", 2, attributes))
    assert isinstance(records, list)
    assert records == [records[0], records[1]]
    assert records[1:] == [records[1]]
    assert repr(records) == f"[{records[0]!r}, {records[1]!r}]"


def test_records_can_be_pickled() -> None:
    attributes = [Attributes(), Attributes("nearest")]
    records = ogs.inspect_model(grid_sample_model("uint8", "float32", 2, attributes))
    restored = pickle.loads(pickle.dumps(records))
    assert [record.name for record in restored] == ["sample0", "sample1"]
