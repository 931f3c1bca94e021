"""The symbols and the optimization of compiled functions in a library."""

from collections.abc import Callable

import pytest

pytest.importorskip("numba", reason="a library is compiled by Numba")
from ort_gridsample.library.emission import function_symbol
from support.compiled_sources import compiled_functions
from support.processes import run_program


def function_of(module: str, name: str) -> Callable[[], int]:
    def function() -> int:
        return 0

    function.__module__ = module
    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("first", "second"),
    [(("a.kernels", "b"), ("a.ops.kernels", "b")), (("a_b", "c"), ("a", "b_c"))],
    ids=str,
)
def test_symbols_of_different_functions_differ(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    symbols = {function_symbol((function_of(*names),), 3) for names in (first, second)}
    assert len(symbols) == 2


def test_symbol_of_a_function_depends_on_the_level_and_the_types() -> None:
    factory = function_of("a", "b")
    specs = [((factory,), 2), ((factory,), 3), ((factory, "float32"), 2), ((factory, "uint8"), 2)]
    assert len({function_symbol(*arguments) for arguments in specs}) == len(specs)


def test_symbols_of_all_functions_are_names_of_llvm_assembly() -> None:
    """Other names would need quotes."""
    for function in compiled_functions():
        symbol = function_symbol((function,), 1)
        assert symbol.replace(".", "").replace("_", "").isalnum()
        assert symbol.isascii()


def test_function_of_a_library_is_optimized_once_with_its_callees() -> None:
    """As in a process, because LLVM inlines more into internal or optimized functions."""
    lines = [line.split() for line in run_program("library_optimization.py")]
    optimized = [line for line in lines if line[0] != "nrt"]
    assert optimized == [["pack_for.<locals>.pack", "external", "linkonce_odr"]]
