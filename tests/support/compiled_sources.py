"""The source files that compiled code comes from, found by the names that functions read."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import ort_gridsample as ogs
from ort_gridsample.custom_ops.compiled_ops.catalog import FOREIGN_DOMAINS, OPS
from ort_gridsample.custom_ops.compiled_ops.description_table import DESCRIPTION_FUNCTIONS
from ort_gridsample.custom_ops.compiled_ops.descriptions import description_function
from ort_gridsample.custom_ops.compiled_ops.record_image import RecordImage
from ort_gridsample.custom_ops.compiled_ops.sentences import create_error
from ort_gridsample.custom_ops.provider import compute_infos
from ort_gridsample.custom_ops.provider.factory_image import add_factory
from ort_gridsample.custom_ops.provider.fused_grid import compute_grid_sample
from ort_gridsample.custom_ops.provider.fused_nodes import compute_info_functions
from ort_gridsample.kernels import jit_core
from ort_gridsample.kernels.compilation import FunctionSpec
from ort_gridsample.library.entry import create_ep_factories, find_functions, register

#: A module, and a name in it.
_Name = tuple[str, str]


def compiled_specs() -> set[FunctionSpec]:
    """Return the functions of ops, of the compiled core and of the execution provider."""
    specs: list[FunctionSpec] = [(create_error,), *jit_core._HELPER_FUNCTIONS.values()]
    specs += [(description_function, name) for name in DESCRIPTION_FUNCTIONS]
    for op in (*OPS, *(op for ops in FOREIGN_DOMAINS.values() for op in ops)):
        implementation = op.load()
        specs += implementation.functions.values()
        for types in op.types:
            image = RecordImage()
            dtype, states = implementation.states(*types)
            image.add_records(dtype, *states)
            specs += image.functions.values()
    image = RecordImage()
    add_factory(image, "", lambda overload: 0, ())
    specs += [*image.functions.values(), (compute_infos.allocate_block,)]
    for compute in (compute_infos.compute_as_op, compute_grid_sample):
        specs += compute_info_functions(compute).values()
    return set(specs)


def kernel_function(spec: FunctionSpec) -> Callable[..., int]:
    """Return the function that is compiled for ``spec``."""
    function, *types = spec
    return function(*types) if types else function


def kernel_name(spec: FunctionSpec) -> str:
    """Return the module and the name of a factory or a function, and the types of a kernel."""
    function, *types = spec
    return " ".join([f"{function.__module__}.{function.__name__}", *types])


def compiled_functions() -> set[Callable[..., object]]:
    """Return the functions of :func:`compiled_specs`, and the factories of such functions."""
    return {spec[0] for spec in compiled_specs()}


def library_functions() -> set[Callable[..., object]]:
    """Return the functions that are compiled for a library only."""
    return {create_ep_factories, find_functions, register}


def source_files(functions: set[Callable[..., object]]) -> set[Path]:
    """Return the files of the package with code and constants that ``functions`` read."""
    return {_file(module) for module, _ in reached_names(functions)}


def reached_names(functions: set[Callable[..., object]]) -> set[_Name]:
    """Return the modules and the names of the definitions that ``functions`` read.

    The search follows each name in the code of a function to its definition, and all names there,
    across imports.
    """
    pending = [(function.__module__, function.__name__) for function in functions]
    visited = set[_Name]()
    definitions = set[_Name]()
    while pending:
        name = pending.pop()
        if name in visited or not name[0].startswith(ogs.__name__):
            continue
        visited.add(name)
        module = name[0]
        for statement in _definitions(module).get(name[1], ()):
            if isinstance(statement, ast.ImportFrom):
                pending += _imported_names(module, statement, name[1])
            else:
                definitions.add(name)
                pending += _names_in(module, statement)
    return definitions


#: The decorators of functions that compiled code calls.
_DECORATORS = {"by_types", "intrinsic", "register_jitable", "returns_array"}


def is_decorated_for_compiled_code(name: _Name) -> bool:
    """Whether a definition is a function that is decorated for compiled code."""
    module, attribute = name
    for statement in _definitions(module)[attribute]:
        for decorator in getattr(statement, "decorator_list", ()):
            if any(
                isinstance(node, ast.Name) and node.id in _DECORATORS
                for node in ast.walk(decorator)
            ):
                return True
    return False


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module that define each of its names."""
    definitions: dict[str, list[ast.stmt]] = {}
    for statement in _statements(ast.parse(_file(module).read_text()).body):
        for name in _defined_names(statement):
            definitions.setdefault(name, []).append(statement)
    return definitions


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those in an ``if``."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements([*statement.body, *statement.orelse])
        else:
            yield statement


def _defined_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name):
                yield node.id


def _names_in(module: str, statement: ast.stmt) -> Iterator[_Name]:
    """Yield the names of ``module`` that a statement reads, and the attributes of modules."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield module, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            for definition in _definitions(module).get(node.value.id, ()):
                if isinstance(definition, ast.ImportFrom):
                    for source, name in _imported_names(module, definition, node.value.id):
                        if _is_module(f"{source}.{name}"):
                            yield f"{source}.{name}", node.attr


def _imported_names(module: str, statement: ast.ImportFrom, name: str) -> Iterator[_Name]:
    """Yield where an import gets ``name`` from."""
    package = module if _file(module).name == "__init__.py" else module.rpartition(".")[0]
    relative_name = "." * statement.level + (statement.module or "")
    source = importlib.util.resolve_name(relative_name, package)
    for alias in statement.names:
        if name == (alias.asname or alias.name):
            yield source, alias.name


def _is_module(name: str) -> bool:
    if not name.startswith(ogs.__name__):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the part before the last dot is a module, and no package
        return False


@cache
def _file(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)
