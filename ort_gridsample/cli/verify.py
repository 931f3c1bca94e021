"""``ort-gridsample verify A B``."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx
import onnxruntime

from ..detection.helpers import lowered_from
from ..errors import GridSampleError
from ..graph.files import read_model
from ..patching import inspect_model
from ..reference.arrays import Array
from ..rewriting.targets.two_axes import COORDINATE_ERROR
from . import inputs, runners
from .arguments import magnitude
from .failures import AboutFileError, about, sentence
from .far import LIMIT, RewrittenGrid, zero_far_coordinates
from .output import name_of, print_json, table


@dataclass(frozen=True)
class Agreement:
    """How far two models agree on one output.

    Attributes:
        name: the name of the output.
        type: its type in A.
        shape: its shape in A.
        difference: the largest difference of two elements. Infinite if the types or shapes differ.
        of: the largest magnitude of an element in A.
        agrees: whether the difference is within the tolerance.
    """

    name: str
    type: str
    shape: Sequence[int]
    difference: float
    of: float
    agrees: bool


@dataclass(frozen=True)
class FarReport:
    """Whether far coordinates, which are further out than the limit or NaN, explain a difference.

    Attributes:
        limit: the largest absolute coordinate that is not far.
        grids: for each grid in the main graph of A, the number of its ``coordinates``, and of those
            that are ``far``.
        uncounted: the grids in bodies and functions, whose coordinates are not counted.
        outputs: how far the models agree if far coordinates are 0. Empty if that is unknown.
        agree: whether all outputs then agree. None if that is unknown.
        unknown: why it is unknown.
    """

    limit: float = LIMIT
    grids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    uncounted: Sequence[str] = ()
    outputs: Sequence[Agreement] = ()
    agree: bool | None = None
    unknown: str = ""


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
        return _all_agree(self.agreements)


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
        print_json(_as_json(comparison))
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
    results = agreements(run_a.answers, run_b.answers, tolerance)
    note = ""
    if _all_agree(results) and _have_other_shapes(feeds, other_feeds):
        feeds = other_feeds
        others, note = _compare_again(paths, runs, feeds, tolerance)
        results += others
    far = None
    if not _all_agree(results):
        backends = [model_run.backend for model_run in runs]
        far = far_coordinates(paths, backends, feeds, tolerance)
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
        outputs_a = runners.answers(run_a.session, feeds)
    except Exception as error:
        reason = sentence(error)
        return [], f"{paths[0]} does not run with other lengths of what it leaves open: {reason}"
    with about(paths[1]):
        outputs_b = runners.answers(run_b.session, _feeds_of(run_b.session, feeds, paths))
    return agreements(outputs_a, outputs_b, tolerance), ""


def _have_other_shapes(feeds: runners.Arrays, other_feeds: runners.Arrays) -> bool:
    return any(array.shape != other_feeds[name].shape for name, array in feeds.items())


def _check_output_names(
    paths: tuple[str, str],
    runs: tuple[runners.ModelRun, runners.ModelRun],
) -> None:
    """Raise GridSampleError if the outputs of the models have other names, or another order."""
    names_a, names_b = (list(model_run.answers) for model_run in runs)
    if names_a != names_b:
        expected = f"those of {paths[0]}: {names_a}"
        raise GridSampleError(paths[1], "outputs", str(names_b), expected)


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


def _all_agree(results: Sequence[Agreement]) -> bool:
    return all(agreement.agrees for agreement in results)


def agreements(
    outputs_a: Mapping[str, Array],
    outputs_b: Mapping[str, Array],
    tolerance: float,
) -> list[Agreement]:
    """Compare the outputs of two models by name.

    Args:
        outputs_a: the outputs of A.
        outputs_b: the outputs of B, of the same names.
        tolerance: how far floats may differ, relative to the largest magnitude in the output of A.

    Raises:
        GridSampleError: an output is not a tensor.
    """
    results = list[Agreement]()
    for name, a in outputs_a.items():
        b = outputs_b[name]
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            kind = f"a {type(a).__name__}"
            raise GridSampleError("verify", f"output {name!r}", kind, "a tensor, to be compared")
        max_difference, magnitude_a = difference(a, b)
        allowed = tolerance * magnitude_a if a.dtype.kind in "fc" else 0
        agrees = max_difference <= allowed
        type_name = name_of(a.dtype)
        results.append(Agreement(name, type_name, a.shape, max_difference, magnitude_a, agrees))
    return results


def difference(a: Array, b: Array) -> tuple[float, float]:
    """Return the largest difference of two arrays, and the largest magnitude in ``a``.

    The difference is infinite if the types or shapes differ, or if only one element is NaN.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf, 0.0
    if a.dtype.kind not in "fciu":
        return 0.0 if np.array_equal(a, b) else math.inf, 0.0
    is_same = a == b  # in their own type: not every integer is a float64
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    wide_a = a.astype(wide)
    wide_b = b.astype(wide)
    is_same |= np.isnan(wide_a) & np.isnan(wide_b)
    with np.errstate(invalid="ignore"):
        distances = np.maximum(np.abs(wide_a - wide_b), np.finfo(float).tiny)
    differences = np.nan_to_num(np.where(is_same, 0, distances), nan=np.inf)
    finite = np.abs(wide_a[np.isfinite(wide_a)])
    return float(differences.max(initial=0)), float(finite.max(initial=0))


def far_coordinates(
    paths: Sequence[str],
    backends: Sequence[str],
    feeds: Mapping[str, Array],
    tolerance: float,
) -> FarReport:
    """Count the far coordinates in two models, and compare the models with these at 0.

    Args:
        paths: the paths of A and B.
        backends: the backend that runs each model.
        feeds: the inputs of A.
        tolerance: how far floats may differ.
    """
    try:
        return _far_coordinates(paths, backends, feeds, tolerance)
    except Exception as error:  # a rewritten model may not run where the model does
        return FarReport(unknown=sentence(error))


def _far_coordinates(
    paths: Sequence[str],
    backends: Sequence[str],
    feeds: Mapping[str, Array],
    tolerance: float,
) -> FarReport:
    models = [read_model(path, external_data=True) for path in paths]
    grids = _grids(models)
    near_feeds = dict(feeds)
    counts = dict[str, dict[str, int]]()
    for name, array in feeds.items():
        if name in grids:
            near_feeds[name] = np.where(_is_far(array), 0, array).astype(array.dtype)
            counts[name] = _count(array)
    uncounted = list[str]()
    outputs = list[Mapping[str, Array]]()
    for index, model in enumerate(models):
        rewritten = zero_far_coordinates(model, grids)
        input_names = {value.name for value in model.graph.input}
        if not rewritten and grids.keys().isdisjoint(input_names):
            return FarReport(unknown=f"{paths[index]} has no grid that is known")
        output_names = [value.name for value in model.graph.output]
        in_main_graph = [grid for grid in rewritten if not grid.graph]
        values = _run_with_originals(model, backends[index], near_feeds, in_main_graph)
        outputs.append({name: values[name] for name in output_names})
        if index == 0:
            counts |= {grid.name: _count(values[grid.original]) for grid in in_main_graph}
            uncounted += [f"{grid.name} in {grid.graph}" for grid in rewritten if grid.graph]
    results = agreements(outputs[0], outputs[1], tolerance)
    return FarReport(LIMIT, counts, uncounted, results, _all_agree(results))


def _run_with_originals(
    model: onnx.ModelProto,
    backend: str,
    feeds: Mapping[str, Array],
    grids: Sequence[RewrittenGrid],
) -> runners.Arrays:
    """Return the outputs of a model, and the original coordinates of ``grids``.

    These become outputs of the model.
    """
    model.graph.output.extend(onnx.ValueInfoProto(name=grid.original) for grid in grids)
    session = runners.BACKENDS[backend](model.SerializeToString())
    names = [value.name for value in session.get_inputs()]
    return runners.answers(session, {name: feeds[name] for name in names})


def _grids(models: Sequence[onnx.ModelProto]) -> dict[str, str]:
    """Return the names and element types of the grids of all GridSample nodes.

    The grids of lowered nodes keep their names. If two models have a grid of the same name, the
    type is that of the first model.
    """
    types = dict[str, str]()
    for model in models:
        for record in inspect_model(model):
            name = record.values.get("grid")
            if record.operator == "GridSample" and name:
                type_name = next(iter(record.types["grid"]), "float32")
                types.setdefault(name, type_name)
    return types


def _is_far(grid: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return ~(np.abs(grid) < LIMIT)  # also of NaN


def _count(grid: Array) -> dict[str, int]:
    return {"coordinates": grid.size, "far": int(np.count_nonzero(_is_far(grid)))}


def _as_json(comparison: Comparison) -> dict[str, object]:
    content = dict[str, object]()
    for letter, path, model_run in zip("AB", comparison.paths, comparison.runs, strict=True):
        content[letter] = {"model": path, "way": model_run.backend, "refusal": model_run.refusal}
    content["outputs"] = comparison.agreements
    content["note"] = comparison.note
    content["agree"] = comparison.agree
    content["far"] = comparison.far
    return content


def _comparison_text(comparison: Comparison) -> str:
    paths = comparison.paths
    run_a, run_b = comparison.runs
    models = [("A", paths[0], run_a.backend), ("B", paths[1], run_b.backend)]
    lines = [table([("", "model", "run by"), *models]), as_text(comparison.agreements)]
    lines.append(comparison.note)
    lines += map(_coordinate_error, paths)
    if comparison.far is not None:
        lines.append(_far_text(comparison.far))
    return "\n".join(filter(None, lines))


def as_text(results: Sequence[Agreement]) -> str:
    """Return a table of the outputs."""
    heads = ("output", "type", "shape", "largest difference", "of largest value", "")
    rows: list[tuple[object, ...]] = [heads]
    for agreement in results:
        rows.append(
            (
                agreement.name,
                agreement.type,
                tuple(agreement.shape),
                f"{agreement.difference:.2g}",
                f"{agreement.of:.2g}",
                "agrees" if agreement.agrees else "differs",
            )
        )
    return table(rows)


def _coordinate_error(path: str) -> str:
    """Return a line on the error of coordinates if 5-D nodes are written as 4-D ones, else ""."""
    model = read_model(path)
    samples = [node for node in model.graph.node if node.op_type == "GridSample"]
    images = [node.input[0] for node in samples if lowered_from(node)]
    if not images:
        return ""
    max_length = _max_spatial_length(model, images)
    error = "2**-22 of what they span"
    if max_length is not None:
        error = f"{COORDINATE_ERROR * max_length:.1g} pixels"
    rewritten = "5-D nodes are written as 4-D ones"
    return f"{path}: {rewritten}, whose coordinates are off by up to {error}: see --tolerance"


def _max_spatial_length(model: onnx.ModelProto, images: Sequence[str]) -> int | None:
    """Return the largest length of a spatial axis of the values ``images``; None if unknown."""
    lengths_by_name = dict[str, list[int]]()
    for value in onnx.shape_inference.infer_shapes(model).graph.value_info:
        dims = value.type.tensor_type.shape.dim
        lengths_by_name[value.name] = [dim.dim_value for dim in dims]  # 0 if unknown
    max_length = 0
    for name in images:
        lengths = lengths_by_name.get(name, [])[2:]
        if not lengths or 0 in lengths:
            return None
        max_length = max(max_length, *lengths)
    return max_length


def _far_text(far: FarReport) -> str:
    """Return how far coordinates contribute to the difference, as text."""
    if far.unknown:
        limit = f"whether coordinates further out than ±{LIMIT:g} account for it is not known"
        return f"{limit}: {far.unknown}"
    lines = [
        f"grid {name!r}: {counts['far']} of {counts['coordinates']} coordinates are further out "
        f"than ±{LIMIT:g}, or no numbers"
        for name, counts in far.grids.items()
    ]
    lines += [f"grid {name}: its coordinates are not counted" for name in far.uncounted]
    if far.uncounted or any(counts["far"] for counts in far.grids.values()):
        condition = "with such coordinates at 0 in both models"
        if far.agree:
            lines.append(f"{condition}, all agree: these coordinates account for it")
        else:
            lines.append(f"{condition}, this is left:")
            lines.append(as_text(far.outputs))
    return "\n".join(lines)
