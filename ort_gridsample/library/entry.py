"""What only a library has: the function that registers its ops, for the processor that it finds, and their answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from ..custom_ops.compiled_ops.c_api import INVALID_ARGUMENT, SHAPE_OF, SHAPE_OF_SINCE, VERSION
from ..custom_ops.compiled_ops.catalog import ANSWERS
from ..custom_ops.compiled_ops.creation import span
from ..custom_ops.compiled_ops.requests import function
from ..custom_ops.compiled_ops.sentences import create_status
from ..custom_ops.compiled_ops.structs import ENTRY, LIBRARY, OP, VARIANT
from ..dialects.table import COMPILED_DOMAIN
from ..kernels import pointers, target
from ..kernels.pointers import array, call, chars, sizeof, struct

#: The levels of x86-64 processors, by the bits of their features: of leaf 1's ecx, of leaf 7's ebx and of leaf
#: 0x80000001's ecx; and of the registers that the system keeps. Source: the x86-64 psABI.
_LEVELS = (
    (2, 1 << 0 | 1 << 9 | 1 << 13 | 1 << 19 | 1 << 20 | 1 << 23, 0, 1 << 0, 0),
    (3, 1 << 12 | 1 << 22 | 1 << 27 | 1 << 28 | 1 << 29, 1 << 3 | 1 << 5 | 1 << 8, 1 << 5, 0x6),
    (4, 0, 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31, 0, 0xE6),
)
_WORD, _INT32 = ir.IntType(64), ir.IntType(32)
SHAPE_AT = SHAPE_OF // 8

#: atoi of C: the number that the letters at an address begin with.
_number: Any = types.ExternalFunction("atoi", types.int32(types.int64))

make_domain, add_op = function("CreateCustomOpDomain", 1), function("CustomOpDomain_Add")
add_domain, release_domain = function("AddCustomOpDomain"), function("ReleaseCustomOpDomain")


def _instruction(text: str, answers: str, count: int) -> Any:
    """An instruction that finds leaf and subleaf in ``ax`` and ``cx``; it answers with ``count`` registers."""

    @intrinsic
    def run(typing: Any, leaf: Any, subleaf: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            kind = ir.FunctionType(ir.LiteralStructType([_INT32] * count), [_INT32, _INT32])
            words = [builder.trunc(value, _INT32) for value in values]
            found = builder.asm(kind, text, f"{answers},{{ax}},{{cx}},~{{dirflag}},~{{fpsr}},~{{flags}}", words, True)
            registers = [builder.zext(builder.extract_value(found, i), _WORD) for i in range(count)]
            return context.make_tuple(builder, signature.return_type, registers)

        return types.Tuple([types.int64] * count)(types.int64, types.int64), generate

    return run


_cpuid = _instruction("cpuid", "={ax},={bx},={cx},={dx}", 4)
_xgetbv = _instruction("xgetbv", "={ax},={dx}", 2)


@register_jitable
def _x86_level() -> int:
    """The level of this x86-64 processor: 1, or one of those above."""
    most, extended = _cpuid(0, 0)[0], _cpuid(0x80000000, 0)[0]
    basic = _cpuid(1, 0)[2]
    more = _cpuid(7, 0)[1] if most >= 7 else 0
    others = _cpuid(0x80000001, 0)[2] if extended >= 0x80000001 else 0
    kept = _xgetbv(0, 0)[0] if basic & (1 << 27) else 0
    level = 1
    for number, ecx, ebx, other, registers in _LEVELS:
        if level == number - 1 and basic & ecx == ecx and more & ebx == ebx and others & other == other:
            level = number if kept & registers == registers else level
    return level


#: The level of this processor; 1 where there is but one.
level: Any = _x86_level if target.machine == "x86_64" else register_jitable(lambda: 1)

_affinity: Any = types.ExternalFunction("sched_getaffinity", types.int32(types.int64, types.int64, types.int64))
_bits: Any = types.ExternalFunction("__sched_cpucount", types.int32(types.int64, types.int64))
_configuration: Any = types.ExternalFunction("sysconf", types.int64(types.int32))
_processors: Any = types.ExternalFunction("GetActiveProcessorCount", types.int32(types.int64))
#: A process' list of processors, a bit each, and their number in macOS' configuration and of all of Windows' groups.
_MASK, _ONLINE, _ALL_GROUPS = np.dtype([("bits", np.int64, 128)]), 58, 0xFFFF


def _linux_cpus() -> int:
    mask = pointers.address(pointers.local(_MASK))
    return max(_bits(sizeof(_MASK), mask), 1) if _affinity(0, sizeof(_MASK), mask) == 0 else 1


_CPUS = {
    "linux": _linux_cpus,
    "darwin": lambda: max(_configuration(_ONLINE), 1),
    "win32": lambda: max(np.int64(_processors(_ALL_GROUPS)), 1),
}
#: The number of processors that this process may run on.
cpus: Any = register_jitable(_CPUS[target.system])


def register(options: int, base: int, entry_at: int) -> int:
    """RegisterCustomOps, given also where the library's ENTRY is."""
    entry = struct(entry_at, ENTRY)
    functions = array(base, (2,), np.int64)
    api = call(functions[0], (VERSION,))
    if api == 0:
        return create_status(call(functions[0], (1,)), (INVALID_ARGUMENT, entry.too_old))
    at, best, here = 0, 0, level()
    variants = array(entry.variants, (entry.count,), np.int64)
    for i in range(len(variants)):
        needed = struct(variants[i], VARIANT).level
        if best < needed <= here:
            at, best = variants[i], needed
    if at == 0:
        return create_status(api, (INVALID_ARGUMENT, entry.no_variant))
    while not pointers.compare_and_swap(entry, "lock", 0, 1):
        pointers.sched_yield()
    status = 0
    if entry.domain == 0:
        variant = struct(at, VARIANT)
        library = struct(variant.library, LIBRARY)
        library.api, library.cpus = api, cpus()
        version = call(functions[1], ())  # the address of such as "1.17.0"
        minor = _number(version + span(version, chars(".")) + 1)
        library.shape_of = array(api, (SHAPE_AT + 1,), np.int64)[SHAPE_AT] if minor > SHAPE_OF_SINCE else 0
        entry.api = api
        status, domain = make_domain(api, (chars(COMPILED_DOMAIN),))
        for i in range(variant.count):
            status = status or add_op(api, (domain, variant.ops + i * sizeof(OP)))
        if status != 0 and domain != 0:
            release_domain(api, (domain,))
        entry.domain = domain if status == 0 else 0
    elif entry.api != api:
        status = create_status(api, (INVALID_ARGUMENT, chars("another onnxruntime of this process has these ops")))
    status = status or add_domain(api, (options, entry.domain))
    pointers.store_shared(entry, "lock", 0)
    return status


def answer_for(name: str) -> Callable[..., int]:
    """What answers ONNX Runtime as the function of this name among :data:`.catalog.ANSWERS` does."""
    answer = register_jitable(ANSWERS[name])
    if ANSWERS[name].__code__.co_argcount == 1:
        return lambda op_at: answer(struct(op_at, OP))
    return lambda op_at, index: answer(struct(op_at, OP), index)
