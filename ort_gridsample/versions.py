"""The releases of the dependencies that the tests pass with; pyproject.toml requires the same."""

from __future__ import annotations

import re

PYTHON = (3, 10)
#: Distribution -> its oldest release.
OLDEST = {"numpy": "1.26", "onnx": "1.17", "onnxruntime": "1.17", "onnxruntime-extensions": "0.11", "numba": "0.61"}
#: The first release of Numba that is untested: the vectors use its internals.
NEWER_NUMBA = "0.69"


def complaint(name: str, found: str) -> str:
    """The error text for the release ``found`` of ``name``; empty for one that is tested."""
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
    one, other = ([int(number) for number in re.findall(r"\d+", release)[:2]] for release in (found, oldest))
    return one >= other
