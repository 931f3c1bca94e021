"""The releases that the tests pass with, as pyproject.toml requires them, and the check of what is installed.

It comes before anything else of the package is imported: an ImportError has what was found and what is needed.
"""

import importlib
import re
import sys

PYTHON = (3, 11)
#: Distribution -> its oldest release.
OLDEST = {"numpy": "1.26", "onnx": "1.17", "onnxruntime": "1.17", "onnxruntime-extensions": "0.11", "numba": "0.61"}
#: The first release of Numba that is untested: the vectors use its internals.
NEWER_NUMBA = "0.69"
#: The first release of onnxruntime whose own GridSample kernel stays inside X. Older ones convert a coordinate to an
#: integer before they compare it with the image: one beyond 64 bits is read outside of X's memory.
#: Sources: onnxruntime issues 27975 and 28302.
ONNXRUNTIME_STAYS_INSIDE_X = "1.26"
#: How a module that several distributions bring is called in errors.
_OTHERS = {"onnxruntime": "onnxruntime (or another build of it, such as onnxruntime-gpu)"}


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


def missing(name: str, installed: str) -> str:
    """Return the sentence for a module that cannot be found: ``installed``, unless this is a frozen program."""
    if not getattr(sys, "frozen", False):
        return installed
    return (
        f"this frozen program lacks the module {name}: build it with PyInstaller and the hook of ort_gridsample, "
        "or include the module by its name (INSTALL.md, Frozen programs)"
    )


def at_least(found: str, oldest: str) -> bool:
    """Whether the release ``found`` is ``oldest`` or newer, by their first two numbers."""
    one, other = ([int(number) for number in re.findall(r"\d+", release)[:2]] for release in (found, oldest))
    return one >= other


def _look() -> None:  # pragma: no mutate block
    if sys.version_info < PYTHON:
        found, oldest = (".".join(map(str, each[:2])) for each in (sys.version_info, PYTHON))
        raise ImportError(f"ort_gridsample needs Python {oldest} or newer, and this is {found}")
    for name in ("numpy", "onnx", "onnxruntime"):
        try:
            release = getattr(importlib.import_module(name), "__version__", None)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            sentence = f"ort_gridsample needs {name}, and none is installed: pip install {_OTHERS.get(name, name)}"
            raise ImportError(missing(name, sentence), name=name) from None
        if release is None:  # left by one build when another one is uninstalled
            broken = f"what is installed as {name} is not whole: uninstall every build of it, and install one of them"
            raise ImportError(broken, name=name)
        if said := complaint(name, release):
            raise ImportError(said, name=name)


_look()
