"""Check what the package needs, before anything else of it is imported.

Raises:
    ImportError: something is missing or too old; the text has what was found and what is needed.
"""

from __future__ import annotations

import importlib
import sys

from . import versions

#: How a module that several distributions bring is called in errors.
_OTHERS = {"onnxruntime": "onnxruntime (or another build of it, such as onnxruntime-gpu)"}


def _look() -> None:  # pragma: no mutate block
    if sys.version_info < versions.PYTHON:
        found, oldest = (".".join(map(str, each[:2])) for each in (sys.version_info, versions.PYTHON))
        raise ImportError(f"ort_gridsample needs Python {oldest} or newer, and this is {found}")
    for name in ("numpy", "onnx", "onnxruntime"):
        try:
            release = getattr(importlib.import_module(name), "__version__", None)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            missing = f"ort_gridsample needs {name}, and none is installed: pip install {_OTHERS.get(name, name)}"
            raise ImportError(missing, name=name) from None
        if release is None:  # left by one build when another one is uninstalled
            broken = f"what is installed as {name} is not whole: uninstall every build of it, and install one of them"
            raise ImportError(broken, name=name)
        complaint = versions.complaint(name, release)
        if complaint:
            raise ImportError(complaint, name=name)


_look()
