"""``ort-gridsample verify A B``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

from ..core.arrays import Array
from ..errors import GridSampleError
from ..model.far import LIMIT
from ..model.files import read_model
from ..model.helpers import lowered_from
from ..model.targets.two_axes import COORDINATE_ERROR
from . import inputs, sides
from .arguments import magnitude
from .failures import about, sentence
from .far import Far, far_coordinates
from .output import print_json, table, type_of


@dataclass(frozen=True)
class Agreement:
    """How far both models agree on one output: the largest difference, and A's largest value."""

    name: str
    type: str
    shape: Sequence[int]
    difference: float
    of: float
    agrees: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="A", help="an ONNX model")
    parser.add_argument("other", metavar="B", help="the model that should answer the same")
    inputs.add_arguments(parser)
    parser.add_argument(
        "--tolerance",
        type=magnitude,
        default=1e-5,
        help="how far floats may differ, in parts of the output's largest magnitude (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """0 where all outputs agree, 1 where one does not."""
    paths = arguments.model, arguments.other
    feeds, otherwise = dict[str, Array](), dict[str, Array]()
    ran = []
    for path in paths:
        with about(path):
            ran.append(sides.run(path, _feeder(path, feeds, otherwise, arguments)))
    if (names := list(ran[0].answers)) != list(ran[1].answers):
        raise GridSampleError(paths[1], "outputs", str(list(ran[1].answers)), f"those of {paths[0]}: {names}")
    found, note = agreements(ran[0].answers, ran[1].answers, arguments.tolerance), ""
    # Lengths that a patch made constant show with other inputs.
    if all(each.agrees for each in found) and any(
        array.shape != otherwise[name].shape for name, array in feeds.items()
    ):
        feeds = otherwise
        try:
            answers = sides.answers(ran[0].way, paths[0], lambda _: feeds)
        except Exception as error:
            note = f"{paths[0]} does not run with other lengths of what it leaves open: {sentence(error)}"
        else:
            with about(paths[1]):
                others = sides.answers(ran[1].way, paths[1], lambda _: feeds)
            found += agreements(answers, others, arguments.tolerance)
    agree = all(each.agrees for each in found)
    far = None if agree else far_coordinates(paths, [side.way for side in ran], feeds)
    without = agreements(far.answers[0], far.answers[1], arguments.tolerance) if far and far.answers else []
    if arguments.json:
        content = {
            side: {"model": path, "way": each.way, "refusal": each.refusal}
            for side, path, each in zip("AB", paths, ran, strict=True)
        }
        outputs = [vars(each) for each in found]
        print_json(
            {**content, "outputs": outputs, "note": note, "agree": agree, "far": far and _far_json(far, without)}
        )
    else:
        rows = [(side, path, each.way) for side, path, each in zip("AB", paths, ran, strict=True)]
        print(table([("", "model", "run by"), *rows]))
        print(as_text(found))
        for line in filter(None, [note, *map(_coordinate_error, paths)]):
            print(line)
        if far:
            print(_far_text(far, without))
    return 0 if agree else 1


def _feeder(
    path: str, feeds: dict[str, Array], otherwise: dict[str, Array], arguments: argparse.Namespace
) -> sides.Feeds:
    """The function that gives a session of the model at ``path`` its inputs.

    The first model's session decides on them, and fills ``feeds``, and ``otherwise`` with open dimensions of other
    lengths.
    """

    def feed(session: onnxruntime.InferenceSession) -> Mapping[str, Array]:
        if path == arguments.model and not feeds:
            feeds.update(inputs.feeds(session, arguments, random=True))
            otherwise.update(inputs.feeds(session, arguments, random=True, lengths=inputs.OPEN_OTHERWISE))
        wanted = [value.name for value in session.get_inputs()]
        if missing := [name for name in wanted if name not in feeds]:
            raise GridSampleError(path, "inputs", str(wanted), f"those of {arguments.model}, without {missing}")
        return {name: feeds[name] for name in wanted}

    return feed


def agreements(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: float) -> list[Agreement]:
    """How far two models' outputs of the same names agree."""
    found = []
    for name, x in a.items():
        y = b[name]
        if not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
            raise GridSampleError("verify", f"output {name!r}", f"a {type(x).__name__}", "a tensor, to be compared")
        most, largest = difference(x, y)
        agrees = most <= tolerance * largest if x.dtype.kind in "fc" else most == 0
        found.append(Agreement(name, type_of(x), x.shape, most, largest, agrees))
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


def _far_text(far: Far, without: Sequence[Agreement]) -> str:
    """How far coordinates account for the difference, as text."""
    if far.unknown:
        return f"whether coordinates further out than ±{LIMIT:g} account for it is not known: {far.unknown}"
    lines = [
        f"grid {name!r}: {far_out} of {size} coordinates are further out than ±{LIMIT:g}, or no numbers"
        for name, (size, far_out) in far.counts.items()
    ]
    lines += [f"grid {name}: its coordinates are not counted" for name in far.uncounted]
    if far.uncounted or any(far_out for _, far_out in far.counts.values()):
        agree = all(each.agrees for each in without)
        verdict = "all agree: these coordinates account for it" if agree else "this is left:"
        lines.append(f"with such coordinates at 0 in both models, {verdict}")
        lines += [] if agree else [as_text(without)]
    return "\n".join(lines)


def _far_json(far: Far, without: Sequence[Agreement]) -> dict[str, object]:
    return {
        "limit": LIMIT,
        "grids": {name: {"coordinates": size, "far": far_out} for name, (size, far_out) in far.counts.items()},
        "uncounted": far.uncounted,
        "outputs": [vars(each) for each in without],
        "agree": None if far.unknown else all(each.agrees for each in without),
        "unknown": far.unknown,
    }
