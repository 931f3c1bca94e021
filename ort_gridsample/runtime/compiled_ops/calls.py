"""ONNX Runtime's functions, for compiled code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils as untyped_cgutils

from .c_api import FUNCTIONS

cgutils: Any = untyped_cgutils
tuple_of: Any = types.Tuple
intrinsic: Any = extending.intrinsic  # its types take the typing context for an argument of the caller's

_WORD = ir.IntType(64)


def function(name: str, n_answers: int = 0) -> Any:
    """The function ``name`` of ONNX Runtime's table, for compiled code: of the table's address and its arguments.

    It answers with a status; or where it writes ``n_answers`` words, by pointers that come last, with these behind it.
    """
    offset = FUNCTIONS[name].offset

    @intrinsic
    def call_it(typing: Any, table: Any, arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            entry = builder.inttoptr(builder.add(values[0], _WORD(offset)), _WORD.as_pointer())
            return _called(context, builder, signature, builder.load(entry), values[1], n_answers)

        return _answers(n_answers)(types.int64, arguments), generate

    return call_it


def function_at(n_answers: int) -> Any:
    """As :func:`function`, of its own address in the table's place."""

    @intrinsic
    def call_it(typing: Any, at: Any, arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return _called(context, builder, signature, values[0], values[1], n_answers)

        return _answers(n_answers)(types.int64, arguments), generate

    return call_it


def _answers(count: int) -> Any:
    return tuple_of([types.int64] * (1 + count)) if count else types.int64


def _called(context: Any, builder: Any, signature: Any, at: Any, arguments: Any, n_answers: int) -> Any:
    answers = [cgutils.alloca_once_value(builder, _WORD(0)) for _ in range(n_answers)]
    words = [*cgutils.unpack_tuple(builder, arguments), *(builder.ptrtoint(each, _WORD) for each in answers)]
    kind = ir.FunctionType(_WORD, [_WORD] * len(words)).as_pointer()
    status = builder.call(builder.inttoptr(at, kind), words)
    if not answers:
        return status
    return context.make_tuple(builder, signature.return_type, [status, *map(builder.load, answers)])
