"""``ort-gridsample patch IN OUT``."""

from __future__ import annotations

import argparse

from ..models import read_model, write_model
from ..patch import patch_in_place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="an ONNX model")
    parser.add_argument("patched", metavar="OUT", help="the patched model; external data stays external, beside it")
    parser.add_argument(
        "--nodes",
        choices=("all", "unsupported"),
        default="all",
        help="all nodes, or only those that the installed onnxruntime does not run by itself (default: all)",
    )


def run(arguments: argparse.Namespace) -> None:
    model = read_model(arguments.model)
    replaced = patch_in_place(model, arguments.nodes)
    labels = [f"{record.op_type} {record.label}: {record.action}" for record in replaced]
    files = write_model(model, arguments.patched, external_data_of=arguments.model)
    for label in labels:
        print(label)
    print(f"{arguments.patched}: {len(labels)} {'node' if len(labels) == 1 else 'nodes'} replaced")
    for file in files:
        print(f"{file}: external data, copied")
