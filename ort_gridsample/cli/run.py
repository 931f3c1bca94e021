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
from . import bfloat16, inputs, output, runners
from .failures import about


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    inputs.add_arguments(parser)
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="the folder in which each output is saved as NAME.npy, bfloat16 as float32",
    )
    parser.add_argument(
        "--random",
        action="store_true",
        help="draw inputs without --input at random",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: the inputs, the outputs, and the seconds",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run a model once; save and print its outputs."""
    with about(arguments.model):
        session = InferenceSession(arguments.model)
        feeds = inputs.make_feeds(session, arguments, random=arguments.random)
        start = time.perf_counter()
        outputs = runners.run_session(session, feeds)
        seconds = time.perf_counter() - start
    files = save(outputs, Path(arguments.output)) if arguments.output else {}
    described_inputs = [_described(name, value) for name, value in feeds.items()]
    described_outputs = [_described(name, value) for name, value in outputs.items()]
    if arguments.json:
        for description, file in zip(described_outputs, files.values(), strict=False):
            description["file"] = str(file)
        output.print_json(
            {
                "model": arguments.model,
                "inputs": described_inputs,
                "outputs": described_outputs,
                "seconds": seconds,
            }
        )
        return
    rows = [("input", *description.values()) for description in described_inputs]
    rows += [("output", *description.values()) for description in described_outputs]
    print(output.table([("", "name", "type", "shape"), *rows]))
    print(f"time    {seconds * 1e3:.2f} ms (one run, without making the session)")
    for name, file in files.items():
        print(f"saved   {name}: {file}")


def _described(name: str, value: Array) -> dict[str, object]:
    """Return the name, type and shape of an input or output; None as the shape of a non-tensor."""
    if not isinstance(value, np.ndarray):
        return {"name": name, "type": type(value).__name__, "shape": None}
    return {"name": name, "type": output.name_of(value.dtype), "shape": value.shape}


def save(outputs: Mapping[str, Array], folder: Path) -> dict[str, Path]:
    """Save each output as ``folder``/NAME.npy, those of bfloat16 as float32.

    A character that a file name cannot hold becomes ``_``. If some file systems do not distinguish
    two names, the later one gets a number.

    Returns:
        The files by the names of the outputs.

    Raises:
        GridSampleError: an output is not a tensor. No file is written.
    """
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            found = f"a {type(array).__name__}"
            raise GridSampleError("run", f"output {name!r}", found, "a tensor, to be saved")
    folder.mkdir(parents=True, exist_ok=True)
    files = dict[str, Path]()
    used_names = set[str]()
    for name, array in outputs.items():
        stem = _unused_stem(name, used_names)
        used_names.add(stem.casefold())
        files[name] = folder / f"{stem}.npy"
        with atomic_write(files[name]) as file:
            saved = bfloat16.for_files(array)
            np.save(file, saved.astype(str) if saved.dtype == object else saved)
    return files


def _unused_stem(name: str, used_names: set[str]) -> str:
    """Return a file name for an output, without suffix, whose case-folded form is not used."""
    stem = "".join(char if char.isalnum() or char in "-_." else "_" for char in name)
    candidates = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return next(candidate for candidate in candidates if candidate.casefold() not in used_names)
