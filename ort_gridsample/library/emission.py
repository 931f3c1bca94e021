"""Compile functions to object files for any machine.

This is the program of the processes that build libraries. Numba optimizes for the processor of its
own process. Here its target is replaced before anything is compiled. Each function, with all that
it calls, becomes an object file with one visible symbol.

Numba takes 70 % of the time. What it returns depends on the processor, but not on the system.
Therefore the same result is optimized and written for each system that libraries are built for.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite.binding import Linkage
from numba import types
from numba.core import codegen
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from ..custom_ops.compiled_ops.catalog import (
    FOREIGN_DOMAINS,
    OPS,
    Fields,
    Op,
)
from ..custom_ops.compiled_ops.description_table import DESCRIPTION_FUNCTIONS
from ..custom_ops.compiled_ops.descriptions import description_function
from ..custom_ops.compiled_ops.op_image import kernel_fields, schema_fields
from ..custom_ops.compiled_ops.record_image import RecordImage, Relocation
from ..custom_ops.compiled_ops.sentences import create_error
from ..custom_ops.compiled_ops.structs import ENTRY, FOREIGN_DOMAIN, OP, OP_CONTEXT, VARIANT
from ..custom_ops.provider.definitions import Overload
from ..custom_ops.provider.factory_image import add_factory
from ..dialects.table import ATTENTION
from ..kernels import core_compiler
from ..kernels.code_library import LinkedLibrary
from ..kernels.compilation import OPTIONS, FunctionSpec
from ..kernels.library_kernels import EXPORT, kernel_name
from ..kernels.structs import FUNCTIONS, KERNEL, NAMED_KERNEL, layout_number
from ..kernels.tap_plans import COMPILED_MODES
from .entry import create_ep_factories, find_functions, register

#: Functions that Numba calls to raise or count an exception, which no function here does. The
#: helper of ``reshape`` is none of them: a library does not contain it, so linking a call of it
#: must fail.
_NEVER_CALLED = re.compile(r"(?!numba_attempt_nocopy_reshape)(NRT|numba|Py|_Py)_\w+")

_ENTRY_SYMBOL = "ort_gridsample_entry"


# --- Numba's code generator for another machine ---


class _Library(LinkedLibrary, codegen.AOTCodeLibrary):
    """Numba's code library for object code that this process does not run.

    Functions are optimized as those that run in this process: the same code, in the same modules.
    LLVM inlines more into a function that is internal. With that, or with another pass over
    optimized code, kernels took up to 1.24 times the time, because more values were spilled.

    Attributes:
        symbol: the only symbol that remains visible; empty if all do.
    """

    symbol = ""

    def get_pointer_to_function(self, name: str) -> int:
        """Return a dummy: this process never calls a function of another machine."""
        return 1

    def make_object(self, function: str, symbol: str, triple: str) -> bytes:
        """Return the object file of a ``function``, which becomes the ``symbol``.

        This can be called once, because the code is optimized for the machine ``triple``.
        """
        self._codegen.set_machine(triple)
        for value in self._final_module.functions:
            if not value.is_declaration and value.linkage == Linkage.external:
                value.linkage = "linkonce_odr"  # removed if all of its calls are inlined
        entry = self._final_module.get_function(function)
        entry.name = symbol
        entry.linkage = "external"
        entry.visibility = "hidden"
        self.symbol = symbol
        return bytes(self.emit_native_object())

    def _optimize_final_module(self) -> None:
        if not self.symbol:  # Numba's own code, such as that of reference counts
            super()._optimize_final_module()
            return
        module = self._final_module
        module.triple = self._codegen.triple
        module.data_layout = self._codegen.layout
        self._define_missing()
        _make_internal(module.global_variables)
        super()._optimize_final_module()
        _make_internal(value for value in module.functions if value.name != self.symbol)

    def _define_missing(self) -> None:
        """Define functions that the linker would not find.

        They are those of Numba and Python that are never called and, for Windows, ``sched_yield``.
        """
        module = self._final_module
        declarations = [function for function in module.functions if function.is_declaration]
        for function in declarations:
            name = function.name
            if _NEVER_CALLED.match(name):
                body = "unreachable"
            elif name == "sched_yield" and "windows" in module.triple:
                body = "ret i32 0"
            else:
                continue
            declaration = re.sub(r" #\d+", "", str(function)).strip()
            definition = declaration.replace("declare", "define", 1)
            assembly = f"{definition} {{ {body} }}"
            module.link_in(_parse(assembly, module.triple, module.data_layout))
            module.get_function(name).linkage = "internal"


def _make_internal(values: Iterable[Any]) -> None:
    """Make the definitions among ``values``, functions or variables, internal to their module."""
    for value in values:
        if not value.is_declaration:
            value.linkage = "internal"


def _target_machine(triple: str, cpu: str) -> Any:
    """Return LLVM's target machine for the processor ``cpu`` of the machine ``triple``."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for cpuid and xgetbv in a library for x86-64
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, opt=3, reloc="pic", codemodel="small"
    )


def _parse(assembly: str, triple: str, layout: str) -> Any:
    """Return the module of LLVM assembly for the machine ``triple`` with this data layout."""
    header = f'target triple = "{triple}"\ntarget datalayout = "{layout}"\n'
    return llvm.parse_assembly(header + assembly)


class _Codegen(codegen.AOTCPUCodegen):
    """Numba's code generator for the processor ``cpu`` of the machine ``triple``."""

    _library_class = _Library
    # Numba runs two passes of optimization. These are its options for the first one.
    _loopvect = False
    _opt_level = 0

    def __init__(self, triple: str, cpu: str) -> None:
        self.triple = triple
        super().__init__("library", cpu)

    def _init(self, llvm_module: Any) -> None:
        self._tm_features = ""
        self.set_machine(self.triple)

    def set_machine(self, triple: str) -> None:
        """Optimize and write what follows for another machine with the same processor."""
        self.triple = triple
        self._tm = _target_machine(triple, self._cpu_name)
        self._target_data = self._tm.target_data
        self._data_layout = str(self._target_data)

    @property
    def layout(self) -> str:
        """The data layout of the machine."""
        return self._data_layout

    def _create_empty_module(self, name: str) -> Any:
        module = super()._create_empty_module(name)
        module.triple = self.triple
        return module

    def set_env(self, env_name: str, env: Any) -> None:
        pass


# --- Object files ---


def function_symbol(function_spec: FunctionSpec, level: int) -> str:
    """Return the symbol of a function, which no other function has.

    Args:
        function_spec: the function. A spec that begins with a string is a symbol itself.
        level: the level of the processor that the function is compiled for.
    """
    factory, *type_names = function_spec
    if isinstance(factory, str):
        return factory
    # Names contain no dots, so different words give different symbols.
    return ".".join([factory.__module__, factory.__name__, *type_names, f"v{level}"])


class CompiledFunction(NamedTuple):
    """A function as Numba compiled it, with all that it calls, before LLVM optimizes it."""

    library: _Library
    #: The name of the function in the library.
    name: str


class Compiler:
    """Compile functions for the processor ``cpu`` of the machine ``triple``.

    An instance replaces the target of all that Numba compiles in this process.
    """

    def __init__(self, triple: str, cpu: str) -> None:
        self._triple = triple
        self._codegen = _Codegen(triple, cpu)
        cpu_target.target_context._internal_codegen = self._codegen

    def compile(self, function_spec: FunctionSpec) -> CompiledFunction:
        """Compile a function."""
        factory, *type_names = function_spec
        function: Callable[..., int] = factory(*type_names) if type_names else factory
        arguments = tuple([types.int64] * function.__code__.co_argcount)
        with global_compiler_lock:
            self._codegen.set_machine(self._triple)  # the last function was written for another one
            c_function = CFunc(function, (arguments, types.int64), {}, OPTIONS)
            compiled = c_function._compile_uncached()
        return CompiledFunction(compiled.library, compiled.fndesc.llvm_cfunc_wrapper_name)


class Emitter:
    """Write object files for the processor ``cpu`` of the machine ``triple``.

    The names of functions contain the ``level`` of the processor.
    """

    def __init__(self, triple: str, cpu: str, level: int) -> None:
        self._target_machine = _target_machine(triple, cpu)
        self._layout = str(self._target_machine.target_data)
        self._triple = triple
        self._level = level

    def symbol(self, function_spec: FunctionSpec) -> str:
        """Return the symbol of a function, as :func:`function_symbol`."""
        return function_symbol(function_spec, self._level)

    def write_function(self, function: CompiledFunction, symbol: str, folder: Path) -> None:
        """Write the object file of a function. No other emitter can write this function then."""
        with global_compiler_lock:
            content = function.library.make_object(function.name, symbol, self._triple)
        (folder / f"{symbol}.o").write_bytes(content)

    def compile_data(self, symbol: str, image: RecordImage, definitions: str = "") -> bytes:
        """Return the object file of an image.

        Args:
            definitions: LLVM assembly to compile with it.
        """
        words = [str(word) for word in np.frombuffer(image.data, "<i8")]
        functions = {
            offset: self.symbol(function_spec) for offset, function_spec in image.functions.items()
        }
        for offset, function in functions.items():
            words[offset // 8] = f"ptrtoint (ptr @{function} to i64)"
        for offset, place in image.relocations.items():
            pointer = f"ptr getelementptr (i8, ptr @{symbol}, i64 {int(place)})"
            words[offset // 8] = f"ptrtoint ({pointer} to i64)"
        declared = dict.fromkeys(functions.values())
        lines = [f"declare hidden i64 @{function}()" for function in declared]
        word_types = ", ".join(["i64"] * len(words))
        values = ", ".join(f"i64 {word}" for word in words)
        lines.append(f"@{symbol} = hidden global <{{{word_types}}}> <{{{values}}}>, align 64")
        lines.append(definitions)
        return self._emit("\n".join(lines))

    def compile_entry(self, variants: Sequence[str], messages: Sequence[str]) -> bytes:
        """Return the object file of the functions that a library exports.

        Args:
            messages: the error messages of ENTRY: no variant, and onnxruntime is too old for the
                ops, or for the execution provider.
        """
        image = RecordImage()
        entry = image.add_records(ENTRY, {})
        no_variant, too_old, too_old_for_provider = messages
        fields = {
            "n_variants": len(variants),
            "variants": image.add_pointers([(symbol,) for symbol in variants]),
            "no_variant_message": image.add_text(no_variant.encode()),
            "too_old_message": image.add_text(too_old.encode()),
            "too_old_for_provider_message": image.add_text(too_old_for_provider.encode()),
        }
        image.set_fields(entry, ENTRY, fields)
        register_symbol = self.symbol((register,))
        create_symbol = self.symbol((create_ep_factories,))
        find_symbol = self.symbol((find_functions,))
        export = "dllexport " if "windows" in self._triple else ""
        definitions = (
            f"declare hidden i64 @{register_symbol}(i64, i64, i64)\n"
            f"define {export}i64 @RegisterCustomOps(i64 %options, i64 %base) {{\n"
            f"%entry = ptrtoint ptr @{_ENTRY_SYMBOL} to i64\n"
            f"%status = call i64 @{register_symbol}(i64 %options, i64 %base, i64 %entry)\n"
            "ret i64 %status\n}\n"
            f"declare hidden i64 @{create_symbol}(i64, i64, i64, i64)\n"
            f"define {export}i64 @CreateEpFactories(i64 %name, i64 %base, i64 %logger, "
            "i64 %factories, i64 %max, i64 %count) {\n"
            f"%entry = ptrtoint ptr @{_ENTRY_SYMBOL} to i64\n"
            f"%status = call i64 @{create_symbol}(i64 %base, i64 %factories, i64 %count, "
            "i64 %entry)\n"
            "ret i64 %status\n}\n"
            f"declare hidden i64 @{find_symbol}(i64)\n"
            f"define {export}i64 @{EXPORT}() {{\n"
            f"%entry = ptrtoint ptr @{_ENTRY_SYMBOL} to i64\n"
            f"%functions = call i64 @{find_symbol}(i64 %entry)\n"
            "ret i64 %functions\n}\n"
            # The factory is data of the library.
            f"define {export}i64 @ReleaseEpFactory(i64 %factory) {{\nret i64 0\n}}"
        )
        return self.compile_data(_ENTRY_SYMBOL, image, definitions)

    def _emit(self, assembly: str) -> bytes:
        """Return the object file of LLVM assembly."""
        module = _parse(assembly, self._triple, self._layout)
        module.verify()
        return bytes(self._target_machine.emit_object(module))


def write_for_systems(
    function: CompiledFunction, symbol: str, emitters: Mapping[Path, Emitter]
) -> None:
    """Write the object files of a function, to the folder of each emitter.

    LLVM changes a function's code when it optimizes it, and optimizes a copy in another way. So
    child processes write the files, but for the last one.

    Raises:
        RuntimeError: a child process failed.
    """
    *others, (last_folder, last_emitter) = emitters.items()
    for folder, emitter in others:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                emitter.write_function(function, symbol, folder)
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            raise RuntimeError(f"{symbol} was not compiled")
    last_emitter.write_function(function, symbol, last_folder)


# --- The data of a library ---


def variant_image(
    needed: Mapping[str, Sequence[str]] | None,
    level: int,
    release: str,
) -> RecordImage:
    """Return the image of a library's ops for one level of processors. It begins with its VARIANT.

    Args:
        needed: the types and modes that the library has, as in :meth:`.Op.needs_state`; None: all.
    """
    image = RecordImage()
    variant = image.add_records(VARIANT, {})
    op_context = image.add_records(OP_CONTEXT, {"create_error": (create_error,)})
    rows, indices = _op_rows(image, OPS, needed, op_context)
    ops = image.add_records(OP, *rows)

    def op_address(overload: Overload) -> Relocation | None:
        index = indices.get((overload.op, overload.types))
        return None if index is None else Relocation(ops + index * OP.itemsize)

    domains = _add_foreign_domains(image, needed, op_context)
    functions = _add_functions(image, needed)
    fields = {
        "level": level,
        "ops": ops,
        "n_ops": len(rows),
        "op_context": op_context,
        "factory": add_factory(image, release, op_address, [0] * (1 + len(domains))),
        "foreign": image.add_records(FOREIGN_DOMAIN, *domains),
        "n_foreign": len(domains),
        "functions": functions,
    }
    image.set_fields(variant, VARIANT, fields)
    return image


def _op_rows(
    image: RecordImage,
    ops: Sequence[Op],
    needed: Mapping[str, Sequence[str]] | None,
    op_context: Relocation,
    *,
    keeps_ops_without_states: bool = True,
) -> tuple[list[Fields], dict[tuple[Op, tuple[str, ...]], int]]:
    """Append what the OPs of ``ops`` refer to.

    Args:
        needed: the types and modes that the library has; None: all.
        op_context: the offset of the OP_CONTEXT.
        keeps_ops_without_states: whether ops without any state are included. They fail with an
            error message.

    Returns:
        The fields of the OPs, and the indices of those that have a state.
    """
    descriptions = {name: (description_function, name) for name in DESCRIPTION_FUNCTIONS}
    rows: list[Fields] = []
    indices = {}
    for op in ops:
        if not keeps_ops_without_states and not any(
            _has_states(op, op_types, needed) for op_types in op.types
        ):
            continue
        for op_types in op.types:
            if _has_states(op, op_types, needed):
                indices[op, op_types] = len(rows)
            elif not keeps_ops_without_states:
                continue
            states = _add_states(image, op, op_types, needed)
            row = {
                **schema_fields(image, op, op_types),
                **descriptions,
                **kernel_fields(image, op, op_types, states),
                "op_context": op_context,
            }
            rows.append(row)
    return rows, indices


def _add_foreign_domains(
    image: RecordImage,
    needed: Mapping[str, Sequence[str]] | None,
    op_context: Relocation,
) -> list[Fields]:
    """Append the ops of other packages' domains; return the fields of the FOREIGN_DOMAINs."""
    domains: list[Fields] = []
    for name, ops in FOREIGN_DOMAINS.items():
        rows, _ = _op_rows(image, ops, needed, op_context, keeps_ops_without_states=False)
        if rows:
            fields = {
                "name": image.add_text(name.encode()),
                "ops": image.add_records(OP, *rows),
                "n_ops": len(rows),
            }
            domains.append(fields)
    return domains


def _add_functions(image: RecordImage, needed: Mapping[str, Sequence[str]] | None) -> Relocation:
    """Append the kernels of GridSample and deformable attention for the functions of the package.

    Return the offset of their FUNCTIONS.
    """
    rows: list[Fields] = []
    for op in OPS:
        if op.name not in ("GridSample", ATTENTION):
            continue
        for op_types in op.types:
            types_by_input = dict(zip(op.inputs, op_types, strict=True))
            for index, fields in enumerate(op.load().states(*op_types)[1]):
                if not op.needs_state(op_types, index, needed):
                    continue
                if op.name == ATTENTION:
                    words = [types_by_input["value"], types_by_input["sampling_locations"]]
                else:
                    words = [*op_types, COMPILED_MODES[index]]
                name = image.add_text(kernel_name(op.name, *words).encode())
                rows.append({"name": name, "kernel": image.add_records(KERNEL, fields["kernel"])})
    fields = {
        "layout": layout_number(),
        "position_work": core_compiler.POSITION_WORK,
        "n_kernels": len(rows),
        "kernels": image.add_records(NAMED_KERNEL, *rows),
        **core_compiler.HELPER_FUNCTIONS,
    }
    return image.add_records(FUNCTIONS, fields)


def _has_states(
    op: Op,
    op_types: Sequence[str],
    needed: Mapping[str, Sequence[str]] | None,
) -> bool:
    """Whether a library has a state of ``op`` for these types."""
    n_states = len(COMPILED_MODES) if op.has_modes else 1
    return any(op.needs_state(op_types, index, needed) for index in range(n_states))


def _add_states(
    image: RecordImage,
    op: Op,
    op_types: Sequence[str],
    needed: Mapping[str, Sequence[str]] | None,
) -> list[Relocation | int]:
    """Append the needed initial states of ``op``; return their offsets, 0 for the others."""
    record, states = op.load().states(*op_types)
    offsets: list[Relocation | int] = []
    for index, fields in enumerate(states):
        is_needed = op.needs_state(op_types, index, needed)
        offsets.append(image.add_records(record, fields) if is_needed else 0)
    return offsets


def main(json_task: str) -> None:
    """Write object files to a folder.

    Args:
        json_task: the fields of :class:`.builder.Task`, as JSON.
    """
    task = json.loads(json_task)
    compiler = Compiler(task["triple"], task["cpu"])
    emitters = {
        Path(folder): Emitter(triple, task["cpu"], task["level"])
        for triple, folder in task["folders"].items()
    }
    if task["variants"]:
        function_specs: Sequence[FunctionSpec] = [
            (register,),
            (create_ep_factories,),
            (find_functions,),
        ]
        for folder, emitter in emitters.items():
            entry = emitter.compile_entry(task["variants"], task["messages"])
            (folder / "entry.o").write_bytes(entry)
    else:
        image = variant_image(task["needed"], task["level"], task["release"])
        all_specs = [*dict.fromkeys(image.functions.values())]
        function_specs = all_specs[task["share"] :: task["shares"]]
        if task["share"] == 0:
            symbol = f"ort_gridsample_v{task['level']}"
            for folder, emitter in emitters.items():
                (folder / f"{symbol}.o").write_bytes(emitter.compile_data(symbol, image))
    for function_spec in function_specs:
        function = compiler.compile(function_spec)
        write_for_systems(function, function_symbol(function_spec, task["level"]), emitters)
