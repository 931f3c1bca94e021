"""``ort-gridsample run MODEL``."""

import argparse
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np

from ..errors import GridSampleError
from ..graph.files import atomic_write
from ..reference.arrays import Array
from ..session.session import InferenceSession
from . import inputs, output, runners
from .failures import about


def add_arguments(parser: argparse.ArgumentParser) -> None:
    inputs.add_arguments(parser)
    parser.add_argument("--output", metavar="DIR", help="the folder in which each output is saved as NAME.npy")
    parser.add_argument("--random", action="store_true", help="draw the other inputs at random")
    parser.add_argument("--json", action="store_true", help="print JSON: the inputs, the outputs, and the seconds")


def run(arguments: argparse.Namespace) -> None:
    with about(arguments.model):
        session = InferenceSession(arguments.model)
        feeds = inputs.feeds(session, arguments, random=arguments.random)
        start = time.perf_counter()
        outputs = runners.answers(session, feeds)
        seconds = time.perf_counter() - start
    files = save(outputs, Path(arguments.output)) if arguments.output else {}
    taken, given = ([_described(*each) for each in values.items()] for values in (feeds, outputs))
    if arguments.json:
        if files:
            given = [{**each, "file": str(file)} for each, file in zip(given, files.values(), strict=True)]
        output.print_json({"model": arguments.model, "inputs": taken, "outputs": given, "seconds": seconds})
        return
    rows = [("input", *each.values()) for each in taken] + [("output", *each.values()) for each in given]
    print(output.table([("", "name", "type", "shape"), *rows]))
    print(f"time    {seconds * 1e3:.2f} ms (one run, without making the session)")
    for name, file in files.items():
        print(f"saved   {name}: {file}")


def _described(name: str, value: Array) -> dict[str, object]:
    """An input or output for the table and for JSON; a value that is no tensor has no shape."""
    is_tensor = isinstance(value, np.ndarray)
    kind = output.name_of(value.dtype) if is_tensor else type(value).__name__
    return {"name": name, "type": kind, "shape": value.shape if is_tensor else None}


def save(outputs: Mapping[str, Array], folder: Path) -> dict[str, Path]:
    """Save each output as ``folder``/NAME.npy; the files, by the outputs' names.

    A character that a file name cannot hold becomes ``_``; of two names that some file systems take for one, the later
    gets a number.
    """
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            raise GridSampleError("run", f"output {name!r}", f"a {type(array).__name__}", "a tensor, to be saved")
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    taken: set[str] = set()
    for name, array in outputs.items():
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        names = (stem if n == 1 else f"{stem}-{n}" for n in count(1))
        unlike = next(candidate for candidate in names if candidate.casefold() not in taken)
        taken.add(unlike.casefold())
        files[name] = folder / f"{unlike}.npy"
        with atomic_write(files[name]) as file:
            np.save(file, array.astype(str) if array.dtype == object else array)
    return files
