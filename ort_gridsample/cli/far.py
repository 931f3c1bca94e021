"""How far coordinates outside any sensible range account for the difference of two models' outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from ..core.arrays import Array
from ..model.far import LIMIT, put_far_coordinates_to_0
from ..model.files import read_model
from ..patching import inspect_model
from . import sides
from .failures import sentence


@dataclass(frozen=True)
class Far:
    """The far coordinates in two models.

    Attributes:
        counts: grid in the first model's main graph -> its number of coordinates, and of those further out than
            :data:`ort_gridsample.model.far.LIMIT`, or NaN.
        uncounted: grids in bodies and functions, where coordinates are not counted.
        answers: both models' outputs with such coordinates at 0; empty where they are unknown.
        unknown: why they are.
    """

    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    uncounted: Sequence[str] = ()
    answers: Sequence[Mapping[str, Array]] = ()
    unknown: str = ""


def far_coordinates(paths: Sequence[str], ways: Sequence[str], feeds: Mapping[str, Array]) -> Far:
    """Count far coordinates in the models at ``paths``, each run in its way on ``feeds``, and run without them."""
    uncounted, answers = list[str](), list[Mapping[str, Array]]()
    try:
        models = [read_model(path, external_data=True) for path in paths]
        grids = _grids(models)
        near = {name: np.where(_is_far(a), 0, a).astype(a.dtype) if name in grids else a for name, a in feeds.items()}
        counts = {name: _count(feeds[name]) for name in feeds if name in grids}
        for path, way, model in zip(paths, ways, models, strict=True):
            places = put_far_coordinates_to_0(model, grids)
            outside = [place for place in places if not place.graph]
            if not places and grids.keys().isdisjoint(value.name for value in model.graph.input):
                return Far(unknown=f"{path} has no grid that is known")
            own = [value.name for value in model.graph.output]
            model.graph.output.extend(onnx.ValueInfoProto(name=place.wide) for place in outside)
            session = sides.WAYS[way](model.SerializeToString())
            found = sides.answers(session, {value.name: near[value.name] for value in session.get_inputs()})
            answers.append({name: found[name] for name in own})
            if model is models[0]:
                counts |= {place.name: _count(found[place.wide]) for place in outside}
                uncounted += (f"{place.name} in {place.graph}" for place in places if place.graph)
        return Far(counts, uncounted, answers)
    except Exception as error:  # a changed model may not run where the model does
        return Far(unknown=sentence(error))


def _grids(models: Sequence[onnx.ModelProto]) -> dict[str, str]:
    """The grids of the models' GridSample nodes: name -> type.

    A model made of the other keeps the names of values, also of lowered nodes' grids.
    """
    records = [record for model in models for record in inspect_model(model) if record.operator == "GridSample"]
    named = [record for record in reversed(records) if record.values.get("grid")]  # the first says the type
    return {record.values["grid"]: next(iter(record.types["grid"]), "float32") for record in named}


def _is_far(grid: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return ~(np.abs(grid) < LIMIT)


def _count(grid: Array) -> tuple[int, int]:
    return grid.size, int(np.count_nonzero(_is_far(grid)))
