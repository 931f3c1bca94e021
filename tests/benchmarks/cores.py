"""The cores of this package that can be had here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ort_gridsample.core.choice import CoreName, get_core, set_core
from ort_gridsample.runtime.choice import set_ops

#: Core -> the module that it needs, the fastest first.
NEEDS: dict[CoreName, str] = {"jit": "numba", "numpy": "numpy"}


def installed() -> list[CoreName]:
    """The cores that can be had."""
    return [core for core, module in NEEDS.items() if find_spec(module)]


@contextmanager
def kept() -> Iterator[None]:
    """Set the core again that was set before, and let the environment choose the ops."""
    before = get_core()
    try:
        yield
    finally:
        set_core(before)
        set_ops(None)
