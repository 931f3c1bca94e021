"""``ort-gridsample verify A B``."""

from __future__ import annotations

import argparse

import numpy as np

from ..core.arrays import Array
from ..errors import GridSampleError
from ..runtime.session import InferenceSession
from . import inputs
from .table import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="A", help="an ONNX model")
    parser.add_argument("other", metavar="B", help="the model that should answer the same")
    inputs.add_arguments(parser)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-5,
        help="how far floats may differ, in parts of the output's largest magnitude (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """0 where all outputs agree, 1 where one does not."""
    sessions = [InferenceSession(path) for path in (arguments.model, arguments.other)]
    feeds = inputs.feeds(sessions[0], arguments, random=True)
    names = [[value.name for value in session.get_outputs()] for session in sessions]
    if names[0] != names[1]:
        raise GridSampleError(arguments.other, "outputs", str(names[1]), f"those of {arguments.model}: {names[0]}")
    answers = [session.run(None, feeds) for session in sessions]
    rows: list[tuple[object, ...]] = [("output", "type", "shape", "largest difference", "of largest value", "")]
    agreed = True
    for name, a, b in zip(names[0], *answers, strict=True):
        most, magnitude = difference(a, b)
        within = most <= arguments.tolerance * magnitude if a.dtype.kind in "fc" else most == 0
        agreed &= within
        rows.append((name, a.dtype, a.shape, f"{most:.2g}", f"{magnitude:.2g}", "agrees" if within else "differs"))
    print(table(rows))
    return 0 if agreed else 1


def difference(a: Array, b: Array) -> tuple[float, float]:
    """The largest difference of two answers, infinite where they cannot be compared, and ``a``'s largest magnitude."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), 0.0
    if a.dtype.kind not in "fciu":
        return float("inf") if not np.array_equal(a, b) else 0.0, 0.0
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0, np.abs(a - b))
    finite = np.abs(a[np.isfinite(a)])
    return float(np.nan_to_num(apart, nan=np.inf).max(initial=0)), float(finite.max(initial=0))
