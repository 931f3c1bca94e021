"""Make the inputs of a model from files or at random, for ``run``, ``verify`` and ``bench``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from .. import spec
from ..errors import GridSampleError
from ..functions import validation
from ..reference.arrays import Array
from . import bfloat16
from .arguments import non_negative
from .output import name_of

if TYPE_CHECKING:
    import onnxruntime

#: The lengths that dimensions without a number have in random inputs: of the first dimension, and
#: of the others. ``verify`` runs the models with both pairs.
OPEN_LENGTHS = (1, 8)
OTHER_OPEN_LENGTHS = (2, 11)


def add_arguments(parser: argparse.ArgumentParser, metavar: str = "MODEL") -> None:
    """Add the arguments for a model and its inputs."""
    parser.add_argument("model", metavar=metavar, help="an ONNX model")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help=(
            "the array of an input; may be repeated for other inputs; for bfloat16, an array of "
            "float32, ml_dtypes.bfloat16, or its bits as uint16"
        ),
    )
    first_length, other_length = OPEN_LENGTHS
    default_shape = (
        f"the model's, with {first_length} for a first dimension without a number and "
        f"{other_length} for others"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,64,64",
        help=f"the shape of a random input; may be repeated (default: {default_shape})",
    )
    parser.add_argument(
        "--seed",
        type=non_negative,
        default=0,
        help="the seed of the random inputs (default: %(default)s)",
    )


def make_feeds(
    session: onnxruntime.InferenceSession,
    arguments: argparse.Namespace,
    *,
    random: bool,
    open_lengths: tuple[int, int] = OPEN_LENGTHS,
) -> dict[str, Array]:
    """Return the inputs of a session's model.

    Args:
        session: the session whose model is fed.
        arguments: the values of the arguments of :func:`add_arguments`.
        random: whether to draw the inputs without a file at random.
        open_lengths: the lengths of dimensions without a number in random inputs.

    Raises:
        GridSampleError: an argument does not fit the model, or an input has no file.
    """
    files = _by_name("--input", arguments.input)
    shapes = _by_name("--shape", arguments.shape)
    declared = {value.name: value for value in session.get_inputs()}
    for name in (*files, *shapes):
        if name not in declared:
            names = f"one of {', '.join(declared)}" if declared else "none: the model has no inputs"
            raise GridSampleError(arguments.model, "the input's name", repr(name), names)
    for name in files.keys() & shapes.keys():
        expected = f"none, as --input gives {name!r} from a file"
        raise GridSampleError("command line", "--shape", repr(name), expected)
    generator = np.random.default_rng(arguments.seed)
    feeds = dict[str, Array]()
    for name, value in declared.items():
        if name in files:
            array = _read(files[name])
            if value.type == bfloat16.ORT_TYPE:
                array = bfloat16.from_file(array)
            feeds[name] = _checked(array, value, files[name], arguments.model)
        elif random:
            shape = _parse_shape(shapes[name]) if name in shapes else shape_of(value, open_lengths)
            feeds[name] = random_array(generator, name, value.type, shape)
        else:
            expected = f"--input {name}=FILE.npy or --random"
            raise GridSampleError(arguments.model, f"input {name!r}", "missing", expected)
    return feeds


def random_feeds(
    session: onnxruntime.InferenceSession, open_lengths: tuple[int, int]
) -> dict[str, Array]:
    """Return random inputs of a session's model.

    Args:
        session: the session whose model is fed.
        open_lengths: the lengths of dimensions without a number.

    Raises:
        GridSampleError: NumPy lacks the type of an input.
    """
    generator = np.random.default_rng(0)
    return {
        value.name: random_array(generator, value.name, value.type, shape_of(value, open_lengths))
        for value in session.get_inputs()
    }


def random_array(
    generator: np.random.Generator,
    name: str,
    ort_type: str,
    shape: tuple[int, ...],
) -> Array:
    """Return a random array: floats in [-1, 1), small integers, or short strings.

    Args:
        generator: the random numbers.
        name: the name of the input, for errors.
        ort_type: the type of the input by onnxruntime's name.
        shape: the shape of the array.
    """
    dtype = _dtype(ort_type)
    if dtype is None:
        found = f"of type {ort_type}"
        expected = "a tensor of a type that numpy has"
        raise GridSampleError("command line", f"input {name!r}", found, expected)
    if dtype.kind == "O":
        return generator.choice(np.array(["a", "b", "c"], object), shape)
    if dtype.kind in "iub":
        end = 2 if dtype.kind == "b" else 100
        return generator.integers(0, end, shape).astype(dtype)
    return generator.uniform(-1, 1, shape).astype(dtype)


def shape_of(value: onnxruntime.NodeArg, open_lengths: tuple[int, int]) -> tuple[int, ...]:
    """Return the shape of a random input."""
    first, others = open_lengths
    defaults = [first] + [others] * (len(value.shape) - 1)
    dims = zip(value.shape, defaults, strict=False)
    return tuple(dim if isinstance(dim, int) else default for dim, default in dims)


def _dtype(ort_type: str) -> np.dtype[Any] | None:
    """Return the type of an array for onnxruntime's ``tensor(…)``; None if NumPy has none."""
    tensor_type = spec.TYPES_BY_ONNX.get(_element_name(ort_type))
    if tensor_type is None:
        return None
    if tensor_type.name == "bfloat16":
        dtype = bfloat16.dtype()
        # The page in examples/web has a replacement of ml_dtypes without conversions.
        return dtype if dtype.name == "bfloat16" else None
    return np.dtype(object if tensor_type.name == "str" else tensor_type.name)


def _element_name(ort_type: str) -> str:
    return ort_type.removeprefix("tensor(").removesuffix(")")


def _by_name(option: str, texts: list[str]) -> dict[str, str]:
    """Return the values of an option that is given as NAME=VALUE, by name."""
    values = dict[str, str]()
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise GridSampleError("command line", option, repr(text), "NAME=VALUE")
        if name in values:
            raise GridSampleError("command line", option, f"given twice for {name!r}", "once")
        values[name] = value
    return values


def _read(file: str) -> Array:
    """Read the array in a file. An array of text becomes one of objects."""
    expected = "an array saved by numpy.save"
    if not file:
        raise GridSampleError("command line", "--input", "no file", expected, verb="has")
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        found = f"{file!r} ({error})"
        raise GridSampleError("command line", "--input", found, expected) from None
    if not isinstance(array, np.ndarray):
        found = f"{file!r}, an archive of arrays (.npz)"
        raise GridSampleError("command line", "--input", found, expected)
    return array.astype(object) if array.dtype.kind == "U" else array


def _checked(array: Array, value: onnxruntime.NodeArg, file: str, model: str) -> Array:
    """Return ``array`` if it fits the model's input ``value``.

    Raises:
        GridSampleError: it does not. The error says what to do.
    """
    dtype = _dtype(value.type)
    shape = tuple(value.shape)
    remedy = _remedy(array, dtype, shape)
    if not remedy:
        return array
    found = f"{name_of(array.dtype)} of shape {array.shape}"
    expected = _element_name(value.type) if dtype is None else name_of(dtype)
    if shape:
        expected += f" of shape {validation.format_shape(shape)}"
    argument = f"input {value.name!r}, from {file},"
    raise GridSampleError(model, argument, found, f"{expected}; {remedy}")


def _remedy(array: Array, dtype: np.dtype[Any] | None, shape: tuple[Any, ...]) -> str:
    """Return what to do if ``array`` has another type or shape; "" if it fits."""
    if dtype is not None and array.dtype != dtype:
        if "O" in (dtype.kind, array.dtype.kind):
            return "only text is saved as text"
        saved = "float32" if dtype.name == "bfloat16" else dtype.name
        return f"convert it with numpy.save(file, numpy.load(file).astype({saved!r}))"
    if shape and not validation.may_match(array.shape, shape):
        return "reshape or transpose it, or give another file"
    return ""


def _parse_shape(text: str) -> tuple[int, ...]:
    """Return the lengths in a text such as ``1,3,64,64``; no lengths for an empty text."""
    if not text:
        return ()
    lengths = text.split(",")
    if not all(length.strip().isdecimal() for length in lengths):
        expected = "numbers with commas between them"
        raise GridSampleError("command line", "--shape", repr(text), expected)
    return tuple(map(int, lengths))
