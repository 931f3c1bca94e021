"""Progress is shown where somebody looks, and in a notebook records are a table."""

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
from conftest import OPS
from ort_gridsample import progress
from ort_gridsample.cli.timing import Turn, measure
from ort_gridsample.detection.records import columns
from support.cases import Attributes
from support.graphs import MODELS
from support.models import grid_sample_model, parsed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here takes two seconds."""
    pytest.importorskip(
        "tqdm", reason="tqdm is not installed: pip install 'ort-gridsample[progress]'"
    )
    monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)


def steps(stderr: object, monkeypatch: pytest.MonkeyPatch, pause: float = 0.12) -> None:
    """Three of them; a bar is drawn ten times a second at most."""
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.progress_bar("thinking", 3) as begin:
        for step in ("first", "second", "third"):
            begin(step)
            time.sleep(pause)


@pytest.mark.usefixtures("at_once")
def test_a_terminal_is_shown_what_is_done_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    steps(terminal, monkeypatch)
    shown = terminal.getvalue()
    assert all(part in shown for part in ("thinking", "2/3", "third")), shown
    assert shown.endswith("\r")  # and the line is wiped
    measure({"nothing": Turn(lambda: None)}, rounds=12, seconds=1.0)
    assert all(part in terminal.getvalue() for part in ("timing", "nothing"))


@pytest.mark.usefixtures("at_once")
def test_a_log_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    steps(log, monkeypatch, pause=0)
    assert log.getvalue() == ""
    steps(None, monkeypatch, pause=0)  # as in a program without a console


@pytest.mark.parametrize("without_tqdm", [False, True])
def test_what_is_soon_done_is_not_shown(
    without_tqdm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor anything without tqdm."""
    if without_tqdm:
        monkeypatch.setattr(progress, "DELAY_SECONDS", 0.0)
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    terminal = Terminal()
    steps(terminal, monkeypatch, pause=0)
    assert terminal.getvalue() == ""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What a bar is told, as tqdm's in a notebook, where stderr is no terminal."""
    said: list[object] = []
    methods = {
        "__init__": lambda self, **options: said.append(options),
        "set_postfix_str": lambda self, step, refresh: said.append(step),
        "update": lambda self, steps: said.append(steps),
        "close": lambda self: said.append("closed"),
    }
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(
        sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=type("Bar", (), methods))
    )
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return said


def options(what: str, total: int) -> dict[str, object]:
    return {"desc": what, "total": total, "delay": 2.0, "leave": False, "disable": None}


def test_a_notebook_is_shown_it_where_stderr_is_no_terminal(
    said: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(sys.stderr, monkeypatch, pause=0)
    assert said == [options("thinking", 3), "first", 0, "second", 1, "third", 1, "closed"]


@pytest.mark.skipif("compiled" not in OPS, reason="there are no compiled ops")
def test_what_is_compiled_is_shown(said: list, monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_gridsample.kernels import compilation

    def axis_taps_for(kind: str) -> None: ...

    made = types.SimpleNamespace(is_ready=False, address=lambda: 7)
    monkeypatch.setattr(compilation, "compiled_function", lambda part: made)
    assert compilation.addresses([None, (axis_taps_for, "float32")]) == [0, 7]
    assert said == [options("compiling", 1), "axis taps float32", 0, "closed"]


def test_records_are_a_table_in_a_notebook() -> None:
    for name, text in MODELS.items():
        model = parser.parse_model(text)
        model.graph.node[0].name = "<b>&amp;"
        records = ogs.inspect_model(model)
        table = ElementTree.fromstring(records._repr_html_())  # which is well formed
        heads, *rows = ([str(cell.text or "") for cell in row] for row in table.iter("tr"))
        assert heads == ["graph", *columns(records[0]), "why not native"], name
        assert rows == [[each.graph, *columns(each).values(), each.reason] for each in records], (
            name
        )


def test_records_are_a_list() -> None:
    records = ogs.inspect_model(
        grid_sample_model("uint8", "float32", 2, [Attributes(), Attributes("nearest")])
    )
    assert isinstance(records, list)
    assert records == [records[0], records[1]]
    assert records[1:] == [records[1]]
    assert [each.name for each in pickle.loads(pickle.dumps(records))] == ["sample0", "sample1"]
    assert repr(records) == f"[{records[0]!r}, {records[1]!r}]"

    none = ogs.inspect_model(parsed("g (float[1] X) => (float[1] Y) { Y = Abs (X) }", 16))
    assert "no GridSample" in unescape(none._repr_html_())
