"""Progress is shown where somebody looks, and in a notebook records are a table."""

from __future__ import annotations

import html.parser
import io
import os
import pickle
import sys
import time
import types
from html import unescape
from pathlib import Path

import pytest
from onnx import parser

import ort_gridsample as ogs
from cases import Attributes
from conftest import OPS
from models import grid_sample_model
from ort_gridsample import progress
from ort_gridsample.cli.timing import Turn, measure
from ort_gridsample.model.records import columns
from processes import python
from test_patch import MODELS


class Terminal(io.StringIO):
    """What says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here takes two seconds."""
    pytest.importorskip("tqdm", reason="tqdm is not installed: pip install 'ort-gridsample[progress]'")
    monkeypatch.setattr(progress, "SECONDS", 0.0)


def steps(stderr: object, monkeypatch: pytest.MonkeyPatch, pause: float = 0.12) -> None:
    """Three of them; a bar is drawn ten times a second at most."""
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress.shown("thinking", 3) as begin:
        for step in ("first", "second", "third"):
            begin(step)
            time.sleep(pause)


@pytest.mark.usefixtures("at_once")
def test_a_terminal_is_shown_what_is_done_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    steps(terminal, monkeypatch)
    shown = terminal.getvalue()
    assert "thinking" in shown
    assert "2/3" in shown
    assert "third" in shown
    assert shown.endswith("\r")  # and the line is wiped


@pytest.mark.usefixtures("at_once")
def test_a_log_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    steps(log, monkeypatch, pause=0)
    assert log.getvalue() == ""
    steps(None, monkeypatch, pause=0)  # as in a program without a console


def test_what_is_soon_done_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    steps(terminal, monkeypatch)
    assert terminal.getvalue() == ""


def test_without_tqdm_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    terminal = Terminal()
    steps(terminal, monkeypatch, pause=0)
    assert terminal.getvalue() == ""


def test_a_notebook_is_shown_it_where_stderr_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    class Bar:
        """As tqdm's in a notebook."""

        def __init__(self, **options: object) -> None:
            said.append(options)

        def set_postfix_str(self, step: str, refresh: bool) -> None:
            said.append(step)

        def update(self, steps: int) -> None:
            said.append(steps)

        def close(self) -> None:
            said.append("closed")

    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    steps(io.StringIO(), monkeypatch, pause=0)
    options = {"desc": "thinking", "total": 3, "delay": progress.SECONDS, "leave": False, "disable": None}
    assert said == [options, "first", 0, "second", 1, "third", 1, "closed"]


@pytest.mark.usefixtures("at_once")
def test_timing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    measure({"nothing": Turn(lambda: None)}, rounds=12, seconds=1.0)
    assert "timing" in terminal.getvalue()
    assert "nothing" in terminal.getvalue()


@pytest.mark.usefixtures("at_once")
@pytest.mark.skipif("compiled" not in OPS, reason="there are no compiled ops")
def test_the_first_compilation_is_shown(tmp_path: Path) -> None:
    """In a process with a terminal, and with an empty cache."""
    script = """
import io, sys
from ort_gridsample import progress
progress.SECONDS = 0.0
class Terminal(io.StringIO):
    isatty = lambda self: True
sys.stderr = Terminal()
import ort_gridsample as ogs
from models import affine_grid_model
ogs.InferenceSession(affine_grid_model("float32", 2, False), nodes="all")
print("compiling" in sys.stderr.getvalue(), "/2" in sys.stderr.getvalue())
sys.stderr = sys.__stderr__
"""
    assert python(script, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}) == ["True True"]


class Cells(html.parser.HTMLParser):
    """The cells of a table, checked to be well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open[-1] in ("td", "th")
        self.rows[-1][-1] += data


@pytest.mark.parametrize("name", MODELS)
def test_records_are_a_table_in_a_notebook(name: str) -> None:
    model = parser.parse_model(MODELS[name])
    model.graph.node[0].name = "<b>&amp;"
    records = ogs.inspect_model(model)
    heads, *rows = Cells(records._repr_html_()).rows
    assert heads == ["graph", *columns(records[0]), "why not native"]
    assert rows == [[each.graph, *columns(each).values(), each.reason] for each in records]


def test_records_are_a_list() -> None:
    model = grid_sample_model("uint8", "float32", 2, [Attributes(), Attributes("nearest")])
    records = ogs.inspect_model(model)
    assert isinstance(records, list)
    assert records == [records[0], records[1]]
    assert records[1:] == [records[1]]
    assert [each.name for each in pickle.loads(pickle.dumps(records))] == ["sample0", "sample1"]
    assert repr(records) == f"[{records[0]!r}, {records[1]!r}]"


def test_a_model_without_them_says_so() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 16]> g (float[1] X) => (float[1] Y) { Y = Abs (X) }')
    assert "no GridSample" in unescape(ogs.inspect_model(model)._repr_html_())
