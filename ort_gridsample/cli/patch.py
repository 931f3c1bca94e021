"""``ort-gridsample patch IN OUT``."""

import argparse
from pathlib import Path

from ..dialects.registry import target_names
from ..errors import GridSampleError
from ..graph.files import read_model, write_model
from ..graph.scope import opset_of
from ..rewriting.patch import patch_to
from ..rewriting.targets.runtimes import RUNTIMES
from ..session import native
from .failures import about


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="IN", help="an ONNX model")
    add("patched", metavar="OUT", help="the patched model; external data stays external, beside it")
    become = "what the nodes become: this package's ops, the standard's, basic operators only, or a dialect"
    add("--target", choices=target_names(), default=target_names()[0], help=f"{become} (default: %(default)s)")
    add("--functions", action="store_true", help="with --target primitives: nodes lowered alike share a function")
    opset = "convert the whole model to this opset, up or down"
    add("--opset", type=int, metavar="N", help=f"{opset} (default: its own, or the first that the target needs)")
    runtimes = f"with --target primitives: a runtime that needs another form, of {', '.join(RUNTIMES)}"
    add("--for", dest="for_runtime", metavar="RUNTIME", help=runtimes)
    nodes = "all nodes, or only those that the installed onnxruntime does not run by itself (default: all)"
    add("--nodes", choices=("all", "unsupported"), default="all", help=nodes)


def run(arguments: argparse.Namespace) -> None:
    source, target = arguments.model, arguments.patched
    functions, for_runtime = arguments.functions, arguments.for_runtime
    for option, given in (("--functions", functions), ("--for", for_runtime)):
        if given and arguments.target != "primitives":
            raise GridSampleError("patch", option, f"given with --target {arguments.target}", "--target primitives")
    if Path(target).exists() and Path(target).samefile(source):
        raise GridSampleError("patch", "OUT", f"{target!r}, which is IN", "another file")
    with about(source):
        model = read_model(source)
        before = opset_of(model)
        replaced, _ = patch_to(
            model,
            nodes=arguments.nodes,
            target=arguments.target,
            functions=functions,
            probe=native,
            opset=arguments.opset,
            for_runtime=for_runtime,
        )
        ours = arguments.target == target_names()[0]
        lines = [f"{r.op_type} {r.label}: {r.action if ours else f'now {arguments.target}'}" for r in replaced]
        files = write_model(model, target, external_data_of=source)
    for line in lines:
        print(line)
    if lines:
        print(f"{target}: {len(lines)} {'node' if len(lines) == 1 else 'nodes'} replaced")
    elif opset_of(model) == before:
        print(f"{target}: nothing to replace, the model is as it was")
    if opset_of(model) != before:
        print(f"{target}: opset {before} → {opset_of(model)}")
    for file in files:
        print(f"{file}: external data, copied")
