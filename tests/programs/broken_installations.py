"""Import the package's session in one broken environment after another; print its errors in JSON.

Argument: a folder with a module onnx that fails to import another module. The keys are what is
wrong with the environment.
"""

import json
import sys
import types
from unittest.mock import patch

import numpy
import onnx
import onnxruntime


def import_error() -> str:
    """Import the package and its session for the first time; return the ImportError's message."""
    for name in [name for name in sys.modules if name.startswith("ort_gridsample")]:
        del sys.modules[name]
    try:
        from ort_gridsample import InferenceSession  # noqa: F401
    except ImportError as error:
        return str(error)
    return "no exception"


errors: dict[str, str] = {}
for module in numpy, onnx, onnxruntime:
    with patch.object(module, "__version__", "0.9.1"):
        errors[f"old {module.__name__}"] = import_error()
    with patch.dict(sys.modules, {module.__name__: None}):
        errors[f"no {module.__name__}"] = import_error()
# Two builds of onnxruntime share a folder. If one is uninstalled, few files of the other remain.
with patch.dict(sys.modules, onnxruntime=types.ModuleType("onnxruntime")):
    errors["incomplete onnxruntime"] = import_error()
with patch.object(sys, "version_info", (3, 9, 18)):
    errors["old Python"] = import_error()
sys.path.insert(0, sys.argv[1])
with patch.dict(sys.modules):
    for name in [name for name in sys.modules if name.split(".")[0] == "onnx"]:
        del sys.modules[name]
    errors["missing dependency of onnx"] = import_error()
print(json.dumps(errors))
