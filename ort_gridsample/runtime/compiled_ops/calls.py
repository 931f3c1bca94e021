"""ONNX Runtime's functions, for compiled code."""

from __future__ import annotations

from typing import Any

from ...core.pointers import caller
from .c_api import FUNCTIONS


def function(name: str, n_answers: int = 0) -> Any:
    """The function ``name`` of ONNX Runtime's table, of the table's address and its arguments; it answers a status.

    As :func:`ort_gridsample.core.pointers.caller` has it.
    """
    return caller(n_answers, FUNCTIONS[name].offset)
