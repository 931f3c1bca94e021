"""Import onnxruntime-extensions in a thread while a session imports a part of the package.

Prints whether the thread got the package's own module, and the shape of the session's output.
support.paths is not imported, as it would read a part of onnxruntime-extensions before.
"""

import importlib
import os
import sys
import threading

import numpy as np

import ort_gridsample as ogs
from support.cases import Attributes
from support.models import grid_sample_model

FIRST_FILE = os.path.join("onnxruntime_extensions", "_version.py")


def import_extensions() -> None:
    package = importlib.import_module("onnxruntime_extensions")
    from onnxruntime_extensions import OrtPyFunction  # noqa: F401

    library = sys.modules["onnxruntime_extensions._ocos"]
    print(package.get_library_path is library.get_library_path)


thread = threading.Thread(target=import_extensions)


def start_thread_at_first_file(event: str, args: tuple[object, ...]) -> None:
    is_first_file = event == "exec" and getattr(args[0], "co_filename", "").endswith(FIRST_FILE)
    if is_first_file and thread.ident is None:
        thread.start()
        thread.join(0.5)


sys.addaudithook(start_thread_at_first_file)
ogs.set_ops("python")
session = ogs.InferenceSession(
    grid_sample_model("float32", "float32", 2, [Attributes()]), nodes="all"
)
feeds = {"X": np.ones((1, 2, 64, 64), np.float32), "grid": np.zeros((1, 64, 64, 2), np.float32)}
print(*session.run(None, feeds)[0].shape)
thread.join()
importlib.import_module("onnxruntime_extensions")
