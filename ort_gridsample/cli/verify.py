"""``ort-gridsample verify A B``."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from .failures import about, sentence
from .far import LIMIT, put_far_coordinates_to_0
from .output import name_of, print_json, table


@dataclass(frozen=True)
class Agreement:
    """How far both models agree on one output: the largest difference, and A's largest value."""

    name: str
    type: str
    shape: Sequence[int]
    difference: float
    of: float
    agrees: bool


@dataclass(frozen=True)
class Far:
    """The far coordinates in two models."""

    limit: float = LIMIT
    #: Grid in the first model's main graph -> its number of ``coordinates``, and of those that are ``far``: further out
    #: than the limit, or NaN.
    grids: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    uncounted: Sequence[str] = ()  #: grids in bodies and functions, where coordinates are not counted
    outputs: Sequence[Agreement] = ()  #: how far they agree with such coordinates at 0; empty where that is unknown
    agree: bool | None = None  #: whether they all do
    unknown: str = ""  #: why that is unknown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    inputs.add_arguments(parser, metavar="A")
    add("other", metavar="B", help="the model that should answer the same")
    tolerance = "how far floats may differ, in parts of the output's largest magnitude (default: %(default)s)"
    add("--tolerance", type=magnitude, default=1e-5, help=tolerance)
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """0 where all outputs agree, 1 where one does not."""
    paths, tolerance = (arguments.model, arguments.other), arguments.tolerance
    with about(paths[0]):
        a = runners.run(paths[0], lambda session: inputs.feeds(session, arguments, random=True))
        otherwise = inputs.feeds(a.session, arguments, random=True, lengths=inputs.OPEN_OTHERWISE)
    with about(paths[1]):
        b = runners.run(paths[1], lambda session: _taken(session, a.feeds, paths))
    if (names := list(a.answers)) != list(b.answers):
        raise GridSampleError(paths[1], "outputs", str(list(b.answers)), f"those of {paths[0]}: {names}")
    feeds, found, note = a.feeds, agreements(a.answers, b.answers, tolerance), ""
    # Lengths that a patch made constant show with other inputs.
    if _agree(found) and any(array.shape != otherwise[name].shape for name, array in feeds.items()):
        feeds = otherwise
        try:
            answers = runners.answers(a.session, feeds)
        except Exception as error:
            note = f"{paths[0]} does not run with other lengths of what it leaves open: {sentence(error)}"
        else:
            with about(paths[1]):
                others = runners.answers(b.session, _taken(b.session, feeds, paths))
            found += agreements(answers, others, tolerance)
    far = None if _agree(found) else far_coordinates(paths, [a.way, b.way], feeds, tolerance)
    if arguments.json:
        content: dict[str, object] = {
            side: {"model": path, "way": each.way, "refusal": each.refusal}
            for side, path, each in zip("AB", paths, (a, b), strict=True)
        }
        print_json({**content, "outputs": found, "note": note, "agree": _agree(found), "far": far})
    else:
        print(table([("", "model", "run by"), ("A", paths[0], a.way), ("B", paths[1], b.way)]))
        print(as_text(found))
        for line in filter(None, [note, *map(_coordinate_error, paths), far and _far_text(far)]):
            print(line)
    return 0 if _agree(found) else 1


def _taken(session: onnxruntime.InferenceSession, feeds: runners.Arrays, paths: tuple[str, str]) -> runners.Arrays:
    """Those of the first model's ``feeds`` that a session of the second takes."""
    wanted = [value.name for value in session.get_inputs()]
    if missing := [name for name in wanted if name not in feeds]:
        raise GridSampleError(paths[1], "inputs", str(wanted), f"those of {paths[0]}, without {missing}")
    return {name: feeds[name] for name in wanted}


def _agree(found: Sequence[Agreement]) -> bool:
    return all(each.agrees for each in found)


def agreements(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: float) -> list[Agreement]:
    """How far two models' outputs of the same names agree."""
    found = []
    for name, x in a.items():
        y = b[name]
        if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
            raise GridSampleError("verify", f"output {name!r}", f"a {type(x).__name__}", "a tensor, to be compared")
        most, largest = difference(x, y)
        agrees = most <= tolerance * largest if x.dtype.kind in "fc" else most == 0
        found.append(Agreement(name, name_of(x.dtype), x.shape, most, largest, agrees))
    return found


def difference(a: Array, b: Array) -> tuple[float, float]:
    """The largest difference of two arrays, infinite where they cannot be compared, and ``a``'s largest magnitude."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), 0.0
    if a.dtype.kind not in "fciu":
        return float("inf") if not np.array_equal(a, b) else 0.0, 0.0
    same = a == b  # as they are: not every integer is a float64
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
    same |= np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0, np.maximum(np.abs(a - b), np.finfo(float).tiny))
    finite = np.abs(a[np.isfinite(a)])
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0)), float(finite.max(initial=0))


def as_text(found: Sequence[Agreement]) -> str:
    rows: list[tuple[object, ...]] = [("output", "type", "shape", "largest difference", "of largest value", "")]
    for each in found:
        verdict = "agrees" if each.agrees else "differs"
        rows.append((each.name, each.type, tuple(each.shape), f"{each.difference:.2g}", f"{each.of:.2g}", verdict))
    return table(rows)


def _coordinate_error(path: str) -> str:
    """A line on the error of the coordinates of 5-D nodes written as 4-D ones; empty where there are none."""
    model = read_model(path)
    images = [node.input[0] for node in model.graph.node if node.op_type == "GridSample" and lowered_from(node)]
    if not images:
        return ""
    values = onnx.shape_inference.infer_shapes(model).graph.value_info
    lengths = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in values}
    known = [max(lengths[name][2:]) for name in images if all(lengths.get(name, [0])[2:])]
    off = f"{COORDINATE_ERROR * max(known):.1g} pixels" if len(known) == len(images) else "2**-22 of what they span"
    return f"{path}: 5-D nodes are written as 4-D ones, whose coordinates are off by up to {off}: see --tolerance"


def far_coordinates(paths: Sequence[str], ways: Sequence[str], feeds: Mapping[str, Array], tolerance: float) -> Far:
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
            session = runners.WAYS[way](model.SerializeToString())
            found = runners.answers(session, {value.name: near[value.name] for value in session.get_inputs()})
            answers.append({name: found[name] for name in own})
            if model is models[0]:
                counts |= {place.name: _count(found[place.wide]) for place in outside}
                uncounted += (f"{place.name} in {place.graph}" for place in places if place.graph)
        left = agreements(answers[0], answers[1], tolerance)
        return Far(LIMIT, counts, uncounted, left, _agree(left))
    except Exception as error:  # a changed model may not run where the model does
        return Far(unknown=sentence(error))


def _grids(models: Sequence[onnx.ModelProto]) -> dict[str, str]:
    """The grids of the models' GridSample nodes: name -> type. Lowered nodes' grids keep their names."""
    records = [record for model in models for record in inspect_model(model) if record.operator == "GridSample"]
    named = [record for record in reversed(records) if record.values.get("grid")]  # the first says the type
    return {record.values["grid"]: next(iter(record.types["grid"]), "float32") for record in named}


def _is_far(grid: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return ~(np.abs(grid) < LIMIT)


def _count(grid: Array) -> dict[str, int]:
    return {"coordinates": grid.size, "far": int(np.count_nonzero(_is_far(grid)))}


def _far_text(far: Far) -> str:
    """How far such coordinates account for the difference, as text."""
    if far.unknown:
        return f"whether coordinates further out than ±{LIMIT:g} account for it is not known: {far.unknown}"
    lines = [
        f"grid {name!r}: {n['far']} of {n['coordinates']} coordinates are further out than ±{LIMIT:g}, or no numbers"
        for name, n in far.grids.items()
    ]
    lines += [f"grid {name}: its coordinates are not counted" for name in far.uncounted]
    if far.uncounted or any(n["far"] for n in far.grids.values()):
        verdict = "all agree: these coordinates account for it" if far.agree else "this is left:"
        lines.append(f"with such coordinates at 0 in both models, {verdict}")
        lines += [] if far.agree else [as_text(far.outputs)]
    return "\n".join(lines)
