"""``ort-gridsample inspect MODEL``."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby

import onnxruntime

from ..detection.records import columns
from ..dialects.spelling import AttributeReference
from ..errors import GridSampleError
from ..functions.validation import listed
from ..session.accelerators import Accelerators, before_the_cpu
from ..session.placement import Placement, foreseen
from .failures import about
from .output import print_json, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="an ONNX model; its external data is not read")
    provider = "show where nodes run in a session with this execution provider before the CPU's"
    add("--provider", metavar="NAME", help=provider)
    add("--json", action="store_true", help="print a JSON array, one object a node")


def run(arguments: argparse.Namespace) -> None:
    there, name = onnxruntime.get_available_providers(), arguments.provider
    if name and name not in there:
        raise GridSampleError("inspect", "--provider", repr(name), f"one that this onnxruntime has: {listed(there)}")
    providers = before_the_cpu([name] if name else [], None)
    with about(arguments.model), closing(Accelerators(providers, "lower", alone=False)) as accelerators:
        placements = foreseen(arguments.model, accelerators)
    if arguments.json:
        print_json([as_json(placement) for placement in placements])
    elif not placements:
        print(f"{arguments.model} holds no GridSample and no AffineGrid")
    else:
        print(as_text(placements))


def as_json(placement: Placement) -> dict[str, object]:
    """A node's record and what it runs on in a session, for JSON."""
    record = placement.record
    return {
        **{field: getattr(record, field) for field in ("graph", "name", "op_type", "domain", "opset")},
        **{name: str(v) if isinstance(v, AttributeReference) else v for name, v in record.attributes.items()},
        "inputs": {
            name: [{"type": v.type, "rank": v.rank, "shape": v.shape} for v in values]
            for name, values in record.inputs.items()
        },
        **{field: getattr(record, field) for field in ("native", "reason", "action")},
        "session": {
            "runs_on": placement.runs_on or None,  # null where a session refuses the node
            **{field: getattr(placement, field) for field in ("reason", "fused", "library")},
        },
    }


def as_text(placements: Sequence[Placement]) -> str:
    """A table for every graph, with the reasons below."""
    reasons: dict[str, int] = {}
    parts = []
    for graph, members in groupby(placements, key=lambda placement: placement.record.graph):
        rows = []
        for placement in members:
            row = {**columns(placement.record), "a session": placement.runs_on or "refuses it"}
            for column, reason in (("native", placement.record.reason), ("a session", placement.note)):
                if reason:
                    row[column] += f" [{reasons.setdefault(reason, len(reasons) + 1)}]"
            rows.append(row)
        lines = [tuple(rows[0]), *(tuple(row.values()) for row in rows)]
        parts.append(f"{graph or 'main graph'}\n{table(lines, indent='  ')}")
    parts += [f"[{number}] {reason}" for reason, number in reasons.items()]
    return "\n".join(parts)
