"""``ort-gridsample inspect MODEL``."""

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import groupby

import onnxruntime

from ..detection.records import columns
from ..dialects.spelling import AttributeReference
from ..errors import GridSampleError
from ..functions.validation import format_choices
from ..session.accelerators import AcceleratorProber, accelerators_of
from ..session.placement import Placement
from ..session.prediction import predict_placements
from .failures import about
from .output import print_json, table

#: The width of the text, but for words that are longer.
MAX_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="an ONNX model; its external data is not read",
    )
    parser.add_argument(
        "--provider",
        metavar="NAME",
        help="show where nodes run in a session with this execution provider before the CPU's",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object a node")


def run(arguments: argparse.Namespace) -> None:
    """Print the nodes of a model."""
    names = [arguments.provider] if arguments.provider else []
    available = onnxruntime.get_available_providers()
    if not set(names) <= set(available):
        expected = f"one that this onnxruntime has: {format_choices(available)}"
        raise GridSampleError("inspect", "--provider", repr(arguments.provider), expected)
    accelerators = accelerators_of(names, None)
    prober = AcceleratorProber(accelerators, "lower", only_sampling_nodes=False)
    with about(arguments.model), closing(prober):
        placements = predict_placements(arguments.model, prober)
    if arguments.json:
        print_json([as_json(placement) for placement in placements])
    elif placements:
        print(as_text(placements))
    else:
        print(f"{arguments.model} holds no GridSample and no AffineGrid")


def as_json(placement: Placement) -> dict[str, object]:
    """Return the record of a node and where it runs in a session, for JSON."""
    record = placement.record
    attributes = {
        name: str(value) if isinstance(value, AttributeReference) else value
        for name, value in record.attributes.items()
    }
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
        "session": {
            "runs_on": placement.runs_on or None,  # null if a session refuses the node
            "reason": placement.reason,
            "fused": placement.fused,
            "library": placement.library,
        },
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

    def lines(self) -> list[str]:
        """Return the text of each footnote, folded."""
        return [
            textwrap.fill(
                f"[{number}] {reason}",
                MAX_WIDTH,
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for reason, number in self._numbers.items()
        ]


def as_text(placements: Sequence[Placement]) -> str:
    """Return a table for each graph, and the reasons below the tables.

    A row that is longer than MAX_WIDTH is folded.
    """
    footnotes = _Footnotes()
    lines = list[str]()
    for graph, members in groupby(placements, key=lambda placement: placement.record.graph):
        lines.append(graph or "main graph")
        lines.append(_table(members, footnotes))
    return "\n".join([*lines, *footnotes.lines()])


def _table(placements: Iterable[Placement], footnotes: _Footnotes) -> str:
    rows = list[dict[str, str]]()
    for placement in placements:
        row = columns(placement.record)
        row["native"] += footnotes.mark(placement.record.reason)
        row["a session"] = placement.runs_on or "refuses it"
        row["a session"] += footnotes.mark(placement.note)
        rows.append(row)
    heads = list(rows[0])
    return table([heads, *(list(row.values()) for row in rows)], "  ", MAX_WIDTH)
