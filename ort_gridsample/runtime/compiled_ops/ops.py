"""Registers the compiled ops with ONNX Runtime, and makes a node's kernel when a session asks for it.

onnxruntime-extensions' shared library takes ops of others, for the life of the process, and registers them wherever it
is registered itself, in its own domain. It gets all of them once, together, before any of that.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import product
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
from onnx import helper

from ... import spec
from ...core import need_numba
from ...errors import GridSampleError
from ...model import programs
from ...model.dialects import COMPILED, COMPILED_ATTENTION, EXTENSIONS_DOMAIN, FUSED, dialects
from ..extensions import load
from ..interrupts import undisturbed
from . import c_api
from .c_api import ELEMENT_TYPES, Api, OrtCustomOp
from .kernels import Kernel, affine_grid, deformable_attention, fused_grid_sample, grid_sample

logger = logging.getLogger("ort_gridsample")

_NAMES = {dialect.operator: dialect.op_type for dialect in dialects() if dialect.name == COMPILED}
_PROBE = "ort_gridsample_probe"

#: The attribute of the extensions' module, which holds the list of ops, under which ours are kept.
_MARK = "_ort_gridsample_compiled_ops"

#: The inputs of one op that differ in type, at most.
MOST_TYPES = 4

_TYPE_NAMES = {number: name for name, number in ELEMENT_TYPES.items()}

_lock = threading.Lock()


def _shared() -> SimpleNamespace:
    """The ops and ONNX Runtime's table of functions, kept for the process even where this module is imported anew."""
    extensions = sys.modules["onnxruntime_extensions._extensions_pydll"]
    return vars(extensions).setdefault(_MARK, SimpleNamespace(ops=None, api=None))


def add() -> str:
    """Let every later registration of onnxruntime-extensions register the ops; why it cannot, empty where it does."""
    return undisturbed(_alone, _add)


def know_api() -> None:
    """Find ONNX Runtime's table of functions, which the inference of shapes calls."""
    undisturbed(_alone, lambda: _add() or _probe())


def why_not() -> str:
    """Why sessions of this process have no compiled ops; empty where they have. Imports Numba."""
    return undisturbed(_alone, lambda: _add() or _numba() or _probe())


def _alone(ask: Callable[[], str]) -> str:
    with _lock:  # which Python 3.10 leaves taken where a signal's handler raises between two steps
        return ask()


@cache
def _add() -> str:
    reason = c_api.why_not()
    if reason:
        return reason
    if _libc is None:
        return "ctypes finds no malloc on this system"
    if find_spec("numba") is None:
        return "Numba is not installed: pip install 'ort-gridsample[jit]'"
    try:
        add_op = ctypes.CDLL(load().get_library_path()).AddExternalCustomOp
    except ImportError as error:
        return str(error)
    except (OSError, AttributeError):
        return "the installed onnxruntime-extensions takes no ops of others"
    add_op.restype, add_op.argtypes = ctypes.c_bool, [ctypes.c_void_p]
    shared = _shared()
    if shared.ops is None:
        shared.ops = _all_ops()
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
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("X", "Y")]
    node = helper.make_node(_PROBE, ["X"], ["Y"], domain=EXTENSIONS_DOMAIN)
    imports = [helper.make_opsetid("", 16), helper.make_opsetid(EXTENSIONS_DOMAIN, 1)]
    graph = helper.make_graph([node], "probe", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        undisturbed(options.register_custom_ops_library, load().get_library_path())
        undisturbed(
            onnxruntime.InferenceSession, model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        return f"onnxruntime does not take compiled ops: {' '.join(str(error).split())}"
    return "" if _shared().api is not None else "onnxruntime does not call compiled ops"


class _Op(ctypes.Structure):
    """The struct, and behind it the name and types that its functions, which get the op's address, answer with."""

    _fields_ = (("op", OrtCustomOp), ("name", ctypes.c_void_p), ("types", ctypes.c_int * MOST_TYPES))


def _at(op: int) -> _Op:
    return ctypes.cast(op, ctypes.POINTER(_Op)).contents


def _all_ops() -> list[_Op]:
    ops = [_op(_PROBE, ["float32"], c_api.CreateKernel(_create_probe))]
    # An AffineGrid's shape is in the values of its size, and no axis can be left without a number or a name.
    for operator, make, infer in (
        ("GridSample", grid_sample, c_api.InferShape(_infer)), ("AffineGrid", affine_grid, _NO_SHAPE),
    ):  # fmt: skip
        create = c_api.CreateKernel(_creates(make))
        for types in product(*spec.newest(operator).types.values()):
            if all(name in ELEMENT_TYPES for name in types):
                ops.append(_op(_NAMES[operator], types, create, infer))
    create = c_api.CreateKernel(_creates(fused_grid_sample))
    # A program reads its scalars, then its sources; an AffineGrid reads size, then theta.
    read = [(each, each) for each in programs.TYPES] + [
        ("int64", each) for each in spec.newest("AffineGrid").types["theta"]
    ]
    for X_type, (second, third) in product(spec.newest("GridSample").types["X"], read):
        if X_type in ELEMENT_TYPES and third in ELEMENT_TYPES:
            ops.append(_op(FUSED, [X_type, second, third], create, characteristic=_variadic))
    create = c_api.CreateKernel(_creates(deformable_attention))
    for value_type, locations_type in product(spec.FLOATS, spec.FLOATS):
        ops.append(_op(COMPILED_ATTENTION, [value_type, "int64", locations_type, value_type], create))
    return ops


def _c_library() -> Any:
    """C's library, with malloc and free; None where this process does not show them, as on Windows."""
    try:
        library = ctypes.CDLL(None)
        library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        return library if library.free else None
    except (TypeError, OSError, AttributeError):
        return None


_libc = _c_library()
_free = None if _libc is None else ctypes.cast(_libc.free, ctypes.c_void_p)

_get_name = c_api.Text(lambda op: _at(op).name)
_no_provider = c_api.Text(lambda op: None)
_get_type = c_api.NumberAt(lambda op, index: _at(op).types[index])
_get_output_type = c_api.NumberAt(lambda op, index: _at(op).types[0])
_NO_SHAPE = c_api.InferShape()
_zero = c_api.NumberAt(lambda op, index: 0)
_sizes = {size: c_api.Size(lambda op, size=size: size) for size in range(1, MOST_TYPES + 1)}
#: A fused op has one source or more, of one type: 2 says so.
_variadic = c_api.NumberAt(lambda op, index: 2 * (index == 2))
_one = c_api.Number(lambda op: 1)


def _op(name: str, types: Sequence[str], create: Any, infer: Any = _NO_SHAPE, characteristic: Any = _zero) -> _Op:
    text = ctypes.create_string_buffer(name.encode())
    made = _Op(name=ctypes.addressof(text))
    made.text = text
    made.types[: len(types)] = [ELEMENT_TYPES[each] for each in types]
    made.op = OrtCustomOp(
        version=c_api.VERSION,
        GetName=_get_name,
        GetExecutionProviderType=_no_provider,
        GetInputType=_get_type,
        GetInputTypeCount=_sizes[len(types)],
        GetOutputType=_get_output_type,
        GetOutputTypeCount=_sizes[1],
        KernelDestroy=_free,  # a kernel's state is one piece of memory
        GetInputCharacteristic=characteristic,
        GetVariadicInputMinArity=_one,
        GetVariadicInputHomogeneity=_one,
        GetOutputCharacteristic=_zero,
        GetInputMemoryType=_zero,
        CreateKernelV2=create,
        InferOutputShapeFn=infer,
    )
    return made


def _create_probe(op: int, table: int, info: int, out: Any) -> int | None:
    _shared().api = Api(table)
    out[0] = _libc.malloc(1)
    return None


def _creates(make: Callable[[Api, int, list[str]], Kernel]) -> Callable[[int, int, int, Any], int | None]:
    """CreateKernelV2 of ops whose kernels ``make`` makes. It answers an exception with a status: ctypes drops it."""

    def create(op: int, table: int, info: int, out: Any) -> int | None:
        api = Api(table)
        try:
            this = _at(op)
            kernel = make(api, info, [_TYPE_NAMES[number] for number in this.types if number])
            size = len(kernel.memory(0, api))
            at = _libc.malloc(size)
            if at is None:
                raise MemoryError(f"no room for a kernel of {size} bytes")
            ctypes.memmove(at, kernel.memory(at, api), size)
            this.op.KernelComputeV2 = kernel.compute
            out[0] = at
            return None
        except BaseException as error:
            named = str(error) if isinstance(error, GridSampleError) else f"{type(error).__name__}: {error}"
            return api.status(named)

    return create


def _infer(op: int, context: int) -> int | None:
    """InferOutputShapeFn of GridSample: Y is (N, C, D1_out, …, Dr_out). What is unknown is left open."""
    try:
        api = _shared().api
        if api is not None:
            # Not the types of ``op``: that is the first of all overloads.
            (element_type, X), (_, grid) = (api.input_type(context, index) for index in range(2))
            if len(X) > 2 and len(grid) == len(X):
                shape = [X[0] if isinstance(X[0], int) else grid[0], X[1], *grid[1:-1]]
                if None not in shape:
                    api.set_output_type(context, element_type, shape)
    except BaseException as error:  # the run says what is wrong with a shape
        logger.debug("no shape is inferred: %r", error)
    return None
