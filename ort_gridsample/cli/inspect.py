"""``ort-gridsample inspect MODEL``."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ..detection.find import records_of
from ..detection.records import NodeRecord, columns
from ..detection.runtime_verdicts import RuntimeVerdict, verdict_on
from ..detection.unknown_nodes import unknown_operators_text
from ..dialects.spelling import AttributeReference
from ..errors import GridSampleError
from ..functions.validation import format_choices
from ..graph.files import read_model, translate_errors
from ..graph.runtimes import RUNTIMES
from ..graph.scope import scopes_of
from ..patching import MISSED_WITHOUT_ONNXRUNTIME, installed_probe
from ..versions import check_module
from . import providers
from .failures import about
from .output import line_width, print_json, table

if TYPE_CHECKING:
    from ..session.placement import Placement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = (
        "Lines are folded at the width of the terminal, or at COLUMNS; a pipe gets one line for "
        "each node. Operators that neither the installed onnxruntime nor ort_gridsample has are "
        "named, too: the model needs a library of custom ops that has them."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="an ONNX model; its external data is not read",
    )
    providers.add_arguments(
        parser,
        "show where nodes run in a session with this execution provider before the CPU's; "
        "GridSampleExecutionProvider is this package's own",
    )
    parser.add_argument(
        "--for",
        dest="for_runtime",
        metavar="RUNTIME",
        help="show what a runtime does with each node, as far as it is known, with the sources; "
        f"one of {', '.join(RUNTIMES)}",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object a node")


@dataclass(frozen=True)
class Row:
    """A node of the table.

    Attributes:
        record: the node's record.
        placement: where the node runs in a session; None if onnxruntime is not installed, or if a
            runtime was named.
        verdict: what the runtime that was named does with the node.
    """

    record: NodeRecord
    placement: Placement | None = None
    verdict: RuntimeVerdict | None = None


def run(arguments: argparse.Namespace) -> None:
    """Print the nodes of a model."""
    model = arguments.model
    provider = arguments.provider
    if provider or arguments.provider_library:
        check_module("onnxruntime")
        from ..custom_ops.provider.definitions import NAME

        if provider == NAME:
            _print_assignments(model, as_json=arguments.json)
            return
    if arguments.for_runtime:
        _print_verdicts(arguments)
        return
    if provider or arguments.provider_library:
        providers.register_provider(arguments, "inspect")
    has_onnxruntime = installed_probe().has_runtime
    rows = _rows_with_placements(model, provider) if has_onnxruntime else _rows(model)
    unknown_operators = _unknown_operators_text(model) if has_onnxruntime else ""
    if arguments.json:
        print_json([row_json(row) for row in rows])
    elif rows:
        print(as_text(rows, line_width()))
    else:
        print(f"{arguments.model} has no sampling nodes")
    if unknown_operators and arguments.json:
        print(f"ort-gridsample: {model}: {unknown_operators}", file=sys.stderr)
    elif unknown_operators:
        print(folded(f"{model}: {unknown_operators}", line_width()))
    if not has_onnxruntime:
        unknown = "which nodes it runs, and what a session does with them, is unknown"
        print(f"ort-gridsample: {MISSED_WITHOUT_ONNXRUNTIME}; {unknown}", file=sys.stderr)


def _print_verdicts(arguments: argparse.Namespace) -> None:
    """Print what a runtime does with the nodes.

    Raises:
        GridSampleError: no runtime has this name, or options do not fit together.
    """
    name = arguments.for_runtime
    if name not in RUNTIMES:
        raise GridSampleError("inspect", "--for", repr(name), format_choices(RUNTIMES))
    if arguments.provider:
        raise GridSampleError("inspect", "--for", "given with --provider", "one of the two options")
    runtime = RUNTIMES[name]
    path = arguments.model
    rows = [Row(row.record, verdict=verdict_on(runtime, row.record)) for row in _rows(path)]
    if arguments.json:
        print_json([row_json(row) for row in rows])
    elif rows:
        print(as_text(rows, line_width()))
        print(f"ort-gridsample patch {path} OUT --for {name} writes a model for {runtime.title}")
    else:
        print(f"{path} has no sampling nodes")


def _print_assignments(path: str, *, as_json: bool) -> None:
    """Print where onnxruntime's own session runs the nodes with this package's provider."""
    from ..session.provider_session import assignments_of

    with about(path):
        assignments = assignments_of(path)
    if as_json:
        print_json([assignment._asdict() for assignment in assignments])
    elif assignments:
        print(*assignments, sep="\n")
    else:
        print(f"{path} has no sampling nodes")


def _unknown_operators_text(path: str) -> str:
    """Return a line on the operators of a model that neither onnxruntime nor this package has."""
    from ..session.known_operators import unknown_operators

    with about(path):
        model = read_model(path)
        with translate_errors(model):
            unknown = unknown_operators(model, scopes_of(model))
    return unknown_operators_text(unknown) if unknown else ""


def _rows(path: str) -> list[Row]:
    """Return the rows of a model's nodes, without onnxruntime."""
    with about(path):
        model = read_model(path)
        with translate_errors(model):
            return [Row(record) for record in records_of(model, installed_probe())]


def _rows_with_placements(path: str, provider: str | None) -> list[Row]:
    """Return the rows of a model's nodes, with their places in a session.

    Raises:
        GridSampleError: the model cannot be read.
    """
    from ..session.accelerators import AcceleratorProbe, accelerators_of, has_only_sampling_nodes
    from ..session.prediction import predict_placements

    accelerators = accelerators_of([provider] if provider else [], None)
    with about(path):
        model = read_model(path)
        with translate_errors(model):
            only_sampling_nodes = has_only_sampling_nodes(scopes_of(model))
        accelerator_probe = AcceleratorProbe(
            accelerators, "lower", only_sampling_nodes=only_sampling_nodes
        )
        with closing(accelerator_probe):
            placements = predict_placements(model, accelerator_probe)
    return [Row(placement.record, placement) for placement in placements]


def row_json(row: Row) -> dict[str, object]:
    """Return the record of a node and where it runs, for JSON."""
    record = row.record
    placement = row.placement
    session = None
    if placement is not None:
        session = {
            "runs_on": placement.runs_on or None,  # null if a session refuses the node
            "reason": placement.reason,
            "fused": placement.fused,
            "library": placement.library,
        }
    attributes = {
        name: str(value) if isinstance(value, AttributeReference) else value
        for name, value in record.attributes.items()
    }
    on_runtime = dict[str, object]()
    if row.verdict is not None:
        on_runtime["for"] = {
            "runtime": row.verdict.runtime,
            "verdict": row.verdict.summary,
            "reasons": list(row.verdict.reasons),
            "facts": [asdict(fact) for fact in row.verdict.facts],
        }
        if row.verdict.has_cost:
            on_runtime["multiply_adds"] = row.verdict.multiply_adds
    inputs = {
        name: [{"type": v.type, "rank": v.rank, "shape": v.shape} for v in values]
        for name, values in record.inputs.items()
    }
    return {
        "graph": record.graph,
        "name": record.name,
        "op_type": record.op_type,
        "domain": record.domain,
        "opset": record.opset,
        **attributes,
        "inputs": inputs,
        "native": record.native,
        "reason": record.reason,
        "action": record.action,
        "session": session,
        **on_runtime,
    }


class _Footnotes:
    """The numbers of reasons, which are printed below the tables."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """Return the mark of a reason, which is the same for equal ones; "" for no reason."""
        if not reason:
            return ""
        number = self._numbers.setdefault(reason, len(self._numbers) + 1)
        return f" [{number}]"

    def lines(self, max_width: float) -> list[str]:
        """Return the text of each footnote, folded."""
        return [
            folded(f"[{number}] {reason}", max_width) for reason, number in self._numbers.items()
        ]


def folded(text: str, max_width: float) -> str:
    """Return ``text`` in lines of ``max_width`` characters, but for words that are longer."""
    if math.isinf(max_width):
        return text
    return textwrap.fill(
        text,
        int(max_width),
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_text(rows: Sequence[Row], max_width: float) -> str:
    """Return a table for each graph, and the reasons below the tables.

    Lines that are longer than ``max_width`` are folded, except for words that are longer.
    """
    footnotes = _Footnotes()
    lines = list[str]()
    for graph, members in groupby(rows, key=lambda row: row.record.graph):
        lines.append(graph or "main graph")
        lines.append(_table(members, footnotes, max_width))
    return "\n".join([*lines, *footnotes.lines(max_width)])


def _count(number: int | None) -> str:
    """Return a number that may not be known as text."""
    return "not known" if number is None else f"{number:,}"


def _table(rows: Iterable[Row], footnotes: _Footnotes, max_width: float) -> str:
    """Return the table of the nodes of one graph."""
    cells = list[dict[str, str]]()
    for row in rows:
        row_cells = columns(row.record)
        if row.verdict is not None:
            del row_cells["native"], row_cells["a patch"]
            marks = "".join(map(footnotes.mark, row.verdict.reasons))
            row_cells[row.verdict.runtime] = f"{row.verdict.summary}{marks}"
            if row.verdict.has_cost:
                row_cells["multiply-adds"] = _count(row.verdict.multiply_adds)
            cells.append(row_cells)
            continue
        row_cells["native"] += footnotes.mark(row.record.reason)
        if row.placement is not None:
            row_cells["a session"] = row.placement.runs_on or "refuses it"
            row_cells["a session"] += footnotes.mark(row.placement.note)
        cells.append(row_cells)
    heads = list(cells[0])
    return table([heads, *(list(row_cells.values()) for row_cells in cells)], "  ", max_width)
