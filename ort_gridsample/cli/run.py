"""``ort-gridsample run MODEL``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..core.arrays import Array
from ..model.files import written_whole
from ..runtime.session import InferenceSession
from . import inputs
from .table import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    inputs.add_arguments(parser)
    parser.add_argument("--output", metavar="DIR", help="the folder in which each output is saved as NAME.npy")
    parser.add_argument("--random", action="store_true", help="make the other inputs at random")


def run(arguments: argparse.Namespace) -> None:
    session = InferenceSession(arguments.model)
    feeds = inputs.feeds(session, arguments, random=arguments.random)
    start = time.perf_counter()
    outputs = dict(zip((value.name for value in session.get_outputs()), session.run(None, feeds), strict=True))
    seconds = time.perf_counter() - start
    rows: list[tuple[object, ...]] = [("", "name", "type", "shape")]
    rows += [("input", name, a.dtype, a.shape) for name, a in feeds.items()]
    rows += [("output", name, a.dtype, a.shape) for name, a in outputs.items()]
    print(table(rows))
    print(f"time    {seconds * 1e3:.2f} ms (one run, without making the session)")
    if arguments.output:
        save(outputs, Path(arguments.output))


def save(outputs: Mapping[str, Array], folder: Path) -> None:
    """Save each output as ``folder``/NAME.npy; what a file name cannot hold becomes ``_``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in outputs.items():
        path = folder / ("".join(c if c.isalnum() or c in "-_." else "_" for c in name) + ".npy")
        with written_whole(path) as file:
            np.save(file, array.astype(str) if array.dtype == object else array)
        print(f"saved   {path}")
