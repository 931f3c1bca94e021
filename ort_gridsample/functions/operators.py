"""The function of each operator."""

from collections.abc import Callable
from importlib import import_module

from .. import spec
from ..reference.arrays import Array


def function_of(operator: str) -> Callable[..., Array]:
    """Return the function that computes an operator of :data:`ort_gridsample.spec.OP_SPECS`."""
    module, name = spec.OP_SPECS[operator].function.split(".")
    function: Callable[..., Array] = getattr(import_module(f".{module}", __package__), name)
    return function
