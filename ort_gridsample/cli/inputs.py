"""A model's inputs, from files or at random: what ``run``, ``verify`` and ``bench`` share."""

from __future__ import annotations

import argparse

import numpy as np

from .. import spec
from ..core.arrays import Array
from ..errors import GridSampleError
from ..runtime.session import InferenceSession

#: What a dimension that the model leaves open becomes in a random input.
OPEN_DIMENSION = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input's array (once for each input)"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,64,64",
        help=f"the shape of a random input (default: the model's; dimensions left open are {OPEN_DIMENSION})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")


def feeds(session: InferenceSession, arguments: argparse.Namespace, *, random: bool) -> dict[str, Array]:
    """The inputs of ``session``'s model: those of files, and where ``random`` the others at random.

    Raises:
        GridSampleError: a name, a file or a shape that does not fit, or a missing input.
    """
    files, shapes = _pairs("--input", arguments.input), _pairs("--shape", arguments.shape)
    declared = {value.name: value for value in session.get_inputs()}
    for name in (*files, *shapes):
        if name not in declared:
            raise GridSampleError(arguments.model, "the input's name", repr(name), f"one of {', '.join(declared)}")
    generator = np.random.default_rng(arguments.seed)
    feeds = {}
    for name, value in declared.items():
        if name in files:
            feeds[name] = _read(files[name])
        elif random:
            shape = _shape(shapes[name]) if name in shapes else _open(value.shape)
            feeds[name] = random_array(generator, value.type, shape)
        else:
            raise GridSampleError(arguments.model, f"input {name!r}", "missing", f"--input {name}=FILE.npy or --random")
    return feeds


def random_array(generator: np.random.Generator, ort_type: str, shape: tuple[int, ...]) -> Array:
    """An array of onnxruntime's type ``ort_type``: floats in [-1, 1), small integers, short strings."""
    known = spec.TYPES_BY_ONNX.get(ort_type.removeprefix("tensor(").removesuffix(")"))
    if known is None or known.name == "bfloat16":
        raise GridSampleError("command line", "input", f"of type {ort_type}", "a type that numpy has")
    if known.name == "str":
        return generator.choice(np.array(["a", "b", "c"], object), shape)
    dtype = np.dtype(known.name)
    if dtype.kind in "iub":
        return generator.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    return generator.uniform(-1, 1, shape).astype(dtype)


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    pairs = dict(text.partition("=")[::2] for text in texts)
    for name, value in pairs.items():
        if not value:
            raise GridSampleError("command line", option, repr(name), "NAME=VALUE")
    return pairs


def _read(file: str) -> Array:
    try:
        array: Array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise GridSampleError(
            "command line", "--input", f"{file!r} ({error})", "an array saved by numpy.save"
        ) from None
    return array.astype(object) if array.dtype.kind == "U" else array


def _shape(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(length) for length in text.split(","))
    except ValueError:
        raise GridSampleError("command line", "--shape", repr(text), "numbers with commas between them") from None


def _open(shape: list[object]) -> tuple[int, ...]:
    """The model's own dimensions; of those that it leaves open, the first is 1."""
    lengths = [length if isinstance(length, int) else OPEN_DIMENSION for length in shape]
    if shape and not isinstance(shape[0], int):
        lengths[0] = 1
    return tuple(lengths)
