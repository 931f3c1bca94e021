"""Coordinates far outside of any image: whether they explain a difference of two models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx

from ..graph.files import read_model
from ..patching import inspect_model
from ..reference.arrays import Array
from ..rewriting.far_coordinates import LIMIT, RewrittenGrid, zero_far_coordinates
from . import runners
from .failures import sentence
from .output_comparison import OutputComparison, all_agree, compare_outputs, outputs_text


@dataclass(frozen=True)
class FarReport:
    """Whether far coordinates, which are at the limit, further out or NaN, explain a difference.

    Attributes:
        limit: coordinates of at least this magnitude are far.
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
    outputs: Sequence[OutputComparison] = ()
    agree: bool | None = None
    unknown: str = ""


def compare_without_far_coordinates(
    run_a: runners.ModelRun,
    run_b: runners.ModelRun,
    feeds: Mapping[str, Array],
    tolerance: float,
) -> FarReport:
    """Count the far coordinates in two models, and compare the models with these at 0.

    Args:
        run_a: the run of A, with its path and its backend.
        run_b: the run of B.
        feeds: the inputs of A.
        tolerance: how far floats may differ.
    """
    try:
        return _compare(run_a, run_b, feeds, tolerance)
    except Exception as error:  # a rewritten model may not run where the model does
        return FarReport(unknown=sentence(error))


def _compare(
    run_a: runners.ModelRun,
    run_b: runners.ModelRun,
    feeds: Mapping[str, Array],
    tolerance: float,
) -> FarReport:
    """Compare the models with far coordinates at 0. Raises any error of a rewritten model."""
    runs = (run_a, run_b)
    models = [read_model(model_run.path, external_data=True) for model_run in runs]
    grid_types = _grid_types(models)
    near_feeds = dict(feeds)
    counts = dict[str, dict[str, int]]()
    for name, array in feeds.items():
        if name in grid_types:
            near_feeds[name] = np.where(_is_far(array), array.dtype.type(0), array)
            counts[name] = _count(array)
    near_runs = list[_NearRun]()
    for model_run, model in zip(runs, models, strict=True):
        near_run = _run_near(model, model_run.backend, near_feeds, grid_types)
        if near_run is None:
            return FarReport(unknown=f"{model_run.path} has no grid that is known")
        near_runs.append(near_run)
    near_a, near_b = near_runs
    comparisons = compare_outputs(near_a.outputs, near_b.outputs, tolerance)
    return FarReport(
        grids=counts | near_a.counts,
        uncounted=near_a.uncounted,
        outputs=comparisons,
        agree=all_agree(comparisons),
    )


class _NearRun(NamedTuple):
    """A run of a model with far coordinates at 0.

    Attributes:
        outputs: the outputs of the model, by name.
        counts: the coordinates of each grid in the main graph, as in :class:`FarReport`.
        uncounted: the grids in bodies and functions.
    """

    outputs: runners.Arrays
    counts: dict[str, dict[str, int]]
    uncounted: list[str]


def _run_near(
    model: onnx.ModelProto,
    backend: str,
    feeds: Mapping[str, Array],
    grid_types: Mapping[str, str],
) -> _NearRun | None:
    """Run a model with the far coordinates of its grids at 0.

    Args:
        model: the model, which is changed.
        backend: the backend that runs the model.
        feeds: its inputs, in which far coordinates are 0 already.
        grid_types: the element types of the grids, by name.

    Returns:
        The run, or None if the model has none of these grids.
    """
    rewritten = zero_far_coordinates(model, grid_types)
    input_names = {value.name for value in model.graph.input}
    if not rewritten and grid_types.keys().isdisjoint(input_names):
        return None
    output_names = [value.name for value in model.graph.output]
    in_main_graph = [grid for grid in rewritten if not grid.graph]
    values = _run_with_originals(model, backend, feeds, in_main_graph)
    return _NearRun(
        outputs={name: values[name] for name in output_names},
        counts={grid.name: _count(values[grid.original]) for grid in in_main_graph},
        uncounted=[f"{grid.name} in {grid.graph}" for grid in rewritten if grid.graph],
    )


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
    return runners.run_session(session, {name: feeds[name] for name in names})


def _grid_types(models: Sequence[onnx.ModelProto]) -> dict[str, str]:
    """Return the element types of the grids of all GridSample nodes, by name.

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


def report_text(far: FarReport) -> str:
    """Return how far coordinates contribute to the difference, as text."""
    if far.unknown:
        question = f"whether coordinates at ±{LIMIT:g} or further out account for it is not known"
        return f"{question}: {far.unknown}"
    lines = [
        f"grid {name!r}: {counts['far']} of {counts['coordinates']} coordinates are at "
        f"±{LIMIT:g} or further out, or NaN"
        for name, counts in far.grids.items()
    ]
    lines += [f"grid {name}: its coordinates are not counted" for name in far.uncounted]
    if far.uncounted or any(counts["far"] for counts in far.grids.values()):
        condition = "with such coordinates at 0 in both models"
        if far.agree:
            lines.append(f"{condition}, all agree: these coordinates account for it")
        else:
            lines.append(f"{condition}, this is left:")
            lines.append(outputs_text(far.outputs))
    return "\n".join(lines)
