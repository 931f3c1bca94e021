"""The releases of what this package stands on that its tests pass with; pyproject.toml asks for the same."""

from __future__ import annotations

import re

PYTHON = (3, 10)

#: The oldest release by the name under which it is installed.
OLDEST = {"numpy": "1.26", "onnx": "1.17", "onnxruntime": "1.17", "onnxruntime-extensions": "0.11", "numba": "0.61"}

#: The first release of Numba that nobody tried: vectors are written by its insides.
NEWER_NUMBA = "0.69"


def complaint(name: str, found: str) -> str:
    """What is wrong with the release ``found`` of ``name``; empty where nothing is."""
    oldest = OLDEST[name]
    if name == "numba" and at_least(found, NEWER_NUMBA):
        needed, bounds = f"older than {NEWER_NUMBA}", f">={oldest},<{NEWER_NUMBA}"
    elif at_least(found, oldest):
        return ""
    else:
        needed, bounds = f"{oldest} or newer", f">={oldest}"
    return f"ort_gridsample needs {name} {needed}, and {found} is installed: pip install '{name}{bounds}'"


def at_least(found: str, oldest: str) -> bool:
    """Whether the release ``found`` is ``oldest`` or newer, by their first two numbers."""
    return _numbers(found) >= _numbers(oldest)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:2]))
