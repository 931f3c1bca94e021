"""Numba's code generation, without machine code for functions that only other functions call.

Numba optimizes each function that compiled code calls, and generates machine code for it, although
callers contain a copy of the function. For a kernel with its 20 to 100 functions, this takes a
quarter of the compilation. In the context :func:`linking_lazily`, functions are only linked into
the kernel, which is then optimized as a whole.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite.binding import Linkage
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

#: The threshold of Python's garbage collector while a kernel is compiled. With the default of 700,
#: compilation takes up to a sixth longer: Numba creates many objects, and few cycles.
_GC_THRESHOLD = 50_000


class LinkedLibrary(CPUCodeLibrary):
    """The code of a function, which is optimized together with that of the functions it calls."""

    _shared_module: Any

    def add_linking_library(self, library: Any) -> None:
        """Link the code of another library when this one is optimized."""
        if isinstance(library, LinkedLibrary):
            self._linking_libraries.append(library)
        else:
            super().add_linking_library(library)

    def add_llvm_module(self, ll_module: Any) -> None:
        """Add code. It is optimized together with the code of the other functions."""
        ll_module.data_layout = self._codegen._data_layout
        self._final_module.link_in(ll_module)

    def _get_module_for_linking(self) -> Any:
        """Return the code of this function and of the functions that it calls."""
        if self._finalized:
            return super()._get_module_for_linking()
        if self._shared_module is None:
            module = self._final_module.clone()
            for function in module.functions:
                if not function.is_declaration and function.linkage == Linkage.external:
                    function.linkage = "linkonce_odr"  # callers may contain several copies
            for library in dict.fromkeys(self._linking_libraries):
                # Functions that Numba calls when it loads the code; older releases have none.
                if hasattr(self, "_reload_init"):
                    self._reload_init.update(library._reload_init)
                module.link_in(library._get_module_for_linking(), preserve=True)
            self._shared_module = module
        return self._shared_module


class LazyLibrary(LinkedLibrary, JITCodeLibrary):
    """The code of a function, which becomes machine code when its address is needed.

    Numba keeps the libraries of its own functions for later compilations, also of other packages.
    These get machine code then.
    """

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        #: The environments that Numba sets for functions without machine code, by name.
        self._environments: dict[str, Any] = {}

    @property
    def codegen(self) -> _CodegenOfLibrary:
        """The code generator of this library."""
        return _CodegenOfLibrary(self._codegen, None if self._finalized else self._environments)

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function; 0 if the library does not define the function."""
        if not self._finalized and not self._defines(name):
            return 0
        return int(super().get_pointer_to_function(name))

    def finalize(self) -> None:
        """Generate machine code for this function, with the functions that it calls."""
        super().finalize()
        engine = self._codegen._engine
        for library in self._linked_libraries():
            for name, environment in library._environments.items():
                if engine.get_global_value_address(name):
                    self._codegen.set_env(name, environment)

    def _defines(self, name: str) -> bool:
        try:
            function = self._final_module.get_function(name)
        except NameError:
            return False
        return not function.is_declaration

    def _linked_libraries(self) -> list[LazyLibrary]:
        """Return this library, and those that it calls directly or indirectly."""
        libraries = {id(self): self}
        pending = [self]
        for library in pending:  # grows while it is iterated
            for callee in library._linking_libraries:
                if isinstance(callee, LazyLibrary) and id(callee) not in libraries:
                    libraries[id(callee)] = callee
                    pending.append(callee)
        return pending


class _CodegenOfLibrary:
    """The code generator of a library, which keeps the environments of functions.

    Args:
        environments: where to keep environments; None if the library is machine code.
    """

    def __init__(self, codegen: Any, environments: dict[str, Any] | None) -> None:
        self._codegen = codegen
        self._environments = environments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Set the environment of a function, or keep it until there is machine code."""
        if self._environments is None:
            self._codegen.set_env(name, environment)
        else:
            self._environments[name] = environment


@contextmanager
def linking_lazily() -> Iterator[None]:
    """Compile with :class:`LazyLibrary` in this context, while no other thread can compile."""
    with global_compiler_lock:
        codegen = cpu_target.target_context.codegen()
        thresholds = gc.get_threshold()
        # A signal handler may compile, too, and so enter the context again.
        is_outermost = "_library_class" not in vars(codegen)
        codegen._library_class = LazyLibrary
        if 0 < thresholds[0] < _GC_THRESHOLD:
            gc.set_threshold(_GC_THRESHOLD, *thresholds[1:])
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)
            if is_outermost:
                del codegen._library_class
