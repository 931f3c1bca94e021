"""The key of a kernel on disk: it has all code and constants of the kernel, and nothing else."""

import ast
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ort_gridsample as ogs
from support.compare import about
from support.processes import run_json_program, run_script

pytest.importorskip("numba", reason="kernels are compiled by Numba")
from ort_gridsample.kernels import compilation, kernel_key
from support.compiled_sources import (
    compiled_functions,
    compiled_specs,
    is_decorated_for_compiled_code,
    kernel_function,
    kernel_name,
    reached_names,
    source_files,
)

PACKAGE = Path(ogs.__file__).parent

#: What the functions of the cases below can read.
IMPORTS = """
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple
import numpy as np
from numba import types
from numba.extending import intrinsic, register_jitable
from ort_gridsample.kernels import structs
from ort_gridsample.kernels.pointers import by_types, caller
"""


def key_of(code: str) -> str:
    """Return the key of the function ``kernel`` in a module of this package with this code."""
    variables: dict[str, Any] = {"__name__": "ort_gridsample.kernels.structs"}
    exec(IMPORTS + code, variables)
    return kernel_key.kernel_key(variables["kernel"], compilation.OPTIONS)


#: What a change affects -> the code, where the kernel reads 1, and its change.
CHANGES = {
    "literal": ("def kernel(): return 1", "1", "2"),
    "operation": ("def kernel(m, n): return m + n", "+", "-"),
    "constant": ("N = 1\ndef kernel(): return N", "1", "2"),
    "type of a constant": ("N = 1\ndef kernel(): return N", "1", "1.0"),
    "item of a tuple": ("N = (0, (1, 2))\ndef kernel(): return N[1][0]", "1", "3"),
    "order of a dictionary": (
        "N = {0: 1, 2: 3}\ndef kernel(): return N",
        "0: 1, 2: 3",
        "2: 3, 0: 1",
    ),
    "item of a set": ("N = {1, 2}\ndef kernel(): return N", "1", "3"),
    "array": ("N = np.array([1, 2])\ndef kernel(): return N[0]", "1", "3"),
    "NumPy number": ("N = np.int64(1)\ndef kernel(): return N", "int64", "int32"),
    "record": ("R = structs.record('a b')\ndef kernel(): return R", "a b", "a c"),
    "type of a field": ("R = np.dtype([('a', 'i4')])\ndef kernel(): return R", "i4", "f4"),
    "length of a field": ("R = np.dtype([('a', 'i4', 2)])\ndef kernel(): return R", "2", "3"),
    "field of a field": (
        "R = structs.record(('a', structs.record('b')))\ndef kernel(): return R",
        "'b'",
        "'c'",
    ),
    "alignment": (
        "R = np.dtype([('a', 'i8')], align=True)\ndef kernel(): return R",
        "True",
        "False",
    ),
    "offset of a field": (
        "R = np.dtype({'names': ['a'], 'formats': ['i4'], 'offsets': [0], 'itemsize': 8})\n"
        "def kernel(): return R",
        "[0]",
        "[4]",
    ),
    "byte order": ("R = np.dtype('<i4')\ndef kernel(): return R", "<", ">"),
    "order of fields": ("R = structs.record('a b')\ndef kernel(): return R", "a b", "b a"),
    "Numba type": ("T = types.int64\ndef kernel(): return T", "int64", "int32"),
    "C function": (
        "f = types.ExternalFunction('one', types.int64())\ndef kernel(): return f()",
        "'one'",
        "'two'",
    ),
    "closure": (
        "def factory(n):\n def kernel(): return n\n return kernel\nkernel = factory(1)",
        "1",
        "2",
    ),
    "default": ("N = 1\ndef kernel(n=N): return n", "1", "2"),
    "keyword default": ("N = 1\ndef kernel(*, n=N): return n", "1", "2"),
    "function": ("def f(): return 1\ndef kernel(): return f()", "1", "2"),
    "constant of a function": ("N = 1\ndef f(): return N\ndef kernel(): return f()", "1", "2"),
    "function of a function": (
        "def g(): return 1\ndef f(): return g()\ndef kernel(): return f()",
        "1",
        "2",
    ),
    "constant of an inner function": (
        "N = 1\ndef kernel():\n def f(): return N\n return f()",
        "1",
        "2",
    ),
    "constant of a lambda": ("N = 1\nf = lambda: N\ndef kernel(): return f()", "1", "2"),
    "function in a table": (
        "class Row(NamedTuple):\n f: Callable\n"
        "T = {0: Row(lambda: 1)}\ndef kernel(): return T[0].f()",
        "1",
        "2",
    ),
    "two functions of one name": (
        "f, g = lambda: 1, lambda: 2\ndef kernel(): return f() - g()",
        "f, g = ",
        "g, f = ",
    ),
    "function in a table, after both": (
        "f, g = lambda: 1, lambda: 2\nT = (f, g, f)\ndef kernel(): return T[2]()",
        "g, f)",
        "g, g)",
    ),
    "calls of two offsets": (
        "f, g = caller(0, 8), caller(0, 16)\ndef kernel(): return f(0, ()) - g(0, ())",
        "f, g = ",
        "g, f = ",
    ),
    "closures in another order": (
        "def factory(n):\n def get(): return n\n return get\n"
        "f, g = map(factory, (1, 2))\ndef kernel(): return f() - g()",
        "(1, 2)",
        "(2, 1)",
    ),
    "instructions of an intrinsic": (
        "N = 1\n@intrinsic\ndef f(context):\n"
        " def generate(*_): return N\n return types.int64(), generate\ndef kernel(): return f()",
        "N = 1",
        "N = 2",
    ),
    "implementation by types": (
        "N = 1\n@by_types\ndef f(n):\n return lambda n: N\ndef kernel(): return f(0)",
        "N = 1",
        "N = 2",
    ),
    "function with a cache": (
        "N = 1\n@cache\ndef f(): return N\ndef kernel(): return f()",
        "1",
        "2",
    ),
    "method": (
        "N = 1\nclass A:\n def f(self): return N\ndef kernel(): return A().f()",
        "1",
        "2",
    ),
    "property": (
        "N = 1\nclass A:\n @property\n def f(self): return N\ndef kernel(): return A().f",
        "1",
        "2",
    ),
    "attribute of a class": (
        "N = 1\nclass A:\n n = N\ndef kernel(): return A.n",
        "N = 1",
        "N = 2",
    ),
    "class method": (
        "N = 1\nclass A:\n @classmethod\n def f(cls): return N\ndef kernel(): return A.f()",
        "1",
        "2",
    ),
    "method of a base class": (
        "N = 1\nclass A:\n def f(self): return N\nclass B(A): pass\ndef kernel(): return B().f()",
        "1",
        "2",
    ),
    "attribute of an object": (
        "@dataclass\nclass A:\n n: int\nN = A(1)\ndef kernel(): return N.n",
        "A(1)",
        "A(2)",
    ),
}


@pytest.mark.parametrize(("code", "old", "new"), CHANGES.values(), ids=CHANGES)
def test_kernel_key_after_a_change_of_the_kernel_differs(code: str, old: str, new: str) -> None:
    changed = code.replace(old, new)
    assert changed != code
    assert key_of(changed) != key_of(code)


@pytest.mark.parametrize("attribute", ["CACHE_LINE", "KERNEL", "MAX_PIXELS"])
def test_kernel_key_depends_on_an_attribute_of_a_module(
    attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_gridsample.kernels import structs

    code = f"def kernel(): return structs.{attribute}"
    before = key_of(code)
    monkeypatch.setattr(structs, attribute, 1)
    assert key_of(code) != before


#: Another code -> the same code as far as the kernel is concerned.
SAME = {
    "comment": ("N = 1  # one\ndef kernel(): return N  # N", "N = 1\n\ndef kernel(): return N"),
    "another constant": ("M = N = 1\ndef kernel(): return N", "N = 1\ndef kernel(): return N"),
    "computed constant": ("N = 2 - 1\ndef kernel(): return N", "N = 1\ndef kernel(): return N"),
    "order of a set": (
        "N = {8, 16, 0}\ndef kernel(): return N",
        "N = {16, 0, 8}\ndef kernel(): return N",
    ),
    "annotation": ("def kernel(n: int): return n", "def kernel(n: float): return n"),
}


@pytest.mark.parametrize(("code", "other"), SAME.values(), ids=SAME)
def test_kernel_key_after_a_change_of_something_else_is_the_same(code: str, other: str) -> None:
    assert key_of(code) == key_of(other)


def test_kernel_key_of_a_recursive_function_exists() -> None:
    code = "def f(n): return kernel(n - 1) if n else 1\ndef kernel(n): return f(n)"
    assert key_of(code) != key_of(code.replace("else 1", "else 2"))


def test_kernel_key_of_a_constant_without_a_description_raises() -> None:
    """Its address would differ in each process."""
    with pytest.raises(TypeError, match=r"'N' in ort_gridsample\.kernels\.structs\.f: a kernel"):
        key_of("N = object()\ndef f(): return N\ndef kernel(): return f()")


def test_kernel_key_depends_on_the_options() -> None:
    function = kernel_function(min(compiled_specs(), key=kernel_name))
    options = dict(compilation.OPTIONS, error_model="python")
    keys = [kernel_key.kernel_key(function, options) for options in (compilation.OPTIONS, options)]
    assert keys[0] != keys[1]


# --- The kernels of this package ---


@cache
def kernel_modules() -> Mapping[str, frozenset[str]]:
    """Return the modules whose functions each kernel contains, by the kernel's name."""
    modules = {}
    for spec in compiled_specs():
        definitions = kernel_key.reached_definitions(kernel_function(spec))
        modules[kernel_name(spec)] = frozenset(kernel_key.modules_of(definitions))
    return modules


def path_of(module: str) -> str:
    """Return the path of a module of this package inside the package."""
    return "/".join(module.split(".")[1:]) + ".py"


def test_kernels_contain_every_decorated_function_that_their_code_names() -> None:
    """Another search for them, in the text of the modules."""
    reached = set()
    for spec in compiled_specs():
        for definition in kernel_key.reached_definitions(kernel_function(spec)):
            reached.add((definition.value.__module__, definition.value.__name__))
    named = {
        name for name in reached_names(compiled_functions()) if is_decorated_for_compiled_code(name)
    }
    # The processor decides whether these are used.
    named -= {("ort_gridsample.kernels.halves", f"{way}_float16") for way in ("from", "to")}
    assert len(named) > 150
    assert named <= reached


def test_kernels_read_nothing_of_modules_for_graphs() -> None:
    """Their constants are below kernels, where both import them from."""
    functions = [
        function
        for function in compiled_functions()
        if not function.__module__.endswith("compiled_ops.foreign")  # its codes are a dialect's
    ]
    folders = {file.relative_to(PACKAGE).parts[0] for file in source_files(functions)}
    assert folders.isdisjoint({"detection", "dialects", "graph", "inference", "rewriting"})


def test_functions_of_kernels_import_nothing_of_the_package() -> None:
    """No name in their code would lead to what they import."""
    for module in frozenset[str]().union(*kernel_modules().values()):
        tree = ast.parse((PACKAGE / path_of(module)).read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in (node for function in functions for node in ast.walk(function)):
            assert not (isinstance(node, ast.ImportFrom) and node.level), (module, node.lineno)


# --- Edits of the package ---

#: An edit: module -> a text in it, and its replacement.
Edit = Mapping[str, tuple[str, str]]


def copy_package(folder: Path) -> Path:
    """Copy the package into ``folder``; return the entry of ``sys.path`` for the copy."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def with_comment(path: str) -> tuple[str, str]:
    """Return an edit that adds a comment to a module."""
    text = (PACKAGE / path).read_text()
    return text, text + "# A comment.\n"


def kernels_compiled_after(edits: Sequence[Edit], folder: Path) -> list[set[str]]:
    """Return the kernels whose keys change, for each of some edits of a copy of the package."""
    file = folder / "edits.json"
    file.write_text(json.dumps([{}, *edits]))
    before, *after = run_json_program("kernel_keys.py", str(copy_package(folder)), str(file))
    assert before == {
        kernel_name(spec): kernel_key.kernel_key(kernel_function(spec), compilation.OPTIONS)
        for spec in compiled_specs()
    }
    return [{name for name in before if before[name] != keys[name]} for keys in after]


def test_comments_in_modules_without_kernels_compile_nothing(tmp_path: Path) -> None:
    """In detection, dialects, rewriting and session, for instance, and in modules of constants."""
    reached = frozenset(kernel_key._MODULES_OF_ALL_KERNELS).union(*kernel_modules().values())
    paths = {file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")}
    others = paths - {path_of(module) for module in reached}
    folders = ("detection", "dialects", "graph", "rewriting", "session", "functions", "system")
    assert {path.partition("/")[0] for path in others} > {*folders}
    edit = {path: with_comment(path) for path in others}
    assert kernels_compiled_after([edit], tmp_path) == [set()]


@pytest.mark.parametrize(
    "edited_modules",
    [
        [f"ort_gridsample.kernels.{name}" for name in ("attention", "code_library", "packing")],
        pytest.param(
            sorted({*kernel_key._MODULES_OF_ALL_KERNELS}.union(*kernel_modules().values())),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["three modules", "all modules"],
)
def test_edits_of_kernels_compile_the_kernels_that_contain_them(
    edited_modules: Sequence[str], tmp_path: Path
) -> None:
    edits = [{path_of(module): with_comment(path_of(module))} for module in edited_modules]
    for module, kernels in zip(
        edited_modules, kernels_compiled_after(edits, tmp_path), strict=True
    ):
        is_in_all = module in kernel_key._MODULES_OF_ALL_KERNELS
        assert kernels == {
            kernel for kernel, modules in kernel_modules().items() if is_in_all or module in modules
        }


#: A module, a text with a constant that compiled code reads, its replacement, and the end of the
#: module of a kernel that reads the constant.
CHANGED_CONSTANTS = [
    (
        "custom_ops/compiled_ops/c_api.py",
        '"CreateStatus", 0, 2',
        '"CreateStatus", 8, 2',
        "create_error",
    ),
    ("custom_ops/compiled_ops/catalog.py", "INTERFACE = 1", "INTERFACE = 2", "sampling.create"),
    ("custom_ops/compiled_ops/structs.py", "(np.int64, 256)", "(np.int64, 512)", "create_error"),
    ("custom_ops/provider/ep_api.py", "NOT_APPLICABLE = 0", "NOT_APPLICABLE = 1", "applicable"),
    ("custom_ops/provider/structs.py", '"fuse",', '"unused fuse",', "get_capability"),
    (
        "dialects/table.py",
        'Spelling("interpolation_mode", dict(',
        'Spelling("interpolated_mode", dict(',
        "create_coded",
    ),
    ("kernels/compilation.py", '"error_model": "numpy"', '"error_model": "python"', ""),
    ("kernels/helper_threads.py", "SPIN_LIMIT = 1000", "SPIN_LIMIT = 100", "helper_loop"),
    ("kernels/program_codes.py", "MAX_STEPS = 16", "MAX_STEPS = 17", "program_grids.create"),
    (
        "kernels/program_codes.py",
        '("Add", "Sub", ',
        '("Sub", "Add", ',
        "program_grids.coordinates_for",
    ),
    ("kernels/structs.py", "CACHE_LINE = 64", "CACHE_LINE = 128", "attention_for float32"),
    ("reference/taps.py", "MAX_TAPS = 1 << 16", "MAX_TAPS = 1 << 15", "sampling.compute"),
    ("spec.py", "CUBIC_A = -0.75", "CUBIC_A = -0.5", "float32 cubic"),
]
#: The modules whose constants kernels do not depend on: compiled functions use them in annotations
#: and in error messages, which are data of an op, or they describe the machine.
WITHOUT_CONSTANTS = {
    "dialects/spelling.py",
    "errors.py",
    "functions/error_templates.py",
    "functions/validation.py",
    "graph/scope.py",
    "kernels/target.py",
    "reference/arrays.py",
}


def test_changes_of_constants_compile_the_kernels_that_read_them(tmp_path: Path) -> None:
    edits = [{path: (old, new)} for path, old, new, _ in CHANGED_CONSTANTS]
    compiled = kernels_compiled_after(edits, tmp_path)
    for (path, _, new, kernel), kernels in zip(CHANGED_CONSTANTS, compiled, strict=True):
        with about(f"{new} in {path}"):
            assert [name for name in kernels if kernel in name]


def test_every_module_that_kernels_read_is_edited_by_a_test() -> None:
    """The modules are found by another search, in the text of the modules."""
    read = {file.relative_to(PACKAGE).as_posix() for file in source_files(compiled_functions())}
    modules = frozenset[str]().union(*kernel_modules().values())
    edited = {path for path, *_ in CHANGED_CONSTANTS}
    assert read == {*map(path_of, modules)} | edited | WITHOUT_CONSTANTS


#: Load or compile a kernel of a copy of the package; print whether it was on disk.
LOAD_KERNEL = """
import sys
sys.path.insert(0, {folder!r})
sys.dont_write_bytecode = True
from ort_gridsample.kernels import compilation, helper_threads
assert helper_threads.__file__.startswith({folder!r})
function = compilation.compiled_function((helper_threads.withdraw_and_wait,))
print(function.needs_no_lock)
function.address()
"""


def test_kernel_is_compiled_again_only_after_an_edit_of_its_code(tmp_path: Path) -> None:
    folder = copy_package(tmp_path / "copy")

    def is_loaded() -> bool:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        return run_script(LOAD_KERNEL.format(folder=str(folder)), environment) == ["True"]

    def edit(path: str, old: str, new: str) -> None:
        file = folder / PACKAGE.name / path
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    assert [is_loaded(), is_loaded()] == [False, True]
    for path in ("detection/programs.py", "kernels/attention.py", "kernels/structs.py"):
        edit(path, *with_comment(path))
    assert is_loaded()
    edit("kernels/helper_threads.py", *with_comment("kernels/helper_threads.py"))
    assert not is_loaded()
    edit("kernels/structs.py", '"wanted",', '"unused wanted",')
    assert not is_loaded()
