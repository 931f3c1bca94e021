"""``ort-gridsample patch IN OUT``."""

from __future__ import annotations

import argparse

from ..model.files import read_model, write_model
from ..model.patch import patch_in_place, targets
from ..runtime import native


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="an ONNX model")
    parser.add_argument("patched", metavar="OUT", help="the patched model; external data stays external, beside it")
    parser.add_argument(
        "--target",
        choices=targets(),
        default=targets()[0],
        help="what the nodes become: this package's ops, the standard's, basic operators only, or a dialect "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--functions",
        action="store_true",
        help="with --target primitives: nodes lowered alike share a function",
    )
    parser.add_argument(
        "--nodes",
        choices=("all", "unsupported"),
        default="all",
        help="all nodes, or only those that the installed onnxruntime does not run by itself (default: all)",
    )


def run(arguments: argparse.Namespace) -> None:
    model = read_model(arguments.model)
    replaced = patch_in_place(model, arguments.nodes, arguments.target, arguments.functions, native)
    ours = arguments.target == targets()[0]
    labels = [f"{r.op_type} {r.label}: {r.action if ours else f'now {arguments.target}'}" for r in replaced]
    files = write_model(model, arguments.patched, external_data_of=arguments.model)
    for label in labels:
        print(label)
    print(f"{arguments.patched}: {len(labels)} {'node' if len(labels) == 1 else 'nodes'} replaced")
    for file in files:
        print(f"{file}: external data, copied")
