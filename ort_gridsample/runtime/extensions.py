"""The module of onnxruntime-extensions that runs ops defined in Python, without the package around it.

The package imports PyTorch and transformers where they are installed, for seconds, and sets an environment variable
that makes protobuf, in every process started from then on, several times slower.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from .. import versions

_NAME = "onnxruntime_extensions"


def load() -> Any:
    """``onnxruntime_extensions._ocos``, the same that the package uses if it is imported before or after.

    Raises:
        ImportError: it is not installed, is too old, or cannot be imported.
    """
    try:
        return _load()
    except ImportError as error:
        raise ImportError(
            f"ort_gridsample's ops need onnxruntime-extensions ({error}): pip install onnxruntime-extensions, "
            "or patch the model to a target that runs without it, such as 'primitives'",
            name=_NAME,
        ) from None


def _load() -> Any:
    if _NAME in sys.modules:
        return _ocos()
    spec = importlib.util.find_spec(_NAME)
    if spec is None:
        raise ModuleNotFoundError("it is not installed")
    # A package that was not executed, for as long as its module is imported: it says where to look.
    sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    try:
        return _ocos()
    finally:
        del sys.modules[_NAME]


def _ocos() -> Any:
    complaint = versions.complaint("onnxruntime-extensions", importlib.import_module(f"{_NAME}._version").__version__)
    if complaint:  # before its library is loaded: older ones end the process in the first run
        raise ImportError(complaint)
    return importlib.import_module(f"{_NAME}._ocos")
