"""ONNX Runtime's functions, for compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as untyped_cgutils

from .c_api import FUNCTIONS

cgutils: Any = untyped_cgutils
intrinsic: Any = extending.intrinsic  # its types take the typing context for an argument of the caller's

_WORD = ir.IntType(64)


def function(name: str) -> Any:
    """The function ``name`` of ONNX Runtime's table, for compiled code: of the table's address and its arguments."""
    offset = FUNCTIONS[name].offset

    @intrinsic
    def call_it(typing: Any, table: Any, arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            words = cgutils.unpack_tuple(builder, values[1])
            kind = ir.FunctionType(_WORD, [_WORD] * len(words)).as_pointer()
            entry = builder.inttoptr(builder.add(values[0], _WORD(offset)), kind.as_pointer())
            return builder.call(builder.load(entry), words)

        return types.int64(types.int64, arguments), generate

    return call_it
