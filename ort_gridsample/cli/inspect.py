"""``ort-gridsample inspect MODEL``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby

from ..model.dialects import PassedOn
from ..model.records import NodeRecord, columns
from ..patching import inspect_model
from ..runtime.placement import foreseen
from .failures import about
from .output import print_json
from .table import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX model; its external data is not read")
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object a node")


def run(arguments: argparse.Namespace) -> None:
    with about(arguments.model):
        records = inspect_model(arguments.model)
    if arguments.json:
        print_json([as_json(record) for record in records])
    elif not records:
        print(f"{arguments.model} holds no GridSample and no AffineGrid")
    else:
        print(as_text(records))


def as_json(record: NodeRecord) -> dict[str, object]:
    """A record as JSON has it."""
    placement = foreseen(record)
    return {
        "graph": record.graph,
        "name": record.name,
        "op_type": record.op_type,
        "domain": record.domain,
        "opset": record.opset,
        **{name: str(v) if isinstance(v, PassedOn) else v for name, v in record.attributes.items()},
        "inputs": {
            name: [{"type": v.type, "rank": v.rank, "shape": v.shape} for v in values]
            for name, values in record.inputs.items()
        },
        "native": record.native,
        "reason": record.reason,
        "action": record.action,
        "session": {
            "runs_on": placement.runs_on,
            "reason": placement.reason,
            "within": placement.within,
            "takes_in": placement.takes_in,
        },
    }


def as_text(records: Sequence[NodeRecord]) -> str:
    """A table for every graph, with the reasons below."""
    reasons: dict[str, int] = {}
    parts = []
    for graph, members in groupby(records, key=lambda record: record.graph):
        rows = []
        for record in members:
            placement = foreseen(record)
            said = {**columns(record), "a session": placement.runs_on}
            for column, reason in (("native", record.reason), ("a session", placement.note)):
                if reason:
                    said[column] += f" [{reasons.setdefault(reason, len(reasons) + 1)}]"
            rows.append(said)
        lines = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
        parts.append(f"{graph or 'main graph'}\n{table(lines, indent='  ')}")
    parts += [f"[{number}] {reason}" for reason, number in reasons.items()]
    return "\n".join(parts)
