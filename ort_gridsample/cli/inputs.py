"""A model's inputs, from files or at random, for ``run``, ``verify`` and ``bench``."""

import argparse
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnxruntime

from .. import spec
from ..errors import GridSampleError
from ..functions import validation
from ..reference.arrays import Array
from .arguments import at_least_0
from .output import name_of

#: The lengths of dimensions that the model leaves open in a random input: the first dimension's, and the others'.
OPEN, OPEN_OTHERWISE = (1, 8), (2, 11)


def add_arguments(parser: argparse.ArgumentParser, metavar: str = "MODEL") -> None:
    add = parser.add_argument
    add("model", metavar=metavar, help="an ONNX model")
    add("--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input's array (once for each input)")
    shape = f"the shape of a random input (default: the model's; dimensions left open are {OPEN[1]})"
    add("--shape", action="append", default=[], metavar="NAME=1,3,64,64", help=shape)
    add("--seed", type=at_least_0, default=0, help="seed of the random inputs (default: 0)")


def feeds(
    session: onnxruntime.InferenceSession, arguments: argparse.Namespace, *, random: bool,
    lengths: tuple[int, int] = OPEN,
) -> dict[str, Array]:  # fmt: skip
    """The inputs of ``session``'s model: files', and if ``random`` the others at random, of open ``lengths``."""
    files, shapes = _pairs("--input", arguments.input), _pairs("--shape", arguments.shape)
    declared = {value.name: value for value in session.get_inputs()}
    for name in (*files, *shapes):
        if name not in declared:
            known = f"one of {', '.join(declared)}" if declared else "none: the model has no inputs"
            raise GridSampleError(arguments.model, "the input's name", repr(name), known)
    for name in files.keys() & shapes.keys():
        raise GridSampleError("command line", "--shape", repr(name), f"none, as --input gives {name!r} from a file")
    generator = np.random.default_rng(arguments.seed)
    feeds = {}
    for name, value in declared.items():
        if name in files:
            feeds[name] = _fitting(_read(files[name]), value, files[name], arguments.model)
        elif random:
            own = [n if isinstance(n, int) else lengths[at > 0] for at, n in enumerate(value.shape)]
            shape = _shape(shapes[name]) if name in shapes else tuple(own)
            feeds[name] = random_array(generator, name, value.type, shape)
        else:
            raise GridSampleError(arguments.model, f"input {name!r}", "missing", f"--input {name}=FILE.npy or --random")
    return feeds


def random_array(generator: np.random.Generator, name: str, ort_type: str, shape: tuple[int, ...]) -> Array:
    """An array of onnxruntime's type ``ort_type``: floats in [-1, 1), small integers, short strings."""
    dtype = _dtype(ort_type)
    if dtype is None:
        raise GridSampleError("command line", f"input {name!r}", f"of type {ort_type}", "a tensor of a type of numpy's")
    if dtype.kind == "O":
        return generator.choice(np.array(["a", "b", "c"], object), shape)
    if dtype.kind in "iub":
        return generator.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    return generator.uniform(-1, 1, shape).astype(dtype)


def _dtype(ort_type: str) -> np.dtype[Any] | None:
    """The type of an array for onnxruntime's ``tensor(…)``; None where numpy has none."""
    known = spec.TYPES_BY_ONNX.get(ort_type.removeprefix("tensor(").removesuffix(")"))
    if known is None or known.name == "bfloat16":
        return None
    return np.dtype(object if known.name == "str" else known.name)


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not value:
            raise GridSampleError("command line", option, repr(text), "NAME=VALUE")
        if name in pairs:
            raise GridSampleError("command line", option, f"given twice for {name!r}", "once")
        pairs[name] = value
    return pairs


def _read(file: str) -> Array:
    expected = "an array saved by numpy.save"
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        raise GridSampleError("command line", "--input", f"{file!r} ({error})", expected) from None
    if not isinstance(array, np.ndarray):
        raise GridSampleError("command line", "--input", f"{file!r}, an archive of arrays (.npz)", expected)
    return array.astype(object) if array.dtype.kind == "U" else array


def _fitting(array: Array, value: onnxruntime.NodeArg, file: str, model: str) -> Array:
    """``array``, checked to be what the model takes."""
    dtype, lengths = _dtype(value.type), tuple(value.shape)
    remedy = ""
    if dtype is not None and array.dtype != dtype:
        remedy = f"; convert it with numpy.save(file, numpy.load(file).astype({str(dtype)!r}))"
        if "O" in (dtype.kind, array.dtype.kind):
            remedy = "; only text is saved as text"
    elif lengths and not validation.may_match(array.shape, lengths):
        remedy = "; reshape or transpose it, or give another file"
    if not remedy:
        return array
    shape = f" of shape {validation.format_shape(lengths)}" if lengths else ""
    expected = f"{value.type.removeprefix('tensor(').removesuffix(')') if dtype is None else name_of(dtype)}{shape}"
    found = f"{name_of(array.dtype)} of shape {array.shape}"
    raise GridSampleError(model, f"input {value.name!r}, from {file},", found, f"{expected}{remedy}")


def _shape(text: str) -> tuple[int, ...]:
    lengths = text.split(",")
    if not all(length.strip().isdecimal() for length in lengths):
        raise GridSampleError("command line", "--shape", repr(text), "numbers with commas between them")
    return tuple(map(int, lengths))
