"""The cores of this package that can be had here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import ort_gridsample as ogs

#: Core -> the module that it needs.
NEEDS = {"jit": "numba", "numpy": "numpy"}

_CAN_CHOOSE = hasattr(ogs, "set_core")


def installed() -> list[str]:
    """The cores that can be had, the fastest first."""
    return [core for core, module in NEEDS.items() if find_spec(module) and (_CAN_CHOOSE or core == "numpy")]


def use(core: str) -> None:
    """Let all that is called from here on use ``core``."""
    if _CAN_CHOOSE:
        ogs.set_core(core)


@contextmanager
def kept() -> Iterator[None]:
    """Set the core again that was set before."""
    before = ogs.get_core() if _CAN_CHOOSE else ""
    try:
        yield
    finally:
        if _CAN_CHOOSE:
            ogs.set_core(before)
