"""Register the compiled ops with ONNX Runtime, and compile a kernel when a session creates it.

ONNX Runtime calls :meth:`CompiledOps._add_requested_domains` through :mod:`.trampoline`. An
``OrtCustomOp`` is created for each op and each combination of input types, once per process. Its
functions are:

- ``CreateKernelV2`` is a Python callback, which calls a compiled function.
- ``InferOutputShapeFn`` is a Python callback until its first call, which compiles it.
- ``KernelComputeV2`` and ``KernelDestroy`` are compiled when a session creates the first kernel.
- The functions that describe the op are Python callbacks until
  :meth:`CompiledOps.compile_descriptions` replaces them by compiled functions.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import onnx
import onnxruntime

from ... import versions
from ...dialects.table import COMPILED_DOMAIN
from ...errors import GridSampleError, one_line
from ...functions.cores import logger, need_numba
from ...kernels import c_symbols, library_file
from ...kernels.structs import ctypes_type
from ...system.cpus import available_cpus
from ...system.process import after_fork, created_once, keep_forever
from ..signals import NeverRaising, with_signals_deferred
from . import c_api, trampoline
from .catalog import DOMAINS, Op, OpSelection, find_op
from .description_table import DESCRIPTION_FUNCTIONS
from .node_infos import NodeInfos
from .op_image import kernel_fields, schema_fields
from .record_image import RecordImage
from .structs import OP, OP_CONTEXT

#: Why a node with a tensor of strings has no compiled op.
NO_STRINGS = (
    "string tensors run on Python ops only, which need onnxruntime-extensions: install it, "
    "and import it before ort_gridsample"
)

#: The maximum size of a node's name in the error of a kernel that cannot be created.
_MAX_NAME_SIZE = 1 << 12

#: The functions of an OrtCustomOp that are Python callbacks, as they compile what they need.
_COMPILING_CALLBACKS = ("CreateKernelV2", "InferOutputShapeFn")

_OpStruct: Any = ctypes_type(OP)
_OpContext: Any = ctypes_type(OP_CONTEXT)


class CompiledOps:
    """The compiled ops of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._op_context = _OpContext()
        #: The address of an OrtCustomOp -> the op, and the types of its inputs.
        self._overloads: dict[int, tuple[Op, tuple[str, ...]]] = {}
        #: The inverse of ``_overloads``.
        self._op_addresses: dict[tuple[Op, tuple[str, ...]], int] = {}
        #: The name of a domain, and the ops that are selected from it -> the address of an
        #: OrtCustomOpDomain.
        self._domains: dict[tuple[str, OpSelection], int] = {}
        #: The nodes of states that are created without ONNX Runtime; None until there is one.
        self._node_infos: NodeInfos | None = None
        #: The domains that the current call of ``register`` adds.
        self._requested: Sequence[tuple[str, OpSelection]] = ()
        #: The path of the library that the registration needs; empty until it is created.
        self._path = ""
        #: Why that library cannot be created; empty if it can.
        self._failure = ""
        callbacks: dict[str, Any] = {}
        for name, function in DESCRIPTION_FUNCTIONS.items():
            callbacks[name] = _description_callback(function)
        self._descriptions = {name: callbacks[name] for name in DESCRIPTION_FUNCTIONS}
        self._has_compiled_descriptions = False
        callbacks["CreateKernelV2"] = c_api.callback(4, self._create_kernel, _kernel_failure)
        compile_state = c_api.callback(4, self._compile_state, _kernel_failure)
        self._op_context.compile_state = c_api.address_of_callback(compile_state)
        callbacks["InferOutputShapeFn"] = c_api.callback(2, self._infer_shape, _inference_failure)
        n_arguments = trampoline.ENTRY_POINTS[trampoline.ENTRY_POINT]
        self._entry_callback = c_api.callback(
            n_arguments, self._add_requested_domains, _entry_failure
        )
        self._addresses = {
            name: c_api.address_of_callback(callback) for name, callback in callbacks.items()
        }
        # A session may call these functions after Python has ended.
        keep_forever((callbacks, compile_state, self._entry_callback, self._op_context))
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the lock

    def register(
        self,
        options: onnxruntime.SessionOptions,
        domains: Sequence[str] = (COMPILED_DOMAIN,),
        selection: OpSelection = None,
    ) -> None:
        """Add the ops of ``domains`` to ``options``.

        Args:
            options: options that do not have these ops yet.
            domains: names of :data:`.catalog.DOMAINS`.
            selection: the ops to add. Each session makes schemas of all ops of its options, which
                takes 8 µs per op.

        Raises:
            ImportError: this system does not load the library that the registration needs.
        """
        requested = [(name, selection) for name in domains]
        with_signals_deferred(self._register_locked, options, requested)

    def _register_locked(
        self,
        options: onnxruntime.SessionOptions,
        requested: Sequence[tuple[str, OpSelection]],
    ) -> None:
        with self._lock:
            if not (self._path or self._failure):
                address = c_api.address_of_callback(self._entry_callback)
                try:
                    self._path = trampoline.load({trampoline.ENTRY_POINT: address})[1]
                except trampoline.NoTrampolineError as error:
                    self._failure = f"compiled ops cannot be registered: {error}"
            if self._failure:
                raise ImportError(self._failure)
            self._requested = requested
            options.register_custom_ops_library(self._path)

    def _add_requested_domains(self, options: int, base: int) -> int:
        """RegisterCustomOps, which ONNX Runtime calls during :meth:`_register_locked`."""
        api = c_api.get_api(base, c_api.VERSION)
        if not api:
            needed = versions.OLDEST["onnxruntime"]
            message = f"ort_gridsample needs onnxruntime {needed} or newer"
            return c_api.create_status(c_api.get_api(base, 1), message)
        status = 0
        for name, selection in self._requested:
            domain = self._domain(api, name, selection)
            status = status or c_api.call(api, "AddCustomOpDomain", options, domain)
        return status

    def domain(self, api: int, name: str) -> int:
        """Return the OrtCustomOpDomain of this ``name``, one of :data:`.catalog.DOMAINS`."""
        with self._lock:
            return self._domain(api, name, None)

    def _domain(self, api: int, name: str, selection: OpSelection) -> int:
        if not self._op_context.api:
            self._op_context.api = api
            self._op_context.get_shape_reference = c_api.shape_reference(api)
            self._op_context.cpus = available_cpus()
        key = name, selection
        if key not in self._domains:
            self._domains[key] = self._create_domain(api, name, selection)
        return self._domains[key]

    def compile_descriptions(self) -> None:
        """Replace the Python functions that describe the ops by compiled ones.

        ONNX Runtime calls them for all ops when it creates a session, which then takes half as
        long. This imports Numba.
        """
        from .descriptions import description_function

        function_specs = [(description_function, name) for name in DESCRIPTION_FUNCTIONS]
        compiled = dict(zip(DESCRIPTION_FUNCTIONS, addresses(function_specs), strict=True))
        with self._lock:
            self._has_compiled_descriptions = True
            self._addresses |= compiled
            for op_address in self._overloads:
                struct = _OpStruct.from_address(op_address)
                for name, address in compiled.items():
                    setattr(struct, name, address)

    def address(self, op: Op, types: tuple[str, ...]) -> int:
        """Return the OrtCustomOp of an op for inputs of these ``types``. Its domain must exist."""
        return self._op_addresses[op, types]

    def create_state(self, op: Op, types: tuple[str, ...], node: onnx.NodeProto) -> int:
        """Return the state that an op creates for a node that ONNX Runtime does not have.

        It is freed by KernelDestroy of the op: see :meth:`destroy_state`.

        Args:
            op: the op. Its domain must exist.
            types: the types of the node's inputs.
            node: the node, of which only the name and the attributes are read.

        Raises:
            RuntimeError: the op refuses the node.
        """
        if self._node_infos is None:
            self._node_infos = NodeInfos(self._op_context.api)
        return self._node_infos.create_state(self._create_kernel, self.address(op, types), node)

    def destroy_state(self, op: Op, types: tuple[str, ...], state: int) -> None:
        """Free a result of :meth:`create_state`, for the same op and types."""
        destroy = _OpStruct.from_address(self.address(op, types)).KernelDestroy
        c_api.function(destroy, 1)(state)

    def _create_domain(self, api: int, name: str, selection: OpSelection) -> int:
        """Create an OrtCustomOpDomain with its selected ops.

        They are never freed, as sessions refer to them. Domains of one name share their ops.
        """
        text = ctypes.create_string_buffer(name.encode())
        domain = c_api.get(api, "CreateCustomOpDomain", ctypes.addressof(text))
        overloads = [
            (op, types)
            for op in DOMAINS[name]
            for types in op.types
            if op.is_selected(types, selection)
        ]
        self._create_ops([overload for overload in overloads if overload not in self._op_addresses])
        for overload in overloads:
            address = self._op_addresses[overload]
            c_api.check(api, c_api.call(api, "CustomOpDomain_Add", domain, address))
        return domain

    def _create_ops(self, overloads: Sequence[tuple[Op, tuple[str, ...]]]) -> None:
        """Create the OrtCustomOps of ops for types of their inputs, without importing Numba."""
        image = RecordImage()
        rows = []
        for op, types in overloads:
            row = {
                **schema_fields(image, op, types),
                **self._addresses,
                "op_context": ctypes.addressof(self._op_context),
            }
            if not op.infers_shape:
                del row["InferOutputShapeFn"]
            rows.append(row)
        offset = image.add_records(OP, *rows)
        address = load_image(image) + offset
        for overload in overloads:
            if not self._has_compiled_descriptions:
                self._describe(_OpStruct.from_address(address))
            self._overloads[address] = overload
            self._op_addresses[overload] = address
            address += OP.itemsize

    def _describe(self, struct: Any) -> None:
        """Call the functions that describe an op, which keep their results.

        They cannot report a failure when a session calls them.

        Raises:
            MemoryError: one of them failed.
        """
        for name, function in DESCRIPTION_FUNCTIONS.items():
            arguments: list[tuple[int, ...]] = [()]
            if function.__code__.co_argcount > 1:
                count = struct.n_inputs if "Input" in name else struct.n_outputs
                arguments = [(index,) for index in range(count)]
            for indices in arguments:
                result = self._descriptions[name](ctypes.addressof(struct), *indices)
                if result != function(struct, *indices):
                    raise MemoryError("not enough memory to describe a compiled op")

    def _create_kernel(self, op_address: int, api: int, info: int, out: int) -> int:
        """CreateKernelV2: compile what the node needs, and call the compiled CreateKernelV2."""
        op, types = self._overloads[op_address]
        if "str" in types:
            return c_api.create_status(api, NO_STRINGS)
        struct = _OpStruct.from_address(op_address)
        if not struct.KernelComputeV2:
            _complete(struct, op, types)
        create = _compiled(op.load().create, 4)
        return int(create(op_address, api, info, out))

    def _compile_state(self, op_address: int, api: int, info: int, index: int) -> int:
        """Compile an initial state of an op, for a node whose kernel is created."""
        op, types = self._overloads[op_address]
        states = _OpStruct.from_address(op_address).states
        c_api.word.from_address(states + 8 * index).value = state_address(op, types, index)
        return 0

    def _infer_shape(self, op_address: int, context: int) -> int:
        """InferOutputShapeFn: call the compiled function of this name.

        ONNX Runtime calls it several times for each node of a session. Later calls for the op use
        the compiled function directly, because finding it takes 30 µs.
        """
        op, _ = self._overloads[op_address]
        (infer,) = addresses([(op.load().infer,)])
        _OpStruct.from_address(op_address).InferOutputShapeFn = infer
        return int(c_api.function(infer, 2)(op_address, context))


@created_once
def compiled_ops() -> CompiledOps:
    """Return the compiled ops of this process, which are created when they are first needed."""
    return CompiledOps()


def register(options: onnxruntime.SessionOptions, selection: OpSelection = None) -> None:
    """Add the compiled ops to ``options``, from the configured library or from this process.

    Args:
        options: options that do not have these ops yet.
        selection: the ops to add. A library adds all its ops.

    Raises:
        ImportError: see :meth:`CompiledOps.register`.
        GridSampleError: the configured library cannot be used.
    """
    path = library_file.configured_library()
    if path is None:
        compiled_ops().register(options, selection=selection)
        return
    library_file.validate(path)
    try:
        with_signals_deferred(options.register_custom_ops_library, str(path))
    except Exception as error:
        reason = one_line(error)
        where = f"library {str(path)!r}"
        found = f"refused: {reason}"
        raise GridSampleError(where, "file", found, "a library that loads") from error


@cache
def static_reason() -> str:
    """Return why compiled ops cannot be registered, without importing Numba; empty if unknown.

    Raises:
        GridSampleError: the configured library cannot be used.
    """
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return "this Python is not a 64-bit one"
    path = library_file.configured_library()
    if path is not None:
        library_file.validate(path)
    elif find_spec("numba") is None:
        reason = "Numba is not installed: pip install 'ort-gridsample[jit]'"
        return versions.missing_module_message("numba", reason)
    return ""


def unavailable_reason() -> str:
    """Return why sessions of this process have no compiled ops; empty if they have.

    Without a configured library, this imports Numba.

    Raises:
        GridSampleError: the configured library cannot be used.
    """
    return static_reason() or _registration_reason()


@cache
def _registration_reason() -> str:
    """Import Numba if it is needed, and register the ops once; return why that failed, or ""."""
    reason: str = with_signals_deferred(_try_registration)
    return reason


def _try_registration() -> str:
    """Import Numba if it is needed, and register the ops; return why that failed, or ""."""
    if library_file.configured_library() is None:
        reason = _numba_reason()
        if reason:
            return reason
    try:
        register(onnxruntime.SessionOptions())
    except GridSampleError:
        raise
    except ImportError as error:
        return str(error)
    except Exception as error:
        reason = one_line(error)
        return f"onnxruntime does not take compiled ops: {reason}"
    return ""


def _numba_reason() -> str:
    """Import Numba and the kernels; return why that failed, or ""."""
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


def prepare(operator: str, types: tuple[str, ...], index: int = 0) -> None:
    """Compile what a node needs, unless there is a configured library.

    For types without an op, nothing is compiled. The caller may combine types that no node has, if
    a function is called with several types.

    Args:
        operator: the node's operator, or :data:`~ort_gridsample.dialects.table.FUSED`.
        types: the types of its inputs.
    """
    op = find_op(operator, types)
    if op is not None and library_file.configured_library() is None:
        _prepare(op, types, index)


@cache
def _prepare(op: Op, types: tuple[str, ...], index: int) -> None:
    """Compile what a node of ``op`` with these types and this state needs."""
    image = _state_image(op, types, index)
    functions = op.load().functions
    # All together: each call compiles in two processes.
    addresses([*functions.values(), *image.functions.values(), _create_error_spec()])
    state_address(op, types, index)


@cache
def state_address(op: Op, types: tuple[str, ...], index: int) -> int:
    """Compile the functions of an initial state of ``op``, and return the state's address.

    This imports Numba.
    """
    return load_image(_state_image(op, types, index))


def _state_image(op: Op, types: tuple[str, ...], index: int) -> RecordImage:
    """Return the image of an initial state of ``op``."""
    image = RecordImage()
    record, all_fields = op.load().states(*types)
    image.add_records(record, all_fields[index])
    return image


def _complete(struct: Any, op: Op, types: tuple[str, ...]) -> None:
    """Fill in the fields of an OrtCustomOp that need Numba."""
    image = RecordImage()
    n_states = len(op.load().states(*types)[1])
    fields = kernel_fields(image, op, types, [0] * n_states)
    for name in _COMPILING_CALLBACKS:
        fields.pop(name, None)
    offset = image.add_records(OP, fields)
    specs = [*image.functions.values(), _create_error_spec()]  # together: see _prepare
    _OpContext.from_address(struct.op_context).create_error = addresses(specs)[-1]
    complete = _OpStruct.from_address(load_image(image) + offset)
    fields["KernelComputeV2"] = fields.pop("KernelComputeV2")  # last: it marks a complete struct
    for name in fields:
        setattr(struct, name, getattr(complete, name))


def _create_error_spec() -> tuple[Any]:
    """Return the function that writes the error messages of all ops. This imports Numba."""
    from .sentences import create_error

    return (create_error,)


def load_image(
    image: RecordImage,
    compile_functions: Callable[[Sequence[Any]], list[int]] | None = None,
) -> int:
    """Copy ``image`` to memory that is never freed, set its addresses, and return its own.

    Args:
        compile_functions: return the addresses of functions. None: :func:`addresses`. It is not
            called, and Numba is not imported, if the image has no functions.
    """
    function_specs = [*image.functions.values()]
    compiled = (compile_functions or addresses)(function_specs) if function_specs else []
    memory = (ctypes.c_char * len(image.data))()
    keep_forever(memory)
    address = ctypes.addressof(memory)
    copy_image(image, address, compiled)
    return address


def copy_image(image: RecordImage, address: int, compiled: Sequence[int]) -> None:
    """Copy ``image`` to memory at ``address``, and set its addresses.

    Args:
        address: the address of as many bytes as ``image.data`` has.
        compiled: the addresses of ``image.functions``.
    """
    ctypes.memmove(address, image.with_addresses(address, compiled), len(image.data))


def _description_callback(function: Callable[..., int]) -> Any:
    """Return a C function that calls ``function`` with the OrtCustomOp at an address.

    Results are cached, as every session calls these functions. ctypes calls the cache itself, which
    runs no Python code for a known result, and so cannot raise.
    """

    def describe(address: int, *index: int) -> int:
        return function(_OpStruct.from_address(address), *index)

    cached = cache(NeverRaising(describe, _description_failure))
    return c_api.function_type(function.__code__.co_argcount)(cached)


def _description_failure(error: BaseException, *_: int) -> int:
    logger.error("a compiled op is not described: %r", error)
    return 0


def _kernel_failure(error: BaseException, op_address: int, api: int, info: int, _: int) -> int:
    return c_api.create_status(api, f"{_node_of(api, info)}{type(error).__name__}: {error}")


def _node_of(api: int, info: int) -> str:
    """Return the node of an OrtKernelInfo for an error message; "" if its name is too long."""
    name = ctypes.create_string_buffer(_MAX_NAME_SIZE)
    size = c_api.word(_MAX_NAME_SIZE)
    arguments = (info, ctypes.addressof(name), ctypes.addressof(size))
    status = c_api.call(api, "KernelInfo_GetNodeName", *arguments)
    if status:
        c_api.call(api, "ReleaseStatus", status)
        return ""
    return f"node {name.value.decode(errors='replace')!r}: "


def _inference_failure(error: BaseException, *_: int) -> int:
    logger.debug("the shape of a compiled op is not inferred: %r", error)
    return 0  # a run reports wrong shapes


def _entry_failure(error: BaseException, options: int, base: int) -> int:
    return c_api.status_of(c_api.get_api(base, 1), error)


def _compiled(function: Any, n_arguments: int) -> Any:
    """Compile ``function``, and return it as a C function."""
    (address,) = addresses([(function,)])
    return c_api.function(address, n_arguments)


def addresses(function_specs: Sequence[Any]) -> list[int]:
    """Call :func:`ort_gridsample.kernels.compilation.addresses`. This imports Numba."""
    from ...kernels import compilation

    return compilation.addresses(function_specs)
