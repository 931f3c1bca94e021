"""Registers the compiled ops with ONNX Runtime, and makes a node's kernel when a session asks for it.

onnxruntime-extensions' shared library takes ops of others, for the life of the process, and registers them wherever it
is registered itself, in its own domain. It gets all of them once, together, before any of that.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from ...core import logger, need_numba
from ...core.threads import available_cpus
from ...errors import GridSampleError
from ...model.dialects import EXTENSIONS_DOMAIN
from .. import library
from ..extensions import load
from ..interrupts import undisturbed
from ..native import one_node, quiet_options
from . import c_api
from .catalog import ANSWERS, NAMES, OPS, Op, fields
from .image import Image
from .structs import LIBRARY, OP

_PROBE = "ort_gridsample_probe"

#: The attribute of the extensions' module, which holds the list of ops, under which ours are kept.
_MARK = "_ort_gridsample_compiled_ops"

#: No op has so many states, and no status has so low an address.
MOST_STATES = 1 << 12

_lock = threading.Lock()


def _shared() -> Any:
    """The ops and what they have in common, even where this module is imported anew; None: there are no extensions."""
    extensions = sys.modules.get("onnxruntime_extensions._extensions_pydll")
    if extensions is None:
        return None
    return vars(extensions).setdefault(_MARK, SimpleNamespace(ops=None, library=_Library()))


def _has_ops() -> bool:
    """Whether onnxruntime-extensions have the ops."""
    shared = _shared()
    return shared is not None and shared.ops is not None


def add() -> str:
    """Let every later registration of onnxruntime-extensions register the ops; why it cannot, empty where it does."""
    return undisturbed(_alone, _add)


def know_api() -> None:
    """Find ONNX Runtime's table of functions, which the inference of shapes calls."""
    undisturbed(_alone, lambda: _add() or _probe())


def why_not() -> str:
    """Why sessions of this process have no compiled ops; empty where they have. Without a library it imports Numba.

    Raises:
        GridSampleError: there is a library, which is of no use.
    """
    return undisturbed(_alone, lambda: _add() or ("" if library.found() else _numba()) or _probe())


def alone() -> Path | None:
    """The library whose ops are to be registered by themselves, as no onnxruntime-extensions take them; None: none."""
    return undisturbed(_alone, lambda: None if _add() or _has_ops() else library.found())


def _alone(ask: Callable[[], str]) -> str:
    with _lock:  # which Python 3.10 leaves taken where a signal's handler raises between two steps
        return ask()


@cache
def _add() -> str:
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return "this Python is not a 64-bit one"
    path = library.found()
    if path is not None:
        library.checked(path)
    elif not _free:
        return "ctypes finds no malloc on this system"
    elif find_spec("numba") is None:
        return "Numba is not installed: pip install 'ort-gridsample[jit]'"
    try:
        add_op = ctypes.CDLL(load().get_library_path()).AddExternalCustomOp
    except ImportError as error:
        return "" if path is not None else str(error)
    except (OSError, AttributeError):
        return "" if path is not None else "the installed onnxruntime-extensions takes no ops of others"
    add_op.restype, add_op.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    shared = _shared()
    if shared.ops is None:
        # The first only finds the table of functions: it keeps nothing, which C may free, or nobody.
        probing = _op(_PROBE, CreateKernelV2=_address(_callbacks[-2]), KernelDestroy=_free, **fields(["float32"]))
        shared.ops = [probing, *(_made_here() if path is None else _of_library(path))]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared.ops))  # sessions that outlive Python point at them
        for op in shared.ops:
            add_op(ctypes.addressof(op))
    return ""


@cache
def _numba() -> str:
    try:
        need_numba()
        importlib.import_module(".sampling", __package__)
    except Exception as error:  # Numba may refuse a newer NumPy with more than an ImportError
        return f"Numba cannot be imported: {error}"
    return ""


@cache
def _probe() -> str:
    """Make a session of an op that gets the table of functions; why that failed, empty if it did not."""
    if not _has_ops():
        return ""  # a library registers itself, and gets it then
    node, options = helper.make_node(_PROBE, [], [], domain=EXTENSIONS_DOMAIN), quiet_options()
    model = one_node(node, [("", 16), (EXTENSIONS_DOMAIN, 1)], [("X", "float32")], [[1]])
    try:
        options.register_custom_ops_library(load().get_library_path())
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"onnxruntime does not take compiled ops: {' '.join(str(error).split())}"
    return "" if _shared().library.api else "onnxruntime does not call compiled ops"


_Op: Any = np.ctypeslib.as_ctypes_type(OP)
_Library: Any = np.ctypeslib.as_ctypes_type(LIBRARY)


def _complete(struct: Any, op: Op, types: tuple[str, ...]) -> None:
    """Complete the ``struct`` of an op for inputs of these ``types`` with what needs Numba."""
    kernels, image = op.load(), Image()
    compute, struct.KernelDestroy = addresses([(kernels.compute,), (kernels.destroy,)])
    sentences = image.texts(kernels.sentences)
    struct.sentences = _placed(image) + sentences
    struct.states = _lasting(ctypes.c_int64 * len(kernels.states(*types)[1]))
    struct.KernelComputeV2 = compute  # last: so it is known to be whole


@cache
def state(op: Op, types: tuple[str, ...], number: int) -> int:
    """The address of the state of this number of an op, all that it needs compiled. Imports Numba."""
    (record, fields), image = op.load().states(*types), Image()
    image.put(record, fields[number])
    return _placed(image)


def prepare(operator: str, types: tuple[str, ...], number: int = 0) -> None:
    """Compile what a node of this ``operator`` needs, whose state has this number; nothing where there is a library."""
    if library.found() is not None:
        return
    op = next(op for op in OPS if op.name == NAMES[operator])
    addresses([*op.load().functions.values()])
    state(op, types, number)


def _placed(image: Image) -> int:
    """The address of the ``image`` in memory that is never freed, with its functions compiled."""
    at = _lasting(ctypes.c_char * len(image.data))
    found = addresses([*image.functions.values()])
    ctypes.memmove(at, bytes(image.data), len(image.data))
    words = [*zip(image.functions, found, strict=True), *((place, at + to) for place, to in image.places.items())]
    for place, address in words:
        ctypes.c_int64.from_address(at + place).value = address
    return at


def _lasting(kind: Any) -> int:
    """The address of a new object of ctypes, which is never freed: sessions may outlive Python."""
    made = kind()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return ctypes.addressof(made)


def _of_library(path: Path) -> list[Any]:
    """The ops of the library at ``path``, which is registered with one function that stands for all of ONNX Runtime's.

    A library that refuses calls it for the status alone; else for a domain, with each op, and with the domain.
    """
    seen = list[int]()

    def note(first: int, second: int) -> int:
        seen.append(second)
        return 0

    function, count = c_api.kind(2)(note), c_api.SHAPE_OF // 8 + 1
    table = (c_api.word * count)(*[_address(function)] * count)
    release = ctypes.create_string_buffer(b"1.0")
    asked = [c_api.kind(1)(lambda version: ctypes.addressof(table)), c_api.kind(0)(lambda: ctypes.addressof(release))]
    try:
        ctypes.CDLL(str(path)).RegisterCustomOps(c_api.word(0), (c_api.word * 2)(*map(_address, asked)))
    except OSError as error:
        raise GridSampleError(f"library {str(path)!r}", "file", f"not to be loaded: {error}", "a library") from error
    if len(seen) == 1:
        said = ctypes.string_at(seen[0]).decode()
        raise GridSampleError(f"library {str(path)!r}", "processor", said, "one that it is built for")
    ops = [_Op.from_address(place) for place in seen[1:-1]]
    _shared().library = _Library.from_address(ops[0].library)
    return ops


def _made_here() -> list[Any]:
    """The ops whose states are compiled when they are asked for."""
    _shared().library.makes = 1
    create, infer = map(_address, _callbacks[-2:])
    ops = []
    for op in OPS:
        for types in op.types:
            ops.append(_op(op.name, CreateKernelV2=create, **fields(types, op.variadic)))
            ops[-1].InferOutputShapeFn = infer if op.infers else 0
            _overloads[ctypes.addressof(ops[-1])] = op, types
    return ops


#: The ops, with the types of their inputs, by their addresses.
_overloads: dict[int, tuple[Op, tuple[str, ...]]] = {}


def _op(name: str, types: Sequence[int], **numbers: Any) -> Any:
    text = ctypes.create_string_buffer(name.encode())
    made = _Op(name=ctypes.addressof(text), library=ctypes.addressof(_shared().library), **_answers, **numbers)
    made.types[:] = types
    made.kept = text, _callbacks
    return made


def _answering(answer: Callable[..., int]) -> Any:
    """What answers of an op's address as ``answer`` does of its struct: once, as every session asks each op."""
    return c_api.kind(answer.__code__.co_argcount)(cache(lambda at, *index: answer(_Op.from_address(at), *index)))


def _address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


#: C's free; 0 where this process does not show it, as on Windows.
_free = 0
with suppress(TypeError, OSError, AttributeError):
    _free = _address(ctypes.CDLL(None).free)


def _create(at: int, table: int, info: int, out: int) -> int:
    """CreateKernelV2: the compiled one, as soon as it has the states that it asks for."""
    try:
        if at not in _overloads:  # the probe, of no kernel: to free none does nothing
            library = _shared().library
            library.api, library.shape_of, library.cpus = table, c_api.shape_of(table), available_cpus()
            return 0
        (op, types), struct = _overloads[at], _Op.from_address(at)
        if not struct.KernelComputeV2:
            _complete(struct, op, types)
        create = _called(op.load().create, 4)
        while 0 < (answer := create(at, table, info, out)) < MOST_STATES:
            word = ctypes.c_int64.from_address(struct.states + 8 * (answer - 1))
            word.value = state(op, types, answer - 1)
        return int(answer)
    except BaseException as error:  # which ctypes would drop
        return c_api.status(table, f"{type(error).__name__}: {error}")


def _infer(at: int, context: int) -> int:
    """InferOutputShapeFn: the compiled one."""
    try:
        return int(_called(_overloads[at][0].load().infer, 2)(at, context))
    except BaseException as error:  # the run says what is wrong with a shape
        logger.debug("no shape is inferred: %r", error)
        return 0


_callbacks = [_answering(answer) for answer in ANSWERS.values()]
_callbacks += [c_api.kind(4)(_create), c_api.kind(2)(_infer)]
_answers = dict(zip(ANSWERS, map(_address, _callbacks), strict=False))


def _called(function: Any, n_arguments: int) -> Any:
    (address,) = addresses([(function,)])
    return c_api.kind(n_arguments)(address)


def addresses(parts: Sequence[Any]) -> list[int]:
    """As :func:`ort_gridsample.core.compilation.addresses`, which imports Numba."""
    from ...core import compilation

    return compilation.addresses(parts)
