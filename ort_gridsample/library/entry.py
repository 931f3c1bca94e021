"""The compiled functions that only a library has: those behind its exports.

They choose the variant of the ops for the processor that they run on.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from ..custom_ops.compiled_ops.api_functions import api_function, shape_reference
from ..custom_ops.compiled_ops.c_api import INVALID_ARGUMENT, VERSION
from ..custom_ops.compiled_ops.creation import strcspn
from ..custom_ops.compiled_ops.requests import Status
from ..custom_ops.compiled_ops.sentences import create_status
from ..custom_ops.compiled_ops.structs import ENTRY, FOREIGN_DOMAIN, OP, OP_CONTEXT, VARIANT
from ..custom_ops.provider.factory import open_api, provide_factory
from ..custom_ops.provider.structs import FACTORY
from ..dialects.table import COMPILED_DOMAIN
from ..kernels import pointers, target
from ..kernels.pointers import array_at, c_string, call, record_at, sizeof
from ..kernels.structs import Address, RecordRef

# --- The level of the processor ---

# Bits of registers after the instruction cpuid. Leaf 1, ecx:
_SSE3 = 1 << 0
_SSSE3 = 1 << 9
_CMPXCHG16B = 1 << 13
_SSE4_1 = 1 << 19
_SSE4_2 = 1 << 20
_POPCNT = 1 << 23
_FMA = 1 << 12
_MOVBE = 1 << 22
#: The operating system saves more registers than those of SSE, and xgetbv tells which.
_OSXSAVE = 1 << 27
_AVX = 1 << 28
_F16C = 1 << 29
# Leaf 7, ebx:
_BMI1 = 1 << 3
_AVX2 = 1 << 5
_BMI2 = 1 << 8
_AVX512F = 1 << 16
_AVX512DQ = 1 << 17
_AVX512CD = 1 << 28
_AVX512BW = 1 << 30
_AVX512VL = 1 << 31
# Leaf 0x80000001, ecx:
_LAHF = 1 << 0
_LZCNT = 1 << 5
# Bits of the result of xgetbv: the registers that the operating system saves.
_XMM = 1 << 1
_YMM = 1 << 2
#: The mask registers, the upper halves of ZMM0 to ZMM15, and ZMM16 to ZMM31.
_ZMM = 1 << 5 | 1 << 6 | 1 << 7


class _Level(NamedTuple):
    """A level of x86-64 processors, with the bits that a processor of the level has.

    Bits of a lower level are not repeated.
    """

    number: int
    leaf_1_ecx: int = 0
    leaf_7_ebx: int = 0
    extended_ecx: int = 0
    saved_registers: int = 0


#: The levels of x86-64 processors above 1. Source: the x86-64 psABI.
_LEVELS = (
    _Level(
        number=2,
        leaf_1_ecx=_SSE3 | _SSSE3 | _CMPXCHG16B | _SSE4_1 | _SSE4_2 | _POPCNT,
        extended_ecx=_LAHF,
    ),
    _Level(
        number=3,
        leaf_1_ecx=_FMA | _MOVBE | _OSXSAVE | _AVX | _F16C,
        leaf_7_ebx=_BMI1 | _AVX2 | _BMI2,
        extended_ecx=_LZCNT,
        saved_registers=_XMM | _YMM,
    ),
    _Level(
        number=4,
        leaf_7_ebx=_AVX512F | _AVX512DQ | _AVX512CD | _AVX512BW | _AVX512VL,
        saved_registers=_XMM | _YMM | _ZMM,
    ),
)

_INT64 = ir.IntType(64)
_INT32 = ir.IntType(32)


def _instruction(name: str, outputs: str, n_outputs: int) -> Any:
    """Return a function for compiled code that executes an instruction of x86-64.

    Args:
        outputs: the constraints for the registers that it writes.
        n_outputs: their number.

    Returns:
        A function of the leaf, in ``eax``, and the subleaf, in ``ecx``. It returns the registers.
    """

    @intrinsic
    def execute(typing_context: Any, leaf: Any, subleaf: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            result_type = ir.LiteralStructType([_INT32] * n_outputs)
            function_type = ir.FunctionType(result_type, [_INT32, _INT32])
            constraints = f"{outputs},{{ax}},{{cx}},~{{dirflag}},~{{fpsr}},~{{flags}}"
            registers_in = [builder.trunc(argument, _INT32) for argument in arguments]
            result = builder.asm(function_type, name, constraints, registers_in, True)
            registers = []
            for index in range(n_outputs):
                registers.append(builder.zext(builder.extract_value(result, index), _INT64))
            return context.make_tuple(builder, signature.return_type, registers)

        return types.Tuple([types.int64] * n_outputs)(types.int64, types.int64), generate

    return execute


_cpuid = _instruction("cpuid", "={ax},={bx},={cx},={dx}", 4)
_xgetbv = _instruction("xgetbv", "={ax},={dx}", 2)


@register_jitable
def _x86_level() -> int:
    """Return the level of this x86-64 processor: 1, or one of :data:`_LEVELS`."""
    max_leaf = _cpuid(0, 0)[0]
    max_extended_leaf = _cpuid(0x80000000, 0)[0]
    leaf_1_ecx = _cpuid(1, 0)[2]
    leaf_7_ebx = _cpuid(7, 0)[1] if max_leaf >= 7 else 0
    extended_ecx = _cpuid(0x80000001, 0)[2] if max_extended_leaf >= 0x80000001 else 0
    saved_registers = _xgetbv(0, 0)[0] if leaf_1_ecx & _OSXSAVE else 0
    level = 1
    for row in _LEVELS:
        has_features = (
            leaf_1_ecx & row.leaf_1_ecx == row.leaf_1_ecx
            and leaf_7_ebx & row.leaf_7_ebx == row.leaf_7_ebx
            and extended_ecx & row.extended_ecx == row.extended_ecx
            and saved_registers & row.saved_registers == row.saved_registers
        )
        if level == row.number - 1 and has_features:
            level = row.number
    return level


#: The level of this processor; 1 on machines with only one level.
processor_level: Any = _x86_level if target.processor == "x86_64" else register_jitable(lambda: 1)

# --- The number of processors ---

_sched_getaffinity: Any = types.ExternalFunction(
    "sched_getaffinity",
    types.int32(types.int64, types.int64, types.int64),
)
_sched_cpucount: Any = types.ExternalFunction(
    "__sched_cpucount",
    types.int32(types.int64, types.int64),
)
_sysconf: Any = types.ExternalFunction("sysconf", types.int64(types.int32))
_get_active_processor_count: Any = types.ExternalFunction(
    "GetActiveProcessorCount",
    types.int32(types.int64),
)

#: A bit per processor, for up to 8192: eight times Linux' cpu_set_t.
_CPU_SET = np.dtype([("bits", np.int64, 128)])
#: macOS' _SC_NPROCESSORS_ONLN.
_SC_NPROCESSORS_ONLN = 58
#: Windows' ALL_PROCESSOR_GROUPS.
_ALL_PROCESSOR_GROUPS = 0xFFFF


def _linux_cpus() -> int:
    mask = pointers.address_of(pointers.local_record(_CPU_SET))
    if _sched_getaffinity(0, sizeof(_CPU_SET), mask) != 0:
        return 1
    return max(_sched_cpucount(sizeof(_CPU_SET), mask), 1)


_CPUS = {
    "linux": _linux_cpus,
    "darwin": lambda: max(_sysconf(_SC_NPROCESSORS_ONLN), 1),
    "win32": lambda: max(np.int64(_get_active_processor_count(_ALL_PROCESSOR_GROUPS)), 1),
}
#: The number of processors that this process may use.
count_processors: Any = register_jitable(_CPUS[target.system])

# --- Staying loaded ---
#
# Sessions run the provider's kernels after ONNX Runtime has unloaded the library, so it must stay
# in memory. On Linux the linker marks it (``-z nodelete``).

_get_module_handle: Any = types.ExternalFunction(
    "GetModuleHandleExA",
    types.int32(types.int32, types.int64, types.int64),
)
_dladdr: Any = types.ExternalFunction("dladdr", types.int32(types.int64, types.int64))
_dlopen: Any = types.ExternalFunction("dlopen", types.int64(types.int64, types.int32))

#: Windows' GET_MODULE_HANDLE_EX_FLAG_PIN and GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS.
_PIN_BY_ADDRESS = 1 | 4
#: macOS' RTLD_LAZY and RTLD_NODELETE.
_LAZY_FOR_EVER = 0x1 | 0x80
#: Memory for a module's handle, or for a Dl_info, which begins with the path of the library.
_MODULE = np.dtype([("path", np.int64), ("more", np.int64, 3)])


def _keep_loaded_on_macos(address: Address) -> int:
    module = pointers.local_record(_MODULE)
    if _dladdr(address, pointers.address_of(module)) == 0:
        return 0
    return _dlopen(module.path, _LAZY_FOR_EVER)


def _keep_loaded_on_windows(address: Address) -> int:
    module = pointers.local_record(_MODULE)
    return _get_module_handle(_PIN_BY_ADDRESS, address, pointers.address_of(module))


_KEEP_LOADED = {
    "linux": lambda address: 0,
    "darwin": _keep_loaded_on_macos,
    "win32": _keep_loaded_on_windows,
}
#: Keep the library with an address in memory until the process ends.
keep_loaded: Any = register_jitable(_KEEP_LOADED[target.system])

# --- Registration ---

#: C's atoi: the number at the beginning of a text.
_atoi: Any = types.ExternalFunction("atoi", types.int32(types.int64))

create_domain = api_function("CreateCustomOpDomain", 1)
add_op = api_function("CustomOpDomain_Add")
add_domain = api_function("AddCustomOpDomain")
release_domain = api_function("ReleaseCustomOpDomain")


def register(options: int, base: int, entry_address: Address) -> Status:
    """RegisterCustomOps, with a third argument.

    Args:
        options: the OrtSessionOptions.
        base: the OrtApiBase.
        entry_address: the library's ENTRY.
    """
    entry = record_at(entry_address, ENTRY)
    base_functions = array_at(base, (2,), np.int64)
    api = call(base_functions[0], (VERSION,))
    if api == 0:
        message = entry.too_old_message
        return create_status(call(base_functions[0], (1,)), (INVALID_ARGUMENT, message))
    status, _ = _open_variant(entry, base, api)
    return status or add_domain(api, (options, entry.domain))


def create_ep_factories(
    base: int,
    factories: int,
    n_factories: int,
    entry_address: Address,
) -> Status:
    """CreateEpFactories, with other arguments.

    Args:
        base: the OrtApiBase.
        factories: the address of an array of OrtEpFactory*.
        n_factories: the address of the number of factories.
        entry_address: the library's ENTRY.
    """
    entry = record_at(entry_address, ENTRY)
    status, api = open_api(base, entry.too_old_for_provider_message)
    if status != 0:
        return status
    status, variant_address = _open_variant(entry, base, api)
    if status != 0:
        return status
    variant = record_at(variant_address, VARIANT)
    pointers.acquire_lock(entry)
    status = _create_foreign_domains(entry, variant, api)
    pointers.release_lock(entry)
    if status != 0:
        return status
    keep_loaded(entry_address)
    return provide_factory(variant.factory, api, factories, n_factories)


def find_functions(entry_address: Address) -> Address:
    """Return the address of the FUNCTIONS of the best variant; 0 if there is no variant.

    Args:
        entry_address: the library's ENTRY.
    """
    variant_address = _best_variant(record_at(entry_address, ENTRY))
    return 0 if variant_address == 0 else record_at(variant_address, VARIANT).functions


@register_jitable
def _create_foreign_domains(entry: RecordRef, variant: RecordRef, api: Address) -> Status:
    """Write the OrtCustomOpDomains of the execution provider to its FACTORY, once.

    Args:
        entry: the library's ENTRY.
        variant: a VARIANT.
        api: the OrtApi.
    """
    factory = record_at(variant.factory, FACTORY)
    domains = array_at(factory.domains, (factory.n_domains,), np.int64)
    foreign = array_at(variant.foreign, (variant.n_foreign,), FOREIGN_DOMAIN)
    domains[0] = entry.domain
    status = 0
    for index in range(variant.n_foreign):
        if status == 0 and domains[1 + index] == 0:
            source = foreign[index]
            status, domains[1 + index] = _new_domain(api, source.name, source.ops, source.n_ops)
    return status


@register_jitable
def _open_variant(entry: RecordRef, base: int, api: Address) -> tuple[Status, Address]:
    """Choose the variant for this processor, and create the domain of its ops.

    Args:
        entry: the library's ENTRY.
        base: the OrtApiBase.
        api: the OrtApi.

    Returns:
        An OrtStatus*, 0 for success, and the address of the VARIANT.
    """
    variant_address = _best_variant(entry)
    if variant_address == 0:
        return create_status(api, (INVALID_ARGUMENT, entry.no_variant_message)), 0
    pointers.acquire_lock(entry)
    status = 0
    if entry.domain == 0:
        get_version = array_at(base, (2,), np.int64)[1]
        version = call(get_version, ())  # the address of a text such as "1.17.0"
        status = _create_domain(entry, record_at(variant_address, VARIANT), api, version)
    elif entry.api != api:
        message = c_string("another onnxruntime of this process has these ops")
        status = create_status(api, (INVALID_ARGUMENT, message))
    pointers.release_lock(entry)
    return status, variant_address


@register_jitable
def _best_variant(entry: RecordRef) -> int:
    """Return the address of the VARIANT with the highest level that this processor has; or 0."""
    available_level = processor_level()
    variants = array_at(entry.variants, (entry.n_variants,), np.int64)
    best_address = 0
    best_level = 0
    for i in range(len(variants)):
        variant_level = record_at(variants[i], VARIANT).level
        if best_level < variant_level <= available_level:
            best_address = variants[i]
            best_level = variant_level
    return best_address


@register_jitable
def _create_domain(entry: RecordRef, variant: RecordRef, api: Address, version: int) -> Status:
    """Create the domain with the ops of ``variant``, and initialize their OP_CONTEXT.

    Args:
        entry: the library's ENTRY.
        variant: a VARIANT.
        api: the OrtApi.
        version: the address of onnxruntime's version.
    """
    op_context = record_at(variant.op_context, OP_CONTEXT)
    op_context.api = api
    op_context.cpus = count_processors()
    minor_version = _atoi(version + strcspn(version, c_string(".")) + 1)
    op_context.get_shape_reference = shape_reference(api, minor_version)
    entry.api = api
    name = c_string(COMPILED_DOMAIN)
    status, entry.domain = _new_domain(api, name, variant.ops, variant.n_ops)
    return status


@register_jitable
def _new_domain(api: Address, name: int, ops: int, n_ops: int) -> tuple[Status, Address]:
    """Return an OrtStatus* and a new OrtCustomOpDomain with the OPs at the address ``ops``."""
    status, domain = create_domain(api, (name,))
    for i in range(n_ops):
        status = status or add_op(api, (domain, ops + i * sizeof(OP)))
    if status != 0 and domain != 0:
        release_domain(api, (domain,))
    return status, domain if status == 0 else 0
