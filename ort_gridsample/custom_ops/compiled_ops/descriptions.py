"""The functions that describe an op to ONNX Runtime, for compiled code."""

from collections.abc import Callable

from numba.extending import register_jitable

from ...kernels.pointers import record_at
from .description_table import DESCRIPTION_FUNCTIONS
from .structs import OP


def description_function(name: str) -> Callable[..., int]:
    """Return the function ``name`` of DESCRIPTION_FUNCTIONS for the OrtCustomOp at an address."""
    function = register_jitable(DESCRIPTION_FUNCTIONS[name])
    if DESCRIPTION_FUNCTIONS[name].__code__.co_argcount == 1:
        return lambda op_address: function(record_at(op_address, OP))
    return lambda op_address, index: function(record_at(op_address, OP), index)
