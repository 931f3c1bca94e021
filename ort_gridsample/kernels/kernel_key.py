"""The part of a kernel's key on disk that depends on the code of this package.

A kernel contains the functions that its function reaches by the names in their code, and the
constants among these names. Its key has the sources of the modules that define these functions, and
the values of the constants. So an edit compiles those kernels again that contain an edited module's
function or constant, and no others. A constant counts by its value: the rest of its module may
change.

The names in the code of a function include names of attributes. A global name therefore counts as
reached if the code has an attribute of the same name. This adds definitions to a key, and never
omits one.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources.abc import Traversable
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
from numba.core.extending import _Intrinsic

_PACKAGE_NAME = __name__.partition(".")[0]

#: Modules that change the code of every kernel, but that no name in a function leads to: how
#: functions are linked, and decorators of functions.
_MODULES_OF_ALL_KERNELS = tuple(
    f"{_PACKAGE_NAME}.kernels.{name}" for name in ("code_library", "pointers")
)

#: Types of constants whose ``repr`` is their value. A subclass may have another ``repr``.
_PLAIN_TYPES = frozenset(
    (type(None), type(...), bool, int, float, complex, str, bytes, range, slice)
)
#: The name of the functions that make annotations, since Python 3.14. Numba ignores annotations.
_ANNOTATE = "__annotate__"
#: The packages whose constants have a ``repr`` that is their value.
_PACKAGES_WITH_REPR = ("llvmlite", "numba", "numpy")


@dataclass
class Definition:
    """A function or a class that a kernel contains.

    Attributes:
        value: the function or the class.
        module: the module of this package that defines it; empty for another package's.
        text: its name, and the values of the constants that it reads.
        references: the functions and classes of this package that it reads, in the order of the
            marks in ``text``.
    """

    value: Any
    module: str
    text: str = ""
    references: list[Any] = field(default_factory=list)


def kernel_key(function: Any, *options: object) -> str:
    """Return a hash of the code and the constants of this package that ``function`` reaches.

    Args:
        options: other values that the kernel depends on.

    Raises:
        OSError: a source file is missing, as in a frozen program of bytecode only.
        TypeError: a constant has a value without a known description.
    """
    definitions = reached_definitions(function)
    numbers = {id(definition.value): number for number, definition in enumerate(definitions)}
    digest = hashlib.sha256(repr(options).encode())
    for definition in definitions:
        references = [numbers[id(value)] for value in definition.references]
        digest.update(f"{definition.text}{references}\n".encode())
    for module in sorted({*_MODULES_OF_ALL_KERNELS, *modules_of(definitions)}):
        digest.update(f"{module} {_source_digest(module)}\n".encode())
    return digest.hexdigest()


def modules_of(definitions: Iterable[Definition]) -> set[str]:
    """Return the modules of this package that contain ``definitions``."""
    return {definition.module for definition in definitions} - {""}


def reached_definitions(function: Any) -> list[Definition]:
    """List the functions and classes that ``function`` reaches, and first its own definition.

    Raises:
        TypeError: see :func:`kernel_key`.
    """
    definitions = [_definition(function)]
    visited = {id(function)}
    for definition in definitions:  # grows while it is iterated
        for value in definition.references:
            if id(value) not in visited:
                visited.add(id(value))
                definitions.append(_definition(value))
    return definitions


@cache
def _source_digest(module: str) -> str:
    """Return a hash of the source of a module of this package. A process reads the file once."""
    return hashlib.sha256(source_file(module).read_bytes()).hexdigest()


def source_file(module: str) -> Traversable:
    """Return the source file of a module of this package, which may be in a zip archive."""
    _, *folders, name = module.split(".")
    file = importlib.resources.files(_PACKAGE_NAME)
    for part in (*folders, f"{name}.py"):
        file = file.joinpath(part)
    return file


# --- Functions and classes ---


#: The definitions by the ``id`` of their functions and classes, which they keep alive.
_definitions: dict[int, Definition] = {}


def _definition(value: Any) -> Definition:
    """Return the definition of a function or a class."""
    definition = _definitions.get(id(value))
    if definition is None:
        definition = Definition(value, _module_of(value))
        parts = _class_parts(value) if isinstance(value, type) else _function_parts(value)
        texts = [f"{definition.module} {value.__qualname__}"]
        for name, part in parts:
            try:
                texts.append(f"{name}={_describe(part, definition.references)}")
            except TypeError as error:
                where = f"{value.__module__}.{value.__qualname__}"
                raise TypeError(f"{name!r} in {where}: {error}") from None
        definition.text = "; ".join(texts)
        _definitions[id(value)] = definition
    return definition


def _module_of(value: Any) -> str:
    """Return the module of this package that defines a function or a class, or an empty string.

    The attribute ``__module__`` of a decorated function may be that of another function.
    """
    module = value.__module__ if isinstance(value, type) else value.__globals__.get("__name__", "")
    return module if _is_of_package(module) else ""


def _is_of_package(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _PACKAGE_NAME


def _function_parts(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the code of ``function`` and everything that it may read, each with a name."""
    codes = list(_codes(function.__code__))
    for code in codes:
        yield "code", code.co_code
        yield "constants", [value for value in code.co_consts if not isinstance(value, CodeType)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    variables = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        variables[name] = cell.cell_contents
    for name, value in variables.items():
        if isinstance(value, ModuleType) and _is_of_package(value.__name__):
            for attribute in names:
                if attribute in vars(value):
                    yield f"{name}.{attribute}", vars(value)[attribute]
        else:
            yield name, value
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    if hasattr(function, "__wrapped__"):
        yield "wrapped", function.__wrapped__


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield ``code`` and the code of the functions in it, without code that makes annotations."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name != _ANNOTATE:
            yield from _codes(constant)


def _class_parts(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the bases and the attributes of a class, each with a name."""
    yield "bases", value.__bases__
    for name, attribute in vars(value).items():
        if isinstance(attribute, (classmethod, staticmethod)):
            yield name, attribute.__func__
        elif isinstance(attribute, property):
            yield name, (attribute.fget, attribute.fset)
        elif isinstance(attribute, FunctionType):
            if attribute.__name__ != _ANNOTATE:
                yield name, attribute
        elif not name.startswith("__") and not hasattr(attribute, "__get__"):
            yield name, attribute  # what Python itself adds is the same for all classes


# --- Constants ---


def _describe(value: Any, references: list[Any]) -> str:
    """Return a text that determines ``value``.

    A function or a class of this package is a mark in the text, and an item added to
    ``references``.

    Raises:
        TypeError: this is not implemented for such a value.
    """
    if type(value) in _PLAIN_TYPES:
        return repr(value)
    if isinstance(value, (FunctionType, type)):
        if not _module_of(value):
            return f"{value.__module__}.{value.__qualname__}"
        references.append(value)
        return "*"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, np.dtype):
        return _describe_dtype(value)
    describe = partial(_describe, references=references)
    if isinstance(value, _Intrinsic):
        return f"intrinsic {describe(value._defn)}"
    if isinstance(value, (tuple, list)):
        return f"{describe(type(value))}{[describe(item) for item in value]}"
    if isinstance(value, (dict, MappingProxyType)):
        items = [f"{describe(key)}: {describe(item)}" for key, item in value.items()]
        return f"{describe(type(value))}{items}"
    if isinstance(value, (set, frozenset)):
        return f"{describe(type(value))}{sorted(map(describe, value))}"
    if isinstance(value, np.ndarray):
        return f"{_describe_dtype(value.dtype)}{value.shape}{value.tobytes().hex()}"
    if _is_of_package(type(value).__module__) and hasattr(value, "__dict__"):
        return f"{describe(type(value))}{describe(vars(value))}"
    if hasattr(value, "__wrapped__"):  # a function with a cache
        return f"{type(value).__name__} {describe(value.__wrapped__)}"
    return _describe_other(value)


#: The texts of dtypes by their ``id``, with the dtypes, which they keep alive.
_dtype_texts: dict[int, tuple[np.dtype[Any], str]] = {}


def _describe_dtype(dtype: np.dtype[Any]) -> str:
    """Return a text that determines ``dtype``. NumPy's ``repr`` takes three times as long."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{shape}{_describe_dtype(base)}"
    if dtype.names is None:
        return f"{dtype.type.__name__}{dtype.str}"
    if id(dtype) not in _dtype_texts:
        fields = []
        for name in dtype.names:
            field_dtype, offset, *_ = dtype.fields[name]  # type: ignore[index]
            fields.append(f"{name!r} {offset} {_describe_dtype(field_dtype)}")
        text = f"{fields} {dtype.itemsize} {dtype.isalignedstruct}"
        _dtype_texts[id(dtype)] = dtype, text
    return _dtype_texts[id(dtype)][1]


def _describe_other(value: Any) -> str:
    """Return a text that determines an object of another package."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    module = getattr(value, "__module__", "")
    if name and not _is_of_package(module):
        return f"{module}.{name}"
    text = f"{type(value).__name__} {value!r}"  # NumPy 1 prints numbers without their type
    if type(value).__module__.partition(".")[0] in _PACKAGES_WITH_REPR and " at 0x" not in text:
        return text
    raise TypeError(f"a kernel cannot read {text}: a key has no text for this type")
