"""The kernels of a library, for the functions: the core needs no Numba for them.

A library exports one function. It returns the address of the FUNCTIONS of the variant for this
processor: the kernels by name, and the functions of helper threads.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from ..errors import GridSampleError
from . import library_file
from .structs import FUNCTIONS, KERNEL, NAMED_KERNEL, ctypes_type, layout_number

logger = logging.getLogger("ort_gridsample")

#: The name of the function that a library exports.
EXPORT = "OrtGridSampleFunctions"

_Kernel: Any = ctypes_type(KERNEL)
_NamedKernel: Any = ctypes_type(NAMED_KERNEL)
_Functions: Any = ctypes_type(FUNCTIONS)


class LibraryKernels(NamedTuple):
    """The kernels of a library.

    Attributes:
        functions: the FUNCTIONS of the library.
        kernels: the KERNELs by name.
        library: the loaded library, which must stay loaded.
    """

    functions: Any
    kernels: Mapping[str, Any]
    library: Any


def kernel_name(operator: str, *types: str) -> str:
    """Return the name of a kernel in a library.

    Args:
        operator: ``"GridSample"`` or ``"DeformableAttention"``.
        types: the types of X or the value and of the grid or the locations; for a GridSample, the
            mode.
    """
    return " ".join([operator, *types])


@cache
def library_kernels() -> LibraryKernels | None:
    """Return the kernels of the configured library, or None if it has none for this process.

    A library that cannot be used is an error of sessions. The functions do not need it.
    """
    path = library_file.configured_library()
    if path is None:
        return None
    try:
        library_file.validate(path)
        library = ctypes.CDLL(str(path))
        find = getattr(library, EXPORT)
    except (AttributeError, GridSampleError, OSError) as error:
        logger.warning("the functions do not use the library %s: %s", path, error)
        return None
    find.restype = ctypes.c_int64
    find.argtypes = []
    address = find()
    functions = _Functions.from_address(address) if address else None
    if functions is None or functions.layout != layout_number():
        reason = "it is for other processors" if functions is None else "another release built it"
        logger.warning("the functions do not use the library %s: %s", path, reason)
        return None
    rows = (_NamedKernel * functions.n_kernels).from_address(functions.kernels)
    kernels = {
        ctypes.string_at(row.name).decode(): _Kernel.from_address(row.kernel) for row in rows
    }
    return LibraryKernels(functions, kernels, library)
