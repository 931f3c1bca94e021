"""Open a session of Python ops where the version of onnxruntime-extensions is 0.10.1.

Prints JSON: the error, and whether the library of onnxruntime-extensions was loaded.
"""

import importlib.machinery
import json
import sys
from importlib.abc import MetaPathFinder

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model
from support.programs import result_or_error

VERSION_MODULE = "onnxruntime_extensions._version"


class OlderVersion(importlib.machinery.SourceFileLoader):
    def get_data(self, path: str) -> bytes:
        return b"__version__ = '0.10.1'"


class Finder(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != VERSION_MODULE:
            return None
        loader = OlderVersion(fullname, "_version.py")
        return importlib.machinery.ModuleSpec(fullname, loader, origin="_version.py")


sys.meta_path.insert(0, Finder())
sys.modules.pop(VERSION_MODULE, None)
ogs.set_ops("python")
model = grid_sample_model("float32", "float32", 2, [Attributes()])
error = result_or_error(ogs.InferenceSession, model, nodes="all")
print(json.dumps([error, "onnxruntime_extensions._ocos" in sys.modules]))
