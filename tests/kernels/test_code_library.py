"""The machine code of kernels."""

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="kernels are compiled by Numba")

import numba
from numba.core.caching import NullCache
from numba.core.registry import cpu_target
from numba.extending import register_jitable

from ort_gridsample.kernels import code_library
from ort_gridsample.kernels.compilation import OPTIONS, CompiledFunction
from ort_gridsample.kernels.pointers import array_at, returns_array


@register_jitable
def longest_halves(numbers: Any) -> Any:
    """Return the first half and the last half of an array."""
    half = max(len(numbers) // 2, 1)
    return numbers[:half], numbers[half:]


@returns_array
def numbers_at(address: int, length: int) -> Any:
    return array_at(address, (length,), np.int64)


def sum_of_halves(address: int, length: int) -> int:
    first, last = longest_halves(numbers_at(address, length))
    return first.sum() + 10 * last.sum()


def llvm_of(function: CompiledFunction) -> str:
    return function._cfunc._library.get_llvm_str()


@pytest.fixture
def compiled() -> CompiledFunction:
    """Return a kernel that is compiled in this process. It is not kept on disk."""
    function = CompiledFunction(sum_of_halves)
    function._cfunc._cache = NullCache()
    return function


def test_kernel_with_arrays_has_no_reference_counts(compiled: CompiledFunction) -> None:
    numbers = np.arange(5)
    prototype = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 3)
    assert prototype(compiled.address())(numbers.ctypes.data, 5) == 1 + 10 * 9
    assert "NRT_" not in llvm_of(compiled)
    assert OPTIONS["_nrt"] is False


def test_kernel_without_the_option_has_reference_counts(
    compiled: CompiledFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail."""
    monkeypatch.setitem(OPTIONS, "_nrt", True)
    function = CompiledFunction(sum_of_halves)
    function._cfunc._cache = NullCache()
    function.address()
    assert "NRT_incref" in llvm_of(function)


def test_function_of_kernel_is_not_compiled_alone(compiled: CompiledFunction) -> None:
    """Its code is only linked into the kernel, unlike that of Numba's memory management."""
    compiled.address()
    library = compiled._cfunc._library
    assert isinstance(library, code_library.LazyLibrary)
    callees = [callee for callee in library._linked_libraries() if callee is not library]
    assert callees
    assert {callee.name for callee in callees if callee._finalized} <= {"nrt"}


def test_linking_lazily_ends_with_the_context() -> None:
    """Functions of others are compiled as before, and so often is garbage collected."""
    codegen = cpu_target.target_context.codegen()
    before = codegen._library_class, gc.get_threshold()
    with code_library.linking_lazily():
        assert codegen._library_class is code_library.LazyLibrary
        assert gc.get_threshold()[0] > before[1][0]
    assert (codegen._library_class, gc.get_threshold()) == before


def test_linking_lazily_twice_ends_with_the_outer_context() -> None:
    """A signal handler may compile a kernel while another one is compiled."""
    codegen = cpu_target.target_context.codegen()
    before = codegen._library_class
    with code_library.linking_lazily():
        with code_library.linking_lazily():
            pass
        assert codegen._library_class is code_library.LazyLibrary
    assert codegen._library_class is before


def test_function_that_kernel_called_can_be_compiled_by_others(compiled: CompiledFunction) -> None:
    """Numba keeps the code of functions such as max. It becomes machine code when it is needed."""
    compiled.address()

    @numba.njit
    def first_sum(numbers: Any) -> int:
        return longest_halves(numbers)[0].sum()

    assert first_sum(np.arange(5)) == 1
