"""``ort-gridsample inspect MODEL``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby

from ..model.inference import Value
from ..model.records import NodeRecord, inspect_model
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
    return {
        "graph": record.graph,
        "name": record.name,
        "op_type": record.op_type,
        "domain": record.domain,
        "opset": record.opset,
        **record.attributes,
        "inputs": {
            name: [{"type": v.type, "rank": v.rank, "shape": v.shape} for v in values]
            for name, values in record.inputs.items()
        },
        "native": record.native,
        "reason": record.reason,
        "action": record.action,
    }


def as_text(records: Sequence[NodeRecord]) -> str:
    """A table for every graph, with the reasons below."""
    reasons: dict[str, int] = {}
    parts = []
    for graph, members in groupby(records, key=lambda record: record.graph):
        rows: list[Sequence[object]] = [("node", "operator", "mode", "padding", "align", "inputs", "native", "a patch")]
        for record in members:
            note = ""
            if record.reason:
                note = f" [{reasons.setdefault(record.reason, len(reasons) + 1)}]"
            domain = f"{record.domain}::" if record.domain else ""
            rows.append(
                (
                    record.name,
                    f"{domain}{record.op_type}-{record.opset}",
                    record.mode or "",
                    record.padding_mode or "",
                    record.align_corners,
                    ", ".join(map(_inputs, record.inputs.values())),
                    ("yes" if record.native else "no") + note,
                    record.action,
                )
            )
        parts.append(f"{graph or 'main graph'}\n{table(rows, indent='  ')}")
    parts += [f"[{number}] {reason}" for reason, number in reasons.items()]
    return "\n".join(parts)


def _inputs(values: Sequence[Value]) -> str:
    """The alternatives of an input: its type and number of axes."""
    return " | ".join(f"{v.type or '?'} {'?' if v.rank is None else v.rank}-D" for v in values) or "?"
