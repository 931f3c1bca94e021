"""Register onnxruntime-extensions on options, and then this package; print what a session does.

Argument: ``before``, if onnxruntime-extensions is imported and registered before this package, or
``after``. Prints the error, or the shape of an output.
"""

import importlib
import sys

import onnxruntime

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.programs import GRID, X, result_or_error, shape_or_error


def register_extensions(options: onnxruntime.SessionOptions) -> None:
    extensions = importlib.import_module("onnxruntime_extensions")
    options.register_custom_ops_library(extensions.get_library_path())


model = grid_sample_model("float32", "float32", 2, [Attributes()])
patched = ogs.patch_model(model).SerializeToString()
options = onnxruntime.SessionOptions()
if sys.argv[1] == "before":
    register_extensions(options)
    ogs.register(options)
else:
    ogs.register(options)
    register_extensions(options)
session = result_or_error(onnxruntime.InferenceSession, patched, options)
print(session if isinstance(session, str) else shape_or_error(session, X, GRID))
