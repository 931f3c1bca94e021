"""Compile a kernel as a library has it. Print what is optimized: its name, and linkages inside."""

import llvmlite.binding as llvm
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock

from ort_gridsample.kernels.kernel_factories import pack_for
from ort_gridsample.library.emission import _NEVER_CALLED, Compiler

optimize = CPUCodeLibrary._optimize_final_module


def print_and_optimize(library: CPUCodeLibrary) -> None:
    linkages = {
        function.linkage.name
        for function in library._final_module.functions
        if not function.is_declaration and not _NEVER_CALLED.match(function.name)
    }
    print(library.name, *sorted(linkages))
    optimize(library)


CPUCodeLibrary._optimize_final_module = print_and_optimize
triple = llvm.get_process_triple()
function = Compiler(triple, llvm.get_host_cpu_name()).compile((pack_for, "float32", "float32"))
with global_compiler_lock:
    function.library.make_object(function.name, "pack", triple)
