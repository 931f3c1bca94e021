"""Register the compiled ops with ONNX Runtime, and compile the kernel of a node when a session asks for it.

ONNX Runtime calls the functions below through :mod:`.trampoline`. An ``OrtCustomOp`` is made for each op and each
combination of input types, once per process. Its functions are Python until a session creates its first kernel; then
they are replaced by machine code.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import onnxruntime

from ... import versions
from ...dialects.table import COMPILED_DOMAIN
from ...errors import GridSampleError
from ...functions.cores import logger, need_numba
from ...kernels import c_symbols
from ...kernels.structs import ctypes_type
from ...reference.threads import after_fork, available_cpus
from ..signals import undisturbed
from . import c_api, library_file, trampoline
from .catalog import ANSWERS, DOMAINS, OPS, Op, fields
from .image import Image
from .structs import LIBRARY, OP

#: More states than any op has. ``Kernels.create`` returns smaller numbers for states, and an OrtStatus* is larger.
MAX_STATES = 1 << 12

#: Why a node with a tensor of strings has no compiled op.
NO_STRINGS = (
    "string tensors run on Python ops only, which need onnxruntime-extensions: install it, and import it before "
    "ort_gridsample"
)

_OpStruct: Any = ctypes_type(OP)
_LibraryStruct: Any = ctypes_type(LIBRARY)


class CompiledOps:
    """The compiled ops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._library = _LibraryStruct(makes=1)
        #: The address of an OrtCustomOp -> the op, and the types of its inputs.
        self._overloads: dict[int, tuple[Op, tuple[str, ...]]] = {}
        #: The name of a domain -> the address of its OrtCustomOpDomain.
        self._domains: dict[str, int] = {}
        self._requested: Sequence[str] = ()
        #: The path of the library that the registration needs, or why there is none; both empty: it was not made yet.
        self._path, self._failure = "", ""
        callbacks = {name: _answering(function) for name, function in ANSWERS.items()}
        callbacks["CreateKernelV2"] = c_api.kind(4)(self._create_kernel)
        callbacks["InferOutputShapeFn"] = c_api.kind(2)(self._infer_shape)
        self._register_custom_ops = c_api.kind(2)(self._register)
        self._addresses = {name: _address(callback) for name, callback in callbacks.items()}
        # A session may call them after Python has ended.
        _keep_forever((callbacks, self._register_custom_ops, self._library))
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the lock

    def register(self, options: onnxruntime.SessionOptions, domains: Sequence[str] = (COMPILED_DOMAIN,)) -> None:
        """Add the ops of ``domains``, of :data:`.catalog.DOMAINS`, to ``options``, which must not have them yet.

        Raises:
            ImportError: this system does not load the library that the registration needs.
        """
        undisturbed(self._register_undisturbed, options, domains)

    def _register_undisturbed(self, options: onnxruntime.SessionOptions, domains: Sequence[str]) -> None:
        with self._lock:
            if not (self._path or self._failure):
                try:
                    self._path = trampoline.load(_address(self._register_custom_ops))[1]
                except trampoline.NoTrampolineError as error:
                    self._failure = f"compiled ops cannot be registered: {error}"
            if self._failure:
                raise ImportError(self._failure)
            self._requested = domains
            options.register_custom_ops_library(self._path)

    def _register(self, options: int, base: int) -> int:
        """The function RegisterCustomOps, which ``register_custom_ops_library`` calls."""
        api = c_api.get_api(base, c_api.VERSION)
        if not api:
            needed = versions.OLDEST["onnxruntime"]
            return c_api.status(c_api.get_api(base, 1), f"ort_gridsample needs onnxruntime {needed} or newer")
        try:
            if not self._library.api:
                self._library.api = api
                self._library.shape_of = c_api.shape_of(api)
                self._library.cpus = available_cpus()
            status = 0
            for name in self._requested:
                if name not in self._domains:
                    self._domains[name] = self._create_domain(api, name)
                status = status or c_api.call(api, "AddCustomOpDomain", options, self._domains[name])
            return status
        except BaseException as error:  # ctypes would print an exception and go on
            return c_api.status(api, f"{type(error).__name__}: {error}")

    def _create_domain(self, api: int, name: str) -> int:
        """A new OrtCustomOpDomain with all ops of the domain. Neither is ever freed: sessions refer to them."""
        text = ctypes.create_string_buffer(name.encode())
        domain = c_api.word()
        _check(api, c_api.call(api, "CreateCustomOpDomain", ctypes.addressof(text), ctypes.addressof(domain)))
        for op in DOMAINS[name]:
            for types in op.types:
                _check(api, c_api.call(api, "CustomOpDomain_Add", domain.value, self._custom_op(op, types)))
        return domain.value

    def _custom_op(self, op: Op, types: tuple[str, ...]) -> int:
        """The address of the OrtCustomOp of an op for inputs of these ``types``."""
        name = ctypes.create_string_buffer(op.op_type.encode())
        struct = _OpStruct(name=ctypes.addressof(name), library=ctypes.addressof(self._library))
        for field, value in fields(op, types).items():
            if field == "types":
                struct.types[:] = value
            else:
                setattr(struct, field, value)
        for field, address in self._addresses.items():
            setattr(struct, field, address)
        if not op.infers:
            struct.InferOutputShapeFn = 0
        _keep_forever((struct, name))
        address = ctypes.addressof(struct)
        self._overloads[address] = op, types
        return address

    def _create_kernel(self, op_address: int, api: int, info: int, out: int) -> int:
        """CreateKernelV2: compile what the node needs, then call the compiled function of the same name."""
        try:
            op, types = self._overloads[op_address]
            if "str" in types:
                return c_api.status(api, NO_STRINGS)
            struct = _OpStruct.from_address(op_address)
            if not struct.KernelComputeV2:
                _complete(struct, op, types)
            create = _compiled(op.load().create, 4)
            result = create(op_address, api, info, out)
            while 0 < result < MAX_STATES:
                number = result - 1
                ctypes.c_int64.from_address(struct.states + 8 * number).value = state(op, types, number)
                result = create(op_address, api, info, out)
            return int(result)
        except BaseException as error:  # ctypes would print an exception and go on
            return c_api.status(api, f"{type(error).__name__}: {error}")

    def _infer_shape(self, op_address: int, context: int) -> int:
        """InferOutputShapeFn: call the compiled function."""
        try:
            op, _ = self._overloads[op_address]
            return int(_compiled(op.load().infer, 2)(op_address, context))
        except BaseException as error:  # a run reports what is wrong with a shape
            logger.debug("the shape of a compiled op is not inferred: %r", error)
            return 0


@cache
def compiled_ops() -> CompiledOps:
    """The compiled ops of this process, made when they are first needed."""
    return CompiledOps()


def register(options: onnxruntime.SessionOptions) -> None:
    """Add the compiled ops to ``options``: those of the configured library, or else those that are compiled here.

    Raises:
        ImportError: see :meth:`CompiledOps.register`.
        GridSampleError: the configured library cannot be used.
    """
    path = library_file.found()
    if path is None:
        compiled_ops().register(options)
        return
    library_file.checked(path)
    try:
        undisturbed(options.register_custom_ops_library, str(path))
    except Exception as error:
        reason = " ".join(str(error).split())
        raise GridSampleError(f"library {str(path)!r}", "file", f"refused: {reason}", "a library that loads") from error


@cache
def static_reason() -> str:
    """Why compiled ops cannot be registered, as far as that is known without importing Numba; empty if they can.

    Raises:
        GridSampleError: the configured library cannot be used.
    """
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return "this Python is not a 64-bit one"
    path = library_file.found()
    if path is not None:
        library_file.checked(path)
    elif find_spec("numba") is None:
        return versions.missing_module_message("numba", "Numba is not installed: pip install 'ort-gridsample[jit]'")
    return ""


def unavailable_reason() -> str:
    """Why sessions of this process have no compiled ops; empty if they have. Without a library it imports Numba.

    Raises:
        GridSampleError: the configured library cannot be used.
    """
    return undisturbed(lambda: static_reason() or _trial_reason())


@cache
def _trial_reason() -> str:
    """Import Numba, unless there is a library, and register the ops once; why that failed, or an empty text."""
    if library_file.found() is None and (reason := _numba_reason()):
        return reason
    try:
        register(onnxruntime.SessionOptions())
    except GridSampleError:
        raise
    except ImportError as error:
        return str(error)
    except Exception as error:
        return f"onnxruntime does not take compiled ops: {' '.join(str(error).split())}"
    return ""


def _numba_reason() -> str:
    try:
        need_numba()
        c_symbols.make_visible()
        from . import sampling  # noqa: F401
    except ModuleNotFoundError as error:
        reason = versions.missing_module_message(error.name or "", str(error))
        return f"Numba cannot be imported: {reason}"
    except Exception as error:  # Numba may refuse a newer NumPy with more than an ImportError
        return f"Numba cannot be imported: {error}"
    return ""


def prepare(operator: str, types: tuple[str, ...], number: int = 0) -> None:
    """Compile what a node of ``operator`` needs whose state has this ``number``; nothing where there is a library."""
    if library_file.found() is not None:
        return
    op = next(op for op in OPS if op.name == operator)
    addresses([*op.load().functions.values()])
    state(op, types, number)


@cache
def state(op: Op, types: tuple[str, ...], number: int) -> int:
    """The address of a state of an op: a record with the addresses of compiled functions. Imports Numba."""
    image = Image()
    record, all_fields = op.load().states(*types)
    image.put(record, all_fields[number])
    return _place(image)


def _complete(struct: Any, op: Op, types: tuple[str, ...]) -> None:
    """Fill in the fields of an OrtCustomOp that need Numba."""
    kernels = op.load()
    image = Image()
    sentences = image.texts(kernels.sentences)
    compute, destroy = addresses([(kernels.compute,), (kernels.destroy,)])
    struct.sentences = _place(image) + sentences
    n_states = len(kernels.states(*types)[1])
    struct.states = _keep_forever((c_api.word * n_states)())
    struct.KernelDestroy = destroy
    struct.KernelComputeV2 = compute  # last: it marks a complete struct


def _place(image: Image) -> int:
    """Copy ``image`` to memory that is never freed, with the addresses of its compiled functions; its address."""
    address = _keep_forever((ctypes.c_char * len(image.data))())
    ctypes.memmove(address, bytes(image.data), len(image.data))
    functions = dict(zip(image.functions, addresses([*image.functions.values()]), strict=True))
    places = {offset: address + place for offset, place in image.places.items()}
    for offset, value in {**functions, **places}.items():
        ctypes.c_int64.from_address(address + offset).value = value
    return address


def _keep_forever(kept: Any) -> int:
    """Never free ``kept``, as sessions may outlive Python. The address, if it is an object of ctypes."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return 0 if isinstance(kept, tuple) else ctypes.addressof(kept)


def _answering(function: Callable[..., int]) -> Any:
    """A C function that calls ``function`` with an OrtCustomOp. Results are cached: every session asks for them."""
    cached = cache(lambda address, *index: function(_OpStruct.from_address(address), *index))
    return c_api.kind(function.__code__.co_argcount)(cached)


def _compiled(function: Any, n_arguments: int) -> Any:
    (address,) = addresses([(function,)])
    return c_api.function(address, n_arguments)


def _check(api: int, status: int) -> None:
    """Raise RuntimeError with the message of an OrtStatus*."""
    if status:
        message = ctypes.string_at(c_api.call(api, "GetErrorMessage", status)).decode()
        c_api.call(api, "ReleaseStatus", status)
        raise RuntimeError(message)


def _address(callback: Any) -> int:
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


def addresses(parts: Sequence[Any]) -> list[int]:
    """As :func:`ort_gridsample.kernels.compilation.addresses`, which imports Numba."""
    from ...kernels import compilation

    return compilation.addresses(parts)
