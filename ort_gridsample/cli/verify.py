"""``ort-gridsample verify A B``."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import onnx
import onnxruntime

from ..detection.lowered_names import lowered_from
from ..errors import GridSampleError
from ..graph.files import read_model
from ..rewriting.targets import FUNCTIONS_DOMAIN
from ..rewriting.targets.two_axes import COORDINATE_ERROR
from . import inputs, runners
from .agreement import Agreement, agreement_json, agreements, agreements_text, all_agree
from .arguments import magnitude
from .failures import AboutFileError, about, sentence
from .far import FarReport, compare_without_far_coordinates, report_text
from .output import print_json, table


@dataclass(frozen=True)
class Comparison:
    """The result of the command.

    Attributes:
        paths: the paths of A and B.
        runs: the runs of A and B.
        agreements: how far they agree on each output, for each set of inputs.
        note: what could not be compared; else empty.
        far: the effect of far coordinates, if the models do not agree.
    """

    paths: tuple[str, str]
    runs: tuple[runners.ModelRun, runners.ModelRun]
    agreements: Sequence[Agreement]
    note: str
    far: FarReport | None

    @property
    def agree(self) -> bool:
        """Whether the models agree on all outputs."""
        return all_agree(self.agreements)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    inputs.add_arguments(parser, metavar="A")
    parser.add_argument("other", metavar="B", help="the model that should give the same outputs")
    parser.add_argument(
        "--tolerance",
        type=magnitude,
        default=1e-5,
        help=(
            "how far floats may differ, relative to the largest magnitude in the output "
            "(default: %(default)s)"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare two models; return 0 if all outputs agree, 1 if one does not."""
    comparison = compare(arguments)
    if arguments.json:
        print_json(comparison_json(comparison))
    else:
        print(_comparison_text(comparison))
    return 0 if comparison.agree else 1


def compare(arguments: argparse.Namespace) -> Comparison:
    """Run two models on the same inputs, and compare the outputs.

    If the outputs agree, the models also run with other lengths of the dimensions that A leaves
    open. That shows lengths that a patch made constant.
    """
    paths = (arguments.model, arguments.other)
    tolerance = arguments.tolerance
    make_feeds = partial(inputs.make_feeds, arguments=arguments, random=True)
    with about(paths[0]):
        run_a = runners.run(paths[0], make_feeds)
        other_feeds = make_feeds(run_a.session, open_lengths=inputs.OTHER_OPEN_LENGTHS)
    with about(paths[1]):
        run_b = runners.run(paths[1], lambda session: _feeds_of(session, run_a.feeds, paths))
    runs = (run_a, run_b)
    _check_output_names(paths, runs)
    feeds = run_a.feeds
    results = agreements(run_a.outputs, run_b.outputs, tolerance)
    note = ""
    if all_agree(results) and _have_other_shapes(feeds, other_feeds):
        feeds = other_feeds
        others, note = _compare_again(paths, runs, feeds, tolerance)
        results += others
    far = None
    if not all_agree(results):
        backends = [model_run.backend for model_run in runs]
        far = compare_without_far_coordinates(paths, backends, feeds, tolerance)
    return Comparison(paths, runs, results, note, far)


def _compare_again(
    paths: tuple[str, str],
    runs: tuple[runners.ModelRun, runners.ModelRun],
    feeds: runners.Arrays,
    tolerance: float,
) -> tuple[list[Agreement], str]:
    """Compare the outputs of two sessions on other inputs.

    Returns:
        How far they agree, or a note on why A does not run on these inputs.
    """
    run_a, run_b = runs
    try:
        outputs_a = runners.run_session(run_a.session, feeds)
    except Exception as error:
        reason = sentence(error)
        return [], f"{paths[0]} does not run with other lengths of what it leaves open: {reason}"
    with about(paths[1]):
        outputs_b = runners.run_session(run_b.session, _feeds_of(run_b.session, feeds, paths))
    return agreements(outputs_a, outputs_b, tolerance), ""


def _have_other_shapes(feeds: runners.Arrays, other_feeds: runners.Arrays) -> bool:
    return any(array.shape != other_feeds[name].shape for name, array in feeds.items())


def _check_output_names(
    paths: tuple[str, str],
    runs: tuple[runners.ModelRun, runners.ModelRun],
) -> None:
    """Raise GridSampleError if the outputs of the models have other names, or another order."""
    names_a, names_b = (list(model_run.outputs) for model_run in runs)
    if names_a != names_b:
        expected = f"those of {paths[0]}: {names_a}"
        raise GridSampleError(paths[1], "outputs", str(names_b), expected, verb="are")


def _feeds_of(
    session: onnxruntime.InferenceSession,
    feeds: runners.Arrays,
    paths: tuple[str, str],
) -> runners.Arrays:
    """Return those of the inputs of A that B has too.

    Raises:
        AboutFileError: B has inputs that A lacks.
    """
    names = [value.name for value in session.get_inputs()]
    missing = [name for name in names if name not in feeds]
    if missing:
        raise AboutFileError(f"{paths[1]} has inputs that {paths[0]} lacks: {missing}")
    return {name: feeds[name] for name in names}


def comparison_json(comparison: Comparison) -> dict[str, object]:
    content = dict[str, object]()
    for letter, path, model_run in zip("AB", comparison.paths, comparison.runs, strict=True):
        content[letter] = {"model": path, "way": model_run.backend, "refusal": model_run.refusal}
    content["outputs"] = list(map(agreement_json, comparison.agreements))
    content["note"] = comparison.note
    content["agree"] = comparison.agree
    content["far"] = None
    if comparison.far is not None:
        outputs = list(map(agreement_json, comparison.far.outputs))
        content["far"] = {**vars(comparison.far), "outputs": outputs}
    return content


def _comparison_text(comparison: Comparison) -> str:
    paths = comparison.paths
    run_a, run_b = comparison.runs
    models = [("A", paths[0], run_a.backend), ("B", paths[1], run_b.backend)]
    lines = [table([("", "model", "run by"), *models]), agreements_text(comparison.agreements)]
    lines.append(comparison.note)
    lines += map(_coordinate_error, paths)
    if comparison.far is not None:
        lines.append(report_text(comparison.far))
    return "\n".join(filter(None, lines))


def _coordinate_error(path: str) -> str:
    """Return a line on the error of coordinates if 5-D nodes are written as 4-D ones, else ""."""
    try:
        model = read_model(path)
    except GridSampleError:  # onnxruntime runs it: its format is ORT's
        return ""
    lowered = _lowered_grid_samples(model)
    shapes = _inferred_shapes(model) if lowered else {}
    images = [
        grid_sample.image
        for grid_sample in lowered
        if grid_sample.X not in shapes or len(shapes[grid_sample.X]) == 5
    ]
    if not images:
        return ""
    max_length = _max_spatial_length(images, shapes)
    error = "2**-22 of what they span"
    if max_length is not None:
        error = f"{COORDINATE_ERROR * max_length:.1g} pixels"
    rewritten = "5-D nodes are written as 4-D ones"
    return f"{path}: {rewritten}, whose coordinates are off by up to {error}: see --tolerance"


class _LoweredGridSample(NamedTuple):
    """A 4-D GridSample that a patch wrote.

    Attributes:
        image: the name of the value that it samples.
        X: the name of the value that the original node sampled.
    """

    image: str
    X: str


def _lowered_grid_samples(model: onnx.ModelProto) -> list[_LoweredGridSample]:
    """Return the lowered GridSamples of the main graph, and of the functions that it calls."""
    grid_samples = _lowered_grid_samples_among(model.graph.node)
    for function in model.functions:
        if function.domain != FUNCTIONS_DOMAIN:
            continue
        inner_grid_samples = _lowered_grid_samples_among(function.node)
        for call in model.graph.node:
            if (call.domain, call.op_type) != (function.domain, function.name):
                continue
            argument_of = dict(zip(function.input, call.input, strict=False))
            for grid_sample in inner_grid_samples:
                X = argument_of.get(grid_sample.X, "")
                grid_samples.append(_LoweredGridSample(grid_sample.image, X))
    return grid_samples


def _lowered_grid_samples_among(nodes: Sequence[onnx.NodeProto]) -> list[_LoweredGridSample]:
    """Return the lowered GridSamples of one list of nodes."""
    makers = {name: node for node in nodes for name in node.output}
    grid_samples = []
    for node in nodes:
        if node.op_type != "GridSample" or lowered_from(node) is None:
            continue
        # Each lowered node between X and the image reads the image as its first input.
        name = node.input[0]
        while name in makers and lowered_from(makers[name]) == lowered_from(node):
            name = makers[name].input[0]
        grid_samples.append(_LoweredGridSample(node.input[0], name))
    return grid_samples


def _inferred_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Return the shapes of the values of the main graph, with 0 for unknown lengths, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info):
        if value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            shapes[value.name] = [dim.dim_value for dim in dims]
    return shapes


def _max_spatial_length(
    images: Sequence[str],
    shapes: Mapping[str, Sequence[int]],
) -> int | None:
    """Return the largest length of a spatial axis of the values ``images``; None if unknown."""
    max_length = 0
    for name in images:
        lengths = shapes.get(name, [])[2:]
        if not lengths or 0 in lengths:
            return None
        max_length = max(max_length, *lengths)
    return max_length
