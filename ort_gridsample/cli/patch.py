"""``ort-gridsample patch IN OUT``."""

import argparse
from pathlib import Path

import onnx

from ..detection.records import NodeRecord
from ..detection.unknown_nodes import unknown_operators_text
from ..dialects.registry import PRIMITIVES, TWO_AXES, target_names
from ..dialects.table import DOMAIN, TENSORRT_ATTENTION
from ..errors import GridSampleError
from ..graph.files import read_model, write_model
from ..graph.runtimes import DEFAULT_MAX_MULTIPLY_ADDS, RUNTIMES
from ..graph.scope import opset_of, scopes_of
from ..inference.runtime_probe import RuntimeProbe
from ..patching import probe_for, warn_of_missing_runtime, warn_of_refused_nodes
from ..rewriting.patch import opset_for_decomposed, patch_to, targets_of
from .failures import about

#: Target -> what a node becomes; for other targets the node of a dialect.
_FORMS = {
    DOMAIN: "ort_gridsample op",
    "compiled": "compiled op",
    "primitives": "basic operators",
    TWO_AXES: "4-D GridSample nodes",
}

#: The targets of which a model is run once. Its nodes depend on the shapes that inference finds.
_LOWERED = frozenset({PRIMITIVES, TWO_AXES})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.epilog = (
        "A file of basic operators or of 4-D GridSamples is run once on random inputs, if "
        "onnxruntime is installed and no input has more than 16 million elements. A warning is "
        "printed if it fails on inputs on which IN runs. Operators that neither the installed "
        "onnxruntime nor ort_gridsample has are named, and stay as they are."
    )
    parser.add_argument("model", metavar="IN", help="an ONNX model")
    parser.add_argument(
        "patched",
        metavar="OUT",
        help="the patched model; external data stays external, in the same folder",
    )
    parser.add_argument(
        "--target",
        choices=target_names(),
        help=(
            "what the nodes become: this package's ops, the standard's, basic operators only, or "
            f"a dialect (default: {DOMAIN}, or what --for needs)"
        ),
    )
    parser.add_argument(
        "--functions",
        action="store_true",
        help="with --target primitives: nodes that are lowered alike share a function",
    )
    parser.add_argument(
        "--opset",
        type=int,
        metavar="N",
        help=(
            "convert the whole model to this opset, up or down (default: its own, or the first "
            "that the target needs)"
        ),
    )
    parser.add_argument(
        "--for",
        dest="for_runtime",
        metavar="RUNTIME",
        help=(
            "the runtime that shall read the model, which determines the target of each node, the "
            f"operators and the newest opset: one of {', '.join(RUNTIMES)}"
        ),
    )
    parser.add_argument(
        "--max-multiply-adds",
        type=int,
        metavar="N",
        help=(
            "with --for gather-free and the like: refuse a GridSample or a deformable attention "
            "that takes more multiply-adds; a GridSample takes one for each value of X at each "
            f"output position (default: {DEFAULT_MAX_MULTIPLY_ADDS // 10**9} billion)"
        ),
    )
    parser.add_argument(
        "--nodes",
        choices=("all", "unsupported"),
        default="all",
        help=(
            "all nodes, or only those that the installed onnxruntime does not run by itself "
            "(default: %(default)s)"
        ),
    )


def run(arguments: argparse.Namespace) -> None:
    """Write the patched model, and print what was replaced."""
    source = arguments.model
    destination = arguments.patched
    _check(arguments)
    with about(source):
        model = read_model(source)
        probe = probe_for(arguments.nodes)
        opset_before = opset_of(model)
        report = patch_to(
            model,
            nodes=arguments.nodes,
            target=arguments.target,
            functions=arguments.functions,
            probe=probe,
            opset=arguments.opset,
            for_runtime=arguments.for_runtime,
            max_multiply_adds=arguments.max_multiply_adds,
        )
        targets = targets_of(arguments.target, arguments.for_runtime)
        warn_of_missing_runtime(probe)
        if arguments.for_runtime is None:
            warn_of_refused_nodes(model, arguments.target, probe)
        # Before the file is written, because this may raise.
        lines = list(map(_replacement_line, report.replaced, report.targets))
        unknown_operators = _unknown_operators_text(model, probe)
        copied_files = write_model(model, destination, external_data_of=source)
    has_plugins = TENSORRT_ATTENTION.name in report.targets  # which onnxruntime does not have
    if lines and not has_plugins and probe.has_runtime and not _LOWERED.isdisjoint(targets):
        from .trial_run import warn_of_failing_run

        warn_of_failing_run(source, destination)
    opset = opset_of(model)
    for line in lines:
        print(line)
    if lines:
        print(f"{destination}: {len(lines)} {'node' if len(lines) == 1 else 'nodes'} replaced")
    elif opset == opset_before:
        print(f"{destination}: nothing to replace, the model is as it was")
    if opset != opset_before:
        print(f"{destination}: opset {opset_before} → {opset}")
    needed_opset = opset_for_decomposed(
        report.kept, nodes=arguments.nodes, target=targets[0], opset=opset
    )
    if needed_opset is not None:
        print(
            f"{destination}: decomposed operators stay as they are, because opset {opset} lacks "
            f"their nodes; --opset {needed_opset} replaces them"
        )
    for file in copied_files:
        print(f"{file}: external data, copied")
    if unknown_operators:
        print(f"{destination}: {unknown_operators}")


def _unknown_operators_text(model: onnx.ModelProto, probe: RuntimeProbe) -> str:
    """Return a line on the operators of a model that neither onnxruntime nor this package has.

    The line is empty if there are none, or if onnxruntime is not installed.
    """
    if not probe.has_runtime:
        return ""
    from ..session.known_operators import unknown_operators

    unknown = unknown_operators(model, scopes_of(model))
    return unknown_operators_text(unknown) if unknown else ""


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that do not fit together."""
    target = arguments.target
    given = f"given with --target {target or DOMAIN}"
    if arguments.functions and target != PRIMITIVES:
        raise GridSampleError("patch", "--functions", given, f"--target {PRIMITIVES}")
    runtime = RUNTIMES.get(arguments.for_runtime)
    if runtime is not None and target not in (None, *runtime.targets):
        choices = " or ".join(f"--target {name}" for name in runtime.targets)
        raise GridSampleError("patch", "--for", given, choices)
    destination = Path(arguments.patched)
    if destination.exists() and destination.samefile(arguments.model):
        found = f"{arguments.patched!r}, which is IN"
        raise GridSampleError("patch", "OUT", found, "another file")


def _replacement_line(record: NodeRecord, target: str) -> str:
    """Return a line on what a node became, such as "GridSample 'a' → ort_gridsample op"."""
    graph = f" in {record.graph}" if record.graph else ""
    form = _FORMS.get(target, f"{target} node")
    line = f"{record.op_type} {record.name!r}{graph} → {form}"
    if target != DOMAIN or not record.casts:
        return line
    casts = list[str]()
    for name, cast_type in record.casts.items():
        casts.append(f"{name} cast from {record.types[name][0]} to {cast_type}")
    return f"{line}, with {' and '.join(casts)}"
