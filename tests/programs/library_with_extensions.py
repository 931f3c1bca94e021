"""Run a model with ops of the library in ORT_GRIDSAMPLE_LIBRARY and of onnxruntime-extensions.

Both are registered in either order, by hand alone and also by this package. Print for each whether
the outputs are right.
"""

# ruff: noqa: E402 (modules are hidden before the imports)

import os
import sys

sys.modules["torch"] = None  # type: ignore[assignment]  # which the extensions would import
sys.modules["numba"] = None  # type: ignore[assignment]

import numpy as np
import onnxruntime
import onnxruntime_extensions

import ort_gridsample as ogs
from support.models import parsed

library = os.environ["ORT_GRIDSAMPLE_LIBRARY"]
extensions = onnxruntime_extensions.get_library_path()
model = parsed("""
    g (string[N] a, float[1,2,4,4] X, float[1,3,3,2] grid) => (string[N] b, float[1,2,3,3] Y) {
        b = ai.onnx.contrib.StringUpper (a)
        Y = GridSample (X, grid) }""")
X = np.ones((1, 2, 4, 4), np.float32)
GRID = np.zeros((1, 3, 3, 2), np.float32)
feeds = {"a": np.array(["ab"], object), "X": X, "grid": GRID}
patched = ogs.patch_model(model, target="compiled").SerializeToString()
for libraries in ((library, extensions), (extensions, library)):
    options = onnxruntime.SessionOptions()
    for path in libraries:
        options.register_custom_ops_library(path)
    for session_options in (options, ogs.register(options)):
        b, Y = onnxruntime.InferenceSession(patched, session_options).run(None, feeds)
        print(b.tolist() == ["AB"] and np.array_equal(Y, ogs.grid_sample(X, GRID)))
